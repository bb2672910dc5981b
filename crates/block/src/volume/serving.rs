//! Serving modes: which threads serve a volume's drives, and how the mode `auto` chooses.
//!
//! `auto` chooses between `Inline` (submitting threads) and `PerDrive` (worker threads). It uses
//! each mode for a while, keeps the faster one, and tries the other one again after increasing
//! intervals. `auto` measures the throughput of all channels together. A channel that measured only
//! itself would prefer workers even if they take the CPUs from other channels.
//!
//! All channels of a `Volume` share the state of `auto` (`ServingChoice`). Each channel counts its
//! own I/O (`ServingChooser`), and adds the counts to the shared state every quarter of a
//! millisecond. So batches do not write shared memory. Source: Kumar et al., ATC 2017, the Falcon
//! paper (watermarks, per-drive serving; "per-volume" is its description of Linux).

use alloc::format;

use millrace_machine::{Lock, Machine};

use crate::bio::error::{Error, ErrorKind};

/// The threads that serve a volume's drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Serving {
    /// The submitting thread serves its I/O to completion.
    #[default]
    Inline,
    /// A worker thread for each drive serves batches that reach the low watermark; the submitting
    /// thread serves smaller batches (Kumar et al., ATC 2017).
    PerDrive,
    /// The submitting thread serves the drives one after the other, from one list of requests for
    /// all drives. A request takes its tag when it enters the list, and later bios can merge with
    /// it. Linux works like this, according to the Falcon paper (Kumar et al., ATC 2017). The mode
    /// exists for comparison.
    PerVolume,
    /// `Inline` or `PerDrive`, depending on which has the higher throughput.
    Auto,
}

impl Serving {
    /// All serving modes, with their names in configurations and tables.
    pub const NAMES: [(Serving, &'static str); 4] = [
        (Serving::Inline, "inline"),
        (Serving::PerDrive, "per-drive"),
        (Serving::PerVolume, "per-volume"),
        (Serving::Auto, "auto"),
    ];

    /// Returns the mode's name in configurations and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        Serving::NAMES.iter().find(|(serving, _)| *serving == self).map_or("", |(_, name)| name)
    }

    pub(crate) fn from_bits(bits: u64) -> Serving {
        Serving::NAMES.get(bits as usize).map_or(Serving::Inline, |(serving, _)| *serving)
    }
}

/// Settings for the threads that serve a volume's drives. All numbers are per drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServingConfig {
    /// Selects the threads that serve the drives.
    pub serving: Serving,
    /// High watermark: number of plugged bios at which a batch is submitted at once, 1 or more. The
    /// Falcon paper (Kumar et al., ATC 2017) uses 32.
    pub plug_high: u32,
    /// Low watermark: smallest number of bios in a batch that workers serve. Submitters serve
    /// smaller batches. The Falcon paper (Kumar et al., ATC 2017) uses 16.
    pub plug_low: u32,
    /// High pressure point: if more requests than this wait for workers, `submit` refuses bios.
    pub pressure_high: u32,
    /// Low pressure point: `submit` accepts bios again if at most this many requests wait.
    pub pressure_low: u32,
}

impl ServingConfig {
    /// Returns the default settings for a serving mode.
    #[must_use]
    pub fn of(serving: Serving) -> ServingConfig {
        ServingConfig { serving, ..ServingConfig::default() }
    }

    /// Checks the watermarks and the pressure points (limits on the number of waiting requests).
    ///
    /// # Errors
    /// `InvalidSetting` if a high limit is out of range or below the low limit. The error text
    /// begins with the key of the first wrong value.
    pub fn validate(&self) -> Result<(), Error> {
        let wrong = |text| Err(Error::new(ErrorKind::InvalidSetting, text));
        let pairs = [
            ("plug-low", self.plug_low, "plug-high", self.plug_high),
            ("pressure-low", self.pressure_low, "pressure-high", self.pressure_high),
        ];
        for (low_name, low, high_name, high) in pairs {
            if !(1..=65_536).contains(&high) {
                return wrong(format!(
                    "{high_name} = {high} is out of range; use 1 to 65536 requests per drive"
                ));
            }
            if low > high {
                return wrong(format!("{low_name} = {low} is above {high_name} = {high}"));
            }
        }
        Ok(())
    }
}

