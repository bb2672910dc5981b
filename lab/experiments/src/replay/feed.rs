//! `Feed`: where the engine gets its I/Os from, one after the other.
//!
//! `ReadAhead` has a thread of its own read ahead, so that a slow pipe or a format that takes time
//! does not hold what is in flight; `Inline` reads where it is asked, for simulated time, in which
//! reading takes none. At most `AHEAD` I/Os wait, however long the trace is. The reading thread is
//! left behind when the engine stops early: it may be asleep in a pipe that nobody writes. One
//! lock, of the queue; nothing is called with it held.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::route::{Item, Router};
use crate::load::bench::BenchError;
use crate::trace::TraceSource;

/// I/Os that are read before they are needed.
const AHEAD: usize = 8_192;

/// What a feed has.
#[derive(Debug)]
pub(crate) enum FeedItem {
    /// The next I/O.
    Item(Item),
    /// None yet: more is being read.
    Later,
    /// No more.
    End,
}

/// Where I/Os come from.
pub(crate) trait Feed {
    /// The next one, without waiting.
    ///
    /// # Errors
    /// As [`Router::next`]; then there is no more.
    fn next(&mut self) -> Result<FeedItem, BenchError>;

    /// Waits until there may be one, for so long at most.
    fn wait(&mut self, most: Duration);
}

/// Reads when asked.
pub(crate) struct Inline<S>(pub(crate) Router<S>);

impl<S: TraceSource> Feed for Inline<S> {
    fn next(&mut self) -> Result<FeedItem, BenchError> {
        Ok(self.0.next()?.map_or(FeedItem::End, FeedItem::Item))
    }

    fn wait(&mut self, _most: Duration) {}
}

/// What both threads see.
#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    end: Option<Result<(), BenchError>>,
    /// Nobody takes any more.
    is_left: bool,
}

#[derive(Default)]
struct ReadAheadState {
    queue: Mutex<Queue>,
    filled: Condvar,
    taken: Condvar,
}

impl ReadAheadState {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reading thread's loop.
    fn fill<S: TraceSource>(&self, mut router: Router<S>) {
        loop {
            let next = router.next();
            let mut queue = self.lock();
            while queue.items.len() >= AHEAD && !queue.is_left {
                queue = self.taken.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            if queue.is_left {
                return;
            }
            let was_empty = queue.items.is_empty();
            match next {
                Ok(Some(item)) => queue.items.push_back(item),
                Ok(None) => queue.end = Some(Ok(())),
                Err(error) => queue.end = Some(Err(error)),
            }
            let has_ended = queue.end.is_some();
            drop(queue);
            if was_empty || has_ended {
                self.filled.notify_one();
            }
            if has_ended {
                return;
            }
        }
    }
}

/// Has a thread read ahead.
pub(crate) struct ReadAhead {
    shared: Arc<ReadAheadState>,
    /// Taken out of the queue at once, so that the lock is taken once for many.
    taken: VecDeque<Item>,
}

impl ReadAhead {
    /// Starts to read.
    ///
    /// # Errors
    /// If the system has no thread for it.
    pub(crate) fn start<S>(router: Router<S>) -> Result<ReadAhead, BenchError>
    where
        S: TraceSource + Send + 'static,
    {
        let shared = Arc::new(ReadAheadState::default());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("trace-reader".to_owned());
        thread
            .spawn(move || {
                let filled = catch_unwind(AssertUnwindSafe(|| theirs.fill(router)));
                if filled.is_err() {
                    theirs.lock().end = Some(Err(BenchError::Panicked));
                    theirs.filled.notify_one();
                }
            })
            .map_err(|error| BenchError::Trace {
                text: format!("no thread to read it: {error}"),
            })?;
        Ok(ReadAhead { shared, taken: VecDeque::new() })
    }
}

impl Feed for ReadAhead {
    fn next(&mut self) -> Result<FeedItem, BenchError> {
        if let Some(item) = self.taken.pop_front() {
            return Ok(FeedItem::Item(item));
        }
        let mut queue = self.shared.lock();
        std::mem::swap(&mut self.taken, &mut queue.items);
        if let Some(item) = self.taken.pop_front() {
            drop(queue);
            self.shared.taken.notify_one();
            return Ok(FeedItem::Item(item));
        }
        match queue.end.take() {
            None => Ok(FeedItem::Later),
            Some(Ok(())) => {
                queue.end = Some(Ok(()));
                Ok(FeedItem::End)
            }
            Some(Err(error)) => {
                queue.end = Some(Ok(()));
                Err(error)
            }
        }
    }

    fn wait(&mut self, most: Duration) {
        let queue = self.shared.lock();
        if queue.items.is_empty() && queue.end.is_none() {
            // Whatever ends the wait: the caller asks again.
            drop(self.shared.filled.wait_timeout(queue, most));
        }
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.shared.lock().is_left = true;
        self.shared.taken.notify_one();
    }
}
