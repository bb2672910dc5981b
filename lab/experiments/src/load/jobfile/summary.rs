//! `JobLine`: a line of the results table, for one kind of I/O of a job or group.
//!
//! `lines` computes this plain data from reports; the command line prints it.
#![allow(missing_docs)] // Names of most fields and variants say what they are.

use super::run::JobReport;
use super::spec::JobFile;
use super::tally::Times;

/// Results of a job, or of a group of jobs, for one kind of operation.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct JobLine {
    pub job: String,
    /// Number of jobs whose results are summed in this line.
    pub members: u32,
    pub group: u32,
    /// Kind of operation: `read`, `write`, `trim` or `sync`.
    pub kind: &'static str,
    pub ios: u64,
    pub bytes: u64,
    pub runtime_ns: u64,
    /// Latencies from submission to completion, as fio's `clat`.
    pub clat: JobTimes,
    /// Percentiles of `clat` that the job's `percentile_list` names, as pairs of percentage and
    /// nanoseconds.
    pub percentiles: Vec<(f64, u64)>,
}

/// Completion latencies in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JobTimes {
    pub mean: u64,
    pub p50: u64,
    pub p99: u64,
    pub max: u64,
}

impl JobLine {
    pub fn iops(&self) -> f64 {
        self.ios as f64 * 1e9 / self.runtime_ns.max(1) as f64
    }

    pub fn bytes_per_s(&self) -> f64 {
        self.bytes as f64 * 1e9 / self.runtime_ns.max(1) as f64
    }
}

impl JobReport {
    /// Returns one line for each kind of operation that the job did. A job without I/Os has one
    /// empty line.
    pub fn lines(&self, file: &JobFile) -> Vec<JobLine> {
        let tally = &self.tally;
        let percents = file.jobs[self.job].percentiles.as_deref().unwrap_or_default();
        let line = |kind, (ios, bytes, runtime_ns): (u64, u64, u64), times: &Times| JobLine {
            job: file.jobs[self.job].name.clone(),
            members: self.members,
            group: self.group,
            kind,
            ios,
            bytes,
            runtime_ns,
            clat: of(times),
            percentiles: percents
                .iter()
                .copied()
                .zip(times.buckets.percentiles(percents))
                .filter(|_| ios > 0)
                .collect(),
        };
        let mut lines: Vec<JobLine> = Vec::new();
        for (kind, flow) in ["read", "write", "trim"].into_iter().zip(&tally.flows) {
            if flow.ios > 0 {
                let did = (flow.ios, flow.bytes, flow.runtime_ns);
                lines.push(line(kind, did, &flow.clat));
            }
        }
        let sync = &tally.sync.spread;
        if sync.count > 0 {
            lines.push(line("sync", (sync.count, 0, tally.runtime_ns), &tally.sync));
        }
        if lines.is_empty() {
            lines.push(line("", (0, 0, 0), &Times::default()));
        }
        lines
    }

    /// Returns the number of I/Os that failed plus the number of blocks that failed verification.
    pub fn errors(&self) -> u64 {
        self.tally.errors
    }

    pub fn first_error(&self) -> Option<&str> {
        self.tally.first_error.as_deref()
    }

    /// Returns the largest queue depth that met `latency_target`, and true if the depth search
    /// ended. For a group of jobs, the depth is the smallest of the jobs' depths.
    pub fn depth_found(&self) -> Option<(u32, bool)> {
        self.tally.depth_found
    }

    /// Returns the number of blocks that passed verification.
    pub fn verified(&self) -> u64 {
        self.tally.verified
    }
}

fn of(times: &Times) -> JobTimes {
    let (mean, max) = (times.spread.mean(), times.spread.max);
    let found = times.buckets.percentiles(&[50.0, 99.0]);
    JobTimes { mean: mean.round() as u64, p50: found[0], p99: found[1], max }
}
