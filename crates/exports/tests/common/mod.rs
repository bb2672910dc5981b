//! Support for the server's tests: servers on drives by spec, clients on them.
// Each test file uses its own part; a helper of a test may fail like one.
#![allow(dead_code, clippy::unwrap_used, clippy::print_stderr, clippy::panic)]

use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_block::{Disk, DiskConfig, Volume};
use millrace_drives::open;
use millrace_exports::client::{Client, Completion};
use millrace_exports::nbd::{Address, Command, Errno, NbdUri, Request};
use millrace_exports::server::{ExportConfig, Listen, ListenConfig, Server, ServerConfig};
use millrace_machine::Native;
use millrace_reactor::Backend;

pub const MIB: u64 = 1 << 20;
pub const BACKENDS: [Backend; 2] = [Backend::Auto, Backend::Epoll];

pub fn volume(spec: &str, threads: u16) -> Arc<Volume<Native>> {
    let opened = open(&spec.parse().unwrap(), threads).unwrap();
    let config = DiskConfig { io_threads: threads, ..DiskConfig::default() };
    Volume::single(Disk::new(opened.driver, config).unwrap()).unwrap()
}

/// A server with its directory.
pub struct Running {
    pub server: Server,
    dir: tempfile::TempDir,
}

/// A Unix and a TCP listener, an export for each spec named `0`, `1`, ...
pub fn serve(specs: &[&str], change: impl FnOnce(&mut ServerConfig)) -> Running {
    let dir = tempfile::Builder::new().prefix("mr-").tempdir().unwrap();
    let mut config = ServerConfig { threads: 2, ..ServerConfig::default() };
    let exports: Vec<usize> = (0..specs.len()).collect();
    config.listeners = vec![
        ListenConfig { listen: Listen::Unix(dir.path().join("s")), exports: exports.clone() },
        ListenConfig { listen: Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 0))), exports },
    ];
    change(&mut config);
    for (index, spec) in specs.iter().enumerate() {
        config.exports.push(ExportConfig {
            name: index.to_string(),
            description: (*spec).to_owned(),
            volume: volume(spec, config.threads),
            read_only: false,
        });
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
    let word = |at: u64| (seed << 32 ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let words = (0..length.div_ceil(8) as u64).flat_map(|at| word(at).to_le_bytes());
    words.take(length).collect()
}

/// Reads until the peer has closed.
pub fn read_to_end(mut socket: UnixStream) {
    let mut rest = Vec::new();
    // A reset is an end too.
    let _ = socket.read_to_end(&mut rest);
}
