//! `Drive`: what is known of one device of a trace: I/Os on their way, counts, seeks and depth.
//!
//! Owns the tree of its queued I/Os. Filled by `Spans`; read by `overview.rs`.
//! Source: btt's device merge, seek and "Active Requests At Q" tables.

use millrace_block::blktrace::{Record, category, major};
use serde::Serialize;

use super::measure::{Measure, Measures, Span};
use super::tree::RangeTree;

/// Steps that did not happen.
pub(super) const NEVER: u64 = u64::MAX;

/// What an I/O does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Kind {
    Read,
    Write,
    Discard,
}

impl Kind {
    /// All.
    pub const ALL: [Kind; 3] = [Kind::Read, Kind::Write, Kind::Discard];

    /// As people and JSON read it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Discard => "discard",
        }
    }

    /// The kind of an event.
    #[must_use]
    pub fn of(record: &Record) -> Kind {
        match () {
            () if record.has(category::DISCARD) => Kind::Discard,
            () if record.has(category::WRITE) => Kind::Write,
            () => Kind::Read,
        }
    }
}

/// An I/O on its way: when it went through which step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flight {
    pub(super) queued_ns: u64,
    /// 0 if it never slept.
    pub(super) slept_ns: u64,
    pub(super) got_ns: u64,
    pub(super) inserted_ns: u64,
    pub(super) merged_ns: u64,
    pub(super) issued_ns: u64,
    pub(super) cpu: u32,
    pub(super) kind: Kind,
    /// Number that the `Watch` gave it.
    pub(super) number: u64,
    /// Sectors that no completion has covered.
    pub(super) uncovered: u32,
}

impl Flight {
    pub(super) fn new(record: &Record, number: u64) -> Flight {
        Flight {
            queued_ns: record.time_ns,
            slept_ns: 0,
            got_ns: NEVER,
            inserted_ns: NEVER,
            merged_ns: NEVER,
            issued_ns: NEVER,
            cpu: record.cpu,
            kind: Kind::of(record),
            number,
            uncovered: record.sectors(),
        }
    }

    /// A completion covers so many more of its sectors. Returns true if those are the last ones.
    pub(super) fn cover(&mut self, sectors: u64) -> bool {
        let before = self.uncovered;
        self.uncovered = u64::from(before).saturating_sub(sectors) as u32;
        before > 0 && self.uncovered == 0
    }
}

/// Spans of some I/Os, and when the last of them was queued.
#[derive(Debug, Clone, Default)]
pub(super) struct Group {
    pub(super) measures: Measures,
    pub(super) last_queued_ns: Option<u64>,
}

impl Group {
    /// One more was queued.
    pub(super) fn queued(&mut self, span: Span, time_ns: u64) {
        if let Some(last) = self.last_queued_ns.replace(time_ns) {
            self.measures.add(span, delta(last, time_ns));
        }
    }
}

/// From one time to another; at least 1, as in btt.
pub(super) fn delta(from_ns: u64, to_ns: u64) -> u64 {
    if from_ns < to_ns { to_ns - from_ns } else { 1 }
}

/// How far apart I/Os lie that follow each other, in sectors.
#[derive(Debug, Clone, Default)]
pub struct Seeks {
    /// Distances; 0 for what touches its predecessor.
    pub distances: Measure,
    /// How many of those are 0.
    pub sequential: u64,
    last: (u64, u64),
}

impl Seeks {
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

/// One device of a trace.
#[derive(Debug)]
pub struct Drive {
    /// Its number: see [`millrace_block::blktrace::device`].
    pub device: u32,
    /// How many were queued, or given back by the driver, which is to be queued again.
    pub queued: u64,
    /// How many were given to the driver.
    pub issued: u64,
    /// Sectors of what was completed, by completion.
    pub blocks: Measure,
    /// Requests at the driver when one was given to it, that one too.
    pub depth: Measure,
    /// Seeks of what was queued, and of what was given to the driver.
    pub seeks: [Seeks; 2],
    /// I/Os on their way when one was queued, added up.
    pub active_sum: u64,
    pub(super) group: Group,
    pub(super) flights: RangeTree<Flight>,
    /// Whether anything was queued on it; what came before that is of I/Os that were not seen.
    pub(super) begun: bool,
    active: u64,
    depth_now: u64,
}

impl Drive {
    pub(super) fn new(device: u32) -> Drive {
        Drive {
            device,
            queued: 0,
            issued: 0,
            blocks: Measure::default(),
            depth: Measure::default(),
            seeks: Default::default(),
            active_sum: 0,
            group: Group::default(),
            flights: RangeTree::new(),
            begun: false,
            active: 0,
            depth_now: 0,
        }
    }

    /// Whether it only maps to others: md, dm. As btt, by the numbers they mostly have.
    #[must_use]
    pub fn maps(&self) -> bool {
        matches!(major(self.device), 9 | 253 | 254)
    }

    /// Its spans.
    #[must_use]
    pub fn measures(&self) -> &Measures {
        &self.group.measures
    }

    /// Queued for each that was issued; at least 1.
    #[must_use]
    pub fn merge_ratio(&self) -> f64 {
        if self.issued == 0 { 1.0 } else { (self.queued as f64 / self.issued as f64).max(1.0) }
    }

    /// Requests at the driver now.
    #[must_use]
    pub fn depth_now(&self) -> u64 {
        self.depth_now
    }

    /// How much of Q2C which stage takes; none if nothing was completed. Q2G, G2I, Q2M, I2D, D2C.
    #[must_use]
    pub fn overhead(&self) -> Option<Overhead> {
        let all = self.measures().of(Span::Q2C);
        (all.n > 0 && all.total > 0).then(|| Overhead::of(self.measures()))
    }

    /// One more was queued; whether it took the place of one with the same first sector.
    pub(super) fn queue(&mut self, record: &Record, number: u64) -> bool {
        let range = (record.sector, record.end());
        self.seeks[0].add(range);
        self.activate();
        self.flights.insert(range, Flight::new(record, number))
    }

    /// One more to be done: queued, or given back.
    pub(super) fn activate(&mut self) {
        self.queued += 1;
        self.active_sum += self.active;
        self.active += 1;
    }

    /// One less that stands for itself.
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

/// Shares of Q2C, each as a fraction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Overhead {
    /// Until it had a request.
    pub q2g: f64,
    /// Until that was inserted.
    pub g2i: f64,
    /// Until it was merged with another.
    pub q2m: f64,
    /// Until it was given to the driver.
    pub i2d: f64,
    /// At the driver.
    pub d2c: f64,
}

impl Overhead {
    pub(super) fn of(measures: &Measures) -> Overhead {
        let all = measures.of(Span::Q2C).total.max(1) as f64;
        let share = |span| measures.of(span).total as f64 / all;
        Overhead {
            q2g: share(Span::Q2G),
            g2i: share(Span::G2I),
            q2m: share(Span::Q2M),
            i2d: share(Span::I2D),
            d2c: share(Span::D2C),
        }
    }

    /// Names and shares.
    #[must_use]
    pub fn shares(&self) -> [(&'static str, f64); 5] {
        [
            ("Q2G", self.q2g),
            ("G2I", self.g2i),
            ("Q2M", self.q2m),
            ("I2D", self.i2d),
            ("D2C", self.d2c),
        ]
    }
}
