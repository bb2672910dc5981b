//! `NbdQueue`: hardware queue of an NBD drive, with its requests and its links to the server.
//!
//! Requests wait in a list. In `commit_rqs`, each link whose last send has ended sends its share of
//! them in one operation, which the reactor submits in its next iteration. Invariant: a tag is
//! completed only when no operation uses its memory. A queue that is dropped ends its operations,
//! or leaks the memory that they may still use.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millrace_block::{
    CompletionBatch, Dispatch, DriverData, DriverQueue, Expired, Moment, Op, OpFlags, Request,
    Status, Tag,
};
use millrace_machine::{Deadline, Native};
use millrace_nbd::wire::{CMD_FLAG_FUA, CMD_FLAG_NO_HOLE};
use millrace_nbd::{Command, TransmissionFlags};
use millrace_reactor::{Completion, Wait, now_ns};
use millrace_runtime::Current;

use super::NbdState;
use super::drive_state::LossCause;
use super::flight::{FlightState, NbdFlight};
use super::link::{LinkContext, LinkState, NbdLink};
use super::ring::Ring;
use super::siblings::{ForwardedRequest, NbdRequest, QueueMessage, RequestOrigin};
use crate::common::outcomes::completion_data;
use crate::common::thread_bound::ThreadBound;

const DRAIN: Duration = Duration::from_secs(2);
/// Maximum sleep in one reactor iteration, in nanoseconds, while a dropped queue waits for its
/// operations to end.
const DRAIN_TURN_NS: u64 = 10_000_000;

pub(crate) struct QueueSize {
    pub(crate) number: usize,
    /// Number of tags.
    pub(crate) depth: usize,
    /// Maximum number of requests that other queues may send through the queue.
    pub(crate) guests_max: usize,
}

pub(crate) struct NbdQueue {
    shared: Arc<NbdState>,
    size: QueueSize,
    ring: ThreadBound<Ring>,
    links: Vec<NbdLink>,
    /// Entries for the tags of this queue, followed by entries for requests that other queues send
    /// over this queue's connections.
    flights: Vec<NbdFlight>,
    /// Indices of the unused entries in `flights` for requests of other queues.
    free_guests: Vec<u32>,
    has_mail: Arc<AtomicBool>,
    mail: Vec<QueueMessage>,
    returns: Vec<ForwardedRequest>,
    waiting: VecDeque<u32>,
    done: Vec<(Tag, Status)>,
    inbox: Vec<Completion>,
    /// Index of the connection that takes requests first, round robin.
    turn: usize,
    /// True if `NbdState::searching` counts this queue as waiting for the server.
    searches: bool,
}

// SAFETY: raw pointers lead to memory of requests in flight, whose bios are `Send`.
// Raw pointers in the links lead to heap buffers that the links own, so moving the queue does not
// invalidate them. The ring must stay on its thread: `ThreadBound` panics if another thread uses
// it.
unsafe impl Send for NbdQueue {}

impl NbdQueue {
    pub(crate) fn new(
        shared: &Arc<NbdState>,
        size: QueueSize,
        current: Current,
        links: Vec<NbdLink>,
    ) -> NbdQueue {
        let depth = size.depth;
        let mut queue = NbdQueue {
            has_mail: shared.siblings.open(size.number, current.wake, links.len()),
            shared: Arc::clone(shared),
            size,
            ring: ThreadBound::new(Ring::new(current.handle)),
            inbox: Vec::with_capacity(2 * links.len()),
            links,
            flights: (0..depth).map(|_| NbdFlight::new()).collect(),
            free_guests: Vec::new(),
            mail: Vec::new(),
            returns: Vec::new(),
            waiting: VecDeque::with_capacity(depth),
            done: Vec::with_capacity(depth),
            turn: 0,
            searches: false,
        };
        queue.with_links(|link, context| link.advance(context));
        queue
    }

