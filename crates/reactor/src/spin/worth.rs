//! Whether spinning is worth its processor time: measured, not assumed.
//!
//! Where a client waits for each answer, a spin saves the wake-ups and more is done in the same
//! time. Where the client always has more to send, it is the client that takes the time, and a spin
//! only burns a CPU. Nobody can tell from the waits, which are short in both. So some windows of
//! time are spun and some slept in turn, and spins go on if more bytes were moved in theirs.
//!
//! Rules: a window is so long and has so many waits that one of them decides nothing, and one with
//! a long wait does not count, since somebody paused there; bytes are counted, not completions,
//! since whoever sleeps finds more of them at once; windows stand in pairs, and spins must win most
//! of these, too, since on busy CPUs a window is as good as its luck; the choice is made again
//! after a while, and soon once a window moves twice as much or half as much as when it was made.

/// Shortest window, in nanoseconds, and fewest waits in it.
const WINDOW_NS: u64 = 2_000_000;
const WINDOW_WAITS: u32 = 32;
/// Windows of a trial, in pairs of one with spins and one without.
const TRIAL: u32 = 12;
/// Pairs that spins must win: if there were none before, and if there were.
const WINS: [u32; 2] = [5, 4];
/// Windows from one trial to the next, and once the load has changed.
const HOLD: u32 = 256;
const HOLD_CHANGED: u32 = 16;
/// Spins must move at least this much more, as a fraction: an eighth.
const MORE: [u128; 2] = [9, 8];

/// Bytes that were moved, and in what time.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    bytes: u64,
    ns: u64,
}

impl Rate {
    fn add(&mut self, other: Rate) {
        self.bytes += other.bytes;
        self.ns += other.ns;
    }

    /// Whether this is at least `times[0]` to `times[1]` of `other`.
    fn is_at_least(self, times: [u128; 2], other: Rate) -> bool {
        let cross = |one: Rate, ns: u64| u128::from(one.bytes) * u128::from(ns);
        cross(self, other.ns) * times[1] >= cross(other, self.ns) * times[0]
    }
}

/// The window under way.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    start_ns: u64,
    /// All bytes ever moved, at its start.
    start_bytes: u64,
    waits: u32,
}

/// What spins have been worth, and what follows from that.
#[derive(Clone, Copy, Debug)]
pub(super) struct Worth {
    spins: bool,
    window: Window,
    /// Windows of the trial that are over; [`TRIAL`] when none is under way.
    trial: u32,
    /// What was moved in the trial's windows: without spins, with them.
    found: [Rate; 2],
    /// The window with spins of the pair under way, and pairs that spins won.
    spun: Rate,
    wins: u32,
    /// What was chosen last.
    chosen: bool,
    /// Windows until the next trial.
    hold: u32,
}

impl Worth {
    /// Begins with a trial.
    pub(super) fn new() -> Worth {
        Worth {
            spins: true,
            window: Window::default(),
            trial: 0,
            found: [Rate::default(); 2],
            spun: Rate::default(),
            wins: 0,
            chosen: false,
            hold: 0,
        }
    }

    /// Whether waits may begin with a spin now.
    pub(super) fn spins(&self) -> bool {
        self.spins
    }

    /// A wait ended that was as short as those that are spun for, when all in all so many bytes had
    /// been moved.
    pub(super) fn waited(&mut self, now_ns: u64, bytes: u64) {
        self.window.waits += 1;
        let ns = now_ns.saturating_sub(self.window.start_ns);
        if ns >= WINDOW_NS && self.window.waits >= WINDOW_WAITS {
            let bytes_of_window = bytes.wrapping_sub(self.window.start_bytes);
            self.paused(now_ns, bytes);
            self.measured(Rate { bytes: bytes_of_window, ns });
        }
    }

    /// A long wait ended: another window begins.
    pub(super) fn paused(&mut self, now_ns: u64, bytes: u64) {
        self.window = Window { start_ns: now_ns, start_bytes: bytes, waits: 0 };
    }

