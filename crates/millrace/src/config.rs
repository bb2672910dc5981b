//! Configuration of drives and volumes to open, as plain structs.
//!
//! opening.rs opens the drives, and `serve/config.rs` adds the settings of exports.

use std::collections::HashSet;
use std::error::Error;
use std::{fmt, io};

use millrace_block::baseline::Stack;
use millrace_block::{ControllerConfig, ErrorKind, Layout, ServingConfig};
use millrace_cache::CacheConfig;
use millrace_drives::Spec;
use millrace_machine::CpuId;

use crate::assemble::{DriveOptions, SetupError};
use crate::groups::GroupConfig;
use crate::serving::{check_scheduler, check_serving, default_serving, needs_workers};
use crate::space::default_layout;

/// Configuration of a drive to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriveConfig {
    /// Name of the drive, unique in the program.
    pub name: String,
    /// Driver of the drive and the values of its keys.
    pub spec: Spec,
    /// Queue settings. The fields `worker` and `minor` are ignored: [`Opening`](crate::Opening)
    /// sets them.
    pub options: DriveOptions,
}

impl DriveConfig {
    /// Makes the configuration of a drive with default queue settings.
    #[must_use]
    pub fn new(name: impl Into<String>, spec: Spec) -> DriveConfig {
        DriveConfig { name: name.into(), spec, options: DriveOptions::default() }
    }
}

/// Configuration of a volume to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeConfig {
    /// Name of the volume, unique in the program.
    pub name: String,
    /// Layout of the drives in the volume.
    pub layout: Layout,
    /// Drives of the volume, at least one.
    pub drives: Vec<DriveConfig>,
    /// Serving mode and batch thresholds. The serving mode decides which threads run the drives'
    /// queues.
    pub serving: ServingConfig,
    /// Cache over the volume, if it has one.
    pub cache: Option<CacheConfig>,
}

impl Default for VolumeConfig {
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
    /// Returns the configuration of a volume over `drives`: linear for a single drive, a stripe for
    /// several drives. The serving mode is `Auto` if there are several drives and all have the
    /// stack `mq`. Otherwise it is `Inline`.
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

    /// Returns true if the serving mode uses worker threads for these drives.
    #[must_use]
    pub fn needs_workers(&self) -> bool {
        needs_workers(self.serving.serving, self.drives.len())
    }
}

/// Configuration that [`Opening`](crate::Opening) opens: controllers, groups and volumes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpenConfig {
    /// Controllers that specs of drives may name.
    pub controllers: Vec<ControllerConfig>,
    /// Groups that share the drives.
    pub groups: Vec<GroupConfig>,
    /// Volumes with their drives.
    pub volumes: Vec<VolumeConfig>,
    /// For each volume, the number of I/O threads that will own queues of its file drives. Missing
    /// entries count as 1.
    pub io_threads: Vec<u16>,
    /// CPUs that the program pins its own threads to. Workers of drives avoid them while other CPUs
    /// are free.
    pub pinned_cpus: Vec<CpuId>,
}

impl OpenConfig {
    /// Returns all drives in the order in which they are opened: volume after volume.
    pub fn drives(&self) -> impl Iterator<Item = &DriveConfig> {
        self.volumes.iter().flat_map(|volume| &volume.drives)
    }

    /// Checks for contradictions that opening would find late or never. Accesses no file.
    ///
    /// # Errors
    /// Returns the first contradiction, with the part of the configuration that causes it.
    pub fn validate(&self) -> Result<(), StartError> {
        unique("controller", self.controllers.iter().map(|one| one.name.as_str()), |_| {
            ConfigPart::Whole
        })?;
        unique("drive", self.drives().map(|drive| drive.name.as_str()), ConfigPart::Drive)?;
        unique("volume", self.volumes.iter().map(|one| one.name.as_str()), ConfigPart::Volume)?;
        for (at, volume) in self.volumes.iter().enumerate() {
            let wrong = |text: &dyn fmt::Display| {
                let text = format!("volume {}: {text}", volume.name);
                StartError::invalid(ConfigPart::Volume(at), text)
            };
            volume.serving.validate().map_err(|error| wrong(&error))?;
            if let Some(cache) = &volume.cache {
                cache.validate().map_err(|error| wrong(&format_args!("cache: {error}")))?;
            }
            for drive in &volume.drives {
                let options = &drive.options;
                check_serving(volume.serving.serving, options.stack)
                    .map_err(|error| wrong(&error))?;
                check_scheduler(options.scheduler, options.stack)
                    .map_err(|error| wrong(&format_args!("drive {}: {error}", drive.name)))?;
            }
        }
        Ok(())
    }
}

