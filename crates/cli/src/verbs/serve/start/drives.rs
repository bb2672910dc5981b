//! Opens the drives of a plan and makes its volumes; the first failure undoes it all.
//!
//! Called by `serve` between checking and binding. `millrace::Opening` does it; the rest is for
//! people: files that a start makes are noted, and a drive whose file another process has is waited
//! for with a word.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use millrace::{DriveConfig, Opened, Opening};
use millrace_console::visible;

use super::startup::Startup;
use crate::config::ServePlan;
use crate::verbs::serve::check::{lost_file, probe, start_error};

/// From one look at the drive that is being opened to the next. A person hears of a drive that is
/// the same at two looks.
const PATIENCE: Duration = Duration::from_millis(250);

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
    let current = Mutex::new(None);
    let (done, waiting) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let current = &current;
        // Without a thread nothing is said.
        let _ =
            thread::Builder::new().spawn_scoped(scope, move || watch(current, &waiting, startup));
        let _done = done;
        while let Some(drive) = opening.next_drive() {
            let spec = drive.spec.to_string();
            startup.step(format!("opening drive {} ({})", visible(&drive.name), visible(&spec)))?;
            *current.lock().unwrap_or_else(PoisonError::into_inner) = Some(drive);
            opening.open_next().map_err(problem)?;
            let made = opening.created().after(noted);
            noted += made.paths().count();
            startup.made(made);
        }
        anyhow::Ok(())
    })?;
    startup.step("making the volumes")?;
    Ok(opening.finish().map_err(problem)?)
}

/// Says what a drive waits for whose opening takes long, until `waiting` has no sender any more.
fn watch(current: &Mutex<Option<&DriveConfig>>, waiting: &mpsc::Receiver<()>, startup: &Startup) {
    let mut seen: Option<(&DriveConfig, bool)> = None;
    while waiting.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
        let Some(drive) = *current.lock().unwrap_or_else(PoisonError::into_inner) else { continue };
        let said = match seen {
            Some((last, said)) if std::ptr::eq(last, drive) => said || say(drive, startup),
            _ => false,
        };
        seen = Some((drive, said));
    }
}

/// Says what a drive waits for, if that is known.
fn say(drive: &DriveConfig, startup: &Startup) -> bool {
    let Some(awaited) = probe::awaited(&drive.spec) else { return false };
    tracing::info!("drive {}: waiting {awaited}", drive.name);
    // What is wrong with a start that has ended is said by whoever ends it.
    let _ = startup.step(format!("drive {} was waiting {awaited}", drive.name));
    true
}
