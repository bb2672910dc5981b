//! A guest's disk whose daemon is killed under load, and comes back: the guest waits and goes on.
//!
//! fio writes and verifies by both queues while the daemon is killed three times, and in between
//! stopped as for an upgrade. No request may be lost, fail, or leave old data behind; the next
//! daemon repeats the requests in flight. Each daemon has another back end and other threads.
//! Writes that only the memory of a killed daemon held are lost, and the guest is told. Stopping a
//! daemon for longer than its drive's timeout fails no I/O of a file system.

use std::fs::File;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use millrace_tests::guest::{Guest, Image, StorageDaemon, config};
use millrace_tests::raw_nbd::RawNbd;
use millrace_tests::serving::backends;
use millrace_tests::{Daemon, poll_within, tempdir};

/// Both jobs keep writes, and the reads that verify them, in flight until they are told to stop.
const LOAD: &str = "cd /tmp; until test -e stop; do fio --name=load --filename=/dev/vda --ioengine=libaio --direct=1 \
    --rw=randwrite --bssplit=4k/60:16k/30:64k/10 --iodepth=16 --numjobs=2 --size=32m \
    --offset_increment=64m --verify=crc32c --verify_fatal=1 --verify_backlog=64 \
    --serialize_overlap=1 --cpus_allowed=0,1 --cpus_allowed_policy=split \
    --time_based --runtime=4 || exit 1; done";
/// Requests that must be done after a restart before the next one.
const PROGRESS: u64 = 300;
/// QEMU tries once per second to connect anew.
const RECOVERY_LIMIT: Duration = Duration::from_secs(60);

/// Reads and writes that the guest's disk has done.
fn completed(guest: &mut Guest) -> u64 {
    // Fields 1 and 5 of Documentation/block/stat.rst.
    let said = guest.succeed("awk '{ print $1 + $5 }' /sys/block/vda/stat");
    said.trim().parse().unwrap()
}

/// Reads and writes in flight.
fn in_flight(guest: &mut Guest) -> [u64; 2] {
    let said = guest.succeed("cat /sys/block/vda/inflight");
    let counts: Vec<u64> = said.split_whitespace().map(|count| count.parse().unwrap()).collect();
    counts.try_into().unwrap()
}

/// Waits until requests are in flight that nobody answers.
fn hangs(guest: &mut Guest) -> [u64; 2] {
    // The guest sees the last answers in this time.
    sleep(Duration::from_millis(300));
    let counts = poll_within(RECOVERY_LIMIT, || {
        // fio may be between two of its runs.
        Some(in_flight(guest)).filter(|counts| *counts != [0, 0])
    });
    counts.unwrap_or_else(|| panic!("there is no load: {}", guest.succeed("cat /tmp/fio.log")))
}

/// Waits until the disk has done more than before, and returns how many requests it has done.
fn goes_on(guest: &mut Guest, before: u64) -> u64 {
    let start = Instant::now();
    let done = poll_within(RECOVERY_LIMIT, || {
        sleep(Duration::from_millis(50));
        Some(completed(guest)).filter(|done| *done >= before + PROGRESS)
    });
    let done = done.unwrap_or_else(|| {
        panic!("no progress for {RECOVERY_LIMIT:?}, {:?} in flight", in_flight(guest))
    });
    println!("{} requests more after {:.1} s", done - before, start.elapsed().as_secs_f64());
    done
}

/// The daemon for the time after `round` restarts.
fn start(dir: &Path, round: usize) -> Daemon {
    let backends = backends();
    let threads = ["\"queue\"", "\"shared\"", "1"][round % 3];
    let config = config(dir, backends[round % backends.len()]);
    Daemon::start(&format!("{config}threads = {threads}\n"), &[])
}

