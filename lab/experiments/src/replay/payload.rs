//! Data that a replay writes, and the buffers of its I/Os.
//!
//! A trace has no data, so writes get pseudo-random bytes: targets that compress or deduplicate
//! would store zeroes or a repeated pattern in less space. Every buffer is filled once. Each write
//! then changes one word in each sector, which makes all sectors different at 1/64 of the cost of
//! filling them. Buffers are reused by length, up to a total size.

use std::collections::HashMap;
use std::ops::DerefMut;

use millrace_block::Op;
use millrace_random::SplitMix64;

/// Bytes per sector. Each write changes the first word of each sector.
const SECTOR: usize = 512;
const KEPT_BYTES_MAX: usize = 16 << 20;

#[derive(Debug)]
struct Payload(SplitMix64);

impl Payload {
    fn new(seed: u64) -> Payload {
        Payload(SplitMix64::new(seed))
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.0.next().to_le_bytes()[..chunk.len()]);
        }
    }

    /// Changes each sector of a filled buffer, so that the sectors of different writes differ.
    fn refresh(&mut self, bytes: &mut [u8]) {
        for sector in bytes.chunks_mut(SECTOR) {
            if let Some(word) = sector.first_chunk_mut() {
                *word = self.0.next().to_le_bytes();
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Kind {
    len: usize,
    is_write: bool,
}

#[derive(Debug)]
pub(crate) struct Pool<B> {
    free: HashMap<Kind, Vec<B>>,
    kept_bytes: usize,
    make: fn(usize) -> B,
    payload: Payload,
}

impl<B: DerefMut<Target = [u8]>> Pool<B> {
    pub(crate) fn new(make: fn(usize) -> B, seed: u64) -> Pool<B> {
        Pool { free: HashMap::new(), kept_bytes: 0, make, payload: Payload::new(seed) }
    }

    pub(crate) fn read(&mut self, len: usize) -> B {
        self.take(Kind { len, is_write: false }).unwrap_or_else(|| (self.make)(len))
    }

    pub(crate) fn write(&mut self, len: usize) -> B {
        match self.take(Kind { len, is_write: true }) {
            Some(mut buffer) => {
                self.payload.refresh(&mut buffer);
                buffer
            }
            None => {
                let mut buffer = (self.make)(len);
                self.payload.fill(&mut buffer);
                buffer
            }
        }
    }

    pub(crate) fn give_back(&mut self, buffer: B, op: Op) {
        let (len, is_write) = (buffer.len(), op == Op::Write);
        if self.kept_bytes + len > KEPT_BYTES_MAX {
            // Drop all idle buffers to make room: most of them have lengths that are no longer
            // used.
            self.free.clear();
            self.kept_bytes = 0;
        }
        self.kept_bytes += len;
        self.free.entry(Kind { len, is_write }).or_default().push(buffer);
    }

    fn take(&mut self, kind: Kind) -> Option<B> {
        let buffer = self.free.get_mut(&kind)?.pop()?;
        self.kept_bytes -= kind.len;
        Some(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn written_sectors_are_unique_and_never_zero() {
        let mut pool: Pool<Vec<u8>> = Pool::new(|len| vec![0; len], 1);
        let mut seen = HashSet::new();
        for _ in 0..20 {
            let read = pool.read(4096);
            let write = pool.write(4096);
            for sector in write.chunks(SECTOR) {
                assert!(seen.insert(sector.to_vec()));
                assert!(sector.iter().filter(|byte| **byte == 0).count() < 20);
            }
            pool.give_back(read, Op::Read);
            pool.give_back(write, Op::Write);
        }
    }

    #[test]
    fn pool_keeps_no_more_than_its_bound_whatever_lengths_there_are() {
        let mut pool: Pool<Vec<u8>> = Pool::new(|len| vec![0; len], 1);
        for sectors in 1..400 {
            let buffer = pool.read(sectors * SECTOR);
            pool.give_back(buffer, Op::Read);
            let kept: usize = pool.free.values().flatten().map(Vec::len).sum();
            assert_eq!(kept, pool.kept_bytes);
            assert!(kept <= KEPT_BYTES_MAX);
        }
    }
}
