//! A drive in memory for tests of the layer, with settings that imitate the behaviour of real
//! drives.
//!
//! `TestDrive` keeps its data in a vector. It completes requests at once, or holds them until it is
//! told to let them go, and counts them. Any thread may run its queues. Used by the tests beside
//! it.
#![allow(dead_code, missing_docs, unsafe_code, clippy::unwrap_used)]

pub mod script;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use millrace_block::{
    Bio, Buffer, Channel, CompletionBatch, Dispatch, Driver, DriverData, DriverQueue, Error,
    ErrorKind, Expired, Features, HwQueues, IoThread, Moment, Op, OpFlags, QueueKind, QueueLimits,
    Request, Sector, Status, Tag, TagScope,
};
use millrace_machine::{Doorbell, Machine, Native, Topology};

/// Settings of a `TestDrive`, and its counters.
#[derive(Default)]
pub struct Knobs {
    /// Requests stay in flight until `held` is false again.
    pub held: AtomicBool,
    /// Requests that complete although `held` is set.
    pub let_go: AtomicU32,
    /// Requests fail with an I/O error.
    pub failing: AtomicBool,
    /// Number of dispatches that are refused with `DeviceBusy` first.
    pub busy: AtomicU32,
    /// The drive attaches data of its own to trace events of each request.
    pub talks: AtomicBool,
    /// Each `queue_rq` takes this long.
    pub slow_ns: AtomicU64,
    /// The drive reports that the data of each request are copied through a bounce buffer.
    pub bounces: AtomicBool,
    /// Requests seen, by operation.
    pub seen: [AtomicU64; 5],
    pub most_in_flight: AtomicU32,
    pub image: Mutex<Vec<u8>>,
    /// Sectors that `revalidate` returns; 0 for the size at the start.
    pub sectors_now: AtomicU64,
    /// `revalidate` fails.
    pub mute: AtomicBool,
    /// Requests of this operation end with this status, whatever `failing` says.
    pub fails: Mutex<Option<(Op, Status)>>,
    /// Requests handed to the drive, in order.
    pub given: Mutex<Vec<Given>>,
    /// The drive knows that it holds zeroes only.
    pub zeroed: AtomicBool,
}

/// A request as it was handed to the drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Given {
    pub op: Op,
    pub sector: Sector,
    pub nr_sectors: u32,
    pub flags: OpFlags,
}

impl Knobs {
    /// The requests of one operation that were handed to the drive.
    pub fn given(&self, op: Op) -> Vec<Given> {
        self.given.lock().unwrap().iter().filter(|given| given.op == op).copied().collect()
    }

    /// Ends all further requests of this operation with this status.
    pub fn fail(&self, op: Op, status: Status) {
        *self.fails.lock().unwrap() = Some((op, status));
    }

    /// Changes the size of the medium.
    pub fn resize(&self, sectors: Sector) {
        self.image.lock().unwrap().resize((sectors << 9) as usize, 0);
        self.sectors_now.store(sectors, Ordering::SeqCst);
    }
}

pub struct TestDrive {
    pub knobs: Arc<Knobs>,
    pub sectors: Sector,
    pub limits: QueueLimits,
    pub queues: u16,
    pub depth: u32,
    pub tags: TagScope,
    /// Must a queue be used by its owner only?
    pub kind: QueueKind,
    /// The drive claims to complete every request at once; only for tests that hold none.
    pub immediate: bool,
}

impl TestDrive {
    pub fn new(sectors: Sector) -> TestDrive {
        let knobs = Arc::new(Knobs::default());
        *knobs.image.lock().unwrap() = vec![0; (sectors << 9) as usize];
        let limits = QueueLimits {
            max_discard_sectors: u32::MAX,
            max_write_zeroes_sectors: u32::MAX,
            features: Features { volatile_cache: true, ..Features::default() },
            ..QueueLimits::default()
        };
        let kind = QueueKind::AnyThread;
        let (tags, immediate) = (TagScope::PerQueue, false);
        TestDrive { knobs, sectors, limits, queues: 64, depth: 64, tags, kind, immediate }
    }
}

