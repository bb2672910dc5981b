//! A shard under random calls, compared with a plain model of its counts.
//!
//! The model counts frames, dirty pages and epochs, and is compared after each call. At the end all
//! dirty pages are written, and none may be left.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::memory::extent::EXTENT_PAGES;
use crate::memory::extent::{ALL_PAGES, WHOLE};
use crate::memory::page::PageSize;

const FRAMES: u32 = 24;

#[derive(Debug, Clone)]
enum Do {
    Write { page: u64, mask: u8 },
    Fill { page: u64 },
    EndFill { which: usize, keeps: bool },
    Collect { up_to: u64 },
    CollectOne { extent: u64, pages: u16 },
    CollectFresh,
    CollectBeside { pages: u16 },
    EndWrite { which: usize, is_ok: bool },
    Strand { page: u64 },
    Unstrand { page: u64 },
    EndEpoch,
}

fn what() -> impl Strategy<Value = Do> {
    let page = 0..64u64;
    prop_oneof![
        4 => (page.clone(), 1..=WHOLE).prop_map(|(page, mask)| Do::Write { page, mask }),
        2 => page.clone().prop_map(|page| Do::Fill { page }),
        1 => page.clone().prop_map(|page| Do::Strand { page }),
        1 => page.prop_map(|page| Do::Unstrand { page }),
        1 => Just(Do::CollectFresh),
        1 => any::<u16>().prop_map(|pages| Do::CollectBeside { pages }),
        2 => (any::<usize>(), any::<bool>())
            .prop_map(|(which, keeps)| Do::EndFill { which, keeps }),
        1 => (0..20u64).prop_map(|up_to| Do::Collect { up_to }),
        1 => (0..4u64, any::<u16>())
            .prop_map(|(extent, pages)| Do::CollectOne { extent, pages }),
        3 => (any::<usize>(), any::<bool>())
            .prop_map(|(which, is_ok)| Do::EndWrite { which, is_ok }),
        1 => Just(Do::EndEpoch),
    ]
}

/// A shard, and the state that its callers keep.
struct Rig {
    shard: Shard,
    frames: FrameMemory,
    epoch: u64,
    /// Pages that are being filled, and with which frame.
    fills: Vec<(u64, u32)>,
    writes: Vec<DirtyPage>,
    /// Pages that are dirty or being written, according to the returned counts.
    dirty: i64,
    /// Pages that are stranded, according to the returned counts.
    stranded: i64,
    /// The epoch in which each page became dirty that is not below yet.
    owed: BTreeMap<u64, u64>,
}

impl Rig {
    fn new() -> Rig {
        Rig {
            shard: Shard::new(0, FRAMES),
            frames: FrameMemory::new(FRAMES, PageSize::over(512)).unwrap(),
            epoch: 1,
            fills: vec![],
            writes: vec![],
            dirty: 0,
            stranded: 0,
            owed: BTreeMap::new(),
        }
    }

