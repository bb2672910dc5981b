//! `[[drive]]`: what a drive is, its queues, and what its I/Os cost.
//!
//! Owns the tables of keys of a drive, of queues, which a volume may have for its drives, and of
//! `cost`. The keys of drivers are millrace-drives'. Called by sections.rs.

use std::ops::RangeInclusive;

use millrace::{CostModel, DriveConfig, DriveOptions, OpCost, OpRates};
use millrace_block::{SchedulerKind, Spread};
use millrace_console::words::nearest;
use millrace_drives::{Spec, SpecError};

use super::document::{Key, Section, Value, key};
use super::key_lines::KeyLines;
use super::paths;
use super::problem::Problems;
use super::words::{self, SECOND_NS};

/// How long a request may take before it is looked after; 0: for ever.
const TIMEOUTS_NS: RangeInclusive<u64> = 0..=24 * 3600 * SECOND_NS;
/// Rates of `cost`.
const IOPS: RangeInclusive<u64> = 1..=1_000_000_000;

/// What has become of the key `stack`.
const STACK_MOVED: &str = "a setting of `millrace-lab bench --stack`; every drive of the daemon has \
                           stack mq: delete this key";

/// Keys that a drive has, or a volume for those of its drives that have not.
pub const QUEUES: [Key<DriveOptions>; 5] = [
    key("scheduler", |queues, value| {
        value.word(&mut queues.scheduler, words::setting::<SchedulerKind>);
    }),
    key("software-queues", |queues, value| {
        value.word(&mut queues.software_queues, words::setting::<Spread>);
    }),
    key("hardware-queues", |queues, value| {
        value.word(&mut queues.hardware_queues, words::setting::<Spread>);
    }),
    key("queue-depth", |queues, value| {
        value.word(&mut queues.queue_depth, |text| words::number(text, 1, 65_536));
    }),
    key("timeout", |queues, value| {
        value.word(&mut queues.timeout_ns, |text| words::duration(text, &TIMEOUTS_NS));
    }),
];

pub const KEYS: [Key<DriveDraft>; 4] = [
    key("cost", |drive, value| drive.options.cost = cost(value).unwrap_or_default()),
    key("controller", |drive, value| value.text(&mut drive.controller)),
    key("spec", |drive, value| value.text(&mut drive.spec)),
    key("driver", |drive, value| value.text(&mut drive.driver)),
];

/// Rates of reads and of writes, as io.cost's model has them: those are what data sheets state and
/// `millrace-lab bench --calibrate` measures.
const COST: [Key<[OpRates; 2]>; 6] = [
    key("read-iops", |[read, _], value| value.set(|text| set_iops(read, text))),
    key("read-sequential-iops", |[read, _], value| {
        value.word(&mut read.sequential_iops, words::whole::<u64>(IOPS));
    }),
    key("read-bandwidth", |[read, _], value| value.word(&mut read.bytes_per_s, bandwidth)),
    key("write-iops", |[_, write], value| value.set(|text| set_iops(write, text))),
    key("write-sequential-iops", |[_, write], value| {
        value.word(&mut write.sequential_iops, words::whole::<u64>(IOPS));
    }),
    key("write-bandwidth", |[_, write], value| value.word(&mut write.bytes_per_s, bandwidth)),
];

/// A drive before it is known what it is.
pub struct DriveDraft {
    options: DriveOptions,
    controller: Option<String>,
    spec: Option<String>,
    driver: Option<String>,
}

/// Reads the keys of queues.
pub fn read_queues(section: &mut Section<'_>, to: &mut DriveOptions, problems: &mut Problems) {
    section.refuse("stack", problems, STACK_MOVED);
    section.read(&QUEUES, to, problems);
}

/// Reads a section of a drive, whose queues begin as its volume has them.
pub fn read(
    mut section: Section<'_>,
    queues_of: impl Fn(&str) -> DriveOptions,
    problems: &mut Problems,
) -> Option<(DriveConfig, KeyLines)> {
    let name = section.valid_name(problems);
    let options = name.as_deref().map_or_else(DriveOptions::default, queues_of);
    let mut draft = DriveDraft { options, controller: None, spec: None, driver: None };
    read_queues(&mut section, &mut draft.options, problems);
    section.read(&KEYS, &mut draft, problems);
    let base = section.base();
    let (mut spec, lines) = match (draft.spec, draft.driver) {
        (Some(text), None) => in_one_text(section, &text, problems),
        (None, Some(driver)) => spelled_out(section, &driver, problems),
        (Some(_), Some(_)) => {
            let text = "a drive has either spec or driver; remove one of them";
            problems.add(section.lines.at("driver"), text);
            None
        }
        (None, None) => {
            section.missing("add spec = \"driver:key=value,...\" or driver = \"...\"", problems);
            None
        }
    }?;
    check_values(&spec, &lines, problems);
    paths::resolve(&mut spec, base);
    name_controller(&mut spec, draft.controller, &lines, problems);
    Some((DriveConfig { name: name?, spec, options: draft.options }, lines))
}

fn in_one_text(
    mut section: Section<'_>,
    text: &str,
    problems: &mut Problems,
) -> Option<(Spec, KeyLines)> {
    section.lines.line = section.lines.at("spec");
    let lines = section.finish(problems);
    let spec = text.parse().map_err(|error: SpecError| {
        problems.add(lines.line, format!("spec = \"{text}\": {error}"));
    });
    Some((spec.ok()?, lines))
}

