//! The driver's side of a virtqueue against the device's side of the crate virtio-queue.
//!
//! Both share one memory and take turns as a random script says, with a plain model of who must
//! have woken whom.
#![allow(unsafe_code, clippy::unwrap_used)]

use std::collections::VecDeque;
use std::ptr::NonNull;

use millrace_clients::vhost::{
    Descriptors, DriverRing, Kind, Request, RingError, RingLayout, RingOptions, Status, Wait,
};
use proptest::prelude::*;
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

const BASE: u64 = 1 << 30;
const DATA: u32 = 1024;

fn options(descriptors: Descriptors, event_idx: bool, wait: Wait) -> RingOptions {
    RingOptions { size: 16, depth: 5, data_bytes: DATA, descriptors, event_idx, wait }
}

/// Request as the device found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    head: u16,
    kind: u32,
    sector: u64,
    data: Option<(u64, u32, bool)>,
    status: u64,
}

struct Pair {
    ring: DriverRing,
    device: Queue,
    memory: GuestMemoryMmap,
    /// Requests that the driver submitted, by slot.
    sent: Vec<Option<Request>>,
    /// Requests that the device took, oldest first.
    taken: VecDeque<Seen>,
    /// Number of requests that were published and not taken.
    shown: u32,
    submitted: u32,
    /// The device waits for a kick.
    asleep: bool,
    /// The driver waits for an interrupt.
    sleeping: bool,
    kicked: bool,
    interrupted: bool,
    completed: u64,
}

impl Pair {
    fn new(options: RingOptions) -> Pair {
        let layout = RingLayout::new(&options).unwrap();
        let memory: GuestMemoryMmap =
            GuestMemoryMmap::from_ranges(&[(GuestAddress(BASE), layout.end)]).unwrap();
        let start = NonNull::new(memory.get_host_address(GuestAddress(BASE)).unwrap()).unwrap();
        // SAFETY: mapped for `end` bytes as long as `memory`, which lives beside the ring; the
        // device goes through the mapping.
        let ring = unsafe { DriverRing::new(start, BASE, options) }.unwrap();
        let mut device = Queue::new(options.size).unwrap();
        device.set_size(options.size);
        let halves = |offset: usize| {
            let address = BASE + offset as u64;
            (Some(address as u32), Some((address >> 32) as u32))
        };
        let (low, high) = halves(layout.descriptors);
        device.set_desc_table_address(low, high);
        let (low, high) = halves(layout.available);
        device.set_avail_ring_address(low, high);
        let (low, high) = halves(layout.used);
        device.set_used_ring_address(low, high);
        device.set_event_idx(options.event_idx);
        device.set_ready(true);
        assert!(device.is_valid(&memory));
        Pair {
            ring,
            device,
            memory,
            sent: vec![None; options.depth.into()],
            taken: VecDeque::new(),
            shown: 0,
            submitted: 0,
            asleep: false,
            sleeping: false,
            kicked: false,
            interrupted: false,
            completed: 0,
        }
    }

    fn submit(&mut self, slot: u16, request: Request) {
        if self.sent[usize::from(slot)].is_none() {
            self.ring.submit(slot, request);
            self.sent[usize::from(slot)] = Some(request);
            self.submitted += 1;
        }
    }

    fn publish(&mut self) {
        self.shown += std::mem::take(&mut self.submitted);
        self.kicked |= self.ring.publish();
        // In one thread nothing is reordered, so the answer is right with and without a barrier.
        assert!(!self.asleep || self.shown == 0 || self.kicked, "a lost kick");
    }

    fn wake_device(&mut self) {
        if std::mem::take(&mut self.kicked) {
            self.asleep = false;
        }
    }

    /// Lets the device take up to `most` requests, and go to sleep if there are none.
    fn take(&mut self, most: usize) {
        self.wake_device();
        if self.asleep {
            return;
        }
        self.device.disable_notification(&self.memory).unwrap();
        for _ in 0..most {
            let Some(chain) = self.device.pop_descriptor_chain(&self.memory) else { break };
            let head = chain.head_index();
            let parts: Vec<_> =
                chain.map(|part| (part.addr().0, part.len(), part.is_write_only())).collect();
            let (header, status) = (parts[0], parts[parts.len() - 1]);
            assert_eq!((header.1, header.2, status.1, status.2), (16, false, 1, true));
            let read = |at: u64| self.memory.read_obj::<u64>(GuestAddress(header.0 + at)).unwrap();
            self.taken.push_back(Seen {
                head,
                kind: read(0) as u32,
                sector: read(8),
                data: (parts.len() == 3).then(|| parts[1]),
                status: status.0,
            });
            assert!(parts.len() <= 3);
            self.shown -= 1;
        }
        if self.shown == 0 {
            self.asleep = !self.device.enable_notification(&self.memory).unwrap();
        }
    }

