//! Notes about values of drive specs whose units earlier versions read differently.
//!
//! Bandwidths with k, m or g used to be powers of 1000, and sizes with kB, MB or GB powers of 1024.
//! Delete this file, and its line in check.rs, after the next release.

use super::plan::LocatedDrive;
use super::words::{bytes_for_people, rate_bytes_per_s, size};

pub fn add(file: &str, drives: &[LocatedDrive], warnings: &mut Vec<String>) {
    for (drive, lines) in drives {
        for (key, value) in &drive.spec.innermost().options {
            let line = lines.first(&["drive", key]).unwrap_or(lines.line);
            let note = note(key, value).map(|note| format!("{file}:{line}: note: {note}"));
            warnings.extend(note);
        }
    }
}

fn note(key: &str, value: &str) -> Option<String> {
    let (instead, before, per, now) = match key {
        "read-bandwidth" | "write-bandwidth" | "controller-bandwidth" => {
            let instead = format!("{}B", value.to_ascii_uppercase());
            (instead.clone(), rate_bytes_per_s(&instead), "/s", rate_bytes_per_s(value))
        }
        "size" | "block" | "page" | "buffer" => {
            let stem = value.strip_suffix('B')?;
            (format!("{stem}iB"), size(stem), "", size(value))
        }
        _ => return None,
    };
    let (before, now) = (before.ok()?, now.ok()?);
    (before != now).then(|| {
        format!(
            "{key} {value} is {}{per} ({now} bytes{per}); earlier builds read it as {before} \
             bytes{per}; write {instead} for that",
            bytes_for_people(now)
        )
    })
}
