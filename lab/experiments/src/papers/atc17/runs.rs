//! Which points each part of \[FALCON\] needs, and what they gave.
//!
//! Parts share points; each is run once, side by side with others, those with the most work first.
//! Results do not depend on the order.

use millrace_block::Serving;
use millrace_simulator::Model;

use super::rigs::{GRAPHS, draws, of_file};
use super::rigs::{LOADS, Point, Rig};
use crate::load::bench::BenchError;
use crate::papers::{self, Mechanism};
use crate::programs::{Task, servers, utilities};
use crate::simulation::{ObservedRow, run_observed};

/// The ways of serving, in the order of legends and columns.
pub(super) const SERVINGS: [Serving; 3] = [Serving::PerVolume, Serving::PerDrive, Serving::Inline];
/// The way that is chosen by itself, and those that it chooses from.
pub(super) const CHOSEN: [Serving; 3] = [Serving::Auto, Serving::Inline, Serving::PerDrive];
/// A point served in each of them: by itself for long.
pub(super) type Choice = [Point; 3];
/// Ways of serving whose drives are compared, as in the paper.
pub(super) const COMPARED: [Serving; 2] = [Serving::PerVolume, Serving::PerDrive];
/// Drives of the figure on scaling.
pub(super) const COUNTS: [u32; 4] = [1, 2, 4, 8];
/// Stripe sizes.
pub(super) const CHUNKS_KIB: [u32; 4] = [4, 8, 16, 64];
/// Drives of the buffered writers.
pub(super) const BUFFERED: [u32; 2] = [4, 8];
/// High watermarks, with half of them as low ones.
pub(super) const HIGHS: [u32; 6] = [4, 8, 16, 32, 64, 128];
/// Low watermarks, below a high one of 32.
pub(super) const LOWS: [u32; 6] = [1, 4, 8, 16, 24, 32];

/// Each of the loads, served in each way.
fn loads(rig: Rig) -> Vec<Point> {
    let each = |load| SERVINGS.map(|serving| Point::on(rig, load, serving));
    LOADS.into_iter().flat_map(each).collect()
}

/// The rows on which the choice between ways is judged.
pub(super) fn choices() -> Vec<Choice> {
    let on = |rig| LOADS.map(|load| Point::on(rig, load, Serving::Auto).few());
    let hba = || on(Rig::Hba).into_iter();
    let random = || hba().take(2);
    let counted = hba().flat_map(|point| COUNTS.map(|drives| point.drives(drives).few()));
    let cut = hba().flat_map(|point| CHUNKS_KIB[1..].iter().map(move |kib| point.chunk(*kib)));
    let others =
        on(Rig::Ahci).into_iter().chain(on(Rig::Scu)).chain(on(Rig::Nvme).into_iter().take(1));
    let rows = counted.chain(cut).chain(others).chain(random().map(Point::single));
    rows.map(|point| {
        let [auto, inline, per_drive] = CHOSEN.map(|serving| point.served(serving));
        [auto.long(), inline, per_drive]
    })
    .collect()
}

/// A program on all drives, served in each of the paper's ways.
fn both(task: Task) -> [Point; 2] {
    COMPARED.map(|serving| Point::program(task, serving))
}

/// The points of the sweep of watermarks: both random loads.
pub(super) fn swept(load: usize, (high, low): (u32, u32)) -> Point {
    Point::on(Rig::Hba, LOADS[load], Serving::PerDrive).marks(high, low)
}

