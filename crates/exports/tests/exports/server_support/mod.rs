//! Support for the server's tests: servers on drives by spec, clients on them.
// Each test file uses its own part; a helper of a test may fail like one.
#![allow(dead_code, clippy::unwrap_used, clippy::print_stderr, clippy::panic)]

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_block::{Disk, DiskConfig, GroupConfig, GroupLimits, Groups, Volume};
use millrace_clients::nbd::{Client, Completion};
use millrace_drives::{FaultControl, open};
use millrace_exports::ClientGroup;
use millrace_exports::nbd::{ExportConfig, Listen, ListenConfig, Server, ServerConfig};
use millrace_machine::Native;
use millrace_nbd::client::{Address, NbdUri};
use millrace_nbd::wire::{OPT_EXPORT_NAME, put_option};
use millrace_nbd::{Command, Errno, ReplyStyle, Request, encode_request};
use millrace_reactor::Backend;

pub const MIB: u64 = 1 << 20;
pub const BACKENDS: [Backend; 2] = [Backend::Auto, Backend::Epoll];

pub fn volume(spec: &str, threads: u16) -> Arc<Volume<Native>> {
    let timeout = DiskConfig::<Native>::default().timeout;
    volume_with(spec, threads, timeout).0
}

/// A volume whose drive has a timeout of `timeout`, and the controls of a fault drive.
pub fn volume_with(
    spec: &str,
    threads: u16,
    timeout: Duration,
) -> (Arc<Volume<Native>>, Option<FaultControl>) {
    let opened = open(&spec.parse().unwrap(), threads).unwrap();
    let config = DiskConfig { io_threads: threads, timeout, ..DiskConfig::default() };
    (Volume::single(Disk::new(opened.driver, config).unwrap()).unwrap(), opened.fault)
}

/// A server with its directory.
pub struct Running {
    pub server: Server,
    dir: tempfile::TempDir,
}

/// A Unix and a TCP listener, an export for each spec named `0`, `1`, ...
pub fn serve(specs: &[&str], change: impl FnOnce(&mut ServerConfig)) -> Running {
    let open = |threads| specs.iter().map(|spec| volume(spec, threads)).collect();
    serve_volumes(specs.len(), change, open)
}

/// A server of `count` volumes that are made once the number of threads is known.
pub fn serve_volumes(
    count: usize,
    change: impl FnOnce(&mut ServerConfig),
    open: impl FnOnce(u16) -> Vec<Arc<Volume<Native>>>,
) -> Running {
    let dir = tempfile::Builder::new().prefix("mr-").tempdir().unwrap();
    let mut config = ServerConfig { threads: 2, ..ServerConfig::default() };
    let exports: Vec<usize> = (0..count).collect();
    config.listeners = vec![
        ListenConfig::new(Listen::Unix(dir.path().join("s")), exports.clone()),
        ListenConfig::new(Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 0))), exports),
    ];
    change(&mut config);
    for (index, volume) in open(config.threads).into_iter().enumerate() {
        config.exports.push(ExportConfig::new(index.to_string(), volume));
    }
    Running { server: Server::start(config).unwrap(), dir }
}

impl Running {
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    pub fn unix(&self, name: &str) -> Client {
        let address = Address::Unix { path: self.path() };
        Client::connect(&NbdUri { address, name: name.to_owned() }).unwrap()
    }

    /// Writes a sector in each of the first `count` MiB, so that no read of a whole one is of a
    /// hole, for which the server needs neither drive nor memory.
    pub fn scatter(&self, name: &str, count: u64) {
        let mut client = self.unix(name);
        (0..count).for_each(|n| write(&mut client, n * MIB, &[1; 512]));
    }

    pub fn tcp(&self, name: &str) -> Client {
        let Listen::Tcp(address) = self.server.addresses()[1] else { panic!("no TCP listener") };
        let address = Address::Tcp { host: address.ip().to_string(), port: address.port() };
        Client::connect(&NbdUri { address, name: name.to_owned() }).unwrap()
    }

