//! Opens the drives of a plan and makes its volumes; the first failure undoes it all.
//!
//! Called by `serve` between checking and binding. Errors point at the line of the drive or of its
//! key. One file used by two drives is found by device and inode, before the second would run into
//! the lock of the first.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use millrace::{
    CpuId, DriveOptions, Host, Machine, OpenedDrive, Pinning, SetupError, WorkerCpus, open_drive,
    unused_space, worker_cpus,
};
use millrace_block::{Disk, Volume};
use millrace_drives::SpecError;
use millrace_machine::{Cpu, Native, Topology};

use super::created::{Created, identity};
use super::looks;
use super::members;
use super::servers::threads_of;
use crate::config::{Checked, Drive, Place, Problems, paths};

/// How long a file may be locked before a person hears of it.
const PATIENCE: Duration = Duration::from_millis(500);

/// Everything that is open.
pub struct Opened {
    /// In the plan's order.
    pub volumes: Vec<Arc<Volume<Native>>>,
    /// Whether the drives' workers are to be pinned.
    pub workers: Pinning,
    /// Remarks for a person.
    pub notes: Vec<String>,
    /// What is hardly meant.
    pub warnings: Vec<String>,
}

/// Opens all drives of a plan and makes its volumes.
///
/// # Errors
/// The first thing that cannot be opened, with its line.
pub fn open(plan: &Checked, threads: u16, created: &mut Created) -> Result<Opened, Problems> {
    members::check(plan)?;
    let host = Host::new(0, &plan.controllers);
    let mut host = host.map_err(|error| {
        let mut problems = Problems::new(&plan.file);
        problems.add_at(Place::File, error.to_string());
        problems
    })?;
    let (mut disks, mut notes, mut warnings) = (Vec::new(), Vec::new(), Vec::new());
    let mut identities = Vec::new();
    let (workers, pinning) = workers(plan, &host);
    for (minor, (drive, worker)) in (0..).zip(plan.drives.iter().zip(workers)) {
        let file = paths::file_of(&drive.spec);
        let before = file.as_deref().and_then(identity);
        if let Some(before) = before {
            refuse_twice(plan, drive, &identities, before)?;
        }
        let options = DriveOptions { worker, minor, ..drive.options };
        let volume = plan.volumes.iter().position(|one| one.drives.contains(&(minor as usize)));
        host.io_threads = threads_of(plan, volume.unwrap_or(0), threads);
        let mut opened = open_one(plan, drive, &options, &host)?;
        if let Some(after) = opened.identity {
            refuse_twice(plan, drive, &identities, after)?;
            if let (Some(file), None) = (file, before) {
                created.file(file, after);
            }
            identities.push((after, drive));
        }
        notes.append(&mut opened.notes);
        warnings.append(&mut opened.warnings);
        disks.push(opened.disk);
    }
    let mut volumes = Vec::new();
    for index in 0..plan.volumes.len() {
        volumes.push(volume(plan, index, &disks)?);
    }
    notes.extend(volumes.iter().filter_map(|volume| unused_space(volume)));
    Ok(Opened { volumes, workers: pinning, notes, warnings })
}

/// The CPUs that I/O threads are pinned to: those of the server, and those of exports to guests.
fn pinned_cpus(plan: &Checked) -> Vec<CpuId> {
    let guests = plan.exports.iter().filter_map(|export| export.vhost.as_ref());
    let guests = guests.flat_map(|vhost| vhost.pinned_cpus());
    plan.server.cpus.iter().copied().chain(guests).map(CpuId).collect()
}

/// Whether the drives' workers are pinned: only where the configuration pins I/O threads and leaves
/// the workers a CPU that it pins none to. Elsewhere the kernel finds a CPU that is free.
fn pinning(topology: &Topology, busy: &[CpuId]) -> Pinning {
    let is_free = |cpu: &Cpu| !busy.contains(&cpu.id);
    match !busy.is_empty() && topology.cpus().iter().any(is_free) {
        true => Pinning::Pinned,
        false => Pinning::Free,
    }
}

/// The CPU of each drive's worker, in the plan's order; none where a volume has no use for one. No
/// more threads than CPUs less one, past those that I/O threads are pinned to.
fn workers(plan: &Checked, host: &Host) -> (Vec<Option<CpuId>>, Pinning) {
    let busy = pinned_cpus(plan);
    let topology = Native::topology();
    let mut cpus = WorkerCpus::new(&worker_cpus(&topology, &busy), &topology);
    let mut workers = vec![None; plan.drives.len()];
    for volume in plan.volumes.iter().filter(|volume| volume.needs_workers()) {
        for drive in &volume.drives {
            workers[*drive] = cpus.next(host.node_of(&plan.drives[*drive].spec));
        }
    }
    (workers, pinning(&topology, &busy))
}

