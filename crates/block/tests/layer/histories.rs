//! Random histories of three channels of a thread on one drive, compared with the drive's log.
//!
//! The following holds for every stack, queue layout, stamp, scheduler and listener. The drive gets
//! all requests that it has room for, in the order of submission unless a scheduler sorts. Every
//! bio ends once, with the status of its request. Every tag comes back. Statistics, failures and
//! traces match the drive's log exactly.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::script::{Asked, ScriptDrive};
use crate::support::{Given, thread_of};
use millrace_block::baseline::Stack;
use millrace_block::blktrace::EventCode;
use millrace_block::{
    BATCH_SIZES, Bio, BioChain, Buffer, ChainBatch, Channel, ChannelConfig, CompletedChain,
    Completion, Controller, ControllerConfig, Disk, DiskConfig, Dispatch, GroupId, IoThread,
    Leftover, Op, OpFlags, QueueKind, Scheduler, SchedulerKind, SchedulerPick, Sharing, Spread,
    Stamp, Status, TagScope, TraceEntry, TraceEvent, TraceSink, TraceStamp, Tracer, Volume,
};
use millrace_machine::{Doorbell, Machine, Native, NativeParker, Parker};
use proptest::prelude::*;

/// The listener that a run attaches: none, a trace sink, or a recorder with its time stamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listener {
    Nobody,
    Sink,
    Recorder(TraceStamp),
}

#[derive(Debug, Clone, Copy)]
struct Setting {
    stack: Stack,
    software_queues: Spread,
    kind: QueueKind,
    tags: TagScope,
    queues: u16,
    depth: u32,
    /// Tags that the drive's controller has beyond the drive's own.
    more_tags: Option<u32>,
    stamp: Stamp,
    listener: Listener,
}

#[derive(Debug, Clone)]
enum Step {
    /// Submits this many bios; each lies behind the previous one, in front of it, or apart.
    Submit {
        channel: usize,
        op: Op,
        bios: u8,
        apart: u8,
        sectors: u32,
        fua: bool,
    },
    Flush(usize),
    Poll(usize),
    /// Allows the drive this many completions, the first with these errors.
    Answer {
        count: usize,
        errors: Vec<bool>,
        backwards: bool,
    },
    Refuse(Vec<Dispatch>),
    Freeze(bool),
    Quiesce(bool),
    Schedule(Order),
    Settle,
}

/// The scheduler of the drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    None,
    Fifo,
    Deadline,
    Fair,
    Latency,
}

impl Order {
    const ALL: [Order; 5] =
        [Order::None, Order::Fifo, Order::Deadline, Order::Fair, Order::Latency];
}

/// A first-come, first-served scheduler, like none at all, that counts I/O in flight.
struct Fifo {
    chains: VecDeque<BioChain<Native>>,
    picked: usize,
    done: usize,
}

impl Scheduler<Native> for Fifo {
    fn insert(&mut self, batch: &mut ChainBatch<'_, Native>) {
        self.chains.extend(batch);
    }
    fn next(&mut self, _: u64) -> SchedulerPick<Native> {
        let next = self.chains.pop_front();
        self.picked += usize::from(next.is_some());
        next.map_or(SchedulerPick::Nothing, SchedulerPick::Chain)
    }
    fn completed(&mut self, done: &CompletedChain) {
        self.done += 1;
        assert!(self.done <= self.picked && done.op != Op::Flush, "{done:?}");
        assert!(done.queued_ns <= done.picked_ns && done.picked_ns <= done.done_ns, "{done:?}");
    }
    fn pass(&mut self, _: GroupId, _: u64) -> bool {
        false
    }

    fn drain(&mut self, left: &mut Leftover<Native>) {
        self.chains.drain(..).for_each(|chain| left.push(chain));
    }
}

