//! A `millrace serve` process under test: started, awaited, measured, stopped, and never left
//! behind.
//!
//! Owns the child, a directory with its configuration, and the files its output goes to. Dropping
//! it kills the child by pid and reaps it; if the test panics, the daemon's output is printed.
//! Invariant: until it is reaped the child's pid is ours, so no signal can reach another process.
//! Called by the tests; calls `binary` and /proc.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use crate::process::{create, poll_within};

const READY_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
const IDLE: Duration = Duration::from_secs(4);

/// A running daemon.
pub struct Daemon {
    child: Child,
    /// Set once the child is reaped; its pid is not ours any more.
    status: Option<ExitStatus>,
    dir: TempDir,
}

impl Daemon {
    /// Serves the configuration `config` (the text of the file) from a fresh directory, and returns
    /// once the daemon is ready and each of `sockets` is there.
    ///
    /// Relative paths, in the configuration and in `sockets`, are below [`Daemon::dir`].
    ///
    /// # Panics
    ///
    /// When it cannot be built or started, exits, or is not ready within 30 s.
    pub fn start(config: &str, sockets: &[&str]) -> Self {
        Self::start_in(crate::tempdir(), config, sockets, &[])
    }

    /// `start` in a directory that already holds files for the daemon, with more arguments after
    /// the name of the configuration.
    ///
    /// # Panics
    ///
    /// As `start`.
    pub fn start_in(dir: TempDir, config: &str, sockets: &[&str], args: &[&str]) -> Self {
        let file = dir.path().join("millrace.toml");
        fs::write(&file, config).expect("the directory of the test is writable");
        let mut command = Command::new(crate::binary::MILLRACE.path());
        command.arg("serve").arg(&file).args(args);
        Self::spawn(dir, &mut command, sockets)
    }

    /// `start` by another program, such as a tracer: its name and arguments, to which the daemon's
    /// command line is appended. [`Daemon::pid`] is the program's own, so it must become the daemon
    /// by exec.
    ///
    /// # Panics
    ///
    /// As `start`.
    pub fn start_under(wrapper: &[&str], config: &str, sockets: &[&str]) -> Self {
        let dir = crate::tempdir();
        let file = dir.path().join("millrace.toml");
        fs::write(&file, config).expect("the directory of the test is writable");
        let (program, args) = wrapper.split_first().expect("a wrapper has a name");
        let mut command = Command::new(program);
        command.args(args).arg(crate::binary::MILLRACE.path()).arg("serve").arg(&file);
        Self::spawn(dir, &mut command, sockets)
    }

    /// `start` with the test's own command, in a directory that holds all that the daemon needs.
    /// The started program must become the daemon by exec.
    ///
    /// # Panics
    ///
    /// As `start`.
    pub fn start_command(dir: TempDir, command: &mut Command, sockets: &[&str]) -> Self {
        Self::spawn(dir, command, sockets)
    }

    /// `start_command` for a daemon that may refuse to start; the error is its exit status and its
    /// standard error.
    ///
    /// # Errors
    ///
    /// When it exits before it is ready.
    ///
    /// # Panics
    ///
    /// When it cannot be run, or is not ready within 30 s.
    pub fn try_start(
        dir: TempDir,
        command: &mut Command,
        sockets: &[&str],
    ) -> Result<Self, (ExitStatus, String)> {
        command
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(create(&dir.path().join("stdout")))
            .stderr(create(&dir.path().join("stderr")));
        let child =
            command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let mut daemon = Self { child, status: None, dir };
        let sockets: Vec<PathBuf> = sockets.iter().map(|name| daemon.dir().join(name)).collect();
        let ready = poll_within(READY_TIMEOUT, || {
            if let Some(status) = daemon.try_wait() {
                return Some(Err((status, daemon.stderr())));
            }
            let printed = daemon.stdout().lines().any(|line| line.starts_with("ready"));
            (printed && sockets.iter().all(|socket| socket.exists())).then_some(Ok(()))
        });
        match ready {
            Some(ready) => ready.map(|()| daemon),
            None => panic!("the daemon was not ready within {READY_TIMEOUT:?}"),
        }
    }

