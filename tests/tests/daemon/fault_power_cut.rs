//! Power cuts of a striped volume under NBD load: flushed data and FUA writes survive.
//!
//! Runs the real daemon on four `fault` drives with a volatile cache, cuts their power by SIGUSR1
//! while four connections write, and compares every sector with the model of `durability`, whose
//! own tests show that it finds a lost write.

use std::thread;
use std::time::{Duration, Instant};

use millrace_random::SplitMix64;
use millrace_tests::Daemon;
use millrace_tests::load::Load;

const SECTORS: u64 = 4096;
const CONNECTIONS: usize = 4;

/// A stripe of four drives that lose unflushed data; two of them are slow, so that requests are in
/// flight at a cut.
fn config(fua: &str, backend: &str) -> String {
    let drives: String = (0..4)
        .map(|n| {
            let slow = if n % 2 == 1 { ",latency=200us" } else { "" };
            let spec = format!("fault:drive=(ram:size=1m),volatile=on,fua={fua},seed={n}{slow}");
            format!("[[drive]]\nname = \"d{n}\"\nspec = \"{spec}\"\n")
        })
        .collect();
    format!(
        "{drives}[[volume]]\nname = \"v\"\nchunk = \"4k\"\n\
         drives = [\"d0\", \"d1\", \"d2\", \"d3\"]\n\
         [[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n[server]\nbackend = \"{backend}\"\n"
    )
}

/// Cuts the power and waits until the daemon has logged it for every drive. Returns the number of
/// sectors that lost their newest contents.
fn cut(daemon: &mut Daemon, load: &Load, number: u64) -> u64 {
    load.with_model(|model| model.begin_cut());
    daemon.signal(libc::SIGUSR1);
    let start = Instant::now();
    let line = format!("power cut {number}: drive ");
    loop {
        let said = daemon.stdout();
        // The last line may be half there.
        let whole = &said[..said.rfind('\n').map_or(0, |at| at + 1)];
        let drives: Vec<&str> = whole.lines().filter_map(|text| text.strip_prefix(&line)).collect();
        if drives.len() == 4 {
            load.with_model(|model| model.end_cut());
            return drives.iter().map(|text| sectors_lost(text)).sum();
        }
        assert_eq!(daemon.try_wait(), None, "the daemon stays up");
        assert!(start.elapsed() < Duration::from_secs(10), "no power cut {number}: {said}");
        thread::sleep(Duration::from_micros(300));
    }
}

/// `17` of `d0 lost 17 sectors`.
fn sectors_lost(text: &str) -> u64 {
    let number = text.split_once(" lost ").and_then(|(_, rest)| rest.split_once(' '));
    number.and_then(|(digits, _)| digits.parse().ok()).unwrap_or_else(|| panic!("{text:?}"))
}

/// `cuts` power cuts, each under load, and after each everything is read back.
fn survives(fua: &str, backend: &str, cuts: u64) {
    let mut daemon = Daemon::start(&config(fua, backend), &["s"]);
    let socket = daemon.dir().join("s");
    let mut load = Load::new(SECTORS, cuts);
    load.connect(&socket, "v", CONNECTIONS);
    let (mut dice, mut lost) = (SplitMix64::new(7), 0);
    for number in 1..=cuts {
        let (before, after) = (5 + dice.below(15), dice.below(4));
        load.round(|load| {
            thread::sleep(Duration::from_millis(before));
            lost += cut(&mut daemon, load, number);
            thread::sleep(Duration::from_millis(after));
        });
        load.check(&format!("fua={fua} {backend}: power cut {number} of {cuts}"));
    }
    let (counts, went_back) = (load.counts(), load.with_model(|model| model.went_back()));
    println!("{cuts} cuts: {lost} sectors lost by drives, {went_back} went back, {counts:?}");
    assert!(lost > 10 * cuts && went_back > cuts, "too little was lost: this tests nothing");
    assert!(counts.failed > 0, "nothing was in flight at any cut: this tests too little");
    assert_eq!(counts.unanswered, 0, "connections outlive a power cut");
    assert_eq!(daemon.terminate().code(), Some(0), "{}", daemon.stderr());
}

#[test]
fn acknowledged_flushes_and_fua_writes_survive_120_power_cuts() {
    survives("on", "auto", 120);
}

#[test]
fn they_survive_60_cuts_of_drives_that_know_no_fua() {
    survives("off", "auto", 60);
}

#[test]
fn they_survive_60_cuts_on_epoll_and_threads() {
    survives("off", "epoll", 60);
}
