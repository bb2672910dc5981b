//! One run of a program: starts the log, runs one verb, sets the exit status and flushes the
//! output.
//!
//! The `cli.rs` of each program calls this with the verb that its command line names.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use signal_hook::consts::SIGXFSZ;
use signal_hook::flag;

use crate::{complain, has_lost_output, logging, name, output_queue};

/// Exit status of a run that ended with an error.
pub const ERROR: u8 = 2;

/// Runs a verb of the program called `name`. The verb returns exit status 0 or 1. If it returns an
/// error, the error is printed and the exit status is 2. The exit status is also 2 if output could
/// not be written.
pub fn run(
    name: &'static str,
    logging: logging::Args,
    verb: impl FnOnce() -> anyhow::Result<ExitCode>,
) -> ExitCode {
    name::set(name);
    let run = || {
        survive_file_limit()?;
        logging::install(logging)?;
        verb()
    };
    let code = run().unwrap_or_else(|error| {
        complain(&error);
        ExitCode::from(ERROR)
    });
    output_queue::finish();
    if has_lost_output() { ExitCode::from(ERROR) } else { code }
}

/// Ignores SIGXFSZ, so that a write beyond the file size limit (RLIMIT_FSIZE) fails with EFBIG.
/// Otherwise the signal would end the process and disconnect all its clients.
fn survive_file_limit() -> anyhow::Result<()> {
    flag::register(SIGXFSZ, Arc::default()).context("cannot catch SIGXFSZ")?;
    Ok(())
}
