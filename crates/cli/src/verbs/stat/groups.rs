//! `millrace stat --groups`: shares of groups of clients, and the reasons that held their I/Os.
//!
//! Pure functions that convert the difference of two reports to rows, and rows to a table. `top`
//! shows the same rows; `ctl why` explains them. A group has a row if it has completed I/Os, has
//! I/Os that were or are held, or has used up a limit. A group's I/Os on all volumes are summed.

use std::collections::BTreeMap;

use millrace_block::{Snapshot, WaitReason};
use millrace_console::{Column, Form, TextGrid, shortened, visible};
use serde::Serialize;

use crate::views::groups::{GroupCounts, OnVolume};
use crate::views::report::{OpCounts, Report};

pub const HELP: &str = "\
Columns of --groups, over the interval; those marked * come with -x:
  r/s w/s MiB/s   reads, writes and MiB of the group's clients, a second
  p50* p99        milliseconds that half, and 99 %, of all its I/Os did not exceed
  weight*         its present weight
  %want           its share of the volumes that it used, by weight among the groups that did
                  something there
  %got            its share of what all groups cost these volumes' drives, by their cost model;
                  every I/O counts as one at a random place
  %lim*           the part of its I/Os' time that limits held them
  ahead*          milliseconds for which its limits are used up at the end
  held            milliseconds that its I/Os were held, a second, added up over I/Os: 1000 is one
                  I/O held all the time
  by              what held them longest; with -x each reason has a column:
                  limit           its limit, or that of its parent
                  weight          it had its share, and others waited for theirs
                  latency-target  another group's latency target
                  depth           the drive had enough I/Os to keep it busy
                  no-tag          no tag was free
                  drive-busy      the drive accepted no more requests
                  order           I/Os of its own group, or of nearer sectors, went first
                  priority        I/Os of a higher priority went first
                  back-pressure   its client sent more than the block layer accepts
  waits*          its I/Os that are held at the end";

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GroupRow {
    pub name: String,
    pub seconds: f64,
    pub reads: f64,
    pub writes: f64,
    pub ios: f64,
    pub read_kib: f64,
    pub write_kib: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub weight: u32,
    /// Share in percent that the group's weight gives it among the groups that did I/O.
    pub wanted_percent: f64,
    /// Share in percent that the group used of the total cost of I/Os on the drives.
    pub got_percent: f64,
    /// Percentage of the latency of the group's I/Os that was spent waiting for the group's limits.
    pub throttled_percent: f64,
    #[serde(flatten)]
    pub at_end: GroupBacklog,
    /// Time for which I/Os of the group were held, in milliseconds per second, by reason.
    pub held_ms: BTreeMap<&'static str, f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct GroupBacklog {
    /// Time in milliseconds until the group's rate limits allow more I/O.
    pub booked_ms: f64,
    pub waiting: u64,
    /// Mean time for which the I/Os held now have waited, in milliseconds.
    pub waiting_ms: f64,
}

impl GroupRow {
    pub fn held(&self) -> f64 {
        self.held_ms.values().sum()
    }

    pub fn by(&self) -> Option<&'static str> {
        let longest = self.held_ms.iter().max_by(|a, b| a.1.total_cmp(b.1));
        longest.filter(|(_, ms)| **ms > 0.0).map(|(reason, _)| *reason)
    }
}

#[derive(Debug, Clone, Default)]
pub struct GroupDelta {
    /// I/Os by kind: reads, writes, other operations.
    pub ios: [u64; 3],
    pub bytes: [u64; 2],
    /// Latency of all I/Os except flushes.
    pub total: Snapshot,
    /// Latency of flushes.
    pub flush: Snapshot,
    pub cost_ns: u64,
    /// Time in nanoseconds for which limits, schedulers or back pressure held I/Os, by reason in
    /// the order of [`WaitReason::ALL`].
    pub held_ns: [u64; WaitReason::ALL.len()],
    pub waiting: u64,
    pub waiting_ns: u64,
    /// Time for which I/Os had already been held at the earlier report, in nanoseconds, summed over
    /// the I/Os held at that time.
    pub waited_ns: u64,
}

