//! `VolumePlug`: a single list of requests for all drives of a volume, as in Linux.
//!
//! The design exists for comparison (\[FALCON\], problem statement). One thread does everything.
//! For each bio, the requests of all drives are searched backwards for an adjacent one, even if the
//! bio was split and can never merge. A bio takes its tag while it is plugged. If the drive has no
//! free tag, all bios of the channel wait until it has one. When one drive has 16 requests, the
//! whole list is sorted by drive and sector, and sent drive after drive. For a single drive with
//! several hardware queues, the plug keeps only one request. The next bio is compared with that
//! request, which is then sent. Owned by a `BioSubmission`. Kernel counterpart: blk_sq_make_request
//! and blk_mq_make_request with blk_attempt_plug_merge, and blk_mq_flush_plug_list, 4.4;
//! blk_queue_split marks its parts REQ_NOMERGE, which blk_rq_merge_ok refuses entry by entry;
//! md/raid0.c splits by chunks.
//! A channel has a `VolumePlug` while its volume is served in `per-volume` mode; no other file
//! knows it. In this mode no bio goes straight into the plug of its drive.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_machine::{Machine, Stage as Work};

use crate::account::disk_counter::DiskCounter;
use crate::bio::Op;
use crate::chain::merge::try_merge;
use crate::chain::slot::{BioList, BioRef, BioStage, WaitTimes};
use crate::channel::member::{BatchServer, VolumeMember};
use crate::channel::submission::{BioSubmission, SplitRule};
use crate::disk::baseline::filled;
use crate::disk::submit_context::SubmitContext;
use crate::disk::trace::PlugPlace;
use crate::queue::request::RequestRef;
use crate::trace::UnplugReason;
use crate::trace::blktrace::EventCode;
use crate::volume::Volume;
use crate::volume::serving::Serving;

/// Number of requests for one drive at which the plug sends all its requests. Kernel counterpart:
/// `BLK_MAX_REQUEST_COUNT`.
const REQUESTS_MAX: u32 = 16;

struct PluggedRequest<M: Machine> {
    member: u16,
    sector: u64,
    /// Request in the plug; `None` once handed to its drive.
    rq: Option<RequestRef<M>>,
}

pub(crate) struct VolumePlug<M: Machine> {
    requests: Vec<PluggedRequest<M>>,
    counts: Vec<u32>,
    /// Bios that wait in order. The first one waits until its drive has a free tag.
    blocked: BioList<M>,
    /// Bio chains (bios merged into one future request) that a frozen drive refused. Their tags
    /// were freed, and `flush` tries them again.
    refused: BioList<M>,
    /// True for a volume of a single drive with several hardware queues. As in Linux, the plug then
    /// keeps only the last request, so that the next bio can be merged with it.
    keeps_one: bool,
}

fn count_plugged<M: Machine>(member: &VolumeMember<M>) {
    M::work(Work::Submit, 1);
    member.stats.add(DiskCounter::Queued, 1);
}

fn take_request<M: Machine>(
    member: &VolumeMember<M>,
    run: &mut SubmitContext<M>,
) -> Option<RequestRef<M>> {
    member.hctx().tags.take_one(&mut run.hint)
}

fn fill<M: Machine>(
    member: &VolumeMember<M>,
    mut rq: RequestRef<M>,
    chain: BioRef<M>,
) -> PluggedRequest<M> {
    rq.touch();
    let (number, sector) = (chain.member, chain.dev_sector);
    rq.fill_waited(chain, member.route.hctx, member.disk.flags_taken);
    PluggedRequest { member: number, sector, rq: Some(rq) }
}

fn send_flush<M: Machine>(
    member: &mut VolumeMember<M>,
    slot: BioRef<M>,
    run: &mut SubmitContext<M>,
) {
    M::work(Work::Submit, 1);
    member.flushes = true;
    if member.disk.trace(run).is_on() {
        member.disk.trace(run).plugged(&slot, PlugPlace::First);
    }
    member.plug.push(slot);
    member.flush_served(BatchServer::Submitter, run);
}

impl<M: Machine> VolumePlug<M> {
    pub(crate) fn new(volume: &Arc<Volume<M>>) -> Self {
        let disks = volume.disks();
        VolumePlug {
            requests: Vec::with_capacity(disks.len() * REQUESTS_MAX as usize),
            counts: alloc::vec![0; disks.len()],
            blocked: BioList::new(),
            refused: BioList::new(),
            keeps_one: disks.len() == 1 && disks[0].queue_count().1 > 1,
        }
    }

