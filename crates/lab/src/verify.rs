//! The pattern that `--verify` writes: every block names its place, its generation and its
//! checksum.
//!
//! Used by job.rs: `stamp` before a write, `check` after the read back. Layout of a block, little
//! endian: magic (8), byte offset on the device (8), generation (8), crc32c of the rest of the
//! block (4), then bytes that depend on the offset and generation.

use std::ops::Range;

const MAGIC: u64 = 0x6563_6172_6c6c_696d;
const HEAD: usize = 28;

fn word(block: &[u8], range: Range<usize>) -> u64 {
    let mut bytes = [0; 8];
    bytes[..range.len()].copy_from_slice(&block[range]);
    u64::from_le_bytes(bytes)
}

/// Fills a block for its place and generation.
pub(crate) fn stamp(block: &mut [u8], offset: u64, generation: u64) {
    block[0..8].copy_from_slice(&MAGIC.to_le_bytes());
    block[8..16].copy_from_slice(&offset.to_le_bytes());
    block[16..24].copy_from_slice(&generation.to_le_bytes());
    let mut state = offset ^ generation.rotate_left(32) ^ 0x5851_f42d_4c95_7f2d;
    for chunk in block[HEAD..].chunks_mut(8) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
    let crc = crc32c::crc32c(&block[HEAD..]);
    block[24..28].copy_from_slice(&crc.to_le_bytes());
}

/// What is wrong with a block that was read back, if anything.
pub(crate) fn check(block: &[u8], offset: u64, generation: u64) -> Result<(), String> {
    let (magic, place, found) = (word(block, 0..8), word(block, 8..16), word(block, 16..24));
    if magic != MAGIC {
        return Err(format!("offset {offset}: no pattern there (first bytes {magic:#018x})"));
    }
    if place != offset {
        return Err(format!("offset {offset}: holds the block of offset {place}"));
    }
    if found != generation {
        return Err(format!("offset {offset}: generation {found}, last written {generation}"));
    }
    let crc = u64::from(crc32c::crc32c(&block[HEAD..]));
    let stored = word(block, 24..28);
    if crc != stored {
        return Err(format!("offset {offset}: crc32c {crc:#010x}, stamped {stored:#010x}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamped_block_checks_and_any_change_is_named() {
        let mut block = vec![0; 512];
        stamp(&mut block, 8192, 3);
        assert_eq!(check(&block, 8192, 3), Ok(()));
        assert!(check(&block, 4096, 3).expect_err("moved").contains("holds the block of"));
        assert!(check(&block, 8192, 4).expect_err("stale").contains("generation 3"));
        block[300] ^= 1;
        assert!(check(&block, 8192, 3).expect_err("torn").contains("crc32c"));
    }
}
