//! Clients that keep I/Os of one kind in flight at the same time, while a test observes the daemon.
//!
//! Called by tests of schedulers and of reports under load; calls the bare NBD client.

use std::collections::HashMap;
use std::io;
use std::net::Shutdown;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

use crate::raw_nbd::{FLUSH, READ, RawNbd, WRITE, flagged_request};

/// I/Os of one kind, scattered over an export.
#[derive(Debug, Clone, Copy)]
pub struct ClientIo {
    /// An NBD command.
    pub command: u16,
    /// Flags of the command.
    pub flags: u16,
    /// Bytes of each I/O.
    pub len_bytes: u32,
    /// Number of I/Os in flight.
    pub depth: u64,
    /// Time between an answer and the next request.
    pub pause: Duration,
    /// Offsets are multiples of this, plus `skew`.
    pub align: u64,
    /// Distance of offsets from a multiple of `align`, in bytes.
    pub skew: u64,
}

impl ClientIo {
    /// Reads of `len_bytes` bytes.
    #[must_use]
    pub fn read(len_bytes: u32, depth: u64) -> ClientIo {
        let (flags, pause, align, skew) = (0, Duration::ZERO, len_bytes.into(), 0);
        ClientIo { command: READ, flags, len_bytes, depth, pause, align, skew }
    }

    /// Writes of `len_bytes` bytes.
    #[must_use]
    pub fn write(len_bytes: u32, depth: u64) -> ClientIo {
        ClientIo { command: WRITE, ..ClientIo::read(len_bytes, depth) }
    }

    /// Keeps the I/Os in flight until `over` is set, and abandons the last ones. Returns the time
    /// that each completed I/O took.
    ///
    /// # Panics
    /// If the daemon refuses the client, or an I/O fails.
    pub fn run_until(&self, over: &AtomicBool, socket: &Path, export: &str) -> Vec<Duration> {
        self.connect(socket, export).run_until(over)
    }

    fn connect(&self, socket: &Path, export: &str) -> IoClient<'_> {
        let connection = RawNbd::connect(socket, export).expect("the daemon takes a client");
        IoClient { io: self, connection, sent: HashMap::new(), took: Vec::new() }
    }
}

/// A client at work.
struct IoClient<'a> {
    io: &'a ClientIo,
    connection: RawNbd,
    /// Send times of I/Os in flight, by cookie.
    sent: HashMap<u64, Instant>,
    took: Vec<Duration>,
}

impl IoClient<'_> {
    fn run_until(mut self, over: &AtomicBool) -> Vec<Duration> {
        let is_over = || over.load(Ordering::Relaxed);
        let mut result = (0..self.io.depth).try_for_each(|number| self.send(number));
        let mut number = self.io.depth;
        while result.is_ok() && !is_over() {
            result = self.receive().and_then(|()| self.send(number));
            number += 1;
        }
        // The thread that sets `over` may end the connection, too.
        assert!(result.is_ok() || is_over(), "{:?}: {result:?}", self.io);
        self.took
    }

    fn send(&mut self, number: u64) -> io::Result<()> {
        let io = self.io;
        let room = self.connection.size_bytes() - u64::from(io.len_bytes) - io.skew;
        // A flush has no offset.
        let offset = match io.command {
            FLUSH => 0,
            _ => number * 7919 % (room / io.align).max(1) * io.align + io.skew,
        };
        let mut bytes = flagged_request(io.flags, io.command, number, offset, io.len_bytes);
        if io.command == WRITE {
            bytes.resize(bytes.len() + io.len_bytes as usize, number as u8);
        }
        self.sent.insert(number, Instant::now());
        self.connection.send(&bytes)
    }

    fn receive(&mut self) -> io::Result<()> {
        let (error, cookie) = self.connection.reply()?;
        assert_eq!(error, 0, "{:?}", self.io);
        let payload_bytes = if self.io.command == READ { self.io.len_bytes } else { 0 };
        self.connection.receive(&mut vec![0; payload_bytes as usize])?;
        self.took.push(self.sent.remove(&cookie).expect("an I/O under way").elapsed());
        std::thread::sleep(self.io.pause);
        Ok(())
    }
}

/// Looks while each of these exports at a Unix socket has a client.
///
/// # Panics
/// As [`ClientIo::run_until`], and if `look` does; the clients end first.
pub fn beside_clients<T>(
    socket: &Path,
    clients: &[(&str, ClientIo)],
    look: impl FnOnce() -> T,
) -> T {
    let over = AtomicBool::new(false);
    scope(|scope| {
        let mut ends = Vec::new();
        for (export, io) in clients {
            let (over, client) = (&over, io.connect(socket, export));
            ends.push(client.connection.clone_stream().expect("a socket can be cloned"));
            scope.spawn(move || client.run_until(over));
        }
        let looked = catch_unwind(AssertUnwindSafe(look));
        over.store(true, Ordering::Relaxed);
        // Some clients wait for answers that do not come.
        ends.iter().for_each(|end| _ = end.shutdown(Shutdown::Both));
        looked.unwrap_or_else(|failed| resume_unwind(failed))
    })
}
