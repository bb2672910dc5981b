//! Replay: repeats the I/Os of a trace, at the recorded times or as fast as possible, and measures
//! them.
//!
//! A lane is a volume or server on which devices of the trace are replayed (`lane`). The verb
//! `replay` calls this module. The memory that a replay needs does not depend on the trace's
//! length.
//!
//! - `feed` reads the trace ahead, `route` finds the lane of each I/O, and `fit` finds the address
//!   on the lane.
//! - `order` makes an I/O wait for earlier I/Os on which it depends.
//! - `engine` is the main loop, `tally` has its counts, and `report` has the result.
//! - `volumes` and `servers` do the I/O; `nbd` and `vhost` connect to servers.
//! - `simulated` runs a replay on a simulated machine.
//!
//! Sources: the open loop and the measurement of lateness are those of btreplay and of fio's
//! `read_iolog`. Replaying as fast as possible while keeping dependencies is the method of the
//! Falcon paper (Kumar et al., ATC 2017).

mod engine;
mod feed;
mod fit;
mod lane;
mod nbd;
mod order;
mod payload;
mod report;
mod route;
mod series;
mod servers;
mod simulated;
mod tally;
#[cfg(test)]
mod tests;
mod vhost;
mod volumes;

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use millrace_nbd::client::NbdUri;

pub use fit::Fit;
pub use report::{
    AdaptedIos, Counts, LATE, LaneReport, Latency, Lateness, OpReport, Report, Skipped, StopReason,
    WaitCounts,
};
pub use route::{Addresses, Extents, Routes, extents};
pub use series::ReplaySeries;
pub use simulated::{SimulatedVolume, replay_simulated};
pub use vhost::VHOST_IODEPTH_MAX;
pub use volumes::ReplayVolume;

use crate::load::bench::{BenchError, Interrupt};
use crate::trace::TraceSource;
use engine::Engine;
use feed::ReadAhead;
use lane::Target;
use route::Router;

/// Default limit of I/Os in flight for a replay as fast as possible.
pub const IODEPTH_AFAP: u32 = 32;
/// Default limit of I/Os in flight for a replay at the trace's times.
pub const IODEPTH_TIMED: u32 = 4_096;

/// Settings of a replay.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Divisor of the trace's times, above 0; `None` replays as fast as possible.
    pub speed: Option<f64>,
    /// Largest number of I/Os in flight, 1 to 65,536.
    pub iodepth: u32,
    /// Time after which the replay ends.
    pub runtime: Option<Duration>,
    /// Number of I/Os of the trace after which the replay ends.
    pub limit: Option<u64>,
    /// Seed of the written data, and of a simulation.
    pub seed: u64,
    /// Flag by which the caller ends the replay early.
    pub interrupt: Interrupt,
    /// Assignment of the trace's devices to lanes (volumes or servers).
    pub routes: Routes,
    /// Rules for the trace's addresses.
    pub addresses: Addresses,
}

/// Progress of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayProgress {
    /// Number of I/Os that ended.
    pub ios: u64,
    /// Time since the replay began, in nanoseconds.
    pub elapsed_ns: u64,
    /// Progress in the trace's own time: arrival of the last I/O read, in nanoseconds.
    pub trace_ns: u64,
}

/// Callback that is called from time to time with the progress of a replay.
pub type Progress<'a> = &'a mut dyn FnMut(&ReplayProgress);

/// Targets of a replay, one for each lane.
pub enum Destination<'a> {
    /// Volumes of this process.
    Volumes(&'a [ReplayVolume]),
    /// Exports of NBD servers, with their names.
    Nbd(&'a [(String, NbdUri)]),
    /// vhost-user-blk servers on Unix sockets, with their names.
    Vhost(&'a [(String, PathBuf)]),
}

/// Replays a trace: its devices go to lanes of `destination` as `Settings::routes` says.
///
/// # Errors
/// If a target cannot be set up. An error in the trace, or a target that fails later, ends the
/// replay; the report's `stopped` has the reason. A side effect: the calling thread keeps a timer
/// slack of 1 ns, so the kernel no longer delays its wake-ups by up to 50 us.
pub fn replay<S>(
    source: S,
    destination: &Destination<'_>,
    settings: &Settings,
    progress: Progress<'_>,
) -> Result<Report, BenchError>
where
    S: TraceSource + Send + 'static,
{
    // By default the kernel may wake a thread up to 50 us late, to wake several threads together
    // (timer slack). If the kernel refuses a smaller value, I/Os are sent later by this time and
    // count as late.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    match destination {
        Destination::Volumes(volumes) => {
            run(volumes::native(volumes, settings)?, source, settings, progress)
        }
        Destination::Nbd(uris) => run(nbd::connect(uris, settings)?, source, settings, progress),
        Destination::Vhost(paths) => {
            run(vhost::connect(paths, settings)?, source, settings, progress)
        }
    }
}

fn run<S: TraceSource + Send + 'static, T: Target>(
    mut target: T,
    source: S,
    settings: &Settings,
    progress: Progress<'_>,
) -> Result<Report, BenchError> {
    let mut feed = ReadAhead::start(Router::new(source, target.lanes(), settings))?;
    Ok(Engine::new(&mut target, &mut feed, settings).run(progress))
}
