//! `DryRun`: settings of an opening that only looks at a drive, and the driver that it returns.
//!
//! A dry run finds the errors, size and remarks of a real opening, creates and changes nothing, and
//! keeps no lock, file or connection. open.rs passes the settings on; file, nbd and rbd drives obey
//! them. The other drives have nothing outside this process, and open as always.

use std::path::{Path, PathBuf};
use std::time::Instant;

use millrace_block::{Driver, DriverQueue, Error, HwQueues, QueueLimits, Sector};
use millrace_machine::{Native, Topology};

use crate::null::NullDriver;

/// Settings of an opening that only looks.
#[derive(Debug, Clone)]
pub struct DryRun {
    /// Time until which locks of other processes are waited for. A process that was killed keeps
    /// its locks for some time.
    pub until: Instant,
    /// Folder that a real start would create before it opens any drive.
    pub new_folder: Option<PathBuf>,
}

impl DryRun {
    /// Returns the folder of a file, or one on the file system on which it will be created.
    pub(crate) fn folder_of<'a>(&self, file: &'a Path) -> &'a Path {
        let mut folders = file.ancestors().skip(1);
        let in_place = |folder: &'a Path| match folder.as_os_str().is_empty() {
            true => Path::new("."),
            false => folder,
        };
        let folder = in_place(folders.next().unwrap_or(file));
        match self.new_folder.as_deref() == Some(folder) {
            true => folders.map(in_place).find(|above| above.exists()).unwrap_or(folder),
            false => folder,
        }
    }
}

/// Driver with the size and block size of a drive that was only looked at.
pub(crate) struct DryDriver {
    pub(crate) size_bytes: u64,
    pub(crate) block_bytes: u32,
    pub(crate) read_only: bool,
}

impl DryDriver {
    fn null(&self) -> NullDriver {
        let (size_bytes, block_size) = (self.size_bytes, self.block_bytes);
        // As small as can be, since a plan may have 10,000 drives.
        NullDriver { size_bytes, block_size, queues: 1, depth: 1, ..NullDriver::default() }
    }
}

impl Driver<Native> for DryDriver {
    fn capacity(&self) -> Sector {
        self.size_bytes >> 9
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn limits(&self) -> QueueLimits {
        let mut limits = Driver::<Native>::limits(&self.null());
        limits.features.read_only = self.read_only;
        limits
    }

    fn hw_queues(&self, topology: &Topology) -> HwQueues {
        Driver::<Native>::hw_queues(&self.null(), topology)
    }

    fn open_queue(&self, index: u16, depth: u32) -> Result<Box<dyn DriverQueue<Native>>, Error> {
        self.null().open_queue(index, depth)
    }
}
