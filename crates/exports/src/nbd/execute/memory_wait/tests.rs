//! Tests how much memory connections get, to the byte: within their window, their volume's part and
//! their share of free memory, and while others wait.

use std::os::unix::net::UnixStream;

use super::*;
use crate::nbd::connection::ExportSession;
use crate::nbd::memory::waiting_line::size_class;
use crate::nbd::tests::{MIB, Rig, connection, request, waiter};

/// An I/O thread with two sessions, one for an export of each of two volumes.
struct Trial {
    rig: Rig,
    granted: Vec<ExportSession>,
    _clients: Vec<UnixStream>,
}

/// The reason why a request got no buffer.
#[derive(Debug, PartialEq)]
enum Without {
    Waits,
    Refused(Errno),
}

impl Trial {
    /// Creates a budget of 64 MiB: windows of 1 MiB, and 48 MiB shared by all, of which each size
    /// class leaves 4 MiB to each smaller class.
    fn new() -> Trial {
        Trial::with(&["null:size=64m", "null:size=64m"], 64)
    }

    fn with(specs: &[&str], mib: u64) -> Trial {
        let mut rig = Rig::new(specs, |config| {
            (config.memory_max_bytes, config.connections_max) = (mib << 20, 16);
        });
        let (mut granted, mut clients) = (Vec::new(), Vec::new());
        for name in 0..specs.len() {
            let (client, index) = rig.by_hand(&name.to_string());
            granted.extend(rig.conns[index].as_ref().unwrap().granted);
            clients.push(client);
        }
        Trial { rig, granted, _clients: clients }
    }

    fn read(
        &mut self,
        conn: &mut Connection,
        lane: usize,
        bytes: usize,
    ) -> Result<PoolBuffer, Without> {
        let request = request(Command::Read, 0, bytes as u64);
        let faults = |trial: &Trial| trial.rig.shared.exports().list[lane].faults.report("").count;
        let before = faults(self);
        let export = std::sync::Arc::clone(&self.rig.shared.exports().list[lane]);
        let seat = export.group.enter();
        conn.history.export = Some((export, seat));
        let granted = self.granted[lane];
        let asked = ClientRequest { granted: &granted, request: &request };
        self.rig.core.buffer(conn, asked, bytes).map_err(|taken| match taken {
            TakeResult::NoMemory => Without::Waits,
            _ if faults(self) > before => Without::Refused(Errno::Eio),
            _ => Without::Refused(Errno::Enomem),
        })
    }

    /// Takes `mib` MiB for other connections, as regions of 2 MiB, or from 16 MiB on as a single
    /// region.
    fn map(&self, mib: usize) {
        let (budget, part) = (&self.rig.shared.budget, MemoryPart::Window);
        let bytes = if mib < 16 { 2 * MIB } else { mib * MIB };
        let regions = mib * MIB / bytes;
        (0..regions).for_each(|_| assert!(budget.admit(waiter(9, 0, bytes), part, bytes)));
    }

    fn unmap(&self, mib: usize) {
        let (class, bytes) = if mib < 16 { (1, 2 * MIB) } else { (2, mib * MIB) };
        (0..mib * MIB / bytes).for_each(|_| self.rig.shared.budget.unmap(class, bytes));
    }

    fn join(&self, waiter: MemoryWaiter) {
        self.rig.shared.budget.change_line(|line| line.waiters.push_back(waiter));
    }

    fn give(&mut self, buffer: PoolBuffer) {
        self.rig.core.pool.give(buffer);
    }
}

