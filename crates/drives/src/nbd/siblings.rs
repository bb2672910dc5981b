//! `SiblingQueues`: tracks which queues of a drive have a connection, and passes on requests that
//! one queue sends for another.
//!
//! A server may accept fewer connections than the drive has queues. A queue with a connection takes
//! requests that others have forwarded, sends them like its own, and returns them answered, or
//! unsent if its connection is lost. Each request keeps its tag in its own queue. This file also
//! decides which connections may be open at the same time, because without `multi-conn` a flush
//! covers only its own connection.
//!
//! Invariants: a forwarded request is in exactly one place: in `pending`, in a queue with a
//! connection, or in the mailbox of its own queue. As soon as no connection is up, a queue takes
//! its requests in `pending` back; the loss of the last connection wakes all threads. A connection
//! that must be the only one is admitted when all others are closed, including those of earlier
//! generations, and then excludes others while it is open.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use libc::iovec;
use millrace_block::Status;
use millrace_machine::lock_unpoisoned;
use millrace_nbd::Command;

use crate::common::owner_queues::wake_up;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestOrigin {
    pub(crate) queue: usize,
    pub(crate) tag: u32,
    pub(crate) id: u64,
}

#[derive(Debug)]
pub(crate) struct NbdRequest {
    pub(crate) command: Command,
    /// NBD command flags, `CMD_FLAG_*`.
    pub(crate) flags: u16,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// For a flush, its position among the drive's flushes, from 1; otherwise 0.
    pub(crate) flush: u64,
    /// True if the request was sent on a connection that was lost.
    pub(crate) again: bool,
    pub(crate) memory: Vec<iovec>,
}

// SAFETY: the list names memory of a request in flight, whose bios are `Send`.
// Only the queue that currently holds a request uses the request's list of memory segments.
unsafe impl Send for NbdRequest {}

impl NbdRequest {
    pub(crate) const EMPTY: NbdRequest = NbdRequest {
        command: Command::Flush,
        flags: 0,
        offset: 0,
        len: 0,
        flush: 0,
        again: false,
        memory: Vec::new(),
    };
}

#[derive(Debug)]
pub(crate) struct ForwardedRequest {
    pub(crate) origin: RequestOrigin,
    pub(crate) request: NbdRequest,
    /// Result of the request. `None` if the server has not answered, so the request must be sent.
    pub(crate) status: Option<Status>,
    /// True if the connection that carried the request was given up because the server did not
    /// answer for too long.
    pub(crate) silence: bool,
}

