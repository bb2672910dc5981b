//! `millrace stat --guests`: queues and I/O threads of virtual machines.
//!
//! Pure functions that convert the difference of two reports to a table, with a row for each queue
//! that is in use or did I/O. Rates are per second; other columns are per request. Counters of a
//! whole thread are in the row of its first queue.

use millrace_console::{Form, Grid, Side, shortened, visible};

use crate::views::guests::{GuestQueue, GuestThread};
use crate::views::report::Report;

/// Definitions of the columns.
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

/// Width of an export's name in the short form, in characters.
const NAME_WIDTH: usize = 12;

/// Counters of a queue and its thread for one row, and the length of the interval in seconds.
struct GuestDelta<'a> {
    thread: &'a GuestThread,
    queue: &'a GuestQueue,
    seconds: f64,
    /// True for the row that shows the thread's counters.
    has_thread: bool,
}

/// Column: heading, whether the short form shows it, and the function that formats a cell.
type Column = (&'static str, bool, fn(&GuestDelta<'_>) -> String);

const COLUMNS: [Column; 15] = [
    ("q", true, |delta| delta.queue.queue.to_string()),
    ("thr", true, |delta| delta.thread.thread.to_string()),
    ("r/s", true, |delta| delta.rate(delta.queue.requests)),
    ("aqu", true, |delta| delta.queue.in_flight.to_string()),
    ("kick/r", true, |delta| per(delta.queue.kicks, delta.queue.requests)),
    ("irq/r", true, |delta| per(delta.queue.interrupts, delta.queue.requests)),
    ("err", true, |delta| delta.queue.errors.to_string()),
    ("broken", false, |delta| delta.queue.broken.to_string()),
    ("req/sub", false, |delta| delta.of_thread(|thread| per(thread.requests(), thread.batches))),
    ("sys/r", true, |delta| delta.of_thread(|thread| per(thread.system_calls, thread.requests()))),
    ("hold/s", false, |delta| delta.of_thread(|thread| delta.rate(thread.holds))),
    ("polls/s", false, |delta| delta.of_thread(|thread| delta.rate(polls(thread)))),
    ("%hit", false, |delta| {
        delta.of_thread(|thread| percent(thread.polls.hits as f64, polls(thread) as f64))
    }),
    ("%poll", true, |delta| {
        delta.of_thread(|thread| percent(thread.polls.ns as f64, delta.seconds * 1e9))
    }),
    ("slp/s", false, |delta| delta.of_thread(|thread| delta.rate(thread.sleeps))),
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
    thread.polls.hits + thread.polls.misses
}

/// Formats the table of an interval.
pub fn table(report: &Report, before: Option<&Report>, form: Form) -> String {
    if report.guests.is_empty() {
        return "no export serves virtual machines\n".to_owned();
    }
    let seconds = report.uptime_ns.saturating_sub(before.map_or(0, |report| report.uptime_ns));
    let seconds = seconds.max(1) as f64 / 1e9;
    let shown: Vec<&Column> =
        COLUMNS.iter().filter(|(_, short, _)| *short || form == Form::Whole).collect();
    let heads = shown.iter().map(|(name, ..)| (*name, Side::Right));
    let mut grid = Grid::new(std::iter::once(("guest", Side::Left)).chain(heads));
    let mut rows = 0;
    for thread in &report.guests {
        let old = before.and_then(|report| find(report, thread)).cloned().unwrap_or_default();
        let new = thread.since(&old);
        let name = match form {
            Form::Short => shortened(&visible(&new.export), NAME_WIDTH),
            Form::Whole => visible(&new.export).into_owned(),
        };
        let is_shown = |queue: &&GuestQueue| queue.in_service || queue.requests > 0;
        for (place, queue) in new.queues.iter().filter(is_shown).enumerate() {
            rows += 1;
            let delta = GuestDelta { thread: &new, queue, seconds, has_thread: place == 0 };
            let cells = shown.iter().map(|(_, _, value)| value(&delta));
            grid.row(std::iter::once(name.clone()).chain(cells));
        }
    }
    match rows {
        0 => "no virtual machine is connected\n".to_owned(),
        _ => format!("{}\n\n", grid.text()),
    }
}

fn find<'a>(report: &'a Report, like: &GuestThread) -> Option<&'a GuestThread> {
    report.guests.iter().find(|one| one.export == like.export && one.thread == like.thread)
}

fn per(count: u64, of: u64) -> String {
    match of {
        0 => "-".to_owned(),
        of => format!("{:.2}", count as f64 / of as f64),
    }
}

fn percent(part: f64, of: f64) -> String {
    match of > 0.0 {
        true => format!("{:.0}", 100.0 * part / of),
        false => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_console::WIDTH;

    fn queue(queue: u16, requests: u64) -> GuestQueue {
        GuestQueue {
            queue,
            in_service: true,
            requests,
            kicks: requests / 2,
            ..GuestQueue::default()
        }
    }

    fn report(uptime_ns: u64, batches: u64, queues: Vec<GuestQueue>) -> Report {
        let thread = GuestThread { export: "v".into(), batches, queues, ..GuestThread::default() };
        Report { uptime_ns, guests: vec![thread], ..Report::default() }
    }

    #[test]
    fn a_queue_has_a_row_of_what_came_in_between_and_its_thread_has_it_once() {
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
        let queue = GuestQueue {
            in_flight: 1024,
            errors: 9_999_999,
            interrupts: 1 << 33,
            ..queue(255, 99_999_999)
        };
        let mut report = report(1_000_000_000, 1, vec![queue]);
        let thread = &mut report.guests[0];
        (thread.export, thread.thread, thread.system_calls) = ("e".repeat(99), 255, 1 << 33);
        let text = table(&report, None, Form::Short);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.contains("99999999 ") && text.contains('\u{2026}'), "{text}");
    }
}
