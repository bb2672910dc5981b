//! `Volume`: several disks as one, striped or one behind the other.
//!
//! Made of disks with validated limits; read by channels, which map and split by it. A range of a
//! volume is one contiguous range on each drive, whatever its length: RAID-0 maps consecutive
//! chunks round robin, so a drive's chunks of a range are neighbours. So a split makes one part per
//! drive (more only where the drive's own limits are lower), and big discards stay one request per
//! drive. Source: \[FALCON\] (volume, stripe). Kernel counterpart: md's raid0 and linear,
//! `queue_limits_stack`.

pub(crate) mod linear;
pub(crate) mod placement;
pub(crate) mod resize;
pub(crate) mod serving;
pub(crate) mod stripe;

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use millrace_machine::{Lock, Machine, Order, Word};

use crate::account::held::HeldSnapshot;
use crate::account::histogram::Snapshot;
use crate::account::tenants::{TenantLedger, TenantSnapshot};
use crate::bio::arena::Arena;
use crate::bio::error::{Error, ErrorKind};
use crate::bio::group_id::GroupId;
use crate::bio::limits::QueueLimits;
use crate::bio::{Sector, SectorCount};
use crate::disk::Disk;
use crate::group::Groups;
use crate::queue::driver::{Extent, Unwritten};
use crate::queue::scheduler::cost::CostModel;
use crate::trace::tracer::Tracer;
use crate::volume::linear::Linear;
use crate::volume::placement::{Part, Placement, Range};
use crate::volume::resize::Size;
use crate::volume::serving::{Choice, Serving, ServingConfig};
use crate::volume::stripe::Stripe;

/// Most runs of one drive that one question about extents looks at: bounds the time it takes.
const EXTENT_STEPS: u32 = 4096;
/// Most parts that a channel has room for beyond its depth: a megabyte of descriptors.
const PARTS_MAX: u32 = 8192;

/// Largest chunk of a stripe, in sectors: 2 GiB.
pub const CHUNK_SECTORS_MAX: u32 = 1 << 22;
/// Most sectors of a volume, whose bytes 64 bits can count.
const SECTORS_MAX: u64 = u64::MAX >> 9;

/// How a volume lays its sectors over its drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Chunks round robin (RAID-0); the chunk in sectors is a power of two, 8 to
    /// [`CHUNK_SECTORS_MAX`].
    Stripe {
        /// Sectors of a chunk.
        chunk_sectors: u32,
    },
    /// One drive behind the other.
    Linear,
}

impl Layout {
    /// Sectors of a volume of drives of these sizes, in whole blocks of `block_sectors`, of which a
    /// chunk is a multiple; 0 if they are too small.
    #[must_use]
    pub fn capacity(self, sizes: &[Sector], block_sectors: SectorCount) -> Sector {
        match self {
            Layout::Linear => Linear::capacity(sizes, block_sectors.max(1).into()),
            Layout::Stripe { chunk_sectors } => Stripe::capacity(sizes, chunk_sectors),
        }
    }
}

/// Several disks as one.
pub struct Volume<M: Machine> {
    name: String,
    disks: Vec<Arc<Disk<M>>>,
    layout: Layout,
    serving: ServingConfig,
    /// The mode at this moment, as bits, and [`TRACED`].
    mode: M::Word,
    /// What its channels found out about who serves faster.
    pub(crate) choice: M::Lock<Choice>,
    pub(crate) size: Size<M>,
    limits: QueueLimits,
    map: Map,
    /// The volume that its one disk is over.
    below: Option<Arc<Volume<M>>>,
    pub(crate) tenants: Arc<TenantLedger<M>>,
}

impl<M: Machine> fmt::Debug for Volume<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let drives = self.disks.iter().map(|disk| disk.name()).collect::<Vec<_>>();
        let mut shown = f.debug_struct("Volume");
        shown.field("name", &self.name).field("layout", &self.layout).field("drives", &drives);
        shown.finish_non_exhaustive()
    }
}

/// Where the sectors lie, by the layout.
enum Map {
    Linear(Linear),
    Stripe(Stripe),
}

/// Of a mode: somebody records.
const TRACED: u64 = 1 << 8;

/// Sectors of a volume of drives of these sizes; 0 if they are too small.
pub(crate) fn capacity_of(layout: Layout, sizes: &[Sector], limits: &QueueLimits) -> Sector {
    layout.capacity(sizes, limits.logical_sectors())
}

