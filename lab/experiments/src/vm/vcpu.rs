//! `Vcpu`: a vCPU as other threads see it: its pending interrupts, and their delivery.
//!
//! A sender marks the interrupt as pending; if it was pending already, the sender does no more. If
//! the vCPU is halted, the sender wakes the vCPU's thread. If the vCPU runs in the guest on another
//! core, the sender sends an IPI to that core, and the vCPU exits when it next checks for
//! interrupts. If the vCPU's thread waits for a core, the interrupt is delivered at the next entry
//! into the guest, without a cost. A vCPU checks for interrupts between two requests, never within
//! a request. Kernel counterpart: `kvm_vcpu_kick`.

use std::sync::Mutex;

use millrace_machine::{Doorbell, Machine, Order, Parker, Word};
use millrace_simulator::{Model, Simulated};

use super::ring::VmRequest;

use millrace_machine::lock_unpoisoned;

/// Bit that stands for an IPI among a vCPU's pending interrupts. The lower bits stand for queues.
pub(super) const IPI: u64 = 1 << 63;

/// The vCPU that runs on each CPU. Threads report each change with `enter`.
#[derive(Debug)]
pub(super) struct Cores {
    running: Mutex<Vec<Option<u32>>>,
    send_ns: u64,
}

impl Cores {
    pub(super) fn new(model: &Model) -> Cores {
        Cores {
            running: Mutex::new(vec![None; model.cpus() as usize]),
            send_ns: model.threads.interrupt_send.ns.round() as u64,
        }
    }

    /// Records the vCPU that runs on the calling thread's CPU. `vcpu` is `None` if the caller is an
    /// I/O thread, or a vCPU that is about to halt.
    pub(super) fn enter(&self, vcpu: Option<&Vcpu>) {
        let cpu = Simulated::cpu().0;
        if let Some(vcpu) = vcpu {
            *lock_unpoisoned(&vcpu.cpu) = cpu;
        }
        lock_unpoisoned(&self.running)[cpu as usize] = vcpu.map(|vcpu| vcpu.number);
    }

    fn has(&self, cpu: u32, vcpu: u32) -> bool {
        lock_unpoisoned(&self.running)[cpu as usize] == Some(vcpu)
    }
}

pub(super) struct Vcpu {
    pub(super) number: u32,
    /// CPU on which the vCPU's thread ran when it last reported its CPU. Access takes no virtual
    /// time.
    cpu: Mutex<u32>,
    pending: <Simulated as Machine>::Word,
    pub(super) bell: Doorbell<Simulated>,
    kicked: Mutex<bool>,
    /// Completed requests of this vCPU that another vCPU took off the ring. Access to this `Vec`
    /// takes no virtual time. Instead, each access also swaps `remote_head`, the list's head in the
    /// guest's memory, which takes virtual time.
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

    pub(super) fn cpu(&self) -> u32 {
        *lock_unpoisoned(&self.cpu)
    }

    pub(super) fn interrupt(&self, bit: u64, cores: &Cores) {
        // Relaxed: the fence in `ring` orders this store before the check for a sleeping vCPU.
        if self.pending.fetch_or(bit, Order::Relaxed) & bit != 0 {
            return;
        }
        self.bell.ring();
        if self.cpu() != Simulated::cpu().0 && cores.has(self.cpu(), self.number) {
            *lock_unpoisoned(&self.kicked) = true;
            // Charge only the sending thread for the IPI. The interrupted vCPU is charged for its
            // exit when it takes the interrupt.
            Simulated::charge(cores.send_ns);
        }
    }

    pub(super) fn is_interrupted(&self) -> bool {
        // Acquire: makes visible the data that a thread stored before it set a bit of `pending`.
        self.pending.load(Order::Acquire) != 0
    }

    /// Takes all pending interrupts and returns them as a bit set. The returned bool is true if one
    /// of the interrupts made the vCPU exit to the host.
    pub(super) fn take_interrupts(&self) -> (u64, bool) {
        let bits = self.pending.swap(0, Order::AcqRel);
        (bits, std::mem::take(&mut *lock_unpoisoned(&self.kicked)))
    }

    /// Hands over a completed request to this vCPU from the calling vCPU, which took the request
    /// off the ring. Returns true if the caller must send an IPI.
    pub(super) fn hand_over(&self, request: VmRequest) -> bool {
        lock_unpoisoned(&self.remote).push(request);
        // AcqRel: pairs with the swap in `take_remote`.
        self.remote_head.swap(1, Order::AcqRel) == 0
    }

    pub(super) fn take_remote(&self) -> Vec<VmRequest> {
        // AcqRel: pairs with the swap in `hand_over`.
        self.remote_head.swap(0, Order::AcqRel);
        std::mem::take(&mut *lock_unpoisoned(&self.remote))
    }
}
