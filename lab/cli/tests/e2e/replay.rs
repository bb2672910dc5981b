//! `millrace-lab replay` sends each I/O of a trace to servers of others and to our own, to files
//! and to stripes: what arrives is what the trace says.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use millrace_tests::serving::{backends, stripe, uri};
use millrace_tests::storage_daemon::StorageDaemon;
use millrace_tests::{Daemon, millrace_lab, poll_within, require_clients, run, tempdir};
use serde_json::Value;

/// fio's log: microseconds, a file, an operation, a range.
const IOLOG: &str = "\
fio version 3 iolog
0 sda add
0 sda open
10 sda write 0 4096
20 sda write 65536 131072
30 sda read 0 4096
40 sda trim 1048576 65536
50 sda sync 0 0
60 sda write 2097152 512
5000 sda read 4194304 1048576
5000 sda close
";

/// blkparse's lines: a write that is durable by itself, and one that is not.
const BLKPARSE: &str = "\
8,0 0 1 0.000000000 1 Q WFS 8 + 8 [a]
8,0 0 2 0.000100000 1 C WFS 8 + 8 [0]
8,16 0 3 0.000200000 1 Q W 16 + 8 [a]
8,16 0 4 0.000450000 1 C W 16 + 8 [0]
";

/// An nbdkit that keeps a disk in memory and logs each request; killed by its pid when it drops.
struct Nbdkit {
    child: Child,
    dir: tempfile::TempDir,
}

impl Nbdkit {
    fn start() -> Nbdkit {
        let dir = tempdir();
        let mut command = Command::new("nbdkit");
        command.arg("--foreground").arg("--unix").arg(dir.path().join("s"));
        command.args(["--filter=log", "memory", "16M"]);
        command.arg(format!("logfile={}", dir.path().join("log").display()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("the caller has looked for it");
        let ready =
            poll_within(Duration::from_secs(30), || dir.path().join("s").exists().then_some(()));
        assert!(ready.is_some(), "{command:?} does not listen");
        Nbdkit { child, dir }
    }

    fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.dir.path().join("s").display())
    }

    /// Returns the requests that arrived after the query by which a replay finds the disk empty:
    /// words such as `Write offset=0x0 count=0x1000 fua=0`.
    fn requests(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.dir.path().join("log")).expect("it logs");
        let asked = log.lines().filter(|line| line.ends_with(" ...") && line.contains(" id="));
        let asked = asked.filter(|line| line.contains("connection="));
        let words = asked.map(|line| {
            let words = line.split_whitespace().skip(3).filter(|word| !word.starts_with("id="));
            words.take_while(|word| *word != "...").collect::<Vec<_>>().join(" ")
        });
        words.skip(1).collect()
    }
}

impl Drop for Nbdkit {
    fn drop(&mut self) {
        self.child.kill().expect("it was not reaped");
        self.child.wait().expect("it is ours");
    }
}

/// A file with a trace, in a directory of its own.
struct Trace(tempfile::TempDir);

