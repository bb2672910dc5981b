//! The options of job files that millrace supports, as a table of names and parsers.
//!
//! To add an option, add a row to this table and a row to docs/lab/bench.md. Ignored options and
//! aliases are in `options`. `draft` calls the parsers, which store the values in the draft's
//! fields.

use millrace_drives::Advice;

use super::block_distribution::distribution;
use super::blocks;
use super::draft::Draft;
use super::spec::{Engine, Kind, Sequence};
use super::value::{Base, each, float, switch, time_ns, whole};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    Value,
    /// The option needs no value: its name alone switches the setting on.
    Nothing,
}

pub(super) struct Word {
    pub(super) name: &'static str,
    pub(super) needs: Needs,
    pub(super) read: fn(&mut Draft, &str) -> Result<(), String>,
}

const fn word(name: &'static str, read: fn(&mut Draft, &str) -> Result<(), String>) -> Word {
    Word { name, needs: Needs::Value, read }
}

const fn flag(name: &'static str, read: fn(&mut Draft, &str) -> Result<(), String>) -> Word {
    Word { name, needs: Needs::Nothing, read }
}

/// Supported options by their usual names, grouped: files, regions, single I/Os, rates, times, and
/// relations to other jobs.
pub(super) static WORDS: [Word; 69] = [
    word("name", |d, v| put(&mut d.job.name, Ok(v.to_owned()))),
    flag("description", |d, v| put(&mut d.job.description, Ok(Some(v.to_owned())))),
    word("percentile_list", |d, v| put(&mut d.job.percentiles, percentiles(v).map(Some))),
    word("directory", |d, v| put(&mut d.job.directory, single(v, "directory"))),
    word("filename", |d, v| put(&mut d.job.filename, single(v, "file"))),
    flag("direct", |d, v| put(&mut d.job.access.direct, switch(v))),
    flag("buffered", |d, v| put(&mut d.job.access.direct, switch(v).map(|on| !on))),
    flag("invalidate", |d, v| put(&mut d.job.access.invalidate, switch(v))),
    flag("fadvise_hint", |d, v| put(&mut d.job.access.advice, advice(v))),
    word("ioengine", read_engine),
    flag("unlink", read_unlink),
    word("kb_base", |d, v| {
        put(&mut d.base, one_of(v, &[("1024", Base::BINARY), ("1000", Base::DECIMAL)]))
    }),
    // A size above 100 % counts as 100 %.
    word("size", |d, v| put(&mut d.job.region.size, d.base.amount(v, 1e6).map(Some))),
    word("io_size", |d, v| put(&mut d.job.region.io_size, d.base.amount(v, 100.0).map(Some))),
    word("offset", |d, v| put(&mut d.job.region.offset, d.base.amount(v, 100.0).map(Some))),
    word("offset_align", |d, v| put(&mut d.job.region.offset_align, d.base.number(v).map(some_of))),
    word("offset_increment", |d, v| {
        put(&mut d.job.region.offset_increment, d.base.amount(v, 100.0).map(Some))
    }),
    word("filesize", |d, v| put(&mut d.job.region.file_size, d.base.number(v).map(Some))),
    flag("fill_device", |d, v| put(&mut d.job.region.fill, switch(v))),
    word("number_ios", |d, v| put(&mut d.job.region.number_ios, whole(v, 1, u64::MAX).map(Some))),
    word("zonemode", |d, v| put(&mut d.has_zones, zone_mode(v))),
    word("zonesize", |d, v| put(&mut d.zones.size, d.base.number(v))),
    word("zonerange", |d, v| put(&mut d.zones.range, d.base.number(v))),
    word("zoneskip", |d, v| put(&mut d.zones.skip, d.base.number(v))),
    word("rw", read_kind),
    word("bs", |d, v| set(&mut d.bs, sizes(d.base, v))),
    word("bsrange", |d, v| some(&mut d.ranges, each(v, |part| blocks::range(d.base, part)))),
    word("bssplit", |d, v| some(&mut d.splits, each(v, |part| blocks::split(d.base, part)))),
    word("blockalign", |d, v| some(&mut d.job.shape.align, sizes(d.base, v))),
    word("rwmixread", |d, v| put(&mut d.job.shape.read_percent, percent(v))),
    word("rwmixwrite", |d, v| {
        put(&mut d.job.shape.read_percent, percent(v).map(|part| 100 - part))
    }),
    word("random_distribution", |d, v| set(&mut d.job.shape.distribution, each(v, distribution))),
    word("percentage_random", |d, v| set(&mut d.job.shape.percent_random, each(v, percent))),
    flag("norandommap", |d, v| put(&mut d.job.shape.map, switch(v).map(|on| !on))),
    word("randseed", |d, v| put(&mut d.job.shape.seed, whole(v, 0, u64::MAX))),
    flag("randrepeat", |d, v| put(&mut d.job.shape.repeat, switch(v))),
    flag("allrandrepeat", |d, v| put(&mut d.job.shape.repeat, switch(v))),
    word("verify", read_verify),
    flag("do_verify", |d, v| put(&mut d.do_verify, switch(v))),
    word("iodepth", |d, v| put(&mut d.job.flow.iodepth, number(v, 1, 65_536))),
    word("iodepth_batch_submit", |d, v| {
        put(&mut d.job.flow.batch, number(v, 0, 65_536).map(|batch| Some(batch).filter(|n| *n > 0)))
    }),
    // A rate of 0 means no limit.
    word("rate", |d, v| {
        set(&mut d.job.flow.rate, each(v, |part| d.base.number(part).map(some_of)))
    }),
    word("rate_iops", |d, v| {
        set(&mut d.job.flow.rate_iops, each(v, |part| whole(part, 0, u64::MAX).map(some_of)))
    }),
    word("rate_process", |d, v| {
        put(&mut d.job.flow.poisson, one_of(v, &[("linear", false), ("poisson", true)]))
    }),
    word("flow", |d, v| put(&mut d.flow.weight, whole(v, 0, 1 << 20))),
    word("flow_id", |d, v| put(&mut d.flow.id, whole(v, 0, u32::MAX.into()))),
    word("flow_sleep", |d, v| put(&mut d.flow.sleep_ns, time_ns(v, 1_000))),
    word("latency_target", |d, v| put(&mut d.latency.target_ns, time_ns(v, 1_000))),
    word("latency_window", |d, v| put(&mut d.latency.window_ns, time_ns(v, 1_000))),
    word("latency_percentile", |d, v| put(&mut d.latency.percent, latency_percent(v))),
    flag("latency_run", |d, v| put(&mut d.latency.run, switch(v))),
    word("thinktime", |d, v| put(&mut d.job.flow.think.time_ns, time_ns(v, 1_000))),
    word("thinktime_spin", |d, v| put(&mut d.job.flow.think.spin_ns, time_ns(v, 1_000))),
    word("thinktime_blocks", |d, v| put(&mut d.job.flow.think.blocks, whole(v, 1, u64::MAX))),
    word("fsync", |d, v| put(&mut d.job.flow.fsync, whole(v, 0, u64::MAX))),
    word("fdatasync", |d, v| put(&mut d.job.flow.fdatasync, whole(v, 0, u64::MAX))),
    flag("end_fsync", |d, v| put(&mut d.job.flow.end_fsync, switch(v))),
    word("runtime", |d, v| put(&mut d.job.span.runtime_ns, seconds(v).map(some_of))),
    flag("time_based", |d, v| put(&mut d.job.span.time_based, switch(v))),
    word("ramp_time", |d, v| put(&mut d.job.span.ramp_ns, seconds(v))),
    word("startdelay", |d, v| put(&mut d.job.span.delay_ns, delay(v))),
    word("loops", |d, v| put(&mut d.job.span.loops, whole(v, 1, u64::MAX))),
    word("numjobs", |d, v| put(&mut d.job.crowd.numjobs, number(v, 1, 4096))),
    flag("stonewall", |d, v| put(&mut d.job.crowd.stonewall, switch(v))),
    flag("new_group", |d, v| put(&mut d.job.crowd.new_group, switch(v))),
    flag("group_reporting", |d, v| put(&mut d.job.crowd.group_reporting, switch(v))),
    word("cpus_allowed", |d, v| put(&mut d.job.crowd.cpus, cpus(v))),
    word("cpumask", |d, v| put(&mut d.job.crowd.cpus, whole(v, 1, u64::MAX).map(cpus_of))),
    word("wait_for", |d, v| put(&mut d.job.crowd.wait_for, Ok(Some(v.to_owned())))),
];

