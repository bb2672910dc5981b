//! `TraceNote`: a trace message about groups and schedulers, between the events of I/Os.
//!
//! A note is two numbers and their meaning, so recording one allocates no memory; the recorder
//! formats the text. Kernel counterpart: `blk_add_trace_msg`; blkparse shows such messages as `m`.

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;

use crate::account::hold::WaitReason;
use crate::bio::group_id::GroupId;

/// The content of a trace message, with the group that it concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceMessage {
    /// An I/O of the group starts to wait. [`TraceNote::time_ns`] is the expected length of the
    /// wait; 0 if unknown.
    Waits(GroupId, WaitReason),
    /// An I/O of the group has waited and now continues. [`TraceNote::time_ns`] is the time that
    /// the I/O has waited.
    GoesOn(GroupId, WaitReason),
    /// The drive's scheduler pauses although I/Os wait in it. [`TraceNote::time_ns`] is the length
    /// of the pause. Group and wait reason are given if the scheduler reports them.
    Rests(Option<(GroupId, WaitReason)>),
    /// The drive's scheduler starts to hold back I/Os of the group in a hardware queue. The last
    /// field is the limit of the queue's requests in flight; `u32::MAX` means no limit.
    Held(GroupId, WaitReason, u32),
    /// New limits on a hardware queue's requests in flight: queue number, then limits for reads and
    /// for other requests, equal if one limit is for both. `u32::MAX` means no limit.
    Depth(u16, [u32; 2]),
    /// Number of events that are missing before this note, because the thread's ring was full.
    Dropped(u32),
}

/// A trace message, and the length of the wait or pause that the message is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceNote {
    /// Content of the message.
    pub remark: TraceMessage,
    /// Time span in nanoseconds; 0 if the message reports none.
    pub time_ns: u64,
}

/// Start of the text of [`TraceMessage::Dropped`]; the number of events follows.
pub const DROPPED_EVENTS: &str = "millrace dropped events here: ";

const WAITS: u64 = 0;
const GOES_ON: u64 = 1;
const RESTS: u64 = 2;
const RESTS_FOR: u64 = 3;
const HELD: u64 = 4;
const DEPTH: u64 = 5;
const DROPPED: u64 = 6;

impl TraceNote {
    /// Encodes a trace message as two numbers. The first holds the message's kind, wait reason and
    /// group in 36 bits. The second holds the message's time span, depth limit or number of events.
    pub(crate) fn parts(self) -> (u64, u64) {
        let of = self.subject().map_or(0, |(group, hold)| (hold as u64) << 16 | u64::from(group.0));
        let (code, number) = match self.remark {
            TraceMessage::Waits(..) => (WAITS, self.time_ns),
            TraceMessage::GoesOn(..) => (GOES_ON, self.time_ns),
            TraceMessage::Rests(None) => (RESTS, self.time_ns),
            TraceMessage::Rests(Some(_)) => (RESTS_FOR, self.time_ns),
            TraceMessage::Held(_, _, depth) => (HELD, depth.into()),
            TraceMessage::Depth(hctx, [reads, others]) => {
                let depths = u64::from(others) << 32 | u64::from(reads);
                return (DEPTH << 32 | u64::from(hctx), depths);
            }
            TraceMessage::Dropped(events) => (DROPPED, events.into()),
        };
        (code << 32 | of, number)
    }

    pub(crate) fn from_parts(what: u64, number: u64) -> Option<TraceNote> {
        let group = GroupId(what as u16);
        let hold = WaitReason::ALL.get((what >> 16) as usize & 0xffff).copied();
        let remark = match what >> 32 {
            WAITS => TraceMessage::Waits(group, hold?),
            GOES_ON => TraceMessage::GoesOn(group, hold?),
            RESTS => TraceMessage::Rests(None),
            RESTS_FOR => TraceMessage::Rests(Some((group, hold?))),
            HELD => TraceMessage::Held(group, hold?, number as u32),
            DEPTH => TraceMessage::Depth(what as u16, [number as u32, (number >> 32) as u32]),
            DROPPED => TraceMessage::Dropped(number as u32),
            _ => return None,
        };
        let is_timed = !matches!(
            remark,
            TraceMessage::Held(..) | TraceMessage::Depth(..) | TraceMessage::Dropped(_)
        );
        Some(TraceNote { remark, time_ns: if is_timed { number } else { 0 } })
    }

    fn subject(&self) -> Option<(GroupId, WaitReason)> {
        match self.remark {
            TraceMessage::Waits(group, hold)
            | TraceMessage::GoesOn(group, hold)
            | TraceMessage::Held(group, hold, _) => Some((group, hold)),
            TraceMessage::Rests(of) => of,
            TraceMessage::Depth(..) | TraceMessage::Dropped(_) => None,
        }
    }

