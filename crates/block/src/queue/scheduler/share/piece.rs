//! `PieceSize`: chooses the maximum length of requests to a shared drive.
//!
//! A request at a drive cannot be taken back, so later requests have to wait for it. Channels split
//! longer reads and writes into pieces, and merge bios only up to this length. A piece takes the
//! drive not much longer than a small read. If there are no small reads to compare with, a piece is
//! half of the data that the drive transfers in [`SLOW_NS`]. Shorter pieces would reduce the
//! throughput of a drive that has a fixed cost for each request. Called by agreement.rs; channels
//! read the length ten times a second. Kernel counterpart: none; iocost charges a large request but
//! sends it whole.

use crate::queue::scheduler::cost::{OpCost, SLOW_NS};

/// Initial value of a drive's maximum request length, in sectors: 64 KiB.
pub(crate) const FIRST_SECTORS: u32 = 128;
/// Lower bound of a drive's maximum request length, in sectors: 32 KiB.
pub(crate) const LEAST_SECTORS: u32 = 64;
/// Upper bound of a drive's maximum request length, in sectors: 32 MiB.
const MOST_SECTORS: u32 = 1 << 16;
/// Nanoseconds for which the maximum request length does not grow, after a growth that slowed down
/// small reads.
const STAY_NS: u64 = 60_000_000_000;
/// Nanoseconds after a small read during which further small reads are expected.
const SMALL_NS: u64 = 10_000_000_000;
/// Nanoseconds of measurement before each decision about the maximum request length.
const WINDOW_NS: u64 = 50_000_000;

pub(crate) struct PieceSize {
    sectors: u32,
    since_ns: u64,
    /// Cost, in nanoseconds, of the I/O dispatched since `since_ns`.
    served: u64,
    busy: bool,
    /// Measured throughput: the cost of the I/O that was dispatched per [`SLOW_NS`] (2 ms), in
    /// nanoseconds of the cost model. 0 if unknown.
    usual_cost: u64,
    /// Service time of small reads, in nanoseconds, before the maximum request length last grew.
    grown_from_ns: Option<u64>,
    stays_until_ns: u64,
    small_until_ns: u64,
}

pub(crate) struct DriveSample {
    /// Cost, in nanoseconds, of all I/O dispatched to the drive since the previous `DriveSample`.
    pub(crate) served: u64,
    pub(crate) small_ios: u64,
    /// Shortest service time of small reads, if known.
    pub(crate) small_ns: Option<u64>,
    /// Shortest service time of requests of the present maximum length, if known.
    pub(crate) piece_ns: Option<u64>,
    /// Shortest service time, in nanoseconds, of requests with half the present maximum request
    /// length. `None` if unknown, or if both lengths are in the same size class.
    pub(crate) half_ns: Option<u64>,
    /// Shortest service time of requests of twice the present maximum length, sent while the
    /// maximum was larger. `None` if unknown, or if both lengths are in the same size class.
    pub(crate) double_ns: Option<u64>,
    /// True if requests of twice the present maximum length are in another size class, so that
    /// their service times are measured separately.
    pub(crate) may_double: bool,
    pub(crate) busy: bool,
}

impl DriveSample {
    /// Returns true if a request of double length takes less than 1.4 times as long, as on a disk
    /// that seeks for each request. If no service time of another length is known, returns true if
    /// requests are slow, and those of double length are measured separately (`may_double`).
    fn is_length_free(&self) -> bool {
        let is_free = |shorter: Option<u64>, longer: Option<u64>| {
            shorter.zip(longer).is_some_and(|(shorter, longer)| longer * 5 < shorter * 7)
        };
        let is_slow = self.piece_ns.is_some_and(|ns| ns >= SLOW_NS / 2);
        is_free(self.half_ns, self.piece_ns)
            || is_free(self.piece_ns, self.double_ns)
            || is_slow && self.half_ns.or(self.double_ns).is_none() && self.may_double
    }
}

