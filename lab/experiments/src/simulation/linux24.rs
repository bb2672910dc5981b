//! `Linux24`: settings that make a benchmark do its I/O as the raw devices of Linux 2.4 did.
//!
//! The settings are the size of the bios into which an I/O is split, the handling of vectors,
//! copies to low memory (bounce buffers), and the scope of the request queue's lock. `Kernel` makes
//! a simulated machine spend the time of Linux 2.4's work outside of the block layer: buffer heads,
//! bounce buffers, and the adapter's driver under its lock. raw_job.rs charges the time of the
//! submitters' work, irq.rs the time of the drives' work. Source: the OLS 2002 paper; Linux 2.4.17,
//! ll_rw_blk.c, scsi.c, highmem.c, raw.c.
#![allow(missing_docs)] // Names of most fields and variants say what they are.

use std::sync::{Arc, Mutex};

use millrace_block::baseline::{Inside, QueuePlug, RequestLock};
use millrace_drives::{Spec, Words};
use millrace_machine::Machine;
use millrace_simulator::Cost;
use serde::Deserialize;

use super::linux3::Linux3;
use super::machines::read_costs;
use crate::load::bench::BenchError;
use crate::load::row::Linux24Row;
use millrace_machine::lock_unpoisoned;

/// Scope of a lock: the disks whose request queues, or adapter drivers, share the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LockScope {
    /// Each disk has its own lock.
    #[default]
    Queue,
    /// All disks of a controller share a lock.
    Adapter,
    /// All disks share one lock.
    Global,
}

impl Words for LockScope {
    const WORDS: &'static [(LockScope, &'static str)] = &[
        (LockScope::Queue, "queue"),
        (LockScope::Adapter, "adapter"),
        (LockScope::Global, "global"),
    ];
}

/// Rule for submitting the buffers (iovecs) of a readv(2) call: all together, or one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Readv {
    /// All buffers of the readv(2) call are submitted together, and the job waits once for all of
    /// them.
    #[default]
    Whole,
    /// Each buffer is an I/O of its own, submitted after the previous one has completed.
    Serial,
}

impl Words for Readv {
    const WORDS: &'static [(Readv, &'static str)] =
        &[(Readv::Whole, "whole"), (Readv::Serial, "serial")];
}

/// Settings of raw I/O. By default, no I/O is split, no data is copied, and the work of Linux 2.4
/// outside of the block layer takes no time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Linux24 {
    /// Length of a bio in bytes, a multiple of 512. `None` makes one bio of each buffer (iovec) of
    /// an I/O.
    pub unit_bytes: Option<u32>,
    /// Number of buffers (iovecs) of one I/O, all of the same length. `None` means one.
    pub iovecs: Option<u32>,
    /// Rule for submitting the buffers (iovecs) of one I/O, as in a readv(2) call.
    pub readv: Readv,
    /// If true, the data of each bio is copied through a bounce buffer, even if the drive could
    /// access the data directly.
    pub bounce: bool,
    /// If true, copies to and from bounce buffers take no time on a simulated machine. A comparison
    /// with the default shows the cost of these copies.
    pub without_copies: bool,
    /// Bytes of memory that a job fills and keeps, as Linux 2.4 keeps a kiobuf for an open drive; 0
    /// for none.
    pub descriptor_bytes: u32,
    /// Scope of the request queue's lock in the `sq` stack.
    pub request_lock: LockScope,
    /// If true, the `sq` stack plugs the bios of a batch in the request queue instead of in the
    /// task.
    pub plug_in_queue: bool,
    /// Scope of the lock that the drivers of host adapters hold. If set, a simulated machine also
    /// models Linux 2.4's work outside of the block layer. The drivers' work under this lock is
    /// part of it.
    pub adapters: Option<LockScope>,
    /// Time that a job on a simulated machine computes after each I/O, in nanoseconds.
    pub compute_ns: u64,
}

impl Linux24 {
    pub(super) fn is_raw(&self) -> bool {
        self.unit_bytes.is_some() || self.iovecs.is_some() || self.bounce || self.adapters.is_some()
    }

