//! `ContentionReport`: each client's share of the drive, and the fairness of these shares.
//!
//! run.rs creates this plain data; the binary prints it, and experiments check it. A client's rates
//! refer to the client's own measured time, which is shorter if the client starts late.
#![allow(missing_docs)] // Names of most fields and variants say what they are.

use serde::Serialize;

use super::client::ClientTally;
use super::{Client, ContentionPlan};
use crate::load::row::LatencyNs;

/// Failed I/Os of a client.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct FailedIos {
    /// Number of failed I/Os.
    #[serde(rename = "total_err")]
    pub errors: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_text: Option<String>,
}

/// Completions of a client's I/Os over time. `Phases` selects the lists to record. The other lists
/// are empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ClientTimeline {
    /// Number of I/Os that completed in each step of the measured time. A step is `Phases::step_ns`
    /// nanoseconds long.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<u64>,
    /// Time of each completion, warm-up included, in nanoseconds from the start of the run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub times_ns: Vec<u64>,
}

/// A client's settings, rates and share.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ClientRow {
    pub name: String,
    pub group: String,
    pub weight: u32,
    pub iodepth: u32,
    /// Size of an I/O in bytes.
    pub bs: u32,
    pub rw: String,
    /// Number of I/Os that completed in the measured time.
    #[serde(rename = "total_ios")]
    pub ios: u64,
    pub iops: f64,
    /// Bytes a second.
    #[serde(rename = "bw_bytes")]
    pub bw_bytes_per_s: f64,
    /// Latency from submission to completion, as the client sees it.
    pub lat_ns: LatencyNs,
    /// Cost of the client's I/Os by the cost model, in nanoseconds of drive time per second.
    pub cost_ns_per_s: f64,
    /// Cost of the client's I/Os as a fraction of the cost of all clients' I/Os, 0 to 1.
    pub share: f64,
    /// Client's weight as a fraction of all clients' weights: the `share` that the client should
    /// get if all clients always have I/O waiting.
    pub weight_share: f64,
    #[serde(flatten)]
    pub failed: FailedIos,
    #[serde(flatten)]
    pub course: ClientTimeline,
}

/// Results of all clients of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ContentionReport {
    /// Name of the simulated machine, or `native`.
    pub machine: String,
    pub drives: String,
    pub scheduler: String,
    /// Length of the measured time in seconds.
    pub seconds: f64,
    pub clients: Vec<ClientRow>,
    pub iops: f64,
    #[serde(rename = "bw_bytes")]
    pub bw_bytes_per_s: f64,
    /// Jain's index of fairness: 1 if all clients got their share, 1 / n if one of n clients got
    /// everything. The index is calculated over each client's share of the cost, divided by the
    /// client's share of the weights.
    pub jain: f64,
    /// Number of simulated events: accesses to cache lines, hand-overs of locks, sleeps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sim_events: Option<u64>,
}

impl ContentionReport {
    pub(super) fn new(plan: &ContentionPlan, tallies: &[ClientTally]) -> ContentionReport {
        let parts = plan.clients.iter().zip(tallies);
        let mut clients: Vec<ClientRow> =
            parts.map(|(client, tally)| row_of(plan, client, tally)).collect();
        let total = |of: fn(&ClientRow) -> f64| clients.iter().map(of).sum::<f64>();
        let (cost, iops) = (total(|row| row.cost_ns_per_s), total(|row| row.iops));
        let bw_bytes_per_s = total(|row| row.bw_bytes_per_s);
        // A group's weight is divided equally among its clients.
        let same = |group: &str| clients.iter().filter(|row| row.group == group).count().max(1);
        let weights: Vec<f64> =
            clients.iter().map(|row| f64::from(row.weight) / same(&row.group) as f64).collect();
        let all: f64 = weights.iter().sum();
        for (row, weight) in clients.iter_mut().zip(&weights) {
            row.share = row.cost_ns_per_s / cost.max(f64::MIN_POSITIVE);
            row.weight_share = weight / all;
        }
        ContentionReport {
            drives: plan.drives.iter().map(ToString::to_string).collect::<Vec<_>>().join("+"),
            seconds: plan.phases.length_ns as f64 / 1e9,
            jain: jain(clients.iter().map(|row| row.share / row.weight_share)),
            clients,
            iops,
            bw_bytes_per_s,
            ..ContentionReport::default()
        }
    }

    /// Returns the results of the client with this name.
    pub fn client(&self, name: &str) -> Option<&ClientRow> {
        self.clients.iter().find(|row| row.name == name)
    }

    /// Returns the number of I/Os that failed.
    pub fn errors(&self) -> u64 {
        self.clients.iter().map(|row| row.failed.errors).sum()
    }
}

fn row_of(plan: &ContentionPlan, client: &Client, tally: &ClientTally) -> ClientRow {
    let (group, weight) = plan.group_of(client);
    let phases = &plan.phases;
    let late_ns = client.start_ns.saturating_sub(phases.warm_up_ns);
    let per_second = 1e9 / (phases.length_ns - late_ns) as f64;
    let mut series = tally.series.clone();
    if let Some(step_ns) = phases.step_ns {
        series.resize(phases.length_ns.div_ceil(step_ns) as usize, 0);
    }
    ClientRow {
        name: client.name.clone(),
        group: group.to_owned(),
        weight,
        iodepth: client.iodepth,
        bs: client.bs_bytes,
        rw: client.rw.to_string(),
        ios: tally.ios,
        iops: tally.ios as f64 * per_second,
        bw_bytes_per_s: tally.ios as f64 * f64::from(client.bs_bytes) * per_second,
        lat_ns: LatencyNs::of(&tally.latency),
        cost_ns_per_s: tally.cost_ns as f64 * per_second,
        failed: FailedIos { errors: tally.errors, error_text: tally.first_error.clone() },
        course: ClientTimeline { series, times_ns: tally.times_ns.clone() },
        ..ClientRow::default()
    }
}

/// Returns Jain's index of fairness. Returns 1 if there are no values, or if all values are 0.
/// Source: Jain, Chiu, Hawe, "A quantitative measure of fairness", DEC-TR-301, 1984.
pub fn jain(values: impl Iterator<Item = f64>) -> f64 {
    let (count, sum, squares) =
        values.fold((0.0, 0.0, 0.0), |(n, sum, squares), x| (n + 1.0, sum + x, squares + x * x));
    if squares == 0.0 { 1.0 } else { sum * sum / (count * squares) }
}

#[cfg(test)]
mod tests {
    use super::jain;

    #[test]
    fn the_index_is_one_for_equals_and_a_part_for_one_who_has_all() {
        let of = |values: &[f64]| jain(values.iter().copied());
        assert_eq!(of(&[3.0, 3.0, 3.0]), 1.0);
        assert_eq!(of(&[8.0, 0.0, 0.0, 0.0]), 0.25);
        assert_eq!((of(&[]), of(&[0.0])), (1.0, 1.0));
    }
}
