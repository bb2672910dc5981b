//! `Draft`: a job while its words are read, one after another.
//!
//! Owns which word sets what, and what contradicts itself at the end; made of a section by `job`,
//! which `spec` calls. A later word wins over an equal one before it.

use millrace_drives::Advice;

use super::block_distribution::distribution;
use super::blocks::{self, BUFFER_MAX, Sizes};
use super::depth_search::LatencyTarget;
use super::lines::{Entry, JobFileError, Section};
use super::options::{Use, use_of, usual};
use super::spec::{
    Access, CloneGroup, Engine, Flow, IoShape, IssueRules, JobSpec, Kind, Region, Sequence, Span,
    ThinkTime, Verify, Zones,
};
use super::value::{Base, each, float, switch, time_ns, whole};

/// Default size of an I/O in bytes.
const BS: u32 = 4096;
/// Default seed, so that runs are alike (`randrepeat`).
const SEED: u64 = 0x89;

/// Defaults of the `latency_*` words; `target_ns` 0 stands for no target.
const LATENCY: LatencyTarget =
    LatencyTarget { target_ns: 0, window_ns: 1_000_000_000, percent: 100.0, run: false };

/// Values of a job's words that make sense only together, kept until all words are read.
struct Draft {
    job: JobSpec,
    base: Base,
    engine: Option<Engine>,
    bs: [u32; 3],
    ranges: [Option<Sizes>; 3],
    splits: [Option<Sizes>; 3],
    flow: Flow,
    latency: LatencyTarget,
    zones: Zones,
    has_zones: bool,
    verify: bool,
    do_verify: bool,
    ignored: Vec<String>,
}

/// Returns words and values as they were written.
pub(super) fn pairs(entries: &[Entry]) -> Vec<(String, String)> {
    entries.iter().map(|entry| (entry.word.clone(), entry.value.clone())).collect()
}

