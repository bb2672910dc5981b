//! `Sleeper`: opens a thread's channels and waits for their completions, on this machine or a
//! simulated one.
//!
//! On this machine a thread sleeps in its io_uring ring, where the completions of file drives
//! arrive. On a simulated machine a thread polls for a bounded time, then sleeps on its doorbell.

use std::sync::Arc;

use millrace_block::{Channel, ChannelConfig, Error, IoThread, Stamp, Volume};
use millrace_machine::{Doorbell, Machine, Native, Parker};
use millrace_runtime::{IoConfig, IoContext};
use millrace_simulator::Simulated;

use crate::load::drain_barrier::DrainMember;

const SPIN_NS: u64 = 20_000;

pub(crate) trait Sleeper: Sized {
    type Machine: Machine;

    /// Creates the sleeper of I/O thread `number`. No other thread may use this sleeper.
    fn new(number: u16) -> Result<Self, Error>;

    fn open(
        &mut self,
        volume: &Arc<Volume<Self::Machine>>,
        depth: u32,
    ) -> Result<Channel<Self::Machine>, Error>;

    /// Sleeps until there is work, or until `until_ns` by the machine's clock. Returns false if
    /// there was work before the sleep.
    fn sleep(&mut self, until_ns: u64, has_work: &dyn Fn() -> bool) -> Result<bool, Error>;

    /// Serves I/O that other threads put into this thread's queues, until no thread has I/O in
    /// flight. Does nothing on a simulated machine, where threads own no queues.
    fn linger(
        &mut self,
        _channel: &mut Channel<Self::Machine>,
        _member: DrainMember<'_>,
    ) -> Result<(), Error> {
        Ok(())
    }
}

impl Sleeper for IoContext {
    type Machine = Native;

    fn new(number: u16) -> Result<Self, Error> {
        IoContext::new(IoConfig { number, ..IoConfig::default() })
    }

    fn open(&mut self, volume: &Arc<Volume<Native>>, depth: u32) -> Result<Channel<Native>, Error> {
        self.channel(volume, depth, Stamp::Batch)
    }

    fn sleep(&mut self, until_ns: u64, has_work: &dyn Fn() -> bool) -> Result<bool, Error> {
        self.turn(Some(until_ns), has_work)?;
        Ok(true)
    }

    fn linger(
        &mut self,
        channel: &mut Channel<Native>,
        member: DrainMember<'_>,
    ) -> Result<(), Error> {
        member.linger(self, channel)
    }
}

pub(crate) struct BellSleeper(IoThread<Simulated>);

impl Sleeper for BellSleeper {
    type Machine = Simulated;

    fn new(number: u16) -> Result<Self, Error> {
        let bell = Arc::new(Doorbell::new(Parker::new()));
        Ok(BellSleeper(IoThread { number, owner: u64::from(number) + 1, bell, turn: None }))
    }

    fn open(
        &mut self,
        volume: &Arc<Volume<Simulated>>,
        depth: u32,
    ) -> Result<Channel<Simulated>, Error> {
        let thread = Some(self.0.clone());
        Channel::open(volume, ChannelConfig { depth, stamp: Stamp::Batch, thread })
    }

    fn sleep(&mut self, until_ns: u64, has_work: &dyn Fn() -> bool) -> Result<bool, Error> {
        let spin_ns = until_ns.min(Simulated::now() + SPIN_NS);
        if Simulated::spin_until(spin_ns, has_work) {
            return Ok(false);
        }
        if spin_ns < until_ns {
            self.0.bell.sleep_unless(Some(until_ns), has_work);
        }
        Ok(true)
    }
}
