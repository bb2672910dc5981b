//! I/O groups in scenarios: chooses the group of each bio, changes groups, and checks limits and
//! shares.
//!
//! No group may complete more I/Os since the start than its limit allows. In scenarios with
//! `Scenario::fair`, each channel has a group, all groups share one drive, and each group must get
//! its share. generator.rs, run.rs, submitter.rs and disturbance.rs call this file.

use std::sync::Arc;

use millrace_block::{GroupId, Groups, Op, Status};
use millrace_simulator::Simulated;

use super::group_spec::{BURST_NS, GroupSpec};
use super::random::Random;
use super::scenario::{
    ChannelSpec, Disturbance, DisturbanceKind, FaultSpec, LayerSpec, LayoutSpec, Scenario,
    SpreadSpec, StackSpec,
};
use super::scheduler_spec::SchedulerSpec;
use super::serving::ServingSpec;

/// Start of the measurement of fair shares, in nanoseconds. By this time, all groups are assumed to
/// submit I/O to the shared drive.
const FAIR_START_NS: u64 = 2_000_000;
const FAIR_WINDOW_IOS: f64 = 80.0;

impl Scenario {
    pub(super) fn be_grouped(&mut self, random: &mut Random) {
        if !random.per_mille(200) {
            return;
        }
        self.groups = (0..random.within(1, 4)).map(|at| GroupSpec::draw(random, at)).collect();
        if self.layer.stack == StackSpec::Mq && random.per_mille(700) {
            for drive in 0..self.drives.len() as u32 {
                let order = random.pick(&[
                    SchedulerSpec::Fair,
                    SchedulerSpec::Fair,
                    SchedulerSpec::Latency,
                ]);
                self.disturb(random, &[0, 20, 100, 500], DisturbanceKind::Schedule(drive, order));
            }
        }
        if random.per_mille(300) {
            for _ in 0..random.within(1, 3) {
                let group = random.below(self.groups.len() as u64) as u32;
                // Keep the group's parent: the settings of a group may change, its parent may not.
                let below = self.groups[group as usize].below;
                let spec = GroupSpec { below, ..GroupSpec::draw(random, group) };
                self.disturb(random, &[0, 20, 100, 500], DisturbanceKind::Regroup(group, spec));
            }
        }
    }

    pub(super) fn be_fair(&mut self, random: &mut Random) {
        let cpus = self.machine.cpus().min(4);
        if !random.per_mille(15) || cpus < 2 {
            return;
        }
        let count = random.within(2, cpus);
        self.serving = ServingSpec::default();
        (self.fair, self.layout) = (true, LayoutSpec::Linear);
        self.layer = LayerSpec {
            stack: StackSpec::Mq,
            software: SpreadSpec::Core,
            hardware: random.pick(&[SpreadSpec::Core, SpreadSpec::Core, SpreadSpec::One]),
            timeout_us: 0,
            stamp_each: false,
            traced: false,
            shared_tags: false,
            immediate: false,
            each: false,
        };
        self.drives.truncate(1);
        let drive = &mut self.drives[0];
        (drive.owned, drive.queues, drive.drive_tags) = (false, 64, true);
        (drive.depth, drive.latency_ns) = (random.pick(&[4, 8]), [20_000, 21_000]);
        (drive.sectors, drive.faults) = (2048, FaultSpec::default());
        drive.limits.max_sectors = drive.limits.max_sectors.max(256);
        (drive.limits.chunk_sectors, drive.limits.segment_bytes) = (0, 0);
        let channel = |cpu| ChannelSpec {
            cpu,
            depth: 64,
            ios: 1_200,
            batch: 16,
            think_ns: 0,
            mix: [10, 0, 0, 0, 0],
            blocks: 1,
            sequential: 0,
            vectored: 0,
            foreign: 0,
            fua: 0,
            preflush: 0,
            away: 0,
            drain_us: 5_000_000,
        };
        self.channels = (0..count).map(channel).collect();
        let group = |_| GroupSpec {
            weight: random.pick(&[100, 200, 400]),
            below: false,
            priority: 1,
            iops: 0,
            target_us: 0,
        };
        self.groups = (0..count).map(group).collect();
        let what = DisturbanceKind::Schedule(0, SchedulerSpec::Fair);
        self.disturbances = vec![Disturbance { at_us: 0, cpu: 0, what }];
    }

    pub(super) fn has_sound_groups(&self) -> bool {
        let sound = |index: usize, spec: &GroupSpec| {
            let config = spec.config(index);
            config.validate().is_ok() && (index > 0 || !spec.below)
        };
        let changes = self.disturbances.iter().all(|disturbance| match disturbance.what {
            DisturbanceKind::Regroup(group, spec) => {
                (group as usize) < self.groups.len() && sound(group as usize, &spec)
            }
            _ => true,
        });
        changes && self.groups.iter().enumerate().all(|(index, spec)| sound(index, spec))
    }

    pub(super) fn open_groups(&self) -> Option<Arc<Groups<Simulated>>> {
        let groups = Groups::new();
        for (spec, index) in self.groups.iter().zip(0..) {
            groups.open(spec.config(index)).expect("the scenario was checked before");
        }
        (!self.groups.is_empty()).then_some(groups)
    }

    pub(super) fn group_of(&self, random: &mut Random, channel: usize) -> GroupId {
        if self.fair && channel < self.groups.len() {
            return GroupId(channel as u16 + 1);
        }
        match self.groups.len() as u64 {
            0 => GroupId::DEFAULT,
            groups => GroupId(random.below(groups + 1) as u16),
        }
    }

