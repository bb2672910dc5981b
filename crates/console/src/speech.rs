//! Output to a person: errors with their causes, counts, and results.
//!
//! The module owns a flag that is set after a failed write to standard output. The verbs and
//! `program::run` call the module.

use std::error::Error;
use std::io::{ErrorKind, Write};
use std::sync::OnceLock;

use crate::visible::visible_lines;
use crate::{logging, name, output_queue};

/// Prints to standard error the reason why a verb failed: as text, or as a line of JSON if the log
/// is JSON.
pub fn complain(error: &anyhow::Error) {
    match logging::is_json() {
        true => tracing::error!("{}", reasons(error.as_ref())),
        false => {
            // Errors are ignored, because a failure of standard error, such as a full disk, must
            // not cause a panic.
            let text = format!("{}: {}\n", name::name(), visible_lines(&reasons(error.as_ref())));
            let _ = logging::Log.write_all(text.as_bytes());
        }
    }
}

/// Prints a line to standard error, like `eprintln!`, but ignores errors instead of panicking.
#[macro_export]
macro_rules! tell {
    ($($text:tt)*) => { $crate::tell_line(format_args!($($text)*)) };
}

/// Prints a line to standard error. Errors of the write are ignored.
pub fn tell_line(text: std::fmt::Arguments<'_>) {
    let _ = logging::Log.write_all(format!("{text}\n").as_bytes());
}

/// Joins an error and its causes, and leaves out causes that an outer error repeats.
pub fn reasons(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    let chain = std::iter::successors(Some(error), |error| Error::source(*error));
    for cause in chain.map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Formats a count with its noun, in the plural unless the count is 1.
pub fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Writes to standard output, directly or through the daemon's output queue. A closed pipe is
/// ignored. Any other error is reported once and makes the program exit with an error.
pub fn say(text: &str) {
    if let Some(queue) = output_queue::out() {
        queue.add(text.as_bytes().to_vec());
        return;
    }
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        lost_output(error);
    }
}

/// Reports an error of standard output once, unless the reader closed the pipe.
pub fn lost_output(error: std::io::Error) {
    let is_gone = error.kind() == ErrorKind::BrokenPipe;
    if !is_gone && LOST_OUTPUT.set(()).is_ok() {
        complain(&anyhow::Error::new(error).context("standard output: cannot write"));
    }
}

/// Returns true if writing to standard output has failed.
pub fn has_lost_output() -> bool {
    LOST_OUTPUT.get().is_some()
}

static LOST_OUTPUT: OnceLock<()> = OnceLock::new();

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn no_reason_is_given_twice() {
        let error = anyhow!("not there").context("d0: not there").context("cannot open");
        assert_eq!(reasons(error.as_ref()), "cannot open: d0: not there");
    }
}