    fn spawn(dir: TempDir, command: &mut Command, sockets: &[&str]) -> Self {
        Self::try_start(dir, command, sockets).unwrap_or_else(|(status, said)| {
            panic!("the daemon exited before it was ready: {status}\n{said}")
        })
    }

    /// The directory it runs in, removed when the daemon drops.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to stop (SIGTERM) and returns how it exited.
    ///
    /// # Panics
    ///
    /// When it has not exited within 20 s.
    pub fn terminate(&mut self) -> ExitStatus {
        self.signal(libc::SIGTERM);
        self.wait(STOP_TIMEOUT)
    }

    /// Kills it (SIGKILL), as a crash would, and reaps it.
    pub fn kill9(&mut self) -> ExitStatus {
        self.signal(libc::SIGKILL);
        self.wait(STOP_TIMEOUT)
    }

    /// Sends a signal; nothing happens if it was reaped.
    pub fn signal(&self, signal: i32) {
        if self.status.is_none() {
            send_signal(&self.child, signal);
        }
    }

    /// User and system time that the daemon has used so far, in clock ticks (10 ms).
    pub fn cpu_ticks(&self) -> u64 {
        let stat = self.proc("stat");
        cpu_ticks(&stat).unwrap_or_else(|| panic!("no times in {stat:?}"))
    }

    /// Voluntary context switches of all threads of the daemon so far.
    pub fn voluntary_switches(&self) -> u64 {
        let tasks = PathBuf::from(format!("/proc/{}/task", self.pid()));
        let entries = fs::read_dir(&tasks).unwrap_or_else(|error| panic!("{tasks:?}: {error}"));
        // A thread may end between the listing and the reading.
        let statuses = entries.flatten().flat_map(|e| fs::read_to_string(e.path().join("status")));
        statuses.filter_map(|status| field(&status, "voluntary_ctxt_switches:")).sum()
    }

    /// Checks that the daemon sleeps for 4 s: its threads wake up rarely, and use at most a tenth
    /// of a CPU. On some virtual machines a check that takes 0.1 ms when it is repeated at once
    /// takes 25 ms after a second of sleep, because the host's caches have lost its code and data.
    ///
    /// # Panics
    ///
    /// When its threads woke up more than 16 times, or used more CPU time.
    pub fn assert_idle(&self, when: &str) {
        // Work under way, such as the end of a connection, is finished first.
        thread::sleep(Duration::from_millis(500));
        let (ticks, switches) = (self.cpu_ticks(), self.voluntary_switches());
        thread::sleep(IDLE);
        let ticks = self.cpu_ticks() - ticks;
        let switches = self.voluntary_switches().saturating_sub(switches);
        assert!(switches <= 16, "{when}: {switches} voluntary switches in {IDLE:?}");
        assert!(ticks <= 40, "{when}: {ticks} CPU ticks in {IDLE:?}");
    }

    /// Resident memory, in KiB.
    pub fn resident_kib(&self) -> u64 {
        let status = self.proc("status");
        field(&status, "VmRSS:").unwrap_or_else(|| panic!("no VmRSS in {status}"))
    }

    /// Standard output of the daemon so far.
    pub fn stdout(&self) -> String {
        self.output("stdout")
    }

    /// Standard error of the daemon so far.
    pub fn stderr(&self) -> String {
        self.output("stderr")
    }

