//! The contents of a trace ring: words of 16 bytes, and the entries that are decoded from them.
//!
//! Memory bandwidth is the main cost of tracing, so a word stores only what differs from the words
//! before it. The top 4 bits of a word's first half are its kind:
//! - `GROUP`: time, device, tenant and categories of the words that follow.
//! - `STEP`: sectors of one I/O, and a code for one to three events of that I/O.
//! - `FROM`: the sector before a remap, or the sector of the flush that takes in a merged flush.
//! - `DATA`: the driver's data.
//! - `NOTE`: a message that belongs to no I/O (note.rs).
//!
//! `FROM` and `DATA` words come before the `STEP` word that they belong to. Written by
//! `TraceWriter` (tracer.rs), read by [`RingDecoder`].

use alloc::vec::Vec;

use crate::queue::driver::DriverData;
use crate::trace::blktrace::{EventCode, NotifyKind};
use crate::trace::note::TraceNote;

pub(crate) type RingWord = [u64; 2];
/// Maximum number of ring words for one event: one for time and device, one for sectors and event
/// code, and between them the driver's data.
pub(crate) const WORDS_MAX: u64 = 2 + DriverData::BYTES.div_ceil(8) as u64;

/// Mask of the lower 60 bits of a ring word's first half; the upper 4 bits are the word's kind. 60
/// bits suffice for the sectors of 512 EiB, and for 36 years in nanoseconds.
const VALUE: u64 = (1 << KIND_SHIFT) - 1;
const KIND_SHIFT: u32 = 60;
const STEP: u64 = 0;
const GROUP: u64 = 1;
const FROM: u64 = 2;
const DATA: u64 = 3;
const NOTE: u64 = 4;

/// Codes of ring words that stand for several events of one I/O. All of these codes are larger than
/// the kernel's codes of single events ([`EventCode`]).
const QUEUE_GET: u8 = 32;
const REMAP_QUEUE: u8 = 33;
const REMAP_QUEUE_GET: u8 = 34;
const INSERT_ISSUE: u8 = 35;

/// A trace event, decoded from a trace ring.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TraceEntry {
    /// Time of the event in nanoseconds.
    pub time_ns: u64,
    /// First sector of the I/O on the drive; for an unplug, the number of requests.
    pub sector: u64,
    /// For a remap, the first sector on the volume. For a flush that was merged into another flush,
    /// the `sector` field of the other flush's events. Otherwise 0.
    pub from: u64,
    /// Length of the I/O in bytes.
    pub bytes: u32,
    /// The kernel's action word: code and categories.
    pub action: u32,
    /// Tenant that the I/O is accounted to.
    pub tenant: u32,
    /// Device number of the drive.
    pub device: u32,
    /// For a completion, 0 or a negative errno.
    pub error: i32,
    /// The driver's data, for an event that carries it.
    pub data: DriverData,
    /// The message, if the entry is a message. `None` for an event of an I/O.
    pub note: Option<TraceNote>,
}

/// Events of one I/O that a single ring word records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TraceStep {
    One(EventCode),
    /// Completed (C), with a negative errno, or 0 for success.
    Complete(i16),
    QueueGet,
    RemapQueue,
    RemapQueueGet,
    /// Inserted and dispatched (I and D), with the nanoseconds between the two events.
    InsertIssue(u16),
}

impl TraceStep {
    #[inline(always)]
    fn parts(self) -> (u8, u16) {
        match self {
            TraceStep::One(act) => (act as u8, 0),
            TraceStep::Complete(error) => (EventCode::Complete as u8, error as u16),
            TraceStep::QueueGet => (QUEUE_GET, 0),
            TraceStep::RemapQueue => (REMAP_QUEUE, 0),
            TraceStep::RemapQueueGet => (REMAP_QUEUE_GET, 0),
            TraceStep::InsertIssue(before_ns) => (INSERT_ISSUE, before_ns),
        }
    }

