//! Tracks the operations that wait for a descriptor, and the events that epoll was asked to report
//! (epoll back end).
//!
//! Events are always one-shot: after a report the kernel stays silent until the descriptor is
//! registered again, so a descriptor without waiters causes no events. A user may close a
//! descriptor and reuse its number without telling the reactor, and the kernel then forgets the old
//! registration. Therefore, if `epoll_ctl` answers ENOENT, the descriptor is added, and if it
//! answers EEXIST, the registration is modified.

#![allow(unsafe_code)]

use crate::op::TransferDirection;
use crate::sys;
use crate::table::OperationKey;
use std::collections::{HashMap, VecDeque};
use std::os::fd::RawFd;

const ROOM: usize = 2;

struct WaitingDescriptor {
    /// Waiting operations of each [`TransferDirection`].
    queues: [VecDeque<OperationKey>; 2],
    known: bool,
    armed: u32,
}

#[derive(Default)]
pub(crate) struct DescriptorWaiters {
    descriptors: HashMap<RawFd, WaitingDescriptor>,
    pub(crate) waiting: usize,
}

impl DescriptorWaiters {
    pub(crate) fn add(&mut self, fd: RawFd, direction: TransferDirection, key: OperationKey) {
        let descriptor = self.descriptors.entry(fd).or_insert_with(|| WaitingDescriptor {
            queues: [VecDeque::with_capacity(ROOM), VecDeque::with_capacity(ROOM)],
            known: false,
            armed: 0,
        });
        descriptor.queues[direction as usize].push_back(key);
        self.waiting += 1;
    }

    pub(crate) fn remove(&mut self, fd: RawFd, direction: TransferDirection, key: OperationKey) {
        let Some(descriptor) = self.descriptors.get_mut(&fd) else { return };
        let queue = &mut descriptor.queues[direction as usize];
        let Some(at) = queue.iter().position(|waiter| *waiter == key) else { return };
        queue.remove(at);
        self.waiting -= 1;
        // A descriptor without waiters counts as unregistered: the user may close it and reuse its
        // number for a file that epoll does not know.
        if descriptor.queues.iter().all(VecDeque::is_empty) {
            descriptor.armed = 0;
        }
    }

    pub(crate) fn front(&self, fd: RawFd, direction: TransferDirection) -> Option<OperationKey> {
        self.descriptors.get(&fd)?.queues[direction as usize].front().copied()
    }

    /// Removes a descriptor that is being closed. Returns its waiters.
    pub(crate) fn forget(&mut self, fd: RawFd) -> impl Iterator<Item = OperationKey> {
        let queues = self.descriptors.remove(&fd).map(|descriptor| descriptor.queues);
        let queues = queues.unwrap_or_default();
        self.waiting -= queues[0].len() + queues[1].len();
        queues.into_iter().flatten()
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
        for (queue, event) in descriptor.queues.iter().zip([libc::EPOLLIN, libc::EPOLLOUT]) {
            if !queue.is_empty() {
                wanted |= event as u32;
            }
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

fn control(epoll: RawFd, command: i32, fd: RawFd, wanted: u32) -> i32 {
    let events = wanted | libc::EPOLLONESHOT as u32;
    let mut event = libc::epoll_event { events, u64: fd as u64 };
    // SAFETY: the event is a live local that the kernel copies.
    sys::result_of(unsafe { libc::epoll_ctl(epoll, command, fd, &mut event) } as isize)
}
