//! `Scenario`: what a seed means.
//!
//! The cache's settings, the drives below, and what clients do. Derived from the seed alone, so
//! that a seed is all that a failure needs to be run again.

use millrace_cache::{CacheConfig, CacheMode};
use millrace_random::SplitMix64 as Random;

/// Makes the numbers of blocks and layouts others than the rest of a seed: old seeds that found
/// something have drives of 512 bytes in stripes still.
const BLOCKS_SALT: u64 = 0xb_10c9;

/// What happens in a run.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The seed.
    pub seed: u64,
    /// Settings of the cache.
    pub cache: CacheConfig,
    /// The volume below.
    pub shape: VolumeShape,
    /// Drives' queues belong to threads.
    pub owned: bool,
    /// Drives take FUA.
    pub fua: bool,
    /// Longest time that a drive takes for a request.
    pub delay_ns: u64,
    /// Requests of a thousand that fail.
    pub fails_per_mille: u64,
    /// A drive that fails all for a while.
    pub dead: Option<Dead>,
    /// A drive of which one write fails, the first from some time on, with FUA if drives take
    /// that; nothing else fails.
    pub once: Option<Dead>,
    /// A drive that answers nothing for a while.
    pub stuck: Option<Dead>,
    /// When and how far the drives grow, and the volume with them.
    pub growth: Option<Growth>,
    /// What clients do.
    pub load: Load,
}

/// The drives of the volume below, and how they lie in it.
#[derive(Debug, Clone, Copy)]
pub struct VolumeShape {
    /// How many drives there are.
    pub drives: usize,
    /// Sectors of each drive.
    pub drive_sectors: u64,
    /// Drives lie one behind the other; else in a stripe.
    pub linear: bool,
    /// Sectors of a chunk of that stripe.
    pub chunk_sectors: u32,
    /// Sectors of a logical block of the volume, and of its first drive.
    pub block_sectors: u64,
    /// Sectors of a logical block of the other drives.
    pub other_block_sectors: u64,
}

impl VolumeShape {
    /// The drive of a sector of the volume.
    fn drive_of(&self, sector: u64) -> usize {
        let drives = self.drives as u64;
        let drive = match self.linear {
            true => (sector / self.drive_sectors).min(drives - 1),
            false => sector / u64::from(self.chunk_sectors) % drives,
        };
        drive as usize
    }

    /// Sectors of the volume at first.
    pub(super) fn volume_sectors(&self) -> u64 {
        self.drive_sectors * self.drives as u64
    }

    /// The sector of the volume that lies on a sector of a drive.
    pub(super) fn place_of(&self, drive: usize, sector: u64) -> usize {
        let (chunk, drives) = (u64::from(self.chunk_sectors), self.drives as u64);
        let place = match self.linear {
            true => drive as u64 * self.drive_sectors + sector,
            false => (sector / chunk * drives + drive as u64) * chunk + sector % chunk,
        };
        place as usize
    }
}

/// All drives have more sectors from some time on.
#[derive(Debug, Clone, Copy)]
pub struct Growth {
    /// When.
    pub at_ns: u64,
    /// Sectors of each drive from then on.
    pub drive_sectors: u64,
}

/// A drive that fails, or leaves unanswered, all that it is asked for a while.
#[derive(Debug, Clone, Copy)]
pub struct Dead {
    /// Its number.
    pub drive: usize,
    /// When that begins, and when it is over.
    pub from_ns: u64,
    /// See `from_ns`.
    pub until_ns: u64,
}

/// What clients do.
#[derive(Debug, Clone)]
pub struct Load {
    /// Threads that submit.
    pub clients: usize,
    /// Sectors in a row that one client writes.
    pub grain: u64,
    /// I/Os of each client.
    pub ios: u32,
    /// I/Os that a client has in flight.
    pub depth: u32,
    /// Of a thousand I/Os: writes, flushes, discards and zeroes; the others are reads.
    pub mix: [u64; 3],
    /// Writes of a thousand with FUA.
    pub fua_per_mille: u64,
    /// Longest I/O in sectors.
    pub sectors_max: u64,
    /// Sectors that most I/Os are about.
    pub hot: u64,
}

impl Dead {
    /// Whether that is so of a drive at a time.
    pub(super) fn is_now(&self, drive: usize, now_ns: u64) -> bool {
        self.drive == drive && (self.from_ns..self.until_ns).contains(&now_ns)
    }
}

