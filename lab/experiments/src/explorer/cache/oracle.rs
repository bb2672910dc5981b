//! `CacheOracle`: the plain model of a cached volume: every write to each sector, in order, and the
//! data that may remain after a power cut.
//!
//! Each sector is written by one client, one write at a time, so its writes have an order. Times
//! are counts of events, since the simulation does one thing at a time.

use std::ops::Range;

use millrace_block::OpFlags;

use super::scenario::CacheScenario;
use crate::explorer::Violation;

#[derive(Debug, Clone, Copy)]
struct SectorWrite {
    /// Stamp that the write stores; 0 for zeroes and for a sector never written.
    stamp: u64,
    ended: Option<u64>,
}

#[derive(Debug, Clone)]
struct SectorHistory {
    writes: Vec<SectorWrite>,
    /// Index of the oldest write whose data a power cut may leave: flushed, or written with FUA.
    floor: usize,
}

pub(super) struct CacheOracle {
    sectors: Vec<SectorHistory>,
    clock: u64,
    next_stamp: u64,
    /// Content of the drives, indexed by sector of the volume.
    pub(super) media: Vec<SectorImage>,
    pub(super) ios: u64,
    pub(super) written_back: u64,
    pub(super) size: VolumeSize,
    /// Set when the scenario's one failing write has failed.
    pub(super) has_failed: bool,
    /// First violation found.
    pub(super) violation: Option<Violation>,
}

/// Size of the volume as the clients know it.
#[derive(Debug, Clone, Copy)]
pub(super) struct VolumeSize {
    /// Sectors that the volume certainly has.
    pub(super) known: u64,
    /// Progress of the volume's growth.
    pub(super) step: GrowthStep,
}

/// The volume's reply to a submitted I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum VolumeReply {
    /// The I/O is under way.
    Taken,
    /// The I/O was refused because it ends past the end of the volume.
    Refused,
}

/// Progress of a volume's growth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GrowthStep {
    /// The volume still has its initial size.
    Before,
    /// The drives have grown; the volume is being resized.
    Underway,
    /// The volume has its final size.
    Done,
}

/// A drive's content of one sector.
#[derive(Debug, Clone, Default)]
pub(super) struct SectorImage {
    /// Stamp that a read returns.
    pub(super) current: u64,
    /// Stamp that certainly survives a power cut.
    pub(super) durable: u64,
    /// Later writes that a power cut may or may not keep: event number and stamp of each.
    pub(super) volatile: Vec<(u64, u64)>,
}

impl CacheOracle {
    pub(super) fn new(scenario: &CacheScenario) -> CacheOracle {
        let first = SectorWrite { stamp: 0, ended: Some(0) };
        let sector = SectorHistory { writes: vec![first], floor: 0 };
        let count = scenario.volume_sectors_max() as usize;
        CacheOracle {
            sectors: vec![sector; count],
            clock: 1,
            next_stamp: 1,
            media: vec![SectorImage::default(); count],
            ios: 0,
            written_back: 0,
            has_failed: false,
            size: VolumeSize { known: scenario.shape.volume_sectors(), step: GrowthStep::Before },
            violation: None,
        }
    }

    /// Returns the volume's final size in sectors.
    pub(super) fn sectors(&self) -> u64 {
        self.sectors.len() as u64
    }

    /// Records a violation: the kind of invariant and what happened. Only the first one counts.
    pub(super) fn accuse(&mut self, kind: &str, detail: String) {
        self.violation.get_or_insert_with(|| Violation { kind: kind.to_owned(), detail });
    }

    /// Advances the event clock and returns the new time.
    pub(super) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Checks that an I/O that ends at sector `end` was rightly accepted or refused. `before` is
    /// the volume size at submission.
    pub(super) fn check_end(&mut self, end: u64, before: VolumeSize, answer: VolumeReply) {
        let text = match answer {
            VolumeReply::Taken if end > before.known && self.size.step == GrowthStep::Before => {
                "accepted before the volume grew"
            }
            VolumeReply::Refused if end <= before.known => {
                "refused, although the volume is that long"
            }
            _ => return,
        };
        let known = before.known;
        self.accuse("size", format!("an I/O that ends at sector {end} of {known} was {text}"));
    }

