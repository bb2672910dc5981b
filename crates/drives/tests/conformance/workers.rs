//! Drives served by workers, on this machine: modes change and workers come and go under load.
//!
//! Two I/O threads write and read back, each in its own half of a stripe of four drives, while the
//! main thread changes the serving mode and the workers. Files lie in cargo's directory for tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use millrace_block::{
    Bio, Buffer, Channel, Disk, DiskConfig, ErrorKind, Layout, Op, Serving, ServingConfig, Spread,
    Stamp, Status, Volume,
};
use millrace_drives::{Spec, open};
use millrace_machine::{CpuId, Machine, Native};
use millrace_reactor::{Backend, Config};
use millrace_runtime::{DriveWorkers, IoConfig, IoContext, Pinning, WorkerCpus};

const DRIVES: usize = 4;
const THREADS: u64 = 2;
/// Sectors of one thread's part of the volume.
const PART: u64 = 8192;
const PATIENCE_NS: u64 = 20_000_000_000;

/// A stripe of drives with places for two workers.
fn volume(specs: &[Spec], hardware_queues: Spread, serving: ServingConfig) -> Arc<Volume<Native>> {
    let cpus: Vec<CpuId> =
        (0..2).map(|n| Native::topology().cpus()[0].id.0 + n).map(CpuId).collect();
    let mut cpus = WorkerCpus::new(&cpus, &Native::topology());
    let disk = |(index, spec): (usize, &Spec)| {
        let config = DiskConfig {
            name: format!("d{index}"),
            io_threads: THREADS as u16,
            hardware_queues,
            worker: cpus.next(None),
            ..DiskConfig::default()
        };
        Disk::new(open(spec, THREADS as u16 + 1).unwrap().driver, config).unwrap()
    };
    let disks = specs.iter().enumerate().map(disk).collect();
    Volume::with_serving("v", Layout::Stripe { chunk_sectors: 8 }, disks, serving).unwrap()
}

fn files(dir: &tempfile::TempDir, keys: &str) -> Vec<Spec> {
    let path = |n| format!("file:path={}/d{n},size=8m{keys}", dir.path().display());
    (0..DRIVES).map(|n| path(n).parse().unwrap()).collect()
}

/// A watermark so low that workers get nearly all.
fn eager(serving: Serving) -> ServingConfig {
    ServingConfig { plug_low: 1, ..ServingConfig::of(serving) }
}

/// An I/O thread with a channel.
struct Submitter {
    channel: Channel<Native>,
    io: IoContext,
    base: u64,
}

impl Submitter {
    fn new(volume: &Arc<Volume<Native>>, number: u64, reactor: Config) -> Submitter {
        let mut io = IoContext::new(IoConfig { number: number as u16, reactor }).unwrap();
        let channel = io.channel(volume, 256, Stamp::Batch).unwrap();
        Submitter { channel, io, base: number * PART }
    }

    /// Polls once; sleeps if nothing is done.
    fn turn(&mut self, mut take: impl FnMut(Bio)) {
        let handed = self.channel.poll(|done| {
            assert_eq!(done.status, Status::Ok, "{:?} at {}", done.bio.op(), done.bio.sector());
            take(done.bio);
        });
        if handed == 0 {
            let deadline_ns = self.channel.sleep_until();
            let soon_ns = Native::now() + 10_000_000;
            let channel = &self.channel;
            let until_ns = deadline_ns.map_or(soon_ns, |ns| ns.min(soon_ns));
            self.io.turn(Some(until_ns), || channel.has_work()).unwrap();
            self.channel.tick();
        }
    }

    /// Submits and waits for all of them.
    fn all(&mut self, bios: impl Iterator<Item = Bio>, mut take: impl FnMut(Bio)) {
        for mut bio in bios {
            while let Err(refused) = self.channel.submit(bio) {
                bio = refused.bio;
                self.turn(&mut take);
            }
        }
        while self.channel.in_flight() > 0 {
            self.turn(&mut take);
        }
    }

    /// Writes blocks of 4 KiB side by side and some longer ones, and reads them back.
    fn round(&mut self, round: u64) {
        let base = self.base;
        let fill = |sector: u64| (sector / 8 + round) as u8 | 1;
        let write = |(sector, bytes): (u64, usize)| {
            let mut buffer = Buffer::new(bytes);
            let blocks = buffer.chunks_mut(4096).zip((sector..).step_by(8));
            blocks.for_each(|(block, at)| block.fill(fill(at)));
            Bio::write(sector, buffer)
        };
        let small = (0..128).map(|n| (base + n * 8, 4096));
        let large = (0..16).map(|n| (base + 1024 + n * 128, 65_536));
        let places: Vec<(u64, usize)> = small.chain(large).collect();
        self.all(places.iter().copied().map(write), |_| ());
        if round.is_multiple_of(4) {
            self.all(std::iter::once(Bio::flush()), |_| ());
        }
        let reads = places.iter().map(|(sector, bytes)| Bio::read(*sector, Buffer::new(*bytes)));
        self.all(reads, |bio| {
            assert_eq!(bio.op(), Op::Read);
            let sector = bio.sector();
            let data = bio.into_buffer().unwrap();
            for (block, at) in data.chunks(4096).zip((sector..).step_by(8)) {
                let wrong = block.iter().find(|byte| **byte != fill(at));
                assert_eq!(wrong, None, "block at {at} in round {round}: not {}", fill(at));
            }
        });
    }
}

