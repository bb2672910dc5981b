//! `open`: from a drive's spec to its driver.
//!
//! Checks every value, opens what the spec names, and collects what a person should see and what
//! tells drives apart. Called by the binary for each drive of its configuration, before anything is
//! served. An error names driver, key and value, or the path.

use std::str::FromStr;

use millrace_block::{Driver, Error, ErrorKind, Op, Status};
use millrace_machine::{Machine, Native};

use crate::fault::{Chance, Effect, FaultCache, FaultConfig, FaultControl, FaultDriver, FaultRule};
use crate::file::{Aio, Direct, FileConfig, FileDriver};
use crate::model::{ModelDriver, config_of};
use crate::null::NullDriver;
use crate::ram::{RamConfig, RamDriver};
use crate::spec::{Spec, SpecError};
use crate::value::{byte_range, size_bytes, switch, time_ns};

/// A drive that was opened by its spec.
pub struct Opened {
    /// Its driver.
    pub driver: Box<dyn Driver<Native>>,
    /// Lines that a person should see, such as that direct I/O is not possible.
    pub notes: Vec<String>,
    /// Device and inode of its file, or number of its block device and 0: two drives with the same
    /// identity keep their data in the same place.
    pub identity: Option<(u64, u64)>,
    /// The outermost fault drive's control.
    pub fault: Option<FaultControl>,
}

impl Opened {
    fn plain(driver: impl Driver<Native> + 'static) -> Opened {
        Opened { driver: Box::new(driver), notes: Vec::new(), identity: None, fault: None }
    }
}

/// Opens the drive of a spec for as many I/O threads.
///
/// # Errors
/// A value that makes no sense, a key that is missing, or what opening says.
pub fn open(spec: &Spec, io_threads: u16) -> Result<Opened, SpecError> {
    // Fields are public, so the keys may never have been checked.
    let spec = &Spec::from_pairs(&spec.driver, spec.options.iter().cloned())?;
    match spec.driver.as_str() {
        "null" => Ok(Opened::plain(null_of(spec)?)),
        "ram" => Ok(Opened::plain(ram_of(spec)?)),
        "model" => Ok(Opened::plain(ModelDriver::new(config_of(spec)?)?)),
        "file" => open_file(spec, io_threads),
        _ => open_fault(spec, io_threads),
    }
}

impl Spec {
    pub(crate) fn invalid(&self, key: &str, expected: &str) -> SpecError {
        SpecError::InvalidValue {
            driver: self.driver.clone(),
            key: key.into(),
            value: self.get(key).unwrap_or_default().into(),
            expected: expected.into(),
        }
    }

    pub(crate) fn value<T>(
        &self,
        key: &str,
        parse: impl FnOnce(&str) -> Option<T>,
        expected: &str,
    ) -> Result<Option<T>, SpecError> {
        let Some(text) = self.get(key) else { return Ok(None) };
        parse(text).map(Some).ok_or_else(|| self.invalid(key, expected))
    }

    pub(crate) fn size(&self, key: &str) -> Result<Option<u64>, SpecError> {
        let sectors = |text: &str| size_bytes(text).filter(|n| *n > 0 && n.is_multiple_of(512));
        self.value(key, sectors, "write bytes with k, m, g or t, a multiple of 512, as in 4g")
    }

    pub(crate) fn time(&self, key: &str) -> Result<Option<u64>, SpecError> {
        self.value(key, time_ns, "write a time with ns, us, ms or s, as in 10us")
    }

    fn switch(&self, key: &str) -> Result<Option<bool>, SpecError> {
        self.value(key, switch, "write on or off")
    }

    pub(crate) fn number<T: TryFrom<u64>>(
        &self,
        key: &str,
        most: u64,
    ) -> Result<Option<T>, SpecError> {
        let parse = |text: &str| {
            let number = text.parse::<u64>().ok().filter(|n| (1..=most).contains(n));
            number.and_then(|number| T::try_from(number).ok())
        };
        self.value(key, parse, &format!("write a number from 1 to {most}"))
    }

    pub(crate) fn depth(&self) -> Result<Option<u32>, SpecError> {
        self.number("depth", 65_536)
    }

    pub(crate) fn block(&self) -> Result<Option<u32>, SpecError> {
        let parse = |text: &str| {
            let bytes = u32::try_from(size_bytes(text)?).ok()?;
            (bytes.is_power_of_two() && (512..=65_536).contains(&bytes)).then_some(bytes)
        };
        self.value("block", parse, "write a power of two from 512 to 64k")
    }
}

/// Opens the drive of a spec on any machine: `null`, `ram` or `model`, which need no operating
/// system.
///
/// # Errors
/// As [`open`]; `Open` with `InvalidSetting` for other drivers.
pub fn open_on<M: Machine>(spec: &Spec) -> Result<Box<dyn Driver<M>>, SpecError> {
    let spec = &Spec::from_pairs(&spec.driver, spec.options.iter().cloned())?;
    match spec.driver.as_str() {
        "null" => Ok(Box::new(null_of(spec)?)),
        "ram" => Ok(Box::new(ram_of(spec)?)),
        "model" => Ok(Box::new(ModelDriver::new(config_of(spec)?)?)),
        other => {
            let text = format!("drive {other} runs on this machine only; use null, ram or model");
            Err(Error::new(ErrorKind::InvalidSetting, text).into())
        }
    }
}

