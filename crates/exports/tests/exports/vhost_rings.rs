//! Rings that break every rule: the device answers, or breaks that ring alone, and goes on.
//!
//! Every test runs on both back ends. The device reports a broken ring to the frontend by its error
//! descriptor, and in its log by one line. After a reset, or for the next frontend, everything
//! works again.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use crate::vhost_support::guest::{
    EVENT_IDX, GUEST, Guest, IN, INDIRECT, NEXT, OUT, TABLES, USED, WRITE, count,
};
use crate::vhost_support::wire::{code, words};
use crate::vhost_support::{BACKENDS, Export, LONG, faulty, until, volume};
use millrace_drives::{Effect, FaultCache, FaultRule};
use millrace_reactor::Backend;

const SPEC: &str = "ram:size=16m";

/// Checks that `what`, done by a guest to queue 0, breaks that ring with this message, and that a
/// reset repairs it.
fn breaks(text: &str, mut what: impl FnMut(&mut Guest)) {
    for backend in BACKENDS {
        let export = Export::of(backend, &[volume(SPEC), volume(SPEC)], |_| {});
        let mut other = Guest::ready(&export.socket(1), &[64]);
        other.write(0, 0, &[3; 512]);
        let mut guest = Guest::ready(&export.socket(0), &[64, 64]);
        what(&mut guest);
        guest.until_broken(0);
        export.until_said(text);
        let lines = export.said();
        assert_eq!(lines.len(), 1, "one line: {lines:?}");
        assert!(lines[0].starts_with("export v0: queue 0 is out of service"), "{lines:?}");
        // The other queue and the other device go on.
        guest.write(1, 8, &[4; 1024]);
        assert_eq!(guest.read(1, 8, 1024), [4; 1024]);
        assert_eq!(other.read(0, 0, 512), [3; 512]);
        until("it is counted", || export.stats().broken == 1);
        guest.reset();
        assert_eq!(guest.read(0, 8, 1024), [4; 1024]);
        drop(guest);
        export.works();
        export.stop();
    }
}

/// A chain of these descriptors from 0 on, each led to by the one before.
fn chain(guest: &mut Guest, parts: &[((u64, u32), u16)]) {
    for (index, (place, flags)) in parts.iter().enumerate() {
        let next = if index + 1 < parts.len() { NEXT } else { 0 };
        guest.describe(0, index as u16, *place, flags | next, index as u16 + 1);
    }
    guest.give(0, 0);
}

#[test]
fn a_chain_that_is_a_loop_breaks_its_ring() {
    breaks("a descriptor chain loops in a table of 64 descriptors", |guest| {
        let header = guest.header(0, 0, IN, 0);
        guest.describe(0, 0, header, NEXT, 1);
        guest.describe(0, 1, (guest.data, 512), NEXT | WRITE, 1);
        guest.give(0, 0);
    });
}

#[test]
fn a_loop_of_readable_descriptors_breaks_its_ring() {
    breaks("a descriptor chain loops in a table of 64", |guest| {
        let header = guest.header(0, 0, OUT, 0);
        guest.describe(0, 5, header, NEXT, 6);
        guest.describe(0, 6, (guest.data, 512), NEXT, 5);
        guest.give(0, 5);
    });
}

#[test]
fn buffers_outside_of_memory_break_their_ring() {
    breaks("are not in guest memory", |guest| {
        let (header, end) = (guest.header(0, 0, IN, 0), guest.memory.len);
        chain(guest, &[(header, 0), ((end - 256, 512), WRITE), ((end, 1), WRITE)]);
    });
    breaks("512 bytes at 0x10 are not in guest memory", |guest| {
        let header = guest.header(0, 0, IN, 0);
        guest.describe(0, 0, header, NEXT, 1);
        guest.describe_raw(16, 0x10, 512, (WRITE, 0));
        guest.give(0, 0);
    });
}

