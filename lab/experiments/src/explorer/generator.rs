//! Generation of a scenario from a seed: the range and the frequency of every setting.
//!
//! Worker processes and tests call this file. Most scenarios are small and have one or two faults,
//! because such runs are fast and that is where bugs are found. Every setting of the block layer
//! comes up within some hundred seeds. Settings are drawn one by one, so a bug that needs five of
//! them together comes up once in a hundred thousand seeds; profiles.rs draws such combinations as
//! a whole. Invariant: the scenario is a pure function of the seed, and is valid.

use super::random::Random;
use super::scenario::{
    ChannelSpec, Disturbance, DisturbanceKind, DriveSpec, FaultSpec, LayerSpec, LayoutSpec,
    LimitSpec, MachineSpec, Scenario, SpreadSpec, StackSpec,
};
use super::scheduler_spec::SchedulerSpec;
use super::serving::{ModeSpec, ServingSpec};

impl Scenario {
    /// Derives a scenario from a seed.
    pub fn of_seed(seed: u64) -> Scenario {
        let random = &mut Random::new(seed, 1);
        let machine = machine(random);
        let faulty = random.per_mille(500);
        let mut drives = drives(random, if faulty { faults } else { no_faults });
        let layout = layout(random, &drives);
        let mut layer = layer(random, &drives);
        let mut channels = channels(random, &machine);
        let shares = layer.shared_tags || drives.iter().any(|drive| drive.drive_tags);
        if shares {
            // Let no request be slow or stuck. A request that timed out keeps its tag until a
            // thread polls its queue, and other queues that share the tags would wait for the tag.
            let anybodys = drives.iter_mut().filter(|drive| !drive.owned);
            anybodys.for_each(|drive| {
                let faults = &mut drive.faults;
                (faults.stuck, faults.stuck_us, faults.slow, faults.slow_us) = (0, 0, 0, 0);
            });
            if drives.iter().all(|drive| drive.faults.stuck == 0) {
                layer.timeout_us = 30_000_000;
            }
        }
        if shares || channels.len() > 1 {
            // The requests of a dropped channel keep their tags until another thread polls their
            // queue. So each channel completes its I/O before the channel is dropped.
            channels.iter_mut().for_each(|channel| channel.drain_us = 5_000_000);
        }
        let mut scenario = Scenario {
            seed,
            machine,
            layer,
            layout,
            drives,
            serving: ServingSpec::default(),
            cache: None,
            groups: Vec::new(),
            fair: false,
            channels,
            disturbances: Vec::new(),
        };
        if random.per_mille(450) {
            for _ in 0..random.within(1, 3) {
                let what = disturbance(random, scenario.drives.len(), scenario.channels.len());
                scenario.disturb(random, &[20, 100, 500, 2_000], what);
            }
        }
        one_freeze_per_drive(&mut scenario.disturbances);
        if scenario.drives.iter().any(|drive| drive.faults.stuck > 0 && !drive.owned) {
            // Remove the disturbances that freeze a drive. A freeze waits until no request is in
            // the drive, but a request that timed out stays there until a thread polls its queue.
            // So the freeze might never end.
            scenario.disturbances.retain(|d| !matches!(d.what, DisturbanceKind::Freeze(..)));
        }
        scenario.be_served(&mut Random::new(seed, 2));
        scenario.grow_one(&mut Random::new(seed, 3));
        scenario.follow_theme(&mut Random::new(seed, 4));
        scenario.be_scheduled(&mut Random::new(seed, 5));
        scenario.be_grouped(&mut Random::new(seed, 6));
        scenario.be_fair(&mut Random::new(seed, 7));
        scenario.be_immediate(&mut Random::new(seed, 8));
        let random = &mut Random::new(seed, 9);
        if random.per_mille(30) {
            scenario.be_cached(random);
        }
        scenario
    }

    fn be_served(&mut self, random: &mut Random) {
        let (drives, cpus) = (self.drives.len(), self.machine.cpus());
        self.serving = ServingSpec::of_seed(random, drives, cpus);
        if self.serving.is_inline() {
            return;
        }
        for worker in 0..self.serving.workers.len() as u32 {
            if random.per_mille(300) {
                let what = DisturbanceKind::Leave(worker, random.pick(&[0, 0, 1, 50, 500]));
                self.disturb(random, &[20, 100, 500], what);
            }
        }
        let stuck = self.drives.iter().any(|drive| drive.faults.stuck > 0 && !drive.owned);
        if !stuck && random.per_mille(300) {
            // Remove the freezes: a mode switch freezes the drives itself, and freezes do not nest.
            self.disturbances.retain(|d| !matches!(d.what, DisturbanceKind::Freeze(..)));
            for _ in 0..random.within(1, 3) {
                let modes = [ModeSpec::Inline, ModeSpec::PerDrive, ModeSpec::PerVolume];
                let what = DisturbanceKind::Switch(random.pick(&modes));
                self.disturb(random, &[20, 100, 500, 2_000], what);
            }
        } else if drives > 1 && !self.stalls_all() && random.per_mille(150) {
            self.stall_one(random);
        }
    }

