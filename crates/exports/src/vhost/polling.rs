//! Adaptive polling: how long to look for work before sleeping.
//!
//! Pure arithmetic over times that are given: it owns no clock and allocates nothing. Called by I/O
//! threads and by the simulator. A spin grows when the sleep after it was so short that a longer
//! spin would have caught the work, and is given up after one long sleep: who is idle sleeps at
//! once. Kernel counterpart: `halt_poll_ns` of KVM, with `halt_poll_ns_grow` 2 and
//! `halt_poll_ns_shrink` 0.

/// First spin after none; KVM's `halt_poll_ns_grow_start`.
const START_NS: u64 = 10_000;

/// What a thread's recent waits say about spinning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Polling {
    max_ns: u64,
    spin_ns: u64,
}

impl Polling {
    /// A thread that does not spin yet, and never longer than `max_ns`; 0 is off.
    #[must_use]
    pub fn new(max_ns: u64) -> Polling {
        Polling { max_ns, spin_ns: 0 }
    }

    /// How long to look before sleeping, in nanoseconds; 0: sleep at once.
    #[inline]
    #[must_use]
    pub fn spin_ns(&self) -> u64 {
        self.spin_ns
    }

    /// Work came while spinning, after so long. The spin was long enough and stays as it is: one
    /// that is longer than it need be costs nothing while it catches.
    #[inline]
    pub fn caught(&mut self, _waited_ns: u64) {}

    /// It spun in vain, then slept so long until woken.
    #[inline]
    pub fn slept(&mut self, slept_ns: u64) {
        let waited_ns = self.spin_ns.saturating_add(slept_ns);
        if waited_ns > self.max_ns {
            self.spin_ns = 0;
        } else if waited_ns > self.spin_ns {
            self.spin_ns = self.spin_ns.saturating_mul(2).max(START_NS).min(self.max_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_sleeps_let_the_spin_grow_up_to_its_bound() {
        let mut polling = Polling::new(50_000);
        let mut spins = Vec::new();
        for _ in 0..5 {
            spins.push(polling.spin_ns());
            polling.slept(5_000);
        }
        assert_eq!(spins, [0, 10_000, 20_000, 40_000, 50_000]);
        assert_eq!(polling.spin_ns(), 0, "50,000 in vain and 5,000 asleep are beyond the bound");
    }

    #[test]
    fn a_spin_that_catches_its_work_stays() {
        let mut polling = Polling::new(50_000);
        polling.slept(5_000);
        polling.caught(7_000);
        polling.caught(1);
        assert_eq!(polling.spin_ns(), 10_000);
    }

    #[test]
    fn one_long_sleep_ends_the_spinning() {
        let mut polling = Polling::new(50_000);
        polling.slept(5_000);
        polling.slept(5_000);
        polling.slept(1_000_000);
        assert_eq!(polling.spin_ns(), 0);
        // It cannot win by spinning, and does not begin.
        polling.slept(60_000);
        assert_eq!(polling.spin_ns(), 0);
    }

    #[test]
    fn a_bound_of_nothing_is_off() {
        let mut polling = Polling::new(0);
        for slept_ns in [0, 1, 1_000_000, u64::MAX] {
            polling.slept(slept_ns);
            assert_eq!(polling.spin_ns(), 0);
        }
    }

    #[test]
    fn a_bound_below_the_first_spin_is_kept() {
        let mut polling = Polling::new(4_000);
        polling.slept(1_000);
        assert_eq!(polling.spin_ns(), 4_000);
    }
}
