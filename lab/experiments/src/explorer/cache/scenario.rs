//! `CacheScenario`: the cache exploration that a seed stands for.
//!
//! Holds the cache's settings, the drives below it, and the clients' workload. Everything derives
//! from the seed, so the seed is all that is needed to repeat a failure.

use millrace_cache::{CacheConfig, CacheMode};
use millrace_random::SplitMix64 as Random;
use std::time::Duration;

/// Separates the random stream of block sizes and layouts from the seed's other streams: older
/// seeds that found bugs keep 512-byte blocks and stripes.
const BLOCKS_SALT: u64 = 0xb_10c9;

/// A cache exploration: settings, drives, faults and workload.
#[derive(Debug, Clone)]
pub struct CacheScenario {
    /// Seed that the scenario derives from.
    pub seed: u64,
    /// Cache settings.
    pub cache: CacheConfig,
    /// Geometry of the volume below the cache.
    pub shape: VolumeShape,
    /// If true, each hardware queue belongs to one thread.
    pub owned: bool,
    /// If true, the drives support FUA.
    pub fua: bool,
    /// Longest service time of a request, in nanoseconds.
    pub delay_ns: u64,
    /// Requests that fail, per thousand.
    pub fails_per_mille: u64,
    /// Drive that fails every request for a while.
    pub dead: Option<FaultPeriod>,
    /// Drive that fails exactly one write: the first after `from_ns`, with FUA if drives support
    /// FUA. Nothing else fails in such a scenario.
    pub once: Option<FaultPeriod>,
    /// Drive that answers nothing for a while.
    pub stuck: Option<FaultPeriod>,
    /// Time and amount by which the drives and the volume grow.
    pub growth: Option<DriveGrowth>,
    /// Workload of the clients.
    pub load: ClientWorkload,
}

/// Number, sizes and layout of the drives below the cache.
#[derive(Debug, Clone, Copy)]
pub struct VolumeShape {
    /// Number of drives.
    pub drives: usize,
    /// Size of each drive, in sectors.
    pub drive_sectors: u64,
    /// True for a linear layout, false for a stripe.
    pub linear: bool,
    /// Chunk size of the stripe, in sectors.
    pub chunk_sectors: u32,
    /// Logical block size of the volume and of its first drive, in sectors.
    pub block_sectors: u64,
    /// Logical block size of the other drives, in sectors.
    pub other_block_sectors: u64,
}

impl VolumeShape {
    /// Returns the index of the drive that holds a sector of the volume.
    fn drive_of(&self, sector: u64) -> usize {
        let drives = self.drives as u64;
        let drive = match self.linear {
            true => (sector / self.drive_sectors).min(drives - 1),
            false => sector / u64::from(self.chunk_sectors) % drives,
        };
        drive as usize
    }

    /// Returns the volume's initial size in sectors.
    pub(super) fn volume_sectors(&self) -> u64 {
        self.drive_sectors * self.drives as u64
    }

    /// Converts a drive's sector to the volume's sector that is stored there.
    pub(super) fn place_of(&self, drive: usize, sector: u64) -> usize {
        let (chunk, drives) = (u64::from(self.chunk_sectors), self.drives as u64);
        let place = match self.linear {
            true => drive as u64 * self.drive_sectors + sector,
            false => (sector / chunk * drives + drive as u64) * chunk + sector % chunk,
        };
        place as usize
    }
}

/// Growth of all drives at one moment.
#[derive(Debug, Clone, Copy)]
pub struct DriveGrowth {
    /// Time of the growth, in nanoseconds since the start.
    pub at_ns: u64,
    /// New size of each drive, in sectors.
    pub drive_sectors: u64,
}

/// A period in which one drive fails, or leaves unanswered, every request.
#[derive(Debug, Clone, Copy)]
pub struct FaultPeriod {
    /// Index of the drive.
    pub drive: usize,
    /// Start of the period, in nanoseconds.
    pub from_ns: u64,
    /// End of the period, in nanoseconds; exclusive.
    pub until_ns: u64,
}

/// Workload of the clients.
#[derive(Debug, Clone)]
pub struct ClientWorkload {
    /// Number of submitting threads.
    pub clients: usize,
    /// Number of consecutive sectors owned by one client.
    pub grain: u64,
    /// I/Os that each client submits.
    pub ios: u32,
    /// I/Os that a client keeps in flight.
    pub depth: u32,
    /// Writes, flushes and clears (discard or write-zeroes) per thousand I/Os; the rest are reads.
    pub mix: [u64; 3],
    /// FUA writes per thousand writes.
    pub fua_per_mille: u64,
    /// Longest I/O, in sectors.
    pub sectors_max: u64,
    /// Size of the hot range at the start of the volume, in sectors.
    pub hot: u64,
}

impl FaultPeriod {
    /// Returns true if the drive is affected at this time.
    pub(super) fn is_now(&self, drive: usize, now_ns: u64) -> bool {
        self.drive == drive && (self.from_ns..self.until_ns).contains(&now_ns)
    }
}

