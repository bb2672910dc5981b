//! `FileSet`: the files of a program, laid out over the volume.
//!
//! The volume is divided into slots of equal size, one for each file. A file fills its slot from
//! the start, so the blocks of a file are contiguous, which ext4 aims at with its extents. Inodes
//! lie before all slots, 16 to a page. The list of existing files is bookkeeping of the simulated
//! program, so access to it takes no simulated lock and no virtual time.

use std::sync::Mutex;

use millrace_random::SplitMix64 as Random;

use crate::simulation::Host;
use crate::simulation::program::{Access, PAGE_SECTORS, Span};
use millrace_machine::lock_unpoisoned;

/// Shape of the gamma distribution of file sizes, `gamma:1.5` in filebench.
const SHAPE: f64 = 1.5;
/// Size of a slot (the volume's space for one file) as a multiple of the mean file size. Larger
/// files are truncated.
const SLOT_MEANS: u64 = 8;
/// Number of inodes, of 256 bytes each, in a page.
pub(super) const INODES: u64 = 16;

#[derive(Debug)]
pub(super) struct FileSet {
    mean_bytes: u64,
    slots: u64,
    lists: Mutex<Lists>,
}

#[derive(Debug, Default)]
struct Lists {
    there: Vec<File>,
    places: Vec<Option<usize>>,
    free: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct File {
    slot: u64,
    pub(super) pages: u64,
}

impl FileSet {
    /// Creates a set of `slots` slots, each the space for one file. The first `percent` percent of
    /// the slots have files.
    pub(super) fn new(slots: u64, mean_bytes: u64, (percent, random): (u64, &mut Random)) -> Self {
        let there = slots * percent / 100;
        let file = |slot| File { slot, pages: size_pages(mean_bytes, random) };
        let lists = Lists {
            there: (0..there).map(file).collect(),
            places: (0..slots).map(|slot| (slot < there).then_some(slot as usize)).collect(),
            free: (there..slots).collect(),
        };
        FileSet { mean_bytes, slots, lists: Mutex::new(lists) }
    }

    fn lists<T>(&self, change: impl FnOnce(&mut Lists) -> T) -> T {
        change(&mut lock_unpoisoned(&self.lists))
    }

    pub(super) fn pick(&self, random: &mut Random) -> Option<File> {
        self.lists(|lists| {
            let count = lists.there.len() as u64;
            (count > 0).then(|| lists.there[random.below(count) as usize])
        })
    }

    pub(super) fn first(&self) -> Option<File> {
        self.lists(|lists| Some(lists.there[lists.places[0]?]))
    }

    /// Returns an empty file in a free slot of the volume, to be added with `keep`; `None` if every
    /// slot (the space for one file) has a file.
    pub(super) fn create(&self) -> Option<File> {
        let slot = self.lists(|lists| lists.free.pop())?;
        Some(File { slot, pages: 0 })
    }

    /// Adds a file to the set, or records the new length of a file in the set.
    pub(super) fn keep(&self, file: File) {
        self.lists(|lists| match lists.places[file.slot as usize] {
            Some(place) => lists.there[place].pages = file.pages,
            // Do nothing: another thread has deleted the file since the caller picked it, so the
            // file's slot is free.
            None if lists.free.contains(&file.slot) => {}
            None => {
                lists.places[file.slot as usize] = Some(lists.there.len());
                lists.there.push(file);
            }
        });
    }

    pub(super) fn delete(&self, random: &mut Random) -> Option<File> {
        self.lists(|lists| {
            let count = lists.there.len() as u64;
            let at = (count > 0).then(|| random.below(count) as usize)?;
            let file = lists.there.swap_remove(at);
            if let Some(moved) = lists.there.get(at) {
                lists.places[moved.slot as usize] = Some(at);
            }
            lists.places[file.slot as usize] = None;
            lists.free.push(file.slot);
            Some(file)
        })
    }

    pub(super) fn size_pages(&self, random: &mut Random) -> u64 {
        size_pages(self.mean_bytes, random)
    }

