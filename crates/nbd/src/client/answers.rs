//! `Answers`: which requests of a connection are unanswered, and what the server says to each.
//!
//! Owns an entry for each request that may be in flight, by its index; holds no payload. Called
//! with received bytes: it says where the payload of a read goes and when a request has ended, and
//! the caller moves the bytes. A cookie is an index and a number that no two requests of a
//! connection share, so that a reply to an earlier user of an entry is found out.
//!
//! Invariants: a read ends well only when each of its bytes came exactly once; what lies outside of
//! the request, comes twice, or belongs to no request in flight is an error that ends the
//! connection; nothing is allocated after [`Answers::new`].
//! Specification: "Structured replies", "Structured reply types".

use thiserror::Error;

use super::reply::{ReplyParsed, ServerReply, parse_reply};
use crate::{Command, Errno, ProtocolError, ReplyStyle, Request};

/// Most separate pieces of a read that are known at a time: servers send chunks in order, by and
/// large, and touching ones count as one.
const PIECES_MAX: usize = 8;

/// Why the server of a connection cannot be understood any more. The caller closes it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// A message of no known form.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// No request in flight has this cookie.
    #[error("a reply to request {cookie:#x}, which is not in flight")]
    UnknownCookie {
        /// What came.
        cookie: u64,
    },
    /// A chunk for another range than the read's, or for a request that reads nothing.
    #[error("a chunk of {length} bytes at offset {offset}, which was not asked for")]
    Outside {
        /// Offset of the chunk in the export.
        offset: u64,
        /// Its length in bytes.
        length: u64,
    },
    /// Bytes of a read that came before.
    #[error("{length} bytes at offset {offset} came twice")]
    Twice {
        /// Offset of the chunk in the export.
        offset: u64,
        /// Its length in bytes.
        length: u64,
    },
    /// A read whose chunks leave more gaps than anybody keeps in mind.
    #[error("a read was answered in more than 8 separate pieces, out of order")]
    Scattered,
    /// A read that ended without an error before all its bytes came.
    #[error("a read of {asked} bytes was answered with {got}")]
    Short {
        /// Bytes asked for.
        asked: u64,
        /// Bytes that came.
        got: u64,
    },
    /// A read was answered without chunks although they were agreed on.
    #[error("a read was answered with a simple reply although structured ones were agreed on")]
    NotStructured,
    /// Block status that nobody asked for.
    #[error("a block status that was not asked for")]
    Status,
}

/// What the bytes at the front of the input mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Nothing yet: more bytes are needed.
    NeedMore,
    /// A chunk that changes nothing for the caller.
    Nothing,
    /// Payload of a read follows, or is open still: see [`Answers::payload`].
    Payload,
    /// A part of a read is zeroes.
    Zeroes {
        /// The request.
        index: u32,
        /// Where they begin, in bytes from the start of the request.
        at: u64,
        /// How many bytes.
        length: u64,
    },
    /// The request has ended; its entry is free.
    Ended {
        /// The request.
        index: u32,
        /// Why it failed; none if it went well.
        errno: Option<Errno>,
    },
}

/// Payload of a read that is to be received next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Payload {
    /// The request.
    pub index: u32,
    /// Where the next byte goes, in bytes from the start of the request.
    pub at: u64,
    /// Bytes that are still to come, at least 1.
    pub left: u64,
    last: bool,
}

/// A part of a read's answer, as the server says.
#[derive(Debug, Clone, Copy)]
struct Chunk {
    cookie: u64,
    offset: u64,
    length: u64,
    last: bool,
}

/// A request in flight.
#[derive(Debug, Clone, Copy)]
struct Expected {
    cookie: u64,
    command: Command,
    offset: u64,
    length: u64,
    errno: Option<Errno>,
    pieces: Pieces,
}

/// The requests of one connection and the state of its incoming stream.
#[derive(Debug)]
pub struct Answers {
    style: ReplyStyle,
    expected: Box<[Option<Expected>]>,
    /// How many requests there have been.
    number: u32,
    in_flight: usize,
    newest: u32,
    payload: Option<Payload>,
    /// A request whose last chunk was taken and whose end was not told yet.
    ending: Option<u32>,
}

impl Answers {
    /// Nothing in flight, on a connection with replies of this style, with room for `depth`
    /// requests.
    #[must_use]
    pub fn new(style: ReplyStyle, depth: u32) -> Answers {
        let expected = vec![None; depth as usize].into_boxed_slice();
        Answers { style, expected, number: 0, in_flight: 0, newest: 0, payload: None, ending: None }
    }

    /// Begins anew, on another connection with replies of this style.
    pub fn reset(&mut self, style: ReplyStyle) {
        self.expected.fill(None);
        (self.style, self.in_flight, self.payload, self.ending) = (style, 0, None, None);
    }

    /// How many requests are in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The request that was noted last, if it is in flight.
    #[must_use]
    pub fn newest(&self) -> Option<u32> {
        let entry = self.expected.get(self.newest as usize)?;
        entry.is_some().then_some(self.newest)
    }

