//! `RequestCursor`: copies data between a request's memory and cache frames (memory of one page
//! each).
//!
//! A cursor moves forward through the segments of a request in flight. To move back, it starts
//! again at the first segment. Copies use raw pointers, because a guest may change its memory
//! during the copy.
#![allow(unsafe_code)]

use alloc::vec::Vec;

use millrace_block::{Request, Segment};
use millrace_machine::Machine;

use crate::memory::frames::FrameMemory;
use crate::memory::page::PageSize;

/// Returns a request's first sector and the sector after its last.
pub(crate) fn span_of<M: Machine>(rq: &Request<M>) -> (u64, u64) {
    (rq.sector(), rq.sector() + u64::from(rq.nr_sectors()))
}

/// Returns the part of a request that lies in a page: byte offset in the request, byte offset in
/// the page, and length in bytes.
pub(crate) fn part_of<M: Machine>(
    size: PageSize,
    rq: &Request<M>,
    page: u64,
) -> (usize, usize, usize) {
    let (start, end) = span_of(rq);
    let first = size.start_of(page);
    let (from, to) = (start.max(first), end.min(first + size.sectors()));
    let bytes = |sectors: u64| sectors as usize * 512;
    (bytes(from - start), bytes(from - first), bytes(to - from))
}

pub(crate) fn wanted_of<M: Machine>(size: PageSize, rq: &Request<M>, page: u64) -> u8 {
    let (start, end) = span_of(rq);
    size.mask_of(page, start, end)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyDirection {
    ToRequest,
    FromRequest,
}

pub(crate) struct RequestCursor<'a, M: Machine> {
    rq: &'a Request<M>,
    pieces: millrace_block::Segments<'a, M>,
    piece: Segment,
    /// Number of bytes of the request before the current segment.
    before: usize,
}

impl<'a, M: Machine> RequestCursor<'a, M> {
    #[inline]
    pub(crate) fn new(rq: &'a Request<M>) -> Self {
        let mut pieces = rq.segments();
        let piece = pieces.next().expect("a request with data has at least one segment");
        RequestCursor { rq, pieces, piece, before: 0 }
    }

    /// Returns the address of the request's byte `at`, and the number of bytes that follow in the
    /// same segment. The number is limited to `most`.
    #[inline]
    fn piece_at(&mut self, at: usize, most: usize) -> (*mut u8, usize) {
        if at < self.before {
            *self = RequestCursor::new(self.rq);
        }
        while at >= self.before + self.piece.len_bytes as usize {
            self.before += self.piece.len_bytes as usize;
            self.piece = self.pieces.next().expect("a request's memory is as long as the request");
        }
        let skip = at - self.before;
        (self.piece.start.wrapping_add(skip), (self.piece.len_bytes as usize - skip).min(most))
    }

    /// Copies data between the request and the frame of a page. Copies only the part of the request
    /// that lies in the page.
    ///
    /// # Safety
    /// The request must be in flight. The caller must hold the lock of the shard that has `frame`,
    /// so that nobody else uses the frame.
    #[inline]
    pub(crate) unsafe fn copy_page(
        &mut self,
        way: CopyDirection,
        frames: &FrameMemory,
        page: u64,
        frame: u32,
    ) {
        let (at, into, len_bytes) = part_of(frames.page, self.rq, page);
        let frame = frames.at(frame).wrapping_add(into);
        let mut done = 0;
        while done < len_bytes {
            let (memory, len) = self.piece_at(at + done, len_bytes - done);
            let frame = frame.wrapping_add(done);
            // SAFETY: the request's memory and the frame are valid and never overlap.
            unsafe {
                match way {
                    CopyDirection::ToRequest => core::ptr::copy_nonoverlapping(frame, memory, len),
                    CopyDirection::FromRequest => {
                        core::ptr::copy_nonoverlapping(memory, frame, len)
                    }
                }
            }
            done += len;
        }
    }

    pub(crate) fn cut(&mut self, at: usize, len_bytes: usize) -> Vec<Segment> {
        let (mut done, mut list) = (0, Vec::new());
        while done < len_bytes {
            let (start, len) = self.piece_at(at + done, len_bytes - done);
            list.push(Segment { start, len_bytes: len as u32 });
            done += len;
        }
        list
    }
}
