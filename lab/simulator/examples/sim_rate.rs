//! Measures the number of events that the simulated machine handles per second: 80 CPUs in a mix of
//! shared words, private words, cache lines and contended locks.
//!
//! `cargo run --release -p millrace-simulator --example sim_rate`
#![allow(missing_docs, clippy::print_stdout)]

use std::sync::Arc;
use std::time::Instant;

use millrace_machine::{CpuId, Line, Lock, Machine, Order, Stage, Thread, Word};
use millrace_simulator::{Model, Report, Simulated, Simulation};

type SimWord = <Simulated as Machine>::Word;
type SimLine = <Simulated as Machine>::Line<[u64; 24]>;
type SimLock = <Simulated as Machine>::Lock<u64>;

/// Words, cache lines and locks that all CPUs share.
struct Shared {
    words: Vec<SimWord>,
    lines: Vec<SimLine>,
    locks: Vec<SimLock>,
}

#[derive(Clone, Copy)]
enum Mix {
    Private,
    Words,
    Locks,
    All,
}

fn body(shared: &Shared, cpu: usize, rounds: u64, mix: Mix) {
    let own = SimWord::new(0);
    for round in 0..rounds {
        let place = (cpu as u64 * 7 + round) as usize;
        if matches!(mix, Mix::Private | Mix::All) {
            for _ in 0..4 {
                own.fetch_add(1, Order::Relaxed);
                own.load(Order::Acquire);
            }
        }
        if matches!(mix, Mix::Words | Mix::All) {
            shared.words[place % shared.words.len()].fetch_add(1, Order::AcqRel);
            shared.words[place % 3].load(Order::Acquire);
            shared.lines[place % shared.lines.len()].write();
        }
        if matches!(mix, Mix::Locks | Mix::All) {
            *shared.locks[place % shared.locks.len()].lock() += 1;
        }
        Simulated::work(Stage::Submit, 1);
    }
}

fn run(cpus: u32, rounds: u64, mix: Mix) -> Report {
    let model = Model::plain(cpus.div_ceil(10), 10.min(cpus));
    let simulation = Simulation::new(&model, 1).expect("the model must be valid");
    let main = move || {
        let shared = Arc::new(Shared {
            words: (0..64).map(|_| SimWord::new(0)).collect(),
            lines: (0..64).map(|_| SimLine::new([0; 24])).collect(),
            locks: (0..8).map(|_| SimLock::new("rate", 0)).collect(),
        });
        let start = |cpu: u32| {
            let shared = Arc::clone(&shared);
            let body = Box::new(move || body(&shared, cpu as usize, rounds, mix));
            Simulated::spawn("cpu", Some(CpuId(cpu)), body)
        };
        let threads: Vec<_> = (0..cpus).map(start).collect();
        threads.into_iter().for_each(|thread| assert!(thread.join()));
    };
    simulation.run(main).expect("ends")
}

fn main() {
    let mixes = [
        ("private", Mix::Private),
        ("words", Mix::Words),
        ("locks", Mix::Locks),
        ("all", Mix::All),
    ];
    for (name, mix) in mixes {
        for cpus in [1, 8, 80] {
            let start = Instant::now();
            let report = run(cpus, 1_600_000 / u64::from(cpus), mix);
            let seconds = start.elapsed().as_secs_f64();
            let rate = report.events as f64 / seconds / 1e6;
            println!(
                "{name:8} {cpus:3} CPUs: {:9} events, {rate:6.1} M/s, virtual {} ns",
                report.events, report.end_ns
            );
        }
    }
    let start = Instant::now();
    (0..10_000).for_each(|_| drop(run(4, 1, Mix::All)));
    println!(
        "a simulation of 4 CPUs, start to end: {:.1} us",
        start.elapsed().as_secs_f64() * 100.0
    );
}
