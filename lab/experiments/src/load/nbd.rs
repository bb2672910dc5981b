//! One row of a benchmark against an NBD server: a connection for each job.
//!
//! Measures any server with the same workloads, offsets and pattern as drives are measured with
//! (bench.rs, job.rs); the client is that of the exports crate, one thread and one connection a
//! job, `iodepth` requests in flight. Latency is that of the client, from queueing a request to
//! taking its reply, by batch.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millrace_block::Op;
use millrace_clients::nbd::{Client, Completion};
use millrace_machine::{CpuId, Machine, Native};
use millrace_nbd::client::NbdUri;
use millrace_nbd::{Command, Request};

use crate::load::bench::{
    BenchError, Plan, Progress, RowState, check_capacity, check_verify, client_row,
};
use crate::load::job::{JobResult, StopCondition};
use crate::load::row::{Queues, Row};
use crate::load::verify::WrittenBlocks;
use crate::load::workload::{Offsets, Workload};

/// Runs one row against the export that `uri` names.
///
/// # Errors
/// If the server cannot be reached or breaks the protocol, or the workload does not fit the export.
pub fn run_nbd_row(uri: &NbdUri, plan: &Plan, progress: Progress<'_>) -> Result<Row, BenchError> {
    let probe = connect(uri)?;
    check(&probe, plan)?;
    drop(probe);
    let shared = Arc::new(RowState::new(plan));
    let threads = (0..plan.jobs).map(|job| spawn(uri, plan, &shared, job)).collect::<Vec<_>>();
    let (mut row, _) = client_row(threads, &shared, plan, progress)?;
    row.queues = Queues { stack: "nbd".to_owned(), cpus: plan.cpus.len() as u32, ..row.queues };
    row.drives = format!("{uri:?}");
    Ok(row)
}

fn connect(uri: &NbdUri) -> Result<Client, BenchError> {
    Client::connect(uri).map_err(|source| failed(uri, source))
}

fn failed(uri: &NbdUri, source: std::io::Error) -> BenchError {
    BenchError::Server { address: uri.address.clone(), source }
}

fn check(client: &Client, plan: &Plan) -> Result<(), BenchError> {
    let (session, workload) = (client.session(), &plan.workload);
    let (bs, size) = (u64::from(workload.bs_bytes), session.size_bytes);
    let wrong = |text: String| Err(BenchError::Workload(text));
    if !bs.is_multiple_of(session.block_min.max(1).into()) || bs > session.block_max.into() {
        let (least, most) = (session.block_min, session.block_max);
        return wrong(format!("bs={bs}: the server takes multiples of {least} up to {most}"));
    }
    check_capacity(plan, size)?;
    check_verify(plan, size)
}

fn spawn(
    uri: &NbdUri,
    plan: &Plan,
    shared: &Arc<RowState>,
    job: u32,
) -> <Native as Machine>::Thread {
    let cpu = plan.cpu_of(job).map(CpuId);
    let (uri, plan, shared) = (uri.clone(), plan.clone(), Arc::clone(shared));
    let body = move || {
        let client = connect(&uri);
        shared.ready();
        let result = client.and_then(|client| {
            let mut connection = Connection::new(client, &plan, job);
            connection.run(&shared.until).map_err(|source| failed(&uri, source))
        });
        shared.finish(result);
    };
    Native::spawn(&format!("client-{job}"), cpu, Box::new(body))
}

/// One job's connection and what it has to remember.
struct Connection {
    client: Client,
    workload: Workload,
    offsets: Offsets,
    written: Option<WrittenBlocks>,
    /// What is to go off next: the buffers of requests that came back, and their slots.
    ready: Vec<(usize, Vec<u8>)>,
    slots: Vec<Slot>,
}

/// What a request in flight is, by the number that its completion brings.
#[derive(Debug, Clone, Default)]
struct Slot {
    stamp_ns: u64,
    /// What it writes, or reads back; only with `verify`.
    block: Option<u64>,
}

