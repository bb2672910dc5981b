//! State of `top`: the last two reports, the history of each row, and the user's settings.
//!
//! Plain data and arithmetic, without a terminal. Rates are computed as in `stat`.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::verbs::stat::caches::{self, CacheRow};
use crate::verbs::stat::columns::{self, StatRow};
use crate::verbs::stat::groups::{self, GroupRow};
use crate::views::history::{History, KEPT_S};
use crate::views::report::{Report, Server};

pub const HISTORY: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SortOrder {
    /// Rows are not sorted: they stay in the order of the daemon's report.
    Given,
    #[default]
    Ios,
    Bytes,
    P99,
    Queue,
}

impl SortOrder {
    const ALL: [SortOrder; 5] =
        [SortOrder::Given, SortOrder::Ios, SortOrder::Bytes, SortOrder::P99, SortOrder::Queue];

    pub fn name(self) -> &'static str {
        ["configuration", "I/Os", "bandwidth", "p99", "queue"][self as usize]
    }
}

pub trait ListedRow {
    fn name(&self) -> &str;
    fn key(&self) -> RowKey;
    fn value(&self, sort: SortOrder) -> f64;
}

impl ListedRow for StatRow {
    fn name(&self) -> &str {
        &self.name
    }

    fn key(&self) -> RowKey {
        (self.kind, self.volume.clone(), self.name.clone())
    }

    fn value(&self, sort: SortOrder) -> f64 {
        match sort {
            SortOrder::Given => 0.0,
            SortOrder::Ios => {
                let ops = [&self.read, &self.write, &self.discard, &self.flush];
                ops.iter().map(|op| op.per_second).sum()
            }
            SortOrder::Bytes => self.read.kib_per_second + self.write.kib_per_second,
            SortOrder::P99 => self.read.p99_ms.max(self.write.p99_ms),
            SortOrder::Queue => self.aqu_sz,
        }
    }
}

impl ListedRow for GroupRow {
    fn name(&self) -> &str {
        &self.name
    }

    fn key(&self) -> RowKey {
        ("group", String::new(), self.name.clone())
    }

    fn value(&self, sort: SortOrder) -> f64 {
        match sort {
            SortOrder::Given => 0.0,
            SortOrder::Ios => self.ios,
            SortOrder::Bytes => self.read_kib + self.write_kib,
            SortOrder::P99 => self.p99_ms,
            SortOrder::Queue => self.held(),
        }
    }
}

impl ListedRow for CacheRow {
    fn name(&self) -> &str {
        &self.cache.volume
    }

    fn key(&self) -> RowKey {
        ("cache", String::new(), self.cache.volume.clone())
    }

    /// Returns the number by which caches are sorted. Sorting by I/Os or bytes uses the pages read
    /// and written per second; sorting by queue length uses the dirty bytes.
    fn value(&self, sort: SortOrder) -> f64 {
        let stats = &self.cache.stats;
        match sort {
            SortOrder::Given | SortOrder::P99 => 0.0,
            SortOrder::Ios | SortOrder::Bytes => {
                self.per_second(stats.read_hits + stats.read_misses + stats.written)
            }
            SortOrder::Queue => stats.dirty_bytes as f64,
        }
    }
}

#[derive(Default)]
pub struct TopModel {
    pub report: Report,
    /// Server counters of the previous report, and the seconds between that report and `report`.
    before: (Server, f64),
    rows: Vec<StatRow>,
    groups: Vec<GroupRow>,
    caches: Vec<CacheRow>,
    history: HashMap<RowKey, VecDeque<f64>>,
    pub interval: Duration,
    pub sort: SortOrder,
    pub reversed: bool,
    /// True while the display is paused.
    pub held: bool,
    /// True while the help is shown.
    pub explained: bool,
    pub below: LowerTable,
    first: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LowerTable {
    #[default]
    Drives,
    Queues,
    Clients,
    Groups,
    Caches,
}

impl LowerTable {
    const ALL: [LowerTable; 5] = [
        LowerTable::Drives,
        LowerTable::Queues,
        LowerTable::Clients,
        LowerTable::Groups,
        LowerTable::Caches,
    ];

    /// Returns the kind of the rows that this table shows.
    pub fn kind(self) -> &'static str {
        ["drive", "queue", "client", "group", "cache"][self as usize]
    }

