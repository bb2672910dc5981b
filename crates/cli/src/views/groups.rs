//! Counters of groups, for the control socket.
//!
//! The readers are `stat --groups`, `top` and `ctl why`, which take the difference of two reports.
//! The settings of groups are in settings.rs.

use std::collections::BTreeMap;

use millrace_block::{CostModel, Op, OpCost, TenantSnapshot, WaitReason, WaitSnapshot};
use serde::{Deserialize, Serialize};

use super::report::OpCounts;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupCounts {
    pub name: String,
    pub parent: Option<String>,
    pub weight: u32,
    /// True for a group of the idle class, which gets only the capacity that other groups leave.
    pub idle: bool,
    /// Time in nanoseconds until the group's rate limits allow more I/O.
    pub booked_ns: u64,
    pub volumes: Vec<OnVolume>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OnVolume {
    pub volume: String,
    /// I/Os by operation. A split I/O counts once.
    pub ops: Vec<OpCounts>,
    /// Cost of the I/Os by the drives' cost model, in nanoseconds. All I/Os are counted as random.
    pub cost_ns: u64,
    /// Time that I/Os were held, in nanoseconds, summed over I/Os, by reason. I/Os that are still
    /// held count up to now.
    pub held_ns: BTreeMap<String, u64>,
    pub waiting: u64,
    /// Time for which the I/Os held now have waited so far, in nanoseconds, summed over these I/Os.
    pub waiting_ns: u64,
}

impl OnVolume {
    /// Converts the counters of one group on one volume. Returns `None` if the group did nothing
    /// there.
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
        let ops = OpCounts::of_tenant(stats);
        let cost_ns = ops.iter().map(|op| cost_of(cost, op)).sum();
        let used = !(ops.is_empty() && held_ns.is_empty() && held.waiting == 0);
        let WaitSnapshot { waiting, waiting_ns, .. } = *held;
        let volume = volume.to_owned();
        used.then_some(OnVolume { volume, ops, cost_ns, held_ns, waiting, waiting_ns })
    }
}

fn cost_of(model: &CostModel, ended: &OpCounts) -> u64 {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_costs_its_base_and_its_bytes_and_a_flush_nothing() {
        let ended =
            |op: &str| OpCounts { op: op.into(), ios: 10, bytes: 40_960, ..OpCounts::default() };
        let write = OpCost { random_ns: 100, sequential_ns: 1, byte_ps: 1_000 };
        let model = CostModel { read: OpCost { random_ns: 7, ..write }, write };
        let cost = |op| cost_of(&model, &ended(op));
        let found = ["read", "write", "write-zeroes", "discard", "flush"].map(cost);
        assert_eq!(found, [41_030, 41_960, 1_000, 1_000, 0]);
    }
}
