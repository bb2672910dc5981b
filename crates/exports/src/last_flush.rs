//! Flushes a volume that was removed from a running server and is about to be closed.
//!
//! Servers flush their volumes when they stop. If a single volume is removed from a running server,
//! the removing thread flushes it here, once no server has a queue of it any more. The crate
//! `millrace` calls this.

use std::sync::Arc;
use std::time::Duration;

use millrace_block::{Bio, Error, ErrorKind, Stamp, Status, Volume, is_unused};
use millrace_machine::{Deadline, Machine, Native};
use millrace_reactor::Config;
use millrace_runtime::{IoConfig, IoContext};

use crate::stop::{Progress, TURN_NS};

/// Flushes a volume of which no other thread has a queue. Waits up to `time` for drives that do not
/// answer, but as long as necessary while a cache makes progress in writing its dirty pages.
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
    let mut progress = Progress::watched(volume);
    let mut limit: Deadline<Native> = Deadline::after(time);
    // Time of the next flush attempt; `None` while a flush is in flight.
    let mut due_ns = Some(Native::now());
    loop {
        if due_ns.is_some_and(|due_ns| Native::now() >= due_ns) {
            due_ns = None;
            if let Err(rejected) = channel.submit(Bio::flush()) {
                return Err(format!("{}: no flush: {:?}", volume.name(), rejected.reason));
            }
        }
        let mut status: Option<Status> = None;
        channel.poll(|done| status = Some(done.status));
        match status {
            Some(status) if status.is_ok() => return Ok(()),
            Some(status) => match progress.again_at(volume, status) {
                Some(at_ns) => due_ns = Some(at_ns),
                None => return Err(progress.failure(volume)),
            },
            None => {}
        }
        if progress.is_over(volume, limit.left_with_ns(0), 0) {
            return Err(progress.failure(volume));
        }
        let until_ns = Native::now() + TURN_NS;
        ctx.turn(Some(until_ns), || channel.has_work()).map_err(failed)?;
    }
}