    /// Records the start of a write to these sectors and returns the stamp to write.
    pub(super) fn start_write(&mut self, sector: u64, nr: u64) -> u64 {
        self.next_stamp += 1;
        self.start(sector, nr, self.next_stamp);
        self.next_stamp
    }

    /// Returns true if no page of `page` sectors that the range touches was ever written.
    pub(super) fn are_pages_new(&self, sector: u64, nr: u64, page: u64) -> bool {
        let end = (sector + nr).next_multiple_of(page).min(self.sectors());
        let pages = &self.sectors[(sector / page * page) as usize..end as usize];
        pages.iter().all(|sector| sector.writes.len() == 1)
    }

    /// Records the start of a discard or write-zeroes of these sectors.
    pub(super) fn start_clear(&mut self, sector: u64, nr: u64) {
        self.start(sector, nr, 0);
    }

    fn start(&mut self, sector: u64, nr: u64, stamp: u64) {
        for at in sector..sector + nr {
            self.sectors[at as usize].writes.push(SectorWrite { stamp, ended: None });
        }
    }

    /// Records a write that completed successfully; with FUA its data is durable.
    pub(super) fn end_write(&mut self, sector: u64, nr: u64, flags: OpFlags) {
        let ended = self.tick();
        for at in sector..sector + nr {
            let of = &mut self.sectors[at as usize];
            let last = of.writes.last_mut().expect("the write was recorded at its start");
            last.ended = Some(ended);
            if flags.has(OpFlags::FUA) {
                of.floor = of.writes.len() - 1;
            }
        }
        if flags.has(OpFlags::FUA) {
            // Check now: a later flush would hide that the data was not durable.
            self.check_power_cut(sector..sector + nr);
        }
    }

    /// Records a successful flush that was submitted at `started`.
    pub(super) fn end_flush(&mut self, started: u64) {
        for of in &mut self.sectors {
            let is_before = |wrote: &SectorWrite| wrote.ended.is_some_and(|ended| ended < started);
            if let Some(last) = of.writes.iter().rposition(is_before) {
                of.floor = of.floor.max(last);
            }
        }
        self.check_power_cut(0..self.sectors());
    }

    /// Checks a read submitted at `started` that returned `stamp` for a sector.
    pub(super) fn check_read(&mut self, sector: u64, stamp: u64, started: u64) {
        let writes = &self.sectors[sector as usize].writes;
        let is_before = |wrote: &SectorWrite| wrote.ended.is_some_and(|ended| ended < started);
        let from = writes.iter().rposition(is_before).unwrap_or(0);
        if !writes[from..].iter().any(|wrote| wrote.stamp == stamp) {
            let (last, all) = (writes[from].stamp, writes.len());
            let old = writes.iter().rposition(|wrote| wrote.stamp == stamp);
            let text = format!(
                "sector {sector}: read {stamp}, {old:?} of {all} writes, after {last} was written"
            );
            self.accuse("data", text);
        }
    }

    /// Checks that a power cut now would leave in each of these sectors only data that the
    /// acknowledged writes allow.
    pub(super) fn check_power_cut(&mut self, sectors: Range<u64>) {
        let mut wrong = None;
        for sector in sectors {
            let (of, media) = (&self.sectors[sector as usize], &self.media[sector as usize]);
            let volatile = media.volatile.iter().map(|(_, stamp)| *stamp);
            for stamp in std::iter::once(media.durable).chain(volatile) {
                if !of.writes[of.floor..].iter().any(|wrote| wrote.stamp == stamp) {
                    let floor = of.writes[of.floor].stamp;
                    wrong = Some(format!(
                        "sector {sector}: a power cut may leave {stamp}, {floor} was flushed"
                    ));
                }
            }
        }
        wrong.into_iter().for_each(|text| self.accuse("flush", text));
    }

    /// Returns a digest of the run: the I/O counts and the drives' final content.
    pub(super) fn digest(&self) -> u64 {
        let of_media = self.media.iter().map(|media| media.current);
        [self.ios, self.written_back, self.clock]
            .into_iter()
            .chain(of_media)
            .fold(0, |sum, value| (sum ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23))
    }
}
