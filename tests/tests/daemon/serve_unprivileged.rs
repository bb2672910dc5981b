//! The daemon runs without privileges: as another user, without capabilities, with two writable
//! places, and with no more threads than it announces.
//!
//! The unit docs/millrace.service relies on this. If root runs the tests, setpriv makes the daemon
//! `nobody`; otherwise the daemon runs as the user, who has no privileges. Only the socket's
//! directory and the drive's file are writable, and huge pages are not used. Limits on threads are
//! tested only as root, since they need a user with no other processes.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use millrace_tests::raw_nbd::{RawNbd, request};
use millrace_tests::serving::{backends, pattern, stripe, succeed};
use millrace_tests::{Daemon, client, copy_millrace, poll_within, tempdir};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
/// `nobody` and `nogroup`.
const NOBODY: u32 = 65534;

/// A configuration that ends within its `[[export]]` section, with a key a line.
fn config(dir: &Path, backend: &str) -> String {
    let dir = dir.display();
    format!(
        "[[drive]]\nname = \"d0\"\nspec = \"file:path={dir}/drives/disk\"\n\
         [[volume]]\nname = \"v\"\ndrives = [\"d0\"]\n\
         [server]\nbackend = \"{backend}\"\n\
         [[export]]\nvolume = \"v\"\n\
         nbd = \"unix:{dir}/run/nbd\"\n\
         vhost-user-blk = \"unix:{dir}/run/vm\"\n"
    )
}

