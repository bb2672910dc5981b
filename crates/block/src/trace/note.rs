//! `TraceNote`: what a trace says of groups and schedulers, between the events of I/Os.
//!
//! Two numbers and what they mean, so that noting one allocates nothing; whoever records spells it
//! as text. Owns the codes in a ring's words (entry.rs). Kernel counterpart: `blk_add_trace_msg`,
//! which bfq and blk-throttle call; blkparse shows such a message as `m`.

use core::fmt;

use crate::account::held::Hold;
use crate::bio::group_id::GroupId;

/// What happened, and to whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remark {
    /// An I/O of the group begins to wait: the time for which, as far as it is known.
    Waits(GroupId, Hold),
    /// An I/O of the group goes on: the time for which it has waited.
    GoesOn(GroupId, Hold),
    /// The drive's scheduler names nothing, although I/Os wait in it: the time for which.
    Rests,
}

/// A remark, and the time that it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceNote {
    /// What happened.
    pub remark: Remark,
    /// In nanoseconds.
    pub time_ns: u64,
}

const WAITS: u64 = 0;
const GOES_ON: u64 = 1;
const RESTS: u64 = 2;

impl TraceNote {
    /// As numbers: what it is, in 36 bits, and the time.
    pub(crate) fn parts(self) -> (u64, u64) {
        let what = match self.remark {
            Remark::Waits(group, hold) => WAITS << 32 | (hold as u64) << 16 | u64::from(group.0),
            Remark::GoesOn(group, hold) => GOES_ON << 32 | (hold as u64) << 16 | u64::from(group.0),
            Remark::Rests => RESTS << 32,
        };
        (what, self.time_ns)
    }

    /// The other way round; none if there is no such.
    pub(crate) fn from_parts(what: u64, time_ns: u64) -> Option<TraceNote> {
        let group = GroupId(what as u16);
        let hold = Hold::ALL.get((what >> 16) as usize & 0xffff).copied();
        let remark = match what >> 32 {
            WAITS => Remark::Waits(group, hold?),
            GOES_ON => Remark::GoesOn(group, hold?),
            RESTS => Remark::Rests,
            _ => return None,
        };
        Some(TraceNote { remark, time_ns })
    }

    /// The group that it is about, if it is about one.
    #[must_use]
    pub fn group(&self) -> Option<GroupId> {
        match self.remark {
            Remark::Waits(group, _) | Remark::GoesOn(group, _) => Some(group),
            Remark::Rests => None,
        }
    }

    /// As a line of text, with the name of its group; the number stands for it if there is none.
    ///
    /// # Errors
    /// What writing says.
    pub fn write(&self, out: &mut impl fmt::Write, name: Option<&str>) -> fmt::Result {
        let us = self.time_ns / 1_000;
        if let Some(group) = self.group() {
            match name {
                Some(name) => write!(out, "group {name} ")?,
                None => write!(out, "group {} ", group.0)?,
            }
        }
        match self.remark {
            Remark::Waits(_, hold) => write!(out, "waits {us} us: {}", hold.name()),
            Remark::GoesOn(_, hold) => write!(out, "goes on after {us} us: {}", hold.name()),
            Remark::Rests => write!(out, "scheduler rests {us} us"),
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
        let of = |hold| [Remark::Waits(group, hold), Remark::GoesOn(group, hold)];
        for remark in Hold::ALL.into_iter().flat_map(of).chain([Remark::Rests]) {
            let note = TraceNote { remark, time_ns: u64::MAX };
            let (what, time_ns) = note.parts();
            assert!(what < 1 << 36);
            assert_eq!(TraceNote::from_parts(what, time_ns), Some(note));
        }
        let unknown = [3 << 32, WAITS << 32 | 7 << 16].map(|what| TraceNote::from_parts(what, 0));
        assert_eq!(unknown, [None, None]);
    }

    #[test]
    fn a_note_is_a_line_with_the_name_of_its_group() {
        let text = |remark, name| {
            let mut text = String::new();
            TraceNote { remark, time_ns: 1_234_567 }.write(&mut text, name).unwrap();
            text
        };
        let limit = Remark::Waits(GroupId(3), Hold::Limit);
        assert_eq!(text(limit, Some("gold")), "group gold waits 1234 us: limit");
        assert_eq!(text(limit, None), "group 3 waits 1234 us: limit");
        let on = Remark::GoesOn(GroupId(3), Hold::Weight);
        assert_eq!(text(on, Some("gold")), "group gold goes on after 1234 us: weight");
        assert_eq!(text(Remark::Rests, None), "scheduler rests 1234 us");
    }
}
