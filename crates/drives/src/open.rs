//! `open`: from a drive's spec to its driver.
//!
//! Checks every value, opens what the spec names, and collects what a person should see and what
//! tells drives apart. Called by the binary for each drive of its configuration, before anything is
//! served. An error names driver, key and value, or the path.

use std::path::PathBuf;
use std::str::FromStr;

use millrace_block::{Driver, Error, ErrorKind, Op, Status};
use millrace_machine::{Machine, Native};

use crate::common::cancel::Cancel;
use crate::common::measurement::Measured;
use crate::common::place::Place;
use crate::common::procfs::memory_bytes;
use crate::common::values::{byte_range, switch};
use crate::fault::{Chance, Effect, FaultCache, FaultConfig, FaultControl, FaultDriver, FaultRule};
use crate::file::{
    Advice, Aio, Direct, FileConfig, FileDriver, measure as measure_file, place_of as place_of_file,
};
use crate::model::{ModelConfig, ModelDriver, config_of};
use crate::nbd::{NbdConfig, NbdDriver, config_of as nbd_config_of, measure as measure_nbd};
use crate::null::NullDriver;
use crate::ram::{RamConfig, RamDriver};
use crate::rbd::{self, RbdConfig, RbdDriver};
use crate::spec::{Spec, SpecError};

/// A drive that was opened by its spec.
pub struct Opened {
    /// Its driver.
    pub driver: Box<dyn Driver<Native>>,
    /// Lines that a person should see, such as that direct I/O is not possible.
    pub notes: Vec<String>,
    /// Lines about what is hardly meant, such as that its file is a qcow2 image.
    pub warnings: Vec<String>,
    /// Device and inode of its file, or number of its block device and 0, or two numbers of server
    /// and export, or made of its Ceph image: two drives with the same identity keep their data in
    /// the same place.
    pub identity: Option<(u64, u64)>,
    /// The outermost fault drive's control.
    pub fault: Option<FaultControl>,
}

impl Opened {
    fn plain(driver: impl Driver<Native> + 'static) -> Opened {
        let (notes, warnings) = (Vec::new(), Vec::new());
        Opened { driver: Box::new(driver), notes, warnings, identity: None, fault: None }
    }
}

/// Opens the drive of a spec for as many I/O threads.
///
/// # Errors
/// A value that makes no sense, a key that is missing, or what opening says.
pub fn open(spec: &Spec, io_threads: u16) -> Result<Opened, SpecError> {
    open_with(spec, io_threads, &OpenOptions::default())
}

/// How a drive is opened, beyond what its spec says.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Ends the opening early, with an error, once it is set: waits for locks, servers and clusters
    /// look at it.
    pub cancel: Cancel,
    /// Where a file drive finds its file, see [`FileConfig::opened_at`].
    pub file_at: Option<PathBuf>,
}

/// As [`open`], with these options.
///
/// # Errors
/// As [`open`].
pub fn open_with(spec: &Spec, io_threads: u16, options: &OpenOptions) -> Result<Opened, SpecError> {
    options.cancel.check(spec)?;
    settings_of(spec)?.open(io_threads, options)
}

/// Says whether every value of a spec makes sense, of the drives inside it, too; opens nothing.
///
/// # Errors
/// As [`open`], but for what only opening can tell.
pub fn check(spec: &Spec) -> Result<(), SpecError> {
    settings_of(spec).map(drop)
}

/// What a drive would be once it is open: asked of files and devices, which are only looked at.
///
/// # Errors
/// As [`check`], and if there is no such file, or it cannot be read.
pub fn measure(spec: &Spec) -> Result<Measured, SpecError> {
    settings_of(spec)?.measure()
}

/// Where the file of a drive, or of the one inside it, lies, without opening it; none if the drive
/// is in no file, or no file can be there.
///
/// # Errors
/// As [`check`].
pub fn file_place(spec: &Spec) -> Result<Option<Place>, SpecError> {
    Ok(settings_of(spec)?.file_place())
}

