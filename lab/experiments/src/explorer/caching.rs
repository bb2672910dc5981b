//! The page cache in scenarios: its settings, faults and workloads that strain it, and the checks
//! that differ with a cache.
//!
//! A cache acknowledges writes before they reach a drive. So a later bio may report the failure of
//! an earlier bio's write, and a bio may wait for memory that dirty data of other bios occupies.
//! generator.rs, scenario.rs, submitter.rs and the oracle call this file.

use super::cache_spec::CacheSpec;
use super::random::Random;
use super::scenario::{
    ChannelSpec, Disturbance, DisturbanceKind, FaultSpec, LayoutSpec, LimitSpec, Scenario,
    SpreadSpec, StackSpec,
};
use super::serving::ServingSpec;
use super::time::NS_PER_US;

impl Scenario {
    /// Derives a scenario with a page cache from a seed.
    pub fn cached_of_seed(seed: u64) -> Scenario {
        let mut scenario = Scenario::of_seed(seed);
        if scenario.cache.is_none() {
            scenario.be_cached(&mut Random::new(seed, 9));
        }
        scenario
    }

    pub(super) fn be_cached(&mut self, random: &mut Random) {
        (self.fair, self.layer.each, self.layer.stack) = (false, false, StackSpec::Mq);
        self.channels.truncate(4);
        self.disturbances.retain(|d| match d.what {
            DisturbanceKind::Drop(channel) => (channel as usize) < self.channels.len(),
            _ => true,
        });
        if self.has_owned() {
            // Give each I/O thread a hardware queue of its own. Otherwise a thread would share the
            // queue of another thread, which may not have opened the queue yet when the cache opens
            // its channels.
            self.layer.hardware = SpreadSpec::Core;
            self.drives.iter_mut().for_each(|drive| drive.queues = 64);
        }
        self.cache = Some(CacheSpec {
            size_kib: 1024,
            dirty_kib: random.pick(&[64, 256, 512, 1024]),
            dirty_age_us: random.pick(&[1_000, 20_000, 1_000_000]),
            read_ahead_kib: random.pick(&[0, 32, 256]),
            through: random.per_mille(250),
            cpu: random.within(0, self.machine.cpus() - 1),
        });
        size_drives(self, random);
        let block = self.block_sectors();
        for channel in &mut self.channels {
            channel.strain_cache(random, block);
        }
        strain_drives(self, random);
        let is_stalled = self.stall_ns() > 0;
        let is_dead = self.drives.iter().any(|drive| drive.faults.dead_us.is_some());
        if let Some(cache) = &mut self.cache {
            // Limit the dirty data to a part of the memory: dirty pages of a dead or hanging drive
            // stay in memory, and writes to the other drives need memory, too.
            let most = if is_stalled { 64 } else { 256 };
            cache.dirty_kib = cache.dirty_kib.min(if is_stalled || is_dead { most } else { 1024 });
        }
    }

    /// Returns true if, through the cache, an I/O may wait for a drive that the I/O does not touch.
    pub(super) fn cache_waits(&self) -> bool {
        let clears = |c: &ChannelSpec| c.mix[3] + c.mix[4] > 0;
        self.cache.is_some_and(|cache| cache.through || self.channels.iter().any(clears))
    }

    /// Returns the time, in nanoseconds since the start, at which the last dead or stalled drive
    /// works again.
    pub(super) fn recovered_ns(&self) -> u64 {
        let back_us = |faults: &FaultSpec| {
            let dead_us = faults.dead_us.map_or(0, |us| us + faults.dead_for_us);
            dead_us.max(faults.stall_us.map_or(0, |[at_us, for_us]| at_us + for_us))
        };
        let latest_us = self.drives.iter().map(|d| back_us(&d.faults)).max().unwrap_or(0);
        u64::from(latest_us) * NS_PER_US
    }

    /// Returns true if a correct cache may still have dirty pages at the end of the run.
    pub(super) fn may_stay_dirty(&self) -> bool {
        let drops = |d: &Disturbance| {
            matches!(d.what, DisturbanceKind::Drop(_) | DisturbanceKind::Shutdown)
        };
        let fails = |f: &FaultSpec| f.errors > 0 || f.bad.is_some();
        self.disturbances.iter().any(drops)
            || self.drives.iter().any(|drive| fails(&drive.faults))
            // A write-through cache keeps the data of failed writes as dirty pages.
            || self.cache.is_some_and(|cache| cache.through)
                && self.drives.iter().any(|drive| drive.faults.fails())
    }
}

