//! The guest's interface: features, limits, every type of request, notifications, ring bases.
//!
//! Every test runs on both back ends where the path to the kernel could matter.

use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use crate::vhost_support::guest::{
    AVAIL, CONFIG_WCE, DISCARD, EVENT_IDX, FLUSH, GET_ID, GUEST, Guest, IN, INDIRECT, NEXT, OUT,
    TABLES, USED, WRITE, WRITE_ZEROES, count, event, wait_for,
};
use crate::vhost_support::wire::{VERSION, Wire, code, pair, words};
use crate::vhost_support::{BACKENDS, Export, faulty, until, volume};
use millrace_block::{Op, Status};
use millrace_clients::vhost::{Client, Options, Request, Wait};
use millrace_drives::{Effect, FaultCache, FaultRule};
use millrace_exports::vhost::{Threads, VhostSocket};
use millrace_reactor::Backend;

const SPEC: &str = "ram:size=16m";
const RO: u64 = 1 << 5;

fn config(guest: &Guest) -> Vec<u8> {
    let asked = [[0u32, 60, 0].map(u32::to_ne_bytes).concat(), vec![0; 60]].concat();
    guest.wire.ask(code::GET_CONFIG, &asked).unwrap()[12..].to_vec()
}

fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..at + len].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

fn set_write_back(guest: &Guest, on: u8) {
    let payload = [[32u32, 1, 0].map(u32::to_ne_bytes).concat(), vec![on]].concat();
    guest.wire.must(code::SET_CONFIG, &payload, &[]);
}

#[test]
fn features_and_configuration_space_are_those_of_the_volume() {
    let export = Export::one(Backend::Auto, SPEC);
    let mut guest = Guest::connect(&export.socket(0), 1);
    guest.negotiate(|offered| offered);
    let bits = [1, 2, 6, 9, 10, 11, 12, 13, 14, 28, 29, 30, 32];
    assert_eq!(guest.features, bits.iter().map(|bit| 1u64 << bit).sum::<u64>());
    assert_eq!(guest.wire.ask_number(code::GET_QUEUE_NUM), 4);
    assert_eq!(guest.wire.ask_number(code::GET_MAX_MEM_SLOTS), 509);
    let space = config(&guest);
    assert_eq!(number(&space, 0, 8), 32768, "sectors");
    assert_eq!(number(&space, 12, 4), 126, "pieces");
    assert_eq!(number(&space, 20, 4), 512, "block size");
    assert_eq!(space[24], 3, "eight blocks are a physical one");
    assert_eq!(space[32], 1, "write-back");
    assert_eq!(number(&space, 34, 2), 4, "queues");
    assert_eq!((number(&space, 40, 4), number(&space, 52, 4)), (1, 1), "ranges");
    drop(guest);
    export.stop();
}

#[test]
fn a_read_only_export_says_so_and_refuses_whatever_writes() {
    for backend in BACKENDS {
        let disk = volume(SPEC);
        let export = Export::of(backend, &[disk], |export| export.read_only = true);
        let mut guest = export.guest();
        assert_eq!(guest.features & (RO | 1 << 13 | 1 << 14), RO);
        let data = (guest.data, 4096);
        guest.memory.put(guest.data, &[7; 4096]);
        assert_eq!(guest.request(0, OUT, 0, data), 1);
        assert_eq!(guest.range(DISCARD, (0, 8), 0), 1);
        assert_eq!(guest.range(WRITE_ZEROES, (0, 8), 0), 1);
        assert_eq!(guest.request(0, FLUSH, 0, (0, 0)), 0);
        // Through an indirect table and in pieces it is no other.
        let (header, status) = (guest.header(0, 1, OUT, 0), guest.status_at(0, 1));
        guest.describe(0, 9, (header.0, 7), NEXT, 10);
        guest.describe(0, 10, (header.0 + 7, 9), NEXT, 11);
        guest.describe(0, 11, data, NEXT, 12);
        guest.describe(0, 12, (status, 1), WRITE, 0);
        guest.give(0, 9);
        guest.wait(0, 1);
        assert_eq!(guest.status(0, 1), 1);
        assert_eq!(guest.read(0, 0, 4096), [0; 4096]);
        drop(guest);
        export.stop();
    }
}

