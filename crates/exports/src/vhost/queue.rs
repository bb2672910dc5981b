//! A virtqueue in service: its ring, its requests in flight, and its notifications.
//!
//! Invariants: a head (first descriptor of a request) is in flight from `take` to `complete`, and
//! its slot records that. So a guest that makes a head available twice breaks only its own ring.
//! Guest memory that a request in flight uses stays mapped. A broken ring takes no more requests
//! until the guest resets it.
#![allow(unsafe_code)]

pub mod blk;
pub(crate) mod inflight;
pub(crate) mod notifiers;
mod slots;
pub(crate) mod unflushed;

use std::collections::VecDeque;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use millrace_block::{Bio, Channel, GroupId, Op, OpFlags, Reject, Rejected, Segment, Status};
use millrace_machine::{Machine, Native};

use self::blk::Action;
use self::inflight::QueueInflight;
use self::notifiers::{QueueNotifiers, signal};
use self::slots::{BUSY, EPOCH, FLUSH, LONG, MemoryVersions, PARTS_KEPT, RequestSlot, UNFLUSHED};
use self::unflushed::{QueueUnflushed, UnflushedWrites};
use super::memory::GuestMemory;
use super::memory::sigbus;
use super::ring::{DescriptorChain, RingAreas, RingError, RingParts, SplitRing};
use super::stats::QueueStats;
use crate::virtio::{ID_BYTES, status};

#[derive(Debug)]
pub(crate) struct DeviceFlags {
    /// If true, writes may stay in a cache until a flush; otherwise they are durable when answered.
    pub(crate) write_back: AtomicBool,
    /// If true, writes are refused, even if the guest ignores the read-only feature.
    pub(crate) read_only: bool,
    pub(crate) id: [u8; ID_BYTES],
    pub(crate) tenant: u16,
    pub(crate) group: GroupId,
    pub(crate) unflushed: Arc<UnflushedWrites>,
}

pub(crate) struct Queue {
    pub(crate) number: u16,
    pub(crate) enabled: bool,
    pub(crate) notifiers: QueueNotifiers,
    /// Channel to the control thread, set while the queue is stopping. Once the queue is empty, the
    /// I/O thread sends the index of the ring's next request.
    pub(crate) stopping: Option<Sender<u16>>,
    pub(crate) broken: Option<String>,
    /// Counters of the queue. `in_flight` counts requests that were taken and not answered yet.
    pub(crate) stats: QueueStats,
    ring: SplitRing,
    is_lost: bool,
    chain: DescriptorChain,
    requests: RequestTable,
    memory: MemoryVersions,
    inflight: Option<QueueInflight>,
    unflushed: QueueUnflushed,
    held: Option<WaitingBio>,
    flags: Arc<DeviceFlags>,
}

/// Requests that the queue has taken from its ring.
struct RequestTable {
    slots: Box<[RequestSlot]>,
    /// Data segments of the requests in flight, by first descriptor. Valid only for a request whose
    /// data are not contiguous.
    parts: Box<[Vec<Segment>]>,
    /// Answered requests that are not published to the guest yet. Each request is listed by its
    /// first descriptor. Always empty if the queue has no inflight region.
    batch: Vec<u16>,
    /// Requests that an earlier process left unanswered, to submit again. Each request is listed by
    /// its first descriptor.
    again: VecDeque<u16>,
}

/// A bio for which the channel had no space. While it waits, the queue takes no requests from its
/// ring.
struct WaitingBio {
    bio: Bio,
    since_ns: u64,
}

// SAFETY: the pointers inside are to guest memory, which the queue keeps mapped.
unsafe impl Send for Queue {}

pub(crate) struct QueueParts {
    pub(crate) number: u16,
    pub(crate) enabled: bool,
    pub(crate) ring: RingParts,
    pub(crate) notifiers: QueueNotifiers,
    pub(crate) memory: Arc<GuestMemory>,
    pub(crate) inflight: Option<QueueInflight>,
    /// Requests that an earlier process left unanswered, to submit again in this order. Each
    /// request is listed by its first descriptor.
    pub(crate) again: Vec<u16>,
    pub(crate) flags: Arc<DeviceFlags>,
}

impl Queue {
    pub(crate) fn new(parts: QueueParts) -> Queue {
        let size = parts.ring.size;
        // SAFETY: areas are found in the guest's memory, which the queue keeps mapped.
        let ring = unsafe { SplitRing::new(parts.ring) };
        Queue {
            number: parts.number,
            enabled: parts.enabled,
            notifiers: parts.notifiers,
            stopping: None,
            broken: None,
            stats: QueueStats::default(),
            ring,
            is_lost: false,
            chain: DescriptorChain::default(),
            requests: RequestTable {
                slots: (0..size).map(|_| RequestSlot::FREE).collect(),
                parts: (0..size).map(|_| Vec::new()).collect(),
                batch: Vec::with_capacity(usize::from(size)),
                again: parts.again.into(),
            },
            memory: MemoryVersions { now: parts.memory, epoch: 0, old: Vec::new() },
            inflight: parts.inflight,
            unflushed: QueueUnflushed::of(&parts.flags.unflushed),
            held: None,
            flags: parts.flags,
        }
    }

