//! Helpers for the models of this directory: small scenarios of production code that must hold
//! under every choice of the model checker within its bound. `cargo xtask models` runs them in
//! release mode in a patched tree, where each model must find a bug that was added on purpose.

use millrace_checker::plant::{self, Plant};
use millrace_checker::{Checked, CheckedThread, Explorer};
use millrace_machine::Machine;

pub(super) fn spawn(body: impl FnOnce() + Send + 'static) -> CheckedThread {
    Checked::spawn("t", None, Box::new(body))
}

/// Checks that `body` holds within the bounds, and that it fails with each of the seeded bugs. Bugs
/// can be seeded only in the patched tree of `cargo xtask models`.
pub(super) fn holds_but_for(name: &str, explorer: Explorer, bugs: &[Plant], body: impl Fn()) {
    println!("{name}: {}", explorer.check(&body));
    for bug in bugs.iter().filter(|_| plant::HOOKS) {
        let found = plant::with(*bug, || explorer.find(&body));
        let failure = found.unwrap_or_else(|| panic!("{name}: {bug:?} is not found"));
        let (reason, executions) = (failure.reason, failure.executions);
        println!("{name}: {bug:?} found in execution {executions}: {reason}");
    }
}
