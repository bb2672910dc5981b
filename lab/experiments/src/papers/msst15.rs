//! `msst15`: the experiments of the MIOT paper (MSST 2015) on a simulated machine like the paper's,
//! in virtual time.
//!
//! A guest with 8 vCPUs runs on 4 cores; for comparison, the host runs the same workload without a
//! guest. A `Point` is one simulation with settings from `papers/msst15.toml`, which also has the
//! figures, tables and checks. The only inputs are a file with the machine's costs, a file with the
//! costs of virtualisation, and the drive's preset. No result of the paper is an input.
//! `millrace-lab paper` calls this file.

use std::sync::LazyLock;

use millrace_block::baseline::Stack;
use millrace_block::{Layout, Spread, Stamp};
use millrace_drives::Words;
use millrace_simulator::Model;
use serde::Deserialize;
use toml::Table;

use super::sheet::{Sheet, parsed};
use crate::load::bench::BenchError;
use crate::load::workload::{Rw, Workload};
use crate::papers::{self, Mechanism, Paper, Results, machine_table};
use crate::simulation::{InterfaceKind, Irq, Length, Service, SimPlan, Watch, run_simulated};
use crate::vm::{Effect, Mode, QueueService, VmCosts, VmPlan, VmResult, WAIT_MAX_NS, run_vm};

static SHEET: LazyLock<Sheet> =
    LazyLock::new(|| Sheet::parse(include_str!("../../papers/msst15.toml")));

pub(super) fn paper() -> Paper {
    Paper::of_sheet("msst15", &SHEET, papers::mechanisms::<Point>, |wanted, tell| {
        let costs = VmCosts::kvm_2015()?;
        let about =
            "costs of KVM in Linux 3.17 and of QEMU 2.1, the same on both simulated machines";
        let costs = machine_table::of_costs(&costs.name, about, &costs.entries());
        papers::repeat::<Point>(("msst15", &SHEET), wanted, tell, |mut page, _| {
            page.add_machines([costs.clone()]);
            page.add_machines(SHEET.given());
            page
        })
    })
}

