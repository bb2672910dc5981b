//! Signals to a daemon, and its log. A closed terminal ends nothing; a request to stop flushes;
//! every failed I/O is logged with its drive, sectors and operation. Time for which the daemon is
//! stopped (SIGSTOP) counts towards no time limit.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use millrace_clients::nbd::Client;
use millrace_nbd::{Command, Errno};
use millrace_tests::load::{self, connect, request};
use millrace_tests::raw_nbd::{RawNbd, handshake};
use millrace_tests::remote::Remote;
use millrace_tests::{Daemon, poll_within, require_clients, serving};

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
fn a_hangup_and_a_signal_without_a_meaning_are_logged() {
    let mut daemon = Daemon::start(&serving::stripe("auto", &[RAM]), &["s"]);
    let mut client = connect(&daemon.dir().join("s"), "v").unwrap();
    for (signal, said) in
        [(libc::SIGHUP, "loaded again; nothing has changed"), (libc::SIGUSR2, "SIGUSR2 is")]
    {
        daemon.signal(signal);
        has_said(&daemon, said);
    }
    // SIGPIPE, as after a write to a pipe without a reader.
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
        assert!(
            stderr.ends_with("stopped: all requests are answered and all data is flushed\n"),
            "{stderr}"
        );
        assert!(!daemon.dir().join("s").exists(), "signal {signal}");
    }
}

