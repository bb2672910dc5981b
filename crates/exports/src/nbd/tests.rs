//! Support for the server's unit tests: an I/O thread whose loop the test runs turn by turn.

use std::io::{ErrorKind, Read, Write};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_block::{Disk, DiskConfig, GroupId, Op, OpFlags, Volume};
use millrace_machine::{CpuId, Machine, Native};
use millrace_reactor::{Backend, Config, Reactor};

use crate::io_threads::Service as _;

use super::connection::Connection;
use super::execute::WorkerContext;
use super::exports::ExportTable;
use super::listen::{Listen, Listener};
use super::memory::BufferPool;
use super::memory::budget::MemoryBudget;
use super::memory::waiting_line::MemoryWaiter;
use super::server_state::{ServerState, ThreadMessage};
use super::submit::ticket::{Ticket, TicketMemory, TicketOwner, TicketState, TicketWait};
use super::worker::Worker;
use super::{ExportConfig, ListenConfig, Server, ServerConfig, StopReport, share};
use millrace_nbd::wire::{OPT_EXPORT_NAME, put_option};
use millrace_nbd::{Command, Reply, ReplyStyle, Request, Session, encode_request};

pub(crate) const MIB: usize = 1 << 20;

/// Opens a volume on the drive that a spec describes.
pub(crate) fn volume(spec: &str, threads: u16, timeout: Duration) -> Arc<Volume<Native>> {
    let opened = millrace_drives::open(&spec.parse().unwrap(), threads).unwrap();
    let config = DiskConfig { io_threads: threads, timeout, ..DiskConfig::default() };
    Volume::single(Disk::new(opened.driver, config).unwrap()).unwrap()
}

/// Creates a buffer pool with a reactor of its own.
pub(crate) fn pool(budget: &Arc<MemoryBudget>, idle_bytes_max: usize) -> (Reactor, BufferPool) {
    let config = Config { backend: Backend::Epoll, ..Config::default() };
    let reactor = Reactor::new(config).unwrap();
    let pool = BufferPool::new(Arc::clone(budget), reactor.handle(), idle_bytes_max, 0);
    (reactor, pool)
}

/// Creates a connection on one end of a socket pair, and returns the other end as well.
pub(crate) fn connection(serial: u64) -> (Box<Connection>, [UnixStream; 2]) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (Connection::new(ours.as_raw_fd(), 0, serial, 0), [ours, theirs])
}

/// Describes a connection that waits for `bytes` bytes.
pub(crate) fn waiter(thread: usize, serial: u64, bytes: usize) -> MemoryWaiter {
    MemoryWaiter { thread, index: 0, serial, bytes, account: None }
}

pub(crate) fn session() -> Session {
    Session {
        export: 0,
        style: ReplyStyle::Simple,
        base_allocation: None,
        no_zeroes: true,
        block_sizes: false,
    }
}

pub(crate) fn request(command: Command, offset: u64, length: u64) -> Request {
    Request { cookie: 7, flags: 0, command, offset, length }
}

/// Encodes the header of a request for a session with simple replies.
pub(crate) fn header(request: &Request) -> Vec<u8> {
    let mut out = [0; 32];
    let bytes = encode_request(request, ReplyStyle::Simple, &mut out);
    out[..bytes].to_vec()
}

/// Creates a ticket of connection 0.
pub(crate) fn ticket(op: Op, serial: u64, memory: TicketMemory) -> Ticket {
    Ticket {
        owner: TicketOwner { conn: 0, serial, group: GroupId::DEFAULT },
        lane: 0,
        state: TicketState::Filling,
        reply: Reply::new(&request(Command::Write, 0, 512), &session()),
        op,
        flags: OpFlags::NONE,
        then_flush: false,
        len_bytes: 512,
        bio_bytes: 512,
        head_bytes: 0,
        sector: 0,
        left_sectors: 0,
        memory,
        bounce: None,
        waits: TicketWait::default(),
    }
}

/// I/O thread 0 of a server whose other threads do not run.
pub(crate) struct Rig {
    worker: Option<Worker>,
    pub(crate) shared: Arc<ServerState>,
    _dir: tempfile::TempDir,
}

impl Rig {
    /// Creates two listeners, each with one export for each spec.
    pub(crate) fn new(specs: &[&str], change: impl FnOnce(&mut ServerConfig)) -> Rig {
        let timeout = DiskConfig::<Native>::default().timeout;
        Rig::with_timeout(specs, timeout, change)
    }

