//! Guest memory that changes, goes away or is truncated while requests use it.
//!
//! A region stays mapped until the last request in it has ended, and no longer; the tests read this
//! process's own list of mappings. Every test runs on both back ends.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::vhost_support::guest::{GET_ID, Guest, IN, NEXT, OUT, WRITE};
use crate::vhost_support::wire::{NEED_REPLY, VERSION, code, words};
use crate::vhost_support::{BACKENDS, Export, faulty, until, volume};
use millrace_drives::{Effect, FaultCache, FaultControl, FaultRule};
use millrace_reactor::Backend;

const MIB: u64 = 1 << 20;
/// Far less than an answer may wait for requests in memory that goes.
const WHILE: Duration = Duration::from_secs(2);
/// Longest time for which an answer waits for requests in memory that is removed.
const REMOVAL_WAIT: Duration = Duration::from_secs(5);

/// Bytes of each mapping of the guest's memory that this process has.
fn maps(guest: &Guest) -> Vec<u64> {
    let inode = guest.memory.file.metadata().unwrap().ino().to_string();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let bytes = |line: &str| {
        let mut words = line.split(' ');
        let (from, to) = words.next()?.split_once('-')?;
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let ours = line.contains("memfd:guest") && words.any(|word| word == inode);
        ours.then_some(number(to)? - number(from)?)
    };
    maps.lines().filter_map(bytes).collect()
}

/// Bytes of the guest's memory that are mapped beyond the test's own mapping of it.
fn mapped(guest: &Guest) -> u64 {
    maps(guest).iter().sum::<u64>() - guest.memory.len
}

/// A guest whose rings and data are in regions of their own, on a drive that can hold requests.
fn split(backend: Backend) -> (Export, Guest, FaultControl, [[u64; 4]; 3]) {
    split_on(backend, "ram:size=16m")
}

fn split_on(backend: Backend, spec: &str) -> (Export, Guest, FaultControl, [[u64; 4]; 3]) {
    let (volume, control) = faulty(spec, FaultCache::Inner);
    let export = Export::of(backend, &[volume], |_| {});
    let mut guest = Guest::connect(&export.socket(0), 1);
    guest.negotiate(|offered| offered);
    let rings = guest.memory.region(0, guest.data);
    let low = guest.memory.region(guest.data, MIB);
    let high = guest.memory.region(guest.data + MIB, 7 * MIB);
    assert!(guest.set_memory(&[rings, low, high]));
    guest.start(0, 64, 0);
    (export, guest, control, [rings, low, high])
}

/// Runs on both back ends at the same time: an answer to a removal may take five seconds.
fn on_both(body: impl Fn(Backend) + Sync) {
    std::thread::scope(|scope| {
        for backend in BACKENDS {
            let body = &body;
            scope.spawn(move || body(backend));
        }
    });
}

fn stick(guest: &mut Guest, control: &FaultControl, slots: std::ops::Range<u16>) {
    control.add_rule(FaultRule::always(Effect::Stick));
    let (before, count) = (control.struck(), u64::from(slots.end - slots.start));
    for slot in slots {
        let data = guest.data + MIB + 4096 * u64::from(slot);
        guest.submit(0, slot, (IN, 0), (data, 4096));
    }
    until("requests stick", || control.struck() == before + count);
    control.clear_rules();
}

#[test]
fn removed_region_stays_mapped_until_its_last_request_ends() {
    on_both(|backend| {
        let (export, mut guest, control, [_, _, high]) = split(backend);
        let all = guest.memory.len;
        guest.write(0, 0, &[6; 4096]);
        assert_eq!(mapped(&guest), all);
        stick(&mut guest, &control, 0..4);
        // The answer waits for the requests, but not forever.
        assert!(guest.remove_memory(high));
        assert_eq!(mapped(&guest), all, "a drive may write to it still");
        // Requests in the remaining memory go on meanwhile.
        guest.submit(0, 8, (IN, 0), (guest.data, 4096));
        assert_eq!(guest.wait(0, 1), [(24, 4097)]);
        control.release_stuck();
        guest.wait(0, 4);
        assert_eq!((0..4).map(|slot| guest.status(0, slot)).max(), Some(0));
        assert_eq!(guest.memory.get(guest.data + MIB, 4 * 4096), [6; 4 * 4096]);
        until("it is unmapped then", || mapped(&guest) == all - 7 * MIB);
        assert!(guest.add_memory(high));
        assert_eq!(mapped(&guest), all);
        guest.submit(0, 0, (IN, 0), (guest.data + MIB, 4096));
        guest.wait(0, 1);
        assert_eq!(guest.status(0, 0), 0);
        assert!(guest.remove_memory(high));
        assert_eq!(
            mapped(&guest),
            all - 7 * MIB,
            "nothing is in flight, so the answer means unmapped"
        );
        drop(guest);
        export.works();
        export.stop();
    });
}

