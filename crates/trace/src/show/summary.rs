//! `Summary`: the counts that blkparse prints after a trace, by CPU and of each trace.
//!
//! Owns counters per file; fed every entry by `Show`. Numbers are written plainly, as blkparse does
//! without an `en_US` locale. Left out: its count of skipped sequence numbers, which it does not
//! make from files either (it is 0), and what only its options `-s` and `-t` add.

use std::collections::BTreeMap;
use std::fmt::Write;

use millrace_block::blktrace::{EventCode, category};

use super::{Shown, shown};
use crate::Entry;

/// A count of I/Os and their length: whole KiB of each, and what is left of those in bytes. A CPU
/// on which more was given back than issued is below 0, which wraps as in blkparse, each part by
/// itself.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    count: u64,
    kib: u64,
    rest: u64,
}

impl Tally {
    fn add(&mut self, bytes: u32) {
        self.count += 1;
        self.kib = self.kib.wrapping_add(u64::from(bytes >> 10));
        self.rest = self.rest.wrapping_add(u64::from(bytes & 1_023));
    }

    /// Takes the length away, not the count.
    fn take(&mut self, bytes: u32) {
        self.kib = self.kib.wrapping_sub(u64::from(bytes >> 10));
        self.rest = self.rest.wrapping_sub(u64::from(bytes & 1_023));
    }

    fn merge(&mut self, other: &Tally) {
        self.count += other.count;
        self.kib = self.kib.wrapping_add(other.kib);
        self.rest = self.rest.wrapping_add(other.rest);
    }

    fn kib(&self) -> u64 {
        self.kib.wrapping_add(self.rest >> 10)
    }
}

/// Counts of one direction.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    queued: Tally,
    issued: Tally,
    requeued: Tally,
    completed: Tally,
    merged: Tally,
}

/// Counts of one CPU: of reads and writes, and of those again for commands that pass through.
#[derive(Debug, Clone, Copy, Default)]
struct Cpu {
    ways: [Counts; 2],
    passed: [Counts; 2],
    unplugs: u64,
    timer_unplugs: u64,
}

impl Cpu {
    fn merge(&mut self, other: &Cpu) {
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
struct Trace {
    name: String,
    cpus: BTreeMap<u32, Cpu>,
    depth: [u64; 2],
    depth_max: [u64; 2],
    events: u64,
    first_ns: u64,
    last_ns: u64,
}

/// Counts of traces.
#[derive(Debug)]
pub(super) struct Summary {
    traces: Vec<Trace>,
}

impl Summary {
    pub(super) fn new(names: Vec<String>) -> Summary {
        let trace = |name| Trace { name, ..Trace::default() };
        Summary { traces: names.into_iter().map(trace).collect() }
    }

    pub(super) fn entry(&mut self, entry: &Entry) {
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
        if let Some(Shown::Code(act)) = shown(record) {
            trace.act(act, entry);
        }
    }

    pub(super) fn text(&self) -> String {
        let traces: Vec<String> = self.traces.iter().map(Trace::text).collect();
        traces.join("\n")
    }
}

impl Trace {
    fn act(&mut self, act: EventCode, entry: &Entry) {
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
                // What comes back will be issued again.
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
        let mut total = Cpu::default();
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
            // Not quite KiB a second, but what blkparse prints: it adds the rest as thousandths.
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
        // Events that a stream lacks are not counted here, as blkparse does.
        if self.name != STREAM {
            text.push_str("Skips: 0 forward (0 -   0.0%)\n");
        }
        text
    }
}

/// Name of a trace from standard input, as blkparse has it.
const STREAM: &str = "stdin";

/// Prefixes of numbers; those of sizes in KiB begin with the second.
const PREFIXES: [&str; 5] = ["", "K", "M", "G", "P"];

/// Eight places or more, then a prefix: past a million in thousands of it, and so on.
fn short(mut number: u64, prefixes: &[&str]) -> String {
    let mut prefixes = prefixes.iter().copied().peekable();
    let mut prefix = prefixes.next().unwrap_or_default();
    while number > 1_000_000 && prefixes.peek().is_some() {
        number /= 1_000;
        prefix = prefixes.next().unwrap_or_default();
    }
    format!("{number:8}{prefix}")
}

/// A row of blkparse's: two cells side by side.
fn row(text: &mut String, names: [&str; 2], cells: [String; 2], gap: &str) {
    let [(read, write), (left, right)] = [(names[0], names[1]), (&cells[0], &cells[1])];
    let _ = writeln!(text, " {read:17}{left}{gap} {write:18}{right}");
}

fn put(text: &mut String, title: &str, cpu: &Cpu, depth_max: Option<[u64; 2]>) {
    let sized = |tally: &Tally| {
        format!("{}, {}iB", short(tally.count, &PREFIXES), short(tally.kib(), &PREFIXES[1..]))
    };
    let plain = |count: u64| format!("{count:8}{:8}", ' ');
    let [read, write] = &cpu.ways;
    let both = |of: fn(&Counts) -> &Tally| [sized(of(read)), sized(of(write))];
    let requeued = [read, write].map(|way| short(way.requeued.count, &PREFIXES));
    let _ = writeln!(text, "{title}");
    row(text, ["Reads Queued:", "Writes Queued:"], both(|way| &way.queued), "\t");
    row(text, ["Read Dispatches:", "Write Dispatches:"], both(|way| &way.issued), "\t");
    row(text, ["Reads Requeued:", "Writes Requeued:"], requeued, "\t\t");
    row(text, ["Reads Completed:", "Writes Completed:"], both(|way| &way.completed), "\t");
    row(text, ["Read Merges:", "Write Merges:"], both(|way| &way.merged), "\t");
    if let Some([read, write]) = depth_max {
        let cells = [plain(read), format!("{write:8}")];
        row(text, ["Read depth:", "Write depth:"], cells, "\t");
    }
    passed(text, cpu);
    let cells = [plain(cpu.unplugs), format!("{:8}", cpu.timer_unplugs)];
    row(text, ["IO unplugs:", "Timer unplugs:"], cells, "\t");
}

/// The rows of commands that pass through, if there were any.
fn passed(text: &mut String, cpu: &Cpu) {
    let of = |way: &Counts| [way.queued, way.issued, way.requeued, way.completed];
    if cpu.passed.iter().flat_map(of).all(|tally| tally.count == 0) {
        return;
    }
    let sized = |tally: &Tally| {
        format!("{}, {}iB", short(tally.count, &PREFIXES), short(tally.kib(), &PREFIXES[1..]))
    };
    let count = |tally: &Tally| short(tally.count, &PREFIXES);
    let [read, write] = &cpu.passed;
    let cells = [sized(&read.queued), sized(&write.queued)];
    row(text, ["PC Reads Queued:", "PC Writes Queued:"], cells, "\t");
    let cells = [sized(&read.issued), sized(&write.issued)];
    row(text, ["PC Read Disp.:", "PC Write Disp.:"], cells, "\t");
    let cells = [count(&read.requeued), count(&write.requeued)];
    row(text, ["PC Reads Req.:", "PC Writes Req.:"], cells, "\t\t");
    let cells = [count(&read.completed), count(&write.completed)];
    row(text, ["PC Reads Compl.:", "PC Writes Compl.:"], cells, "\t\t");
}