#[test]
fn addresses_that_wrap_around_break_their_ring() {
    breaks("are not in guest memory", |guest| {
        let header = guest.header(0, 0, OUT, 0);
        guest.describe(0, 0, header, NEXT, 1);
        guest.describe_raw(16, u64::MAX - 255, 512, (NEXT, 2));
        guest.describe(0, 2, (guest.status_at(0, 0), 1), WRITE, 0);
        guest.give(0, 0);
    });
    breaks("4294967295 bytes at", |guest| {
        let header = guest.header(0, 0, OUT, 0);
        guest.describe(0, 0, header, NEXT, 1);
        guest.describe_raw(16, GUEST, u32::MAX, (NEXT, 2));
        guest.describe(0, 2, (guest.status_at(0, 0), 1), WRITE, 0);
        guest.give(0, 0);
    });
}

#[test]
fn a_readable_buffer_behind_a_writable_one_breaks_its_ring() {
    breaks("a readable buffer follows a writable one", |guest| {
        let header = guest.header(0, 0, IN, 0);
        let data = guest.data;
        chain(guest, &[((data, 512), WRITE), (header, 0)]);
    });
}

#[test]
fn heads_and_next_indices_outside_of_the_table_break_their_ring() {
    breaks("descriptor index 64 is outside its table of 64", |guest| guest.give(0, 64));
    breaks("descriptor index 65535 is outside its table of 64", |guest| {
        let header = guest.header(0, 0, IN, 0);
        guest.describe(0, 0, header, NEXT, u16::MAX);
        guest.give(0, 0);
    });
}

#[test]
fn an_avail_index_that_jumps_breaks_its_ring() {
    for jump in [65, 1000, 0x8000, u16::MAX] {
        breaks("but the last entry taken was 0, and the ring has only 64 entries", |guest| {
            guest.rings[0].avail = jump;
            guest.publish(0);
        });
    }
}

#[test]
fn a_head_that_is_made_available_twice_breaks_its_ring() {
    for backend in BACKENDS {
        let (volume, control) = faulty(SPEC, FaultCache::Inner);
        let export = Export::of(backend, &[volume], |_| {});
        let mut guest = export.guest();
        control.add_rule(FaultRule::always(Effect::Stick));
        guest.submit(0, 0, (IN, 0), (guest.data, 512));
        until("it sticks", || control.struck() == 1);
        guest.give(0, 0);
        guest.until_broken(0);
        export.until_said("descriptor 0 was made available while it was in flight");
        control.clear_rules();
        control.release_stuck();
        // The request in flight is answered all the same.
        assert_eq!(guest.wait(0, 1), [(0, 513)]);
        guest.reset();
        guest.write(0, 0, &[1; 512]);
        drop(guest);
        export.works();
        export.stop();
    }
}

