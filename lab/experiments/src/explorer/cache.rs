//! Exploration of the page cache: scenarios from seeds run on the simulated machine and are
//! compared with a plain model.
//!
//! Several threads write, read, flush, discard and zero a small volume through a cache that is
//! smaller than the volume. Drives take whole blocks of 512 bytes to 64 KiB, answer late, fail,
//! hang for seconds, and lose at a power cut every write that no flush covered. The oracle knows
//! who wrote each sector and when. Violations are: a read that returns neither the sector's content
//! nor a concurrent write; flushed data that would not survive; data that was never written; a page
//! frame that changes while a drive reads it; a partial block that reaches a drive; and an I/O that
//! fails because of a dead drive that holds none of its sectors. Called by `millrace-lab explore
//! --cache`.

mod client;
mod drive;
mod oracle;
mod scenario;

use std::sync::{Arc, Mutex};

use millrace_block::{Channel, ChannelConfig, Disk, DiskConfig, IoThread, Layout, Volume};
use millrace_cache::{Cache, CacheDriver, CacheMode, Flusher, FlusherConfig, WriteLists};
use millrace_machine::{CpuId, Doorbell, Machine, Order, Parker, Thread, Word};
use millrace_simulator::{Model, SimError, Simulated, Simulation};

use crate::explorer::ScenarioOutcome;
use crate::explorer::oracle_lock::lock_oracle;
use client::CacheClient;
use drive::BackingDrive;
use oracle::{CacheOracle, GrowthStep, VolumeSize};
pub use scenario::{CacheScenario, DriveGrowth};

type SimDoorbell = Arc<Doorbell<Simulated>>;
type SimWord = <Simulated as Machine>::Word;

/// The flusher keeps few writes in flight, so that further writes have to wait for them.
const FLUSHER: FlusherConfig = FlusherConfig { drive_writes: 4, lists: WriteLists::PerDrive };

/// Runs the cache scenario of a seed and returns its outcome.
#[must_use]
pub fn run(seed: u64) -> ScenarioOutcome {
    run_counted(seed).0
}

/// Runs a seed; also returns how many pages the cache wrote back to the drives.
fn run_counted(seed: u64) -> (ScenarioOutcome, u64) {
    let scenario = CacheScenario::of_seed(seed);
    let oracle = Arc::new(Mutex::new(CacheOracle::new(&scenario)));
    let shared = Arc::clone(&oracle);
    let model = Model::plain(2, 4);
    let simulation = Simulation::new(&model, seed).expect("a valid model");
    let played = scenario.clone();
    let result = simulation.time_limit_ns(20_000_000_000).run(move || play(&played, &shared));
    let mut oracle = lock_oracle(&oracle);
    let (events, virtual_ns) = match result {
        Ok(report) => (report.events, report.elapsed_ns()),
        Err(error) => {
            let kind = match &error {
                SimError::Deadlock(_) => "deadlock",
                SimError::TimeLimit(..) => "starvation",
                _ => "panic",
            };
            oracle.accuse(kind, error.to_string());
            (0, 0)
        }
    };
    let (ios, digest, violation) = (oracle.ios, oracle.digest(), oracle.violation.clone());
    (ScenarioOutcome { ios, events, virtual_ns, digest, violation }, oracle.written_back)
}

fn thread(number: u16) -> IoThread<Simulated> {
    let bell: SimDoorbell = Arc::new(Doorbell::new(<Simulated as Machine>::Parker::new()));
    IoThread { number, owner: u64::from(number) + 1, bell, turn: None }
}

/// Builds the volume below the cache from the scenario's drives.
fn volume_of(scenario: &CacheScenario, oracle: &Arc<Mutex<CacheOracle>>) -> Arc<Volume<Simulated>> {
    let disk = |number: usize| {
        let drive = BackingDrive::new(scenario, number, oracle);
        let name = format!("d{number}");
        let io_threads = scenario.load.clients as u16 + 1;
        let config = DiskConfig { name, io_threads, timeout_ns: 0, ..DiskConfig::default() };
        Disk::new(Box::new(drive), config).expect("a valid drive")
    };
    let disks = (0..scenario.shape.drives).map(disk).collect();
    let layout = match scenario.shape.drives {
        _ if scenario.shape.linear => Layout::Linear,
        1 => Layout::Linear,
        _ => Layout::Stripe { chunk_sectors: scenario.shape.chunk_sectors },
    };
    Volume::new("v", layout, disks).expect("the drives fit the layout")
}

