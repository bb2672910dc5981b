//! Baseline: a single plug for all drives of a volume, for comparison with a plug for each drive.
//!
//! A channel has a `VolumePlug` while its volume is served in `per-volume` mode. `Submission` uses
//! the `VolumePlug` to admit bios and to empty plugs; no other file knows it. In this mode no bio
//! goes straight into the plug of its drive, and bios are split by chunks.

pub(crate) mod volume_plug;

use alloc::boxed::Box;

use millrace_machine::Machine;

use crate::bio::Op;
use crate::chain::slot::BioRef;
use crate::channel::baseline::volume_plug::VolumePlug;
use crate::channel::submission::{SplitRule, Submission};
use crate::volume::serving::Serving;

impl<M: Machine> Submission<M> {
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
            // A flush counts as outstanding only when it leaves the plug of its drive.
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
