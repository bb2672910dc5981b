//! Tests of volumes: the mapping of sectors, compared with a list of all sectors, and the volume's
//! properties and errors.

extern crate std;

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec;
use std::sync::{Mutex, PoisonError};

use millrace_machine::{Native, Topology};
use proptest::prelude::*;

use super::*;
use crate::chain::slot::BioStride;
use crate::disk::DiskConfig;
use crate::queue::driver::{
    CompletionBatch, Driver, DriverQueue, Expired, HwQueues, QueueKind, TagScope,
};
use crate::queue::request::{Dispatch, Request, Tag};
use crate::trace::tracer::TraceStamp;

/// A drive that answers queries for its size, limits and extents, and never gets an I/O.
struct Map {
    limits: QueueLimits,
    sectors: Sector,
    /// State of each sector from sector 0 on; the state of later sectors is unknown.
    states: Vec<State>,
    /// Largest number of extents in one answer.
    most: usize,
    /// Sector and length of every query for extents.
    asked: Arc<Mutex<Vec<(Sector, u64)>>>,
}

/// State of a sector: true if it is a hole, and true if it reads as zeroes.
type State = (bool, bool);

struct Idle;

impl Driver<Native> for Map {
    fn capacity(&self) -> Sector {
        self.sectors
    }
    fn limits(&self) -> QueueLimits {
        self.limits
    }
    fn hw_queues(&self, _: &Topology) -> HwQueues {
        HwQueues { count: 1, depth: 1, kind: QueueKind::AnyThread, tags: TagScope::PerQueue }
    }
    fn open_queue(&self, _: u16, _: u32) -> Result<Box<dyn DriverQueue<Native>>, Error> {
        Ok(Box::new(Idle))
    }
    fn extents(&self, sector: Sector, nr_sectors: u64) -> Vec<Extent> {
        assert!(nr_sectors > 0 && sector + nr_sectors <= self.sectors, "{sector} {nr_sectors}");
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push((sector, nr_sectors));
        let states = self.states.iter().skip(sector as usize).take(nr_sectors as usize);
        runs_of(states.copied(), self.most)
    }
}

impl DriverQueue<Native> for Idle {
    fn queue_rq(&mut self, _: &Request<Native>) -> Dispatch {
        unreachable!("no I/O comes here")
    }
    fn commit_rqs(&mut self) {}
    fn poll(&mut self, _: &mut CompletionBatch) {}
    fn timeout(&mut self, _: Tag) -> Expired {
        Expired::Extend
    }
}

/// Returns the first `most` runs of sectors with equal states.
fn runs_of(states: impl Iterator<Item = State>, most: usize) -> Vec<Extent> {
    let mut runs = Vec::<Extent>::new();
    for (hole, zero) in states {
        match runs.last_mut() {
            Some(last) if (last.hole, last.zero) == (hole, zero) => last.nr_sectors += 1,
            _ => runs.push(Extent { nr_sectors: 1, hole, zero }),
        }
    }
    runs.truncate(most);
    runs
}

fn map(sectors: Sector, block_bytes: u32) -> Map {
    let limits = QueueLimits { logical_block_size: block_bytes, ..QueueLimits::default() };
    Map { limits, sectors, states: Vec::new(), most: usize::MAX, asked: Arc::default() }
}

fn disk_of(map: Map, config: DiskConfig<Native>) -> Arc<Disk<Native>> {
    Disk::new(Box::new(map), config).unwrap()
}

fn disk(sectors: Sector, block_bytes: u32) -> Arc<Disk<Native>> {
    disk_of(map(sectors, block_bytes), DiskConfig::default())
}

fn disks(count: usize) -> Vec<Arc<Disk<Native>>> {
    (0..count).map(|_| disk(64, 512)).collect()
}

const STRIPE: Layout = Layout::Stripe { chunk_sectors: 8 };

/// Position of a sector of a volume, and the number of its piece: of its chunk or, in a linear
/// volume, of its drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    member: u16,
    dev_sector: Sector,
    piece: u64,
}

