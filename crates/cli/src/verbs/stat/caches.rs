//! The table of caches that `millrace stat` prints below its rows.
//!
//! Pure: the difference of two reports to a table, with a row for each cache; nothing without one.

use crate::verbs::grid::{Grid, Side, fitted, shortened};
use crate::views::caches::CacheCounts;
use crate::views::report::Report;
use crate::visible::visible;

/// What the columns are.
pub const HELP: &str = "\
Columns of caches, over the interval; a volume without one has no row:
  cache         the volume
  hit/s miss/s  pages of 4 KiB that reads found in memory, and did not find, a second
  %hit          the share of those that were found
  ahead/s       pages read ahead of sequential streams, a second
  wr/s          pages written by clients, a second
  wb/s          pages written to the drives, a second; KiB/wb in a request, on average
  dirty         MiB that are not on the drives yet; %max of what may be
  held/s        writes of clients whose answer was held back, a second
  err           requests to write pages to the drives that failed";

/// Characters of a volume's name.
const NAME_WIDTH: usize = 12;
const HEADS: [&str; 11] = [
    "hit/s", "miss/s", "%hit", "ahead/s", "wr/s", "wb/s", "KiB/wb", "dirty", "%max", "held/s",
    "err",
];

/// The table of what came in between, with an empty line after it; no text without a cache.
pub fn table(report: &Report, before: Option<&Report>) -> String {
    if report.caches.is_empty() {
        return String::new();
    }
    let seconds = report.uptime_ns.saturating_sub(before.map_or(0, |report| report.uptime_ns));
    let seconds = seconds.max(1) as f64 / 1e9;
    let heads = HEADS.map(|head| (head, Side::Right));
    let mut grid = Grid::new(std::iter::once(("cache", Side::Left)).chain(heads));
    for cache in &report.caches {
        let earlier = before.and_then(|report| find(report, cache)).cloned().unwrap_or_default();
        let name = shortened(&visible(&cache.volume), NAME_WIDTH);
        grid.row(std::iter::once(name).chain(cells(&cache.since(&earlier), seconds)));
    }
    format!("{}\n\n", grid.text())
}

fn cells(did: &CacheCounts, seconds: f64) -> [String; HEADS.len()] {
    let rate = |count: u64| format!("{:.0}", count as f64 / seconds);
    let (reads, writes) = (&did.reads, &did.writes);
    [
        rate(reads.hits),
        rate(reads.misses),
        percent(reads.hits, reads.hits + reads.misses),
        rate(reads.ahead),
        rate(writes.pages),
        rate(writes.back),
        match writes.requests {
            0 => "-".to_owned(),
            requests => (writes.back * 4 / requests).to_string(),
        },
        fitted(did.dirty_bytes as f64 / f64::from(1 << 20), 5),
        percent(did.dirty_bytes, did.dirty_max_bytes),
        rate(writes.throttled),
        writes.errors.to_string(),
    ]
}

fn find<'a>(report: &'a Report, like: &CacheCounts) -> Option<&'a CacheCounts> {
    report.caches.iter().find(|one| one.volume == like.volume)
}

fn percent(part: u64, of: u64) -> String {
    match of {
        0 => "-".to_owned(),
        of => format!("{:.0}", 100.0 * part as f64 / of as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::grid::WIDTH;
    use crate::views::caches::{Reads, Writes};

    fn report(uptime_ns: u64, hits: u64, back: u64) -> Report {
        let cache = CacheCounts {
            volume: "a-volume-with-a-long-name".to_owned(),
            dirty_bytes: 3 << 20,
            dirty_max_bytes: 4 << 20,
            reads: Reads { hits, misses: hits / 3, ..Reads::default() },
            writes: Writes { back, requests: back / 32, ..Writes::default() },
            ..CacheCounts::default()
        };
        Report { uptime_ns, caches: vec![cache], ..Report::default() }
    }

    #[test]
    fn a_cache_has_a_row_of_what_came_in_between() {
        let before = report(1_000_000_000, 300, 320);
        let text = table(&report(3_000_000_000, 900, 960), Some(&before));
        let row: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().skip(1).collect();
        assert_eq!(row, ["300", "100", "75", "0", "0", "320", "128", "3.00", "75", "0", "0"]);
        assert_eq!(table(&Report::default(), None), "");
    }

    #[test]
    fn the_table_fits_80_columns_with_what_a_fast_cache_does() {
        let text = table(&report(1_000_000_000, 9_999_999, 999_999), None);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    }
}
