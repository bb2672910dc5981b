//! `OracleGuard`: exclusive access to an exploration's oracle by one simulated thread.
//!
//! The oracle is in a system mutex, which does not know simulated threads. All simulated threads
//! run on one system thread. If a simulated thread called the machine while it holds the oracle,
//! the next simulated thread that locks the oracle would wait for ever.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, TryLockError};

use millrace_simulator::{Simulated, StillGuard};

/// A locked oracle. The machine must not be called while the guard exists.
pub(crate) struct OracleGuard<'a, O> {
    oracle: MutexGuard<'a, O>,
    _still: StillGuard,
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

/// Locks the oracle.
///
/// # Panics
/// If another simulated thread holds this lock. That thread then yielded to the simulator with the
/// lock held, and would never get to release it.
#[track_caller]
pub(crate) fn lock_oracle<O>(shared: &Mutex<O>) -> OracleGuard<'_, O> {
    let oracle = match shared.try_lock() {
        Ok(oracle) => oracle,
        Err(TryLockError::Poisoned(oracle)) => oracle.into_inner(),
        Err(TryLockError::WouldBlock) => {
            panic!(
                "bug in the explorer: a thread held the oracle's lock while it called the \
                 simulated machine"
            )
        }
    };
    OracleGuard { oracle, _still: Simulated::hold_still() }
}