impl GroupDelta {
    /// Returns how much the group's counters have grown since the report `before`, summed over the
    /// volumes for which `wanted` returns true.
    pub fn since(
        now: &GroupCounts,
        before: Option<&Report>,
        wanted: impl Fn(&str) -> bool,
    ) -> GroupDelta {
        let earlier = before.and_then(|report| find(report, &now.name));
        let mut did = GroupDelta::default();
        for on in now.volumes.iter().filter(|on| wanted(&on.volume)) {
            let old = earlier.and_then(|e| e.volumes.iter().find(|old| old.volume == on.volume));
            did.add(on, old.unwrap_or(&OnVolume::default()));
        }
        did
    }

    fn add(&mut self, now: &OnVolume, before: &OnVolume) {
        for op in &now.ops {
            let old = before.ops.iter().find(|old| old.op == op.op).cloned().unwrap_or_default();
            self.add_op(op, &old);
        }
        self.cost_ns += now.cost_ns.saturating_sub(before.cost_ns);
        self.waiting += now.waiting;
        self.waiting_ns += now.waiting_ns;
        self.waited_ns += before.waiting_ns;
        for (hold, sum) in WaitReason::ALL.into_iter().zip(&mut self.held_ns) {
            let of = |on: &OnVolume| on.held_ns.get(hold.name()).copied().unwrap_or(0);
            *sum += of(now).saturating_sub(of(before));
        }
    }

    fn add_op(&mut self, now: &OpCounts, before: &OpCounts) {
        let kind = match now.op.as_str() {
            "read" => 0,
            "write" => 1,
            _ => 2,
        };
        self.ios[kind] += now.ios.saturating_sub(before.ios);
        if let Some(bytes) = self.bytes.get_mut(kind) {
            *bytes += now.bytes.saturating_sub(before.bytes);
        }
        let total = Snapshot::from(&now.total).since(&Snapshot::from(&before.total));
        let sum = if now.op == "flush" { &mut self.flush } else { &mut self.total };
        sum.merge(&total);
    }

    pub fn all(&self) -> u64 {
        self.ios.iter().sum()
    }

    /// Returns the time that I/Os other than flushes spent between two reports, in nanoseconds
    /// summed over I/Os. I/Os that limits or schedulers still hold are included.
    pub fn taken_ns(&self) -> u64 {
        (self.total.sum_ns() + self.waiting_ns).saturating_sub(self.waited_ns)
    }

    pub fn waiting_ms(&self) -> f64 {
        self.waiting_ns as f64 / 1e6 / self.waiting.max(1) as f64
    }

    pub fn is_active(&self) -> bool {
        self.all() > 0 || self.waiting > 0 || self.held_ns.iter().any(|ns| *ns > 0)
    }
}

fn find<'a>(report: &'a Report, name: &str) -> Option<&'a GroupCounts> {
    report.group_counts.iter().find(|group| group.name == name)
}

/// Returns the rows of the groups that completed I/O between two reports, or have I/O held, or have
/// used up a limit. Without an earlier report, the rows cover the time since the daemon's start.
pub fn rows(now: &Report, before: Option<&Report>) -> Vec<GroupRow> {
    let seconds = now.seconds_since(before);
    let groups: Vec<(&GroupCounts, GroupDelta)> = now
        .group_counts
        .iter()
        .map(|group| (group, GroupDelta::since(group, before, |_| true)))
        .filter(|(group, did)| did.is_active() || group.booked_ns > 0)
        .collect();
    let shares = shares(now, before);
    let row = |(group, did): (&GroupCounts, GroupDelta)| {
        let shares = shares.get(&*group.name).copied().unwrap_or_default();
        row(group, &did, shares, seconds)
    };
    groups.into_iter().map(row).collect()
}

/// Costs of I/Os, summed over the volumes that a group used. `all`: cost of all groups' I/Os.
/// `wanted`: part of `all` to which the group's weight entitles it. `got`: cost of the group's own
/// I/Os.
#[derive(Debug, Clone, Copy, Default)]
struct CostShares {
    wanted: f64,
    got: f64,
    all: f64,
}

