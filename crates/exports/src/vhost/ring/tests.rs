//! The ring against the crate `virtio-queue`, over the same memory, with chains that no driver
//! would make, and its notifications against their definition.
#![allow(clippy::unwrap_used)] // Tests may.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use virtio_queue::{Queue as OracleQueue, QueueT};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap};

use super::super::memory::{GuestMemory, Region, RegionAddress};
use super::*;
use crate::vhost::queue::blk;

const SIZE: u16 = 8;
const MEMORY_BYTES: u64 = 0x10_000;
/// First address of the second region, which continues a buffer that reaches the first one's end.
const SECOND: u64 = MEMORY_BYTES / 2;
const AVAIL: u64 = 0x1000;
const USED: u64 = 0x2000;
/// Where indirect tables are.
const TABLE: u64 = 0x3000;
const TABLE_COUNT: u64 = 8;

/// The memory of a guest, in two regions of one file.
struct Guest {
    file: File,
    memory: Arc<GuestMemory>,
}

impl Guest {
    fn new() -> Guest {
        let file = tempfile::tempfile().unwrap();
        file.set_len(MEMORY_BYTES).unwrap();
        let region = |guest: u64| {
            let (len_bytes, offset) = (SECOND, guest);
            let address = RegionAddress { guest, len_bytes, user: guest + (1 << 40), offset };
            Arc::new(Region::map(file.try_clone().unwrap(), address).unwrap())
        };
        let memory = Arc::new(GuestMemory::new(vec![region(0), region(SECOND)]).unwrap());
        Guest { file, memory }
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, at).unwrap();
    }

    fn u16_at(&self, at: u64) -> u16 {
        let mut bytes = [0; 2];
        self.file.read_exact_at(&mut bytes, at).unwrap();
        u16::from_le_bytes(bytes)
    }

    fn ring(&self, features: RingFeatures) -> SplitRing {
        let user = |guest| guest + (1 << 40);
        let areas =
            RingAreas::find(&self.memory, SIZE, [user(0), user(AVAIL), user(USED)]).unwrap();
        // SAFETY: the memory outlives the ring in every test.
        unsafe { SplitRing::new(RingParts { areas, size: SIZE, features, taken: 0, used: 0 }) }
    }

    /// Makes heads available, as a driver does.
    fn offer(&self, first: u16, heads: &[u16]) {
        for (at, head) in (u64::from(first)..).zip(heads) {
            self.put(AVAIL + 4 + 2 * (at % u64::from(SIZE)), &head.to_le_bytes());
        }
        let idx = first.wrapping_add(heads.len() as u16);
        self.put(AVAIL + 2, &idx.to_le_bytes());
    }
}

/// A descriptor as a guest might write it: mostly sane, sometimes not.
fn descriptor() -> impl Strategy<Value = (u64, u32, u16, u16)> {
    let addr = prop_oneof![
        4 => 0x4000..MEMORY_BYTES,
        2 => SECOND - 600..SECOND,
        2 => (0..3u64).prop_map(|at| TABLE + 16 * at),
        1 => MEMORY_BYTES - 100..MEMORY_BYTES + 100,
        1 => Just(u64::MAX - 5),
    ];
    let len = prop_oneof![
        6 => 1..1200u32,
        3 => Just(16u32),
        2 => Just(1u32),
        2 => Just(48u32),
        2 => (1..TABLE_COUNT as u32).prop_map(|count| 16 * count),
        1 => Just(0u32),
        1 => any::<u32>(),
    ];
    let flags = prop_oneof![
        4 => Just(NEXT), 3 => Just(WRITE), 2 => Just(NEXT | WRITE), 2 => Just(INDIRECT),
        1 => Just(0u16), 1 => 0..16u16
    ];
    (addr, len, flags, 0..SIZE + 2)
}

fn bytes((addr, len, flags, next): (u64, u32, u16, u16)) -> Vec<u8> {
    [&addr.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()]
        .concat()
}