impl papers::Point for Point {
    type Measurement = ObservedRow;
    const OWN: &'static [Mechanism] = &[
        Mechanism::LookupLock,
        Mechanism::HostBusy,
        Mechanism::ControllerLock,
        Mechanism::Coalescing,
        Mechanism::Dies,
    ];
    /// No single queue is run.
    const UNUSED: &'static [Mechanism] = &[Mechanism::Lines];

    fn of(part: &str) -> Vec<Point> {
        let hba = loads(Rig::Hba);
        let random = || hba.iter().copied().filter(|point| LOADS[..2].contains(&point.load));
        let points: Vec<Point> = match part {
            "scaling" => {
                hba.iter().flat_map(|point| COUNTS.map(|drives| point.drives(drives))).collect()
            }
            "stripes" => {
                hba.iter().flat_map(|point| CHUNKS_KIB.map(|chunk| point.chunk(chunk))).collect()
            }
            "controllers" => [Rig::Ahci, Rig::Scu, Rig::Hba].into_iter().flat_map(loads).collect(),
            "watermarks" => [0, 1]
                .into_iter()
                .flat_map(|load| {
                    let highs = HIGHS.map(|high| swept(load, (high, high / 2)));
                    highs.into_iter().chain(LOWS.map(move |low| swept(load, (32, low))))
                })
                .collect(),
            "latency" => random().map(Point::single).collect(),
            "ideal" => {
                let ideal = LOADS[..2].iter().map(|load| Point::ideal(Rig::Hba, *load));
                let counted = |point: Point| COUNTS.map(|drives| point.drives(drives));
                let served = random().filter(|point| point.serving == Serving::PerDrive);
                ideal.chain(served).flat_map(counted).map(Point::long).collect()
            }
            "tags" => [Serving::PerVolume, Serving::PerDrive]
                .map(|serving| Point::on(Rig::Ahci, LOADS[0], serving).watched())
                .to_vec(),
            "fairness" => {
                let compared = |point: &Point| COMPARED.contains(&point.serving);
                random().filter(compared).map(|point| point.few().long()).collect()
            }
            "buffered" => BUFFERED
                .iter()
                .flat_map(|drives| both(Task::Writers).map(|point| point.drives(*drives)))
                .collect(),
            "ext4" => {
                let plain = random().filter(|point| COMPARED.contains(&point.serving));
                plain.flat_map(|point| [point, of_file(point)]).collect()
            }
            "graph" => {
                GRAPHS.map(|(jobs, serving)| Point::program(Task::Graph(jobs), serving)).to_vec()
            }
            "servers" => {
                servers::Kind::ALL.iter().flat_map(|kind| both(Task::Server(*kind))).collect()
            }
            "utilities" => {
                utilities::Kind::ALL.iter().flat_map(|kind| both(Task::Utility(*kind))).collect()
            }
            "auto" => choices().into_iter().flatten().collect(),
            _ => SERVINGS.map(|serving| Point::on(Rig::Nvme, LOADS[0], serving)).to_vec(),
        };
        points.into_iter().flat_map(draws).collect()
    }

    fn without(mut self, mechanism: Mechanism) -> Point {
        match mechanism {
            Mechanism::LookupLock => self.adapter.lookup_lock = false,
            Mechanism::HostBusy => self.adapter.host_busy = false,
            Mechanism::ControllerLock => self.adapter.controller_lock = false,
            Mechanism::Coalescing => self.adapter.coalescing = false,
            Mechanism::Dies => self.dies = false,
            _ => {}
        }
        self
    }

    fn machine(&self) -> &'static str {
        self.rig.machine()
    }

    fn task(&self) -> String {
        self.in_words()
    }

    fn work(&self) -> u32 {
        u32::from(self.long || self.task.is_some()) << 16 | self.drives
    }

    fn run(&self, model: &Model, seed: u64) -> Result<ObservedRow, BenchError> {
        match self.task {
            Some(task) => task.run(model, &self.plan(seed)),
            None => run_observed(model, &self.plan(seed)),
        }
    }

    fn events(seen: &ObservedRow) -> u64 {
        seen.row.machine.as_ref().and_then(|machine| machine.sim_events).unwrap_or(0)
    }
}

/// All points that were run.
pub(super) type Results = papers::Results<Point>;

impl Results {
    /// I/Os a second of a point, the mean of its runs.
    pub(super) fn iops(&self, point: Point) -> Option<f64> {
        let runs = self.draws(point)?;
        Some(runs.iter().sum::<f64>() / runs.len() as f64)
    }

    /// How far the runs of a point lie apart, as a share of their mean.
    pub(super) fn spread(&self, point: Point) -> Option<f64> {
        let runs = self.draws(point)?;
        let most = runs.iter().copied().fold(0.0, f64::max);
        let least = runs.iter().copied().fold(f64::INFINITY, f64::min);
        Some((most - least) / self.iops(point)?)
    }

    /// I/Os a second of each run of a point.
    fn draws(&self, point: Point) -> Option<Vec<f64>> {
        let runs: Vec<f64> = draws(point).filter_map(|run| Some(self.at(run)?.row.iops)).collect();
        (!runs.is_empty()).then_some(runs)
    }

