//! A guest and its frontend, with rings written by hand.
//!
//! Memory is one file of zeroes. An offset into it is a guest address less [`GUEST`], or a frontend
//! address less [`USER`]. A queue has [`QUEUE_BYTES`] of it for its ring, indirect tables, headers
//! and status bytes; the memory behind all queues is for data.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};

use super::wire::{VERSION, Wire, code, pair, words};
use super::{LONG, until};

pub const GUEST: u64 = 1 << 30;
pub const USER: u64 = 1 << 40;
pub const QUEUE_BYTES: u64 = 0x1_0000;
/// Offsets in a queue's memory: avail ring, used ring, indirect tables, headers, status bytes.
pub const AVAIL: u64 = 0x4000;
pub const USED: u64 = 0x5000;
pub const TABLES: u64 = 0x8000;
pub const HEADERS: u64 = 0xc000;
pub const STATUSES: u64 = 0xf000;

pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;

pub const IN: u32 = 0;
pub const OUT: u32 = 1;
pub const FLUSH: u32 = 4;
pub const GET_ID: u32 = 8;
pub const DISCARD: u32 = 11;
pub const WRITE_ZEROES: u32 = 13;

pub const EVENT_IDX: u64 = 1 << 29;
pub const CONFIG_WCE: u64 = 1 << 11;

/// Memory that a guest shares.
pub struct Memory {
    pub file: File,
    map: GuestMemoryMmap,
    pub len: u64,
}

impl Memory {
    pub fn new(len: u64) -> Memory {
        let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(len).unwrap();
        Memory::of(file, len)
    }

    pub fn of(file: File, len: u64) -> Memory {
        let from = FileOffset::new(file.try_clone().unwrap(), 0);
        let range = [(GuestAddress(GUEST), len as usize, Some(from))];
        let map = GuestMemoryMmap::from_ranges_with_files(range).unwrap();
        Memory { file, map, len }
    }

    pub fn put(&self, at: u64, bytes: &[u8]) {
        self.map.write_slice(bytes, GuestAddress(GUEST + at)).unwrap();
    }

    pub fn get(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.map.read_slice(&mut bytes, GuestAddress(GUEST + at)).unwrap();
        bytes
    }

    pub fn put_u16(&self, at: u64, value: u16) {
        self.map.store(value, GuestAddress(GUEST + at), Ordering::SeqCst).unwrap();
    }

    pub fn get_u16(&self, at: u64) -> u16 {
        self.map.load(GuestAddress(GUEST + at), Ordering::SeqCst).unwrap()
    }

    /// A region of this memory, as messages have it.
    pub fn region(&self, from: u64, len: u64) -> [u64; 4] {
        [GUEST + from, len, USER + from, from]
    }
}

/// A ring and its notifications.
pub struct Ring {
    pub index: u32,
    pub size: u16,
    /// Where its part of the memory begins.
    pub at: u64,
    /// Heads made available and seen used.
    pub avail: u16,
    pub used: u16,
    pub kick: OwnedFd,
    pub call: OwnedFd,
    pub err: OwnedFd,
}

pub fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

pub fn count(fd: &OwnedFd) -> u64 {
    let mut value = [0; 8];
    rustix::io::read(fd, &mut value).map_or(0, |_| u64::from_ne_bytes(value))
}

/// Waits for an eventfd and takes its count.
pub fn wait_for(fd: &OwnedFd) -> bool {
    let limit = Timespec { tv_sec: LONG.as_secs() as i64, tv_nsec: 0 };
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&limit)).is_ok_and(|ready| ready > 0)
        && count(fd) > 0
}

pub fn ring(fd: &OwnedFd) {
    rustix::io::write(fd, &1u64.to_ne_bytes()).unwrap();
}

/// A guest with its frontend.
pub struct Guest {
    pub wire: Wire,
    pub memory: Memory,
    pub rings: Vec<Ring>,
    pub features: u64,
    /// Where data may be.
    pub data: u64,
}

