//! Ctrl-C in a verb that measures: the first ends the run with a summary, a later one at once.
//!
//! Owns the thread that takes SIGINT and SIGTERM of such a verb. Signals within half a second of
//! the first count as that one, since some programs send them twice (timeout(1) does). Called by
//! `bench` and `paper`.
#![allow(clippy::print_stderr)]

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use millrace_experiments::Interrupt;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Exit status of a run that Ctrl-C ended, as shells have it: 128 and the signal's number.
pub const INTERRUPTED: u8 = 128 + SIGINT as u8;
/// Until then another signal is the first one once more.
const ONE_SIGNAL: Duration = Duration::from_millis(500);

/// How long a run may take to end before a line says why.
const PATIENCE: Duration = Duration::from_secs(2);

/// Something is read or connected that may never come: there is nothing to print yet.
static IS_WAITING: Mutex<bool> = Mutex::new(false);

fn is_waiting() -> MutexGuard<'static, bool> {
    IS_WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does something that may wait forever and before which nothing was measured: Ctrl-C ends the
/// program meanwhile, and says so.
pub fn waiting<T>(f: impl FnOnce() -> T) -> T {
    begin_wait();
    let result = f();
    end_wait();
    result
}

/// As [`waiting`], from now on.
pub fn begin_wait() {
    *is_waiting() = true;
}

/// Something is measured from now on.
pub fn end_wait() {
    *is_waiting() = false;
}

/// What the next Ctrl-C sets; one half a second later ends the program.
///
/// # Errors
/// If the system takes no handler, or has no thread for it.
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
                eprintln!("interrupted: nothing was measured yet");
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

/// I/Os in flight are waited for, for as long as their drives have time, which may be a minute.
fn tell_if_it_takes_long() {
    let tell = || {
        std::thread::sleep(PATIENCE);
        eprintln!(
            "ending: what is in flight is waited for, as long as its drives have time for it; \
             Ctrl-C again ends at once, without results"
        );
    };
    // Without a thread there is no such line.
    let _ = std::thread::Builder::new().name("millrace-ending".to_owned()).spawn(tell);
}
