//! Support for the tests of the vhost-user device: exports on drives, what they said, and waiting.
//!
//! The frontend is written by hand: wire.rs sends any message with any descriptors, guest.rs has
//! memory and rings in which all may be wrong. Neither uses anything of the device.
// Each test file uses its own part; a helper of a test may fail like one.
#![allow(dead_code, clippy::unwrap_used, clippy::panic)]

pub mod guest;
pub mod wire;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millrace_block::{Disk, DiskConfig, Volume};
use millrace_drives::{FaultCache, FaultConfig, FaultControl, FaultDriver, open};
use millrace_exports::CounterTable as _;
use millrace_exports::vhost::{
    QueueStats, Threads, VhostConfig, VhostExport, VhostServer, VhostSocket, VhostStats,
};
use millrace_machine::Native;
use millrace_reactor::Backend;

use guest::Guest;

pub const BACKENDS: [Backend; 2] = [Backend::Auto, Backend::Epoll];
/// Far longer than anything takes on a machine that does other things, too.
pub const LONG: Duration = Duration::from_secs(30);

/// Waits until something holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn volume(spec: &str) -> Arc<Volume<Native>> {
    let opened = open(&spec.parse().unwrap(), 4).unwrap();
    let config = DiskConfig { io_threads: 4, ..DiskConfig::default() };
    Volume::single(Disk::new(opened.driver, config).unwrap()).unwrap()
}

/// A volume on a drive of this spec with which something may go wrong.
pub fn faulty(spec: &str, cache: FaultCache) -> (Arc<Volume<Native>>, FaultControl) {
    let opened = open(&spec.parse().unwrap(), 4).unwrap();
    let config = FaultConfig { cache, ..FaultConfig::default() };
    let driver = FaultDriver::new(opened.driver, config).unwrap();
    let control = driver.control();
    let config = DiskConfig { io_threads: 4, ..DiskConfig::default() };
    (Volume::single(Disk::new(Box::new(driver), config).unwrap()).unwrap(), control)
}

/// An export with its directory and its messages.
pub struct Export {
    pub server: Option<VhostServer>,
    pub dir: tempfile::TempDir,
    said: Arc<Mutex<Vec<String>>>,
}

impl Export {
    /// Exports volumes with two threads each, under sockets `0`, `1`, ...
    pub fn of(
        backend: Backend,
        volumes: &[Arc<Volume<Native>>],
        change: impl Fn(&mut VhostExport),
    ) -> Export {
        let dir = tempfile::Builder::new().prefix("mr-").tempdir().unwrap();
        let export = |(index, volume): (usize, &Arc<Volume<Native>>)| {
            let mut export = VhostExport {
                name: format!("v{index}"),
                volume: Arc::clone(volume),
                read_only: false,
                socket: VhostSocket::Listen(
                    dir.path().join(index.to_string()),
                    millrace_exports::SocketAccess::default(),
                ),
                queues: 4,
                threads: Threads::Count(2),
                cpus: Vec::new(),
                first_thread: 2 * index as u16,
                serial: "serial-0123".to_owned(),
                poll_max: millrace_exports::vhost::POLL_MAX,
                wait_max: millrace_exports::vhost::WAIT_MAX,
                event_idx: true,
                tenant: 0,
                group: millrace_exports::ClientGroup::default(),
            };
            change(&mut export);
            export
        };
        let exports = volumes.iter().enumerate().map(export).collect();
        let said = Arc::<Mutex<Vec<String>>>::default();
        let into = Arc::clone(&said);
        let say = Arc::new(move |line: &str| into.lock().unwrap().push(line.to_owned()));
        let config = VhostConfig { exports, backend, say };
        Export { server: Some(VhostServer::start(config).unwrap()), dir, said }
    }

    /// Exports one drive.
    pub fn one(backend: Backend, spec: &str) -> Export {
        Export::of(backend, &[volume(spec)], |_| {})
    }

    pub fn socket(&self, index: usize) -> PathBuf {
        self.dir.path().join(index.to_string())
    }

    /// A guest with one queue of 64, ready.
    pub fn guest(&self) -> Guest {
        Guest::ready(&self.socket(0), &[64])
    }

    pub fn said(&self) -> Vec<String> {
        self.said.lock().unwrap().clone()
    }

    /// Waits for a line with this text.
    pub fn until_said(&self, text: &str) {
        let deadline = Instant::now() + LONG;
        while !self.said().iter().any(|line| line.contains(text)) {
            assert!(Instant::now() < deadline, "no line with {text:?}: {:?}", self.said());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The sum of the counters of all queues.
    pub fn stats(&self) -> QueueStats {
        let mut sum = QueueStats::default();
        let threads = self.threads();
        threads.iter().flat_map(|one| &one.queues).for_each(|(_, queue)| sum.add(*queue));
        sum
    }

    /// The export's threads and their queues.
    pub fn threads(&self) -> Vec<VhostStats> {
        let observed = self.server.as_ref().unwrap().observer().stats();
        observed.into_iter().flat_map(|(_, threads)| threads).collect()
    }

    /// Stops it, which must go well.
    pub fn stop(mut self) {
        let server = self.server.take().unwrap();
        assert!(!server.has_failed(), "{:?}", self.said());
        assert_eq!(server.stop(LONG), Vec::<String>::new());
    }

    /// After this guest has gone, all works for another; then stops.
    pub fn works_after(self, guest: Guest) {
        drop(guest);
        self.works();
        self.stop();
    }

    /// Everything still works: a new guest writes and reads.
    pub fn works(&self) {
        let mut guest = self.guest();
        guest.write(0, 77, &[0x5a; 4096]);
        assert_eq!(guest.read(0, 77, 4096), [0x5a; 4096]);
        assert!(!self.server.as_ref().unwrap().has_failed());
    }
}
