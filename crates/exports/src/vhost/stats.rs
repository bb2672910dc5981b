//! Counters of vhost-user exports: what each I/O thread counts for itself and for its queues.
//!
//! Published by the threads (counters.rs); read by the server's observers.

use std::sync::{Arc, Mutex};

use crate::counters::{Counters, PublishedCounters};
use crate::mailbox::lock;

/// What a queue of an export did so far, for all guests that have used it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Requests taken off the ring.
    pub requests: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Requests in flight now.
    pub in_flight: u64,
    /// Kicks of the guest that were seen.
    pub kicks: u64,
    /// Interrupts sent to the guest.
    pub interrupts: u64,
    /// Times the guest broke the ring.
    pub broken: u64,
    /// 1 while the queue is in service; of several queues, how many are.
    pub queues: u64,
    /// 1 while the queue's next request waits, as the layer takes no more; of several, how many.
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
    /// Adds the counters of another queue to these.
    pub fn add(&mut self, other: QueueStats) {
        self.add_fields(other);
    }
}

/// What an I/O thread of an export did so far for all its queues.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThreadStats {
    /// Times requests were given to the drives together.
    pub batches: u64,
    /// Times it waited for more requests before.
    pub holds: u64,
    /// System calls on the data path: turns of the ring that entered the kernel, and interrupts.
    pub system_calls: u64,
    /// Polls that ended because something came.
    pub poll_hits: u64,
    /// Polls in vain.
    pub poll_misses: u64,
    /// Time spent polling, in nanoseconds.
    pub poll_ns: u64,
    /// Times it slept.
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
    /// Adds the counters of another thread to these.
    pub fn add(&mut self, other: ThreadStats) {
        self.add_fields(other);
    }
}

/// An I/O thread of an export and its queues, so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VhostStats {
    /// What the thread did for all its queues.
    pub thread: ThreadStats,
    /// Each queue that it serves or has served, by its number in the device, in ascending order.
    pub queues: Vec<(u16, QueueStats)>,
}

/// The counters of a queue, for other threads to read.
pub(crate) type QueueCounters = PublishedCounters<QUEUE_FIELDS>;

/// The counters of an I/O thread and its queues, for other threads to read.
#[derive(Default)]
pub(crate) struct PublishedStats {
    pub(crate) thread: PublishedCounters<THREAD_FIELDS>,
    queues: Mutex<Vec<(u16, Arc<QueueCounters>)>>,
}

impl PublishedStats {
    /// The counters of a queue, which go on from where an earlier guest left them.
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

    /// What was published last.
    pub(crate) fn read(&self) -> VhostStats {
        let mut thread: ThreadStats = self.thread.read();
        let read = |queue: &(u16, Arc<QueueCounters>)| (queue.0, queue.1.read());
        let queues: Vec<(u16, QueueStats)> = lock(&self.queues).iter().map(read).collect();
        thread.system_calls += queues.iter().map(|(_, queue)| queue.interrupts).sum::<u64>();
        VhostStats { thread, queues }
    }
}
