//! A drive that never answers beside a healthy one, and memory that is returned after a load.
//!
//! The tests use bare sockets, and count descriptors and memory of a real daemon's process.

use std::fs;
use std::time::{Duration, Instant};

use millrace_tests::raw_nbd::{READ, RawNbd, WRITE, request};
use millrace_tests::serving::{backends, pattern};
use millrace_tests::{Daemon, poll_within};

const MIB: u64 = 1 << 20;
const EIO: u32 = 5;
const ENOMEM: u32 = 12;

/// Volume `v` is well, the others are stuck.
fn config_of(backend: &str, threads: u32, stuck: &[&str]) -> String {
    let part = |name: &str, spec: &str| {
        format!(
            "[[drive]]\nname = \"d-{name}\"\nspec = \"{spec}\"\ntimeout = \"1s\"\n\
             [[volume]]\nname = \"{name}\"\ndrives = [\"d-{name}\"]\n\
             [[export]]\nvolume = \"{name}\"\nnbd = \"unix:s\"\n"
        )
    };
    let spec = "fault:drive=(ram:size=64m),volatile=on,stuck=on,op=read";
    let server =
        format!("[server]\nbackend = \"{backend}\"\nthreads = {threads}\nmemory-max = \"64m\"\n");
    let stuck: String = stuck.iter().map(|name| part(name, spec)).collect();
    part("v", "ram:size=64m") + &stuck + &server
}

/// Volume `v` is well, volume `w` is stuck.
fn config(backend: &str) -> String {
    config_of(backend, 2, &["w"])
}

fn reads(count: u64) -> Vec<u8> {
    (0..count).flat_map(|n| request(READ, n, n % 40 * MIB, 1 << 20)).collect()
}

fn open_files(daemon: &Daemon) -> usize {
    fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count()
}

#[test]
fn fifty_reconnects_to_a_stuck_drive_harm_no_other_volume() {
    for backend in backends() {
        let daemon = Daemon::start(&config(backend), &["s"]);
        let socket = daemon.dir().join("s");
        let mut well = RawNbd::connect(&socket, "v").unwrap();
        let data = pattern(1 << 20, 7);
        well.write(0, &data).unwrap();
        let (files, start) = (open_files(&daemon), Instant::now());
        for round in 0..50 {
            let mut stuck = RawNbd::connect(&socket, "w").unwrap();
            stuck.send(&reads(40)).unwrap();
            assert!(well.read(0, 1 << 20).unwrap() == data, "{backend}: round {round}");
            well.write(2 * MIB, &data[..4096]).unwrap();
            assert!(well.read(2 * MIB, 4096).unwrap() == data[..4096], "{backend}: round {round}");
        }
        let took = start.elapsed();
        assert!(took < Duration::from_secs(30), "{backend}: others waited: {took:?}");
        let back = || (open_files(&daemon) <= files + 2).then_some(());
        poll_within(Duration::from_secs(15), back).expect("descriptors come back");
        // 64 MiB for payload, two copies of the written data, and the program itself.
        let resident_kib = daemon.resident_kib();
        assert!(resident_kib < 112 << 10, "{backend}: {resident_kib} KiB");
        let mut stuck = RawNbd::connect(&socket, "w").unwrap();
        stuck.send(&reads(1)).unwrap();
        assert_eq!(stuck.reply().unwrap(), (EIO, 0), "{backend}: it is told");
        assert!(well.read(0, 1 << 20).unwrap() == data);
    }
}

#[test]
fn large_requests_are_refused_while_a_stuck_drive_has_memory() {
    for backend in backends() {
        let daemon = Daemon::start(&config(backend), &["s"]);
        let socket = daemon.dir().join("s");
        let [mut stuck, mut first, mut second, mut last] =
            ["w", "v", "v", "w"].map(|volume| RawNbd::connect(&socket, volume).unwrap());
        let largest = request(READ, 1, 0, 32 << 20);
        stuck.send(&largest).unwrap();
        // Long enough for that one to be at its drive, and the others wait for memory behind it.
        std::thread::sleep(Duration::from_millis(200));
        [&mut first, &mut last].into_iter().for_each(|raw| raw.send(&largest).unwrap());
        assert_eq!(stuck.reply().unwrap(), (EIO, 1), "{backend}: no answer in time");
        for raw in [&mut first, &mut last] {
            assert_eq!(raw.reply().unwrap(), (ENOMEM, 1), "{backend}: it waited");
        }
        let data = pattern(8 << 20, 5);
        second.write(0, &data).unwrap();
        for raw in [&mut first, &mut second] {
            raw.send(&largest).unwrap();
            assert_eq!(raw.reply().unwrap(), (ENOMEM, 1), "{backend}: afterwards");
            assert!(raw.read(0, 8 << 20).unwrap() == data, "{backend}: what there is room for");
        }
        second.send(&request(WRITE, 2, 0, 32 << 20)).unwrap();
        second.send(&vec![1; 32 << 20]).unwrap();
        assert_eq!(second.reply().unwrap(), (ENOMEM, 2), "{backend}: a write");
        assert!(second.read(0, 8 << 20).unwrap() == data, "{backend}: nothing was written");
    }
}

