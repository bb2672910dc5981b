//! The daemon's part of `millrace ctl set`: changes settings of a served volume.
//!
//! Either all drives of the volume get the setting, or none.

use std::sync::Arc;

use millrace::{SchedulerKind, Words};
use millrace_block::{Disk, Volume};
use millrace_console::{say, visible};
use millrace_machine::Native;

use crate::config::words;
use crate::views::settings::{Drive, VolumeChange};
use crate::views::{Refusal, SetVolume};

pub fn set(
    volumes: &[Arc<Volume<Native>>],
    asked: &SetVolume,
    warn: impl FnOnce(&Arc<Volume<Native>>) -> Vec<String>,
) -> Result<VolumeChange, Refusal> {
    let volume = volume_of(volumes, &asked.volume)?;
    let Some(word) = &asked.scheduler else {
        let text = "set: there is no setting in the request; add scheduler=WORD";
        return Err(Refusal::new("bad-request", text));
    };
    let kind: SchedulerKind =
        words::setting(word).map_err(|text| Refusal::new("bad-request", text))?;
    let before: Vec<SchedulerKind> = volume.drives().iter().map(|disk| kind_of(disk)).collect();
    for disk in volume.drives() {
        if let Err(error) = disk.set_scheduler(kind) {
            // A drive has refused the new scheduler, so all drives of the volume get their previous
            // scheduler back.
            for (disk, kind) in volume.drives().iter().zip(&before) {
                let _ = disk.set_scheduler(*kind);
            }
            let text = format!("volume {}: {error}; nothing has changed", volume.name());
            return Err(Refusal::new("refused", text));
        }
    }
    let drives = volume.drives().iter().zip(before).map(|(disk, before)| Drive {
        name: disk.name().to_owned(),
        scheduler: kind.word().to_owned(),
        before: before.word().to_owned(),
    });
    let drives = drives.collect();
    let name = visible(volume.name());
    say(&format!("volume {name}: scheduler {} from now on\n", kind.word()));
    let warnings = warn(volume);
    warnings.iter().for_each(|warning| tracing::warn!("{}", visible(warning)));
    Ok(VolumeChange { volume: volume.name().to_owned(), drives, warnings })
}

pub fn volume_of<'a>(
    volumes: &'a [Arc<Volume<Native>>],
    name: &str,
) -> Result<&'a Arc<Volume<Native>>, Refusal> {
    volumes.iter().find(|volume| volume.name() == name).ok_or_else(|| {
        let known = volumes.iter().map(|volume| format!("{:?}", volume.name()));
        let known = known.collect::<Vec<_>>().join(", ");
        let verb = if volumes.len() == 1 { "is" } else { "are" };
        let text = format!("there is no volume {name:?}; there {verb} {known}");
        Refusal::new("bad-request", text)
    })
}

/// Returns the kind of a drive's scheduler, which in a daemon is always a built-in one.
pub fn kind_of(disk: &Disk<Native>) -> SchedulerKind {
    disk.scheduler().unwrap_or_default()
}
