//! The thread of a vCPU: a submitting process, the guest's driver, its interrupts and halts.
//!
//! Each vCPU is one simulated thread. The process behaves like fio with libaio: it submits I/Os one
//! by one, waits for at least one completion, reaps all completions, and submits as many I/Os
//! again. Each submission is a system call of the guest, which does not exit to the host. A process
//! that finds no free slot of the ring waits for one. The vCPU handles interrupts between two
//! requests. A request completes on the vCPU that submitted it, if necessary by an IPI: QEMU
//! presents each vCPU as a socket, so the guest assumes that vCPUs share no cache, and blk-mq
//! completes on the submitting CPU. The vCPU takes requests back under the virtqueue's lock, like
//! `virtblk_done` of Linux 3.17.

use std::collections::VecDeque;

use millrace_block::Op;
use millrace_machine::Machine;
use millrace_simulator::Simulated;

use super::Effect;
use super::costs::charge;
use super::machine::Vm;
use super::ring::VmRequest;
use super::vcpu::{IPI, Vcpu};
use crate::load::workload::Offsets;
use crate::simulation::WindowStep;
use millrace_machine::lock_unpoisoned;

struct Process {
    offsets: Offsets,
    /// Number of I/Os that the process may submit before it must wait for a completion.
    idle: u32,
    in_flight: u32,
    /// Time since which the process waits for a free slot of the ring; `None` if it does not wait.
    waits_since_ns: Option<u64>,
}

pub(super) struct GuestCpu<'a> {
    vm: &'a Vm,
    me: &'a Vcpu,
    process: Option<Process>,
    done: VecDeque<VmRequest>,
}

pub(super) fn run(vm: &Vm, number: u32) {
    let workload = &vm.plan.workload;
    let process = (number < vm.plan.processes).then(|| Process {
        offsets: Offsets::new(
            workload,
            vm.bytes / u64::from(workload.bs_bytes),
            (number.into(), vm.plan.processes.into()),
        ),
        idle: workload.iodepth,
        in_flight: 0,
        waits_since_ns: None,
    });
    let me = &vm.vcpus[number as usize];
    if vm.plan.has(Effect::Roaming) {
        Simulated::roam();
    }
    GuestCpu { vm, me, process, done: VecDeque::new() }.run();
}

