//! The verbs of the command line, a module each, and how they speak to a person.
//!
//! Owns what all verbs write with: errors with their reasons, counts, and output at once. Called by
//! cli.rs and by the verbs.
#![allow(clippy::print_stderr)]

mod bar;
pub mod bench;
pub mod ctl;
pub mod explore;
pub mod locks;
pub mod paper;
pub mod serve;
pub mod stat;
pub mod top;
pub mod trace;

use std::io::Write;

use crate::visible::visible_lines;

/// Says on standard error why a verb failed.
pub fn complain(error: &anyhow::Error) {
    eprintln!("millrace: {}", visible_lines(&reasons(error)));
}

/// An error and its causes, but for those that it has said itself.
fn reasons(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
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

/// Writes to standard output at once; a reader that has gone away is no reason to stop.
pub fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn no_reason_is_given_twice() {
        let error = anyhow!("not there").context("d0: not there").context("cannot open");
        assert_eq!(reasons(&error), "cannot open: d0: not there");
    }
}
