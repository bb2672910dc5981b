//! `VmBench`: a virtual machine on a simulated host, for `millrace-lab bench --vm`.
//!
//! Converts the command line's settings to a plan, runs the plan with `run_vm`, and returns a
//! report. The modes are those that `paper msst15` compares. The verb `bench` calls this file.
#![allow(missing_docs)] // Names of most fields and variants say what they are.

use millrace_drives::{Spec, Words};
use millrace_simulator::Model;
use serde::{Deserialize, Serialize};

use super::{QueueService, VmCosts, VmPlan, VmResult, run_vm_until};
use crate::load::bench::{BenchError, Interrupt};
use crate::load::workload::Workload;
use crate::simulation::Length;

/// Largest number of vCPUs of a guest.
pub const VCPUS_MAX: u32 = 63;

/// Mode of serving a guest, which sets the number of queues and of I/O threads. The modes are those
/// that the paper \[MIOT\] (Kim et al., MSST 2015) compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// A single queue for all vCPUs, and a single I/O thread.
    Baseline,
    /// A queue per vCPU, and a single I/O thread for all queues.
    Mq,
    /// A queue and an I/O thread per vCPU, with workload-aware batch submission.
    Miot,
}

impl Words for Mode {
    const WORDS: &'static [(Mode, &'static str)] =
        &[(Mode::Baseline, "baseline"), (Mode::Mq, "mq"), (Mode::Miot, "miot")];
}

/// An effect of the host that the simulation can leave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effect {
    /// The host may preempt a vCPU that holds a lock of the guest, or waits for one.
    Preemption,
    /// A vCPU that wakes may move to an idle CPU. An I/O thread may do so, too, if it is the only
    /// I/O thread.
    Roaming,
    /// The CPUs of a core share the core's execution units and slow each other down. If this effect
    /// is left out, each CPU is as fast as a whole core.
    Sharing,
    /// Workload-aware batching saves system calls by delaying a submission. The delay is at most
    /// the time that the saved system calls would take.
    Bound,
    /// All I/O threads share one map of the guest's memory, which one mutex protects.
    Translation,
    /// QEMU decides after each completed request whether to interrupt the guest, instead of once
    /// for all completions that it has found.
    Signals,
}

impl Words for Effect {
    const WORDS: &'static [(Effect, &'static str)] = &[
        (Effect::Preemption, "preemption"),
        (Effect::Roaming, "roaming"),
        (Effect::Sharing, "sharing"),
        (Effect::Bound, "bound"),
        (Effect::Translation, "translation"),
        (Effect::Signals, "signals"),
    ];
}

/// Settings of a guest, its queues and its I/O threads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmSetting {
    pub mode: Mode,
    /// Number of vCPUs, 1 to [`VCPUS_MAX`].
    pub vcpus: u32,
    /// Number of I/O threads, 1 to the number of queues; None for the mode's default.
    pub threads: Option<u32>,
    /// Longest time, in nanoseconds, for which an I/O thread delays a submission to collect more
    /// requests (workload-aware batching of the MIOT paper, MSST 2015). 0 disables batching; `None`
    /// selects the mode's default.
    pub batching_ns: Option<u64>,
    /// Longest time that an I/O thread polls, in nanoseconds; 0 disables polling.
    pub polling_ns: u64,
    /// Effects of the host that the simulation leaves out.
    pub without: Vec<Effect>,
}

impl VmSetting {
    /// Creates the settings of the guest in the paper \[MIOT\]: 8 vCPUs, with queues served in the
    /// given mode.
    pub fn new(mode: Mode) -> VmSetting {
        let without = Vec::new();
        VmSetting { mode, vcpus: 8, threads: None, batching_ns: None, polling_ns: 0, without }
    }

