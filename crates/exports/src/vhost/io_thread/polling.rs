//! Adaptive polling: decides how long to poll for work before sleeping.
//!
//! - After a short wait with a sleep, the next polls last as long as that wait took, but at least
//!   10 us, and at most as long as the longest poll. Successful polls do not change this time.
//! - A wait counts as short if it took up to three times the longest poll. A wait with a sleep also
//!   includes two wake-ups, so a poll could have found the work earlier.
//! - After a longer wait, and after a few unsuccessful polls, the thread sleeps at once.
//!
//! The functions read no clock: their callers, I/O threads and the simulator, pass all times.
//! Kernel counterpart: `halt_poll_ns` of KVM.

/// Minimum duration of a poll in nanoseconds, like KVM's `halt_poll_ns_grow_start`.
const START_NS: u64 = 10_000;
/// Number of consecutive unsuccessful polls after which polling pauses.
const VAIN: u32 = 4;
/// Length of the first pause of polling, as a number of waits for work. During a pause, the thread
/// sleeps without polling. Each further pause is twice as long.
const PAUSE_MIN: u32 = 64;
/// Maximum length of a pause of polling, as a number of waits for work.
const PAUSE_MAX: u32 = 8192;
/// Number of successful polls after which the next pause has length [`PAUSE_MIN`] again.
const CALM: u32 = 1024;

/// Statistics of a thread's recent waits for work, used to decide how long to poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Polling {
    max_ns: u64,
    spin_ns: u64,
    vain: u32,
    caught: u32,
    /// Number of waits until the thread polls again; 0 while the thread polls.
    pause: u32,
    pause_next: u32,
}

impl Polling {
    /// Creates the statistics of a thread that has not waited yet. Before its first wait, the
    /// thread does not poll. A poll never lasts longer than `max_ns` nanoseconds; 0 disables
    /// polling.
    #[must_use]
    pub fn new(max_ns: u64) -> Polling {
        Polling { max_ns, spin_ns: 0, vain: 0, caught: 0, pause: 0, pause_next: PAUSE_MIN }
    }

    /// Returns how long to poll before sleeping, in nanoseconds; 0 means to sleep at once.
    #[inline]
    #[must_use]
    pub fn spin_ns(&self) -> u64 {
        self.spin_ns
    }

    /// Records that polling found work.
    #[inline]
    pub fn caught(&mut self, _waited_ns: u64) {
        self.vain = 0;
        self.caught += 1;
        if self.caught >= CALM {
            (self.caught, self.pause_next) = (0, PAUSE_MIN);
        }
    }

    /// Records a wait: `spun_ns` of polling without success (0 for none), then `slept_ns` of sleep.
    #[inline]
    pub fn slept(&mut self, spun_ns: u64, slept_ns: u64) {
        let waited_ns = spun_ns.saturating_add(slept_ns);
        if spun_ns > 0 {
            self.vain += 1;
        }
        if self.vain >= VAIN {
            (self.vain, self.caught, self.pause) = (0, 0, self.pause_next);
            self.pause_next = (2 * self.pause_next).min(PAUSE_MAX);
        }
        self.pause = self.pause.saturating_sub(1);
        self.spin_ns = match self.pause == 0 && waited_ns <= self.max_ns.saturating_mul(3) {
            true => waited_ns.max(START_NS).min(self.max_ns),
            false => 0,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spin_is_as_long_as_the_last_wait_up_to_its_bound() {
        for (slept_ns, spin_ns) in
            [(1, START_NS), (25_000, 25_000), (50_001, 50_000), (150_000, 50_000), (150_001, 0)]
        {
            let mut polling = Polling::new(50_000);
            polling.slept(polling.spin_ns(), slept_ns);
            assert_eq!(polling.spin_ns(), spin_ns, "after {slept_ns} ns");
        }
    }

    #[test]
    fn a_spin_that_catches_its_work_stays() {
        let mut polling = Polling::new(50_000);
        polling.slept(polling.spin_ns(), 15_000);
        polling.caught(7_000);
        polling.caught(1);
        assert_eq!(polling.spin_ns(), 15_000);
    }

    #[test]
    fn one_long_sleep_ends_the_spinning() {
        let mut polling = Polling::new(50_000);
        polling.slept(polling.spin_ns(), 5_000);
        polling.slept(polling.spin_ns(), 1_000_000);
        assert_eq!(polling.spin_ns(), 0);
        polling.slept(polling.spin_ns(), 151_000);
        assert_eq!(polling.spin_ns(), 0);
    }

    #[test]
    fn spins_in_vain_become_ever_rarer_until_spins_catch_again() {
        let mut polling = Polling::new(50_000);
        let mut spins = [0; 3];
        for spins in &mut spins {
            for _ in 0..1000 {
                polling.slept(polling.spin_ns(), 60_000);
                *spins += u32::from(polling.spin_ns() > 0);
            }
        }
        assert!(spins[0] < 25 && spins[2] <= 4, "{spins:?}");
        while polling.spin_ns() == 0 {
            polling.slept(polling.spin_ns(), 60_000);
        }
        (0..CALM).for_each(|_| polling.caught(10));
        (0..VAIN).for_each(|_| polling.slept(polling.spin_ns(), 60_000));
        let slept = (0..).take_while(|_| {
            polling.slept(polling.spin_ns(), 60_000);
            polling.spin_ns() == 0
        });
        assert!(slept.count() < PAUSE_MIN as usize);
    }

    /// Length of the pause, in waits without a spin, after spins in vain.
    fn pause(polling: &mut Polling) -> u32 {
        while polling.spin_ns() > 0 {
            polling.slept(polling.spin_ns(), 60_000);
        }
        let mut waits = 1;
        while polling.spin_ns() == 0 {
            polling.slept(0, 60_000);
            waits += 1;
        }
        waits
    }

    #[test]
    fn pause_doubles_until_enough_spins_caught_their_work() {
        let mut polling = Polling::new(50_000);
        polling.slept(0, 60_000);
        // Waits without a spin are none in vain.
        (0..100).for_each(|_| polling.slept(0, 60_000));
        assert_eq!([0; 3].map(|_| pause(&mut polling)), [64, 128, 256]);
        (1..CALM).for_each(|_| polling.caught(10));
        assert_eq!(pause(&mut polling), 512, "one too few");
        // A single one in vain does not make it begin anew.
        (0..CALM / 2).for_each(|_| polling.caught(10));
        polling.slept(polling.spin_ns(), 60_000);
        (0..CALM / 2).for_each(|_| polling.caught(10));
        assert_eq!(
            [0; 9].map(|_| pause(&mut polling)).map(u32::ilog2),
            [6, 7, 8, 9, 10, 11, 12, 13, 13]
        );
    }

    #[test]
    fn a_bound_of_nothing_is_off() {
        let mut polling = Polling::new(0);
        for slept_ns in [0, 1, 1_000_000, u64::MAX] {
            polling.slept(polling.spin_ns(), slept_ns);
            assert_eq!(polling.spin_ns(), 0);
        }
    }

    #[test]
    fn a_bound_below_the_first_spin_is_kept() {
        let mut polling = Polling::new(4_000);
        polling.slept(polling.spin_ns(), 1_000);
        assert_eq!(polling.spin_ns(), 4_000);
    }
}
