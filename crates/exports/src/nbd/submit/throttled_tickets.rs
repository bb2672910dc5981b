//! Waiting requests (tickets) of I/O groups from which the channel accepts no bios at present.
//!
//! Each group has a list of its own, so that a throttled group blocks no other. Groups take turns:
//! a group whose ticket was submitted goes behind the others.

use std::collections::VecDeque;

use millrace_block::GroupId;

#[derive(Debug, Default)]
pub(crate) struct ThrottledTickets(VecDeque<(GroupId, VecDeque<u32>)>);

impl ThrottledTickets {
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

    /// Offers the first request of each group to the callback `take`, in rounds, until `take`
    /// accepts no request in a round. Returns true if any request was accepted. Groups whose
    /// request was accepted go behind the others.
    #[cold]
    pub(crate) fn offer(&mut self, mut take: impl FnMut(u32) -> bool) -> bool {
        let mut has_taken = false;
        loop {
            let mut served = VecDeque::new();
            for _ in 0..self.0.len() {
                let Some((group, mut tickets)) = self.0.pop_front() else { break };
                let is_taken = tickets.front().is_some_and(|id| take(*id));
                if is_taken {
                    tickets.pop_front();
                }
                let place = if is_taken { &mut served } else { &mut self.0 };
                if !tickets.is_empty() {
                    place.push_back((group, tickets));
                }
                has_taken |= is_taken;
            }
            if served.is_empty() {
                return has_taken;
            }
            self.0.append(&mut served);
        }
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
        let mut held = ThrottledTickets::default();
        for (group, id) in [(1, 10), (2, 20), (1, 11), (3, 30), (1, 12)] {
            held.push(GroupId(group), id);
        }
        let mut taken = Vec::new();
        let mut room = 2;
        let mut take = |id| {
            let has_room = room > 0 && id != 20;
            if has_room {
                room -= 1;
                taken.push(id);
            }
            has_room
        };
        assert!(held.offer(&mut take) && !held.offer(&mut take));
        assert_eq!(taken, [10, 30]);
        held.retain(|id| id != 20);
        assert!(!held.has(GroupId(2)) && held.has(GroupId(1)));
        assert_eq!(held.iter().collect::<Vec<_>>(), [11, 12]);
        assert!(held.offer(|_| true) && held.is_empty());
    }
}
