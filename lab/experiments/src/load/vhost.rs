//! One row of a benchmark against a vhost-user-blk server: a queue for each job.
//!
//! Measures any server with the same workloads, offsets and pattern as drives are measured with
//! (bench.rs, job.rs); the client is that of the exports crate, which plays the guest: one thread
//! and one virtqueue a job, `iodepth` requests in flight, all queues on one connection. Latency is
//! that of the client, from the stamp of a request's batch to that of its completion's.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use millrace_block::Op;
use millrace_clients::vhost::{
    Client, Counters, DiskConfig, Options, Queue, RING_SIZE_MAX, Request, Status, Wait,
};
use millrace_machine::{CpuId, Machine, Native};

use crate::load::bench::{
    BenchError, Plan, Progress, RowState, check_block_size, check_capacity, check_verify,
    client_row,
};
use crate::load::job::{JobResult, StopCondition};
use crate::load::row::{Notifications, Queues, Row};
use crate::load::verify::WrittenBlocks;
use crate::load::workload::{Offsets, Workload};

/// Entries of the rings unless more are needed: as many as guests have.
const RING: u16 = 256;
/// Turns of a job after which it says how far it is.
const TURNS_PER_REPORT: u32 = 1024;

/// Runs one row against the server that listens on the Unix socket `path`.
///
/// # Errors
/// If the server cannot be reached, lacks what is needed or breaks the protocol, or the workload
/// does not fit its disk.
pub fn run_vhost_row(
    path: &Path,
    wait: Wait,
    plan: &Plan,
    progress: Progress<'_>,
) -> Result<Row, BenchError> {
    let client = Client::connect(path, options(plan, wait)?)?;
    check(client.disk(), plan)?;
    let sectors = client.disk().capacity_sectors;
    let shared = Arc::new(RowState::new(plan));
    let queues = client.into_queues().into_iter().zip(0..);
    let threads: Vec<_> =
        queues.map(|(queue, job)| spawn((queue, job), sectors, plan, &shared)).collect();
    let (mut row, results) = client_row(threads, &shared, plan, progress)?;
    let total = |f: fn(&JobResult) -> u64| results.iter().map(f).sum::<u64>() as f64;
    let ios = row.ios.max(1) as f64;
    row.cost.notifications = Some(Notifications {
        kicks_per_io: total(|result| result.kicks) / ios,
        interrupts_per_io: total(|result| result.interrupts) / ios,
    });
    let stack = match wait {
        Wait::Poll => "vhost-poll",
        Wait::Spin => "vhost-spin",
        Wait::Events => "vhost-events",
    };
    row.queues =
        Queues { stack: stack.to_owned(), cpus: plan.cpus.len() as u32, ..Queues::default() };
    row.drives = format!("vhost-user:{}", path.display());
    Ok(row)
}

/// Queues and slots as the plan needs them.
fn options(plan: &Plan, wait: Wait) -> Result<Options, BenchError> {
    let bs_bytes = plan.workload.bs_bytes;
    let wrong = |text: String| BenchError::Workload(text);
    let (depth, ring) = ring_size(plan)?;
    let queues = u16::try_from(plan.jobs).ok().filter(|jobs| *jobs <= QUEUES_MAX);
    let queues = queues.ok_or_else(|| {
        wrong(format!("{} jobs: each has a queue, and there are {QUEUES_MAX} at most", plan.jobs))
    })?;
    Ok(Options { queues, ring, depth, data_bytes: bs_bytes, wait, ..Options::default() })
}

/// Slots of a job's virtqueue, and its entries.
pub(crate) fn ring_size(plan: &Plan) -> Result<(u16, u16), BenchError> {
    let iodepth = plan.workload.iodepth;
    let depth = u16::try_from(iodepth).ok().filter(|depth| *depth <= RING_SIZE_MAX);
    let depth = depth.ok_or_else(|| {
        BenchError::Workload(format!("iodepth={iodepth}: a virtqueue takes {RING_SIZE_MAX}"))
    })?;
    Ok((depth, depth.next_power_of_two().max(RING)))
}

/// Queues that vhost-user has numbers for.
const QUEUES_MAX: u16 = 256;

fn check(disk: &DiskConfig, plan: &Plan) -> Result<(), BenchError> {
    let workload = &plan.workload;
    check_block_size(workload.bs_bytes, disk.block_bytes)?;
    check_capacity(plan, disk.size_bytes())?;
    let wrong = |text: String| Err(BenchError::Workload(text));
    if workload.bs_bytes > disk.segment_bytes_max {
        let (bs, most) = (workload.bs_bytes, disk.segment_bytes_max);
        return wrong(format!("bs={bs}: the server takes {most} bytes in one piece"));
    }
    if workload.rw.writes() && disk.is_read_only() {
        return wrong(format!("rw={}: the server's disk is read-only", workload.rw));
    }
    check_verify(plan, disk.size_bytes())
}