    fn grow_one(&mut self, random: &mut Random) {
        if !random.per_mille(100) {
            return;
        }
        let drives = self.drives.len() as u32;
        let drive = match self.layout {
            LayoutSpec::Linear => drives - 1,
            LayoutSpec::Stripe(_) => random.within(0, drives - 1),
        };
        let what = DisturbanceKind::Grow(drive, random.pick(&[0, 1, 4, 7]));
        self.disturb(random, &[20, 100, 500, 2_000], what);
    }

    fn be_scheduled(&mut self, random: &mut Random) {
        if self.layer.stack != StackSpec::Mq || !random.per_mille(250) {
            return;
        }
        for _ in 0..random.within(1, 3) {
            let drive = random.below(self.drives.len() as u64) as u32;
            let what = DisturbanceKind::Schedule(drive, SchedulerSpec::draw(random));
            self.disturb(random, &[0, 0, 20, 100, 500], what);
        }
    }

    /// Decides at random if the drives complete requests immediately. If so, also decides if
    /// several threads may dispatch from a queue at the same time.
    fn be_immediate(&mut self, random: &mut Random) {
        if self.fair || self.has_owned() || !random.per_mille(150) {
            return;
        }
        self.layer.immediate = true;
        for drive in &mut self.drives {
            let FaultSpec { errors, bad, dead_us, .. } = drive.faults;
            drive.faults = FaultSpec { errors, bad, dead_us, ..FaultSpec::default() };
        }
        let enough = self.drives.iter().all(|drive| u32::from(drive.queues) >= self.machine.cpus());
        let alone = self.layer.shared_tags && self.drives.iter().any(|drive| drive.drive_tags);
        let apart = self.layer.stack != StackSpec::Sq && self.serving.is_inline();
        let apart = apart && enough && !alone;
        self.layer.each = apart && !self.is_scheduled() && random.per_mille(800);
    }
}

fn machine(random: &mut Random) -> MachineSpec {
    let sockets = random.within(1, 4);
    MachineSpec {
        sockets,
        cores: random.within(1, 16 / sockets),
        cache_percent: random.within(20, 300),
        work_percent: random.within(20, 400),
        thread_percent: random.pick(&[10, 50, 100, 200]),
        jitter_percent: random.pick(&[10, 50, 90, 100]),
    }
}

fn drives(random: &mut Random, faults: fn(&mut Random) -> FaultSpec) -> Vec<DriveSpec> {
    let count = random.pick(&[1, 1, 1, 2, 2, 3, 4]);
    let owned = random.pick(&[0, 0, 500, 1000]);
    let like = random.per_mille(600).then(|| limits(random));
    (0..count)
        .map(|_| DriveSpec {
            sectors: random.within(16, 256) * 8,
            owned: random.per_mille(owned),
            queues: random.pick(&[1, 2, 4, 64]),
            depth: random.pick(&[1, 2, 3, 4, 8, 16, 64, 256]),
            drive_tags: random.per_mille(400),
            limits: like.unwrap_or_else(|| limits(random)),
            latency_ns: latency(random),
            faults: faults(random),
        })
        .collect()
}

fn latency(random: &mut Random) -> [u32; 2] {
    let least = random.pick(&[0, 0, 500, 2_000, 10_000, 50_000]);
    [least, least + random.pick(&[0, 1_000, 10_000, 100_000])]
}

fn limits(random: &mut Random) -> LimitSpec {
    let block = random.pick(&[512, 512, 512, 1024, 4096]);
    let sectors = block / 512;
    let lengths = [0, sectors, 8 * sectors, 24 * sectors, 1 << 20];
    LimitSpec {
        block,
        max_sectors: sectors * random.pick(&[1, 2, 3, 8, 32, 256]),
        max_segments: random.pick(&[2, 3, 4, 16, 128]),
        segment_bytes: random.pick(&[0, 0, 0, 4096, 8192]),
        page_boundary: random.per_mille(150),
        chunk_sectors: random.pick(&[0, 0, 0, sectors, 8, 24, 64]).next_multiple_of(sectors),
        discard_sectors: random.pick(&lengths),
        zeroes_sectors: random.pick(&lengths),
        cache: random.per_mille(600),
        fua: random.per_mille(400),
    }
}

fn no_faults(_: &mut Random) -> FaultSpec {
    FaultSpec::default()
}

