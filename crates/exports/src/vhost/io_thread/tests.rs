//! An I/O thread on the thread of a test: round by round, with drives that can hold requests.
#![allow(clippy::unwrap_used)] // Tests may.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::sync::{Mutex, Weak};
use std::time::Duration;

use millrace_block::{Disk, DiskConfig, Op, Status};
use millrace_drives::{Effect, FaultCache, FaultControl, FaultRule};

use super::super::memory::GuestMemory;
use super::super::queue::QueueParts;
use super::super::stats::QueueStats;
use super::super::tests::played::{Played, count, event, until, volume, volume_with};
use super::*;
use crate::counters::CounterTable as _;
use crate::io_threads::Service as _;
use crate::mailbox::lock;
use crate::virtio::kind;

const SIZE: u16 = 64;
const LONG_NS: u64 = 30_000_000_000;

/// An I/O thread that takes only the steps a test asks for, with its guest.
struct Bench {
    thread: IoThread,
    state: Arc<ThreadState>,
    common: Arc<ExportContext>,
    control: FaultControl,
    played: Played,
    said: Arc<Mutex<Vec<String>>>,
}

impl Bench {
    fn new() -> Bench {
        Bench::on(FaultCache::Inner)
    }

    fn on(cache: FaultCache) -> Bench {
        let (volume, control) = volume(cache);
        Bench::of(volume, control)
    }

    fn of(volume: Arc<Volume<Native>>, control: FaultControl) -> Bench {
        let said = Arc::<Mutex<Vec<String>>>::default();
        let into = Arc::clone(&said);
        let say: super::super::Say = Arc::new(move |line: &str| lock(&into).push(line.to_owned()));
        let config = ThreadConfig {
            reactor: millrace_reactor::Config::default(),
            poll_max_ns: LONG_NS,
            wait_max_ns: LONG_NS,
        };
        let common = Arc::new(ExportContext::new(volume, config, ExportLog::new("t", &say), None));
        let state = Arc::<ThreadState>::default();
        let thread = IoThread::new(&common, &state, 0).unwrap();
        Bench { thread, state, common, control, played: Played::new(), said }
    }

    /// A bench with a queue of this size for each number.
    fn with(sizes: &[u16]) -> Bench {
        let mut bench = Bench::new();
        for (q, size) in (0..).zip(sizes) {
            bench.add(q, *size, |_| {});
        }
        bench
    }

    fn add(&mut self, q: u16, size: u16, change: impl FnOnce(&mut QueueParts)) {
        let queue = self.played.queue(q, size, change);
        self.state.orders.put(ThreadOrder::Start(Box::new(queue)));
        self.thread.take_orders();
    }

    fn queue(&self, q: usize) -> &Queue {
        &self.thread.queues[q].as_ref().unwrap().queue
    }

    /// Sum of the published counters of its queues.
    fn published(&self) -> QueueStats {
        let mut sum = QueueStats::default();
        self.state.published.read().queues.iter().for_each(|(_, queue)| sum.add(*queue));
        sum
    }

    fn release(&self) {
        self.control.clear_rules();
        self.control.release_stuck();
    }

    /// Runs rounds until the ring shows `answers` answers.
    fn serve(&mut self, q: u16, answers: u16) {
        until("all is answered", || {
            self.thread.round().unwrap();
            self.played.used(q)[1] == answers
        });
    }

    /// Runs rounds until nothing more moves.
    fn settle(&mut self) {
        while self.thread.round().unwrap() {}
    }
}

#[test]
fn a_round_says_whether_anything_moved() {
    let mut bench = Bench::with(&[SIZE]);
    assert!(!bench.thread.round().unwrap() && !bench.thread.idle.answered);
    bench.control.add_rule(FaultRule::always(Effect::Stick));
    bench.played.offer_reads(0, SIZE, 0, 2);
    assert!(bench.thread.round().unwrap(), "two are taken");
    bench.settle();
    assert_eq!((bench.queue(0).in_flight(), bench.played.used(0)[1]), (2, 0));
    assert!(!bench.thread.round().unwrap() && !bench.thread.idle.answered);
    bench.release();
    until("they end", || bench.thread.round().unwrap());
    bench.serve(0, 2);
    assert!(bench.thread.idle.answered && !bench.thread.round().unwrap());
    let (queue, thread) = (bench.queue(0).stats, bench.thread.stats);
    assert_eq!((queue.requests, thread.batches, queue.errors, thread.holds), (2, 1, 0, 0));
    assert_eq!(bench.common.faults.report("t").count, 0);
    bench.control.add_rule(FaultRule::always(Effect::Fail(Status::IoError)));
    bench.played.offer_reads(0, SIZE, 2, 1);
    bench.serve(0, 3);
    assert_eq!((bench.common.faults.report("t").count, bench.queue(0).stats.errors), (1, 1));
    assert_eq!(bench.played.status(0, 6), 1);
}

