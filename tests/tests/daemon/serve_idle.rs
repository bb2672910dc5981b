//! The daemon's cost: no CPU time while idle, and little memory under load.
//!
//! No NBD client is needed: connections are plain sockets. Every test runs on each back end.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use millrace_tests::control::Control;
use millrace_tests::raw_nbd::{READ, RawNbd, WRITE, request};
use millrace_tests::serving::{backends, four_files, pattern, stripe};
use millrace_tests::{Daemon, poll_within, tempdir};

const BLOCK: u32 = 4096;
const DEPTH: u64 = 128;

fn serve(backend: &str) -> Daemon {
    let dir = tempdir();
    let config = stripe(backend, &four_files(dir.path(), 64, ""));
    Daemon::start_in(dir, &config, &["s"], &[])
}

/// Reads random blocks with `DEPTH` in flight for a while; returns how many.
fn load(socket: &Path, seed: u64, duration: Duration) -> u64 {
    let mut raw = RawNbd::connect(socket, "v").unwrap();
    let blocks = raw.size_bytes() / u64::from(BLOCK);
    let mut next = seed;
    let mut header = |cookie| {
        next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        request(READ, cookie, (next >> 16) % blocks * u64::from(BLOCK), BLOCK)
    };
    let first: Vec<u8> = (0..DEPTH).flat_map(&mut header).collect();
    raw.send(&first).unwrap();
    let (start, mut done, mut in_flight) = (Instant::now(), 0, DEPTH);
    let mut data = [0; BLOCK as usize];
    while in_flight > 0 {
        let (errno, cookie) = raw.reply().unwrap();
        assert_eq!(errno, 0);
        raw.receive(&mut data).unwrap();
        done += 1;
        if start.elapsed() < duration {
            raw.send(&header(cookie)).unwrap();
        } else {
            in_flight -= 1;
        }
    }
    done
}

/// Puts load on four connections for 2 s, and returns the largest resident memory seen, in KiB.
fn loaded_resident_kib(daemon: &Daemon) -> u64 {
    let socket = daemon.dir().join("s");
    let mut peak = 0;
    thread::scope(|scope| {
        let connections: Vec<_> = (1..=4)
            .map(|seed| {
                scope.spawn({
                    let socket = &socket;
                    move || load(socket, seed, Duration::from_secs(2))
                })
            })
            .collect();
        while connections.iter().any(|thread| !thread.is_finished()) {
            peak = peak.max(daemon.resident_kib());
            thread::sleep(Duration::from_millis(20));
        }
        for connection in connections {
            assert!(connection.join().unwrap() > DEPTH, "the load ran");
        }
    });
    peak
}

fn idles_before_and_after_load(backend: &str) {
    let daemon = serve(backend);
    let mut raw = RawNbd::connect(&daemon.dir().join("s"), "v").unwrap();
    daemon.assert_idle("before load");
    loaded_resident_kib(&daemon);
    daemon.assert_idle("after load");
    let data = pattern(8192, 3);
    raw.write(0, &data).unwrap();
    assert_eq!(raw.read(0, 8192).unwrap(), data, "the idle connection still works");
}

#[test]
fn idle_daemon_with_client_uses_no_cpu_before_and_after_load() {
    thread::scope(|scope| {
        for backend in backends() {
            scope.spawn(|| idles_before_and_after_load(backend));
        }
    });
}

#[test]
fn four_connections_at_depth_128_fit_in_64_mib() {
    for backend in backends() {
        let daemon = serve(backend);
        let mut raw = RawNbd::connect(&daemon.dir().join("s"), "v").unwrap();
        for mib in 0..256 {
            raw.write(mib << 20, &pattern(1 << 20, mib)).unwrap();
        }
        drop(raw);
        let peak = loaded_resident_kib(&daemon);
        println!("{backend}: {peak} KiB resident under load");
        assert!(peak <= 64 * 1024, "{backend}: {peak} KiB resident under load");
    }
}

/// KiB of the daemon's mappings that lie in huge pages.
fn huge_kib(daemon: &Daemon) -> u64 {
    let smaps = fs::read_to_string(format!("/proc/{}/smaps", daemon.pid())).unwrap();
    let kib = |line: &str| -> Option<u64> {
        line.strip_prefix("AnonHugePages:")?.split_whitespace().next()?.parse().ok()
    };
    smaps.lines().filter_map(kib).sum()
}

#[test]
fn payload_lies_in_huge_pages_where_the_system_gives_them() {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    let enabled = fs::read_to_string(path).unwrap_or_default();
    if !enabled.contains("[madvise]") && !enabled.contains("[always]") {
        println!("skipped: {path} says {enabled:?}");
        return;
    }
    for backend in backends() {
        let dir = tempdir();
        let config = stripe(backend, &four_files(dir.path(), 64, "")) + "control = \"unix:c\"\n";
        let daemon = Daemon::start_in(dir, &config, &["s", "c"], &[]);
        let mut raw = RawNbd::connect(&daemon.dir().join("s"), "v").unwrap();
        // A write keeps its buffer as long as the rest of its payload has not come.
        raw.send(&request(WRITE, 1, 0, 2 << 20)).unwrap();
        raw.send(&vec![7; 1 << 20]).unwrap();
        let huge = || (huge_kib(&daemon) >= 2048).then_some(());
        poll_within(Duration::from_secs(10), huge).unwrap_or_else(|| panic!("{backend}: none"));
        let report = Control::connect(&daemon).ok("stats");
        let bytes = report["server"]["huge_page_bytes"].as_u64().unwrap();
        assert!(bytes >= 2 << 20, "{backend}: {bytes}");
        raw.send(&vec![7; 1 << 20]).unwrap();
        assert_eq!(raw.reply().unwrap(), (0, 1), "{backend}");
    }
}