    fn with_links(&mut self, mut each: impl FnMut(&mut NbdLink, &mut LinkContext<'_>)) {
        let NbdQueue { shared, ring, links, flights, waiting, done, .. } = self;
        let mut context = LinkContext { shared, ring: ring.get(), flights, waiting, done };
        links.iter_mut().for_each(|link| each(link, &mut context));
    }

    fn command_of(&self, rq: &Request<Native>) -> (Command, u16) {
        let forces = self.shared.target.config.write_through || rq.flags().has(OpFlags::FUA);
        let fua = if forces && self.shared.has(TransmissionFlags::FUA) { CMD_FLAG_FUA } else { 0 };
        match rq.op() {
            Op::Read => (Command::Read, 0),
            Op::Write => (Command::Write, fua),
            Op::Flush => (Command::Flush, 0),
            Op::Discard => (Command::Trim, fua),
            Op::WriteZeroes if rq.flags().has(OpFlags::NOUNMAP) => {
                (Command::WriteZeroes, fua | CMD_FLAG_NO_HOLE)
            }
            Op::WriteZeroes => (Command::WriteZeroes, fua),
        }
    }

    /// Counts this queue in `NbdState::searching` while it waits for the server to come back.
    #[inline]
    fn note_search(&mut self) {
        let searches = !self.shared.siblings.has_connection() && self.has_hope();
        if searches != self.searches {
            self.searches = searches;
            match searches {
                // Relaxed here and in `drop`: no other memory access depends on this counter.
                true => self.shared.searching.fetch_add(1, Ordering::Relaxed),
                false => self.shared.searching.fetch_sub(1, Ordering::Relaxed),
            };
        }
    }

    /// Returns true if a waiting request can still be sent, now or after a reconnect.
    fn has_hope(&self) -> bool {
        let may_connect = |link: &NbdLink| !matches!(link.state, LinkState::Late | LinkState::Dead);
        self.shared.siblings.has_connection() || self.links.iter().any(may_connect)
    }

    fn has_connection(&self) -> bool {
        self.links.iter().any(|link| link.state == LinkState::Up)
    }

    /// Takes requests that other queues have forwarded if this queue has a connection. Otherwise
    /// forwards its own requests to queues that have one.
    fn exchange(&mut self) {
        let (siblings, is_pending) = (&self.shared.siblings, self.shared.siblings.has_pending());
        match (self.has_connection(), siblings.has_connection()) {
            (true, _) if is_pending => self.take_guests(),
            (true, _) => {}
            (false, true) if !self.waiting.is_empty() => self.forward(),
            (false, true) => {}
            (false, false) => {
                self.dismiss_guests();
                if is_pending {
                    for request in self.shared.siblings.take_back(self.size.number) {
                        let tag = request.origin.tag;
                        self.flights[tag as usize].take_back(request);
                        self.waiting.push_back(tag);
                    }
                }
            }
        }
    }

    fn take_guests(&mut self) {
        let used = self.flights.len() - self.size.depth - self.free_guests.len();
        for request in self.shared.siblings.take_share(self.size.guests_max - used) {
            let index = self.free_guests.pop().unwrap_or(self.flights.len() as u32);
            if index as usize == self.flights.len() {
                self.flights.push(NbdFlight::guest());
            }
            self.flights[index as usize].fill_from(request);
            self.waiting.push_back(index);
        }
    }

    #[cold]
    fn forward(&mut self) {
        self.dismiss_guests();
        let NbdQueue { shared, size, flights, waiting, .. } = self;
        shared.siblings.forward(|id| {
            let tag = waiting.pop_front()?;
            Some(flights[tag as usize].forward(RequestOrigin { queue: size.number, tag, id }))
        });
    }

    fn dismiss_guests(&mut self) {
        if self.flights.len() == self.size.depth {
            return;
        }
        let NbdQueue { flights, waiting, free_guests, returns, size, .. } = self;
        waiting.retain(|index| {
            let is_guest = *index as usize >= size.depth;
            if is_guest {
                returns.extend(flights[*index as usize].give_back(None));
                free_guests.push(*index);
            }
            !is_guest
        });
        self.send_returns();
    }

    fn send_returns(&mut self) {
        if !self.returns.is_empty() {
            self.shared.siblings.give_back(self.returns.drain(..));
        }
    }

    fn read_mail(&mut self) {
        let mut mail = std::mem::take(&mut self.mail);
        self.shared.siblings.take_mail(self.size.number, &self.has_mail, &mut mail);
        for one in mail.drain(..) {
            match one {
                QueueMessage::GivenBack(back) => {
                    let tag = back.origin.tag;
                    match self.flights[tag as usize].returned(back) {
                        None => self.waiting.push_front(tag),
                        Some(status) => {
                            self.links.iter_mut().for_each(|link| link.fruitless = None);
                            self.done.push((Tag(tag), status));
                        }
                    }
                }
                QueueMessage::Expired(id) => {
                    let guests = self.flights.iter().skip(self.size.depth);
                    let found =
                        guests.zip(self.size.depth..).find(|(one, _)| one.is_forwarding(id));
                    if let Some((_, index)) = found {
                        self.expire(index);
                    }
                }
            }
        }
        self.mail = mail;
    }

    /// Handles the timeout of a request that was sent, or that waits although a connection is up.
    fn expire(&mut self, index: usize) {
        let flight = &mut self.flights[index];
        flight.expired = true;
        match flight.state {
            FlightState::Sending | FlightState::Sent => {
                let NbdRequest { command, offset, .. } = flight.request;
                let link = flight.link;
                let why = format!("no answer to a {command:?} at byte {offset} within its timeout");
                self.links[link].lose(&self.shared, &why, LossCause::Silence);
                self.flights.iter_mut().for_each(|other| other.silence |= other.is_sent_by(link));
            }
            FlightState::Waiting => {
                flight.state = FlightState::Idle;
                self.waiting.retain(|waiting| *waiting as usize != index);
                self.done.push((Tag(index as u32), Status::TimedOut));
            }
            FlightState::Idle | FlightState::Forwarded => {}
        }
    }

    #[cold]
    fn end_needless_flushes(&mut self) {
        let NbdQueue { flights, waiting, done, .. } = self;
        waiting.retain(|index| {
            let flight = &mut flights[*index as usize];
            let is_flush = flight.request.command == Command::Flush;
            if is_flush {
                flight.state = FlightState::Idle;
                done.push((Tag(*index), Status::Ok));
            }
            !is_flush
        });
    }

    fn pump(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        if self.shared.is_flush_needless() {
            self.end_needless_flushes();
        }
        if !self.has_hope() {
            // A reconnecting thread may have made a connection that its link does not use yet.
            self.with_links(|link, context| link.advance(context));
        }
        if !self.has_hope() {
            for index in self.waiting.drain(..) {
                self.flights[index as usize].state = FlightState::Idle;
                self.done.push((Tag(index), Status::Offline));
            }
            return;
        }
        let takes = |link: &&NbdLink| link.takes(&self.shared);
        let ready = self.links.iter().filter(takes).count();
        if ready == 0 {
            return;
        }
        let share = self.waiting.len().div_ceil(ready);
        self.turn = (self.turn + 1) % self.links.len();
        let (before, after) = self.links.split_at_mut(self.turn);
        let NbdQueue { shared, ring, flights, waiting, done, .. } = self;
        let mut context = LinkContext { shared, ring: ring.get(), flights, waiting, done };
        for link in after.iter_mut().chain(before) {
            if link.takes(context.shared) && !context.waiting.is_empty() {
                link.send(&mut context, share);
            }
        }
    }

    fn progress(&mut self) {
        let NbdQueue { shared, ring, links, flights, waiting, done, inbox, .. } = self;
        let ring = ring.get();
        ring.take(inbox);
        let mut context = LinkContext { shared, ring, flights, waiting, done };
        for Completion { user_data, result, .. } in inbox.drain(..) {
            let link = &mut links[(user_data >> 1) as usize];
            match user_data & 1 {
                0 => link.received(result, &mut context),
                _ => link.sent(result, &mut context),
            }
        }
        self.read_mail();
        self.with_links(|link, context| link.advance(context));
        self.exchange();
        self.note_search();
        self.pump();
    }
}

impl DriverQueue<Native> for NbdQueue {
    fn queue_rq(&mut self, rq: &Request<Native>) -> Dispatch {
        let (command, flags) = self.command_of(rq);
        let index = rq.tag().0;
        let flight = &mut self.flights[index as usize];
        flight.fill(command, flags, rq);
        if command == Command::Flush {
            flight.request.flush = self.shared.durability.unflushed.begin_flush();
        }
        self.waiting.push_back(index);
        Dispatch::Queued
    }

