//! `Channel`: a thread's interface to a volume: submit, flush, poll, wait.
//!
//! A channel belongs to one thread: it is not `Sync`, and does not move once in use. It owns the
//! slots, the plugs and the submit context, and shares only the queues and its `BioSet` with other
//! threads. Use is as with io_uring: submit with user data, reap completions. A full channel
//! returns the bio (back pressure). A dropped channel waits a while for its I/O in flight, then
//! leaks memory that a drive may still write. Kernel counterpart: a task's plug and io_uring.
#![allow(unsafe_code)]

pub(crate) mod baseline;
pub(crate) mod checks;
pub(crate) mod child_slots;
pub(crate) mod completion;
pub(crate) mod cut;
pub(crate) mod member;
pub(crate) mod plug;
pub(crate) mod reap;
pub(crate) mod split;
pub(crate) mod submission;
pub(crate) mod throttle;
pub(crate) mod unplug;
pub(crate) mod worker;

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::mem::ManuallyDrop;
use core::time::Duration;

use millrace_machine::{Deadline, Doorbell, Machine, Order, Parker, Word, nanoseconds};

use crate::account::hold::WaitReason;
use crate::bio::error::Error;
use crate::bio::group_id::GroupId;
use crate::bio::{Bio, Op};
use crate::chain::bio_set::BioSet;
use crate::chain::slot::BioList;
use crate::channel::checks::BioChecks;
use crate::channel::child_slots::ChildSlots;
use crate::channel::completion::{Completion, Reject, Rejected};
use crate::channel::member::VolumeMember;
use crate::channel::submission::{BioSubmission, PluggedBatch, SplitRule, members_of};
use crate::channel::throttle::Throttle;
use crate::disk::submit_context::{Stamp, SubmitContext};
use crate::disk::timeouts::look_period_ns;
use crate::queue::INSIDE_LOOK_NS;
use crate::queue::driver::QueueKind;
use crate::queue::io_thread::{DRAIN_LOOK_NS, DRAIN_NS, IoThread, ThreadTurn};
use crate::trace::UnplugReason;
use crate::volume::Volume;
use crate::volume::serving::ServingChooser;

/// Nanoseconds between polls by a channel that has bios refused by a disk, or bios in a queue that
/// any thread may run.
const LOOK_AGAIN_NS: u64 = 1_000_000;
/// Nanoseconds between a channel's checks of the maximum request length, which schedulers set.
const FOLLOW_PIECES_NS: u64 = 100_000_000;

/// Settings of a channel.
#[derive(Debug)]
pub struct ChannelConfig<M: Machine> {
    /// Largest number of bios in flight, 1 to 65,536; above that `submit` returns the bio.
    pub depth: u32,
    /// Frequency of clock readings: once for each batch or once for each I/O.
    pub stamp: Stamp,
    /// The I/O thread that uses the channel; `None` for a thread that owns no hardware queues.
    pub thread: Option<IoThread<M>>,
}

impl<M: Machine> Default for ChannelConfig<M> {
    fn default() -> Self {
        ChannelConfig { depth: 256, stamp: Stamp::Batch, thread: None }
    }
}

/// A thread's interface to a volume.
pub struct Channel<M: Machine> {
    pub(crate) sub: BioSubmission<M>,
    /// Bios that the program submits again and that cannot take the fast path.
    /// [`Channel::poll_again`] starts them at its end.
    pub(crate) again: BioList<M>,
    /// Number of polls that found completed bios at hand, and so need not poll the drives' queues.
    /// Every eighth such poll polls these queues anyway (`POLLS_PER_LOOK`). Counted only while
    /// `BioChecks::polls_always` is set.
    pub(crate) polls: u32,
    next_timeout_check_ns: u64,
    pub(crate) quarantine: Vec<Bio>,
    /// Bio slots of the channel. The `Box` keeps their addresses fixed. Leaked instead of freed if
    /// a drive may still write the memory of the channel's bios.
    bio_set: ManuallyDrop<Box<BioSet<M>>>,
    turn: Option<ThreadTurn<M>>,
    /// Nanoseconds for which a dropped channel waits for I/O in flight.
    drain_ns: u64,
    /// True if a driver, scheduler or trace sink has panicked in a call of this channel. The I/O of
    /// the channel is then lost. A broken channel waits for no I/O when it is dropped, and calls no
    /// driver, scheduler or sink.
    is_broken: bool,
}

