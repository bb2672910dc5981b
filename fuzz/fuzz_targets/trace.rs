//! Fuzzes the reading of blktrace files. Each input consists of the files of up to three CPUs.
//!
//! Every consumer of a trace runs over the input: the merge of the files, blkparse's lines, btt's
//! times, and the HTML report. The fuzzer demands: no panic, no event after an error, a line feed
//! at the end of each line, and no more I/Os completed than queued.
//!
//! The first byte sets the number of files and two options:
//! - The magic number and CPU of each record are corrected. Otherwise few inputs would pass the
//!   first check.
//! - The HTML report is created.
//!
//! Seeds in `corpus/trace` are records that a kernel wrote.

#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_block::blktrace::{MAGIC, RECORD_BYTES, VERSION};
use millrace_experiments::trace::{Timeline, TraceProfile, report_page};
use millrace_trace::{Columns, DriverData, Reader, Show, Span, Spans};

fuzz_target!(|input: &[u8]| {
    let Some((first, rest)) = input.split_first() else { return };
    let files = usize::from(first & 3).max(1);
    let length = rest.len().div_ceil(files).max(1);
    let mut inputs: Vec<Vec<u8>> = rest.chunks(length).map(<[u8]>::to_vec).collect();
    if first & 4 == 0 {
        inputs.iter_mut().zip(0..).for_each(|(bytes, cpu)| mend(bytes, cpu));
    }
    read(&inputs, first & 8 != 0);
});

/// Writes a valid magic number and CPU into each record. The length in a record tells where the
/// next one starts.
fn mend(bytes: &mut [u8], cpu: u32) {
    let mut at = 0;
    while at + RECORD_BYTES <= bytes.len() {
        bytes[at..at + 4].copy_from_slice(&(MAGIC | VERSION).to_ne_bytes());
        bytes[at + 40..at + 44].copy_from_slice(&cpu.to_ne_bytes());
        let len = u16::from_ne_bytes([bytes[at + 46], bytes[at + 47]]);
        at += RECORD_BYTES + usize::from(len);
    }
}

fn read(inputs: &[Vec<u8>], with_page: bool) {
    let mut reader = Reader::from_inputs(inputs.iter().map(|bytes| &bytes[..]).collect());
    let (mut show, mut spans, mut timeline) =
        (Show::new(vec!["t".into()], DriverData::Hidden), Spans::new(), Timeline::default());
    loop {
        match reader.read() {
            Ok(Some(entry)) => {
                let line = show.entry(&entry, reader.names());
                assert!(line.is_empty() || line.ends_with(b"\n"), "a line ends");
                spans.entry(&entry, &mut timeline);
                timeline.entry(&entry, &spans);
            }
            Ok(None) => break,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                assert!(matches!(reader.read(), Ok(None)), "nothing follows an error");
                break;
            }
        }
    }
    let queued: u64 = spans.drives().iter().map(|drive| drive.queued).sum();
    let ended = spans.all().of(Span::Q2C).n + spans.all().of(Span::Q2Cdm).n;
    assert!(ended + spans.in_flight() as u64 <= queued, "more I/Os end than begin");
    let _ = show.summary();
    let _ = (spans.text(None, Columns::All), spans.json(None));
    // A report takes longer than all other checks, so only some inputs create a report.
    if with_page {
        let _ = report_page(Some((&spans, &timeline)), &TraceProfile::default(), &[]).html();
    }
}
