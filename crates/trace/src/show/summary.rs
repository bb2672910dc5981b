//! `TraceSummary`: the counts that blkparse prints after a trace, for each CPU and each trace.
//!
//! Numbers have no digit grouping, as in blkparse without an `en_US` locale. Two things are left
//! out: blkparse's count of skipped sequence numbers, which is always 0 if it reads files, and the
//! additions of its options `-s` and `-t`.

use std::collections::BTreeMap;
use std::fmt::Write;

use millrace_block::blktrace::{EventCode, category};

use super::{ShownPart, shown};
use crate::TraceEntry;

/// Number of I/Os and their total length: the sum of their whole KiB, and the sum of the remaining
/// bytes. As in blkparse, either sum wraps below 0 if more bytes were requeued than issued.
#[derive(Debug, Clone, Copy, Default)]
struct IoTally {
    count: u64,
    kib: u64,
    rest: u64,
}

impl IoTally {
    fn add(&mut self, bytes: u32) {
        self.count += 1;
        self.kib = self.kib.wrapping_add(u64::from(bytes >> 10));
        self.rest = self.rest.wrapping_add(u64::from(bytes & 1_023));
    }

    /// Subtracts the bytes of an I/O from the total length. Leaves the number of I/Os unchanged, as
    /// blkparse does for issued requests.
    fn take(&mut self, bytes: u32) {
        self.kib = self.kib.wrapping_sub(u64::from(bytes >> 10));
        self.rest = self.rest.wrapping_sub(u64::from(bytes & 1_023));
    }

    fn merge(&mut self, other: &IoTally) {
        self.count += other.count;
        self.kib = self.kib.wrapping_add(other.kib);
        self.rest = self.rest.wrapping_add(other.rest);
    }

    fn kib(&self) -> u64 {
        self.kib.wrapping_add(self.rest >> 10)
    }
}

/// Tallies of the reads, or of the writes, of one CPU. The index is one of the constants from
/// `QUEUED` to `MERGED`.
type Tallies = [IoTally; 5];

const QUEUED: usize = 0;
const ISSUED: usize = 1;
const REQUEUED: usize = 2;
const COMPLETED: usize = 3;
const MERGED: usize = 4;

#[derive(Debug, Clone, Copy, Default)]
struct CpuCounts {
    /// Reads and writes.
    ways: [Tallies; 2],
    /// Reads and writes of passthrough commands.
    passed: [Tallies; 2],
    unplugs: u64,
    timer_unplugs: u64,
}

impl CpuCounts {
    fn merge(&mut self, other: &CpuCounts) {
        let ways = self.ways.iter_mut().chain(&mut self.passed).flatten();
        let others = other.ways.iter().chain(&other.passed).flatten();
        ways.zip(others).for_each(|(mine, theirs)| mine.merge(theirs));
        self.unplugs += other.unplugs;
        self.timer_unplugs += other.timer_unplugs;
    }
}

#[derive(Debug, Default)]
struct TraceCounts {
    name: String,
    cpus: BTreeMap<u32, CpuCounts>,
    depth: [u64; 2],
    depth_max: [u64; 2],
    events: u64,
    first_ns: u64,
    last_ns: u64,
}

#[derive(Debug)]
pub(super) struct TraceSummary {
    traces: Vec<TraceCounts>,
}

impl TraceSummary {
    pub(super) fn new(names: Vec<String>) -> TraceSummary {
        let trace = |name| TraceCounts { name, ..TraceCounts::default() };
        TraceSummary { traces: names.into_iter().map(trace).collect() }
    }

    pub(super) fn entry(&mut self, entry: &TraceEntry) {
        let Some(trace) = self.traces.get_mut(entry.trace) else { return };
        let record = &entry.record;
        trace.cpus.entry(entry.cpu).or_default();
        trace.last_ns = record.time_ns;
        if record.action >> 16 == 0 {
            return;
        }
        if trace.events == 0 {
            trace.first_ns = record.time_ns;
        }
        trace.events += 1;
        if let Some(ShownPart::Code(act)) = shown(record) {
            trace.act(act, entry);
        }
    }

    pub(super) fn text(&self) -> String {
        let traces: Vec<String> = self.traces.iter().map(TraceCounts::text).collect();
        traces.join("\n")
    }
}