#[test]
fn discards_and_zeroings_with_and_without_unmap_read_as_zeroes() {
    let dir = tempfile::tempdir().unwrap();
    let file = format!("file:path={},size=16m", dir.path().join("d").display());
    for (backend, spec) in BACKENDS.into_iter().flat_map(|b| [(b, SPEC), (b, &*file)]) {
        let export = Export::one(backend, spec);
        let mut guest = export.guest();
        for (kind, flags) in [(DISCARD, 0), (WRITE_ZEROES, 0), (WRITE_ZEROES, 1)] {
            guest.write(0, 0, &[0xff; 65536]);
            assert_eq!(guest.range(kind, (16, 64), flags), 0);
            let bytes = guest.read(0, 0, 65536);
            let zeroes = bytes[16 * 512..80 * 512].iter().all(|byte| *byte == 0);
            assert!(zeroes && bytes[16 * 512 - 1] == 0xff && bytes[80 * 512] == 0xff);
        }
        assert_eq!(guest.range(DISCARD, (0, 8), 1), 2, "unmap is no flag of a discard");
        assert_eq!(guest.range(WRITE_ZEROES, (0, 8), 2), 2, "no such flag");
        assert_eq!(guest.range(DISCARD, (32768, 8), 0), 1, "past the end");
        assert_eq!(guest.range(WRITE_ZEROES, (u64::MAX - 3, 8), 0), 1, "it wraps");
        assert_eq!(guest.request(0, DISCARD, 0, (guest.data, 32)), 1, "two ranges");
        assert_eq!(guest.request(0, DISCARD, 0, (guest.data, 15)), 1, "less than one");
        drop(guest);
        export.stop();
    }
}

#[test]
fn serial_numbers_and_types_that_there_are_not() {
    let export = Export::one(Backend::Auto, SPEC);
    let mut guest = export.guest();
    guest.submit(0, 0, (GET_ID, 0), (guest.data, 20));
    assert_eq!(guest.wait(0, 1), [(0, 21)]);
    assert_eq!(guest.memory.get(guest.data, 20), b"serial-0123\0\0\0\0\0\0\0\0\0");
    for kind in [2, 3, 5, 9, 10, 12, 14, 99, u32::MAX] {
        assert_eq!(guest.request(0, kind, 0, (0, 0)), 2, "type {kind}");
    }
    for (sector, len) in [(32768, 512), (u64::MAX, 512), (32767, 1024), (1 << 55, 4096)] {
        assert_eq!(guest.request(0, IN, sector, (guest.data, len)), 1, "{sector} {len}");
        assert_eq!(guest.request(0, OUT, sector, (guest.data, len)), 1, "{sector} {len}");
    }
    for len in [1, 511, 513] {
        assert_eq!(guest.request(0, IN, 0, (guest.data, len)), 1, "{len} bytes");
        assert_eq!(guest.request(0, OUT, 0, (guest.data, len)), 1, "{len} bytes");
    }
    assert_eq!(guest.request(0, IN, 0, (0, 0)), 1, "no data");
    assert_eq!(export.said(), Vec::<String>::new(), "a request that fails is the guest's affair");
    export.works_after(guest);
}

#[test]
fn headers_data_and_status_may_be_split_and_lie_anywhere() {
    let dir = tempfile::tempdir().unwrap();
    let file = format!("file:path={},size=16m", dir.path().join("d").display());
    for (backend, spec) in BACKENDS.into_iter().flat_map(|b| [(b, SPEC), (b, &*file)]) {
        let export = Export::one(backend, spec);
        let mut guest = export.guest();
        let bytes: Vec<u8> = (0..8192u32).map(|n| ((n * 31) >> 3) as u8).collect();
        for (cut, odd) in [(1, 1), (4, 3), (15, 511), (8, 513), (16, 4095)] {
            // The last byte of a write's header and the first of its data share a descriptor.
            let from = guest.data + 0x1_0000 + odd;
            let (header, _) = guest.header(0, 0, OUT, cut);
            let header = guest.memory.get(header, 16);
            guest.memory.put(from, &[&header, &bytes[..]].concat());
            guest.describe(0, 0, (from, cut as u32), NEXT, 7);
            guest.describe(0, 7, (from + cut, 16 - cut as u32 + 700), NEXT, 3);
            guest.describe(0, 3, (from + 716, 8192 - 700), NEXT, 9);
            guest.describe(0, 9, (guest.status_at(0, 0), 1), WRITE, 0);
            guest.give(0, 0);
            assert_eq!(guest.wait(0, 1), [(0, 1)]);
            assert_eq!(guest.status(0, 0), 0);
            // The status is the last byte of the last piece of a read's data.
            let (header, into) = (guest.header(0, 0, IN, cut), guest.data + odd);
            guest.memory.put(into, &[0xcd; 8194]);
            guest.describe(0, 0, header, NEXT, 1);
            guest.describe(0, 1, (into, odd as u32), NEXT | WRITE, 2);
            guest.describe(0, 2, (into + odd, 8193 - odd as u32), WRITE, 0);
            guest.give(0, 0);
            assert_eq!(guest.wait(0, 1), [(0, 8193)]);
            assert_eq!(guest.memory.get(into, 8194), [&bytes[..], &[0, 0xcd]].concat());
        }
        // Buffers that overlap each other, the header, the status and the ring itself.
        let header = guest.header(0, 0, IN, 0);
        guest.describe(0, 0, header, NEXT, 1);
        guest.describe(0, 1, (header.0 - 512, 1024), NEXT | WRITE, 2);
        guest.describe(0, 2, (header.0 - 256, 513), WRITE, 0);
        guest.give(0, 0);
        guest.wait(0, 1);
        assert_eq!(guest.memory.get(header.0 - 256 + 512, 1), [0]);
        export.works_after(guest);
    }
}

