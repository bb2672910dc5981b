//! `Submission`: the half of a channel before the queues: an accepted bio goes into a drive's plug,
//! and the plugs go to the drives.
//!
//! Owned by a `Channel` and used by its thread alone, so nothing here is locked. Owns the slots of
//! bios that may be submitted, the members (one for each drive, with its plug) and the runner. A
//! plain read or write of one drive goes straight into that drive's plug; whatever else becomes a
//! parent with parts (split.rs). Where others than this thread may serve a batch, unplug.rs decides
//! who does. Kernel counterpart: `submit_bio_noacct`, `blk_flush_plug`.

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_machine::Machine;

use crate::account::hold::Hold;
use crate::bio::error::{Error, ErrorKind};
use crate::bio::group_id::GroupId;
use crate::bio::limits::MAX_DATA_SECTORS;
use crate::bio::status::Status;
use crate::bio::{Bio, Op, OpFlags, Sector, SectorCount};
use crate::chain::slot::{BioList, BioRef, BioStage, Stride, Waited};
use crate::channel::baseline::volume_plug::VolumePlug;
use crate::channel::checks::BioChecks;
use crate::channel::completion::Reject;
use crate::channel::cut::cut_to_limits;
use crate::channel::member::Member;
use crate::channel::throttle::Throttle;
use crate::disk::Disk;
use crate::disk::runner::{Runner, Stamp};
use crate::queue::io_thread::IoThread;
use crate::trace::note::Remark;
use crate::volume::Volume;
use crate::volume::serving::Chooser;

/// What is in the plugs.
pub(crate) struct Batch {
    /// Bios in all plugs.
    pub(crate) plugged: u32,
    /// Bios at which they are emptied.
    pub(crate) plugged_max: u32,
    /// Stamp of what goes in; 0: none taken yet.
    pub(crate) now_ns: u64,
    /// Stamp of the parts that are made.
    pub(crate) parts_ns: u64,
    /// Parts were put in on the way back, by a stage that ended.
    pub(crate) has_parts: bool,
}

/// The half of a channel before the queues.
pub(crate) struct Submission<M: Machine> {
    pub(crate) volume: Arc<Volume<M>>,
    pub(crate) members: Vec<Member<M>>,
    pub(crate) run: Runner<M>,
    /// Slots that no bio is in.
    pub(crate) free: BioList<M>,
    /// How many slots there are.
    pub(crate) depth: u32,
    /// Parents that wait for a child slot of some drive.
    pub(crate) stalled: u32,
    /// The drive for which such parents get their turn now.
    pub(crate) resumes: Option<u16>,
    /// Parents that are done, and bios that got to no drive.
    pub(crate) finished: BioList<M>,
    pub(crate) batch: Batch,
    pub(crate) checks: BioChecks,
    /// Its part in whether workers serve, where that is measured.
    pub(crate) chooser: Chooser,
    /// The member that a batch begins with: another one each time, since the later ones wait for
    /// the earlier to be served here, or for their workers to be woken.
    pub(crate) first_member: usize,
    /// The plug of a baseline; made when it is first needed.
    pub(crate) volume_plug: Option<Box<VolumePlug<M>>>,
    /// Bios that wait for a limit of their group.
    pub(crate) throttle: Throttle<M>,
}

impl<M: Machine> Submission<M> {
    /// Bios accepted and not yet handed back.
    #[inline(always)]
    pub(crate) fn in_flight(&self) -> u32 {
        self.depth - self.free.len()
    }

    /// Puts a checked bio, in its slot, on its way into a plug; `plain` is what the checks said.
    #[inline(always)]
    pub(crate) fn start(&mut self, mut slot: BioRef<M>, plain: bool) {
        if self.batch.now_ns == 0 || self.run.stamp == Stamp::Io {
            self.batch.now_ns = M::now();
            if self.throttle.is_old() {
                self.throttle.renew(self.batch.now_ns);
            }
        }
        (slot.q_ns, slot.waited) = (self.batch.now_ns, Waited::NOT);
        slot.status = Status::Ok;
        slot.foreign = slot.bio.is_foreign();
        if self.throttle.is_on {
            let bio = (slot.bio.sector, slot.bio.nr_sectors, slot.bio.payer.group);
            match self.throttle.pass(slot, self.batch.now_ns) {
                Some(free) => slot = free,
                None => return self.note_held(bio),
            }
        }
        if plain
            && let Some((member, dev_sector)) =
                self.volume.locate(slot.bio.sector, slot.bio.nr_sectors)
        {
            self.make_whole(&mut slot, member, dev_sector, 1);
            self.batch.plugged += 1;
            return self.members[usize::from(member)].plug(slot);
        }
        self.submit_slowly(slot);
    }

