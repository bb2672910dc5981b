//! Dispatch of a hardware queue with a scheduler.
//!
//! `dispatch` replaces `QueueContext::dispatch_staged` of dispatch.rs under the same contract: the
//! caller holds the hardware queue's serve lock, and tags are taken just before dispatch. Flushes
//! bypass the scheduler and wait in the list `staged`. `Disk::set_scheduler` replaces the scheduler
//! during I/O: bios that wait in the old scheduler move to the new one. Completions of requests
//! that the driver already has are not reported to the new scheduler. Kernel counterpart:
//! block/blk-mq-sched.c, `elevator_switch`.

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;

use millrace_machine::{Machine, Order, Word};

use crate::account::decisions::SchedulerMessage;
use crate::account::hold::WaitReason;
use crate::bio::Op;
use crate::bio::error::{Error, ErrorKind};
use crate::chain::slot::BioList;
use crate::disk::queue_context::QueueContext;
use crate::disk::queues::make_queues;
use crate::disk::{Disk, UNBOUNDED, abort};
use crate::queue::scheduler::builtin::SchedulerKind;
use crate::queue::scheduler::parts::{DriveParts, SchedulerParts};
use crate::queue::scheduler::{BioChain, DriveTags, QueueScheduler, Scheduler, SchedulerPick};
use crate::queue::tag::TagBatch;
use crate::queue::{HardwareQueue, HctxState};
use crate::trace::note::TraceMessage;

impl<M: Machine> Disk<M> {
    /// Sets one of the built-in schedulers, or none. May be called at any time, from any thread.
    ///
    /// # Errors
    /// If the drive follows a design other than `mq` (multi-queue): only `mq` supports schedulers.
    ///
    /// # Panics
    /// If the replaced scheduler is a program's own, and does not return all waiting bio chains
    /// (bios merged into one future request) or returns chains of another drive.
    pub fn set_scheduler(&self, kind: SchedulerKind) -> Result<(), Error> {
        make_queues(self);
        let made = kind.make(|| parts_of(self));
        let sectors = made.as_ref().and_then(|made| made.piece_sectors);
        match made {
            None => self.queues.hctxs().iter().for_each(|hctx| change(hctx, None)),
            Some(made) => set_all(self, Some(kind), |hctx| (made.queue)(hctx))?,
        }
        // The old scheduler may still set `piece_sectors` until it is replaced, so the new value is
        // stored last. Relaxed: no other data depends on `piece_sectors`.
        self.sizes.piece_sectors.store(sectors.map_or(UNBOUNDED, u64::from), Order::Relaxed);
        Ok(())
    }

    /// Sets a program's own scheduler. For each hardware queue, `make` gets the queue's number and
    /// creates a scheduler. Bios that wait in the previous scheduler move to the new one. May be
    /// called at any time, from any thread.
    ///
    /// # Errors
    /// If the drive follows a design other than `mq` (multi-queue): only `mq` supports schedulers.
    ///
    /// # Panics
    /// Under the conditions of [`Disk::set_scheduler`].
    pub fn set_own_scheduler(
        &self,
        make: impl FnMut(u16) -> Box<dyn Scheduler<M>>,
    ) -> Result<(), Error> {
        make_queues(self);
        set_all(self, None, make)?;
        // Relaxed: no other data depends on `piece_sectors`.
        self.sizes.piece_sectors.store(UNBOUNDED, Order::Relaxed);
        Ok(())
    }

    /// Returns the drive's scheduler; `None` if a program has set a scheduler of its own.
    #[must_use]
    pub fn scheduler(&self) -> Option<SchedulerKind> {
        let none = Some(SchedulerKind::None);
        let Some(queues) = self.queues.get() else { return none };
        let set = queues.hctxs[0].change(|serve| serve.scheduling.as_ref().map(|set| set.name));
        set.map_or(none, |name| SchedulerKind::of_name(name?))
    }
}

