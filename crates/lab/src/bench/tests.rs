//! Tests of rows: what happens before a row is no part of it.

use millrace_block::{DiskConfig, Op};

use super::*;
use crate::workload::Rw;

/// A row of 100 I/Os by each of two jobs on a drive with a cache; the row, and flushes in all.
fn row(rw: Rw, flushes_first: bool) -> (Row, u64) {
    let spec = "model:size=16m,latency=3us,buffer=1m".parse().unwrap();
    let driver = millrace_drives::open(&spec, 8).unwrap().driver;
    let disk = Disk::new(driver, DiskConfig::default()).unwrap();
    let volume = Volume::single(disk).unwrap();
    let plan = Plan {
        workload: Workload { rw, bs_bytes: 4096, iodepth: 4, verify: false, seed: 1 },
        jobs: 2,
        cpus: Vec::new(),
        runtime: Duration::from_secs(60),
        ios: Some(100),
        stamp: Stamp::Batch,
        reactor: Config::default(),
        size_bytes: None,
        flushes_first,
        interrupt: Interrupt::default(),
    };
    let row = run_row(&volume, &plan, &mut |_| ()).unwrap();
    (row, volume.drives()[0].stats().ops[Op::Flush as usize].ios)
}

#[test]
fn a_row_that_writes_begins_with_drives_flushed_if_asked_and_does_not_count_that() {
    let (row, flushes) = row(Rw::RandWrite, true);
    assert_eq!((row.ios, row.outcome.errors, flushes), (200, 0, 1));
    assert_eq!((row.outcome.states[0].start, row.outcome.states[0].complete), (200, 200));
    assert_eq!(row.lat_ns.samples, 200);
}

#[test]
fn a_row_that_reads_or_is_not_asked_to_flushes_nothing() {
    for (rw, flushes_first) in [(Rw::RandRead, true), (Rw::RandWrite, false)] {
        let (row, flushes) = row(rw, flushes_first);
        assert_eq!((row.ios, row.outcome.states[0].complete, flushes), (200, 200, 0));
    }
}
