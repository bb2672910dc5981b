//! Runs a command to its end, but never forever.
//!
//! Output goes to files, not pipes, so that a chatty or forking child can neither block nor keep
//! the test waiting for a pipe to close. Called by the tests and by `binary`.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Enough for the slowest client on a loaded machine of two cores.
const TIMEOUT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(5);

/// Runs `command` with no input and returns its output, whatever its exit status.
///
/// # Panics
///
/// When it cannot be started, or runs longer than 120 s: it is then killed, and the message shows
/// what it had printed.
pub fn run(command: &mut Command) -> Output {
    run_within(command, TIMEOUT)
}

/// `run` with another time limit.
///
/// # Panics
///
/// As `run`.
pub fn run_within(command: &mut Command, timeout: Duration) -> Output {
    let dir = crate::tempdir();
    let (out, err) = (dir.path().join("stdout"), dir.path().join("stderr"));
    command.stdin(Stdio::null()).stdout(create(&out)).stderr(create(&err));
    let mut child =
        command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    let status = poll_within(timeout, || child.try_wait().expect("the child is ours to wait for"));
    let output = |status| Output { status, stdout: read(&out), stderr: read(&err) };
    let Some(status) = status else {
        child.kill().expect("a child that was not reaped can be killed");
        let Output { stdout, stderr, .. } = output(child.wait().expect("the child is ours"));
        panic!(
            "{command:?} was still running after {timeout:?} and was killed\n\
             --- stdout\n{}--- stderr\n{}",
            String::from_utf8_lossy(&stdout),
            String::from_utf8_lossy(&stderr)
        );
    };
    output(status)
}

/// Calls `ready` until it gives something or `timeout` has passed.
pub fn poll_within<T>(timeout: Duration, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        // Look before the clock: a late wake-up must not lose a thing that is there.
        if let Some(value) = ready() {
            return Some(value);
        }
        if start.elapsed() >= timeout {
            return None;
        }
        thread::sleep(POLL);
    }
}

/// Asserts that a limit is kept and reached: no measured rate is above it by more than `error`, and
/// the best of five is not below it by more. A rate may be lower while the machine is busy, since
/// the daemon then wakes later than a burst lasts, and loses the rest of the burst.
///
/// # Panics
///
/// When a rate is above the limit, or all are below it.
pub fn assert_limit(limit: f64, error: f64, mut measure: impl FnMut() -> f64) {
    let mut rates = Vec::new();
    while rates.len() < 5 {
        let rate = measure();
        rates.push(rate);
        assert!(rate <= limit * (1.0 + error), "limit {limit}: {rates:?}");
        if rate >= limit * (1.0 - error) {
            return;
        }
    }
    panic!("limit {limit} is not reached: {rates:?}");
}

/// Does a process listen on the Unix socket `path`, written as the listener wrote it? The socket
/// file exists before that, but refuses connections.
pub fn listens(path: &Path) -> bool {
    // Fields of proc(5): flags are the fourth, the path is the last; __SO_ACCEPTCON = 0x10000.
    let table = fs::read_to_string("/proc/net/unix").expect("Linux has a table of its sockets");
    table.lines().any(|line| {
        line.split(' ').nth(3) == Some("00010000")
            && line.split(' ').next_back().map(Path::new) == Some(path)
    })
}

/// Creates a file for the output of a child.
pub fn create(path: &Path) -> File {
    File::create(path).unwrap_or_else(|error| panic!("cannot create {}: {error}", path.display()))
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_and_status_come_back_whatever_they_are() {
        let output = run(&mut shell("echo out; echo err >&2; exit 3"));
        assert_eq!(output.status.code(), Some(3));
        assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
    }

    #[test]
    fn a_socket_is_listened_to_from_listen_until_close() {
        let dir = crate::tempdir();
        let (path, other) = (dir.path().join("s"), dir.path().join("t"));
        assert!(!listens(&path));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let client = std::os::unix::net::UnixStream::connect(&path).unwrap();
        let _datagrams = std::os::unix::net::UnixDatagram::bind(&other).unwrap();
        assert_eq!((listens(&path), listens(&other)), (true, false));
        drop(listener);
        // A child that another test has forked has the socket, too, until it runs its program.
        let closed = poll_within(Duration::from_secs(10), || (!listens(&path)).then_some(()));
        assert!(path.exists() && closed.is_some());
        drop(client);
    }

    #[test]
    fn child_that_leaves_grandchild_behind_does_not_hold_test() {
        let start = Instant::now();
        let output = run(&mut shell("sleep 20 & echo $!"));
        assert!(start.elapsed() < Duration::from_secs(10));
        let pid = String::from_utf8(output.stdout).unwrap();
        run(Command::new("kill").arg(pid.trim()));
    }

    #[test]
    fn a_command_that_hangs_is_killed_and_its_output_shown() {
        let fail = std::panic::catch_unwind(|| {
            run_within(&mut shell("echo begun; exec sleep 60"), Duration::from_secs(3))
        });
        let text = *fail.unwrap_err().downcast::<String>().unwrap();
        assert!(text.contains("was killed") && text.contains("begun"), "{text}");
    }
}