    fn output(&self, name: &str) -> String {
        if self.status.is_none() {
            // The daemon's log thread writes messages a little later.
            std::thread::sleep(Duration::from_millis(50));
        }
        let bytes = fs::read(self.dir().join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn proc(&self, name: &str) -> String {
        let path = format!("/proc/{}/{name}", self.pid());
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// The daemon's exit status, if it has ended.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().expect("the daemon is our child");
        }
        self.status
    }

    fn wait(&mut self, timeout: Duration) -> ExitStatus {
        poll_within(timeout, || self.try_wait())
            .unwrap_or_else(|| panic!("the daemon was still running after {timeout:?}"))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if thread::panicking() {
            println!("--- daemon stdout\n{}--- stderr\n{}", self.stdout(), self.stderr());
        }
        if self.status.is_none() {
            // Failing here would hide the test's own failure, and there is nothing more to do.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// utime + stime, fields 14 and 15 of a line of /proc/PID/stat (`proc(5)`).
fn cpu_ticks(stat: &str) -> Option<u64> {
    // Field 2, the name in parentheses, may itself hold blanks and parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut times = rest.split_whitespace().skip(11).map(|field| field.parse::<u64>().ok());
    Some(times.next()?? + times.next()??)
}

/// The number after `name` at the start of a line of /proc/PID/status.
fn field(status: &str, name: &str) -> Option<u64> {
    let rest = status.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Sends a signal to a child that has not been waited for.
///
/// # Panics
///
/// When the system refuses.
pub(crate) fn send_signal(child: &Child, signal: i32) {
    let pid = i32::try_from(child.id()).expect("Linux process ids fit 22 bits");
    // SAFETY: kill reads no memory of ours, and a child that is not reaped keeps its number.
    let sent = unsafe { libc::kill(pid, signal) };
    assert_eq!(sent, 0, "cannot send signal {signal} to process {pid}");
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    /// A shell that stands in for the daemon.
    fn stand_in(script: &str, sockets: &[&str]) -> Daemon {
        Daemon::spawn(crate::tempdir(), Command::new("sh").args(["-c", script]), sockets)
    }

    #[test]
    fn a_daemon_is_up_when_it_says_so_and_its_sockets_are_there() {
        let script = "echo starting; echo ready now; sleep 0.1; : > a.sock; exec sleep 60";
        let mut daemon = stand_in(script, &["a.sock"]);
        assert!(daemon.dir().join("a.sock").exists());
        assert!(daemon.resident_kib() > 0);
        assert!(daemon.cpu_ticks() < 100);
        assert!(daemon.voluntary_switches() > 0);
        assert_eq!(daemon.terminate().signal(), Some(libc::SIGTERM));
        daemon.signal(libc::SIGTERM);
    }

    #[test]
    fn a_daemon_that_cleans_up_on_sigterm_is_waited_for() {
        let script = "trap 'echo bye >&2; exit 7' TERM; echo ready; while :; do sleep 0.05; done";
        let mut daemon = stand_in(script, &[]);
        assert_eq!(daemon.terminate().code(), Some(7));
        assert_eq!(daemon.stderr(), "bye\n");
    }

    #[test]
    fn a_daemon_that_dies_at_the_start_fails_the_test() {
        let fail = std::panic::catch_unwind(|| stand_in("exit 2", &[]));
        let text = *fail.err().unwrap().downcast::<String>().unwrap();
        assert_eq!(text, "the daemon exited before it was ready: exit status: 2\n");
    }

    #[test]
    fn a_dropped_daemon_leaves_no_process() {
        let mut daemon = stand_in("echo ready; exec sleep 60", &[]);
        let pid = daemon.pid();
        assert_eq!(daemon.try_wait(), None);
        drop(daemon);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
        let mut daemon = stand_in("echo ready; exec sleep 60", &[]);
        assert_eq!(daemon.kill9().signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn times_are_read_past_a_name_with_parentheses() {
        let stat = "7 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 111 222 0 0";
        assert_eq!(cpu_ticks(stat), Some(333));
        assert_eq!(cpu_ticks("7 (a) S 1"), None);
        let status = "VmPeak:\t 9 kB\nVmRSS:\t 12 kB\nnonvoluntary_ctxt_switches:\t5\n";
        assert_eq!(field(status, "VmRSS:"), Some(12));
        assert_eq!(field(status, "voluntary_ctxt_switches:"), None);
    }
}
