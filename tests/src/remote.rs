//! A foreign NBD server on a Unix socket that can be killed and started again.
//!
//! Owns the child, which is killed by its pid and reaped on drop. Called by the tests of drives on
//! NBD servers.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::process::{create, listens, poll_within};

/// A server.
pub struct Remote {
    child: Child,
    program: &'static str,
    args: Vec<String>,
    socket: PathBuf,
}

impl Remote {
    /// Number of nbdkit's arguments before those of a test.
    pub const NBDKIT_ARGS: usize = 4;

    /// Starts nbdkit in the foreground with these arguments: filters, a plug-in, its parameters.
    ///
    /// # Panics
    /// If it does not listen within 30 s; the message has what it said.
    #[must_use]
    pub fn nbdkit(socket: &Path, args: &[&str]) -> Remote {
        let own = ["-f", "--exit-with-parent", "-U", &socket.display().to_string()];
        Remote::start("nbdkit", &[&own, args].concat(), socket)
    }

    /// nbdkit over a file of `mib` MiB, made if it is not there, that takes whole blocks of 64 KiB
    /// and fails everything else.
    ///
    /// # Panics
    /// As `nbdkit`, and if the file cannot be made.
    #[must_use]
    pub fn large_blocks(socket: &Path, file: &Path, mib: u64) -> Remote {
        let sized = std::fs::OpenOptions::new().create(true).append(true).open(file);
        sized.and_then(|file| file.set_len(mib << 20)).expect("a file for nbdkit");
        let (file, block) = (file.display().to_string(), "blocksize-minimum=64K");
        let sizes = [block, "blocksize-preferred=64K", "blocksize-maximum=32M"];
        let policy = ["--filter=blocksize-policy", "file", &file, "blocksize-error-policy=error"];
        Remote::nbdkit(socket, &[&policy[..], &sizes].concat())
    }

    /// qemu-nbd with an image in a format of its own, for several clients.
    ///
    /// # Panics
    /// As `nbdkit`.
    #[must_use]
    pub fn qemu(socket: &Path, format: &str, image: &Path) -> Remote {
        let (socket_text, image) = (socket.display().to_string(), image.display().to_string());
        let args = ["-t", "-e", "8", "-f", format, "-k", &socket_text, &image];
        Remote::start("qemu-nbd", &args, socket)
    }

    fn start(program: &'static str, args: &[&str], socket: &Path) -> Remote {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let child = spawn(program, &args, socket);
        Remote { child, program, args, socket: socket.to_owned() }
    }

    /// Kills it (SIGKILL), as a crash would.
    ///
    /// # Panics
    /// If the system refuses that.
    pub fn kill(&mut self) {
        // The kill fails if the server has ended by itself.
        let _ = self.child.kill();
        self.child.wait().expect("the child is ours to wait for");
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// If the system refuses that.
    pub fn signal(&self, signal: i32) {
        crate::daemon::send_signal(&self.child, signal);
    }

    /// Starts it again with the same arguments.
    ///
    /// # Panics
    /// As `nbdkit`.
    pub fn start_again(&mut self) {
        self.child = spawn(self.program, &self.args, &self.socket);
    }

    /// Starts it again with these arguments behind the first `kept` of the ones that it had.
    ///
    /// # Panics
    /// As `nbdkit`.
    pub fn start_again_with(&mut self, kept: usize, args: &[&str]) {
        self.args.truncate(kept);
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        self.start_again();
    }

    /// The spec of a drive on its export, with more keys such as `,reconnect=5s`.
    #[must_use]
    pub fn spec(&self, keys: &str) -> String {
        format!("nbd:uri=nbd+unix:///?socket={}{keys}", self.socket.display())
    }
}

fn spawn(program: &str, args: &[String], socket: &Path) -> Child {
    // A server that was killed leaves its socket behind.
    let _ = std::fs::remove_file(socket);
    let said = socket.with_extension("said");
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(create(&said));
    let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {program}: {error}"));
    let ready = poll_within(Duration::from_secs(30), || listens(socket).then_some(()));
    let text = std::fs::read_to_string(&said).unwrap_or_default();
    assert!(ready.is_some(), "{command:?} does not listen: {text}");
    child
}

impl Drop for Remote {
    fn drop(&mut self) {
        if let Ok(Some(status)) = self.child.try_wait() {
            let said = std::fs::read_to_string(self.socket.with_extension("said"));
            println!("{} had ended: {status}: {}", self.program, said.unwrap_or_default());
        }
        self.kill();
    }
}
