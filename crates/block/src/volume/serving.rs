//! Which threads serve a volume's drives: the modes, their settings, and how `auto` chooses.
//!
//! `Serving` and `ServingConfig` belong to a `Volume`; `Choice` to a channel, which asks it at each
//! unplug of a batch that workers may serve. `auto` measures: it lets each way serve for a while,
//! stays with the faster, and looks at the other again after ever longer times. Source: \[FALCON\]
//! (watermarks, per-drive serving; "per-volume" is its account of Linux).

use alloc::format;
use alloc::string::String;

/// Which threads serve a volume's drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Serving {
    /// The submitting thread, to completion.
    #[default]
    Inline,
    /// A worker for each drive, for batches above the low watermark; \[FALCON\]'s design.
    PerDrive,
    /// One list for all drives, searched for merges, tags taken while plugging, drive after drive:
    /// the Linux path of \[FALCON\], to be measured against.
    PerVolume,
    /// `Inline` or `PerDrive`, whichever moves more.
    Auto,
}

impl Serving {
    /// All, with their names.
    pub const NAMES: [(Serving, &'static str); 4] = [
        (Serving::Inline, "inline"),
        (Serving::PerDrive, "per-drive"),
        (Serving::PerVolume, "per-volume"),
        (Serving::Auto, "auto"),
    ];

    /// Its name in configurations and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        Serving::NAMES.iter().find(|(serving, _)| *serving == self).map_or("", |(_, name)| name)
    }

    pub(crate) fn from_bits(bits: u64) -> Serving {
        Serving::NAMES.get(bits as usize).map_or(Serving::Inline, |(serving, _)| *serving)
    }
}

/// How a volume's drives are served; all counts are for each drive of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServingConfig {
    /// Which threads serve the drives.
    pub serving: Serving,
    /// High watermark: bios that unplug a batch, 1 or more. \[FALCON\]: 32.
    pub plug_high: u32,
    /// Low watermark: below it the submitter serves its batch itself. \[FALCON\]: 16.
    pub plug_low: u32,
    /// High pressure point: chains that wait in the stack above which `submit` gives bios back.
    pub pressure_high: u32,
    /// Low pressure point: at or below it `submit` takes bios again.
    pub pressure_low: u32,
}

impl ServingConfig {
    /// These settings with another mode.
    #[must_use]
    pub fn of(serving: Serving) -> ServingConfig {
        ServingConfig { serving, ..ServingConfig::default() }
    }

    /// Whether they make sense.
    ///
    /// # Errors
    /// What is wrong with them, in words that begin with the key.
    pub fn validate(&self) -> Result<(), String> {
        let pairs = [
            ("plug-low", self.plug_low, "plug-high", self.plug_high),
            ("pressure-low", self.pressure_low, "pressure-high", self.pressure_high),
        ];
        for (low_name, low, high_name, high) in pairs {
            if !(1..=65_536).contains(&high) {
                return Err(format!("{high_name} = {high}: 1 to 65536 for each drive"));
            }
            if low > high {
                return Err(format!("{low_name} = {low} is above {high_name} = {high}"));
            }
        }
        Ok(())
    }
}

impl Default for ServingConfig {
    /// Inline, the source's watermarks; pressure points, of which it gives no number, at four times
    /// the deepest SATA queue and eight times that, so that a worker never runs dry meanwhile.
    fn default() -> Self {
        ServingConfig {
            serving: Serving::Inline,
            plug_high: 32,
            plug_low: 16,
            pressure_high: 1024,
            pressure_low: 128,
        }
    }
}

/// Shortest time that a way is measured for.
const WINDOW_NS: u64 = 1_000_000;
/// Batches that a way must serve meanwhile, and rounds of what is in flight: less is noise.
const WINDOW_BATCHES: u32 = 8;
const WINDOW_ROUNDS: u64 = 4;
/// Batches and rounds before that, while what the other way left still runs.
const SETTLE_BATCHES: u32 = 4;
const SETTLE_ROUNDS: u64 = 1;
/// Windows until the slower way is tried again, at first and at last.
const STAY_FIRST: u32 = 32;
const STAY_MOST: u32 = 1024;
/// A way that takes so many times as long as the other would have is given up at once.
const TRIAL_FACTOR: u64 = 2;
/// Workers must be faster by this many percent: they cost other CPUs.
const MARGIN_PERCENT: u64 = 3;

/// What `auto` knows: one of two ways is in use, and how fast each was.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Choice {
    /// The way in use: workers, or the submitter.
    workers: bool,
    /// Bios a second of the submitter's own way and of the workers; 0: not measured yet.
    rates: [u64; 2],
    /// The window: when it began, bios and batches since.
    since_ns: u64,
    bios: u64,
    batches: u32,
    /// It has not begun: what is counted is what must pass before.
    settling: bool,
    /// How long that, or the window, may last; 0: not known yet.
    limit_ns: u64,
    /// Windows to go until the other way is tried.
    stay: u32,
    /// How many those are next time.
    patience: u32,
}

