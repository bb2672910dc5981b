//! `HeapTrim`: returns the memory of disks without clients to the operating system.
//!
//! The block layer frees its per-disk tables some seconds after the last client of a disk has left,
//! but the allocator keeps the memory.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millrace_block::{Volume, is_unused};
use millrace_machine::{Native, lock_unpoisoned};

/// Time from the last departure of a client until the heap is trimmed.
const QUIET: Duration = Duration::from_secs(5);
/// Maximum time between two trims while clients connect and disconnect continually.
const BUSY: Duration = Duration::from_secs(60);

#[derive(Default)]
pub struct HeapTrim(Mutex<TrimState>);

#[derive(Default)]
struct TrimState {
    left: u64,
    /// Times of the first and the last client departure since the previous trim, if any.
    since: Option<(Instant, Instant)>,
}

impl HeapTrim {
    /// Trims the heap if a trim is due. `left` is the number of clients that have left so far.
    pub fn look(&self, left: u64, volumes: &[Arc<Volume<Native>>]) {
        if !self.is_due(left, Instant::now()) {
            return;
        }
        for volume in volumes.iter().filter(|volume| !volume.disks().iter().all(|it| is_unused(it)))
        {
            // The statistics are read for a side effect: counters of threads that no longer use the
            // disk are freed.
            let _ = volume.tenants();
            volume.drives().iter().for_each(|disk| drop(disk.queue_stats()));
        }
        millrace_exports::nbd::trim_heap();
    }

    fn is_due(&self, left: u64, now: Instant) -> bool {
        let mut state = lock_unpoisoned(&self.0);
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
    fn memory_is_returned_after_clients_leave_and_sometimes_before() {
        let (trim, start) = (HeapTrim::default(), Instant::now());
        let due = |left: u64, seconds: u64| trim.is_due(left, start + Duration::from_secs(seconds));
        assert!(!due(0, 0) && !due(0, 100), "nobody was there");
        assert!(!due(2, 101) && !due(2, 105) && due(2, 106) && !due(2, 200));
        let busy: Vec<u64> = (300..430).filter(|second| due(*second, *second)).collect();
        assert_eq!(busy, [360, 421]);
    }
}
