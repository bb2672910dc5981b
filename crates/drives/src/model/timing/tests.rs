//! The timing alone, in made-up time: depth 1, saturation, sharing, and the presets' figures.

use std::collections::BinaryHeap;

use super::*;
use crate::model::preset::model_presets;

const READ: ModelIoKind = ModelIoKind::Read;
const WRITE: ModelIoKind = ModelIoKind::Write;

fn page(kind: ModelIoKind, number: u64) -> ModelIo {
    ModelIo { kind, sector: number * 8, nr_sectors: 8 }
}

/// I/Os per second and mean latency of a closed loop of `depth` I/Os on idle drives, each submitted
/// to the drive after the last one's in turn.
fn closed_loop(
    drives: &mut [ServiceTiming],
    depth: u32,
    controller: Option<&ModelController>,
    mut io: impl FnMut(u64) -> ModelIo,
) -> (f64, f64) {
    const IOS: u64 = 50_000;
    const WARM_UP: u64 = 10_000;
    let mut ends = BinaryHeap::new();
    let (mut start_ns, mut end_ns, mut latency_ns) = (0, 0, 0);
    for number in 0..IOS + WARM_UP {
        let (now_ns, drive) = match number < u64::from(depth) {
            true => (0, number as usize % drives.len()),
            false => {
                let std::cmp::Reverse((done_ns, drive)) = ends.pop().unwrap();
                (done_ns, drive)
            }
        };
        let done_ns = drives[drive].submit(now_ns, io(number), controller);
        assert!(done_ns >= now_ns);
        ends.push(std::cmp::Reverse((done_ns, drive)));
        if number == WARM_UP {
            start_ns = now_ns;
        }
        if number >= WARM_UP {
            end_ns = now_ns;
            latency_ns += done_ns - now_ns;
        }
    }
    (IOS as f64 * 1e9 / (end_ns - start_ns) as f64, latency_ns as f64 / IOS as f64)
}

fn random(kind: ModelIoKind) -> impl FnMut(u64) -> ModelIo {
    random_within(kind, 1 << 24)
}

fn random_within(kind: ModelIoKind, pages: u64) -> impl FnMut(u64) -> ModelIo {
    move |number| page(kind, mixed(number) % pages)
}

fn sequential(kind: ModelIoKind) -> impl FnMut(u64) -> ModelIo {
    move |number| ModelIo { kind, sector: number * 256, nr_sectors: 256 }
}

fn near(what: &str, found: f64, stated: u64) {
    let off = found / stated as f64 - 1.0;
    println!("{what}: {found:.0}, stated {stated}, {:+.1} %", off * 100.0);
    assert!(off.abs() < 0.05, "{what}: {found:.0} is not {stated}");
}

#[test]
fn single_io_takes_command_latency_service_and_transfer() {
    let config = ModelTiming {
        read_time: Duration::from_nanos(50_000),
        write_time: Duration::from_nanos(70_000),
        latency: Duration::from_nanos(5_000),
        read_command_time: Duration::from_nanos(300),
        write_command_time: Duration::from_nanos(400),
        read_bytes_per_s: 4096 * 1_000_000,
        ..ModelTiming::default()
    };
    let mut timing = ServiceTiming::new(&config);
    assert_eq!(timing.submit(1_000_000, page(READ, 1), None), 1_056_300);
    assert_eq!(timing.submit(2_000_000, page(WRITE, 1), None), 2_075_400);
    let command = page(ModelIoKind::Command, 1);
    assert_eq!(timing.submit(3_000_000, command, None), 3_005_400);
    let half = ModelIo { kind: READ, sector: 1, nr_sectors: 1 };
    assert_eq!(timing.submit(4_000_000, half, None), 4_055_425, "a whole page, a short transfer");
}

#[test]
fn pages_of_one_io_work_at_once_and_io_on_one_page_in_sequence() {
    let config = ModelTiming { latency: Duration::ZERO, units: 16, ..ModelTiming::default() };
    let mut timing = ServiceTiming::new(&config);
    let pages = |nr: u32| ModelIo { kind: READ, sector: 0, nr_sectors: nr * 8 };
    assert_eq!(timing.submit(0, pages(16), None), 80_000);
    assert_eq!(timing.submit(80_000, pages(17), None), 240_000);
    assert_eq!(timing.submit(1_000_000, pages(1), None), 1_080_000);
    assert_eq!(timing.submit(1_000_000, pages(1), None), 1_160_000);
    let straddling = ModelIo { kind: READ, sector: 804, nr_sectors: 8 };
    let mut timing = ServiceTiming::new(&ModelTiming { units: 1, ..config });
    assert_eq!(timing.submit(0, straddling, None), 160_000, "two pages");
}

#[test]
fn blocks_of_a_flash_page_share_one_die_and_one_time() {
    let config = ModelTiming {
        latency: Duration::ZERO,
        units: 16,
        page_bytes: 16_384,
        ..ModelTiming::default()
    };
    let blocks =
        |first: u64, nr: u32| ModelIo { kind: READ, sector: first * 8, nr_sectors: nr * 8 };
    let mut timing = ServiceTiming::new(&config);
    assert_eq!(timing.submit(0, blocks(0, 4), None), 80_000, "one page");
    assert_eq!(timing.submit(80_000, blocks(0, 1), None), 160_000, "a block takes as long");
    assert_eq!(timing.submit(80_000, blocks(1, 1), None), 240_000, "and its neighbour waits");
    assert_eq!(timing.submit(240_000, blocks(3, 2), None), 320_000, "two pages, of two dies");
}

