//! Reads fio's job files, runs them on drives of this program, and reports results with fio's keys.
//!
//! `lines` splits a file into sections of options, and handles `include` and `${NAME}`. `value`
//! parses values; `words` is the table of supported options, and `options` has the options that are
//! ignored or refused. `draft` reads a job's options, and `spec` is the checked job. `blocks` and
//! `block_distribution` draw sizes and offsets, `source` draws I/Os, and `rate_limit` delays them.
//! `worker` is the loop of one job's thread, with `job_step`, `flow`, `depth_search`, `io_slots`,
//! `page_cache` and `verification`; `tally` holds the job's counts. `run` starts the jobs of a
//! file; `json` and `summary` report the results. `bench --jobfile` and tests call this module.
//! Options mean what fio's manual says and, where the manual is silent, what fio 3.33 does.

mod block_distribution;
mod blocks;
mod depth_search;
mod draft;
mod flow;
mod io_slots;
mod job_step;
mod json;
mod lines;
mod options;
mod page_cache;
mod rate_limit;
mod run;
mod source;
mod spec;
mod summary;
mod tally;
mod value;
mod verification;
mod words;
mod worker;

pub use json::{JobDetail, report};
pub use lines::{Includes, JobFileError, Place};
pub use run::{JobReport, JobSetting, run_jobs};
pub use spec::{Access, JobFile, JobSpec};
pub use summary::{JobLine, JobTimes};
pub(crate) use tally::Usage;
