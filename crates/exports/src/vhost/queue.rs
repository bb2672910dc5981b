//! A virtqueue in service: its ring, its requests in flight, its notifications.
//!
//! Owned by one I/O thread (thread.rs), which asks it to take requests into a channel and hands
//! back what completed. Guest memory goes to the drives as it is. Made by device.rs from what the
//! frontend said.
//!
//! Invariants: a head is in flight from `take` to `complete`, and its slot says so, so a guest that
//! makes it available twice breaks its ring and nothing else; memory by which a request in flight
//! was translated stays mapped. A broken ring takes nothing more until the guest resets it.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use millrace_block::{Bio, Channel, Op, OpFlags, Reject, Segment, Status};
use millrace_machine::Native;

use super::blk::{self, Asked, ID_BYTES, STATUS_OK};
use super::inflight::QueueInflight;
use super::memory::GuestMemory;
use super::ring::{Areas, Chain, RingError, RingFeatures, SplitRing};
use super::stats::VhostStats;

/// What all queues of a device share.
#[derive(Debug)]
pub(crate) struct DeviceFlags {
    /// Writes may stay in a cache until a flush; else each is durable when it is answered.
    pub(crate) write_back: AtomicBool,
    /// Guests may not write, whether they heed the feature or not.
    pub(crate) read_only: bool,
    /// The serial number.
    pub(crate) id: [u8; ID_BYTES],
    /// Whom its I/O is accounted to.
    pub(crate) tenant: u16,
}

/// A request in flight.
#[derive(Debug, Default)]
struct Slot {
    busy: bool,
    /// Of [`Queue::epoch`] when it was taken.
    epoch: u32,
    /// Where its outcome goes.
    status: Option<StatusByte>,
    /// Bytes that the drive writes to its memory.
    read_bytes: u32,
    /// Its memory, if that is in several pieces.
    parts: Vec<Segment>,
}

/// Where an outcome goes, in guest memory.
#[derive(Debug, Clone, Copy)]
struct StatusByte(*mut u8);

impl StatusByte {
    fn write(self, status: u8) {
        // SAFETY: in guest memory, which the queue keeps mapped while the request is in flight.
        unsafe { self.0.write_volatile(status) }
    }
}

/// Descriptors by which frontend and device notify each other.
#[derive(Debug, Default)]
pub(crate) struct Notifiers {
    /// Written by the guest.
    pub(crate) kick: Option<OwnedFd>,
    /// Interrupts the guest.
    pub(crate) call: Option<OwnedFd>,
    /// Tells the frontend that the ring is broken.
    pub(crate) error: Option<OwnedFd>,
}

/// A virtqueue in service.
pub(crate) struct Queue {
    /// Its number in the device.
    pub(crate) number: u16,
    pub(crate) enabled: bool,
    pub(crate) notifiers: Notifiers,
    /// Who waits for it to be empty: it takes nothing any more.
    pub(crate) stopping: Option<Sender<u16>>,
    /// What the guest did that it must not.
    pub(crate) broken: Option<String>,
    ring: SplitRing,
    /// The ring went away with memory that the frontend took back, and is not touched any more.
    is_lost: bool,
    chain: Chain,
    slots: Box<[Slot]>,
    in_flight: u32,
    memory: Memory,
    tracking: Tracking,
    /// A bio for which the channel had no room.
    held: Option<Bio>,
    flags: Arc<DeviceFlags>,
}

/// The memory that its requests lie in.
#[derive(Debug)]
struct Memory {
    now: Arc<GuestMemory>,
    /// Counts changes.
    epoch: u32,
    /// Of earlier epochs, with what is in flight of each.
    old: Vec<(u32, u32, Arc<GuestMemory>)>,
}

/// What outlives the process, and what is to be done again because an earlier one died.
#[derive(Debug)]
struct Tracking {
    inflight: Option<QueueInflight>,
    /// Heads put and not published.
    batch: Vec<u16>,
    /// Heads to submit again, in this order.
    again: VecDeque<u16>,
}

// SAFETY: the pointers inside are to guest memory, which the queue keeps mapped.
unsafe impl Send for Queue {}

/// What a queue is made of.
pub(crate) struct QueueParts {
    pub(crate) number: u16,
    pub(crate) enabled: bool,
    pub(crate) ring: RingParts,
    pub(crate) notifiers: Notifiers,
    pub(crate) memory: Arc<GuestMemory>,
    pub(crate) inflight: Option<QueueInflight>,
    /// Heads to submit again, in this order.
    pub(crate) again: Vec<u16>,
    pub(crate) flags: Arc<DeviceFlags>,
}

