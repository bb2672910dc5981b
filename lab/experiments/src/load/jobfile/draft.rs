//! `Draft`: a job while its words are read, one after another.
//!
//! Owns which word sets what, and what contradicts itself at the end; made of a section by `job`,
//! which `spec` calls. A later word wins over an equal one before it.

use millrace_drives::Advice;

use super::block_distribution::{Distribution, distribution};
use super::blocks::{self, Sizes};
use super::lines::{Entry, JobFileError, Section};
use super::options::{Use, use_of, usual};
use super::spec::{
    Access, CloneGroup, Engine, IoShape, IssueRules, JobSpec, Kind, Region, Span, ThinkTime, Verify,
};
use super::value::{Base, each, switch, time_ns, whole};

/// Bytes of an I/O unless told otherwise.
const BS: u32 = 4096;
/// Seed unless told otherwise, so that runs are alike (`randrepeat`).
const SEED: u64 = 0x89;

/// What words leave behind that only make sense together.
struct Draft {
    job: JobSpec,
    base: Base,
    engine: Option<Engine>,
    directory: Option<String>,
    bs: [Option<u32>; 3],
    sizes: Option<[Option<Sizes>; 3]>,
    verify: bool,
    do_verify: bool,
    ignored: Vec<String>,
}

/// Words and values as they were written.
pub(super) fn pairs(entries: &[Entry]) -> Vec<(String, String)> {
    entries.iter().map(|entry| (entry.word.clone(), entry.value.clone())).collect()
}

