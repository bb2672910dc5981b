//! The page cache of a scenario's volume, and the thread that writes its dirty pages (flusher).
//!
//! run.rs calls this file. The flusher is an I/O thread of the volume below the cache, numbered
//! after the channels' threads. The flusher starts before the channels and ends after them.

use std::sync::Arc;
use std::time::Duration;

use millrace_block::{Channel, ChannelConfig, Disk, DiskConfig, IoThread, Volume};
use millrace_cache::{Cache, CacheDriver, Flusher, FlusherConfig, WriteLists};
use millrace_machine::{CpuId, Doorbell, Machine, Order, Parker, Thread, Word};
use millrace_simulator::Simulated;

use super::oracle_lock::lock_oracle;
use super::scenario::Scenario;
use super::submitter::RunState;

/// Allows only a few writes in flight, so that some writes have to wait.
const FLUSHER: FlusherConfig = FlusherConfig { drive_writes: 4, lists: WriteLists::PerDrive };

type SimWord = <Simulated as Machine>::Word;

pub(super) type MaybeCached = (Arc<Volume<Simulated>>, Option<Arc<Cache<Simulated>>>);

pub(super) fn cached(scenario: &Scenario, below: Arc<Volume<Simulated>>) -> MaybeCached {
    let Some(spec) = scenario.cache else { return (below, None) };
    let cache = Cache::new(Arc::clone(&below), spec.config());
    let cache = cache.expect("the scenario was checked before");
    let config = DiskConfig {
        io_threads: scenario.channels.len() as u16,
        groups: below.groups().cloned(),
        timeout: Duration::ZERO,
        ..DiskConfig::default()
    };
    let disk =
        Disk::new(Box::new(CacheDriver::new(&cache)), config).expect("the drive must be valid");
    (Volume::over(below, disk).expect("a volume of one disk is valid"), Some(cache))
}

pub(super) struct FlusherThread {
    cache: Arc<Cache<Simulated>>,
    bell: Arc<Doorbell<Simulated>>,
    over: Arc<SimWord>,
    thread: <Simulated as Machine>::Thread,
}

impl FlusherThread {
    pub(super) fn start(scenario: &Scenario, cache: Arc<Cache<Simulated>>) -> FlusherThread {
        let number = scenario.channels.len() as u16;
        let bell = Arc::new(Doorbell::new(<Simulated as Machine>::Parker::new()));
        let owner = u64::from(number) + 1;
        let on = IoThread { number, owner, bell: Arc::clone(&bell), turn: None };
        let (over, up) = (Arc::new(SimWord::new(0)), Arc::new(SimWord::new(0)));
        let body = {
            let (cache, over, up) = (Arc::clone(&cache), Arc::clone(&over), Arc::clone(&up));
            Box::new(move || flush(&cache, &on, &over, &up))
        };
        let cpu = scenario.cache.map(|spec| CpuId(spec.cpu));
        let thread = Simulated::spawn("flusher", cpu, body);
        Simulated::spin_until(u64::MAX, || up.load(Order::Acquire) == 1);
        FlusherThread { cache, bell, over, thread }
    }

    pub(super) fn stop(self, state: &RunState) {
        self.over.store(1, Order::SeqCst);
        self.bell.ring();
        assert!(self.thread.join());
        let dirty = self.cache.stats().dirty;
        if dirty > 0 && !state.scenario.may_stay_dirty() {
            let text = format!("{dirty} pages are dirty after the last flush");
            lock_oracle(&state.oracle).accuse("flush", text);
        }
    }
}

fn flush(cache: &Arc<Cache<Simulated>>, on: &IoThread<Simulated>, over: &SimWord, up: &SimWord) {
    for disk in cache.below().disks() {
        disk.bring_up(on.number, on).expect("every thread has a queue of its own");
    }
    let config = ChannelConfig { thread: Some(on.clone()), ..ChannelConfig::default() };
    let below =
        Channel::open(cache.below(), config).expect("Channel::open must succeed on an I/O thread");
    let mut flusher = Flusher::new(cache, (below, FLUSHER), &on.bell);
    up.store(1, Order::Release);
    while over.load(Order::SeqCst) == 0 {
        flusher.turn();
        let deadline_ns = flusher.sleep_until();
        let has_work = || flusher.has_work() || over.load(Order::SeqCst) != 0;
        on.bell.sleep_unless(deadline_ns, has_work);
    }
    drop(flusher);
    cache.below().disks().iter().for_each(|disk| disk.bring_down(on));
}
