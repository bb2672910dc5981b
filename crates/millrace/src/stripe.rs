//! Opens drives from specs as a striped or linear volume, for `BlockDevice` and `AsyncDevice`.
//!
//! opening.rs opens the drives; this module chooses the number of threads that may use them.

use std::sync::Arc;

use millrace_block::{Error, Layout, Serving, ServingConfig};
use millrace_drives::Spec;

use crate::Volume;
use crate::assemble::SetupError;
use crate::config::{ConfigPart, DriveConfig, OpenConfig, StartError, VolumeConfig};
use crate::opening::Opened;
use crate::space::CHUNK_SECTORS;

/// Maximum number of threads that may use a volume of
/// [`BlockDevice::stripe`](crate::BlockDevice::stripe) at a time if one of its drives is a file.
/// Each thread has a queue of its own on every drive; 64 queues take about 1 MiB per file.
/// [`VolumeOptions::io_threads`](crate::VolumeOptions::io_threads) sets another number.
pub const STRIPE_THREADS: u16 = 64;

pub(crate) const STRIPED: Layout = Layout::Stripe { chunk_sectors: CHUNK_SECTORS };

/// Opens the drives of specs, named `d0`, `d1` and so on, as a volume named after its layout, and
/// passes it to `start`. Returns the result of `start` with remarks about the drives.
pub(crate) fn open<D>(
    layout: Layout,
    specs: &[impl AsRef<str>],
    start: impl FnOnce(&Arc<Volume>) -> Result<D, Error>,
) -> Result<(D, Vec<String>), StartError> {
    let drive = |(number, text): (usize, &_)| {
        let name = format!("d{number}");
        match AsRef::<str>::as_ref(text).parse::<Spec>() {
            Ok(spec) => Ok(DriveConfig::new(name, spec)),
            Err(cause) => {
                Err(StartError::new(ConfigPart::Drive(number), SetupError::Drive { name, cause }))
            }
        }
    };
    let drives: Vec<_> = specs.iter().enumerate().map(drive).collect::<Result<_, _>>()?;
    // File drives have queues owned by I/O threads. Any thread may run the queues of other drives.
    let has_owners = drives.iter().any(|drive| drive.spec.is_run_by_owners());
    let io_threads = vec![if has_owners { STRIPE_THREADS } else { 1 }];
    // The submitting threads run the queues, because there are no workers.
    let serving = ServingConfig::of(Serving::Inline);
    let name = if layout == Layout::Linear { "linear" } else { "stripe" };
    let volumes = vec![VolumeConfig { layout, serving, ..VolumeConfig::new(name, drives) }];
    let mut opened = Opened::open(&OpenConfig { volumes, io_threads, ..OpenConfig::default() })?;
    let device = start(&opened.volumes[0]).inspect_err(|_| opened.created.remove())?;
    opened.warnings.append(&mut opened.notes);
    Ok((device, opened.warnings))
}
