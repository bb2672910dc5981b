//! `millrace stat --guests`: queues and I/O threads of virtual machines.
//!
//! Pure functions that convert the difference of two reports to a table, with a row for each queue
//! that is in use or did I/O. Rates are per second; other columns are per request. Counters of a
//! whole thread are in the row of its first queue.

use millrace_console::{Form, TextGrid};

use super::caches::percent;
use super::groups::name;
use crate::views::guests::{GuestQueue, GuestThread};
use crate::views::report::Report;

pub const HELP: &str = "\
Columns of --guests, a row for each queue; those marked * come with -x:
  guest q thr   the export, the number of its queue, and of the I/O thread that serves it
  r/s aqu       requests per second; requests in flight now
  kick/r irq/r  notifications from the guest, and interrupts to it, for each request
  err broken *  requests that failed; how often the guest broke a rule and lost the queue
Columns of the whole thread, in the row of its first queue:
  req/sub *     requests that were submitted together, on average
  sys/r         system calls for each request
  hold/s *      submissions a second that waited for more requests
  polls/s *     polls for requests without a notification; %hit of them found some
  %poll         share of the time that the thread spent polling
  slp/s *       how often the thread went to sleep, a second";

const NAME_WIDTH: usize = 12;

struct GuestDelta<'a> {
    thread: &'a GuestThread,
    queue: &'a GuestQueue,
    seconds: f64,
    /// True for the thread's first row, which shows the counters of the whole thread.
    has_thread: bool,
}

/// Column of the table: heading, true if it is shown without `--extended`, and the function that
/// formats a cell.
type Column = (&'static str, bool, fn(&GuestDelta<'_>) -> String);

const COLUMNS: [Column; 15] = [
    ("q", true, |delta| delta.queue.queue.to_string()),
    ("thr", true, |delta| delta.thread.thread.to_string()),
    ("r/s", true, |delta| delta.rate(delta.queue.stats.requests)),
    ("aqu", true, |delta| delta.queue.stats.in_flight.to_string()),
    ("kick/r", true, |delta| per(delta.queue.stats.kicks, delta.queue.stats.requests)),
    ("irq/r", true, |delta| per(delta.queue.stats.interrupts, delta.queue.stats.requests)),
    ("err", true, |delta| delta.queue.stats.errors.to_string()),
    ("broken", false, |delta| delta.queue.stats.broken.to_string()),
    ("req/sub", false, |delta| {
        delta.of_thread(|thread| per(thread.requests(), thread.stats.batches))
    }),
    ("sys/r", true, |delta| {
        delta.of_thread(|thread| per(thread.stats.system_calls, thread.requests()))
    }),
    ("hold/s", false, |delta| delta.of_thread(|thread| delta.rate(thread.stats.holds))),
    ("polls/s", false, |delta| delta.of_thread(|thread| delta.rate(polls(thread)))),
    ("%hit", false, |delta| {
        delta.of_thread(|thread| percent(thread.stats.poll_hits, polls(thread)))
    }),
    ("%poll", true, |delta| {
        delta.of_thread(|thread| percent(thread.stats.poll_ns, (delta.seconds * 1e9) as u64))
    }),
    ("slp/s", false, |delta| delta.of_thread(|thread| delta.rate(thread.stats.sleeps))),
];

impl GuestDelta<'_> {
    fn rate(&self, count: u64) -> String {
        format!("{:.0}", count as f64 / self.seconds)
    }

    fn of_thread(&self, cell: impl FnOnce(&GuestThread) -> String) -> String {
        if self.has_thread { cell(self.thread) } else { String::new() }
    }
}

fn polls(thread: &GuestThread) -> u64 {
    thread.stats.poll_hits + thread.stats.poll_misses
}

