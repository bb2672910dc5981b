//! `CacheFlusher`: the thread of a cache that brings dirty pages to its volume.
//!
//! Started after the disks of the volume below, as an I/O thread of it that has the queue of the
//! number given; stopped after whoever writes to the cache and before the drives' workers. It
//! sleeps in its ring. What is dirty when it stops stays in memory: flush the cached volume before.
//! If that failed, it flushes the drives, so that what those took is there for good.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use millrace_block::{Error, ErrorKind, Stamp};
use millrace_cache::{Cache, Flusher, FlusherConfig, WriteLists};
use millrace_machine::{Deadline, Doorbell, Machine, Native};
use millrace_reactor::Config;

use crate::io_context::{IoConfig, IoContext};
use crate::join::{Joined, join_within};

/// Writes that a flusher has in flight for each drive: as many as keep a drive busy, and few enough
/// for readers, who wait behind them in a drive without a scheduler.
const DRIVE_WRITES: u32 = 16;
/// Longest time for the flush of the drives at the end, in nanoseconds.
const FLUSH_NS: u64 = 1_000_000_000;
/// Longest time for the end of the thread: that flush, and 5 s in which its ring waits.
const HANG: Duration = Duration::from_secs(8);
/// Most writes in flight to all drives, but for one to each.
const WRITES_MAX: u32 = 1024;

/// The thread of a cache that brings dirty pages to its volume. Dropped, it stops.
pub struct CacheFlusher {
    thread: Option<<Native as Machine>::Thread>,
    bell: Arc<Doorbell<Native>>,
    stop: Arc<AtomicBool>,
}

impl CacheFlusher {
    /// Starts the flusher of a cache on a thread called `millrace-flush` and `number`, which is
    /// that of its queue of the volume's drives too.
    ///
    /// # Errors
    /// `System` if there is no ring, or what opening a queue says.
    pub fn start(
        cache: &Arc<Cache<Native>>,
        number: u16,
        reactor: Config,
    ) -> Result<CacheFlusher, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let (up, ups) = channel();
        let body = {
            let (cache, stop) = (Arc::clone(cache), Arc::clone(&stop));
            move || run(&cache, IoConfig { number, reactor }, &stop, &up)
        };
        let name = format!("millrace-flush-{}", cache.below().name());
        let thread = Native::try_spawn(&name, None, body)
            .map_err(|error| Error::new(ErrorKind::System, error.to_string()))?;
        let thread = Some(thread);
        let died = || Error::new(ErrorKind::System, "a cache's flusher panicked: see above");
        let bell = ups.recv().map_err(|_| died())??;
        Ok(CacheFlusher { thread, bell, stop })
    }

    /// Stops it: what it has under way is waited for. A thread that hangs with a drive is left
    /// behind after some seconds.
    ///
    /// # Errors
    /// That it panicked or hangs.
    pub fn stop(&mut self) -> Result<(), Error> {
        self.stop.store(true, Ordering::SeqCst);
        self.bell.ring();
        let text = match join_within(self.thread.take().into_iter().collect(), HANG) {
            Joined::Ended => return Ok(()),
            Joined::Panicked => "a cache's flusher panicked: see above",
            Joined::Running => "a cache's flusher hangs with a drive, and is left behind",
        };
        Err(Error::new(ErrorKind::System, text))
    }
}

impl Drop for CacheFlusher {
    fn drop(&mut self) {
        // Whoever wants to know how it ended calls `stop`.
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
        Ok((io, (below, config)))
    });
    // The channel goes before the ring that its queues are on.
    let (mut io, below) = match made {
        Ok(made) => made,
        Err(error) => {
            // Start-up may have given up already.
            let _ = up.send(Err(error));
            return;
        }
    };
    let mut flusher = Flusher::new(cache, below, io.bell());
    let _ = up.send(Ok(Arc::clone(io.bell())));
    // Its ring gone, queues that find no flusher write for themselves.
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
