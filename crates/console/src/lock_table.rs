//! Lock statistics as a table with lockmeter's columns. The short form fits 80 characters; the full
//! form has all columns.
//!
//! This module only formats the statistics, with times in microseconds. Below the row of a lock are
//! indented rows, one for each place in the code that takes the lock.

use millrace_trace::LockLine;

use crate::grid::{Column, Form, TextGrid, fitted, shortened};

const NAME_WIDTH: usize = 22;

const COLUMNS: [Column<LockLine>; 9] = [
    ("taken", true, |lock| lock.acquisitions.to_string()),
    ("rejected", false, |lock| lock.rejected.to_string()),
    ("contended", true, |lock| percent(lock.contended_share)),
    ("wait us", true, |lock| micros(lock.wait_ns_mean)),
    ("max wait us", false, |lock| micros(lock.wait_ns_max)),
    ("hold us", true, |lock| micros(lock.hold_ns_mean)),
    ("max hold us", false, |lock| micros(lock.hold_ns_max)),
    ("held", true, |lock| percent(lock.held_share)),
    ("spinning", false, |lock| percent(lock.spin_share)),
];

/// Formats lock statistics as a table, without a line feed at the end.
pub fn lock_table(locks: &[LockLine], form: Form) -> String {
    let rows = locks.iter().map(|lock| (label(lock, form), lock));
    TextGrid::of_rows("lock, taken at", &COLUMNS, form, rows).text()
}

fn label(lock: &LockLine, form: Form) -> String {
    let Some(site) = &lock.site else {
        return match form {
            Form::Whole => lock.name.clone(),
            Form::Short => shortened(&lock.name, NAME_WIDTH),
        };
    };
    let whole = site.strip_prefix("crates/").unwrap_or(site);
    if form == Form::Whole {
        return format!("  {whole}");
    }
    // The path is shortened to fit: first `/src/`, which is in every path, is dropped, then leading
    // directories.
    let short = whole.replacen("/src/", "/", 1);
    let mut place = short.as_str();
    while place.len() > NAME_WIDTH - 2
        && let Some((_, rest)) = place.split_once('/')
    {
        place = rest;
    }
    format!("  {}", shortened(place, NAME_WIDTH - 2))
}

fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

fn micros(ns: u64) -> String {
    fitted(ns as f64 / 1e3, 8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::WIDTH;

    #[test]
    fn the_short_table_fits_80_columns_and_the_whole_one_has_all() {
        let lock = |site: Option<&str>| LockLine {
            name: "software-queue".to_owned(),
            site: site.map(str::to_owned),
            acquisitions: 123_456_789_012,
            contended_share: 1.0,
            wait_ns_mean: 123_456_789_012,
            hold_ns_mean: 99_999_999,
            held_share: 10.0,
            ..LockLine::default()
        };
        let site = "crates/exports/src/vhost/thread/waiting_for_a_long_time.rs:1234";
        let deep = "crates/block/src/disk/dispatch.rs:1234";
        let places = [Some("crates/block/src/disk/sq.rs:12"), Some(deep), Some(site)];
        let locks: Vec<LockLine> = [None].into_iter().chain(places).map(lock).collect();
        let text = lock_table(&locks, Form::Short);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        for place in ["block/disk/sq.rs:12", "dispatch.rs:1234", "waiting_fo\u{2026}e.rs:1234"] {
            assert!(text.contains(&format!("\n  {place} ")), "{place}: {text}");
        }
        let text = lock_table(&locks, Form::Whole);
        assert!(text.contains("max hold us") && text.contains(&site["crates/".len()..]), "{text}");
    }
}
