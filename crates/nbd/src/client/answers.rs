//! `Answers`: tracks the requests of a connection and matches the server's replies to them.
//!
//! `Answers` has an entry with an index for each request that may be in flight, and holds no
//! payload: the caller learns where the payload of a read belongs, and copies it. A cookie consists
//! of the index and a number unique to the request, so that a reply to an earlier request of the
//! same entry is detected.
//!
//! Invariants: a read succeeds only if each of its bytes arrived exactly once. Bytes outside of the
//! request, bytes that arrive twice, and replies to no request in flight end the connection.
//! Nothing is allocated after [`Answers::new`]. Specification: "Structured replies".

use thiserror::Error;

use super::reply::{ServerReply, parse_reply};
use crate::{Command, Errno, ProtocolError, ReplyStyle, Request};

/// Maximum number of separate byte ranges of a read that have arrived. Adjacent ranges are joined.
const PIECES_MAX: usize = 8;

/// Violation of the protocol by the server, after which the caller must close the connection.
#[allow(missing_docs)] // The messages describe the variants.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AnswerError {
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    #[error("the server replied to request {0:#x}, which is not in flight")]
    UnknownCookie(u64),
    #[error("the server sent {length} bytes at offset {offset} that were not requested")]
    Outside { offset: u64, length: u64 },
    #[error("the server sent {length} bytes at offset {offset} twice")]
    Twice { offset: u64, length: u64 },
    /// The chunks of a read arrive out of order and leave more gaps than the client tracks.
    #[error("the server answered a read with more than 8 separate pieces, out of order")]
    Scattered,
    #[error("the server answered a read of {asked} bytes with {got} bytes")]
    Short { asked: u64, got: u64 },
    #[error("the server sent a simple reply to a read although structured replies were negotiated")]
    NotStructured,
    #[error("the server sent a block status that was not requested")]
    Status,
}

/// Result of parsing the beginning of the input.
#[allow(missing_docs)] // `at` and `length` are in bytes, `at` from the start of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    NeedMore,
    /// The chunk needs no action by the caller.
    Nothing,
    /// The payload of a read follows or is not completely taken yet; see [`Answers::payload`].
    Payload,
    /// A part of a read consists of zeroes.
    Zeroes {
        index: u32,
        at: u64,
        length: u64,
    },
    /// A request has ended, and its entry can be reused.
    Ended {
        index: u32,
        errno: Option<Errno>,
    },
}

/// Payload bytes of a read that the caller must receive next from the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Payload {
    /// Index of the read request, as passed to [`Answers::expect`].
    pub index: u32,
    /// Position of the next byte, in bytes from the start of the request.
    pub at: u64,
    /// Number of bytes still to be received, at least 1.
    pub left: u64,
    last: bool,
}

#[derive(Debug, Clone, Copy)]
struct DataChunk {
    cookie: u64,
    offset: u64,
    length: u64,
    last: bool,
}

#[derive(Debug, Clone, Copy)]
struct ExpectedReply {
    cookie: u64,
    command: Command,
    offset: u64,
    length: u64,
    errno: Option<Errno>,
    pieces: ReceivedPieces,
}

/// Requests in flight on one connection, and the parser state of its incoming stream.
#[derive(Debug)]
pub struct Answers {
    style: ReplyStyle,
    expected: Box<[Option<ExpectedReply>]>,
    number: u32,
    in_flight: usize,
    newest: u32,
    payload: Option<Payload>,
    /// Completed request for which [`Answer::Ended`] must be returned next.
    ending: Option<u32>,
}

impl Answers {
    /// Creates an empty table with room for `depth` requests. `style` is the reply style of the
    /// connection.
    #[must_use]
    pub fn new(style: ReplyStyle, depth: u32) -> Answers {
        let expected = vec![None; depth as usize].into_boxed_slice();
        Answers { style, expected, number: 0, in_flight: 0, newest: 0, payload: None, ending: None }
    }

    /// Empties the table for a new connection. `style` is the reply style of the connection.
    pub fn reset(&mut self, style: ReplyStyle) {
        self.expected.fill(None);
        (self.style, self.in_flight, self.payload, self.ending) = (style, 0, None, None);
    }

