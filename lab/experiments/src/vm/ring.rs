//! `Ring`: a virtqueue between guest and device, with the lock of the guest's driver.
//!
//! State that both sides share lies on cache lines of the simulated machine: the two indexes, the
//! two event indexes (VIRTIO_RING_F_EVENT_IDX), a line for each request's descriptors, and a line
//! for eight entries of the used ring. The requests themselves are bookkeeping of the simulation.
//! The driver adds requests and takes them back under one lock, like virtio_blk of Linux 3.17
//! (`virtio_queue_rq`, `virtblk_done`). Invariant: a side accesses requests only up to the index
//! that it has read.

use std::collections::VecDeque;
use std::sync::Mutex;

use millrace_block::Op;
use millrace_machine::{Line, Machine, Order, Word};
use millrace_simulator::Simulated;

use super::spinlock::{GuestLock, LockSeen, PauseLoop};

use millrace_machine::lock_unpoisoned;

/// Number of slots of a ring, as in QEMU's virtio-blk of 2014.
const SLOTS: u32 = 128;
const USED_PER_LINE: u32 = 8;

type SimLine = <Simulated as Machine>::Line<[u8; 64]>;
type SimWord = <Simulated as Machine>::Word;

#[derive(Debug, Clone, Copy)]
pub(super) struct VmRequest {
    pub(super) slot: u32,
    pub(super) vcpu: u32,
    pub(super) op: Op,
    pub(super) sector: u64,
    pub(super) start_ns: u64,
}

#[derive(Debug)]
pub(super) struct DriverSide {
    free: Vec<u32>,
    added: u64,
    taken: u64,
    /// vCPUs whose processes wait for a free slot of the virtqueue, in order of arrival.
    waiting: VecDeque<u32>,
}

pub(super) struct Ring {
    driver: GuestLock<DriverSide>,
    avail_idx: SimWord,
    avail_event: SimWord,
    used_idx: SimWord,
    used_event: SimWord,
    descriptors: Vec<SimLine>,
    used_lines: Vec<SimLine>,
    avail: Mutex<VecDeque<VmRequest>>,
    used: Mutex<VecDeque<VmRequest>>,
}

/// Returns true if `event`, the index of the entry for which the other side wants a notification,
/// is in `old..new`.
fn needs_event(event: u64, new: u64, old: u64) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

impl Ring {
    /// Creates an empty ring. If `pause`, the times of pause-loop exiting, is given, the host may
    /// preempt a vCPU while it holds the driver's lock. Otherwise, the holder is never preempted.
    pub(super) fn new(pause: Option<PauseLoop>) -> Ring {
        let lines = |count: u32| (0..count).map(|_| SimLine::new([0; 64])).collect();
        let word = || SimWord::new(0);
        let free = (0..SLOTS).rev().collect();
        let side = DriverSide { free, added: 0, taken: 0, waiting: VecDeque::new() };
        Ring {
            driver: GuestLock::new(side, pause),
            avail_idx: word(),
            avail_event: word(),
            used_idx: word(),
            used_event: word(),
            descriptors: lines(SLOTS),
            used_lines: lines(SLOTS / USED_PER_LINE),
            avail: Mutex::default(),
            used: Mutex::default(),
        }
    }

    pub(super) fn lock_seen(&self) -> LockSeen {
        self.driver.seen()
    }

    /// Adds a request to the ring. Takes the driver's lock, and calls `work` under the lock to
    /// charge the time that the driver needs. Returns true if the driver must notify the device.
    /// Returns `None` if no slot is free; the vCPU is then woken when slots become free.
    pub(super) fn add(&self, mut request: VmRequest, work: impl FnOnce()) -> Option<bool> {
        let mut driver = self.driver.lock();
        let Some(slot) = driver.free.pop() else {
            if !driver.waiting.contains(&request.vcpu) {
                driver.waiting.push_back(request.vcpu);
            }
            return None;
        };
        request.slot = slot;
        work();
        self.descriptors[slot as usize].write();
        lock_unpoisoned(&self.avail).push_back(request);
        let old = driver.added;
        driver.added += 1;
        // Release: publishes the request and its descriptors before the index in `avail_idx`. Pairs
        // with the device's acquire in `available`.
        self.avail_idx.store(driver.added, Order::Release);
        // SeqCst: pairs with the device's fence in `ask_for_kicks`.
        Simulated::fence(Order::SeqCst);
        let event = self.avail_event.load(Order::Relaxed);
        Some(needs_event(event, driver.added, old))
    }

