//! Signals to the daemon, and its words to the service manager.
//!
//! Owns the process's handlers from before any drive is opened, so that a start is never cut in
//! half. SIGTERM, SIGINT and SIGQUIT stop the daemon; SIGHUP (sent when a terminal goes away) and
//! SIGUSR2 are ignored with a line in the log; SIGPIPE is ignored by Rust's start-up code, and a
//! write to a closed pipe is an error like any other. A thread sleeps here while others serve.
//! All other threads block these signals: the kernel would hand one to the main thread, and wait
//! until that returns from an open on a file system that hangs.
//! The manager is told by the protocol of sd_notify(3) where NOTIFY_SOCKET is set.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use millrace_console::{output_queue, say, visible};
use millrace_exports::remove_socket_files;
use millrace_machine::Native;
use nix::sys::signal::{SigSet, Signal};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

use super::startup::Startup;

/// How long after the first a second signal is the same request. timeout(1) signals the daemon and
/// then its process group, of which the daemon is one; so may a terminal and a supervisor.
const SAME_REQUEST: Duration = Duration::from_millis(500);
/// All that are taken.
const TAKEN: [i32; 6] = [SIGINT, SIGTERM, SIGQUIT, SIGUSR1, SIGUSR2, SIGHUP];
/// Shortest time between two lines about signals that have no meaning.
const QUIET: Duration = Duration::from_secs(5);

/// The handlers, and the signals that have come.
pub struct Signals(signal_hook::iterator::Signals);

/// Request that a signal stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SignalRequest {
    /// Finish and exit.
    Stop,
    /// Cut the power of fault drives.
    PowerCut,
    /// Read the configuration again.
    Reload,
    /// Nothing, but the sender may expect something: what to say to that.
    Nothing(&'static str),
}

/// A signal without a meaning: when a line said so last, and how often it came since.
#[derive(Debug, Default)]
struct IgnoredSignal {
    said: Option<Instant>,
    count: u64,
}

impl IgnoredSignal {
    /// The line for one that comes now; none if there was one just before.
    fn line(&mut self, said: &str, now: Instant) -> Option<String> {
        let is_early = self.said.is_some_and(|last| now.duration_since(last) < QUIET);
        if is_early {
            self.count += 1;
            return None;
        }
        self.said = Some(now);
        match std::mem::take(&mut self.count) {
            0 => Some(said.to_owned()),
            count => Some(format!("{said} ({count} such signals came since the last line)")),
        }
    }
}

/// Where in its life the daemon is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DaemonPhase {
    /// Serves.
    Ready,
    /// Stops.
    Stopping,
}

impl Signals {
    /// Takes the signals over, and blocks them in the calling thread and in those that it starts.
    ///
    /// # Errors
    /// If the system refuses it.
    pub fn install() -> io::Result<Self> {
        set().thread_block()?;
        signal_hook::iterator::Signals::new(TAKEN).map(Signals)
    }

    /// Has the calling thread take signals.
    fn unblock() {
        // It fails for no set of this kind; signals would end nothing then.
        let _ = set().thread_unblock();
    }

    /// Sleeps until a signal comes.
    fn next(&mut self) -> SignalRequest {
        match self.0.forever().next() {
            Some(SIGUSR1) => SignalRequest::PowerCut,
            Some(SIGHUP) => SignalRequest::Reload,
            Some(SIGUSR2) => SignalRequest::Nothing("SIGUSR2 is ignored: it has no meaning here"),
            _ => SignalRequest::Stop,
        }
    }

    /// Waits for the signal to stop, and ends a start for it; serves the test aid meanwhile.
    pub fn wait(&mut self, startup: &Startup) {
        Self::unblock();
        let (mut cuts, mut ignored) = (0, BTreeMap::<&str, IgnoredSignal>::new());
        loop {
            match self.next() {
                SignalRequest::Stop => return startup.stop(),
                SignalRequest::Nothing(said) => {
                    if let Some(line) = ignored.entry(said).or_default().line(said, Instant::now())
                    {
                        tracing::info!("{line}");
                    }
                }
                SignalRequest::Reload => startup.reload(),
                SignalRequest::PowerCut => {
                    cuts += 1;
                    say(&cut_power(cuts));
                }
            }
        }
    }

    /// From half a second on, a signal to stop ends the process, with status 1, after its last
    /// words.
    pub fn exit_at_the_next_one(mut self, last_words: impl FnOnce() + Send + 'static) {
        let body = move || {
            Self::unblock();
            let since = Instant::now();
            while self.next() != SignalRequest::Stop || since.elapsed() < SAME_REQUEST {}
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

/// The signals that are taken.
fn set() -> SigSet {
    TAKEN.into_iter().filter_map(|signal| Signal::try_from(signal).ok()).collect()
}

/// Tells the service manager, if there is one.
pub fn tell_manager(phase: DaemonPhase) {
    let state = match phase {
        DaemonPhase::Ready => NotifyState::Ready,
        DaemonPhase::Stopping => NotifyState::Stopping,
    };
    // A manager that cannot be reached is its own trouble; serving goes on.
    let _ = sd_notify::notify(false, &[state]);
}

/// Cuts the power of every fault drive with a volatile cache, each with the next seed; says what
/// was lost.
fn cut_power(cut: u64) -> String {
    let drives = millrace_drives::fault_controls();
    let lost = drives.iter().zip(cut..).map(|((name, control), seed)| {
        let name = visible(name);
        format!("power cut {cut}: drive {name} lost {} sectors\n", control.power_cut(seed))
    });
    let lost: String = lost.collect();
    if lost.is_empty() { "power cut: there is no fault drive\n".to_owned() } else { lost }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_signals_without_a_meaning_make_one_line_in_five_seconds_with_their_count() {
        let (mut ignored, start) = (IgnoredSignal::default(), Instant::now());
        let mut line = |ms| ignored.line("ignored", start + Duration::from_millis(ms));
        assert_eq!(line(0).as_deref(), Some("ignored"));
        assert!((1..1000).all(|ms| line(ms).is_none()));
        let said = "ignored (999 such signals came since the last line)";
        assert_eq!(line(5_000).as_deref(), Some(said));
        assert_eq!(line(5_001), None);
    }
}