#[test]
fn a_guest_under_load_outlives_three_kills_and_three_restarts_of_the_daemon() {
    let Some(image) = Image::build() else { return };
    let dir = tempdir();
    File::create(dir.path().join("disk")).unwrap().set_len(256 << 20).unwrap();
    let mut daemon = start(dir.path(), 0);
    let mut guest = Guest::boot(&image, &dir.path().join("vm"));
    // Nothing writes to this area again.
    guest.succeed("yes 'as it was before' | head -c 8388608 >/tmp/before");
    guest.succeed("dd if=/tmp/before of=/dev/vda bs=1M seek=200 conv=fsync");

    guest.start("fio", LOAD);
    let (mut done, mut writes_hung) = (0, 0);
    let ends = [Daemon::kill9, Daemon::terminate].repeat(3);
    for (round, end) in ends.into_iter().enumerate() {
        goes_on(&mut guest, done);
        let status = end(&mut daemon);
        println!("{status}: {}", daemon.stderr());
        // Every other end is one that was asked for.
        assert!(round % 2 == 0 || status.success(), "{status}");
        let [reads, writes] = hangs(&mut guest);
        println!("{reads} reads and {writes} writes in flight");
        writes_hung += writes;
        done = completed(&mut guest);
        daemon = start(dir.path(), round + 1);
    }
    assert!(writes_hung > 0, "writes were in flight at least once");
    goes_on(&mut guest, done);
    guest.succeed("touch /tmp/stop");
    let said = guest.finish("fio", Duration::from_secs(180));
    assert!(said.contains("err= 0"), "{said}");

    guest.succeed("echo 3 >/proc/sys/vm/drop_caches");
    guest.succeed("dd if=/dev/vda bs=1M skip=200 count=8 | cmp - /tmp/before");
    let mut nbd = RawNbd::connect(&dir.path().join("nbd"), "v").unwrap();
    let expected: Vec<u8> = b"as it was before\n".iter().copied().cycle().take(1 << 20).collect();
    assert!(nbd.read(200 << 20, 1 << 20).unwrap() == expected);
    guest.assert_no_complaints();
    drop(guest);
    assert_eq!(daemon.terminate().code(), Some(0), "{}", daemon.stderr());
}

/// A flush of the guest's disk, and nothing else.
const FSYNC: &str = "dd if=/dev/zero of=/dev/vda bs=4096 count=0 conv=notrunc,fsync";

/// The first byte of the guest's first disk block.
fn block(guest: &mut Guest) -> String {
    guest.succeed("dd if=/dev/vda bs=4096 count=1 iflag=direct 2>/dev/null | head -c 1")
}

#[test]
fn a_guest_hears_by_its_next_fsync_that_a_killed_daemon_lost_what_was_not_flushed() {
    let Some(image) = Image::build() else { return };
    let dir = tempdir();
    File::create(dir.path().join("disk")).unwrap().set_len(64 << 20).unwrap();
    let cache = "[volume.cache]\nsize = \"32m\"\ndirty-age = \"600s\"\n[server]";
    let cached = |backend| config(dir.path(), backend).replace("[server]", cache);
    let mut daemon = Daemon::start(&cached(backends()[0]), &[]);
    let mut guest = Guest::boot(&image, &dir.path().join("vm"));
    let write = |guest: &mut Guest, byte: char, then: &str| {
        guest.succeed(&format!(
            "yes {byte} | tr -d '\\n' | dd of=/dev/vda bs=4096 count=1 iflag=fullblock \
             oflag=direct conv=notrunc{then} 2>/dev/null"
        ));
    };
    let fsync = |guest: &mut Guest| guest.run_within(FSYNC, RECOVERY_LIMIT).0;
    for (backend, kills) in [(backends()[0], true), ("epoll", true), (backends()[0], false)] {
        write(&mut guest, 'A', ",fsync");
        write(&mut guest, 'B', "");
        assert_eq!(block(&mut guest), "B");
        let status = if kills { daemon.kill9() } else { daemon.terminate() };
        assert!(kills || status.success(), "{status}: {}", daemon.stderr());
        daemon = Daemon::start(&cached(backend), &[]);
        assert_eq!(block(&mut guest), if kills { "A" } else { "B" });
        // Once, as from a disk that lost its cache; never after a stop that was asked for.
        assert_eq!(fsync(&mut guest) != 0, kills, "{}", daemon.stderr());
        assert_eq!(fsync(&mut guest), 0);
        let said = daemon.stderr();
        assert_eq!(
            said.contains("the last daemon ended before it flushed writes"),
            kills,
            "{said}"
        );
    }
    drop(guest);
    assert_eq!(daemon.terminate().code(), Some(0), "{}", daemon.stderr());
}