    pub(crate) fn with_timeout(
        specs: &[&str],
        timeout: Duration,
        change: impl FnOnce(&mut ServerConfig),
    ) -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let mut config = ServerConfig { backend: Backend::Epoll, ..ServerConfig::default() };
        change(&mut config);
        for (index, spec) in specs.iter().enumerate() {
            config
                .exports
                .push(ExportConfig::new(index.to_string(), volume(spec, config.threads, timeout)));
        }
        for name in ["a", "b"] {
            let (listen, exports) = (Listen::Unix(dir.path().join(name)), 0..specs.len());
            config.listeners.push(ListenConfig::new(listen, exports.collect()));
        }
        let exports = ExportTable::new(config.exports.clone(), &config.listeners, config.threads);
        let bind = |one: &ListenConfig| Listener::bind(&one.listen, &one.access).unwrap();
        let listeners = config.listeners.iter().map(bind);
        let listeners: Vec<Listener> = listeners.collect();
        let requests = super::ExportRequests::default();
        let shared =
            Arc::new(share(&config, (Arc::new(exports.unwrap()), &requests), listeners).unwrap());
        let mut worker = Worker::new(&shared, 0).unwrap();
        for served in &shared.exports().volumes {
            let WorkerContext { ctx, submitter, .. } = &mut worker.core;
            submitter.lanes.open(ctx, served).unwrap();
        }
        Rig { worker: Some(worker), shared, _dir: dir }
    }

    /// Runs a turn that does not sleep.
    pub(crate) fn step(&mut self) {
        self.turn(Some(Native::now())).unwrap();
    }

    /// Runs turns until `holds` returns true.
    pub(crate) fn until(&mut self, what: &str, holds: impl Fn(&mut Rig) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !holds(self) {
            assert!(Instant::now() < deadline, "{what}");
            self.turn(Some(Native::now() + 5_000_000)).unwrap();
        }
    }

    /// Connects a client. Returns the client's socket and the connection's index.
    pub(crate) fn connect(&mut self) -> (UnixStream, usize) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        assert!(self.shared.admit());
        self.shared.mailboxes[0].put(ThreadMessage::Connection(ours.into_raw_fd(), 0));
        self.step();
        let newest = self.conns.iter().flatten().max_by_key(|conn| conn.serial).unwrap().index;
        (theirs, newest)
    }

    /// Connects a client and brings it to the transmission phase, with simple replies and without
    /// block sizes.
    pub(crate) fn by_hand(&mut self, name: &str) -> (UnixStream, usize) {
        let (mut client, index) = self.connect();
        let mut out = 3u32.to_be_bytes().to_vec();
        put_option(&mut out, OPT_EXPORT_NAME, name.as_bytes());
        client.write_all(&out).unwrap();
        self.receive(&mut client, 18 + 10);
        (client, index)
    }

    /// Runs turns until the client has received `len` bytes.
    pub(crate) fn receive(&mut self, client: &mut UnixStream, len: usize) -> Vec<u8> {
        let (mut bytes, mut filled) = (vec![0; len], 0);
        let deadline = Instant::now() + Duration::from_secs(20);
        while filled < len {
            match client.read(&mut bytes[filled..]) {
                Ok(0) => panic!("closed after {filled} of {len} bytes"),
                Ok(some) => filled += some,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            assert!(Instant::now() < deadline, "{filled} of {len} bytes came");
            self.turn(Some(Native::now() + 1_000_000)).unwrap();
        }
        bytes
    }

    /// Sends a request with its payload. Returns the errno of its simple reply.
    pub(crate) fn call(&mut self, client: &mut UnixStream, request: &Request, data: &[u8]) -> u32 {
        client.write_all(&[&header(request), data].concat()).unwrap();
        let reply = self.receive(client, 16);
        u32::from_be_bytes(reply[4..8].try_into().unwrap())
    }

    /// Ends the thread as a server does, and gives the drives two seconds.
    pub(crate) fn finish(mut self) -> StopReport {
        self.end().expect("it is ended once")
    }

    fn end(&mut self) -> Option<StopReport> {
        let mut worker = self.worker.take()?;
        if std::thread::panicking() {
            std::mem::forget(worker);
            return None;
        }
        self.shared.ending.stop.give(std::time::Duration::from_secs(2));
        (1..self.shared.mailboxes.len()).for_each(|_| self.shared.flush_ended());
        let (report, left_ns) = worker.finish(Ok(()));
        worker.let_go(left_ns);
        Some(report)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.end();
    }
}

impl Deref for Rig {
    type Target = Worker;

    fn deref(&self) -> &Worker {
        self.worker.as_ref().expect("it is not ended")
    }
}