    /// Whether a bio that is not plain, or no longer, is taken.
    #[inline(never)]
    pub(crate) fn look_closer(&mut self, bio: &Bio) -> Result<(), Reject> {
        self.checks.check(bio, &self.volume).map_err(Reject::Invalid)?;
        // With nothing in flight nobody would come back to ask again: one always gets in.
        match self.checks.pressed && self.in_flight() > 0 && !self.has_relief() {
            true => Err(Reject::Full),
            false => Ok(()),
        }
    }

    /// Flushes, discards, flags, lists of segments, whatever is too long for one request, and all
    /// that is recorded.
    #[inline(never)]
    fn submit_slowly(&mut self, mut slot: BioRef<M>) {
        if self.checks.is_plain_to_record(&slot.bio)
            && let Some((member, dev_sector)) =
                self.volume.locate(slot.bio.sector, slot.bio.nr_sectors)
        {
            self.make_whole(&mut slot, member, dev_sector, 1);
            self.batch.plugged += 1;
            return self.plug_traced(slot);
        }
        if slot.bio.op.has_data() && slot.bio.nr_sectors > MAX_DATA_SECTORS {
            slot.status = Status::Invalid;
            return self.finished.push_back(slot);
        }
        let (sector, nr_sectors) = (slot.bio.sector, slot.bio.nr_sectors);
        let located = match slot.bio.op {
            Op::Flush => None,
            _ => self.volume.locate(sector, nr_sectors),
        };
        if let Some((member, dev_sector)) = located {
            let limits = self.members[usize::from(member)].limits;
            let fua_by_drive = limits.features.fua || !limits.features.volatile_cache;
            let flags_fit = !slot.bio.flags.has(OpFlags::PREFLUSH)
                && (!slot.bio.flags.has(OpFlags::FUA) || fua_by_drive && slot.bio.op == Op::Write);
            (slot.dev_sector, slot.offset) = (dev_sector, 0);
            slot.set_stride(Stride::NONE);
            let (sectors, segments) = cut_to_limits(&slot, &limits);
            let is_long = nr_sectors > self.checks.whole_max;
            let is_behind = is_long && self.is_behind(&slot, member);
            if flags_fit && sectors == nr_sectors && !is_behind {
                self.make_whole(&mut slot, member, dev_sector, segments);
                return self.admit(slot);
            }
        }
        self.submit_parent(slot);
    }

    #[inline(always)]
    fn make_whole(&self, slot: &mut BioRef<M>, member: u16, dev_sector: u64, segments: u16) {
        slot.stage = BioStage::Whole;
        slot.member = member;
        slot.dev_sector = dev_sector;
        slot.offset = 0;
        slot.chain_sectors = slot.bio.nr_sectors;
        slot.chain_segments = segments;
        slot.tail = slot.as_ptr();
        slot.set_stride(Stride::NONE);
    }

    /// Puts a bio that goes to one drive into that drive's plug, or into a baseline's.
    pub(crate) fn admit(&mut self, slot: BioRef<M>) {
        if self.checks.baseline {
            return self.plug_request(slot);
        }
        let member = &mut self.members[usize::from(slot.member)];
        if slot.op() == Op::Flush {
            member.expect_flush();
        }
        self.batch.plugged += 1;
        match self.checks.traced {
            true => self.plug_traced(slot),
            false => member.plug(slot),
        }
    }

    #[inline(never)]
    fn plug_traced(&mut self, slot: BioRef<M>) {
        let drives = self.members.len();
        self.members[usize::from(slot.member)].plug_traced(slot, drives, &mut self.run);
    }

    /// [`Submission::admit`] off the hot path, for parts.
    pub(crate) fn admit_part(&mut self, slot: BioRef<M>) {
        self.batch.has_parts = true;
        // Only where something is plugged, so that the stamp goes with it.
        self.batch.now_ns = self.batch.parts_ns;
        self.admit(slot);
        if self.batch.plugged >= self.batch.plugged_max {
            self.flush();
        }
    }

