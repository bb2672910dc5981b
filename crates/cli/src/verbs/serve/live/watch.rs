//! `DaemonWatch`: logs events of a running daemon: failed I/Os, lost and recovered servers of
//! drives, and the stop of the daemon.
//!
//! The main thread checks once per second. Failures of a drive or an export are logged at most once
//! in five checks. The log line contains the number of failures since the last line. When the
//! daemon stops, failures since the last line are logged at once.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use millrace_block::{Disk, Failure, Failures, Op, is_unused};
use millrace_machine::Native;
use signal_hook::consts::SIGTERM;

use super::daemon::LiveDaemon;
use super::dirty_data::{self, DaemonEnd, DirtySnapshot};
use super::served_lists::{NamedStates, ServedLists};

const PERIOD: Duration = Duration::from_secs(1);
/// Number of checks (one per second) after a log line about a drive or export. During these checks,
/// further failures of the drive or export are counted but not logged.
const QUIET: u32 = 4;
/// Number of checks between two lines about dirty caches while the daemon stops.
const STOP_LOOKS: u32 = 5;

pub struct DaemonWatch {
    daemon: Arc<LiveDaemon>,
    exports: NamedStates<FailureLog>,
    drives: NamedStates<FailureLog>,
    caches: NamedStates<FailureLog>,
    stuck: NamedStates<StuckDrives>,
    is_stopping: bool,
}

/// Drives of a cache that were logged as hanging. After a log line, `quiet` counts down the checks
/// until another hanging drive may be logged.
#[derive(Debug, Clone, Default)]
struct StuckDrives {
    drives: Vec<usize>,
    quiet: u32,
}

impl StuckDrives {
    fn news(&mut self, now: Vec<usize>) -> Vec<usize> {
        self.quiet = self.quiet.saturating_sub(1);
        let is_new = |drive: &usize| self.quiet == 0 && !self.drives.contains(drive);
        let new: Vec<usize> = now.iter().copied().filter(is_new).collect();
        if !new.is_empty() {
            self.quiet = QUIET + 1;
        }
        self.drives.retain(|drive| now.contains(drive));
        self.drives.extend(&new);
        new
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct FailureLog {
    count: u64,
    quiet: u32,
}

impl FailureLog {
    /// Returns how many failures to log now, given the total `count` so far. Returns 0 if there are
    /// no new failures, or if the last log line is too recent.
    fn news(&mut self, count: u64) -> u64 {
        if self.quiet > 0 {
            self.quiet -= 1;
            return 0;
        }
        let new = count.saturating_sub(self.count);
        if new > 0 {
            *self = FailureLog { count, quiet: QUIET };
        }
        new
    }
}

impl DaemonWatch {
    pub fn new(daemon: &Arc<LiveDaemon>) -> DaemonWatch {
        DaemonWatch {
            daemon: Arc::clone(daemon),
            exports: NamedStates::default(),
            drives: NamedStates::default(),
            caches: NamedStates::default(),
            stuck: NamedStates::default(),
            is_stopping: false,
        }
    }

    /// Checks the server once per second until the sender of `done` is dropped. If the server has
    /// lost an I/O thread or a drive's worker, raises SIGTERM to stop the daemon.
    pub fn watch(&mut self, done: &Receiver<()>) {
        // The first check, before any wait, logs failures that happened during the start.
        self.look();
        while done.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
            self.look();
            self.daemon.tick();
            self.daemon.marks.look();
            if let Some(failure) = self.daemon.failure() {
                tracing::error!("{failure}; the daemon stops");
                // An error of `raise` is ignored, because the next check raises SIGTERM again after
                // a second.
                let _ = signal_hook::low_level::raise(SIGTERM);
            }
        }
    }

    fn look(&mut self) {
        let lists = self.daemon.lists();
        let drives = self.drives.of(lists.disks().map(|disk| disk.name()));
        for (said, disk) in drives.iter_mut().zip(lists.disks()) {
            let drive = disk.name();
            for news in disk.take_news() {
                tracing::warn!(drive, "drive {drive}: {news}");
            }
            let failures = disk.failures();
            log_drive(disk.name(), &failures, said.news(failures.count));
        }
        self.look_at_caches(&lists);
        let names = lists.exports.iter().map(|export| export.name.as_str());
        let exports = self.exports.of(names).iter_mut();
        for (said, failures) in exports.zip(lists.servers.failures()) {
            let (export, last) = (failures.export, failures.last);
            let what = match said.news(failures.count) {
                0 => continue,
                1 => "a request failed".to_owned(),
                new => format!("{new} requests failed; the last"),
            };
            tracing::warn!(export, "export {export}: {what}: {last}");
        }
    }

    /// Logs that a cache could not write data to its drives, or that a drive hangs. While the
    /// daemon stops, `watch_stop` logs these problems instead.
    fn look_at_caches(&mut self, lists: &ServedLists) {
        if self.is_stopping {
            return;
        }
        let names = lists.caches.iter().map(|cache| cache.below().name());
        for (said, cache) in self.caches.of(names.clone()).iter_mut().zip(&lists.caches) {
            if said.news(cache.stats().write_errors) > 0
                && let Some(text) = dirty_data::while_served(cache)
            {
                tracing::warn!(volume = cache.below().name(), "{text}");
            }
        }
        for (stuck, cache) in self.stuck.of(names).iter_mut().zip(&lists.caches) {
            for drive in stuck.news(cache.stuck_drives()) {
                let text = dirty_data::while_stuck(cache, drive);
                tracing::warn!(volume = cache.below().name(), "{text}");
            }
        }
    }

    /// Watches a stopping daemon until the sender of `done` is dropped: logs failures, and every
    /// few seconds the dirty data of caches.
    pub fn watch_stop(&mut self, done: &Receiver<()>) {
        self.is_stopping = true;
        let owed = |watch: &DaemonWatch| -> Vec<DirtySnapshot> {
            watch.daemon.lists().caches.iter().map(|cache| DirtySnapshot::now(cache)).collect()
        };
        let inside = |watch: &DaemonWatch| -> Vec<(u64, u64)> {
            let inside_drive = |disk: &Arc<Disk<Native>>| {
                let stats = (!is_unused(disk)).then(|| disk.stats());
                stats.map_or((0, 0), |stats| (stats.in_flight(), stats.ios()))
            };
            watch.daemon.lists().disks().map(inside_drive).collect()
        };
        let (mut before, mut was_inside, mut looks) = (owed(self), inside(self), 0);
        while done.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
            self.look();
            looks += 1;
            if looks % STOP_LOOKS != 0 {
                continue;
            }
            let (now, seconds) = (owed(self), PERIOD.as_secs() * u64::from(STOP_LOOKS));
            let (mut said, lists) = (String::new(), self.daemon.lists());
            for (cache, both) in lists.caches.iter().zip(before.iter().zip(&now)) {
                if let Some(text) = dirty_data::while_stopping(cache, both, seconds) {
                    tracing::info!(volume = cache.below().name(), "{text}");
                    said.push_str(&text);
                }
            }
            let is_inside = inside(self);
            let drives = lists.disks().zip(was_inside.iter().zip(&is_inside));
            for (disk, (was, is)) in drives {
                let (drive, ios) = (disk.name(), is.0);
                let is_said = said.contains(&format!("{drive} completes no I/O"));
                if was.0 > 0 && ios > 0 && was.1 == is.1 && !is_said {
                    tracing::info!(
                        drive,
                        "drive {drive} has answered nothing in the last {seconds} s: {ios} I/Os are \
                         inside"
                    );
                }
            }
            (before, was_inside) = (now, is_inside);
        }
    }