/// Returns the position of each sector of a volume, in order.
fn places(layout: Layout, sizes: &[Sector], block: u64) -> Vec<Place> {
    let mut places = Vec::new();
    match layout {
        Layout::Linear => {
            for (member, size) in (0..).zip(sizes) {
                let whole = size - size % block;
                let of = |dev_sector| Place { member, dev_sector, piece: member.into() };
                places.extend((0..whole).map(of));
            }
        }
        Layout::Stripe { chunk_sectors } => {
            let (chunk, width) = (u64::from(chunk_sectors), sizes.len() as u64);
            let rows = sizes.iter().min().unwrap() / chunk;
            for piece in 0..rows * width {
                let (row, member) = (piece / width, (piece % width) as u16);
                let of = |at| Place { member, dev_sector: row * chunk + at, piece };
                places.extend((0..chunk).map(of));
            }
        }
    }
    places
}

/// The shape of a volume that the test creates.
#[derive(Debug, Clone)]
struct Shape {
    layout: Layout,
    sizes: Vec<Sector>,
    block: u64,
}

impl Shape {
    fn volume(&self) -> Arc<Volume<Native>> {
        let disk = |size: &Sector| disk(*size, self.block as u32 * 512);
        Volume::new("v", self.layout, self.sizes.iter().map(disk).collect()).unwrap()
    }

    fn places(&self) -> Vec<Place> {
        places(self.layout, &self.sizes, self.block)
    }
}

fn shapes() -> impl Strategy<Value = Shape> {
    let layout = prop_oneof![
        Just(Layout::Linear),
        (3u32..6).prop_map(|shift| Layout::Stripe { chunk_sectors: 1 << shift }),
    ];
    let sizes = prop::collection::vec(32u64..120, 1..6);
    (layout, sizes, prop_oneof![Just(1u64), Just(2), Just(8)])
        .prop_map(|(layout, sizes, block)| Shape { layout, sizes, block })
}

proptest! {
    #[test]
    fn every_sector_of_a_range_is_found_where_the_layout_has_it(
        shape in shapes(), at in any::<prop::sample::Index>(), length in 1usize..150,
    ) {
        let (volume, places) = (shape.volume(), shape.places());
        prop_assert_eq!(volume.capacity(), places.len() as u64);
        let at = at.index(places.len());
        let range = &places[at..places.len().min(at + length)];
        let (first, last) = (range[0], range[range.len() - 1]);
        let (sector, nr) = (at as u64, range.len() as u32);
        let is_whole = first.piece == last.piece || volume.disks().len() == 1;
        let whole = is_whole.then_some((first.member, first.dev_sector));
        prop_assert_eq!(volume.locate(sector, nr), whole);
        let run = range.iter().take_while(|place| place.piece == first.piece).count() as u64;
        let end = sector + u64::from(nr);
        prop_assert_eq!(volume.run_at(sector, end), (first.member, first.dev_sector, run));
        let (start, count) = volume.span(sector, nr);
        let width = volume.disks().len() as u16;
        let mut touched: Vec<u16> = (0..count).map(|n| (start + n) % width).collect();
        touched.sort_unstable();
        let mut members: Vec<u16> = range.iter().map(|place| place.member).collect();
        members.sort_unstable();
        members.dedup();
        prop_assert_eq!((start, touched), (first.member, members));
        prop_assert_eq!(volume.span(sector, 0), (first.member, 1));
    }

    #[test]
    fn parts_cover_a_range_and_each_is_one_piece_of_its_drive(
        shape in shapes(), at in any::<prop::sample::Index>(), length in 1usize..150,
    ) {
        let (volume, places) = (shape.volume(), shape.places());
        let at = at.index(places.len());
        let range = &places[at..places.len().min(at + length)];
        let (sector, nr) = (at as u64, range.len() as u32);
        let known = volume.range(sector, nr);
        for member in 0..volume.disks().len() as u16 {
            // Offsets in the range at which the drive's sectors lie.
            let offsets: Vec<usize> =
                (0..range.len()).filter(|offset| range[*offset].member == member).collect();
            let part = volume.part(sector, nr, member);
            prop_assert_eq!(part, volume.part_of(&known, member));
            prop_assert_eq!(part.is_some(), !offsets.is_empty());
            let Some(part) = part else { continue };
            for (done, offset) in offsets.iter().enumerate() {
                let left = part.skip(done as u32);
                let stride = match volume.layout() {
                    Layout::Linear => BioStride::NONE,
                    Layout::Stripe { chunk_sectors } => BioStride {
                        chunk_shift: chunk_sectors.ilog2() as u16,
                        width: volume.disks().len() as u16,
                    },
                };
                let expected = DrivePart {
                    member,
                    dev_sector: range[*offset].dev_sector,
                    nr_sectors: (offsets.len() - done) as u32,
                    offset: *offset as u32,
                    stride,
                };
                prop_assert_eq!(left, expected);
            }
        }
    }

    #[test]
    fn extents_are_the_runs_of_what_the_drives_say_of_each_sector(
        layout in prop_oneof![Just(Layout::Linear), Just(STRIPE)],
        seeds in prop::collection::vec(prop::collection::vec((0u8..3, 1usize..20), 1..8), 1..4),
        at_once in 1usize..4, at in any::<prop::sample::Index>(), length in 0u64..200,
        most in prop_oneof![0usize..6, Just(usize::MAX)],
    ) {
        let (sizes, mut states) = (vec![48; seeds.len()], Vec::new());
        let disks = seeds.iter().map(|runs| {
            let kinds = [(false, false), (false, true), (true, true)];
            let mut of_drive: Vec<State> = Vec::new();
            for (kind, count) in runs {
                of_drive.extend(vec![kinds[usize::from(*kind)]; *count]);
            }
            of_drive.truncate(48);
            let map = Map { states: of_drive.clone(), most: at_once, ..map(48, 512) };
            // Sectors that a drive does not report are not known to be free.
            of_drive.resize(48, (false, false));
            states.push(of_drive);
            disk_of(map, DiskConfig::default())
        });
        let volume = Volume::new("v", layout, disks.collect()).unwrap();
        let places = places(layout, &sizes, 1);
        let at = at.index(places.len());
        let range = places.iter().skip(at).take(length as usize);
        let known = range.map(|p| states[usize::from(p.member)][p.dev_sector as usize]);
        let found = volume.extents(at as u64, length, most);
        prop_assert_eq!(found, runs_of(known, most));
    }
}

