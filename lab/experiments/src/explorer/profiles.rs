//! Profiles: combinations of settings that found bugs before and that are drawn together.
//!
//! generator.rs draws each setting by itself, so a combination of many settings is rare. In a
//! campaign of 580,000 seeds, 20 seeds found bugs that an earlier campaign of 60,000 seeds had
//! missed. The four causes, with their frequency if each setting is drawn by itself:
//!
//! - One seed in 70,000: a volume whose drives share one list of bios loses its only channel while
//!   the channel holds all tags of a drive with few tags. The next channel waits for a tag and
//!   polls no queue.
//! - One in 120,000: discards or write-zeroes with more parts than a channel has bio slots go to a
//!   drive that stalls, while split bios go to other drives.
//! - One in 150,000: a time slice ends between two particular instructions of the explorer itself.
//! - One in 580,000: a drive without timeouts, whose queue belongs to a thread, refuses the last
//!   request of a batch after it has completed all the others.
//!
//! generator.rs calls this file. Invariant: a scenario is a pure function of its seed.

use super::random::Random;
use super::scenario::{DisturbanceKind, FaultSpec, LayoutSpec, Scenario, SpreadSpec, StackSpec};
use super::serving::{ModeSpec, ServingSpec};

impl Scenario {
    /// Applies a profile (a combination of settings that found bugs) to about a fifth of all
    /// scenarios.
    pub(super) fn follow_theme(&mut self, random: &mut Random) {
        match random.below(60) {
            0..4 => self.be_abandoned(random),
            4..8 => self.be_busy(random),
            8..10 => self.be_switched(random),
            // Stalls are rare, because runs with a stalled drive take ten times as long as others.
            10 => self.be_stalled(random),
            11 | 12 => self.be_stopped(random),
            _ => {}
        }
    }

    /// Profile: the only channel is dropped early, with I/O in flight on drives that have few tags.
    fn be_abandoned(&mut self, random: &mut Random) {
        self.channels.truncate(1);
        let channel = &mut self.channels[0];
        channel.drain_us = random.pick(&[0, 0, 0, 50]);
        (channel.depth, channel.ios) = (channel.depth.max(8), channel.ios.max(40));
        channel.batch = random.within(2, 8);
        (self.layer.shared_tags, self.layer.timeout_us) = (false, 0);
        for drive in &mut self.drives {
            (drive.faults, drive.drive_tags) = (FaultSpec::default(), false);
            drive.owned &= random.per_mille(100);
            drive.depth = random.pick(&[1, 1, 1, 2]);
            drive.latency_ns = random.pick(&[[2_000, 3_000], [2_000, 102_000], [50_000, 50_000]]);
        }
        let modes = [ModeSpec::PerVolume, ModeSpec::PerVolume, ModeSpec::PerDrive];
        if random.per_mille(800) {
            self.serving.mode = random.pick(&modes);
        }
        if random.per_mille(700) {
            // Remove the workers. Workers would poll the queues of the dropped channel and free its
            // tags, but the profile tests tags that stay in use.
            self.serving.workers.clear();
            self.disturbances.retain(|d| !matches!(d.what, DisturbanceKind::Leave(..)));
        }
        self.disturbances
            .retain(|d| !matches!(d.what, DisturbanceKind::Drop(_) | DisturbanceKind::Shutdown));
        self.disturb(random, &[20, 100, 500], DisturbanceKind::Drop(0));
    }

    /// Profile: drives that are often busy and complete requests at once. Most threads have a
    /// single bio in flight, split into two parts. If the drive refuses a part, the thread sleeps
    /// until the drive wakes it, so a missing wake-up stops the thread and is noticed.
    fn be_busy(&mut self, random: &mut Random) {
        self.serving = ServingSpec::default();
        let ends = |what: DisturbanceKind| {
            matches!(what, DisturbanceKind::Drop(_) | DisturbanceKind::Shutdown)
        };
        let serves = |what: DisturbanceKind| {
            matches!(what, DisturbanceKind::Switch(_) | DisturbanceKind::Leave(..))
        };
        self.disturbances.retain(|d| !ends(d.what) && !serves(d.what));
        let layer = &mut self.layer;
        layer.stack = random.pick(&[StackSpec::Raw, StackSpec::Raw, StackSpec::Mq, layer.stack]);
        (layer.software, layer.hardware) = (SpreadSpec::Core, SpreadSpec::Core);
        (layer.stamp_each, layer.traced, layer.shared_tags) = (false, false, false);
        layer.timeout_us = 0;
        for drive in &mut self.drives {
            drive.owned = random.per_mille(800);
            drive.depth = random.pick(&[2, 4, 64]);
            drive.drive_tags = false;
            drive.latency_ns = random.pick(&[[0, 0], [0, 0], [0, 0], [0, 1_000]]);
            let limits = &mut drive.limits;
            (limits.max_sectors, limits.chunk_sectors) = (limits.block / 512 * 4, 0);
            drive.faults = FaultSpec { busy: random.pick(&[50, 300, 300]), ..FaultSpec::default() };
        }
        self.channels.truncate(random.pick(&[1, 1, 2]));
        for channel in &mut self.channels {
            channel.depth = random.pick(&[1, 1, 1, 4]);
            (channel.batch, channel.ios) = (1, random.within(50, 120));
            (channel.blocks, channel.sequential, channel.vectored) = (8, 0, 0);
        }
    }

