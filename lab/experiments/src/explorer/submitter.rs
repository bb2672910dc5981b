//! A submitting thread: submits its workload, collects completions, and reports both to the oracle.
//!
//! The thread runs on a CPU of the simulated machine, which other threads may share. If drives'
//! queues belong to threads, the submitter is an I/O thread: it creates its own queues, sleeps on
//! its own doorbell, and serves other threads' requests in its queues until all submitters are
//! done. When a disturbance stops the submitter, the submitter drops its channel with all I/O in
//! flight.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millrace_block::{
    Bio, Channel, ChannelConfig, Completion, Disk, IoThread, Op, QueueKind, Reject, Stamp, Status,
    Volume,
};
use millrace_machine::{Doorbell, Machine, Order, Parker, Word};
use millrace_simulator::Simulated;

use super::cache_spec::CacheSpec;
use super::oracle::{MemoryFate, SharedOracle};
use super::oracle_lock::lock_oracle;
use super::random::Random;
use super::scenario::{ChannelSpec, Scenario};
use super::sharing::GroupEnds;
use super::workers::WorkerHandle;
use super::workload::{OwnedPieces, Workload, found};

use millrace_machine::lock_unpoisoned;

pub(super) type SimDoorbell = Arc<Doorbell<Simulated>>;
type SimWord = <Simulated as Machine>::Word;
type SimParker = <Simulated as Machine>::Parker;

pub(super) struct RunState {
    pub(super) scenario: Scenario,
    pub(super) volume: Arc<Volume<Simulated>>,
    pub(super) oracle: SharedOracle,
    /// Doorbells of the submitters, one for each; empty if the submitters are not I/O threads.
    pub(super) bells: Vec<SimDoorbell>,
    pub(super) start_ns: u64,
    pub(super) up: SimWord,
    pub(super) busy: SimWord,
    pub(super) watchdog: SimParker,
    pub(super) workers: Vec<WorkerHandle>,
    /// 1 while the volume switches its serving mode.
    pub(super) switching: SimWord,
    /// Memory of dropped channels' bios, which drives may access until the end of the run.
    pub(super) kept: Mutex<Vec<OwnedPieces>>,
    pub(super) group_ends: Mutex<GroupEnds>,
}

impl RunState {
    pub(super) fn busy(&self) -> u64 {
        self.busy.load(Order::Acquire)
    }

    fn leave(&self) {
        if self.busy.fetch_add(u64::MAX, Order::AcqRel) == 1 {
            self.watchdog.unpark();
        }
        self.bells.iter().for_each(|bell| bell.ring());
    }

    fn owned_in_use(&self) -> bool {
        let owned =
            |d: &Disk<Simulated>| self.scenario.cache.is_some() || d.kind() == QueueKind::OwnerOnly;
        self.disks().any(|disk| owned(disk) && disk.tags_in_use() > 0)
    }

    /// Returns the disks of the volume. If the volume is a page cache, also returns the drives
    /// below it.
    pub(super) fn disks(&self) -> impl Iterator<Item = &Arc<Disk<Simulated>>> {
        let below = self.volume.below().map_or(&[][..], |below| below.disks());
        self.volume.disks().iter().chain(below)
    }

    fn stops(&self, index: usize) -> bool {
        lock_oracle(&self.oracle).stop.get(index).copied().unwrap_or(false)
    }
}

pub(super) struct Submitter {
    state: Arc<RunState>,
    index: usize,
    spec: ChannelSpec,
    workload: Workload,
    random: Random,
    groups: Random,
    foreign: BTreeMap<u64, OwnedPieces>,
    bell: Option<SimDoorbell>,
    refused: Option<(u64, Bio)>,
}

impl Submitter {
    pub(super) fn new(state: &Arc<RunState>, index: usize, spec: ChannelSpec) -> Submitter {
        let seed = state.scenario.seed;
        let map = lock_oracle(&state.oracle).map.clone();
        let channels = state.scenario.channels.len();
        let mut workload = Workload::new(seed, (index, channels), spec, &map);
        workload.close_with(CacheSpec::closing_flushes(state.scenario.cache));
        Submitter {
            workload,
            random: Random::new(seed, 2_000 + index as u64),
            groups: Random::new(seed, 3_000 + index as u64),
            foreign: BTreeMap::new(),
            bell: state.bells.get(index).cloned(),
            refused: None,
            state: Arc::clone(state),
            index,
            spec,
        }
    }

