//! `OutputQueue`: a daemon's standard output or standard error, written by a thread of its own.
//!
//! A write to a pipe that nobody reads, to a stopped terminal or to a log file on a hung file
//! system blocks. So the threads that serve or stop a daemon only add to a bounded queue, and one
//! thread for each output writes. Bytes that find the queue full are dropped and counted, and the
//! count is logged once the output can be written again. Invariant: the lock of a queue is never
//! held during a write.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use millrace_machine::{Native, lock_unpoisoned};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, write};

use crate::name;

const BYTES_MAX: usize = 1 << 20;
/// Limits of the wait for an empty queue at the end of the process. The first limit is the time
/// without a finished write to the output. The second is the total time.
const FINISH: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(5)];

static OUT: OnceLock<&OutputQueue> = OnceLock::new();
static LOG: OnceLock<&OutputQueue> = OnceLock::new();

/// Bytes that wait to be written, and the progress of the thread that writes them.
#[derive(Debug)]
pub struct OutputQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    waiting: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Number of calls of `add` whose bytes were dropped because the queue was full, since the last
    /// log line about this.
    dropped: u64,
    writes: u64,
}

/// Returns the queue of standard output; `None` before a call of [`start`].
pub fn out() -> Option<&'static OutputQueue> {
    OUT.get().copied()
}

/// Returns the queue of standard error; `None` before a call of [`start`].
pub fn log() -> Option<&'static OutputQueue> {
    LOG.get().copied()
}

/// Sends standard output and standard error through queues from now on, including panic messages.
/// Calls `failed` with each error of standard output.
pub fn start(failed: fn(io::Error)) -> io::Result<()> {
    // An error of the log itself cannot be reported anywhere.
    let to_log = |bytes: &[u8]| write_all(&io::stderr(), bytes).unwrap_or(());
    spawn("millrace-log", &LOG, "the log", to_log)?;
    let to_out = move |bytes: &[u8]| write_all(&io::stdout(), bytes).unwrap_or_else(failed);
    spawn("millrace-out", &OUT, "standard output", to_out)?;
    std::panic::set_hook(Box::new(|panic| {
        let thread = thread::current();
        let backtrace = std::backtrace::Backtrace::capture();
        let backtrace = match backtrace.status() {
            std::backtrace::BacktraceStatus::Captured => backtrace.to_string(),
            _ => "set RUST_BACKTRACE=1 to see a backtrace\n".to_owned(),
        };
        let name = thread.name().unwrap_or("without a name");
        if let Some(log) = log() {
            let program = name::name();
            log.add(format!("{program}: thread {name} {panic}\n{backtrace}").into_bytes());
        }
        // A release build aborts the process as soon as the panic hook returns, so the queues are
        // emptied first.
        finish();
    }));
    Ok(())
}

/// Waits a limited time until both queues are empty. Called at the end of the process.
pub fn finish() {
    [out(), log()].into_iter().flatten().for_each(|queue| queue.finish(FINISH));
}

fn spawn(
    name: &str,
    place: &OnceLock<&'static OutputQueue>,
    what: &'static str,
    write: impl FnMut(&[u8]) + Send + 'static,
) -> io::Result<()> {
    // The queue is leaked on purpose, because its thread uses it as long as the process lives.
    let queue: &'static OutputQueue = Box::leak(Box::new(OutputQueue::new()));
    Native::try_spawn(name, None, move || queue.run(write, what))?;
    // The queue is published only after its thread has started: without the thread, nothing would
    // empty the queue.
    place.get_or_init(|| queue);
    Ok(())
}

impl OutputQueue {
    fn new() -> OutputQueue {
        OutputQueue { state: Mutex::default(), changed: Condvar::new() }
    }

    /// Adds bytes, or drops them if the queue is full. Never blocks.
    pub fn add(&self, bytes: Vec<u8>) {
        let mut state = self.lock();
        if state.bytes > 0 && state.bytes + bytes.len() > BYTES_MAX {
            state.dropped += 1;
            return;
        }
        state.bytes += bytes.len();
        state.waiting.push_back(bytes);
        self.changed.notify_all();
    }

    fn run(&self, mut write: impl FnMut(&[u8]), what: &str) {
        loop {
            let mut state = self.lock();
            while state.waiting.is_empty() {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let bytes = state.waiting.pop_front().unwrap_or_default();
            drop(state);
            write(&bytes);
            let mut state = self.lock();
            state.bytes -= bytes.len();
            state.writes += 1;
            let dropped = std::mem::take(&mut state.dropped);
            self.changed.notify_all();
            drop(state);
            if dropped > 0 {
                tracing::warn!(
                    "{what}: {dropped} lines were dropped, because the reader was too slow"
                );
            }
        }
    }

    /// Waits until the queue is empty. Gives up after `silence` without a finished write, or after
    /// `longest` in total.
    fn finish(&self, [silence, longest]: [Duration; 2]) {
        let end = Instant::now() + longest;
        let mut state = self.lock();
        while state.bytes > 0 {
            let writes = state.writes;
            let is_still = |state: &mut QueueState| state.bytes > 0 && state.writes == writes;
            let waited = self.changed.wait_timeout_while(state, silence, is_still);
            let (now, time) = waited.unwrap_or_else(PoisonError::into_inner);
            if time.timed_out() || Instant::now() > end {
                return;
            }
            state = now;
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        lock_unpoisoned(&self.state)
    }
}

/// Writes directly to the descriptor, because a thread that is blocked in a write may hold the lock
/// of the standard library's buffer.
fn write_all(fd: &impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match write(fd, bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR) => {}
            // Another program on the same terminal may have set the descriptor to non-blocking.
            Err(Errno::AGAIN) => {
                poll(&mut [PollFd::new(fd, PollFlags::OUT)], None).map_err(io::Error::from)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use super::*;

    const SHORT: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(20)];

    #[test]
    fn nobody_waits_for_a_reader_but_its_own_end() {
        let queue = Arc::new(OutputQueue::new());
        let (go_on, wait) = channel::<()>();
        let (theirs, written) = (Arc::clone(&queue), Arc::new(Mutex::new(Vec::new())));
        let sink = Arc::clone(&written);
        let write = move |bytes: &[u8]| {
            let _ = wait.recv();
            sink.lock().unwrap().push(bytes.len());
        };
        thread::spawn(move || theirs.run(write, "the log"));
        let line = vec![b'x'; BYTES_MAX / 4];
        let start = Instant::now();
        (0..10).for_each(|_| queue.add(line.clone()));
        queue.finish(SHORT);
        assert!(start.elapsed() < Duration::from_secs(5), "nobody reads");
        let (dropped, bytes) = {
            let state = queue.lock();
            (state.dropped, state.bytes)
        };
        assert_eq!((dropped, bytes), (6, BYTES_MAX));
        drop(go_on);
        queue.finish(SHORT);
        assert_eq!((written.lock().unwrap().len(), queue.lock().bytes), (4, 0));
        queue.add(vec![0; 2 * BYTES_MAX]);
        queue.finish(SHORT);
        assert_eq!(written.lock().unwrap().last(), Some(&(2 * BYTES_MAX)), "one in any case");
    }
}