/// Puts load on a volume while `change` runs, until it returns; the rounds of all threads.
fn under_load(volume: &Arc<Volume<Native>>, reactor: Config, change: impl FnOnce(&AtomicU64)) {
    let (stop, rounds, ended) = (AtomicBool::new(false), AtomicU64::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let (stop, rounds, ended) = (&stop, &rounds, &ended);
            scope.spawn(move || {
                let mut submitter = Submitter::new(volume, number, reactor);
                let mut round = 0;
                while !stop.load(Ordering::SeqCst) {
                    submitter.round(round);
                    round += 1;
                    rounds.fetch_add(1, Ordering::SeqCst);
                }
                // The other may have a flush in a queue of this thread.
                ended.fetch_add(1, Ordering::SeqCst);
                while ended.load(Ordering::SeqCst) < THREADS as usize {
                    submitter.turn(|_| ());
                }
            });
        }
        change(&rounds);
        stop.store(true, Ordering::SeqCst);
    });
}

/// Waits until the load has gone round `more` times.
fn go_round(rounds: &AtomicU64, more: u64) {
    let (until, start_ns) = (rounds.load(Ordering::SeqCst) + more, Native::now());
    while rounds.load(Ordering::SeqCst) < until {
        assert!(Native::now() < start_ns + PATIENCE_NS, "the load stands still");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

fn backends() -> Vec<Config> {
    let config = |backend| Config { backend, ..Config::default() };
    let made = |config: &Config| millrace_reactor::Reactor::new(*config).is_ok();
    [Backend::Uring, Backend::Epoll].map(config).into_iter().filter(made).collect()
}

#[test]
fn the_mode_changes_under_load_and_nothing_is_lost() {
    for reactor in backends() {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let memory = vec!["ram:size=8m".parse().unwrap(); DRIVES];
        for specs in [files(&dir, ""), memory] {
            let volume = volume(&specs, Spread::Core, eager(Serving::Inline));
            let mut workers = DriveWorkers::start(volume.disks(), reactor, Pinning::Free).unwrap();
            assert_eq!(workers.threads(), 2);
            under_load(&volume, reactor, |rounds| {
                for (serving, name) in Serving::NAMES.iter().cycle().take(24) {
                    let switched = volume.switch_serving(*serving, Native::now() + PATIENCE_NS);
                    assert!(switched, "{name}: the drives were not drained");
                    assert_eq!(volume.serving(), *serving);
                    go_round(rounds, 2);
                }
            });
            workers.stop().unwrap();
            let left: u32 = volume.disks().iter().map(|disk| disk.tags_in_use()).sum();
            assert_eq!(left, 0);
        }
    }
}

#[test]
fn workers_come_and_go_under_load_and_nothing_is_lost() {
    for reactor in backends() {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let memory = vec!["ram:size=8m".parse().unwrap(); DRIVES];
        for specs in [files(&dir, ""), files(&dir, ",aio=threads"), memory] {
            let volume = volume(&specs, Spread::Core, eager(Serving::PerDrive));
            under_load(&volume, reactor, |rounds| {
                for _ in 0..8 {
                    let mut workers =
                        DriveWorkers::start(volume.disks(), reactor, Pinning::Free).unwrap();
                    go_round(rounds, 2);
                    workers.stop().unwrap();
                    go_round(rounds, 1);
                }
            });
        }
    }
}

#[test]
fn io_threads_that_share_one_queue_leave_the_workers_to_it() {
    for reactor in backends() {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let volume = volume(&files(&dir, ""), Spread::One, eager(Serving::PerDrive));
        under_load(&volume, reactor, |rounds| {
            go_round(rounds, 1);
            let mut workers = DriveWorkers::start(volume.disks(), reactor, Pinning::Free).unwrap();
            go_round(rounds, 4);
            workers.stop().unwrap();
        });
    }
}

#[test]
fn a_second_set_of_workers_is_refused_and_the_first_serves_on() {
    let specs = vec!["ram:size=1m".parse().unwrap(); 2];
    let volume = volume(&specs, Spread::Core, eager(Serving::PerDrive));
    let mut workers =
        DriveWorkers::start(volume.disks(), Config::default(), Pinning::Free).unwrap();
    let refused = DriveWorkers::start(volume.disks(), Config::default(), Pinning::Free)
        .map(|_| ())
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy);
    assert!(refused.to_string().starts_with("drive d"), "{refused}");
    assert!(volume.disks().iter().all(|disk| disk.has_worker()));
    workers.stop().unwrap();
    assert!(!volume.disks()[0].has_worker());
}