    fn served(&self) -> Result<QueueService, BenchError> {
        if !(1..=VCPUS_MAX).contains(&self.vcpus) {
            let vcpus = self.vcpus;
            return Err(refused(format!("vcpus={vcpus}: a guest has 1 to {VCPUS_MAX} vCPUs")));
        }
        let usual = QueueService::of(self.mode, self.vcpus);
        let threads = self.threads.unwrap_or(usual.threads);
        if !(1..=usual.queues).contains(&threads) {
            let (word, most) = (self.mode.word(), usual.queues);
            let mend = match self.mode {
                _ if threads == 0 => "write 1 or more",
                Mode::Baseline => "ask for fewer threads, or choose mode mq or miot",
                Mode::Mq | Mode::Miot => "ask for fewer threads, or more vcpus",
            };
            return Err(refused(format!(
                "threads={threads}: mode {word} has queues for 1 to {most} threads; {mend}"
            )));
        }
        let wait_max_ns = self.batching_ns.unwrap_or(usual.wait_max_ns);
        if wait_max_ns == 0 && self.without.contains(&Effect::Bound) {
            return Err(refused(
                "without=bound: there is no bound, because requests are not batched; use mode \
                 miot, or batching=20us"
                    .to_owned(),
            ));
        }
        Ok(QueueService { threads, wait_max_ns, poll_max_ns: self.polling_ns, ..usual })
    }
}

/// Plan of one simulation, which gives one row of the report.
#[derive(Debug, Clone)]
pub struct VmBench {
    pub setting: VmSetting,
    /// Number of submitting processes, 1 to the number of vCPUs; process p runs on vCPU p.
    pub processes: u32,
    pub workload: Workload,
    /// A drive that runs on any machine: `null`, `ram` or `model`.
    pub drive: Spec,
    pub length: Length,
}

/// Results of a guest's run.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct VmReport {
    pub machine: String,
    #[serde(flatten)]
    pub guest: VmGuest,
    #[serde(flatten)]
    pub work: VmWork,
    pub iops: f64,
    pub bw_bytes: f64,
    /// Mean latency from submission in the guest to reaping, in nanoseconds.
    pub lat_mean_ns: f64,
    #[serde(flatten)]
    pub cost: VmIoCost,
    /// Fraction of the host's CPU time that was not idle, 0 to 1.
    pub busy_share: f64,
    pub sim_events: u64,
}

/// Configuration of the simulated guest in a report, with the guest's queues and I/O threads.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct VmGuest {
    pub vm: &'static str,
    pub vcpus: u32,
    pub queues: u32,
    pub threads: u32,
    /// Number of processes that submit I/Os, like the option `numjobs` of fio.
    pub numjobs: u32,
    /// Longest time for which an I/O thread delays a submission to collect more requests, in
    /// nanoseconds.
    pub batching_ns: u64,
    /// Longest time that an I/O thread polls, in nanoseconds.
    pub polling_ns: u64,
    /// Names of the effects ([`Effect`]) that the simulation left out.
    pub without: Vec<&'static str>,
}

/// Workload of a simulated guest, in fio's terms.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct VmWork {
    pub drives: String,
    pub rw: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rwmixread: Option<u8>,
    /// Length of an I/O in bytes.
    pub bs: u32,
    /// I/Os in flight per process.
    pub iodepth: u32,
    pub seed: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct VmIoCost {
    /// Context switches between the host's threads, per I/O.
    pub switches_per_io: f64,
    /// VM exits of all causes, per I/O.
    pub exits_per_io: f64,
    /// VM exits for device notifications, per I/O.
    pub kicks_per_io: f64,
    /// VM exits of running vCPUs caused by interrupts, per I/O.
    pub interrupted_per_io: f64,
    /// VM exits due to halted vCPUs, per I/O.
    pub halts_per_io: f64,
    /// VM exits for IPIs of the guest, per I/O.
    pub ipis_per_io: f64,
    /// Interrupts that the device raised, per I/O.
    pub interrupts_per_io: f64,
    /// Mean number of requests per submission.
    pub batch: f64,
    /// Fraction of submissions that an I/O thread delayed at least once to collect more requests, 0
    /// to 1.
    pub held_share: f64,
    /// Time spent waiting for the queues' locks, in nanoseconds per I/O.
    pub lock_wait_ns_per_io: f64,
    /// Number of times that a vCPU held a queue's lock for more than 100 us, or took the lock more
    /// than 100 us after its turn had come. Such a vCPU counts as preempted by the host.
    pub lock_lost: u64,
}