/// Whole blocks of the coarsest drive, so that none gets a misaligned I/O.
pub(crate) fn whole_blocks(size: Sector, limits: &QueueLimits) -> Sector {
    let block = u64::from(limits.logical_sectors());
    size / block * block
}

impl Arena {
    /// Says to the drives of a volume, before queues are opened, that requests will lie here.
    pub fn lend_to<M: Machine>(self: &Arc<Self>, volume: &Volume<M>) {
        volume.disks.iter().for_each(|disk| disk.driver.lend(self));
    }
}

impl Unwritten {
    /// What the disks of a volume owe the volumes below them.
    #[must_use]
    pub fn of<M: Machine>(volume: &Volume<M>) -> Unwritten {
        volume.disks.iter().fold(Unwritten::default(), |sum, disk| {
            let more = disk.driver.unwritten();
            Unwritten {
                pages: sum.pages + more.pages,
                untried: sum.untried + more.untried,
                written: sum.written + more.written,
            }
        })
    }
}

impl<M: Machine> Volume<M> {
    /// A volume of these disks.
    ///
    /// # Errors
    /// `InvalidSetting` if there is no disk or more than 1,024, or the chunk is not a power of two
    /// of 4 KiB to 2 GiB, is no multiple of the block size, or is larger than a drive.
    pub fn new(
        name: impl Into<String>,
        layout: Layout,
        disks: Vec<Arc<Disk<M>>>,
    ) -> Result<Arc<Volume<M>>, Error> {
        Volume::with_serving(name, layout, disks, ServingConfig::default())
    }

    /// A volume of these disks, served this way.
    ///
    /// # Errors
    /// As [`Volume::new`], and if the watermarks or pressure points make no sense.
    pub fn with_serving(
        name: impl Into<String>,
        layout: Layout,
        disks: Vec<Arc<Disk<M>>>,
        serving: ServingConfig,
    ) -> Result<Arc<Volume<M>>, Error> {
        let name = name.into();
        let wrong = |text| Err(Error::new(ErrorKind::InvalidSetting, text));
        let Some(first) = disks.first() else {
            return wrong(format!("volume {name}: it has no drive; name one or more"));
        };
        if disks.len() > 1024 {
            return wrong(format!("volume {name}: {} drives; at most 1024", disks.len()));
        }
        if let Err(text) = serving.validate() {
            return wrong(format!("volume {name}: {text}"));
        }
        let mut limits = disks.iter().fold(*first.limits(), |sum, d| sum.stack(*d.limits()));
        let sizes: Vec<Sector> = disks.iter().map(|disk| disk.capacity()).collect();
        let capacity = capacity_of(layout, &sizes, &limits);
        if capacity > SECTORS_MAX {
            return wrong(format!("volume {name}: 16 EiB or more; use fewer or smaller drives"));
        }
        let map = match layout {
            Layout::Linear => {
                if capacity == 0 {
                    return wrong(format!("volume {name}: smaller than one block"));
                }
                let sizes: Vec<Sector> =
                    sizes.iter().map(|size| whole_blocks(*size, &limits)).collect();
                Map::Linear(Linear::new(&sizes))
            }
            Layout::Stripe { chunk_sectors } => {
                let block = limits.logical_sectors().max(8);
                if !chunk_sectors.is_power_of_two()
                    || !(block..=CHUNK_SECTORS_MAX).contains(&chunk_sectors)
                {
                    let bytes = u64::from(chunk_sectors) << 9;
                    let (least, most) = (u64::from(block) << 9, CHUNK_SECTORS_MAX >> 21);
                    return wrong(format!(
                        "volume {name}: chunk of {bytes} bytes; a power of two, {least} to {most} GiB"
                    ));
                }
                if let Some(small) =
                    disks.iter().find(|disk| disk.capacity() < chunk_sectors.into())
                {
                    let (drive, bytes) = (small.name(), small.capacity() << 9);
                    let chunk = u64::from(chunk_sectors) << 9;
                    return wrong(format!(
                        "volume {name}: drive {drive} has {bytes} bytes, less than one chunk of \
                         {chunk} bytes; make the chunk smaller or the drive larger"
                    ));
                }
                let stripe_bytes = (u64::from(chunk_sectors) << 9) * disks.len() as u64;
                limits.io_opt = u32::try_from(stripe_bytes).unwrap_or(limits.io_opt);
                limits.io_min = chunk_sectors << 9;
                Map::Stripe(Stripe::new(chunk_sectors, disks.len()))
            }
        };
        Ok(Arc::new(Volume {
            name,
            layout,
            mode: M::Word::new(serving.serving as u64),
            serving,
            choice: M::Lock::new("serving-choice", Choice::new()),
            size: Size::new(capacity),
            limits,
            map,
            below: None,
            tenants: Arc::new(TenantLedger::new()),
            disks,
        }))
    }

