//! `NbdLink`: one of a queue's connections to the server, which is made again after each loss.
//!
//! A link has a socket with a receive and a send operation (`inbound.rs`, `outbound.rs`) and a
//! reconnecting thread (`redial.rs`). After a loss, the socket is first shut down, so that both
//! operations end. Only then do the link's requests return to the waiting list. Any link that is up
//! sends them again. The loss of one connection ends all connections of the drive; see generations
//! in `drive_state.rs`. Invariant: no operation uses a request's memory after the request has left
//! the link.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use millrace_block::{Status, Tag};
use millrace_machine::{Deadline, Native, lock_unpoisoned};
use millrace_nbd::client::Answers;
use millrace_nbd::{Command, Errno, ReplyStyle, Request, encode_request};
use millrace_tls::Session;
use rustix::net::{SendFlags, Shutdown, send};

use super::NbdState;
use super::dial::NegotiatedConnection;
use super::drive_state::LossCause;
use super::flight::{FlightState, NbdFlight};
use super::inbound::ReplyReceiver;
use super::outbound::RequestSender;
use super::redial::{ReconnectOrder, ReconnectOutcome, ReconnectThread};
use super::ring::{ConnectionRing, Ring};
use super::siblings::NbdRequest;
use super::trouble::NOT_SHARED;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkState {
    Up,
    Closing,
    Away,
    Late,
    Dead,
}

pub(crate) struct LinkPlace {
    pub(crate) queue: usize,
    pub(crate) number: usize,
    /// Name of the connection in messages, or `None` if the drive has only one.
    pub(crate) name: Option<String>,
}

pub(crate) struct NbdLink {
    place: LinkPlace,
    pub(crate) state: LinkState,
    socket: Option<OwnedFd>,
    tls: Option<Box<Session>>,
    style: ReplyStyle,
    /// Epoch of this connection, from `NbdState::epoch_of`. If it differs from `NbdState::epoch`,
    /// the connection is outdated, because the drive has grown.
    epoch: u32,
    generation: u32,
    answers: Answers,
    inbound: ReplyReceiver,
    outbound: RequestSender,
    redial: Arc<ReconnectThread>,
    next: NextConnection,
    /// Deadline after which requests fail if the server accepts connections but answers nothing.
    /// `None` once the server has answered a request of this queue, on this or another connection.
    pub(crate) fruitless: Option<Deadline<Native>>,
    /// True if the data just received have acknowledged a write that still needs a flush. Reset
    /// after all of the data are processed.
    has_written: bool,
    since: Instant,
}

/// State that a queue's connections share; the queue lends the state to one of them at a time.
pub(crate) struct LinkContext<'a> {
    pub(crate) shared: &'a Arc<NbdState>,
    pub(crate) ring: &'a Ring,
    pub(crate) flights: &'a mut [NbdFlight],
    pub(crate) waiting: &'a mut VecDeque<u32>,
    pub(crate) done: &'a mut Vec<(Tag, Status)>,
}

#[derive(Default)]
pub(crate) struct NextConnection {
    /// New connection, to be used after the link has closed its current one.
    pub(crate) connected: Option<NegotiatedConnection>,
    /// True if a thread is making a connection because the drive has grown.
    is_asked_for: bool,
    /// Value of `NbdState::generation` when the new connection was requested. If the current value
    /// differs, a connection was lost since then.
    pub(crate) generation: u32,
}

impl NbdLink {
    /// Creates a link for a queue of at most `slots` requests. Without a connection, the link
    /// starts reconnecting.
    pub(crate) fn new(
        place: LinkPlace,
        next: NextConnection,
        redial: ReconnectThread,
        slots: u32,
    ) -> NbdLink {
        let style = next.connected.as_ref().map_or(ReplyStyle::Simple, |one| one.session.style);
        NbdLink {
            place,
            state: LinkState::Closing,
            socket: None,
            tls: None,
            style,
            epoch: 0,
            generation: next.generation,
            answers: Answers::new(style, slots),
            inbound: ReplyReceiver::new(),
            outbound: RequestSender::new(),
            redial: Arc::new(redial),
            next,
            fruitless: None,
            has_written: false,
            since: Instant::now(),
        }
    }

