//! `rbd`: a drive in an image of a Ceph cluster, by librbd.
//!
//! Hardware queues belong to I/O threads, as those of files do; all of them use one image handle,
//! which has the exclusive lock. Owns the connection, the image and the lock. Completed writes may
//! be in librbd's cache until a flush; librbd has no FUA for a list of pieces, so the layer flushes
//! after such a write. Calls `rbd/open.rs` once, `rbd/queue.rs` per I/O and `rbd/map.rs` for holes.
//! How what librbd returns is checked, which no fuzzer can reach: see `rbd/image.rs` and
//! `rbd/queue.rs`. Kernel counterpart: drivers/block/rbd.c.

mod cluster;
mod image;
mod library;
mod map;
mod name;
mod open;
mod queue;
mod settings;
#[cfg(test)]
mod tests;

use std::ffi::c_int;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_block::{Driver, DriverQueue, Error, Extent, Features, HwQueues, QueueLimits, Sector};
use millrace_machine::{Machine, Native, Topology};

use crate::cancel::Cancel;
use crate::owned;
use crate::pieces::PIECES_MAX;
use image::Image;
use map::Map;
pub use name::ImageName;
pub(crate) use open::measure;
use queue::RbdQueue;
pub(crate) use settings::config_of;

/// Longest read or write in sectors.
const MAX_SECTORS: u32 = 8192;
/// Objects of the longest discard: librbd starts an operation for each of them at once.
const DISCARD_OBJECTS: u64 = 16;
/// What an OSD's store allocates at least (`bluestore_min_alloc_size`).
const PHYSICAL_BYTES: u32 = 4096;
/// How long the end of a drive waits for the cluster.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);

/// Settings of a Ceph drive.
#[derive(Debug, Clone)]
pub struct RbdConfig {
    /// The image, or a snapshot of it, which can be read only.
    pub image: ImageName,
    /// The cluster's configuration file; none: where Ceph's programs look for it.
    pub conf: Option<PathBuf>,
    /// The cluster's name, which decides where its configuration is looked for.
    pub cluster: String,
    /// The user, without `client.`.
    pub user: String,
    /// Tags of each queue.
    pub depth: u32,
    /// Hold the image's exclusive lock, so that nobody else writes to it.
    pub lock: bool,
    /// Open it for reading only.
    pub read_only: bool,
    /// How long opening may wait for the cluster, in nanoseconds.
    pub connect_ns: u64,
    /// Whether librbd's cache writes through until the first flush
    /// (`rbd_cache_writethrough_until_flush`); none: as the cluster's configuration says.
    pub writethrough_until_flush: Option<bool>,
    /// I/O threads, each with a queue of its own.
    pub io_threads: u16,
    /// Ends the waits for the cluster and for the image's lock.
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
            connect_ns: 60_000_000_000,
            writethrough_until_flush: None,
            io_threads: 1,
            cancel: Cancel::default(),
        }
    }
}

impl RbdConfig {
    /// Whether the drive takes no writes: a snapshot never does.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only || self.image.snapshot.is_some()
    }
}

/// Images that drives of this process have open for writing.
static HELD: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

fn held() -> MutexGuard<'static, Vec<(u64, u64)>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An image that a drive of this process writes to, in the list as long as it is open.
struct Held((u64, u64));

impl Held {
    /// Enters it; none if it is there already.
    fn take(identity: (u64, u64)) -> Option<Held> {
        let mut all = held();
        if all.contains(&identity) {
            return None;
        }
        all.push(identity);
        Some(Held(identity))
    }

    /// Whether it is there.
    fn has(identity: (u64, u64)) -> bool {
        held().contains(&identity)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut all = held();
        if let Some(place) = all.iter().position(|one| *one == self.0) {
            all.swap_remove(place);
        }
    }
}

/// An image that is closed by a thread of its own, since a cluster that is gone never answers.
struct OpenImage {
    image: Option<Image>,
    held: Option<Held>,
}

impl Deref for OpenImage {
    type Target = Image;
    fn deref(&self) -> &Image {
        self.image.as_ref().expect("the image is there until the drop")
    }
}

