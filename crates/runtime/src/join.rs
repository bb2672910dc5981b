//! `join_within`: waits for threads of this machine, but not for ever.
//!
//! A thread whose file operation hangs in the kernel (a dead NFS, a stopped FUSE) never ends,
//! though its own code has returned: the kernel waits for the operation while it takes the thread
//! down. Called where servers, workers and flushers stop.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use millrace_machine::{Machine, Native, Thread};

/// A thread of this machine.
pub type NativeThread = <Native as Machine>::Thread;

/// How threads ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joined {
    /// All of them have.
    Ended,
    /// All of them have, at least one by a panic.
    Panicked,
    /// Some go on: they are left behind.
    Running,
}

impl Joined {
    /// Nothing if all threads have ended as they should.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub fn in_words(self) -> Result<(), String> {
        match self {
            Joined::Ended => Ok(()),
            Joined::Panicked => Err("an I/O thread panicked".to_owned()),
            Joined::Running => {
                Err("an I/O thread waits for a drive that hangs, and is left behind".to_owned())
            }
        }
    }
}

/// Waits for the end of threads, for `limit` at most.
pub fn join_within(threads: Vec<NativeThread>, limit: Duration) -> Joined {
    let (tell, told) = channel();
    let join = move || {
        // Nobody listens any more if it took too long.
        let _ = tell.send(threads.into_iter().fold(true, |whole, thread| thread.join() & whole));
    };
    // The closure is lost with a thread that cannot be made, and the handles with it: threads that
    // nobody joins end all the same.
    let made = std::thread::Builder::new().name("millrace-join".into()).spawn(join);
    match (made, told.recv_timeout(limit)) {
        (Ok(_), Ok(true)) => Joined::Ended,
        (Ok(_), Ok(false)) => Joined::Panicked,
        (Ok(_), Err(RecvTimeoutError::Timeout)) => Joined::Running,
        (Ok(_), Err(RecvTimeoutError::Disconnected)) => Joined::Panicked,
        (Err(_), _) => Joined::Ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_end_are_joined_and_one_that_hangs_is_left_behind() {
        let spawn = |body: Box<dyn FnOnce() + Send>| Native::spawn("t", None, body);
        let limit = Duration::from_secs(20);
        assert_eq!(join_within(Vec::new(), limit), Joined::Ended);
        assert_eq!(join_within([spawn(Box::new(|| ()))].into(), limit), Joined::Ended);
        let panics = spawn(Box::new(|| panic!("as is expected")));
        assert_eq!(join_within([panics].into(), limit), Joined::Panicked);
        let (hold, held) = channel::<()>();
        let hangs = spawn(Box::new(move || {
            let _ = held.recv();
        }));
        assert_eq!(join_within([hangs].into(), Duration::from_millis(20)), Joined::Running);
        drop(hold);
    }
}
