//! The daemon's part of `millrace ctl resize`: a volume asks its drives, and grows.
//!
//! Called by daemon.rs for the control socket, on the views' thread, which waits for as long as
//! the drives take to answer; I/O goes on meanwhile. Says on standard output what grew.

use std::sync::Arc;

use millrace_block::{ErrorKind, Volume};
use millrace_console::{say, visible};
use millrace_machine::Native;

use crate::config::words::bytes_for_people;
use crate::views::Refusal;
use crate::views::growth::VolumeGrowth;

/// Has the volume of this name grow, as far as its drives have.
///
/// # Errors
/// `bad-request` if there is none, `busy` if it is growing already, `refused` if a drive is smaller
/// or must not grow, `io` if one cannot be asked.
pub fn resize(volumes: &[Arc<Volume<Native>>], name: &str) -> Result<VolumeGrowth, Refusal> {
    let volume = volume_of(volumes, name)?;
    let resized = volume.resize().map_err(|error| {
        let kind = match error.kind() {
            ErrorKind::Busy => "busy",
            ErrorKind::System => "io",
            _ => "refused",
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

/// The volume of a name.
///
/// # Errors
/// `bad-request` if there is none.
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
