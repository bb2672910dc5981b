//! `OracleGuard`: the oracle of an exploration, while one simulated thread has it.
//!
//! The oracle lies in a mutex of the system, which knows nothing of simulated threads: all of them
//! run on one thread of the system, so that whoever called the machine while it holds the oracle
//! would have the next one wait for ever. Used by both explorations.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, TryLockError};

use millrace_simulator::{Simulated, Still};

/// The oracle, for a moment in which nothing happens on the machine.
pub(crate) struct OracleGuard<'a, O> {
    oracle: MutexGuard<'a, O>,
    _still: Still,
}

impl<O> Deref for OracleGuard<'_, O> {
    type Target = O;

    fn deref(&self) -> &O {
        &self.oracle
    }
}

impl<O> DerefMut for OracleGuard<'_, O> {
    fn deref_mut(&mut self) -> &mut O {
        &mut self.oracle
    }
}

/// The oracle, for a moment.
///
/// # Panics
/// If another simulated thread has it: that one called the machine meanwhile, and will not go on
/// before this one does.
#[track_caller]
pub(crate) fn lock_oracle<O>(shared: &Mutex<O>) -> OracleGuard<'_, O> {
    let oracle = match shared.try_lock() {
        Ok(oracle) => oracle,
        Err(TryLockError::Poisoned(oracle)) => oracle.into_inner(),
        Err(TryLockError::WouldBlock) => {
            panic!("explore itself: the judge was held over a call to the machine")
        }
    };
    OracleGuard { oracle, _still: Simulated::hold_still() }
}