/// The ring of a queue: where it is in the queue's memory, and where it stands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RingParts {
    pub(crate) areas: Areas,
    pub(crate) size: u16,
    pub(crate) features: RingFeatures,
    /// Heads taken before.
    pub(crate) taken: u16,
    /// Heads on the used ring.
    pub(crate) used: u16,
}

impl Queue {
    pub(crate) fn new(parts: QueueParts) -> Queue {
        let RingParts { areas, size, features, taken, used } = parts.ring;
        // SAFETY: areas are found in the guest's memory, which the queue keeps mapped.
        let ring = unsafe { SplitRing::new(areas, size, features, (taken, used)) };
        Queue {
            number: parts.number,
            enabled: parts.enabled,
            notifiers: parts.notifiers,
            stopping: None,
            broken: None,
            ring,
            is_lost: false,
            chain: Chain::default(),
            slots: (0..size).map(|_| Slot::default()).collect(),
            in_flight: 0,
            memory: Memory { now: parts.memory, epoch: 0, old: Vec::new() },
            tracking: Tracking {
                inflight: parts.inflight,
                batch: Vec::with_capacity(usize::from(size)),
                again: parts.again.into(),
            },
            held: None,
            flags: parts.flags,
        }
    }

    /// Heads taken so far: what the frontend gets when the ring stops.
    pub(crate) fn base(&self) -> u16 {
        self.ring.taken()
    }

