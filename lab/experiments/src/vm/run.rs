//! Runs one simulation of a virtual machine: creates its threads and queues, runs them, and
//! computes the results.
//!
//! Experiments call `run_vm`. The simulation ends when every process has ended; the last process
//! wakes all sleeping threads so that these end, too.

use std::sync::Arc;

use millrace_machine::{CpuId, Machine, Thread, lock_unpoisoned};
use millrace_simulator::{Model, Report, Simulated};

use super::machine::Vm;
use super::{Counts, Effect, LockSeen, VmCosts, VmPlan, guest, iothread};
use crate::load::bench::{BenchError, Interrupt};
use crate::load::threads::simulate;

const LIMIT_NS: u64 = 100_000_000_000;

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct VmResult {
    pub(crate) iops: f64,
    pub(crate) latency_ns: f64,
    pub(crate) counts: Counts,
    /// Number of context switches of the host per I/O, warm-up included.
    pub(crate) switches_per_io: f64,
    /// Time spent waiting for the queues' locks, per I/O, warm-up included.
    pub(crate) lock_wait_ns: f64,
    /// Statistics of the queues' locks, warm-up included. All zero if `Effect::Preemption` is left
    /// out: the locks are then locks of the simulator, which has its own statistics.
    pub(crate) locks: LockSeen,
    pub(crate) busy: f64,
    pub(crate) events: u64,
}

/// Runs a simulation. Equal models, costs and plans give bit-identical results.
pub(crate) fn run_vm(
    model: &Model,
    costs: &VmCosts,
    plan: &VmPlan,
) -> Result<VmResult, BenchError> {
    run_vm_until(model, costs, (plan, &Interrupt::default()))
}

pub(crate) fn run_vm_until(
    model: &Model,
    costs: &VmCosts,
    (plan, interrupt): (&VmPlan, &Interrupt),
) -> Result<VmResult, BenchError> {
    let model = &with_effects(model, plan);
    let inner = (model.clone(), costs.clone(), plan.clone(), interrupt.clone());
    let main = move || Vm::new(&inner.0, &inner.1, (&inner.2, &inner.3)).map(run_threads);
    let (vm, report) = simulate((model, plan.workload.seed), (0, LIMIT_NS), main)?;
    Ok(seen(&vm, &report))
}

fn with_effects(model: &Model, plan: &VmPlan) -> Model {
    let mut model = model.clone();
    if !plan.has(Effect::Sharing) {
        share_nothing(&mut model);
    }
    model
}

/// Makes each hyper-thread of the model as fast as a core of its own, as if the hyper-threads of a
/// core shared no execution units.
pub(crate) fn share_nothing(model: &mut Model) {
    if let Some(threads) = &mut model.hyper_threads {
        threads.gain.factor = f64::from(threads.per_core);
    }
}

fn run_threads(vm: Vm) -> Arc<Vm> {
    let vm = Arc::new(vm);
    let mut threads = Vec::new();
    for number in 0..vm.plan.served.threads {
        let (inner, cpu) = (Arc::clone(&vm), vm.handles[number as usize].cpu);
        let body = Box::new(move || iothread::run(&inner, number));
        threads.push(Simulated::spawn(&format!("io-{number}"), Some(CpuId(cpu)), body));
    }
    for number in 0..vm.plan.vcpus {
        let (inner, cpu) = (Arc::clone(&vm), vm.vcpus[number as usize].cpu());
        let body = Box::new(move || guest::run(&inner, number));
        threads.push(Simulated::spawn(&format!("vcpu-{number}"), Some(CpuId(cpu)), body));
    }
    for thread in threads {
        thread.join();
    }
    vm
}

fn seen(vm: &Vm, report: &Report) -> VmResult {
    let (length_ns, ios) = vm.window.measured();
    let total = vm.window.total().max(1) as f64;
    let counts = lock_unpoisoned(&vm.counts).inside;
    let switches: u64 = report.cpus.iter().map(|cpu| cpu.context_switches).sum();
    let waits = report.locks.iter().filter(|row| row.name == "virtqueue" && row.site.is_none());
    let locks = vm.rings.iter().map(|ring| ring.lock_seen());
    let locks = locks.fold(LockSeen::default(), LockSeen::plus);
    let wait_ns = waits.map(|row| row.counts.wait_ns).sum::<u64>() + locks.wait_ns;
    let idle_ns: u64 = report.cpus.iter().map(|cpu| cpu.idle_ns).sum();
    let all_ns = report.elapsed_ns() as f64 * report.cpus.len() as f64;
    VmResult {
        iops: ios as f64 * 1e9 / length_ns.max(1) as f64,
        latency_ns: counts.latency_ns as f64 / counts.reaped.max(1) as f64,
        counts,
        switches_per_io: switches as f64 / total,
        lock_wait_ns: wait_ns as f64 / total,
        locks,
        busy: 1.0 - idle_ns as f64 / all_ns.max(1.0),
        events: report.events,
    }
}

#[cfg(test)]
mod tests {
    use super::super::QueueService;
    use super::*;
    use crate::load::workload::{Rw, Workload};
    use crate::simulation::{Length, machine};

    const ONE: QueueService =
        QueueService { queues: 1, threads: 1, steered: true, wait_max_ns: 0, poll_max_ns: 0 };
    const EACH: QueueService = QueueService { queues: 8, threads: 8, ..ONE };

    fn run(served: QueueService, processes: u32, drive: &str) -> VmResult {
        let (costs, model) = (VmCosts::kvm_2015(), machine("miot"));
        let plan = VmPlan {
            vcpus: 8,
            processes,
            served,
            without: Vec::new(),
            workload: Workload {
                rw: Rw::RandRead,
                bs_bytes: 4096,
                iodepth: 32,
                verify: false,
                seed: 1,
            },
            drive: drive.parse().expect("the drive's spec must be valid"),
            interrupts: drive != "null",
            length: Length::Ios(400),
        };
        let (costs, model) = (costs.expect("there"), model.expect("there"));
        run_vm(&model, &costs, &plan).expect("the run must succeed")
    }

    #[test]
    fn the_same_row_is_the_same_to_the_bit_and_nothing_gets_lost() {
        for drive in ["null", "model:preset=miot-nvme"] {
            for (served, processes) in [(ONE, 8), (EACH, 8), (ONE, 1)] {
                let seen = run(served, processes, drive);
                assert_eq!(seen, run(served, processes, drive));
                assert!(seen.counts.reaped >= 400 * u64::from(processes), "{:?}", seen.counts);
            }
        }
    }

    #[test]
    fn only_a_shared_queue_is_waited_for_and_needs_ipis() {
        let (shared, own) = (run(ONE, 4, "null"), run(EACH, 4, "null"));
        assert!(shared.lock_wait_ns > 0.0 && shared.counts.ipis > 0);
        assert!(own.lock_wait_ns == 0.0 && own.counts.ipis == 0, "{:?}", own.counts);
    }

    #[test]
    fn who_polls_is_notified_less() {
        let model = "model:preset=miot-nvme";
        let sleeping = run(ONE, 1, model);
        let polling = run(QueueService { poll_max_ns: 200_000, ..ONE }, 1, model);
        assert!(polling.counts.kicks * 2 < sleeping.counts.kicks, "{polling:?} {sleeping:?}");
    }
}
