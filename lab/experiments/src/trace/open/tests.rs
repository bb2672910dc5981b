//! Each format's hand-made trace in `testdata` as the I/Os that its definition says.

mod mutations;

use super::*;
use crate::trace::{TraceIo, TraceSource};
use millrace_block::Op::{self, Discard, Flush, Read, Write, WriteZeroes};
use millrace_block::blktrace::{EventCode, Record, category, device};

type ParsedLine = (u64, &'static str, Op, u64, u64, Option<u64>);

fn path(name: &str) -> TracePath {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    TracePath::Named(folder.join(name))
}

fn ios(source: &mut AnySource) -> Vec<TraceIo> {
    std::iter::from_fn(|| source.next_io().unwrap()).collect()
}

/// Reads a trace to its end; what is wrong with it.
fn problem(source: &mut AnySource) -> String {
    let error = loop {
        match source.next_io() {
            Ok(Some(_)) => {}
            Ok(None) => break None,
            Err(error) => break Some(error.to_string()),
        }
    };
    assert!(source.next_io().unwrap().is_none(), "an error is told once");
    error.unwrap_or_else(|| {
        let [damage] = &source.damage()[..] else { panic!("{:?}", source.damage()) };
        let end = "; everything from there on is left out";
        damage.strip_suffix(end).expect("it says what that means").to_owned()
    })
}

fn check(source: &mut AnySource, format: Format, expected: &[ParsedLine]) -> Vec<TraceIo> {
    assert_eq!(source.format(), format);
    let ios = ios(source);
    let names: Vec<&str> = source.devices().iter().map(String::as_str).collect();
    let of = |io: &TraceIo| {
        let name = names[io.device as usize];
        (io.at_ns, name, io.op, io.offset_bytes, io.len_bytes, io.latency_ns)
    };
    let told: Vec<_> = ios.iter().map(of).collect();
    assert_eq!(told, expected, "{format}");
    ios
}

#[test]
fn rows_of_public_traces_are_what_their_definitions_say() {
    let open = |name: &str| open(&[path(name)], None).unwrap();
    let msr = [
        (0, "usr_0", Read, 7_014_609_920, 24_576, Some(4_128_600)),
        (693_837_100, "usr_0", Read, 7_014_634_496, 4_096, Some(10_000)),
        (1_332_052_600, "usr_1", Write, 1_317_441_536, 8_192, Some(196_300)),
    ];
    check(&mut open("msr.csv"), Format::Msr, &msr);
    let systor = [
        (0, "LUN0", Read, 899_056_122_368, 131_072, Some(806_000)),
        (24_000, "LUN4", Write, 4_096, 8_192, None),
    ];
    let mut source = open("systor.csv.gz");
    check(&mut source, Format::Systor, &systor);
    assert_eq!(source.notes(), ["1 lines without a type of I/O were skipped"]);
    let alibaba = [
        (0, "0", Read, 126_703_661_056, 4_096, None),
        (380_000, "1", Write, 19_496_058_880, 77_824, None),
    ];
    check(&mut open("alibaba.csv"), Format::Alibaba, &alibaba);
    let tencent = [
        (0, "2313", Read, 1_003_027_216 * 512, 8_192, None),
        (1_000_000_000, "1627", Write, 4_096, 4_096, None),
    ];
    check(&mut open("tencent.csv"), Format::Tencent, &tencent);
    let spc = [
        (0, "0", Write, 303_567 * 512, 3_584, None),
        (26_214_000, "1", Read, 55_590 * 512, 3_072, None),
    ];
    check(&mut open("financial.spc"), Format::Spc, &spc);
    let fiu = [
        (0, "6,0", Write, 904_265_560 * 512, 4_096, None),
        (10_000, "8,1", Read, 262_144, 8_192, None),
    ];
    check(&mut open("fiu.blkparse"), Format::Fiu, &fiu);
}

#[test]
fn logs_of_programs_are_what_their_manuals_say() {
    let sda = [
        (0, "/dev/sda", Read, 4_096, 8_192, None),
        (150_000, "/dev/sda", Write, 0, 512, None),
        (350_000, "/dev/sda", Flush, 0, 0, None),
        (350_000, "/dev/sda", Discard, 1 << 20, 65_536, None),
    ];
    check(&mut open(&[path("iolog2")], None).unwrap(), Format::Iolog, &sda);
    check(&mut open(&[path("iolog3")], None).unwrap(), Format::Iolog3, &sda);
    let nbdkit = [
        (0, "disk", Write, 0, 4_096, Some(53_000)),
        (1_449_000, "disk", Read, 0, 512, Some(1_099_000)),
        (1_494_000, "disk", Read, 1_024, 512, Some(1_039_000)),
        (2_676_000, "disk", Flush, 0, 0, Some(16_000)),
    ];
    let mut source = open(&[path("nbdkit.log")], None).unwrap();
    let ios = check(&mut source, Format::Nbdkit, &nbdkit);
    assert_eq!(source.notes(), ["1 requests that move no data (extents, cache) were skipped"]);
    assert_eq!(ios.iter().map(|io| io.fua).collect::<Vec<_>>(), [true, false, false, false]);
    let blkparse = [
        (0, "8,0", Write, 223_490 * 512, 4_096, Some(300_000)),
        (100_000, "8,0", Flush, 0, 0, None),
        (100_000, "8,0", Write, 512_000, 8_192, Some(300_000)),
        (200_000, "8,0", Discard, 2 << 20, 65_536, None),
        (500_000, "8,0", Flush, 0, 0, Some(100_000)),
    ];
    let ios = check(&mut open(&[path("blkparse.txt")], None).unwrap(), Format::Blkparse, &blkparse);
    assert!(ios[2].fua && !ios[0].fua);
}

fn bytes(bytes: Vec<u8>) -> AnySource {
    AnySource::from_reader("t", io::Cursor::new(bytes), None).unwrap()
}

#[test]
fn vscsi_records_of_both_versions_are_what_their_layout_says() {
    let first = |command: u16, block: u64, len: u32, us: u64| {
        let mut record = vec![7, 0, 0, 0];
        record.extend(len.to_le_bytes());
        record.extend([1, 0, 0, 0]);
        record.extend(command.to_le_bytes());
        record.extend(0x0100_u16.to_le_bytes());
        record.extend(block.to_le_bytes());
        record.extend(us.to_le_bytes());
        record
    };
    let trace = [first(0x28, 8, 4_096, 10), first(0x12, 0, 36, 11), first(0x35, 0, 0, 12)];
    let told = [(0, "vscsi", Read, 4_096, 4_096, None), (2_000, "vscsi", Flush, 0, 0, None)];
    let mut source = bytes(trace.concat());
    check(&mut source, Format::Vscsi, &told);
    assert!(source.notes()[0].starts_with("1 SCSI commands that neither"), "{:?}", source.notes());
    let second = |command: u16, block: u64, us: u64, answer_us: u64| {
        let mut record = command.to_le_bytes().to_vec();
        record.extend(0x0200_u16.to_le_bytes());
        record.extend([0; 4]);
        record.extend(512_u32.to_le_bytes());
        record.extend([0; 4]);
        record.extend([block, us, answer_us].into_iter().flat_map(u64::to_le_bytes));
        record
    };
    let trace = [second(0x8a, 1, 10, 300), second(0x88, 2, 9, 400)];
    let told = [
        (0, "vscsi", Read, 1_024, 512, Some(400_000)),
        (1_000, "vscsi", Write, 512, 512, Some(300_000)),
    ];
    check(&mut bytes(trace.concat()), Format::Vscsi, &told);
    let mut cut = bytes([trace.concat(), vec![0; 39]].concat());
    let error = problem(&mut cut);
    assert_eq!(error, "t: byte 80: the trace ends inside a record (39 of 40 bytes)");
}

#[test]
fn a_transaction_log_is_read_with_and_without_its_data() {
    let request = |magic: u32, kind: u32, from: u64, len: u32| {
        let mut record = magic.to_be_bytes().to_vec();
        record.extend(kind.to_be_bytes());
        record.extend([9; 8]);
        record.extend(from.to_be_bytes());
        record.extend(len.to_be_bytes());
        record
    };
    let io = |kind, from, len| request(0x2560_9513, kind, from, len);
    let reply = [&0x6744_6698_u32.to_be_bytes()[..], &[0; 12]].concat();
    let chunk = [&0x668e_33ef_u32.to_be_bytes()[..], &[0; 16]].concat();
    let data = request(0x2560_9514, 1, 0x4a93_ba39_a54f_31b6, 1);
    let log = [
        io(1, 0, 512),
        reply.clone(),
        data,
        io(1 << 16 | 1, 4_096, 1_000),
        vec![0x25; 1_000],
        io(0, 512, 512),
        chunk,
        io(3, 0, 0),
        io(6, 8_192, 512),
        io(2, 0, 0),
    ];
    let told = [
        (0, "nbd", Write, 0, 512, None),
        (0, "nbd", Write, 4_096, 1_000, None),
        (0, "nbd", Read, 512, 512, None),
        (0, "nbd", Flush, 0, 0, None),
        (0, "nbd", WriteZeroes, 8_192, 512, None),
    ];
    let ios = check(&mut bytes(log.concat()), Format::Trlog, &told);
    assert!(ios[1].fua && !ios[0].fua);
}

#[test]
fn a_recording_of_blktrace_is_read_as_a_set_and_as_a_stream() {
    let record = |cpu, time_ns, act: EventCode, more: u16| Record {
        cpu,
        time_ns,
        sector: 8,
        bytes: 4_096,
        device: device(8, 16),
        action: act.with(more),
        ..Record::default()
    };
    let first = record(0, 100, EventCode::Queue, category::WRITE | category::FUA).encode();
    let second = record(1, 400, EventCode::Complete, category::WRITE).encode();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("sdb.blktrace.1"), second).unwrap();
    std::fs::write(folder.path().join("sdb.blktrace.0"), first).unwrap();
    let told = [(0, "8,16", Write, 4_096, 4_096, Some(300))];
    for name in ["sdb", "sdb.blktrace.0"] {
        let path = TracePath::Named(folder.path().join(name));
        let ios = check(&mut open(&[path], None).unwrap(), Format::Blktrace, &told);
        assert!(ios[0].fua);
    }
    check(&mut bytes([second, first].concat()), Format::Blktrace, &told);
}

