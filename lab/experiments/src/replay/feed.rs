//! `Feed`: source of the engine's I/Os, one after the other.
//!
//! `ReadAhead` reads the trace on a thread of its own, so that a slow pipe or a slow format does
//! not delay the engine. `Inline` reads in the calling thread, for simulated machines, where
//! reading takes no virtual time. At most `AHEAD` I/Os are read in advance. If the engine stops
//! early it does not wait for the reading thread, which may sleep in a read from a pipe without a
//! writer.

use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::route::{Item, Router};
use crate::load::bench::BenchError;
use crate::trace::TraceSource;

const AHEAD: usize = 8_192;

#[derive(Debug)]
pub(crate) enum FeedItem {
    Item(Item),
    /// No I/O is available now, but the trace has not ended.
    Later,
    End,
}

pub(crate) trait Feed {
    /// Returns the next I/O without waiting. After an error the feed has no more I/Os.
    fn next(&mut self) -> Result<FeedItem, BenchError>;

    /// Waits until a further I/O may be available, but no longer than `most`.
    fn wait(&mut self, most: Duration);
}

pub(crate) struct Inline<S>(pub(crate) Router<S>);

impl<S: TraceSource> Feed for Inline<S> {
    fn next(&mut self) -> Result<FeedItem, BenchError> {
        Ok(self.0.next()?.map_or(FeedItem::End, FeedItem::Item))
    }

    fn wait(&mut self, _most: Duration) {}
}

pub(crate) struct ReadAhead {
    items: Receiver<Result<Item, BenchError>>,
    first: Option<Result<Item, BenchError>>,
    thread: Option<JoinHandle<()>>,
}

impl ReadAhead {
    pub(crate) fn start<S>(mut router: Router<S>) -> Result<ReadAhead, BenchError>
    where
        S: TraceSource + Send + 'static,
    {
        let (sender, items) = sync_channel(AHEAD);
        let read = move || {
            while let Some(next) = router.next().transpose() {
                let is_last = next.is_err();
                // `send` fails if the engine has stopped and dropped the receiver.
                if sender.send(next).is_err() || is_last {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("trace-reader".to_owned()).spawn(read);
        let thread = thread.map_err(|error| BenchError::Trace {
            text: format!("cannot start the thread that reads the trace: {error}"),
        })?;
        Ok(ReadAhead { items, first: None, thread: Some(thread) })
    }

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
                // Ignore a disconnect: the next call of `next` notices it and reports the end of
                // the trace.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
    }
}
