//! `BioChecks`: the properties of a volume that decide whether `Channel::submit` accepts a bio.
//!
//! Plain values copied from the volume when a channel is opened, so that the check of a plain read
//! or write touches one cache line and follows no pointer. Owned by a `Channel`. A volume only
//! grows, so an outdated size may refuse a valid bio but never accepts an invalid one. The size is
//! read again when a bio lies beyond it. Kernel counterpart: `bio_check_eod` and the checks of
//! `submit_bio_noacct`.

use millrace_machine::Machine;

use crate::bio::status::Status;
use crate::bio::{Bio, Op, OpFlags};
use crate::channel::member::VolumeMember;
use crate::queue::driver::QueueKind;
use crate::volume::Volume;

#[derive(Debug, Clone, Copy)]
pub(crate) struct BioChecks {
    capacity: u64,
    /// Number of sectors in a logical block, minus one.
    block_mask: u64,
    /// Longest read or write on the fast path, in sectors; 0 while every bio needs the full checks.
    plain_sectors: u32,
    /// Longest read or write, in sectors, that all drives accept on the fast path; 0 if a drive
    /// limits memory segments, or has boundaries that no request may cross.
    plain_max: u32,
    /// Longest read or write, in sectors, that all drives accept without a split. Not raised while
    /// split bios wait to send their next part. Otherwise longer bios, which then need no split,
    /// would overtake the waiting bios.
    pub(crate) whole_max: u32,
    /// Longest read or write, in sectors, that would take the fast path if no trace were recorded.
    /// 0 while no trace is recorded.
    recorded_sectors: u32,
    read_only: bool,
    pub(crate) traced: bool,
    has_sink: bool,
    pub(crate) watched: bool,
    /// True while every bio must go through `BioSubmission::admit`, because the volume has a single
    /// plug for all drives.
    pub(crate) admits_each: bool,
    /// True while too many bio chains (bios merged into one future request) wait for the drives'
    /// workers. A channel with I/O in flight then accepts no bio.
    pub(crate) pressed: bool,
    /// True if the channel must poll the drives' queues regularly, even if it always has completed
    /// bios at hand. There are two reasons:
    /// - The volume has several drives: a busy drive must not starve the others.
    /// - A drive's queues are `OwnerOnly`: only the thread that owns such a queue may poll it.
    pub(crate) polls_always: bool,
}

impl BioChecks {
    pub(crate) fn new<M: Machine>(volume: &Volume<M>) -> BioChecks {
        let (limits, disks) = (volume.limits(), volume.disks());
        let simple =
            disks.iter().all(|d| d.limits().takes_any_segment() && d.limits().chunk_sectors == 0);
        let mut checks = BioChecks {
            capacity: volume.size.made,
            block_mask: u64::from(limits.logical_sectors()) - 1,
            plain_sectors: 0,
            plain_max: if simple { limits.max_sectors } else { 0 },
            whole_max: limits.max_sectors,
            recorded_sectors: 0,
            read_only: limits.features.read_only,
            polls_always: disks.len() > 1 || disks.iter().any(|d| d.kind() == QueueKind::OwnerOnly),
            traced: disks.iter().any(|d| d.config.trace.is_some()),
            has_sink: disks.iter().any(|d| d.config.trace.is_some()),
            watched: false,
            admits_each: false,
            pressed: false,
        };
        checks.settle();
        checks
    }

    /// Updates the longest read or write that all drives accept without a split. `stalled` is the
    /// number of split bios that wait to send their next part. While it is not 0, `whole_max` does
    /// not grow.
    pub(crate) fn follow_pieces<M: Machine>(&mut self, members: &[VolumeMember<M>], stalled: u32) {
        let longest = members.iter().map(|member| member.limits.max_sectors).min().unwrap_or(0);
        if longest == self.whole_max || stalled > 0 && longest > self.whole_max {
            return;
        }
        self.whole_max = longest;
        if self.plain_max > 0 {
            self.plain_max = longest;
            self.settle();
        }
    }