fn read_engine(draft: &mut Draft, value: &str) -> Result<(), String> {
    draft.engine = engine(value);
    if draft.engine.is_none() {
        draft.ignored.push(format!("ioengine={value}"));
    }
    Ok(())
}

fn read_unlink(draft: &mut Draft, value: &str) -> Result<(), String> {
    if switch(value)? {
        draft.ignored.push("unlink (files are left in place)".to_owned());
    }
    Ok(())
}

fn read_kind(draft: &mut Draft, value: &str) -> Result<(), String> {
    (draft.job.kind, draft.job.shape.sequence) = kind_of(draft.base, value)?;
    Ok(())
}

fn read_verify(draft: &mut Draft, value: &str) -> Result<(), String> {
    draft.verify = verifies(value)?;
    if draft.verify && !value.starts_with("crc32c") {
        draft.ignored.push(format!("verify={value} (blocks carry a crc32c)"));
    }
    Ok(())
}

fn engine(name: &str) -> Option<Engine> {
    match name {
        "sync" | "psync" | "vsync" | "pvsync" | "pvsync2" => Some(Engine::Sync),
        "libaio" => Some(Engine::Aio),
        "io_uring" => Some(Engine::Uring),
        _ => None,
    }
}

/// Parses `fadvise_hint`. `None` means that the kind of I/O determines the advice.
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