    /// Returns the number of requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns the index of the request that was added last, if it is in flight.
    #[must_use]
    pub fn newest(&self) -> Option<u32> {
        let entry = self.expected.get(self.newest as usize)?;
        entry.is_some().then_some(self.newest)
    }

    /// Adds a request that is about to be sent, and sets its cookie.
    ///
    /// # Panics
    /// Panics if there is no entry `index`, or if it is in use.
    pub fn expect(&mut self, index: u32, request: &mut Request) {
        let entry = &mut self.expected[index as usize];
        assert!(entry.is_none(), "request {index} is in flight");
        self.number = self.number.wrapping_add(1);
        request.cookie = u64::from(self.number) << 32 | u64::from(index);
        let Request { cookie, command, offset, length, .. } = *request;
        let pieces = ReceivedPieces::default();
        *entry = Some(ExpectedReply { cookie, command, offset, length, errno: None, pieces });
        self.in_flight += 1;
        self.newest = index;
    }

    /// Returns the payload that comes next in the stream, if there is any.
    #[must_use]
    pub fn payload(&self) -> Option<Payload> {
        self.payload
    }

    /// Records that the caller has copied `bytes` of the payload.
    ///
    /// # Panics
    /// Panics if `bytes` exceeds the payload that is left, or no payload is expected.
    pub fn took(&mut self, bytes: u64) {
        let payload = self.payload.as_mut().expect("payload is open");
        payload.at += bytes;
        payload.left = payload.left.checked_sub(bytes).expect("no more than is left");
        if payload.left == 0 {
            let Payload { index, last, .. } = *payload;
            self.payload = None;
            if last {
                self.ending = Some(index);
            }
        }
    }

    /// Parses the beginning of `input`. Returns the number of bytes consumed, and their meaning.
    ///
    /// # Errors
    /// Returns an error if the server violated the protocol. The connection must then be closed.
    pub fn next(&mut self, input: &[u8]) -> Result<(usize, Answer), AnswerError> {
        if let Some(index) = self.ending.take() {
            return Ok((0, self.end(index)?));
        }
        if self.payload.is_some() {
            return Ok((0, Answer::Payload));
        }
        match parse_reply(input, self.style)? {
            None => Ok((0, Answer::NeedMore)),
            Some((reply, header_bytes)) => Ok((header_bytes, self.reply(reply)?)),
        }
    }

    fn reply(&mut self, reply: ServerReply<'_>) -> Result<Answer, AnswerError> {
        let structured = self.style != ReplyStyle::Simple;
        match reply {
            ServerReply::Simple { cookie, errno } => {
                let (index, entry) = self.entry(cookie)?;
                entry.errno = errno;
                if entry.command != Command::Read || errno.is_some() {
                    return self.end(index);
                }
                if structured {
                    return Err(AnswerError::NotStructured);
                }
                let (offset, length) = (entry.offset, entry.length);
                self.open(DataChunk { cookie, offset, length, last: true })
            }
            ServerReply::Done { cookie } => {
                let (index, _) = self.entry(cookie)?;
                self.end(index)
            }
            ServerReply::Error { cookie, errno, last, .. } => {
                let (index, entry) = self.entry(cookie)?;
                entry.errno = entry.errno.or(Some(errno));
                if last { self.end(index) } else { Ok(Answer::Nothing) }
            }
            ServerReply::Data { cookie, offset, length, last } => {
                self.open(DataChunk { cookie, offset, length, last })
            }
            ServerReply::Hole { cookie, offset, length, last } => {
                let (index, at) = self.place(DataChunk { cookie, offset, length, last })?;
                self.ending = last.then_some(index);
                Ok(Answer::Zeroes { index, at, length })
            }
            ServerReply::Status { .. } => Err(AnswerError::Status),
        }
    }

    fn open(&mut self, chunk: DataChunk) -> Result<Answer, AnswerError> {
        let (index, at) = self.place(chunk)?;
        self.payload = Some(Payload { index, at, left: chunk.length, last: chunk.last });
        Ok(Answer::Payload)
    }

