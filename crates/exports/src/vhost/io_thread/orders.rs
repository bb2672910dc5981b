//! Orders of a control thread to an I/O thread, executed between two iterations of its loop.
//!
//! An order whose sender waits carries a channel for the answer.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use super::kicks::KickPoller;
use super::{IoThread, ServedQueue};
use crate::vhost::memory::GuestMemory;
use crate::vhost::queue::Queue;
use crate::vhost::ring::RingAreas;
use crate::vhost::stats::QueueStats;

pub(crate) enum ThreadOrder {
    Start(Box<Queue>),
    /// Take no more requests from a queue, and send its base (the index of the next request) once
    /// it is empty.
    Stop(u16, Sender<u16>),
    /// Use other memory for a queue. The areas of its ring are then at these addresses.
    Memory(u16, Arc<GuestMemory>, Option<RingAreas>, Sender<()>),
    Call(u16, Option<OwnedFd>),
    Kick(u16, Option<OwnedFd>),
    Error(u16, Option<Arc<OwnedFd>>),
    Enable(u16, bool),
}

impl IoThread {
    pub(crate) fn take_orders(&mut self) {
        while let Some(order) = self.state.orders.take() {
            match order {
                ThreadOrder::Start(queue) => self.start(queue),
                ThreadOrder::Stop(number, reply) => match self.find(number) {
                    Some(served) => served.queue.stopping = Some(reply),
                    // A queue that is out of service has no base (index of its next request).
                    // Dropping the sender closes the channel, so the control thread stops waiting
                    // for the base.
                    None => drop(reply),
                },
                ThreadOrder::Memory(number, memory, areas, reply) => {
                    if let Some(served) = self.find(number) {
                        served.queue.change_memory(memory, areas);
                    }
                    self.hits = 0;
                    // The send fails if the device is gone, and then nobody waits for the reply.
                    let _ = reply.send(());
                }
                ThreadOrder::Call(number, fd) => {
                    if let Some(served) = self.find(number) {
                        served.queue.notifiers.call = fd;
                        served.queue.interrupt();
                    }
                }
                ThreadOrder::Kick(number, fd) => self.change_kick(number, fd),
                ThreadOrder::Error(number, fd) => {
                    if let Some(served) = self.find(number) {
                        served.queue.notifiers.error = fd;
                    }
                }
                ThreadOrder::Enable(number, enabled) => {
                    if let Some(served) = self.find(number) {
                        served.queue.enabled = enabled;
                    }
                }
            }
        }
    }

    fn change_kick(&mut self, number: u16, fd: Option<OwnedFd>) {
        let Some(old) = self.find(number).map(|served| served.kick.take()) else { return };
        let place = fd.map(|fd| self.kicks.add(fd));
        if let Some(served) = self.find(number) {
            served.kick = place;
        }
        if let Some(old) = old {
            self.kicks.remove(old);
        }
    }

    pub(super) fn find(&mut self, number: u16) -> Option<&mut ServedQueue> {
        self.queues.iter_mut().flatten().find(|served| served.queue.number == number)
    }

    fn start(&mut self, mut queue: Box<Queue>) {
        let kick = queue.notifiers.kick.take().map(|fd| self.kicks.add(fd));
        queue.suppress_kicks();
        // Interrupts the guest in case an earlier daemon was killed before it did so. A superfluous
        // interrupt does no harm.
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
            // `send` fails if the device that asked for the ring's base is gone, and then nobody
            // needs the base.
            let _ = reply.send(self.queue.base());
        }
    }
}
