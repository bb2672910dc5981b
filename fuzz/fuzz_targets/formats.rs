//! Fuzzes the readers of all trace formats except blktrace, and the statistics and writers behind
//! them.
//!
//! The first byte selects a format, or detection of the format from the trace, which is the rest of
//! the input. The fuzzer demands: no panic; times that never decrease; I/Os only to devices that
//! the trace names; no I/O after an error; and that each writer accepts the I/Os. Seeds in
//! `corpus/formats` are the traces in `lab/experiments/testdata`.

#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use millrace_experiments::trace::{
    AnySource, Format, TraceIo, TraceProfile, TraceSource, TraceWriter,
};

const WRITTEN_MAX: usize = 1_000;

fuzz_target!(|input: &[u8]| {
    let Some((first, rest)) = input.split_first() else { return };
    let format = Format::all().nth(usize::from(*first));
    let Ok(mut source) = AnySource::from_reader("t", Cursor::new(rest.to_vec()), format) else {
        return;
    };
    let mut ios: Vec<TraceIo> = Vec::new();
    let mut profile = TraceProfile::default();
    loop {
        match source.next_io() {
            Ok(Some(io)) => {
                assert!(ios.last().is_none_or(|last| last.at_ns <= io.at_ns), "time steps back");
                assert!((io.device as usize) < source.devices().len(), "an unknown device");
                profile.add(&io);
                ios.push(io);
            }
            Ok(None) => break,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                assert!(matches!(source.next_io(), Ok(None)), "nothing follows an error");
                break;
            }
        }
    }
    let _ = (source.notes(), profile.text(source.devices()));
    for format in Format::written() {
        let mut writer = TraceWriter::new(format, std::io::sink()).expect("it is written");
        for io in ios.iter().take(WRITTEN_MAX) {
            writer.io(io, source.devices()).expect("a sink takes all");
        }
        writer.finish(source.dropped_events()).expect("a sink takes all");
    }
});
