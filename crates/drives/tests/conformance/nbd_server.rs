//! An NBD server in this process that keeps its data in memory, and misbehaves on request.
//!
//! Each connection takes the next fault of a script; without one it is honest. The negotiation is
//! the protocol crate's, so a client may use any style of replies.

use std::collections::{HashSet, VecDeque};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millrace_nbd::wire::CMD_FLAG_FUA;
use millrace_nbd::{
    Command, Errno, ExportInfo, Extent, Handshake, Position, Progress, REPLY_BYTES_MAX, Reply,
    ReplyStyle, Request, Session, StatusQuery, TransmissionFlags, parse,
};
use tempfile::TempDir;

/// Behaviour of a connection: its fault and, for most, the number of the request (from 0) it hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    Honest,
    /// Hangs up without a greeting.
    NoGreeting,
    /// Greets with bytes that no NBD server sends.
    Babble,
    /// Hangs up after the greeting, or after answering this many bytes of the negotiation.
    HangUpAfterBytes(usize),
    /// Carries it out and hangs up instead of answering.
    LoseAnswer(usize),
    /// Hangs up without carrying it out.
    LoseRequest(usize),
    /// Sends half of the answer to a read, then hangs up.
    HalfAnswer(usize),
    /// Answers with bytes that mean nothing.
    Garbage(usize),
    /// Answers another request than was sent.
    WrongCookie(usize),
    /// Ends a read without its data.
    NoData(usize),
    /// Sends a read's data twice.
    Twice(usize),
    /// Sends data of another place.
    WrongPlace(usize),
    /// Answers with ESHUTDOWN.
    ShutDown(usize),
    /// Answers it and hangs up.
    LeaveAfter(usize),
    /// Does not answer any more.
    Silent(usize),
    /// Takes no more requests off the socket.
    Deaf(usize),
    /// Answers a write before its data have come, and hangs up.
    Early(usize),
}

#[derive(Default)]
pub struct State {
    pub data: Mutex<Vec<u8>>,
    pub script: Mutex<VecDeque<Act>>,
    pub flags: Mutex<TransmissionFlags>,
    /// Connections that got as far as requests.
    pub sessions: AtomicUsize,
    pub flushes: AtomicUsize,
    pub forced: AtomicUsize,
    /// The server accepts no more connections.
    pub closed: AtomicBool,
    /// Most connections at a time; 0: any number.
    pub limit: AtomicUsize,
    /// Connections above the limit are not hung up on, but get no greeting.
    pub mute: AtomicBool,
    /// The export has another name than the drive asks for.
    pub renamed: AtomicBool,
    /// Connections that there are.
    pub streams: Mutex<Vec<UnixStream>>,
    /// Connections that there are and that a request came by.
    pub used: Mutex<HashSet<i32>>,
    /// Most of these at a time.
    pub used_max: AtomicUsize,
    pub block_min: AtomicUsize,
}

pub struct Server {
    pub state: Arc<State>,
    pub path: PathBuf,
    _dir: TempDir,
}

/// All flags that the drive knows.
pub const ALL: TransmissionFlags = TransmissionFlags::FLUSH
    .with(TransmissionFlags::FUA)
    .with(TransmissionFlags::TRIM)
    .with(TransmissionFlags::WRITE_ZEROES)
    .with(TransmissionFlags::MULTI_CONN);

impl Server {
    pub fn new(size_bytes: u64, flags: TransmissionFlags, script: &[Act]) -> Server {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let state = Arc::new(State {
            data: Mutex::new(vec![0; size_bytes as usize]),
            script: Mutex::new(script.iter().copied().collect()),
            flags: Mutex::new(flags),
            block_min: AtomicUsize::new(1),
            ..State::default()
        });
        let (listener, own) = (UnixListener::bind(&path).unwrap(), Arc::clone(&state));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let state = Arc::clone(&own);
                std::thread::spawn(move || serve(stream, &state));
            }
        });
        Server { state, path, _dir: dir }
    }

    pub fn uri(&self) -> String {
        format!("nbd+unix:///x?socket={}", self.path.display())
    }

    /// Hangs up on everybody, as a server that ends.
    pub fn hang_up(&self) {
        let streams = self.state.streams.lock().unwrap();
        streams.iter().for_each(|stream| stream.shutdown(Shutdown::Both).unwrap_or(()));
    }

    pub fn sessions(&self) -> usize {
        self.state.sessions.load(Ordering::SeqCst)
    }
}

