//! The pool's jobs and thread counts, compared with a plain model.
//!
//! The model keeps a list of jobs for each lane and a set of running jobs. Its rules: the lane with
//! the fewest running jobs goes first, limits hold, and beyond the shared threads each lane gets
//! one thread.

use super::*;
use crate::op::{FileRef, Op};
use crate::sys;

const LIMITS: PoolLimits =
    PoolLimits { shared: 4, lane: 3, kept: 2, growth_ns: 10, refused_ns: 100 };

fn job(key: u64, lane: u32, inbox: u32) -> PoolJob {
    PoolJob { key: OperationKey(key), lane, inbox, op: Op::Fdatasync { file: FileRef::Raw(-1) } }
}

/// A queue with `lanes` lanes, and an inbox.
fn queue(lanes: u32) -> (JobQueue, u32) {
    let mut queue = JobQueue::new(LIMITS);
    for lane in 0..lanes {
        assert_eq!(queue.open_lane(), lane);
    }
    let inbox = queue.open_inbox(Arc::new(sys::eventfd().unwrap()));
    (queue, inbox)
}

/// Threads as the pool runs them: each called one takes a job and calls the next.
#[derive(Default)]
struct Threads {
    running: Vec<PoolJob>,
}

impl Threads {
    /// Does whatever the queue calls for at `now_ns`, until it calls for nothing more. New threads
    /// start while there are fewer than `most`.
    fn answer(&mut self, queue: &mut JobQueue, now_ns: u64, most: usize) {
        loop {
            match queue.call(now_ns) {
                ThreadCall::Nobody => return,
                ThreadCall::New => {
                    if queue.threads > most {
                        queue.refused(now_ns);
                        continue;
                    }
                    queue.given();
                }
                ThreadCall::Idle => queue.calls -= 1,
            }
            queue.coming -= 1;
            match queue.take(now_ns) {
                Some(job) => self.running.push(job),
                None => queue.idle += 1,
            }
        }
    }

    /// The job at `at` ends; its thread takes the next one.
    fn end(&mut self, queue: &mut JobQueue, at: usize, now_ns: u64) -> PoolJob {
        let job = self.running.remove(at);
        queue.finish(&job, 0, now_ns);
        match queue.take(now_ns) {
            Some(next) => self.running.push(next),
            None => queue.idle += 1,
        }
        job
    }

    fn of(&self, lane: u32) -> usize {
        self.running.iter().filter(|job| job.lane == lane).count()
    }
}