impl DerefMut for Rig {
    fn deref_mut(&mut self) -> &mut Worker {
        self.worker.as_mut().expect("it is not ended")
    }
}

#[test]
fn thread_that_panics_keeps_no_other_from_its_end() {
    let mut rig = Rig::new(&["null:size=1m"], |_| ());
    let shared = Arc::clone(&rig.shared);
    assert!(!shared.all_flushed());
    let part = rig.flush_part.take();
    let died = std::thread::spawn(move || {
        let _part = part;
        std::panic::resume_unwind(Box::new("planted"));
    });
    assert!(died.join().is_err());
    assert!(shared.all_flushed());
    drop(rig);
    assert_eq!(shared.ending.flushed.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[test]
fn senseless_settings_are_refused_and_the_least_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let good = || {
        let listen = Listen::Unix(dir.path().join("s"));
        ServerConfig {
            exports: vec![ExportConfig::new(
                "x",
                volume("null:size=1m", 1, Duration::from_secs(1)),
            )],
            listeners: vec![ListenConfig::new(listen, vec![0])],
            memory_max_bytes: 1 << 20,
            ..ServerConfig::default()
        }
    };
    let wrong = |change: fn(&mut ServerConfig)| {
        let mut config = good();
        change(&mut config);
        Server::start(config).expect_err("it makes no sense").to_string()
    };
    assert!(wrong(|config| config.threads = 0).contains("at least one I/O thread"));
    assert!(wrong(|config| config.memory_max_bytes -= 1).contains("at least 1 MiB"));
    assert!(wrong(|config| config.listeners.clear()).contains("at least one address"));
    assert!(wrong(|config| config.listeners[0].exports.clear()).contains("no export is served"));
    assert!(wrong(|config| config.listeners[0].exports.push(1)).contains("there is no export 1;"));
    assert!(wrong(|config| config.listeners[0].exports.push(0)).contains("two exports are called"));
    let server = Server::start(good()).unwrap();
    assert_eq!(server.addresses(), [Listen::Unix(dir.path().join("s"))]);
    assert!(!server.has_failed());
    server.shared.ending.failed.set();
    assert!(server.has_failed());
    server.set_stall_timeout(Duration::from_nanos(77));
    assert_eq!(server.shared.stall_timeout(), 77);
    drop(server);
    assert!(!dir.path().join("s").exists());
}

#[test]
fn each_thread_keeps_its_part_of_half_the_memory_unused() {
    for (threads, kept) in [(1, 32), (4, 8)] {
        let rig = Rig::new(&["null:size=1m"], |config| {
            (config.threads, config.memory_max_bytes) = (threads, 64 << 20);
            config.spin = Some(Duration::from_nanos(7));
        });
        assert_eq!(rig.shared.idle_bytes_max, kept * MIB);
        assert_eq!((rig.shared.reactor.spin_ns, rig.shared.reactor.backend), (7, Backend::Epoll));
    }
}

/// Starts a server with one volume, whose clients need no export name.
fn start(
    volume: Arc<Volume<Native>>,
    path: &Path,
    change: impl FnOnce(&mut ServerConfig),
) -> Server {
    let mut config = ServerConfig {
        exports: vec![ExportConfig::new("", volume)],
        listeners: vec![ListenConfig::new(Listen::Unix(path.to_owned()), vec![0])],
        ..ServerConfig::default()
    };
    change(&mut config);
    Server::start(config).unwrap()
}

#[test]
fn more_threads_than_cpus_named_share_these() {
    let dir = tempfile::tempdir().unwrap();
    let cpus: Vec<CpuId> = Native::topology().cpus().iter().map(|cpu| cpu.id).take(2).collect();
    for count in 1..=cpus.len() {
        let server =
            start(volume("null:size=1m", 3, Duration::ZERO), &dir.path().join("s"), |config| {
                (config.threads, config.cpus) = (3, cpus[..count].to_vec());
            });
        let report = server.stop(Duration::from_secs(10));
        assert!(report.is_clean(), "{report:?}");
    }
}

#[test]
fn server_that_is_dropped_has_let_go_of_its_clients_and_volumes() {
    let dir = tempfile::tempdir().unwrap();
    let (volume, path) = (volume("null:size=1m", 1, Duration::ZERO), dir.path().join("s"));
    let server = start(Arc::clone(&volume), &path, |_| ());
    let mut client = UnixStream::connect(&path).unwrap();
    client.read_exact(&mut [0; 18]).unwrap();
    drop(server);
    assert_eq!(Arc::strong_count(&volume), 1);
    assert!(!path.exists());
    client.read_to_end(&mut Vec::new()).unwrap();
}
