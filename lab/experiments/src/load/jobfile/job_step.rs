//! Next step of a job: an I/O, a flush, a pause, a wait, or the job's end.
//!
//! This file implements a part of `Worker`: drawing I/Os from the job's source, rate limits, and
//! the count of loops. The order of the checks is fio's: the end of the job, a pause that is due, a
//! flush that is due, and then the next I/O.

use millrace_machine::{Machine, Native};

use super::depth_search::DepthSearch;
use super::flow::FlowMember;
use super::io_slots::FlushAccounting;
use super::page_cache::CachedRange;
use super::source::{Io, READ, WRITE};
use super::worker::Worker;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobStep {
    Io(Io),
    Flush(FlushAccounting),
    /// Wait until this time in nanoseconds, or until an I/O completes if the time is 0.
    Wait(u64),
    End,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Progress {
    /// Number of bytes issued in the present loop. `ios` and `writes` include earlier loops.
    pub(super) bytes: u64,
    pub(super) ios: u64,
    pub(super) writes: u64,
    pub(super) loops: u64,
    pub(super) last_was_flush: bool,
    pub(super) has_drawn_all: bool,
    pub(super) thought_at: u64,
    pub(super) thinks_until_ns: Option<u64>,
}

impl Worker<'_> {
    pub(super) fn next(&mut self, now_ns: u64) -> JobStep {
        let job = self.setting.job;
        let is_over = now_ns >= self.clock.end_ns
            || self.tally.errno != 0
            || self.setting.interrupt.is_set()
            || job.region.number_ios.is_some_and(|most| self.at.ios >= most)
            || self.search.as_ref().is_some_and(DepthSearch::is_over);
        if is_over {
            return JobStep::End;
        }
        if let Some(wait_ns) = self.flow.as_ref().and_then(FlowMember::wait_ns) {
            return JobStep::Wait(now_ns + wait_ns);
        }
        if job.flow.think.time_ns > 0
            && let Some(next) = self.think(now_ns)
        {
            return next;
        }
        let writes = self.at.writes;
        let due = |every: u64| every > 0 && writes.is_multiple_of(every);
        let may_flush = self.at.writes > 0 && !self.at.last_was_flush;
        if self.held[0].is_none() && !self.draw() {
            return JobStep::End;
        }
        if may_flush && (due(job.flow.fsync) || due(job.flow.fdatasync)) {
            let counted =
                if due(job.flow.fsync) { FlushAccounting::Yes } else { FlushAccounting::No };
            return JobStep::Flush(counted);
        }
        let io = self.held[0].expect("the I/O was drawn above");
        let due_ns = self.pace.due_ns(io.direction);
        if due_ns > now_ns {
            return self.other_way(io.direction, due_ns, now_ns);
        }
        if let Some(written) = self.written.as_ref().filter(|_| io.direction == WRITE)
            && written.is_in_flight(io.offset)
        {
            return JobStep::Wait(0);
        }
        JobStep::Io(io)
    }

    fn think(&mut self, now_ns: u64) -> Option<JobStep> {
        let think = self.setting.job.flow.think;
        if let Some(until_ns) = self.at.thinks_until_ns {
            if now_ns < until_ns {
                return Some(JobStep::Wait(until_ns));
            }
            self.at.thinks_until_ns = None;
            self.at.thought_at = self.at.ios;
            return None;
        }
        if self.at.ios - self.at.thought_at < think.blocks {
            return None;
        }
        // As in fio, the pause begins after `thinktime_blocks` I/Os, when all of them have
        // completed.
        if self.channel.in_flight() > 0 {
            return Some(JobStep::Wait(0));
        }
        let spin_ns = now_ns + think.spin_ns.min(think.time_ns);
        while Native::now() < spin_ns && !self.setting.interrupt.is_set() {
            std::hint::spin_loop();
        }
        let until_ns = now_ns.saturating_add(think.time_ns);
        self.at.thinks_until_ns = Some(until_ns);
        Some(JobStep::Wait(until_ns))
    }

    fn draw(&mut self) -> bool {
        let (span, job) = (self.setting.span, self.setting.job);
        if self.at.has_drawn_all {
            return false;
        }
        // Take the next I/O from the current pass through the region, or else from a new pass. If a
        // new pass has no I/O either, the job ends.
        for _ in 0..2 {
            if self.at.bytes < span.io_size || job.span.time_based {
                let direction = self.source.direction();
                self.held[0] = self.source.next(direction);
                if self.held[0].is_some() {
                    return true;
                }
            }
            let left = span.io_size.saturating_sub(self.at.bytes);
            let goes_on = job.region.io_size.is_some() && left >= self.source.least().into();
            if !goes_on && !job.span.time_based {
                self.at.loops += 1;
                if self.at.loops >= job.span.loops {
                    self.at.has_drawn_all = true;
                    return false;
                }
                self.at.bytes = 0;
            }
            self.source.restart();
            self.setting.cached.iter().for_each(CachedRange::forget);
        }
        self.at.has_drawn_all = true;
        false
    }

    /// Returns the next step if the rate limit delays the next I/O, which has the direction
    /// `drawn`. As in fio, a job that reads and writes then does an I/O in the opposite direction.
    /// If the rate limit also delays the opposite direction, the job waits.
    fn other_way(&mut self, drawn: usize, due_ns: u64, now_ns: u64) -> JobStep {
        let other = match drawn {
            READ => WRITE,
            WRITE => READ,
            _ => return JobStep::Wait(due_ns),
        };
        if !self.setting.job.kind.has[other] {
            return JobStep::Wait(due_ns);
        }
        let other_ns = self.pace.due_ns(other);
        if other_ns > now_ns {
            return JobStep::Wait(due_ns.min(other_ns));
        }
        if self.held[1].is_none() && self.at.bytes < self.setting.span.io_size {
            self.held[1] = self.source.next(other);
        }
        let held = self.held[1].filter(|io| io.direction == other);
        held.map_or(JobStep::Wait(due_ns), JobStep::Io)
    }
}
