//! `Vcpu`: a vCPU as other threads see it: interrupts that wait, and how it is told of them.
//!
//! A sender marks the interrupt. One that was marked already says nothing more. If the vCPU is
//! halted its thread is woken; if it runs in the guest on another core that gets an IPI, and the
//! vCPU an exit when it next looks; if its thread only waits for its core the interrupt goes in
//! with the next entry, free of charge. A vCPU looks between two requests: an interrupt does not
//! come in the middle of one. Kernel counterpart: `kvm_vcpu_kick`.

use std::sync::Mutex;

use millrace_machine::{Doorbell, Machine, Order, Parker, Word};
use millrace_simulator::{Model, Simulated};

use super::lock;
use super::ring::VmRequest;

/// The bit of IPIs; those below are queues.
pub(super) const IPI: u64 = 1 << 63;

/// The vCPU that runs on each core at this moment, as far as the threads have said.
#[derive(Debug)]
pub(super) struct Cores {
    running: Mutex<Vec<Option<u32>>>,
    /// Sending an IPI from one to another.
    send_ns: u64,
}

impl Cores {
    pub(super) fn new(model: &Model) -> Cores {
        Cores {
            running: Mutex::new(vec![None; model.cpus() as usize]),
            send_ns: model.threads.interrupt_send.ns.round() as u64,
        }
    }

    /// The caller has its CPU: a vCPU, or an I/O thread or a vCPU that halts.
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
    /// Where its thread ran last, as far as it has said: the simulation's own state.
    cpu: Mutex<u32>,
    pending: <Simulated as Machine>::Word,
    pub(super) bell: Doorbell<Simulated>,
    /// An IPI made or will make it exit.
    kicked: Mutex<bool>,
    /// Requests of its own that another vCPU has taken back, and the head of their list.
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

    /// Where its thread ran last.
    pub(super) fn cpu(&self) -> u32 {
        *lock(&self.cpu)
    }

    /// Marks an interrupt and tells the vCPU.
    pub(super) fn interrupt(&self, bit: u64, cores: &Cores) {
        // Relaxed: the doorbell's fence orders it before the look at the bell.
        if self.pending.fetch_or(bit, Order::Relaxed) & bit != 0 {
            return;
        }
        self.bell.ring();
        if self.cpu() != Simulated::cpu().0 && cores.has(self.cpu(), self.number) {
            *lock(&self.kicked) = true;
            // What it costs the vCPU is part of its exit.
            Simulated::charge(cores.send_ns);
        }
    }

    /// Whether there is one.
    pub(super) fn is_interrupted(&self) -> bool {
        // Acquire: what was done before the marking is seen.
        self.pending.load(Order::Acquire) != 0
    }

    /// Takes all that wait, and whether they made it exit.
    pub(super) fn take_interrupts(&self) -> (u64, bool) {
        let bits = self.pending.swap(0, Order::AcqRel);
        (bits, std::mem::take(&mut *lock(&self.kicked)))
    }

    /// Another vCPU hands over a request of this one; whether this must be told by an IPI.
    pub(super) fn hand_over(&self, request: VmRequest) -> bool {
        lock(&self.remote).push(request);
        // AcqRel: pairs with the swap in `take_remote`.
        self.remote_head.swap(1, Order::AcqRel) == 0
    }

    /// Takes what was handed over.
    pub(super) fn take_remote(&self) -> Vec<VmRequest> {
        // AcqRel: pairs with the swap in `hand_over`.
        self.remote_head.swap(0, Order::AcqRel);
        std::mem::take(&mut *lock(&self.remote))
    }
}
