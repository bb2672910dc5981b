//! The reader's order of events, its errors, and that no event is lost.

use super::*;
use millrace_block::blktrace::{EventCode, NotifyKind};

fn bytes(cpu: u32, times: &[u64]) -> Vec<u8> {
    let record = |(sequence, time_ns): (u32, &u64)| Record {
        cpu,
        time_ns: *time_ns,
        sequence,
        action: EventCode::Queue.with(category::WRITE),
        ..Record::default()
    };
    (1..).zip(times).flat_map(|item| record(item).encode()).collect()
}

/// Reads one trace from the inputs of CPUs 0, 1 and so on.
fn from_inputs(inputs: Vec<&[u8]>) -> Reader<&[u8]> {
    let file =
        |(cpu, input)| (0, CpuFile::new(format!("input.blktrace.{cpu}").into(), cpu, input), None);
    Reader::of((0..).zip(inputs).map(file).collect())
}

fn order(inputs: &[Vec<u8>]) -> Vec<(u32, u64)> {
    let mut reader = from_inputs(inputs.iter().map(|bytes| &bytes[..]).collect());
    let mut order = Vec::new();
    while let Some(entry) = reader.read().unwrap() {
        order.push((entry.cpu, entry.record.time_ns));
    }
    order
}

#[test]
fn files_are_merged_by_time_from_the_first_event_on() {
    let inputs = [bytes(0, &[110, 140]), bytes(1, &[100, 150]), bytes(2, &[])];
    assert_eq!(order(&inputs), [(1, 0), (0, 10), (0, 40), (1, 50)]);
}

#[test]
fn times_that_step_back_stay_in_the_order_of_their_file() {
    let inputs = [bytes(0, &[100, 140, 120, 130]), bytes(1, &[105, 125])];
    assert_eq!(order(&inputs), [(0, 0), (1, 5), (1, 25), (0, 40), (0, 20), (0, 30)]);
}

#[test]
fn a_file_goes_on_among_equal_times() {
    let inputs = [bytes(0, &[100, 110, 110]), bytes(1, &[110, 110])];
    assert_eq!(order(&inputs), [(0, 0), (0, 10), (0, 10), (1, 10), (1, 10)]);
}

#[test]
fn many_more_events_than_a_batch_come_through() {
    let times: Vec<u64> = (0..5_000).collect();
    let inputs = [bytes(0, &times), bytes(1, &times)];
    assert_eq!(order(&inputs).len(), 10_000);
}

#[test]
fn a_damaged_file_ends_there_and_the_others_are_read_on() {
    let mut broken = bytes(0, &[1, 2, 3]);
    broken.extend([0; 48]);
    broken.extend(bytes(0, &[6]));
    let dir = tempfile::tempdir().unwrap();
    let cut = &bytes(2, &[2, 7])[..95];
    let whole = bytes(1, &[2, 4, 5]);
    for (cpu, bytes) in [&broken[..], &whole[..], cut].into_iter().enumerate() {
        std::fs::write(dir.path().join(format!("t.blktrace.{cpu}")), bytes).unwrap();
    }
    let mut reader = Reader::open(&[TraceName::new("t", Some(dir.path()))]).unwrap();
    let mut cpus = Vec::new();
    while let Some(entry) = reader.read().unwrap() {
        cpus.push((entry.cpu, entry.record.time_ns));
    }
    cpus.sort_unstable();
    assert_eq!(cpus, [(0, 0), (0, 1), (0, 2), (1, 1), (1, 3), (1, 4), (2, 1)]);
    let mut told: Vec<String> = reader.damage().iter().map(ToString::to_string).collect();
    told.sort();
    let file = |cpu| dir.path().join(format!("t.blktrace.{cpu}")).display().to_string();
    assert!(
        told[0].starts_with(&format!("{}: byte 144: not a blktrace record", file(0))),
        "{told:?}"
    );
    assert!(told[0].contains("convert it with `millrace-lab trace convert`"), "{told:?}");
    assert!(told[0].ends_with("; the 96 bytes from there on are left out"), "{told:?}");
    let cut =
        "the file ends inside a record (47 of 48 bytes); the 47 bytes from there on are left out";
    assert_eq!(told[1], format!("{}: byte 48: {cut}", file(2)));
}

