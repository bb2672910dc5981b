//! `rbd`: a drive in an image of a Ceph cluster, through librbd.
//!
//! Hardware queues belong to I/O threads, like those of file drives. All of them use one image
//! handle, which has the exclusive lock. This file owns the connection, the image and the lock.
//! Completed writes may be in librbd's cache until a flush. librbd has no FUA for vectored writes,
//! so the block layer flushes after such a write. It calls `rbd/open.rs` once, `rbd/queue.rs` for
//! each I/O, `rbd/map.rs` for holes, and `rbd/control.rs` for everything that waits for the
//! cluster: checking whether the image is still the one that was opened, and closing it. Results of
//! librbd, which no fuzzer can reach, are checked in `rbd/image.rs` and `rbd/queue.rs`. Kernel
//! counterpart: drivers/block/rbd.c.

mod cluster;
mod control;
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
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use millrace_block::{
    Driver, DriverQueue, Error, Extent, Features, HwQueues, Op, QueueLimits, Sector, Status,
};
use millrace_machine::{Native, Topology};

use crate::common::cancel::Cancel;
use crate::common::owner_queues;
use crate::common::pieces::PIECES_MAX;
use control::{ControlThread, KnownImage, Order, wait_for_end};
use image::Image;
use map::Map;
pub use name::ImageName;
use queue::RbdQueue;
pub(crate) use settings::ROW;

/// Longest read or write in sectors.
const MAX_SECTORS: u32 = 8192;
/// Objects of the longest discard: librbd starts an operation for each of them at once.
const DISCARD_OBJECTS: u64 = 16;
/// What an OSD's store allocates at least (`bluestore_min_alloc_size`).
const PHYSICAL_BYTES: u32 = 4096;

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
struct HeldImage((u64, u64));

impl HeldImage {
    /// Enters it; none if it is there already.
    fn take(identity: (u64, u64)) -> Option<HeldImage> {
        let mut all = held();
        if all.contains(&identity) {
            return None;
        }
        all.push(identity);
        Some(HeldImage(identity))
    }

    /// Whether it is there.
    fn has(identity: (u64, u64)) -> bool {
        held().contains(&identity)
    }
}

impl Drop for HeldImage {
    fn drop(&mut self) {
        let mut all = held();
        if let Some(place) = all.iter().position(|one| *one == self.0) {
            all.swap_remove(place);
        }
    }
}

/// An image that is closed by its drive's control thread, since a cluster that is gone never
/// answers; before there is that thread, by whoever drops it.
struct OpenImage {
    image: Option<Box<Image>>,
    held: Option<HeldImage>,
    control: OnceLock<Sender<Order>>,
}

impl OpenImage {
    fn new(image: Image, held: Option<HeldImage>) -> OpenImage {
        OpenImage { image: Some(Box::new(image)), held, control: OnceLock::new() }
    }

    /// Has this thread close it.
    fn close_on(&self, control: &Sender<Order>) {
        self.control.get_or_init(|| control.clone());
    }
}

impl Deref for OpenImage {
    type Target = Image;
    fn deref(&self) -> &Image {
        self.image.as_ref().expect("the image is there until the drop")
    }
}

impl Drop for OpenImage {
    fn drop(&mut self) {
        if let (Some(control), Some(image)) = (self.control.get(), self.image.take()) {
            let (sender, closed) = mpsc::channel();
            // Without an answer the process goes on, and the cluster gives the lock away in its
            // time; without the thread, the order is dropped, and the image with it.
            let _ = control.send(Order::Close(image, self.held.take(), sender));
            wait_for_end(&closed);
        }
    }
}

/// What all queues of a drive share.
pub(crate) struct RbdState {
    image: OpenImage,
    object_bytes: u64,
    name: String,
    known: KnownImage,
    /// Bytes of the image when it was opened, or when it was last seen to have grown.
    size_bytes: AtomicU64,
    /// Bytes that I/O may reach: 0 once the drive has failed, fewer than it had if the image was
    /// shrunk.
    limit_bytes: AtomicU64,
    /// A write was acknowledged.
    has_written: AtomicBool,
    /// What the cluster did to this client was said.
    told: AtomicBool,
    news: Mutex<Vec<String>>,
}

impl RbdState {
    fn new(
        image: OpenImage,
        learned: &ImageFacts,
        known: KnownImage,
        name: &ImageName,
    ) -> RbdState {
        RbdState {
            image,
            object_bytes: learned.object_bytes,
            name: format!("rbd:{name}"),
            known,
            size_bytes: AtomicU64::new(learned.size_bytes),
            limit_bytes: AtomicU64::new(u64::MAX),
            has_written: AtomicBool::new(false),
            told: AtomicBool::new(false),
            news: Mutex::default(),
        }
    }

