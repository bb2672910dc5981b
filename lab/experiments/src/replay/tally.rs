//! `ReplayTally`: counts and latencies of a running replay.
//!
//! The size of a tally does not depend on the trace's length.

use millrace_block::{OPS, Op, Snapshot};

use super::lane::Lane;
use super::report::{
    AdaptedIos, Counts, LATE, LaneReport, Latency, Lateness, OpReport, Report, Skipped, StopReason,
    WaitCounts,
};
use super::route::{Routed, Skip};
use super::series::ReplaySeries;

#[derive(Debug, Default)]
struct OpTally {
    ios: u64,
    bytes: u64,
    errors: u64,
    fua: u64,
    traced: Snapshot,
    from_submission: Snapshot,
    from_due: Snapshot,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct IoResult {
    /// Time at which the I/O was due; `None` for a replay as fast as possible.
    pub(crate) due_ns: Option<u64>,
    pub(crate) sent_ns: u64,
    pub(crate) ended_ns: u64,
    pub(crate) failed: bool,
}

#[derive(Debug, Default)]
pub(crate) struct ReplayTally {
    ops: [OpTally; OPS],
    lateness: Snapshot,
    late: [u64; LATE.len()],
    pub(crate) waited: WaitCounts,
    pub(crate) adapted: AdaptedIos,
    skipped: Skipped,
    unsupported: [u64; OPS],
    series: ReplaySeries,
    due_series: ReplaySeries,
    lanes: Vec<LaneReport>,
    pub(crate) counts: Counts,
    pub(crate) at_ns: u64,
    begin_ns: u64,
    end_ns: u64,
}

impl ReplayTally {
    pub(crate) fn new(lanes: &[Lane], begin_ns: u64) -> ReplayTally {
        let lane = |lane: &Lane| LaneReport { target: lane.name.clone(), ..Default::default() };
        let lanes = lanes.iter().map(lane).collect();
        ReplayTally { lanes, begin_ns, end_ns: begin_ns, ..ReplayTally::default() }
    }

    pub(crate) fn begin(&mut self, begin_ns: u64) {
        (self.begin_ns, self.end_ns) = (begin_ns, begin_ns);
    }

    pub(crate) fn skip(&mut self, reason: Skip) {
        self.counts.traced_ios += 1;
        match reason {
            Skip::Outside => self.skipped.outside += 1,
            Skip::TooLong => self.skipped.too_long += 1,
            Skip::Empty => self.skipped.empty += 1,
            Skip::Unsupported(op) => self.unsupported[op as usize] += 1,
        }
    }

    pub(crate) fn late(&mut self, late_ns: u64) {
        self.lateness.add(late_ns, 1);
        for (count, (over_ns, ..)) in self.late.iter_mut().zip(LATE) {
            *count += u64::from(late_ns > over_ns);
        }
    }

    pub(crate) fn end(&mut self, io: &Routed, ended: IoResult) {
        let IoResult { due_ns, sent_ns, ended_ns, failed } = ended;
        let op = &mut self.ops[io.op as usize];
        op.ios += 1;
        op.bytes += io.len_bytes;
        op.errors += u64::from(failed);
        self.counts.ios += 1;
        self.counts.errors += u64::from(failed);
        op.fua += u64::from(io.fua || io.flush_after);
        if let Some(latency_ns) = io.latency_ns {
            op.traced.add(latency_ns, 1);
        }
        op.from_submission.add(ended_ns.saturating_sub(sent_ns), 1);
        if let Some(due_ns) = due_ns {
            op.from_due.add(ended_ns.saturating_sub(due_ns), 1);
            self.due_series.add(due_ns.saturating_sub(self.begin_ns));
        }
        self.adapted.aligned += u64::from(io.changed.aligned);
        self.adapted.moved += u64::from(io.changed.moved);
        self.adapted.fua_by_flush += u64::from(io.flush_after);
        self.adapted.fua_lost += u64::from(io.changed.lost_fua);
        self.series.add(ended_ns.saturating_sub(self.begin_ns));
        let lane = &mut self.lanes[io.lane as usize];
        lane.ios += 1;
        lane.bytes += io.len_bytes;
        self.end_ns = self.end_ns.max(ended_ns);
    }

    pub(crate) fn ended(&self) -> u64 {
        self.counts.ios
    }

    pub(crate) fn report(
        self,
        (speed, iodepth): (Option<f64>, u32),
        stopped: Option<StopReason>,
    ) -> Report {
        let seconds = (self.end_ns - self.begin_ns) as f64 / 1e9;
        let lateness = Lateness { all: Latency::of(&self.lateness), over: self.late };
        let with_ops = Op::ALL.iter().zip(self.ops.iter());
        let unsupported = Op::ALL.iter().zip(self.unsupported).filter(|(_, ios)| *ios > 0);
        Report {
            speed,
            iodepth,
            seconds,
            trace_seconds: self.at_ns as f64 / 1e9,
            counts: self.counts,
            ops: with_ops
                .filter(|(_, tally)| tally.ios > 0)
                .map(|(op, tally)| op_report(*op, tally, seconds))
                .collect(),
            lateness: speed.map(|_| lateness),
            waited: self.waited,
            adapted: self.adapted,
            skipped: Skipped {
                unsupported: unsupported.map(|(op, ios)| (op.name().to_owned(), ios)).collect(),
                ..self.skipped
            },
            series: self.series,
            due_series: speed.map(|_| self.due_series),
            targets: self.lanes,
            stopped,
        }
    }
}

fn op_report(op: Op, tally: &OpTally, seconds: f64) -> OpReport {
    let a_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
    OpReport {
        op: op.name().to_owned(),
        ios: tally.ios,
        bytes: tally.bytes,
        errors: tally.errors,
        fua: tally.fua,
        iops: a_second(tally.ios),
        bytes_per_s: a_second(tally.bytes),
        traced: Latency::of(&tally.traced),
        from_submission: Latency::of(&tally.from_submission),
        from_due: Latency::of(&tally.from_due),
    }
}