impl Choice {
    pub(crate) fn new() -> Choice {
        Choice {
            workers: false,
            rates: [0; 2],
            since_ns: 0,
            bios: 0,
            batches: 0,
            settling: true,
            limit_ns: 0,
            stay: 0,
            patience: STAY_FIRST,
        }
    }

    /// Notes a batch of `bios` at `now_ns`, with `in_flight` of them in all; whether workers are to
    /// serve those that are large enough.
    #[inline]
    pub(crate) fn next(&mut self, bios: u32, in_flight: u32, now_ns: u64) -> bool {
        self.bios += u64::from(bios);
        self.batches += 1;
        let (batches, rounds) = match self.settling {
            true => (SETTLE_BATCHES, SETTLE_ROUNDS),
            false => (WINDOW_BATCHES, WINDOW_ROUNDS),
        };
        let enough = u64::from(in_flight) * rounds;
        if self.batches >= batches && self.bios >= enough {
            self.look(now_ns);
        } else if self.batches == 1 {
            self.limit_ns = self.limit(enough.max(u64::from(bios) * u64::from(batches)));
        } else if now_ns.saturating_sub(self.since_ns) > self.limit_ns {
            self.give_up(now_ns);
        }
        self.workers
    }

    /// How long a trial of so many bios may last: a multiple of what the other way would take.
    fn limit(&self, bios: u64) -> u64 {
        let other = self.rates[usize::from(!self.workers)];
        let is_trial = other > self.rates[usize::from(self.workers)];
        let needed_ns = u128::from(bios) * 1_000_000_000 / u128::from(other.max(1));
        let needed_ns = u64::try_from(needed_ns).unwrap_or(u64::MAX);
        if is_trial { needed_ns.max(WINDOW_NS).saturating_mul(TRIAL_FACTOR) } else { u64::MAX }
    }

    /// Ends a trial that is far too slow with what was seen of it.
    #[cold]
    fn give_up(&mut self, now_ns: u64) {
        self.end_window(now_ns.saturating_sub(self.since_ns));
        (self.since_ns, self.bios, self.batches) = (now_ns, 0, 0);
    }

    /// Ends the window, or what goes before it, if it was long enough.
    #[inline(never)]
    fn look(&mut self, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(self.since_ns);
        if self.settling {
            self.settling = false;
        } else if elapsed_ns >= WINDOW_NS {
            self.end_window(elapsed_ns);
        } else {
            return;
        }
        (self.since_ns, self.bios, self.batches) = (now_ns, 0, 0);
    }

    fn end_window(&mut self, elapsed_ns: u64) {
        let rate = u128::from(self.bios) * 1_000_000_000 / u128::from(elapsed_ns);
        let rate = u64::try_from(rate).unwrap_or(u64::MAX).max(1);
        // One window may have been unlucky: what is known counts as much as what is new.
        let known = &mut self.rates[usize::from(self.workers)];
        *known = if *known == 0 { rate } else { *known / 2 + rate / 2 + 1 };
        if self.rates[usize::from(!self.workers)] == 0 {
            return self.turn(0);
        }
        let [own, theirs] = self.rates;
        let better = theirs > own.saturating_add(own / 100 * MARGIN_PERCENT);
        if better != self.workers {
            // Back from a trial that failed, or away from what has become slower.
            let stay = self.patience;
            self.patience = (self.patience * 2).min(STAY_MOST);
            return self.turn(stay);
        }
        if self.stay > 0 {
            self.stay -= 1;
            return;
        }
        self.turn(0);
    }