#[test]
fn several_stuck_volumes_leave_all_sizes_to_another() {
    for backend in backends() {
        let daemon = Daemon::start(&config_of(backend, 1, &["w", "x", "y"]), &["s"]);
        let socket = daemon.dir().join("s");
        let connect = |volume| RawNbd::connect(&socket, volume).unwrap();
        let mut stuck: Vec<RawNbd> = ["w", "x", "y"].map(connect).into();
        let lens = [1 << 20, 64 << 10, 64 << 10];
        for (raw, len) in stuck.iter_mut().zip(lens) {
            raw.send(&(0..40).flat_map(|n| request(READ, n, 0, len)).collect::<Vec<_>>()).unwrap();
        }
        for raw in &mut stuck {
            // Requests that got memory time out; later ones get none.
            (0..40).for_each(|_| assert_eq!(raw.reply().unwrap().0, EIO, "{backend}"));
        }
        for len in [4096, 256 << 10, 300 << 10, 1 << 20, 2 << 20, 8 << 20, 32 << 20] {
            let mut well = connect("v");
            well.send(&request(READ, 1, 0, len)).unwrap();
            let (errno, _) = well.reply().unwrap();
            let is_small = len <= 256 << 10;
            assert!(errno == 0 || (errno == ENOMEM && !is_small), "{backend}: {len}: {errno}");
        }
    }
}

/// A read keeps the only tag of a thread's queue for 3 s, and a write waits behind the read. The
/// write's client is told of the timeout after 1 s; other threads' queues of the drive are free.
#[test]
fn failed_write_does_not_overwrite_a_newer_one() {
    for backend in backends() {
        let config = format!(
            "[[drive]]\nname = \"d\"\ntimeout = \"1s\"\nqueue-depth = 1\n\
             spec = \"fault:drive=(file:path=disk,size=8m),latency=3s,op=read\"\n\
             [[volume]]\nname = \"v\"\ndrives = [\"d\"]\n\
             [[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n\
             [server]\nthreads = 2\nbackend = \"{backend}\"\n"
        );
        let daemon = Daemon::start(&config, &["s"]);
        let socket = daemon.dir().join("s");
        let mut all: Vec<RawNbd> = (0..4).map(|_| RawNbd::connect(&socket, "v").unwrap()).collect();
        all[0].send(&request(READ, 1, MIB, 4096)).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        all[0].send(&request(WRITE, 2, 0, 4096)).unwrap();
        all[0].send(&pattern(4096, 100)).unwrap();
        (0..2).for_each(|_| assert_eq!(all[0].reply().unwrap().0, EIO, "{backend}: in time"));
        // The new write waits for the old one, and may run into the timeout, too.
        let acknowledged = (1..8).find(|number| {
            let raw = &mut all[1 + *number as usize % 3];
            raw.send(&request(WRITE, 3, 0, 4096)).unwrap();
            raw.send(&pattern(4096, *number)).unwrap();
            raw.reply().unwrap() == (0, 3)
        });
        // The read ends at 3 s, and the old write runs after it.
        std::thread::sleep(Duration::from_secs(3));
        let found = fs::read(daemon.dir().join("disk")).unwrap()[..4096].to_vec();
        let expected = pattern(4096, acknowledged.expect("a write is acknowledged"));
        assert!(found == expected, "{backend}: the acknowledged write is gone");
    }
}

/// A read keeps the only tag of a thread's queue, and the client of the write behind it leaves.
#[test]
fn abandoned_write_does_not_overwrite_a_newer_one() {
    // One of the two other clients is at the other thread, whose queue of the drive is free.
    for (backend, writer) in backends().iter().flat_map(|it| [(it, 0), (it, 1)]) {
        let config = format!(
            "[[drive]]\nname = \"d\"\nqueue-depth = 1\n\
             spec = \"fault:drive=(file:path=disk,size=8m),latency=2s,op=read\"\n\
             [[volume]]\nname = \"v\"\ndrives = [\"d\"]\n\
             [[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n\
             [server]\nthreads = 2\nbackend = \"{backend}\"\n"
        );
        let daemon = Daemon::start(&config, &["s"]);
        let socket = daemon.dir().join("s");
        let mut all: Vec<RawNbd> = (0..3).map(|_| RawNbd::connect(&socket, "v").unwrap()).collect();
        all[0].send(&request(READ, 1, MIB, 4096)).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        all[0].send(&request(WRITE, 2, 0, 4096)).unwrap();
        all[0].send(&pattern(4096, 100)).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        drop(all.remove(0));
        std::thread::sleep(Duration::from_millis(500));
        all[writer].write(0, &pattern(4096, 2)).unwrap();
        std::thread::sleep(Duration::from_secs(3));
        let found = fs::read(daemon.dir().join("disk")).unwrap()[..4096].to_vec();
        assert!(found == pattern(4096, 2), "{backend}: the acknowledged write is gone");
    }
}

#[test]
fn memory_of_large_requests_goes_back_while_their_client_stays() {
    for backend in backends() {
        let daemon = Daemon::start(&config(backend), &["s"]);
        let mut raw = RawNbd::connect(&daemon.dir().join("s"), "v").unwrap();
        let data = pattern(1 << 20, 3);
        raw.write(0, &data).unwrap();
        let before_kib = daemon.resident_kib();
        (0..40).for_each(|n| raw.write(n * MIB, &data).unwrap());
        let kib_of_data = 40 << 10;
        raw.send(&reads(120)).unwrap();
        let (mut most_kib, mut payload) = (0, vec![0; 1 << 20]);
        for _ in 0..120 {
            assert_eq!(raw.reply().unwrap().0, 0);
            raw.receive(&mut payload).unwrap();
            most_kib = most_kib.max(daemon.resident_kib());
        }
        let back = || (daemon.resident_kib() < before_kib + kib_of_data + (8 << 10)).then_some(());
        poll_within(Duration::from_secs(15), back).unwrap_or_else(|| {
            panic!("{backend}: {} KiB are left of {most_kib}", daemon.resident_kib())
        });
        assert!(raw.read(0, 1 << 20).unwrap() == data);
    }
}
