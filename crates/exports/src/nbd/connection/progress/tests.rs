//! Tests when a client is found to have stalled or to be too slow. The tests set the time.

use super::*;

const S: u64 = 1_000_000_000;

#[test]
fn stall_takes_a_timeout_of_looks_without_progress() {
    let mut progress = Progress::default();
    progress.note();
    assert!(!progress.is_stalled(), "it moved since the last look");
    assert!((1..LOOKS).all(|_| !progress.is_stalled()));
    progress.note();
    assert!((0..LOOKS).all(|_| !progress.is_stalled()));
    progress.restart_looks();
    assert!((1..LOOKS).all(|_| !progress.is_stalled()));
    assert!(progress.is_stalled());
}

#[test]
fn client_is_slow_only_over_a_whole_period_of_pressure() {
    let from_ns = 10 * S;
    let looks = |bytes_per_s: usize| {
        let mut progress = Progress::default();
        let mut look = |at_s: u64| {
            progress.moved(bytes_per_s);
            progress.is_slow((from_ns, at_s * S), 4 * S)
        };
        (10..20).map(&mut look).collect::<Vec<bool>>()
    };
    let slow = looks(8 << 10);
    assert_eq!(slow.iter().position(|slow| *slow), Some(4), "not before the period is over");
    assert!(looks(64 << 10).iter().all(|slow| !slow));
    let mut idle = Progress::default();
    assert!(!idle.is_slow((from_ns, 10 * S), 4 * S));
    (11..20).for_each(|at_s| idle.restart_rate(at_s * S));
    assert!(!idle.is_slow((from_ns, 20 * S), 4 * S), "nothing waited for it");
}

/// Returns true if a client counts as slow that transferred `bytes` in `took_ns` after a check at
/// 10 s.
fn slow(from_ns: u64, bytes: usize, took_ns: u64) -> bool {
    let mut progress = Progress::default();
    progress.moved(1000);
    assert!(!progress.is_slow((from_ns, 10 * S), 4 * S), "the first look");
    progress.moved(bytes);
    progress.is_slow((from_ns, 10 * S + took_ns), 4 * S)
}

#[test]
fn client_is_slow_below_64_kib_per_second_over_a_whole_period() {
    const ENOUGH: usize = 256 << 10;
    assert!(!slow(10 * S, ENOUGH, 4 * S));
    assert!(slow(10 * S, ENOUGH - 1, 4 * S));
    assert!(!slow(10 * S, 0, 4 * S - 1));
    assert!(slow(10 * S, ENOUGH, 4 * S + 1));
    assert!(!slow(11 * S, 0, 4 * S), "pressure that began since then begins the measure anew");
}

#[test]
fn a_rate_is_measured_anew_after_every_period_and_pause() {
    let mut progress = Progress::default();
    let mut look = |at_s, waits: bool, bytes| {
        progress.moved(bytes);
        if !waits {
            progress.restart_rate(at_s * S);
            return false;
        }
        progress.is_slow((S, at_s * S), 4 * S)
    };
    assert!(!look(2, true, 0));
    assert!(!look(6, true, 1 << 20), "enough");
    assert!(!look(9, true, 0));
    assert!(look(10, true, 0), "nothing of the second period");
    assert!(!look(13, false, 0), "it waits for nobody");
    assert!(!look(16, true, 0));
    assert!(look(17, true, 0));
}

#[test]
fn every_move_counts_even_one_of_no_bytes() {
    let mut progress = Progress::default();
    let stalls = |progress: &mut Progress| (0..LOOKS).any(|_| progress.is_stalled());
    progress.moved(0);
    assert!(!stalls(&mut progress));
    progress.moved(512);
    assert!(!stalls(&mut progress));
    assert!(progress.is_stalled());
    assert_eq!(progress.bytes, 512);
}
