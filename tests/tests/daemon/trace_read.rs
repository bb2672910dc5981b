//! `millrace trace` compared with blkparse and btt, line by line and digit by digit, and its errors
//! for bad files.
//!
//! The traces are files that Linux 6.1 recorded with blktrace (`tests/data`: an NVMe drive with
//! mq-deadline, a loop device, a device-mapper stripe on that drive), and worse synthetic ones.

use std::path::Path;
use std::process::{Command, Stdio};

use millrace_block::blktrace::RECORD_BYTES;
use millrace_tests::traces::{agrees_with_btt, blkparse, kernel_traces, shown, text};
use millrace_tests::{millrace, require_clients, run, synthetic_trace, tempdir};

const KERNELS: [&[&str]; 4] = [&["nvme"], &["loop"], &["dm-0", "nvme0n1"], &["nvme0n1"]];

#[test]
fn traces_of_the_kernel_are_shown_as_by_blkparse() {
    require_clients!("blkparse");
    for names in KERNELS {
        assert!(
            shown(&kernel_traces(), names) == blkparse(&kernel_traces(), names),
            "{names:?} differs"
        );
    }
}

#[test]
fn spans_of_the_kernels_traces_are_those_of_btt() {
    require_clients!("blkparse", "btt");
    KERNELS.iter().for_each(|names| agrees_with_btt(&kernel_traces(), names));
}

#[test]
fn synthetic_traces_match_blkparse_and_btt() {
    require_clients!("blkparse", "btt");
    let dir = tempdir();
    for seed in 0..9 {
        let name = format!("s{seed}");
        synthetic_trace::write(dir.path(), &name, 40 << seed.min(6), seed);
        let (ours, theirs) = (shown(dir.path(), &[&name]), blkparse(dir.path(), &[&name]));
        let lines = ours.lines().zip(theirs.lines()).enumerate();
        for (number, (ours, theirs)) in lines {
            assert_eq!(ours, theirs, "seed {seed}, line {}", number + 1);
        }
        assert_eq!(ours.lines().count(), theirs.lines().count());
        agrees_with_btt(dir.path(), &[&name]);
    }
}

#[test]
fn json_has_the_spans_by_name() {
    let mut command = millrace();
    command.args(["trace", "spans", "nvme", "--json", "--per", "op"]).current_dir(kernel_traces());
    let json: serde_json::Value = serde_json::from_str(&text(&mut command)).unwrap();
    let q2c = &json["spans"]["Q2C"];
    for key in ["min_ns", "avg_ns", "max_ns", "n", "p50_ns", "p99_ns", "p999_ns"] {
        assert!(q2c[key].is_number(), "{key}: {q2c}");
    }
    let n = |op: &str| json["per_op"][op]["spans"]["Q2C"]["n"].as_u64().unwrap();
    assert_eq!(n("read") + n("write") + n("discard"), q2c["n"].as_u64().unwrap());
}

/// The error message of a verb for a trace that it cannot read.
fn complaint(mut program: Command, dir: &Path, args: &[&str]) -> String {
    let output = run(program.arg("trace").args(args).current_dir(dir));
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn bad_traces_are_refused_with_file_and_byte() {
    let dir = tempdir();
    synthetic_trace::write(dir.path(), "whole", 50, 1);
    let whole = std::fs::read(dir.path().join("whole.blktrace.0")).unwrap();
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(dir.path().join(format!("{name}.blktrace.0")), bytes).unwrap();
    };
    let changed = |at: usize, bytes: &[u8]| {
        let mut changed = whole.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        changed
    };
    write("foreign", &changed(0, &0x6561_7407_u32.to_be_bytes()));
    write("new", &changed(0, &0x6561_7408_u32.to_le_bytes()));
    write("junk", &[b'x'; 4096]);
    write("empty", &[]);
    for (name, words) in [
        ("foreign", "byte 0: the record has the opposite byte order"),
        ("new", "byte 0: the record has version 8"),
        ("junk", "byte 0: not a blktrace record"),
        ("empty", "the trace is empty"),
        ("missing", "no such trace; a trace NAME is the files NAME.blktrace.0"),
    ] {
        for verb in ["show", "spans"] {
            let said = complaint(millrace(), dir.path(), &[verb, name]);
            assert!(said.contains(&format!("{name}.blktrace.0: ")), "{said}");
            assert!(said.contains(words), "{name}: {said}");
        }
    }
}

#[test]
fn what_precedes_broken_record_is_shown_with_its_file_and_byte() {
    let dir = tempdir();
    let whole = std::fs::read(kernel_traces().join("loop.blktrace.0")).unwrap();
    std::fs::write(dir.path().join("cut.blktrace.0"), &whole[..whole.len() - 1]).unwrap();
    let mut other = whole.clone();
    let last = other.len() - RECORD_BYTES;
    other[last + 40..last + 44].copy_from_slice(&9_u32.to_le_bytes());
    std::fs::write(dir.path().join("other.blktrace.0"), &other).unwrap();
    for (name, words) in [
        ("cut", "the file ends inside a record"),
        ("other", "a record of CPU 9 in the file of CPU 0"),
    ] {
        let output = run(millrace().args(["trace", "show", name]).current_dir(dir.path()));
        let lines = String::from_utf8_lossy(&output.stdout).lines().count();
        assert!(lines > 90 && output.status.code() == Some(1), "{lines} lines, {}", output.status);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.starts_with(&format!("error: {name}.blktrace.0: byte ")), "{said}");
        assert!(said.contains(words) && said.contains("from there on are left out"), "{said}");
    }
}

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    let dir = tempdir();
    synthetic_trace::write(dir.path(), "long", 20_000, 3);
    let mut command = millrace();
    command.args(["trace", "show", "long"]).current_dir(dir.path());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", output.status);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
