//! An I/O thread of a vhost-user export: its queues, its channel, its loop.
//!
//! In each round (iteration of its loop) the thread takes available requests of the guest into the
//! channel, polls the channel and publishes completions to the guest, with one interrupt for all of
//! them. With nothing to do, the thread polls rings and drives for a time that adapts to the hit
//! rate (polling.rs), unless it shares its CPU with its guests. Afterwards the thread requests
//! kicks and sleeps in its ring. Where submitting costs a system call the thread may wait for more
//! requests first (pace.rs).
//!
//! Invariant: at the end, channel, ring and queues are dropped in this order. Memory that a drive
//! may still access at that time is leaked with its queue.

mod ending;
pub(crate) mod kicks;
mod orders;
pub mod pace;
pub mod polling;
pub(crate) mod thread_signal;
mod waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use millrace_block::{Bio, Channel, Error, QueueKind, Stamp, Volume};
use millrace_machine::{CpuShare, Lock, Machine, Native};
use millrace_reactor::{Handle, Wait};
use millrace_runtime::{IoConfig, IoContext};

use self::kicks::KickPoller;
use self::pace::BatchPacer;
use self::polling::Polling;
use self::thread_signal::{SignalTarget, ThreadSignal};
use super::log::ExportLog;
use super::memory::sigbus;
use super::queue::Queue;
use super::queue::unflushed::UnflushedWrites;
use super::stats::{PublishedStats, QueueCounters, ThreadStats};
use crate::faults::IoErrorCounter;
use crate::mailbox::Mailbox;
use crate::stop::StopOrder;

pub(crate) use self::orders::ThreadOrder;

const CHANNEL_DEPTH: u32 = 1024;
/// Maximum number of requests that one loop iteration takes from each queue, if drives complete
/// requests at once. With small batches, the guest can process the first answers while the thread
/// serves the next requests.
const AT_ONCE: u32 = 8;
/// Number of loop iterations after which a thread that does not sleep checks kicks, orders of the
/// control thread, and counters.
const ROUNDS_MAX: u32 = 64;

#[derive(Debug, Clone, Copy)]
pub(crate) struct ThreadConfig {
    pub(crate) reactor: millrace_reactor::Config,
    pub(crate) poll_max_ns: u64,
    pub(crate) wait_max_ns: u64,
}

#[derive(Default)]
pub(crate) struct ThreadState {
    pub(crate) orders: Mailbox<ThreadOrder>,
    pub(crate) published: PublishedStats,
    pub(crate) signal: ThreadSignal,
}

pub(crate) struct ExportContext {
    pub(crate) volume: Arc<Volume<Native>>,
    pub(crate) config: ThreadConfig,
    pub(crate) log: ExportLog,
    pub(crate) faults: IoErrorCounter,
    /// Write-back switch, as last set by the frontend. The frontend does not set the switch again
    /// after a reset or a reconnect.
    pub(crate) write_back: AtomicBool,
    pub(crate) unflushed: Arc<UnflushedWrites>,
    pub(crate) serving: AtomicU16,
    /// Lock around all queues if they share one thread and one lock (`Threads::Shared`).
    pub(crate) lock: Option<<Native as Machine>::Lock<()>>,
    pub(crate) stop: StopOrder,
}

impl ExportContext {
    pub(crate) fn new(
        volume: Arc<Volume<Native>>,
        config: ThreadConfig,
        log: ExportLog,
        lock: Option<<Native as Machine>::Lock<()>>,
    ) -> ExportContext {
        let (stop, faults) = (StopOrder::default(), IoErrorCounter::default());
        let (write_back, serving) = (AtomicBool::new(true), AtomicU16::new(0));
        let unflushed = UnflushedWrites::of(volume.limits().features);
        let unflushed = Arc::new(unflushed);
        ExportContext { volume, config, log, faults, write_back, unflushed, serving, lock, stop }
    }
}

struct IdleState {
    /// Statistics of adaptive polling. Index 1 is for waits after the thread has published answers,
    /// to which guests may react with new requests. Index 0 is for all other waits.
    polling: [Polling; 2],
    share: CpuShare,
    answered: bool,
    /// Time polled without finding work since the last sleep, in nanoseconds.
    spun_ns: u64,
}

pub(crate) struct IoThread {
    channel: Channel<Native>,
    ctx: IoContext,
    reactor: Handle,
    kicks: KickPoller,
    /// Queues by index. A queue keeps its index, because completions carry the index.
    queues: Vec<Option<ServedQueue>>,
    first: usize,
    common: Arc<ExportContext>,
    state: Arc<ThreadState>,
    /// True if some drive runs its operations on this thread's reactor (io_uring).
    turns: bool,
    pace: PaceState,
    idle: IdleState,
    stats: ThreadStats,
    /// Value of `sigbus::hits` when guest memory was last checked for damage.
    hits: usize,
    _target: SignalTarget,
}