#[test]
fn a_buffer_of_no_bytes_fails_its_request_and_the_ring_goes_on() {
    for backend in BACKENDS {
        let export = Export::one(backend, SPEC);
        let mut guest = export.guest();
        guest.write(0, 0, &[7; 4096]);
        let (data, status) = ((guest.data, 4096), (guest.status_at(0, 0), 1));
        let nowhere = [(guest.data, 0), (0, 0), (u64::MAX - GUEST, 0)];
        for (round, empty) in nowhere.into_iter().enumerate() {
            for (kind, writable) in [(IN, WRITE), (OUT, 0)] {
                let header = guest.header(0, 0, kind, 0);
                // The empty buffer is the data, or comes before or after them.
                guest.describe(0, 0, header, NEXT, 1);
                guest.describe(0, 1, empty, NEXT | writable, 2);
                guest.describe(0, 2, status, WRITE, 0);
                guest.give(0, 0);
                assert_eq!(guest.wait(0, 1), [(0, 1)], "round {round}, type {kind}");
                assert_eq!(guest.status(0, 0), 1);
                for (first, second) in [(empty, data), (data, empty)] {
                    guest.header(0, 0, kind, 0);
                    guest.describe(0, 1, first, NEXT | writable, 3);
                    guest.describe(0, 3, second, NEXT | writable, 2);
                    guest.give(0, 0);
                    assert_eq!(guest.wait(0, 1), [(0, 1)]);
                    assert_eq!(guest.status(0, 0), 1);
                }
                // The empty buffer is the header, or the status.
                guest.header(0, 0, kind, 0);
                guest.describe(0, 0, empty, NEXT, 1);
                guest.describe(0, 1, header, NEXT, 3);
                guest.give(0, 0);
                assert_eq!(guest.wait(0, 1), [(0, 1)]);
                guest.describe(0, 0, header, NEXT, 2);
                guest.describe(0, 2, (guest.data, 0), WRITE, 0);
                guest.give(0, 0);
                assert_eq!(guest.wait(0, 1), [(0, 0)], "nowhere to say so");
            }
        }
        assert_eq!(guest.read(0, 0, 4096), [7; 4096], "nothing was written");
        assert_eq!(export.said(), Vec::<String>::new());
        assert_eq!(export.stats().broken, 0);
        export.works_after(guest);
    }
}

#[test]
fn a_request_that_fails_has_written_its_status_and_nothing_else() {
    for backend in BACKENDS {
        let (volume, control) = faulty(SPEC, FaultCache::Inner);
        let export = Export::of(backend, &[volume], |_| {});
        let mut guest = export.guest();
        // The layer or the drive refuses the request, which is in one piece or in two.
        for sector in [1 << 40, 0] {
            control.clear_rules();
            control.add_rule(FaultRule::always(Effect::Fail(Status::IoError)));
            guest.submit(0, 0, (IN, sector), (guest.data, 4096));
            assert_eq!(guest.wait(0, 1), [(0, 1)], "sector {sector}");
            assert_eq!(guest.status(0, 0), 1);
            let header = guest.header(0, 0, IN, sector);
            guest.describe(0, 0, header, NEXT, 1);
            guest.describe(0, 1, (guest.data, 512), NEXT | WRITE, 2);
            guest.describe(0, 2, (guest.data + 4096, 512), NEXT | WRITE, 3);
            guest.describe(0, 3, (guest.status_at(0, 0), 1), WRITE, 0);
            guest.give(0, 0);
            assert_eq!(guest.wait(0, 1), [(0, 1)], "sector {sector}, two pieces");
            assert_eq!(guest.status(0, 0), 1);
        }
        control.clear_rules();
        guest.submit(0, 0, (IN, 0), (guest.data, 4096));
        assert_eq!(guest.wait(0, 1), [(0, 4097)], "and one that does not, its data, too");
        export.works_after(guest);
    }
}

