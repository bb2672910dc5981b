//! Threads that hang in a write to what a frontend shares, and how they get out of it.
//!
//! The descriptor that interrupts a guest is its frontend's, too, which may fill it and have it
//! block after we made sure that it does not. Only a signal ends a write there. So who waits for an
//! I/O thread for long nudges it, again and again, with a signal that nobody else uses and that
//! does nothing: whatever else the thread waits in goes on after it. The interrupt that is lost is
//! none, since a descriptor that is full is one that interrupts.
//!
//! Called by vhost.rs (at the end) and device.rs (for a ring that stops).
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Once};

/// Ignored by those that have no handler, should one of these go astray.
const SIGNAL: i32 = libc::SIGURG;

static INSTALL: Once = Once::new();

/// The way to one thread; 0 while there is none.
#[derive(Debug, Clone, Default)]
pub(crate) struct Nudge(Arc<AtomicI32>);

/// The calling thread can be nudged as long as this is here.
pub(crate) struct Nudged(Nudge);

impl Nudge {
    /// The calling thread is the one.
    pub(crate) fn take(&self) -> Nudged {
        INSTALL.call_once(install);
        // SeqCst, as below: rare, and nothing else hangs on it.
        // SAFETY: a plain system call.
        self.0.store(unsafe { libc::gettid() }, Ordering::SeqCst);
        Nudged(self.clone())
    }

    /// Ends what the thread waits in.
    pub(crate) fn give(&self) {
        // SeqCst: whoever sees the number late nudges once more.
        let thread = self.0.load(Ordering::SeqCst);
        if thread != 0 {
            // SAFETY: plain system calls. A thread that has ended meanwhile gets no signal, and
            // another one of this process with its number does as this one would.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, SIGNAL) };
        }
    }
}

impl Drop for Nudged {
    fn drop(&mut self) {
        // SeqCst: rare, and nothing else hangs on it.
        self.0.0.store(0, Ordering::SeqCst);
    }
}

/// Without SA_RESTART, so that system calls end; if somebody has a handler already, that has to do.
fn install() {
    // SAFETY: all-zero bytes are an action without flags and mask; the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(SIGNAL, std::ptr::null(), &raw mut action);
        if matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) {
            action.sa_sigaction = nothing as *const () as usize;
            action.sa_flags = 0;
            libc::sigaction(SIGNAL, &raw const action, std::ptr::null_mut());
        }
    }
}

extern "C" fn nothing(_: i32) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_has_ended_is_not_nudged_any_more() {
        let nudge = Nudge::default();
        let nudged = nudge.take();
        // SAFETY: a plain system call.
        assert_eq!(nudge.0.load(Ordering::SeqCst), unsafe { libc::gettid() });
        nudge.give();
        drop(nudged);
        assert_eq!(nudge.0.load(Ordering::SeqCst), 0);
        nudge.give();
    }
}
