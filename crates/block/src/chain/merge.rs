//! Merging: two bios that are adjacent on the drive become one request.
//!
//! Merged bios form a bio chain. The first bio in sector order heads the chain, and stores the
//! number of sectors and segments of the whole chain. Only this file decides if two chains fit into
//! one request. The drive's limits (`QueueLimits::merge_max`) set the longest request that merging
//! may build.
//!
//! Plugs, the `sq` stack, sort.rs and the schedulers merge bios with these functions. A `Plug`
//! compares a new bio only with the drive's last bio, a `VolumePlug` with all plugged requests.
//! Kernel counterpart: block/blk-merge.c, `blk_attempt_bio_merge`.
#![allow(unsafe_code)]

use millrace_machine::Machine;

use crate::bio::limits::QueueLimits;
use crate::chain::slot::{BioRef, BioSlot};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MergeKind {
    Back,
    Front,
}

/// Returns true if two bio chains (bios merged into one future request) fit into one request.
/// `second` directly follows `first` on the drive.
#[inline]
fn fits<M: Machine>(first: &BioSlot<M>, second: &BioSlot<M>, limits: &QueueLimits) -> bool {
    let sectors = u64::from(first.chain_sectors) + u64::from(second.chain_sectors);
    let segments = u32::from(first.chain_segments) + u32::from(second.chain_segments);
    let chunk = u64::from(limits.chunk_sectors);
    if !first.op().has_data() || first.op() != second.op() {
        return false;
    }
    let crosses = chunk != 0 && first.dev_sector / chunk != (second.chain_end() - 1) / chunk;
    first.bio.flags == second.bio.flags
        && first.bio.account_key.group == second.bio.account_key.group
        && sectors <= u64::from(limits.merge_max())
        && segments <= u32::from(limits.max_segments)
        && !crosses
}

/// Returns true if two bio chains (bios merged into one future request) are adjacent on the drive.
/// Checked before the limits of a request (`fits`), because the limits take longer to check.
#[inline]
pub(crate) fn touch<M: Machine>(last: &BioSlot<M>, bio: &BioSlot<M>) -> bool {
    last.chain_end() == bio.dev_sector || bio.chain_end() == last.dev_sector
}

/// Merges `bio` with the bio chain `last` (bios merged into one future request). Returns `bio` if
/// the two are not adjacent or do not fit into one request.
pub(crate) fn try_merge<M: Machine>(
    last: &mut BioRef<M>,
    bio: BioRef<M>,
    limits: &QueueLimits,
) -> Result<MergeKind, BioRef<M>> {
    if last.chain_end() == bio.dev_sector && fits(last, &bio, limits) {
        join(last, bio);
        return Ok(MergeKind::Back);
    }
    if bio.chain_end() == last.dev_sector && fits(&bio, last, limits) {
        let old = core::mem::replace(last, bio);
        join(last, old);
        return Ok(MergeKind::Front);
    }
    Err(bio)
}

