//! Rows on simulated machines: the shapes that designs and interfaces must show, and repetition.
//!
//! Every expectation is of a kind that holds on any machine of its sort; one result is pinned to
//! the bit, so that debug and release builds agree. A change of the layer or of the model moves
//! that number, and nothing else here.

use millrace_block::baseline::{Inside, Stack};
use millrace_block::blktrace::{self, EventCode, RECORD_BYTES, Record};
use millrace_block::{Layout, Spread, Stamp};
use millrace_experiments::simulation::{
    DioCount, HostAdapterConfig, InterfaceKind, Irq, Length, Linux3, Linux24, LockScope,
    RecordingPlan, Service, SimPlan, Watch, machine, run_metered, run_metered_until, run_observed,
    run_rows, run_simulated,
};
use millrace_experiments::{Interrupt, Row, Rw, Workload};
use millrace_runtime::RecorderConfig;
use millrace_simulator::Model;

fn plan(cpus: u32, stack: Stack, interface: InterfaceKind) -> SimPlan {
    let iodepth = if interface == InterfaceKind::Sync { 1 } else { 32 };
    SimPlan {
        drives: vec!["null".parse().expect("the drive's spec must be valid")],
        layout: Layout::Linear,
        service: Service::default(),
        stack,
        software_queues: Spread::Core,
        hardware_queues: Spread::Core,
        cpus: (0..cpus).collect(),
        jobs: cpus,
        workload: Workload { rw: Rw::RandRead, bs_bytes: 512, iodepth, verify: false, seed: 1 },
        length: Length::Rounds,
        stamp: Stamp::Batch,
        interface,
        batch: None,
        irq: Irq::Submitter,
        watch: Watch::default(),
    }
}

const LOCKS: Watch = Watch { locks: true, tags: None, trace: None };

fn run(model: &Model, plan: &SimPlan) -> Row {
    let row = run_simulated(model, plan).expect("the plan must be valid");
    assert_eq!(row.outcome.errors, 0, "{row:?}");
    row
}

/// I/Os a second, in thousands.
fn kiops(model: &Model, plan: &SimPlan) -> u64 {
    (run(model, plan).iops / 1e3) as u64
}

#[test]
fn libaio_dips_when_a_second_socket_joins_and_the_ring_does_not() {
    let model = machine("x7560").unwrap();
    // A call for each I/O, as the paper's programs made.
    let plan = |cpus, interface| SimPlan { batch: Some(1), ..plan(cpus, Stack::Mq, interface) };
    let rates = |interface| [1, 8, 10].map(|cpus| kiops(&model, &plan(cpus, interface)));
    let libaio = rates(InterfaceKind::Libaio);
    let fixed = rates(InterfaceKind::LibaioFixed);
    let ring = rates(InterfaceKind::Ring);
    assert!(libaio[1] > 5 * libaio[0] && libaio[2] < libaio[1] * 9 / 10, "{libaio:?}");
    assert!(fixed[1] > 7 * fixed[0] && fixed[2] > fixed[1], "{fixed:?}");
    assert!(ring[1] > 79 * ring[0] / 10 && ring[2] > 99 * ring[0] / 10, "{ring:?}");
    assert!(ring[0] > fixed[0] && fixed[0] > libaio[0], "{libaio:?} {fixed:?} {ring:?}");
}

#[test]
fn a_single_queue_never_scales_on_four_sockets() {
    let model = machine("x7560").unwrap();
    let [sq, mq] = [Stack::Sq, Stack::Mq].map(|stack| {
        [1, 8, 32].map(|cpus| kiops(&model, &plan(cpus, stack, InterfaceKind::LibaioFixed)))
    });
    assert!(sq[2] < sq[0], "falls below one core: {sq:?}");
    assert!(sq[1] < 4 * sq[0], "{sq:?}");
    assert!(mq[2] > 25 * mq[0], "{mq:?}");
    assert!(mq[0].abs_diff(sq[0]) * 10 < mq[0], "about equal on one core: {mq:?} {sq:?}");
}

#[test]
fn one_core_does_what_the_inputs_say() {
    let model = machine("i7-3930k").unwrap();
    let [mq, sq, raw] = [Stack::Mq, Stack::Sq, Stack::Raw].map(|stack| {
        let plan = plan(1, stack, InterfaceKind::Libaio);
        // A call for each I/O, as the inputs say, on a kernel of the paper's time.
        let mut plan = SimPlan { hardware_queues: Spread::Node, batch: Some(1), ..plan };
        plan.service.inside = if stack == Stack::Mq { Inside::Each } else { Inside::ONE };
        let queue_counters = stack == Stack::Mq;
        plan.service.linux3 = Linux3 { dio_count: DioCount::All, queue_counters, noise_ns: 0 };
        kiops(&model, &plan)
    });
    assert!(mq.abs_diff(800) < 8, "0.8 M IOPS: {mq}");
    assert!(sq.abs_diff(mq) < 80, "about equal: {sq} {mq}");
    assert!((mq as f64 / raw as f64 - 0.78).abs() < 0.005, "22 % behind raw: {mq} {raw}");
}

