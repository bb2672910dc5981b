//! `PollerDriver`: charges the time of a drive's interrupts to the thread that polls the drive's
//! queue.
//!
//! The wrapper is for simulations without the interrupt handler threads of irq.rs. The submitter or
//! the drive's worker polls the queue and finds the completions. Each poll that finds completions
//! also takes the time of one interrupt on the polling CPU. run.rs uses this driver for
//! `Irq::Poller`; the drive of a virtual machine uses it, too.

use millrace_block::{
    CompletionBatch, Dispatch, Driver, DriverQueue, Error, Expired, Request, Tag,
};

use super::interface::Host;
use crate::filter::DriverFilter;

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
