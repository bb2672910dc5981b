//! Collection of completions: takes ended bios back from the queues and hands them to the program.
//!
//! The code is a part of `Channel`; channel.rs has the part that submits bios. Ended bios come from
//! two sources: the submit context (completed by this thread) and the bio set (delivered by other
//! threads). An ended part of a split bio goes to that split bio (split.rs), not to the program. If
//! a drive may still write memory after a timeout, the memory stays in quarantine. Kernel
//! counterpart: `bio_endio`, `io_uring`'s completion queue.

use core::mem::ManuallyDrop;

use millrace_machine::{Machine, Order, Word};

use crate::bio::Bio;
use crate::bio::status::Status;
use crate::chain::slot::{BioList, BioRef, BioStage};
use crate::channel::completion::{AfterCompletion, Completion};
use crate::channel::member::PollScope;
use crate::channel::{Channel, ChannelPanicGuard};

/// A poll that finds completed bios at hand need not poll the drives' queues. While
/// `BioChecks::polls_always` is set, every eighth such poll polls these queues anyway.
const POLLS_PER_LOOK: u32 = 8;

/// A completed bio while the program's callback uses it. If the callback panics, dropping this
/// value drops the bio and frees the bio's slot.
struct ShownSlot<'a, M: Machine> {
    /// The completed bio; `None` once the program's callback has returned.
    slot: Option<BioRef<M>>,
    free: &'a mut BioList<M>,
}

impl<M: Machine> ShownSlot<'_, M> {
    #[inline(always)]
    fn show(
        mut self,
        next: &mut impl FnMut(&mut Bio, Status) -> AfterCompletion,
    ) -> Option<(BioRef<M>, AfterCompletion)> {
        let slot = self.slot.as_mut()?;
        let status = slot.status;
        let again = next(&mut slot.bio, status);
        Some((self.slot.take()?, again))
    }
}

impl<M: Machine> Drop for ShownSlot<'_, M> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            free_slot(slot, self.free);
        }
    }
}

#[inline]
fn free_slot<M: Machine>(mut slot: BioRef<M>, free: &mut BioList<M>) {
    let bio = slot.take_bio();
    free.push_front(slot);
    drop(bio);
}

/// Moves a timed-out bio's memory into quarantine if a drive may still write that memory.
#[cold]
fn keep_memory<M: Machine>(channel: &mut Channel<M>, slot: &mut BioRef<M>) {
    if slot.status == Status::TimedOut && !slot.bio.is_foreign() {
        let bio = slot.take_bio();
        slot.bio = ManuallyDrop::new(channel.quarantined(bio));
    }
}

impl<M: Machine> Channel<M> {
    /// Hands each completed bio to `take`; starts submitted bios and runs the queues. Does not
    /// wait. Returns the number of bios handed over.
    #[inline]
    pub fn poll(&mut self, mut take: impl FnMut(Completion)) -> usize {
        let driving = ChannelPanicGuard(self);
        driving.0.gather();
        driving.end();
        let handed = self.reap(&mut take);
        self.start_parts();
        handed
    }

    /// Sends the parts of split bios that this poll has put into plugs. An example is the data of a
    /// bio after its preflush.
    #[inline(always)]
    fn start_parts(&mut self) {
        if self.sub.batch.has_parts {
            self.flush();
        }
    }

    #[inline(always)]
    fn gather(&mut self) {
        self.sub.flush();
        let mut look =
            self.sub.run.done.is_empty() || (self.sub.checks.polls_always && self.is_look_due());
        if self.bio_set().has_delivered() {
            let mut delivered = self.bio_set().take_delivered();
            // Other threads deliver bios without a completion time, so the present time is used.
            let now_ns = M::now();
            self.sub.run.accounts.c_ns = now_ns;
            delivered.for_each(|bio| {
                if bio.stage == BioStage::Whole {
                    self.sub.run.accounts.tenants.count_one(bio, now_ns);
                }
            });
            self.sub.run.accounts.tenants.end_run();
            self.sub.run.done.append(&mut delivered);
            look = true;
        }
        if look {
            self.run_queues();
        }
    }

    /// Returns true if this poll must include all drives' queues, so that a drive whose completions
    /// never cease does not starve the others.
    #[inline]
    fn is_look_due(&mut self) -> bool {
        self.polls = self.polls.wrapping_add(1);
        self.polls.is_multiple_of(POLLS_PER_LOOK)
    }

    #[inline(never)]
    fn run_queues(&mut self) {
        self.sub.run.forget_wake();
        let look = match self.quarantine.is_empty() {
            true => PollScope::WhereExpected,
            false => PollScope::Everywhere,
        };
        for member in &mut self.sub.members {
            member.run_queues(look, &mut self.sub.run);
        }
        self.sub.run.publish();
    }

