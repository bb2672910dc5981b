//! What signals do to a daemon, and what it logs: a closed terminal ends nothing, a request to stop
//! flushes, and a failed I/O is told with its drive, sectors and operation, the last one, too.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use millrace_clients::nbd::Client;
use millrace_nbd::{Command, Errno};
use millrace_tests::load::{self, connect, request};
use millrace_tests::{Daemon, poll_within, serving};

const RAM: &str = "ram:size=1m";
/// Every read fails.
const FAILING: &str = "fault:drive=(ram:size=1m),status=eio,op=read,every=1";

fn has_said(daemon: &Daemon, what: &str) {
    let said = || daemon.stderr().contains(what).then_some(());
    assert!(poll_within(Duration::from_secs(20), said).is_some(), "{what:?} was not logged");
}

fn read(client: &mut Client, sector: u64) -> Option<Errno> {
    let read = request(Command::Read, sector, 8);
    load::call(client, &read, vec![0; 4096]).expect("the connection stays open").errno
}

#[test]
fn a_hangup_and_signals_without_a_meaning_are_logged_and_serving_goes_on() {
    let mut daemon = Daemon::start(&serving::stripe("auto", &[RAM]), &["s"]);
    let mut client = connect(&daemon.dir().join("s"), "v").unwrap();
    for (signal, said) in [(libc::SIGHUP, "SIGHUP is ignored"), (libc::SIGUSR2, "SIGUSR2 is")] {
        daemon.signal(signal);
        has_said(&daemon, said);
    }
    // As if it had written to a pipe that nobody reads any more.
    daemon.signal(libc::SIGPIPE);
    assert_eq!(read(&mut client, 0), None);
    assert_eq!(daemon.try_wait(), None);
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn each_request_to_stop_flushes_and_removes_the_sockets() {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGQUIT] {
        let mut daemon = Daemon::start(&serving::stripe("auto", &[RAM]), &["s"]);
        daemon.signal(signal);
        let status = poll_within(Duration::from_secs(20), || daemon.try_wait());
        assert_eq!(status.and_then(|status| status.code()), Some(0), "signal {signal}");
        let stderr = daemon.stderr();
        assert!(stderr.ends_with("stopped: everything is answered and flushed\n"), "{stderr}");
        assert!(!daemon.dir().join("s").exists(), "signal {signal}");
    }
}

#[test]
fn an_error_just_before_the_end_is_logged_with_its_drive_sectors_and_operation() {
    let mut daemon = Daemon::start(&serving::stripe("auto", &[FAILING]), &["s"]);
    let mut client = connect(&daemon.dir().join("s"), "v").unwrap();
    assert_eq!(read(&mut client, 8), Some(Errno::Eio));
    assert_eq!(read(&mut client, 64), Some(Errno::Eio));
    drop(client);
    daemon.terminate();
    let stderr = daemon.stderr();
    // Together, or apart if the daemon looked for failures between the two reads.
    let said = |line: &str| stderr.matches(line).count();
    let [first, second] =
        [8, 64].map(|at| format!("read of sectors {at} to {}: I/O error (errno 5)", at + 7));
    let together = said(&format!("drive d0: 2 I/Os failed; the last: {second}"));
    let apart = [first, second].map(|one| said(&format!("drive d0: {one}")));
    assert!(together == 1 || apart == [1, 1], "{stderr}");
    let together = said("export v: 2 requests failed; the last: I/O error");
    assert!(together == 1 || said("export v: a request failed: I/O error") == 2, "{stderr}");
}

#[test]
fn verbose_log_says_who_connects_what_is_granted_and_why_a_client_is_disconnected() {
    let config = serving::stripe("auto", &[RAM]);
    let mut daemon = Daemon::start_in(millrace_tests::tempdir(), &config, &["s"], &["-v"]);
    let socket = daemon.dir().join("s");
    let mut client = connect(&socket, "v").unwrap();
    assert_eq!(read(&mut client, 0), None);
    drop(client);
    let mut other = UnixStream::connect(&socket).unwrap();
    other.write_all(&[0xff; 4]).unwrap();
    has_said(&daemon, "1.1 is gone");
    daemon.terminate();
    let stderr = daemon.stderr();
    let lines = [
        format!("client 0.1 connected to unix:{}", socket.display()),
        "client 0.1 uses export \"v\", structured replies".to_owned(),
        "client 0.1 is gone".to_owned(),
        "client 1.1 is disconnected: unknown client flags in 0xffffffff".to_owned(),
    ];
    for line in lines {
        assert_eq!(stderr.matches(&line).count(), 1, "{line}: {stderr}");
    }
}

#[test]
fn the_log_as_json_is_an_object_a_line_down_to_the_error_that_ends_the_program() {
    let mut command = millrace_tests::millrace();
    command.args(["serve", "none.toml", "--log-format", "json"]);
    let output = millrace_tests::run(&mut command);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    assert_eq!(lines.len(), 1, "{text}");
    assert_eq!(lines[0]["level"], "ERROR");
    let message = lines[0]["message"].as_str().unwrap();
    assert!(message.contains("none.toml"), "{text}");
    assert!(lines[0]["timestamp"].is_string(), "{text}");
}
