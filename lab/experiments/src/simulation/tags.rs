//! Samples the number of tags in use over time, on a thread that periodically reads this number for
//! every drive.
//!
//! run.rs starts the thread before the jobs, on the CPU in `Watch::tags`, and stops it after the
//! jobs. Sampling reads the words of the tag sets, which slightly slows the threads that allocate
//! tags; so simulations whose rates are compared do not sample tags.

use std::sync::{Arc, Mutex};

use millrace_block::Disk;
use millrace_machine::{CpuId, Doorbell, Machine, Order, Parker, Thread, Word};

use millrace_machine::lock_unpoisoned;

/// Number of tags in use at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TagSample {
    /// Time since the start of the measured window, in nanoseconds.
    pub at_ns: u64,
    /// For each drive, the number of tags in use.
    pub in_use: Vec<u32>,
}

pub(super) struct TagWatch<M: Machine> {
    thread: M::Thread,
    bell: Arc<Doorbell<M>>,
    stop: Arc<M::Word>,
    samples: Arc<Mutex<Vec<TagSample>>>,
}

impl<M: Machine> TagWatch<M> {
    pub(super) fn start(disks: Vec<Arc<Disk<M>>>, (cpu, period_ns): (u32, u64)) -> TagWatch<M> {
        let bell = Arc::new(Doorbell::<M>::new(M::Parker::new()));
        let (stop, samples) = (Arc::new(M::Word::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (its_bell, its_stop, kept) = (bell.clone(), stop.clone(), samples.clone());
        let body = Box::new(move || {
            // Acquire: pairs with the SeqCst store in `stop`.
            let stops = || its_stop.load(Order::Acquire) != 0;
            while !stops() {
                let in_use = disks.iter().map(|disk| disk.tags_in_use()).collect();
                let sample = TagSample { at_ns: M::now(), in_use };
                lock_unpoisoned(&kept).push(sample);
                its_bell.sleep_unless(Some(M::now() + period_ns.max(1)), stops);
            }
        });
        TagWatch { thread: M::spawn("tag-watch", Some(CpuId(cpu)), body), bell, stop, samples }
    }

    /// Stops sampling. Returns the samples taken at or after `begin_ns`, or `None` if the thread
    /// panicked.
    pub(super) fn stop(self, begin_ns: u64) -> Option<Vec<TagSample>> {
        self.stop.store(1, Order::SeqCst);
        self.bell.ring();
        if !self.thread.join() {
            return None;
        }
        let all = std::mem::take(&mut *lock_unpoisoned(&self.samples));
        let since = |sample: TagSample| {
            let at_ns = sample.at_ns.checked_sub(begin_ns)?;
            Some(TagSample { at_ns, ..sample })
        };
        Some(all.into_iter().filter_map(since).collect())
    }
}
