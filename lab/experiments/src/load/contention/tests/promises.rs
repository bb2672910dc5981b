//! Promises of docs/scheduling.md: late comers, pauses, large requests.
//!
//! On drives that are slow, so that nothing but the scheduler decides, and in virtual time, so that
//! the figures are the same each time.

use std::time::Duration;

use millrace_block::{LatencyTarget, Priority};

use super::*;

const MS: u64 = 1_000_000;
const KIB: u32 = 1 << 10;
/// Slow drive of 16 MB/s: 4 KiB take 2 ms, 64 KiB take 4 ms and 1 MiB takes 65 ms.
const SLOW: &str = "model:units=8,read=2ms,write=2ms,latency=50us,size=4g,depth=128,queues=1";

fn client(name: &str, group: u16, (bs_bytes, iodepth): (u32, u32)) -> Client {
    Client { bs_bytes, ..super::client(name, group, iodepth) }
}

/// Returns a client that reads 4 KiB, one at a time.
fn reader() -> Client {
    client("reader", 1, (4 * KIB, 1))
}

fn run(drive: &str, scheduler: SchedulerKind, clients: Vec<Client>) -> ContentionReport {
    let mut plan = super::plan(drive, clients);
    plan.scheduler = scheduler;
    let times = match drive {
        SLOW => (2_000, 4_000),
        "model:preset=hdd7200" => (5_000, 10_000),
        _ => (300, 200),
    };
    (plan.phases.warm_up_ns, plan.phases.length_ns) = (times.0 * MS, times.1 * MS);
    if scheduler == SchedulerKind::Latency {
        plan.groups[0].latency_target =
            Some(LatencyTarget::Percentile(9_900, Duration::from_millis(20)));
    }
    super::run(&plan)
}

fn row<'a>(report: &'a ContentionReport, name: &str) -> &'a ClientRow {
    report.client(name).expect("it is there")
}

/// Returns the 99th percentile of the reader's latency, in milliseconds.
fn p99_ms(report: &ContentionReport) -> f64 {
    row(report, "reader").lat_ns.p99 as f64 / MS as f64
}

/// From the start, when the drive's speed is not known yet, and again after rests.
#[test]
fn a_reader_does_not_wait_for_all_of_one_very_large_write() {
    for (pause_ms, length_ms) in [(0, 500), (3_000, 15_000)] {
        for scheduler in [SchedulerKind::Fair, SchedulerKind::Latency] {
            let reader = Client { start_ns: MS, thinktime_ns: pause_ms * MS / 30, ..reader() };
            let large = client("large", 2, (32 << 20, 1));
            let large = Client { rw: Rw::RandWrite, thinktime_ns: pause_ms * MS, ..large };
            let mut plan = super::plan(SLOW, vec![reader, large]);
            plan.scheduler = scheduler;
            (plan.phases.warm_up_ns, plan.phases.length_ns) = (0, length_ms * MS);
            let report = super::run(&plan);
            let max_ms = row(&report, "reader").lat_ns.max as f64 / MS as f64;
            assert!(max_ms <= 40.0, "{scheduler:?}, pauses of {pause_ms} ms: {max_ms} ms");
            assert!(row(&report, "large").ios >= length_ms / 8_000, "{report:?}");
        }
    }
}

