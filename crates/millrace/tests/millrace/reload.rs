//! `Server::reload` against a plain model: any sequence of configurations, good and bad.
//!
//! The model is the configuration that was taken last. After each step the server must have its
//! volumes, exports, sockets and groups and no others, and files that it has closed must be free.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use millrace::{
    CacheConfig, DriveConfig, ExportConfig, GroupConfig, GuestConfig, Layout, Listen, ReloadError,
    ReloadOptions, SchedulerKind, ServeConfig, Server, ServerConfig, Serving, ServingConfig,
    SocketAccess, Threads, VhostSocket, VolumeConfig,
};
use proptest::prelude::*;
use rustix::fs::{FlockOperation, flock};

/// A step: the parts of its configuration, and its fault.
#[derive(Debug, Clone)]
struct Step {
    volumes: Vec<bool>,
    /// Weight of the group of the second volume's export; `None` without a group.
    group: Option<u32>,
    second_listener: bool,
    fair: bool,
    fault: Fault,
    dry_run: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// A drive whose file is not there.
    Missing,
    /// A socket in a directory that is not there.
    Socket,
    /// A changed number of I/O threads.
    Threads,
    /// A socket of virtual machines that cannot be bound.
    Guests,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let fault = prop_oneof![
        6 => Just(Fault::None),
        1 => Just(Fault::Missing),
        1 => Just(Fault::Socket),
        1 => Just(Fault::Threads),
        1 => Just(Fault::Guests),
    ];
    let step = (
        prop::collection::vec(any::<bool>(), VOLUMES.len()),
        prop::option::of(1..500_u32),
        any::<bool>(),
        any::<bool>(),
        fault,
        prop::bool::weighted(0.2),
    );
    let step = step.prop_map(|(volumes, group, second_listener, fair, fault, dry_run)| Step {
        volumes,
        group,
        second_listener,
        fair,
        fault,
        dry_run,
    });
    prop::collection::vec(step, 1..10)
}

const VOLUMES: [&str; 5] = ["plain", "grouped", "stripe", "cached", "guests"];

fn volume(dir: &Path, name: &str, fair: bool) -> VolumeConfig {
    let scheduler = if fair { SchedulerKind::Fair } else { SchedulerKind::None };
    let drive = |at: u32| {
        let path = dir.join(format!("{name}{at}.img"));
        let spec = format!("file:path={},size=1m", path.display()).parse().unwrap();
        let mut drive = DriveConfig::new(format!("{name}{at}"), spec);
        drive.options.scheduler = scheduler;
        drive
    };
    let count = if name == "stripe" { 3 } else { 1 };
    let mut volume = VolumeConfig::new(name, (0..count).map(drive).collect());
    if name == "stripe" {
        volume.layout = Layout::Stripe { chunk_sectors: 64 };
        volume.serving = ServingConfig::of(Serving::PerDrive);
    }
    if name == "cached" {
        volume.cache = Some(CacheConfig { size_bytes: 4 << 20, ..CacheConfig::default() });
    }
    volume
}

fn export(dir: &Path, name: &str, step: &Step) -> ExportConfig {
    let (name_owned, volume) = (name.to_owned(), name.to_owned());
    let mut export = ExportConfig { name: name_owned, volume, ..ExportConfig::default() };
    if name == "guests" {
        let socket = VhostSocket::Listen(dir.join("vm"), SocketAccess::default());
        let guests = GuestConfig::new(socket);
        export.guests = Some(GuestConfig { queues: 2, threads: Threads::Count(2), ..guests });
        return export;
    }
    export.nbd = vec![Listen::Unix(dir.join("s"))];
    if step.second_listener {
        export.nbd.push(Listen::Unix(dir.join("t")));
    }
    if name == "grouped" {
        export.group = step.group.map(|_| "gold".to_owned());
    }
    export
}

