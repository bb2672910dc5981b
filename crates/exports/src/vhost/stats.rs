//! Counters of vhost-user exports, for each I/O thread and each queue.
//!
//! The I/O threads publish the counters (counters.rs), and observers of the server read them.
//! Reports and metrics are generated from the entries of each `counter_table!`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::counters::PublishedCounters;
use crate::mailbox::lock;

crate::counter_table! {
/// Counters of one queue of an export, over all guests that have used the queue. `queues` and
/// `waiting` are 0 or 1 for each queue, so that their sums over several queues are numbers of
/// queues.
pub struct QueueStats {
    requests counter "requests" "/requests" "Requests of guests taken off rings.",
    errors counter "errors" "/errors" "Requests of guests answered with an error.",
    in_flight gauge "requests_in_flight" "/in_flight" "Requests of guests in flight now.",
    kicks counter "kicks" "/kicks" "Kicks received from guests.",
    interrupts counter "interrupts" "/interrupts" "Interrupts sent to guests.",
    broken counter "broken_queues" "/broken" "Times a queue went out of service because of a guest error.",
    queues gauge "queues" "" "1 while the queue is in service for a guest.",
    waiting gauge "" "" "1 while the next request waits for room in the block layer.",
}
}

crate::counter_table! {
/// Counters of an I/O thread of an export, over all its queues.
pub struct ThreadStats {
    batches counter "batches" "/batches" "Times requests were submitted together.",
    holds counter "holds" "/holds" "Times a submission was delayed to collect more requests.",
    system_calls counter "system_calls" "/system_calls" "System calls for data and interrupts.",
    poll_hits counter "poll_hits" "/polls/hits" "Polls that found work.",
    poll_misses counter "poll_misses" "/polls/misses" "Polls that found no work.",
    poll_ns counter "poll_nanoseconds" "/polls/ns" "Time spent polling.",
    sleeps counter "sleeps" "/sleeps" "Times a thread slept.",
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

pub(crate) type QueueCounters = PublishedCounters<{ QueueStats::COUNT }>;

#[derive(Default)]
pub(crate) struct PublishedStats {
    pub(crate) thread: PublishedCounters<{ ThreadStats::COUNT }>,
    queues: Mutex<BTreeMap<u16, Arc<QueueCounters>>>,
}

impl PublishedStats {
    /// Returns the counters of a queue, which continue from those of an earlier guest.
    pub(crate) fn queue(&self, number: u16) -> Arc<QueueCounters> {
        Arc::clone(lock(&self.queues).entry(number).or_default())
    }

    pub(crate) fn read(&self) -> VhostStats {
        let mut thread: ThreadStats = self.thread.read();
        let queues = lock(&self.queues);
        let queues = queues.iter().map(|(number, counters)| (*number, counters.read()));
        let queues: Vec<(u16, QueueStats)> = queues.collect();
        thread.system_calls += queues.iter().map(|(_, queue)| queue.interrupts).sum::<u64>();
        VhostStats { thread, queues }
    }
}
