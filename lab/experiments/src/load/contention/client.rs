//! Loop of one client, which keeps `iodepth` I/Os in flight until the run ends and counts them.
//!
//! run.rs calls the loop on the client's own thread, with a channel and a function that waits. A
//! latency lasts from the moment before a bio is submitted until the client has polled its
//! completion, so it includes waits for limits, schedulers and tags. I/Os that complete during the
//! warm-up do not count. At the end, dropping the channel lifts its limits and waits for the I/Os
//! in flight.

use millrace_block::{
    Bio, Buffer, Channel, Completion, CostModel, Error, Op, OpFlags, Reject, Sector, Snapshot,
};
use millrace_machine::{Machine, Stage};

use super::{Client, ContentionPlan};
use crate::load::workload::{Offsets, Workload};

#[derive(Debug, Clone, Copy)]
pub(super) struct RunTimes {
    pub(super) start_ns: u64,
    /// Start of the measured interval, after the warm-up.
    pub(super) begin_ns: u64,
    pub(super) end_ns: u64,
    /// Start time of the time series, and length of each step; `None` if the plan has no time
    /// series.
    pub(super) series: Option<(u64, u64)>,
    /// Start of the run, from which completion times are counted; `None` if they are not recorded.
    pub(super) times_from_ns: Option<u64>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct ClientTally {
    pub(super) ios: u64,
    pub(super) cost_ns: u64,
    pub(super) latency: Snapshot,
    pub(super) errors: u64,
    pub(super) first_error: Option<String>,
    pub(super) series: Vec<u64>,
    /// Completion time of each I/O, in nanoseconds since the start of the run; empty if not
    /// recorded.
    pub(super) times_ns: Vec<u64>,
}

#[derive(Debug, Clone, Copy, Default)]
struct IoInFlight {
    at_ns: u64,
    cost_ns: u64,
}

pub(super) struct Contender<'a, M: Machine> {
    channel: &'a mut Channel<M>,
    moments: RunTimes,
    cost: CostModel,
    sectors: u32,
    /// Pause after a completion, in nanoseconds; the present pause ends at `pauses_until_ns`.
    thinktime_ns: u64,
    pauses_until_ns: u64,
    flags: OpFlags,
    /// Flush interval in writes (0: no flushes), and number of writes since the last flush.
    fsync: (u32, u32),
    offsets: Offsets,
    last_end: Sector,
    sent: Vec<IoInFlight>,
    idle: Vec<Bio>,
    tally: ClientTally,
}

impl<'a, M: Machine> Contender<'a, M> {
    pub(super) fn new(
        channel: &'a mut Channel<M>,
        plan: &ContentionPlan,
        number: usize,
        moments: RunTimes,
    ) -> Self {
        let Client { rw, bs_bytes, iodepth, group, thinktime_ns, fsync, sync, .. } =
            plan.clients[number];
        let blocks = (channel.volume().capacity() << 9) / u64::from(bs_bytes);
        let workload = Workload { rw, bs_bytes, iodepth, verify: false, seed: plan.seed };
        let place = (number as u64, plan.clients.len() as u64);
        let bio = |index: u32| {
            let bio = Bio::read(0, Buffer::new(bs_bytes as usize));
            bio.with_group(group).with_user_data(index.into())
        };
        Contender {
            channel,
            moments,
            cost: plan.cost,
            sectors: bs_bytes >> 9,
            thinktime_ns,
            pauses_until_ns: 0,
            flags: if sync { OpFlags::FUA } else { OpFlags::NONE },
            fsync: (fsync, 0),
            offsets: Offsets::new(&workload, blocks, place),
            last_end: Sector::MAX,
            sent: vec![IoInFlight::default(); iodepth as usize],
            idle: (0..iodepth).map(bio).collect(),
            tally: ClientTally::default(),
        }
    }

