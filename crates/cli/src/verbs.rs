//! The verbs of the command line, a module each, and how they speak to a person.
//!
//! Owns what all verbs write with: errors with their reasons, counts, and output at once. Called by
//! cli.rs and by the verbs.
#![allow(clippy::print_stderr)]

mod bar;
pub mod bench;
pub mod completions;
pub mod ctl;
mod drive_news;
pub mod explore;
pub mod grid;
mod interrupt;
pub mod locks;
pub mod man;
pub mod paper;
pub mod replay;
pub mod serve;
pub mod stat;
pub mod top;
pub mod trace;

use std::error::Error;
use std::io::{ErrorKind, Write};
use std::sync::OnceLock;
use std::time::Duration;

use crate::logging;
use crate::output_queue;
use crate::visible::visible_lines;

/// Says on standard error why a verb failed: text for a person, or a line of JSON for a program
/// that reads the log.
pub fn complain(error: &anyhow::Error) {
    match logging::is_json() {
        true => tracing::error!("{}", reasons(error.as_ref())),
        false => {
            // A full disk under standard error is no reason to panic.
            let text = format!("millrace: {}\n", visible_lines(&reasons(error.as_ref())));
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

/// A time on the command line: a bare number is seconds, as in fio; others have a unit.
///
/// # Errors
/// What to write instead.
pub fn duration(text: &str) -> Result<Duration, String> {
    const UNITS: [(&str, f64); 6] =
        [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let wrong = || "write a time: 5 (seconds), 500ms or 2m".to_owned();
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let unit = if unit.is_empty() { "s" } else { unit };
    let unit = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?.1;
    if !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err(wrong());
    }
    let seconds = number.parse::<f64>().map_err(|_| wrong())? * unit;
    let time = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
    if time.is_zero() || seconds > 1e8 { Err(wrong()) } else { Ok(time) }
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
    fn a_bare_number_is_seconds_as_in_fio() {
        for (text, ms) in
            [("5", 5_000), ("0.5", 500), ("3s", 3_000), ("500ms", 500), ("2m", 120_000)]
        {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "0", ".", "5x", "-1", "1.2.3", "s", "1e3", "inf", "99999999999h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn no_reason_is_given_twice() {
        let error = anyhow!("not there").context("d0: not there").context("cannot open");
        assert_eq!(reasons(error.as_ref()), "cannot open: d0: not there");
    }
}