impl Scenario {
    /// What a seed means.
    #[must_use]
    pub fn of_seed(seed: u64) -> Scenario {
        let mut random = Random::new(seed ^ 0xcac4e);
        let mut pick = |of: &[u64]| of[random.below(of.len() as u64) as usize];
        let drives = pick(&[1, 1, 2, 3]) as usize;
        let size_bytes = 1 << 20;
        let dirty = pick(&[64 << 10, 256 << 10, 512 << 10, 1 << 20]);
        let drive_sectors = pick(&[2048, 4096, 8192]) / drives as u64 / 128 * 128;
        let (drive_sectors, growth) = growth_of(seed, drives, drive_sectors);
        let volume = drive_sectors * drives as u64;
        let (dead, stuck) = (dead_of(seed, drives), stuck_of(seed, drives));
        let fails = pick(&[0, 0, 0, 5, 50]);
        let scenario = Scenario {
            seed,
            cache: CacheConfig {
                size_bytes,
                // Beside what a drive that dies strands others need memory; with one that is stuck
                // they are soon at the limit.
                dirty_max_bytes: Some(dirty.min(match (dead, stuck) {
                    (_, Some(_)) => 64 << 10,
                    (Some(_), None) => 256 << 10,
                    (None, None) => u64::MAX,
                })),
                dirty_age_ns: pick(&[1_000_000, 20_000_000, 1_000_000_000]),
                read_ahead_bytes: pick(&[0, 32 << 10, 256 << 10]),
                mode: match pick(&[0, 0, 0, 1]) {
                    0 => CacheMode::WriteBack,
                    _ => CacheMode::WriteThrough,
                },
                ..CacheConfig::default()
            },
            shape: VolumeShape {
                drives,
                drive_sectors,
                linear: false,
                chunk_sectors: pick(&[8, 32, 128]) as u32,
                block_sectors: 1,
                other_block_sectors: 1,
            },
            owned: pick(&[0, 1]) == 1,
            fua: (seed / 2).is_multiple_of(2),
            delay_ns: pick(&[0, 20_000, 200_000, 2_000_000]),
            fails_per_mille: if dead.is_some() { 0 } else { fails },
            dead,
            once: None,
            stuck,
            growth,
            load: Load {
                clients: pick(&[1, 2, 3, 4]) as usize,
                grain: pick(&[1, 4, 8, 64]),
                ios: pick(&[60, 200, 400]) as u32,
                depth: pick(&[1, 4, 16]) as u32,
                mix: match pick(&[0, 1, 2, 3]) {
                    0 => [500, 20, 30],
                    1 => [800, 5, 5],
                    2 => [300, 100, 100],
                    _ => [950, 0, 0],
                },
                fua_per_mille: pick(&[0, 0, 50, 300]),
                sectors_max: pick(&[8, 64, 300]),
                hot: pick(&[64, 512, volume]).min(volume),
            },
        };
        with_blocks(match stuck {
            Some(stuck) if seed.is_multiple_of(2) => scenario.beside_a_stuck_drive(stuck),
            None if dead.is_none() && drives > 1 && seed % 8 < 3 => one_failure(scenario),
            _ => scenario,
        })
    }

    /// As it is, but so that nothing explains it if writers to other drives are held for long.
    fn beside_a_stuck_drive(mut self, mut stuck: Dead) -> Scenario {
        stuck.until_ns = stuck.from_ns + 5_000_000_000;
        (self.dead, self.stuck, self.fails_per_mille) = (None, Some(stuck), 0);
        (self.cache.mode, self.cache.read_ahead_bytes) = (CacheMode::WriteBack, 0);
        let load = &mut self.load;
        (load.mix, load.sectors_max) = ([950, 0, 0], 8);
        (load.depth, load.ios) = (load.depth.max(4), 400);
        load.hot = self.shape.drive_sectors * self.shape.drives as u64;
        self
    }

    /// Whether something fails.
    pub(super) fn has_failures(&self) -> bool {
        self.fails_per_mille != 0 || self.dead.is_some() || self.once.is_some()
    }

    /// Whether sectors lie on drives that never fail, and are never stuck.
    pub(super) fn is_live(&self, sector: u64, nr: u64) -> bool {
        if self.dead.is_none() && self.fails_per_mille != 0 || self.once.is_some() {
            return false;
        }
        let is_fine = |sector| {
            let drive = self.shape.drive_of(sector);
            let is_it = |dead: Option<Dead>| dead.is_some_and(|dead| dead.drive == drive);
            !is_it(self.dead) && !is_it(self.stuck)
        };
        (sector..sector + nr).all(is_fine)
    }

    /// Longest that a write to drives that live may take beside one that is dead or stuck for
    /// longer. A drive is known to be stuck after one second or two, and what it was given by
    /// others meanwhile a second later. A discard waits for it, and writes for the discard; a drive
    /// that is dead besides may hold all of the little memory; with small chunks a write through
    /// goes over the drives of its neighbours, too.
    pub(super) fn held_ns_max(&self) -> u64 {
        let spans = self.cache.mode == CacheMode::WriteThrough
            && !self.shape.linear
            && self.shape.chunk_sectors < 64;
        let waits = self.load.mix[2] > 0 || self.dead.is_some() || spans;
        match self.stuck {
            None => 1_000_000_000,
            Some(_) if waits => u64::MAX,
            Some(_) => 4_000_000_000,
        }
    }

