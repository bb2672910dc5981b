//! Support for the end-to-end tests: real clients, a real daemon, commands that cannot hang.
//!
//! Owns no state except the directories and processes that it hands out, which go when their owner
//! drops. Called by the files in `tests/tests`; calls the programs `millrace` and `millrace-lab`,
//! cargo when one of them is missing or stale, and the clients that a test names. Everything here
//! panics on failure with a message for a person: it is run only by a test, or by `cargo xtask
//! programs`.

#![allow(missing_debug_implementations)] // The types are for this workspace only.

mod binary;
pub mod cached_volume;
pub mod ceph;
pub mod client_io;
mod clients;
pub mod control;
mod daemon;
pub mod durability;
pub mod guest;
pub mod known_load;
pub mod load;
pub mod metrics;
pub mod mounted;
mod process;
pub mod programs;
pub mod raw_nbd;
pub mod readers;
pub mod recording;
pub mod remote;
pub mod serving;
pub mod storage_daemon;
pub mod synthetic_trace;
pub mod terminal;
pub mod traces;

pub use binary::{MILLRACE, MILLRACE_LAB};
pub use clients::{client, nbdsh};
pub use daemon::Daemon;
pub use process::{assert_limit, poll_within, run, run_within};

/// A fresh directory that is removed when it drops.
///
/// # Panics
///
/// When the directory for temporary files cannot be written.
pub fn tempdir() -> tempfile::TempDir {
    // Short, because the path of a Unix socket must fit 108 bytes.
    tempfile::Builder::new().prefix("mr-").tempdir().expect("the temporary directory is writable")
}

/// The `millrace` program, built if need be.
pub fn millrace() -> std::process::Command {
    std::process::Command::new(binary::MILLRACE.path())
}

/// Copies the daemon's program to `path`, for users who may not reach cargo's directory.
///
/// `cp` writes the copy: a descriptor of this process could be inherited by a program that another
/// test starts at that moment, and running the copy would then fail with `ETXTBSY`.
///
/// # Panics
/// If `cp` fails.
pub fn copy_millrace(path: &std::path::Path) {
    let copied =
        process::run(std::process::Command::new("cp").arg(binary::MILLRACE.path()).arg(path));
    assert!(copied.status.success(), "{copied:?}");
}

/// The `millrace-lab` program, built if need be.
pub fn millrace_lab() -> std::process::Command {
    std::process::Command::new(binary::MILLRACE_LAB.path())
}

/// Returns from the calling test unless every named program is installed.
///
/// A missing one is printed and the test skipped, or, with `MILLRACE_REQUIRE_CLIENTS` set as in CI,
/// the test fails.
///
/// # Example
///
/// ```
/// fn copies_an_image() {
///     millrace_tests::require_clients!("qemu-img", "nbdcopy");
///     // ...
/// }
/// # copies_an_image();
/// ```
#[macro_export]
macro_rules! require_clients {
    ($($name:expr),+ $(,)?) => {
        $(if $crate::client($name).is_none() {
            return;
        })+
    };
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_temporary_directory_goes_with_its_owner() {
        let dir = super::tempdir();
        let path = dir.path().to_owned();
        assert!(path.is_dir());
        drop(dir);
        assert!(!path.exists());
    }

    #[test]
    fn a_test_goes_on_when_its_clients_are_there() {
        let mut reached = false;
        let mut body = || {
            crate::require_clients!("sh", "cat");
            reached = true;
        };
        body();
        assert!(reached);
    }
}
