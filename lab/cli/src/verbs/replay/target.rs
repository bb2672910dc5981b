//! Targets of `--to` and `--map`: drives, NBD exports, vhost-user-blk servers.
//!
//! This module groups targets into lanes, each of which is a server, or a volume of one or more
//! drives. The millrace library opens the volumes. clap parses the targets. Called by replay.rs.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use millrace::{Layout, Places, Spec, VolumeOptions, worker_cpus};
use millrace_block::{Serving, ServingConfig};
use millrace_experiments::DiskContents;
use millrace_experiments::replay::{ReplayVolume, Routes, SimulatedVolume};
use millrace_machine::{Machine, Native};
use millrace_nbd::client::NbdUri;

use super::args::{ReplayArgs, StripeArgs};
use crate::verbs::bench::connect::Server;

const SERVERS: [&str; 5] = ["nbd", "nbd+unix", "nbds", "nbds+unix", "vhost-user"];
const CHUNK: u64 = 65_536;

#[derive(Debug, Clone, PartialEq)]
pub enum TargetSpec {
    Drive(Spec),
    /// A server, with its address as the user wrote it.
    Server(Server, String),
}

impl FromStr for TargetSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<TargetSpec, String> {
        let scheme = text.split(':').next().unwrap_or(text);
        if let Some(uri) = text.strip_prefix("nbd:uri=") {
            return Err(format!("replay connects to the server itself: write only the URI, {uri}"));
        }
        if text.contains(':') && SERVERS.contains(&scheme) {
            return Ok(TargetSpec::Server(text.parse()?, text.to_owned()));
        }
        // `file:` followed by a path alone stands for `file:path=(...)`.
        let bare =
            text.strip_prefix("file:").filter(|path| !path.is_empty() && !path.contains('='));
        let spec = bare.map_or_else(|| text.to_owned(), |path| format!("file:path=({path})"));
        spec.parse().map(TargetSpec::Drive).map_err(|error: millrace_drives::SpecError| {
            format!("{error}; a target is a drive, nbd://..., nbd+unix:///... or vhost-user:SOCKET")
        })
    }
}

/// Mapping of a device to a target: `DEV=TARGET`.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceMapping {
    pub device: String,
    pub target: TargetSpec,
}

impl FromStr for DeviceMapping {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceMapping, String> {
        // The last `=` before the first colon separates the device's name from the target. The name
        // may contain `=`. The target may also contain `=`, but only after its first colon.
        let colon = text.find(':').unwrap_or(text.len());
        match text[..colon].rfind('=') {
            Some(at) if at > 0 => {
                Ok(DeviceMapping { device: text[..at].to_owned(), target: text[at + 1..].parse()? })
            }
            _ => Err("write DEV=TARGET, such as 8,0=ram:size=1g".to_owned()),
        }
    }
}

#[derive(Debug)]
pub enum Lanes {
    Drives(Vec<SimulatedVolume>),
    Nbd(Vec<(String, NbdUri)>),
    Vhost(Vec<(String, PathBuf)>),
}

impl Lanes {
    pub fn len(&self) -> usize {
        match self {
            Lanes::Drives(volumes) => volumes.len(),
            Lanes::Nbd(uris) => uris.len(),
            Lanes::Vhost(paths) => paths.len(),
        }
    }
}