struct ServedQueue {
    queue: Box<Queue>,
    counters: Arc<QueueCounters>,
    kick: Option<usize>,
    available: u32,
    reported: bool,
}

struct PaceState {
    /// True if requests may be held back, so that more are submitted together. Holding back is
    /// useful only if each submission costs a system call, and is disabled if `wait_max_ns` is 0.
    is_on: bool,
    pace: BatchPacer,
    /// Time, in nanoseconds, at which the waiting requests were first seen in the rings; 0 if none
    /// wait.
    since_ns: u64,
    waiting: u32,
}

impl IoThread {
    /// Makes the calling thread an I/O thread, which uses hardware queue `number` of each drive.
    pub(crate) fn new(
        common: &Arc<ExportContext>,
        state: &Arc<ThreadState>,
        number: u16,
    ) -> Result<IoThread, Error> {
        let config = common.config;
        let mut ctx = IoContext::new(IoConfig { number, reactor: config.reactor })?;
        let channel = ctx.channel(&common.volume, CHANNEL_DEPTH, Stamp::Batch)?;
        let handle = ctx.reactor().handle();
        let disks = common.volume.disks();
        let turns = disks.iter().any(|disk| disk.kind() == QueueKind::OwnerOnly);
        state.orders.set_bell(Arc::clone(ctx.bell()));
        common.serving.fetch_add(1, Ordering::SeqCst);
        Ok(IoThread {
            channel,
            ctx,
            kicks: KickPoller::new(handle.clone()),
            reactor: handle,
            queues: Vec::new(),
            first: 0,
            common: Arc::clone(common),
            state: Arc::clone(state),
            turns,
            pace: PaceState {
                is_on: turns && config.wait_max_ns > 0,
                pace: BatchPacer::new(config.wait_max_ns),
                since_ns: 0,
                waiting: 0,
            },
            idle: IdleState {
                polling: [Polling::new(config.poll_max_ns); 2],
                share: CpuShare::new(),
                answered: false,
                spun_ns: 0,
            },
            stats: ThreadStats::default(),
            hits: 0,
            _target: state.signal.attach(),
        })
    }

    /// Takes requests off the guests' rings, submits and completes requests, and publishes answers
    /// to the guests. Returns false if there was nothing to do.
    #[inline]
    pub(crate) fn round(&mut self) -> Result<bool, Error> {
        let mut available = 0;
        for served in self.queues.iter_mut().flatten() {
            served.available = served.queue.available();
            available += served.available;
        }
        let holds = available > 0 && self.hold(available);
        let mut taken = 0;
        if available > 0 && !holds {
            taken = self.take();
            // Requests left in the rings must not count as new arrivals in the next iteration.
            self.pace.waiting = available.saturating_sub(taken);
        }
        let mut moved = taken + self.poll();
        if self.turns {
            moved += self.turn_now(taken)?;
        }
        if sigbus::hits() != self.hits {
            self.find_damage();
        }
        for served in self.queues.iter_mut().flatten() {
            self.idle.answered |= served.queue.publish();
        }
        Ok(moved > 0 || holds)
    }

    #[inline]
    fn hold(&mut self, available: u32) -> bool {
        // If a guest shares its CPU with this thread, the guest cannot submit requests while the
        // thread runs. So the thread would wait for more requests in vain.
        if !self.pace.is_on || self.idle.share.is_shared() {
            return false;
        }
        let (paced, now_ns) = (&mut self.pace, Native::now());
        paced.pace.arrived(now_ns, available - paced.waiting.min(available));
        if paced.since_ns == 0 {
            paced.since_ns = now_ns;
        }
        if paced.pace.hold_until(now_ns, available, paced.since_ns).is_some() {
            self.stats.holds += u64::from(paced.since_ns == now_ns);
            paced.waiting = available;
            return true;
        }
        paced.since_ns = 0;
        false
    }

    #[inline]
    fn take(&mut self) -> u32 {
        // Small batches (`AT_ONCE`) give the guest its answers early. Early answers are of no use
        // if drives do not complete requests at once, or if the guest runs only while this thread
        // sleeps. In these cases one iteration may take as many requests of a queue as the channel
        // has room for, divided by the number of queues.
        let count = self.queues.len().max(1);
        let whole = self.turns || self.idle.share.is_shared();
        let most = if whole { (CHANNEL_DEPTH / count as u32).max(AT_ONCE) } else { AT_ONCE };
        // Each iteration begins with another queue, so that no queue is always last when the
        // channel to the block layer is full.
        self.first = (self.first + 1) % count;
        // Requests that were answered without the drives have no completion, and are counted here.
        let (mut taken, mut at_once) = (0, 0);
        let (early, late) = self.queues.split_at_mut(self.first);
        let first = early.len();
        let all = late.iter_mut().zip(first..).chain(early.iter_mut().zip(0..));
        for (served, lane) in all {
            let Some(served) = served.as_mut().filter(|served| served.available > 0) else {
                continue;
            };
            let _all = self.common.lock.as_ref().map(Lock::lock);
            let before = served.queue.in_flight();
            let count = served.queue.take(most, lane as u64, &mut self.channel);
            at_once += before + count - served.queue.in_flight();
            taken += count;
        }
        if self.pace.is_on {
            self.pace.pace.completed(at_once);
        }
        self.stats.batches += u64::from(taken > 0);
        taken
    }

