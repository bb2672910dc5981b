//! `file`: a drive in a regular file or on a block device.
//!
//! Each hardware queue is opened on its I/O thread and works through the reactor of that thread;
//! with `aio=threads` the reactor passes operations to the thread pool of the process, and with
//! `aio=inline` the I/O thread executes each operation at once. Data are durable when fdatasync, or
//! a write with RWF_DSYNC, has returned. Kernel counterpart: drivers/block/loop.c.
#![allow(unsafe_code)]

mod engine;
mod flight;
mod format;
mod grow;
mod lent_memory;
mod locks;
mod open;
mod probe;
mod queue;
mod settings;
#[cfg(test)]
mod tests;

use std::fmt::Display;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use millrace_block::{
    Arena, Buffer, Driver, DriverQueue, Error, ErrorKind, Extent, Features, HwQueues, QueueLimits,
    Sector, TagScope,
};
use millrace_machine::{Native, Topology, debug_fields};
use millrace_reactor::{Backend, FileDemand, PoolShare, take_thread_refusal};

use engine::Engine;
use lent_memory::LentMemory;
pub use locks::FileAccess;
use probe::{FileGeometry, NextData};
use queue::FileQueue;
pub(crate) use settings::ROW;

use crate::common::cancel::Cancel;
use crate::common::extents::{DATA, HOLE, SectorExtents, all_data};
use crate::common::owner_queues;
use crate::common::pieces::PIECES_MAX;
use crate::common::place::HeldData;

const MAX_SECTORS: u32 = 2048;
/// Maximum length in sectors of a write-zeroes that may have to be executed as plain writes.
const MAX_ZERO_WRITES: u32 = 64 << 11;

/// Use of direct I/O, which bypasses the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Direct {
    /// Use direct I/O if the file system supports it.
    #[default]
    Auto,
    /// Use direct I/O, and fail to open the drive without it.
    On,
    /// Use the page cache.
    Off,
}

/// Engine that executes file operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Aio {
    /// Reactor of the I/O thread, with io_uring or epoll.
    #[default]
    Auto,
    /// io_uring; the drive's queues fail to open without it.
    Uring,
    /// Thread pool of the process, from which each drive gets a share of the threads.
    Threads,
    /// The I/O thread itself, which executes each operation at submission and waits for it. Meant
    /// for the page cache, where io_uring hands writes to worker threads.
    Inline,
}

/// Expected access pattern, passed to the page cache (`posix_fadvise`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Advice {
    /// No advice: sequential reads are read ahead.
    #[default]
    Normal,
    /// Random reads: nothing is read ahead.
    Random,
    /// Sequential reads: twice as much is read ahead.
    Sequential,
}

/// Settings of a file drive.
#[derive(Debug, Clone)]
pub struct FileConfig {
    /// Path of the file or block device.
    pub path: PathBuf,
    /// Alternative path by which the file is opened, such as that of a descriptor in
    /// `/proc/self/fd`. Messages show `path`.
    pub opened_at: Option<PathBuf>,
    /// Size in bytes. A missing or empty file is created or extended to this size; of a longer
    /// file, the first part is used. `None` uses the file as it is.
    pub size_bytes: Option<u64>,
    /// If true, a file that is shorter than `size_bytes` is extended; otherwise it is refused.
    pub grow: bool,
    /// Use of direct I/O, which bypasses the page cache.
    pub direct: Direct,
    /// Engine that executes file operations.
    pub aio: Aio,
    /// Expected access pattern.
    pub advice: Advice,
    /// Number of tags of each queue.
    pub depth: u32,
    /// If true, the file is locked against other users.
    pub lock: bool,
    /// If true, the file is opened for reading only.
    pub read_only: bool,
    /// Number of I/O threads, each with a queue of its own.
    pub io_threads: u16,
    /// Flag that ends the wait for the file's lock early.
    pub cancel: Cancel,
}

impl Default for FileConfig {
    fn default() -> Self {
        FileConfig {
            path: PathBuf::new(),
            opened_at: None,
            size_bytes: None,
            grow: false,
            direct: Direct::Auto,
            aio: Aio::Auto,
            advice: Advice::Normal,
            depth: 128,
            lock: true,
            read_only: false,
            io_threads: 1,
            cancel: Cancel::default(),
        }
    }
}

impl FileConfig {
    fn message(&self, text: impl Display) -> String {
        format!("{}: {text}", self.path.display())
    }

    fn error(&self, kind: ErrorKind, text: impl Display) -> Error {
        Error::new(kind, self.message(text))
    }

    fn system(&self, doing: impl Display, error: &io::Error) -> Error {
        Error::system(self.message(format_args!("{doing}: {error}")), error.raw_os_error())
    }
}

