//! Whether a server's disk seems to hold something.
//!
//! Partition tables and file systems begin within the first MiB, and backups of such tables end
//! with the disk: a disk that has zeroes in both places is taken for an empty one. Called by nbd.rs
//! and vhost.rs, which read.

use std::ops::Range;

/// Bytes that are looked at on either side.
const LOOKED_AT_BYTES: u64 = 1 << 20;

/// Whether a disk of so many bytes has a byte other than zero at its begin or end, as `read` gives
/// ranges of at most `most_bytes`, which both are multiples of the disk's block.
pub(crate) fn holds_data<E>(
    size_bytes: u64,
    most_bytes: u64,
    mut read: impl FnMut(Range<u64>) -> Result<Vec<u8>, E>,
) -> Result<bool, E> {
    let step = most_bytes.clamp(1, LOOKED_AT_BYTES);
    let looked_at = LOOKED_AT_BYTES.div_ceil(step) * step;
    let tail = size_bytes.saturating_sub(looked_at);
    for Range { mut start, end } in [0..size_bytes.min(looked_at), tail..size_bytes] {
        while start < end {
            let next = (start + step).min(end);
            if read(start..next)?.iter().any(|byte| *byte != 0) {
                return Ok(true);
            }
            start = next;
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn holds(size: u64, at: u64) -> bool {
        let read = |range: Range<u64>| {
            assert!(range.end <= size && range.end - range.start <= 4096);
            Ok::<_, Infallible>(range.map(|byte| u8::from(byte == at)).collect())
        };
        holds_data(size, 4096, read).unwrap()
    }

    #[test]
    fn a_byte_at_either_end_is_found_and_none_in_between_is_asked_for() {
        let size = 5 << 20;
        for at in [0, (1 << 20) - 1, size - (1 << 20), size - 1] {
            assert!(holds(size, at), "{at}");
        }
        assert!(!holds(size, 2 << 20) && !holds(size, size));
        assert!(holds(4096, 4095) && !holds(4096, 4096));
    }
}