fn open_one(
    plan: &Checked,
    drive: &Drive,
    options: &DriveOptions,
    host: &Host,
) -> Result<OpenedDrive, Problems> {
    let opened =
        saying_what_it_waits_for(drive, || open_drive(&drive.name, &drive.spec, options, host));
    opened.map_err(|error| {
        let text = error.to_string();
        // What the drive itself says may name a key, too, as in `size=4g`.
        let named = |key: &str| text.contains(&format!(" {key}="));
        let named = drive.key_lines.iter().map(|(key, _)| key.as_str()).find(|key| named(key));
        let key = match &error {
            SetupError::Drive { source: SpecError::InvalidValue { key, .. }, .. } => key.as_str(),
            SetupError::Drive { source: SpecError::Open(_), .. } => named.unwrap_or("path"),
            _ => "",
        };
        let line = drive.key_lines.iter().find(|(known, _)| known == key);
        one_problem(plan, line.map_or(drive.line, |(_, line)| *line), &text)
    })
}

/// Opens a drive; if another process has its file and does not let it go soon, says so meanwhile.
fn saying_what_it_waits_for<T>(drive: &Drive, open: impl FnOnce() -> T) -> T {
    let Some((path, holder)) = looks::locker(&drive.spec) else { return open() };
    let (opened, waiting) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            if waiting.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                let (name, path) = (&drive.name, path.display());
                tracing::info!("drive {name}: waiting some seconds for {holder} to release {path}");
            }
        });
        let result = open();
        drop(opened);
        result
    })
}

fn refuse_twice(
    plan: &Checked,
    drive: &Drive,
    opened: &[((u64, u64), &Drive)],
    identity: (u64, u64),
) -> Result<(), Problems> {
    let Some((_, other)) = opened.iter().find(|(known, _)| *known == identity) else {
        return Ok(());
    };
    let files = (paths::file_of(&drive.spec), paths::file_of(&other.spec));
    let text = match (plan.file.as_str(), files) {
        // Whoever has named files has named no drives.
        ("", (Some(file), Some(same))) if file == same => {
            format!("{}: this file is named twice; name it once", file.display())
        }
        ("", (Some(file), Some(same))) => {
            let (file, same) = (file.display(), same.display());
            format!("{file}: this is the same file as {same}; name one of them")
        }
        _ => format!(
            "drive {}: its file is that of drive {} (line {}) too; give each drive a file of its \
             own",
            drive.name, other.name, other.line
        ),
    };
    let line = drive.key_lines.iter().find(|(key, _)| key == "path");
    Err(one_problem(plan, line.map_or(drive.line, |(_, line)| *line), &text))
}

fn volume(
    plan: &Checked,
    index: usize,
    disks: &[Arc<Disk<Native>>],
) -> Result<Arc<Volume<Native>>, Problems> {
    let volume = &plan.volumes[index];
    let members = volume.drives.iter().map(|drive| Arc::clone(&disks[*drive])).collect();
    Volume::with_serving(volume.name.as_str(), volume.layout, members, volume.serving)
        .map_err(|error| one_problem(plan, volume.line, &error.to_string()))
}

fn one_problem(plan: &Checked, line: usize, text: &str) -> Problems {
    let mut problems = Problems::new(&plan.file);
    problems.add(line, text);
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_pinned_only_beside_threads_that_are_and_where_a_cpu_is_left() {
        let topology = Topology::uniform(1, 2);
        let ids = |cpus: &[u32]| cpus.iter().copied().map(CpuId).collect::<Vec<_>>();
        let place = |busy: &[u32]| {
            let busy = ids(busy);
            (pinning(&topology, &busy), worker_cpus(&topology, &busy))
        };
        assert_eq!(place(&[]), (Pinning::Free, ids(&[1])));
        assert_eq!(place(&[1]), (Pinning::Pinned, ids(&[0])), "CPU 0 is free");
        assert_eq!(place(&[0, 0]), (Pinning::Pinned, ids(&[1])));
        assert_eq!(place(&[0, 1]).0, Pinning::Free, "no CPU is");
    }
}
