//! `Queue`: one queue of a client, with its ring, its eventfds, and its method of waiting.
//!
//! A queue owns the ring and the eventfds; it shares memory and connection with the client's other
//! queues. One thread at a time uses a queue: the benchmark's or a test's. The queue calls the
//! kernel only for kicks and sleeps and, after polls without a completion, to yield the CPU.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_exports::virtio::{ID_BYTES, RANGE_BYTES, RANGE_UNMAP};
use vm_memory::MmapRegion;

use super::error::ClientError;
use super::layout::Wait;
use super::notify::{Notify, WakeReason};
use super::request::{Kind, Request, Status, range};
use super::ring::{DriverRing, RingError};

/// Number of times that one `wait` polls the ring before it returns, so that the caller can do
/// other work.
const LOOKS: u32 = 128;
const WAITS_PER_YIELD: u32 = 32;
/// Number of waits without a completion after which the queue checks that the server is still
/// connected. This number of waits takes some milliseconds.
const WAITS_PER_CHECK: u32 = 2048;
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(30);

/// Connection and memory that all queues of a client share. Every queue keeps them alive.
#[derive(Debug)]
pub(super) struct SharedConnection {
    pub(super) path: PathBuf,
    pub(super) _memory: MmapRegion,
    /// Connection to the server, closed when the last queue is dropped.
    pub(super) _stream: UnixStream,
}

/// Counts of a queue's kicks, interrupts and system calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Number of kicks written.
    pub kicks: u64,
    /// Number of sleeps that an interrupt ended.
    pub interrupts: u64,
    /// Number of system calls for kicks, sleeps and yields.
    pub system_calls: u64,
}

/// One queue of a client, for use by one thread.
#[derive(Debug)]
pub struct Queue {
    ring: DriverRing,
    notify: Notify,
    number: u16,
    counters: Counters,
    /// Number of completions so far. `checked` is an older value of this number, with the time at
    /// which `pause` stored it. `pause` uses `checked` to detect a server that completes nothing.
    completed: u64,
    checked: (u64, Option<Instant>),
    /// Number of calls of `wait` that found no completion.
    vain: u32,
    shared: Arc<SharedConnection>,
}

impl Queue {
    pub(super) fn new(
        shared: &Arc<SharedConnection>,
        ring: DriverRing,
        notify: Notify,
        number: u16,
    ) -> Queue {
        Queue {
            ring,
            notify,
            number,
            counters: Counters::default(),
            completed: 0,
            checked: (0, None),
            vain: 0,
            shared: Arc::clone(shared),
        }
    }

    /// Returns the number of requests whose completions were not returned yet.
    #[must_use]
    pub fn in_flight(&self) -> u16 {
        self.ring.in_flight()
    }

    /// Returns the number of kicks, interrupts and system calls so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Puts a request into the ring. `slot` is the number of a free request slot, whose buffer
    /// holds the data. [`Queue::kick`] publishes the request to the server.
    ///
    /// # Panics
    /// Panics if a request in the slot is in flight, if the slot does not exist, or if the data are
    /// larger than its buffer.
    #[inline(always)]
    pub fn submit(&mut self, slot: u16, request: Request) {
        self.ring.submit(slot, request);
    }

    /// Publishes all submitted requests to the server, and kicks the server if it needs a kick.
    #[inline(always)]
    pub fn kick(&mut self) {
        if self.ring.publish() {
            self.write_kick();
        }
    }

    /// Passes the slot number and the status of each completed request to `done`. Returns the
    /// number of completed requests.
    ///
    /// # Errors
    /// Fails if the server violated the rules of the ring.
    #[inline(always)]
    pub fn reap(&mut self, done: impl FnMut(u16, Status)) -> Result<u16, ClientError> {
        match self.ring.reap(done) {
            Ok(count) => {
                self.completed += u64::from(count);
                Ok(count)
            }
            Err(source) => Err(self.broken(source)),
        }
    }

    /// Waits for a completion. A polling queue gives up after a limited number of polls; any other
    /// queue sleeps until the server's interrupt. Callers repeat `wait` and `reap` in a loop, after
    /// [`Queue::kick`].
    ///
    /// # Errors
    /// Fails if the server closed the connection or completes nothing for 30 s.
    #[inline(always)]
    pub fn wait(&mut self) -> Result<(), ClientError> {
        match self.ring.options().wait {
            Wait::Poll | Wait::Spin => {
                for _ in 0..LOOKS {
                    if self.ring.has_done() {
                        return Ok(());
                    }
                    std::hint::spin_loop();
                }
                self.pause()
            }
            Wait::Events => self.sleep(),
        }
    }

    /// Sleeps until one of several queues may have completions, but at most for the time `most`.
    /// Call [`Queue::kick`] and [`Queue::reap`] of each queue first.
    ///
    /// # Errors
    /// Fails if a server closed the connection.
    ///
    /// # Panics
    /// Panics if a queue uses polling instead of interrupts.
    pub fn wait_any(queues: &mut [Queue], most: Duration) -> Result<(), ClientError> {
        let mut nothing_done = true;
        for queue in &mut *queues {
            nothing_done &= queue.ring.prepare_sleep();
        }
        if !nothing_done {
            return Ok(());
        }
        let notifies: Vec<&Notify> = queues.iter().map(|queue| &queue.notify).collect();
        Notify::wait_any(&notifies, most).map_err(failed)?;
        for queue in queues {
            queue.counters.system_calls += 1;
            match queue.notify.wait(Duration::ZERO).map_err(failed)? {
                WakeReason::Ended => return Err(queue.gone()),
                WakeReason::Interrupted => queue.counters.interrupts += 1,
                WakeReason::Late => {}
            }
        }
        Ok(())
    }