#[test]
fn chains_without_status_byte_or_whole_header_are_given_back() {
    let export = Export::one(Backend::Auto, SPEC);
    let mut guest = export.guest();
    let header = guest.header(0, 0, IN, 0);
    guest.describe(0, 0, header, 0, 0);
    guest.give(0, 0);
    assert_eq!(guest.wait(0, 1), [(0, 0)], "nothing was written");
    guest.describe(0, 0, (guest.status_at(0, 0), 1), WRITE, 0);
    guest.give(0, 0);
    assert_eq!(guest.wait(0, 1), [(0, 1)]);
    assert_eq!(guest.status(0, 0), 1);
    guest.header(0, 0, IN, 0);
    guest.describe(0, 0, (header.0, 15), NEXT, 1);
    guest.describe(0, 1, (guest.status_at(0, 0), 1), WRITE, 0);
    guest.give(0, 0);
    assert_eq!(guest.wait(0, 1), [(0, 1)]);
    assert_eq!(guest.status(0, 0), 1);
    export.works_after(guest);
}

#[test]
fn writes_are_durable_with_the_switch_off_or_a_flush() {
    for (backend, cache) in BACKENDS
        .into_iter()
        .flat_map(|b| [(b, FaultCache::Volatile), (b, FaultCache::VolatileWithoutFua)])
    {
        let (volume, control) = faulty(SPEC, cache);
        let export = Export::of(backend, &[volume], |_| {});
        let mut guest = export.guest();
        let block = |seed: u8| vec![seed; 65536];
        set_write_back(&guest, 0);
        assert_eq!(config(&guest)[32], 0);
        guest.write(0, 0, &block(1));
        assert_eq!(guest.range(WRITE_ZEROES, (8, 8), 0), 0);
        assert_eq!(control.power_cut(7), 0, "nothing was lost");
        let bytes = guest.read(0, 0, 65536);
        assert!(bytes[..4096] == block(1)[..4096] && bytes[4096..8192] == [0; 4096]);
        set_write_back(&guest, 1);
        guest.write(0, 0, &block(2));
        assert!(control.power_cut(8) > 0, "of 128 sectors in a cache some are lost");
        guest.write(0, 0, &block(3));
        assert_eq!(guest.request(0, FLUSH, 0, (0, 0)), 0);
        assert_eq!(control.power_cut(9), 0);
        assert_eq!(guest.read(0, 0, 65536), block(3));
        export.works_after(guest);
    }
}

#[test]
fn switch_to_write_through_survives_resets_of_a_frontend() {
    let (volume, control) = faulty(SPEC, FaultCache::Volatile);
    let export = Export::of(Backend::Auto, &[volume], |_| {});
    let guest = export.guest();
    set_write_back(&guest, 0);
    drop(guest);
    let mut guest = export.guest();
    guest.write(0, 0, &[1; 65536]);
    assert_eq!(control.power_cut(7), 0, "after a new connection");
    guest.reset();
    guest.write(0, 0, &[2; 65536]);
    assert_eq!(control.power_cut(8), 0, "after a reset");
    assert_eq!(config(&guest)[32], 0);
    set_write_back(&guest, 1);
    guest.write(0, 0, &[3; 65536]);
    assert!(control.power_cut(9) > 0, "of 128 sectors in a cache some are lost");
    export.works_after(guest);
}

#[test]
fn guest_without_flushes_or_switch_gets_durable_writes() {
    let (volume, control) = faulty(SPEC, FaultCache::Volatile);
    let export = Export::of(Backend::Auto, &[volume], |_| {});
    let mut guest = Guest::connect(&export.socket(0), 1);
    guest.set_up(&[64], |offered| offered & !(CONFIG_WCE | 1 << 9));
    guest.write(0, 0, &[1; 65536]);
    assert_eq!(control.power_cut(7), 0);
    // The write-back switch is not negotiated, so setting it does nothing.
    set_write_back(&guest, 1);
    guest.write(0, 0, &[2; 65536]);
    assert_eq!(control.power_cut(8), 0);
    // The next driver of the same guest knows both, and gets the default.
    guest.features |= CONFIG_WCE | 1 << 9;
    guest.wire.must(code::SET_FEATURES, &words(&[guest.features]), &[]);
    assert_eq!(config(&guest)[32], 1);
    export.works_after(guest);
}

