//! The life of an I/O thread: serve, answer requests in flight, flush, free everything in order.
//!
//! - Requests that are not answered by the deadline of `Server::stop` are cut off. Cutting off may
//!   take another [`CUT_OFF_NS`].
//! - The final flush may then take one second more.
//! - A client without requests in flight is disconnected if it reads no reply for [`UNREAD_NS`].
//! - While a cache writes dirty pages, the thread waits for the cache, and for requests whose
//!   clients have left.
//!
//! Invariant: memory that the kernel or a drive may still access is leaked, never freed.

use std::sync::Arc;
use std::time::Duration;

use millrace_block::Error;
use millrace_machine::{Deadline, Machine, Native};

use super::Worker;
use crate::io_threads::Service;
use crate::nbd::connection::progress::LOOKS;
use crate::nbd::connection::{Connection, ConnectionPhase, client_log};
use crate::nbd::execute::WorkerContext;
use crate::nbd::ring::close_now;
use crate::nbd::server_state::ThreadMessage;
use crate::stop::{Progress, TURN_NS, goes_on};

pub(super) const CUT_OFF_NS: u64 = 500_000_000;
/// Time after which a client that reads none of its last replies is disconnected, in nanoseconds.
const UNREAD_NS: u64 = 1_000_000_000;

/// Outcome of stopping a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopReport {
    /// Number of connections cut off with unanswered requests.
    pub cut_off: u64,
    /// Messages about volumes that were not flushed, and about failures of rings.
    pub failures: Vec<String>,
}

impl StopReport {
    /// Returns true if everything was answered and flushed.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.cut_off == 0 && self.failures.is_empty()
    }

    pub(crate) fn add(&mut self, mut other: StopReport) {
        self.cut_off += other.cut_off;
        self.failures.append(&mut other.failures);
    }
}

impl Service for Worker {
    type Report = StopReport;

    fn fallback_reason(&mut self) -> Option<String> {
        self.core.ctx.reactor().fallback_reason().map(str::to_owned)
    }

    fn serve(&mut self) -> Result<(), Error> {
        self.accept_all();
        while !self.shared.ending.stop.is_given() {
            self.turn(None)?;
        }
        Ok(())
    }

    fn finish(&mut self, served: Result<(), Error>) -> (StopReport, u64) {
        let mut report = StopReport::default();
        let mut limit = self.shared.ending.stop.deadline();
        let ended = served
            .and_then(|()| self.drain(&mut limit, &mut report))
            .map(|()| open_used_lanes(self, &mut report.failures))
            .and_then(|()| self.flush(&mut limit, &mut report.failures));
        self.flush_part = None;
        if let Err(error) = ended.and_then(|()| self.await_flushes(&mut limit)) {
            report.failures.push(error.to_string());
        }
        self.publish();
        (report, limit.left_ns())
    }

    fn let_go(self, left_ns: u64) {
        let Worker { core, ring, shared, number, conns, .. } = self;
        let WorkerContext { ctx, mut submitter, pool, zeroes, .. } = core;
        // Each dropped channel waits up to `left_ns` for drives that do not answer, instead of 5 s.
        submitter
            .lanes
            .iter_mut()
            .for_each(|lane| lane.channel.set_drain_timeout(Duration::from_nanos(left_ns)));
        submitter.lanes.clear();
        drop(ctx);
        while let Some(message) = shared.mailboxes[number].take() {
            if let ThreadMessage::Connection(fd, _) = message {
                close_now(fd);
                shared.dismiss();
            }
        }
        // Memory of outstanding operations is leaked, because the kernel may still write to it.
        if ring.pending() > 0 || submitter.tickets.in_use() > 0 {
            std::mem::forget(conns);
            std::mem::forget(Arc::clone(&zeroes));
            std::mem::forget(pool);
        }
    }
}

impl Worker {
    fn drain(
        &mut self,
        limit: &mut Deadline<Native>,
        report: &mut StopReport,
    ) -> Result<(), Error> {
        if self.number == 0 {
            let exports = Arc::clone(&self.core.exports);
            exports.listeners().for_each(|listener| self.ring.cancel_accept(listener));
        }
        // The limits of groups are lifted, so that requests in flight complete soon.
        self.core.submitter.lanes.iter_mut().for_each(|lane| lane.channel.lift_limits());
        for conn in self.conns.iter_mut().flatten() {
            self.core.end_session(conn);
        }
        self.turn_until_idle(limit, 0)?;
        end_unread(self, |_| true);
        for conn in self.conns.iter_mut().flatten() {
            report.cut_off += u64::from(conn.phase != ConnectionPhase::Dead);
            self.core.kill(conn);
        }
        self.turn_until_idle(limit, CUT_OFF_NS)?;
        self.carry_out(limit)
    }