    /// Notes that a request is about to be sent, whose cookie this gives it.
    ///
    /// # Panics
    /// If there is no entry `index`, or it is in use.
    pub fn expect(&mut self, index: u32, request: &mut Request) {
        let entry = &mut self.expected[index as usize];
        assert!(entry.is_none(), "request {index} is in flight");
        self.number = self.number.wrapping_add(1);
        request.cookie = u64::from(self.number) << 32 | u64::from(index);
        let Request { cookie, command, offset, length, .. } = *request;
        let pieces = Pieces::default();
        *entry = Some(Expected { cookie, command, offset, length, errno: None, pieces });
        self.in_flight += 1;
        self.newest = index;
    }

    /// The payload that comes next in the stream, if some is open.
    #[must_use]
    pub fn payload(&self) -> Option<Payload> {
        self.payload
    }

    /// The caller has taken so many bytes of the open payload.
    ///
    /// # Panics
    /// If that is more than there is, or no payload is open.
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

    /// Looks at the front of `input`, and returns how many bytes of it are used up.
    ///
    /// # Errors
    /// The server broke the protocol: the connection is to be closed.
    pub fn next(&mut self, input: &[u8]) -> Result<(usize, Answer), AnswerError> {
        if let Some(index) = self.ending.take() {
            return Ok((0, self.end(index)?));
        }
        if self.payload.is_some() {
            return Ok((0, Answer::Payload));
        }
        match parse_reply(input, self.style)? {
            ReplyParsed::NeedMore => Ok((0, Answer::NeedMore)),
            ReplyParsed::Reply { reply, header_bytes } => Ok((header_bytes, self.reply(reply)?)),
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
                self.open(Chunk { cookie, offset, length, last: true })
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
                self.open(Chunk { cookie, offset, length, last })
            }
            ServerReply::Hole { cookie, offset, length, last } => {
                let (index, at) = self.place(Chunk { cookie, offset, length, last })?;
                self.ending = last.then_some(index);
                Ok(Answer::Zeroes { index, at, length })
            }
            ServerReply::Status { .. } => Err(AnswerError::Status),
        }
    }

    /// Payload of a read comes next.
    fn open(&mut self, chunk: Chunk) -> Result<Answer, AnswerError> {
        let (index, at) = self.place(chunk)?;
        self.payload = Some(Payload { index, at, left: chunk.length, last: chunk.last });
        Ok(Answer::Payload)
    }

    /// The request of a cookie.
    fn entry(&mut self, cookie: u64) -> Result<(u32, &mut Expected), AnswerError> {
        let index = cookie as u32;
        let entry = self.expected.get_mut(index as usize).and_then(Option::as_mut);
        let entry = entry.filter(|entry| entry.cookie == cookie);
        entry.map(|entry| (index, entry)).ok_or(AnswerError::UnknownCookie { cookie })
    }

    /// Notes that bytes of a read come; says where in the request they go.
    fn place(&mut self, chunk: Chunk) -> Result<(u32, u64), AnswerError> {
        let Chunk { cookie, offset, length, .. } = chunk;
        let (index, entry) = self.entry(cookie)?;
        let outside = AnswerError::Outside { offset, length };
        let Some(at) = offset.checked_sub(entry.offset) else { return Err(outside) };
        let end = at.checked_add(length).filter(|end| *end <= entry.length);
        let (Some(end), Command::Read) = (end, entry.command) else { return Err(outside) };
        match entry.pieces.add(at, end) {
            Added::Fits => Ok((index, at)),
            Added::Overlaps => Err(AnswerError::Twice { offset, length }),
            Added::TooMany => Err(AnswerError::Scattered),
        }
    }

    /// The reply to a request has ended.
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

/// The parts of a read that have come: disjoint, in order, none touching the next.
#[derive(Debug, Clone, Copy, Default)]
struct Pieces {
    list: [(u64, u64); PIECES_MAX],
    len: usize,
}

enum Added {
    Fits,
    Overlaps,
    TooMany,
}

impl Pieces {
    fn covered(&self) -> u64 {
        self.list[..self.len].iter().map(|(start, end)| end - start).sum()
    }

    /// Adds `start..end`, which is not empty.
    fn add(&mut self, start: u64, end: u64) -> Added {
        // The first piece that ends behind the start.
        let known = &self.list[..self.len];
        let place = known.iter().position(|piece| piece.1 > start).unwrap_or(self.len);
        if place < self.len && self.list[place].0 < end {
            return Added::Overlaps;
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
            (false, false) if self.len == PIECES_MAX => return Added::TooMany,
            (false, false) => {
                self.list.copy_within(place..self.len, place + 1);
                self.list[place] = (start, end);
                self.len += 1;
            }
        }
        Added::Fits
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
            let (mut pieces, mut bytes) = (Pieces::default(), std::collections::BTreeSet::new());
            for (start, len) in ranges {
                let range = start..start + len;
                let twice = range.clone().any(|byte| bytes.contains(&byte));
                match pieces.add(range.start, range.end) {
                    Added::Fits => {
                        prop_assert!(!twice);
                        bytes.extend(range);
                    }
                    Added::Overlaps => prop_assert!(twice),
                    Added::TooMany => prop_assert!(!twice && pieces.len == PIECES_MAX),
                }
                prop_assert_eq!(pieces.covered(), bytes.len() as u64);
            }
        }
    }
}
