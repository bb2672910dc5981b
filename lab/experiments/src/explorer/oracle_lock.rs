//! `Held`: the judge of an exploration, while one simulated thread has it.
//!
//! The judge lies in a mutex of the system, which knows nothing of simulated threads: all of them
//! run on one thread of the system, so that whoever called the machine while it holds the judge
//! would have the next one wait for ever. Used by both explorations.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, TryLockError};

use millrace_simulator::{Simulated, Still};

/// The judge, for a moment in which nothing happens on the machine.
pub(crate) struct Held<'a, J> {
    judge: MutexGuard<'a, J>,
    _still: Still,
}

impl<J> Deref for Held<'_, J> {
    type Target = J;

    fn deref(&self) -> &J {
        &self.judge
    }
}

impl<J> DerefMut for Held<'_, J> {
    fn deref_mut(&mut self) -> &mut J {
        &mut self.judge
    }
}

/// The judge, for a moment.
///
/// # Panics
/// If another simulated thread has it: that one called the machine meanwhile, and will not go on
/// before this one does.
#[track_caller]
pub(crate) fn hold<J>(shared: &Mutex<J>) -> Held<'_, J> {
    let judge = match shared.try_lock() {
        Ok(judge) => judge,
        Err(TryLockError::Poisoned(judge)) => judge.into_inner(),
        Err(TryLockError::WouldBlock) => {
            panic!("explore itself: the judge was held over a call to the machine")
        }
    };
    Held { judge, _still: Simulated::hold_still() }
}
