//! The io_uring back end: one ring, and in the common case at most one system call for each
//! event-loop iteration.
//!
//! The user data of a submission entry is the operation's `OperationKey`, except for three reserved
//! values: `WAKE` (the permanent read of the wake eventfd), `IGNORE` (cancels whose result is not
//! needed) and `TRIAL` (tests whether the kernel can start worker threads). Invariants: an
//! operation in phase `Started` or `Polling` is either on the ring or in `again`, the list of
//! operations to submit again. At most `entries` entries are unsubmitted. The kernel copies a
//! timeout's time specification at submission, so a round-robin array of `entries` specifications
//! is enough. Kernel counterpart: io_uring(7).

#![allow(unsafe_code)]

mod probe;
mod sqe;
pub(crate) mod tables;

use millrace_machine::{Deadline, Native};

use crate::config::{Config, Counters, Features, Wait};
use crate::hub::ReactorState;
use crate::op::Op;
use crate::spin::BusyPoll;
use crate::sys::{self, NS_PER_S};
use crate::table::{OperationKey, OperationPhase, OperationSlot};
use crate::uring::tables::RegisteredTables;
use io_uring::squeue::{self, Entry};
use io_uring::types::{Fd, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode};
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsRawFd, RawFd};

const WAKE: u64 = u64::MAX;
const IGNORE: u64 = u64::MAX - 1;
const TRIAL: u64 = u64::MAX - 2;
const TRIAL_NS: u64 = 2 * NS_PER_S;
const WORKERS_MAX: u32 = 4096;
const BATCH: usize = 32;
const EARLY_SHARE: usize = 8;
/// Number of attempts to submit to a kernel that is short of memory before the operation fails.
const PUSH_ATTEMPTS: usize = 10_000;

pub(crate) struct Uring {
    pub(crate) ring: ManuallyDrop<IoUring>,
    enter_fd: RawFd,
    enter_flags: EnterFlags,
    pub(crate) features: Features,
    config: Config,
    spin: BusyPoll,
    wake: WakeRead,
    closing: bool,
    /// True if the last call of `turn` left entries in the submission queue.
    held_back: bool,
    /// Number of file operations pushed since the last system call.
    file_ops: u32,
    /// Time specifications of timeouts that are not submitted yet, used round robin.
    timespecs: TimespecRing,
    again: Vec<OperationKey>,
    pub(crate) tables: RegisteredTables,
    /// Limit of the ring's kernel threads for operations that block; 0 before it is first set.
    workers: u32,
    /// True if the kernel can start a worker thread for this ring; `None` until this was tested.
    has_worker: Option<bool>,
}

struct TimespecRing {
    entries: Box<[Timespec]>,
    next: usize,
}

struct WakeRead {
    fd: RawFd,
    /// Memory into which the kernel reads the wake eventfd's value. Freed only together with the
    /// ring, because the kernel may write to the memory until then.
    value: *mut u64,
    armed: bool,
    seen: bool,
}

impl Uring {
    pub(crate) fn new(config: &Config, hub: &ReactorState) -> io::Result<Uring> {
        let opened = probe::open(config.entries)?;
        let (enter_fd, enter_flags) = match opened.ring_index {
            Some(index) => (index as RawFd, EnterFlags::REGISTERED_RING),
            None => (opened.ring.as_raw_fd(), EnterFlags::empty()),
        };
        let entries = opened.ring.params().sq_entries() as usize;
        Ok(Uring {
            ring: ManuallyDrop::new(opened.ring),
            enter_fd,
            enter_flags,
            features: opened.features,
            config: *config,
            spin: BusyPoll::new(config.spin_ns, config.spin_rule),
            wake: WakeRead {
                fd: hub.wake.as_raw_fd(),
                value: Box::into_raw(Box::new(0)),
                armed: false,
                seen: false,
            },
            closing: false,
            held_back: false,
            file_ops: 0,
            timespecs: TimespecRing { entries: vec![Timespec::new(); entries].into(), next: 0 },
            again: Vec::new(),
            tables: RegisteredTables::new(opened.file_slots, &opened.features),
            workers: 0,
            has_worker: None,
        })
    }

    /// Raises the limit of kernel threads by the number of operations that may block at the same
    /// time.
    pub(crate) fn expect_blocking(&mut self, operations: u32) {
        let ring = self.ring.submitter();
        let mut most = [0, 0];
        if self.workers == 0 && ring.register_iowq_max_workers(&mut most).is_ok() {
            self.workers = most[0];
        }
        self.workers = self.workers.saturating_add(operations).min(WORKERS_MAX);
        // Ignores failure: kernels before 5.15 cannot change the limit on their worker threads.
        let _ = ring.register_iowq_max_workers(&mut [self.workers, 0]);
    }