fn setting() -> impl Strategy<Value = Setting> {
    let stack = prop_oneof![4 => Just(Stack::Mq), 2 => Just(Stack::Sq), 2 => Just(Stack::Raw)];
    let spread = prop_oneof![3 => Just(Spread::Core), 1 => Just(Spread::One)];
    let kind = prop_oneof![4 => Just(QueueKind::AnyThread), 1 => Just(QueueKind::OwnerOnly)];
    let tags = prop_oneof![3 => Just(TagScope::PerQueue), 1 => Just(TagScope::PerDrive)];
    let depth = prop_oneof![1u32..6, 6u32..40, Just(130)];
    let more_tags = prop_oneof![4 => Just(None), 1 => (1u32..8).prop_map(Some)];
    let stamp = prop_oneof![4 => Just(Stamp::Batch), 1 => Just(Stamp::Io)];
    let listener = prop_oneof![
        4 => Just(Listener::Nobody),
        1 => Just(Listener::Sink),
        1 => Just(Listener::Recorder(TraceStamp::Batch)),
        1 => Just(Listener::Recorder(TraceStamp::Event)),
    ];
    (stack, spread, kind, tags, 1u16..3, depth, more_tags, stamp, listener).prop_map(
        |(stack, software_queues, kind, tags, queues, depth, more_tags, stamp, listener)| Setting {
            stack,
            software_queues,
            kind,
            tags,
            queues,
            depth,
            more_tags,
            stamp,
            listener,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let op = prop_oneof![
        6 => Just(Op::Read), 6 => Just(Op::Write), 2 => Just(Op::Flush), 1 => Just(Op::Discard),
        1 => Just(Op::WriteZeroes),
    ];
    let bios = prop_oneof![6 => 1u8..2, 6 => 2u8..12, 1 => 60u8..120];
    let submit = (0usize..3, op, bios, 0u8..4, 1u32..5, any::<bool>()).prop_map(
        |(channel, op, bios, apart, sectors, fua)| Step::Submit {
            channel,
            op,
            bios,
            apart,
            sectors,
            fua,
        },
    );
    let count = prop_oneof![1usize..4, 4usize..70, Just(usize::MAX)];
    let errors = proptest::collection::vec(any::<bool>(), 0..4);
    let answer = (count, errors, any::<bool>())
        .prop_map(|(count, errors, backwards)| Step::Answer { count, errors, backwards });
    let refusal = prop_oneof![Just(Dispatch::DeviceBusy), Just(Dispatch::HostBusy)];
    prop_oneof![
        10 => submit,
        4 => (0usize..3).prop_map(Step::Flush),
        4 => (0usize..3).prop_map(Step::Poll),
        6 => answer,
        2 => proptest::collection::vec(refusal, 1..3).prop_map(Step::Refuse),
        1 => any::<bool>().prop_map(Step::Freeze),
        1 => any::<bool>().prop_map(Step::Quiesce),
        1 => prop::sample::select(&Order::ALL[..])
            .prop_map(Step::Schedule),
        2 => Just(Step::Settle),
    ]
}

#[derive(Default)]
struct Sink(Mutex<Vec<TraceEvent>>);

impl TraceSink for Sink {
    fn trace(&self, event: &TraceEvent) {
        self.0.lock().unwrap().push(*event);
    }
}

/// A bio that was submitted, by its number.
struct Submitted {
    channel: usize,
    op: Op,
    sector: u64,
    nr_sectors: u32,
    /// `None` while the bio is in flight.
    status: Option<Status>,
}

/// The layer on a scripted drive, and the outcome of each bio.
struct Rig {
    drive: ScriptDrive,
    disk: Arc<Disk<Native>>,
    channels: Vec<Channel<Native>>,
    setting: Setting,
    sink: Arc<Sink>,
    tracer: Arc<Tracer<Native>>,
    bios: Vec<Submitted>,
    frozen: bool,
    quiesced: bool,
    /// A scheduler that sorts was in use at some time.
    sorted: bool,
    /// The scheduler limits the depth by the latency that it measures.
    bounds_depth: bool,
    /// Bios submitted before the last freeze, and the time at which the history began.
    before_freeze: usize,
    start_ns: u64,
    /// The range of neighbours that ends with the last bio.
    range: (u64, u64),
}

impl Drop for Rig {
    /// Channels would wait for I/O that a broken layer never ends.
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::mem::forget(std::mem::take(&mut self.channels));
        }
    }
}

fn bell() -> Arc<Doorbell<Native>> {
    Arc::new(Doorbell::new(NativeParker::new()))
}

