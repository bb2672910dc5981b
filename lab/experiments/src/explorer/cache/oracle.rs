//! `Oracle`: the plain model: for each sector all that was written to it, in order, and what a
//! power cut may leave of it.
//!
//! A sector is written by one client, one write at a time, so its writes have an order. Times are
//! counts of events, since the simulation does one thing at a time.

use std::ops::Range;

use millrace_block::OpFlags;

use super::scenario::Scenario;
use crate::explorer::Violation;

/// A write to a sector.
#[derive(Debug, Clone, Copy)]
struct SectorWrite {
    /// What it wrote; 0 for zeroes, and for what is there at first.
    stamp: u64,
    ended: Option<u64>,
}

/// One sector.
#[derive(Debug, Clone)]
struct Sector {
    writes: Vec<SectorWrite>,
    /// The write that survives a power cut at least, as far as clients were told.
    floor: usize,
}

/// The plain model.
pub(super) struct Oracle {
    sectors: Vec<Sector>,
    clock: u64,
    next_stamp: u64,
    /// What drives hold, by sector of the volume.
    pub(super) media: Vec<DiskImage>,
    pub(super) ios: u64,
    pub(super) written_back: u64,
    pub(super) size: Size,
    /// The one write that fails in a scenario has done so.
    pub(super) has_failed: bool,
    /// What went wrong first.
    pub(super) violation: Option<Violation>,
}

/// How many sectors the volume has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    /// Sectors that it has for certain.
    pub(super) known: u64,
    /// How far it has grown.
    pub(super) step: Step,
}

/// Whether a volume took an I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// The I/O is under way.
    Taken,
    /// The I/O lies behind the volume's end.
    Refused,
}

/// How far a volume has grown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The volume has the sectors that it began with, and no more.
    Before,
    /// The drives have grown, and the volume is being told.
    Underway,
    /// The volume has all sectors that the drives have grown by.
    Done,
}

/// What a drive holds of a sector.
#[derive(Debug, Clone, Default)]
pub(super) struct DiskImage {
    /// What it gives.
    pub(super) current: u64,
    /// What a power cut leaves at least.
    pub(super) durable: u64,
    /// What came after that: numbers of the log, and what was written.
    pub(super) volatile: Vec<(u64, u64)>,
}

impl Oracle {
    pub(super) fn new(scenario: &Scenario) -> Oracle {
        let first = SectorWrite { stamp: 0, ended: Some(0) };
        let sector = Sector { writes: vec![first], floor: 0 };
        let count = scenario.volume_sectors_max() as usize;
        Oracle {
            sectors: vec![sector; count],
            clock: 1,
            next_stamp: 1,
            media: vec![DiskImage::default(); count],
            ios: 0,
            written_back: 0,
            has_failed: false,
            size: Size { known: scenario.shape.volume_sectors(), step: Step::Before },
            violation: None,
        }
    }

    /// Sectors of the volume in the end.
    pub(super) fn sectors(&self) -> u64 {
        self.sectors.len() as u64
    }

    /// Something is wrong: which invariant, and what happened.
    pub(super) fn accuse(&mut self, kind: &str, detail: String) {
        self.violation.get_or_insert_with(|| Violation { kind: kind.to_owned(), detail });
    }

    /// The time.
    pub(super) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// An I/O up to the sector `end` was taken, or refused as one behind the end; `before` is the
    /// size when it was submitted.
    pub(super) fn check_end(&mut self, end: u64, before: Size, answer: Answer) {
        let text = match answer {
            Answer::Taken if end > before.known && self.size.step == Step::Before => {
                "taken before it grew"
            }
            Answer::Refused if end <= before.known => "refused, and is there",
            _ => return,
        };
        let known = before.known;
        self.accuse("size", format!("an I/O up to sector {end} of {known} was {text}"));
    }

    /// A write of these sectors begins; gives what it is to write.
    pub(super) fn start_write(&mut self, sector: u64, nr: u64) -> u64 {
        self.next_stamp += 1;
        self.start(sector, nr, self.next_stamp);
        self.next_stamp
    }

    /// Whether nobody has written to the pages of these sectors, of so many sectors each.
    pub(super) fn are_pages_new(&self, sector: u64, nr: u64, page: u64) -> bool {
        let end = (sector + nr).next_multiple_of(page).min(self.sectors());
        let pages = &self.sectors[(sector / page * page) as usize..end as usize];
        pages.iter().all(|sector| sector.writes.len() == 1)
    }

    /// A discard or write of zeroes of these sectors begins.
    pub(super) fn start_clear(&mut self, sector: u64, nr: u64) {
        self.start(sector, nr, 0);
    }

    fn start(&mut self, sector: u64, nr: u64, stamp: u64) {
        for at in sector..sector + nr {
            self.sectors[at as usize].writes.push(SectorWrite { stamp, ended: None });
        }
    }

    /// A write was answered with success; with FUA it is there for good.
    pub(super) fn end_write(&mut self, sector: u64, nr: u64, flags: OpFlags) {
        let ended = self.tick();
        for at in sector..sector + nr {
            let of = &mut self.sectors[at as usize];
            let last = of.writes.last_mut().expect("a write began");
            last.ended = Some(ended);
            if flags.has(OpFlags::FUA) {
                of.floor = of.writes.len() - 1;
            }
        }
        if flags.has(OpFlags::FUA) {
            // At once: a flush that comes later would hide that it was not.
            self.check_power_cut(sector..sector + nr);
        }
    }

    /// A flush that began at `started` was answered with success.
    pub(super) fn end_flush(&mut self, started: u64) {
        for of in &mut self.sectors {
            let is_before = |wrote: &SectorWrite| wrote.ended.is_some_and(|ended| ended < started);
            if let Some(last) = of.writes.iter().rposition(is_before) {
                of.floor = of.floor.max(last);
            }
        }
        self.check_power_cut(0..self.sectors());
    }

    /// A read that began at `started` gave `stamp` for a sector.
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

    /// Looks whether what a power cut may leave of each of these sectors is what clients were told.
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

    /// A sum over what was done and what drives hold in the end.
    pub(super) fn digest(&self) -> u64 {
        let of_media = self.media.iter().map(|media| media.current);
        [self.ios, self.written_back, self.clock]
            .into_iter()
            .chain(of_media)
            .fold(0, |sum, value| (sum ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23))
    }
}
