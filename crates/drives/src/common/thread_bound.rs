//! `ThreadBound`: a value that only its own thread may use, inside a type that is `Send`.
//!
//! The reactor's handle must stay on its thread, but a driver's queue must be `Send`. This type
//! checks the thread at every use.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;

/// A value that only its creating thread can use. Other threads can move the value. If another
/// thread drops the value, it is leaked: its destructor does not run.
pub(crate) struct ThreadBound<T> {
    value: ManuallyDrop<T>,
    thread: usize,
}

// SAFETY: `get` and `drop` touch the value on the thread that made it only.
unsafe impl<T> Send for ThreadBound<T> {}

/// Returns a number that identifies the calling thread among all living threads: the address of a
/// thread-local variable.
fn this_thread() -> usize {
    thread_local! {
        static MARK: u8 = const { 0 };
    }
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

impl<T> ThreadBound<T> {
    pub(crate) fn new(value: T) -> Self {
        ThreadBound { value: ManuallyDrop::new(value), thread: this_thread() }
    }

    pub(crate) fn is_here(&self) -> bool {
        self.thread == this_thread()
    }

    /// # Panics
    /// Panics if another thread created the value.
    pub(crate) fn get(&self) -> &T {
        assert!(self.is_here(), "a queue was used on a thread that does not own it");
        &self.value
    }
}

impl<T> Drop for ThreadBound<T> {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: dropped once, on its own thread.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}