/// The buffers of a chain as virtio-queue sees them; it ends where it finds something wrong.
fn oracle(guest: &Guest, head: u16) -> Vec<(u64, u32, bool)> {
    let part = |guest_addr: u64| {
        let file = FileOffset::new(guest.file.try_clone().unwrap(), guest_addr);
        (GuestAddress(guest_addr), SECOND as usize, Some(file))
    };
    let memory: GuestMemoryMmap<()> =
        GuestMemoryMmap::from_ranges_with_files([part(0), part(SECOND)]).unwrap();
    let mut queue = OracleQueue::new(SIZE).unwrap();
    queue.set_size(SIZE);
    queue.try_set_desc_table_address(GuestAddress(0)).unwrap();
    queue.try_set_avail_ring_address(GuestAddress(AVAIL)).unwrap();
    queue.try_set_used_ring_address(GuestAddress(USED)).unwrap();
    queue.set_ready(true);
    guest.offer(0, &[head]);
    let chain = queue.pop_descriptor_chain(&memory).unwrap();
    chain.map(|one| (one.addr().0, one.len(), one.is_write_only())).collect()
}

/// The pieces of our own chain, neighbours in one buffer put together again.
fn lengths(chain: &DescriptorChain) -> (u64, u64) {
    let sum = |parts: &[Segment]| parts.iter().map(|part| u64::from(part.len_bytes)).sum();
    (sum(&chain.parts[..chain.readable]), sum(&chain.parts[chain.readable..]))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn chains_are_what_virtio_queue_makes_of_them_or_are_refused(
        table in vec(descriptor(), usize::from(SIZE)),
        indirect in vec(descriptor(), TABLE_COUNT as usize),
        head in 0..SIZE,
    ) {
        let guest = Guest::new();
        guest.put(0, &table.into_iter().flat_map(bytes).collect::<Vec<_>>());
        guest.put(TABLE, &indirect.into_iter().flat_map(bytes).collect::<Vec<_>>());
        let ring = guest.ring(RingFeatures { event_idx: true, indirect: true });
        let mut chain = DescriptorChain::default();
        let walked = ring.walk(head, &guest.memory, &mut chain);
        let expected = oracle(&guest, head);
        // Each piece lies in a region, whatever is wrong with the chain.
        for part in &chain.parts {
            let inside = guest.memory.regions().iter().any(|region| {
                let offset = part.start.addr().wrapping_sub(region.start().addr()) as u64;
                offset < SECOND && SECOND - offset >= u64::from(part.len_bytes)
            });
            prop_assert!(inside, "{part:?}");
        }
        if let Some(plain) = ring.walk_plain(head, &guest.memory) {
            // A chain taken for plain must match the full walk.
            prop_assert!(walked.is_ok());
            let (readable, writable) = lengths(&chain);
            let data = u64::from(plain.data.len_bytes);
            let (read, written) = if plain.writable { (0, data) } else { (data, 0) };
            prop_assert_eq!((readable, writable), (16 + read, written + 1));
            prop_assert_eq!(plain.header, chain.parts[0].start);
            prop_assert_eq!(plain.status, chain.parts.last().unwrap().start);
        }
        if walked.is_ok() {
            let sum = |write| {
                let buffers = expected.iter().filter(|(_, _, is_write)| *is_write == write);
                buffers.map(|(_, len, _)| u64::from(*len)).sum::<u64>()
            };
            prop_assert_eq!(lengths(&chain), (sum(false), sum(true)));
            let first = expected.iter().find(|(_, len, _)| *len > 0);
            let first = first.map(|(addr, ..)| guest.memory.translate(*addr).unwrap().start);
            prop_assert_eq!(chain.parts.first().map(|part| part.start), first);
            let has_empty = expected.iter().any(|(_, len, _)| *len == 0);
            prop_assert_eq!(chain.has_empty, has_empty);
            // Parsing a request from it must not fail, whatever the chain contains.
            let request = blk::parse(&mut chain);
            let (from, to) = request.data;
            prop_assert!(from <= to && to <= chain.parts.len());
            prop_assert!(!has_empty || matches!(request.action, blk::Action::Refused(_)));
        }
    }

    #[test]
    fn a_guest_is_interrupted_exactly_when_its_event_was_passed(
        before in any::<u16>(), count in 1..=SIZE, event in any::<u16>(), near in 0..2 * SIZE,
        exact in any::<bool>(), at_the_end in any::<bool>(),
    ) {
        let guest = Guest::new();
        // Often enough where the index goes round within a batch.
        let before = if at_the_end { 0u16.wrapping_sub(before % (SIZE + 1)) } else { before };
        let event = if exact { before.wrapping_add(near).wrapping_sub(SIZE) } else { event };
        guest.put(AVAIL + 4 + 2 * u64::from(SIZE), &event.to_le_bytes());
        let mut ring = guest.ring(RingFeatures { event_idx: true, indirect: true });
        (ring.used, ring.published) = (before, before);
        (0..count).for_each(|head| ring.put(head, 1));
        prop_assert_eq!(ring.unpublished(), count);
        ring.publish();
        let passed = (0..count).any(|at| before.wrapping_add(at) == event);
        prop_assert_eq!(ring.wants_interrupt(before), passed);
        prop_assert_eq!(guest.u16_at(USED + 2), before.wrapping_add(count));
    }
}

