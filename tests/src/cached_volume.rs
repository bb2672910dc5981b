//! Volumes of file drives with a cache, for the tests of the cache, and their counters.
//!
//! Configurations as text, and counters by `millrace stat --json` at the control socket `c` of the
//! daemon. Called by the tests.

use std::fmt::Write;

use serde_json::Value;

use crate::serving::succeed;
use crate::{Daemon, millrace};

/// The volume `v` of drives with these specs, striped in chunks of 64 KiB if there are several,
/// under a cache with these keys (`size = \"4m\"`); exported at `unix:s`, with a control socket.
/// It ends in the `[server]` section.
#[must_use]
pub fn config<S: AsRef<str>>(specs: &[S], cache: &str) -> String {
    let mut text = String::new();
    for (index, spec) in specs.iter().enumerate() {
        let spec = spec.as_ref();
        let _ = writeln!(text, "[[drive]]\nname = \"d{index}\"\nspec = \"{spec}\"");
    }
    let names: Vec<String> = (0..specs.len()).map(|index| format!("\"d{index}\"")).collect();
    let names = names.join(", ");
    let chunk = if specs.len() > 1 { "chunk = \"64k\"\n" } else { "" };
    let _ = writeln!(text, "[[volume]]\nname = \"v\"\n{chunk}drives = [{names}]");
    if !cache.is_empty() {
        let _ = writeln!(text, "[volume.cache]\n{cache}");
    }
    text + "[[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n[server]\ncontrol = \"unix:c\"\n"
}

/// The report of `millrace stat --json`.
///
/// # Panics
///
/// When there is none.
#[must_use]
pub fn stat(daemon: &Daemon) -> Value {
    let mut command = millrace();
    command.current_dir(daemon.dir()).args(["stat", "--connect", "unix:c", "--json"]);
    serde_json::from_str(&succeed(&mut command)).expect("one line of JSON")
}

/// The counters of the only cache.
///
/// # Panics
///
/// When there is none.
#[must_use]
pub fn counters(daemon: &Daemon) -> Value {
    stat(daemon)["caches"][0].clone()
}
