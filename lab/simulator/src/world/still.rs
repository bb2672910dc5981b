//! `Still`: moments in which a program may not call the machine.
//!
//! Any call may let other simulated threads run, since time passes by it: whoever holds something
//! of the real machine over it (a mutex, a borrow) has them wait for that on the same thread of the
//! system, for ever. Programs say so with `Simulated::hold_still`; world.rs asks at each call.
//! Costs nothing in builds without debug assertions.

use core::cell::Cell;
use core::marker::PhantomData;

use crate::Simulated;

std::thread_local! {
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// As long as this exists its thread may not call the simulated machine.
#[derive(Debug)]
#[must_use = "dropped, it ends the moment"]
pub struct Still(PhantomData<*const ()>);

impl Simulated {
    /// From now on, until the value is dropped, a call that takes virtual time or that others can
    /// see is a bug: builds with debug assertions panic at it.
    pub fn hold_still() -> Still {
        if cfg!(debug_assertions) {
            HELD.set(HELD.get() + 1);
        }
        Still(PhantomData)
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            HELD.set(HELD.get() - 1);
        }
    }
}

/// At each call of the machine.
#[inline]
pub(crate) fn check() {
    let held = cfg!(debug_assertions) && HELD.get() > 0;
    assert!(
        !held || std::thread::panicking(),
        "the simulated machine is called by a thread that holds still"
    );
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use crate::{Model, SimError, Simulation};
    use millrace_machine::Machine;

    #[test]
    fn a_call_by_whoever_holds_still_ends_the_simulation() {
        let simulation = Simulation::new(&Model::plain(1, 1), 0).expect("a valid model");
        let main = || {
            drop(Simulated::hold_still());
            let before_ns = Simulated::now();
            let _still = Simulated::hold_still();
            assert!(Simulated::now() < before_ns, "it has returned");
        };
        let Err(SimError::Panic { message, .. }) = simulation.run(main) else {
            panic!("it ran to its end");
        };
        assert!(message.contains("holds still"), "{message}");
    }
}