    fn apply(&mut self, what: Do) {
        let place = |page: u64| (page / 16, (page % 16) as usize);
        match what {
            Do::Write { page, mask } => {
                let at = self.shard.find_or_insert(place(page).0);
                match self.shard.frame_to_write(&self.frames, at, place(page).1) {
                    None => self.shard.forget_if_empty(at),
                    Some(frame) => {
                        let is_read = |item: &DirtyPage| item.frame == frame;
                        assert!(!self.writes.iter().any(is_read), "a drive reads frame {frame}");
                        let now = DirtyStamp { epoch: self.epoch, at_ns: self.epoch };
                        let clean = self.shard.note_written(at, place(page).1, mask, now);
                        self.dirty += i64::from(clean);
                        self.owed.entry(page).or_insert(self.epoch);
                    }
                }
            }
            Do::Fill { page } => {
                let at = self.shard.find_or_insert(place(page).0);
                let bit = 1 << place(page).1;
                let extent = self.shard.extent(at);
                let wants = extent.filling & bit == 0 && extent.valid[place(page).1] != WHOLE;
                match wants.then(|| self.shard.take_frame(at)).flatten() {
                    None => self.shard.forget_if_empty(at),
                    Some(frame) => {
                        self.shard.begin_fill(at, place(page).1);
                        self.fills.push((page, frame));
                    }
                }
            }
            Do::EndFill { which, keeps } if !self.fills.is_empty() => {
                let (page, frame) = self.fills.swap_remove(which % self.fills.len());
                let filled = if keeps { WHOLE } else { 0 };
                let kept = self.shard.end_fill(&self.frames, page, filled, frame);
                assert_eq!(kept.is_some(), keeps);
            }
            Do::Collect { up_to } => {
                let is_due = |extent: &Extent| match extent.dirtied.epoch <= up_to {
                    true => DuePages::Pages(ALL_PAGES),
                    false => DuePages::NoMore,
                };
                self.shard.collect(usize::MAX, &mut self.writes, is_due);
            }
            Do::CollectOne { extent, pages } => {
                if let Some(at) = self.shard.find(extent) {
                    self.shard.collect_one(at, pages, &mut self.writes);
                }
            }
            Do::CollectFresh => {
                let before = self.writes.len();
                self.shard.collect(usize::MAX, &mut self.writes, |extent| {
                    DuePages::Pages(!extent.stranded)
                });
                assert!(!self.writes[before..].iter().any(|item| item.is_probe));
            }
            Do::CollectBeside { pages } => {
                self.shard.collect(usize::MAX, &mut self.writes, |_| DuePages::Beside(pages));
            }
            Do::Strand { page } => {
                if let Some(at) = self.shard.find(place(page).0) {
                    self.stranded += i64::from(self.shard.strand(at, place(page).1));
                }
            }
            Do::Unstrand { page } => {
                if let Some(at) = self.shard.find(place(page).0) {
                    self.stranded -= i64::from(self.shard.unstrand(at, place(page).1));
                }
            }
            Do::EndWrite { which, is_ok } if !self.writes.is_empty() => {
                let item = self.writes.swap_remove(which % self.writes.len());
                let ended = match is_ok {
                    true => WriteOutcome::Ok,
                    false if which % 2 == 0 => WriteOutcome::Again,
                    false => WriteOutcome::Failed(Status::NoSpace),
                };
                self.dirty -= i64::from(self.shard.end_write(&item, ended));
                self.stranded -= i64::from(item.is_probe);
                let at = self.shard.find(place(item.page).0);
                let is_dirty =
                    at.is_some_and(|at| self.shard.extent(at).dirty[place(item.page).1] != 0);
                match (is_ok, is_dirty) {
                    (true, false) => drop(self.owed.remove(&item.page)),
                    (true, true) => drop(self.owed.insert(item.page, self.epoch)),
                    (false, _) => assert!(is_dirty, "what was not written is dirty"),
                }
            }
            Do::EndEpoch => self.epoch += 1,
            Do::EndFill { .. } | Do::EndWrite { .. } => {}
        }
    }

    fn check(&self) {
        let numbers: Vec<u64> = self.shard.all().map(|extent| extent.number).collect();
        let mut seen = vec![0u32; FRAMES as usize];
        let mut dirty = self.writes.len() as i64;
        let mut stranded = self.writes.iter().filter(|item| item.is_probe).count() as i64;
        for number in numbers {
            let extent = self.shard.extent(self.shard.find(number).unwrap());
            assert!(!extent.is_empty(), "extent {number} is of no use");
            assert!(extent.is_listed || !extent.is_dirty(), "extent {number} is dirty");
            assert_eq!(extent.stranded & !extent.dirty_bits(), 0, "stranded and not dirty");
            stranded += i64::from(extent.stranded.count_ones());
            for page in 0..EXTENT_PAGES {
                assert_eq!(extent.dirty[page] & !extent.valid[page], 0, "dirty and not valid");
                dirty += i64::from(extent.dirty[page] != 0);
                if extent.frames[page] != NO_FRAME {
                    seen[extent.frames[page] as usize] += 1;
                }
            }
        }
        let written: BTreeSet<u64> = self.writes.iter().map(|item| item.page).collect();
        assert_eq!(written.len(), self.writes.len(), "no page is in two writes at a time");
        assert_eq!(dirty, self.dirty, "pages that are dirty or being written");
        assert_eq!((stranded, stranded), (self.stranded, self.shard.stranded.into()), "stranded");
        self.fills.iter().for_each(|(_, frame)| seen[*frame as usize] += 1);
        for item in &self.writes {
            let extent = self.shard.extent(self.shard.find(item.page / 16).unwrap());
            if extent.frames[(item.page % 16) as usize] != item.frame {
                seen[item.frame as usize] += 1;
            }
        }
        self.shard.free.iter().for_each(|frame| seen[*frame as usize] += 1);
        assert_eq!(seen, vec![1; FRAMES as usize], "each frame is in one place");
        let oldest = self.owed.values().min();
        let told = self.shard.oldest_epoch();
        assert!(told <= oldest.copied() || oldest.is_none(), "{told:?} is after {oldest:?}");
        assert!(told.is_some() || oldest.is_none(), "{oldest:?} is owed");
    }
}

