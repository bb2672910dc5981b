//! Opens the drives of a configuration and creates its volumes. The first failure undoes
//! everything.
//!
//! `millrace::Opening` opens the drives. This module also records created files, which a failed
//! start removes, and logs which drive waits for a file that another process has locked.

use std::sync::Mutex;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use millrace::{DriveConfig, Opened, Opening};
use millrace_console::visible;
use millrace_machine::lock_unpoisoned;

use super::startup::StartProgress;
use crate::config::ServePlan;
use crate::verbs::serve::check::{lost_file, probe, start_error};

/// Interval at which `watch` checks which drive is being opened. If two checks in a row find the
/// same drive, the process or cluster that the drive waits for is logged.
const PATIENCE: Duration = Duration::from_millis(250);

pub fn open(plan: &ServePlan, startup: &StartProgress) -> anyhow::Result<Opened> {
    startup.step("examining the drives' files")?;
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
        // The thread only logs which drive the start waits for. If the thread cannot be started,
        // the start continues without these messages.
        let _ =
            thread::Builder::new().spawn_scoped(scope, move || watch(current, &waiting, startup));
        let _done = done;
        while let Some(drive) = opening.next_drive() {
            let spec = drive.spec.to_string();
            startup.step(format!("opening drive {} ({})", visible(&drive.name), visible(&spec)))?;
            *lock_unpoisoned(current) = Some(drive);
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

/// Logs a drive whose opening takes longer than `PATIENCE`, with the process or cluster that it
/// waits for, if that is known. Returns when `open` drops the sender of the channel `waiting`.
fn watch(
    current: &Mutex<Option<&DriveConfig>>,
    waiting: &mpsc::Receiver<()>,
    startup: &StartProgress,
) {
    let mut seen: Option<(&DriveConfig, bool)> = None;
    while waiting.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
        let Some(drive) = *lock_unpoisoned(current) else { continue };
        let said = match seen {
            Some((last, said)) if std::ptr::eq(last, drive) => said || say(drive, startup),
            _ => false,
        };
        seen = Some((drive, said));
    }
}

/// Logs the process or cluster that a drive waits for. Returns false if none is known.
fn say(drive: &DriveConfig, startup: &StartProgress) -> bool {
    let Some(awaited) = probe::awaited(&drive.spec) else { return false };
    tracing::info!("drive {}: waiting {awaited}", drive.name);
    // `step` fails if a signal has stopped the start of the daemon. The failure is ignored here,
    // because the main thread fails at its next step, and then reports the stop.
    let _ = startup.step(format!("drive {} was waiting {awaited}", drive.name));
    true
}
