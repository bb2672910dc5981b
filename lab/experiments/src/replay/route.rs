//! `Router`: converts the I/Os of a trace to I/Os of lanes, or to the reason why an I/O is left
//! out.
//!
//! A lane is a volume or server on which devices of the trace are replayed. The router returns each
//! I/O of the trace once, as `Item::Io` or `Item::Skipped`, so that a count of items includes all
//! I/Os.

use millrace_block::Op;

use super::Settings;
use super::fit::{Fit, FittedRange, place};
use super::lane::Lane;
use crate::load::bench::BenchError;
use crate::trace::{TraceIo, TraceSource};

/// Assignment of a trace's devices to lanes (volumes or servers).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Routes {
    /// Devices for which the user chose a lane (volume or server): each device's name, with the
    /// index of its lane.
    pub by_device: Vec<(String, usize)>,
    /// Index of the lane (volume or server) for devices that are not in `by_device`. With `None`,
    /// such a device is an error.
    pub others: Option<usize>,
}

impl Routes {
    pub(crate) fn lane_of(&self, device: &str, met: &[String]) -> Result<usize, BenchError> {
        let named = self.by_device.iter().find(|(name, _)| name == device);
        named.map(|(_, lane)| *lane).or(self.others).ok_or_else(|| {
            wrong(format!(
                "--map: no target for device {device}; add --map {device}=TARGET, or --to TARGET \
                 for all without a --map (devices met so far: {})",
                met.join(" ")
            ))
        })
    }
}

