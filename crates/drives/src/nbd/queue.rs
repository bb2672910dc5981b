//! `NbdQueue`: one I/O thread's hardware queue of an NBD drive: requests, and links to send by.
//!
//! Opened on its thread and used there only. Requests wait in a list; `commit_rqs` has each link
//! whose last send is over take its share in one send, which the thread's next turn submits.
//! Answers come out of an inbox. Called by the block layer under the serve lock; calls `link.rs`.
//! Invariant: a tag is named once none of its memory is in an operation. A queue that is dropped
//! ends its operations, or leaks what they may still use.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use millrace_block::{
    CompletionBatch, Dispatch, DriverData, DriverQueue, Expired, Moment, Op, OpFlags, Request,
    Status, Tag,
};
use millrace_machine::{Deadline, Native};
use millrace_nbd::wire::{CMD_FLAG_FUA, CMD_FLAG_NO_HOLE};
use millrace_nbd::{Command, TransmissionFlags};
use millrace_reactor::{Completion, Wait, now_ns};

use super::Shared;
use super::desk::Desk;
use super::flight::{Flight, State as FlightState};
use super::link::{Link, State};
use super::ring::Ring;
use super::shared::Cause;
use crate::thread_bound::ThreadBound;

/// How long a queue that is dropped waits for its operations.
const DRAIN: Duration = Duration::from_secs(2);
/// Longest sleep of one turn meanwhile.
const DRAIN_TURN_NS: u64 = 10_000_000;

/// A hardware queue.
pub(crate) struct NbdQueue {
    shared: Arc<Shared>,
    ring: ThreadBound<Ring>,
    links: Vec<Link>,
    flights: Box<[Flight]>,
    waiting: VecDeque<u32>,
    done: Vec<(Tag, Status)>,
    inbox: Vec<Completion>,
    /// The link that is the first to take requests, in turn.
    turn: usize,
    /// It counts in `Shared::searching`.
    searches: bool,
}

// SAFETY: raw pointers inside are to memory of requests in flight, whose bios are `Send`, and to
// buffers of the queue's own; the ring checks its thread itself.
unsafe impl Send for NbdQueue {}

impl NbdQueue {
    /// A queue with `depth` tags over these links.
    pub(crate) fn new(shared: Arc<Shared>, ring: Ring, links: Vec<Link>, depth: u32) -> NbdQueue {
        let depth = depth as usize;
        let mut queue = NbdQueue {
            shared,
            ring: ThreadBound::new(ring),
            inbox: Vec::with_capacity(2 * links.len()),
            links,
            flights: (0..depth).map(|_| Flight::new()).collect(),
            waiting: VecDeque::with_capacity(depth),
            done: Vec::with_capacity(depth),
            turn: 0,
            searches: false,
        };
        queue.with_links(|link, desk| link.advance(desk));
        queue
    }

