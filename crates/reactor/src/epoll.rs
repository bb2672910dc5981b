//! The epoll back end: readiness for sockets, a sorted set for timers, pool threads for files.
//!
//! The epoll back end is used where io_uring is refused, and behaves like the io_uring back end.
//! Invariants: an operation in flight is in exactly one of four lists, depending on its
//! `OperationPhase`: the queue of pushed operations, the waiters of one descriptor, the timers, or
//! the pool. Operations in one direction of a descriptor are attempted in the order in which they
//! were pushed. The wake eventfd stays registered and is read only when epoll reports it.

#![allow(unsafe_code)]

mod socket;
mod waiters;

use millrace_machine::{Deadline, Native};

use crate::config::{Config, Wait};
use crate::epoll::waiters::DescriptorWaiters;
use crate::hub::ReactorState;
use crate::op::{FileRef, Op, TransferDirection};
use crate::spin::BusyPoll;
use crate::sys::{self, NS_PER_S};
use crate::table::{OperationKey, OperationPhase, OperationSlot};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const NS_PER_MS: u64 = 1_000_000;
/// `epoll_event` data of the wake eventfd. No descriptor has this number.
const WAKE: u64 = u64::MAX;
const EVENTS: usize = 256;

pub(crate) struct Epoll {
    epoll: OwnedFd,
    pushed: Vec<OperationKey>,
    waiters: DescriptorWaiters,
    /// Timers in flight: deadline in `CLOCK_MONOTONIC` nanoseconds, and operation.
    timers: BTreeSet<(u64, OperationKey)>,
    events: Vec<libc::epoll_event>,
    has_pwait2: bool,
    spin: BusyPoll,
    woken: bool,
}

