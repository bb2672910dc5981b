//! `Channel`: one thread's way into a volume: submit, flush, poll, wait.
//!
//! Owned by its thread (not `Sync`, and it does not move once in use). Owns the slots, the plugs
//! and the runner; shares nothing with other threads but the queues and its `Home`. Feels like
//! io_uring: submit with user data, reap completions. Back pressure: a full channel gives the bio
//! back. On drop it drains for a while, then leaks what a drive may still write. Kernel
//! counterpart: a task with its plug, and its io_uring.
#![allow(unsafe_code)]

pub(crate) mod gate;
pub(crate) mod member;
pub(crate) mod plug;
pub(crate) mod reap;
pub(crate) mod served;
pub(crate) mod split;
pub(crate) mod volume_plug;
pub(crate) mod worker;

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem::ManuallyDrop;

use millrace_machine::{Doorbell, Machine, Order, Parker, Word};

use crate::bio::error::{Error, ErrorKind};
use crate::bio::limits::MAX_DATA_SECTORS;
use crate::bio::status::Status;
use crate::bio::{Bio, Op, OpFlags};
use crate::chain::home::Home;
use crate::chain::slot::{BioList, BioRef, Stage, Stride, Waited};
use crate::channel::gate::Gate;
use crate::channel::member::Member;
use crate::channel::reap::Completion;
use crate::channel::served::Served;
use crate::channel::split::{Room, cut_to_limits};
use crate::disk::Disk;
use crate::disk::runner::{Runner, Stamp};
use crate::queue::driver::QueueKind;
use crate::trace::Unplug;
use crate::volume::Volume;

/// How long a dropped channel waits for its I/O before it gives memory up for lost.
pub(crate) const DRAIN_NS: u64 = 5_000_000_000;

/// Settings of a channel.
pub struct ChannelConfig<M: Machine> {
    /// Bios that may be in flight, 1 to 65,536; above that `submit` gives them back.
    pub depth: u32,
    /// When times are taken.
    pub stamp: Stamp,
    /// The I/O thread that it runs on, if that owns queues.
    pub thread: Option<IoThread<M>>,
}

impl<M: Machine> Default for ChannelConfig<M> {
    fn default() -> Self {
        ChannelConfig { depth: 256, stamp: Stamp::Batch, thread: None }
    }
}

/// An I/O thread that owns hardware queues.
pub struct IoThread<M: Machine> {
    /// Its number, from 0: the hardware queue of that number is its own.
    pub number: u16,
    /// Its identity, above 0 and unique in the process.
    pub owner: u64,
    /// Wakes it.
    pub bell: Arc<Doorbell<M>>,
    /// How it drives its drives; none: whatever they complete rings the bell.
    pub turn: Option<Turn<M>>,
}

/// Starts what was handed to the drives of an I/O thread and collects what they have completed.
/// Sleeps until there is something, the bell rings, or the deadline comes, unless `has_work`, asked
/// after the bell was armed, says that there is something to do.
///
/// # Errors
/// If the thread's ring itself fails.
pub type Turn<M> = fn(
    bell: &Doorbell<M>,
    deadline_ns: Option<u64>,
    has_work: &dyn Fn() -> bool,
) -> Result<(), Error>;

impl<M: Machine> Clone for IoThread<M> {
    fn clone(&self) -> Self {
        IoThread {
            number: self.number,
            owner: self.owner,
            bell: Arc::clone(&self.bell),
            turn: self.turn,
        }
    }
}

/// A bio that was not accepted, and why.
#[derive(Debug)]
pub struct Rejected {
    /// The bio, with its memory.
    pub bio: Bio,
    /// Why.
    pub reason: Reject,
}

/// Why a bio was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reject {
    /// The channel is full: poll, then try again.
    Full,
    /// It can never be accepted.
    Invalid(Status),
}

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
    /// How often there was something at hand when completions were asked for.
    pub(crate) polls: u32,
    /// How long a drop waits for what went out.
    drain_ns: u64,
}

/// One thread's way into a volume.
pub struct Channel<M: Machine> {
    pub(crate) volume: Arc<Volume<M>>,
    pub(crate) members: Vec<Member<M>>,
    pub(crate) run: Runner<M>,
    pub(crate) free: BioList<M>,
    /// Parents that wait for a child slot of some drive.
    pub(crate) stalled: u32,
    /// Parents that are done.
    pub(crate) finished: BioList<M>,
    depth: u32,
    pub(crate) batch: Batch,
    next_timeout_check_ns: u64,
    pub(crate) quarantine: Vec<Bio>,
    /// Boxed so that slots can point to it; leaked if a drive may still write their memory.
    home: Option<Box<Home<M>>>,
    pub(crate) gate: Gate,
    pub(crate) served: Served<M>,
    turn: Option<Turn<M>>,
}

