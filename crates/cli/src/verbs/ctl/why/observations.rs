//! Causes of latency other than a group's own I/Os: drives, caches, request sizes, CPUs.
//!
//! Each observation is a function of two reports that returns a line or nothing; `observations`
//! calls them all. why.rs prints the lines below the table, and in JSON.

use millrace_block::{DiskCounter, Op};
use millrace_console::{counted, visible};

use super::causes::FLUSH;
use super::interval::{DriveInterval, ObservedInterval};
use crate::verbs::stat::groups::time;
use crate::views::caches::CacheCounts;
use crate::views::report::Report;

const DISCARDS: [&str; 2] = ["discard", "write-zeroes"];

/// Minimum number of I/Os, and minimum mean latency in milliseconds, for which a drive is reported
/// as slow.
const SLOW_IOS: u64 = 10;
const SLOW_MS: f64 = 0.5;
/// Time without a completion, in seconds, after which a drive is reported as silent.
const SILENT_S: f64 = 0.5;
/// Least number of pages read for which a cache's hit rate is judged.
const READ_PAGES: u64 = 100;
/// Minimum rate per second for which unaligned requests, added flushes and requests that wait for
/// memory are reported.
const MANY_PER_S: f64 = 10.0;
/// Threshold for reporting that discards are split: mean number of requests per discard and drive.
const MANY_PIECES: f64 = 4.0;
/// Threshold for reporting a lack of CPU time: share of the time, 0 to 1, that threads wait for a
/// CPU.
const STARVED: f64 = 0.2;

pub fn observations(interval: &ObservedInterval<'_>) -> Vec<String> {
    let mut lines: Vec<String> = interval.drives().filter_map(|drive| trouble(&drive)).collect();
    lines.extend(interval.drives().filter_map(|drive| interval.silent(&drive)));
    lines.extend(interval.drives().filter_map(|drive| timeouts(&drive)));
    lines.extend(interval.slow_drive());
    lines.extend(interval.full_cache());
    lines.extend(interval.missing_cache());
    lines.extend(interval.unaligned());
    lines.extend(interval.flushes_of_writes());
    lines.extend(interval.pieces_of_discards());
    lines.extend(interval.payload_memory());
    lines.extend(interval.processor());
    lines
}

fn trouble(drive: &DriveInterval<'_>) -> Option<String> {
    let trouble = drive.now.trouble.as_deref()?;
    Some(format!("drive {}: {trouble}", drive.now.name))
}

fn timeouts(drive: &DriveInterval<'_>) -> Option<String> {
    let timeouts = drive.counted(DiskCounter::Timeouts);
    (timeouts > 0).then(|| {
        let requests = counted(timeouts as usize, "request");
        format!("drive {}: {requests} not answered in time", drive.now.name)
    })
}

impl<'a> ObservedInterval<'a> {
    fn silent(&self, drive: &DriveInterval<'_>) -> Option<String> {
        let in_flight = drive.now.in_flight;
        let was_busy = drive.before.is_some_and(|before| before.in_flight > 0);
        let is_long = self.seconds >= SILENT_S;
        let is_silent = is_long && in_flight > 0 && was_busy && drive.added(|op| op.ios) == 0;
        is_silent.then(|| {
            let (seconds, ios) = (self.seconds, counted(in_flight as usize, "I/O"));
            let name = &drive.now.name;
            format!("drive {name}: completed nothing in {seconds:.1} s, with {ios} in flight")
        })
    }

    /// Reports the slowest drive, if an I/O took at least twice as long there as at other drives.
    fn slow_drive(&self) -> Option<String> {
        let drives: Vec<_> = self.drives().filter(|drive| drive.ios() >= SLOW_IOS).collect();
        let slowest =
            drives.iter().max_by(|one, other| one.mean_ms().total_cmp(&other.mean_ms()))?;
        let others = || drives.iter().filter(|drive| drive.now.name != slowest.now.name);
        let ios: u64 = others().map(DriveInterval::ios).sum();
        let all_ms: f64 = others().map(|drive| drive.mean_ms() * drive.ios() as f64).sum();
        let (mean_ms, others_ms) = (slowest.mean_ms(), all_ms / ios.max(1) as f64);
        let is_slow = ios > 0 && mean_ms >= 2.0 * others_ms && mean_ms >= SLOW_MS;
        is_slow.then(|| {
            let (here, there) = (time(mean_ms), time(others_ms));
            format!(
                "drive {}: an I/O takes {here} on average, but {there} on the other drives",
                slowest.now.name
            )
        })
    }

