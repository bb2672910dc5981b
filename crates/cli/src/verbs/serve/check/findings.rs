//! Findings of `--check`, which opens nothing for use: sizes, and all that a start would refuse.
//!
//! Called by `serve` for start/report.rs; asks probe.rs. Files, devices and sockets are looked at,
//! never made or changed. What is not there, or in use, is a warning, since a configuration may be
//! checked elsewhere than where it will serve, but the answer is then that it cannot start here.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;

use millrace::{DriveConfig, DriveSpace, Listen, Part, Places, Space, StartError, VhostSocket};
use millrace_block::Layout;
use millrace_console::visible;
use millrace_drives::{DataPlace, measure as measure_drive};

use super::exposure;
use super::lost_file;
use super::probe::{self, Patience};
use super::start_error;
use super::view_sockets::{control, metrics};
use super::warnings;
use crate::config::words::bytes_for_people;
use crate::config::{Place, Problems, ServePlan};
use crate::verbs::serve::live::dirty_marks;

/// Findings of a check, for people.
#[derive(Debug, Clone)]
pub struct Findings {
    /// True if every drive and socket can be had, and every volume is large enough.
    pub starts: bool,
    /// A line for each volume whose drives are there.
    pub volumes: String,
    patience: Patience,
}

/// Looks at the drives and sockets of a plan; logs warnings and notes as starting would. `made` is
/// a folder that starting makes, of which nothing can be said.
pub fn measure(
    plan: &ServePlan,
    made: Option<&Path>,
    metrics_flag: Option<SocketAddr>,
) -> Findings {
    let mut found = Findings { starts: true, volumes: String::new(), patience: Patience::new() };
    let (mut places, mut measured) = (Places::default(), Vec::new());
    for (number, (drive, lines)) in plan.drives().enumerate() {
        let (space, data) = found.drive(drive, &place(plan, lines.line), made).unzip();
        if let Err(source) = places.take(&drive.name, data.flatten()) {
            let error = StartError { part: Part::Drive(number), source: Box::new(source) };
            found.refuse(&start_error::to_problems(plan, &error).to_string());
        }
        measured.push(space);
    }
    let mut spaces = measured.into_iter();
    for (volume, line) in plan.volumes() {
        // All of them in any case: the next volume's follow.
        let drives: Vec<_> = spaces.by_ref().take(volume.drives.len()).collect();
        if let Some(drives) = drives.into_iter().collect::<Option<Vec<DriveSpace>>>() {
            let place = place(plan, line);
            let block = drives.iter().map(|drive| drive.block_bytes).max();
            warnings::on_block(plan, &volume.name, block.unwrap_or(0));
            found.volume(&place, &volume.name, &Space { layout: volume.layout, drives });
        }
    }
    if let Err(problems) = lost_file::check(plan) {
        found.refuse(&problems.to_string());
    }
    let checked = plan.config.validate().and_then(|()| plan.config.check_directories());
    match checked.and_then(|()| plan.config.load_listeners()) {
        Ok(listeners) => millrace_exports::nbd::log_expiries(&listeners),
        Err(error) => found.refuse(&start_error::to_problems(plan, &error).to_string()),
    }
    found.state(plan);
    found.sockets(plan, made);
    let notes = unknown_sockets(plan).chain(exposure::control_note(plan));
    notes.for_each(|text| tracing::info!("{text}"));
    found.ports(plan, metrics_flag);
    found
}

/// True for a file in a folder that is not there yet.
fn is_in(file: &Path, made: Option<&Path>) -> bool {
    made.is_some_and(|folder| !folder.exists() && file.parent() == Some(folder))
}

/// Notes on the sockets that the service manager is to hand over, which it does to a daemon that it
/// starts, and never to a check.
fn unknown_sockets(plan: &ServePlan) -> impl Iterator<Item = String> {
    plan.listeners.iter().filter_map(|listener| {
        let Listen::Inherited(name) = &listener.address else { return None };
        let mut note = Problems::new(&plan.file);
        note.add(
            listener.line,
            format!(
                "nbd: systemd:{name}: whether a socket is handed over under this name is known only \
                 when systemd starts the daemon; compare FileDescriptorName= of its socket unit"
            ),
        );
        Some(note.to_string())
    })
}

/// A line of the configuration, if there are lines.
fn place(plan: &ServePlan, line: usize) -> String {
    match plan.file.as_str() {
        "" => String::new(),
        file => format!("{}:{line}: ", visible(file)),
    }
}

impl Findings {
    fn drive(
        &mut self,
        drive: &DriveConfig,
        place: &str,
        made: Option<&Path>,
    ) -> Option<(DriveSpace, Option<DataPlace>)> {
        let name = drive.name.clone();
        let measured = match measure_drive(&drive.spec) {
            Ok(measured) => measured,
            Err(error) => {
                self.refuse(&format!("{place}drive {name}: {error}"));
                return None;
            }
        };
        let is_made = drive.spec.file().is_some_and(|file| is_in(&file, made));
        if let Some(why) = probe::drive(&drive.spec, self.patience).filter(|_| !is_made) {
            self.refuse(&format!("{place}drive {name}: {why}"));
        }
        let of_drive = |text: &String| format!("drive {name}: {text}");
        let warnings = measured.warnings.iter().map(of_drive);
        warnings.for_each(|text| tracing::warn!("{text}"));
        measured.notes.iter().map(of_drive).for_each(|text| tracing::info!("{text}"));
        let (size_bytes, block_bytes) = (measured.size_bytes, measured.block_bytes);
        Some((DriveSpace { name, size_bytes, block_bytes }, measured.place))
    }