pub fn table(report: &Report, before: Option<&Report>, form: Form) -> String {
    if report.guests.is_empty() {
        return "no export serves virtual machines\n".to_owned();
    }
    let seconds = report.seconds_since(before);
    let since = |thread: &GuestThread| {
        let is_it = |old: &&GuestThread| old.export == thread.export && old.thread == thread.thread;
        let old = before.and_then(|report| report.guests.iter().find(is_it));
        old.map_or_else(|| thread.clone(), |old| thread.since(old))
    };
    let threads: Vec<GuestThread> = report.guests.iter().map(since).collect();
    let is_shown = |queue: &&GuestQueue| queue.in_service || queue.stats.requests > 0;
    let rows = threads.iter().flat_map(|thread| {
        let row = move |(place, queue)| {
            let delta = GuestDelta { thread, queue, seconds, has_thread: place == 0 };
            (name(&thread.export, NAME_WIDTH, form), delta)
        };
        thread.queues.iter().filter(is_shown).enumerate().map(row)
    });
    let rows: Vec<_> = rows.collect();
    match rows.is_empty() {
        true => "no virtual machine is connected\n".to_owned(),
        false => format!("{}\n\n", TextGrid::of_rows("guest", &COLUMNS, form, rows).text()),
    }
}

fn per(count: u64, of: u64) -> String {
    match of {
        0 => "-".to_owned(),
        of => format!("{:.2}", count as f64 / of as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_console::WIDTH;
    use millrace_exports::vhost::{QueueStats, ThreadStats};

    fn queue(queue: u16, requests: u64) -> GuestQueue {
        let stats = QueueStats { requests, kicks: requests / 2, ..QueueStats::default() };
        GuestQueue { queue, in_service: true, stats }
    }

    fn report(uptime_ns: u64, batches: u64, queues: Vec<GuestQueue>) -> Report {
        let stats = ThreadStats { batches, ..ThreadStats::default() };
        let thread = GuestThread { export: "v".into(), thread: 0, stats, queues };
        Report { uptime_ns, guests: vec![thread], ..Report::default() }
    }

    #[test]
    fn queue_has_one_row_of_news_that_its_thread_sees_once() {
        let before = report(1_000_000_000, 100, vec![queue(0, 100)]);
        let now = report(3_000_000_000, 200, vec![queue(0, 500), queue(4, 400)]);
        let text = table(&now, Some(&before), Form::Whole);
        let row = |at| -> Vec<&str> { text.lines().nth(at).unwrap().split_whitespace().collect() };
        assert_eq!(
            row(0)[..10],
            ["guest", "q", "thr", "r/s", "aqu", "kick/r", "irq/r", "err", "broken", "req/sub"]
        );
        assert_eq!(row(1)[..10], ["v", "0", "0", "200", "0", "0.50", "0.00", "0", "0", "8.00"]);
        assert_eq!(row(2), ["v", "4", "0", "200", "0", "0.50", "0.00", "0", "0"]);
        assert_eq!(text.trim_end().lines().count(), 3);
    }

    #[test]
    fn a_queue_out_of_service_that_does_nothing_has_no_row() {
        let gone = GuestQueue { in_service: false, ..queue(0, 100) };
        let before = report(1_000_000_000, 100, vec![gone]);
        let text = table(&before, Some(&before), Form::Short);
        assert_eq!(text, "no virtual machine is connected\n");
        let none = table(&Report::default(), None, Form::Short);
        assert_eq!(none, "no export serves virtual machines\n");
    }

    #[test]
    fn the_short_form_fits_80_columns() {
        let mut queue = queue(255, 99_999_999);
        let stats = &mut queue.stats;
        (stats.in_flight, stats.errors, stats.interrupts) = (1024, 9_999_999, 1 << 33);
        let mut report = report(1_000_000_000, 1, vec![queue]);
        let thread = &mut report.guests[0];
        (thread.export, thread.thread, thread.stats.system_calls) = ("e".repeat(99), 255, 1 << 33);
        let text = table(&report, None, Form::Short);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.contains("99999999 ") && text.contains('\u{2026}'), "{text}");
    }
}
