//! Guarantees of a cache: flushed data survive a kill, a clean stop loses nothing, errors are
//! reported.
//!
//! File drives under a cache; the daemon is killed and started again, with a cache and without one.
//! The contents are compared with the model of `durability` and with the files themselves.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command as Program;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use millrace_clients::nbd::Client;
use millrace_nbd::wire::CMD_FLAG_FUA;
use millrace_nbd::{Command, Errno, Request};
use millrace_random::SplitMix64;
use millrace_tests::cached_volume::{config, counters};
use millrace_tests::load::{Load, call, connect, request};
use millrace_tests::raw_nbd::{self, RawNbd};
use millrace_tests::remote::Remote;
use millrace_tests::serving::{backends, four_files, pattern, succeed, uri};
use millrace_tests::{Daemon, poll_within, require_clients, tempdir};

const SECTORS: u64 = 8192;
const KILLS: u64 = 10;
/// A cache whose flusher has no reason of its own to write.
const LAZY: &str = "size = \"16m\"\ndirty-age = \"1h\"";

/// Spec of a file drive in `dir`.
fn file(dir: &Path, keys: &str) -> String {
    format!("file:path={}/d0,size=4m{keys}", dir.display())
}

/// Bytes of the drive's file in `dir`.
fn bytes_at(dir: &Path, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fs::File::open(dir.join("d0")).unwrap().read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

fn write(client: &mut Client, sector: u64, data: &[u8], flags: u16) -> Option<Errno> {
    let request = Request { flags, ..request(Command::Write, sector, data.len() as u64 / 512) };
    call(client, &request, data.to_vec()).unwrap().errno
}

fn flush(client: &mut Client) -> Option<Errno> {
    call(client, &request(Command::Flush, 0, 0), Vec::new()).unwrap().errno
}

#[test]
fn flushed_data_survive_10_kills_and_nothing_foreign_appears() {
    let dir = tempdir();
    let files = four_files(dir.path(), 1, "");
    let (mut load, mut dice) = (Load::new(SECTORS, 5), SplitMix64::new(12));
    for kill in 1..=KILLS {
        // Smaller than the volume, so that pages are written back and evicted, too; at times gone.
        let cache = ["size = \"1m\"\ndirty-max = \"256k\"", LAZY, ""][(kill % 3) as usize];
        let backend = if kill % 2 == 0 { "epoll" } else { "auto" };
        let text = format!("{}backend = \"{backend}\"\n", config(&files, cache));
        let mut daemon = Daemon::start(&text, &["s"]);
        load.connect(&daemon.dir().join("s"), "v", 4);
        load.check(&format!("after kill {}", kill - 1));
        let pause = 20 + dice.below(100);
        load.round(|load| {
            let before = load.counts().acknowledged;
            let goes_on = || (load.counts().acknowledged >= before + 300).then_some(());
            poll_within(Duration::from_secs(60), goes_on).expect("it is served");
            thread::sleep(Duration::from_millis(pause));
            daemon.kill9();
        });
        load.with_model(|model| match cache.is_empty() {
            true => model.server_died(),
            false => model.cache_died(),
        });
    }
    let mut daemon = Daemon::start(&config(&files, ""), &["s"]);
    load.connect(&daemon.dir().join("s"), "v", 4);
    load.check("after the last kill");
    let counts = load.counts();
    let went_back = load.with_model(|model| model.went_back());
    println!("{KILLS} kills: {counts:?}, {went_back} sectors went back");
    assert!(counts.unanswered > KILLS && counts.acknowledged > 300 * KILLS, "{counts:?}");
    assert_eq!(counts.failed, 0, "nothing fails before the daemon dies");
    assert!(went_back > 0, "a cache that loses nothing at a kill has not been one");
    assert_eq!(daemon.terminate().code(), Some(0));
}

/// Kills of the test of large blocks: `MILLRACE_KILLS`, or few.
fn large_block_kills() -> u64 {
    std::env::var("MILLRACE_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(6)
}

/// fio over the upper half of a volume: writes it anew, ending with a flush, or verifies it.
fn fio_above(daemon: &Daemon, seed: u64, more: &[&str]) {
    let mut command = Program::new("fio");
    // fio leaves files of state where it runs.
    command.current_dir(daemon.dir()).args(["--name=above", "--ioengine=nbd", "--thread"]);
    command.args(["--rw=randwrite", "--offset=4m", "--size=4m", "--iodepth=16", "--fsync=8"]);
    command.args(["--bssplit=64k/70:192k/30", "--verify=crc32c", "--verify_fatal=1"]);
    command.arg(format!("--randseed={seed}")).arg(format!("--uri={}", uri(daemon, "v")));
    let said = succeed(command.args(more));
    assert!(said.contains("err= 0"), "{said}");
}

/// Kills the daemon over a single drive, a stripe, and a linear volume in turn.
#[test]
fn what_was_flushed_survives_kills_over_drives_of_64_kib_blocks() {
    require_clients!("fio", "nbdkit");
    let dir = tempdir();
    let path = |name: String| dir.path().join(name);
    let server = |at: u64| {
        let mib = if at == 0 { 8 } else { 4 };
        Remote::large_blocks(&path(format!("n{at}")), &path(format!("d{at}")), mib)
    };
    let servers: Vec<Remote> = (0..5).map(server).collect();
    let specs: Vec<String> = servers.iter().map(|server| server.spec("")).collect();
    let volumes = [(0..1, "linear"), (1..3, "stripe"), (3..5, "linear")];
    let mut loads = [1, 2, 3].map(|seed| Load::new(SECTORS, seed).in_blocks_of(128));
    let (mut dice, kills) = (SplitMix64::new(39), large_block_kills());
    for kill in 0..kills + 3 {
        let at = (kill % 3) as usize;
        let (load, (drives, layout)) = (&mut loads[at], volumes[at].clone());
        let cache = [
            "size = \"1m\"\ndirty-max = \"256k\"",
            LAZY,
            "size = \"16m\"\nmode = \"write-through\"",
            "size = \"2m\"\ndirty-age = \"5ms\"\nread-ahead = \"0\"",
        ][(kill / 3 % 4) as usize];
        let backend = if kill / 3 % 2 == 0 { "auto" } else { "epoll" };
        let text = config(&specs[drives], cache);
        let text =
            text.replace("name = \"v\"\n", &format!("name = \"v\"\nlayout = \"{layout}\"\n"));
        let text = if layout == "linear" { text.replace("chunk = \"64k\"\n", "") } else { text };
        let mut daemon = Daemon::start(&format!("{text}backend = \"{backend}\"\n"), &["s"]);
        load.connect(&daemon.dir().join("s"), "v", 4);
        load.check(&format!("before kill {kill} of {layout}"));
        if kill >= 3 {
            fio_above(&daemon, kill - 3, &["--verify_only"]);
        }
        if kill >= kills {
            assert_eq!(daemon.terminate().code(), Some(0), "{}", daemon.stderr());
            continue;
        }
        fio_above(&daemon, kill, &["--do_verify=0"]);
        let pause = 20 + dice.below(100);
        load.round(|load| {
            let before = load.counts().acknowledged;
            let goes_on = || (load.counts().acknowledged >= before + 100).then_some(());
            poll_within(Duration::from_secs(60), goes_on).expect("it is served");
            thread::sleep(Duration::from_millis(pause));
            daemon.kill9();
        });
        load.with_model(|model| match cache.contains("write-through") {
            true => model.server_died(),
            false => model.cache_died(),
        });
    }
    for load in &loads {
        let (counts, back) = (load.counts(), load.with_model(|model| model.went_back()));
        println!("{kills} kills over blocks of 64 KiB: {counts:?}, {back} sectors went back");
        assert_eq!(counts.failed, 0, "nothing fails before the daemon dies");
    }
}

#[test]
fn flush_covers_earlier_writes_of_every_connection() {
    for backend in backends() {
        let dir = tempdir();
        let text = format!(
            "{}threads = 2\nbackend = \"{backend}\"\n",
            config(&[file(dir.path(), "")], LAZY)
        );
        let mut daemon = Daemon::start(&text, &["s", "c"]);
        let socket = daemon.dir().join("s");
        let mut one = RawNbd::connect(&socket, "v").unwrap();
        let mut other = RawNbd::connect(&socket, "v").unwrap();
        let data = pattern(256 << 10, 1);
        one.write(512, &data).unwrap();
        assert_eq!(other.read(512, 256 << 10).unwrap(), data, "what one writes the other reads");
        assert_eq!(bytes_at(dir.path(), 512, 4096), [0; 4096], "it is in memory only");
        // 256 KiB from the middle of a page on.
        assert_eq!(counters(&daemon)["dirty_bytes"], 65 << 12);
        other.flush().unwrap();
        assert_eq!(counters(&daemon)["dirty_bytes"], 0);
        one.write(2 << 20, &data[..4096]).unwrap();
        daemon.kill9();
        assert_eq!(bytes_at(dir.path(), 512, 256 << 10), data);
        assert_eq!(bytes_at(dir.path(), 2 << 20, 4096), [0; 4096], "nobody flushed it");
        // A newer daemon, with a cache that is empty, gives the same.
        let daemon = Daemon::start(&text, &["s"]);
        let mut new = RawNbd::connect(&daemon.dir().join("s"), "v").unwrap();
        assert_eq!(new.read(512, 256 << 10).unwrap(), data);
        assert_eq!(new.read(2 << 20, 4096).unwrap(), [0; 4096]);
    }
}

#[test]
fn fua_write_is_in_the_file_when_answered() {
    let dir = tempdir();
    let mut daemon = Daemon::start(&config(&[file(dir.path(), "")], LAZY), &["s"]);
    let mut client = connect(&daemon.dir().join("s"), "v").unwrap();
    let data = pattern(64 << 10, 3);
    assert_eq!(write(&mut client, 2048, &data, 0), None);
    assert_eq!(write(&mut client, 0, &data, CMD_FLAG_FUA), None);
    daemon.kill9();
    assert_eq!(bytes_at(dir.path(), 0, 64 << 10), data);
    assert_eq!(bytes_at(dir.path(), 1 << 20, 64 << 10), vec![0; 64 << 10]);
}

#[test]
fn write_with_fua_is_one_write_with_fua_to_drive_that_has_such() {
    require_clients!("nbdkit");
    let dir = tempdir();
    let (socket, log) = (dir.path().join("n"), dir.path().join("log"));
    let file = format!("logfile={}", log.display());
    let _server = Remote::nbdkit(&socket, &["--filter=log", "memory", "8M", &file]);
    let drive = format!("nbd:uri=nbd+unix:///?socket={}", socket.display());
    let daemon = Daemon::start(&config(&[drive], LAZY), &["s"]);
    let mut client = connect(&daemon.dir().join("s"), "v").unwrap();
    assert_eq!(write(&mut client, 0, &pattern(64 << 10, 1), 0), None);
    assert_eq!(write(&mut client, 64, &pattern(8 << 10, 2), CMD_FLAG_FUA), None);
    let log = || fs::read_to_string(&log).unwrap();
    let writes = |log: &str| log.lines().filter(|line| line.contains(" Write ")).count();
    let first = log();
    assert!(first.contains("offset=0x8000 count=0x2000 fua=1"), "{first}");
    assert_eq!((writes(&first), first.contains(" Flush ")), (1, false), "{first}");
    assert_eq!(flush(&mut client), None);
    assert!(log().contains(" Flush "), "{}", log());
}

#[test]
fn a_daemon_that_is_asked_to_stop_writes_all_that_is_dirty() {
    for backend in backends() {
        let dir = tempdir();
        let text = config(&[file(dir.path(), "")], LAZY);
        let mut daemon = Daemon::start(&format!("{text}backend = \"{backend}\"\n"), &["s", "c"]);
        let mut raw = RawNbd::connect(&daemon.dir().join("s"), "v").unwrap();
        let data = pattern(3 << 20, 9);
        for at in (0..data.len()).step_by(256 << 10) {
            raw.write(at as u64, &data[at..at + (256 << 10)]).unwrap();
        }
        assert!(counters(&daemon)["dirty_bytes"].as_u64() >= Some(2 << 20));
        assert_eq!(daemon.terminate().code(), Some(0), "{}", daemon.stderr());
        assert!(bytes_at(dir.path(), 0, data.len()) == data, "{backend}");
    }
}

#[test]
fn a_stop_waits_for_slow_drives_as_long_as_they_go_on() {
    let dir = tempdir();
    let path = dir.path().display();
    // Writes run one at a time, 50 a second, which takes 14 s for all pages; a stop without
    // progress takes 11.5 s at most.
    let slow = format!("fault:drive=(file:path={path}/d0,size=64m),latency=20ms,op=write");
    let text = config(&[slow], LAZY).replace("drives = ", "queue-depth = 1\ndrives = ");
    let mut daemon = Daemon::start(&text, &["s", "c"]);
    let mut raw = RawNbd::connect(&daemon.dir().join("s"), "v").unwrap();
    let place = |page: u64| page * (64 << 10);
    (0..700).for_each(|page| raw.write(place(page), &pattern(4096, page + 1)).unwrap());
    assert_eq!(counters(&daemon)["dirty_bytes"], 700 << 12);
    daemon.signal(libc::SIGTERM);
    let status = poll_within(Duration::from_secs(60), || daemon.try_wait());
    assert_eq!(status.map(|status| status.code()), Some(Some(0)), "{}", daemon.stderr());
    for page in 0..700 {
        assert!(bytes_at(dir.path(), place(page), 4096) == pattern(4096, page + 1), "page {page}");
    }
}

/// Sends `count` writes of 1 MiB and hangs up at once; the server goes on with them.
fn hang_up_after_writes(daemon: &Daemon, count: u64) {
    let mut raw = RawNbd::connect(&daemon.dir().join("s"), "v").unwrap();
    for number in 0..count {
        let (at, data) = (number << 20, pattern(1 << 20, number));
        raw.send(&[raw_nbd::request(raw_nbd::WRITE, number, at, 1 << 20), data].concat()).unwrap();
    }
    // Gives the server time to read them.
    thread::sleep(Duration::from_millis(500));
}

#[test]
fn stop_loses_nothing_of_a_full_cache_under_writes() {
    let dir = tempdir();
    let path = dir.path().display();
    // The amount of dirty data stays at its limit for longer than a drive may go without a
    // completion.
    let slow = format!("fault:drive=(file:path={path}/d0,size=128m),latency=500ms,op=write");
    let mut daemon = Daemon::start(&config(&[slow], "size = \"16m\""), &["s", "c"]);
    let mut raw = RawNbd::connect(&daemon.dir().join("s"), "v").unwrap();
    let place = |page: u64| (64 << 20) + page * (64 << 10);
    (0..900).for_each(|page| raw.write(place(page), &pattern(4096, page + 1)).unwrap());
    let clients: Vec<RawNbd> =
        (0..2).map(|_| RawNbd::connect(&daemon.dir().join("s"), "v").unwrap()).collect();
    thread::scope(|scope| {
        for mut client in clients {
            scope.spawn(move || {
                let write = |number: u64| {
                    raw_nbd::request(raw_nbd::WRITE, number, (number % 64) << 20, 1 << 20)
                };
                // Writes until the server hangs up.
                let send =
                    |number| client.send(&[write(number), pattern(1 << 20, number)].concat());
                (0..1000).try_for_each(send).ok()
            });
        }
        thread::sleep(Duration::from_secs(1));
        daemon.signal(libc::SIGTERM);
        let status = poll_within(Duration::from_secs(90), || daemon.try_wait());
        assert!(status.is_some(), "{}", daemon.stderr());
    });
    assert!(!daemon.stderr().contains("did not answer"), "{}", daemon.stderr());
    for page in 0..900 {
        assert!(bytes_at(dir.path(), place(page), 4096) == pattern(4096, page + 1), "page {page}");
    }
}

#[test]
fn stop_of_a_write_through_cache_waits_for_a_slow_drive() {
    let slow = "fault:drive=(ram:size=64m),latency=200ms,op=write";
    let through = "size = \"1m\"\nmode = \"write-through\"";
    let mut daemon = Daemon::start(&config(&[slow.to_owned()], through), &["s", "c"]);
    hang_up_after_writes(&daemon, 32);
    daemon.signal(libc::SIGTERM);
    let status = poll_within(Duration::from_secs(60), || daemon.try_wait());
    assert_eq!(status.map(|status| status.code()), Some(Some(0)), "{}", daemon.stderr());
    assert!(!daemon.stderr().contains("hangs"), "{}", daemon.stderr());
}

#[test]
fn cache_that_writes_through_has_in_file_what_it_acknowledged() {
    let dir = tempdir();
    let through = "size = \"4m\"\nmode = \"write-through\"";
    let mut daemon = Daemon::start(&config(&[file(dir.path(), "")], through), &["s", "c"]);
    let mut raw = RawNbd::connect(&daemon.dir().join("s"), "v").unwrap();
    let data = pattern(1 << 20, 4);
    raw.write(1024, &data).unwrap();
    assert_eq!(counters(&daemon)["dirty_bytes"], 0);
    assert_eq!(raw.read(1024, 1 << 20).unwrap(), data);
    assert!(counters(&daemon)["reads"]["hits"].as_u64() > Some(200), "it is read from memory");
    daemon.kill9();
    assert_eq!(bytes_at(dir.path(), 1024, 1 << 20), data);
}

#[test]
fn write_that_drive_fails_fails_flush_and_reaches_drive_later() {
    let dir = tempdir();
    let path = dir.path().display();
    let bad = format!("fault:drive=(file:path={path}/d0,size=4m),every=2,op=write");
    let mut daemon = Daemon::start(&config(&[bad], LAZY), &["s", "c"]);
    let mut client = connect(&daemon.dir().join("s"), "v").unwrap();
    let (first, second) = (pattern(4096, 1), pattern(4096, 2));
    assert_eq!(write(&mut client, 0, &first, 0), None);
    assert_eq!(flush(&mut client), None, "the first write of the drive succeeds");
    assert_eq!(write(&mut client, 512, &second, 0), None, "it is in memory");
    assert_eq!(flush(&mut client), Some(Errno::Eio), "the second write of the drive fails");
    let counted = counters(&daemon);
    assert_eq!(counted["writes"]["errors"], 1, "{counted}");
    let read = call(&mut client, &request(Command::Read, 512, 8), vec![0; 4096]).unwrap();
    assert!(read.errno.is_none() && read.buffer == second, "memory has it still");
    assert_eq!(flush(&mut client), None, "the drive takes it now");
    assert_eq!(bytes_at(dir.path(), 0, 4096), first);
    assert_eq!(bytes_at(dir.path(), 256 << 10, 4096), second);
    assert_eq!(daemon.terminate().code(), Some(0), "{}", daemon.stderr());
}

#[test]
fn read_only_drive_fails_writes_once_memory_fills_up() {
    let dir = tempdir();
    let path = dir.path().display();
    let bad = format!("fault:drive=(file:path={path}/d0,size=4m),status=eio,op=write");
    let small = "size = \"1m\"\ndirty-max = \"64k\"";
    let mut daemon = Daemon::start(&config(&[bad], small), &["s", "c"]);
    let mut client = connect(&daemon.dir().join("s"), "v").unwrap();
    let failed = (0..64).filter(|page| {
        let errno = write(&mut client, page * 8, &pattern(4096, *page), 0);
        assert!(errno.is_none_or(|errno| errno == Errno::Eio), "{errno:?}");
        errno.is_some()
    });
    let failed = failed.count();
    assert!((64 - 16..64).contains(&failed), "16 pages fit, {failed} of 64 failed");
    assert_eq!(flush(&mut client), Some(Errno::Eio));
    // Acknowledged data can be read, although the drive never took them.
    let read = call(&mut client, &request(Command::Read, 0, 8), vec![0; 4096]).unwrap();
    assert!(read.errno.is_none() && read.buffer == pattern(4096, 0));
    assert_eq!(daemon.try_wait(), None);
    assert_eq!(daemon.terminate().code(), Some(1), "the last flush cannot succeed");
    assert!(daemon.stderr().contains("v: flush: "), "and that is said: {}", daemon.stderr());
}

#[test]
fn a_drive_that_fails_some_writes_only_delays_them() {
    const PAGES: u64 = 300;
    let dir = tempdir();
    let path = dir.path().display();
    let bad = format!("fault:drive=(file:path={path}/d0,size=4m),status=eio,op=write,every=10");
    let small = "size = \"1m\"\ndirty-max = \"64k\"";
    let mut daemon = Daemon::start(&config(&[bad], small), &["s", "c"]);
    let mut client = connect(&daemon.dir().join("s"), "v").unwrap();
    for page in 0..PAGES {
        assert_eq!(write(&mut client, page * 8, &pattern(4096, page), 0), None, "page {page}");
    }
    assert_eq!(daemon.terminate().code(), Some(0), "{}", daemon.stderr());
    for page in 0..PAGES {
        assert_eq!(bytes_at(dir.path(), page * 4096, 4096), pattern(4096, page), "page {page}");
    }
}

#[test]
fn a_stop_writes_all_but_what_the_drive_refuses_to_the_end() {
    const PAGES: u64 = 1024;
    let page_of = |page: u64| pattern(4096, page);
    // The first drive fails writes of page 300, the second every 50th write, the third its flushes.
    for (fault, lost, code, said) in [
        (
            "op=write,status=eio,range=1228800-1232896",
            vec![300],
            1,
            "4096 bytes (first range: 4096 bytes",
        ),
        ("op=write,status=eio,every=50", vec![], 0, "all data is flushed"),
        ("op=flush,status=eio", vec![], 1, "v: flush: "),
    ] {
        let dir = tempdir();
        let path = dir.path().display();
        let bad = format!("fault:drive=(file:path={path}/d0,size=8m),{fault}");
        let mut daemon = Daemon::start(&config(&[bad], LAZY), &["s", "c"]);
        let mut client = connect(&daemon.dir().join("s"), "v").unwrap();
        // Writes the lower half in one piece, and every second page of the upper half.
        for page in (0..PAGES).filter(|page| *page < PAGES / 2 || page % 2 == 1) {
            assert_eq!(write(&mut client, page * 8, &page_of(page), 0), None);
        }
        let begun = Instant::now();
        assert_eq!(daemon.terminate().code(), Some(code), "{fault}: {}", daemon.stderr());
        if fault.contains("op=flush") {
            assert!(begun.elapsed() < Duration::from_secs(8), "a second flush could lie");
        }
        assert!(daemon.stderr().contains(said), "{fault}: {}", daemon.stderr());
        let is_lost = |page: &u64| {
            (*page < PAGES / 2 || page % 2 == 1)
                && bytes_at(dir.path(), page * 4096, 4096) != page_of(*page)
        };
        assert_eq!((0..PAGES).filter(is_lost).collect::<Vec<u64>>(), lost, "{fault}");
    }
}

#[test]
fn stop_ends_with_a_refused_half_page_and_a_stuck_neighbour() {
    let dir = tempdir();
    let path = dir.path().display();
    // Sector 0 of the page is taken, sector 2 is not.
    let half =
        format!("fault:drive=(file:path={path}/d0,size=4m),op=write,status=eio,range=1024-1536");
    let stuck = format!("fault:drive=(file:path={path}/d1,size=4m),op=write,stuck=true");
    let mut text = config(&[half], LAZY);
    text.push_str(&format!(
        "[[drive]]\nname = \"stuck\"\nspec = \"{stuck}\"\n[[volume]]\nname = \"w\"\ndrives = \
         [\"stuck\"]\n[volume.cache]\n{LAZY}\n[[export]]\nvolume = \"w\"\nnbd = \"unix:s\"\n"
    ));
    let mut daemon = Daemon::start(&text, &["s", "c"]);
    let mut client = connect(&daemon.dir().join("s"), "v").unwrap();
    assert_eq!(write(&mut client, 0, &pattern(512, 1), 0), None);
    assert_eq!(write(&mut client, 2, &pattern(512, 2), 0), None);
    let mut other = connect(&daemon.dir().join("s"), "w").unwrap();
    assert_eq!(write(&mut other, 0, &pattern(4096, 3), 0), None);
    let begun = Instant::now();
    assert_eq!(daemon.terminate().code(), Some(1), "{}", daemon.stderr());
    assert!(begun.elapsed() < Duration::from_secs(40), "{}", daemon.stderr());
    assert_eq!(bytes_at(dir.path(), 0, 512), pattern(512, 1));
    assert!(daemon.stderr().contains("volume v: 512 bytes"), "{}", daemon.stderr());
    assert!(daemon.stderr().contains("volume w: 4096 bytes"), "{}", daemon.stderr());
}

#[test]
fn a_drive_that_is_stuck_costs_its_neighbours_no_page_at_a_stop() {
    for (layout, key) in [("linear", "layout = \"linear\""), ("stripe", "chunk = \"64k\"")] {
        let dir = tempdir();
        let path = dir.path().display();
        let stuck = format!("fault:drive=(file:path={path}/d1,size=8m),op=write,stuck=true");
        let drives = [stuck, format!("file:path={path}/d0,size=8m")];
        let text = config(&drives, &LAZY.replace("16m", "32m")).replace("chunk = \"64k\"", key);
        let mut daemon = Daemon::start(&text, &["s", "c"]);
        let mut client = connect(&daemon.dir().join("s"), "v").unwrap();
        let is_stuck = |page: u64| match layout {
            "linear" => page < 2048,
            _ => (page / 16).is_multiple_of(2),
        };
        // The first ones as long writes, which go over both drives of a stripe; then every second
        // one, which is a write of its own.
        let pages = || (0..4096).filter(|page| *page < 512 || page % 2 == 0);
        for page in pages() {
            assert_eq!(write(&mut client, page * 8, &pattern(4096, page), 0), None);
        }
        assert_eq!(daemon.terminate().code(), Some(1), "{layout}: {}", daemon.stderr());
        let said = daemon.stderr();
        let bytes = 4096 * pages().filter(|page| is_stuck(*page)).count();
        let still = format!("drive d0 completes no I/O ({bytes} bytes not written)");
        let lost = format!("v: {bytes} bytes (first range: ");
        let why = format!("since drive d0 did not answer in time ({bytes} bytes not written)");
        assert!([&still, &lost, &why].iter().all(|text| said.contains(*text)), "{layout}: {said}");
        for page in pages().filter(|page| !is_stuck(*page)) {
            let on_drive = match layout {
                "linear" => page - 2048,
                _ => page / 32 * 16 + page % 16,
            };
            let there = bytes_at(dir.path(), on_drive * 4096, 4096) == pattern(4096, page);
            assert!(there, "{layout}: page {page} is lost: {}", daemon.stderr());
        }
    }
}

#[test]
fn a_drive_that_is_stuck_leaves_writers_to_others_their_room() {
    let dir = tempdir();
    let path = dir.path().display();
    let stuck = format!("fault:drive=(file:path={path}/d1,size=8m),op=write,stuck=true");
    let drives = [stuck, format!("file:path={path}/d0,size=8m")];
    let small = "size = \"4m\"\ndirty-max = \"256k\"";
    let text = config(&drives, small).replace("chunk = \"64k\"", "layout = \"linear\"");
    let mut daemon = Daemon::start(&text, &["s", "c"]);
    let socket = daemon.dir().join("s");
    let [mut held, mut client] = [(); 2].map(|()| connect(&socket, "v").unwrap());
    // These writes fill the dirty limit; the rest of them wait.
    for page in 0..100 {
        held.submit(&request(Command::Write, page * 8, 8), pattern(4096, page)).unwrap();
    }
    // Twice as much as may be dirty, to the other drive.
    for page in 2048..2176 {
        assert_eq!(write(&mut client, page * 8, &pattern(4096, page), 0), None);
    }
    // A durable write waits only for its own drive.
    assert_eq!(write(&mut client, 3000 * 8, &pattern(4096, 3000), CMD_FLAG_FUA), None);
    assert_eq!(bytes_at(dir.path(), 952 * 4096, 4096), pattern(4096, 3000));
    assert_eq!(daemon.try_wait(), None);
    daemon.kill9();
    let is_there =
        |page: &u64| bytes_at(dir.path(), page * 4096, 4096) == pattern(4096, 2048 + page);
    assert!((0..128).filter(is_there).count() > 32, "half of them had to be written");
}

#[test]
fn reads_that_a_drive_leaves_unanswered_hold_nobody_of_another() {
    let dir = tempdir();
    let path = dir.path().display();
    let stuck = format!("fault:drive=(file:path={path}/d1,size=8m),op=read,stuck=true");
    let drives = [format!("file:path={path}/d0,size=8m"), stuck];
    let small = "size = \"4m\"\ndirty-max = \"1m\"";
    let text = config(&drives, small).replace("chunk = \"64k\"", "layout = \"linear\"");
    let mut daemon = Daemon::start(&text, &["s", "c"]);
    let socket = daemon.dir().join("s");
    let [mut held, mut client] = [(); 2].map(|()| connect(&socket, "v").unwrap());
    // These reads of the stuck drive need more than all memory, and more than the drive takes at
    // once.
    for piece in 0..300 {
        let sector = 16384 + piece % 128 * 128;
        held.submit(&request(Command::Read, sector, 128), vec![0; 64 << 10]).unwrap();
    }
    thread::sleep(Duration::from_millis(200));
    let begun = Instant::now();
    for page in 0..512 {
        assert_eq!(write(&mut client, page * 8, &pattern(4096, page), 0), None);
    }
    // Sequential reads up to the start of the other drive, so that the cache reads ahead into it.
    for page in 1792..2048 {
        let read = call(&mut client, &request(Command::Read, page * 8, 8), vec![0; 4096]).unwrap();
        assert_eq!(read.errno, None, "page {page}");
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    daemon.kill9();
}

#[test]
fn zeroes_failed_by_one_of_several_drives_change_nothing() {
    let dir = tempdir();
    let path = dir.path().display();
    let bad =
        format!("fault:drive=(file:path={path}/d1,size=8m),op=write-zeroes,status=eio,range=0-8m");
    let drives = [format!("file:path={path}/d0,size=8m"), bad];
    let daemon = Daemon::start(&config(&drives, LAZY), &["s"]);
    let mut client = connect(&daemon.dir().join("s"), "v").unwrap();
    // The first chunk of each drive; the last page is written once more after the flush.
    assert_eq!(write(&mut client, 0, &pattern(128 << 10, 1), 0), None);
    assert_eq!(flush(&mut client), None);
    assert_eq!(write(&mut client, 120, &pattern(4096, 2), 0), None);
    let zeroes = call(&mut client, &request(Command::WriteZeroes, 0, 256), Vec::new()).unwrap();
    assert_eq!(zeroes.errno, Some(Errno::Eio));
    let read = |client: &mut Client| {
        let read = request(Command::Read, 0, 128);
        call(client, &read, vec![0; 64 << 10]).unwrap().buffer
    };
    let seen = read(&mut client);
    assert_eq!(seen[..60 << 10], bytes_at(dir.path(), 0, 60 << 10), "as the drive has it");
    assert_eq!(seen[60 << 10..], pattern(4096, 2), "what was dirty stays");
    assert_eq!(flush(&mut client), None);
    assert_eq!(read(&mut client), bytes_at(dir.path(), 0, 64 << 10));
}

#[test]
fn a_cache_keeps_what_its_drives_do_not() {
    let daemon = Daemon::start(&config(&["null:size=16m"], LAZY), &["s"]);
    let mut raw = RawNbd::connect(&daemon.dir().join("s"), "v").unwrap();
    assert_eq!(raw.read(1 << 20, 4096).unwrap().len(), 4096);
    let data = pattern(8192, 5);
    raw.write(4096, &data).unwrap();
    assert_eq!(raw.read(4096, 8192).unwrap(), data);
}

#[test]
fn a_flush_does_not_wait_for_what_is_written_to_again_after_it() {
    let slow = "fault:drive=(ram:size=8m),op=write,latency=5ms";
    let daemon = Daemon::start(&config(&[slow], "size = \"16m\""), &["s"]);
    let socket = daemon.dir().join("s");
    let stop = AtomicBool::new(false);
    let is_over = || stop.load(Ordering::Relaxed);
    thread::scope(|scope| {
        for seed in 0..3 {
            let mut client = connect(&socket, "v").unwrap();
            let is_over = &is_over;
            scope.spawn(move || {
                let mut dice = SplitMix64::new(seed);
                while !is_over() {
                    write(&mut client, dice.below(2000) * 8, &pattern(4096, 1), 0);
                }
            });
        }
        thread::sleep(Duration::from_secs(1));
        let mut client = connect(&socket, "v").unwrap();
        for _ in 0..3 {
            let begun = Instant::now();
            assert_eq!(flush(&mut client), None);
            // The dirty data take half a second to write; a flush used to wait for as long as
            // writers went on.
            assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn stuck_drive_with_old_pages_does_not_delay_other_pages() {
    for chunk in ["layout = \"linear\"", "chunk = \"64k\"", "chunk = \"4k\""] {
        let dir = tempdir();
        let path = dir.path().display();
        let stuck = format!("fault:drive=(file:path={path}/d1,size=8m),op=write,stuck=true");
        let drives = [stuck, format!("file:path={path}/d0,size=8m")];
        let young = "size = \"32m\"\ndirty-age = \"100ms\"";
        let text = config(&drives, young).replace("chunk = \"64k\"", chunk);
        let daemon = Daemon::start(&text, &["s", "c"]);
        let mut client = connect(&daemon.dir().join("s"), "v").unwrap();
        // Page 4095 lies on the good drive in every layout; the first 512 pages lie on the stuck
        // drive, or on both.
        let last = 4095;
        for page in (0..512).step_by(2) {
            assert_eq!(write(&mut client, page * 8, &pattern(4096, page), 0), None);
        }
        // After this time, the stuck drive's writeback is under way.
        thread::sleep(Duration::from_millis(300));
        assert_eq!(write(&mut client, last * 8, &pattern(4096, last), 0), None);
        let is_there = || bytes_at(dir.path(), 2047 * 4096, 4096) == pattern(4096, last);
        let written = poll_within(Duration::from_secs(5), || is_there().then_some(()));
        assert_eq!(written, Some(()), "{chunk}: {}", counters(&daemon));
    }
}

#[test]
fn a_stop_that_fails_flushes_what_the_other_drives_took() {
    require_clients!("nbdkit");
    let dir = tempdir();
    let (socket, log) = (dir.path().join("n"), dir.path().join("log"));
    let file = format!("logfile={}", log.display());
    let _server = Remote::nbdkit(&socket, &["--filter=log", "memory", "8M", &file]);
    let good = format!("nbd:uri=nbd+unix:///?socket={}", socket.display());
    let bad =
        format!("fault:drive=(file:path={}/d0,size=8m),op=write,status=eio", dir.path().display());
    let text = config(&[bad, good], LAZY).replace("chunk = \"64k\"", "layout = \"linear\"");
    let mut daemon = Daemon::start(&text, &["s", "c"]);
    let mut client = connect(&daemon.dir().join("s"), "v").unwrap();
    for page in (0..4096).step_by(64) {
        assert_eq!(write(&mut client, page * 8, &pattern(4096, page), 0), None);
    }
    assert_eq!(daemon.terminate().code(), Some(1), "{}", daemon.stderr());
    let log = fs::read_to_string(log).unwrap();
    let last_of = |what: &str| log.rfind(what).unwrap_or_else(|| panic!("no{what}in {log}"));
    assert!(last_of(" Flush ") > last_of(" Write "), "{log}");
}

#[test]
fn stop_blames_drives_failing_then_and_not_earlier_ones() {
    let dir = tempdir();
    let path = dir.path().display();
    // Fails one write at the beginning, and another one after more writes than there are.
    let once = format!("fault:drive=(file:path={path}/d0,size=8m),op=write,status=eio,every=40");
    let bad = format!("fault:drive=(file:path={path}/d1,size=8m),op=write,status=eio");
    let text = config(&[once, bad], LAZY).replace("chunk = \"64k\"", "layout = \"linear\"");
    let mut daemon = Daemon::start(&text, &["s", "c"]);
    let mut client = connect(&daemon.dir().join("s"), "v").unwrap();
    let mut failed = 0;
    for page in 0..40 {
        assert_eq!(write(&mut client, page * 8, &pattern(4096, page), 0), None);
        failed += u32::from(flush(&mut client).is_some());
    }
    assert_eq!(failed, 1, "{}", daemon.stderr());
    assert_eq!(flush(&mut client), None, "it takes all now");
    assert_eq!(write(&mut client, 2048 * 8, &pattern(4096, 1), 0), None);
    assert_eq!(daemon.terminate().code(), Some(1), "{}", daemon.stderr());
    let said = daemon.stderr();
    assert!(said.contains("writes to d1 failed"), "{said}");
}

#[test]
fn a_second_signal_ends_a_stop_and_says_what_is_lost_with_it() {
    let dir = tempdir();
    let path = dir.path().display();
    let drives = [
        (format!("file:path={path}/d0,size=8m"), (3, 1024)),
        ("ram:size=8m,block=64k".to_owned(), (256, 128 << 10)),
    ];
    for (drive, (sector, bytes)) in drives {
        let stuck = format!("fault:drive=({drive}),op=write,stuck=true");
        let mut daemon = Daemon::start(&config(&[stuck], LAZY), &["s", "c"]);
        let mut client = connect(&daemon.dir().join("s"), "v").unwrap();
        assert_eq!(write(&mut client, sector, &pattern(bytes, 1), 0), None);
        daemon.signal(15);
        thread::sleep(Duration::from_secs(1));
        assert_eq!(daemon.terminate().code(), Some(1), "{}", daemon.stderr());
        let start = sector * 512;
        let lost = format!("v: {bytes} bytes (first range: {bytes} bytes at offset {start}) lost");
        let said = daemon.stderr();
        assert!(said.contains("by a second signal") && said.contains(&lost), "{said}");
    }
}

#[test]
fn drive_of_stripe_that_takes_no_writes_leaves_others_theirs() {
    let dir = tempdir();
    let path = dir.path().display();
    let good = format!("file:path={path}/d0,size=4m");
    let bad = format!("fault:drive=(file:path={path}/d1,size=4m),status=eio,latency=30ms,op=write");
    let small = "size = \"2m\"\ndirty-max = \"128k\"";
    let mut daemon = Daemon::start(&config(&[good, bad], small), &["s", "c"]);
    let mut client = connect(&daemon.dir().join("s"), "v").unwrap();
    // Chunks of 16 pages, the odd ones of the drive that fails.
    let place = |drive: u64, page: u64| (page / 16 * 32 + drive * 16 + page % 16) * 8;
    let fails = |client: &mut Client, drive, seed| {
        let pages = 0..128u64;
        let data = |page| pattern(4096, page + seed);
        let failed =
            pages.filter(|page| write(client, place(drive, *page), &data(*page), 0).is_some());
        failed.collect::<Vec<u64>>()
    };
    let failed = fails(&mut client, 1, 1);
    assert!((64..128).contains(&failed.len()), "a share of 8 to all of 32 fits: {failed:?}");
    for round in 0..4 {
        let failed = fails(&mut client, 0, round);
        assert_eq!(failed, Vec::<u64>::new(), "round {round}: {}", counters(&daemon));
    }
    // A write to a page that is dirty already needs no more room, even while the cache tries again
    // to write this page to the drive.
    for page in (0..64).filter(|page| !failed.contains(page)) {
        let data = pattern(4096, 77 + page);
        assert_eq!(write(&mut client, place(1, page), &data, 0), None, "page {page}");
        thread::sleep(Duration::from_millis(15));
    }
    assert_eq!(flush(&mut client), Some(Errno::Eio));
    assert_eq!(write(&mut client, place(0, 0), &pattern(4096, 9), 0), None);
    daemon.kill9();
    assert_eq!(bytes_at(dir.path(), 4096, 4096), pattern(4096, 1 + 3), "the flush wrote its own");
}

#[test]
fn drive_without_space_says_so_at_flush_and_at_durable_write() {
    let dir = tempdir();
    let path = dir.path().display();
    let full = format!("fault:drive=(file:path={path}/d0,size=4m),status=enospc,op=write");
    let full_error = Some(Errno::Enospc);
    // Each write's error is reported once: by the write's own answer where the cache writes
    // through.
    for (mode, at_write, at_flush, exit) in
        [("write-back", None, full_error, 1), ("write-through", full_error, None, 0)]
    {
        let keys = format!("{LAZY}\nmode = \"{mode}\"");
        let mut daemon = Daemon::start(&config(&[&full], &keys), &["s", "c"]);
        let mut client = connect(&daemon.dir().join("s"), "v").unwrap();
        assert_eq!(write(&mut client, 0, &pattern(4096, 1), 0), at_write, "{mode}");
        let mut other = connect(&daemon.dir().join("s"), "v").unwrap();
        assert_eq!(flush(&mut other), at_flush, "{mode}");
        let durable = write(&mut client, 64, &pattern(4096, 1), CMD_FLAG_FUA);
        assert_eq!(durable, full_error, "{mode}");
        drop((client, other));
        assert_eq!(daemon.terminate().code(), Some(exit), "{mode}: {}", daemon.stderr());
    }
}

#[test]
fn failed_writes_through_take_no_room_and_are_not_read_back() {
    let dir = tempdir();
    let path = dir.path().display();
    let bad =
        format!("fault:drive=(file:path={path}/d0,size=64m),status=eio,op=write,range=1m-32m");
    let daemon =
        Daemon::start(&config(&[bad], "size = \"1m\"\nmode = \"write-through\""), &["s", "c"]);
    let (mut writer, mut other) = {
        let client = || connect(&daemon.dir().join("s"), "v").unwrap();
        (client(), client())
    };
    let sector = |mib: u64| mib * 2048;
    for page in 0..2000 {
        let failed = write(&mut writer, sector(1) + page * 8, &pattern(4096, 1), 0);
        assert_eq!(failed, Some(Errno::Eio), "page {page}");
    }
    for (mib, flags) in [(40, 0), (41, CMD_FLAG_FUA)] {
        let data = pattern(64 << 10, mib);
        assert_eq!(write(&mut other, sector(mib), &data, flags), None, "{}", counters(&daemon));
        assert_eq!(bytes_at(dir.path(), mib << 20, 64 << 10), data);
    }
    // More than may be dirty: the part that fills the room fails, and takes none of others.
    for at in 0..30 {
        let failed = write(&mut writer, sector(2), &pattern(1 << 20, at), 0);
        assert_eq!(failed, Some(Errno::Eio), "{at}");
        let good = write(&mut other, sector(48) + at * 8, &pattern(4096, at), 0);
        assert_eq!(good, None, "{at}: {}", counters(&daemon));
    }
    let large = pattern(8 << 20, 3);
    assert_eq!(write(&mut other, sector(50), &large, 0), None);
    assert_eq!(bytes_at(dir.path(), 50 << 20, 8 << 20), large);
    assert_eq!(flush(&mut other), None);
    for page in [0, 1999] {
        let read = request(Command::Read, sector(1) + page * 8, 8);
        let read = call(&mut other, &read, vec![1; 4096]).unwrap();
        assert_eq!((read.errno, read.buffer), (None, vec![0; 4096]), "page {page}");
    }
}
