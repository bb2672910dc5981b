//! Worker threads that serve a scenario's drives for the submitters.
//!
//! run.rs starts the workers before the submitters and stops them afterwards. Drives are assigned
//! to workers round robin, so several drives share a worker if there are fewer workers.
//! disturbance.rs tells workers to end early, and to start again later. A worker that ends early
//! drops its `Worker` with all I/O in flight.

use std::sync::Arc;
use std::time::Duration;

use millrace_block::{IoThread, WORKER_SPIN_NS, Worker};
use millrace_machine::{CpuId, Doorbell, Machine, Order, Parker, Thread, Word};
use millrace_simulator::Simulated;

use super::scenario::Scenario;
use super::submitter::{RunState, SimDoorbell};
use super::time::NS_PER_US;

type SimWord = <Simulated as Machine>::Word;

/// Smallest number that identifies a worker as the owner of a hardware queue. I/O threads have
/// smaller numbers: their index plus one.
const FIRST_OWNER: u64 = 1 << 32;

pub(super) struct WorkerHandle {
    cpu: u32,
    /// Command to the worker. 0: serve; 1: end; n > 1: end, and start again n - 1 microseconds
    /// later.
    leave: SimWord,
    over: SimWord,
    bell: SimDoorbell,
}

pub(super) fn handles(scenario: &Scenario) -> Vec<WorkerHandle> {
    let handle = |cpu: &u32| WorkerHandle {
        cpu: *cpu,
        leave: SimWord::new(0),
        over: SimWord::new(0),
        bell: Arc::new(Doorbell::new(<Simulated as Machine>::Parker::new())),
    };
    scenario.serving.workers.iter().map(handle).collect()
}

pub(super) fn cpu_of(scenario: &Scenario, drive: usize) -> Option<CpuId> {
    let workers = &scenario.serving.workers;
    workers.get(drive % workers.len().max(1)).copied().map(CpuId)
}

impl WorkerHandle {
    /// Tells the worker to end, and to start again after `back_us` microseconds. With `back_us` 0,
    /// the worker does not start again.
    pub(super) fn leave(&self, back_us: u32) {
        self.leave.store(u64::from(back_us) + 1, Order::Release);
        self.bell.ring();
    }
}

pub(super) fn start(state: &Arc<RunState>) -> Vec<<Simulated as Machine>::Thread> {
    let up = Arc::new(SimWord::new(0));
    let start = |number: usize| {
        let (state, up) = (Arc::clone(state), Arc::clone(&up));
        let cpu = Some(CpuId(state.workers[number].cpu));
        let body = Box::new(move || work(&state, number, &up));
        Simulated::spawn(&format!("worker {number}"), cpu, body)
    };
    let threads: Vec<_> = (0..state.workers.len()).map(start).collect();
    Simulated::spin_until(u64::MAX, || up.load(Order::Acquire) >= threads.len() as u64);
    threads
}

pub(super) fn stop(state: &RunState, threads: Vec<<Simulated as Machine>::Thread>) {
    for handle in &state.workers {
        handle.over.store(1, Order::Release);
        handle.leave(0);
    }
    threads.into_iter().for_each(|thread| assert!(thread.join()));
}

fn work(state: &RunState, number: usize, up: &SimWord) {
    let (handle, parker) = (&state.workers[number], <Simulated as Machine>::Parker::new());
    loop {
        let owner = FIRST_OWNER + number as u64;
        let bell = Arc::clone(&handle.bell);
        let mut worker = Worker::new(&IoThread { number: 0, owner, bell, turn: None });
        for disk in state.volume.drives().iter().skip(number).step_by(state.workers.len()) {
            worker.serve(disk).expect(
                "the queue must open: no other worker owns it, and this driver never refuses",
            );
        }
        up.fetch_add(1, Order::AcqRel);
        worker.run(&handle.leave, Duration::from_nanos(WORKER_SPIN_NS));
        drop(worker);
        let back_us = handle.leave.swap(0, Order::AcqRel) - 1;
        let back_ns = Simulated::now() + back_us * NS_PER_US;
        while back_us > 0 && Simulated::now() < back_ns && handle.over.load(Order::Acquire) == 0 {
            parker.park(Some(back_ns));
        }
        if back_us == 0 || handle.over.load(Order::Acquire) != 0 {
            return;
        }
    }
}
