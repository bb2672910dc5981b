//! What is to be opened, as plain structs: drives and volumes with their settings.
//!
//! A program fills them in; the `millrace` program makes them of a configuration file. Pure data:
//! opening.rs opens what they say, and `serve/config.rs` has what is served of it. A drive stands
//! in its volume, since it belongs to one volume, once.

use std::collections::HashSet;
use std::error::Error;
use std::{fmt, io};

use millrace_block::{ControllerConfig, ErrorKind, Layout, ServingConfig, Stack};
use millrace_cache::CacheConfig;
use millrace_drives::Spec;
use millrace_machine::CpuId;

use crate::assemble::{DriveOptions, SetupError};
use crate::groups::GroupConfig;
use crate::serving::{check_scheduler, check_serving, default_serving, needs_workers};
use crate::space::default_layout;

/// A drive to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriveConfig {
    /// Its name, which no other drive has.
    pub name: String,
    /// What it is.
    pub spec: Spec,
    /// Its queues. Opening it as part of a volume decides on `worker` and `minor`.
    pub options: DriveOptions,
}

impl DriveConfig {
    /// A drive with the default queues.
    #[must_use]
    pub fn new(name: impl Into<String>, spec: Spec) -> DriveConfig {
        DriveConfig { name: name.into(), spec, options: DriveOptions::default() }
    }
}

/// A volume to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeConfig {
    /// Its name, which no other volume has.
    pub name: String,
    /// How its drives are laid out.
    pub layout: Layout,
    /// Its drives, one at least.
    pub drives: Vec<DriveConfig>,
    /// Which threads serve the drives.
    pub serving: ServingConfig,
    /// The cache over it, if it has one.
    pub cache: Option<CacheConfig>,
}

impl Default for VolumeConfig {
    /// A linear volume without a name and without drives.
    fn default() -> VolumeConfig {
        VolumeConfig {
            name: String::new(),
            layout: Layout::Linear,
            drives: Vec::new(),
            serving: ServingConfig::default(),
            cache: None,
        }
    }
}

impl VolumeConfig {
    /// A volume of these drives: one drive as it is, several as a stripe, served by whoever turns
    /// out faster.
    #[must_use]
    pub fn new(name: impl Into<String>, drives: Vec<DriveConfig>) -> VolumeConfig {
        let stacks: Vec<Stack> = drives.iter().map(|drive| drive.options.stack).collect();
        VolumeConfig {
            name: name.into(),
            layout: default_layout(drives.len()),
            serving: ServingConfig::of(default_serving(&stacks)),
            cache: None,
            drives,
        }
    }

    /// Whether its drives have use for workers.
    #[must_use]
    pub fn needs_workers(&self) -> bool {
        needs_workers(self.serving.serving, self.drives.len())
    }
}

/// What [`Opening`](crate::Opening) opens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpenConfig {
    /// Controllers that drives may name.
    pub controllers: Vec<ControllerConfig>,
    /// Groups of those who share the drives.
    pub groups: Vec<GroupConfig>,
    /// The volumes.
    pub volumes: Vec<VolumeConfig>,
    /// For each volume, the I/O threads that will own queues of its file drives; where the list is
    /// shorter than the volumes, 1.
    pub io_threads: Vec<u16>,
    /// CPUs that the program pins threads of its own to, where no drive's worker is put while
    /// others are free.
    pub pinned_cpus: Vec<CpuId>,
}

impl OpenConfig {
    /// All drives in the order in which they are opened: volume after volume.
    pub fn drives(&self) -> impl Iterator<Item = &DriveConfig> {
        self.volumes.iter().flat_map(|volume| &volume.drives)
    }

    /// Looks for contradictions that opening would not find, or would find late. Touches no file.
    ///
    /// # Errors
    /// The first one, with its place.
    pub fn validate(&self) -> Result<(), StartError> {
        unique("controller", self.controllers.iter().map(|one| one.name.as_str()), |_| {
            Part::Whole
        })?;
        unique("drive", self.drives().map(|drive| drive.name.as_str()), Part::Drive)?;
        unique("volume", self.volumes.iter().map(|one| one.name.as_str()), Part::Volume)?;
        for (at, volume) in self.volumes.iter().enumerate() {
            let wrong = |text: String| {
                StartError::invalid(Part::Volume(at), format!("volume {}: {text}", volume.name))
            };
            volume.serving.validate().map_err(wrong)?;
            if let Some(cache) = &volume.cache {
                cache.validate().map_err(|text| wrong(format!("cache: {text}")))?;
            }
            for drive in &volume.drives {
                let options = &drive.options;
                check_serving(volume.serving.serving, options.stack).map_err(wrong)?;
                check_scheduler(options.scheduler, options.stack)
                    .map_err(|text| wrong(format!("drive {}: {text}", drive.name)))?;
            }
        }
        Ok(())
    }
}

