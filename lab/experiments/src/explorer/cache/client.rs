//! `CacheClient`: a thread that submits the scenario's I/O through a channel of its own.
//!
//! Tells the oracle about every bio that it submits and every completion. Writes only sectors that
//! it owns, and never two overlapping writes at a time; reads any sector.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use millrace_block::{
    Bio, Buffer, Channel, ChannelConfig, Completion, IoThread, Op, OpFlags, Reject, Rejected,
    Status, Volume,
};
use millrace_machine::Machine;
use millrace_random::SplitMix64 as Random;
use millrace_simulator::Simulated;

use super::oracle::{CacheOracle, VolumeReply};
use super::scenario::CacheScenario;
use crate::explorer::oracle_lock::lock_oracle;

#[derive(Debug, Clone, Copy)]
struct IoInFlight {
    op: Op,
    sector: u64,
    nr: u64,
    flags: OpFlags,
    /// Set for a FUA write to pages that were written before: it may also have to wait for a drive
    /// that hangs, because older data of the pages may lie there.
    may_wait: bool,
    started: u64,
    started_ns: u64,
}

pub(super) struct CacheClient {
    scenario: CacheScenario,
    number: usize,
    oracle: Arc<Mutex<CacheOracle>>,
    random: Random,
    flights: BTreeMap<u64, IoInFlight>,
    next: u64,
    /// Next sector of this client's sequential read stream.
    reader: u64,
}

impl CacheClient {
    pub(super) fn new(
        scenario: &CacheScenario,
        number: usize,
        oracle: &Arc<Mutex<CacheOracle>>,
    ) -> CacheClient {
        CacheClient {
            random: Random::new(scenario.seed ^ (number as u64 + 1) << 24),
            scenario: scenario.clone(),
            number,
            oracle: Arc::clone(oracle),
            flights: BTreeMap::new(),
            next: 0,
            reader: 0,
        }
    }

    /// Submits all its I/Os, waits for them, and ends with a flush.
    pub(super) fn run(&mut self, volume: &Arc<Volume<Simulated>>, thread: &IoThread<Simulated>) {
        for disk in volume.disks() {
            disk.bring_up(thread.number, thread).expect("each thread has a queue of its own");
        }
        let depth = self.scenario.load.depth;
        let config =
            ChannelConfig { depth, thread: Some(thread.clone()), ..ChannelConfig::default() };
        let mut channel =
            Channel::open(volume, config).expect("all queues of the volume are served");
        for _ in 0..self.scenario.load.ios {
            if let Some((flight, bio)) = self.next_io() {
                self.submit(&mut channel, flight, bio);
            }
            if self.random.below(4) == 0 {
                channel.poll(|done| self.end(done));
            }
            if self.random.below(8) == 0 {
                Simulated::charge(self.random.below(100_000) + 1);
            }
        }
        channel.wait(usize::MAX, |done| self.end(done));
        if let Some(dead) = self.scenario.dead {
            // Pages of other clients may still be in flight in this thread's queues. Requests that
            // the drive received before it recovered fail within its delay, and so does a flush
            // submitted meanwhile.
            let until_ns = self.scenario.stuck.map_or(0, |stuck| stuck.until_ns);
            let back_ns = dead.until_ns.max(until_ns) + self.scenario.delay_ns;
            while Simulated::now() < back_ns {
                channel.poll(|done| self.end(done));
                let deadline_ns = channel.sleep_until().unwrap_or(u64::MAX).min(back_ns);
                thread.bell.sleep_unless(Some(deadline_ns), || channel.has_work());
            }
        }
        let tries = if self.scenario.has_failures() { 3 } else { 1 };
        for _ in 0..tries {
            let flight = self.flight(Op::Flush, (0, 0), OpFlags::NONE);
            self.submit(&mut channel, flight, Bio::flush());
            channel.wait(usize::MAX, |done| self.end(done));
        }
        drop(channel);
        volume.disks().iter().for_each(|disk| disk.bring_down(thread));
        let mut oracle = lock_oracle(&self.oracle);
        let sectors = oracle.sectors();
        oracle.check_power_cut(0..sectors);
    }

