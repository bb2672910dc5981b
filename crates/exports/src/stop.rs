//! The order to stop a server, and the limits of what its I/O threads do about it.
//!
//! Given once by the owner of the server, looked at by its threads. Used by both servers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use millrace_block::{Op, StatsSnapshot, Status, Unwritten, Volume};
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

/// Whether the flush of a volume at the end goes on. A cache's flush takes as long as its drives
/// need for what is dirty: it has time as long as less becomes dirty, or more of it has been tried.
/// It fails with the first write below that does, and is asked for once more then: a drive that
/// refuses a part takes the rest. Where a flush of a drive failed there is no second one, which may
/// succeed although data are lost.
#[derive(Debug)]
pub(crate) struct Progress {
    least: Unwritten,
    /// Failures of each drive when it began.
    before: Vec<Failures>,
    /// How the last flush failed.
    last: Option<Status>,
    /// When it was looked at, and until when a flush has time for what was seen.
    looked_ns: u64,
    until_ns: u64,
}

impl Progress {
    /// Of a volume that is about to be flushed.
    pub(crate) fn of(volume: &Volume<Native>) -> Progress {
        let (now_ns, least) = (Native::now(), Unwritten::of(volume));
        let until_ns = if least.pages > 0 { now_ns.saturating_add(STUCK_NS) } else { 0 };
        let before = failures(volume).collect();
        Progress { least, before, last: None, looked_ns: now_ns, until_ns }
    }

    /// Until when a flush has time that has it until `given_ns` in any case.
    pub(crate) fn until_ns(&mut self, volume: &Volume<Native>, given_ns: u64) -> u64 {
        let now_ns = Native::now();
        if now_ns >= self.looked_ns + LOOK_NS {
            let (least, now) = (self.least, Unwritten::of(volume));
            if now.pages < least.pages || now.untried < least.untried {
                self.until_ns = now_ns.saturating_add(STUCK_NS);
            }
            let (pages, untried) = (least.pages.min(now.pages), least.untried.min(now.untried));
            (self.least, self.looked_ns) = (Unwritten { pages, untried }, now_ns);
        }
        self.until_ns.max(given_ns)
    }

    /// When to ask for the next flush after one that failed so, if that is worth it.
    pub(crate) fn again_at(&mut self, volume: &Volume<Native>, status: Status) -> Option<u64> {
        self.last = Some(status);
        let now_ns = Native::now();
        let has_failed_flush = self
            .before
            .iter()
            .zip(failures(volume))
            .any(|(before, now)| now.flushes > before.flushes);
        let is_worth_it = now_ns < self.until_ns(volume, 0) && !has_failed_flush;
        is_worth_it.then_some(now_ns.saturating_add(LOOK_NS))
    }

    /// How the flush of a volume failed, in words: the last one, or that there was no answer.
    pub(crate) fn failure(&self, volume: &Volume<Native>) -> String {
        let drives = || volume.drives().iter().map(|disk| (disk.name(), disk.stats()));
        let is_silent = |(name, stats): (_, StatsSnapshot)| (stats.in_flight() > 0).then_some(name);
        let silent = drives().filter_map(is_silent).collect::<Vec<_>>().join(", ");
        // A drive that failed once, and does no longer, is not the reason.
        let names = |count: fn(&Failures) -> u64| -> String {
            let drives = volume.drives().iter().zip(self.before.iter().zip(failures(volume)));
            let has_failed = drives.filter(|(_, (before, now))| count(now) > count(before));
            has_failed.map(|(disk, _)| disk.name()).collect::<Vec<_>>().join(", ")
        };
        let (failed, refused) = (names(|it| it.flushes), names(|it| it.writes));
        let mut text = format!("{}: flush: ", volume.name());
        match self.last {
            None if silent.is_empty() => text.push_str("no answer in time"),
            None => text.push_str(&format!("no answer in time of {silent}")),
            Some(status) => text.push_str(&status.to_string()),
        }
        if !refused.is_empty() {
            text.push_str(&format!(": writes to {refused} failed"));
        }
        // A drive that refuses is asked again and again, and has something inside.
        let is_known = |name: &&str| [&refused, &failed].iter().any(|all| has(all, name));
        let silent: Vec<&str> =
            silent.split(", ").filter(|name| !name.is_empty() && !is_known(name)).collect();
        if self.last.is_some() && !silent.is_empty() {
            text.push_str(&format!("; {} did not answer in time", silent.join(", ")));
        }
        if !failed.is_empty() {
            text.push_str(&format!(
                "; the flush of {failed} failed: what it took since its last flush that succeeded may \
                 be lost; check what is on the volume before it is used again"
            ));
        }
        text
    }
}

/// How long after the deadline of a stop, or after the time that the flush of a cache has, an I/O
/// thread may take to flush and report, in nanoseconds.
const REPORT_NS: u64 = 8_000_000_000;

/// How long a server waits for its I/O threads when it stops: as long as caches of its volumes get
/// on.
pub(crate) struct StopLimit {
    volumes: Vec<(Arc<Volume<Native>>, Progress)>,
    deadline_ns: u64,
}

impl StopLimit {
    /// Of a stop that has until then for what is in flight.
    pub(crate) fn new(
        volumes: impl Iterator<Item = Arc<Volume<Native>>>,
        deadline_ns: u64,
    ) -> StopLimit {
        let volumes = volumes.map(|volume| {
            let progress = Progress::of(&volume);
            (volume, progress)
        });
        StopLimit { volumes: volumes.collect(), deadline_ns }
    }

    /// Whether threads that have not ended by now are to be left behind.
    pub(crate) fn is_over(&mut self) -> bool {
        let deadline_ns = self.deadline_ns;
        let until = |(volume, progress): &mut (Arc<Volume<Native>>, Progress)| {
            progress.until_ns(volume, deadline_ns)
        };
        let last_ns = self.volumes.iter_mut().map(until).max().unwrap_or(deadline_ns);
        Native::now() >= last_ns.saturating_add(REPORT_NS)
    }
}

/// Whether a list of names has one.
fn has(names: &str, name: &str) -> bool {
    names.split(", ").any(|other| other == name)
}

/// What a drive has failed.
#[derive(Debug, Clone, Copy)]
struct Failures {
    writes: u64,
    flushes: u64,
}

/// What each drive of a volume has failed.
fn failures(volume: &Volume<Native>) -> impl Iterator<Item = Failures> {
    volume.drives().iter().map(|disk| {
        let ops = disk.stats().ops;
        let [writes, flushes] = [Op::Write, Op::Flush].map(|op| ops[op as usize].errors);
        Failures { writes, flushes }
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
