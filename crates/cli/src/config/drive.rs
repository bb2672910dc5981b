//! `[[drive]]`: the driver of a drive, its queues, and the cost of its I/Os.
//!
//! Keys of queues may also be set in a volume, for all its drives. The keys of a driver come from
//! millrace-drives.

use millrace::{CostModel, DriveConfig, DriveOptions, OpCost, OpRates};
use millrace_console::words::nearest;
use millrace_drives::{Spec, SpecError};
use std::time::Duration;

use super::document::{KeyReader, KeyValue, Section, key};
use super::key_lines::KeyLines;
use super::words;

const STACK_MOVED: &str = "a setting of `millrace-lab bench --stack`; every drive of the daemon has \
                           stack mq: delete this key";

/// Queue settings of a drive. The queue settings of a volume apply to its drives that have none.
pub const QUEUES: &[KeyReader<DriveOptions>] = &[
    key("scheduler", |to, at| at.word(&mut to.scheduler, words::setting)),
    key("software-queues", |to, at| at.word(&mut to.software_queues, words::setting)),
    key("hardware-queues", |to, at| at.word(&mut to.hardware_queues, words::setting)),
    key("queue-depth", |to, at| at.some(&mut to.queue_depth, words::whole(1..=65_536))),
    key("timeout", |to, at| at.word(&mut to.timeout, timeout)),
];

pub const KEYS: &[KeyReader<DriveDraft>] = &[
    key("cost", |to, at| to.options.cost = cost(at).unwrap_or_default()),
    key("controller", |to, at| at.text(&mut to.controller)),
    key("spec", |to, at| at.text(&mut to.spec)),
    key("driver", |to, at| at.text(&mut to.driver)),
];

/// Rates of reads and writes for the cost model of Linux's io.cost. Data sheets state these rates,
/// and `millrace-lab bench --calibrate` measures them.
const COST: &[KeyReader<[OpRates; 2]>] = &[
    key("read-iops", |[to, _], at| at.set(|text| set_iops(to, text))),
    key("read-sequential-iops", |[to, _], at| at.word(&mut to.sequential_iops, iops)),
    key("read-bandwidth", |[to, _], at| at.word(&mut to.bytes_per_s, bandwidth)),
    key("write-iops", |[_, to], at| at.set(|text| set_iops(to, text))),
    key("write-sequential-iops", |[_, to], at| at.word(&mut to.sequential_iops, iops)),
    key("write-bandwidth", |[_, to], at| at.word(&mut to.bytes_per_s, bandwidth)),
];

pub struct DriveDraft {
    options: DriveOptions,
    controller: Option<String>,
    spec: Option<String>,
    driver: Option<String>,
}

pub fn read_queues(section: &mut Section<'_>, to: &mut DriveOptions) {
    section.refuse("stack", STACK_MOVED);
    section.read(QUEUES, to);
}

/// Reads a drive from its section. `queues_of` takes the drive's name and returns the queue
/// settings of the volume that contains the drive.
pub fn read(
    mut section: Section<'_>,
    queues_of: impl Fn(&str) -> DriveOptions,
) -> Option<(DriveConfig, KeyLines)> {
    let (name, document) = (section.name(), section.document);
    let options = name.as_deref().map_or_else(DriveOptions::default, queues_of);
    let mut draft = DriveDraft { options, controller: None, spec: None, driver: None };
    read_queues(&mut section, &mut draft.options);
    section.read(KEYS, &mut draft);
    let read = match (&draft.spec, &draft.driver) {
        (Some(_), Some(_)) => {
            section.problem("driver", "a drive has either spec or driver; remove one of them");
            None
        }
        (None, None) => {
            section.missing("add spec = \"driver:key=value,...\" or driver = \"...\"");
            None
        }
        (Some(text), None) => in_one_text(&mut section, text),
        (None, Some(driver)) => spelled_out(&mut section, driver),
    };
    let Some(mut spec) = read else {
        name.iter().for_each(|name| document.lose(name));
        if draft.driver.is_none() {
            section.finish();
        }
        return None;
    };
    check_values(&spec, &section);
    spec.resolve_paths(document.base);
    name_controller(&mut spec, draft.controller, &section);
    let lines = section.finish();
    Some((DriveConfig { name: name?, spec, options: draft.options }, lines))
}

fn in_one_text(section: &mut Section<'_>, text: &str) -> Option<Spec> {
    section.lines.line = section.lines.at("spec");
    let wrong = |error: SpecError| {
        section.problem("spec", words::refusal(&format!("spec = \"{text}\""), &error.to_string()));
    };
    text.parse().map_err(wrong).ok()
}

