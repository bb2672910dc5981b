//! First step: a TOML text to sections with values of the right type.
//!
//! Owns the list of keys of every section. Called by `config::load`; calls document.rs and words.rs
//! and the parser of drive specs. What each value means alone is checked here, how values go
//! together in plan.rs. Goes on after a mistake, so that all are reported at once.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use millrace::{
    CacheConfig, CostModel, DriveOptions, ExportDirectory, Listen, ServerConfig, SocketAccess,
    TlsConfig,
};
use millrace_block::{SchedulerKind, Serving, Spread};
use millrace_console::words::nearest;
use millrace_drives::{Spec, SpecError};
use millrace_reactor::Backend;

use super::cache;
use super::controller::{self, RawController};
use super::cost;
use super::document::{Located, Section, parse, printable};
use super::group::{self, RawGroup, RawMembership};
use super::line_index::LineIndex;
use super::listener::{self, RawListener};
use super::paths;
use super::problem::Problems;
use super::vhost::RawVhost;
use super::words::{self, ControlWord, LayoutWord, MILLISECOND_NS, SECOND_NS};

/// How long a request may take before it is looked after; 0: for ever.
const TIMEOUTS_NS: RangeInclusive<u64> = 0..=24 * 3600 * SECOND_NS;
/// How long a client may take to say what it wants.
const HANDSHAKES_NS: RangeInclusive<u64> = MILLISECOND_NS..=3600 * SECOND_NS;

/// How long a file of a directory stays open without clients.
const CLOSE_AFTER_NS: RangeInclusive<u64> = 0..=24 * 3600 * SECOND_NS;

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
    /// The volume by name; its line is that of the directory if it is one.
    pub volume: Located<String>,
    /// The directory whose files are exports.
    pub directory: Option<ExportDirectory>,
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

/// The `[server]` section.
#[derive(Debug, Clone, Default)]
pub struct RawServer {
    /// I/O threads.
    pub threads: Option<u16>,
    /// CPUs they are pinned to.
    pub cpus: Vec<u32>,
    /// What carries the I/O.
    pub backend: Option<Backend>,
    /// Most connections.
    pub connections_max: Option<u32>,
    /// Most memory for requests in flight, in bytes.
    pub memory_max_bytes: Option<u64>,
    /// Time for a handshake.
    pub handshake_timeout_ns: Option<u64>,
    /// How long an idle thread polls before it sleeps.
    pub spin_ns: Option<u64>,
    /// The control socket, if it is said where, or that there is none.
    pub control: Option<Located<ControlWord>>,
    /// What the file of the control socket is like.
    pub control_access: Option<Located<SocketAccess>>,
    /// The group whose members may change anything over the control socket.
    pub control_admin_group: Option<Located<u32>>,
    /// Where metrics are served.
    pub metrics: Option<Located<SocketAddr>>,
    /// Folder of marks of dirty caches.
    pub state: Option<Located<PathBuf>>,
    /// TLS of all addresses of NBD.
    pub tls: Option<Located<TlsConfig>>,
}