fn shares<'a>(now: &'a Report, before: Option<&Report>) -> BTreeMap<&'a str, CostShares> {
    let mut shares = BTreeMap::<&str, CostShares>::new();
    for volume in &now.volumes {
        let on = |group| GroupDelta::since(group, before, |name| name == volume.name);
        let groups = now.group_counts.iter().map(|group| (group, on(group)));
        let active: Vec<(&GroupCounts, GroupDelta)> =
            groups.filter(|(_, did)| did.is_active()).collect();
        let all: u64 = active.iter().map(|(_, did)| did.cost_ns).sum();
        let wanted = wanted(&active, &now.group_counts);
        for ((group, did), wanted) in active.iter().zip(wanted) {
            let sum = shares.entry(&group.name).or_default();
            sum.wanted += wanted * all as f64;
            sum.got += did.cost_ns as f64;
            sum.all += all as f64;
        }
    }
    shares
}

fn row(group: &GroupCounts, did: &GroupDelta, shares: CostShares, seconds: f64) -> GroupRow {
    let rate = |count: u64| count as f64 / seconds;
    let percentile_ms = |of: f64| did.total.quantile_ns(of) as f64 / 1e6;
    let held = WaitReason::ALL.into_iter().zip(did.held_ns);
    let limit_ns = did.held_ns[WaitReason::Limit as usize];
    GroupRow {
        name: group.name.clone(),
        seconds,
        reads: rate(did.ios[0]),
        writes: rate(did.ios[1]),
        ios: rate(did.all()),
        read_kib: rate(did.bytes[0]) / 1024.0,
        write_kib: rate(did.bytes[1]) / 1024.0,
        p50_ms: percentile_ms(0.5),
        p99_ms: percentile_ms(0.99),
        weight: group.weight,
        wanted_percent: percent(shares.wanted, shares.all),
        got_percent: percent(shares.got, shares.all),
        throttled_percent: percent(limit_ns as f64, did.taken_ns().max(limit_ns) as f64),
        at_end: GroupBacklog {
            booked_ms: group.booked_ns as f64 / 1e6,
            waiting: did.waiting,
            waiting_ms: did.waiting_ms(),
        },
        held_ms: held.map(|(hold, ns)| (hold.name(), rate(ns) / 1e6)).collect(),
    }
}

fn percent(part: f64, of: f64) -> f64 {
    if of > 0.0 { 100.0 * (part / of).min(1.0) } else { 0.0 }
}

/// Returns the share of each active group by weight. A parent's share is divided among its active
/// children. Groups of the idle class get nothing while other groups do I/O.
fn wanted(active: &[(&GroupCounts, GroupDelta)], all: &[GroupCounts]) -> Vec<f64> {
    let is_idle = |group: &GroupCounts| group.idle && active.iter().any(|(one, _)| !one.idle);
    let own = |group: &GroupCounts| if is_idle(group) { 0.0 } else { f64::from(group.weight) };
    let mut family = BTreeMap::<&str, f64>::new();
    for (group, _) in active {
        if let Some(parent) = &group.parent {
            *family.entry(parent).or_default() += own(group);
        }
    }
    let weight = |group: &GroupCounts| {
        let parent = group.parent.as_deref().and_then(|name| all.iter().find(|p| p.name == name));
        match parent {
            None => own(group),
            Some(parent) => {
                let siblings = family.get(&*parent.name).copied().unwrap_or(0.0);
                if siblings > 0.0 { f64::from(parent.weight) * own(group) / siblings } else { 0.0 }
            }
        }
    };
    let weights: Vec<f64> = active.iter().map(|(group, _)| weight(group)).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| if sum > 0.0 { weight / sum } else { 0.0 }).collect()
}

const COLUMNS: [Column<GroupRow>; 12] = [
    ("r/s", true, |row| short(row.reads)),
    ("w/s", true, |row| short(row.writes)),
    ("MiB/s", true, |row| short((row.read_kib + row.write_kib) / 1024.0)),
    ("p50", false, |row| of_ended(row, row.p50_ms)),
    ("p99", true, |row| of_ended(row, row.p99_ms)),
    ("weight", false, |row| row.weight.to_string()),
    ("%want", true, |row| format!("{:.1}", row.wanted_percent)),
    ("%got", true, |row| format!("{:.1}", row.got_percent)),
    ("%lim", false, |row| format!("{:.1}", row.throttled_percent)),
    ("ahead", false, |row| short(row.at_end.booked_ms)),
    ("waits", false, |row| row.at_end.waiting.to_string()),
    ("held", true, |row| short(row.held())),
];

