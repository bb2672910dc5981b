//! Splitting: a bio that is too large, lies on several drives, or needs flushes around it becomes a
//! parent, and its parts become children over the same memory.
//!
//! The code is part of `BioSubmission` and runs on the channel's own thread, so a parent's counts
//! need no atomics. Each part takes a child slot from its drive's share of the channel's child
//! slots. When no slot is free, the parent waits in the drive's list until a part for the drive
//! completes. So one child slot for each drive is enough for progress, memory is bounded, and a
//! drive that does not answer holds up only I/O that touches this drive. Stages: flush before
//! (PREFLUSH), data, flush after (FUA where a drive lacks it). Kernel counterpart: `bio_split`,
//! blk-flush.c.
#![allow(unsafe_code)]

use core::mem::ManuallyDrop;

use millrace_machine::Machine;

use crate::account::disk_counter::DiskCounter;
use crate::bio::limits::Features;
use crate::bio::status::Status;
use crate::bio::{Op, OpFlags, SECTOR_SHIFT, SectorCount};
use crate::chain::slot::{BioRef, BioSlot, BioStage, BioStride, WaitTimes};
use crate::channel::cut::{cut_plainly, cut_to_limits};
use crate::channel::submission::{BioSubmission, SplitRule};
use crate::trace::blktrace::EventCode;
use crate::volume::placement::{DrivePart, VolumeRange};

enum NextPart<M: Machine> {
    Part(BioRef<M>),
    /// No part was made: all bio slots for parts on the drive with this index are in use.
    NoRoom(u16),
    Made,
}

/// Returns true if the drive itself makes this bio durable (FUA), so that no flush must follow.
fn fua_by_drive<M: Machine>(parent: &BioSlot<M>, features: Features) -> bool {
    features.fua && parent.bio.op == Op::Write
}

impl<M: Machine> BioSubmission<M> {
    /// Submits a bio that is not a plain read or write of one drive.
    pub(crate) fn submit_parent(&mut self, mut parent: BioRef<M>) {
        let first = match (parent.bio.op, parent.bio.flags.has(OpFlags::PREFLUSH)) {
            (Op::Flush, _) | (_, true) => BioStage::Preflush,
            _ => BioStage::Data,
        };
        enter_stage(&mut parent, first);
        parent.remaining = 0;
        let has_data = parent.bio.op.has_data();
        parent.member = if has_data { self.split_rule } else { SplitRule::Drives } as u16;
        self.make_parts(parent);
    }

    /// Makes the parts of the split bio `parent` for its present stage (preflush, data or final
    /// flush). If no bio slot is free for a part, `parent` waits for a slot, and the remaining
    /// parts are made later. If all parts are made and none is in flight, the next stage begins at
    /// once, or the bio ends.
    fn make_parts(&mut self, mut parent: BioRef<M>) {
        // The parts get the submission time of the present batch, or the present time if the clock
        // was not read for that batch yet. The split bio may be much older, because it waited for a
        // bio slot or for an earlier stage.
        self.batch.parts_ns = match self.batch.now_ns {
            0 => M::now(),
            now_ns => now_ns,
        };
        let (sector, nr) = (parent.bio.sector, parent.bio.nr_sectors);
        let span = match parent.stage {
            BioStage::Data => self.volume.span(sector, nr),
            _ => (0, self.members.len() as u16),
        };
        // `range` needs at least one sector; a flush, which may have none, does not use `range`.
        let range = self.volume.range(sector, nr.max(1));
        loop {
            match self.next_part(&mut parent, span, &range) {
                NextPart::Part(child) => {
                    parent.remaining += 1;
                    self.admit_part(child);
                }
                NextPart::NoRoom(member) => {
                    self.stalled += 1;
                    return self.members[usize::from(member)].child_slots.stall(parent);
                }
                NextPart::Made => break,
            }
        }
        parent.all_made = true;
        if parent.remaining == 0 {
            self.next_stage(parent);
        } else {
            // Only the parts refer to `parent` now: each part stores the handle as a number in
            // `BioSlot::parent`. `part_done` turns this number back into the handle.
            core::mem::forget(parent);
        }
    }

    /// Starts the next stage of the split bio `parent`: the data after the preflush, or the final
    /// flush after the data. Finishes `parent` if no stage is left or a part has failed.
    fn next_stage(&mut self, mut parent: BioRef<M>) {
        let next = match parent.stage {
            _ if !parent.status.is_ok() => None,
            BioStage::Preflush if parent.bio.op != Op::Flush => Some(BioStage::Data),
            BioStage::Data if parent.bio.flags.has(OpFlags::FUA) => Some(BioStage::Postflush),
            _ => None,
        };
        match next {
            Some(stage) => {
                enter_stage(&mut parent, stage);
                self.make_parts(parent);
            }
            None => self.finished.push_back(parent),
        }
    }