    fn cache(&self) -> Option<CacheCounts> {
        let of = |report: &'a Report| report.caches.iter().find(|one| one.volume == self.volume);
        let now = of(self.now)?;
        Some(of(self.before).map_or_else(|| now.clone(), |before| now.since(before)))
    }

    /// Returns true if at least half of the writes waited for room in the volume's cache.
    pub fn is_cache_full(&self) -> bool {
        let (writes, _) = self.completed(|op| op == Op::Write.name());
        self.cache().is_some_and(|did| did.stats.throttled > 0 && did.stats.throttled * 2 >= writes)
    }

    fn full_cache(&self) -> Option<String> {
        let did = self.cache().filter(|did| did.stats.throttled > 0)?;
        let stats = &did.stats;
        let [dirty, most] =
            [stats.dirty_bytes, stats.dirty_max_bytes].map(|bytes| mib(bytes as f64));
        let writes = counted(did.stats.throttled as usize, "write");
        let back = mib((did.stats.written_back * did.stats.page_bytes) as f64 / self.seconds);
        Some(format!(
            "cache of {}: {writes} waited for room: {dirty} MiB of at most {most} MiB is not on the \
             drives yet, which take {back} MiB/s of it",
            visible(self.volume)
        ))
    }

    fn missing_cache(&self) -> Option<String> {
        let stats = self.cache()?.stats;
        let all = stats.read_hits + stats.read_misses;
        let is_missing = all >= READ_PAGES && stats.read_misses * 2 > all;
        is_missing.then(|| {
            let percent = 100.0 * stats.read_misses as f64 / all as f64;
            let volume = visible(self.volume);
            format!(
                "cache of {volume}: {percent:.0} % of the pages that clients read were not in \
                 memory"
            )
        })
    }

    fn many(&self, now: u64, before: u64) -> Option<f64> {
        let per_s = now.saturating_sub(before) as f64 / self.seconds;
        (per_s >= MANY_PER_S).then_some(per_s)
    }

    fn unaligned(&self) -> Option<String> {
        let per_s = self.many(self.now.server.stats.bounced, self.before.server.stats.bounced)?;
        Some(format!(
            "NBD clients send {per_s:.0} requests per second that begin or end within a block: a \
             write of part of a block reads it first, and those on the same block wait for each other"
        ))
    }

    /// Reports flushes that clients did not ask for.
    fn flushes_of_writes(&self) -> Option<String> {
        let drives = self.drives().count() as u64;
        let (asked, done) = self.completed(|op| op == FLUSH);
        let per_s = self.many(done, asked * drives).filter(|_| self.cache().is_none())?;
        Some(format!(
            "writes with FUA cost {per_s:.0} flushes per second, because the drives do not support FUA"
        ))
    }

    fn pieces_of_discards(&self) -> Option<String> {
        let (ios, pieces) = self.completed(|op| DISCARDS.contains(&op));
        let drives = self.drives().count().max(1) as f64;
        let each = pieces as f64 / ios.max(1) as f64;
        (ios > 0 && each >= MANY_PIECES * drives).then(|| {
            format!("discards: each is split into {each:.0} requests to the drives, on average")
        })
    }