fn size_drives(scenario: &mut Scenario, random: &mut Random) {
    let block = random.pick(&[0, 0, 0, 0, 0, 0, 0, 2, 4, 8, 16, 32, 64, 128, 128, 128]);
    let like_first = random.per_mille(667);
    let sectors = random.pick(&[2048, 4096, 8192]) / scenario.drives.len() as u32 / 128 * 128;
    let ragged = random.within(0, 15);
    let alone = scenario.drives.len() == 1;
    for (number, drive) in scenario.drives.iter_mut().enumerate() {
        if block > 0 && (number == 0 || like_first) {
            drive.limits.take_block(block);
        }
        drive.sectors = if alone { sectors + ragged } else { sectors };
    }
    if let LayoutSpec::Stripe(chunk) = &mut scenario.layout {
        *chunk = (*chunk).max(block);
    }
}

/// Removes faults that a page cache does not tolerate, such as stuck requests. In some scenarios,
/// replaces all faults by a single one: a hanging drive, or one failed write.
fn strain_drives(scenario: &mut Scenario, random: &mut Random) {
    let mut dead = 0;
    for drive in &mut scenario.drives {
        let faults = &mut drive.faults;
        (faults.stuck, faults.stuck_us) = (0, 0);
        dead += u32::from(faults.dead_us.is_some());
        if dead > 1 {
            faults.dead_us = None;
        }
        if faults.dead_us.is_some() {
            faults.dead_for_us = random.pick(&[1_000, 50_000, 8_000_000]);
        }
    }
    if scenario.layer.timeout_us > 0 {
        scenario.layer.timeout_us = 30_000_000;
    }
    let drives = scenario.drives.len() as u64;
    match random.below(8) {
        0 | 1 if drives > 1 && !scenario.plugs_requests() && !scenario.layer.shared_tags => {
            scenario.disturbances.retain(|d| !matches!(d.what, DisturbanceKind::Switch(_)));
            write_beside_a_stall(scenario, random);
        }
        2 | 3 => {
            scenario.drives.iter_mut().for_each(|drive| drive.faults = FaultSpec::default());
            let at_us = random.pick(&[100, 1_000, 10_000]);
            let drive = &mut scenario.drives[random.below(drives) as usize];
            drive.faults.once_us = Some(random.within(0, at_us));
            scenario.channels.iter_mut().for_each(|c| c.fua = c.fua.max(300));
        }
        _ => {}
    }
}

fn write_beside_a_stall(scenario: &mut Scenario, random: &mut Random) {
    let plain = ServingSpec::default();
    if let Some(cache) = &mut scenario.cache {
        (cache.through, cache.read_ahead_kib) = (false, 0);
    }
    // Use the default limits of waiting requests. With a low random limit, I/O that waits for the
    // hanging drive would make the volume reject I/O to the other drives.
    (scenario.serving.plug, scenario.serving.pressure) = (plain.plug, plain.pressure);
    let block = scenario.block_sectors();
    for channel in &mut scenario.channels {
        (channel.mix, channel.ios) = ([1, 19, 0, 0, 0], 400);
        (channel.depth, channel.away) = (channel.depth.max(4), 1_000);
        (channel.fua, channel.preflush) = (0, 0);
        channel.blocks = (8 / block).max(1);
    }
    scenario.stall_one(random);
}

impl LimitSpec {
    /// Sets the logical block size, in sectors, and makes the drive's other limits fit.
    fn take_block(&mut self, sectors: u32) {
        let whole = |limit: u32| limit.next_multiple_of(sectors);
        self.block = sectors * 512;
        (self.max_sectors, self.chunk_sectors) =
            (whole(self.max_sectors), whole(self.chunk_sectors));
        (self.discard_sectors, self.zeroes_sectors) =
            (whole(self.discard_sectors), whole(self.zeroes_sectors));
        if self.block > 4096 {
            (self.max_segments, self.segment_bytes, self.page_boundary) = (128, 0, false);
        }
    }
}

impl ChannelSpec {
    fn strain_cache(&mut self, random: &mut Random, block: u32) {
        self.ios = random.pick(&[60, 120, 240]);
        self.depth = random.pick(&[1, 4, 16]);
        self.batch = self.batch.min(self.depth);
        self.blocks = (random.pick(&[8, 64, 300]) / block).max(4);
        self.away = random.pick(&[0, 100, 500, 1_000]);
        self.think_ns = random.pick(&[0, 3_000, 100_000]);
        self.drain_us = 5_000_000;
        if random.per_mille(300) {
            self.mix = [1, 19, 0, 0, 0];
        }
    }
}
