//! `Order`: dependencies between a trace's I/Os: the earlier I/Os that each must wait for.
//!
//! Owns the ranges of all I/Os that the engine has admitted and that have not ended. An I/O waits
//! for each earlier I/O that it overlaps, if one of the two changes the range. A flush waits for
//! all earlier I/Os that change data; no I/O waits for a flush. So the data that reads return and
//! that the replay leaves on the target do not depend on the speed of I/Os in flight. The engine
//! calls this file.
//!
//! Invariant: an I/O waits only for earlier I/Os, so that there is no deadlock.

use std::collections::BTreeMap;

/// Length in bytes up to which a range is short. An I/O is compared with the short ranges near its
/// start and with all long ranges, of which there are few.
const SHORT_BYTES: u64 = 128 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Range {
        start: u64,
        /// Offset of the first byte after the range. Larger than `start`.
        end: u64,
        changes: bool,
    },
    Flush,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    No,
    Overlap,
    Writes,
}

/// Byte ranges of admitted I/Os that have not ended. Key: start offset, and the I/O's index in the
/// engine (slot), which makes the key unique. Value: end offset, and true if the I/O changes data.
type Ranges = BTreeMap<(u64, u32), (u64, bool)>;

#[derive(Debug, Default)]
struct Lane {
    short: Ranges,
    long: Ranges,
}

impl Lane {
    fn of_length(&mut self, bytes: u64) -> &mut Ranges {
        if bytes <= SHORT_BYTES { &mut self.short } else { &mut self.long }
    }

    fn conflicts(&self, access: Access, slots: &mut Vec<u32>) {
        match access {
            Access::Flush => {
                let all = self.short.iter().chain(&self.long);
                slots.extend(all.filter(|(_, (_, changed))| *changed).map(|((_, slot), _)| *slot));
            }
            Access::Range { start, end, changes } => {
                let first = (start.saturating_sub(SHORT_BYTES), 0);
                let near = self.short.range(first..(end, 0));
                let all = near.chain(self.long.range(..(end, 0)));
                let meets =
                    |other_end: u64, changed: bool| other_end > start && (changes || changed);
                slots.extend(
                    all.filter(|(_, (other_end, changed))| meets(*other_end, *changed))
                        .map(|((_, slot), _)| *slot),
                );
            }
        }
    }
}

#[derive(Debug, Default)]
struct Links {
    lane: usize,
    access: Option<Access>,
    earlier: u32,
    later: Vec<u32>,
}

#[derive(Debug)]
pub(crate) struct Order {
    lanes: Vec<Lane>,
    links: Vec<Links>,
    found: Vec<u32>,
    ready: Vec<u32>,
}

impl Order {
    pub(crate) fn new(lanes: usize) -> Order {
        let lanes = (0..lanes).map(|_| Lane::default()).collect();
        Order { lanes, links: Vec::new(), found: Vec::new(), ready: Vec::new() }
    }

    /// Adds the next I/O of the trace. Returns whether the I/O must wait for earlier I/Os, and why.
    /// `slot` is the I/O's index in the engine; no other I/O may be using it.
    pub(crate) fn admit(&mut self, slot: u32, lane: u32, access: Access) -> Waits {
        let (at, lane) = (slot as usize, lane as usize);
        if at >= self.links.len() {
            self.links.resize_with(at + 1, Links::default);
        }
        let mut found = std::mem::take(&mut self.found);
        found.clear();
        self.lanes[lane].conflicts(access, &mut found);
        found.iter().for_each(|earlier| self.links[*earlier as usize].later.push(slot));
        let links = &mut self.links[at];
        (links.lane, links.access, links.earlier) = (lane, Some(access), found.len() as u32);
        if let Access::Range { start, end, changes } = access {
            self.lanes[lane].of_length(end - start).insert((start, slot), (end, changes));
        }
        self.found = found;
        match (self.found.is_empty(), access) {
            (true, _) => Waits::No,
            (_, Access::Flush) => Waits::Writes,
            (_, Access::Range { .. }) => Waits::Overlap,
        }
    }