    /// Runs the client until the end of the run. The function `wait` sleeps until a completion may
    /// have arrived, or until the given time in nanoseconds.
    pub(super) fn run(
        mut self,
        mut wait: impl FnMut(&mut Channel<M>, u64) -> Result<(), Error>,
    ) -> Result<ClientTally, Error> {
        while M::now() < self.moments.start_ns {
            wait(self.channel, self.moments.start_ns)?;
        }
        loop {
            let now_ns = M::now();
            if now_ns >= self.moments.end_ns {
                return Ok(self.tally);
            }
            let pauses = now_ns < self.pauses_until_ns;
            if !pauses {
                self.submit(now_ns);
            }
            if self.collect() == 0 {
                let until_ns = if pauses { self.pauses_until_ns } else { u64::MAX };
                wait(self.channel, until_ns.min(self.moments.end_ns))?;
            } else if self.thinktime_ns > 0 {
                self.pauses_until_ns = M::now() + self.thinktime_ns;
            }
        }
    }

    fn submit(&mut self, now_ns: u64) {
        M::work(Stage::Interface, self.idle.len() as u32);
        while let Some(mut bio) = self.idle.pop() {
            let sent = &mut self.sent[bio.user_data() as usize];
            // Draw an offset and set the start time only for a new I/O. A bio that the block layer
            // rejected keeps both when the client submits it again.
            if sent.at_ns == 0 {
                let (block, op) = self.offsets.next_io();
                let sector = block * u64::from(self.sectors);
                let cost_ns = self.cost.of(op, (sector, self.sectors), self.last_end);
                *sent = IoInFlight { at_ns: now_ns.max(1), cost_ns };
                self.last_end = sector + u64::from(self.sectors);
                bio.set_sector(sector);
                bio.set_op(op);
                let mut flags = OpFlags::NONE;
                if op == Op::Write {
                    flags = self.flags;
                    self.fsync.1 += 1;
                    if self.fsync.1 == self.fsync.0 {
                        flags = flags.with(OpFlags::PREFLUSH);
                        self.fsync.1 = 0;
                    }
                }
                bio.set_flags(flags);
            }
            if let Err(rejected) = self.channel.submit(bio) {
                assert_eq!(
                    rejected.reason,
                    Reject::Full,
                    "the client's offsets must lie within the volume"
                );
                self.idle.push(rejected.bio);
                break;
            }
        }
        self.channel.flush();
    }

    fn collect(&mut self) -> usize {
        let Contender { channel, moments, sent, idle, tally, .. } = self;
        let (mut now_ns, mut counts) = (0, false);
        channel.poll(|Completion { bio, status, .. }| {
            if now_ns == 0 {
                now_ns = M::now();
                counts = (moments.begin_ns..moments.end_ns).contains(&now_ns);
            }
            let IoInFlight { at_ns, cost_ns } = std::mem::take(&mut sent[bio.user_data() as usize]);
            if !status.is_ok() {
                tally.errors += 1;
                let what = || format!("{:?} at sector {}: {status}", bio.op(), bio.sector());
                tally.first_error.get_or_insert_with(what);
            }
            if let Some(from_ns) = moments.times_from_ns {
                tally.times_ns.push(now_ns - from_ns);
            }
            if counts {
                tally.count(now_ns, (at_ns, cost_ns), moments.series);
            }
            idle.push(bio);
        })
    }
}

impl ClientTally {
    fn count(&mut self, now_ns: u64, (at_ns, cost_ns): (u64, u64), series: Option<(u64, u64)>) {
        self.ios += 1;
        self.cost_ns += cost_ns;
        self.latency.add(now_ns.saturating_sub(at_ns), 1);
        if let Some((begin_ns, step_ns)) = series {
            let step = (now_ns.saturating_sub(begin_ns) / step_ns) as usize;
            if step >= self.series.len() {
                self.series.resize(step + 1, 0);
            }
            self.series[step] += 1;
        }
    }
}
