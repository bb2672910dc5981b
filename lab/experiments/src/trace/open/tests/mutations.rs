//! Hand-made traces with some bytes changed, cut or repeated are read without a panic, in order.
//!
//! Does for a short time, in each run of the tests, what the fuzz target `formats` does at length.

use std::io::Cursor;

use proptest::prelude::*;

use crate::trace::{AnySource, Format, TraceSource};

/// Traces of all text formats, and a record of each binary one.
fn samples() -> Vec<Vec<u8>> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut samples: Vec<Vec<u8>> = files.map(|file| std::fs::read(file).unwrap()).collect();
    samples.sort();
    let mut second = [0; 80];
    (second[0], second[3], second[40], second[43]) = (0x28, 2, 0x35, 2);
    let mut first = [0; 64];
    (first[12], first[15], first[47]) = (0x2a, 1, 1);
    let mut request = [0; 56];
    request[..4].copy_from_slice(&0x2560_9514_u32.to_be_bytes());
    request[28..32].copy_from_slice(&0x2560_9513_u32.to_be_bytes());
    samples.extend([second.to_vec(), first.to_vec(), request.to_vec()]);
    samples
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn changed_traces_are_read_or_refused(
        which in any::<prop::sample::Index>(),
        format in prop_oneof![Just(None), any::<prop::sample::Index>().prop_map(Some)],
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut in proptest::option::of(any::<prop::sample::Index>()),
        repeats in 1..4_usize,
    ) {
        let samples = samples();
        let mut bytes = samples[which.index(samples.len())].repeat(repeats);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let format = format.and_then(|format| Format::all().nth(format.index(13)));
        if let Ok(mut source) = AnySource::from_reader("t", Cursor::new(bytes), format) {
            let mut last_ns = 0;
            let failed = loop {
                match source.next_io() {
                    Ok(Some(io)) => {
                        prop_assert!(io.at_ns >= last_ns);
                        prop_assert!((io.device as usize) < source.devices().len());
                        last_ns = io.at_ns;
                    }
                    Ok(None) => break false,
                    Err(error) => {
                        prop_assert!(error.to_string().starts_with("t: "), "{}", error);
                        break true;
                    }
                }
            };
            prop_assert!(!failed || matches!(source.next_io(), Ok(None)));
        }
    }
}