#[test]
fn memory_is_added_at_once_and_removed_when_done() {
    on_both(|backend| {
        let (export, mut guest, control, [rings, low, high]) = split(backend);
        let all = guest.memory.len;
        guest.write(0, 0, &[6; 4096]);
        assert!(guest.set_memory(&[rings, high]));
        stick(&mut guest, &control, 0..4);
        // An answer that waits for the requests takes REMOVAL_WAIT every time. An answer that does
        // not wait is that late only now and then, on a busy machine.
        let at_once = (0..5).any(|round| {
            assert!(round == 0 || guest.remove_memory(low));
            let start = Instant::now();
            assert!(guest.add_memory(low));
            start.elapsed() < REMOVAL_WAIT / 2
        });
        assert!(at_once, "what is added is waited for");
        assert_eq!(mapped(&guest), all);
        assert_eq!(guest.used_idx(0), 1, "none of them was answered meanwhile");
        // Also where older requests lie in a list that lacks what was added since.
        let (start, released) = (Instant::now(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(WHILE);
                released.store(true, Ordering::SeqCst);
                control.release_stuck();
            });
            assert!(guest.remove_memory(high));
            let waited = released.load(Ordering::SeqCst) || start.elapsed() >= REMOVAL_WAIT;
            assert!(waited, "they were in flight");
        });
        until("they are not any more", || mapped(&guest) == all - 7 * MIB);
        guest.wait(0, 4);
        assert_eq!((0..4).map(|slot| guest.status(0, slot)).max(), Some(0));
        drop(guest);
        export.works();
        export.stop();
    });
}

#[test]
fn a_second_session_on_a_connection_has_nothing_of_the_first() {
    on_both(|backend| {
        let (export, mut guest, control, [rings, low, high]) = split(backend);
        let all = guest.memory.len;
        guest.write(0, 0, &[6; 4096]);
        // As QEMU does where a device is unplugged, and another one made on its chardev: rings are
        // stopped, and memory is not taken away.
        assert_eq!(guest.stop(0), 1);
        guest.negotiate(|offered| offered);
        until("the old memory is gone", || mapped(&guest) == 0);
        guest.memory.put(0, &vec![0; guest.data as usize]);
        for region in [rings, low, high] {
            assert!(guest.add_memory(region));
        }
        assert_eq!(mapped(&guest), all);
        guest.start(0, 64, 0);
        assert_eq!(guest.read(0, 0, 4096), [6; 4096]);
        // A second session begins in the midst of requests: they end before the first one does.
        stick(&mut guest, &control, 0..4);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(WHILE / 10);
                control.release_stuck();
            });
            guest.wire.must(code::SET_OWNER, &[], &[]);
            assert_eq!((0..4).map(|slot| guest.status(0, slot)).max(), Some(0));
        });
        until("the ring is gone", || export.stats().queues == 0);
        guest.wire.must(code::SET_FEATURES, &words(&[guest.features]), &[]);
        until("the memory is gone", || mapped(&guest) == 0);
        guest.memory.put(0, &vec![0; guest.data as usize]);
        guest.share();
        guest.start(0, 64, 0);
        assert_eq!(guest.read(0, 0, 4096), [6; 4096]);
        assert_eq!(export.said(), Vec::<String>::new());
        drop(guest);
        export.works();
        export.stop();
    });
}

#[test]
fn requests_in_flight_end_in_their_ring_when_it_moves() {
    on_both(|backend| {
        let (export, mut guest, control, [_, low, high]) = split(backend);
        stick(&mut guest, &control, 0..4);
        assert!(guest.set_memory(&[low, high]));
        export.until_said("its ring is not in the new guest memory");
        control.release_stuck();
        until("they end", || export.stats().in_flight == 0);
        until("nothing is kept for them", || mapped(&guest) == 8 * MIB);
        // The broken ring is logged once.
        assert_eq!(export.said().len(), 1, "{:?}", export.said());
        guest.share();
        guest.reset();
        guest.write(0, 0, &[1; 512]);
        drop(guest);
        export.works();
        export.stop();
    });
}