    pub(crate) fn events(self) -> u64 {
        match self {
            TraceStep::One(_) | TraceStep::Complete(_) => 1,
            TraceStep::QueueGet | TraceStep::RemapQueue | TraceStep::InsertIssue(_) => 2,
            TraceStep::RemapQueueGet => 3,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct TraceSubject {
    /// Device number, tenant charged for the I/O, and blktrace categories, packed by [`group_of`].
    pub(crate) group: u64,
    /// First sector of the I/O on the drive; for an unplug, the number of requests.
    pub(crate) sector: u64,
    pub(crate) bytes: u32,
}

#[inline(always)]
pub(crate) fn group_of(device: u32, tenant: u16, categories: u16) -> u64 {
    u64::from(device) | u64::from(tenant) << 32 | u64::from(categories) << 48
}

#[inline(always)]
pub(crate) fn group_word(time_ns: u64, group: u64) -> RingWord {
    [GROUP << KIND_SHIFT | time_ns & VALUE, group]
}

#[inline(always)]
pub(crate) fn step_word(of: &TraceSubject, step: TraceStep) -> RingWord {
    let (code, number) = step.parts();
    let what = u64::from(of.bytes) | u64::from(code) << 32 | u64::from(number) << 48;
    const { assert!(STEP == 0, "STEP must be 0: `step_word` leaves the bits of the kind 0") };
    [of.sector & VALUE, what]
}

/// Returns a ring word with a source sector. The words of a remap or of a merged flush follow it.
///
/// - For a remap, `sector` is the sector before the remap.
/// - For a flush merged into another flush, `sector` is the sector in the other flush's events.
#[inline(always)]
pub(crate) fn from_word(sector: u64) -> RingWord {
    [FROM << KIND_SHIFT, sector]
}

pub(crate) fn note_word(note: TraceNote) -> RingWord {
    let (what, time_ns) = note.parts();
    [NOTE << KIND_SHIFT | what & VALUE, time_ns]
}

pub(crate) fn data_words(data: &DriverData) -> impl Iterator<Item = RingWord> + '_ {
    data.bytes().chunks(8).map(|chunk| {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        [DATA << KIND_SHIFT | chunk.len() as u64, u64::from_ne_bytes(bytes)]
    })
}

#[derive(Debug, Default)]
pub(crate) struct RingDecoder {
    /// Dispatch (D) events that are held back until all insert (I) events of their batch are
    /// decoded. A single ring word records both the insert and the dispatch of a request.
    issued: Vec<TraceEntry>,
    time_ns: u64,
    group: u64,
    from: u64,
    data: DriverData,
}

impl RingDecoder {
    pub(crate) fn take(&mut self, word: RingWord, out: &mut Vec<TraceEntry>) {
        let value = word[0] & VALUE;
        let is_issue = word[0] >> KIND_SHIFT == STEP && (word[1] >> 32) as u8 == INSERT_ISSUE;
        if !is_issue && !self.issued.is_empty() {
            self.end(out);
        }
        match word[0] >> KIND_SHIFT {
            GROUP => (self.time_ns, self.group) = (value, word[1]),
            FROM => self.from = word[1],
            DATA => {
                let length = (value as usize).min(8);
                self.data.push(&word[1].to_ne_bytes()[..length]);
            }
            NOTE => out.extend(TraceNote::from_parts(value, word[1]).map(|note| TraceEntry {
                time_ns: self.time_ns,
                action: NotifyKind::Message.action(),
                tenant: (self.group >> 32) as u32 & 0xffff,
                device: self.group as u32,
                note: Some(note),
                ..TraceEntry::default()
            })),
            _ => self.step(value, word[1], out),
        }
    }

    pub(crate) fn end(&mut self, out: &mut Vec<TraceEntry>) {
        out.append(&mut self.issued);
    }

    fn step(&mut self, sector: u64, what: u64, out: &mut Vec<TraceEntry>) {
        let (code, number) = ((what >> 32) as u8, (what >> 48) as u16);
        let from = core::mem::take(&mut self.from);
        let mut put = |act: EventCode, before_ns: u64| {
            let has_from = matches!(act, EventCode::Remap | EventCode::BackMerge);
            out.push(TraceEntry {
                time_ns: self.time_ns - before_ns,
                sector,
                from: if has_from { from } else { 0 },
                bytes: what as u32,
                action: act.with((self.group >> 48) as u16),
                tenant: (self.group >> 32) as u32 & 0xffff,
                device: self.group as u32,
                error: if act == EventCode::Complete { (number as i16).into() } else { 0 },
                data: match act {
                    EventCode::DriverData => core::mem::take(&mut self.data),
                    _ => DriverData::default(),
                },
                note: None,
            });
        };
        let single = EventCode::from_code(code.into());
        let acts = match code {
            QUEUE_GET => &[EventCode::Queue, EventCode::GetRequest][..],
            REMAP_QUEUE => &[EventCode::Remap, EventCode::Queue],
            REMAP_QUEUE_GET => &[EventCode::Remap, EventCode::Queue, EventCode::GetRequest],
            INSERT_ISSUE => &[EventCode::Insert, EventCode::Issue],
            _ => single.as_slice(),
        };
        let is_insert_issue = code == INSERT_ISSUE;
        for act in acts {
            let is_before = is_insert_issue && *act == EventCode::Insert;
            put(*act, if is_before { number.into() } else { 0 });
        }
        if is_insert_issue {
            self.issued.extend(out.pop());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::blktrace::category;
    use alloc::vec;

    fn decoded(words: &[RingWord]) -> Vec<TraceEntry> {
        let (mut decoder, mut out) = (RingDecoder::default(), Vec::new());
        words.iter().for_each(|word| decoder.take(*word, &mut out));
        decoder.end(&mut out);
        out
    }

    fn subject() -> TraceSubject {
        TraceSubject { group: group_of(7, 3, category::WRITE), sector: 40, bytes: 4096 }
    }

    #[test]
    fn a_step_becomes_the_events_that_it_stands_for_in_their_order() {
        let group = group_word(1000, subject().group);
        for (step, acts) in [
            (TraceStep::One(EventCode::Bounce), vec![(EventCode::Bounce, 1000)]),
            (TraceStep::One(EventCode::BackMerge), vec![(EventCode::BackMerge, 1000)]),
            (TraceStep::Complete(-5), vec![(EventCode::Complete, 1000)]),
            (TraceStep::QueueGet, vec![(EventCode::Queue, 1000), (EventCode::GetRequest, 1000)]),
            (TraceStep::RemapQueue, vec![(EventCode::Remap, 1000), (EventCode::Queue, 1000)]),
            (
                TraceStep::RemapQueueGet,
                vec![
                    (EventCode::Remap, 1000),
                    (EventCode::Queue, 1000),
                    (EventCode::GetRequest, 1000),
                ],
            ),
            (TraceStep::InsertIssue(30), vec![(EventCode::Insert, 970), (EventCode::Issue, 1000)]),
        ] {
            let entries = decoded(&[group, from_word(99), step_word(&subject(), step)]);
            assert_eq!(entries.len() as u64, step.events());
            for (entry, (act, time_ns)) in entries.iter().zip(acts) {
                assert_eq!(entry.action, act.with(category::WRITE), "{step:?}");
                let (error, from) = (if act == EventCode::Complete { -5 } else { 0 }, entry.from);
                let has_from = matches!(act, EventCode::Remap | EventCode::BackMerge);
                assert_eq!(from, if has_from { 99 } else { 0 });
                let rest = TraceEntry { from, time_ns, error, action: entry.action, ..entry_of() };
                assert_eq!(*entry, rest, "{step:?}");
            }
        }
    }

    #[test]
    fn a_note_is_an_entry_of_its_own_with_its_device_and_time() {
        use crate::trace::note::TraceMessage;
        let note = TraceNote { remark: TraceMessage::Rests(None), time_ns: u64::MAX };
        let (issue, group) = (step_word(&subject(), TraceStep::InsertIssue(30)), subject().group);
        let words = [group_word(1000, group), issue, note_word(note)];
        assert_eq!(note_word(note), [0x4000_0002_0000_0000, u64::MAX]);
        let entries = decoded(&words);
        assert_eq!(entries.len(), 3);
        let expected = TraceEntry {
            time_ns: 1000,
            action: NotifyKind::Message.action(),
            tenant: 3,
            device: 7,
            note: Some(note),
            ..TraceEntry::default()
        };
        assert_eq!(entries[2], expected);
    }

    #[test]
    fn what_was_inserted_and_issued_together_comes_in_order_of_time() {
        let (issue, group) = (step_word(&subject(), TraceStep::InsertIssue(30)), subject().group);
        let complete = step_word(&subject(), TraceStep::Complete(0));
        let (first, next) = (group_word(1000, group), group_word(1100, group));
        let entries = decoded(&[first, issue, issue, next, issue, complete, issue]);
        let times: Vec<u64> = entries.iter().map(|entry| entry.time_ns).collect();
        assert_eq!(times, [970, 970, 1000, 1000, 1070, 1100, 1100, 1070, 1100]);
    }

    #[test]
    fn words_are_their_kind_and_what_they_say_side_by_side() {
        let group = group_of(0x0810_0001, 0x1234, 0x8002);
        assert_eq!(group, 0x8002_1234_0810_0001);
        assert_eq!(group_word(0xf123, group), [0x1000_0000_0000_f123, group]);
        // A time that is too large is cut off, so that it does not change the word's kind.
        assert_eq!(group_word(u64::MAX, 0), [0x1fff_ffff_ffff_ffff, 0]);
        let of = TraceSubject { group, sector: 0x55, bytes: 0xffff_fe00 };
        assert_eq!(step_word(&of, TraceStep::One(EventCode::Remap)), [0x55, 0x0000_000f_ffff_fe00]);
        assert_eq!(step_word(&of, TraceStep::Complete(-5)), [0x55, 0xfffb_0008_ffff_fe00]);
        assert_eq!(step_word(&of, TraceStep::InsertIssue(7)), [0x55, 0x0007_0023_ffff_fe00]);
        let far = TraceSubject { sector: u64::MAX, ..of };
        assert_eq!(step_word(&far, TraceStep::QueueGet), [u64::MAX >> 4, 0x0000_0020_ffff_fe00]);
        assert_eq!(from_word(9), [0x2000_0000_0000_0000, 9]);
        let longest = DriverData::new(&[1; DriverData::BYTES]);
        let heads: Vec<u64> = data_words(&longest).map(|word| word[0] & 0xff).collect();
        assert_eq!(heads, [8, 8, 3]);
        assert_eq!(heads.len() as u64 + 2, WORDS_MAX);
        assert!(data_words(&longest).all(|word| word[0] >> 4 == 0x0300_0000_0000_0000));
    }

    /// The bits of a tenant's number may equal the code of a step, and a time or a source may have
    /// any bits.
    #[test]
    fn what_words_say_is_never_taken_for_their_kind() {
        let tenant = INSERT_ISSUE.into();
        let of = TraceSubject { group: group_of(7, tenant, category::READ), sector: 8, bytes: 512 };
        let issue = step_word(&of, TraceStep::InsertIssue(10));
        let from = u64::from(INSERT_ISSUE) << 32;
        let entries = decoded(&[
            group_word(100, of.group),
            issue,
            group_word(200, of.group),
            issue,
            from_word(from),
            step_word(&of, TraceStep::RemapQueue),
        ]);
        let seen: Vec<_> = entries.iter().map(|e| (e.action & 0xff, e.time_ns, e.from)).collect();
        let code = |act: EventCode| act as u32;
        assert_eq!(
            seen,
            [
                (code(EventCode::Insert), 90, 0),
                (code(EventCode::Issue), 100, 0),
                (code(EventCode::Insert), 190, 0),
                (code(EventCode::Issue), 200, 0),
                (code(EventCode::Remap), 200, from),
                (code(EventCode::Queue), 200, 0),
            ]
        );
        let whose =
            |e: &TraceEntry| (e.tenant, e.device, e.action >> 16 & u32::from(category::READ));
        assert!(entries.iter().all(|e| whose(e) == (tenant.into(), 7, category::READ.into())));
    }

    #[test]
    fn batches_of_one_time_are_in_order_whenever_they_were_inserted() {
        let issue = |before_ns| step_word(&subject(), TraceStep::InsertIssue(before_ns));
        let entries =
            decoded(&[group_word(1000, subject().group), issue(30), issue(30), issue(20)]);
        let times: Vec<u64> = entries.iter().map(|entry| entry.time_ns).collect();
        assert_eq!(times, [970, 970, 980, 1000, 1000, 1000]);
    }

    fn entry_of() -> TraceEntry {
        TraceEntry { sector: 40, bytes: 4096, tenant: 3, device: 7, ..TraceEntry::default() }
    }

    #[test]
    fn data_of_any_length_arrive_with_their_step_and_only_with_that() {
        for length in 0..=DriverData::BYTES {
            let bytes: Vec<u8> = (1..=length as u8).collect();
            let data = DriverData::new(&bytes);
            let mut words = vec![group_word(5, subject().group)];
            words.extend(data_words(&data));
            words.push(step_word(&subject(), TraceStep::One(EventCode::DriverData)));
            assert!(words.len() as u64 <= WORDS_MAX);
            words.push(step_word(&subject(), TraceStep::One(EventCode::Issue)));
            let entries = decoded(&words);
            assert_eq!((entries[0].data.bytes(), entries[1].data.bytes()), (&bytes[..], &[][..]));
        }
    }
}