#[test]
fn a_row_is_the_same_again_to_the_bit_and_in_every_build() {
    let plan = SimPlan { watch: LOCKS, ..plan(4, Stack::Mq, InterfaceKind::LibaioFixed) };
    let plan = SimPlan { hardware_queues: Spread::Node, ..plan };
    let model = Model::plain(2, 2);
    let (first, again) = (run(&model, &plan), run(&model, &plan));
    assert_eq!(first, again);
    let events = first.machine.as_ref().and_then(|machine| machine.sim_events);
    assert_eq!((first.iops as u64, events), (PINNED_IOPS, Some(PINNED_EVENTS)));
    let seed = Workload { seed: 2, ..plan.workload };
    assert_ne!(run(&model, &SimPlan { workload: seed, ..plan }).iops, first.iops);
}

/// IOPS on the plain machine. They change whenever the path or the cost of an I/O changes.
const PINNED_IOPS: u64 = 14_068_639;
const PINNED_EVENTS: u64 = 22_569;

#[test]
fn rows_side_by_side_are_those_of_one_after_another() {
    let model = Model::plain(1, 4);
    let plans: Vec<SimPlan> =
        (1..=4).map(|cpus| plan(cpus, Stack::Sq, InterfaceKind::Libaio)).collect();
    let rows = run_rows(4, |index| run_simulated(&model, &plans[index]), |_| ()).unwrap();
    for (plan, row) in plans.iter().zip(&rows) {
        assert_eq!(run(&model, plan), *row);
    }
}

#[test]
fn sync_makes_one_call_per_io_and_libaio_two_per_batch() {
    let model = Model::plain(1, 2);
    let calls = |interface| run(&model, &plan(2, Stack::Mq, interface)).cost.syscalls_per_io;
    assert_eq!(calls(InterfaceKind::Sync), 1.0);
    assert_eq!(calls(InterfaceKind::Libaio), 2.0 / 32.0);
    assert_eq!(calls(InterfaceKind::Ring), 0.0);
    let single = SimPlan { batch: Some(1), ..plan(1, Stack::Mq, InterfaceKind::LibaioFixed) };
    assert_eq!(run(&model, &single).cost.syscalls_per_io, 1.0 + 1.0 / 32.0);
}

#[test]
fn one_core_that_takes_all_interrupts_is_the_end_of_scaling() {
    let model = Model::plain(2, 4);
    let [own, core0, steered] = [Irq::Submitter, Irq::Core0, Irq::Steered].map(|irq| {
        let drives = vec!["null:delay=10us,depth=64".parse().unwrap()];
        let plan = plan(8, Stack::Mq, InterfaceKind::LibaioFixed);
        kiops(&model, &SimPlan { drives, irq, ..plan })
    });
    assert!(steered > core0 * 3 / 2 && own > 2 * steered, "{own} {steered} {core0}");
}

#[test]
fn an_interrupt_wakes_whoever_waits_for_one_io() {
    let model = machine("x7560").expect("one of ours");
    for (stack, irq) in [Stack::Mq, Stack::Sq, Stack::Raw]
        .map(|stack| [Irq::Core0, Irq::Steered].map(|irq| (stack, irq)))
        .concat()
    {
        let drives = vec!["null:delay=5us".parse().expect("the drive's spec must be valid")];
        let row = run(&model, &SimPlan { drives, irq, ..plan(8, stack, InterfaceKind::Sync) });
        // Of the program's call: with its system call, and behind the others' interrupts.
        assert!((10_000..35_000).contains(&row.lat_ns.p50), "{row:?}");
    }
}

/// A row of reads of 64 KiB, one at a time, with a history.
fn read_64k(rw: Rw, history: Linux24) -> Row {
    let plan = plan(1, Stack::Sq, InterfaceKind::Sync);
    let workload = Workload { rw, bs_bytes: 65_536, ..plan.workload };
    let service = Service { history, ..Service::default() };
    run(&Model::plain(1, 2), &SimPlan { workload, service, ..plan })
}

#[test]
fn a_copy_of_each_unit_takes_its_time_in_either_direction() {
    let history = Linux24 { unit_bytes: Some(4096), ..Linux24::default() };
    for rw in [Rw::RandRead, Rw::RandWrite] {
        let bounced = read_64k(rw, Linux24 { bounce: true, ..history });
        let ns = |row: &Row| 1e9 / row.iops;
        // 16 pages of 0.54, 8 x 2.18 and 0.18 us at 700 MHz; the plain machine has 2.5 GHz.
        let expected_ns = 16.0 * (541.4 + 8.0 * 2_179.0 + 177.1) * 0.7 / Model::plain(1, 2).ghz;
        let more_ns = ns(&bounced) - ns(&read_64k(rw, history));
        assert!((more_ns / expected_ns - 1.0).abs() < 0.05, "{more_ns} {expected_ns}");
    }
}

