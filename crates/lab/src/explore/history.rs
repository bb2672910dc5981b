//! `History`: who wrote each sector, and what a read may find there.
//!
//! Part of the judge. A sector behaves like a regular register: a read may find what any write left
//! that began before the read ended, unless another write, which began after that one had ended,
//! was acknowledged before the read began. A write that failed may have happened; one that timed
//! out may happen at any time. Source: Lamport, "On interprocess communication", 1986.

use std::ops::Range;

use millrace_block::Status;

use super::judge::{BioRecord, stamp_of};

/// Changes of each sector, in the order in which they were submitted.
pub(super) struct History {
    sectors: Vec<Vec<u32>>,
}

impl History {
    pub(super) fn new(sectors: u64) -> History {
        History { sectors: vec![Vec::new(); sectors as usize] }
    }

    pub(super) fn add(&mut self, range: Range<u64>, bio: u32) {
        for sector in range {
            self.sectors[sector as usize].push(bio);
        }
    }

    pub(super) fn remove(&mut self, range: Range<u64>, bio: u32) {
        for sector in range {
            if let Some(list) = self.sectors.get_mut(sector as usize) {
                list.retain(|entry| *entry != bio);
            }
        }
    }

    /// Whether nobody else has changed the sector since this bio was submitted.
    pub(super) fn is_alone(&self, bios: &[BioRecord], sector: u64, bio: u32) -> bool {
        let submitted = bios[bio as usize].submitted;
        let changes = self.sectors[sector as usize].iter();
        changes.filter(|id| **id != bio).all(|id| bios[*id as usize].ended < submitted)
    }

    /// What is wrong with finding a stamp, if anything is.
    pub(super) fn wrong(
        &self,
        bios: &[BioRecord],
        read: &BioRecord,
        sector: u64,
        stamp: u64,
    ) -> Option<String> {
        let changes = &self.sectors[sector as usize];
        let fits = |id: &&u32| stamp_of(bios[**id as usize].op, u64::from(**id), sector) == stamp;
        // Nothing was written before the first change: as if zeroes had been, at time 0.
        let mut legal = stamp == 0 && !overwritten(bios, changes, 0, read);
        let mut found = stamp == 0;
        for id in changes.iter().rev().filter(fits) {
            found = true;
            legal |= !overwritten(bios, changes, bios[*id as usize].ended, read);
            if legal {
                break;
            }
        }
        match (legal, found) {
            (true, _) => None,
            (false, true) => Some(format!("what was overwritten before: {}", name(stamp))),
            (false, false) => Some(format!("what nobody wrote there: {}", name(stamp))),
        }
    }
}

/// Whether a change that began after `ended` was acknowledged before the read began.
fn overwritten(bios: &[BioRecord], changes: &[u32], ended: u64, read: &BioRecord) -> bool {
    changes.iter().rev().any(|id| {
        let later = &bios[*id as usize];
        later.status == Some(Status::Ok) && later.submitted > ended && later.ended < read.submitted
    })
}

fn name(stamp: u64) -> String {
    match stamp >> 24 {
        0 => String::from("zeroes"),
        id => format!("bio {}, its sector {}", id - 1, stamp & 0xff_ffff),
    }
}