#[test]
fn drive_is_asked_once_and_only_for_wanted_answers() {
    let (asked, other) = (Arc::default(), Arc::default());
    let drive = |asked: &Arc<Mutex<Vec<_>>>| {
        let map = Map { states: vec![(true, true); 64], asked: Arc::clone(asked), ..map(64, 512) };
        disk_of(map, DiskConfig::default())
    };
    let taken = |asked: &Mutex<Vec<_>>| core::mem::take(&mut *asked.lock().unwrap());
    let hole = |nr_sectors| Extent { nr_sectors, hole: true, zero: true };
    let volume = Volume::new("v", STRIPE, vec![drive(&asked), drive(&other)]).unwrap();
    assert_eq!(volume.extents(20, 108, 9), [hole(108)]);
    // The query starts in the second row: 108 sectors of the volume are more than the drive has
    // left.
    assert_eq!((taken(&asked), taken(&other)), (vec![(12, 52)], vec![(8, 56)]));
    assert_eq!(volume.extents(4, 3, 9), [hole(3)]);
    assert_eq!((taken(&asked), taken(&other)), (vec![(4, 3)], vec![]));
    assert_eq!(volume.extents(120, 1000, 9), [hole(8)]);
    assert_eq!(volume.extents(128, 8, 9), []);
}

#[test]
fn a_question_about_extents_ends_after_a_bounded_number_of_runs() {
    let states = (0..5000).map(|sector| (sector % 2 == 0, true)).collect();
    let map = Map { states, most: 64, ..map(5000, 512) };
    let volume = Volume::single(disk_of(map, DiskConfig::default())).unwrap();
    let found = volume.extents(0, 5000, usize::MAX);
    assert_eq!(found.len(), EXTENT_STEPS as usize);
    let single = |(n, extent): (usize, &Extent)| {
        *extent == Extent { nr_sectors: 1, hole: n % 2 == 0, zero: true }
    };
    assert!(found.iter().enumerate().all(single));
}