#[test]
fn errors_say_file_line_and_what_is_expected() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.csv");
    let path = [TracePath::Named(file.clone())];
    let fails = |text: &str, format: Option<Format>| {
        std::fs::write(&file, text).unwrap();
        let error = match open(&path, format) {
            Err(error) => error.to_string(),
            Ok(mut source) => problem(&mut source),
        };
        error.replace(&*file.to_string_lossy(), "FILE")
    };
    let good = "0,R,126703661056,4096,1577808000000046\n";
    let example = "example of a line: 0,R,126703661056,4096,1577808000000046";
    let bad = fails(good, Some(Format::Msr));
    assert!(bad.starts_with("FILE: line 1: 5 fields; at least 7 are expected; "), "{bad}");
    let late = fails(&[&good.repeat(20), "0,R,1,\u{1b}[2J,7\n"].concat(), None);
    let problem = "length is \"\\u{1b}[2J\"; a whole number is expected";
    assert_eq!(late, format!("FILE: line 21: {problem}; {example}"));
    let cut = fails(&["0,R,1,2,3\n", &"9".repeat(70_000)].concat(), None);
    assert!(cut.starts_with("FILE: line 2: a line has more than 65536 bytes"), "{cut}");
    assert_eq!(fails("", None), "FILE: the trace is empty");
    let unknown = fails("once upon a time\nthere was\n", None);
    assert!(unknown.contains("(\"once upon a time\"); tried blktrace, nbd-trlog, "), "{unknown}");
    let missing = [TracePath::Named(folder.path().join("none"))];
    let missing = open(&missing, None).err().unwrap().to_string();
    assert!(missing.contains("none: no such trace; give a file, or the name NAME"), "{missing}");
    let both = [TracePath::Stdin, path[0].clone()];
    assert!(matches!(open(&both, None), Err(OpenError::Blktrace(TraceError::PipeAndFiles))));
}