#[test]
fn where_nothing_can_be_read_the_damage_is_an_error() {
    let mut reader = from_inputs(vec![&[0; 48][..]]);
    let error = reader.read().unwrap_err().to_string();
    assert!(error.starts_with("input.blktrace.0: byte 0: not a blktrace record"), "{error}");
    assert!(reader.read().unwrap().is_none(), "an error is told once");
}

#[test]
fn names_are_known_a_batch_ahead_and_messages_have_their_place() {
    let note = |note: NotifyKind, pid, time_ns, data: &[u8]| {
        let pdu_len = u16::try_from(data.len()).unwrap();
        let record = Record { action: note.action(), pid, time_ns, pdu_len, ..Record::default() };
        [&record.encode()[..], data].concat()
    };
    let input = [
        bytes(0, &[5]),
        note(NotifyKind::Message, 0, 6, b"hello"),
        note(NotifyKind::Process, 9, 7, b"fio\0"),
        note(NotifyKind::Timestamp, 0, 8, &[0; 8]),
    ];
    let input = input.concat();
    let mut reader = from_inputs(vec![&input[..]]);
    assert_eq!(reader.names().of(9), b"fio");
    assert_eq!(reader.read().unwrap().unwrap().record.act(), Some(EventCode::Queue));
    assert_eq!(reader.read().unwrap().unwrap().data, b"hello");
    assert_eq!(reader.read().unwrap(), None);
}

#[test]
fn name_may_be_one_of_many_files_and_a_missing_one_is_explained() {
    assert_eq!(TraceName::new("a/b.blktrace.12", None), TraceName::new("a/b", None));
    let dir = Path::new("/x");
    assert_eq!(TraceName::new("b", Some(dir)).file(3), Path::new("/x/b.blktrace.3"));
    let error = Reader::open(&[TraceName::new("nothing", Some(dir))]).err().unwrap().to_string();
    assert!(error.starts_with("/x/nothing.blktrace.0: no such trace; "), "{error}");
    let other = tempfile::NamedTempFile::new().unwrap();
    let name = other.path().to_str().unwrap();
    let error = Reader::open(&[TraceName::new(name, None)]).err().unwrap().to_string();
    assert!(error.starts_with(&format!("{name}: no recording of blktrace, ")), "{error}");
}

#[test]
fn a_recording_of_which_each_file_is_named_is_read_once() {
    let dir = tempfile::tempdir().unwrap();
    for (cpu, times) in [(0, [5, 7]), (1, [6, 8])] {
        let file = dir.path().join(format!("sda.blktrace.{cpu}"));
        std::fs::write(file, bytes(cpu, &times)).unwrap();
    }
    let names = ["sda.blktrace.0", "sda.blktrace.1", "sda"];
    let names = names.map(|name| TraceName::new(name, Some(dir.path())));
    let mut reader = Reader::open(&names).unwrap();
    assert_eq!(std::iter::from_fn(|| reader.read().unwrap()).count(), 4);
}

fn pipe_order(records: &[Vec<u8>]) -> (Vec<(u32, u64)>, Vec<String>) {
    let bytes = records.concat();
    let mut reader = Reader::from_stream("standard input", &bytes[..]);
    let mut order = Vec::new();
    while let Some(entry) = reader.read().unwrap() {
        order.push((entry.cpu, entry.record.time_ns));
    }
    (order, reader.notes())
}

