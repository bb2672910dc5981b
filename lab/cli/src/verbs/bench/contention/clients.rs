//! Parses the texts of `--client` into clients and their groups.
//!
//! This module owns the list of keys. The run creates the groups in the block layer. An error
//! quotes the flag's text, the key and a valid value.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use millrace_block::{GroupConfig, GroupId, LatencyTarget, Priority};
use millrace_console::words::{count, number, rate_bytes_per_s, size, time};
use millrace_drives::nearest;
use millrace_experiments::Rw;
use millrace_experiments::load::contention::{CLIENTS_MAX, Client};
use millrace_machine::nanoseconds;

const CLIENT_KEYS: [&str; 11] = [
    "name",
    "numjobs",
    "rw",
    "bs",
    "iodepth",
    "thinktime",
    "fsync",
    "sync",
    "cpu",
    "start",
    "group",
];
const GROUP_KEYS: [&str; 10] = [
    "weight",
    "priority",
    "latency-target",
    "iops",
    "read-iops",
    "write-iops",
    "bandwidth",
    "read-bandwidth",
    "write-bandwidth",
    "burst",
];
const BS_MAX: u64 = 1 << 30;

/// Parses the values of all `--client` flags. Returns the groups, the first for `GroupId(1)` and so
/// on, and the clients.
pub fn read(texts: &[String]) -> Result<(Vec<GroupConfig>, Vec<Client>)> {
    let (mut groups, mut clients): (Vec<GroupKeys<'_>>, _) = (Vec::new(), Vec::new());
    for text in texts {
        add(text, &mut groups, &mut clients).with_context(|| format!("--client {text}"))?;
    }
    for (config, _) in &groups {
        config.validate().context("--client")?;
    }
    Ok((groups.into_iter().map(|(config, _)| config).collect(), clients))
}

type GroupKeys<'a> = (GroupConfig, Vec<(&'a str, &'a str)>);

fn add<'a>(
    text: &'a str,
    groups: &mut Vec<GroupKeys<'a>>,
    clients: &mut Vec<Client>,
) -> Result<()> {
    let pairs = pairs(text)?;
    let of = |key: &str| pairs.iter().find(|(known, _)| *known == key).map(|(_, value)| *value);
    let jobs = read_key(of("numjobs"), "numjobs", 1, |text| number(text, 1, CLIENTS_MAX as u32))?;
    let cpu =
        of("cpu").map(|text| number(text, 0, 65_535).map_err(|what| anyhow!("cpu={text}: {what}")));
    let plain = Client {
        name: String::new(),
        group: GroupId::DEFAULT,
        rw: read_key(of("rw"), "rw", Rw::RandRead, |text| text.parse().map_err(rw_words))?,
        bs_bytes: read_key(of("bs"), "bs", 4096, block_size)?,
        iodepth: read_key(of("iodepth"), "iodepth", 32, |text| number(text, 1, 65_536))?,
        cpu: cpu.transpose()?,
        start_ns: nanoseconds(read_key(of("start"), "start", Duration::ZERO, time)?),
        thinktime_ns: read_key(of("thinktime"), "thinktime", Duration::ZERO, time)?.as_nanos()
            as u64,
        fsync: read_key(of("fsync"), "fsync", 0, |text| number(text, 0, u32::MAX))?,
        sync: read_key(of("sync"), "sync", 0, |text| number(text, 0, 1))? == 1,
    };
    let base = match (of("name"), of("group")) {
        (Some(name), _) | (None, Some(name)) => name.to_owned(),
        (None, None) => format!("client{}", clients.len()),
    };
    let settings: Vec<_> =
        pairs.iter().copied().filter(|(key, _)| GROUP_KEYS.contains(key)).collect();
    for job in 0..jobs {
        let mut name = if jobs == 1 { base.clone() } else { format!("{base}.{job}") };
        let group = of("group").map_or_else(|| name.clone(), str::to_owned);
        if clients.iter().any(|client| client.name == name) {
            if of("name").is_some() {
                bail!("name={base}: another client has this name; choose another");
            }
            name = format!("{name}.{}", clients.len());
        }
        let group = join(&group, &settings, groups)?;
        clients.push(Client { name, group, ..plain.clone() });
    }
    Ok(())
}

