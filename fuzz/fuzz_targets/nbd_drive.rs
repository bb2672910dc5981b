//! Fuzzes the parser of an NBD client for replies of a server.
//!
//! The first byte selects the style of replies and the size of the pieces in which the stream
//! arrives; the rest is the server's stream. Four requests are in flight, two of them reads; each
//! that completes is submitted again. The fuzzer demands: no panic, no more bytes consumed than
//! received, each byte of a read stored once, no successful read with a missing byte, and an
//! outcome that does not depend on the size of the pieces. Seeds in `corpus/nbd_drive` are valid
//! and invalid replies.

#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_nbd::client::{Answer, AnswerError, Answers};
use millrace_nbd::{Command, ReplyStyle, Request};

const STYLES: [ReplyStyle; 3] = [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended];
const WORK: [(Command, u64, u64); 4] = [
    (Command::Read, 8192, 4096),
    (Command::Write, 0, 512),
    (Command::Read, 1 << 40, 65_536),
    (Command::Flush, 0, 0),
];

fuzz_target!(|input: &[u8]| {
    let Some((first, stream)) = input.split_first() else { return };
    let style = STYLES[usize::from(first % 3)];
    let piece = usize::from(first / 3) + 1;
    let whole = Drive::new(style).play(stream, stream.len().max(1));
    if stream.len() <= 4096 {
        assert_eq!(Drive::new(style).play(stream, piece), whole, "outcome depends on the pieces");
    }
});

/// Client side of a connection. `came` has a list of flags for each request: one flag for each
/// byte, set when the server's stream delivers that byte.
struct Drive {
    answers: Answers,
    came: [Vec<bool>; 4],
    ended: Vec<(u32, Option<millrace_nbd::Errno>)>,
}

impl Drive {
    fn new(style: ReplyStyle) -> Drive {
        let answers = Answers::new(style, WORK.len() as u32);
        let mut drive = Drive { answers, came: Default::default(), ended: Vec::new() };
        (0..WORK.len()).for_each(|index| drive.begin(index));
        drive
    }

    fn begin(&mut self, index: usize) {
        let (command, offset, length) = WORK[index];
        let mut request = Request { cookie: 0, flags: 0, command, offset, length };
        self.answers.expect(index as u32, &mut request);
        self.came[index] = vec![false; length as usize];
    }

    fn place(&mut self, index: u32, at: u64, length: u64) {
        let range = at as usize..(at + length) as usize;
        for came in &mut self.came[index as usize][range] {
            assert!(!std::mem::replace(came, true), "a byte came twice");
        }
    }

    fn play(
        mut self,
        stream: &[u8],
        piece: usize,
    ) -> (Vec<(u32, Option<millrace_nbd::Errno>)>, Option<AnswerError>) {
        let (mut used, mut seen) = (0, 0);
        while seen < stream.len() {
            seen = stream.len().min(seen + piece);
            loop {
                match self.answers.next(&stream[used..seen]) {
                    Err(error) => return (self.ended, Some(error)),
                    Ok((bytes, answer)) => {
                        used += bytes;
                        assert!(used <= seen, "used more than given");
                        if !self.take(answer, &mut used, seen) {
                            break;
                        }
                    }
                }
            }
        }
        assert_eq!(self.answers.in_flight(), WORK.len());
        (self.ended, None)
    }

    /// Processes one event of the parser. Returns false if the parser needs more bytes.
    fn take(&mut self, answer: Answer, used: &mut usize, seen: usize) -> bool {
        match answer {
            Answer::NeedMore => return false,
            Answer::Nothing => {}
            Answer::Zeroes { index, at, length } => self.place(index, at, length),
            Answer::Payload => {
                let payload = self.answers.payload().expect("it is open");
                let taken = payload.left.min((seen - *used) as u64);
                if taken == 0 {
                    return false;
                }
                self.place(payload.index, payload.at, taken);
                *used += taken as usize;
                self.answers.took(taken);
            }
            Answer::Ended { index, errno } => {
                let all = self.came[index as usize].iter().all(|came| *came);
                let reads = WORK[index as usize].0 == Command::Read;
                assert!(all || errno.is_some() || !reads, "a read ended with a byte missing");
                self.ended.push((index, errno));
                self.begin(index as usize);
            }
        }
        true
    }
}
