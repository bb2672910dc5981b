//! The lower bound of the server's cost: receives requests and sends canned replies, nothing else.
//!
//! Usage: `nbd_floor SOCKET [BACKEND]`. It uses the server's reactor, negotiation, and sizes of
//! receives and sends. It treats every request as a read and answers with zeroes, without checks,
//! block layer or buffers. The difference to the real server is the cost of those.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;

use libc::{iovec, msghdr};
use millrace_nbd::{
    ExportInfo, Handshake, Progress, Reply, ReplyBuffer, Session, TransmissionFlags, parse,
};
use millrace_reactor::{Backend, Completion, Config, Handle, Op, Reactor, Source, Wait};

/// Replies of one send.
const REPLIES: usize = 256;
/// After this many bytes the client reads first, as in the server.
const BACKLOG_BYTES: usize = 32 * 1024;

struct Client {
    fd: RawFd,
    poll: OwnedFd,
    handshake: Option<Handshake>,
    session: Option<Session>,
    input: Box<[u8]>,
    end: usize,
    out: Vec<u8>,
    headers: Box<[ReplyBuffer]>,
    pieces: Vec<iovec>,
    sent: usize,
    message: msghdr,
    backlog: usize,
}

struct Floor {
    handle: Handle,
    source: Source,
    zeroes: Vec<u8>,
    catalog: Vec<ExportInfo>,
}

impl Floor {
    fn push(&self, index: usize, kind: u64, op: Op) {
        // SAFETY: clients are boxed and never freed.
        // A send buffer changes only when no send is under way, the input only when no receive is.
        unsafe { self.handle.push(self.source, (index as u64) << 2 | kind, op) }
    }

    fn receive(&self, index: usize, client: &mut Client) {
        if std::mem::take(&mut client.backlog) >= BACKLOG_BYTES {
            return self.push(index, 3, Op::PollIn { fd: client.poll.as_raw_fd() });
        }
        let room = &mut client.input[client.end..];
        let (buf, len) = (room.as_mut_ptr(), room.len() as u32);
        self.push(index, 1, Op::Recv { fd: client.fd, buf, len });
    }

    fn send(&self, index: usize, client: &mut Client) {
        client.message.msg_iov = client.pieces[client.sent..].as_mut_ptr();
        client.message.msg_iovlen = client.pieces.len() - client.sent;
        let msg = &raw const client.message;
        self.push(index, 2, Op::SendMsg { fd: client.fd, msg, flags: 0 });
    }

    fn received(&self, index: usize, client: &mut Client, bytes: usize) {
        client.end += bytes;
        let mut used = 0;
        if let Some(mut handshake) = client.handshake.take() {
            let input = &client.input[..client.end];
            let Ok((taken, progress)) = handshake.feed(&self.catalog, input, &mut client.out)
            else {
                return;
            };
            used = taken;
            match progress {
                Progress::Ready(session) => client.session = Some(session),
                Progress::NeedMore => client.handshake = Some(handshake),
                Progress::Unsent | Progress::Pending | Progress::Closed | Progress::StartTls => {
                    return;
                }
            }
            if !client.out.is_empty() {
                client.pieces.push(piece(&client.out));
            }
        }
        let mut replies = 0;
        if let Some(session) = client.session {
            while replies < REPLIES {
                let Ok(Some((request, header_bytes))) =
                    parse(&client.input[used..client.end], &session)
                else {
                    break;
                };
                used += header_bytes;
                let header = &mut client.headers[replies];
                let length = (request.length as usize).min(self.zeroes.len());
                let len = Reply::new(&request, &session).read(header, length as u32);
                client.pieces.push(piece(&header[..len]));
                client.pieces.push(piece(&self.zeroes[..length]));
                replies += 1;
            }
        }
        client.input.copy_within(used..client.end, 0);
        client.end -= used;
        if client.pieces.is_empty() {
            self.receive(index, client);
        } else {
            self.send(index, client);
        }
    }

    fn sent(&self, index: usize, client: &mut Client, mut bytes: usize) {
        client.backlog += bytes;
        while let Some(piece) = client.pieces.get_mut(client.sent) {
            if bytes < piece.iov_len {
                piece.iov_base = piece.iov_base.wrapping_byte_add(bytes);
                piece.iov_len -= bytes;
                return self.send(index, client);
            }
            bytes -= piece.iov_len;
            client.sent += 1;
        }
        client.pieces.clear();
        client.out.clear();
        client.sent = 0;
        self.receive(index, client);
    }
}

fn piece(bytes: &[u8]) -> iovec {
    iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

fn accept(fd: RawFd) -> Box<Client> {
    let mut handshake = Handshake::new();
    let mut out = Vec::new();
    handshake.greeting(&mut out);
    let mut event = libc::epoll_event { events: libc::EPOLLOUT as u32, u64: 0 };
    // SAFETY: new descriptors; the event is a live local; an all-zero message is empty.
    let (poll, message) = unsafe {
        let poll = OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC));
        libc::epoll_ctl(poll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event);
        (poll, std::mem::zeroed())
    };
    let pieces = vec![piece(&out)];
    Box::new(Client {
        fd,
        poll,
        handshake: Some(handshake),
        session: None,
        input: vec![0; 128 * 1024].into_boxed_slice(),
        end: 0,
        out,
        headers: vec![[0; 128]; REPLIES].into_boxed_slice(),
        pieces,
        sent: 0,
        message,
        backlog: 0,
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let listener = UnixListener::bind(arguments.next().ok_or("usage: nbd_floor SOCKET [epoll]")?)?;
    let epoll = arguments.next().is_some_and(|name| name == "epoll");
    let backend = if epoll { Backend::Epoll } else { Backend::Auto };
    let mut reactor = Reactor::new(Config { backend, ..Config::default() })?;
    let handle = reactor.handle();
    let flags = TransmissionFlags::FLUSH.with(TransmissionFlags::MULTI_CONN);
    let export = ExportInfo {
        name: "floor".to_owned(),
        description: String::new(),
        size_bytes: 1 << 40,
        flags,
        block_min: 512,
        block_preferred: 4096,
        block_max: 1 << 20,
    };
    let (source, zeroes) = (handle.source(), vec![0; 1 << 20]);
    let floor = Floor { handle, source, zeroes, catalog: vec![export] };
    let mut clients: Vec<Box<Client>> = Vec::new();
    let mut done: Vec<Completion> = Vec::new();
    floor.push(0, 0, Op::Accept { fd: listener.as_raw_fd() });
    loop {
        reactor.turn(Wait::Forever)?;
        floor.handle.take(source, &mut done);
        for completion in done.drain(..) {
            let (index, kind) = ((completion.user_data >> 2) as usize, completion.user_data & 3);
            if kind == 0 {
                clients.push(accept(completion.result));
                let index = clients.len() - 1;
                floor.send(index, &mut clients[index]);
                floor.push(0, 0, Op::Accept { fd: listener.as_raw_fd() });
                continue;
            }
            let client = &mut clients[index];
            match (kind, usize::try_from(completion.result).unwrap_or(0)) {
                (_, 0) => {}
                (1, bytes) => floor.received(index, client, bytes),
                (2, bytes) => floor.sent(index, client, bytes),
                (_, _) => floor.receive(index, client),
            }
        }
    }
}
