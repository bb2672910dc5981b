//! `millrace-lab trace convert` and `report` on traces of other formats, beside the programs that
//! own these: blkparse, btt and fio read what is written, and nbdkit's log is read.

use std::path::{Path, PathBuf};
use std::process::Command;

use millrace_tests::traces::kernel_traces;
use millrace_tests::{millrace_lab, require_clients, run, tempdir};
use serde_json::Value;

fn samples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../experiments/testdata")
}

/// Runs a command, which must succeed, and returns its standard output.
fn text(command: &mut Command) -> String {
    let output = run(command);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn convert(trace: &Path, format: &str, to: &Path) -> String {
    let mut command = millrace_lab();
    command.args(["trace", "convert"]).arg(trace).args(["--to-format", format, "-o"]).arg(to);
    let output = run(&mut command);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    said
}

#[test]
fn a_csv_that_became_blktrace_is_read_by_blkparse_and_btt() {
    require_clients!("blkparse", "btt");
    let dir = tempdir();
    let said = convert(&samples().join("msr.csv"), "blktrace", &dir.path().join("usr"));
    assert!(said.contains("3 I/Os of msr written as blktrace"), "{said}");
    let dump = dir.path().join("usr.bin");
    let mut blkparse = Command::new("blkparse");
    blkparse.args(["-i", "usr", "-d"]).arg(&dump).current_dir(dir.path());
    let lines = text(&mut blkparse);
    let events: Vec<Vec<&str>> = lines
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|words| words.len() > 9 && ["Q", "C"].contains(&words[5]))
        .map(|words| [&words[3..4], &words[5..10]].concat())
        .collect();
    let expected = [
        ["0.000000000", "Q", "R", "13700410", "+", "48"],
        ["0.004128600", "C", "R", "13700410", "+", "48"],
        ["0.693837100", "Q", "R", "13700458", "+", "8"],
        ["0.693847100", "C", "R", "13700458", "+", "8"],
        ["1.332052600", "Q", "W", "2573128", "+", "16"],
        ["1.332248900", "C", "W", "2573128", "+", "16"],
    ];
    assert_eq!(events, expected);
    // btt writes files of rates into its working directory.
    let btt = text(Command::new("btt").arg("-i").arg(&dump).current_dir(dir.path()));
    let q2c: Vec<&str> =
        btt.lines().find(|line| line.starts_with("Q2C ")).unwrap().split_whitespace().collect();
    assert_eq!((q2c[1], q2c[3], q2c[4]), ("0.000010000", "0.004128600", "3"));
}

#[test]
fn fio_replays_what_became_its_log() {
    require_clients!("fio");
    let dir = tempdir();
    let image = dir.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(256 << 20).unwrap();
    for (format, name) in [("iolog", "v2"), ("iolog3", "v3")] {
        let log = dir.path().join(name);
        convert(&kernel_traces().join("nvme"), format, &log);
        // fio cannot trim a file.
        let lines = std::fs::read_to_string(&log).unwrap();
        let kept: Vec<&str> = lines.lines().filter(|line| !line.contains(" trim ")).collect();
        std::fs::write(&log, kept.join("\n") + "\n").unwrap();
        let mut fio = Command::new("timeout");
        fio.args(["60", "fio", "--name=r", "--ioengine=psync", "--output-format=json"])
            .arg(format!("--read_iolog={}", log.display()))
            .arg(format!("--replay_redirect={}", image.display()))
            .current_dir(dir.path());
        let said = text(&mut fio);
        let json: Value = serde_json::from_str(&said[said.find("{\n").unwrap()..]).unwrap();
        let job = &json["jobs"][0];
        let done = (&job["read"]["total_ios"], &job["write"]["total_ios"], &job["error"]);
        assert_eq!(done, (&27.into(), &295.into(), &0.into()), "{format}");
        assert_eq!(job["write"]["io_bytes"], 3_297_280, "{format}");
    }
}

