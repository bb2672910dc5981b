//! Second step: sections to a plan in which every name is resolved and nothing contradicts.
//!
//! Owns the rules between sections: unique names, known drives and controllers, one volume per
//! drive, one name per listener. Called by `config::load`; touches no file but what tells the
//! machine's NUMA nodes and no socket, so `--check` is this far and opening starts from here.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use millrace::{
    CHUNK_SECTORS, DriveConfig, ExportConfig, GuestConfig, Listen, ListenerConfig, ListenerTls,
    ServeConfig, TlsConfig, VolumeConfig, default_layout, default_serving,
};
use millrace_block::{Layout, ServingConfig};
use millrace_console::words::nearest;

use super::controller;
use super::document::Located;
use super::group::members;
use super::key_lines::KeyLines;
use super::problem::Problems;
use super::sections::{RawConfig, RawExport, RawVolume};
use super::server::DaemonConfig;
use super::words::LayoutWord;

/// Longest name of an export or description in bytes, by the NBD protocol.
const EXPORT_NAME_BYTES_MAX: usize = 4096;

/// What is to be served, and how.
#[derive(Debug)]
pub struct ServePlan {
    /// The file, for messages.
    pub file: String,
    /// What the library opens and serves.
    pub config: ServeConfig,
    /// Where parts of it stand in the file.
    pub lines: Lines,
    /// Addresses of NBD, as `ServeConfig::listeners` has them.
    pub listeners: Vec<ListenerPlan>,
    /// Settings of the daemon itself.
    pub daemon: DaemonConfig,
    /// What is allowed but perhaps not meant.
    pub warnings: Vec<String>,
}

/// Lines of a file at which parts of the configuration stand.
#[derive(Debug, Default)]
pub struct Lines {
    /// `[server]`.
    pub server: KeyLines,
    /// Drives, in the order in which they are opened.
    pub drives: Vec<DriveLines>,
    /// Volumes.
    pub volumes: Vec<usize>,
    /// Exports: who may use it by certificate, if that is said, else its volume.
    pub exports: Vec<usize>,
    /// For each export, its socket for virtual machines.
    pub guests: Vec<Option<usize>>,
}

/// Lines of a drive.
#[derive(Debug, Clone)]
pub struct DriveLines {
    /// Where it says what it is.
    pub line: usize,
    /// Where each of its driver's keys stands, if they have lines of their own.
    pub keys: Vec<(String, usize)>,
}

impl DriveLines {
    /// The line of a key; that of the drive if the key has none.
    pub fn of_key(&self, key: &str) -> usize {
        let line = self.keys.iter().find(|(known, _)| known == key);
        line.map_or(self.line, |(_, line)| *line)
    }
}

impl ServePlan {
    /// The drives, in the order in which they are opened.
    pub fn drives(&self) -> impl Iterator<Item = (&DriveConfig, &DriveLines)> {
        self.config.drives().zip(&self.lines.drives)
    }

    /// The volumes, with their lines.
    pub fn volumes(&self) -> impl Iterator<Item = (&VolumeConfig, usize)> {
        self.config.volumes.iter().zip(self.lines.volumes.iter().copied())
    }

    /// The sockets for virtual machines, with their exports and their lines.
    pub fn guests(&self) -> impl Iterator<Item = (&ExportConfig, &GuestConfig, usize)> {
        let exports = self.config.exports.iter().zip(&self.lines.guests);
        exports.filter_map(|(export, line)| Some((export, export.guests.as_ref()?, (*line)?)))
    }
}

/// An address to listen on.
#[derive(Debug)]
pub struct ListenerPlan {
    /// The address.
    pub address: Listen,
    /// Where it stands in the file first.
    pub line: usize,
    /// What is served there, by place in `ServeConfig::exports`.
    pub exports: Vec<usize>,
    /// Its TLS, if it has any.
    pub tls: Option<TlsConfig>,
    /// Where that stands.
    pub tls_line: usize,
    /// Where it stands who may connect, if it is a Unix socket.
    pub access_line: usize,
}