pub(crate) fn join<M: Machine>(first: &mut BioRef<M>, second: BioRef<M>) {
    first.chain_sectors += second.chain_sectors;
    first.chain_segments = first.chain_segments.saturating_add(second.chain_segments);
    let tail = second.tail;
    // SAFETY: `tail` is the last slot of the chain that `first` owns, possibly `first` itself.
    let old = unsafe { (*first.tail).chained.replace(second) };
    core::mem::forget(old);
    first.tail = tail;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bio::{Bio, Op, OpFlags};
    use crate::chain::bio_set::tests::bio_set;
    use core::mem::ManuallyDrop;
    use millrace_machine::Native;
    use proptest::prelude::*;

    /// A bio chain of one bio.
    #[derive(Debug, Clone, Copy)]
    struct Io {
        op: Op,
        sector: u64,
        nr: u32,
        segments: u16,
        durable: bool,
    }

    fn io() -> impl Strategy<Value = Io> {
        let op = prop_oneof![6 => Just(Op::Read), 2 => Just(Op::Write), 1 => Just(Op::Discard)];
        let durable = prop_oneof![5 => Just(false), 1 => Just(true)];
        (op, 0u64..32, 1u32..12, 1u16..6, durable).prop_map(
            |(op, sector, nr, segments, durable)| Io { op, sector, nr, segments, durable },
        )
    }

    fn fill(slot: &mut BioRef<Native>, io: Io, number: u64) {
        let flags = if io.durable { OpFlags::FUA } else { OpFlags::NONE };
        let mut bio = Bio::discard(0, io.nr).with_flags(flags).with_user_data(number);
        bio.op = io.op;
        slot.bio = ManuallyDrop::new(bio);
        slot.dev_sector = io.sector;
        (slot.chain_sectors, slot.chain_segments) = (io.nr, io.segments);
        slot.tail = slot.as_ptr();
    }

    /// The expected merge of two bios: its kind, the bios in sector order, its first sector and its
    /// length. `None` if the bios are not adjacent or the limits forbid the merge.
    fn joined(last: Io, bio: Io, limits: &QueueLimits) -> Option<(MergeKind, [u64; 2], u64, u32)> {
        let (kind, order, start) = if last.sector + u64::from(last.nr) == bio.sector {
            (MergeKind::Back, [0, 1], last.sector)
        } else if bio.sector + u64::from(bio.nr) == last.sector {
            (MergeKind::Front, [1, 0], bio.sector)
        } else {
            return None;
        };
        let nr = last.nr + bio.nr;
        let segments = last.segments + bio.segments;
        let chunk = match limits.chunk_sectors {
            0 => u64::MAX,
            sectors => sectors.into(),
        };
        let fits = last.op.has_data()
            && last.op == bio.op
            && last.durable == bio.durable
            && nr <= limits.max_sectors.min(limits.merge_sectors)
            && segments <= limits.max_segments
            && start / chunk == (start + u64::from(nr) - 1) / chunk;
        fits.then_some((kind, order, start, nr))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn neighbours_become_one_request_exactly_if_drive_takes_that(
            last in io(),
            mut bio in io(),
            place in 0..3,
            max_sectors in 4u32..20,
            merge_sectors in prop_oneof![Just(u32::MAX), 4u32..20],
            max_segments in 2u16..10,
            chunk_sectors in prop_oneof![Just(0u32), Just(8), Just(16)],
        ) {
            match place {
                0 => bio.sector = last.sector + u64::from(last.nr),
                1 => bio.sector = last.sector.saturating_sub(bio.nr.into()),
                _ => {}
            }
            let limits = QueueLimits {
                max_sectors, merge_sectors, max_segments, chunk_sectors, ..QueueLimits::default()
            };
            let bio_set = bio_set(2);
            let mut slots = bio_set.handles(0..2);
            let (mut one, mut two) = (slots.pop_front().expect("two"), slots.pop_front().expect("one"));
            fill(&mut one, last, 0);
            fill(&mut two, bio, 1);
            let near = last.sector + u64::from(last.nr) == bio.sector
                || bio.sector + u64::from(bio.nr) == last.sector;
            prop_assert_eq!(touch(&one, &two), near);
            let found = try_merge(&mut one, two, &limits);
            let expected = joined(last, bio, &limits);
            match (found, expected) {
                (Ok(kind), Some((as_kind, order, start, nr))) => {
                    prop_assert_eq!(kind, as_kind);
                    prop_assert_eq!((one.dev_sector, one.chain_sectors), (start, nr));
                    prop_assert_eq!(one.chain_segments, last.segments + bio.segments);
                    let second = one.chained.take().expect("the other one");
                    let bios = [one.bio.user_data(), second.bio.user_data()];
                    prop_assert_eq!(bios, order);
                    prop_assert_eq!(one.tail, second.as_ptr());
                    core::mem::forget(second);
                }
                (Err(back), None) => {
                    prop_assert_eq!(back.bio.user_data(), 1);
                    prop_assert!(one.chained.is_none() && back.chained.is_none());
                    core::mem::forget(back);
                }
                (found, expected) => prop_assert!(false, "{found:?} and not {expected:?}"),
            }
            core::mem::forget(one);
        }
    }
}
