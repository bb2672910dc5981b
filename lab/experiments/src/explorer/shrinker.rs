//! Shrinker: generates smaller variants of a scenario that fails.
//!
//! Pure; the caller runs the candidates and keeps the first that still fails, until none does
//! (greedy delta debugging; source: Zeller and Hildebrandt, "Simplifying and isolating
//! failure-inducing input", 2002). Candidates that remove most come first.

use super::scenario::{DisturbanceKind, FaultSpec, LayoutSpec, Scenario, SpreadSpec};
use super::serving::{ModeSpec, ServingSpec};
use super::sharing::plainer_groups;

/// Returns scenarios with something left out, the largest omissions first. No candidate equals
/// `scenario`, and all are valid.
#[must_use]
pub fn smaller(scenario: &Scenario) -> Vec<Scenario> {
    let mut list = Vec::new();
    without_disturbances(scenario, &mut list);
    without_channels(scenario, &mut list);
    without_drives(scenario, &mut list);
    shorter(scenario, &mut list);
    without_faults(scenario, &mut list);
    plainer_groups(scenario, &mut list);
    plainer_serving(scenario, &mut list);
    plainer_layer(scenario, &mut list);
    plainer_channels(scenario, &mut list);
    plainer_drives(scenario, &mut list);
    list.retain(|candidate| candidate != scenario && candidate.check().is_ok());
    list.dedup();
    list
}

fn with(scenario: &Scenario, list: &mut Vec<Scenario>, change: impl FnOnce(&mut Scenario)) {
    let mut candidate = scenario.clone();
    change(&mut candidate);
    list.push(candidate);
}

fn without_disturbances(scenario: &Scenario, list: &mut Vec<Scenario>) {
    with(scenario, list, |s| s.disturbances.clear());
    for at in 0..scenario.disturbances.len() {
        with(scenario, list, |s| {
            s.disturbances.remove(at);
        });
    }
}

fn without_channels(scenario: &Scenario, list: &mut Vec<Scenario>) {
    let count = scenario.channels.len();
    if count > 2 {
        with(scenario, list, |s| s.channels.truncate(count / 2));
    }
    for at in (0..count).filter(|_| count > 1) {
        with(scenario, list, |s| {
            s.channels.remove(at);
            s.disturbances.retain(|d| d.what != DisturbanceKind::Drop(at as u32));
            for disturbance in &mut s.disturbances {
                if let DisturbanceKind::Drop(channel) = &mut disturbance.what {
                    *channel -= u32::from(*channel as usize > at);
                }
            }
        });
    }
}

fn without_drives(scenario: &Scenario, list: &mut Vec<Scenario>) {
    let count = scenario.drives.len();
    for at in (0..count).filter(|_| count > 1) {
        with(scenario, list, |s| {
            s.drives.remove(at);
            let of = |what: &DisturbanceKind| match what {
                DisturbanceKind::Freeze(drive, _)
                | DisturbanceKind::Quiesce(drive, _)
                | DisturbanceKind::Grow(drive, _)
                | DisturbanceKind::Schedule(drive, _) => Some(*drive as usize),
                _ => None,
            };
            s.disturbances.retain(|d| of(&d.what) != Some(at));
            for disturbance in &mut s.disturbances {
                if let DisturbanceKind::Freeze(drive, _)
                | DisturbanceKind::Quiesce(drive, _)
                | DisturbanceKind::Grow(drive, _)
                | DisturbanceKind::Schedule(drive, _) = &mut disturbance.what
                {
                    *drive -= u32::from(*drive as usize > at);
                }
            }
        });
    }
    if count == 1 && scenario.layout != LayoutSpec::Linear {
        with(scenario, list, |s| s.layout = LayoutSpec::Linear);
    }
}

fn shorter(scenario: &Scenario, list: &mut Vec<Scenario>) {
    for part in [2, 4] {
        with(scenario, list, |s| {
            s.channels.iter_mut().for_each(|c| c.ios = (c.ios * (part - 1) / part).max(1));
        });
    }
    for at in 0..scenario.channels.len() {
        let ios = scenario.channels[at].ios;
        for left in [ios / 2, ios * 3 / 4, ios - 1] {
            with(scenario, list, |s| s.channels[at].ios = left.max(1));
        }
    }
    with(scenario, list, |s| {
        let machine = &mut s.machine;
        (machine.sockets, machine.cores) = (1, machine.sockets * machine.cores);
    });
    with(scenario, list, |s| {
        s.machine.cores = (s.machine.cores / 2).max(1);
        let cpus = s.machine.cpus();
        s.channels.iter_mut().for_each(|c| c.cpu %= cpus);
        s.disturbances.iter_mut().for_each(|d| d.cpu %= cpus);
        s.serving.workers.iter_mut().for_each(|cpu| *cpu %= cpus);
    });
}

