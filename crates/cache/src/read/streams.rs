//! `StreamDetector`: detects sequential readers among a queue's reads, and decides how far to read
//! ahead.
//!
//! A read that starts where another read ended belongs to the same stream. The read-ahead window
//! doubles with each such read up to the configured maximum, and is refilled when half of it is
//! used. Kernel counterpart: `ondemand_readahead`.

use core::ops::Range;

use crate::memory::page::PageSize;

const STREAMS: usize = 16;
/// Number of reads after which a stream is no longer active. The count starts at the stream's last
/// read, and includes all reads of the queue. If the slot for a new stream holds an active stream
/// that has read ahead, the new stream takes the next slot of `streams` instead.
const PATIENCE: u64 = 256;
/// Size of a stream's first read-ahead window, in bytes; one page if a page is larger.
const FIRST_BYTES: u64 = 32 << 10;

#[derive(Debug, Clone, Copy, Default)]
struct SequentialStream {
    /// Page at which the stream's next read is expected to begin.
    next: u64,
    /// First page that was not read ahead yet.
    ahead: u64,
    /// Read-ahead window in pages.
    window: u64,
    used: u64,
}

#[derive(Debug)]
pub(crate) struct StreamDetector {
    streams: [SequentialStream; STREAMS],
    clock: u64,
    hand: usize,
    pages_first: u64,
    pages_max: u64,
}

impl StreamDetector {
    /// Creates a detector that reads ahead by at most `bytes_max`, rounded up to whole pages; 0
    /// turns read-ahead off.
    pub(crate) fn new(page: PageSize, bytes_max: u64) -> StreamDetector {
        let streams = [SequentialStream::default(); STREAMS];
        let pages_max = bytes_max.div_ceil(page.bytes() as u64);
        StreamDetector { streams, clock: 0, hand: 0, pages_first: page.fit(FIRST_BYTES), pages_max }
    }

    pub(crate) fn note(&mut self, pages: &Range<u64>) -> Option<Range<u64>> {
        if self.pages_max == 0 {
            return None;
        }
        self.clock += 1;
        let clock = self.clock;
        // The stream's last read may have ended inside the page before `next`. The read that
        // continues the stream begins in the same page.
        let continues = |s: &&mut SequentialStream| {
            s.used != 0 && (s.next == pages.start || s.next == pages.start + 1)
        };
        let Some(stream) = self.streams.iter_mut().find(continues) else {
            self.hand = (self.hand + 1) % STREAMS;
            if self.streams[self.hand].used + PATIENCE > clock && self.streams[self.hand].window > 0
            {
                // The stream in this slot of `streams` is still active, so the next slot is used.
                self.hand = (self.hand + 1) % STREAMS;
            }
            self.streams[self.hand] =
                SequentialStream { next: pages.end, ahead: pages.end, window: 0, used: clock };
            return None;
        };
        if pages.end <= stream.next {
            // The read ends inside the last page of the stream's previous read, so the stream does
            // not advance.
            stream.used = clock;
            return None;
        }
        (stream.next, stream.used) = (pages.end, clock);
        stream.window = (2 * stream.window).max(self.pages_first).min(self.pages_max);
        let from = stream.ahead.max(pages.end);
        let until = pages.end + stream.window;
        if from > pages.end + stream.window / 2 {
            return None;
        }
        stream.ahead = until;
        Some(from..until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn windows_double_for_a_sequential_reader_and_refill_at_half() {
        let mut streams = StreamDetector::new(PageSize::over(512), 64 << 12);
        let found: Vec<_> = (0..12).map(|at| streams.note(&(at * 4..at * 4 + 4))).collect();
        let windows: Vec<_> = found.iter().flatten().cloned().collect();
        assert_eq!(windows[..3], [8..16, 16..28, 28..48]);
        assert!(windows.windows(2).all(|two| two[0].end == two[1].start), "{windows:?}");
        assert!(windows.iter().all(|window| window.end - window.start <= 64));
    }

    #[test]
    fn random_readers_and_those_beyond_setting_get_nothing_ahead() {
        let mut streams = StreamDetector::new(PageSize::over(512), 64 << 12);
        assert!((0..100).all(|at| streams.note(&(at * 1000..at * 1000 + 1)).is_none()));
        assert!((0..100).all(|_| streams.note(&(7..8)).is_none()), "one page again and again");
        let mut off = StreamDetector::new(PageSize::over(512), 0);
        assert!((0..100).all(|at| off.note(&(at..at + 1)).is_none()));
    }
}