// SAFETY: the raw pointers inside are to the channel's own boxed home.
unsafe impl<M: Machine> Send for Channel<M> {}

impl<M: Machine> Channel<M> {
    /// A channel of the calling thread to a volume.
    ///
    /// # Errors
    /// `NotSupported` if this is no I/O thread, and a drive's queue belongs to one (that of a file
    /// does) that is not there: nobody would serve what is submitted.
    ///
    /// # Panics
    /// If the depth is not 1 to 65,536.
    pub fn open(volume: &Arc<Volume<M>>, config: ChannelConfig<M>) -> Result<Self, Error> {
        assert!((1..=65_536).contains(&config.depth), "channel depth {}", config.depth);
        let mut members = members_of(volume, config.thread.as_ref())?;
        let (owner, bell, turn) = match config.thread {
            Some(thread) => (thread.owner, thread.bell, thread.turn),
            None => (0, Arc::new(Doorbell::new(M::Parker::new())), None),
        };
        let drives = volume.disks().len();
        let parents = config.depth as usize;
        let share = volume.parts_for(config.depth) / drives;
        let home = Home::new(parents + share * drives, bell);
        let gate = Gate::new(volume);
        for (at, member) in members.iter_mut().enumerate() {
            let first = parents + at * share;
            member.room = Room::of(home.handles(first..first + share));
        }
        let mut channel = Channel {
            members,
            run: Runner::new(&home, owner, config.stamp, volume.disks()[0].channels())
                .accounting_to(&volume.tenants),
            free: home.handles(0..parents),
            stalled: 0,
            finished: BioList::new(),
            depth: config.depth,
            batch: Batch {
                plugged: 0,
                plugged_max: volume.serving_config().plug_high * drives as u32,
                now_ns: 0,
                parts_ns: 0,
                has_parts: false,
                polls: 0,
                drain_ns: DRAIN_NS,
            },
            next_timeout_check_ns: 0,
            quarantine: Vec::new(),
            served: Served::new(volume, &gate),
            gate,
            turn,
            home: Some(home),
            volume: Arc::clone(volume),
        };
        if volume.mode().1 {
            channel.follow_trace(true);
        }
        Ok(channel)
    }

    /// The volume.
    #[must_use]
    pub fn volume(&self) -> &Arc<Volume<M>> {
        &self.volume
    }