#[test]
fn damaged_file_of_set_ends_there_and_others_are_read_on() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        TracePath::Named(path)
    };
    let first = write("a", "1,R,0,512,10\n2,R,0,512,30\nbad\n3,R,0,512,50\n");
    let other = write("b", "1,R,512,512,20\n2,R,512,512,60\n");
    let mut source = open(&[first, other], Some(Format::Alibaba)).unwrap();
    assert!(source.damage().is_empty());
    let times: Vec<u64> = ios(&mut source).iter().map(|io| io.at_ns).collect();
    assert_eq!(times, [0, 10_000, 20_000, 50_000]);
    let problem = problem(&mut source);
    assert!(
        problem.contains("/a: line 3: 1 fields; at least 5 are expected; example"),
        "{problem}"
    );
}

#[test]
fn the_last_line_of_blkparse_is_no_event() {
    let lines = "8,0 0 1 0.000000000 1 Q R 8 + 8 [x]\n8,0 0 2 0.000001000 1 C R 8 + 8 [0]\n\n\
                 discarded traces containing low-level device driver specific data \
                 (only available in binary output)\n";
    let mut source = AnySource::from_reader("t", io::Cursor::new(lines), None).unwrap();
    assert_eq!((ios(&mut source).len(), source.damage().len()), (1, 0));
}

