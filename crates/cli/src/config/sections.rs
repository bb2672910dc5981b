//! First step: a TOML text to sections with values of the right type.
//!
//! Owns the list of keys of every section. Called by `config::load`; calls document.rs and words.rs
//! and the parser of drive specs. What each value means alone is checked here, how values go
//! together in plan.rs. Goes on after a mistake, so that all are reported at once.

use std::ops::RangeInclusive;
use std::path::Path;

use millrace::{CacheConfig, CostModel, DriveOptions, Listen, ListenerConfig, ServerConfig};
use millrace_block::{SchedulerKind, Serving, Spread};
use millrace_console::words::nearest;
use millrace_drives::{Spec, SpecError};

use super::cache;
use super::controller::{self, RawController};
use super::cost;
use super::document::{Document, Located, Section, parse, printable};
use super::group::{self, RawGroup, RawMembership};
use super::key_lines::KeyLines;
use super::listener;
use super::paths;
use super::problem::Problems;
use super::server::{DAEMON, DaemonConfig, SERVER};
use super::vhost::RawVhost;
use super::words::{self, LayoutWord, SECOND_NS};

/// How long a request may take before it is looked after; 0: for ever.
const TIMEOUTS_NS: RangeInclusive<u64> = 0..=24 * 3600 * SECOND_NS;

/// What has become of the key `stack`.
const STACK_MOVED: &str = "a setting of `millrace-lab bench --stack`; every drive of the daemon has \
                           stack mq: delete this key";

/// Queue settings that a drive or a volume may have.
#[derive(Debug, Clone, Copy, Default)]
pub struct Queues {
    /// Order in which what waits goes out.
    pub scheduler: Option<SchedulerKind>,
    /// Spread of the software queues.
    pub software: Option<Spread>,
    /// Spread of the hardware queues.
    pub hardware: Option<Spread>,
    /// Tags.
    pub depth: Option<u32>,
    /// How long a request may take, in nanoseconds.
    pub timeout_ns: Option<u64>,
}

impl Queues {
    fn read(section: &mut Section<'_>, problems: &mut Problems) -> Self {
        let depth = |text: &str| words::number(text, 1, 65_536);
        let timeout = |text: &str| words::duration(text, &TIMEOUTS_NS);
        section.refuse("stack", problems, STACK_MOVED);
        Queues {
            scheduler: section.word("scheduler", problems, words::setting).map(|s| s.value),
            software: section.word("software-queues", problems, words::setting).map(|s| s.value),
            hardware: section.word("hardware-queues", problems, words::setting).map(|s| s.value),
            depth: section.word("queue-depth", problems, depth).map(|d| d.value),
            timeout_ns: section.word("timeout", problems, timeout).map(|t| t.value),
        }
    }

    /// These settings, then `general` where they say nothing, then the defaults.
    pub fn over(self, general: Queues) -> DriveOptions {
        let default = DriveOptions::default();
        DriveOptions {
            scheduler: self.scheduler.or(general.scheduler).unwrap_or(default.scheduler),
            software_queues: self.software.or(general.software).unwrap_or(default.software_queues),
            hardware_queues: self.hardware.or(general.hardware).unwrap_or(default.hardware_queues),
            queue_depth: self.depth.or(general.depth),
            timeout_ns: self.timeout_ns.or(general.timeout_ns).unwrap_or(default.timeout_ns),
            ..default
        }
    }
}

/// Which threads serve a volume, and the watermarks of its plug and its pressure.
#[derive(Debug, Clone, Default)]
pub struct RawServing {
    /// The mode.
    pub mode: Option<Located<Serving>>,
    /// The plug's high watermark.
    pub plug_high: Option<Located<u32>>,
    /// The plug's low watermark.
    pub plug_low: Option<Located<u32>>,
    /// The high pressure point.
    pub pressure_high: Option<Located<u32>>,
    /// The low pressure point.
    pub pressure_low: Option<Located<u32>>,
}

impl RawServing {
    fn read(section: &mut Section<'_>, problems: &mut Problems) -> Self {
        let count = |text: &str| words::number(text, 0, 65_536);
        RawServing {
            mode: section.word("serving", problems, words::serving),
            plug_high: section.word("plug-high", problems, count),
            plug_low: section.word("plug-low", problems, count),
            pressure_high: section.word("pressure-high", problems, count),
            pressure_low: section.word("pressure-low", problems, count),
        }
    }
}

