//! The drives' workers of a row: a thread for each CPU that serves drives for others.
//!
//! Started by run.rs before the jobs and stopped after them. Drives are dealt out to the CPUs in
//! turn, so several share a thread where drives outnumber CPUs.

use std::sync::Arc;

use millrace_block::{Disk, IoThread, WORKER_SPIN_NS, Worker};
use millrace_machine::{CpuId, Doorbell, Machine, Order, Parker, Thread, Word};

/// Owners from here on are workers; jobs have their number and one.
const FIRST_OWNER: u64 = 1 << 32;

/// Threads that serve drives until they are stopped.
pub(super) struct Workers<M: Machine> {
    threads: Vec<M::Thread>,
    bells: Vec<Arc<Doorbell<M>>>,
    stop: Arc<M::Word>,
}

/// The CPU of drive `index`'s worker.
pub(super) fn cpu_of(cpus: &[u32], index: usize) -> Option<CpuId> {
    cpus.get(index % cpus.len().max(1)).copied().map(CpuId)
}

impl<M: Machine> Workers<M> {
    /// A thread on each of `cpus` that has a drive, serving it before this returns.
    pub(super) fn start(disks: &[Arc<Disk<M>>], cpus: &[u32]) -> Workers<M> {
        let stop = Arc::new(M::Word::new(0));
        let up = Arc::new(M::Word::new(0));
        let mut workers = Workers { threads: Vec::new(), bells: Vec::new(), stop };
        let used = cpus.len().min(disks.len());
        for (number, cpu) in cpus.iter().take(used).enumerate() {
            let mine: Vec<_> = disks.iter().skip(number).step_by(used).cloned().collect();
            let bell = Arc::new(Doorbell::<M>::new(M::Parker::new()));
            let owner = FIRST_OWNER + number as u64;
            let thread = IoThread { number: 0, owner, bell: Arc::clone(&bell), turn: || () };
            let (stop, up) = (Arc::clone(&workers.stop), Arc::clone(&up));
            let body = Box::new(move || {
                let mut worker = Worker::new(&thread);
                for disk in &mine {
                    worker.serve(disk).expect("queues that any thread may run are open");
                }
                up.fetch_add(1, Order::SeqCst);
                worker.run(&stop, WORKER_SPIN_NS);
            });
            workers.threads.push(M::spawn(&format!("worker-{number}"), Some(CpuId(*cpu)), body));
            workers.bells.push(bell);
        }
        M::spin_until(u64::MAX, || up.load(Order::SeqCst) == used as u64);
        workers
    }

    /// Stops them and waits for their end; false if one panicked.
    pub(super) fn stop(self) -> bool {
        self.stop.store(1, Order::SeqCst);
        self.bells.iter().for_each(|bell| bell.ring());
        self.threads.into_iter().fold(true, |whole, thread| thread.join() && whole)
    }
}
