//! Watching a server from beside it: errors of its drives are said, and a thread that died ends it.
//!
//! Runs on the main thread while another waits for signals; wakes every few seconds, which is all
//! that an idle daemon does. Writes to standard error: a line at the first error of an
//! export, then at most one per period with the count.
#![allow(clippy::print_stderr)]

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use millrace::DriveWorkers;
use signal_hook::consts::SIGTERM;

use super::observed::Observed;
use super::servers::Servers;

/// How often it looks.
const PERIOD: Duration = Duration::from_secs(5);

/// Looks after the server until the other end of `done` is dropped. A server that has lost an I/O
/// thread, or a drive's worker, is stopped as by SIGTERM.
pub fn watch(server: &Servers, workers: &DriveWorkers, observed: &Observed, done: &Receiver<()>) {
    let mut said = vec![0; server.errors().len()];
    while done.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
        for (place, (name, count, last)) in server.errors().into_iter().enumerate() {
            let before = std::mem::replace(&mut said[place], count);
            if count > before {
                let new = count - before;
                eprintln!("millrace: export {name}: {new} requests failed; the last: {last}");
            }
        }
        observed.tick();
        let failure = workers.failure().map(|error| error.to_string());
        let failed = server.failed().then(|| "an I/O thread has died".to_owned());
        if let Some(failure) = failed.or(failure) {
            eprintln!("millrace: {failure}; stopping");
            // If it cannot be raised, the next look tries again.
            let _ = signal_hook::low_level::raise(SIGTERM);
        }
    }
}
