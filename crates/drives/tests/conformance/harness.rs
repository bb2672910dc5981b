//! Rigs for the suite: drives of a kind, a volume of them, an I/O thread and a channel.
//!
//! A rig lives on one thread. `wait` turns the reactor until so many bios are back and panics after
//! a while instead of hanging. Files lie in cargo's directory for tests, on a real file system.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use millrace_block::baseline::Stack;
use millrace_block::{
    Bio, Buffer, Channel, Completion, Disk, DiskConfig, Driver, Layout, Reject, Stamp, Status,
    TraceSink, Volume,
};
use millrace_drives::{
    Aio, Direct, FaultCache, FaultConfig, FaultControl, FaultDriver, FileConfig, FileCounters,
    FileDriver, ModelConfig, ModelContents, ModelDriver, ModelTiming, NbdConfig, NbdDriver,
    NullDriver, RamConfig, RamDriver,
};
use millrace_machine::{Machine, Native};
use millrace_reactor::{Backend, Config};
use millrace_runtime::{IoConfig, IoContext};
use tempfile::TempDir;

use crate::nbd_server::{ALL, Server};

/// Longest that a test waits for anything.
const PATIENCE_NS: u64 = 10_000_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Null,
    Ram,
    Model,
    ModelRam,
    File,
    FileThreads,
    FileBuffered,
    FileInline,
    FaultRam,
    FaultFile,
    FaultVolatile,
    FaultVolatileWithoutFua,
    /// An NBD drive on a server in this process.
    Nbd,
}

/// Drives that keep data.
pub const KEEPERS: [Kind; 10] = [
    Kind::Ram,
    Kind::ModelRam,
    Kind::File,
    Kind::FileThreads,
    Kind::FileBuffered,
    Kind::FileInline,
    Kind::FaultRam,
    Kind::FaultFile,
    Kind::FaultVolatile,
    Kind::Nbd,
];
pub const STACKS: [Stack; 3] = [Stack::Mq, Stack::Sq, Stack::Raw];
pub const BACKENDS: [Backend; 2] = [Backend::Uring, Backend::Epoll];

/// Settings of a rig.
#[derive(Clone)]
pub struct Plan {
    pub kind: Kind,
    pub stack: Stack,
    pub backend: Backend,
    pub drives: usize,
    pub size_bytes: u64,
    /// Files have their size already, and no spec keeps them at it.
    pub may_grow: bool,
    pub block: u32,
    pub chunk_sectors: u32,
    pub queue_depth: Option<u32>,
    pub timeout: Duration,
    pub io_threads: u16,
    pub trace: Option<Arc<dyn TraceSink>>,
}

impl Plan {
    pub fn new(kind: Kind, stack: Stack, backend: Backend) -> Plan {
        Plan {
            kind,
            stack,
            backend,
            drives: 1,
            size_bytes: 8 << 20,
            may_grow: false,
            block: 512,
            chunk_sectors: 0,
            queue_depth: None,
            timeout: Duration::from_secs(30),
            io_threads: 1,
            trace: None,
        }
    }

    pub fn stripe(mut self, drives: usize, chunk_sectors: u32) -> Plan {
        (self.drives, self.chunk_sectors) = (drives, chunk_sectors);
        self
    }
}

/// Each of these kinds on each stack and back end; prints each plan, for a failing test's output.
pub fn plans(kinds: &[Kind]) -> impl Iterator<Item = Plan> {
    let all = kinds.iter().flat_map(|kind| STACKS.map(|stack| (*kind, stack)));
    let all = all.flat_map(|(kind, stack)| BACKENDS.map(|backend| (kind, stack, backend)));
    all.filter(|(_, _, backend)| *backend == Backend::Epoll || has_uring()).map(
        |(kind, stack, backend)| {
            println!("{kind:?} {stack:?} {backend}");
            Plan::new(kind, stack, backend)
        },
    )
}

/// Runs `body` on each plan, those of one kind at the same time: for tests that mostly wait.
pub fn side_by_side(kinds: &[Kind], body: impl Fn(Plan) + Sync) {
    for kind in kinds {
        std::thread::scope(|scope| {
            for plan in plans(&[*kind]) {
                let name = format!("{kind:?} {:?} {}", plan.stack, plan.backend);
                let thread = std::thread::Builder::new().name(name);
                thread.spawn_scoped(scope, || body(plan)).unwrap();
            }
        });
    }
}

/// False, with a printed line, where containers forbid io_uring.
pub fn has_uring() -> bool {
    let config = Config { backend: Backend::Uring, ..Config::default() };
    let made = millrace_reactor::Reactor::new(config);
    let refused = made.inspect_err(|error| {
        millrace_require::skip(format_args!("io_uring is refused: {error}"));
    });
    refused.is_ok()
}

