//! `millrace stat --guests`: what the I/O threads of virtual machines do.
//!
//! Pure: the difference of two reports to a table. A row for each thread that did anything or has
//! a queue; rates are per second, the rest says what a request cost.

use millrace_console::{Form, Grid, Side, shortened, visible};

use crate::views::guests::GuestThread;
use crate::views::report::Report;

/// What the columns are.
pub const HELP: &str = "\
Columns of --guests; those marked * come with -x:
  guest thr     the export, and the number of its I/O thread
  qs            queues of guests that the thread serves now
  r/s aqu       requests a second; requests in flight now
  req/sub *     requests that were submitted together, on average
  kick/r irq/r  notifications from the guest, and interrupts to it, for each request
  sys/r         system calls for each request
  hold/s *      submissions a second that waited for more requests
  polls/s *     looks for requests while nothing had been announced; %hit of them found some
  %poll         the time that the thread spent with such looks
  slp/s *       how often the thread went to sleep, a second
  err broken    requests that failed; queues that broke a rule and are served no more";

/// Characters of an export's name in the short form.
const NAME_WIDTH: usize = 12;

/// What one row is made of: what the thread did, and in how many seconds.
struct GuestDelta<'a> {
    thread: &'a GuestThread,
    seconds: f64,
}

/// A column: its name, whether the short form has it, and its value.
type Column = (&'static str, bool, fn(&GuestDelta<'_>) -> String);

const COLUMNS: [Column; 15] = [
    ("thr", true, |delta| delta.thread.thread.to_string()),
    ("qs", true, |delta| delta.thread.queues.to_string()),
    ("r/s", true, |delta| delta.rate(delta.thread.requests)),
    ("aqu", true, |delta| delta.thread.in_flight.to_string()),
    ("req/sub", false, |delta| per(delta.thread.requests, delta.thread.batches)),
    ("kick/r", true, |delta| per(delta.thread.kicks, delta.thread.requests)),
    ("irq/r", true, |delta| per(delta.thread.interrupts, delta.thread.requests)),
    ("sys/r", true, |delta| per(delta.thread.system_calls, delta.thread.requests)),
    ("hold/s", false, |delta| delta.rate(delta.thread.holds)),
    ("polls/s", false, |delta| delta.rate(delta.polls())),
    ("%hit", false, |delta| percent(delta.thread.polls.hits as f64, delta.polls() as f64)),
    ("%poll", true, |delta| percent(delta.thread.polls.ns as f64, delta.seconds * 1e9)),
    ("slp/s", false, |delta| delta.rate(delta.thread.sleeps)),
    ("err", true, |delta| delta.thread.errors.to_string()),
    ("broken", false, |delta| delta.thread.broken.to_string()),
];

impl GuestDelta<'_> {
    fn rate(&self, count: u64) -> String {
        format!("{:.0}", count as f64 / self.seconds)
    }

    fn polls(&self) -> u64 {
        self.thread.polls.hits + self.thread.polls.misses
    }
}

/// The table of what came in between.
pub fn table(report: &Report, before: Option<&Report>, form: Form) -> String {
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
        if new.requests == 0 && new.queues == 0 && rows > 0 {
            continue;
        }
        rows += 1;
        let name = match form {
            Form::Short => shortened(&visible(&new.export), NAME_WIDTH),
            Form::Whole => visible(&new.export).into_owned(),
        };
        let delta = GuestDelta { thread: &new, seconds };
        grid.row(std::iter::once(name).chain(shown.iter().map(|(_, _, value)| value(&delta))));
    }
    match rows {
        0 => "no export to virtual machines\n".to_owned(),
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

    fn thread(requests: u64, batches: u64) -> GuestThread {
        GuestThread {
            export: "v".into(),
            queues: 1,
            requests,
            batches,
            kicks: requests / 2,
            ..GuestThread::default()
        }
    }

    fn report(uptime_ns: u64, thread: GuestThread) -> Report {
        Report { uptime_ns, guests: vec![thread], ..Report::default() }
    }

    #[test]
    fn a_thread_has_a_row_of_what_came_in_between() {
        let before = report(1_000_000_000, thread(100, 100));
        let text = table(&report(3_000_000_000, thread(500, 200)), Some(&before), Form::Whole);
        let row: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(row[..7], ["v", "0", "1", "200", "0", "4.00", "0.50"]);
        let none = table(&Report::default(), None, Form::Short);
        assert_eq!(none, "no export to virtual machines\n");
    }

    #[test]
    fn the_short_form_fits_80_columns() {
        let thread = GuestThread {
            export: "e".repeat(99),
            thread: 255,
            queues: 256,
            in_flight: 256 * 1024,
            errors: 9_999_999,
            system_calls: 1 << 33,
            ..thread(99_999_999, 1)
        };
        let text = table(&report(1_000_000_000, thread), None, Form::Short);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.contains("99999999 ") && text.contains('\u{2026}'), "{text}");
    }
}
