//! `Linux24`: how Linux 2.4 did raw I/O, as settings of a row, and what it takes there.
//!
//! Owned by a plan: the unit in which an I/O is cut, what becomes of a vector, copies in low
//! memory, whose lock the request queue is under. `Kernel` charges a simulated machine for what
//! that kernel did outside of the layer: buffer heads, bounces, the adapter's driver under its
//! lock. Called by raw_job.rs on the submitter's side and by irq.rs where a drive is dealt with.
//! Source: \[OLS\]; Linux 2.4.17, ll_rw_blk.c, scsi.c, highmem.c, raw.c.

use std::sync::{Arc, Mutex, PoisonError};

use millrace_block::{Inside, QueuePlug, RequestLock};
use millrace_drives::{Spec, Words};
use millrace_machine::Machine;
use millrace_simulator::Cost;
use serde::Deserialize;

use super::linux3::Linux3;
use super::machines::check_origins;
use crate::load::bench::BenchError;
use crate::load::row::Linux24Row;

/// The disks whose request queues one lock is around.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LockScope {
    /// Each disk has its own.
    #[default]
    Queue,
    /// All disks of a controller.
    Adapter,
    /// All disks.
    Global,
}

impl Words for LockScope {
    const WORDS: &'static [(LockScope, &'static str)] = &[
        (LockScope::Queue, "queue"),
        (LockScope::Adapter, "adapter"),
        (LockScope::Global, "global"),
    ];
}

/// What becomes of the elements of an I/O's vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Readv {
    /// All go in together, and the I/O waits once.
    #[default]
    Whole,
    /// Each is an I/O of its own, which the next one waits for.
    Serial,
}

impl Words for Readv {
    const WORDS: &'static [(Readv, &'static str)] =
        &[(Readv::Whole, "whole"), (Readv::Serial, "serial")];
}

/// How raw I/O is done; the default cuts nothing, copies nothing and charges nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Linux24 {
    /// Bytes of a bio, a multiple of 512; none: an element of the vector is one bio.
    pub unit_bytes: Option<u32>,
    /// Elements of an I/O's vector, each as long as the others; none: one.
    pub iovecs: Option<u32>,
    /// What becomes of them.
    pub readv: Readv,
    /// Data go through a copy of each bio, whatever the drive reaches.
    pub bounce: bool,
    /// Such copies cost a simulated machine nothing: to see what hangs on them.
    pub without_copies: bool,
    /// Bytes of a job's descriptor of its open drive, 0 for none.
    pub descriptor_bytes: u32,
    /// The lock of the request queue, with `sq`.
    pub request_lock: LockScope,
    /// Where bios of a batch wait, with `sq`.
    pub plug_in_queue: bool,
    /// A simulated machine is charged for what Linux 2.4 did outside of the layer, with adapters
    /// whose drivers work under a lock of this scope.
    pub adapters: Option<LockScope>,
    /// Nanoseconds that a simulated job computes for itself after each I/O.
    pub compute_ns: u64,
}

impl Linux24 {
    /// Whether a job's I/O is more than one bio of its own buffer.
    pub(super) fn is_raw(&self) -> bool {
        self.unit_bytes.is_some() || self.iovecs.is_some() || self.bounce || self.adapters.is_some()
    }

    /// The controller that a drive names: what `LockScope::Adapter` goes by.
    #[must_use]
    pub fn adapter_of(drive: &Spec) -> Option<&str> {
        drive.get("controller").or(drive.controller.as_deref())
    }

    /// Bytes of an element of the vector of an I/O, and of a bio.
    pub(super) fn pieces(&self, bs_bytes: u32) -> (u32, u32) {
        let element = bs_bytes / self.iovecs.unwrap_or(1).max(1);
        (element, self.unit_bytes.unwrap_or(element).min(element))
    }

    /// What a row says of it, and of the kernel.
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
                "unit, iovecs and bounce are for one I/O at a time: iodepth is {iodepth}, use 1"
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
                "bs={bs_bytes} in {iovecs} iovecs and units of {unit}: each must be a multiple of \
                 the next, and a unit of 512"
            ));
        }
        Ok(())
    }
}

/// Most units of an I/O: each is a bio of the job's channel.
const UNITS_MAX: u32 = 65_536;

impl Linux24 {
    /// Checks that a drive of such blocks takes the units.
    ///
    /// # Errors
    /// If a unit is no whole number of blocks, or an I/O has too many.
    pub(super) fn check_units(&self, bs_bytes: u32, block_bytes: u32) -> Result<(), BenchError> {
        let (_, unit) = self.pieces(bs_bytes);
        if !self.is_raw() || unit.is_multiple_of(block_bytes) && bs_bytes / unit <= UNITS_MAX {
            return Ok(());
        }
        Err(BenchError::Workload(format!(
            "bs={bs_bytes} in units of {unit}: the drive has blocks of {block_bytes}, and an I/O has \
             {UNITS_MAX} units at most; use another bs, unit or iovecs"
        )))
    }
}

/// The locks of a row's disks.
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

    /// The lock of a drive.
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

/// The file that comes with the program.
const LINUX_2_4: &str = include_str!("../../machines/linux-2.4.toml");

