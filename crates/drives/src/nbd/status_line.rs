//! `StatusLine`: a separate connection for block status queries, never on the path of I/O.
//!
//! The connection is opened at the first query, only for exports on which a second connection sees
//! the writes of the first. A query blocks for a limited time; a server that does not answer is not
//! asked again for a while. Specification: "Block status", `base:allocation`.

use std::io;
use std::time::{Duration, Instant};

use millrace_block::Extent;
use millrace_machine::Deadline;
use millrace_nbd::client::{ServerReply, parse_reply};
use millrace_nbd::status::descriptors;
use millrace_nbd::{Command, Extent as ByteExtent, ReplyStyle, Request, encode_request};

use super::NbdState;
use super::dial::{DialPurpose, NegotiatedConnection};
use super::siblings::ConnectionSharing;
use super::wire::TimedConnection;
use crate::common::extents::{DATA, ExtentState, SectorExtents, all_data};

const PATIENCE: Duration = Duration::from_secs(2);
/// Time for which a server that failed to answer is not asked again.
const QUIET: Duration = Duration::from_secs(30);
const RANGE_BYTES_MAX: u64 = 1 << 30;
/// Maximum length of a reply, in bytes; longer ones count as failures.
const REPLY_BYTES_MAX: usize = 1 << 20;

#[derive(Default)]
pub(crate) struct StatusLine {
    line: Option<StatusConnection>,
    quiet_until: Option<Instant>,
    /// True if the server does not support `base:allocation`. No more queries are sent then.
    never: bool,
}

struct StatusConnection {
    wire: TimedConnection,
    style: ReplyStyle,
    context_id: u32,
    cookie: u64,
}

impl StatusLine {
    /// Asks the server which parts of a byte range are allocated. Returns extents that begin at
    /// `offset` and may end before the range does, or `None` if the server does not say.
    pub(crate) fn ask(
        &mut self,
        shared: &NbdState,
        offset: u64,
        len: u64,
    ) -> Option<Vec<ByteExtent>> {
        if self.never || self.quiet_until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        // The server may have closed an idle connection, so one retry is made on a new connection.
        for _ in 0..2 {
            if self.line.is_none() {
                self.line = self.open(shared);
            }
            let line = self.line.as_mut()?;
            match line.ask(offset, len.min(RANGE_BYTES_MAX)) {
                Ok(extents) => return Some(extents),
                Err(_) => self.line = None,
            }
        }
        self.quiet_until = Some(Instant::now() + QUIET);
        None
    }

    fn open(&mut self, shared: &NbdState) -> Option<StatusConnection> {
        let connected = shared.target.dial(DialPurpose::Status, PATIENCE).ok();
        let sees_writes = |one: &NegotiatedConnection| {
            shared.sharing(&one.session) == ConnectionSharing::WithOthers
        };
        let Some(connected) = connected.filter(sees_writes) else {
            self.quiet_until = Some(Instant::now() + QUIET);
            return None;
        };
        let (style, wire) = (connected.session.style, connected.wire);
        let Some(context_id) = connected.session.allocation else {
            self.never = true;
            return None;
        };
        Some(StatusConnection { wire, style, context_id, cookie: 0 })
    }
}

impl StatusConnection {
    fn ask(&mut self, offset: u64, length: u64) -> io::Result<Vec<ByteExtent>> {
        let mut deadline = Deadline::after(PATIENCE);
        self.cookie += 1;
        let (cookie, command) = (self.cookie, Command::BlockStatus);
        let mut header = [0; 32];
        let request = Request { cookie, flags: 0, command, offset, length };
        let bytes = encode_request(&request, self.style, &mut header);
        self.wire.say(&header[..bytes], &mut deadline)?;
        let (mut input, mut extents) = (Vec::new(), Vec::new());
        loop {
            match self.answer(&input, &mut extents)? {
                Some((_, true)) => return Ok(extents),
                Some((used, false)) => {
                    input.drain(..used);
                }
                None => {
                    if input.len() > REPLY_BYTES_MAX {
                        return Err(io::ErrorKind::InvalidData.into());
                    }
                    if self.wire.hear(&mut input, &mut deadline)? == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
            }
        }
    }

    /// Parses the next chunk of a reply. Returns the chunk's length, and true if it is the last
    /// chunk. Returns `None` if more bytes are needed.
    fn answer(
        &self,
        input: &[u8],
        extents: &mut Vec<ByteExtent>,
    ) -> io::Result<Option<(usize, bool)>> {
        let wrong = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
        let parsed = parse_reply(input, self.style).map_err(|error| wrong(error.to_string()))?;
        let Some((reply, header_bytes)) = parsed else { return Ok(None) };
        match reply {
            ServerReply::Status { cookie, context_id, width, descriptor_bytes, last }
                if cookie == self.cookie && context_id == self.context_id =>
            {
                let end = header_bytes + descriptor_bytes as usize;
                let Some(list) = input.get(header_bytes..end) else { return Ok(None) };
                extents.extend(descriptors(list, width).filter(|extent| extent.len > 0));
                Ok(Some((end, last)))
            }
            ServerReply::Done { cookie } if cookie == self.cookie => Ok(Some((header_bytes, true))),
            reply => Err(wrong(format!("{reply:?} is no answer to a block status request"))),
        }
    }
}

/// Converts extents to whole sectors, at most `nr_sectors` of them. A sector that is partly data
/// counts as data.
pub(crate) fn in_sectors(extents: &[ByteExtent], nr_sectors: u64) -> Vec<Extent> {
    let (mut list, mut end) = (SectorExtents::new(0, nr_sectors), 0u64);
    for extent in extents {
        let start = end;
        end = end.saturating_add(extent.len);
        match (extent.hole, extent.zero) {
            (false, false) => list.cover(end.div_ceil(512), DATA),
            (hole, zero) => {
                // A sector that contains the boundary of two extents counts as data.
                list.cover(start.div_ceil(512), DATA);
                list.cover(end >> 9, ExtentState { hole, zero });
            }
        }
    }
    // If the server's answer covers only a part of the first sector, that sector counts as data.
    if list.extents.is_empty() { all_data(nr_sectors) } else { list.extents }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_that_is_partly_data_is_data() {
        let extent = |len, hole| ByteExtent { len, hole, zero: hole };
        let sectors = |nr_sectors, hole| Extent { nr_sectors, hole, zero: hole };
        for (bytes, expected) in [
            (vec![(1024, true), (512, false)], vec![(2, true), (1, false)]),
            (vec![(1000, true), (536, false)], vec![(1, true), (2, false)]),
            (vec![(100, false), (1436, true)], vec![(1, false), (2, true)]),
            (vec![(100, true), (100, false), (312, true)], vec![(1, false)]),
            (vec![(u64::MAX, true)], vec![(8, true)]),
            (vec![(100, true)], vec![(8, false)]),
            (vec![], vec![(8, false)]),
        ] {
            let bytes: Vec<_> = bytes.into_iter().map(|(len, hole)| extent(len, hole)).collect();
            let expected: Vec<_> =
                expected.into_iter().map(|(count, hole)| sectors(count, hole)).collect();
            assert_eq!(in_sectors(&bytes, 8), expected, "{bytes:?}");
        }
    }
}