    pub fn title(self) -> &'static str {
        ["Drive", "Queue", "Client", "Group", "Cache"][self as usize]
    }
}

impl TopModel {
    pub fn new(interval: Duration) -> TopModel {
        TopModel { interval, ..TopModel::default() }
    }

    /// Takes the next report, unless the display is paused.
    pub fn update(&mut self, report: Report) {
        if self.held {
            return;
        }
        let earlier = (self.report.uptime_ns > 0).then_some(&self.report);
        self.rows = columns::rows(&report, earlier);
        self.groups = groups::rows(&report, earlier);
        self.caches = caches::rows(&report, earlier);
        let seconds = report.uptime_ns.saturating_sub(self.report.uptime_ns) as f64 / 1e9;
        self.before = (self.report.server, seconds);
        let ios: Vec<_> =
            self.all_rows().map(|row| (row.key(), row.value(SortOrder::Ios))).collect();
        for (key, ios) in ios {
            let history = self.history.entry(key).or_default();
            history.push_back(ios);
            if history.len() > HISTORY {
                history.pop_front();
            }
        }
        self.report = report;
    }

    fn all_rows(&self) -> impl Iterator<Item = &dyn ListedRow> {
        let rows = self.rows.iter().map(|row| row as &dyn ListedRow);
        let rows = rows.chain(self.groups.iter().map(|row| row as &dyn ListedRow));
        rows.chain(self.caches.iter().map(|row| row as &dyn ListedRow))
    }

    pub fn seconds_recalled(&self) -> usize {
        (self.interval.as_secs_f64() * HISTORY as f64).ceil().min(KEPT_S as f64) as usize
    }

    /// Fills the graphs with the daemon's history. Before this call, a graph has only one value,
    /// the average since the daemon's start.
    pub fn recall(&mut self, past: &History) {
        let mut recalled = Vec::new();
        for key in self.all_rows().map(ListedRow::key) {
            let series = match key.0 {
                "volume" => &past.volumes,
                "drive" => &past.drives,
                "group" => &past.groups,
                _ => continue,
            };
            if let Some(series) = series.iter().find(|series| series.name == key.2) {
                recalled.push((key, at_interval(&series.ios, self.interval)));
            }
        }
        self.history.extend(recalled);
    }

    /// Returns true if rows show averages since the daemon's start, as only one report was read.
    pub fn is_since_start(&self) -> bool {
        self.before.1 >= self.report.uptime_ns as f64 / 1e9
    }

    pub fn in_flight(&self) -> u64 {
        self.report.drives.iter().map(|drive| drive.in_flight).sum()
    }

    pub fn server_rate(&self, counter: impl Fn(&Server) -> u64) -> f64 {
        let grown = counter(&self.report.server).saturating_sub(counter(&self.before.0));
        if self.before.1 > 0.0 { grown as f64 / self.before.1 } else { 0.0 }
    }

    pub fn rows(&self, kind: &str) -> Vec<&StatRow> {
        self.in_order(self.rows.iter().filter(|row| row.kind == kind))
    }

    pub fn groups(&self) -> Vec<&GroupRow> {
        self.in_order(self.groups.iter())
    }

    pub fn caches(&self) -> Vec<&CacheRow> {
        self.in_order(self.caches.iter())
    }

