//! Opens drives from specs as a volume, for `bench` and programs.
//!
//! This module turns the specs into a configuration, with which opening.rs opens the drives.

use std::sync::Arc;

use millrace_block::{ControllerConfig, Error, Layout, Serving, ServingConfig, Tracer};
use millrace_drives::Spec;
use millrace_machine::CpuId;

use crate::Volume;
use crate::assemble::places::Places;
use crate::assemble::{DriveOptions, SetupError};
use crate::config::{ConfigPart, DriveConfig, OpenConfig, StartError, VolumeConfig};
use crate::groups::{GroupConfig, open_groups};
use crate::opening::site::OpenSite;
use crate::opening::{Opened, Opening};
use crate::serving::check_serving;
use crate::space::CHUNK_SECTORS;

/// Settings of a volume and of all its drives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeOptions {
    /// Queue settings of each drive. The fields `worker` and `minor` are ignored: the CPUs of the
    /// workers come from `worker_cpus`, and minor numbers count the drives in the order of opening.
    pub drive: DriveOptions,
    /// Number of I/O threads that will own queues of file drives; 0 counts as 1.
    pub io_threads: u16,
    /// Storage controllers (tags shared by several drives) that the drives' specs may name.
    pub controllers: Vec<ControllerConfig>,
    /// Groups that share the drives. Without groups, I/O is not accounted by group and costs less.
    pub groups: Vec<GroupConfig>,
    /// Serving mode and batch thresholds. The serving mode decides which threads run the drives'
    /// queues.
    pub serving: ServingConfig,
    /// CPUs for the drives' workers, assigned in turn. Unused if the volume needs no workers.
    pub worker_cpus: Vec<CpuId>,
    /// Capacity of each thread's trace ring, in events; 0 takes the default.
    pub trace_ring: usize,
}

/// Opens drives named `d0`, `d1` and so on, and creates a volume from them. Returns the volume and
/// notes for the user, for example about unused space on the drives.
///
/// # Errors
/// Fails if a drive cannot be opened or the drives cannot form a volume. Files that were created
/// are removed.
pub fn build_volume(
    name: &str,
    layout: Layout,
    drives: &[Spec],
    options: &VolumeOptions,
) -> Result<(Arc<Volume>, Vec<String>), SetupError> {
    Places::default().build_volume(name, (layout, drives), options)
}

impl Places {
    /// Makes a volume as [`build_volume`](crate::build_volume) does, and numbers its drives after
    /// those that are already open: if two drives are open, the first drive of the volume is `d2`.
    ///
    /// # Errors
    /// Fails as [`build_volume`](crate::build_volume) does.
    pub fn build_volume(
        &mut self,
        name: &str,
        (layout, drives): (Layout, &[Spec]),
        options: &VolumeOptions,
    ) -> Result<(Arc<Volume>, Vec<String>), SetupError> {
        let mut site = OpenSite::new(&options.controllers)?;
        if !options.groups.is_empty() {
            site.groups = Some(open_groups(&options.groups)?);
        }
        if options.trace_ring > 0 {
            site.tracer = Some(Tracer::new(options.trace_ring));
        }
        check_serving(options.serving.serving, options.drive.stack)
            .map_err(|error| Error::new(error.kind(), format!("volume {name}: {error}")))?;
        let drive = |(spec, number): (&Spec, usize)| DriveConfig {
            options: options.drive,
            ..DriveConfig::new(format!("d{number}"), spec.clone())
        };
        let drives = drives.iter().zip(self.drives.len()..).map(drive).collect();
        let (name, serving) = (name.to_owned(), options.serving);
        let volume = VolumeConfig { name, layout, drives, serving, cache: None };
        let (volumes, io_threads) = (vec![volume], vec![options.io_threads]);
        let config = OpenConfig { volumes, io_threads, ..OpenConfig::default() };
        site.places = std::mem::take(self);
        let (site, opened) = Opening::at(&config, site, &options.worker_cpus).complete();
        *self = site.places;
        let Opened { mut volumes, notes, mut warnings, .. } =
            opened.map_err(|error| *error.source)?;
        warnings.extend(notes);
        Ok((volumes.remove(0), warnings))
    }
}

/// Maximum number of threads that may use a volume of
/// [`BlockDevice::stripe`](crate::BlockDevice::stripe) at a time if one of its drives is a file.
/// Each thread has a queue of its own on every drive; 64 queues take about 1 MiB per file.
/// [`VolumeOptions::io_threads`](crate::VolumeOptions::io_threads) sets another number.
pub const STRIPE_THREADS: u16 = 64;

pub(crate) const STRIPED: Layout = Layout::Stripe { chunk_sectors: CHUNK_SECTORS };

/// Opens drives named `d0`, `d1` and so on, and passes a volume over them to `start`. The volume is
/// named after its layout. Returns the result of `start`, and warnings about the drives.
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
                Err(StartError::new(ConfigPart::Drive(number), SetupError::of_drive(&name, cause)))
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

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_block::baseline::Stack;

    fn specs(texts: &[&str]) -> Vec<Spec> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn unequal_drives_make_a_volume_of_the_smallest_and_a_note() {
        let drives = specs(&["null:size=1g", "null:size=2g"]);
        let layout = Layout::Stripe { chunk_sectors: 128 };
        let (volume, notes) =
            build_volume("v", layout, &drives, &VolumeOptions::default()).unwrap();
        assert_eq!(volume.capacity(), 2 << 21);
        let note = "volume v: unused: 1 GiB of its drives, since a stripe takes of each what \
                    the smallest has, in whole chunks of 64 KiB: 1 GiB of d0 (1 GiB), d1 (2 GiB); \
                    layout = \"linear\" serves all";
        assert_eq!(notes, [note]);
    }

    #[test]
    fn only_drives_that_share_a_volume_and_allow_it_get_workers() {
        let worker_cpus = vec![CpuId(0)];
        let workers = |serving, drives: usize| {
            let (serving, worker_cpus) = (ServingConfig::of(serving), worker_cpus.clone());
            let options = VolumeOptions { serving, worker_cpus, ..VolumeOptions::default() };
            let (layout, drives) = (Layout::Linear, specs(&vec!["null:size=1g"; drives]));
            let (volume, _) = build_volume("v", layout, &drives, &options).unwrap();
            volume.disks()[0].worker_cpu().is_some()
        };
        assert!(workers(Serving::PerDrive, 2) && workers(Serving::Auto, 2));
        assert!(!workers(Serving::PerDrive, 1) && !workers(Serving::PerVolume, 2));
    }

    #[test]
    fn mode_for_workers_is_refused_on_stack_without_places_for_them() {
        let drive = DriveOptions { stack: Stack::Sq, ..DriveOptions::default() };
        let serving = ServingConfig::of(Serving::PerDrive);
        let options = VolumeOptions { drive, serving, ..VolumeOptions::default() };
        let drives = specs(&["null:size=1g", "null:size=1g"]);
        let error = build_volume("v", Layout::Linear, &drives, &options).err().unwrap();
        let text = "volume v: serving = per-drive requires stack = mq, not sq; set stack = mq, or \
                    serving = inline";
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn a_volume_without_drives_is_an_error_of_the_layer() {
        let error = build_volume("v", Layout::Linear, &[], &VolumeOptions::default()).err();
        assert!(matches!(error, Some(SetupError::Layer(_))), "{error:?}");
    }
}