    /// Completes the `nth` request that the device took.
    fn complete(&mut self, nth: usize, status: u8) {
        if self.taken.is_empty() {
            return;
        }
        let seen = self.taken.remove(nth % self.taken.len()).unwrap();
        let request = self.sent[usize::from(seen.head)].expect("something in flight");
        let number = match request.kind {
            Kind::Read => 0,
            Kind::Write => 1,
            Kind::Flush => 4,
            Kind::GetId => 8,
            Kind::Discard => 11,
            Kind::WriteZeroes => 13,
        };
        assert_eq!((seen.kind, seen.sector), (number, request.sector));
        assert_eq!(seen.data.map_or(0, |data| data.1), request.bytes);
        if let Some((address, bytes, to_driver)) = seen.data {
            assert_eq!(to_driver, matches!(request.kind, Kind::Read | Kind::GetId));
            if to_driver {
                let fill = vec![seen.sector as u8; bytes as usize];
                self.memory.write_slice(&fill, GuestAddress(address)).unwrap();
            } else {
                let mut found = vec![0; bytes as usize];
                self.memory.read_slice(&mut found, GuestAddress(address)).unwrap();
                assert!(found.iter().all(|byte| *byte == seen.sector as u8), "its own buffer");
            }
        }
        self.memory.write_obj(status, GuestAddress(seen.status)).unwrap();
        let bytes = seen.data.map_or(1, |data| data.1 + 1);
        self.device.add_used(&self.memory, seen.head, bytes).unwrap();
        let interrupt = self.wants_interrupt();
        self.interrupted |= interrupt;
        assert!(!self.sleeping || self.interrupted, "a lost interrupt");
        if self.ring.options().wait == Wait::Poll {
            assert!(!interrupt, "an interrupt that nobody asked for");
        }
    }

    /// The crate does not know the flag that takes the place of event indices.
    fn wants_interrupt(&mut self) -> bool {
        let flags = GuestAddress(BASE + self.ring.layout().available as u64);
        let quiet = self.memory.read_obj::<u16>(flags).unwrap() & 1 != 0;
        let event = self.device.needs_notification(&self.memory).unwrap();
        if self.ring.options().event_idx { event } else { !quiet }
    }

    fn reap(&mut self, expected: Option<u8>) {
        self.sleeping = false;
        self.interrupted = false;
        let mut done = Vec::new();
        let count = self.ring.reap(|slot, status| done.push((slot, status))).unwrap();
        assert_eq!(usize::from(count), done.len());
        for (slot, status) in done {
            let request = self.sent[usize::from(slot)].take().expect("was in flight");
            if let Some(expected) = expected {
                assert_eq!(status, Status(expected));
            }
            if request.kind == Kind::Read {
                let mut data = vec![0; request.bytes as usize];
                self.ring.read_data(slot, &mut data);
                assert!(data.iter().all(|byte| *byte == request.sector as u8));
            }
            self.completed += 1;
        }
        let in_flight = self.sent.iter().flatten().count();
        assert_eq!(usize::from(self.ring.in_flight()), in_flight);
    }

    /// Lets the driver go to sleep if no completion is there.
    fn sleep(&mut self) {
        if self.ring.options().wait == Wait::Events {
            self.sleeping = self.ring.prepare_sleep();
            self.interrupted = false;
        }
    }

