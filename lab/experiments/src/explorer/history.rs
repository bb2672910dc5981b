//! `History`: every change of each sector, and the data that a read may find there.
//!
//! The oracle owns the history. A sector behaves like a regular register (Lamport, "On interprocess
//! communication", 1986):
//! - A read may find the data of any write that began before the read ended, unless the data were
//!   overwritten before the read.
//! - A write B has overwritten a write A if B began after A had ended, and B was acknowledged
//!   before the read began.
//! - A failed write may or may not have taken effect.
//! - A write that timed out may take effect at any time.

use std::ops::Range;

use millrace_block::Status;

use super::oracle::{BioRecord, stamp_of};

const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct SectorChange {
    bio: u32,
    /// Index of the previous change of the same sector, or `NONE`.
    before: u32,
}

/// Changes of all sectors in order of submission, with a linked list for each sector.
pub(super) struct History {
    /// For each sector, the index of its latest change, or `NONE`.
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
            // Remove the bio's change from the sector's linked list, as if the bio had never been
            // submitted.
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

    fn of(&self, sector: u64) -> impl Iterator<Item = u32> + Clone + '_ {
        let mut place = self.last[sector as usize];
        std::iter::from_fn(move || {
            let change = self.changes.get(place as usize)?;
            place = change.before;
            Some(change.bio)
        })
    }

    pub(super) fn changed(&self) -> Vec<u64> {
        (0..).zip(&self.last).filter(|(_, last)| **last != NONE).map(|(sector, _)| sector).collect()
    }

    /// Returns an error text if the sector cannot have the content `stamp`: no bio wrote `stamp` to
    /// the sector, or one of the changes in `after` has overwritten it.
    pub(super) fn wrong(
        &self,
        bios: &[BioRecord],
        after: After,
        sector: u64,
        stamp: u64,
    ) -> Option<String> {
        let changes = self.of(sector);
        let fits = |id: &u32| stamp_of(bios[*id as usize].op, u64::from(*id), sector) == stamp;
        // A sector holds zeroes until its first change.
        let mut legal = stamp == 0 && !overwritten(bios, changes.clone(), 0, after);
        let mut found = stamp == 0;
        for id in changes.clone().filter(fits) {
            found = true;
            legal |= !overwritten(bios, changes.clone(), bios[id as usize].ended, after);
            if legal {
                break;
            }
        }
        match (legal, found) {
            (true, _) => None,
            (false, true) => {
                Some(format!("data that had already been overwritten: {}", name(stamp)))
            }
            (false, false) => Some(format!("data that was never written there: {}", name(stamp))),
        }
    }
}

/// Acknowledged changes that a sector must not have lost: it must hold their data, or newer data.
#[derive(Debug, Clone, Copy)]
pub(super) enum After {
    /// Changes that were acknowledged before a certain event of the run. The field is the number of
    /// that event.
    Event(u64),
    Bio(u32),
}

fn overwritten(
    bios: &[BioRecord],
    mut changes: impl Iterator<Item = u32>,
    ended: u64,
    after: After,
) -> bool {
    changes.any(|id| {
        let later = &bios[id as usize];
        let counts = match after {
            After::Event(event) => later.ended < event,
            After::Bio(bio) => id == bio,
        };
        later.status == Some(Status::Ok) && later.submitted > ended && counts
    })
}

fn name(stamp: u64) -> String {
    match stamp >> 24 {
        0 => String::from("zeroes"),
        id => format!("bio {}, its sector {}", id - 1, stamp & 0xff_ffff),
    }
}