    pub(crate) fn trace(&mut self, recorded: bool) {
        self.traced = self.has_sink || recorded;
    }

    /// Recomputes the longest bio that may take the fast path. No bio may take it in four cases:
    /// - A drive limits memory segments, or has boundaries that no request may cross (`plain_max`
    ///   is 0).
    /// - A trace is recorded, or a trace sink is set.
    /// - The volume has a single plug for all drives (`admits_each`).
    /// - Too many bios wait for workers (`pressed`).
    pub(crate) fn settle(&mut self) {
        self.watched = self.traced || self.admits_each;
        let usual = !(self.has_sink || self.admits_each || self.pressed);
        // `longest` is at most the volume's size, and `nr` in `is_plain_up_to` is at most
        // `longest`. So the subtraction `capacity - nr` there cannot wrap around.
        let longest = u64::from(self.plain_max).min(self.capacity) as u32;
        let open = if usual { longest } else { 0 };
        (self.plain_sectors, self.recorded_sectors) =
            if self.traced { (0, open) } else { (open, 0) };
    }

    /// Returns true if a bio takes the fast path: a valid read or write of one segment, without
    /// flags, that every drive accepts whole.
    #[inline(always)]
    pub(crate) fn is_plain(&self, bio: &Bio) -> bool {
        self.is_plain_up_to(self.plain_sectors, bio)
    }

    /// Returns true if only the recording of a trace keeps the bio off the fast path.
    pub(crate) fn is_plain_to_record(&self, bio: &Bio) -> bool {
        self.recorded_sectors > 0 && self.is_plain_up_to(self.recorded_sectors, bio)
    }

    #[inline(always)]
    fn is_plain_up_to(&self, sectors: u32, bio: &Bio) -> bool {
        let nr = u64::from(bio.nr_sectors);
        // Only reads and writes have segments, so `op` is one of the two. `Op::Write` is odd, and
        // `Op::Read` even. If the volume is read-only, the lowest bit of `op` makes the check fail
        // for writes.
        bio.nr_segments() == 1
            && bio.flags.0 | (bio.op as u8 & u8::from(self.read_only)) == OpFlags::NONE.0
            && bio.nr_sectors.wrapping_sub(1) < sectors
            && (bio.sector | nr) & self.block_mask == 0
            && bio.sector <= self.capacity.wrapping_sub(nr)
    }

    /// Checks if the volume can serve a bio. If the bio lies beyond the known size, reads the
    /// volume's present size and checks again.
    pub(crate) fn check<M: Machine>(
        &mut self,
        bio: &Bio,
        volume: &Volume<M>,
    ) -> Result<(), Status> {
        match self.check_as_known(bio) {
            Err(Status::OutOfRange) => {
                self.capacity = volume.capacity();
                self.check_as_known(bio)
            }
            checked => checked,
        }
    }