    /// Submits the workload. A submitter that is an I/O thread then serves its queues until no
    /// other thread needs them.
    pub(super) fn run(mut self) {
        if self.bell.is_some() {
            self.bring_up();
        }
        let mut channel = self.open();
        self.work(&mut channel);
        let dropped = channel.in_flight() > 0;
        if dropped && self.bell.is_some() {
            drop(channel);
            channel = self.open();
        } else if dropped {
            drop(channel);
            self.forget();
            return self.state.leave();
        }
        self.forget();
        self.state.leave();
        if let Some(thread) = self.io_thread() {
            self.serve_others(&mut channel);
            drop(channel);
            self.state.volume.disks().iter().for_each(|disk| disk.bring_down(&thread));
        }
    }

    fn io_thread(&self) -> Option<IoThread<Simulated>> {
        let bell = Arc::clone(self.bell.as_ref()?);
        Some(IoThread { number: self.index as u16, owner: self.index as u64 + 1, bell, turn: None })
    }

    fn bring_up(&self) {
        let Some(thread) = self.io_thread() else { return };
        for disk in self.state.volume.disks() {
            let up = disk.bring_up(thread.number, &thread);
            up.expect(
                "the queue must open: no other thread owns it, and this driver never refuses",
            );
        }
        let (up, all) = (&self.state.up, self.state.bells.len() as u64);
        up.fetch_add(1, Order::AcqRel);
        Simulated::spin_until(u64::MAX, || up.load(Order::Acquire) == all);
    }

    fn open(&self) -> Channel<Simulated> {
        let stamp = if self.state.scenario.layer.stamp_each { Stamp::Io } else { Stamp::Batch };
        let config = ChannelConfig { depth: self.spec.depth, stamp, thread: self.io_thread() };
        let mut channel = Channel::open(&self.state.volume, config)
            .expect("Channel::open must succeed: only queues that need I/O threads can refuse");
        channel.set_drain_timeout(Duration::from_micros(self.spec.drain_us.into()));
        channel
    }

    fn work(&mut self, channel: &mut Channel<Simulated>) {
        while !self.state.stops(self.index) {
            let closes = self.workload.closes();
            if closes {
                self.await_recovery(channel);
            }
            let mut batch = if closes { 1 } else { self.spec.batch };
            while batch > 0 && self.has_more() && channel.in_flight() < self.spec.depth {
                if self.workload.closes() != closes || !self.submit(channel) {
                    break;
                }
                batch -= 1;
            }
            if !self.has_more() && channel.in_flight() == 0 {
                return;
            }
            match self.random.below(8) {
                0 => channel.flush(),
                1 | 2 => {
                    channel.poll(|done| self.end(done));
                    channel.tick();
                }
                _ => self.wait(channel),
            }
            if self.spec.think_ns > 0 {
                Simulated::charge(self.random.below(u64::from(self.spec.think_ns)) + 1);
            }
        }
    }

    fn await_recovery(&mut self, channel: &mut Channel<Simulated>) {
        let Some(bell) = self.bell.clone() else { return };
        let back_ns = self.state.start_ns + self.state.scenario.recovered_ns();
        while !self.state.stops(self.index) {
            channel.poll(|done| self.end(done));
            let is_early = Simulated::now() < back_ns;
            if !is_early && channel.in_flight() == 0 {
                return;
            }
            let wake_ns = channel.sleep_until().unwrap_or(u64::MAX);
            let deadline_ns = if is_early { wake_ns.min(back_ns) } else { wake_ns };
            bell.sleep_unless(Some(deadline_ns), || channel.has_work());
            channel.tick();
        }
    }

    fn has_more(&self) -> bool {
        self.workload.left() > 0 || self.refused.is_some()
    }

    /// Returns the bio that the block layer rejected for lack of room, or else a new bio. Reports a
    /// new bio to the oracle, the model of a correct run.
    fn next(&mut self) -> (u64, Bio) {
        if let Some(refused) = self.refused.take() {
            return refused;
        }
        let now_ns = Simulated::now();
        let mut oracle = lock_oracle(&self.state.oracle);
        let id = oracle.next_id();
        let made = self.workload.next(id);
        let group = self.state.scenario.group_of(&mut self.groups, self.index);
        oracle.submit(made.record, now_ns);
        drop(oracle);
        if let Some(foreign) = made.foreign {
            self.foreign.insert(id, foreign);
        }
        (id, made.bio.with_group(group))
    }

