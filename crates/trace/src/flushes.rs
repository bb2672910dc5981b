//! `FlushTracker`: pairs the events of each flush of a device, from queueing to completion.
//!
//! A flush has no sectors that identify it. The sector field of its events depends on the
//! recording:
//! - In millrace's recordings, the sector field holds the time at which the flush was queued. If a
//!   flush is merged into another, the data of the merge event (M) hold the sector field of the
//!   other flush.
//! - In other recordings, the sector field is 0, and events are paired by their order. An issued
//!   request (D) carries the oldest flush, and one more flush for each merge (M) since the previous
//!   D. The completion (C) of the request completes all these flushes. If there are two D without a
//!   C between them, the C of the first request was lost.

use std::collections::VecDeque;

use millrace_block::blktrace::{EventCode, Record, decode_number};

/// Maximum number of flushes in flight to track for a device; beyond it, the oldest is forgotten.
const FLUSHES_MAX: usize = 4_096;

#[derive(Debug, Clone, Copy)]
struct FlushInFlight {
    number: u64,
    /// Sector field of the completion that completes this flush. At first, the sector field of this
    /// flush itself. After a merge, the sector field of the flush that it was merged into.
    leader: u64,
}

#[derive(Debug, Default)]
pub(super) struct FlushTracker {
    waiting: VecDeque<FlushInFlight>,
    /// True if the trace has shown a queue event (Q) of a flush. If the trace has no queue events,
    /// a flush begins with its issue event (D).
    is_queued: bool,
    /// Number of flushes at the front of `waiting` that the issued flush request will complete.
    /// Counts only flushes whose sector field is 0.
    issued: usize,
    /// Number of flushes that were merged since the last issue event (D). Counts only flushes whose
    /// sector field is 0.
    joined: usize,
}

impl FlushTracker {
    /// Processes one event. `arrived` returns a number for a new flush. `done` is called with the
    /// number of each completed flush.
    pub(super) fn event(
        &mut self,
        record: &Record,
        data: &[u8],
        arrived: impl FnOnce() -> u64,
        done: impl FnMut(u64),
    ) {
        let Some(act) = record.act() else { return };
        match act {
            EventCode::Queue => {
                self.is_queued = true;
                self.begin(record.sector, arrived());
            }
            EventCode::BackMerge | EventCode::FrontMerge => self.join(record.sector, data),
            EventCode::Issue => {
                let is_known = !self.waiting.is_empty();
                if !self.is_queued && !is_known {
                    self.begin(record.sector, arrived());
                }
                if record.sector == 0 {
                    self.waiting.drain(..self.issued.min(self.waiting.len()));
                    self.issued = 1 + std::mem::take(&mut self.joined);
                }
            }
            EventCode::Complete => self.complete(record.sector, done),
            _ => {}
        }
    }

    fn begin(&mut self, leader: u64, number: u64) {
        if self.waiting.len() == FLUSHES_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back(FlushInFlight { number, leader });
    }

    fn join(&mut self, sector: u64, data: &[u8]) {
        match decode_number(data).filter(|_| sector != 0) {
            None => self.joined += 1,
            Some(other) => {
                let followers = self.waiting.iter_mut().filter(|flush| flush.leader == sector);
                followers.for_each(|flush| flush.leader = other);
            }
        }
    }

    fn complete(&mut self, sector: u64, mut done: impl FnMut(u64)) {
        if sector == 0 {
            let count = std::mem::take(&mut self.issued).max(1).min(self.waiting.len());
            self.waiting.drain(..count).for_each(|flush| done(flush.number));
            return;
        }
        self.waiting.retain(|flush| {
            let is_done = flush.leader == sector;
            if is_done {
                done(flush.number);
            }
            !is_done
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_block::blktrace::encode_number;

    /// Numbers of flushes in the order of their completion, each with the event that completes it.
    /// Events are (act, sector, the flush that is joined).
    fn completed(events: &[(EventCode, u64, u64)]) -> Vec<(u64, usize)> {
        let (mut flushes, mut next, mut all) = (FlushTracker::default(), 0, Vec::new());
        for (place, (act, sector, other)) in events.iter().enumerate() {
            let record = Record { sector: *sector, action: act.with(0), ..Record::default() };
            let data = if *other == 0 { Vec::new() } else { encode_number(*other).to_vec() };
            let arrived = || {
                next += 1;
                next
            };
            flushes.event(&record, &data, arrived, |number| all.push((number, place)));
        }
        all
    }

    use EventCode::{BackMerge, Complete, Issue, Queue};

    #[test]
    fn joined_flushes_end_with_another_that_joins_a_third() {
        let events = [
            (Queue, 10, 0),
            (Issue, 10, 0),
            (Queue, 20, 0),
            (Queue, 30, 0),
            (Queue, 40, 0),
            (Complete, 10, 0),
            (BackMerge, 30, 20),
            (BackMerge, 20, 40),
            (Issue, 40, 0),
            (Complete, 40, 0),
        ];
        assert_eq!(completed(&events), [(1, 5), (2, 9), (3, 9), (4, 9)]);
    }

    #[test]
    fn a_lost_completion_shifts_no_later_one() {
        let named: Vec<_> = [10, 20, 30]
            .into_iter()
            .flat_map(|at| [(Queue, at, 0), (Issue, at, 0), (Complete, at, 0)])
            .collect();
        let lost = |events: &[(EventCode, u64, u64)]| -> Vec<_> {
            events.iter().enumerate().filter(|(at, _)| *at != 2).map(|(_, event)| *event).collect()
        };
        assert_eq!(completed(&lost(&named)), [(2, 4), (3, 7)]);
        let nameless: Vec<_> = named.iter().map(|(act, ..)| (*act, 0, 0)).collect();
        assert_eq!(completed(&lost(&nameless)), [(2, 4), (3, 7)]);
    }

    #[test]
    fn request_without_sectors_is_of_the_oldest_and_its_joiners() {
        let acts = [Queue, Issue, Queue, Queue, Complete, BackMerge, Issue, Queue, Complete];
        let events = acts.map(|act| (act, 0, 0));
        assert_eq!(completed(&events), [(1, 4), (2, 8), (3, 8)]);
        assert_eq!(completed(&[(Issue, 0, 0), (Complete, 0, 0)]), [(1, 1)], "none was queued");
        assert_eq!(completed(&[(Complete, 0, 0), (Queue, 0, 0), (Complete, 0, 0)]), [(1, 2)]);
    }

    #[test]
    fn flushes_that_are_never_done_are_bounded() {
        let events: Vec<_> =
            (1..=10_000).map(|at| (Queue, at, 0)).chain([(Complete, 1, 0)]).collect();
        assert_eq!(completed(&events), []);
    }
}