#[derive(Debug)]
pub(crate) enum QueueMessage {
    GivenBack(ForwardedRequest),
    /// The request with this `RequestOrigin::id` has timed out. The queue that has sent the request
    /// to the server must close the connection on which it was sent.
    Expired(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionSharing {
    /// The connection may be open together with other connections. Either the drive is read-only,
    /// or the export has `multi-conn`: a flush on one connection covers the writes of all
    /// connections.
    WithOthers,
    /// The connection must be the only one, because the export has no `multi-conn`.
    Alone,
}

#[derive(Debug, Default)]
pub(crate) struct SiblingQueues {
    /// Number of connections that are up, not counting those of earlier connection generations.
    up: AtomicUsize,
    /// Number of connections that all open queues have when every connection is up.
    all: AtomicUsize,
    pending: AtomicUsize,
    state: Mutex<SiblingState>,
}

#[derive(Debug, Default)]
struct SiblingState {
    queues: Vec<QueueState>,
    pending: VecDeque<ForwardedRequest>,
    last_id: u64,
    /// Number of the current connection generation (connections made after the same loss). `up`
    /// counts only connections of this generation.
    generation: u32,
    /// True if the open connection must remain the only one, because the export has no
    /// `multi-conn`.
    is_sole: bool,
}

impl SiblingState {
    fn admits(&self, sharing: ConnectionSharing, open: usize) -> bool {
        open == 0 || sharing == ConnectionSharing::WithOthers && !self.is_sole
    }

    fn open(&self) -> usize {
        self.queues.iter().map(|queue| queue.open).sum()
    }
}

#[derive(Debug, Default)]
struct QueueState {
    /// Eventfd that wakes the queue's thread; `None` while the queue is not open.
    wake: Option<Arc<OwnedFd>>,
    up: usize,
    /// Number of the queue's open sockets, including those of earlier connection generations.
    open: usize,
    mail: Vec<QueueMessage>,
    has_mail: Arc<AtomicBool>,
}

impl QueueState {
    fn send(&mut self, mail: QueueMessage) {
        if self.wake.is_some() {
            self.mail.push(mail);
            // Release pairs with the Acquire in `take_mail`.
            self.has_mail.store(true, Ordering::Release);
        }
    }

    fn wake(&self) {
        self.wake.iter().for_each(|wake| wake_up(wake));
    }
}

impl SiblingQueues {
    /// Adds a queue that needs this many connections and whose thread sleeps on the eventfd `wake`.
    /// Returns the flag that is set when the queue has messages.
    pub(crate) fn open(
        &self,
        queue: usize,
        wake: Arc<OwnedFd>,
        connections: usize,
    ) -> Arc<AtomicBool> {
        self.all.fetch_add(connections, Ordering::Relaxed);
        let mut state = lock_unpoisoned(&self.state);
        if state.queues.len() <= queue {
            state.queues.resize_with(queue + 1, QueueState::default);
        }
        let one = &mut state.queues[queue];
        one.wake = Some(wake);
        Arc::clone(&one.has_mail)
    }

    /// Removes a queue, together with its forwarded requests that no queue has taken.
    pub(crate) fn close(&self, queue: usize, connections: usize) {
        self.all.fetch_sub(connections, Ordering::Relaxed);
        drop(self.take_back(queue));
        let mut state = lock_unpoisoned(&self.state);
        state.queues[queue].wake = None;
        state.queues[queue].open = 0;
        state.queues[queue].mail.clear();
    }

    /// Starts a new connection generation (connections made after the same loss). Only its
    /// connections count as up from now on. Wakes the threads of all queues.
    pub(crate) fn begin_generation(&self, generation: u32) {
        let mut state = lock_unpoisoned(&self.state);
        if generation.wrapping_sub(state.generation) > u32::MAX / 2 {
            // Another thread has already started a later connection generation.
            return;
        }
        state.generation = generation;
        state.queues.iter_mut().for_each(|queue| queue.up = 0);
        // Relaxed here and below: a thread that reads an old value is woken after the change, and
        // then reads the value again.
        self.up.store(0, Ordering::Relaxed);
        state.queues.iter().for_each(QueueState::wake);
    }

    /// Returns true if a new connection will probably be accepted; `connection_up` decides. `own`
    /// is the number of the caller's open connections, which the new one replaces.
    pub(crate) fn admits(&self, sharing: ConnectionSharing, own: usize) -> bool {
        let state = lock_unpoisoned(&self.state);
        state.admits(sharing, state.open().saturating_sub(own))
    }

    pub(crate) fn is_sole(&self) -> bool {
        lock_unpoisoned(&self.state).is_sole
    }

    /// Counts a connection of a queue as up. Returns false, without counting, if another connection
    /// is open and only one is allowed.
    #[must_use]
    pub(crate) fn connection_up(
        &self,
        queue: usize,
        generation: u32,
        sharing: ConnectionSharing,
    ) -> bool {
        let mut state = lock_unpoisoned(&self.state);
        let open = state.open();
        if !state.admits(sharing, open) {
            return false;
        }
        if open == 0 {
            state.is_sole = sharing == ConnectionSharing::Alone;
        }
        state.queues[queue].open += 1;
        if generation != state.generation {
            return true;
        }
        state.queues[queue].up += 1;
        if self.up.fetch_add(1, Ordering::Relaxed) == 0 {
            state.queues.iter().for_each(QueueState::wake);
        }
        true
    }

    pub(crate) fn connection_closed(&self, queue: usize) {
        lock_unpoisoned(&self.state).queues[queue].open -= 1;
    }

    pub(crate) fn connection_down(&self, queue: usize, generation: u32) {
        let mut state = lock_unpoisoned(&self.state);
        if generation != state.generation {
            return;
        }
        state.queues[queue].up -= 1;
        if self.up.fetch_sub(1, Ordering::Relaxed) == 1 {
            state.queues.iter().for_each(QueueState::wake);
        }
    }

    pub(crate) fn has_connection(&self) -> bool {
        self.up.load(Ordering::Relaxed) > 0
    }

    /// Returns the number of connections that are up, and the number that are needed.
    pub(crate) fn connections(&self) -> (usize, usize) {
        (self.up.load(Ordering::Relaxed), self.all.load(Ordering::Relaxed))
    }

    pub(crate) fn has_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed) > 0
    }

