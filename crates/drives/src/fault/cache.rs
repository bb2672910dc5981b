//! `SimulatedCache`: simulates a drive with a volatile write cache whose power can be cut.
//!
//! The cache has two images of the drive: `current`, which reads see, and `durable`, which survives
//! a power cut. The images may differ in the dirty sectors. A write changes the current image; a
//! flush copies all dirty sectors to the durable image; a FUA write copies its own. A power cut
//! keeps one of the two versions of each dirty sector, at random. If a dirty sector is written
//! again, its old content may be made durable first, as when a real cache evicts it, so any version
//! since the last flush can survive.
use std::collections::HashSet;
use std::sync::Mutex;

use millrace_block::{Error, Op, OpFlags, Request, Sector};
use millrace_machine::{Native, lock_unpoisoned};
use millrace_random::SplitMix64;

use crate::common::mapping::MemoryMapping;

pub(crate) struct SimulatedCache {
    images: Mutex<CacheImages>,
}

struct CacheImages {
    durable: MemoryMapping,
    current: MemoryMapping,
    dirty: HashSet<Sector>,
    random: SplitMix64,
    cuts: u64,
}

impl SimulatedCache {
    pub(crate) fn new(nr_sectors: Sector, seed: u64) -> Result<SimulatedCache, Error> {
        let images = CacheImages {
            durable: MemoryMapping::new(nr_sectors << 9)?,
            current: MemoryMapping::new(nr_sectors << 9)?,
            dirty: HashSet::new(),
            random: SplitMix64::new(seed),
            cuts: 0,
        };
        Ok(SimulatedCache { images: Mutex::new(images) })
    }

    /// Executes a request. Returns the number of power cuts so far. If that number is higher when
    /// the request completes, the power was cut while the request was in flight.
    pub(crate) fn run(&self, rq: &Request<Native>) -> u64 {
        let mut images = lock_unpoisoned(&self.images);
        match rq.op() {
            Op::Read => images.current.transfer(rq),
            Op::Write => images.write(rq),
            Op::Flush => images.persist_all(),
            Op::Discard | Op::WriteZeroes => images.clear(rq),
        }
        images.cuts
    }

    pub(crate) fn cuts(&self) -> u64 {
        lock_unpoisoned(&self.images).cuts
    }

    /// Cuts the power. Returns the number of sectors that lost their newest content.
    pub(crate) fn power_cut(&self, random: &mut SplitMix64) -> u64 {
        let mut images = lock_unpoisoned(&self.images);
        let images = &mut *images;
        // Each sector uses the next random bit. The sectors are sorted, because a hash set has no
        // fixed order and the result must depend on the seed alone.
        let mut dirty: Vec<Sector> = images.dirty.drain().collect();
        dirty.sort_unstable();
        let mut lost = 0;
        for sector in dirty {
            match random.next() & 1 == 0 {
                true => images.durable.copy_from(&images.current, sector << 9, 512),
                false => {
                    images.current.copy_from(&images.durable, sector << 9, 512);
                    lost += 1;
                }
            }
        }
        images.cuts += 1;
        lost
    }
}

impl CacheImages {
    fn write(&mut self, rq: &Request<Native>) {
        self.note_dirty(rq);
        self.current.transfer(rq);
        if rq.flags().has(OpFlags::FUA) {
            for sector in rq.sector()..rq.sector() + u64::from(rq.nr_sectors()) {
                self.durable.copy_from(&self.current, sector << 9, 512);
                self.dirty.remove(&sector);
            }
        }
    }

    fn clear(&mut self, rq: &Request<Native>) {
        self.note_dirty(rq);
        self.current.clear(rq.sector() << 9, u64::from(rq.nr_sectors()) << 9);
    }

    /// Marks sectors as dirty, before they are changed. If a sector is dirty already, its current
    /// content becomes durable with probability 1/4.
    fn note_dirty(&mut self, rq: &Request<Native>) {
        for sector in rq.sector()..rq.sector() + u64::from(rq.nr_sectors()) {
            if !self.dirty.insert(sector) && self.random.next() & 3 == 0 {
                self.durable.copy_from(&self.current, sector << 9, 512);
            }
        }
    }

    fn persist_all(&mut self) {
        for sector in self.dirty.drain() {
            self.durable.copy_from(&self.current, sector << 9, 512);
        }
    }
}
