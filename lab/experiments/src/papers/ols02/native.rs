//! Effects on this machine of the kernel changes in the OLS 2002 paper: counted calls, and measured
//! costs of bounce copies and of splitting an I/O into small bios.
//!
//! Runs the block layer in real time, with the settings of the kernel versions that the paper
//! compares, on a modelled drive or a drive in memory. ols02.rs calls this file after all
//! simulations have ended, so that nothing else runs.

use millrace_block::baseline::Stack;
use millrace_block::{Layout, ServingConfig, Spread, Stamp};

use crate::load::bench::BenchError;
use crate::load::row::Row;
use crate::load::workload::{Rw, Workload};
use crate::page::DataTable;
use crate::simulation::{
    InterfaceKind, Irq, Length, Linux24, Readv, Service, SimPlan, Watch, run_metered,
};

/// Number of reads in the run that counts bios. `READ_BYTES` is the size of a read. Both values are
/// from the paper.
const READS: u64 = 128;
const READ_BYTES: u32 = 131_072;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Calls {
    pub(super) submitted: u64,
    pub(super) merged: u64,
}

pub(super) fn calls() -> Result<[Calls; 2], BenchError> {
    let count = |unit_bytes| -> Result<Calls, BenchError> {
        let history = Linux24 { unit_bytes: Some(unit_bytes), ..HISTORY };
        let drive = "model:read=1us,latency=1us,units=64";
        let row = run_metered(&plan(drive, history, (READ_BYTES, Length::Ios(READS))))?;
        let sum =
            |part: fn(&crate::load::row::DriveStates) -> u64| row.outcome.states.iter().map(part);
        let submitted = sum(|drive| drive.start).sum();
        Ok(Calls { submitted, merged: sum(|drive| drive.merge).sum() })
    };
    Ok([count(512)?, count(4_096)?])
}

const HISTORY: Linux24 = Linux24 {
    unit_bytes: None,
    iovecs: None,
    readv: Readv::Whole,
    bounce: false,
    without_copies: false,
    descriptor_bytes: 0,
    request_lock: crate::simulation::LockScope::Queue,
    plug_in_queue: true,
    adapters: None,
    compute_ns: 0,
};

fn plan(drive: &str, history: Linux24, (bs_bytes, length): (u32, Length)) -> SimPlan {
    SimPlan {
        drives: vec![drive.parse().expect("the drive's spec must be valid")],
        layout: Layout::Linear,
        service: Service {
            serving: ServingConfig { plug_high: 1_024, ..ServingConfig::default() },
            history,
            ..Service::default()
        },
        stack: Stack::Sq,
        software_queues: Spread::One,
        hardware_queues: Spread::One,
        cpus: Vec::new(),
        jobs: 1,
        workload: Workload { rw: Rw::Read, bs_bytes, iodepth: 1, verify: false, seed: 1 },
        length,
        stamp: Stamp::Batch,
        interface: InterfaceKind::Sync,
        batch: None,
        irq: Irq::Submitter,
        watch: Watch { locks: true, ..Watch::default() },
    }
}

const LENGTH_NS: u64 = 300_000_000;

pub(super) fn table() -> Result<DataTable, BenchError> {
    let bs_bytes = 65_536;
    let settings = [
        ("512 bytes", Some(512), None, Readv::Whole, 8_792),
        ("page", Some(4_096), None, Readv::Whole, 608),
        ("whole", None, Some(1), Readv::Whole, 608),
        ("page, 16 iovecs serial", Some(4_096), Some(16), Readv::Serial, 608),
        ("page, 16 iovecs whole", Some(4_096), Some(16), Readv::Whole, 608),
    ];
    let mut rows = Vec::new();
    for (name, unit_bytes, iovecs, readv, descriptor_bytes) in settings {
        for (bounce, when) in [(true, "always"), (false, "never")] {
            let history =
                Linux24 { unit_bytes, iovecs, readv, descriptor_bytes, bounce, ..HISTORY };
            let length = Length::Time(LENGTH_NS);
            let row = run_metered(&plan("ram:size=256m", history, (bs_bytes, length)))?;
            rows.push(cells([name, when], descriptor_bytes, &row));
        }
    }
    Ok(DataTable::new(
        ("native", "On this machine"),
        "One thread reads 64 KiB at a time from a drive in memory, with lock statistics on. CPU \
         time is that of the process, per MB read. The drive itself copies the data of each read \
         once. The last column is the memory that a job keeps for each drive it has open.",
        ["unit", "bounce", "MB/s", "CPU us a MB", "merges a read", "bytes per open drive"],
        rows,
    ))
}

fn cells([name, bounce]: [&str; 2], descriptor_bytes: u32, row: &Row) -> Vec<String> {
    let merged: u64 = row.outcome.states.iter().map(|drive| drive.merge).sum();
    vec![
        name.to_owned(),
        bounce.to_owned(),
        format!("{:.0}", row.bw_bytes_per_s / 1e6),
        format!("{:.1}", row.cost.cpu_ns_per_io / 1e3 / (f64::from(row.bs) / 1e6)),
        format!("{:.1}", merged as f64 / row.ios.max(1) as f64),
        descriptor_bytes.to_string(),
    ]
}
