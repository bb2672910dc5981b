//! Sorts the bios that a worker collected from all submitters, and merges adjacent ones.
//!
//! A stable merge sort over the links of a list, without allocation: n log n comparisons, or n if
//! the list is already sorted. Then each bio chain (bios merged into one future request) is merged
//! with the next one if the two are adjacent on the drive and fit into one request, even if
//! different threads submitted them. handover.rs calls this code as it serves the worker's hardware
//! queue. Source: Kumar et al., ATC 2017, block layer, *sort* and *process*. Kernel counterpart:
//! `list_sort`.

use millrace_machine::{Machine, Stage};

use crate::bio::limits::QueueLimits;
use crate::chain::merge::{MergeKind, touch, try_merge};
use crate::chain::slot::{BioList, BioSlot};

/// Sorts bio chains (bios merged into one future request) by their first sector.
pub(crate) fn sort<M: Machine>(list: &mut BioList<M>) {
    if list.len() < 2 || is_sorted(list) {
        return M::work(Stage::Search, list.len());
    }
    // Sorted lists that are not merged with each other yet: `bins[i]` has 2^i bio chains or none.
    let mut bins: [BioList<M>; 32] = [const { BioList::new() }; 32];
    while let Some(chain) = list.pop_front() {
        let mut run = BioList::new();
        run.push_back(chain);
        let mut at = 0;
        while !bins[at].is_empty() {
            run = zip(bins[at].take(), run);
            at += 1;
        }
        bins[at] = run;
    }
    for mut bin in bins {
        let later = list.take();
        *list = if later.is_empty() { bin.take() } else { zip(bin.take(), later) };
    }
}

fn is_sorted<M: Machine>(list: &BioList<M>) -> bool {
    let (mut last, mut sorted) = (0, true);
    list.for_each(|chain| {
        sorted &= last <= chain.dev_sector;
        last = chain.dev_sector;
    });
    sorted
}

/// Merges two sorted lists of bio chains. If two first sectors are equal, the chain from the list
/// `first` goes first.
fn zip<M: Machine>(mut first: BioList<M>, mut second: BioList<M>) -> BioList<M> {
    let (mut merged, mut looks) = (BioList::new(), 0);
    while let (Some(a), Some(b)) = (first.first(), second.first()) {
        let from = if a.dev_sector <= b.dev_sector { &mut first } else { &mut second };
        let chain = from.pop_front().expect("looked at a moment ago");
        merged.push_back(chain);
        looks += 1;
    }
    M::work(Stage::Search, looks);
    merged.append(&mut first);
    merged.append(&mut second);
    merged
}

/// Appends `list`, a sorted list of bio chains (bios merged into one future request), to `to`.
/// Chains of `list` that are adjacent and fit into one request are merged. Calls `merged` with the
/// kind of each merge and the merged chain.
pub(crate) fn merge_into<M: Machine>(
    to: &mut BioList<M>,
    list: &mut BioList<M>,
    limits: &QueueLimits,
    mut merged: impl FnMut(MergeKind, &BioSlot<M>),
) {
    let Some(mut last) = list.pop_front() else { return };
    while let Some(next) = list.pop_front() {
        if !touch(&last, &next) {
            to.push_back(core::mem::replace(&mut last, next));
            continue;
        }
        match try_merge(&mut last, next, limits) {
            Ok(kind) => merged(kind, &last),
            Err(next) => to.push_back(core::mem::replace(&mut last, next)),
        }
    }
    to.push_back(last);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bio::Bio;
    use crate::bio::buffer::Buffer;
    use crate::chain::bio_set::BioSet;
    use crate::chain::bio_set::tests::bio_set;
    use crate::chain::slot::BioRef;
    use alloc::vec::Vec;
    use core::mem::ManuallyDrop;
    use millrace_machine::Native;
    use proptest::prelude::*;

    /// Returns bio chains of one read each, with these sectors and lengths.
    fn chains(bio_set: &BioSet<Native>, ios: &[(u64, u32)]) -> BioList<Native> {
        let mut free = bio_set.handles(0..ios.len());
        let mut list = BioList::new();
        for (number, (sector, nr)) in (0..).zip(ios) {
            let mut slot: BioRef<Native> = free.pop_front().expect("one for each");
            // Only the bio chain's length matters, not the bio's.
            slot.bio = ManuallyDrop::new(Bio::read(0, Buffer::new(512)).with_user_data(number));
            (slot.dev_sector, slot.chain_sectors, slot.chain_segments) = (*sector, *nr, 1);
            slot.tail = slot.as_ptr();
            list.push_back(slot);
        }
        list
    }

    /// Takes a list apart. Returns sector, length and bios of each bio chain.
    fn taken(mut list: BioList<Native>) -> Vec<(u64, u32, Vec<u64>)> {
        let mut all = Vec::new();
        while let Some(mut chain) = list.pop_front() {
            let (sector, nr) = (chain.dev_sector, chain.chain_sectors);
            let mut bios = Vec::new();
            loop {
                bios.push(chain.bio.user_data());
                let next = chain.chained.take();
                drop(chain.take_bio());
                core::mem::forget(chain);
                match next {
                    Some(bio) => chain = bio,
                    None => break,
                }
            }
            all.push((sector, nr, bios));
        }
        all
    }

    /// The plain model: sorts by sector, then merges adjacent bio chains as long as they stay
    /// within the limit.
    fn expected(ios: &[(u64, u32)], max_sectors: u32) -> Vec<(u64, u32, Vec<u64>)> {
        let mut sorted: Vec<(u64, u32, u64)> =
            (0..).zip(ios).map(|(number, (sector, nr))| (*sector, *nr, number)).collect();
        sorted.sort_by_key(|io| io.0);
        let mut all: Vec<(u64, u32, Vec<u64>)> = Vec::new();
        for (sector, nr, number) in sorted {
            match all.last_mut() {
                Some(last)
                    if last.0 + u64::from(last.1) == sector && last.1 + nr <= max_sectors =>
                {
                    last.1 += nr;
                    last.2.push(number);
                }
                _ => all.push((sector, nr, alloc::vec![number])),
            }
        }
        all
    }

    proptest! {
        #[test]
        fn sorted_and_merged_as_by_the_plain_model(
            ios in prop_oneof![
                proptest::collection::vec((0u64..64, 1u32..4), 0..5),
                proptest::collection::vec((0u64..64, 1u32..4), 0..200),
            ],
            max_sectors in 4u32..32,
            merge_sectors in prop_oneof![Just(u32::MAX), 0u32..40],
        ) {
            let bio_set = bio_set(ios.len());
            let limits = QueueLimits { max_sectors, merge_sectors, ..QueueLimits::default() };
            let (mut list, mut out, mut merges) = (chains(&bio_set, &ios), BioList::new(), 0);
            sort(&mut list);
            merge_into(&mut out, &mut list, &limits, |_, _| merges += 1);
            let chains = out.len() as usize;
            let found = taken(out);
            prop_assert_eq!(chains + merges, ios.len());
            prop_assert_eq!(found, expected(&ios, merge_sectors.min(max_sectors)));
        }
    }
}