    pub fn raw(&self) -> UnixStream {
        let socket = UnixStream::connect(self.path()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        socket
    }

    /// A raw connection in transmission, with simple replies.
    pub fn by_hand(&self, name: &str) -> UnixStream {
        let mut socket = self.raw();
        socket.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
        socket.read_exact(&mut [0; 18]).unwrap();
        let mut out = 3u32.to_be_bytes().to_vec();
        put_option(&mut out, OPT_EXPORT_NAME, name.as_bytes());
        socket.write_all(&out).unwrap();
        socket.read_exact(&mut [0; 10]).unwrap();
        socket
    }

    /// Waits until the condition holds of the statistics.
    pub fn until(&self, what: &str, holds: impl Fn(&Running) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !holds(self) {
            assert!(Instant::now() < deadline, "{what}: {:?}", self.server.stats());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Nothing is held once all connections are gone.
    pub fn until_empty(&self) {
        self.until("connections, requests and buffers are back", |running| {
            let stats = running.server.stats();
            (stats.connections, stats.requests_in_flight, stats.buffers_in_use) == (0, 0, 0)
        });
    }

    pub fn stop(self) {
        let path = self.path();
        let report = self.server.stop(Duration::from_secs(10));
        assert!(report.is_clean(), "{report:?}");
        assert!(!path.exists());
    }
}

pub fn request(command: Command, offset: u64, length: u64) -> Request {
    Request { cookie: 7, flags: 0, command, offset, length }
}

/// The header of a request with simple replies.
pub fn header(command: Command, offset: u64, length: u64) -> Vec<u8> {
    let mut out = [0; 32];
    let bytes = encode_request(&request(command, offset, length), ReplyStyle::Simple, &mut out);
    out[..bytes].to_vec()
}

pub fn call(client: &mut Client, command: Command, offset: u64, data: Vec<u8>) -> Completion {
    let length = data.len() as u64;
    client.call(&request(command, offset, length), data).unwrap()
}

pub fn write(client: &mut Client, offset: u64, data: &[u8]) {
    assert_eq!(call(client, Command::Write, offset, data.to_vec()).errno, None);
}

pub fn read(client: &mut Client, offset: u64, length: usize) -> Vec<u8> {
    let done = call(client, Command::Read, offset, vec![0xee; length]);
    assert_eq!(done.errno, None);
    done.buffer
}

pub fn order(
    client: &mut Client,
    command: Command,
    flags: u16,
    at: u64,
    len: u64,
) -> Option<Errno> {
    let order = Request { flags, ..request(command, at, len) };
    client.call(&order, Vec::new()).unwrap().errno
}

/// Bytes that tell where they belong.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    millrace_require::pattern(seed, 0, length)
}

/// The settings of a group with a limit of `bandwidth` bytes per second, or none.
pub fn with_bandwidth(name: &str, bandwidth: Option<u64>) -> GroupConfig {
    GroupConfig {
        limits: GroupLimits { bandwidth, ..GroupLimits::default() },
        ..GroupConfig::new(name)
    }
}

/// A server of 64 MiB for payload: its export `0` is for a group of 4 MB a second, `1` for a group
/// without limits, and both are of one volume.
pub fn serve_groups(groups: &Arc<Groups<Native>>) -> Running {
    serve(&[], |config| {
        let opened = open(&"ram:size=64m".parse().unwrap(), config.threads);
        let disk = DiskConfig {
            io_threads: config.threads,
            groups: Some(Arc::clone(groups)),
            ..DiskConfig::default()
        };
        let volume = Volume::single(Disk::new(opened.unwrap().driver, disk).unwrap()).unwrap();
        config.memory_max_bytes = 64 << 20;
        for (name, bandwidth) in [("0", Some(4_000_000)), ("1", None)] {
            let group = groups.open(with_bandwidth(name, bandwidth)).unwrap();
            config.exports.push(ExportConfig {
                group: ClientGroup::Shared(group),
                ..ExportConfig::new(name, Arc::clone(&volume))
            });
        }
        config.listeners.iter_mut().for_each(|listener| listener.exports = vec![0, 1]);
    })
}

/// Reads until the peer has closed.
pub fn read_to_end(mut socket: UnixStream) {
    let mut rest = Vec::new();
    // A reset is an end too.
    let _ = socket.read_to_end(&mut rest);
}
