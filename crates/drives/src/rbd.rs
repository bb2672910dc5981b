//! `rbd`: a drive in an image of a Ceph cluster, through librbd.
//!
//! Each I/O thread has a hardware queue. All queues use one image handle, which has the exclusive
//! lock. Completed writes may be in librbd's cache until a flush. librbd has no FUA for vectored
//! writes, so the block layer flushes after such a write. The drive's control thread makes all
//! calls that wait for the cluster. Kernel counterpart: drivers/block/rbd.c.

mod cluster;
mod control;
mod image;
mod library;
mod map;
mod open;
mod queue;
mod settings;
#[cfg(test)]
mod tests;

use std::ffi::c_int;
use std::fmt::Display;
use std::io;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use millrace_block::{
    Driver, DriverQueue, Error, ErrorKind, Extent, Features, HwQueues, Op, QueueLimits, Sector,
    Status,
};
use millrace_machine::{Native, Topology, debug_fields, lock_unpoisoned};

use crate::common::cancel::Cancel;
use crate::common::owner_queues;
use crate::common::pieces::PIECES_MAX;
use crate::common::place::HeldData;
use control::{ControlOrder, ControlThread, order, wait_for_end};
use image::RbdImage;
use queue::RbdQueue;
pub use settings::ImageName;
pub(crate) use settings::ROW;

const MAX_SECTORS: u32 = 8192;
/// Maximum number of objects in a discard, because librbd starts an operation for each of them at
/// once.
const DISCARD_OBJECTS: u64 = 16;
/// Minimum allocation of an OSD's store (`bluestore_min_alloc_size`), in bytes.
const PHYSICAL_BYTES: u32 = 4096;

/// Settings of a Ceph drive.
#[derive(Debug, Clone)]
pub struct RbdConfig {
    /// Name of the image, or of one of its snapshots, which are read-only.
    pub image: ImageName,
    /// Path of the cluster's configuration file; `None` uses Ceph's default locations.
    pub conf: Option<PathBuf>,
    /// Name of the cluster, which is a part of the default location of its configuration.
    pub cluster: String,
    /// Name of the user, without `client.`.
    pub user: String,
    /// Number of tags of each queue.
    pub depth: u32,
    /// If true, the drive holds the image's exclusive lock, so that no other client can write to
    /// it.
    pub lock: bool,
    /// If true, the image is opened for reading only.
    pub read_only: bool,
    /// Maximum time that opening may wait for the cluster.
    pub connect: Duration,
    /// Overrides librbd's `rbd_cache_writethrough_until_flush`: if true, librbd's cache writes
    /// through until the first flush. `None` uses the cluster's configuration.
    pub writethrough_until_flush: Option<bool>,
    /// Number of I/O threads, each with a queue of its own.
    pub io_threads: u16,
    /// Flag that ends waits for the cluster and for the image's lock early.
    pub cancel: Cancel,
}

impl Default for RbdConfig {
    fn default() -> Self {
        RbdConfig {
            image: ImageName::default(),
            conf: None,
            cluster: "ceph".into(),
            user: "admin".into(),
            depth: 128,
            lock: true,
            read_only: false,
            connect: Duration::from_secs(60),
            writethrough_until_flush: None,
            io_threads: 1,
            cancel: Cancel::default(),
        }
    }
}

impl RbdConfig {
    /// Returns true if the drive rejects writes, as it always does for a snapshot.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only || self.image.snapshot.is_some()
    }

    fn error(&self, kind: ErrorKind, text: impl Display) -> Error {
        Error::new(kind, format!("{}: {text}", self.image))
    }

    fn system(&self, doing: &str, error: &io::Error) -> Error {
        self.error(ErrorKind::System, format_args!("{doing}: {error}"))
    }
}

/// An open image. The drive's control thread closes the image, because a close never returns if the
/// cluster is lost. Before the control thread exists, the thread that drops this value closes it.
struct OpenImage {
    image: Option<RbdImage>,
    held: Option<HeldData>,
    control: OnceLock<Sender<ControlOrder>>,
}

impl Deref for OpenImage {
    type Target = RbdImage;
    fn deref(&self) -> &RbdImage {
        self.image.as_ref().expect("the image is there until the drop")
    }
}