impl GuestCpu<'_> {
    fn run(&mut self) {
        loop {
            self.take_interrupts();
            if self.process.is_some() {
                self.submit();
                if self.reap() {
                    continue;
                }
                let over = self.vm.window.is_over();
                self.process = self.process.take().filter(|p| !(over && p.in_flight == 0));
                if self.process.is_none() {
                    self.count_reaped(0);
                    self.vm.process_ended();
                    continue;
                }
            }
            if self.vm.is_over() {
                return;
            }
            self.halt();
        }
    }

    /// Submits I/Os until the process must wait for a completion, or the ring has no free slot.
    fn submit(&mut self) {
        let pages = self.vm.plan.workload.bs_bytes.div_ceil(4096) - 1;
        let sectors = u64::from(self.vm.plan.workload.bs_bytes >> 9);
        while !self.vm.window.is_over() {
            let Some(process) = self.process.as_mut().filter(|process| process.idle > 0) else {
                return;
            };
            // The latency includes the time for which the process waited for a free slot of the
            // virtqueue's ring.
            let start_ns = process.waits_since_ns.take().unwrap_or_else(Simulated::now);
            Simulated::system_call();
            charge(&self.vm.costs.guest.interface, 1);
            let (block, op) = process.offsets.next_io();
            let request =
                VmRequest { slot: 0, vcpu: self.me.number, op, sector: block * sectors, start_ns };
            charge(&self.vm.costs.guest.layer, 1);
            charge(&self.vm.costs.guest.page, pages);
            let is_added = self.add(request);
            if let Some(process) = &mut self.process {
                if !is_added {
                    process.waits_since_ns = Some(start_ns);
                    return;
                }
                process.idle -= 1;
                process.in_flight += 1;
            }
            self.take_interrupts();
        }
    }

    /// Adds a request to the vCPU's queue. Returns false if no slot is free.
    fn add(&self, request: VmRequest) -> bool {
        let queue = self.me.number % self.vm.plan.served.queues;
        let costs = &self.vm.costs;
        let Some(kick) = self.vm.rings[queue as usize].add(request, || charge(&costs.guest.add, 1))
        else {
            return false;
        };
        if kick {
            self.vm.count(|counts| counts.kicks += 1);
            charge(&costs.exits.kick, 1);
            self.vm.kick(queue);
        }
        true
    }

    fn reap(&mut self) -> bool {
        let (Some(process), false) = (&mut self.process, self.done.is_empty()) else {
            return false;
        };
        Simulated::system_call();
        let now_ns = Simulated::now();
        let reaped = self.done.len() as u32;
        let latency = |request: VmRequest| now_ns.saturating_sub(request.start_ns);
        let latency_ns: u64 = self.done.drain(..).map(latency).sum();
        process.idle += reaped;
        process.in_flight -= reaped;
        self.vm.count(|counts| {
            counts.latency_ns += latency_ns;
            counts.reaped += u64::from(reaped);
        });
        self.count_reaped(reaped);
        true
    }

    fn count_reaped(&self, reaped: u32) {
        match self.vm.window.count::<Simulated>(reaped.into()) {
            WindowStep::Nothing => {}
            WindowStep::Begin => lock_unpoisoned(&self.vm.counts).begin(),
            WindowStep::End => lock_unpoisoned(&self.vm.counts).end(),
        }
    }

    /// Halts the vCPU until an interrupt arrives, or until all processes have ended. If the vCPU
    /// has a process, the process is waiting: also charges the time to switch to the guest's idle
    /// task and back.
    fn halt(&self) {
        self.vm.count(|counts| counts.halts += 1);
        if self.process.is_some() {
            Simulated::charge(self.vm.guest_switch_ns);
        }
        charge(&self.vm.costs.exits.halt, 1);
        self.vm.cores.enter(None);
        let woken = || self.me.is_interrupted() || self.vm.is_over();
        self.me.bell.sleep_unless(None, woken);
    }

    fn take_interrupts(&mut self) {
        self.vm.cores.enter(Some(self.me));
        if !self.me.is_interrupted() {
            return;
        }
        let costs = &self.vm.costs;
        let (bits, exits) = self.me.take_interrupts();
        if exits {
            self.vm.count(|counts| counts.interrupted += 1);
            charge(&costs.exits.interrupt, 1);
        }
        charge(&costs.guest.interrupt, bits.count_ones());
        if bits & IPI != 0 {
            for request in self.me.take_remote() {
                self.complete(request);
            }
        }
        let queues = self.vm.plan.served.queues;
        (0..queues).filter(|queue| bits & (1 << queue) != 0).for_each(|queue| self.drain(queue));
    }

    fn drain(&mut self, queue: u32) {
        let vm = self.vm;
        let told = vm.rings[queue as usize].take_done(|request| {
            charge(&vm.costs.guest.get, 1);
            if request.vcpu == self.me.number {
                self.complete(request);
            } else if vm.vcpus[request.vcpu as usize].hand_over(request) {
                self.send_ipi(request.vcpu);
            }
        });
        // Send IPIs to the vCPUs whose processes wait for free slots of the virtqueue's ring.
        told.into_iter().filter(|vcpu| *vcpu != self.me.number).for_each(|v| self.send_ipi(v));
    }

    fn send_ipi(&self, vcpu: u32) {
        self.vm.count(|counts| counts.ipis += 1);
        charge(&self.vm.costs.exits.ipi, 1);
        self.vm.vcpus[vcpu as usize].interrupt(IPI, &self.vm.cores);
    }

    fn complete(&mut self, request: VmRequest) {
        debug_assert!(
            matches!(request.op, Op::Read | Op::Write),
            "a process submits only reads and writes"
        );
        charge(&self.vm.costs.guest.complete, 1);
        self.done.push_back(request);
    }
}
