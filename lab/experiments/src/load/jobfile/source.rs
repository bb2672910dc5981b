//! `Source`: generates the I/Os of one job, with direction, offset and length.
//!
//! A pass goes through the job's region once: sequential I/O up to the region's end, random I/O
//! until each block was drawn once. If random blocks may repeat, a pass never ends. The worker
//! decides on the number of passes and the total number of bytes. All choices follow from the job's
//! seed, so a run can be repeated.

use millrace_random::{SplitMix64, mixed};

use super::block_distribution::{BlockSequence, Distribution, Map};
use super::spec::{IoShape, JobSpec, Kind, Zones};

/// Largest number of blocks in the map of covered blocks, which then takes 512 MiB.
const MAP_MAX: u64 = 1 << 32;

/// Array indices of reads and writes, for arrays with one element per direction. Index 2 is for
/// trims.
pub(super) const READ: usize = 0;
pub(super) const WRITE: usize = 1;

/// Part of a device that one job works on, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) begin: u64,
    pub(super) size: u64,
    pub(super) io_size: u64,
    pub(super) device: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Io {
    pub(super) direction: usize,
    pub(super) offset: u64,
    pub(super) bytes: u32,
}

#[derive(Debug, Clone)]
pub(super) struct Source {
    kind: Kind,
    shape: IoShape,
    span: Span,
    random: [SplitMix64; 3],
    /// For each direction, where sequential I/O continues, in bytes from the region's start.
    next: [u64; 3],
    places: [Option<BlockSequence>; 3],
    /// Map of the blocks that random I/O has not used in the present pass through the job's region,
    /// with the block size in bytes; `None` if blocks may repeat.
    map: Option<(Map, u64)>,
    /// Number of I/Os until the next random offset. At 1, the next I/O gets a random offset; above
    /// 1, the next I/O is sequential.
    to_random: u32,
    /// Present zone: its start in bytes from the region's start, and the bytes of I/O done in it.
    zone: (u64, u64),
}

impl Source {
    pub(super) fn new(job: &JobSpec, span: Span, clone: u64) -> Result<Source, String> {
        let (kind, shape) = (job.kind, job.shape.clone());
        let mut seeds = SplitMix64::new(shape.seed ^ mixed(clone));
        let mut random = [0; 3].map(|_| SplitMix64::new(seeds.next()));
        let used = || (0..3).filter(|direction| kind.has[*direction]);
        for direction in used() {
            let least = shape.sizes[direction].least();
            if u64::from(least) > span.size {
                return Err(format!("bs={least}: longer than the {} bytes to work on", span.size));
            }
        }
        let places = [0, 1, 2].map(|direction| {
            let least = u64::from(shape.sizes[direction].least());
            // Number of possible random offsets: the smallest I/O must still fit into the job's
            // region.
            let blocks = match shape.align[direction] {
                Some(align) => span.size.saturating_sub(least) / u64::from(align) + 1,
                None => span.size / least,
            };
            let of = shape.distribution[direction].clone();
            (kind.random && kind.has[direction])
                .then(|| BlockSequence::new(of, blocks, &mut random[2]))
        });
        let even = used().all(|direction| shape.distribution[direction] == Distribution::Uniform);
        let unit = used().map(|direction| shape.sizes[direction].least()).min().unwrap_or(1);
        let blocks = span.size / u64::from(unit);
        let mapped = kind.random && shape.map && even && !is_aligned_otherwise(&shape);
        if mapped && blocks > MAP_MAX {
            return Err(format!(
                "{blocks} blocks, of which each is to be met once; {MAP_MAX} at most: add \
                 norandommap"
            ));
        }
        let map = mapped.then(|| (Map::new(blocks), u64::from(unit)));
        let to_random = shape.sequence.length;
        let (next, zone) = ([0; 3], (0, 0));
        Ok(Source { kind, shape, span, random, next, places, map, to_random, zone })
    }

    pub(super) fn restart(&mut self) {
        (self.next, self.zone) = ([0; 3], (0, 0));
        if let Some((map, _)) = &mut self.map {
            *map = Map::new(map.blocks());
        }
    }

    pub(super) fn least(&self) -> u32 {
        let used = (0..3).filter(|direction| self.kind.has[*direction]);
        used.map(|direction| self.shape.sizes[direction].least()).min().unwrap_or(1)
    }

    pub(super) fn direction(&mut self) -> usize {
        if self.kind.has[READ] && self.kind.has[WRITE] {
            let is_read = self.random[0].below(100) < self.shape.read_percent.into();
            return if is_read { READ } else { WRITE };
        }
        self.kind.has.iter().position(|has| *has).unwrap_or(READ)
    }

