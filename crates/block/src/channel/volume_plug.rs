//! `VolumePlug`: one list of requests for all drives of a volume, as Linux's path has it.
//!
//! Kept to be measured against (\[FALCON\], its problem statement). One context does it all: a bio
//! is searched for a neighbour back through the whole list, unless it was split; else it takes its
//! tag there and then, and if the drive has none everything stops until it has; 16 requests for one
//! drive unplug them all, sorted by drive and sector, drive after drive. A single drive with
//! several hardware queues keeps one request back, tries the next bio with it alone, and sends the
//! older one on. Part of `Channel`. Kernel counterpart: blk_mq_make_request, blk_attempt_plug_merge
//! and blk_mq_flush_plug_list of the 4.x series; md/raid0.c splits by chunks.
#![allow(unsafe_code)]

use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_machine::plant::{Plant, planted};
use millrace_machine::{Counter, Machine, Stage as Work};

use crate::account::DiskStats;
use crate::bio::Op;
use crate::chain::merge::try_merge;
use crate::chain::slot::{BioList, BioRef, Stage, Waited};
use crate::channel::Channel;
use crate::channel::member::Member;
use crate::disk::Disk;
use crate::disk::runner::Runner;
use crate::queue::Serve;
use crate::queue::request::Tag;
use crate::queue::serve::Serving;
use crate::trace::{Action, Unplug};
use crate::volume::Volume;

/// Requests for one drive that unplug the list: the kernel's BLK_MAX_REQUEST_COUNT.
const REQUESTS_MAX: u32 = 16;

/// A filled request that no driver has yet.
#[derive(Debug, Clone, Copy)]
struct Plugged {
    member: u16,
    sector: u64,
    tag: Tag,
}

/// The list.
pub(crate) struct VolumePlug<M: Machine> {
    requests: Vec<Plugged>,
    /// How many of them each drive has.
    counts: Vec<u32>,
    /// Bios that wait for the first one's drive to have a tag.
    blocked: BioList<M>,
    /// Requests that a frozen drive refused, taken apart, to be tried again.
    refused: BioList<M>,
    /// One drive with several queues: one request is kept.
    keeps_one: bool,
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

    /// Merges a bio with a request in the list, the newest first; gives it back if none fits.
    fn merge(
        &mut self,
        bio: BioRef<M>,
        members: &[Member<M>],
        run: &mut Runner<M>,
    ) -> Option<BioRef<M>> {
        let member = &members[usize::from(bio.member)];
        let (mut looks, mut left) = (0, Some(bio));
        for plugged in self.requests.iter_mut().rev() {
            looks += 1;
            let Some(bio) = left.take() else { break };
            if plugged.member != bio.member {
                left = Some(bio);
                continue;
            }
            let hctx = &member.disk.hctxs[usize::from(member.route.hctx)];
            // SAFETY: plugged requests belong to the list, and the tag is on it once.
            let rq = unsafe { hctx.tags.request(plugged.tag) };
            if rq.chain.as_ref().is_some_and(|chain| chain.stage == Stage::Child) {
                // Neither is a part merged with what comes after it.
                left = Some(bio);
                continue;
            }
            let mut chain = rq.empty();
            let limits = member.disk.limits();
            match try_merge(&mut chain, bio, limits) {
                Ok(kind) => {
                    member.stats.count_merge(chain.op());
                    member.disk.trace_merged(kind, &chain, run);
                    plugged.sector = chain.dev_sector;
                }
                Err(bio) => left = Some(bio),
            }
            rq.fill_waited(chain, member.route.hctx, member.disk.flags_taken);
        }
        M::work(Work::Search, looks);
        left
    }
}

impl<M: Machine> Channel<M> {
    /// Puts a bio that goes to one drive into the list, as a request or into another's.
    pub(crate) fn plug_request(&mut self, slot: BioRef<M>) {
        if self.gate.traced {
            let drives = self.members.len();
            let disk = &self.members[usize::from(slot.member)].disk;
            disk.tell_entry(&slot);
            disk.record_entry(&slot, drives, &mut self.run);
        }
        let Some(mut plug) = self.served.plug.take() else {
            unreachable!("made when the channel began to follow this mode");
        };
        if slot.op() != Op::Flush {
            // A flush is counted when it goes its own way.
            let counted = u32::from(!planted(Plant::TagUnlooked));
            self.members[usize::from(slot.member)].outstanding += counted;
        }
        if plug.blocked.is_empty() {
            self.plug_or_block(slot, &mut plug);
        } else {
            plug.blocked.push_back(slot);
        }
        self.batch.plugged = self.plugged_in(&plug);
        self.served.plug = Some(plug);
        self.run.publish();
    }

    /// What this channel has plugged: requests, what is blocked, and flushes that were refused.
    fn plugged_in(&self, plug: &VolumePlug<M>) -> u32 {
        let flushes = self.members.iter().filter(|member| member.holds_plugged()).count();
        plug.len() + flushes as u32
    }