/// Checks how sections go together.
pub fn check(file: &str, raw: RawConfig, problems: &mut Problems) -> ServePlan {
    let mut checked = ServePlan {
        file: file.to_owned(),
        config: ServeConfig {
            controllers: controller::controllers(&raw, problems),
            groups: members::groups(&raw, problems),
            server: raw.server.clone(),
            ..ServeConfig::default()
        },
        lines: Lines { server: raw.server_lines.clone(), ..Lines::default() },
        listeners: Vec::new(),
        daemon: raw.daemon.clone(),
        warnings: Vec::new(),
    };
    unique("controller", raw.controllers.iter().map(|controller| &controller.name), problems);
    unique("group", raw.groups.iter().map(|group| &group.name), problems);
    unique("drive", raw.drives.iter().map(|drive| &drive.name), problems);
    unique("volume", raw.volumes.iter().map(|volume| &volume.name), problems);
    volumes(&raw, &mut checked, problems);
    let known: HashSet<&str> = raw.volumes.iter().map(|one| one.name.value.as_str()).collect();
    let mut places = ListenerPlaces::default();
    for export in &raw.exports {
        let wanted = &export.volume;
        if !known.contains(wanted.value.as_str()) && !raw.lost.contains(&wanted.value) {
            let names = checked.config.volumes.iter().map(|volume| volume.name.as_str());
            let like = nearest(&wanted.value, names);
            let text = format!("volume: there is no volume \"{}\"{like}", wanted.value);
            problems.add(wanted.line, text);
        }
        add_export(export, &mut checked, &mut places, problems);
    }
    add_listener_settings(&raw, &mut checked, problems);
    members::check_exports(&raw, problems);
    if !raw.has_exports {
        let text = "nothing is exported; add [[export]] with volume = \"...\" and nbd = \"...\"";
        problems.add(1, text);
    }
    controller::warn_of_idle(file, &raw, &mut checked.warnings);
    members::warn_of_idle((file, &raw), &checked.config.exports, &mut checked.warnings);
    members::warn_of_caches((file, &raw), &checked.config, &mut checked.warnings);
    members::warn_of_targets((file, &raw), &checked.config, &mut checked.warnings);
    warn_of_idle(&raw, &mut checked);
    checked
}

/// Reports names that stand twice.
fn unique<'a>(
    what: &str,
    names: impl Iterator<Item = &'a Located<String>>,
    problems: &mut Problems,
) {
    let mut first_lines: HashMap<&str, usize> = HashMap::new();
    for name in names {
        match first_lines.entry(&name.value) {
            Entry::Occupied(first) => {
                let text = format!(
                    "name = \"{}\": the {what} of line {} has this name; choose another",
                    name.value,
                    first.get()
                );
                problems.add(name.line, text);
            }
            Entry::Vacant(free) => {
                free.insert(name.line);
            }
        }
    }
}

/// Resolves each volume's drives; a drive belongs to one volume, once.
fn volumes(raw: &RawConfig, checked: &mut ServePlan, problems: &mut Problems) {
    let mut users: Vec<Option<&Located<String>>> = vec![None; raw.drives.len()];
    // The first drive of a name that stands twice.
    let places: HashMap<&str, usize> = raw
        .drives
        .iter()
        .enumerate()
        .rev()
        .map(|(at, one)| (one.name.value.as_str(), at))
        .collect();
    for volume in &raw.volumes {
        let mut drives = Vec::new();
        for wanted in &volume.drives.value {
            let Some(place) = places.get(wanted.value.as_str()).copied() else {
                if raw.lost.contains(&wanted.value) {
                    continue;
                }
                let names = raw.drives.iter().map(|drive| drive.name.value.as_str());
                let like = nearest(&wanted.value, names);
                let text = format!("drives: there is no drive \"{}\"{like}", wanted.value);
                problems.add(wanted.line, text);
                continue;
            };
            if let Some(user) = users[place] {
                let text = format!(
                    "drives: drive \"{}\" is in volume \"{}\" already; a drive is in one volume, once",
                    wanted.value, user.value
                );
                problems.add(wanted.line, text);
                continue;
            }
            users[place] = Some(&volume.name);
            let drive = &raw.drives[place];
            let (line, keys) = (drive.spec.line, drive.key_lines.clone());
            checked.lines.drives.push(DriveLines { line, keys });
            let mut options = drive.queues.over(volume.queues);
            options.cost = drive.cost.unwrap_or(options.cost);
            drives.push(DriveConfig {
                name: drive.name.value.clone(),
                spec: drive.spec.value.clone(),
                options,
            });
        }
        checked.lines.volumes.push(volume.name.line);
        checked.config.volumes.push(VolumeConfig {
            name: volume.name.value.clone(),
            layout: layout(volume, problems),
            serving: serving(volume, &drives, problems),
            cache: volume.cache,
            drives,
        });
    }
}

