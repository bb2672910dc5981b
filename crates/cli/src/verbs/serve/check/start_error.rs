//! Converts errors of a daemon's start to problems that name the configuration line of the drive,
//! key, listener or export.
//!
//! Pure functions. findings.rs, start/drives.rs and `serve` call them, so that `--check` and a
//! start agree.

use millrace::{ConfigPart, SetupError, StartError};
use millrace_drives::SpecError;

use crate::config::{ConfigProblems, KeyLines, Position, ServePlan};

pub fn to_problems(plan: &ServePlan, error: &StartError) -> ConfigProblems {
    let text = text_of(&error.source);
    let lines = &plan.lines;
    // Each file of a directory export has its own drive, volume and export. The configuration file
    // contains none of them, so errors about them have no line.
    let (line, text) = match error.part {
        ConfigPart::Drive(number) if number < lines.drives.len() => {
            let (line, text) = drive_problem(plan, number, &error.source);
            (Some(line), text)
        }
        ConfigPart::Volume(number) => (lines.volumes.get(number).map(|lines| lines.line), text),
        ConfigPart::Listener(number) => {
            let is_open = text.ends_with("say who may connect");
            let keys =
                if is_open { ": set allow-users or allow-groups in its [[listener]]" } else { "" };
            (Some(plan.listeners[number].line), format!("nbd: {text}{keys}"))
        }
        ConfigPart::ListenerTls(number) => (Some(plan.listeners[number].tls_line), text),
        ConfigPart::Export(number) => {
            let key = |lines: &KeyLines| {
                if lines.has("directory") { "directory" } else { "tls-allow" }
            };
            (lines.exports.get(number).map(|lines| lines.at(key(lines))), text)
        }
        ConfigPart::Guests(number) => {
            let line = lines.exports[number].at("vhost-user-blk");
            (Some(line), format!("vhost-user-blk: {text}"))
        }
        _ => (None, text),
    };
    plan.problem(line.map_or(Position::File, Position::Line), text)
}

fn text_of(error: &SetupError) -> String {
    match error {
        SetupError::Drive { name, cause } => format!("drive {name}: {cause}"),
        other => other.to_string(),
    }
}

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
            // If the driver's error text names a key, as in `size=4g`, the error is reported at the
            // key's line. Otherwise the error is reported at the line of `uri` or `path`.
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

fn same_file(plan: &ServePlan, number: usize, other: usize) -> String {
    let drives: Vec<_> = plan.drives().collect();
    let ((drive, _), (other, other_lines)) = (drives[number], drives[other]);
    match (plan.file.as_str(), (drive.spec.file(), other.spec.file())) {
        // Files on the command line get generated drive names, so the message names the files
        // instead.
        ("", (Some(file), Some(same))) if file == same => {
            format!("{}: this file is named twice; name it only once", file.display())
        }
        ("", (Some(file), Some(same))) => {
            let (file, same) = (file.display(), same.display());
            format!("{file}: this is the same file as {same}; name only one of them")
        }
        ("", _) => {
            let spec = &drive.spec;
            format!(
                "{spec}: another drive in the list uses the same storage; name only one of them"
            )
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
