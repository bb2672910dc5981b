//! The driver's side of a split virtqueue with a slot for each request in flight.
//!
//! `DriverRing` owns the ring's state and its part of the memory that the caller provides. The
//! caller sends kicks and receives interrupts, so the ring needs no file descriptors. Callers are a
//! queue of the client, and code that plays both driver and device in one process.
//!
//! Each slot has its own descriptors, header, status byte and data buffer as long as the ring
//! exists. To submit a request, the driver writes the slot's header, and puts the slot's number
//! into the next entry of the available ring. The driver does not store the number if the entry
//! already has it. All accesses are plain loads and stores, and nothing is allocated.
//!
//! Kicks: to know exactly if a kick is due, the driver needs a barrier between its store of the
//! index and its load of the available event. That barrier waits for a cache line that a polling
//! device reads. So there is no barrier if the older requests in flight outnumber the batch. The
//! device may then go to sleep without a kick; a caller that polls without a completion for a while
//! must check again ([`DriverRing::recheck_kick`]). An earlier check would be wrong: some devices
//! advance the available event with every entry, and seem to need a kick in the middle of a batch.
//! Rings with interrupts always have the barrier.
//!
//! Invariants: the device is not trusted: an impossible index or slot is an error. `in_flight` is
//! the number of slots that are in flight. Specification: virtio 1.2, section 2.7.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, fence};

use millrace_exports::virtio::descriptor::{INDIRECT, NEXT, WRITE};
use millrace_exports::virtio::{DESCRIPTOR_BYTES, HEADER_BYTES, NO_INTERRUPT, NO_NOTIFY};
use thiserror::Error;

use super::layout::{Descriptors, LayoutError, RingLayout, RingOptions, TABLE_BYTES, Wait};
use super::request::{Request, Shape, Status};

/// Number of completions after which the driver moves the used event forward. Otherwise, the 16-bit
/// used index would wrap and reach the used event, and the device would send an interrupt.
const QUIET_LAPSE: u16 = 1 << 14;

/// Violation of the ring's rules by a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RingError {
    /// The used index shows more completions than there are requests in flight.
    #[error("the device's used index went from {from} to {to} with {in_flight} requests in flight")]
    UsedIndex {
        /// Used index that the driver saw last.
        from: u16,
        /// Used index that the driver has now read from the device.
        to: u16,
        /// Number of requests in flight.
        in_flight: u16,
    },
    /// The device completed a descriptor that is not in flight.
    #[error("the device completed descriptor {id}, which is not in flight")]
    UsedId {
        /// Descriptor number that the device wrote.
        id: u32,
    },
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    shape: Shape,
    in_flight: bool,
}

/// Driver's side of one virtqueue.
#[derive(Debug)]
pub struct DriverRing {
    memory: NonNull<u8>,
    layout: RingLayout,
    options: RingOptions,
    gpa_base: u64,
    slots: Box<[Slot]>,
    /// Index of the next entry of the available ring; `published` is the index that the device
    /// sees.
    next_available: u16,
    published: u16,
    /// Index into the available ring: entries before this index need no further kick.
    confirmed: u16,
    next_used: u16,
    in_flight: u16,
    used_event: u16,
    armed: bool,
}

// SAFETY: the memory is the ring's alone on this side (`new`), wherever the ring goes.
unsafe impl Send for DriverRing {}

impl DriverRing {
    /// Creates a ring in `memory` with all slots free, and clears `memory` up to the data area.
    ///
    /// # Errors
    /// Fails if the options contradict each other.
    ///
    /// # Safety
    /// `memory` must be aligned to 64 bytes, and valid for reads and writes of `RingLayout::end`
    /// bytes as long as the ring exists. Only the ring and the device of the queue may access the
    /// memory. The device may be in this process or in another one.
    pub unsafe fn new(
        memory: NonNull<u8>,
        gpa_base: u64,
        options: RingOptions,
    ) -> Result<DriverRing, LayoutError> {
        let layout = RingLayout::new(&options)?;
        assert!(
            memory.as_ptr().addr().is_multiple_of(64),
            "the memory must be aligned to a cache line"
        );
        // SAFETY: valid for `end` bytes, of which this is a part; the caller says so.
        unsafe { memory.as_ptr().write_bytes(0, layout.data) };
        let slot = Slot { shape: Shape::NONE, in_flight: false };
        let ring = DriverRing {
            memory,
            layout,
            options,
            gpa_base,
            slots: vec![slot; usize::from(options.depth)].into_boxed_slice(),
            next_available: 0,
            published: 0,
            confirmed: 0,
            next_used: 0,
            in_flight: 0,
            used_event: u16::MAX,
            armed: false,
        };
        // Relaxed, here and for all words that only the device reads: the device reads them only
        // after an index was published with Release.
        ring.used_event_word().store(u16::MAX.to_le(), Relaxed);
        ring.set_flags(if options.event_idx { 0 } else { NO_INTERRUPT });
        Ok(ring)
    }

