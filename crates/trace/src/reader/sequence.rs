//! `SequenceGaps`: counts gaps in the sequence numbers of one CPU's events.
//!
//! The kernel and millrace number an event before they know whether there is room for it. So a
//! number that no event carries belongs to a dropped event. Events may be out of order, as when an
//! interrupt comes between numbering and writing an event. The kernel's notes, such as process
//! names, have no sequence numbers, but millrace's notes have them.

use millrace_block::DROPPED_EVENTS;
use millrace_block::blktrace::category;

use crate::file::TraceRecord;

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SequenceGaps {
    /// Sequence number of the last event, and the difference between this number and the sequence
    /// number of the first event.
    last: Option<(u32, i64)>,
    first: i64,
    highest: i64,
    count: i64,
}

impl SequenceGaps {
    /// Records an event's sequence number. Returns the change in the count of missing numbers,
    /// which is negative if a late event fills a gap.
    pub(super) fn note(&mut self, item: &TraceRecord) -> i64 {
        let number = item.record.sequence;
        let Some((last, at)) = self.last else {
            if !item.record.has(category::NOTIFY) {
                (self.last, self.count) = (Some((number, 0)), 1);
            }
            return 0;
        };
        let step = number.wrapping_sub(last).cast_signed();
        let is_numbered = !item.record.has(category::NOTIFY)
            || step == 1
            || step > 0 && item.data.starts_with(DROPPED_EVENTS.as_bytes());
        if !is_numbered {
            return 0;
        }
        let before = self.missing();
        let at = at + i64::from(step);
        self.last = Some((number, at));
        (self.first, self.highest) = (self.first.min(at), self.highest.max(at));
        self.count += 1;
        self.missing() - before
    }

    fn missing(&self) -> i64 {
        (self.highest - self.first + 1 - self.count).max(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_block::blktrace::{NotifyKind, Record};

    /// Numbers missing after records with these numbers; those with text are messages.
    fn missing(records: &[(u32, &str)]) -> i64 {
        let mut sequence = SequenceGaps::default();
        let item = |(number, text): &(u32, &str)| {
            let action = if text.is_empty() { 1 } else { NotifyKind::Message.action() };
            let record = Record { sequence: *number, action, ..Record::default() };
            TraceRecord { record, data: text.as_bytes().to_vec() }
        };
        records.iter().map(|record| sequence.note(&item(record))).sum()
    }

    #[test]
    fn numbers_that_no_event_has_are_missing_whatever_their_order() {
        let events = |numbers: &[u32]| {
            missing(&numbers.iter().map(|number| (*number, "")).collect::<Vec<_>>())
        };
        assert_eq!(events(&[7, 8, 9]), 0);
        assert_eq!(events(&[7, 9, 8, 10]), 0);
        assert_eq!(events(&[7, 10, 12, 11]), 2);
        assert_eq!(events(&[u32::MAX - 1, 3]), 4);
        assert_eq!(events(&[0, 0, 0]), 0);
        assert_eq!(events(&[]), 0);
    }

    #[test]
    fn notes_of_the_kernel_have_no_number_and_those_of_millrace_do() {
        assert_eq!(missing(&[(900, "cfq"), (1, ""), (77, "cfq"), (0, "cfq"), (2, "")]), 0);
        assert_eq!(missing(&[(1, ""), (2, "millrace drive: d0"), (3, "")]), 0);
        let dropped = format!("{DROPPED_EVENTS}5");
        assert_eq!(missing(&[(1, ""), (7, &dropped), (8, "")]), 5);
    }
}