/// Marks the channel as broken if a driver, scheduler or trace sink panics while this guard exists.
pub(crate) struct ChannelPanicGuard<'a, M: Machine>(pub(crate) &'a mut Channel<M>);

impl<M: Machine> ChannelPanicGuard<'_, M> {
    #[inline(always)]
    pub(crate) fn end(self) {
        core::mem::forget(self);
    }
}

impl<M: Machine> Drop for ChannelPanicGuard<'_, M> {
    /// Marks the channel as broken; called only during a panic. Drops the completions left in the
    /// batch, because their tags belong to the queue that was polled. The next poll may be of
    /// another queue and would look up the tags there.
    fn drop(&mut self) {
        self.0.is_broken = true;
        self.0.sub.run.batch.clear();
    }
}

impl<M: Machine> fmt::Debug for Channel<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Channel");
        shown.field("volume", &self.volume().name()).field("in_flight", &self.in_flight());
        shown.finish_non_exhaustive()
    }
}

// SAFETY: the raw pointers inside are to the channel's own boxed set.
unsafe impl<M: Machine> Send for Channel<M> {}

impl<M: Machine> Channel<M> {
    /// Opens a channel of the calling thread to a volume.
    ///
    /// # Errors
    /// - `NotSupported` if `config.thread` is `None`, and the channel would use a hardware queue
    ///   that needs an owner, but has none. Queues of file drives need an owner: an I/O thread.
    /// - `System` if `config.thread` is `None`, and no file descriptor is free.
    ///
    /// # Panics
    /// If the depth is not 1 to 65,536.
    pub fn open(volume: &Arc<Volume<M>>, config: ChannelConfig<M>) -> Result<Self, Error> {
        assert!(
            (1..=65_536).contains(&config.depth),
            "a channel depth of {} is out of range; use 1 to 65536",
            config.depth
        );
        let mut members = members_of(volume, config.thread.as_ref(), config.stamp)?;
        let (owner, bell, turn) = match config.thread {
            Some(thread) => (thread.owner, thread.bell, thread.turn),
            None => (0, Arc::new(Doorbell::new(parker_for(volume)?)), None),
        };
        let drives = volume.disks().len();
        let parents = config.depth as usize;
        let share = volume.parts_for(config.depth) / drives;
        let bio_set = BioSet::new(parents + share * drives, bell);
        let checks = BioChecks::new(volume);
        let number = members[0].route.number;
        for (at, member) in members.iter_mut().enumerate() {
            let first = parents + at * share;
            member.child_slots = ChildSlots::of(bio_set.handles(first..first + share));
        }
        let mut sub = BioSubmission {
            members,
            run: SubmitContext::new(&bio_set, owner, config.stamp, number)
                .accounting_to(&volume.tenants),
            free: bio_set.handles(0..parents),
            depth: config.depth,
            stalled: 0,
            resumes: None,
            finished: BioList::new(),
            batch: PluggedBatch {
                plugged: 0,
                plugged_max: volume.serving_config().plug_high * drives as u32,
                now_ns: 0,
                parts_ns: 0,
                has_parts: false,
            },
            checks,
            chooser: ServingChooser::default(),
            first_member: 0,
            volume_plug: None,
            split_rule: SplitRule::Drives,
            throttle: Throttle::new(volume.groups().cloned(), &volume.tenants, config.depth),
            volume: Arc::clone(volume),
        };
        sub.follow_mode(volume.mode().0);
        sub.checks.follow_pieces(&sub.members, 0);
        if volume.mode().1 {
            sub.follow_trace(true);
        }
        Ok(Channel {
            sub,
            again: BioList::new(),
            polls: 0,
            next_timeout_check_ns: 0,
            quarantine: Vec::new(),
            bio_set: ManuallyDrop::new(bio_set),
            turn,
            drain_ns: DRAIN_NS,
            is_broken: false,
        })
    }

    /// Returns the volume.
    #[must_use]
    pub fn volume(&self) -> &Arc<Volume<M>> {
        &self.sub.volume
    }