impl PieceSize {
    pub(crate) fn new() -> Self {
        PieceSize {
            sectors: FIRST_SECTORS,
            since_ns: 0,
            served: 0,
            busy: false,
            usual_cost: 0,
            grown_from_ns: None,
            stays_until_ns: 0,
            small_until_ns: 0,
        }
    }

    pub(crate) fn usual_cost(&self) -> u64 {
        self.usual_cost
    }

    pub(crate) fn sectors(&self) -> u32 {
        self.sectors
    }

    /// Adds a sample of the drive's throughput and service times. At the end of each measuring
    /// window, decides on the maximum request length and returns true.
    pub(crate) fn look(&mut self, pace: &DriveSample, cost: &OpCost, now_ns: u64) -> bool {
        self.served += pace.served;
        if pace.small_ios > 0 {
            self.small_until_ns = now_ns + SMALL_NS;
        }
        self.busy &= pace.busy;
        let elapsed_ns = now_ns.saturating_sub(self.since_ns);
        if elapsed_ns < WINDOW_NS {
            return false;
        }
        // Requests dispatched long ago say nothing about the drive's present speed.
        let is_known = elapsed_ns < 2 * WINDOW_NS;
        let (served, busy) = (core::mem::take(&mut self.served), self.busy);
        (self.since_ns, self.busy) = (now_ns, true);
        self.usual_cost = 0;
        if !is_known {
            return true;
        }
        let usual = u128::from(served) * u128::from(SLOW_NS) / u128::from(elapsed_ns);
        self.usual_cost = usual.min(1 << 60) as u64;
        let next = match (pace.small_ns, self.beside_small(pace, now_ns)) {
            (Some(_), next) => next.unwrap_or(self.sectors),
            (None, _) => {
                let now = u64::from(self.sectors);
                let moved = moved(self.usual_cost / 2, cost);
                let is_long = moved * 5 < now * 3;
                // The maximum request length is halved only if the drive was kept busy, because an
                // idle drive may be faster than measured. Longer requests are tried only while no
                // small reads are expected, because longer requests would delay small reads.
                match now_ns >= self.small_until_ns && pace.is_length_free() {
                    true if pace.may_double => self.sectors * 2,
                    true => self.sectors,
                    _ if moved * 2 >= now * 3 => self.sectors * 2,
                    _ if is_long && busy && pace.piece_ns.is_some() => self.sectors / 2,
                    _ => self.sectors,
                }
            }
        };
        self.sectors = next.clamp(LEAST_SECTORS, MOST_SECTORS);
        true
    }
}

impl PieceSize {
    /// Returns the next maximum request length, in sectors, from the service times of small reads
    /// and of requests of the present maximum length. Growth that slowed down small reads is
    /// undone.
    fn beside_small(&mut self, pace: &DriveSample, now_ns: u64) -> Option<u32> {
        let (small_ns, piece_ns) = pace.small_ns.zip(pace.piece_ns)?;
        let grown_from_ns = self.grown_from_ns.take();
        if grown_from_ns.is_some_and(|before_ns| small_ns * 5 > before_ns * 7) {
            self.stays_until_ns = now_ns + STAY_NS;
            return Some(self.sectors / 2);
        }
        // A slow drive gets a shorter maximum request length, because a small read waits longer
        // there for a long request.
        let is_long = |ns: u64| ns * 10 > small_ns * if ns >= SLOW_NS / 2 { 19 } else { 28 };
        if is_long(piece_ns) {
            return Some(self.sectors / 2);
        }
        let may_grow = now_ns >= self.stays_until_ns && !pace.double_ns.is_some_and(is_long);
        if piece_ns * 5 < small_ns * 7 && may_grow {
            self.grown_from_ns = Some(small_ns);
            return Some(self.sectors * 2);
        }
        self.grown_from_ns = grown_from_ns;
        Some(self.sectors)
    }
}