    /// The folder of marks of dirty caches.
    fn state(&mut self, plan: &ServePlan) {
        let Some(state) = &plan.daemon.state else { return };
        match dirty_marks::check(state) {
            Ok(lost) => {
                lost.iter().for_each(|one| tracing::warn!("{}", dirty_marks::warning(one)));
            }
            Err(error) => {
                let mut problem = Problems::new(&plan.file);
                problem.add(plan.lines.server.at("state"), format!("state: {error:#}"));
                self.refuse(&problem.to_string());
            }
        }
    }

    /// Warns of what a start would refuse.
    fn refuse(&mut self, text: &str) {
        tracing::warn!("{text}");
        self.starts = false;
    }

    /// The sockets that a start would listen on: those of clients, and the control socket, unless
    /// the one beside which it is cannot be either.
    fn sockets(&mut self, plan: &ServePlan, made: Option<&Path>) {
        let nbd = plan.listeners.iter().filter_map(|listener| match &listener.address {
            Listen::Unix(path) => Some(("nbd", path.clone(), listener.line)),
            Listen::Abstract(_) | Listen::Tcp(_) | Listen::Inherited(_) => None,
        });
        let vhost = plan.guests().filter_map(|(_, guests, line)| match &guests.socket {
            VhostSocket::Listen(path, _) => Some(("vhost-user-blk", path.clone(), line)),
            VhostSocket::Connect(_) => None,
        });
        let mut sockets: Vec<_> = nbd.chain(vhost).collect();
        let control = control(plan);
        let reachable =
            control.beside.is_none_or(|(_, path)| probe::socket(path, self.patience).is_none());
        sockets
            .extend(control.path.filter(|_| reachable).map(|path| ("control", path, control.line)));
        for (key, path, line) in sockets.into_iter().filter(|(_, path, _)| !is_in(path, made)) {
            if let Some(why) = probe::socket(&path, self.patience) {
                let mut problem = Problems::new(&plan.file);
                problem.add(line, format!("{key}: unix:{}: {why}", path.display()));
                self.refuse(&problem.to_string());
            }
        }
    }

    /// The TCP ports that a start would listen on: those of clients, and that of metrics.
    fn ports(&mut self, plan: &ServePlan, metrics_flag: Option<SocketAddr>) {
        let nbd = plan.listeners.iter().filter_map(|listener| match &listener.address {
            Listen::Unix(_) | Listen::Abstract(_) | Listen::Inherited(_) => None,
            Listen::Tcp(address) => Some((*address, Place::Line(listener.line), "nbd: tcp:")),
        });
        let wanted: Vec<_> = nbd.chain(metrics(plan, metrics_flag)).collect();
        for (address, place, key) in wanted {
            if let Some(why) = probe::tcp(address, self.patience) {
                let mut problem = Problems::new(&plan.file);
                problem.add_at(place, format!("{key}{address}: {why}"));
                self.refuse(&problem.to_string());
            }
        }
    }

    fn volume(&mut self, place: &str, name: &str, space: &Space) {
        let size_bytes = space.used_bytes();
        let layout = match space.layout {
            Layout::Linear => "linear",
            Layout::Stripe { .. } => "stripe",
        };
        if size_bytes == 0 {
            self.refuse(&format!("{place}volume {name}: {}", too_small(space, layout)));
            return;
        }
        if let Some(note) = space.note(name) {
            tracing::info!("{note}");
        }
        let size = bytes_for_people(size_bytes);
        let name = visible(name);
        let _ = writeln!(self.volumes, "volume \"{name}\": {size} ({size_bytes} bytes), {layout}");
    }
}

/// Message about a volume of drives of these sizes that has no block at all.
fn too_small(space: &Space, layout: &str) -> String {
    let least_bytes = match space.layout {
        Layout::Linear => 0,
        Layout::Stripe { chunk_sectors } => u64::from(chunk_sectors) << 9,
    };
    match space.drives.iter().find(|drive| drive.size_bytes < least_bytes) {
        Some(DriveSpace { name, size_bytes, .. }) => format!(
            "drive {} has {size_bytes} bytes, less than one chunk of {least_bytes} bytes; make the \
             chunk smaller or the drive larger",
            visible(name)
        ),
        None => format!("its drives are too small for a {layout}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    #[test]
    fn of_a_socket_that_systemd_is_to_hand_over_it_is_said_that_nobody_knows() {
        let text = "[[drive]]\nname = \"d\"\nspec = \"null:\"\n\
                    [[volume]]\nname = \"v\"\ndrives = [\"d\"]\n\
                    [[export]]\nvolume = \"v\"\nnbd = [\"unix:s\", \"systemd:disk\"]\n";
        let plan = config::load("m.toml", text, Path::new("")).unwrap();
        let notes: Vec<String> = unknown_sockets(&plan).collect();
        assert_eq!(notes.len(), 1);
        let said = "m.toml:9: nbd: systemd:disk: whether a socket is handed over under this name";
        assert!(notes[0].starts_with(said), "{notes:?}");
    }

    #[test]
    fn a_drive_that_has_no_chunk_is_named_with_both_sizes() {
        let drive = |name: &str, size_bytes| DriveSpace {
            name: name.to_owned(),
            size_bytes,
            block_bytes: 512,
        };
        let drives = vec![drive("a", 1 << 20), drive("b", 65_024)];
        let layout = Layout::Stripe { chunk_sectors: 128 };
        let said = too_small(&Space { layout, drives }, "stripe");
        let expected = "drive b has 65024 bytes, less than one chunk of 65536 bytes; make the \
                        chunk smaller or the drive larger";
        assert_eq!(said, expected);
    }
}