    /// Returns the next I/O of a direction. Returns `None` at the end of a pass through the job's
    /// region.
    pub(super) fn next(&mut self, direction: usize) -> Option<Io> {
        let is_turn = self.is_turn_of_random();
        let percent = self.shape.percent_random[direction];
        let random = self.kind.random
            && is_turn
            && (percent == 100 || self.random[2].below(100) < u64::from(percent));
        let found = match (random, self.map.is_some()) {
            (false, _) if self.kind.random => {
                self.in_order(direction).or_else(|| self.anywhere(direction))
            }
            (false, _) => self.in_order(direction),
            (true, true) => self.unmet(direction),
            (true, false) => self.anywhere(direction),
        };
        let (at, bytes) = found?;
        self.next[direction] = at + u64::from(bytes);
        self.zone.1 += u64::from(bytes);
        Some(Io { direction, offset: self.span.begin + at, bytes })
    }

    fn is_turn_of_random(&mut self) -> bool {
        self.to_random -= 1;
        if self.to_random == 0 {
            self.to_random = self.shape.sequence.length;
            return true;
        }
        false
    }

    /// Returns offset and length of the next sequential I/O. As in fio, the last I/O of a region
    /// may extend beyond the region's end, but not beyond the device's end.
    fn in_order(&mut self, direction: usize) -> Option<(u64, u32)> {
        let at = match self.shape.zones {
            Some(zones) => self.in_zone(zones, direction),
            None => self.behind(direction)?,
        };
        let left = self.span.device - self.span.begin;
        let end = if self.shape.zones.is_some() { left } else { self.span.size };
        let room = end.checked_sub(at).filter(|room| *room > 0)?;
        let sizes = &self.shape.sizes[direction];
        let beyond = || Some(sizes.least()).filter(|least| u64::from(*least) <= left - at);
        let bytes = sizes.draw(&mut self.random[1], room).or_else(beyond)?;
        Some((at, bytes))
    }

    /// Returns the next offset in a sequence with gaps (`rw=KIND:BYTES`). As in fio, the sequence
    /// wraps around only at the ends of the device.
    fn behind(&self, direction: usize) -> Option<u64> {
        let (next, gap) = (self.next[direction], self.shape.sequence.gap);
        if next == 0 || gap == 0 {
            return Some(next);
        }
        if self.span.begin + next >= self.span.device {
            return None;
        }
        match next.checked_add_signed(gap) {
            None => self.span.size.checked_add_signed(gap),
            Some(at) if gap > 0 && at >= self.span.device => Some(0),
            at => at,
        }
    }

    /// Returns the next offset in the present zone. Moves to the start of the next zone once the
    /// job has done `zones.size` bytes of I/O in the present one.
    fn in_zone(&mut self, zones: Zones, direction: usize) -> u64 {
        let next = &mut self.next[direction];
        if self.zone.1 >= zones.size {
            let begin = self.zone.0.saturating_add(zones.range).saturating_add(zones.skip);
            let is_inside = begin < self.span.device - self.span.begin;
            self.zone = (if is_inside { begin } else { 0 }, 0);
            *next = self.zone.0;
        }
        if *next >= self.zone.0.saturating_add(zones.range) {
            *next = self.zone.0;
        }
        *next
    }

    fn anywhere(&mut self, direction: usize) -> Option<(u64, u32)> {
        let sizes = &self.shape.sizes[direction];
        let unit = self.shape.align[direction].unwrap_or(sizes.least());
        let at = self.places[direction].as_ref()?.draw(&mut self.random[2]) * u64::from(unit);
        let bytes = sizes.draw(&mut self.random[1], self.span.size - at)?;
        Some((at, bytes))
    }

    /// Returns offset and length of a random I/O to blocks that the job has not used in the present
    /// pass through its region. The I/O ends before the next used block.
    fn unmet(&mut self, direction: usize) -> Option<(u64, u32)> {
        let (map, unit) = self.map.as_mut()?;
        let drawn = ((u128::from(self.random[2].next()) * u128::from(map.blocks())) >> 64) as u64;
        let block = map.free_from(drawn)?;
        let at = block * *unit;
        let room = (self.span.size - at).max(*unit);
        let sizes = &self.shape.sizes[direction];
        let bytes = sizes.draw(&mut self.random[1], room).unwrap_or(*unit as u32);
        if u64::from(bytes) <= *unit {
            map.take(block);
            return Some((at, bytes));
        }
        let wanted = u64::from(bytes).div_ceil(*unit);
        let free = (block..block + wanted).take_while(|block| map.is_free(*block)).count() as u64;
        (block..block + free).for_each(|block| map.take(block));
        let bytes = if free < wanted { (free * *unit) as u32 } else { bytes };
        Some((at, bytes))
    }
}

/// Returns true if reads, writes or trims have an alignment (`blockalign`) other than their
/// smallest I/O size. As in fio, random I/O of such a job may use a block more than once.
fn is_aligned_otherwise(shape: &IoShape) -> bool {
    let mut aligns = shape.align.iter().zip(&shape.sizes);
    aligns.any(|(align, sizes)| align.is_some_and(|align| align != sizes.least()))
}

#[cfg(test)]
#[path = "source/tests.rs"]
mod tests;
