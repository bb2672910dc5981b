//! `explore`: deterministic simulation testing of the production block layer.
//!
//! A seed becomes a scenario (scenario.rs, derive.rs, themes.rs): a machine, a volume, submitters,
//! faults and disturbances. It runs on the simulated machine (run.rs, submitter.rs, disturb.rs)
//! against drives made for it (drive.rs, media.rs), served as serving.rs says, perhaps by workers
//! (workers.rs); a judge with a plain model of what must be true watches (judge.rs, history.rs,
//! map.rs); a scenario that goes wrong is made smaller (shrink.rs).
//! Called by `millrace-lab explore` and by tests. Invariant: the same scenario gives the same
//! outcome, to the bit, in every build. Source: the method is FoundationDB's and TigerBeetle's.

mod derive;
mod disturb;
mod drive;
mod groups;
pub(crate) mod held;
mod history;
mod judge;
mod map;
mod media;
mod orders;
mod planted;
mod random;
mod run;
mod scenario;
mod serving;
mod sharing;
mod shrink;
mod submitter;
mod themes;
mod time;
mod workers;
mod workload;

pub use judge::Violation;
pub use planted::{CACHE_PLANTS, PLANTS, with_bug};
pub use run::{Outcome, run, violation_so_far};
pub use scenario::{
    ChannelSpec, Disturbance, DriveSpec, FaultSpec, LayerSpec, LayoutSpec, LimitSpec, MachineSpec,
    Scenario, SpreadSpec, StackSpec, What,
};
pub use serving::{ModeSpec, ServingSpec};
pub use shrink::smaller;
