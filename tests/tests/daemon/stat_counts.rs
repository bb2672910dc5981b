//! `millrace stat`, the control socket and the metrics of a running daemon, from the outside.
//!
//! The counts in every view are compared with a known load: I/Os and bytes exactly. Hostile clients
//! of the control socket must not affect others, and an idle daemon with a control connection must
//! use no CPU. Every test runs the real binary.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::spawn;
use std::time::{Duration, Instant};

use millrace_tests::known_load::{CONFIG, on_each_drive, serve};
use millrace_tests::serving::{pattern, succeed};
use millrace_tests::{Daemon, metrics, poll_within, run};
use serde_json::Value;

fn binary(daemon: &Daemon) -> PathBuf {
    fs::read_link(format!("/proc/{}/exe", daemon.pid())).unwrap()
}

fn stat(daemon: &Daemon) -> Command {
    let mut command = Command::new(binary(daemon));
    command.current_dir(daemon.dir()).args(["stat", "--connect", "unix:c"]);
    command
}

const COUNTS: [&str; 3] = ["ios", "bytes", "errors"];
const KINDS: [&str; 4] = ["read", "write", "discard", "flush"];
/// I/Os of a load in the rows of the volume and of both drives.
const LOAD_IOS: u64 = 39 + 2 * 22;

/// Runs a known load: on each drive 10 writes and 7 reads of 4 KiB, half of 3 writes of 128 KiB,
/// and 2 flushes. Then waits for the counts of `times` such loads.
fn load(daemon: &Daemon, times: u64) {
    let mut raw = on_each_drive(daemon);
    for place in 1..4 {
        raw.write(place << 20, &pattern(131_072, place)).unwrap();
    }
    raw.flush().unwrap();
    raw.flush().unwrap();
    // A thread publishes its counts at the end of a turn, which may be after the reply.
    let all = || {
        let report = json(&succeed(stat(daemon).arg("--json")));
        (ios(&report["rows"]) >= times * LOAD_IOS).then_some(())
    };
    poll_within(Duration::from_secs(10), all).expect("its counts are published");
}

/// I/Os of all kinds of all rows.
fn ios(rows: &Value) -> u64 {
    let of = |row: &Value| -> u64 {
        KINDS.iter().map(|kind| row[kind]["ios"].as_u64().unwrap_or_default()).sum()
    };
    rows.as_array().unwrap().iter().map(of).sum()
}

/// Compares all rows with the load.
fn check(rows: &Value) {
    let rows = rows.as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["v", "d0", "d1"]);
    rows.iter().for_each(check_row);
}

/// Compares a row: the volume's counts the client's I/Os, a drive's counts each half of a long
/// write.
fn check_row(row: &Value) {
    let (drives, long, flushes) = if row["kind"] == "drive" { (1, 3, 2) } else { (2, 3, 2) };
    let counts = |kind: &str| (row[kind]["ios"].clone(), row[kind]["bytes"].clone());
    let bytes = drives * (40_960 + 196_608);
    assert_eq!(counts("write"), ((drives * 10 + long).into(), bytes.into()), "{row}");
    assert_eq!(counts("read"), ((drives * 7).into(), (drives * 28_672).into()), "{row}");
    assert_eq!(counts("flush"), (flushes.into(), 0.into()), "{row}");
    assert_eq!(counts("discard"), (0.into(), 0.into()), "{row}");
    assert_eq!((&row["in_flight"], &row["write"]["errors"]), (&0.into(), &0.into()), "{row}");
}

