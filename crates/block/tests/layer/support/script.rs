//! A drive that follows a script and logs every call.
//!
//! The drive stores no data: tests look at which requests come, in which order, in which batches,
//! and at what the layer makes of the answers. Every queue checks the rules of `DriverQueue`: a tag
//! names one request at a time, what was refused comes first, all that was handed over is committed
//! before the queue is polled, and no commit is empty.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard};

use millrace_block::{
    CompletionBatch, Dispatch, Driver, DriverData, DriverQueue, Error, ErrorKind, Expired,
    HwQueues, Moment, Op, QueueKind, QueueLimits, Request, Sector, Status, Tag, TagScope,
};
use millrace_machine::{Doorbell, Native, NativeParker, Topology};

use super::{Given, TestDrive};

/// A call of a queue of the drive, or its outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// Took a request.
    Took(Given),
    /// Refused a request as busy.
    Refused(Given),
    /// Committed this many requests that it had taken before.
    Committed(u32),
    /// Reported a request as completed.
    Named(Given, Status),
    /// A request timed out.
    TimedOut(Given),
}

/// A request that a queue has in flight.
#[derive(Debug, Clone, Copy)]
pub struct Inside {
    pub queue: u16,
    pub tag: Tag,
    pub given: Given,
    /// The request timed out and was abandoned: the layer expects no completion.
    pub given_up: bool,
}

/// Behaviour of the drive, set by tests, and the log of its calls.
#[derive(Default)]
pub struct Script {
    /// Answers to the next requests offered, in order, before any is taken.
    pub refusals: VecDeque<Dispatch>,
    /// Number of requests that the drive may still complete.
    pub answers: usize,
    /// Completes the request first that was taken last.
    pub backwards: bool,
    /// Statuses of the next completions; later ones succeed.
    pub statuses: VecDeque<Status>,
    /// Time for which each poll asks to be called again.
    pub wake_ns: Option<u64>,
    /// Answer to a timeout; `None` abandons the request.
    pub expired: Option<Expired>,
    /// Queues that cannot be opened.
    pub closed: Vec<u16>,
    /// Index and tag count of each queue that was opened.
    pub opened: Vec<(u16, u32)>,
    /// Requests in flight.
    pub inside: Vec<Inside>,
    /// The request that each queue refused last, until it is offered again.
    pub refused: Vec<(u16, Given)>,
    pub log: Vec<Asked>,
}

/// The drive's side of a [`Script`].
#[derive(Clone)]
pub struct ScriptDrive {
    pub script: Arc<Mutex<Script>>,
    pub hw: HwQueues,
    pub limits: QueueLimits,
}

impl Script {
    /// Requests with data that the drive has in a queue.
    pub fn data_in(&self, queue: u16) -> usize {
        self.inside.iter().filter(|one| one.queue == queue && one.given.op != Op::Flush).count()
    }
}

impl ScriptDrive {
    pub const SECTORS: Sector = 1 << 24;

    pub fn new(queues: u16, depth: u32) -> ScriptDrive {
        let (kind, tags) = (QueueKind::AnyThread, TagScope::PerQueue);
        let hw = HwQueues { count: queues, depth, kind, tags };
        ScriptDrive { script: Arc::default(), hw, limits: TestDrive::new(8).limits }
    }

    pub fn lock(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap()
    }
}

impl Driver<Native> for ScriptDrive {
    fn capacity(&self) -> Sector {
        Self::SECTORS
    }
    fn limits(&self) -> QueueLimits {
        self.limits
    }
    fn hw_queues(&self, _: &Topology) -> HwQueues {
        self.hw
    }
    fn open_queue(&self, index: u16, tags: u32) -> Result<Box<dyn DriverQueue<Native>>, Error> {
        let mut script = self.lock();
        if script.closed.contains(&index) {
            return Err(Error::new(ErrorKind::System, format!("queue {index} is closed")));
        }
        script.opened.push((index, tags));
        Ok(Box::new(ScriptQueue { drive: self.clone(), index, tags, fresh: 0 }))
    }
}

struct ScriptQueue {
    drive: ScriptDrive,
    index: u16,
    tags: u32,
    /// Number of requests taken and not committed yet.
    fresh: u32,
}