    /// One bio's way; what has no tag blocks all that come after it.
    fn plug_or_block(&mut self, slot: BioRef<M>, plug: &mut VolumePlug<M>) {
        let at = usize::from(slot.member);
        // Split bios are taken to be as large as they get: never merged again.
        let mergeable = slot.op().has_data() && slot.stage != Stage::Child;
        let slot = match mergeable {
            true => match plug.merge(slot, &self.members, &mut self.run) {
                Some(slot) => slot,
                None => return self.members[at].count_plugged(),
            },
            false => slot,
        };
        if plug.keeps_one && !plug.requests.is_empty() {
            self.unplug(plug);
        }
        if slot.op() == Op::Flush {
            // Flushes have a path of their own, past the list.
            let traced = self.gate.traced;
            self.members[at].send_flush(slot, traced, &mut self.run);
            return;
        }
        let Some(tag) = self.members[at].take_tag(&mut self.run) else {
            // Who sleeps unplugs first; then the whole context waits.
            let why = core::mem::replace(&mut self.run.told.unplug, Unplug::ToWait);
            self.unplug(plug);
            self.run.told.unplug = why;
            let member = &mut self.members[at];
            member.expect_tag();
            member.stats.tag_waits.add(1);
            if slot.waited == Waited::NOT {
                // For the first time; the next ones are looks.
                member.disk.trace_slot(Action::Sleep, &slot, &mut self.run);
            }
            plug.blocked.push_front(slot);
            return;
        };
        let (member, sector) = (slot.member, slot.dev_sector);
        if self.gate.traced {
            let first = plug.requests.is_empty();
            self.members[at].disk.trace_plugged(&slot, first, &mut self.run);
        }
        self.members[at].count_plugged();
        self.members[at].fill(tag, slot);
        plug.requests.push(Plugged { member, sector, tag });
        plug.counts[at] += 1;
        if plug.counts[at] >= REQUESTS_MAX {
            self.unplug(plug);
        }
    }

    /// Sends all requests on: sorted by drive and sector, one drive after the other. What a frozen
    /// drive refuses waits without a tag, which others may need for the drive to be drained.
    fn unplug(&mut self, plug: &mut VolumePlug<M>) {
        let count = plug.requests.len() as u32;
        M::work(Work::Search, count * (32 - count.leading_zeros()));
        plug.requests.sort_unstable_by_key(|plugged| (plugged.member, plugged.sector));
        plug.counts.fill(0);
        for group in plug.requests.chunk_by(|a, b| a.member == b.member) {
            let member = &mut self.members[usize::from(group[0].member)];
            let tags = group.iter().map(|plugged| plugged.tag);
            if self.gate.traced {
                member.record_unplug(group[0].tag, group.len() as u32, &mut self.run);
            }
            if !member.send_requests(tags.clone(), &mut self.run) {
                tags.for_each(|tag| plug.refused.push_back(member.unfill(tag)));
                member.wake_waiters();
            }
        }
        plug.requests.clear();
    }

    /// Unplugs, and goes on with what was refused or blocked; returns what is left.
    pub(crate) fn flush_requests(&mut self) -> u32 {
        let Some(mut plug) = self.served.plug.take() else { return 0 };
        self.unplug(&mut plug);
        while let Some(chain) = plug.refused.pop_front() {
            let (member, sector) = (chain.member, chain.dev_sector);
            let Some(tag) = self.members[usize::from(member)].take_tag(&mut self.run) else {
                plug.refused.push_front(chain);
                break;
            };
            self.members[usize::from(member)].fill(tag, chain);
            plug.requests.push(Plugged { member, sector, tag });
        }
        // Once through what was blocked; the first that blocks again stops it.
        let mut waiting = plug.blocked.take();
        let now_ns = if waiting.is_empty() { 0 } else { M::now() };
        while let Some(mut slot) = waiting.pop_front() {
            slot.mark_admitted(now_ns);
            self.plug_or_block(slot, &mut plug);
            if !plug.blocked.is_empty() {
                break;
            }
        }
        plug.blocked.append(&mut waiting);
        self.unplug(&mut plug);
        let left = self.plugged_in(&plug);
        self.served.plug = Some(plug);
        left
    }

    /// Takes plugged requests apart again: only for a home that is leaked.
    pub(crate) fn leak_requests(&mut self) {
        let Some(mut plug) = self.served.plug.take() else { return };
        plug.blocked.leak();
        plug.refused.leak();
        for plugged in plug.requests.drain(..) {
            let member = &self.members[usize::from(plugged.member)];
            core::mem::forget(member.unfill(plugged.tag));
            member.wake_waiters();
        }
    }
}

impl<M: Machine> Disk<M> {
    /// Takes filled requests and runs the queue; false, and nothing taken, if it is frozen.
    pub(crate) fn submit_filled(
        &self,
        index: u16,
        tags: impl Iterator<Item = Tag>,
        run: &mut Runner<M>,
        stats: &DiskStats<M>,
    ) -> bool {
        let hctx = &self.hctxs[usize::from(index)];
        let mut serving = hctx.serve.enter();
        if serving.frozen {
            self.leave_to_others(index, serving, run, stats);
            return false;
        }
        let (mut count, now_ns) = (0, M::now());
        for tag in tags {
            count += 1;
            // SAFETY: filled by the caller, and in nobody else's hands.
            let rq = unsafe { hctx.tags.request(tag) };
            rq.mark_inserted(now_ns);
            if self.is_traced(run) {
                self.trace_request(Action::Insert, rq, M::now(), run);
            }
            serving.requeued.push_back(tag);
        }
        M::work(Work::Insert, count);
        self.leave_to_others(index, serving, run, stats);
        true
    }

    /// Serves a queue that was entered, or leaves it to its owner.
    fn leave_to_others<'a>(
        &'a self,
        index: u16,
        serving: Serving<'a, M, Serve<M>>,
        run: &mut Runner<M>,
        stats: &DiskStats<M>,
    ) {
        let hctx = &self.hctxs[usize::from(index)];
        if self.may_serve(hctx, run) {
            return self.serve(index, serving, run, stats);
        }
        // A flag that somebody left meanwhile stands for work that is marked: the owner sees it.
        let mut inside = Some(serving);
        while let Some(serving) = inside.take() {
            inside = serving.leave();
        }
        hctx.mark_pending(self.a_ctx_of(index));
        hctx.ring();
    }
}
