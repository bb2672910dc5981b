//! Memory of disks that clients have left, given back to the system.
//!
//! The tables of a disk and of its users are freed some seconds after its last client has left, but
//! the allocator keeps them. Called once a second by daemon.rs, on the thread that watches.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use millrace_block::{Volume, is_unused};
use millrace_machine::Native;

/// Time from the end of a client to that of its tables, which are freed in two steps.
const QUIET: Duration = Duration::from_secs(5);
/// Longest time between two times while clients come and go all the time.
const BUSY: Duration = Duration::from_secs(60);

/// When memory was given back, and what happened since.
#[derive(Default)]
pub struct HeapTrim(Mutex<State>);

#[derive(Default)]
struct State {
    /// Clients that had left at the last look.
    left: u64,
    /// Since when there may be something to give back, and when the last client left.
    since: Option<(Instant, Instant)>,
}

impl HeapTrim {
    /// Gives memory back if it is time; `left` is the number of clients that have left so far.
    pub fn look(&self, left: u64, volumes: &[Arc<Volume<Native>>]) {
        if !self.is_due(left, Instant::now()) {
            return;
        }
        for volume in volumes.iter().filter(|volume| !volume.disks().iter().all(|it| is_unused(it)))
        {
            // Reading counters ends the accounts of threads that have left the disk.
            let _ = volume.tenants();
            volume.drives().iter().for_each(|disk| drop(disk.queue_stats()));
        }
        millrace_exports::nbd::trim_heap();
    }

    fn is_due(&self, left: u64, now: Instant) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.left != left {
            state.left = left;
            let first = state.since.map_or(now, |(first, _)| first);
            state.since = Some((first, now));
        }
        let is_due =
            state.since.is_some_and(|(first, last)| now - last >= QUIET || now - first >= BUSY);
        if is_due {
            state.since = None;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_once_clients_have_left_and_at_times_while_they_come_and_go() {
        let (trim, start) = (HeapTrim::default(), Instant::now());
        let due = |left: u64, seconds: u64| trim.is_due(left, start + Duration::from_secs(seconds));
        assert!(!due(0, 0) && !due(0, 100), "nobody was there");
        assert!(!due(2, 101) && !due(2, 105) && due(2, 106) && !due(2, 200));
        let busy: Vec<u64> = (300..430).filter(|second| due(*second, *second)).collect();
        assert_eq!(busy, [360, 421]);
    }
}
