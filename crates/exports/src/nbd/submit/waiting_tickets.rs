//! Requests (tickets) that wait because the channel is full, or takes no more requests of their
//! group.
//!
//! Each group has a list of its own, so that a throttled or greedy group blocks no other. Groups
//! take turns: a group whose ticket was submitted goes behind the others.

use std::collections::VecDeque;

use millrace_block::GroupId;

/// Result of an attempt to submit a waiting request to the channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OfferResult {
    Submitted,
    /// The channel takes no more requests of this group now, but may take requests of another
    /// group.
    Skipped,
    /// The channel is full, so no group can submit requests.
    Full,
}

#[derive(Debug, Default)]
pub(crate) struct WaitingTickets(VecDeque<(GroupId, VecDeque<u32>)>);

impl WaitingTickets {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn has(&self, group: GroupId) -> bool {
        self.0.iter().any(|(known, _)| *known == group)
    }

    #[cold]
    pub(crate) fn push(&mut self, group: GroupId, id: u32) {
        match self.0.iter_mut().find(|(known, _)| *known == group) {
            Some((_, tickets)) => tickets.push_back(id),
            None => self.0.push_back((group, VecDeque::from([id]))),
        }
    }

    /// Offers the first request of each group to the callback `offer`, in rounds, until a round
    /// submits none or the channel is full. Returns true if any request was submitted.
    #[cold]
    pub(crate) fn submit(&mut self, mut offer: impl FnMut(u32) -> OfferResult) -> bool {
        let mut has_submitted = false;
        // Number of consecutive groups from which no request was submitted.
        let mut refused = 0;
        while refused < self.0.len() {
            let Some((group, mut tickets)) = self.0.pop_front() else { break };
            let answer = tickets.front().map_or(OfferResult::Skipped, |id| offer(*id));
            if answer == OfferResult::Full {
                self.0.push_front((group, tickets));
                break;
            }
            refused = if answer == OfferResult::Submitted { 0 } else { refused + 1 };
            if answer == OfferResult::Submitted {
                tickets.pop_front();
                has_submitted = true;
            }
            if !tickets.is_empty() {
                self.0.push_back((group, tickets));
            }
        }
        has_submitted
    }

    pub(crate) fn retain(&mut self, mut is_kept: impl FnMut(u32) -> bool) {
        self.0.iter_mut().for_each(|(_, tickets)| tickets.retain(|id| is_kept(*id)));
        self.0.retain(|(_, tickets)| !tickets.is_empty());
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().flat_map(|(_, tickets)| tickets.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_their_turns_and_tickets_of_a_group_their_order() {
        let mut held = WaitingTickets::default();
        for (group, id) in [(1, 10), (2, 20), (1, 11), (3, 30), (1, 12)] {
            held.push(GroupId(group), id);
        }
        let mut taken = Vec::new();
        let mut room = 2;
        let mut offer = |id| match (room, id) {
            (0, _) => OfferResult::Full,
            (_, 20) => OfferResult::Skipped,
            _ => {
                room -= 1;
                taken.push(id);
                OfferResult::Submitted
            }
        };
        assert!(held.submit(&mut offer) && !held.submit(&mut offer));
        assert_eq!(taken, [10, 30]);
        held.retain(|id| id != 20);
        assert!(!held.has(GroupId(2)) && held.has(GroupId(1)));
        assert_eq!(held.iter().collect::<Vec<_>>(), [11, 12]);
        assert!(!held.submit(|_| OfferResult::Skipped));
        assert!(held.submit(|_| OfferResult::Submitted) && held.is_empty());
    }
}