impl Trace {
    fn of(text: &str) -> Trace {
        let dir = tempdir();
        std::fs::write(dir.path().join("trace"), text).expect("the directory is writable");
        Trace(dir)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("trace")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

fn replay(trace: &Trace, arguments: &[&str]) -> Output {
    let mut command = millrace_lab();
    command.arg("replay").arg(trace.path()).arg("--json").args(arguments);
    run(&mut command)
}

fn report(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}{said}", String::from_utf8_lossy(&output.stdout));
    serde_json::from_slice(&output.stdout).expect("the report must be JSON")
}

fn refused(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns true if a range of a file was written with data, false if it has only zeroes.
fn looks_written(file: &Path, offset: usize, len: usize) -> bool {
    let bytes = std::fs::read(file).expect("the file is there");
    let zeroes = bytes[offset..offset + len].iter().filter(|byte| **byte == 0).count();
    assert!(zeroes < len / 32 || zeroes == len, "{zeroes} zeroes of {len} bytes at {offset}");
    zeroes < len / 32
}

/// The ranges that `IOLOG` writes, and some that it does not.
fn holds_what_the_log_writes(file: &Path) {
    for (offset, len) in [(0, 4096), (65536, 131_072), (2_097_152, 512)] {
        assert!(looks_written(file, offset, len), "{offset}");
    }
    for (offset, len) in [(4096, 61_440), (196_608, 851_968), (2_097_664, 4096), (4_194_304, 4096)]
    {
        assert!(!looks_written(file, offset, len), "{offset}");
    }
}

#[test]
fn replayed_ios_arrive_once_in_an_order_that_depends_allow() {
    require_clients!("nbdkit");
    for speed in ["1x", "afap"] {
        let (server, trace) = (Nbdkit::start(), Trace::of(IOLOG));
        let report = report(&replay(&trace, &["--to", &server.uri(), "--speed", speed]));
        let requests = server.requests();
        let place = |text: &str| {
            let found = requests.iter().position(|request| request == text);
            found.unwrap_or_else(|| panic!("{text} is not in {requests:#?}"))
        };
        let first = place("Write offset=0x0 count=0x1000 fua=0");
        assert!(first < place("Read offset=0x0 count=0x1000"));
        let before_flush = [
            first,
            place("Write offset=0x10000 count=0x20000 fua=0"),
            place("Trim offset=0x100000 count=0x10000 fua=0"),
        ];
        let flush = place("Flush");
        assert!(before_flush.iter().all(|at| *at < flush), "{requests:#?}");
        place("Write offset=0x200000 count=0x200 fua=0");
        place("Read offset=0x400000 count=0x100000");
        assert_eq!(requests.len(), 7, "{requests:#?}");
        assert_eq!((report["ios"].as_u64(), report["errors"].as_u64()), (Some(7), Some(0)));
    }
}

#[test]
fn durable_writes_reach_nbdkit_and_devices_use_own_servers() {
    require_clients!("nbdkit");
    let (one, other, trace) = (Nbdkit::start(), Nbdkit::start(), Trace::of(BLKPARSE));
    let map = [format!("8,0={}", one.uri()), format!("8,16={}", other.uri())];
    let report = report(&replay(&trace, &["--map", &map[0], "--map", &map[1]]));
    assert_eq!(one.requests(), ["Write offset=0x1000 count=0x1000 fua=1"]);
    assert_eq!(other.requests(), ["Write offset=0x2000 count=0x1000 fua=0"]);
    let write = &report["ops"][0];
    assert_eq!((&write["fua"], &write["traced"]["max_ns"]), (&1.into(), &250_000.into()));
    let text = refused(&replay(&trace, &["--map", &map[0], "--overwrite"]));
    assert!(text.contains("--map 8,16=TARGET"), "{text}");
}

#[test]
fn file_of_a_trace_is_complete_and_never_overwritten() {
    let trace = Trace::of(IOLOG);
    let file = trace.file("f.img");
    let new = format!("file:path={},size=16m", file.display());
    report(&replay(&trace, &["--to", &new, "--speed", "afap"]));
    holds_what_the_log_writes(&file);
    let before = std::fs::read(&file).unwrap();
    let text = refused(&replay(&trace, &["--to", &new]));
    assert!(
        text.contains(
            "f.img,size=16m holds data, and I/O 1 of the trace, a write, would overwrite"
        ) && text.contains("--overwrite"),
        "{text}"
    );
    assert!(std::fs::read(&file).unwrap() == before);
    report(&replay(&trace, &["--to", &new, "--overwrite", "--seed", "2"]));
    assert!(std::fs::read(&file).unwrap() != before);
}

#[test]
fn an_image_of_a_vhost_user_server_holds_what_the_trace_writes() {
    require_clients!("qemu-storage-daemon");
    let (server, trace) = (StorageDaemon::start(16 << 20), Trace::of(IOLOG));
    let to = format!("vhost-user:{}", server.socket().display());
    let replayed = report(&replay(&trace, &["--to", &to]));
    assert_eq!((&replayed["ios"], &replayed["errors"]), (&7.into(), &0.into()), "{replayed}");
    holds_what_the_log_writes(&server.image());
    let durable = Trace::of(BLKPARSE);
    let replayed = report(&replay(&durable, &["--to", &to, "--overwrite"]));
    assert_eq!(replayed["adapted"]["fua_by_flush"], 1, "{replayed}");
}

#[test]
fn our_own_server_gets_what_the_trace_writes() {
    let trace = Trace::of(IOLOG);
    let file = trace.file("d0");
    let drive = format!("file:path={},size=16m", file.display());
    let config = stripe(backends()[0], &[drive]);
    let daemon = Daemon::start(&config, &["s"]);
    let replayed = report(&replay(&trace, &["--to", &uri(&daemon, "v")]));
    assert_eq!((&replayed["ios"], &replayed["errors"]), (&7.into(), &0.into()), "{replayed}");
    holds_what_the_log_writes(&file);
}

#[test]
fn server_disk_with_a_far_byte_is_refused_and_zeroes_are_not() {
    let trace = Trace::of(IOLOG);
    for (byte, is_empty) in [(1, false), (0, true)] {
        let file = trace.file(&format!("d{byte}"));
        let image = std::fs::File::create(&file).expect("the directory is writable");
        image.set_len(256 << 20).expect("the sparse file must be created");
        let written = [vec![0; 1 << 20], vec![byte; 1], vec![0; 1 << 20]].concat();
        std::os::unix::fs::FileExt::write_all_at(&image, &written, 100 << 20).expect("room");
        image.sync_all().expect("room");
        let drive = format!("file:path={}", file.display());
        let daemon = Daemon::start(&stripe(backends()[0], &[drive]), &["s"]);
        let output = replay(&trace, &["--to", &uri(&daemon, "v")]);
        match is_empty {
            true => assert_eq!(report(&output)["errors"], 0),
            false => assert!(refused(&output).contains("holds data at byte 105906176")),
        }
    }
}

#[test]
fn simulated_machine_prints_same_for_same_seed_to_byte() {
    let trace = Trace::of(IOLOG);
    let once = || {
        let arguments = ["--to", "model:preset=850evo", "--machine", "x5690"];
        let output = replay(&trace, &arguments);
        report(&output);
        output.stdout
    };
    assert_eq!(once(), once());
}

#[test]
fn stripe_is_served_as_told_and_one_list_waits_for_large_writes() {
    let mut log = "fio version 3 iolog\n0 sda add\n0 sda open\n".to_owned();
    (0..64).for_each(|at| log += &format!("0 sda write {} 1048576\n", at << 20));
    let trace = Trace::of(&log);
    let drives = ["--to", "model:preset=850evo"].repeat(4);
    let on = |machine: &[&str], serving: &str| {
        let rest = ["--chunk", "4k", "--speed", "afap", "--iodepth", "256", "--serving", serving];
        let report = report(&replay(&trace, &[&drives, &rest[..], machine].concat()));
        assert_eq!((&report["ios"], &report["errors"]), (&64.into(), &0.into()), "{serving}");
        report["seconds"].as_f64().expect("the value must be a number")
    };
    for serving in ["inline", "per-drive", "per-volume", "auto"] {
        on(&[], serving);
    }
    let simulated = ["--machine", "e5-2620"];
    let [ours, linux] = ["per-drive", "per-volume"].map(|serving| on(&simulated, serving));
    assert!(linux > 1.2 * ours, "{linux} {ours}");
    // The drives' own rate bounds it: 64 MiB at 520 MB/s each.
    assert!(ours > 0.9 * 0.032, "{ours}");
    let alone = ["--to", "model:preset=850evo", "--serving", "per-drive"];
    assert!(refused(&replay(&trace, &alone)).contains("only for a stripe of several drives"));
}

#[test]
fn addresses_behind_the_end_are_an_error_or_what_fit_says() {
    let trace = Trace::of(IOLOG);
    let with = |more: &[&str]| replay(&trace, &[&["--to", "ram:size=1m"], more].concat());
    let text = refused(&with(&[]));
    assert!(
        text.contains("a discard of 65536 bytes at 1048576") && text.contains("--fit"),
        "{text}"
    );
    // The message names the trace and refers to the report of earlier I/Os.
    let said = format!("trace {}: ram:size=1m: I/O ", trace.path().display());
    assert!(text.contains(&said) && text.contains("the report above covers"), "{text}");
    let before: Value = serde_json::from_slice(&with(&[]).stdout).expect("the report must be JSON");
    assert!(before["ios"].as_u64() > Some(0) && before["stopped"].is_object(), "{before}");
    let skipped = report(&with(&["--fit", "skip"]));
    assert_eq!((&skipped["ios"], &skipped["skipped"]["outside"]), (&4.into(), &3.into()));
    for fit in ["wrap", "scale"] {
        let fitted = report(&with(&["--fit", fit]));
        assert_eq!((&fitted["ios"], &fitted["errors"]), (&7.into(), &0.into()), "{fitted}");
    }
}
