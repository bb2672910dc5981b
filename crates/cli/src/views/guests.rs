//! What the exports to virtual machines did, on the control socket and for Prometheus.
//!
//! Owns the shape of one I/O thread's counters and their metrics. Made by `serve` from the
//! exports' counters; read back by `millrace stat --guests`.

use std::fmt::Write;

use millrace_exports::vhost::VhostStats;
use serde::{Deserialize, Serialize};

/// One I/O thread of an export to virtual machines, so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GuestThread {
    /// The export's name.
    pub export: String,
    /// Number of the thread in its export.
    pub thread: u16,
    /// Queues of a guest that it serves now.
    pub queues: u64,
    /// Requests in flight now.
    pub in_flight: u64,
    /// Requests taken off rings.
    pub requests: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Times requests were submitted to the drives together.
    pub batches: u64,
    /// Times it waited for more requests before.
    pub holds: u64,
    /// Kicks of the guest that were seen.
    pub kicks: u64,
    /// Interrupts sent to the guest.
    pub interrupts: u64,
    /// System calls for data and interrupts.
    pub system_calls: u64,
    /// What its polls caught.
    pub polls: Polls,
    /// Times it slept.
    pub sleeps: u64,
    /// Queues that a guest broke.
    pub broken: u64,
}

/// Polls of a thread, so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Polls {
    /// Those that ended because something came.
    pub hits: u64,
    /// Those in vain.
    pub misses: u64,
    /// Time that they took, in nanoseconds.
    pub ns: u64,
}

impl GuestThread {
    /// A thread's counters.
    pub fn new(export: &str, thread: usize, stats: &VhostStats) -> GuestThread {
        GuestThread {
            export: export.to_owned(),
            thread: thread as u16,
            queues: stats.queues,
            in_flight: stats.in_flight,
            requests: stats.requests,
            errors: stats.errors,
            batches: stats.batches,
            holds: stats.holds,
            kicks: stats.kicks,
            interrupts: stats.interrupts,
            system_calls: stats.system_calls,
            polls: Polls { hits: stats.poll_hits, misses: stats.poll_misses, ns: stats.poll_ns },
            sleeps: stats.sleeps,
            broken: stats.broken,
        }
    }

    /// The difference to an earlier report of the same thread.
    #[must_use]
    pub fn since(&self, before: &GuestThread) -> GuestThread {
        let less = |now: u64, then: u64| now.saturating_sub(then);
        GuestThread {
            requests: less(self.requests, before.requests),
            errors: less(self.errors, before.errors),
            batches: less(self.batches, before.batches),
            holds: less(self.holds, before.holds),
            kicks: less(self.kicks, before.kicks),
            interrupts: less(self.interrupts, before.interrupts),
            system_calls: less(self.system_calls, before.system_calls),
            polls: Polls {
                hits: less(self.polls.hits, before.polls.hits),
                misses: less(self.polls.misses, before.polls.misses),
                ns: less(self.polls.ns, before.polls.ns),
            },
            sleeps: less(self.sleeps, before.sleeps),
            broken: less(self.broken, before.broken),
            ..self.clone()
        }
    }
}

/// A counter or gauge: its name, what it is, its value.
type Metric = (&'static str, &'static str, fn(&GuestThread) -> u64);

const COUNTERS: [Metric; 12] = [
    ("requests", "Requests of guests taken off rings.", |t| t.requests),
    ("errors", "Requests of guests answered with an error.", |t| t.errors),
    ("batches", "Times requests were submitted together.", |t| t.batches),
    ("holds", "Times it waited for more requests before.", |t| t.holds),
    ("kicks", "Kicks of guests that were seen.", |t| t.kicks),
    ("interrupts", "Interrupts sent to guests.", |t| t.interrupts),
    ("system_calls", "System calls for data and interrupts.", |t| t.system_calls),
    ("poll_hits", "Polls that ended because something came.", |t| t.polls.hits),
    ("poll_misses", "Polls in vain.", |t| t.polls.misses),
    ("poll_nanoseconds", "Time spent polling.", |t| t.polls.ns),
    ("sleeps", "Times a thread slept.", |t| t.sleeps),
    ("broken_queues", "Queues that a guest broke.", |t| t.broken),
];

const GAUGES: [Metric; 2] = [
    ("queues", "Queues of guests that are served now.", |t| t.queues),
    ("requests_in_flight", "Requests of guests in flight now.", |t| t.in_flight),
];

/// The lines for Prometheus; none without such an export. `braced` makes text of labels.
pub fn metrics(threads: &[GuestThread], braced: impl Fn(&[(&str, &str)]) -> String) -> String {
    let mut page = String::new();
    if threads.is_empty() {
        return page;
    }
    let counters =
        COUNTERS.map(|(name, help, value)| (format!("{name}_total"), "counter", help, value));
    let gauges = GAUGES.map(|(name, help, value)| (name.to_owned(), "gauge", help, value));
    for (name, kind, help, value) in counters.into_iter().chain(gauges) {
        let name = format!("millrace_vhost_{name}");
        // Writing to a string cannot fail.
        let _ = write!(page, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for thread in threads {
            let number = thread.thread.to_string();
            let labels = braced(&[("export", &thread.export), ("thread", &number)]);
            let _ = writeln!(page, "{name}{labels} {}", value(thread));
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_of_every_thread_has_a_line() {
        let thread = |thread| GuestThread { thread, kicks: 7, ..GuestThread::default() };
        let braced = |labels: &[(&str, &str)]| format!("{{{}}}", labels[1].1);
        let text = metrics(&[thread(0), thread(1)], braced);
        assert_eq!(text.lines().filter(|line| !line.starts_with('#')).count(), 28);
        assert!(text.contains("millrace_vhost_kicks_total{1} 7\n"), "{text}");
        assert!(metrics(&[], braced).is_empty());
    }
}