/// How a volume is served: what it says, the defaults where it says nothing, all of it checked.
fn serving(volume: &RawVolume, drives: &[DriveConfig], problems: &mut Problems) -> ServingConfig {
    let (raw, default) = (&volume.serving, ServingConfig::default());
    let value =
        |key: &Option<Located<u32>>, default: u32| key.as_ref().map_or(default, |k| k.value);
    let plug_high = value(&raw.plug_high, default.plug_high);
    let pressure_high = value(&raw.pressure_high, default.pressure_high);
    let stacks: Vec<_> = drives.iter().map(|drive| drive.options.stack).collect();
    let config = ServingConfig {
        serving: raw.mode.as_ref().map_or_else(|| default_serving(&stacks), |mode| mode.value),
        plug_high,
        plug_low: value(&raw.plug_low, default.plug_low.min(plug_high)),
        pressure_high,
        pressure_low: value(&raw.pressure_low, pressure_high - pressure_high / 8),
    };
    if let Err(text) = config.validate() {
        let keys = [
            ("plug-high", &raw.plug_high),
            ("plug-low", &raw.plug_low),
            ("pressure-high", &raw.pressure_high),
            ("pressure-low", &raw.pressure_low),
        ];
        let named = keys.iter().find(|(key, _)| text.starts_with(key));
        let line = named.and_then(|(_, at)| at.as_ref()).map_or(volume.name.line, |at| at.line);
        problems.add(line, text);
    }
    config
}

fn layout(volume: &RawVolume, problems: &mut Problems) -> Layout {
    let Some(word) = volume.layout.as_ref().map(|layout| layout.value) else {
        // A chunk says that it is to be a stripe.
        return match &volume.chunk_sectors {
            Some(chunk) => Layout::Stripe { chunk_sectors: chunk.value },
            None => default_layout(volume.drives.value.len()),
        };
    };
    match (word, &volume.chunk_sectors) {
        (LayoutWord::Linear, Some(chunk)) => {
            let text = "chunk: a linear volume has none; remove it, or use layout = \"stripe\"";
            problems.add(chunk.line, text);
            Layout::Linear
        }
        (LayoutWord::Linear, None) => Layout::Linear,
        (LayoutWord::Stripe, chunk) => {
            let chunk_sectors = chunk.as_ref().map_or(CHUNK_SECTORS, |chunk| chunk.value);
            Layout::Stripe { chunk_sectors }
        }
    }
}

/// Places of addresses and names among what is planned, so that finding one takes no search.
#[derive(Default)]
struct ListenerPlaces {
    /// Numbers of listeners in [`ServePlan::listeners`].
    listeners: HashMap<Listen, usize>,
    /// Export names of each listener, by its number.
    names: HashSet<(usize, String)>,
    /// Lines of sockets for virtual machines.
    guests: HashMap<PathBuf, usize>,
}

/// A socket is one export's, for one protocol.
fn check_socket(
    guests: &Located<GuestConfig>,
    (checked, places): (&ServePlan, &mut ListenerPlaces),
    problems: &mut Problems,
) {
    let path = guests.value.path();
    let nbd = places.listeners.get(&Listen::Unix(path.to_owned()));
    let nbd = nbd.map(|listener| checked.listeners[*listener].line);
    if let Some(line) = places.guests.get(path).copied().or(nbd) {
        let text = format!(
            "vhost-user-blk: the socket of line {line}; a virtual disk has a socket of its own"
        );
        problems.add(guests.line, text);
    }
    places.guests.entry(path.to_owned()).or_insert(guests.line);
}

fn add_export(
    raw: &RawExport,
    checked: &mut ServePlan,
    places: &mut ListenerPlaces,
    problems: &mut Problems,
) {
    let wanted = &raw.volume;
    let name = raw.name.as_ref().unwrap_or(wanted);
    let description = raw.description.clone().unwrap_or_default();
    for (key, text) in [("name", &name.value), ("description", &description)] {
        if text.len() > EXPORT_NAME_BYTES_MAX || text.contains('\0') {
            let most = EXPORT_NAME_BYTES_MAX;
            problems.add(name.line, format!("{key}: at most {most} bytes, and no NUL among them"));
        }
    }
    let name = name.clone();
    for listen in raw.nbd.iter().flat_map(|nbd| &nbd.value) {
        add_listener(listen, &name, (checked, places), problems);
    }
    let guests = raw.vhost.check(problems);
    raw.vhost.warn(&checked.file, &mut checked.warnings);
    if let Some(guests) = &guests {
        check_socket(guests, (checked, places), problems);
    }
    checked.lines.exports.push(raw.tls_allow.as_ref().map_or(wanted.line, |list| list.line));
    checked.lines.guests.push(guests.as_ref().map(|guests| guests.line));
    checked.config.exports.push(ExportConfig {
        name: name.value,
        description,
        volume: wanted.value.clone(),
        read_only: raw.read_only,
        group: raw.membership.group.as_ref().map(|group| group.value.clone()),
        group_each: raw.membership.is_each(),
        tls_allow: raw.tls_allow.as_ref().map(|list| list.value.clone()),
        nbd: raw.nbd.iter().flat_map(|nbd| &nbd.value).map(|at| at.value.clone()).collect(),
        guests: guests.map(|guests| guests.value),
    });
}

