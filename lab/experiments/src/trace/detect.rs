//! Detects a trace's format from its first bytes.
//!
//! Binary formats are recognized by their magic numbers, or, for vscsi, which has none, by the
//! version that every record repeats. For text, each format's own parser is tried on the first
//! lines: the trace has the first format whose parser accepts all of them. Text
//! formats differ by the number of fields, and by the place and spelling of the operation:
//!
//! | format | fields | operation |
//! |---|---|---|
//! | msr | 7 or more, commas | the 4th, `Read` or `Write` in full |
//! | systor | 6 or more | the 3rd, `R`, `W` or nothing |
//! | alibaba | 5 or more | the 2nd, `R` or `W` |
//! | spc | 5 or more | the 4th, a letter in either case |
//! | tencent | 5 or more | the 4th, `0` or `1` |
//! | fiu | 8 or more, blanks | `R` or `W` between numbers, the 6th unless a name has blanks |
//! | blkparse | 6 or more, blanks | the 6th, after a time with decimals |
//!
//! Called by `open.rs`.

use super::columns::ColumnParser;
use super::devices::DeviceNames;
use super::format::{Format, FormatReader};
use super::input::said;
use super::parser::{LineKind, LineParser};

const LINES_TRIED: usize = 16;

/// Returns the format of a trace that begins with these bytes, or None if no format fits.
pub(super) fn detect(head: &[u8]) -> Option<Format> {
    let text = String::from_utf8_lossy(head);
    let lines = first_lines(&text);
    Format::all().find(|format| fits(*format, head, &lines))
}

/// Returns true if a trace's first bytes fit exactly one format, so that no more bytes are needed.
pub(super) fn is_certain(head: &[u8]) -> bool {
    let text = String::from_utf8_lossy(head);
    let Some(end) = text.rfind('\n') else { return false };
    let lines = first_lines(&text[..=end]);
    let fitting = |format: &Format| fits(*format, head, &lines);
    Format::all().filter(fitting).take(2).count() == 1
}

/// Returns the format that accepts the longest run of lines from the start of a damaged trace. The
/// format's reader then reports the damaged line.
pub(super) fn likely(head: &[u8]) -> Option<Format> {
    let text = String::from_utf8_lossy(head);
    let lines = first_lines(&text);
    let taken = |format: &Format| {
        (1..lines.len()).rev().find(|most| fits(*format, head, &lines[..*most])).unwrap_or(0)
    };
    let counts = Format::all().rev().map(|format| (taken(&format), format));
    counts.max_by_key(|(taken, _)| *taken).filter(|(taken, _)| *taken > 0).map(|(_, it)| it)
}

/// Returns the first `LINES_TRIED` complete lines of a trace, numbered from 1, without blank lines
/// and comments. A text without a line end counts as one line.
fn first_lines(head: &str) -> Vec<(u64, &str)> {
    let whole = head.rfind('\n').map_or(head, |end| &head[..end]);
    let rows = whole.lines().map(said).filter(|line| !line.is_empty());
    (1..).zip(rows).take(LINES_TRIED).collect()
}

fn fits(format: Format, head: &[u8], lines: &[(u64, &str)]) -> bool {
    match format.reader() {
        FormatReader::Columns(table) => takes(&mut *ColumnParser::boxed(table), lines),
        FormatReader::Lines(parser) => takes(&mut *parser(), lines),
        FormatReader::Records { fits, .. } => fits(head),
    }
}

