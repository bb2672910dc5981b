//! Devices that die: the next device repeats exactly the requests in flight, in order.
//!
//! A device dies here by being forgotten with requests that are stuck forever, or by being killed
//! in a process of its own. The frontend owns the region that lists the requests in flight, so it
//! may contain anything.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::vhost_support::guest::{FLUSH, Guest, IN, OUT};
use crate::vhost_support::wire::{Wire, code};
use crate::vhost_support::{BACKENDS, Export, faulty, until, volume};
use millrace_block::{Op, Volume};
use millrace_drives::{Effect, FaultCache, FaultRule};
use millrace_exports::vhost::{Threads, VhostConfig, VhostExport, VhostServer, VhostSocket};
use millrace_machine::Native;
use millrace_reactor::Backend;

const SPEC: &str = "ram:size=16m";
/// Socket and file of the device in a process of its own.
const SERVES: &str = "MILLRACE_TEST_SERVES";

/// A guest with an inflight region for two queues of 64, whose frontend made its device here.
fn tracked(export: &Export) -> (Guest, (Vec<u8>, std::fs::File)) {
    let mut guest = Guest::connect(&export.socket(0), 2);
    guest.negotiate(|offered| offered);
    switch(&guest);
    taken_over(guest)
}

/// A guest with a new region, whose frontend has asked for nothing else.
fn taken_over(mut guest: Guest) -> (Guest, (Vec<u8>, std::fs::File)) {
    let inflight = guest.new_inflight(2);
    assert!(guest.set_inflight(&inflight));
    guest.share();
    guest.start(0, 64, 0);
    guest.start(1, 64, 0);
    (guest, inflight)
}

/// A drive that answers in the order in which it was asked.
fn in_order() -> Arc<Volume<Native>> {
    faulty(SPEC, FaultCache::Volatile).0
}

/// A write of one block of the slot's number to the slot's place.
fn write(guest: &mut Guest, q: usize, slot: u16) {
    let at = guest.data + 512 * u64::from(slot);
    guest.memory.put(at, &[slot as u8 + 1; 512]);
    guest.submit(q, slot, (OUT, u64::from(slot)), (at, 512));
}

#[test]
fn exactly_what_was_in_flight_is_done_again_and_in_order() {
    for backend in BACKENDS {
        let (volume, control) = faulty(SPEC, FaultCache::Inner);
        let mut first = Export::of(backend, &[volume], |_| {});
        let (mut guest, inflight) = tracked(&first);
        for slot in [11, 4, 7] {
            write(&mut guest, 0, slot);
            guest.wait(0, 1);
        }
        control.add_rule(FaultRule::always(Effect::Stick).on(Op::Write));
        let order = [9, 2, 15, 0, 6, 13, 1];
        order.into_iter().for_each(|slot| write(&mut guest, 0, slot));
        write(&mut guest, 1, 20);
        until("all stick", || control.struck() == 8);
        // A later read completes while the writes stick.
        guest.submit(0, 18, (IN, 4), (guest.data + 0x10_0000, 512));
        guest.wait(0, 1);
        assert_eq!(guest.memory.get(guest.data + 0x10_0000, 1), [5]);
        // The device dies: the stuck requests are never released.
        std::mem::forget(first.server.take());

        let next = Export::of(backend, &[in_order()], |_| {});
        guest.resume(Wire::connect(&next.socket(0)), Some(&inflight));
        let heads: Vec<_> = guest.wait(0, 7).into_iter().map(|(head, _)| head as u16 / 3).collect();
        assert_eq!(heads, order);
        assert_eq!(guest.wait(1, 1), [(60, 1)]);
        // The new drive holds the repeated writes, and none of those completed before.
        let blocks = guest.read(0, 0, 32 * 512);
        for slot in 0..32u16 {
            let again = order.contains(&slot) || slot == 20;
            let expected = if again { slot as u8 + 1 } else { 0 };
            assert_eq!(blocks[usize::from(slot) * 512], expected, "slot {slot}");
        }
        assert_eq!((guest.used_idx(0), guest.used_idx(1)), (12, 1), "nothing twice");
        until("all requests are counted", || next.stats().requests == 9);
        let lines = next.said();
        assert!(lines[0].ends_with(
            "queue 0: resubmitting 7 requests that were in flight when the server ended"
        ));
        drop(guest);
        next.works();
        next.stop();
    }
}

