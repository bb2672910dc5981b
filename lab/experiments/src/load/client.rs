//! Jobs that are clients of a server: I/Os in numbered slots on a connection or virtqueue.
//!
//! Servers are measured with the same loop, workloads and verification pattern as drives (job.rs):
//! each job has a thread and a `Client`, with `iodepth` requests in flight. Latency is measured in
//! the client, from the timestamp of a request's batch to the timestamp of its completion's batch.
//! nbd.rs, vhost.rs and virtqueue.rs implement `Client`; replays use the same clients.

use std::fmt::Display;
use std::time::Duration;

use millrace_block::{AfterCompletion, Op, Sector};
use millrace_clients::vhost::Counters;

use crate::load::bench::{BenchError, Plan, Progress, RowState, latency_of, row_of, run_jobs};
use crate::load::job::{Aim, CompletionHandler, Job, JobIo, JobResult, Target};
use crate::load::row::Row;

pub(crate) struct ClientIo {
    pub(crate) op: Op,
    pub(crate) fua: bool,
    pub(crate) offset_bytes: u64,
    pub(crate) len_bytes: u64,
    pub(crate) stamp_ns: u64,
    /// Buffer for the I/O's data (see [`DataMemory`]). Empty while the buffer is lent to the
    /// client, and always empty if the client has the only buffer.
    pub(crate) memory: Vec<u8>,
}

impl ClientIo {
    pub(crate) fn new(len_bytes: u64, memory: Vec<u8>) -> ClientIo {
        ClientIo { op: Op::Read, fua: false, offset_bytes: 0, len_bytes, stamp_ns: 0, memory }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataMemory {
    /// The I/O owns the memory, and lends it to the client during the request.
    OfIo,
    /// The client owns the memory for the requests' data. If the job verifies data, an I/O also has
    /// a buffer, and the client copies the data between this buffer and its own memory.
    OfClient,
}

pub(crate) type DoneSlot<F> = (u32, Option<F>);

pub(crate) trait Client: Sized {
    const DATA: DataMemory;
    type Failure: Copy + Display;
    fn in_flight(&self) -> u32;
    fn submit(&mut self, slot: u32, io: &mut ClientIo) -> Result<(), BenchError>;
    fn start(&mut self) -> Result<(), BenchError>;
    /// Appends an entry to `done` for each completed request: its index in `ios`, and the failure
    /// if it failed. Copies the data of each read to the memory of its I/O.
    fn reap(
        &mut self,
        ios: &mut [ClientIo],
        done: &mut Vec<DoneSlot<Self::Failure>>,
    ) -> Result<(), BenchError>;
    fn wait(&mut self) -> Result<(), BenchError>;
    fn wait_any(clients: &mut [Self], most: Duration) -> Result<(), BenchError>;
    fn counters(&mut self) -> Counters;
}

impl JobIo for ClientIo {
    #[inline(always)]
    fn aim(&mut self, op: Op, sector: Sector, stamp_ns: u64) {
        (self.op, self.offset_bytes, self.stamp_ns) = (op, sector << 9, stamp_ns);
    }

    #[inline(always)]
    fn stamp_ns(&self) -> u64 {
        self.stamp_ns
    }

    #[inline(always)]
    fn op(&self) -> Op {
        self.op
    }

    #[inline(always)]
    fn sector(&self) -> Sector {
        self.offset_bytes >> 9
    }

    fn memory(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    fn failure(&self, status: &dyn Display) -> String {
        format!("{status} from the server")
    }
}

pub(crate) struct ClientTarget<C: Client> {
    client: C,
    ios: Vec<ClientIo>,
    free: Vec<u32>,
    done: Vec<DoneSlot<C::Failure>>,
}

impl<C: Client> Target for ClientTarget<C> {
    type Io = ClientIo;

    #[inline(always)]
    fn in_flight(&self) -> u32 {
        self.client.in_flight()
    }

    fn fill(&mut self, most: u64, mut aim: impl FnMut(&mut ClientIo)) -> Result<u64, BenchError> {
        let count = self.free.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        for slot in self.free.drain(..count) {
            let io = &mut self.ios[slot as usize];
            aim(io);
            self.client.submit(slot, io)?;
        }
        if count > 0 {
            self.client.start()?;
        }
        Ok(count as u64)
    }

    #[inline(always)]
    fn turn(&mut self, to: &mut impl CompletionHandler<ClientIo>) -> Result<usize, BenchError> {
        let ClientTarget { client, ios, free, done } = self;
        client.reap(ios, done)?;
        let (handed, kept) = (done.len(), free.len());
        // Reuse the slots of completed requests, in the order of completion, so that a virtqueue
        // uses the same few slots again and again.
        for (slot, failed) in done.drain(..) {
            let io = &mut ios[slot as usize];
            let after = match &failed {
                None => to.done(io),
                Some(status) => to.failed(io, status),
            };
            match after {
                AfterCompletion::Submit => client.submit(slot, io)?,
                AfterCompletion::Drop => free.push(slot),
            }
        }
        if handed > free.len() - kept {
            client.start()?;
        }
        Ok(handed)
    }

    #[inline(always)]
    fn wait(&mut self) -> Result<(), BenchError> {
        self.client.wait()
    }
}

/// Measures the jobs of one configuration, `plan`. `connect` creates a job's client on the job's
/// thread. Returns the row of the result table and each job's result.
pub(crate) fn run_clients<C: Client + 'static>(
    plan: &Plan,
    device_bytes: u64,
    connect: impl Fn(u32) -> Result<C, BenchError> + Send + Sync + 'static,
    progress: Progress<'_>,
) -> Result<(Row, Vec<JobResult>), BenchError> {
    let inner = plan.clone();
    let run = move |number: u32, shared: &RowState| {
        let made = connect(number).map(|client| job(client, &inner, device_bytes, number));
        shared.ready();
        let mut job = made?;
        let mut result = job.run(&shared.until)?;
        let counters = job.target.client.counters();
        (result.kicks, result.interrupts) = (counters.kicks, counters.interrupts);
        shared.add_system_calls(counters.system_calls);
        job.read_back(&mut result)?;
        Ok(result)
    };
    let (results, times) = run_jobs(plan, "client", run, progress)?;
    let mut row = row_of(plan, &results, times, &latency_of(&results));
    row.queues.cpus = plan.cpus.len() as u32;
    Ok((row, results))
}

fn job<C: Client>(client: C, plan: &Plan, device_bytes: u64, number: u32) -> Job<ClientTarget<C>> {
    let workload = plan.workload;
    let memory_bytes = match C::DATA {
        DataMemory::OfClient if !workload.verify => 0,
        _ => workload.bs_bytes as usize,
    };
    let io = |_| ClientIo::new(workload.bs_bytes.into(), vec![0; memory_bytes]);
    let slots = 0..workload.iodepth;
    let target = ClientTarget {
        client,
        ios: slots.clone().map(io).collect(),
        free: slots.collect(),
        done: Vec::new(),
    };
    let place = (number.into(), plan.jobs.into());
    let aim = Aim::new(workload, plan.blocks(device_bytes), place);
    Job { target, aim, measure: true }
}