    /// Returns the offsets of the ring's parts.
    #[must_use]
    pub fn layout(&self) -> &RingLayout {
        &self.layout
    }

    /// Returns the ring's options.
    #[must_use]
    pub fn options(&self) -> &RingOptions {
        &self.options
    }

    /// Returns the number of requests whose completions were not returned yet.
    #[must_use]
    pub fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// Puts `request` into the ring, in the free request slot `slot`. [`DriverRing::publish`]
    /// publishes the request to the device.
    ///
    /// # Panics
    /// Panics if the slot is in flight or does not exist, or if the data are larger than the slot's
    /// buffer.
    #[inline(always)]
    pub fn submit(&mut self, slot: u16, request: Request) {
        let state = &mut self.slots[usize::from(slot)];
        assert!(!state.in_flight, "a free slot");
        state.in_flight = true;
        let shape = request.shape();
        if state.shape != shape {
            state.shape = shape;
            self.write_chain(slot, shape);
        }
        let header = self.layout.headers + usize::from(slot) * HEADER_BYTES;
        // Relaxed: the Release store of the index in `publish` makes these stores visible.
        self.word64(header).store(u64::from(request.kind.number()).to_le(), Relaxed);
        self.word64(header + 8).store(request.sector.to_le(), Relaxed);
        let index = usize::from(self.next_available & (self.options.size - 1));
        let entry = self.word16(self.layout.available + 4 + 2 * index);
        // Do not store the slot's number if the ring entry already has that number, as when
        // requests complete in order. An unchanged cache line stays in the caches of driver and
        // device.
        if entry.load(Relaxed) != slot.to_le() {
            entry.store(slot.to_le(), Relaxed);
        }
        self.next_available = self.next_available.wrapping_add(1);
        self.in_flight += 1;
    }

    /// Publishes all submitted requests to the device. Returns true if the caller must kick the
    /// device.
    #[inline(always)]
    #[must_use]
    pub fn publish(&mut self) -> bool {
        let from = self.published;
        if from == self.next_available {
            return false;
        }
        self.published = self.next_available;
        // Release pairs with the device's Acquire load of the index, so that the device sees
        // descriptors, headers and entries.
        self.word16(self.layout.available + 2).store(self.published.to_le(), Release);
        let batch = self.published.wrapping_sub(from);
        // The device has seen the entries of completed requests. So the number of entries that
        // still need a kick is at most the number of requests in flight.
        self.confirmed = self.published.wrapping_sub(self.unconfirmed());
        if batch >= self.in_flight / 2 || self.options.wait == Wait::Events {
            // The fence pairs with the device's barrier between its store of the available event
            // and its last load of the index.
            fence(SeqCst);
            if self.confirmed == from {
                self.confirmed = self.published;
            }
        }
        self.is_kick_due(batch)
    }

    /// Returns true if the device needs a kick that [`DriverRing::publish`] did not report, because
    /// `publish` skipped the barrier. Callers call this function after a while without completions,
    /// and must send the kick, which is reported only once.
    #[must_use]
    pub fn recheck_kick(&mut self) -> bool {
        let unconfirmed = self.unconfirmed();
        if unconfirmed == 0 {
            return false;
        }
        // The fence pairs with the device's barrier between its store of the available event and
        // its last load of the index.
        fence(SeqCst);
        self.confirmed = self.published;
        self.is_kick_due(unconfirmed)
    }

    #[inline(always)]
    fn unconfirmed(&self) -> u16 {
        self.published.wrapping_sub(self.confirmed).min(self.in_flight)
    }

    /// Returns true if the device wants a kick for one of the last `count` published entries.
    #[inline(always)]
    fn is_kick_due(&mut self, count: u16) -> bool {
        // Relaxed: the caller's fence, if there is one, orders this load.
        let due = if self.options.event_idx {
            let event = u16::from_le(self.available_event_word().load(Relaxed));
            self.published.wrapping_sub(event).wrapping_sub(1) < count
        } else {
            u16::from_le(self.word16(self.layout.used).load(Relaxed)) & NO_NOTIFY == 0
        };
        if due {
            self.confirmed = self.published;
        }
        due
    }

