//! The end of an I/O thread: answer what is in flight, flush, let go of everything in order.
//!
//! Called once by the thread's main function after `Worker::serve`. Bounded by the deadline of
//! `Server::stop`: what is not answered by then is cut off.
//!
//! Invariant: memory that the kernel or a drive may still touch is leaked, never freed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millrace_block::{Bio, Error, Status};
use millrace_machine::{Machine, Native};

use super::connection::Phase;
use super::ring::{close_now, shut_down_input};
use super::shared::Mailbox;
use super::worker::{Worker, touch};

/// User data of a flush, which no ticket has.
const FLUSH: u64 = 1 << 32;
/// Longest sleep of one turn while draining.
const TURN_NS: u64 = 10_000_000;

/// What the end of a server was like.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopReport {
    /// Connections cut off with requests unanswered.
    pub cut_off: u64,
    /// Volumes that did not flush, and ring failures, in words.
    pub failures: Vec<String>,
}

impl StopReport {
    /// Everything was answered and flushed.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.cut_off == 0 && self.failures.is_empty()
    }

    pub(crate) fn add(&mut self, mut other: StopReport) {
        self.cut_off += other.cut_off;
        self.failures.append(&mut other.failures);
    }
}

impl Worker {
    /// Ends the thread's part of the server.
    pub(crate) fn finish(mut self, served: Result<(), Error>) -> StopReport {
        let mut report = StopReport::default();
        let ended = match served {
            Ok(()) => self.drain(&mut report).and_then(|()| self.flush(&mut report)),
            Err(error) => Err(error),
        };
        let ended = match ended {
            Ok(()) => self.await_others(),
            Err(error) => {
                self.shared.flushed.fetch_add(1, Ordering::SeqCst);
                Err(error)
            }
        };
        if let Err(error) = ended {
            report.failures.push(error.to_string());
        }
        self.publish();
        self.let_go();
        report
    }

    fn drain(&mut self, report: &mut StopReport) -> Result<(), Error> {
        let deadline_ns = self.shared.stop_deadline_ns.get().copied().unwrap_or(0);
        if self.number == 0 {
            for listener in 0..self.shared.listeners.len() {
                self.ring.cancel_accept(listener);
            }
        }
        for conn in self.conns.iter_mut().flatten() {
            conn.drain(&mut self.core.tickets, &mut self.core.pool);
            shut_down_input(conn.fd);
            touch(&mut self.touched, conn);
        }
        while !self.is_idle() && Native::now() < deadline_ns {
            self.turn(Some(Native::now() + TURN_NS))?;
        }
        for conn in self.conns.iter_mut().flatten() {
            report.cut_off += u64::from(conn.phase != Phase::Dead);
            conn.kill(&mut self.core.tickets, &mut self.core.pool);
            touch(&mut self.touched, conn);
        }
        let deadline_ns = deadline_ns.max(Native::now()) + 100 * TURN_NS;
        while !self.is_idle() && Native::now() < deadline_ns {
            self.turn(Some(Native::now() + TURN_NS))?;
        }
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.conns.iter().flatten().next().is_none() && self.ring.pending() == 0
    }

    fn flush(&mut self, report: &mut StopReport) -> Result<(), Error> {
        let deadline_ns =
            Native::now().max(*self.shared.stop_deadline_ns.get().unwrap_or(&0)) + 100 * TURN_NS;
        for lane in 0..self.core.lanes.len() {
            let name = self.core.exports.volumes[lane].name().to_owned();
            let channel = &mut self.core.lanes[lane].channel;
            if channel.volume().limits().features.read_only {
                continue;
            }
            if let Err(rejected) = channel.submit(Bio::flush().with_user_data(FLUSH)) {
                report.failures.push(format!("{name}: no flush: {:?}", rejected.reason));
                continue;
            }
            let mut outcome = None;
            while outcome.is_none() && Native::now() < deadline_ns {
                let channel = &mut self.core.lanes[lane].channel;
                channel.poll(|done| {
                    outcome = outcome.or((done.user_data == FLUSH).then_some(done.status));
                });
                if outcome.is_none() {
                    let channel = &self.core.lanes[lane].channel;
                    self.ctx.turn(Some(Native::now() + TURN_NS), || channel.has_work())?;
                }
            }
            match outcome {
                Some(Status::Ok) => {}
                Some(status) => report.failures.push(format!("{name}: flush: {status}")),
                None => report.failures.push(format!("{name}: flush: no answer in time")),
            }
        }
        Ok(())
    }

    /// Serves the drives until the flushes of all threads are answered: a flush that joined another
    /// may have been issued on this thread's queue.
    fn await_others(&mut self) -> Result<(), Error> {
        self.shared.flushed.fetch_add(1, Ordering::SeqCst);
        self.shared.mailboxes.iter().for_each(Mailbox::ring);
        let deadline_ns = Native::now() + 1000 * TURN_NS;
        let (core, shared) = (&mut self.core, &self.shared);
        let done = || shared.flushed.load(Ordering::SeqCst) >= shared.mailboxes.len();
        while !done() && Native::now() < deadline_ns {
            core.lanes.iter_mut().for_each(|lane| {
                lane.channel.poll(|_| ());
            });
            let has_work = || done() || core.lanes.iter().any(|lane| lane.channel.has_work());
            self.ctx.turn(Some(Native::now() + TURN_NS), has_work)?;
        }
        Ok(())
    }

    /// Drops channels, ring, connections and buffers in this order.
    fn let_go(self) {
        let Worker { ctx, mut core, ring, shared, number, conns, .. } = self;
        core.lanes.clear();
        drop(ctx);
        while let Some((fd, _)) = shared.mailboxes[number].take() {
            close_now(fd);
        }
        // The ring waited for everything it could; what is left may still be written to.
        if ring.pending() > 0 || core.tickets.in_use() > 0 {
            std::mem::forget(conns);
            std::mem::forget(Arc::clone(&core.zeroes));
            std::mem::forget(core.pool);
        }
    }
}
