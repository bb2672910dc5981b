//! Ctrl-C in a verb that measures: the first Ctrl-C ends the run with a summary, a later one ends
//! the program at once.
//!
//! This module owns the thread that handles SIGINT and SIGTERM of such a verb. Signals within half
//! a second of the first count as one, because some programs send them twice (timeout(1) does).
//! Used by `bench`, `explore`, `paper` and `replay`.

use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use millrace_experiments::Interrupt;
use millrace_machine::lock_unpoisoned;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Exit status of a run that Ctrl-C ended, as in shells: 128 plus the signal's number.
pub const INTERRUPTED: u8 = 128 + SIGINT as u8;
/// Time after the first signal in which further signals count as the same one.
const ONE_SIGNAL: Duration = Duration::from_millis(500);

/// Time from Ctrl-C to a message that explains why the run has not ended yet.
const PATIENCE: Duration = Duration::from_secs(2);

/// True during a wait for input or a connection, before the program has results to print.
static IS_WAITING: Mutex<bool> = Mutex::new(false);

fn is_waiting() -> MutexGuard<'static, bool> {
    lock_unpoisoned(&IS_WAITING)
}

/// Runs `f`, which may wait forever. Ctrl-C during the call ends the program at once, because there
/// are no results yet.
pub fn waiting<T>(f: impl FnOnce() -> T) -> T {
    begin_wait();
    let result = f();
    end_wait();
    result
}

/// Marks the start of a wait that may never end. Until [`end_wait`], Ctrl-C ends the program at
/// once.
pub fn begin_wait() {
    *is_waiting() = true;
}

/// Marks the end of a wait that [`begin_wait`] started.
pub fn end_wait() {
    *is_waiting() = false;
}

/// Installs the signal handler and returns the flag that the first Ctrl-C sets. A second Ctrl-C at
/// least half a second later ends the program.
pub fn on_ctrl_c() -> Result<Interrupt> {
    let interrupt = Interrupt::default();
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot catch Ctrl-C")?;
    let theirs = interrupt.clone();
    let thread = std::thread::Builder::new().name("millrace-signals".to_owned());
    let wait = move || {
        let mut first: Option<Instant> = None;
        for _ in signals.forever() {
            theirs.set();
            if *is_waiting() {
                millrace_console::tell!("interrupted: nothing was measured yet");
                std::process::exit(INTERRUPTED.into());
            }
            if first.is_none() {
                tell_if_it_takes_long();
            }
            if first.get_or_insert_with(Instant::now).elapsed() > ONE_SIGNAL {
                std::process::exit(INTERRUPTED.into());
            }
        }
    };
    thread.spawn(wait).context("cannot catch Ctrl-C")?;
    Ok(interrupt)
}

/// Returns the exit status after a report: `code`, or 130 with a message if Ctrl-C ended the run.
pub fn exit_code(interrupt: &Interrupt, code: u8) -> ExitCode {
    if interrupt.is_set() {
        millrace_console::tell!("interrupted: the report above covers the run until then");
        return ExitCode::from(INTERRUPTED);
    }
    ExitCode::from(code)
}

/// Prints a message if the run does not end soon after Ctrl-C, as I/Os may last until their
/// timeout.
fn tell_if_it_takes_long() {
    let tell = || {
        std::thread::sleep(PATIENCE);
        millrace_console::tell!(
            "ending: waiting for I/O in flight, at most until its timeout; \
             press Ctrl-C again to end at once without results"
        );
    };
    // If the thread cannot be started, no message is printed.
    let _ = std::thread::Builder::new().name("millrace-ending".to_owned()).spawn(tell);
}
