//! Volumes that the NBD tests serve: configurations of a stripe, and the back ends to run them on.
//!
//! Pure text except [`backends`], which asks the binary once if the machine allows io_uring. Called
//! by the tests.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use crate::{Daemon, run};

const PROBE: &str = "[[drive]]\nname = \"d0\"\nspec = \"null:size=1m\"\n\
                     [[volume]]\nname = \"v\"\ndrives = [\"d0\"]\n\
                     [[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n";

/// The back ends to test: epoll, and io_uring unless the machine refuses it, which is printed.
///
/// # Panics
///
/// When io_uring is refused and `MILLRACE_REQUIRE_CLIENTS` is set.
#[must_use]
pub fn backends() -> &'static [&'static str] {
    static FOUND: OnceLock<&[&str]> = OnceLock::new();
    FOUND.get_or_init(|| {
        let daemon = Daemon::start(PROBE, &["s"]);
        let said = daemon.stderr();
        let Some(note) = said.lines().find(|line| line.contains("io_uring is refused")) else {
            return &["io_uring", "epoll"];
        };
        millrace_require::skip(format_args!("the io_uring back end: {note}"));
        &["epoll"]
    })
}

/// A configuration: the drives `specs` as the volume `v`, a stripe in chunks of 64 KiB, exported at
/// `unix:s` by two threads on `backend`. It ends in the `[server]` section: more of its keys may be
/// appended, or more sections.
#[must_use]
pub fn stripe<S: AsRef<str>>(backend: &str, specs: &[S]) -> String {
    let mut text = String::new();
    for (index, spec) in specs.iter().enumerate() {
        let spec = spec.as_ref();
        let _ = writeln!(text, "[[drive]]\nname = \"d{index}\"\nspec = \"{spec}\"");
    }
    let names: Vec<String> = (0..specs.len()).map(|index| format!("\"d{index}\"")).collect();
    let names = names.join(", ");
    let _ = writeln!(text, "[[volume]]\nname = \"v\"\nchunk = \"64k\"\ndrives = [{names}]");
    let _ = writeln!(text, "[[export]]\nvolume = \"v\"\nnbd = \"unix:s\"");
    let _ = writeln!(text, "[server]\nbackend = \"{backend}\"\nthreads = 2");
    text
}

/// Specs of four file drives of `mib` MiB each in `dir`, with more keys such as `,aio=threads`.
#[must_use]
pub fn four_files(dir: &Path, mib: u64, keys: &str) -> Vec<String> {
    let spec = |n| format!("file:path={}/d{n},size={mib}m{keys}", dir.display());
    (0..4).map(spec).collect()
}

/// The URI of an export on the Unix socket `s` of a daemon.
#[must_use]
pub fn uri(daemon: &Daemon, export: &str) -> String {
    format!("nbd+unix:///{export}?socket={}", daemon.dir().join("s").display())
}

/// Runs a command that must succeed, and returns its standard output.
///
/// # Panics
///
/// When it fails; the message has its output.
pub fn succeed(command: &mut Command) -> String {
    let output = run(command);
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{stdout}{stderr}", output.status);
    stdout
}

/// Bytes that differ from place to place and from seed to seed, and never are zero.
#[must_use]
pub fn pattern(length: usize, seed: u64) -> Vec<u8> {
    millrace_require::pattern(seed, 0, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stripe_names_each_of_its_drives() {
        let text = stripe("epoll", &["ram:size=1m", "ram:size=2m"]);
        assert!(text.contains("drives = [\"d0\", \"d1\"]"), "{text}");
        assert!(text.contains("spec = \"ram:size=2m\""), "{text}");
    }
}