    /// Removes an I/O that has completed. Returns the slots (indexes in the engine) of the I/Os
    /// that now wait for no other I/O.
    pub(crate) fn end(&mut self, slot: u32) -> impl Iterator<Item = u32> {
        let links = &mut self.links[slot as usize];
        let access = links.access.take().expect("only an I/O that `admit` has added can complete");
        if let Access::Range { start, end, .. } = access {
            self.lanes[links.lane].of_length(end - start).remove(&(start, slot));
        }
        let mut later = std::mem::take(&mut self.links[slot as usize].later);
        for other in later.drain(..) {
            let links = &mut self.links[other as usize];
            links.earlier -= 1;
            if links.earlier == 0 {
                self.ready.push(other);
            }
        }
        // Put back the empty list `later` to reuse its memory.
        self.links[slot as usize].later = later;
        self.ready.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(start: u64, len: u64, changes: bool) -> Access {
        Access::Range { start, end: start + len, changes }
    }

    #[test]
    fn reads_of_a_range_pass_each_other_and_wait_for_its_write() {
        let mut order = Order::new(1);
        assert_eq!(order.admit(0, 0, range(0, 8, true)), Waits::No);
        assert_eq!(order.admit(1, 0, range(4, 8, false)), Waits::Overlap);
        assert_eq!(order.admit(2, 0, range(7, 1, false)), Waits::Overlap);
        assert_eq!(order.admit(3, 0, range(8, 4, false)), Waits::No);
        assert_eq!(order.end(0).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn flush_waits_for_writes_before_it_and_nothing_waits_for_it() {
        let mut order = Order::new(2);
        assert_eq!(order.admit(0, 0, range(0, 8, true)), Waits::No);
        assert_eq!(order.admit(1, 0, range(100, 1 << 30, true)), Waits::No);
        assert_eq!(order.admit(2, 1, Access::Flush), Waits::No);
        assert_eq!(order.admit(3, 0, Access::Flush), Waits::Writes);
        assert_eq!(order.admit(4, 0, range(20, 8, true)), Waits::No);
        assert_eq!((order.end(4).count(), order.end(0).count()), (0, 0));
        assert_eq!(order.end(1).collect::<Vec<_>>(), [3]);
    }

    /// Generates an I/O of the model: a range or a flush, in one of two lanes.
    fn access() -> impl Strategy<Value = (u32, Access)> {
        let len = prop_oneof![1..64u64, SHORT_BYTES - 2..SHORT_BYTES + 2, Just(SHORT_BYTES * 3)];
        let start = 0..SHORT_BYTES * 4;
        let ranges = (start, len, any::<bool>()).prop_map(|(s, len, c)| range(s, len, c));
        (0..2u32, prop_oneof![9 => ranges, 1 => Just(Access::Flush)])
    }

    fn conflict(earlier: Access, later: Access) -> bool {
        match (earlier, later) {
            (Access::Range { changes, .. }, Access::Flush) => changes,
            (
                Access::Range { start, end, changes },
                Access::Range { start: from, end: to, changes: also },
            ) => (changes || also) && start < to && from < end,
            _ => false,
        }
    }

    proptest! {
        /// The plain model is a list of all I/Os that have not ended, compared pair by pair.
        #[test]
        fn io_is_ready_just_when_no_earlier_one_that_conflicts_is_left(
            ios in prop::collection::vec((access(), any::<prop::sample::Index>()), 1..80),
        ) {
            let mut order = Order::new(2);
            // I/Os in the order of the trace: slot, lane, access, and whether the I/O may be sent.
            let mut left: Vec<(u32, u32, Access, bool)> = Vec::new();
            let mut free: Vec<u32> = (0..80).collect();
            for ((lane, access), pick) in ios {
                let blocked =
                    left.iter().any(|(_, of, other, _)| *of == lane && conflict(*other, access));
                let slot = free.pop().expect("as many as I/Os");
                let waits = order.admit(slot, lane, access);
                prop_assert_eq!(waits != Waits::No, blocked);
                left.push((slot, lane, access, !blocked));
                let sendable: Vec<u32> =
                    left.iter().filter(|io| io.3).map(|io| io.0).collect();
                if pick.index(3) > 0 && !sendable.is_empty() {
                    let ended = sendable[pick.index(sendable.len())];
                    left.retain(|io| io.0 != ended);
                    free.push(ended);
                    let ready: Vec<u32> = order.end(ended).collect();
                    for at in 0..left.len() {
                        let (slot, lane, access, was) = left[at];
                        let blocked = left[..at]
                            .iter()
                            .any(|(_, of, other, _)| *of == lane && conflict(*other, access));
                        prop_assert_eq!(ready.contains(&slot), !was && !blocked);
                        left[at].3 = !blocked;
                    }
                }
            }
        }
    }
}