impl Default for ServingConfig {
    /// Returns settings for the serving mode `inline`, with the watermarks `plug_high` and
    /// `plug_low` of the Falcon paper (Kumar et al., ATC 2017).
    ///
    /// The paper gives no values for `pressure_high` and `pressure_low`. If more than
    /// `pressure_high` requests wait for workers, `submit` refuses bios until at most
    /// `pressure_low` wait. `pressure_high` is 32 times the depth of a SATA queue. `pressure_low`
    /// is only an eighth lower, so that workers do not run out of requests while `submit` refuses
    /// bios.
    fn default() -> Self {
        ServingConfig {
            serving: Serving::Inline,
            plug_high: 32,
            plug_low: 16,
            pressure_high: 1024,
            pressure_low: 896,
        }
    }
}

/// Minimum time between two updates of the shared counts by one channel, in nanoseconds.
const MEETING_NS: u64 = 250_000;
/// Shortest time, in nanoseconds, for which a mode is measured. Multiplied by the number of active
/// channels, because channels that share CPUs run one after the other.
const WINDOW_NS: u64 = 1_000_000;
const WINDOW_NS_MAX: u64 = 50_000_000;
/// Smallest number of batches in a measuring window; fewer would give a noisy throughput.
const WINDOW_BATCHES: u64 = 8;
/// Smallest number of bios in a measuring window, as a multiple of the number of bios in flight.
const WINDOW_ROUNDS: u64 = 4;
/// Smallest number of batches that are not measured after a change of the serving mode. Meanwhile,
/// I/O of the old mode completes.
const SETTLE_BATCHES: u64 = 4;
/// Smallest number of bios that are not measured after a change of the serving mode, as a multiple
/// of the number of bios in flight.
const SETTLE_ROUNDS: u64 = 1;
/// Number of measuring windows before `auto` first tries the slower serving mode again.
const STAY_FIRST: u32 = 32;
/// Maximum number of measuring windows between two trials of the slower serving mode.
const STAY_MOST: u32 = 1024;
/// Maximum duration of a trial of the slower serving mode, as a multiple of the time that the
/// faster mode would need for the same bios. A trial that takes longer is ended early.
const TRIAL_FACTOR: u64 = 2;
/// Percentage by which workers, which use extra CPUs, must be faster than submitters to be chosen.
const MARGIN_PERCENT: u64 = 3;

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ServingChooser {
    done: ChannelWork,
    meeting_ns: u64,
    /// Number of the measuring window in which this channel was last counted as active.
    window: u64,
    workers: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct ChannelWork {
    bios: u64,
    batches: u64,
    in_flight: u64,
}

impl ServingChooser {
    /// Counts a batch of `bios` bios, submitted at `now_ns` while the channel had `in_flight` bios
    /// in flight. Returns true if workers serve large batches at present.
    #[inline]
    pub(crate) fn next<M: Machine>(
        &mut self,
        choice: &M::Lock<ServingChoice>,
        (bios, in_flight): (u32, u32),
        now_ns: u64,
    ) -> bool {
        self.done.bios += u64::from(bios);
        self.done.batches += 1;
        self.done.in_flight = u64::from(in_flight);
        if now_ns >= self.meeting_ns
            && let Some(mut choice) = choice.try_lock()
        {
            self.meet(&mut choice, now_ns);
        }
        self.workers
    }

    /// Adds the channel's new I/O to the shared counts, and copies the current serving mode to the
    /// channel.
    #[inline(never)]
    fn meet(&mut self, choice: &mut ServingChoice, now_ns: u64) {
        self.meeting_ns = now_ns + MEETING_NS;
        let done = core::mem::take(&mut self.done);
        choice.join(&mut self.window, done.in_flight);
        choice.note(done, now_ns);
        self.workers = choice.workers;
    }
}

/// State of the serving mode `auto`: the threads that serve now, and the measured throughputs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServingChoice {
    /// True while workers serve, false while submitters do.
    workers: bool,
    /// Measured throughput of serving by submitters and of serving by workers, in bios per second;
    /// 0 if unknown.
    rates: [u64; 2],
    window: u64,
    /// Start of the current measuring window, in nanoseconds.
    since_ns: u64,
    done: ChannelWork,
    /// Number of active channels in the current measuring window and in the previous window.
    channels: [u64; 2],
    /// True after a change of mode, until I/O of the new mode is measured.
    settling: bool,
    /// Number of measuring windows left before `auto` tries the slower serving mode again.
    stay: u32,
    /// Number of measuring windows for which `auto` will keep the faster mode after the next change
    /// to that mode. Doubles with each such change, up to [`STAY_MOST`].
    patience: u32,
}

