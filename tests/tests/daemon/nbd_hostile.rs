//! Clients that break the protocol, vanish or never read: only their own connection may suffer.
//!
//! Plain sockets, no client needed. In every test a witness does verified I/O on a connection of
//! its own all the while, and every test runs on each back end.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use millrace_tests::control::Control;
use millrace_tests::raw_nbd::{READ, RawNbd, WRITE, handshake, request};
use millrace_tests::serving::{backends, four_files, pattern, stripe};
use millrace_tests::{Daemon, client, tempdir};

const EINVAL: u32 = 22;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(1);
/// The witness has the first 8 MiB for itself.
const WITNESS_BYTES: u64 = 8 * MIB;

fn serve(backend: &str, server_keys: &str) -> Daemon {
    let dir = tempdir();
    let config = stripe(backend, &four_files(dir.path(), 32, "")) + server_keys;
    Daemon::start_in(dir, &config, &["s"], &[])
}

/// Writes and reads back until told to stop, and counts the rounds. Sets `connected` once
/// connected.
fn witness(socket: &Path, stop: &AtomicBool, connected: &AtomicBool, count: &AtomicU64) {
    let mut raw = RawNbd::connect(socket, "v").unwrap();
    connected.store(true, Ordering::SeqCst);
    for rounds in 0.. {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        let length = [512, 4 * KIB, 20 * KIB, 200 * KIB][(rounds % 4) as usize];
        let offset = (rounds * 7 * 512) % (WITNESS_BYTES - length);
        let data = pattern(length as usize, rounds + 1);
        raw.write(offset, &data).unwrap();
        assert!(raw.read(offset, length as u32).unwrap() == data, "round {rounds} reads back");
        count.fetch_add(1, Ordering::SeqCst);
        // Enough rounds to notice anything; the rest of the machine is for the attackers.
        sleep(Duration::from_millis(1));
    }
}

/// Serves on each back end, and lets `attack` loose while a witness is at work.
fn under_attack(server_keys: &str, attack: impl Fn(&Daemon, &Path)) {
    for backend in backends() {
        let daemon = serve(backend, server_keys);
        let socket = daemon.dir().join("s");
        let (stop, connected) = (AtomicBool::new(false), AtomicBool::new(false));
        let rounds = AtomicU64::new(0);
        thread::scope(|scope| {
            let witness = scope.spawn(|| witness(&socket, &stop, &connected, &rounds));
            let is_connected = || connected.load(Ordering::SeqCst).then_some(());
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                // Attackers that take all connections must not take its own.
                eventually("the witness is connected", is_connected);
                attack(&daemon, &socket);
                let before = rounds.load(Ordering::SeqCst);
                eventually(&format!("{backend}: the witness goes on"), || {
                    let goes_on = rounds.load(Ordering::SeqCst) >= before + 6;
                    (goes_on || witness.is_finished()).then_some(())
                });
            }));
            stop.store(true, Ordering::SeqCst);
            witness.join().expect("the witness saw nothing of the attack");
            outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
        let stderr = daemon.stderr();
        assert!(!stderr.contains("panicked"), "{backend}: {stderr}");
    }
}

/// The handshake timeout in the `[server]` section.
const IMPATIENT: &str = "handshake-timeout = \"1s\"\n";

#[test]
fn random_bytes_instead_of_a_handshake_close_the_connection() {
    under_attack(IMPATIENT, |_, socket| {
        let mut attackers: Vec<RawNbd> = (1..=64)
            .map(|seed| {
                let mut raw = RawNbd::greet(socket).unwrap();
                // The server may close before all bytes are sent.
                let _ = raw.send(&pattern(seed * seed * 13, seed as u64));
                raw
            })
            .collect();
        for (seed, raw) in attackers.iter_mut().enumerate() {
            assert!(raw.is_closed_by_server(), "garbage {seed}");
        }
    });
}