#[test]
fn capacity_is_whole_blocks_or_rows_of_the_smallest_drive() {
    let sizes = [100, 41, 50];
    for (layout, block, expected) in [
        (Layout::Linear, 1, 191),
        (Layout::Linear, 8, 96 + 40 + 48),
        (Layout::Linear, 64, 64),
        (Layout::Linear, 0, 191),
        (Layout::Stripe { chunk_sectors: 8 }, 1, 120),
        (Layout::Stripe { chunk_sectors: 16 }, 8, 96),
        (Layout::Stripe { chunk_sectors: 64 }, 8, 0),
    ] {
        assert_eq!(layout.capacity(&sizes, block), expected, "{layout:?} {block}");
        assert_eq!(layout.capacity(&[], block), 0, "{layout:?}");
    }
}

/// Returns the error of creating an invalid volume, as text.
fn refusal(layout: Layout, disks: Vec<Arc<Disk<Native>>>) -> String {
    let error = Volume::new("vol", layout, disks).expect_err("makes no sense");
    assert_eq!(error.kind(), ErrorKind::InvalidSetting);
    error.to_string()
}

#[test]
fn what_makes_no_volume_is_refused_in_words() {
    assert!(refusal(Layout::Linear, vec![]).contains("vol: no drives"));
    let same = disk(64, 512);
    let many = |count| vec![Arc::clone(&same); count];
    assert!(
        refusal(Layout::Linear, many(1025)).contains("1025 drives are too many; use at most 1024")
    );
    assert_eq!(Volume::new("v", Layout::Linear, many(1024)).unwrap().capacity(), 1 << 16);
    let small = "has 32256 bytes, less than one chunk of 32768 bytes; make the chunk smaller or";
    let rows = [
        (
            Layout::Stripe { chunk_sectors: 12 },
            disks(2),
            Some("chunk of 6144 bytes is invalid; use a power"),
        ),
        (
            Layout::Stripe { chunk_sectors: 4 },
            disks(2),
            Some("chunk of 2048 bytes is invalid; use a power"),
        ),
        (
            Layout::Stripe { chunk_sectors: 0 },
            disks(2),
            Some("chunk of 0 bytes is invalid; use a power"),
        ),
        (Layout::Stripe { chunk_sectors: 4 }, disks(2), Some("of two from 4096 bytes to 2 GiB")),
        (
            Layout::Stripe { chunk_sectors: 8 },
            vec![disk(64, 65_536 / 4)],
            Some("16384 bytes to 2 GiB"),
        ),
        (Layout::Stripe { chunk_sectors: 1 << 23 }, disks(2), Some("chunk of 4294967296 bytes")),
        (Layout::Stripe { chunk_sectors: 64 }, vec![disk(63, 512)], Some(small)),
        (Layout::Stripe { chunk_sectors: 64 }, vec![disk(64, 512)], None),
        (Layout::Stripe { chunk_sectors: 1 << 22 }, vec![disk(1 << 22, 512)], None),
    ];
    for (layout, disks, wrong) in rows {
        match wrong {
            Some(text) => {
                let refused = refusal(layout, disks);
                assert!(refused.contains(text), "{refused}");
            }
            None => drop(Volume::new("vol", layout, disks).expect("makes sense")),
        }
    }
    let serving = ServingConfig { plug_high: 0, ..ServingConfig::default() };
    let error = Volume::with_serving("vol", Layout::Linear, disks(1), serving).err();
    assert!(error.unwrap().to_string().starts_with("volume vol: plug-high = 0"));
}

#[test]
fn drives_smaller_than_the_coarsest_block_make_no_volume() {
    // A drive must be at least as large as one of its own blocks.
    let fine = || disk(7, 512);
    let coarse = disk(8, 4096);
    let volume = Volume::new("v", Layout::Linear, vec![fine(), coarse, fine()]).unwrap();
    assert_eq!(volume.capacity(), 8);
    assert_eq!((volume.locate(0, 8), volume.span(0, 8)), (Some((1, 0)), (1, 1)));
}

