//! After warm-up, an I/O to a file (by any engine), to an NBD server or to a modelled drive
//! allocates nothing on its I/O thread.
//!
//! The allocator of this test binary counts the calls of the measuring thread, which is the I/O
//! thread: it runs the channel, the queue and the ring. A pool's threads are not counted, since a
//! list of results grows there until it holds all I/O in flight. `poll_again` resubmits bios, so
//! one set of bios and buffers serves a whole case.

#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

// A program of its own: threads that other tests start would excuse an allocation.
#[allow(dead_code)] // Servers that misbehave are of no use here.
#[path = "conformance/nbd_server.rs"]
mod nbd_server;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use millrace_allocations::Counting;
use millrace_block::baseline::Stack;
use millrace_block::{
    AfterCompletion, Bio, Buffer, Channel, Disk, DiskConfig, Driver, Op, OpFlags, Stamp, Volume,
};
use millrace_drives::{
    Aio, Direct, FileConfig, FileCounters, FileDriver, ModelConfig, ModelContents, ModelController,
    ModelDriver, NbdConfig, NbdDriver, model_presets,
};
use millrace_machine::{Machine, Native};
use millrace_reactor::{Backend, Config, POOL_THREADS_SHARED, Reactor};
use millrace_runtime::{IoConfig, IoContext};
use tempfile::TempDir;

const STACKS: [Stack; 3] = [Stack::Mq, Stack::Sq, Stack::Raw];
const WARM_UP: u64 = 500;
const IOS: u64 = 2_000;
const IN_FLIGHT: usize = 32;
const SIZE_BYTES: u64 = 8 << 20;
const SECTORS: u64 = SIZE_BYTES >> 9;
/// Longest that a test waits for one completion.
const PATIENCE_NS: u64 = 10_000_000_000;

#[global_allocator]
static ALLOCATOR: Counting = Counting::of_caller();

/// The mechanism that carries out a queue's operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The io_uring ring.
    Uring,
    /// Threads of the drive, although there is a ring.
    DriveThreads,
    /// The I/O thread itself.
    Inline,
    /// Threads of the reactor, where there is no ring.
    ReactorThreads,
}

impl Way {
    fn backend(self) -> Backend {
        if self == Way::ReactorThreads { Backend::Epoll } else { Backend::Uring }
    }

    fn aio(self) -> Aio {
        match self {
            Way::DriveThreads => Aio::Threads,
            Way::Inline => Aio::Inline,
            Way::Uring | Way::ReactorThreads => Aio::Auto,
        }
    }
}

/// The ways that this system allows; containers may forbid io_uring.
fn ways() -> impl Iterator<Item = Way> {
    let config = Config { backend: Backend::Uring, ..Config::default() };
    let refused = Reactor::new(config).err();
    if let Some(error) = &refused {
        millrace_require::skip(format_args!("io_uring is refused: {error}"));
    }
    let ways = [Way::Uring, Way::DriveThreads, Way::Inline, Way::ReactorThreads];
    ways.into_iter().filter(move |way| refused.is_none() || way.backend() == Backend::Epoll)
}

/// An I/O thread on a file. The channel goes before the thread does.
struct Rig {
    channel: Channel<Native>,
    ctx: IoContext,
    counters: Arc<FileCounters>,
    volume: Arc<Volume<Native>>,
    _dir: TempDir,
}

impl Rig {
    /// A rig on a modelled drive of any data sheet.
    fn model(stack: Stack) -> Rig {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let preset = model_presets().iter().find(|preset| preset.name == "p5800x").unwrap();
        let config = ModelConfig {
            size_bytes: SIZE_BYTES,
            contents: ModelContents::Ram,
            controller: Some(ModelController::new("shared", 16, 1_000_000_000)),
            ..preset.config()
        };
        let driver = Box::new(ModelDriver::new(config).unwrap());
        Rig::of(stack, driver, Way::ReactorThreads.backend(), Arc::default(), dir)
    }

    fn new(stack: Stack, way: Way, direct: Direct) -> Rig {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let config = FileConfig {
            path: dir.path().join("d"),
            size_bytes: Some(SIZE_BYTES),
            direct,
            aio: way.aio(),
            ..FileConfig::default()
        };
        let driver = FileDriver::open(config).unwrap();
        let counters = driver.counters();
        Rig::of(stack, Box::new(driver), way.backend(), counters, dir)
    }