#[test]
fn what_is_done_again_may_be_done_again_once_more() {
    let (volume, control) = faulty(SPEC, FaultCache::Inner);
    control.add_rule(FaultRule::always(Effect::Stick));
    let mut first = Export::of(Backend::Auto, &[Arc::clone(&volume)], |_| {});
    let (mut guest, inflight) = tracked(&first);
    [5, 3, 8].into_iter().for_each(|slot| write(&mut guest, 0, slot));
    until("they stick", || control.struck() == 3);
    std::mem::forget(first.server.take());
    let (volume, control) = faulty(SPEC, FaultCache::Inner);
    control.add_rule(FaultRule::always(Effect::Stick));
    let mut second = Export::of(Backend::Auto, &[volume], |_| {});
    guest.resume(Wire::connect(&second.socket(0)), Some(&inflight));
    until("they stick again", || control.struck() == 3);
    write(&mut guest, 0, 1);
    until("one more", || control.struck() == 4);
    std::mem::forget(second.server.take());
    let third = Export::of(Backend::Auto, &[in_order()], |_| {});
    guest.resume(Wire::connect(&third.socket(0)), Some(&inflight));
    let heads: Vec<_> = guest.wait(0, 4).into_iter().map(|(head, _)| head / 3).collect();
    assert_eq!(heads, [5, 3, 8, 1]);
    third.stop();
}

#[test]
fn stopped_device_answers_requests_in_flight_and_is_idle() {
    for backend in BACKENDS {
        let (volume, control) = faulty(SPEC, FaultCache::Inner);
        control.add_rule(FaultRule::always(Effect::Delay(Duration::from_nanos(1_000_000_000))));
        let export = Export::of(backend, &[volume], |_| {});
        let (mut guest, inflight) = tracked(&export);
        (0..8).for_each(|slot| write(&mut guest, 0, slot));
        until("they are in flight", || export.stats().in_flight == 8);
        export.stop();
        guest.wait(0, 8);
        assert!((0..8).all(|slot| guest.status(0, slot) == 0));
        let next = Export::one(backend, SPEC);
        guest.resume(Wire::connect(&next.socket(0)), Some(&inflight));
        guest.write(0, 0, &[1; 512]);
        until("it is counted, and nothing else", || next.stats().requests == 1);
        assert_eq!(next.said(), Vec::<String>::new());
        next.stop();
    }
}

#[test]
fn garbage_in_the_region_harms_nobody() {
    for backend in BACKENDS {
        for (version, size) in [(1u16, 64u16), (7, 64), (1, 1024), (1, 65)] {
            let export = Export::one(backend, SPEC);
            let (mut guest, inflight) = tracked(&export);
            guest.write(0, 0, &[1; 512]);
            assert_eq!((guest.stop(0), guest.stop(1)), (1, 0));
            // Every counter at its end, every entry in flight, lists that lead everywhere.
            let bytes = inflight.1.metadata().unwrap().len() as usize;
            inflight.1.write_all_at(&vec![0xff; bytes], 0).unwrap();
            inflight.1.write_all_at(&version.to_ne_bytes(), 8).unwrap();
            inflight.1.write_all_at(&size.to_ne_bytes(), 10).unwrap();
            (0..64).for_each(|n| inflight.1.write_all_at(&[1], 16 + 16 * n).unwrap());
            guest.resume(Wire::connect(&export.socket(0)), Some(&inflight));
            if version == 1 && size == 64 {
                // The device carries out or refuses all 64 heads, none of which the guest offered.
                until("they are done or refused", || {
                    guest.used_idx(0) >= 2 || !export.said().is_empty()
                });
                guest.reset();
            }
            guest.write(0, 0, &[2; 512]);
            assert_eq!(guest.read(0, 0, 512), [2; 512]);
            drop(guest);
            export.works();
            export.stop();
        }
    }
}

