//! Support for the models of this folder, run on the checked machine: small scenes of production
//! code, each holding under every choice within its bound. `cargo xtask models` runs them in
//! release, in a patched tree, where each must fail with a bug planted in one line.

use millrace_checker::{Checked, CheckedThread, Explorer};
use millrace_machine::Machine;
use millrace_machine::plant::{self, Plant};

/// Starts a thread of a model.
pub(super) fn spawn(body: impl FnOnce() + Send + 'static) -> CheckedThread {
    Checked::spawn("t", None, Box::new(body))
}

/// `body` holds within the bounds, and fails with each of the bugs planted, where there are hooks
/// for them: in the tree of `cargo xtask models`.
pub(super) fn holds_but_for(name: &str, explorer: Explorer, bugs: &[Plant], body: impl Fn()) {
    println!("{name}: {}", explorer.check(&body));
    for bug in bugs.iter().filter(|_| plant::HOOKS) {
        let found = plant::with(*bug, || explorer.find(&body));
        let failure = found.unwrap_or_else(|| panic!("{name}: {bug:?} is not found"));
        let (reason, executions) = (failure.reason, failure.executions);
        println!("{name}: {bug:?} found by execution {executions}: {reason}");
    }
}
