//! Counters of vhost-user exports, for each I/O thread and each queue.
//!
//! The threads publish the counters (counters.rs); the server's observers read them.

use std::sync::{Arc, Mutex};

use crate::counters::{Counters, PublishedCounters};
use crate::mailbox::lock;

/// Counters of one queue of an export, over all guests that have used it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Requests taken off the ring.
    pub requests: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Requests in flight now.
    pub in_flight: u64,
    /// Kicks of the guest that ended a sleep of the thread.
    pub kicks: u64,
    /// Interrupts sent to the guest.
    pub interrupts: u64,
    /// Number of times that the queue was taken out of service because of an error of the guest or
    /// frontend.
    pub broken: u64,
    /// 1 while the queue is in service, else 0. In a sum, the number of queues in service.
    pub queues: u64,
    /// 1 while the next request waits for room in the block layer, else 0. In a sum, the number of
    /// such queues.
    pub waiting: u64,
}

const QUEUE_FIELDS: usize = 8;

impl Counters<QUEUE_FIELDS> for QueueStats {
    fn fields(&mut self) -> [&mut u64; QUEUE_FIELDS] {
        [
            &mut self.requests,
            &mut self.errors,
            &mut self.in_flight,
            &mut self.kicks,
            &mut self.interrupts,
            &mut self.broken,
            &mut self.queues,
            &mut self.waiting,
        ]
    }
}

impl QueueStats {
    /// Adds the counters of another queue.
    pub fn add(&mut self, other: QueueStats) {
        self.add_fields(other);
    }
}

/// Counters of an I/O thread of an export, over all its queues.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThreadStats {
    /// Number of submissions to the drives, of one or more requests each.
    pub batches: u64,
    /// Number of submissions that were delayed to wait for more requests.
    pub holds: u64,
    /// Number of system calls on the data path: turns of the ring that entered the kernel, and
    /// interrupts.
    pub system_calls: u64,
    /// Polls that found work.
    pub poll_hits: u64,
    /// Polls that found nothing.
    pub poll_misses: u64,
    /// Time spent polling, in nanoseconds.
    pub poll_ns: u64,
    /// Number of sleeps.
    pub sleeps: u64,
}

const THREAD_FIELDS: usize = 7;

impl Counters<THREAD_FIELDS> for ThreadStats {
    fn fields(&mut self) -> [&mut u64; THREAD_FIELDS] {
        [
            &mut self.batches,
            &mut self.holds,
            &mut self.system_calls,
            &mut self.poll_hits,
            &mut self.poll_misses,
            &mut self.poll_ns,
            &mut self.sleeps,
        ]
    }
}

impl ThreadStats {
    /// Adds the counters of another thread.
    pub fn add(&mut self, other: ThreadStats) {
        self.add_fields(other);
    }
}

/// Counters of an I/O thread of an export and of its queues.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VhostStats {
    /// Counters of the thread over all its queues.
    pub thread: ThreadStats,
    /// Counters of each queue that the thread serves or has served, in ascending order of queue
    /// numbers.
    pub queues: Vec<(u16, QueueStats)>,
}

/// Published counters of a queue.
pub(crate) type QueueCounters = PublishedCounters<QUEUE_FIELDS>;

/// Published counters of an I/O thread and its queues.
#[derive(Default)]
pub(crate) struct PublishedStats {
    pub(crate) thread: PublishedCounters<THREAD_FIELDS>,
    queues: Mutex<Vec<(u16, Arc<QueueCounters>)>>,
}

impl PublishedStats {
    /// Returns the counters of a queue, which continue from those of an earlier guest.
    pub(crate) fn queue(&self, number: u16) -> Arc<QueueCounters> {
        let mut queues = lock(&self.queues);
        match queues.binary_search_by_key(&number, |queue| queue.0) {
            Ok(at) => Arc::clone(&queues[at].1),
            Err(at) => {
                let counters = Arc::<QueueCounters>::default();
                queues.insert(at, (number, Arc::clone(&counters)));
                counters
            }
        }
    }

    /// Returns the values that were published last.
    pub(crate) fn read(&self) -> VhostStats {
        let mut thread: ThreadStats = self.thread.read();
        let read = |queue: &(u16, Arc<QueueCounters>)| (queue.0, queue.1.read());
        let queues: Vec<(u16, QueueStats)> = lock(&self.queues).iter().map(read).collect();
        thread.system_calls += queues.iter().map(|(_, queue)| queue.interrupts).sum::<u64>();
        VhostStats { thread, queues }
    }
}