    fn entry(&mut self, cookie: u64) -> Result<(u32, &mut ExpectedReply), AnswerError> {
        let index = cookie as u32;
        let entry = self.expected.get_mut(index as usize).and_then(Option::as_mut);
        let entry = entry.filter(|entry| entry.cookie == cookie);
        entry.map(|entry| (index, entry)).ok_or(AnswerError::UnknownCookie(cookie))
    }

    /// Adds a chunk's range to its request. Returns the request's index, and the chunk's position
    /// in the request in bytes.
    fn place(&mut self, chunk: DataChunk) -> Result<(u32, u64), AnswerError> {
        let DataChunk { cookie, offset, length, .. } = chunk;
        let (index, entry) = self.entry(cookie)?;
        let outside = AnswerError::Outside { offset, length };
        let Some(at) = offset.checked_sub(entry.offset) else { return Err(outside) };
        let end = at.checked_add(length).filter(|end| *end <= entry.length);
        let (Some(end), Command::Read) = (end, entry.command) else { return Err(outside) };
        match entry.pieces.add(at, end) {
            PieceInsert::Fits => Ok((index, at)),
            PieceInsert::Overlaps => Err(AnswerError::Twice { offset, length }),
            PieceInsert::TooMany => Err(AnswerError::Scattered),
        }
    }

    fn end(&mut self, index: u32) -> Result<Answer, AnswerError> {
        let entry = self.expected[index as usize].take().expect("it was in flight just now");
        self.in_flight -= 1;
        let (asked, got) = (entry.length, entry.pieces.covered());
        if entry.command == Command::Read && entry.errno.is_none() && got != asked {
            return Err(AnswerError::Short { asked, got });
        }
        Ok(Answer::Ended { index, errno: entry.errno })
    }
}

/// Pieces of a read that have arrived. They are disjoint, sorted, and not adjacent to each other.
#[derive(Debug, Clone, Copy, Default)]
struct ReceivedPieces {
    list: [(u64, u64); PIECES_MAX],
    len: usize,
}

enum PieceInsert {
    Fits,
    Overlaps,
    TooMany,
}

impl ReceivedPieces {
    fn covered(&self) -> u64 {
        self.list[..self.len].iter().map(|(start, end)| end - start).sum()
    }

    fn add(&mut self, start: u64, end: u64) -> PieceInsert {
        // Index of the first piece that ends after `start`. A piece is a part of the read's payload
        // that was received already.
        let known = &self.list[..self.len];
        let place = known.iter().position(|piece| piece.1 > start).unwrap_or(self.len);
        if place < self.len && self.list[place].0 < end {
            return PieceInsert::Overlaps;
        }
        let joins_last = place > 0 && self.list[place - 1].1 == start;
        let joins_next = place < self.len && self.list[place].0 == end;
        match (joins_last, joins_next) {
            (true, true) => {
                self.list[place - 1].1 = self.list[place].1;
                self.list.copy_within(place + 1..self.len, place);
                self.len -= 1;
            }
            (true, false) => self.list[place - 1].1 = end,
            (false, true) => self.list[place].0 = start,
            (false, false) if self.len == PIECES_MAX => return PieceInsert::TooMany,
            (false, false) => {
                self.list.copy_within(place..self.len, place + 1);
                self.list[place] = (start, end);
                self.len += 1;
            }
        }
        PieceInsert::Fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_cover_what_a_set_of_bytes_does(
            ranges in proptest::collection::vec((0u64..40, 1u64..12), 0..20),
        ) {
            let mut pieces = ReceivedPieces::default();
            let mut bytes = std::collections::BTreeSet::new();
            for (start, len) in ranges {
                let range = start..start + len;
                let twice = range.clone().any(|byte| bytes.contains(&byte));
                match pieces.add(range.start, range.end) {
                    PieceInsert::Fits => {
                        prop_assert!(!twice);
                        bytes.extend(range);
                    }
                    PieceInsert::Overlaps => prop_assert!(twice),
                    PieceInsert::TooMany => prop_assert!(!twice && pieces.len == PIECES_MAX),
                }
                prop_assert_eq!(pieces.covered(), bytes.len() as u64);
            }
        }
    }
}