    /// Returns the name of the drive's controller; drives with the same name share a lock of
    /// `LockScope::Adapter`.
    pub fn adapter_of(drive: &Spec) -> Option<&str> {
        drive.get("controller").or(drive.controller.as_deref())
    }

    /// Returns the length of an element of the I/O's vector and the length of a bio, both in bytes.
    pub(super) fn pieces(&self, bs_bytes: u32) -> (u32, u32) {
        let element = bs_bytes / self.iovecs.unwrap_or(1).max(1);
        (element, self.unit_bytes.unwrap_or(element).min(element))
    }

    pub(super) fn row(&self, inside: Inside, linux3: &Linux3) -> Linux24Row {
        let unit = match self.unit_bytes {
            _ if !self.is_raw() => "none".to_owned(),
            None => "whole".to_owned(),
            Some(4096) => "page".to_owned(),
            Some(bytes) => bytes.to_string(),
        };
        Linux24Row {
            inside: if inside == Inside::Each { "each" } else { "one" }.to_owned(),
            unit,
            iovecs: self.iovecs.unwrap_or(1),
            readv: self.readv.word().to_owned(),
            bounce: if self.bounce { "always" } else { "never" }.to_owned(),
            request_lock: self.request_lock.word().to_owned(),
            queue_plug: if self.plug_in_queue { "queue" } else { "task" }.to_owned(),
            descriptor: self.descriptor_bytes,
            kernel: linux3.kernel().word().to_owned(),
        }
    }

    pub(super) fn check(&self, bs_bytes: u32, iodepth: u32) -> Result<(), BenchError> {
        let wrong = |text: String| Err(BenchError::Workload(text));
        if self.is_raw() && iodepth != 1 {
            return wrong(format!(
                "unit, iovecs and bounce are possible only for one I/O at a time: iodepth is \
                 {iodepth}, use 1"
            ));
        }
        if !self.is_raw() {
            return Ok(());
        }
        let (element, unit) = self.pieces(bs_bytes);
        let iovecs = self.iovecs.unwrap_or(1);
        let whole = element > 0 && element * iovecs == bs_bytes && unit > 0;
        if !whole || !element.is_multiple_of(unit) || !unit.is_multiple_of(512) {
            return wrong(format!(
                "bs={bs_bytes} in {iovecs} iovecs and units of {unit}: bs must be a multiple of \
                 the iovec's length, that a multiple of the unit, and the unit a multiple of 512"
            ));
        }
        Ok(())
    }
}

/// Largest number of bios per I/O, all of which must fit into the job's channel.
const UNITS_MAX: u32 = 65_536;

impl Linux24 {
    /// Checks that a bio's length is a multiple of the drive's `block_bytes`, and that an I/O has
    /// at most `UNITS_MAX` bios.
    pub(super) fn check_units(&self, bs_bytes: u32, block_bytes: u32) -> Result<(), BenchError> {
        let (_, unit) = self.pieces(bs_bytes);
        if !self.is_raw() || unit.is_multiple_of(block_bytes) && bs_bytes / unit <= UNITS_MAX {
            return Ok(());
        }
        Err(BenchError::Workload(format!(
            "bs={bs_bytes} in units of {unit}: the drive has blocks of {block_bytes}, an I/O has \
             {UNITS_MAX} units at most; use another bs, unit or iovecs"
        )))
    }
}

pub(super) struct Locks<M: Machine> {
    global: RequestLock<M>,
    adapters: Vec<(String, RequestLock<M>)>,
    plug: QueuePlug,
}

impl<M: Machine> Locks<M> {
    pub(super) fn new(history: &Linux24) -> Locks<M> {
        let plug = if history.plug_in_queue { QueuePlug::Queue } else { QueuePlug::Task };
        Locks { global: RequestLock::shared().with_plug(plug), adapters: Vec::new(), plug }
    }

    pub(super) fn of(&mut self, scope: LockScope, drive: &Spec) -> RequestLock<M> {
        match scope {
            LockScope::Queue => RequestLock::default().with_plug(self.plug),
            LockScope::Global => self.global.clone(),
            LockScope::Adapter => {
                let name = Linux24::adapter_of(drive).unwrap_or("");
                if let Some((_, lock)) = self.adapters.iter().find(|(known, _)| known == name) {
                    return lock.clone();
                }
                let lock = RequestLock::shared().with_plug(self.plug);
                self.adapters.push((name.to_owned(), lock.clone()));
                lock
            }
        }
    }
}

