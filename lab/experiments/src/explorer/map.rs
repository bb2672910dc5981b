//! `Map`: where a sector of the volume lies, worked out sector by sector.
//!
//! The plain model of crates/block/src/volume.rs: no shifts, no parts, nothing shared with it.
//! Made by run.rs, asked by the oracle and by submitters.

use super::scenario::{LayoutSpec, Scenario};

/// A volume's layout.
#[derive(Debug, Clone)]
pub(super) struct Map {
    stripe: Option<u64>,
    /// Sectors used of each drive.
    used: Vec<u64>,
    /// Sectors of the volume when all drives have grown.
    pub(super) capacity: u64,
    /// Sectors that it has by now, as it was told last.
    pub(super) told: u64,
    /// Sectors of a block of the volume.
    pub(super) block: u64,
}

impl Map {
    pub(super) fn new(scenario: &Scenario) -> Map {
        let at_first = Map::of_sizes(scenario, |drive| scenario.sectors_at_first(drive));
        let whole = Map::of_sizes(scenario, |drive| scenario.drives[drive].sectors.into());
        Map { told: at_first.capacity, ..whole }
    }

    fn of_sizes(scenario: &Scenario, sectors: impl Fn(usize) -> u64) -> Map {
        let block = scenario.drives.iter().map(|d| u64::from(d.limits.block / 512));
        let block = block.max().unwrap_or(1);
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
        Map { stripe, capacity, told: capacity, used, block }
    }

    /// Drive, and sector on it.
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
