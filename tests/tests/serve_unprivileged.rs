//! The daemon needs no privileges: another user, no capabilities, two places that it may write to.
//!
//! What the unit docs/millrace.service asks for. Run by root, the daemon becomes `nobody` by
//! setpriv; run by a user, it is that user, without privileges by itself. Files are laid out so
//! that only the socket's folder and the drive's file are writable; huge pages are not in use.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use millrace_tests::raw_nbd::RawNbd;
use millrace_tests::serving::{backends, pattern, succeed};
use millrace_tests::{Daemon, client, millrace, tempdir};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
/// `nobody` and `nogroup`.
const NOBODY: u32 = 65534;

/// What is served; a key of the `[[export]]` a line.
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

/// A folder in which `run` and `drives/disk` are the daemon's, and nothing else.
fn prepared() -> TempDir {
    let dir = tempdir();
    let (run, drives) = (dir.path().join("run"), dir.path().join("drives"));
    let disk = drives.join("disk");
    fs::create_dir(&run).unwrap();
    fs::create_dir(&drives).unwrap();
    File::create(&disk).unwrap().set_len(64 * MIB).unwrap();
    // The one that cargo built may lie where `nobody` cannot go.
    fs::copy(millrace().get_program(), dir.path().join("millrace")).unwrap();
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
        // So that a user who is not root may remove it.
        set_mode(&path.join("drives"), 0o755);
    }
}
