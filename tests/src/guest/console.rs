//! The line protocol between a test and the shell in its guest, over any pair of streams.
//!
//! Owns the stream to the guest and a thread that reads the other one. A command is a line; the
//! answer is its output and `<<<status N>>>`. Called by `Guest`; calls nothing. Every wait has a
//! limit, because a guest whose disk has stopped prints nothing at all. The whole transcript is
//! kept to explain failures.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

const READY: &str = "<<<ready>>>";
const STATUS: &str = "<<<status ";

/// The reason for which no answer came.
#[derive(Debug, PartialEq, Eq)]
pub enum Silence {
    /// The time limit passed.
    TimedOut,
    /// The guest has ended.
    Ended,
}

/// A shell in a guest.
pub struct Console {
    to_guest: Box<dyn Write + Send>,
    lines: Receiver<String>,
    transcript: String,
}

impl Console {
    /// A console of a guest that is just starting.
    pub fn new(to_guest: impl Write + Send + 'static, from: impl Read + Send + 'static) -> Self {
        let (sender, lines) = channel();
        // Ends with the stream, which ends with the guest.
        thread::spawn(move || {
            let mut from = BufReader::new(from);
            let mut line = Vec::new();
            while from.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
                let text = String::from_utf8_lossy(&line).replace('\r', "");
                if sender.send(text).is_err() {
                    return;
                }
                line.clear();
            }
        });
        Self { to_guest: Box::new(to_guest), lines, transcript: String::new() }
    }

    /// Waits until the shell takes commands.
    pub fn ready_within(&mut self, limit: Duration) -> Result<(), Silence> {
        self.until(READY, limit).map(drop)
    }

    /// Runs a line of shell, and returns its status and its output on both streams.
    pub fn run(&mut self, command: &str, limit: Duration) -> Result<(i32, String), Silence> {
        assert!(!command.contains('\n'), "a command is one line: {command}");
        assert!(command.len() < 4000, "a terminal takes lines of 4 KiB");
        self.transcript.push_str(&format!("# {command}\n"));
        self.send(command).map_err(|_| Silence::Ended)?;
        let (mut output, last) = self.until(STATUS, limit)?;
        // Output need not end in a newline.
        let (rest, status) = last.split_once(STATUS).expect("that was waited for");
        output.push_str(rest);
        let status = status.split('>').next().and_then(|digits| digits.parse().ok());
        Ok((status.expect("the shell prints its status"), output))
    }

    /// All text sent and received.
    pub fn transcript(&self) -> &str {
        &self.transcript
    }

    fn send(&mut self, command: &str) -> io::Result<()> {
        self.to_guest.write_all(format!("{command}\n").as_bytes())?;
        self.to_guest.flush()
    }

    /// Reads up to the line with `mark`; returns the lines before it, and the line.
    fn until(&mut self, mark: &str, limit: Duration) -> Result<(String, String), Silence> {
        let end = Instant::now() + limit;
        let mut before = String::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).map_err(|error| match error {
                RecvTimeoutError::Timeout => Silence::TimedOut,
                RecvTimeoutError::Disconnected => Silence::Ended,
            })?;
            self.transcript.push_str(&line);
            if line.contains(mark) {
                return Ok((before, line));
            }
            before.push_str(&line);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    /// A shell of this machine that speaks the guest's protocol.
    fn stand_in() -> (Console, Child) {
        let script = "echo '<<<ready>>>'; while read -r line; do (eval \"$line\") </dev/null 2>&1; \
                      echo \"<<<status $?>>>\"; done";
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let console = Console::new(child.stdin.take().unwrap(), child.stdout.take().unwrap());
        (console, child)
    }

    #[test]
    fn command_gives_its_output_and_status_with_and_without_newline() {
        let (mut console, mut child) = stand_in();
        console.ready_within(LIMIT).unwrap();
        let answer = console.run("echo a; echo b >&2; exit 3", LIMIT);
        assert_eq!(answer, Ok((3, "a\nb\n".to_owned())));
        assert_eq!(console.run("printf '%s' half", LIMIT), Ok((0, "half".to_owned())));
        assert_eq!(console.run("cat", LIMIT), Ok((0, String::new())));
        assert!(console.transcript().contains("# cat\n"));
        drop(console);
        child.wait().unwrap();
    }

    #[test]
    fn a_guest_that_says_nothing_or_is_gone_is_told_apart() {
        let (mut console, mut child) = stand_in();
        console.ready_within(LIMIT).unwrap();
        let hundredth = Duration::from_millis(10);
        assert_eq!(console.run("sleep 0.3", hundredth), Err(Silence::TimedOut));
        child.kill().unwrap();
        child.wait().unwrap();
        // The guest's shell may still have printed something.
        while console.until("never", LIMIT) != Err(Silence::Ended) {}
    }
}