fn unique<'a>(
    what: &str,
    names: impl Iterator<Item = &'a str>,
    part: impl Fn(usize) -> ConfigPart,
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

/// Part of a configuration that an error refers to. Indexes count from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConfigPart {
    /// No single part: the error concerns the whole configuration.
    Whole,
    /// Drive with this index. The drives of all volumes are numbered together, volume by volume.
    Drive(usize),
    /// Volume with this index in the configuration's list `volumes`.
    Volume(usize),
    /// Export with this index in `ServeConfig::exports`.
    Export(usize),
    /// Listener with this index in `ServeConfig::listeners`.
    Listener(usize),
    /// TLS settings of the listener with this index.
    ListenerTls(usize),
    /// The vhost-user socket, for virtual machines, of the export with this index.
    Guests(usize),
}

/// The reason why a configuration could not be opened or served.
///
/// `Display` shows the whole cause, as in `cannot open drive d0: /x/a.img: there is no such file`.
/// The kind and the errno come from [`StartError::source`]. The `?` operator converts the error to
/// an [`io::Error`] of the kind that belongs to the errno.
///
/// # Example
///
/// ```
/// use millrace::{BlockDevice, ErrorKind};
///
/// let error = BlockDevice::open_drive("file:path=/nowhere/a.img").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::NotFound);
/// assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::NotFound);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartError {
    /// Part of the configuration that caused the error.
    pub part: ConfigPart,
    /// Underlying error.
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

impl From<millrace_block::Error> for StartError {
    fn from(error: millrace_block::Error) -> StartError {
        StartError::new(ConfigPart::Whole, error)
    }
}

impl From<StartError> for io::Error {
    fn from(error: StartError) -> io::Error {
        let kind = match (error.errno(), error.kind()) {
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

impl From<SetupError> for io::Error {
    fn from(error: SetupError) -> io::Error {
        StartError::new(ConfigPart::Whole, error).into()
    }
}

impl StartError {
    /// Returns the kind of the underlying error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.source.kind()
    }

    /// Returns the Linux errno, if the operating system refused an operation.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        self.source.errno()
    }

    pub(crate) fn new(part: ConfigPart, source: impl Into<SetupError>) -> StartError {
        StartError { part, source: Box::new(source.into()) }
    }

    pub(crate) fn invalid(part: ConfigPart, text: impl Into<String>) -> StartError {
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

    fn wrong(volumes: Vec<VolumeConfig>) -> (ConfigPart, String) {
        let config = OpenConfig { volumes, ..OpenConfig::default() };
        let error = config.validate().unwrap_err();
        (error.part, error.to_string())
    }

    #[test]
    fn a_name_that_stands_twice_is_refused_at_its_second_place() {
        let text = "drive a: another drive has this name; choose another";
        let found = wrong(vec![volume("v", &["a", "b"]), volume("w", &["a"])]);
        assert_eq!(found, (ConfigPart::Drive(2), text.to_owned()));
        let text = "volume v: another volume has this name; choose another";
        let found = wrong(vec![volume("v", &["a"]), volume("v", &["b"])]);
        assert_eq!(found, (ConfigPart::Volume(1), text.to_owned()));
    }

    #[test]
    fn display_has_the_whole_cause_and_no_source_repeats_it() {
        let cause = "ram:".parse::<Spec>().map(|spec| millrace_drives::check(&spec).unwrap_err());
        let drive = SetupError::Drive { name: "d0".into(), cause: cause.unwrap() };
        let error = StartError::new(ConfigPart::Drive(0), drive);
        let text = "cannot open drive d0: driver ram needs size=...";
        assert_eq!((error.to_string().as_str(), error.source().is_none()), (text, true));
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::InvalidInput);
        let layer = StartError::invalid(ConfigPart::Whole, "nothing is exported");
        assert_eq!(
            (layer.to_string().as_str(), layer.source().is_none()),
            ("nothing is exported", true)
        );
    }

    #[test]
    fn mode_that_does_not_go_with_design_is_refused_at_its_volume() {
        let mut volume = volume("v", &["a", "b"]);
        assert_eq!(volume.serving.serving, Serving::Auto);
        volume.drives[1].options.stack = Stack::Raw;
        let text = "volume v: serving = auto requires stack = mq, not raw; set stack = mq, or \
                    serving = inline";
        assert_eq!(wrong(vec![volume]), (ConfigPart::Volume(0), text.to_owned()));
    }
}