    /// The outcome of I/O on bytes that end there, if librbd is not to be asked for it.
    fn refusal(&self, end_bytes: u64, op: Op) -> Option<Status> {
        // Relaxed: an answer that is in flight while the image changes may be of before.
        let limit = self.limit_bytes.load(Ordering::Relaxed);
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

    /// Notes that a write was acknowledged.
    fn note_write(&self) {
        // Relaxed: a flush that covers the write comes after its answer. Stored once only, since
        // all queues read this line.
        if !self.has_written.load(Ordering::Relaxed) {
            self.has_written.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a flush that cannot be done has nothing to do: the drive only reads, or shares its
    /// image and was never let write.
    fn owes_nothing(&self) -> bool {
        // Relaxed: see `note_write`.
        !self.known.is_locked && !self.has_written.load(Ordering::Relaxed)
    }

    /// Whether some I/O is refused, or all of it.
    fn is_limited(&self) -> bool {
        // Relaxed: see `refusal`.
        self.limit_bytes.load(Ordering::Relaxed) < u64::MAX
    }

    /// Whether all I/O is refused.
    fn has_failed(&self) -> bool {
        // Relaxed: see `refusal`.
        self.limit_bytes.load(Ordering::Relaxed) == 0
    }

    /// Has I/O behind so many bytes fail; whether it reached further before.
    fn limit(&self, bytes: u64) -> bool {
        // Relaxed: see `refusal`.
        self.limit_bytes.fetch_min(bytes, Ordering::Relaxed) > bytes
    }

    /// Bytes of the image when it was opened, or when it was last seen to have grown.
    fn size_bytes(&self) -> u64 {
        // Relaxed: a number that orders nothing.
        self.size_bytes.load(Ordering::Relaxed)
    }

    /// Notes that the image has as many bytes as before, or more, which I/O may reach again; a
    /// drive that has failed stays so.
    fn enlarge(&self, bytes: u64) {
        let lift = |limit| (limit > 0).then_some(u64::MAX);
        // Relaxed: see `size_bytes` and `refusal`.
        self.size_bytes.store(bytes, Ordering::Relaxed);
        // Refused: the drive has failed.
        let _ = self.limit_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lift);
    }

    /// Has all I/O fail from now on, and says why, unless something was said already.
    #[cold]
    fn fail(&self, why: &str) {
        self.limit(0);
        // Relaxed: it orders nothing.
        if !self.told.swap(true, Ordering::Relaxed) {
            self.say(&format!("{why}; once that is mended, restart millrace"));
        }
    }

    /// What an errno of I/O tells of the image, for people: said once.
    #[cold]
    fn tell(&self, errno: c_int) {
        match errno {
            libc::EROFS if self.known.is_locked => self.fail(
                "its exclusive lock is gone: another client has taken it, or it was broken (rbd \
                 lock rm), so all I/O fails",
            ),
            libc::ESHUTDOWN => self.fail(
                "the cluster has shut this client out (see ceph osd blocklist ls), so all I/O fails",
            ),
            libc::ENOENT | libc::ENOTCONN => self.fail(
                "the image or its pool was removed, or its connection is closed, so all I/O fails",
            ),
            // Relaxed: it orders nothing.
            libc::EROFS if !self.told.swap(true, Ordering::Relaxed) => self.say(
                "another client has the image's exclusive lock and keeps it, so writes fail until \
                 that client gives it back (lock=off: this drive has no lock of its own)",
            ),
            _ => {}
        }
    }

    fn say(&self, text: &str) {
        let text = format!("{}: {text}", self.name);
        self.news.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }
}

/// The status of I/O behind the end of an image that was shrunk.
fn behind_the_end(op: Op) -> Status {
    match op {
        Op::Read => Status::IoError,
        _ => Status::NoSpace,
    }
}

/// What opening has learned.
struct ImageFacts {
    size_bytes: u64,
    object_bytes: u64,
    discard_bytes: u64,
    identity: (u64, u64),
    /// librbd answers writes that only its memory has (`rbd_cache`).
    caches: bool,
    id: String,
}

/// A drive in an image of a Ceph cluster.
pub struct RbdDriver {
    config: RbdConfig,
    shared: Arc<RbdState>,
    control: ControlThread,
    map: Map,
    learned: ImageFacts,
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

impl Drop for RbdDriver {
    fn drop(&mut self) {
        self.control.end_looks();
    }
}

impl Driver<Native> for RbdDriver {
    fn capacity(&self) -> Sector {
        self.learned.size_bytes >> 9
    }

    fn size_bytes(&self) -> u64 {
        self.shared.size_bytes()
    }

    fn revalidate(&self) -> Result<Sector, Error> {
        open::size_now(&self.config, &self.shared, &self.control).map(|bytes| bytes >> 9)
    }

    fn limits(&self) -> QueueLimits {
        let ImageFacts { object_bytes, discard_bytes, .. } = self.learned;
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
                process_cache: self.learned.caches,
                fua: false,
                no_payload: false,
                read_only: self.config.is_read_only(),
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
        self.map.extents(&self.control, sector, nr_sectors)
    }

    fn take_news(&self) -> Vec<String> {
        let mut news = self.shared.news.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut news)
    }
}
