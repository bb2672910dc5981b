//! `Draft`: a job whose options are still being read, one after another.
//!
//! This file reads a job file, keeps the values until all options of a job are read (`words` has
//! the parser of each option), and then refuses options that contradict each other. If an option
//! occurs twice, the later value wins.

use super::blocks::{BUFFER_MAX, Sizes};
use super::depth_search::LatencyTarget;
use super::lines::{self, Entry, Includes, JobFileError, Place, Section};
use super::options::{pass_over, usual};
use super::spec::{
    Access, CloneGroup, Engine, Flow, IoShape, IssueRules, JobFile, JobRegion, JobSpec, Kind,
    Sequence, Span, ThinkTime, Verify, Zones,
};
use super::value::Base;
use super::words::{Needs, WORDS};

const BS: u32 = 4096;
/// Default seed, which gives every run the same sequence of I/Os (`randrepeat`).
const SEED: u64 = 0x89;

/// Defaults of the `latency_*` options. A `target_ns` of 0 means that the job has no target.
const LATENCY: LatencyTarget =
    LatencyTarget { target_ns: 0, window_ns: 1_000_000_000, percent: 100.0, run: false };

/// A job while its options are read. Options that affect each other are kept until all are read.
pub(super) struct Draft {
    pub(super) job: JobSpec,
    pub(super) base: Base,
    pub(super) engine: Option<Engine>,
    pub(super) bs: [u32; 3],
    pub(super) ranges: [Option<Sizes>; 3],
    pub(super) splits: [Option<Sizes>; 3],
    pub(super) flow: Flow,
    pub(super) latency: LatencyTarget,
    pub(super) zones: Zones,
    pub(super) has_zones: bool,
    pub(super) verify: bool,
    pub(super) do_verify: bool,
    pub(super) ignored: Vec<String>,
}

impl JobFile {
    /// Reads a job file's bytes.
    ///
    /// # Errors
    /// If the file is wrong; the error names the problem, the file and the line.
    pub fn parse(name: &str, bytes: &[u8], outside: &dyn Includes) -> Result<Self, JobFileError> {
        let sections = lines::sections(name, bytes, outside)?;
        let mut ignored: Vec<String> = Vec::new();
        let mut jobs = Vec::new();
        for section in &sections {
            let (job, words) = job(section)?;
            jobs.push(job);
            ignored.extend(words);
        }
        let threads: u64 = jobs.iter().map(|job| u64::from(job.crowd.numjobs)).sum();
        if threads > 4096 {
            let place = Place { file: name.to_owned(), line: 0 };
            return Err(
                place.wrong(format!("{threads} jobs in total are too many; use at most 4096"))
            );
        }
        for (at, job) in jobs.iter().enumerate() {
            let Some(awaited) = &job.crowd.wait_for else { continue };
            if !jobs[..at].iter().any(|earlier: &JobSpec| earlier.name == *awaited) {
                let text = format!("wait_for={awaited}: no job above has this name");
                return Err(job.place.wrong(text));
            }
        }
        ignored.sort_unstable();
        ignored.dedup();
        let global = sections.last().map(|last| pairs(&last.global)).unwrap_or_default();
        Ok(JobFile { jobs, global, ignored })
    }
}

fn pairs(entries: &[Entry]) -> Vec<(String, String)> {
    entries.iter().map(|entry| (entry.word.clone(), entry.value.clone())).collect()
}

fn job(section: &Section) -> Result<(JobSpec, Vec<String>), JobFileError> {
    let mut draft = Draft::new(section);
    // Read `kb_base` first: this option also applies to sizes earlier in the file.
    let (first, rest): (Vec<_>, Vec<_>) = section
        .global
        .iter()
        .chain(&section.own)
        .partition(|entry| usual(&entry.word) == "kb_base");
    for entry in first.into_iter().chain(rest) {
        draft.read(entry).map_err(|text| entry.place.wrong(text))?;
    }
    draft.finish().map_err(|text| section.place.wrong(text))
}

impl Draft {
    fn new(section: &Section) -> Draft {
        let shape = IoShape {
            read_percent: 50,
            sizes: [Sizes::One(BS), Sizes::One(BS), Sizes::One(BS)],
            align: [None; 3],
            distribution: Default::default(),
            percent_random: [100; 3],
            sequence: Sequence::default(),
            zones: None,
            map: true,
            seed: SEED,
            repeat: true,
            verify: None,
        };
        let flow = IssueRules {
            iodepth: 1,
            batch: Some(1),
            rate: [None; 3],
            rate_iops: [None; 3],
            poisson: false,
            flow: None,
            latency: None,
            think: ThinkTime { blocks: 1, ..ThinkTime::default() },
            fsync: 0,
            fdatasync: 0,
            end_fsync: false,
        };
        let (delay_ns, loops) = ((0, 0), 1);
        let span = Span { runtime_ns: None, time_based: false, ramp_ns: 0, delay_ns, loops };
        let crowd = CloneGroup {
            numjobs: 1,
            stonewall: false,
            new_group: false,
            group_reporting: false,
            cpus: Vec::new(),
            wait_for: None,
        };
        let job = JobSpec {
            name: section.name.clone(),
            description: None,
            percentiles: None,
            filename: None,
            directory: None,
            access: Access { direct: false, invalidate: true, engine: Engine::Sync, advice: None },
            kind: Kind { has: [true, false, false], random: false },
            shape,
            region: JobRegion::default(),
            flow,
            span,
            crowd,
            own: pairs(&section.own),
            place: section.place.clone(),
        };
        Draft {
            job,
            base: Base::BINARY,
            engine: None,
            bs: [BS; 3],
            ranges: [None, None, None],
            splits: [None, None, None],
            flow: Flow::default(),
            latency: LATENCY,
            zones: Zones::default(),
            has_zones: false,
            verify: false,
            do_verify: true,
            ignored: Vec::new(),
        }
    }