    /// A volume of one disk as it is.
    ///
    /// # Errors
    /// None that a made disk can cause.
    pub fn single(disk: Arc<Disk<M>>) -> Result<Arc<Volume<M>>, Error> {
        Volume::new(String::from(disk.name()), Layout::Linear, alloc::vec![disk])
    }

    /// A volume of one disk that is over another volume, as a cache is; with that volume's name.
    ///
    /// # Errors
    /// None that a made disk can cause.
    pub fn over(below: Arc<Volume<M>>, disk: Arc<Disk<M>>) -> Result<Arc<Volume<M>>, Error> {
        let made = Volume::new(below.name(), Layout::Linear, alloc::vec![disk])?;
        let mut volume = Arc::into_inner(made).expect("nobody else has the volume just made");
        volume.below = Some(below);
        Ok(Arc::new(volume))
    }

    /// The volume below, if its disk is over one.
    #[must_use]
    pub fn below(&self) -> Option<&Arc<Volume<M>>> {
        self.below.as_ref()
    }

    /// Its drives, or those of the volume below.
    #[must_use]
    pub fn drives(&self) -> &[Arc<Disk<M>>] {
        self.below.as_ref().map_or(&self.disks, |below| below.drives())
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its drives.
    #[must_use]
    pub fn disks(&self) -> &[Arc<Disk<M>>] {
        &self.disks
    }

    /// How it lays its sectors over them.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The groups of its drives, if they tell any apart.
    #[must_use]
    pub fn groups(&self) -> Option<&Arc<Groups<M>>> {
        self.disks.iter().find_map(|disk| disk.config.groups.as_ref())
    }

    /// Which threads serve the drives at this moment.
    #[must_use]
    pub fn serving(&self) -> Serving {
        if let Some(below) = &self.below {
            return below.serving();
        }
        // Relaxed: it changes only while nothing is inside.
        self.mode().0
    }

    /// Which threads serve the drives, and whether somebody records what happens.
    pub(crate) fn mode(&self) -> (Serving, bool) {
        // Relaxed: the mode changes only while nothing is inside, and a recording misses a little.
        let mode = self.mode.load(Order::Relaxed);
        (Serving::from_bits(mode & !TRACED), mode & TRACED != 0)
    }

    /// Whether the submitter serves, and nobody records.
    #[inline(always)]
    pub(crate) fn is_usual(&self) -> bool {
        // Relaxed: as above.
        self.mode.load(Order::Relaxed) == Serving::Inline as u64
    }

    /// What records them, if the drives have something that does.
    #[must_use]
    pub fn tracer(&self) -> Option<Arc<Tracer<M>>> {
        self.drives().iter().find_map(|disk| disk.config.tracer.clone())
    }

    /// Has the volume's channels and workers record what they do, from their next batches on, or
    /// no longer; to be called after [`Tracer::start`](crate::Tracer::start) of the drives' tracer
    /// and after its stop. False if no drive has one.
    pub fn set_traced(&self, traced: bool) -> bool {
        let is_below = self.below.as_ref().is_some_and(|below| below.set_traced(traced));
        if !self.disks.iter().any(|disk| disk.config.tracer.is_some()) {
            return is_below;
        }
        // Relaxed: as above.
        match traced {
            true => self.mode.fetch_or(TRACED, Order::Relaxed),
            false => self.mode.fetch_and(!TRACED, Order::Relaxed),
        };
        true
    }

    /// The settings of that, as they were given.
    #[must_use]
    pub fn serving_config(&self) -> &ServingConfig {
        self.below.as_ref().map_or(&self.serving, |below| below.serving_config())
    }

    /// Changes who serves them, with I/O under way: freezes the drives, waits until they are
    /// drained, changes, and goes on. Other threads must poll their channels meanwhile; one that
    /// has I/O in this volume itself must not call this. False if they were not drained at
    /// `deadline_ns`: then all is as before.
    #[must_use]
    pub fn switch_serving(&self, serving: Serving, deadline_ns: u64) -> bool {
        if let Some(below) = &self.below {
            return below.switch_serving(serving, deadline_ns);
        }
        self.disks.iter().for_each(|disk| disk.freeze());
        let drained = self.disks.iter().all(|disk| disk.wait_drained(deadline_ns));
        if drained {
            // Relaxed: channels look at each batch, and either way serves it right.
            self.mode.fetch_and(TRACED, Order::Relaxed);
            self.mode.fetch_or(serving as u64, Order::Relaxed);
        }
        self.disks.iter().for_each(|disk| disk.unfreeze());
        drained
    }

    /// What was handed back to each tenant ([`Bio::with_tenant`](crate::Bio::with_tenant)), added
    /// up over channels, as its submitters saw it: before splitting.
    #[must_use]
    pub fn tenants(&self) -> Vec<(u16, TenantSnapshot)> {
        self.tenants.sums(|payer| payer.tenant).into_iter().collect()
    }

    /// What was handed back to each group ([`Bio::with_group`](crate::Bio::with_group)), as
    /// [`Volume::tenants`].
    #[must_use]
    pub fn group_stats(&self) -> Vec<(GroupId, TenantSnapshot)> {
        self.tenants.sums(|payer| payer.group).into_iter().collect()
    }

    /// What held I/Os of each group so far; those that still wait count up to now. A part of an I/O
    /// that was split counts at its drive.
    #[must_use]
    pub fn held(&self) -> Vec<(GroupId, HeldSnapshot)> {
        let mut sums = self.tenants.held();
        for (group, held) in self.disks.iter().flat_map(|disk| disk.accounts.held()) {
            sums.entry(group).or_default().merge(&held);
        }
        sums.into_iter().collect()
    }

    /// How long requests of groups with a latency target were at each drive, in the order of the
    /// drives: from when its scheduler named them to when the driver had answered. Only `fair` and
    /// `latency` count it.
    #[must_use]
    pub fn service_by_group(&self) -> Vec<BTreeMap<GroupId, Snapshot>> {
        self.disks.iter().map(|disk| disk.accounts.service()).collect()
    }

    /// What an I/O costs its drives, as the settings of the first one say.
    #[must_use]
    pub fn cost(&self) -> &CostModel {
        &self.disks[0].config.cost
    }

    /// All of them together.
    #[must_use]
    pub fn stats(&self) -> TenantSnapshot {
        let mut sum = TenantSnapshot::default();
        self.tenants.sums(|_| ()).values().for_each(|tenant| sum.merge(tenant));
        sum
    }

    /// Chains that wait in the stack for the drives' workers.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.disks.iter().map(|disk| disk.waiting()).sum()
    }

