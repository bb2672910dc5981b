//! Settings of a fault drive, parsed from a spec, and the driver's row in the driver table.
//!
//! The settings of the wrapped drive are parsed, too; nothing is opened. Errors name the key and
//! its value.

use millrace_block::{Op, QueueKind, Status};

use super::{Chance, Effect, FaultCache, FaultConfig, FaultDriver, FaultRule};
use crate::common::place::DataPlace;
use crate::open::{self, DriveSettings, DriverRow, OpenOptions, Opened};
use crate::spec::{Spec, SpecError};

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
    if let Some(delay_ns) = spec.time("latency")? {
        rules.push(rule(Effect::Delay(delay_ns), Chance::Always));
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
