//! `millrace-lab trace report`: reports on a trace as text, and as one self-contained HTML page of
//! plots and tables.
//!
//! For a blktrace recording the report has the times between the events of an I/O; for any trace it
//! has the statistics of its I/Os. Called by `trace::run`; millrace-experiments has the page.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use millrace_console::{ProgressBar, ReadDamage};
use millrace_experiments::trace::{
    DeviceNaming, TracePath, TraceProfile, TraceSource, open, report_page,
};
use millrace_trace::{TraceName, json_line};

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

pub fn run(args: &Args) -> Result<ExitCode> {
    let naming = if args.numbers { DeviceNaming::Numbers } else { DeviceNaming::Names };
    let mut source = open(&args.input.paths(), args.input.format)?.with_spans(naming);
    let (mut profile, mut bar) = (TraceProfile::default(), ProgressBar::new(1));
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
    let notes: Vec<String> = source.notes().into_iter().chain(profile.unmeasured_note()).collect();
    notes.iter().for_each(|note| millrace_console::tell!("note: {note}"));
    let has_drives = source.spans().is_some_and(|(spans, _)| !spans.drives().is_empty());
    if profile.is_empty() && !has_drives {
        bail!("{label}: the trace has no I/O");
    }
    let damage = ReadDamage::tell(source.damage());
    let (devices, format) = (source.devices(), source.format().name());
    if let Some(file) = &args.output {
        if args.input.reads(file) {
            bail!("{}: this file is an input trace; name another output file", file.display());
        }
        let fact = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let mut page = report_page(source.spans(), &profile, devices);
        page.title = format!("Trace of {}", names(args).join(", "));
        if source.spans().is_none() {
            page.facts.push(fact("format", format));
        }
        page.facts.extend(notes.iter().map(|note| fact("note", note)));
        page.facts.extend(damage.lines().iter().map(|line| fact("damaged", line)));
        std::fs::write(file, page.html())
            .with_context(|| format!("{}: cannot write the page", file.display()))?;
        millrace_console::tell!("note: {} written", file.display());
    }
    millrace_console::say(&match args.json {
        true => {
            let mut json = profile.json(devices);
            json["format"] = format.into();
            json["notes"] = notes.into();
            json["damage"] = damage.lines().into();
            json_line(&json)
        }
        false => profile.text(devices),
    });
    Ok(damage.exit_code())
}

fn names(args: &Args) -> Vec<String> {
    let paths = args.input.paths();
    let name = |path: &TracePath| match path {
        TracePath::Stdin => "stdin".into(),
        TracePath::Named(path) => TraceName::new(&path.to_string_lossy(), None).name(),
    };
    paths.iter().map(name).collect()
}
