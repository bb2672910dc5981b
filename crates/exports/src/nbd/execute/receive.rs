//! Receive path: turns received bytes into requests for the block layer, or into replies.
//!
//! Invariants: a request's header is consumed only when everything it needs is available, so a
//! connection that must wait, for example for memory, stops before a header and resumes there.
//! Payload of a refused request is discarded, never parsed as a header.

use std::fmt::Display;
use std::sync::Arc;

use millrace_machine::{Machine, Native};

use super::{ClientRequest, TakeResult, WorkerContext};
use crate::nbd::connection::client_log;
use crate::nbd::connection::input::COPY_BYTES_MAX;
use crate::nbd::connection::{
    Connection, ConnectionPhase, ExportSession, IncomingPayload, Negotiation,
};
use crate::nbd::memory::waiting_line::MemoryWait;
use crate::nbd::on_demand::{ExportRequest, OnDemandState, RequestedExport};
use crate::nbd::visible::VisibleExports;
use millrace_nbd::{
    Command, Handshake, Progress, ProtocolError, RequestLimits, RequestVerdict, WantedExport,
    check, parse,
};

/// Number of unsent answer bytes above which a negotiation reads no further options of the client.
const UNSENT_ANSWERS: usize = 64 * 1024;

impl WorkerContext {
    pub(crate) fn received(&mut self, conn: &mut Connection, result: i32) {
        conn.input.busy = false;
        self.counts.receives += 1;
        if matches!(conn.phase, ConnectionPhase::Draining | ConnectionPhase::Dead) {
            return conn.abandon_input(&mut self.submitter.tickets, &mut self.pool);
        }
        let Ok(bytes @ 1..) = usize::try_from(result) else {
            // The client ended the stream, or the connection broke. Requests in flight are still
            // answered if possible.
            if conn.tls.is_some() {
                self.note_hang_up(conn);
            }
            return self.drain(conn);
        };
        conn.history.progress.moved(bytes);
        if let Some(tls) = &mut conn.tls {
            tls.received(bytes);
            return self.take_input(conn);
        }
        let mut bytes = bytes;
        if let Some(incoming) = &mut conn.incoming
            && incoming.room(&mut self.submitter.tickets).is_some()
        {
            let into_payload = bytes.min((incoming.total - incoming.filled) as usize);
            incoming.filled += into_payload as u64;
            bytes -= into_payload;
        }
        conn.input.received(bytes);
        self.take_input(conn);
    }

    /// Lets a connection receive again. Its receive was delayed to give the client time to read
    /// replies; the client has read most of the replies, or has taken too long.
    pub(crate) fn caught_up(&mut self, conn: &mut Connection) {
        conn.input.busy = false;
        (conn.out.backlog_bytes, conn.out.backlog_replies) = (0, 0);
        conn.out.catching_ns = 0;
        if matches!(conn.phase, ConnectionPhase::Draining | ConnectionPhase::Dead) {
            conn.abandon_input(&mut self.submitter.tickets, &mut self.pool);
        }
    }

    pub(crate) fn take_input(&mut self, conn: &mut Connection) {
        conn.touch(&mut self.touched);
        self.take_plain_input(conn);
        if conn.tls.is_some() {
            self.take_secure_input(conn);
        }
    }

    #[inline]
    pub(super) fn take_plain_input(&mut self, conn: &mut Connection) {
        if conn.phase == ConnectionPhase::Handshake {
            self.negotiate(conn);
        }
        if conn.phase == ConnectionPhase::Transmission {
            self.take_requests(conn);
        }
    }

