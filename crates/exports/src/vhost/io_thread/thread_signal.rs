//! `ThreadSignal`: frees I/O threads that hang in a write to an eventfd shared with a frontend.
//!
//! The frontend also has the eventfd that interrupts the guest. The frontend may fill the eventfd
//! and make it blocking, and only a signal ends a write that blocks there. So a thread that waits
//! long for an I/O thread repeatedly sends it a signal whose handler does nothing. Other system
//! calls that the signal interrupts are restarted. An interrupt that is not written is not lost,
//! because a full eventfd already signals one.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Once};

/// Signal that a process without the handler ignores by default.
const SIGNAL: i32 = libc::SIGURG;

static INSTALL: Once = Once::new();

/// Target of the signal: the thread ID of one thread, or 0 if there is none.
#[derive(Debug, Clone, Default)]
pub(crate) struct ThreadSignal(Arc<AtomicI32>);

pub(crate) struct SignalTarget(ThreadSignal);

impl ThreadSignal {
    pub(crate) fn attach(&self) -> SignalTarget {
        INSTALL.call_once(install);
        // SeqCst: the access is rare, and no other memory access depends on it.
        // SAFETY: a plain system call.
        self.0.store(unsafe { libc::gettid() }, Ordering::SeqCst);
        SignalTarget(self.clone())
    }

    pub(crate) fn send(&self) {
        // SeqCst: the access is rare, and no other memory access depends on it. A signal to an
        // outdated thread ID does no harm, because the waiting caller signals repeatedly.
        let thread = self.0.load(Ordering::SeqCst);
        if thread != 0 {
            // SAFETY: plain system calls. The kernel ignores the ID of a thread that has ended.
            // Another thread of this process may have the ID now; the signal does no harm there.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, SIGNAL) };
        }
    }
}

impl Drop for SignalTarget {
    fn drop(&mut self) {
        // SeqCst: the access is rare, and no other memory access depends on it.
        self.0.0.store(0, Ordering::SeqCst);
    }
}

/// Installs a handler without SA_RESTART, so that system calls return. An existing handler is kept.
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
    fn a_thread_that_has_ended_is_not_target_any_more() {
        let signal = ThreadSignal::default();
        let target = signal.attach();
        // SAFETY: a plain system call.
        assert_eq!(signal.0.load(Ordering::SeqCst), unsafe { libc::gettid() });
        signal.send();
        drop(target);
        assert_eq!(signal.0.load(Ordering::SeqCst), 0);
        signal.send();
    }
}