    fn len(&self) -> u32 {
        self.requests.len() as u32 + self.refused.len() + self.blocked.len()
    }

    /// Merges a bio with the newest request that accepts it, else returns the bio.
    fn merge(
        &mut self,
        bio: BioRef<M>,
        members: &[VolumeMember<M>],
        run: &mut SubmitContext<M>,
    ) -> Option<BioRef<M>> {
        let member = &members[usize::from(bio.member)];
        let (mut looks, mut left) = (0, Some(bio));
        for plugged in self.requests.iter_mut().rev() {
            looks += 1;
            let Some(bio) = left.take() else { break };
            let Some(rq) = plugged.rq.as_mut().filter(|_| plugged.member == bio.member) else {
                left = Some(bio);
                continue;
            };
            rq.touch();
            let split = |stage| stage == BioStage::Child;
            if split(bio.stage) || rq.chain.as_ref().is_some_and(|chain| split(chain.stage)) {
                // Parts of a split bio are never merged.
                left = Some(bio);
                continue;
            }
            let mut chain = rq.empty();
            let limits = member.disk.limits();
            match try_merge(&mut chain, bio, limits) {
                Ok(kind) => {
                    member.stats.count_merge(chain.op());
                    member.disk.trace(run).merged(kind, &chain);
                    plugged.sector = chain.dev_sector;
                }
                Err(bio) => left = Some(bio),
            }
            rq.fill_waited(chain, member.route.hctx, member.disk.flags_taken);
        }
        M::work(Work::Search, looks);
        left
    }

    /// Returns the number of entries that still wait to be sent. Entries are requests, waiting
    /// bios, refused bios, and drives with refused flushes.
    pub(crate) fn plugged(&self, members: &[VolumeMember<M>]) -> u32 {
        let flushes = members.iter().filter(|member| !member.plug.is_empty()).count();
        self.len() + flushes as u32
    }

    /// Adds a bio to the plug: merges it into a plugged request, or gets a request for it. If no
    /// tag is free, the bio waits for one. While older bios wait for a tag, the bio waits behind
    /// them. A flush that need not wait is sent at once.
    pub(crate) fn plug(&mut self, slot: BioRef<M>, to: &mut BioSubmission<M>) {
        if self.blocked.is_empty() {
            self.plug_or_block(slot, to);
        } else {
            self.blocked.push_back(slot);
        }
    }

    fn plug_or_block(&mut self, slot: BioRef<M>, to: &mut BioSubmission<M>) {
        let at = usize::from(slot.member);
        let slot = match slot.op().has_data() {
            true => match self.merge(slot, &to.members, &mut to.run) {
                Some(slot) => slot,
                None => return count_plugged(&to.members[at]),
            },
            false => slot,
        };
        if self.keeps_one && !self.requests.is_empty() {
            self.unplug(to);
        }
        if slot.op() == Op::Flush {
            return send_flush(&mut to.members[at], slot, &mut to.run);
        }
        let member = &to.members[at];
        let Some(rq) = take_request(member, &mut to.run) else { return self.block(slot, to) };
        if to.checks.traced {
            let place = match self.requests.is_empty() {
                true => PlugPlace::First,
                false => PlugPlace::Later,
            };
            member.disk.trace(&mut to.run).plugged(&slot, place);
        }
        count_plugged(member);
        self.requests.push(fill(member, rq, slot));
        self.counts[at] += 1;
        if self.counts[at] >= REQUESTS_MAX {
            self.unplug(to);
        }
    }

    /// Makes a bio wait for a tag. As in the kernel, plugged requests are sent first.
    fn block(&mut self, slot: BioRef<M>, to: &mut BioSubmission<M>) {
        let why = core::mem::replace(&mut to.run.trace_context.unplug, UnplugReason::ToWait);
        self.unplug(to);
        to.run.trace_context.unplug = why;
        let member = &mut to.members[usize::from(slot.member)];
        // Requests of a thread that has ended or is busy may hold the tags, so this channel polls
        // the queue for their completions itself.
        member.served_here = true;
        member.stats.add(DiskCounter::TagWaits, 1);
        if slot.waited == WaitTimes::NOT {
            // The trace shows only the first wait of a bio for a tag.
            member.disk.trace(&mut to.run).slot(EventCode::Sleep, &slot);
        }
        self.blocked.push_front(slot);
    }