/// What Linux 2.4 takes outside of the layer.
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
    /// Those of the file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn linux_2_4() -> Result<KernelCosts, BenchError> {
        let wrong = |text: String| BenchError::Machine { text: format!("linux-2.4: {text}") };
        let costs: KernelCosts =
            toml::from_str(LINUX_2_4).map_err(|error| wrong(error.to_string()))?;
        check_origins(LINUX_2_4).map_err(wrong)?;
        for (name, cost) in costs.entries() {
            if !(0.0..=1e9).contains(&cost.ns) {
                return Err(wrong(format!("{name}: a time of 0 to 1e9 ns")));
            }
        }
        Ok(costs)
    }

    /// All entries, in words.
    pub(crate) fn entries(&self) -> [(&'static str, &Cost); 7] {
        let KernelCosts { held, buffer, bounce, .. } = self;
        [
            ("under the adapter's lock: dispatch of a command", &held.dispatch),
            ("under the adapter's lock: interrupt", &held.interrupt),
            ("buffer head: submission before the lock", &buffer.submit),
            ("buffer head: end, in the bottom half", &buffer.end),
            ("bounce: page and buffer head", &bounce.get),
            ("bounce: copy of 512 bytes", &bounce.copy),
            ("bounce: giving back", &bounce.put),
        ]
    }
}

/// Where that kernel's time went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeUse {
    /// Buffer heads before the lock.
    Submit,
    /// The adapter's driver, as commands go in.
    Dispatch,
    /// The adapter's interrupts.
    Interrupt,
    /// Buffer heads in the bottom half.
    BottomHalf,
    /// Pages and buffer heads of bounces, taken and given back.
    BouncePages,
    /// Copies.
    BounceCopies,
    /// The program's own.
    User,
}

impl TimeUse {
    /// All, with their names.
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

/// Clock of the machine that the file's times are of.
const FILE_GHZ: f64 = 0.7;

/// How a machine is charged for what its CPUs do beside the layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Charge {
    /// Lets the calling CPU work for so many nanoseconds.
    pub(super) work: fn(u64),
    /// The machine's clock.
    pub(super) ghz: f64,
}

/// What that kernel does to a simulated machine: all of it where a plan has its adapters, else only
/// bounces, by the machine's clock.
pub(super) struct Kernel<M: Machine> {
    costs: KernelCosts,
    charge: fn(u64),
    /// The file's times times this.
    scale: f64,
    bounce: bool,
    without_copies: bool,
    /// What the drivers of the drives' adapters work under, by drive; none if a plan has none.
    adapters: Vec<RequestLock<M>>,
    spent_ns: Mutex<[u64; TimeUse::NAMES.len()]>,
}

impl<M: Machine> Kernel<M> {
    /// The kernel of a plan, if it asks for one and the machine charges.
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

    /// Nanoseconds of each kind.
    pub(super) fn spent_ns(&self) -> Vec<u64> {
        self.spent_ns.lock().unwrap_or_else(PoisonError::into_inner).to_vec()
    }

    fn spend(&self, on: TimeUse, cost: &Cost, times: u32) {
        self.spend_ns(on, (cost.ns * self.scale * f64::from(times)).round() as u64);
    }

    fn spend_ns(&self, on: TimeUse, ns: u64) {
        // Free on the simulated machine, as all counting is.
        self.spent_ns.lock().unwrap_or_else(PoisonError::into_inner)[on as usize] += ns;
        (self.charge)(ns);
    }

    /// A program computes.
    pub(super) fn compute(&self, ns: u64) {
        self.spend_ns(TimeUse::User, ns);
    }

    /// Whether its adapters and their interrupts are there, and not just its bounces.
    pub(super) fn has_adapters(&self) -> bool {
        !self.adapters.is_empty()
    }

    /// So many buffer heads are about to go in.
    pub(super) fn submit(&self, heads: u32) {
        if self.has_adapters() {
            self.spend(TimeUse::Submit, &self.costs.buffer.submit, heads);
        }
        if self.bounce {
            self.spend(TimeUse::BouncePages, &self.costs.bounce.get, heads);
        }
    }

    /// So many sectors are copied to a bounce page or from it; of a drive behind an adapter the
    /// bottom half is charged.
    pub(super) fn copy(&self, sectors: u32) {
        if !self.has_adapters() && !self.without_copies {
            self.spend(TimeUse::BounceCopies, &self.costs.bounce.copy, sectors);
        }
    }

    /// A bounce page is given back, likewise.
    pub(super) fn give_back(&self) {
        if self.bounce && !self.has_adapters() {
            self.spend(TimeUse::BouncePages, &self.costs.bounce.put, 1);
        }
    }

    /// A command goes to a drive's adapter. Kernel counterpart: `scsi_dispatch_cmd`.
    pub(super) fn dispatch(&self, drive: usize) {
        let _held = self.adapters[drive].hold();
        self.spend(TimeUse::Dispatch, &self.costs.held.dispatch, 1);
    }

    /// A drive's adapter interrupts.
    pub(super) fn interrupt(&self, drive: usize) {
        let _held = self.adapters[drive].hold();
        self.spend(TimeUse::Interrupt, &self.costs.held.interrupt, 1);
    }

    /// A command of so many buffer heads has ended. Kernel counterpart:
    /// `scsi_bottom_half_handler`, of which one runs at a time.
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
        let costs = KernelCosts::linux_2_4().expect("it comes with the program");
        let known = ["published:", "counted:", "input:", "assumption:"];
        for (name, cost) in costs.entries() {
            let origin = cost.origin.trim();
            assert!(known.iter().any(|word| origin.starts_with(word)), "{name}: {origin}");
        }
        assert_eq!(costs.name, "linux-2.4");
    }
}