    fn of(
        stack: Stack,
        driver: Box<dyn Driver<Native>>,
        backend: Backend,
        counters: Arc<FileCounters>,
        dir: TempDir,
    ) -> Rig {
        let config = DiskConfig { baseline: stack.into(), ..DiskConfig::default() };
        let disk = Disk::new(driver, config).unwrap();
        let volume = Volume::single(disk).unwrap();
        let reactor = Config { backend, ..Config::default() };
        let mut ctx = IoContext::new(IoConfig { reactor, ..IoConfig::default() }).unwrap();
        let channel = ctx.channel(&volume, 512, Stamp::Batch).unwrap();
        Rig { channel, ctx, counters, volume, _dir: dir }
    }

    fn submit(&mut self, bios: Vec<Bio>, at: &mut u64, gap: u64) {
        for mut bio in bios {
            aim(&mut bio, at, gap);
            self.channel.submit(bio).unwrap();
        }
    }

    fn merges(&self) -> u64 {
        let stats = self.volume.disks().iter().map(|disk| disk.stats());
        stats.flat_map(|stats| stats.ops).map(|op| op.merges).sum()
    }

    /// Lets the bios go round until `ios` more have completed, one behind the other with `gap`
    /// sectors between; without a gap, neighbours of one kind merge. Ends with as many in flight
    /// as it began with.
    fn turn(&mut self, at: &mut u64, ios: u64, gap: u64) {
        let mut done = 0;
        let mut last_ns = Native::now();
        while done < ios {
            let handed = self.channel.poll_again(|bio, status| {
                assert!(status.is_ok(), "{:?} {status}", bio.op());
                aim(bio, at, gap);
                AfterCompletion::Submit
            });
            done += handed as u64;
            if handed == 0 {
                let latest_ns = last_ns + PATIENCE_NS;
                let until_ns = self.channel.sleep_until().map_or(latest_ns, |ns| ns.min(latest_ns));
                let channel = &self.channel;
                self.ctx.turn(Some(until_ns), || channel.has_work()).unwrap();
                assert!(Native::now() < latest_ns, "an I/O is lost");
            } else {
                last_ns = Native::now();
            }
        }
    }

    /// Waits for all I/O in flight.
    fn drain(&mut self) {
        while self.channel.in_flight() > 0 {
            if self.channel.poll_again(|_, _| AfterCompletion::Drop) == 0 {
                let (until_ns, channel) = (self.channel.sleep_until(), &self.channel);
                self.ctx.turn(until_ns, || channel.has_work()).unwrap();
            }
        }
    }
}

/// Points a bio at the next place.
fn aim(bio: &mut Bio, at: &mut u64, gap: u64) {
    let sectors = u64::from(bio.nr_sectors());
    if *at + sectors > SECTORS {
        *at = 0;
    }
    if bio.op() != Op::Flush {
        bio.set_sector(*at);
    }
    *at += sectors + gap;
}

/// Warms up, then fails if any of `IOS` I/Os called the allocator.
fn assert_no_call(case: &str, rig: &mut Rig, bios: Vec<Bio>, gap: u64) {
    let mut at = 0;
    rig.submit(bios, &mut at, gap);
    rig.turn(&mut at, WARM_UP, gap);
    for _ in 0..POOL_THREADS_SHARED {
        let before = thread_ids();
        let (calls, first) = ALLOCATOR.calls_in(|| rig.turn(&mut at, IOS, gap));
        if calls == 0 {
            return rig.drain();
        }
        // A busy pool may start threads after the warm-up, up to a bound.
        let started = thread_ids().difference(&before).count();
        assert!(started > 0, "{case}: {calls} allocator calls in {IOS} I/Os; the first:\n{first}");
    }
    panic!("{case}: threads are started without an end");
}

/// Threads of this process.
fn thread_ids() -> BTreeSet<OsString> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks.map(|task| task.unwrap().file_name()).collect()
}