#[test]
fn a_wrong_option_is_answered_or_closes_the_connection() {
    under_attack(IMPATIENT, |_, socket| {
        let flags = 3u32.to_be_bytes();
        let option = |number: u32, length: u32, data: &[u8]| {
            let numbers = [number.to_be_bytes(), length.to_be_bytes()].concat();
            [&flags[..], b"IHAVEOPT", &numbers, data].concat()
        };
        let cases = [
            ("an unknown option", option(0x7777, 4, b"data")),
            ("4 GiB of option", option(7, u32::MAX, b"")),
            ("GO that is too short", option(7, 1, b"x")),
            ("GO with a name beyond its data", option(7, 6, &[0xff, 0xff, 0, 0, 0, 0])),
            ("GO to nobody", option(7, 9, b"\0\0\0\x03abc\0\0")),
            ("a context query beyond its data", option(10, 8, &[0, 0, 0, 0, 0xff, 0, 0, 0])),
            ("a structured reply with data", option(8, 3, b"abc")),
            ("an export name of nobody", handshake("nobody")),
            ("an export name that is not UTF-8", option(1, 2, &[0xff, 0xfe])),
            ("bad client flags", [&0xffff_ffffu32.to_be_bytes()[..], b"IHAVEOPT"].concat()),
        ];
        let mut attackers: Vec<_> = cases
            .iter()
            .map(|(what, bytes)| {
                let mut raw = RawNbd::greet(socket).unwrap();
                let _ = raw.send(bytes);
                (what, raw)
            })
            .collect();
        for (what, raw) in &mut attackers {
            assert!(raw.is_closed_by_server(), "{what}");
        }
    });
}

#[test]
fn a_handshake_that_stops_halfway_is_closed_after_its_timeout() {
    under_attack(IMPATIENT, |_, socket| {
        let whole = handshake("v");
        let start = Instant::now();
        let mut silent: Vec<RawNbd> = (0..whole.len())
            .map(|length| {
                let mut raw = RawNbd::greet(socket).unwrap();
                raw.send(&whole[..length]).unwrap();
                raw
            })
            .collect();
        assert!(silent[0].is_closed_by_server());
        let first = start.elapsed();
        assert!(first >= HANDSHAKE_TIMEOUT - Duration::from_millis(200), "early: {first:?}");
        for (length, raw) in silent.iter_mut().enumerate() {
            assert!(raw.is_closed_by_server(), "after {length} bytes");
        }
        let last = start.elapsed();
        assert!(last < HANDSHAKE_TIMEOUT * 5, "late: {last:?}");
        // The timeout covers the handshake only, not the connection afterwards.
        let mut granted = RawNbd::connect(socket, "v").unwrap();
        sleep(HANDSHAKE_TIMEOUT + Duration::from_millis(300));
        granted.read(16 * MIB, 512).unwrap();
    });
}

#[test]
fn a_broken_stream_of_requests_closes_the_connection() {
    under_attack(IMPATIENT, |_, socket| {
        let mut bad_magic = request(READ, 1, 0, 512);
        bad_magic[0] ^= 1;
        let good_then_bad = [request(READ, 1, 16 * MIB, 4096), bad_magic.clone()].concat();
        let huge_write = [request(WRITE, 2, 0, u32::MAX), vec![7; 100_000]].concat();
        let cases = [
            ("a bad magic", bad_magic),
            ("a bad magic behind a good request", good_then_bad),
            ("a write of 4 GiB", huge_write),
            ("random bytes", pattern(5000, 5)),
            ("a disconnect", request(2, 0, 0, 0)),
        ];
        for (what, bytes) in cases {
            let mut raw = RawNbd::connect(socket, "v").unwrap();
            let _ = raw.send(&bytes);
            assert!(raw.is_closed_by_server(), "{what}");
        }
        for (what, bytes) in [
            ("half a header", request(READ, 1, 0, 512)[..15].to_vec()),
            ("half a payload", [request(WRITE, 1, 16 * MIB, 8192), vec![1; 100]].concat()),
            (
                "half a large payload",
                [request(WRITE, 1, 16 * MIB, 1 << 20), vec![1; 9999]].concat(),
            ),
        ] {
            let mut raw = RawNbd::connect(socket, "v").unwrap();
            raw.send(&bytes).unwrap();
            raw.stop_sending();
            assert!(raw.is_closed_by_server(), "{what} and the end");
        }
        let mut after = RawNbd::connect(socket, "v").unwrap();
        assert_eq!(after.read(16 * MIB, 8192).unwrap(), [0; 8192], "half a write is none");
    });
}

