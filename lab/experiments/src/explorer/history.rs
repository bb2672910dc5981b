//! `History`: who wrote each sector, and what a read may find there.
//!
//! Part of the oracle. A sector behaves like a regular register: a read may find what any write
//! left that began before the read ended, unless another write, which began after that one had
//! ended, was acknowledged before the read began. A write that failed may have happened; one that
//! timed out may happen at any time. Source: Lamport, "On interprocess communication", 1986.

use std::ops::Range;

use millrace_block::Status;

use super::oracle::{BioRecord, stamp_of};

/// No change.
const NONE: u32 = u32::MAX;

/// A change of a sector.
#[derive(Debug, Clone, Copy)]
struct SectorChange {
    bio: u32,
    /// The one before, of the same sector.
    before: u32,
}

/// Changes of each sector, in the order in which they were submitted.
pub(super) struct History {
    /// The last one of each sector.
    last: Vec<u32>,
    changes: Vec<SectorChange>,
}

impl History {
    pub(super) fn new(sectors: u64) -> History {
        History { last: vec![NONE; sectors as usize], changes: Vec::new() }
    }

    pub(super) fn add(&mut self, range: Range<u64>, bio: u32) {
        for sector in range {
            let last = &mut self.last[sector as usize];
            self.changes.push(SectorChange { bio, before: *last });
            *last = self.changes.len() as u32 - 1;
        }
    }

    pub(super) fn remove(&mut self, range: Range<u64>, bio: u32) {
        for sector in range {
            let Some(mut place) = self.last.get(sector as usize).copied() else { return };
            // As if it had never come: those behind it see those before it.
            let mut behind = NONE;
            while place != NONE {
                let SectorChange { bio: found, before } = self.changes[place as usize];
                match (found == bio, behind) {
                    (true, NONE) => self.last[sector as usize] = before,
                    (true, behind) => self.changes[behind as usize].before = before,
                    (false, _) => behind = place,
                }
                place = before;
            }
        }
    }

    /// The bios that changed a sector, the last one first.
    fn of(&self, sector: u64) -> impl Iterator<Item = u32> + Clone + '_ {
        let mut place = self.last[sector as usize];
        std::iter::from_fn(move || {
            let change = self.changes.get(place as usize)?;
            place = change.before;
            Some(change.bio)
        })
    }

    /// Whether nobody else has changed the sector since this bio was submitted.
    pub(super) fn is_alone(&self, bios: &[BioRecord], sector: u64, bio: u32) -> bool {
        let submitted = bios[bio as usize].submitted;
        self.of(sector).filter(|id| *id != bio).all(|id| bios[id as usize].ended < submitted)
    }

    /// What is wrong with finding a stamp, if anything is.
    pub(super) fn wrong(
        &self,
        bios: &[BioRecord],
        read: &BioRecord,
        sector: u64,
        stamp: u64,
    ) -> Option<String> {
        let changes = self.of(sector);
        let fits = |id: &u32| stamp_of(bios[*id as usize].op, u64::from(*id), sector) == stamp;
        // Nothing was written before the first change: as if zeroes had been, at time 0.
        let mut legal = stamp == 0 && !overwritten(bios, changes.clone(), 0, read);
        let mut found = stamp == 0;
        for id in changes.clone().filter(fits) {
            found = true;
            legal |= !overwritten(bios, changes.clone(), bios[id as usize].ended, read);
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
fn overwritten(
    bios: &[BioRecord],
    mut changes: impl Iterator<Item = u32>,
    ended: u64,
    read: &BioRecord,
) -> bool {
    changes.any(|id| {
        let later = &bios[id as usize];
        later.status == Some(Status::Ok) && later.submitted > ended && later.ended < read.submitted
    })
}

fn name(stamp: u64) -> String {
    match stamp >> 24 {
        0 => String::from("zeroes"),
        id => format!("bio {}, its sector {}", id - 1, stamp & 0xff_ffff),
    }
}