/// Serves a connection, or closes it if the limit is reached.
fn serve(mut stream: UnixStream, state: &State) -> Option<()> {
    let copy = stream.try_clone().ok()?;
    let id = std::os::fd::AsRawFd::as_raw_fd(&copy);
    let is_let_in = {
        let mut streams = state.streams.lock().unwrap();
        let limit = state.limit.load(Ordering::SeqCst);
        let is_let_in = limit == 0 || streams.len() < limit;
        is_let_in.then(|| streams.push(copy)).is_some()
    };
    if !is_let_in {
        if state.mute.load(Ordering::SeqCst) {
            let _ = stream.read(&mut [0]);
        }
        return None;
    }
    let ended = served(stream, id, state);
    state.used.lock().unwrap().remove(&id);
    let is_other = |one: &UnixStream| std::os::fd::AsRawFd::as_raw_fd(one) != id;
    state.streams.lock().unwrap().retain(is_other);
    ended
}

/// Serves a connection until any error or fault ends it.
fn served(mut stream: UnixStream, id: i32, state: &State) -> Option<()> {
    if state.closed.load(Ordering::SeqCst) {
        return None;
    }
    let act = state.script.lock().unwrap().pop_front().unwrap_or(Act::Honest);
    let (session, input) = negotiate(&mut stream, state, act)?;
    state.sessions.fetch_add(1, Ordering::SeqCst);
    let mut connection = Connection { stream, id, session, input, act, number: 0 };
    loop {
        connection.one(state)?;
    }
}

fn negotiate(stream: &mut UnixStream, state: &State, act: Act) -> Option<(Session, Vec<u8>)> {
    let export = ExportInfo {
        name: if state.renamed.load(Ordering::SeqCst) { "y" } else { "x" }.into(),
        description: String::new(),
        size_bytes: state.data.lock().unwrap().len() as u64,
        flags: *state.flags.lock().unwrap(),
        block_min: state.block_min.load(Ordering::SeqCst) as u32,
        block_preferred: 4096,
        block_max: 32 << 20,
    };
    let (catalog, mut handshake, mut out) = (vec![export], Handshake::new(), Vec::new());
    match act {
        Act::NoGreeting => return None,
        Act::Babble => {
            let _ = stream.write_all(b"220 mail.example.com ESMTP ready, and a good day\r\n");
            return None;
        }
        _ => handshake.greeting(&mut out),
    }
    let (mut input, mut sent) = (Vec::new(), 0);
    loop {
        say(stream, &mut out, &mut sent, act)?;
        more(stream, &mut input)?;
        let (used, progress) = handshake.feed(&catalog, &input, &mut out).ok()?;
        input.drain(..used);
        match progress {
            Progress::NeedMore | Progress::Unsent => {}
            Progress::Ready(session) => {
                say(stream, &mut out, &mut sent, act)?;
                return Some((session, input));
            }
            _ => {
                let _ = stream.write_all(&out);
                return None;
            }
        }
    }
}

/// Sends a part of the negotiation, as far as the act lets it.
fn say(stream: &mut UnixStream, out: &mut Vec<u8>, sent: &mut usize, act: Act) -> Option<()> {
    let most = match act {
        Act::HangUpAfterBytes(most) => most.saturating_sub(*sent).min(out.len()),
        _ => out.len(),
    };
    stream.write_all(&out[..most]).ok()?;
    if most < out.len() {
        return None;
    }
    *sent += out.len();
    out.clear();
    Some(())
}

fn more(stream: &mut UnixStream, input: &mut Vec<u8>) -> Option<()> {
    let mut chunk = [0; 65536];
    let got = stream.read(&mut chunk).ok().filter(|got| *got > 0)?;
    input.extend_from_slice(&chunk[..got]);
    Some(())
}

struct Connection {
    stream: UnixStream,
    id: i32,
    session: Session,
    input: Vec<u8>,
    act: Act,
    number: usize,
}

impl Connection {
    /// Answers one request; none when the connection is over.
    fn one(&mut self, state: &State) -> Option<()> {
        let (request, header_bytes) = loop {
            match parse(&self.input, &self.session).ok()? {
                Some((request, header_bytes)) => break (request, header_bytes),
                None => more(&mut self.stream, &mut self.input)?,
            }
        };
        if request.command != Command::Disc {
            let mut used = state.used.lock().unwrap();
            used.insert(self.id);
            state.used_max.fetch_max(used.len(), Ordering::SeqCst);
        }
        let now = self.number;
        self.number += 1;
        let (act, mut header) = (self.act, [0; REPLY_BYTES_MAX]);
        let reply = Reply::new(&request, &self.session);
        if act == Act::Deaf(now) {
            std::thread::sleep(Duration::from_secs(30));
        }
        if act == Act::Early(now) && request.command == Command::Write {
            let len = reply.success(&mut header);
            self.stream.write_all(&header[..len]).ok()?;
            std::thread::sleep(Duration::from_millis(50));
            return None;
        }
        let payload = request.payload_bytes(self.session.style) as usize;
        while self.input.len() < header_bytes + payload {
            more(&mut self.stream, &mut self.input)?;
        }
        let data = self.input[header_bytes..header_bytes + payload].to_vec();
        self.input.drain(..header_bytes + payload);
        if act == Act::LoseRequest(now) {
            return None;
        }
        let answer = carry_out(&request, &data, &self.session, state)?;
        self.answer((&request, now), &reply, answer)
    }