    fn slot_pages(&self) -> u64 {
        SLOT_MEANS * self.mean_bytes / 4096
    }

    /// Returns the range of the volume that holds the pages `from` to `until` of a file, or `None`
    /// for an empty range. `until` is limited to the file's slot, which is the volume's space for
    /// the file.
    pub(super) fn span(&self, file: File, (from, until): (u64, u64)) -> Option<Span> {
        let until = until.min(self.slot_pages());
        let start = self.slots.div_ceil(INODES) + file.slot * self.slot_pages() + from;
        (from < until).then_some((start * PAGE_SECTORS, (until - from) * PAGE_SECTORS))
    }

    pub(super) fn touch<M: Host>(&self, access: &mut Access<'_, M>, file: File) {
        access.write((file.slot / INODES * PAGE_SECTORS, PAGE_SECTORS));
    }

    pub(super) fn append<M: Host>(&self, access: &mut Access<'_, M>, mut file: File, pages: u64) {
        let until = (file.pages + pages).min(self.slot_pages());
        if let Some(span) = self.span(file, (file.pages, until)) {
            access.write(span);
            file.pages = until;
        }
        self.touch(access, file);
        self.keep(file);
    }

    pub(super) fn read<M: Host>(&self, access: &mut Access<'_, M>, file: File) {
        if let Some(span) = self.span(file, (0, file.pages)) {
            access.read(span);
        }
    }
}

/// Draws a file size in pages, at most the size of a slot (the volume's space for one file). The
/// distribution is a gamma distribution of shape 3/2: an exponential sample plus half the square of
/// a normal sample.
pub(super) fn size_pages(mean_bytes: u64, random: &mut Random) -> u64 {
    let mut ln = || (1.0 - random.fraction()).ln();
    let (exponential, radius) = (-ln(), -2.0 * ln());
    let normal = radius.sqrt() * (std::f64::consts::TAU * random.fraction()).cos();
    let bytes = (exponential + normal * normal / 2.0) * mean_bytes as f64 / SHAPE;
    (bytes as u64).div_ceil(4096).clamp(1, SLOT_MEANS * mean_bytes / 4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_mean_and_spread_of_gamma_of_shape_three_halves() {
        let (mut random, mean) = (Random::new(1), 128.0 * 1024.0);
        let sizes: Vec<f64> =
            (0..20_000).map(|_| size_pages(131_072, &mut random) as f64 * 4096.0).collect();
        let found = sizes.iter().sum::<f64>() / sizes.len() as f64;
        let square = sizes.iter().map(|size| (size - found).powi(2)).sum::<f64>();
        let spread = (square / sizes.len() as f64).sqrt();
        // Sizes are rounded up to pages, which adds half a page on average.
        assert!((found / (mean + 2048.0) - 1.0).abs() < 0.03, "{found}");
        assert!((spread / (mean / SHAPE.sqrt()) - 1.0).abs() < 0.05, "{spread}");
    }

    #[test]
    fn files_share_no_page_and_deleted_ones_make_room() {
        let mut random = Random::new(2);
        let set = FileSet::new(100, 16_384, (80, &mut random));
        let mut files: Vec<File> = (0..20).filter_map(|_| set.create()).collect();
        assert_eq!((files.len(), set.create()), (20, None));
        files.iter_mut().for_each(|file| file.pages = set.slot_pages());
        files.iter().for_each(|file| set.keep(*file));
        let mut spans: Vec<Span> = set.lists(|lists| {
            lists.there.iter().filter_map(|file| set.span(*file, (0, file.pages))).collect()
        });
        spans.sort_unstable();
        assert_eq!(spans.len(), 100);
        assert!(spans.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0));
        assert!(spans[0].0 >= 100 / INODES * PAGE_SECTORS);
        let gone = set.delete(&mut random).expect("there are files");
        assert_eq!(set.create().map(|file| file.slot), Some(gone.slot));
    }
}
