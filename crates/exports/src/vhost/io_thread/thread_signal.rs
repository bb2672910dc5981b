//! `ThreadSignal`: a signal that ends an I/O thread's blocked write to an eventfd.
//!
//! An I/O thread interrupts a guest by a write to an eventfd that it shares with the frontend. A
//! frontend may fill the eventfd and make it blocking. Only a signal then ends the write. So if a
//! control thread has waited long for an I/O thread, it sends the signal to the I/O thread
//! repeatedly.
//!
//! The signal's handler does nothing, and other interrupted system calls are restarted. No
//! interrupt of the guest is lost, because a full eventfd already signals one.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Once};

/// Signal that ends a blocked write. Linux ignores it by default, so it is harmless without the
/// handler.
const SIGNAL: i32 = libc::SIGURG;

static INSTALL: Once = Once::new();

/// Target of the signal: the thread ID of one thread, or 0 if there is none.
#[derive(Debug, Clone, Default)]
pub(crate) struct ThreadSignal(Arc<AtomicI32>);

pub(crate) struct SignalTarget(ThreadSignal);

impl ThreadSignal {
    pub(crate) fn attach(&self) -> SignalTarget {
        INSTALL.call_once(install);
        // SeqCst for simplicity: the store is rare, and orders no other memory access.
        // SAFETY: a plain system call.
        self.0.store(unsafe { libc::gettid() }, Ordering::SeqCst);
        SignalTarget(self.clone())
    }

    pub(crate) fn send(&self) {
        // SeqCst for simplicity: the load is rare, and orders no other memory access. An outdated
        // thread ID does no harm, because the waiting caller signals repeatedly.
        let thread = self.0.load(Ordering::SeqCst);
        if thread != 0 {
            // SAFETY: plain system calls. The kernel ignores the ID of a thread that has ended.
            // If a new thread reuses the thread ID, the signal only runs an empty handler there.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, SIGNAL) };
        }
    }
}

impl Drop for SignalTarget {
    fn drop(&mut self) {
        // SeqCst for simplicity: the store is rare, and orders no other memory access.
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