#[test]
fn event_is_passed_or_not_around_end_of_index_as_in_its_middle() {
    let guest = Guest::new();
    let mut ring = guest.ring(RingFeatures { event_idx: true, indirect: true });
    // Each place of the end in a batch of four, and each place of the event around the batch.
    for (before, ahead) in (0..=4).flat_map(|end| (0..8).map(move |ahead| (end, ahead))) {
        let before = 0u16.wrapping_sub(before);
        let event = before.wrapping_sub(2).wrapping_add(ahead);
        guest.put(AVAIL + 4 + 2 * u64::from(SIZE), &event.to_le_bytes());
        (ring.used, ring.published) = (before.wrapping_add(4), before);
        ring.publish();
        let passed = (2..6).contains(&ahead);
        assert_eq!(ring.wants_interrupt(before), passed, "from {before}, event {event}");
    }
    // A kick is asked for with the next index, also behind the end.
    for taken in [u16::MAX, 0, 1] {
        (ring.taken, ring.seen) = (taken, taken);
        guest.offer(taken, &[]);
        assert!(!ring.request_kick());
        assert_eq!(guest.u16_at(USED + 4 + 8 * u64::from(SIZE)), taken);
        guest.offer(taken, &[1]);
        assert!(ring.request_kick() && ring.has_news());
    }
}

/// Compares `walk_plain` with the full walk of a descriptor table in `guest`'s memory. Returns true
/// if the chain is plain.
fn short_way(guest: &Guest, indirect: bool) -> bool {
    let ring = guest.ring(RingFeatures { event_idx: true, indirect });
    let mut chain = DescriptorChain::default();
    let walked = ring.walk(0, &guest.memory, &mut chain);
    let Some(plain) = ring.walk_plain(0, &guest.memory) else { return false };
    assert_eq!(walked, Ok(()), "what the long way refuses, the short one takes: {plain:?}");
    let places: Vec<_> = chain.parts.iter().map(|part| (part.start, part.len_bytes)).collect();
    let data = (plain.data.start, plain.data.len_bytes);
    assert_eq!(places, [(plain.header, 16), data, (plain.status, 1)]);
    assert_eq!(chain.readable, if plain.writable { 1 } else { 2 });
    true
}

/// A request for plain chains to be made of: header, data, status.
fn plain_chain(writable: bool, from: u16) -> [(u64, u32, u16, u16); 3] {
    let data = if writable { NEXT | WRITE } else { NEXT };
    [(0x4000, 16, NEXT, from), (0x5000, 512, data, from + 1), (0x6000, 1, WRITE, 0)]
}

#[test]
fn the_short_way_takes_no_descriptor_from_behind_its_table() {
    for writable in [false, true] {
        let chain = plain_chain(writable, 1);
        let guest = Guest::new();
        let put = |at: u16, one| guest.put(16 * u64::from(at), &bytes(one));
        (0..3).for_each(|at| put(at, chain[usize::from(at)]));
        assert!(short_way(&guest, true));
        // The data, then the status, lies behind the last descriptor, as good as it could be.
        put(SIZE, chain[1]);
        put(0, (0x4000, 16, NEXT, SIZE));
        assert!(!short_way(&guest, true), "data of descriptor {SIZE}");
        put(0, chain[0]);
        put(SIZE, chain[2]);
        put(1, (chain[1].0, chain[1].1, chain[1].2, SIZE));
        assert!(!short_way(&guest, true), "status of descriptor {SIZE}");
        put(1, chain[1]);
        assert!(short_way(&guest, true));
        // In a table of three, the fourth.
        guest.put(TABLE, &chain.into_iter().flat_map(bytes).collect::<Vec<_>>());
        put(0, (TABLE, 48, INDIRECT, 0));
        assert!(short_way(&guest, true));
        assert!(!short_way(&guest, false), "tables were not negotiated");
        guest.put(TABLE + 48, &bytes(chain[1]));
        guest.put(TABLE, &bytes((0x4000, 16, NEXT, 3)));
        assert!(!short_way(&guest, true), "data of descriptor 3");
        guest.put(TABLE, &bytes(chain[0]));
        guest.put(TABLE + 48, &bytes(chain[2]));
        guest.put(TABLE + 16, &bytes((chain[1].0, chain[1].1, chain[1].2, 3)));
        assert!(!short_way(&guest, true), "status of descriptor 3");
    }
}

