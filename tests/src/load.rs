//! A write load over NBD that keeps a model of its writes: several connections, many requests in
//! flight on each, writes of random sectors with and without FUA, and flushes.
//!
//! Owns the connections and the model. A test runs rounds: the load runs on one thread per
//! connection while the test injects a fault from its own, and a round ends with nothing in flight.
//! Called by the tests; calls the NBD client of `millrace-clients`. There is one lock, that of the
//! model, and it is never held over I/O.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use millrace_clients::nbd::{Client, Completion};
use millrace_nbd::client::{Address, NbdUri};
use millrace_nbd::wire::CMD_FLAG_FUA;
use millrace_nbd::{Command, Errno, Request};
use millrace_random::SplitMix64;

use crate::durability::{Model, Outcome, SECTOR, Write, contents};

/// Far more than any request takes that is answered at all.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Time between two looks for answers.
const LOOK: Duration = Duration::from_micros(100);
/// Requests in flight on each connection.
const DEPTH: usize = 16;
/// A round sends one flush in so many requests, and one write in so many with FUA. With many
/// flushes (and FUA becomes a flush where drives lack it) one is always in flight. With few
/// flushes, a flush that does nothing has no successor to do its work before the cut.
const MIXES: [(u64, u64); 4] = [(16, 8), (100, 8), (300, 300), (500, 100)];
/// Longest write in sectors: four chunks of 4 KiB and a bit, so that it may touch every drive.
const WRITE_SECTORS_MAX: u64 = 36;

/// Connects to the export `name` at a Unix socket.
///
/// # Errors
///
/// As [`Client::connect`].
pub fn connect(socket: &Path, name: &str) -> io::Result<Client> {
    let address = Address::Unix { path: socket.to_owned() };
    Client::connect(&NbdUri { address, name: name.to_owned() })
}

/// Waits for at least `min` answers.
///
/// # Errors
///
/// As [`Client::poll`].
///
/// # Panics
///
/// When they do not come within 20 s.
pub fn wait(client: &mut Client, min: usize) -> io::Result<Vec<Completion>> {
    let (start, mut done) = (Instant::now(), Vec::new());
    while done.len() < min {
        if client.poll(|one| done.push(one))? == 0 {
            let open = client.in_flight();
            assert!(start.elapsed() < ANSWER_TIMEOUT, "{open} requests are not answered");
            thread::sleep(LOOK);
        }
    }
    Ok(done)
}

/// Carries out one request; nothing else is in flight.
///
/// # Errors
///
/// As [`Client::poll`].
///
/// # Panics
///
/// As [`wait`].
pub fn call(client: &mut Client, request: &Request, buffer: Vec<u8>) -> io::Result<Completion> {
    client.submit(request, buffer)?;
    Ok(wait(client, 1)?.pop().expect("one answer or more"))
}

/// A request of `sectors` sectors from `sector` on.
#[must_use]
pub fn request(command: Command, sector: u64, sectors: u64) -> Request {
    let (offset, length) = (sector * SECTOR as u64, sectors * SECTOR as u64);
    Request { cookie: 0, flags: 0, command, offset, length }
}

/// Results of the rounds so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Writes and flushes acknowledged.
    pub acknowledged: u64,
    /// Writes and flushes that failed, as they may at a cut.
    pub failed: u64,
    /// Requests without an answer because the server died.
    pub unanswered: u64,
}

struct Shared {
    model: Model,
    /// Sectors of a block: writes are whole blocks.
    block: u64,
    counts: Counts,
    mix: (u64, u64),
    stop: bool,
}

/// A request in flight.
enum Sent {
    Write(Write),
    Flush(u64),
}

/// The load and its model.
pub struct Load {
    clients: Vec<Client>,
    shared: Mutex<Shared>,
    dice: SplitMix64,
}

impl Load {
    /// A load over `nr_sectors` sectors, not connected yet.
    #[must_use]
    pub fn new(nr_sectors: u64, seed: u64) -> Self {
        let model = Model::new(nr_sectors);
        let (counts, mix) = (Counts::default(), MIXES[0]);
        let shared = Shared { model, block: 1, counts, mix, stop: false };
        Load { clients: Vec::new(), shared: Mutex::new(shared), dice: SplitMix64::new(seed) }
    }

    /// Makes all writes whole blocks of `sectors` sectors.
    #[must_use]
    pub fn in_blocks_of(self, sectors: u64) -> Self {
        self.lock().block = sectors;
        self
    }

