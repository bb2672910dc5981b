//! One row of a virtual machine: everything made inside the simulation, run, and counted.
//!
//! `Vm` is what vCPUs and I/O threads share; `run_vm` what experiments call. The simulation ends
//! when every process has: the last one wakes all that sleep.

use std::sync::{Arc, Mutex, PoisonError};

use millrace_block::{Disk, DiskConfig, Layout, Volume};
use millrace_drives::open_on;
use millrace_machine::{CpuId, Machine, Model, Report, Simulated, Simulation, Thread};

use super::iothread::{self, ThreadHandle};
use super::ring::Ring;
use super::vcpu::{Cores, Vcpu};
use super::{Counts, VmCosts, VmPlan, guest, lock};
use crate::bench::BenchError;
use crate::sim::{PollerDriver, Window};

/// Virtual time after which a row that has not ended is given up.
const LIMIT_NS: u64 = 100_000_000_000;

/// What happened, and what had when the window began.
#[derive(Debug, Default)]
pub(super) struct Windowed {
    now: Counts,
    before: Counts,
    inside: Counts,
}

impl Windowed {
    pub(super) fn begin(&mut self) {
        self.before = self.now;
    }

    pub(super) fn end(&mut self) {
        self.inside = self.now.since(&self.before);
    }
}

/// What the threads of a virtual machine share.
pub(super) struct Vm {
    pub(super) plan: VmPlan,
    pub(super) costs: VmCosts,
    /// From one of the guest's processes to another, or to nothing and back.
    pub(super) guest_switch_ns: u64,
    /// Fixed cost of a submission: its system calls and those of the turn that it makes necessary.
    pub(super) turn_ns: u64,
    /// Size of the drive.
    pub(super) bytes: u64,
    pub(super) volume: Arc<Volume<Simulated>>,
    pub(super) vcpus: Vec<Vcpu>,
    pub(super) rings: Vec<Arc<Ring>>,
    pub(super) handles: Vec<ThreadHandle>,
    pub(super) cores: Cores,
    pub(super) window: Window,
    pub(super) counts: Mutex<Windowed>,
    processes: Mutex<u32>,
}

impl Vm {
    fn new(model: &Model, costs: &VmCosts, plan: &VmPlan) -> Result<Vm, BenchError> {
        let failed = |error: millrace_drives::SpecError| BenchError::Workload(error.to_string());
        let mut driver = open_on::<Simulated>(&plan.drive).map_err(failed)?;
        if plan.interrupts {
            driver = Box::new(PollerDriver(driver));
        }
        let disks = vec![Disk::new(driver, DiskConfig::default())?];
        let volume = Volume::new("vm", Layout::Linear, disks)?;
        let (served, cpus) = (plan.served, model.cpus());
        Ok(Vm {
            costs: costs.clone(),
            turn_ns: turn_ns(model, costs),
            guest_switch_ns: model.threads.context_switch.ns.round() as u64,
            bytes: volume.capacity() << 9,
            volume,
            vcpus: (0..plan.vcpus).map(|number| Vcpu::new(number, number % cpus)).collect(),
            rings: (0..served.queues).map(|_| Arc::new(Ring::new())).collect(),
            handles: (0..served.threads)
                .map(|t| ThreadHandle::new(served.thread_cpu(t, cpus)))
                .collect(),
            cores: Cores::new(model),
            window: Window::new(plan.length, plan.processes, plan.workload.iodepth),
            counts: Mutex::default(),
            processes: Mutex::new(plan.processes),
            plan: plan.clone(),
        })
    }

    pub(super) fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut lock(&self.counts).now);
    }

    /// Notifies the I/O thread of a queue.
    pub(super) fn kick(&self, queue: u32) {
        let handle = &self.handles[(queue % self.plan.served.threads) as usize];
        *lock(&handle.kicked) |= 1 << queue;
        handle.bell.ring();
    }

    /// Whether every process has ended.
    pub(super) fn is_over(&self) -> bool {
        *lock(&self.processes) == 0
    }

    /// A process has ended; others that only wait for slots are to notice that the window is over.
    pub(super) fn process_ended(&self) {
        *lock(&self.processes) -= 1;
        self.vcpus.iter().for_each(|vcpu| vcpu.bell.ring());
        self.handles.iter().for_each(|handle| handle.bell.ring());
    }
}

/// `ppoll`, `io_submit`, the read of the completions' eventfd and `io_getevents`.
fn turn_ns(model: &Model, costs: &VmCosts) -> u64 {
    let bodies = &costs.device;
    let bodies_ns = bodies.poll.ns + bodies.submit.ns + bodies.reap.ns;
    (bodies_ns + 4.0 * model.threads.system_call.ns).round() as u64
}