fn json(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

#[test]
fn the_first_report_has_exactly_the_ios_and_bytes_of_the_load() {
    let daemon = serve("");
    load(&daemon, 1);
    let report = json(&succeed(stat(&daemon).arg("--json")));
    check(&report["rows"]);
    assert!(report["server"]["huge_page_bytes"].is_u64(), "{report}");
    assert!(report["server"]["requests"].as_u64() > Some(0), "{report}");
    let report_of_all = json(&succeed(stat(&daemon).args(["--json", "--queues", "--clients"])));
    let rows = report_of_all["rows"].as_array().unwrap();
    let of = |kind: &str| rows.iter().filter(|row| row["kind"] == kind).collect::<Vec<_>>();
    let clients = of("client");
    assert_eq!(clients.len(), 1, "{report_of_all}");
    check_row(clients[0]);
    for drive in ["d0", "d1"] {
        let queues = of("queue");
        let mine = |row: &&&Value| row["name"].as_str().unwrap().starts_with(drive);
        let ios = |row: &&Value| row["write"]["ios"].as_u64().unwrap();
        assert_eq!(queues.iter().filter(mine).map(ios).sum::<u64>(), 13, "{report_of_all}");
    }
    let uptime_s = report["uptime_ns"].as_u64().unwrap() as f64 / 1e9;
    let rate = report["rows"][0]["read"]["per_second"].as_f64().unwrap();
    assert!((rate * uptime_s - 14.0).abs() < 0.01, "{report}");
    let table = succeed(stat(&daemon).arg("-x"));
    let head: Vec<&str> = table.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(head[..4], ["Device", "r/s", "rMiB/s", "rrqm/s"]);
    assert_eq!(head[head.len() - 3..], ["%util", "r_p99", "w_p99"]);
    assert_eq!(table.lines().count(), 5, "{table}");
}

#[test]
fn a_later_report_has_exactly_what_came_since_the_one_before() {
    let daemon = serve("");
    load(&daemon, 1);
    let start = Instant::now();
    let mut command = stat(&daemon);
    command.args(["--json", "0.5"]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || json(&lines.next().unwrap().unwrap());
    check(&next()["rows"]);
    load(&daemon, 2);
    // The load may take longer than an interval, so the later reports are added up.
    let (mut sum, mut reports) = (next()["rows"].take(), 1);
    while ios(&sum) < LOAD_IOS {
        assert!(start.elapsed() < Duration::from_secs(30), "{sum}");
        add(&mut sum, &next()["rows"]);
        reports += 1;
    }
    // A report without any I/O follows.
    add(&mut sum, &next()["rows"]);
    check(&sum);
    let seconds = sum[0]["seconds"].as_f64().unwrap();
    let (least, most) = (f64::from(reports + 1) * 0.25, start.elapsed().as_secs_f64());
    assert!((least..most).contains(&seconds), "{seconds} of {reports} reports and one");
    child.kill().unwrap();
    child.wait().unwrap();
    let two = succeed(stat(&daemon).args(["--json", "0.1", "2"]));
    assert_eq!(two.lines().count(), 2, "{two}");
}

/// Adds the rows of a later report to those of earlier ones.
fn add(sum: &mut Value, later: &Value) {
    for (row, more) in sum.as_array_mut().unwrap().iter_mut().zip(later.as_array().unwrap()) {
        assert_eq!(row["name"], more["name"]);
        for (kind, count) in KINDS.iter().flat_map(|kind| COUNTS.map(|count| (*kind, count))) {
            let both = [&row[kind][count], &more[kind][count]];
            let added: u64 = both.iter().map(|count| count.as_u64().unwrap_or_default()).sum();
            row[kind][count] = added.into();
        }
        let seconds = [&*row, more].map(|row| row["seconds"].as_f64().unwrap());
        row["seconds"] = seconds.iter().sum::<f64>().into();
        row["in_flight"] = more["in_flight"].clone();
    }
}

#[test]
fn missing_daemon_is_an_error_with_place_and_remedy() {
    let mut daemon = serve("");
    let mut command = Command::new(binary(&daemon));
    let output = run(command.current_dir(daemon.dir()).args(["stat", "--connect", "none"]));
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    let start = "millrace: unix:none: there is no socket; start `millrace";
    assert!(text.starts_with(start) && text.contains("--connect unix:PATH"), "{text}");
    let mut command = stat(&daemon);
    daemon.kill9();
    let text = String::from_utf8(run(&mut command).stderr).unwrap();
    assert!(text.starts_with("millrace: unix:c: no daemon serves this socket any more"), "{text}");
}

#[test]
fn socket_of_something_else_is_told_at_once_and_silent_one_soon() {
    let daemon = serve("");
    let _silent = UnixListener::bind(daemon.dir().join("silent")).unwrap();
    let listener = UnixListener::bind(daemon.dir().join("mail")).unwrap();
    let other = spawn(move || {
        let greet = || listener.accept().unwrap().0.write_all(b"220 a mail server\r\n").unwrap();
        (0..3).for_each(|_| greet());
    });
    for verb in ["stat", "top", "trace record"] {
        for (socket, why) in [
            ("s", "this is the NBD socket of an export, not a control socket"),
            ("silent", "the server sent nothing for 2 s, so this is not a control socket"),
            ("mail", "this is not a control socket of millrace"),
        ] {
            let mut command = Command::new(binary(&daemon));
            command.current_dir(daemon.dir()).args(verb.split(' '));
            let start = Instant::now();
            let output = run(command.args(["--connect", &format!("unix:{socket}")]));
            assert!(start.elapsed() < Duration::from_secs(8), "{verb} {socket}");
            assert_eq!(output.status.code(), Some(2));
            let text = String::from_utf8(output.stderr).unwrap();
            let begin = format!("millrace: unix:{socket}: {why}; name the daemon's control socket");
            assert!(text.starts_with(&begin) && text.contains("--connect unix:PATH"), "{text}");
        }
    }
    other.join().unwrap();
}

#[test]
fn top_without_a_terminal_is_an_error_that_names_stat() {
    let daemon = serve("");
    let mut command = Command::new(binary(&daemon));
    command.current_dir(daemon.dir()).args(["top", "--connect", "unix:c"]);
    let output = run(command.stdin(Stdio::null()));
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text, "millrace: top needs a terminal; `millrace stat` writes to files and pipes\n");
}

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    let daemon = serve("");
    let mut command = stat(&daemon);
    command.arg("0.05").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 10]).unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