#[test]
fn short_way_takes_no_table_and_nothing_outside_memory() {
    // The first region ends within a page. The bytes behind it in the file are valid descriptors,
    // but none of the guest's memory.
    let chain = plain_chain(true, 1);
    for inside in (0..=64).step_by(8) {
        let len_bytes = TABLE + inside;
        let guest = Guest::new();
        let address = RegionAddress { guest: 0, len_bytes, user: 1 << 40, offset: 0 };
        let low = Arc::new(Region::map(guest.file.try_clone().unwrap(), address).unwrap());
        let high = Arc::clone(&guest.memory.regions()[1]);
        let memory = Arc::new(GuestMemory::new(vec![low, high]).unwrap());
        let guest = Guest { file: guest.file, memory };
        let places = [0x1800, SECOND, 0x1c00];
        let table = [0, 1, 2].map(|at| (places[at], chain[at].1, chain[at].2, chain[at].3));
        guest.put(TABLE, &table.into_iter().flat_map(bytes).collect::<Vec<_>>());
        guest.put(0, &bytes((TABLE, 48, INDIRECT, 0)));
        assert_eq!(short_way(&guest, true), inside >= 48, "{inside} bytes of the table");
        // Each buffer in turn ends there.
        for (at, len) in [(0, 16), (1, 32), (2, 1)] {
            let mut own = table;
            own[at] = (TABLE, len, table[at].2, table[at].3);
            guest.put(0, &own.into_iter().flat_map(bytes).collect::<Vec<_>>());
            assert_eq!(short_way(&guest, true), inside >= len.into(), "buffer {at}, {inside}");
        }
    }
}

#[test]
fn a_head_that_is_no_descriptor_has_no_chain() {
    let guest = Guest::new();
    // As good as it could be, behind the table.
    let chain = plain_chain(false, 1);
    guest.put(16 * u64::from(SIZE), &bytes(chain[0]));
    (1..3).for_each(|at| guest.put(16 * at as u64, &bytes(chain[at])));
    let ring = guest.ring(RingFeatures { event_idx: true, indirect: true });
    assert!(ring.walk_plain(SIZE, &guest.memory).is_none());
    let error = RingError::Index { index: SIZE, count: SIZE.into() };
    assert_eq!(ring.walk(SIZE, &guest.memory, &mut DescriptorChain::default()), Err(error));
}

#[test]
fn heads_come_in_order_and_once_and_around_the_end_of_the_index() {
    let guest = Guest::new();
    let mut ring = guest.ring(RingFeatures::default());
    (ring.taken, ring.seen) = (u16::MAX - 1, u16::MAX - 1);
    guest.offer(u16::MAX - 1, &[3, 1, 2]);
    assert_eq!(ring.available(), Ok(3));
    let taken: Vec<u16> = std::iter::from_fn(|| ring.take().unwrap()).collect();
    assert_eq!((taken, ring.taken()), (vec![3, 1, 2], 1));
    assert!(!ring.has_news());
    guest.offer(1, &[7]);
    assert!(ring.has_news());
}

#[test]
fn a_ring_may_be_full() {
    let guest = Guest::new();
    let mut ring = guest.ring(RingFeatures::default());
    guest.offer(0, &[7, 6, 5, 4, 3, 2, 1, 0]);
    assert_eq!(ring.available(), Ok(SIZE));
}