#[test]
fn a_region_that_is_cut_off_or_none_harms_nobody() {
    for backend in BACKENDS {
        let export = Export::one(backend, SPEC);
        let (mut guest, inflight) = tracked(&export);
        guest.write(0, 0, &[1; 512]);
        inflight.1.set_len(0).unwrap();
        let slots = 0..16;
        slots.clone().for_each(|slot| write(&mut guest, 0, slot));
        // After a crash nobody could tell which requests were in flight, so the ring is out of
        // service.
        guest.until_broken(0);
        export.until_said("queue 0 is out of service");
        drop(guest);
        let mut guest = Guest::connect(&export.socket(0), 1);
        guest.negotiate(|offered| offered);
        assert!(!guest.set_inflight(&inflight), "its file is too short");
        drop(guest);
        export.works();
        export.stop();
    }
}

#[test]
fn region_tells_if_writes_are_durable_when_answered() {
    for on in [1u8, 0, 1] {
        let first = Export::one(Backend::Auto, SPEC);
        let (guest, inflight) = tracked(&first);
        let payload = [[32u32, 1, 0].map(u32::to_ne_bytes).concat(), vec![on]].concat();
        guest.wire.must(code::SET_CONFIG, &payload, &[]);
        assert_eq!(mark(&inflight), u64::from(1 - on) << 63);
        drop(guest);
        first.stop();
        let next = Export::one(Backend::Auto, SPEC);
        let mut guest = Guest::connect(&next.socket(0), 2);
        guest.negotiate(|offered| offered);
        assert!(guest.set_inflight(&inflight));
        assert_eq!(switch(&guest), on);
        drop(guest);
        next.stop();
    }
}

/// A volume that keeps unflushed data in the memory of its process.
fn cached() -> Arc<Volume<Native>> {
    faulty(SPEC, FaultCache::Volatile).0
}

fn flush(guest: &mut Guest, q: usize) -> u8 {
    guest.request(q, FLUSH, 0, (0, 0))
}

/// A write of one block, and its status.
fn status_of_write(guest: &mut Guest, q: usize) -> u8 {
    guest.request(q, OUT, 9, (guest.data, 512))
}

/// The switch in the configuration: 0 if writes are durable when they are answered.
fn switch(guest: &Guest) -> u8 {
    let asked = [[32u32, 1, 0].map(u32::to_ne_bytes).concat(), vec![0]].concat();
    guest.wire.ask(code::GET_CONFIG, &asked).unwrap()[12]
}

/// Sets the write-back switch: with 0, writes are durable when they are answered.
fn set_write_back(guest: &Guest, on: u8) {
    let payload = [[32u32, 1, 0].map(u32::to_ne_bytes).concat(), vec![on]].concat();
    guest.wire.must(code::SET_CONFIG, &payload, &[]);
}

/// The daemons' marks in the region, without the bit that every daemon sets.
fn mark(inflight: &(Vec<u8>, std::fs::File)) -> u64 {
    let mut word = [0; 8];
    inflight.1.read_exact_at(&mut word, 0).unwrap();
    u64::from_ne_bytes(word) & !(1 << 60)
}

#[test]
fn guest_of_another_server_has_durable_writes_until_its_switch() {
    let first = Export::one(Backend::Auto, SPEC);
    let (guest, inflight) = tracked(&first);
    // Other servers leave the word zero.
    inflight.1.write_all_at(&[0; 8], 0).unwrap();
    drop(guest);
    first.stop();
    let next = Export::of(Backend::Auto, &[cached()], |_| {});
    let mut guest = Guest::connect(&next.socket(0), 2);
    guest.negotiate(|offered| offered);
    assert!(guest.set_inflight(&inflight));
    assert_eq!(switch(&guest), 0);
    set_write_back(&guest, 1);
    assert_eq!(switch(&guest), 1);
    drop(guest);
    next.stop();
}

/// QEMU has no region to hand over if the other server knew of none: qemu-storage-daemon does not.
#[test]
fn guest_without_region_of_another_server_gets_durable_writes() {
    let (volume, control) = faulty(SPEC, FaultCache::Volatile);
    let export = Export::of(Backend::Auto, &[volume], |_| {});
    let mut guest = Guest::connect(&export.socket(0), 2);
    guest.negotiate(|offered| offered);
    let (mut guest, inflight) = taken_over(guest);
    assert_eq!(mark(&inflight), 1 << 63);
    assert_eq!(status_of_write(&mut guest, 0), 0);
    assert_eq!(control.power_cut(1), 0, "what was answered is durable");
    assert_eq!(switch(&guest), 0);
    let said = export.said();
    assert!(said[0].contains("this guest was started on another server"), "{said:?}");
    drop(guest);
    export.stop();
}