    fn answer(
        &mut self,
        (request, now): (&Request, usize),
        reply: &Reply,
        mut answer: Vec<u8>,
    ) -> Option<()> {
        let (mut header, reads) = ([0; REPLY_BYTES_MAX], request.command == Command::Read);
        match self.act {
            Act::LoseAnswer(at) if at == now => return None,
            Act::Silent(at) if at <= now => return Some(()),
            Act::HalfAnswer(at) if reads && at <= now => {
                self.stream.write_all(&answer[..answer.len() / 2]).ok()?;
                return None;
            }
            Act::Garbage(at) if at == now => answer = vec![0x5a; 4096],
            Act::ShutDown(at) if at == now => {
                let len = reply.failure(&mut header, Errno::Eshutdown, "going down");
                answer = header[..len].to_vec();
            }
            Act::WrongCookie(at) if at == now => {
                let other = Request { cookie: request.cookie ^ 1 << 40, ..*request };
                let len = Reply::new(&other, &self.session).success(&mut header);
                answer = header[..len].to_vec();
            }
            Act::NoData(at) if reads && at <= now => {
                let len = reply.done(&mut header);
                answer = header[..len].to_vec();
            }
            Act::Twice(at) if reads && at <= now => {
                let len = reply.offset_hole(&mut header, Position::More, request.offset, 512);
                answer = [&header[..len], &header[..len], &answer].concat();
            }
            Act::WrongPlace(at) if reads && at <= now => {
                let place = request.offset + request.length;
                let len = reply.offset_hole(&mut header, Position::Last, place, 512);
                answer = header[..len].to_vec();
            }
            _ => {}
        }
        self.stream.write_all(&answer).ok()?;
        (self.act != Act::LeaveAfter(now)).then_some(())
    }
}

/// Does a request; the bytes of the honest answer.
fn carry_out(
    request: &Request,
    payload: &[u8],
    session: &Session,
    state: &State,
) -> Option<Vec<u8>> {
    let (reply, mut header) = (Reply::new(request, session), [0; REPLY_BYTES_MAX]);
    let mut data = state.data.lock().unwrap();
    let end = (request.offset as usize).checked_add(request.length as usize)?;
    if end > data.len() {
        let len = reply.failure(&mut header, Errno::Enospc, "beyond the end");
        return Some(header[..len].to_vec());
    }
    let range = request.offset as usize..end;
    if request.has(CMD_FLAG_FUA) {
        state.forced.fetch_add(1, Ordering::SeqCst);
    }
    match request.command {
        Command::Disc => return None,
        Command::Read => return Some(read(&reply, &data[range], request, session)),
        Command::Write => data[range].copy_from_slice(payload),
        Command::Trim | Command::WriteZeroes => data[range].fill(0),
        Command::Flush => {
            state.flushes.fetch_add(1, Ordering::SeqCst);
        }
        Command::BlockStatus => {
            let mut out = vec![0; 65536];
            let query = StatusQuery::new(request, session.base_allocation?);
            let run = |half: &[u8]| {
                let zero = half.iter().all(|byte| *byte == 0);
                Extent { len: half.len() as u64, hole: zero, zero }
            };
            let extents = data[range].chunks(4096).map(run);
            let len = query.encode(&reply, extents, &mut out).ok()?;
            out.truncate(len);
            return Some(out);
        }
        _ => return None,
    }
    let len = reply.success(&mut header);
    Some(header[..len].to_vec())
}

/// A read's answer: in chunks a hole for each page of zeroes, and the second half first.
fn read(reply: &Reply, data: &[u8], request: &Request, session: &Session) -> Vec<u8> {
    let mut header = [0; REPLY_BYTES_MAX];
    if session.style == ReplyStyle::Simple {
        let len = reply.read(&mut header, data.len() as u32);
        return [&header[..len], data].concat();
    }
    let (mut out, middle) = (Vec::new(), data.len() / 1024 * 512);
    for (start, part) in [(middle, &data[middle..]), (0, &data[..middle])] {
        let (offset, len) = (request.offset + start as u64, part.len() as u32);
        if part.is_empty() {
            continue;
        }
        if part.iter().all(|byte| *byte == 0) {
            let bytes = reply.offset_hole(&mut header, Position::More, offset, len);
            out.extend_from_slice(&header[..bytes]);
            continue;
        }
        let bytes = reply.offset_data(&mut header, Position::More, offset, len);
        out.extend_from_slice(&header[..bytes]);
        out.extend_from_slice(part);
    }
    let bytes = reply.done(&mut header);
    out.extend_from_slice(&header[..bytes]);
    out
}
