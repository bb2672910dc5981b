//! The file system below sparse drive files is full: ENOSPC to the client, until a TRIM makes room.
//! A file may not be as long as it is: ENOSPC, too, where the kernel's signal would end the daemon.
//!
//! The drives lie on a tiny tmpfs, which takes root to mount; elsewhere the tests say so and skip.

use std::path::{Path, PathBuf};
use std::process::Command as Program;

use millrace_clients::nbd::Client;
use millrace_nbd::{Command, Errno};
use millrace_tests::load::{call, connect, request};
use millrace_tests::{Daemon, run, tempdir};
use tempfile::TempDir;

/// The file system has 4 MiB, the volume 64.
const FULL: &str = "size=4m";
/// Sectors of a request: 256 KiB.
const STEP: u64 = 512;

/// A mounted file system, unmounted when it drops.
struct Mount(TempDir);

impl Mount {
    /// Mounts the file system; `None`, with a printed reason, where mounting is not allowed.
    fn new() -> Option<Mount> {
        let dir = tempdir();
        let mount = Program::new("mount")
            .args(["-t", "tmpfs", "-o", FULL, "millrace-test"])
            .arg(dir.path())
            .output();
        match mount {
            Ok(output) if output.status.success() => Some(Mount(dir)),
            Ok(output) => {
                let why = String::from_utf8_lossy(&output.stderr);
                millrace_require::skip(format_args!("no tmpfs can be mounted: {}", why.trim()));
                None
            }
            Err(error) => {
                millrace_require::skip(format_args!("no mount: {error}"));
                None
            }
        }
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily, should the daemon still be on its way out.
        run(Program::new("umount").arg("-l").arg(self.0.path()));
    }
}

fn config(dir: &Path, backend: &str) -> String {
    let dir = dir.display();
    let drive =
        |n| format!("[[drive]]\nname = \"d{n}\"\nspec = \"file:path={dir}/d{n},size=16m\"\n");
    let drives: String = (0..4).map(drive).collect();
    format!(
        "{drives}[[volume]]\nname = \"v\"\n\
         drives = [\"d0\", \"d1\", \"d2\", \"d3\"]\n\
         [[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n[server]\nbackend = \"{backend}\"\n"
    )
}

fn contents(step: u64) -> Vec<u8> {
    (0..STEP * 512).map(|at| (step * 37 + at / 11) as u8 | 1).collect()
}

fn write(client: &mut Client, step: u64) -> Option<Errno> {
    call(client, &request(Command::Write, step * STEP, STEP), contents(step)).unwrap().errno
}

fn reads_right(client: &mut Client, step: u64) -> bool {
    let buffer = vec![0; (STEP * 512) as usize];
    let done = call(client, &request(Command::Read, step * STEP, STEP), buffer).unwrap();
    done.errno.is_none() && done.buffer == contents(step)
}

fn fills_up_and_recovers(backend: &str) {
    let Some(mount) = Mount::new() else { return };
    let mut daemon = Daemon::start(&config(mount.path(), backend), &["s"]);
    let socket: PathBuf = daemon.dir().join("s");
    let mut client = connect(&socket, "v").unwrap();
    let mut written = 0;
    let error = loop {
        match write(&mut client, written) {
            None => written += 1,
            Some(errno) => break errno,
        }
        assert!(written <= 16, "4 MiB took more than there is");
    };
    assert_eq!(error, Errno::Enospc, "after {written} writes");
    assert!(written >= 8, "4 MiB took only {written} writes of 256 KiB");
    assert_eq!(write(&mut client, written + 1), Some(Errno::Enospc), "full is full");
    assert!((0..written).all(|step| reads_right(&mut client, step)), "what was taken is there");
    let again = call(&mut client, &request(Command::Write, 0, STEP), contents(0)).unwrap();
    assert_eq!(again.errno, None, "what has its space may be written again");
    let flushed = call(&mut client, &request(Command::Flush, 0, 0), Vec::new()).unwrap();
    assert_eq!(flushed.errno, None);
    let trimmed = call(&mut client, &request(Command::Trim, 0, 4 * STEP), Vec::new()).unwrap();
    assert_eq!(trimmed.errno, None);
    assert_eq!(write(&mut client, written + 2), None, "a TRIM has made room");
    assert!(reads_right(&mut client, written + 2));
    assert!((4..written).all(|step| reads_right(&mut client, step)), "the rest is as it was");
    assert_eq!(daemon.try_wait(), None);
    drop(client);
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn a_full_file_system_is_enospc_until_a_trim_makes_room() {
    fills_up_and_recovers("auto");
}

#[test]
fn full_file_system_is_enospc_until_trim_makes_room_on_epoll() {
    fills_up_and_recovers("epoll");
}

/// The daemon's limit on file size is 1 MiB, and its drive's file has 4 MiB.
#[test]
fn write_behind_limit_on_files_fails_and_daemon_goes_on() {
    let dir = tempdir();
    for aio in ["auto", "threads", "inline"] {
        let path = dir.path().join(aio);
        std::fs::File::create(&path).unwrap().set_len(4 << 20).unwrap();
        for direct in ["auto", "off"] {
            let config = format!(
                "[[drive]]\nname = \"d\"\nspec = \"file:path={},aio={aio},direct={direct}\"\n\
                 [[volume]]\nname = \"v\"\ndrives = [\"d\"]\n\
                 [[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n",
                path.display()
            );
            let limited = ["prlimit", "--fsize=1048576"];
            let mut daemon = Daemon::start_under(&limited, &config, &["s"]);
            let mut client = connect(&daemon.dir().join("s"), "v").unwrap();
            assert_eq!(write(&mut client, 8), Some(Errno::Enospc), "{aio} direct={direct}");
            assert_eq!(write(&mut client, 1), None, "{aio} direct={direct}");
            assert!(reads_right(&mut client, 1));
            assert_eq!(daemon.try_wait(), None);
            drop(client);
            assert_eq!(daemon.terminate().code(), Some(0));
        }
    }
}