    fn negotiate(&mut self, conn: &mut Connection) {
        let is_ready = |one: &&mut Box<Negotiation>| {
            one.then.is_none() && !one.waits() && one.out.len() < UNSENT_ANSWERS
        };
        let Some(negotiation) = conn.negotiation.as_mut().filter(is_ready) else { return };
        let peer = conn.tls.as_ref().and_then(|tls| tls.session.peer());
        let Negotiation { listener, handshake, out, demand, .. } = &mut **negotiation;
        let Some(catalog) = VisibleExports::of(&self.exports, *listener, (peer, demand)) else {
            return self.kill(conn);
        };
        let fed = handshake.feed(&catalog, conn.input.bytes(), out);
        let chosen = match &fed {
            Ok((_, Progress::Ready(session))) => catalog.export(session.export).cloned(),
            _ => None,
        };
        if let Some(why) = catalog.take_refused() {
            self.secure.not_allowed(conn, &why);
        }
        let Some(negotiation) = conn.negotiation.as_mut() else { return };
        match fed {
            Ok((used, progress)) => {
                conn.input.consume(used);
                match progress {
                    Progress::NeedMore | Progress::Unsent => {}
                    Progress::Pending => self.ask(conn),
                    Progress::StartTls => negotiation.starts_tls = true,
                    Progress::Ready(session) => {
                        negotiation.then = Some(chosen.map(|export| (session, export)));
                    }
                    Progress::Closed => negotiation.then = Some(None),
                }
                self.negotiated(conn);
            }
            // Unencrypted bytes after the client's STARTTLS option may come from an attacker on the
            // network.
            Err(error @ ProtocolError::BytesAfterStartTls(_)) => {
                self.refuse_secure(conn, &error);
            }
            Err(error) => self.violated(conn, error),
        }
    }

    /// Asks the owner of the server for the export that the client wants, or for the list of
    /// exports.
    fn ask(&mut self, conn: &mut Connection) {
        let peer = conn.tls.as_ref().and_then(|tls| tls.session.peer()).cloned();
        let Some(negotiation) = &mut conn.negotiation else { return };
        let Some(catalog) = self.exports.catalog(negotiation.listener) else { return };
        let wanted = match Handshake::wanted(conn.input.bytes()) {
            Some(WantedExport::Export(name)) => RequestedExport::Named(name.to_owned()),
            Some(WantedExport::List) => RequestedExport::All,
            None => return,
        };
        let alive = Arc::new(());
        let still_waits = Arc::downgrade(&alive);
        negotiation.demand = OnDemandState::Waiting { _alive: alive };
        negotiation.asked_ns = Some(Native::now());
        self.shared.requests.put(ExportRequest {
            listen: catalog.listen.clone(),
            wanted,
            peer,
            shared: Arc::clone(&self.shared),
            thread: self.pool.thread,
            connection: conn.index,
            serial: conn.serial,
            waits: still_waits,
            is_answered: false,
        });
    }

    pub(crate) fn answered(&mut self, conn: &mut Connection, demand: OnDemandState) {
        let Some(negotiation) = conn.negotiation.as_mut().filter(|one| one.waits()) else { return };
        negotiation.demand = demand;
        negotiation.asked_ns = Some(Native::now());
        self.take_input(conn);
    }

    pub(crate) fn sent_answers(&mut self, conn: &mut Connection, result: i32) {
        conn.out.busy = false;
        if conn.phase == ConnectionPhase::Dead {
            return;
        }
        let (Ok(bytes), Some(negotiation)) = (usize::try_from(result), &mut conn.negotiation)
        else {
            return self.kill(conn);
        };
        if let Some(tls) = &mut conn.tls {
            tls.session.sent(bytes);
        } else {
            negotiation.sent += bytes;
            if negotiation.sent == negotiation.out.len() {
                negotiation.out.clear();
                negotiation.sent = 0;
            }
            if negotiation.starts_tls && negotiation.out.is_empty() {
                self.start_tls(conn);
            }
        }
        self.negotiated(conn);
        self.take_input(conn);
    }

    fn negotiated(&mut self, conn: &mut Connection) {
        let is_over = |one: &Negotiation| one.then.is_some() && one.out.is_empty();
        if !conn.negotiation.as_deref().is_some_and(is_over) {
            return;
        }
        // `negotiation` must live until the function returns. Its `GrantedExport` keeps the volume
        // in use until this thread has opened the volume for the client.
        let Some(mut negotiation) = conn.negotiation.take() else { return };
        let Some(then) = negotiation.then.take() else { return };
        let Some((session, export)) = then else {
            return self.kill(conn);
        };
        let info = &export.info;
        let lane = match self.submitter.lanes.open(&mut self.ctx, &export.served) {
            Ok(lane) => lane,
            Err(error) => {
                client_log::broken(conn, format!("{}: {error}", export.name));
                return self.kill(conn);
            }
        };
        self.submitter.lanes[lane].clients += 1;
        export.served.note_used();
        client_log::granted(conn, &export.name, session.style);
        let rules = RequestLimits::new(info, &session);
        // The volume may have grown since its size was announced. Requests are checked against its
        // current size.
        let rules = RequestLimits { size_bytes: export.size_bytes(), ..rules };
        let (block_bytes, no_payload) = (info.block_min, export.no_payload);
        let seat = export.group.enter();
        let group = seat.group();
        conn.history.export = Some((export, seat));
        let lane = lane as u32;
        conn.granted = Some(ExportSession { session, rules, lane, no_payload, block_bytes, group });
        conn.phase = ConnectionPhase::Transmission;
    }