    /// Completes requests whose clients have left, before the thread flushes its volumes. Waits as
    /// long as caches make progress in writing dirty pages. If a write completed after the flush,
    /// its data would stay in the cache's memory and be lost.
    fn carry_out(&mut self, limit: &mut Deadline<Native>) -> Result<(), Error> {
        let volumes = &self.core.submitter.lanes.volumes();
        let mut progress: Vec<Progress> = volumes.iter().map(Progress::watched).collect();
        while !self.is_idle() && goes_on(&mut progress, limit.left_with_ns(CUT_OFF_NS)) {
            self.turn(Some(Native::now() + TURN_NS))?;
        }
        Ok(())
    }

    /// Runs the event loop until no client and no request is left, or until `more_ns` nanoseconds
    /// after the deadline `limit`.
    fn turn_until_idle(&mut self, limit: &mut Deadline<Native>, more_ns: u64) -> Result<(), Error> {
        let mut looked_ns = Native::now();
        while !self.is_idle() && limit.left_with_ns(more_ns) > 0 {
            self.turn(Some(Native::now() + TURN_NS))?;
            if Native::now() >= looked_ns + UNREAD_NS / u64::from(LOOKS) {
                looked_ns = Native::now();
                end_unread(self, |conn| conn.history.progress.is_stalled());
            }
        }
        Ok(())
    }

    /// Returns true if no client, no socket operation and no request is left. Overdue requests do
    /// not count. A request counts even if its client has left.
    fn is_idle(&self) -> bool {
        let submitter = &self.core.submitter;
        let overdue: u64 = submitter.lanes.iter().map(|lane| u64::from(lane.overdue)).sum();
        self.conns.iter().flatten().next().is_none()
            && self.ring.pending() == 0
            && submitter.tickets.in_use() as u64 <= overdue
    }
}

/// Opens all volumes that clients have used, so that the final flush covers them. Only thread 0
/// does this.
fn open_used_lanes(worker: &mut Worker, failures: &mut Vec<String>) {
    if worker.number != 0 {
        return;
    }
    let WorkerContext { ctx, submitter, exports, .. } = &mut worker.core;
    for served in exports.volumes.iter().filter(|served| served.was_used()) {
        if let Err(error) = submitter.lanes.open(ctx, served) {
            failures.push(format!("{}: no flush: {error}", served.volume.name()));
        }
    }
}