    fn payload_memory(&self) -> Option<String> {
        let (now, before) = (&self.now.server.stats, &self.before.server.stats);
        let Some(per_s) = self.many(now.memory_waits, before.memory_waits) else {
            let waiting = now.memory_waiting;
            return (waiting > 0).then(|| {
                let connections = counted(waiting as usize, "NBD connection");
                format!(
                    "payload memory: {connections} waiting for memory that other requests hold, \
                     for example large ones that wait for their groups' limits: raise \
                     memory-max in [server], or use shorter requests"
                )
            });
        };
        Some(format!(
            "NBD requests waited for payload memory {per_s:.0} times per second: each connection has a \
             part of memory-max in [server], and a larger one leaves room for more"
        ))
    }

    fn processor(&self) -> Option<String> {
        let (now, before) = (self.now.processor, self.before.processor);
        let ran = now.ran_ns.saturating_sub(before.ran_ns) as f64 / 1e9;
        let waited = now.waited_ns.saturating_sub(before.waited_ns) as f64 / 1e9;
        let is_starved = waited >= STARVED * self.seconds && waited >= STARVED * (ran + waited);
        is_starved.then(|| {
            let seconds = self.seconds;
            format!(
                "processors: in {seconds:.1} s the daemon's threads ran for {ran:.1} s, and were ready \
                 to run for another {waited:.1} s without a processor"
            )
        })
    }
}