/// A volume and the hands on its drives.
pub struct Drives {
    pub volume: Arc<Volume<Native>>,
    pub faults: Vec<FaultControl>,
    pub files: Vec<Arc<FileCounters>>,
    pub paths: Vec<PathBuf>,
    _servers: Vec<Server>,
    _dir: TempDir,
}

impl Drives {
    pub fn new(plan: &Plan) -> Drives {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (mut faults, mut files, mut paths, mut disks) = (vec![], vec![], vec![], vec![]);
        let mut servers = Vec::new();
        for number in 0..plan.drives {
            let path = dir.path().join(format!("d{number}"));
            let driver = match plan.kind {
                Kind::Nbd => remote(plan, &mut servers),
                _ => driver(plan, &path, &mut faults, &mut files),
            };
            let config = DiskConfig {
                name: format!("d{number}"),
                baseline: plan.stack.into(),
                queue_depth: plan.queue_depth,
                timeout: plan.timeout,
                io_threads: plan.io_threads,
                trace: plan.trace.clone(),
                ..DiskConfig::default()
            };
            disks.push(Disk::new(driver, config).unwrap());
            paths.push(path);
        }
        let volume = match plan.chunk_sectors {
            0 => Volume::new("v", Layout::Linear, disks),
            chunk_sectors => Volume::new("v", Layout::Stripe { chunk_sectors }, disks),
        };
        let volume = volume.unwrap();
        Drives { volume, faults, files, paths, _servers: servers, _dir: dir }
    }

    /// A volume that was made elsewhere.
    pub fn around(volume: Arc<Volume<Native>>) -> Drives {
        let dir = tempfile::tempdir().unwrap();
        let (faults, files, paths) = (vec![], vec![], vec![]);
        Drives { volume, faults, files, paths, _servers: vec![], _dir: dir }
    }
}

impl Drop for Drives {
    /// A failing test may leave I/O behind; it shall not bring down the others.
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::mem::forget(Arc::clone(&self.volume));
        }
    }
}

/// A drive on a server of its own.
fn remote(plan: &Plan, servers: &mut Vec<Server>) -> Box<dyn Driver<Native>> {
    let server = Server::new(plan.size_bytes, ALL, &[]);
    server.state.block_min.store(plan.block as usize, std::sync::atomic::Ordering::SeqCst);
    let uri = server.uri();
    servers.push(server);
    let config = NbdConfig::new(uri.parse().unwrap(), uri);
    Box::new(NbdDriver::open(NbdConfig { io_threads: plan.io_threads, ..config }).unwrap())
}

fn driver(
    plan: &Plan,
    path: &std::path::Path,
    faults: &mut Vec<FaultControl>,
    files: &mut Vec<Arc<FileCounters>>,
) -> Box<dyn Driver<Native>> {
    let (size_bytes, block_size) = (plan.size_bytes, plan.block);
    let ram = || RamDriver::new(RamConfig { size_bytes, block_size, ..RamConfig::default() });
    let mut file = |direct, aio| {
        if plan.may_grow {
            std::fs::File::create(path).unwrap().set_len(size_bytes).unwrap();
        }
        let file = FileDriver::open(FileConfig {
            path: path.into(),
            size_bytes: (!plan.may_grow).then_some(size_bytes),
            direct,
            aio,
            io_threads: plan.io_threads,
            ..FileConfig::default()
        });
        let file = file.unwrap();
        files.push(file.counters());
        file
    };
    let (inner, cache): (Box<dyn Driver<Native>>, FaultCache) = match plan.kind {
        Kind::Nbd => unreachable!("made by `remote`"),
        Kind::Null => return Box::new(NullDriver { size_bytes, ..NullDriver::default() }),
        Kind::Ram => return Box::new(ram().unwrap()),
        Kind::Model => return Box::new(model(plan, ModelContents::None)),
        Kind::ModelRam => return Box::new(model(plan, ModelContents::Ram)),
        Kind::File => return Box::new(file(Direct::Auto, Aio::Auto)),
        Kind::FileThreads => return Box::new(file(Direct::Auto, Aio::Threads)),
        Kind::FileBuffered => return Box::new(file(Direct::Off, Aio::Auto)),
        Kind::FileInline => return Box::new(file(Direct::Off, Aio::Inline)),
        Kind::FaultRam => (Box::new(ram().unwrap()), FaultCache::Inner),
        Kind::FaultFile => (Box::new(file(Direct::Auto, Aio::Auto)), FaultCache::Inner),
        Kind::FaultVolatile => (Box::new(ram().unwrap()), FaultCache::Volatile),
        Kind::FaultVolatileWithoutFua => (Box::new(ram().unwrap()), FaultCache::VolatileWithoutFua),
    };
    let fault = FaultDriver::new(inner, FaultConfig { cache, ..FaultConfig::default() }).unwrap();
    faults.push(fault.control());
    Box::new(fault)
}

