//! Tests of limits: bounds of each field, rounding, and stacking, which takes the stricter limit.

use alloc::string::ToString;
use core::ptr::without_provenance_mut;

use proptest::prelude::*;

use super::*;

#[test]
fn defaults_are_valid() {
    assert_eq!(QueueLimits::default().validate(), Ok(QueueLimits::default()));
}

#[test]
fn merging_reaches_as_far_as_the_device_states_and_takes() {
    let silent = QueueLimits::default();
    let stated = QueueLimits { merge_sectors: 256, ..silent };
    let short = QueueLimits { max_sectors: 64, ..stated };
    assert_eq!([silent, stated, short].map(|limits| limits.merge_max()), [2048, 256, 64]);
}

/// Returns limits of a device with blocks of 4 KiB.
fn coarse() -> QueueLimits {
    QueueLimits { logical_block_size: 4096, ..QueueLimits::default() }
}

#[test]
fn nonsense_is_refused_by_name_and_sense_is_taken() {
    let fine = QueueLimits::default();
    let blocks = |bytes| QueueLimits { logical_block_size: bytes, ..fine };
    let physical = |bytes| QueueLimits { physical_block_size: bytes, ..fine };
    let optimal = |bytes| QueueLimits { io_opt: bytes, ..coarse() };
    let longest = |sectors| QueueLimits { max_sectors: sectors, ..coarse() };
    let segments = |count| QueueLimits { max_segments: count, ..fine };
    let segment = |bytes| QueueLimits { max_segment_size: bytes, ..coarse() };
    let boundary = |mask| QueueLimits { seg_boundary_mask: mask, ..fine };
    let alignment = |mask| QueueLimits { dma_alignment: mask, ..fine };
    let chunk = |sectors| QueueLimits { chunk_sectors: sectors, ..coarse() };
    for (wrong, text) in [
        (blocks(0), "logical_block_size = 0 "),
        (blocks(256), "logical_block_size = 256 "),
        (blocks(1000), "logical_block_size = 1000 "),
        (blocks(1 << 17), "logical_block_size = 131072 "),
        (physical(3000), "physical_block_size = 3000 "),
        (optimal(512), "io_opt = 512 "),
        (longest(0), "max_sectors = 0 "),
        (longest(7), "max_sectors = 0 "),
        (segments(0), "max_segments = 0 "),
        (segment(4095), "max_segment_size = 4095 "),
        (boundary(255), "seg_boundary_mask = 255 "),
        (boundary(1000), "seg_boundary_mask = 1000 "),
        (alignment(2), "dma_alignment = 2 "),
        (alignment((1 << 17) - 1), "dma_alignment = 131071 "),
        (alignment(u32::MAX), "dma_alignment = 4294967295 "),
        (chunk(12), "chunk_sectors = 12 "),
    ] {
        let error = wrong.validate().expect_err(text);
        assert_eq!(error.kind(), ErrorKind::InvalidSetting);
        assert!(error.to_string().contains(text), "{error} {text}");
    }
    for right in [
        blocks(512),
        blocks(65_536),
        physical(16_384),
        optimal(0),
        optimal(12_288),
        longest(8),
        segments(1),
        segment(4096),
        boundary(511),
        boundary(u64::MAX >> 1),
        alignment(1),
        alignment(65_535),
        chunk(0),
        chunk(16),
    ] {
        assert!(right.validate().is_ok(), "{right:?}");
    }
}

