//! An I/O thread of a vhost-user export: its queues, its channel, its loop.
//!
//! One round: what the guest made available is taken into the channel, the channel polled, what is
//! done shown to the guest, with one interrupt for all of it. Nothing to do: it polls rings and
//! drives for a while that adapts to what polls catch (polling.rs), unless its CPU is shared with
//! those it serves, then asks for kicks and sleeps in its ring. Where submitting costs a system
//! call it may wait for more requests first (pace.rs). Made by vhost.rs; told what to do by the
//! device's control thread (orders.rs). How it waits is in waiting.rs, how it ends in ending.rs.
//!
//! Invariants: what is dropped at the end goes in the order channel, ring, queues; memory that a
//! drive may still touch then is leaked with its queue.

mod ending;
pub(crate) mod kicks;
pub(crate) mod nudge;
mod orders;
pub mod pace;
pub mod polling;
mod waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16};

use millrace_block::{Bio, Channel, Error, ErrorKind, QueueKind, Stamp, Volume};
use millrace_machine::{CpuShare, Lock, Machine, Native};
use millrace_reactor::Handle;
use millrace_runtime::{IoConfig, IoContext};

use self::kicks::Kicks;
use self::nudge::Nudge;
use self::pace::{Pace, PaceConfig};
use self::polling::Polling;
use super::log::Log;
use super::memory::sigbus;
use super::queue::Queue;
use super::queue::unflushed::UnflushedWrites;
use super::stats::{PublishedStats, QueueCounters, ThreadStats};
use crate::faults::Faults;
use crate::mailbox::Mailbox;
use crate::stop::StopOrder;

pub(crate) use self::orders::Order;

/// Bios in flight per thread.
const CHANNEL_DEPTH: u32 = 1024;
/// Requests that a queue has served at once by drives that answer at once: the guest takes these
/// while the next ones are served. If all that a guest has in flight is served before it sees the
/// first answer, guest and device wait for each other in turn, and sleep meanwhile.
const AT_ONCE: u32 = 8;
/// Rounds without a sleep after which kicks, orders and counters are looked after all the same.
const ROUNDS_MAX: u32 = 64;

/// Settings of an I/O thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ThreadConfig {
    pub(crate) reactor: millrace_reactor::Config,
    /// Longest poll before a sleep, in nanoseconds.
    pub(crate) poll_max_ns: u64,
    /// Longest wait for more requests, in nanoseconds.
    pub(crate) wait_max_ns: u64,
}

/// What an I/O thread shares with the rest of its export.
#[derive(Default)]
pub(crate) struct ThreadState {
    pub(crate) orders: Mailbox<Order>,
    pub(crate) published: PublishedStats,
    pub(crate) nudge: Nudge,
}

/// What all threads of an export share.
pub(crate) struct Common {
    pub(crate) volume: Arc<Volume<Native>>,
    pub(crate) config: ThreadConfig,
    pub(crate) log: Log,
    /// What the volume's drives failed at.
    pub(crate) faults: Faults,
    /// The write-back switch as the frontend set it last; it says it once, and not again after a
    /// reset or when it comes back.
    pub(crate) write_back: AtomicBool,
    /// Whether answered writes would be lost with this process.
    pub(crate) unflushed: Arc<UnflushedWrites>,
    /// Threads that have nothing in flight any more, while the export stops.
    pub(crate) drained: AtomicU16,
    /// The lock around all queues, in the design that has one.
    pub(crate) lock: Option<<Native as Machine>::Lock<()>>,
    pub(crate) stop: StopOrder,
}

impl Common {
    pub(crate) fn new(
        volume: Arc<Volume<Native>>,
        config: ThreadConfig,
        log: Log,
        lock: Option<<Native as Machine>::Lock<()>>,
    ) -> Common {
        let (stop, faults) = (StopOrder::default(), Faults::default());
        let (write_back, drained) = (AtomicBool::new(true), AtomicU16::new(0));
        let unflushed = UnflushedWrites::of(volume.limits().features);
        let unflushed = Arc::new(unflushed);
        Common { volume, config, log, faults, write_back, unflushed, drained, lock, stop }
    }
}

/// How a thread waits while there is nothing to do.
struct IdleState {
    /// Polling for anything, and polling for what guests make of answers that they just got.
    polling: [Polling; 2],
    /// Whether others want its CPU.
    share: CpuShare,
    /// Something was published since the last wait.
    answered: bool,
    /// How long it polled in vain since the last sleep.
    spun_ns: u64,
}

/// An I/O thread.
pub(crate) struct IoThread {
    channel: Channel<Native>,
    ctx: IoContext,
    reactor: Handle,
    kicks: Kicks,
    /// By place, which completions name: a queue never moves.
    queues: Vec<Option<ServedQueue>>,
    /// The queue that is taken from first.
    first: usize,
    common: Arc<Common>,
    state: Arc<ThreadState>,
    /// The volume's queues are served by turns of the ring.
    turns: bool,
    pace: PaceState,
    idle: IdleState,
    stats: ThreadStats,
    /// The value of `sigbus::hits` when memory was last found whole.
    hits: usize,
}

/// A queue and the place of its kick.
struct ServedQueue {
    queue: Box<Queue>,
    counters: Arc<QueueCounters>,
    kick: Option<usize>,
    /// Requests that this round found.
    available: u32,
    /// The queue's failure was reported.
    reported: bool,
}