impl Drop for OpenImage {
    fn drop(&mut self) {
        if let (Some(control), Some(image)) = (self.control.get(), self.image.take()) {
            let held = self.held.take();
            // If the close takes too long, the process continues, and the cluster releases the lock
            // later. Without a control thread, the order is dropped here together with its image.
            wait_for_end(&order(control, move |_| drop((image, held))));
        }
    }
}

pub(crate) struct RbdState {
    image: OpenImage,
    facts: ImageFacts,
    is_locked: bool,
    name: String,
    /// Size of the image in bytes when it was opened, or when it was last seen to have grown.
    size_bytes: AtomicU64,
    /// End of the range that I/O may reach, in bytes: 0 once the drive has failed, and less than
    /// its size if the image was shrunk.
    limit_bytes: AtomicU64,
    /// True once a write was acknowledged.
    has_written: AtomicBool,
    /// True once the reason for failing I/O was logged.
    told: AtomicBool,
    news: Mutex<Vec<String>>,
}

impl RbdState {
    /// Returns the status with which an I/O up to `end_bytes` fails before it reaches librbd, if
    /// any.
    fn refusal(&self, end_bytes: u64, op: Op) -> Option<Status> {
        let limit = self.limit_bytes();
        (end_bytes > limit || limit == 0).then(|| self.refused(limit, op))
    }

    #[cold]
    fn refused(&self, limit: u64, op: Op) -> Status {
        match (limit, op) {
            (0, Op::Flush) if self.owes_nothing() => Status::Ok,
            (0, _) => Status::Offline,
            _ => behind_the_end(op),
        }
    }

    fn note_write(&self) {
        // Relaxed: a flush that covers the write comes after its completion. The flag is stored
        // only once, because all queues read this cache line.
        if !self.has_written.load(Ordering::Relaxed) {
            self.has_written.store(true, Ordering::Relaxed);
        }
    }

    /// Returns true if a flush that cannot be executed has nothing to write: the drive does not
    /// hold the lock and has never written.
    fn owes_nothing(&self) -> bool {
        // Relaxed: a flush that covers a write comes after the write's completion.
        !self.is_locked && !self.has_written.load(Ordering::Relaxed)
    }

    fn limit_bytes(&self) -> u64 {
        // Relaxed: an answer in flight while the limit changes may use the old limit.
        self.limit_bytes.load(Ordering::Relaxed)
    }

    /// Makes I/O beyond this many bytes fail. Returns true if the limit was higher before.
    fn limit(&self, bytes: u64) -> bool {
        // Relaxed: an answer in flight while the limit changes may use the old limit.
        self.limit_bytes.fetch_min(bytes, Ordering::Relaxed) > bytes
    }

    fn size_bytes(&self) -> u64 {
        // Relaxed: no other memory access depends on this value.
        self.size_bytes.load(Ordering::Relaxed)
    }

    /// Records that the image has its old size or more again, and lifts the limit. A drive that has
    /// failed stays failed.
    fn enlarge(&self, bytes: u64) {
        let lift = |limit| (limit > 0).then_some(u64::MAX);
        // Relaxed: an answer in flight meanwhile may use the old size and limit.
        self.size_bytes.store(bytes, Ordering::Relaxed);
        // The update is refused if the drive has failed.
        let _ = self.limit_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lift);
    }

    /// Makes all I/O fail from now on, and logs the reason, unless one was logged already.
    #[cold]
    fn fail(&self, why: &str) {
        self.limit(0);
        // Relaxed: no other memory access depends on this value.
        if !self.told.swap(true, Ordering::Relaxed) {
            self.say(&format!("{why}; solve this, then restart millrace"));
        }
    }

    /// Logs the problem of the image that the errno of an I/O indicates. Logs only once.
    #[cold]
    fn tell(&self, errno: c_int) {
        match errno {
            libc::EROFS if self.is_locked => self.fail(
                "its exclusive lock is gone: another client has taken it, or it was broken (rbd \
                 lock rm), so all I/O fails",
            ),
            libc::ESHUTDOWN => self.fail(
                "the cluster has shut this client out (see ceph osd blocklist ls), so all I/O fails",
            ),
            libc::ENOENT | libc::ENOTCONN => self.fail(
                "the image or its pool was removed, or its connection is closed, so all I/O fails",
            ),
            // Relaxed: no other memory access depends on this value.
            libc::EROFS if !self.told.swap(true, Ordering::Relaxed) => self.say(
                "another client has the image's exclusive lock and keeps it, so writes fail until \
                 that client gives it back (lock=off: this drive has no lock of its own)",
            ),
            _ => {}
        }
    }

    fn say(&self, text: &str) {
        let text = format!("{}: {text}", self.name);
        lock_unpoisoned(&self.news).push(text);
    }
}