    /// Forwards requests of a queue without a connection to the queues that have a connection.
    /// Calls `next` for one request after another, until `next` returns `None`. The argument of
    /// `next` is the `RequestOrigin::id` that the request must have.
    pub(crate) fn forward(&self, mut next: impl FnMut(u64) -> Option<ForwardedRequest>) {
        let mut state = lock_unpoisoned(&self.state);
        while let Some(forwarded) = next(state.last_id + 1) {
            state.last_id += 1;
            state.pending.push_back(forwarded);
        }
        self.pending.store(state.pending.len(), Ordering::Relaxed);
        state.queues.iter().filter(|one| one.up > 0).for_each(QueueState::wake);
    }

    pub(crate) fn take_back(&self, queue: usize) -> Vec<ForwardedRequest> {
        let mut state = lock_unpoisoned(&self.state);
        let pending = std::mem::take(&mut state.pending);
        let (own, others) = pending.into_iter().partition(|one| one.origin.queue == queue);
        state.pending = others;
        self.pending.store(state.pending.len(), Ordering::Relaxed);
        Vec::from(own)
    }

    /// Takes the calling queue's share of the forwarded requests that are pending. The share is the
    /// number of these requests, divided by the number of queues with a connection and rounded up.
    /// At most `most` requests are taken.
    pub(crate) fn take_share(&self, most: usize) -> Vec<ForwardedRequest> {
        let mut state = lock_unpoisoned(&self.state);
        let takers = state.queues.iter().filter(|one| one.up > 0).count().max(1);
        let share = state.pending.len().div_ceil(takers).min(most);
        let taken = state.pending.drain(..share).collect();
        self.pending.store(state.pending.len(), Ordering::Relaxed);
        taken
    }

    pub(crate) fn give_back(&self, requests: impl Iterator<Item = ForwardedRequest>) {
        let mut state = lock_unpoisoned(&self.state);
        let mut woken = vec![false; state.queues.len()];
        for request in requests {
            let queue = request.origin.queue;
            woken[queue] = true;
            state.queues[queue].send(QueueMessage::GivenBack(request));
        }
        let queues = state.queues.iter().zip(woken).filter(|(_, woken)| *woken);
        queues.for_each(|(queue, _)| queue.wake());
    }

    /// Handles the timeout of a forwarded request. If no queue has taken the request yet, returns
    /// the request. Otherwise sends [`QueueMessage::Expired`] to all queues. Only the queue that
    /// has taken the request acts on the message.
    pub(crate) fn expire(&self, id: u64) -> Option<ForwardedRequest> {
        let mut state = lock_unpoisoned(&self.state);
        if let Some(at) = state.pending.iter().position(|one| one.origin.id == id) {
            let found = state.pending.remove(at);
            self.pending.store(state.pending.len(), Ordering::Relaxed);
            return found;
        }
        for queue in &mut state.queues {
            queue.send(QueueMessage::Expired(id));
            queue.wake();
        }
        None
    }