/// Refuses the second of two equal names.
fn unique<'a>(
    what: &str,
    names: impl Iterator<Item = &'a str>,
    part: impl Fn(usize) -> Part,
) -> Result<(), StartError> {
    let mut seen = HashSet::new();
    for (at, name) in names.enumerate() {
        if !seen.insert(name) {
            let text = format!("{what} {name}: another {what} has this name; choose another");
            return Err(StartError::invalid(part(at), text));
        }
    }
    Ok(())
}

/// The part of a configuration that an error is about. Numbers count from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// No part of its own.
    Whole,
    /// The drive of this number, volume after volume.
    Drive(usize),
    /// The volume of this number.
    Volume(usize),
    /// The export of this number.
    Export(usize),
    /// The listener of this number, as `ServeConfig::listeners` counts them.
    Listener(usize),
    /// The TLS of the listener of this number.
    ListenerTls(usize),
    /// The socket for virtual machines of the export of this number.
    Guests(usize),
}

/// The reason why a configuration could not be opened or served.
///
/// `Display` has the whole cause, as in `cannot open drive d0: /x/a.img: there is no such file`.
/// The kind and the errno are those of [`StartError::source`]. As an [`io::Error`], which `?` makes
/// of it, it has the kind that belongs to the errno.
///
/// # Example
///
/// ```
/// use millrace::{BlockDevice, ErrorKind};
///
/// let error = BlockDevice::open_drive("file:path=/nowhere/a.img").unwrap_err();
/// assert_eq!(error.source.kind(), ErrorKind::NotFound);
/// assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::NotFound);
/// ```
#[derive(Debug)]
pub struct StartError {
    /// What it is about.
    pub part: Part,
    /// What is wrong.
    pub source: Box<SetupError>,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.source, f)
    }
}

impl Error for StartError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.source()
    }
}

impl From<StartError> for io::Error {
    fn from(error: StartError) -> io::Error {
        let kind = match (error.source.errno(), error.source.kind()) {
            (Some(errno), _) => io::Error::from_raw_os_error(errno).kind(),
            (None, ErrorKind::InvalidSetting) => io::ErrorKind::InvalidInput,
            (None, ErrorKind::Busy) => io::ErrorKind::ResourceBusy,
            (None, ErrorKind::NotSupported) => io::ErrorKind::Unsupported,
            (None, ErrorKind::NotFound) => io::ErrorKind::NotFound,
            (None, ErrorKind::PermissionDenied) => io::ErrorKind::PermissionDenied,
            (None, _) => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

impl StartError {
    /// An error about a part.
    pub(crate) fn new(part: Part, source: impl Into<SetupError>) -> StartError {
        StartError { part, source: Box::new(source.into()) }
    }

    /// A setting that makes no sense.
    pub(crate) fn invalid(part: Part, text: impl Into<String>) -> StartError {
        StartError::new(part, millrace_block::Error::new(ErrorKind::InvalidSetting, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_block::Serving;

    fn volume(name: &str, drives: &[&str]) -> VolumeConfig {
        let drive = |name: &&str| DriveConfig::new(*name, "null:size=1g".parse().unwrap());
        VolumeConfig::new(name, drives.iter().map(drive).collect())
    }

    fn wrong(volumes: Vec<VolumeConfig>) -> (Part, String) {
        let config = OpenConfig { volumes, ..OpenConfig::default() };
        let error = config.validate().unwrap_err();
        (error.part, error.to_string())
    }

    #[test]
    fn a_name_that_stands_twice_is_refused_at_its_second_place() {
        let text = "drive a: another drive has this name; choose another";
        let found = wrong(vec![volume("v", &["a", "b"]), volume("w", &["a"])]);
        assert_eq!(found, (Part::Drive(2), text.to_owned()));
        let text = "volume v: another volume has this name; choose another";
        let found = wrong(vec![volume("v", &["a"]), volume("v", &["b"])]);
        assert_eq!(found, (Part::Volume(1), text.to_owned()));
    }

    #[test]
    fn display_has_the_whole_cause_and_no_source_repeats_it() {
        let cause = "ram:".parse::<Spec>().map(|spec| millrace_drives::check(&spec).unwrap_err());
        let drive = SetupError::Drive { name: "d0".into(), cause: cause.unwrap() };
        let error = StartError::new(Part::Drive(0), drive);
        let text = "cannot open drive d0: driver ram needs size=...";
        assert_eq!((error.to_string().as_str(), error.source().is_none()), (text, true));
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::InvalidInput);
        let layer = StartError::invalid(Part::Whole, "nothing is exported");
        assert_eq!(
            (layer.to_string().as_str(), layer.source().is_none()),
            ("nothing is exported", true)
        );
    }

    #[test]
    fn a_mode_that_does_not_go_with_a_design_is_refused_at_its_volume() {
        let mut volume = volume("v", &["a", "b"]);
        assert_eq!(volume.serving.serving, Serving::Auto);
        volume.drives[1].options.stack = Stack::Raw;
        let text = "volume v: serving auto goes with stack mq only, not raw: use mq, or inline";
        assert_eq!(wrong(vec![volume]), (Part::Volume(0), text.to_owned()));
    }
}