/// Longest time that an I/O thread polls, in nanoseconds: KVM's `halt_poll_ns` on x86.
const POLL_MAX_NS: u64 = 200_000;
/// Measured time of a simulation, in nanoseconds. The time must be long enough for rare events. For
/// example, a vCPU that holds a lock is preempted only a few hundred times a second.
const LENGTH_NS: u64 = 300_000_000;
const DEPTH: u32 = 32;
/// CPUs of the host in the order in which Linux assigns them to processes: first one CPU of each
/// core, then the cores' second CPUs.
const CPUS: [u32; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
const VCPUS: u32 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Device {
    Null,
    Nvme,
}

/// System that does the I/O: the host, or a guest whose queues are served in a certain mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Place {
    Host,
    Baseline,
    Mq,
    Miot,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Point {
    device: Device,
    #[serde(deserialize_with = "parsed")]
    rw: Rw,
    bs: u32,
    mode: Place,
    processes: u32,
    #[serde(default = "vcpus")]
    vcpus: u32,
    /// Number of virtqueues. In this field and the three below, `None` selects the mode's default.
    queues: Option<u32>,
    threads: Option<u32>,
    steered: Option<bool>,
    wait: Option<bool>,
    #[serde(default)]
    poll: bool,
    /// Factor by which the costs of VM exits and of the guest's kernel are multiplied. The factor
    /// is 1 in all simulations that are compared with the paper.
    #[serde(default = "once")]
    dearer: u32,
    /// Effects of the host that are not simulated. Empty in all simulations that are compared with
    /// the paper.
    #[serde(default)]
    without: Vec<Effect>,
}

fn vcpus() -> u32 {
    VCPUS
}

fn once() -> u32 {
    1
}

impl Point {
    fn served(&self, mode: Mode) -> QueueService {
        let usual = QueueService::of(mode, VCPUS);
        let wait = |is_on: bool| if is_on { WAIT_MAX_NS } else { 0 };
        QueueService {
            queues: self.queues.unwrap_or(usual.queues),
            threads: self.threads.unwrap_or(usual.threads),
            steered: self.steered.unwrap_or(usual.steered),
            wait_max_ns: self.wait.map_or(usual.wait_max_ns, wait),
            poll_max_ns: if self.poll { POLL_MAX_NS } else { 0 },
        }
    }

    fn drive(&self) -> &'static str {
        if self.device == Device::Null { "null" } else { "model:preset=miot-nvme" }
    }

    fn workload(&self, seed: u64) -> Workload {
        Workload { rw: self.rw, bs_bytes: self.bs, iodepth: DEPTH, verify: false, seed }
    }

    fn plan(&self, mode: Mode, seed: u64) -> VmPlan {
        VmPlan {
            vcpus: self.vcpus,
            processes: self.processes,
            served: self.served(mode),
            without: self.without.clone(),
            workload: self.workload(seed),
            drive: self.drive().parse().expect("the drive's spec must be valid"),
            interrupts: self.device == Device::Nvme,
            length: Length::Time(LENGTH_NS),
        }
    }

    fn host_plan(&self, seed: u64) -> SimPlan {
        SimPlan {
            drives: vec![self.drive().parse().expect("the drive's spec must be valid")],
            layout: Layout::Linear,
            service: Service::default(),
            stack: Stack::Mq,
            software_queues: Spread::Core,
            hardware_queues: Spread::Core,
            cpus: CPUS.to_vec(),
            jobs: self.processes,
            workload: self.workload(seed),
            length: Length::Time(LENGTH_NS),
            stamp: Stamp::Batch,
            // Model libaio with the changes of Bjorling et al., SYSTOR 2013: the modelled kernel,
            // Linux 3.17, contains them.
            interface: InterfaceKind::LibaioFixed,
            batch: Some(1),
            irq: if self.device == Device::Nvme { Irq::Poller } else { Irq::Submitter },
            watch: Watch::default(),
        }
    }
}

