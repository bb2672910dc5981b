//! What a test needs of the machine it runs on: a program, io_uring, a mount.
//!
//! Owns the one reading of `MILLRACE_REQUIRE_CLIENTS`: set and not empty, a test that lacks what it
//! needs fails, as in CI; otherwise the test is skipped with a printed reason. Called by the tests
//! of all crates; calls nothing of the product.

#![allow(clippy::print_stdout)] // A skipped test says so where the test runner shows it.

use std::ffi::OsStr;

/// The variable that forbids skipping.
pub const VARIABLE: &str = "MILLRACE_REQUIRE_CLIENTS";

/// Says that a test is skipped because the machine lacks something; `why` names it and how to get
/// it.
///
/// # Panics
/// If [`VARIABLE`] is set and not empty: then nothing may be missing.
#[track_caller]
pub fn skip(why: impl std::fmt::Display) {
    skip_unless(is_set(std::env::var_os(VARIABLE).as_deref()), why);
}

#[track_caller]
fn skip_unless(required: bool, why: impl std::fmt::Display) {
    assert!(!required, "{VARIABLE} is set, and the machine lacks something: {why}");
    println!("skipped: {why}");
}

fn is_set(value: Option<&OsStr>) -> bool {
    value.is_some_and(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_variable_is_no_variable() {
        assert!(!is_set(None));
        assert!(!is_set(Some(OsStr::new(""))));
        assert!(is_set(Some(OsStr::new("1"))));
    }

    #[test]
    #[should_panic(expected = "MILLRACE_REQUIRE_CLIENTS is set, and the machine lacks something")]
    fn what_is_required_cannot_be_skipped() {
        skip_unless(true, "a program");
    }

    #[test]
    fn what_is_not_required_is_skipped() {
        skip_unless(false, "a program");
    }
}
