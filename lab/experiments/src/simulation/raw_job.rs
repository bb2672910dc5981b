//! A job that reads and writes like Linux's raw devices: one I/O at a time, split into bios.
//!
//! job.rs calls `run` on the job's thread if the plan's `Linux24` settings need it. The job splits
//! each I/O into bios of `Linux24::unit_bytes`. The job waits for the bios either once per I/O or
//! after each element of the I/O's vector (`Readv`). The reported latency is that of the whole I/O.
//! With bounce buffers, the job copies the data between the bios' buffers and the I/O's buffer.
//! Source: the OLS 2002 paper; Linux 2.4.17, `rw_raw_dev`, `brw_kiovec`.

use millrace_block::{Bio, Buffer, Op};

use super::interface::Host;
use super::job::{Job, RowState};
use super::linux24::{Kernel, Readv};

pub(super) fn run<M: Host>(shared: &RowState<M>, number: u32) {
    let plan = &shared.plan;
    let (history, bs_bytes) = (&plan.service.history, plan.workload.bs_bytes);
    let (element_bytes, unit_bytes) = history.pieces(bs_bytes);
    let together_bytes = if history.readv == Readv::Whole { bs_bytes } else { element_bytes };
    let fresh = |_| Bio::read(0, Buffer::new(unit_bytes as usize));
    let mut raw = RawJob {
        job: Job::new(shared, number, together_bytes / unit_bytes),
        kernel: shared.kernel.as_deref(),
        idle: (0..together_bytes / unit_bytes).map(fresh).collect(),
        memory: vec![0; if history.bounce { bs_bytes as usize } else { 0 }],
    };
    // Fill `descriptor` with ones, not zeroes: the kernel allocates a page of zeroed memory only
    // when the program writes to the page.
    let descriptor = vec![1u8; history.descriptor_bytes as usize];
    while !shared.window.is_over() {
        raw.io(bs_bytes, together_bytes, unit_bytes);
        if let Some(kernel) = raw.kernel.filter(|_| history.compute_ns > 0) {
            kernel.compute(history.compute_ns);
        }
        shared.count(1);
    }
    drop(std::hint::black_box(descriptor));
    raw.job.end();
}

struct RawJob<'a, M: Host> {
    job: Job<'a, M>,
    kernel: Option<&'a Kernel<M>>,
    idle: Vec<Bio>,
    memory: Vec<u8>,
}

impl<M: Host> RawJob<'_, M> {
    fn io(&mut self, bs_bytes: u32, together_bytes: u32, unit_bytes: u32) {
        let (block, op) = self.job.offsets.next_io();
        let first = block * u64::from(bs_bytes >> 9);
        self.job.call_ns = Some(M::now());
        self.job.interface.submit(1);
        for start in (0..bs_bytes).step_by(together_bytes as usize) {
            let sector = first + u64::from(start >> 9);
            self.send((sector, start), op, unit_bytes);
            self.wait(first, unit_bytes);
        }
        self.job.interface.reap(1);
        self.job.end_call();
    }

    fn send(&mut self, (sector, start): (u64, u32), op: Op, unit_bytes: u32) {
        for (number, mut bio) in (0..).zip(self.idle.drain(..)) {
            if let Some(kernel) = self.kernel {
                kernel.submit(1);
            }
            let at = u64::from(start) + u64::from(unit_bytes) * number;
            if op == Op::Write && !self.memory.is_empty() {
                let mut buffer = bio.into_buffer().expect("the bio was made with one buffer");
                buffer.copy_from_slice(&self.memory[at as usize..][..unit_bytes as usize]);
                if let Some(kernel) = self.kernel {
                    kernel.copy(unit_bytes >> 9);
                }
                bio = Bio::write(0, buffer);
            }
            bio.set_sector(sector + u64::from(unit_bytes >> 9) * number);
            bio.set_op(op);
            bio.set_user_data(at);
            self.job.channel.submit(bio).expect(
                "the channel must have room for the I/O's bios, and the range must be valid",
            );
        }
        self.job.channel.flush();
    }

    fn wait(&mut self, first: u64, unit_bytes: u32) {
        while self.job.channel.in_flight() > 0 {
            let RawJob { job, idle, memory, kernel } = self;
            let Job { channel, errors, first_error, .. } = job;
            let (mut ended, mut copied) = (0, 0);
            let handed = channel.poll(|done| {
                if !done.status.is_ok() {
                    *errors += 1;
                    let text = || format!("{:?} of the I/O at sector {first}", done.status);
                    first_error.get_or_insert_with(text);
                }
                ended += 1;
                copied += u32::from(done.bio.op() == Op::Read && !memory.is_empty());
                idle.push(take(done.bio, memory));
            });
            if let Some(kernel) = kernel {
                kernel.copy(copied * (unit_bytes >> 9));
                (0..ended).for_each(|_| kernel.give_back());
            }
            if handed == 0 && self.job.channel.in_flight() > 0 {
                self.sleep();
            }
        }
    }

    fn sleep(&mut self) {
        let deadline_ns = self.job.channel.sleep_until();
        let (channel, signal) = (&self.job.channel, self.job.signal);
        if self.job.shared.plan.irq.is_polled() {
            M::spin_until(deadline_ns.unwrap_or(u64::MAX), || channel.has_work());
            return;
        }
        signal.bell.sleep_unless(deadline_ns, || signal.is_raised() || channel.has_work());
        signal.lower();
        self.job.channel.tick();
    }
}

/// Takes a completed bio. If the bio read into a bounce buffer, copies the data to the program's
/// buffer.
fn take(bio: Bio, memory: &mut [u8]) -> Bio {
    if memory.is_empty() || bio.op() != Op::Read {
        return bio;
    }
    let (sector, at) = (bio.sector(), bio.user_data() as usize);
    let buffer = bio.into_buffer().expect("the bio was made with one buffer");
    memory[at..at + buffer.len()].copy_from_slice(&buffer);
    Bio::read(sector, buffer)
}
