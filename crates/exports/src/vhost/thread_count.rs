//! Rules for the number of I/O threads that serve the queues of a guest.
//!
//! The configuration and the server use these rules. Three of the settings are the designs that the
//! paper \[MIOT\] compares: one lock and one thread for all queues (`Shared`), dedicated queues
//! with one thread (`Count(1)`), a dedicated queue and thread for each vCPU (`PerQueue`).

use std::collections::BTreeSet;

use millrace_machine::CpuId;

/// Maximum number of queues of a guest.
pub const QUEUES_MAX: u16 = 256;

/// Distribution of a guest's queues over I/O threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Threads {
    /// One thread serves all queues, under one lock. This is the older design.
    Shared,
    /// Each queue has a thread of its own while there are enough CPUs; further queues share threads
    /// evenly.
    #[default]
    PerQueue,
    /// A fixed number of threads, but at most one for each queue.
    Count(u16),
}

impl Threads {
    /// Returns the number of I/O threads for `queues` queues. The threads may use the CPUs
    /// `pinned_to`, or all CPUs of this machine if `pinned_to` is empty.
    #[must_use]
    pub fn count(self, queues: u16, pinned_to: &[CpuId]) -> u16 {
        let cpus = match pinned_to.iter().collect::<BTreeSet<_>>().len() {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            listed => listed,
        };
        self.count_on(queues, u16::try_from(cpus).unwrap_or(u16::MAX))
    }

    fn count_on(self, queues: u16, cpus: u16) -> u16 {
        match self {
            Threads::Shared => 1,
            Threads::PerQueue => queues.min(cpus).max(1),
            Threads::Count(count) => count.clamp(1, queues.max(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_as_many_as_asked_for_and_never_more_than_queues() {
        let counts = |threads: Threads| [1, 4, 16].map(|queues| threads.count_on(queues, 8));
        assert_eq!(counts(Threads::Shared), [1, 1, 1]);
        assert_eq!(counts(Threads::PerQueue), [1, 4, 8]);
        assert_eq!(counts(Threads::Count(1)), [1, 1, 1]);
        assert_eq!(counts(Threads::Count(12)), [1, 4, 12]);
        assert_eq!((Threads::Count(3).count(16, &[]), Threads::Count(3).count(0, &[])), (3, 1));
    }

    #[test]
    fn threads_by_queue_are_at_most_the_cpus_pinned_to() {
        let count = |threads: Threads, cpus: &[u32]| {
            threads.count(4, &cpus.iter().copied().map(CpuId).collect::<Vec<_>>())
        };
        let per_queue = |cpus: &[u32]| count(Threads::PerQueue, cpus);
        let counts = [per_queue(&[3, 3]), per_queue(&[3, 5]), per_queue(&[0, 1, 2, 3, 4, 5])];
        assert_eq!(counts, [1, 2, 4]);
        // A number is what somebody asked for; it goes round.
        assert_eq!((count(Threads::Count(4), &[3]), count(Threads::Shared, &[3, 5])), (4, 1));
    }
}