/// Its disk is `write through` there, so that it sends no flushes.
#[test]
fn a_guest_of_another_server_loses_nothing_that_it_synced_under_a_cache() {
    millrace_tests::require_clients!("qemu-storage-daemon");
    let Some(image) = Image::build() else { return };
    let dir = tempdir();
    let disk = dir.path().join("disk");
    File::create(&disk).unwrap().set_len(64 << 20).unwrap();
    let cache = "[volume.cache]\nsize = \"32m\"\ndirty-age = \"600s\"\n[server]";
    let other = StorageDaemon::start(dir.path());
    let mut guest = Guest::boot(&image, &dir.path().join("vm"));
    assert_eq!(guest.succeed("cat /sys/block/vda/cache_type").trim(), "write through");
    drop(other);
    for (place, backend) in backends().iter().enumerate() {
        let config = config(dir.path(), backend);
        let mut daemon = Daemon::start(&config.replace("[server]", cache), &[]);
        guest.succeed(&format!(
            "yes {place} | tr -d '\\n' | head -c 65536 | dd of=/dev/vda bs=4k seek={} \
             iflag=fullblock conv=notrunc,fsync",
            place * 16
        ));
        daemon.kill9();
        let written = std::fs::read(&disk).unwrap();
        let synced = &written[place << 16..][..1 << 16];
        assert!(synced.iter().all(|byte| *byte == b'0' + place as u8), "{backend}");
    }
}

/// Writes, flushes and discards of a file system, until they are told to stop.
const FILES: &str = "cd /tmp; until test -e stop; do fio --name=f --directory=/mnt --rw=randwrite \
    --bs=4k --size=4m --rate_iops=40 --fsync=4 --verify=crc32c --verify_fatal=1 --unlink=1 --time_based \
    --runtime=3 || exit 1; done";

#[test]
fn a_file_system_outlives_a_daemon_that_is_stopped_for_longer_than_its_timeout() {
    let Some(image) = Image::build() else { return };
    let dir = tempdir();
    File::create(dir.path().join("disk")).unwrap().set_len(256 << 20).unwrap();
    let start = |backend| {
        // Each flush takes so long that one is in flight whenever the daemon stops.
        let plain = format!("file:path={}/disk", dir.path().display());
        let slow = format!("fault:drive=({plain}),latency=100ms,op=flush");
        let config = config(dir.path(), backend).replace(&plain, &slow);
        Daemon::start(&config.replace("[[volume]]", "timeout = \"2s\"\n[[volume]]"), &[])
    };
    let mut daemon = start(backends()[0]);
    let mut guest = Guest::boot(&image, &dir.path().join("vm"));
    guest.succeed("mkfs.ext4 -q /dev/vda && mount -t ext4 -o discard /dev/vda /mnt");
    guest.start("fio", FILES);
    for (round, backend) in backends().iter().enumerate() {
        if round > 0 {
            assert_eq!(daemon.terminate().code(), Some(0), "{}", daemon.stderr());
            daemon = start(backend);
        }
        for _ in 0..2 {
            sleep(Duration::from_secs(2));
            daemon.signal(libc::SIGSTOP);
            sleep(Duration::from_secs(5));
            daemon.signal(libc::SIGCONT);
        }
        guest.succeed("touch /mnt/writable && sync");
        assert!(!daemon.stderr().contains("timed out"), "{backend}: {}", daemon.stderr());
    }
    guest.succeed("touch /tmp/stop");
    let said = guest.finish("fio", Duration::from_secs(180));
    assert!(said.contains("err= 0"), "{said}");
    guest.succeed("umount /mnt && e2fsck -fn /dev/vda");
    guest.assert_no_complaints();
    drop(guest);
    assert_eq!(daemon.terminate().code(), Some(0), "{}", daemon.stderr());
}