    fn drain(&mut self) {
        self.publish();
        while self.ring.in_flight() > 0 {
            self.take(usize::MAX);
            (0..self.taken.len()).for_each(|_| self.complete(0, 0));
            self.reap(None);
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Submit(u16, Kind, u64, u32),
    Publish,
    Take(usize),
    Complete(usize, u8),
    Reap,
    Sleep,
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        4 => Just(Kind::Read),
        4 => Just(Kind::Write),
        1 => Just(Kind::Flush),
        1 => Just(Kind::GetId),
        1 => Just(Kind::Discard),
    ];
    prop_oneof![
        6 => (0u16..5, kind, 0u64..1 << 40, 1u32..3)
            .prop_map(|(slot, kind, sector, blocks)| Step::Submit(slot, kind, sector, blocks)),
        3 => Just(Step::Publish),
        4 => (1usize..4).prop_map(Step::Take),
        6 => (0usize..8, 0u8..3).prop_map(|(nth, status)| Step::Complete(nth, status)),
        4 => Just(Step::Reap),
        2 => Just(Step::Sleep),
    ]
}

fn play(pair: &mut Pair, step: Step) {
    match step {
        Step::Submit(slot, kind, sector, blocks) => {
            let bytes = match kind {
                Kind::Read | Kind::Write => blocks * 512,
                Kind::Flush => 0,
                Kind::GetId => 20,
                Kind::Discard | Kind::WriteZeroes => 16,
            };
            if pair.sent[usize::from(slot)].is_none() {
                pair.ring.write_data(slot, &vec![sector as u8; bytes as usize]);
            }
            pair.submit(slot, Request { kind, sector, bytes });
        }
        Step::Publish => pair.publish(),
        Step::Take(most) => pair.take(most),
        Step::Complete(nth, status) => pair.complete(nth, status),
        Step::Reap => pair.reap(None),
        Step::Sleep => pair.sleep(),
    }
}

fn all_options() -> impl Iterator<Item = RingOptions> {
    let kinds = [Descriptors::Chained, Descriptors::Indirect];
    let waits = [Wait::Poll, Wait::Events];
    kinds.into_iter().flat_map(move |kind| {
        waits.into_iter().flat_map(move |wait| {
            [true, false].into_iter().map(move |event_idx| options(kind, event_idx, wait))
        })
    })
}

proptest! {
    #[test]
    fn device_finds_each_request_and_neither_side_oversleeps(
        steps in proptest::collection::vec(step(), 1..400),
    ) {
        for options in all_options() {
            let mut pair = Pair::new(options);
            steps.iter().for_each(|step| play(&mut pair, *step));
            pair.drain();
        }
    }
}

#[test]
fn indices_come_round_without_lost_kicks_or_stray_interrupts() {
    for options in all_options() {
        let mut pair = Pair::new(options);
        for round in 0..70_000u32 {
            for slot in 0..=(round % 3) as u16 {
                pair.submit(slot, Request::read(round.into(), 512));
            }
            pair.publish();
            // Sometimes the device polls for a while and its event stays behind.
            if round % 1024 < 1000 {
                pair.sleep();
            }
            pair.take(usize::MAX);
            (0..pair.taken.len()).for_each(|_| pair.complete(0, 0));
            pair.reap(Some(0));
        }
        assert_eq!(pair.completed, 139_999, "{options:?}");
    }
}

#[test]
fn a_device_that_never_sleeps_is_kicked_once_a_lap_at_most() {
    let mut pair = Pair::new(options(Descriptors::Chained, true, Wait::Poll));
    let mut kicks = 0;
    for round in 0..200_000u64 {
        pair.submit((round % 5) as u16, Request::write(round, 512));
        pair.publish();
        kicks += u32::from(std::mem::take(&mut pair.kicked));
        let chain = pair.device.pop_descriptor_chain(&pair.memory).unwrap();
        pair.device.add_used(&pair.memory, chain.head_index(), 513).unwrap();
        pair.shown = 0;
        pair.reap(None);
    }
    assert!((1..=4).contains(&kicks), "{kicks}");
}

#[test]
fn device_that_fell_asleep_is_kicked_once_when_asked_again() {
    for event_idx in [true, false] {
        let mut pair = Pair::new(options(Descriptors::Chained, event_idx, Wait::Poll));
        pair.device.disable_notification(&pair.memory).unwrap();
        (0..4).for_each(|slot| pair.submit(slot, Request::read(0, 512)));
        pair.publish();
        (0..4).for_each(|_| assert!(pair.device.pop_descriptor_chain(&pair.memory).is_some()));
        pair.kicked = false;
        // A batch of one beside four in flight has no barrier; the device's event comes too late.
        pair.submit(4, Request::read(0, 512));
        assert!(!pair.ring.publish());
        // The device goes to sleep as if it had not seen the fifth request.
        pair.device.enable_notification(&pair.memory).unwrap();
        assert!(pair.ring.recheck_kick());
        assert!(!pair.ring.recheck_kick());
    }
}

#[test]
fn device_with_a_late_event_is_not_kicked_while_working() {
    let mut pair = Pair::new(options(Descriptors::Chained, true, Wait::Poll));
    (0..5).for_each(|slot| pair.submit(slot, Request::write(0, 512)));
    assert!(pair.ring.publish(), "it waits for the first");
    for round in 0..100_000u64 {
        let head = pair.device.pop_descriptor_chain(&pair.memory).unwrap().head_index();
        pair.device.enable_notification(&pair.memory).unwrap();
        pair.device.add_used(&pair.memory, head, 513).unwrap();
        pair.reap(None);
        pair.submit(head, Request::write(round, 512));
        assert!(!pair.ring.publish(), "{round}");
    }
}

#[test]
fn what_a_device_cannot_have_done_is_an_error() {
    let mut pair = Pair::new(options(Descriptors::Chained, true, Wait::Poll));
    pair.submit(1, Request::read(0, 512));
    pair.publish();
    pair.device.add_used(&pair.memory, 2, 0).unwrap();
    let wrong = pair.ring.reap(|_, _| panic!("nothing is done"));
    assert_eq!(wrong, Err(RingError::UsedId { id: 2 }));

    let mut pair = Pair::new(options(Descriptors::Chained, true, Wait::Poll));
    pair.submit(1, Request::read(0, 512));
    pair.publish();
    (0..2).for_each(|_| pair.device.add_used(&pair.memory, 1, 0).unwrap());
    let wrong = pair.ring.reap(|_, _| panic!("nothing is done"));
    assert_eq!(wrong, Err(RingError::UsedIndex { from: 0, to: 2, in_flight: 1 }));
}