fn behind_the_end(op: Op) -> Status {
    match op {
        Op::Read => Status::IoError,
        _ => Status::NoSpace,
    }
}

/// Properties of an image when it was opened.
struct ImageFacts {
    /// Id of the image, which stays the same when the image is renamed.
    id: String,
    snapshot_id: u64,
    /// Parent overlap in bytes: the length of the part whose data may be in the parent image.
    overlap_bytes: u64,
    size_bytes: u64,
    object_bytes: u64,
    discard_bytes: u64,
    identity: (u64, u64),
    /// True if librbd acknowledges writes that are only in its cache (`rbd_cache`).
    caches: bool,
}

/// A drive in an image of a Ceph cluster.
pub struct RbdDriver {
    config: RbdConfig,
    shared: Arc<RbdState>,
    control: ControlThread,
    /// Warnings about probable mistakes, for example that other clients may write to the image.
    pub warnings: Vec<String>,
}

debug_fields!(RbdDriver, config, warnings);

impl RbdDriver {
    /// Connects, opens the image, and takes its lock.
    ///
    /// # Errors
    /// Returns `NotSupported` if librbd is missing or too old, `Busy` if another client has the
    /// image's lock or a drive of this process uses the image, and `System` for other errors of the
    /// cluster. The text names the image.
    pub fn open(config: RbdConfig) -> Result<RbdDriver, Error> {
        open::open(config)
    }

    /// Returns two hashes of cluster, pool, image and snapshot.
    #[must_use]
    pub fn identity(&self) -> (u64, u64) {
        self.shared.facts.identity
    }
}

impl Drop for RbdDriver {
    fn drop(&mut self) {
        self.control.end_looks();
    }
}

impl Driver<Native> for RbdDriver {
    fn capacity(&self) -> Sector {
        self.shared.facts.size_bytes >> 9
    }

    fn size_bytes(&self) -> u64 {
        self.shared.size_bytes()
    }

    fn revalidate(&self) -> Result<Sector, Error> {
        open::size_now(&self.config, &self.shared, &self.control).map(|bytes| bytes >> 9)
    }

    fn limits(&self) -> QueueLimits {
        let ImageFacts { object_bytes, discard_bytes, caches, .. } = self.shared.facts;
        let bytes = |bytes: u64| u32::try_from(bytes).unwrap_or(0);
        let longest = bytes((object_bytes * DISCARD_OBJECTS) >> 9);
        QueueLimits {
            physical_block_size: PHYSICAL_BYTES,
            io_min: PHYSICAL_BYTES,
            io_opt: bytes(object_bytes),
            max_sectors: MAX_SECTORS,
            max_segments: PIECES_MAX as u16,
            max_discard_sectors: longest,
            discard_granularity: bytes(discard_bytes).max(512),
            max_write_zeroes_sectors: longest,
            features: Features {
                volatile_cache: true,
                process_cache: caches,
                read_only: self.config.is_read_only(),
                ..Features::default()
            },
            ..QueueLimits::default()
        }
    }

    fn hw_queues(&self, _topology: &Topology) -> HwQueues {
        owner_queues::hw_queues(self.config.io_threads, self.config.depth)
    }

    fn open_queue(&self, index: u16, depth: u32) -> Result<Box<dyn DriverQueue<Native>>, Error> {
        let current = owner_queues::opener(&self.config.image, index)?;
        Ok(Box::new(RbdQueue::new(Arc::clone(&self.shared), current.wake, depth)))
    }

    fn extents(&self, sector: Sector, nr_sectors: u64) -> Vec<Extent> {
        self.control.extents(sector, nr_sectors)
    }

    fn take_news(&self) -> Vec<String> {
        let mut news = lock_unpoisoned(&self.shared.news);
        std::mem::take(&mut news)
    }
}
