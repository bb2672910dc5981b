//! Counters of groups, for the control socket and Prometheus.
//!
//! Plain data for serde, as in report.rs: `serve` fills it from the volumes' accounts; `stat
//! --groups`, `top` and `ctl why` read it back and take the difference of two reports. The settings
//! of groups are in settings.rs. Fields may be added: readers ignore unknown ones.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};

use millrace_block::{CostModel, Op, OpCost, TenantSnapshot, WaitReason, WaitSnapshot};
use serde::{Deserialize, Serialize};

use super::report::OpTotals;

/// Counters of a group.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupCounts {
    /// Name of the group.
    pub name: String,
    /// Name of the parent group, if there is one.
    pub parent: Option<String>,
    /// Current weight.
    pub weight: u32,
    /// True for a group of the idle class, which gets only the capacity that other groups leave.
    pub idle: bool,
    /// Time in nanoseconds for which the group's limits are used up in advance.
    pub booked_ns: u64,
    /// Counters of the group for each volume that it has used.
    pub volumes: Vec<OnVolume>,
}

/// Counters of a group on one volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OnVolume {
    /// Name of the volume.
    pub volume: String,
    /// I/Os by operation. A split I/O counts once.
    pub ops: Vec<OpTotals>,
    /// Cost of the I/Os by the drives' cost model, in nanoseconds. All I/Os are counted as random.
    pub cost_ns: u64,
    /// Time that I/Os were held, in nanoseconds, summed over I/Os, by reason. I/Os that are still
    /// held count up to now.
    pub held_ns: BTreeMap<String, u64>,
    /// Number of I/Os held now.
    pub waiting: u64,
    /// Time that the I/Os held now have been held so far, in nanoseconds, summed over I/Os.
    pub waiting_ns: u64,
}

impl OnVolume {
    /// Takes a volume's counters of a group. Returns `None` if it did nothing there.
    pub fn new(
        volume: &str,
        stats: &TenantSnapshot,
        held: &WaitSnapshot,
        cost: &CostModel,
    ) -> Option<OnVolume> {
        let held_ns: BTreeMap<String, u64> = WaitReason::ALL
            .into_iter()
            .zip(held.ns)
            .filter(|(_, ns)| *ns > 0)
            .map(|(hold, ns)| (hold.name().to_owned(), ns))
            .collect();
        let ops = OpTotals::all(stats);
        let cost_ns = ops.iter().map(|op| cost_of(cost, op)).sum();
        let used = !(ops.is_empty() && held_ns.is_empty() && held.waiting == 0);
        let WaitSnapshot { waiting, waiting_ns, .. } = *held;
        let volume = volume.to_owned();
        used.then_some(OnVolume { volume, ops, cost_ns, held_ns, waiting, waiting_ns })
    }
}

/// Returns the cost on a drive of I/Os of one operation, in nanoseconds.
fn cost_of(model: &CostModel, ended: &OpTotals) -> u64 {
    let of = |cost: &OpCost, bytes: u64| {
        let moved_ns = u128::from(bytes) * u128::from(cost.byte_ps) / 1_000;
        let base_ns = u128::from(ended.ios) * u128::from(cost.random_ns);
        u64::try_from(base_ns + moved_ns).unwrap_or(u64::MAX)
    };
    match ended.op.as_str() {
        op if op == Op::Read.name() => of(&model.read, ended.bytes),
        op if op == Op::Write.name() => of(&model.write, ended.bytes),
        op if op == Op::Flush.name() => 0,
        _ => of(&model.write, 0),
    }
}

