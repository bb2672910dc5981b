//! Output of `millrace trace`, compared with blkparse's and btt's for the same files.
//!
//! Owns the commands and the comparisons. Called by tests on the kernel's traces, on synthetic
//! ones, and on those that the daemon and `bench` record.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{millrace, run, tempdir};

/// The directory of traces that a Linux 6.1 recorded with blktrace.
pub fn kernel_traces() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data")
}

/// Lines of a trace with this letter and this letter of its op, by drive.
pub fn count(lines: &str, letter: &str, kind: char) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for line in lines.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if fields.len() > 6 && fields[5] == letter && fields[6].contains(kind) {
            *counts.entry(fields[0].to_owned()).or_default() += 1;
        }
    }
    counts
}

/// Standard output of a command that must succeed.
///
/// # Panics
/// If the command fails.
pub fn text(command: &mut Command) -> String {
    let output = run(command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Output of `trace show`, with numbers for devices, as blkparse has them.
///
/// # Panics
/// If the command fails.
pub fn shown(dir: &Path, names: &[&str]) -> String {
    text(millrace().args(["trace", "show", "--numbers"]).args(names).current_dir(dir))
}

/// Output of `trace spans`.
///
/// # Panics
/// As [`shown`].
pub fn spans(dir: &Path, names: &[&str]) -> String {
    text(millrace().args(["trace", "spans", "-x", "--numbers"]).args(names).current_dir(dir))
}

/// blkparse's output without its lines about input files.
///
/// # Panics
/// As [`shown`].
pub fn blkparse(dir: &Path, names: &[&str]) -> String {
    // Without a locale, so that numbers are not grouped.
    let out = text(Command::new("blkparse").args(names).env("LC_ALL", "C").current_dir(dir));
    out.lines().filter(|line| !line.starts_with("Input file ")).map(|l| format!("{l}\n")).collect()
}

/// btt's report of a trace, by way of blkparse's binary dump, as its users do it.
fn btt(dir: &Path, names: &[&str]) -> String {
    let dump = tempdir();
    let file = dump.path().join("dump");
    text(Command::new("blkparse").args(["-q", "-O", "-d"]).arg(&file).args(names).current_dir(dir));
    // btt leaves files in its current directory.
    text(Command::new("btt").arg("-i").arg(&file).current_dir(dump.path()))
}

/// The first five fields of each line that begins with a span of btt's.
fn span_rows(report: &str) -> Vec<Vec<String>> {
    let is_span = |line: &&str| {
        let name = line.split(' ').next().unwrap_or_default();
        // btt prints messages first, each behind its device.
        name.starts_with(|c: char| c.is_ascii_uppercase())
            && name.as_bytes().get(1) == Some(&b'2')
            && !["I2S", "S2D"].contains(&name)
    };
    let all = report.split("Device Overhead").next().unwrap_or_default();
    let fields = |line: &str| line.split_whitespace().take(5).map(str::to_owned).collect();
    all.lines().filter(is_span).map(fields).collect()
}

/// The rows of one section of btt's report that are of a device or of all of them.
fn section<'a>(report: &'a str, title: &str) -> Vec<&'a str> {
    let rest = report.split(title).nth(1).unwrap_or_default();
    let part = rest.split("\n====").next().unwrap_or_default();
    let row = |line: &&str| line.starts_with(" (") || line.trim_start().starts_with("Overall |  ");
    part.lines().filter(row).collect()
}

/// Compares spans, overhead, merges and seeks with btt's.
///
/// # Panics
/// If they differ.
pub fn agrees_with_btt(dir: &Path, names: &[&str]) {
    let (ours, theirs) = (spans(dir, names), btt(dir, names));
    assert!(!span_rows(&theirs).is_empty(), "{theirs}");
    assert_eq!(span_rows(&ours), span_rows(&theirs), "{names:?}\n{ours}\n{theirs}");
    for title in ["Device Overhead", "Device Merge Information"] {
        for row in section(&theirs, title).iter().filter(|row| row.contains('.')) {
            assert!(ours.contains(*row), "{title}: {row}\n{ours}");
        }
    }
    for (title, ours_title) in
        [("Device Q2Q Seek", "Sectors from Q to Q"), ("Device D2D Seek", "Sectors from D to D")]
    {
        let part = ours.split(ours_title).nth(1).unwrap_or_default();
        for row in section(&theirs, title).iter().filter(|row| row.starts_with(" (")) {
            // Device, number and mean.
            assert!(part.contains(&row[..44]), "{title}: {row}\n{part}");
        }
    }
}