/// Returns the lanes (servers or volumes) of all targets, and the lane of each traced device.
pub fn lanes(
    to: &[TargetSpec],
    map: &[DeviceMapping],
    stripes: &StripeArgs,
) -> Result<(Lanes, Routes)> {
    let mut groups: Vec<(Option<&str>, Vec<&TargetSpec>)> = Vec::new();
    for DeviceMapping { device, target } in map {
        match groups.iter_mut().find(|(of, _)| *of == Some(device.as_str())) {
            Some((_, targets)) => targets.push(target),
            None => groups.push((Some(device), vec![target])),
        }
    }
    if !to.is_empty() {
        groups.push((None, to.iter().collect()));
    }
    if groups.is_empty() {
        bail!("no target: add --to TARGET, such as --to ram:size=1g, or --map DEV=TARGET");
    }
    if groups.iter().all(|(_, targets)| targets.len() < 2) {
        check_alone(stripes)?;
    }
    let mut routes = Routes::default();
    for (lane, (device, _)) in groups.iter().enumerate() {
        match device {
            Some(device) => routes.by_device.push(((*device).to_owned(), lane)),
            None => routes.others = Some(lane),
        }
    }
    let groups: Vec<_> = groups.into_iter().map(|(_, targets)| targets).collect();
    Ok((of_groups(&groups, stripes)?, routes))
}

fn check_alone(stripes: &StripeArgs) -> Result<()> {
    if stripes.chunk.is_some() {
        bail!("--chunk: a stripe needs several drives; give several --to");
    }
    if let Some(serving) = stripes.serving {
        let name = serving.name();
        bail!("--serving {name}: only for a stripe of several drives; give several --to DRIVE");
    }
    Ok(())
}

fn of_groups(groups: &[Vec<&TargetSpec>], stripes: &StripeArgs) -> Result<Lanes> {
    let (mut volumes, mut exports, mut sockets) = (Vec::new(), Vec::new(), Vec::new());
    for targets in groups {
        match targets.as_slice() {
            [TargetSpec::Server(Server::Nbd(uri), name)] => {
                exports.push((name.clone(), uri.clone()))
            }
            [TargetSpec::Server(Server::VhostUser(path), name)] => {
                sockets.push((name.clone(), path.clone()));
            }
            targets => volumes.push(stripe(targets, stripes)?),
        }
    }
    match (volumes.is_empty(), exports.is_empty(), sockets.is_empty()) {
        (false, true, true) => Ok(Lanes::Drives(volumes)),
        (true, false, true) => Ok(Lanes::Nbd(exports)),
        (true, true, false) => Ok(Lanes::Vhost(sockets)),
        _ => bail!(
            "--to, --map: targets of one replay must be of one kind: drives, NBD exports or \
             vhost-user sockets; run a replay for each kind"
        ),
    }
}

fn stripe(targets: &[&TargetSpec], stripes: &StripeArgs) -> Result<SimulatedVolume> {
    let mut drives = Vec::new();
    for target in targets {
        match target {
            TargetSpec::Drive(spec) => drives.push(spec.clone()),
            TargetSpec::Server(_, name) => {
                bail!(
                    "{name}: only drives can form a stripe; give one server per device, or use --map"
                )
            }
        }
    }
    let layout = match drives.len() {
        1 => Layout::Linear,
        _ => Layout::Stripe { chunk_sectors: (stripes.chunk.unwrap_or(CHUNK) >> 9) as u32 },
    };
    let names: Vec<String> = drives.iter().map(ToString::to_string).collect();
    // `--serving` applies only to volumes of several drives.
    let serving =
        if drives.len() > 1 { stripes.serving.unwrap_or_default() } else { Serving::Inline };
    Ok(SimulatedVolume { name: names.join("+"), drives, layout, serving })
}