/// A configuration; the first volume is always there.
fn config(dir: &Path, step: &Step) -> ServeConfig {
    let is_there = |at: usize| at == 0 || step.volumes[at];
    let names: Vec<&str> =
        (0..VOLUMES.len()).filter(|at| is_there(*at)).map(|at| VOLUMES[at]).collect();
    let group = step.group.map(|weight| GroupConfig { weight, ..GroupConfig::new("gold") });
    let mut config = ServeConfig {
        volumes: names.iter().map(|name| volume(dir, name, step.fair)).collect(),
        exports: names.iter().map(|name| export(dir, name, step)).collect(),
        groups: group.into_iter().collect(),
        server: ServerConfig { threads: 2, ..ServerConfig::default() },
        ..ServeConfig::default()
    };
    let mut add = |name: &str, path: &Path, export: ExportConfig| {
        let spec = format!("file:path={}", path.display()).parse().unwrap();
        config.volumes.push(VolumeConfig::new(name, vec![DriveConfig::new(name, spec)]));
        let (name, volume) = (name.to_owned(), name.to_owned());
        config.exports.push(ExportConfig { name, volume, ..export });
    };
    let over_nbd = |path: &str| ExportConfig {
        nbd: vec![Listen::Unix(dir.join(path))],
        ..ExportConfig::default()
    };
    match step.fault {
        Fault::None => {}
        Fault::Missing => add("bad", &dir.join("missing.img"), over_nbd("s")),
        Fault::Socket => add("bad", &dir.join("there.img"), over_nbd("no/s")),
        Fault::Threads => config.server.threads = 3,
        Fault::Guests => {
            let socket = VhostSocket::Listen(dir.join("no/vm"), SocketAccess::default());
            let guests = Some(GuestConfig { queues: 1, ..GuestConfig::new(socket) });
            add("bad", &dir.join("there.img"), ExportConfig { guests, ..ExportConfig::default() });
        }
    }
    config
}

/// Checks that the server's settings, sockets and locked files are exactly those of `config`.
fn is_as(server: &Server, config: &ServeConfig, dir: &Path) {
    let volumes: Vec<&str> = server.opened().volumes.iter().map(|one| one.name()).collect();
    assert!(volumes.iter().copied().eq(config.volumes.iter().map(|one| one.name.as_str())));
    let served = server.config();
    assert_eq!((&served.volumes, &served.exports), (&config.volumes, &config.exports));
    let groups: Vec<_> = served.groups.into_iter().filter(|one| one.name != "default").collect();
    assert_eq!(groups, config.groups);
    let sockets: BTreeSet<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| ["s", "t", "vm"].contains(&name.as_str()))
        .collect();
    let mut expected = BTreeSet::from(["s".to_owned()]);
    let listens = config.exports.iter().flat_map(|export| &export.nbd);
    let has_second = listens.clone().any(|listen| *listen == Listen::Unix(dir.join("t")));
    expected.extend(has_second.then(|| "t".to_owned()));
    let has_guests = config.exports.iter().any(|export| export.guests.is_some());
    expected.extend(has_guests.then(|| "vm".to_owned()));
    assert_eq!(sockets, expected);
    for name in ["stripe0", "cached0", "grouped0", "guests0", "there"] {
        let Ok(file) = File::open(dir.join(format!("{name}.img"))) else { continue };
        let is_open = config.drives().any(|drive| drive.name == name);
        let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(locked.is_err(), is_open, "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(64)
    })]

    #[test]
    fn each_configuration_is_taken_whole_or_not_at_all(steps in steps()) {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        File::create(dir.join("there.img")).unwrap().set_len(1 << 20).unwrap();
        let first = Step {
            volumes: vec![false; VOLUMES.len()],
            group: None,
            second_listener: false,
            fair: false,
            fault: Fault::None,
            dry_run: false,
        };
        let mut served = config(dir, &first);
        let mut server = Server::start(&served, Arc::new(|_| ())).unwrap();
        for step in steps {
            let new = config(dir, &step);
            let options = ReloadOptions { dry_run: step.dry_run, ..ReloadOptions::default() };
            match server.reload(&new, &options) {
                Ok(reloaded) => {
                    // A dry run binds no socket of virtual machines.
                    let is_wrong = step.fault != Fault::None && !step.dry_run;
                    prop_assert!(!is_wrong, "{step:?}");
                    prop_assert_eq!(reloaded.difference.is_empty(), server_is(&served, &new));
                    if !step.dry_run {
                        served = new;
                    }
                }
                Err(ReloadError::Refused(_)) => prop_assert_eq!(step.fault, Fault::Threads),
                Err(ReloadError::Start(error)) => {
                prop_assert!(step.fault != Fault::None, "{error:?}");
            }
                Err(error) => panic!("{error}"),
            }
            is_as(&server, &served, dir);
        }
        let report = server.stop(Duration::from_secs(5));
        prop_assert!(report.is_clean(), "{:?}", report.failures);
    }
}

fn server_is(served: &ServeConfig, new: &ServeConfig) -> bool {
    served == new
}
