//! The program starts, says what it is, and refuses what it does not know.

use std::process::{Command, Output};

fn millrace_lab(argument: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_millrace-lab")).arg(argument).output().unwrap()
}

#[test]
fn the_version_is_that_of_the_package() {
    let output = millrace_lab("--version");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    assert_eq!(text, concat!("millrace-lab ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn an_unknown_argument_is_named_and_ends_with_status_2() {
    let output = millrace_lab("--no-such-thing");
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text.contains("--no-such-thing"), "{text}");
}
