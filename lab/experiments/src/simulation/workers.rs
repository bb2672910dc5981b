//! Worker threads of a simulation, which dispatch requests to drives and poll the drives on behalf
//! of the submitters.
//!
//! run.rs starts the workers before the jobs and stops them after the jobs; a replay on a simulated
//! machine does so, too. Each disk's configuration names the CPU of its worker, and each of these
//! CPUs has one worker. If there are more drives than CPUs, several disks share a worker.

use std::sync::Arc;
use std::time::Duration;

use millrace_block::{Disk, IoThread, WORKER_SPIN_NS, Worker};
use millrace_machine::{Doorbell, Machine, Order, Parker, Word};
use millrace_runtime::disks_by_worker;

use crate::load::bench::BenchError;
use crate::load::threads::join_all;

/// Value of `IoThread::owner` for the first worker. Jobs have smaller owner numbers, so no number
/// is used twice.
const FIRST_OWNER: u64 = 1 << 32;

pub(crate) struct Workers<M: Machine> {
    threads: Vec<M::Thread>,
    bells: Vec<Arc<Doorbell<M>>>,
    stop: Arc<M::Word>,
}

impl<M: Machine> Workers<M> {
    /// Starts a worker on each CPU that a disk's configuration names, and waits until all workers
    /// serve.
    pub(crate) fn start(disks: &[Arc<Disk<M>>]) -> Workers<M> {
        let stop = Arc::new(M::Word::new(0));
        let up = Arc::new(M::Word::new(0));
        let mut workers = Workers { threads: Vec::new(), bells: Vec::new(), stop };
        let posts = disks_by_worker(disks);
        let used = posts.len();
        for (number, (cpu, mine)) in posts.into_iter().enumerate() {
            let bell = Arc::new(Doorbell::<M>::new(M::Parker::new()));
            let owner = FIRST_OWNER + number as u64;
            let thread = IoThread { number: 0, owner, bell: Arc::clone(&bell), turn: None };
            let (stop, up) = (Arc::clone(&workers.stop), Arc::clone(&up));
            let body = Box::new(move || {
                let mut worker = Worker::new(&thread);
                for disk in &mine {
                    worker.serve(disk).expect("the disk's driver opens every queue");
                }
                up.fetch_add(1, Order::SeqCst);
                worker.run(&stop, Duration::from_nanos(WORKER_SPIN_NS));
            });
            workers.threads.push(M::spawn(&format!("worker-{number}"), Some(cpu), body));
            workers.bells.push(bell);
        }
        M::spin_until(u64::MAX, || up.load(Order::SeqCst) == used as u64);
        workers
    }

    pub(crate) fn stop(self) -> Result<(), BenchError> {
        self.stop.store(1, Order::SeqCst);
        self.bells.iter().for_each(|bell| bell.ring());
        join_all(self.threads)
    }
}
