//! One recording with joined flushes, dropped events, events without a partner and a damaged file:
//! blkparse, btt and every verb of ours agree on it.

use std::path::Path;
use std::process::{Command, Output};

use millrace_block::DROPPED_EVENTS;
use millrace_block::blktrace::{EventCode, NotifyKind, Record, category, device, encode_number};
use millrace_tests::traces::{agrees_with_btt, blkparse, shown};
use millrace_tests::{millrace, millrace_lab, require_clients, run, tempdir};
use serde_json::Value;

use category::{FLUSH, READ, WRITE};

const BEGIN_NS: u64 = 1_000_000_000;
/// Bytes of the last record that the damaged file lacks.
const CUT_BYTES: usize = 5;

/// The file of one CPU.
struct File {
    cpu: u32,
    sequence: u32,
    bytes: Vec<u8>,
}

impl File {
    fn new(cpu: u32) -> File {
        File { cpu, sequence: 0, bytes: Vec::new() }
    }

    fn put(&mut self, action: u32, time_us: u64, (sector, bytes): (u64, u32), data: &[u8]) {
        self.sequence += 1;
        let record = Record {
            sequence: self.sequence,
            time_ns: BEGIN_NS + time_us * 1_000,
            sector,
            bytes,
            action,
            pid: u32::from(action != NotifyKind::Message.action()),
            device: device(240, 0),
            cpu: self.cpu,
            error: 0,
            pdu_len: data.len() as u16,
        };
        self.bytes.extend(record.encode());
        self.bytes.extend(data);
    }

    /// A whole I/O from one time to another, in microseconds.
    fn io(&mut self, categories: u16, sector: u64, (from_us, to_us): (u64, u64)) {
        for act in [EventCode::Queue, EventCode::GetRequest, EventCode::Insert, EventCode::Issue] {
            self.put(act.with(categories), from_us, (sector, 4096), &[]);
        }
        self.put(EventCode::Complete.with(categories), to_us, (sector, 4096), &[]);
    }

    fn flush(&mut self, act: EventCode, time_us: u64, queued_us: u64) {
        self.put(act.with(FLUSH), time_us, (queued_us, 0), &[]);
    }
}

/// Writes the recording `t`; of the second file the end is missing if that is wanted.
fn write(dir: &Path, is_damaged: bool) {
    let mut first = File::new(0);
    first.io(WRITE, 8, (0, 100));
    // Without a partner: a completion of what began before, and an I/O that is not completed.
    first.put(EventCode::Complete.with(WRITE), 110, (5_000, 4096), &[]);
    first.put(EventCode::Queue.with(READ), 120, (800, 4096), &[]);
    // Of the flushes that wait for the first, the third joins the second.
    first.flush(EventCode::Queue, 200, 200);
    first.flush(EventCode::Issue, 210, 200);
    first.flush(EventCode::Queue, 220, 220);
    first.flush(EventCode::Queue, 230, 230);
    first.flush(EventCode::Complete, 1_200, 200);
    first.put(EventCode::BackMerge.with(FLUSH), 1_200, (230, 0), &encode_number(220));
    first.flush(EventCode::Issue, 1_210, 220);
    first.flush(EventCode::Complete, 2_220, 220);
    // The completion of the fourth is lost among seven dropped events.
    first.flush(EventCode::Queue, 2_300, 2_300);
    first.flush(EventCode::Issue, 2_300, 2_300);
    first.put(NotifyKind::Message.action(), 2_400, (0, 0), format!("{DROPPED_EVENTS}7").as_bytes());
    first.sequence += 7;
    first.flush(EventCode::Queue, 9_000, 9_000);
    first.flush(EventCode::Issue, 9_000, 9_000);
    first.flush(EventCode::Complete, 9_500, 9_000);
    let mut second = File::new(1);
    for number in 0..4 {
        second.io(READ, 80 + 8 * number, (300 + 50 * number, 320 + 50 * number));
    }
    if is_damaged {
        second.bytes.truncate(second.bytes.len() - CUT_BYTES);
    }
    for file in [first, second] {
        std::fs::write(dir.join(format!("t.blktrace.{}", file.cpu)), file.bytes).unwrap();
    }
}

