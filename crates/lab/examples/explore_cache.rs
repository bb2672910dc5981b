//! Explores the cache: `cargo run --release -p millrace-lab --example explore_cache -- FIRST
//! COUNT`.
#![allow(clippy::print_stdout)]

use std::process::ExitCode;

use millrace_lab::cached::{Scenario, run};

fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map_while(|text| text.parse::<u64>().ok());
    let (first, count) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(1000));
    let mut wrong = 0;
    for seed in first..first + count {
        let outcome = run(seed);
        if let Some(violation) = outcome.violation {
            println!("seed {seed}: {violation}\n{:?}", Scenario::of_seed(seed));
            wrong += 1;
        }
    }
    println!("{count} seeds, {wrong} violations");
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
