//! `StopOrder`: the order to stop a server, and the time limits within which its I/O threads must
//! obey.
//!
//! The owner of the server gives the order once, and the I/O threads check for the order. The NBD
//! server and the vhost-user server use this type.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use millrace_block::{Op, Status, Unwritten, Volume, prepare_stop};
use millrace_machine::{Deadline, Machine, Native};

/// User data of the final flush's bio; no other bio has this value.
pub(crate) const FLUSH_USER_DATA: u64 = 1 << 32;
/// Longest sleep, in nanoseconds, of a thread that shuts down.
pub(crate) const TURN_NS: u64 = 10_000_000;
pub(crate) const FLUSH_NS: u64 = 1_000_000_000;
/// Time without a completion, in nanoseconds, after which drives below a cache count as stuck. The
/// time is long, because giving up loses writes that the cache has acknowledged.
const STUCK_NS: u64 = 10_000_000_000;

const LOOK_NS: u64 = 100_000_000;

/// Time without a completion, in nanoseconds, after which an error text says that a drive with
/// requests in flight did not answer.
const SILENT_NS: u64 = FLUSH_NS / 2;

/// Progress of a volume's final flush.
///
/// If the volume has a cache, the flush may continue as long as the drives below write dirty pages.
/// If a drive refuses a page, the cache's flush fails and is retried, because the drive may accept
/// other pages. If the flush of a drive fails, there is no retry, because a retry might succeed
/// although data are lost.
#[derive(Debug)]
pub(crate) struct Progress {
    volume: Arc<Volume<Native>>,
    least: Unwritten,
    before: Vec<DriveFailures>,
    /// For each drive, the number of completed I/Os, and the time in nanoseconds at which this
    /// number was last seen to change.
    completed: Vec<(u64, u64)>,
    last: Option<Status>,
    looked_ns: u64,
    limit: Deadline<Native>,
}

impl Progress {
    /// Starts to track the progress of a volume before its final flush, and informs its drives that
    /// the flush is the last.
    pub(crate) fn of(volume: &Arc<Volume<Native>>) -> Progress {
        volume.drives().iter().for_each(|disk| prepare_stop(disk));
        Progress::watched(volume)
    }

    /// Starts to track the progress of a volume's drives. Unlike [`Progress::of`], does not
    /// announce a final flush to the drives.
    pub(crate) fn watched(volume: &Arc<Volume<Native>>) -> Progress {
        let (now_ns, least) = (Native::now(), Unwritten::of(volume));
        let limit = Deadline::after_ns(if least.pages > 0 { STUCK_NS } else { 0 });
        let before = failures(volume).collect();
        let completed = completed(volume).map(|ios| (ios, now_ns)).collect();
        let (volume, looked_ns) = (Arc::clone(volume), now_ns);
        Progress { volume, least, before, completed, last: None, looked_ns, limit }
    }

    /// Returns true if the flush must be abandoned. Both of these conditions must hold:
    /// - The caller grants no more time: `given_ns` is 0.
    /// - The flush's own deadline passed at least `more_ns` nanoseconds ago.
    ///
    /// Call this in each iteration of the event loop. The deadline is extended only when a call
    /// finds that the drives have made progress.
    pub(crate) fn is_over(&mut self, given_ns: u64, more_ns: u64) -> bool {
        let now_ns = Native::now();
        if now_ns >= self.looked_ns + LOOK_NS {
            let (least, now) = (self.least, Unwritten::of(&self.volume));
            let is_less = now.pages < least.pages || now.untried < least.untried;
            if is_less || now.written > least.written {
                self.limit = Deadline::after_ns(STUCK_NS);
            }
            let (pages, untried) = (least.pages.min(now.pages), least.untried.min(now.untried));
            self.least = Unwritten { pages, untried, written: now.written };
            for ((ios, since_ns), now) in self.completed.iter_mut().zip(completed(&self.volume)) {
                if *ios != now {
                    (*ios, *since_ns) = (now, now_ns);
                }
            }
            self.looked_ns = now_ns;
        }
        self.limit.left_with_ns(more_ns) == 0 && given_ns == 0
    }

    /// Returns the time at which to retry a flush that failed with `status`, or `None` for no
    /// retry.
    pub(crate) fn again_at(&mut self, status: Status) -> Option<u64> {
        self.last = Some(status);
        let now = failures(&self.volume);
        let has_failed_flush =
            self.before.iter().zip(now).any(|(before, now)| now.flushes > before.flushes);
        let is_worth_it = !self.is_over(0, 0) && !has_failed_flush;
        is_worth_it.then(|| Native::now().saturating_add(LOOK_NS))
    }