#[test]
fn error_before_the_end_is_logged_with_drive_and_sectors() {
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
fn verbose_log_explains_connects_grants_and_disconnects() {
    let config = serving::stripe("auto", &[RAM]);
    let mut daemon = Daemon::start_in(millrace_tests::tempdir(), &config, &["s"], &["-v"]);
    let socket = daemon.dir().join("s");
    let mut client = connect(&socket, "v").unwrap();
    assert_eq!(read(&mut client, 0), None);
    drop(client);
    let mut other = UnixStream::connect(&socket).unwrap();
    other.write_all(&[0xff; 4]).unwrap();
    has_said(&daemon, "1001 is gone");
    daemon.terminate();
    let stderr = daemon.stderr();
    let lines = [
        format!("client 1 connected to unix:{}", socket.display()),
        "client 1 uses export \"v\"; reply format: structured".to_owned(),
        "client 1 is gone".to_owned(),
        "client 1001 is disconnected: unknown client flags in 0xffffffff".to_owned(),
    ];
    for line in lines {
        assert_eq!(stderr.matches(&line).count(), 1, "{line}: {stderr}");
    }
}

#[test]
fn log_as_json_is_object_line_down_to_error_that_ends_program() {
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

/// Stops the daemon's process for a time.
fn pause(daemon: &Daemon, time: Duration) {
    daemon.signal(libc::SIGSTOP);
    std::thread::sleep(time);
    daemon.signal(libc::SIGCONT);
}

/// A request of each kind, sent and not waited for.
fn submit_each_kind(client: &mut Client) -> usize {
    let kinds = [
        (Command::Read, 8),
        (Command::Write, 8),
        (Command::WriteZeroes, 8),
        (Command::Trim, 8),
        (Command::Flush, 0),
    ];
    for (sector, (command, sectors)) in (0..).step_by(64).zip(kinds) {
        let at = if sectors == 0 { 0 } else { sector };
        let has_data = matches!(command, Command::Read | Command::Write);
        let buffer = if has_data { vec![0; 4096] } else { Vec::new() };
        client.submit(&request(command, at, sectors), buffer).unwrap();
    }
    client.flush().unwrap();
    kinds.len()
}

/// Configuration of a drive with a request timeout of 2 s.
fn two_seconds(backend: &str, spec: &str) -> String {
    serving::stripe(backend, &[spec]).replace("[[volume]]", "timeout = \"2s\"\n[[volume]]")
}

#[test]
fn pause_longer_than_timeout_fails_nothing_that_is_in_flight() {
    require_clients!("nbdkit");
    let dir = millrace_tests::tempdir();
    let delays = ["delay-read", "delay-write", "delay-trim", "delay-zero"];
    let delays = delays.map(|key| format!("{key}=500ms"));
    let delays: Vec<&str> = delays.iter().map(String::as_str).collect();
    let args = [&["--filter=delay", "memory", "1M"], &delays[..]].concat();
    let server = Remote::nbdkit(&dir.path().join("n"), &args);
    let outlives = |backend: &str, spec: String| {
        let mut daemon = Daemon::start(&two_seconds(backend, &spec), &["s"]);
        let mut client = connect(&daemon.dir().join("s"), "v").unwrap();
        for wait_ms in [0, 300] {
            let count = submit_each_kind(&mut client);
            std::thread::sleep(Duration::from_millis(wait_ms));
            pause(&daemon, Duration::from_secs(4));
            for done in load::wait(&mut client, count).unwrap() {
                assert_eq!(done.errno, None, "{backend} {spec}: {:?}", done.user_data);
            }
        }
        assert_eq!(daemon.terminate().code(), Some(0), "{backend} {spec}");
        let stderr = daemon.stderr();
        assert!(!stderr.contains("timed out"), "{backend} {spec}: {stderr}");
    };
    // All at a time, since they only wait.
    std::thread::scope(|scope| {
        for backend in serving::backends() {
            let file = format!("file:path={}/{backend},size=1m", dir.path().display());
            let slow = format!("fault:drive=({file}),latency=500ms");
            scope.spawn(move || outlives(backend, slow));
            let remote = server.spec("");
            scope.spawn(move || outlives(backend, remote));
        }
    });
}

#[test]
fn silent_drive_times_out_after_daemon_running_time() {
    let stuck = "fault:drive=(ram:size=1m),stuck=on,op=write-zeroes";
    for backend in serving::backends() {
        let daemon = Daemon::start(&two_seconds(backend, stuck), &["s"]);
        for pause_s in [0, 4] {
            let mut client = connect(&daemon.dir().join("s"), "v").unwrap();
            let start = Instant::now();
            client.submit(&request(Command::WriteZeroes, 0, 8), Vec::new()).unwrap();
            client.flush().unwrap();
            std::thread::sleep(Duration::from_millis(500));
            pause(&daemon, Duration::from_secs(pause_s));
            let done = load::wait(&mut client, 1).unwrap().pop().unwrap();
            assert_eq!(done.errno, Some(Errno::Eio), "{backend}");
            let ran_s = start.elapsed().as_secs_f64() - pause_s as f64;
            // A pause may count as two of the eight looks of a timeout.
            assert!((1.5..3.5).contains(&ran_s), "{backend}: {ran_s} s beside {pause_s} s");
        }
    }
}

#[test]
fn limits_of_ten_seconds_do_not_pass_while_the_daemon_is_paused() {
    let slow = format!("fault:drive=({RAM}),latency=2s");
    let config = serving::stripe("auto", &[RAM]) + "control = \"unix:c\"\n";
    let mut serving = Daemon::start(&config, &["s", "c"]);
    let mut stopping = Daemon::start(&serving::stripe("auto", &[&slow]), &["s"]);
    // Three clients: one in its handshake, one with half a request on the control socket, and one
    // that waits for its answer while the daemon stops.
    let mut greeted = RawNbd::greet(&serving.dir().join("s")).unwrap();
    let control = UnixStream::connect(serving.dir().join("c")).unwrap();
    let (mut control, mut line) = (BufReader::new(control), String::new());
    control.read_line(&mut line).unwrap();
    control.get_mut().write_all(b"{\"verb\":").unwrap();
    let mut client = connect(&stopping.dir().join("s"), "v").unwrap();
    client.submit(&request(Command::Write, 0, 8), vec![1; 4096]).unwrap();
    client.flush().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    stopping.signal(libc::SIGTERM);
    has_said(&stopping, "stopping:");
    let both = [&serving, &stopping];
    both.iter().for_each(|daemon| daemon.signal(libc::SIGSTOP));
    let start = Instant::now();
    let stat = || {
        let mut command = millrace_tests::millrace();
        command.current_dir(serving.dir()).args(["stat", "--connect", "unix:c"]);
        millrace_tests::run(&mut command)
    };
    let asked = stat();
    assert_eq!(asked.status.code(), Some(2), "nobody answers it");
    std::thread::sleep(Duration::from_secs(13).saturating_sub(start.elapsed()));
    both.iter().for_each(|daemon| daemon.signal(libc::SIGCONT));
    std::thread::sleep(Duration::from_millis(500));
    greeted.send(&handshake("v")).unwrap();
    greeted.receive(&mut [0; 10]).unwrap();
    control.get_mut().write_all(b"\"stats\"}\n").unwrap();
    line.clear();
    control.read_line(&mut line).unwrap();
    assert!(line.contains("\"ok\""), "{line}");
    assert_eq!(stat().status.code(), Some(0));
    assert_eq!(load::wait(&mut client, 1).unwrap().pop().unwrap().errno, None);
    let status = poll_within(Duration::from_secs(20), || stopping.try_wait());
    assert_eq!(status.and_then(|status| status.code()), Some(0), "{}", stopping.stderr());
    assert_eq!(serving.terminate().code(), Some(0));
}
