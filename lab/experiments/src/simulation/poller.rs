//! `PollerDriver`: charges the thread that polls a drive's queue for the drive's interrupts.
//!
//! Wraps a drive's driver where no handler thread takes interrupts (irq.rs has those). The drive's
//! completions come to the CPU that serves the queue: the submitter's, or that of the drive's
//! worker. Each poll that finds completions is charged one interrupt there, at the host's price;
//! nothing else changes. Called by run.rs for `Irq::Poller`, and for the drive of a virtual
//! machine.

use millrace_block::{
    CompletionBatch, Dispatch, Driver, DriverQueue, Error, Expired, Request, Tag,
};

use super::interface::Host;
use crate::filter::DriverFilter;

/// A driver whose queues charge the polling thread for interrupts.
pub(crate) struct PollerDriver<M: Host>(pub(crate) Box<dyn Driver<M>>);

impl<M: Host> DriverFilter<M> for PollerDriver<M> {
    fn inner(&self) -> &dyn Driver<M> {
        &*self.0
    }

    fn open_queue(&self, index: u16, depth: u32) -> Result<Box<dyn DriverQueue<M>>, Error> {
        Ok(Box::new(PollerQueue(self.0.open_queue(index, depth)?)))
    }
}

struct PollerQueue<M: Host>(Box<dyn DriverQueue<M>>);

impl<M: Host> DriverQueue<M> for PollerQueue<M> {
    fn queue_rq(&mut self, rq: &Request<M>) -> Dispatch {
        self.0.queue_rq(rq)
    }

    fn commit_rqs(&mut self) {
        self.0.commit_rqs();
    }

    fn poll(&mut self, batch: &mut CompletionBatch) {
        let before = batch.entries().len();
        self.0.poll(batch);
        if batch.entries().len() > before {
            M::take_interrupt();
        }
    }

    fn timeout(&mut self, tag: Tag) -> Expired {
        self.0.timeout(tag)
    }
}