fn refused(text: String) -> BenchError {
    BenchError::Workload(format!("--vm: {text}"))
}

/// Runs a simulation of a virtual machine. Equal arguments give bit-identical results. If the
/// caller sets `interrupt`, the run ends early, with the results so far, or with `None` during the
/// warm-up.
///
/// # Errors
/// If the settings are invalid, the drive cannot be opened, or the simulation fails.
pub fn run_vm_bench(
    model: &Model,
    bench: &VmBench,
    interrupt: &Interrupt,
) -> Result<Option<VmReport>, BenchError> {
    let VmBench { setting, processes, workload, drive, length } = bench;
    let served = setting.served()?;
    if !(1..=setting.vcpus).contains(processes) {
        let vcpus = setting.vcpus;
        return Err(refused(format!(
            "--numjobs {processes}: each process has a vCPU, and there are {vcpus}; write fewer, \
             or vcpus={processes}"
        )));
    }
    if model.hyper_threads.is_none() && setting.without.contains(&Effect::Sharing) {
        let name = &model.name;
        return Err(refused(format!("without=sharing: machine {name} has no hyper-threads")));
    }
    if workload.verify || drive.driver == "file" {
        return Err(refused(
            "a virtual machine does not support verify, and its drives must be null, ram or model"
                .to_owned(),
        ));
    }
    let plan = VmPlan {
        vcpus: setting.vcpus,
        processes: *processes,
        served,
        without: setting.without.clone(),
        workload: *workload,
        drive: drive.clone(),
        interrupts: drive.driver == "model",
        length: *length,
    };
    let seen = run_vm_until(model, &VmCosts::kvm_2015()?, (&plan, interrupt))?;
    if interrupt.is_set() && seen.iops == 0.0 {
        return Ok(None);
    }
    let words =
        |(effect, word): &(Effect, &'static str)| setting.without.contains(effect).then_some(*word);
    Ok(Some(VmReport {
        machine: model.name.clone(),
        guest: VmGuest {
            vm: setting.mode.word(),
            vcpus: setting.vcpus,
            queues: served.queues,
            threads: served.threads,
            numjobs: *processes,
            batching_ns: served.wait_max_ns,
            polling_ns: served.poll_max_ns,
            without: Effect::WORDS.iter().filter_map(words).collect(),
        },
        work: VmWork {
            drives: drive.to_string(),
            rw: workload.rw.to_string(),
            rwmixread: workload.rw.read_percent(),
            bs: workload.bs_bytes,
            iodepth: workload.iodepth,
            seed: workload.seed,
        },
        iops: seen.iops,
        bw_bytes: seen.iops * f64::from(workload.bs_bytes),
        lat_mean_ns: seen.latency_ns,
        cost: cost_of(&seen),
        busy_share: seen.busy,
        sim_events: seen.events,
    }))
}

fn cost_of(seen: &VmResult) -> VmIoCost {
    let counts = &seen.counts;
    let each = |count: u64| count as f64 / counts.reaped.max(1) as f64;
    let batches = counts.submissions.max(1) as f64;
    VmIoCost {
        switches_per_io: seen.switches_per_io,
        exits_per_io: each(counts.exits()),
        kicks_per_io: each(counts.kicks),
        interrupted_per_io: each(counts.interrupted),
        halts_per_io: each(counts.halts),
        ipis_per_io: each(counts.ipis),
        interrupts_per_io: each(counts.signals),
        batch: counts.submitted as f64 / batches,
        held_share: counts.held as f64 / batches,
        lock_wait_ns_per_io: seen.lock_wait_ns,
        lock_lost: seen.locks.lost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::workload::Rw;
    use crate::simulation::machine;

    fn run(setting: VmSetting, processes: u32) -> Result<VmReport, BenchError> {
        let report = run_until(setting, processes, &Interrupt::default())?;
        Ok(report.expect("the run is not interrupted"))
    }

    fn run_until(
        setting: VmSetting,
        processes: u32,
        interrupt: &Interrupt,
    ) -> Result<Option<VmReport>, BenchError> {
        let workload =
            Workload { rw: Rw::RandRead, bs_bytes: 4096, iodepth: 32, verify: false, seed: 1 };
        let drive = "null".parse().expect("the drive's spec must be valid");
        let length = Length::Ios(400);
        let bench = VmBench { setting, processes, workload, drive, length };
        run_vm_bench(&machine("miot").expect("there"), &bench, interrupt)
    }

    #[test]
    fn a_row_interrupted_while_it_warms_up_ends_with_nothing() {
        let interrupt = Interrupt::default();
        interrupt.set();
        let report = run_until(VmSetting::new(Mode::Baseline), 3, &interrupt);
        assert_eq!(report.expect("the run must end"), None);
    }

    /// Little's law: 128 slots, and of each of eight processes the request that waits for one.
    #[test]
    fn latencies_have_the_wait_for_a_slot_of_the_ring() {
        let workload =
            Workload { rw: Rw::RandRead, bs_bytes: 4096, iodepth: 64, verify: false, seed: 1 };
        let bench = VmBench {
            setting: VmSetting::new(Mode::Baseline),
            processes: 8,
            workload,
            drive: "model:preset=850evo".parse().expect("the drive's spec must be valid"),
            length: Length::Ios(2_000),
        };
        let model = machine("miot").expect("there");
        let report =
            run_vm_bench(&model, &bench, &Interrupt::default()).expect("the run must succeed");
        let report = report.expect("the run is not interrupted");
        let in_flight = report.iops * report.lat_mean_ns / 1e9;
        assert!((134.0..138.0).contains(&in_flight), "{in_flight}");
    }

    #[test]
    fn a_mode_has_the_papers_queues_and_threads_and_can_have_others() {
        let of = |mode| VmSetting::new(mode);
        let shape = |setting| {
            let report = run(setting, 2).expect("the run must succeed");
            (report.guest.queues, report.guest.threads, report.guest.batching_ns)
        };
        assert_eq!(shape(of(Mode::Baseline)), (1, 1, 0));
        assert_eq!(shape(of(Mode::Mq)), (8, 1, 0));
        assert_eq!(shape(of(Mode::Miot)), (8, 8, 20_000));
        let other =
            VmSetting { vcpus: 4, threads: Some(2), batching_ns: Some(0), ..of(Mode::Miot) };
        assert_eq!(shape(other), (4, 2, 0));
    }

    #[test]
    fn no_more_submissions_are_held_than_there_are() {
        let unbound = VmSetting { without: vec![Effect::Bound], ..VmSetting::new(Mode::Miot) };
        let long = VmSetting { batching_ns: Some(200_000), ..unbound.clone() };
        let one = VmSetting { threads: Some(1), ..long.clone() };
        let mut most: f64 = 0.0;
        for (setting, processes) in [(unbound, 1), (long.clone(), 1), (long, 3), (one, 3)] {
            let held = run(setting, processes).expect("the run must succeed").cost.held_share;
            most = most.max(held);
        }
        assert!(most > 0.5 && most <= 1.0, "{most}");
    }

    #[test]
    fn what_cannot_be_is_refused_with_what_to_do() {
        let refusal = |setting, processes| run(setting, processes).expect_err("no").to_string();
        let two = VmSetting { threads: Some(2), ..VmSetting::new(Mode::Baseline) };
        assert_eq!(
            refusal(two, 1),
            "--vm: threads=2: mode baseline has queues for 1 to 1 threads; ask for \
             fewer threads, or choose mode mq or miot"
        );
        let none = VmSetting { threads: Some(0), ..VmSetting::new(Mode::Mq) };
        assert!(refusal(none, 1).ends_with("has queues for 1 to 8 threads; write 1 or more"));
        let still = VmSetting { without: vec![Effect::Bound], ..VmSetting::new(Mode::Mq) };
        assert!(refusal(still, 1).contains("without=bound: there is no bound"));
        let few = VmSetting { vcpus: 2, ..VmSetting::new(Mode::Mq) };
        assert!(refusal(few, 3).contains("--numjobs 3: each process has a vCPU, and there are 2"));
        let many = VmSetting { vcpus: 64, ..VmSetting::new(Mode::Mq) };
        assert!(refusal(many, 3).contains("vcpus=64: a guest has 1 to 63 vCPUs"));
    }
}
