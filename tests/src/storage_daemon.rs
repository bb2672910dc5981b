//! A qemu-storage-daemon that exports one disk over vhost-user-blk: a server that is not ours.
//!
//! Owns the child, which is killed by its pid and reaped when this drops, and the directory with
//! its socket and image. Called by the tests of the vhost-user client.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::process::{create, listens, poll_within};

/// A server and its image.
pub struct StorageDaemon {
    child: Child,
    dir: TempDir,
}

impl StorageDaemon {
    /// Exports a new sparse image of `bytes` bytes with two queues, and returns when the daemon
    /// listens.
    ///
    /// # Panics
    /// If the daemon cannot be started or does not listen within 30 s; the message has what it
    /// said.
    #[must_use]
    pub fn start(bytes: u64) -> StorageDaemon {
        let dir = crate::tempdir();
        let image = dir.path().join("image");
        File::create(&image)
            .and_then(|file| file.set_len(bytes))
            .expect("the directory of the test is writable");
        let (socket, said) = (dir.path().join("s"), dir.path().join("stderr"));
        let file = format!("driver=file,filename={},node-name=d,discard=unmap", image.display());
        let export = format!(
            "type=vhost-user-blk,id=e,addr.type=unix,addr.path={},node-name=d,num-queues=2,\
             writable=on",
            socket.display()
        );
        let mut command = Command::new("qemu-storage-daemon");
        command.arg("--blockdev").arg(file).arg("--export").arg(export);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(create(&said));
        let child = command.spawn().expect("the caller has looked for it");
        let server = StorageDaemon { child, dir };
        let ready = poll_within(Duration::from_secs(30), || listens(&socket).then_some(()));
        let text = std::fs::read_to_string(&said).unwrap_or_default();
        assert!(ready.is_some(), "{command:?} does not listen: {text}");
        server
    }

    /// Where it listens.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    /// The image's file.
    #[must_use]
    pub fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    /// A directory that goes with the daemon.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Kills it, as a crash would.
    ///
    /// # Panics
    /// If it cannot be reaped.
    pub fn kill(&mut self) {
        // A child that is not reaped keeps its pid, so this cannot meet another process.
        let _ = self.child.kill();
        self.child.wait().expect("the child is ours");
    }
}

impl Drop for StorageDaemon {
    fn drop(&mut self) {
        self.kill();
    }
}
