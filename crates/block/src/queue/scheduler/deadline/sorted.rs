//! `SortedChains`: waiting bio chains (each becomes one request), indexed by sector and by age.
//!
//! The scheduler `Deadline` (deadline.rs) has two for each priority and hardware queue, under the
//! lock that all queues of the drive share. Chains that are adjacent on the drive merge at either
//! end. Kernel counterpart: `sort_list` and `fifo_list` of `struct dd_per_prio`.

use alloc::collections::BTreeMap;

use millrace_machine::Machine;

use crate::bio::Sector;
use crate::queue::scheduler::{BioChain, ChainBatch};

/// Sort key of a bio chain: its sector, then its arrival number, so that the older goes first.
pub(crate) type SortKey = (Sector, u64);

pub(crate) struct WaitingChain<M: Machine> {
    pub(crate) chain: BioChain<M>,
    /// Time in nanoseconds at which the limits of the bio chain's group let the chain pass. If
    /// chains were merged, the time of the oldest one.
    pub(crate) came_ns: u64,
    /// Time in nanoseconds at which the bio chain was inserted. If chains were merged, the time of
    /// the oldest one.
    pub(crate) inserted_ns: u64,
}

pub(crate) struct SortedChains<M: Machine> {
    pub(crate) chains: BTreeMap<SortKey, WaitingChain<M>>,
    /// Maps the arrival number of each bio chain to the chain's sector. Oldest first.
    pub(crate) ages: BTreeMap<u64, Sector>,
    /// Sector after the last sector of the bio chain that was dispatched last.
    head: Sector,
}

impl<M: Machine> SortedChains<M> {
    pub(crate) fn new() -> Self {
        SortedChains { chains: BTreeMap::new(), ages: BTreeMap::new(), head: 0 }
    }

    /// Merges `chain` with an adjacent bio chain that waits here, or returns `chain` unmerged.
    pub(crate) fn merge(
        &mut self,
        chain: BioChain<M>,
        batch: &mut ChainBatch<'_, M>,
    ) -> Result<(), BioChain<M>> {
        let before = self.chains.range_mut(..(chain.sector(), 0)).next_back();
        let chain = match before {
            Some((_, found)) if found.chain.end() == chain.sector() => {
                match batch.merge(&mut found.chain, chain) {
                    Ok(()) => return Ok(()),
                    Err(chain) => chain,
                }
            }
            _ => chain,
        };
        let end = chain.end();
        let Some((&place, _)) = self.chains.range((end, 0)..=(end, u64::MAX)).next() else {
            return Err(chain);
        };
        let Some(mut found) = self.chains.remove(&place) else { return Err(chain) };
        // A merge in front lowers the first sector of the waiting bio chain, and so changes its
        // sort key. Its arrival number stays, so the merged chain is as old as before.
        let merged = batch.merge(&mut found.chain, chain);
        let sector = found.chain.sector();
        self.ages.insert(place.1, sector);
        self.chains.insert((sector, place.1), found);
        merged
    }

    pub(crate) fn insert(&mut self, waiting: WaitingChain<M>, number: u64) {
        let sector = waiting.chain.sector();
        self.ages.insert(number, sector);
        self.chains.insert((sector, number), waiting);
    }

    pub(crate) fn oldest(&self) -> Option<SortKey> {
        self.ages.first_key_value().map(|(number, sector)| (*sector, *number))
    }

    pub(crate) fn came_ns(&self) -> Option<u64> {
        let oldest = self.oldest().and_then(|place| self.chains.get(&place));
        oldest.map(|waiting| waiting.came_ns)
    }

    pub(crate) fn has_expired(&self, now_ns: u64, expire_ns: u64) -> bool {
        self.came_ns().is_some_and(|came_ns| came_ns.saturating_add(expire_ns) <= now_ns)
    }

    /// Returns the key of the first bio chain at or after the end of the last dispatched chain.
    pub(crate) fn onwards(&self) -> Option<SortKey> {
        self.chains.range((self.head, 0)..).next().map(|(place, _)| *place)
    }

    pub(crate) fn lowest(&self) -> Option<SortKey> {
        self.chains.first_key_value().map(|(place, _)| *place)
    }

    pub(crate) fn take(&mut self, place: SortKey) -> Option<WaitingChain<M>> {
        let waiting = self.chains.remove(&place)?;
        self.ages.remove(&place.1);
        self.head = waiting.chain.end();
        Some(waiting)
    }
}
