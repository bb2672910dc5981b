//! `EventIos`: turns blktrace events into I/Os with latencies, in bounded memory.
//!
//! `Spans` of millrace-trace finds the events of each I/O, for `trace spans`, for the report page
//! and for this type. An I/O arrives with its Q (queued) event. Some recordings, such as those of
//! `blktrace -a issue`, have D (issued) events but no Q events; there, I/Os arrive with their D
//! event. A device counts as a device without Q events after `ISSUES_TRIED` D events. If a Q event
//! comes before, the I/Os that arrived with D events are dropped, because they began before the
//! recording. A write with a preflush becomes a flush and a write. Passthrough commands (SCSI
//! generic) have no range and are ignored.

use std::collections::HashMap;
use std::collections::hash_map::Entry::Vacant;

use millrace_block::Op;
use millrace_block::blktrace::{EventCode, Record, category};
use millrace_trace::{IoListener, Spans, TraceEntry};

use super::TraceIo;
use super::devices::DeviceNames;
use super::parser::Problem;
use super::pending::{Pending, StreamState};
use super::timeline::Timeline;

/// Number of D (issued) events after which a device without Q (queued) events is taken to have no Q
/// events at all. All I/Os of the device then arrive with their D events.
const ISSUES_TRIED: u32 = 256;
/// Offset added to all event times, which count from the first event read. Without the offset, the
/// time of an earlier event that is read later would be negative.
pub(super) const GENESIS_NS: u64 = 1 << 62;
/// I/O number for the I/Os of devices that are not in `EventIos::numbers`. All these I/Os have the
/// same number, and are ignored.
const UNTOLD: u64 = u64::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ArrivalEvent {
    Unknown(u32),
    Queue,
    Issue,
}

#[derive(Debug, Default)]
pub(super) struct EventIos {
    pending: Pending,
    arrivals: HashMap<u32, ArrivalEvent>,
    numbers: HashMap<u32, u32>,
}

impl EventIos {
    pub(super) fn number(
        &mut self,
        device: u32,
        devices: &mut DeviceNames,
        name: impl FnOnce() -> String,
    ) -> Result<(), Problem> {
        if let Vacant(place) = self.numbers.entry(device) {
            place.insert(devices.number(&name())?);
        }
        Ok(())
    }

    pub(super) fn take_number(&mut self, device: u32) {
        self.numbers.insert(device, device);
    }

    /// Returns the next I/O in order of arrival. Holds an I/O back until its completion has been
    /// read. Also holds an I/O back until it is known if the I/O's device has Q (queued) events.
    /// The I/O's time includes the offset `GENESIS_NS`.
    pub(super) fn pop(&mut self, more: StreamState) -> Option<TraceIo> {
        let device = self.pending.front()?.device;
        if matches!(self.arrivals.get(&device), Some(ArrivalEvent::Unknown(_))) {
            if more == StreamState::ToCome && !self.pending.is_full() {
                return None;
            }
            self.arrivals.insert(device, ArrivalEvent::Issue);
        }
        self.pending.pop(more)
    }
}

impl IoListener for EventIos {
    fn arrived(&mut self, record: &Record) -> u64 {
        let Some(&device) = self.numbers.get(&record.device) else { return UNTOLD };
        let arrival = self.arrivals.entry(device).or_insert(ArrivalEvent::Unknown(0));
        match (record.act(), &mut *arrival) {
            (Some(EventCode::Issue), ArrivalEvent::Unknown(ISSUES_TRIED..)) => {
                *arrival = ArrivalEvent::Issue
            }
            (Some(EventCode::Issue), ArrivalEvent::Unknown(seen)) => *seen += 1,
            (Some(EventCode::Issue), _) | (_, ArrivalEvent::Queue) => {}
            (_, ArrivalEvent::Issue) => *arrival = ArrivalEvent::Queue,
            (_, ArrivalEvent::Unknown(seen)) => {
                if *seen > 0 {
                    self.pending.drop_where(|io| io.device == device);
                }
                *arrival = ArrivalEvent::Queue;
            }
        }
        let io = io_of(record, device);
        if record.has(category::FLUSH) && io.op != Op::Flush {
            let flush = TraceIo { op: Op::Flush, fua: false, offset_bytes: 0, len_bytes: 0, ..io };
            let number = self.pending.push(flush);
            self.pending.release(number);
        }
        self.pending.push(io)
    }

    fn completed(&mut self, number: u64, time_ns: u64) {
        self.pending.answer(number, time_ns.wrapping_add(GENESIS_NS));
    }
}

fn io_of(record: &Record, device: u32) -> TraceIo {
    let op = match record {
        _ if record.bytes == 0 => Op::Flush,
        record if record.has(category::DISCARD) => Op::Discard,
        record if record.has(category::WRITE) => Op::Write,
        _ => Op::Read,
    };
    TraceIo {
        at_ns: record.time_ns.wrapping_add(GENESIS_NS),
        device,
        op,
        fua: op == Op::Write && record.has(category::FUA),
        offset_bytes: if op == Op::Flush { 0 } else { record.sector.saturating_mul(512) },
        len_bytes: record.bytes.into(),
        latency_ns: None,
    }
}

#[derive(Debug, Default)]
pub(super) struct PairedEvents {
    pub(super) spans: Spans,
    pub(super) ios: EventIos,
    pub(super) timeline: Option<Timeline>,
}