impl TraceCounts {
    fn act(&mut self, act: EventCode, entry: &TraceEntry) {
        let (record, bytes) = (&entry.record, entry.record.bytes);
        let way = usize::from(record.has(category::WRITE));
        let cpu = self.cpus.entry(entry.cpu).or_default();
        let passed = record.has(category::PC);
        let counts = if passed { &mut cpu.passed[way] } else { &mut cpu.ways[way] };
        match act {
            EventCode::Queue => counts[QUEUED].add(bytes),
            EventCode::BackMerge | EventCode::FrontMerge => counts[MERGED].add(bytes),
            EventCode::Issue => counts[ISSUED].add(bytes),
            EventCode::Requeue => {
                counts[REQUEUED].add(bytes);
                // A requeued request is issued again later, and must count as issued only once.
                counts[ISSUED].take(bytes);
            }
            EventCode::Complete => counts[COMPLETED].add(bytes),
            EventCode::Unplug => cpu.unplugs += 1,
            EventCode::UnplugTimer => cpu.timer_unplugs += 1,
            _ => {}
        }
        match act {
            EventCode::Issue => self.depth[way] += 1,
            EventCode::Complete | EventCode::Requeue => {
                self.depth[way] = self.depth[way].saturating_sub(1)
            }
            _ => {}
        }
        self.depth_max[way] = self.depth_max[way].max(self.depth[way]);
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut total = CpuCounts::default();
        for (number, cpu) in &self.cpus {
            total.merge(cpu);
            put(&mut text, &format!("CPU{number} ({}):", self.name), cpu, Some(self.depth_max));
        }
        if self.cpus.len() > 1 {
            text.push('\n');
            put(&mut text, &format!("Total ({}):", self.name), &total, None);
        }
        let rate = |way: usize| {
            let ms = self.last_ns.wrapping_sub(self.first_ns) / 1_000_000;
            let done = total.ways[way][COMPLETED];
            // Repeats an inexact calculation of blkparse: `rest`, the bytes beyond whole KiB, is
            // added as if it were thousandths of a KiB.
            let sum = done.kib.wrapping_mul(1_000).wrapping_add(done.rest);
            sum.checked_div(ms).unwrap_or(0)
        };
        let _ = write!(
            text,
            "\nThroughput (R/W): {}KiB/s / {}KiB/s\nEvents ({}): {} entries\n",
            rate(0),
            rate(1),
            self.name,
            self.events
        );
        // blkparse does not print the count of skipped sequence numbers for standard input.
        if self.name != STREAM {
            text.push_str("Skips: 0 forward (0 -   0.0%)\n");
        }
        text
    }
}

/// Name that blkparse gives to a trace read from standard input.
const STREAM: &str = "stdin";

const PREFIXES: [&str; 5] = ["", "K", "M", "G", "P"];

/// Formats a number, right-aligned in 8 columns. A number above a million is divided by 1000 and
/// gets a prefix such as `K`, if necessary several times.
fn short(mut number: u64, prefixes: &[&str]) -> String {
    let mut prefixes = prefixes.iter().copied().peekable();
    let mut prefix = prefixes.next().unwrap_or_default();
    while number > 1_000_000 && prefixes.peek().is_some() {
        number /= 1_000;
        prefix = prefixes.next().unwrap_or_default();
    }
    format!("{number:8}{prefix}")
}

/// Line of the summary: index of the tally, labels for reads and for writes, and the tabs between
/// the read column and the write column.
type Row = (usize, [&'static str; 2], &'static str);

const ROWS: [Row; 5] = [
    (QUEUED, ["Reads Queued:", "Writes Queued:"], "\t"),
    (ISSUED, ["Read Dispatches:", "Write Dispatches:"], "\t"),
    (REQUEUED, ["Reads Requeued:", "Writes Requeued:"], "\t\t"),
    (COMPLETED, ["Reads Completed:", "Writes Completed:"], "\t"),
    (MERGED, ["Read Merges:", "Write Merges:"], "\t"),
];

const PASSED_ROWS: [Row; 4] = [
    (QUEUED, ["PC Reads Queued:", "PC Writes Queued:"], "\t"),
    (ISSUED, ["PC Read Disp.:", "PC Write Disp.:"], "\t"),
    (REQUEUED, ["PC Reads Req.:", "PC Writes Req.:"], "\t\t"),
    (COMPLETED, ["PC Reads Compl.:", "PC Writes Compl.:"], "\t\t"),
];

fn row(text: &mut String, [read, write]: [&str; 2], [left, right]: [String; 2], gap: &str) {
    let _ = writeln!(text, " {read:17}{left}{gap} {write:18}{right}");
}

fn rows(text: &mut String, rows: &[Row], ways: &[Tallies; 2]) {
    for (which, names, gap) in rows {
        let cells = ways.map(|way| {
            let (count, kib) = (short(way[*which].count, &PREFIXES), way[*which].kib());
            // A line with two tabs between its columns shows only the count, without the amount of
            // data.
            if *gap == "\t\t" {
                count
            } else {
                format!("{count}, {}iB", short(kib, &PREFIXES[1..]))
            }
        });
        row(text, *names, cells, gap);
    }
}

fn put(text: &mut String, title: &str, cpu: &CpuCounts, depth_max: Option<[u64; 2]>) {
    let plain = |[left, right]: [u64; 2]| [format!("{left:8}{:8}", ' '), format!("{right:8}")];
    let _ = writeln!(text, "{title}");
    rows(text, &ROWS, &cpu.ways);
    if let Some(depths) = depth_max {
        row(text, ["Read depth:", "Write depth:"], plain(depths), "\t");
    }
    let is_passed = |(which, ..): &Row| cpu.passed.iter().any(|way| way[*which].count > 0);
    if PASSED_ROWS.iter().any(is_passed) {
        rows(text, &PASSED_ROWS, &cpu.passed);
    }
    let unplugs = plain([cpu.unplugs, cpu.timer_unplugs]);
    row(text, ["IO unplugs:", "Timer unplugs:"], unplugs, "\t");
}
