//! `Access`: I/O of a simulated program's thread to the volume, synchronous or asynchronous.
//!
//! program.rs creates an `Access` for each thread. A synchronous read or write takes the time of a
//! system call and of copying its pages. The I/O is split into pieces of 1 MiB, as in filebench,
//! and the thread sleeps until all pieces have completed. Bios own their buffers; nobody reads the
//! buffers' content.

use millrace_block::{
    Bio, Buffer, Channel, ChannelConfig, IoThread, Op, Reject, Rejected, Sector, Volume,
};
use millrace_machine::{Order, Stage, Word};

use super::ProgramState;
use crate::simulation::file_costs::FileCosts;
use crate::simulation::interface::Host;

pub(crate) const PAGE_SECTORS: u64 = 8;
const PIECE_SECTORS: u64 = 2048;

pub(crate) struct Access<'a, M: Host> {
    shared: &'a ProgramState<M>,
    channel: Channel<M>,
}

/// A range of the volume: first sector and number of sectors.
pub(crate) type Span = (Sector, u64);

impl<'a, M: Host> Access<'a, M> {
    pub(super) fn new(shared: &'a ProgramState<M>, thread: &IoThread<M>) -> Self {
        let thread = Some(thread.clone());
        let config = ChannelConfig { depth: shared.depth, thread, ..ChannelConfig::default() };
        let channel = Channel::open(&shared.volume, config)
            .expect("Channel::open must succeed on an I/O thread");
        Access { shared, channel }
    }

    pub(crate) fn over(shared: &'a ProgramState<M>, channel: Channel<M>) -> Self {
        Access { shared, channel }
    }

    pub(crate) fn channel(&mut self) -> &mut Channel<M> {
        &mut self.channel
    }

    pub(crate) fn volume(&self) -> &Volume<M> {
        &self.shared.volume
    }

    pub(crate) fn is_over(&self) -> bool {
        self.shared.window.is_over()
    }

    pub(crate) fn count(&self, operations: u64) {
        self.shared.window.count::<M>(operations);
    }

    pub(crate) fn costs(&self) -> &FileCosts {
        &self.shared.costs
    }

    pub(crate) fn works(&self, ns: u64) {
        M::system_call();
        M::kernel_work(ns);
    }

    pub(crate) fn read(&mut self, span: Span) {
        self.call(Op::Read, span);
    }

    pub(crate) fn write(&mut self, span: Span) {
        self.call(Op::Write, span);
    }

    fn call(&mut self, op: Op, (sector, sectors): Span) {
        self.works(self.shared.costs.pages_ns(sectors.div_ceil(PAGE_SECTORS)));
        let (mut at, end) = (sector, sector + sectors);
        while at < end {
            let len = PIECE_SECTORS.min(end - at);
            self.submit(op, (at, len));
            at += len;
        }
        self.drain();
    }

    pub(crate) fn depth(&self) -> u32 {
        self.shared.depth
    }

    pub(crate) fn direct(&self, ios: u32) {
        M::system_call();
        M::work(Stage::Interface, ios);
    }

    pub(crate) fn submit(&mut self, op: Op, (sector, sectors): Span) {
        let buffer = Buffer::new(sectors as usize * 512);
        let mut bio = match op {
            Op::Read => Bio::read(sector, buffer),
            _ => Bio::write(sector, buffer),
        };
        while let Err(Rejected { bio: back, reason }) = self.channel.submit(bio) {
            assert_eq!(reason, Reject::Full, "a program's ranges must lie within the volume");
            self.reap(1);
            bio = back;
        }
    }

    pub(crate) fn drain(&mut self) {
        self.reap(usize::MAX);
    }

    /// Waits until at least `least` I/Os have completed. Returns the number of completed I/Os.
    pub(crate) fn reap(&mut self, least: usize) -> usize {
        let errors = &self.shared.errors;
        self.channel.wait(least, |done| {
            if !done.status.is_ok() {
                // Relaxed: no data depends on the number of errors.
                errors.fetch_add(1, Order::Relaxed);
            }
        })
    }
}
