//! `JobFile` and `JobSpec`: the jobs of a file after all their options were read and checked.
//!
//! `draft` creates a job from the sections of `lines`: from the options of `global` sections first,
//! then from the job's own. If an option occurs twice, the later one wins, as in fio. `run`,
//! `source`, `rate_limit` and `worker` read this plain data. Sizes in percent stay percentages
//! until the device is known.

use millrace_drives::Advice;

use super::block_distribution::Distribution;
use super::blocks::Sizes;
use super::depth_search::LatencyTarget;
use super::lines::Place;
use super::value::Amount;

/// Job file: its jobs, and the options of its `global` sections.
#[derive(Debug, Clone, PartialEq)]
pub struct JobFile {
    /// Jobs in the order in which the file has them.
    pub jobs: Vec<JobSpec>,
    /// Options of the `global` sections.
    pub global: Vec<(String, String)>,
    /// Options that have no meaning in millrace, each listed once.
    pub ignored: Vec<String>,
}

/// Job, with fio's defaults for options that are missing.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSpec {
    /// Name of the job.
    pub name: String,
    /// Description that the job file gives.
    pub description: Option<String>,
    /// Percentiles for the job's report; `None` selects fio's defaults.
    pub percentiles: Option<Vec<f64>>,
    /// File or device that all clones of the job share, if the job names one.
    pub filename: Option<String>,
    pub(super) directory: Option<String>,
    /// Access to the job's file: direct I/O, or I/O through the page cache.
    pub access: Access,
    pub(super) kind: Kind,
    pub(super) shape: IoShape,
    pub(super) region: JobRegion,
    pub(super) flow: IssueRules,
    pub(super) span: Span,
    pub(super) crowd: CloneGroup,
    pub(super) own: Vec<(String, String)>,
    /// File and line where the job begins.
    pub place: Place,
}