/// A drive whose driver's keys stand beside its own.
fn spelled_out(
    mut section: Section<'_>,
    driver: &str,
    problems: &mut Problems,
) -> Option<(Spec, KeyLines)> {
    let line = section.lines.at("driver");
    section.lines.line = line;
    let Some(driver_keys) = millrace_drives::known_keys(driver) else {
        let error = Spec::from_pairs(driver, std::iter::empty()).err();
        let why = error.map_or_else(|| "unknown driver".to_owned(), |error| error.to_string());
        problems.add(line, format!("driver = \"{driver}\": {why}"));
        return None;
    };
    let (mut pairs, mut is_known) = (Vec::new(), true);
    for (key, line, value) in section.rest(problems) {
        let Some(known) = driver_keys.iter().find(|known| **known == key) else {
            let text = unknown_key(driver, &key, section.known(), driver_keys);
            problems.add(line, text);
            is_known = false;
            continue;
        };
        if key.starts_with("controller-") {
            let text = format!(
                "{key} is of a modelled controller, which only a spec can name: write \
                 spec = \"{driver}:controller=NAME,{key}={value},...\"; the key controller of \
                 [[drive]] names a [[controller]]"
            );
            problems.add(line, text);
            is_known = false;
        }
        section.lines.note(known, line);
        pairs.push((key, value));
    }
    match Spec::from_pairs(driver, pairs.into_iter()) {
        Ok(spec) => is_known.then_some((spec, section.lines)),
        Err(error) => {
            problems.add(line, error.to_string());
            None
        }
    }
}

fn unknown_key(driver: &str, key: &str, own: &[&'static str], of_driver: &[&str]) -> String {
    // `spec` would be no help in a drive that has a driver.
    let own = own.iter().filter(|key| **key != "spec");
    let known: Vec<&str> =
        own.chain(of_driver.iter().filter(|key| **key != "controller")).copied().collect();
    let like = match (driver, key) {
        ("rbd", "pool") => "; write it before the image: image = \"POOL/IMAGE\"".to_owned(),
        _ => nearest(key, known.iter().copied()),
    };
    let known = known.join(", ");
    format!("unknown key \"{key}\" in [[drive]] with driver = \"{driver}\"{like} (known: {known})")
}

/// Reports values of a driver's keys that make no sense, at the line of the key if it has one.
fn check_values(spec: &Spec, lines: &KeyLines, problems: &mut Problems) {
    let mut rest = spec.clone();
    while let Err(error) = millrace_drives::check(&rest) {
        let key = match &error {
            SpecError::InvalidValue { key, .. } => key.clone(),
            // A key that was wrong is missing in the rest.
            SpecError::MissingKey { key, .. } if spec.get(key).is_some() => return,
            _ => String::new(),
        };
        problems.add(lines.at(&key), error.to_string());
        let before = rest.options.len();
        rest.options.retain(|(known, _)| *known != key);
        if rest.options.len() == before {
            return;
        }
    }
}

/// Has the spec name the controller of the key, unless it names one itself.
fn name_controller(
    spec: &mut Spec,
    key: Option<String>,
    lines: &KeyLines,
    problems: &mut Problems,
) {
    let Some(name) = key.filter(|name| spec.controller.as_ref() != Some(name)) else { return };
    if let Some(written) = &spec.controller {
        let text = format!("controller = \"{name}\": the spec says @{written}; remove one of them");
        problems.add(lines.at("controller"), text);
    }
    spec.controller = Some(name);
}

/// Reads `cost = { ... }`. The block layer makes costs of the rates.
fn cost(value: Value<'_, '_>) -> Option<CostModel> {
    let (mut section, problems) = value.table()?;
    let before = problems.count();
    let mut rates = [OpRates { random_iops: 0, sequential_iops: 0, bytes_per_s: 0 }; 2];
    section.read(&COST, &mut rates, problems);
    let needed = ["read-iops", "read-bandwidth", "write-iops", "write-bandwidth"];
    let missing: Vec<&str> = needed.into_iter().filter(|key| !section.lines.has(key)).collect();
    if !missing.is_empty() {
        let text = format!(
            "add {}; millrace-lab bench --calibrate DRIVE measures and prints them",
            missing.join(", ")
        );
        section.missing(&text, problems);
    }
    section.finish(problems);
    let [read, write] = rates;
    (problems.count() == before)
        .then(|| CostModel { read: OpCost::of_rates(&read), write: OpCost::of_rates(&write) })
}

/// I/Os at random places, and in a row unless these are said, too.
fn set_iops(rates: &mut OpRates, text: &str) -> Result<(), String> {
    rates.random_iops = words::whole(IOPS)(text)?;
    rates.sequential_iops = rates.random_iops;
    Ok(())
}

/// Bytes a second.
fn bandwidth(text: &str) -> Result<u64, String> {
    match words::size(text)? {
        bytes @ 4096..=0x4_0000_0000_0000 => Ok(bytes),
        _ => Err("write the bytes of a second, from 4k to 1024t".to_owned()),
    }
}