#[test]
fn lumps_of_a_pipe_are_sorted_and_late_lines_are_counted() {
    let lumps = [bytes(1, &[110, 140]), bytes(0, &[100, 120]), bytes(1, &[150])];
    let told = [(0, 0), (1, 10), (0, 20), (1, 40), (1, 50)];
    assert_eq!(pipe_order(&lumps), (told.to_vec(), Vec::new()));
    // The first event is emitted once another is two seconds later; then an earlier one comes.
    let lumps = [bytes(1, &[100, 3_000_000_100]), bytes(0, &[90, 110])];
    let (order, notes) = pipe_order(&lumps);
    assert_eq!(order.iter().map(|entry| entry.0).collect::<Vec<_>>(), [1, 0, 0, 1]);
    assert!(notes.join("").contains("1 events arrived too late"), "{notes:?}");
}

#[test]
fn pipe_keeps_a_burst_of_megabytes_and_passes_on_the_rest() {
    // Three windows of events at nearly the same time, then an event that is earlier than all of
    // them.
    let long = |sequence: u32| {
        let action = NotifyKind::Message.action();
        let record =
            Record { action, sequence, time_ns: 1_000, pdu_len: 1_000, ..Record::default() };
        [&record.encode()[..], &[b'x'; 1_000]].concat()
    };
    let mut input: Vec<u8> = (0..100_000).flat_map(long).collect();
    input.extend(bytes(0, &[1]));
    let mut reader = Reader::from_stream("standard input", &input[..]);
    assert!(reader.read().unwrap().is_some());
    let read = reader.pipe.as_ref().unwrap().file().offset();
    assert!((16 << 20..48 << 20).contains(&read), "{read}");
    let rest = std::iter::from_fn(|| reader.read().unwrap()).count();
    assert_eq!((rest, reader.notes().len()), (100_000, 1));
}

#[test]
fn a_pipe_without_anything_is_an_error() {
    let mut reader = Reader::from_stream("standard input", &[][..]);
    let error = reader.read().expect_err("nothing came").to_string();
    assert!(error.starts_with("standard input: the trace is empty"), "{error}");
    assert!(reader.read().unwrap().is_none(), "told once");
    let names = ["-", "sda"].map(|name| TraceName::new(name, None));
    let error = Reader::open(&names).expect_err("two").to_string();
    assert!(error.contains("must be the only trace"), "{error}");
}

#[test]
fn files_that_are_there_are_read_whatever_their_numbers() {
    let folder = std::env::temp_dir().join(format!("millrace-reader-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.join(name), bytes).unwrap();
    write("single.blktrace.0", &bytes(1, &[100, 110]));
    write("gaps.blktrace.1", &bytes(1, &[100]));
    write("gaps.blktrace.12", &bytes(12, &[90]));
    write("gaps.blktrace.x", b"no file of a CPU");
    let read = |name: &str| {
        let mut reader = Reader::open(&[TraceName::new(name, Some(&folder))]).unwrap();
        let entries = std::iter::from_fn(|| reader.read().unwrap()).map(|entry| entry.cpu);
        (entries.collect::<Vec<_>>(), reader.notes().join("; "))
    };
    let (cpus, notes) = read("single");
    assert_eq!(cpus, [1, 1]);
    assert!(
        notes.ends_with(
            "single.blktrace.0: the file name does not end in 1, the CPU of the records"
        ),
        "{notes}"
    );
    let (cpus, notes) = read("gaps");
    assert_eq!(cpus, [12, 1]);
    let said = "gaps.blktrace.0 and 10 others are missing; read: 1, 12";
    assert!(notes.ends_with(said), "{notes}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_named_pipe_is_read_though_it_has_no_length() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe.blktrace.0");
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    let writer = std::thread::spawn(move || std::fs::write(path, bytes(0, &[100, 110])));
    let mut reader = Reader::open(&[TraceName::new("pipe", Some(folder.path()))]).unwrap();
    let times = std::iter::from_fn(|| reader.read().unwrap()).map(|entry| entry.record.time_ns);
    assert_eq!(times.collect::<Vec<_>>(), [0, 10]);
    writer.join().unwrap().unwrap();
}