impl Drop for OpenImage {
    fn drop(&mut self) {
        let (image, held) = (self.image.take(), self.held.take());
        let (sender, receiver) = mpsc::channel();
        let close = move || {
            drop(image);
            drop(held);
            // Whoever waits may have given up.
            let _ = sender.send(());
        };
        let _detached = Native::spawn("millrace-rbd", None, Box::new(close));
        // Without an answer the process goes on, and the cluster gives the lock away in its time.
        let _ = receiver.recv_timeout(CLOSE_PATIENCE);
    }
}

/// What all queues of a drive share.
pub(crate) struct Shared {
    image: OpenImage,
    object_bytes: u64,
    name: String,
    /// What the cluster did to this client was said.
    told: AtomicBool,
    news: Mutex<Vec<String>>,
}

impl Shared {
    fn new(image: OpenImage, object_bytes: u64, name: &ImageName) -> Shared {
        let (told, news) = (AtomicBool::new(false), Mutex::default());
        Shared { image, object_bytes, name: format!("rbd:{name}"), told, news }
    }

    /// What an errno of I/O tells of the image, for people: said once.
    #[cold]
    fn tell(&self, errno: c_int) {
        let what = match errno {
            libc::EROFS => {
                "its exclusive lock is gone: another client has taken it, or it was broken (rbd \
                 lock rm), so writes fail"
            }
            libc::ESHUTDOWN => {
                "the cluster has shut this client out (see ceph osd blocklist ls), so all I/O fails"
            }
            libc::ENOENT | libc::ENOTCONN => {
                "the image or its pool was removed, or its connection is closed, so all I/O fails"
            }
            _ => return,
        };
        // Relaxed: it orders nothing.
        if !self.told.swap(true, Ordering::Relaxed) {
            let text = format!("{}: {what}; once that is mended, restart millrace", self.name);
            self.news.lock().unwrap_or_else(PoisonError::into_inner).push(text);
        }
    }
}

/// What opening has learned.
struct Learned {
    size_bytes: u64,
    object_bytes: u64,
    discard_bytes: u64,
    identity: (u64, u64),
}

/// A drive in an image of a Ceph cluster.
pub struct RbdDriver {
    config: RbdConfig,
    shared: Arc<Shared>,
    map: Map,
    learned: Learned,
    /// Bytes of the image by now.
    size_bytes: AtomicU64,
    warnings: Vec<String>,
}

impl RbdDriver {
    /// Connects, opens the image and takes its lock.
    ///
    /// # Errors
    /// `NotSupported` if librbd is missing or too old, `Busy` if another client has the image's
    /// lock or a drive of this process has the image, `System` for whatever else the cluster says.
    /// The text names the image.
    pub fn open(config: RbdConfig) -> Result<RbdDriver, Error> {
        open::open(config)
    }

    /// What is hardly meant, such as that nothing keeps others from writing.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// A number made of cluster, pool, image and snapshot, to find one image used twice.
    #[must_use]
    pub fn identity(&self) -> (u64, u64) {
        self.learned.identity
    }
}

impl Driver<Native> for RbdDriver {
    fn capacity(&self) -> Sector {
        self.learned.size_bytes >> 9
    }

    fn size_bytes(&self) -> u64 {
        // Relaxed: a number for people.
        self.size_bytes.load(Ordering::Relaxed)
    }

    fn revalidate(&self) -> Result<Sector, Error> {
        let bytes = open::size_now(&self.config, &self.shared)?;
        // Relaxed: a number for people.
        self.size_bytes.store(bytes, Ordering::Relaxed);
        Ok(bytes >> 9)
    }

    fn limits(&self) -> QueueLimits {
        let Learned { object_bytes, discard_bytes, .. } = self.learned;
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
                fua: false,
                no_payload: false,
                read_only: self.config.is_read_only(),
            },
            ..QueueLimits::default()
        }
    }

    fn hw_queues(&self, _topology: &Topology) -> HwQueues {
        owned::hw_queues(self.config.io_threads, self.config.depth)
    }

    fn open_queue(&self, index: u16, depth: u32) -> Result<Box<dyn DriverQueue<Native>>, Error> {
        let current = owned::opener(&self.config.image, index)?;
        Ok(Box::new(RbdQueue::new(Arc::clone(&self.shared), current.wake, depth)))
    }

    fn extents(&self, sector: Sector, nr_sectors: u64) -> Vec<Extent> {
        self.map.extents(&self.shared, sector, nr_sectors)
    }

    fn take_news(&self) -> Vec<String> {
        let mut news = self.shared.news.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut news)
    }
}