fn of_ended(row: &GroupRow, ms: f64) -> String {
    if row.ios > 0.0 { short(ms) } else { "-".to_owned() }
}

const NAME_WIDTH: usize = 14;

pub fn name(name: &str, width: usize, form: Form) -> String {
    match form {
        Form::Short => shortened(&visible(name), width),
        Form::Whole => visible(name).into_owned(),
    }
}

/// Formats a number in at most six characters, with a letter for thousands if needed.
pub fn short(value: f64) -> String {
    match value {
        ..0.005 => "0".to_owned(),
        ..9.995 => format!("{value:.2}"),
        ..99.95 => format!("{value:.1}"),
        ..9_999.5 => format!("{value:.0}"),
        ..999_500.0 => format!("{:.1}k", value / 1e3),
        ..999_500_000.0 => format!("{:.1}M", value / 1e6),
        _ => format!("{:.1}G", value / 1e9),
    }
}

/// Formats a time in milliseconds with a unit that suits its length; a dash if there is none.
pub fn time(ms: f64) -> String {
    match ms {
        ..=0.0 => "-".to_owned(),
        ..0.9995 => format!("{:.0} us", ms * 1e3),
        ..99.95 => format!("{ms:.1} ms"),
        ..999.5 => format!("{ms:.0} ms"),
        _ => format!("{:.1} s", ms / 1e3),
    }
}