/// Splits the value of a `--client` flag into keys and values. A repeated key is an error.
fn pairs(text: &str) -> Result<Vec<(&str, &str)>> {
    let mut pairs: Vec<(&str, &str)> = Vec::new();
    for piece in text.split(',').filter(|piece| !piece.is_empty()) {
        let Some((key, value)) = piece.split_once('=') else {
            bail!("{piece}: write KEY=VALUE,...");
        };
        let known = || CLIENT_KEYS.iter().chain(&GROUP_KEYS).copied();
        if !known().any(|other| other == key) {
            let hint = nearest(key, known())
                .map_or_else(String::new, |near| format!(" (did you mean `{near}`?)"));
            let all: Vec<&str> = known().collect();
            bail!("no key `{key}`{hint}; choose from {}", all.join(", "));
        }
        if pairs.iter().any(|(other, _)| *other == key) {
            bail!("{key} is given twice; remove one of them");
        }
        pairs.push((key, value));
    }
    Ok(pairs)
}

fn read_key<T>(
    text: Option<&str>,
    key: &str,
    default: T,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<T> {
    let Some(text) = text else { return Ok(default) };
    read(text).map_err(|what| anyhow!("{key}={text}: {what}"))
}

fn rw_words(text: String) -> String {
    text.split_once(": ").map_or(text.clone(), |(_, words)| words.to_owned())
}

fn block_size(text: &str) -> Result<u32, String> {
    let bytes = size(text)?;
    let fits = (512..=BS_MAX).contains(&bytes) && bytes.is_multiple_of(512);
    if fits { Ok(bytes as u32) } else { Err("write a multiple of 512 up to 1g, such as 4k".into()) }
}

fn join<'a>(
    name: &str,
    settings: &[(&'a str, &'a str)],
    groups: &mut Vec<GroupKeys<'a>>,
) -> Result<GroupId> {
    let at = groups.iter().position(|(config, _)| config.name == name).unwrap_or_else(|| {
        groups.push((GroupConfig::new(name), Vec::new()));
        groups.len() - 1
    });
    let (config, given) = &mut groups[at];
    for (key, value) in settings {
        match given.iter().find(|(other, _)| other == key) {
            Some((_, other)) if other != value => bail!(
                "{key}={value}: group {name} has {key}={other} by another of its clients; give it \
                 once"
            ),
            Some(_) => {}
            None => {
                apply(config, key, value).map_err(|what| anyhow!("{key}={value}: {what}"))?;
                given.push((key, value));
            }
        }
    }
    Ok(GroupId(at as u16 + 1))
}

fn apply(config: &mut GroupConfig, key: &str, value: &str) -> Result<(), String> {
    let limits = &mut config.limits;
    match key {
        "weight" => config.weight = number(value, 1, 10_000)?,
        "priority" => config.priority = priority(value)?,
        "latency-target" => config.latency_target = Some(target(value)?),
        "iops" => limits.iops = Some(count(value)?),
        "read-iops" => limits.read_iops = Some(count(value)?),
        "write-iops" => limits.write_iops = Some(count(value)?),
        "bandwidth" => limits.bandwidth = Some(rate_bytes_per_s(value)?),
        "read-bandwidth" => limits.read_bandwidth = Some(rate_bytes_per_s(value)?),
        "write-bandwidth" => limits.write_bandwidth = Some(rate_bytes_per_s(value)?),
        _ => limits.burst = time(value)?,
    }
    Ok(())
}

fn priority(text: &str) -> Result<Priority, String> {
    match text {
        "realtime" => Ok(Priority::Realtime),
        "best-effort" => Ok(Priority::BestEffort),
        "idle" => Ok(Priority::Idle),
        _ => Err("write realtime, best-effort or idle".into()),
    }
}