#[test]
fn rings_of_all_sizes_wrap_with_indices_and_tables() {
    let all = [(true, true), (true, false), (false, true), (false, false)];
    for (backend, (events, tables)) in BACKENDS.into_iter().flat_map(|b| all.map(|c| (b, c))) {
        let export = Export::one(backend, SPEC);
        for size in (0..=10).map(|shift| 1u16 << shift) {
            let mut guest = Guest::connect(&export.socket(0), 1);
            let events = if events { EVENT_IDX } else { 0 };
            guest.set_up(&[size], |offered| offered & !EVENT_IDX | events);
            // 65,536 indices go round with a base near the end.
            guest.stop(0);
            guest.memory.put_u16(AVAIL + 2, u16::MAX - 1);
            guest.memory.put_u16(USED + 2, u16::MAX - 1);
            guest.start(0, size, u16::MAX - 1);
            let slots = if tables { size.min(40) } else { size / 3 };
            for round in 0..if slots == 0 { 0 } else { 6u64 } {
                for slot in 0..slots {
                    let data = (guest.data + 512 * u64::from(slot), 512);
                    let place = round * 40 + u64::from(slot);
                    guest.memory.put(data.0, &[place as u8; 512]);
                    if !tables {
                        guest.submit(0, slot, (OUT, place), data);
                        continue;
                    }
                    let header = guest.header(0, slot, OUT, place);
                    let table = TABLES + 48 * u64::from(slot);
                    guest.describe_raw(table, GUEST + header.0, 16, (NEXT, 1));
                    guest.describe_raw(table + 16, GUEST + data.0, 512, (NEXT, 2));
                    let status = GUEST + guest.status_at(0, slot);
                    guest.describe_raw(table + 32, status, 1, (WRITE, 0));
                    guest.describe(0, slot, (table, 48), INDIRECT, 0);
                    guest.give(0, slot);
                }
                assert_eq!(guest.wait(0, slots).len(), usize::from(slots));
                assert!((0..slots).all(|slot| guest.status(0, slot) == 0));
            }
            let base = guest.stop(0);
            assert_eq!(base, guest.rings[0].avail, "ring of {size}");
        }
        export.works();
        export.stop();
    }
}

#[test]
fn an_interrupt_comes_exactly_when_the_guest_wants_one() {
    for backend in BACKENDS {
        let export = Export::one(backend, SPEC);
        let mut guest = Guest::connect(&export.socket(0), 1);
        guest.set_up(&[64], |offered| offered & !EVENT_IDX);
        let (flags, event) = (AVAIL, AVAIL + 132);
        guest.write(0, 0, &[1; 512]);
        assert!(wait_for(&guest.rings[0].call));
        (0..2).for_each(|_| guest.write(0, 0, &[1; 512]));
        until("each answer interrupts", || export.stats().interrupts == 3);
        count(&guest.rings[0].call);
        guest.memory.put_u16(flags, 1);
        guest.write(0, 0, &[1; 512]);
        guest.stop(0);
        assert_eq!(count(&guest.rings[0].call), 0, "none was wanted");
        drop(guest);
        let mut guest = export.guest();
        guest.memory.put_u16(event, 2);
        guest.write(0, 0, &[1; 512]);
        guest.write(0, 0, &[1; 512]);
        guest.write(0, 0, &[1; 512]);
        assert!(wait_for(&guest.rings[0].call));
        guest.write(0, 0, &[1; 512]);
        guest.stop(0);
        assert_eq!(count(&guest.rings[0].call), 0, "that one was wanted and no other");
        export.works_after(guest);
    }
}

#[test]
fn two_hundred_and_fifty_six_queues_are_served_by_few_threads() {
    let designs = [Threads::Shared, Threads::PerQueue, Threads::Count(1), Threads::Count(3)];
    for (backend, threads) in BACKENDS.into_iter().flat_map(|b| designs.map(|t| (b, t))) {
        let export = Export::of(backend, &[volume(SPEC)], |export| {
            (export.queues, export.threads) = (256, threads);
        });
        let mut guest = Guest::ready(&export.socket(0), &[4; 256]);
        for q in 0..256 {
            let data = (guest.data + 512 * q as u64, 512);
            guest.memory.put(data.0, &[q as u8; 512]);
            guest.submit(q, 0, (OUT, q as u64), data);
        }
        for q in 0..256 {
            guest.wait(q, 1);
            assert_eq!(guest.status(q, 0), 0);
        }
        let bytes = guest.read(255, 0, 256 * 512);
        assert!((0..256).all(|q| bytes[q * 512] == q as u8));
        assert_eq!(export.stats().broken, 0);
        drop(guest);
        export.stop();
    }
}