    fn submit(&mut self, channel: &mut Channel<Simulated>, flight: IoInFlight, bio: Bio) {
        self.next += 1;
        let mut bio = bio.with_user_data(self.next);
        self.flights.insert(self.next, flight);
        let end = flight.sector + flight.nr;
        loop {
            let size = lock_oracle(&self.oracle).size;
            let Err(Rejected { bio: back, reason }) = channel.submit(bio) else {
                return lock_oracle(&self.oracle).check_end(end, size, VolumeReply::Taken);
            };
            if reason != Reject::Full {
                self.flights.remove(&self.next);
                let mut oracle = lock_oracle(&self.oracle);
                oracle.check_end(end, size, VolumeReply::Refused);
                if reason != Reject::Invalid(Status::OutOfRange) {
                    let text = format!("{flight:?} was refused: {reason:?}");
                    oracle.accuse("status", text);
                }
                return;
            }
            channel.wait(1, |done| self.end(done));
            bio = back;
            // The time spent waiting for a free slot does not count towards this I/O's latency.
            let flight = self.flights.get_mut(&self.next).expect("the I/O is not accepted yet");
            flight.started_ns = Simulated::now();
        }
    }

    fn flight(&self, op: Op, (sector, nr): (u64, u64), flags: OpFlags) -> IoInFlight {
        let started = lock_oracle(&self.oracle).tick();
        IoInFlight { op, sector, nr, flags, may_wait: false, started, started_ns: Simulated::now() }
    }

    /// Returns the next I/O, or None if it would overlap a write of this client.
    fn next_io(&mut self) -> Option<(IoInFlight, Bio)> {
        let [writes, flushes, clears] = self.scenario.load.mix;
        let kind = self.random.below(1000);
        if kind < writes {
            return self.write();
        }
        if kind < writes + flushes {
            return Some((self.flight(Op::Flush, (0, 0), OpFlags::NONE), Bio::flush()));
        }
        if kind < writes + flushes + clears {
            return self.clear();
        }
        let span = self.span_to_read();
        let buffer = Buffer::new(span.1 as usize * 512);
        Some((self.flight(Op::Read, span, OpFlags::NONE), Bio::read(span.0, buffer)))
    }

    fn span_to_read(&mut self) -> (u64, u64) {
        let mut volume = lock_oracle(&self.oracle).size.known;
        let nr = self.blocks(self.scenario.load.sectors_max);
        if self.scenario.growth.is_some() && self.random.below(8) == 0 {
            // The volume may not have grown yet: then the cache has to refuse this read.
            volume = self.scenario.volume_sectors_max();
        }
        if self.random.below(3) == 0 {
            // An earlier read that was refused may have moved the position past the end.
            let sector = if self.reader < volume { self.reader } else { 0 };
            let nr = nr.min(volume - sector);
            self.reader = if sector + nr == volume { 0 } else { sector + nr };
            return (sector, nr);
        }
        let sector = self.place(volume);
        (sector, nr.min(volume - sector))
    }

    /// Picks the first sector of an I/O on a volume of `volume` sectors: in the hot range, or near
    /// the old end of a volume that grows.
    fn place(&mut self, volume: u64) -> u64 {
        let (old, block) =
            (self.scenario.shape.volume_sectors(), self.scenario.shape.block_sectors);
        let sector = match self.scenario.growth.is_some() && self.random.below(3) == 0 {
            true => {
                let from = old.saturating_sub(64.max(block));
                from + self.random.below(volume - from)
            }
            false => self.random.below(self.scenario.load.hot),
        };
        sector / block * block
    }

    /// Draws a length of whole blocks, in sectors, of at most `most` sectors.
    fn blocks(&mut self, most: u64) -> u64 {
        let block = self.scenario.shape.block_sectors;
        (1 + self.random.below(most / block)) * block
    }

