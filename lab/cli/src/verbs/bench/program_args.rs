//! Arguments of `bench --program`.
//!
//! Parsed by clap as a part of `BenchArgs`; read by program.rs.

use clap::Args;
use millrace_experiments::programs::Task;

use super::row_flags::rows_only;

/// Flags that `--program` excludes: a program sets them, or they belong to other kinds of runs.
const OWN: &str = "\
    bs calibrate client connect iodepth ios jobfile locks machine numjobs rw rwmixread size \
    stamp states trace verify virtqueue vm extended";

/// Programs.
#[derive(Debug, Clone, Args)]
pub struct ProgramArgs {
    /// Run programs on the drives, not I/Os of one kind: fileserver, webserver, webproxy
    /// (filebench's mixes), copy-from, copy-to, tar, untar, pagerank, writers. Each program uses
    /// the cache that it has in the Falcon paper (Kumar et al., ATC 2017; none for pagerank), or
    /// --cache
    #[arg(long, value_name = "NAME", value_delimiter = ',', conflicts_with_all = rows_only(OWN))]
    pub program: Vec<Task>,
}
