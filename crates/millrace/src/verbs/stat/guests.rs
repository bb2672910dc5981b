//! `millrace stat --guests`: what the I/O threads of virtual machines do.
//!
//! Pure: the difference of two reports to a table. A row for each thread that did anything or has
//! a queue; rates are per second, the rest says what a request cost.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

use crate::views::guests::GuestThread;
use crate::views::report::Report;
use crate::visible::visible;

/// What the columns are.
pub const HELP: &str = "\
Columns of --guests: queues of guests that the thread serves now; r/s requests a second; aqu in flight
now; req/sub requests submitted together; kick/r, irq/r, sys/r kicks seen, interrupts sent and system
calls per request; hold/s submissions a second that waited for more; polls a second, %hit of them that
caught something, %poll of the time spent polling; slp/s sleeps; err errors; broken queues.";

/// The table of what came in between.
pub fn table(report: &Report, before: Option<&Report>) -> String {
    let seconds = report.uptime_ns.saturating_sub(before.map_or(0, |report| report.uptime_ns));
    let seconds = seconds.max(1) as f64 / 1e9;
    let mut table = Table::new();
    table.load_style(NOTHING).set_header([
        "guest", "thread", "queues", "r/s", "aqu", "req/sub", "kick/r", "irq/r", "sys/r", "hold/s",
        "polls/s", "%hit", "%poll", "slp/s", "err", "broken",
    ]);
    table.column_iter_mut().skip(1).for_each(|column| {
        column.set_cell_alignment(CellAlignment::Right);
    });
    let mut rows = 0;
    for thread in &report.guests {
        let old = before.and_then(|report| find(report, thread)).cloned().unwrap_or_default();
        let new = thread.since(&old);
        if new.requests == 0 && new.queues == 0 && rows > 0 {
            continue;
        }
        rows += 1;
        table.add_row(row(&new, seconds));
    }
    match rows {
        0 => "no export to virtual machines\n".to_owned(),
        _ => format!("{}\n\n", table.trim_fmt()),
    }
}

fn find<'a>(report: &'a Report, like: &GuestThread) -> Option<&'a GuestThread> {
    report.guests.iter().find(|one| one.export == like.export && one.thread == like.thread)
}

fn row(new: &GuestThread, seconds: f64) -> Vec<String> {
    let rate = |count: u64| format!("{:.0}", count as f64 / seconds);
    let per = |count: u64, of: u64| match of {
        0 => "-".to_owned(),
        of => format!("{:.2}", count as f64 / of as f64),
    };
    let polls = new.polls.hits + new.polls.misses;
    let percent = |part: f64, of: f64| match of > 0.0 {
        true => format!("{:.0}", 100.0 * part / of),
        false => "-".to_owned(),
    };
    vec![
        visible(&new.export).into_owned(),
        new.thread.to_string(),
        new.queues.to_string(),
        rate(new.requests),
        new.in_flight.to_string(),
        per(new.requests, new.batches),
        per(new.kicks, new.requests),
        per(new.interrupts, new.requests),
        per(new.system_calls, new.requests),
        rate(new.holds),
        rate(polls),
        percent(new.polls.hits as f64, polls as f64),
        percent(new.polls.ns as f64, seconds * 1e9),
        rate(new.sleeps),
        new.errors.to_string(),
        new.broken.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_a_row_of_what_came_in_between() {
        let thread = |requests, batches| GuestThread {
            export: "v".into(),
            queues: 1,
            requests,
            batches,
            kicks: requests / 2,
            ..GuestThread::default()
        };
        let report =
            |uptime_ns, thread| Report { uptime_ns, guests: vec![thread], ..Report::default() };
        let before = report(1_000_000_000, thread(100, 100));
        let text = table(&report(3_000_000_000, thread(500, 200)), Some(&before));
        let row: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(row[..7], ["v", "0", "1", "200", "0", "4.00", "0.50"]);
        assert_eq!(table(&Report::default(), None), "no export to virtual machines\n");
    }
}