    /// Submits one request, in request slot 0, and waits for its completion. No other request may
    /// be in flight.
    ///
    /// # Errors
    /// Fails like [`Queue::wait`] and [`Queue::reap`].
    ///
    /// # Panics
    /// Panics if a request is in flight.
    pub fn call(&mut self, request: Request) -> Result<Status, ClientError> {
        assert_eq!(self.in_flight(), 0, "one request alone");
        self.submit(0, request);
        self.kick();
        let mut outcome = Status::OK;
        while self.reap(|_, status| outcome = status)? == 0 {
            self.wait()?;
        }
        Ok(outcome)
    }

    /// Returns the disk's identity, without its padding.
    ///
    /// # Errors
    /// Fails like [`Queue::call`].
    pub fn identity(&mut self) -> Result<(Status, Vec<u8>), ClientError> {
        let status = self.call(Request { kind: Kind::GetId, sector: 0, bytes: ID_BYTES as u32 })?;
        let mut id = [0; ID_BYTES];
        self.ring.read_data(0, &mut id);
        Ok((status, id.into_iter().take_while(|byte| *byte != 0).collect()))
    }

    /// Discards sectors.
    ///
    /// # Errors
    /// Fails like [`Queue::call`].
    pub fn discard(&mut self, sector: u64, sectors: u32) -> Result<Status, ClientError> {
        self.call_range(Kind::Discard, &range(sector, sectors, 0))
    }

    /// Writes zeroes. The server may unmap the sectors.
    ///
    /// # Errors
    /// Fails like [`Queue::call`].
    pub fn write_zeroes(&mut self, sector: u64, sectors: u32) -> Result<Status, ClientError> {
        self.call_range(Kind::WriteZeroes, &range(sector, sectors, RANGE_UNMAP))
    }

    fn call_range(&mut self, kind: Kind, range: &[u8]) -> Result<Status, ClientError> {
        self.ring.write_data(0, range);
        self.call(Request { kind, sector: 0, bytes: RANGE_BYTES as u32 })
    }

    /// Copies `bytes` into the buffer of the request slot `slot`. Call this function before a
    /// request in the slot is submitted.
    ///
    /// # Panics
    /// Panics if a request in the slot is in flight, or if its buffer is shorter than `bytes`.
    pub fn write_data(&mut self, slot: u16, bytes: &[u8]) {
        self.ring.write_data(slot, bytes);
    }

    /// Copies data out of the buffer of the request slot `slot`, after the request.
    ///
    /// # Panics
    /// Panics like [`Queue::write_data`].
    pub fn read_data(&self, slot: u16, bytes: &mut [u8]) {
        self.ring.read_data(slot, bytes);
    }

    #[cold]
    fn write_kick(&mut self) {
        self.counters.kicks += 1;
        self.counters.system_calls += 1;
        self.notify.kick();
    }

    #[cold]
    fn pause(&mut self) -> Result<(), ClientError> {
        if self.ring.recheck_kick() {
            self.write_kick();
        }
        self.vain = self.vain.wrapping_add(1);
        let yields = self.ring.options().wait == Wait::Poll;
        if yields && self.vain.is_multiple_of(WAITS_PER_YIELD) {
            self.counters.system_calls += 1;
            std::thread::yield_now();
        }
        if !self.vain.is_multiple_of(WAITS_PER_CHECK) {
            return Ok(());
        }
        self.counters.system_calls += 1;
        if self.notify.wait(Duration::ZERO).map_err(failed)? == WakeReason::Ended {
            return Err(self.gone());
        }
        match self.checked {
            (completed, Some(since)) if completed == self.completed => {
                if since.elapsed() > COMPLETION_TIMEOUT && self.in_flight() > 0 {
                    return Err(self.stuck());
                }
            }
            _ => self.checked = (self.completed, Some(Instant::now())),
        }
        Ok(())
    }

    /// Sleeps until the server's interrupt, unless a completion is already available.
    #[inline]
    fn sleep(&mut self) -> Result<(), ClientError> {
        if !self.ring.prepare_sleep() || self.in_flight() == 0 {
            return Ok(());
        }
        self.counters.system_calls += 1;
        match self.notify.wait(COMPLETION_TIMEOUT).map_err(failed)? {
            WakeReason::Interrupted => {
                self.counters.interrupts += 1;
                Ok(())
            }
            WakeReason::Ended => Err(self.gone()),
            WakeReason::Late => Err(self.stuck()),
        }
    }

    #[cold]
    fn broken(&self, source: RingError) -> ClientError {
        ClientError::Ring { path: self.shared.path.clone(), queue: self.number, source }
    }

    #[cold]
    fn gone(&self) -> ClientError {
        let (path, in_flight) = (self.shared.path.clone(), self.in_flight());
        ClientError::Gone { path, queue: self.number, in_flight }
    }

    #[cold]
    fn stuck(&self) -> ClientError {
        let (path, in_flight) = (self.shared.path.clone(), self.in_flight());
        ClientError::Stuck {
            path,
            queue: self.number,
            in_flight,
            seconds: COMPLETION_TIMEOUT.as_secs(),
        }
    }
}

fn failed(source: io::Error) -> ClientError {
    ClientError::System { what: "a wait", source }
}
