//! The program starts, prints its version, and refuses unknown arguments.
//!
//! Because this test exists, cargo builds the program together with all other tests and with their
//! features. The end-to-end tests of the workspace then find it there and do not build it again.
#![allow(missing_docs, clippy::unwrap_used)]

use std::process::{Command, Output};

fn millrace(argument: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_millrace")).arg(argument).output().unwrap()
}

#[test]
fn the_version_is_that_of_the_package() {
    let output = millrace("--version");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    assert_eq!(text, concat!("millrace ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn an_unknown_argument_is_named_and_ends_with_status_2() {
    let output = millrace("--no-such-thing");
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text.contains("--no-such-thing"), "{text}");
}
