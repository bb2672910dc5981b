//! Kicks: the eventfds by which guests announce new requests, polled by a thread's reactor.
//!
//! While the thread sleeps, a poll for readability is outstanding on each eventfd, so a kick wakes
//! the thread. The descriptors belong to the frontend, so no call here may block on one.
//!
//! Invariant (the reactor's contract): a descriptor stays open while an operation on it is
//! outstanding.
#![allow(unsafe_code)]

use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, OwnedFd};

use millrace_reactor::{Completion, Handle, Op, Source};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

const POLL: u64 = 0;
const CANCEL: u64 = 1;
const KIND_BITS: u32 = 1;

struct KickDescriptor {
    fd: OwnedFd,
    armed: bool,
    outstanding: u32,
    /// True if the queue has dropped the eventfd, which stays open until its polls complete.
    gone: bool,
}

pub(crate) struct KickPoller {
    handle: Handle,
    source: Source,
    kicks: Vec<Option<Box<KickDescriptor>>>,
    completions: Vec<Completion>,
}

impl KickPoller {
    pub(crate) fn new(handle: Handle) -> KickPoller {
        let source = handle.source();
        KickPoller { handle, source, kicks: Vec::new(), completions: Vec::with_capacity(64) }
    }

    pub(crate) fn add(&mut self, fd: OwnedFd) -> usize {
        // An old kick that the eventfd still counts causes one unnecessary check of the ring.
        let kick = KickDescriptor { fd, armed: false, outstanding: 0, gone: false };
        let free = self.kicks.iter().position(Option::is_none).unwrap_or(self.kicks.len());
        if free == self.kicks.len() {
            self.kicks.push(None);
        }
        self.kicks[free] = Some(Box::new(kick));
        free
    }

    pub(crate) fn remove(&mut self, place: usize) {
        let Some(kick) = self.kicks.get_mut(place).and_then(Option::as_mut) else { return };
        kick.gone = true;
        if kick.outstanding == 0 {
            self.kicks[place] = None;
            return;
        }
        let user_data = (place as u64) << KIND_BITS | POLL;
        self.push(place, CANCEL, Op::Cancel { source: self.source, user_data });
    }

    fn push(&mut self, place: usize, kind: u64, op: Op) {
        if let Some(kick) = &mut self.kicks[place] {
            kick.outstanding += 1;
        }
        // SAFETY: see the module's invariant.
        unsafe { self.handle.push(self.source, (place as u64) << KIND_BITS | kind, op) };
    }

    pub(crate) fn arm(&mut self) {
        for place in 0..self.kicks.len() {
            let Some(kick) = &mut self.kicks[place] else { continue };
            if kick.armed || kick.gone {
                continue;
            }
            kick.armed = true;
            let fd = kick.fd.as_raw_fd();
            self.push(place, POLL, Op::PollIn { fd });
        }
    }

    /// Handles completed operations, and calls `seen` with the index of each kick.
    pub(crate) fn take(&mut self, mut seen: impl FnMut(usize)) {
        let mut completions = std::mem::take(&mut self.completions);
        self.handle.take(self.source, &mut completions);
        for Completion { user_data, result, .. } in completions.drain(..) {
            let (place, kind) = ((user_data >> KIND_BITS) as usize, user_data & 1);
            let Some(kick) = &mut self.kicks[place] else { continue };
            kick.outstanding -= 1;
            if kind == POLL {
                kick.armed = false;
                if result > 0 {
                    seen(place);
                    // The eventfd's count of kicks is cleared before the thread checks the rings
                    // for the last time, so that no kick is lost.
                    set_back(&kick.fd);
                }
            }
            if kick.gone && kick.outstanding == 0 {
                self.kicks[place] = None;
            }
        }
        self.completions = completions;
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.handle.pending(self.source) > 0
    }
}

