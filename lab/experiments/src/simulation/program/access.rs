//! `Access`: how a thread of a program reaches the volume: calls that wait, or reads in flight.
//!
//! Made for a thread by program.rs. A call charges a system call and the copy of its pages, goes
//! in as pieces of a megabyte, as filebench reads, and sleeps until all are answered. Memory is
//! owned buffers that nobody looks into.

use millrace_block::{
    Bio, Buffer, Channel, ChannelConfig, IoThread, Op, Reject, Rejected, Sector, Volume,
};
use millrace_machine::{Order, Stage, Word};

use super::ProgramState;
use crate::simulation::file_costs::FileCosts;
use crate::simulation::interface::Host;

/// Sectors of a page.
pub(crate) const PAGE_SECTORS: u64 = 8;
/// Most sectors of one bio.
const PIECE_SECTORS: u64 = 2048;

/// A thread's way to the volume.
pub(crate) struct Access<'a, M: Host> {
    shared: &'a ProgramState<M>,
    channel: Channel<M>,
}

/// A place on the volume: first sector, sectors.
pub(crate) type Span = (Sector, u64);

impl<'a, M: Host> Access<'a, M> {
    pub(super) fn new(shared: &'a ProgramState<M>, thread: &IoThread<M>) -> Self {
        let thread = Some(thread.clone());
        let config = ChannelConfig { depth: shared.depth, thread, ..ChannelConfig::default() };
        let channel = Channel::open(&shared.volume, config).expect("its queues are served");
        Access { shared, channel }
    }

    /// Through a channel of the calling thread to the volume that is shared.
    pub(crate) fn over(shared: &'a ProgramState<M>, channel: Channel<M>) -> Self {
        Access { shared, channel }
    }

    /// The channel by which it does.
    pub(crate) fn channel(&mut self) -> &mut Channel<M> {
        &mut self.channel
    }

    /// The volume that it reaches.
    pub(crate) fn volume(&self) -> &Volume<M> {
        &self.shared.volume
    }

    /// Whether the program is to end.
    pub(crate) fn is_over(&self) -> bool {
        self.shared.window.is_over()
    }

    /// Counts operations of the program.
    pub(crate) fn count(&self, operations: u64) {
        self.shared.window.count::<M>(operations);
    }

    /// What calls cost.
    pub(crate) fn costs(&self) -> &FileCosts {
        &self.shared.costs
    }

    /// The kernel works for the program for so long, beside the layer.
    pub(crate) fn works(&self, ns: u64) {
        M::system_call();
        M::kernel_work(ns);
    }

    /// Reads a place, and waits for it.
    pub(crate) fn read(&mut self, span: Span) {
        self.call(Op::Read, span);
    }

    /// Writes a place, and waits until that is acknowledged.
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

    /// I/Os that may be in flight.
    pub(crate) fn depth(&self) -> u32 {
        self.shared.depth
    }

    /// The interface's part of so many direct I/Os that are submitted with one call.
    pub(crate) fn direct(&self, ios: u32) {
        M::system_call();
        M::work(Stage::Interface, ios);
    }

    /// Starts an I/O, waiting for room first if all that may be in flight is.
    pub(crate) fn submit(&mut self, op: Op, (sector, sectors): Span) {
        let buffer = Buffer::new(sectors as usize * 512);
        let mut bio = match op {
            Op::Read => Bio::read(sector, buffer),
            _ => Bio::write(sector, buffer),
        };
        while let Err(Rejected { bio: back, reason }) = self.channel.submit(bio) {
            assert_eq!(reason, Reject::Full, "places lie on the volume");
            self.reap(1);
            bio = back;
        }
    }

    /// Waits until everything is back.
    pub(crate) fn drain(&mut self) {
        self.reap(usize::MAX);
    }

    /// Waits until so many are back; gives how many were.
    pub(crate) fn reap(&mut self, least: usize) -> usize {
        let errors = &self.shared.errors;
        self.channel.wait(least, |done| {
            if !done.status.is_ok() {
                // Relaxed: it counts, and orders nothing.
                errors.fetch_add(1, Order::Relaxed);
            }
        })
    }
}
