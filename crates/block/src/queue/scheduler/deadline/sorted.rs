//! `Sorted`: chains that wait, in the order of their sectors and of their coming.
//!
//! Owned by a `Deadline`'s queue (deadline.rs), under that scheduler's lock. Chains that follow
//! each other on the drive merge at either end. Kernel counterpart: `sort_list` and `fifo_list` of
//! `struct dd_per_prio`.

use alloc::collections::BTreeMap;

use millrace_machine::Machine;

use crate::bio::Sector;
use crate::queue::scheduler::{Batch, Chain};

/// Place in the order of sectors: two chains may begin at one sector, the older one goes first.
pub(crate) type Place = (Sector, u64);

/// A chain that waits.
pub(crate) struct Waiting<M: Machine> {
    pub(crate) chain: Chain<M>,
    /// When its oldest part came.
    pub(crate) came_ns: u64,
    /// When that came to the queue.
    pub(crate) inserted_ns: u64,
}

/// Chains of one way at one hardware queue.
pub(crate) struct Sorted<M: Machine> {
    pub(crate) chains: BTreeMap<Place, Waiting<M>>,
    /// Places by age: number of arrival to sector.
    pub(crate) ages: BTreeMap<u64, Sector>,
    /// Where the last one that went out ended.
    head: Sector,
}

impl<M: Machine> Sorted<M> {
    pub(crate) fn new() -> Self {
        Sorted { chains: BTreeMap::new(), ages: BTreeMap::new(), head: 0 }
    }

    /// Merges a chain with a neighbour that waits; gives the chain back if there is none.
    pub(crate) fn merge(
        &mut self,
        chain: Chain<M>,
        batch: &mut Batch<'_, M>,
    ) -> Result<(), Chain<M>> {
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
        // It keeps its age, and begins earlier if the two are one.
        let merged = batch.merge(&mut found.chain, chain);
        let sector = found.chain.sector();
        self.ages.insert(place.1, sector);
        self.chains.insert((sector, place.1), found);
        merged
    }

    pub(crate) fn insert(&mut self, waiting: Waiting<M>, number: u64) {
        let sector = waiting.chain.sector();
        self.ages.insert(number, sector);
        self.chains.insert((sector, number), waiting);
    }

    /// The place of the oldest one.
    pub(crate) fn oldest(&self) -> Option<Place> {
        self.ages.first_key_value().map(|(number, sector)| (*sector, *number))
    }

    /// When the oldest one came.
    pub(crate) fn came_ns(&self) -> Option<u64> {
        let oldest = self.oldest().and_then(|place| self.chains.get(&place));
        oldest.map(|waiting| waiting.came_ns)
    }

    /// Whether the oldest one has waited as long as it may.
    pub(crate) fn has_expired(&self, now_ns: u64, expire_ns: u64) -> bool {
        self.came_ns().is_some_and(|came_ns| came_ns.saturating_add(expire_ns) <= now_ns)
    }

    /// The place of the next one behind the last that went out.
    pub(crate) fn onwards(&self) -> Option<Place> {
        self.chains.range((self.head, 0)..).next().map(|(place, _)| *place)
    }

    /// The place of the first one of all.
    pub(crate) fn lowest(&self) -> Option<Place> {
        self.chains.first_key_value().map(|(place, _)| *place)
    }

    pub(crate) fn take(&mut self, place: Place) -> Option<Waiting<M>> {
        let waiting = self.chains.remove(&place)?;
        self.ages.remove(&place.1);
        self.head = waiting.chain.end();
        Some(waiting)
    }
}