#[test]
fn each_queue_is_the_first_in_turn() {
    let mut bench = Bench::with(&[128; 3]);
    let mut firsts = Vec::new();
    for round in 0..4 {
        bench.played.offer_refused(1, 128, 20 * round, 20);
        bench.thread.round().unwrap();
        firsts.push(bench.thread.first);
        bench.settle();
        assert_eq!(bench.played.used(1)[1], 20 * (round + 1));
        bench.thread.first = firsts[usize::from(round)];
    }
    assert_eq!(firsts, [1, 2, 0, 1]);
}

#[test]
fn queue_takes_few_for_fast_drives_and_a_share_for_others() {
    // Drives that answer at once: a few at a time, which the guest may take meanwhile.
    let mut bench = Bench::with(&[1024, 1024]);
    bench.played.offer_refused(0, 1024, 0, 20);
    for served in [8, 16, 20] {
        assert!(bench.thread.round().unwrap());
        assert_eq!(
            (bench.played.used(0)[1], bench.queue(0).stats.requests),
            (served, served.into())
        );
    }
    // The other requests fill the room that the channel has beside the other queue's part.
    bench.thread.turns = true;
    bench.played.offer_refused(0, 1024, 20, 600);
    assert!(bench.thread.round().unwrap());
    assert_eq!(bench.played.used(0)[1], 20 + 512);
    assert!(bench.thread.round().unwrap());
    assert_eq!((bench.played.used(0)[1], bench.thread.stats.batches), (620, 5));
}

#[test]
fn a_queue_that_breaks_is_told_once_and_makes_no_batch() {
    let (reported, error) = (event(), event());
    let mut bench = Bench::new();
    let ours = reported.try_clone().unwrap();
    bench.add(0, SIZE, |parts| parts.notifiers.error = Some(Arc::new(reported)));
    drop(error);
    bench.played.offer(0, SIZE, 0, &[SIZE]);
    assert!(!bench.thread.round().unwrap());
    assert_eq!((bench.thread.stats.batches, count(&ours)), (0, 1));
    for _ in 0..3 {
        bench.thread.look_after();
        assert_eq!(bench.published().broken, 1);
    }
    assert_eq!(lock(&bench.said).len(), 1, "{:?}", lock(&bench.said));
}

/// A pace of a client that had 32 outstanding lately, close together, for whose submissions a wait
/// of four seconds pays.
fn eager() -> BatchPacer {
    let mut pace = BatchPacer::new(LONG_NS);
    for _ in 0..32 {
        pace.arrived(Native::now(), 1);
        pace.submitted(u64::MAX, 1);
    }
    pace.completed(32);
    pace
}

#[test]
fn requests_are_held_back_where_that_pays_and_counted_once() {
    let mut bench = Bench::with(&[SIZE]);
    assert!(!bench.thread.hold(8), "submitting costs nothing here");
    bench.thread.pace.pace = eager();
    assert!(!bench.thread.hold(8) && bench.thread.pace.pace.outstanding() == 0, "it is off");
    bench.thread.pace.is_on = true;
    bench.played.offer_reads(0, SIZE, 0, 8);
    // Nothing is taken, and the thread does not sleep.
    assert!(bench.thread.round().unwrap());
    assert_eq!((bench.thread.stats.holds, bench.queue(0).stats.requests), (1, 0));
    let paced = &bench.thread.pace;
    assert_eq!((paced.waiting, paced.pace.outstanding()), (8, 8));
    assert_ne!(paced.since_ns, 0);
    // Only the new requests count as arrivals.
    bench.thread.hold(12);
    assert_eq!(bench.thread.pace.pace.outstanding(), 12);
    assert_eq!(bench.thread.stats.holds, 1);
    bench.thread.pace.is_on = false;
    bench.serve(0, 8);
}

