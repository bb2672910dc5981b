//! What a control thread tells an I/O thread, and what that does about it.
//!
//! Orders come through the thread's mailbox and are taken between rounds; those that somebody waits
//! for carry the way back. Called by io_thread.rs.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use super::kicks::Kicks;
use super::{IoThread, ServedQueue};
use crate::vhost::memory::GuestMemory;
use crate::vhost::queue::Queue;
use crate::vhost::ring::Areas;
use crate::vhost::stats::QueueStats;

/// What a control thread tells an I/O thread.
pub(crate) enum Order {
    /// Serve a queue.
    Start(Box<Queue>),
    /// Take nothing more from a queue, and say what its base is when it is empty.
    Stop(u16, Sender<u16>),
    /// A queue goes on in other memory.
    Memory(u16, Arc<GuestMemory>, Option<Areas>, Sender<()>),
    /// A queue interrupts by another descriptor.
    Call(u16, Option<OwnedFd>),
    /// A queue is kicked by another descriptor.
    Kick(u16, Option<OwnedFd>),
    /// A queue tells of failures by another descriptor.
    Error(u16, Option<Arc<OwnedFd>>),
    /// A queue is enabled, or is not.
    Enable(u16, bool),
}

impl IoThread {
    /// Does what the control thread says.
    pub(crate) fn take_orders(&mut self) {
        while let Some(order) = self.state.orders.take() {
            match order {
                Order::Start(queue) => self.start(queue),
                Order::Stop(number, reply) => match self.find(number) {
                    Some(served) => served.queue.stopping = Some(reply),
                    // It has no base then, and the control thread knows that.
                    None => drop(reply),
                },
                Order::Memory(number, memory, areas, reply) => {
                    if let Some(served) = self.find(number) {
                        served.queue.change_memory(memory, areas);
                    }
                    self.hits = 0;
                    // Nobody waits any more if the device is gone.
                    let _ = reply.send(());
                }
                Order::Call(number, fd) => {
                    if let Some(served) = self.find(number) {
                        served.queue.notifiers.call = fd;
                        served.queue.interrupt();
                    }
                }
                Order::Kick(number, fd) => self.change_kick(number, fd),
                Order::Error(number, fd) => {
                    if let Some(served) = self.find(number) {
                        served.queue.notifiers.error = fd;
                    }
                }
                Order::Enable(number, enabled) => {
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
        // What an earlier daemon answered last may never have been told of: it was killed between
        // answer and interrupt, or the frontend had let go of the descriptor. A guest whose
        // requests are all among those would wait for ever; one interrupt too many does no harm.
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
    /// Shows others what the queue did so far, and that it is in service or, with 0, is not.
    pub(super) fn publish_stats(&self, queues: u64) {
        let waiting = self.queue.waits().into();
        self.counters.publish(QueueStats { queues, waiting, ..self.queue.stats });
    }

    /// Lets go of a queue that is empty, and says its base.
    pub(super) fn end(mut self, kicks: &mut Kicks) {
        self.publish_stats(0);
        if let Some(place) = self.kick.take() {
            kicks.remove(place);
        }
        if let Some(reply) = self.queue.stopping.take() {
            // Nobody waits any more if the device is gone.
            let _ = reply.send(self.queue.base());
        }
    }
}