#[test]
fn ring_is_enabled_by_its_message_or_by_its_kick() {
    let export = Export::one(Backend::Auto, SPEC);
    for (protocol, taken) in [(true, 0), (false, 1)] {
        let mut guest = Guest::connect(&export.socket(0), 1);
        let mask = if protocol { u64::MAX } else { !(1 << 30) };
        guest.set_up(&[64], |offered| offered);
        guest.stop(0);
        guest.wire.must(code::SET_FEATURES, &words(&[guest.features & mask]), &[]);
        if protocol {
            guest.wire.must(code::SET_VRING_ENABLE, &pair(0, 0), &[]);
        } else {
            guest.wire.must(code::RESET_OWNER, &[], &[]);
        }
        let kick = event();
        guest.notify(code::SET_VRING_KICK, 0, kick.as_fd());
        guest.rings[0].kick = kick;
        // An order may be seen after it was answered; this one is seen after the first.
        guest.share();
        guest.submit(0, 0, (IN, 0), (guest.data, 512));
        guest.share();
        if !protocol {
            guest.wait(0, 1);
        }
        assert_eq!((guest.stop(0), guest.used_idx(0)), (taken, taken));
    }
    export.works();
    export.stop();
}

#[test]
fn frontend_that_never_asked_for_the_size_is_told_at_its_ring() {
    let export = Export::one(Backend::Auto, SPEC);
    for asks in [false, true] {
        let mut guest = Guest::connect(&export.socket(0), 1);
        guest.negotiate(|offered| offered);
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        guest.wire.must(code::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()]);
        ours.set_nonblocking(true).unwrap();
        // The device sends its message before its answer, so a read without waiting finds it.
        let told = || std::io::Read::read(&mut &ours, &mut [0; 64]).unwrap_or(0);
        if asks {
            config(&guest);
        }
        for (on, bytes) in [(0, 0), (1, if asks { 0 } else { 12 }), (1, 0), (0, 0), (1, 0)] {
            guest.wire.must(code::SET_VRING_ENABLE, &pair(0, on), &[]);
            assert_eq!(told(), bytes, "enable {on}, asks {asks}");
        }
    }
    export.stop();
}

#[test]
fn descriptors_for_notifications_wait_for_nobody_from_then_on() {
    let export = Export::one(Backend::Auto, SPEC);
    let guest = export.guest();
    for code in [code::SET_VRING_CALL, code::SET_VRING_KICK, code::SET_VRING_ERR] {
        let flags = rustix::event::EventfdFlags::CLOEXEC;
        let fd = rustix::event::eventfd(0, flags).unwrap();
        guest.notify(code, 0, fd.as_fd());
        let flags = rustix::fs::fcntl_getfl(&fd).unwrap();
        assert!(flags.contains(rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::RDWR));
        guest.notify(code, 0, fd.as_fd());
        assert_eq!(rustix::fs::fcntl_getfl(&fd).unwrap(), flags);
    }
    drop(guest);
    export.stop();
}

#[test]
fn the_configuration_space_may_be_asked_for_up_to_its_end() {
    for (offset, size, good) in [(0, 256, true), (252, 4, true), (0, 257, false), (253, 4, false)] {
        let export = Export::one(Backend::Auto, SPEC);
        let mut guest = Guest::connect(&export.socket(0), 1);
        guest.negotiate(|offered| offered);
        let header = [offset, size as u32, 0u32].map(u32::to_ne_bytes).concat();
        let asked = [header, vec![0; size]].concat();
        let answer = guest.wire.ask(code::GET_CONFIG, &asked);
        let bytes = answer.filter(|answer| answer.len() == 12 + size);
        assert_eq!(bytes.is_some(), good, "{size} bytes at {offset}");
        export.works_after(guest);
    }
}

#[test]
fn errors_of_drives_are_counted_by_export() {
    let (volume, control) = faulty(SPEC, FaultCache::Inner);
    let export = Export::of(Backend::Auto, &[volume], |_| {});
    let errors = || {
        let errors = export.server.as_ref().unwrap().observer().errors();
        errors.into_iter().map(|one| (one.export, one.count)).collect::<Vec<_>>()
    };
    let mut guest = export.guest();
    assert_eq!(errors(), [("v0".to_owned(), 0)]);
    control.add_rule(FaultRule::always(Effect::Fail(Status::IoError)));
    (0..3).for_each(|_| assert_eq!(guest.request(0, IN, 0, (guest.data, 512)), 1));
    assert_eq!(errors(), [("v0".to_owned(), 3)]);
    control.clear_rules();
    export.works_after(guest);
}

