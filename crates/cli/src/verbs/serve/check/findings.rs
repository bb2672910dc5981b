//! Findings of `--check`: sizes of volumes, and everything that a start would refuse.
//!
//! Files, devices and sockets are only examined, never created or changed. A drive or socket that
//! is missing or in use is logged as an error, and the verdict is then that the configuration is
//! valid but cannot start on this host.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Instant;

use millrace::{DryOpened, DryRun, Listen, Opened, StartError, Volume};
use millrace_block::{Layout, SECTOR_SHIFT};
use millrace_console::{counted, visible};

use super::exposure;
use super::lost_file;
use super::probe;
use super::start_error;
use super::view_sockets::{client_sockets, control, metrics};
use super::warnings;
use crate::config::words::bytes_for_people;
use crate::config::{ConfigProblems, Position, ServePlan};
use crate::verbs::serve::live::dirty_marks;

#[derive(Debug, Clone)]
pub struct CheckFindings {
    pub starts: bool,
    pub volumes: String,
    deadline: Instant,
}

/// Examines the drives and sockets of a plan. Logs the warnings and notes that a start would log.
/// `made` is a directory that a start would create; files in it are not examined.
pub fn measure(
    plan: &ServePlan,
    made: Option<&Path>,
    metrics_flag: Option<SocketAddr>,
) -> CheckFindings {
    let mut found =
        CheckFindings { starts: true, volumes: String::new(), deadline: probe::deadline() };
    let dry_run = DryRun { until: found.deadline, new_folder: made.map(Path::to_path_buf) };
    match Opened::dry_run(&plan.config.to_open(), dry_run) {
        Ok(DryOpened { volumes, errors, notes, warnings, .. }) => {
            errors.iter().for_each(|error| found.refuse_start(plan, error));
            warnings::on_volumes(plan, &volumes, (&warnings, &notes));
            volumes.iter().for_each(|volume| found.volume(volume));
        }
        Err(error) => found.refuse_start(plan, &error),
    }
    if let Err(problems) = lost_file::check(plan) {
        found.refuse(&problems);
    }
    let checked = plan.config.validate().and_then(|()| plan.config.check_directories());
    match checked.and_then(|()| plan.config.load_listeners()) {
        Ok(listeners) => millrace_exports::nbd::log_expiries(&listeners),
        Err(error) => found.refuse_start(plan, &error),
    }
    found.state(plan);
    found.sockets(plan, made);
    let notes = unknown_sockets(plan).chain(exposure::control_note(plan));
    notes.for_each(|text| tracing::info!("{text}"));
    found.ports(plan, metrics_flag);
    found
}

fn is_in(file: &Path, made: Option<&Path>) -> bool {
    made.is_some_and(|folder| !folder.exists() && file.parent() == Some(folder))
}

/// Returns a note for each socket that systemd passes to the daemon. A check does not get these
/// sockets, so it cannot test them.
fn unknown_sockets(plan: &ServePlan) -> impl Iterator<Item = String> {
    plan.listeners.iter().filter_map(|listener| {
        let Listen::Inherited(name) = &listener.address else { return None };
        let text = format!(
            "nbd: systemd:{name}: whether a socket is handed over under this name is known only \
             when systemd starts the daemon; compare FileDescriptorName= of its socket unit"
        );
        Some(plan.problem(listener.line, text).to_string())
    })
}

impl CheckFindings {
    fn state(&mut self, plan: &ServePlan) {
        let Some(state) = &plan.daemon.state else { return };
        match dirty_marks::check(state) {
            Ok(lost) => {
                lost.iter().for_each(|one| tracing::warn!("{}", dirty_marks::warning(one)));
            }
            Err(error) => {
                let line = plan.lines.server.at("state");
                self.refuse(&plan.problem(line, format!("state: {error:#}")));
            }
        }
    }

    fn refuse(&mut self, problems: &ConfigProblems) {
        problems.log();
        self.starts = false;
    }

    /// Checks the Unix sockets that a start would create. By default, the path of the control
    /// socket is derived from a client socket. If that client socket cannot be created, the control
    /// socket is not checked, because the cause has been reported.
    fn sockets(&mut self, plan: &ServePlan, made: Option<&Path>) {
        let own = client_sockets(plan).filter(|one| one.is_own);
        let mut sockets: Vec<_> = own.map(|one| (one.key, one.path.to_owned(), one.line)).collect();
        let control = control(plan);
        let reachable =
            control.beside.is_none_or(|one| probe::socket(one.path, self.deadline).is_none());
        sockets
            .extend(control.path.filter(|_| reachable).map(|path| ("control", path, control.line)));
        for (key, path, line) in sockets.into_iter().filter(|(_, path, _)| !is_in(path, made)) {
            if let Some(why) = probe::socket(&path, self.deadline) {
                self.refuse(&plan.problem(line, format!("{key}: unix:{}: {why}", path.display())));
            }
        }
    }

    fn ports(&mut self, plan: &ServePlan, metrics_flag: Option<SocketAddr>) {
        let nbd = plan.listeners.iter().filter_map(|listener| match &listener.address {
            Listen::Unix(_) | Listen::Abstract(_) | Listen::Inherited(_) => None,
            Listen::Tcp(address) => Some((*address, Position::Line(listener.line), "nbd: tcp:")),
        });
        let wanted: Vec<_> = nbd.chain(metrics(plan, metrics_flag)).collect();
        for (address, place, key) in wanted {
            if let Some(why) = probe::tcp(address, self.deadline) {
                self.refuse(&plan.problem(place, format!("{key}{address}: {why}")));
            }
        }
    }

    fn refuse_start(&mut self, plan: &ServePlan, error: &StartError) {
        self.refuse(&start_error::to_problems(plan, error));
    }

    fn volume(&mut self, volume: &Volume) {
        let size_bytes = volume.capacity() << SECTOR_SHIFT;
        let layout = match volume.layout() {
            Layout::Linear => "linear",
            Layout::Stripe { .. } => "stripe",
        };
        let (name, size) = (visible(volume.name()), bytes_for_people(size_bytes));
        let _ = writeln!(self.volumes, "volume \"{name}\": {size} ({size_bytes} bytes), {layout}");
    }
}

pub fn not_valid(file: &str, problems: &ConfigProblems) -> String {
    problems.log();
    let name = if file.is_empty() { "command line" } else { file };
    format!("{}: not valid: {}\n", visible(name), counted(problems.count(), "error"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    #[test]
    fn unknown_socket_of_systemd_is_reported() {
        let text = "[[drive]]\nname = \"d\"\nspec = \"null:\"\n\
                    [[volume]]\nname = \"v\"\ndrives = [\"d\"]\n\
                    [[export]]\nvolume = \"v\"\nnbd = [\"unix:s\", \"systemd:disk\"]\n";
        let plan = config::load("m.toml", text, Path::new("")).unwrap();
        let notes: Vec<String> = unknown_sockets(&plan).collect();
        assert_eq!(notes.len(), 1);
        let said = "m.toml:9: nbd: systemd:disk: whether a socket is handed over under this name";
        assert!(notes[0].starts_with(said), "{notes:?}");
    }
}