/// Parses a latency target such as `p99 2ms` or `mean 1ms`.
fn target(text: &str) -> Result<LatencyTarget, String> {
    let wrong =
        || "write a percentile or mean, and a time: p99 2ms, p99.9 5ms, mean 1ms".to_owned();
    let (what, time) = text.split_once(' ').ok_or_else(wrong)?;
    let latency = self::time(time)?;
    if what == "mean" {
        return Ok(LatencyTarget::Mean(latency));
    }
    let percent: f64 = what.strip_prefix('p').and_then(|p| p.parse().ok()).ok_or_else(wrong)?;
    if !(50.0..=99.99).contains(&percent) {
        return Err("percentiles are p50 to p99.99".into());
    }
    Ok(LatencyTarget::Percentile((percent * 100.0).round() as u16, latency))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(texts: &[&str]) -> Result<(Vec<GroupConfig>, Vec<Client>)> {
        read(&texts.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn clients_that_name_a_group_share_it_and_others_have_their_own() {
        let (groups, clients) =
            of(&["group=a,weight=200,iops=20k", "group=a,iodepth=256", "numjobs=2", "name=z"])
                .unwrap();
        let names: Vec<&str> = groups.iter().map(|group| group.name.as_str()).collect();
        assert_eq!(names, ["a", "client2.0", "client2.1", "z"]);
        let seen: Vec<_> =
            clients.iter().map(|client| (client.name.as_str(), client.group.0)).collect();
        let expected = [("a", 1), ("a.1", 1), ("client2.0", 2), ("client2.1", 3), ("z", 4)];
        assert_eq!(seen, expected);
        assert_eq!((groups[0].weight, groups[0].limits.iops), (200, Some(20_000)));
        assert_eq!((clients[0].iodepth, clients[1].iodepth), (32, 256));
    }

    #[test]
    fn every_key_of_a_group_is_read() {
        let text = "latency-target=p99.9 2ms,priority=idle,iops=1,read-iops=2,write-iops=3,\
                    bandwidth=4k,read-bandwidth=8k,write-bandwidth=1m,burst=5ms,cpu=3,start=10us,thinktime=20ms";
        let (groups, clients) = of(&[text]).unwrap();
        let (group, limits) = (&groups[0], groups[0].limits);
        assert_eq!(
            group.latency_target,
            Some(LatencyTarget::Percentile(9_990, Duration::from_millis(2)))
        );
        assert_eq!((group.priority, limits.burst), (Priority::Idle, Duration::from_millis(5)));
        let iops = (limits.iops, limits.read_iops, limits.write_iops);
        assert_eq!(iops, (Some(1), Some(2), Some(3)));
        let bytes = (limits.bandwidth, limits.read_bandwidth, limits.write_bandwidth);
        assert_eq!(bytes, (Some(4096), Some(8192), Some(1 << 20)));
        assert_eq!((clients[0].cpu, clients[0].start_ns), (Some(3), 10_000));
        assert_eq!(clients[0].thinktime_ns, 20_000_000);
    }

    #[test]
    fn what_makes_no_sense_is_said_with_its_key_and_what_to_write() {
        for (texts, expected) in [
            (&["wieght=1"][..], "no key `wieght` (did you mean `weight`?); choose from name,"),
            (&["weight=0"], "weight=0: write a whole number from 1 to 10000"),
            (&["bs=100"], "bs=100: write a multiple of 512 up to 1g, such as 4k"),
            (&["rw=rand"], "rw=rand: one of read, write, randread"),
            (&["iops=0"], "iops 0 is out of range; use 1 to"),
            (&["iodepth"], "iodepth: write KEY=VALUE,..."),
            (&["bs=4k,bs=8k"], "bs is given twice; remove one of them"),
            (&["latency-target=p99"], "write a percentile or mean, and a time: p99 2ms"),
            (&["latency-target=p10 1ms"], "percentiles are p50 to p99.99"),
            (&["priority=high"], "write realtime, best-effort or idle"),
            (&["name=a", "name=a"], "name=a: another client has this name"),
            (
                &["group=a,weight=1", "group=a,weight=2"],
                "weight=2: group a has weight=1 by another of its clients; give it once",
            ),
        ] {
            let error = of(texts).expect_err(expected);
            let text = format!("{error:#}");
            assert!(text.contains(expected) && text.starts_with("--client"), "{text}");
        }
    }
}