    /// How many parts a channel of this depth should have room for: one on each drive for each bio,
    /// or, where bios are split by chunks, what a bio of 64 KiB takes; within reason.
    pub(crate) fn parts_for(&self, depth: u32) -> usize {
        let drives = self.disks.len() as u32;
        let each = match self.serving.serving {
            Serving::PerVolume => 16,
            _ => drives,
        };
        let most = depth.saturating_mul(each).min(PARTS_MAX);
        (drives * 4).max(depth).max(64).max(most) as usize
    }

    /// Its limits: the strictest of its drives', with the stripe as the optimal size. Longer bios
    /// are split.
    #[must_use]
    pub fn limits(&self) -> &QueueLimits {
        &self.limits
    }

    /// Drive and place on it, if the whole range lies on one drive in one piece.
    #[inline(always)]
    pub(crate) fn locate(&self, sector: Sector, nr_sectors: SectorCount) -> Option<(u16, Sector)> {
        match &self.map {
            Map::Stripe(stripe) => stripe.locate(sector, nr_sectors),
            Map::Linear(_) if self.disks.len() == 1 => Some((0, sector)),
            Map::Linear(linear) => linear.locate(sector, nr_sectors),
        }
    }

    /// The number of the drive that has a sector of the volume, and how many sectors from there on
    /// it has that follow each other in the volume.
    ///
    /// # Panics
    /// May panic for a sector past the end.
    #[must_use]
    pub fn drive_at(&self, sector: Sector) -> (usize, u64) {
        if self.disks.len() == 1 {
            return (0, u64::MAX);
        }
        let (member, _) = self.locate(sector, 1).expect("one sector lies on one drive");
        (usize::from(member), self.placement().run_from(sector))
    }

