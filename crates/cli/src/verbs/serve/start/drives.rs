//! Opens the drives of a plan and makes its volumes; the first failure undoes it all.
//!
//! Called by `serve` between checking and binding. `millrace::Opening` does it; what is done here
//! is for people: errors point at the line of the drive or of its key, files that a start makes are
//! noted, and a drive whose file another process has is waited for with a word.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use millrace::{DriveConfig, Opened, Opening, Part, SetupError, StartError};
use millrace_console::{reasons, visible};
use millrace_drives::SpecError;

use super::startup::Startup;
use crate::config::{Checked, Place, Problems};
use crate::verbs::serve::check::lost_file;
use crate::verbs::serve::check::probe;

/// How long a file may be locked before a person hears of it.
const PATIENCE: Duration = Duration::from_millis(500);

/// Opens all drives of a plan and makes its volumes.
///
/// # Errors
/// The first thing that cannot be opened, with its line, or that a signal has ended the start.
pub fn open(plan: &Checked, startup: &Startup) -> anyhow::Result<Opened> {
    startup.step("looking at the drives' files")?;
    lost_file::check(plan)?;
    let problem = |error| problem(plan, &error);
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

/// An error at the line of what it is about.
pub fn problem(plan: &Checked, error: &StartError) -> Problems {
    let mut problems = Problems::new(&plan.file);
    let text = text_of(&error.source);
    match error.part {
        Part::Drive(number) => {
            let (line, text) = drive_problem(plan, number, &error.source);
            problems.add(line, text);
        }
        Part::Volume(number) => problems.add(plan.lines.volumes[number], text),
        Part::Listener(number) => problems.add(plan.listeners[number].line, format!("nbd: {text}")),
        Part::ListenerTls(number) => problems.add(plan.listeners[number].tls_line, text),
        Part::Export(number) => problems.add(plan.lines.exports[number], text),
        Part::Guests(number) => {
            let line = plan.lines.guests[number].unwrap_or(1);
            problems.add(line, format!("vhost-user-blk: {text}"));
        }
        _ => problems.add_at(Place::File, text),
    }
    problems
}

/// The whole text of an error; what a drive's is about needs no more than its name.
fn text_of(error: &SetupError) -> String {
    match error {
        SetupError::Drive { name, source } => format!("drive {name}: {}", reasons(source)),
        other => reasons(other),
    }
}

/// The line and text of an error about a drive: of its key if it names one.
fn drive_problem(plan: &Checked, number: usize, error: &SetupError) -> (usize, String) {
    let lines = &plan.lines.drives[number];
    let text = text_of(error);
    match error {
        SetupError::SameFile { other, .. } => {
            (lines.of_key("path"), same_file(plan, number, *other))
        }
        SetupError::Drive { source: SpecError::InvalidValue { key, .. }, .. } => {
            (lines.of_key(key), text)
        }
        SetupError::Drive { source: SpecError::Open(_), .. } => {
            // What the drive itself says may name a key, too, as in `size=4g`.
            let named = |key: &&str| text.contains(&format!(" {key}="));
            let named = lines.keys.iter().map(|(key, _)| key.as_str()).find(named);
            let is_remote = lines.keys.iter().any(|(key, _)| key == "uri");
            let place = if is_remote { "uri" } else { "path" };
            (lines.of_key(named.unwrap_or(place)), text)
        }
        _ => (lines.line, text),
    }
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

/// Two drives of one file, in words.
fn same_file(plan: &Checked, number: usize, other: usize) -> String {
    let drives: Vec<_> = plan.drives().collect();
    let ((drive, _), (other, other_lines)) = (drives[number], drives[other]);
    match (plan.file.as_str(), (drive.spec.file(), other.spec.file())) {
        // Whoever has named files has named no drives.
        ("", (Some(file), Some(same))) if file == same => {
            format!("{}: this file is named twice; name it once", file.display())
        }
        ("", (Some(file), Some(same))) => {
            let (file, same) = (file.display(), same.display());
            format!("{file}: this is the same file as {same}; name one of them")
        }
        ("", _) => {
            let spec = &drive.spec;
            format!("{spec}: this keeps its data where another one does; name one of them")
        }
        _ => {
            let (store, one) = match probe::innermost(&drive.spec).driver.as_str() {
                "file" => ("file", "a file"),
                "rbd" => ("image", "an image"),
                _ => ("export", "one"),
            };
            format!(
                "drive {}: its {store} is that of drive {} (line {}) too; give each drive {one} of \
                 its own",
                drive.name, other.name, other_lines.line
            )
        }
    }
}