#[test]
fn what_must_be_whole_blocks_is_rounded_down_and_block_sizes_up() {
    let given = QueueLimits {
        physical_block_size: 512,
        io_min: 1024,
        max_sectors: 21,
        max_discard_sectors: 30,
        max_write_zeroes_sectors: 47,
        ..coarse()
    };
    let valid = QueueLimits {
        physical_block_size: 4096,
        io_min: 4096,
        max_sectors: 16,
        max_discard_sectors: 24,
        max_write_zeroes_sectors: 40,
        ..coarse()
    };
    assert_eq!(given.validate(), Ok(valid));
    assert_eq!((valid.logical_sectors(), QueueLimits::default().logical_sectors()), (8, 1));
    // Larger limits of the device itself stay, as long as lengths in bytes fit into 32 bits.
    let own = QueueLimits {
        physical_block_size: 8192,
        io_min: 65_536,
        max_sectors: u32::MAX,
        max_discard_sectors: u32::MAX,
        ..QueueLimits::default()
    };
    let expected = QueueLimits { max_sectors: (1 << 23) - 1, ..own };
    assert_eq!(own.validate(), Ok(expected));
}

#[test]
fn stacking_takes_the_stricter_of_each_either_way_round() {
    let limits = |n: u32, mask| QueueLimits {
        logical_block_size: 512 * n,
        physical_block_size: 1024 * n,
        io_min: 2048 * n,
        io_opt: 4096 * n,
        max_sectors: 100 / n,
        merge_sectors: 200 / n,
        max_segments: 128 / n as u16,
        max_segment_size: 65_536 / n,
        seg_boundary_mask: mask,
        dma_alignment: n,
        max_discard_sectors: 300 / n,
        discard_granularity: 512 * n,
        max_write_zeroes_sectors: 400 / n,
        chunk_sectors: 800 / n,
        features: Features::default(),
    };
    let (loose, strict) = (limits(1, u64::MAX), limits(2, 4095));
    assert_eq!((loose.stack(strict), strict.stack(loose)), (strict, strict));
    for (one, other, both) in [(0, 0, 0), (0, 64, 64), (64, 0, 64), (64, 128, 64), (128, 64, 64)] {
        let with = |chunk_sectors| QueueLimits { chunk_sectors, ..loose };
        assert_eq!(with(one).stack(with(other)), with(both));
    }
}

#[test]
fn a_stack_can_what_all_can_and_forbids_what_one_forbids() {
    for (one, other) in [(false, false), (false, true), (true, false), (true, true)] {
        let with = |some: bool, all: bool| QueueLimits {
            features: Features {
                volatile_cache: some,
                process_cache: some,
                fua: all,
                no_payload: all,
                read_only: some,
            },
            ..QueueLimits::default()
        };
        let both = with(one, one).stack(with(other, other));
        assert_eq!(both, with(one || other, one && other));
    }
}

#[test]
fn only_limits_without_a_rule_for_segments_take_any() {
    let any = QueueLimits::default();
    assert!(any.takes_any_segment());
    assert!(!QueueLimits { max_segment_size: u32::MAX - 1, ..any }.takes_any_segment());
    assert!(!QueueLimits { seg_boundary_mask: u64::MAX >> 1, ..any }.takes_any_segment());
}

proptest! {
    #[test]
    fn a_cut_piece_is_the_longest_start_that_keeps_the_rule(
        start in 0usize..1 << 20, len_bytes in 1u32..1 << 16, max_segment_size in 512u32..1 << 16,
        shift in prop_oneof![9u32..17, Just(64)],
    ) {
        let seg_boundary_mask = 1u64.checked_shl(shift).unwrap_or(0).wrapping_sub(1);
        let limits = QueueLimits { max_segment_size, seg_boundary_mask, ..QueueLimits::default() };
        let piece = Segment { start: without_provenance_mut(start), len_bytes };
        let cut = limits.segment_rule().cut(piece);
        prop_assert_eq!(cut.start, piece.start);
        let keeps = |len: u32| {
            let last = start as u64 + u64::from(len) - 1;
            let part = |at: u64| at & !seg_boundary_mask;
            len <= max_segment_size && part(start as u64) == part(last)
        };
        prop_assert!(cut.len_bytes > 0 && cut.len_bytes <= len_bytes && keeps(cut.len_bytes));
        prop_assert!(cut.len_bytes == len_bytes || !keeps(cut.len_bytes + 1));
        prop_assert_eq!(SegmentRule::NONE.cut(piece).len_bytes, len_bytes);
    }
}
