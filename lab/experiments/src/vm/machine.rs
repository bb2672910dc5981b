//! `Vm`: state shared by the vCPUs and I/O threads of a virtual machine.
//!
//! `run` creates this state inside the simulation; `guest` and `iothread` use it.

use std::sync::{Arc, Mutex};

use millrace_block::{Disk, DiskConfig, Layout, Volume};
use millrace_drives::open_on;
use millrace_machine::{Doorbell, Machine, Parker};
use millrace_simulator::{Model, Simulated};

use super::memory::GuestMemory;
use super::ring::Ring;
use super::spinlock::PauseLoop;
use super::vcpu::{Cores, Vcpu};
use super::{Counts, Effect, VmCosts, VmPlan};
use crate::filter::FilteredDriver;
use crate::load::bench::{BenchError, Interrupt};
use crate::simulation::{PollerDriver, Window};
use millrace_machine::lock_unpoisoned;

#[derive(Debug, Default)]
pub(super) struct Windowed {
    now: Counts,
    before: Counts,
    pub(super) inside: Counts,
}

impl Windowed {
    pub(super) fn begin(&mut self) {
        self.before = self.now;
    }

    pub(super) fn end(&mut self) {
        self.inside = self.now.since(&self.before);
    }
}

pub(super) struct Vm {
    pub(super) plan: VmPlan,
    pub(super) costs: VmCosts,
    /// Cost of a context switch in the guest: from one process to another, or to the idle task and
    /// back, in nanoseconds.
    pub(super) guest_switch_ns: u64,
    /// Cost, in nanoseconds, of the system calls to submit and reap a batch of any size.
    pub(super) turn_ns: u64,
    pub(super) bytes: u64,
    pub(super) volume: Arc<Volume<Simulated>>,
    pub(super) vcpus: Vec<Vcpu>,
    pub(super) rings: Vec<Arc<Ring>>,
    pub(super) handles: Vec<ThreadHandle>,
    pub(super) cores: Cores,
    /// QEMU's maps of the guest's memory: one for all I/O threads, or one per thread.
    pub(super) memory: Vec<GuestMemory>,
    pub(super) window: Window,
    pub(super) counts: Mutex<Windowed>,
    processes: Mutex<u32>,
}

impl Vm {
    pub(super) fn new(
        model: &Model,
        costs: &VmCosts,
        (plan, interrupt): (&VmPlan, &Interrupt),
    ) -> Result<Vm, BenchError> {
        let failed = |error: millrace_drives::SpecError| BenchError::Workload(error.to_string());
        let mut driver = open_on::<Simulated>(&plan.drive).map_err(failed)?;
        if plan.interrupts {
            driver = Box::new(FilteredDriver(PollerDriver(driver)));
        }
        let disks = vec![Disk::new(driver, DiskConfig::default())?];
        let volume = Volume::new("vm", Layout::Linear, disks)?;
        let served = plan.served;
        let place = |number| cpu_of(model, number);
        let pause = plan.has(Effect::Preemption).then(|| PauseLoop {
            window: costs.exits.pause_window.clone(),
            exit: costs.exits.pause.clone(),
        });
        Ok(Vm {
            costs: costs.clone(),
            turn_ns: match plan.has(Effect::Bound) {
                true => turn_ns(model, costs),
                false => served.wait_max_ns,
            },
            guest_switch_ns: model.threads.context_switch.ns.round() as u64,
            bytes: volume.capacity() << 9,
            volume,
            vcpus: (0..plan.vcpus).map(|number| Vcpu::new(number, place(number))).collect(),
            rings: (0..served.queues).map(|_| Arc::new(Ring::new(pause.clone()))).collect(),
            handles: (0..served.threads)
                .map(|thread| ThreadHandle::new(served.thread_cpu(thread, model)))
                .collect(),
            cores: Cores::new(model),
            memory: (0..if plan.has(Effect::Translation) { 1 } else { served.threads })
                .map(|_| GuestMemory::new())
                .collect(),
            window: Window::new(plan.length, plan.processes, plan.workload.iodepth)
                .ended_by(interrupt),
            counts: Mutex::default(),
            processes: Mutex::new(plan.processes),
            plan: plan.clone(),
        })
    }

    pub(super) fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut lock_unpoisoned(&self.counts).now);
    }

    pub(super) fn kick(&self, queue: u32) {
        let handle = &self.handles[(queue % self.plan.served.threads) as usize];
        *lock_unpoisoned(&handle.kicked) |= 1 << queue;
        handle.bell.ring();
    }

    pub(super) fn is_over(&self) -> bool {
        *lock_unpoisoned(&self.processes) == 0
    }

    /// Records the end of a process, and wakes all threads so that waiting processes notice the
    /// end.
    pub(super) fn process_ended(&self) {
        *lock_unpoisoned(&self.processes) -= 1;
        self.vcpus.iter().for_each(|vcpu| vcpu.bell.ring());
        self.handles.iter().for_each(|handle| handle.bell.ring());
    }
}

/// Returns the CPU for thread `number`. The first threads get the first CPU of each core, the next
/// threads the second CPU of each core. When all CPUs have a thread, the order repeats.
pub(super) fn cpu_of(model: &Model, number: u32) -> u32 {
    let per_core = model.cpus_per_socket() / model.cores_per_socket;
    let cores = model.sockets * model.cores_per_socket;
    number % cores * per_core + number / cores % per_core
}

/// Returns the cost of `ppoll`, `io_submit`, the read of the completions' eventfd and
/// `io_getevents`.
fn turn_ns(model: &Model, costs: &VmCosts) -> u64 {
    let bodies = &costs.device;
    let bodies_ns = bodies.poll.ns + bodies.submit.ns + bodies.reap.ns;
    (bodies_ns + 4.0 * model.threads.system_call.ns).round() as u64
}

pub(super) struct ThreadHandle {
    pub(super) cpu: u32,
    pub(super) bell: Arc<Doorbell<Simulated>>,
    pub(super) kicked: std::sync::Mutex<u64>,
}

impl ThreadHandle {
    pub(super) fn new(cpu: u32) -> ThreadHandle {
        let bell = Arc::new(Doorbell::new(<Simulated as Machine>::Parker::new()));
        ThreadHandle { cpu, bell, kicked: std::sync::Mutex::new(0) }
    }
}
