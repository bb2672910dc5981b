//! `spans`: measures the time of each step of an I/O, on this machine and in real time.
//!
//! Reads 4 KiB at a time from a modelled NVMe drive and from a temporary file. `Recorder` records a
//! timestamp for each step of each I/O. The recording is then read and measured as `millrace trace
//! spans` does. Most other experiments of `millrace-lab paper` are simulations. Here, the results
//! depend on the machine that runs the experiment. Source: the paper \[WALK\]. `millrace-lab paper`
//! calls this file.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use millrace_block::{
    Disk, DiskConfig, Stamp, TRACE_RING_EVENTS, TraceStamp, Tracer, Volume, blktrace,
};
use millrace_drives::open;
use millrace_machine::Native;
use millrace_reactor::Config;
use millrace_runtime::{Recorder, RecorderConfig};
use millrace_trace::{Reader, Span, Spans, TraceName};

use crate::load::bench::{BenchError, Interrupt, Plan, run_row};
use crate::load::workload::{Rw, Workload};
use crate::page::{Check, CheckKind, DataTable, Figure, Page, Panel, Quantity, Series, Unit};
use crate::papers::{Paper, PartSelection, Step, Tell};

const IOS: u64 = 5_000;
/// Measured spans, each with the paper's average in seconds.
const SPANS: [(Span, f64); 5] = [
    (Span::Q2G, 0.218e-6),
    (Span::G2I, 0.573e-6),
    (Span::I2D, 0.384e-6),
    (Span::D2C, 25.327e-6),
    (Span::Q2C, 26.503e-6),
];
const PAPER_D2C_NS: f64 = 25_327.0;
/// Limit for the check: software steps (Q2G, G2I and I2D) must take less than this fraction of an
/// I/O's total time (Q2C).
const SHARE_MOST: f64 = 0.10;

/// Measured spans of a drive: averages in nanoseconds, in the order of `SPANS`.
struct DriveSpans {
    drive: &'static str,
    avg_ns: [f64; SPANS.len()],
    ios: u64,
}

impl DriveSpans {
    fn software_ns(&self) -> f64 {
        self.avg_ns[..3].iter().sum()
    }

    /// Returns the fraction of an I/O's total time (Q2C) that the steps in software take.
    fn share(&self) -> f64 {
        self.software_ns() / self.avg_ns[4]
    }

    /// Returns the fraction of an I/O's total time that the software steps take, with the time in
    /// the drive (D2C) capped at the paper's value. Without the cap, a thread that wakes late on
    /// this machine would lengthen D2C and make the fraction too small.
    fn share_beside_paper(&self) -> f64 {
        self.software_ns() / (self.software_ns() + PAPER_D2C_NS.min(self.avg_ns[3]))
    }
}

struct TempFolder(PathBuf);