#[test]
fn wrong_request_is_answered_with_einval_and_connection_goes_on() {
    under_attack("", |_, socket| {
        let mut raw = RawNbd::connect(socket, "v").unwrap();
        let data = pattern(4096, 9);
        raw.write(16 * MIB, &data).unwrap();
        let size = raw.size_bytes();
        let mut odd_flags = request(READ, 5, 16 * MIB, 4096);
        odd_flags[4] = 0x80;
        let too_long = [request(WRITE, 5, 16 * MIB, 33 << 20), vec![7; 33 << 20]].concat();
        let cases = [
            ("a read of 33 MiB", request(READ, 5, 0, 33 << 20)),
            ("a read of 4 GiB", request(READ, 5, 0, u32::MAX)),
            ("an unknown command", request(77, 5, 0, 512)),
            ("an unknown flag", odd_flags),
            ("a read beyond the end", request(READ, 5, size, 512)),
            ("a read whose end overflows", request(READ, 5, u64::MAX - 511, 1024)),
            ("a block status without a context", request(7, 5, 0, 512)),
            ("a write of 33 MiB", too_long),
        ];
        for (what, bytes) in cases {
            raw.send(&bytes).unwrap();
            assert_eq!(raw.reply().unwrap(), (EINVAL, 5), "{what}");
            assert!(raw.read(16 * MIB, 4096).unwrap() == data, "after {what}");
        }
        // Several at once, good ones among them: an answer for each.
        let mixed: Vec<u8> =
            (0..100).flat_map(|n| request(if n % 2 == 0 { 77 } else { 3 }, n, 0, 0)).collect();
        raw.send(&mixed).unwrap();
        let mut seen = [false; 100];
        for _ in 0..100 {
            let (errno, cookie) = raw.reply().unwrap();
            assert_eq!(errno, if cookie % 2 == 0 { EINVAL } else { 0 });
            assert!(!std::mem::replace(&mut seen[cookie as usize], true), "{cookie} twice");
        }
    });
}

/// Tries for a while, because the server learns of a closed connection a little later.
fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{what}: not within 10 s");
        sleep(Duration::from_millis(10));
    }
}

#[test]
fn connections_above_the_limit_are_closed_at_once() {
    // The witness is the fourth.
    under_attack("connections-max = 4\n", |_, socket| {
        let mut open: Vec<RawNbd> = (0..3)
            .map(|_| eventually("a connection", || RawNbd::connect(socket, "v").ok()))
            .collect();
        for _ in 0..20 {
            let refused = RawNbd::greet(socket).map(|mut raw| raw.is_closed_by_server());
            match refused {
                Ok(closed) => assert!(closed, "the fifth connection was let in"),
                Err(error) => assert!(is_closing(&error), "{error}"),
            }
        }
        for raw in &mut open {
            raw.read(16 * MIB, 4096).unwrap();
        }
        open.pop();
        let mut again = eventually("room for another", || RawNbd::connect(socket, "v").ok());
        again.read(16 * MIB, 4096).unwrap();
    });
}

#[test]
fn clients_that_use_all_descriptors_leave_some_to_operator() {
    if client("prlimit").is_none() {
        return;
    }
    for backend in backends() {
        let config = stripe(backend, &["ram:size=32m"; 2]) + "control = \"unix:c\"\n";
        let daemon = Daemon::start_under(&["prlimit", "--nofile=128"], &config, &["s", "c"]);
        let socket = daemon.dir().join("s");
        let mut open: Vec<RawNbd> =
            (0..128).map_while(|_| RawNbd::connect(&socket, "v").ok()).collect();
        assert!((16..112).contains(&open.len()), "{} connections", open.len());
        for _ in 0..3 {
            Control::connect(&daemon).ok("stats");
        }
        assert!(daemon.stderr().contains("raise the limit on open files"), "{}", daemon.stderr());
        for raw in &mut open {
            raw.read(16 * MIB, 4096).unwrap();
        }
        open.pop();
        eventually("room for another", || RawNbd::connect(&socket, "v").ok());
    }
}