impl CacheScenario {
    /// Derives the scenario of a seed.
    #[must_use]
    pub fn of_seed(seed: u64) -> CacheScenario {
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
        let scenario = CacheScenario {
            seed,
            cache: CacheConfig {
                size_bytes,
                // Pages stranded by a dead drive take memory that the other drives need; with a
                // drive that hangs, other writers would soon be at the dirty limit.
                dirty_max_bytes: Some(dirty.min(match (dead, stuck) {
                    (_, Some(_)) => 64 << 10,
                    (Some(_), None) => 256 << 10,
                    (None, None) => u64::MAX,
                })),
                dirty_age: Duration::from_millis(pick(&[1, 20, 1_000])),
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
            load: ClientWorkload {
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

    /// Narrows the scenario so that nothing but a defect can hold up writers to other drives for
    /// long.
    fn beside_a_stuck_drive(mut self, mut stuck: FaultPeriod) -> CacheScenario {
        stuck.until_ns = stuck.from_ns + 5_000_000_000;
        (self.dead, self.stuck, self.fails_per_mille) = (None, Some(stuck), 0);
        (self.cache.mode, self.cache.read_ahead_bytes) = (CacheMode::WriteBack, 0);
        let load = &mut self.load;
        (load.mix, load.sectors_max) = ([950, 0, 0], 8);
        (load.depth, load.ios) = (load.depth.max(4), 400);
        load.hot = self.shape.drive_sectors * self.shape.drives as u64;
        self
    }

    /// Returns true if any request may fail.
    pub(super) fn has_failures(&self) -> bool {
        self.fails_per_mille != 0 || self.dead.is_some() || self.once.is_some()
    }

    /// Returns true if the sectors lie only on drives that never fail and never hang.
    pub(super) fn is_live(&self, sector: u64, nr: u64) -> bool {
        if self.dead.is_none() && self.fails_per_mille != 0 || self.once.is_some() {
            return false;
        }
        let is_fine = |sector| {
            let drive = self.shape.drive_of(sector);
            let is_it = |dead: Option<FaultPeriod>| dead.is_some_and(|dead| dead.drive == drive);
            !is_it(self.dead) && !is_it(self.stuck)
        };
        (sector..sector + nr).all(is_fine)
    }

    /// Longest time, in nanoseconds, that a write to healthy drives may take beside a dead or
    /// hanging drive. The cache needs one to two seconds to notice that a drive hangs, and one more
    /// for the pages that others gave it meanwhile. There is no bound where healthy writers may
    /// have to wait for the drive: a discard waits for it and writes wait for the discard, a
    /// second, dead drive may hold all of the small memory, and with small chunks a write-through
    /// also covers neighbouring pages on the other drives.
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

    /// Final size of a drive in sectors. In a linear layout only the last drive grows.
    pub(super) fn drive_sectors_max(&self, drive: usize) -> u64 {
        let grows = !self.shape.linear || drive + 1 == self.shape.drives;
        self.growth
            .filter(|_| grows)
            .map_or(self.shape.drive_sectors, |growth| growth.drive_sectors)
    }

    /// Final size of the volume in sectors.
    pub(super) fn volume_sectors_max(&self) -> u64 {
        (0..self.shape.drives).map(|drive| self.drive_sectors_max(drive)).sum()
    }

    /// Returns the index of the client that owns a sector.
    pub(super) fn owner(&self, sector: u64) -> usize {
        ((sector / self.load.grain) % self.load.clients as u64) as usize
    }
}

/// Restricts a scenario to one failing write, so that no other failure hides its effects. Chunks
/// are small, so that writes span several drives until the first failure.
fn one_failure(mut scenario: CacheScenario) -> CacheScenario {
    let mut random = Random::new(scenario.seed ^ 0x04ce);
    let drive = random.below(scenario.shape.drives as u64) as usize;
    let most_ns = [100_000, 1_000_000, 10_000_000][random.below(3) as usize];
    let from_ns = random.below(most_ns);
    scenario.once = Some(FaultPeriod { drive, from_ns, until_ns: u64::MAX });
    scenario.fails_per_mille = 0;
    scenario.shape.chunk_sectors = 8;
    let load = &mut scenario.load;
    load.fua_per_mille = load.fua_per_mille.max(300);
    load.sectors_max = load.sectors_max.max(64);
    scenario
}

/// Draws block sizes and layout: half of the scenarios get drives with larger blocks (the first
/// drive only, or all), and a quarter get a linear layout.
fn with_blocks(mut scenario: CacheScenario) -> CacheScenario {
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
        // Leave room for several blocks.
        load.sectors_max = load.sectors_max.max(4 * block);
        load.hot = load.hot.max(4 * block).min(volume);
    }
    scenario
}

/// Draws whether the drives grow (one scenario in three). Returns each drive's initial size in
/// sectors and the growth. A single drive may begin and end in the middle of a page.
fn growth_of(seed: u64, drives: usize, drive_sectors: u64) -> (u64, Option<DriveGrowth>) {
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
    (drive_sectors, Some(DriveGrowth { at_ns, drive_sectors: drive_sectors + more }))
}

/// Draws a drive that dies, in a quarter of the scenarios with several drives.
fn dead_of(seed: u64, drives: usize) -> Option<FaultPeriod> {
    let mut random = Random::new(seed ^ 0xdead);
    if drives == 1 || random.below(4) != 0 {
        return None;
    }
    let drive = random.below(drives as u64) as usize;
    let from_ns = random.below(3_000_000);
    let until_ns = from_ns + [1_000_000, 50_000_000, 3_000_000_000][random.below(3) as usize];
    Some(FaultPeriod { drive, from_ns, until_ns })
}

/// Draws a drive that hangs for seconds, in an eighth of the scenarios with several drives.
fn stuck_of(seed: u64, drives: usize) -> Option<FaultPeriod> {
    let mut random = Random::new(seed ^ 0x57ac);
    if drives == 1 || random.below(8) != 0 {
        return None;
    }
    let drive = random.below(drives as u64) as usize;
    let from_ns = random.below(3_000_000);
    let until_ns = from_ns + [1_500_000_000, 5_000_000_000][random.below(2) as usize];
    Some(FaultPeriod { drive, from_ns, until_ns })
}
