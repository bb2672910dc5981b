//! `Cursor`: the memory of a request, copied to and from frames piece by piece.
//!
//! Made for one request in flight, whose segments are valid; moves forward through them, and starts
//! anew for a place before the last one. Copies go through raw pointers, since a guest may change
//! its memory meanwhile. Also cuts a part of a request's memory out as a list of segments, and says
//! which part of a request lies in a page.
#![allow(unsafe_code)]

use alloc::vec::Vec;

use millrace_block::{Request, Segment};
use millrace_machine::Machine;

use crate::memory::page::PageSize;

/// The part of a request in a page: bytes from its beginning, bytes into the page, and how many.
pub(crate) fn part_of<M: Machine>(
    size: PageSize,
    rq: &Request<M>,
    page: u64,
) -> (usize, usize, usize) {
    let (start, end) = (rq.sector(), rq.sector() + u64::from(rq.nr_sectors()));
    let first = size.start_of(page);
    let (from, to) = (start.max(first), end.min(first + size.sectors()));
    let bytes = |sectors: u64| sectors as usize * 512;
    (bytes(from - start), bytes(from - first), bytes(to - from))
}

/// The eighths of a page that a request is about.
pub(crate) fn wanted_of<M: Machine>(size: PageSize, rq: &Request<M>, page: u64) -> u8 {
    size.mask_of(page, rq.sector(), rq.sector() + u64::from(rq.nr_sectors()))
}

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyDirection {
    /// From the frame to the request.
    ToRequest,
    /// From the request to the frame.
    FromRequest,
}

/// A place in the memory of a request.
pub(crate) struct Cursor<'a, M: Machine> {
    rq: &'a Request<M>,
    pieces: millrace_block::Segments<'a, M>,
    piece: Segment,
    /// Bytes of the request before the piece.
    before: usize,
}

impl<'a, M: Machine> Cursor<'a, M> {
    /// The beginning of a request's memory.
    #[inline]
    pub(crate) fn new(rq: &'a Request<M>) -> Self {
        let mut pieces = rq.segments();
        let piece = pieces.next().expect("a request with data has memory");
        Cursor { rq, pieces, piece, before: 0 }
    }

    /// Moves to the piece that has the byte `at`.
    #[inline]
    fn seek(&mut self, at: usize) {
        if at < self.before {
            *self = Cursor::new(self.rq);
        }
        while at >= self.before + self.piece.len_bytes as usize {
            self.before += self.piece.len_bytes as usize;
            self.piece = self.pieces.next().expect("a request's memory is as long as it is");
        }
    }

    /// Copies `len_bytes` bytes between the request, from its byte `at` on, and a frame.
    ///
    /// # Safety
    /// The request is in flight, and `frame` is valid for as many bytes.
    #[inline]
    pub(crate) unsafe fn copy(
        &mut self,
        way: CopyDirection,
        at: usize,
        frame: *mut u8,
        len_bytes: usize,
    ) {
        let mut done = 0;
        while done < len_bytes {
            self.seek(at + done);
            let skip = at + done - self.before;
            let len = (self.piece.len_bytes as usize - skip).min(len_bytes - done);
            let (memory, frame) = (self.piece.start.wrapping_add(skip), frame.wrapping_add(done));
            // SAFETY: the piece is valid memory of the request, as the caller says the frame is;
            // no frame is part of a request to the cache.
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

    /// The memory of bytes `at` to `at + len_bytes` of the request.
    pub(crate) fn cut(&mut self, at: usize, len_bytes: usize) -> Vec<Segment> {
        let (mut done, mut list) = (0, Vec::new());
        while done < len_bytes {
            self.seek(at + done);
            let skip = at + done - self.before;
            let len = (self.piece.len_bytes as usize - skip).min(len_bytes - done);
            list.push(Segment {
                start: self.piece.start.wrapping_add(skip),
                len_bytes: len as u32,
            });
            done += len;
        }
        list
    }
}
