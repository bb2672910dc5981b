//! Opens the drives of a plan and makes its volumes; the first failure undoes it all.
//!
//! Called by `serve` between checking and binding. `millrace::Opening` does it; the rest is for
//! people: files that a start makes are noted, and a drive whose file another process has is waited
//! for with a word.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use millrace::{DriveConfig, Opened, Opening};
use millrace_console::visible;

use super::startup::Startup;
use crate::config::ServePlan;
use crate::verbs::serve::check::{lost_file, probe, start_error};

/// Longest time that a file may be locked before a person hears of it.
const PATIENCE: Duration = Duration::from_millis(500);

/// Opens all drives of a plan and makes its volumes.
///
/// # Errors
/// The first thing that cannot be opened, with its line, or that a signal has ended the start.
pub fn open(plan: &ServePlan, startup: &Startup) -> anyhow::Result<Opened> {
    startup.step("looking at the drives' files")?;
    lost_file::check(plan)?;
    let problem = |error| start_error::to_problems(plan, &error);
    let config = plan.config.to_open();
    let mut opening =
        Opening::new(&config).map_err(problem)?.cancelled_by(startup.cancel().clone());
    let mut noted = 0;
    while let Some(drive) = opening.next_drive() {
        let spec = drive.spec.to_string();
        startup.step(format!("opening drive {} ({})", visible(&drive.name), visible(&spec)))?;
        saying_what_it_waits_for(drive, startup, || opening.open_next()).map_err(problem)?;
        let made = opening.created().after(noted);
        noted += made.paths().count();
        startup.made(made);
    }
    startup.step("making the volumes")?;
    Ok(opening.finish().map_err(problem)?)
}

/// Opens a drive; says meanwhile what it waits for, if that takes long.
fn saying_what_it_waits_for<T>(
    drive: &DriveConfig,
    startup: &Startup,
    open: impl FnOnce() -> T,
) -> T {
    let Some(awaited) = probe::awaited(&drive.spec) else { return open() };
    let (opened, waiting) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let say = move || {
            if waiting.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                tracing::info!("drive {}: waiting {awaited}", drive.name);
                // What is wrong with a start that has ended is said by whoever ends it.
                let _ = startup.step(format!("drive {} was waiting {awaited}", drive.name));
            }
        };
        // Without a thread nothing is said.
        let _ = thread::Builder::new().spawn_scoped(scope, say);
        let result = open();
        drop(opened);
        result
    })
}
