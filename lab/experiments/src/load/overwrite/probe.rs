//! Search for data on a server's disk.
//!
//! The search reads the ranges that are not known to be zeroes: all of them if they are small,
//! otherwise samples that are spread over them. The first and the last sample lie at the ends of
//! the ranges, where partition tables, their backups and the headers of file systems are. Bytes
//! other than zero count as data; zeroes in allocated blocks do not. servers.rs calls this file and
//! does the reads.

use std::ops::Range;

const PLACE_BYTES: u64 = 1 << 20;
const PLACES_MAX: u64 = 64;

/// Returns the offset of the first nonzero byte in samples of the ranges `unknown`. The ranges are
/// in order, and each consists of whole blocks. `read` reads at most `most_bytes` at a time.
pub(super) fn first_data<E>(
    unknown: &[Range<u64>],
    most_bytes: u64,
    mut read: impl FnMut(Range<u64>) -> Result<Vec<u8>, E>,
) -> Result<Option<u64>, E> {
    let len_bytes: u64 = unknown.iter().map(|range| range.end - range.start).sum();
    let places = len_bytes.div_ceil(PLACE_BYTES);
    for number in 0..places.min(PLACES_MAX) {
        let place = match places > PLACES_MAX {
            true => number * (places - 1) / (PLACES_MAX - 1),
            false => number,
        };
        for Range { mut start, end } in parts(unknown, place * PLACE_BYTES) {
            while start < end {
                let next = start.saturating_add(most_bytes.max(1)).min(end);
                if let Some(at) = read(start..next)?.iter().position(|byte| *byte != 0) {
                    return Ok(Some(start + at as u64));
                }
                start = next;
            }
        }
    }
    Ok(None)
}

/// Returns the parts of `ranges` that belong to one sample of `PLACE_BYTES` bytes. The sample
/// begins at the offset `place` in the concatenated ranges.
fn parts(ranges: &[Range<u64>], place: u64) -> impl Iterator<Item = Range<u64>> {
    let mut before = 0;
    ranges.iter().filter_map(move |range| {
        let len = range.end - range.start;
        let (first, last) = (place.max(before), (place + PLACE_BYTES).min(before + len));
        let part =
            (first < last).then(|| range.start + first - before..range.start + last - before);
        before += len;
        part
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    const MIB: u64 = 1 << 20;

    fn holds(unknown: &[Range<u64>], at: u64) -> bool {
        let read = |range: Range<u64>| {
            assert!(range.end - range.start <= 4096 && range.start.is_multiple_of(512));
            assert!(unknown.iter().any(|all| all.start <= range.start && range.end <= all.end));
            // Zeroes behind the byte are left out, as are ranges without it: one test reads 80 GB.
            let mut bytes = Vec::new();
            if range.contains(&at) {
                bytes.resize((at - range.start) as usize, 0);
                bytes.push(1);
            }
            Ok::<_, Infallible>(bytes)
        };
        let found = first_data(unknown, 4096, read).unwrap();
        assert!(found.is_none_or(|found| found == at));
        found.is_some()
    }

    #[test]
    fn unknown_byte_in_64_mib_is_found_and_no_other() {
        let unknown = [0..512, 10 * MIB + 512..12 * MIB, 1000 * MIB..1001 * MIB + 1024];
        for range in &unknown {
            assert!(holds(&unknown, range.start) && holds(&unknown, range.end - 1), "{range:?}");
            assert!(!holds(&unknown, range.end), "{range:?}");
        }
        assert!(holds(&unknown, 11 * MIB));
        assert!(!holds(&[], 0));
    }

    #[test]
    fn of_more_its_ends_and_places_between_are_looked_at() {
        let size = 640 * MIB + 512;
        let (unknown, ends) = ([0..512, 512..size], [0, MIB - 1, 640 * MIB, size - 1]);
        assert!(ends.iter().all(|at| holds(&unknown, *at)));
        let found = (0..=640).filter(|place| holds(&unknown, place * MIB)).count();
        assert_eq!(found as u64, PLACES_MAX);
        let between = (0..640)
            .step_by(11)
            .filter(|place| (*place..place + 11).any(|place| holds(&unknown, place * MIB + 5)));
        assert_eq!(between.count(), 640_usize.div_ceil(11), "none is far from such a place");
    }
}