fn mib(bytes: f64) -> String {
    let mib = bytes / f64::from(1 << 20);
    if mib < 10.0 { format!("{mib:.1}") } else { format!("{mib:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::caches::CacheNumbers;
    use crate::views::report::{Drive, OpCounts, OpStages, ProcessorTime, TimeHistogram, Volume};

    fn ops(op: &str, ios: u64, service_ns: u64) -> OpCounts {
        let service = TimeHistogram { sum_ns: service_ns, ..TimeHistogram::default() };
        let stages = Some(OpStages { service, ..OpStages::default() });
        OpCounts { op: op.into(), ios, stages, ..OpCounts::default() }
    }

    fn drive(name: &str, ops: Vec<OpCounts>) -> Drive {
        Drive { name: name.into(), volume: "v".into(), ops, ..Drive::default() }
    }

    /// Reports two seconds apart.
    fn between(mut now: Report, before: Report) -> Vec<String> {
        now.uptime_ns = before.uptime_ns + 2_000_000_000;
        observations(&ObservedInterval::new("v", &now, &before))
    }

    fn of_drives(drives: Vec<Drive>, before: Vec<Drive>) -> Vec<String> {
        let of = |drives| Report { drives, ..Report::default() };
        between(of(drives), of(before))
    }

    #[test]
    fn a_drive_that_takes_twice_as_long_as_the_others_is_named() {
        let reads =
            |name: &str, ios: u64, mean_ns: u64| drive(name, vec![ops("read", ios, ios * mean_ns)]);
        let usual = [reads("a", 100, 2_000_000), reads("b", 50, 2_000_000)];
        let with = |slow| of_drives(usual.iter().cloned().chain([slow]).collect(), Vec::new());
        let line = "drive c: an I/O takes 40.0 ms on average, but 2.0 ms on the other drives";
        assert_eq!(with(reads("c", 80, 40_000_000)), [line]);
        assert_eq!(with(reads("c", 80, 3_900_000)), [""; 0]);
        assert_eq!(with(reads("c", 9, 40_000_000)), [""; 0], "too few");
        assert_eq!(of_drives(vec![reads("a", 100, 2_000_000)], Vec::new()), [""; 0], "no other");
    }

    #[test]
    fn silent_late_and_troubled_drives_are_named() {
        let stuck = |in_flight, ios| Drive { in_flight, ..drive("d1", vec![ops("read", ios, 0)]) };
        let line = "drive d1: completed nothing in 2.0 s, with 3 I/Os in flight";
        assert_eq!(of_drives(vec![stuck(3, 7)], vec![stuck(1, 7)]), [line]);
        assert_eq!(of_drives(vec![stuck(3, 8)], vec![stuck(1, 7)]), [""; 0]);
        assert_eq!(of_drives(vec![stuck(3, 7)], vec![stuck(0, 7)]), [""; 0], "they are new");
        let mut late = stuck(0, 7);
        late.counts = [("timeouts".into(), 2)].into();
        late.trouble = Some("no connection".into());
        let lines = ["drive d1: no connection", "drive d1: 2 requests not answered in time"];
        assert_eq!(of_drives(vec![late], vec![stuck(0, 7)]), lines);
    }

    #[test]
    fn a_cache_is_named_that_is_full_or_has_nothing_of_what_is_read() {
        let cache = |misses, throttled, back| CacheCounts {
            volume: "v".into(),
            mode: String::new(),
            stats: CacheNumbers {
                page_bytes: 4096,
                dirty_bytes: 63 << 20,
                dirty_max_bytes: 64 << 20,
                read_hits: 20,
                read_misses: misses,
                throttled,
                written_back: back,
                ..CacheNumbers::default()
            },
        };
        let of = |cache| Report { caches: vec![cache], ..Report::default() };
        let found = between(of(cache(280, 813, 2560)), of(cache(100, 1, 0)));
        let lines = [
            "cache of v: 812 writes waited for room: 63 MiB of at most 64 MiB is not on the drives \
             yet, which take 5.0 MiB/s of it",
            "cache of v: 100 % of the pages that clients read were not in memory",
        ];
        assert_eq!(found, lines);
        assert_eq!(between(of(cache(150, 5, 9)), of(cache(100, 5, 0))), [""; 0]);
    }

    #[test]
    fn requests_that_cost_more_than_they_seem_to_are_named() {
        let mut now = Report::default();
        (now.server.stats.bounced, now.server.stats.memory_waits) = (24, 400);
        let found = between(now.clone(), Report::default());
        assert!(found[0].starts_with("NBD clients send 12 requests per second that"), "{found:?}");
        assert!(found[1].starts_with("NBD requests waited for payload memory 200 times"));
        (now.server.stats.bounced, now.server.stats.memory_waits) = (19, 19);
        now.server.stats.memory_waiting = 1;
        let found = between(now.clone(), Report::default());
        assert!(found[0].starts_with("payload memory: 1 NBD connection waiting for"), "{found:?}");
        now.server.stats.memory_waiting = 0;
        assert_eq!(between(now, Report::default()), [""; 0]);
        let discards = |pieces| Report {
            drives: vec![drive("a", vec![ops("discard", pieces, 0)]), drive("b", Vec::new())],
            volumes: vec![Volume {
                name: "v".into(),
                ops: vec![OpCounts { op: "discard".into(), ios: 2, ..OpCounts::default() }],
                ..Volume::default()
            }],
            ..Report::default()
        };
        let flushes = |done| Report {
            drives: vec![drive("a", vec![ops("flush", done, 0)]), drive("b", Vec::new())],
            volumes: vec![Volume {
                name: "v".into(),
                ops: vec![OpCounts { op: "flush".into(), ios: 5, ..OpCounts::default() }],
                ..Volume::default()
            }],
            ..Report::default()
        };
        let line =
            "writes with FUA cost 45 flushes per second, because the drives do not support FUA";
        assert_eq!(between(flushes(100), Report::default()), [line]);
        assert_eq!(between(flushes(29), Report::default()), [""; 0]);
        let line = "discards: each is split into 32 requests to the drives, on average";
        assert_eq!(between(discards(64), Report::default()), [line]);
        assert_eq!(between(discards(15), Report::default()), [""; 0]);
    }

    #[test]
    fn threads_without_a_processor_are_named() {
        let of = |ran_ns, waited_ns| Report {
            processor: ProcessorTime { ran_ns, waited_ns },
            ..Report::default()
        };
        let line = "processors: in 2.0 s the daemon's threads ran for 0.5 s, and were ready to run \
                    for another 1.0 s without a processor";
        let (half, full) = (500_000_000, 1_000_000_000);
        assert_eq!(between(of(full, full), of(half, 0)), [line]);
        assert_eq!(between(of(3 * full, half), of(0, half / 2)), [""; 0]);
        assert_eq!(between(of(6 * full, full), of(0, 0)), [""; 0]);
    }
}
