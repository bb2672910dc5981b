//! Counters of exports to virtual machines, for the control socket and Prometheus.
//!
//! This module owns the JSON shape of the counters of an I/O thread and its queues, and their
//! metrics. `serve` fills them from the exports; `millrace stat --guests` reads them back.

use std::fmt::Write;

use millrace_exports::vhost::VhostStats;
use serde::{Deserialize, Serialize};

/// Counters of an I/O thread of an export to virtual machines.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GuestThread {
    /// Name of the export.
    pub export: String,
    /// Number of the thread within its export.
    pub thread: u16,
    /// Number of batches of requests submitted to the drives.
    pub batches: u64,
    /// Number of times that the thread waited for more requests before submitting.
    pub holds: u64,
    /// Number of system calls for data and interrupts.
    pub system_calls: u64,
    /// Counters of the thread's busy polls.
    pub polls: PollCounts,
    /// Number of sleeps.
    pub sleeps: u64,
    /// Counters of the queues that the thread serves or has served.
    pub queues: Vec<GuestQueue>,
}

/// Counters of a queue of an export to virtual machines, over all guests that used it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GuestQueue {
    /// Index of the queue in the device.
    pub queue: u16,
    /// True while a guest uses the queue.
    pub in_service: bool,
    /// Requests in flight now.
    pub in_flight: u64,
    /// Requests taken off the ring.
    pub requests: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Notifications (kicks) received from the guest.
    pub kicks: u64,
    /// Interrupts sent to the guest.
    pub interrupts: u64,
    /// Number of times that a guest violated the ring protocol.
    pub broken: u64,
}

/// Busy polls of a thread so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PollCounts {
    /// Polls that found a request.
    pub hits: u64,
    /// Polls that found nothing.
    pub misses: u64,
    /// Time spent polling in nanoseconds.
    pub ns: u64,
}

impl GuestThread {
    /// Takes the counters of a thread and its queues.
    pub fn new(export: &str, thread: usize, stats: &VhostStats) -> GuestThread {
        let queues = stats.queues.iter().map(|(number, stats)| GuestQueue {
            queue: *number,
            in_service: stats.queues > 0,
            in_flight: stats.in_flight,
            requests: stats.requests,
            errors: stats.errors,
            kicks: stats.kicks,
            interrupts: stats.interrupts,
            broken: stats.broken,
        });
        let queues = queues.collect();
        let stats = &stats.thread;
        GuestThread {
            export: export.to_owned(),
            thread: thread as u16,
            batches: stats.batches,
            holds: stats.holds,
            system_calls: stats.system_calls,
            polls: PollCounts {
                hits: stats.poll_hits,
                misses: stats.poll_misses,
                ns: stats.poll_ns,
            },
            sleeps: stats.sleeps,
            queues,
        }
    }

    /// Returns the increase since an earlier report of the same thread.
    #[must_use]
    pub fn since(&self, before: &GuestThread) -> GuestThread {
        let less = |now: u64, then: u64| now.saturating_sub(then);
        let queue = |now: &GuestQueue| {
            let then = before.queues.iter().find(|then| then.queue == now.queue);
            then.map_or(*now, |then| now.since(then))
        };
        GuestThread {
            batches: less(self.batches, before.batches),
            holds: less(self.holds, before.holds),
            system_calls: less(self.system_calls, before.system_calls),
            polls: PollCounts {
                hits: less(self.polls.hits, before.polls.hits),
                misses: less(self.polls.misses, before.polls.misses),
                ns: less(self.polls.ns, before.polls.ns),
            },
            sleeps: less(self.sleeps, before.sleeps),
            queues: self.queues.iter().map(queue).collect(),
            ..self.clone()
        }
    }

    /// Returns the number of requests taken off all its queues.
    pub fn requests(&self) -> u64 {
        self.queues.iter().map(|queue| queue.requests).sum()
    }
}

impl GuestQueue {
    fn since(&self, before: &GuestQueue) -> GuestQueue {
        let less = |now: u64, then: u64| now.saturating_sub(then);
        GuestQueue {
            requests: less(self.requests, before.requests),
            errors: less(self.errors, before.errors),
            kicks: less(self.kicks, before.kicks),
            interrupts: less(self.interrupts, before.interrupts),
            broken: less(self.broken, before.broken),
            ..*self
        }
    }
}