    /// Bios accepted and not yet polled.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.depth - self.free.len()
    }

    /// Accepts a bio, into the plug; it starts at the next `flush`, `poll` or `wait`, or when the
    /// plug is full.
    ///
    /// # Errors
    /// Gives the bio back if the channel is full or the bio can never be served.
    #[inline(always)]
    pub fn submit(&mut self, bio: Bio) -> Result<(), Rejected> {
        let plain = self.gate.is_plain(&bio);
        if !plain && let Err(reason) = self.look_closer(&bio) {
            return refuse(bio, reason);
        }
        let Some(mut slot) = self.free.pop_front() else {
            return refuse(bio, Reject::Full);
        };
        slot.bio = ManuallyDrop::new(bio);
        self.start(slot, plain);
        if self.batch.plugged >= self.batch.plugged_max {
            self.flush();
        }
        Ok(())
    }

    /// Puts a checked bio, in its slot, on its way into a plug; `plain` is what the gate said.
    #[inline(always)]
    pub(crate) fn start(&mut self, mut slot: BioRef<M>, plain: bool) {
        if self.batch.now_ns == 0 || self.run.stamp == Stamp::Io {
            self.batch.now_ns = M::now();
        }
        debug_assert_eq!(slot.waited, Waited::NOT);
        slot.q_ns = self.batch.now_ns;
        slot.status = Status::Ok;
        slot.foreign = slot.bio.is_foreign();
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
    fn look_closer(&mut self, bio: &Bio) -> Result<(), Reject> {
        self.gate.check(bio, &self.volume).map_err(Reject::Invalid)?;
        // With nothing in flight nobody would come back to ask again: one always gets in.
        match self.gate.pressed && self.in_flight() > 0 && !self.has_relief() {
            true => Err(Reject::Full),
            false => Ok(()),
        }
    }

    /// Flushes, discards, flags, lists of segments, whatever is too long for one request, and all
    /// that is recorded.
    #[inline(never)]
    fn submit_slowly(&mut self, mut slot: BioRef<M>) {
        if self.gate.is_plain_to_record(&slot.bio)
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
            let limits = *self.members[usize::from(member)].disk.limits();
            let fua_by_drive = limits.features.fua || !limits.features.volatile_cache;
            let flags_fit = !slot.bio.flags.has(OpFlags::PREFLUSH)
                && (!slot.bio.flags.has(OpFlags::FUA) || fua_by_drive && slot.bio.op == Op::Write);
            (slot.dev_sector, slot.offset) = (dev_sector, 0);
            slot.set_stride(Stride::NONE);
            let (sectors, segments) = cut_to_limits(&slot, &limits);
            if flags_fit && sectors == nr_sectors {
                self.make_whole(&mut slot, member, dev_sector, segments);
                return self.admit(slot);
            }
        }
        self.submit_parent(slot);
    }

    #[inline(always)]
    fn make_whole(&self, slot: &mut BioRef<M>, member: u16, dev_sector: u64, segments: u16) {
        slot.stage = Stage::Whole;
        slot.member = member;
        slot.dev_sector = dev_sector;
        slot.offset = 0;
        slot.chain_sectors = slot.bio.nr_sectors;
        slot.chain_segments = segments;
        slot.tail = slot.as_ptr();
        slot.set_stride(Stride::NONE);
    }

    /// Puts a bio that goes to one drive into that drive's plug, or into the one list of all.
    pub(crate) fn admit(&mut self, slot: BioRef<M>) {
        if self.gate.per_volume {
            return self.plug_request(slot);
        }
        let member = &mut self.members[usize::from(slot.member)];
        if slot.op() == Op::Flush {
            member.expect_flush();
        }
        self.batch.plugged += 1;
        match self.gate.traced {
            true => self.plug_traced(slot),
            false => member.plug(slot),
        }
    }

    #[inline(never)]
    fn plug_traced(&mut self, slot: BioRef<M>) {
        let drives = self.members.len();
        self.members[usize::from(slot.member)].plug_traced(slot, drives, &mut self.run);
    }

    /// [`Channel::admit`] off the hot path, for parts.
    pub(crate) fn admit_part(&mut self, slot: BioRef<M>) {
        self.batch.has_parts = true;
        // Only where something is plugged, so that the stamp goes with it.
        self.batch.now_ns = self.batch.parts_ns;
        self.admit(slot);
        if self.batch.plugged >= self.batch.plugged_max {
            self.flush();
        }
    }

    /// Starts all that was submitted: each drive's list goes to its software queue with one lock
    /// acquisition, and what this thread may run is run.
    #[inline]
    pub fn flush(&mut self) {
        self.batch.has_parts = false;
        if self.batch.plugged != 0 {
            self.flush_plugs();
        }
        self.batch.now_ns = 0;
    }

    #[inline(always)]
    fn flush_plugs(&mut self) {
        if !self.volume.is_usual() || self.gate.watched {
            return self.flush_served();
        }
        self.batch.plugged = 0;
        for member in &mut self.members {
            self.batch.plugged += member.flush(&mut self.run);
        }
    }

    /// Waits until at least `min` bios (or all in flight, if fewer) were handed to `take`. An I/O
    /// thread sleeps in its ring meanwhile, any other thread in its doorbell.
    ///
    /// # Panics
    /// If the I/O thread's ring itself fails, which nothing that was submitted survives.
    pub fn wait(&mut self, min: usize, mut take: impl FnMut(Completion)) -> usize {
        if min > 0 && self.batch.plugged > 0 {
            self.run.told.unplug = Unplug::ToWait;
            self.flush();
            self.run.told.unplug = Unplug::Explicit;
        }
        let mut plugged = self.batch.plugged;
        let mut got = self.poll(&mut take);
        let mut handed = got;
        while handed < min && self.in_flight() > 0 {
            // What has just ended made room for what found no tag.
            let has_room = self.batch.plugged > 0 && (got > 0 || self.batch.plugged != plugged);
            if !has_room {
                self.sleep();
            }
            self.tick();
            plugged = self.batch.plugged;
            got = self.poll(&mut take);
            handed += got;
        }
        handed
    }

    /// Sleeps until something comes or is due.
    fn sleep(&mut self) {
        let deadline_ns = self.sleep_until();
        let (bell, has_work) = (&self.home().bell, || self.has_work());
        match self.turn {
            Some(turn) => turn(bell, deadline_ns, &has_work).expect("the ring works"),
            None => bell.sleep_unless(deadline_ns, has_work),
        }
    }

    /// When to poll again at the latest, if there is such a time; ask just before sleeping.
    pub fn sleep_until(&mut self) -> Option<u64> {
        let wake_ns = self.run.wake_ns();
        // Refused by a frozen disk or for want of a request: look again soon. Completions of queues
        // that anybody may run are found by whoever polls, and the others may have gone away.
        let shared = |m: &Member<M>| m.outstanding > 0 && m.disk.kind() == QueueKind::AnyThread;
        if self.batch.plugged > 0 || self.members.iter().any(shared) {
            let soon = M::now() + 1_000_000;
            return Some(wake_ns.map_or(soon, |wake_ns| wake_ns.min(soon)));
        }
        // An owner looks after what others have put into its queues, too.
        let waits = self.in_flight() > 0
            || !self.quarantine.is_empty()
            || self.members.iter().any(|m| m.disk.owner_has_tags(m.route.hctx, self.run.owner));
        let timeouts = waits.then_some(self.next_timeout_check_ns);
        match (wake_ns, timeouts) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
        .map(|ns| ns.max(1))
    }

    /// Whether there is something to do without sleeping: for a last look after arming the bell.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.home().has_delivered()
            || !self.run.done.is_empty()
            || !self.finished.is_empty()
            || self.members.iter().any(|m| m.has_work(self.run.owner))
    }

    /// Sets how long a drop waits for I/O in flight before it gives memory up for lost; 5 s unless
    /// set.
    pub fn set_drain_ns(&mut self, drain_ns: u64) {
        self.batch.drain_ns = drain_ns;
    }

    /// Looks after requests that no drive answers, and lets go of memory that no drive writes any
    /// more. Cheap when it was called a short while ago.
    pub fn tick(&mut self) {
        let now_ns = M::now();
        if now_ns < self.next_timeout_check_ns {
            return;
        }
        let mut period_ns = 1_000_000_000;
        for member in &mut self.members {
            let timeout_ns = member.disk.config.timeout_ns;
            if timeout_ns != 0 {
                period_ns = period_ns.min(timeout_ns / 2).max(1_000_000);
            }
            member.check_timeouts(now_ns, &mut self.run);
        }
        self.run.publish();
        self.next_timeout_check_ns = now_ns + period_ns;
        if !self.quarantine.is_empty() && self.home().abandoned.load(Order::SeqCst) == 0 {
            self.quarantine.clear();
        }
    }

    pub(crate) fn home(&self) -> &Home<M> {
        self.home.as_ref().expect("taken only by drop")
    }
}