    /// A window is over.
    fn measured(&mut self, rate: Rate) {
        if self.trial < TRIAL {
            self.found[usize::from(self.spins)].add(rate);
            if self.spins {
                self.spun = rate;
            } else {
                self.wins += u32::from(self.spun.is_at_least(MORE, rate));
            }
            self.spins = !self.spins;
            self.trial += 1;
            if self.trial == TRIAL {
                self.chosen = self.wins >= WINS[usize::from(self.chosen)]
                    && self.found[1].is_at_least(MORE, self.found[0]);
                (self.spins, self.hold) = (self.chosen, HOLD);
            }
            return;
        }
        let chosen = self.found[usize::from(self.spins)];
        if rate.is_at_least([2, 1], chosen) || chosen.is_at_least([2, 1], rate) {
            self.hold = self.hold.min(HOLD_CHANGED);
        }
        self.hold -= 1;
        if self.hold == 0 {
            *self = Worth { window: self.window, chosen: self.chosen, ..Worth::new() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that waits without a pause.
    struct Load {
        worth: Worth,
        now_ns: u64,
        bytes: u64,
    }

    impl Load {
        fn new() -> Load {
            Load { worth: Worth::new(), now_ns: 0, bytes: 0 }
        }

        /// Waits for so many windows, 40 times in each; how many windows were spun. A wait moves
        /// `moved[1]` bytes if it is spun for, else `moved[0]`.
        fn run(&mut self, windows: u32, moved: [u64; 2]) -> u32 {
            let mut spun = 0;
            for _ in 0..windows {
                let spins = self.worth.spins();
                spun += u32::from(spins);
                for _ in 0..40 {
                    self.now_ns += WINDOW_NS / 40;
                    self.bytes += moved[usize::from(spins)];
                    self.worth.waited(self.now_ns, self.bytes);
                }
            }
            spun
        }
    }

    #[test]
    fn spins_go_on_only_where_they_move_an_eighth_more() {
        for (moved, spun) in [([80, 100], 106), ([100, 113], 106), ([100, 112], 6), ([100, 60], 6)]
        {
            assert_eq!(Load::new().run(112, moved), spun, "{moved:?}");
        }
    }

    #[test]
    fn the_choice_is_made_again_after_a_while_and_soon_when_the_load_has_changed() {
        let mut load = Load::new();
        assert_eq!(load.run(TRIAL + HOLD, [100, 100]), TRIAL / 2);
        assert_eq!(load.run(TRIAL, [100, 100]), TRIAL / 2, "another trial");
        assert_eq!(load.run(HOLD - 1, [100, 100]), 0);
        let mut load = Load::new();
        load.run(TRIAL + 10, [100, 100]);
        // One that waits for each answer took the place of one that does not.
        assert_eq!(load.run(HOLD_CHANGED, [10, 20]), 0);
        assert_eq!(load.run(TRIAL + 100, [10, 20]), TRIAL / 2 + 100);
    }

    #[test]
    fn one_lucky_window_decides_nothing() {
        let mut load = Load::new();
        load.run(1, [100, 1000]);
        load.run(TRIAL - 1, [100, 100]);
        assert!(!load.worth.spins(), "spins won one pair");
        for (lost, spins) in [(1, true), (2, false)] {
            let mut load = Load::new();
            load.run(2 * lost, [100, 90]);
            load.run(TRIAL - 2 * lost, [100, 200]);
            assert_eq!(load.worth.spins(), spins, "spins lost {lost} of {} pairs", TRIAL / 2);
        }
        // Those that spin already go on then.
        let mut load = Load::new();
        load.run(TRIAL + HOLD, [100, 200]);
        load.run(4, [100, 190]);
        load.run(4, [180, 180]);
        load.run(4, [100, 190]);
        assert!(load.worth.spins());
    }

    #[test]
    fn a_window_with_a_long_wait_does_not_count() {
        let mut load = Load::new();
        for _ in 0..100 {
            load.worth.waited(load.now_ns, load.bytes);
            load.now_ns += 50 * WINDOW_NS;
            load.worth.paused(load.now_ns, load.bytes);
        }
        assert_eq!((load.worth.trial, load.worth.spins()), (0, true));
        assert_eq!(load.run(TRIAL, [100, 100]), TRIAL / 2);
        assert!(!load.worth.spins());
    }

    #[test]
    fn few_waits_are_no_window() {
        let mut worth = Worth::new();
        for at in 1..u64::from(WINDOW_WAITS) {
            worth.waited(at * WINDOW_NS, at);
        }
        assert_eq!(worth.trial, 0);
        worth.waited(u64::from(WINDOW_WAITS) * WINDOW_NS, 99);
        assert_eq!(worth.trial, 1);
    }
}