    /// Returns true if a completion can be reaped.
    #[inline(always)]
    #[must_use]
    pub fn has_done(&self) -> bool {
        // Relaxed: `reap` loads the index again with Acquire.
        u16::from_le(self.used_index_word().load(Relaxed)) != self.next_used
    }

    /// Passes each completed request to `done`: the number of its slot (descriptors and buffer),
    /// which is free from then on, and its status. Returns the number of completions.
    ///
    /// # Errors
    /// Fails if the device completed a request that is not in flight. The ring must not be used
    /// after an error.
    #[inline(always)]
    pub fn reap(&mut self, mut done: impl FnMut(u16, Status)) -> Result<u16, RingError> {
        // Acquire pairs with the device's Release store of the used index: the used entries,
        // statuses and data that the device wrote before are visible.
        let to = u16::from_le(self.used_index_word().load(Acquire));
        let (from, in_flight) = (self.next_used, self.in_flight);
        let count = to.wrapping_sub(from);
        if count == 0 {
            return Ok(0);
        }
        if count > in_flight {
            return Err(RingError::UsedIndex { from, to, in_flight });
        }
        for _ in 0..count {
            let index = usize::from(self.next_used & (self.options.size - 1));
            // Relaxed: the Acquire load of the used index makes used entries and statuses visible.
            let entry = self.word32(self.layout.used + 4 + 8 * index).load(Relaxed);
            let id = u32::from_le(entry);
            match self.slots.get_mut(id as usize) {
                Some(slot) if slot.in_flight => slot.in_flight = false,
                _ => return Err(RingError::UsedId { id }),
            }
            self.next_used = self.next_used.wrapping_add(1);
            self.in_flight -= 1;
            let status = self.byte(self.layout.statuses + id as usize).load(Relaxed);
            done(id as u16, Status(status));
        }
        self.keep_quiet();
        Ok(count)
    }

    /// Requests an interrupt at the next completion. Returns true if no completion is available
    /// yet, so that the caller may sleep.
    ///
    /// # Panics
    /// Panics if the ring's options select polling instead of interrupts.
    pub fn prepare_sleep(&mut self) -> bool {
        assert_eq!(self.options.wait, Wait::Events, "a ring with interrupts");
        self.armed = true;
        match self.options.event_idx {
            true => self.set_used_event(self.next_used),
            false => self.set_flags(0),
        }
        // The fence pairs with the device's barrier between its store of the used index and its
        // load of the used event.
        fence(SeqCst);
        !self.has_done()
    }

