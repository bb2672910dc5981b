//! A guest that unit tests play: memory in one file, and rings in it that are written by hand.
//!
//! Each queue has [`QUEUE_BYTES`] for its ring, headers and status bytes; all of them read
//! into data from [`DATA`] on. Used by the tests of queue.rs and of io_thread.rs.
#![allow(clippy::unwrap_used)] // Tests may.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use millrace_block::{Disk, DiskConfig, Features, GroupId, Volume};
use millrace_drives::{FaultCache, FaultConfig, FaultControl, FaultDriver, open};
use millrace_machine::Native;
use rustix::event::{EventfdFlags, eventfd};

use crate::vhost::memory::{GuestMemory, Region, RegionAddress, memory_file};
use crate::vhost::queue::notifiers::QueueNotifiers;
use crate::vhost::queue::unflushed::UnflushedWrites;
use crate::vhost::queue::{DeviceFlags, Queue, QueueParts};
use crate::vhost::ring::{RingAreas, RingFeatures, RingParts};
use crate::virtio::descriptor::{NEXT, WRITE};
use crate::virtio::{ID_BYTES, kind};

const QUEUE_BYTES: u64 = 0x1_0000;
const AVAIL: u64 = 0x4000;
const USED: u64 = 0x5000;
const HEADERS: u64 = 0x8000;
const STATUSES: u64 = 0xc000;
/// Where data is.
pub(in crate::vhost) const DATA: u64 = 4 * QUEUE_BYTES;
const MEMORY_BYTES: u64 = DATA + (1 << 20);
const USER: u64 = 1 << 40;

/// A volume of RAM with which something may go wrong.
pub(in crate::vhost) fn volume(cache: FaultCache) -> (Arc<Volume<Native>>, FaultControl) {
    volume_with(cache, DiskConfig::default())
}

/// A volume of RAM as `volume` makes it, of a drive with these settings for four I/O threads.
pub(in crate::vhost) fn volume_with(
    cache: FaultCache,
    config: DiskConfig<Native>,
) -> (Arc<Volume<Native>>, FaultControl) {
    let disk = DiskConfig { io_threads: 4, ..config };
    let opened = open(&"ram:size=16m".parse().unwrap(), 4).unwrap();
    let config = FaultConfig { cache, ..FaultConfig::default() };
    let driver = FaultDriver::new(opened.driver, config).unwrap();
    let control = driver.control();
    (Volume::single(Disk::new(Box::new(driver), disk).unwrap()).unwrap(), control)
}

/// Waits until something holds.
pub(in crate::vhost) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

pub(in crate::vhost) fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// Takes the count of an eventfd.
pub(in crate::vhost) fn count(fd: &OwnedFd) -> u64 {
    let mut value = [0; 8];
    rustix::io::read(fd, &mut value).map_or(0, |_| u64::from_ne_bytes(value))
}

/// The memory of a guest with four rings.
pub(in crate::vhost) struct Played {
    file: File,
}

impl Played {
    pub(in crate::vhost) fn new() -> Played {
        Played { file: memory_file("played", MEMORY_BYTES).unwrap() }
    }

    /// Maps the whole memory once more.
    pub(in crate::vhost) fn memory(&self) -> Arc<GuestMemory> {
        let (len_bytes, file) = (MEMORY_BYTES, self.file.try_clone().unwrap());
        let address = RegionAddress { guest: 0, len_bytes, user: USER, offset: 0 };
        let region = Arc::new(Region::map(file, address).unwrap());
        Arc::new(GuestMemory::new(vec![region]).unwrap())
    }

    pub(in crate::vhost) fn areas(memory: &GuestMemory, q: u16, size: u16) -> RingAreas {
        let at = USER + u64::from(q) * QUEUE_BYTES;
        RingAreas::find(memory, size, [at, at + AVAIL, at + USED]).unwrap()
    }