/// Settings of a job's access to its file: direct or through the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// If true, I/Os bypass the page cache.
    pub direct: bool,
    /// If true, the file is dropped from the page cache before the job starts.
    pub invalidate: bool,
    pub(super) engine: Engine,
    /// Advice to the page cache about reads. `None` derives the advice from the kind of I/O.
    pub(super) advice: Option<Advice>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Engine {
    /// `psync` and similar engines: the job's thread does the I/O, one at a time.
    Sync,
    /// `libaio`: the kernel does direct I/O; the submitting thread does buffered I/O.
    Aio,
    /// `io_uring`: the kernel does the I/O, in its own threads if an I/O might block.
    Uring,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) has: [bool; 3],
    pub(super) random: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct IoShape {
    pub(super) read_percent: u8,
    pub(super) sizes: [Sizes; 3],
    pub(super) align: [Option<u32>; 3],
    pub(super) distribution: [Distribution; 3],
    pub(super) percent_random: [u8; 3],
    pub(super) sequence: Sequence,
    pub(super) zones: Option<Zones>,
    pub(super) map: bool,
    pub(super) seed: u64,
    pub(super) repeat: bool,
    pub(super) verify: Option<Verify>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sequence {
    /// Number of bytes skipped after each sequential I/O; negative to go backwards.
    pub(super) gap: i64,
    /// Number of I/Os per random offset: the first at this offset, the others sequential.
    pub(super) length: u32,
}

impl Default for Sequence {
    fn default() -> Sequence {
        Sequence { gap: 0, length: 1 }
    }
}

/// Zones of a job: regions of `range` bytes, `skip` bytes apart. After `size` bytes of I/O in a
/// zone, the job continues in the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Zones {
    pub(super) size: u64,
    pub(super) range: u64,
    pub(super) skip: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Verify {
    /// True if the job reads back and checks the blocks that it wrote or, if it only reads, the
    /// blocks that another job wrote.
    pub(super) read_back: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct JobRegion {
    pub(super) size: Option<Amount>,
    pub(super) io_size: Option<Amount>,
    pub(super) offset: Option<Amount>,
    /// Alignment in bytes of offsets that are given in percent; `None` selects the smallest I/O
    /// size.
    pub(super) offset_align: Option<u64>,
    pub(super) offset_increment: Option<Amount>,
    pub(super) file_size: Option<u64>,
    /// If true, the job uses the whole device and ignores `size`.
    pub(super) fill: bool,
    pub(super) number_ios: Option<u64>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct IssueRules {
    pub(super) iodepth: u32,
    pub(super) batch: Option<u32>,
    pub(super) rate: [Option<u64>; 3],
    pub(super) rate_iops: [Option<u64>; 3],
    pub(super) poisson: bool,
    pub(super) flow: Option<Flow>,
    pub(super) latency: Option<LatencyTarget>,
    pub(super) think: ThinkTime,
    /// Number of writes between two flushes; 0 for no flushes.
    pub(super) fsync: u64,
    pub(super) fdatasync: u64,
    pub(super) end_fsync: bool,
}

/// Weight of the job among all jobs with the same `flow_id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Flow {
    pub(super) id: u64,
    pub(super) weight: u64,
    /// Length of a pause. The job pauses while its fraction of the group's I/Os exceeds its
    /// fraction of the group's weights.
    pub(super) sleep_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ThinkTime {
    pub(super) time_ns: u64,
    pub(super) spin_ns: u64,
    pub(super) blocks: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) runtime_ns: Option<u64>,
    pub(super) time_based: bool,
    pub(super) ramp_ns: u64,
    pub(super) delay_ns: (u64, u64),
    pub(super) loops: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CloneGroup {
    pub(super) numjobs: u32,
    pub(super) stonewall: bool,
    pub(super) new_group: bool,
    pub(super) group_reporting: bool,
    /// CPUs that are assigned to clones in turn; empty means any CPU.
    pub(super) cpus: Vec<u32>,
    pub(super) wait_for: Option<String>,
}

impl JobSpec {
    /// Returns the number of clones of the job that run at the same time.
    pub fn numjobs(&self) -> u32 {
        self.crowd.numjobs
    }

    /// Returns the file or device of one of the job's clones. As in fio, each clone has a file of
    /// its own if the job names no file.
    pub fn filename_of(&self, clone: u32) -> String {
        let own = || format!("{}.{clone}.0", self.name);
        let name = self.filename.clone().unwrap_or_else(own);
        match &self.directory {
            Some(directory) => format!("{directory}/{name}"),
            None => name,
        }
    }

    /// Returns true if the job writes until its device is full (`fill_device`).
    pub fn fills_device(&self) -> bool {
        self.region.fill
    }

    pub(super) fn verifies_writes(&self) -> bool {
        self.shape.verify.is_some() && self.kind.has[1]
    }

    pub(super) fn verifies_reads(&self) -> bool {
        self.shape.verify.is_some_and(|verify| verify.read_back) && !self.kind.has[1]
    }

    /// Returns the size in bytes that the data file of the job must have. Returns `None` if no
    /// option demands a size, or if this size is unknown, because an option is a percentage of the
    /// file's size.
    pub fn file_bytes(&self) -> Option<u64> {
        let bytes = |amount: Option<Amount>| match amount {
            Some(Amount::Bytes(bytes)) => Some(bytes),
            Some(Amount::Percent(_)) => None,
            None => Some(0),
        };
        let region = &self.region;
        let increments = bytes(region.offset_increment)?
            .checked_mul(u64::from(self.crowd.numjobs.saturating_sub(1)))?;
        let begin = bytes(region.offset)?.checked_add(increments)?;
        let end = region.size.map_or(Some(0), |size| bytes(Some(size))?.checked_add(begin))?;
        let end = region
            .file_size
            .filter(|size| *size > begin)
            .unwrap_or(end)
            .div_ceil(512)
            .checked_mul(512)?;
        (end > 0).then_some(end)
    }

    /// Returns true if the job's own thread does each I/O and waits for its end.
    pub fn is_inline(&self) -> bool {
        match self.access.engine {
            Engine::Sync => true,
            Engine::Aio => !self.access.direct,
            Engine::Uring => false,
        }
    }

    /// Returns the size in bytes of the job's longest I/O with data; 0 if the job only trims.
    pub(super) fn buffer_bytes(&self) -> u32 {
        let with_data = self.shape.sizes.iter().zip(self.kind.has).take(2).filter(|(_, has)| *has);
        with_data.map(|(sizes, _)| sizes.most()).max().unwrap_or(0)
    }

    /// Returns the advice to the page cache about the job's reads.
    pub fn advice(&self) -> Advice {
        let of_kind = if self.kind.random { Advice::Random } else { Advice::Sequential };
        self.access.advice.unwrap_or(of_kind)
    }

    /// Returns true if the job reads.
    pub fn reads_data(&self) -> bool {
        self.kind.has[0]
    }

    /// Returns true if the job writes or trims.
    pub fn changes_data(&self) -> bool {
        self.kind.has[1] || self.kind.has[2]
    }
}

#[cfg(test)]
#[path = "spec/tests.rs"]
mod tests;
