//! I/O to one of eight drives takes 50 ms longer; no other drive's I/O may wait for it.

use std::process::{Command, Stdio};

use millrace_tests::remote::Remote;
use millrace_tests::serving::{stripe, uri};
use millrace_tests::{Daemon, require_clients, tempdir};

const DRIVES: usize = 8;
/// Extra latency of the slow drive, in milliseconds.
const FAR_MS: u64 = 50;

/// fio at depth 8 on one drive's part of a linear volume; its process.
fn reader(daemon: &Daemon, drive: usize) -> std::process::Child {
    let mut fio = Command::new("fio");
    fio.current_dir(daemon.dir()).stdin(Stdio::null()).stderr(Stdio::null());
    fio.args(["--name=r", "--ioengine=nbd", "--rw=randread", "--bs=4k", "--iodepth=8"]);
    fio.args(["--size=16m", "--time_based", "--runtime=2", "--output-format=json"]);
    fio.arg(format!("--offset={}m", 16 * drive)).arg(format!("--uri={}", uri(daemon, "v")));
    fio.stdout(Stdio::piped()).spawn().unwrap()
}

/// The median latency of a reader, in milliseconds, and its I/Os.
fn result(child: std::process::Child) -> (f64, u64) {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    // A remark may stand before the report.
    let begin = output.stdout.iter().position(|byte| *byte == b'{').unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout[begin..]).unwrap();
    let read = &report["jobs"][0]["read"];
    let median_ns = read["clat_ns"]["percentile"]["50.000000"].as_f64().unwrap();
    (median_ns / 1e6, read["total_ios"].as_u64().unwrap())
}

#[test]
fn a_drive_that_is_far_away_delays_its_own_ios_only() {
    require_clients!("fio", "nbdkit");
    let dir = tempdir();
    let delay = format!("delay-read={FAR_MS}ms");
    let server = |number: usize| {
        let socket = dir.path().join(format!("n{number}"));
        match number {
            3 => Remote::nbdkit(&socket, &["--filter=delay", "memory", "16M", &delay]),
            _ => Remote::nbdkit(&socket, &["memory", "16M"]),
        }
    };
    let servers: Vec<_> = (0..DRIVES).map(server).collect();
    let specs: Vec<_> = servers.iter().map(|server| server.spec("")).collect();
    for serving in ["inline", "per-drive"] {
        let layout = format!("layout = \"linear\"\nserving = \"{serving}\"");
        let config = stripe("auto", &specs).replace("chunk = \"64k\"", &layout);
        let daemon = Daemon::start(&config, &["s"]);
        let (far, near) = (reader(&daemon, 3), reader(&daemon, 4));
        let ((far_ms, _), (near_ms, near_ios)) = (result(far), result(near));
        println!("{serving}: far {far_ms} ms, near {near_ms} ms, {near_ios} I/Os");
        assert!(far_ms >= FAR_MS as f64, "{serving}: {far_ms}");
        assert!(near_ms < FAR_MS as f64 / 2.0, "{serving}: {near_ms} ms beside a far drive");
    }
}