#[test]
fn memory_that_changes_all_time_under_load_never_costs_byte() {
    let dir = tempfile::tempdir().unwrap();
    let file = format!("file:path={},size=16m", dir.path().join("d").display());
    for (backend, spec) in BACKENDS.into_iter().flat_map(|b| [(b, "ram:size=16m"), (b, &*file)]) {
        let (export, mut guest, _, [rings, low, high]) = split_on(backend, spec);
        let all = guest.memory.len;
        for round in 0..60u64 {
            let word = (round as u8).wrapping_mul(7);
            for slot in 0..16u16 {
                let at = guest.data + 4096 * u64::from(slot);
                guest.memory.put(at, &[word ^ slot as u8; 4096]);
                guest.submit(0, slot, (OUT, 8 * u64::from(slot)), (at, 4096));
            }
            match round % 4 {
                0 => assert!(guest.remove_memory(high)),
                1 => assert!(guest.add_memory(high)),
                2 => guest.share(),
                _ => assert!(guest.set_memory(&[high, rings, low])),
            }
            guest.wait(0, 16);
            for slot in 0..16u16 {
                assert_eq!(guest.status(0, slot), 0);
                let at = guest.data + 64 * 1024 + 4096 * u64::from(slot);
                guest.submit(0, slot, (IN, 8 * u64::from(slot)), (at, 4096));
            }
            guest.wait(0, 16);
            for slot in 0..16u16 {
                let at = guest.data + 64 * 1024 + 4096 * u64::from(slot);
                assert_eq!(guest.memory.get(at, 4096), [word ^ slot as u8; 4096]);
            }
            if round % 4 == 1 {
                assert_eq!(mapped(&guest), all);
            }
        }
        assert_eq!(export.said(), Vec::<String>::new());
        export.stop();
    }
}

#[test]
fn memory_cut_off_under_requests_breaks_that_device_only() {
    let dir = tempfile::tempdir().unwrap();
    let file = format!("file:path={},size=16m", dir.path().join("d").display());
    for (backend, spec) in BACKENDS.into_iter().flat_map(|b| [(b, "ram:size=16m"), (b, &*file)]) {
        let export = Export::of(backend, &[volume(spec), volume("ram:size=16m")], |_| {});
        let mut other = Guest::ready(&export.socket(1), &[64]);
        let mut guest = Guest::ready(&export.socket(0), &[64, 64]);
        let (data, len) = (guest.data, guest.memory.len);
        guest.memory.file.set_len(data + MIB).unwrap();
        for slot in 0..16 {
            let kind = if slot % 2 == 0 { IN } else { OUT };
            guest.submit(0, slot, (kind, 0), (data + MIB + 8192 * u64::from(slot), 8192));
        }
        // Some requests fail and some read zeroes; those taken before the damage was seen are
        // answered.
        until("they are answered or their ring is broken", || {
            export.stats().in_flight == 0 && export.stats().requests > 0
        });
        other.write(0, 0, &[9; 4096]);
        assert_eq!(other.read(0, 0, 4096), [9; 4096]);
        // Also the rings.
        guest.memory.file.set_len(0).unwrap();
        for ring in &guest.rings {
            crate::vhost_support::guest::ring(&ring.kick);
        }
        export.until_said("queue 0 is out of service until the guest resets the device: ");
        export.until_said("queue 1 is out of service until the guest resets the device: ");
        assert_eq!(export.said().len(), 2, "a line for each queue: {:?}", export.said());
        assert_eq!(other.read(0, 0, 4096), [9; 4096]);
        guest.memory.file.set_len(len).unwrap();
        drop(guest);
        export.works();
        export.stop();
    }
}

#[test]
fn refused_memory_changes_leave_all_as_it_was() {
    on_both(|backend| {
        let (export, mut guest, _, [rings, low, high]) = split(backend);
        let all = guest.memory.len;
        let unknown = [guest.memory.region(0, 4096), guest.memory.region(all, 4096)];
        for round in 0..3 {
            for region in [rings, low, high, unknown[0], [1 << 60, 1 << 50, 1 << 60, 0]] {
                assert!(!guest.add_memory(region));
            }
            for region in unknown {
                assert!(!guest.remove_memory(region));
            }
            guest.write(0, round, &[8; 4096]);
            assert_eq!(guest.read(0, round, 4096), [8; 4096]);
            assert_eq!(mapped(&guest), all);
            assert!(guest.remove_memory(high));
            assert!(guest.add_memory(high));
        }
        export.until_said("memory regions overlap: ");
        // The error cannot be told to a frontend that asks for no answer, so its connection ends.
        let payload = [words(&[0]), words(&low)].concat();
        let fd = [guest.memory.file.as_fd()];
        assert!(guest.wire.send(code::ADD_MEM_REG, VERSION, &payload, &fd));
        guest.wire.until_closed();
        export.works_after(guest);
    });
}

