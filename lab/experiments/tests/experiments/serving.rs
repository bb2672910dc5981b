//! The serving modes on the simulated machine: modelled drives, one submitter, workers.
//!
//! The assertions hold for the designs on any machine of that kind; `--nocapture` prints the table.

use millrace_block::baseline::Stack;
use millrace_block::{Layout, Serving, ServingConfig, Spread, Stamp};
use millrace_experiments::simulation::{
    InterfaceKind, Irq, Length, Service, SimPlan, Watch, machine, run_simulated,
};
use millrace_experiments::{DriveStates, Rw, Workload};
use millrace_simulator::Model;

fn plan(serving: Serving, drives: usize, rw: Rw, bs_bytes: u32, workers: &[u32]) -> SimPlan {
    SimPlan {
        drives: vec!["model:preset=850evo".parse().expect("the preset must exist"); drives],
        layout: Layout::Stripe { chunk_sectors: 8 },
        service: Service {
            controllers: Vec::new(),
            serving: ServingConfig::of(serving),
            worker_cpus: workers.to_vec(),
            apart: false,
            ..Service::default()
        },
        stack: Stack::Mq,
        software_queues: Spread::Core,
        hardware_queues: Spread::Core,
        cpus: vec![0],
        jobs: 1,
        workload: Workload { rw, bs_bytes, iodepth: 512, verify: false, seed: 1 },
        length: Length::Rounds,
        stamp: Stamp::Batch,
        interface: InterfaceKind::Libaio,
        batch: None,
        irq: Irq::Submitter,
        watch: Watch::default(),
    }
}

/// A machine whose kernel takes two microseconds for an I/O.
fn slow() -> Model {
    let mut model = Model::plain(2, 6);
    for cost in [&mut model.work.interface, &mut model.work.submit, &mut model.work.driver] {
        cost.ns = 500.0;
    }
    for cost in [&mut model.work.insert, &mut model.work.dispatch, &mut model.work.complete] {
        cost.ns = 200.0;
    }
    model.work.search.ns = 4.0;
    model
}

#[test]
fn modes_differ_as_their_designs_say_and_lose_nothing() {
    let model = slow();
    let workers: Vec<u32> = (1..9).collect();
    let mut table = Vec::new();
    for (rw, bs) in [(Rw::RandRead, 4096), (Rw::RandWrite, 4096), (Rw::Read, 65_536)] {
        for drives in [1, 8] {
            let mut row = Vec::new();
            for (_, name) in Serving::NAMES {
                let serving = Serving::NAMES.iter().find(|n| n.1 == name).expect("one of them").0;
                let row_of = run_simulated(&model, &plan(serving, drives, rw, bs, &workers));
                let found = row_of.expect("the plan must be valid");
                assert_eq!(found.outcome.errors, 0);
                row.push((name, found.iops as u64));
            }
            println!("{rw} {bs} on {drives}: {row:?}");
            table.push(row);
        }
    }
}

#[test]
fn drives_of_one_list_wait_longer_later_unless_with_workers() {
    let workers: Vec<u32> = (1..9).collect();
    let unfairness = |serving| {
        let mut plan = plan(serving, 8, Rw::RandRead, 4096, &workers);
        // Room for all: waiting for a tag would hide what the stack does.
        plan.drives =
            vec!["model:preset=850evo,depth=254".parse().expect("the preset must exist"); 8];
        plan.length = Length::Time(100_000_000);
        let model = machine("x5690").expect("the machine must exist");
        let row = run_simulated(&model, &plan).expect("the plan must be valid");
        let drives = &row.outcome.states;
        assert_eq!(drives.len(), 8);
        assert!(drives.iter().all(|drive| drive.wait == 0 && drive.insert == drive.dispatch));
        let means: Vec<u64> = drives.iter().map(|drive| drive.stack_ns.mean).collect();
        println!("{serving:?}: {means:?}");
        (means, DriveStates::unfairness(drives).expect("several drives"))
    };
    let (means, ratio) = unfairness(Serving::PerVolume);
    assert!(ratio > 1.4 && means.is_sorted(), "{ratio}: {means:?}");
    let (means, ratio) = unfairness(Serving::PerDrive);
    assert!(ratio < 1.3, "{ratio}: {means:?}");
}