    /// Returns the group that the message concerns, if any.
    #[must_use]
    pub fn group(&self) -> Option<GroupId> {
        self.subject().map(|(group, _)| group)
    }

    /// Writes the message as text, with the group's name if given, else with its number.
    ///
    /// # Errors
    /// Returns the error of the writer.
    pub fn write(&self, out: &mut impl fmt::Write, name: Option<&str>) -> fmt::Result {
        let us = self.time_ns / 1_000;
        let group = match (name, self.group()) {
            (Some(name), _) => format!("group {name}"),
            (None, Some(group)) => format!("group {}", group.0),
            (None, None) => String::from("no group"),
        };
        let hold = self.subject().map_or("", |(_, hold)| hold.name());
        let text_of = |depth: u32| match depth {
            u32::MAX => String::from("without bound"),
            depth => depth.to_string(),
        };
        match self.remark {
            TraceMessage::Waits(..) => write!(out, "{group} waits {us} us: {hold}"),
            TraceMessage::GoesOn(..) => write!(out, "{group} waited {us} us: {hold}"),
            TraceMessage::Dropped(events) => write!(out, "{DROPPED_EVENTS}{events}"),
            TraceMessage::Rests(None) => write!(out, "scheduler dispatches nothing for {us} us"),
            TraceMessage::Rests(Some(_)) => {
                write!(out, "scheduler dispatches nothing for {us} us: holds {group} ({hold})")
            }
            TraceMessage::Held(_, _, u32::MAX) => write!(out, "{group} held: {hold}"),
            TraceMessage::Held(_, _, depth) => write!(out, "{group} held: {hold} (depth {depth})"),
            TraceMessage::Depth(hctx, [reads, others]) if reads == others => {
                write!(out, "scheduler depth {} (queue {hctx})", text_of(reads))
            }
            TraceMessage::Depth(hctx, depths) => {
                let [reads, others] = depths.map(text_of);
                write!(out, "scheduler depth {reads} for reads, {others} for writes (queue {hctx})")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;

    #[test]
    fn numbers_lead_back_to_each_note() {
        let group = GroupId(u16::MAX);
        let of = |hold| {
            [
                TraceMessage::Waits(group, hold),
                TraceMessage::GoesOn(group, hold),
                TraceMessage::Rests(Some((group, hold))),
                TraceMessage::Held(group, hold, u32::MAX),
            ]
        };
        let depth = TraceMessage::Depth(u16::MAX, [u32::MAX, 1]);
        let rest = [TraceMessage::Rests(None), depth, TraceMessage::Dropped(u32::MAX)];
        for remark in WaitReason::ALL.into_iter().flat_map(of).chain(rest) {
            let is_timed = !matches!(
                remark,
                TraceMessage::Held(..) | TraceMessage::Depth(..) | TraceMessage::Dropped(_)
            );
            let note = TraceNote { remark, time_ns: if is_timed { u64::MAX } else { 0 } };
            let (what, time_ns) = note.parts();
            assert!(what < 1 << 36);
            assert_eq!(TraceNote::from_parts(what, time_ns), Some(note));
        }
        let unknown = [7 << 32, WAITS << 32 | 9 << 16].map(|what| TraceNote::from_parts(what, 0));
        assert_eq!(unknown, [None, None]);
    }

    #[test]
    fn a_note_is_a_line_with_the_name_of_its_group() {
        let text = |remark, name| {
            let mut text = String::new();
            TraceNote { remark, time_ns: 1_234_567 }.write(&mut text, name).unwrap();
            text
        };
        let limit = TraceMessage::Waits(GroupId(3), WaitReason::Limit);
        assert_eq!(text(limit, Some("gold")), "group gold waits 1234 us: limit");
        assert_eq!(text(limit, None), "group 3 waits 1234 us: limit");
        let on = TraceMessage::GoesOn(GroupId(3), WaitReason::Weight);
        assert_eq!(text(on, Some("gold")), "group gold waited 1234 us: weight");
        assert_eq!(
            text(TraceMessage::Rests(None), None),
            "scheduler dispatches nothing for 1234 us"
        );
        let rests = TraceMessage::Rests(Some((GroupId(3), WaitReason::Weight)));
        assert_eq!(
            text(rests, Some("gold")),
            "scheduler dispatches nothing for 1234 us: holds group gold (weight)"
        );
        let held = |depth| TraceMessage::Held(GroupId(3), WaitReason::LatencyTarget, depth);
        assert_eq!(text(held(4), Some("gold")), "group gold held: latency-target (depth 4)");
        assert_eq!(text(held(u32::MAX), Some("gold")), "group gold held: latency-target");
        assert_eq!(text(TraceMessage::Depth(1, [24, 24]), None), "scheduler depth 24 (queue 1)");
        let apart = "scheduler depth without bound for reads, 4 for writes (queue 0)";
        assert_eq!(text(TraceMessage::Depth(0, [u32::MAX, 4]), None), apart);
    }
}