/// Name, kind, help text and value of a group's metric.
type OfGroup = (&'static str, &'static str, &'static str, fn(&GroupCounts) -> f64);

const OF_GROUP: [OfGroup; 2] = [
    ("weight", "gauge", "Weight of the group relative to its siblings.", |group| {
        group.weight.into()
    }),
    (
        "booked_seconds",
        "gauge",
        "Time for which the group's limits are used up in advance.",
        |group| group.booked_ns as f64 / 1e9,
    ),
];

/// Name, help text and value of a metric of a group's I/Os of one operation.
type OfOp = (&'static str, &'static str, fn(&OpTotals) -> u64);

const OF_OP: [OfOp; 3] = [
    ("ios", "Completed I/Os of the group. A split I/O counts once.", |op| op.ios),
    ("bytes", "Bytes of the ranges of the group's completed I/Os.", |op| op.bytes),
    ("errors", "I/Os of the group that failed.", |op| op.errors),
];

/// Formats the groups' metrics for Prometheus, except histograms. `braced` formats labels.
pub fn metrics(groups: &[GroupCounts], braced: impl Fn(&[(&str, &str)]) -> String) -> String {
    let mut page = String::new();
    for (name, kind, help, value) in OF_GROUP {
        let name = family(&mut page, name, kind, help);
        for group in groups {
            sample(&mut page, &name, &braced(&[("group", &group.name)]), value(group));
        }
    }
    let volumes = || groups.iter().flat_map(|one| one.volumes.iter().map(move |on| (one, on)));
    for (name, help, value) in OF_OP {
        let name = family(&mut page, &format!("{name}_total"), "counter", help);
        for (group, on) in volumes() {
            for op in &on.ops {
                let labels = [("group", &*group.name), ("volume", &on.volume), ("op", &op.op)];
                sample(&mut page, &name, &braced(&labels), value(op));
            }
        }
    }
    let help = "Cost of the group's I/Os by the drives' cost model.";
    let name = family(&mut page, "cost_seconds_total", "counter", help);
    for (group, on) in volumes() {
        let labels = braced(&[("group", &group.name), ("volume", &on.volume)]);
        sample(&mut page, &name, &labels, on.cost_ns as f64 / 1e9);
    }
    let help = "Time that the group's I/Os were held, summed over I/Os, by reason.";
    let name = family(&mut page, "held_seconds_total", "counter", help);
    for (group, on) in volumes() {
        for (reason, ns) in &on.held_ns {
            let labels = [("group", &*group.name), ("volume", &on.volume), ("reason", reason)];
            sample(&mut page, &name, &braced(&labels), *ns as f64 / 1e9);
        }
    }
    let help = "I/Os of the group that are held now.";
    let name = family(&mut page, "waiting", "gauge", help);
    for (group, on) in volumes() {
        let labels = braced(&[("group", &group.name), ("volume", &on.volume)]);
        sample(&mut page, &name, &labels, on.waiting);
    }
    page
}

/// Writes the HELP and TYPE lines of a metric. Returns its full name.
fn family(page: &mut String, name: &str, kind: &str, help: &str) -> String {
    let name = format!("millrace_group_{name}");
    // Writing to a string cannot fail.
    let _ = write!(page, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    name
}

fn sample(page: &mut String, name: &str, labels: &str, value: impl Display) {
    let _ = writeln!(page, "{name}{labels} {value}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_costs_its_base_and_its_bytes_and_a_flush_nothing() {
        let ended =
            |op: &str| OpTotals { op: op.into(), ios: 10, bytes: 40_960, ..OpTotals::default() };
        let write = OpCost { random_ns: 100, sequential_ns: 1, byte_ps: 1_000 };
        let model = CostModel { read: OpCost { random_ns: 7, ..write }, write };
        let cost = |op| cost_of(&model, &ended(op));
        let found = ["read", "write", "write-zeroes", "discard", "flush"].map(cost);
        assert_eq!(found, [41_030, 41_960, 1_000, 1_000, 0]);
    }

    #[test]
    fn every_counter_of_a_group_has_a_line_with_its_volume() {
        let read = OpTotals { op: "read".into(), ios: 7, bytes: 28_672, ..OpTotals::default() };
        let on = OnVolume {
            volume: "v".into(),
            ops: vec![read],
            cost_ns: 2_000_000_000,
            held_ns: BTreeMap::from([("limit".to_owned(), 1_500_000_000)]),
            waiting: 3,
            ..OnVolume::default()
        };
        let group = GroupCounts {
            name: "gold".into(),
            weight: 400,
            booked_ns: 250_000_000,
            volumes: vec![on],
            ..GroupCounts::default()
        };
        let text = metrics(&[group], |labels| format!("{labels:?}"));
        let found: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let of = "(\"group\", \"gold\"), (\"volume\", \"v\")";
        let read = format!("{of}, (\"op\", \"read\")");
        let expected = [
            "millrace_group_weight[(\"group\", \"gold\")] 400".to_owned(),
            "millrace_group_booked_seconds[(\"group\", \"gold\")] 0.25".to_owned(),
            format!("millrace_group_ios_total[{read}] 7"),
            format!("millrace_group_bytes_total[{read}] 28672"),
            format!("millrace_group_errors_total[{read}] 0"),
            format!("millrace_group_cost_seconds_total[{of}] 2"),
            format!("millrace_group_held_seconds_total[{of}, (\"reason\", \"limit\")] 1.5"),
            format!("millrace_group_waiting[{of}] 3"),
        ];
        assert_eq!(found, expected);
    }
}
