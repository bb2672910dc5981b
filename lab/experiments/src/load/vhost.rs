//! Runs a benchmark against a vhost-user-blk server, with a virtqueue for each job.
//!
//! Checks that the workload fits the server's disk, and implements `Client` for a virtqueue. job.rs
//! and client.rs have the loop. The process acts as the guest, with all queues on one connection.

use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use millrace_block::Op;
use millrace_clients::vhost::{
    Client as VhostClient, Counters, DiskConfig, Kind, Options, Queue, RING_SIZE_MAX, Request,
    Status, Wait, range,
};
use millrace_exports::virtio::{RANGE_BYTES, RANGE_UNMAP};

use crate::load::bench::{
    BenchError, Plan, Progress, check_block_size, check_capacity, check_verify,
};
use crate::load::client::{Client, ClientIo, DataMemory, DoneSlot, run_clients};
use crate::load::job::JobResult;
use crate::load::row::{Notifications, Queues, Row};
use millrace_machine::lock_unpoisoned;

/// Default number of entries of a ring, the usual number in guests.
const RING: u16 = 256;

/// Measures one configuration, `plan`, on the server that listens on the Unix socket `path`.
///
/// # Errors
/// If the server cannot be reached, lacks a required feature or breaks the protocol, or the
/// workload does not fit its disk.
pub fn run_vhost_row(
    path: &Path,
    wait: Wait,
    plan: &Plan,
    progress: Progress<'_>,
) -> Result<Row, BenchError> {
    let client = VhostClient::connect(path, options(plan, wait)?)?;
    check(client.disk(), plan)?;
    let size_bytes = client.disk().size_bytes();
    let queues = Mutex::new(client.into_queues().into_iter().map(Some).collect::<Vec<_>>());
    let connect = move |job: u32| {
        let mut queues = lock_unpoisoned(&queues);
        Ok(queues[job as usize].take().expect("each job takes only its own queue, and only once"))
    };
    let (mut row, results) = run_clients(plan, size_bytes, connect, progress)?;
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
    row.queues = Queues { stack: stack.to_owned(), ..row.queues };
    row.drives = format!("vhost-user:{}", path.display());
    Ok(row)
}

fn options(plan: &Plan, wait: Wait) -> Result<Options, BenchError> {
    let bs_bytes = plan.workload.bs_bytes;
    let wrong = |text: String| BenchError::Workload(text);
    let (depth, ring) = ring_size(plan)?;
    let queues = u16::try_from(plan.jobs).ok().filter(|jobs| *jobs <= QUEUES_MAX);
    let queues = queues.ok_or_else(|| {
        wrong(format!(
            "{} jobs: each job needs a queue, and the protocol allows {QUEUES_MAX} queues",
            plan.jobs
        ))
    })?;
    Ok(Options { queues, ring, depth, data_bytes: bs_bytes, wait, ..Options::default() })
}

pub(crate) fn ring_size(plan: &Plan) -> Result<(u16, u16), BenchError> {
    let iodepth = plan.workload.iodepth;
    let depth = u16::try_from(iodepth).ok().filter(|depth| *depth <= RING_SIZE_MAX);
    let depth = depth.ok_or_else(|| {
        BenchError::Workload(format!(
            "iodepth={iodepth}: a virtqueue holds at most {RING_SIZE_MAX} requests"
        ))
    })?;
    Ok((depth, depth.next_power_of_two().max(RING)))
}

const QUEUES_MAX: u16 = 256;

fn check(disk: &DiskConfig, plan: &Plan) -> Result<(), BenchError> {
    let workload = &plan.workload;
    check_block_size(workload.bs_bytes, disk.block_bytes)?;
    check_capacity(plan, disk.size_bytes())?;
    let wrong = |text: String| Err(BenchError::Workload(text));
    if workload.bs_bytes > disk.segment_bytes_max {
        let (bs, most) = (workload.bs_bytes, disk.segment_bytes_max);
        return wrong(format!("bs={bs}: the server accepts segments of at most {most} bytes"));
    }
    if workload.rw.writes() && disk.is_read_only() {
        return wrong(format!("rw={}: the server's disk is read-only", workload.rw));
    }
    check_verify(plan, disk.size_bytes())
}

impl Client for Queue {
    const DATA: DataMemory = DataMemory::OfClient;
    type Failure = Status;

    #[inline(always)]
    fn in_flight(&self) -> u32 {
        self.in_flight().into()
    }

    #[inline(always)]
    fn submit(&mut self, slot: u32, io: &mut ClientIo) -> Result<(), BenchError> {
        let request = request(io, |data| self.write_data(slot as u16, data));
        self.submit(slot as u16, request);
        Ok(())
    }

    #[inline(always)]
    fn start(&mut self) -> Result<(), BenchError> {
        self.kick();
        Ok(())
    }

    #[inline(always)]
    fn reap(
        &mut self,
        ios: &mut [ClientIo],
        done: &mut Vec<DoneSlot<Status>>,
    ) -> Result<(), BenchError> {
        self.reap(|slot, status| done.push(done_slot(slot, status)))?;
        read_all(ios, done, |slot, memory| self.read_data(slot, memory));
        Ok(())
    }

    #[inline(always)]
    fn wait(&mut self) -> Result<(), BenchError> {
        Ok(self.wait()?)
    }

    fn wait_any(queues: &mut [Queue], most: Duration) -> Result<(), BenchError> {
        Ok(Queue::wait_any(queues, most)?)
    }

    fn counters(&mut self) -> Counters {
        Queue::counters(self)
    }
}

/// Returns the virtio request of an I/O. The callback `write` copies the data of a write to the
/// request's buffer in the memory shared with the server.
#[inline(always)]
pub(crate) fn request(io: &ClientIo, mut write: impl FnMut(&[u8])) -> Request {
    let (sector, bytes) = (io.offset_bytes >> 9, io.len_bytes as u32);
    match io.op {
        Op::Read => Request::read(sector, bytes),
        Op::Write => {
            if !io.memory.is_empty() {
                write(&io.memory);
            }
            Request::write(sector, bytes)
        }
        Op::Flush => Request::flush(),
        Op::Discard | Op::WriteZeroes => {
            let (kind, flags) = match io.op {
                Op::Discard => (Kind::Discard, 0),
                _ => (Kind::WriteZeroes, RANGE_UNMAP),
            };
            write(&range(sector, bytes >> 9, flags));
            Request { kind, sector: 0, bytes: RANGE_BYTES as u32 }
        }
    }
}

#[inline(always)]
pub(crate) fn done_slot(slot: u16, status: Status) -> DoneSlot<Status> {
    (slot.into(), (!status.is_ok()).then_some(status))
}

/// Copies the data of completed reads from a ring's memory to the I/Os of a job that verifies.
#[inline(always)]
pub(crate) fn read_all(
    ios: &mut [ClientIo],
    done: &[DoneSlot<Status>],
    mut read: impl FnMut(u16, &mut [u8]),
) {
    for (slot, _) in done {
        let io = &mut ios[*slot as usize];
        if io.memory.is_empty() {
            return;
        }
        if io.op == Op::Read {
            read(*slot as u16, &mut io.memory);
        }
    }
}
