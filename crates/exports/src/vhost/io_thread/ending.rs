//! The life of an I/O thread: serve, answer requests in flight, flush, free everything in order.
//!
//! Invariant: memory that a drive may still write is leaked with the queue of the request, never
//! unmapped.

use std::sync::atomic::Ordering;
use std::time::Duration;

use millrace_block::Error;
use millrace_machine::{Deadline, Machine, Native};

use super::{IoThread, ROUNDS_MAX};
use crate::io_threads::Service;
use crate::last_flush::LastFlush;
use crate::stop::{FLUSH_NS, Progress, TURN_NS};

impl Service for IoThread {
    type Report = Vec<String>;

    fn fallback_reason(&mut self) -> Option<String> {
        self.ctx.reactor().fallback_reason().map(str::to_owned)
    }

    fn serve(&mut self) -> Result<(), Error> {
        let mut since = 0;
        while !self.common.stop.is_given() {
            self.take_orders();
            let mut rounds = 0;
            while rounds < ROUNDS_MAX && self.round()? {
                rounds += 1;
            }
            since += rounds + 1;
            let busy = rounds == ROUNDS_MAX || self.spin()?;
            if !busy || since >= ROUNDS_MAX {
                since = 0;
                self.look_after();
            }
            if !busy {
                self.sleep(None)?;
            }
        }
        Ok(())
    }

    /// Answers requests in flight until the deadline. The export's last thread flushes.
    fn finish(&mut self, served: Result<(), Error>) -> (Vec<String>, u64) {
        let mut failures = Vec::new();
        let mut limit = self.common.stop.deadline();
        let drained = served.and_then(|()| self.drain(&mut limit));
        // Counts unfinished guest requests now. Later the final flush would be counted, too.
        let left = self.channel.in_flight();
        // The thread whose requests are complete last does the final flush, because the writes of
        // all other threads are then complete, too.
        let is_last = self.common.serving.fetch_sub(1, Ordering::SeqCst) == 1;
        let ended = drained.and_then(|()| match is_last {
            true => self.flush(&mut limit, &mut failures),
            false => Ok(()),
        });
        if let Err(error) = ended {
            failures.push(error.to_string());
        }
        if left > 0 {
            let what = if left == 1 { "guest request was" } else { "guest requests were" };
            failures.push(format!("{left} {what} abandoned: the drives did not answer"));
        }
        self.publish();
        (failures, limit.left_ns())
    }

    fn let_go(self, left_ns: u64) {
        let IoThread { mut channel, ctx, kicks, queues, reactor, .. } = self;
        let leaks = channel.in_flight() > 0;
        channel.set_drain_timeout(Duration::from_nanos(left_ns));
        drop(channel);
        drop(ctx);
        drop(reactor);
        if leaks || kicks.is_busy() {
            std::mem::forget((queues, kicks));
        }
    }
}

impl IoThread {
    fn drain(&mut self, limit: &mut Deadline<Native>) -> Result<(), Error> {
        self.channel.lift_limits();
        // Marks each queue as stopping. A stopping queue sends its base (the index of the ring's
        // next request) to a channel. No control thread needs the base here, so the channel has no
        // receiver. After a restart, the frontend finds the bases in its rings.
        let (nobody, _) = std::sync::mpsc::channel();
        for served in self.queues.iter_mut().flatten() {
            served.queue.stopping.get_or_insert_with(|| nobody.clone());
        }
        // Requests must complete before the final flush. Their deadline is extended while a cache
        // makes progress. Data written after the flush would stay in the cache's memory and be
        // lost, although acknowledged.
        let mut progress = Progress::watched(&self.common.volume);
        loop {
            while self.round()? {}
            let waits = self.queues.iter().flatten().any(|served| !served.queue.is_drained());
            self.look_after();
            if !waits || progress.is_over(limit.left_ns(), 0) {
                return Ok(());
            }
            self.sleep(Some(Native::now() + TURN_NS))?;
        }
    }

    fn flush(
        &mut self,
        limit: &mut Deadline<Native>,
        failures: &mut Vec<String>,
    ) -> Result<(), Error> {
        if self.common.volume.limits().features.read_only {
            return Ok(());
        }
        let mut flush = LastFlush::of(Progress::of(&self.common.volume));
        let outcome = loop {
            if let Some(outcome) = flush.turn(&mut self.channel, limit.left_with_ns(FLUSH_NS)) {
                break outcome;
            }
            let channel = &self.channel;
            self.ctx.turn(Some(Native::now() + TURN_NS), || channel.has_work())?;
        };
        match outcome {
            Ok(()) => self.common.unflushed.end_clean(),
            Err(text) => failures.push(text),
        }
        Ok(())
    }
}