    fn in_order<'a, T: ListedRow>(&self, rows: impl Iterator<Item = &'a T>) -> Vec<&'a T> {
        let mut rows: Vec<&T> = rows.collect();
        // The sort is stable, so rows with equal values keep their order.
        rows.sort_by(|a, b| b.value(self.sort).total_cmp(&a.value(self.sort)));
        if self.reversed {
            rows.reverse();
        }
        rows
    }

    /// Draws a row's I/Os per second over time, in at most `width` characters. The highest value
    /// gets the tallest bar.
    pub fn graph(&self, row: &impl ListedRow, width: usize) -> String {
        const LEVELS: [char; 8] = [
            '\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}',
            '\u{2588}',
        ];
        let Some(history) = self.history.get(&row.key()) else {
            return String::new();
        };
        let highest = history.iter().copied().fold(0.0, f64::max);
        let last = history.iter().skip(history.len().saturating_sub(width));
        last.map(|value| match highest > 0.0 {
            true => LEVELS[((value / highest * 8.0) as usize).min(7)],
            false => LEVELS[0],
        })
        .collect()
    }

    pub fn first(&self, room: usize) -> usize {
        self.first.min(self.lower_rows().saturating_sub(room))
    }

    /// Returns the length in characters of the longest name in the table of volumes and in the
    /// table below it. Rows that do not fit the screen are included. Caches are left out, because a
    /// cache has the name of its volume.
    pub fn longest_name(&self) -> usize {
        let is_shown = |row: &&dyn ListedRow| {
            let kind = row.key().0;
            kind == "volume" || kind == self.below.kind() && kind != "cache"
        };
        let names = self.all_rows().filter(is_shown).map(|row| row.name().chars().count());
        names.max().unwrap_or(0)
    }

    fn lower_rows(&self) -> usize {
        self.all_rows().filter(|row| row.key().0 == self.below.kind()).count()
    }

    pub fn next_below(&mut self) {
        let shown = LowerTable::ALL.len() - usize::from(self.caches.is_empty());
        let next = LowerTable::ALL[..shown].get(self.below as usize + 1);
        self.below = next.copied().unwrap_or_default();
        self.first = 0;
    }

    pub fn sort_by_next(&mut self) {
        self.sort = SortOrder::ALL[(self.sort as usize + 1) % SortOrder::ALL.len()];
    }

    /// Multiplies the interval by `factor`, and limits it to between 0.1 s and 60 s.
    pub fn change_interval(&mut self, factor: f64) {
        let (least, most) = (Duration::from_millis(100), Duration::from_secs(60));
        self.interval = self.interval.mul_f64(factor).clamp(least, most);
    }

    pub fn scroll(&mut self, by: isize) {
        let last = self.lower_rows().saturating_sub(1);
        self.first = self.first.saturating_add_signed(by).min(last);
    }
}

fn at_interval(values: &[u32], interval: Duration) -> VecDeque<f64> {
    let seconds = interval.as_secs_f64();
    let points = ((values.len() as f64 / seconds) as usize).min(HISTORY);
    let mean = |point: usize| {
        let end = values.len() - (point as f64 * seconds) as usize;
        let start = values.len().saturating_sub(((point + 1) as f64 * seconds) as usize);
        let part = &values[start.min(end - 1)..end];
        part.iter().map(|value| f64::from(*value)).sum::<f64>() / part.len() as f64
    };
    (0..points).rev().map(mean).collect()
}