impl TestDrive {
    /// A drive of `sectors` sectors without data, for tests that send it no I/O.
    pub fn sparse(sectors: Sector) -> TestDrive {
        TestDrive { sectors, ..TestDrive::new(8) }
    }
}

impl Driver<Native> for TestDrive {
    fn capacity(&self) -> Sector {
        self.sectors
    }
    fn revalidate(&self) -> Result<Sector, Error> {
        if self.knobs.mute.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::System, "no answer"));
        }
        match self.knobs.sectors_now.load(Ordering::SeqCst) {
            0 => Ok(self.sectors),
            now => Ok(now),
        }
    }
    fn limits(&self) -> QueueLimits {
        self.limits
    }
    fn reads_as_zeroes(&self, _: Sector, _: u64) -> bool {
        self.knobs.zeroed.load(Ordering::SeqCst)
    }
    fn hw_queues(&self, _: &Topology) -> HwQueues {
        let (count, depth, tags) = (self.queues, self.depth, self.tags);
        HwQueues { count, depth, kind: self.kind, tags }
    }
    fn is_immediate(&self) -> bool {
        self.immediate
    }
    fn open_queue(&self, _: u16, tags: u32) -> Result<Box<dyn DriverQueue<Native>>, Error> {
        let knobs = Arc::clone(&self.knobs);
        let given = vec![(0, Op::Flush); tags as usize];
        Ok(Box::new(TestQueue { knobs, inside: VecDeque::new(), limits: self.limits, given }))
    }
}

struct TestQueue {
    knobs: Arc<Knobs>,
    inside: VecDeque<Tag>,
    limits: QueueLimits,
    /// First sector and operation of each tag's request.
    given: Vec<(Sector, Op)>,
}

impl DriverQueue<Native> for TestQueue {
    fn queue_rq(&mut self, rq: &Request<Native>) -> Dispatch {
        let busy = self.knobs.busy.load(Ordering::SeqCst);
        if busy > 0 {
            self.knobs.busy.store(busy - 1, Ordering::SeqCst);
            return Dispatch::HostBusy;
        }
        let slow_ns = self.knobs.slow_ns.load(Ordering::SeqCst);
        if slow_ns > 0 {
            Native::spin_until(Native::now() + slow_ns, || false);
        }
        self.knobs.seen[rq.op() as usize].fetch_add(1, Ordering::SeqCst);
        self.check(rq);
        self.apply(rq);
        self.given[rq.tag().0 as usize] = (rq.sector(), rq.op());
        let (op, sector, nr_sectors, flags) = (rq.op(), rq.sector(), rq.nr_sectors(), rq.flags());
        self.knobs.given.lock().unwrap().push(Given { op, sector, nr_sectors, flags });
        self.inside.push_back(rq.tag());
        self.knobs.most_in_flight.fetch_max(self.inside.len() as u32, Ordering::SeqCst);
        Dispatch::Queued
    }
    fn is_bounced(&self, _: Tag) -> bool {
        self.knobs.bounces.load(Ordering::SeqCst)
    }
    fn trace_data(&self, tag: Tag, moment: Moment) -> DriverData {
        let (given, _) = self.given[tag.0 as usize];
        match (self.knobs.talks.load(Ordering::SeqCst), moment) {
            (false, _) => DriverData::default(),
            (true, Moment::Issue) => DriverData::text(format_args!("given {given}")),
            (true, Moment::Complete) => DriverData::text(format_args!("named")),
        }
    }
    fn commit_rqs(&mut self) {}
    fn poll(&mut self, batch: &mut CompletionBatch) {
        let held = self.knobs.held.load(Ordering::SeqCst);
        let stays = || {
            let one_less = |left: u32| left.checked_sub(1);
            let (order, left) = (Ordering::SeqCst, &self.knobs.let_go);
            held && left.fetch_update(order, order, one_less).is_err()
        };
        let status = match self.knobs.failing.load(Ordering::SeqCst) {
            true => Status::IoError,
            false => Status::Ok,
        };
        let fails = *self.knobs.fails.lock().unwrap();
        while !batch.is_full() {
            if self.inside.is_empty() || stays() {
                return;
            }
            let Some(tag) = self.inside.pop_front() else { return };
            let (_, op) = self.given[tag.0 as usize];
            let failed = fails.filter(|(what, _)| *what == op).map(|(_, status)| status);
            batch.push(tag, failed.unwrap_or(status));
        }
    }
    fn timeout(&mut self, _: Tag) -> Expired {
        Expired::Abandon
    }
}