impl Epoll {
    pub(crate) fn new(config: &Config, hub: &ReactorState) -> io::Result<Epoll> {
        let wake = hub.wake.as_raw_fd();
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: WAKE };
        // SAFETY: the new descriptor is owned by nobody else; the event is a live local.
        let epoll = unsafe {
            let fd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            let epoll = OwnedFd::from_raw_fd(fd);
            if libc::epoll_ctl(fd, libc::EPOLL_CTL_ADD, wake, &mut event) < 0 {
                return Err(io::Error::last_os_error());
            }
            epoll
        };
        Ok(Epoll {
            epoll,
            pushed: Vec::new(),
            waiters: DescriptorWaiters::default(),
            timers: BTreeSet::new(),
            events: vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS],
            has_pwait2: true,
            spin: BusyPoll::new(config.spin_ns, config.spin_rule),
            woken: false,
        })
    }

    pub(crate) fn push(&mut self, key: OperationKey) {
        self.pushed.push(key);
    }

    pub(crate) fn turn(&mut self, hub: &mut ReactorState, wait: Wait) -> io::Result<()> {
        let before = hub.table.delivered;
        self.start_pushed(hub);
        self.reap(hub);
        let has_news = hub.table.delivered > 0;
        let wait = if has_news { Wait::No } else { wait };
        let waits = self.spin.is_on() && wait != Wait::No;
        if waits && self.spin.start(sys::now_ns(), wait.limit_ns()) {
            self.look(hub)?;
        }
        let done = self.woken || hub.table.delivered > 0;
        let limit_ns = if done { Some(0) } else { self.limit_ns(wait) };
        let sleep = if limit_ns == Some(0) { None } else { hub.prepare_sleep(limit_ns) };
        if let Some(limit_ns) = sleep {
            hub.counters.sleeps += 1;
            let result = self.wait(hub, limit_ns);
            hub.pool.awake();
            result?;
        } else if self.waiters.waiting > 0 {
            self.wait(hub, Some(0))?;
        }
        self.reap(hub);
        if waits {
            self.spin.end(sys::now_ns(), hub.table.moved_bytes);
        }
        self.woken = false;
        hub.counters.cqes += hub.table.delivered.saturating_sub(before) as u64;
        Ok(())
    }

    fn reap(&mut self, hub: &mut ReactorState) {
        hub.collect_jobs();
        while let Some(&(deadline_ns, key)) = self.timers.first()
            && deadline_ns <= sys::now_ns()
        {
            self.timers.pop_first();
            hub.table.complete(key, 0, 0);
        }
    }

    /// Returns the time until the end of `wait` or the next timer, whichever is first.
    fn limit_ns(&self, wait: Wait) -> Option<u64> {
        let timer = self.timers.first().map(|(deadline_ns, _)| Wait::Until(*deadline_ns));
        [Some(wait), timer].into_iter().flatten().filter_map(Wait::limit_ns).min()
    }

    fn look(&mut self, hub: &mut ReactorState) -> io::Result<()> {
        loop {
            self.wait(hub, Some(0))?;
            self.reap(hub);
            if self.woken || hub.table.delivered > 0 || !self.spin.go_on() {
                return Ok(());
            }
        }
    }

    fn start_pushed(&mut self, hub: &mut ReactorState) {
        let mut pushed = std::mem::take(&mut self.pushed);
        pushed.drain(..).for_each(|key| self.start(hub, key));
        // Memory is allocated only when more operations are in flight than ever before.
        pushed.reserve(hub.table.outstanding_max());
        self.pushed = pushed;
        hub.pool.submit();
    }

    fn start(&mut self, hub: &mut ReactorState, key: OperationKey) {
        let Some(&mut OperationSlot { op, source, .. }) = hub.table.get(key) else { return };
        match op {
            Op::Nop => hub.table.complete(key, 0, 0),
            Op::Timeout { deadline_ns } => _ = self.timers.insert((deadline_ns, key)),
            Op::Cancel { source, user_data } => {
                let target = hub.table.find(source, user_data);
                let result = target.map_or(-libc::ENOENT, |target| self.cancel(hub, target));
                hub.table.complete(key, result, 0);
            }
            Op::Close { fd } => {
                for orphan in self.waiters.forget(fd) {
                    hub.table.complete(orphan, -libc::ECANCELED, 0);
                }
                hub.counters.system_calls += 1;
                hub.table.complete(key, sys::close(fd), 0);
            }
            op if op.is_on_file() && hub.takes_files(source) => hub.queue_job(key),
            op if runs_on_pool(&op) => hub.queue_job(key),
            op => match op.readiness() {
                Some((fd, direction)) => self.start_socket(hub, key, fd, direction),
                None => hub.table.complete(key, -libc::EINVAL, 0),
            },
        }
    }

    /// Attempts the operation at once, unless other operations wait ahead of it. An operation that
    /// would block waits until its descriptor is ready.
    fn start_socket(
        &mut self,
        hub: &mut ReactorState,
        key: OperationKey,
        fd: RawFd,
        direction: TransferDirection,
    ) {
        let is_queued = self.waiters.front(fd, direction).is_some();
        if !is_queued && self.attempt(hub, key) {
            return;
        }
        if let Some(slot) = hub.table.get(key) {
            slot.phase = OperationPhase::Polling;
        }
        self.waiters.add(fd, direction, key);
        self.arm(hub, fd);
    }

    fn attempt(&mut self, hub: &mut ReactorState, key: OperationKey) -> bool {
        let Some(slot) = hub.table.get(key) else { return true };
        hub.counters.system_calls += 1;
        match socket::attempt(slot) {
            Some(result) => {
                hub.table.complete(key, result, 0);
                true
            }
            None => false,
        }
    }

    /// Fails the operations of `fd`'s waiters if epoll refuses the descriptor.
    fn arm(&mut self, hub: &mut ReactorState, fd: RawFd) {
        match self.waiters.arm(self.epoll.as_raw_fd(), fd) {
            Ok(calls) => hub.counters.system_calls += calls,
            Err(error) => {
                for orphan in self.waiters.forget(fd) {
                    hub.table.complete(orphan, error, 0);
                }
            }
        }
    }

    fn cancel(&mut self, hub: &mut ReactorState, target: OperationKey) -> i32 {
        let Some(slot) = hub.table.get(target) else { return -libc::ENOENT };
        // Like io_uring, returns the bytes that a cancelled MSG_WAITALL operation has moved.
        let result = if slot.moved > 0 { slot.moved as i32 } else { -libc::ECANCELED };
        let is_waiting = match (slot.phase, slot.op, slot.op.readiness()) {
            (OperationPhase::Pooled, ..) => return hub.cancel_job(target),
            (OperationPhase::Polling, _, Some((fd, direction))) => {
                self.waiters.remove(fd, direction, target);
                true
            }
            (_, Op::Timeout { deadline_ns }, _) => self.timers.remove(&(deadline_ns, target)),
            _ => false,
        };
        if !is_waiting {
            return -libc::ENOENT;
        }
        hub.table.complete(target, result, 0);
        0
    }

    fn wait(&mut self, hub: &mut ReactorState, limit_ns: Option<u64>) -> io::Result<()> {
        let ready = self.wait_events(hub, limit_ns)?;
        for at in 0..ready {
            let libc::epoll_event { events, u64: data } = self.events[at];
            if data == WAKE {
                hub.counters.system_calls += 1;
                sys::eventfd_read(&hub.wake);
                hub.counters.wakes += 1;
                self.woken = true;
                continue;
            }
            let fd = data as RawFd;
            self.waiters.fired(fd);
            let broken = libc::EPOLLHUP | libc::EPOLLERR;
            if events & (libc::EPOLLIN | broken) as u32 != 0 {
                self.run_waiters(hub, fd, TransferDirection::In);
            }
            if events & (libc::EPOLLOUT | broken) as u32 != 0 {
                self.run_waiters(hub, fd, TransferDirection::Out);
            }
            self.arm(hub, fd);
        }
        Ok(())
    }

    fn run_waiters(&mut self, hub: &mut ReactorState, fd: RawFd, direction: TransferDirection) {
        while let Some(key) = self.waiters.front(fd, direction) {
            if !self.attempt(hub, key) {
                return;
            }
            self.waiters.remove(fd, direction, key);
        }
    }

    fn wait_events(&mut self, hub: &mut ReactorState, limit_ns: Option<u64>) -> io::Result<usize> {
        loop {
            hub.counters.system_calls += 1;
            let ready = match self.has_pwait2 {
                true => self.wait_pwait2(limit_ns),
                false => self.wait_ms(limit_ns),
            };
            if ready >= 0 {
                return Ok(ready as usize);
            }
            match -sys::last_error() {
                libc::EINTR => return Ok(0),
                libc::ENOSYS | libc::EPERM if self.has_pwait2 => self.has_pwait2 = false,
                errno => return Err(io::Error::from_raw_os_error(errno)),
            }
        }
    }

    fn wait_pwait2(&mut self, limit_ns: Option<u64>) -> i64 {
        let limit = limit_ns.map(|ns| libc::timespec {
            tv_sec: (ns / NS_PER_S) as libc::time_t,
            tv_nsec: (ns % NS_PER_S) as libc::c_long,
        });
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let (epoll, events) = (self.epoll.as_raw_fd(), self.events.as_mut_ptr());
        let no_mask = std::ptr::null::<libc::sigset_t>();
        // SAFETY: `events` has room for EVENTS entries; the limit lives in this frame.
        unsafe { libc::syscall(libc::SYS_epoll_pwait2, epoll, events, EVENTS, limit, no_mask, 0) }
    }

    /// Waits for events on kernels before Linux 5.11, where epoll has no finer timeout than
    /// milliseconds. Rounds up, so that no wait ends early.
    fn wait_ms(&mut self, limit_ns: Option<u64>) -> i64 {
        let limit_ms = match limit_ns {
            Some(ns) => i32::try_from(ns.div_ceil(NS_PER_MS)).unwrap_or(i32::MAX),
            None => -1,
        };
        let (epoll, events) = (self.epoll.as_raw_fd(), self.events.as_mut_ptr());
        // SAFETY: `events` has room for EVENTS entries.
        i64::from(unsafe { libc::epoll_wait(epoll, events, EVENTS as i32, limit_ms) })
    }

    /// Cancels operations that wait for descriptors or timers. Then waits for jobs of the thread
    /// pool, until they end or `limit` expires.
    pub(crate) fn close(&mut self, hub: &mut ReactorState, limit: &mut Deadline<Native>) {
        self.start_pushed(hub);
        for key in hub.table.keys() {
            self.cancel(hub, key);
        }
        while hub.pool.outstanding > 0 {
            let Some(slice) = limit.slice() else { return };
            hub.table.take_delivered();
            if self.turn(hub, Wait::Until(sys::now_ns() + slice.as_nanos() as u64)).is_err() {
                return;
            }
        }
    }
}

fn runs_on_pool(op: &Op) -> bool {
    match *op {
        Op::Fdatasync { .. } | Op::Fallocate { .. } | Op::Ioctl { .. } => true,
        Op::Read { file, .. }
        | Op::Write { file, .. }
        | Op::ReadV { file, .. }
        | Op::WriteV { file, .. } => match file {
            FileRef::Raw(fd) => sys::is_storage(fd),
            FileRef::Fixed(_) => true,
        },
        _ => false,
    }
}