/// The settings of a spec's drive, all values checked.
enum Settings {
    Null(NullDriver),
    Ram(RamConfig),
    Model(Box<ModelConfig>),
    File(FileConfig),
    Nbd(NbdConfig),
    Rbd(RbdConfig),
    Fault { config: FaultConfig, dead: bool, inner: Box<Settings> },
}

fn settings_of(spec: &Spec) -> Result<Settings, SpecError> {
    // Fields are public, so the keys may never have been checked.
    let spec = &Spec::from_pairs(&spec.driver, spec.options.iter().cloned())?;
    Ok(match spec.driver.as_str() {
        "null" => Settings::Null(null_of(spec)?),
        "ram" => Settings::Ram(ram_of(spec)?),
        "model" => Settings::Model(Box::new(model_of(spec)?)),
        "file" => Settings::File(file_of(spec)?),
        "nbd" => Settings::Nbd(nbd_config_of(spec)?),
        "rbd" => Settings::Rbd(rbd::config_of(spec)?),
        _ => fault_of(spec)?,
    })
}

impl Settings {
    fn open(self, io_threads: u16, options: &OpenOptions) -> Result<Opened, SpecError> {
        let OpenOptions { cancel, file_at } = options.clone();
        match self {
            Settings::Null(driver) => Ok(Opened::plain(driver)),
            Settings::Ram(config) => Ok(Opened::plain(RamDriver::new(config)?)),
            Settings::Model(config) => Ok(Opened::plain(ModelDriver::new(*config)?)),
            Settings::File(config) => {
                let file = FileDriver::open(FileConfig {
                    io_threads,
                    cancel,
                    opened_at: file_at,
                    ..config
                })?;
                let (notes, warnings) = (file.notes().to_vec(), file.warnings().to_vec());
                let identity = Some(file.identity());
                Ok(Opened { notes, warnings, identity, ..Opened::plain(file) })
            }
            Settings::Rbd(config) => {
                let image = RbdDriver::open(RbdConfig { io_threads, cancel, ..config })?;
                let (warnings, identity) = (image.warnings().to_vec(), Some(image.identity()));
                Ok(Opened { warnings, identity, ..Opened::plain(image) })
            }
            Settings::Nbd(config) => {
                let nbd = NbdDriver::open(NbdConfig { io_threads, cancel, ..config })?;
                let (notes, identity) = (nbd.notes().to_vec(), Some(nbd.identity()));
                Ok(Opened { notes, identity, ..Opened::plain(nbd) })
            }
            Settings::Fault { config, dead, inner } => {
                let Opened { driver, notes, warnings, identity, .. } =
                    inner.open(io_threads, options)?;
                let fault = FaultDriver::new(driver, config)?;
                let control = fault.control();
                if dead {
                    control.die_now();
                }
                let (driver, fault) = (Box::new(fault), Some(control));
                Ok(Opened { driver, notes, warnings, identity, fault })
            }
        }
    }

    fn measure(self) -> Result<Measured, SpecError> {
        let plain = |size_bytes, block_bytes| Ok(Measured::plain(size_bytes, block_bytes));
        match self {
            Settings::Null(driver) => plain(driver.size_bytes, driver.block_size),
            Settings::Ram(config) => plain(config.size_bytes, config.block_size),
            Settings::Model(config) => plain(config.size_bytes, config.block_size),
            Settings::File(config) => Ok(measure_file(&config)?),
            Settings::Nbd(config) => Ok(measure_nbd(&config)?),
            Settings::Rbd(config) => Ok(rbd::measure(&config)?),
            Settings::Fault { inner, .. } => inner.measure(),
        }
    }

