//! `BioSubmission`: the submitting side of a channel: puts bios into plugs, and sends them to
//! drives.
//!
//! A `Channel` owns it. Only the channel's thread uses it, so it has no locks. It owns the free bio
//! slots, the submit context, and a `VolumeMember` with a plug for each drive. A plain read or
//! write goes straight into the plug of its drive. Other bios may be split into parts (split.rs).
//! If other threads may serve a batch, unplug.rs chooses the thread. Kernel counterpart:
//! `submit_bio_noacct`, `blk_flush_plug`.

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_machine::Machine;

use crate::account::hold::WaitReason;
use crate::bio::error::{Error, ErrorKind};
use crate::bio::group_id::GroupId;
use crate::bio::limits::MAX_DATA_SECTORS;
use crate::bio::status::Status;
use crate::bio::{Bio, Op, OpFlags, Sector, SectorCount};
use crate::chain::slot::{BioList, BioRef, BioStage, BioStride, WaitTimes};
use crate::channel::baseline::VolumePlug;
use crate::channel::checks::BioChecks;
use crate::channel::completion::Reject;
use crate::channel::cut::cut_to_limits;
use crate::channel::member::VolumeMember;
use crate::channel::throttle::{HeldCharge, Throttle};
use crate::disk::Disk;
use crate::disk::submit_context::{Stamp, SubmitContext};
use crate::queue::io_thread::IoThread;
use crate::trace::note::TraceMessage;
use crate::volume::Volume;
use crate::volume::serving::ServingChooser;

/// Rule by which a bio is split. A split bio stores the rule, as a number, in `BioSlot::member`. In
/// other bios, this field holds the index of the bio's drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum SplitRule {
    /// Each drive gets one part of the bio, or several parts if the drive's limits require that.
    Drives,
    Chunks,
}

pub(crate) struct PluggedBatch {
    pub(crate) plugged: u32,
    pub(crate) plugged_max: u32,
    /// Submission time of the next bio; 0 if the clock was not read for this batch yet.
    pub(crate) now_ns: u64,
    pub(crate) parts_ns: u64,
    /// True if parts of split bios were put into the plugs since the plugs were last flushed. A
    /// poll that puts parts into the plugs sends them to the drives before it ends.
    pub(crate) has_parts: bool,
}

pub(crate) struct BioSubmission<M: Machine> {
    pub(crate) volume: Arc<Volume<M>>,
    pub(crate) members: Vec<VolumeMember<M>>,
    pub(crate) run: SubmitContext<M>,
    pub(crate) free: BioList<M>,
    pub(crate) depth: u32,
    /// Number of split bios that wait for a free bio slot for their next part.
    pub(crate) stalled: u32,
    /// Index of the drive for which `resume_stalled` is now sending the split bios that wait for a
    /// free bio slot; `None` while `resume_stalled` does not run.
    pub(crate) resumes: Option<u16>,
    /// Bios for the next poll: split bios whose parts are done, and bios that reached no drive.
    pub(crate) finished: BioList<M>,
    pub(crate) batch: PluggedBatch,
    pub(crate) checks: BioChecks,
    pub(crate) chooser: ServingChooser,
    /// Index of the drive that is served first in the next batch. Changes from batch to batch,
    /// because later drives wait for earlier ones.
    pub(crate) first_member: usize,
    /// Single plug for all drives, while the volume is served in `per-volume` mode (baseline.rs).
    pub(crate) volume_plug: Option<Box<VolumePlug<M>>>,
    pub(crate) split_rule: SplitRule,
    pub(crate) throttle: Throttle<M>,
}

impl<M: Machine> BioSubmission<M> {
    #[inline(always)]
    pub(crate) fn in_flight(&self) -> u32 {
        self.depth - self.free.len()
    }

