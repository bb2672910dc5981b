//! `millrace trace record` while something runs.
//!
//! The daemon's control socket is `c` in its directory, and recordings lie there, too. Called by
//! tests of recordings and by `programs`.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::control::Control;
use crate::{Daemon, millrace, poll_within, run};

/// `trace record` with these arguments, of this daemon, in its directory.
#[must_use]
pub fn record(daemon: &Daemon, arguments: &str) -> Command {
    let mut command = millrace();
    command.current_dir(daemon.dir()).args(["trace", "record", "--connect", "unix:c"]);
    command.args(arguments.split(' '));
    command
}

/// A recording that has begun, to files of the name `file`.
///
/// # Panics
/// If it does not begin in time.
#[must_use]
pub fn begin(daemon: &Daemon, arguments: &str, file: &str) -> Child {
    let mut command = record(daemon, arguments);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The files are there before it records. Channels take part from their next batch on.
    let mut control = Control::connect(daemon);
    let records = || control.reply("trace-status").get("ok").is_some().then_some(());
    poll_within(Duration::from_secs(10), records).expect("it begins");
    assert!(daemon.dir().join(format!("{file}.blktrace.0")).exists());
    child
}

/// Ends a recording with SIGINT, as Ctrl-C does; returns its output.
///
/// # Panics
/// If it failed or dropped events.
pub fn end(child: Child) -> String {
    run(Command::new("kill").args(["-INT", &child.id().to_string()]));
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
