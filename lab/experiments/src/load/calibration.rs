//! Calibration: measures the rates of a drive, from which schedulers compute the cost of I/Os.
//!
//! A calibration has six runs. Each run does one kind of I/O and keeps the drive busy all the time.
//! The first run writes, because reads of blocks that were never written would be too fast.
//! `Target` runs the calibration of a drive of this machine; for a simulated drive, the caller does
//! the runs. Source: the kernel's tools/cgroup/iocost_coef_gen.py.

use std::sync::Arc;

use millrace_block::{
    Controller, ControllerConfig, CostModel, Disk, DiskConfig, Layout, OpCost, OpRates, Volume,
};
use millrace_drives::{Spec, controller_of};
use millrace_machine::Native;

use crate::filter::FilteredDriver;
use crate::filter::no_merges::NoMerges;
use crate::load::bench::{BenchError, Plan, Progress, run_row};
use crate::load::overwrite::{DiskContents, contents_of};
use crate::load::row::Row;
use crate::load::workload::{Rw, Workload};

/// Size in bytes of an I/O in runs that measure I/Os per second.
const SMALL_BYTES: u32 = 4 << 10;
const LARGE_BYTES: u32 = 1 << 20;
/// Largest number of I/Os of `LARGE_BYTES` in flight, which is enough to keep any drive busy.
const LARGE_DEPTH_MAX: u32 = 32;

/// A run of a calibration, which does one kind of I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Kind of I/O.
    pub rw: Rw,
    /// Size of an I/O in bytes.
    pub bs_bytes: u32,
}

/// Runs of a calibration, in the order in which they are done.
pub const RUNS: [Run; 6] = [
    Run { rw: Rw::Write, bs_bytes: LARGE_BYTES },
    Run { rw: Rw::Read, bs_bytes: LARGE_BYTES },
    Run { rw: Rw::RandRead, bs_bytes: SMALL_BYTES },
    Run { rw: Rw::Read, bs_bytes: SMALL_BYTES },
    Run { rw: Rw::RandWrite, bs_bytes: SMALL_BYTES },
    Run { rw: Rw::Write, bs_bytes: SMALL_BYTES },
];

impl Run {
    /// Returns the workload of one job, with `iodepth` I/Os in flight, or fewer if the I/Os are
    /// large.
    pub fn workload(&self, iodepth: u32, seed: u64) -> Workload {
        let Run { rw, bs_bytes } = *self;
        let iodepth = if self.is_large() { iodepth.min(LARGE_DEPTH_MAX) } else { iodepth };
        Workload { rw, bs_bytes, iodepth, verify: false, seed }
    }

    /// Returns true if the run measures bytes per second. Such a run has one job, because several
    /// jobs would not access the drive sequentially.
    pub fn is_large(&self) -> bool {
        self.bs_bytes == LARGE_BYTES
    }
}

/// Rates of a drive: I/Os per second and bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Calibration {
    /// Rates of reads.
    pub read: OpRates,
    /// Rates of writes.
    pub write: OpRates,
}

impl Calibration {
    /// Returns the rates of a drive, given one row for each run in the order of [`RUNS`].
    pub fn of(rows: &[Row; RUNS.len()]) -> Calibration {
        let iops = |row: &Row| rounded(row.iops).max(1);
        let bytes = |row: &Row| rounded(row.bw_bytes_per_s).max(4096);
        let rates = |large: &Row, random: &Row, sequential: &Row| OpRates {
            random_iops: iops(random),
            sequential_iops: iops(sequential),
            bytes_per_s: bytes(large),
        };
        let [write, read, rand_read, seq_read, rand_write, seq_write] = rows;
        Calibration {
            read: rates(read, rand_read, seq_read),
            write: rates(write, rand_write, seq_write),
        }
    }

    /// Returns the cost model for schedulers, calculated from the measured rates.
    pub fn cost(&self) -> CostModel {
        CostModel { read: OpCost::from_rates(&self.read), write: OpCost::from_rates(&self.write) }
    }
}

/// A drive of this machine, for a calibration.
pub struct Target {
    volume: Arc<Volume<Native>>,
    is_new: bool,
    /// Notes and warnings about the drive, for the user.
    pub notes: Vec<String>,
    /// Number of bytes written, from the volume's start. `None` if the whole volume has data.
    written_bytes: Option<u64>,
}