#[test]
fn volume_holds_no_more_than_is_left_for_others() {
    let mut trial = Trial::new();
    let [first, second] = [trial.granted[0], trial.granted[1]];
    let most = |rig: &Rig, bytes| {
        [0, 1].map(|more| rig.core.lane_may_hold(first.lane, bytes + more)) == [true, false]
    };
    assert!(
        trial.rig.core.lane_may_hold(first.lane, 100 * MIB),
        "whatever its first request takes"
    );
    trial.rig.core.submitter.lanes[0].held_bytes = 4 * MIB;
    assert!(trial.rig.core.lane_may_hold(second.lane, 100 * MIB), "the other one has nothing");
    assert!(most(&trial.rig, 60 * MIB));
    // 4 MiB are mapped and unused, and 10 MiB are left.
    let idle = trial.rig.core.pool.take(waiter(0, 0, 4 * MIB), MemoryPart::Window).unwrap();
    trial.give(idle);
    trial.map(50);
    assert!(most(&trial.rig, 10 * MIB));
    trial.rig.core.threads = 2;
    assert!(most(&trial.rig, 3 * MIB), "half of it for each thread");
    trial.unmap(50);
    trial.rig.core.submitter.lanes[0].held_bytes = 0;
    drop(trial);
    let mut single = Trial::with(&["null:size=1m"], 64);
    let granted = single.granted[0];
    single.rig.core.submitter.lanes[0].held_bytes = 1 << 40;
    assert!(
        single.rig.core.lane_may_hold(granted.lane, 4096),
        "alone it keeps nothing from others"
    );
    single.rig.core.submitter.lanes[0].held_bytes = 0;
}

#[test]
fn request_beyond_its_part_waits_or_learns_of_a_stuck_volume() {
    let mut trial = Trial::new();
    let (mut conn, _sockets) = connection(3);
    trial.rig.core.submitter.lanes[1].held_bytes = 64 * MIB;
    trial.join(waiter(0, 3, 4 * MIB));
    conn.memory_wait = MemoryWait::Queued;
    assert_eq!(trial.read(&mut conn, 1, 4 * MIB).unwrap_err(), Without::Waits);
    assert_eq!(
        (conn.memory_wait, &trial.rig.core.submitter.lanes[1].memory_waiters[..]),
        (MemoryWait::Buffers, &[0][..])
    );
    assert!(!trial.rig.shared.budget.has_waiters(), "the connection has left the line");
    trial.rig.core.submitter.lanes[1].overdue = 1;
    let refused = trial.read(&mut conn, 1, 4 * MIB).unwrap_err();
    assert_eq!(refused, Without::Refused(Errno::Eio));
    assert_eq!(trial.rig.core.submitter.lanes[1].memory_waiters.len(), 1);
    // A request within its connection's window gets memory, however much its volume holds.
    let buffers = [0, 1].map(|lane| trial.read(&mut conn, lane, 4096).unwrap());
    assert_eq!(conn.held_bytes, 8192);
    buffers.into_iter().for_each(|buffer| trial.give(buffer));
    let lane = &mut trial.rig.core.submitter.lanes[1];
    (lane.held_bytes, lane.overdue) = (0, 0);
}

#[test]
fn request_within_its_window_comes_whatever_others_hold() {
    let mut trial = Trial::new();
    trial.map(62);
    let (mut conn, _sockets) = connection(3);
    assert_eq!(trial.read(&mut conn, 0, 4 * MIB).unwrap_err(), Without::Waits);
    assert_eq!(conn.memory_wait, MemoryWait::Queued, "it holds nothing");
    assert!(trial.rig.shared.budget.take_news());
    assert_eq!(trial.read(&mut conn, 0, 4 * MIB).unwrap_err(), Without::Waits);
    assert!(!trial.rig.shared.budget.take_news(), "it is in the line already");
    assert_eq!(trial.rig.core.counts.memory_waits, 1);
    let buffers = [(); 2].map(|()| trial.read(&mut conn, 0, MIB / 2).unwrap());
    assert_eq!(conn.held_bytes, MIB);
    conn.stop_waiting(&mut trial.rig.core.pool);
    assert!(trial.rig.shared.budget.take_news() && !trial.rig.shared.budget.has_waiters());
    assert_eq!(trial.read(&mut conn, 0, 4096).unwrap_err(), Without::Waits);
    assert_eq!(conn.memory_wait, MemoryWait::Buffers, "some of what it holds has to come back");
    assert!(!trial.rig.shared.budget.has_waiters());
    conn.stop_waiting(&mut trial.rig.core.pool);
    assert!(!trial.rig.shared.budget.take_news(), "which is nobody else's business");
    buffers.into_iter().for_each(|buffer| trial.give(buffer));
    trial.unmap(62);
}

