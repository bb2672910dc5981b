//! `PieceSize`: the longest request that goes to a shared drive.
//!
//! A request cannot be called back from a drive, so whoever comes next waits for it. Channels cut
//! longer reads and writes into pieces that take the drive not much longer than a small read, and
//! merge no further than that. Without small reads to compare with, a piece is half of what the
//! drive moves until it counts as slow, so that two pieces are there at a time: a drive with a cost
//! for each request would do less with shorter ones.
//! Called by agreement.rs; channels read the size ten times a second. Kernel counterpart: none;
//! iocost charges a large request but sends it whole.

use crate::queue::scheduler::cost::{OpCost, SLOW_NS};

/// The size before anything is known, and the least, in sectors: 64 and 32 KiB.
pub(crate) const FIRST_SECTORS: u32 = 128;
const LEAST_SECTORS: u32 = 64;
/// The most: 32 MiB.
const MOST_SECTORS: u32 = 1 << 16;
/// How long a drive is watched before a decision.
const WINDOW_NS: u64 = 50_000_000;

/// The longest request of a shared drive.
pub(crate) struct PieceSize {
    sectors: u32,
    since_ns: u64,
    /// Cost of all that was sent since then.
    served: u64,
    /// More would have gone to the drive all the time, were it not held back.
    busy: bool,
    /// Cost of all that is sent in [`SLOW_NS`], by the last window; 0: not known.
    usual_cost: u64,
}

/// A drive since the last look.
pub(crate) struct Pace {
    /// Cost of what was sent.
    pub(crate) served: u64,
    /// Shortest times of small reads, and of requests as long as pieces, as far as they are known.
    pub(crate) small_ns: Option<u64>,
    pub(crate) piece_ns: Option<u64>,
    /// The drive has all that keeps it busy.
    pub(crate) busy: bool,
}

impl PieceSize {
    pub(crate) fn new() -> Self {
        PieceSize { sectors: FIRST_SECTORS, since_ns: 0, served: 0, busy: false, usual_cost: 0 }
    }

    /// Cost of all that the drive does until it counts as slow; 0: not known.
    pub(crate) fn usual_cost(&self) -> u64 {
        self.usual_cost
    }

    pub(crate) fn sectors(&self) -> u32 {
        self.sectors
    }

    /// Adds a look at the drive; returns true if the size was decided on anew.
    pub(crate) fn look(&mut self, pace: &Pace, cost: &OpCost, now_ns: u64) -> bool {
        self.served += pace.served;
        self.busy &= pace.busy;
        let elapsed_ns = now_ns.saturating_sub(self.since_ns);
        if elapsed_ns < WINDOW_NS {
            return false;
        }
        // What was sent long ago says nothing of how fast the drive is.
        let is_known = elapsed_ns < 2 * WINDOW_NS;
        let (served, busy) = (core::mem::take(&mut self.served), self.busy);
        (self.since_ns, self.busy) = (now_ns, true);
        self.usual_cost = 0;
        if !is_known {
            return true;
        }
        let usual = u128::from(served) * u128::from(SLOW_NS) / u128::from(elapsed_ns);
        self.usual_cost = usual.min(1 << 60) as u64;
        let next = match (pace.small_ns, pace.piece_ns) {
            (Some(small_ns), Some(piece_ns)) if piece_ns * 5 < small_ns * 7 => self.sectors * 2,
            (Some(small_ns), Some(piece_ns)) if piece_ns * 5 > small_ns * 14 => self.sectors / 2,
            (Some(_), _) => self.sectors,
            // A drive that is not kept busy may do more than was seen.
            (None, _) => match (moved(self.usual_cost / 2, cost), u64::from(self.sectors)) {
                (moved, now) if moved * 2 >= now * 3 => self.sectors * 2,
                (moved, now) if moved * 5 < now * 3 && busy => self.sectors / 2,
                _ => self.sectors,
            },
        };
        self.sectors = next.clamp(LEAST_SECTORS, MOST_SECTORS);
        true
    }
}

/// How many sectors that follow each other a drive moves for this cost.
fn moved(moved_ns: u64, cost: &OpCost) -> u64 {
    let moved_ps = u128::from(moved_ns.saturating_sub(cost.random_ns.into())) * 1_000;
    (moved_ps / (512 * u128::from(cost.byte_ps)).max(1)).min(1 << 32) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::scheduler::cost::CostModel;

    const STEP_NS: u64 = WINDOW_NS / 10;

    /// Where the size goes, in KiB, if the drive moves so much and requests take so long.
    fn found(served: u64, busy: bool, small_ns: Option<u64>, piece_ns: fn(u32) -> u64) -> u32 {
        let (mut piece, cost) = (PieceSize::new(), CostModel::default().read);
        (1..1_000).for_each(|step| {
            let piece_ns = Some(piece_ns(piece.sectors / 2));
            let pace = Pace { served, small_ns, piece_ns, busy };
            piece.look(&pace, &cost, step * STEP_NS);
        });
        piece.sectors / 2
    }

    #[test]
    fn a_piece_takes_not_much_longer_than_a_small_read() {
        let of = |small_ns, piece_ns| found(STEP_NS, true, Some(small_ns), piece_ns);
        // A SATA drive: 540 MB/s; 100 us for 4 KiB.
        assert_eq!(of(100_000, |kib| 92_000 + u64::from(kib) * 1_900), 64);
        // Eight units of 2 ms, and a page for each.
        assert_eq!(of(2_000_000, |kib| u64::from(kib.div_ceil(32)) * 2_000_000), 64);
        // A disk that rotates.
        assert_eq!(of(11_000_000, |kib| 11_000_000 + u64::from(kib) * 5_000), 1_024);
    }

    #[test]
    fn without_small_reads_it_is_half_of_what_the_drive_moves_until_it_is_slow() {
        let of = |served| found(served, true, None, |_| 0);
        // 500 MB/s, as the cost says: half of 1 MB.
        assert_eq!(of(STEP_NS), 512);
        assert_eq!((of(STEP_NS / 31), of(STEP_NS << 20)), (32, 32 << 10), "the bounds");
        let idle = found(1, false, None, |_| 0);
        assert_eq!(idle, FIRST_SECTORS / 2, "what is not kept busy may do more");
    }
}
