//! Errors of a start as problems of a plan: at the line of the drive, key, listener or export.
//!
//! Pure. Called by findings.rs, start/drives.rs and `serve`, so `--check` and a start say the same.

use millrace::{Part, SetupError, StartError};
use millrace_drives::SpecError;

use crate::config::{Place, Problems, ServePlan};

/// An error at the line of what it is about.
pub fn to_problems(plan: &ServePlan, error: &StartError) -> Problems {
    let mut problems = Problems::new(&plan.file);
    let text = text_of(&error.source);
    match error.part {
        // Files of directories that are open are in no file of a configuration.
        Part::Drive(number) if number >= plan.lines.drives.len() => {
            problems.add_at(Place::File, text);
        }
        Part::Drive(number) => {
            let (line, text) = drive_problem(plan, number, &error.source);
            problems.add(line, text);
        }
        Part::Volume(number) => match plan.lines.volumes.get(number) {
            Some(lines) => problems.add(lines.line, text),
            None => problems.add_at(Place::File, text),
        },
        Part::Listener(number) => problems.add(plan.listeners[number].line, format!("nbd: {text}")),
        Part::ListenerTls(number) => problems.add(plan.listeners[number].tls_line, text),
        Part::Export(number) => match plan.lines.exports.get(number) {
            Some(lines) if lines.has("directory") => problems.add(lines.at("directory"), text),
            Some(lines) => problems.add(lines.at("tls-allow"), text),
            None => problems.add_at(Place::File, text),
        },
        Part::Guests(number) => {
            let line = plan.lines.exports[number].at("vhost-user-blk");
            problems.add(line, format!("vhost-user-blk: {text}"));
        }
        _ => problems.add_at(Place::File, text),
    }
    problems
}

/// The whole text of an error; what a drive's is about needs no more than its name.
fn text_of(error: &SetupError) -> String {
    match error {
        SetupError::Drive { name, cause } => format!("drive {name}: {cause}"),
        other => other.to_string(),
    }
}

/// The line and text of an error about a drive: of its key if it names one.
fn drive_problem(plan: &ServePlan, number: usize, error: &SetupError) -> (usize, String) {
    let lines = &plan.lines.drives[number];
    let text = text_of(error);
    match error {
        SetupError::SameFile { other, .. } if *other < plan.lines.drives.len() => {
            (lines.at("path"), same_file(plan, number, *other))
        }
        SetupError::SameFile { .. } => (lines.at("path"), text),
        SetupError::Drive { cause: SpecError::InvalidValue { key, .. }, .. } => {
            (lines.at(key), text)
        }
        SetupError::Drive { cause: SpecError::Open(_), .. } => {
            // What the drive itself says may name a key, too, as in `size=4g`.
            let named = |key: &&str| text.contains(&format!(" {key}="));
            let (drive, _) = plan.drives().nth(number).expect("the drive of this number");
            let keys = millrace_drives::known_keys(&drive.spec.driver).unwrap_or_default();
            let named = keys.iter().copied().filter(|key| lines.has(key)).find(named);
            let place = if lines.has("uri") { "uri" } else { "path" };
            (lines.at(named.unwrap_or(place)), text)
        }
        _ => (lines.line, text),
    }
}

/// Two drives of one file, in words.
fn same_file(plan: &ServePlan, number: usize, other: usize) -> String {
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
            let (store, one) = match drive.spec.innermost().driver.as_str() {
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