    pub(crate) fn takes(&self, shared: &NbdState) -> bool {
        self.state == LinkState::Up
            && !self.outbound.is_busy
            && !self.is_outdated(shared)
            && !self.is_over(shared)
    }

    fn is_over(&self, shared: &NbdState) -> bool {
        self.generation != shared.generation()
    }

    fn is_outdated(&self, shared: &NbdState) -> bool {
        // Acquire pairs with the Release in `revalidate`. `revalidate` increments `epoch` before
        // the block layer sends requests to sectors beyond the old size.
        self.epoch != shared.epoch.load(Ordering::Acquire)
    }

    fn ring<'a>(&self, ring: &'a Ring, sends: u64) -> Option<ConnectionRing<'a>> {
        let fd = self.socket.as_ref()?.as_raw_fd();
        Some(ConnectionRing { ring, fd, user_data: (self.place.number as u64) << 1 | sends })
    }

    /// Sends up to `share` of the queue's waiting requests. No send operation may be in flight.
    pub(crate) fn send(&mut self, context: &mut LinkContext<'_>, share: usize) {
        self.outbound.begin();
        for _ in 0..share {
            if !self.outbound.has_room() {
                break;
            }
            let Some(index) = context.waiting.pop_front() else { break };
            let flight = &mut context.flights[index as usize];
            let NbdRequest { command, flags, offset, len: length, .. } = flight.request;
            let mut request = Request { cookie: 0, flags, command, offset, length };
            self.answers.expect(index, &mut request);
            self.outbound.add(index, &request, self.style, &flight.request.memory);
            (flight.state, flight.silence) = (FlightState::Sending, false);
            flight.link = self.place.number;
        }
        self.push(context);
    }

    fn push(&mut self, context: &LinkContext<'_>) {
        let Some(ring) = self.ring(context.ring, 1) else { return };
        match &mut self.tls {
            None => self.outbound.send(&ring),
            Some(session) => {
                if let Err(error) = self.outbound.send_sealed(&ring, session) {
                    self.lose(context.shared, &format!("TLS: {error}"), LossCause::Other);
                }
            }
        }
    }

    fn arm(&mut self, context: &LinkContext<'_>) {
        if let (Some(ring), LinkState::Up) = (self.ring(context.ring, 0), self.state) {
            let tls = self.tls.as_deref_mut();
            self.inbound.arm(&ring, &self.answers, tls, context.flights);
        }
    }

    pub(crate) fn sent(&mut self, result: i32, context: &mut LinkContext<'_>) {
        self.outbound.is_busy = false;
        if result <= 0 || self.state != LinkState::Up {
            return self.lose(context.shared, &errno_text(result), LossCause::Other);
        }
        let has_ciphertext = match &mut self.tls {
            None => {
                self.outbound.advance(result as usize);
                false
            }
            Some(session) => {
                session.sent(result as usize);
                !session.output().is_empty()
            }
        };
        if has_ciphertext || !self.outbound.is_sent() {
            return self.push(context);
        }
        for index in self.outbound.sent() {
            let flight = &mut context.flights[index as usize];
            flight.state = FlightState::Sent;
            if let Some(status) = flight.answered.take() {
                flight.state = FlightState::Idle;
                context.done.push((Tag(index), status));
            }
        }
    }

    pub(crate) fn received(&mut self, result: i32, context: &mut LinkContext<'_>) {
        self.inbound.is_busy = false;
        if result <= 0 || self.state != LinkState::Up {
            return self.lose(context.shared, &errno_text(result), LossCause::Other);
        }
        if self.is_over(context.shared) {
            // Another connection was lost, so this connection is given up, too. The answers just
            // received are ignored, and their requests are sent again, because a new server process
            // may not have their data.
            return self.follow(context);
        }
        let taken = match self.tls.take() {
            None => {
                self.inbound.received(result as usize, &mut self.answers);
                self.answered(context)
            }
            Some(mut session) => {
                session.received(result as usize);
                let taken = self.unseal(&mut session, context);
                self.tls = Some(session);
                taken
            }
        };
        if std::mem::take(&mut self.has_written) && self.is_over(context.shared) {
            // The received replies have acknowledged a write, and another connection was lost
            // meanwhile. `NbdState::end` may have checked for unflushed writes before this write
            // was recorded. So the check is repeated.
            context.shared.note_loss();
        }
        if let Err(why) = taken {
            return self.lose(context.shared, &why, LossCause::Other);
        }
        if self.tls.is_some() && !self.outbound.is_busy {
            // The TLS session may have to send data of its own, such as an alert.
            self.push(context);
        }
        self.arm(context);
    }

    fn unseal(
        &mut self,
        session: &mut Session,
        context: &mut LinkContext<'_>,
    ) -> Result<(), String> {
        while self.inbound.unseal(session).map_err(|error| format!("TLS: {error}"))? {
            self.answered(context)?;
        }
        Ok(())
    }

    fn answered(&mut self, context: &mut LinkContext<'_>) -> Result<(), String> {
        loop {
            match self.inbound.next(&mut self.answers, context.flights) {
                Ok(Some((_, Some(Errno::Eshutdown)))) => {
                    return Err("the server is shutting down".to_owned());
                }
                Ok(Some((index, errno))) => self.ended(index, errno, context),
                Ok(None) => return Ok(()),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    fn ended(&mut self, index: u32, errno: Option<Errno>, context: &mut LinkContext<'_>) {
        self.fruitless = None;
        let flight = &mut context.flights[index as usize];
        let status = match errno {
            None if flight.makes_durable() => {
                context.shared.durability.unflushed.end_flush(flight.request.flush);
                if context.shared.take_error() { Status::IoError } else { Status::Ok }
            }
            None => {
                if flight.needs_flush() {
                    context.shared.durability.unflushed.note_write();
                    self.has_written = true;
                }
                Status::Ok
            }
            // `from_errno` turns EPERM into the status of a write to a read-only drive. A read
            // cannot fail for this reason, so its status is an I/O error.
            Some(Errno::Eperm) if flight.request.command == Command::Read => Status::IoError,
            Some(errno) => Status::from_errno(errno.to_wire() as i32),
        };
        if flight.state == FlightState::Sending {
            // The send operation may still use the request's memory. So the request completes only
            // after the send operation has ended.
            flight.answered = Some(status);
            return;
        }
        flight.state = FlightState::Idle;
        context.done.push((Tag(index), status));
    }

    /// Gives the connection up because another connection of the drive was lost. After a loss, all
    /// connections are made anew.
    fn follow(&mut self, context: &mut LinkContext<'_>) {
        if lock_unpoisoned(&context.shared.backoff).was_silent {
            let link = self.place.number;
            context.flights.iter_mut().for_each(|one| one.silence |= one.is_sent_by(link));
        }
        self.fall(context.shared);
    }

    fn fall(&mut self, shared: &NbdState) {
        self.state = LinkState::Closing;
        shared.siblings.connection_down(self.place.queue, self.generation);
        if let Some(socket) = &self.socket {
            // A connection that is already broken cannot be shut down. Its operations end anyway.
            let _ = rustix::net::shutdown(socket, Shutdown::Both);
        }
    }

    /// Gives up this connection and all other connections of its generation, that is, those made
    /// after the same loss. The send and receive operations of these connections end soon after.
    pub(crate) fn lose(&mut self, shared: &NbdState, why: &str, cause: LossCause) {
        if self.state != LinkState::Up {
            return;
        }
        self.fall(shared);
        if !shared.end(self.generation, why, cause, Some(self.since)) {
            // Another connection was lost first, or the export has changed. The first loss has
            // ended this connection, too, so this loss is not logged.
            return;
        }
        let Some(short) = shared.logs_loss() else { return };
        let in_flight = match self.answers.in_flight() {
            0 => "no request was in flight".to_owned(),
            1 => "1 request was in flight".to_owned(),
            count => format!("{count} requests were in flight"),
        };
        let all = if self.place.name.is_some() { " all connections" } else { "" };
        let next = match shared.is_late() {
            // The time limit for reconnecting has already passed, so requests no longer wait.
            true => "requests fail until the server is back".to_owned(),
            false => {
                let limit_s = shared.target.config.reconnect.as_secs();
                format!("trying to reconnect{all} for {limit_s} s")
            }
        };
        let before = match short {
            0 | 1 => String::new(),
            count => format!("; {count} connections in a row lasted less than a second"),
        };
        let name = self.place.name.as_deref().unwrap_or("connection");
        shared.say(format!("{name} lost: {why}; {in_flight}; {next}{before}"));
    }

    pub(crate) fn advance(&mut self, context: &mut LinkContext<'_>) {
        // A `Deadline` is extended by the time for which this process was suspended, but only if it
        // is queried often. So each call queries the deadline.
        self.fruitless.as_mut().map(Deadline::left_ns);
        match self.state {
            LinkState::Up if self.is_over(context.shared) => self.follow(context),
            LinkState::Up if self.is_outdated(context.shared) => self.replace(context),
            LinkState::Up | LinkState::Dead => {}
            LinkState::Closing if self.inbound.is_busy || self.outbound.is_busy => {}
            LinkState::Closing => self.closed(context),
            // Each loss increments the drive's generation. If the generation has changed, another
            // connection was made and lost while this link was reconnecting, so this link starts
            // again.
            LinkState::Away | LinkState::Late
                if self.next.generation != context.shared.generation() || self.redial.is_due() =>
            {
                self.seek(context);
            }
            LinkState::Away | LinkState::Late => self.hear(context),
        }
    }

    /// Replaces this connection once it is idle, because the drive has grown.
    fn replace(&mut self, context: &mut LinkContext<'_>) {
        if !self.next.is_asked_for || self.redial.is_due() {
            let (generation, shared) = (context.shared.generation(), context.shared);
            (self.next.is_asked_for, self.next.generation) = (true, generation);
            let limit = shared.target.config.reconnect;
            self.redial.ask(shared, ReconnectOrder { generation, limit, own: 1 });
        }
        if self.answers.in_flight() > 0 || self.outbound.is_busy {
            return;
        }
        match self.redial.take() {
            Some(ReconnectOutcome::Connected(connected)) => {
                self.take_leave();
                self.next.connected = Some(connected);
                self.fall(context.shared);
            }
            Some(ReconnectOutcome::Changed(text)) => self.die(text, context.shared),
            Some(ReconnectOutcome::Late(text)) => {
                context.shared.say(format!(
                    "the export has grown, but a new connection for its new size cannot be \
                     opened: {text}"
                ));
            }
            None => {}
        }
    }

    /// Returns the requests to the waiting list and starts reconnecting. The send and receive
    /// operations must have ended.
    fn closed(&mut self, context: &mut LinkContext<'_>) {
        if self.socket.take().is_some() {
            context.shared.siblings.connection_closed(self.place.queue);
        }
        self.tls = None;
        self.outbound.sent().for_each(drop);
        for index in (0..context.flights.len()).rev() {
            let flight = &mut context.flights[index];
            if !flight.is_sent_by(self.place.number) {
                continue;
            }
            match flight.answered.take().or(flight.expired.then_some(Status::TimedOut)) {
                Some(status) => {
                    flight.state = FlightState::Idle;
                    context.done.push((Tag(index as u32), status));
                }
                None => {
                    (flight.state, flight.request.again) = (FlightState::Waiting, true);
                    context.waiting.push_front(index as u32);
                }
            }
        }
        self.answers.reset(self.style);
        match self.next.connected.take() {
            Some(connected) => drop(self.up(connected, context)),
            None => self.seek(context),
        }
    }

    fn seek(&mut self, context: &mut LinkContext<'_>) {
        if context.shared.is_dead() {
            self.state = LinkState::Dead;
            return;
        }
        self.next.generation = context.shared.generation();
        let waits = |state| matches!(state, FlightState::Waiting | FlightState::Forwarded);
        if !context.flights.iter().any(|flight| waits(flight.state)) {
            self.fruitless = None;
        }
        let limit = || Deadline::after(context.shared.target.config.reconnect);
        let limit = self.fruitless.get_or_insert_with(limit).left_ns();
        let mut limit = Duration::from_nanos(limit);
        self.state = LinkState::Late;
        if context.shared.is_late() {
            // Another link has already waited for the whole time limit for reconnecting. Requests
            // of this link must not wait for the same time again.
            limit = Duration::ZERO;
        } else if limit.is_zero() {
            // The time limit is 0, or it is over: either no reconnecting thread could be started,
            // or the server accepts every connection but answers nothing. Perhaps a pending request
            // crashes the server each time, so the pending requests fail.
            let why = self.redial.refusal();
            let why = why.as_deref().unwrap_or(match context.shared.target.config.reconnect {
                Duration::ZERO => "no connection, and reconnect=0",
                _ => "the server accepts connections but answers no request",
            });
            context.shared.say_requests_fail(format!("{why}; requests fail"));
        } else {
            self.state = LinkState::Away;
        }
        let generation = self.next.generation;
        self.redial.ask(context.shared, ReconnectOrder { generation, limit, own: 0 });
    }

    fn hear(&mut self, context: &mut LinkContext<'_>) {
        match self.redial.take() {
            None => {}
            Some(ReconnectOutcome::Connected(_)) if context.shared.is_dead() => {
                self.state = LinkState::Dead
            }
            Some(ReconnectOutcome::Connected(connected)) => {
                if !self.up(connected, context) {
                    return;
                }
                let is_again = |at: &&u32| context.flights[**at as usize].request.again;
                let more = match context.waiting.iter().filter(is_again).count() {
                    0 => String::new(),
                    1 => "; 1 request is sent again".to_owned(),
                    count => format!("; {count} requests are sent again"),
                };
                let name = self.place.name.as_ref().map(|name| format!("{name}: "));
                let name = name.unwrap_or_default();
                if context.shared.logs_loss().is_some() {
                    context.shared.say(format!("{name}connected again{more}"));
                }
            }
            // Other connections carry the requests; the reconnecting thread keeps trying.
            Some(ReconnectOutcome::Late(_)) if context.shared.siblings.has_connection() => {}
            Some(ReconnectOutcome::Late(text)) => {
                // Each link of the drive may reach the time limit for reconnecting, but only the
                // first one logs this line.
                if self.state == LinkState::Away && context.shared.became_late() {
                    context.shared.say(format!("{text}; requests fail until the server is back"));
                }
                self.state = LinkState::Late;
            }
            Some(ReconnectOutcome::Changed(text)) => self.die(text, context.shared),
        }
    }

    fn die(&mut self, text: String, shared: &NbdState) {
        shared.die(text);
        match self.state {
            LinkState::Up => self.fall(shared),
            _ => self.state = LinkState::Dead,
        }
    }

    /// Starts to use a connection. Returns false if it cannot be used, so that another one is made.
    fn up(&mut self, connected: NegotiatedConnection, context: &mut LinkContext<'_>) -> bool {
        let NegotiatedConnection { wire, session, .. } = connected;
        let (socket, tls) = match wire.into_parts() {
            Ok(parts) => parts,
            Err(error) => {
                // A connection that cannot be used counts as lost: `Closing` leads to a new
                // attempt.
                context.shared.say(format!("cannot use the new connection: {error}"));
                self.state = LinkState::Closing;
                return false;
            }
        };
        let (queue, sharing) = (self.place.queue, context.shared.sharing(&session));
        self.generation = self.next.generation;
        if !context.shared.siblings.connection_up(queue, self.generation, sharing) {
            context.shared.note_trouble(NOT_SHARED);
            self.seek(context);
            return false;
        }
        self.style = session.style;
        self.answers.reset(self.style);
        self.inbound.reset();
        (self.socket, self.tls) = (Some(socket), tls);
        self.epoch = context.shared.epoch_of(session.size_bytes);
        self.next.is_asked_for = false;
        self.since = Instant::now();
        self.state = LinkState::Up;
        self.arm(context);
        true
    }

    /// Sends a disconnect request to the server if the socket accepts it without waiting.
    fn take_leave(&self) {
        let Some(socket) = &self.socket else { return };
        if self.outbound.is_busy || self.state != LinkState::Up || self.tls.is_some() {
            return;
        }
        let (command, mut header) = (Command::Disc, [0; 32]);
        let request = Request { cookie: 0, flags: 0, command, offset: 0, length: 0 };
        let len = encode_request(&request, self.style, &mut header);
        // A failed send does no harm, because the server also notices that the socket is closed.
        let _ = send(socket, &header[..len], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Closes the connection because the queue is closed. The operations end soon after.
    pub(crate) fn leave(&mut self, shared: &NbdState) {
        self.redial.forget();
        self.take_leave();
        if self.state == LinkState::Up {
            self.fall(shared);
        }
        self.state = LinkState::Closing;
    }
}

fn errno_text(result: i32) -> String {
    match result {
        0 => "the server hung up".to_owned(),
        _ => std::io::Error::from_raw_os_error(-result).to_string(),
    }
}
