//! `ServingSpec`: who serves the drives of a scenario, and how long others may wait for one.
//!
//! Part of a `Scenario`: mode, watermarks, pressure points, and the CPUs of workers. Derived from a
//! seed apart from all else, so that a seed whose volume is served inline means what it always did.
//! Also the bound on what must go on beside a drive that stalls. Called by generator.rs, run.rs and
//! the oracle.

use millrace_block::{Serving, ServingConfig};
use serde::{Deserialize, Serialize};

use super::random::Random;
use super::scenario::{DisturbanceKind, DriveSpec, FaultSpec, Scenario};
use super::time::NS_PER_US;

/// `Serving`, in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModeSpec {
    /// The submitter.
    #[default]
    Inline,
    /// A worker for each drive.
    PerDrive,
    /// One list for all drives.
    PerVolume,
    /// The submitter or workers.
    Auto,
}

/// How the drives are served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServingSpec {
    /// The mode at first.
    pub mode: ModeSpec,
    /// Low and high watermark.
    pub plug: [u32; 2],
    /// Low and high pressure point.
    pub pressure: [u32; 2],
    /// The CPU of each worker; drives are dealt out to them in turn.
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
    /// Served inline by the submitters.
    pub fn is_inline(&self) -> bool {
        *self == ServingSpec::default()
    }

    /// The mode as the layer takes it.
    pub(super) fn config(&self) -> ServingConfig {
        let ([plug_low, plug_high], [pressure_low, pressure_high]) = (self.plug, self.pressure);
        let serving = self.mode.into();
        ServingConfig { serving, plug_high, plug_low, pressure_high, pressure_low }
    }

    /// Whether it can be run on so many CPUs.
    pub(super) fn check(&self, cpus: u32) -> Result<(), String> {
        let sound = |[low, high]: [u32; 2]| low <= high && (1..=65_536).contains(&high);
        if !sound(self.plug) || !sound(self.pressure) {
            return Err(String::from("scenario: marks are low and high, 1 to 65536"));
        }
        match self.workers.iter().any(|cpu| *cpu >= cpus) || self.workers.len() > 64 {
            true => Err(String::from("scenario: every worker needs a cpu of the machine's")),
            false => Ok(()),
        }
    }

    /// What a seed's volume is, for drives in this number.
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
    /// Lets one drive stall for longer than any I/O may take, beside others with nothing wrong.
    pub(super) fn stall_one(&mut self, random: &mut Random) {
        self.drives.iter_mut().for_each(|drive| drive.faults = FaultSpec::default());
        self.layer.timeout_us = 0;
        // A channel that is dropped drains: its I/O is answered all at once, to nobody.
        let drops = |what: DisturbanceKind| {
            matches!(what, DisturbanceKind::Drop(_) | DisturbanceKind::Shutdown)
        };
        self.disturbances.retain(|d| !drops(d.what));
        let for_us = u32::try_from(self.bound_ns() / 800).unwrap_or(u32::MAX).min(4_000_000);
        let stalled = random.below(self.drives.len() as u64) as usize;
        self.drives[stalled].faults.stall_us = Some([random.within(0, 300), for_us]);
    }

    /// The longest that drives stall.
    pub(super) fn stall_ns(&self) -> u64 {
        let stall = |drive: &DriveSpec| drive.faults.stall_us.map_or(0, |[_, us]| us);
        u64::from(self.drives.iter().map(stall).max().unwrap_or(0)) * NS_PER_US
    }

    /// Whether the volume is some time served through one list.
    pub(super) fn plugs_requests(&self) -> bool {
        let switched = |what: DisturbanceKind| what == DisturbanceKind::Switch(ModeSpec::PerVolume);
        self.serving.mode == ModeSpec::PerVolume
            || self.disturbances.iter().any(|d| switched(d.what))
    }

    /// Whether a stalled drive holds up I/O of the others: where one list or one set of tags
    /// serves all, or all drives are to be drained.
    pub(super) fn stalls_all(&self) -> bool {
        let drains = |what: DisturbanceKind| matches!(what, DisturbanceKind::Switch(_));
        self.layer.shared_tags
            || self.serving.mode == ModeSpec::PerVolume
            || self.disturbances.iter().any(|d| drains(d.what))
    }
}