impl PairedEvents {
    pub(super) fn measure(&mut self) {
        (self.spans, self.timeline) = (Spans::new(), Some(Timeline::default()));
    }

    pub(super) fn entry(&mut self, entry: &TraceEntry) {
        let Some(timeline) = &mut self.timeline else {
            return self.spans.entry(entry, &mut self.ios);
        };
        self.spans.entry(entry, &mut (&mut *timeline, &mut self.ios));
        timeline.entry(entry, &self.spans);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Action, categories, time, first sector, bytes.
    type Step = (EventCode, u16, u64, u64, u32);

    fn entry((act, categories, time_ns, sector, bytes): Step) -> TraceEntry {
        let action = act.with(categories);
        let record = Record { action, time_ns, sector, bytes, ..Record::default() };
        TraceEntry { record, data: Vec::new(), trace: 0, cpu: 0 }
    }

    fn feed(events: &mut PairedEvents, step: Step) {
        let entry = entry(step);
        events.ios.take_number(entry.record.device);
        events.entry(&entry);
    }

    fn run(steps: &[Step]) -> Vec<(u64, Op, u64, Option<u64>)> {
        let mut events = PairedEvents::default();
        steps.iter().for_each(|step| feed(&mut events, *step));
        let ios = std::iter::from_fn(|| events.ios.pop(StreamState::Ended));
        ios.map(|io| (io.at_ns - GENESIS_NS, io.op, io.offset_bytes, io.latency_ns)).collect()
    }

    use EventCode::{Complete, Issue, Queue};
    use category::{FLUSH, READ, WRITE};

    #[test]
    fn completion_answers_all_that_were_merged_and_of_split_io_last() {
        let merged = [
            (Queue, READ, 1, 0, 512),
            (Queue, READ, 2, 1, 512),
            (Queue, WRITE, 3, 9, 512),
            (Issue, READ, 4, 0, 1024),
            (Complete, READ, 10, 0, 1024),
        ];
        let told =
            [(1, Op::Read, 0, Some(9)), (2, Op::Read, 512, Some(8)), (3, Op::Write, 9 * 512, None)];
        assert_eq!(run(&merged), told);
        let split = [
            (Queue, READ, 1, 0, 4096),
            (Complete, READ, 5, 4, 2048),
            (Complete, READ, 9, 0, 2048),
            (Complete, READ, 11, 0, 2048),
        ];
        assert_eq!(run(&split), [(1, Op::Read, 0, Some(8))]);
    }

    #[test]
    fn without_any_q_an_io_arrives_with_d_and_a_q_takes_those_back() {
        let issues = [
            (Issue, READ, 1, 0, 512),
            (Issue, READ, 2, 0, 512),
            (Complete, READ, 5, 0, 512),
            (Issue, FLUSH, 6, 0, 0),
            (Complete, FLUSH, 8, 0, 0),
        ];
        let told = [(1, Op::Read, 0, Some(4)), (6, Op::Flush, 0, Some(2))];
        assert_eq!(run(&issues), told, "the second is a requeued one");
        let begun_before = [
            (Issue, READ, 1, 0, 512),
            (Complete, READ, 5, 0, 512),
            (Queue, READ, 6, 16, 512),
            (Issue, READ, 7, 16, 512),
            (Complete, READ, 8, 16, 512),
        ];
        assert_eq!(run(&begun_before), [(6, Op::Read, 8192, Some(2))]);
    }

    #[test]
    fn a_flush_before_a_write_is_told_with_it_and_has_no_latency() {
        let write = [(Queue, WRITE | FLUSH, 10, 1, 512), (Complete, WRITE | FLUSH, 15, 1, 512)];
        assert_eq!(run(&write), [(10, Op::Flush, 0, None), (10, Op::Write, 512, Some(5))]);
    }

    #[test]
    fn an_io_without_a_completion_makes_no_later_one_long() {
        let steps = [
            (Queue, READ, 1, 0, 512),
            (Queue, READ, 1_000, 0, 512),
            (Complete, READ, 1_001, 0, 512),
            (Queue, READ, 2_000, 0, 512),
            (Complete, READ, 2_003, 0, 512),
        ];
        let latencies: Vec<_> = run(&steps).iter().map(|io| io.3).collect();
        assert_eq!(latencies, [None, Some(1), Some(3)]);
    }

    #[test]
    fn completions_alone_are_no_ios() {
        let mut events = PairedEvents::default();
        feed(&mut events, (Complete, READ, 1, 0, 512));
        assert!(events.spans.has_completions_only() && events.ios.pending.front().is_none());
        feed(&mut events, (Queue, READ, 2, 0, 512));
        assert!(!events.spans.has_completions_only());
    }

    #[test]
    fn an_io_that_never_completes_holds_back_a_bounded_number() {
        let mut events = PairedEvents::default();
        feed(&mut events, (Queue, READ, 0, 0, 512));
        let mut told = 0;
        for number in 1..200_000 {
            feed(&mut events, (Queue, WRITE, number, number, 512));
            feed(&mut events, (Complete, WRITE, number + 1, number, 512));
            while let Some(io) = events.ios.pop(StreamState::ToCome) {
                told += 1;
                assert_eq!(io.latency_ns.is_none(), io.op == Op::Read);
            }
        }
        assert_eq!(told, 199_999 + 1);
        assert!(events.ios.pending.front().is_none());
    }
}
