//! Requests in chains that are cut in all places, against a parse of the flat bytes, and the
//! configuration space of volumes.
#![allow(clippy::unwrap_used)] // Tests may.

use millrace_block::Features;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::virtio::ID_BYTES;

/// A chain over two buffers, each cut at some places.
fn chain(readable: &mut [u8], writable: &mut [u8], cuts: &[usize]) -> DescriptorChain {
    let mut parts = Vec::new();
    let mut count = 0;
    for (buffer, is_readable) in [(readable, true), (writable, false)] {
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut % buffer.len().max(1)).collect();
        places.extend([0, buffer.len()]);
        places.sort_unstable();
        places.dedup();
        for pair in places.windows(2) {
            let start = buffer.as_mut_ptr().wrapping_add(pair[0]);
            parts.push(Segment { start, len_bytes: (pair[1] - pair[0]) as u32 });
            count += usize::from(is_readable);
        }
    }
    DescriptorChain { parts, readable: count, ..DescriptorChain::default() }
}

fn header(kind: u32, sector: u64) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat()
}

fn data_of(chain: &DescriptorChain, request: &Request) -> Vec<u8> {
    let parts = &chain.parts[request.data.0..request.data.1];
    // SAFETY: pieces of live buffers of the test.
    let bytes = |part: &Segment| unsafe {
        std::slice::from_raw_parts(part.start, part.len_bytes as usize).to_vec()
    };
    parts.iter().flat_map(bytes).collect()
}

proptest! {
    #[test]
    fn requests_are_the_same_wherever_they_are_cut(
        kind in prop_oneof![0..14u32, any::<u32>()],
        sector in any::<u64>(),
        extra in prop_oneof![Just(0usize), Just(16), Just(512), Just(1024), 0..600usize],
        room in prop_oneof![Just(1usize), Just(513), Just(21), 0..1100usize],
        cuts in vec(0..2000usize, 0..6),
    ) {
        let mut readable = header(kind, sector);
        readable.extend((0..extra).map(|at| at as u8));
        let mut writable = vec![0; room];
        let (mut whole, mut cut) = (readable.clone(), readable.clone());
        let mut other = writable.clone();
        let mut one = chain(&mut whole, &mut writable, &[]);
        let mut many = chain(&mut cut, &mut other, &cuts);
        let (first, second) = (parse(&mut one), parse(&mut many));
        prop_assert_eq!(first.action, second.action);
        prop_assert_eq!(first.data_bytes, second.data_bytes);
        prop_assert_eq!(first.status.is_some(), second.status.is_some());
        prop_assert_eq!(first.status.is_some(), room > 0);
        if let Action::Transfer(op, at) = first.action {
            prop_assert_eq!((op == Op::Write, at), (kind == kind::OUT, sector));
            prop_assert_eq!(data_of(&one, &first), data_of(&many, &second));
            let expected = if op == Op::Write { extra } else { room - 1 };
            prop_assert_eq!(first.data_bytes, expected as u64);
        }
        if let Some(status) = second.status {
            // SAFETY: the last byte of a live buffer.
            unsafe { status.write_volatile(9) };
            prop_assert_eq!(other[room - 1], 9);
        }
    }

    #[test]
    fn guests_are_told_of_pieces_that_drives_and_sums_allow(
        max_sectors in 8..=u32::MAX, max_segments in 1..=u16::MAX,
        max_segment_size in prop_oneof![Just(u32::MAX), 4096..1_000_000u32],
    ) {
        let limits =
            QueueLimits { max_sectors, max_segments, max_segment_size, ..QueueLimits::default() };
        let (size, count) = config(limits).segments();
        prop_assert!(size >= 4096 && size % 4096 == 0 && (1..=SEG_MAX).contains(&count));
        prop_assert!(size <= max_segment_size && count <= max_segments.into());
        prop_assert!(u64::from(size) <= u64::from(max_sectors) << 9);
        prop_assert!(i32::try_from(u64::from(size) * u64::from(count)).is_ok());
        // No shorter than it has to be.
        let limit = u64::from(max_segment_size).min(u64::from(max_sectors) << 9).min(16 << 20);
        prop_assert!(u64::from(size) + 4096 > limit, "{} of {}", size, limit);
    }
}

fn config(limits: QueueLimits) -> Config {
    let (read_only, write_back, event_idx) = (false, true, true);
    Config { capacity: 1000, limits, queues: 4, read_only, write_back, event_idx }
}