/// Opens volumes on this machine, and returns notes for the user. Does not check if data may be
/// overwritten.
pub fn build(
    volumes: &[SimulatedVolume],
    args: &ReplayArgs,
) -> Result<(Vec<ReplayVolume>, Vec<String>)> {
    let (mut built, mut notes, mut places) = (Vec::new(), Vec::new(), Places::default());
    for SimulatedVolume { name, drives, layout, serving } in volumes {
        let options = VolumeOptions {
            io_threads: 1,
            serving: ServingConfig::of(*serving),
            worker_cpus: worker_cpus(&Native::topology(), &[]),
            ..Default::default()
        };
        let contents = match args.overwrite {
            true => DiskContents::Empty,
            false => DiskContents::of_all(drives).with_context(|| format!("--to {name}"))?,
        };
        let (volume, mut remarks) = places
            .build_volume("replay", (*layout, drives), &options)
            .with_context(|| format!("--to {name}"))?;
        notes.append(&mut remarks);
        built.push(ReplayVolume { name: name.clone(), volume, contents });
    }
    Ok((built, notes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(to: &[&str], map: &[&str]) -> Result<(Lanes, Routes)> {
        let to: Vec<TargetSpec> = to.iter().map(|text| text.parse().unwrap()).collect();
        let map: Vec<DeviceMapping> = map.iter().map(|text| text.parse().unwrap()).collect();
        lanes(&to, &map, &StripeArgs::default())
    }

    #[test]
    fn devices_go_to_their_targets_and_the_others_to_that_of_all() {
        let (lanes, routes) = named(
            &["ram:size=1m", "ram:size=1m"],
            &["8,0=null:", "8,16=file:/a/b,c.img", "8,0=ram:size=1m"],
        )
        .unwrap();
        let equal: DeviceMapping = "a=b=ram:size=1m".parse().unwrap();
        assert_eq!((equal.device.as_str(), equal.target), ("a=b", "ram:size=1m".parse().unwrap()));
        let names = ["null:+ram:size=1m", "file:path=(/a/b,c.img)", "ram:size=1m+ram:size=1m"];
        let Lanes::Drives(volumes) = lanes else { panic!("{lanes:?}") };
        assert_eq!(volumes.iter().map(|v| v.name.as_str()).collect::<Vec<_>>(), names);
        assert_eq!(routes.by_device, [("8,0".to_owned(), 0), ("8,16".to_owned(), 1)]);
        assert_eq!(routes.others, Some(2));
    }

    #[test]
    fn a_drive_on_a_server_is_named_by_its_uri_alone() {
        let refused = "nbd:uri=nbd+unix:///x?socket=s".parse::<TargetSpec>().unwrap_err();
        let said =
            "replay connects to the server itself: write only the URI, nbd+unix:///x?socket=s";
        assert_eq!(refused, said);
    }

    #[test]
    fn a_stripe_is_served_as_told_and_one_drive_by_whoever_submits() {
        let told = StripeArgs { chunk: None, serving: Some(Serving::PerDrive) };
        let parsed = |to: &[&str]| to.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
        let map = ["8,0=null:".parse().unwrap()];
        let (lanes_of_two, _) = lanes(&parsed(&["null:", "null:"]), &map, &told).unwrap();
        let Lanes::Drives(volumes) = lanes_of_two else { panic!("{lanes_of_two:?}") };
        let modes: Vec<_> = volumes.iter().map(|volume| volume.serving).collect();
        assert_eq!(modes, [Serving::Inline, Serving::PerDrive]);
        for alone in ["null:", "nbd://h/"] {
            let error = lanes(&parsed(&[alone]), &[], &told).unwrap_err().to_string();
            assert!(
                error.contains("--serving per-drive: only for a stripe of several drives"),
                "{error}"
            );
        }
    }

    #[test]
    fn what_is_no_target_is_refused_with_what_would_be() {
        for text in ["rom:size=1g", "http://x/"] {
            let error = text.parse::<TargetSpec>().unwrap_err();
            assert!(error.contains("vhost-user:SOCKET"), "{error}");
        }
        for text in ["ram:size=1g", "=null:", "8,0"] {
            let error = text.parse::<DeviceMapping>().unwrap_err();
            assert!(error.contains("8,0=ram:size=1g"), "{error}");
        }
        let error = |to: &[&str], map: &[&str]| named(to, map).unwrap_err().to_string();
        assert!(error(&[], &[]).contains("--to TARGET"));
        assert!(error(&["nbd://h/"], &["8,0=null:"]).contains("of one kind"));
        assert!(error(&["nbd://h/", "nbd://i/"], &[]).contains("only drives can form a stripe"));
    }
}