impl Rig {
    fn new(setting: Setting) -> Rig {
        let mut drive = ScriptDrive::new(setting.queues, setting.depth);
        (drive.hw.kind, drive.hw.tags) = (setting.kind, setting.tags);
        drive.limits.features.fua = true;
        let (sink, tracer) = (Arc::new(Sink::default()), Tracer::new(1 << 14));
        let controller = setting.more_tags.map(|more| {
            let (tags, sharing) = (setting.depth + more, Sharing::Controller);
            let config = ControllerConfig { name: "hba".into(), tags, sharing, node: None };
            Controller::new(config).unwrap()
        });
        let config = DiskConfig {
            baseline: setting.stack.into(),
            software_queues: setting.software_queues,
            controller,
            timeout: Duration::ZERO,
            // Queues of threads: one, of the thread that runs all of this.
            io_threads: u16::from(setting.kind == QueueKind::OwnerOnly),
            trace: (setting.listener == Listener::Sink).then(|| Arc::clone(&sink) as _),
            tracer: Some(Arc::clone(&tracer)),
            ..DiskConfig::default()
        };
        let disk = Disk::new(Box::new(drive.clone()), config).unwrap();
        let volume = Volume::single(Arc::clone(&disk)).unwrap();
        if let Listener::Recorder(stamp) = setting.listener {
            assert!(tracer.start(stamp) && volume.set_traced(true));
        }
        let channels = (0..3).map(|number| {
            let thread = (setting.kind == QueueKind::OwnerOnly).then(|| {
                let bell = bell();
                disk.claim(&thread_of(7, &bell)).unwrap();
                IoThread { number, owner: 7, bell, turn: None }
            });
            let config = ChannelConfig { stamp: setting.stamp, thread, ..Default::default() };
            Channel::open(&volume, config).unwrap()
        });
        let channels = channels.collect();
        let (frozen, quiesced, sorted) = (false, false, false);
        let bios = Vec::new();
        let rig = Rig {
            drive,
            disk,
            channels,
            setting,
            sink,
            tracer,
            bios,
            frozen,
            quiesced,
            sorted,
            bounds_depth: false,
            before_freeze: 0,
            start_ns: Native::now(),
            range: (1000, 1000),
        };
        assert!(rig.disk.is_drained());
        rig
    }

    fn take(bios: &mut [Submitted], done: &Completion) {
        let bio = &mut bios[done.user_data as usize];
        assert_eq!(bio.status, None, "bio {} ends twice", done.user_data);
        bio.status = Some(done.status);
    }

    fn submit(&mut self, channel: usize, op: Op, apart: u8, sectors: u32, fua: bool) {
        let (start, end) = self.range;
        let (len, base) = (u64::from(sectors), (end / 1000 + 1) * 1000 + 500);
        let range = match apart {
            0 | 1 => (start, end + len),
            2 if start % 1000 > len => (start - len, end),
            _ => (base, base + len),
        };
        let sector = if range.0 == start && apart < 2 { end } else { range.0 };
        let sector = if op == Op::Flush { 0 } else { sector };
        let data = || Buffer::new((sectors as usize) << 9);
        let flags = if fua { OpFlags::FUA } else { OpFlags::NONE };
        let bio = match op {
            Op::Read => Bio::read(sector, data()),
            Op::Write => Bio::write(sector, data()).with_flags(flags),
            Op::Flush => Bio::flush(),
            Op::Discard => Bio::discard(sector, sectors),
            Op::WriteZeroes => Bio::write_zeroes(sector, sectors),
        };
        let bio = bio.with_user_data(self.bios.len() as u64);
        let nr_sectors = if op == Op::Flush { 0 } else { sectors };
        if self.channels[channel].submit(bio).is_ok() {
            self.bios.push(Submitted { channel, op, sector, nr_sectors, status: None });
            self.range = if op == Op::Flush { self.range } else { range };
        }
    }

    fn poll(&mut self, channel: usize) -> usize {
        let bios = &mut self.bios;
        self.channels[channel].poll(|done| Rig::take(bios, &done))
    }

    /// Polls until nothing happens any more, then compares.
    fn settle(&mut self) {
        let mut idle = 0;
        while idle < 3 {
            let before = self.drive.lock().log.len();
            let done = self.poll(0) + self.poll(1) + self.poll(2);
            let quiet = done == 0 && self.drive.lock().log.len() == before;
            idle = if quiet { idle + 1 } else { 0 };
        }
        self.check();
    }