fn faults(random: &mut Random) -> FaultSpec {
    let mut faults = FaultSpec::default();
    for _ in 0..random.within(0, 2) {
        match random.below(6) {
            0 => faults.errors = random.pick(&[5, 20, 100, 300]),
            1 => {
                let start = random.within(0, 64) * 8;
                faults.bad = Some([start, start + random.within(1, 64)]);
            }
            2 => {
                faults.slow = random.pick(&[5, 20, 100]);
                faults.slow_us = random.pick(&[100, 500, 3_000]);
            }
            3 => faults.busy = random.pick(&[5, 50, 300]),
            4 => {
                faults.stuck = random.pick(&[5, 20, 50]);
                faults.stuck_us = random.pick(&[500, 5_000, 20_000, 60_000]);
            }
            _ => faults.dead_us = Some(random.within(1, 2_000)),
        }
    }
    faults
}

fn layout(random: &mut Random, drives: &[DriveSpec]) -> LayoutSpec {
    if drives.len() == 1 || random.per_mille(350) {
        return LayoutSpec::Linear;
    }
    let block = drives.iter().map(|d| d.limits.block / 512).max().unwrap_or(8).max(8);
    LayoutSpec::Stripe(random.pick(&[8, 8, 16, 32, 64, 128]).max(block))
}

fn layer(random: &mut Random, drives: &[DriveSpec]) -> LayerSpec {
    let spreads = [SpreadSpec::Core, SpreadSpec::Core, SpreadSpec::Node, SpreadSpec::One];
    let stuck = drives.iter().any(|drive| drive.faults.stuck > 0);
    LayerSpec {
        stack: random.pick(&[StackSpec::Mq, StackSpec::Mq, StackSpec::Sq, StackSpec::Raw]),
        software: random.pick(&spreads),
        hardware: random.pick(&spreads),
        timeout_us: match stuck {
            true => random.pick(&[2_000, 5_000, 10_000]),
            false => random.pick(&[0, 30_000_000]),
        },
        stamp_each: random.per_mille(150),
        traced: random.per_mille(150),
        shared_tags: drives.len() > 1 && random.per_mille(200),
        immediate: false,
        each: false,
    }
}

fn channels(random: &mut Random, machine: &MachineSpec) -> Vec<ChannelSpec> {
    let count = random.pick(&[1, 1, 2, 2, 3, 4, 6, 8]);
    let most = random.pick(&[10, 30, 60, 120]) / count.min(4) + 4;
    (0..count)
        .map(|_| {
            let depth = random.pick(&[1, 1, 2, 4, 8, 16, 64, 200]);
            ChannelSpec {
                cpu: random.within(0, machine.cpus() - 1),
                depth,
                ios: random.within(3, most),
                batch: random.within(1, depth.min(16)),
                think_ns: random.pick(&[0, 0, 300, 3_000, 30_000]),
                mix: mix(random),
                blocks: random.pick(&[1, 2, 8, 16, 48]),
                sequential: random.pick(&[0, 300, 700, 950]),
                vectored: random.pick(&[0, 0, 200, 500]),
                foreign: random.pick(&[0, 0, 200, 1000]),
                fua: random.pick(&[0, 0, 100, 300]),
                preflush: random.pick(&[0, 0, 50, 200]),
                away: random.pick(&[0, 100, 500]),
                drain_us: random.pick(&[0, 50, 1_000, 5_000_000, 5_000_000]),
            }
        })
        .collect()
}

fn mix(random: &mut Random) -> [u32; 5] {
    match random.below(6) {
        0 => [10, 0, 0, 0, 0],
        1 => [5, 5, 0, 0, 0],
        2 => [4, 8, 2, 0, 0],
        3 => [2, 6, 4, 0, 0],
        _ => [6, 8, 2, 2, 2],
    }
}

fn disturbance(random: &mut Random, drives: usize, channels: usize) -> DisturbanceKind {
    let drive = random.below(drives as u64) as u32;
    let for_us = random.pick(&[1, 20, 200, 2_000]);
    match random.below(8) {
        0..=2 => DisturbanceKind::Freeze(drive, for_us),
        3 | 4 => DisturbanceKind::Quiesce(drive, for_us),
        5 | 6 => DisturbanceKind::Drop(random.below(channels as u64) as u32),
        _ => DisturbanceKind::Shutdown,
    }
}

/// Keeps only one freeze per drive: freezes do not nest, so the first unfreeze would also end an
/// overlapping freeze.
fn one_freeze_per_drive(list: &mut Vec<Disturbance>) {
    let mut seen = Vec::new();
    list.retain(|disturbance| {
        let key = match disturbance.what {
            DisturbanceKind::Freeze(drive, _) => (0, drive),
            DisturbanceKind::Quiesce(drive, _) => (1, drive),
            DisturbanceKind::Drop(channel) => (2, channel),
            DisturbanceKind::Shutdown
            | DisturbanceKind::Switch(_)
            | DisturbanceKind::Leave(..)
            | DisturbanceKind::Grow(..) => (3, 0),
            DisturbanceKind::Schedule(..)
            | DisturbanceKind::Regroup(..)
            | DisturbanceKind::Stop(_) => (4, 0),
        };
        let fresh = !seen.contains(&key);
        seen.push(key);
        fresh
    });
}