    /// Rate of a point over that of the same row served otherwise.
    pub(super) fn gain(&self, point: Point, other: Serving) -> Option<f64> {
        Some(self.iops(point)? / self.iops(point.served(other))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::run_without;
    use crate::simulation::machine;

    #[test]
    fn what_commands_of_all_drives_write_holds_workers_back_and_not_one_submitter() {
        let model = machine("e5-2620").expect("a known machine");
        let gain = |serving, without: &[Mechanism]| {
            let point = Point::on(Rig::Hba, LOADS[0], serving);
            let iops =
                |without| run_without(&point, &model, (1, without)).expect("it runs").row.iops;
            iops(without) / iops(&[])
        };
        let lock = gain(Serving::PerDrive, &[Mechanism::LookupLock]);
        let both = gain(Serving::PerDrive, &[Mechanism::LookupLock, Mechanism::HostBusy]);
        let alone = gain(Serving::PerVolume, &[Mechanism::LookupLock]);
        // Beside that lock the counts cost next to nothing.
        assert!(lock > 1.1 && both > 0.99 * lock && alone < 1.1, "{lock} {both} {alone}");
    }

    #[test]
    fn interrupts_that_wait_drain_the_drives_of_one_submitter_that_reads_in_sequence() {
        let model = machine("e5-2620").expect("a known machine");
        let gain = |load| {
            let point = Point::on(Rig::Scu, load, Serving::PerVolume).few();
            let iops =
                |without| run_without(&point, &model, (1, without)).expect("it runs").row.iops;
            iops(&[Mechanism::Coalescing]) / iops(&[])
        };
        let (sequential, random) = (gain(LOADS[2]), gain(LOADS[0]));
        assert!(sequential > 1.1 && random < 1.05, "{sequential} {random}");
    }

    #[test]
    fn the_scu_takes_its_lock_twice_for_a_command_and_once_for_an_interrupt() {
        let model = machine("e5-2620").expect("a known machine");
        let mut plan = Point::on(Rig::Scu, LOADS[0], Serving::PerDrive).few().plan(1);
        plan.watch.locks = true;
        let seen = run_observed(&model, &plan).expect("it runs");
        let locks = seen.row.machine.and_then(|machine| machine.locks).expect("asked for");
        let taken = |name| {
            let of_all = locks.iter().find(|line| line.name == name && line.site.is_none());
            of_all.expect("it was taken").acquisitions as f64
        };
        // Each I/O takes the lock of its process's list once.
        let share = taken("controller") / taken("aio-context-list");
        assert!((2.0..2.5).contains(&share), "{share}");
    }

    #[test]
    fn a_flusher_that_only_batches_lets_one_writer_write_faster() {
        let model = machine("e5-2620").expect("a known machine");
        let run = |serving| {
            let point = Point::program(Task::Utility(utilities::Kind::CopyTo), serving);
            papers::Point::run(&point, &model, 1).expect("it runs")
        };
        let [linux, ours] = COMPARED.map(run);
        assert!(ours.row.iops > 1.3 * linux.row.iops, "{} {}", ours.row.iops, linux.row.iops);
        // Dirty memory is bounded, writers are held back, and pages leave in large writes.
        let stats = linux.cache.expect("through a cache");
        assert!(stats.throttled > 0 && stats.dirty < stats.pages / 2, "{stats:?}");
        assert!(stats.written_back > 16 * stats.write_requests, "{stats:?}");
    }

    #[test]
    fn a_program_gives_the_same_numbers_again() {
        let model = machine("e5-2620").expect("a known machine");
        let point = Point::program(Task::Graph(8), Serving::PerVolume);
        let run = || papers::Point::run(&point, &model, 1).expect("it runs").row;
        assert_eq!(run(), run());
    }

    #[test]
    fn dies_hold_back_a_drive_with_as_many_reads_as_dies_and_cost_one_read_nothing() {
        let model = machine("e5-2620-nvme").expect("a known machine");
        let point = Point::on(Rig::Nvme, LOADS[0], Serving::PerDrive);
        let gain = |depth| {
            let point = point.depth(depth);
            let iops =
                |without| run_without(&point, &model, (1, without)).expect("it runs").row.iops;
            iops(&[Mechanism::Dies]) / iops(&[])
        };
        let (one, many) = (gain(1), gain(32));
        assert!(many > 1.1 && (one - 1.0).abs() < 0.01, "{many} {one}");
    }
}
