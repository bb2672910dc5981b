//! `open`: from a drive's spec to its driver, by the row of the driver in `crate::DRIVERS`.
//!
//! Owns the form of a row, and what drivers do with their settings once every value is checked.
//! Opening collects what a person should see and what tells drives apart. Called by the binary for
//! each drive of its configuration, before anything is served, and by drivers around others. An
//! error names driver, key and value, or the path.

use std::path::PathBuf;

use millrace_block::{Driver, QueueKind};
use millrace_machine::Native;

use crate::common::cancel::Cancel;
use crate::common::measurement::Measured;
use crate::common::place::Place;
use crate::fault::FaultControl;
use crate::spec::{Spec, SpecError};

/// The row of a driver.
pub(crate) struct DriverRow {
    /// Name in specs.
    pub name: &'static str,
    /// Keys, in the order in which messages list them.
    pub keys: &'static [&'static str],
    /// Key that may go without its name, if it comes first.
    pub main_key: Option<&'static str>,
    /// Keys with the path of a file.
    pub path_keys: &'static [&'static str],
    /// Threads that run its queues; a drive around another has the other's threads, too.
    pub queues: QueueKind,
    /// Reads all values; opens nothing.
    pub settings: fn(&Spec) -> Result<Box<dyn DriveSettings>, SpecError>,
}

/// Settings of a drive, all values checked.
pub(crate) trait DriveSettings {
    /// See [`open_with`].
    fn open(self: Box<Self>, io_threads: u16, options: &OpenOptions) -> Result<Opened, SpecError>;

    /// See [`measure`].
    fn measure(&self) -> Result<Measured, SpecError>;

    /// See [`file_place`].
    fn file_place(&self) -> Option<Place> {
        None
    }
}

/// A drive that was opened by its spec.
pub struct Opened {
    /// Its driver.
    pub driver: Box<dyn Driver<Native>>,
    /// Lines that a person should see, such as that direct I/O is not possible.
    pub notes: Vec<String>,
    /// Lines about what is hardly meant, such as that its file is a qcow2 image.
    pub warnings: Vec<String>,
    /// Device and inode of its file, or number of its block device and 0, or two numbers of server
    /// and export, or made of its Ceph image: two drives with the same identity keep their data in
    /// the same place.
    pub identity: Option<(u64, u64)>,
    /// The outermost fault drive's control.
    pub fault: Option<FaultControl>,
}

impl Opened {
    pub(crate) fn plain(driver: impl Driver<Native> + 'static) -> Opened {
        let (notes, warnings) = (Vec::new(), Vec::new());
        Opened { driver: Box::new(driver), notes, warnings, identity: None, fault: None }
    }
}

/// Opens the drive of a spec for as many I/O threads.
///
/// # Errors
/// A value that makes no sense, a key that is missing, or what opening says.
pub fn open(spec: &Spec, io_threads: u16) -> Result<Opened, SpecError> {
    open_with(spec, io_threads, &OpenOptions::default())
}

/// How a drive is opened, beyond what its spec says.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Ends the opening early, with an error, once it is set: waits for locks, servers and clusters
    /// look at it.
    pub cancel: Cancel,
    /// Where a file drive finds its file, see
    /// [`FileConfig::opened_at`](crate::FileConfig::opened_at).
    pub file_at: Option<PathBuf>,
}

/// As [`open`], with these options.
///
/// # Errors
/// As [`open`].
pub fn open_with(spec: &Spec, io_threads: u16, options: &OpenOptions) -> Result<Opened, SpecError> {
    options.cancel.check(spec)?;
    settings_of(spec)?.open(io_threads, options)
}

/// Says whether every value of a spec makes sense, of the drives inside it, too; opens nothing.
///
/// # Errors
/// As [`open`], but for what only opening can tell.
pub fn check(spec: &Spec) -> Result<(), SpecError> {
    settings_of(spec).map(drop)
}

/// What a drive would be once it is open: asked of files and devices, which are only looked at.
///
/// # Errors
/// As [`check`], and if there is no such file, or it cannot be read.
pub fn measure(spec: &Spec) -> Result<Measured, SpecError> {
    settings_of(spec)?.measure()
}

/// Where the file of a drive, or of the one inside it, lies, without opening it; none if the drive
/// is in no file, or no file can be there.
///
/// # Errors
/// As [`check`].
pub fn file_place(spec: &Spec) -> Result<Option<Place>, SpecError> {
    Ok(settings_of(spec)?.file_place())
}

/// The settings of a spec's drive.
pub(crate) fn settings_of(spec: &Spec) -> Result<Box<dyn DriveSettings>, SpecError> {
    // Fields are public, so the keys may never have been checked.
    let spec = &Spec::from_pairs(&spec.driver, spec.options.iter().cloned())?;
    let row = crate::driver(&spec.driver).expect("from_pairs knows the driver");
    (row.settings)(spec)
}