fn null_of(spec: &Spec) -> Result<NullDriver, SpecError> {
    let default = NullDriver::default();
    Ok(NullDriver {
        size_bytes: spec.size("size")?.unwrap_or(default.size_bytes),
        delay_ns: spec.time("delay")?.unwrap_or(default.delay_ns),
        queues: spec.number("queues", 2048)?.unwrap_or(default.queues),
        depth: spec.depth()?.unwrap_or(default.depth),
        block_size: spec.block()?.unwrap_or(default.block_size),
    })
}

fn ram_of(spec: &Spec) -> Result<RamDriver, SpecError> {
    let default = RamConfig::default();
    let Some(size_bytes) = spec.size("size")? else { return Err(missing(spec, "size")) };
    Ok(RamDriver::new(RamConfig {
        size_bytes,
        block_size: spec.block()?.unwrap_or(default.block_size),
        depth: spec.depth()?.unwrap_or(default.depth),
    })?)
}

fn missing(spec: &Spec, key: &'static str) -> SpecError {
    SpecError::MissingKey { driver: spec.driver.clone(), key }
}

fn open_file(spec: &Spec, io_threads: u16) -> Result<Opened, SpecError> {
    let default = FileConfig::default();
    let Some(path) = spec.get("path") else { return Err(missing(spec, "path")) };
    let direct = |text: &str| match text {
        "auto" => Some(Direct::Auto),
        text => switch(text).map(|on| if on { Direct::On } else { Direct::Off }),
    };
    let aio = |text: &str| match text {
        "auto" => Some(Aio::Auto),
        "uring" => Some(Aio::Uring),
        "threads" => Some(Aio::Threads),
        _ => None,
    };
    let file = FileDriver::open(FileConfig {
        path: path.into(),
        size_bytes: spec.size("size")?,
        direct: spec.value("direct", direct, "write on, off or auto")?.unwrap_or_default(),
        aio: spec.value("aio", aio, "write uring, threads or auto")?.unwrap_or_default(),
        depth: spec.depth()?.unwrap_or(default.depth),
        lock: spec.switch("lock")?.unwrap_or(default.lock),
        read_only: spec.switch("read-only")?.unwrap_or(default.read_only),
        io_threads,
    })?;
    let (notes, identity) = (file.notes().to_vec(), Some(file.identity()));
    Ok(Opened { notes, identity, ..Opened::plain(file) })
}

fn open_fault(spec: &Spec, io_threads: u16) -> Result<Opened, SpecError> {
    let Some(drive) = spec.get("drive") else { return Err(missing(spec, "drive")) };
    let config = fault_config(spec)?;
    let dead = spec.switch("dead")? == Some(true);
    let inner = Spec::from_str(drive)?;
    if let Some(name) = &inner.controller {
        let expected = format!("name its controller outside, as in fault@{name}:...");
        return Err(spec.invalid("drive", &expected));
    }
    let Opened { driver, notes, identity, .. } = open(&inner, io_threads)?;
    let fault = FaultDriver::new(driver, config)?;
    let control = fault.control();
    if dead {
        control.die_now();
    }
    Ok(Opened { driver: Box::new(fault), notes, identity, fault: Some(control) })
}

fn fault_config(spec: &Spec) -> Result<FaultConfig, SpecError> {
    let cache = match (spec.switch("volatile")?, spec.switch("fua")?) {
        (Some(true), Some(false)) => FaultCache::VolatileWithoutFua,
        (Some(true), _) => FaultCache::Volatile,
        (_, Some(_)) => return Err(spec.invalid("fua", "it goes with volatile=on")),
        _ => FaultCache::Inner,
    };
    let seed = spec.value("seed", |text| text.parse::<u64>().ok(), "write a number")?;
    Ok(FaultConfig {
        name: spec.get("name").map_or_else(|| spec.to_string(), String::from),
        rules: fault_rules(spec)?,
        cache,
        seed: seed.unwrap_or(0),
    })
}

fn fault_rules(spec: &Spec) -> Result<Vec<FaultRule>, SpecError> {
    let chance = match (spec.get("error-rate").is_some(), spec.get("every").is_some()) {
        (true, true) => return Err(spec.invalid("every", "give either error-rate or every")),
        (true, false) => {
            let rate = |text: &str| text.parse().ok().filter(|rate| (0.0..=1.0).contains(rate));
            spec.value("error-rate", rate, "write a number from 0 to 1")?.map(Chance::Rate)
        }
        _ => spec.number("every", u64::MAX)?.map(Chance::Every),
    };
    let status = spec.value("status", status_of, "write eio, enospc or timeout")?;
    let op = spec.value("op", op_of, "write read, write, flush, discard, write-zeroes or any")?;
    let range = spec.value("range", byte_range, "write START-END in bytes, as in 1m-2m")?;
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
    if let Some(delay_ns) = spec.time("latency")? {
        rules.push(rule(Effect::Delay(delay_ns), Chance::Always));
    }
    if spec.switch("stuck")? == Some(true) {
        rules.push(rule(Effect::Stick, Chance::Always));
    }
    Ok(rules)
}

fn status_of(text: &str) -> Option<Status> {
    match text {
        "eio" => Some(Status::IoError),
        "enospc" => Some(Status::NoSpace),
        "timeout" => Some(Status::TimedOut),
        _ => None,
    }
}

fn op_of(text: &str) -> Option<Option<Op>> {
    match text {
        "any" => Some(None),
        "read" => Some(Some(Op::Read)),
        "write" => Some(Some(Op::Write)),
        "flush" => Some(Some(Op::Flush)),
        "discard" => Some(Some(Op::Discard)),
        "write-zeroes" => Some(Some(Op::WriteZeroes)),
        _ => None,
    }
}
