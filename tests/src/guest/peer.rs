//! The server of a guest's disk: millrace, or QEMU's own server, which tells a mistake of the
//! harness from a mistake of millrace.
//!
//! Both export the file `disk` of a folder: at the socket `vm` there to a guest, with two queues,
//! and at `nbd` to NBD clients, under the name `v`. Owns the process of QEMU's server, which is
//! killed and reaped on drop. Called by the tests with guests; calls `qemu-storage-daemon`.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::process::{create, listens, poll_within};

const READY_LIMIT: Duration = Duration::from_secs(30);
const DISK: &str = "driver=file,node-name=disk,filename=disk,discard=unmap";
const NBD: &str = "type=nbd,id=nbd,node-name=disk,name=v,writable=on";
const VM: &str = "type=vhost-user-blk,id=vm,node-name=disk,writable=on,num-queues=2,\
                  addr.type=unix";

/// A configuration of millrace that serves the file `disk` of `dir` as the module describes, on
/// `backend`. The text ends within the `[[export]]` section, so that more of its keys may be
/// appended.
#[must_use]
pub fn config(dir: &Path, backend: &str) -> String {
    let dir = dir.display();
    format!(
        "[[drive]]\nname = \"d0\"\nspec = \"file:path={dir}/disk\"\n\
         [[volume]]\nname = \"v\"\ndrives = [\"d0\"]\n\
         [server]\ncontrol = \"unix:{dir}/control\"\nbackend = \"{backend}\"\n\
         [[export]]\nvolume = \"v\"\nnbd = \"unix:{dir}/nbd\"\n\
         vhost-user-blk = \"unix:{dir}/vm\"\nqueues = 2\n"
    )
}

/// A `qemu-storage-daemon` that exports a file.
pub struct StorageDaemon(Child);

impl StorageDaemon {
    /// Exports the file `disk` of `dir`.
    ///
    /// # Panics
    ///
    /// When it does not listen within 30 s.
    #[must_use]
    pub fn start(dir: &Path) -> Self {
        let mut command = Command::new("qemu-storage-daemon");
        let [vm, nbd] = ["vm", "nbd"].map(|name| dir.join(name));
        let nbd_server = format!("addr.type=unix,addr.path={}", nbd.display());
        command.args(["--blockdev", DISK, "--nbd-server", &nbd_server, "--export", NBD]);
        command.args(["--export", &format!("{VM},addr.path={}", vm.display())]).current_dir(dir);
        command.stdin(Stdio::null()).stdout(create(&dir.join("storage-daemon.log")));
        let child =
            command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let mut daemon = Self(child);
        let there = poll_within(READY_LIMIT, || {
            let ended = daemon.0.try_wait().expect("it is our child");
            assert_eq!(ended, None, "qemu-storage-daemon has ended");
            [&vm, &nbd].iter().all(|socket| listens(socket)).then_some(())
        });
        assert!(there.is_some(), "qemu-storage-daemon does not listen after {READY_LIMIT:?}");
        daemon
    }
}

impl Drop for StorageDaemon {
    fn drop(&mut self) {
        // Failing here would hide the test's own failure, and there is nothing more to do.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