fn parts_of<M: Machine>(disk: &Disk<M>) -> SchedulerParts<M> {
    let hctxs = disk.queues.hctxs();
    let first = &hctxs[0].tags;
    let others = hctxs.iter().filter(|hctx| !Arc::ptr_eq(&hctx.tags, first)).count() as u32;
    let tags = first.depth_with_reserved().saturating_mul(1 + others);
    let drive = DriveParts {
        holds: disk.accounts.holds(hctxs.len()),
        piece_sectors: Arc::clone(&disk.sizes.piece_sectors),
        cost: disk.config.cost,
        tags: DriveTags { queues: hctxs.len(), tags },
    };
    SchedulerParts { drive, groups: disk.config.groups.clone() }
}

fn set_all<M: Machine>(
    disk: &Disk<M>,
    kind: Option<SchedulerKind>,
    mut make: impl FnMut(u16) -> Box<dyn Scheduler<M>>,
) -> Result<(), Error> {
    if let Some(baseline) = &disk.baseline {
        let text = format!("drive {}: {}", disk.name(), baseline.stack.refuses_scheduler());
        return Err(Error::new(ErrorKind::InvalidSetting, text));
    }
    let hctxs = disk.queues.hctxs();
    let holds = disk.accounts.holds(hctxs.len());
    for hctx in hctxs {
        let depth = hctx.tags.depth_with_reserved() as usize;
        let scheduling =
            QueueScheduler::new(kind.map(SchedulerKind::name), make(hctx.number), depth, &holds);
        change(hctx, Some(Box::new(scheduling)));
    }
    Ok(())
}

fn change<M: Machine>(hctx: &HardwareQueue<M>, next: Option<Box<QueueScheduler<M>>>) {
    let mut has_lost = false;
    hctx.change(|serve| {
        serve.staged = serve.take_chains();
        has_lost = serve.scheduling.as_ref().is_some_and(|old| old.has_lost);
        if !has_lost {
            serve.scheduling = next;
        }
    });
    assert!(
        !has_lost,
        "a drained scheduler kept bio chains, or returned bio chains of another drive"
    );
    hctx.mark_own();
    hctx.ring();
}

pub(crate) fn dispatch<M: Machine>(
    context: &mut QueueContext<'_, M>,
    serve: &mut HctxState<M>,
    mut now_ns: u64,
) -> u32 {
    insert(context, serve);
    if context.run.trace.is_some() {
        now_ns = watch(context, serve, now_ns);
    }
    // Only flushes are still in `staged`: `insert` has moved all other bios to the scheduler.
    let mut sent = context.dispatch_staged(serve, now_ns);
    let tags = &*context.hctx.tags;
    let hctx = context.hctx.number;
    let (mut batch, mut stop, mut stray) = (TagBatch::EMPTY, WaitReason::Order, None);
    while serve.requeued.is_empty() {
        let room = context.hctx.room(serve);
        let Some(scheduling) = serve.scheduling.as_deref_mut() else { break };
        if room == 0 || scheduling.len == 0 {
            stop = if room == 0 { WaitReason::DriveBusy } else { stop };
            break;
        }
        if now_ns == 0 {
            now_ns = M::now();
        }
        let chain = match scheduling.next(now_ns) {
            SchedulerPick::Chain(chain) if scheduling.is_own(&chain) => chain,
            SchedulerPick::Chain(chain) => {
                stray = Some(chain);
                break;
            }
            SchedulerPick::WaitUntil(wake_ns) => {
                if context.run.trace.is_some() && scheduling.begins_rest(now_ns, wake_ns) {
                    context.trace().note(TraceMessage::Rests(None), wake_ns.saturating_sub(now_ns));
                }
                context.run.wake_at(wake_ns);
                break;
            }
            SchedulerPick::Nothing => break,
        };
        if batch.is_empty() {
            let want = scheduling.len.min(64).min(room);
            match context.take_tags(&chain.bio, want) {
                Some(taken) => batch = taken,
                None => {
                    scheduling.put_back(chain, now_ns);
                    stop = WaitReason::NoTag;
                    break;
                }
            }
        }
        let mut rq = tags.next(&mut batch).expect("the batch is not empty");
        scheduling.account(&chain, (hctx, now_ns));
        let chain = scheduling.issue(chain, rq.tag(), now_ns);
        chain.touch();
        rq.touch();
        rq.fill_waited(chain, context.hctx.number, context.disk.flags_taken);
        sent += u32::from(context.issue(serve, rq, now_ns));
    }
    tags.give_rest(batch);
    if let Some(chain) = stray {
        context.commit(serve, sent);
        refuse(context, chain);
    }
    let stop = if serve.requeued.is_empty() { stop } else { WaitReason::DriveBusy };
    if let Some(scheduling) = &serve.scheduling {
        scheduling.drive.stop(hctx.into(), stop);
    }
    if context.run.trace.is_some() {
        note_decisions(context, serve);
    }
    sent
}