#[test]
fn index_that_runs_ahead_or_head_that_is_none_breaks_ring() {
    let guest = Guest::new();
    let mut ring = guest.ring(RingFeatures::default());
    guest.put(AVAIL + 2, &(SIZE + 1).to_le_bytes());
    let error = RingError::AvailIdx { idx: SIZE + 1, taken: 0, size: SIZE };
    assert_eq!(ring.available(), Err(error));
    // An index behind the last one taken counts as far ahead.
    guest.put(AVAIL + 2, &u16::MAX.to_le_bytes());
    assert!(ring.available().is_err());
    guest.offer(0, &[SIZE]);
    assert_eq!(ring.available(), Ok(1));
    assert_eq!(ring.take(), Err(RingError::Index { index: SIZE, count: SIZE.into() }));
}

#[test]
fn what_is_wrong_with_a_chain_has_a_name() {
    let guest = Guest::new();
    let walk = |table: &[(u64, u32, u16, u16)], indirect: bool| {
        guest.put(0, &table.iter().copied().flat_map(bytes).collect::<Vec<_>>());
        let ring = guest.ring(RingFeatures { event_idx: false, indirect });
        ring.walk(0, &guest.memory, &mut DescriptorChain::default())
    };
    assert_eq!(walk(&[(0x4000, 16, NEXT, 0)], true), Err(RingError::Loop { count: SIZE.into() }));
    let (addr, len) = (MEMORY_BYTES - 8, 16);
    assert_eq!(walk(&[(addr, len, 0, 0)], true), Err(RingError::NotMemory { addr, len }));
    let (addr, len) = (u64::MAX - 8, 16);
    assert_eq!(walk(&[(addr, len, 0, 0)], true), Err(RingError::NotMemory { addr, len }));
    let order = [(0x4000, 16, NEXT | WRITE, 1), (0x4000, 16, 0, 0)];
    assert_eq!(walk(&order, true), Err(RingError::Order));
    assert_eq!(walk(&[(TABLE, 16, INDIRECT, 0)], false), Err(RingError::Indirect { len: 16 }));
    assert_eq!(walk(&[(TABLE, 24, INDIRECT, 0)], true), Err(RingError::Indirect { len: 24 }));
    guest.put(TABLE, &bytes((TABLE, 16, INDIRECT, 0)));
    assert_eq!(walk(&[(TABLE, 16, INDIRECT, 0)], true), Err(RingError::Indirect { len: 16 }));
    let out = [(0x4000, 16, NEXT, SIZE)];
    assert_eq!(walk(&out, true), Err(RingError::Index { index: SIZE, count: SIZE.into() }));
}

#[test]
fn kicks_are_asked_for_before_the_last_look() {
    let guest = Guest::new();
    let mut ring = guest.ring(RingFeatures { event_idx: true, indirect: true });
    guest.offer(0, &[1, 2]);
    ring.available().unwrap();
    while ring.take().unwrap().is_some() {}
    assert!(!ring.request_kick());
    assert_eq!(guest.u16_at(USED + 4 + 8 * u64::from(SIZE)), 2);
    guest.offer(2, &[3]);
    assert!(ring.request_kick());
    // Without EVENT_IDX it is a flag.
    let mut ring = guest.ring(RingFeatures::default());
    ring.suppress_kicks();
    assert_eq!(guest.u16_at(USED), NO_NOTIFY);
    ring.request_kick();
    assert_eq!(guest.u16_at(USED), 0);
}

#[test]
fn a_ring_at_an_odd_place_or_outside_of_memory_is_none() {
    let guest = Guest::new();
    let user = |guest| guest + (1 << 40);
    let find = |at| RingAreas::find(&guest.memory, SIZE, at);
    assert!(find([user(0), user(AVAIL), user(USED)]).is_some());
    assert!(find([user(8), user(AVAIL), user(USED)]).is_none());
    assert!(find([user(0), user(AVAIL + 1), user(USED)]).is_none());
    assert!(find([user(0), user(AVAIL), user(USED + 2)]).is_none());
    assert!(find([user(MEMORY_BYTES), user(AVAIL), user(USED)]).is_none());
    assert!(find([user(SECOND - 16), user(AVAIL), user(USED)]).is_none());
}