#[test]
fn a_reader_keeps_a_third_beside_requests_of_any_size() {
    // Both cannot have more where requests of a few pages meet at a drive's units by chance, or
    // where a drive has one arm: docs/scheduling.md has the arithmetic.
    let drives = [
        (SLOW, [(4, 0.83), (16, 0.78), (64, 0.85), (128, 0.85), (1024, 0.85)]),
        ("model:preset=850evo", [(4, 0.9), (16, 0.94), (64, 0.92), (128, 0.92), (1024, 0.92)]),
        ("model:preset=950pro", [(4, 0.92), (16, 0.98), (64, 0.98), (128, 0.98), (1024, 0.98)]),
        ("model:preset=hdd7200", [(4, 0.6), (16, 0.5), (64, 0.5), (128, 0.5), (1024, 0.4)]),
    ];
    for (drive, sizes) in drives {
        let alone = |client: Client| {
            let name = client.name.clone();
            row(&run(drive, SchedulerKind::None, vec![client]), &name).iops
        };
        let reads = alone(reader());
        for (kib, least) in sizes {
            let bulk = client("bulk", 2, (kib * KIB, 64));
            let bulk_alone = alone(bulk.clone());
            let report = run(drive, SchedulerKind::Fair, vec![reader(), bulk]);
            let kept = row(&report, "reader").iops / reads;
            let bulk_kept = row(&report, "bulk").iops / bulk_alone;
            println!("{drive}, {kib} KiB: {kept:.2}, {bulk_kept:.2}");
            assert!(kept >= 0.3, "{drive}, beside {kib} KiB: {kept}");
            assert!(bulk_kept >= least, "{drive}, {kib} KiB keep {bulk_kept}");
        }
    }
}

/// Without small reads, the other client's pieces grow to 512 KiB now and then, which take this
/// drive 33 ms. A probe of the drive must see enough small reads beside such pieces.
#[test]
fn a_late_reader_gets_its_share_whatever_the_size_of_pieces() {
    let alone = |client: Client| {
        let name = client.name.clone();
        row(&run(SLOW, SchedulerKind::None, vec![client]), &name).iops
    };
    let bulk = || client("bulk", 2, (1024 * KIB, 64));
    let (reads, bulk_alone) = (alone(reader()), alone(bulk()));
    for late_ms in (11_000..14_000).step_by(500) {
        let late = Client { start_ns: late_ms * MS, ..reader() };
        let mut plan = super::plan(SLOW, vec![late, bulk()]);
        plan.scheduler = SchedulerKind::Fair;
        (plan.phases.warm_up_ns, plan.phases.length_ns) = ((late_ms + 10_000) * MS, 10_000 * MS);
        let report = super::run(&plan);
        let kept = row(&report, "reader").iops / reads;
        let bulk_kept = row(&report, "bulk").iops / bulk_alone;
        assert!(kept >= 0.4, "from {late_ms} ms: {kept}");
        assert!(bulk_kept >= 0.85, "from {late_ms} ms: the other client keeps {bulk_kept}");
    }
}

/// All 64 MiB of the other client are queued in pieces when the reader comes, and take 4 s: pieces
/// must be short before there is anybody to wait for them.
#[test]
fn a_late_reader_gets_its_share_within_seconds() {
    let reads = row(&run(SLOW, SchedulerKind::None, vec![reader()]), "reader").iops;
    for late_ms in [3_000, 7_000] {
        let late = Client { start_ns: late_ms * MS, ..reader() };
        let mut plan = super::plan(SLOW, vec![late, client("bulk", 2, (1024 * KIB, 64))]);
        plan.scheduler = SchedulerKind::Fair;
        (plan.phases.warm_up_ns, plan.phases.length_ns) = (late_ms * MS, 4_000 * MS);
        let kept = row(&super::run(&plan), "reader").iops / reads;
        assert!(kept >= 0.3, "from {late_ms} ms: {kept}");
    }
}

#[test]
fn a_reader_keeps_half_beside_seven_clients_of_depth_256() {
    for drive in ["model:preset=850evo", "model:preset=950pro"] {
        let alone = row(&run(drive, SchedulerKind::None, vec![reader()]), "reader").iops;
        for rw in [Rw::RandRead, Rw::RandWrite] {
            let deep =
                |number| Client { rw, ..client(&format!("deep{number}"), 2, (4 * KIB, 256)) };
            let clients = std::iter::once(reader()).chain((0..7).map(deep)).collect();
            let kept = row(&run(drive, SchedulerKind::Fair, clients), "reader").iops / alone;
            println!("{drive}, {rw}: {kept:.2}");
            assert!(kept >= 0.5, "{drive}, {rw}: {kept}");
        }
    }
}