/// Kind, volume and name of a row, which together identify it.
type RowKey = (&'static str, String, String);

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::verbs::stat::groups::tests::group;
    use crate::views::history::Series;
    use crate::views::report::{Client, Drive, OpCounts, Queue, TimeHistogram, Volume};

    /// Creates the report of a daemon with this many drives; drive n has read `n * reads` times.
    pub fn report(uptime_s: u64, drives: u64, reads: u64) -> Report {
        let drive = |number: u64| {
            let ios = number * reads;
            let total =
                TimeHistogram { sum_ns: ios << 20, max_ns: 1 << 21, buckets: vec![(1 << 20, ios)] };
            let op = OpCounts {
                op: "read".to_owned(),
                ios,
                bytes: ios << 12,
                total,
                ..Default::default()
            };
            let (name, volume) = (format!("d{number}"), "v".to_owned());
            let queues = vec![Queue::default()];
            Drive { name, volume, ops: vec![op], queues, ..Drive::default() }
        };
        let ios = drives * (drives - 1) / 2 * reads;
        let total =
            TimeHistogram { sum_ns: ios << 20, max_ns: 1 << 21, buckets: vec![(1 << 20, ios)] };
        let bytes = ios << 12;
        let ops = vec![OpCounts { op: "read".into(), ios, bytes, total, ..OpCounts::default() }];
        let clients = [1, 2].map(|client| Client { client, ops: Vec::new() }).into();
        let mut server = Server::default();
        (server.stats.connections, server.stats.connections_accepted) = (3, 5);
        server.stats.requests = reads * 10;
        Report {
            uptime_ns: uptime_s * 1_000_000_000,
            drives: (0..drives).map(drive).collect(),
            volumes: vec![Volume { name: "v".to_owned(), ops, clients, ..Volume::default() }],
            group_counts: vec![
                group("bulk", 100, reads, reads << 20),
                group("gold", 400, reads * 2, 0),
            ],
            server,
            ..Report::default()
        }
    }

    fn names(model: &TopModel) -> Vec<&str> {
        model.rows("drive").iter().map(|row| row.name.as_str()).collect()
    }

    #[test]
    fn rows_are_sorted_by_the_column_that_was_asked_for() {
        let mut model = TopModel::new(Duration::from_secs(1));
        model.update(report(1, 3, 100));
        assert_eq!(names(&model), ["d2", "d1", "d0"]);
        model.reversed = !model.reversed;
        assert_eq!(names(&model), ["d0", "d1", "d2"]);
        model.reversed = !model.reversed;
        (0..4).for_each(|_| model.sort_by_next());
        assert_eq!(
            ((model.sort, model.reversed).0, names(&model)),
            (SortOrder::Given, vec!["d0", "d1", "d2"])
        );
    }

    #[test]
    fn lower_table_has_drives_then_queues_clients_and_groups() {
        let mut model = TopModel::new(Duration::from_secs(1));
        model.update(report(1, 3, 100));
        let kinds = [(); 5].map(|()| {
            let (kind, rows) = (model.below.kind(), model.lower_rows());
            model.next_below();
            (kind, rows)
        });
        let expected = [("drive", 3), ("queue", 3), ("client", 2), ("group", 2), ("drive", 3)];
        assert_eq!(kinds, expected);
        let names = |model: &TopModel| -> Vec<String> {
            model.groups().iter().map(|group| group.name.clone()).collect()
        };
        assert_eq!(names(&model), ["gold", "bulk"]);
        (0..3).for_each(|_| model.sort_by_next());
        assert_eq!(
            ((model.sort, model.reversed).0, names(&model)[0].as_str()),
            (SortOrder::Queue, "bulk")
        );
    }

    #[test]
    fn graphs_follow_the_rates_and_a_held_display_stands_still() {
        let mut model = TopModel::new(Duration::from_secs(1));
        model.update(report(1, 2, 0));
        for step in 1..4 {
            model.update(report(1 + step, 2, [0, 800, 1200, 1200][step as usize]));
        }
        let drives = model.rows("drive");
        let drive = (*drives.iter().find(|drive| drive.name == "d1").unwrap()).clone();
        assert_eq!(model.graph(&drive, 9), "\u{2581}\u{2588}\u{2585}\u{2581}");
        assert_eq!(model.graph(&drive, 2), "\u{2585}\u{2581}");
        assert_eq!(model.server_rate(|server| server.stats.requests), 0.0);
        model.held = !model.held;
        model.update(report(9, 2, 9999));
        assert_eq!(model.report.uptime_ns, 4_000_000_000);
    }

    #[test]
    fn graphs_begin_with_daemon_s_past_at_interval_of_screen() {
        let mut model = TopModel::new(Duration::from_secs(2));
        model.update(report(9, 2, 5));
        let ios = vec![0, 0, 8, 8, 4, 4];
        let series =
            |name: &str| Series { name: name.into(), ios: ios.clone(), ..Series::default() };
        let drives = vec![series("d1"), series("gone")];
        model.recall(&History { drives, groups: vec![series("gold")], ..History::default() });
        let drives = model.rows("drive");
        let drive = |name: &str| *drives.iter().find(|row| row.name == name).unwrap();
        assert_eq!(model.graph(drive("d1"), 9), "\u{2581}\u{2588}\u{2585}");
        assert_eq!(model.graph(drive("d0"), 9).chars().count(), 1, "none of its past is known");
        assert_eq!(model.graph(model.groups()[0], 9), "\u{2581}\u{2588}\u{2585}");
        assert_eq!(at_interval(&[1, 2], Duration::from_millis(500)), [1.0, 1.0, 2.0, 2.0]);
        assert_eq!(at_interval(&[], Duration::from_secs(1)), [0.0; 0]);
        assert_eq!(at_interval(&[1; 9], Duration::from_secs(60)), [0.0; 0]);
        assert_eq!(at_interval(&[7; 3600], Duration::from_secs(1)).len(), HISTORY);
    }

    #[test]
    fn scrolling_ends_where_the_drives_end() {
        let mut model = TopModel::new(Duration::from_secs(1));
        model.update(report(1, 5, 1));
        model.scroll(-1);
        assert_eq!(model.first(2), 0);
        model.scroll(100);
        assert_eq!((model.first(2), model.first(9)), (3, 0));
        (0..20).for_each(|_| model.change_interval(2.0));
        assert_eq!(model.interval, Duration::from_secs(60));
    }
}
