//! `HoleSearch`: decides whether to query a drive for a hole before a read.
//!
//! On a file drive, the query costs a system call, which is wasted if the range has data.

/// Minimum length, in bytes, of a read for which the server first queries the drive for a hole. A
/// shorter read costs about as much as the query.
pub(crate) const HOLE_BYTES_MIN: u64 = 64 * 1024;
const PASSES_MAX: u8 = 64;

/// Back-off of hole queries: each consecutive query that finds data doubles the number of following
/// reads that make no query, from 1 up to 64.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HoleSearch {
    /// Number of reads to skip before the next hole query.
    left: u8,
    /// Total number of reads that make no hole query after the last query found data. 0 if the last
    /// query found a hole, or before the first query.
    passes: u8,
}

impl HoleSearch {
    pub(crate) fn is_due(&mut self) -> bool {
        let left = self.left;
        // Avoids `x -= u8::from(x != 0)`, which rustc 1.95 can miscompile (rust-lang/rust#158206).
        self.left = left.saturating_sub(1);
        left == 0
    }

    /// Records that the read was in a hole. The next read makes a hole query, too.
    pub(crate) fn note_hole(&mut self) {
        (self.left, self.passes) = (0, 0);
    }

    /// Records that the query found data. Doubles the number of following reads that make no query.
    pub(crate) fn note_data(&mut self) {
        let passes = (2 * self.passes).clamp(1, PASSES_MAX);
        (self.left, self.passes) = (passes, passes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the numbers of those of `reads` consecutive reads about which the drive is asked.
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