impl ServingChoice {
    pub(crate) fn new() -> ServingChoice {
        ServingChoice {
            workers: false,
            rates: [0; 2],
            window: 1,
            since_ns: 0,
            done: ChannelWork::default(),
            channels: [0; 2],
            settling: true,
            stay: 0,
            patience: STAY_FIRST,
        }
    }

    fn join(&mut self, known_in: &mut u64, in_flight: u64) {
        if *known_in != self.window {
            *known_in = self.window;
            self.channels[0] += 1;
            self.done.in_flight += in_flight;
        }
    }

    fn note(&mut self, done: ChannelWork, now_ns: u64) {
        self.done.bios += done.bios;
        self.done.batches += done.batches;
        let (batches, rounds) = match self.settling {
            true => (SETTLE_BATCHES, SETTLE_ROUNDS),
            false => (WINDOW_BATCHES, WINDOW_ROUNDS),
        };
        let enough = self.done.in_flight * rounds;
        if self.done.batches >= batches && self.done.bios >= enough {
            self.look(now_ns);
        } else if self.done.batches > 1 {
            let usual = self.done.bios / self.done.batches * batches;
            if now_ns.saturating_sub(self.since_ns) > self.limit(enough.max(usual)) {
                self.give_up(now_ns);
            }
        }
    }

    fn shortest_ns(&self) -> u64 {
        let channels = self.channels[0].max(self.channels[1]).max(1);
        channels.saturating_mul(WINDOW_NS).min(WINDOW_NS_MAX)
    }

    /// Returns the maximum duration of a trial of the slower serving mode, in nanoseconds. The
    /// trial may take a multiple of the time that the faster mode would need for `bios` bios.
    /// Outside a trial, returns `u64::MAX`.
    fn limit(&self, bios: u64) -> u64 {
        let other = self.rates[usize::from(!self.workers)];
        let is_trial = other > self.rates[usize::from(self.workers)];
        let needed_ns = u128::from(bios) * 1_000_000_000 / u128::from(other.max(1));
        let needed_ns = u64::try_from(needed_ns).unwrap_or(u64::MAX);
        let trial_ns = needed_ns.max(self.shortest_ns()).saturating_mul(TRIAL_FACTOR);
        if is_trial { trial_ns } else { u64::MAX }
    }

    /// Ends the trial of a far too slow mode early. The throughput measured so far is its result.
    #[cold]
    fn give_up(&mut self, now_ns: u64) {
        self.end_window(now_ns.saturating_sub(self.since_ns));
        self.open_window(now_ns);
    }

    fn open_window(&mut self, now_ns: u64) {
        self.window += 1;
        (self.since_ns, self.done) = (now_ns, ChannelWork::default());
        self.channels = [0, self.channels[0]];
    }

    /// Ends the present measuring window if it is long enough, and begins a new one. After a change
    /// of mode (`settling`), begins the first measuring window.
    fn look(&mut self, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(self.since_ns);
        if self.settling {
            self.settling = false;
        } else if elapsed_ns >= self.shortest_ns() {
            self.end_window(elapsed_ns);
        } else {
            return;
        }
        self.open_window(now_ns);
    }

