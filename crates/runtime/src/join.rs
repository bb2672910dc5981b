//! `join_within`: waits for native threads to end, for a limited time.
//!
//! A thread never ends if its file operation hangs in the kernel (a dead NFS server, a stopped FUSE
//! daemon): the kernel waits for the operation when the thread exits.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use millrace_machine::{Machine, Native, Thread};

/// Thread of the operating system, as opposed to a simulated thread.
pub type NativeThread = <Native as Machine>::Thread;

/// Result of waiting for threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JoinOutcome {
    /// All threads have ended.
    Ended,
    /// All threads have ended, at least one of them by a panic.
    Panicked,
    /// Some threads are still running and are abandoned.
    Running,
}

impl JoinOutcome {
    /// Returns `Ok` if all threads ended without a panic.
    ///
    /// # Errors
    /// Returns a text that describes the failure to the user.
    pub fn in_words(self) -> Result<(), String> {
        match self {
            JoinOutcome::Ended => Ok(()),
            JoinOutcome::Panicked => Err("an I/O thread panicked".to_owned()),
            JoinOutcome::Running => Err("a drive does not complete its I/O, so an I/O thread was \
                                         abandoned; check the drive"
                .to_owned()),
        }
    }
}

/// Waits until the threads have ended, for `limit` at most.
pub fn join_within(threads: Vec<NativeThread>, limit: Duration) -> JoinOutcome {
    let (tell, told) = channel();
    let join = move || {
        // Ignores failure: nobody receives the message after `join_within` has waited for `limit`.
        let _ = tell.send(threads.into_iter().fold(true, |whole, thread| thread.join() & whole));
    };
    // If the thread cannot be started, the closure and the handles in it are dropped. Threads that
    // nobody joins still end.
    let made = std::thread::Builder::new().name("millrace-join".into()).spawn(join);
    match (made, told.recv_timeout(limit)) {
        (Err(_), _) | (Ok(_), Ok(true)) => JoinOutcome::Ended,
        (Ok(_), Err(RecvTimeoutError::Timeout)) => JoinOutcome::Running,
        (Ok(_), Ok(false) | Err(RecvTimeoutError::Disconnected)) => JoinOutcome::Panicked,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_threads_are_joined_and_a_hung_one_is_left() {
        let spawn = |body: Box<dyn FnOnce() + Send>| Native::spawn("t", None, body);
        let limit = Duration::from_secs(20);
        assert_eq!(join_within(Vec::new(), limit), JoinOutcome::Ended);
        assert_eq!(join_within([spawn(Box::new(|| ()))].into(), limit), JoinOutcome::Ended);
        let panics = spawn(Box::new(|| panic!("as is expected")));
        assert_eq!(join_within([panics].into(), limit), JoinOutcome::Panicked);
        let (hold, held) = channel::<()>();
        let hangs = spawn(Box::new(move || {
            let _ = held.recv();
        }));
        assert_eq!(join_within([hangs].into(), Duration::from_millis(20)), JoinOutcome::Running);
        drop(hold);
    }
}