/// Parses `rw`: the kind of I/O, and the sequence of offsets. `read:8k` skips 8k after each I/O,
/// and `randread:8` goes to a random offset with every eighth I/O.
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
                "{value:?}: millrace-lab cannot trim each range before it writes the range; use a \
                 job of trims, then a job of writes with stonewall"
            ));
        }
        _ => {
            return Err(format!(
                "{value:?}: choose read, write, trim, rw, randread, randwrite, randtrim or randrw"
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

fn signed(base: Base, text: &str) -> Result<i64, String> {
    let (digits, sign) = text.strip_prefix('-').map_or((text, 1), |digits| (digits, -1));
    match base.number(digits)? {
        bytes @ 0..=0xffff_ffff_ffff => Ok(bytes as i64 * sign),
        _ => Err(format!("{text:?}: write a number such as 8k or -8k")),
    }
}

/// Parses a size for each direction. As in fio, colons and hyphens also separate sizes, and text
/// after a slash or after the third size is ignored.
fn sizes(base: Base, value: &str) -> Result<[Option<u32>; 3], String> {
    let parts: Vec<&str> = value.split([',', ':', '-']).take(3).collect();
    each(&parts.join(","), |part| blocks::size(base, part.split('/').next().unwrap_or("")))
}

fn percentiles(value: &str) -> Result<Vec<f64>, String> {
    let wrong = || format!("{value:?}: write 1 to 20 numbers of 0 to 100, such as 50:99:99.9");
    let mut list = value.split(':').map(float).collect::<Result<Vec<f64>, _>>()?;
    if list.len() > 20 || list.iter().any(|percent| !(0.0..=100.0).contains(percent)) {
        return Err(wrong());
    }
    list.sort_unstable_by(f64::total_cmp);
    Ok(list)
}

fn verifies(value: &str) -> Result<bool, String> {
    const KINDS: &str = "md5 crc64 crc32 crc32-intel crc32c crc32c-intel crc16 crc7 sha1 sha256 \
        sha512 sha3-224 sha3-256 sha3-384 sha3-512 xxhash meta pattern pattern_hdr";
    match value {
        "0" | "none" => Ok(false),
        kind if KINDS.split(' ').any(|known| known == kind) => Ok(true),
        _ => Err(format!("{value:?}: write crc32c, or 0 for none")),
    }
}

fn put<T>(place: &mut T, value: Result<T, String>) -> Result<(), String> {
    *place = value?;
    Ok(())
}

fn set<T>(values: &mut [T; 3], given: Result<[Option<T>; 3], String>) -> Result<(), String> {
    for (value, given) in values.iter_mut().zip(given?) {
        if let Some(given) = given {
            *value = given;
        }
    }
    Ok(())
}

fn some<T>(
    values: &mut [Option<T>; 3],
    given: Result<[Option<T>; 3], String>,
) -> Result<(), String> {
    set(values, given.map(|given| given.map(|given| given.map(Some))))
}

fn some_of(number: u64) -> Option<u64> {
    Some(number).filter(|number| *number > 0)
}

fn one_of<T: Copy>(text: &str, words: &[(&str, T); 2]) -> Result<T, String> {
    let found = words.iter().find(|(word, _)| *word == text);
    let wrong = || format!("{text:?}: write {} or {}", words[0].0, words[1].0);
    found.map(|(_, value)| *value).ok_or_else(wrong)
}

fn number(text: &str, least: u32, most: u32) -> Result<u32, String> {
    whole(text, least.into(), most.into()).map(|number| number as u32)
}

fn percent(text: &str) -> Result<u8, String> {
    number(text, 0, 100).map(|percent| percent as u8)
}

fn single(text: &str, noun: &str) -> Result<Option<String>, String> {
    match text.contains(':') {
        true => Err(format!("{text:?}: a job has one {noun}; write a job for each")),
        false => Ok(Some(text.to_owned())),
    }
}

fn latency_percent(text: &str) -> Result<f64, String> {
    let share = float(text)?;
    let wrong = || format!("{text:?}: write a percentage from 0 to 100");
    if (0.0..=100.0).contains(&share) { Ok(share) } else { Err(wrong()) }
}

fn zone_mode(text: &str) -> Result<bool, String> {
    one_of(text, &[("none", false), ("strided", true)]).map_err(|_| {
        format!("{text:?}: the zones of zoned devices are not supported; write strided or none")
    })
}

/// Parses `startdelay`: a time, or a range from which each clone draws its time.
fn delay(text: &str) -> Result<(u64, u64), String> {
    let (first, last) = text.split_once(['-', ':']).unwrap_or((text, text));
    let (first, last) = (seconds(first)?, seconds(last)?);
    Ok((first.min(last), first.max(last)))
}

fn cpus_of(mask: u64) -> Vec<u32> {
    (0..64).filter(|cpu| mask >> cpu & 1 == 1).collect()
}