impl TempFolder {
    fn new() -> Result<TempFolder, BenchError> {
        let path = std::env::temp_dir().join(format!("millrace-walk-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|error| failed(&path, &error))?;
        Ok(TempFolder(path))
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        // Ignore errors: the system cleans its temporary folder.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn fill(path: &Path) -> std::io::Result<()> {
    let mut file = std::fs::File::create(path)?;
    let piece = vec![0x6d; 1 << 20];
    (0..64).try_for_each(|_| file.write_all(&piece))?;
    file.sync_all()
}

fn failed(path: &Path, error: &dyn std::fmt::Display) -> BenchError {
    BenchError::Trace { text: format!("{}: {error}", path.display()) }
}

pub(super) fn paper() -> Paper {
    Paper {
        name: "walk",
        title: "Where a request spends its time, recorded on this machine",
        intro: INTRO.to_vec(),
        parts: vec![],
        run,
        mechanisms: |_| Ok(Vec::new()),
    }
}

/// Measures a modelled NVMe drive and a file, and returns the page. If the callback `tell` ends the
/// run early, the page has only the drives measured so far.
fn run(wanted: PartSelection<'_>, tell: &mut Tell<'_>) -> Result<Page, BenchError> {
    let seed = wanted.seed;
    let folder = TempFolder::new()?;
    let path = folder.0.join("drive");
    // Fill the file, because reads of holes do not reach the drive.
    fill(&path).map_err(|error| failed(&path, &error))?;
    let file = format!("file:path={},size=64m", path.display());
    let drives = [
        ("model of the paper's NVMe drive", "model:preset=walk-nvme".to_owned()),
        ("file in the temporary folder", file),
    ];
    let mut measured = Vec::new();
    for (done, (name, spec)) in drives.iter().enumerate() {
        if tell(Step { done, of: drives.len(), task: name }).is_break() {
            break;
        }
        measured.push(measure(name, spec, &folder.0, seed)?);
    }
    Ok(page(&measured, seed))
}

fn measure(
    drive: &'static str,
    spec: &str,
    folder: &Path,
    seed: u64,
) -> Result<DriveSpans, BenchError> {
    let spec = spec.parse().map_err(|error| failed(folder, &error))?;
    let opened = open(&spec, 1).map_err(|error| failed(folder, &error))?;
    let config = DiskConfig {
        io_threads: 1,
        tracer: Some(Tracer::new(TRACE_RING_EVENTS)),
        device: blktrace::device(240, 0),
        ..DiskConfig::default()
    };
    let volume = Volume::single(Disk::new(opened.driver, config)?)?;
    let name = folder.join("walk");
    let spans = record(&volume, &name, seed)?;
    let of = |span: Span| spans.all().of(span);
    let (ios, avg_ns) = (of(Span::Q2C).n, SPANS.map(|(span, _)| of(span).avg()));
    Ok(DriveSpans { drive, avg_ns, ios })
}

fn record(volume: &Arc<Volume<Native>>, name: &Path, seed: u64) -> Result<Spans, BenchError> {
    let workload = Workload { rw: Rw::RandRead, bs_bytes: 4096, iodepth: 1, verify: false, seed };
    let plan = Plan {
        workload,
        jobs: 1,
        cpus: Vec::new(),
        runtime: Duration::from_secs(1),
        ios: Some(IOS),
        stamp: Stamp::Io,
        reactor: Config::default(),
        size_bytes: None,
        interrupt: Interrupt::default(),
    };
    let tracer = volume.tracer().ok_or_else(|| failed(name, &"no tracer"))?;
    // Take a timestamp for each event: with one per batch, steps within a batch would seem to take
    // no time.
    let stamp = TraceStamp::Event;
    let config = RecorderConfig { name: name.to_owned(), stamp, ..RecorderConfig::default() };
    let recorder = Recorder::start(&tracer, &[Arc::clone(volume)], config);
    let recorder = recorder.map_err(|error| failed(name, &error))?;
    run_row(volume, &plan, &mut |_, _| ())?;
    recorder.stop().map_err(|error| failed(name, &error))?;
    let trace = TraceName::new(&name.to_string_lossy(), None);
    let mut reader = Reader::open(&[trace]).map_err(|error| failed(name, &error))?;
    let mut spans = Spans::new();
    while let Some(entry) = reader.read().map_err(|error| failed(name, &error))? {
        spans.entry(&entry, &mut ());
    }
    Ok(spans)
}

fn page(drives: &[DriveSpans], seed: u64) -> Page {
    let mut rows = Vec::new();
    for (index, (span, paper_s)) in SPANS.iter().enumerate() {
        let mut row = vec![span.name().to_owned(), microseconds(paper_s * 1e9)];
        row.extend(drives.iter().map(|one| microseconds(one.avg_ns[index])));
        rows.push(row);
    }
    let paper_share = SPANS[..3].iter().map(|(_, s)| s).sum::<f64>() / SPANS[4].1;
    let mut share = vec!["share of Q2D in Q2C".to_owned(), percent(paper_share)];
    share.extend(drives.iter().map(|one| percent(one.share())));
    rows.push(share);
    let mut beside =
        vec!["share of Q2D if D2C is at most the paper's".to_owned(), percent(paper_share)];
    beside.extend(drives.iter().map(|one| percent(one.share_beside_paper())));
    rows.push(beside);
    let mut head = vec!["span, average us".to_owned(), "paper".to_owned()];
    head.extend(drives.iter().map(|one| one.drive.to_owned()));
    let counts = drives.iter().map(|one| one.ios.to_string()).collect::<Vec<_>>().join(", ");
    Page {
        title: "Where a request spends its time, recorded on this machine".into(),
        intro: INTRO.iter().map(ToString::to_string).collect(),
        facts: vec![
            ("command".into(), format!("millrace-lab paper walk --seed {seed}")),
            ("I/Os measured".into(), counts),
        ],
        checks: vec![check(drives)],
        figures: vec![figure(drives)],
        tables: vec![DataTable::new(
            ("spans", "Times between trace events of 4 KiB reads at queue depth 1"),
            "Q: I/O queued, G: request allocated, I: request inserted, D: request issued to the \
             driver, C: completed. Every step has a timestamp of its own.",
            head,
            rows,
        )],
        ..Page::default()
    }
}

fn figure(drives: &[DriveSpans]) -> Figure {
    let points = |of: &dyn Fn(usize) -> f64, spans: core::ops::Range<usize>| {
        spans.map(|index| (index as f64 + 1.0, of(index))).collect::<Vec<_>>()
    };
    let panel = |title: &str, spans: core::ops::Range<usize>| {
        let one = |one: &DriveSpans| {
            Series::ours(one.drive, points(&|index| one.avg_ns[index], spans.clone()))
        };
        let mut series: Vec<Series> = drives.iter().map(one).collect();
        series.push(Series::theirs("spans", points(&|index| SPANS[index].1 * 1e9, spans.clone())));
        Panel::new(title, "span", ("average", Unit::Nanoseconds), series)
    };
    let names =
        SPANS.iter().enumerate().map(|(at, (span, _))| format!("{} {}", at + 1, span.name()));
    let caption = format!(
        "Spans: {}. Hollow points are the paper's. The time at the drive is many times the time \
         that the block layer takes before it.",
        names.collect::<Vec<_>>().join(", ")
    );
    let panels = [panel("before the drive", 0..3), panel("at the drive, and all", 3..5)];
    Figure::new("points", "The paper's spans beside ours", &caption, panels)
}

fn check(drives: &[DriveSpans]) -> Check {
    let paper =
        Quantity::new("Q2G, G2I and I2D together are below 10 % of Q2C (4 % in the paper)", []);
    let Some(nvme) = drives.first() else {
        return Check::not_yet("walk.spans", CheckKind::Qualitative, paper);
    };
    let each = drives.iter().map(|one| {
        let (share, beside) = (percent(one.share()), percent(one.share_beside_paper()));
        format!("{}: {share} ({beside} if D2C is at most the paper's)", one.drive)
    });
    let ours = Quantity::new(each.collect::<Vec<_>>().join("; "), []);
    let holds = nvme.share_beside_paper() < SHARE_MOST;
    let check = Check::new("walk.spans", CheckKind::Qualitative, (paper, ours), holds);
    let note = "if our time at the drive is longer than the paper's 25.3 us, the check uses the \
                paper's: on a busy machine the waiting thread wakes late, which must not make the \
                block layer's share look small";
    Check { note: note.to_owned(), ..check }
}

fn microseconds(ns: f64) -> String {
    format!("{:.3}", ns / 1e3)
}

fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

const INTRO: [&str; 3] = [
    "Reads of 4 KiB, one at a time, go through the block layer, whose tracer records them in the \
     kernel's format; the spans are measured as btt does. The paper's numbers are from Linux on an \
     NVMe drive.",
    "This is not a simulation. The times depend on the machine, on other programs that run on it, \
     and on the timestamps: each event takes one, at a cost of some tens of nanoseconds. A \
     modelled drive completes by the machine's clock, and a thread that sleeps until then wakes \
     late.",
    "Nearly all of Q2C is D2C. In this layer a request gets its tag just before D. So Q2G is only \
     the time until the bio is in the plug, and I2D contains the tag allocation that is part of \
     the paper's Q2G.",
];