const LOSS: &str = "the last daemon ended before it flushed writes that it had answered; the \
                    guest's next flush fails with an I/O error to report this";

#[test]
fn first_flush_after_death_that_lost_writes_fails_and_no_other() {
    for backend in BACKENDS {
        // Also where the next daemon serves fewer queues, or has no cache any more.
        for (queues, is_cached) in [(4, true), (1, true), (4, false)] {
            let mut first = Export::of(backend, &[cached()], |_| {});
            let (mut guest, inflight) = tracked(&first);
            assert_eq!((status_of_write(&mut guest, 0), flush(&mut guest, 1)), (0, 0));
            assert_eq!(mark(&inflight), 0);
            assert_eq!(status_of_write(&mut guest, 1), 0);
            assert_ne!(mark(&inflight), 0);
            std::mem::forget(first.server.take());

            let next = if is_cached { cached() } else { in_order_without_cache() };
            let mut next = Export::of(backend, &[next], |export| {
                export.queues = queues;
                export.threads = Threads::Count(queues.min(2));
            });
            guest.rings.truncate(queues.into());
            guest.resume(Wire::connect(&next.socket(0)), Some(&inflight));
            // The bit is the device's: any queue hears of it.
            let last = guest.rings.len() - 1;
            assert_eq!(next.said(), [format!("export v0: {LOSS}")]);
            guest.read(last, 0, 512);
            assert_eq!((flush(&mut guest, last), flush(&mut guest, 0)), (1, 0));
            assert_eq!(flush(&mut guest, last), 0);
            assert_eq!(mark(&inflight), 0, "told");
            until("the error is counted", || next.stats().errors == 1);
            // Nothing was written since.
            std::mem::forget(next.server.take());
            let third = Export::of(backend, &[cached()], |_| {});
            guest.resume(Wire::connect(&third.socket(0)), Some(&inflight));
            assert_eq!(flush(&mut guest, 0), 0);
            assert_eq!(third.said(), Vec::<String>::new());
            third.stop();
        }
    }
}

/// A drive without a cache in its process.
fn in_order_without_cache() -> Arc<Volume<Native>> {
    faulty(SPEC, FaultCache::Inner).0
}

#[test]
fn a_loss_that_no_daemon_told_is_told_by_the_one_after_it() {
    let mut first = Export::of(Backend::Auto, &[cached()], |_| {});
    let (mut guest, inflight) = tracked(&first);
    assert_eq!(status_of_write(&mut guest, 0), 0);
    std::mem::forget(first.server.take());
    for _ in 0..3 {
        let mut next = Export::of(Backend::Auto, &[cached()], |_| {});
        guest.resume(Wire::connect(&next.socket(0)), Some(&inflight));
        // Reads and writes go on; then it dies without a flush.
        assert_eq!(status_of_write(&mut guest, 1), 0);
        guest.read(0, 0, 512);
        std::mem::forget(next.server.take());
    }
    // A stop that flushes has lost nothing itself, and does not hide the loss before it.
    let stopped = Export::of(Backend::Auto, &[cached()], |_| {});
    guest.resume(Wire::connect(&stopped.socket(0)), Some(&inflight));
    stopped.stop();
    let last = Export::of(Backend::Auto, &[cached()], |_| {});
    guest.resume(Wire::connect(&last.socket(0)), Some(&inflight));
    assert_eq!((flush(&mut guest, 0), flush(&mut guest, 1)), (1, 0));
    last.stop();
}

#[test]
fn guest_without_flushes_hears_of_lost_writes_by_its_next_write() {
    let mut first = Export::of(Backend::Auto, &[cached()], |_| {});
    let (mut guest, inflight) = tracked(&first);
    assert_eq!(status_of_write(&mut guest, 0), 0);
    set_write_back(&guest, 0);
    std::mem::forget(first.server.take());
    let mut next = Export::of(Backend::Auto, &[cached()], |_| {});
    guest.resume(Wire::connect(&next.socket(0)), Some(&inflight));
    guest.read(1, 0, 512);
    assert_eq!((status_of_write(&mut guest, 1), status_of_write(&mut guest, 0)), (1, 0));
    // Writes are durable now, so nothing can be lost any more.
    until("the loss is forgotten", || mark(&inflight) == 1 << 63);
    std::mem::forget(next.server.take());
    let last = Export::of(Backend::Auto, &[cached()], |_| {});
    guest.resume(Wire::connect(&last.socket(0)), Some(&inflight));
    assert_eq!((status_of_write(&mut guest, 1), flush(&mut guest, 0)), (0, 0));
    last.stop();
}