/// A virtqueue as a job uses it, wherever its device is.
pub(crate) trait GuestQueue {
    /// Requests in flight at most.
    fn depth(&self) -> u16;
    fn in_flight(&self) -> u16;
    fn submit(&mut self, slot: u16, request: Request);
    /// Shows the device what was submitted.
    fn kick(&mut self) -> Result<(), BenchError>;
    fn reap(&mut self, done: impl FnMut(u16, Status)) -> Result<u16, BenchError>;
    /// Waits until something is done.
    fn wait(&mut self) -> Result<(), BenchError>;
    fn write_data(&mut self, slot: u16, bytes: &[u8]);
    fn read_data(&self, slot: u16, bytes: &mut [u8]);
    fn counters(&self) -> Counters;
}

impl GuestQueue for Queue {
    fn depth(&self) -> u16 {
        self.depth()
    }

    fn in_flight(&self) -> u16 {
        self.in_flight()
    }

    #[inline(always)]
    fn submit(&mut self, slot: u16, request: Request) {
        self.submit(slot, request);
    }

    #[inline(always)]
    fn kick(&mut self) -> Result<(), BenchError> {
        self.kick();
        Ok(())
    }

    #[inline(always)]
    fn reap(&mut self, done: impl FnMut(u16, Status)) -> Result<u16, BenchError> {
        Ok(self.reap(done)?)
    }

    #[inline(always)]
    fn wait(&mut self) -> Result<(), BenchError> {
        Ok(self.wait()?)
    }

    fn write_data(&mut self, slot: u16, bytes: &[u8]) {
        self.write_data(slot, bytes);
    }

    fn read_data(&self, slot: u16, bytes: &mut [u8]) {
        self.read_data(slot, bytes);
    }

    fn counters(&self) -> Counters {
        self.counters()
    }
}

/// Starts the job of a queue, by the queue's number.
fn spawn(
    (queue, job): (Queue, u32),
    sectors: u64,
    plan: &Plan,
    shared: &Arc<RowState>,
) -> <Native as Machine>::Thread {
    let cpu = plan.cpu_of(job).map(CpuId);
    let (plan, shared) = (plan.clone(), Arc::clone(shared));
    let body = move || {
        let mut job = Job::new(queue, sectors, &plan, job);
        shared.ready();
        let result = job.run(&shared.until);
        shared.add_system_calls(job.queue.counters().system_calls);
        shared.finish(result);
    };
    Native::spawn(&format!("guest-{job}"), cpu, Box::new(body))
}

/// One job's queue and what it has to remember.
pub(crate) struct Job<Q> {
    pub(crate) queue: Q,
    workload: Workload,
    offsets: Offsets,
    written: Option<WrittenBlocks>,
    /// When what each slot has in flight was stamped.
    stamps: Vec<u64>,
    /// What block each slot writes, or reads back; only with `verify`.
    blocks: Vec<Option<u64>>,
    /// Slots that are to go off next.
    ready: Vec<u16>,
    /// A block's bytes, for `verify`.
    block: Vec<u8>,
}

impl<Q: GuestQueue> Job<Q> {
    pub(crate) fn new(queue: Q, sectors: u64, plan: &Plan, job: u32) -> Job<Q> {
        let workload = plan.workload;
        let blocks = plan.blocks(sectors << 9);
        let place = (job.into(), plan.jobs.into());
        let depth = queue.depth();
        Job {
            offsets: Offsets::new(&workload, blocks, place),
            written: WrittenBlocks::new(&workload),
            stamps: vec![0; depth.into()],
            blocks: vec![None; depth.into()],
            ready: (0..depth).collect(),
            block: vec![0; workload.bs_bytes as usize],
            queue,
            workload,
        }
    }

