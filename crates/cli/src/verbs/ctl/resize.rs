//! `resize`: grows a volume to the current size of its drives, while it is served.
//!
//! The file contains the request and the answer, the daemon's side, and `millrace ctl resize`.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Result;
use millrace_block::{ErrorKind, SECTOR_SHIFT};
use millrace_console::{say, visible};
use serde::{Deserialize, Serialize};

use super::Daemon;
use crate::config::words::bytes_for_people;
use crate::verbs::serve::live::daemon::LiveDaemon;
use crate::verbs::serve::live::volume_settings::volume_of;
use crate::views::{Access, Refusal, Verb};

pub const RESIZE: Verb<Resize, VolumeGrowth> =
    Verb::new("resize", Access::Admins, "grows a volume to the size of its drives");

const EXAMPLES: &str = "\
Examples:
  truncate -s +1G disk.img              the drive grows,
  millrace ctl resize vol0              and the daemon in ./millrace-data serves the new size
  millrace ctl resize vol0 --connect unix:/run/millrace/fast.sock.control --json

A volume that is being served can grow, never shrink. A stripe grows by what its smallest drive \
has grown; in a linear volume only the last drive may grow. A virtual machine sees the new size at \
once, an NBD client when it connects again.
Exit status: 0 if the volume has grown or had nothing to grow by, 2 if the daemon refused.
";

const TOO_LITTLE: &str = "the volume cannot use that: a stripe grows by what its smallest drive has \
                          grown, in whole chunks\n";

const NEEDS_SHOWN: usize = 8;