    /// Sectors of a drive in the end: one behind the other, only the last one grows.
    pub(super) fn drive_sectors_max(&self, drive: usize) -> u64 {
        let grows = !self.shape.linear || drive + 1 == self.shape.drives;
        self.growth
            .filter(|_| grows)
            .map_or(self.shape.drive_sectors, |growth| growth.drive_sectors)
    }

    /// Sectors of the volume in the end.
    pub(super) fn volume_sectors_max(&self) -> u64 {
        (0..self.shape.drives).map(|drive| self.drive_sectors_max(drive)).sum()
    }

    /// The client that writes a sector.
    pub(super) fn owner(&self, sector: u64) -> usize {
        ((sector / self.load.grain) % self.load.clients as u64) as usize
    }
}

/// A scenario with small chunks, so that writes go over several drives until a first one fails, and
/// with one failure, so that no other hides what comes of it.
fn one_failure(mut scenario: Scenario) -> Scenario {
    let mut random = Random::new(scenario.seed ^ 0x04ce);
    let drive = random.below(scenario.shape.drives as u64) as usize;
    let most_ns = [100_000, 1_000_000, 10_000_000][random.below(3) as usize];
    let from_ns = random.below(most_ns);
    scenario.once = Some(Dead { drive, from_ns, until_ns: u64::MAX });
    scenario.fails_per_mille = 0;
    scenario.shape.chunk_sectors = 8;
    let load = &mut scenario.load;
    load.fua_per_mille = load.fua_per_mille.max(300);
    load.sectors_max = load.sectors_max.max(64);
    scenario
}

/// As it is, but over drives of larger blocks in half of the scenarios, the first one only or all,
/// and with drives one behind the other in a quarter of them.
fn with_blocks(mut scenario: Scenario) -> Scenario {
    let mut random = Random::new(scenario.seed ^ BLOCKS_SALT);
    let block =
        [1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 16, 32, 64, 128, 128, 128][random.below(16) as usize];
    scenario.shape.linear = random.below(4) == 0;
    scenario.shape.other_block_sectors = if random.below(3) == 0 { 1 } else { block };
    scenario.shape.block_sectors = block;
    let whole = |sectors: u64| sectors / block * block;
    scenario.shape.drive_sectors = whole(scenario.shape.drive_sectors);
    if let Some(growth) = &mut scenario.growth {
        growth.drive_sectors = whole(growth.drive_sectors);
    }
    scenario.shape.chunk_sectors = scenario.shape.chunk_sectors.max(block as u32);
    let volume = scenario.shape.volume_sectors();
    let load = &mut scenario.load;
    load.grain = load.grain.next_multiple_of(block);
    if block > 1 {
        // Room for some blocks.
        load.sectors_max = load.sectors_max.max(4 * block);
        load.hot = load.hot.max(4 * block).min(volume);
    }
    scenario
}

/// Whether drives grow: in one scenario of three. Sectors of each at first, and how they grow: a
/// drive alone may begin and end inside a page.
fn growth_of(seed: u64, drives: usize, drive_sectors: u64) -> (u64, Option<Growth>) {
    let mut random = Random::new(seed ^ 0x9604);
    if random.below(3) != 0 {
        return (drive_sectors, None);
    }
    let at_ns = random.below(3_000_000);
    let mut more = 128 * (1 + random.below(8));
    let mut drive_sectors = drive_sectors;
    if drives == 1 {
        drive_sectors += random.below(16);
        more = 1 + random.below(more);
    }
    (drive_sectors, Some(Growth { at_ns, drive_sectors: drive_sectors + more }))
}

/// The drive that dies in a scenario: in one of four of those with several drives.
fn dead_of(seed: u64, drives: usize) -> Option<Dead> {
    let mut random = Random::new(seed ^ 0xdead);
    if drives == 1 || random.below(4) != 0 {
        return None;
    }
    let drive = random.below(drives as u64) as usize;
    let from_ns = random.below(3_000_000);
    let until_ns = from_ns + [1_000_000, 50_000_000, 3_000_000_000][random.below(3) as usize];
    Some(Dead { drive, from_ns, until_ns })
}

/// The drive that is stuck for seconds in a scenario: in one of eight of those with several drives.
fn stuck_of(seed: u64, drives: usize) -> Option<Dead> {
    let mut random = Random::new(seed ^ 0x57ac);
    if drives == 1 || random.below(8) != 0 {
        return None;
    }
    let drive = random.below(drives as u64) as usize;
    let from_ns = random.below(3_000_000);
    let until_ns = from_ns + [1_500_000_000, 5_000_000_000][random.below(2) as usize];
    Some(Dead { drive, from_ns, until_ns })
}
