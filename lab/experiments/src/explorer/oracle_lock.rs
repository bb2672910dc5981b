//! `OracleGuard`: exclusive access to an exploration's oracle by one simulated thread.
//!
//! The oracle lies in a system mutex, which knows nothing of simulated threads. All of them run on
//! one system thread, so a simulated thread that called the machine while holding the oracle would
//! make the next one wait for ever. Used by both explorations.

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
/// If another simulated thread holds it: that thread called the machine while it held the oracle,
/// and cannot continue before this one does.
#[track_caller]
pub(crate) fn lock_oracle<O>(shared: &Mutex<O>) -> OracleGuard<'_, O> {
    let oracle = match shared.try_lock() {
        Ok(oracle) => oracle,
        Err(TryLockError::Poisoned(oracle)) => oracle.into_inner(),
        Err(TryLockError::WouldBlock) => {
            panic!("explore itself: the oracle was held across a call to the machine")
        }
    };
    OracleGuard { oracle, _still: Simulated::hold_still() }
}
