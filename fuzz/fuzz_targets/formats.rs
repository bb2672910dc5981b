//! Fuzzes the reading of traces of other formats than blktrace's, and what is made of them.
//!
//! The first byte says the format, or that it is to be found; the rest is the trace. Besides "no
//! panic" it demands that times never step back, that devices are known, that nothing follows an
//! error, and that what was read can be written as each format that is written.
//! Seeds in `corpus/formats` are the hand-made traces of `lab/experiments/testdata`.

#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use millrace_experiments::trace::{
    AnySource, Format, TraceIo, TraceProfile, TraceSource, TraceWriter,
};

/// I/Os that are written; a trace of this length has few more.
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
