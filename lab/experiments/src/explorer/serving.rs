//! `ServingSpec`: serving mode and workers of a scenario's drives.
//!
//! A `ServingSpec` also has the limits of plugging and of back pressure. The file computes the
//! bounds on the delay that a stalled drive causes.

use millrace_block::{Serving, ServingConfig};
use serde::{Deserialize, Serialize};

use super::random::Random;
use super::scenario::{DisturbanceKind, DriveSpec, FaultSpec, Scenario};
use super::time::NS_PER_US;

/// Mode in which a volume's drives are served (`Serving`). In JSON, a mode has the same name as in
/// configuration files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModeSpec {
    /// The submitting thread serves the drives.
    #[default]
    Inline,
    /// A worker thread serves each drive.
    PerDrive,
    /// All drives share one list of waiting bios for the whole volume.
    PerVolume,
    /// The submitting thread or workers serve the drives, depending on the load.
    Auto,
}

/// Settings of the threads that serve the drives of a scenario's volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServingSpec {
    /// Mode in which the volume's drives are served when the run begins.
    pub mode: ModeSpec,
    /// Low and high watermark of requests that are held back (plugged).
    pub plug: [u32; 2],
    /// Low and high limit of waiting requests per drive. Above the high limit, bios are rejected
    /// until the number has fallen to the low limit.
    pub pressure: [u32; 2],
    /// CPU of each worker; drives are assigned to workers round robin.
    pub workers: Vec<u32>,
}

impl From<ModeSpec> for Serving {
    fn from(spec: ModeSpec) -> Serving {
        match spec {
            ModeSpec::Inline => Serving::Inline,
            ModeSpec::PerDrive => Serving::PerDrive,
            ModeSpec::PerVolume => Serving::PerVolume,
            ModeSpec::Auto => Serving::Auto,
        }
    }
}

impl Default for ServingSpec {
    fn default() -> Self {
        let layer = ServingConfig::default();
        ServingSpec {
            mode: ModeSpec::Inline,
            plug: [layer.plug_low, layer.plug_high],
            pressure: [layer.pressure_low, layer.pressure_high],
            workers: Vec::new(),
        }
    }
}

impl ServingSpec {
    /// Returns true for the default settings: submitters serve the drives inline, and there are no
    /// workers.
    pub fn is_inline(&self) -> bool {
        *self == ServingSpec::default()
    }

    pub(super) fn config(&self) -> ServingConfig {
        let ([plug_low, plug_high], [pressure_low, pressure_high]) = (self.plug, self.pressure);
        let serving = self.mode.into();
        ServingConfig { serving, plug_high, plug_low, pressure_high, pressure_low }
    }

    pub(super) fn check(&self, cpus: u32) -> Result<(), String> {
        let sound = |[low, high]: [u32; 2]| low <= high && (1..=65_536).contains(&high);
        if !sound(self.plug) || !sound(self.pressure) {
            return Err(String::from(
                "scenario: plug and pressure are pairs of a low and a high number of requests; low \
                 must not exceed high, and high must be 1 to 65536",
            ));
        }
        match self.workers.iter().any(|cpu| *cpu >= cpus) || self.workers.len() > 64 {
            true => Err(String::from("scenario: at most 64 workers, each on a cpu of the machine")),
            false => Ok(()),
        }
    }

    pub(super) fn of_seed(random: &mut Random, drives: usize, cpus: u32) -> ServingSpec {
        if !random.per_mille(if drives > 1 { 600 } else { 200 }) {
            return ServingSpec::default();
        }
        let modes = [
            ModeSpec::Inline,
            ModeSpec::PerDrive,
            ModeSpec::PerDrive,
            ModeSpec::PerDrive,
            ModeSpec::PerVolume,
            ModeSpec::PerVolume,
            ModeSpec::Auto,
        ];
        let mode = random.pick(&modes);
        let plug_low = random.pick(&[0, 1, 1, 2, 4]);
        let plug_high = plug_low.max(1) + random.pick(&[0, 1, 4, 32]);
        let pressure_high = random.pick(&[1, 2, 4, 16, 1024, 1024]);
        let pressure_low = random.within(0, pressure_high);
        let workers = random.within(0, drives as u32 + 2).min(drives as u32);
        ServingSpec {
            mode,
            plug: [plug_low, plug_high],
            pressure: [pressure_low, pressure_high],
            workers: (0..workers).map(|_| random.within(0, cpus - 1)).collect(),
        }
    }
}

impl Scenario {
    /// Makes one drive stall for longer than any other I/O may take, and removes all other faults.
    pub(super) fn stall_one(&mut self, random: &mut Random) {
        self.drives.iter_mut().for_each(|drive| drive.faults = FaultSpec::default());
        self.layer.timeout_us = 0;
        // Keep all channels, because no thread checks the completions of a dropped channel.
        let drops = |what: DisturbanceKind| {
            matches!(what, DisturbanceKind::Drop(_) | DisturbanceKind::Shutdown)
        };
        self.disturbances.retain(|d| !drops(d.what));
        let longest_us = if self.cache.is_some() { 20_000_000 } else { 4_000_000 };
        let for_us = u32::try_from(self.bound_ns() / 800).unwrap_or(u32::MAX).min(longest_us);
        let stalled = random.below(self.drives.len() as u64) as usize;
        self.drives[stalled].faults.stall_us = Some([random.within(0, 300), for_us]);
    }

    pub(super) fn stall_ns(&self) -> u64 {
        let stall = |drive: &DriveSpec| {
            let stall_us = drive.faults.stall_us.map_or(0, |[_, us]| us);
            stall_us.max(drive.faults.dead_for_us)
        };
        u64::from(self.drives.iter().map(stall).max().unwrap_or(0)) * NS_PER_US
    }

    /// Returns true if all drives of the volume share one list of bios (mode `PerVolume`) at the
    /// start or later in the run.
    pub(super) fn plugs_requests(&self) -> bool {
        let switched = |what: DisturbanceKind| what == DisturbanceKind::Switch(ModeSpec::PerVolume);
        self.serving.mode == ModeSpec::PerVolume
            || self.disturbances.iter().any(|d| switched(d.what))
    }

    /// Returns true if a stalled drive delays I/O to the other drives, because they share a list of
    /// bios or a tag set, or because a mode switch drains all drives.
    pub(super) fn stalls_all(&self) -> bool {
        let drains = |what: DisturbanceKind| matches!(what, DisturbanceKind::Switch(_));
        self.cache_waits()
            || self.layer.shared_tags
            || self.serving.mode == ModeSpec::PerVolume
            || self.disturbances.iter().any(|d| drains(d.what))
    }
}
