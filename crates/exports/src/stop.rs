//! The order to stop a server, and the limits of what its I/O threads do about it.
//!
//! Given once by the owner of the server, looked at by its threads. Used by both servers.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use millrace_block::{Disk, Op, Status, Unwritten, Volume, prepare_stop};
use millrace_machine::{Deadline, Machine, Native};

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

/// How long a drive has completed nothing, with requests in flight, when it is called silent, in
/// nanoseconds.
const SILENT_NS: u64 = FLUSH_NS / 2;

/// Whether the flush of a volume at the end goes on. A cache's flush takes as long as its drives
/// need for what is dirty: it has time as long as pages are written, or more of them were tried.
/// It fails with the first write below that does, and is asked for once more then: a drive that
/// refuses a part takes the rest. Where a flush of a drive failed there is no second one, which may
/// succeed although data are lost.
#[derive(Debug)]
pub(crate) struct Progress {
    least: Unwritten,
    /// Failures of each drive when it began.
    before: Vec<Failures>,
    /// I/Os that each drive has completed, and when it was seen to complete the last.
    completed: Vec<(u64, u64)>,
    /// How the last flush failed.
    last: Option<Status>,
    /// When it was looked at, and how long a flush has time for what was seen.
    looked_ns: u64,
    limit: Deadline<Native>,
}

impl Progress {
    /// Of a volume that is about to be flushed for the last time, which its drives are told.
    pub(crate) fn of(volume: &Volume<Native>) -> Progress {
        volume.drives().iter().for_each(|disk| prepare_stop(disk));
        Progress::watched(volume)
    }

    /// Of a volume that others flush, or that still serves requests.
    pub(crate) fn watched(volume: &Volume<Native>) -> Progress {
        let (now_ns, least) = (Native::now(), Unwritten::of(volume));
        let limit = Deadline::after_ns(if least.pages > 0 { STUCK_NS } else { 0 });
        let before = failures(volume).collect();
        let completed = completed(volume).map(|ios| (ios, now_ns)).collect();
        Progress { least, before, completed, last: None, looked_ns: now_ns, limit }
    }

    /// Whether a flush that has `given_ns` left in any case has no more time, and `more_ns` have
    /// passed after what its progress gave it. Ask every turn.
    pub(crate) fn is_over(&mut self, volume: &Volume<Native>, given_ns: u64, more_ns: u64) -> bool {
        let now_ns = Native::now();
        if now_ns >= self.looked_ns + LOOK_NS {
            let (least, now) = (self.least, Unwritten::of(volume));
            let is_less = now.pages < least.pages || now.untried < least.untried;
            if is_less || now.written > least.written {
                self.limit = Deadline::after_ns(STUCK_NS);
            }
            let (pages, untried) = (least.pages.min(now.pages), least.untried.min(now.untried));
            self.least = Unwritten { pages, untried, written: now.written };
            for ((ios, since_ns), now) in self.completed.iter_mut().zip(completed(volume)) {
                if *ios != now {
                    (*ios, *since_ns) = (now, now_ns);
                }
            }
            self.looked_ns = now_ns;
        }
        self.limit.left_with_ns(more_ns) == 0 && given_ns == 0
    }

    /// When to ask for the next flush after one that failed so, if that is worth it.
    pub(crate) fn again_at(&mut self, volume: &Volume<Native>, status: Status) -> Option<u64> {
        self.last = Some(status);
        let has_failed_flush = self
            .before
            .iter()
            .zip(failures(volume))
            .any(|(before, now)| now.flushes > before.flushes);
        let is_worth_it = !self.is_over(volume, 0, 0) && !has_failed_flush;
        is_worth_it.then(|| Native::now().saturating_add(LOOK_NS))
    }

    /// How the flush of a volume failed, in words: the last one, or that there was no answer.
    pub(crate) fn failure(&self, volume: &Volume<Native>) -> String {
        // A drive that has something inside, and has just completed something, does answer.
        let now_ns = Native::now();
        let is_silent = |disk: &Disk<Native>, (ios, since_ns): (u64, u64)| {
            let (stats, quiet_ns) = (disk.stats(), now_ns.saturating_sub(since_ns));
            stats.in_flight() > 0 && quiet_ns >= SILENT_NS && stats.ios() == ios
        };
        let drives = volume.drives().iter().zip(&self.completed);
        let silent = drives.filter(|(disk, completed)| is_silent(disk, **completed));
        let silent = silent.map(|(disk, _)| disk.name()).collect::<Vec<_>>().join(", ");
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
            None => text.push_str(&format!(
                "no answer in time of {silent}; what it took since its last flush that succeeded may be \
                 lost"
            )),
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
            let drives = volume.drives().iter().filter(|disk| has(&failed, disk.name()));
            let explained = drives.map(|disk| match disk.failures().flush_trouble {
                Some(why) => format!("{} ({why})", disk.name()),
                None => disk.name().to_owned(),
            });
            let failed = explained.collect::<Vec<_>>().join(", ");
            text.push_str(&format!(
                "; the flush of {failed} failed: what it took since its last flush that succeeded may \
                 be lost; check what is on the volume before it is used again"
            ));
        }
        text
    }
}