#[test]
fn frontend_without_reply_ack_is_cut_off_by_a_refusal() {
    let export = Export::one(Backend::Auto, "ram:size=16m");
    let guest = Guest::connect(&export.socket(0), 1);
    guest.wire.ask_number(code::GET_FEATURES);
    let protocol = guest.wire.ask_number(code::GET_PROTOCOL_FEATURES);
    let without = protocol & !(1 << 3);
    guest.wire.send(code::SET_PROTOCOL_FEATURES, VERSION, &words(&[without]), &[]);
    guest.wire.send(code::SET_OWNER, VERSION, &[], &[]);
    let region = guest.memory.region(0, 4096);
    let payload = [words(&[0]), words(&region)].concat();
    assert!(guest.wire.send(code::REM_MEM_REG, VERSION | NEED_REPLY, &payload, &[]));
    // If the connection went on, the frontend would wait for an answer that never comes.
    let end = std::io::Read::read(&mut &guest.wire.stream, &mut [0; 64]);
    assert!(!end.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock), "cut off");
    export.works_after(guest);
}

#[test]
fn memory_tables_that_make_no_sense_are_refused() {
    let export = Export::one(Backend::Auto, "ram:size=16m");
    let mut guest = Guest::connect(&export.socket(0), 1);
    let len = guest.memory.len;
    let whole = guest.memory.region(0, len);
    let mut wrong = vec![
        vec![guest.memory.region(0, len + 4096)],
        vec![guest.memory.region(4096, len)],
        vec![[u64::MAX - 4095, 8192, 0, 0]],
        vec![[0, 8192, u64::MAX - 4095, 0]],
        vec![[0, 8192, 0, u64::MAX - 4095]],
        vec![[0, 0, 0, 0]],
        vec![[0, u64::MAX, 0, 0]],
        vec![whole, whole],
    ];
    wrong.push(vec![guest.memory.region(0, 8192), guest.memory.region(4096, 8192)]);
    for regions in wrong {
        guest.negotiate(|offered| offered);
        assert!(!guest.set_memory(&regions), "{regions:x?}");
        assert!(export.said().len() <= 11, "{:?}", export.said());
        let memory = guest.memory;
        guest = Guest::connect(&export.socket(0), 1);
        guest.memory = memory;
    }
    guest.negotiate(|offered| offered);
    assert!(guest.set_memory(&[whole]));
    assert!(!guest.remove_memory(guest.memory.region(0, 4096)), "no such region");
    drop(guest);
    let guest = Guest::connect(&export.socket(0), 1);
    // Files that have no pages to map.
    let (pipe, _other) = std::io::pipe().unwrap();
    let dir = std::fs::File::open("/").unwrap();
    let zero = std::fs::File::open("/dev/zero").unwrap();
    let path = format!("/proc/self/fd/{}", guest.memory.file.as_raw_fd());
    let read_only = std::fs::File::open(path).unwrap();
    drop(guest);
    let pipe = std::fs::File::from(std::os::fd::OwnedFd::from(pipe));
    for file in [pipe, dir, zero, read_only] {
        let mut guest = Guest::connect(&export.socket(0), 1);
        guest.negotiate(|offered| offered);
        let region = guest.memory.region(0, 4096);
        let file = std::mem::replace(&mut guest.memory.file, file);
        assert!(!guest.set_memory(&[region]));
        drop((guest, file));
    }
    export.works();
    export.stop();
}

#[test]
fn requests_into_scattered_lost_memory_cost_no_mappings() {
    for backend in BACKENDS {
        let export = Export::one(backend, "ram:size=16m");
        let mut guest = Guest::ready(&export.socket(0), &[1024]);
        let (data, len) = (guest.data, guest.memory.len);
        // Answered at once, each in 20 pages of its own with one between.
        let each = 20 * 8192;
        for head in 0..32 {
            let (at, first) = (data + head * each, 32 * head as u16);
            let header = guest.header(0, head as u16, GET_ID, 0);
            guest.describe(0, first, header, NEXT, first + 1);
            for piece in 0..20u16 {
                let (from, next) = (at + 8192 * u64::from(piece), first + piece + 1);
                guest.describe(0, next, (from, 1), NEXT | WRITE, next + 1);
            }
            guest.describe(0, first + 21, (guest.status_at(0, head as u16), 1), WRITE, 0);
        }
        guest.memory.file.set_len(data).unwrap();
        (0..32).for_each(|head| guest.offer(0, 32 * head));
        guest.publish(0);
        export.until_said("queue 0 is out of service until the guest resets the device: the ");
        assert_eq!(maps(&guest).len(), 1, "the test's own; the device's is replaced as a whole");
        until("one was taken, and none after its fault", || export.stats().requests == 1);
        guest.memory.file.set_len(len).unwrap();
        export.works_after(guest);
    }
}
