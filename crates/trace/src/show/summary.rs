//! `Summary`: the counts that blkparse prints after a trace, for each CPU and each trace.
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

    /// Subtracts the bytes of an I/O from the total length. The number of I/Os stays, as in
    /// blkparse's count of issued requests.
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

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    queued: IoTally,
    issued: IoTally,
    requeued: IoTally,
    completed: IoTally,
    merged: IoTally,
}

#[derive(Debug, Clone, Copy, Default)]
struct CpuCounts {
    ways: [Counts; 2],
    passed: [Counts; 2],
    unplugs: u64,
    timer_unplugs: u64,
}

impl CpuCounts {
    fn merge(&mut self, other: &CpuCounts) {
        let ways = self.ways.iter_mut().chain(&mut self.passed);
        for (mine, theirs) in ways.zip(other.ways.iter().chain(&other.passed)) {
            mine.queued.merge(&theirs.queued);
            mine.issued.merge(&theirs.issued);
            mine.requeued.merge(&theirs.requeued);
            mine.completed.merge(&theirs.completed);
            mine.merged.merge(&theirs.merged);
        }
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
pub(super) struct Summary {
    traces: Vec<TraceCounts>,
}

impl Summary {
    pub(super) fn new(names: Vec<String>) -> Summary {
        let trace = |name| TraceCounts { name, ..TraceCounts::default() };
        Summary { traces: names.into_iter().map(trace).collect() }
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
            EventCode::Queue => counts.queued.add(bytes),
            EventCode::BackMerge | EventCode::FrontMerge => counts.merged.add(bytes),
            EventCode::Issue => counts.issued.add(bytes),
            EventCode::Requeue => {
                counts.requeued.add(bytes);
                // A requeued request is issued again later, and must count as issued only once.
                counts.issued.take(bytes);
            }
            EventCode::Complete => counts.completed.add(bytes),
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
            let done = total.ways[way].completed;
            // The rate is not exact, as in blkparse: `rest`, the bytes beyond whole KiB, is added
            // as thousandths of a KiB.
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

/// Formats a number in at least 8 columns, scaled by prefixes of 1000 while it is above a million.
fn short(mut number: u64, prefixes: &[&str]) -> String {
    let mut prefixes = prefixes.iter().copied().peekable();
    let mut prefix = prefixes.next().unwrap_or_default();
    while number > 1_000_000 && prefixes.peek().is_some() {
        number /= 1_000;
        prefix = prefixes.next().unwrap_or_default();
    }
    format!("{number:8}{prefix}")
}

fn row(text: &mut String, names: [&str; 2], cells: [String; 2], gap: &str) {
    let [(read, write), (left, right)] = [(names[0], names[1]), (&cells[0], &cells[1])];
    let _ = writeln!(text, " {read:17}{left}{gap} {write:18}{right}");
}

fn sized(tally: &IoTally) -> String {
    format!("{}, {}iB", short(tally.count, &PREFIXES), short(tally.kib(), &PREFIXES[1..]))
}

fn counted(tally: &IoTally) -> String {
    short(tally.count, &PREFIXES)
}

fn put(text: &mut String, title: &str, cpu: &CpuCounts, depth_max: Option<[u64; 2]>) {
    let plain = |count: u64| format!("{count:8}{:8}", ' ');
    let ways = &cpu.ways;
    let _ = writeln!(text, "{title}");
    row(text, ["Reads Queued:", "Writes Queued:"], ways.map(|way| sized(&way.queued)), "\t");
    row(text, ["Read Dispatches:", "Write Dispatches:"], ways.map(|way| sized(&way.issued)), "\t");
    let requeued = ways.map(|way| counted(&way.requeued));
    row(text, ["Reads Requeued:", "Writes Requeued:"], requeued, "\t\t");
    let completed = ways.map(|way| sized(&way.completed));
    row(text, ["Reads Completed:", "Writes Completed:"], completed, "\t");
    row(text, ["Read Merges:", "Write Merges:"], ways.map(|way| sized(&way.merged)), "\t");
    if let Some([read, write]) = depth_max {
        let cells = [plain(read), format!("{write:8}")];
        row(text, ["Read depth:", "Write depth:"], cells, "\t");
    }
    passed(text, cpu);
    let cells = [plain(cpu.unplugs), format!("{:8}", cpu.timer_unplugs)];
    row(text, ["IO unplugs:", "Timer unplugs:"], cells, "\t");
}

fn passed(text: &mut String, cpu: &CpuCounts) {
    let of = |way: &Counts| [way.queued, way.issued, way.requeued, way.completed];
    if cpu.passed.iter().flat_map(of).all(|tally| tally.count == 0) {
        return;
    }
    let ways = &cpu.passed;
    row(text, ["PC Reads Queued:", "PC Writes Queued:"], ways.map(|way| sized(&way.queued)), "\t");
    row(text, ["PC Read Disp.:", "PC Write Disp.:"], ways.map(|way| sized(&way.issued)), "\t");
    let requeued = ways.map(|way| counted(&way.requeued));
    row(text, ["PC Reads Req.:", "PC Writes Req.:"], requeued, "\t\t");
    let completed = ways.map(|way| counted(&way.completed));
    row(text, ["PC Reads Compl.:", "PC Writes Compl.:"], completed, "\t\t");
}