    fn trace_data(&self, tag: Tag, moment: Moment) -> DriverData {
        completion_data(moment, format_args!("link {}", self.flights[tag.0 as usize].link))
    }

    fn commit_rqs(&mut self) {
        if !self.has_connection() {
            self.exchange();
        }
        self.pump();
    }

    fn poll(&mut self, batch: &mut CompletionBatch) {
        self.progress();
        while !batch.is_full() {
            let Some((tag, status)) = self.done.pop() else { break };
            match self.flights[tag.0 as usize].give_back(Some(status)) {
                None => batch.push(tag, status),
                Some(back) => {
                    self.returns.push(back);
                    self.free_guests.push(tag.0);
                }
            }
        }
        self.send_returns();
    }

    fn timeout(&mut self, tag: Tag) -> Expired {
        let flight = &mut self.flights[tag.0 as usize];
        match flight.state {
            FlightState::Idle => Expired::Abandon,
            FlightState::Sending | FlightState::Sent => {
                self.expire(tag.0 as usize);
                Expired::Abandon
            }
            // A forwarded request has timed out: another queue is sending the request, or no queue
            // has taken it yet.
            FlightState::Forwarded => {
                flight.expired = true;
                if let Some(request) = self.shared.siblings.expire(flight.forwarding) {
                    flight.take_back(request);
                    flight.state = FlightState::Idle;
                    self.done.push((tag, Status::TimedOut));
                }
                Expired::Abandon
            }
            // The timeout is final: a connection is up and has not taken the request, or the server
            // did not answer the request in time.
            FlightState::Waiting if flight.silence || self.shared.siblings.has_connection() => {
                self.expire(tag.0 as usize);
                Expired::Abandon
            }
            // The request waits for a connection, so the request timeout is extended. The time
            // limit for reconnecting applies instead.
            FlightState::Waiting => Expired::Extend,
        }
    }
}

impl Drop for NbdQueue {
    fn drop(&mut self) {
        if self.searches {
            self.shared.searching.fetch_sub(1, Ordering::Relaxed);
        }
        let NbdQueue { shared, links, .. } = &mut *self;
        links.iter_mut().for_each(|link| link.leave(shared));
        // Runs the reactor until the connections' operations have ended, but at most for `DRAIN`.
        let mut limit = Deadline::<Native>::after(DRAIN);
        while self.ring.is_here() && !self.ring.get().is_idle() && !limit.is_over() {
            if self.ring.get().turn(Wait::Until(now_ns() + DRAIN_TURN_NS)).is_err() {
                break;
            }
        }
        self.shared.siblings.close(self.size.number, self.links.len());
        // The buffers of operations in flight are leaked, because the reactor may still use them.
        if !self.ring.is_here() || !self.ring.get().is_idle() {
            std::mem::forget(std::mem::take(&mut self.links));
            std::mem::forget(std::mem::take(&mut self.flights));
            return;
        }
        self.returns.extend(self.flights.iter_mut().filter_map(|one| one.give_back(None)));
        self.send_returns();
    }
}
