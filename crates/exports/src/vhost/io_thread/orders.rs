//! Orders of a control thread to an I/O thread, executed between two iterations of its loop.
//!
//! An order whose sender waits carries a channel for the answer.

use std::os::fd::OwnedFd;

use super::kicks::KickPoller;
use super::{IoThread, ServedQueue};
use crate::vhost::queue::Queue;
use crate::vhost::stats::QueueStats;

/// Order to an I/O thread. An order for a queue that the thread does not serve is dropped, together
/// with its channel for an answer.
pub(crate) enum ThreadOrder {
    Start(Box<Queue>),
    /// Apply this function to the queue with this number.
    Change(u16, Box<dyn FnOnce(&mut Queue) + Send>),
    Kick(u16, Option<OwnedFd>),
}

impl ThreadOrder {
    pub(crate) fn change(number: u16, change: impl FnOnce(&mut Queue) + Send + 'static) -> Self {
        ThreadOrder::Change(number, Box::new(change))
    }
}

impl IoThread {
    pub(crate) fn take_orders(&mut self) {
        while let Some(order) = self.state.orders.take() {
            match order {
                ThreadOrder::Start(queue) => self.start(queue),
                ThreadOrder::Change(number, change) => {
                    if let Some(served) = self.find(number) {
                        change(&mut served.queue);
                    }
                    // Makes the thread check its queues for truncated memory. The function `change`
                    // may have given the queue new memory, which the frontend may already have
                    // truncated.
                    self.hits = 0;
                }
                ThreadOrder::Kick(number, fd) => self.change_kick(number, fd),
            }
        }
    }

    fn change_kick(&mut self, number: u16, fd: Option<OwnedFd>) {
        let mut served = self.queues.iter_mut().flatten();
        let Some(served) = served.find(|served| served.queue.number == number) else { return };
        let place = fd.map(|fd| self.kicks.add(fd));
        if let Some(old) = std::mem::replace(&mut served.kick, place) {
            self.kicks.remove(old);
        }
    }

    pub(super) fn find(&mut self, number: u16) -> Option<&mut ServedQueue> {
        self.queues.iter_mut().flatten().find(|served| served.queue.number == number)
    }

    fn start(&mut self, mut queue: Box<Queue>) {
        let kick = queue.notifiers.kick.take().map(|fd| self.kicks.add(fd));
        queue.suppress_kicks();
        // Interrupts the guest, in case an earlier daemon was killed after it had published answers
        // and before it sent the interrupt. A superfluous interrupt does no harm.
        queue.interrupt();
        let free = self.queues.iter().position(Option::is_none).unwrap_or(self.queues.len());
        if free == self.queues.len() {
            self.queues.push(None);
        }
        let counters = self.state.published.queue(queue.number);
        queue.stats = QueueStats { in_flight: 0, ..counters.read() };
        self.queues[free] =
            Some(ServedQueue { queue, counters, kick, available: 0, reported: false });
        self.hits = 0;
    }
}

impl ServedQueue {
    /// Publishes the queue's counters. `queues` is 1 while the queue is in service, else 0.
    pub(super) fn publish_stats(&self, queues: u64) {
        let waiting = self.queue.waits().into();
        self.counters.publish(QueueStats { queues, waiting, ..self.queue.stats });
    }

    pub(super) fn end(mut self, kicks: &mut KickPoller) {
        self.publish_stats(0);
        if let Some(place) = self.kick.take() {
            kicks.remove(place);
        }
        if let Some(reply) = self.queue.stopping.take() {
            // `send` fails if the receiving device no longer exists. Then nobody needs the base of
            // the ring (the index of its next request).
            let _ = reply.send(self.queue.base());
        }
    }
}
