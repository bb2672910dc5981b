//! The application programs of the Falcon paper's evaluation (Kumar et al., ATC 2017), as threads
//! on the simulated volume.
//!
//! A `Task` names a program, and gives its CPUs and its number of threads. The submodules have the
//! code of the threads, which does not depend on the volume's serving mode. `atc17` runs programs
//! on the simulated machine, and `bench --program` on this machine.

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

/// CPU of the cache's flusher thread, on the controller's socket. In simulations without a cache,
/// the submitting thread runs on this CPU.
const FLUSHER_CPU: u32 = 0;
/// CPUs on which no drive's worker runs. In the setup with eight drives, their workers use CPUs 1
/// to 8.
const FREE_CPUS: [u32; 3] = [9, 10, 11];

/// CPUs of a server's threads: all except the flusher's. Threads and workers share CPUs, because
/// the paper's machine reserves no CPUs for workers.
const ALL_CPUS: RangeInclusive<u32> = 1..=11;
const CALLS: u32 = 4;

/// Program to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Eight threads that write random pages through the cache.
    Writers,
    /// PageRank on a graph whose edges are read with direct I/O, by the given number of threads.
    Graph(u32),
    /// File server, web server or web proxy, whose threads use files through the cache.
    Server(servers::Kind),
    /// Utility with one thread that copies, packs or unpacks files through the cache.
    Utility(utilities::Kind),
}

impl Task {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Task::Writers => "8 writers of random 4 KiB, buffered",
            Task::Graph(1) => "PageRank, 1 submitting thread",
            Task::Graph(_) => "PageRank, 8 submitting threads",
            Task::Server(kind) => kind.name(),
            Task::Utility(kind) => kind.name(),
        }
    }

    /// Returns true if the program writes to the volume.
    pub fn writes(self) -> bool {
        !matches!(self, Task::Graph(_) | Task::Utility(utilities::Kind::CopyFrom))
    }

    /// Returns the number of the program's threads.
    pub fn threads(self) -> u32 {
        match self {
            Task::Writers => 8,
            Task::Graph(threads) => threads,
            Task::Server(kind) => kind.threads(),
            Task::Utility(_) => 1,
        }
    }

    pub(crate) fn cpus(self) -> Vec<u32> {
        match self {
            Task::Graph(threads) => (0..threads).collect(),
            Task::Server(_) => ALL_CPUS.collect(),
            Task::Writers | Task::Utility(_) => FREE_CPUS.to_vec(),
        }
    }

    /// Returns the largest number of I/Os in flight per thread. Programs with direct I/O divide
    /// `depth` among their threads; other programs ignore `depth`.
    pub(crate) fn depth(self, depth: u32) -> u32 {
        match self {
            Task::Graph(threads) => depth / threads,
            Task::Writers | Task::Server(_) | Task::Utility(_) => CALLS,
        }
    }

    pub(crate) fn run(self, model: &Model, plan: &SimPlan) -> Result<ObservedRow, BenchError> {
        let run = SimulatedRun { model, plan };
        self.with(plan.workload.seed, run)
    }

    fn with<R: Runs>(self, seed: u64, runner: R) -> Result<R::Result, BenchError> {
        match self {
            Task::Writers => runner.run(&writers::Writers(seed)),
            Task::Graph(threads) => runner.run(&graph::Graph::new(seed, threads)),
            Task::Server(kind) => runner.run(&servers::Server::new(kind, seed)),
            Task::Utility(kind) => runner.run(&utilities::Utility(kind, seed)),
        }
    }
}

trait Runs {
    type Result;

    fn run<P: Program>(self, program: &P) -> Result<Self::Result, BenchError>;
}

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