fn without_faults(scenario: &Scenario, list: &mut Vec<Scenario>) {
    for at in 0..scenario.drives.len() {
        with(scenario, list, |s| s.drives[at].faults = FaultSpec::default());
        let mut fault = |change: fn(&mut FaultSpec)| {
            with(scenario, list, |s| change(&mut s.drives[at].faults));
        };
        fault(|f| f.errors = 0);
        fault(|f| f.bad = None);
        fault(|f| (f.slow, f.slow_us) = (0, 0));
        fault(|f| f.busy = 0);
        fault(|f| (f.stuck, f.stuck_us) = (0, 0));
        fault(|f| f.dead_us = None);
        fault(|f| f.stall_us = None);
    }
}

fn plainer_serving(scenario: &Scenario, list: &mut Vec<Scenario>) {
    let plain = ServingSpec::default();
    with(scenario, list, |s| s.serving = ServingSpec::default());
    with(scenario, list, |s| s.serving.mode = ModeSpec::Inline);
    with(scenario, list, |s| s.serving.pressure = plain.pressure);
    with(scenario, list, |s| s.serving.plug = plain.plug);
    with(scenario, list, |s| s.serving.workers.clear());
    with(scenario, list, |s| {
        s.serving.workers.pop();
    });
    for at in 0..scenario.disturbances.len() {
        with(scenario, list, |s| {
            if let DisturbanceKind::Leave(_, back_us) = &mut s.disturbances[at].what {
                *back_us = 0;
            }
        });
    }
}

fn plainer_layer(scenario: &Scenario, list: &mut Vec<Scenario>) {
    with(scenario, list, |s| s.layer.traced = false);
    with(scenario, list, |s| s.layer.stamp_each = false);
    with(scenario, list, |s| s.layer.shared_tags = false);
    with(scenario, list, |s| s.layer.software = SpreadSpec::One);
    with(scenario, list, |s| s.layer.hardware = SpreadSpec::One);
    with(scenario, list, |s| s.machine.jitter_percent = 0);
    with(scenario, list, |s| {
        let machine = &mut s.machine;
        (machine.cache_percent, machine.work_percent, machine.thread_percent) = (100, 100, 100);
    });
}

fn plainer_channels(scenario: &Scenario, list: &mut Vec<Scenario>) {
    for at in 0..scenario.channels.len() {
        let mut channel = |change: &dyn Fn(&mut super::scenario::ChannelSpec)| {
            with(scenario, list, |s| change(&mut s.channels[at]));
        };
        channel(&|c| c.think_ns = 0);
        channel(&|c| c.vectored = 0);
        channel(&|c| c.foreign = 0);
        channel(&|c| c.fua = 0);
        channel(&|c| c.preflush = 0);
        channel(&|c| c.away = 0);
        channel(&|c| c.sequential = 0);
        channel(&|c| c.depth = (c.depth / 2).max(1));
        channel(&|c| c.batch = (c.batch / 2).max(1));
        channel(&|c| c.blocks = (c.blocks / 2).max(1));
        channel(&|c| c.drain_us = 5_000_000);
        for op in 0..5 {
            channel(&|c| {
                if c.mix[op] > 0 && c.mix.iter().sum::<u32>() > c.mix[op] {
                    c.mix[op] = 0;
                }
            });
        }
    }
}

fn plainer_drives(scenario: &Scenario, list: &mut Vec<Scenario>) {
    for at in 0..scenario.drives.len() {
        let mut drive = |change: &dyn Fn(&mut super::scenario::DriveSpec)| {
            with(scenario, list, |s| change(&mut s.drives[at]));
        };
        drive(&|d| d.owned = false);
        drive(&|d| d.drive_tags = false);
        drive(&|d| d.queues = 1);
        drive(&|d| d.depth = 64);
        drive(&|d| d.latency_ns = [d.latency_ns[0]; 2]);
        drive(&|d| d.latency_ns = [0; 2]);
        drive(&|d| d.limits.max_sectors = 2048);
        drive(&|d| d.limits.max_segments = 128);
        drive(&|d| d.limits.segment_bytes = 0);
        drive(&|d| d.limits.page_boundary = false);
        drive(&|d| d.limits.chunk_sectors = 0);
        drive(&|d| (d.limits.discard_sectors, d.limits.zeroes_sectors) = (1 << 20, 1 << 20));
        drive(&|d| d.limits.cache = false);
        drive(&|d| d.limits.fua = true);
    }
}