    /// Returns the number of bios accepted and not yet polled.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.sub.in_flight()
    }

    /// Accepts a bio into the plug, the channel's list of bios that are not started. The bio starts
    /// at the next `flush`, `poll` or `wait`, or when the plug is full.
    ///
    /// # Errors
    /// Returns the bio if the channel is full or the bio can never be served.
    #[doc(alias = "submit_bio")]
    #[inline(always)]
    pub fn submit(&mut self, bio: Bio) -> Result<(), Rejected> {
        let plain = self.sub.checks.is_plain(&bio);
        if !plain && let Err(reason) = self.sub.look_closer(&bio) {
            return refuse(bio, reason);
        }
        if self.sub.throttle.held != 0
            && bio.op != Op::Flush
            && self.is_throttled(bio.account_key.group)
        {
            return refuse(bio, Reject::Full);
        }
        let Some(mut slot) = self.sub.free.pop_front() else {
            return refuse(bio, Reject::Full);
        };
        slot.bio = ManuallyDrop::new(bio);
        let driving = ChannelPanicGuard(self);
        driving.0.sub.start(slot, plain);
        driving.end();
        if self.sub.batch.plugged >= self.sub.batch.plugged_max {
            self.flush();
        }
        Ok(())
    }

    /// Returns true if the channel accepts no more bios of a group, because too many bios of the
    /// group already wait for limits. Other groups may still have room. The group gets room again
    /// when its waiting bios continue.
    #[must_use]
    pub fn is_throttled(&self, group: GroupId) -> bool {
        self.sub.throttle.is_full(group)
    }

    /// Returns true if a limit of the group or its parent may delay bios of this operation.
    #[inline]
    pub fn is_limited(&mut self, group: GroupId, op: Op) -> bool {
        self.sub.throttle.is_limited(group, op)
    }

    /// Adds `ns` nanoseconds to a group's waiting times ([`Volume::held`]), for I/Os that the
    /// submitter held back because the channel accepted no more. Only the submitter knows this
    /// time.
    #[cold]
    pub fn count_back_pressure(&mut self, group: GroupId, ns: u64) {
        self.sub.throttle.count_hold(group, WaitReason::BackPressure, ns);
    }

    /// Returns the bios that wait for limits of their groups and have not been sent to a drive.
    pub fn held(&self) -> impl Iterator<Item = &Bio> {
        self.sub.throttle.waiting()
    }

    /// Ends, with the status `Aborted`, the bios that wait for limits and for which `is_meant`
    /// returns true. Their cost is not counted against their groups' limits.
    pub fn abort_held(&mut self, is_meant: impl FnMut(&Bio) -> bool) {
        self.sub.abort_held(is_meant);
    }

    /// Submits at once the waiting bios for which `is_meant` returns true, although a limit would
    /// delay them; for submitters that cannot wait long. The cost of these bios still counts
    /// against their groups' limits, so later bios wait longer.
    pub fn release_held(&mut self, is_meant: impl FnMut(&Bio) -> bool) {
        self.driving(|channel| channel.sub.release_held(is_meant));
    }

    /// Submits all bios that wait for limits, and ignores limits from now on; for a program that
    /// stops and waits only for its I/O in flight.
    pub fn lift_limits(&mut self) {
        self.driving(|channel| channel.sub.lift_limits());
    }

    /// Starts all submitted bios. Each drive's list goes to a software queue with one lock
    /// acquisition. Then this thread runs the queues that it may run.
    #[doc(alias = "blk_finish_plug")]
    #[inline]
    pub fn flush(&mut self) {
        let driving = ChannelPanicGuard(self);
        driving.0.sub.flush_called();
        driving.end();
    }

    /// Calls a function under a [`ChannelPanicGuard`]. Functions called for each I/O use the guard
    /// directly, because the compiler does not inline large closures.
    pub(crate) fn driving<R>(&mut self, call: impl FnOnce(&mut Self) -> R) -> R {
        let driving = ChannelPanicGuard(self);
        let result = call(driving.0);
        driving.end();
        result
    }

    /// Submits a bio, waiting while the channel is full or under back pressure. Bios that complete
    /// meanwhile go to `take`. Meant for threads that own no hardware queues.
    ///
    /// # Errors
    /// Returns the bio if it can never be served.
    pub fn submit_wait(
        &mut self,
        mut bio: Bio,
        mut take: impl FnMut(Completion),
    ) -> Result<(), Rejected> {
        loop {
            match self.submit(bio) {
                Err(Rejected { bio: back, reason: Reject::Full }) => bio = back,
                other => return other,
            }
            // `submit` returns `Full` only while bios are in flight. `wait` completes such bios and
            // so frees slots. So the loop ends.
            self.wait(1, &mut take);
        }
    }

    /// Waits until at least `min` bios (or all in flight, if fewer) were handed to `take`. An I/O
    /// thread sleeps in its ring meanwhile, any other thread on its doorbell.
    ///
    /// # Panics
    /// If the I/O thread's ring itself fails; no submitted bio could complete after that.
    pub fn wait(&mut self, min: usize, mut take: impl FnMut(Completion)) -> usize {
        if min > 0 && self.sub.batch.plugged > 0 {
            self.sub.run.trace_context.unplug = UnplugReason::ToWait;
            self.flush();
            self.sub.run.trace_context.unplug = UnplugReason::Explicit;
        }
        let mut plugged = self.sub.batch.plugged;
        let mut got = self.poll(&mut take);
        let mut handed = got;
        while handed < min && self.in_flight() > 0 {
            // Bios that have just completed may have freed tags. So plugged bios that found no tag
            // are tried again before the thread sleeps.
            let has_room =
                self.sub.batch.plugged > 0 && (got > 0 || self.sub.batch.plugged != plugged);
            if !has_room {
                self.sleep();
            }
            self.tick();
            plugged = self.sub.batch.plugged;
            got = self.poll(&mut take);
            handed += got;
        }
        handed
    }

    fn sleep(&mut self) {
        let deadline_ns = self.sleep_until();
        let (bell, has_work) = (&self.bio_set().bell, || self.has_work());
        match self.turn {
            Some(turn) => turn(bell, deadline_ns, &has_work).expect("the ring works"),
            None => bell.sleep_unless(deadline_ns, has_work),
        }
    }

    /// Returns the time by which the channel must be polled again; `None` if only the doorbell
    /// needs to wake the thread. Call this function just before sleeping.
    pub fn sleep_until(&mut self) -> Option<u64> {
        let earliest = |times: [Option<u64>; 2]| times.into_iter().flatten().min();
        let wake_ns = match self.sub.throttle.held {
            0 => self.sub.run.wake_ns(),
            _ => earliest([self.sub.run.wake_ns(), self.sub.throttle.wake_ns(M::now())]),
        };
        // Bios that a frozen disk refused, or that found no free tag, are retried soon. Queues that
        // any thread may run are also polled soon: other threads that polled them may have ended.
        let shared =
            |m: &VolumeMember<M>| m.outstanding > 0 && m.disk.kind() == QueueKind::AnyThread;
        if self.sub.batch.plugged > 0 || self.sub.members.iter().any(shared) {
            let served = |m: &VolumeMember<M>| m.outstanding > 0 && m.hctx().is_being_served();
            let soon_ns = match self.sub.members.iter().any(served) {
                true => INSIDE_LOOK_NS,
                false => LOOK_AGAIN_NS,
            };
            let soon = M::now() + soon_ns;
            return earliest([wake_ns, Some(soon)]);
        }
        // The owner of a queue must wake even without I/O of its own, to check for timeouts of
        // other threads' requests in that queue.
        let waits = self.in_flight() > 0
            || !self.quarantine.is_empty()
            || self.sub.members.iter().any(|m| m.hctx().has_tags_of(self.sub.run.owner));
        let timeouts = waits.then_some(self.next_timeout_check_ns);
        earliest([wake_ns, timeouts]).map(|ns| ns.max(1))
    }

    /// Returns true if the channel has work. Before a thread sleeps, it arms the doorbell and then
    /// calls this function once more.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.bio_set().has_delivered()
            || !self.sub.run.done.is_empty()
            || !self.sub.finished.is_empty()
            || self.sub.members.iter().any(|m| m.has_work(self.sub.run.owner))
    }

    /// Sets for how long a dropped channel waits for its I/O; default 5 s.
    pub fn set_drain_timeout(&mut self, timeout: Duration) {
        self.drain_ns = nanoseconds(timeout);
    }

    /// Waits until no I/O is in flight, at most for the time set by [`Channel::set_drain_timeout`].
    /// Hands completed bios to `take`. From this call on, the limits of groups are ignored. Returns
    /// true if nothing is in flight any more.
    pub fn drain(&mut self, mut take: impl FnMut(Completion)) -> bool {
        let mut deadline = Deadline::<M>::after_ns(self.drain_ns);
        self.lift_limits();
        while self.in_flight() > 0 && !deadline.is_over() {
            if self.poll(&mut take) == 0 {
                self.tick();
                if let Some(turn) = self.turn {
                    // The result is ignored: the next regular call of `turn` reports an error of
                    // the ring.
                    let _ = turn(&self.bio_set().bell, None, &|| true);
                }
                M::spin_until(M::now() + DRAIN_LOOK_NS, || self.bio_set().has_delivered());
            }
        }
        self.in_flight() == 0
    }

    /// Checks for timed-out requests and for a changed limit on the length of requests. Fails
    /// timed-out requests, and frees memory that no drive writes any more. Call this function after
    /// every sleep, and from time to time if the thread never sleeps. Frequent calls are cheap. If
    /// the function is not called for a long time, that time does not count towards timeouts.
    pub fn tick(&mut self) {
        let now_ns = M::now();
        if now_ns < self.next_timeout_check_ns {
            return;
        }
        self.sub.members.iter_mut().for_each(VolumeMember::follow_pieces);
        self.sub.checks.follow_pieces(&self.sub.members, self.sub.stalled);
        let cuts = self.sub.members.iter().any(VolumeMember::has_pieces);
        let mut period_ns = if cuts { FOLLOW_PIECES_NS } else { look_period_ns(0) };
        self.driving(|channel| {
            for member in &mut channel.sub.members {
                period_ns = period_ns.min(look_period_ns(member.disk.config.timeout_ns()));
                member.check_timeouts(now_ns, &mut channel.sub.run);
            }
        });
        self.sub.run.publish();
        self.next_timeout_check_ns = now_ns + period_ns;
        if !self.quarantine.is_empty() && self.bio_set().abandoned.load(Order::SeqCst) == 0 {
            self.quarantine.clear();
        }
    }

    pub(crate) fn bio_set(&self) -> &BioSet<M> {
        &self.bio_set
    }
}