    #[inline]
    fn poll(&mut self) -> u32 {
        let (queues, common) = (&mut self.queues, &self.common);
        let done = self.channel.poll(|completion| {
            let (lane, head) = (completion.user_data >> 16, completion.user_data as u16);
            let _all = common.lock.as_ref().map(Lock::lock);
            if !completion.status.is_ok() {
                common.faults.note(completion.status);
            }
            let served = queues[lane as usize].as_mut();
            let served = served.expect("a queue with requests in flight exists");
            served.queue.complete(head, completion.status);
        });
        if self.pace.is_on {
            self.pace.pace.completed(done as u32);
        }
        done as u32
    }

    /// Submits and reaps the operations of the thread's ring without waiting. Returns the number of
    /// completions that were handled.
    fn turn_now(&mut self, submitted: u32) -> Result<u32, Error> {
        let failed = |error: std::io::Error| {
            Error::system(format!("I/O ring: {error}"), error.raw_os_error())
        };
        let measured = self.pace.is_on && submitted > 0;
        let before = if measured { self.ctx.reactor().counters().system_calls } else { 0 };
        let start_ns = if measured { Native::now() } else { 0 };
        // The reactor passes completions to the drives' queues, where they stay until `poll` takes
        // them.
        let delivered = self.reactor.turn(Wait::No).map_err(failed)?;
        if measured && self.ctx.reactor().counters().system_calls > before {
            // The fixed cost of a submission is estimated as the time of the call divided by the
            // number of requests. The time of the whole call would be too high, because most of it
            // grows with the number of requests.
            let cost_ns = (Native::now() - start_ns) / u64::from(submitted);
            self.pace.pace.submitted(cost_ns, submitted);
        }
        Ok(if delivered > 0 || self.channel.has_work() { self.poll() } else { 0 })
    }

    fn look_after(&mut self) {
        let queues = &mut self.queues;
        self.kicks.take(|place| {
            let mut served = queues.iter_mut().flatten();
            if let Some(served) = served.find(|served| served.kick == Some(place)) {
                served.queue.stats.kicks += 1;
            }
        });
        if self.channel.in_flight() > 0 {
            self.channel.tick();
        }
        self.find_damage();
        self.release_stopping();
        for place in &mut self.queues {
            let Some(served) = place else { continue };
            if let Some(why) = served.queue.broken.as_ref().filter(|_| !served.reported) {
                served.reported = true;
                served.queue.stats.broken += 1;
                let number = served.queue.number;
                self.common.log.say(format!(
                    "queue {number} is out of service until the guest resets the device: \
                     {why}"
                ));
            }
            if served.queue.is_drained()
                && let Some(mut served) = place.take()
            {
                served.queue.publish();
                served.end(&mut self.kicks);
            }
        }
        self.publish();
    }

    /// Releases throttled requests of stopping queues, whatever their group's limits, because the
    /// frontend waits for the queues and the guest's CPUs wait for the frontend.
    fn release_stopping(&mut self) {
        let stops = |served: &ServedQueue| served.queue.stopping.is_some();
        let queues = &self.queues;
        if queues.iter().flatten().any(stops) {
            let is_its = |bio: &Bio| {
                let place = queues.get((bio.user_data() >> 16) as usize);
                place.and_then(Option::as_ref).is_some_and(stops)
            };
            self.channel.release_held(is_its);
        }
    }

    fn find_damage(&mut self) {
        let hits = sigbus::hits();
        if hits == self.hits {
            return;
        }
        self.hits = hits;
        for served in self.queues.iter_mut().flatten() {
            // Guest memory that the frontend has truncated reads as zeroes, so the ring may look
            // broken. The reported error must be the truncation, not a broken ring.
            if !served.reported
                && let Some(why) = served.queue.damage()
            {
                served.queue.lose(why);
            }
        }
    }

    pub(crate) fn publish(&mut self) {
        self.queues.iter().flatten().for_each(|served| served.publish_stats(1));
        let counters = self.ctx.reactor().counters();
        let mut stats = self.stats;
        stats.system_calls += counters.system_calls;
        stats.sleeps = counters.sleeps;
        self.state.published.thread.publish(stats);
    }
}

#[cfg(test)]
mod tests;