#[test]
fn what_blkparse_prints_is_the_same_trace_as_what_it_read() {
    require_clients!("blkparse");
    let dir = tempdir();
    for name in ["nvme", "loop", "dm-0", "nvme0n1"] {
        let lines = dir.path().join(format!("{name}.txt"));
        std::fs::write(
            &lines,
            text(Command::new("blkparse").arg("-i").arg(kernel_traces().join(name))),
        )
        .unwrap();
        for format in ["iolog3", "msr"] {
            let [ours, theirs] = ["a", "b"].map(|end| dir.path().join(format!("{name}.{end}")));
            convert(&kernel_traces().join(name), format, &ours);
            convert(&lines, format, &theirs);
            let read = |path: &Path| std::fs::read_to_string(path).unwrap();
            assert!(read(&ours) == read(&theirs), "{name} as {format}");
            assert!(read(&ours).lines().count() > 60);
        }
    }
}

#[test]
fn the_log_of_nbdkit_has_the_requests_that_a_client_sent() {
    require_clients!("nbdkit", "qemu-io");
    let dir = tempdir();
    let log = dir.path().join("nbdkit.log");
    let client = "qemu-io -f raw -c 'write -f 0 4096' -c 'read 8192 512' -c flush \
                  -c 'discard 0 65536' \"$uri\"";
    let mut nbdkit = Command::new("nbdkit");
    nbdkit.args(["-U", "-", "--filter=log", "memory", "1M"]);
    nbdkit.arg(format!("logfile={}", log.display())).args(["--run", client]);
    text(&mut nbdkit);
    let mut report = millrace_lab();
    report.args(["trace", "report", "--json"]).arg(&log);
    report.arg("-o").arg(dir.path().join("page.html"));
    let json: Value = serde_json::from_str(&text(&mut report)).unwrap();
    assert_eq!(json["format"], "nbdkit");
    let ops = &json["ops"];
    assert_eq!((&ops["write"]["bytes"], &ops["write"]["fua"]), (&4_096.into(), &1.into()));
    assert_eq!((&ops["read"]["ios"], &ops["discard"]["bytes"]), (&1.into(), &65_536.into()));
    assert!(ops["flush"]["latency"]["n"].as_u64().unwrap() >= 1, "{ops}");
}

#[test]
fn reports_of_all_formats_are_pages_and_tables() {
    let dir = tempdir();
    for sample in std::fs::read_dir(samples()).unwrap() {
        let sample = sample.unwrap().path();
        let page = dir.path().join("page.html");
        let mut report = millrace_lab();
        report.args(["trace", "report"]).arg(&sample).arg("-o").arg(&page);
        let tables = text(&mut report);
        for part in ["Workload", "Operations", "Sizes", "Devices"] {
            assert!(tables.contains(part), "{}: {part}\n{tables}", sample.display());
        }
        let html = std::fs::read_to_string(&page).unwrap();
        for part in ["id=\"arrivals\"", "id=\"sizes\"", "id=\"strides\"", "id=\"working-set\""] {
            assert!(html.contains(part), "{}: {part}", sample.display());
        }
    }
}

#[test]
fn standard_input_is_trace_and_what_is_read_is_not_written_over() {
    let dir = tempdir();
    let sample = std::fs::read(samples().join("systor.csv.gz")).unwrap();
    let trace = dir.path().join("t.gz");
    std::fs::write(&trace, &sample).unwrap();
    let mut command = millrace_lab();
    command.args(["trace", "convert", "-", "--to-format", "msr", "-o", "-"]);
    command.stdin(std::fs::File::open(&trace).unwrap());
    let rows = String::from_utf8(command.output().unwrap().stdout).unwrap();
    assert_eq!(
        rows.lines().next().unwrap(),
        "116444736000000000,LUN0,0,Read,899056122368,131072,8060"
    );
    for arguments in [
        &["convert", "t.gz", "--to-format", "msr", "-o", "t.gz"][..],
        &["report", "t.gz", "-o", "t.gz"],
    ] {
        let refused = run(millrace_lab().arg("trace").args(arguments).current_dir(dir.path()));
        assert_eq!(refused.status.code(), Some(2));
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(said.contains("t.gz: this file is an input trace"), "{said}");
        assert_eq!(std::fs::read(&trace).unwrap(), sample);
    }
    let refused = run(millrace_lab().args(["trace", "report", "x"]).current_dir(dir.path()));
    assert_eq!(refused.status.code(), Some(2));
}