const LINUX_2_4: &str = include_str!("../../machines/linux-2.4.toml");

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KernelCosts {
    pub(crate) name: String,
    held: HoldTimes,
    buffer: BufferHead,
    bounce: Bounce,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct HoldTimes {
    dispatch: Cost,
    interrupt: Cost,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct BufferHead {
    submit: Cost,
    end: Cost,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Bounce {
    get: Cost,
    copy: Cost,
    put: Cost,
}

impl KernelCosts {
    pub(crate) fn linux_2_4() -> Result<KernelCosts, BenchError> {
        read_costs(("linux-2.4", LINUX_2_4), KernelCosts::entries)
    }

    pub(crate) fn entries(&self) -> Vec<(&'static str, &Cost)> {
        let KernelCosts { held, buffer, bounce, .. } = self;
        vec![
            ("adapter driver, lock held: dispatching a command", &held.dispatch),
            ("adapter driver, lock held: interrupt", &held.interrupt),
            ("buffer head: submission before the lock", &buffer.submit),
            ("buffer head: completion in the bottom half", &buffer.end),
            ("bounce buffer: allocating a page and a buffer head", &bounce.get),
            ("bounce buffer: copying 512 bytes", &bounce.copy),
            ("bounce buffer: release", &bounce.put),
        ]
    }
}

/// Kinds of CPU time in the model of Linux 2.4, each counted separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeUse {
    Submit,
    Dispatch,
    Interrupt,
    BottomHalf,
    BouncePages,
    BounceCopies,
    User,
}

impl TimeUse {
    /// All kinds of CPU time in the model of Linux 2.4, each with its name in reports.
    pub const NAMES: [(TimeUse, &'static str); 7] = [
        (TimeUse::Submit, "buffer heads, submission"),
        (TimeUse::Dispatch, "dispatch of commands"),
        (TimeUse::Interrupt, "interrupts of adapters"),
        (TimeUse::BottomHalf, "buffer heads, end"),
        (TimeUse::BouncePages, "bounce pages"),
        (TimeUse::BounceCopies, "bounce copies"),
        (TimeUse::User, "user"),
    ];
}

/// Clock frequency, in GHz, of the machine to which the times in machines/linux-2.4.toml refer.
const FILE_GHZ: f64 = 0.7;

#[derive(Debug, Clone, Copy)]
pub(super) struct Charge {
    pub(super) work: fn(u64),
    pub(super) ghz: f64,
}

/// Model of the CPU time of Linux 2.4's work. Unless the plan sets `Linux24::adapters`, only bounce
/// buffers take time.
pub(super) struct Kernel<M: Machine> {
    costs: KernelCosts,
    charge: fn(u64),
    /// Factor by which the times in machines/linux-2.4.toml are multiplied: 1 if the plan sets
    /// `Linux24::adapters`, otherwise `FILE_GHZ` divided by the machine's clock frequency.
    scale: f64,
    bounce: bool,
    without_copies: bool,
    adapters: Vec<RequestLock<M>>,
    spent_ns: Mutex<[u64; TimeUse::NAMES.len()]>,
}

impl<M: Machine> Kernel<M> {
    /// Creates the kernel model. Returns `None` if the plan does not need it, or if `charge`, the
    /// function that spends virtual time, is `None`: a real machine has no virtual time.
    pub(super) fn new(
        plan: &super::SimPlan,
        locks: &mut Locks<M>,
        charge: Option<Charge>,
    ) -> Result<Option<Arc<Kernel<M>>>, BenchError> {
        let history = &plan.service.history;
        let Some(Charge { work, ghz }) = charge else { return Ok(None) };
        if history.adapters.is_none() && !history.bounce {
            return Ok(None);
        }
        let of = |scope| plan.drives.iter().map(|drive| locks.of(scope, drive)).collect();
        Ok(Some(Arc::new(Kernel {
            costs: KernelCosts::linux_2_4()?,
            charge: work,
            scale: if history.adapters.is_some() { 1.0 } else { FILE_GHZ / ghz },
            bounce: history.bounce,
            without_copies: history.without_copies,
            adapters: history.adapters.map_or(Vec::new(), of),
            spent_ns: Mutex::default(),
        })))
    }

    pub(super) fn spent_ns(&self) -> Vec<u64> {
        lock_unpoisoned(&self.spent_ns).to_vec()
    }

    fn spend(&self, on: TimeUse, cost: &Cost, times: u32) {
        self.spend_ns(on, (cost.ns * self.scale * f64::from(times)).round() as u64);
    }

    fn spend_ns(&self, on: TimeUse, ns: u64) {
        // Use a plain mutex, because bookkeeping of the simulation must take no virtual time.
        lock_unpoisoned(&self.spent_ns)[on as usize] += ns;
        (self.charge)(ns);
    }

    pub(super) fn compute(&self, ns: u64) {
        self.spend_ns(TimeUse::User, ns);
    }

    pub(super) fn has_adapters(&self) -> bool {
        !self.adapters.is_empty()
    }

    pub(super) fn submit(&self, heads: u32) {
        if self.has_adapters() {
            self.spend(TimeUse::Submit, &self.costs.buffer.submit, heads);
        }
        if self.bounce {
            self.spend(TimeUse::BouncePages, &self.costs.bounce.get, heads);
        }
    }

    /// Charges the time of copying `sectors` sectors to or from a bounce buffer. Does nothing if
    /// adapters are modelled, because `bottom_half` then charges this time.
    pub(super) fn copy(&self, sectors: u32) {
        if !self.has_adapters() && !self.without_copies {
            self.spend(TimeUse::BounceCopies, &self.costs.bounce.copy, sectors);
        }
    }

    /// Charges the time of releasing a bounce page. Does nothing if adapters are modelled, because
    /// `bottom_half` then charges this time.
    pub(super) fn give_back(&self) {
        if self.bounce && !self.has_adapters() {
            self.spend(TimeUse::BouncePages, &self.costs.bounce.put, 1);
        }
    }

    /// Charges the time of dispatching a command to a drive's adapter. Kernel counterpart:
    /// `scsi_dispatch_cmd`.
    pub(super) fn dispatch(&self, drive: usize) {
        let _held = self.adapters[drive].hold();
        self.spend(TimeUse::Dispatch, &self.costs.held.dispatch, 1);
    }

    pub(super) fn interrupt(&self, drive: usize) {
        let _held = self.adapters[drive].hold();
        self.spend(TimeUse::Interrupt, &self.costs.held.interrupt, 1);
    }

    /// Charges the time of completing a command of this many buffer heads. Kernel counterpart:
    /// `scsi_bottom_half_handler`, which runs on one CPU at a time.
    pub(super) fn bottom_half(&self, heads: u32, sectors: u32) {
        self.spend(TimeUse::BottomHalf, &self.costs.buffer.end, heads);
        if self.bounce {
            let copied = if self.without_copies { 0 } else { sectors };
            self.spend(TimeUse::BounceCopies, &self.costs.bounce.copy, copied);
            self.spend(TimeUse::BouncePages, &self.costs.bounce.put, heads);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_io_is_cut_into_elements_and_these_into_units() {
        let history = Linux24 { unit_bytes: Some(512), iovecs: Some(16), ..Linux24::default() };
        assert_eq!(history.pieces(65_536), (4096, 512));
        assert!(history.check(65_536, 1).is_ok());
        let text = history.check(65_536, 2).expect_err("depth").to_string();
        assert!(text.contains("one I/O at a time"), "{text}");
        assert!(Linux24 { iovecs: Some(3), ..history }.check(65_536, 1).is_err());
        assert!(!Linux24::default().is_raw() && Linux24::default().check(512, 32).is_ok());
    }

    #[test]
    fn the_file_is_whole_and_every_entry_has_an_origin() {
        let costs = KernelCosts::linux_2_4().expect("the built-in file must be valid");
        let known = ["published:", "counted:", "input:", "assumption:"];
        for (name, cost) in costs.entries() {
            let origin = cost.origin.trim();
            assert!(known.iter().any(|word| origin.starts_with(word)), "{name}: {origin}");
        }
        assert_eq!(costs.name, "linux-2.4");
    }
}
