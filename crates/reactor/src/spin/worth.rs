//! `SpinTrial`: measures whether spinning is worth its CPU time.
//!
//! If a client waits for each answer, a spin saves the wake-ups and increases throughput. If the
//! client always has more to send, the client is the bottleneck, and a spin only burns a CPU. The
//! waits are short in both cases. A trial therefore compares windows of time with and without
//! spins, and spinning stays on if more bytes are moved with spins.
//!
//! A window is long enough that no single wait decides the result. A window with a long wait does
//! not count, because the client paused. Bytes are counted, not completions, because a thread that
//! sleeps finds more completions at once. Spinning must also win most pairs of windows, because a
//! single window may be lucky on a busy CPU. The trial is repeated after a while, or soon if a
//! window moves twice or half as many bytes as the windows of the last trial.

/// Minimum duration of a measuring window, in nanoseconds. A window also has at least
/// `WINDOW_WAITS` waits.
const WINDOW_NS: u64 = 2_000_000;
const WINDOW_WAITS: u32 = 32;
/// Number of measuring windows (intervals of time) in a trial. Windows with spins and without spins
/// alternate; two successive windows form a pair.
const TRIAL: u32 = 12;
/// Minimum number of window pairs that spinning must win in a trial of six pairs. A pair is a
/// measuring window with spins and a window without spins. Spinning wins a pair if its byte rate is
/// higher by at least the factor `MORE`. The first value applies if the thread did not spin before
/// the trial, the second value if it did.
const WINS: [u32; 2] = [5, 4];
/// Number of measuring windows between two trials. The byte rate may double or halve compared with
/// the last trial. In that case, the next trial begins after at most `HOLD_CHANGED` further
/// windows.
const HOLD: u32 = 256;
const HOLD_CHANGED: u32 = 16;
/// Minimum ratio of the byte rate with spins to the byte rate without: 9 / 8.
const MORE: [u128; 2] = [9, 8];

#[derive(Clone, Copy, Debug, Default)]
struct ByteRate {
    bytes: u64,
    ns: u64,
}

impl ByteRate {
    fn add(&mut self, other: ByteRate) {
        self.bytes += other.bytes;
        self.ns += other.ns;
    }

    /// Returns true if the byte rate `self`, multiplied by `times[1]`, is at least `other`,
    /// multiplied by `times[0]`.
    fn is_at_least(self, times: [u128; 2], other: ByteRate) -> bool {
        let cross = |one: ByteRate, ns: u64| u128::from(one.bytes) * u128::from(ns);
        cross(self, other.ns) * times[1] >= cross(other, self.ns) * times[0]
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct TrialWindow {
    start_ns: u64,
    /// Bytes that the reactor had transferred in total when the measuring window began.
    start_bytes: u64,
    waits: u32,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SpinTrial {
    pub(super) spins: bool,
    window: TrialWindow,
    /// Number of measuring windows that the current trial has finished, or [`TRIAL`] if no trial is
    /// in progress.
    trial: u32,
    /// Bytes and time of the current or last trial, each summed over its measuring windows. The
    /// first element is for windows without spins, the second element for windows with spins.
    found: [ByteRate; 2],
    /// Byte rate of the last measuring window with spins. The next window has no spins and is
    /// compared with it. `wins` is the number of comparisons in this trial that spinning won.
    spun: ByteRate,
    wins: u32,
    /// Result of the last trial: true if spinning improved throughput.
    chosen: bool,
    hold: u32,
}

impl SpinTrial {
    pub(super) fn new() -> SpinTrial {
        SpinTrial { spins: true, ..SpinTrial::default() }
    }

    /// Records a short wait for completions. `bytes` is the reactor's total of transferred bytes.
    pub(super) fn waited(&mut self, now_ns: u64, bytes: u64) {
        self.window.waits += 1;
        let ns = now_ns.saturating_sub(self.window.start_ns);
        if ns >= WINDOW_NS && self.window.waits >= WINDOW_WAITS {
            let bytes_of_window = bytes.wrapping_sub(self.window.start_bytes);
            self.paused(now_ns, bytes);
            self.measured(ByteRate { bytes: bytes_of_window, ns });
        }
    }

    pub(super) fn paused(&mut self, now_ns: u64, bytes: u64) {
        self.window = TrialWindow { start_ns: now_ns, start_bytes: bytes, waits: 0 };
    }

    fn measured(&mut self, rate: ByteRate) {
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
            *self = SpinTrial { window: self.window, chosen: self.chosen, ..SpinTrial::new() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that waits without a pause.
    struct Load {
        worth: SpinTrial,
        now_ns: u64,
        bytes: u64,
    }

    impl Load {
        fn new() -> Load {
            Load { worth: SpinTrial::new(), now_ns: 0, bytes: 0 }
        }

        /// Waits for so many windows, 40 times in each; how many windows were spun. A wait moves
        /// `moved[1]` bytes if it is spun for, else `moved[0]`.
        fn run(&mut self, windows: u32, moved: [u64; 2]) -> u32 {
            let mut spun = 0;
            for _ in 0..windows {
                let spins = self.worth.spins;
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
    fn choice_is_renewed_after_a_while_and_sooner_under_new_load() {
        let mut load = Load::new();
        assert_eq!(load.run(TRIAL + HOLD, [100, 100]), TRIAL / 2);
        assert_eq!(load.run(TRIAL, [100, 100]), TRIAL / 2, "another trial");
        assert_eq!(load.run(HOLD - 1, [100, 100]), 0);
        let mut load = Load::new();
        load.run(TRIAL + 10, [100, 100]);
        // The load changes to one that waits for each answer.
        assert_eq!(load.run(HOLD_CHANGED, [10, 20]), 0);
        assert_eq!(load.run(TRIAL + 100, [10, 20]), TRIAL / 2 + 100);
    }

    #[test]
    fn one_lucky_window_decides_nothing() {
        let mut load = Load::new();
        load.run(1, [100, 1000]);
        load.run(TRIAL - 1, [100, 100]);
        assert!(!load.worth.spins, "spins won one pair");
        for (lost, spins) in [(1, true), (2, false)] {
            let mut load = Load::new();
            load.run(2 * lost, [100, 90]);
            load.run(TRIAL - 2 * lost, [100, 200]);
            assert_eq!(load.worth.spins, spins, "spins lost {lost} of {} pairs", TRIAL / 2);
        }
        // Two lost pairs do not stop a thread that spins already.
        let mut load = Load::new();
        load.run(TRIAL + HOLD, [100, 200]);
        load.run(4, [100, 190]);
        load.run(4, [180, 180]);
        load.run(4, [100, 190]);
        assert!(load.worth.spins);
    }

    #[test]
    fn a_window_with_a_long_wait_does_not_count() {
        let mut load = Load::new();
        for _ in 0..100 {
            load.worth.waited(load.now_ns, load.bytes);
            load.now_ns += 50 * WINDOW_NS;
            load.worth.paused(load.now_ns, load.bytes);
        }
        assert_eq!((load.worth.trial, load.worth.spins), (0, true));
        assert_eq!(load.run(TRIAL, [100, 100]), TRIAL / 2);
        assert!(!load.worth.spins);
    }

    #[test]
    fn few_waits_are_no_window() {
        let mut worth = SpinTrial::new();
        for at in 1..u64::from(WINDOW_WAITS) {
            worth.waited(at * WINDOW_NS, at);
        }
        assert_eq!(worth.trial, 0);
        worth.waited(u64::from(WINDOW_WAITS) * WINDOW_NS, 99);
        assert_eq!(worth.trial, 1);
    }
}