    pub(crate) fn run(&mut self, until: &StopCondition) -> Result<JobResult, BenchError> {
        let mut result = JobResult::default();
        let quota = until.ios.unwrap_or(u64::MAX);
        let mut submitted = self.submit(quota, Native::now())?;
        let (mut reported, mut turn) = (0, 0u32);
        while self.queue.in_flight() > 0 {
            let stopping = until.stop.load(Ordering::Relaxed);
            let left = if stopping { 0 } else { quota - submitted };
            match self.reap(&mut result)? {
                0 => self.queue.wait()?,
                now_ns => submitted += self.submit(left, now_ns)?,
            }
            turn = turn.wrapping_add(1);
            if turn.is_multiple_of(TURNS_PER_REPORT) {
                until.done.fetch_add(result.ios - reported, Ordering::Relaxed);
                reported = result.ios;
            }
        }
        until.done.fetch_add(result.ios - reported, Ordering::Relaxed);
        let Counters { kicks, interrupts, .. } = self.queue.counters();
        (result.kicks, result.interrupts) = (kicks, interrupts);
        if let Some(written) = self.written.take() {
            self.read_back(&written, &mut result)?;
        }
        Ok(result)
    }

    /// Sends off what is ready, up to `most` requests, stamped with `now_ns`.
    #[inline(always)]
    fn submit(&mut self, most: u64, now_ns: u64) -> Result<u64, BenchError> {
        let count = self.ready.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        for index in 0..count {
            let slot = self.ready[index];
            let (block, op) = match &mut self.written {
                None => self.offsets.next_io(),
                Some(_) => self.next_verified(slot),
            };
            let bytes = self.workload.bs_bytes;
            let sector = block * u64::from(bytes >> 9);
            let request = match op {
                Op::Read => Request::read(sector, bytes),
                _ => Request::write(sector, bytes),
            };
            self.stamps[usize::from(slot)] = now_ns;
            self.queue.submit(slot, request);
        }
        // In the order in which they came back: so the ring's entries stay as they are.
        self.ready.drain(..count);
        self.queue.kick()?;
        Ok(count as u64)
    }

    /// The next I/O of a job that verifies, its slot's buffer filled if it is a write.
    #[cold]
    fn next_verified(&mut self, slot: u16) -> (u64, Op) {
        let written = self.written.as_mut().expect("the caller has looked");
        let (block, op) = written.next_io(&mut self.offsets);
        if op == Op::Write {
            written.stamp(block, &mut self.block);
            self.queue.write_data(slot, &self.block);
            self.blocks[usize::from(slot)] = Some(block);
        }
        (block, op)
    }

    /// Takes what is done. Returns the time of that, or 0 if nothing is.
    #[inline(always)]
    fn reap(&mut self, result: &mut JobResult) -> Result<u64, BenchError> {
        let Job { queue, stamps, ready, written, blocks, .. } = self;
        let (mut now_ns, mut equal) = (0, (0, 0));
        let handed = queue.reap(|slot, status| {
            if now_ns == 0 {
                now_ns = Native::now();
            }
            let stamp = stamps[usize::from(slot)];
            if equal.0 != stamp && equal.1 != 0 {
                result.latencies.add(now_ns.saturating_sub(equal.0), equal.1);
                equal.1 = 0;
            }
            equal = (stamp, equal.1 + 1);
            if !status.is_ok() {
                result.fail(|| format!("{status} from the server"));
            }
            if let Some(written) = written
                && let Some(block) = blocks[usize::from(slot)].take()
            {
                written.landed(block);
            }
            ready.push(slot);
        })?;
        if equal.1 != 0 {
            result.latencies.add(now_ns.saturating_sub(equal.0), equal.1);
        }
        result.ios += u64::from(handed);
        Ok(now_ns)
    }

    /// Reads every block written and compares it with its last generation.
    fn read_back(
        &mut self,
        written: &WrittenBlocks,
        result: &mut JobResult,
    ) -> Result<(), BenchError> {
        let (bytes, mut left) = (self.workload.bs_bytes, written.blocks());
        let mut done: Vec<(u16, Status)> = Vec::new();
        loop {
            while let Some(slot) = self.ready.pop() {
                let Some(block) = left.next() else {
                    self.ready.push(slot);
                    break;
                };
                self.blocks[usize::from(slot)] = Some(block);
                self.queue.submit(slot, Request::read(block * u64::from(bytes >> 9), bytes));
            }
            self.queue.kick()?;
            if self.queue.in_flight() == 0 {
                return Ok(());
            }
            if self.queue.reap(|slot, status| done.push((slot, status)))? == 0 {
                self.queue.wait()?;
            }
            for (slot, status) in done.drain(..) {
                let block = self.blocks[usize::from(slot)].take().expect("it was read");
                self.queue.read_data(slot, &mut self.block);
                let read = if status.is_ok() { Ok(&self.block[..]) } else { Err(status) };
                written.check(block, read, result);
                self.ready.push(slot);
            }
        }
    }
}