    fn take_requests(&mut self, conn: &mut Connection) {
        let Some(granted) = conn.granted else { return };
        conn.turn.has_more = false;
        while conn.phase == ConnectionPhase::Transmission {
            if conn.incoming.is_some() {
                if !self.take_payload(conn) {
                    return;
                }
                continue;
            }
            let (request, header_bytes) = match parse(conn.input.bytes(), &granted.session) {
                Ok(None) => return,
                Ok(Some((request, header_bytes))) => (request, header_bytes),
                Err(error) => return self.violated(conn, error),
            };
            if !conn.has_room() {
                return conn.stop_taking();
            }
            if conn.turn.is_full() {
                return;
            }
            let payload_bytes = request.payload_bytes(granted.session.style);
            let asked = ClientRequest { granted: &granted, request: &request };
            let taken = match check(&request, &granted.rules, &granted.session) {
                RequestVerdict::Accept => self.execute(conn, asked),
                RequestVerdict::Refuse { errno, why, .. } => self.refuse(conn, asked, (errno, why)),
                RequestVerdict::Disconnect(why) => return self.violated(conn, why),
            };
            let waited = conn.history.stopped_ns != 0 || conn.memory_wait != MemoryWait::None;
            if waited && !matches!(taken, TakeResult::NoMemory) {
                self.goes_on(conn, &granted);
            }
            let (ticket, refused) = match taken {
                TakeResult::NoMemory => return conn.stop_taking(),
                TakeResult::Done => (None, None),
                TakeResult::Refused(refusal) => (None, Some(refusal)),
                TakeResult::Awaits(id) => (Some(id), None),
            };
            self.counts.requests += 1;
            conn.history.requests += 1;
            if matches!(request.command, Command::Read | Command::Write) {
                conn.history.bytes += request.length;
            }
            if conn.phase != ConnectionPhase::Transmission {
                // The request NBD_CMD_DISC has ended the session and discarded all received bytes,
                // so no header is left to consume.
                return;
            }
            conn.input.consume(header_bytes);
            let incoming = IncomingPayload { ticket, refused, filled: 0, total: payload_bytes };
            conn.input.narrow = payload_bytes > COPY_BYTES_MAX as u64
                && incoming.room(&mut self.submitter.tickets).is_some();
            conn.incoming = (payload_bytes > 0).then_some(incoming);
        }
    }

    #[cold]
    fn goes_on(&mut self, conn: &mut Connection, granted: &ExportSession) {
        conn.stop_waiting(&mut self.pool);
        let since_ns = std::mem::take(&mut conn.history.stopped_ns);
        if since_ns > 0 {
            let lane = granted.lane as usize;
            let ns = Native::now().saturating_sub(since_ns);
            self.submitter.lanes[lane].channel.count_back_pressure(granted.group, ns);
        }
    }

    fn violated(&mut self, conn: &mut Connection, why: impl Display) {
        self.counts.protocol_errors += 1;
        client_log::ended(conn, why);
        self.kill(conn);
    }

    /// Takes a write's payload out of the receive buffer. Returns true if the payload is complete.
    fn take_payload(&mut self, conn: &mut Connection) -> bool {
        let Some(incoming) = &mut conn.incoming else { return true };
        let bytes = conn.input.bytes();
        let bytes = &bytes[..bytes.len().min((incoming.total - incoming.filled) as usize)];
        let len = bytes.len();
        if let Some(room) = incoming.room(&mut self.submitter.tickets) {
            room[..len].copy_from_slice(bytes);
            self.counts.copied_bytes += len as u64;
        }
        incoming.filled += len as u64;
        conn.input.consume(len);
        if incoming.filled < incoming.total {
            return false;
        }
        let (ticket, refused) = (incoming.ticket, incoming.refused);
        conn.incoming = None;
        if let Some(id) = ticket {
            self.submitter.submit(id);
        }
        if let Some(refusal) = refused {
            conn.refuse(&refusal);
        }
        true
    }
}
