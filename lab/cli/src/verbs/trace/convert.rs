//! `millrace-lab trace convert`: converts a trace to another format.
//!
//! Called by `trace::run`; millrace-experiments has the readers and writers. The verb writes while
//! it reads, and leaves out entries that cannot be read. The verb neither overwrites its input nor
//! creates files that would be taken for parts of another recording.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use millrace_console::{ProgressBar, ReadDamage, is_gone};
use millrace_experiments::trace::{AnySource, Format, TraceSource, TraceWriter, open};
use millrace_trace::TraceName;

use super::TraceInput;

const EXAMPLES: &str = "\
Examples:
  millrace-lab trace convert usr_0.csv --to-format blktrace -o usr
      writes usr.blktrace.0, which blkparse and btt read
  millrace-lab trace convert sda --to-format iolog3 -o sda.log
      for fio --read_iolog=sda.log
  blktrace -d /dev/sda -o - | millrace-lab trace convert - --to-format msr -o sda.csv
      without files of blktrace

What a format has no place for (latencies, FUA, flushes) is left out, and counted on standard \
error.";

const BUFFER_BYTES: usize = 64 << 10;
const IOS_A_LOOK: u64 = 65_536;

/// Arguments of `trace convert`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    input: TraceInput,
    #[arg(long, value_name = "FORMAT", help = format_help())]
    to_format: Format,
    /// Output file, or - for standard output; for blktrace the NAME of the recording
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

fn format_help() -> String {
    format!("The format to write: one of {}", Format::names(Format::written()))
}

pub fn run(args: &Args) -> Result<ExitCode> {
    // The format is checked before the output is created, so that an existing file keeps its
    // content if the format is refused.
    TraceWriter::new(args.to_format, std::io::sink())?;
    let mut source = open(&args.input.paths(), args.input.format)?;
    if args.output == Path::new("-") {
        let out = BufWriter::with_capacity(BUFFER_BYTES, std::io::stdout().lock());
        return convert(args, &mut source, out, "standard output");
    }
    let path = target(args)?;
    if args.input.reads(&path) {
        bail!("{}: this file is an input trace; name another output file", path.display());
    }
    let file = File::create(&path).with_context(|| format!("{}: cannot create", path.display()))?;
    let out = BufWriter::with_capacity(BUFFER_BYTES, file);
    convert(args, &mut source, out, &path.display().to_string())
}

/// Returns the file to write. For the format blktrace, `.blktrace.0` is appended to the name unless
/// the name already ends with it.
fn target(args: &Args) -> Result<PathBuf> {
    let output = &args.output;
    let is_one = output.extension().is_some_and(|end| end == "0")
        && output
            .file_stem()
            .is_some_and(|stem| Path::new(stem).extension() == Some("blktrace".as_ref()));
    if args.to_format != Format::Blktrace || is_one {
        return Ok(output.clone());
    }
    let name = output.to_string_lossy();
    let file = PathBuf::from(format!("{name}.blktrace.0"));
    let others = TraceName::new(&name, None).has_files();
    if others && !file.exists() {
        bail!("{name}: a recording with this name exists; choose another name, or delete it");
    }
    Ok(file)
}

fn convert(args: &Args, source: &mut AnySource, out: impl Write, name: &str) -> Result<ExitCode> {
    let mut writer = TraceWriter::new(args.to_format, out)?;
    let mut bar = ProgressBar::new(1);
    let (mut ios, failed) = (0_u64, || format!("{name}: cannot write"));
    while let Some(io) = source.next_io()? {
        ios += 1;
        if ios.is_multiple_of(IOS_A_LOOK) {
            bar.show(0, name, source.progress());
        }
        match writer.io(&io, source.devices()) {
            Err(error) if is_gone(&error) => return Ok(ExitCode::SUCCESS),
            written => written.with_context(failed)?,
        }
    }
    bar.clear();
    let (ios, lost) = match writer.finish(source.dropped_events()) {
        Err(error) if is_gone(&error) => return Ok(ExitCode::SUCCESS),
        finished => finished.with_context(failed)?,
    };
    for note in source.notes().iter().chain(&lost) {
        millrace_console::tell!("note: {note}");
    }
    millrace_console::tell!(
        "note: {ios} I/Os of {} written as {} to {name}",
        source.format(),
        args.to_format
    );
    Ok(ReadDamage::tell(source.damage()).exit_code())
}
