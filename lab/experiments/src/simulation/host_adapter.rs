//! `HostAdapter`: kernel state, except tags, that the drives behind one SCSI host share.
//!
//! Each kind of state can be switched off. Two adapters are modelled, with their drivers in Linux
//! 4.4:
//!
//! - The HBA (driver mpt3sas). Every command writes the driver's table of commands (`Lookup`), and
//!   `host_busy`, the SCSI mid-layer's count of commands. `scsi_host_queue_ready` increments
//!   `host_busy`, and `scsi_device_unbusy` decrements it. Linux 5.5 removed `host_busy` (commit
//!   6eb045e092ef). `device_busy`, the count of each device, is modelled together with `host_busy`.
//! - The SCU (driver isci). Interrupts are coalesced (coalescing.rs), and all commands take the
//!   lock `scic_lock`. The driver takes this lock twice to send a command
//!   (`isci_task_execute_task`, and where the request is started), and once per interrupt for all
//!   completions (`isci_host_completion_routine`).
//!
//! run.rs creates a `HostAdapter` for a simulation. `AdapterDriver` wraps a drive's driver, outside
//! of `PollerDriver`, because the interrupt handler is entered before any command is looked up.
//! Other work under the locks is part of the machine's `driver` and `complete` costs. Not modelled:
//! counts per SCSI target, which the kernel keeps only for targets with a limit of their own (the
//! modelled drives have none), and chain buffers of commands with many segments. Each chain buffer
//! takes `scsi_lookup_lock` once more (`_base_get_chain_buffer_tracker`).

use std::sync::Arc;

use millrace_block::{
    CompletionBatch, Dispatch, Driver, DriverData, DriverQueue, Error, Expired, Moment, Request,
    Tag,
};

use millrace_machine::{Line, Lock, Machine, Order, Word};

use super::coalescing::{Coalescing, QueueInterrupts};
use crate::filter::DriverFilter;

/// State that the drives of a host adapter share, as far as the simulation models it. By default,
/// no such state is modelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostAdapterConfig {
    /// Models the driver's lookup table and its lock, which is taken three times per command.
    pub lookup_lock: bool,
    /// Models the mid-layer's command count, which changes twice per command.
    pub host_busy: bool,
    /// If true, one lock guards all code of a controller's driver, as in isci.
    pub controller_lock: bool,
    /// Models interrupt coalescing: one interrupt for many completions, as in isci.
    pub coalescing: bool,
}

/// Two entries of the driver's free list, of one cache line each. To take or put back an entry, the
/// driver writes the entry itself and the next entry of the list.
type FreeEntries = [[u64; 8]; 2];

pub(crate) struct HostAdapter<M: Machine> {
    lookup: Option<Lookup<M>>,
    host_busy: Option<M::Word>,
    controller: Option<M::Lock<()>>,
    coalescing: Option<Coalescing>,
}

/// The driver's table of commands, and the table's lock, `scsi_lookup_lock`. Commit dbec4c9040ed
/// used the tag as the command's number (smid) and removed the lock.
///
/// The driver takes the lock three times per command:
///
/// - `mpt3sas_base_get_smid_scsiio` takes an entry off the free list.
/// - `_scsih_scsi_lookup_get_clear` reads the entry at the end of the command.
/// - `mpt3sas_base_free_smid` puts the entry back.
///
/// An entry is one cache line (`scsiio_tracker`, 64 bytes). The free list is last in, first out. So
/// a command gets the entry that was put back last, by any CPU. Taking or putting back an entry
/// also writes its neighbour in the list. At the end of a command, the command's entry is still in
/// the CPU's cache.
struct Lookup<M: Machine> {
    lock: M::Lock<()>,
    beside: LockNeighbors<M>,
    free: M::Line<FreeEntries>,
}

/// Cache line with two words near `scsi_lookup_lock`. The pointer to the table of commands is 16
/// bytes before the lock, the head of the free list 8 bytes after the lock. A CPU reads the line to
/// identify an interrupt (`_base_get_cb_idx`) or to clear an entry. In the kernel, the lock has 8
/// possible positions in a cache line. In 5 of them, both words are in the lock's line. Here, the
/// lock always has a line of its own, which costs more.
struct LockNeighbors<M: Machine>(M::Word);

impl<M: Machine> LockNeighbors<M> {
    /// Models a read of the pointer to the table. Relaxed: the loaded value gives access to no
    /// other data; only the transfer of the cache line matters.
    fn read_pointer(&self) -> u64 {
        self.0.load(Order::Relaxed)
    }

    /// Models a write of the list head by a holder of the lookup lock. Relaxed: the lock orders the
    /// writers.
    fn write_head(&self, change: u64) {
        self.0.store(self.0.load(Order::Relaxed).wrapping_add(change), Order::Relaxed);
    }
}

impl<M: Machine> HostAdapter<M> {
    pub(crate) fn new(config: HostAdapterConfig) -> Arc<Self> {
        let lookup = || Lookup {
            lock: M::Lock::new("scsi-lookup", ()),
            beside: LockNeighbors(M::Word::new(0)),
            free: M::Line::new(FreeEntries::default()),
        };
        Arc::new(HostAdapter {
            lookup: config.lookup_lock.then(lookup),
            host_busy: config.host_busy.then(|| M::Word::new(0)),
            controller: config.controller_lock.then(|| M::Lock::new("controller", ())),
            coalescing: config.coalescing.then(Coalescing::new),
        })
    }

