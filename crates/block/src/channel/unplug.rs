//! Unplugging for volumes whose batches may be served by other threads than the submitter.
//!
//! Workers serve a batch only if it reaches the low watermark, `plug_low` bios for each drive. In
//! the serving mode `auto`, workers must also have proved faster than submitters. Back pressure: a
//! channel accepts no bio once more than `pressure_high` bio chains (bios merged into one future
//! request) for each drive wait for workers. The channel accepts bios again when at most
//! `pressure_low` for each drive wait. Source: Kumar et al., ATC 2017, watermarks and back
//! pressure.

use millrace_machine::Machine;

use crate::channel::member::BatchServer;
use crate::channel::submission::BioSubmission;
use crate::volume::serving::Serving;

impl<M: Machine> BioSubmission<M> {
    /// Sends the plugged bios of a volume that is traced, or served in another mode than `inline`.
    /// There are three ways:
    /// - The drives' workers get the bios.
    /// - The bios go into queues that the calling thread serves.
    /// - In the mode `per-volume`, the bios pass through a single plug for all drives.
    #[inline(never)]
    pub(crate) fn flush_served(&mut self) {
        let (serving, traced) = self.volume.mode();
        if traced != self.run.trace.is_some() {
            self.follow_trace(traced);
        }
        let bios = self.batch.plugged;
        self.batch.plugged = 0;
        let server = self.server_of(serving, bios);
        let (last, first) = self.members.split_at_mut(self.first_member);
        for member in first.iter_mut().chain(last) {
            self.batch.plugged += member.flush_served(server, &mut self.run);
        }
        self.first_member = (self.first_member + 1) % self.members.len();
        if server == BatchServer::Worker {
            self.press(self.volume.serving_config().pressure_high);
        }
        self.batch.plugged += self.flush_volume_plug();
        self.follow_mode(serving);
        self.run.publish();
    }

    fn server_of(&mut self, serving: Serving, bios: u32) -> BatchServer {
        let drives = self.members.len() as u32;
        let enough = drives > 1 && bios >= self.volume.serving_config().plug_low * drives;
        let handed = match serving {
            Serving::PerDrive => enough,
            // The submission time of the batch's first bio is recent, so it serves as the present
            // time, without a clock reading.
            Serving::Auto if drives > 1 && bios > 0 => {
                let (batch, now_ns) = ((bios, self.in_flight()), self.batch.now_ns);
                self.chooser.next::<M>(&self.volume.choice, batch, now_ns) && enough
            }
            _ => false,
        };
        if handed { BatchServer::Worker } else { BatchServer::Submitter }
    }

    #[cold]
    pub(crate) fn follow_trace(&mut self, traced: bool) {
        let disks = self.volume.disks();
        let tracer = disks.iter().find_map(|disk| disk.config.tracer.as_deref());
        self.run.follow(tracer.filter(|_| traced));
        self.checks.trace(self.run.trace.is_some());
        self.checks.settle();
        let drives = self.members.len();
        for member in &mut self.members {
            member.trace_plugged(drives, &mut self.run);
        }
    }

    /// Sets back pressure while more than `chains_max` bio chains (bios merged into one future
    /// request) for each drive wait for workers.
    fn press(&mut self, chains_max: u32) {
        let chains_max = u64::from(chains_max) * self.members.len() as u64;
        self.checks.pressed = self.volume.waiting() > chains_max;
        self.checks.settle();
    }

    /// Ends back pressure if few enough bio chains (bios merged into one future request) wait for
    /// workers. Returns true if there is no back pressure any more.
    #[cold]
    pub(crate) fn has_relief(&mut self) -> bool {
        // Serves the bios of workers that have left. Otherwise perhaps no thread would serve these
        // bios, and back pressure would never end.
        self.members.iter().for_each(|member| member.stand_in(&mut self.run));
        self.press(self.volume.serving_config().pressure_low);
        !self.checks.pressed
    }
}
