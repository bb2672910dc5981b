//! Creates a page cache between a volume of drives and the volume that clients see.
//!
//! The volume of drives needs queues for one more thread than the cached volume: the flusher, which
//! writes dirty pages back and which the caller starts.

use std::sync::Arc;
use std::time::Duration;

use millrace_block::{Disk, DiskConfig, Error, Volume};
use millrace_cache::{Cache, CacheConfig, CacheDriver, Registered};
use millrace_drives::may_lock_memory;
use millrace_machine::Native;

/// A cached volume, with its cache.
pub type Cached = (Arc<Volume<Native>>, Arc<Cache<Native>>);

/// Largest cache, in bytes, whose memory is registered with the ring by `Registered::Auto`.
/// Registration pins memory 1 GiB at a time.
const AUTO_REGISTERED_MAX_BYTES: u64 = 8 << 30;

/// Creates a cache over the volume `below`. The drives of that volume must have been opened for
/// `io_threads` + 1 threads: the threads that use the cache, and one flusher. The flusher owns the
/// drives' hardware queue with the number `io_threads`
/// ([`DriveWorkers::add_flusher`](crate::DriveWorkers::add_flusher)). Without a flusher, writers
/// write dirty pages back themselves.
///
/// # Errors
/// Fails if a setting is invalid or there is not enough memory.
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
    let mut config = config;
    if config.registered == Registered::Auto && is_small && may_lock_memory() {
        config.registered = Registered::Always;
    }
    let cache = Cache::new(Arc::clone(&below), config)?;
    let config = DiskConfig {
        name: format!("{}-cache", below.name()),
        io_threads: io_threads.max(1),
        groups: below.groups().cloned(),
        // The cached volume needs no timeout, because the drives below have their own.
        timeout: Duration::ZERO,
        ..DiskConfig::default()
    };
    let disk = Disk::new(Box::new(CacheDriver::new(&cache)), config)?;
    Ok((Volume::over(below, disk)?, cache))
}