/// The drives of a volume as a thread sees them.
fn members_of<M: Machine>(
    volume: &Volume<M>,
    thread: Option<&IoThread<M>>,
) -> Result<Vec<Member<M>>, Error> {
    let member = |disk: &Arc<Disk<M>>| {
        // A thread that claimed a queue uses that one, whatever its own number is.
        let number = thread.map(|t| disk.queue_of(t.owner).unwrap_or(t.number));
        let member = Member::new(disk, number);
        if thread.is_none() && !disk.is_served(member.route.hctx) {
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

#[cold]
#[inline(never)]
fn refuse(bio: Bio, reason: Reject) -> Result<(), Rejected> {
    Err(Rejected { bio, reason })
}

impl<M: Machine> Drop for Channel<M> {
    fn drop(&mut self) {
        let deadline_ns = M::now().saturating_add(self.batch.drain_ns);
        while self.in_flight() > 0 && M::now() < deadline_ns {
            if self.poll(|_| ()) == 0 {
                self.tick();
                if let Some(turn) = self.turn {
                    // A ring that fails is reported by the next real turn.
                    let _ = turn(&self.home().bell, None, &|| true);
                }
                M::spin_until(M::now() + 100_000, || self.home().has_delivered());
            }
        }
        // Before the free slots, by which it is counted, are forgotten.
        let in_flight = self.in_flight();
        self.free.unlink();
        self.members.iter_mut().for_each(|member| member.room.free.unlink());
        let abandoned = self.home().abandoned.load(Order::SeqCst);
        if in_flight > 0 || abandoned > 0 {
            // A drive may still write the memory of these bios, and answer to this home.
            core::mem::forget(self.home.take());
            core::mem::forget(core::mem::take(&mut self.quarantine));
            self.leak_requests();
            self.members.iter_mut().for_each(Member::leak);
            [&mut self.finished, &mut self.run.done].into_iter().for_each(BioList::leak);
        }
    }
}