#[test]
fn answers_without_drives_are_no_longer_outstanding() {
    let mut bench = Bench::with(&[SIZE]);
    bench.thread.pace.is_on = true;
    bench.control.add_rule(FaultRule::always(Effect::Stick));
    bench.played.offer_refused(0, SIZE, 0, 3);
    [9, 12].iter().for_each(|head| bench.played.request(0, *head, 0, 1));
    bench.played.offer(0, SIZE, 3, &[9, 12]);
    bench.settle();
    assert_eq!((bench.played.used(0)[1], bench.thread.pace.pace.outstanding()), (3, 2));
    bench.played.offer_refused(0, SIZE, 5, 1);
    bench.settle();
    assert_eq!((bench.played.used(0)[1], bench.thread.pace.pace.outstanding()), (4, 2));
    bench.release();
    bench.serve(0, 6);
    assert_eq!(bench.thread.pace.pace.outstanding(), 0);
}

#[test]
fn a_kick_ends_a_sleep_and_is_counted() {
    let (kick, mut bench) = (event(), Bench::new());
    let ours = kick.try_clone().unwrap();
    bench.add(0, SIZE, |parts| parts.notifiers.kick = Some(kick));
    for round in 1..3 {
        rustix::io::write(&ours, &1u64.to_ne_bytes()).unwrap();
        // The thread may wake for another reason first.
        until("the kick is seen", || {
            bench.thread.sleep(Some(Native::now() + LONG_NS)).unwrap();
            assert_eq!(bench.played.used(0)[0], 1, "kicks are suppressed after a sleep");
            bench.thread.look_after();
            bench.queue(0).stats.kicks == round
        });
        assert_eq!(count(&ours), 0, "its count is taken off");
    }
    bench.thread.stats.system_calls = 1000;
    bench.thread.publish();
    let (seen, counters) =
        (bench.state.published.read().thread, bench.thread.ctx.reactor().counters());
    assert_eq!((seen.system_calls, seen.sleeps), (1000 + counters.system_calls, counters.sleeps));
    assert!(counters.system_calls > 0 && counters.sleeps > 0);
    let seen = bench.published();
    assert_eq!((seen.kicks, seen.queues, seen.in_flight), (2, 1, 0));
}

#[test]
fn any_work_to_do_is_news_and_prevents_sleep() {
    let mut bench = Bench::with(&[SIZE, SIZE]);
    let far = || Some(Native::now() + LONG_NS);
    assert!(!bench.thread.has_news());
    // In a ring.
    bench.played.offer_reads(1, SIZE, 0, 1);
    assert!(bench.thread.has_news());
    let sleeps = bench.thread.ctx.reactor().counters().sleeps;
    bench.thread.sleep(None).unwrap();
    assert_eq!(bench.played.used(1)[0], 1, "it asks for no kicks after all");
    bench.serve(1, 1);
    bench.settle();
    assert!(!bench.thread.has_news());
    // Orders.
    bench.state.orders.put(ThreadOrder::change(0, |queue| queue.enabled = true));
    assert!(bench.thread.has_news());
    bench.thread.sleep(None).unwrap();
    bench.thread.sleep(far()).unwrap();
    bench.thread.take_orders();
    assert!(!bench.thread.has_news());
    // The end, unless it has come already and the thread only waits for answers.
    bench.common.stop.give(std::time::Duration::ZERO);
    bench.thread.sleep(None).unwrap();
    assert_eq!(bench.thread.ctx.reactor().counters().sleeps, sleeps, "it did not sleep");
    until("it sleeps", || {
        bench.thread.sleep(Some(Native::now() + 1_000_000)).unwrap();
        bench.thread.ctx.reactor().counters().sleeps > sleeps
    });
}

#[test]
fn it_polls_next_time_for_as_long_as_it_slept() {
    let mut bench = Bench::with(&[SIZE]);
    for answered in [false, true] {
        bench.thread.idle.answered = answered;
        let (before, sleeps) = (Native::now(), bench.thread.ctx.reactor().counters().sleeps);
        bench.thread.sleep(Some(before + 1_000_000)).unwrap();
        let longest = (Native::now() - before).max(10_000);
        assert!(bench.thread.ctx.reactor().counters().sleeps >= sleeps);
        let spin_ns = bench.thread.idle.polling[usize::from(answered)].spin_ns();
        assert!(spin_ns > 0 && spin_ns <= longest, "{spin_ns} after {longest}");
        assert!(!bench.thread.idle.answered);
    }
}