#[test]
fn plain_chain_moves_whole_sectors_or_is_refused() {
    let mut byte = 0;
    for kind in 0..16 {
        for (writable, len_bytes) in
            [true, false].into_iter().flat_map(|w| [1, 511, 512, 513, 4096].map(|len| (w, len)))
        {
            let mut header = header(kind, 0x1_2345_6789);
            let data = Segment { start: &raw mut byte, len_bytes };
            let header = header.as_mut_ptr();
            let parsed = parse_plain(&PlainChain { header, data, writable, status: &raw mut byte });
            let op = match (kind, writable) {
                (kind::IN, true) => Some(Op::Read),
                (kind::OUT, false) => Some(Op::Write),
                _ => None,
            };
            let expected = op.filter(|_| len_bytes % 512 == 0).map(|op| (op, 0x1_2345_6789));
            assert_eq!(parsed, expected, "type {kind}, {len_bytes} bytes, writable {writable}");
        }
    }
}

#[test]
fn data_of_four_gib_is_too_much_and_a_sector_less_is_not() {
    let mut status = 0;
    for (last, fits) in [(1 << 31, false), ((1 << 31) - 512, true), ((1 << 31) + 512, false)] {
        let mut header = header(kind::IN, 5);
        // Nothing of the data is touched.
        let data = |len_bytes| Segment { start: std::ptr::dangling_mut(), len_bytes };
        let parts = vec![
            Segment { start: header.as_mut_ptr(), len_bytes: 16 },
            data(1 << 31),
            data(last),
            Segment { start: &raw mut status, len_bytes: 1 },
        ];
        let request =
            parse(&mut DescriptorChain { parts, readable: 1, ..DescriptorChain::default() });
        let (read, refused) = (Action::Transfer(Op::Read, 5), Action::Refused(status::IOERR));
        assert_eq!(request.action, if fits { read } else { refused }, "{last}");
        assert_eq!(request.data_bytes, if fits { (1 << 31) + u64::from(last) } else { 0 });
    }
}

#[test]
fn a_serial_number_fills_as_many_pieces_as_it_takes_and_no_more() {
    let id: Vec<u8> = (1..=ID_BYTES as u8).collect();
    for lens in [vec![7, 30], vec![20], vec![1, 0, 18, 1, 5], vec![5], vec![0; 3], vec![25, 4]] {
        let mut into = [0u8; 64];
        let mut at = 0;
        let pieces: Vec<Segment> = lens
            .iter()
            .map(|len| {
                let start = into.as_mut_ptr().wrapping_add(at);
                at += len;
                Segment { start, len_bytes: *len as u32 }
            })
            .collect();
        let count = copy_in(&pieces, &id);
        let expected = at.min(ID_BYTES);
        assert_eq!(count as usize, expected, "{lens:?}");
        assert_eq!(into[..expected], id[..expected]);
        assert!(into[expected..].iter().all(|byte| *byte == 0), "{lens:?}");
    }
}

#[test]
fn outcomes_of_the_layer_have_their_status() {
    let statuses = [Status::Ok, Status::NotSupported, Status::IoError, Status::ReadOnly];
    assert_eq!(statuses.map(status_of), [0, 2, 1, 1]);
}

#[test]
fn ranges_have_their_flags_and_no_others() {
    let ask = |kind, nr: u32, flags: u32| {
        let range = [&77u64.to_le_bytes()[..], &nr.to_le_bytes(), &flags.to_le_bytes()].concat();
        let mut readable = [header(kind, 0), range].concat();
        parse(&mut chain(&mut readable, &mut [0], &[])).action
    };
    let range = |op, flags| Action::Range { op, flags, sector: 77, nr_sectors: 8 };
    assert_eq!(ask(kind::DISCARD, 8, 0), range(Op::Discard, OpFlags::NONE));
    assert_eq!(ask(kind::WRITE_ZEROES, 8, 0), range(Op::WriteZeroes, OpFlags::NOUNMAP));
    assert_eq!(ask(kind::WRITE_ZEROES, 8, 1), range(Op::WriteZeroes, OpFlags::NONE));
    assert_eq!(ask(kind::DISCARD, 8, 1), Action::Refused(status::UNSUPP));
    assert_eq!(ask(kind::WRITE_ZEROES, 8, 2), Action::Refused(status::UNSUPP));
    // All eight bytes of a sector count.
    let far = [&(5u64 << 32 | 7).to_le_bytes()[..], &8u32.to_le_bytes(), &[0; 4]].concat();
    let mut readable = [header(kind::DISCARD, 0), far].concat();
    let action = parse(&mut chain(&mut readable, &mut [0], &[])).action;
    let (op, flags, nr_sectors) = (Op::Discard, OpFlags::NONE, 8);
    assert_eq!(action, Action::Range { op, flags, sector: 5 << 32 | 7, nr_sectors });
    // A request with more ranges than the configuration space allows.
    let mut two = [header(kind::DISCARD, 0), vec![0; 32]].concat();
    let action = parse(&mut chain(&mut two, &mut [0], &[])).action;
    assert_eq!(action, Action::Refused(status::IOERR));
}

