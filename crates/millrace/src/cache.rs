//! A cache over a volume: the disk that clients see, over the volume that drives make.
//!
//! Called by `Opening` for volumes whose configuration has a cache, by `bench`, and by programs.
//! The volume below has one I/O thread more than the cache's: the flusher's, which the caller
//! starts.

use std::sync::Arc;

use millrace_block::{Disk, DiskConfig, Error, Volume};
use millrace_cache::{Cache, CacheConfig, CacheDriver, Registered};
use millrace_drives::may_lock_memory;
use millrace_machine::Native;

/// A cached volume, and its cache.
pub type Cached = (Arc<Volume<Native>>, Arc<Cache<Native>>);

/// The largest cache whose memory is registered by itself: of larger ones a GiB at a time would be
/// in memory soon.
const AUTO_REGISTERED_MAX_BYTES: u64 = 8 << 30;

/// Puts a cache over a volume whose drives were opened for one I/O thread more than `io_threads`,
/// those that will use the cache: the flusher has the queue of the number `io_threads`
/// ([`DriveWorkers::add_flusher`](crate::DriveWorkers::add_flusher)). Without a flusher whoever
/// writes brings pages below.
///
/// # Errors
/// If settings make no sense, or there is no memory.
///
/// # Example
///
/// ```
/// use millrace::{Bio, Buffer, CacheConfig, Channel, ChannelConfig, Layout, VolumeOptions};
///
/// let options = VolumeOptions { io_threads: 2, ..VolumeOptions::default() };
/// let drives = ["ram:size=64m".parse()?];
/// let (below, _) = millrace::build_volume("v", Layout::Linear, &drives, &options)?;
/// let cache = CacheConfig { size_bytes: 16 << 20, ..CacheConfig::default() };
/// let (volume, cache) = millrace::cache_over(below, cache, 1)?;
/// let mut channel = Channel::open(&volume, ChannelConfig::default())?;
/// channel.submit(Bio::write(0, Buffer::new(4096)))?;
/// channel.wait(1, |done| assert!(done.status.is_ok()));
/// assert_eq!(cache.stats().dirty, 1);
/// channel.submit(Bio::flush())?;
/// channel.wait(1, |done| assert!(done.status.is_ok()));
/// assert_eq!((cache.stats().dirty, cache.stats().written_back), (0, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn cache_over(
    below: Arc<Volume<Native>>,
    config: CacheConfig,
    io_threads: u16,
) -> Result<Cached, Error> {
    let is_small = config.size_bytes <= AUTO_REGISTERED_MAX_BYTES;
    let config = match config.registered {
        Registered::Auto if is_small && may_lock_memory() => {
            CacheConfig { registered: Registered::Always, ..config }
        }
        _ => config,
    };
    let cache = Cache::new(Arc::clone(&below), config)?;
    let config = DiskConfig {
        name: format!("{}-cache", below.name()),
        io_threads: io_threads.max(1),
        groups: below.groups().cloned(),
        // Requests wait for drives, whose timeouts hold.
        timeout_ns: 0,
        ..DiskConfig::default()
    };
    let disk = Disk::new(Box::new(CacheDriver::new(&cache)), config)?;
    Ok((Volume::over(below, disk)?, cache))
}