    /// Polls like [`Channel::poll`], for a program that uses the same memory for many I/Os. The
    /// callback `next` gets each completed bio. The callback either changes the bio (sector,
    /// operation or contents) and submits it again, or drops it. Bios submitted again are sent to
    /// the drives by the next call at the latest, unless a limit of their group delays them.
    ///
    /// If a bio submitted again can never be served, the callback gets it once more, with an error
    /// status.
    #[inline]
    pub fn poll_again(
        &mut self,
        mut next: impl FnMut(&mut Bio, Status) -> AfterCompletion,
    ) -> usize {
        let driving = ChannelPanicGuard(self);
        driving.0.gather();
        driving.end();
        let mut handed = 0;
        loop {
            // A split or invalid bio that the program submits again may complete within this loop.
            // The loop leaves such bios to the next call of `poll_again`, or it might never end.
            let driving = ChannelPanicGuard(self);
            let next_slot = driving.0.next_whole().or_else(|| driving.0.next_of_others(handed));
            driving.end();
            let Some(mut slot) = next_slot else { break };
            handed += 1;
            if !slot.status.is_ok() {
                keep_memory(self, &mut slot);
            }
            let shown = ShownSlot { slot: Some(slot), free: &mut self.sub.free };
            match shown.show(&mut next) {
                Some((slot, AfterCompletion::Submit)) => {
                    let driving = ChannelPanicGuard(self);
                    driving.0.restart(slot);
                    driving.end();
                }
                Some((slot, AfterCompletion::Drop)) => free_slot(slot, &mut self.sub.free),
                None => {}
            }
        }
        if !self.again.is_empty() {
            self.driving(Self::send_again);
        }
        self.start_parts();
        handed
    }

    #[cold]
    fn send_again(&mut self) {
        while let Some(slot) = self.again.pop_front() {
            self.sub.start(slot, false);
        }
    }

    /// Submits again a bio that the program's callback returned; ends the bio if it is invalid.
    #[inline(always)]
    fn restart(&mut self, slot: BioRef<M>) {
        match self.sub.checks.is_plain(&slot.bio) {
            true => self.sub.start(slot, true),
            false => self.restart_slowly(slot),
        }
    }

    #[inline(never)]
    fn restart_slowly(&mut self, mut slot: BioRef<M>) {
        if self.sub.checks.is_plain_to_record(&slot.bio) {
            return self.sub.start(slot, false);
        }
        match self.sub.checks.check(&slot.bio, &self.sub.volume) {
            // A bio off the fast path may complete during its submission. The loop of `poll_again`
            // might then hand it to the program twice. So the bio is submitted after that loop.
            Ok(()) => self.again.push_back(slot),
            Err(status) => {
                // A refused bio was never in flight, so its time of submission is set to its time
                // of completion.
                (slot.status, slot.q_ns) = (status, self.sub.run.accounts.c_ns);
                self.sub.finished.push_back(slot);
            }
        }
    }

    #[inline(always)]
    fn reap(&mut self, take: &mut impl FnMut(Completion)) -> usize {
        let mut handed = 0;
        loop {
            let driving = ChannelPanicGuard(self);
            let next_slot = driving.0.next_whole().or_else(|| driving.0.next_finished(true));
            driving.end();
            let Some(slot) = next_slot else { break };
            self.hand_over(slot, take);
            handed += 1;
        }
        handed
    }

    /// Returns the next completed bio that was not split. Completed parts that come before it in
    /// the list are counted as completed for their split bios.
    #[inline(always)]
    fn next_whole(&mut self) -> Option<BioRef<M>> {
        while let Some(slot) = self.sub.run.done.pop_front() {
            match &mut self.sub.members[..] {
                [only] => only.outstanding -= 1,
                members => members[usize::from(slot.member)].outstanding -= 1,
            }
            if slot.stage != BioStage::Child {
                return Some(slot);
            }
            self.sub.part_done(slot);
        }
        None
    }

    /// Returns the next bio of `BioSubmission::finished`: a bio that was split, or that reached no
    /// drive. `handed` is the number of bios that this call of [`Channel::poll_again`] has handed
    /// to the program.
    #[inline(always)]
    fn next_of_others(&mut self, handed: usize) -> Option<BioRef<M>> {
        match self.sub.finished.len() | self.sub.stalled {
            0 => None,
            _ => self.next_finished(handed <= self.in_flight() as usize),
        }
    }

    /// Continues split bios that wait for a free bio slot for their next part. Then, if `wanted` is
    /// true, returns the next bio of `BioSubmission::finished`.
    #[inline(always)]
    fn next_finished(&mut self, wanted: bool) -> Option<BioRef<M>> {
        if self.sub.stalled > 0 {
            self.sub.resume_stalled();
        }
        if wanted && !self.sub.finished.is_empty() { self.pop_finished() } else { None }
    }

    #[inline(never)]
    fn pop_finished(&mut self) -> Option<BioRef<M>> {
        let parent = self.sub.finished.pop_front()?;
        let now_ns = self.sub.run.accounts.c_ns.max(parent.q_ns);
        self.sub.run.accounts.tenants.count_one(&parent, now_ns);
        if self.sub.finished.is_empty() {
            self.sub.run.accounts.tenants.end_run();
        }
        Some(parent)
    }

    #[inline(always)]
    fn hand_over(&mut self, mut slot: BioRef<M>, take: &mut impl FnMut(Completion)) {
        let (mut bio, status) = (slot.take_bio(), slot.status);
        let (q_ns, c_ns) = (slot.q_ns, self.sub.run.accounts.c_ns);
        self.sub.free.push_front(slot);
        if !status.is_ok() && status == Status::TimedOut && !bio.is_foreign() {
            bio = self.quarantined(bio);
        }
        take(Completion { user_data: bio.user_data(), status, bio, q_ns, c_ns });
    }

    /// Returns a timed-out bio, without its memory if a drive may still write that memory.
    #[cold]
    fn quarantined(&mut self, bio: Bio) -> Bio {
        if self.bio_set().abandoned.load(Order::SeqCst) == 0 {
            return bio;
        }
        let hollow = bio.hollow();
        self.quarantine.push(bio);
        hollow
    }

    /// Returns the number of bios whose memory is held back because a drive may still write it.
    #[must_use]
    pub fn quarantined_bios(&self) -> usize {
        self.quarantine.len()
    }
}
