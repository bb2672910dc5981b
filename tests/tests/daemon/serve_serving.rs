//! Serving modes of a volume in the daemon: workers, or the faster of workers and inline.
//!
//! Four file drives in each mode, with watermarks so low that workers get nearly everything: fio
//! writes and verifies, a raw load is stopped in the middle, and an idle daemon does nothing.

use std::process::Command;
use std::thread;
use std::time::Duration;

use millrace_tests::load::Load;
use millrace_tests::serving::{backends, four_files, stripe, succeed, uri};
use millrace_tests::{Daemon, require_clients, tempdir};

const MODES: [&str; 2] = ["per-drive", "auto"];

/// A stripe of four files served so, with more keys of the volume.
fn config(backend: &str, specs: &[String], mode: &str, keys: &str) -> String {
    let chunk = "chunk = \"64k\"\n";
    let text = stripe(backend, specs);
    assert!(text.contains(chunk));
    text.replace(chunk, &format!("{chunk}serving = \"{mode}\"\n{keys}"))
}

fn fio(daemon: &Daemon, more: &[&str]) {
    let mut command = Command::new("fio");
    command.current_dir(daemon.dir());
    command.args(["--name=verify", "--ioengine=nbd", "--rw=randwrite", "--numjobs=4"]);
    command.args(["--size=8m", "--offset_increment=8m", "--iodepth=32", "--thread"]);
    command.args(["--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--randrepeat=1"]);
    command.args(["--bssplit=512/10:4k/40:12k/20:64k/20:256k/10", "--fsync=32"]);
    command.arg(format!("--uri={}", uri(daemon, "v")));
    let said = succeed(command.args(more));
    assert_eq!(said.matches("err= 0").count(), 4, "{said}");
}

#[test]
fn random_writes_verify_in_each_mode_and_survive_another() {
    require_clients!("fio");
    for backend in backends() {
        let drives = tempdir();
        let specs = four_files(drives.path(), 8, "");
        for mode in MODES {
            let text = config(backend, &specs, mode, "plug-low = 1\n");
            let mut daemon = Daemon::start(&text, &["s"]);
            let said = daemon.stdout();
            assert!(said.contains(mode), "{said}");
            fio(&daemon, &[]);
            let status = daemon.terminate();
            assert!(status.success(), "{backend} {mode}: {status}: {}", daemon.stderr());
        }
        let daemon = Daemon::start(&config(backend, &specs, "inline", ""), &["s"]);
        fio(&daemon, &["--verify_only"]);
    }
}

#[test]
fn every_request_is_answered_when_the_daemon_stops_under_load() {
    for backend in backends() {
        for mode in MODES {
            let drives = tempdir();
            let specs = four_files(drives.path(), 1, "");
            // Pressure points so low that I/O threads are held back all the time.
            let keys = "plug-low = 1\nplug-high = 4\npressure-high = 2\npressure-low = 1\n";
            let mut daemon = Daemon::start(&config(backend, &specs, mode, keys), &["s"]);
            let mut load = Load::new(4096, 7);
            load.connect(&daemon.dir().join("s"), "v", 4);
            load.round(|_| thread::sleep(Duration::from_millis(300)));
            load.check(mode);
            assert_eq!(load.counts().failed, 0);
            load.round(|_| {
                thread::sleep(Duration::from_millis(100));
                let status = daemon.terminate();
                assert!(status.success(), "{backend} {mode}: {status}: {}", daemon.stderr());
                assert!(daemon.stderr().contains("all data is flushed"), "{}", daemon.stderr());
            });
            assert_eq!(load.counts().failed, 0);
        }
    }
}

#[test]
fn workers_cost_nothing_while_nobody_asks_for_anything() {
    for backend in backends() {
        let drives = tempdir();
        let specs = four_files(drives.path(), 1, "");
        let text = config(backend, &specs, "per-drive", "plug-low = 1\n");
        let daemon = Daemon::start(&text, &["s"]);
        let mut load = Load::new(4096, 8);
        load.connect(&daemon.dir().join("s"), "v", 2);
        load.round(|_| thread::sleep(Duration::from_millis(200)));
        daemon.assert_idle(backend);
    }
}