impl papers::Point for Point {
    type Measurement = VmResult;
    const OWN: &'static [Mechanism] = &[
        Mechanism::Preemption,
        Mechanism::Roaming,
        Mechanism::Bound,
        Mechanism::Translation,
        Mechanism::Signals,
    ];
    /// The mechanism `Lines` (cache lines of the single queue's lock) affects only the stack `sq`,
    /// which no simulation of this paper uses.
    const UNUSED: &'static [Mechanism] = &[Mechanism::Lines];

    fn of_settings(settings: Table) -> Result<Point, String> {
        settings.try_into().map_err(|error| error.to_string())
    }

    fn of(part: &str) -> Vec<Point> {
        SHEET.points(part)
    }

    fn without(mut self, mechanism: Mechanism) -> Point {
        let own = Self::OWN.contains(&mechanism);
        self.without.extend(Effect::from_word(mechanism.word()).filter(|_| own));
        self
    }

    fn machine(&self) -> &str {
        // The NVMe drive needs another machine model, because its driver has other costs.
        if self.device == Device::Null { "miot" } else { "miot-nvme" }
    }

    fn task(&self) -> String {
        let Point { rw, processes, mode, .. } = self;
        format!("{}, {rw}, {processes} processes, {mode:?}", self.machine()).to_lowercase()
    }

    fn work(&self) -> u32 {
        self.processes
    }

    fn run(&self, model: &Model, seed: u64) -> Result<VmResult, BenchError> {
        let mode = match self.mode {
            Place::Baseline => Mode::Baseline,
            Place::Mq => Mode::Mq,
            Place::Miot => Mode::Miot,
            Place::Host => {
                return run_simulated(model, &self.host_plan(seed)).map(|row| VmResult {
                    iops: row.iops,
                    latency_ns: row.lat_ns.mean as f64,
                    events: row.machine.and_then(|machine| machine.sim_events).unwrap_or(0),
                    ..VmResult::default()
                });
            }
        };
        let costs = VmCosts::kvm_2015()?.with_guest_times(self.dearer);
        run_vm(model, &costs, &self.plan(mode, seed))
    }

    fn events(seen: &VmResult) -> u64 {
        seen.events
    }

    fn metric(results: &Results<Point>, point: &Point, name: &str) -> Option<Vec<f64>> {
        let seen = results.at(point)?;
        let VmResult { counts, .. } = seen;
        let count = match name {
            "iops" => return Some(vec![seen.iops]),
            "latency_ns" => return Some(vec![seen.latency_ns]),
            "switches" => return Some(vec![seen.switches_per_io]),
            "lock_wait_ns" => return Some(vec![seen.lock_wait_ns]),
            "busy" => return Some(vec![seen.busy]),
            "lost" => seen.locks.lost,
            "exits" => counts.exits(),
            "kicks" => counts.kicks,
            "interrupted" => counts.interrupted,
            "halts" => counts.halts,
            "ipis" => counts.ipis,
            "signals" => counts.signals,
            "reaped" => counts.reaped,
            "submissions" => counts.submissions,
            "submitted" => counts.submitted,
            "held" => counts.held,
            _ => panic!("{name}: no such metric"),
        };
        Some(vec![count as f64])
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::papers::{PartSelection, run_without};
    use crate::simulation::machine;

    /// Returns the result of 8 processes that read at random on a machine without some mechanisms.
    fn run(device: &str, mode: &str, without: &[Mechanism]) -> VmResult {
        let settings = format!(
            "device = '{device}'\nmode = '{mode}'\nrw = 'randread'\nbs = 4096\nprocesses = 8"
        );
        let point: Point = toml::from_str(&settings).expect("settings in order");
        let model = machine(papers::Point::machine(&point)).expect("the machine must exist");
        run_without(&point, &model, (1, without)).expect("the run must succeed")
    }

    #[test]
    fn part_gives_same_page_each_time_and_more_threads_do_more() {
        let page = || {
            let wanted = PartSelection::new(&["threads"], 7);
            paper().run(wanted, &mut |_| ControlFlow::Continue(())).expect("the run must succeed")
        };
        let (first, second) = (page(), page());
        assert_eq!((first.html(), first.json()), (second.html(), second.json()));
        let threads = first.checks.iter().find(|check| check.id == "own.threads");
        assert_eq!(threads.map(|check| check.holds), Some(crate::page::CheckVerdict::Yes));
        let machines: Vec<&str> = first.machines.iter().map(|table| table.name.as_str()).collect();
        assert_eq!(machines, ["miot", "miot-nvme", "kvm-2015", "drive"]);
    }

    #[test]
    fn holders_lose_cpus_and_hyper_threads_compete_unless_left_out() {
        let run = |without: &[Mechanism]| run("nvme", "baseline", without);
        let (all, kept) = (run(&[]), run(&[Mechanism::Preemption]));
        let lost = (all.locks.lost, kept.locks.lost);
        assert!(lost.0 > 0 && lost.1 == 0, "{lost:?}");
        let apart = run(&[Mechanism::Sharing]);
        assert!(apart.iops > 1.01 * all.iops, "{} {}", apart.iops, all.iops);
    }

    #[test]
    fn qemus_mutex_and_its_signals_cost_something_unless_left_out() {
        let run = |without: &[Mechanism]| run("null", "miot", without);
        let (all, apart) = (run(&[]), run(&[Mechanism::Translation]));
        assert!(apart.iops > 1.02 * all.iops, "{} {}", apart.iops, all.iops);
        let together = run(&[Mechanism::Signals]);
        let exits = |seen: &VmResult| seen.counts.exits() as f64 / seen.counts.reaped as f64;
        assert!(2.0 * exits(&together) < exits(&all), "{} {}", exits(&together), exits(&all));
    }
}