/// Counters of a file drive for operations that cost extra.
#[derive(Debug, Default)]
pub struct FileCounters {
    /// Number of requests that were copied because their memory was not aligned for direct I/O.
    pub bounces: AtomicU64,
    /// Number of reads and writes that were continued after the first call moved only a part.
    pub short_transfers: AtomicU64,
    /// Number of reads and writes on memory that was registered with the ring.
    pub registered: AtomicU64,
}

pub(crate) struct FileState {
    pub(crate) file: File,
    /// Lock on the file. This field is declared after the file, so that the file is closed before
    /// the lock counts as free.
    _held: Option<HeldData>,
    /// Number of operations in flight that change the allocation. The kernel holds the file's lock
    /// during each of them, so queries about holes would wait.
    pub(crate) allocating: AtomicU64,
    pub(crate) geometry: FileGeometry,
    /// Current size of the drive in bytes; the last sector may be partial.
    pub(crate) size_bytes: AtomicU64,
    /// Masks of the bits that must be clear in memory addresses and lengths.
    pub(crate) memory_masks: (usize, usize),
    /// Unit in bytes: every transfer ends at a multiple of it.
    pub(crate) transfer_unit: u64,
    /// Buffer of zeroes, shared by all drives, for file systems that cannot zero a range.
    pub(crate) zeroes: &'static Buffer,
    pub(crate) no_punch: AtomicBool,
    /// True once a sync has failed. The system reports a lost write only once, to one of the users
    /// of the file, so no later flush can be trusted to cover earlier writes.
    pub(crate) sync_failed: AtomicBool,
    pub(crate) no_zero_range: AtomicBool,
    pub(crate) counters: Arc<FileCounters>,
    pub(crate) lent: LentMemory,
}

impl FileState {
    /// Returns the file for queries about holes, or `None` for a block device.
    fn map(&self) -> Option<&File> {
        (!self.geometry.is_block).then_some(&self.file)
    }
}

/// A drive in a file or on a block device.
pub struct FileDriver {
    config: FileConfig,
    shared: Arc<FileState>,
    share: Arc<PoolShare>,
    /// Remarks for the user, for example that direct I/O is not possible.
    pub notes: Vec<String>,
    /// Warnings about probable mistakes, for example that the file is a qcow2 image.
    pub warnings: Vec<String>,
}

debug_fields!(FileDriver, config, notes, warnings);

impl FileDriver {
    /// Opens and locks the file, creating or extending it if necessary.
    ///
    /// # Errors
    /// Returns `Busy` if another process uses the file, `InvalidSetting` for a wrong size,
    /// `NotSupported` if direct I/O or io_uring is required and refused, `NotFound`,
    /// `PermissionDenied` or `System` for other errors of the system. The text names the path.
    pub fn open(config: FileConfig) -> Result<FileDriver, Error> {
        open::open(config)
    }

    /// Returns the identity of the file; see [`DataPlace`](crate::DataPlace).
    #[must_use]
    pub fn identity(&self) -> (u64, u64) {
        self.shared.geometry.identity
    }

    fn demand(&self, depth: u32) -> FileDemand {
        // Only block devices that may be written get discards and zeroing as ioctls.
        let ioctls = self.shared.geometry.is_block && !self.config.read_only;
        FileDemand { operations: depth, ioctls, threads: self.config.aio == Aio::Threads }
    }

    /// Returns the counters, which stay valid when the drive has become a part of a disk.
    #[must_use]
    pub fn counters(&self) -> Arc<FileCounters> {
        Arc::clone(&self.shared.counters)
    }
}

/// Limits the number of tags to the number of requests that the block device accepts. Further
/// requests would wait in the kernel, each on a kernel thread. If one queue could use up all tags,
/// the queues share one set.
fn within(tags: Option<u32>, queues: HwQueues) -> HwQueues {
    match tags {
        Some(tags) if tags <= queues.depth => {
            HwQueues { depth: tags, tags: TagScope::PerDrive, ..queues }
        }
        _ => queues,
    }
}

fn sectors(bytes: u64) -> u32 {
    u32::try_from(bytes >> 9).unwrap_or(u32::MAX)
}

impl Driver<Native> for FileDriver {
    fn capacity(&self) -> Sector {
        self.shared.geometry.size_bytes >> 9
    }

    fn size_bytes(&self) -> u64 {
        // Relaxed: the value is only shown to people.
        self.shared.size_bytes.load(Ordering::Relaxed)
    }

    fn revalidate(&self) -> Result<Sector, Error> {
        grow::revalidate(&self.config, &self.shared)
    }