    /// Where the sectors lie.
    #[inline]
    pub(crate) fn placement(&self) -> &dyn Placement {
        match &self.map {
            Map::Linear(linear) => linear,
            Map::Stripe(stripe) => stripe,
        }
    }

    /// The first drive that a range touches, and how many drives from there on, round robin.
    pub(crate) fn span(&self, sector: Sector, nr: SectorCount) -> (u16, u16) {
        self.placement().span(sector, sector + u64::from(nr.max(1)) - 1)
    }

    /// What [`Volume::part_of`] must know of a range.
    pub(crate) fn range(&self, sector: Sector, nr: SectorCount) -> Range {
        self.placement().range(sector, sector + u64::from(nr))
    }

    /// What of a range lies on drive `member`; none if nothing does.
    pub(crate) fn part(&self, sector: Sector, nr: SectorCount, member: u16) -> Option<Part> {
        self.part_of(&self.range(sector, nr), member)
    }

    /// What of a range that is known lies on drive `member`; none if nothing does.
    #[inline]
    pub(crate) fn part_of(&self, range: &Range, member: u16) -> Option<Part> {
        match &self.map {
            Map::Linear(linear) => linear.part_of(range, member),
            Map::Stripe(stripe) => stripe.part_of(range, member),
        }
    }

    /// What is allocated in a range, drive by drive; may block. The extents cover the range or the
    /// first part of it, at most `most` of them.
    #[must_use]
    pub fn extents(&self, sector: Sector, nr_sectors: u64, most: usize) -> Vec<Extent> {
        let end = (sector + nr_sectors).min(self.capacity());
        let (mut at, mut list, mut steps) = (sector, Vec::<Extent>::new(), 0);
        // What each drive said last: from where, and what.
        let mut known: Vec<(Sector, Vec<Extent>)> = alloc::vec![(0, Vec::new()); self.disks.len()];
        while at < end && steps < EXTENT_STEPS {
            steps += 1;
            let (member, place, run) = self.run_at(at, end);
            let found = lookup(&mut known[usize::from(member)], place, || {
                let disk = &self.disks[usize::from(member)];
                disk.extents(place, (disk.capacity() - place).min(end - at))
            });
            let length = found.nr_sectors.min(run);
            let full = list.len() == most;
            match list.last_mut() {
                Some(last) if (last.hole, last.zero) == (found.hole, found.zero) => {
                    last.nr_sectors += length;
                }
                _ if full => break,
                _ => list.push(Extent { nr_sectors: length, ..found }),
            }
            at += length;
        }
        list
    }

    /// Whether a read of a range inside the volume is known to give zeroes: if each drive knows it
    /// of its part. One question a drive, and none after the first `false`. No sector is read, so
    /// writes that are in flight may count or not, as with any read beside them.
    #[must_use]
    pub fn reads_as_zeroes(&self, sector: Sector, nr_sectors: SectorCount) -> bool {
        self.disks.iter().zip(0..).all(|(disk, member)| {
            let part = self.part(sector, nr_sectors, member);
            part.is_none_or(|part| disk.reads_as_zeroes(part.dev_sector, part.nr_sectors.into()))
        })
    }

    /// Drive, place and length of the longest one-drive run that starts at a sector.
    pub(crate) fn run_at(&self, at: Sector, end: Sector) -> (u16, Sector, u64) {
        let (member, place) = self.locate(at, 1).expect("one sector lies on one drive");
        (member, place, self.placement().run_from(at).min(end - at))
    }
}

/// The extent at `place`, out of what a drive said last or of what it says now.
fn lookup(
    known: &mut (Sector, Vec<Extent>),
    place: Sector,
    ask: impl FnOnce() -> Vec<Extent>,
) -> Extent {
    let find = |known: &(Sector, Vec<Extent>)| {
        let mut start = known.0;
        known.1.iter().find_map(|extent| {
            let inside = place >= start && place < start + extent.nr_sectors;
            start += extent.nr_sectors;
            inside.then(|| Extent { nr_sectors: start - place, ..*extent })
        })
    };
    if let Some(extent) = find(known) {
        return extent;
    }
    *known = (place, ask());
    find(known).unwrap_or(Extent { nr_sectors: 1, hole: false, zero: false })
}

#[cfg(test)]
mod tests;
