//! Interrupts of drives that complete asynchronously: handlers find completions and notify the
//! submitters.
//!
//! An `IrqDriver` wraps a drive's driver. Only a handler thread finds completions; it runs on CPU 0
//! or on the first CPU of the hardware queue's socket. For each completion, the handler spends the
//! time of an interrupt, adds the completion to the hardware queue's list, and interrupts the CPU
//! that submitted the request, unless this is its own CPU. The handler then wakes that CPU's
//! submitters, which take the completion through the block layer. So each I/O costs two interrupts
//! and two context switches (Bjorling et al., SYSTOR 2013, section 2.2). A lock protects the
//! drive's queue, as in the NVMe driver of 2013; submitters and the handler take it. Not modelled:
//! an interrupt does not take the CPU from a running job (the handler runs when the job waits),
//! interrupts are not coalesced, and the submitter of the I/O that completes first pays for setting
//! the handler's alarm. Lock order: the device lock before the lock of the filed completions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use millrace_block::{
    CompletionBatch, Dispatch, Driver, DriverQueue, Error, Expired, Request, Spread, Status, Tag,
};
use millrace_machine::{CpuId, Doorbell, Lock, Machine, NodeId, Order, Parker, Topology, Word};

use super::interface::Host;
use super::linux24::Kernel;
use super::{Irq, SimPlan};
use crate::filter::DriverFilter;

pub(super) struct Signal<M: Machine> {
    pub(super) bell: Arc<Doorbell<M>>,
    raised: M::Word,
}

impl<M: Machine> Signal<M> {
    pub(super) fn new() -> Self {
        Signal { bell: Arc::new(Doorbell::new(M::Parker::new())), raised: M::Word::new(0) }
    }

    fn raise(&self) {
        // Relaxed: the fence in `ring` orders this store before the check for a sleeping job.
        self.raised.store(1, Order::Relaxed);
        self.bell.ring();
    }

    pub(super) fn is_raised(&self) -> bool {
        // Relaxed: the fence in `Doorbell::arm` orders this load.
        self.raised.load(Order::Relaxed) != 0
    }

    /// Clears the flag `raised`. A submitting thread must clear the flag before it polls for
    /// completions: clearing the flag after the poll could lose a signal.
    pub(super) fn lower(&self) {
        if self.is_raised() {
            // SeqCst: orders the clearing of `raised` before the submitting thread's next polls for
            // completions.
            self.raised.swap(0, Order::SeqCst);
        }
    }
}

struct Vector<M: Machine> {
    drive: usize,
    device: M::Lock<Device<M>>,
    filed: M::Lock<Vec<(Tag, Status)>>,
}

struct Device<M: Machine> {
    queue: Box<dyn DriverQueue<M>>,
    submitters: Vec<RequestInFlight>,
    batch: CompletionBatch,
    due: Vec<(Tag, Status)>,
}

#[derive(Debug, Clone, Copy, Default)]
struct RequestInFlight {
    cpu: u32,
    segments: u32,
    sectors: u32,
}

struct Handler<M: Machine> {
    cpu: u32,
    bell: Doorbell<M>,
    vectors: M::Lock<Vec<Arc<Vector<M>>>>,
    /// Time of the handler's next poll of the drives, unless the handler is woken earlier. The
    /// field stands for an interrupt that hardware raises, so accesses to it take no virtual time.
    alarm_ns: AtomicU64,
    stop: AtomicBool,
}

type SignalsByDrive<M> = Vec<Vec<Arc<Signal<M>>>>;

pub(super) struct Interrupts<M: Machine> {
    handlers: Vec<Handler<M>>,
    by_cpu: Vec<Vec<Arc<Signal<M>>>>,
    hardware_queues: Spread,
    irq: Irq,
    topology: Topology,
    /// Model of Linux 2.4's interrupt work, and for each drive the signals that wake the drive's
    /// jobs. `None` unless the plan sets `Linux24::adapters`.
    kernel: Option<(Arc<Kernel<M>>, SignalsByDrive<M>)>,
}