pub fn table(rows: &[GroupRow], form: Form) -> String {
    if rows.is_empty() {
        return "no group did anything\n\n".to_owned();
    }
    type Cell = Box<dyn Fn(&GroupRow) -> String>;
    let columns = COLUMNS.map(|(head, in_short, cell)| (head, in_short, Box::new(cell) as Cell));
    let reasons = WaitReason::ALL.map(|reason| {
        let held = move |row: &GroupRow| row.held_ms.get(reason.name()).copied();
        let cell = move |row: &GroupRow| short(held(row).unwrap_or(0.0));
        (reason.name(), false, Box::new(cell) as Cell)
    });
    let by: Cell = Box::new(|row| row.by().unwrap_or("-").to_owned());
    let columns = columns.into_iter().chain(reasons).chain([("by", true, by)]);
    let rows = rows.iter().map(|row| (name(&row.name, NAME_WIDTH, form), row));
    let grid = TextGrid::of_rows("group", &columns.collect::<Vec<_>>(), form, rows);
    format!("{}\n\n", grid.flush_left("by").text())
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::views::report::{TimeHistogram, Volume};
    use millrace_console::WIDTH;

    /// Creates a test group with `ios` completed reads of 1.05 ms each. The group's limits have
    /// held these reads for `held_ns` in total.
    pub fn group(name: &str, weight: u32, ios: u64, held_ns: u64) -> GroupCounts {
        let total =
            TimeHistogram { sum_ns: ios << 20, max_ns: 1 << 21, buckets: vec![(1 << 20, ios)] };
        let bytes = ios << 12;
        let read = OpCounts { op: "read".into(), ios, bytes, total, ..OpCounts::default() };
        let on = OnVolume {
            volume: "v".into(),
            ops: if ios > 0 { vec![read] } else { Vec::new() },
            cost_ns: ios * 10,
            held_ns: BTreeMap::from([("limit".to_owned(), held_ns)]),
            ..OnVolume::default()
        };
        GroupCounts { name: name.into(), weight, volumes: vec![on], ..GroupCounts::default() }
    }

    pub fn report(seconds: u64, groups: Vec<GroupCounts>) -> Report {
        let uptime_ns = seconds * 1_000_000_000;
        let volume = |name: &str| Volume { name: name.into(), ..Volume::default() };
        let volumes = ["v", "w"].map(volume).into();
        Report { uptime_ns, volumes, group_counts: groups, ..Report::default() }
    }

    #[test]
    fn row_is_the_difference_and_an_idle_group_has_none() {
        let before = report(1, vec![group("default", 100, 5, 0), group("gold", 300, 100, 1 << 20)]);
        let mut gold = group("gold", 300, 500, 201 << 20);
        gold.booked_ns = 7_000_000;
        let now = report(3, vec![group("default", 100, 5, 0), gold]);
        let rows = rows(&now, Some(&before));
        assert_eq!(rows.len(), 1, "{rows:?}");
        let row = &rows[0];
        assert_eq!((&*row.name, row.reads, row.writes, row.read_kib), ("gold", 200.0, 0.0, 800.0));
        assert_eq!(
            (row.wanted_percent, row.got_percent, row.throttled_percent),
            (100.0, 100.0, 50.0)
        );
        assert_eq!((row.at_end.booked_ms, row.by()), (7.0, Some("limit")));
        assert!((row.held() - 104.86).abs() < 0.01, "{}", row.held());
        let expected = [
            ("r/s", "200"),
            ("MiB/s", "0.78"),
            ("%got", "100.0"),
            ("held", "105"),
            ("by", "limit"),
        ];
        let text = table(&rows, Form::Short);
        let cells = |line: usize| text.lines().nth(line).unwrap().split_whitespace();
        for (name, value) in expected {
            let at = cells(0).position(|head| head == name).unwrap();
            assert_eq!(cells(1).nth(at), Some(value), "{name}: {text}");
        }
    }

    #[test]
    fn children_share_their_parent_and_idle_groups_want_the_rest() {
        let of = |name, weight, parent: Option<&str>| GroupCounts {
            parent: parent.map(str::to_owned),
            ..group(name, weight, 1, 0)
        };
        let mut groups = vec![
            of("a", 100, None),
            group("team", 300, 0, 0),
            of("one", 100, Some("team")),
            of("two", 200, Some("team")),
        ];
        groups.push(GroupCounts { idle: true, ..of("rest", 10_000, None) });
        let shares = |groups: &[GroupCounts]| -> Vec<(String, f64)> {
            let rows = rows(&report(1, groups.to_vec()), None);
            rows.into_iter().map(|row| (row.name, row.wanted_percent)).collect()
        };
        let expected = [("a", 25.0), ("one", 25.0), ("two", 50.0), ("rest", 0.0)];
        assert_eq!(shares(&groups), expected.map(|(name, share)| (name.to_owned(), share)));
        assert_eq!(shares(&groups[4..]), [("rest".to_owned(), 100.0)]);
    }

    #[test]
    fn shares_are_of_the_volumes_that_a_group_used() {
        let mut both = group("both", 100, 30, 0);
        let elsewhere = OnVolume { volume: "w".into(), ..both.volumes[0].clone() };
        both.volumes.push(elsewhere);
        let rows = rows(&report(1, vec![both, group("one", 300, 10, 0)]), None);
        let shares: Vec<[f64; 2]> =
            rows.iter().map(|row| [row.wanted_percent.round(), row.got_percent.round()]).collect();
        // All I/Os have the same cost. On volume v, the group `both` is entitled to 10 of 40 I/Os,
        // and has done 30. On volume w, `both` is alone, and has done all 30 I/Os. In total, `both`
        // is entitled to 10 + 30 of 70 I/Os (57 %), and has done 30 + 30 (86 %).
        assert_eq!(shares, [[57.0, 86.0], [75.0, 25.0]]);
    }

    #[test]
    fn short_form_fits_80_columns_and_whole_form_has_every_reason() {
        let mut big = group(&"g".repeat(99), 10_000, 99_999_999, u64::MAX >> 8);
        big.booked_ns = u64::MAX >> 8;
        big.volumes[0].held_ns =
            WaitReason::ALL.map(|hold| (hold.name().to_owned(), 1 << 40)).into();
        big.volumes[0].held_ns.insert("latency-target".to_owned(), 1 << 50);
        let rows = rows(&report(1, vec![big]), None);
        let text = table(&rows, Form::Short);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.contains("latency-target") && text.contains('\u{2026}'), "{text}");
        let text = table(&rows, Form::Whole);
        assert!(WaitReason::ALL.iter().all(|hold| text.contains(hold.name())), "{text}");
        assert!(
            ["p50", "weight", "%lim", "ahead"].iter().all(|head| text.contains(head)),
            "{text}"
        );
        assert_eq!(table(&[], Form::Short), "no group did anything\n\n");
    }
}