impl Target {
    /// Opens a drive for `io_threads` I/O threads.
    pub fn open(
        spec: &Spec,
        io_threads: u16,
        controllers: &[ControllerConfig],
    ) -> Result<Target, BenchError> {
        let failed = |source| BenchError::drive(spec, &source);
        let is_new = contents_of(spec)? == DiskContents::Empty;
        let controllers = controllers.iter().cloned().map(Controller::new);
        let controllers = controllers.collect::<Result<Vec<_>, _>>()?;
        let controller = controller_of(spec, &controllers).map_err(failed)?;
        let opened = millrace_drives::open(spec, io_threads).map_err(failed)?;
        let notes = [opened.warnings, opened.notes].concat();
        let config =
            DiskConfig { name: spec.to_string(), io_threads, controller, ..DiskConfig::default() };
        let disk = Disk::new(Box::new(FilteredDriver(NoMerges(opened.driver))), config)?;
        let volume = Volume::new("calibrate", Layout::Linear, vec![disk])?;
        Ok(Target { volume, is_new, notes, written_bytes: None })
    }

    /// Does one run of the calibration; call this for each of [`RUNS`], in order. `plan` has the
    /// settings that a `Run` lacks, such as I/O depth, seed, jobs, CPUs and length.
    pub fn run(
        &mut self,
        run: &Run,
        plan: &Plan,
        progress: Progress<'_>,
    ) -> Result<Row, BenchError> {
        let mut plan = plan.clone();
        plan.workload = run.workload(plan.workload.iodepth, plan.workload.seed);
        plan.jobs = if run.is_large() { 1 } else { plan.jobs };
        let size_bytes = plan.size_bytes.into_iter().chain(self.written_bytes).min();
        plan.size_bytes = size_bytes;
        let mut row = run_row(&self.volume, &plan, progress)?;
        // Limit later reads to the blocks that this run wrote, because a drive answers reads of
        // other blocks without any work.
        if self.is_new && *run == RUNS[0] && !self.volume.limits().features.no_payload {
            let written = row.ios.saturating_mul(run.bs_bytes.into());
            self.written_bytes = Some(written.min(self.volume.capacity() << 9));
        }
        row.drives = self.volume.disks()[0].name().to_owned();
        row.queues.stack = "mq".into();
        row.queues.scheduler = "none".into();
        row.queues.cpus = plan.cpus.len() as u32;
        Ok(row)
    }
}

/// Rounds a rate to four digits, because the measurement is not more exact.
fn rounded(rate: f64) -> u64 {
    let digits = rate.max(1.0).log10().floor() as i32;
    let unit = 10f64.powi((digits - 3).max(0));
    ((rate / unit).round() * unit) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_four_digits() {
        let rates = [0.2, 86.4, 9_999.6, 98_001.3, 540_000_114.0].map(rounded);
        assert_eq!(rates, [0, 86, 10_000, 98_000, 540_000_000]);
    }

    #[test]
    fn each_run_gives_the_figure_that_it_is_for() {
        let figure = |run: &Run| match (run.is_large(), run.rw) {
            (true, Rw::Read) => 1,
            (true, _) => 2,
            (false, Rw::RandRead) => 3,
            (false, Rw::Read) => 4,
            (false, Rw::RandWrite) => 5,
            (false, _) => 6,
        };
        let row = |run: &Run| {
            let rate = f64::from(figure(run));
            Row { iops: rate, bw_bytes_per_s: 1e6 * rate, ..Row::default() }
        };
        let rates = |random_iops, sequential_iops, bytes_per_s| OpRates {
            random_iops,
            sequential_iops,
            bytes_per_s,
        };
        let expected = Calibration { read: rates(3, 4, 1_000_000), write: rates(5, 6, 2_000_000) };
        assert_eq!(Calibration::of(&RUNS.each_ref().map(row)), expected);
        let depths = RUNS.map(|run| run.workload(256, 1).iodepth);
        assert_eq!(depths, [32, 32, 256, 256, 256, 256]);
    }
}