    fn limits(&self) -> QueueLimits {
        let geometry = &self.shared.geometry;
        // Relaxed: the flags were initialized when the drive was opened, and are never reset.
        let no_punch = self.shared.no_punch.load(Ordering::Relaxed);
        let no_zero_range = self.shared.no_zero_range.load(Ordering::Relaxed);
        QueueLimits {
            logical_block_size: geometry.logical,
            physical_block_size: geometry.physical,
            io_min: geometry.io_min,
            io_opt: geometry.io_opt,
            max_sectors: MAX_SECTORS,
            merge_sectors: geometry.merge_bytes >> 9,
            max_segments: PIECES_MAX as u16,
            dma_alignment: self.shared.memory_masks.0 as u32,
            max_discard_sectors: if no_punch { 0 } else { sectors(geometry.max_discard_bytes) },
            discard_granularity: geometry.discard_granularity.max(geometry.logical),
            max_write_zeroes_sectors: match no_punch || no_zero_range || geometry.is_block {
                true => MAX_ZERO_WRITES,
                false => u32::MAX,
            },
            features: Features {
                volatile_cache: true,
                fua: true,
                read_only: self.config.read_only,
                ..Features::default()
            },
            ..QueueLimits::default()
        }
    }

    fn hw_queues(&self, _topology: &Topology) -> HwQueues {
        let queues = owner_queues::hw_queues(self.config.io_threads, self.config.depth);
        within(self.shared.geometry.tags, queues)
    }

    fn may_open_late(&self) -> bool {
        // A drive that requires io_uring or threads must be refused when it is opened, if they are
        // not available.
        !matches!(self.config.aio, Aio::Uring | Aio::Threads)
    }

    fn open_queue(&self, index: u16, depth: u32) -> Result<Box<dyn DriverQueue<Native>>, Error> {
        let current = owner_queues::opener(self.config.path.display(), index)?;
        let engine = match (self.config.aio, current.backend) {
            (Aio::Uring, Backend::Epoll) => {
                let text = "aio=uring, but this I/O thread's reactor uses epoll; use aio=auto";
                return Err(self.config.error(ErrorKind::NotSupported, text));
            }
            (Aio::Inline, _) => Engine::inline(self),
            _ => Engine::ring(current.handle, self, depth).map_err(|error| {
                let text = format_args!("no thread could be started for its I/O: {error}");
                self.config.error(ErrorKind::System, text)
            })?,
        };
        if let Some(why) = engine.take_refusal() {
            self.shared.lent.refused(&why);
        }
        Ok(Box::new(FileQueue::new(Arc::clone(&self.shared), engine, depth)))
    }

    fn lend(&self, arena: &Arc<Arena>) {
        self.shared.lent.add(arena);
    }

    fn take_news(&self) -> Vec<String> {
        // Log lines about the whole process are returned by the first drive that is queried.
        let mut news = self.shared.lent.take_news();
        news.extend(take_thread_refusal());
        news
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let FileCounters { bounces, short_transfers, registered } = &*self.shared.counters;
        // Relaxed: no other memory access depends on these statistics.
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        vec![
            ("bounces", count(bounces)),
            ("registered", count(registered)),
            ("short_transfers", count(short_transfers)),
        ]
    }

    fn extents(&self, sector: Sector, nr_sectors: u64) -> Vec<Extent> {
        let known = self.shared.map().and_then(|map| extents_of(map, sector, nr_sectors));
        known.unwrap_or_else(|| all_data(nr_sectors))
    }

    fn reads_as_zeroes(&self, sector: Sector, nr_sectors: u64) -> bool {
        let Some(map) = self.shared.map() else { return false };
        // Relaxed: an old value only delays the query.
        if self.shared.allocating.load(Ordering::Relaxed) > 0 {
            return false;
        }
        // The known zeroes end at the end of the hole, or of the file, which may have been
        // truncated.
        let next = probe::next_data(map, sector << 9);
        let known = next.map(|next| match next {
            NextData::Data(start) => start,
            NextData::End(size_bytes) => size_bytes,
        });
        known.is_ok_and(|known| known >= (sector + nr_sectors) << 9)
    }
}

/// Returns the holes and data of a range. A sector that is partly data counts as data.
fn extents_of(map: &File, sector: Sector, nr_sectors: u64) -> Option<Vec<Extent>> {
    let mut list = SectorExtents::new(sector, nr_sectors);
    while !list.is_full() {
        let (start, stop) = match probe::next_data(map, list.at << 9).ok()? {
            NextData::Data(start) => (start >> 9, probe::data_end(map, start).ok()?.div_ceil(512)),
            // The file was truncated. Sectors after its end cannot be read, so they do not count as
            // a hole.
            NextData::End(size_bytes) => (size_bytes >> 9, Sector::MAX),
        };
        list.cover(start, HOLE);
        list.cover(stop, DATA);
    }
    Some(list.extents)
}
