//! One's own code on a simulated machine: how does it scale on CPUs that one does not have?
//!
//! The block layer is generic over the machine it runs on, and so is the function `read_blocks`
//! here: on `Native` it runs on real threads, on `Simulated` in virtual time on a machine described
//! by a `Model`. Every run with a seed gives its result to the nanosecond.
//! `cargo run --release -p millrace-simulator --example simulate`
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use millrace::block::{Channel, Volume};
use millrace::machine::Thread;
use millrace::{
    Bio, Buffer, ChannelConfig, CpuId, Disk, DiskConfig, Layout, Machine, Stack, open_on,
};
use millrace_simulator::{Model, Simulated, Simulation};

/// Reads that each CPU does.
const READS: u64 = 2_000;
/// Reads that each CPU has in flight.
const IN_FLIGHT: u64 = 8;

/// The code under study: reads blocks of a volume, several in flight.
fn read_blocks<M: Machine>(volume: &Arc<Volume<M>>) {
    let mut channel =
        Channel::open(volume, ChannelConfig::default()).expect("memory for a channel");
    let (mut sent, mut done) = (0, 0);
    while done < READS {
        while sent < READS && sent - done < IN_FLIGHT {
            let bio = Bio::read(sent * 8 % 1024, Buffer::new(512));
            channel.submit(bio).expect("the channel has room for more bios");
            sent += 1;
        }
        done += channel.wait(1, |completion| assert!(completion.status.is_ok())) as u64;
    }
}

/// Runs `read_blocks` on each of `cpus` CPUs of machine `M` at once. Returns reads per second.
fn measure<M: Machine>(cpus: u32, stack: Stack) -> f64 {
    let driver = open_on::<M>(&"null:size=1m".parse().expect("the drive's spec must be valid"))
        .expect("the drive's spec must be valid");
    let config = DiskConfig { name: "d0".into(), baseline: stack.into(), ..DiskConfig::default() };
    let disk = Disk::new(driver, config).expect("the disk must be created");
    let volume = Volume::new("v", Layout::Linear, vec![disk]).expect("the volume must be created");
    let start_ns = M::now();
    let thread = |cpu| {
        let volume = Arc::clone(&volume);
        M::spawn("reader", Some(CpuId(cpu)), Box::new(move || read_blocks(&volume)))
    };
    let threads: Vec<_> = (0..cpus).map(thread).collect();
    threads.into_iter().for_each(|thread| assert!(thread.join(), "a reader panicked"));
    (READS * u64::from(cpus)) as f64 * 1e9 / (M::now() - start_ns) as f64
}

/// Runs `measure` on a simulated machine of two sockets with eight cores each.
pub fn simulate(cpus: u32, stack: Stack) -> Result<f64, Box<dyn Error>> {
    let model = Model::plain(2, 8);
    let result = Arc::new(Mutex::new(0.0));
    let inner = Arc::clone(&result);
    let main = move || {
        let rate = measure::<Simulated>(cpus, stack);
        *inner.lock().unwrap_or_else(PoisonError::into_inner) = rate;
    };
    Simulation::new(&model, 1)?.run(main)?;
    let rate = *result.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(rate)
}

fn main() -> Result<(), Box<dyn Error>> {
    for cpus in [1, 4, 16] {
        let (mq, sq) = (simulate(cpus, Stack::Mq)?, simulate(cpus, Stack::Sq)?);
        let (mq, sq) = (mq / 1e6, sq / 1e6);
        println!(
            "{cpus:2} CPUs: {mq:6.2} M reads/s with a queue for each, {sq:6.2} with one for all"
        );
    }
    Ok(())
}