impl<M: Host> Interrupts<M> {
    pub(super) fn new(
        plan: &SimPlan,
        signals: &[Arc<Signal<M>>],
        kernel: Option<&Arc<Kernel<M>>>,
    ) -> Option<Arc<Self>> {
        let topology = M::topology();
        let cpus = match plan.irq {
            Irq::Submitter | Irq::Poller => return None,
            Irq::Core0 => vec![topology.cpus()[0].id.0],
            Irq::Steered => first_of_nodes(&topology),
        };
        let handler = |cpu| Handler {
            cpu,
            bell: Doorbell::new(M::Parker::new()),
            vectors: M::Lock::new("irq-vectors", Vec::new()),
            alarm_ns: AtomicU64::new(u64::MAX),
            stop: AtomicBool::new(false),
        };
        let mut by_cpu = vec![Vec::new(); topology.cpus().len()];
        for (job, signal) in signals.iter().enumerate() {
            let cpu = plan.cpu_of(job as u32).unwrap_or(0);
            by_cpu[topology.index_of(CpuId(cpu))].push(Arc::clone(signal));
        }
        Some(Arc::new(Interrupts {
            handlers: cpus.into_iter().map(handler).collect(),
            by_cpu,
            hardware_queues: plan.hardware_queues,
            irq: plan.irq,
            topology,
            kernel: kernel
                .filter(|kernel| kernel.has_adapters())
                .map(|kernel| (Arc::clone(kernel), by_drive(plan, signals))),
        }))
    }

    pub(super) fn start(self: &Arc<Self>) -> Vec<M::Thread> {
        let start = |index: usize| {
            let all = Arc::clone(self);
            let cpu = Some(CpuId(all.handlers[index].cpu));
            M::spawn(&format!("irq-{index}"), cpu, Box::new(move || all.handle(index)))
        };
        (0..self.handlers.len()).map(start).collect()
    }

    pub(super) fn stop(&self) {
        for handler in &self.handlers {
            handler.stop.store(true, Relaxed);
            handler.bell.ring();
        }
    }

    fn home(&self, index: u16) -> usize {
        let node = match (self.irq, self.hardware_queues) {
            (Irq::Steered, Spread::Core) => {
                let cpus = self.topology.cpus();
                cpus[usize::from(index) % cpus.len()].node
            }
            (Irq::Steered, Spread::Node) => NodeId(index.into()),
            _ => NodeId(0),
        };
        node.0 as usize % self.handlers.len()
    }

    fn handle(&self, index: usize) {
        let handler = &self.handlers[index];
        let mut found = Vec::new();
        while !handler.stop.load(Relaxed) {
            // Reset `alarm_ns`, the time of the next poll, before this round of polls. A later
            // reset would lose an earlier time set by a submitter that commits requests during the
            // round.
            handler.alarm_ns.store(u64::MAX, Relaxed);
            let vectors = handler.vectors.lock().clone();
            for vector in &vectors {
                handler.alarm_ns.fetch_min(vector.find(&mut found), Relaxed);
                found.drain(..).for_each(|done| self.forward(handler, vector, done));
            }
            let alarm_ns = handler.alarm_ns.load(Relaxed);
            let deadline_ns = (alarm_ns != u64::MAX).then_some(alarm_ns);
            let stop = || handler.stop.load(Relaxed) || handler.alarm_ns.load(Relaxed) != alarm_ns;
            handler.bell.sleep_unless(deadline_ns, stop);
        }
    }

    /// Handles one interrupt: makes a completion available to the block layer, and notifies the CPU
    /// that submitted the request.
    fn forward(
        &self,
        handler: &Handler<M>,
        vector: &Vector<M>,
        (tag, status, submitted): (Tag, Status, RequestInFlight),
    ) {
        M::take_interrupt();
        if let Some((kernel, by_drive)) = &self.kernel {
            kernel.interrupt(vector.drive);
            kernel.bottom_half(submitted.segments, submitted.sectors);
            vector.filed.lock().push((tag, status));
            // Linux 2.4's bottom half wakes all jobs that may wait for the drive.
            return by_drive[vector.drive].iter().for_each(|signal| signal.raise());
        }
        vector.filed.lock().push((tag, status));
        let cpu = submitted.cpu;
        if cpu != handler.cpu {
            M::interrupt(CpuId(cpu));
        }
        let place = self.topology.index_of(CpuId(cpu));
        self.by_cpu[place].iter().for_each(|signal| signal.raise());
    }
}

/// Returns for each drive the signals (flag and doorbell) of the jobs that submit to the drive. All
/// jobs use all drives if the drives form one volume.
fn by_drive<M: Machine>(plan: &SimPlan, signals: &[Arc<Signal<M>>]) -> SignalsByDrive<M> {
    let drives = plan.drives.len();
    let of = |drive| match plan.service.apart {
        true => signals.iter().skip(drive).step_by(drives).cloned().collect(),
        false => signals.to_vec(),
    };
    (0..drives).map(of).collect()
}

