//! `Drive`: the state of one device while a trace is read: I/Os in flight, counts, seeks and queue
//! depth.
//!
//! Source: btt's device merge, seek and "Active Requests At Q" tables.

use millrace_block::blktrace::{Record, category, major};

use super::measure::{Measure, MeasureTable, Span};
use super::tree::RangeTree;

pub(super) const NEVER: u64 = u64::MAX;

/// Kind of an I/O: read, write or discard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum IoKind {
    Read,
    Write,
    Discard,
}

impl IoKind {
    /// Every kind of I/O, in the order of the reports' tables.
    pub const ALL: [IoKind; 3] = [IoKind::Read, IoKind::Write, IoKind::Discard];

    /// Returns the lower-case name of this kind of I/O, for reports and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        ["read", "write", "discard"][self as usize]
    }

    /// Returns the kind of I/O that a trace record belongs to.
    #[must_use]
    pub fn of(record: &Record) -> IoKind {
        match () {
            () if record.has(category::DISCARD) => IoKind::Discard,
            () if record.has(category::WRITE) => IoKind::Write,
            () => IoKind::Read,
        }
    }
}

/// An I/O in flight, with the time of each step, or `NEVER` for a step that was not reached.
#[derive(Debug, Clone, Copy)]
pub(super) struct TrackedIo {
    pub(super) queued_ns: u64,
    /// Time at which the I/O began to wait for a tag; 0 if it did not wait.
    pub(super) slept_ns: u64,
    pub(super) got_ns: u64,
    pub(super) inserted_ns: u64,
    pub(super) merged_ns: u64,
    pub(super) issued_ns: u64,
    pub(super) cpu: u32,
    pub(super) kind: IoKind,
    pub(super) number: u64,
    pub(super) uncovered: u32,
}

impl TrackedIo {
    pub(super) fn new(record: &Record, number: u64) -> TrackedIo {
        TrackedIo {
            queued_ns: record.time_ns,
            slept_ns: 0,
            got_ns: NEVER,
            inserted_ns: NEVER,
            merged_ns: NEVER,
            issued_ns: NEVER,
            cpu: record.cpu,
            kind: IoKind::of(record),
            number,
            uncovered: record.sectors(),
        }
    }

    /// Subtracts completed sectors from the sectors of this I/O that are not complete yet. Returns
    /// true if this call completes the last sectors.
    pub(super) fn cover(&mut self, sectors: u64) -> bool {
        let before = self.uncovered;
        self.uncovered = u64::from(before).saturating_sub(sectors) as u32;
        before > 0 && self.uncovered == 0
    }
}

/// Statistics of the times between the steps of I/Os, for example of one device or one CPU.
/// `last_queued_ns` is the time at which the last I/O was queued (Q).
#[derive(Debug, Clone, Default)]
pub(super) struct SpanGroup {
    pub(super) measures: MeasureTable,
    pub(super) last_queued_ns: Option<u64>,
}

impl SpanGroup {
    pub(super) fn queued(&mut self, span: Span, time_ns: u64) {
        if let Some(last) = self.last_queued_ns.replace(time_ns) {
            self.measures.add(span, delta(last, time_ns));
        }
    }
}

/// Returns the time between two timestamps, at least 1 ns, as btt counts it.
pub(super) fn delta(from_ns: u64, to_ns: u64) -> u64 {
    if from_ns < to_ns { to_ns - from_ns } else { 1 }
}

/// Distances between consecutive I/Os, in sectors.
#[derive(Debug, Clone, Default)]
pub struct SeekDistances {
    /// Distances from each I/O to the previous I/O, in sectors. The distance is 0 if one end of an
    /// I/O lies inside the previous I/O or at its border.
    pub distances: Measure,
    /// Number of I/Os at a distance of 0 from the previous I/O.
    pub sequential: u64,
    last: (u64, u64),
}

impl SeekDistances {
    fn add(&mut self, (start, end): (u64, u64)) {
        let (last_start, last_end) = std::mem::replace(&mut self.last, (start, end));
        let last = last_start..=last_end;
        let distance = match () {
            () if last.contains(&start) || last.contains(&end) => 0,
            () if start > last_end => start - last_end,
            () => start.abs_diff(last_start),
        };
        self.distances.add(distance);
        self.sequential += u64::from(distance == 0);
    }
}

/// Statistics of one device of a trace.
#[derive(Debug, Default)]
pub struct Drive {
    /// Device number, encoded as in [`millrace_block::blktrace::device`].
    pub device: u32,
    /// Number of I/Os queued (Q) plus number of requests requeued by the driver (R).
    pub queued: u64,
    /// Number of requests issued to the driver (D).
    pub issued: u64,
    /// Sizes of the completed requests, in sectors.
    pub blocks: Measure,
    /// Statistics of the queue depth: requests in the driver after each issue of a request.
    pub depth: Measure,
    /// Distances between successive I/Os: index 0 for queued I/Os (Q), index 1 for issued requests
    /// (D).
    pub seeks: [SeekDistances; 2],
    /// Number of active I/Os (queued, but neither merged nor issued) when an I/O was queued, summed
    /// over all queued I/Os.
    pub active_sum: u64,
    pub(super) group: SpanGroup,
    pub(super) flights: RangeTree<TrackedIo>,
    /// True after the device's first queue (Q) or remap (A) event. Earlier events belong to I/Os
    /// that the trace lacks.
    pub(super) begun: bool,
    pub(super) active: u64,
    /// Number of requests that are at the driver now.
    pub depth_now: u64,
}

impl Drive {
    /// Returns true if the device only maps to other devices. As in btt, the device must have a
    /// major number that md or dm usually has.
    #[must_use]
    pub fn maps(&self) -> bool {
        matches!(major(self.device), 9 | 253 | 254)
    }

    /// Returns statistics of the times that this device's I/Os spent between steps, such as Q2C.
    #[must_use]
    pub fn measures(&self) -> &MeasureTable {
        &self.group.measures
    }

    /// Returns the average number of queued I/Os per issued request; at least 1.
    #[must_use]
    pub fn merge_ratio(&self) -> f64 {
        if self.issued == 0 { 1.0 } else { (self.queued as f64 / self.issued as f64).max(1.0) }
    }

    /// Returns the share of Q2C, 0 to 1, that each of [`STAGES`] takes, or `None` if no I/O was
    /// completed.
    pub(super) fn overhead(&self) -> Option<[f64; STAGES.len()]> {
        let total = |span| self.measures().of(span).total as f64;
        let all = total(Span::Q2C);
        (all > 0.0).then(|| STAGES.map(|span| total(span) / all))
    }

    pub(super) fn queue(&mut self, record: &Record) {
        self.seeks[0].add((record.sector, record.end()));
        self.activate();
    }

    pub(super) fn activate(&mut self) {
        self.queued += 1;
        self.active_sum += self.active;
        self.active += 1;
    }

    /// Counts an I/O as no longer active, because it was merged into a request or was issued.
    pub(super) fn deactivate(&mut self) {
        self.active = self.active.saturating_sub(1);
    }

    pub(super) fn issue(&mut self, record: &Record) {
        self.deactivate();
        self.seeks[1].add((record.sector, record.end()));
        self.issued += 1;
        self.depth_now += 1;
        self.depth.add(self.depth_now);
    }

    pub(super) fn give_back(&mut self) {
        self.depth_now = self.depth_now.saturating_sub(1);
    }
}

/// Stages of an I/O, in order of time.
pub(super) const STAGES: [Span; 5] = [Span::Q2G, Span::G2I, Span::Q2M, Span::I2D, Span::D2C];