impl DriverQueue<Native> for ScriptQueue {
    fn queue_rq(&mut self, rq: &Request<Native>) -> Dispatch {
        let mut script = self.drive.script.lock().unwrap();
        let given = Given {
            op: rq.op(),
            sector: rq.sector(),
            nr_sectors: rq.nr_sectors(),
            flags: rq.flags(),
        };
        let (queue, tag) = (self.index, rq.tag());
        assert!(tag.0 < self.tags, "{tag:?} of {}", self.tags);
        let has = |one: &Inside| one.queue == queue && one.tag == tag;
        assert!(!script.inside.iter().any(has), "{tag:?} names two requests");
        let is_flush = |one: &&Inside| one.given.op == Op::Flush && !one.given_up;
        let flushes = script.inside.iter().filter(is_flush).count();
        assert!(given.op != Op::Flush || flushes == 0, "a flush while another is in flight");
        let last = script.refused.iter().position(|(refused, _)| *refused == queue);
        if let Some(last) = last.map(|last| script.refused.swap_remove(last)) {
            assert_eq!(last.1, given, "what was refused goes first");
        }
        if let Some(refusal) = script.refusals.pop_front() {
            script.refused.push((queue, given));
            script.log.push(Asked::Refused(given));
            return refusal;
        }
        script.inside.push(Inside { queue, tag, given, given_up: false });
        script.log.push(Asked::Took(given));
        self.fresh += 1;
        Dispatch::Queued
    }
    fn has_trace_data(&self) -> bool {
        false
    }
    fn trace_data(&self, _: Tag, _: Moment) -> DriverData {
        panic!("it is not worth asking")
    }
    fn is_bounced(&self, _: Tag) -> bool {
        panic!("it is not worth asking")
    }
    fn commit_rqs(&mut self) {
        assert!(self.fresh > 0, "nothing to start");
        self.drive.lock().log.push(Asked::Committed(self.fresh));
        self.fresh = 0;
    }
    fn poll(&mut self, batch: &mut CompletionBatch) {
        assert_eq!(self.fresh, 0, "polled for what was not started");
        let mut script = self.drive.script.lock().unwrap();
        if let Some(wake_ns) = script.wake_ns {
            batch.wake_at(wake_ns);
        }
        while script.answers > 0 && !batch.is_full() {
            let mine = |one: &Inside| one.queue == self.index;
            let next = match script.backwards {
                false => script.inside.iter().position(mine),
                true => script.inside.iter().rposition(mine),
            };
            let Some(next) = next else { return };
            let Inside { tag, given, .. } = script.inside.remove(next);
            let status = script.statuses.pop_front().unwrap_or(Status::Ok);
            script.answers -= 1;
            script.log.push(Asked::Named(given, status));
            batch.push(tag, status);
        }
    }
    fn timeout(&mut self, tag: Tag) -> Expired {
        let mut script = self.drive.script.lock().unwrap();
        let expired = script.expired.unwrap_or(Expired::Abandon);
        let has = |one: &&mut Inside| one.queue == self.index && one.tag == tag;
        let one = script.inside.iter_mut().find(has).expect("the drive has it");
        one.given_up = expired == Expired::Abandon;
        let given = one.given;
        script.log.push(Asked::TimedOut(given));
        expired
    }
}

/// A bell whose ringing can be heard.
pub struct HeardBell {
    pub bell: Arc<Doorbell<Native>>,
    end: UnixStream,
}

impl HeardBell {
    pub fn new() -> HeardBell {
        let (end, other) = UnixStream::pair().unwrap();
        end.set_nonblocking(true).unwrap();
        let parker = NativeParker::from_eventfd(Arc::new(other.into()));
        HeardBell { bell: Arc::new(Doorbell::new(parker)), end }
    }

    /// Returns true if the bell wakes its sleeping owner while `f` runs.
    pub fn rings(&mut self, f: impl FnOnce()) -> bool {
        self.bell.arm();
        f();
        self.bell.disarm();
        self.heard()
    }

    /// Returns true if the bell rang for its sleeping owner. The owner sleeps on until `wake`.
    pub fn heard(&mut self) -> bool {
        self.end.read(&mut [0; 64]).is_ok()
    }

    /// Wakes a thread that sleeps on the bell.
    pub fn wake(&mut self) {
        self.end.write_all(&1u64.to_ne_bytes()).unwrap();
    }
}

/// State of the turns of a thread, between `answer_after` and `turns_taken`.
struct Ring {
    drive: ScriptDrive,
    /// Turns until the drive answers.
    left: usize,
    /// For each turn: did it find no work, so that it would sleep?
    sleeps: Vec<bool>,
}

thread_local! {
    static RING: RefCell<Option<Ring>> = const { RefCell::new(None) };
}

/// Lets a drive complete everything with the last of the next `turns` turns of this thread.
pub fn answer_after(drive: &ScriptDrive, turns: usize) {
    RING.set(Some(Ring { drive: drive.clone(), left: turns, sleeps: Vec::new() }));
}

/// For each turn since `answer_after`: did it find no work, so that it would sleep?
pub fn turns_taken() -> Vec<bool> {
    RING.take().expect("a drive answers in turns").sleeps
}

/// A turn of an I/O thread, for `IoThread::turn`.
pub fn turn(
    _: &Doorbell<Native>,
    _: Option<u64>,
    has_work: &dyn Fn() -> bool,
) -> Result<(), Error> {
    RING.with_borrow_mut(|ring| {
        let ring = ring.as_mut().expect("a drive answers in turns");
        ring.sleeps.push(!has_work());
        ring.left = ring.left.saturating_sub(1);
        ring.drive.lock().answers = if ring.left == 0 { usize::MAX } else { 0 };
    });
    Ok(())
}