/// Rules for the trace's addresses: I/Os past the target's end, and overwriting of data.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Rule for I/Os that lie past the target's end. With `None`, such an I/O is an error.
    pub fit: Option<Fit>,
    /// For each lane (volume or server), the size of the traced address range in bytes; used by
    /// `Fit::Scale`.
    pub extents_bytes: Vec<u64>,
    /// If true, the replay may overwrite data that a target holds.
    pub overwrite: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Skip {
    Outside,
    TooLong,
    Empty,
    Unsupported(Op),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Routed {
    pub(crate) at_ns: u64,
    pub(crate) lane: u32,
    pub(crate) op: Op,
    pub(crate) fua: bool,
    /// True if a flush must follow this write, because the target has no FUA.
    pub(crate) flush_after: bool,
    pub(crate) offset_bytes: u64,
    pub(crate) len_bytes: u64,
    pub(crate) latency_ns: Option<u64>,
    pub(crate) changed: Adaptations,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Adaptations {
    pub(crate) aligned: bool,
    pub(crate) moved: bool,
    /// True if the write has FUA but cannot be made durable, because the target has neither FUA nor
    /// flushes.
    pub(crate) lost_fua: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Item {
    Io(Routed),
    Skipped(Skip),
}

pub(crate) struct Router<S> {
    source: S,
    lanes: Vec<Lane>,
    routes: Routes,
    addresses: Addresses,
    met: Vec<usize>,
    number: u64,
}

impl<S: TraceSource> Router<S> {
    pub(crate) fn new(source: S, lanes: &[Lane], settings: &Settings) -> Self {
        let (routes, addresses) = (settings.routes.clone(), settings.addresses.clone());
        Router { source, lanes: lanes.to_vec(), routes, addresses, met: Vec::new(), number: 0 }
    }

    /// Returns the next I/O, or the reason why it is left out; `None` at the end of the trace.
    pub(crate) fn next(&mut self) -> Result<Option<Item>, BenchError> {
        let Some(io) = next_of(&mut self.source)? else { return Ok(None) };
        self.number += 1;
        let lane = lane_of(&self.source, &io, &mut self.met, &self.routes)?;
        self.route(&io, lane).map(Some)
    }

    fn route(&self, io: &TraceIo, lane_at: usize) -> Result<Item, BenchError> {
        let lane = &self.lanes[lane_at];
        if io.op.is_write() {
            self.check_write(io, lane)?;
        }
        if lane.takes.bytes_max(io.op) == 0 {
            return Ok(Item::Skipped(Skip::Unsupported(io.op)));
        }
        let mut routed = Routed {
            at_ns: io.at_ns,
            lane: lane_at as u32,
            op: io.op,
            fua: io.fua && io.op.is_write() && lane.takes.fua,
            flush_after: io.fua && io.op.is_write() && !lane.takes.fua && lane.takes.flush,
            offset_bytes: 0,
            len_bytes: 0,
            latency_ns: io.latency_ns,
            changed: Adaptations::default(),
        };
        routed.changed.lost_fua =
            io.fua && io.op.is_write() && !lane.takes.fua && !lane.takes.flush;
        if io.op == Op::Flush {
            return Ok(Item::Io(routed));
        }
        if io.len_bytes == 0 {
            return Ok(Item::Skipped(Skip::Empty));
        }
        let extent = self.addresses.extents_bytes.get(lane_at).copied().unwrap_or(0);
        let range = (io.offset_bytes, io.len_bytes);
        if self.addresses.fit == Some(Fit::Scale)
            && io.offset_bytes.saturating_add(io.len_bytes) > extent
        {
            return Err(self.beyond(io, extent));
        }
        match place(lane, (self.addresses.fit, extent), range) {
            FittedRange::At { offset_bytes, len_bytes, aligned, moved } => {
                (routed.offset_bytes, routed.len_bytes) = (offset_bytes, len_bytes);
                (routed.changed.aligned, routed.changed.moved) = (aligned, moved);
                Ok(Item::Io(routed))
            }
            FittedRange::Skipped => Ok(Item::Skipped(Skip::Outside)),
            FittedRange::TooLong => Ok(Item::Skipped(Skip::TooLong)),
            FittedRange::Outside => Err(self.outside(io, lane)),
        }
    }

    fn check_write(&self, io: &TraceIo, lane: &Lane) -> Result<(), BenchError> {
        let (number, op, name) = (self.number, io.op.name(), &lane.name);
        if lane.is_read_only {
            return Err(wrong(format!(
                "{name}: I/O {number} of the trace is a {op}, and the target is read-only; name \
                 one that can be written"
            )));
        }
        match self.addresses.overwrite {
            true => Ok(()),
            false => lane.contents.check(name, &format!("I/O {number} of the trace, a {op},")),
        }
    }

    #[cold]
    fn beyond(&self, io: &TraceIo, extent: u64) -> BenchError {
        let TraceIo { op, offset_bytes, len_bytes, .. } = io;
        wrong(format!(
            "--trace-size {extent}: I/O {} of the trace, a {} of {len_bytes} bytes at \
             {offset_bytes}, ends behind this size and, scaled, would end behind the target; \
             give the size of the traced device, {} or more",
            self.number,
            op.name(),
            offset_bytes.saturating_add(*len_bytes)
        ))
    }

    #[cold]
    fn outside(&self, io: &TraceIo, lane: &Lane) -> BenchError {
        let TraceIo { op, offset_bytes, len_bytes, .. } = io;
        let Lane { name, size_bytes, .. } = lane;
        wrong(format!(
            "{name}: I/O {} of the trace, a {} of {len_bytes} bytes at {offset_bytes}, lies behind \
             the target's end at {size_bytes}; choose a treatment: --fit scale (shrink all \
             addresses), --fit wrap (start again at 0) or --fit skip (leave them out)",
            self.number,
            op.name()
        ))
    }
}

/// Sizes of a trace's address ranges, and its number of I/Os, found by reading the trace once
/// before the replay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Extents {
    /// For each lane (volume or server), the highest end offset of the I/Os that are replayed on
    /// the lane, in bytes.
    pub bytes: Vec<u64>,
    /// Number of I/Os in the trace.
    pub ios: u64,
}

/// Reads a trace to its end to find the highest end offset of the I/Os on each of `lanes` lanes
/// (volumes or servers).
pub fn extents<S: TraceSource>(
    mut source: S,
    routes: &Routes,
    lanes: usize,
) -> Result<Extents, BenchError> {
    let (mut found, mut met) = (Extents { bytes: vec![0; lanes], ios: 0 }, Vec::new());
    while let Some(io) = next_of(&mut source)? {
        let lane = lane_of(&source, &io, &mut met, routes)?;
        let end = io.offset_bytes.saturating_add(io.len_bytes);
        found.bytes[lane] = found.bytes[lane].max(end);
        found.ios += 1;
    }
    Ok(found)
}

fn next_of<S: TraceSource>(source: &mut S) -> Result<Option<TraceIo>, BenchError> {
    source.next_io().map_err(|error| BenchError::Trace { text: with_causes(&error) })
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Returns the lane (index of a volume or server) on which an I/O's device is replayed. `met` holds
/// the lanes of all devices seen so far, by device index.
fn lane_of<S: TraceSource>(
    source: &S,
    io: &TraceIo,
    met: &mut Vec<usize>,
    routes: &Routes,
) -> Result<usize, BenchError> {
    let at = io.device as usize;
    while met.len() <= at {
        let names = source.devices();
        let name = names.get(met.len()).map_or("?", String::as_str);
        met.push(routes.lane_of(name, names)?);
    }
    Ok(met[at])
}

fn wrong(text: String) -> BenchError {
    BenchError::Workload(text)
}