#[test]
fn nobody_hears_of_a_loss_where_there_is_none() {
    let stop = |mut export: Export, kills: bool| match kills {
        true => std::mem::forget(export.server.take()),
        false => export.stop(),
    };
    // A drive without a cache in the process, killed; a stop that flushes.
    for (volume, kills) in [(in_order_without_cache(), true), (cached(), false)] {
        let first = Export::of(Backend::Auto, &[volume], |_| {});
        let (mut guest, inflight) = tracked(&first);
        assert_eq!(status_of_write(&mut guest, 0), 0);
        stop(first, kills);
        assert_eq!(mark(&inflight), 0);
        let next = Export::of(Backend::Auto, &[cached()], |_| {});
        guest.resume(Wire::connect(&next.socket(0)), Some(&inflight));
        assert_eq!(flush(&mut guest, 0), 0);
        // A frontend that comes back to a daemon that lives.
        assert_eq!(status_of_write(&mut guest, 0), 0);
        assert_ne!(mark(&inflight), 0);
        guest.wire.stream.shutdown(std::net::Shutdown::Both).unwrap();
        until("it has gone", || next.stats().queues == 0);
        guest.resume(Wire::connect(&next.socket(0)), Some(&inflight));
        assert_eq!((flush(&mut guest, 0), mark(&inflight)), (0, 0));
        assert_eq!(next.said(), Vec::<String>::new());
        next.stop();
    }
}

#[test]
fn a_guest_that_starts_anew_hears_of_no_loss_before_it() {
    for is_reset in [true, false] {
        let mut first = Export::of(Backend::Auto, &[cached()], |_| {});
        let (mut guest, inflight) = tracked(&first);
        assert_eq!(status_of_write(&mut guest, 0), 0);
        std::mem::forget(first.server.take());
        let next = Export::of(Backend::Auto, &[cached()], |_| {});
        guest.resume(Wire::connect(&next.socket(0)), Some(&inflight));
        if is_reset {
            guest.reset();
        } else {
            // As QEMU does where its guest resets the device: another region.
            guest.stop(0);
            guest.stop(1);
            let other = guest.new_inflight(2);
            assert!(guest.set_inflight(&other));
            guest.memory.put(0, &vec![0; guest.data as usize]);
            guest.start(0, 64, 0);
            guest.start(1, 64, 0);
        }
        assert_eq!(flush(&mut guest, 0), 0);
        next.stop();
    }
}

#[test]
fn a_write_that_is_answered_while_a_flush_is_under_way_is_owed() {
    let (volume, control) = faulty(SPEC, FaultCache::Volatile);
    let mut first = Export::of(Backend::Auto, &[volume], |_| {});
    let (mut guest, inflight) = tracked(&first);
    assert_eq!(status_of_write(&mut guest, 0), 0);
    control.add_rule(FaultRule::always(Effect::Stick).on(Op::Flush));
    guest.submit(1, 5, (FLUSH, 0), (0, 0));
    until("the flush sticks", || control.struck() == 1);
    assert_eq!(status_of_write(&mut guest, 0), 0);
    control.clear_rules();
    control.release_stuck();
    guest.wait(1, 1);
    assert_eq!(guest.status(1, 5), 0);
    std::mem::forget(first.server.take());
    let next = Export::of(Backend::Auto, &[cached()], |_| {});
    guest.resume(Wire::connect(&next.socket(0)), Some(&inflight));
    assert_eq!((flush(&mut guest, 1), flush(&mut guest, 0)), (1, 0));
    next.stop();
}

#[test]
fn a_reset_forgets_what_was_in_flight() {
    for backend in BACKENDS {
        let export = Export::one(backend, SPEC);
        let (mut guest, inflight) = tracked(&export);
        guest.write(0, 3, &[9; 512]);
        // A head that was taken, breaks the ring, and is never answered.
        guest.describe(0, 30, (1 << 40, 512), 0, 0);
        guest.give(0, 30);
        guest.until_broken(0);
        guest.reset();
        assert_eq!(guest.read(0, 3, 512), [9; 512]);
        guest.write(0, 4, &[8; 512]);
        assert_eq!(export.said().len(), 1, "{:?}", export.said());
        drop((guest, inflight));
        export.works();
        export.stop();
    }
}

