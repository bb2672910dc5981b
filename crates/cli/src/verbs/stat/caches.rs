//! Computes the statistics of caches between two reports, and formats them as a table.
//!
//! Pure functions that compute a row for each cache. `top` shows the same rows.

use millrace_console::{Column, Form, TextGrid};

use super::groups::{name, short};
use crate::views::caches::CacheCounts;
use crate::views::report::Report;

pub const HELP: &str = "\
Columns of caches, over the interval; a volume without a cache has no row; those marked * come \
with -x:
  cache           the volume
  hit/s miss/s *  pages that reads found in memory, and did not find, a second; a page has 4 KiB,
                  or a block of the drives where that is larger
  %hit            the share of those that were found
  ahead/s *       pages read ahead of sequential streams, a second
  wr/s            pages written by clients, a second
  wb/s            pages written to the drives, a second; KiB/wb in a request, on average
  dirty           MiB that are not on the drives yet; %max of what may be
  held/s          writes of clients whose answer was held back, a second
  err             requests to write pages to the drives that failed";

const NAME_WIDTH: usize = 12;

#[derive(Debug, Clone, PartialEq)]
pub struct CacheRow {
    /// Increases of the cache's counters since the earlier report. The dirty bytes are the current
    /// amount, not an increase.
    pub cache: CacheCounts,
    seconds: f64,
}

const COLUMNS: [Column<CacheRow>; 11] = [
    ("hit/s", true, |did| did.rate(did.cache.stats.read_hits)),
    ("miss/s", false, |did| did.rate(did.cache.stats.read_misses)),
    ("%hit", true, CacheRow::hit_percent),
    ("ahead/s", false, |did| did.rate(did.cache.stats.read_ahead)),
    ("wr/s", true, |did| did.rate(did.cache.stats.written)),
    ("wb/s", true, |did| did.rate(did.cache.stats.written_back)),
    ("KiB/wb", true, CacheRow::request_kib),
    ("dirty", true, CacheRow::dirty_mib),
    ("%max", true, CacheRow::dirty_percent),
    ("held/s", true, |did| did.rate(did.cache.stats.throttled)),
    ("err", true, |did| whole(did.cache.stats.write_errors)),
];

impl CacheRow {
    pub fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.seconds
    }

    fn rate(&self, count: u64) -> String {
        short(self.per_second(count))
    }

    pub fn hit_percent(&self) -> String {
        let stats = &self.cache.stats;
        percent(stats.read_hits, stats.read_hits + stats.read_misses)
    }

    pub fn request_kib(&self) -> String {
        match self.cache.stats.write_requests {
            0 => "-".to_owned(),
            requests => {
                let bytes = self.cache.stats.written_back * self.cache.stats.page_bytes;
                ((bytes >> 10) / requests).to_string()
            }
        }
    }

    pub fn dirty_mib(&self) -> String {
        short(self.cache.stats.dirty_bytes as f64 / f64::from(1 << 20))
    }

    pub fn dirty_percent(&self) -> String {
        percent(self.cache.stats.dirty_bytes, self.cache.stats.dirty_max_bytes)
    }
}

pub fn rows(report: &Report, before: Option<&Report>) -> Vec<CacheRow> {
    let seconds = report.seconds_since(before);
    let row = |cache: &CacheCounts| {
        let mut earlier = before.into_iter().flat_map(|report| &report.caches);
        let earlier = earlier.find(|one| one.volume == cache.volume).cloned().unwrap_or_default();
        CacheRow { cache: cache.since(&earlier), seconds }
    };
    report.caches.iter().map(row).collect()
}

/// Formats the table of an interval, followed by an empty line. Returns an empty text if no volume
/// has a cache.
pub fn table(report: &Report, before: Option<&Report>, form: Form) -> String {
    let rows = rows(report, before);
    if rows.is_empty() {
        return String::new();
    }
    let named = rows.into_iter().map(|row| (name(&row.cache.volume, NAME_WIDTH, form), row));
    format!("{}\n\n", TextGrid::of_rows("cache", &COLUMNS, form, named).text())
}

/// Formats a count without decimals, except that large counts get a letter for thousands or
/// millions.
fn whole(count: u64) -> String {
    if count < 1000 { count.to_string() } else { short(count as f64) }
}

pub fn percent(part: u64, of: u64) -> String {
    match of {
        0 => "-".to_owned(),
        of => format!("{:.0}", 100.0 * part as f64 / of as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::caches::CacheNumbers;
    use millrace_console::WIDTH;

    fn report(uptime_ns: u64, hits: u64, back: u64) -> Report {
        let stats = CacheNumbers {
            page_bytes: 4096,
            dirty_bytes: 3 << 20,
            dirty_max_bytes: 4 << 20,
            read_hits: hits,
            read_misses: hits / 3,
            written_back: back,
            write_requests: back / 32,
            write_errors: back / 10,
            ..CacheNumbers::default()
        };
        let volume = "a-volume-with-a-long-name".to_owned();
        let cache = CacheCounts { volume, stats, ..CacheCounts::default() };
        Report { uptime_ns, caches: vec![cache], ..Report::default() }
    }

    #[test]
    fn a_cache_has_a_row_of_what_came_in_between() {
        let before = report(1_000_000_000, 300, 320);
        // 64 requests that failed are a count, and no "64.0".
        let text = table(&report(3_000_000_000, 900, 960), Some(&before), Form::Whole);
        let row: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().skip(1).collect();
        assert_eq!(row, ["300", "100", "75", "0", "0", "320", "128", "3.00", "75", "0", "64"]);
        assert_eq!(table(&Report::default(), None, Form::Short), "");
    }

    #[test]
    fn the_short_form_fits_80_columns_with_what_a_fast_cache_does() {
        let mut fast = report(1_000_000_000, 9_999_999, 999_999);
        let stats = &mut fast.caches[0].stats;
        (stats.dirty_bytes, stats.dirty_max_bytes) = (1 << 40, 1 << 40);
        (stats.written, stats.throttled, stats.write_errors) = (9_999_999, 999_999, 999_999);
        let text = table(&fast, None, Form::Short);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    }
}
