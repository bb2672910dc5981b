//! A run of a program: the log, one verb, its exit status, and the end of its output.
//!
//! Called by the `cli.rs` of each program with the verb that its command line names.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use signal_hook::consts::SIGXFSZ;
use signal_hook::flag;

use crate::{complain, has_lost_output, logging, name, output_queue};

/// Exit status of an error.
pub const ERROR: u8 = 2;

/// Runs a verb of the program of this name. A verb says 0 or 1 itself; an error is printed and
/// ends with 2, as does output that nobody took.
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

/// Has a write behind the limit on the size of files (RLIMIT_FSIZE) fail with EFBIG like any other
/// error, where its signal would end the process, and with it the service of all clients.
fn survive_file_limit() -> anyhow::Result<()> {
    flag::register(SIGXFSZ, Arc::default()).context("cannot catch SIGXFSZ")?;
    Ok(())
}
