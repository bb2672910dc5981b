//! Switches a daemon to another configuration: `millrace ctl reload`, and SIGHUP.
//!
//! This module reads the file, refuses changes that need a restart, lets `millrace::Server::reload`
//! apply the others, and replaces the lists of volumes and exports that reports are made of. One
//! reload runs at a time, on the signal thread or on a thread that answers one control request.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use millrace::{
    ConfigDifference, ExportConfig, Listen, ReloadError, ReloadOptions, ReloadRefusal, ServeConfig,
    Server, ServerConfig, Spec, VhostSocket, VolumeConfig, Words,
};
use millrace_console::say;
use millrace_drives::file_place;
use millrace_machine::lock_unpoisoned;
use millrace_reactor::Backend;

use super::check::{lost_file, start_error, view_sockets, warnings};
use super::live::daemon::{LiveDaemon, Reloader};
use super::live::dirty_marks::mark_caches;
use super::start::source::Source;

use crate::config::{self, DaemonConfig, RUNNING, ServePlan, edit, group};
use crate::views::metrics_listener::BoundAddress;
use crate::views::reload_report::{
    ReloadChange, ReloadReport, RunningConfiguration, UnsavedChanges,
};
use crate::views::requests::RemovalOptions;
use crate::views::{AddSection, Refusal, Reload, RemoveSection};

#[derive(Debug)]
pub struct ConfigReloader {
    running: Mutex<RunningText>,
    /// Locked while a thread changes the configuration.
    change: Mutex<()>,
    /// Base directory of relative paths in the configuration that the daemon was started with.
    base: PathBuf,
    flags: StartFlags,
    fixed: DaemonConfig,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct StartFlags {
    pub threads: Option<u16>,
    pub backend: Option<Backend>,
    pub metrics: Option<SocketAddr>,
}

#[derive(Debug, Clone)]
struct RunningText {
    file: Option<PathBuf>,
    as_read: Option<String>,
    base: PathBuf,
    text: String,
}

impl StartFlags {
    /// Replaces settings of the configuration by those of the command line.
    pub fn apply(self, server: &mut ServerConfig) {
        server.threads = self.threads.unwrap_or(server.threads);
        server.backend = self.backend.unwrap_or(server.backend);
    }
}

/// Returns the keys of `[server]` that differ between two configurations and cannot change without
/// a restart.
fn differing(one: &DaemonConfig, other: &DaemonConfig) -> Vec<&'static str> {
    let keys = [
        ("control", one.control != other.control),
        (
            "control-mode, control-owner or control-group",
            one.control_access != other.control_access,
        ),
        ("control-admin-group", one.control_admin_group != other.control_admin_group),
        ("state", one.state != other.state),
    ];
    keys.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
}

impl ConfigReloader {
    pub fn new(source: &Source, plan: &ServePlan, flags: StartFlags) -> ConfigReloader {
        let running = RunningText::of(source);
        let (running, base) = (Mutex::new(running), source.base.clone());
        let (change, fixed) = (Mutex::default(), plan.daemon.clone());
        ConfigReloader { running, change, base, flags, fixed }
    }