#[test]
fn a_reader_keeps_half_beside_flushes_and_durable_writes() {
    let writer = |iodepth| Client { rw: Rw::RandWrite, ..client("writer", 2, (4 * KIB, iodepth)) };
    let storms = [
        Client { fsync: 1, ..writer(32) },
        Client { fsync: 32, ..writer(256) },
        Client { sync: true, ..writer(256) },
    ];
    // On the slow drive a reader may lose up to two thirds for the other's throughput.
    for (drive, least) in [(SLOW, 0.3), ("model:preset=850evo", 0.5), ("model:preset=950pro", 0.5)]
    {
        let alone = row(&run(drive, SchedulerKind::None, vec![reader()]), "reader").iops;
        for storm in &storms {
            let report = run(drive, SchedulerKind::Fair, vec![reader(), storm.clone()]);
            let kept = row(&report, "reader").iops / alone;
            assert!(kept >= least, "{drive}, {storm:?}: {kept}");
        }
    }
}

#[test]
fn a_target_holds_for_a_group_of_idle_priority() {
    let mut plan = super::plan(SLOW, vec![reader(), client("bulk", 2, (4 * KIB, 64))]);
    plan.scheduler = SchedulerKind::Latency;
    (plan.phases.warm_up_ns, plan.phases.length_ns) = (3_000 * MS, 4_000 * MS);
    plan.groups[0].latency_target =
        Some(LatencyTarget::Percentile(9_900, Duration::from_millis(20)));
    plan.groups[0].priority = Priority::Idle;
    let report = super::run(&plan);
    let (reads, bulk) = (row(&report, "reader").iops, row(&report, "bulk").iops);
    assert!(p99_ms(&report) <= 20.0 && reads >= 60.0 && bulk >= 2_700.0, "{report:?}");
}

/// For longer than the shortest times of a drive are remembered: small reads that wait for pieces
/// must not make pieces longer.
#[test]
fn a_target_holds_for_a_minute_beside_large_writes() {
    let writer = Client { rw: Rw::RandWrite, ..client("bulk", 2, (1024 * KIB, 64)) };
    let mut plan = super::plan(SLOW, vec![reader(), writer]);
    plan.scheduler = SchedulerKind::Latency;
    (plan.phases.warm_up_ns, plan.phases.length_ns) = (5_000 * MS, 60_000 * MS);
    plan.groups[0].latency_target =
        Some(LatencyTarget::Percentile(9_900, Duration::from_millis(20)));
    let p99 = p99_ms(&super::run(&plan));
    assert!(p99 <= 20.0, "{p99}");
}

/// Returns the share of its IOPS without a scheduler that a lone client keeps under `scheduler`.
fn kept_alone(drive: &str, scheduler: SchedulerKind, (rw, kib, iodepth): (Rw, u32, u32)) -> f64 {
    let iops = |scheduler| {
        let bulk = Client { rw, ..client("bulk", 2, (kib * KIB, iodepth)) };
        row(&run(drive, scheduler, vec![bulk]), "bulk").iops
    };
    iops(scheduler) / iops(SchedulerKind::None)
}

#[test]
fn a_group_alone_keeps_what_the_drive_does() {
    let [sata, nvme, disk] =
        ["850evo", "950pro", "hdd7200"].map(|name| format!("model:preset={name}"));
    let loads = [
        (SLOW, (Rw::RandRead, 4, 64)),
        (SLOW, (Rw::RandRead, 64, 64)),
        (SLOW, (Rw::RandRead, 1024, 64)),
        (&sata, (Rw::RandRead, 128, 64)),
        (&sata, (Rw::RandRead, 1024, 64)),
        // The SATA drive reads and writes at the same time.
        (&sata, (Rw::HALF, 1024, 4)),
        (&nvme, (Rw::RandRead, 1024, 64)),
        // The scheduler must not cause seeks between I/Os that follow each other.
        (&disk, (Rw::Write, 128, 256)),
        (&disk, (Rw::Read, 128, 256)),
    ];
    for (drive, load) in loads {
        let kept = kept_alone(drive, SchedulerKind::Fair, load);
        assert!(kept >= 0.94, "{drive}, {load:?}: {kept}");
    }
    let kept = kept_alone(&disk, SchedulerKind::Latency, (Rw::HALF, 128, 32));
    assert!(kept >= 0.9, "a disk seeks for each piece: {kept}");
}