#[test]
fn what_cannot_be_a_request_is_refused_with_its_status() {
    let ask = |mut readable: Vec<u8>, room: usize| {
        let request = parse(&mut chain(&mut readable, &mut vec![0; room], &[]));
        (request.action, request.status.is_some())
    };
    assert_eq!(ask(header(99, 0), 1), (Action::Refused(status::UNSUPP), true));
    // Types that there are elsewhere, with data: to read, to write, both.
    for kind in [9, 10, 14, 16, 24, 99] {
        let refused = (Action::Refused(status::UNSUPP), true);
        assert_eq!(ask([header(kind, 0), vec![0; 16]].concat(), 1), refused);
        assert_eq!(ask(header(kind, 0), 513), refused);
        assert_eq!(ask([header(kind, 0), vec![0; 16]].concat(), 513), refused);
    }
    let strange = [kind::FLUSH, kind::GET_ID, kind::IN].map(|kind| [header(kind, 0), vec![0]]);
    for readable in strange {
        assert_eq!(ask(readable.concat(), 513), (Action::Refused(status::IOERR), true));
    }
    assert_eq!(ask(vec![0; 15], 513), (Action::Refused(status::IOERR), true));
    assert_eq!(ask(header(kind::IN, 0), 100), (Action::Refused(status::IOERR), true));
    assert_eq!(ask(header(kind::IN, 0), 1), (Action::Refused(status::IOERR), true));
    assert_eq!(ask(header(kind::OUT, 0), 1), (Action::Refused(status::IOERR), true));
    assert_eq!(ask(header(kind::FLUSH, 0), 1), (Action::Flush, true));
    assert_eq!(ask(header(kind::FLUSH, 0), 2), (Action::Refused(status::IOERR), true));
    assert_eq!(ask(header(kind::FLUSH, 0), 0), (Action::Refused(status::IOERR), false));
    assert_eq!(ask(header(kind::GET_ID, 0), 21), (Action::Id, true));
}

#[test]
fn the_configuration_space_says_what_the_volume_is_like() {
    let limits = QueueLimits {
        physical_block_size: 4096,
        io_min: 65_536,
        io_opt: 262_144,
        max_discard_sectors: 1 << 20,
        max_write_zeroes_sectors: 1 << 21,
        discard_granularity: 4096,
        features: Features { volatile_cache: true, ..Features::default() },
        ..QueueLimits::default()
    };
    let bytes = config(limits).bytes();
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
    assert_eq!((word(0), word(20)), (1000, 512));
    assert_eq!((word(8), word(12)), (1 << 20, 126));
    assert_eq!((bytes[24], u16::from_le_bytes([bytes[26], bytes[27]]), word(28)), (3, 128, 512));
    assert_eq!((bytes[config::WRITEBACK], bytes[34]), (1, 4));
    assert_eq!([word(36), word(40), word(44)], [1 << 20, 1, 8]);
    assert_eq!([word(48), word(52), bytes[56].into()], [1 << 21, 1, 1]);
    assert_eq!(config(limits).features() & feature::RO, 0);
    let read_only = Config { read_only: true, ..config(limits) }.features();
    assert_eq!(read_only & (feature::RO | feature::DISCARD), feature::RO);
}

#[test]
fn what_a_volume_cannot_do_is_neither_offered_nor_described() {
    let [discard, zero] = [feature::DISCARD, feature::WRITE_ZEROES];
    for (discards, zeroes) in [(0, 0), (1 << 20, 0), (0, 1 << 21), (1 << 20, 1 << 21)] {
        let limits = QueueLimits {
            max_discard_sectors: discards,
            max_write_zeroes_sectors: zeroes,
            discard_granularity: 4096,
            ..QueueLimits::default()
        };
        let expected = discard * u64::from(discards > 0) + zero * u64::from(zeroes > 0);
        assert_eq!(config(limits).features() & (discard | zero), expected);
        let bytes = config(limits).bytes();
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
        let (has, unmaps) = (u32::from(discards > 0), u32::from(discards.min(zeroes) > 0));
        assert_eq!([word(36), word(40), word(44)], [discards, has, 8 * has]);
        assert_eq!([word(48), word(52), word(56)], [zeroes, u32::from(zeroes > 0), unmaps]);
    }
}