    /// The memory of the guest as it is now.
    pub(crate) fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory.now
    }

    /// What the frontend has cut off under it, if anything.
    pub(crate) fn damage(&self) -> Option<&'static str> {
        if self.memory.now.is_damaged() {
            return Some("the frontend cut off the file behind its guest's memory");
        }
        let is_damaged = |inflight: &QueueInflight| inflight.is_damaged();
        let lost = self.tracking.inflight.as_ref().is_some_and(is_damaged);
        lost.then_some("the frontend cut off the file that says what is in flight")
    }

    /// Earlier memory that requests in flight lie in.
    pub(crate) fn has_old_memory(&self) -> bool {
        !self.memory.old.is_empty()
    }

    /// Whether requests may be taken.
    #[inline]
    fn is_open(&self) -> bool {
        self.enabled && self.broken.is_none() && self.stopping.is_none()
    }

    /// Requests that could be taken now.
    #[inline]
    pub(crate) fn available(&mut self) -> u32 {
        let waiting = self.tracking.again.len() as u32 + u32::from(self.held.is_some());
        if !self.is_open() {
            return waiting;
        }
        match self.ring.available() {
            Ok(count) => waiting + u32::from(count),
            Err(error) => {
                self.break_down(error);
                0
            }
        }
    }

    /// Whether the guest has made something available since [`Queue::available`].
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.is_open() && self.ring.has_news()
    }

    /// Takes what [`Queue::available`] has seen into a channel, `most` requests of it, and as far
    /// as that has room; returns how many that were. Completions come under `lane << 16` and the
    /// head.
    #[inline]
    pub(crate) fn take(
        &mut self,
        most: u32,
        lane: u64,
        channel: &mut Channel<Native>,
        stats: &mut VhostStats,
    ) -> u32 {
        if self.held.is_some() && !self.submit_held(channel, stats) {
            return 0;
        }
        let mut count = 0;
        while count < most
            && let Some(head) = self.next()
        {
            count += 1;
            if !self.start(head, lane, channel, stats) {
                break;
            }
        }
        stats.requests += u64::from(count);
        count
    }

    /// The next head to start.
    #[inline]
    fn next(&mut self) -> Option<u16> {
        if let Some(head) = self.tracking.again.pop_front() {
            return Some(head);
        }
        if !self.is_open() {
            return None;
        }
        let head = match self.ring.take() {
            Ok(head) => head?,
            Err(error) => {
                self.break_down(error);
                return None;
            }
        };
        if self.slots[usize::from(head)].busy {
            self.break_down(RingError::InFlight { head });
            return None;
        }
        if let Some(inflight) = &mut self.tracking.inflight {
            inflight.taken(head);
        }
        Some(head)
    }

    /// Starts a request; false if no more can be started now.
    #[inline]
    fn start(
        &mut self,
        head: u16,
        lane: u64,
        channel: &mut Channel<Native>,
        stats: &mut VhostStats,
    ) -> bool {
        if let Some(plain) = self.ring.walk_plain(head, &self.memory.now)
            && let Some((op, sector)) = blk::parse_plain(&plain)
        {
            self.enter(head, Some(plain.status));
            let slot = &mut self.slots[usize::from(head)];
            let bytes = plain.data.len_bytes;
            let bio = transfer(slot, op, sector, std::slice::from_ref(&plain.data), bytes);
            return self.send(bio, head, lane, channel, stats);
        }
        self.start_slowly(head, lane, channel, stats)
    }

    /// A request in flight from here on.
    #[inline]
    fn enter(&mut self, head: u16, status: Option<*mut u8>) {
        let slot = &mut self.slots[usize::from(head)];
        slot.busy = true;
        slot.epoch = self.memory.epoch;
        slot.status = status.map(StatusByte);
        slot.read_bytes = 0;
        self.in_flight += 1;
    }

    /// Any request but a plain read or write.
    #[inline(never)]
    fn start_slowly(
        &mut self,
        head: u16,
        lane: u64,
        channel: &mut Channel<Native>,
        stats: &mut VhostStats,
    ) -> bool {
        if let Err(error) = self.ring.walk(head, &self.memory.now, &mut self.chain) {
            self.break_down(error);
            return false;
        }
        let request = blk::parse(&mut self.chain);
        self.enter(head, request.status);
        let slot = &mut self.slots[usize::from(head)];
        let bio = match request.asked {
            Asked::Transfer(op, sector) => {
                let data = &self.chain.parts[request.data.0..request.data.1];
                transfer(slot, op, sector, data, request.data_bytes as u32)
            }
            Asked::Flush => Bio::flush(),
            Asked::Range { op: Op::Discard, sector, nr_sectors, .. } => {
                Bio::discard(sector, nr_sectors)
            }
            Asked::Range { sector, nr_sectors, flags, .. } => {
                Bio::write_zeroes(sector, nr_sectors).with_flags(flags)
            }
            Asked::Id => {
                let data = &self.chain.parts[request.data.0..request.data.1];
                slot.read_bytes = blk::copy_in(data, &self.flags.id);
                self.answer(head, STATUS_OK);
                return true;
            }
            Asked::Refused(status) => {
                stats.errors += 1;
                self.answer(head, status);
                return true;
            }
        };
        self.send(bio, head, lane, channel, stats)
    }

    /// Gives the bio of a request to the channel; false if that is full.
    #[inline]
    fn send(
        &mut self,
        bio: Bio,
        head: u16,
        lane: u64,
        channel: &mut Channel<Native>,
        stats: &mut VhostStats,
    ) -> bool {
        if self.flags.read_only && bio.op().is_write() {
            self.complete(head, Status::ReadOnly, stats);
            return true;
        }
        // Relaxed: the guest changes it while nothing of what depends on it is in flight.
        let through = bio.op().is_write()
            && bio.op() != Op::Discard
            && !self.flags.write_back.load(Ordering::Relaxed);
        let bio = if through { bio.with_flags(OpFlags::FUA) } else { bio };
        let bio = bio.with_user_data(lane << 16 | u64::from(head)).with_tenant(self.flags.tenant);
        self.submit(bio, channel, stats)
    }

    /// Gives a bio to the channel; false if that is full.
    #[inline]
    fn submit(&mut self, bio: Bio, channel: &mut Channel<Native>, stats: &mut VhostStats) -> bool {
        let Err(rejected) = channel.submit(bio) else { return true };
        match rejected.reason {
            Reject::Full => {
                self.held = Some(rejected.bio);
                false
            }
            Reject::Invalid(status) => {
                self.complete(rejected.bio.user_data() as u16, status, stats);
                true
            }
        }
    }

    fn submit_held(&mut self, channel: &mut Channel<Native>, stats: &mut VhostStats) -> bool {
        let held = self.held.take();
        held.is_none_or(|bio| self.submit(bio, channel, stats))
    }

    /// A request is done.
    #[inline]
    pub(crate) fn complete(&mut self, head: u16, status: Status, stats: &mut VhostStats) {
        if status.is_ok() {
            return self.answer(head, STATUS_OK);
        }
        stats.errors += 1;
        self.slots[usize::from(head)].read_bytes = 0;
        self.answer(head, blk::status_of(status));
    }

    /// Answers a request; the guest sees it after [`Queue::publish`].
    #[inline]
    fn answer(&mut self, head: u16, status: u8) {
        let slot = &mut self.slots[usize::from(head)];
        slot.busy = false;
        let mut len = 0;
        if let Some(place) = slot.status.take() {
            place.write(status);
            len = slot.read_bytes + 1;
        }
        if slot.epoch != self.memory.epoch {
            self.memory.leave(slot.epoch);
        }
        self.in_flight -= 1;
        if self.is_lost {
            return;
        }
        self.ring.put(head, len);
        if let Some(inflight) = &mut self.tracking.inflight {
            inflight.put(head);
            self.tracking.batch.push(head);
        }
    }

    /// Shows the guest what was answered, and interrupts it if it wants that; false if there was
    /// nothing.
    #[inline]
    pub(crate) fn publish(&mut self, stats: &mut VhostStats) -> bool {
        if self.is_lost || self.ring.unpublished() == 0 {
            return false;
        }
        let before = self.ring.published();
        self.ring.publish();
        if let Some(inflight) = &mut self.tracking.inflight {
            inflight.published(&self.tracking.batch, self.ring.published());
            self.tracking.batch.clear();
        }
        if self.ring.wants_interrupt(before)
            && let Some(call) = &self.notifiers.call
        {
            stats.interrupts += 1;
            stats.system_calls += 1;
            signal(call);
        }
        true
    }

    /// Interrupts the guest, whether it wants that or not.
    pub(crate) fn interrupt(&self) {
        if let Some(call) = &self.notifiers.call {
            signal(call);
        }
    }

    /// Asks for a kick; true if there is something to take already.
    pub(crate) fn request_kick(&mut self) -> bool {
        // A held bio goes on when the channel has room again, which completions tell.
        self.held.is_none()
            && (!self.tracking.again.is_empty() || (self.is_open() && self.ring.request_kick()))
    }

    /// Asks for no kicks.
    #[inline]
    pub(crate) fn suppress_kicks(&mut self) {
        if self.is_open() {
            self.ring.suppress_kicks();
        }
    }

    /// Goes on in other memory; the areas are those of the ring there.
    pub(crate) fn change_memory(&mut self, memory: Arc<GuestMemory>, areas: Option<Areas>) {
        let old = std::mem::replace(&mut self.memory.now, memory);
        let of_older: u32 = self.memory.old.iter().map(|(_, count, _)| *count).sum();
        let of_now = self.in_flight - of_older;
        if of_now > 0 {
            self.memory.old.push((self.memory.epoch, of_now, old));
        }
        self.memory.epoch = self.memory.epoch.wrapping_add(1);
        match areas {
            // SAFETY: found in the memory that is now kept.
            Some(areas) => unsafe { self.ring.move_to(areas) },
            None => self.lose_ring(),
        }
    }

    /// Its ring is unmapped with the memory that it was in: what is in flight has nowhere to go.
    fn lose_ring(&mut self) {
        self.tracking.again.clear();
        self.lose("its ring is not in the new memory".to_owned());
    }

    /// Answers nothing any more, either: what was done went to or came from memory that is gone.
    pub(crate) fn lose(&mut self, why: String) {
        self.is_lost = true;
        self.fail(why);
    }

    /// Takes nothing more because of what the guest or frontend did.
    pub(crate) fn fail(&mut self, why: String) {
        self.broken = Some(why);
        if let Some(error) = &self.notifiers.error {
            signal(error);
        }
    }

    #[cold]
    fn break_down(&mut self, error: RingError) {
        self.fail(error.to_string());
    }

    /// Whether it is stopping and empty.
    pub(crate) fn is_drained(&self) -> bool {
        self.stopping.is_some() && self.in_flight == 0 && self.tracking.again.is_empty()
    }
}

