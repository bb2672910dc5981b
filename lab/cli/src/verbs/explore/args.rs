//! Arguments of `millrace-lab explore`, and the task that they select: a range of seeds, or one
//! scenario.
//!
//! This module owns the options, their defaults and their conflicts. The verb calls this module,
//! which reads only the scenario's file.

use std::time::Duration;

use anyhow::{Context, Result};
use millrace_console::words::{duration, whole};
use millrace_experiments::explorer::Scenario;

/// Search for bugs in the block layer and the page cache with random machines, volumes, workloads
/// and faults, in simulation
#[derive(Debug, clap::Args)]
pub struct ExploreArgs {
    /// Number of seeds to run [default: 1000; 1 with --seed]
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1..=u64::MAX))]
    pub seeds: Option<u64>,
    /// Run for this time, such as 10m, instead of a number of seeds
    #[arg(long = "for", value_name = "TIME", conflicts_with = "seeds", value_parser = duration)]
    pub for_time: Option<Duration>,
    /// The first seed
    #[arg(long, value_name = "S", value_parser = whole::<u64>(0..=u64::MAX))]
    pub seed: Option<u64>,
    /// Number of processes that run scenarios in parallel
    #[arg(long, value_name = "N", default_value_t = 2)]
    #[arg(value_parser = whole::<u16>(1..=256))]
    pub jobs: u16,
    /// Run one scenario, given as JSON or as a file that contains the JSON
    #[arg(long, value_name = "FILE|JSON", conflicts_with_all = ["seeds", "for_time", "seed"])]
    pub scenario: Option<String>,
    /// Give every scenario a page cache over its volume; without --cache, about 3 % of the
    /// scenarios have one
    #[arg(long, conflicts_with = "scenario")]
    pub cache: bool,
    /// Stop at the first violation
    #[arg(long)]
    pub fail_fast: bool,
    /// Print violations as they are found, without looking for smaller scenarios
    #[arg(long)]
    pub no_shrink: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Name of a seeded bug to enable, in the builds of `cargo xtask planted`
    #[arg(long, value_name = "NAME", hide = true)]
    pub plant: Option<String>,
    /// Run as a worker process: read tasks from standard input, as one line of JSON each
    #[arg(long, hide = true)]
    pub worker: bool,
}

pub enum ExploreTask {
    /// Run `count` seeds from `first` on, or as many as fit into `time`.
    Seeds {
        first: u64,
        count: u64,
        time: Option<Duration>,
    },
    Scenario(Box<Scenario>),
}

#[derive(Debug, Clone, Copy)]
pub struct WorkerTask<'a> {
    pub plant: Option<&'a str>,
    pub cache: bool,
}

impl WorkerTask<'_> {
    pub fn scenario_of(&self, seed: u64) -> Scenario {
        match self.cache {
            true => Scenario::cached_of_seed(seed),
            false => Scenario::of_seed(seed),
        }
    }
}

impl ExploreArgs {
    pub fn subject(&self) -> WorkerTask<'_> {
        WorkerTask { plant: self.plant.as_deref(), cache: self.cache }
    }

    /// Returns the scenario of `--scenario`. Without `--scenario`, returns the range of seeds to
    /// run.
    pub fn task(&self) -> Result<ExploreTask> {
        if let Some(text) = &self.scenario {
            let json = match text.trim_start().starts_with('{') {
                true => text.clone(),
                false => std::fs::read_to_string(text).with_context(|| {
                    format!("--scenario {text}: not JSON, and not a file that can be read")
                })?,
            };
            let scenario = serde_json::from_str(&json).context("--scenario")?;
            return Ok(ExploreTask::Scenario(Box::new(scenario)));
        }
        let count = match (self.seeds, self.for_time, self.seed) {
            (Some(count), ..) => count,
            (None, Some(_), _) => u64::MAX,
            (None, None, Some(_)) => 1,
            (None, None, None) => 1_000,
        };
        Ok(ExploreTask::Seeds { first: self.seed.unwrap_or(0), count, time: self.for_time })
    }
}
