//! Signal handling of the daemon, and its messages to the service manager.
//!
//! The handlers are installed before any drive is opened, so that a signal never interrupts a start
//! half-way. One thread waits for signals; all other threads block them. Otherwise a signal might
//! be delivered to the main thread while it hangs in an open.

use std::io;
use std::time::{Duration, Instant};

use millrace_console::{output_queue, say, visible};
use millrace_exports::remove_socket_files;
use millrace_machine::Native;
use nix::sys::signal::{SigSet, Signal};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

use super::startup::StartProgress;

/// Time within which a second signal counts as the same request. timeout(1) signals the daemon and
/// then its process group, which includes the daemon; a terminal or a supervisor may do the same.
const SAME_REQUEST: Duration = Duration::from_millis(500);
const TAKEN: [i32; 6] = [SIGINT, SIGTERM, SIGQUIT, SIGUSR1, SIGUSR2, SIGHUP];
/// Minimum time between two log lines about signals that the daemon ignores.
const QUIET: Duration = Duration::from_secs(5);

pub struct Signals(signal_hook::iterator::Signals);

#[derive(Debug, Default)]
struct IgnoredSignal {
    said: Option<Instant>,
    count: u64,
}

impl IgnoredSignal {
    /// Returns a line that reports an ignored signal. For `QUIET` after such a line, signals are
    /// only counted and `None` is returned.
    fn line(&mut self, said: &str, now: Instant) -> Option<String> {
        if self.said.is_some_and(|last| now.duration_since(last) < QUIET) {
            self.count += 1;
            return None;
        }
        self.said = Some(now);
        match std::mem::take(&mut self.count) {
            0 => Some(said.to_owned()),
            many => Some(format!("{said} ({many} such signals have arrived since the last line)")),
        }
    }
}

impl Signals {
    /// Installs the handlers, and blocks the signals in the calling thread and in threads that it
    /// starts.
    pub fn install() -> io::Result<Self> {
        set().thread_block()?;
        signal_hook::iterator::Signals::new(TAKEN).map(Signals)
    }

    fn unblock() {
        // Unblocking cannot fail for this set of signals. If it did, signals would have no effect.
        let _ = set().thread_unblock();
    }

    /// Waits for a stop signal, and handles other signals meanwhile. If the daemon is still
    /// starting, the stop signal cancels the start.
    pub fn wait(&mut self, startup: &StartProgress) {
        Self::unblock();
        let (mut cuts, mut ignored) = (0, IgnoredSignal::default());
        for signal in self.0.forever() {
            match signal {
                SIGUSR2 => {
                    let said = "SIGUSR2 is ignored: it has no function";
                    let line = ignored.line(said, Instant::now());
                    line.iter().for_each(|line| tracing::info!("{line}"));
                }
                SIGHUP => startup.reload(),
                SIGUSR1 => {
                    cuts += 1;
                    say(&cut_power(cuts));
                }
                _ => break,
            }
        }
        startup.stop();
    }

    /// Makes the next stop signal call `last_words` and end the process with status 1. Stop signals
    /// within `SAME_REQUEST` of this call are ignored.
    pub fn exit_at_the_next_one(mut self, last_words: impl FnOnce() + Send + 'static) {
        let body = move || {
            Self::unblock();
            let since = Instant::now();
            let is_stop = |signal: &i32| !matches!(*signal, SIGUSR1 | SIGUSR2 | SIGHUP);
            self.0.forever().find(|one| is_stop(one) && since.elapsed() >= SAME_REQUEST);
            last_words();
            remove_socket_files();
            output_queue::finish();
            std::process::exit(1);
        };
        if let Err(error) = Native::try_spawn("millrace-exit", None, body) {
            tracing::warn!("a second signal will not end the process at once: {error}");
        }
    }
}

fn set() -> SigSet {
    TAKEN.into_iter().filter_map(|signal| Signal::try_from(signal).ok()).collect()
}

pub fn tell_manager(state: NotifyState<'_>) {
    // The daemon continues to serve if the service manager cannot be notified.
    let _ = sd_notify::notify(false, &[state]);
}

/// Simulates a power cut of all fault drives. Only drives with a volatile cache lose data. The
/// random seed of the first drive is `cut`, and each further drive has the next seed. Returns a
/// report of the lost data.
fn cut_power(cut: u64) -> String {
    let drives = millrace_drives::fault_controls();
    let volatile = drives.iter().filter(|(_, control)| control.has_volatile_cache());
    let lost = volatile.zip(cut..).map(|((name, control), seed)| {
        let name = visible(name);
        format!("power cut {cut}: drive {name} lost {} sectors\n", control.power_cut(seed))
    });
    let lost: String = lost.collect();
    match lost.is_empty() {
        true => {
            "power cut: no drive simulates one; add a fault drive with volatile=true\n".to_owned()
        }
        false => lost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_meaningless_signals_make_one_counted_line() {
        let (mut ignored, start) = (IgnoredSignal::default(), Instant::now());
        let mut line = |ms| ignored.line("ignored", start + Duration::from_millis(ms));
        assert_eq!(line(0).as_deref(), Some("ignored"));
        assert!((1..1000).all(|ms| line(ms).is_none()));
        let said = "ignored (999 such signals have arrived since the last line)";
        assert_eq!(line(5_000).as_deref(), Some(said));
        assert_eq!(line(5_001), None);
    }
}
