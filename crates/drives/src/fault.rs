//! `fault`: wraps any drive and injects errors, delays, stuck requests, the death of the drive, and
//! power cuts.
//!
//! `FaultControl` changes the rules at run time. With a volatile cache, the fault drive keeps the
//! content itself, in two images in memory (current and durable); it then uses only the size and
//! block size of the drive below, which holds no data. Kernel counterparts: dm-flakey,
//! dm-log-writes and the fault injection of null_blk.

mod cache;
mod control;
mod queue;

use std::sync::Arc;

use millrace_block::{
    Arena, Driver, DriverQueue, Error, ErrorKind, Extent, Features, HwQueues, Op, QueueKind,
    QueueLimits, Sector, Status, TagScope,
};
use millrace_machine::{Native, Topology, debug_fields};

use crate::common::extents::all_data;
use crate::common::place::DataPlace;
use crate::open::{self, DriveSettings, DriverRow, OpenOptions, Opened};
use crate::spec::{Spec, SpecError};
use cache::SimulatedCache;
pub use control::{Chance, Effect, FaultControl, FaultRule, fault_controls};
use queue::FaultQueue;

/// Maximum number of sectors of a discard or write-zeroes, for a fault drive that simulates a
/// cache.
const MAX_CACHE_SECTORS: u32 = 64 << 11;

/// Kind of write cache that a fault drive pretends to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FaultCache {
    /// The fault drive simulates no cache and reports the cache of the wrapped drive.
    #[default]
    Inner,
    /// The fault drive simulates a volatile write cache and supports FUA writes.
    Volatile,
    /// The fault drive simulates a volatile write cache and does not support FUA writes.
    VolatileWithoutFua,
}

/// Settings of a fault drive.
#[derive(Debug, Clone, Default)]
pub struct FaultConfig {
    /// Name of the drive in [`fault_controls`].
    pub name: String,
    /// Initial rules for the faults to inject. [`FaultControl`] can change the rules at run time.
    pub rules: Vec<FaultRule>,
    /// Kind of write cache to pretend to have.
    pub cache: FaultCache,
    /// Seed of all random decisions.
    pub seed: u64,
}

/// A drive that wraps another one and injects faults.
pub struct FaultDriver {
    inner: Box<dyn Driver<Native>>,
    control: FaultControl,
    cache: FaultCache,
}

debug_fields!(FaultDriver, control);

impl FaultDriver {
    /// Wraps a drive.
    ///
    /// # Errors
    /// Returns `System` if there is not enough address space for the two images of the drive's
    /// content that a simulated volatile cache needs.
    pub fn new(inner: Box<dyn Driver<Native>>, config: FaultConfig) -> Result<FaultDriver, Error> {
        let images = match config.cache {
            FaultCache::Inner => None,
            _ => Some(SimulatedCache::new(inner.capacity(), config.seed)?),
        };
        let control = FaultControl::new(&config.name, config.seed, images);
        config.rules.into_iter().for_each(|rule| control.add_rule(rule));
        Ok(FaultDriver { inner, control, cache: config.cache })
    }

    /// Returns true if the fault drive may report the wrapped drive's holes. Clients do not read
    /// reported holes, so rules could not inject errors into such reads. With a simulated cache,
    /// the wrapped drive holds no data, so its holes mean nothing.
    fn vouches_for_holes(&self) -> bool {
        self.cache == FaultCache::Inner && !self.control.state.may_strike()
    }

    /// Returns a handle that controls the faults at run time.
    #[must_use]
    pub fn control(&self) -> FaultControl {
        self.control.clone()
    }
}

impl Driver<Native> for FaultDriver {
    fn capacity(&self) -> Sector {
        self.inner.capacity()
    }

    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn revalidate(&self) -> Result<Sector, Error> {
        let (old, new) = (self.inner.capacity(), self.inner.revalidate()?);
        if new > old && self.cache != FaultCache::Inner {
            let text = "a fault drive with a volatile cache holds its contents in memory, which \
                        cannot grow; start again";
            return Err(Error::new(ErrorKind::NotSupported, text));
        }
        Ok(new)
    }

    fn limits(&self) -> QueueLimits {
        let inner = self.inner.limits();
        if self.cache == FaultCache::Inner {
            return inner;
        }
        QueueLimits {
            logical_block_size: inner.logical_block_size,
            physical_block_size: inner.physical_block_size,
            max_discard_sectors: MAX_CACHE_SECTORS,
            max_write_zeroes_sectors: MAX_CACHE_SECTORS,
            features: Features {
                volatile_cache: true,
                process_cache: true,
                fua: self.cache == FaultCache::Volatile,
                read_only: inner.features.read_only,
                ..Features::default()
            },
            ..QueueLimits::default()
        }
    }

    fn hw_queues(&self, topology: &Topology) -> HwQueues {
        let inner = self.inner.hw_queues(topology);
        match self.cache {
            FaultCache::Inner => inner,
            _ => HwQueues { kind: QueueKind::AnyThread, tags: TagScope::PerQueue, ..inner },
        }
    }

    fn map(&self, ctx: usize, ctxs: usize, hctxs: usize) -> usize {
        self.inner.map(ctx, ctxs, hctxs)
    }

    /// Returns false: a rule may delay a completion, but an immediate drive must complete every
    /// request in the next poll.
    fn is_immediate(&self) -> bool {
        false
    }

    fn open_queue(&self, index: u16, depth: u32) -> Result<Box<dyn DriverQueue<Native>>, Error> {
        let inner = match self.cache {
            FaultCache::Inner => Some(self.inner.open_queue(index, depth)?),
            _ => None,
        };
        Ok(Box::new(FaultQueue::new(self.control.state.clone(), inner, depth)))
    }