    /// Changes over to the other way, for `stay` windows and one.
    fn turn(&mut self, stay: u32) {
        self.workers = !self.workers;
        self.stay = stay;
        self.settling = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a second of batches of 64 at the rates given; the share of bios that workers served.
    fn share(own: u64, theirs: u64) -> f64 {
        let (mut choice, mut now_ns, mut by_workers, mut all) = (Choice::new(), 1, 0.0, 0.0);
        while now_ns < 4_000_000_000 {
            let workers = choice.next(64, 128, now_ns);
            now_ns += 64_000_000_000 / if workers { theirs } else { own };
            by_workers += if workers { 64.0 } else { 0.0 };
            all += 64.0;
        }
        by_workers / all
    }

    #[test]
    fn choice_stays_with_the_faster_way() {
        assert!(share(1_000_000, 4_000_000) > 0.99, "{}", share(1_000_000, 4_000_000));
        assert!(share(4_000_000, 1_000_000) < 0.01, "{}", share(4_000_000, 1_000_000));
        assert!(share(300_000, 320_000) > 0.9);
    }

    #[test]
    fn choice_prefers_the_submitter_when_both_are_equal() {
        assert!(share(1_000_000, 1_000_000) < 0.1);
    }

    #[test]
    fn every_serving_has_a_name_and_its_bits() {
        for (bits, (serving, name)) in (0..).zip(Serving::NAMES) {
            assert_eq!((Serving::from_bits(bits), serving.name()), (serving, name));
        }
    }

    /// A choice that is asked with batches of the same size, at rates that the test sets.
    struct Rig {
        choice: Choice,
        now_ns: u64,
        bios: u32,
        in_flight: u32,
    }

    impl Rig {
        fn new(bios: u32, in_flight: u32) -> Rig {
            Rig { choice: Choice::new(), now_ns: 1, bios, in_flight }
        }

        /// How many batches, this far apart, until it changes over.
        fn batches(&mut self, step_ns: u64) -> u32 {
            let before = self.choice.workers;
            for batches in 1..100_000 {
                self.now_ns += step_ns;
                if self.choice.next(self.bios, self.in_flight, self.now_ns) != before {
                    return batches;
                }
            }
            panic!("it stays");
        }
    }

    #[test]
    fn a_way_is_measured_for_eight_batches_four_rounds_and_a_millisecond_after_it_has_settled() {
        // Four batches to settle, and eight.
        assert_eq!(Rig::new(1, 1).batches(1_000_000), 4 + 8);
        // What is in flight once to settle, and four times.
        assert_eq!(Rig::new(1, 100).batches(1_000_000), 100 + 400);
        assert_eq!(Rig::new(25, 100).batches(1_000_000), 4 + 16);
        // A millisecond.
        assert_eq!(Rig::new(1, 1).batches(10_000), 4 + 100);
        assert_eq!(Rig::new(1, 1).batches(10_001), 4 + 100);
        assert_eq!(Rig::new(1, 1).batches(9_999), 4 + 101);
    }

    #[test]
    fn the_slower_way_is_tried_again_after_ever_longer_times() {
        let mut rig = Rig::new(64, 1);
        let mut stays = alloc::vec::Vec::new();
        for _ in 0..8 {
            stays.push(rig.batches(1_000_000));
            // Workers take twice as long.
            assert_eq!(rig.batches(2_000_000), 4 + 8);
        }
        let windows = [1, 33, 65, 129, 257, 513, 1025, 1025];
        assert_eq!(stays, windows.map(|windows| 4 + 8 * windows));
    }

    #[test]
    fn a_trial_that_is_far_slower_is_given_up_before_its_window_ends() {
        let mut rig = Rig::new(64, 1);
        assert_eq!(rig.batches(1_000_000), 4 + 8);
        // Four batches to settle may last 8 ms; the second of these is known after 40.
        assert_eq!(rig.batches(20_000_000), 2);
        // And that counts as a trial: the next comes after 33 windows.
        assert_eq!(rig.batches(1_000_000), 4 + 8 * 33);
        // Settled in time, but then stuck: a window of eight batches may last 16 ms.
        for _ in 0..4 {
            rig.now_ns += 1_000_000;
            assert!(rig.choice.next(64, 1, rig.now_ns));
        }
        assert_eq!(rig.batches(20_000_000), 2);
    }

    #[test]
    fn workers_are_kept_only_if_they_are_more_than_three_percent_faster() {
        for (bios, kept) in [(128_750, false), (128_751, true)] {
            let mut rig = Rig::new(125_000, 1);
            // Windows of a second each: a million bios.
            assert_eq!(rig.batches(125_000_000), 12);
            rig.bios = bios;
            assert_eq!(rig.batches(125_000_000), 12);
            rig.bios = 125_000;
            // The submitter stays for long; or it is looked at once more and makes way again.
            let own = rig.batches(125_000_000);
            assert_eq!(own, if kept { 4 + 8 } else { 4 + 8 * 33 }, "{bios}");
        }
    }

    #[test]
    fn what_is_known_of_a_way_counts_as_much_as_what_is_new() {
        let mut rig = Rig::new(125_000, 1);
        // Workers are twice as fast at first.
        for bios in [125_000, 250_000, 125_000] {
            rig.bios = bios;
            assert_eq!(rig.batches(125_000_000), 12);
        }
        // Then as fast as the submitter: 1.5, 1.25, 1.125, 1.06, 1.03 and 1.016 millions.
        assert_eq!(rig.batches(125_000_000), 4 + 8 * 6);
    }

    #[test]
    fn settings_say_which_key_is_wrong_and_take_the_bounds_themselves() {
        let with =
            |plug_low, plug_high| ServingConfig { plug_low, plug_high, ..ServingConfig::default() };
        assert_eq!(ServingConfig::default().validate(), Ok(()));
        for (low, high) in [(0, 1), (1, 1), (16, 65_536), (65_536, 65_536)] {
            assert_eq!(with(low, high).validate(), Ok(()));
        }
        let wrong = |config: ServingConfig| config.validate().expect_err("makes no sense");
        assert_eq!(wrong(with(0, 0)), "plug-high = 0: 1 to 65536 for each drive");
        assert_eq!(wrong(with(0, 65_537)), "plug-high = 65537: 1 to 65536 for each drive");
        assert_eq!(wrong(with(2, 1)), "plug-low = 2 is above plug-high = 1");
        let pressure = ServingConfig { pressure_low: 2000, ..ServingConfig::default() };
        assert_eq!(wrong(pressure), "pressure-low = 2000 is above pressure-high = 1024");
        for (serving, _) in Serving::NAMES {
            let config = ServingConfig { serving, ..ServingConfig::default() };
            assert_eq!(ServingConfig::of(serving), config);
        }
    }
}