#[test]
fn above_its_window_connection_holds_eighth_of_what_is_free() {
    // 48 MiB are shared, so a connection may hold an eighth of that: 6 MiB.
    for (others, fits) in [(0, true), (2, false)] {
        let mut trial = Trial::new();
        trial.map(others);
        let (mut conn, _sockets) = connection(3);
        conn.held_bytes = 2 * MIB;
        let found = trial.read(&mut conn, 0, 4 * MIB);
        assert_eq!(found.is_ok(), fits, "{others}");
        let (wait, held) = if fits { (MemoryWait::None, 6) } else { (MemoryWait::Buffers, 2) };
        assert_eq!((conn.memory_wait, conn.held_bytes), (wait, held * MIB));
        found.into_iter().for_each(|buffer| trial.give(buffer));
        trial.unmap(others);
    }
}

#[test]
fn requests_of_a_waiting_size_and_above_queue_behind_it() {
    let mut trial = Trial::new();
    let [mut first, mut second, mut holder] = [3, 4, 5].map(|serial| connection(serial).0);
    trial.map(16);
    assert!(
        trial.rig.core.pool.take(waiter(0, 0, 32 * MIB), MemoryPart::Window).is_some(),
        "it is leaked"
    );
    assert_eq!(trial.read(&mut first, 0, 4 * MIB).unwrap_err(), Without::Waits);
    trial.unmap(16);
    assert_eq!(trial.read(&mut second, 0, 4 * MIB).unwrap_err(), Without::Waits);
    assert_eq!(second.memory_wait, MemoryWait::Queued, "there is room, and the first comes first");
    holder.held_bytes = 4096;
    let little = trial.read(&mut holder, 0, MIB).expect("a small request overtakes larger ones");
    trial.give(little);
    holder.held_bytes = 4096;
    trial.join(waiter(1, 9, MIB));
    assert_eq!(trial.read(&mut holder, 0, MIB).unwrap_err(), Without::Waits);
    assert_eq!(holder.memory_wait, MemoryWait::Buffers);
    let buffer = trial.read(&mut first, 0, 4 * MIB).expect("it is its turn");
    trial.give(buffer);
    for conn in [&mut first, &mut second] {
        conn.stop_waiting(&mut trial.rig.core.pool);
    }
    trial.rig.shared.budget.change_line(|line| line.leave(1, 9));
}

#[test]
fn request_for_which_there_will_never_be_memory_is_told_so() {
    let mut trial = Trial::with(&["null:size=64m"], 8);
    let (mut conn, _sockets) = connection(3);
    let refused = Without::Refused(Errno::Enomem);
    assert_eq!(trial.read(&mut conn, 0, 8 * MIB + 1).unwrap_err(), refused);
    assert_eq!(trial.read(&mut conn, 0, 64 * MIB).unwrap_err(), refused);
    assert_eq!(conn.memory_wait, MemoryWait::None);
    let buffer = trial.read(&mut conn, 0, 8 * MIB).unwrap();
    trial.give(buffer);
}