#[derive(Debug, Serialize, Deserialize, clap::Args)]
#[serde(deny_unknown_fields)]
#[command(after_help = EXAMPLES)]
pub struct Resize {
    /// Name of the volume
    volume: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VolumeGrowth {
    pub volume: String,
    pub old_bytes: u64,
    pub new_bytes: u64,
    pub drives: Vec<Drive>,
    /// Drives that must grow before the volume can grow; empty if the volume has grown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<DriveNeed>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DriveNeed {
    pub name: String,
    pub has_bytes: u64,
    pub needs_bytes: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Drive {
    pub name: String,
    pub old_bytes: u64,
    pub new_bytes: u64,
}

impl VolumeGrowth {
    fn new(volume: &str, resized: millrace_block::Resized) -> VolumeGrowth {
        let drives = resized.drives.into_iter().map(|drive| Drive {
            name: drive.name,
            old_bytes: drive.old << SECTOR_SHIFT,
            new_bytes: drive.new << SECTOR_SHIFT,
        });
        let needs = resized.needs.into_iter().map(|need| DriveNeed {
            name: need.name,
            has_bytes: need.has << SECTOR_SHIFT,
            needs_bytes: need.needs << SECTOR_SHIFT,
        });
        VolumeGrowth {
            needs: needs.collect(),
            volume: volume.to_owned(),
            old_bytes: resized.old << SECTOR_SHIFT,
            new_bytes: resized.new << SECTOR_SHIFT,
            drives: drives.collect(),
        }
    }
}

/// Grows the volume as far as its drives have grown. Runs in the daemon. Other requests to the
/// control socket wait until the drives have answered; I/O continues.
pub fn answer(daemon: &LiveDaemon, asked: &Resize) -> Result<VolumeGrowth, Refusal> {
    let (volumes, name) = (daemon.volumes(), asked.volume.as_str());
    let volume = volume_of(&volumes, name)?;
    let resized = volume.resize().map_err(|error| {
        let kind = match error.kind() {
            ErrorKind::Busy => "busy",
            ErrorKind::InvalidSetting | ErrorKind::NotSupported => "refused",
            _ => "io",
        };
        Refusal::new(kind, format!("volume {name}: {error}"))
    })?;
    let resized = VolumeGrowth::new(name, resized);
    if resized.new_bytes > resized.old_bytes {
        let (new, old) = (resized.new_bytes, resized.old_bytes);
        let (new, old) = (bytes_for_people(new), bytes_for_people(old));
        say(&format!("volume {} has grown to {new}, from {old}\n", visible(name)));
    }
    Ok(resized)
}

pub fn run(daemon: &Daemon, asked: &Resize) -> Result<ExitCode> {
    let resized = daemon.ask(&RESIZE, asked)?;
    daemon.print(&resized, || describe(&resized))
}

fn describe(resized: &VolumeGrowth) -> String {
    let grown = |old: u64, new: u64| {
        let was = format!("was {}", bytes_for_people(old));
        let was = if new > old { &was } else { "unchanged" };
        format!("{} ({new} bytes), {was}", bytes_for_people(new))
    };
    let (old, new) = (resized.old_bytes, resized.new_bytes);
    let mut text = format!("{}: {}\n", visible(&resized.volume), grown(old, new));
    for drive in resized.drives.iter().filter(|drive| drive.new_bytes > drive.old_bytes) {
        let size = grown(drive.old_bytes, drive.new_bytes);
        let _ = writeln!(text, "  {}: {size}", visible(&drive.name));
    }
    let drives_grew = resized.drives.iter().any(|drive| drive.new_bytes > drive.old_bytes);
    match (new > old, drives_grew) {
        (true, _) => {}
        (false, true) => text.push_str(TOO_LITTLE),
        (false, false) => text.push_str("no drive has grown\n"),
    }
    for need in resized.needs.iter().take(NEEDS_SHOWN) {
        let (name, has, needs) = (visible(&need.name), need.has_bytes, need.needs_bytes);
        let _ = writeln!(text, "  {name} must grow first: it has {has} bytes, and needs {needs}");
    }
    if resized.needs.len() > NEEDS_SHOWN {
        let more = resized.needs.len() - NEEDS_SHOWN;
        let _ = writeln!(text, "  {more} more drives must grow, too");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(volume: [u64; 2], drives: &[(&str, [u64; 2])]) -> String {
        let drive = |(name, [old_bytes, new_bytes]): &(&str, [u64; 2])| Drive {
            name: (*name).to_owned(),
            old_bytes: *old_bytes,
            new_bytes: *new_bytes,
        };
        describe(&VolumeGrowth {
            volume: "v".to_owned(),
            old_bytes: volume[0],
            new_bytes: volume[1],
            drives: drives.iter().map(drive).collect(),
            needs: Vec::new(),
        })
    }

    #[test]
    fn drives_that_must_grow_first_are_named_with_what_they_need() {
        let need =
            |at: u64| DriveNeed { name: format!("d{at}"), has_bytes: at, needs_bytes: 65536 };
        let resized =
            VolumeGrowth { needs: (0..10).map(need).collect(), ..VolumeGrowth::default() };
        let text = describe(&resized);
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(lines[3], "  d3 must grow first: it has 3 bytes, and needs 65536");
        assert_eq!((lines.len(), lines[8]), (9, "  2 more drives must grow, too"));
    }

    #[test]
    fn what_grew_is_said_with_what_it_was() {
        let text = said([1 << 20, 2 << 20], &[("d0", [1 << 20, 2 << 20])]);
        let whole = "2 MiB (2097152 bytes), was 1 MiB\n";
        assert_eq!(text, format!("v: {whole}  d0: {whole}"));
    }

    #[test]
    fn what_did_not_grow_is_said_with_the_reason() {
        let text = said([1 << 20; 2], &[("d0", [1 << 20; 2])]);
        assert_eq!(text, "v: 1 MiB (1048576 bytes), unchanged\nno drive has grown\n");
        let text = said([2 << 20; 2], &[("d0", [1 << 20, 3 << 20]), ("d1", [1 << 20; 2])]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "  d0: 3 MiB (3145728 bytes), was 1 MiB");
        assert_eq!(lines[2], TOO_LITTLE.trim_end());
    }
}
