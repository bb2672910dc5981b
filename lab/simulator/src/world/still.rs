//! `StillGuard`: a guard for code sections that must not call the simulated machine.
//!
//! Any call of the simulated machine takes virtual time and may switch to another simulated thread.
//! If the caller holds a native lock, such as a `std` mutex, a thread that then waits for the lock
//! blocks the system thread on which all simulated threads run, forever. Programs mark code that
//! holds such locks with `Simulated::hold_still`; world.rs checks each call. Without debug
//! assertions the guard costs nothing.

use core::cell::Cell;
use core::marker::PhantomData;

use crate::Simulated;

std::thread_local! {
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// Guard during whose lifetime its thread must not call the simulated machine.
#[derive(Debug)]
#[must_use = "dropping the guard ends the section"]
pub struct StillGuard(PhantomData<*const ()>);

impl Simulated {
    /// Forbids use of the simulated machine until the returned guard is dropped. Calls that take
    /// virtual time, and calls that access state shared by threads, are not allowed. In builds with
    /// debug assertions, such a call panics.
    pub fn hold_still() -> StillGuard {
        if cfg!(debug_assertions) {
            HELD.set(HELD.get() + 1);
        }
        StillGuard(PhantomData)
    }
}

impl Drop for StillGuard {
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            HELD.set(HELD.get() - 1);
        }
    }
}

/// Panics, in builds with debug assertions, if the calling thread holds a [`StillGuard`] guard.
#[inline]
pub(crate) fn check() {
    let held = cfg!(debug_assertions) && HELD.get() > 0;
    assert!(
        !held || std::thread::panicking(),
        "a thread called the simulated machine before it dropped its `StillGuard`"
    );
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use crate::{Model, SimError, Simulation};
    use millrace_machine::Machine;

    #[test]
    fn a_call_by_whoever_holds_still_ends_the_simulation() {
        let simulation = Simulation::new(&Model::plain(1, 1), 0).expect("the model must be valid");
        let main = || {
            drop(Simulated::hold_still());
            let before_ns = Simulated::now();
            let _still = Simulated::hold_still();
            assert!(Simulated::now() < before_ns, "it has returned");
        };
        let Err(SimError::Panic { message, .. }) = simulation.run(main) else {
            panic!("it ran to its end");
        };
        assert!(message.contains("before it dropped its `StillGuard`"), "{message}");
    }
}
