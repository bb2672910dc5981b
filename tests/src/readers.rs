//! Clients that read from exports, one read after the other, while a test observes the daemon.
//!
//! Called by tests of reports under load; calls the bare NBD client.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;

use crate::raw_nbd::RawNbd;

/// Reads from the export `name` at a Unix socket until it is over.
///
/// # Panics
/// If the daemon refuses the client, or a read.
pub fn read_until(over: &AtomicBool, socket: &Path, name: &str) {
    let mut client = RawNbd::connect(socket, name).expect("the daemon takes a client");
    let mut at = 0;
    while !over.load(Ordering::Relaxed) {
        client.read(at % 1024 * 65_536, 4096).expect("a read succeeds");
        at += 7;
    }
}

/// Looks while a client reads from each of these exports at a Unix socket.
///
/// # Panics
/// As [`read_until`], and if `look` does; the clients end first.
pub fn beside_readers(socket: &Path, exports: &[&str], look: impl FnOnce()) {
    let over = AtomicBool::new(false);
    scope(|scope| {
        for export in exports {
            scope.spawn(|| read_until(&over, socket, export));
        }
        let looked = catch_unwind(AssertUnwindSafe(look));
        over.store(true, Ordering::Relaxed);
        looked.unwrap_or_else(|failed| resume_unwind(failed));
    });
}