#[test]
fn completions_alone_are_an_error() {
    let lines = "8,0 0 1 0.000000000 1 C R 8 + 8 [0]\n".repeat(3);
    let error = problem(&mut AnySource::from_reader("t", io::Cursor::new(lines), None).unwrap());
    assert!(error.starts_with("t: the trace has completions (C) only; record queue"), "{error}");
    let of = |time_ns| Record { time_ns, action: EventCode::Complete.with(1), ..Record::default() };
    let error = problem(&mut bytes([of(1).encode(), of(2).encode()].concat()));
    assert!(error.contains("the trace has completions (C) only"), "{error}");
}

#[test]
fn files_named_together_are_merged_in_one_format() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        TracePath::Named(path)
    };
    let first = write("a", "fio version 3 iolog\n1 a add\n2 a read 0 512\n9 a sync 0 0\n");
    let second = write("b", "fio version 3 iolog\n5 b trim 512 1024\n");
    let mut source = open(&[first.clone(), second], None).unwrap();
    let told: Vec<_> = ios(&mut source).iter().map(|io| (io.at_ns, io.device, io.op)).collect();
    assert_eq!(told, [(0, 0, Read), (3_000, 1, Discard), (7_000, 0, Flush)]);
    assert_eq!(source.devices(), ["a", "b"]);
    let other = write("c", "fio version 2 iolog\nc wait 10\nc write 0 512\n");
    let error = open(&[first.clone(), other], None).err().unwrap().to_string();
    assert!(error.contains("a is iolog3 and ") && error.contains("c is iolog"), "{error}");
    std::fs::write(folder.path().join("sdb.blktrace.0"), Record::default().encode()).unwrap();
    let recording = TracePath::Named(folder.path().join("sdb"));
    for both in [[recording.clone(), first.clone()], [first, recording]] {
        let error = open(&both, None).err().unwrap().to_string();
        assert!(error.contains("sdb is blktrace and ") && error.contains("a is iolog3"), "{error}");
    }
}

#[test]
fn times_that_step_back_are_brought_into_order_within_window() {
    let line = |us: u64| format!("0,R,0,512,{us}\n");
    let text: String = (0..40_000).map(|number: u64| line(number ^ 0xff)).collect();
    let mut source = bytes(text.into_bytes());
    let ios = ios(&mut source);
    assert_eq!(ios.len(), 40_000);
    assert!(ios.windows(2).all(|pair| pair[0].at_ns < pair[1].at_ns));
    assert!(source.notes().is_empty());
    let text: String = (0..40_000).map(|number: u64| line(50_000 - number)).collect();
    let mut source = bytes(text.into_bytes());
    assert!(std::iter::from_fn(|| source.next_io().unwrap()).is_sorted_by_key(|io| io.at_ns));
    let notes = source.notes().join("");
    assert!(
        notes.ends_with("out of order that they got the time of the I/O before them"),
        "{notes}"
    );
}