/// Returns the length, in sectors, of a random request that costs `moved_ns` nanoseconds, base cost
/// included. Inverse of `OpCost::of_bytes`.
fn moved(moved_ns: u64, cost: &OpCost) -> u64 {
    let moved_ps = u128::from(moved_ns.saturating_sub(cost.random_ns.into())) * 1_000;
    (moved_ps / (512 * u128::from(cost.byte_ps)).max(1)).min(1 << 32) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bio::Op;
    use crate::queue::scheduler::cost::CostModel;
    use crate::queue::scheduler::share::times::{CLASSES, class_of};

    const STEP_NS: u64 = WINDOW_NS / 10;

    /// Returns the size, in KiB, that is reached on a drive that serves this cost and has these
    /// service times.
    fn found(served: u64, busy: bool, small_ns: Option<u64>, piece_ns: fn(u32) -> u64) -> u32 {
        let (mut piece, cost) = (PieceSize::new(), CostModel::default().read);
        let mut known = [None; CLASSES];
        (1..1_000).for_each(|step| {
            let class = |sectors| class_of(Op::Read, sectors);
            let sectors = piece.sectors;
            known[class(sectors)] = Some(piece_ns(sectors / 2));
            let other = |other| known[class(other)].filter(|_| class(other) != class(sectors));
            let pace = DriveSample {
                served,
                small_ios: 0,
                small_ns,
                piece_ns: known[class(sectors)],
                half_ns: other(sectors / 2),
                double_ns: other(sectors * 2),
                may_double: class(sectors * 2) != class(sectors),
                busy,
            };
            piece.look(&pace, &cost, step * STEP_NS);
        });
        piece.sectors / 2
    }

    #[test]
    fn a_piece_takes_not_much_longer_than_a_small_read() {
        let of = |small_ns, piece_ns| found(STEP_NS, true, Some(small_ns), piece_ns);
        // A SATA drive: 540 MB/s, and 100 us for a read of 4 KiB.
        assert_eq!(of(100_000, |kib| 92_000 + u64::from(kib) * 1_900), 64);
        // A drive of eight units, each of which takes 2 ms for a page.
        assert_eq!(of(2_000_000, |kib| u64::from(kib.div_ceil(32)) * 2_000_000), 32);
        // A rotating disk.
        assert_eq!(of(11_000_000, |kib| 11_000_000 + u64::from(kib) * 5_000), 1_024);
    }

    #[test]
    fn it_does_not_grow_because_small_reads_wait_for_pieces() {
        let (mut piece, cost) = (PieceSize::new(), CostModel::default().read);
        let most = (1..2_000).map(|step| {
            // 4 ms for 64 KiB; each small read waits for one of them.
            let waits_ns = Some(u64::from(piece.sectors / 2) * 62_500);
            let pace = DriveSample {
                served: STEP_NS,
                small_ios: 1,
                small_ns: waits_ns,
                piece_ns: waits_ns,
                half_ns: None,
                double_ns: None,
                may_double: true,
                busy: true,
            };
            piece.look(&pace, &cost, step * STEP_NS);
            piece.sectors / 2
        });
        assert_eq!((most.max(), piece.sectors / 2), (Some(128), 64));
    }

    #[test]
    fn half_of_drive_throughput_holds_without_small_reads() {
        let of = |served| found(served, true, None, |kib| u64::from(kib) * 2_000);
        // 500 MB/s according to the cost model: a piece is half of 1 MB.
        assert_eq!(of(STEP_NS), 512);
        assert_eq!((of(STEP_NS / 31), of(STEP_NS << 20)), (32, 32 << 10), "the bounds");
        let idle = found(1, false, None, |kib| u64::from(kib) * 2_000);
        assert_eq!(
            idle,
            FIRST_SECTORS / 2,
            "a drive that is not kept busy may be faster than measured"
        );
        // A disk that seeks for each request: requests of half the size take just as long.
        let seeks = found(STEP_NS / 31, true, None, |kib| 11_000_000 + u64::from(kib) * 5_000);
        assert_eq!(seeks, 512);
        // A drive of eight units, each of which takes 2 ms for a page: larger sizes were tried, and
        // twice the size takes twice as long.
        let pages = found(STEP_NS / 31, true, None, |kib| u64::from(kib.div_ceil(32)) * 2_000_000);
        assert_eq!(pages, 32);
    }
}