    pub fn last_look(&mut self) {
        for said in self.drives.states.iter_mut().chain(&mut self.exports.states) {
            said.quiet = 0;
        }
        self.look();
        log_lost(&self.daemon, DaemonEnd::Stopped);
    }
}

pub fn log_lost(daemon: &LiveDaemon, end: DaemonEnd) {
    for cache in &daemon.lists().caches {
        if let Some(text) = dirty_data::at_the_end(cache, end) {
            tracing::error!(volume = cache.below().name(), "{text}");
        }
    }
}

/// Logs the last `new` failed I/Os of a drive. The most recent one gets a warning, the others get
/// lines at debug level.
fn log_drive(drive: &str, failures: &Failures, new: u64) {
    let known = failures.last.len() as u64;
    let first = known.saturating_sub(new) as usize;
    let Some((last, others)) = failures.last[first..].split_last() else { return };
    for failure in others {
        tracing::debug!("drive {drive}: {}", described(failure));
    }
    let (op, sector, status) = (last.op.name(), last.sector, last.status.text());
    let count = if new > 1 { format!("{new} I/Os failed; the last: ") } else { String::new() };
    tracing::warn!(drive, op, sector, status, "drive {drive}: {count}{}", described(last));
}

fn described(failure: &Failure) -> String {
    let Failure { op, sector, nr_sectors, status } = *failure;
    let (name, errno) = (op.name(), status.errno());
    match (op, nr_sectors) {
        (Op::Flush, _) => format!("flush: {} (errno {errno})", status.text()),
        (_, 1) => format!("{name} of sector {sector}: {} (errno {errno})", status.text()),
        (_, count) => {
            let end = sector + u64::from(count) - 1;
            format!("{name} of sectors {sector} to {end}: {} (errno {errno})", status.text())
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_block::Status;

    use super::*;

    #[test]
    fn first_failure_is_said_at_once_and_those_after_it_together() {
        let mut said = FailureLog::default();
        let counts = [0, 1, 5, 6, 7, 8, 9, 9, 9, 9, 9, 9, 10];
        assert_eq!(counts.map(|count| said.news(count)), [0, 1, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn stuck_drive_is_reported_once_and_again_when_stuck_later() {
        let mut stuck = StuckDrives::default();
        assert_eq!(stuck.news(vec![2]), [2]);
        assert!((0..9).all(|_| stuck.news(vec![2]).is_empty()), "it is known");
        assert!(stuck.news(vec![]).is_empty());
        assert_eq!(stuck.news(vec![2]), [2]);
        assert!(stuck.news(vec![]).is_empty() && stuck.news(vec![2, 1]).is_empty(), "too soon");
        assert!((0..2).all(|_| stuck.news(vec![1]).is_empty()));
        assert_eq!(stuck.news(vec![1]), [1]);
    }

    #[test]
    fn a_failure_is_described_by_operation_sectors_and_reason() {
        let failure = |op, nr_sectors| {
            described(&Failure { op, sector: 64, nr_sectors, status: Status::IoError })
        };
        assert_eq!(failure(Op::Write, 8), "write of sectors 64 to 71: I/O error (errno 5)");
        assert_eq!(failure(Op::Read, 1), "read of sector 64: I/O error (errno 5)");
        assert_eq!(failure(Op::Flush, 0), "flush: I/O error (errno 5)");
    }
}