#[test]
fn stopping_queue_reports_its_base_and_lets_go_of_all() {
    let (kick, theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let mut bench = Bench::new();
    bench.add(0, SIZE, |parts| parts.notifiers.kick = Some(OwnedFd::from(kick)));
    bench.add(1, SIZE, |_| {});
    bench.control.add_rule(FaultRule::always(Effect::Stick));
    bench.played.offer_reads(0, SIZE, 0, 3);
    bench.settle();
    let (reply, base) = channel();
    bench.state.orders.put(ThreadOrder::change(0, |queue| queue.stopping = Some(reply)));
    bench.thread.take_orders();
    bench.thread.look_after();
    assert!(base.try_recv().is_err(), "three are in flight");
    let memory = Arc::downgrade(bench.queue(0).memory());
    assert_eq!(bench.published().queues, 2);
    bench.release();
    bench.serve(0, 3);
    bench.thread.look_after();
    assert_eq!(base.try_recv(), Ok(3));
    assert!(memory.upgrade().is_none());
    let mut byte = [0];
    assert_eq!(std::io::Read::read(&mut &theirs, &mut byte).unwrap(), 0, "the kick is closed");
    let stats = bench.published();
    assert_eq!((stats.queues, stats.in_flight, stats.requests), (1, 0, 3));
    // A ring that is none has no base.
    let (reply, base) = channel();
    bench.state.orders.put(ThreadOrder::change(0, |queue| queue.stopping = Some(reply)));
    bench.thread.take_orders();
    assert_eq!(base.recv(), Err(std::sync::mpsc::RecvError));
    // The next one takes its place.
    bench.add(2, SIZE, |_| {});
    assert_eq!((bench.thread.queues.len(), bench.queue(0).number), (2, 2));
}

/// Ends a thread while `serving` threads run; returns its error messages and its guest's memory.
fn finish(mut bench: Bench, serving: u16, drain_ns: u64) -> (Vec<String>, Weak<GuestMemory>) {
    bench.settle();
    let memory = Arc::downgrade(bench.queue(0).memory());
    bench.common.stop.give(std::time::Duration::from_nanos(drain_ns));
    bench.common.serving.store(serving, Ordering::SeqCst);
    let (failures, left_ns) = bench.thread.finish(Ok(()));
    bench.thread.let_go(left_ns);
    (failures, memory)
}

#[test]
fn only_the_last_thread_to_end_flushes() {
    for (serving, flushes) in [(1, 1), (2, 0), (3, 0)] {
        let mut bench = Bench::on(FaultCache::Volatile);
        bench.add(0, SIZE, |_| {});
        let control = bench.control.clone();
        control.add_rule(FaultRule::always(Effect::Delay(Duration::from_nanos(1))).on(Op::Flush));
        let (failures, memory) = finish(bench, serving, LONG_NS);
        assert_eq!(failures, Vec::<String>::new());
        assert_eq!(control.struck(), flushes, "{serving} threads");
        assert!(memory.upgrade().is_none());
    }
}

#[test]
fn a_flush_that_fails_at_the_end_is_told() {
    let mut bench = Bench::on(FaultCache::Volatile);
    bench.add(0, SIZE, |_| {});
    bench.control.add_rule(FaultRule::always(Effect::Fail(Status::IoError)).on(Op::Flush));
    let (failures, memory) = finish(bench, 1, LONG_NS);
    assert!(failures.len() == 1 && failures[0].contains(": flush: "), "{failures:?}");
    assert!(memory.upgrade().is_none());
}

#[test]
fn flush_at_end_that_is_not_answered_is_no_request_of_guest() {
    let mut bench = Bench::on(FaultCache::Volatile);
    bench.add(0, SIZE, |_| {});
    bench.control.add_rule(FaultRule::always(Effect::Stick).on(Op::Flush));
    let (failures, _) = finish(bench, 1, 0);
    let [failure] = &failures[..] else { panic!("{failures:?}") };
    assert!(failure.contains(" did not answer in time"), "{failure}");
}

#[test]
fn endless_requests_are_reported_and_leave_memory_to_drives() {
    let mut bench = Bench::with(&[SIZE]);
    bench.control.add_rule(FaultRule::always(Effect::Stick).on(Op::Read));
    bench.played.offer_reads(0, SIZE, 0, 3);
    bench.settle();
    let (failures, memory) = finish(bench, 2, 0);
    assert_eq!(failures, ["3 guest requests were abandoned: the drives did not answer"]);
    assert!(memory.upgrade().is_some());
}

#[test]
fn polling_depends_on_its_success_and_a_queue_and_is_counted() {
    let mut bench = Bench::new();
    let paid = |bench: &mut Bench| {
        bench.thread.idle.polling[0].slept(0, 20_000);
        assert_eq!(bench.thread.idle.polling[0].spin_ns(), 20_000);
    };
    let counts = |bench: &Bench| (bench.thread.stats.poll_hits, bench.thread.stats.poll_misses);
    paid(&mut bench);
    assert!(!bench.thread.spin().unwrap(), "there is no queue");
    bench.add(0, SIZE, |_| {});
    bench.played.offer_reads(0, SIZE, 0, 1);
    bench.thread.idle.answered = true;
    assert!(!bench.thread.spin().unwrap(), "no wait for guests has paid so far");
    assert_eq!((counts(&bench), bench.thread.stats.poll_ns), ((0, 0), 0));
    bench.thread.idle.answered = false;
    for hits in 1..3 {
        // A thread that lost its CPU during a poll does not poll for a while: forget that.
        bench.thread.idle.share = CpuShare::new();
        assert!(bench.thread.spin().unwrap());
        assert_eq!((counts(&bench), bench.thread.idle.spun_ns), ((hits, 0), 0));
    }
    bench.serve(0, 1);
    bench.settle();
    // A poll in vain spins as long as that has paid, or until another thread wants the CPU.
    let before_ns = bench.thread.stats.poll_ns;
    bench.thread.idle.answered = false;
    bench.thread.idle.share = CpuShare::new();
    assert!(!bench.thread.spin().unwrap());
    assert_eq!(counts(&bench), (2, 1));
    let spun_ns = bench.thread.idle.spun_ns;
    assert!(spun_ns > 0);
    assert_eq!(bench.thread.stats.poll_ns, before_ns + spun_ns);
}

#[test]
fn thread_sleeps_while_idle_and_serves_until_the_export_stops() {
    let mut bench = Bench::with(&[SIZE]);
    let (state, common) = (Arc::clone(&bench.state), Arc::clone(&bench.common));
    let sleeps = std::thread::scope(|scope| {
        let told = scope.spawn(move || {
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
            // Orders end the thread's sleeps; between them it publishes their number.
            while state.published.read().thread.sleeps < 3 && std::time::Instant::now() < deadline {
                state.orders.put(ThreadOrder::change(0, |queue| queue.enabled = true));
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            let seen = state.published.read().thread.sleeps;
            common.stop.give(std::time::Duration::ZERO);
            state.orders.ring();
            seen
        });
        bench.thread.serve().unwrap();
        told.join().unwrap()
    });
    assert!(sleeps >= 3);
}

#[test]
fn a_flush_that_no_drive_answers_fails_when_its_time_is_over() {
    let config = DiskConfig { timeout: Duration::from_millis(1), ..DiskConfig::default() };
    let (volume, control) = volume_with(FaultCache::Volatile, config);
    let mut bench = Bench::of(volume, control);
    bench.add(0, SIZE, |_| {});
    bench.control.add_rule(FaultRule::always(Effect::Stick).on(Op::Flush));
    bench.played.request(0, 0, kind::FLUSH, 0);
    bench.played.offer(0, SIZE, 0, &[0]);
    until("it is answered", || {
        bench.thread.round().unwrap();
        bench.thread.look_after();
        bench.played.used(0)[1] == 1
    });
    assert_eq!((bench.played.answer(0, 0), bench.played.status(0, 0)), ((0, 1), 1));
    assert_eq!((bench.queue(0).in_flight(), bench.common.faults.report("t").count), (0, 1));
    bench.release();
}

#[test]
fn rounds_find_what_a_drive_answers_through_the_ring() {
    let dir = tempfile::tempdir().unwrap();
    let spec = format!("file:path={},size=1m", dir.path().join("d").display());
    let opened = millrace_drives::open(&spec.parse().unwrap(), 1).unwrap();
    let disk = Disk::new(opened.driver, DiskConfig::default()).unwrap();
    let mut bench = Bench::of(Volume::single(disk).unwrap(), volume(FaultCache::Inner).1);
    bench.add(0, SIZE, |_| {});
    bench.thread.pace.is_on = false;
    for round in 1..4 {
        bench.played.offer_reads(0, SIZE, 3 * (round - 1), 3);
        bench.serve(0, 3 * round);
    }
    assert_eq!(bench.queue(0).stats.errors, 0);
    bench.settle();
    assert!(!bench.thread.round().unwrap());
}
