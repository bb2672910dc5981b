//! `CacheFlusher`: the thread of a cache that writes dirty pages to its volume.
//!
//! The flusher is an I/O thread. On each disk of the volume below the cache, the flusher owns one
//! hardware queue, whose index the caller of `start` chooses. The flusher is stopped after all
//! writers to the cache, and before the drives' workers. A stopped flusher leaves dirty pages in
//! memory, so flush the cached volume first. If dirty pages are left because that flush failed, the
//! stopping flusher flushes the drives, so that pages already written to the drives become durable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use millrace_block::{Error, ErrorKind, Stamp};
use millrace_cache::{Cache, Flusher, FlusherConfig, WriteLists};
use millrace_machine::{Deadline, Doorbell, Machine, Native};
use millrace_reactor::Config;

use crate::io_context::{IoConfig, IoContext};
use crate::join::{JoinOutcome, join_within};

/// Maximum number of write-backs in flight to each drive. A higher number would delay reads, which
/// wait behind write-backs in a drive without a scheduler.
const DRIVE_WRITES: u32 = 16;
const FLUSH_NS: u64 = 1_000_000_000;
/// Maximum time to wait for the thread's end: the final flush, plus 5 s for operations in its ring.
const HANG: Duration = Duration::from_secs(8);
/// Maximum number of write-backs in flight over all drives. A volume with more drives than this has
/// one write-back in flight for each drive.
const WRITES_MAX: u32 = 1024;
const PANICKED: &str = "a cache's flusher thread panicked; see the messages above";

/// The thread of a cache that writes dirty pages to its volume. Dropping the value stops the
/// thread.
#[derive(Debug)]
pub struct CacheFlusher {
    thread: Option<<Native as Machine>::Thread>,
    bell: Arc<Doorbell<Native>>,
    stop: Arc<AtomicBool>,
}

impl CacheFlusher {
    /// Starts the flusher of a cache on a new thread called `millrace-flush-` and the volume's
    /// name. `number` is the index of the hardware queue that the thread owns on each of the
    /// volume's drives.
    ///
    /// # Errors
    /// `System` if no ring can be created, or the error of opening a queue.
    pub fn start(
        cache: &Arc<Cache<Native>>,
        number: u16,
        reactor: Config,
    ) -> Result<CacheFlusher, Error> {
        let stop = Arc::<AtomicBool>::default();
        let (up, ups) = channel();
        let name = format!("millrace-flush-{}", cache.below().name());
        let (cache, stops) = (Arc::clone(cache), Arc::clone(&stop));
        let body = move || run(&cache, IoConfig { number, reactor }, &stops, &up);
        let thread = Native::try_spawn(&name, None, body)
            .map_err(|error| Error::new(ErrorKind::System, error.to_string()))?;
        let bell = ups.recv().map_err(|_| Error::new(ErrorKind::System, PANICKED))??;
        Ok(CacheFlusher { thread: Some(thread), bell, stop })
    }

    /// Stops the flusher after its I/O in flight has ended. A thread that hangs because of a drive
    /// is abandoned after some seconds.
    ///
    /// # Errors
    /// Returns an error if the thread panicked or hangs.
    pub fn stop(&mut self) -> Result<(), Error> {
        self.stop.store(true, Ordering::SeqCst);
        self.bell.ring();
        let text = match join_within(self.thread.take().into_iter().collect(), HANG) {
            JoinOutcome::Ended => return Ok(()),
            JoinOutcome::Panicked => PANICKED,
            JoinOutcome::Running => {
                "a drive does not complete its I/O, so a cache's flusher thread was abandoned; \
                 check the drive"
            }
        };
        Err(Error::new(ErrorKind::System, text))
    }
}

impl Drop for CacheFlusher {
    fn drop(&mut self) {
        // Ignores the error of `stop`: a caller that needs the error calls `stop` itself.
        let _ = self.stop();
    }
}

fn run(
    cache: &Arc<Cache<Native>>,
    config: IoConfig,
    stop: &AtomicBool,
    up: &Sender<Result<Arc<Doorbell<Native>>, Error>>,
) {
    let made = IoContext::new(config).and_then(|mut io| {
        let drives = cache.below().disks().len();
        let drive_writes = DRIVE_WRITES.min(WRITES_MAX / drives as u32).max(1);
        let config = FlusherConfig { drive_writes, lists: WriteLists::PerDrive };
        let below = io.channel(cache.below(), config.channel_depth(drives), Stamp::Batch)?;
        let flusher = Flusher::new(cache, (below, config), io.bell());
        Ok((io, flusher))
    });
    let bell = made.as_ref().map(|(io, _)| Arc::clone(io.bell()));
    // The thread that started the flusher may have stopped waiting, so sending may fail.
    let _ = up.send(bell.map_err(Clone::clone));
    // The channel must be dropped before the ring that its queues use.
    let Ok((mut io, mut flusher)) = made else { return };
    // If the ring fails, this thread panics, and threads that use the cache write dirty pages.
    let failed = |error: Error| panic!("flusher of volume {}: {error}", cache.below().name());
    while !stop.load(Ordering::SeqCst) {
        flusher.turn();
        let deadline_ns = flusher.sleep_until();
        let has_work = || flusher.has_work() || stop.load(Ordering::SeqCst);
        io.turn(deadline_ns, has_work).unwrap_or_else(failed);
    }
    flusher.begin_last_flush();
    let mut limit = Deadline::<Native>::after_ns(FLUSH_NS);
    while let Some(slice) = limit.slice().filter(|_| flusher.is_flushing()) {
        flusher.turn();
        let until_ns = Native::now() + slice.as_nanos() as u64;
        io.turn(Some(until_ns), || flusher.has_work()).unwrap_or_else(failed);
    }
}
