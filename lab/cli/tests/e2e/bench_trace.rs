//! Traces that `millrace-lab bench --trace` records, as blkparse and btt read them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use millrace_tests::traces::{agrees_with_btt, blkparse, count, shown, text};
use millrace_tests::{millrace, millrace_lab, require_clients, run, tempdir};

#[test]
fn bench_recordings_match_blkparse_and_btt_with_every_io() {
    require_clients!("blkparse", "btt");
    let stripe = "--drive ram:size=16m --drive ram:size=16m --chunk 4k --bs 4k";
    let cases = [
        ("one", "--drive ram:size=16m --stack mq --bs 4k", 1),
        ("sq", "--drive ram:size=16m --stack sq --bs 4k", 1),
        ("raw", "--drive ram:size=16m --stack raw --bs 4k --stamp io", 1),
        ("inline", &format!("{stripe} --serving inline --jobs 2"), 2),
        ("perdrive", &format!("{stripe} --serving per-drive --plug-low 1 --iodepth 64"), 2),
        ("pervolume", &format!("{stripe} --serving per-volume"), 2),
    ];
    for (name, arguments, drives) in cases {
        let dir = tempdir();
        let arguments = format!("bench {arguments} --rw randrw --ios 2000 --trace {name}");
        text_of_bench(millrace_lab().args(arguments.split(' ')).current_dir(dir.path()));
        let ours = shown(dir.path(), &[name]);
        assert!(ours == blkparse(dir.path(), &[name]), "{name} differs");
        agrees_with_btt(dir.path(), &[name]);
        let jobs = if name == "inline" { 2 } else { 1 };
        let queued =
            count(&ours, "Q", 'R').into_values().chain(count(&ours, "Q", 'W').into_values());
        assert_eq!(queued.sum::<usize>(), 2000 * jobs, "{name}");
        for letter in ["D", "C"] {
            let (read, written) = (count(&ours, letter, 'R'), count(&ours, letter, 'W'));
            assert_eq!(read.len(), drives, "{name}: {read:?}");
            let merged =
                count(&ours, "M", 'R').into_values().chain(count(&ours, "M", 'W').into_values());
            let merged = merged.sum::<usize>() + ours.matches("  F ").count();
            let all = read.into_values().chain(written.into_values()).sum::<usize>();
            assert!(all <= 2000 * jobs && all + merged >= 2000 * jobs, "{name} {letter}: {all}");
        }
    }
}

#[test]
fn nothing_of_an_earlier_recording_of_the_name_is_left() {
    let dir = tempdir();
    for cpu in 0..200 {
        std::fs::write(dir.path().join(format!("t.blktrace.{cpu}")), "old").unwrap();
    }
    let arguments = "bench --drive ram:size=16m --bs 4k --ios 1000 --trace t";
    text_of_bench(millrace_lab().args(arguments.split(' ')).current_dir(dir.path()));
    assert_eq!(shown(dir.path(), &["t"]).matches("  Q  ").count(), 1000);
    assert!(!dir.path().join("t.blktrace.199").exists());
}

/// Rows go to standard output, notes about the trace to standard error.
fn text_of_bench(command: &mut Command) {
    let output = run(command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.contains("events recorded;"), "{errors}");
}

/// The fields of the lines with these letters.
fn lines_of<'a>(shown: &'a str, letters: &str) -> Vec<Vec<&'a str>> {
    let fields = shown.lines().map(|line| line.split_whitespace().collect::<Vec<&str>>());
    fields.filter(|fields| fields.len() > 6 && fields[5] == letters).collect()
}

/// Records a run of `bench` and returns the trace as text, with driver data.
fn benched(dir: &Path, arguments: &str) -> String {
    let arguments = format!("bench {arguments} --trace t");
    text_of_bench(millrace_lab().args(arguments.split(' ')).current_dir(dir));
    text(millrace().args(["trace", "show", "-q", "--driver-data", "t"]).current_dir(dir))
}

#[test]
fn unplug_is_shown_as_by_blkparse_and_ut_where_it_waits() {
    require_clients!("blkparse", "btt");
    // Of two drives with 4 tags each, who finds none unplugs and waits.
    let drives = "--drive ram:size=16m,depth=4 --drive ram:size=16m,depth=4 --chunk 4k";
    let dir = tempdir();
    let arguments = format!("{drives} --bs 4k --serving per-volume --rw randwrite --ios 500");
    let ours = benched(dir.path(), &arguments);
    let (waiting, explicit) = (lines_of(&ours, "UT"), lines_of(&ours, "U"));
    assert!(!waiting.is_empty() && !explicit.is_empty(), "{ours}");
    let count = |line: &Vec<&str>| line[8].parse::<usize>().unwrap();
    let unplugged: usize = waiting.iter().chain(&explicit).map(count).sum();
    assert_eq!(unplugged, lines_of(&ours, "D").len(), "{ours}");
    assert!(shown(dir.path(), &["t"]) == blkparse(dir.path(), &["t"]), "{ours}");
    agrees_with_btt(dir.path(), &["t"]);
}

#[test]
fn driver_messages_are_recorded_and_do_not_disturb_blkparse() {
    require_clients!("blkparse", "btt");
    for (name, arguments, words) in [
        ("model", "--drive model:preset=950pro --bs 4k", "took"),
        ("file", "--drive file:path=f,size=16m --bs 4k --rw randwrite", "= 4096"),
        ("fault", "--drive fault:drive=(ram:size=16m),latency=1us --bs 4k", "delay 1000 ns"),
    ] {
        let dir = tempdir();
        let ours = benched(dir.path(), &format!("{arguments} --iodepth 8 --ios 200"));
        let said: Vec<&str> = ours.lines().filter(|line| line.contains("  d ")).collect();
        assert_eq!(said.len(), lines_of(&ours, "D").len(), "{name}: {ours}");
        assert!(said.iter().all(|line| line.contains(words)), "{name}: {said:?}");
        assert!(shown(dir.path(), &["t"]) == blkparse(dir.path(), &["t"]), "{name} differs");
        agrees_with_btt(dir.path(), &["t"]);
    }
}

#[test]
fn with_exact_stamps_each_event_of_an_io_has_its_own_time() {
    require_clients!("blkparse", "btt");
    let dir = tempdir();
    let arguments = "--drive ram:size=1g --bs 4k --rw read --stack raw --ios 500";
    let ours = benched(dir.path(), &format!("{arguments} --trace-stamp event"));
    let mut ios: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    for letters in ["Q", "G", "I", "D", "C"] {
        for fields in lines_of(&ours, letters) {
            ios.entry(fields[7]).or_default().push((letters, fields[3]));
        }
    }
    assert_eq!(ios.len(), 500);
    for (sector, steps) in &ios {
        assert_eq!(steps.len(), 5, "{sector}: {steps:?}");
        // Of one width: they compare as they are.
        assert!(steps.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{sector}: {steps:?}");
        assert!(steps[0].1 < steps[2].1 && steps[2].1 < steps[4].1, "{sector}: {steps:?}");
    }
    let mut issued: Vec<_> = ios.values().map(|steps| steps[3].1).collect();
    issued.sort_unstable();
    issued.dedup();
    assert!(issued.len() > 450, "{}", issued.len());
    assert!(shown(dir.path(), &["t"]) == blkparse(dir.path(), &["t"]));
    agrees_with_btt(dir.path(), &["t"]);
}