    /// Starts a bio that was checked and put into bio slot `slot`. The bio goes into a plug, or
    /// waits for a limit of its group. `plain` is true if the bio may take the fast path.
    #[inline(always)]
    pub(crate) fn start(&mut self, mut slot: BioRef<M>, plain: bool) {
        if self.batch.now_ns == 0 || self.run.stamp == Stamp::Io {
            self.batch.now_ns = M::now();
            if self.throttle.is_old() {
                self.throttle.renew(self.batch.now_ns);
            }
        }
        (slot.q_ns, slot.waited) = (self.batch.now_ns, WaitTimes::NOT);
        if self.throttle.is_on {
            let bio = (slot.bio.sector, slot.bio.nr_sectors, slot.bio.account_key.group);
            match self.throttle.pass(slot, self.batch.now_ns) {
                Some(free) => slot = free,
                None => return self.note_held(bio),
            }
        }
        if plain {
            if let [only] = &mut self.members[..] {
                let dev_sector = slot.bio.sector;
                make_whole(&mut slot, 0, dev_sector, 1);
                self.batch.plugged += 1;
                return only.plug(slot);
            }
            let (sector, nr_sectors) = (slot.bio.sector, slot.bio.nr_sectors);
            if let Some((member, dev_sector)) = self.volume.locate(sector, nr_sectors) {
                make_whole(&mut slot, member, dev_sector, 1);
                self.batch.plugged += 1;
                return self.members[usize::from(member)].plug(slot);
            }
        }
        self.submit_slowly(slot);
    }

    #[inline(never)]
    pub(crate) fn look_closer(&mut self, bio: &Bio) -> Result<(), Reject> {
        self.checks.check(bio, &self.volume).map_err(Reject::Invalid)?;
        // With nothing in flight, the submitter might never poll, and so never retry. Its bio is
        // therefore accepted even under back pressure.
        match self.checks.pressed && self.in_flight() > 0 && !self.has_relief() {
            true => Err(Reject::Full),
            false => Ok(()),
        }
    }

    /// Submits bios that cannot take the fast path: flushes, discards, bios with flags or several
    /// segments, bios that are too long for one request, and all bios while a trace is recorded.
    #[inline(never)]
    fn submit_slowly(&mut self, mut slot: BioRef<M>) {
        slot.status = Status::Ok;
        if self.checks.is_plain_to_record(&slot.bio)
            && let Some((member, dev_sector)) =
                self.volume.locate(slot.bio.sector, slot.bio.nr_sectors)
        {
            make_whole(&mut slot, member, dev_sector, 1);
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
            slot.stride = BioStride::NONE;
            let (sectors, segments) = cut_to_limits(&slot, &limits);
            let is_long = nr_sectors > self.checks.whole_max;
            let is_behind = is_long && self.is_behind(&slot, member);
            if flags_fit && sectors == nr_sectors && !is_behind {
                make_whole(&mut slot, member, dev_sector, segments);
                return self.admit(slot);
            }
        }
        self.submit_parent(slot);
    }