fn first_of_nodes(topology: &Topology) -> Vec<u32> {
    let mut first: Vec<Option<u32>> = vec![None; topology.nodes()];
    for cpu in topology.cpus() {
        first[cpu.node.0 as usize].get_or_insert(cpu.id.0);
    }
    first.into_iter().map(|cpu| cpu.unwrap_or(topology.cpus()[0].id.0)).collect()
}

impl<M: Machine> Vector<M> {
    /// Collects the drive's completions, each with the CPU that submitted the request. Returns the
    /// time of the next poll.
    fn find(&self, found: &mut Vec<(Tag, Status, RequestInFlight)>) -> u64 {
        let mut device = self.device.lock();
        let Device { queue, submitters, batch, due } = &mut *device;
        let submitter = |tag: Tag| submitters[tag.0 as usize];
        found.extend(due.drain(..).map(|(tag, status)| (tag, status, submitter(tag))));
        loop {
            queue.poll(batch);
            let entries = batch.entries().iter();
            found.extend(entries.map(|(tag, status)| (*tag, *status, submitter(*tag))));
            let full = batch.is_full();
            batch.clear();
            if !full {
                return batch.take_wake().unwrap_or(u64::MAX);
            }
        }
    }
}

pub(super) struct IrqDriver<M: Machine> {
    pub(super) inner: Box<dyn Driver<M>>,
    pub(super) interrupts: Arc<Interrupts<M>>,
    pub(super) drive: usize,
}

impl<M: Host> DriverFilter<M> for IrqDriver<M> {
    fn inner(&self) -> &dyn Driver<M> {
        &*self.inner
    }

    /// Returns false, even if the wrapped drive completes requests at once. Only the handler thread
    /// passes completions on, so a submitter that polls right after `commit_rqs` finds none.
    fn is_immediate(&self) -> bool {
        false
    }

    fn open_queue(&self, index: u16, depth: u32) -> Result<Box<dyn DriverQueue<M>>, Error> {
        let device = Device {
            queue: self.inner.open_queue(index, depth)?,
            submitters: vec![RequestInFlight::default(); depth as usize],
            batch: CompletionBatch::new(),
            due: Vec::new(),
        };
        let (device, filed) =
            (M::Lock::new("irq-device", device), M::Lock::new("irq-filed", Vec::new()));
        let vector = Arc::new(Vector { drive: self.drive, device, filed });
        let home = self.interrupts.home(index);
        self.interrupts.handlers[home].vectors.lock().push(Arc::clone(&vector));
        Ok(Box::new(IrqQueue { vector, home, interrupts: Arc::clone(&self.interrupts) }))
    }
}

struct IrqQueue<M: Machine> {
    vector: Arc<Vector<M>>,
    home: usize,
    interrupts: Arc<Interrupts<M>>,
}

impl<M: Host> DriverQueue<M> for IrqQueue<M> {
    fn queue_rq(&mut self, rq: &Request<M>) -> Dispatch {
        if let Some((kernel, _)) = &self.interrupts.kernel {
            kernel.dispatch(self.vector.drive);
        }
        let mut device = self.vector.device.lock();
        let (segments, sectors) = (rq.nr_segments().into(), rq.nr_sectors());
        device.submitters[rq.tag().0 as usize] =
            RequestInFlight { cpu: M::cpu().0, segments, sectors };
        device.queue.queue_rq(rq)
    }

    /// Starts the requests. If a completion is due before the handler thread's next poll, moves
    /// that poll to the time of the completion.
    fn commit_rqs(&mut self) {
        let mut device = self.vector.device.lock();
        let Device { queue, batch, due, .. } = &mut *device;
        queue.commit_rqs();
        queue.poll(batch);
        due.extend_from_slice(batch.entries());
        batch.clear();
        let wake_ns = if due.is_empty() { batch.take_wake().unwrap_or(u64::MAX) } else { 0 };
        drop(device);
        let handler = &self.interrupts.handlers[self.home];
        if wake_ns < handler.alarm_ns.fetch_min(wake_ns, Relaxed) {
            handler.bell.ring();
        }
    }

    fn poll(&mut self, batch: &mut CompletionBatch) {
        let mut filed = self.vector.filed.lock();
        let count = filed.len().min(batch.room());
        filed.drain(..count).for_each(|(tag, status)| batch.push(tag, status));
    }

    fn timeout(&mut self, _tag: Tag) -> Expired {
        Expired::Extend
    }
}