    fn check(&self) {
        let script = self.drive.lock();
        let (inside, refused) = (script.inside.len(), script.refused.len());
        assert!(script.answers == 0 || inside == 0, "an answer was not fetched");
        let depth = self.setting.depth as usize;
        let in_flight: u32 = self.channels.iter().map(Channel::in_flight).sum();
        let open = self.bios.iter().filter(|bio| bio.status.is_none()).count();
        assert_eq!(in_flight as usize, open);
        let in_use = self.disk.tags_in_use() as usize;
        match self.setting.stack {
            // Under `sq` a tag is taken when a bio is submitted.
            Stack::Sq => assert!(in_use >= inside + refused),
            Stack::Mq | Stack::Raw => assert_eq!(in_use, inside + refused),
        }
        for queue in 0..self.setting.queues {
            assert!(script.data_in(queue) <= depth, "more than the drive takes");
        }
        if !self.frozen && !self.quiesced && script.refusals.is_empty() {
            // The single queue offers a refused flush again when a request ends.
            let waits_for_an_end = self.setting.stack == Stack::Sq && inside > 0;
            assert!(refused == 0 || waits_for_an_end, "what was refused is not offered again");
            let took = script.log.iter().filter_map(|asked| match asked {
                Asked::Took(given) => Some(given.nr_sectors),
                _ => None,
            });
            let wanted = self.bios.iter().map(|bio| bio.nr_sectors).sum::<u32>();
            let (_, queues) = self.disk.queue_count();
            // Behind a controller a flush takes a place of the drive's, too.
            let with_flushes = self.setting.more_tags.map_or(0, |_| inside);
            let full = (0..queues as u16)
                .any(|queue| script.data_in(queue) >= depth || with_flushes >= depth)
                || self.setting.tags == TagScope::PerDrive && inside >= depth;
            let full = full || self.bounds_depth && inside > 0 || refused > 0;
            assert!(full || took.sum::<u32>() == wanted, "there was room for more");
        }
        if inside + refused > 0 {
            assert!(!self.disk.is_drained());
        } else if open == 0 {
            assert!(self.disk.is_drained());
        }
    }

    /// Checks that a frozen disk takes no new bio, and a quiesced one hands over no request.
    fn check_gates(&self, seen: usize) {
        for asked in &self.drive.lock().log[seen..] {
            if let Asked::Took(given) | Asked::Refused(given) = asked {
                assert!(!self.quiesced, "{given:?} in spite of its rest");
                let late = self.bios[self.before_freeze..].iter();
                let mut late = late.filter(|bio| bio.op != Op::Flush && bio.op == given.op);
                let frozen_out = late.any(|bio| bio.sector == given.sector);
                assert!(!self.frozen || !frozen_out, "{given:?} came to a frozen disk");
            }
        }
    }

    fn step(&mut self, step: &Step) {
        let seen = self.drive.lock().log.len();
        self.take_step(step);
        self.check_gates(seen);
    }

    fn take_step(&mut self, step: &Step) {
        match step {
            Step::Submit { channel, op, bios, apart, sectors, fua } => {
                let bios = if *op == Op::Flush { *bios.min(&3) } else { *bios };
                (0..bios).for_each(|_| self.submit(*channel, *op, *apart, *sectors, *fua));
            }
            Step::Flush(channel) => self.channels[*channel].flush(),
            Step::Poll(channel) => {
                self.poll(*channel);
            }
            Step::Answer { count, errors, backwards } => {
                let mut script = self.drive.lock();
                script.answers = script.answers.saturating_add(*count);
                script.backwards = *backwards;
                let status = |failed: &bool| if *failed { Status::IoError } else { Status::Ok };
                script.statuses.extend(errors.iter().map(status));
            }
            Step::Refuse(refusals) => self.drive.lock().refusals.extend(refusals),
            Step::Freeze(frozen) => {
                self.before_freeze = if self.frozen { self.before_freeze } else { self.bios.len() };
                self.frozen = *frozen;
                if *frozen { self.disk.freeze() } else { self.disk.unfreeze() }
            }
            Step::Quiesce(quiesced) => {
                self.quiesced = *quiesced;
                if *quiesced { self.disk.quiesce() } else { self.disk.unquiesce() }
            }
            Step::Schedule(order) => self.schedule(*order),
            Step::Settle => self.settle(),
        }
    }