    /// Replaces its connections by `count` new ones.
    ///
    /// # Panics
    ///
    /// When the server refuses one.
    pub fn connect(&mut self, socket: &Path, name: &str, count: usize) {
        let one = |_| connect(socket, name).expect("the server takes connections");
        self.clients = (0..count).map(one).collect();
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `action` on the model, under its lock.
    pub fn with_model<T>(&self, action: impl FnOnce(&mut Model) -> T) -> T {
        action(&mut self.lock().model)
    }

    /// Results of the rounds so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Runs the load until `action` returns, and then until nothing is in flight. If the server
    /// dies meanwhile, it ends at once.
    ///
    /// # Panics
    ///
    /// When a request fails that has no excuse ([`Model::is_excused`]), or not with EIO, or is not
    /// answered at all.
    pub fn round(&mut self, action: impl FnOnce(&Load)) {
        let seeds: Vec<u64> = self.clients.iter().map(|_| self.dice.below(u64::MAX)).collect();
        let mut clients = std::mem::take(&mut self.clients);
        let mix = MIXES[self.dice.below(MIXES.len() as u64) as usize];
        {
            let shared = &mut *self.lock();
            (shared.stop, shared.mix) = (false, mix);
        }
        let this = &*self;
        thread::scope(|scope| {
            for (client, seed) in clients.iter_mut().zip(seeds) {
                scope.spawn(move || this.one_connection(client, SplitMix64::new(seed)));
            }
            action(this);
            this.lock().stop = true;
        });
        self.clients = clients;
    }

    fn one_connection(&self, client: &mut Client, mut dice: SplitMix64) {
        let mut sent = HashMap::new();
        let mut goes_on = true;
        while goes_on || !sent.is_empty() {
            let outcome = self.turn(client, &mut sent, &mut dice, goes_on);
            if outcome.is_err() {
                self.lock().counts.unanswered += sent.len() as u64;
                return;
            }
            goes_on = !self.lock().stop;
        }
    }

    /// Fills the connection with requests if more are wanted, and takes answers.
    fn turn(
        &self,
        client: &mut Client,
        sent: &mut HashMap<u64, Sent>,
        dice: &mut SplitMix64,
        goes_on: bool,
    ) -> io::Result<()> {
        while goes_on && sent.len() < DEPTH {
            let (cookie, request, data, one) = self.begin(dice);
            sent.insert(cookie, one);
            client.submit(&Request { cookie, ..request }, data)?;
        }
        for one in wait(client, 1)? {
            let what = sent.remove(&one.user_data).expect("a reply to a request in flight");
            self.end(&what, &one);
        }
        Ok(())
    }

    fn begin(&self, dice: &mut SplitMix64) -> (u64, Request, Vec<u8>, Sent) {
        let Shared { model, block, mix, .. } = &mut *self.lock();
        let (flush_one_in, fua_one_in) = *mix;
        if dice.below(flush_one_in) == 0 {
            let tick = model.begin_flush();
            return (tick, request(Command::Flush, 0, 0), Vec::new(), Sent::Flush(tick));
        }
        let first = dice.below(model.nr_sectors() / *block) * *block;
        let count = (1 + dice.below((WRITE_SECTORS_MAX / *block).max(3))) * *block;
        let count = count.min(model.nr_sectors() - first);
        let write = model.begin_write(first..first + count, dice.below(fua_one_in) == 0);
        let flags = if write.fua { CMD_FLAG_FUA } else { 0 };
        let request = Request { flags, ..request(Command::Write, first, count) };
        (write.stamp, request, contents(&write), Sent::Write(write))
    }

    fn end(&self, what: &Sent, done: &Completion) {
        let Shared { model, counts, .. } = &mut *self.lock();
        let tick = match what {
            Sent::Write(write) => write.stamp,
            Sent::Flush(tick) => *tick,
        };
        if let Some(errno) = done.errno {
            assert_eq!(errno, Errno::Eio, "a power cut is an I/O error");
            assert!(model.is_excused(tick), "request {tick} failed without a power cut");
            counts.failed += 1;
        } else {
            counts.acknowledged += 1;
        }
        match (what, done.errno) {
            (Sent::Write(write), None) => model.end_write(write, Outcome::Done),
            (Sent::Write(write), Some(_)) => model.end_write(write, Outcome::Failed),
            (Sent::Flush(tick), None) => model.end_flush(*tick),
            (Sent::Flush(_), Some(_)) => {}
        }
    }

    /// Reads everything back over the first connection and compares it with the model.
    ///
    /// # Panics
    ///
    /// When a sector holds what it must not; `context` says when that was.
    pub fn check(&mut self, context: &str) {
        let nr_sectors = self.with_model(|model| model.nr_sectors());
        let client = &mut self.clients[0];
        let buffer = vec![0; nr_sectors as usize * SECTOR];
        let done = call(client, &request(Command::Read, 0, nr_sectors), buffer);
        let done = done.unwrap_or_else(|error| panic!("{context}: cannot read back: {error}"));
        assert_eq!(done.errno, None, "{context}: cannot read back");
        if let Err(wrong) = self.with_model(|model| model.check(0, &done.buffer)) {
            panic!("{context}: {wrong}");
        }
    }
}