fn end_unread(worker: &mut Worker, mut is_over: impl FnMut(&mut Connection) -> bool) {
    for conn in worker.conns.iter_mut().flatten() {
        if conn.waits_for_reader() && is_over(conn) {
            client_log::unread(conn);
            worker.core.kill(conn);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use millrace_block::Op;

    use super::*;
    use crate::nbd::connection::client_log::tests::logged;
    use crate::nbd::memory::budget::MemoryPart;
    use crate::nbd::submit::ticket::TicketMemory;
    use crate::nbd::tests::{Rig, header, request, ticket, waiter};
    use millrace_nbd::Command;

    #[test]
    fn an_end_is_clean_if_nothing_was_cut_off_and_nothing_failed() {
        let report = |cut_off, failures: &[&str]| StopReport {
            cut_off,
            failures: failures.iter().map(|&text| text.to_owned()).collect(),
        };
        assert!(report(0, &[]).is_clean());
        assert!(!report(1, &[]).is_clean() && !report(0, &["a"]).is_clean());
        assert!(!report(1, &["a"]).is_clean());
        let mut sum = report(2, &["a"]);
        sum.add(report(3, &["b", "c"]));
        assert_eq!(sum, report(5, &["a", "b", "c"]));
    }

    #[test]
    fn flush_ends_writable_volumes_and_reports_its_failure() {
        let bad = "fault:drive=(ram:size=1m),volatile=on,status=eio,op=flush";
        let report = Rig::new(&["ram:size=1m", bad], |_| ()).finish();
        assert_eq!((report.cut_off, report.failures.len()), (0, 1), "{report:?}");
        assert!(report.failures[0].contains(": flush: "), "{report:?}");
        assert!(Rig::new(&["ram:size=1m", "null:size=1m"], |_| ()).finish().is_clean());
    }

    #[test]
    fn a_thread_is_idle_without_connections_and_operations() {
        let mut rig = Rig::new(&["null:size=1m"], |_| ());
        assert!(rig.is_idle());
        let (client, _) = rig.connect();
        assert!(!rig.is_idle());
        drop(client);
        rig.until("it is gone", |rig| rig.is_idle());
        rig.ring.accept(0, rig.shared.socket(0).unwrap());
        assert!(!rig.is_idle());
    }

    #[test]
    fn memory_outlives_its_thread_while_drive_may_still_write_to_it() {
        for is_busy in [false, true] {
            let mut rig = Rig::new(&["null:size=1m"], |_| ());
            let shared = Arc::clone(&rig.shared);
            let buffer = rig
                .core
                .pool
                .take(waiter(0, 0, 4096), MemoryPart::Window)
                .expect("the pool is empty");
            if is_busy {
                rig.core.submitter.tickets.insert(ticket(
                    Op::Read,
                    1,
                    TicketMemory::Buffer(buffer),
                ));
            } else {
                rig.core.pool.give(buffer);
            }
            assert!(rig.finish().is_clean());
            assert_eq!(shared.budget.mapped_bytes() > 0, is_busy);
        }
    }

    #[test]
    fn client_that_is_cut_off_hears_of_it_and_leaves_nothing_behind() {
        let mut rig = Rig::new(&["ram:size=1m"], |_| ());
        let (mut client, _) = rig.by_hand("0");
        let half = [header(&request(Command::Write, 0, 65_536)), vec![1; 1000]].concat();
        std::io::Write::write_all(&mut client, &half).expect("the socket has room");
        rig.until("the write has begun", |rig| rig.core.counts.requests == 1);
        rig.shared.ending.stop.give(Duration::ZERO);
        let shared = Arc::clone(&rig.shared);
        let report = rig.finish();
        assert_eq!((report.cut_off, report.failures.len()), (1, 0), "{report:?}");
        assert_eq!(shared.connections.open.load(Ordering::SeqCst), 0);
        assert_eq!(shared.budget.mapped_bytes(), 0);
        client.set_nonblocking(false).expect("it is a socket");
        let limit = Duration::from_secs(10);
        client.set_read_timeout(Some(limit)).expect("it is a socket");
        let ended = std::io::Read::read_to_end(&mut client, &mut Vec::new());
        // The server has not read all bytes that the client sent, so its close resets the
        // connection.
        let reset = std::io::ErrorKind::ConnectionReset;
        assert!(
            ended.as_ref().map_or_else(|e| e.kind() == reset, |bytes| *bytes == 0),
            "{ended:?}"
        );
    }

    #[test]
    fn a_thread_serves_its_drives_until_the_last_thread_has_flushed() {
        let mut rig = Rig::new(&["null:size=1m"], |config| config.threads = 3);
        rig.shared.ending.stop.give(Duration::from_secs(1000));
        let mut limit = rig.shared.ending.stop.deadline();
        let (shared, ended) = (Arc::clone(&rig.shared), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // A thread that did not wait would continue, and be noticed, in this time.
                for _ in 0..2 {
                    std::thread::sleep(Duration::from_millis(20));
                    ended.fetch_add(1, Ordering::SeqCst);
                    shared.flush_ended();
                }
            });
            rig.flush_part = None;
            rig.await_flushes(&mut limit).expect("the ring turns");
            assert_eq!(ended.load(Ordering::SeqCst), 2);
        });
    }

    #[test]
    fn client_that_reads_nothing_is_named_and_costs_a_second() {
        let mut rig = Rig::new(&["ram:size=8m"], |_| ());
        let (mut client, _) = rig.by_hand("0");
        let reads = header(&request(Command::Read, 0, 1 << 20)).repeat(4);
        std::io::Write::write_all(&mut client, &reads).expect("the socket has room");
        rig.until("they are taken", |rig| rig.core.counts.requests == 4);
        rig.shared.ending.stop.give(Duration::from_secs(60));
        let begun = std::time::Instant::now();
        let mut report = StopReport::default();
        let said = logged(|| report = rig.finish());
        assert!(report.is_clean(), "{report:?}");
        let process = format!(" (process {}) does not read its replies", std::process::id());
        assert!(said.contains("client 1 ") && said.contains(&process), "{said}");
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
    }

    #[test]
    fn answers_are_out_before_the_end_and_idle_clients_stay() {
        let mut rig = Rig::new(&["ram:size=1m"], |_| ());
        let (_idle, _) = rig.by_hand("0");
        let (mut client, _) = rig.by_hand("0");
        let reads = header(&request(Command::Read, 0, 4096)).repeat(3);
        std::io::Write::write_all(&mut client, &reads).expect("the socket has room");
        rig.until("they are taken", |rig| rig.core.counts.requests == 3);
        let report = rig.finish();
        assert!(report.is_clean(), "{report:?}");
        let mut answers = Vec::new();
        std::io::Read::read_to_end(&mut client, &mut answers).expect("the server has closed");
        assert_eq!(answers.len(), 3 * (16 + 4096));
    }
}
