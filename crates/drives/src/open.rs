//! `open`: makes a driver from a drive's spec, by the driver's row in `crate::DRIVERS`.
//!
//! Opening also collects remarks for the user and the identity of the drive's data. Drivers that
//! wrap other drives call `open`, too. An error names the driver, the key and the value, or the
//! path.

use std::path::PathBuf;

use millrace_block::{Driver, QueueKind};
use millrace_machine::{Native, debug_fields};

use crate::common::cancel::Cancel;
use crate::common::dry_run::DryRun;
use crate::common::place::DataPlace;
use crate::fault::FaultControl;
use crate::spec::{Spec, SpecError};

pub(crate) struct DriverRow {
    /// Name in specs.
    pub name: &'static str,
    /// Keys of the driver's specs, separated by spaces, in the order in which messages list them.
    pub keys: &'static str,
    /// Key whose name a spec may omit if the key comes first.
    pub main_key: Option<&'static str>,
    /// Keys, separated by spaces, whose values are paths of files.
    pub path_keys: &'static str,
    /// Kind of threads that may run the driver's queues. For a wrapping driver, the wrapped drive
    /// decides.
    pub queues: QueueKind,
    /// Function that parses and checks the values of all keys in a spec; it opens nothing.
    pub settings: fn(&Spec) -> Result<Box<dyn DriveSettings>, SpecError>,
}

pub(crate) trait DriveSettings {
    fn open(self: Box<Self>, io_threads: u16, options: &OpenOptions) -> Result<Opened, SpecError>;

    fn file_place(&self) -> Option<DataPlace> {
        None
    }
}

/// A drive that was opened from its spec.
pub struct Opened {
    /// Driver of the drive.
    pub driver: Box<dyn Driver<Native>>,
    /// Remarks for the user, for example that direct I/O is not possible.
    pub notes: Vec<String>,
    /// Warnings about probable mistakes, for example that the file is a qcow2 image.
    pub warnings: Vec<String>,
    /// Identity of the data, as in [`DataPlace::identity`].
    pub identity: Option<(u64, u64)>,
    /// Handle that controls the outermost fault drive of the spec; `None` if there is no fault
    /// drive.
    pub fault: Option<FaultControl>,
}

debug_fields!(Opened, notes, warnings, identity, fault);

impl Opened {
    pub(crate) fn plain(driver: impl Driver<Native> + 'static) -> Opened {
        let (notes, warnings) = (Vec::new(), Vec::new());
        Opened { driver: Box::new(driver), notes, warnings, identity: None, fault: None }
    }
}

/// Opens the drive that `spec` describes, for use by `io_threads` I/O threads.
///
/// # Errors
/// Returns an error for an invalid value or a missing key, or the error of opening the drive.
pub fn open(spec: &Spec, io_threads: u16) -> Result<Opened, SpecError> {
    open_with(spec, io_threads, &OpenOptions::default())
}

/// Options for opening a drive, besides its spec.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Flag that ends the opening early with an error once it is set. Code that waits for a lock, a
    /// server or a cluster checks the flag.
    pub cancel: Cancel,
    /// Path by which a file drive opens its file instead of the path in the spec; see
    /// [`FileConfig::opened_at`](crate::FileConfig::opened_at).
    pub file_at: Option<PathBuf>,
    /// If set, the drive is only examined (see [`DryRun`]). A drive that uses a file, an NBD server
    /// or a Ceph cluster is not opened. Instead, a driver that keeps no data is returned.
    pub dry_run: Option<DryRun>,
}

/// Opens the drive of a spec, as [`open`] does, with options.
///
/// # Errors
/// Fails as [`open`] does.
pub fn open_with(spec: &Spec, io_threads: u16, options: &OpenOptions) -> Result<Opened, SpecError> {
    options.cancel.check(spec)?;
    settings_of(spec)?.open(io_threads, options)
}

/// Checks all values of a spec and of the specs inside it; opens nothing.
///
/// # Errors
/// Fails as [`open`] does, except for errors that only opening can detect.
pub fn check(spec: &Spec) -> Result<(), SpecError> {
    settings_of(spec).map(drop)
}

/// Returns the identity of the file that holds a drive's data, without opening the file. If the
/// drive wraps another one, the file of the wrapped drive is meant. Returns `None` if the drive
/// uses no file, or if the directory of the file does not exist.
///
/// # Errors
/// Fails as [`check`] does.
pub fn file_place(spec: &Spec) -> Result<Option<DataPlace>, SpecError> {
    Ok(settings_of(spec)?.file_place())
}

pub(crate) fn settings_of(spec: &Spec) -> Result<Box<dyn DriveSettings>, SpecError> {
    // The keys are checked again, because the spec's fields are public and may have been changed.
    let spec = &Spec::from_pairs(&spec.driver, spec.options.iter().cloned())?;
    let row = crate::driver(&spec.driver).expect("from_pairs knows the driver");
    (row.settings)(spec)
}