#[test]
fn a_stripe_is_what_io_is_best_as_long_as() {
    let striped = |count| *Volume::new("v", STRIPE, disks(count)).unwrap().limits();
    assert_eq!((striped(4).io_min, striped(4).io_opt), (4096, 16_384));
    assert_eq!((striped(3).io_min, striped(3).io_opt), (4096, 12_288));
    let linear = *Volume::new("v", Layout::Linear, disks(4)).unwrap().limits();
    assert_eq!((linear.io_min, linear.io_opt), (512, 0));
    // The length of a 4 GiB stripe does not fit into 32 bits.
    let layout = Layout::Stripe { chunk_sectors: 1 << 22 };
    let large = Volume::new("v", layout, vec![disk(1 << 22, 512), disk(1 << 22, 512)]).unwrap();
    assert_eq!((large.limits().io_min, large.limits().io_opt), (1 << 31, 0));
    let mixed = vec![disk(64, 512), disk(64, 4096)];
    let mixed = Volume::new("v", Layout::Linear, mixed).unwrap();
    assert_eq!(mixed.limits().logical_block_size, 4096);
}

#[test]
fn a_volume_says_what_it_was_made_of() {
    let config = DiskConfig { name: "drive".into(), ..DiskConfig::default() };
    let first = disk_of(map(64, 512), config);
    let single = Volume::single(Arc::clone(&first)).unwrap();
    assert_eq!((single.name(), single.layout()), ("drive", Layout::Linear));
    assert!(single.disks().len() == 1 && Arc::ptr_eq(&single.disks()[0], &first));
    assert_eq!(*single.serving_config(), ServingConfig::default());
    assert!((single.tracer().is_none(), single.waiting()) == (true, 0));
    assert_eq!((single.tenants(), single.stats().ios()), (vec![], 0));
    let striped = Volume::new("v", STRIPE, disks(3)).unwrap();
    assert_eq!((striped.name(), striped.layout(), striped.disks().len()), ("v", STRIPE, 3));
}

#[test]
fn serving_and_recording_states_change_independently() {
    let traced = || DiskConfig { tracer: Some(Tracer::new(16)), ..DiskConfig::default() };
    for (serving, _) in Serving::NAMES {
        let disks = vec![disk(64, 512), disk_of(map(64, 512), traced())];
        let config = ServingConfig { plug_low: 3, ..ServingConfig::of(serving) };
        let volume = Volume::with_serving("v", Layout::Linear, disks, config).unwrap();
        assert_eq!(*volume.serving_config(), config);
        assert!(volume.tracer().unwrap().start(TraceStamp::Batch));
        for (next, _) in Serving::NAMES {
            for traced in [false, true, true, false] {
                assert!(volume.set_traced(traced));
                assert_eq!(volume.mode(), (volume.serving(), traced));
                assert_eq!(volume.is_usual(), volume.serving() == Serving::Inline && !traced);
            }
            assert!(volume.set_traced(true));
            assert!(volume.switch_serving(next, 0), "no I/O is in flight");
            assert_eq!((volume.serving(), volume.mode()), (next, (next, true)));
            assert!(volume.switch_serving(serving, 0), "no I/O is in flight");
            assert_eq!(volume.serving(), serving);
        }
    }
    let silent = Volume::new("v", Layout::Linear, disks(2)).unwrap();
    assert!(!silent.set_traced(true) && !silent.mode().1 && silent.is_usual());
}

#[test]
fn channel_has_room_for_a_part_on_each_drive_per_bio() {
    for (drives, serving, depth, parts) in [
        (1, Serving::Inline, 32, 64),
        (1, Serving::Inline, 100, 100),
        (2, Serving::Inline, 100, 200),
        (30, Serving::Inline, 1, 120),
        (2, Serving::Inline, 5000, 8192),
        (2, Serving::PerDrive, 10_000, 10_000),
        (2, Serving::PerVolume, 100, 1600),
        (2, Serving::PerVolume, u32::MAX / 2, u32::MAX as usize / 2),
    ] {
        let config = ServingConfig::of(serving);
        let volume = Volume::with_serving("v", STRIPE, disks(drives), config).unwrap();
        assert_eq!(volume.parts_for(depth), parts, "{drives} {serving:?} {depth}");
    }
}
