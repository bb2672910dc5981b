//! `explorer`: deterministic simulation testing of the production block layer.
//!
//! A seed becomes a scenario (scenario.rs, generator.rs, profiles.rs): a machine, a volume,
//! submitters, faults and disturbances. The scenario runs on the simulated machine (run.rs,
//! submitter.rs, disturbance.rs) against model drives (drive.rs, disk_image.rs), with or without
//! worker threads (serving.rs, workers.rs). An oracle with a plain model of the volume checks every
//! step (oracle.rs, history.rs, map.rs). The shrinker (shrinker.rs) reduces a scenario that fails.
//! A page cache (caching.rs, flusher.rs), schedulers and groups are parts of scenarios.
//!
//! `millrace-lab explore` and tests call this module. Invariant: the same scenario gives the same
//! outcome, bit for bit, in every build. Source: the method is FoundationDB's and TigerBeetle's.

mod cache_spec;
mod caching;
mod disk_image;
mod disturbance;
mod drive;
mod flusher;
mod generator;
mod group_spec;
mod history;
mod map;
mod oracle;
pub(crate) mod oracle_lock;
mod planted;
mod profiles;
mod random;
mod run;
mod scenario;
mod scheduler_spec;
mod serving;
mod sharing;
mod shrinker;
mod submitter;
mod time;
mod workers;
mod workload;

pub use oracle::Violation;
pub use planted::{CACHE_PLANTS, PLANTS, with_bug};
pub use run::{ScenarioOutcome, run, violation_so_far};
pub use scenario::{
    ChannelSpec, Disturbance, DisturbanceKind, DriveSpec, FaultSpec, LayerSpec, LayoutSpec,
    LimitSpec, MachineSpec, Scenario, SpreadSpec, StackSpec,
};
pub use serving::{ModeSpec, ServingSpec};
pub use shrinker::smaller;