    /// Returns true if the kernel has a worker thread for operations of this thread that would
    /// block. The first call makes the kernel start a worker, which then stays. Without a worker,
    /// such operations fail with `ECANCELED`, or some kernels retry them forever.
    pub(crate) fn has_worker(&mut self, hub: &mut ReactorState) -> bool {
        if let Some(known) = self.has_worker {
            return known;
        }
        self.push_entry(hub, opcode::Nop::new().build().flags(squeue::Flags::ASYNC), TRIAL);
        let deadline_ns = sys::now_ns() + TRIAL_NS;
        while self.has_worker.is_none() {
            let left_ns = deadline_ns.saturating_sub(sys::now_ns());
            if left_ns == 0 || self.sleep(hub, Some(left_ns)).is_err() {
                self.push_entry(hub, opcode::AsyncCancel::new(TRIAL).build(), IGNORE);
                self.has_worker = Some(false);
            }
            self.drain(hub);
        }
        self.has_worker == Some(true)
    }

    pub(crate) fn push(&mut self, hub: &mut ReactorState, key: OperationKey) {
        let Some(&mut OperationSlot { op, source, .. }) = hub.table.get(key) else { return };
        match op {
            Op::Ioctl { .. } => hub.queue_job(key),
            op if op.is_on_file() && hub.takes_files(source) => hub.queue_job(key),
            Op::Cancel { source, user_data } => {
                let target = hub.table.find(source, user_data);
                let done = target.map_or(Some(-libc::ENOENT), |at| self.cancel(hub, at, key.0));
                done.iter().for_each(|result| hub.table.complete(key, *result, 0));
            }
            _ => {
                if op.is_on_file() {
                    self.submit_early(hub);
                }
                let timespec = self.next_timespec(&op);
                match sqe::build(&op, timespec) {
                    Some(entry) => self.push_entry(hub, entry, key.0),
                    None => hub.table.complete(key, -libc::EINVAL, 0),
                }
            }
        }
    }

    /// Submits the queue if its file operations are at least 1/`EARLY_SHARE` of all operations in
    /// flight. In that case, the drives have little other work. They would be idle until the event
    /// loop submits the queue.
    fn submit_early(&mut self, hub: &mut ReactorState) {
        let share = (hub.table.outstanding() / EARLY_SHARE) as u32;
        if self.file_ops >= share.max(1) {
            // Ignores errors: the next event-loop iteration submits the remaining entries and
            // reports errors.
            let _ = self.enter(&mut hub.counters, 0, None);
        }
        self.file_ops += 1;
    }

    /// Cancels an operation in flight. Returns the result, or `None` if the ring will report it in
    /// a completion with `user_data`.
    fn cancel(
        &mut self,
        hub: &mut ReactorState,
        target: OperationKey,
        user_data: u64,
    ) -> Option<i32> {
        match hub.table.get(target) {
            None => Some(-libc::ENOENT),
            Some(slot) if slot.phase == OperationPhase::Pooled => Some(hub.cancel_job(target)),
            Some(slot) => {
                slot.cancelled = true;
                self.push_entry(hub, opcode::AsyncCancel::new(target.0).build(), user_data);
                None
            }
        }
    }

    fn next_timespec(&mut self, op: &Op) -> *const Timespec {
        let Op::Timeout { deadline_ns } = *op else { return std::ptr::null() };
        let TimespecRing { entries, next } = &mut self.timespecs;
        let at = *next;
        *next = (at + 1) % entries.len();
        entries[at] = timespec(deadline_ns);
        &raw const entries[at]
    }