    /// Picks sectors that this client owns and that none of its writes in flight touches.
    fn span_to_write(&mut self) -> Option<(u64, u64)> {
        let most =
            if self.scenario.load.clients == 1 { self.scenario.load.sectors_max } else { u64::MAX };
        let (grain, volume) = (self.scenario.load.grain, lock_oracle(&self.oracle).size.known);
        let sector = self.place(volume);
        if self.scenario.owner(sector) != self.number {
            return None;
        }
        let room = if most == u64::MAX { grain - sector % grain } else { most };
        let nr = self.blocks(room).min(volume - sector);
        let overlaps = |flight: &IoInFlight| {
            flight.op.is_write()
                && flight.sector < sector + nr
                && sector < flight.sector + flight.nr
        };
        (!self.flights.values().any(overlaps)).then_some((sector, nr))
    }

    fn write(&mut self) -> Option<(IoInFlight, Bio)> {
        let (sector, nr) = self.span_to_write()?;
        let fua = self.random.below(1000) < self.scenario.load.fua_per_mille;
        let mut oracle = lock_oracle(&self.oracle);
        let page = self.scenario.shape.block_sectors.max(8);
        let may_wait = fua && !oracle.are_pages_new(sector, nr, page);
        let stamp = oracle.start_write(sector, nr);
        drop(oracle);
        let mut buffer = Buffer::new(nr as usize * 512);
        let (words, _) = buffer.as_chunks_mut::<8>();
        words.iter_mut().for_each(|word| *word = stamp.to_ne_bytes());
        let flags = if fua { OpFlags::FUA } else { OpFlags::NONE };
        let flight = IoInFlight { may_wait, ..self.flight(Op::Write, (sector, nr), flags) };
        Some((flight, Bio::write(sector, buffer).with_flags(flags)))
    }

    fn clear(&mut self) -> Option<(IoInFlight, Bio)> {
        let (sector, nr) = self.span_to_write()?;
        lock_oracle(&self.oracle).start_clear(sector, nr);
        let (op, bio) = match self.random.below(2) {
            0 => (Op::Discard, Bio::discard(sector, nr as u32)),
            _ => (Op::WriteZeroes, Bio::write_zeroes(sector, nr as u32)),
        };
        Some((self.flight(op, (sector, nr), OpFlags::NONE), bio))
    }

    fn end(&mut self, done: Completion) {
        // Reading the clock may switch to another simulated thread, so read it before locking the
        // oracle.
        let now_ns = Simulated::now();
        let mut oracle = lock_oracle(&self.oracle);
        let Some(flight) = self.flights.remove(&done.user_data) else {
            return oracle.accuse("completion", format!("I/O {} completed twice", done.user_data));
        };
        oracle.ios += 1;
        let is_live = flight.op != Op::Flush && self.scenario.is_live(flight.sector, flight.nr);
        let lasted_ns = now_ns - flight.started_ns;
        let is_held = lasted_ns > self.scenario.held_ns_max() && !flight.may_wait;
        if is_live && flight.op == Op::Write && is_held {
            oracle.accuse("held", format!("{flight:?} took {lasted_ns} ns"));
        }
        if !done.status.is_ok() {
            if is_live || !self.scenario.has_failures() {
                oracle.accuse("status", format!("{flight:?} failed: {}", done.status));
            }
            return;
        }
        match flight.op {
            Op::Flush => oracle.end_flush(flight.started),
            Op::Read => {
                let buffer = done.bio.into_buffer().expect("reads have an owned buffer");
                let (words, _) = buffer.as_chunks::<8>();
                for (sector, words) in (flight.sector..).zip(words.chunks(64)) {
                    let stamp = u64::from_ne_bytes(words[0]);
                    if words.iter().any(|word| *word != words[0]) {
                        oracle.accuse("data", format!("sector {sector} is torn"));
                    }
                    oracle.check_read(sector, stamp, flight.started);
                }
            }
            _ => oracle.end_write(flight.sector, flight.nr, flight.flags),
        }
    }
}