#[test]
fn bad_indirect_tables_break_their_ring() {
    type Case = (&'static str, fn(&mut Guest));
    let cases: [Case; 7] = [
        ("an indirect table of 0 bytes", |guest| {
            guest.describe(0, 0, (TABLES, 0), INDIRECT, 0);
        }),
        ("an indirect table of 40 bytes", |guest| {
            guest.describe(0, 0, (TABLES, 40), INDIRECT, 0);
        }),
        ("an indirect table of 48 bytes", |guest| {
            guest.describe(0, 0, (TABLES, 48), INDIRECT | NEXT, 1);
        }),
        ("are not in guest memory", |guest| {
            guest.describe(0, 0, (guest.memory.len - 16, 48), INDIRECT, 0);
        }),
        ("are not in guest memory", |guest| {
            guest.describe_raw(0, u64::MAX - 15, 48, (INDIRECT, 0));
        }),
        // A table in a table.
        ("an indirect table of 48 bytes", |guest| {
            guest.describe_raw(TABLES, GUEST + TABLES, 48, (INDIRECT, 0));
            guest.describe(0, 0, (TABLES, 48), INDIRECT, 0);
        }),
        ("descriptor index 3 is outside its table of 3", |guest| {
            let (header, _) = guest.header(0, 0, IN, 0);
            guest.describe_raw(TABLES, GUEST + header, 16, (NEXT, 3));
            guest.describe(0, 0, (TABLES, 48), INDIRECT, 0);
        }),
    ];
    for (text, describe) in cases {
        breaks(text, |guest| {
            describe(guest);
            guest.give(0, 0);
        });
    }
}

/// A request of `count` descriptors in a table of its own, pieces of 512 bytes from `data` on.
fn long_request(guest: &mut Guest, (kind, count): (u32, u64), data: u64) -> u8 {
    let header = guest.header(0, 0, kind, 0);
    let table = guest.data + 0x40_0000;
    guest.describe_raw(table, GUEST + header.0, 16, (NEXT, 1));
    let writable = if kind == IN { WRITE } else { 0 };
    for index in 1..count - 1 {
        let place = GUEST + data + 512 * (index - 1);
        let flags = (NEXT | writable, index as u16 + 1);
        guest.describe_raw(table + 16 * index, place, 512, flags);
    }
    let status = GUEST + guest.status_at(0, 0);
    guest.describe_raw(table + 16 * (count - 1), status, 1, (WRITE, 0));
    guest.describe(0, 0, (table, 16 * count as u32), INDIRECT, 0);
    guest.give(0, 0);
    guest.wait(0, 1);
    guest.status(0, 0)
}

#[test]
fn oversized_request_of_a_ring_fails_alone() {
    for backend in BACKENDS {
        for size in [16, 64, 256] {
            let export = Export::one(backend, SPEC);
            let mut guest = Guest::ready(&export.socket(0), &[size]);
            let data = guest.data;
            // Windows' driver sends 129 and more, qemu-storage-daemon takes 1,024.
            for (round, count) in [126, 128, 129, 131, 258, 500, 1023, 1024].into_iter().enumerate()
            {
                let bytes: Vec<u8> =
                    (0..512 * (count - 2)).map(|at| (at % 251) as u8 ^ round as u8).collect();
                guest.memory.put(data, &bytes);
                assert_eq!(long_request(&mut guest, (OUT, count), data), 0, "{count} of {size}");
                let behind = data + 0x10_0000;
                assert_eq!(long_request(&mut guest, (IN, count), behind), 0, "{count} of {size}");
                assert!(guest.memory.get(behind, bytes.len()) == bytes, "{count} of {size}");
            }
            for count in [1041, 2000, 4000] {
                assert_eq!(long_request(&mut guest, (IN, count), data), 1, "{count} of {size}");
                assert_eq!(long_request(&mut guest, (OUT, count), data), 1, "{count} of {size}");
            }
            guest.write(0, 0, &[2; 512]);
            assert_eq!(export.said(), Vec::<String>::new());
            drop(guest);
            export.works();
            export.stop();
        }
    }
}

#[test]
fn an_indirect_table_that_was_not_negotiated_breaks_its_ring() {
    for backend in BACKENDS {
        let export = Export::one(backend, SPEC);
        let mut guest = Guest::connect(&export.socket(0), 1);
        guest.set_up(&[64], |offered| offered & !(1 << 28));
        guest.describe(0, 0, (TABLES, 48), INDIRECT, 0);
        guest.give(0, 0);
        guest.until_broken(0);
        export.until_said("an indirect table of 48 bytes is not allowed here");
        drop(guest);
        export.works();
        export.stop();
    }
}

#[test]
fn scribbles_over_the_used_ring_change_nothing_for_the_device() {
    for backend in BACKENDS {
        let (volume, control) = faulty(SPEC, FaultCache::Inner);
        let export = Export::of(backend, &[volume, crate::vhost_support::volume(SPEC)], |_| {});
        let mut other = Guest::ready(&export.socket(1), &[64]);
        let mut guest = export.guest();
        guest.write(0, 0, &[7; 512]);
        control.add_rule(FaultRule::always(Effect::Stick));
        for slot in 0..16 {
            guest.submit(0, slot, (IN, 0), (guest.data + 512 * u64::from(slot), 512));
        }
        until("all of them stick", || control.struck() == 16);
        let used = guest.rings[0].at + USED;
        for seed in 0..50u8 {
            guest.memory.put(used, &vec![seed ^ 0xa5; 4 + 8 * 64]);
        }
        guest.memory.put_u16(used + 2, 40_000);
        // The suppression of kicks was written over, too.
        guest.memory.put_u16(used, 0);
        control.clear_rules();
        control.release_stuck();
        until("the device counts for itself", || guest.used_idx(0) == 17);
        let mut heads: Vec<_> = (1..17).map(|place| guest.used(0, place)).collect();
        heads.sort_unstable();
        assert_eq!(heads, (0..16).map(|slot| (3 * slot, 513)).collect::<Vec<_>>());
        assert_eq!(guest.memory.get(guest.data, 16 * 512), [7; 16 * 512]);
        guest.rings[0].used = 17;
        guest.write(0, 4, &[2; 512]);
        other.write(0, 0, &[9; 4096]);
        assert_eq!(export.said(), Vec::<String>::new());
        drop((guest, other));
        export.works();
        export.stop();
    }
}

#[test]
fn full_call_descriptor_blocks_nobody_and_none_need_be_read() {
    for backend in BACKENDS {
        let export = Export::one(backend, SPEC);
        let mut guest = export.guest();
        let full = (u64::MAX - 1).to_ne_bytes();
        // A queue that starts interrupts once, at a time of its own.
        while rustix::io::write(&guest.rings[0].call, &full).is_err() {
            count(&guest.rings[0].call);
        }
        rustix::io::write(&guest.rings[0].err, &full).unwrap();
        for round in 0..100 {
            guest.write(0, round, &[round as u8; 512]);
        }
        assert_eq!(guest.read(0, 99, 512), [99; 512]);
        guest.give(0, 64);
        export.until_said("descriptor index 64");
        assert!(count(&guest.rings[0].err) > 0);
        let kick = guest.rings[0].kick.as_fd();
        rustix::io::write(kick, &(u64::MAX - 1_000_000).to_ne_bytes()).unwrap();
        guest.reset();
        guest.write(0, 0, &[1; 512]);
        drop(guest);
        export.works();
        export.stop();
    }
}

#[test]
fn frontend_is_told_of_broken_rings_after_stops_and_resets() {
    for backend in BACKENDS {
        let export = Export::one(backend, SPEC);
        let mut guest = export.guest();
        let err = || guest.rings[0].err.try_clone().unwrap();
        let (told, known) = (err(), [(); 6].map(|()| err()));
        let mut known = known.into_iter();
        for stops in 1..3 {
            // QEMU does this where firmware hands over to an operating system.
            for _ in 0..stops {
                guest.write(0, 0, &[1; 512]);
                let base = guest.stop(0);
                guest.start_with(0, 64, base, known.next().unwrap());
            }
            guest.write(0, 0, &[1; 512]);
            assert_eq!(count(&told), 0);
            guest.describe(0, 30, (1 << 40, 512), 0, 0);
            guest.give(0, 30);
            until("the frontend is told", || count(&told) == 1);
            guest.wire.must(code::RESET_DEVICE, &[], &[]);
            guest.memory.put(0, &vec![0; guest.data as usize]);
            guest.wire.must(code::SET_FEATURES, &words(&[guest.features]), &[]);
            guest.start_with(0, 64, 0, known.next().unwrap());
        }
        export.works_after(guest);
    }
}

/// A guest whose frontend has the device hang in the descriptor for interrupts, with a request that
/// is answered by then.
fn hangs(export: &Export) -> (Guest, OwnedFd) {
    let mut guest = Guest::connect(&export.socket(0), 1);
    // Every answer interrupts.
    guest.set_up(&[64], |offered| offered & !EVENT_IDX);
    guest.write(0, 5, &[7; 512]);
    let call = guest.rings[0].call.try_clone().unwrap();
    let flags = rustix::fs::fcntl_getfl(&call).unwrap();
    let full = (u64::MAX - 1).to_ne_bytes();
    while rustix::io::write(&call, &full).is_err() {
        count(&call);
    }
    rustix::fs::fcntl_setfl(&call, flags - rustix::fs::OFlags::NONBLOCK).unwrap();
    guest.submit(0, 0, (IN, 5), (guest.data, 512));
    guest.wait(0, 1);
    (guest, call)
}

#[test]
fn an_interrupt_that_blocks_keeps_no_export_from_stopping() {
    for backend in BACKENDS {
        let export = Export::one(backend, SPEC);
        let (guest, _call) = hangs(&export);
        let start = Instant::now();
        export.stop();
        assert!(start.elapsed() < LONG / 2, "{:?}", start.elapsed());
        drop(guest);
    }
}

#[test]
fn interrupt_that_blocks_keeps_no_other_guest_from_export() {
    let export = Export::one(Backend::Auto, SPEC);
    let (guest, _call) = hangs(&export);
    drop(guest);
    let mut next = export.guest();
    assert_eq!(next.read(0, 5, 512), [7; 512]);
    export.works_after(next);
}
