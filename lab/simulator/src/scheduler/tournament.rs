//! `Tournament`: finds the earliest of a few hundred clocks with a few comparisons.
//!
//! The tournament is a complete binary tree of minima over packed keys (time, then position), so
//! that the lower position wins ties. The scheduler keeps one over the CPUs and one over the
//! deadlines of threads. Invariant: every inner node is the minimum of its two children.

use std::vec;
use std::vec::Vec;

const POSITION_BITS: u32 = 12;
pub(crate) const POSITIONS_MAX: usize = 1 << POSITION_BITS;
/// Latest valid time, in picoseconds: 75 minutes. Later times count as never.
pub(crate) const TIME_MAX_PS: u64 = (1 << (64 - POSITION_BITS)) - 2;
const NEVER: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct Tournament {
    nodes: Vec<u64>,
    leaves: usize,
}

/// Packs a time and a clock's position into a number that sorts by time, then by position.
#[inline]
pub(crate) fn key(time_ps: u64, position: usize) -> u64 {
    if time_ps > TIME_MAX_PS { NEVER } else { time_ps << POSITION_BITS | position as u64 }
}

impl Tournament {
    pub(crate) fn new(positions: usize) -> Self {
        let leaves = positions.next_power_of_two().max(2);
        Tournament { nodes: vec![NEVER; 2 * leaves], leaves }
    }

    /// Sets the time of a position; a time later than [`TIME_MAX_PS`] removes the position.
    #[inline]
    pub(crate) fn set(&mut self, position: usize, time_ps: u64) {
        let mut node = self.leaves + position;
        self.nodes[node] = key(time_ps, position);
        while node > 1 {
            let least = self.nodes[node].min(self.nodes[node ^ 1]);
            node >>= 1;
            if self.nodes[node] == least {
                return;
            }
            self.nodes[node] = least;
        }
    }

    /// Returns the smallest key, in the form of [`key`], or `u64::MAX` if no time is set.
    #[inline]
    pub(crate) fn least(&self) -> u64 {
        self.nodes[1]
    }

    #[inline]
    pub(crate) fn first(&self) -> Option<(u64, usize)> {
        let least = self.nodes[1];
        (least != NEVER).then_some((least >> POSITION_BITS, least as usize & (POSITIONS_MAX - 1)))
    }

    pub(crate) fn grow(&mut self, positions: usize) {
        if positions <= self.leaves {
            return;
        }
        let mut grown = Tournament::new(positions);
        for position in 0..self.leaves {
            let key = self.nodes[self.leaves + position];
            if key != NEVER {
                grown.set(position, key >> POSITION_BITS);
            }
        }
        *self = grown;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_is_the_earliest_and_ties_go_to_the_lower_position() {
        let mut tournament = Tournament::new(5);
        assert_eq!(tournament.first(), None);
        for (position, time) in [(4, 30), (1, 20), (3, 20), (0, 40)] {
            tournament.set(position, time);
        }
        assert_eq!(tournament.first(), Some((20, 1)));
        tournament.set(1, u64::MAX);
        assert_eq!(tournament.first(), Some((20, 3)));
        tournament.grow(100);
        tournament.set(77, 10);
        assert_eq!(tournament.first(), Some((10, 77)));
        tournament.set(77, 50);
        assert_eq!(tournament.first(), Some((20, 3)));
    }
}