/// A `[[drive]]`.
pub struct RawDrive {
    /// Its name and where that stands.
    pub name: Located<String>,
    /// What it is.
    pub spec: Located<Spec>,
    /// Where each of its driver's keys stands, if they have lines of their own.
    pub key_lines: Vec<(String, usize)>,
    /// The controller that it hangs on, by name; the spec has it too.
    pub controller: Option<Located<String>>,
    /// Its queues.
    pub queues: Queues,
    /// What I/Os cost it, if that is said.
    pub cost: Option<CostModel>,
}

/// A `[[volume]]`.
pub struct RawVolume {
    /// Its name.
    pub name: Located<String>,
    /// Its layout.
    pub layout: Option<Located<LayoutWord>>,
    /// Its chunk in sectors.
    pub chunk_sectors: Option<Located<u32>>,
    /// Its drives by name.
    pub drives: Located<Vec<Located<String>>>,
    /// Queues of drives that say nothing themselves.
    pub queues: Queues,
    /// Which threads serve its drives.
    pub serving: RawServing,
    /// The cache over it.
    pub cache: Option<CacheConfig>,
}

/// An `[[export]]`.
pub struct RawExport {
    /// The volume by name.
    pub volume: Located<String>,
    /// Where it is served.
    pub nbd: Option<Located<Vec<Located<Listen>>>>,
    /// How virtual machines get it.
    pub vhost: RawVhost,
    /// Its name, the volume's if not given.
    pub name: Option<Located<String>>,
    /// Nobody may write.
    pub read_only: bool,
    /// For people.
    pub description: Option<String>,
    /// Names in certificates of those that may use it.
    pub tls_allow: Option<Located<Vec<String>>>,
    /// The group of its clients.
    pub membership: RawMembership,
}

/// A whole file.
#[derive(Default)]
pub struct RawConfig {
    /// `[[controller]]` sections.
    pub controllers: Vec<RawController>,
    /// `[[group]]` sections.
    pub groups: Vec<RawGroup>,
    /// `[[drive]]` sections.
    pub drives: Vec<RawDrive>,
    /// `[[volume]]` sections.
    pub volumes: Vec<RawVolume>,
    /// `[[export]]` sections.
    pub exports: Vec<RawExport>,
    /// `[[listener]]` sections.
    pub listeners: Vec<(ListenerConfig, KeyLines)>,
    /// The settings of `[server]` that are the library's.
    pub server: ServerConfig,
    /// Those that are the daemon's.
    pub daemon: DaemonConfig,
    /// Lines of `[server]`.
    pub server_lines: KeyLines,
    /// Names of sections that are none that there may be, or could not be read: what names one of
    /// them is not wrong itself.
    pub lost: Vec<String>,
    /// There is a section that may be meant for an export.
    pub has_exports: bool,
}

/// Reads the sections of a text; relative paths are in `base`.
pub fn read(text: &str, base: &Path, problems: &mut Problems) -> RawConfig {
    let Some(table) = parse(text, problems) else {
        return RawConfig { has_exports: true, ..RawConfig::default() };
    };
    let document = Document::new(text, base);
    let mut root = Section::root(&document, &table);
    let controllers = root.sections("controller", problems);
    let groups = root.sections("group", problems);
    let drives = root.sections("drive", problems);
    let volumes = root.sections("volume", problems);
    let exports = root.sections("export", problems);
    let listeners = root.sections("listener", problems);
    let server = root.section("server", problems);
    let mut lost = root.names_of_unknown();
    root.finish(problems);
    let has_exports = !exports.is_empty() || !problems.is_empty();
    let (mut config, mut daemon) = (ServerConfig::default(), DaemonConfig::default());
    let server_lines = server.map(|mut section| {
        section.read(&SERVER, &mut config, problems);
        section.read(&DAEMON, &mut daemon, problems);
        section.finish(problems)
    });
    RawConfig {
        controllers: whole(controllers, &mut lost, |s| controller::read(s, problems)),
        groups: whole(groups, &mut lost, |s| group::read(s, problems)),
        drives: whole(drives, &mut lost, |s| drive(s, base, problems)),
        volumes: whole(volumes, &mut lost, |s| volume(s, problems)),
        exports: exports.into_iter().filter_map(|s| export(s, base, problems)).collect(),
        listeners: listeners.into_iter().filter_map(|s| listener::read(s, problems)).collect(),
        server: config,
        daemon,
        server_lines: server_lines.unwrap_or_default(),
        lost,
        has_exports,
    }
}

