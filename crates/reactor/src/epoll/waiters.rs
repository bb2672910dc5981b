//! Tracks the operations that wait for a descriptor, and the events that epoll was asked to report
//! (epoll back end).
//!
//! Events are always one-shot: after a report the kernel stays silent until the descriptor is
//! registered again, so a descriptor without waiters causes no events. A user may close a
//! descriptor and reuse its number without notice, and the kernel then forgets the old descriptor.
//! Therefore, if `epoll_ctl` answers ENOENT, the descriptor is added, and if it answers EEXIST, the
//! registration is modified.

#![allow(unsafe_code)]

use crate::op::Direction;
use crate::sys;
use crate::table::OperationKey;
use std::collections::{HashMap, VecDeque};
use std::os::fd::RawFd;

const ROOM: usize = 2;

pub(crate) struct Descriptor {
    pub(crate) to_read: VecDeque<OperationKey>,
    pub(crate) to_write: VecDeque<OperationKey>,
    known: bool,
    armed: u32,
}

impl Default for Descriptor {
    fn default() -> Descriptor {
        let (to_read, to_write) = (VecDeque::with_capacity(ROOM), VecDeque::with_capacity(ROOM));
        Descriptor { to_read, to_write, known: false, armed: 0 }
    }
}

#[derive(Default)]
pub(crate) struct Waiters {
    descriptors: HashMap<RawFd, Descriptor>,
    pub(crate) waiting: usize,
}

impl Waiters {
    /// Returns true if an operation already waits in this direction, so that a new one must wait
    /// after it.
    pub(crate) fn has(&self, fd: RawFd, direction: Direction) -> bool {
        self.descriptors.get(&fd).is_some_and(|descriptor| match direction {
            Direction::In => !descriptor.to_read.is_empty(),
            Direction::Out => !descriptor.to_write.is_empty(),
        })
    }

    pub(crate) fn add(&mut self, fd: RawFd, direction: Direction, key: OperationKey) {
        let descriptor = self.descriptors.entry(fd).or_default();
        queue(descriptor, direction).push_back(key);
        self.waiting += 1;
    }

    pub(crate) fn remove(&mut self, fd: RawFd, direction: Direction, key: OperationKey) -> bool {
        let Some(descriptor) = self.descriptors.get_mut(&fd) else { return false };
        let queue = queue(descriptor, direction);
        let Some(at) = queue.iter().position(|waiter| *waiter == key) else { return false };
        queue.remove(at);
        self.waiting -= 1;
        // A descriptor without waiters counts as unregistered: the user may close it and reuse its
        // number for a file that epoll does not know.
        if descriptor.to_read.is_empty() && descriptor.to_write.is_empty() {
            descriptor.armed = 0;
        }
        true
    }

    pub(crate) fn front(&mut self, fd: RawFd, direction: Direction) -> Option<OperationKey> {
        let descriptor = self.descriptors.get_mut(&fd)?;
        queue(descriptor, direction).front().copied()
    }

    /// Removes a descriptor that is being closed, and moves its waiters to `orphans`.
    pub(crate) fn forget(&mut self, fd: RawFd, orphans: &mut Vec<OperationKey>) {
        if let Some(descriptor) = self.descriptors.remove(&fd) {
            self.waiting -= descriptor.to_read.len() + descriptor.to_write.len();
            orphans.extend(descriptor.to_read);
            orphans.extend(descriptor.to_write);
        }
    }

    /// Records that the kernel reported `fd`, which ended its one-shot registration.
    pub(crate) fn fired(&mut self, fd: RawFd) {
        if let Some(descriptor) = self.descriptors.get_mut(&fd) {
            descriptor.armed = 0;
        }
    }

    /// Registers `fd` for the events that its waiters need, unless it is registered for them
    /// already. Returns the number of system calls made, or `-errno` (`-EPERM` for a descriptor
    /// that is always ready).
    pub(crate) fn arm(&mut self, epoll: RawFd, fd: RawFd) -> Result<u64, i32> {
        let Some(descriptor) = self.descriptors.get_mut(&fd) else { return Ok(0) };
        let mut wanted = 0;
        if !descriptor.to_read.is_empty() {
            wanted |= libc::EPOLLIN as u32;
        }
        if !descriptor.to_write.is_empty() {
            wanted |= libc::EPOLLOUT as u32;
        }
        if wanted & !descriptor.armed == 0 {
            return Ok(0);
        }
        let (first, second, missing) = match descriptor.known {
            true => (libc::EPOLL_CTL_MOD, libc::EPOLL_CTL_ADD, -libc::ENOENT),
            false => (libc::EPOLL_CTL_ADD, libc::EPOLL_CTL_MOD, -libc::EEXIST),
        };
        let mut calls = 1;
        let mut result = control(epoll, first, fd, wanted);
        if result == missing {
            calls = 2;
            result = control(epoll, second, fd, wanted);
        }
        if result < 0 {
            return Err(result);
        }
        descriptor.known = true;
        descriptor.armed = wanted;
        Ok(calls)
    }
}

fn queue(descriptor: &mut Descriptor, direction: Direction) -> &mut VecDeque<OperationKey> {
    match direction {
        Direction::In => &mut descriptor.to_read,
        Direction::Out => &mut descriptor.to_write,
    }
}

fn control(epoll: RawFd, command: i32, fd: RawFd, wanted: u32) -> i32 {
    let events = wanted | libc::EPOLLONESHOT as u32;
    let mut event = libc::epoll_event { events, u64: fd as u64 };
    // SAFETY: the event is a live local that the kernel copies.
    sys::result_of(unsafe { libc::epoll_ctl(epoll, command, fd, &mut event) } as isize)
}