/// Adds the export that comes next to a listener; names differ on one listener.
fn add_listener(
    listen: &Located<Listen>,
    name: &Located<String>,
    (checked, places): (&mut ServePlan, &mut ListenerPlaces),
    problems: &mut Problems,
) {
    let export = checked.config.exports.len();
    let number = places.listeners.get(&listen.value).copied();
    let place = number.unwrap_or(checked.listeners.len());
    let is_new = places.names.insert((place, name.value.clone()));
    let Some(number) = number else {
        places.listeners.insert(listen.value.clone(), place);
        let (address, line) = (listen.value.clone(), listen.line);
        let exports = vec![export];
        let (tls, tls_line, access_line) = (None, line, line);
        checked.listeners.push(ListenerPlan { address, line, exports, tls, tls_line, access_line });
        return;
    };
    let listener = &mut checked.listeners[number];
    if !is_new {
        let text = format!(
            "nbd: an export named \"{}\" is on this listener already (line {}); \
             give this one another name = \"...\" or another listener",
            name.value, listener.line
        );
        problems.add(listen.line, text);
    }
    listener.exports.push(export);
}

/// Puts the settings of addresses where the exports' addresses find them.
fn add_listener_settings(raw: &RawConfig, checked: &mut ServePlan, problems: &mut Problems) {
    let mut settings = HashMap::new();
    let named: HashSet<Listen> = checked.listeners.iter().map(|one| one.address.clone()).collect();
    for (one, lines) in &raw.listeners {
        let (address, line) = (&one.listen, lines.at("address"));
        let text = address.to_string();
        let (first, first_lines) = *settings.entry(address).or_insert((one, lines));
        if !std::ptr::eq(first, one) {
            let first = first_lines.at("address");
            let text = format!("address: {text} has a [[listener]] at line {first} already");
            problems.add(line, text);
        }
        if !named.contains(address) {
            let names: Vec<String> =
                checked.listeners.iter().map(|one| one.address.to_string()).collect();
            let like = nearest(&text, names.iter().map(String::as_str));
            problems.add(line, format!("address: no export has nbd = \"{text}\"{like}"));
        }
        checked.config.listener_settings.push(one.clone());
    }
    for listener in &mut checked.listeners {
        let own = settings.get(&listener.address).copied();
        listener.tls = match own.map(|(own, _)| &own.tls) {
            Some(ListenerTls::Off) => None,
            Some(ListenerTls::Own(tls)) => Some(tls.clone()),
            Some(ListenerTls::OfServer) | None => checked.config.server.tls.clone(),
        };
        let at_server = raw.server_lines.has("tls").then(|| raw.server_lines.at("tls"));
        listener.tls_line = match own {
            Some((ListenerConfig { tls: ListenerTls::Own(_), .. }, lines)) => lines.at("tls"),
            _ => at_server.unwrap_or(listener.line),
        };
        let of_access = ["mode", "owner", "group", "allow-users", "allow-groups"];
        let written = own.and_then(|(_, lines)| lines.first(&of_access));
        listener.access_line = written.unwrap_or(listener.line);
    }
}

/// Warns of drives and volumes that nobody can reach.
fn warn_of_idle(raw: &RawConfig, checked: &mut ServePlan) {
    let file = &checked.file;
    let used: HashSet<&str> = checked.config.drives().map(|drive| drive.name.as_str()).collect();
    let exports = checked.config.exports.iter();
    let exported: HashSet<&str> = exports.map(|export| export.volume.as_str()).collect();
    for drive in &raw.drives {
        if !used.contains(drive.name.value.as_str()) {
            let (name, line) = (&drive.name.value, drive.name.line);
            let text = format!("{file}:{line}: drive \"{name}\" is in no volume; it is not opened");
            checked.warnings.push(text);
        }
    }
    for (volume, line) in checked.config.volumes.iter().zip(&checked.lines.volumes) {
        if !exported.contains(volume.name.as_str()) {
            let text = format!("{file}:{line}: volume \"{}\" is not exported", volume.name);
            checked.warnings.push(text);
        }
    }
}