/// Returns true if the parser accepts all lines and finds an I/O in them. A line that occurs in no
/// other format (`LineKind::Proof`) is enough by itself.
fn takes(parser: &mut dyn LineParser, lines: &[(u64, &str)]) -> bool {
    let (mut devices, mut any) = (DeviceNames::default(), false);
    for (number, text) in lines {
        match parser.line(*number, text, &mut devices) {
            Ok(LineKind::Proof) => return true,
            Ok(LineKind::Record) => any = true,
            Ok(LineKind::Other) => {}
            Ok(LineKind::End) => break,
            Err(_) => return false,
        }
    }
    any
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_block::blktrace::Record;

    /// A few lines of each text format.
    const SAMPLES: [(Format, &str); 10] = [
        (Format::Iolog, "fio version 2 iolog\n/dev/sda add\n/dev/sda read 0 512\n"),
        (Format::Iolog3, "fio version 3 iolog\n0 /dev/sda add\n1 /dev/sda read 0 512\n"),
        (Format::Blkparse, "  8,0    3        1     0.000000000   697  Q   W 223490 + 8 [dd]\n"),
        (
            Format::Nbdkit,
            "2020-08-06 02:07:23.080415 connection=1 Read id=1 offset=0x0 count=0x200 ...\n",
        ),
        (Format::Msr, "128166372003061629,usr,0,Read,7014609920,24576,41286\n"),
        (Format::Systor, "1456095145.133076000,,R,0,899056122368,131072\n"),
        (Format::Alibaba, "0,R,126703661056,4096,1577808000000046\n"),
        (Format::Tencent, "1538323199,1003027216,16,0,2313\n"),
        (Format::Spc, "0,303567,3584,w,0.026214\n"),
        (Format::Fiu, "89967195453000 4892 syslogd 904265560 8 W 6 0 531e779e\n"),
    ];

    #[test]
    fn each_format_takes_its_own_lines_and_no_other_takes_them() {
        for (format, text) in SAMPLES {
            let lines = first_lines(text);
            let taken: Vec<Format> =
                Format::all().filter(|one| fits(*one, text.as_bytes(), &lines)).collect();
            assert_eq!(taken, [format], "{text}");
            assert_eq!(detect(text.trim_end().as_bytes()), Some(format), "without a line's end");
        }
    }

    #[test]
    fn near_misses_go_to_the_format_that_the_rules_name() {
        let found = |text: &str| detect(text.as_bytes());
        // SPC allows fields behind the fifth: as many as SYSTOR's and MSR's, and upper case.
        assert_eq!(found("0,303567,3584,R,0.026214,1\n"), Some(Format::Spc));
        assert_eq!(found("0,303567,3584,W,0.026214,1,2\n"), Some(Format::Spc));
        // SYSTOR's without a type and without a response time.
        assert_eq!(found("1456095145.1,,,0,0,512\n"), Some(Format::Systor));
        // MSR's with a host that is called R.
        assert_eq!(found("128166372003061629,R,0,Write,512,512,0\n"), Some(Format::Msr));
        // FIU's of a process whose name has a blank, or is a number.
        assert_eq!(found("1 2 my app 8 8 W 6 0 ab\n"), Some(Format::Fiu));
        assert_eq!(found("1 2 3 8 8 R 6 0 ab\n"), Some(Format::Fiu));
        // Tencent's of a volume 0, and Alibaba's.
        assert_eq!(found("1,2,3,1,0\n"), Some(Format::Tencent));
        assert_eq!(found("1,W,3,1,0\n"), Some(Format::Alibaba));
        // Heads are passed over, but do not say what follows.
        assert_eq!(found("Timestamp,Offset\n1,2,3,1,0\n"), Some(Format::Tencent));
        for none in ["", "\n", "hello\n", "1,2,3,4,5\n", "Timestamp,Offset\n", "fio version 4\n"] {
            assert_eq!(found(none), None, "{none}");
        }
    }

    #[test]
    fn the_files_that_blkparse_says_it_reads_are_no_events() {
        let said = "Input file sda.blktrace.0 added\n".repeat(20);
        let events = "  8,0    3        1     0.000000000   697  Q   W 223490 + 8 [dd]\n";
        assert_eq!(detect(format!("{said}{events}").as_bytes()), Some(Format::Blkparse));
    }

    #[test]
    fn a_broken_line_leaves_the_format_of_those_before_it() {
        let text = "128166372003061629,usr,0,Read,7014609920,24576,41286\n\
                    128166372003061630,usr,0,Read,7014609920,x,41286\n";
        assert_eq!((detect(text.as_bytes()), likely(text.as_bytes())), (None, Some(Format::Msr)));
        assert_eq!(likely(b"hello\nworld\n"), None);
    }

    #[test]
    fn a_format_is_certain_once_a_whole_line_is_of_no_other() {
        assert!(!is_certain(b"128166372003061629,usr,0,Read,70146099"));
        for (format, text) in SAMPLES {
            assert!(is_certain(text.as_bytes()), "{format}");
        }
        assert!(!is_certain(b"Timestamp,Offset\n"), "a head alone");
    }

    #[test]
    fn binary_formats_are_known_by_magic_and_by_repeated_versions() {
        let record = Record::default().encode();
        assert_eq!(detect(&record), Some(Format::Blktrace));
        let mut request = [0; 28];
        request[..4].copy_from_slice(&0x2560_9513_u32.to_be_bytes());
        assert_eq!(detect(&request), Some(Format::Trlog));
        let (mut first, mut second) = ([0; 64], [0; 80]);
        (first[15], first[47]) = (1, 1);
        (second[3], second[43]) = (2, 2);
        assert_eq!(detect(&first), Some(Format::Vscsi));
        assert_eq!(detect(&second), Some(Format::Vscsi));
        second[43] = 1;
        assert_eq!(detect(&second), None);
    }
}
