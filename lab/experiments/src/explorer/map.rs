//! `SectorMap`: translates a sector of the volume to a drive and a sector on it, by plain
//! arithmetic.
//!
//! The reference model for crates/block/src/volume.rs: no shifts, no splitting, and no shared code.
//! run.rs creates the map; the oracle and submitters use it.

use super::scenario::{LayoutSpec, Scenario};

#[derive(Debug, Clone)]
pub(super) struct SectorMap {
    stripe: Option<u64>,
    /// For each drive, the number of sectors that belong to the volume.
    used: Vec<u64>,
    /// Size of the volume in sectors when all drives have grown.
    pub(super) capacity: u64,
    /// Current size of the volume in sectors, as the block layer last announced.
    pub(super) told: u64,
    pub(super) block: u64,
}

impl SectorMap {
    pub(super) fn new(scenario: &Scenario) -> SectorMap {
        let at_first = SectorMap::of_sizes(scenario, |drive| scenario.sectors_at_first(drive));
        let whole = SectorMap::of_sizes(scenario, |drive| scenario.drives[drive].sectors.into());
        SectorMap { told: at_first.capacity, ..whole }
    }

    fn of_sizes(scenario: &Scenario, sectors: impl Fn(usize) -> u64) -> SectorMap {
        let block = u64::from(scenario.block_sectors());
        let mut used: Vec<u64> = Vec::new();
        for (number, drive) in scenario.drives.iter().enumerate() {
            let own = u64::from(drive.limits.block / 512);
            let whole = sectors(number) / own * own;
            used.push(whole / block * block);
        }
        let stripe = match scenario.layout {
            LayoutSpec::Linear => None,
            LayoutSpec::Stripe(chunk) => Some(u64::from(chunk)),
        };
        if let Some(chunk) = stripe {
            let least = used.iter().copied().min().unwrap_or(0) / chunk * chunk;
            used.iter_mut().for_each(|sectors| *sectors = least);
        }
        let capacity = used.iter().sum();
        SectorMap { stripe, capacity, told: capacity, used, block }
    }

    pub(super) fn place(&self, sector: u64) -> (usize, u64) {
        match self.stripe {
            Some(chunk) => {
                let (number, within) = (sector / chunk, sector % chunk);
                let width = self.used.len() as u64;
                ((number % width) as usize, number / width * chunk + within)
            }
            None => {
                let (mut drive, mut left) = (0, sector);
                while left >= self.used[drive] {
                    left -= self.used[drive];
                    drive += 1;
                }
                (drive, left)
            }
        }
    }
}