    /// Queue `q`, enabled, whose notifications are suppressed by flags.
    pub(in crate::vhost) fn queue(
        &self,
        q: u16,
        size: u16,
        change: impl FnOnce(&mut QueueParts),
    ) -> Queue {
        let memory = self.memory();
        let features = RingFeatures::default();
        let areas = Played::areas(&memory, q, size);
        let id = [7; ID_BYTES];
        let write_back = AtomicBool::new(true);
        let mut parts = QueueParts {
            number: q,
            enabled: true,
            ring: RingParts { areas, size, features, taken: 0, used: 0 },
            notifiers: QueueNotifiers::default(),
            memory,
            inflight: None,
            again: Vec::new(),
            flags: Arc::new(DeviceFlags {
                write_back,
                read_only: false,
                id,
                tenant: 0,
                group: GroupId::DEFAULT,
                unflushed: Arc::new(UnflushedWrites::of(Features::default())),
            }),
        };
        change(&mut parts);
        Queue::new(parts)
    }

    pub(in crate::vhost) fn put(&self, at: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, at).unwrap();
    }

    pub(in crate::vhost) fn get<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.file.read_exact_at(&mut bytes, at).unwrap();
        bytes
    }

    /// Writes descriptor `at` of a ring.
    pub(in crate::vhost) fn describe(
        &self,
        q: u16,
        at: u16,
        (addr, len): (u64, u32),
        flags: u16,
        next: u16,
    ) {
        let rest = u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48;
        let place = u64::from(q) * QUEUE_BYTES + 16 * u64::from(at);
        self.put(place, &[addr.to_le_bytes(), rest.to_le_bytes()].concat());
    }

    /// A read of these pieces behind [`DATA`], of 512 bytes each, or a serial number; from this
    /// descriptor on.
    pub(in crate::vhost) fn request(&self, q: u16, head: u16, kind: u32, pieces: u16) {
        let at = u64::from(q) * QUEUE_BYTES;
        let header = at + HEADERS + 16 * u64::from(head);
        self.put(header, &u128::from(kind).to_le_bytes());
        self.describe(q, head, (header, 16), NEXT, head + 1);
        for piece in 1..=pieces {
            let place = (DATA + 512 * u64::from(head + piece), 512);
            self.describe(q, head + piece, place, NEXT | WRITE, head + piece + 1);
        }
        let status = (at + STATUSES + u64::from(head), 1);
        self.put(status.0, &[0xee]);
        self.describe(q, head + pieces + 1, status, WRITE, 0);
    }

    /// Makes these heads available behind `first` others.
    pub(in crate::vhost) fn offer(&self, q: u16, size: u16, first: u16, heads: &[u16]) {
        let at = u64::from(q) * QUEUE_BYTES + AVAIL;
        for (place, head) in (first..).zip(heads) {
            self.put(at + 4 + 2 * u64::from(place % size), &head.to_le_bytes());
        }
        self.put(at + 2, &(first + heads.len() as u16).to_le_bytes());
    }

    /// Makes reads of one piece available from descriptors 0, 3, 6, ... on.
    pub(in crate::vhost) fn offer_reads(&self, q: u16, size: u16, first: u16, count: u16) {
        let heads: Vec<u16> = (first..first + count).map(|slot| 3 * slot).collect();
        heads.iter().for_each(|head| self.request(q, *head, kind::IN, 1));
        self.offer(q, size, first, &heads);
    }

    /// Makes `count` descriptors available that are no requests, and are refused at once.
    pub(in crate::vhost) fn offer_refused(&self, q: u16, size: u16, first: u16, count: u16) {
        let heads: Vec<u16> = (first..first + count).collect();
        let status = u64::from(q) * QUEUE_BYTES + STATUSES;
        heads.iter().for_each(|head| {
            self.describe(q, *head, (status + u64::from(*head), 1), WRITE, 0);
        });
        self.offer(q, size, first, &heads);
    }

    pub(in crate::vhost) fn status(&self, q: u16, head: u16) -> u8 {
        self.get::<1>(u64::from(q) * QUEUE_BYTES + STATUSES + u64::from(head))[0]
    }

    /// used.flags and used.idx.
    pub(in crate::vhost) fn used(&self, q: u16) -> [u16; 2] {
        let at = u64::from(q) * QUEUE_BYTES + USED;
        [0, 2].map(|word| u16::from_le_bytes(self.get(at + word)))
    }

    /// Head and length of entry `place` of the used ring.
    pub(in crate::vhost) fn answer(&self, q: u16, place: u16) -> (u32, u32) {
        let at = u64::from(q) * QUEUE_BYTES + USED + 4 + 8 * u64::from(place);
        let [head, len] = [0, 4].map(|word| u32::from_le_bytes(self.get(at + word)));
        (head, len)
    }
}