    fn read(&mut self, entry: &Entry) -> Result<(), String> {
        let (word, value) = (usual(&entry.word), entry.value.as_str());
        let named = |text| match entry.word == word {
            true => text,
            false => format!("{}: {text}", entry.word),
        };
        let Some(known) = WORDS.iter().find(|known| known.name == word) else {
            pass_over(word, value, WORDS.iter().map(|word| word.name)).map_err(named)?;
            self.ignored.push(word.to_owned());
            return Ok(());
        };
        if value.is_empty() && known.needs == Needs::Value {
            return Err(named(format!("{word}: it needs a value; write {word}=...")));
        }
        (known.read)(self, value).map_err(|text| format!("{}={text}", entry.word))
    }

    fn finish(mut self) -> Result<(JobSpec, Vec<String>), String> {
        let job = &mut self.job;
        // As in fio, `bssplit` has precedence over `bsrange`, and `bsrange` over `bs`.
        for (place, sizes) in job.shape.sizes.iter_mut().enumerate() {
            let given = self.splits[place].take().or(self.ranges[place].take());
            *sizes = given.unwrap_or(Sizes::One(self.bs[place]));
        }
        job.flow.flow = Some(self.flow).filter(|flow| flow.weight > 0);
        job.flow.latency = Some(self.latency).filter(|latency| latency.target_ns > 0);
        if job.region.fill {
            job.region.size = None;
        }
        job.access.engine = match self.engine {
            Some(engine) => engine,
            None if job.flow.iodepth > 1 => Engine::Aio,
            None => Engine::Sync,
        };
        if job.access.engine == Engine::Sync && job.flow.iodepth > 1 {
            job.flow.iodepth = 1;
            self.ignored.push("iodepth (ioengine does one I/O at a time)".to_owned());
        }
        job.kind.has = directions(job.kind.has, job.shape.read_percent);
        if job.buffer_bytes() > BUFFER_MAX {
            return Err("bs: reads and writes are 1g at most".to_owned());
        }
        job.shape.zones = zones(self.has_zones.then_some(self.zones), self.zones)?;
        if job.shape.zones.is_some() && job.kind.random {
            return Err("zonesize: zones are for sequential I/O; use rw=read, write or rw".into());
        }
        if job.span.time_based && job.span.runtime_ns.is_none() {
            // As in fio, `time_based` without `runtime` has no effect.
            job.span.time_based = false;
            self.ignored.push("time_based (without runtime)".to_owned());
        }
        if self.verify {
            check_verified(job)?;
            job.shape.verify = Some(Verify { read_back: self.do_verify });
        }
        Ok((self.job, self.ignored))
    }
}

/// Refuses jobs that cannot be verified: blocks of several sizes, or blocks that overlap.
fn check_verified(job: &JobSpec) -> Result<(), String> {
    let IoShape { sizes, align, sequence, zones, .. } = &job.shape;
    let direction = match job.kind.has {
        [_, true, _] => 1,
        [true, ..] => 0,
        _ => return Err("verify: trims leave nothing to check; remove this option".to_owned()),
    };
    let Sizes::One(bytes) = sizes[direction] else {
        return Err("verify: all blocks must have the same size; set it with bs".to_owned());
    };
    let is_whole = |distance: u64| distance.is_multiple_of(u64::from(bytes));
    let steps = [
        align[direction].map_or(0, u64::from),
        if sequence.gap < 0 { sequence.gap.unsigned_abs() } else { 0 },
        zones.map_or(0, |zones| zones.range),
        zones.map_or(0, |zones| zones.range.saturating_add(zones.skip)),
    ];
    match steps.into_iter().all(is_whole) {
        true => Ok(()),
        false => Err(format!(
            "verify: blocks of {bytes} bytes would overlap; use multiples of bs in blockalign, \
             zones and rw=KIND:-BYTES"
        )),
    }
}

/// Returns the directions in which a job does I/O. As in fio, a mix with 0 % reads does no reads
/// and ignores their rate, and a mix with 100 % reads does no writes and ignores theirs. A job
/// without writes never changes its file.
fn directions([reads, writes, trims]: [bool; 3], read_percent: u8) -> [bool; 3] {
    if !(reads && writes) {
        return [reads, writes, trims];
    }
    [read_percent > 0, read_percent < 100, trims]
}

/// Returns the zones of a job with `zonemode`. Refuses zone options that contradict each other.
fn zones(wanted: Option<Zones>, given: Zones) -> Result<Option<Zones>, String> {
    match wanted {
        None if given.size > 0 => {
            Err("zonesize: has no effect without zones; add zonemode=strided".to_owned())
        }
        None => Ok(None),
        Some(Zones { size: 0, .. }) => Err("zonemode: zones need a size; add zonesize".to_owned()),
        Some(Zones { size, range: 0, skip }) => Ok(Some(Zones { size, range: size, skip })),
        zones => Ok(zones),
    }
}