    fn submit(&mut self, channel: &mut Channel<Simulated>) -> bool {
        let (id, bio) = self.next();
        let known_sectors = lock_oracle(&self.state.oracle).map.told;
        let waits = self.bell.is_none() && self.random.per_mille(100);
        let submitted = match waits {
            true => channel.submit_wait(bio, |done| self.end(done)),
            false => channel.submit(bio),
        };
        let Err(refused) = submitted else {
            let now_ns = Simulated::now();
            lock_oracle(&self.state.oracle).accept(id, now_ns);
            return true;
        };
        // Bios may be rejected if more than `pressure_high` requests wait for a drive, or if too
        // many bios of their group wait.
        let may_be_full =
            !self.state.scenario.serving.is_inline() || !self.state.scenario.groups.is_empty();
        if refused.reason == Reject::Full && may_be_full && !waits {
            self.refused = Some((id, refused.bio));
            if channel.in_flight() == 0 {
                // Let time pass, because this thread has no I/O in flight to wait for.
                Simulated::charge(200_000);
            }
            return false;
        }
        let mut oracle = lock_oracle(&self.state.oracle);
        if refused.reason == Reject::Invalid(Status::OutOfRange) && self.state.scenario.grows() {
            oracle.refuse_outside(id, known_sectors);
            return true;
        }
        oracle.refuse(id);
        oracle.accuse("refused", format!("bio {id} was refused: {:?}", refused.reason));
        true
    }

    /// Waits for completions. An I/O thread sleeps until its doorbell rings. A thread without a
    /// doorbell calls `Channel::wait`.
    fn wait(&mut self, channel: &mut Channel<Simulated>) {
        let Some(bell) = self.bell.clone() else {
            let least = 1 + self.random.below(u64::from(channel.in_flight()).min(4)) as usize;
            channel.wait(least, |done| self.end(done));
            return;
        };
        let mut handed = channel.poll(|done| self.end(done));
        while handed == 0 && channel.in_flight() > 0 && !self.state.stops(self.index) {
            let deadline_ns = channel.sleep_until();
            bell.sleep_unless(deadline_ns, || channel.has_work());
            channel.tick();
            handed = channel.poll(|done| self.end(done));
        }
    }

    /// Serves the queues of an I/O thread that has submitted its workload, until no other thread
    /// needs them.
    fn serve_others(&mut self, channel: &mut Channel<Simulated>) {
        let Some(bell) = self.bell.clone() else { return };
        let scenario = &self.state.scenario;
        let patience_ns = scenario.bound_ns() + scenario.stall_ns();
        let mut alone_ns = None;
        loop {
            channel.poll(|done| self.end(done));
            let busy = self.state.busy() > 0;
            let mut deadline_ns = channel.sleep_until();
            if !busy {
                let now_ns = Simulated::now();
                let since_ns = *alone_ns.get_or_insert(now_ns);
                if !self.state.owned_in_use() || now_ns - since_ns > patience_ns {
                    return;
                }
                // Wait for requests that timed out, or that belong to dropped channels.
                deadline_ns = Some(now_ns + 500_000);
            }
            let state = &self.state;
            bell.sleep_unless(deadline_ns, || channel.has_work() || busy != (state.busy() > 0));
            channel.tick();
        }
    }

    fn end(&mut self, done: Completion) {
        let now_ns = Simulated::now();
        let (id, status, op) = (done.user_data, done.status, done.bio.op());
        let group = done.bio.group();
        let hollow = op.has_data() && done.bio.nr_segments() == 0;
        let foreign = self.foreign.remove(&id);
        let mut ends = lock_unpoisoned(&self.state.group_ends);
        ends.note((group, op), status, now_ns);
        drop(ends);
        let mut oracle = lock_oracle(&self.state.oracle);
        let memory = if hollow { MemoryFate::Kept } else { MemoryFate::Back };
        oracle.end(id, status, memory, now_ns);
        if op == Op::Read && status == Status::Ok {
            let found = found(done.bio, foreign.as_ref());
            oracle.check_read(id, &found);
        }
    }

    /// Removes a dropped channel, but keeps memory that a drive may still access.
    fn forget(&mut self) {
        lock_oracle(&self.state.oracle).forget(self.index);
        let left = std::mem::take(&mut self.foreign);
        let mut kept = lock_unpoisoned(&self.state.kept);
        kept.extend(left.into_values());
    }
}