    fn schedule(&mut self, order: Order) {
        let set = match order {
            Order::None => self.disk.set_scheduler(SchedulerKind::None),
            Order::Fifo => self.disk.set_own_scheduler(|_| {
                Box::new(Fifo { chains: VecDeque::new(), picked: 0, done: 0 })
            }),
            Order::Deadline => self.disk.set_scheduler(SchedulerKind::Deadline),
            Order::Fair => self.disk.set_scheduler(SchedulerKind::Fair),
            Order::Latency => self.disk.set_scheduler(SchedulerKind::Latency),
        };
        let takes_one = self.setting.stack == Stack::Mq;
        assert_eq!(set.is_ok(), takes_one || order == Order::None, "{set:?}");
        let kind = match (order, takes_one) {
            (Order::Fifo, true) => None,
            (Order::Deadline, true) => Some(SchedulerKind::Deadline),
            (Order::Fair, true) => Some(SchedulerKind::Fair),
            (Order::Latency, true) => Some(SchedulerKind::Latency),
            _ => Some(SchedulerKind::None),
        };
        assert_eq!(self.disk.scheduler(), kind);
        self.bounds_depth = takes_one && matches!(order, Order::Fair | Order::Latency);
        // Latency has lists of their own for reads and for writes.
        self.sorted |= matches!(order, Order::Deadline | Order::Latency);
    }

    /// Lets all I/O end and compares every total with the log.
    fn end(mut self) {
        [Step::Freeze(false), Step::Quiesce(false)].iter().for_each(|step| self.step(step));
        self.drive.lock().refusals.clear();
        self.drive.lock().answers = usize::MAX;
        self.settle();
        let open = self.bios.iter().filter(|bio| bio.status.is_none()).count();
        assert_eq!((open, self.disk.tags_in_use()), (0, 0));
        let log = std::mem::take(&mut self.drive.lock().log);
        self.check_statuses(&log);
        self.check_order(&log);
        self.check_stats(&log);
        self.check_trace(&log);
    }

    /// Each bio has the status of the request that it was in.
    fn check_statuses(&self, log: &[Asked]) {
        let named = log.iter().filter_map(|asked| match asked {
            Asked::Named(given, status) => Some((*given, *status)),
            _ => None,
        });
        let named: Vec<(Given, Status)> = named.collect();
        for bio in self.bios.iter().filter(|bio| bio.op != Op::Flush) {
            let holds = |given: &Given| {
                given.op == bio.op
                    && given.sector <= bio.sector
                    && bio.sector + u64::from(bio.nr_sectors)
                        <= given.sector + u64::from(given.nr_sectors)
            };
            let mine: Vec<_> = named.iter().filter(|(given, _)| holds(given)).collect();
            assert_eq!(mine.len(), 1, "in one request, at {}", bio.sector);
            assert_eq!(bio.status, Some(mine[0].1));
        }
        let failed = self.bios.iter().filter(|bio| bio.status != Some(Status::Ok)).count();
        let failures = self.disk.failures();
        assert_eq!(failures.count, failed as u64);
        assert!(failures.last.iter().all(|failure| failure.status == Status::IoError));
    }

    /// A queue that is used by one channel hands requests to the drive in the order of submission.
    fn check_order(&self, log: &[Asked]) {
        let took = log.iter().filter_map(|asked| match asked {
            Asked::Took(given) if given.op != Op::Flush => Some(*given),
            _ => None,
        });
        let number = |given: Given| {
            let within = given.sector..given.sector + u64::from(given.nr_sectors);
            let is_in = |bio: &Submitted| bio.op != Op::Flush && within.contains(&bio.sector);
            let (first, last) =
                (self.bios.iter().position(is_in), self.bios.iter().rposition(is_in));
            (first.unwrap(), last.unwrap())
        };
        let (_, queues) = self.disk.queue_count();
        if queues == 1 && !self.sorted && self.bios.iter().all(|bio| bio.channel == 0) {
            let numbers: Vec<_> = took.map(number).collect();
            assert!(numbers.is_sorted(), "{numbers:?}");
        }
    }