impl TestQueue {
    /// A request never breaks the limits, and is whole blocks.
    fn check(&self, rq: &Request<Native>) {
        let limits = &self.limits;
        let block = u64::from(limits.logical_block_size >> 9);
        assert_eq!((rq.sector() | u64::from(rq.nr_sectors())) % block, 0, "{rq:?}");
        if rq.op().has_data() {
            assert!(rq.nr_sectors() <= limits.max_sectors, "{rq:?}");
            let segments: Vec<_> = rq.segments_within(limits).collect();
            assert!(segments.len() <= limits.max_segments.into(), "{rq:?}");
            let bytes: u32 = segments.iter().map(|s| s.len_bytes).sum();
            assert_eq!(bytes, rq.len_bytes());
            for segment in segments {
                assert!(segment.len_bytes <= limits.max_segment_size);
                let (first, last) =
                    (segment.start as u64, segment.start as u64 + u64::from(segment.len_bytes) - 1);
                let mask = limits.seg_boundary_mask;
                assert_eq!(first & !mask, last & !mask, "crosses the boundary");
            }
            if limits.chunk_sectors != 0 {
                let chunk = u64::from(limits.chunk_sectors);
                let last = rq.sector() + u64::from(rq.nr_sectors()) - 1;
                assert_eq!(rq.sector() / chunk, last / chunk);
            }
        }
    }

    fn apply(&self, rq: &Request<Native>) {
        let mut image = self.knobs.image.lock().unwrap();
        let start = (rq.sector() << 9) as usize;
        let end = start + ((rq.nr_sectors() as usize) << 9);
        let place = &mut image[start..end];
        match rq.op() {
            Op::Read | Op::Write => {
                let mut done = 0;
                for segment in rq.segments() {
                    let len = segment.len_bytes as usize;
                    let here = &mut place[done..done + len];
                    // SAFETY: the segment is memory of a bio in flight.
                    let memory = unsafe { std::slice::from_raw_parts_mut(segment.start, len) };
                    match rq.op() {
                        Op::Read => memory.copy_from_slice(here),
                        _ => here.copy_from_slice(memory),
                    }
                    done += len;
                }
            }
            Op::Discard | Op::WriteZeroes => place.fill(0),
            Op::Flush => {}
        }
    }
}

/// The thread of this identity, number 0, that this bell wakes.
pub fn thread_of<M: Machine>(owner: u64, bell: &Arc<Doorbell<M>>) -> IoThread<M> {
    IoThread { number: 0, owner, bell: Arc::clone(bell), turn: None }
}

/// Submits and waits for one bio.
pub fn run(channel: &mut Channel<Native>, bio: Bio) -> (Status, Bio) {
    channel.submit(bio).expect("accepted");
    let mut result = None;
    channel.wait(1, |done| result = Some((done.status, done.bio)));
    result.expect("waited for it")
}

/// A buffer whose every sector names a number.
pub fn pattern(sectors: usize, seed: u8) -> Buffer {
    let mut buffer = Buffer::new(sectors << 9);
    for (index, byte) in buffer.iter_mut().enumerate() {
        *byte = (index >> 9) as u8 ^ seed ^ (index as u8).wrapping_mul(31);
    }
    buffer
}