fn parker_for<M: Machine>(volume: &Volume<M>) -> Result<M::Parker, Error> {
    M::Parker::try_new().map_err(|errno| {
        let text = format!(
            "cannot open a channel to the volume {}: eventfd fails with errno {errno}; raise the \
             limit on open files (RLIMIT_NOFILE)",
            volume.name()
        );
        Error::system(text, Some(errno))
    })
}

#[cold]
#[inline(never)]
fn refuse(bio: Bio, reason: Reject) -> Result<(), Rejected> {
    Err(Rejected { bio, reason })
}

impl<M: Machine> Drop for Channel<M> {
    fn drop(&mut self) {
        match self.is_broken {
            true => self.sub.run.deliver(),
            false => _ = self.drain(|_| ()),
        }
        // `in_flight` uses the length of the list `free`, so it is called before `free` is emptied.
        let in_flight = self.in_flight();
        self.sub.free.unlink();
        self.sub.members.iter_mut().for_each(|member| member.child_slots.free.unlink());
        let abandoned = self.bio_set().abandoned.load(Order::SeqCst);
        if in_flight == 0 && abandoned == 0 {
            // SAFETY: dropped only here, and nothing points to it any more.
            return unsafe { ManuallyDrop::drop(&mut self.bio_set) };
        }
        // The bios are leaked: a drive may still write their memory, or another thread may still
        // complete them.
        core::mem::forget(core::mem::take(&mut self.quarantine));
        self.sub.leak_requests();
        self.sub.members.iter_mut().for_each(VolumeMember::leak);
        self.sub.throttle.lift().leak();
        let lists = [&mut self.sub.finished, &mut self.sub.run.done, &mut self.again];
        lists.into_iter().for_each(BioList::leak);
    }
}
