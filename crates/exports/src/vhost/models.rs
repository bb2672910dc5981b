//! Helpers for the models in this directory. A model is a small scenario of production code. The
//! model checker runs a model with every order of steps up to a bound, and no run may fail.
//!
//! `cargo xtask models` runs the models in release mode in a patched tree. There each model must
//! also find the bugs that were seeded for it.

use millrace_checker::plant::{self, Plant};
use millrace_checker::{Checked, CheckedThread, Explorer};
use millrace_machine::Machine;

pub(super) fn spawn(body: impl FnOnce() + Send + 'static) -> CheckedThread {
    Checked::spawn("t", None, Box::new(body))
}

/// Checks that scenario `body` never fails within the bounds of `explorer`, and that it fails with
/// each of the seeded bugs. Bugs can be seeded only in the patched tree of `cargo xtask models`.
pub(super) fn holds_but_for(name: &str, explorer: Explorer, bugs: &[Plant], body: impl Fn()) {
    println!("{name}: {}", explorer.check(&body));
    for bug in bugs.iter().filter(|_| plant::HOOKS) {
        let found = plant::with(*bug, || explorer.find(&body));
        let failure = found.unwrap_or_else(|| panic!("{name}: {bug:?} is not found"));
        let (reason, executions) = (failure.reason, failure.executions);
        println!("{name}: {bug:?} found in execution {executions}: {reason}");
    }
}
