//! `Feed`: where the engine gets its I/Os from, one after the other.
//!
//! `ReadAhead` has a thread of its own read ahead, so that a slow pipe or a format that takes time
//! does not hold what is in flight; `Inline` reads where it is asked, for simulated time, in which
//! reading takes none. At most `AHEAD` I/Os wait, however long the trace is. The reading thread is
//! left behind when the engine stops early: it may be asleep in a pipe that nobody writes.

use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::route::{Item, Router};
use crate::load::bench::BenchError;
use crate::trace::TraceSource;

/// I/Os that are read before they are needed.
const AHEAD: usize = 8_192;

/// Answer of a feed that is asked for the next I/O.
#[derive(Debug)]
pub(crate) enum FeedItem {
    /// The next I/O.
    Item(Item),
    /// No I/O yet; more are being read.
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

/// Has a thread read ahead.
pub(crate) struct ReadAhead {
    items: Receiver<Result<Item, BenchError>>,
    /// Taken while waiting.
    first: Option<Result<Item, BenchError>>,
    /// Until its end was told.
    thread: Option<JoinHandle<()>>,
}

impl ReadAhead {
    /// Starts to read.
    ///
    /// # Errors
    /// If the system has no thread for it.
    pub(crate) fn start<S>(mut router: Router<S>) -> Result<ReadAhead, BenchError>
    where
        S: TraceSource + Send + 'static,
    {
        let (sender, items) = sync_channel(AHEAD);
        let read = move || {
            while let Some(next) = router.next().transpose() {
                let is_last = next.is_err();
                // Nobody takes any more if the engine has stopped.
                if sender.send(next).is_err() || is_last {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("trace-reader".to_owned()).spawn(read);
        let thread = thread.map_err(|error| BenchError::Trace {
            text: format!("no thread to read it: {error}"),
        })?;
        Ok(ReadAhead { items, first: None, thread: Some(thread) })
    }

    /// The trace has ended, or whatever read it has panicked.
    fn end(&mut self) -> Result<FeedItem, BenchError> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(_)) => Err(BenchError::Panicked),
            _ => Ok(FeedItem::End),
        }
    }
}

impl Feed for ReadAhead {
    fn next(&mut self) -> Result<FeedItem, BenchError> {
        match self.first.take().map_or_else(|| self.items.try_recv(), Ok) {
            Ok(item) => Ok(FeedItem::Item(item?)),
            Err(TryRecvError::Empty) => Ok(FeedItem::Later),
            Err(TryRecvError::Disconnected) => self.end(),
        }
    }

    fn wait(&mut self, most: Duration) {
        if self.first.is_none() {
            match self.items.recv_timeout(most) {
                Ok(item) => self.first = Some(item),
                // The end is told by the next call.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
    }
}
