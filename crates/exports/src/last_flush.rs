//! `LastFlush`: flushes a volume for the last time, before it is closed.
//!
//! I/O threads of a stopping server use this type. [`flush_volume`] flushes a single volume that
//! was removed from a running server. [`Progress`] limits the wait for drives that do not answer.

use std::sync::Arc;
use std::time::Duration;

use millrace_block::{Bio, Channel, Error, ErrorKind, Stamp, Status, Volume, is_unused};
use millrace_machine::{Deadline, Machine, Native};
use millrace_reactor::Config;
use millrace_runtime::{IoConfig, IoContext};

use crate::stop::{FLUSH_USER_DATA, Progress, TURN_NS};

pub(crate) struct LastFlush {
    progress: Progress,
    /// Time at which to submit the next flush; `None` while a flush is in flight.
    due_ns: Option<u64>,
}

impl LastFlush {
    pub(crate) fn of(progress: Progress) -> LastFlush {
        LastFlush { progress, due_ns: Some(0) }
    }

    /// Polls the channel, and submits the flush when it is due. Returns the outcome of the flush
    /// once known; an error is a text with the reason. The flush may take `given_ns`, and longer
    /// while drives make progress. Must be called in each iteration of the event loop.
    pub(crate) fn turn(
        &mut self,
        channel: &mut Channel<Native>,
        given_ns: u64,
    ) -> Option<Result<(), String>> {
        if self.due_ns.take_if(|at_ns| *at_ns <= Native::now()).is_some() {
            let flush = Bio::flush().with_user_data(FLUSH_USER_DATA);
            if let Err(rejected) = channel.submit(flush) {
                let name = channel.volume().name();
                return Some(Err(format!("{name}: no flush: {:?}", rejected.reason)));
            }
        }
        let mut status: Option<Status> = None;
        channel.poll(|done| {
            status = status.or((done.user_data == FLUSH_USER_DATA).then_some(done.status));
        });
        match status {
            Some(status) if status.is_ok() => return Some(Ok(())),
            Some(status) => match self.progress.again_at(status) {
                Some(at_ns) => self.due_ns = Some(at_ns),
                None => return Some(Err(self.progress.failure())),
            },
            None => {}
        }
        self.progress.is_over(given_ns, 0).then(|| Err(self.progress.failure()))
    }
}

/// Flushes a volume that no other thread has open. The flush may take up to `time`, and longer
/// while a cache writes dirty pages.
///
/// # Errors
/// Returns a text with the reason if the flush fails.
pub fn flush_volume(
    volume: &Arc<Volume<Native>>,
    reactor: Config,
    time: Duration,
) -> Result<(), String> {
    let mut all = volume.drives().iter().chain(volume.disks());
    if volume.limits().features.read_only || all.all(|disk| is_unused(disk)) {
        return Ok(());
    }
    let failed = |error: Error| match error.kind() {
        ErrorKind::Busy => {
            format!("{}: requests are in flight that the drives have not answered", volume.name())
        }
        _ => format!("{}: flush: {error}", volume.name()),
    };
    let mut ctx = IoContext::new(IoConfig { number: 0, reactor }).map_err(failed)?;
    let mut channel = ctx.channel(volume, 1, Stamp::Batch).map_err(failed)?;
    let mut flush = LastFlush::of(Progress::watched(volume));
    let mut limit: Deadline<Native> = Deadline::after(time);
    loop {
        if let Some(outcome) = flush.turn(&mut channel, limit.left_with_ns(0)) {
            return outcome;
        }
        let until_ns = Native::now() + TURN_NS;
        ctx.turn(Some(until_ns), || channel.has_work()).map_err(failed)?;
    }
}
