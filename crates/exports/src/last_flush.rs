//! The flush of a volume that is about to be closed while the rest of the program goes on.
//!
//! Servers flush their volumes when they stop. A volume that leaves a running server is flushed
//! here instead, by the thread that removes it, once no server has a queue of it any more. Called
//! by `millrace`.

use std::sync::Arc;
use std::time::Duration;

use millrace_block::{Bio, Error, ErrorKind, Stamp, Status, Volume, is_unused};
use millrace_machine::{Deadline, Machine, Native};
use millrace_reactor::Config;
use millrace_runtime::{IoConfig, IoContext};

use crate::stop::{Progress, TURN_NS};

/// Flushes a volume whose queues no other thread has. A drive that answers nothing is waited for
/// until `time` is over; a cache that writes its dirty pages is waited for as long as it gets on.
///
/// # Errors
/// How the flush failed, in words.
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
    // When the next flush is due; none while one is under way.
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