/// Returns the job of a section, and the words in it that have no meaning here.
pub(super) fn job(section: &Section) -> Result<(JobSpec, Vec<String>), JobFileError> {
    let mut draft = Draft::new(section);
    // `kb_base` also applies to sizes that stand before it.
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

    /// Reads one word.
    fn read(&mut self, entry: &Entry) -> Result<(), String> {
        let (word, value) = (usual(&entry.word), entry.value.as_str());
        let named = |text| match entry.word == word {
            true => text,
            false => format!("{}: {text}", entry.word),
        };
        if use_of(word, value).map_err(named)? == Use::Nothing {
            self.ignored.push(word.to_owned());
            return Ok(());
        }
        let known = self.read_place(word, value);
        let known = known.and_then(|known| Ok(known || self.read_region(word, value)?));
        let known = known.and_then(|known| Ok(known || self.read_shape(word, value)?));
        let known = known.and_then(|known| Ok(known || self.read_flow(word, value)?));
        let known = known.and_then(|known| Ok(known || self.read_span(word, value)?));
        let known = known.map_err(|text| format!("{}={text}", entry.word))?;
        assert!(known, "{word} has a meaning, and a place where it is read");
        Ok(())
    }

    /// Reads words about names, reports and files.
    fn read_place(&mut self, word: &str, value: &str) -> Result<bool, String> {
        let job = &mut self.job;
        match word {
            "name" => job.name = value.to_owned(),
            "description" => job.description = Some(value.to_owned()),
            "percentile_list" => job.percentiles = Some(percentiles(value)?),
            "directory" if value.contains(':') => {
                return Err(format!("{value:?}: a job has one directory; write a job for each"));
            }
            "directory" => job.directory = Some(value.to_owned()),
            "filename" if value.contains(':') => {
                return Err(format!("{value:?}: a job has one file; write a job for each"));
            }
            "filename" => job.filename = Some(value.to_owned()),
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
            "unlink" if switch(value)? => {
                self.ignored.push("unlink (files are left in place)".to_owned());
            }
            "unlink" => {}
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads words about regions.
    fn read_region(&mut self, word: &str, value: &str) -> Result<bool, String> {
        let (region, base) = (&mut self.job.region, self.base);
        let amount = || base.amount(value, 100.0).map(Some);
        match word {
            "kb_base" => {
                self.base = match value {
                    "1024" => Base::BINARY,
                    "1000" => Base::DECIMAL,
                    _ => return Err(format!("{value:?}: write 1024 or 1000")),
                }
            }
            // More than there is, is all there is.
            "size" => region.size = Some(base.amount(value, 1e6)?),
            "io_size" => region.io_size = amount()?,
            "offset" => region.offset = amount()?,
            "offset_align" => region.offset_align = Some(base.number(value)?).filter(|to| *to > 0),
            "offset_increment" => region.offset_increment = amount()?,
            "filesize" => region.file_size = Some(base.number(value)?),
            "fill_device" => region.fill = switch(value)?,
            "number_ios" => region.number_ios = Some(whole(value, 1, u64::MAX)?),
            "zonemode" => {
                self.has_zones = match value {
                    "none" => false,
                    "strided" => true,
                    _ => {
                        return Err(format!(
                            "{value:?}: zones of devices are not known here; write strided or none"
                        ));
                    }
                };
            }
            "zonesize" => self.zones.size = base.number(value)?,
            "zonerange" => self.zones.range = base.number(value)?,
            "zoneskip" => self.zones.skip = base.number(value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads words about single I/Os.
    fn read_shape(&mut self, word: &str, value: &str) -> Result<bool, String> {
        let (base, shape) = (self.base, &mut self.job.shape);
        match word {
            "rw" => (self.job.kind, shape.sequence) = kind_of(base, value)?,
            "bs" => set(&mut self.bs, sizes(base, value)?),
            "bsrange" => some(&mut self.ranges, each(value, |part| blocks::range(base, part))?),
            "bssplit" => some(&mut self.splits, each(value, |part| blocks::split(base, part))?),
            "blockalign" => some(&mut shape.align, sizes(base, value)?),
            "rwmixread" => shape.read_percent = whole(value, 0, 100)? as u8,
            "rwmixwrite" => shape.read_percent = 100 - whole(value, 0, 100)? as u8,
            "random_distribution" => set(&mut shape.distribution, each(value, distribution)?),
            "percentage_random" => {
                let percent = |part: &str| whole(part, 0, 100).map(|part| part as u8);
                set(&mut shape.percent_random, each(value, percent)?);
            }
            "norandommap" => shape.map = !switch(value)?,
            "randseed" => shape.seed = whole(value, 0, u64::MAX)?,
            "randrepeat" | "allrandrepeat" => shape.repeat = switch(value)?,
            "verify" => {
                self.verify = verifies(value)?;
                if self.verify && !value.starts_with("crc32c") {
                    self.ignored.push(format!("verify={value} (blocks carry a crc32c)"));
                }
            }
            "do_verify" => self.do_verify = switch(value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads words about the order and rate of I/Os.
    fn read_flow(&mut self, word: &str, value: &str) -> Result<bool, String> {
        let (base, flow) = (self.base, &mut self.job.flow);
        let positive = |part: &str| whole(part, 1, u64::MAX);
        match word {
            "iodepth" => flow.iodepth = whole(value, 1, 65_536)? as u32,
            "iodepth_batch_submit" => {
                flow.batch = Some(whole(value, 0, 65_536)? as u32).filter(|batch| *batch > 0);
            }
            // 0 is no limit.
            "rate" => set(&mut flow.rate, each(value, |part| Ok(some_of(base.number(part)?)))?),
            "rate_iops" => {
                let rate = |part: &str| whole(part, 0, u64::MAX).map(some_of);
                set(&mut flow.rate_iops, each(value, rate)?);
            }
            "flow" => self.flow.weight = whole(value, 0, 1 << 20)?,
            "flow_id" => self.flow.id = whole(value, 0, u32::MAX.into())?,
            "flow_sleep" => self.flow.sleep_ns = time_ns(value, 1_000)?,
            "latency_target" => self.latency.target_ns = time_ns(value, 1_000)?,
            "latency_window" => self.latency.window_ns = time_ns(value, 1_000)?,
            "latency_percentile" => match float(value)? {
                percent if (0.0..=100.0).contains(&percent) => self.latency.percent = percent,
                _ => return Err(format!("{value:?}: write a share of 0 to 100")),
            },
            "latency_run" => self.latency.run = switch(value)?,
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

    /// Reads words about time, and about other jobs.
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
            "cpumask" => {
                let mask = whole(value, 1, u64::MAX)?;
                crowd.cpus = (0..64).filter(|cpu| mask >> cpu & 1 == 1).collect();
            }
            "wait_for" => crowd.wait_for = Some(value.to_owned()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the job, if its words agree with each other.
    fn finish(mut self) -> Result<(JobSpec, Vec<String>), String> {
        let job = &mut self.job;
        // As in fio, whichever comes later in the file.
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
            return Err(
                "zonesize: zones are gone through in order; use rw=read, write or rw".into()
            );
        }
        if job.span.time_based && job.span.runtime_ns.is_none() {
            // As in fio.
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
        return Err("verify: blocks of one size are checked; use bs".to_owned());
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

/// Returns the directions of a job: of a mix, the directions with a share. As in fio, a direction
/// without a share has neither I/Os nor a rate, and a job without writes never changes its file.
fn directions([reads, writes, trims]: [bool; 3], read_percent: u8) -> [bool; 3] {
    if !(reads && writes) {
        return [reads, writes, trims];
    }
    [read_percent > 0, read_percent < 100, trims]
}

/// Returns the engine with this name; `None` if the engine has no meaning here.
fn engine(name: &str) -> Option<Engine> {
    match name {
        "sync" | "psync" | "vsync" | "pvsync" | "pvsync2" => Some(Engine::Sync),
        "libaio" => Some(Engine::Aio),
        "io_uring" => Some(Engine::Uring),
        _ => None,
    }
}

/// Parses `fadvise_hint`; `None` leaves the advice to the job's kind.
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

/// Parses a list of CPUs such as `0-3,7`.
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

/// Returns the kind of I/O that `value` names, and the sequence of its offsets: `read:8k` skips 8k
/// behind each I/O, `randread:8` goes to another place every eighth I/O.
fn kind_of(base: Base, value: &str) -> Result<(Kind, Sequence), String> {
    let (reads, writes, trims) = ([true, false, false], [false, true, false], [false, false, true]);
    let both = [true, true, false];
    let (name, number) =
        value.split_once(':').map_or((value, None), |(name, number)| (name, Some(number)));
    let (has, random) = match name {
        "read" => (reads, false),
        "write" => (writes, false),
        "trim" => (trims, false),
        "rw" | "readwrite" => (both, false),
        "randread" => (reads, true),
        "randwrite" => (writes, true),
        "randtrim" => (trims, true),
        "randrw" => (both, true),
        "trimwrite" | "randtrimwrite" => {
            return Err(format!(
                "{value:?}: trims before writes are not made here; write a job of trims, and one \
                 of writes with stonewall"
            ));
        }
        _ => {
            return Err(format!(
                "{value:?}: write read, write, trim, rw, randread, randwrite, randtrim or randrw"
            ));
        }
    };
    let mut sequence = Sequence::default();
    match number {
        Some(number) if random => sequence.length = whole(number, 1, u32::MAX.into())? as u32,
        Some(number) => sequence.gap = signed(base, number)?,
        None => {}
    }
    Ok((Kind { has, random }, sequence))
}

/// Parses a number of bytes that may be negative.
fn signed(base: Base, text: &str) -> Result<i64, String> {
    let (digits, sign) = text.strip_prefix('-').map_or((text, 1), |digits| (digits, -1));
    match base.number(digits)? {
        bytes @ 0..=0xffff_ffff_ffff => Ok(bytes as i64 * sign),
        _ => Err(format!("{text:?}: write a number such as 8k or -8k")),
    }
}

/// Parses a size for each direction. As in fio, colons and hyphens separate sizes too, and text
/// after a slash or after the third size is ignored, so that a list for `bssplit` may stand here.
fn sizes(base: Base, value: &str) -> Result<[Option<u32>; 3], String> {
    let parts: Vec<&str> = value.split([',', ':', '-']).take(3).collect();
    each(&parts.join(","), |part| blocks::size(base, part.split('/').next().unwrap_or("")))
}

/// Parses `percentile_list`, and returns it in rising order.
fn percentiles(value: &str) -> Result<Vec<f64>, String> {
    let wrong = || format!("{value:?}: write 1 to 20 numbers of 0 to 100, such as 50:99:99.9");
    let mut list = value.split(':').map(float).collect::<Result<Vec<f64>, _>>()?;
    if list.len() > 20 || list.iter().any(|percent| !(0.0..=100.0).contains(percent)) {
        return Err(wrong());
    }
    list.sort_unstable_by(f64::total_cmp);
    Ok(list)
}

/// Returns true if this kind of `verify` checks blocks. All kinds check the same pattern here.
fn verifies(value: &str) -> Result<bool, String> {
    const KINDS: [&str; 19] = [
        "md5",
        "crc64",
        "crc32",
        "crc32-intel",
        "crc32c",
        "crc32c-intel",
        "crc16",
        "crc7",
        "sha1",
        "sha256",
        "sha512",
        "sha3-224",
        "sha3-256",
        "sha3-384",
        "sha3-512",
        "xxhash",
        "meta",
        "pattern",
        "pattern_hdr",
    ];
    match value {
        "0" | "none" => Ok(false),
        kind if KINDS.contains(&kind) => Ok(true),
        _ => Err(format!("{value:?}: write crc32c, or 0 for none")),
    }
}

/// Returns the zones of a job that has `zonemode`; refuses zone words that contradict each other.
fn zones(wanted: Option<Zones>, given: Zones) -> Result<Option<Zones>, String> {
    match wanted {
        None if given.size > 0 => Err("zonesize: it is for zones; add zonemode=strided".to_owned()),
        None => Ok(None),
        Some(Zones { size: 0, .. }) => Err("zonemode: zones have a size; add zonesize".to_owned()),
        Some(Zones { size, range: 0, skip }) => Ok(Some(Zones { size, range: size, skip })),
        zones => Ok(zones),
    }
}

/// Sets the values that are given.
fn set<T>(values: &mut [T; 3], given: [Option<T>; 3]) {
    for (value, given) in values.iter_mut().zip(given) {
        if let Some(given) = given {
            *value = given;
        }
    }
}

/// Sets optional values that are given, as `set` does.
fn some<T>(values: &mut [Option<T>; 3], given: [Option<T>; 3]) {
    set(values, given.map(|given| given.map(Some)));
}

/// Returns `None` for 0.
fn some_of(number: u64) -> Option<u64> {
    Some(number).filter(|number| *number > 0)
}