#[test]
fn disabled_ring_takes_nothing_until_enabled() {
    for backend in BACKENDS {
        let export = Export::one(backend, SPEC);
        let mut guest = export.guest();
        for round in 0..20 {
            guest.wire.must(code::SET_VRING_ENABLE, &pair(0, 0), &[]);
            // An order may be seen after it was answered; this one is seen after the first.
            guest.share();
            for slot in 0..10 {
                let at = (guest.data + 4096 * u64::from(slot), 4096);
                guest.submit(0, slot, (OUT, 8 * u64::from(slot)), at);
            }
            guest.share();
            assert_eq!(guest.used_idx(0), 10 * round);
            // The thread publishes its counters before it sleeps: they may lag, but not lead.
            let taken = export.stats().requests;
            assert!(taken <= 10 * u64::from(round), "{taken} taken before round {round}");
            guest.wire.must(code::SET_VRING_ENABLE, &pair(0, 1), &[]);
            guest.wait(0, 10);
        }
        export.works_after(guest);
    }
}

#[test]
fn base_is_reported_after_all_answers_and_the_ring_resumes() {
    for backend in BACKENDS {
        let (volume, control) = faulty(SPEC, FaultCache::Inner);
        let export = Export::of(backend, &[volume], |_| {});
        let mut guest = export.guest();
        for round in 0..5u16 {
            control.add_rule(
                FaultRule::always(Effect::Delay(Duration::from_nanos(30_000_000))).on(Op::Write),
            );
            for slot in 0..16 {
                let at = (guest.data + 8192 * u64::from(slot), 4096);
                guest.submit(0, slot, (OUT, 64 * u64::from(slot)), at);
            }
            until("the last is taken", || export.stats().requests == 16 * (u64::from(round) + 1));
            let base = guest.stop(0);
            control.clear_rules();
            assert_eq!(base, 16 * (round + 1));
            assert_eq!(guest.used_idx(0), base, "answered before the base was told");
            // Requests offered while the ring is stopped are not touched.
            guest.rings[0].used = base;
            guest.start(0, 64, base);
        }
        export.works_after(guest);
    }
}

#[test]
fn reset_owner_and_device_stop_all_rings_under_load() {
    for backend in BACKENDS {
        let (volume, control) = faulty(SPEC, FaultCache::Inner);
        let export = Export::of(backend, &[volume], |_| {});
        let mut guest = Guest::ready(&export.socket(0), &[64, 64]);
        for reset in [code::RESET_OWNER, code::RESET_DEVICE] {
            let before = control.struck();
            control.add_rule(FaultRule::always(Effect::Stick));
            (0..2).for_each(|q| guest.submit(q, 0, (IN, 0), (guest.data, 4096)));
            until("they are in flight", || control.struck() == before + 2);
            control.clear_rules();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    // An answer that does not wait for them comes before that.
                    std::thread::sleep(Duration::from_millis(200));
                    control.release_stuck();
                });
                guest.wire.must(reset, &[], &[]);
                assert_eq!((guest.status(0, 0), guest.status(1, 0)), (0, 0), "answered before");
            });
            until("nothing is counted any more", || export.stats().in_flight == 0);
            guest.give(0, 0);
            guest.reset();
            guest.write(1, 0, &[1; 512]);
        }
        export.works_after(guest);
    }
}

#[test]
fn descriptors_for_notifications_are_exchanged_while_ring_runs() {
    for backend in BACKENDS {
        let export = Export::one(backend, SPEC);
        let mut guest = export.guest();
        for round in 0..20 {
            let (call, kick, error) = (event(), event(), event());
            guest.notify(code::SET_VRING_CALL, 0, call.as_fd());
            guest.notify(code::SET_VRING_KICK, 0, kick.as_fd());
            guest.notify(code::SET_VRING_ERR, 0, error.as_fd());
            let ring = &mut guest.rings[0];
            (ring.call, ring.kick, ring.err) = (call, kick, error);
            // The guest asks for an interrupt with the next answer.
            let next = ring.used;
            guest.memory.put_u16(AVAIL + 132, next);
            guest.write(0, round, &[round as u8; 512]);
            assert!(wait_for(&guest.rings[0].call), "through the newest");
        }
        // Without a call descriptor, the guest polls.
        guest.wire.must(code::SET_VRING_CALL, &words(&[0x100]), &[]);
        guest.write(0, 0, &[1; 512]);
        guest.give(0, 64);
        guest.until_broken(0);
        export.works_after(guest);
    }
}