/// One job, and the words of it that have no meaning here.
pub(super) fn job(section: &Section) -> Result<(JobSpec, Vec<String>), JobFileError> {
    let mut draft = Draft::new(section);
    // Sizes before it are in its units, too.
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
            distribution: [Distribution::Uniform; 3],
            percent_random: [100; 3],
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
        };
        let job = JobSpec {
            name: section.name.clone(),
            description: None,
            filename: None,
            access: Access { direct: false, invalidate: true, engine: Engine::Sync, advice: None },
            kind: Kind { has: [true, false, false], random: false },
            shape,
            region: Region::default(),
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
            directory: None,
            bs: [None; 3],
            sizes: None,
            verify: false,
            do_verify: true,
            ignored: Vec::new(),
        }
    }

    /// Takes one word in.
    fn read(&mut self, entry: &Entry) -> Result<(), String> {
        let (word, value) = (usual(&entry.word), entry.value.as_str());
        if use_of(word)? == Use::Nothing {
            self.ignored.push(word.to_owned());
            return Ok(());
        }
        let known = self.read_place(word, value);
        let known = known.and_then(|known| Ok(known || self.read_shape(word, value)?));
        let known = known.and_then(|known| Ok(known || self.read_flow(word, value)?));
        let known = known.and_then(|known| Ok(known || self.read_span(word, value)?));
        let known = known.map_err(|text| format!("{}={text}", entry.word))?;
        assert!(known, "{word} has a meaning, and a place where it is read");
        Ok(())
    }

    /// Words about names, files and regions.
    fn read_place(&mut self, word: &str, value: &str) -> Result<bool, String> {
        let (job, base) = (&mut self.job, self.base);
        let amount = || base.amount(value).map(Some);
        match word {
            "name" => job.name = text(value)?,
            "description" => job.description = Some(value.to_owned()),
            "directory" if value.contains(':') => {
                return Err(format!("{value:?}: one directory for a job; give each its own job"));
            }
            "directory" => self.directory = Some(text(value)?),
            "filename" if value.contains(':') => {
                return Err(format!("{value:?}: one file for a job; give each its own job"));
            }
            "filename" => job.filename = Some(text(value)?),
            "direct" => job.access.direct = switch(value)?,
            "buffered" => job.access.direct = !switch(value)?,
            "invalidate" => job.access.invalidate = switch(value)?,
            "fadvise_hint" => job.access.advice = advice(value)?,
            "ioengine" => {
                self.engine = engine(value);
                if self.engine.is_none() {
                    self.ignored.push(format!("ioengine={value}"));
                }
            }
            "kb_base" => {
                self.base = match value {
                    "1024" => Base::BINARY,
                    "1000" => Base::DECIMAL,
                    _ => return Err(format!("{value:?}: write 1024 or 1000")),
                }
            }
            "size" => job.region.size = amount()?,
            "io_size" => job.region.io_size = amount()?,
            "offset" => job.region.offset = amount()?,
            "offset_increment" => job.region.offset_increment = amount()?,
            "filesize" => job.region.file_size = Some(base.number(value)?),
            "number_ios" => job.region.number_ios = Some(whole(value, 1, u64::MAX)?),
            "unlink" if switch(value)? => {
                return Err("1: files are left in place here; write 0".to_owned());
            }
            "unlink" => {}
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Words about single I/Os.
    fn read_shape(&mut self, word: &str, value: &str) -> Result<bool, String> {
        let (base, kind) = (self.base, &mut self.job.kind);
        let shape = &mut self.job.shape;
        match word {
            "rw" => *kind = kind_of(value)?,
            "bs" => {
                self.bs = each(value, |part| blocks::size(base, part))?;
                self.sizes = None;
            }
            "bsrange" => self.sizes = Some(each(value, |part| blocks::range(base, part))?),
            "bssplit" => self.sizes = Some(each(value, |part| blocks::split(base, part))?),
            "rwmixread" => shape.read_percent = whole(value, 0, 100)? as u8,
            "rwmixwrite" => shape.read_percent = 100 - whole(value, 0, 100)? as u8,
            "random_distribution" => {
                shape.distribution = each(value, distribution)?.map(Option::unwrap_or_default);
            }
            "percentage_random" => {
                let percent = each(value, |part| whole(part, 0, 100).map(|part| part as u8))?;
                shape.percent_random = percent.map(|percent| percent.unwrap_or(100));
            }
            "norandommap" => shape.map = !switch(value)?,
            "randseed" => shape.seed = whole(value, 0, u64::MAX)?,
            "randrepeat" | "allrandrepeat" => shape.repeat = switch(value)?,
            "verify" => {
                self.verify = match value {
                    "0" => false,
                    "crc32c" | "crc32c-intel" => true,
                    _ => {
                        return Err(format!(
                            "{value:?}: blocks carry their place, their generation and a crc32c \
                             here; write crc32c"
                        ));
                    }
                }
            }
            "do_verify" => self.do_verify = switch(value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Words about how I/Os follow each other.
    fn read_flow(&mut self, word: &str, value: &str) -> Result<bool, String> {
        let (base, flow) = (self.base, &mut self.job.flow);
        let positive = |part: &str| whole(part, 1, u64::MAX);
        match word {
            "iodepth" => flow.iodepth = whole(value, 1, 65_536)? as u32,
            "iodepth_batch_submit" => {
                flow.batch = Some(whole(value, 0, 65_536)? as u32).filter(|batch| *batch > 0);
            }
            "rate" => {
                flow.rate =
                    each(value, |part| base.number(part))?.map(|rate| rate.filter(|r| *r > 0));
            }
            "rate_iops" => flow.rate_iops = each(value, positive)?,
            "rate_process" => {
                flow.poisson = match value {
                    "linear" => false,
                    "poisson" => true,
                    _ => return Err(format!("{value:?}: write linear or poisson")),
                }
            }
            "thinktime" => flow.think.time_ns = time_ns(value, 1_000)?,
            "thinktime_spin" => flow.think.spin_ns = time_ns(value, 1_000)?,
            "thinktime_blocks" => flow.think.blocks = positive(value)?,
            "fsync" => flow.fsync = whole(value, 0, u64::MAX)?,
            "fdatasync" => flow.fdatasync = whole(value, 0, u64::MAX)?,
            "end_fsync" => flow.end_fsync = switch(value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Words about time, and about other jobs.
    fn read_span(&mut self, word: &str, value: &str) -> Result<bool, String> {
        let JobSpec { span, crowd, .. } = &mut self.job;
        match word {
            "runtime" => span.runtime_ns = Some(seconds(value)?).filter(|time| *time > 0),
            "time_based" => span.time_based = switch(value)?,
            "ramp_time" => span.ramp_ns = seconds(value)?,
            "startdelay" => {
                let (first, last) = value.split_once(['-', ':']).unwrap_or((value, value));
                let (first, last) = (seconds(first)?, seconds(last)?);
                span.delay_ns = (first.min(last), first.max(last));
            }
            "loops" => span.loops = whole(value, 1, u64::MAX)?,
            "numjobs" => crowd.numjobs = whole(value, 1, 4096)? as u32,
            "stonewall" => crowd.stonewall = switch(value)?,
            "new_group" => crowd.new_group = switch(value)?,
            "group_reporting" => crowd.group_reporting = switch(value)?,
            "cpus_allowed" => crowd.cpus = cpus(value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The job, if its words go together.
    fn finish(mut self) -> Result<(JobSpec, Vec<String>), String> {
        let job = &mut self.job;
        match (&self.directory, &job.filename) {
            (Some(directory), Some(name)) if !name.starts_with('/') => {
                job.filename = Some(format!("{directory}/{name}"));
            }
            // fio's name of a job's first file; each clone would have its own.
            (Some(directory), None) if job.crowd.numjobs == 1 => {
                job.filename = Some(format!("{directory}/{}.0.0", job.name));
            }
            _ => {}
        }
        let given = self.sizes.unwrap_or_default();
        for (place, given) in given.into_iter().enumerate() {
            let bs = Sizes::One(self.bs[place].unwrap_or(BS));
            job.shape.sizes[place] = given.unwrap_or(bs);
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
        if job.span.time_based && job.span.runtime_ns.is_none() {
            return Err("time_based: it ends after runtime; add runtime".to_owned());
        }
        if self.verify {
            if job.kind.has != [false, true, false] {
                return Err(
                    "verify: what is written is read back; use rw=write or randwrite".into()
                );
            }
            if !matches!(job.shape.sizes[1], Sizes::One(_)) {
                return Err("verify: blocks of one size are checked; use bs".to_owned());
            }
            job.shape.verify = Some(Verify { read_back: self.do_verify });
        }
        Ok((self.job, self.ignored))
    }
}

/// The directions that a job goes in: of a mix, those with a share. A direction without one has
/// neither I/Os nor a rate, as in fio, and a job without writes never changes its file.
fn directions([reads, writes, trims]: [bool; 3], read_percent: u8) -> [bool; 3] {
    if !(reads && writes) {
        return [reads, writes, trims];
    }
    [read_percent > 0, read_percent < 100, trims]
}

fn text(value: &str) -> Result<String, String> {
    match value {
        "" => Err(": it needs a value".to_owned()),
        text => Ok(text.to_owned()),
    }
}

/// The engine of a name; none if it has no meaning here.
fn engine(name: &str) -> Option<Engine> {
    match name {
        "sync" | "psync" | "vsync" | "pvsync" | "pvsync2" => Some(Engine::Sync),
        "libaio" => Some(Engine::Aio),
        "io_uring" => Some(Engine::Uring),
        _ => None,
    }
}

/// `fadvise_hint`: none where the job's kind says it.
fn advice(value: &str) -> Result<Option<Advice>, String> {
    match value {
        "0" | "none" => Ok(Some(Advice::Normal)),
        "" | "1" => Ok(None),
        "random" => Ok(Some(Advice::Random)),
        "sequential" => Ok(Some(Advice::Sequential)),
        _ => Err(format!("{value:?}: write 0, 1, random or sequential")),
    }
}

fn seconds(value: &str) -> Result<u64, String> {
    time_ns(value, 1_000_000_000)
}

/// A list of CPUs such as `0-3,7`.
fn cpus(value: &str) -> Result<Vec<u32>, String> {
    let wrong = || format!("{value:?}: write CPUs such as 0-3,7");
    let mut cpus = Vec::new();
    for part in value.split([',', ':']) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<u32>().ok().filter(|cpu| *cpu < 65_536);
        let range = number(first).zip(number(last)).ok_or_else(wrong)?;
        cpus.extend(range.0..=range.1);
        if cpus.len() > 65_536 {
            return Err(wrong());
        }
    }
    if cpus.is_empty() { Err(wrong()) } else { Ok(cpus) }
}

/// What a kind of I/O is made of.
fn kind_of(value: &str) -> Result<Kind, String> {
    let (reads, writes, trims) = ([true, false, false], [false, true, false], [false, false, true]);
    let both = [true, true, false];
    let (has, random) = match value {
        "read" => (reads, false),
        "write" => (writes, false),
        "trim" => (trims, false),
        "rw" | "readwrite" => (both, false),
        "randread" => (reads, true),
        "randwrite" => (writes, true),
        "randtrim" => (trims, true),
        "randrw" => (both, true),
        "trimwrite" | "randtrimwrite" => {
            return Err(format!("{value:?}: trims before writes are not made here"));
        }
        _ if value.contains(':') => {
            return Err(format!("{value:?}: numbers behind the kind are not known here"));
        }
        _ => {
            return Err(format!(
                "{value:?}: write read, write, trim, rw, randread, randwrite, randtrim or randrw"
            ));
        }
    };
    Ok(Kind { has, random })
}
