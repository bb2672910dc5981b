//! Opens drives from specs as a striped volume, for `BlockDevice::stripe` and
//! `AsyncDevice::stripe`.
//!
//! Owns the default number of threads for a volume of files. Called by block_device.rs; opening.rs
//! does the work.

use millrace_block::{Serving, ServingConfig};
use millrace_drives::Spec;

use crate::assemble::SetupError;
use crate::config::{ConfigPart, DriveConfig, OpenConfig, StartError, VolumeConfig};
use crate::opening::Opened;

/// Most threads that may use a volume of [`BlockDevice::stripe`](crate::BlockDevice::stripe) at a
/// time if one of its drives is a file. Each has a queue of its own of every drive; 64 queues take
/// about 1 MiB per file. [`VolumeOptions::io_threads`](crate::VolumeOptions::io_threads) sets
/// another number.
pub const STRIPE_THREADS: u16 = 64;

/// Opens the drives of specs, named `d0`, `d1` and so on, as the volume `stripe`.
pub(crate) fn open(specs: &[impl AsRef<str>]) -> Result<Opened, StartError> {
    let drive = |(number, text): (usize, &_)| {
        let name = format!("d{number}");
        match AsRef::<str>::as_ref(text).parse::<Spec>() {
            Ok(spec) => Ok(DriveConfig::new(name, spec)),
            Err(source) => {
                Err(StartError::new(ConfigPart::Drive(number), SetupError::Drive { name, source }))
            }
        }
    };
    let drives: Vec<_> = specs.iter().enumerate().map(drive).collect::<Result<_, _>>()?;
    // File drives have queues owned by I/O threads. Any thread may run the queues of other drives.
    let has_owners = drives.iter().any(|drive| drive.spec.is_run_by_owners());
    let io_threads = vec![if has_owners { STRIPE_THREADS } else { 1 }];
    // Submitting threads run the queues: there are no workers.
    let serving = ServingConfig::of(Serving::Inline);
    let volumes = vec![VolumeConfig { serving, ..VolumeConfig::new("stripe", drives) }];
    Opened::open(&OpenConfig { volumes, io_threads, ..OpenConfig::default() })
}
