//! Second step: sections to a plan in which every name is resolved and nothing contradicts.
//!
//! Owns the rules between sections: unique names, known drives and controllers, one volume per
//! drive, one name per listener. Called by `config::load`; touches no file but what tells the
//! machine's NUMA nodes and no socket, so `--check` is this far and opening starts from here.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use millrace::{
    DriveConfig, ExportConfig, GuestConfig, Listen, ListenerConfig, ListenerTls, ServeConfig,
    TlsConfig, VolumeConfig,
};
use millrace_console::words::nearest;

use super::controller;
use super::document::Located;
use super::group::members;
use super::key_lines::KeyLines;
use super::problem::Problems;
use super::sections::{RawConfig, RawExport};
use super::server::DaemonConfig;

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
    pub drives: Vec<KeyLines>,
    /// Volumes.
    pub volumes: Vec<KeyLines>,
    /// Exports: who may use it by certificate, if that is said, else its volume.
    pub exports: Vec<usize>,
    /// For each export, its socket for virtual machines.
    pub guests: Vec<Option<usize>>,
}

impl ServePlan {
    /// The drives, in the order in which they are opened.
    pub fn drives(&self) -> impl Iterator<Item = (&DriveConfig, &KeyLines)> {
        self.config.drives().zip(&self.lines.drives)
    }

    /// The volumes, with their lines.
    pub fn volumes(&self) -> impl Iterator<Item = (&VolumeConfig, usize)> {
        self.config.volumes.iter().zip(self.lines.volumes.iter().map(|lines| lines.line))
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
    fn located(name: &Located<String>) -> (&str, usize) {
        (&name.value, name.line)
    }
    unique("controller", raw.controllers.iter().map(|one| located(&one.name)), problems);
    unique("group", raw.groups.iter().map(|one| located(&one.name)), problems);
    let drives = raw.drives.iter().map(|(one, lines)| (one.name.as_str(), lines.at("name")));
    unique("drive", drives, problems);
    let volume_names = raw.volumes.iter();
    let volume_names = volume_names.map(|(one, lines)| (one.config.name.as_str(), lines.line));
    unique("volume", volume_names, problems);
    volumes(&raw, &mut checked, problems);
    let known: HashSet<&str> =
        raw.volumes.iter().map(|(one, _)| one.config.name.as_str()).collect();
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
fn unique<'a>(what: &str, names: impl Iterator<Item = (&'a str, usize)>, problems: &mut Problems) {
    let mut first_lines: HashMap<&str, usize> = HashMap::new();
    for (name, line) in names {
        match first_lines.entry(name) {
            Entry::Occupied(first) => {
                let text = format!(
                    "name = \"{name}\": the {what} of line {} has this name; choose another",
                    first.get()
                );
                problems.add(line, text);
            }
            Entry::Vacant(free) => {
                free.insert(line);
            }
        }
    }
}

/// Resolves each volume's drives; a drive belongs to one volume, once.
fn volumes(raw: &RawConfig, checked: &mut ServePlan, problems: &mut Problems) {
    let mut users: Vec<Option<&str>> = vec![None; raw.drives.len()];
    // The first drive of a name that stands twice.
    let places: HashMap<&str, usize> =
        raw.drives.iter().enumerate().rev().map(|(at, (one, _))| (one.name.as_str(), at)).collect();
    for (volume, lines) in &raw.volumes {
        let mut config = volume.config.clone();
        for (number, wanted) in volume.drives.iter().enumerate() {
            let line = lines.at_item("drives", number);
            let Some(place) = places.get(wanted.as_str()).copied() else {
                if raw.lost.contains(wanted) {
                    continue;
                }
                let like = nearest(wanted, raw.drives.iter().map(|(drive, _)| drive.name.as_str()));
                problems.add(line, format!("drives: there is no drive \"{wanted}\"{like}"));
                continue;
            };
            if let Some(user) = users[place] {
                let text = format!(
                    "drives: drive \"{wanted}\" is in volume \"{user}\" already; a drive is in \
                     one volume, once"
                );
                problems.add(line, text);
                continue;
            }
            users[place] = Some(&volume.config.name);
            let (drive, lines) = &raw.drives[place];
            checked.lines.drives.push(lines.clone());
            config.drives.push(drive.clone());
        }
        checked.lines.volumes.push(lines.clone());
        checked.config.volumes.push(config);
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
    for (drive, lines) in raw.drives.iter().filter(|(one, _)| !used.contains(one.name.as_str())) {
        let (name, line) = (&drive.name, lines.at("name"));
        let text = format!("{file}:{line}: drive \"{name}\" is in no volume; it is not opened");
        checked.warnings.push(text);
    }
    for (volume, line) in checked.config.volumes.iter().zip(&checked.lines.volumes) {
        if !exported.contains(volume.name.as_str()) {
            let line = line.line;
            let text = format!("{file}:{line}: volume \"{}\" is not exported", volume.name);
            checked.warnings.push(text);
        }
    }
}
