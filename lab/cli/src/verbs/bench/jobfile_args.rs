//! Arguments of `bench --jobfile`.
//!
//! Parsed by clap as a part of `BenchArgs`; read by jobfile.rs.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::row_flags::rows_only;

/// Flags that `--jobfile` excludes: the job file sets them, or they belong to other kinds of runs.
const IN_THE_FILE: &str = "\
    bs cache calibrate client connect cpu_list cpus extended iodepth ios locks machine numjobs \
    runtime rw rwmixread seed size stamp states trace verify virtqueue";

/// Arguments for a job file, and for the format of the report.
#[derive(Debug, Clone, Args)]
pub struct JobFileArgs {
    /// Run the jobs of a job file of fio (- is standard input), on its files or on --drive;
    /// docs/lab/bench.md lists the options that have an effect here
    #[arg(long, value_name = "FILE.fio", conflicts_with_all = rows_only(IN_THE_FILE))]
    pub jobfile: Option<PathBuf>,
    /// Form of the report: normal (a table), json (fio's keys; the same as --json), or json+ (with
    /// --jobfile, also the bins of latencies)
    #[arg(long, value_name = "FORMAT", default_value = "normal")]
    pub output_format: OutputFormat,
}

/// Output format of a report, as in fio's `--output-format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    #[value(help = "a table")]
    Normal,
    #[value(help = "JSON with fio's keys")]
    Json,
    #[value(name = "json+", help = "JSON with fio's keys and latency histograms")]
    JsonPlus,
}