    #[inline(never)]
    pub(crate) fn part_done(&mut self, mut child: BioRef<M>) {
        let (status, bits) = (child.status, core::mem::take(&mut child.parent));
        self.members[usize::from(child.member)].child_slots.free.push_front(child);
        // SAFETY: `bits` is the parent's handle; only this thread uses it, and keeps no second one.
        let mut parent = ManuallyDrop::new(
            unsafe { BioRef::<M>::from_bits(bits) }.expect("a child has a parent"),
        );
        // A timeout replaces any other error. The status `TimedOut` makes the channel quarantine
        // the memory of the split bio, which a drive may still write.
        parent.status = match status {
            Status::TimedOut => status,
            _ => parent.status.or(status),
        };
        parent.remaining -= 1;
        if parent.all_made && parent.remaining == 0 {
            self.next_stage(ManuallyDrop::into_inner(parent));
        }
    }

    #[cold]
    pub(crate) fn resume_stalled(&mut self) {
        for member in 0..self.members.len() {
            self.resumes = Some(member as u16);
            while let Some(parent) = self.members[member].child_slots.next_stalled() {
                self.stalled -= 1;
                self.make_parts(parent);
            }
        }
        self.resumes = None;
    }

    /// Makes the next part of the split bio `parent` in its present stage (preflush, data or final
    /// flush). `span` is the index of the bio's first drive and the number of its drives. Two
    /// fields of `parent` store the progress:
    /// - `offset`: number of drives that have all their parts.
    /// - `dev_sector`: on the next drive, number of sectors of the bio's data that are in parts. In
    ///   a stage of flushes, 1 if the flush of the next drive is made, otherwise 0.
    ///
    /// With `SplitRule::Chunks`, `next_chunk` makes the parts of the data.
    fn next_part(
        &mut self,
        parent: &mut BioRef<M>,
        span: (u16, u16),
        range: &VolumeRange,
    ) -> NextPart<M> {
        if parent.member == SplitRule::Chunks as u16 && parent.stage == BioStage::Data {
            return self.next_chunk(parent);
        }
        let drives = self.members.len() as u32;
        while parent.offset < span.1.into() && parent.status.is_ok() {
            let ahead = u32::from(span.0) + parent.offset;
            let member = if ahead < drives { ahead } else { ahead - drives } as u16;
            let next = match parent.stage {
                BioStage::Data => self.next_data_part(parent, range, member),
                _ => self.next_flush_part(parent, member),
            };
            if !matches!(next, NextPart::Made) {
                return next;
            }
            parent.offset += 1;
            parent.dev_sector = 0;
        }
        NextPart::Made
    }

    /// Returns true if the bio must wait behind bios of its group that wait for a free bio slot on
    /// drive `member`. Returns false while `resume_stalled` continues the waiting bios of this
    /// drive.
    #[inline(always)]
    pub(crate) fn is_behind(&self, slot: &BioSlot<M>, member: u16) -> bool {
        self.stalled > 0 && self.resumes != Some(member) && {
            let slots = &self.members[usize::from(member)].child_slots;
            slots.has_stalled(slot.bio.account_key.group)
        }
    }

    fn next_flush_part(&mut self, parent: &mut BioRef<M>, member: u16) -> NextPart<M> {
        let features = self.members[usize::from(member)].disk.limits().features;
        let after = parent.stage == BioStage::Postflush;
        let (sector, nr) = (parent.bio.sector, parent.bio.nr_sectors);
        let is_of_range = after || parent.bio.op == Op::Flush && nr > 0;
        let touched = !is_of_range || self.volume.part(sector, nr, member).is_some();
        let wanted = features.volatile_cache && touched && parent.dev_sector == 0;
        if !wanted || (after && fua_by_drive(parent, features)) {
            return NextPart::Made;
        }
        if self.members[usize::from(member)].child_slots.free.is_empty() {
            return NextPart::NoRoom(member);
        }
        parent.dev_sector = 1;
        let part =
            DrivePart { member, dev_sector: 0, nr_sectors: 0, offset: 0, stride: BioStride::NONE };
        NextPart::Part(self.child_of(parent, Op::Flush, part))
    }