    pub(crate) fn admit(&mut self, slot: BioRef<M>) {
        if self.volume_plug.is_some() {
            return self.plug_request(slot);
        }
        let member = &mut self.members[usize::from(slot.member)];
        if slot.op() == Op::Flush {
            member.flushes = true;
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

    pub(crate) fn admit_part(&mut self, slot: BioRef<M>) {
        self.batch.has_parts = true;
        // `slot` is a part of a split bio, submitted at `parts_ns`. With `Stamp::Batch`, later bios
        // of the batch get the same submission time, so that the clock is not read again.
        self.batch.now_ns = self.batch.parts_ns;
        self.admit(slot);
        if self.batch.plugged >= self.batch.plugged_max {
            self.flush_called();
        }
    }

    #[inline(never)]
    pub(crate) fn flush_called(&mut self) {
        self.flush();
    }

    #[inline(always)]
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

    #[inline(never)]
    fn note_held(&mut self, (sector, sectors, group): (Sector, SectorCount, GroupId)) {
        if self.run.trace.is_some() {
            let wait_ns = self.throttle.held_until_ns.saturating_sub(self.batch.now_ns);
            let remark = TraceMessage::Waits(self.throttle.view.known(group), WaitReason::Limit);
            self.note(sector, sectors, (remark, wait_ns));
        }
    }

    /// Records a trace message about a range of sectors. The message names the drive that holds the
    /// range. If several drives hold it, the message names the volume's first drive.
    fn note(
        &mut self,
        sector: Sector,
        sectors: SectorCount,
        (remark, time_ns): (TraceMessage, u64),
    ) {
        let member = self.volume.locate(sector, sectors).map_or(0, |(member, _)| member);
        let disk = &self.members[usize::from(member)].disk;
        disk.trace(&mut self.run).note(remark, time_ns);
    }

    #[inline(never)]
    fn release(&mut self) {
        let now_ns = M::now();
        let due = self.throttle.take_due(now_ns);
        if self.run.trace.is_some() {
            due.for_each(|slot| {
                let group = self.throttle.view.known(slot.bio.account_key.group);
                let remark = TraceMessage::GoesOn(group, WaitReason::Limit);
                let waited_ns = now_ns.saturating_sub(slot.q_ns);
                self.note(slot.bio.sector, slot.bio.nr_sectors, (remark, waited_ns));
            });
        }
        self.admit_held(due);
    }

    /// Submits all bios that wait for limits, and ignores limits from now on.
    pub(crate) fn lift_limits(&mut self) {
        let all = self.throttle.lift();
        self.admit_held(all);
    }

    pub(crate) fn abort_held(&mut self, is_meant: impl FnMut(&Bio) -> bool) {
        let mut aborted = self.throttle.take(is_meant, HeldCharge::Returned);
        while let Some(mut slot) = aborted.pop_front() {
            slot.status = Status::Aborted;
            self.finished.push_back(slot);
        }
    }

    /// Submits the bios that wait for limits and that `is_meant` selects. Their cost still counts
    /// against the limits of their groups.
    pub(crate) fn release_held(&mut self, is_meant: impl FnMut(&Bio) -> bool) {
        if self.throttle.held > 0 {
            let paid = self.throttle.take(is_meant, HeldCharge::Paid);
            self.admit_held(paid);
        }
    }

    fn admit_held(&mut self, mut held: BioList<M>) {
        while let Some(slot) = held.pop_front() {
            // `has_waited` keeps the bio off the fast path, which does not record waits for limits.
            self.run.trace_context.has_waited = true;
            self.submit_slowly(slot);
        }
    }

    #[inline(always)]
    fn flush_plugs(&mut self) {
        if !self.volume.is_usual() || self.checks.watched {
            return self.flush_served();
        }
        self.batch.plugged = match self.members.len() {
            1 => self.members[0].flush(&mut self.run),
            _ => flush_each(&mut self.members, &mut self.run),
        };
    }
}

/// Submits the plugged bios of several drives. Returns how many chains the drives refused.
#[inline(never)]
fn flush_each<M: Machine>(members: &mut [VolumeMember<M>], run: &mut SubmitContext<M>) -> u32 {
    members.iter_mut().map(|member| member.flush(run)).sum()
}

#[inline(always)]
fn make_whole<M: Machine>(slot: &mut BioRef<M>, member: u16, dev_sector: u64, segments: u16) {
    slot.member = member;
    slot.dev_sector = dev_sector;
    slot.offset = 0;
    slot.chain_sectors = slot.bio.nr_sectors;
    slot.tail = slot.as_ptr();
    slot.chain_segments = segments;
    slot.stride = BioStride::NONE;
    slot.stage = BioStage::Whole;
    slot.status = Status::Ok;
}

pub(crate) fn members_of<M: Machine>(
    volume: &Volume<M>,
    thread: Option<&IoThread<M>>,
    stamp: Stamp,
) -> Result<Vec<VolumeMember<M>>, Error> {
    let member = |disk: &Arc<Disk<M>>| {
        // An I/O thread uses the queue that it has claimed. If it has claimed none, it uses the
        // queue whose number is the thread's number.
        let number = thread.map(|t| disk.queue_of(t.owner).unwrap_or(t.number));
        let member = VolumeMember::new(disk, number, stamp);
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
