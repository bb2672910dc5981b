//! What `--check` finds out of drives without opening them for use: sizes, and what is left over.
//!
//! Called by `serve` for report.rs. Files and devices are looked at, never locked, made or changed.
//! One that is not there is a warning, since a configuration may be checked elsewhere than where it
//! will serve, but the answer is then that it would not start here.

use std::fmt::Write;

use millrace::{DriveSpace, Space};
use millrace_block::Layout;
use millrace_drives::measure as measure_drive;

use crate::config::words::bytes_for_people;
use crate::config::{Checked, Drive};
use crate::visible::visible;

/// What was found, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measured {
    /// Whether every drive is there, and every volume large enough.
    pub starts: bool,
    /// A line for each volume whose drives are there.
    pub volumes: String,
}

/// Looks at the drives of a plan; logs warnings and notes as starting would.
pub fn measure(plan: &Checked) -> Measured {
    let mut found = Measured { starts: true, volumes: String::new() };
    let spaces: Vec<Option<DriveSpace>> =
        plan.drives.iter().map(|drive| found.drive(plan, drive)).collect();
    for volume in &plan.volumes {
        let drives: Option<Vec<DriveSpace>> =
            volume.drives.iter().map(|drive| spaces[*drive].clone()).collect();
        if let Some(drives) = drives {
            let place = place(plan, volume.line);
            found.volume(&place, &volume.name, &Space { layout: volume.layout, drives });
        }
    }
    found
}

/// A line of the configuration, if there are lines.
fn place(plan: &Checked, line: usize) -> String {
    match plan.file.as_str() {
        "" => String::new(),
        file => format!("{}:{line}: ", visible(file)),
    }
}

impl Measured {
    fn drive(&mut self, plan: &Checked, drive: &Drive) -> Option<DriveSpace> {
        let name = drive.name.clone();
        match measure_drive(&drive.spec) {
            Ok(measured) => {
                let of_drive = |text: &String| format!("drive {name}: {text}");
                let warnings = measured.warnings.iter().map(of_drive);
                warnings.for_each(|text| tracing::warn!("{text}"));
                measured.notes.iter().map(of_drive).for_each(|text| tracing::info!("{text}"));
                let (size_bytes, block_bytes) = (measured.size_bytes, measured.block_bytes);
                Some(DriveSpace { name, size_bytes, block_bytes })
            }
            Err(error) => {
                tracing::warn!("{}drive {name}: {error}", place(plan, drive.line));
                self.starts = false;
                None
            }
        }
    }

    fn volume(&mut self, place: &str, name: &str, space: &Space) {
        let size_bytes = space.used_bytes();
        let layout = match space.layout {
            Layout::Linear => "linear",
            Layout::Stripe { .. } => "stripe",
        };
        if size_bytes == 0 {
            tracing::warn!("{place}volume {name}: a drive is too small for a {layout}");
            self.starts = false;
            return;
        }
        if let Some(note) = space.note(name) {
            tracing::info!("{note}");
        }
        let size = bytes_for_people(size_bytes);
        let name = visible(name);
        let _ = writeln!(self.volumes, "volume \"{name}\": {size} ({size_bytes} bytes), {layout}");
    }
}
