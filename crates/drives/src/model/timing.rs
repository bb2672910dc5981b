//! `ServiceTiming`: computes when an I/O of a simulated SSD completes, in virtual time.
//!
//! `ServiceTiming` keeps the times until which the command processor, the flash dies (`units`),
//! both directions of the link, and the write buffer are occupied. The caller submits I/Os in
//! order, one call for each. Equal sequences of calls give equal times.
//!
//! A transfer occupies the link from the submission of the I/O, although its data come later. So
//! the link never exceeds its rate, and an I/O on a slow flash die does not hold up the link for
//! others. Programming buffered writes does not delay reads, because controllers suspend it for
//! reads.

use std::time::Duration;

use millrace_machine::nanoseconds;
use millrace_random::{SplitMix64, mixed};

use super::config::ModelTiming;
use super::controller::ModelController;
use super::link::{BookedTransfer, DuplexLink, ModelIo, ModelIoKind};
use super::rotating::RotatingDisk;

/// Size of the blocks that the write buffer combines into flash pages, in sectors: 4 KiB.
const BLOCK_SECTORS: u64 = 8;

#[derive(Debug)]
pub(crate) struct ServiceTiming {
    config: ModelTiming,
    units_free_ns: Box<[u64]>,
    command_free_ns: u64,
    link: DuplexLink,
    drained_ns: u64,
    random: SplitMix64,
    disk: Option<RotatingDisk>,
}

impl ServiceTiming {
    pub(crate) fn new(config: &ModelTiming) -> ServiceTiming {
        ServiceTiming {
            units_free_ns: vec![0; config.units.clamp(1, ModelTiming::UNITS_MAX) as usize].into(),
            command_free_ns: 0,
            link: DuplexLink::new(config.read_bytes_per_s, config.write_bytes_per_s),
            drained_ns: 0,
            random: SplitMix64::new(config.seed),
            disk: config.disk.map(RotatingDisk::new),
            config: config.clone(),
        }
    }

    /// Submits an I/O at `now_ns`. Returns its completion time in nanoseconds.
    pub(crate) fn submit(
        &mut self,
        now_ns: u64,
        io: ModelIo,
        controller: Option<&ModelController>,
    ) -> u64 {
        let now_ns = controller.map_or(now_ns, |controller| controller.book_command(now_ns));
        let shared = controller.map_or(BookedTransfer::default(), |c| c.book_transfer(now_ns, io));
        if let Some(disk) = &mut self.disk {
            // The disk has a buffer, so it seeks and rotates while data cross the controller's
            // link.
            return shared.end_ns(disk.submit(now_ns, io));
        }
        let transfer = self.link.book(now_ns, io).with(shared);
        let command_time = match io.kind {
            ModelIoKind::Read => self.config.read_command_time,
            _ => self.config.write_command_time,
        };
        self.command_free_ns = self.command_free_ns.max(now_ns) + nanoseconds(command_time);
        let arrived_ns = self.command_free_ns + nanoseconds(self.config.latency);
        match io.kind {
            ModelIoKind::Read => {
                transfer.end_ns(self.occupy(arrived_ns, io, self.config.read_time))
            }
            ModelIoKind::Write | ModelIoKind::DurableWrite => {
                self.write(transfer.end_ns(arrived_ns), io)
            }
            ModelIoKind::Flush => arrived_ns.max(self.drained_ns),
            ModelIoKind::Command => arrived_ns,
        }
    }

    fn write(&mut self, here_ns: u64, io: ModelIo) -> u64 {
        let buffer = self.config.buffer_bytes;
        if buffer == 0 {
            let done_ns = self.occupy(here_ns, io, self.config.write_time);
            self.drained_ns = self.drained_ns.max(done_ns);
            return done_ns;
        }
        // Buffered blocks are combined into whole pages, even if they are far apart on the drive.
        let blocks = pieces_of(io, BLOCK_SECTORS).1;
        let at_once = self.blocks_at_once();
        let work_ns = blocks * self.vary(self.config.write_time) / at_once;
        self.drained_ns = self.drained_ns.max(here_ns) + work_ns;
        if io.kind == ModelIoKind::DurableWrite {
            return self.drained_ns;
        }
        // A write waits while the write buffer is full, that is, while the flash dies need more
        // than `most_behind_ns` to write the buffered data.
        let most_behind_ns = (buffer >> 12).max(1) * nanoseconds(self.config.write_time) / at_once;
        here_ns.max(self.drained_ns.saturating_sub(most_behind_ns))
    }

    /// Returns the number of 4 KiB blocks that all flash dies together write in the time in which
    /// one die writes a page.
    fn blocks_at_once(&self) -> u64 {
        u64::from(self.config.units) * (u64::from(self.config.page_bytes) >> 12)
    }

    fn occupy(&mut self, from_ns: u64, io: ModelIo, page_time: Duration) -> u64 {
        let (first, pages) = pieces_of(io, u64::from(self.config.page_bytes) >> 9);
        let page_ns = self.vary(page_time);
        let units = self.units_free_ns.len() as u64;
        let start = mixed(first) % units;
        let mut last_ns = from_ns;
        for step in 0..pages.min(units) {
            let on_this = pages / units + u64::from(step < pages % units);
            let free_ns = &mut self.units_free_ns[((start + step) % units) as usize];
            *free_ns = (*free_ns).max(from_ns) + on_this * page_ns;
            last_ns = last_ns.max(*free_ns);
        }
        last_ns
    }

    fn vary(&mut self, base: Duration) -> u64 {
        let mut time_ns = nanoseconds(base);
        if self.config.jitter > 0.0 {
            let factor = 1.0 + self.config.jitter * (2.0 * self.random.fraction() - 1.0);
            time_ns = (time_ns as f64 * factor) as u64;
        }
        if self.config.tail_share > 0.0 && self.random.fraction() < self.config.tail_share {
            // 1 - fraction is never 0, so the logarithm is finite.
            time_ns += (-(1.0 - self.random.fraction()).ln() * nanoseconds(self.config.tail) as f64)
                as u64;
        }
        time_ns
    }
}

/// Divides the drive into blocks of `sectors` sectors. Returns the number of the first block that
/// an I/O touches, and how many blocks it touches.
fn pieces_of(io: ModelIo, sectors: u64) -> (u64, u64) {
    let (first, end) = (io.sector / sectors, io.sector + u64::from(io.nr_sectors));
    (first, (end.div_ceil(sectors) - first).max(1))
}

#[cfg(test)]
mod tests;
