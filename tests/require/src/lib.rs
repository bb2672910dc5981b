//! Requirements of tests on their machine (a program, io_uring, a mount), limits on what it gives,
//! and patterns of bytes to write.
//!
//! Owns the only reading of `MILLRACE_REQUIRE_CLIENTS`. If it is set and not empty, as in CI, a
//! test whose requirement is missing fails; otherwise the test is skipped with a printed reason.
//! Called by the tests of all crates; calls nothing of the product.

#![allow(clippy::print_stdout)] // A skipped test says so where the test runner shows it.

use std::ffi::OsStr;

mod limits;
pub use limits::{become_user, forbid, forbid_eventfds, forbid_threads, limit_threads};

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

/// Bytes to write and to find again: `length` of them at byte `place` of an endless sequence, which
/// is another one for each seed. `place` is a multiple of 8. No byte is zero.
#[must_use]
pub fn pattern(seed: u64, place: u64, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 8);
    for word in place / 8..(place + length as u64).div_ceil(8) {
        let mixed = (word ^ seed.rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 32)) | 0x0101_0101_0101_0101;
        bytes.extend_from_slice(&mixed.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_one_sequence_for_each_seed() {
        let whole = pattern(1, 0, 4096);
        assert_eq!(pattern(1, 512, 1025), whole[512..1537]);
        assert_ne!(pattern(2, 0, 4096), whole);
        assert_ne!(pattern(1, 4096, 4096), whole);
        assert!(!whole.contains(&0));
    }

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
