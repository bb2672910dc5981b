//! Reads of holes: answered at once with a hole chunk, without their drives and without payload.
//!
//! Called by execute.rs for reads that are long enough; asks the connection's `HoleSearch` whether
//! the drive is worth asking, and then the volume.
//!
//! A group with a limit on its reads has none of this: a hole counts as any read.
//!
//! Invariants: whole ranges only, so that a reply is one chunk, which suits the DF flag; no hole
//! chunk for a read that may fail, or whose range was touched by a write that was answered before
//! the read came. Writes in flight may be seen or not: the protocol leaves them unordered.
//! Specification: "Structured reply types".

use millrace_block::Op;

use super::Core;
use crate::nbd::connection::{Connection, Granted};
use millrace_nbd::{Command, Position, Reply, ReplyStyle, Request};

impl Core {
    /// Answers a read if it is known to give zeroes; true if it did.
    #[inline(never)]
    pub(crate) fn answer_hole(
        &mut self,
        conn: &mut Connection,
        granted: &Granted,
        request: &Request,
    ) -> bool {
        // Without payload there is little to save, and such drives are there to get their requests.
        let has_chunks = granted.session.style() != ReplyStyle::Simple;
        if request.command != Command::Read || !has_chunks || granted.no_payload {
            return false;
        }
        if !conn.history.holes.is_due() {
            return false;
        }
        // Limits count what goes through the layer.
        let lane = &mut self.submitter.lanes[granted.lane as usize];
        if lane.channel.is_limited(granted.group, Op::Read) {
            return false;
        }
        let length = request.length as u32;
        let (sector, end) = (request.offset >> 9, (request.offset + request.length).div_ceil(512));
        let is_hole = lane.served.volume.reads_as_zeroes(sector, (end - sector) as u32);
        if !is_hole {
            conn.history.holes.note_data();
            return false;
        }
        conn.history.holes.note_hole();
        conn.in_flight += 1;
        let reply = Reply::new(request, &granted.session);
        conn.out.push(|buffer| reply.offset_hole(buffer, Position::Last, request.offset, length));
        true
    }
}