#[test]
fn the_latency_of_an_io_in_many_units_is_that_of_the_whole() {
    for unit_bytes in [512, 4096, 65_536] {
        let history = Linux24 { unit_bytes: Some(unit_bytes), ..Linux24::default() };
        let row = read_64k(Rw::RandRead, history);
        // One at a time: an I/O takes what its rate says, but for the program between two.
        let each_ns = 1e9 / row.iops;
        let mean_ns = row.lat_ns.mean as f64;
        assert!(mean_ns <= each_ns * 1.01 && mean_ns > each_ns * 0.8, "{unit_bytes} {row:?}");
        assert_eq!(row.lat_ns.samples, row.ios);
    }
}

#[test]
fn interrupts_of_linux_2_4_wake_waiters_for_several_drives() {
    let model = machine("p3-8way").expect("one of ours");
    // Fewer jobs than drives, as many, and more: any of them may wait for any drive.
    for (stack, jobs) in [(Stack::Sq, 1), (Stack::Sq, 3), (Stack::Mq, 2), (Stack::Sq, 4)] {
        let plan = plan(jobs, stack, InterfaceKind::Sync);
        let history = Linux24 { adapters: Some(LockScope::Global), ..Linux24::default() };
        let drives = vec![
            "model:read=20us,units=4,latency=0us"
                .parse()
                .expect("the drive's spec must be valid");
            3
        ];
        let layout = Layout::Stripe { chunk_sectors: 8 };
        let service = Service { history, ..Service::default() };
        let row = run(&model, &SimPlan { drives, layout, service, irq: Irq::Core0, ..plan });
        // Whoever is not told looks by itself after a millisecond.
        assert!(row.lat_ns.p90 < 800_000, "{stack:?} {row:?}");
    }
}

#[test]
fn what_stands_around_drive_that_completes_at_once_leaves_it_so() {
    let model = Model::plain(2, 2);
    let adapter = HostAdapterConfig {
        lookup_lock: true,
        host_busy: true,
        controller_lock: true,
        coalescing: false,
    };
    let plain = || Service { inside: Inside::Each, ..Service::default() };
    for (irq, service) in [
        (Irq::Submitter, Service { adapter, ..plain() }),
        (Irq::Submitter, Service { nomerges: true, ..plain() }),
        (Irq::Poller, plain()),
    ] {
        let plan = plan(4, Stack::Mq, InterfaceKind::Ring);
        run(&model, &SimPlan { service, irq, hardware_queues: Spread::Node, ..plan });
    }
    let handled =
        SimPlan { service: plain(), irq: Irq::Core0, ..plan(2, Stack::Mq, InterfaceKind::Ring) };
    let refused = run_simulated(&model, &handled).expect_err("a handler files what is done");
    assert!(
        refused.to_string().contains("the drive does not complete requests immediately"),
        "{refused}"
    );
}

#[test]
fn a_modelled_drive_takes_its_time_there_too() {
    let model = Model::plain(1, 2);
    let drives = vec!["model:read=50us,units=4,latency=0us".parse().unwrap()];
    let plan = SimPlan { drives, ..plan(2, Stack::Mq, InterfaceKind::Ring) };
    let row = run(&model, &plan);
    assert!((70_000.0..=80_500.0).contains(&row.iops), "4 units of 50 us: {row:?}");
    assert!(row.lat_ns.p50 > 400_000, "64 in flight over 4 units: {row:?}");
}

#[test]
fn locks_have_rows_by_place_on_both_machines() {
    let plan = SimPlan { watch: LOCKS, ..plan(2, Stack::Sq, InterfaceKind::Libaio) };
    let simulated = run(&Model::plain(2, 1), &plan);
    let plan = SimPlan { cpus: Vec::new(), length: Length::Ios(1000), ..plan };
    let native = run_metered(&plan).unwrap();
    for row in [simulated, native] {
        let machine = row.machine.as_ref().unwrap();
        let locks = machine.locks.as_ref().unwrap();
        let queue: Vec<_> = locks.iter().filter(|lock| lock.name == "request-queue").collect();
        let (sum, places) = queue.split_first().unwrap();
        assert!(sum.site.is_none() && places.len() == 4, "{queue:?}");
        let taken: u64 = places.iter().map(|lock| lock.acquisitions).sum();
        assert!(sum.acquisitions == taken && taken >= 3 * row.ios, "{queue:?}");
        let site = places[0].site.as_deref().unwrap();
        assert!(site.contains("block/src/disk/baseline/sq.rs:"), "{site}");
        assert!(locks.iter().any(|lock| lock.name == "aio-ring"));
        let serve = locks.iter().find(|lock| lock.name == "serve").unwrap();
        assert!(serve.acquisitions > 0 && serve.hold_ns_max > 0, "{serve:?}");
    }
}

