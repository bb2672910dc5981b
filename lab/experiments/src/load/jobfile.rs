//! fio's job files: read, run on drives of this program, and reported with fio's keys.
//!
//! `lines` cuts a file into sections of words, with `include` and `${NAME}`; `value` reads what
//! stands behind a word; `options` says what each word means here; `draft` reads them and
//! `spec` is a job, checked. `blocks` and `block_distribution` draw the sizes and places of
//! I/Os, `source` the I/Os themselves; `rate_limit` says when the next may go; `worker` is the
//! loop of one job's thread, with `job_step`, `flow`, `depth_search`, `io_slots`, `page_cache`
//! and `verification`, and `tally` what it counts; `run` starts the jobs of a file, `json` and
//! `summary` report them. Called by `bench --jobfile` and by tests. fio is the measure of what
//! a word means: its manual and, where that is silent, what fio 3.33 does.

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
