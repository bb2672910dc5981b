//! The programs of \[FALCON\]'s other half, as threads on the simulated volume.
//!
//! A `Task` says which program a point runs, on which CPUs and with how many threads; the modules
//! below say what a thread does. None knows how the volume is served. Called by `atc17`
//! on the simulated machine, and natively by `bench --program`.

mod files;
mod graph;
pub mod native;
pub mod servers;
pub mod utilities;
mod writers;

use std::ops::RangeInclusive;

use millrace_simulator::Model;

use crate::load::bench::BenchError;
use crate::simulation::program::{Program, run_program};
use crate::simulation::{ObservedRow, SimPlan};

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
pub enum Task {
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
    /// Returns the task's name in the tables of \[FALCON\]'s results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Task::Writers => "8 writers of random 4 KiB, buffered",
            Task::Graph(1) => "PageRank, 1 submitting thread",
            Task::Graph(_) => "PageRank, 8 submitting threads",
            Task::Server(kind) => kind.name(),
            Task::Utility(kind) => kind.name(),
        }
    }

    /// Returns true if the task writes to the volume.
    #[must_use]
    pub fn writes(self) -> bool {
        !matches!(self, Task::Graph(_) | Task::Utility(utilities::Kind::CopyFrom))
    }

    /// Threads of the program.
    #[must_use]
    pub fn threads(self) -> u32 {
        match self {
            Task::Writers => 8,
            Task::Graph(threads) => threads,
            Task::Server(kind) => kind.threads(),
            Task::Utility(_) => 1,
        }
    }

    /// CPUs of its threads.
    pub(crate) fn cpus(self) -> Vec<u32> {
        match self {
            Task::Graph(threads) => (0..threads).collect(),
            Task::Server(_) => ALL_CPUS.collect(),
            Task::Writers | Task::Utility(_) => FREE_CPUS.to_vec(),
        }
    }

    /// I/Os that each thread has in flight at most, where the volume of `drives` takes `depth`.
    pub(crate) fn depth(self, depth: u32) -> u32 {
        match self {
            Task::Graph(threads) => depth / threads,
            Task::Writers | Task::Server(_) | Task::Utility(_) => CALLS,
        }
    }

    /// Runs it on a plan's volume.
    pub(crate) fn run(self, model: &Model, plan: &SimPlan) -> Result<ObservedRow, BenchError> {
        let run = SimulatedRun { model, plan };
        self.with(plan.workload.seed, run)
    }

    /// Hands the program of a seed to whoever runs it.
    fn with<R: Runs>(self, seed: u64, runner: R) -> Result<R::Result, BenchError> {
        match self {
            Task::Writers => runner.run(&writers::Writers(seed)),
            Task::Graph(threads) => runner.run(&graph::Graph::new(seed, threads)),
            Task::Server(kind) => runner.run(&servers::Server::new(kind, seed)),
            Task::Utility(kind) => runner.run(&utilities::Utility(kind, seed)),
        }
    }
}

/// Runner of programs of any type, on one kind of machine.
trait Runs {
    /// Result of a run.
    type Result;

    /// Runs it.
    fn run<P: Program>(self, program: &P) -> Result<Self::Result, BenchError>;
}

/// On the simulated machine.
struct SimulatedRun<'a> {
    model: &'a Model,
    plan: &'a SimPlan,
}

impl Runs for SimulatedRun<'_> {
    type Result = ObservedRow;

    fn run<P: Program>(self, program: &P) -> Result<ObservedRow, BenchError> {
        run_program(self.model, self.plan, (program, FLUSHER_CPU))
    }
}
