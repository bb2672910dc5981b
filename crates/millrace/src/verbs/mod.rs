//! The verbs of the command line, a module each, and how they speak to a person.
#![allow(clippy::print_stderr)]

mod bar;
pub mod bench;
pub mod explore;
pub mod paper;
pub mod serve;
pub mod stat;
pub mod top;
pub mod trace;

use std::io::Write;

/// Says on standard error why a verb failed.
pub fn complain(error: &anyhow::Error) {
    eprintln!("millrace: {error:#}");
}

/// Writes to standard output at once; a reader that has gone away is no reason to stop.
pub fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}