fn says(daemon: &Daemon, text: &str) {
    assert!(daemon.stdout().contains(text), "{}", daemon.stdout());
}

#[test]
fn the_control_socket_is_private_and_goes_with_its_daemon() {
    let mut daemon = serve("");
    let path = daemon.dir().join("c");
    let mode = fs::symlink_metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    says(&daemon, &format!("control at unix:{}\n", path.display()));
    let other = CONFIG.replace("nbd = \"unix:s\"", "nbd = \"unix:t\"").replace("path=d", "path=e");
    fs::write(daemon.dir().join("other.toml"), other).unwrap();
    let mut second = Command::new(binary(&daemon));
    let output = run(second.current_dir(daemon.dir()).args(["serve", "other.toml"]));
    let text = String::from_utf8(output.stderr).unwrap();
    let pid = daemon.pid();
    let holder = format!("in use by process {pid} (millrace); stop that, or choose another path");
    assert_eq!(text, format!("millrace: other.toml:15: control: unix:c: {holder}\n"));
    assert_eq!(output.status.code(), Some(2));
    succeed(&mut stat(&daemon));
    assert!(daemon.terminate().success());
    assert!(!path.exists());
}

#[test]
fn control_socket_follows_export_sockets_unless_given() {
    let without = CONFIG.replace("[server]\ncontrol = \"unix:c\"\n", "");
    let daemon = Daemon::start(&without, &["s", "s.control"]);
    says(&daemon, &format!("control at unix:{}/s.control\n", daemon.dir().display()));
    let daemon = Daemon::start(&without.replace("unix:s", "tcp:127.0.0.1:0"), &[]);
    assert!(
        daemon.stderr().contains("needs a control socket, and there is none"),
        "{}",
        daemon.stderr()
    );
    let off = CONFIG.replace("control = \"unix:c\"", "control = \"off\"");
    let daemon = Daemon::start(&off, &["s"]);
    assert!(
        daemon.stderr().contains("needs a control socket, and there is none"),
        "{}",
        daemon.stderr()
    );
    assert!(!daemon.dir().join("s.control").exists());
}

#[test]
fn hostile_clients_cost_others_nothing_and_no_cpu() {
    let daemon = serve("");
    let path = daemon.dir().join("c");
    let connect = || UnixStream::connect(&path).unwrap();
    let mut hostile: Vec<UnixStream> = (0..30).map(|_| connect()).collect();
    for (seed, client) in (1..).zip(&mut hostile) {
        // Some of it is cut off.
        client.set_write_timeout(Some(Duration::from_millis(50))).unwrap();
        let _ = client.write_all(&pattern(seed * 5_000, seed as u64));
        let _ = client.write_all(b"\n{\"verb\":\"stats\"}\n{\"verb\":\"stats\"}");
    }
    load(&daemon, 1);
    check(&json(&succeed(stat(&daemon).arg("--json")))["rows"]);
    drop(hostile);
    let watching = [connect(), connect()];
    daemon.assert_idle("after hostile clients");
    drop(watching);
}

#[test]
fn metrics_have_exactly_the_ios_and_bytes_of_the_load() {
    let daemon = serve("metrics = \"127.0.0.1:0\"\n");
    load(&daemon, 1);
    let text = metrics::get(&metrics::address(&daemon), "/metrics");
    let value = |series: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(series));
        let value = line.unwrap_or_else(|| panic!("no {series} in {text}"));
        value.trim().parse::<f64>().unwrap()
    };
    for drive in ["d0", "d1"] {
        let op = |op: &str| format!("{{drive=\"{drive}\",volume=\"v\",op=\"{op}\"}}");
        let counts = |name: &str| {
            let ios = value(&format!("millrace_drive_ios_total{}", op(name)));
            (ios, value(&format!("millrace_drive_bytes_total{}", op(name))))
        };
        assert_eq!(counts("write"), (13.0, 237_568.0));
        assert_eq!(counts("read"), (7.0, 28_672.0));
        assert_eq!(counts("flush"), (2.0, 0.0));
        let timed = format!("millrace_drive_io_duration_seconds_count{}", op("write"));
        assert_eq!(value(&timed), 13.0);
    }
    assert_eq!(value("millrace_nbd_requests_total"), 39.0);
    well_formed_says_promtool(&text);
}

/// Prometheus's own tool, where it is installed.
fn well_formed_says_promtool(text: &str) {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.stdout(Stdio::piped()).spawn() else {
        return millrace_require::skip("promtool is not installed (Debian package prometheus)");
    };
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.trim().is_empty(), "{said}");
}