proptest! {
    #[test]
    fn frame_has_one_place_and_its_epoch_waits_for_its_debts(
        all in prop::collection::vec(what(), 1..200)
    ) {
        let mut rig = Rig::new();
        for what in all {
            rig.apply(what);
            rig.check();
        }
        // All ends: nothing is dirty, and no epoch is left.
        while !rig.writes.is_empty() || rig.shard.oldest_epoch().is_some() {
            rig.apply(Do::Collect { up_to: u64::MAX });
            while !rig.writes.is_empty() {
                rig.apply(Do::EndWrite { which: 0, is_ok: true });
                rig.check();
            }
        }
        prop_assert_eq!((rig.dirty, rig.owed.len(), rig.stranded), (0, 0, 0));
    }
}

/// A shard with clean pages of these numbers, filled in this order.
fn filled(frames: u32, pages: impl Iterator<Item = u64>) -> Shard {
    let mut shard = Shard::new(0, frames);
    for page in pages {
        let at = shard.find_or_insert(page / 16);
        let frame = shard.take_frame(at).unwrap();
        shard.set_frame(at, (page % 16) as usize, frame);
        shard.extent_mut(at).valid[(page % 16) as usize] = WHOLE;
    }
    shard
}

#[test]
fn hand_takes_clean_pages_in_turn_and_spares_hit_ones() {
    let mut shard = filled(4, [0, 16, 32, 48].into_iter());
    let frame_of = |shard: &Shard, number| {
        shard.find(number).map(|at| shard.extent(at).frames[0]).filter(|frame| *frame != NO_FRAME)
    };
    let hit = frame_of(&shard, 0).unwrap();
    let at = shard.find(0).unwrap();
    shard.extent_mut(at).note_hit(0);
    let second = frame_of(&shard, 1).unwrap();
    assert_eq!(shard.take_frame(NO_EXTENT), Some(second), "the first was hit");
    assert_eq!((shard.find(1), shard.stats.evicted), (None, 1), "nothing is known of it any more");
    let third = frame_of(&shard, 2);
    let keep = shard.find(2).unwrap();
    assert_eq!(shard.take_frame(keep), third);
    assert_eq!(shard.find(2), Some(keep), "it was to be kept");
    shard.forget_if_empty(keep);
    let fourth = frame_of(&shard, 3);
    assert_eq!(shard.take_frame(NO_EXTENT), fourth);
    assert_eq!(shard.take_frame(NO_EXTENT), Some(hit), "it is spared once");
    assert_eq!(shard.take_frame(NO_EXTENT), None, "nothing is left");
}

#[test]
fn dirty_pages_and_those_in_use_are_not_taken() {
    let mut shard = filled(3, [0, 1, 2].into_iter());
    let at = shard.find(0).unwrap();
    assert_eq!(shard.oldest_ns(), None);
    assert!(shard.note_written(at, 0, 0b11, DirtyStamp { epoch: 1, at_ns: 77 }));
    assert_eq!((shard.oldest_ns(), shard.extent(at).is_dirty()), (Some(77), true));
    assert!(shard.extent(at).owes(1) && shard.extent(at).owes(2) && !shard.extent(at).owes(0));
    shard.extent_mut(at).filling |= 0b10;
    assert!(!shard.extent(at).may_evict(0) && !shard.extent(at).may_evict(1));
    let third = shard.extent(at).frames[2];
    assert_eq!((shard.take_frame(at), shard.take_frame(at)), (Some(third), None));
}

#[test]
fn dropped_page_frees_its_frame_and_page_counts_are_bounded() {
    let mut shard = filled(3, [0, 16, 32].into_iter());
    for number in 0..3 {
        let at = shard.find(number).unwrap();
        shard.note_written(at, 0, 1, DirtyStamp { epoch: 1, at_ns: number });
    }
    let mut items = vec![];
    shard.collect(2, &mut items, |_| DuePages::Pages(ALL_PAGES));
    assert_eq!(items.iter().map(|item| item.page).collect::<Vec<_>>(), [0, 16]);
    assert_eq!(shard.oldest_ns(), Some(2));
    let at = shard.find(2).unwrap();
    let frame = shard.extent(at).frames[0];
    shard.drop_page(at, 0);
    assert_eq!(shard.take_frame(NO_EXTENT), Some(frame));
}