    fn end_window(&mut self, elapsed_ns: u64) {
        let rate = u128::from(self.done.bios) * 1_000_000_000 / u128::from(elapsed_ns.max(1));
        let rate = u64::try_from(rate).unwrap_or(u64::MAX).max(1);
        // Averages old and new throughput, because a single measuring window may be an outlier.
        let known = &mut self.rates[usize::from(self.workers)];
        *known = if *known == 0 { rate } else { *known / 2 + rate / 2 + 1 };
        if self.rates[usize::from(!self.workers)] == 0 {
            return self.turn(0);
        }
        let [own, theirs] = self.rates;
        let better = theirs > own.saturating_add(own / 100 * MARGIN_PERCENT);
        if better != self.workers {
            // The other mode is faster: the present mode was only on trial, or has become slower.
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

    /// Changes from serving by submitters to serving by workers, or back. `auto` keeps the new mode
    /// for `stay` + 1 measuring windows, then tries the old mode again.
    fn turn(&mut self, stay: u32) {
        self.workers = !self.workers;
        self.stay = stay;
        self.settling = true;
    }
}

#[cfg(test)]
mod tests {
    use millrace_machine::Native;

    use super::*;

    /// Counts a batch for the only channel, which updates the shared state each time.
    fn next(choice: &mut ServingChoice, (bios, in_flight): (u32, u32), now_ns: u64) -> bool {
        choice.join(&mut 0, if choice.done.batches == 0 { in_flight.into() } else { 0 });
        choice.channels[0] = 1;
        choice.note(ChannelWork { bios: bios.into(), batches: 1, in_flight: 0 }, now_ns);
        choice.workers
    }

    /// Runs batches of 64 bios for one second at the given rates. Returns the share of bios that
    /// workers served.
    fn share(own: u64, theirs: u64) -> f64 {
        let (mut choice, mut now_ns, mut by_workers, mut all) = (ServingChoice::new(), 1, 0.0, 0.0);
        while now_ns < 4_000_000_000 {
            let workers = next(&mut choice, (64, 128), now_ns);
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

    /// Runs four channels that share a CPU, each in turn for 2 ms. Returns the share of bios for
    /// which workers were chosen. `own` and `theirs` are the costs of a bio in nanoseconds without
    /// and with workers: first the time that its submitter sees, then the total CPU time, in which
    /// no other channel runs.
    fn crowded_share(own: (u64, u64), theirs: (u64, u64)) -> f64 {
        let choice = <Native as Machine>::Lock::new("choice", ServingChoice::new());
        let (mut channels, mut now_ns) = ([ServingChooser::default(); 4], 1);
        let (mut by_workers, mut all) = (0.0, 0.0);
        for turn in 0..500 {
            let (channel, mut behind_ns) = (&mut channels[turn % 4], 0);
            let end_ns = now_ns + 2_000_000;
            while now_ns < end_ns {
                let workers = channel.next::<Native>(&choice, (16, 16), now_ns);
                let (seen, whole) = if workers { theirs } else { own };
                now_ns += 16 * seen;
                behind_ns += 16 * (whole - seen);
                by_workers += if workers { 16.0 } else { 0.0 };
                all += 16.0;
            }
            now_ns += behind_ns;
        }
        by_workers / all
    }

    #[test]
    fn workers_faster_per_channel_but_slower_overall_lose() {
        assert!(crowded_share((1000, 1000), (500, 3000)) < 0.2);
        assert!(crowded_share((1000, 1000), (500, 500)) > 0.8);
    }

    #[test]
    fn channels_meet_every_quarter_millisecond_and_follow_the_plan() {
        let choice = <Native as Machine>::Lock::new("choice", ServingChoice::new());
        let [mut first, mut second] = [ServingChooser::default(); 2];
        assert!(!first.next::<Native>(&choice, (1, 1), 1));
        assert!(!second.next::<Native>(&choice, (1, 999), 1));
        let ServingChoice { channels, done, .. } = *choice.lock();
        assert_eq!((channels[0], done.in_flight), (2, 1000));
        choice.lock().workers = true;
        // Until its next update, the first channel keeps its mode, and the shared state does not
        // include its I/O.
        assert!(!first.next::<Native>(&choice, (10, 1), MEETING_NS));
        assert_eq!(choice.lock().done.bios, 2);
        assert!(first.next::<Native>(&choice, (20, 1), MEETING_NS + 1));
        assert_eq!(choice.lock().done.bios, 32);
        // Another thread holds the shared state, so the channel adds its I/O with the next update.
        let taken = choice.lock();
        assert!(!second.next::<Native>(&choice, (5, 1), MEETING_NS + 1));
        drop(taken);
        assert!(second.next::<Native>(&choice, (5, 1), MEETING_NS + 2));
        assert_eq!(choice.lock().done.bios, 42);
    }

    #[test]
    fn a_window_lasts_a_millisecond_for_each_channel_up_to_fifty() {
        let mut choice = ServingChoice::new();
        for (channels, ms) in [([0, 0], 1), ([1, 0], 1), ([3, 2], 3), ([2, 8], 8), ([900, 1], 50)] {
            choice.channels = channels;
            assert_eq!(choice.shortest_ns(), ms * 1_000_000);
        }
    }

    #[test]
    fn every_serving_has_a_name_and_its_bits() {
        for (bits, (serving, name)) in (0..).zip(Serving::NAMES) {
            assert_eq!((Serving::from_bits(bits), serving.name()), (serving, name));
        }
    }

    /// A `ServingChoice` that is used with batches of the same size, at rates that the test sets.
    struct Rig {
        choice: ServingChoice,
        now_ns: u64,
        bios: u32,
        in_flight: u32,
    }

    impl Rig {
        fn new(bios: u32, in_flight: u32) -> Rig {
            Rig { choice: ServingChoice::new(), now_ns: 1, bios, in_flight }
        }

        /// Feeds batches `step_ns` apart until the choice switches to the other mode; returns how
        /// many.
        fn batches(&mut self, step_ns: u64) -> u32 {
            let before = self.choice.workers;
            for batches in 1..100_000 {
                self.now_ns += step_ns;
                if next(&mut self.choice, (self.bios, self.in_flight), self.now_ns) != before {
                    return batches;
                }
            }
            panic!("it stays");
        }
    }

    #[test]
    fn way_is_measured_over_eight_batches_and_settles_first() {
        // Four batches pass before the window, and eight are measured.
        assert_eq!(Rig::new(1, 1).batches(1_000_000), 4 + 8);
        // Before the window, as many bios pass as are in flight; the window takes four times as
        // many.
        assert_eq!(Rig::new(1, 100).batches(1_000_000), 100 + 400);
        assert_eq!(Rig::new(25, 100).batches(1_000_000), 4 + 16);
        // The window takes at least 1 ms.
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
    fn trial_that_is_far_slower_is_given_up_before_its_window_ends() {
        let mut rig = Rig::new(64, 1);
        assert_eq!(rig.batches(1_000_000), 4 + 8);
        // The four batches before the window may take 8 ms; the second one completes only after 40
        // ms, so the trial ends.
        assert_eq!(rig.batches(20_000_000), 2);
        // The ended trial counts as a trial: the next one comes after 33 windows.
        assert_eq!(rig.batches(1_000_000), 4 + 8 * 33);
        // The time before the window passes quickly, but then the drive is stuck: a window of eight
        // batches may last 16 ms.
        for _ in 0..4 {
            rig.now_ns += 1_000_000;
            assert!(next(&mut rig.choice, (64, 1), rig.now_ns));
        }
        assert_eq!(rig.batches(20_000_000), 2);
    }

    #[test]
    fn workers_are_kept_only_if_three_percent_faster() {
        for (bios, kept) in [(128_750, false), (128_751, true)] {
            let mut rig = Rig::new(125_000, 1);
            // Each window lasts a second and serves a million bios.
            assert_eq!(rig.batches(125_000_000), 12);
            rig.bios = bios;
            assert_eq!(rig.batches(125_000_000), 12);
            rig.bios = 125_000;
            // Serving by the submitter is kept for long; or it is measured once more, and workers
            // take over again.
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
        // Then workers are as fast as the submitter: the averaged rate falls to 1.5, 1.25, 1.125,
        // 1.06, 1.03 and 1.016 million.
        assert_eq!(rig.batches(125_000_000), 4 + 8 * 6);
    }

    #[test]
    fn settings_say_which_key_is_wrong_and_take_bounds_themselves() {
        let with =
            |plug_low, plug_high| ServingConfig { plug_low, plug_high, ..ServingConfig::default() };
        assert_eq!(ServingConfig::default().validate(), Ok(()));
        for (low, high) in [(0, 1), (1, 1), (16, 65_536), (65_536, 65_536)] {
            assert_eq!(with(low, high).validate(), Ok(()));
        }
        let wrong = |config: ServingConfig| format!("{}", config.validate().unwrap_err());
        assert_eq!(
            wrong(with(0, 0)),
            "plug-high = 0 is out of range; use 1 to 65536 requests per drive"
        );
        assert_eq!(
            wrong(with(0, 65_537)),
            "plug-high = 65537 is out of range; use 1 to 65536 requests per drive"
        );
        assert_eq!(wrong(with(2, 1)), "plug-low = 2 is above plug-high = 1");
        let pressure = ServingConfig { pressure_low: 2000, ..ServingConfig::default() };
        assert_eq!(wrong(pressure), "pressure-low = 2000 is above pressure-high = 1024");
        for (serving, _) in Serving::NAMES {
            let config = ServingConfig { serving, ..ServingConfig::default() };
            assert_eq!(ServingConfig::of(serving), config);
        }
    }
}