    /// Appends an entry, and submits first if the queue is full. If the kernel accepts nothing for
    /// a long time, the operation fails with `-EBUSY` or the kernel's error.
    fn push_entry(&mut self, hub: &mut ReactorState, entry: Entry, user_data: u64) {
        let entry = entry.user_data(user_data);
        if self.ring.submission().len() >= self.config.submit_batch as usize {
            // Ignores errors, because the next event-loop iteration submits the remaining entries
            // and reports errors. A full batch is submitted only when another entry is pushed. If
            // no other entry is pushed, the call that waits for completions submits the batch.
            let _ = self.enter(&mut hub.counters, 0, None);
        }
        for _ in 0..PUSH_ATTEMPTS {
            // SAFETY: an operation's memory stays valid until completion (see `Handle::push`).
            // `Uring` owns `wake.value` and the time specifications while the kernel uses them.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return;
            }
            match self.enter(&mut hub.counters, 0, None) {
                Ok(submitted) if submitted > 0 => {}
                Ok(_) => std::thread::yield_now(),
                Err(error) if is_transient(&error) => std::thread::yield_now(),
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(libc::EIO);
                    return hub.table.complete(OperationKey(user_data), -errno, 0);
                }
            }
            self.drain(hub);
        }
        hub.table.complete(OperationKey(user_data), -libc::EBUSY, 0);
    }

    /// Calls io_uring_enter once: submits all queued entries and waits for `want` completions, for
    /// at most `timeout`. The flag GETEVENTS is always set, so that deferred completion work
    /// (DEFER_TASKRUN) also runs.
    fn enter(
        &mut self,
        counters: &mut Counters,
        want: u32,
        timeout: Option<&Timespec>,
    ) -> io::Result<usize> {
        #[repr(C)]
        struct EnterArgument {
            sigmask: u64,
            sigmask_len: u32,
            pad: u32,
            timespec: u64,
        }
        let to_submit = self.ring.submission().len() as u32;
        let mut flags = self.enter_flags | EnterFlags::GETEVENTS;
        let timespec = timeout.map_or(0, |timespec| std::ptr::from_ref(timespec) as u64);
        let argument = EnterArgument { sigmask: 0, sigmask_len: 8, pad: 0, timespec };
        let (mut pointer, mut len) = (std::ptr::null(), 0);
        if timeout.is_some() {
            flags |= EnterFlags::EXT_ARG;
            (pointer, len) = (&raw const argument, size_of::<EnterArgument>());
        }
        counters.system_calls += 1;
        self.file_ops = 0;
        // SAFETY: the argument and its time specification are live locals.
        // `self` owns the ring, so `fd` is valid, and no other thread changes its submission queue.
        let returned = unsafe {
            let (fd, flags) = (self.enter_fd, flags.bits());
            libc::syscall(libc::SYS_io_uring_enter, fd, to_submit, want, flags, pointer, len)
        };
        if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned as usize) }
    }

    pub(crate) fn turn(&mut self, hub: &mut ReactorState, wait: Wait) -> io::Result<()> {
        hub.pool.submit();
        self.reap(hub);
        self.start_again(hub);
        let mut wait_ns = if self.has_news(hub) { Some(0) } else { wait.limit_ns() };
        let waits = self.spin.is_on() && wait_ns != Some(0);
        if waits && self.spin.start(sys::now_ns(), wait_ns) {
            self.look(hub)?;
            wait_ns = if self.has_news(hub) { Some(0) } else { wait.limit_ns() };
        }
        let sleep = if wait_ns == Some(0) { None } else { hub.prepare_sleep(wait_ns) };
        if let Some(wait_ns) = sleep {
            self.held_back = false;
            let result = self.sleep(hub, wait_ns);
            hub.pool.awake();
            result?;
        } else {
            self.held_back = self.may_hold_back(hub);
            if !self.held_back {
                self.submit(hub)?;
            }
        }
        self.reap(hub);
        if waits {
            self.spin.end(sys::now_ns(), hub.table.moved_bytes);
        }
        self.wake.seen = false;
        Ok(())
    }

    /// Returns true if the submission of a short queue can wait: completions have just been
    /// delivered, and their receivers will soon push more operations. Never returns true twice in a
    /// row.
    fn may_hold_back(&mut self, hub: &ReactorState) -> bool {
        let queue = self.ring.submission();
        let short = queue.len() < self.config.submit_batch as usize;
        let calm = !queue.taskrun() && !queue.cq_overflow();
        drop(queue);
        short && calm && !self.held_back && hub.table.delivered > 0
    }

    fn has_news(&self, hub: &ReactorState) -> bool {
        self.wake.seen || hub.table.delivered > 0
    }

    fn reap(&mut self, hub: &mut ReactorState) {
        self.drain(hub);
        hub.collect_jobs();
    }

    fn submit(&mut self, hub: &mut ReactorState) -> io::Result<()> {
        loop {
            let queue = self.ring.submission();
            let queued = queue.len();
            if queued == 0 && !queue.taskrun() && !queue.cq_overflow() {
                return Ok(());
            }
            drop(queue);
            match self.enter(&mut hub.counters, 0, None) {
                Ok(submitted) if submitted >= queued || submitted == 0 => return Ok(()),
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(error) if is_transient(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn sleep(&mut self, hub: &mut ReactorState, wait_ns: Option<u64>) -> io::Result<()> {
        let limit = wait_ns.map(timespec);
        hub.counters.sleeps += 1;
        match self.enter(&mut hub.counters, 1, limit.as_ref()) {
            Ok(_) => Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::ETIME) => Ok(()),
            Err(error) if is_transient(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn look(&mut self, hub: &mut ReactorState) -> io::Result<()> {
        loop {
            self.submit(hub)?;
            self.reap(hub);
            self.start_again(hub);
            if self.has_news(hub) || !self.spin.go_on() {
                return Ok(());
            }
        }
    }

    /// Moves all completions to the inboxes, including those that the kernel held back because the
    /// completion queue was full.
    fn drain(&mut self, hub: &mut ReactorState) {
        loop {
            let mut batch = [const { MaybeUninit::uninit() }; BATCH];
            let entries = self.ring.completion().fill(&mut batch).len();
            for entry in batch.iter().take(entries) {
                // SAFETY: `fill` has written the first `entries` elements.
                let entry: &cqueue::Entry = unsafe { entry.assume_init_ref() };
                self.handle(hub, entry.user_data(), entry.result(), entry.flags());
            }
            hub.counters.cqes += entries as u64;
            if entries < BATCH
                && (!self.ring.submission().cq_overflow()
                    || self.enter(&mut hub.counters, 0, None).is_err())
            {
                return;
            }
        }
    }

    fn handle(&mut self, hub: &mut ReactorState, user_data: u64, result: i32, flags: u32) {
        if user_data == WAKE {
            self.wake.armed = false;
            self.wake.seen = true;
            hub.counters.wakes += u64::from(result == 8);
            return;
        }
        if user_data == TRIAL {
            self.has_worker.get_or_insert(result == 0);
        }
        if user_data >= TRIAL {
            return;
        }
        let key = OperationKey(user_data);
        let Some(slot) = hub.table.get(key) else { return };
        let refused = result == -libc::EAGAIN || result == -libc::EINTR;
        match (slot.phase, slot.op) {
            (OperationPhase::Polling, _) if result >= 0 => {
                slot.phase = OperationPhase::Started;
                self.again.push(key);
            }
            (OperationPhase::Started, op) if refused && op.is_socket() => {
                slot.phase = OperationPhase::Polling;
                self.again.push(key);
            }
            (_, Op::Timeout { .. }) if result == -libc::ETIME => hub.table.complete(key, 0, flags),
            _ => hub.table.complete(key, result, flags),
        }
    }

    /// Queues operations that must be submitted again: the wake read, and socket operations that
    /// the kernel refused instead of waiting (accept on a nonblocking listener before Linux 5.15).
    fn start_again(&mut self, hub: &mut ReactorState) {
        if !self.wake.armed && !self.closing {
            self.wake.armed = true;
            let entry = opcode::Read::new(Fd(self.wake.fd), self.wake.value.cast(), 8).build();
            self.push_entry(hub, entry, WAKE);
        }
        while let Some(key) = self.again.pop() {
            let Some(slot) = hub.table.get(key) else { continue };
            let entry = match slot.phase {
                _ if slot.cancelled => None,
                OperationPhase::Polling => sqe::build_poll(&slot.op),
                _ => sqe::build(&slot.op, std::ptr::null()),
            };
            match entry {
                Some(entry) => self.push_entry(hub, entry, key.0),
                None => hub.table.complete(key, -libc::ECANCELED, 0),
            }
        }
    }

    /// Cancels all operations and waits for their completions. Leaks the ring if the wait exceeds
    /// the limit.
    pub(crate) fn close(&mut self, hub: &mut ReactorState, limit: &mut Deadline<Native>) {
        self.closing = true;
        for key in hub.table.keys() {
            self.cancel(hub, key, IGNORE);
        }
        if self.wake.armed {
            self.push_entry(hub, opcode::AsyncCancel::new(WAKE).build(), IGNORE);
        }
        while self.wake.armed || hub.table.outstanding() > 0 {
            let Some(slice) = limit.slice() else { return };
            if self.turn(hub, Wait::Until(sys::now_ns() + slice.as_nanos() as u64)).is_err() {
                return;
            }
            // Resets the count of delivered completions, because `turn` does not wait while the
            // count is above 0.
            hub.table.take_delivered();
        }
        // SAFETY: nothing is in flight, so the kernel uses neither the ring nor `wake.value`.
        // The reactor drops its `Uring` now, so nobody uses the ring or `wake.value` again.
        unsafe {
            drop(Box::from_raw(self.wake.value));
            ManuallyDrop::drop(&mut self.ring);
        }
    }
}

fn timespec(ns: u64) -> Timespec {
    Timespec::new().sec(ns / NS_PER_S).nsec((ns % NS_PER_S) as u32)
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}