    fn check_as_known(&self, bio: &Bio) -> Result<(), Status> {
        let nr = u64::from(bio.nr_sectors);
        let fits = bio.sector.checked_add(nr).is_some_and(|end| end <= self.capacity);
        match bio.op {
            Op::Flush if nr > 0 && !fits => Err(Status::OutOfRange),
            Op::Flush => Ok(()),
            _ if !bio.has_memory() => Err(Status::Invalid),
            _ if nr == 0 || (bio.sector | nr) & self.block_mask != 0 => Err(Status::Invalid),
            _ if !fits => Err(Status::OutOfRange),
            op if self.read_only && op.is_write() => Err(Status::ReadOnly),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bio::buffer::Buffer;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    /// Returns the checks of a volume of 64 sectors with blocks of `block_sectors`, whose drives
    /// accept 16 sectors in one request.
    fn checks(block_sectors: u64, read_only: bool) -> BioChecks {
        let mut checks = BioChecks {
            capacity: 64,
            block_mask: block_sectors - 1,
            plain_sectors: 0,
            plain_max: 16,
            whole_max: 16,
            recorded_sectors: 0,
            read_only,
            traced: false,
            has_sink: false,
            watched: false,
            admits_each: false,
            pressed: false,
            polls_always: false,
        };
        checks.settle();
        checks
    }

    /// Returns whether a 4 KiB read takes the fast path, and whether it is recorded as one that
    /// would.
    fn open(checks: &BioChecks) -> (bool, bool) {
        let bio = Bio::read(0, Buffer::new(4096));
        (checks.is_plain(&bio), checks.is_plain_to_record(&bio))
    }

    #[test]
    fn nothing_goes_short_way_unlooked_at_while_somebody_must_look() {
        for bits in 0..16u8 {
            let is = |bit: u8| bits & 1 << bit != 0;
            let (has_sink, recorded, admits_each, pressed) = (is(0), is(1), is(2), is(3));
            let mut checks = checks(1, false);
            (checks.has_sink, checks.pressed) = (has_sink, pressed);
            checks.admits_each = admits_each;
            checks.trace(recorded);
            checks.settle();
            let held = has_sink || admits_each || pressed;
            assert_eq!(open(&checks), (!held && !recorded, !held && recorded), "{bits:04b}");
            assert_eq!(checks.traced, has_sink || recorded, "{bits:04b}");
            assert_eq!(checks.watched, has_sink || recorded || admits_each, "{bits:04b}");
        }
    }

    #[test]
    fn drive_asked_about_segments_takes_nothing_unchecked() {
        let mut checks = checks(1, false);
        checks.plain_max = 0;
        checks.settle();
        assert_eq!(open(&checks), (false, false));
        checks.trace(true);
        checks.settle();
        assert_eq!(open(&checks), (false, false));
    }

    /// Returns a bio with `segments` memory segments, if it carries data and is long enough for
    /// them.
    fn bio(op: Op, sector: u64, nr: u32, segments: u32, flags: OpFlags) -> Bio {
        let mut bio = match segments.min(nr) {
            _ if !op.has_data() => Bio::discard(sector, nr),
            0 => Bio::readv(sector, Vec::new()),
            1 => Bio::read(sector, Buffer::new((nr as usize) << 9)),
            _ => {
                let first = Buffer::new((nr as usize - 1) << 9);
                Bio::readv(sector, alloc::vec![first, Buffer::new(512)])
            }
        };
        (bio.op, bio.nr_sectors) = (op, nr);
        bio.with_flags(flags)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn a_bio_is_taken_if_it_is_whole_blocks_of_what_the_volume_has(
            op in (0..Op::ALL.len()).prop_map(|at| Op::ALL[at]),
            sector in prop_oneof![8 => 0u64..80, 1 => Just(u64::MAX - 7), 1 => Just(u64::MAX)],
            nr in 0u32..80,
            segments in 0u32..3,
            durable in any::<bool>(),
            block in prop_oneof![Just(1u64), Just(8)],
            read_only in any::<bool>(),
        ) {
            let checks = checks(block, read_only);
            let flags = if durable { OpFlags::FUA } else { OpFlags::NONE };
            let bio = bio(op, sector, nr, segments, flags);
            let whole = nr > 0 && u64::from(nr) % block == 0 && sector % block == 0;
            let inside = u128::from(sector) + u128::from(nr) <= 64;
            let expected = if op == Op::Flush {
                // A flush of a range, or of the whole volume.
                if nr == 0 || inside { Ok(()) } else { Err(Status::OutOfRange) }
            } else if (op.has_data() && segments.min(nr) == 0) || !whole {
                Err(Status::Invalid)
            } else if !inside {
                Err(Status::OutOfRange)
            } else if read_only && op != Op::Read {
                Err(Status::ReadOnly)
            } else {
                Ok(())
            };
            prop_assert_eq!(checks.check_as_known(&bio), expected);
            let one_piece = op.has_data() && segments.min(nr) == 1 && !durable;
            let plain = one_piece && nr <= 16 && whole && inside && !(read_only && op.is_write());
            prop_assert_eq!(checks.is_plain(&bio), plain);
        }
    }
}