#[test]
fn the_areas_of_a_ring_have_the_sizes_of_the_specification() {
    // 16 bytes a descriptor; flags, index and event with 2 and with 8 bytes for each.
    assert_eq!(area_bytes(1), [16, 8, 14]);
    assert_eq!(area_bytes(8), [128, 22, 70]);
    assert_eq!(area_bytes(SIZE_MAX), [16_384, 2_054, 8_198]);
}

#[test]
fn a_ring_knows_its_size_and_up_to_where_it_has_published() {
    let guest = Guest::new();
    let mut ring = guest.ring(RingFeatures::default());
    assert_eq!((ring.size(), ring.published(), ring.unpublished()), (SIZE, 0, 0));
    (0..3).for_each(|head| ring.put(head, 1));
    assert_eq!((ring.published(), ring.unpublished()), (0, 3));
    assert_eq!((ring.publish().used_idx(), ring.published(), ring.unpublished()), (3, 3, 0));
}

#[test]
fn without_event_indices_only_the_flag_keeps_interrupts_away() {
    let guest = Guest::new();
    let mut ring = guest.ring(RingFeatures::default());
    ring.put(0, 1);
    ring.publish();
    for (flags, wants) in [(0u16, true), (1, false), (2, true), (3, false), (0xfffe, true)] {
        guest.put(AVAIL, &flags.to_le_bytes());
        assert_eq!(ring.wants_interrupt(0), wants, "flags {flags}");
        assert_eq!(ring.wants_interrupt(1), wants, "flags {flags}");
    }
}

#[test]
fn the_short_way_takes_no_chain_of_which_one_thing_is_not_plain() {
    type Change = fn(&mut [(u64, u32, u16, u16); 3]);
    let changes: [Change; 15] = [
        |chain| chain[0].1 = 15,
        |chain| chain[0].1 = 17,
        |chain| chain[0].2 = NEXT | WRITE,
        |chain| chain[0].2 = 0,
        |chain| chain[0].3 = SIZE,
        |chain| chain[1].1 = 0,
        |chain| chain[1].2 = 0,
        |chain| chain[1].2 = WRITE,
        |chain| chain[1].2 = NEXT | INDIRECT,
        |chain| chain[1].2 |= 8,
        |chain| chain[1].3 = SIZE,
        |chain| chain[2].1 = 2,
        |chain| chain[2].1 = 0,
        |chain| chain[2].2 = 0,
        |chain| chain[2].2 = WRITE | NEXT,
    ];
    for (writable, at_end) in [(false, true), (true, true), (false, false), (true, false)] {
        for (index, change) in changes.iter().enumerate() {
            let mut chain = plain_chain(writable, 1);
            change(&mut chain);
            let guest = Guest::new();
            let bytes_of = |chain: [_; 3]| chain.into_iter().flat_map(bytes).collect::<Vec<_>>();
            // In the ring, and in a table of their own.
            let place = if at_end { TABLE } else { 0 };
            guest.put(place, &bytes_of(chain));
            if at_end {
                guest.put(0, &bytes((TABLE, 48, INDIRECT, 0)));
            }
            let ring = guest.ring(RingFeatures { event_idx: true, indirect: true });
            assert!(ring.walk_plain(0, &guest.memory).is_none(), "change {index}");
            guest.put(place, &bytes_of(plain_chain(writable, 1)));
            assert!(ring.walk_plain(0, &guest.memory).is_some());
        }
    }
    // A table of another length, although its first three are as good as they could be.
    for len in [16, 32, 47, 49, 64] {
        let guest = Guest::new();
        guest.put(TABLE, &plain_chain(true, 1).into_iter().flat_map(bytes).collect::<Vec<_>>());
        guest.put(0, &bytes((TABLE, len, INDIRECT, 0)));
        let ring = guest.ring(RingFeatures { event_idx: true, indirect: true });
        assert!(ring.walk_plain(0, &guest.memory).is_none(), "table of {len} bytes");
    }
}

/// A chain in a table of its own at this place, of these buffers.
fn indirect(guest: &Guest, table: u64, buffers: &[(u64, u32, u16)]) {
    let last = buffers.len() - 1;
    for (at, (addr, len, flags)) in buffers.iter().enumerate() {
        let next = if at < last { NEXT } else { 0 };
        let one = (*addr, *len, flags | next, (at as u16).wrapping_add(1));
        guest.put(table + 16 * at as u64, &bytes(one));
    }
    guest.put(0, &bytes((table, 16 * buffers.len() as u32, INDIRECT, 0)));
}