/// A fast modelled drive with every feature of the model: a buffer, links, jitter.
fn model(plan: &Plan, contents: ModelContents) -> ModelDriver {
    let timing = ModelTiming {
        units: 8,
        page_bytes: 4096,
        read_time: Duration::from_nanos(2_000),
        write_time: Duration::from_nanos(4_000),
        latency: Duration::from_nanos(500),
        read_command_time: Duration::from_nanos(200),
        write_command_time: Duration::from_nanos(300),
        read_bytes_per_s: 10_000_000_000,
        write_bytes_per_s: 8_000_000_000,
        buffer_bytes: 64 << 10,
        jitter: 0.5,
        tail_share: 0.01,
        tail: Duration::from_nanos(20_000),
        seed: 1,
        disk: None,
    };
    let (size_bytes, block_size) = (plan.size_bytes, plan.block);
    let config = ModelConfig { size_bytes, block_size, contents, timing, ..ModelConfig::default() };
    ModelDriver::new(config).unwrap()
}

/// An I/O thread with a channel. The channel goes before the thread does.
pub struct Rig {
    pub channel: Channel<Native>,
    pub ctx: IoContext,
    pub drives: Arc<Drives>,
    pub back: Vec<Completion>,
}

impl Rig {
    pub fn new(plan: &Plan) -> Rig {
        Rig::of(Arc::new(Drives::new(plan)), plan.backend, 0)
    }

    /// A rig whose files may grow.
    pub fn growing(plan: &Plan) -> Rig {
        Rig::new(&Plan { may_grow: true, ..plan.clone() })
    }

    /// I/O thread `number` on drives that others may use too.
    pub fn of(drives: Arc<Drives>, backend: Backend, number: u16) -> Rig {
        let reactor = Config { backend, ..Config::default() };
        let mut ctx = IoContext::new(IoConfig { number, reactor }).unwrap();
        let channel = ctx.channel(&drives.volume, 512, Stamp::Batch).unwrap();
        Rig { channel, ctx, drives, back: Vec::new() }
    }

    pub fn submit(&mut self, bio: Bio) {
        if let Err(rejected) = self.channel.submit(bio) {
            panic!("rejected: {:?}", rejected.reason);
        }
    }

    /// The reason for which a bio is rejected.
    pub fn rejection(&mut self, bio: Bio) -> Reject {
        self.channel.submit(bio).expect_err("the bio is wrong").reason
    }

    /// Polls once; if no bio completed, turns the reactor for at most `nap_ns`.
    pub fn step(&mut self, nap_ns: u64) {
        self.channel.tick();
        let back = &mut self.back;
        if self.channel.poll(|done| back.push(done)) > 0 {
            return;
        }
        let latest_ns = Native::now() + nap_ns;
        let until_ns = self.channel.sleep_until().map_or(latest_ns, |ns| ns.min(latest_ns));
        let channel = &self.channel;
        self.ctx.turn(Some(until_ns), || channel.has_work()).unwrap();
    }

    /// Steps until `done` returns true.
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&Rig) -> bool) {
        let deadline_ns = Native::now() + PATIENCE_NS;
        while !done(self) {
            assert!(Native::now() < deadline_ns, "waited too long for {what}");
            self.step(20_000_000);
        }
    }

    /// Waits for all bios; returns their completions.
    pub fn drain(&mut self) -> Vec<Completion> {
        self.until("all bios", |rig| rig.channel.in_flight() == 0);
        std::mem::take(&mut self.back)
    }

    /// Submits one bio and waits for it.
    pub fn run(&mut self, bio: Bio) -> Completion {
        self.submit(bio);
        let mut done = self.drain();
        assert_eq!(done.len(), 1, "one bio, one answer");
        done.remove(0)
    }

    pub fn run_ok(&mut self, bio: Bio) -> Bio {
        let done = self.run(bio);
        assert_eq!(done.status, Status::Ok);
        done.bio
    }

    pub fn read(&mut self, sector: u64, len: usize) -> Vec<u8> {
        let mut buffer = Buffer::new(len);
        buffer.fill(0xee);
        self.run_ok(Bio::read(sector, buffer)).into_buffer().unwrap().to_vec()
    }

    pub fn write(&mut self, sector: u64, data: &[u8]) {
        self.run_ok(Bio::write(sector, buffer_of(data)));
    }
}

pub fn buffer_of(data: &[u8]) -> Buffer {
    let mut buffer = Buffer::new(data.len());
    buffer.copy_from_slice(data);
    buffer
}

/// Bytes that tell where and in which round they were written.
pub fn pattern(sector: u64, len: usize, round: u64) -> Vec<u8> {
    millrace_require::pattern(round, sector * 512, len)
}

/// xorshift64*, for loops that must be repeatable.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % sides
    }
}
