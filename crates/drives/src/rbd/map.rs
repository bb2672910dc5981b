//! Finds the parts of an image that hold data, without waiting long for the answer.
//!
//! The answer comes from the image's object map (`fast-diff`), and the cluster may take any time.
//! The caller is an I/O thread with other work. So the control thread asks the cluster, and a range
//! that is not answered within a fifth of a second counts as data until the answer arrives. Only
//! whole objects of images without parent and striping are queried, because librbd before 1.17
//! answers other queries wrongly (Ceph issues 53784 and 53897).

use std::ops::Range;
use std::sync::Weak;
use std::sync::mpsc::TryRecvError;
use std::time::Duration;

use millrace_block::{Extent, Sector};
use millrace_machine::lock_unpoisoned;

use super::RbdState;
use super::control::{ControlThread, Data, order};
use crate::common::extents::{DATA, HOLE, SectorExtents, all_data};

const PATIENCE: Duration = Duration::from_millis(200);

/// Feature bit `RBD_FEATURE_FAST_DIFF`.
const FAST_DIFF: u64 = 1 << 4;
/// Flag bits `RBD_FLAG_OBJECT_MAP_INVALID` and `RBD_FLAG_FAST_DIFF_INVALID`.
const INVALID: u64 = 3;

impl ControlThread {
    pub(super) fn extents(&self, sector: Sector, nr_sectors: u64) -> Vec<Extent> {
        let range = sector << 9..(sector + nr_sectors) << 9;
        let data = if nr_sectors == 0 { None } else { self.data(range.clone()) };
        data.map_or_else(|| all_data(nr_sectors), |data| extents_of(&range, &data))
    }

    fn data(&self, range: Range<u64>) -> Data {
        let mut late = lock_unpoisoned(&self.late);
        if late.as_ref().is_some_and(|late| late.try_recv() == Err(TryRecvError::Empty)) {
            return None;
        }
        let query = |shared: &mut Weak<RbdState>| shared.upgrade()?.data(range);
        let answer = order(&self.orders, query);
        let data = answer.recv_timeout(PATIENCE);
        *late = if data.is_err() { Some(answer) } else { None };
        data.ok().flatten()
    }
}

impl RbdState {
    pub(super) fn data(&self, range: Range<u64>) -> Data {
        let (image, object) = (&self.image, self.facts.object_bytes);
        if self.limit_bytes() < u64::MAX {
            // The image has shrunk. Reads past its new end must fail, so no range may be skipped as
            // a hole.
            return None;
        }
        let is_plain = image.stripe_unit().ok()? == object && image.overlap().ok()? == 0;
        let is_mapped =
            image.features().ok()? & FAST_DIFF != 0 && image.flags().ok()? & INVALID == 0;
        if !is_plain || !is_mapped {
            return None;
        }
        let end = range.end.div_ceil(object).saturating_mul(object);
        let whole = range.start / object * object..end.min(image.size_bytes().ok()?);
        image.data(whole)
    }
}

fn extents_of(range: &Range<u64>, data: &[Range<u64>]) -> Vec<Extent> {
    let mut list = SectorExtents::new(range.start >> 9, (range.end - range.start) >> 9);
    for piece in data {
        // The image's last object may end inside a sector. The drive has whole sectors only.
        list.cover(piece.start >> 9, HOLE);
        list.cover(piece.end.div_ceil(512), DATA);
    }
    list.cover(range.end >> 9, HOLE);
    list.extents
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn data_and_holes_cover_the_range_in_turn() {
        let extents = extents_of(&(1024..8192), &[0..2048, 4096..4608, 8000..9000]);
        let found: Vec<_> = extents.iter().map(|one| (one.nr_sectors, one.zero)).collect();
        assert_eq!(found, [(2, false), (4, true), (1, false), (6, true), (1, false)]);
        assert!(extents.iter().all(|one| one.hole == one.zero));
    }

    #[test]
    fn a_range_without_data_is_one_hole() {
        assert_eq!(extents_of(&(0..512), &[]), [Extent { nr_sectors: 1, hole: true, zero: true }]);
    }

    proptest! {
        #[test]
        fn a_sector_is_a_hole_if_no_data_touch_it(
            cuts in prop::collection::btree_set(0u64..40_000, 0..12),
            start in 0u64..40, count in 1u64..40,
        ) {
            let cuts: Vec<u64> = cuts.into_iter().collect();
            let data: Vec<Range<u64>> = cuts.chunks_exact(2).map(|two| two[0]..two[1]).collect();
            let range = start << 9..(start + count) << 9;
            let found: Vec<bool> = extents_of(&range, &data)
                .iter()
                .flat_map(|one| vec![one.zero; one.nr_sectors as usize])
                .collect();
            let is_hole = |sector: u64| {
                let (from, to) = (sector << 9, (sector + 1) << 9);
                !data.iter().any(|piece| piece.start < to && piece.end > from)
            };
            let expected: Vec<bool> = (start..start + count).map(is_hole).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
