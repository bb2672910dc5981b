//! A program on a terminal of 80 by 24; a test presses its keys and reads its screen.
//!
//! Owns the `script` program of util-linux, which makes the terminal, and a file of all bytes
//! written to it, with escape sequences. Afterwards the terminal's settings are printed there, so
//! that a test can check that they were restored. Dropping it hangs up the terminal, which ends the
//! program. Called by the tests.

use std::fs;
use std::io::Write;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::process::{create, poll_within};

/// Longer than anything a healthy program needs on a loaded machine.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A terminal with a program on it.
pub struct Terminal {
    child: Child,
    dir: TempDir,
}

impl Terminal {
    /// Runs `command` on a new terminal. Only its program, arguments and directory are used.
    ///
    /// # Panics
    ///
    /// When `script` cannot be started; see [`require_clients`](crate::require_clients).
    #[must_use]
    pub fn run(command: &Command) -> Self {
        let dir = crate::tempdir();
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let quoted = words.map(|word| format!("'{}'", word.to_str().expect("plain words")));
        let quoted = quoted.collect::<Vec<_>>().join(" ");
        let line = format!("stty rows 24 cols 80; {quoted}; status=$?; stty -a; exit $status");
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
        // `script` runs the command by a shell, and programs look at TERM; both are fixed here.
        script.env("SHELL", "/bin/sh").env("TERM", "xterm-256color");
        if let Some(folder) = command.get_current_dir() {
            script.current_dir(folder);
        }
        script.stdin(Stdio::piped()).stdout(create(&dir.path().join("screen")));
        let child = script.stderr(Stdio::null()).spawn().expect("util-linux has script");
        Terminal { child, dir }
    }

    /// All bytes written to the terminal so far.
    #[must_use]
    pub fn written(&self) -> String {
        let bytes = fs::read(self.dir.path().join("screen")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until `text` is there after the first `from` bytes, and returns where it ends.
    ///
    /// # Panics
    ///
    /// When it does not come within 30 s.
    pub fn wait_for(&self, text: &str, from: usize) -> usize {
        let end = poll_within(TIMEOUT, || {
            let written = self.written();
            Some(from + written.get(from..)?.find(text)? + text.len())
        });
        end.unwrap_or_else(|| panic!("no {text:?} in {:?}", self.written()))
    }

    /// Presses keys.
    ///
    /// # Panics
    ///
    /// When the program has ended.
    pub fn press(&mut self, keys: &str) {
        let stdin = self.child.stdin.as_mut().expect("it is piped");
        stdin.write_all(keys.as_bytes()).expect("the program reads its terminal");
    }

    /// The program's exit status.
    ///
    /// # Panics
    ///
    /// If the program still runs after 30 s.
    pub fn wait(&mut self) -> ExitStatus {
        let ended = || self.child.try_wait().expect("the child is ours to wait for");
        poll_within(TIMEOUT, ended).unwrap_or_else(|| panic!("still running: {}", self.written()))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A panic here would hide the test's own failure. The kill fails if the program has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_in_a_terminal_reads_keys_and_returns_its_status() {
        crate::require_clients!("script", "stty");
        let mut command = Command::new("sh");
        command.args(["-c", "test -t 0 && stty size; read line; echo \"got $line\"; exit 3"]);
        let mut terminal = Terminal::run(&command);
        let at = terminal.wait_for("24 80", 0);
        terminal.press("key\n");
        terminal.wait_for("got key", at);
        assert_eq!(terminal.wait().code(), Some(3));
        assert!(terminal.written().contains(" echo "), "{}", terminal.written());
    }
}
