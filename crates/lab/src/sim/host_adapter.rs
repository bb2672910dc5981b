//! `HostAdapter`: what the drives behind a SCSI host shared in the kernel besides its tags.
//!
//! Two things that every command of every drive wrote, each of which can be left out:
//!
//! - The lookup table of mpt3sas, 4.4, in which a command's number (smid) leads to the command. One
//!   lock, `scsi_lookup_lock`, is taken three times for a command: `mpt3sas_base_get_smid_scsiio`
//!   takes an entry off the list of free ones, `_scsih_scsi_lookup_get_clear` reads it at the end,
//!   `mpt3sas_base_free_smid` puts it back. Commit dbec4c9040ed made the smid the tag, and the lock
//!   went.
//! - The count of commands of the SCSI mid-layer, `host_busy`: `scsi_host_queue_ready` adds one to
//!   it, `scsi_device_unbusy` takes one off. Commit 6eb045e092ef (5.5) ended it.
//!
//! Counted in those functions: lock, list head and entries are written. The head lies beside its
//! lock, in a line that the next in turn reads all the while, so that it moves once more; an entry
//! is a line (`scsiio_tracker`, 64 bytes), and the list is last in, first out, so that the entry
//! taken is the one that any CPU put there last. Taking it off writes its neighbour, too, and
//! putting one back writes that which was first: two lines each. The end of a command reads and
//! clears its own entry, which its CPU still has.
//!
//! Made by run.rs for a row, stands around a drive's driver; outside of `PollerDriver`, since the
//! handler is entered before any command is looked up. What the code does under the lock besides
//! is part of the machine's `driver` and `complete`. The chain buffers of commands with many
//! segments are not modelled: each took the lock once more (`_base_get_chain_buffer_tracker`).

use std::sync::Arc;

use millrace_block::{
    CompletionBatch, Dispatch, Driver, DriverData, DriverQueue, Error, Expired, Moment, Request,
    Tag,
};

use millrace_machine::{Line, Lock, Machine, Order, Word};

use crate::around::Around;

/// What the commands of all drives of a row write; nothing unless given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostAdapterConfig {
    /// The driver's lookup table and its lock, three times for a command.
    pub lookup_lock: bool,
    /// The mid-layer's count of commands, twice for a command.
    pub host_busy: bool,
}

/// The free entries that are written with the one that is taken or put back: it and its neighbour.
type FreeEntries = [[u64; 8]; 2];

/// What the drivers of a host's drives share.
pub(crate) struct HostAdapter<M: Machine> {
    lookup: Option<Lookup<M>>,
    host_busy: Option<M::Word>,
}

struct Lookup<M: Machine> {
    /// Commands in the table: stands for the list's head.
    lock: M::Lock<u64>,
    free: M::Line<FreeEntries>,
}

impl<M: Machine> HostAdapter<M> {
    /// One without commands.
    pub(crate) fn new(config: HostAdapterConfig) -> Arc<Self> {
        let lookup = || Lookup {
            lock: M::Lock::new("scsi-lookup", 0),
            free: M::Line::new(FreeEntries::default()),
        };
        Arc::new(HostAdapter {
            lookup: config.lookup_lock.then(lookup),
            host_busy: config.host_busy.then(|| M::Word::new(0)),
        })
    }

    /// A command begins: it is counted, then takes a number.
    fn begin(&self) {
        if let Some(host_busy) = &self.host_busy {
            // Relaxed: it counts, and orders nothing.
            host_busy.fetch_add(1, Order::Relaxed);
        }
        if let Some(lookup) = &self.lookup {
            let mut taken = lookup.lock.lock();
            *taken += 1;
            lookup.free.write();
        }
    }

    /// A command ends: it is looked up by its number, gives that back, and is no longer counted.
    fn end(&self) {
        if let Some(lookup) = &self.lookup {
            drop(lookup.lock.lock());
        }
        self.take_back();
    }

    /// A command is not sent after all, or has been looked up.
    fn take_back(&self) {
        if let Some(lookup) = &self.lookup {
            let mut taken = lookup.lock.lock();
            *taken -= 1;
            lookup.free.write();
        }
        if let Some(host_busy) = &self.host_busy {
            // Relaxed: as in `begin`.
            host_busy.fetch_add(1_u64.wrapping_neg(), Order::Relaxed);
        }
    }
}

/// The driver of a drive behind a host adapter.
pub(crate) struct AdapterDriver<M: Machine> {
    /// The drive's own.
    pub(crate) inner: Box<dyn Driver<M>>,
    /// What it shares with the others.
    pub(crate) adapter: Arc<HostAdapter<M>>,
}

impl<M: Machine> Around<M> for AdapterDriver<M> {
    fn inner(&self) -> &dyn Driver<M> {
        &*self.inner
    }

    fn open_queue(&self, index: u16, depth: u32) -> Result<Box<dyn DriverQueue<M>>, Error> {
        let inner = self.inner.open_queue(index, depth)?;
        Ok(Box::new(AdapterQueue { inner, adapter: Arc::clone(&self.adapter) }))
    }
}

struct AdapterQueue<M: Machine> {
    inner: Box<dyn DriverQueue<M>>,
    adapter: Arc<HostAdapter<M>>,
}

impl<M: Machine> DriverQueue<M> for AdapterQueue<M> {
    fn queue_rq(&mut self, rq: &Request<M>) -> Dispatch {
        self.adapter.begin();
        let dispatch = self.inner.queue_rq(rq);
        if dispatch != Dispatch::Queued {
            self.adapter.take_back();
        }
        dispatch
    }

    fn commit_rqs(&mut self) {
        self.inner.commit_rqs();
    }

    fn poll(&mut self, batch: &mut CompletionBatch) {
        let before = batch.entries().len();
        self.inner.poll(batch);
        (before..batch.entries().len()).for_each(|_| self.adapter.end());
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
        let config = HostAdapterConfig { lookup_lock: true, host_busy: true };
        let adapter = HostAdapter::<Native>::new(config);
        let counted = || {
            let busy = adapter.host_busy.as_ref().map(|busy| busy.load(Order::Relaxed));
            (busy, adapter.lookup.as_ref().map(|lookup| *lookup.lock.lock()))
        };
        (0..3).for_each(|_| adapter.begin());
        assert_eq!(counted(), (Some(3), Some(3)));
        adapter.end();
        adapter.take_back();
        assert_eq!(counted(), (Some(1), Some(1)));
    }

    #[test]
    fn without_a_setting_nothing_is_shared() {
        let adapter = HostAdapter::<Native>::new(HostAdapterConfig::default());
        assert!(adapter.lookup.is_none() && adapter.host_busy.is_none());
        adapter.begin();
        adapter.end();
    }
}
