//! The programs of \[FALCON\]'s other half, as threads on the simulated volume.
//!
//! A `Task` says which program a point runs, on which CPUs and with how many threads; the modules
//! below say what a thread does. None knows how the volume is served. Called by rigs.rs and
//! runs.rs.

mod files;
mod graph;
pub(super) mod servers;
pub(super) mod utilities;
mod writers;

use std::ops::RangeInclusive;

use millrace_block::Serving;
use millrace_machine::Model;

use super::rigs::Point;
use crate::bench::BenchError;
use crate::sim::programs::run_program;
use crate::sim::{Observed, SimPlan};

/// The CPU of the cache's flusher: on the controller's socket, as the submitter of other points.
const FLUSHER_CPU: u32 = 0;
/// CPUs that no drive's worker has, with eight drives.
const FREE_CPUS: [u32; 3] = [9, 10, 11];

/// CPUs of servers, which have more threads than CPUs: all but the flusher's, workers or not, since
/// the paper's machine runs 24 threads at a time and keeps none free of programs.
const ALL_CPUS: RangeInclusive<u32> = 1..=11;
/// Pieces of one call that are in flight at a time.
const CALLS: u32 = 4;

/// A program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    /// Eight writers of random pages, through the cache.
    Writers,
    /// A graph engine of so many threads that reads edges.
    Graph(u32),
    /// A server's mix on files, through the cache.
    Server(servers::Kind),
    /// A utility of one thread, through the cache.
    Utility(utilities::Kind),
}

impl Task {
    pub(super) fn name(self) -> &'static str {
        match self {
            Task::Writers => "8 writers of random 4 KiB, buffered",
            Task::Graph(1) => "PageRank, 1 submitting thread",
            Task::Graph(_) => "PageRank, 8 submitting threads",
            Task::Server(kind) => kind.name(),
            Task::Utility(kind) => kind.name(),
        }
    }

    /// Threads of the program.
    pub(super) fn threads(self) -> u32 {
        match self {
            Task::Writers => 8,
            Task::Graph(threads) => threads,
            Task::Server(kind) => kind.threads(),
            Task::Utility(_) => 1,
        }
    }

    /// CPUs of its threads.
    pub(super) fn cpus(self) -> Vec<u32> {
        match self {
            Task::Graph(threads) => (0..threads).collect(),
            Task::Server(_) => ALL_CPUS.collect(),
            Task::Writers | Task::Utility(_) => FREE_CPUS.to_vec(),
        }
    }

    /// I/Os that each thread has in flight at most, where the volume of `drives` takes `depth`.
    pub(super) fn depth(self, depth: u32) -> u32 {
        match self {
            Task::Graph(threads) => depth / threads,
            Task::Writers | Task::Server(_) | Task::Utility(_) => CALLS,
        }
    }

    /// Runs it on a plan's volume.
    pub(super) fn run(self, model: &Model, plan: &SimPlan) -> Result<Observed, BenchError> {
        let seed = plan.workload.seed;
        match self {
            Task::Writers => run_program(model, plan, (&writers::Writers(seed), FLUSHER_CPU)),
            Task::Graph(threads) => {
                run_program(model, plan, (&graph::Graph::new(seed, threads), FLUSHER_CPU))
            }
            Task::Server(kind) => {
                run_program(model, plan, (&servers::Server::new(kind, seed), FLUSHER_CPU))
            }
            Task::Utility(kind) => {
                run_program(model, plan, (&utilities::Utility(kind, seed), FLUSHER_CPU))
            }
        }
    }
}

/// A point whose I/Os are of a file on ext4.
pub(super) fn of_file(mut point: Point) -> Point {
    point.of_file = true;
    point
}

/// The graph engine's points: what the paper compares.
pub(super) const GRAPHS: [(u32, Serving); 3] =
    [(1, Serving::PerDrive), (1, Serving::PerVolume), (8, Serving::PerVolume)];
