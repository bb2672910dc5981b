//! How a channel unplugs where others than itself may serve: by the volume's mode.
//!
//! The half of `Channel` behind the plug for volumes that are not served inline: who serves a
//! batch (the low watermark and, with `auto`, what turned out faster), and back pressure: above the
//! high pressure point the channel takes no bio until the stack has emptied to the low one. Source:
//! \[FALCON\], watermarks and back pressure.

use alloc::boxed::Box;
use alloc::sync::Arc;

use millrace_machine::Machine;

use crate::bio::Bio;
use crate::chain::slot::BioList;
use crate::channel::gate::Gate;
use crate::channel::reap::Completion;
use crate::channel::volume_plug::VolumePlug;
use crate::channel::{Channel, Reject, Rejected};
use crate::volume::Volume;
use crate::volume::serving::{Choice, Serving};

/// What a channel knows of who serves.
pub(crate) struct Served<M: Machine> {
    choice: Choice,
    /// The drive that a batch begins with: another one each time, since the later ones wait for
    /// the earlier to be served here, or for their workers to be woken.
    first: usize,
    /// The one list of all drives; made when it is first needed.
    pub(crate) plug: Option<Box<VolumePlug<M>>>,
    /// Bios to be sent off again at the end of a poll; empty between polls.
    pub(crate) again: BioList<M>,
}

impl<M: Machine> Served<M> {
    /// As the channel's gate says, whatever the volume's mode is by now.
    pub(crate) fn new(volume: &Arc<Volume<M>>, gate: &Gate) -> Self {
        let plug = gate.per_volume.then(|| Box::new(VolumePlug::new(volume)));
        Served { choice: Choice::new(), first: 0, plug, again: BioList::new() }
    }
}

impl<M: Machine> Channel<M> {
    /// [`Channel::flush`] of a volume that is not simply served inline.
    #[inline(never)]
    pub(crate) fn flush_served(&mut self) {
        let (serving, traced) = self.volume.mode();
        if traced != self.run.trace.is_some() {
            self.follow_trace(traced);
        }
        let bios = self.batch.plugged;
        self.batch.plugged = 0;
        let handed = self.hands_over(serving, bios);
        let (last, first) = self.members.split_at_mut(self.served.first);
        for member in first.iter_mut().chain(last) {
            self.batch.plugged += member.flush_served(handed, self.gate.traced, &mut self.run);
        }
        self.served.first = (self.served.first + 1) % self.members.len();
        if handed {
            self.press();
        }
        if self.gate.per_volume {
            self.batch.plugged += self.flush_requests();
        }
        if self.batch.plugged == 0 && self.gate.per_volume != (serving == Serving::PerVolume) {
            self.follow(serving);
        }
        self.run.publish();
    }

    /// Whether a batch of so many bios goes to the workers.
    fn hands_over(&mut self, serving: Serving, bios: u32) -> bool {
        let drives = self.members.len() as u32;
        let enough = drives > 1 && bios >= self.volume.serving_config().plug_low * drives;
        match serving {
            Serving::PerDrive => enough,
            // The batch was stamped when its first bio came: that is late enough to be now.
            Serving::Auto if drives > 1 && bios > 0 => {
                let (in_flight, now_ns) = (self.in_flight(), self.batch.now_ns);
                self.served.choice.next(bios, in_flight, now_ns) && enough
            }
            Serving::Auto | Serving::Inline | Serving::PerVolume => false,
        }
    }

    /// With nothing plugged, does as the volume's mode says from now on.
    pub(crate) fn follow(&mut self, serving: Serving) {
        self.gate.per_volume = serving == Serving::PerVolume;
        self.gate.settle();
        if self.gate.per_volume && self.served.plug.is_none() {
            self.served.plug = Some(Box::new(VolumePlug::new(&self.volume)));
        }
    }

    /// Records from now on, or no longer.
    #[cold]
    pub(crate) fn follow_trace(&mut self, traced: bool) {
        let disks = self.volume.disks();
        let tracer = disks.iter().find_map(|disk| disk.config.tracer.as_deref());
        self.run.follow(tracer.filter(|_| traced));
        self.gate.trace(self.run.trace.is_some());
        self.gate.settle();
        let drives = self.members.len();
        for member in &mut self.members {
            member.trace_plugged(drives, &mut self.run);
        }
    }

    /// Notes whether too much waits for the workers.
    fn press(&mut self) {
        let high = self.volume.serving_config().pressure_high;
        let drives = self.members.len() as u64;
        self.gate.pressed = self.volume.waiting() > u64::from(high) * drives;
        self.gate.settle();
    }

    /// Whether enough of what waited has gone out.
    #[cold]
    pub(crate) fn has_relief(&mut self) -> bool {
        // What a worker left behind may belong to channels that nobody polls.
        self.members.iter().for_each(|member| member.stand_in(&mut self.run));
        self.gate.pressed = self.volume.waiting() > self.pressure_low();
        self.gate.settle();
        !self.gate.pressed
    }

    /// The low pressure point of all drives together.
    fn pressure_low(&self) -> u64 {
        u64::from(self.volume.serving_config().pressure_low) * self.members.len() as u64
    }

    /// Submits a bio, waiting while the channel is full or too much waits in the stack; hands what
    /// completes meanwhile to `take`. For threads that own no queues.
    ///
    /// # Errors
    /// Gives the bio back if it can never be served.
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
            // A channel with nothing in flight is never full, so that this ends.
            self.wait(1, &mut take);
        }
    }
}
