//! Hundreds of disks in one daemon: the cost of idle ones, and that each serves when it is used.
//!
//! Bounds are generous, and cover descriptors and memory only; the time of a start is measured
//! elsewhere.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use millrace_tests::raw_nbd::RawNbd;
use millrace_tests::serving::{pattern, succeed};
use millrace_tests::{Daemon, metrics, millrace, poll_within, tempdir};
use serde_json::Value;
use std::time::Duration;

const DISKS: usize = 500;
/// Most memory of an idle disk.
const DISK_KIB: u64 = 48;
/// Memory and descriptors of the program, its threads and its rings.
const PROGRAM_KIB: u64 = 64 << 10;
const PROGRAM_FDS: usize = 100;

/// A daemon with a file, a volume, an export and a socket for each disk.
fn serve() -> Daemon {
    let dir = tempdir();
    let mut config =
        "[server]\nthreads = 2\ncontrol = \"unix:c\"\nmetrics = \"127.0.0.1:0\"\n".to_owned();
    for disk in 0..DISKS {
        let file = fs::File::create(dir.path().join(format!("f{disk}"))).unwrap();
        file.set_len(1 << 20).unwrap();
        let _ = write!(
            config,
            "[[drive]]\nname = \"d{disk}\"\nspec = \"file:path=f{disk}\"\n\
             [[volume]]\nname = \"v{disk}\"\ndrives = [\"d{disk}\"]\n\
             [[export]]\nvolume = \"v{disk}\"\nnbd = \"unix:s{disk}\"\n"
        );
    }
    let last = format!("s{}", DISKS - 1);
    Daemon::start_in(dir, &config, &["s0", &last, "c"], &[])
}

fn descriptors(daemon: &Daemon) -> usize {
    fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count()
}

fn stat(daemon: &Daemon, args: &[&str]) -> String {
    let mut command: Command = millrace();
    command.current_dir(daemon.dir()).args(["stat", "--connect", "unix:c"]).args(args);
    succeed(&mut command)
}

/// Names of the volumes in a report of `stat`.
fn volumes(report: &Value) -> Vec<&str> {
    let rows = report["rows"].as_array().unwrap().iter();
    let volumes = rows.filter(|row| row["kind"] == "volume");
    volumes.map(|row| row["name"].as_str().unwrap()).collect()
}

#[test]
fn idle_disk_is_two_descriptors_and_serves_on_demand() {
    let mut daemon = serve();
    let fds = descriptors(&daemon);
    assert!(fds <= 2 * DISKS + PROGRAM_FDS, "{fds} descriptors for {DISKS} disks");
    let kib = daemon.resident_kib();
    assert!(kib <= DISKS as u64 * DISK_KIB + PROGRAM_KIB, "{kib} KiB for {DISKS} disks");
    let text = stat(&daemon, &[]);
    assert!(text.contains(&format!("\n{DISKS} volumes idle and not shown; --all")), "{text}");
    let page = metrics::get(&metrics::address(&daemon), "/metrics");
    assert!(page.contains(&format!("\nmillrace_idle_volumes {DISKS}\n")), "{page}");
    assert!(!page.contains("drive=\"d7\""), "{page}");

    // Two clients of each of some disks: one for each thread.
    let used = [0, 3, 7, 250, DISKS - 1];
    for disk in used {
        let socket = daemon.dir().join(format!("s{disk}"));
        let clients = [(); 2].map(|()| RawNbd::connect(&socket, &format!("v{disk}")).unwrap());
        let [mut first, mut second] = clients;
        let data = pattern(8192, disk as u64);
        first.write(4096, &data).unwrap();
        first.flush().unwrap();
        assert_eq!(second.read(4096, 8192).unwrap(), data, "disk {disk}");
    }
    let shown = || {
        let report: Value = serde_json::from_str(&stat(&daemon, &["--json"])).unwrap();
        let expected: Vec<String> = used.iter().map(|disk| format!("v{disk}")).collect();
        let is_all = volumes(&report) == expected;
        is_all.then(|| assert_eq!(report["idle_volumes"], DISKS - used.len()))
    };
    poll_within(Duration::from_secs(10), shown).expect("stat shows the disks that were used");
    let all: Value = serde_json::from_str(&stat(&daemon, &["--json", "--all"])).unwrap();
    assert_eq!((volumes(&all).len(), &all["idle_volumes"]), (DISKS, &Value::from(0)));
    let page = metrics::get(&metrics::address(&daemon), "/metrics?all");
    assert!(page.contains("drive=\"d7\"") && page.contains("drive=\"d8\""));
    let has_series = || {
        let past = metrics::get(&metrics::address(&daemon), "/history.json?seconds=1");
        let has = |name: &str| past.contains(&format!("\"name\":\"{name}\""));
        assert!(!has("v8") && !has("d8"), "nobody has used disk 8: {past}");
        (has("v250") && has("d250")).then_some(())
    };
    poll_within(Duration::from_secs(10), has_series).expect("a disk that was used has samples");

    assert!(daemon.terminate().success(), "{}", daemon.stderr());
    for disk in used {
        let file = fs::read(daemon.dir().join(format!("f{disk}"))).unwrap();
        assert_eq!(file[4096..12_288], pattern(8192, disk as u64), "disk {disk}");
    }
    let left = fs::read_dir(daemon.dir()).unwrap().map(|entry| entry.unwrap());
    let is_socket =
        |name: &str| name.strip_prefix('s').is_some_and(|n| n.starts_with(char::is_numeric));
    let sockets = left.filter(|entry| is_socket(&entry.file_name().to_string_lossy()));
    assert_eq!(sockets.count(), 0, "sockets and the marks beside them are removed");
}

#[test]
fn the_mark_of_a_killed_daemon_keeps_no_other_from_its_socket() {
    let dir = tempdir();
    let config = "[[drive]]\nname = \"d\"\nspec = \"null:size=1m\"\n[[volume]]\nname = \"v\"\n\
                  drives = [\"d\"]\n[[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n";
    let mut daemon = Daemon::start_in(dir, config, &["s"], &[]);
    let mark = daemon.dir().join("s.lock");
    assert!(fs::read_to_string(&mark).unwrap().starts_with(&format!("{} ", daemon.pid())));
    assert_eq!(fs::metadata(&mark).unwrap().permissions().mode() & 0o777, 0o600);
    daemon.kill9();
    assert!(mark.exists());
    let other = tempdir();
    for name in ["s", "s.lock"] {
        // A name of the other directory for the same file.
        fs::hard_link(daemon.dir().join(name), other.path().join(name)).unwrap();
    }
    let again = Daemon::start_in(other, config, &["s"], &[]);
    let text = fs::read_to_string(again.dir().join("s.lock")).unwrap();
    assert!(text.starts_with(&format!("{} ", again.pid())), "{text}");
}
