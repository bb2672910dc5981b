//! `PendingQueues`: a bitmap of the software queues that have bios for a hardware queue.
//!
//! Each software queue has a bit, set after an insertion and cleared by the thread that serves the
//! hardware queue. If a hardware queue is divided into lanes (disk/baseline/lanes.rs), the lanes
//! share the words of the bitmap, and each lane checks only its own bit. A `HardwareQueue` owns its
//! bitmap. Kernel counterpart: `hctx->ctx_map`.

use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_machine::{Machine, Order, Word};

pub(crate) struct PendingQueues<M: Machine> {
    words: Arc<[M::Word]>,
    /// A lane's bit in the bitmap, and the index of the software queue that feeds the lane. A lane
    /// is the part of a hardware queue that one thread serves. `None` if the bitmap is for a whole
    /// hardware queue.
    own: Option<(u64, usize)>,
}

impl<M: Machine> PendingQueues<M> {
    pub(crate) fn new(ctxs: usize) -> Self {
        PendingQueues {
            words: (0..ctxs.div_ceil(64)).map(|_| M::Word::new(0)).collect(),
            own: None,
        }
    }

    /// Creates the bitmap of each lane. A lane is the part of a hardware queue that one thread
    /// serves. Lanes of one hardware queue share the words of their bitmaps. `lanes` holds, for
    /// each lane, the index of its hardware queue and of its software queue.
    pub(crate) fn of_lanes(lanes: &[(usize, usize)]) -> Vec<Self> {
        let mut words = Vec::new();
        let part = |(queue, ctx): &(usize, usize)| {
            let before = words.iter().filter(|(of, _)| of == queue).count();
            let open = words.iter().rev().find(|(of, _)| of == queue);
            let word: Arc<[M::Word]> = match open {
                Some((_, word)) if before % 64 != 0 => Arc::clone(word),
                _ => Arc::new([M::Word::new(0)]),
            };
            words.push((*queue, Arc::clone(&word)));
            PendingQueues { words: word, own: Some((1 << (before % 64), *ctx)) }
        };
        lanes.iter().map(part).collect()
    }

    /// Marks that software queue `ctx` has bios for the hardware queue. Called after their
    /// insertion.
    pub(crate) fn mark(&self, ctx: usize) {
        let (word, bit) = match self.own {
            None => (&self.words[ctx / 64], 1u64 << (ctx % 64)),
            Some((bit, _)) => (&self.words[0], bit),
        };
        // Release pairs with the Acquire of `take`. The software queue's lock orders accesses to
        // its bios as well.
        word.fetch_or(bit, Order::Release);
    }

    #[inline]
    pub(crate) fn take(&self, mut f: impl FnMut(usize)) {
        for (index, word) in self.words.iter().enumerate() {
            // Relaxed: a cheap first check. A mark set after this check is not missed, because the
            // marking thread then sets the serve lock's flag or rings the doorbell.
            if word.load(Order::Relaxed) == 0 {
                continue;
            }
            if let Some((bit, ctx)) = self.own {
                // Acquire pairs with the Release of `mark`.
                if word.fetch_and(!bit, Order::Acquire) & bit != 0 {
                    f(ctx);
                }
                return;
            }
            // Acquire pairs with the Release of `mark`.
            let mut bits = word.swap(0, Order::Acquire);
            while bits != 0 {
                f(index * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }

    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        let mask = self.own.map_or(u64::MAX, |(bit, _)| bit);
        // Relaxed: before a thread sleeps, the fence of `Doorbell::arm` orders this load.
        self.words.iter().any(|word| word.load(Order::Relaxed) & mask != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use millrace_machine::Native;

    fn taken(pending: &PendingQueues<Native>) -> Vec<usize> {
        let mut all = Vec::new();
        pending.take(|ctx| all.push(ctx));
        all
    }

    #[test]
    fn ways_into_one_queue_see_their_own_software_queue_alone() {
        let lanes: Vec<_> = (0..70).map(|lane| (lane % 2, lane)).collect();
        let parts = PendingQueues::<Native>::of_lanes(&lanes);
        [3, 5, 69].iter().for_each(|lane| parts[*lane].mark(*lane));
        assert!(parts[3].is_any() && !parts[1].is_any());
        assert_eq!([1, 3, 3].map(|lane| taken(&parts[lane])), [vec![], vec![3], vec![]]);
        assert_eq!((taken(&parts[5]), taken(&parts[69])), (vec![5], vec![69]));
        let shared = |a: usize, b: usize| Arc::ptr_eq(&parts[a].words, &parts[b].words);
        assert!(shared(1, 69) && shared(0, 68) && !shared(0, 1));
    }

    #[test]
    fn a_whole_queue_finds_what_was_marked_once() {
        let pending = PendingQueues::<Native>::new(130);
        [0, 64, 129].iter().for_each(|ctx| pending.mark(*ctx));
        assert!(pending.is_any());
        assert_eq!((taken(&pending), taken(&pending)), (vec![0, 64, 129], vec![]));
    }
}
