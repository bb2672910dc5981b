//! When a drive is worth asking whether a read lies in a hole.
//!
//! Belongs to a connection. To ask costs a system call on a file, which a client that reads data
//! pays for nothing. Called by holes.rs; calls nothing.

/// Shortest read that drives are asked about, in bytes; a shorter one costs little more than that.
pub(crate) const HOLE_BYTES_MIN: u64 = 64 * 1024;
/// Most reads in a row that drives are not asked about.
const PASSES_MAX: u8 = 64;

/// When to ask whether a read lies in a hole: after n answers of no, not for the next 2^(n-1)
/// reads, [`PASSES_MAX`] at most. A yes starts over.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HoleSearch {
    /// Reads to let pass now.
    left: u8,
    /// Reads let pass after the last answer.
    passes: u8,
}

impl HoleSearch {
    /// Whether to ask about this read.
    pub(crate) fn is_due(&mut self) -> bool {
        let is_due = self.left == 0;
        self.left -= u8::from(!is_due);
        is_due
    }

    /// A read found a hole: the next one is looked up, too.
    pub(crate) fn note_hole(&mut self) {
        (self.left, self.passes) = (0, 0);
    }

    /// A read found data: twice as many as the last time are not looked up.
    pub(crate) fn note_data(&mut self) {
        let passes = (2 * self.passes).clamp(1, PASSES_MAX);
        (self.left, self.passes) = (passes, passes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reads, of so many, that a drive is asked about.
    fn asked(search: &mut HoleSearch, reads: u32, is_hole: bool) -> Vec<u32> {
        let mut ask = |_: &u32| {
            let is_due = search.is_due();
            if is_due {
                match is_hole {
                    true => search.note_hole(),
                    false => search.note_data(),
                }
            }
            is_due
        };
        (0..reads).filter(|read| ask(read)).collect()
    }

    #[test]
    fn a_client_that_reads_data_is_looked_up_ever_more_rarely() {
        let mut search = HoleSearch::default();
        let first = [0, 2, 5, 10, 19, 36, 69, 134, 199, 264];
        assert_eq!(asked(&mut search, 300, false), first);
        assert_eq!(asked(&mut search, 40, true), (29..40).collect::<Vec<_>>());
        assert_eq!(asked(&mut search, 6, false), [0, 2, 5], "a hole is as good as a new start");
    }
}
