//! `null`: completes requests at once or after a fixed time; keeps no data.
//!
//! A null drive measures the block layer alone, as in Bjorling et al., SYSTOR 2013. With `delay`, a
//! request completes that long after it was queued, as on a device with this latency and no limit
//! except its tags. Kernel counterpart: drivers/block/null_blk.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::time::Duration;

use millrace_block::{
    CompletionBatch, Dispatch, Driver, DriverQueue, Error, Expired, Extent, Features, HwQueues,
    QueueKind, QueueLimits, Request, Sector, Status, Tag, TagScope,
};
use millrace_machine::{Machine, Topology, nanoseconds};

use crate::open::{DriveSettings, DriverRow, OpenOptions, Opened};
use crate::spec::{Spec, SpecError};

pub(crate) const ROW: DriverRow = DriverRow {
    name: "null",
    keys: "size delay queues depth block",
    main_key: None,
    path_keys: "",
    queues: QueueKind::AnyThread,
    settings: |spec| Ok(Box::new(settings_of(spec)?)),
};

/// A drive that keeps no data.
#[derive(Debug, Clone)]
pub struct NullDriver {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Time from dispatch to completion; zero completes at once.
    pub delay: Duration,
    /// Maximum number of hardware queues, 1 to 2048.
    pub queues: u16,
    /// Number of tags of each queue, 1 to 65,536.
    pub depth: u32,
    /// Logical block size in bytes.
    pub block_size: u32,
    /// True if the drive rejects writes.
    pub read_only: bool,
}

impl Default for NullDriver {
    fn default() -> Self {
        NullDriver {
            size_bytes: 1 << 40,
            delay: Duration::ZERO,
            queues: 2048,
            depth: 1024,
            block_size: 512,
            read_only: false,
        }
    }
}

impl NullDriver {
    /// Returns a stand-in for a drive that a dry run has examined. Its queue is as small as
    /// possible, because a dry run may have 10,000 drives.
    pub(crate) fn stand_in(size_bytes: u64, block_size: u32) -> NullDriver {
        NullDriver { size_bytes, block_size, queues: 1, depth: 1, ..NullDriver::default() }
    }
}

pub(crate) fn settings_of(spec: &Spec) -> Result<NullDriver, SpecError> {
    let default = NullDriver::default();
    Ok(NullDriver {
        size_bytes: spec.size("size")?.unwrap_or(default.size_bytes),
        delay: spec.time("delay")?.unwrap_or(default.delay),
        queues: spec.number("queues", 2048)?.unwrap_or(default.queues),
        depth: spec.depth()?.unwrap_or(default.depth),
        block_size: spec.block()?.unwrap_or(default.block_size),
        ..default
    })
}

impl DriveSettings for NullDriver {
    fn open(self: Box<Self>, _: u16, _: &OpenOptions) -> Result<Opened, SpecError> {
        Ok(Opened::plain(*self))
    }
}

impl<M: Machine> Driver<M> for NullDriver {
    fn capacity(&self) -> Sector {
        self.size_bytes >> 9
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn limits(&self) -> QueueLimits {
        QueueLimits {
            logical_block_size: self.block_size,
            physical_block_size: self.block_size.max(4096),
            max_sectors: 1 << 16,
            max_segments: u16::MAX,
            max_discard_sectors: u32::MAX,
            max_write_zeroes_sectors: u32::MAX,
            features: Features {
                fua: true,
                no_payload: true,
                read_only: self.read_only,
                ..Features::default()
            },
            ..QueueLimits::default()
        }
    }

    fn hw_queues(&self, _topology: &Topology) -> HwQueues {
        let (count, depth) = (self.queues, self.depth);
        HwQueues { count, depth, kind: QueueKind::AnyThread, tags: TagScope::PerQueue }
    }

    fn is_immediate(&self) -> bool {
        self.delay.is_zero()
    }

    fn open_queue(&self, _index: u16, depth: u32) -> Result<Box<dyn DriverQueue<M>>, Error> {
        if self.delay.is_zero() {
            return Ok(Box::new(InstantQueue::new((), depth)));
        }
        let waiting = VecDeque::with_capacity(depth as usize);
        Ok(Box::new(DelayQueue::<M> {
            waiting,
            delay_ns: nanoseconds(self.delay),
            machine: PhantomData,
        }))
    }

    fn extents(&self, _sector: Sector, nr_sectors: u64) -> Vec<Extent> {
        vec![Extent { nr_sectors, hole: true, zero: true }]
    }
}

/// Storage of a drive that executes each request as soon as it is queued.
pub(crate) trait RequestStore {
    fn run<M: Machine>(&self, rq: &Request<M>);
}

impl RequestStore for () {
    #[inline]
    fn run<M: Machine>(&self, _: &Request<M>) {}
}

pub(crate) struct InstantQueue<S> {
    store: S,
    done: Box<[Tag]>,
    len: usize,
}

impl<S> InstantQueue<S> {
    pub(crate) fn new(store: S, depth: u32) -> InstantQueue<S> {
        InstantQueue { store, done: vec![Tag(0); depth as usize].into(), len: 0 }
    }

    #[inline(never)]
    fn poll_many(&mut self, batch: &mut CompletionBatch) {
        let taken = self.len.min(batch.room());
        batch.push_all(&self.done[..taken], Status::Ok);
        if taken < self.len {
            self.done.copy_within(taken..self.len, 0);
        }
        self.len -= taken;
    }
}

impl<M: Machine, S: RequestStore + Send> DriverQueue<M> for InstantQueue<S> {
    #[inline]
    fn queue_rq(&mut self, rq: &Request<M>) -> Dispatch {
        // `done` has room for one request per tag, so it is never full here.
        let Some(place) = self.done.get_mut(self.len) else { return Dispatch::DeviceBusy };
        self.store.run(rq);
        *place = rq.tag();
        self.len += 1;
        Dispatch::Queued
    }

    fn has_trace_data(&self) -> bool {
        false
    }

    fn commit_rqs(&mut self) {}

    #[inline]
    fn poll(&mut self, batch: &mut CompletionBatch) {
        if self.len != 1 {
            return self.poll_many(batch);
        }
        // Fast path without a loop for the common case, a single completed request.
        if !batch.is_full() {
            batch.push(self.done[0], Status::Ok);
            self.len = 0;
        }
    }

    fn timeout(&mut self, _tag: Tag) -> Expired {
        Expired::Extend
    }
}

/// Queue that completes each request after the same delay, so deadlines are in the order of
/// submission.
struct DelayQueue<M> {
    waiting: VecDeque<(u64, Tag)>,
    delay_ns: u64,
    machine: PhantomData<M>,
}

impl<M: Machine> DriverQueue<M> for DelayQueue<M> {
    fn queue_rq(&mut self, rq: &Request<M>) -> Dispatch {
        self.waiting.push_back((M::now().saturating_add(self.delay_ns), rq.tag()));
        Dispatch::Queued
    }

    fn has_trace_data(&self) -> bool {
        false
    }

    fn commit_rqs(&mut self) {}

    fn poll(&mut self, batch: &mut CompletionBatch) {
        let now_ns = M::now();
        while let Some((deadline_ns, tag)) = self.waiting.front().copied() {
            if deadline_ns > now_ns || batch.is_full() {
                batch.wake_at(deadline_ns);
                return;
            }
            self.waiting.pop_front();
            batch.push(tag, Status::Ok);
        }
    }

    fn timeout(&mut self, _tag: Tag) -> Expired {
        Expired::Extend
    }
}