fn is_root() -> bool {
    succeed(Command::new("id").arg("-u")).trim() == "0"
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// A directory in which `run` and `drives/disk` are the daemon's, and nothing else.
fn prepared() -> TempDir {
    let dir = tempdir();
    let (run, drives) = (dir.path().join("run"), dir.path().join("drives"));
    let disk = drives.join("disk");
    fs::create_dir(&run).unwrap();
    fs::create_dir(&drives).unwrap();
    File::create(&disk).unwrap().set_len(64 * MIB).unwrap();
    // The user `nobody` may not reach the binary in cargo's directory, so copy it.
    copy_millrace(&dir.path().join("millrace"));
    set_mode(&run, 0o700);
    set_mode(&disk, 0o600);
    set_mode(&drives, 0o555);
    set_mode(dir.path(), 0o755);
    if is_root() {
        chown(&run, Some(NOBODY), Some(NOBODY)).unwrap();
        chown(&disk, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    dir
}

/// The daemon's command line, by way of setpriv if this is root.
fn command(dir: &Path) -> Option<Command> {
    let mut command = match is_root() {
        true => {
            let mut command = Command::new(client("setpriv")?);
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
            command.args(["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]);
            command.arg(dir.join("millrace"));
            command
        }
        false => Command::new(dir.join("millrace")),
    };
    command.arg("serve").arg(dir.join("millrace.toml"));
    Some(command)
}

/// The hexadecimal number of a line of /proc/PID/status.
fn capabilities(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    u64::from_str_radix(line.trim_start_matches(':').trim(), 16).unwrap()
}

/// KiB in lines of /proc/PID/smaps_rollup and the like whose name begins with `name`.
fn kib(text: &str, name: &str) -> u64 {
    let lines = text.lines().filter_map(|line| line.strip_prefix(name));
    lines.map(|rest| rest.split_whitespace().rev().nth(1).unwrap().parse::<u64>().unwrap()).sum()
}

fn has_no_privileges(daemon: &Daemon) {
    let proc = PathBuf::from(format!("/proc/{}", daemon.pid()));
    let status = fs::read_to_string(proc.join("status")).unwrap();
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(capabilities(&status, set), 0, "{status}");
    }
    let name = fs::read_link(proc.join("exe")).unwrap();
    assert!(name.ends_with("millrace"), "{}", name.display());
    if is_root() {
        assert!(status.contains(&format!("\nUid:\t{NOBODY}\t{NOBODY}\t{NOBODY}\t{NOBODY}\n")));
        assert_eq!(capabilities(&status, "CapBnd"), 0, "{status}");
    }
}

/// Of hugetlbfs, which an administrator must reserve; transparent ones are the kernel's affair.
fn has_no_huge_pages(daemon: &Daemon) {
    let smaps = fs::read_to_string(format!("/proc/{}/smaps", daemon.pid())).unwrap();
    assert!(kib(&smaps, "Rss:") > 0, "{smaps}");
    assert_eq!(kib(&smaps, "Shared_Hugetlb:") + kib(&smaps, "Private_Hugetlb:"), 0);
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    assert_eq!(kib(&status, "HugetlbPages:"), 0, "{status}");
}

#[test]
fn the_daemon_serves_without_privileges_or_huge_pages() {
    for backend in backends() {
        let dir = prepared();
        let path = dir.path().to_owned();
        let Some(mut command) = command(&path) else { return };
        fs::write(path.join("millrace.toml"), config(&path, backend)).unwrap();
        let mut daemon = Daemon::start_command(dir, &mut command, &["run/nbd", "run/vm"]);
        let mut nbd = RawNbd::connect(&path.join("run/nbd"), "v").unwrap();
        let data = pattern(8 << 20, 4);
        for mib in 0..8 {
            nbd.write(mib * MIB, &data[(mib * MIB) as usize..][..1 << 20]).unwrap();
        }
        nbd.flush().unwrap();
        for mib in 0..8 {
            let read = nbd.read(mib * MIB, 1 << 20).unwrap();
            assert!(read == data[(mib * MIB) as usize..][..1 << 20], "{backend}: at {mib} MiB");
        }
        has_no_privileges(&daemon);
        has_no_huge_pages(&daemon);
        drop(nbd);
        assert_eq!(daemon.terminate().code(), Some(0), "{backend}: {}", daemon.stderr());
        for socket in ["run/nbd", "run/vm"] {
            assert!(!path.join(socket).exists(), "{backend}: {socket} is gone");
        }
        // A user other than root must be able to remove the directory.
        set_mode(&path.join("drives"), 0o755);
    }
}

/// Starts a daemon as `user`, whom no other test uses and who may have `limit` processes and
/// threads. `None` without the programs for that; the error is a refusal to start.
fn start_limited(
    user: u32,
    limit: usize,
    config: impl Fn(&Path) -> String,
) -> Option<Result<Daemon, (ExitStatus, String)>> {
    let dir = prepared();
    let path = dir.path().to_owned();
    for place in ["run", "drives/disk"] {
        chown(path.join(place), Some(user), Some(user)).unwrap();
    }
    fs::write(path.join("millrace.toml"), config(&path)).unwrap();
    let mut command = Command::new(client("prlimit")?);
    command.arg(format!("--nproc={limit}:{limit}")).arg(client("setpriv")?);
    command.args([format!("--reuid={user}"), format!("--regid={user}")]);
    command.args(["--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]);
    command.arg(path.join("millrace")).arg("serve").arg(path.join("millrace.toml"));
    Some(Daemon::try_start(dir, &mut command, &["run/nbd"]))
}

/// A configuration of a file drive over NBD with two threads.
fn small_config(dir: &Path, backend: &str, keys: &str) -> String {
    let dir = dir.display();
    format!(
        "[[drive]]\nname = \"d0\"\nspec = \"file:path={dir}/drives/disk,lock=off{keys}\"\n\
         [[volume]]\nname = \"v\"\ndrives = [\"d0\"]\n\
         [server]\nbackend = \"{backend}\"\nthreads = 2\n\
         [[export]]\nvolume = \"v\"\nnbd = \"unix:{dir}/run/nbd\"\n"
    )
}

/// 32 writes, reads, trims and zeroes at a time from two clients, and flushes, without an error.
fn serves_all(daemon: &Daemon, context: &str) {
    let socket = daemon.dir().join("run/nbd");
    let mut clients = [(); 2].map(|()| RawNbd::connect(&socket, "v").unwrap());
    let data = pattern(4096, 7);
    for command in [1, 0, 4, 6, 1, 3] {
        for client in &mut clients {
            for cookie in 0..32 {
                let (offset, length) = if command == 3 { (0, 0) } else { (cookie << 16, 4096) };
                client.send(&request(command, cookie, offset, length)).unwrap();
                if command == 1 {
                    client.send(&data).unwrap();
                }
            }
        }
        for client in &mut clients {
            for _ in 0..32 {
                let (error, _) = client.reply().unwrap();
                assert_eq!(error, 0, "{context}: command {command}: {}", daemon.stderr());
                if command == 0 {
                    client.receive(&mut vec![0; 4096]).unwrap();
                }
            }
        }
    }
}

fn threads_of(daemon: &Daemon) -> usize {
    fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().count()
}

#[test]
fn thread_limit_refuses_the_start_in_words_or_still_serves() {
    if !is_root() {
        return millrace_require::skip("a user of its own takes root");
    }
    let variants = backends().iter().flat_map(|backend| ["", ",aio=threads"].map(|k| (backend, k)));
    for (at, (backend, keys)) in variants.enumerate() {
        let user = 200_000 + (std::process::id() % 100_000) * 8 + at as u32;
        let mut served = 0;
        for limit in 1..30 {
            let context = format!("{backend}{keys}, at most {limit} threads");
            let Some(start) = start_limited(user, limit, |dir| small_config(dir, backend, keys))
            else {
                return;
            };
            match start {
                Err((status, said)) => {
                    assert_eq!((served, status.code()), (0, Some(2)), "{context}: {said}");
                    let reason = format!("RLIMIT_NPROC allows user {user} {limit} processes");
                    assert!(said.contains("this configuration needs "), "{context}: {said}");
                    assert!(said.contains(&reason), "{context}: {said}");
                }
                Ok(mut daemon) => {
                    let ready = || (threads_of(&daemon) == limit).then_some(());
                    let exact = served > 0 || poll_within(Duration::from_secs(9), ready).is_some();
                    assert!(exact, "{context}: {} threads", threads_of(&daemon));
                    serves_all(&daemon, &context);
                    served += 1;
                    assert_eq!(daemon.terminate().code(), Some(0), "{context}");
                    if served == 4 {
                        break;
                    }
                }
            }
        }
        assert_eq!(served, 4, "{backend}{keys}");
    }
}

#[test]
fn burst_on_many_drives_stays_within_threads_that_daemon_says() {
    const DRIVES: usize = 400;
    let dir = tempdir();
    let specs: Vec<String> = (0..DRIVES)
        .map(|n| format!("file:path={}/d{n},size=4m,lock=off", dir.path().display()))
        .collect();
    let config = stripe("epoll", &specs);
    let mut daemon = Daemon::start(&config, &["s"]);
    let before = threads_of(&daemon);
    let socket = daemon.dir().join("s");
    let mut clients = [(); 4].map(|()| RawNbd::connect(&socket, "v").unwrap());
    let mut most = 0;
    for round in 0..32 * DRIVES as u64 / (4 * 64) {
        for (place, client) in (0..).zip(&mut clients) {
            for cookie in 0..64 {
                let chunk = (round * 4 + place) * 64 + cookie;
                client.send(&request(1, cookie, chunk << 16, 4096)).unwrap();
                client.send(&[chunk as u8; 4096]).unwrap();
            }
        }
        most = most.max(threads_of(&daemon));
        for client in &mut clients {
            for _ in 0..64 {
                assert_eq!(client.reply().unwrap().0, 0, "{}", daemon.stderr());
            }
        }
    }
    most = most.max(threads_of(&daemon));
    assert!(most <= before + 128 + DRIVES, "{most} threads, {before} before");
    assert_eq!(daemon.terminate().code(), Some(0), "{}", daemon.stderr());
}
