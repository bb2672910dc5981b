//! Replay: the I/Os of a trace sent again, at their times or as fast as possible, and measured.
//!
//! `lane` says what I/Os go to and `route` which ones go where; `fit` is the arithmetic of
//! addresses, `order` that of I/Os that depend on each other; `feed` reads ahead; `engine` is the
//! loop, `tally` what it counts, `report` what comes of that; `volumes` and `servers` are targets
//! (`nbd` and `vhost` connect), `simulated` runs the same on a simulated machine. Memory does not
//! depend on the trace's length. Called by the verb; calls `traced` for I/Os.
//!
//! Source: open loop and lateness as in btreplay and fio's `read_iolog`; as fast as possible with
//! dependencies kept as in \[FALCON\]'s replay of traces.

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
pub use series::Series;
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
}

/// Progress of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayProgress {
    /// Number of I/Os that ended.
    pub ios: u64,
    /// Time since the replay began, in nanoseconds.
    pub elapsed_ns: u64,
    /// Arrival time in the trace of the last I/O that was taken from the trace, in nanoseconds.
    pub trace_ns: u64,
}

/// Callback that is told from time to time how far a replay is.
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

/// Replays a trace: its devices go to lanes of `destination` as `routes` says.
///
/// # Errors
/// If a target cannot be set up. What is wrong with a trace, or a target that breaks, ends the
/// replay, and is said in the report's `stopped`. The calling thread is woken at its times from now
/// on, and not within 50 us of them.
pub fn replay<S>(
    source: S,
    (destination, routes, addresses): (&Destination<'_>, Routes, Addresses),
    settings: &Settings,
    progress: Progress<'_>,
) -> Result<Report, BenchError>
where
    S: TraceSource + Send + 'static,
{
    let (iodepth, seed) = (settings.iodepth, settings.seed);
    // The kernel may wake a thread 50 us late, to wake it together with others. If the kernel does
    // not let this thread ask for less, I/Os are that much later, and count as late.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let rest = (source, routes, addresses, settings, progress);
    match destination {
        Destination::Volumes(volumes) => run(volumes::native(volumes, iodepth, seed)?, rest),
        Destination::Nbd(uris) => run(nbd::connect(uris, &rest.2, seed)?, rest),
        Destination::Vhost(paths) => run(vhost::connect(paths, &rest.2, (iodepth, seed))?, rest),
    }
}

fn run<S, T: Target>(
    mut target: T,
    (source, routes, addresses, settings, progress): (
        S,
        Routes,
        Addresses,
        &Settings,
        Progress<'_>,
    ),
) -> Result<Report, BenchError>
where
    S: TraceSource + Send + 'static,
{
    let router = Router::new(source, target.lanes(), routes, addresses);
    let mut feed = ReadAhead::start(router)?;
    Ok(Engine::new(&mut target, &mut feed, settings).run(progress))
}