/// Aborts a bio chain that the scheduler returned although it belongs to another drive. Then
/// panics.
#[cold]
fn refuse<M: Machine>(context: &QueueContext<'_, M>, chain: BioChain<M>) -> ! {
    let mut list = BioList::new();
    list.push_back(chain.bio);
    abort(context.stats, list);
    panic!("drive {}: its scheduler returned a bio chain of another drive", context.disk.name());
}

/// Asks the queue's scheduler to report its decisions to a trace. Returns the present time.
#[cold]
fn watch<M: Machine>(context: &QueueContext<'_, M>, serve: &HctxState<M>, now_ns: u64) -> u64 {
    let Some(scheduling) = &serve.scheduling else { return now_ns };
    let now_ns = if now_ns == 0 { M::now() } else { now_ns };
    scheduling.drive.watch(context.hctx.number.into(), now_ns);
    now_ns
}

#[cold]
fn note_decisions<M: Machine>(context: &mut QueueContext<'_, M>, serve: &HctxState<M>) {
    let hctx = context.hctx.number;
    let Some(scheduling) = &serve.scheduling else { return };
    for decision in scheduling.drive.decisions(hctx.into()).take() {
        let (remark, time_ns) = match decision {
            SchedulerMessage::Held(group, hold, depth) => {
                (TraceMessage::Held(group, hold, depth), 0)
            }
            SchedulerMessage::Depth(depth) => (TraceMessage::Depth(hctx, depth), 0),
            SchedulerMessage::Rests(group, hold, rest_ns) => {
                (TraceMessage::Rests(Some((group, hold))), rest_ns)
            }
        };
        context.trace().note(remark, time_ns);
    }
}

fn insert<M: Machine>(context: &mut QueueContext<'_, M>, serve: &mut HctxState<M>) {
    let Some(scheduling) = serve.scheduling.as_deref_mut() else { return };
    let mut staged = serve.staged.take();
    let mut fresh = BioList::new();
    while let Some(chain) = staged.pop_front() {
        match chain.op() {
            Op::Flush => serve.staged.push_back(chain),
            _ => fresh.push_back(chain),
        }
    }
    if fresh.is_empty() {
        return;
    }
    scheduling.insert(fresh, &context.disk.limits, &mut |kind, chain| {
        context.stats.count_merge(chain.op());
        context.disk.trace(context.run).merged(kind, chain);
    });
}

#[cold]
pub(crate) fn tell<M: Machine>(context: &mut QueueContext<'_, M>, serve: &mut HctxState<M>) {
    let Some(scheduling) = serve.scheduling.as_deref_mut() else { return };
    let entries = context.run.batch.entries();
    if entries.is_empty() || scheduling.in_flight == 0 {
        return;
    }
    let now_ns = M::now();
    for (tag, status) in entries {
        scheduling.ended(*tag, Some(*status), now_ns);
    }
}