#[test]
fn open_pipe_is_detected_once_one_format_fits_and_time_passed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let writer = {
        let path = path.clone();
        std::thread::spawn(move || {
            let mut pipe = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            let lines: String = (0..20u64)
                .map(|at| {
                    let time = 128_166_372_003_061_629 + at * 1_000_000;
                    format!("{time},usr,0,Read,7014609920,24576,41286\n")
                })
                .collect();
            std::io::Write::write_all(&mut pipe, lines.as_bytes()).unwrap();
            // Open until the test has what it waits for.
            let _ = held.recv();
        })
    };
    let (said, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut source = open(&[TracePath::Named(path)], None).unwrap();
        for _ in 0..8 {
            let io = source.next_io().unwrap().unwrap();
            said.send((source.format(), io.at_ns)).unwrap();
        }
    });
    let wait = std::time::Duration::from_secs(20);
    for at in 0..8u64 {
        assert_eq!(told.recv_timeout(wait).unwrap(), (Format::Msr, at * 100_000_000));
    }
    drop(hold);
    writer.join().unwrap();
}

#[test]
fn the_line_that_is_broken_is_named_among_the_first_too() {
    let good = "128166372003061629,usr,0,Read,7014609920,24576,41286\n";
    let text = format!("{good}{good}128166372003061630,usr,0,Read,70146x,24576,41286\n{good}");
    let mut source = AnySource::from_reader("t", std::io::Cursor::new(text), None).unwrap();
    let error = problem(&mut source);
    assert!(error.starts_with("t: line 3: Offset"), "{error}");
}

#[test]
fn all_ios_before_a_line_that_is_broken_are_told() {
    let good = "128166372003061629,usr,0,Read,4096,512,0\n";
    for count in [1, 2, 7] {
        // The format is not to be found by lines that are broken.
        let text = io::Cursor::new(format!("{}x\n", good.repeat(count)));
        let mut source = AnySource::from_reader("t", text, Some(Format::Msr)).unwrap();
        let told = (0..).take_while(|_| source.next_io().is_ok_and(|io| io.is_some())).count();
        assert_eq!(told, count);
    }
}

#[test]
fn comments_blank_lines_and_the_begin_mark_precede_a_head() {
    let good = "128166372003061629,usr,0,Read,4096,512,0\n";
    let head =
        "\u{feff}# of a disk\n\n#\nTimestamp,Hostname,DiskNumber,Type,Offset,Size,Response\n";
    let open = |text: String| AnySource::from_reader("t", io::Cursor::new(text), None).unwrap();
    let mut source = open(format!("{head}{good}# and on\n{good}"));
    assert_eq!((source.format(), ios(&mut source).len()), (Format::Msr, 2));
    let mut source = open(format!("{head}{}x\n", good.repeat(20)));
    let error = problem(&mut source);
    assert!(error.starts_with("t: line 25: "), "{error}");
    // Numbers are in no head: a first line that is damaged is not passed over.
    let damaged = format!("x{}{good}", &good[1..]);
    let mut source =
        AnySource::from_reader("t", io::Cursor::new(damaged), Some(Format::Msr)).unwrap();
    let error = source.next_io().expect_err("its time is none");
    assert!(error.to_string().starts_with("t: line 1: "), "{error}");
}

#[test]
fn a_file_that_something_else_packed_is_told_what_unpacks_it() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut file, b"\xfd7zXZ\0\0\x04\xe6\xd6\n").unwrap();
    let error = open(&[file.path().into()], None).err().unwrap().to_string();
    assert!(error.contains("compressed by xz") && error.contains(": xz -dc /"), "{error}");
}
