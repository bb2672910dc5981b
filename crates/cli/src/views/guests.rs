//! Counters of exports to virtual machines, for the control socket.
//!
//! This module defines the JSON format of the counters of an I/O thread and its queues;
//! millrace-exports lists the counters. `serve` fills them from the exports; `millrace stat
//! --guests` reads them back.

use millrace_exports::CounterTable as _;
use millrace_exports::vhost::{QueueStats, ThreadStats, VhostStats};
use serde::{Deserialize, Serialize};

use super::counter_json;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GuestThread {
    pub export: String,
    pub thread: u16,
    #[serde(flatten, with = "counter_json")]
    pub stats: ThreadStats,
    /// Counters of the queues that the thread serves or has served.
    pub queues: Vec<GuestQueue>,
}

/// Counters of a queue of an export to virtual machines, over all guests that used it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GuestQueue {
    pub queue: u16,
    /// True while a guest uses the queue.
    pub in_service: bool,
    #[serde(flatten, with = "counter_json")]
    pub stats: QueueStats,
}

impl GuestThread {
    pub fn new(export: &str, thread: usize, stats: &VhostStats) -> GuestThread {
        let queue = |(queue, stats): &(u16, QueueStats)| GuestQueue {
            queue: *queue,
            in_service: stats.queues > 0,
            stats: *stats,
        };
        let queues = stats.queues.iter().map(queue).collect();
        let (export, thread) = (export.to_owned(), thread as u16);
        GuestThread { export, thread, stats: stats.thread, queues }
    }

    pub fn since(&self, before: &GuestThread) -> GuestThread {
        let queue = |now: &GuestQueue| {
            let then = before.queues.iter().find(|then| then.queue == now.queue);
            let stats = then.map_or(now.stats, |then| now.stats.since(then.stats));
            GuestQueue { stats, ..*now }
        };
        let queues = self.queues.iter().map(queue).collect();
        GuestThread { stats: self.stats.since(before.stats), queues, ..self.clone() }
    }

    pub fn requests(&self) -> u64 {
        self.queues.iter().map(|queue| queue.stats.requests).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_of_a_thread_has_its_counters_and_is_read_back() {
        let stats = QueueStats { kicks: 7, ..QueueStats::default() };
        let queue = GuestQueue { queue: 3, in_service: true, stats };
        let stats = ThreadStats { sleeps: 9, poll_ns: 5, ..ThreadStats::default() };
        let thread = GuestThread { export: "v".into(), thread: 1, stats, queues: vec![queue] };
        let json = serde_json::json!(thread);
        assert_eq!((&json["polls"]["ns"], &json["sleeps"]), (&5.into(), &9.into()));
        let queue = serde_json::json!({
            "queue": 3, "in_service": true, "in_flight": 0, "requests": 0, "errors": 0, "kicks": 7,
            "interrupts": 0, "broken": 0,
        });
        assert_eq!(json["queues"][0], queue);
        assert_eq!(serde_json::from_value::<GuestThread>(json).unwrap(), thread);
    }
}
