//! I/Os that are written to a trace are read back unchanged, except for fields that a format lacks.

use super::*;
use crate::trace::{AnySource, TraceSource};
use millrace_block::Op;
use proptest::prelude::*;

fn read(bytes: Vec<u8>) -> (Vec<TraceIo>, Vec<String>) {
    let mut source = AnySource::from_reader("t", io::Cursor::new(bytes), None).unwrap();
    let ios = std::iter::from_fn(|| source.next_io().unwrap()).collect();
    (ios, source.devices().to_vec())
}

#[test]
fn dropped_events_are_noted_and_their_numbers_left_out() {
    let mut bytes = Vec::new();
    let mut writer = TraceWriter::new(Format::Blktrace, &mut bytes).unwrap();
    let io = TraceIo {
        at_ns: 0,
        device: 0,
        op: Op::Read,
        fua: false,
        offset_bytes: 0,
        len_bytes: 4096,
        latency_ns: Some(1_000),
    };
    writer.io(&io, &["8,0".to_owned()]).unwrap();
    writer.finish(9).unwrap();
    let mut source = AnySource::from_reader("t", io::Cursor::new(bytes), None).unwrap();
    while source.next_io().unwrap().is_some() {}
    assert_eq!(source.dropped_events(), 9);
    assert!(source.notes()[0].starts_with("9 events are missing"), "{:?}", source.notes());
}

fn written(format: Format, ios: &[TraceIo], devices: &[String]) -> (Vec<u8>, Vec<String>) {
    let mut bytes = Vec::new();
    let mut writer = TraceWriter::new(format, &mut bytes).unwrap();
    ios.iter().for_each(|io| writer.io(io, devices).unwrap());
    let (count, notes) = writer.finish(0).unwrap();
    let omitted = |note: &String| note.split_once(" I/Os left out")?.0.parse::<u64>().ok();
    assert_eq!(count + notes.iter().filter_map(omitted).sum::<u64>(), ios.len() as u64);
    (bytes, notes)
}

/// I/Os of two devices whose ranges do not meet, so that a completion is of one only.
fn ios() -> impl Strategy<Value = Vec<TraceIo>> {
    let op = prop_oneof![Just(Op::Read), Just(Op::Write), Just(Op::Discard), Just(Op::Flush)];
    let io = (op, 0..2_u32, 1..200_u64, 0..900_u64, proptest::option::of(1..1_000_u64));
    proptest::collection::vec(io, 1..60).prop_map(|ios| {
        let mut at_us = 0;
        type Drawn = (Op, u32, u64, u64, Option<u64>);
        let io = |(place, (op, device, sectors, gap_us, latency_us)): (usize, Drawn)| {
            at_us += if place == 0 { 0 } else { gap_us };
            let flush = op == Op::Flush;
            TraceIo {
                at_ns: at_us * 1_000,
                device,
                op,
                fua: false,
                offset_bytes: if flush { 0 } else { place as u64 * (1 << 20) },
                len_bytes: if flush { 0 } else { sectors * 512 },
                latency_ns: latency_us.filter(|_| !flush).map(|us| us * 1_000),
            }
        };
        ios.into_iter().enumerate().map(io).collect()
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(ios in ios()) {
        let devices = ["vol_0".to_owned(), "vol_1".to_owned()];
        for format in Format::written() {
            let (bytes, notes) = written(format, &ios, &devices);
            let has_all = format != Format::Msr;
            let expected: Vec<TraceIo> = ios.iter().copied()
                .filter(|io| has_all || matches!(io.op, Op::Read | Op::Write)).collect();
            let timed = format != Format::Iolog;
            let has_times = timed || ios.iter().all(|io| io.at_ns == 0);
            prop_assert_eq!(notes.is_empty(), expected.len() == ios.len() && has_times);
            if expected.is_empty() {
                continue;
            }
            let (read, names) = read(bytes);
            prop_assert_eq!(read.len(), expected.len());
            let genesis_ns = expected[0].at_ns;
            for (read, io) in read.iter().zip(&expected) {
                prop_assert_eq!(&names[read.device as usize], &devices[io.device as usize]);
                prop_assert_eq!(
                    (read.op, read.offset_bytes, read.len_bytes),
                    (io.op, io.offset_bytes, io.len_bytes)
                );
                let off_ns = (io.at_ns - genesis_ns).abs_diff(read.at_ns);
                let close = if timed { off_ns < 1_000 } else { read.at_ns == 0 };
                prop_assert!(close);
                match format {
                    Format::Blktrace => prop_assert_eq!(read.latency_ns, io.latency_ns),
                    Format::Msr => {
                        prop_assert_eq!(read.latency_ns, io.latency_ns.map(|ns| ns.max(100)));
                    }
                    _ => prop_assert_eq!(read.latency_ns, None),
                }
            }
        }
    }
}

#[test]
fn what_a_format_has_no_place_for_is_counted() {
    let io = |op, fua, offset_bytes| TraceIo {
        at_ns: 0,
        device: 0,
        op,
        fua,
        offset_bytes,
        len_bytes: if op == Op::Flush { 0 } else { 512 },
        latency_ns: None,
    };
    let ios = [
        io(Op::Write, true, 100),
        io(Op::WriteZeroes, false, 0),
        io(Op::Flush, false, 0),
        io(Op::Discard, false, 0),
    ];
    let notes = |format| written(format, &ios, &["8,0".into()]).1;
    assert_eq!(
        notes(Format::Blktrace),
        [
            "1 write-zeroes became writes",
            "1 I/Os that began or ended within a sector were widened to whole sectors"
        ]
    );
    assert_eq!(notes(Format::Iolog3), ["1 write-zeroes became writes", "1 writes lost their FUA"]);
    assert_eq!(notes(Format::Msr).len(), 4);
    let error = TraceWriter::new(Format::Fiu, Vec::new()).err().unwrap().to_string();
    assert_eq!(error, "fiu can only be read; write one of blktrace, iolog, iolog3, msr");
}

#[test]
fn a_hostile_length_writes_a_bounded_file() {
    let io = TraceIo {
        at_ns: u64::MAX,
        device: 0,
        op: Op::Read,
        fua: false,
        offset_bytes: 7,
        len_bytes: u64::MAX,
        latency_ns: Some(u64::MAX),
    };
    for format in Format::written() {
        let (bytes, _) = written(format, &[io], &["x y".into()]);
        assert!(bytes.len() < 1 << 20, "{format}");
    }
}