#[test]
fn requests_without_room_beside_a_stuck_drive_are_refused() {
    let mut trial = Trial::new();
    let (mut conn, _sockets) = connection(3);
    let mut stuck = trial.rig.core.pool.take(waiter(0, 0, 32 * MIB), MemoryPart::Shared).unwrap();
    assert_eq!(trial.read(&mut conn, 1, 32 * MIB).unwrap_err(), Without::Waits);
    trial.rig.core.pool.begin_stuck(&mut stuck);
    for mib in [32, 16] {
        let refused = trial.read(&mut conn, 1, mib * MIB).unwrap_err();
        assert_eq!(refused, Without::Refused(Errno::Enomem), "{mib} MiB");
    }
    let mut holder = connection(4).0;
    let little = trial.read(&mut holder, 1, 4096).unwrap();
    assert_eq!(trial.read(&mut holder, 1, 32 * MIB).unwrap_err(), Without::Waits);
    assert_eq!(holder.memory_wait, MemoryWait::Buffers, "what it holds comes back first");
    trial.give(little);
    let buffer = trial.read(&mut conn, 1, 8 * MIB).unwrap();
    trial.give(buffer);
    trial.give(stuck);
    conn.stop_waiting(&mut trial.rig.core.pool);
    conn.held_bytes = 0;
    let buffer = trial.read(&mut conn, 1, 32 * MIB).expect("the drive has answered");
    trial.give(buffer);
}

#[test]
fn of_those_to_try_again_only_those_that_wait_are_looked_at() {
    let mut trial = Trial::new();
    let (_client, index) = trial.rig.by_hand("0");
    for (memory_wait, touches) in [(MemoryWait::None, false), (MemoryWait::Buffers, true)] {
        trial.rig.core.touched.clear();
        let conn = trial.rig.conns[index].as_mut().unwrap();
        (conn.memory_wait, conn.history.touched) = (memory_wait, false);
        trial.rig.core.submitter.retry.push(index);
        trial.rig.retry_memory_waits();
        assert_eq!(trial.rig.core.touched.len(), usize::from(touches), "{memory_wait:?}");
        assert!(trial.rig.core.submitter.retry.is_empty());
    }
}

#[test]
fn queued_connections_take_turns_and_others_are_left_alone() {
    let mut trial = Trial::new();
    let (_client, index) = trial.rig.by_hand("0");
    let serial = trial.rig.conns[index].as_ref().unwrap().serial;
    let own = MemoryWaiter { index, ..waiter(0, serial, 4 * MIB) };
    trial.rig.conns[index].as_mut().unwrap().memory_wait = MemoryWait::Queued;
    trial.join(waiter(1, 77, 4 * MIB));
    trial.join(own);
    trial.rig.core.touched.clear();
    trial.rig.conns[index].as_mut().unwrap().history.touched = false;
    trial.rig.retry_memory_waits();
    assert!(trial.rig.core.touched.is_empty(), "another thread's is first");
    trial.rig.shared.budget.change_line(|line| line.leave(1, 77));
    trial.rig.retry_memory_waits();
    assert_eq!(trial.rig.core.touched, [index]);
    assert_eq!(trial.rig.shared.budget.next(size_class(own.bytes)), Some(own), "it still waits");
    let worker = &mut *trial.rig;
    worker.conns[index].as_mut().unwrap().stop_waiting(&mut worker.core.pool);
}

#[test]
fn other_threads_hear_news_while_somebody_waits_for_memory() {
    let mut rig = Rig::new(&["null:size=1m"], |config| {
        (config.threads, config.memory_max_bytes) = (2, 8 << 20);
    });
    let told = |rig: &mut Rig| {
        let before = rig.shared.changes();
        rig.share_memory();
        rig.shared.changes() - before
    };
    rig.shared.budget.announce();
    assert_eq!(told(&mut rig), 0, "nobody waits");
    rig.shared.budget.change_line(|line| line.waiters.push_back(waiter(1, 5, MIB)));
    assert_eq!([told(&mut rig), told(&mut rig)], [1, 0], "once");
    let idle = rig.core.pool.take(waiter(0, 0, 4096), MemoryPart::Window).unwrap();
    rig.core.pool.give(idle);
    assert_eq!([told(&mut rig), told(&mut rig)], [1, 0], "something was given back");
    assert_eq!(rig.shared.budget.mapped_bytes(), 0);
    rig.shared.budget.change_line(|line| line.leave(1, 5));
    rig.follow_changes();
    assert_eq!(rig.seen_changes, rig.shared.changes());
}