    /// Profile: one of several drives stalls for a long time while bios with many parts are in
    /// flight.
    fn be_stalled(&mut self, random: &mut Random) {
        let moves = |what: DisturbanceKind| {
            matches!(what, DisturbanceKind::Switch(_) | DisturbanceKind::Grow(..))
        };
        self.disturbances.retain(|d| !moves(d.what));
        if self.drives.len() == 1 {
            self.drives.push(self.drives[0].clone());
            self.layout = LayoutSpec::Linear;
        }
        self.layer.shared_tags = false;
        if self.serving.mode == ModeSpec::PerVolume {
            self.serving.mode = random.pick(&[ModeSpec::Inline, ModeSpec::PerDrive]);
        }
        let many = random.pick(&[1, 2, 8]);
        for drive in &mut self.drives {
            let block = drive.limits.block / 512;
            (drive.limits.discard_sectors, drive.limits.zeroes_sectors) = (block, many * block);
        }
        for channel in &mut self.channels {
            channel.mix = [6, 8, 2, 2, 2];
            // Some bios have more parts than their channel has bio slots. The last parts wait until
            // other parts complete and free their bio slots.
            channel.blocks = random.pick(&[2, 12, 24]);
            channel.depth = channel.depth.min(8);
            channel.batch = channel.batch.min(channel.depth);
        }
        self.stall_one(random);
    }

    /// Profile: the process is stopped for longer than the request timeout; its drives may stop,
    /// too. No request may time out because of the pause.
    fn be_stopped(&mut self, random: &mut Random) {
        self.layer.timeout_us = random.pick(&[1_000_000, 3_000_000, 30_000_000]);
        let for_us = random.within(self.layer.timeout_us, 3 * self.layer.timeout_us);
        let stops_all = random.per_mille(500);
        for drive in &mut self.drives {
            (drive.faults.stuck, drive.faults.stuck_us) = (0, 0);
            if stops_all {
                let more_us = random.pick(&[0, 100, 5_000, 100_000]);
                drive.faults.stall_us = Some([random.within(0, 300), for_us + more_us]);
            }
        }
        self.disturb(random, &[20, 100, 500], DisturbanceKind::Stop(for_us));
        if stops_all {
            // Stalled drives complete nothing. So remove freezes and mode switches, which wait
            // until the drives have no requests in flight.
            let drains = |what: DisturbanceKind| {
                matches!(what, DisturbanceKind::Switch(_) | DisturbanceKind::Freeze(..))
            };
            self.disturbances.retain(|d| !drains(d.what));
        }
    }

    fn be_switched(&mut self, random: &mut Random) {
        if self.drives.iter().any(|drive| drive.faults.stuck > 0 && !drive.owned) {
            // Do not switch the serving mode. A switch freezes the drives and waits for all
            // requests, and stuck requests complete much later.
            return;
        }
        let ends = |what: DisturbanceKind| {
            matches!(what, DisturbanceKind::Freeze(..) | DisturbanceKind::Quiesce(..))
        };
        self.disturbances.retain(|d| !ends(d.what));
        let modes = [ModeSpec::Inline, ModeSpec::PerDrive, ModeSpec::PerVolume];
        for _ in 0..random.within(2, 5) {
            let what = DisturbanceKind::Switch(random.pick(&modes));
            self.disturb(random, &[20, 100, 500], what);
        }
        for drive in 0..self.drives.len() {
            self.drives[drive].depth = random.pick(&[1, 2, 4, 64]);
            if random.per_mille(500) {
                let what = DisturbanceKind::Quiesce(drive as u32, random.pick(&[1, 20, 200]));
                self.disturb(random, &[20, 100, 500], what);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explorer::run::run;

    #[test]
    fn a_process_that_was_stopped_blames_no_drive() {
        for seed in 0..60 {
            let mut scenario = Scenario::of_seed(seed);
            scenario.be_stopped(&mut Random::new(seed, 99));
            let outcome = run(&scenario).expect("a derived scenario is valid");
            assert_eq!(outcome.violation, None, "seed {seed}: {}", scenario.line());
        }
    }
}
