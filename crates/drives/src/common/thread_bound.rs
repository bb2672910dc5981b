//! `ThreadBound`: a value that stays with its thread, inside something that may be sent.
//!
//! The reactor's handle cannot leave its thread, but a driver's queue must be `Send`: this makes
//! that safe by checking the thread on every use. Used by the queues of file and NBD drives.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;

/// A value that only the thread that made it uses; elsewhere it can be moved and leaked.
pub(crate) struct ThreadBound<T> {
    value: ManuallyDrop<T>,
    thread: usize,
}

// SAFETY: `get` and `drop` touch the value on the thread that made it only.
unsafe impl<T> Send for ThreadBound<T> {}

/// A number that no other living thread has: the address of one of its thread-locals.
fn this_thread() -> usize {
    thread_local! {
        static MARK: u8 = const { 0 };
    }
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

impl<T> ThreadBound<T> {
    /// Binds a value to the calling thread.
    pub(crate) fn new(value: T) -> Self {
        ThreadBound { value: ManuallyDrop::new(value), thread: this_thread() }
    }

    /// Whether the calling thread is the value's.
    pub(crate) fn is_here(&self) -> bool {
        self.thread == this_thread()
    }

    /// The value.
    ///
    /// # Panics
    /// On any other thread than the one that made it.
    pub(crate) fn get(&self) -> &T {
        assert!(self.is_here(), "a queue was used on a thread that does not own it");
        &self.value
    }
}

impl<T> Drop for ThreadBound<T> {
    /// Leaks the value on a foreign thread: its counts are not atomic.
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: dropped once, on its own thread.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}
