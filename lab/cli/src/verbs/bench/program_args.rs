//! Arguments of `bench --program`.
//!
//! Parsed by clap as a part of `BenchArgs`; read by program.rs.

use clap::Args;
use millrace_experiments::programs::Task;

use super::row_flags::rows_only;

/// Flags that conflict with `--program`. The simulated program decides some of these settings, such
/// as `bs`. The other flags are for other kinds of runs, such as `vm`.
const OWN: &str = "\
    bs calibrate client connect iodepth ios jobfile locks machine numjobs rw rwmixread size \
    stamp states trace verify virtqueue vm extended";

/// Programs.
#[derive(Debug, Clone, Args)]
pub struct ProgramArgs {
    /// Run programs on the drives, not I/Os of one kind: fileserver, webserver and webproxy
    /// (workloads of filebench), copy-from, copy-to, tar, untar, pagerank, writers. Without
    /// --cache, the cache of each program is as in the Falcon paper (Kumar et al., ATC 2017), and
    /// pagerank has no cache
    #[arg(long, value_name = "NAME", value_delimiter = ',', conflicts_with_all = rows_only(OWN))]
    pub program: Vec<Task>,
}
