//! Maps the range of a trace's I/O to a target of another size: to whole blocks within the target,
//! or not at all.
//!
//! These pure functions have the arithmetic of `--fit` and of alignment.

use millrace_drives::Words;

use super::lane::Lane;
use crate::load::workload::text_by_words;

/// Treatment of I/Os that lie past the target's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// Scale all addresses by the target's size divided by the trace's extent.
    Scale,
    /// Take an I/O's address modulo the target's size.
    Wrap,
    /// Leave out an I/O that lies past the target's end, and count it as skipped.
    Skip,
}

impl Words for Fit {
    const WORDS: &'static [(Fit, &'static str)] =
        &[(Fit::Scale, "scale"), (Fit::Wrap, "wrap"), (Fit::Skip, "skip")];
}

text_by_words!(Fit);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FittedRange {
    At {
        offset_bytes: u64,
        len_bytes: u64,
        /// True if the I/O was enlarged to whole blocks of the target.
        aligned: bool,
        moved: bool,
    },
    /// The I/O lies past the target's end, and the user has chosen no `Fit`.
    Outside,
    Skipped,
    /// The I/O is left out, because it is longer than the whole target.
    TooLong,
}

/// Maps the byte range of a trace's I/O, at least 1 byte, to a range on the volume or server
/// `lane`. `extent_bytes` is the size of the trace's address range, for `Fit::Scale`.
pub(crate) fn place(
    lane: &Lane,
    (fit, extent_bytes): (Option<Fit>, u64),
    (offset_bytes, len_bytes): (u64, u64),
) -> FittedRange {
    let Lane { size_bytes, block_bytes: block, .. } = *lane;
    let mut start = offset_bytes;
    let scales = fit == Some(Fit::Scale) && extent_bytes > size_bytes;
    if scales {
        let scaled = u128::from(start) * u128::from(size_bytes) / u128::from(extent_bytes);
        let scaled = u64::try_from(scaled).unwrap_or(u64::MAX);
        // Keep the offset inside the block, so that an aligned I/O stays aligned.
        start = (scaled - scaled % block).saturating_add(start % block);
    }
    let wraps = fit == Some(Fit::Wrap) && start >= size_bytes && size_bytes > 0;
    if wraps {
        start %= size_bytes;
    }
    let first = start - start % block;
    let Some(end) =
        start.checked_add(len_bytes).and_then(|end| end.checked_next_multiple_of(block))
    else {
        return outside(fit);
    };
    let len = end - first;
    let aligned = len != len_bytes || first != start;
    let at = |offset_bytes, moved| FittedRange::At { offset_bytes, len_bytes: len, aligned, moved };
    match (end <= size_bytes, fit) {
        (true, _) => at(first, scales || wraps),
        (false, Some(Fit::Scale | Fit::Wrap)) if len > size_bytes => FittedRange::TooLong,
        (false, Some(Fit::Scale | Fit::Wrap)) => at(size_bytes - len, true),
        (false, _) => outside(fit),
    }
}

fn outside(fit: Option<Fit>) -> FittedRange {
    match fit {
        None => FittedRange::Outside,
        Some(Fit::Skip) => FittedRange::Skipped,
        Some(_) => FittedRange::TooLong,
    }
}

#[cfg(test)]
mod tests {
    use super::super::lane::PieceLimits;
    use super::*;
    use crate::load::overwrite::DiskContents;
    use proptest::prelude::*;

    fn lane(size_bytes: u64, block_bytes: u64) -> Lane {
        Lane {
            name: "it".into(),
            size_bytes,
            block_bytes,
            takes: PieceLimits {
                data_bytes_max: 1 << 20,
                discard_bytes_max: 0,
                zeroes_bytes_max: 0,
                flush: true,
                fua: true,
            },
            is_read_only: false,
            contents: DiskContents::Empty,
        }
    }

    fn at(offset_bytes: u64, len_bytes: u64, aligned: bool, moved: bool) -> FittedRange {
        FittedRange::At { offset_bytes, len_bytes, aligned, moved }
    }

    #[test]
    fn whole_blocks_inside_stay_where_they_are() {
        let lane = lane(1 << 20, 4096);
        assert_eq!(place(&lane, (None, 0), (8192, 4096)), at(8192, 4096, false, false));
        assert_eq!(place(&lane, (None, 0), (512, 512)), at(0, 4096, true, false));
        assert_eq!(place(&lane, (None, 0), (4095, 2)), at(0, 8192, true, false));
    }

    #[test]
    fn what_lies_behind_the_end_goes_where_fit_says() {
        let lane = lane(1 << 20, 4096);
        let behind = ((3 << 20) + 8192, 4096);
        assert_eq!(place(&lane, (None, 0), behind), FittedRange::Outside);
        assert_eq!(place(&lane, (Some(Fit::Skip), 0), behind), FittedRange::Skipped);
        assert_eq!(place(&lane, (Some(Fit::Wrap), 0), behind), at(8192, 4096, false, true));
        let scaled = place(&lane, (Some(Fit::Scale), 4 << 20), (2 << 20, 4096));
        assert_eq!(scaled, at(512 << 10, 4096, false, true));
        let last = place(&lane, (Some(Fit::Wrap), 0), (u64::MAX, 1));
        assert_eq!(last, at((1 << 20) - 4096, 4096, true, true));
        let third = place(&lane, (Some(Fit::Scale), 3 << 20), (4096, 1 << 20));
        assert_eq!(third, at(0, 1 << 20, false, true));
        let across = ((1 << 20) - 4096, 8192);
        assert_eq!(
            place(&lane, (Some(Fit::Wrap), 0), across),
            at((1 << 20) - 8192, 8192, false, true)
        );
        assert_eq!(place(&lane, (Some(Fit::Wrap), 0), (0, 2 << 20)), FittedRange::TooLong);
    }

    proptest! {
        #[test]
        fn no_place_is_outside_or_loses_bytes_whatever_a_trace_says(
            offset: u64, len in 1..u64::MAX, blocks in 1..1_000u64, shift in 9..17u32,
            fit in prop::sample::select(
                vec![None, Some(Fit::Scale), Some(Fit::Wrap), Some(Fit::Skip)],
            ),
            extent: u64, near in 0..3u32,
        ) {
            let lane = lane(blocks << shift, 1 << shift);
            let near = |value: u64| if near == 0 { value } else { value % (blocks << (shift + 1)) };
            let (offset, len) = (near(offset), near(len).max(1));
            if let FittedRange::At { offset_bytes, len_bytes, .. } =
                place(&lane, (fit, extent), (offset, len))
            {
                prop_assert!(len_bytes >= len);
                prop_assert!(offset_bytes + len_bytes <= lane.size_bytes);
                prop_assert!(offset_bytes.is_multiple_of(lane.block_bytes));
                prop_assert!(len_bytes.is_multiple_of(lane.block_bytes));
            }
        }
    }
}