/// Name, help text and value of a counter or gauge.
type Metric<T> = (&'static str, &'static str, fn(&T) -> u64);

const QUEUE_METRICS: [Metric<GuestQueue>; 7] = [
    ("requests_total", "Requests of guests taken off rings.", |q| q.requests),
    ("errors_total", "Requests of guests answered with an error.", |q| q.errors),
    ("kicks_total", "Kicks received from guests.", |q| q.kicks),
    ("interrupts_total", "Interrupts sent to guests.", |q| q.interrupts),
    ("broken_queues_total", "Times that a guest violated the ring protocol.", |q| q.broken),
    ("queues", "1 while a guest has the queue in service.", |q| q.in_service.into()),
    ("requests_in_flight", "Requests of guests in flight now.", |q| q.in_flight),
];

const THREAD_METRICS: [Metric<GuestThread>; 7] = [
    ("batches_total", "Batches of requests submitted to the drives.", |t| t.batches),
    ("holds_total", "Times that the thread waited for more requests before submitting.", |t| {
        t.holds
    }),
    ("system_calls_total", "System calls for data and interrupts.", |t| t.system_calls),
    ("poll_hits_total", "Busy polls that found a request.", |t| t.polls.hits),
    ("poll_misses_total", "Polls in vain.", |t| t.polls.misses),
    ("poll_nanoseconds_total", "Time spent polling.", |t| t.polls.ns),
    ("sleeps_total", "Times a thread slept.", |t| t.sleeps),
];

/// Formats the guests' metrics for Prometheus. Returns an empty text if there are no guests.
/// `braced` formats labels.
pub fn metrics(threads: &[GuestThread], braced: impl Fn(&[(&str, &str)]) -> String) -> String {
    let mut page = String::new();
    if threads.is_empty() {
        return page;
    }
    for (name, help, value) in QUEUE_METRICS {
        head(&mut page, name, help);
        for thread in threads {
            for queue in &thread.queues {
                let (of_thread, of_queue) = (thread.thread.to_string(), queue.queue.to_string());
                let labels = [
                    ("export", thread.export.as_str()),
                    ("thread", &of_thread),
                    ("queue", &of_queue),
                ];
                line(&mut page, name, &braced(&labels), value(queue));
            }
        }
    }
    for (name, help, value) in THREAD_METRICS {
        head(&mut page, name, help);
        for thread in threads {
            let number = thread.thread.to_string();
            let labels = braced(&[("export", &thread.export), ("thread", &number)]);
            line(&mut page, name, &labels, value(thread));
        }
    }
    page
}

fn head(page: &mut String, name: &str, help: &str) {
    let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
    let name = format!("millrace_vhost_{name}");
    // Writing to a string cannot fail.
    let _ = write!(page, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
}

fn line(page: &mut String, name: &str, labels: &str, value: u64) {
    // Writing to a string cannot fail.
    let _ = writeln!(page, "millrace_vhost_{name}{labels} {value}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_of_every_thread_and_queue_has_a_line() {
        let queue = |queue| GuestQueue { queue, kicks: 7, ..GuestQueue::default() };
        let thread = |thread| GuestThread {
            thread,
            sleeps: 9,
            queues: vec![queue(2 * thread), queue(2 * thread + 1)],
            ..GuestThread::default()
        };
        let braced = |labels: &[(&str, &str)]| {
            let labels: Vec<String> =
                labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
            format!("{{{}}}", labels[1..].join(","))
        };
        let text = metrics(&[thread(0), thread(1)], braced);
        assert_eq!(text.lines().filter(|line| !line.starts_with('#')).count(), 4 * 7 + 2 * 7);
        assert!(text.contains("millrace_vhost_kicks_total{thread=1,queue=3} 7\n"), "{text}");
        assert!(text.contains("millrace_vhost_sleeps_total{thread=1} 9\n"), "{text}");
        assert!(text.contains("# TYPE millrace_vhost_queues gauge\n"), "{text}");
        assert!(metrics(&[], braced).is_empty());
    }
}
