//! Compares the cost of cache hits with that of plain copies: `cargo run --release -p millrace
//! --example cache_hits -- MIB DEPTH TURNS`, by default 256 32 200.
//!
//! Reads random 4 KiB pages through a cached volume that is entirely in memory, `DEPTH` at a time,
//! and copies random pages within an equally large buffer, in `TURNS` alternating turns. Both use
//! huge pages if the system provides them. Prints the medians of both in millions per second, and
//! the median of the ratio within each pair of turns, which is robust on a shared machine, since
//! both turns of a pair mostly get the same share of it.

#![allow(clippy::print_stdout)]

use std::error::Error;
use std::time::Instant;

use millrace::{
    AfterCompletion, Bio, Buffer, CacheConfig, Channel, ChannelConfig, Layout, VolumeOptions,
    build_volume, cache_over,
};

const PAGE: usize = 4096;
/// Number of copies or reads per turn, which take a few milliseconds.
const TURN: u64 = 40_000;
/// Copies or reads before each turn, which evict the other kind's data from the CPU's caches.
const BEFORE: u64 = 20_000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut given = std::env::args().skip(1).map(|word| word.parse::<u64>());
    let mib = given.next().transpose()?.unwrap_or(256);
    let depth = given.next().transpose()?.unwrap_or(32);
    let turns = given.next().transpose()?.unwrap_or(200);
    run(mib, depth, turns)
}

/// Measures hits in a cache of `mib` MiB, `depth` at a time, and copies, in `turns` alternating
/// turns.
pub fn run(mib: u64, depth: u64, turns: u64) -> Result<(), Box<dyn Error>> {
    let drives = [format!("ram:size={mib}m").parse()?];
    let options = VolumeOptions { io_threads: 2, ..VolumeOptions::default() };
    let (below, _) = build_volume("v", Layout::Linear, &drives, &options)?;
    let config =
        CacheConfig { size_bytes: mib << 21, read_ahead_bytes: 0, ..CacheConfig::default() };
    let (volume, cache) = cache_over(below, config, 1)?;
    let mut channel = Channel::open(&volume, ChannelConfig::default())?;
    let pages = mib << 8;
    let mut hits = Turns { pages, ..Turns::default() };
    // Reads each page once, so that all pages are in the cache.
    for page in 0..pages {
        channel.submit(Bio::read(page * 8, Buffer::new(PAGE)))?;
        channel.wait(1, |done| assert!(done.status.is_ok()));
    }
    let mut memory = Buffer::new((mib as usize) << 20);
    memory.fill(1);
    let mut copies = Turns { pages, ..Turns::default() };
    let mut ratios = Vec::new();
    let mut into = Buffer::new(depth as usize * PAGE);
    for _ in 0..turns {
        let copied = copies.take(|random, count| {
            for at in 0..count {
                let from = random.page() * PAGE;
                let to = (at % depth) as usize * PAGE;
                into[to..to + PAGE].copy_from_slice(&memory[from..from + PAGE]);
            }
        });
        let read = hits.take(|random, count| read(&mut channel, (depth, count), random));
        ratios.push(read / copied);
    }
    std::hint::black_box(&into);
    let (copies, hits) = (copies.median(), hits.median());
    let missed = cache.stats().read_misses - pages;
    println!(
        "{mib} MiB, {depth} at a time, {turns} times {TURN}: {copies:.2} M copies/s, {hits:.2} M \
         hits/s, hits by copies {:.3}, {missed} missed",
        median(&mut ratios)
    );
    Ok(())
}

/// Reads `count` random pages, `depth` at a time.
fn read(channel: &mut Channel, (depth, count): (u64, u64), random: &mut Random) {
    for _ in 0..depth {
        let bio = Bio::read(random.page() as u64 * 8, Buffer::new(PAGE));
        channel.submit(bio).expect("the volume has it");
    }
    let mut left = count - depth;
    while channel.in_flight() > 0 {
        channel.poll_again(|bio, status| {
            assert!(status.is_ok());
            if left == 0 {
                return AfterCompletion::Drop;
            }
            left -= 1;
            bio.set_sector(random.page() as u64 * 8);
            AfterCompletion::Submit
        });
    }
}

/// Generator of random page numbers: state, and number of pages.
struct Random(u64, u64);

impl Random {
    fn page(&mut self) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % self.1) as usize
    }
}

/// Rates of all turns of one kind, in operations per microsecond.
#[derive(Default)]
struct Turns {
    pages: u64,
    per_us: Vec<f64>,
}

impl Turns {
    /// Runs a turn. Returns its rate in millions per second.
    fn take(&mut self, mut turn: impl FnMut(&mut Random, u64)) -> f64 {
        let seed = 0x1357_9bdf_2468_ace0 + self.per_us.len() as u64;
        let mut random = Random(seed, self.pages);
        turn(&mut random, BEFORE);
        let started = Instant::now();
        turn(&mut random, TURN);
        let per_us = TURN as f64 / started.elapsed().as_secs_f64() / 1e6;
        self.per_us.push(per_us);
        per_us
    }

    fn median(&mut self) -> f64 {
        median(&mut self.per_us)
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