    fn extents(&self, sector: Sector, nr_sectors: u64) -> Vec<Extent> {
        match self.vouches_for_holes() {
            true => self.inner.extents(sector, nr_sectors),
            false => all_data(nr_sectors),
        }
    }

    fn reads_as_zeroes(&self, sector: Sector, nr_sectors: u64) -> bool {
        self.vouches_for_holes() && self.inner.reads_as_zeroes(sector, nr_sectors)
    }

    fn is_polled_idle(&self) -> bool {
        self.inner.is_polled_idle()
    }

    fn is_reconnecting(&self) -> bool {
        self.inner.is_reconnecting()
    }

    fn trouble(&self) -> Option<String> {
        self.inner.trouble()
    }

    fn flush_trouble(&self) -> Option<String> {
        self.inner.flush_trouble()
    }

    fn prepare_stop(&self) {
        self.inner.prepare_stop();
    }

    fn lend(&self, arena: &Arc<Arena>) {
        self.inner.lend(arena);
    }

    fn take_news(&self) -> Vec<String> {
        self.inner.take_news()
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        self.inner.counts()
    }
}

pub(crate) const ROW: DriverRow = DriverRow {
    name: "fault",
    keys: "drive name error-rate every status op range latency stuck dead volatile fua seed",
    main_key: None,
    path_keys: "",
    queues: QueueKind::AnyThread,
    settings: |spec| Ok(Box::new(settings_of(spec)?)),
};

const STATUSES: [(&str, Status); 3] =
    [("eio", Status::IoError), ("enospc", Status::NoSpace), ("timeout", Status::TimedOut)];

const OPS: [(&str, Option<Op>); 6] = [
    ("read", Some(Op::Read)),
    ("write", Some(Op::Write)),
    ("flush", Some(Op::Flush)),
    ("discard", Some(Op::Discard)),
    ("write-zeroes", Some(Op::WriteZeroes)),
    ("any", None),
];

struct FaultSettings {
    config: FaultConfig,
    dead: bool,
    inner: Box<dyn DriveSettings>,
}

impl DriveSettings for FaultSettings {
    fn open(self: Box<Self>, io_threads: u16, options: &OpenOptions) -> Result<Opened, SpecError> {
        let opened = self.inner.open(io_threads, options)?;
        let fault = FaultDriver::new(opened.driver, self.config)?;
        let control = fault.control();
        if self.dead {
            control.die_now();
        }
        Ok(Opened { driver: Box::new(fault), fault: Some(control), ..opened })
    }

    fn file_place(&self) -> Option<DataPlace> {
        self.inner.file_place()
    }
}

fn settings_of(spec: &Spec) -> Result<FaultSettings, SpecError> {
    let Some(drive) = spec.get("drive") else { return Err(spec.missing("drive")) };
    let config = fault_config(spec)?;
    let dead = spec.switch("dead")? == Some(true);
    let form = "write the inner drive's spec in parentheses, as in drive=(ram:size=1g)";
    let inner = drive.parse::<Spec>();
    let inner = inner.map_err(|error| spec.invalid("drive", &format!("{error}; {form}")))?;
    if let Some(name) = &inner.controller {
        let expected =
            format!("move the controller's name to the fault drive, as in fault@{name}:...");
        return Err(spec.invalid("drive", &expected));
    }
    Ok(FaultSettings { config, dead, inner: open::settings_of(&inner)? })
}

fn fault_config(spec: &Spec) -> Result<FaultConfig, SpecError> {
    let cache = match (spec.switch("volatile")?, spec.switch("fua")?) {
        (Some(true), Some(false)) => FaultCache::VolatileWithoutFua,
        (Some(true), _) => FaultCache::Volatile,
        (_, Some(_)) => return Err(spec.invalid("fua", "it goes with volatile=on")),
        _ => FaultCache::Inner,
    };
    Ok(FaultConfig {
        name: spec.get("name").map_or_else(|| spec.to_string(), String::from),
        rules: fault_rules(spec)?,
        cache,
        seed: spec.seed()?.unwrap_or(0),
    })
}

fn fault_rules(spec: &Spec) -> Result<Vec<FaultRule>, SpecError> {
    if spec.get("error-rate").is_some() && spec.get("every").is_some() {
        let text = "`error-rate` and `every` exclude each other; give one of them";
        return Err(spec.invalid("every", text));
    }
    let every = spec.number("every", u64::MAX)?.map(Chance::Every);
    let chance = spec.fraction("error-rate")?.map(Chance::Rate).or(every);
    let status = spec.choice("status", &STATUSES)?;
    let op = spec.choice("op", &OPS)?;
    let range = spec.byte_range("range")?;
    let rule = |effect, chance| FaultRule {
        op: op.flatten(),
        sectors: range.clone().map(|bytes| bytes.start >> 9..bytes.end.div_ceil(512)),
        chance,
        effect,
    };
    let mut rules = Vec::new();
    if chance.is_some() || status.is_some() {
        let effect = Effect::Fail(status.unwrap_or(Status::IoError));
        rules.push(rule(effect, chance.unwrap_or(Chance::Always)));
    }
    if let Some(delay) = spec.time("latency")? {
        rules.push(rule(Effect::Delay(delay), Chance::Always));
    }
    if spec.switch("stuck")? == Some(true) {
        rules.push(rule(Effect::Stick, Chance::Always));
    }
    if let Some(key) = spec.first_of("range op").filter(|_| rules.is_empty()) {
        let text = "it selects I/Os, but names no fault; add status, error-rate, \
                    every, latency or stuck";
        return Err(spec.invalid(key, text));
    }
    Ok(rules)
}