    fn running(&self) -> MutexGuard<'_, RunningText> {
        lock_unpoisoned(&self.running)
    }

    /// Reads a configuration file, whose relative paths start from the file's directory.
    fn source(&self, file: Option<&Path>) -> Result<Source, Refusal> {
        if let Some(file) = file.filter(|file| !file.is_absolute()) {
            let text = format!("file: {} is not an absolute path", file.display());
            return Err(Refusal::new("bad-request", text));
        }
        let of_start = self.running().file.clone();
        let Some(file) = file.or(of_start.as_deref()) else {
            let text = "the daemon was started without a configuration file; name one: millrace ctl \
                        reload FILE";
            return Err(Refusal::new("bad-request", text));
        };
        let source = Source::file(file);
        let mut source =
            source.map_err(|error| Refusal::new("bad-config", format!("{error:#}")))?;
        source.base = self.as_at_start(&source.base);
        Ok(source)
    }

    fn plan(&self, name: &str, text: &str, base: &Path) -> Result<ServePlan, Refusal> {
        let plan = config::load(name, text, base);
        let mut plan = plan.map_err(|problems| Refusal::new("bad-config", problems.to_string()))?;
        self.flags.apply(&mut plan.config.server);
        Ok(plan)
    }

    /// Returns `base` relative to the working directory, if the daemon was started with a relative
    /// directory and `base` lies below the working directory. Otherwise returns an absolute path.
    fn as_at_start(&self, base: &Path) -> PathBuf {
        let here = std::env::current_dir().unwrap_or_default();
        match (self.base.is_relative(), base.strip_prefix(&here)) {
            (true, Ok(below)) => below.to_owned(),
            (true, Err(_)) => base.to_owned(),
            (false, _) => std::path::absolute(base).unwrap_or_else(|_| base.to_owned()),
        }
    }

    /// Makes the daemon serve another configuration. Changes nothing if the result is an error.
    fn take(
        &self,
        daemon: &LiveDaemon,
        (plan, text): (&mut ServePlan, RunningText),
        asked: RemovalOptions,
    ) -> Result<ReloadReport, Refusal> {
        let fixed = differing(&self.fixed, &plan.daemon);
        if !fixed.is_empty() {
            let text = format!(
                "{}: [server] {} cannot change while the daemon runs; restart the daemon to \
                 change it",
                plan.file,
                fixed.join(", ")
            );
            return Err(Refusal::new("refused", text));
        }
        let bad = |text: String| Refusal::new("refused", text);
        lost_file::check(plan).map_err(|problems| bad(problems.to_string()))?;
        let mut server = daemon.server();
        let Some(server) = server.as_mut() else { return Err(bad("the daemon stops".to_owned())) };
        let served = server.config();
        adopt_spelling(&mut plan.config, &served);
        let plan = &*plan;
        let difference = ConfigDifference::new(&served, &server.with_open_files(&plan.config));
        if !difference.removed_volumes.is_empty() && daemon.recording.is_active() {
            let text =
                "a trace is being recorded, which keeps drives open: end the recording first";
            return Err(Refusal::new("busy", text));
        }
        let metrics = self.prepare_metrics(plan, daemon)?;
        let marks = &daemon.marks;
        let options = ReloadOptions {
            dry_run: asked.dry_run,
            disconnect: asked.disconnect,
            force: asked.force,
            before_serving: &|more| match asked.dry_run {
                true => Ok(()),
                false => mark_caches(more, marks),
            },
        };
        let reloaded = server.reload(&plan.config, &options).map_err(|error| {
            let caches = &daemon.lists().caches;
            marks.remove(|name| !caches.iter().any(|cache| cache.below().name() == name));
            bad(match error {
                ReloadError::Start(error) => start_error::to_problems(plan, &error).to_string(),
                ReloadError::Refused(why) => {
                    let lines = why.iter().map(|why| format!("{}: {}", plan.file, advised(why)));
                    lines.collect::<Vec<_>>().join("\n")
                }
                other => other.to_string(),
            })
        })?;
        let metrics_change = metrics_change(daemon.metrics.address(), self.metrics_of(plan));
        let report = ReloadReport {
            file: plan.file.clone(),
            dry_run: asked.dry_run,
            changes: changes(&reloaded.difference).into_iter().chain(metrics_change).collect(),
            warnings: plan.warnings.iter().cloned().chain(reloaded.warnings).collect(),
        };
        if !asked.dry_run {
            daemon.follow(server);
            marks.remove(|name| server.configured().volume_number(name).is_none());
            if let Some(bound) = metrics {
                if let Some(bound) = &bound {
                    say(&view_sockets::describe_metrics(bound.real()));
                }
                daemon.metrics.replace(bound);
            }
            warnings::on_plan(plan, self.flags.metrics);
            // `on_plan` has logged the warnings of the plan, so only the warnings after them are
            // logged here.
            let warnings = &report.warnings[plan.warnings.len()..];
            log(&report, warnings, &reloaded.notes);
            *self.running() = text;
        }
        Ok(report)
    }

    fn metrics_of(&self, plan: &ServePlan) -> Option<SocketAddr> {
        view_sockets::metrics(plan, self.flags.metrics).map(|(address, ..)| address)
    }

    /// Binds the metrics address of the new configuration, `plan`. Returns `None` if the address is
    /// the one in use, and `Some(None)` if the new configuration has no metrics page.
    fn prepare_metrics(
        &self,
        plan: &ServePlan,
        daemon: &LiveDaemon,
    ) -> Result<Option<Option<BoundAddress>>, Refusal> {
        if self.metrics_of(plan) == daemon.metrics.address() {
            return Ok(None);
        }
        let port = |address: Option<SocketAddr>| address.map(|address| address.port());
        let is_same_port = port(self.metrics_of(plan)) == port(daemon.metrics.address());
        let bound = view_sockets::bind_metrics(plan, self.flags.metrics);
        bound.map(Some).map_err(|problems| {
            let hint = match is_same_port {
                true => ", or reload without metrics first, because metrics use this port now",
                false => "",
            };
            Refusal::new("refused", format!("{problems}{hint}"))
        })
    }

    /// Returns the differences between the served configuration and the file that it was read from.
    /// Addresses and paths of sockets are left out, because only admins may see them.
    fn changes_since_file(&self, daemon: &LiveDaemon) -> Result<Vec<ReloadChange>, Refusal> {
        let source = self.source(None)?;
        let mut plan = self.plan(&source.name, &source.text, &source.base)?;
        let server = daemon.try_server();
        let Some(server) = server.as_ref().and_then(|server| server.as_ref()) else {
            return Err(Refusal::new(
                "busy",
                "the daemon is loading another configuration, or stopping",
            ));
        };
        let served = server.config();
        adopt_spelling(&mut plan.config, &served);
        let in_file = server.with_open_files(&plan.config);
        let mut changes = changes(&ConfigDifference::new(&in_file, &served));
        let is_open_file =
            |name: &str| served.exports.iter().any(|one| one.name == name && one.is_open_file());
        changes.retain(|one| one.section != "listener" && !is_open_file(&one.name));
        let exports = changes.iter_mut().filter(|change| change.section == "export");
        exports.for_each(|export| export.detail.clear());
        changes.extend(metrics_change(self.metrics_of(&plan), daemon.metrics.address()));
        Ok(changes)
    }

    fn take_text(
        &self,
        daemon: &LiveDaemon,
        edit: impl FnOnce(&str) -> anyhow::Result<String>,
        asked: RemovalOptions,
    ) -> Result<ReloadReport, Refusal> {
        let _change = self.change.lock();
        let mut text = self.with_settings(daemon)?;
        text.text =
            edit(&text.text).map_err(|error| Refusal::new("bad-request", format!("{error:#}")))?;
        let mut plan = self.plan(RUNNING, &text.text, &text.base)?;
        self.take(daemon, (&mut plan, text), asked)
    }

    fn with_settings(&self, daemon: &LiveDaemon) -> Result<RunningText, Refusal> {
        let mut running = self.running().clone();
        let plan = self.plan(RUNNING, &running.text, &running.base)?;
        let Some(now) = daemon.server().as_ref().map(Server::config) else { return Ok(running) };
        let broken = |error: anyhow::Error| Refusal::new("internal", format!("{error:#}"));
        let text = &mut running.text;
        for (before, now) in ConfigDifference::new(&plan.config, &now).changed_groups {
            let change = |key| {
                let (before, word) = (group::word(&before, key), group::word(&now, key));
                let word_of = |word: String| (word != "none").then_some(word);
                (before != word).then(|| (key, word_of(word)))
            };
            let keys: Vec<_> = group::keys().filter_map(change).collect();
            *text = edit::change(text, "group", &now.name, &keys).map_err(broken)?;
        }
        for (before, now) in plan.config.drives().zip(now.drives()) {
            if before.options.scheduler != now.options.scheduler {
                let word = now.options.scheduler.word().to_owned();
                let keys = [("scheduler", Some(word))];
                *text = edit::change(text, "drive", &now.name, &keys).map_err(broken)?;
            }
        }
        Ok(running)
    }
}

