//! `SimMeter`: collects statistics of locks that the program builds from atomic words.
//!
//! Each release of such a lock is reported to `SimMeter`, at no cost in virtual time, so that the
//! statistics include these locks as well as those of type `SimLock`. The lock table
//! (lock_table.rs) owns the counts. The block layer calls this type through `Machine::Meter`.
//! Outside a simulation, nothing is counted.

use crate::model::time::PS_PER_NS;
use crate::world::private;
use millrace_machine::{Hold, LockCounts, Meter, Site};

/// Collects statistics of locks that the program itself builds from atomic words (`Machine::Word`).
#[derive(Debug, Clone, Copy)]
pub struct SimMeter;

impl Meter for SimMeter {
    const ALWAYS: bool = true;

    #[inline]
    fn is_on() -> bool {
        false
    }

    #[inline]
    fn now() -> u64 {
        private(|world| world.scheduler.now_ps / PS_PER_NS).unwrap_or(0)
    }

    fn count_hold(name: &'static str, hold: &Hold, counts: &LockCounts) {
        private(|world| world.locks.word_locks.add(name, hold.site, counts));
    }

    fn count_rejection(name: &'static str, site: Site, wait_ns: u64) {
        private(|world| world.locks.word_locks.add(name, site, &LockCounts::rejection(wait_ns)));
    }
}
