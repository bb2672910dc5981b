//! `Trail`: the choices of one execution, and the step to the next execution.
//!
//! A session owns the trail and queries it wherever an execution may continue in several ways. The
//! search is depth first. The next execution finds the last choice with an untried alternative,
//! takes that alternative, and repeats all choices before it. In random mode every choice is drawn
//! from a seed. A trail is written as a short string that replays exactly one execution. Invariant:
//! a model that gets the same choices makes the same queries; otherwise it is reported as not
//! deterministic.

use std::format;
use std::string::String;
use std::vec::Vec;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChoiceMode {
    DepthFirst,
    /// Makes all choices at random. The field is the state of the random number generator.
    Random(u64),
    /// Repeats the given choices, then takes the first alternative of each further choice.
    Replay,
}

#[derive(Debug, Clone, Copy)]
struct ChoiceStep {
    chosen: u16,
    /// Number of alternatives in this step; 0 in a trail decoded from a string, which has only the
    /// choices.
    of: u16,
}

#[derive(Debug)]
pub(super) struct Trail {
    steps: Vec<ChoiceStep>,
    at: usize,
    mode: ChoiceMode,
    /// True if the number of alternatives of a choice differed between two executions.
    pub(super) diverged: bool,
}

impl Trail {
    pub(super) fn new(mode: ChoiceMode) -> Trail {
        Trail { steps: Vec::with_capacity(64), at: 0, mode, diverged: false }
    }

    /// Chooses an alternative and returns its number, from 0 to `of - 1`. `of` is the number of
    /// alternatives, at least 2. Alternative 0 is the default.
    #[inline]
    pub(super) fn choose(&mut self, of: usize) -> usize {
        let place = self.at;
        self.at += 1;
        if let Some(step) = self.steps.get(place) {
            self.diverged |= step.of != 0 && usize::from(step.of) != of;
            return usize::from(step.chosen).min(of - 1);
        }
        let chosen = match &mut self.mode {
            ChoiceMode::Random(state) => (draw(state) % of as u64) as usize,
            ChoiceMode::DepthFirst | ChoiceMode::Replay => 0,
        };
        self.steps.push(ChoiceStep { chosen: chosen as u16, of: of as u16 });
        chosen
    }

    pub(super) fn rewind(&mut self) {
        (self.at, self.diverged) = (0, false);
    }

    pub(super) fn advance(&mut self) -> bool {
        self.steps.truncate(self.at);
        self.at = 0;
        if self.mode != ChoiceMode::DepthFirst {
            self.steps.clear();
            return self.mode != ChoiceMode::Replay;
        }
        while let Some(last) = self.steps.last_mut() {
            if last.chosen + 1 < last.of {
                last.chosen += 1;
                return true;
            }
            self.steps.pop();
        }
        false
    }

    /// Encodes the choices as a string:
    /// - A choice from 0 to 35 is a digit or a letter, `0` to `z`.
    /// - A larger choice is a number in parentheses, such as `(40)`.
    /// - A run of four or more zeros is its length between underscores, such as `_12_`.
    /// - Zeros at the end are left out.
    pub(super) fn encode(&self) -> String {
        let steps = &self.steps[..self.at.min(self.steps.len())];
        let len = steps.iter().rposition(|step| step.chosen != 0).map_or(0, |last| last + 1);
        let (mut text, mut zeros) = (String::new(), 0);
        for step in &steps[..len] {
            if step.chosen == 0 {
                zeros += 1;
                continue;
            }
            push_zeros(&mut text, zeros);
            zeros = 0;
            match char::from_digit(step.chosen.into(), 36) {
                Some(digit) => text.push(digit),
                None => text.push_str(&format!("({})", step.chosen)),
            }
        }
        text
    }

    /// Decodes a string written by [`Trail::encode`]. Invalid parts count as 0.
    pub(super) fn decode(text: &str) -> Trail {
        let mut trail = Trail::new(ChoiceMode::Replay);
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            rest = &rest[first.len_utf8()..];
            let end = match first {
                '_' => '_',
                '(' => ')',
                digit => {
                    trail.push_replayed(digit.to_digit(36).unwrap_or(0), 1);
                    continue;
                }
            };
            let (number, after) = rest.split_once(end).unwrap_or((rest, ""));
            let number: u32 = number.parse().unwrap_or(0);
            rest = after;
            match first {
                '_' => trail.push_replayed(0, number as usize),
                _ => trail.push_replayed(number, 1),
            }
        }
        trail
    }

    fn push_replayed(&mut self, chosen: u32, times: usize) {
        let step = ChoiceStep { chosen: chosen as u16, of: 0 };
        self.steps.extend(core::iter::repeat_n(step, times.min(1 << 20)));
    }
}

fn push_zeros(text: &mut String, zeros: usize) {
    match zeros {
        0..4 => (0..zeros).for_each(|_| text.push('0')),
        many => text.push_str(&format!("_{many}_")),
    }
}

/// Random generator xorshift64*: Vigna, "An experimental exploration of Marsaglia's xorshift
/// generators", 2016.
fn draw(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_first_visits_every_trail_once() {
        let mut trail = Trail::new(ChoiceMode::DepthFirst);
        let mut seen = Vec::new();
        loop {
            let first = trail.choose(2);
            let second = if first == 0 { trail.choose(3) } else { 0 };
            seen.push((first, second));
            if !trail.advance() {
                break;
            }
        }
        assert_eq!(seen, [(0, 0), (0, 1), (0, 2), (1, 0)]);
    }

    #[test]
    fn string_of_a_trail_replays_it() {
        let mut trail = Trail::new(ChoiceMode::Replay);
        let choices = [1, 0, 0, 3, 0, 0, 0, 0, 0, 40, 0, 0];
        choices.iter().for_each(|c| trail.push_replayed(*c, 1));
        trail.at = choices.len();
        assert_eq!(trail.encode(), "1003_5_(40)");
        let mut again = Trail::decode(&trail.encode());
        let read: Vec<u32> = choices.iter().map(|_| again.choose(64) as u32).collect();
        assert_eq!(read, choices);
    }
}