#[test]
fn plans_that_fit_no_machine_say_why() {
    let model = Model::plain(1, 2);
    let good = plan(1, Stack::Mq, InterfaceKind::Ring);
    let error = |plan: SimPlan| {
        run_simulated(&model, &plan).expect_err("the input must be refused").to_string()
    };
    assert_eq!(
        error(SimPlan { cpus: vec![2], ..good.clone() }),
        "CPU 2 does not exist: the machine has 2"
    );
    let file = SimPlan { drives: vec!["file:path=/x".parse().unwrap()], ..good.clone() };
    assert_eq!(
        error(file),
        "drive file:path=/x: drive file cannot run on a simulated machine; use null, ram or model"
    );
    let sync = SimPlan { interface: InterfaceKind::Sync, ..good.clone() };
    assert_eq!(error(sync), "interface sync has one I/O in flight: iodepth is 32");
    let odd = Workload { bs_bytes: 513, ..good.workload };
    assert!(error(SimPlan { workload: odd, ..good }).starts_with("bs=513: not a multiple"));
}

#[test]
fn excess_jobs_are_refused_with_the_number_of_threads() {
    let mut plan = plan(1, Stack::Mq, InterfaceKind::Ring);
    plan.jobs = 4_096;
    let model = machine("e7-2870").expect("the built-in file must be valid");
    let text = run_simulated(&model, &plan).expect_err("too many").to_string();
    let said = "numjobs=4096: a simulated machine has room for 4096 threads; use 4014 or fewer";
    assert!(text.contains(said), "{text}");
}

/// The acts of all records of a trace's files.
fn acts(files: &[std::path::PathBuf]) -> Vec<EventCode> {
    let mut acts = Vec::new();
    for file in files {
        let bytes = std::fs::read(file).expect("a file that was named");
        let mut rest = &bytes[..];
        while let Some((head, data)) = rest.split_first_chunk::<RECORD_BYTES>() {
            let record = Record::decode(head).expect("the record must be complete");
            acts.extend(record.act());
            rest = &data[record.pdu_len as usize..];
        }
        assert!(rest.is_empty(), "{}: half a record", file.display());
    }
    acts
}

#[test]
fn bounces_are_in_both_traces_and_a_full_ring_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let traced = |name: &str, ring| RecordingPlan {
        config: RecorderConfig { name: dir.path().join(name), ..RecorderConfig::default() },
        devices: vec![blktrace::device(240, 0)],
        ring,
    };
    let plan = |name, ring, bounce| {
        let history = Linux24 { unit_bytes: Some(512), bounce, ..Linux24::default() };
        let one = Workload {
            bs_bytes: 4096,
            iodepth: 1,
            ..plan(1, Stack::Sq, InterfaceKind::Ring).workload
        };
        SimPlan {
            drives: vec!["ram:size=4m".parse().unwrap()],
            service: Service { history, ..Service::default() },
            workload: one,
            length: Length::Ios(20),
            watch: Watch { trace: Some(traced(name, ring)), ..LOCKS },
            ..plan(2, Stack::Sq, InterfaceKind::Ring)
        }
    };
    let simulated = |name, ring, bounce| {
        let observed = run_observed(&Model::plain(1, 2), &plan(name, ring, bounce)).unwrap();
        observed.recorded.expect("it was asked for")
    };
    let native = |name| {
        let plan = SimPlan { cpus: Vec::new(), ..plan(name, 1 << 18, true) };
        let observed = run_metered_until(&plan, &Interrupt::default()).unwrap();
        observed.and_then(|observed| observed.recorded).expect("it was asked for")
    };
    for recorded in [simulated("simulated", 4096, true), native("native")] {
        assert_eq!(recorded.dropped, 0, "{recorded:?}");
        let acts = acts(&recorded.files);
        assert_eq!(acts.len() as u64, recorded.events);
        let count = |wanted| acts.iter().filter(|act| **act == wanted).count();
        // Two jobs of 20 I/Os at least, each of eight buffer heads in one request.
        assert!(count(EventCode::Bounce) >= 40, "{recorded:?}");
        assert_eq!(count(EventCode::Bounce), count(EventCode::Issue));
        assert_eq!(count(EventCode::Queue), 8 * count(EventCode::Issue));
    }
    let plain = simulated("plain", 4096, false);
    assert!(!acts(&plain.files).contains(&EventCode::Bounce) && plain.events > 0);
    assert!(simulated("small", 16, true).dropped > 0);
}