/// The sections that can be read; names of the others are lost.
fn whole<'a, T>(
    sections: Vec<Section<'a>>,
    lost: &mut Vec<String>,
    mut read: impl FnMut(Section<'a>) -> Option<T>,
) -> Vec<T> {
    let mut list = Vec::new();
    for section in sections {
        let name = section.name();
        match read(section) {
            Some(one) => list.push(one),
            // Whoever names it may have written the name without what is wrong in it.
            None => lost.extend(name.into_iter().flat_map(|name| {
                let plain = name.replace(char::is_control, "");
                [name, plain]
            })),
        }
    }
    list
}

fn drive(mut section: Section<'_>, base: &Path, problems: &mut Problems) -> Option<RawDrive> {
    let name = section.located_name(problems);
    let queues = Queues::read(&mut section, problems);
    let cost = cost::read(&mut section, problems);
    let controller = section.string("controller", problems);
    let text = section.string("spec", problems);
    let driver = section.string("driver", problems);
    let written = match (text, driver) {
        (Some(text), None) => {
            section.finish(problems);
            in_one_text(text, problems)
        }
        (None, Some(driver)) => spelled_out(section, driver, problems),
        (Some(_), Some(driver)) => {
            problems.add(driver.line, "a drive has either spec or driver; remove one of them");
            None
        }
        (None, None) => {
            section.missing("add spec = \"driver:key=value,...\" or driver = \"...\"", problems);
            None
        }
    };
    let Written { mut spec, line, key_lines } = written?;
    check_values(&spec, line, &key_lines, problems);
    paths::resolve(&mut spec, base);
    let controller = one_controller(&mut spec, line, controller, problems);
    let spec = Located { value: spec, line };
    Some(RawDrive { name: name?, spec, key_lines, controller, queues, cost })
}

/// Reports values of a driver's keys that make no sense, at the line of the key if it has one.
fn check_values(spec: &Spec, line: usize, key_lines: &[(String, usize)], problems: &mut Problems) {
    let mut rest = spec.clone();
    while let Err(error) = millrace_drives::check(&rest) {
        let key = match &error {
            SpecError::InvalidValue { key, .. } => key.clone(),
            // A key that was wrong is missing in the rest.
            SpecError::MissingKey { key, .. } if spec.get(key).is_some() => return,
            _ => String::new(),
        };
        let at = key_lines.iter().find(|(known, _)| *known == key);
        problems.add(at.map_or(line, |(_, line)| *line), error.to_string());
        let before = rest.options.len();
        rest.options.retain(|(known, _)| *known != key);
        if rest.options.len() == before {
            return;
        }
    }
}

/// The controller that a drive names, at its key or in its spec.
fn one_controller(
    spec: &mut Spec,
    line: usize,
    key: Option<Located<String>>,
    problems: &mut Problems,
) -> Option<Located<String>> {
    let Some(written) = &spec.controller else {
        spec.controller = key.as_ref().map(|name| name.value.clone());
        return key;
    };
    let Some(key) = key.filter(|key| key.value != *written) else {
        return Some(Located { value: written.clone(), line });
    };
    let name = &key.value;
    let text = format!("controller = \"{name}\": the spec says @{written}; remove one of them");
    problems.add(key.line, text);
    Some(key)
}

/// A spec as it stands in the file.
struct Written {
    spec: Spec,
    line: usize,
    key_lines: Vec<(String, usize)>,
}

fn in_one_text(text: Located<String>, problems: &mut Problems) -> Option<Written> {
    let line = text.line;
    match text.value.parse() {
        Ok(spec) => Some(Written { spec, line, key_lines: Vec::new() }),
        Err(error) => {
            problems.add(line, format!("spec = \"{}\": {error}", text.value));
            None
        }
    }
}