/// Returns true if one of these volumes at least has time left, as [`Progress::is_over`] says.
pub(crate) fn goes_on(
    volumes: &[Arc<Volume<Native>>],
    progress: &mut [Progress],
    given_ns: u64,
) -> bool {
    let all = progress.iter_mut().zip(volumes);
    // Each is asked every turn.
    all.fold(false, |goes, (one, volume)| !one.is_over(volume, given_ns, 0) | goes)
}

/// How long after the deadline of a stop, or after the time that the flush of a cache has, an I/O
/// thread may take to flush and report, in nanoseconds.
pub(crate) const REPORT_NS: u64 = 8_000_000_000;

/// How long a server waits for its I/O threads when it stops: as long as caches of its volumes get
/// on.
pub(crate) struct StopLimit {
    volumes: Vec<(Arc<Volume<Native>>, Progress)>,
    limit: Deadline<Native>,
}

impl StopLimit {
    /// Of a stop that has so long for what is in flight.
    pub(crate) fn new(
        volumes: impl Iterator<Item = Arc<Volume<Native>>>,
        time: Duration,
    ) -> StopLimit {
        let volumes = volumes.map(|volume| {
            let progress = Progress::watched(&volume);
            (volume, progress)
        });
        StopLimit { volumes: volumes.collect(), limit: Deadline::after(time) }
    }

    /// Whether threads that have not ended by now are to be left behind. Ask every turn.
    pub(crate) fn is_over(&mut self) -> bool {
        let left_ns = self.limit.left_with_ns(REPORT_NS);
        let is_over = |over, (volume, progress): &mut (Arc<Volume<Native>>, Progress)| {
            progress.is_over(volume, left_ns, REPORT_NS) && over
        };
        self.volumes.iter_mut().fold(left_ns == 0, is_over)
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

/// I/Os that each drive of a volume has completed.
fn completed(volume: &Volume<Native>) -> impl Iterator<Item = u64> {
    volume.drives().iter().map(|disk| disk.stats().ios())
}

/// What each drive of a volume has failed.
fn failures(volume: &Volume<Native>) -> impl Iterator<Item = Failures> {
    volume.drives().iter().map(|disk| {
        let ops = disk.stats().ops;
        let [writes, flushes] = [Op::Write, Op::Flush].map(|op| ops[op as usize].errors);
        Failures { writes, flushes }
    })
}

/// Whether a server is to stop, and for how long it may answer what is in flight.
#[derive(Debug, Default)]
pub(crate) struct StopOrder(OnceLock<Duration>);

impl StopOrder {
    /// Orders the stop. What is in flight after that time is given up. Only the first order counts.
    pub(crate) fn give(&self, time: Duration) {
        let _ = self.0.set(time);
    }

    /// Whether the server is to stop. The fences of a thread's doorbell order its last look before
    /// it sleeps.
    #[inline]
    pub(crate) fn is_given(&self) -> bool {
        self.0.get().is_some()
    }

    /// When a thread that hears of the order now gives up on what is in flight; at once for one
    /// that ends before the order.
    pub(crate) fn deadline(&self) -> Deadline<Native> {
        Deadline::after(self.0.get().copied().unwrap_or_default())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // Tests may.
mod tests {
    use millrace_block::{Bio, Buffer, Disk, DiskConfig, Stamp};
    use millrace_drives::{Effect, FaultConfig, FaultDriver, FaultRule, open};
    use millrace_runtime::{IoConfig, IoContext};

    use super::*;

    #[test]
    fn a_drive_does_not_answer_once_it_has_completed_nothing_for_a_while() {
        let ram = open(&"ram:size=1m".parse().unwrap(), 1).unwrap();
        let driver = FaultDriver::new(ram.driver, FaultConfig::default()).unwrap();
        let control = driver.control();
        let disk = Disk::new(Box::new(driver), DiskConfig::default()).unwrap();
        let volume = Volume::single(disk).unwrap();
        let mut ctx = IoContext::new(IoConfig::default()).unwrap();
        let mut channel = ctx.channel(&volume, 4, Stamp::Batch).unwrap();
        control.add_rule(FaultRule::always(Effect::Stick));
        channel.submit(Bio::read(0, Buffer::new(512))).unwrap();
        channel.poll(|_| ());
        let mut progress = Progress::of(&volume);
        // Another drive's flush has failed by now.
        progress.last = Some(Status::IoError);
        assert!(!progress.failure(&volume).contains("did not answer"), "it has had no time");
        std::thread::sleep(Duration::from_nanos(SILENT_NS));
        progress.is_over(&volume, 1, 0);
        let said = progress.failure(&volume);
        assert!(said.contains("did not answer in time"), "{said}");
        control.clear_rules();
        control.release_stuck();
        channel.wait(1, |done| assert!(done.status.is_ok()));
    }
}