impl RunningText {
    fn of(source: &Source) -> RunningText {
        let (file, base, text) = (source.file.clone(), source.base.clone(), source.text.clone());
        RunningText { as_read: file.is_some().then(|| text.clone()), file, base, text }
    }
}

impl Reloader for ConfigReloader {
    fn reload(&self, daemon: &LiveDaemon, asked: &Reload) -> Result<ReloadReport, Refusal> {
        let _change = self.change.lock();
        let source = self.source(asked.file.as_deref())?;
        let mut plan = self.plan(&source.name, &source.text, &source.base)?;
        self.take(daemon, (&mut plan, RunningText::of(&source)), asked.options)
    }

    fn add(&self, daemon: &LiveDaemon, asked: &AddSection) -> Result<ReloadReport, Refusal> {
        let AddSection { section, name, settings, dry_run } = asked;
        let add = |text: &str| edit::add(text, section, name, settings);
        self.take_text(daemon, add, RemovalOptions { dry_run: *dry_run, ..Default::default() })
    }

    fn remove(&self, daemon: &LiveDaemon, asked: &RemoveSection) -> Result<ReloadReport, Refusal> {
        let RemoveSection { section, name, options } = asked;
        let server = daemon.server();
        let user = server.as_ref().and_then(|one| user_of(section, name, one.configured()));
        drop(server);
        if let Some(user) = user {
            let text = format!("{section} {name} is used by {user}; remove {user} first");
            return Err(Refusal::new("refused", text));
        }
        self.take_text(daemon, |text| edit::remove(text, section, name), *options)
    }