    fn file_place(&self) -> Option<Place> {
        match self {
            Settings::File(config) => place_of_file(config),
            Settings::Fault { inner, .. } => inner.file_place(),
            _ => None,
        }
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
        "ram" => Ok(Box::new(RamDriver::new(ram_of(spec)?)?)),
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

fn ram_of(spec: &Spec) -> Result<RamConfig, SpecError> {
    let default = RamConfig::default();
    let Some(size_bytes) = spec.size("size")? else { return Err(spec.missing("size")) };
    if let Some(has_bytes) = memory_bytes().filter(|has_bytes| size_bytes > *has_bytes) {
        let text = format!(
            "this machine has {} MiB of memory and swap, and a ram drive keeps there what is \
             written to it; lower the size, or take a file",
            has_bytes >> 20
        );
        return Err(spec.invalid("size", &text));
    }
    Ok(RamConfig {
        size_bytes,
        block_size: spec.block()?.unwrap_or(default.block_size),
        depth: spec.depth()?.unwrap_or(default.depth),
    })
}

fn model_of(spec: &Spec) -> Result<ModelConfig, SpecError> {
    let config = config_of(spec)?;
    config.validate().map_err(|text| Error::new(ErrorKind::InvalidSetting, text))?;
    Ok(config)
}

fn file_of(spec: &Spec) -> Result<FileConfig, SpecError> {
    let default = FileConfig::default();
    let Some(path) = spec.get("path") else { return Err(spec.missing("path")) };
    if path.is_empty() {
        return Err(spec.invalid("path", "write the path of a file or block device"));
    }
    let direct = |text: &str| match text {
        "auto" => Some(Direct::Auto),
        text => switch(text).map(|on| if on { Direct::On } else { Direct::Off }),
    };
    let aio = |text: &str| match text {
        "auto" => Some(Aio::Auto),
        "uring" => Some(Aio::Uring),
        "threads" => Some(Aio::Threads),
        "inline" => Some(Aio::Inline),
        _ => None,
    };
    let advice = |text: &str| match text {
        "normal" => Some(Advice::Normal),
        "random" => Some(Advice::Random),
        "sequential" => Some(Advice::Sequential),
        _ => None,
    };
    let advice = spec.value("advice", advice, "write normal, random or sequential")?;
    let config = FileConfig {
        path: path.into(),
        size_bytes: spec.size("size")?,
        grow: spec.switch("grow")?.unwrap_or(default.grow),
        direct: spec.value("direct", direct, "write on, off or auto")?.unwrap_or_default(),
        aio: spec.value("aio", aio, "write uring, threads, inline or auto")?.unwrap_or_default(),
        advice: advice.unwrap_or_default(),
        depth: spec.depth()?.unwrap_or(default.depth),
        lock: spec.switch("lock")?.unwrap_or(default.lock),
        read_only: spec.switch("read-only")?.unwrap_or(default.read_only),
        ..default
    };
    if config.grow && config.size_bytes.is_none() {
        return Err(spec.invalid("grow", "it goes with size="));
    }
    Ok(config)
}

fn fault_of(spec: &Spec) -> Result<Settings, SpecError> {
    let Some(drive) = spec.get("drive") else { return Err(spec.missing("drive")) };
    let config = fault_config(spec)?;
    let dead = spec.switch("dead")? == Some(true);
    let form = "write the other drive's spec in parentheses, as in drive=(ram:size=1g)";
    let inner = Spec::from_str(drive);
    let inner = inner.map_err(|error| spec.invalid("drive", &format!("{error}; {form}")))?;
    if let Some(name) = &inner.controller {
        let expected = format!("name its controller outside, as in fault@{name}:...");
        return Err(spec.invalid("drive", &expected));
    }
    Ok(Settings::Fault { config, dead, inner: Box::new(settings_of(&inner)?) })
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
    if let Some(key) = ["range", "op"].into_iter().find(|key| spec.get(key).is_some())
        && rules.is_empty()
    {
        let text = "it says which I/Os have a fault, but not the fault; add status, error-rate, \
                    every, latency or stuck";
        return Err(spec.invalid(key, text));
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