fn spelled_out(section: &mut Section<'_>, driver: &str) -> Option<Spec> {
    section.lines.line = section.lines.at("driver");
    let Some(driver_keys) = millrace_drives::known_keys(driver) else {
        let error = Spec::from_pairs(driver, []).err();
        let why = error.map_or_else(|| "unknown driver".to_owned(), |error| error.to_string());
        section.problem("driver", words::refusal(&format!("driver = \"{driver}\""), &why));
        return None;
    };
    let (mut pairs, mut is_known) = (Vec::new(), true);
    for (key, line, value) in section.rest() {
        let Some(known) = driver_keys.iter().find(|known| **known == key) else {
            let text = unknown_key(driver, &key, section.known(), &driver_keys);
            section.document.problem(line, text);
            is_known = false;
            continue;
        };
        section.lines.add(known, line);
        if key.starts_with("controller-") {
            let text = format!(
                "{key} is of a modelled controller, which only a spec can name: write \
                 spec = \"{driver}:controller=NAME,{key}={value},...\"; the key controller of \
                 [[drive]] names a [[controller]]"
            );
            section.problem(known, text);
            is_known = false;
        }
        pairs.push((key, value));
    }
    let wrong = |error: SpecError| section.problem("driver", error.to_string());
    Spec::from_pairs(driver, pairs).map_err(wrong).ok().filter(|_| is_known)
}

fn unknown_key(driver: &str, key: &str, own: &[&'static str], of_driver: &[&str]) -> String {
    // `spec` cannot be combined with `driver`, so the error does not list `spec` as a known key.
    let own = own.iter().filter(|key| **key != "spec");
    let known: Vec<&str> =
        own.chain(of_driver.iter().filter(|key| **key != "controller")).copied().collect();
    let like = match (driver, key) {
        ("rbd", "pool") => "; write the pool before the image: image = \"POOL/IMAGE\"".to_owned(),
        _ => nearest(key, known.iter().copied()),
    };
    let known = known.join(", ");
    format!("unknown key \"{key}\" in [[drive]] with driver = \"{driver}\"{like} (known: {known})")
}

fn check_values(spec: &Spec, section: &Section<'_>) {
    let mut rest = spec.clone();
    while let Err(error) = millrace_drives::check(&rest) {
        let key = match &error {
            SpecError::InvalidValue { key, .. } => key.clone(),
            // The drive has this key, but with an invalid value. The value was already reported,
            // and the key removed from `rest`.
            SpecError::MissingKey { key, .. } if spec.get(key).is_some() => return,
            _ => String::new(),
        };
        let text = match &error {
            SpecError::InvalidValue { value, expected, .. } if section.lines.has(&key) => {
                let is_number = value.parse::<u64>().is_ok();
                let written = if is_number { value.clone() } else { format!("\"{value}\"") };
                words::refusal(&format!("{key} = {written}"), expected)
            }
            _ => error.to_string(),
        };
        section.problem(&key, text);
        let before = rest.options.len();
        rest.options.retain(|(known, _)| *known != key);
        if rest.options.len() == before {
            return;
        }
    }
}

fn name_controller(spec: &mut Spec, key: Option<String>, section: &Section<'_>) {
    let Some(name) = key.filter(|name| spec.controller.as_ref() != Some(name)) else { return };
    if let Some(written) = &spec.controller {
        let text = format!(
            "controller = \"{name}\": the spec names the controller {written} after its @; remove one of them"
        );
        section.problem("controller", text);
    }
    spec.controller = Some(name);
}

pub fn cost(value: KeyValue<'_, '_>) -> Option<CostModel> {
    let mut section = value.table()?;
    let before = section.problem_count();
    let mut rates = [OpRates { random_iops: 0, sequential_iops: 0, bytes_per_s: 0 }; 2];
    section.read(COST, &mut rates);
    let needed = ["read-iops", "read-bandwidth", "write-iops", "write-bandwidth"];
    let missing: Vec<&str> = needed.into_iter().filter(|key| !section.lines.has(key)).collect();
    if !missing.is_empty() {
        let missing = missing.join(", ");
        section.missing(&format!(
            "add {missing}; millrace-lab bench --calibrate DRIVE measures and prints them"
        ));
    }
    let [read, write] = rates;
    let cost = (section.problem_count() == before)
        .then(|| CostModel { read: OpCost::from_rates(&read), write: OpCost::from_rates(&write) });
    section.finish();
    cost
}

/// Sets the IOPS of random and of sequential I/O. A later key may override the sequential IOPS.
fn set_iops(rates: &mut OpRates, text: &str) -> Result<(), String> {
    rates.random_iops = iops(text)?;
    rates.sequential_iops = rates.random_iops;
    Ok(())
}

fn iops(text: &str) -> Result<u64, String> {
    match words::count(text)? {
        number @ 1..=1_000_000_000 => Ok(number),
        _ => Err("write a number of I/Os per second from 1 to 1000m (1,000 million)".to_owned()),
    }
}

fn bandwidth(text: &str) -> Result<u64, String> {
    match words::rate_bytes_per_s(text)? {
        bytes @ 4096..=0x4_0000_0000_0000 => Ok(bytes),
        _ => Err("write a number of bytes per second from 4k to 1024t".to_owned()),
    }
}

fn timeout(text: &str) -> Result<Duration, String> {
    words::duration(text, &(Duration::ZERO..=words::DAY))
}