impl Guest {
    /// A connected guest with memory for `queues` queues and 8 MiB of data, which has sent nothing
    /// yet.
    pub fn connect(path: &Path, queues: usize) -> Guest {
        Guest::over(Wire::connect(path), queues)
    }

    pub fn over(wire: Wire, queues: usize) -> Guest {
        let data = queues as u64 * QUEUE_BYTES;
        let memory = Memory::new(data + (8 << 20));
        Guest { wire, memory, rings: Vec::new(), features: 0, data }
    }

    /// Connected, with rings of these sizes in service.
    pub fn ready(path: &Path, sizes: &[u16]) -> Guest {
        let mut guest = Guest::connect(path, sizes.len());
        guest.set_up(sizes, |offered| offered);
        guest
    }

    /// Sends all messages up to the start of rings of these sizes.
    pub fn set_up(&mut self, sizes: &[u16], features: impl Fn(u64) -> u64) {
        self.negotiate(features);
        self.share();
        for (index, size) in sizes.iter().enumerate() {
            self.start(index as u32, *size, 0);
        }
    }

    pub fn negotiate(&mut self, features: impl Fn(u64) -> u64) {
        let wire = &self.wire;
        let offered = wire.ask_number(code::GET_FEATURES);
        let protocol = wire.ask_number(code::GET_PROTOCOL_FEATURES);
        wire.send(code::SET_PROTOCOL_FEATURES, VERSION, &words(&[protocol]), &[]);
        wire.send(code::SET_OWNER, VERSION, &[], &[]);
        self.features = features(offered);
        // The library wants both feature messages before it answers others.
        wire.send(code::SET_FEATURES, VERSION, &words(&[self.features]), &[]);
    }

    /// Shares all memory as one region.
    pub fn share(&self) {
        let whole = self.memory.region(0, self.memory.len);
        assert!(self.set_memory(&[whole]));
    }

    pub fn set_memory(&self, regions: &[[u64; 4]]) -> bool {
        let header = pair(regions.len() as u32, 0);
        let payload = [header, words(&regions.concat())].concat();
        let fds = vec![self.memory.file.as_fd(); regions.len()];
        self.wire.order(code::SET_MEM_TABLE, &payload, &fds)
    }

    pub fn add_memory(&self, region: [u64; 4]) -> bool {
        let payload = [words(&[0]), words(&region)].concat();
        self.wire.order(code::ADD_MEM_REG, &payload, &[self.memory.file.as_fd()])
    }

    pub fn remove_memory(&self, region: [u64; 4]) -> bool {
        self.wire.order(code::REM_MEM_REG, &[words(&[0]), words(&region)].concat(), &[])
    }

    /// Starts ring `index` from `base`, new or with the descriptors that it has.
    pub fn start(&mut self, index: u32, size: u16, base: u16) {
        let err = event();
        self.notify(code::SET_VRING_ERR, index, err.as_fd());
        self.start_with(index, size, base, err);
    }

    /// Starts a ring whose error descriptor the device already has.
    pub fn start_with(&mut self, index: u32, size: u16, base: u16, err: OwnedFd) {
        let at = u64::from(index) * QUEUE_BYTES;
        let ring =
            Ring { index, size, at, avail: base, used: base, kick: event(), call: event(), err };
        let wire = &self.wire;
        wire.must(code::SET_VRING_NUM, &pair(index, size.into()), &[]);
        wire.must(code::SET_VRING_BASE, &pair(index, base.into()), &[]);
        wire.must(code::SET_VRING_ADDR, &addresses(index, at), &[]);
        self.notify(code::SET_VRING_CALL, index, ring.call.as_fd());
        self.notify(code::SET_VRING_KICK, index, ring.kick.as_fd());
        self.wire.must(code::SET_VRING_ENABLE, &pair(index, 1), &[]);
        self.rings.retain(|other| other.index != index);
        self.rings.push(ring);
        self.rings.sort_by_key(|ring| ring.index);
    }