    /// Copies `bytes` into the buffer of the request slot `slot`. Call this function before a
    /// request in the slot is submitted.
    ///
    /// # Panics
    /// Panics if a request in the slot is in flight, or if its buffer is shorter than `bytes`.
    pub fn write_data(&mut self, slot: u16, bytes: &[u8]) {
        let to = self.data(slot, bytes.len());
        // SAFETY: `data` checked that the buffer has room; the device leaves free slots alone.
        unsafe { to.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
    }

    /// Copies data out of the buffer of the request slot `slot`, after the request.
    ///
    /// # Panics
    /// Panics if a request in the slot is in flight, or if its buffer is shorter than `bytes`.
    pub fn read_data(&self, slot: u16, bytes: &mut [u8]) {
        let (from, len) = (self.data(slot, bytes.len()), bytes.len());
        // SAFETY: as in `write_data`; what a hostile device does meanwhile changes bytes only.
        unsafe { from.copy_to_nonoverlapping(NonNull::from(bytes).cast(), len) };
    }

    fn data(&self, slot: u16, bytes: usize) -> NonNull<u8> {
        assert!(!self.slots[usize::from(slot)].in_flight, "a free slot");
        assert!(bytes <= self.options.data_bytes as usize, "more than a slot has");
        let offset = self.layout.data + usize::from(slot) * self.layout.data_stride;
        // SAFETY: inside the layout, as the slot exists.
        unsafe { self.memory.add(offset) }
    }

    #[cold]
    fn write_chain(&mut self, slot: u16, shape: Shape) {
        assert!(shape.bytes() <= self.options.data_bytes, "more than a slot has");
        let index = usize::from(slot);
        let header = self.layout.headers + index * HEADER_BYTES;
        let data = self.layout.data + index * self.layout.data_stride;
        let direction = if shape.to_driver() { WRITE } else { 0 };
        let mut parts = [(header, HEADER_BYTES as u32, 0); 3];
        let mut count = 1;
        if shape.bytes() > 0 {
            parts[count] = (data, shape.bytes(), direction);
            count += 1;
        }
        parts[count] = (self.layout.statuses + index, 1, WRITE);
        count += 1;
        let (table, places) = match self.options.descriptors {
            Descriptors::Chained => {
                let more = self.options.depth + 2 * slot;
                (self.layout.descriptors, [slot, more, more + 1])
            }
            Descriptors::Indirect => {
                let table = self.layout.tables + index * TABLE_BYTES;
                let bytes = (count * DESCRIPTOR_BYTES) as u32;
                let place = self.layout.descriptors + index * DESCRIPTOR_BYTES;
                self.write_descriptor(place, (table, bytes, INDIRECT), 0);
                (table, [0, 1, 2])
            }
        };
        for (at, &(offset, bytes, flags)) in parts[..count].iter().enumerate() {
            let place = table + usize::from(places[at]) * DESCRIPTOR_BYTES;
            let last = at + 1 == count;
            let next = if last { 0 } else { places[at + 1] };
            let flags = if last { flags } else { flags | NEXT };
            self.write_descriptor(place, (offset, bytes, flags), next);
        }
    }

    fn write_descriptor(&self, at: usize, (offset, bytes, flags): (usize, u32, u16), next: u16) {
        let address = self.gpa_base + offset as u64;
        let rest = u64::from(bytes) | u64::from(flags) << 32 | u64::from(next) << 48;
        // Relaxed: the Release store of the index in `publish` makes these stores visible.
        self.word64(at).store(address.to_le(), Relaxed);
        self.word64(at + 8).store(rest.to_le(), Relaxed);
    }

    /// Asks the device for no interrupts until the next `prepare_sleep`. With event indices, the
    /// device interrupts only when the used index passes the used event. An old used event
    /// therefore means no interrupts. Before the 16-bit used index wraps and reaches the old used
    /// event again, the driver moves the used event forward.
    #[inline(always)]
    fn keep_quiet(&mut self) {
        if self.armed {
            self.armed = false;
            if !self.options.event_idx {
                self.set_flags(NO_INTERRUPT);
            }
        }
        if self.next_used.wrapping_sub(self.used_event) > QUIET_LAPSE {
            self.set_used_event(self.next_used.wrapping_sub(1));
        }
    }

    fn set_used_event(&mut self, event: u16) {
        self.used_event = event;
        // Relaxed: the device must see the new used event only before the driver sleeps. For this
        // case, `prepare_sleep` executes a fence after the store.
        self.used_event_word().store(event.to_le(), Relaxed);
    }

    fn set_flags(&self, flags: u16) {
        // Relaxed: the device must see the new flags only before the driver sleeps. For this case,
        // `prepare_sleep` executes a fence after the store.
        self.word16(self.layout.available).store(flags.to_le(), Relaxed);
    }

    fn used_index_word(&self) -> &AtomicU16 {
        self.word16(self.layout.used + 2)
    }

    fn used_event_word(&self) -> &AtomicU16 {
        self.word16(self.layout.available + 4 + 2 * usize::from(self.options.size))
    }

    fn available_event_word(&self) -> &AtomicU16 {
        self.word16(self.layout.used + 4 + 8 * usize::from(self.options.size))
    }

    #[inline(always)]
    fn byte(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: `offset` lies in the layout, and the memory lives as long as the ring.
        // Both sides access shared memory with atomics only.
        unsafe { AtomicU8::from_ptr(self.memory.as_ptr().add(offset)) }
    }

    #[inline(always)]
    fn word16(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: as in `byte`; parts begin at cache lines, so words are aligned.
        unsafe { AtomicU16::from_ptr(self.memory.as_ptr().add(offset).cast()) }
    }

    #[inline(always)]
    fn word32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as in `word16`.
        unsafe { AtomicU32::from_ptr(self.memory.as_ptr().add(offset).cast()) }
    }

    #[inline(always)]
    fn word64(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as in `word16`.
        unsafe { AtomicU64::from_ptr(self.memory.as_ptr().add(offset).cast()) }
    }
}