    fn next_data_part(
        &mut self,
        parent: &mut BioRef<M>,
        range: &VolumeRange,
        member: u16,
    ) -> NextPart<M> {
        let Some(part) = self.volume.part_of(range, member) else { return NextPart::Made };
        let made = parent.dev_sector as SectorCount;
        if made >= part.nr_sectors {
            return NextPart::Made;
        }
        // The bio waits if older bios of its group wait. Otherwise the parts of several bios could
        // alternate, and a hard disk would seek back and forth.
        if self.is_behind(parent, member)
            || self.members[usize::from(member)].child_slots.free.is_empty()
        {
            return NextPart::NoRoom(member);
        }
        let rest = if made == 0 { part } else { part.skip(made) };
        let Some(child) = self.data_part(parent, rest) else { return NextPart::Made };
        if made + child.bio.nr_sectors == part.nr_sectors {
            (parent.offset, parent.dev_sector) = (parent.offset + 1, 0);
        } else {
            parent.dev_sector += u64::from(child.bio.nr_sectors);
        }
        NextPart::Part(child)
    }

    /// Makes the next part of a bio that is split at every chunk, as Linux's raid0 does.
    /// `parent.offset` is the number of sectors that already have parts.
    fn next_chunk(&mut self, parent: &mut BioRef<M>) -> NextPart<M> {
        let (made, nr) = (parent.offset, parent.bio.nr_sectors);
        if made >= nr || !parent.status.is_ok() {
            return NextPart::Made;
        }
        let (sector, end) = (parent.bio.sector, parent.bio.sector + u64::from(nr));
        let (member, dev_sector, run) = self.volume.run_at(sector + u64::from(made), end);
        if self.members[usize::from(member)].child_slots.free.is_empty() {
            return NextPart::NoRoom(member);
        }
        let stride = BioStride::NONE;
        let part = DrivePart { member, dev_sector, nr_sectors: run as u32, offset: made, stride };
        let Some(child) = self.data_part(parent, part) else { return NextPart::Made };
        parent.offset += child.bio.nr_sectors;
        NextPart::Part(child)
    }

    /// Makes a bio for as much of `part` (the data of the split bio `parent` on one drive) as one
    /// request of the drive can carry. If not even one block fits, sets the error of `parent` and
    /// returns `None`.
    #[inline(always)]
    fn data_part(&mut self, parent: &mut BioRef<M>, part: DrivePart) -> Option<BioRef<M>> {
        let mut child = self.child_of(parent, parent.bio.op, part);
        let member = &self.members[usize::from(part.member)];
        let limits = &member.limits;
        let (sectors, segments) = match member.takes_plain && parent.bio.op.has_data() {
            true => cut_plainly(&child, limits),
            false => cut_to_limits(&child, limits),
        };
        if sectors == 0 {
            parent.status = match parent.bio.op.has_data() {
                true => Status::Invalid,
                false => Status::NotSupported,
            };
            child.parent = 0;
            self.members[usize::from(part.member)].child_slots.free.push_front(child);
            return None;
        }
        child.bio.nr_sectors = sectors;
        (child.chain_sectors, child.chain_segments) = (sectors, segments);
        if parent.bio.flags != OpFlags::NONE {
            if parent.bio.flags.has(OpFlags::FUA) && fua_by_drive(parent, limits.features) {
                child.bio.flags = child.bio.flags.with(OpFlags::FUA);
            }
            let kept = OpFlags(parent.bio.flags.0 & OpFlags::NOUNMAP.0);
            child.bio.flags = child.bio.flags.with(kept);
        }
        Some(child)
    }

    fn child_of(&mut self, parent: &BioRef<M>, op: Op, part: DrivePart) -> BioRef<M> {
        let room = &mut self.members[usize::from(part.member)].child_slots;
        let mut child = room.free.pop_front().expect("the caller has checked that a slot is free");
        child.bio = ManuallyDrop::new(parent.bio.part(op, part.nr_sectors));
        child.stage = BioStage::Child;
        child.status = Status::Ok;
        child.parent = parent.as_bits();
        child.member = part.member;
        child.dev_sector = part.dev_sector;
        child.offset = part.offset << SECTOR_SHIFT;
        debug_assert_eq!(child.waited, WaitTimes::NOT);
        child.q_ns = self.batch.parts_ns;
        child.of_foreign = parent.is_foreign();
        child.tail = child.as_ptr();
        (child.chain_sectors, child.chain_segments) = (part.nr_sectors, 0);
        child.stride = part.stride;
        let member = &self.members[usize::from(part.member)];
        member.stats.add(DiskCounter::Parts, 1);
        if self.checks.traced {
            member.disk.trace(&mut self.run).slot(EventCode::Split, &child);
        }
        child
    }
}

fn enter_stage<M: Machine>(parent: &mut BioRef<M>, stage: BioStage) {
    parent.stage = stage;
    parent.all_made = false;
    (parent.offset, parent.dev_sector) = (0, 0);
}
