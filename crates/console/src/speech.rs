//! How a program speaks to a person: errors with their reasons, counts, and output at once.
//!
//! Owns whether standard output has taken all that was said. Called by the verbs and by
//! `program::run`.
#![allow(clippy::print_stderr)]

use std::error::Error;
use std::io::{ErrorKind, Write};
use std::sync::OnceLock;

use crate::visible::visible_lines;
use crate::{logging, name, output_queue};

/// Says on standard error why a verb failed: text for a person, or a line of JSON for a program
/// that reads the log.
pub fn complain(error: &anyhow::Error) {
    match logging::is_json() {
        true => tracing::error!("{}", reasons(error.as_ref())),
        false => {
            // A full disk under standard error is no reason to panic.
            let text = format!("{}: {}\n", name::name(), visible_lines(&reasons(error.as_ref())));
            let _ = logging::Log.write_all(text.as_bytes());
        }
    }
}

/// An error and its causes, but for those that it has said itself.
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

/// So many of something.
pub fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Writes to standard output at once, or in a daemon as soon as somebody reads it; a reader that
/// has gone away is no reason to stop. Any other error is told once, and makes the program fail at
/// its end.
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

/// Standard output has not taken what was said.
pub fn lost_output(error: std::io::Error) {
    let is_gone = error.kind() == ErrorKind::BrokenPipe;
    if !is_gone && LOST_OUTPUT.set(()).is_ok() {
        complain(&anyhow::Error::new(error).context("standard output: cannot write"));
    }
}

/// Whether standard output did not take what was said.
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
