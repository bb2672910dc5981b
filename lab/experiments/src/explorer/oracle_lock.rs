//! `OracleGuard`: exclusive access to an exploration's oracle by one simulated thread.
//!
//! A system mutex protects the oracle, but all simulated threads run on one system thread. So a
//! simulated thread must not call the simulated machine (`Simulated`) while it holds the guard. The
//! machine could switch to another simulated thread, which could never lock the mutex.
//! `lock_oracle` panics instead of waiting.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, TryLockError};

use millrace_simulator::{Simulated, StillGuard};

/// Guard of the locked oracle. No thread may call the simulated machine (`Simulated`) while the
/// guard exists.
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