#[test]
fn ring_of_eight_takes_the_buffers_of_the_longest_ring() {
    let most = PARTS_MAX;
    for (count, fits) in [(129, true), (SIZE_MAX.into(), true), (most, true), (most + 1, false)] {
        for written in [0, WRITE] {
            let guest = Guest::new();
            let mut buffers = vec![(0x4000, 16, 0)];
            buffers.extend((2..count).map(|at| (0x5000 + at as u64, 1, written)));
            buffers.push((0x5800, 1, WRITE));
            indirect(&guest, SECOND, &buffers);
            let ring = guest.ring(RingFeatures { event_idx: true, indirect: true });
            let mut chain = DescriptorChain::default();
            assert_eq!(ring.walk(0, &guest.memory, &mut chain), Ok(()), "{count}");
            assert_eq!((chain.is_long, chain.parts.len()), (!fits, if fits { count } else { 1 }));
            let status = guest.memory.find(0x5800, 1);
            let request = blk::parse(&mut chain);
            assert_eq!(request.status, status, "{count}");
            let refused = blk::Action::Refused(crate::virtio::status::IOERR);
            // Bytes that are no whole sectors are refused as well.
            assert_eq!(request.action, refused);
        }
    }
}

#[test]
fn a_chain_in_the_longest_table_ends_or_is_a_loop() {
    const COUNT: usize = 1 << 16;
    let table = MEMORY_BYTES;
    let file = tempfile::tempfile().unwrap();
    file.set_len(table + 32 * COUNT as u64).unwrap();
    let address =
        RegionAddress { guest: 0, len_bytes: table + 32 * COUNT as u64, user: 1 << 40, offset: 0 };
    let region = Arc::new(Region::map(file.try_clone().unwrap(), address).unwrap());
    let guest = Guest { memory: Arc::new(GuestMemory::new(vec![region]).unwrap()), file };
    let buffers = vec![(0x4000, 16, WRITE); COUNT];
    indirect(&guest, table, &buffers);
    let ring = guest.ring(RingFeatures { event_idx: true, indirect: true });
    let mut chain = DescriptorChain::default();
    assert_eq!(ring.walk(0, &guest.memory, &mut chain), Ok(()));
    assert!(chain.is_long && chain.parts.len() == 1);
    // The last one leads back to the first; and a table that is longer than an index reaches.
    guest.put(table + 16 * (COUNT as u64 - 1), &bytes((0x4000, 16, WRITE | NEXT, 0)));
    for count in [COUNT, 2 * COUNT] {
        guest.put(0, &bytes((table, 16 * count as u32, INDIRECT, 0)));
        let error = RingError::Loop { count: count as u32 };
        assert_eq!(ring.walk(0, &guest.memory, &mut chain), Err(error));
    }
}

#[test]
fn buffers_that_cross_regions_are_as_many_pieces() {
    let regions = 104;
    let file = tempfile::tempfile().unwrap();
    file.set_len(MEMORY_BYTES + regions * 4096).unwrap();
    let region = |guest, len_bytes| {
        let address = RegionAddress { guest, len_bytes, user: guest + (1 << 40), offset: guest };
        Arc::new(Region::map(file.try_clone().unwrap(), address).unwrap())
    };
    let small = (0..regions).map(|at| region(MEMORY_BYTES + 4096 * at, 4096));
    let all = small.chain([region(0, MEMORY_BYTES)]).collect();
    let guest = Guest { memory: Arc::new(GuestMemory::new(all).unwrap()), file };
    let all = (MEMORY_BYTES, 4096 * regions as u32, WRITE);
    for (more, fits) in [(0, true), (1, false)] {
        let mut buffers = vec![all; PARTS_MAX / regions as usize];
        buffers.resize(buffers.len() + more, (0x4000, 1, WRITE));
        indirect(&guest, 0x6000, &buffers);
        let ring = guest.ring(RingFeatures { event_idx: true, indirect: true });
        let mut chain = DescriptorChain::default();
        assert_eq!(ring.walk(0, &guest.memory, &mut chain), Ok(()));
        assert_eq!((chain.is_long, chain.parts.len()), (!fits, if fits { PARTS_MAX } else { 1 }));
    }
}