#[test]
fn a_volume_that_grows_is_told_to_the_frontend() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("d");
    std::fs::File::create(&path).unwrap().set_len(8 << 20).unwrap();
    let disk = volume(&format!("file:path={}", path.display()));
    let export = Export::of(Backend::Auto, std::slice::from_ref(&disk), |_| {});
    let mut guest = export.guest();
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    guest.wire.must(code::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()]);
    drop(theirs);
    let back = Wire::over(ours);
    for mib in [16u64, 24] {
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_len(mib << 20).unwrap();
        disk.resize().unwrap();
        let mut message = [0; 12];
        use std::io::Read;
        (&back.stream).read_exact(&mut message).unwrap();
        assert_eq!(message, *[2u32, 1, 0].map(u32::to_ne_bytes).as_flattened());
        assert_eq!(number(&config(&guest), 0, 8), mib << 11);
        guest.write(0, (mib << 11) - 8, &[3; 4096]);
    }
    // A frontend that reads nothing, and one that has gone, hold up nobody.
    drop(back);
    for mib in 25..40u64 {
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_len(mib << 20).unwrap();
        disk.resize().unwrap();
    }
    export.works_after(guest);
}

#[test]
fn an_export_that_connects_finds_its_frontend_again_and_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("frontend");
    let export = Export::of(Backend::Auto, &[volume(SPEC)], |export| {
        export.socket = VhostSocket::Connect(path.clone());
    });
    export.until_said("trying again every second");
    for round in 0..2 {
        let listener = UnixListener::bind(&path).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let mut guest = Guest::over(Wire::over(stream), 1);
        guest.set_up(&[64], |offered| offered);
        guest.write(0, round, &[round as u8 + 1; 512]);
        assert_eq!(guest.read(0, round, 512), [round as u8 + 1; 512]);
        std::fs::remove_file(&path).unwrap();
    }
    // Nor does one whose queue of connections is full keep it from stopping.
    let listener = rustix::net::socket(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::STREAM,
        None,
    )
    .unwrap();
    let address = rustix::net::SocketAddrUnix::new(&path).unwrap();
    rustix::net::bind(&listener, &address).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let first = Wire::connect(&path);
    std::thread::sleep(std::time::Duration::from_millis(1500));
    export.stop();
    drop(first);
}

#[test]
fn frontend_leaving_with_requests_in_flight_leaks_nothing() {
    for backend in BACKENDS {
        let (volume, control) = faulty(SPEC, FaultCache::Inner);
        let export = Export::of(backend, &[volume], |_| {});
        for _ in 0..3 {
            let mut guest = export.guest();
            control.add_rule(FaultRule::always(Effect::Stick));
            let before = control.struck();
            for slot in 0..16 {
                guest.submit(0, slot, (IN, 0), (guest.data, 4096));
            }
            until("they stick", || control.struck() == before + 16);
            drop(guest);
            control.clear_rules();
            until("they are answered", || {
                // Release more than once: a request counted a moment ago may get stuck only now.
                control.release_stuck();
                export.stats().in_flight == 0
            });
            export.works();
        }
        until("no ring is left", || export.stats().queues == 0);
        export.stop();
    }
}

#[test]
fn frontends_are_served_one_after_the_other() {
    let export = Export::one(Backend::Auto, SPEC);
    let first = export.guest();
    let second = Wire::connect(&export.socket(0));
    second.send(code::GET_FEATURES, VERSION, &[], &[]);
    second.stream.set_read_timeout(Some(std::time::Duration::from_millis(100))).unwrap();
    use std::io::Read;
    assert!((&second.stream).read(&mut [0; 12]).is_err(), "it has to wait");
    let second = Wire::over(second.stream);
    drop(first);
    assert_eq!(second.answer().unwrap().0, code::GET_FEATURES);
    let mut guest = Guest::over(second, 1);
    guest.set_up(&[64], |offered| offered);
    export.works_after(guest);
}

#[test]
fn no_answer_of_a_drive_waits_for_something_else_to_happen() {
    let dir = tempfile::tempdir().unwrap();
    for backend in BACKENDS {
        let path = dir.path().join(format!("{backend:?}"));
        let export = Export::one(backend, &format!("file:path={},size=16m", path.display()));
        let options = Options { wait: Wait::Events, ..Options::default() };
        let client = Client::connect(&export.socket(0), options).unwrap();
        let mut queue = client.into_queues().remove(0);
        let mut late = 0;
        for round in 0..400 {
            let start = std::time::Instant::now();
            assert!(queue.call(Request::write(8 * (round % 50), 4096)).unwrap().is_ok());
            late += u32::from(start.elapsed().as_millis() > 900);
        }
        // A busy machine may be late now and then; a lost wake-up is found after a second.
        assert!(late < 8, "{late} of 400 requests took longer than 900 ms");
        drop(queue);
        export.stop();
    }
}
