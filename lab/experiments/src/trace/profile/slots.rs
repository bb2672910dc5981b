//! `ArrivalSlots`: arrivals over time, in at most 120 time slots, however long the trace.
//!
//! Slots begin with 1 us each; when the trace outgrows them, neighbours are merged and each slot
//! lasts twice as long, as in the timeline of `trace`. The working set of a slot covers all I/Os up
//! to the slot's end.

use millrace_block::Op;

use crate::trace::TraceIo;

/// Largest number of time slots.
const SLOTS_MAX: usize = 120;

/// Arrivals in one slot.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ArrivalSlot {
    /// Numbers of reads, writes, and other I/Os.
    pub(super) ios: [u64; 3],
    /// Bytes read, and bytes written.
    pub(super) bytes: [u64; 2],
    /// Latencies of reads, and of writes: number and sum.
    pub(super) latency: [(u64, u64); 2],
    /// Working set in bytes at the end of the slot: total, read, written; None if nothing arrived.
    pub(super) touched: Option<[f64; 3]>,
}

impl ArrivalSlot {
    fn merge(&mut self, later: &ArrivalSlot) {
        self.ios.iter_mut().zip(later.ios).for_each(|(mine, theirs)| *mine += theirs);
        let bytes = self.bytes.iter_mut().zip(later.bytes);
        bytes.for_each(|(mine, theirs)| *mine = mine.saturating_add(theirs));
        for (mine, theirs) in self.latency.iter_mut().zip(later.latency) {
            *mine = (mine.0 + theirs.0, mine.1.saturating_add(theirs.1));
        }
        self.touched = later.touched.or(self.touched);
    }
}

/// Arrivals over time.
#[derive(Debug, Clone)]
pub(super) struct ArrivalSlots {
    pub(super) slots: Vec<ArrivalSlot>,
    pub(super) slot_ns: u64,
    pub(super) last_ns: u64,
    current: usize,
}

impl Default for ArrivalSlots {
    fn default() -> ArrivalSlots {
        ArrivalSlots { slots: Vec::new(), slot_ns: 1_000, last_ns: 0, current: 0 }
    }
}

impl ArrivalSlots {
    /// Adds an I/O; `touched` returns the working set before it.
    pub(super) fn add(&mut self, io: &TraceIo, touched: impl Fn() -> [f64; 3]) {
        self.last_ns = self.last_ns.max(io.at_ns);
        if io.at_ns / self.slot_ns != self.current as u64 && !self.slots.is_empty() {
            self.slots[self.current].touched = Some(touched());
        }
        while io.at_ns / self.slot_ns >= SLOTS_MAX as u64 {
            self.double();
        }
        self.current = (io.at_ns / self.slot_ns) as usize;
        if self.slots.len() <= self.current {
            self.slots.resize(self.current + 1, ArrivalSlot::default());
        }
        let slot = &mut self.slots[self.current];
        let way = match io.op {
            Op::Read => 0,
            Op::Write => 1,
            _ => 2,
        };
        slot.ios[way] += 1;
        if way < 2 {
            slot.bytes[way] = slot.bytes[way].saturating_add(io.len_bytes);
            if let Some(latency_ns) = io.latency_ns {
                let (count, sum) = &mut slot.latency[way];
                (*count, *sum) = (*count + 1, sum.saturating_add(latency_ns));
            }
        }
    }

    fn double(&mut self) {
        self.slot_ns = self.slot_ns.saturating_mul(2);
        let merged = self.slots.chunks(2).map(|pair| {
            let mut sum = pair[0];
            pair.iter().skip(1).for_each(|later| sum.merge(later));
            sum
        });
        self.slots = merged.collect();
        self.current /= 2;
    }
}