    /// Starts all that was submitted.
    #[inline]
    pub(crate) fn flush(&mut self) {
        if self.throttle.held != 0 {
            self.release();
        }
        self.batch.has_parts = false;
        if self.batch.plugged != 0 {
            self.flush_plugs();
            self.run.trace_context.has_waited = false;
        }
        self.batch.now_ns = 0;
    }

    /// For the recorder, that a bio of a place and group begins to wait for a limit.
    #[inline(never)]
    fn note_held(&mut self, (sector, sectors, group): (Sector, SectorCount, GroupId)) {
        if self.run.trace.is_some() {
            let wait_ns = self.throttle.held_until_ns.saturating_sub(self.batch.now_ns);
            let remark = Remark::Waits(self.throttle.known(group), Hold::Limit);
            self.note(sector, sectors, (remark, wait_ns));
        }
    }

    /// For the recorder, a remark about a bio's drive; about the first one if it goes to several.
    fn note(&mut self, sector: Sector, sectors: SectorCount, (remark, time_ns): (Remark, u64)) {
        let member = self.volume.locate(sector, sectors).map_or(0, |(member, _)| member);
        let disk = &self.members[usize::from(member)].disk;
        disk.trace(&mut self.run).note(remark, time_ns);
    }

    /// Sends those on that have waited long enough for their limits.
    #[inline(never)]
    fn release(&mut self) {
        let now_ns = M::now();
        let due = self.throttle.take_due(now_ns);
        if self.run.trace.is_some() {
            due.for_each(|slot| {
                let group = self.throttle.known(slot.bio.payer.group);
                let remark = Remark::GoesOn(group, Hold::Limit);
                let waited_ns = now_ns.saturating_sub(slot.q_ns);
                self.note(slot.bio.sector, slot.bio.nr_sectors, (remark, waited_ns));
            });
        }
        self.admit_held(due);
    }

    /// Sends all on that wait for limits, and limits nothing from now on.
    pub(crate) fn lift_limits(&mut self) {
        let all = self.throttle.lift();
        self.admit_held(all);
    }

    /// Ends bios that wait for limits, as far as `is_meant` says.
    pub(crate) fn abort_held(&mut self, is_meant: impl FnMut(&Bio) -> bool) {
        let mut aborted = self.throttle.take_unpaid(is_meant);
        while let Some(mut slot) = aborted.pop_front() {
            slot.status = Status::Aborted;
            self.finished.push_back(slot);
        }
    }

    /// Sends bios on that wait for limits, as far as `is_meant` says; their groups pay for them.
    pub(crate) fn release_held(&mut self, is_meant: impl FnMut(&Bio) -> bool) {
        if self.throttle.held > 0 {
            let paid = self.throttle.take_paid(is_meant);
            self.admit_held(paid);
        }
    }

    fn admit_held(&mut self, mut held: BioList<M>) {
        while let Some(slot) = held.pop_front() {
            // Their waiting is counted only where they are not taken for fresh ones.
            self.run.trace_context.has_waited = true;
            self.submit_slowly(slot);
        }
    }

    #[inline(always)]
    fn flush_plugs(&mut self) {
        if !self.volume.is_usual() || self.checks.watched {
            return self.flush_served();
        }
        self.batch.plugged = 0;
        for member in &mut self.members {
            self.batch.plugged += member.flush(&mut self.run);
        }
    }
}

/// The drives of a volume as a thread sees them.
pub(crate) fn members_of<M: Machine>(
    volume: &Volume<M>,
    thread: Option<&IoThread<M>>,
) -> Result<Vec<Member<M>>, Error> {
    let member = |disk: &Arc<Disk<M>>| {
        // A thread that claimed a queue uses that one, whatever its own number is.
        let number = thread.map(|t| disk.queue_of(t.owner).unwrap_or(t.number));
        let member = Member::new(disk, number);
        if thread.is_none() && !member.hctx().is_served() {
            let text = format!(
                "volume {}: the queues of drive {} belong to I/O threads, and there is none; open \
                 the channel on one, with IoContext::channel, or with millrace::Channel, which \
                 makes the calling thread one",
                volume.name(),
                disk.name()
            );
            return Err(Error::new(ErrorKind::NotSupported, text));
        }
        Ok(member)
    };
    volume.disks().iter().map(member).collect()
}