    fn unsaved(&self, daemon: &LiveDaemon) -> UnsavedChanges {
        let file = self.running().file.as_ref().map(|file| file.display().to_string());
        let (changes, problem) = match (self.changes_since_file(daemon), &file) {
            (_, None) => {
                let text =
                    "the daemon has no configuration file; `millrace ctl save FILE` writes one";
                (Vec::new(), text.to_owned())
            }
            (Ok(changes), _) => (changes, String::new()),
            (Err(refusal), _) => (Vec::new(), refusal.message.replace('\n', "; ")),
        };
        UnsavedChanges { file, changes, problem }
    }

    fn configuration(&self, daemon: &LiveDaemon) -> Result<RunningConfiguration, Refusal> {
        let RunningText { file, as_read, base, text } = self.with_settings(daemon)?;
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let here = std::env::current_dir().unwrap_or_default();
        Ok(RunningConfiguration {
            file: file.as_deref().map(absolute),
            as_read,
            folder: here.join(base),
            text,
        })
    }
}

fn user_of(kind: &str, name: &str, config: &ServeConfig) -> Option<String> {
    let export = |uses: &dyn Fn(&ExportConfig) -> bool| {
        let found = config.exports.iter().find(|export| uses(export));
        found.map(|export| format!("export {}", export.name))
    };
    match kind {
        "drive" => {
            let uses = |volume: &&VolumeConfig| volume.drives.iter().any(|one| one.name == name);
            config.volumes.iter().find(uses).map(|volume| format!("volume {}", volume.name))
        }
        "volume" => export(&|export| export.volume == name),
        "group" => export(&|export| export.group.as_deref() == Some(name)).or_else(|| {
            let child = config.groups.iter().find(|one| one.parent.as_deref() == Some(name));
            child.map(|child| format!("group {}", child.name))
        }),
        _ => None,
    }
}

/// Replaces paths in `config` by the paths in `served` that lead to the same file, such as
/// `./a.img` by `a.img`. So a comparison of `config` with `served` ignores different spellings of a
/// path. Applies to Unix sockets, and to drives with the same name and the same other keys.
fn adopt_spelling(config: &mut ServeConfig, served: &ServeConfig) {
    let known: HashMap<&str, &Spec> =
        served.drives().map(|drive| (drive.name.as_str(), &drive.spec)).collect();
    for drive in config.volumes.iter_mut().flat_map(|volume| &mut volume.drives) {
        let Some(spec) = known.get(drive.name.as_str()) else { continue };
        let other_keys = |spec: &Spec| {
            let mut spec = spec.clone();
            spec.options.retain(|(key, _)| key != "path");
            spec
        };
        let file = |spec| Some(file_place(spec).ok()??.identity);
        let same_keys = drive.spec != **spec && other_keys(&drive.spec) == other_keys(spec);
        if same_keys && file(spec).is_some() && file(&drive.spec) == file(spec) {
            drive.spec = (*spec).clone();
        }
    }
    // Results of `place_of_socket` are cached, because thousands of exports may share a socket.
    let mut places = HashMap::new();
    let mut place_of = |path: &Path| {
        places.entry(path.to_owned()).or_insert_with(|| place_of_socket(path)).clone()
    };
    let mut served = served.clone();
    let sockets: HashMap<PathBuf, PathBuf> =
        socket_paths(&mut served).map(|path| (place_of(path), path.clone())).collect();
    for path in socket_paths(config) {
        if let Some(known) = sockets.get(&place_of(path)) {
            path.clone_from(known);
        }
    }
}