fn play(scenario: &CacheScenario, oracle: &Arc<Mutex<CacheOracle>>) {
    let below = volume_of(scenario, oracle);
    let cache = Cache::new(Arc::clone(&below), scenario.cache)
        .expect("a scenario has valid cache settings");
    let io_threads = scenario.load.clients as u16;
    let config = DiskConfig { io_threads, timeout_ns: 0, ..DiskConfig::default() };
    let disk = Disk::new(Box::new(CacheDriver::new(&cache)), config).expect("a valid drive");
    let volume = Volume::over(below, disk).expect("a volume of one disk is valid");
    let (stop, flusher) = (Arc::new(SimWord::new(0)), thread(io_threads));
    let bell = Arc::clone(&flusher.bell);
    let flushes = {
        let (cache, stop) = (Arc::clone(&cache), Arc::clone(&stop));
        let body = Box::new(move || run_flusher(&cache, &flusher, &stop));
        Simulated::spawn("flusher", Some(CpuId(7)), body)
    };
    let start = |number: usize| {
        let mut client = CacheClient::new(scenario, number, oracle);
        let volume = Arc::clone(&volume);
        let body = Box::new(move || client.run(&volume, &thread(number as u16)));
        Simulated::spawn("client", Some(CpuId(number as u32)), body)
    };
    let grown = scenario.growth.map(|growth| {
        let (volume, oracle) = (Arc::clone(&volume), Arc::clone(oracle));
        let body = Box::new(move || grow(&volume, growth, &oracle));
        Simulated::spawn("grower", Some(CpuId(6)), body)
    });
    let clients: Vec<_> = (0..scenario.load.clients).map(start).collect();
    let whole = clients.into_iter().fold(true, |whole, client| client.join() & whole);
    let whole = grown.is_none_or(Thread::join) & whole;
    stop.store(1, Order::SeqCst);
    bell.ring();
    let whole = flushes.join() & whole;
    let stats = cache.stats();
    let mut oracle = lock_oracle(oracle);
    oracle.written_back = stats.written_back;
    if !whole {
        oracle.accuse("panic", "a thread panicked".into());
    }
    // A write-through cache keeps pages dirty whose write to the drive failed, even after a flush.
    let is_through = scenario.cache.mode == CacheMode::WriteThrough;
    let may_be_dirty = scenario.fails_per_mille > 0 || is_through && stats.write_errors > 0;
    if stats.dirty != 0 && !may_be_dirty {
        let text = format!("{} pages are dirty after the last flush", stats.dirty);
        oracle.accuse("flush", text);
    }
}

/// Waits until the growth time, then grows the drives and resizes the volume.
fn grow(volume: &Volume<Simulated>, growth: DriveGrowth, oracle: &Mutex<CacheOracle>) {
    let bell: SimDoorbell = Arc::new(Doorbell::new(<Simulated as Machine>::Parker::new()));
    while Simulated::now() < growth.at_ns {
        bell.sleep_unless(Some(growth.at_ns), || false);
    }
    lock_oracle(oracle).size.step = GrowthStep::Underway;
    let grown = volume.resize();
    let mut oracle = lock_oracle(oracle);
    match grown {
        Ok(resized) if resized.new == oracle.sectors() => {
            oracle.size = VolumeSize { known: resized.new, step: GrowthStep::Done };
        }
        other => oracle.accuse("size", format!("the volume did not grow: {other:?}")),
    }
}

fn run_flusher(cache: &Arc<Cache<Simulated>>, thread: &IoThread<Simulated>, stop: &SimWord) {
    for disk in cache.below().disks() {
        disk.bring_up(thread.number, thread).expect("each thread has a queue of its own");
    }
    let config = ChannelConfig { thread: Some(thread.clone()), ..ChannelConfig::default() };
    let below = Channel::open(cache.below(), config).expect("all queues of the volume are served");
    let mut flusher = Flusher::new(cache, (below, FLUSHER), &thread.bell);
    while stop.load(Order::SeqCst) == 0 {
        flusher.turn();
        let deadline_ns = flusher.sleep_until();
        let has_work = || flusher.has_work() || stop.load(Order::SeqCst) != 0;
        thread.bell.sleep_unless(deadline_ns, has_work);
    }
    drop(flusher);
    cache.below().disks().iter().for_each(|disk| disk.bring_down(thread));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_flushed_survives_and_reads_give_what_was_written_whatever_the_seed() {
        let mut written_back = 0;
        // The last ones have writes that fail after their drive has come back, and writers that
        // were held for long beside a drive that was stuck, or after it.
        for seed in (0..300).chain([700_000_002_197, 961_000_009_985, 964_000_038_856]) {
            let (outcome, pages) = run_counted(seed);
            assert_eq!(outcome.violation, None, "seed {seed}: {:?}", CacheScenario::of_seed(seed));
            written_back += pages;
        }
        assert!(written_back > 10_000, "{written_back} pages");
    }

    #[test]
    fn scenarios_have_drives_that_die_and_come_back() {
        let dead = (0..300).filter_map(|seed| CacheScenario::of_seed(seed).dead);
        assert!(dead.filter(|dead| dead.until_ns > 1_000_000_000).count() > 5);
        assert!((0..300).filter(|seed| CacheScenario::of_seed(*seed).stuck.is_some()).count() > 5);
        assert!((0..300).filter(|seed| CacheScenario::of_seed(*seed).once.is_some()).count() > 20);
    }

    #[test]
    fn scenarios_have_drives_of_all_blocks_in_a_row_and_in_stripes() {
        let scenarios = (0..300).map(CacheScenario::of_seed);
        let has = |block, linear| {
            let is_it =
                |it: &CacheScenario| it.shape.block_sectors == block && it.shape.linear == linear;
            scenarios.clone().filter(is_it).count()
        };
        for block in [1, 2, 4, 8, 16, 32, 64, 128] {
            assert!(has(block, false) > 5 && has(block, true) > 1, "blocks of {block} sectors");
        }
        let is_mixed = |it: &CacheScenario| {
            it.shape.drives > 1 && it.shape.other_block_sectors != it.shape.block_sectors
        };
        assert!(scenarios.filter(is_mixed).count() > 10);
    }

    #[test]
    fn scenarios_have_volumes_that_grow_while_clients_are_at_them() {
        let grow = |seed: &u64| CacheScenario::of_seed(*seed).growth.is_some();
        assert!((0..300).filter(grow).count() > 70);
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        assert_eq!(run(7), run(7));
    }
}