impl RawServer {
    /// These settings, and the defaults where they say nothing.
    pub fn over_defaults(&self) -> ServerConfig {
        let default = ServerConfig::default();
        ServerConfig {
            threads: self.threads.unwrap_or(default.threads),
            cpus: self.cpus.clone(),
            backend: self.backend.unwrap_or(default.backend),
            connections_max: self.connections_max.unwrap_or(default.connections_max),
            handshake_timeout_ns: self.handshake_timeout_ns.unwrap_or(default.handshake_timeout_ns),
            memory_max_bytes: self.memory_max_bytes.unwrap_or(default.memory_max_bytes),
            spin_ns: self.spin_ns,
            tls: self.tls.as_ref().map(|tls| tls.value.clone()),
        }
    }
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
    pub listeners: Vec<RawListener>,
    /// The `[server]` section.
    pub server: RawServer,
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
    let lines = LineIndex::new(text);
    let mut root = Section::root(&lines, &table);
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
    RawConfig {
        controllers: whole(controllers, &mut lost, |s| controller::read(s, problems)),
        groups: whole(groups, &mut lost, |s| group::read(s, problems)),
        drives: whole(drives, &mut lost, |s| drive(s, base, problems)),
        volumes: whole(volumes, &mut lost, |s| volume(s, problems)),
        exports: exports.into_iter().filter_map(|s| export(s, base, problems)).collect(),
        listeners: listeners
            .into_iter()
            .filter_map(|s| RawListener::read(s, base, problems))
            .collect(),
        server: server.map(|s| server_section(s, base, problems)).unwrap_or_default(),
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
    let name = section.valid_name(problems);
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
    let key_lines = pairs.iter().map(|(key, value)| (key.clone(), value.line)).collect();
    let (known, unknown): (Vec<_>, Vec<_>) =
        pairs.into_iter().partition(|(key, _)| driver_keys.contains(&key.as_str()));
    for (key, value) in &unknown {
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
        problems.add(value.line, text);
    }
    if let Some((key, value)) = known.iter().find(|(key, _)| key.starts_with("controller-")) {
        let text = format!(
            "{key} is of a modelled controller, which only a spec can name: write \
             spec = \"{}:controller=NAME,{key}={},...\"; the key controller of [[drive]] names a \
             [[controller]]",
            driver.value, value.value
        );
        problems.add(value.line, text);
        return None;
    }
    let pairs = known.into_iter().map(|(key, value)| (key, value.value));
    match Spec::from_pairs(&driver.value, pairs) {
        Ok(spec) => unknown.is_empty().then_some(Written { spec, line, key_lines }),
        Err(error) => {
            problems.add(line, error.to_string());
            None
        }
    }
}

fn volume(mut section: Section<'_>, problems: &mut Problems) -> Option<RawVolume> {
    let name = section.valid_name(problems);
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
    let directory = section.word("directory", problems, |text| words::folder(text, base));
    let before = problems.count();
    let nbd = section.list("nbd", problems, |text| words::address(text, base));
    if let Some(nbd) = nbd.as_ref().filter(|nbd| nbd.value.is_empty()) {
        // Not where what it holds is wrong, and was said to be.
        if problems.count() == before {
            problems.add(nbd.line, "nbd: the list is empty; add \"unix:PATH\"");
        }
    }
    let name = section.string("name", problems).map(|name| printable(name, problems));
    let read_only = section.flag("read-only", problems).unwrap_or(directory.is_some());
    let description = section.string("description", problems).map(|text| text.value);
    let files = section.table("files", problems);
    let (volume, directory) = match (volume, directory) {
        (Some(_), Some(directory)) => {
            let text = "directory: an export has either a volume or a directory; remove one";
            problems.add(directory.line, text);
            return None;
        }
        (None, Some(at)) => {
            let (value, line) = (String::new(), at.line);
            (Some(Located { value, line }), Some(directory_of(at.value, files, problems)))
        }
        (volume, None) => {
            if let Some(files) = files {
                problems.add(files.line, "files: only with directory = \"...\"; add that");
            }
            (volume, None)
        }
    };
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
        directory,
        nbd,
        vhost,
        name,
        read_only,
        description,
        tls_allow,
        membership,
    })
}

/// A directory and the settings of its files.
fn directory_of(
    path: PathBuf,
    files: Option<Section<'_>>,
    problems: &mut Problems,
) -> ExportDirectory {
    let mut directory = ExportDirectory::new(path);
    let Some(mut files) = files else { return directory };
    directory.options = Queues::read(&mut files, problems).over(Queues::default());
    if let Some(cost) = cost::read(&mut files, problems) {
        directory.options.cost = cost;
    }
    directory.cache = cache::read(&mut files, problems);
    let close_after = |text: &str| words::duration(text, &CLOSE_AFTER_NS);
    if let Some(time) = files.word("close-after", problems, close_after) {
        directory.close_after = Duration::from_nanos(time.value);
    }
    for key in ["direct", "aio", "lock"] {
        let text = files.word(key, problems, |text| Ok(text.to_owned()));
        directory.file_keys.extend(text.map(|text| (key.to_owned(), text.value)));
    }
    files.finish(problems);
    directory
}

fn server_section(mut section: Section<'_>, base: &Path, problems: &mut Problems) -> RawServer {
    let threads = |text: &str| words::number(text, 1, 1024).map(|n| n as u16);
    let connections = |text: &str| words::number(text, 1, 1 << 20);
    let cpus =
        section.list("cpus", problems, words::cpu).map(|list| list.value).unwrap_or_default();
    let server = RawServer {
        threads: section.word("threads", problems, threads).map(|t| t.value),
        cpus: cpus.into_iter().map(|cpu| cpu.value).collect(),
        backend: section.word("backend", problems, words::setting).map(|b| b.value),
        connections_max: section.word("connections-max", problems, connections).map(|c| c.value),
        memory_max_bytes: section.word("memory-max", problems, words::memory_max).map(|m| m.value),
        handshake_timeout_ns: section
            .word("handshake-timeout", problems, |text| words::duration(text, &HANDSHAKES_NS))
            .map(|t| t.value),
        spin_ns: section.word("spin", problems, words::spin).and_then(|t| t.value),
        control: section.word("control", problems, |text| words::control(text, base)),
        control_access: listener::file_access(&mut section, problems),
        control_admin_group: section.word("control-admin-group", problems, listener::group),
        metrics: section.word("metrics", problems, words::metrics),
        state: section.word("state", problems, |text| words::folder(text, base)),
        tls: listener::tls(&mut section, base, problems),
    };
    section.finish(problems);
    server
}