    /// Returns the base of the ring: the index of its next request. The frontend gets the base when
    /// the ring stops.
    pub(crate) fn base(&self) -> u16 {
        self.ring.taken()
    }

    #[cfg(test)]
    pub(crate) fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory.now
    }

    /// Returns an error text if the frontend has truncated memory that the queue uses.
    pub(crate) fn damage(&self) -> Option<&'static str> {
        if self.memory.now.is_damaged() {
            return Some("the frontend truncated the file of its guest's memory");
        }
        let lost = self.inflight.as_ref().is_some_and(QueueInflight::is_damaged);
        lost.then_some("the frontend truncated the file that records requests in flight")
    }

    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.stats.in_flight as u32
    }

    pub(crate) fn waits(&self) -> bool {
        self.held.is_some()
    }

    #[inline]
    fn is_open(&self) -> bool {
        self.enabled && self.broken.is_none() && self.stopping.is_none()
    }

    /// Returns the number of requests that could be submitted now: available ones in the ring, ones
    /// left by an earlier process, and the bio that waits for the channel.
    #[inline]
    pub(crate) fn available(&mut self) -> u32 {
        let waiting = self.requests.again.len() as u32 + u32::from(self.held.is_some());
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

    /// Returns true if the guest made more requests available since [`Queue::available`].
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.is_open() && self.ring.has_news()
    }

    /// Passes at most `most` available requests to the channel while it has space, and returns
    /// their number. A bio's user data is `lane << 16` plus the request's first descriptor, where
    /// `lane` is the index of this queue in its I/O thread.
    #[inline]
    pub(crate) fn take(&mut self, most: u32, lane: u64, channel: &mut Channel<Native>) -> u32 {
        let (mut count, mut has_room) = (0, true);
        if self.held.is_some() || !self.requests.again.is_empty() {
            (count, has_room) = self.take_up(most, lane, channel);
        }
        // If the queue closes during the loop, `next` returns `None` and so ends the loop.
        has_room &= self.is_open();
        while has_room
            && count < most
            && let Some(head) = self.next()
        {
            count += 1;
            has_room = self.start(head, lane, channel);
        }
        self.stats.requests += u64::from(count);
        count
    }

    /// Submits the bio that waited for the channel, then requests left by an earlier process.
    /// Returns the number submitted, and true if the channel has space for more.
    #[cold]
    fn take_up(&mut self, most: u32, lane: u64, channel: &mut Channel<Native>) -> (u32, bool) {
        let (mut count, mut has_room) = (0, true);
        let waiting = self.available();
        if let Some(WaitingBio { bio, since_ns }) = self.held.take() {
            // The time for which the bio waited counts as back pressure on its group. The time is
            // multiplied by the number of waiting requests: the bio's request, and all requests
            // behind it.
            let ns = Native::now().saturating_sub(since_ns);
            channel.count_back_pressure(self.flags.group, ns * u64::from(waiting));
            has_room = self.submit(bio, channel);
        }
        while has_room
            && count < most
            && let Some(head) = self.requests.again.pop_front()
        {
            count += 1;
            has_room = self.start(head, lane, channel);
        }
        (count, has_room)
    }

    #[inline]
    fn next(&mut self) -> Option<u16> {
        let head = match self.ring.take() {
            Ok(head) => head?,
            Err(error) => {
                self.break_down(error);
                return None;
            }
        };
        if self.requests.slots[usize::from(head)].state & BUSY != 0 {
            self.break_down(RingError::InFlight { head });
            return None;
        }
        if let Some(inflight) = &mut self.inflight {
            inflight.taken(head);
        }
        Some(head)
    }

    /// Starts a request. Returns false if no more requests can be started now.
    #[inline(always)]
    fn start(&mut self, head: u16, lane: u64, channel: &mut Channel<Native>) -> bool {
        if let Some(plain) = self.ring.walk_plain(head, &self.memory.now)
            && let Some((op, sector)) = blk::parse_plain(&plain)
        {
            let Segment { start, len_bytes } = plain.data;
            self.enter(head, plain.status, if op == Op::Read { len_bytes } else { 0 });
            // SAFETY: the queue keeps the guest memory mapped until the request is answered.
            // The guest is answered only after the bio has completed. A guest that changes the data
            // before then harms only itself.
            let bio = unsafe { Bio::foreign(op, sector, start, len_bytes) };
            return self.send(bio.with_user_data(user_data(lane, head)), channel);
        }
        self.start_slowly(head, lane, channel)
    }

    #[inline(always)]
    fn enter(&mut self, head: u16, status: *mut u8, read_bytes: u32) {
        let state = BUSY | self.memory.epoch;
        self.requests.slots[usize::from(head)] = RequestSlot { status, state, read_bytes };
        self.stats.in_flight += 1;
    }

    /// Starts a request other than a plain read or write.
    #[inline(never)]
    fn start_slowly(&mut self, head: u16, lane: u64, channel: &mut Channel<Native>) -> bool {
        let hits = sigbus::hits();
        if let Err(error) = self.ring.walk(head, &self.memory.now, &mut self.chain) {
            self.break_down(error);
            return false;
        }
        let request = blk::parse(&mut self.chain);
        self.enter(head, request.status.unwrap_or(null_mut()), 0);
        let slot = &mut self.requests.slots[usize::from(head)];
        let bio = match request.action {
            Action::Transfer(op, sector) => {
                if op == Op::Read {
                    slot.read_bytes = request.data_bytes as u32;
                }
                let parts = &mut self.requests.parts[usize::from(head)];
                parts.clear();
                parts.extend_from_slice(&self.chain.parts[request.data.0..request.data.1]);
                if parts.len() > PARTS_KEPT {
                    slot.state |= LONG;
                }
                // SAFETY: the segments are in guest memory, which stays mapped as in `start`.
                // The segment list belongs to the first descriptor, which no other request uses
                // meanwhile.
                // The segment lengths add up to a multiple of 512 below 4 GiB, which `parse`
                // checked.
                unsafe { Bio::foreign_vectored(op, sector, &raw const **parts) }
            }
            Action::Flush if self.unflushed.take_loss() => {
                self.complete(head, Status::IoError);
                return true;
            }
            Action::Flush => {
                slot.state |= self.unflushed.begin_flush(head);
                Bio::flush()
            }
            Action::Range { op: Op::Discard, sector, nr_sectors, .. } => {
                Bio::discard(sector, nr_sectors)
            }
            Action::Range { sector, nr_sectors, flags, .. } => {
                Bio::write_zeroes(sector, nr_sectors).with_flags(flags)
            }
            Action::Id => {
                let data = &self.chain.parts[request.data.0..request.data.1];
                slot.read_bytes = blk::copy_in(data, &self.flags.id);
                self.answer(head, status::OK);
                // If guest memory turned out to be truncated (SIGBUS), no further request is taken.
                return sigbus::hits() == hits;
            }
            Action::Refused(status) => {
                self.stats.errors += 1;
                self.answer(head, status);
                return sigbus::hits() == hits;
            }
        };
        self.send(bio.with_user_data(user_data(lane, head)), channel)
    }

    /// Passes the bio of a request to the channel. Returns false if the channel is full.
    #[inline(always)]
    fn send(&mut self, bio: Bio, channel: &mut Channel<Native>) -> bool {
        let mut bio = bio.with_tenant(self.flags.tenant).with_group(self.flags.group);
        if bio.op().is_write() {
            if self.flags.read_only {
                self.complete(bio.user_data() as u16, Status::ReadOnly);
                return true;
            }
            // Relaxed: the guest changes the write-back flag only while no request that depends on
            // it is in flight.
            let is_back = self.flags.write_back.load(Ordering::Relaxed);
            let (is_kept, head) = (bio.op() != Op::Discard, bio.user_data() as u16);
            if is_kept && !is_back {
                if self.unflushed.take_loss() {
                    self.complete(head, Status::IoError);
                    return true;
                }
                bio = bio.with_flags(OpFlags::FUA);
            } else if is_kept && self.unflushed.notes {
                self.requests.slots[usize::from(head)].state |= UNFLUSHED;
            }
        }
        self.submit(bio, channel)
    }

    #[inline(always)]
    fn submit(&mut self, bio: Bio, channel: &mut Channel<Native>) -> bool {
        match channel.submit(bio) {
            Ok(()) => true,
            Err(rejected) => self.rejected(rejected),
        }
    }

    /// Handles a bio that the channel rejected. Returns false if the channel is full.
    #[cold]
    fn rejected(&mut self, rejected: Rejected) -> bool {
        match rejected.reason {
            Reject::Full => {
                self.held = Some(WaitingBio { bio: rejected.bio, since_ns: Native::now() });
                false
            }
            Reject::Invalid(status) => {
                self.complete(rejected.bio.user_data() as u16, status);
                true
            }
        }
    }

    #[inline]
    pub(crate) fn complete(&mut self, head: u16, status: Status) {
        if status.is_ok() {
            return self.answer(head, status::OK);
        }
        self.stats.errors += 1;
        self.requests.slots[usize::from(head)].read_bytes = 0;
        self.answer(head, blk::status_of(status));
    }

    /// Writes the answer of a request. The guest sees the answer after [`Queue::publish`].
    #[inline]
    fn answer(&mut self, head: u16, status: u8) {
        let slot =
            std::mem::replace(&mut self.requests.slots[usize::from(head)], RequestSlot::FREE);
        let mut len = 0;
        if !slot.status.is_null() {
            // SAFETY: in guest memory, which the queue keeps mapped while a request is in flight.
            unsafe { slot.status.write_volatile(status) };
            len = slot.read_bytes + 1;
        }
        self.unflushed.answered |= slot.state & UNFLUSHED != 0;
        if slot.state & !UNFLUSHED != BUSY | self.memory.epoch {
            self.tidy_up((head, slot.state), status);
        }
        self.stats.in_flight -= 1;
        if self.is_lost {
            return;
        }
        self.ring.put(head, len);
        if let Some(inflight) = &mut self.inflight {
            inflight.put(head);
            self.requests.batch.push(head);
        }
    }

    #[cold]
    fn tidy_up(&mut self, (head, state): (u16, u32), status: u8) {
        if state & LONG != 0 {
            self.requests.parts[usize::from(head)] = Vec::new();
        }
        if state & FLUSH != 0 {
            self.unflushed.end_flush(head, status);
        }
        if state & EPOCH != self.memory.epoch {
            self.memory.leave(state & EPOCH);
        }
    }

    /// Publishes answers to the guest, and sends an interrupt if the guest wants one. Returns false
    /// if there were no answers.
    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        if self.is_lost || self.ring.unpublished() == 0 {
            return false;
        }
        self.unflushed.before_publish();
        let before = self.ring.published();
        let published = self.ring.publish();
        if let Some(inflight) = &mut self.inflight {
            inflight.published(&self.requests.batch, published);
            self.requests.batch.clear();
        }
        self.unflushed.after_publish();
        if self.ring.wants_interrupt(before)
            && let Some(call) = &self.notifiers.call
        {
            self.stats.interrupts += 1;
            signal(call);
        }
        true
    }

    pub(crate) fn interrupt(&self) {
        if let Some(call) = &self.notifiers.call {
            signal(call);
        }
    }

    /// Asks the guest for a kick. Returns true if the thread need not wait for the kick, because a
    /// request is already available.
    pub(crate) fn request_kick(&mut self) -> bool {
        // While a bio waits for space in the channel, no kick is needed: a completion makes space
        // and wakes the thread.
        self.held.is_none()
            && (!self.requests.again.is_empty() || (self.is_open() && self.ring.request_kick()))
    }

    #[inline]
    pub(crate) fn suppress_kicks(&mut self) {
        if self.is_open() {
            self.ring.suppress_kicks();
        }
    }

    /// Switches to other memory. `areas` locates the ring, and is `None` if no region contains it.
    pub(crate) fn change_memory(&mut self, memory: Arc<GuestMemory>, areas: Option<RingAreas>) {
        let old = std::mem::replace(&mut self.memory.now, memory);
        let of_older: u32 = self.memory.old.iter().map(|(_, count, _)| *count).sum();
        let of_now = self.in_flight() - of_older;
        if of_now > 0 {
            self.memory.old.push((self.memory.epoch, of_now, old));
        }
        self.memory.epoch = (self.memory.epoch + 1) & EPOCH;
        match areas {
            // SAFETY: found in the memory that is now kept.
            Some(areas) => unsafe { self.ring.move_to(areas) },
            None => {
                self.requests.again.clear();
                self.lose("its ring is not in the new guest memory");
            }
        }
    }

    /// Fails the queue without answers to its requests, because their memory no longer exists.
    pub(crate) fn lose(&mut self, why: &str) {
        self.is_lost = true;
        self.break_down(why);
    }

    /// Takes the queue out of service because of an error of the guest or frontend.
    #[cold]
    fn break_down(&mut self, why: impl ToString) {
        self.broken = Some(why.to_string());
        if let Some(error) = &self.notifiers.error {
            signal(error);
        }
    }

    /// Returns true if the queue is stopping and has no requests.
    pub(crate) fn is_drained(&self) -> bool {
        self.stopping.is_some() && self.in_flight() == 0 && self.requests.again.is_empty()
    }
}

/// Encodes a bio's user data: the queue's index on its thread, and the request's first descriptor.
#[inline(always)]
fn user_data(lane: u64, head: u16) -> u64 {
    lane << 16 | u64::from(head)
}

#[cfg(test)]
mod tests;
