//! `JobLine`: what a report says in a table, a line for each kind of I/O of a job.
//!
//! Plain data made of reports; printed by the command line.

use super::run::JobReport;
use super::spec::JobFile;
use super::tally::Times;

/// I/Os of one kind that a job, or a group of jobs, has done.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct JobLine {
    /// The job's name; a group's first one.
    pub job: String,
    /// Jobs that are added up.
    pub members: u32,
    /// The reporting group.
    pub group: u32,
    /// `read`, `write`, `trim` or `sync`.
    pub kind: &'static str,
    /// I/Os done.
    pub ios: u64,
    /// Bytes done.
    pub bytes: u64,
    /// Time measured.
    pub runtime_ns: u64,
    /// Completion latencies, as fio has them: from submission to completion.
    pub clat: JobTimes,
    /// Percentiles of these that the job asks for with `percentile_list`, in nanoseconds.
    pub percentiles: Vec<(f64, u64)>,
}

/// Completion latencies in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JobTimes {
    /// Mean.
    pub mean: u64,
    /// Half were not slower.
    pub p50: u64,
    /// 99 %.
    pub p99: u64,
    /// The slowest.
    pub max: u64,
}

impl JobLine {
    /// I/Os a second.
    #[must_use]
    pub fn iops(&self) -> f64 {
        self.ios as f64 * 1e9 / self.runtime_ns.max(1) as f64
    }

    /// Bytes a second.
    #[must_use]
    pub fn bytes_per_s(&self) -> f64 {
        self.bytes as f64 * 1e9 / self.runtime_ns.max(1) as f64
    }
}

impl JobReport {
    /// The lines of what it did; one of no I/O if it did nothing.
    #[must_use]
    pub fn lines(&self, file: &JobFile) -> Vec<JobLine> {
        let tally = &self.tally;
        let percents = file.jobs[self.job].percentiles().unwrap_or_default();
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

    /// I/Os that failed, and blocks that did not verify.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.tally.errors
    }

    /// Returns the text of the first error.
    #[must_use]
    pub fn first_error(&self) -> Option<&str> {
        self.tally.first_error.as_deref()
    }

    /// The deepest queue that met `latency_target`, of several jobs the least, and whether the
    /// search had ended.
    #[must_use]
    pub fn depth_found(&self) -> Option<(u32, bool)> {
        self.tally.depth_found
    }

    /// Blocks read back and found right.
    #[must_use]
    pub fn verified(&self) -> u64 {
        self.tally.verified
    }
}

fn of(times: &Times) -> JobTimes {
    let (mean, max) = (times.spread.mean(), times.spread.max);
    let found = times.buckets.percentiles(&[50.0, 99.0]);
    JobTimes { mean: mean.round() as u64, p50: found[0], p99: found[1], max }
}