/// Reads and writes in turns of eight, of buffers made by `buffers`.
fn bios(buffers: impl Fn() -> Vec<Buffer>) -> Vec<Bio> {
    let bio = |n| match n / 8 % 2 {
        0 => Bio::readv(0, buffers()),
        _ => Bio::writev(0, buffers()),
    };
    (0..IN_FLIGHT).map(bio).collect()
}

fn single() -> Vec<Buffer> {
    vec![Buffer::new(4096)]
}

fn vectored() -> Vec<Buffer> {
    [4096, 8192, 512, 3584, 16_384].map(Buffer::new).into()
}

/// Buffers for a list with more pieces than a tag has room for at first.
fn long_list() -> Vec<Buffer> {
    (0..20).map(|_| Buffer::new(512)).collect()
}

#[inline(never)]
fn allocated() -> Box<u64> {
    std::hint::black_box(Box::new(7))
}

#[test]
fn allocator_calls_are_counted_and_traced_to_their_function() {
    let (calls, first) = ALLOCATOR.calls_in(|| drop(allocated()));
    assert_eq!(calls, 2);
    assert!(first.contains("allocation::allocated"), "{first}");
}

#[test]
fn single_segment_io_to_a_file_allocates_nothing() {
    for way in ways() {
        for stack in STACKS {
            for direct in [Direct::Auto, Direct::Off] {
                let case = format!("{way:?} {stack:?} {direct:?}");
                let mut rig = Rig::new(stack, way, direct);
                assert_no_call(&case, &mut rig, bios(single), 8);
                assert_eq!(rig.counters.bounces.load(Relaxed), 0, "{case}");
            }
        }
    }
}

#[test]
fn vectored_io_to_a_file_allocates_nothing() {
    for way in ways() {
        for stack in STACKS {
            for direct in [Direct::Auto, Direct::Off] {
                let case = format!("{way:?} {stack:?} {direct:?}");
                let mut rig = Rig::new(stack, way, direct);
                assert_no_call(&case, &mut rig, bios(vectored), 8);
            }
        }
    }
}

#[test]
fn merged_file_io_allocates_nothing_once_tags_had_long_lists() {
    for way in ways() {
        for stack in [Stack::Mq, Stack::Sq] {
            for buffers in [single, vectored] {
                let case = format!("{way:?} {stack:?}");
                let mut rig = Rig::new(stack, way, Direct::Auto);
                let mut at = 0;
                rig.submit(bios(long_list), &mut at, 8);
                rig.turn(&mut at, WARM_UP, 8);
                rig.drain();
                let before = rig.merges();
                assert_no_call(&case, &mut rig, bios(buffers), 0);
                assert!(rig.merges() > before, "{case}");
            }
        }
    }
}

#[test]
fn flushes_and_durable_writes_to_a_file_allocate_nothing() {
    for way in ways() {
        for stack in STACKS {
            let bio = |n| match n % 4 {
                0 => Bio::flush(),
                1 => Bio::write_zeroes(0, 8),
                2 => Bio::discard(0, 8),
                _ => Bio::write(0, Buffer::new(4096)).with_flags(OpFlags::FUA),
            };
            let mut rig = Rig::new(stack, way, Direct::Auto);
            let bios = (0..IN_FLIGHT).map(bio).collect();
            assert_no_call(&format!("{way:?} {stack:?}"), &mut rig, bios, 8);
        }
    }
}

#[test]
fn io_to_a_modelled_drive_allocates_nothing() {
    for stack in STACKS {
        let mut rig = Rig::model(stack);
        assert_no_call(&format!("model {stack:?}"), &mut rig, bios(vectored), 8);
    }
}

#[test]
fn io_to_an_nbd_server_allocates_nothing() {
    // A send that moves only a part makes the reactor's epoll back end copy its list.
    for way in ways().filter(|way| *way == Way::Uring) {
        for buffers in [single, vectored] {
            let server = nbd_server::Server::new(SIZE_BYTES, nbd_server::ALL, &[]);
            let uri = server.uri();
            let driver = NbdDriver::open(NbdConfig::new(uri.parse().unwrap(), uri)).unwrap();
            let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
            let driver = Box::new(driver);
            let mut rig = Rig::of(Stack::Mq, driver, way.backend(), Arc::default(), dir);
            assert_no_call(&format!("nbd {way:?}"), &mut rig, bios(buffers), 8);
        }
    }
}