    pub(crate) fn failure(&self) -> String {
        let (volume, now_ns) = (&self.volume, Native::now());
        let drives = volume.drives();
        let now: Vec<DriveFailures> = failures(volume).collect();
        let has_failed = |at: usize| now[at].flushes > self.before[at].flushes;
        let has_refused = |at: usize| now[at].writes > self.before[at].writes;
        // A drive counts as silent only if it has requests in flight and has completed no I/O
        // recently.
        let is_silent = |at: usize| {
            let (stats, (ios, since_ns)) = (drives[at].stats(), self.completed[at]);
            let quiet_ns = now_ns.saturating_sub(since_ns);
            stats.in_flight() > 0 && quiet_ns >= SILENT_NS && stats.ios() == ios
        };
        let names = |is_named: &dyn Fn(usize) -> bool| {
            let named = (0..drives.len()).filter(|at| is_named(*at)).map(|at| drives[at].name());
            named.collect::<Vec<_>>().join(", ")
        };
        let silent = names(&is_silent);
        let mut text = format!("{}: flush: ", volume.name());
        match self.last {
            None if silent.is_empty() => text.push_str("the drives did not answer in time"),
            None => text.push_str(&format!(
                "{silent} did not answer in time; data written since its last successful flush may be \
                 lost"
            )),
            Some(status) => text.push_str(&status.to_string()),
        }
        let refused = names(&has_refused);
        if !refused.is_empty() {
            text.push_str(&format!(": writes to {refused} failed"));
        }
        // Lists silent drives, except drives with failed writes or flushes. The text lists such
        // drives separately, together with their failures.
        let silent = names(&|at| is_silent(at) && !has_failed(at) && !has_refused(at));
        if self.last.is_some() && !silent.is_empty() {
            text.push_str(&format!("; {silent} did not answer in time"));
        }
        let failed = drives.iter().enumerate().filter(|(at, _)| has_failed(*at));
        let failed = failed.map(|(_, disk)| match disk.failures().flush_trouble {
            Some(why) => format!("{} ({why})", disk.name()),
            None => disk.name().to_owned(),
        });
        let failed = failed.collect::<Vec<_>>().join(", ");
        if !failed.is_empty() {
            text.push_str(&format!(
                "; the flush of {failed} failed: data written since its last successful flush may \
                 be lost; check the volume's contents before using it again"
            ));
        }
        text
    }
}

/// Returns true if the final flush of at least one volume may continue.
pub(crate) fn goes_on(progress: &mut [Progress], given_ns: u64) -> bool {
    // Every volume is visited, even after the result is known, because `is_over` has to be called
    // regularly for each volume to notice its progress.
    progress.iter_mut().fold(false, |goes, one| !one.is_over(given_ns, 0) | goes)
}

pub(crate) const REPORT_NS: u64 = 8_000_000_000;

/// Time limit for the I/O threads of a stopping server, extended while caches of its volumes make
/// progress.
pub(crate) struct StopLimit {
    volumes: Vec<Progress>,
    limit: Deadline<Native>,
}

impl StopLimit {
    pub(crate) fn new(
        volumes: impl Iterator<Item = Arc<Volume<Native>>>,
        time: Duration,
    ) -> StopLimit {
        let volumes = volumes.map(|volume| Progress::watched(&volume)).collect();
        StopLimit { volumes, limit: Deadline::after(time) }
    }

    /// Returns true if threads that still run must be abandoned. Must be called regularly.
    pub(crate) fn is_over(&mut self) -> bool {
        let left_ns = self.limit.left_with_ns(REPORT_NS);
        let volumes = self.volumes.iter_mut();
        volumes.fold(left_ns == 0, |over, one| one.is_over(left_ns, REPORT_NS) && over)
    }
}

#[derive(Debug, Clone, Copy)]
struct DriveFailures {
    writes: u64,
    flushes: u64,
}

fn completed(volume: &Volume<Native>) -> impl Iterator<Item = u64> {
    volume.drives().iter().map(|disk| disk.stats().ios())
}

fn failures(volume: &Volume<Native>) -> impl Iterator<Item = DriveFailures> {
    volume.drives().iter().map(|disk| {
        let ops = disk.stats().ops;
        let [writes, flushes] = [Op::Write, Op::Flush].map(|op| ops[op as usize].errors);
        DriveFailures { writes, flushes }
    })
}

#[derive(Debug, Default)]
pub(crate) struct StopOrder(OnceLock<Duration>);

impl StopOrder {
    /// Orders the server to stop. Requests in flight may take `time` to complete. Only the first
    /// call has an effect.
    pub(crate) fn give(&self, time: Duration) {
        let _ = self.0.set(time);
    }

    /// Returns true if the server was ordered to stop. Before a thread sleeps, it arms its doorbell
    /// and then calls `is_given` again. The doorbell's fences ensure that the thread either sees
    /// the order to stop, or is woken.
    #[inline]
    pub(crate) fn is_given(&self) -> bool {
        self.0.get().is_some()
    }

    /// Returns the deadline of requests in flight: now plus the time that [`StopOrder::give`]
    /// allowed, or now if the server was not ordered to stop.
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
    fn drive_without_completions_for_a_while_does_not_answer() {
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
        // Another drive's flush has failed in the meantime.
        progress.last = Some(Status::IoError);
        assert!(!progress.failure().contains("did not answer"), "it has had no time");
        std::thread::sleep(Duration::from_nanos(SILENT_NS));
        progress.is_over(1, 0);
        let said = progress.failure();
        assert!(said.contains("did not answer in time"), "{said}");
        control.clear_rules();
        control.release_stuck();
        channel.wait(1, |done| assert!(done.status.is_ok()));
    }
}