impl Memory {
    /// A request of an earlier epoch is done.
    #[cold]
    fn leave(&mut self, epoch: u32) {
        self.old.retain_mut(|(of, count, _)| {
            *count -= u32::from(*of == epoch);
            *count > 0
        });
    }
}

/// The bio of a read or write of guest memory.
#[inline]
fn transfer(slot: &mut Slot, op: Op, sector: u64, data: &[Segment], bytes: u32) -> Bio {
    if op == Op::Read {
        slot.read_bytes = bytes;
    }
    if let [only] = data {
        // SAFETY: in guest memory that the queue keeps mapped until the request is answered, which
        // is after its completion; a guest that changes it meanwhile harms itself alone.
        return unsafe { Bio::foreign(op, sector, only.start, only.len_bytes) };
    }
    slot.parts.clear();
    slot.parts.extend_from_slice(data);
    // SAFETY: as above; the list lies in the slot, which no other request uses meanwhile, and the
    // lengths add up to a multiple of 512 below 4 GiB, which `parse` checked.
    unsafe { Bio::foreign_vectored(op, sector, &raw const *slot.parts) }
}

/// Adds one to an eventfd. One that is full or gone is the frontend's own affair.
pub(crate) fn signal(fd: &OwnedFd) {
    let one = 1u64.to_ne_bytes();
    let _ = rustix::io::write(fd, &one);
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kick = self.notifiers.kick.as_ref().map(AsRawFd::as_raw_fd);
        f.debug_struct("Queue").field("number", &self.number).field("kick", &kick).finish()
    }
}