fn socket_paths(config: &mut ServeConfig) -> impl Iterator<Item = &mut PathBuf> {
    fn unix(listen: &mut Listen) -> Option<&mut PathBuf> {
        if let Listen::Unix(path) = listen { Some(path) } else { None }
    }
    let of_exports = config.exports.iter_mut().flat_map(|export| {
        let guests = export.guests.as_mut().map(|guests| match &mut guests.socket {
            VhostSocket::Listen(path, _) | VhostSocket::Connect(path) => path,
        });
        export.nbd.iter_mut().filter_map(unix).chain(guests)
    });
    let listeners = config.listener_settings.iter_mut().map(|one| &mut one.listen);
    of_exports.chain(listeners.filter_map(unix))
}

fn place_of_socket(path: &Path) -> PathBuf {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = std::fs::canonicalize(folder.unwrap_or(Path::new(".")));
    folder.map_or_else(
        |_| path.to_owned(),
        |folder| folder.join(path.file_name().unwrap_or_default()),
    )
}

fn log(report: &ReloadReport, warnings: &[String], notes: &[String]) {
    let file = &report.file;
    if report.changes.is_empty() {
        tracing::info!("{file}: loaded again; nothing has changed");
    }
    for change in &report.changes {
        tracing::info!("{file}: {change}");
    }
    warnings.iter().for_each(|text| tracing::warn!("{text}"));
    notes.iter().for_each(|text| tracing::info!("{text}"));
}

/// Returns a message that explains to the user why a reload was refused. If possible, the message
/// also contains the user's next step: a command, a flag or a restart.
fn advised(refusal: &ReloadRefusal) -> String {
    match refusal {
        ReloadRefusal::ExportInUse { .. } => {
            format!(
                "{refusal}; disconnect one client with `millrace ctl disconnect N`, or all clients \
                 with --disconnect"
            )
        }
        ReloadRefusal::GroupInUse { client, .. } => {
            format!("{refusal}: millrace ctl disconnect {client}")
        }
        ReloadRefusal::Unwritten { .. } => {
            format!("{refusal}; repair the drive, or discard the unwritten data with --force")
        }
        ReloadRefusal::ServerSetting(key) => {
            format!("[server] {key} cannot change while the daemon runs: restart it")
        }
        other => other.to_string(),
    }
}

fn changes(difference: &ConfigDifference) -> Vec<ReloadChange> {
    let ConfigDifference { added_volumes, removed_volumes, .. } = difference;
    let mut lines = Vec::new();
    let mut add = |change: char, section: &str, names: Vec<String>| {
        lines.extend(names.into_iter().map(|name| ReloadChange::new(change, section, name)));
    };
    let drives = |volumes: &[VolumeConfig]| -> Vec<String> {
        volumes.iter().flat_map(|volume| names(&volume.drives, |one| &one.name)).collect()
    };
    let listens = |all: &[Listen]| all.iter().map(ToString::to_string).collect();
    add('+', "controller", difference.added_controllers.clone());
    add('+', "drive", drives(added_volumes));
    add('+', "volume", names(added_volumes, |one| &one.name));
    add('+', "group", names(&difference.added_groups, |one| &one.name));
    add('+', "listener", listens(&difference.added_listeners));
    add('+', "export", names(&difference.added_exports, |one| &one.name));
    add('-', "export", names(&difference.removed_exports, |one| &one.name));
    add('-', "listener", listens(&difference.removed_listeners));
    add('-', "group", names(&difference.removed_groups, |one| &one.name));
    add('-', "volume", names(removed_volumes, |one| &one.name));
    add('-', "drive", drives(removed_volumes));
    add('-', "controller", difference.removed_controllers.clone());
    for listen in &difference.changed_listeners {
        let detail = "TLS for its next clients".to_owned();
        lines.push(changed("listener", &listen.to_string(), detail));
    }
    for (before, now) in &difference.changed_exports {
        lines.push(changed("export", &now.name, export_changes(before, now).join(", ")));
    }
    for one in &difference.schedulers {
        let detail = format!("scheduler {} -> {}", one.before.word(), one.now.word());
        lines.push(changed("drive", &one.drive, detail));
    }
    for (before, now) in &difference.changed_groups {
        let words = group::keys().map(|key| (key, group::word(before, key), group::word(now, key)));
        let words = words.filter(|(_, before, now)| before != now);
        let words = words.map(|(key, before, now)| format!("{key} {before} -> {now}"));
        lines.push(changed("group", &now.name, words.collect::<Vec<_>>().join(", ")));
    }
    lines
}

