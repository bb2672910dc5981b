//! Kicks: the eventfds by which guests say that there is something, on the reactor of a thread.
//!
//! A kick wakes the thread out of its ring: a poll for readability stands there while it sleeps.
//! The descriptors are the frontend's, so nothing here ever waits on one. Called by thread.rs.
//!
//! Invariant (the reactor's contract): a descriptor lives until no operation on it is outstanding.
#![allow(unsafe_code)]

use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, OwnedFd};

use millrace_reactor::{Completion, Handle, Op, Source};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

const POLL: u64 = 0;
const CANCEL: u64 = 1;
const KIND_BITS: u32 = 1;

/// One kick descriptor.
struct Kick {
    fd: OwnedFd,
    /// A poll is outstanding.
    armed: bool,
    outstanding: u32,
    /// Nobody wants to hear of it any more.
    gone: bool,
}

/// The kick descriptors of a thread.
pub(crate) struct Kicks {
    handle: Handle,
    source: Source,
    kicks: Vec<Option<Box<Kick>>>,
    completions: Vec<Completion>,
}

impl Kicks {
    pub(crate) fn new(handle: Handle) -> Kicks {
        let source = handle.source();
        Kicks { handle, source, kicks: Vec::new(), completions: Vec::with_capacity(64) }
    }

    /// Listens to a descriptor from now on; its place.
    pub(crate) fn add(&mut self, fd: OwnedFd) -> usize {
        // What came before is taken for a kick: the ring is looked at anyway.
        let kick = Kick { fd, armed: false, outstanding: 0, gone: false };
        let free = self.kicks.iter().position(Option::is_none).unwrap_or(self.kicks.len());
        if free == self.kicks.len() {
            self.kicks.push(None);
        }
        self.kicks[free] = Some(Box::new(kick));
        free
    }

    /// Listens no longer.
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

    /// Makes the next kick of every descriptor end a sleep.
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

    /// Looks at what completed; returns how many kicks were seen.
    pub(crate) fn take(&mut self) -> u64 {
        let mut completions = std::mem::take(&mut self.completions);
        self.handle.take(self.source, &mut completions);
        let mut seen = 0;
        for Completion { user_data, result, .. } in completions.drain(..) {
            let (place, kind) = ((user_data >> KIND_BITS) as usize, user_data & 1);
            let Some(kick) = &mut self.kicks[place] else { continue };
            kick.outstanding -= 1;
            if kind == POLL {
                kick.armed = false;
                if result > 0 {
                    seen += 1;
                    // Before the rings are looked at for the last time.
                    set_back(&kick.fd);
                }
            }
            if kick.gone && kick.outstanding == 0 {
                self.kicks[place] = None;
            }
        }
        self.completions = completions;
        seen
    }

    /// Whether operations are outstanding, which name memory of this.
    pub(crate) fn is_busy(&self) -> bool {
        self.handle.pending(self.source) > 0
    }
}

/// Takes a kick's count off it. The frontend may have been faster, and may have made its descriptor
/// one that waits; we do not.
fn set_back(fd: &OwnedFd) {
    let mut count = [0; 8];
    let mut pieces = [IoSliceMut::new(&mut count)];
    // At no place of the file: an eventfd has none.
    let read = preadv2(fd, &mut pieces, u64::MAX, ReadWriteFlags::NOWAIT);
    if read == Err(Errno::OPNOTSUPP) || read == Err(Errno::NOSYS) {
        let _ = rustix::io::read(fd, &mut count);
    }
}