/// Clears the count of a kick without blocking, although the frontend may have cleared the count or
/// made the descriptor blocking.
fn set_back(fd: &OwnedFd) {
    let mut count = [0; 8];
    let mut pieces = [IoSliceMut::new(&mut count)];
    // The offset -1 means the current position, because an eventfd has no offsets.
    let read = preadv2(fd, &mut pieces, u64::MAX, ReadWriteFlags::NOWAIT);
    if read == Err(Errno::OPNOTSUPP) || read == Err(Errno::NOSYS) {
        let _ = rustix::io::read(fd, &mut count);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // Tests may.
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use millrace_reactor::{Config, Reactor, Wait};
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::vhost::tests::played::{count, event, until};

    fn kick(fd: &OwnedFd) {
        rustix::io::write(fd, &1u64.to_ne_bytes()).unwrap();
    }

    /// Runs reactor iterations until `wanted` kicks were seen.
    fn seen(reactor: &mut Reactor, kicks: &mut KickPoller, wanted: u64) {
        let mut seen = 0;
        until("kicks are seen", || {
            reactor.turn(Wait::No).unwrap();
            kicks.take(|_| seen += 1);
            seen == wanted
        });
    }

    /// Returns a descriptor to poll, and a function that returns true once that descriptor is
    /// closed.
    fn closable() -> (OwnedFd, impl Fn() -> bool) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        (ours.into(), move || (&theirs).read(&mut [0]).is_ok_and(|got| got == 0))
    }

    #[test]
    fn each_kick_is_seen_once_and_taken_off_its_own_descriptor() {
        let mut reactor = Reactor::new(Config::default()).unwrap();
        let mut kicks = KickPoller::new(reactor.handle());
        let fds = [0; 3].map(|_| event());
        for (place, fd) in fds.iter().enumerate() {
            assert_eq!(kicks.add(fd.try_clone().unwrap()), place);
        }
        assert!(!kicks.is_busy());
        let outstanding = |kicks: &KickPoller| -> Vec<(bool, u32)> {
            kicks.kicks.iter().flatten().map(|kick| (kick.armed, kick.outstanding)).collect()
        };
        for place in [2, 0, 1, 1] {
            // Once is enough.
            kicks.arm();
            kicks.arm();
            assert!(kicks.is_busy());
            assert_eq!(outstanding(&kicks), [(true, 1); 3]);
            kick(&fds[place]);
            kick(&fds[place]);
            seen(&mut reactor, &mut kicks, 1);
            let mut expected = [(true, 1); 3];
            expected[place] = (false, 0);
            assert_eq!(outstanding(&kicks), expected);
            assert_eq!(count(&fds[place]), 0);
        }
    }

    #[test]
    fn descriptor_is_closed_once_idle_and_no_other_is() {
        let mut reactor = Reactor::new(Config::default()).unwrap();
        let mut kicks = KickPoller::new(reactor.handle());
        let [(low, low_closed), (high, high_closed)] = [(); 2].map(|()| closable());
        let (fd, idle) = (event(), closable());
        assert_eq!([kicks.add(low), kicks.add(high)], [0, 1]);
        kicks.arm();
        reactor.turn(Wait::No).unwrap();
        // This descriptor has no outstanding operation, so its index can be reused at once.
        assert_eq!(kicks.add(idle.0), 2);
        kicks.remove(2);
        assert!(idle.1() && kicks.kicks[2].is_none());
        kicks.remove(1);
        assert!(!high_closed(), "a poll is outstanding");
        kicks.arm();
        until("it is closed", || {
            reactor.turn(Wait::No).unwrap();
            kicks.take(|_| panic!("a cancelled operation is not a kick"));
            high_closed()
        });
        assert!(!low_closed() && kicks.is_busy());
        // The new descriptor gets the index of the removed one.
        assert_eq!(kicks.add(fd.try_clone().unwrap()), 1);
        kicks.arm();
        kick(&fd);
        seen(&mut reactor, &mut kicks, 1);
        [0, 1, 1, 7].iter().for_each(|place| kicks.remove(*place));
        until("all are closed", || {
            reactor.turn(Wait::No).unwrap();
            kicks.take(|_| ());
            low_closed() && !kicks.is_busy()
        });
    }

    #[test]
    fn a_descriptor_that_waits_is_read_once() {
        let fd = eventfd(3, EventfdFlags::CLOEXEC).unwrap();
        set_back(&fd);
        rustix::fs::fcntl_setfl(&fd, rustix::fs::OFlags::NONBLOCK).unwrap();
        assert_eq!(count(&fd), 0);
    }
}
