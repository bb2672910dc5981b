//! `Vcpu`: a vCPU as other threads see it: its pending interrupts, and their delivery.
//!
//! A sender marks the interrupt; if it was already marked there is nothing more to do. If the vCPU
//! is halted its thread is woken. If it runs in the guest on another core, that core gets an IPI,
//! and the vCPU exits when it next checks. If its thread only waits for its core, the interrupt is
//! delivered with the next entry, free of charge. A vCPU checks between two requests: an interrupt
//! does not come in the middle of one. Kernel counterpart: `kvm_vcpu_kick`.

use std::sync::Mutex;

use millrace_machine::{Doorbell, Machine, Order, Parker, Word};
use millrace_simulator::{Model, Simulated};

use super::lock;
use super::ring::VmRequest;

/// Interrupt bit of IPIs; lower bits are queues.
pub(super) const IPI: u64 = 1 << 63;

/// The vCPU that runs on each core, as far as the threads have reported.
#[derive(Debug)]
pub(super) struct Cores {
    running: Mutex<Vec<Option<u32>>>,
    /// Cost of sending an IPI between cores, in nanoseconds.
    send_ns: u64,
}

impl Cores {
    pub(super) fn new(model: &Model) -> Cores {
        Cores {
            running: Mutex::new(vec![None; model.cpus() as usize]),
            send_ns: model.threads.interrupt_send.ns.round() as u64,
        }
    }

    /// Records that the caller runs on its CPU: a vCPU in the guest, or None for an I/O thread or a
    /// vCPU that halts.
    pub(super) fn enter(&self, vcpu: Option<&Vcpu>) {
        let cpu = Simulated::cpu().0;
        if let Some(vcpu) = vcpu {
            *lock(&vcpu.cpu) = cpu;
        }
        lock(&self.running)[cpu as usize] = vcpu.map(|vcpu| vcpu.number);
    }

    fn has(&self, cpu: u32, vcpu: u32) -> bool {
        lock(&self.running)[cpu as usize] == Some(vcpu)
    }
}

/// A vCPU.
pub(super) struct Vcpu {
    pub(super) number: u32,
    /// CPU on which its thread ran last, as far as it has reported; state of the simulation itself.
    cpu: Mutex<u32>,
    pending: <Simulated as Machine>::Word,
    pub(super) bell: Doorbell<Simulated>,
    /// True if an IPI made, or will make, the vCPU exit.
    kicked: Mutex<bool>,
    /// Requests of this vCPU that another vCPU has taken back, and the head of their list.
    remote: Mutex<Vec<VmRequest>>,
    remote_head: <Simulated as Machine>::Word,
}

impl Vcpu {
    pub(super) fn new(number: u32, cpu: u32) -> Vcpu {
        let word = || <Simulated as Machine>::Word::new(0);
        Vcpu {
            number,
            cpu: Mutex::new(cpu),
            pending: word(),
            bell: Doorbell::new(<Simulated as Machine>::Parker::new()),
            kicked: Mutex::new(false),
            remote: Mutex::default(),
            remote_head: word(),
        }
    }

    /// Returns the CPU on which the thread ran last.
    pub(super) fn cpu(&self) -> u32 {
        *lock(&self.cpu)
    }

    /// Marks an interrupt and notifies the vCPU.
    pub(super) fn interrupt(&self, bit: u64, cores: &Cores) {
        // Relaxed: the doorbell's fence orders it before the check of the doorbell.
        if self.pending.fetch_or(bit, Order::Relaxed) & bit != 0 {
            return;
        }
        self.bell.ring();
        if self.cpu() != Simulated::cpu().0 && cores.has(self.cpu(), self.number) {
            *lock(&self.kicked) = true;
            // The cost to the vCPU is part of its exit.
            Simulated::charge(cores.send_ns);
        }
    }

    /// Returns true if an interrupt is pending.
    pub(super) fn is_interrupted(&self) -> bool {
        // Acquire: makes visible what the sender did before it marked the interrupt.
        self.pending.load(Order::Acquire) != 0
    }

    /// Takes all pending interrupts; also returns true if they made the vCPU exit.
    pub(super) fn take_interrupts(&self) -> (u64, bool) {
        let bits = self.pending.swap(0, Order::AcqRel);
        (bits, std::mem::take(&mut *lock(&self.kicked)))
    }

    /// Hands over a request of this vCPU from another vCPU; returns true if an IPI must be sent.
    pub(super) fn hand_over(&self, request: VmRequest) -> bool {
        lock(&self.remote).push(request);
        // AcqRel: pairs with the swap in `take_remote`.
        self.remote_head.swap(1, Order::AcqRel) == 0
    }

    /// Takes the requests that were handed over.
    pub(super) fn take_remote(&self) -> Vec<VmRequest> {
        // AcqRel: pairs with the swap in `hand_over`.
        self.remote_head.swap(0, Order::AcqRel);
        std::mem::take(&mut *lock(&self.remote))
    }
}
