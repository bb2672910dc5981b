//! The programs of \[FALCON\]'s other half, as threads on the simulated volume.
//!
//! A `Task` says which program a point runs, on which CPUs and with how many threads; the modules
//! below say what a thread does. None knows how the volume is served. Called by rigs.rs and
//! runs.rs.

mod graph;
mod writers;

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

/// A program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    /// Eight writers of random pages, through the cache.
    Writers,
    /// A graph engine of so many threads that reads edges.
    Graph(u32),
}

impl Task {
    pub(super) fn name(self) -> &'static str {
        match self {
            Task::Writers => "8 writers of random 4 KiB, buffered",
            Task::Graph(1) => "PageRank, 1 submitting thread",
            Task::Graph(_) => "PageRank, 8 submitting threads",
        }
    }

    /// Threads of the program.
    pub(super) fn threads(self) -> u32 {
        match self {
            Task::Writers => 8,
            Task::Graph(threads) => threads,
        }
    }

    /// CPUs of its threads.
    pub(super) fn cpus(self) -> Vec<u32> {
        match self {
            Task::Graph(threads) => (0..threads).collect(),
            Task::Writers => FREE_CPUS.to_vec(),
        }
    }

    /// I/Os that each thread has in flight at most, where the volume of `drives` takes `depth`.
    pub(super) fn depth(self, depth: u32) -> u32 {
        match self {
            Task::Graph(threads) => depth / threads,
            Task::Writers => 1,
        }
    }

    /// Runs it on a plan's volume.
    pub(super) fn run(self, model: &Model, plan: &SimPlan) -> Result<Observed, BenchError> {
        match self {
            Task::Writers => run_program(model, plan, (&writers::Writers(plan.workload.seed), 0)),
            Task::Graph(threads) => {
                let graph = graph::Graph::new(plan.workload.seed, threads);
                run_program(model, plan, (&graph, FLUSHER_CPU))
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
