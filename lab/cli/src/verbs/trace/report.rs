//! `millrace-lab trace report`: reports on a trace as text, and as one self-contained HTML page of
//! plots and tables.
//!
//! For a blktrace recording the report has its spans; for any trace it has the statistics of its
//! I/Os. `trace::run` calls this; millrace-experiments has the page.
#![allow(clippy::print_stderr)]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use millrace_console::{EventFlow, ProgressBar, ReadDamage, for_each_event};
use millrace_experiments::page::Page;
use millrace_experiments::trace::{
    AnySource, EventIos, OpenedTrace, TracePath, TraceProfile, TraceSource, open_events,
    profile_text,
};
use millrace_experiments::trace::{Timeline, report_page};
use millrace_trace::{Reader, Spans, TraceError, TraceName, json_line};

use super::TraceInput;

const EXAMPLES: &str = "\
Examples:
  millrace-lab trace report sda
      prints what the I/Os are like: rates, sizes, strides, working set, mix, latencies
  millrace-lab trace report sda -o sda.html
      writes a page, too: stages over time, latency and sectors as heat maps, depth, CPUs
  millrace-lab trace report dm-0 nvme0n1 -o stripe.html
  millrace-lab trace report usr_0.csv.gz
  millrace-lab trace report - --json < fio.log | jq .working_set_bytes

Sizes and strides are counted by powers of two; strides are from the end of one read or write to \
the beginning of the next on the same device. The working set is the number of different pages of \
4 KiB, known to 0.8 %.";

/// Number of I/Os between two updates of the progress bar.
const IOS_A_LOOK: u64 = 65_536;

/// Arguments of `trace report`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    input: TraceInput,
    /// Show drives and volumes of recordings by their device numbers, not by their names
    #[arg(long)]
    numbers: bool,
    /// Write a page of plots and tables to this file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

/// Runs the verb.
///
/// # Errors
/// If a trace cannot be read or has no I/O, or the page cannot be written.
pub fn run(args: &Args) -> Result<ExitCode> {
    let ReportText { html, told, damage } =
        match open_events(&args.input.paths(), args.input.format)? {
            OpenedTrace::Events(reader) => recording(args, *reader)?,
            OpenedTrace::Ios(source) => foreign(args, source)?,
        };
    if let Some(file) = &args.output {
        if args.input.reads(file) {
            bail!("{}: this file is an input trace; name another output file", file.display());
        }
        std::fs::write(file, html)
            .with_context(|| format!("{}: cannot write the page", file.display()))?;
        eprintln!("note: {} written", file.display());
    }
    millrace_console::say(&told);
    Ok(damage.exit_code())
}

/// Returns the names of the traces, without their directories.
fn names(args: &Args) -> Vec<String> {
    let paths = args.input.paths();
    let name = |path: &TracePath| match path {
        TracePath::Stdin => "stdin".into(),
        TracePath::Named(path) => TraceName::new(&path.to_string_lossy(), None).name(),
    };
    paths.iter().map(name).collect()
}

/// The parts of a report.
struct ReportText {
    /// HTML page.
    html: String,
    /// Text for standard output.
    told: String,
    damage: ReadDamage,
}

/// Builds the report of a blktrace recording.
fn recording(args: &Args, mut reader: Reader) -> Result<ReportText> {
    let (mut spans, mut timeline) = (Spans::new(), Timeline::new());
    let (mut ios, mut profile) = (EventIos::default(), TraceProfile::new());
    let label = args.input.traces.join(" ");
    let mut walked =
        for_each_event(&mut reader, (ProgressBar::new(1), &label), |entry, reader| {
            if args.numbers {
                reader.names_mut().forget_devices();
            }
            ios.learn(entry, reader.names());
            spans.entry(entry, &mut (&mut timeline, &mut ios));
            timeline.entry(entry, &spans);
            while let Some(io) = ios.next_answered() {
                profile.add(&io);
            }
            EventFlow::Event
        })?;
    while let Some(io) = ios.next_left() {
        profile.add(&io);
    }
    if spans.has_completions_only() {
        bail!(TraceError::CompletionsOnly { trace: label });
    }
    if profile.is_empty() && spans.drives().is_empty() {
        bail!("{label}: nothing was recorded: there is no I/O in it");
    }
    let more = [walked.names.dropped_note(), profile.unmeasured_note()];
    for note in more.into_iter().flatten() {
        eprintln!("note: {note}");
        walked.notes.push(note);
    }
    spans.set_names(&walked.names);
    let (mut page, maps) = report_page(&names(args), &spans, &timeline);
    page.facts.extend(facts(&walked.notes, &walked.damage));
    profile.add_to(&mut page, ios.devices());
    let told = told(args, (&profile, ios.devices(), "blktrace"), &walked.notes, &walked.damage);
    Ok(ReportText { html: page.html_with(&maps), told, damage: walked.damage })
}

/// Builds the report of a trace of another format.
fn foreign(args: &Args, mut source: AnySource) -> Result<ReportText> {
    let mut profile = TraceProfile::new();
    let mut bar = ProgressBar::new(1);
    let label = args.input.traces.join(" ");
    let mut ios = 0_u64;
    while let Some(io) = source.next_io()? {
        profile.add(&io);
        ios += 1;
        if ios.is_multiple_of(IOS_A_LOOK) {
            bar.show(0, &label, source.progress());
        }
    }
    bar.clear();
    let mut notes = source.notes();
    notes.extend(profile.unmeasured_note());
    notes.iter().for_each(|note| eprintln!("note: {note}"));
    if profile.is_empty() {
        bail!("{label}: the trace has no I/O");
    }
    let format = source.format().name();
    let damage = ReadDamage::tell(source.damage());
    let mut page = Page {
        title: format!("Trace of {}", names(args).join(", ")),
        facts: vec![("format".to_owned(), format.to_owned())],
        ..Page::default()
    };
    page.facts.extend(facts(&notes, &damage));
    profile.add_to(&mut page, source.devices());
    let told = told(args, (&profile, source.devices(), format), &notes, &damage);
    Ok(ReportText { html: page.html(), told, damage })
}

/// Returns notes and damage of a trace, for the head of its page.
fn facts(notes: &[String], damage: &ReadDamage) -> Vec<(String, String)> {
    let fact = |name: &str, text: &String| (name.to_owned(), text.clone());
    let notes = notes.iter().map(|note| fact("note", note));
    notes.chain(damage.lines().iter().map(|line| fact("damaged", line))).collect()
}

/// Returns the text for standard output: JSON or tables of the profile.
fn told(
    args: &Args,
    (profile, devices, format): (&TraceProfile, &[String], &str),
    notes: &[String],
    damage: &ReadDamage,
) -> String {
    if !args.json {
        return profile_text(profile, devices);
    }
    let mut json = profile.json(devices);
    json["format"] = format.into();
    json["notes"] = notes.into();
    json["damage"] = damage.lines().into();
    json_line(&json)
}