fn ran(command: &mut Command, dir: &Path) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = run(command.current_dir(dir));
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn recording_of_joined_flushes_and_drops_matches_blkparse() {
    require_clients!("blkparse", "btt");
    let dir = tempdir();
    write(dir.path(), false);
    assert_eq!(shown(dir.path(), &["t"]), blkparse(dir.path(), &["t"]));
    agrees_with_btt(dir.path(), &["t"]);
    let (status, report, errors) =
        ran(millrace_lab().args(["trace", "report", "t", "-o", "t.html", "--json"]), dir.path());
    assert_eq!(status, Some(0), "{errors}");
    assert!(errors.contains("7 events are missing: the recorder could not keep up"), "{errors}");
    // The read that began and did not end, and a flush.
    assert!(errors.contains("2 of 11 I/Os have no latency"), "{errors}");
    let report: Value = serde_json::from_str(&report).unwrap();
    let flushes = &report["ops"]["flush"];
    // 1,000, 2,000, 1,990 and 500 us; the one whose completion was lost has none.
    assert_eq!((&flushes["ios"], &flushes["latency"]["n"]), (&5.into(), &4.into()), "{flushes}");
    assert_eq!(flushes["latency"]["avg_ns"], 1_372_500.0, "{flushes}");
    assert_eq!(flushes["latency"]["max_ns"], 2_000_000, "{flushes}");
    let (_, spans, _) = ran(millrace().args(["trace", "spans", "t", "--json"]), dir.path());
    let spans: Value = serde_json::from_str(&spans).unwrap();
    assert_eq!(spans["dropped_events"], 7, "{spans}");
    // The mean latency of reads and writes is the same in both: one pairing.
    assert_eq!(spans["spans"]["Q2C"]["n"], 5, "{spans}");
    assert_eq!(spans["spans"]["Q2C"]["avg_ns"], 36_000.0, "{spans}");
    assert_eq!(report["ops"]["write"]["latency"]["avg_ns"], 100_000.0, "{report}");
    assert_eq!(report["ops"]["read"]["latency"]["avg_ns"], 20_000.0, "{report}");
    let html = std::fs::read_to_string(dir.path().join("t.html")).unwrap();
    assert!(html.contains("7 events were dropped"), "the page says it");
}

#[test]
fn every_verb_names_a_damaged_file_and_exits_with_1() {
    let dir = tempdir();
    write(dir.path(), true);
    // The last record of 20 begins at byte 912.
    let damage = "error: t.blktrace.1: byte 912: the file ends inside a record (43 of 48 bytes); \
                  the 43 bytes from there on are left out\n";
    let verbs: [(Command, &[&str]); 5] = [
        (millrace(), &["trace", "show", "t"]),
        (millrace(), &["trace", "spans", "t"]),
        (millrace_lab(), &["trace", "report", "t", "-o", "t.html"]),
        (millrace_lab(), &["trace", "convert", "t", "--to-format", "iolog3", "-o", "t.log"]),
        (millrace_lab(), &["replay", "t", "--to", "null:size=1g", "--speed", "afap"]),
    ];
    for (mut command, arguments) in verbs {
        let (status, told, errors) = ran(command.args(arguments), dir.path());
        assert_eq!(status, Some(1), "{arguments:?}: {errors}");
        assert!(errors.contains(damage), "{arguments:?}: {errors}");
        let says_dropped = [&told, &errors].iter().any(|text| text.contains("7 events "));
        assert!(says_dropped, "{arguments:?}: {told}{errors}");
    }
    let html = std::fs::read_to_string(dir.path().join("t.html")).unwrap();
    assert!(html.contains("<dt>damaged</dt>"), "the page says it");
    // Programs read it, too.
    let verbs: [&[&str]; 2] = [
        &["trace", "report", "t", "-o", "u.html", "--json"],
        &["replay", "t", "--to", "null:size=1g", "--speed", "afap", "--json"],
    ];
    for arguments in verbs {
        let (status, told, _) = ran(millrace_lab().args(arguments), dir.path());
        let told: Value = serde_json::from_str(&told).unwrap();
        assert_eq!(status, Some(1), "{arguments:?}");
        let said = damage.trim_start_matches("error: ").trim_end();
        assert_eq!(told["damage"], serde_json::json!([said]), "{arguments:?}");
        let notes = told["notes"].as_array().unwrap();
        assert!(notes.iter().any(|note| note.as_str().unwrap().contains("7 events are missing")));
    }
    let log = std::fs::read_to_string(dir.path().join("t.log")).unwrap();
    let count = |op: &str| log.lines().filter(|line| line.contains(op)).count();
    assert_eq!(["read", "write", "sync"].map(count), [5, 1, 5], "{log}");
}

