//! Reads of holes: answered at once with a hole chunk, without asking the drives for data.
//!
//! Reads of groups with a read limit are excluded, since a read of a hole counts against the limit,
//! too.
//!
//! Invariants: the whole range of such a read is a hole, so that the reply is one chunk, as the DF
//! flag demands. No hole chunk is sent for a read that may fail. Every write that completed before
//! the read arrived is taken into account. Specification: "Structured reply types".

use millrace_block::Op;

use super::{ClientRequest, WorkerContext};
use crate::nbd::connection::Connection;
use millrace_nbd::{Command, Position, ReplyStyle};

impl WorkerContext {
    /// Answers a read if its range is known to be a hole. Returns true if the read was answered.
    #[inline(never)]
    pub(crate) fn answer_hole(
        &mut self,
        conn: &mut Connection,
        request: ClientRequest<'_>,
    ) -> bool {
        // Reads of null drives are not answered here, because null drives serve to measure the
        // whole path of a request.
        let has_chunks = request.granted.session.style != ReplyStyle::Simple;
        if request.command != Command::Read || !has_chunks || request.granted.no_payload {
            return false;
        }
        if !conn.history.holes.is_due() {
            return false;
        }
        // The block layer enforces the limits of groups, so a limited read must be submitted to it.
        let lane = &mut self.submitter.lanes[request.granted.lane as usize];
        if lane.channel.is_limited(request.granted.group, Op::Read) {
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
        let reply = request.reply();
        conn.out.push(|buffer| reply.offset_hole(buffer, Position::Last, request.offset, length));
        true
    }
}