fn changed(section: &str, name: &str, detail: String) -> ReloadChange {
    ReloadChange { detail, ..ReloadChange::new('~', section, name) }
}

fn metrics_change(before: Option<SocketAddr>, now: Option<SocketAddr>) -> Option<ReloadChange> {
    let word = |address: Option<SocketAddr>| {
        address.map_or_else(|| "none".to_owned(), |address| address.to_string())
    };
    let detail = format!("{} -> {}", word(before), word(now));
    (before != now).then(|| changed("server", "metrics", detail))
}

fn export_changes(before: &ExportConfig, now: &ExportConfig) -> Vec<String> {
    let listens = |export: &ExportConfig| -> String {
        let all: Vec<String> = export.nbd.iter().map(ToString::to_string).collect();
        if all.is_empty() { "none".to_owned() } else { all.join(" ") }
    };
    let guests = |export: &ExportConfig| {
        let path = export.guests.as_ref().map(|guests| guests.path().display().to_string());
        path.map_or_else(|| "none".to_owned(), |path| format!("unix:{path}"))
    };
    let words = |name: &str, before: String, now: String| {
        (before != now).then(|| format!("{name} {before} -> {now}"))
    };
    let group = |export: &ExportConfig| export.group_name().to_owned();
    let changes = [
        words("nbd", listens(before), listens(now)),
        words("vhost-user-blk", guests(before), guests(now)),
        words("group", group(before), group(now)).map(|text| text + " for its next clients"),
        (before.group_each != now.group_each).then(|| "group-each".to_owned()),
        (before.description != now.description).then(|| "description".to_owned()),
        (before.tls_allow != now.tls_allow).then(|| "tls-allow".to_owned()),
    ];
    changes.into_iter().flatten().collect()
}

fn names<T>(all: &[T], name: fn(&T) -> &String) -> Vec<String> {
    all.iter().map(|one| name(one).clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_the_commands_and_flags_that_help() {
        let (export, group, volume) = ("e".to_owned(), "g".to_owned(), "v".to_owned());
        let clients = "client 7 (1.2.3.4)".to_owned();
        for (refusal, text) in [
            (
                ReloadRefusal::ExportInUse { export: export.clone(), clients },
                "export e is in use by client 7 (1.2.3.4); disconnect one client with `millrace \
                 ctl disconnect N`, or all clients with --disconnect",
            ),
            (
                ReloadRefusal::GroupInUse { group, client: 7, export },
                "group g is in use by client 7 of export e; disconnect that client first: \
                 millrace ctl disconnect 7",
            ),
            (
                ReloadRefusal::Unwritten { volume, bytes: 4096, drives: "d0".to_owned() },
                "volume v: 4096 bytes are in its cache only, because drive d0 fails to write them; repair \
                 the drive, or discard the unwritten data with --force",
            ),
            (
                ReloadRefusal::ServerSetting("cpus"),
                "[server] cpus cannot change while the daemon runs: restart it",
            ),
            (ReloadRefusal::Other("volume v: no".to_owned()), "volume v: no"),
        ] {
            assert_eq!(advised(&refusal), text);
        }
    }
}
