//! The order to stop a server, and the limits of what its I/O threads do about it.
//!
//! Given once by the owner of the server, looked at by its threads. Used by both servers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use millrace_block::{Op, Volume};
use millrace_machine::{Machine, Native};

/// User data of the flush at the end, which no request has.
pub(crate) const FLUSH_USER_DATA: u64 = 1 << 32;
/// Longest sleep of one turn while a thread ends, in nanoseconds.
pub(crate) const TURN_NS: u64 = 10_000_000;
/// Longest time for the flush of a volume at the end, in nanoseconds.
pub(crate) const FLUSH_NS: u64 = 1_000_000_000;
/// How long drives below a cache may complete nothing before they count as stuck, in nanoseconds:
/// what they owe was acknowledged, so a disk that stalls for some seconds is waited for.
const STUCK_NS: u64 = 10_000_000_000;

/// Time between two looks at what drives have done, and before a flush that failed is asked for
/// once more, in nanoseconds.
const LOOK_NS: u64 = 100_000_000;

/// Whether the drives below caches go on. The flush of a cache takes as long as they need to write
/// what is dirty: it has time for as long as they do.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    done: u64,
    /// When they were looked at, and until when a flush has time for what was seen.
    looked_ns: u64,
    until_ns: u64,
}

impl Progress {
    /// Until when a flush of these volumes has time that has it until `given_ns` in any case.
    pub(crate) fn extend<'a>(
        &mut self,
        volumes: impl IntoIterator<Item = &'a Arc<Volume<Native>>>,
        given_ns: u64,
    ) -> u64 {
        let now_ns = Native::now();
        if now_ns >= self.looked_ns + LOOK_NS {
            let cached = volumes.into_iter().filter(|volume| volume.below().is_some());
            let drives = cached.flat_map(|volume| volume.drives());
            let done = drives.map(|disk| disk.stats().ios()).sum();
            if core::mem::replace(&mut self.done, done) != done {
                self.until_ns = now_ns.saturating_add(STUCK_NS);
            }
            self.looked_ns = now_ns;
        }
        self.until_ns.max(given_ns)
    }
}

/// Whether the flush of a cache that failed is asked for once more. It fails with the first write
/// below that does, when most of what is dirty was not tried: a drive that refuses a part takes the
/// rest. Where a flush of a drive failed there is no second try, which may succeed although data
/// are lost.
#[derive(Debug)]
pub(crate) struct Refusals {
    written: u64,
    flushes_failed: u64,
    until_ns: u64,
}

impl Refusals {
    /// Of a volume that is about to be flushed.
    pub(crate) fn of(volume: &Volume<Native>) -> Refusals {
        let (written, flushes_failed) = written_and_failed(volume);
        Refusals { written, flushes_failed, until_ns: Native::now().saturating_add(STUCK_NS) }
    }

    /// When to flush the volume again after a failure, if it has a cache and its drives have taken
    /// a write since [`STUCK_NS`] ago.
    pub(crate) fn again_at(&mut self, volume: &Volume<Native>) -> Option<u64> {
        volume.below()?;
        let now_ns = Native::now();
        let (written, flushes_failed) = written_and_failed(volume);
        if core::mem::replace(&mut self.written, written) != written {
            self.until_ns = now_ns.saturating_add(STUCK_NS);
        }
        let is_worth_it = flushes_failed == self.flushes_failed && now_ns < self.until_ns;
        is_worth_it.then_some(now_ns.saturating_add(LOOK_NS))
    }
}

/// Writes that the drives of a volume have done, and flushes that they have failed.
fn written_and_failed(volume: &Volume<Native>) -> (u64, u64) {
    volume.drives().iter().fold((0, 0), |(written, failed), disk| {
        let ops = disk.stats().ops;
        let (write, flush) = (&ops[Op::Write as usize], &ops[Op::Flush as usize]);
        (written + write.ios.saturating_sub(write.errors), failed + flush.errors)
    })
}

/// Whether a server is to stop, and until when it may answer what is in flight.
#[derive(Debug, Default)]
pub(crate) struct StopOrder {
    is_given: AtomicBool,
    deadline_ns: OnceLock<u64>,
}

impl StopOrder {
    /// Orders the stop. What is in flight at the deadline, by the layer's clock, is given up. Only
    /// the first order counts.
    pub(crate) fn give(&self, deadline_ns: u64) {
        let _ = self.deadline_ns.set(deadline_ns);
        self.is_given.store(true, Ordering::SeqCst);
    }

    /// Whether the server is to stop. SeqCst: a thread looks for the last time after it has armed
    /// its doorbell.
    #[inline]
    pub(crate) fn is_given(&self) -> bool {
        self.is_given.load(Ordering::SeqCst)
    }

    /// When to give up on what is in flight; 0 for a thread that ends before the order.
    pub(crate) fn deadline_ns(&self) -> u64 {
        self.deadline_ns.get().copied().unwrap_or(0)
    }
}

/// The time by the layer's clock after so long.
pub(crate) fn deadline_after(time: Duration) -> u64 {
    let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    Native::now().saturating_add(time_ns)
}