/// Holding back of submissions.
struct PaceState {
    /// Submitting costs system calls, and waiting is allowed.
    is_on: bool,
    pace: Pace,
    /// Since when requests wait in the rings; 0 while none do.
    since_ns: u64,
    /// Requests that wait.
    waiting: u32,
}

impl IoThread {
    /// Makes the calling thread number `number` of those that have queues of the volume's drives.
    ///
    /// # Errors
    /// If there is no ring or a drive cannot open its queue.
    pub(crate) fn new(
        common: &Arc<Common>,
        state: &Arc<ThreadState>,
        number: u16,
    ) -> Result<IoThread, Error> {
        let config = common.config;
        let mut ctx = IoContext::new(IoConfig { number, reactor: config.reactor })?;
        let channel = ctx.channel(&common.volume, CHANNEL_DEPTH, Stamp::Batch)?;
        let handle = ctx.reactor().handle();
        let disks = common.volume.disks();
        let turns = disks.iter().any(|disk| disk.kind() == QueueKind::OwnerOnly);
        Ok(IoThread {
            channel,
            ctx,
            kicks: Kicks::new(handle.clone()),
            reactor: handle,
            queues: Vec::new(),
            first: 0,
            common: Arc::clone(common),
            state: Arc::clone(state),
            turns,
            pace: PaceState {
                is_on: turns && config.wait_max_ns > 0,
                pace: Pace::new(PaceConfig { wait_max_ns: config.wait_max_ns }),
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
        })
    }

    /// Has orders to this thread end its sleeps.
    pub(crate) fn set_bell(&self) {
        self.state.orders.set_bell(Arc::clone(self.ctx.bell()));
    }

    /// Why the thread does not use io_uring, if it does not.
    pub(crate) fn fallback_reason(&mut self) -> Option<String> {
        self.ctx.reactor().fallback_reason().map(str::to_owned)
    }

    /// Serves until the export stops.
    ///
    /// # Errors
    /// `System` if the ring fails.
    pub(crate) fn serve(&mut self) -> Result<(), Error> {
        let mut since = 0;
        while !self.common.stop.is_given() {
            self.take_orders();
            let mut rounds = 0;
            while rounds < ROUNDS_MAX && self.round()? {
                rounds += 1;
            }
            since += rounds + 1;
            let busy = rounds == ROUNDS_MAX || self.spin()?;
            if !busy || since >= ROUNDS_MAX {
                since = 0;
                self.look_after();
            }
            if !busy {
                self.sleep(None)?;
            }
        }
        Ok(())
    }

    /// Takes, submits, completes and shows; false if nothing was to be done.
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
            // What the channel had no room for has arrived already.
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

    /// Whether to wait for more before what is available is submitted.
    #[inline]
    fn hold(&mut self, available: u32) -> bool {
        // On a CPU that is shared with the guest nothing more comes while it is held.
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

    /// Takes what is available into the channel.
    #[inline]
    fn take(&mut self) -> u32 {
        // Drives that answer later want all of it in one submission, but for what others need. A
        // guest on this CPU takes nothing before the thread sleeps, whatever it is served.
        let count = self.queues.len().max(1);
        let whole = self.turns || self.idle.share.is_shared();
        let most = if whole { (CHANNEL_DEPTH / count as u32).max(AT_ONCE) } else { AT_ONCE };
        // In turn, so that none is always last where the channel has no room for all.
        self.first = (self.first + 1) % count;
        // What was answered without the drives is none of their completions.
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

    /// Starts what was taken and answers what is done.
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
            let served = served.expect("a queue stays until it is empty");
            served.queue.complete(head, completion.status);
        });
        if self.pace.is_on {
            self.pace.pace.completed(done as u32);
        }
        done as u32
    }

    /// Turns the ring once without waiting; returns how many completions came of it.
    fn turn_now(&mut self, submitted: u32) -> Result<u32, Error> {
        let failed = |error| Error::new(ErrorKind::System, format!("I/O ring: {error}"));
        let measured = self.pace.is_on && submitted > 0;
        let before = if measured { self.ctx.reactor().counters().system_calls } else { 0 };
        let start_ns = if measured { Native::now() } else { 0 };
        // What it delivers lies with the drives' queues then, where nothing but a poll finds it.
        let delivered = self.reactor.turn_now().map_err(failed)?;
        if measured && self.ctx.reactor().counters().system_calls > before {
            // Most of it the drive takes for each request; what is left for one is the least that
            // one submission more can cost.
            let cost_ns = (Native::now() - start_ns) / u64::from(submitted);
            self.pace.pace.submitted(cost_ns, submitted);
        }
        Ok(if delivered > 0 || self.channel.has_work() { self.poll() } else { 0 })
    }

    /// What is looked after now and then: stopped and broken queues, timeouts, counters.
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
                    "queue {number} is not served any more, until the guest resets the device: \
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

    /// Lets requests go on of queues that stop, whatever the limits of their group: the frontend
    /// waits for them, and the guest's CPUs with it.
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

    /// Fails the queues of a guest whose memory has gone away.
    fn find_damage(&mut self) {
        let hits = sigbus::hits();
        if hits == self.hits {
            return;
        }
        self.hits = hits;
        for served in self.queues.iter_mut().flatten() {
            // Also if it broke by the zeroes that are in its ring now.
            if !served.reported
                && let Some(why) = served.queue.damage()
            {
                served.queue.lose(why.to_owned());
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