    fn check_stats(&self, log: &[Asked]) {
        let stats = self.disk.stats();
        let count = |is: &dyn Fn(&Asked) -> bool| log.iter().filter(|a| is(a)).count() as u64;
        let requests = count(&|a| matches!(a, Asked::Took(_)));
        assert_eq!((stats.requests(), stats.queued()), (requests, self.bios.len() as u64));
        assert_eq!(stats.requeues(), count(&|a| matches!(a, Asked::Refused(_))));
        let mut batches = [0; BATCH_SIZES];
        for asked in log {
            if let Asked::Committed(count) = asked {
                batches[(count.ilog2() as usize).min(BATCH_SIZES - 1)] += 1;
            }
        }
        assert_eq!(stats.batches, batches);
        assert_eq!((stats.timeouts(), stats.in_flight()), (0, 0));
        for op in Op::ALL {
            let of_op = &stats.ops[op as usize];
            let bios: Vec<_> = self.bios.iter().filter(|bio| bio.op == op).collect();
            let sectors: u32 = bios.iter().map(|bio| bio.nr_sectors).sum();
            let failed = bios.iter().filter(|bio| bio.status != Some(Status::Ok)).count();
            let took = count(&|a| matches!(a, Asked::Took(given) if given.op == op));
            assert_eq!((of_op.ios, of_op.sectors), (bios.len() as u64, sectors.into()), "{op:?}");
            assert_eq!(of_op.errors, failed as u64, "{op:?}");
            assert_eq!(of_op.merges, bios.len() as u64 - took, "{op:?}");
            for stage in [&of_op.q2g, &of_op.g2i, &of_op.i2d, &of_op.queue, &of_op.service] {
                assert_eq!(stage.count(), of_op.ios, "{op:?}");
            }
            let elapsed_ns = Native::now() - self.start_ns;
            for time in [&of_op.queue, &of_op.service, &of_op.total] {
                assert!(time.max_ns() <= elapsed_ns, "{op:?}");
            }
            let before_d = of_op.q2g.sum_ns() + of_op.g2i.sum_ns() + of_op.i2d.sum_ns();
            assert_eq!(before_d, of_op.queue.sum_ns(), "{op:?}");
        }
    }

    /// The recorded events of requests must match the drive's log, in order.
    fn check_trace(&self, log: &[Asked]) {
        let all = |act: EventCode| -> Vec<(u64, u32, i32)> {
            let of = |given: &Given, error| (given.sector, given.nr_sectors << 9, error);
            let asked = log.iter().filter_map(|asked| match (asked, act) {
                (Asked::Took(given), EventCode::Issue) => Some(of(given, 0)),
                (Asked::Refused(given), EventCode::Requeue) => Some(of(given, 0)),
                (Asked::Named(given, status), EventCode::Complete) => {
                    Some(of(given, -status.errno()))
                }
                _ => None,
            });
            asked.collect()
        };
        let acts = [EventCode::Issue, EventCode::Requeue, EventCode::Complete];
        if let Listener::Recorder(_) = self.setting.listener {
            let mut events: Vec<TraceEntry> = Vec::new();
            assert_eq!(self.tracer.drain(|_, entries| events.extend(entries)).dropped, 0);
            for act in acts {
                let is = |code: u32| EventCode::from_code(code & 0xffff) == Some(act);
                let told = events.iter().filter(|entry| is(entry.action));
                // A flush has a name in place of its sector.
                let sector = |e: &TraceEntry| if e.bytes == 0 { 0 } else { e.sector };
                let mut told: Vec<_> = told.map(|e| (sector(e), e.bytes, e.error)).collect();
                let mut asked = all(act);
                // Each channel has a ring of its own.
                told.sort_unstable();
                asked.sort_unstable();
                assert_eq!(told, asked, "{act:?}");
            }
        }
        if self.setting.listener == Listener::Sink {
            let events = self.sink.0.lock().unwrap();
            let times = |number: usize, action: EventCode| {
                let is = |event: &&TraceEvent| {
                    event.user_data == number as u64 && event.action == action
                };
                events.iter().filter(is).count()
            };
            for number in 0..self.bios.len() {
                for action in [EventCode::Queue, EventCode::Issue, EventCode::Complete] {
                    assert_eq!(times(number, action), 1, "{action:?} of bio {number}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        max_shrink_iters: 200,
        failure_persistence: None,
        ..ProptestConfig::with_cases(600)
    })]

    #[test]
    fn drive_gets_all_it_can_take_and_every_account_says_so(
        setting in setting(),
        one_channel in any::<bool>(),
        mut steps in proptest::collection::vec(step(), 1..40),
    ) {
        let mut rig = Rig::new(setting);
        for step in &mut steps {
            if let Step::Submit { channel, .. } = step {
                *channel *= usize::from(!one_channel);
            }
            rig.step(step);
        }
        rig.end();
    }
}
