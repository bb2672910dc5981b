//! `Notify`: the notifications of one queue, to and from the server.
//!
//! A queue kicks the server through the eventfd `kick`. The server signals the eventfd `call`, and
//! an epoll instance waits for the signal. `call` is never read: epoll is edge-triggered, so each
//! signal ends one wait. A wait is one system call, and also ends when the connection ends.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

const CALL: u64 = 0;
const CONNECTION: u64 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WakeReason {
    Interrupted,
    Ended,
    Late,
}

#[derive(Debug)]
pub(super) struct Notify {
    pub(super) kick: EventFd,
    pub(super) call: EventFd,
    epoll: OwnedFd,
}

impl Notify {
    pub(super) fn new(stream: &UnixStream) -> io::Result<Notify> {
        let (kick, call) = (EventFd::new(EVENTFD_FLAGS)?, EventFd::new(EVENTFD_FLAGS)?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        // SAFETY: open until this function ends at least.
        let fd = unsafe { BorrowedFd::borrow_raw(call.as_raw_fd()) };
        let interrupt = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, fd, epoll::EventData::new_u64(CALL), interrupt)?;
        let ended = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP;
        epoll::add(&epoll, stream, epoll::EventData::new_u64(CONNECTION), ended)?;
        Ok(Notify { kick, call, epoll })
    }

    pub(super) fn kick(&self) {
        // The write fails only if the counter is full: the server has not read an earlier kick.
        let _ = self.kick.write(1);
    }

    pub(super) fn wait_any(notifies: &[&Notify], most: Duration) -> io::Result<()> {
        let epolls = notifies.iter().map(|notify| PollFd::new(&notify.epoll, PollFlags::IN));
        match poll(&mut epolls.collect::<Vec<_>>(), Some(&timespec(most))) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn wait(&self, most: Duration) -> io::Result<WakeReason> {
        let most = timespec(most);
        let empty = epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(CALL),
        };
        let mut events = [empty; 2];
        let found = match epoll::wait(&self.epoll, &mut events, Some(&most)) {
            // A signal ended the wait. The caller checks the ring, as after an interrupt.
            Err(rustix::io::Errno::INTR) => return Ok(WakeReason::Interrupted),
            other => other?,
        };
        let events = &events[..found];
        Ok(match events {
            [] => WakeReason::Late,
            events if events.iter().any(|event| event.data.u64() == CONNECTION) => {
                WakeReason::Ended
            }
            _ => WakeReason::Interrupted,
        })
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// The eventfds are nonblocking, because a server may read them and expects not to block.
const EVENTFD_FLAGS: i32 = EFD_CLOEXEC | EFD_NONBLOCK;