#[test]
fn rates_over_depth_follow_from_dies() {
    let iops = |name: &str, depth| {
        let preset = model_presets().iter().find(|preset| preset.name == name).unwrap();
        let config = preset.config();
        let random = random_within(READ, config.size_bytes >> 12);
        closed_loop(&mut [ServiceTiming::new(&config.timing)], depth, None, random).0
    };
    for name in ["850evo", "950pro", "520"] {
        let by_depth = [1, 2, 4, 8, 16, 32, 64, 128].map(|depth| iops(name, depth).round());
        println!("{name} at depths 1 to 128: {by_depth:?}");
    }
    // 32 places for 32 I/Os at random: some dies have two or more of them, and a third has none.
    let share = iops("950pro", 32) / 300_000.0;
    assert!((0.6..0.95).contains(&share), "{share}");
}

#[test]
fn presets_reach_their_stated_rates() {
    for preset in model_presets() {
        let config = preset.config();
        let new = || [ServiceTiming::new(&config.timing)];
        let random = |kind| random_within(kind, config.size_bytes >> 12);
        let iops = |kind| closed_loop(&mut new(), preset.depth, None, random(kind)).0;
        near(&format!("{} random reads", preset.name), iops(READ), preset.random_iops.0);
        near(&format!("{} random writes", preset.name), iops(WRITE), preset.random_iops.1);
        let rate = |kind| closed_loop(&mut new(), 32, None, sequential(kind)).0 * 131_072.0;
        near(&format!("{} sequential read", preset.name), rate(READ), preset.bytes_per_s.0);
        near(&format!("{} sequential write", preset.name), rate(WRITE), preset.bytes_per_s.1);
        let alone = |kind| closed_loop(&mut new(), 1, None, random(kind)).1;
        near(&format!("{} read latency", preset.name), alone(READ), nanoseconds(preset.latency.0));
        near(
            &format!("{} write latency", preset.name),
            alone(WRITE),
            nanoseconds(preset.latency.1),
        );
    }
}

/// Source: AnandTech on Samsung's SATA drives, as cited in `preset.rs`.
#[test]
fn ssd_850_evo_reaches_its_random_reads_near_depth_16_not_8() {
    let preset = model_presets().iter().find(|preset| preset.name == "850evo").unwrap();
    let config = preset.config();
    let share = |depth| {
        let random = random_within(READ, config.size_bytes >> 12);
        let iops = closed_loop(&mut [ServiceTiming::new(&config.timing)], depth, None, random).0;
        println!("depth {depth}: {iops:.0}");
        iops / preset.random_iops.0 as f64
    };
    let [at_4, at_8, at_16] = [4, 8, 16].map(share);
    assert!(at_4 < 0.5 && at_8 < 0.85 && at_16 > 0.95, "{at_4}, {at_8}, {at_16}");
}

#[test]
fn buffered_writes_are_fast_until_the_units_are_behind() {
    let config = ModelTiming {
        units: 4,
        write_time: Duration::from_nanos(400_000),
        latency: Duration::from_nanos(10_000),
        buffer_bytes: 64 << 10,
        ..ModelTiming::default()
    };
    let mut timing = ServiceTiming::new(&config);
    // Sixteen pages fit, and leave at one in 100 us.
    let fast = (0..16).all(|n| timing.submit(0, page(WRITE, n), None) == 10_000);
    assert!(fast, "the buffer was empty");
    let behind = [16, 17, 18].map(|n| timing.submit(0, page(WRITE, n), None));
    assert_eq!(behind, [110_000, 210_000, 310_000]);
    assert_eq!(timing.submit(0, page(ModelIoKind::Flush, 0), None), 1_910_000);
    assert_eq!(timing.submit(0, page(ModelIoKind::DurableWrite, 0), None), 2_010_000);
    assert_eq!(timing.submit(0, page(READ, 0), None), 90_000, "reads do not wait for programs");
}

#[test]
fn drives_of_one_controller_share_its_link() {
    let controller = ModelController::new("c", 0, 600_000_000);
    let config = model_presets()[0].config().timing;
    let mut four =
        [0, 1, 2, 3].map(|seed| ServiceTiming::new(&ModelTiming { seed, ..config.clone() }));
    let rate = closed_loop(&mut four, 128, Some(&controller), sequential(READ)).0 * 131_072.0;
    near("four drives on one link", rate, 600_000_000);
    let mut four =
        [0, 1, 2, 3].map(|seed| ServiceTiming::new(&ModelTiming { seed, ..config.clone() }));
    let rate = closed_loop(&mut four, 128, None, sequential(READ)).0 * 131_072.0;
    near("four drives, each on its own", rate, 4 * 540_000_000);
}

#[test]
fn same_seed_gives_the_same_times_and_another_seed_others() {
    let run = |seed| {
        let config = ModelTiming {
            jitter: 0.2,
            tail_share: 0.01,
            tail: Duration::from_nanos(1_000_000),
            seed,
            ..ModelTiming::default()
        };
        let mut timing = ServiceTiming::new(&config);
        let mut io = random(READ);
        (0..1000).map(|n| timing.submit(n * 10_000, io(n), None)).collect::<Vec<_>>()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn tail_lengthens_its_share_of_ios_by_its_mean() {
    let config = ModelTiming {
        tail_share: 0.1,
        tail: Duration::from_nanos(500_000),
        jitter: 0.5,
        ..ModelTiming::default()
    };
    let mut timing = ServiceTiming::new(&config);
    let varied: Vec<u64> = (0..100_000).map(|_| timing.vary(Duration::from_micros(100))).collect();
    let mean = varied.iter().sum::<u64>() / 100_000;
    assert!((148_000..152_000).contains(&mean), "{mean}");
    let longer = varied.iter().filter(|time_ns| **time_ns > 150_000).count();
    assert!((8_500..10_500).contains(&longer), "{longer}");
}