    /// Takes back all completed requests, calling `each` for every one, and enables the next
    /// interrupt, under the driver's lock. Returns the vCPUs that were waiting for the freed slots.
    pub(super) fn take_done(&self, mut each: impl FnMut(VmRequest)) -> Vec<u32> {
        let mut driver = self.driver.lock();
        let mut freed = 0;
        loop {
            // Acquire: pairs with the device's release in `publish`.
            let used = self.used_idx.load(Order::Acquire);
            while driver.taken < used {
                self.used_line(driver.taken).read();
                let request = lock_unpoisoned(&self.used)
                    .pop_front()
                    .expect("a request must be published before the used index counts it");
                driver.taken += 1;
                driver.free.push(request.slot);
                freed += 1;
                each(request);
            }
            self.used_event.store(used, Order::Relaxed);
            // SeqCst: pairs with the device's fence in `publish`.
            Simulated::fence(Order::SeqCst);
            if self.used_idx.load(Order::Acquire) == used {
                break;
            }
        }
        // To save wake-ups, wake one vCPU per 8 freed slots, as blk-mq does (`BT_WAIT_BATCH`).
        let told = driver.waiting.len().min(usize::div_ceil(freed, 8));
        driver.waiting.drain(..told).collect()
    }

    pub(super) fn available(&self) -> u64 {
        // Acquire: pairs with the driver's release in `add`.
        self.avail_idx.load(Order::Acquire)
    }

    /// Takes the next request for the device. The device must have checked `available` before.
    pub(super) fn pop(&self) -> VmRequest {
        let request = lock_unpoisoned(&self.avail)
            .pop_front()
            .expect("a request is added before `avail_idx` counts it");
        self.descriptors[request.slot as usize].read();
        request
    }

    /// Enables the notification of the next request. `taken` is the number of requests that the
    /// device has taken so far. Returns true if the ring has no further request.
    pub(super) fn ask_for_kicks(&self, taken: u64) -> bool {
        self.avail_event.store(taken, Order::Relaxed);
        // SeqCst: pairs with the driver's fence in `add`. One of the two sides sees the other's
        // store.
        Simulated::fence(Order::SeqCst);
        self.available() == taken
    }

    /// Puts a request on the used ring as entry `number`. The driver does not see the entry before
    /// `publish`.
    pub(super) fn push_used(&self, request: VmRequest, number: u64) {
        self.used_line(number).write();
        lock_unpoisoned(&self.used).push_back(request);
    }

    /// Publishes the entries `old` to `new` of the used ring to the driver. Returns true if the
    /// device must interrupt the guest.
    pub(super) fn publish(&self, new: u64, old: u64) -> bool {
        // Release: pairs with the driver's acquire in `take_done`.
        self.used_idx.store(new, Order::Release);
        // SeqCst: pairs with the driver's fence in `take_done`.
        Simulated::fence(Order::SeqCst);
        needs_event(self.used_event.load(Order::Relaxed), new, old)
    }

    fn used_line(&self, number: u64) -> &SimLine {
        &self.used_lines[(number / u64::from(USED_PER_LINE)) as usize % self.used_lines.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(vcpu: u32) -> VmRequest {
        VmRequest { slot: 0, vcpu, op: Op::Read, sector: 0, start_ns: 0 }
    }

    #[test]
    fn only_an_index_that_passes_the_event_is_told() {
        assert!(needs_event(0, 1, 0));
        assert!(!needs_event(0, 2, 1));
        assert!(needs_event(5, 8, 4));
        assert!(!needs_event(8, 8, 4));
    }

    #[test]
    fn the_driver_notifies_once_until_the_device_asks_again() {
        let ring = Ring::new(None);
        let add = || ring.add(request(0), || ());
        assert_eq!([add(), add(), add()], [Some(true), Some(false), Some(false)]);
        assert_eq!(ring.available(), 3);
        (0..3).for_each(|_| assert_eq!(ring.pop().vcpu, 0));
        assert!(ring.ask_for_kicks(3));
        assert_eq!([add(), add()], [Some(true), Some(false)]);
        assert!(!ring.ask_for_kicks(3));
    }

    #[test]
    fn the_device_interrupts_once_until_the_driver_has_taken_all() {
        let ring = Ring::new(None);
        let mut used = 0;
        let mut finish = || {
            ring.add(request(1), || ());
            let request = ring.pop();
            ring.push_used(request, used);
            used += 1;
            ring.publish(used, used - 1)
        };
        assert_eq!([finish(), finish()], [true, false]);
        let mut seen = 0;
        assert!(ring.take_done(|_| seen += 1).is_empty());
        assert!(seen == 2 && finish());
    }

    #[test]
    fn who_finds_no_slot_is_told_when_there_is_one() {
        let ring = Ring::new(None);
        (0..SLOTS).for_each(|_| assert!(ring.add(request(0), || ()).is_some()));
        assert_eq!(ring.add(request(3), || ()), None);
        assert_eq!(ring.add(request(3), || ()), None);
        let first = ring.pop();
        ring.push_used(first, 0);
        ring.publish(1, 0);
        assert_eq!(ring.take_done(|_| ()), [3]);
        assert!(ring.add(request(3), || ()).is_some());
    }
}