    /// Returns the longest time, in nanoseconds, for which group limits and priorities may delay an
    /// I/O if up to `waiting` I/Os wait at the same time.
    pub(super) fn groups_hold_ns(&self, waiting: u64) -> u64 {
        let changes = self.disturbances.iter().filter_map(|disturbance| match disturbance.what {
            DisturbanceKind::Regroup(_, spec) => Some(spec),
            _ => None,
        });
        let specs = || self.groups.iter().copied().chain(changes.clone());
        let slowest = specs().map(|spec| spec.iops).filter(|iops| *iops > 0).min();
        // An I/O may wait for its group's limit and for the parent group's limit. After each change
        // of group settings, the I/O may have to wait for both again.
        let times = 2 * (1 + changes.clone().count() as u64);
        let limits_ns =
            slowest.map_or(0, |iops| times * (waiting + 1) * 1_000_000_000 / u64::from(iops));
        // The scheduler serves groups of idle priority at least every 100 ms. Allow 120 ms for each
        // I/O.
        let idle_ns = if specs().any(|spec| spec.priority > 1) { 120_000_000 * waiting } else { 0 };
        limits_ns + idle_ns + if self.groups.is_empty() { 0 } else { 50_000_000 }
    }
}

pub(super) fn regroup(groups: Option<&Arc<Groups<Simulated>>>, group: u32, spec: GroupSpec) {
    if let Some(groups) = groups {
        let set = groups.set(GroupId(group as u16 + 1), spec.config(group as usize));
        set.expect("the scenario was checked before");
    }
}

#[derive(Default)]
pub(super) struct GroupEnds(Vec<Vec<u64>>);

impl GroupEnds {
    pub(super) fn note(&mut self, (group, op): (GroupId, Op), status: Status, now_ns: u64) {
        // Count only successful I/Os against the group's rate limit: the block layer may not have
        // charged failed I/Os to the limit.
        if op != Op::Flush && status.is_ok() {
            let at = usize::from(group.0);
            self.0.resize_with(self.0.len().max(at + 1), Vec::new);
            self.0[at].push(now_ns);
        }
    }

    fn excess(&self, scenario: &Scenario) -> Option<String> {
        let lifts = |d: &Disturbance| {
            matches!(
                d.what,
                DisturbanceKind::Drop(_) | DisturbanceKind::Shutdown | DisturbanceKind::Regroup(..)
            )
        };
        if scenario.disturbances.iter().any(lifts) {
            return None;
        }
        let is_below = |at: usize| scenario.groups.get(at - 1).is_some_and(|spec| spec.below);
        scenario.groups.iter().enumerate().filter(|(_, spec)| spec.iops > 0).find_map(
            |(index, spec)| {
                let own = index + 1;
                let of = |at: usize| at == own || own == 1 && at > 1 && is_below(at);
                let lists = self.0.iter().enumerate().skip(1).filter(|(at, _)| of(*at));
                let mut ends: Vec<u64> = lists.flat_map(|(_, list)| list).copied().collect();
                ends.sort_unstable();
                ends.iter().zip(1..).find_map(|(end_ns, count)| {
                    let most = (end_ns + BURST_NS) as f64 * f64::from(spec.iops) / 1e9 + 2.0;
                    (count as f64 > most).then(|| {
                        format!("group {own}: {count} I/Os in {end_ns} ns, {most:.1} allowed")
                    })
                })
            },
        )
    }
}

impl GroupEnds {
    /// Describes the first group whose share was far too large or too small; `None` if there is
    /// none.
    fn unfair(&self, scenario: &Scenario) -> Option<String> {
        let is_fair = |d: &Disturbance| d.what == DisturbanceKind::Schedule(0, SchedulerSpec::Fair);
        let fair = scenario.fair && scenario.disturbances.iter().any(is_fair);
        let lists =
            self.0.get(1..).filter(|lists| fair && lists.len() == scenario.channels.len())?;
        // The measurement begins when all groups compete and ends when the first group has nothing
        // to submit.
        let last = |list: &Vec<u64>| list.get(list.len().saturating_sub(65)).copied().unwrap_or(0);
        let end_ns = lists.iter().map(last).min()?;
        let start_ns = FAIR_START_NS.min(end_ns / 2);
        let inside = |list: &Vec<u64>| {
            list.iter().filter(|ns| (start_ns..end_ns).contains(*ns)).count() as f64
        };
        let got: Vec<f64> = lists.iter().map(inside).collect();
        let all: f64 = got.iter().sum();
        let weights: f64 = scenario.groups.iter().map(|spec| f64::from(spec.weight)).sum();
        got.iter().zip(&scenario.groups).zip(1..).find_map(|((got, spec), group)| {
            let wanted = all * f64::from(spec.weight) / weights;
            let is_off =
                *got > 2.0 * wanted + FAIR_WINDOW_IOS || *got < wanted / 2.0 - FAIR_WINDOW_IOS;
            (is_off && end_ns > 2 * FAIR_START_NS).then(|| {
                format!(
                    "group {group}: {got} I/Os of {all}, {wanted:.0} by its weight, from \
                     {start_ns} to {end_ns} ns"
                )
            })
        })
    }
}

impl GroupEnds {
    /// Returns the violation, as kind and text, if a group exceeded its limit or did not get its
    /// share.
    pub(super) fn accusation(&self, scenario: &Scenario) -> Option<(&'static str, String)> {
        let excess = self.excess(scenario).map(|text| ("limit", text));
        excess.or_else(|| self.unfair(scenario).map(|text| ("weights", text)))
    }
}