#[test]
fn pages_are_written_beside_one_that_never_ends() {
    let mut shard = filled(4, [0, 1].into_iter());
    let at = shard.find(0).unwrap();
    let now = |epoch| DirtyStamp { epoch, at_ns: epoch };
    shard.note_written(at, 0, WHOLE, now(1));
    let (mut stuck, mut items) = (vec![], vec![]);
    shard.collect_one(at, ALL_PAGES, &mut stuck);
    for epoch in 2..5 {
        shard.note_written(at, 0, WHOLE, now(epoch));
        shard.note_written(at, 1, WHOLE, now(epoch));
        shard.collect_one(at, ALL_PAGES, &mut items);
        let pages: Vec<u64> = items.iter().map(|item| item.page).collect();
        assert_eq!(pages, [1], "not the page that is being written");
        shard.collect_one(at, ALL_PAGES, &mut items);
        assert_eq!((items.len(), shard.oldest_epoch()), (1, Some(1)));
        assert_eq!(shard.end_write(&items.remove(0), WriteOutcome::Ok), 1);
    }
    shard.end_write(&stuck[0], WriteOutcome::Ok);
    assert_eq!(shard.oldest_epoch(), Some(2), "the page was written to once more");
}

#[test]
fn flush_does_not_wait_for_pages_written_to_later() {
    let mut shard = filled(6, [0, 1].into_iter());
    let at = shard.find(0).unwrap();
    let write = |shard: &mut Shard, page: usize, epoch| {
        let frames = FrameMemory::new(6, PageSize::over(512)).unwrap();
        shard.frame_to_write(&frames, at, page).unwrap();
        shard.note_written(at, page, WHOLE, DirtyStamp { epoch, at_ns: epoch * 5_000_000 });
    };
    let mut inside = vec![];
    write(&mut shard, 0, 1);
    shard.collect_one(at, ALL_PAGES, &mut inside);
    write(&mut shard, 0, 1);
    write(&mut shard, 1, 1);
    // Everything from here on is written after the flush. One of the two pages is always being
    // written.
    for turn in 0..2 {
        let before = inside.len();
        shard.collect_one(at, ALL_PAGES, &mut inside);
        assert_eq!(inside.len(), before + 1);
        shard.end_write(&inside.remove(0), WriteOutcome::Ok);
        assert_eq!(shard.oldest_epoch(), Some(1));
        write(&mut shard, 1 - turn, 3);
    }
    shard.end_write(&inside.remove(0), WriteOutcome::Ok);
    assert_eq!((shard.oldest_epoch(), shard.oldest_ns()), (Some(3), Some(15_000_000)));
    shard.collect(9, &mut inside, |extent| match extent.dirtied.epoch <= 2 {
        true => DuePages::Pages(ALL_PAGES),
        false => DuePages::Later,
    });
    assert!(inside.is_empty(), "{inside:?}");
}

#[test]
fn stranded_pages_wait_until_all_memory_is_theirs_again() {
    let mut shard = filled(2, [0, 1].into_iter());
    let at = shard.find(0).unwrap();
    assert!(!shard.strand(at, 0), "a clean page is not stranded");
    shard.note_written(at, 0, WHOLE, DirtyStamp { epoch: 1, at_ns: 0 });
    shard.note_written(at, 1, WHOLE, DirtyStamp { epoch: 1, at_ns: 0 });
    assert!(shard.strand(at, 0) && !shard.strand(at, 0) && !shard.is_stranded());
    let mut items = vec![];
    shard.collect(9, &mut items, |extent| DuePages::Pages(!extent.stranded));
    assert_eq!(
        items.iter().map(|item| (item.page, item.is_probe)).collect::<Vec<_>>(),
        [(1, false)]
    );
    shard.end_write(&items[0], WriteOutcome::Failed(Status::NoSpace));
    let extent = shard.extent(at);
    assert_eq!((extent.failed.pages, extent.failed.status), (0b10, Status::NoSpace));
    assert!(shard.strand(at, 1) && shard.is_stranded());
    assert!(shard.unstrand(at, 0) && !shard.unstrand(at, 0) && !shard.is_stranded());
}