/// Serves in a process of its own until its standard input ends.
#[test]
fn the_child_of_the_next_test_serves_until_it_is_killed() {
    let Ok(text) = std::env::var(SERVES) else { return };
    let (socket, file) = text.split_once(' ').unwrap();
    let export = VhostExport {
        name: "child".to_owned(),
        volume: volume(&format!("file:path={file},size=16m,lock=off")),
        read_only: false,
        socket: VhostSocket::Listen(socket.into(), millrace_exports::SocketAccess::default()),
        queues: 2,
        threads: Threads::Count(1),
        cpus: Vec::new(),
        first_thread: 0,
        serial: String::new(),
        poll_max: Duration::ZERO,
        wait_max: Duration::ZERO,
        event_idx: true,
        tenant: 0,
        group: millrace_exports::ClientGroup::default(),
    };
    let say = Arc::new(|_: &str| {});
    let config = VhostConfig { exports: vec![export], backend: Backend::Auto, say };
    let server = VhostServer::start(config).unwrap();
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
    drop(server);
}

fn child(socket: &Path, file: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "vhost_inflight::the_child_of_the_next_test_serves_until_it_is_killed"])
        .env(SERVES, format!("{} {}", socket.display(), file.display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn reach(socket: &Path) -> Wire {
    let mut wire = None;
    until("the child serves", || {
        wire = std::os::unix::net::UnixStream::connect(socket).ok();
        wire.is_some()
    });
    Wire::over(wire.unwrap())
}

#[test]
fn device_killed_under_load_loses_and_repeats_no_request() {
    const SLOTS: u16 = 21;
    let dir = tempfile::Builder::new().prefix("mr-").tempdir().unwrap();
    let (socket, file) = (dir.path().join("s"), dir.path().join("d"));
    let mut device = child(&socket, &file);
    let mut guest = Guest::over(reach(&socket), 1);
    guest.negotiate(|offered| offered);
    let inflight = guest.new_inflight(1);
    assert!(guest.set_inflight(&inflight));
    guest.share();
    guest.start(0, 64, 0);
    // The version that each slot wrote last, and if the slot's write is in flight.
    let mut versions = [0u8; SLOTS as usize];
    let mut busy = [false; SLOTS as usize];
    let mut done = 0;
    for life in 0..6u64 {
        let goal = done + 300 + 97 * life;
        while done < goal {
            for slot in (0..SLOTS).filter(|slot| !busy[usize::from(*slot)]).collect::<Vec<_>>() {
                let version = &mut versions[usize::from(slot)];
                *version = version.wrapping_add(1);
                let at = guest.data + 4096 * u64::from(slot);
                guest.memory.put(at, &[*version; 4096]);
                busy[usize::from(slot)] = true;
                guest.submit(0, slot, (OUT, 8 * u64::from(slot)), (at, 4096));
            }
            done += take(&mut guest, &mut busy);
        }
        device.kill().unwrap();
        device.wait().unwrap();
        device = child(&socket, &file);
        guest.resume(reach(&socket), Some(&inflight));
    }
    until("all of them are answered", || {
        take(&mut guest, &mut busy);
        !busy.contains(&true)
    });
    for slot in 0..SLOTS {
        let version = versions[usize::from(slot)];
        assert_eq!(guest.read(0, 8 * u64::from(slot), 4096), vec![version; 4096], "slot {slot}");
    }
    drop(device.stdin.take());
    device.wait().unwrap();
}

/// Takes new answers; each must belong to a request in flight.
fn take(guest: &mut Guest, busy: &mut [bool]) -> u64 {
    let new = guest.used_idx(0).wrapping_sub(guest.rings[0].used);
    assert!(new <= busy.len() as u16, "{new} answers");
    for (head, _) in guest.wait(0, new) {
        let slot = head as usize / 3;
        assert!(std::mem::replace(&mut busy[slot], false), "slot {slot} is answered twice");
        assert_eq!(guest.status(0, slot as u16), 0);
    }
    new.into()
}