impl Connection {
    fn new(client: Client, plan: &Plan, job: u32) -> Connection {
        let workload = plan.workload;
        let blocks = plan.blocks(client.session().size_bytes);
        let place = (job.into(), plan.jobs.into());
        let depth = workload.iodepth as usize;
        Connection {
            offsets: Offsets::new(&workload, blocks, place),
            ready: (0..depth).map(|slot| (slot, vec![0; workload.bs_bytes as usize])).collect(),
            slots: vec![Slot::default(); depth],
            written: WrittenBlocks::new(&workload),
            client,
            workload,
        }
    }

    fn run(&mut self, until: &StopCondition) -> std::io::Result<JobResult> {
        let mut result = JobResult::default();
        let mut left = until.ios.unwrap_or(u64::MAX);
        loop {
            if until.stop.load(Ordering::Relaxed) {
                left = 0;
            }
            left -= self.submit(left)?;
            if self.client.in_flight() == 0 {
                break;
            }
            let handed = self.reap(&mut result)?;
            until.done.fetch_add(handed, Ordering::Relaxed);
        }
        if let Some(written) = self.written.take() {
            self.read_back(&written, &mut result)?;
        }
        Ok(result)
    }

    /// Sends off what is ready, up to `most` requests.
    fn submit(&mut self, most: u64) -> std::io::Result<u64> {
        let now_ns = Native::now();
        let mut sent = 0;
        while sent < most {
            let Some((slot, mut buffer)) = self.ready.pop() else { break };
            let (block, op) = match &mut self.written {
                None => self.offsets.next_io(),
                Some(written) => written.next_io(&mut self.offsets),
            };
            let mut writing = None;
            if let Some(written) = &mut self.written
                && op == Op::Write
            {
                written.stamp(block, &mut buffer);
                writing = Some(block);
            }
            self.slots[slot] = Slot { stamp_ns: now_ns, block: writing };
            let offset = block * u64::from(self.workload.bs_bytes);
            let command = if op == Op::Read { Command::Read } else { Command::Write };
            self.client.submit(&request(command, offset, &buffer, slot), buffer)?;
            sent += 1;
        }
        Ok(sent)
    }

    fn reap(&mut self, result: &mut JobResult) -> std::io::Result<u64> {
        let mut now_ns = 0;
        let Connection { client, ready, slots, written, .. } = self;
        let handed = client.wait(1, |Completion { user_data, errno, buffer, .. }| {
            if now_ns == 0 {
                now_ns = Native::now();
            }
            let slot = user_data as usize;
            let Slot { stamp_ns, block } = std::mem::take(&mut slots[slot]);
            result.latencies.add(now_ns.saturating_sub(stamp_ns), 1);
            if let (Some(written), Some(block)) = (&mut *written, block) {
                written.landed(block);
            }
            if let Some(errno) = errno {
                result.fail(|| format!("{errno} from the server"));
            }
            ready.push((slot, buffer));
        })?;
        result.ios += handed as u64;
        Ok(handed as u64)
    }

    /// Reads every block written and compares it with its last generation.
    fn read_back(
        &mut self,
        written: &WrittenBlocks,
        result: &mut JobResult,
    ) -> std::io::Result<()> {
        let bs = u64::from(self.workload.bs_bytes);
        let mut left = written.blocks().peekable();
        loop {
            while let Some(block) = left.peek().copied()
                && let Some((slot, buffer)) = self.ready.pop()
            {
                left.next();
                self.slots[slot].block = Some(block);
                self.client.submit(&request(Command::Read, block * bs, &buffer, slot), buffer)?;
            }
            if self.client.in_flight() == 0 {
                return Ok(());
            }
            let Connection { client, ready, slots, .. } = self;
            client.wait(1, |Completion { user_data, errno, buffer, .. }| {
                let slot = user_data as usize;
                let block = slots[slot].block.take().expect("it was read");
                let read = match errno {
                    None => Ok(&buffer[..]),
                    Some(errno) => Err(format!("{errno}")),
                };
                written.check(block, read, result);
                ready.push((slot, buffer));
            })?;
        }
    }
}

fn request(command: Command, offset: u64, buffer: &[u8], slot: usize) -> Request {
    Request { cookie: slot as u64, flags: 0, command, offset, length: buffer.len() as u64 }
}