/// What a row was like.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Seen {
    pub(crate) iops: f64,
    /// Mean, from submission in the guest to its reaping.
    pub(crate) latency_ns: f64,
    /// In the window.
    pub(crate) counts: Counts,
    /// Of all I/Os, warm-up included: host's context switches, and waiting for queues' locks.
    pub(crate) switches_per_io: f64,
    pub(crate) lock_wait_ns: f64,
    /// Part of the cores' time that they were not idle.
    pub(crate) busy: f64,
    pub(crate) events: u64,
}

/// Runs a row; equal models, costs and plans give equal numbers to the bit.
///
/// # Errors
/// If the plan does not fit, or the simulation fails.
pub(crate) fn run_vm(model: &Model, costs: &VmCosts, plan: &VmPlan) -> Result<Seen, BenchError> {
    let wrong = |text: String| BenchError::Machine { text };
    let (seed, slot) = (plan.workload.seed, Arc::new(Mutex::new(None)));
    let simulation = Simulation::new(model, seed).map_err(|error| wrong(error.to_string()))?;
    let result = Arc::clone(&slot);
    let inner = (model.clone(), costs.clone(), plan.clone());
    let main = move || {
        let ran = Vm::new(&inner.0, &inner.1, &inner.2).map(run_threads);
        *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(ran);
    };
    let report = simulation.time_limit_ns(LIMIT_NS).run(main);
    let report = report.map_err(|error| wrong(error.to_string()))?;
    let ran = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    let vm = ran.ok_or(BenchError::Panicked)??;
    Ok(seen(&vm, &report))
}

/// Starts all threads of a virtual machine and waits for their end.
fn run_threads(vm: Vm) -> Arc<Vm> {
    let vm = Arc::new(vm);
    let mut threads = Vec::new();
    for number in 0..vm.plan.served.threads {
        let (inner, cpu) = (Arc::clone(&vm), vm.handles[number as usize].cpu);
        let body = Box::new(move || iothread::run(&inner, number));
        threads.push(Simulated::spawn(&format!("io-{number}"), Some(CpuId(cpu)), body));
    }
    for number in 0..vm.plan.vcpus {
        let (inner, cpu) = (Arc::clone(&vm), vm.vcpus[number as usize].cpu);
        let body = Box::new(move || guest::run(&inner, number));
        threads.push(Simulated::spawn(&format!("vcpu-{number}"), Some(CpuId(cpu)), body));
    }
    for thread in threads {
        thread.join();
    }
    vm
}

fn seen(vm: &Vm, report: &Report) -> Seen {
    let (length_ns, ios) = vm.window.measured();
    let total = vm.window.total().max(1) as f64;
    let counts = lock(&vm.counts).inside;
    let switches: u64 = report.cpus.iter().map(|cpu| cpu.context_switches).sum();
    let waits = report.locks.iter().filter(|row| row.name == "virtqueue" && row.site.is_none());
    let wait_ns: u64 = waits.map(|row| row.counts.wait_ns).sum();
    let idle_ns: u64 = report.cpus.iter().map(|cpu| cpu.idle_ns).sum();
    let all_ns = report.elapsed_ns() as f64 * report.cpus.len() as f64;
    Seen {
        iops: ios as f64 * 1e9 / length_ns.max(1) as f64,
        latency_ns: counts.latency_ns as f64 / counts.reaped.max(1) as f64,
        counts,
        switches_per_io: switches as f64 / total,
        lock_wait_ns: wait_ns as f64 / total,
        busy: 1.0 - idle_ns as f64 / all_ns.max(1.0),
        events: report.events,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Served;
    use super::*;
    use crate::sim::{Length, machine};
    use crate::workload::{Rw, Workload};

    const ONE: Served =
        Served { queues: 1, threads: 1, steered: true, wait_max_ns: 0, poll_max_ns: 0 };
    const EACH: Served = Served { queues: 8, threads: 8, ..ONE };

    fn run(served: Served, processes: u32, drive: &str) -> Seen {
        let (costs, model) = (VmCosts::kvm_2015(), machine("miot"));
        let plan = VmPlan {
            vcpus: 8,
            processes,
            served,
            workload: Workload {
                rw: Rw::RandRead,
                bs_bytes: 4096,
                iodepth: 32,
                verify: false,
                seed: 1,
            },
            drive: drive.parse().expect("a drive"),
            interrupts: drive != "null",
            length: Length::Ios(400),
        };
        let (costs, model) = (costs.expect("there"), model.expect("there"));
        run_vm(&model, &costs, &plan).expect("it runs")
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
        let polling = run(Served { poll_max_ns: 200_000, ..ONE }, 1, model);
        assert!(polling.counts.kicks * 2 < sleeping.counts.kicks, "{polling:?} {sleeping:?}");
    }
}