    pub fn notify(&self, code: u32, index: u32, fd: BorrowedFd<'_>) {
        self.wire.must(code, &words(&[index.into()]), &[fd]);
    }

    /// The region that outlives the device, for these queues of 64: its message and its file.
    pub fn new_inflight(&self, queues: u64) -> (Vec<u8>, File) {
        let shape = words(&[0, 0, queues | 64 << 16]);
        assert!(self.wire.send(code::GET_INFLIGHT_FD, VERSION, &shape, &[]));
        let (_, payload, mut files) = self.wire.answer().unwrap();
        (payload, files.remove(0))
    }

    pub fn set_inflight(&self, (message, file): &(Vec<u8>, File)) -> bool {
        self.wire.order(code::SET_INFLIGHT_FD, message, &[file.as_fd()])
    }

    /// Moves to another device, with rings and memory as they are.
    pub fn resume(&mut self, wire: Wire, inflight: Option<&(Vec<u8>, File)>) {
        self.wire = wire;
        let features = self.features;
        self.negotiate(|_| features);
        if let Some(inflight) = inflight {
            assert!(self.set_inflight(inflight));
        }
        self.share();
        let old: Vec<_> = self.rings.iter().map(|r| (r.index, r.size, r.avail, r.used)).collect();
        for (q, (index, size, avail, used)) in old.into_iter().enumerate() {
            self.start(index, size, self.used_idx(q));
            (self.rings[q].avail, self.rings[q].used) = (avail, used);
        }
    }

    /// Stops a ring; its base.
    pub fn stop(&self, index: u32) -> u16 {
        let answer = self.wire.ask(code::GET_VRING_BASE, &pair(index, 0)).unwrap();
        u16::from_ne_bytes([answer[4], answer[5]])
    }

    /// Resets the device and starts all rings anew, with all of their memory zeroed.
    pub fn reset(&mut self) {
        self.wire.must(code::RESET_DEVICE, &[], &[]);
        self.memory.put(0, &vec![0; self.data as usize]);
        self.wire.must(code::SET_FEATURES, &words(&[self.features]), &[]);
        let rings: Vec<_> = self.rings.iter().map(|ring| (ring.index, ring.size)).collect();
        rings.into_iter().for_each(|(index, size)| self.start(index, size, 0));
    }

    /// Writes a descriptor; the address is an offset into the memory.
    pub fn describe(&self, q: usize, at: u16, (from, len): (u64, u32), flags: u16, next: u16) {
        self.describe_raw(self.rings[q].at + 16 * u64::from(at), GUEST + from, len, (flags, next));
    }

    /// Writes a descriptor anywhere, of any address.
    pub fn describe_raw(&self, at: u64, addr: u64, len: u32, (flags, next): (u16, u16)) {
        let rest = u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48;
        self.memory.put(at, &[addr.to_le_bytes(), rest.to_le_bytes()].concat());
    }

    /// Writes a request's header; its place.
    pub fn header(&self, q: usize, slot: u16, kind: u32, sector: u64) -> (u64, u32) {
        let at = self.rings[q].at + HEADERS + 16 * u64::from(slot);
        self.memory.put(at, &words(&[kind.into(), sector]));
        self.memory.put(self.status_at(q, slot), &[0xee]);
        (at, 16)
    }

    pub fn status_at(&self, q: usize, slot: u16) -> u64 {
        self.rings[q].at + STATUSES + u64::from(slot)
    }

    pub fn status(&self, q: usize, slot: u16) -> u8 {
        self.memory.get(self.status_at(q, slot), 1)[0]
    }

    /// Makes a head available without showing it; see `publish`.
    pub fn offer(&mut self, q: usize, head: u16) {
        let ring = &mut self.rings[q];
        let place = ring.at + AVAIL + 4 + 2 * u64::from(ring.avail % ring.size);
        self.memory.put_u16(place, head);
        ring.avail = ring.avail.wrapping_add(1);
    }