    pub(crate) fn take_mail(
        &self,
        queue: usize,
        has_mail: &AtomicBool,
        into: &mut Vec<QueueMessage>,
    ) {
        // Acquire pairs with the Release in `send`.
        if has_mail.load(Ordering::Acquire) {
            let mut state = lock_unpoisoned(&self.state);
            has_mail.store(false, Ordering::Relaxed);
            into.append(&mut state.queues[queue].mail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ConnectionSharing::{Alone, WithOthers};
    use super::*;

    fn wake() -> Arc<OwnedFd> {
        Arc::new(std::fs::File::open("/dev/null").unwrap().into())
    }

    fn forward(all: &SiblingQueues, queue: usize, tags: std::ops::Range<u32>) {
        let mut tags = tags;
        all.forward(|id| {
            let origin = RequestOrigin { queue, tag: tags.next()?, id };
            let request = NbdRequest::EMPTY;
            Some(ForwardedRequest { origin, request, status: None, silence: false })
        });
    }

    fn tags(taken: &[ForwardedRequest]) -> Vec<u32> {
        taken.iter().map(|one| one.origin.tag).collect()
    }

    #[test]
    fn queues_with_connections_share_and_return_forwarded_work() {
        let all = SiblingQueues::default();
        let flags: Vec<_> = (0..3).map(|queue| all.open(queue, wake(), 1)).collect();
        assert!(!all.has_connection());
        let all_up =
            [(0, 0), (1, 0), (2, 7)].map(|(queue, of)| all.connection_up(queue, of, WithOthers));
        assert_eq!(all_up, [true; 3]);
        assert_eq!(all.connections(), (2, 3));
        forward(&all, 2, 0..5);
        assert!(all.has_pending());
        let taken = all.take_share(64);
        assert_eq!(tags(&taken), [0, 1, 2], "half of it, since another queue has a connection");
        assert_eq!(tags(&all.take_share(1)), [3], "as much as there is room for");
        assert_eq!(tags(&all.take_back(2)), [4], "what nobody has taken");
        assert!(!all.has_pending());
        let answered =
            taken.into_iter().map(|one| ForwardedRequest { status: Some(Status::Ok), ..one });
        all.give_back(answered);
        let mut mail = Vec::new();
        all.take_mail(0, &flags[0], &mut mail);
        assert!(mail.is_empty());
        all.take_mail(2, &flags[2], &mut mail);
        assert_eq!(mail.len(), 3);
    }

    #[test]
    fn overdue_request_comes_back_or_its_taker_is_told() {
        let all = SiblingQueues::default();
        let flags: Vec<_> = (0..2).map(|queue| all.open(queue, wake(), 1)).collect();
        assert!(all.connection_up(0, 0, WithOthers));
        forward(&all, 1, 0..2);
        let first = all.expire(1).expect("nobody has taken it");
        assert_eq!((first.origin.tag, first.origin.id), (0, 1));
        let taken = all.take_share(64);
        assert!(all.expire(taken[0].origin.id).is_none());
        let mut mail = Vec::new();
        all.take_mail(0, &flags[0], &mut mail);
        assert!(matches!(mail[..], [QueueMessage::Expired(2)]), "{mail:?}");
        all.begin_generation(1);
        assert!(!all.has_connection());
        all.connection_down(0, 0);
        assert!(all.connection_up(0, 1, WithOthers));
        assert_eq!(all.connections(), (1, 2));
        all.connection_down(0, 1);
        all.close(0, 1);
        assert_eq!(all.connections(), (0, 1));
    }

    #[test]
    fn unshared_connection_is_admitted_once_all_others_close() {
        let all = SiblingQueues::default();
        (0..3).for_each(|queue| drop(all.open(queue, wake(), 1)));
        assert!(all.connection_up(0, 0, WithOthers) && all.connection_up(1, 0, WithOthers));
        assert!(!all.connection_up(2, 0, Alone) && !all.is_sole());
        all.begin_generation(1);
        all.connection_closed(0);
        assert!(!all.connection_up(0, 1, Alone), "one of the last generation is open still");
        assert_eq!(all.connections(), (0, 3));
        assert!(!all.admits(Alone, 0) && all.admits(Alone, 1), "in place of that one");
        all.connection_closed(1);
        assert!(all.connection_up(0, 1, Alone) && all.is_sole());
        assert!(!all.connection_up(1, 1, WithOthers) && !all.connection_up(1, 1, Alone));
        all.begin_generation(2);
        assert!(!all.connection_up(1, 2, WithOthers), "it is open still");
        all.close(0, 1);
        assert!(all.connection_up(1, 2, WithOthers) && all.connection_up(2, 2, WithOthers));
        assert!(!all.is_sole());
        assert_eq!(all.connections(), (2, 2));
    }
}