    fn begin(&self, device_busy: &M::Word) {
        self.count(1, device_busy);
        if let Some(lookup) = &self.lookup {
            let _taken = lookup.lock.lock();
            lookup.beside.write_head(1);
            lookup.free.write();
        }
        for controller in self.controller.iter() {
            (0..2).for_each(|_| drop(controller.lock()));
        }
        if let Some(coalescing) = &self.coalescing {
            coalescing.begin();
        }
    }

    /// Ends a command: looks up the command by its number, frees the number, and decrements the
    /// command counts.
    fn end(&self, device_busy: &M::Word) {
        if let Some(lookup) = &self.lookup {
            lookup.beside.read_pointer();
            let taken = lookup.lock.lock();
            lookup.beside.read_pointer();
            drop(taken);
        }
        self.take_back(device_busy);
    }

    /// Frees the number of a command that has completed, or that the driver did not accept, and
    /// decrements the command counts.
    fn take_back(&self, device_busy: &M::Word) {
        if let Some(lookup) = &self.lookup {
            let _taken = lookup.lock.lock();
            lookup.beside.write_head(1_u64.wrapping_neg());
            lookup.free.write();
        }
        self.count(1_u64.wrapping_neg(), device_busy);
    }

    fn count(&self, change: u64, device_busy: &M::Word) {
        if let Some(host_busy) = &self.host_busy {
            // Relaxed: no other data depends on `device_busy` and `host_busy`.
            device_busy.fetch_add(change, Order::Relaxed);
            host_busy.fetch_add(change, Order::Relaxed);
        }
    }
}

pub(crate) struct AdapterDriver<M: Machine> {
    inner: Box<dyn Driver<M>>,
    adapter: Arc<HostAdapter<M>>,
    /// Number of this drive's commands in flight, which models the mid-layer's `device_busy`.
    device_busy: Arc<M::Word>,
}

impl<M: Machine> AdapterDriver<M> {
    pub(crate) fn new(inner: Box<dyn Driver<M>>, adapter: &Arc<HostAdapter<M>>) -> Self {
        let device_busy = Arc::new(M::Word::new(0));
        AdapterDriver { inner, adapter: Arc::clone(adapter), device_busy }
    }
}

impl<M: Machine> DriverFilter<M> for AdapterDriver<M> {
    fn inner(&self) -> &dyn Driver<M> {
        &*self.inner
    }

    fn open_queue(&self, index: u16, depth: u32) -> Result<Box<dyn DriverQueue<M>>, Error> {
        let inner = self.inner.open_queue(index, depth)?;
        let (adapter, device_busy) = (Arc::clone(&self.adapter), Arc::clone(&self.device_busy));
        let gate = adapter.coalescing.as_ref().map(Coalescing::gate);
        Ok(Box::new(AdapterQueue { inner, adapter, device_busy, gate }))
    }
}

struct AdapterQueue<M: Machine> {
    inner: Box<dyn DriverQueue<M>>,
    adapter: Arc<HostAdapter<M>>,
    device_busy: Arc<M::Word>,
    gate: Option<QueueInterrupts>,
}

impl<M: Machine> DriverQueue<M> for AdapterQueue<M> {
    fn queue_rq(&mut self, rq: &Request<M>) -> Dispatch {
        self.adapter.begin(&self.device_busy);
        let dispatch = self.inner.queue_rq(rq);
        if dispatch != Dispatch::Queued {
            self.adapter.take_back(&self.device_busy);
            self.adapter.coalescing.iter().for_each(Coalescing::take_back);
        }
        dispatch
    }

    fn commit_rqs(&mut self) {
        self.inner.commit_rqs();
    }

    fn poll(&mut self, batch: &mut CompletionBatch) {
        let before = batch.entries().len();
        match (&mut self.gate, &self.adapter.coalescing) {
            (Some(gate), Some(coalescing)) => gate.poll(&mut *self.inner, coalescing, batch),
            _ => self.inner.poll(batch),
        }
        let done = before..batch.entries().len();
        if let Some(controller) = self.adapter.controller.as_ref().filter(|_| !done.is_empty()) {
            drop(controller.lock());
        }
        done.for_each(|_| self.adapter.end(&self.device_busy));
    }

    fn timeout(&mut self, tag: Tag) -> Expired {
        self.inner.timeout(tag)
    }

    fn trace_data(&self, tag: Tag, moment: Moment) -> DriverData {
        self.inner.trace_data(tag, moment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_machine::Native;

    #[test]
    fn commands_that_begin_and_end_leave_nothing_counted() {
        let config = HostAdapterConfig { lookup_lock: true, host_busy: true, ..Default::default() };
        let adapter = HostAdapter::<Native>::new(config);
        let device_busy = <Native as Machine>::Word::new(0);
        let counted = || {
            let busy = adapter.host_busy.as_ref().map(|busy| busy.load(Order::Relaxed));
            let taken = adapter.lookup.as_ref().map(|lookup| lookup.beside.read_pointer());
            (device_busy.load(Order::Relaxed), busy, taken)
        };
        (0..3).for_each(|_| adapter.begin(&device_busy));
        assert_eq!(counted(), (3, Some(3), Some(3)));
        adapter.end(&device_busy);
        adapter.take_back(&device_busy);
        assert_eq!(counted(), (1, Some(1), Some(1)));
    }

    #[test]
    fn without_a_setting_nothing_is_shared() {
        let adapter = HostAdapter::<Native>::new(HostAdapterConfig::default());
        assert!(adapter.lookup.is_none() && adapter.host_busy.is_none());
        let device_busy = <Native as Machine>::Word::new(0);
        adapter.begin(&device_busy);
        adapter.end(&device_busy);
        assert_eq!(device_busy.load(Order::Relaxed), 0);
    }
}