fn is_closing(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Disconnects in the middle of something that depends on `round`.
fn vanish(socket: &Path, round: u64) {
    let mut raw = RawNbd::connect(socket, "v").unwrap();
    let at = 16 * MIB;
    let reads =
        |count, length| (0..count).flat_map(move |n| request(READ, n, at, length)).collect();
    let bytes: Vec<u8> = match round % 8 {
        0 => request(READ, 1, at, 4096)[..17].to_vec(),
        1 => [request(WRITE, 1, at, 8192), vec![1; 4000]].concat(),
        2 => [request(WRITE, 1, at, 1 << 20), vec![1; 500_000]].concat(),
        3 => reads(64, 4096),
        4 => reads(32, 1 << 20),
        5 => [request(WRITE, 1, at, 256 << 10), vec![1; 256 << 10], request(3, 2, 0, 0)].concat(),
        6 => (0..64).flat_map(|n| [request(WRITE, n, at, 4096), vec![2; 4096]].concat()).collect(),
        _ => Vec::new(),
    };
    raw.send(&bytes).unwrap();
    // Every other time it leaves in the middle of the replies.
    if matches!(round % 16, 11..=14) {
        let _ = raw.reply();
    }
}

fn open_files(daemon: &Daemon) -> usize {
    fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count()
}

#[test]
fn two_hundred_vanished_clients_leak_nothing() {
    // Half of the memory may be kept for reuse, 32 MiB: the daemon may grow by that, but only once.
    under_attack("memory-max = \"64m\"\n", |daemon, socket| {
        // The witness is connected, or about to be.
        let files = open_files(daemon) + 2;
        let vanish_all = || {
            (0..200).for_each(|round| vanish(socket, round));
            eventually("the descriptors of vanished clients", || {
                (open_files(daemon) <= files).then_some(())
            });
            daemon.resident_kib()
        };
        let resident_kib: Vec<u64> = (0..5).map(|_| vanish_all()).collect();
        let growths = resident_kib.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
        let least_kib = growths.min().unwrap();
        assert!(least_kib < 16 * KIB, "it grows every time: {resident_kib:?} KiB");
        assert!(resident_kib[4] <= 64 * KIB, "{resident_kib:?} KiB");
        let mut raw = RawNbd::connect(socket, "v").unwrap();
        let data = pattern(64 << 10, 4);
        raw.write(20 * MIB, &data).unwrap();
        assert!(raw.read(20 * MIB, 64 << 10).unwrap() == data);
    });
}

#[test]
fn clients_that_never_read_their_replies_do_not_stop_others() {
    under_attack("memory-max = \"64m\"\n", |daemon, socket| {
        let files = open_files(daemon);
        let greedy: Vec<RawNbd> = (0..4)
            .map(|_| {
                let mut raw = RawNbd::connect(socket, "v").unwrap();
                let reads: Vec<u8> =
                    (0..64).flat_map(|n| request(READ, n, 16 * MIB, 1 << 20)).collect();
                raw.send(&reads).unwrap();
                raw
            })
            .collect();
        // Only the witness can see a hang, so it goes on.
        sleep(Duration::from_secs(1));
        let mut raw = RawNbd::connect(socket, "v").unwrap();
        let start = Instant::now();
        raw.read(16 * MIB, 1 << 20).unwrap();
        let took = start.elapsed();
        assert!(took < Duration::from_secs(10), "a read took {took:?}");
        drop((greedy, raw));
        eventually("the descriptors of greedy clients", || {
            // The witness may have got a descriptor of its own to wait for room in its socket.
            (open_files(daemon) <= files + 2).then_some(())
        });
    });
}