    /// Shows the heads that were offered, and kicks.
    pub fn publish(&self, q: usize) {
        let queue = &self.rings[q];
        self.memory.put_u16(queue.at + AVAIL + 2, queue.avail);
        ring(&queue.kick);
    }

    /// Offers a head, shows it, kicks.
    pub fn give(&mut self, q: usize, head: u16) {
        self.offer(q, head);
        self.publish(q);
    }

    /// Offers a request over three descriptors from `3 * slot` on; data is an offset.
    pub fn submit(&mut self, q: usize, slot: u16, (kind, sector): (u32, u64), data: (u64, u32)) {
        let (head, status) = (3 * slot, (self.status_at(q, slot), 1));
        let header = self.header(q, slot, kind, sector);
        let writable = if matches!(kind, IN | GET_ID) { WRITE } else { 0 };
        let behind = if data.1 > 0 { head + 1 } else { head + 2 };
        self.describe(q, head, header, NEXT, behind);
        self.describe(q, head + 1, data, NEXT | writable, head + 2);
        self.describe(q, head + 2, status, WRITE, 0);
        self.give(q, head);
    }

    /// used.idx as it stands.
    pub fn used_idx(&self, q: usize) -> u16 {
        self.memory.get_u16(self.rings[q].at + USED + 2)
    }

    /// Waits for `count` more used heads; heads and lengths.
    pub fn wait(&mut self, q: usize, count: u16) -> Vec<(u32, u32)> {
        let deadline = Instant::now() + LONG;
        let from = self.rings[q].used;
        while self.used_idx(q).wrapping_sub(from) < count {
            assert!(Instant::now() < deadline, "{count} answers; {} came", self.used_idx(q) - from);
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
        self.rings[q].used = from.wrapping_add(count);
        let size = self.rings[q].size;
        (0..count).map(|n| self.used(q, from.wrapping_add(n) % size)).collect()
    }

    /// Entry `place` of the used ring.
    pub fn used(&self, q: usize, place: u16) -> (u32, u32) {
        let bytes = self.memory.get(self.rings[q].at + USED + 4 + 8 * u64::from(place), 8);
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
        (word(0), word(4))
    }

    /// Submits a request and waits for it; returns its status.
    pub fn request(&mut self, q: usize, kind: u32, sector: u64, data: (u64, u32)) -> u8 {
        self.submit(q, 0, (kind, sector), data);
        assert_eq!(self.wait(q, 1)[0].0, 0);
        self.status(q, 0)
    }

    pub fn write(&mut self, q: usize, sector: u64, bytes: &[u8]) {
        self.memory.put(self.data, bytes);
        let data = (self.data, bytes.len() as u32);
        assert_eq!(self.request(q, OUT, sector, data), 0);
    }

    pub fn read(&mut self, q: usize, sector: u64, len: u32) -> Vec<u8> {
        let data = (self.data, len);
        self.memory.put(self.data, &vec![0xcd; len as usize]);
        assert_eq!(self.request(q, IN, sector, data), 0);
        self.memory.get(self.data, len as usize)
    }

    /// A discard or zeroing of a range; its status.
    pub fn range(&mut self, kind: u32, (sector, sectors): (u64, u32), flags: u32) -> u8 {
        let range = words(&[sector, u64::from(sectors) | u64::from(flags) << 32]);
        self.memory.put(self.data, &range);
        self.request(0, kind, 0, (self.data, 16))
    }

    /// Waits until the device signals that the ring is broken.
    pub fn until_broken(&self, q: usize) {
        until("the ring breaks", || count(&self.rings[q].err) > 0);
    }
}

/// Where the ring in the part of the memory at `at` is.
pub fn addresses(index: u32, at: u64) -> Vec<u8> {
    let at = USER + at;
    [pair(index, 0), words(&[at, at + USED, at + AVAIL, 0])].concat()
}