    /// Does something with each link.
    fn with_links(&mut self, mut each: impl FnMut(&mut Link, &mut Desk<'_>)) {
        let NbdQueue { shared, ring, links, flights, waiting, done, .. } = self;
        let mut desk = Desk { shared, ring: ring.get(), flights, waiting, done };
        links.iter_mut().for_each(|link| each(link, &mut desk));
    }

    /// What a request comes to here: command and flags.
    fn command_of(&self, rq: &Request<Native>) -> (Command, u16) {
        let forces = self.shared.write_through || rq.flags().has(OpFlags::FUA);
        let has_fua = self.shared.promise.flags.contains(TransmissionFlags::FUA);
        let fua = if forces && has_fua { CMD_FLAG_FUA } else { 0 };
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

    /// Notes whether requests wait here for the server to come back.
    #[inline]
    fn note_search(&mut self) {
        let searches = !self.links.iter().any(Link::is_up) && self.has_hope();
        if searches != self.searches {
            self.searches = searches;
            match searches {
                true => self.shared.begin_search(),
                false => self.shared.end_search(),
            }
        }
    }

    /// Whether a request that waits may be sent sometime.
    fn has_hope(&self) -> bool {
        self.links.iter().any(|link| !matches!(link.state, State::Late | State::Dead))
    }

    /// Hands what waits to the links that can take it.
    fn pump(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        if !self.has_hope() {
            // A server may be back of which nobody has heard since.
            self.with_links(|link, desk| link.advance(desk));
        }
        if !self.has_hope() {
            return self.fail_waiting();
        }
        let takes = |link: &&Link| link.takes(&self.shared);
        let ready = self.links.iter().filter(takes).count();
        if ready == 0 {
            return;
        }
        let share = self.waiting.len().div_ceil(ready);
        self.turn = (self.turn + 1) % self.links.len();
        let (before, after) = self.links.split_at_mut(self.turn);
        let NbdQueue { shared, ring, flights, waiting, done, .. } = self;
        let mut desk = Desk { shared, ring: ring.get(), flights, waiting, done };
        for link in after.iter_mut().chain(before) {
            if link.takes(desk.shared) && !desk.waiting.is_empty() {
                link.send(&mut desk, share);
            }
        }
    }

    fn fail_waiting(&mut self) {
        while let Some(index) = self.waiting.pop_front() {
            self.flights[index as usize].state = FlightState::Idle;
            self.done.push((Tag(index), Status::Offline));
        }
    }

    /// Takes what the reactor has, and has the links go on.
    fn progress(&mut self) {
        let NbdQueue { shared, ring, links, flights, waiting, done, inbox, .. } = self;
        let ring = ring.get();
        ring.take(inbox);
        let mut desk = Desk { shared, ring, flights, waiting, done };
        for Completion { user_data, result, .. } in inbox.drain(..) {
            let link = &mut links[(user_data >> 1) as usize];
            match user_data & 1 {
                0 => link.received(result, &mut desk),
                _ => link.sent(result, &mut desk),
            }
        }
        links.iter_mut().for_each(|link| link.advance(&mut desk));
        self.note_search();
        self.pump();
    }
}

impl DriverQueue<Native> for NbdQueue {
    fn queue_rq(&mut self, rq: &Request<Native>) -> Dispatch {
        let (command, flags) = self.command_of(rq);
        let index = rq.tag().0;
        self.flights[index as usize].fill(command, flags, rq);
        self.waiting.push_back(index);
        Dispatch::Queued
    }

    fn trace_data(&self, tag: Tag, moment: Moment) -> DriverData {
        match moment {
            Moment::Issue => DriverData::default(),
            Moment::Complete => {
                DriverData::text(format_args!("link {}", self.flights[tag.0 as usize].link))
            }
        }
    }

    fn commit_rqs(&mut self) {
        self.pump();
    }

    fn poll(&mut self, batch: &mut CompletionBatch) {
        self.progress();
        while !batch.is_full() {
            let Some((tag, status)) = self.done.pop() else { return };
            batch.push(tag, status);
        }
    }

    fn timeout(&mut self, tag: Tag) -> Expired {
        let flight = &mut self.flights[tag.0 as usize];
        match flight.state {
            FlightState::Idle => Expired::Abandon,
            FlightState::Sending | FlightState::Sent => {
                flight.expired = true;
                let (command, offset, link) = (flight.command, flight.offset, flight.link);
                let why = format!("no answer to a {command:?} at byte {offset} within its timeout");
                self.links[link].lose(&self.shared, &why, Cause::Silence);
                self.flights.iter_mut().for_each(|other| other.silence |= other.is_sent_by(link));
                Expired::Abandon
            }
            // A server that takes no requests though it is there, or has been silent all the time.
            FlightState::Waiting if flight.silence || self.links.iter().any(Link::is_up) => {
                flight.state = FlightState::Idle;
                self.waiting.retain(|index| *index != tag.0);
                self.done.push((tag, Status::TimedOut));
                Expired::Abandon
            }
            // The time for coming back decides.
            FlightState::Waiting => Expired::Extend,
        }
    }
}

impl Drop for NbdQueue {
    fn drop(&mut self) {
        if self.searches {
            self.shared.end_search();
        }
        self.links.iter_mut().for_each(Link::leave);
        let mut limit = Deadline::<Native>::after(DRAIN);
        while self.ring.is_here() && !limit.is_over() {
            let ring = self.ring.get();
            if ring.is_idle() {
                return;
            }
            if ring.turn(Wait::Until(now_ns() + DRAIN_TURN_NS)).is_err() {
                break;
            }
        }
        // The reactor may still use their buffers.
        std::mem::forget(std::mem::take(&mut self.links));
        std::mem::forget(std::mem::take(&mut self.flights));
    }
}