#[test]
fn drives_that_hang_leave_every_other_drive_a_thread() {
    let (mut queue, inbox) = queue(10);
    let mut threads = Threads::default();
    for lane in 0..10 {
        for key in 0..8 {
            queue.put(job(key, lane, inbox), 0);
        }
        threads.answer(&mut queue, 0, 100);
    }
    let running = |threads: &Threads| (0..10).map(|lane| threads.of(lane)).collect::<Vec<_>>();
    assert_eq!(running(&threads), [3, 1, 0, 0, 0, 0, 0, 0, 0, 0], "as many as are shared");
    assert_eq!(queue.next_growth_ns(), Some(10));
    threads.answer(&mut queue, 9, 100);
    assert_eq!(threads.running.len(), 4, "the others have not waited for long");
    threads.answer(&mut queue, 10, 100);
    assert_eq!(running(&threads), [3, 1, 1, 1, 1, 1, 1, 1, 1, 1], "one for each");
    assert_eq!((queue.threads, queue.next_growth_ns()), (12, None));
    // A thread that comes back goes where fewest run, and no more than one to a drive.
    threads.end(&mut queue, 3, 20);
    assert_eq!(running(&threads), [3, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
}

#[test]
fn refusal_leaves_work_to_existing_threads_and_is_retried() {
    let (mut queue, inbox) = queue(3);
    let mut threads = Threads::default();
    (0..6).for_each(|key| queue.put(job(key, 0, inbox), 0));
    threads.answer(&mut queue, 0, 2);
    assert_eq!((queue.threads, threads.of(0)), (2, 2));
    assert!(std::mem::take(&mut queue.refusal_untold), "told of once");
    assert_eq!(queue.next_growth_ns(), Some(100));
    // The last thread is for a drive that has none, as long as there are no more of them.
    threads.end(&mut queue, 0, 1);
    assert_eq!((queue.idle, threads.of(0)), (1, 1));
    queue.put(job(7, 1, inbox), 1);
    threads.answer(&mut queue, 1, 2);
    assert_eq!((queue.idle, threads.of(0), threads.of(1)), (0, 1, 1));
    threads.answer(&mut queue, 100, 2);
    assert!(queue.threads == 2 && !queue.refusal_untold, "still the same");
    threads.answer(&mut queue, 200, 100);
    assert_eq!((queue.threads, threads.of(0)), (4, 3), "now it gives threads again");
}

#[test]
fn one_thread_serves_all_where_there_is_no_other() {
    let (mut queue, inbox) = queue(2);
    let mut threads = Threads::default();
    for key in 0..6 {
        queue.put(job(key, (key % 2) as u32, inbox), 0);
    }
    threads.answer(&mut queue, 0, 1);
    let mut ended = Vec::new();
    while !threads.running.is_empty() {
        ended.push(threads.end(&mut queue, 0, 1).key.0);
    }
    assert_eq!(ended, [0, 1, 2, 3, 4, 5], "drives in turn, each in order");
}

#[test]
fn a_cancel_takes_back_only_what_no_thread_has_begun() {
    let (mut queue, inbox) = queue(1);
    let mut threads = Threads::default();
    (0..5).for_each(|key| queue.put(job(key, 0, inbox), 0));
    threads.answer(&mut queue, 0, 100);
    assert!(!queue.cancel(0, inbox, OperationKey(2)) && queue.cancel(0, inbox, OperationKey(4)));
    assert!(
        !queue.cancel(0, inbox, OperationKey(4)) && !queue.cancel(0, inbox + 1, OperationKey(3))
    );
    assert_eq!(threads.end(&mut queue, 0, 0).key, OperationKey(0));
    assert_eq!(threads.running.last().map(|job| job.key), Some(OperationKey(3)));
}

#[test]
fn vanished_reactor_gets_no_results_and_its_slot_is_reused() {
    let (mut queue, inbox) = queue(1);
    let other = queue.open_inbox(Arc::new(sys::eventfd().unwrap()));
    let mut threads = Threads::default();
    (0..4).for_each(|key| queue.put(job(key, 0, inbox), 0));
    queue.put(job(9, 0, other), 0);
    threads.answer(&mut queue, 0, 100);
    assert!(queue.sleep(other));
    queue.close_inbox(inbox);
    queue.close_lane(0);
    let (lane, third) = (queue.open_lane(), queue.open_inbox(Arc::new(sys::eventfd().unwrap())));
    assert!(lane != 0 && third != inbox, "both are in use");
    while let Some(job) = threads.running.pop() {
        let wake = queue.finish(&job, 0, 0);
        assert_eq!(wake.is_some(), job.inbox == other);
        threads.running.extend(queue.take(0));
    }
    let mut results = Vec::new();
    queue.take_results(other, &mut results);
    assert_eq!(results, [(OperationKey(9), 0)]);
    assert_eq!(queue.open_inbox(Arc::new(sys::eventfd().unwrap())), inbox);
    assert_eq!(queue.open_lane(), 0);
}

/// A step of the random test: jobs put, ended, cancelled, or time that passes.
#[derive(Default)]
struct Model {
    queued: Vec<Vec<u64>>,
    running: Vec<usize>,
}

/// The rules, for one job that was taken when `busy` others ran.
fn check_take(model: &mut Model, job: &PoolJob, busy: usize, shared: usize) {
    let lane = job.lane as usize;
    assert_eq!(model.queued[lane].remove(0), job.key.0, "a lane's jobs are taken in order");
    let waiting = (0..model.queued.len()).filter(|at| *at != lane && !model.queued[*at].is_empty());
    let fewest = waiting.map(|at| model.running[at]).min().unwrap_or(usize::MAX);
    assert!(model.running[lane] <= fewest, "fewest running first");
    assert!(busy < shared || model.running[lane] == 0, "beyond those shared, one for each");
    model.running[lane] += 1;
    assert!(model.running[lane] <= LIMITS.lane);
}

#[test]
fn random_work_keeps_the_rules_and_loses_nothing() {
    for seed in 1..200u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let lanes = 1 + random(8) as u32;
        let (mut queue, inbox) = queue(lanes);
        let mut model =
            Model { queued: vec![Vec::new(); lanes as usize], running: vec![0; lanes as usize] };
        let mut threads = Threads::default();
        let (mut put, mut ended, mut now_ns) = (0, 0, 0);
        for _ in 0..400 {
            let before = threads.running.len();
            match random(5) {
                0 | 1 => {
                    for _ in 0..=random(6) {
                        let lane = random(lanes.into()) as u32;
                        queue.put(job(put, lane, inbox), now_ns);
                        model.queued[lane as usize].push(put);
                        put += 1;
                    }
                    threads.answer(&mut queue, now_ns, 1000);
                }
                2 | 3 if before > 0 => {
                    let at = random(before as u64) as usize;
                    model.running[threads.running[at].lane as usize] -= 1;
                    threads.end(&mut queue, at, now_ns);
                    ended += 1;
                    for (more, job) in threads.running.iter().skip(before - 1).enumerate() {
                        check_take(&mut model, job, before - 1 + more, LIMITS.shared);
                    }
                    continue;
                }
                _ => {
                    now_ns += random(15);
                    threads.answer(&mut queue, now_ns, 1000);
                }
            }
            for (more, job) in threads.running.iter().skip(before).enumerate() {
                check_take(&mut model, job, before + more, LIMITS.shared);
            }
            let bound = LIMITS.shared + lanes as usize;
            assert!(queue.threads <= bound, "seed {seed}: {} threads", queue.threads);
            assert_eq!(queue.threads, threads.running.len() + queue.idle);
            let starves = |at: usize| model.running[at] == 0 && !model.queued[at].is_empty();
            if (0..lanes as usize).any(starves) {
                assert!(queue.next_growth_ns().is_some(), "seed {seed}: somebody looks again");
            }
        }
        while !threads.running.is_empty() {
            threads.end(&mut queue, 0, now_ns);
            ended += 1;
        }
        let mut results = Vec::new();
        queue.take_results(inbox, &mut results);
        let mut keys: Vec<u64> = results.iter().map(|(key, _)| key.0).collect();
        keys.sort_unstable();
        assert_eq!((ended, keys), (put, (0..put).collect::<Vec<_>>()), "seed {seed}");
    }
}