#[test]
fn no_output_goes_to_a_file_of_the_recording_that_is_read() {
    let dir = tempdir();
    write(dir.path(), false);
    std::fs::hard_link(dir.path().join("t.blktrace.1"), dir.path().join("link")).unwrap();
    let before = std::fs::read(dir.path().join("t.blktrace.1")).unwrap();
    for output in ["t.blktrace.0", "t.blktrace.1", "link"] {
        let verbs: [&[&str]; 2] =
            [&["report", "t", "-o", output], &["convert", "t", "--to-format", "msr", "-o", output]];
        for arguments in verbs {
            let mut command = millrace_lab();
            let (status, _, errors) = ran(command.arg("trace").args(arguments), dir.path());
            assert_eq!(status, Some(2), "{arguments:?}: {errors}");
            assert!(errors.contains(&format!("{output}: this file is an input trace")), "{errors}");
        }
    }
    assert_eq!(std::fs::read(dir.path().join("t.blktrace.1")).unwrap(), before);
}

#[test]
fn converted_recording_has_flush_latencies_and_written_bytes() {
    let dir = tempdir();
    write(dir.path(), false);
    let convert = |format: &str, output: &str| {
        let mut command = millrace_lab();
        command.args(["trace", "convert", "t", "--to-format", format, "-o", output]);
        ran(&mut command, dir.path()).2
    };
    let told = convert("msr", "t.csv");
    assert!(told.contains("5 I/Os left out: msr has no flush"), "{told}");
    assert!(told.contains("note: 6 I/Os of blktrace written as msr to t.csv"), "{told}");
    assert_eq!(std::fs::read_to_string(dir.path().join("t.csv")).unwrap().lines().count(), 6);
    convert("blktrace", "u");
    let mut command = millrace_lab();
    command.args(["trace", "report", "u", "-o", "u.html", "--json"]);
    let report: Value = serde_json::from_str(&ran(&mut command, dir.path()).1).unwrap();
    let flushes = &report["ops"]["flush"]["latency"];
    assert_eq!((&flushes["n"], &flushes["avg_ns"]), (&4.into(), &1_372_500.0.into()), "{report}");
}

#[test]
fn an_empty_recording_among_others_is_left_out() {
    let dir = tempdir();
    write(dir.path(), false);
    std::fs::write(dir.path().join("e.blktrace.0"), "").unwrap();
    for verb in ["show", "spans"] {
        let (status, told, errors) = ran(millrace().args(["trace", verb, "t", "e"]), dir.path());
        assert_eq!(status, Some(1), "{errors}");
        let says =
            "error: e.blktrace.0: the trace is empty: nothing was recorded; it is left out\n";
        assert!(errors.contains(says) && told.lines().count() > 10, "{told}{errors}");
    }
    let (status, _, errors) = ran(millrace().args(["trace", "show", "e"]), dir.path());
    assert_eq!(status, Some(2), "{errors}");
}