    /// Sends all requests, sorted by drive and sector. If a frozen drive refuses requests, their
    /// tags are freed, because the drive may need tags in order to drain.
    fn unplug(&mut self, to: &mut BioSubmission<M>) {
        let count = self.requests.len() as u32;
        M::work(Work::Search, count * (32 - count.leading_zeros()));
        self.requests.sort_unstable_by_key(|plugged| (plugged.member, plugged.sector));
        self.counts.fill(0);
        for group in self.requests.chunk_by_mut(|a, b| a.member == b.member) {
            let (member, count) = (usize::from(group[0].member), group.len() as u32);
            let member = &mut to.members[member];
            if to.checks.traced
                && let Some(first) = &group[0].rq
            {
                first.touch();
                if let Some(head) = first.chain.as_deref() {
                    member.disk.trace(&mut to.run).record_unplug(head, count);
                }
            }
            let mut requests = group.iter_mut().filter_map(|plugged| plugged.rq.take());
            member.served_here = true;
            if !filled::submit(&mut member.context(&mut to.run), &mut requests) {
                let tags = &member.hctx().tags;
                requests.for_each(|rq| self.refused.push_back(tags.take_apart(rq)));
                tags.wake_all();
            }
        }
        self.requests.clear();
    }

    pub(crate) fn flush(&mut self, to: &mut BioSubmission<M>) {
        self.unplug(to);
        while let Some(chain) = self.refused.pop_front() {
            let member = &to.members[usize::from(chain.member)];
            let Some(rq) = take_request(member, &mut to.run) else {
                self.refused.push_front(chain);
                break;
            };
            self.requests.push(fill(member, rq, chain));
        }
        // Retries the bios that wait for a tag, in order, until one of them finds no tag.
        let mut waiting = self.blocked.take();
        let now_ns = if waiting.is_empty() { 0 } else { M::now() };
        while let Some(mut slot) = waiting.pop_front() {
            slot.mark_admitted(now_ns);
            self.plug_or_block(slot, to);
            if !self.blocked.is_empty() {
                break;
            }
        }
        self.blocked.append(&mut waiting);
        self.unplug(to);
    }

    /// Frees the tags of plugged requests and forgets all bios. Called when a dropped channel leaks
    /// its `BioSet`, because a drive may still write the bios' memory.
    pub(crate) fn leak(&mut self, members: &[VolumeMember<M>]) {
        self.blocked.leak();
        self.refused.leak();
        for plugged in self.requests.drain(..) {
            let tags = &members[usize::from(plugged.member)].hctx().tags;
            core::mem::forget(plugged.rq.map(|rq| tags.take_apart(rq)));
            tags.wake_all();
        }
    }
}

impl<M: Machine> BioSubmission<M> {
    /// Creates or removes the volume's plug after a change of mode, unless bios are plugged.
    pub(crate) fn follow_mode(&mut self, serving: Serving) {
        let follows = serving == Serving::PerVolume;
        if self.batch.plugged == 0 && self.volume_plug.is_some() != follows {
            self.volume_plug = follows.then(|| Box::new(VolumePlug::new(&self.volume)));
            self.split_rule = if follows { SplitRule::Chunks } else { SplitRule::Drives };
            self.checks.admits_each = follows;
            self.checks.settle();
        }
    }

    pub(crate) fn plug_request(&mut self, slot: BioRef<M>) {
        let drives = self.members.len();
        let member = &mut self.members[usize::from(slot.member)];
        if slot.op() != Op::Flush {
            // A flush is counted as outstanding later, when it leaves the plug of its drive.
            member.outstanding += 1;
        }
        if self.checks.traced {
            member.disk.trace(&mut self.run).tell_entry(&slot);
            member.disk.trace(&mut self.run).record_entry(&slot, drives);
        }
        self.batch.plugged = self.with_volume_plug(|plug, sub| plug.plug(slot, sub));
        self.run.publish();
    }

    /// Empties the volume's plug, if any, and returns the number of entries that remain.
    pub(crate) fn flush_volume_plug(&mut self) -> u32 {
        match self.volume_plug {
            Some(_) => self.with_volume_plug(VolumePlug::flush),
            None => 0,
        }
    }

    /// Calls `act` with the volume's plug. Returns the number of bios and requests left in it.
    fn with_volume_plug(&mut self, act: impl FnOnce(&mut VolumePlug<M>, &mut Self)) -> u32 {
        let mut plug = self.volume_plug.take().expect("the caller has seen the plug");
        act(&mut plug, self);
        let plugged = plug.plugged(&self.members);
        self.volume_plug = Some(plug);
        plugged
    }

    /// Frees the tags of plugged requests when a dropped channel leaks its `BioSet`.
    pub(crate) fn leak_requests(&mut self) {
        if let Some(plug) = &mut self.volume_plug {
            plug.leak(&self.members);
        }
    }
}