/// A drive whose driver's keys stand beside its own.
fn spelled_out(
    mut section: Section<'_>,
    driver: Located<String>,
    problems: &mut Problems,
) -> Option<Written> {
    let line = driver.line;
    let Some(driver_keys) = millrace_drives::known_keys(&driver.value) else {
        let error = Spec::from_pairs(&driver.value, std::iter::empty()).err();
        let why = error.map_or_else(|| "unknown driver".to_owned(), |error| error.to_string());
        problems.add(line, format!("driver = \"{}\": {why}", driver.value));
        return None;
    };
    let pairs = section.rest(problems);
    let key_lines = pairs.iter().map(|(key, line, _)| (key.clone(), *line)).collect();
    let (known, unknown): (Vec<_>, Vec<_>) =
        pairs.into_iter().partition(|(key, ..)| driver_keys.contains(&key.as_str()));
    for (key, line, _) in &unknown {
        // `spec` would be no help in a drive that has a driver.
        let own = section.known().iter().filter(|key| **key != "spec");
        let words = own.chain(driver_keys.iter().filter(|key| **key != "controller"));
        let words: Vec<&str> = words.copied().collect();
        let like = match (driver.value.as_str(), key.as_str()) {
            ("rbd", "pool") => "; write it before the image: image = \"POOL/IMAGE\"".to_owned(),
            _ => nearest(key, words.iter().copied()),
        };
        let title = format!("[[drive]] with driver = \"{}\"", driver.value);
        let text = format!("unknown key \"{key}\" in {title}{like} (known: {})", words.join(", "));
        problems.add(*line, text);
    }
    if let Some((key, line, value)) = known.iter().find(|(key, ..)| key.starts_with("controller-"))
    {
        let text = format!(
            "{key} is of a modelled controller, which only a spec can name: write \
             spec = \"{}:controller=NAME,{key}={},...\"; the key controller of [[drive]] names a \
             [[controller]]",
            driver.value, value
        );
        problems.add(*line, text);
        return None;
    }
    let pairs = known.into_iter().map(|(key, _, value)| (key, value));
    match Spec::from_pairs(&driver.value, pairs) {
        Ok(spec) => unknown.is_empty().then_some(Written { spec, line, key_lines }),
        Err(error) => {
            problems.add(line, error.to_string());
            None
        }
    }
}

fn volume(mut section: Section<'_>, problems: &mut Problems) -> Option<RawVolume> {
    let name = section.located_name(problems);
    let layout = section.word("layout", problems, words::layout);
    let chunk_sectors = section.word("chunk", problems, words::chunk_sectors);
    let drives = section.list("drives", problems, |text| Ok(text.to_owned()));
    let queues = Queues::read(&mut section, problems);
    let serving = RawServing::read(&mut section, problems);
    let cache = cache::read(&mut section, problems);
    if drives.as_ref().is_none_or(|list| list.value.is_empty()) {
        section.missing("it has no drive; add drives = [\"...\"]", problems);
    }
    section.finish(problems);
    Some(RawVolume { name: name?, layout, chunk_sectors, drives: drives?, queues, serving, cache })
}

fn export(mut section: Section<'_>, base: &Path, problems: &mut Problems) -> Option<RawExport> {
    let volume = section.string("volume", problems);
    let before = problems.count();
    let nbd = section.list("nbd", problems, |text| words::address(text, base));
    if let Some(nbd) = nbd.as_ref().filter(|nbd| nbd.value.is_empty()) {
        // Not where what it holds is wrong, and was said to be.
        if problems.count() == before {
            problems.add(nbd.line, "nbd: the list is empty; add \"unix:PATH\"");
        }
    }
    let name = section.string("name", problems).map(|name| printable(name, problems));
    let read_only = section.flag("read-only", problems).unwrap_or(false);
    let description = section.string("description", problems).map(|text| text.value);
    if volume.is_none() {
        section.missing("it names no volume; add volume = \"...\"", problems);
    }
    let membership = RawMembership::read(&mut section, problems);
    let tls_allow = section.list("tls-allow", problems, |text| Ok(text.to_owned()));
    let tls_allow = tls_allow.map(|list| Located {
        value: list.value.into_iter().map(|one| one.value).collect(),
        line: list.line,
    });
    let for_machines = section.has("vhost-user-blk");
    let vhost = RawVhost::read(&mut section, base, problems);
    if nbd.is_none() && !for_machines {
        let text = "it has no listener; add nbd = \"unix:PATH\", or vhost-user-blk for machines";
        section.missing(text, problems);
    }
    section.finish(problems);
    if name == Some(None) {
        // Not the volume's name instead: that may be another export's.
        return None;
    }
    let name = name.flatten();
    Some(RawExport {
        volume: volume?,
        nbd,
        vhost,
        name,
        read_only,
        description,
        tls_allow,
        membership,
    })
}
