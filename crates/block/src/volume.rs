//! `Volume`: several disks combined, striped or concatenated.
//!
//! A volume is made of disks with validated limits; channels use it to map and split bios. A range
//! of a volume is at most one contiguous range on each drive, whatever its length: RAID-0 maps
//! consecutive chunks round robin, so the chunks of a range are adjacent on each drive. A split
//! therefore makes one part for each drive (more only if the drive's own limits require it), and a
//! large discard stays one request for each drive. Source: Kumar et al., ATC 2017, the Falcon paper
//! (volume, stripe). Kernel counterpart: md's raid0 and linear, `queue_limits_stack`.

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

use crate::account::held::WaitSnapshot;
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
use crate::volume::placement::{DrivePart, SectorMapping, VolumeRange};
use crate::volume::resize::VolumeSize;
use crate::volume::serving::{Serving, ServingChoice, ServingConfig};
use crate::volume::stripe::Stripe;

/// Maximum number of lookups in one query of a volume's extents. Limits the query's time.
const EXTENT_STEPS: u32 = 4096;
/// Maximum number of a channel's bio slots (128 bytes each) for parts of split bios. A channel may
/// have more if its depth, or four slots for each drive, require more.
const PARTS_MAX: u32 = 8192;

/// Largest chunk of a stripe, in sectors: 2 GiB.
pub const CHUNK_SECTORS_MAX: u32 = 1 << 22;
/// Maximum size of a volume in sectors. The size in bytes must fit into 64 bits.
const SECTORS_MAX: u64 = u64::MAX >> 9;

/// The mapping of a volume's sectors to its drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Chunks round robin (RAID-0).
    Stripe {
        /// Sectors of a chunk: a power of two, 8 to [`CHUNK_SECTORS_MAX`].
        chunk_sectors: u32,
    },
    /// Concatenation: one drive after the other.
    Linear,
}

impl Layout {
    /// Returns the size in sectors of a volume over drives of these sizes, in whole blocks of
    /// `block_sectors`. Returns 0 if the drives are too small.
    #[must_use]
    pub fn capacity(self, sizes: &[Sector], block_sectors: SectorCount) -> Sector {
        match self {
            Layout::Linear => Linear::capacity(sizes, block_sectors.max(1).into()),
            Layout::Stripe { chunk_sectors } => Stripe::capacity(sizes, chunk_sectors),
        }
    }
}

/// Several disks combined into one device.
#[doc(alias("mapped_device", "md"))]
pub struct Volume<M: Machine> {
    name: String,
    disks: Vec<Arc<Disk<M>>>,
    layout: Layout,
    serving: ServingConfig,
    /// The present serving mode as a number, with the bit [`TRACED`] added.
    mode: M::Word,
    pub(crate) choice: M::Lock<ServingChoice>,
    pub(crate) size: VolumeSize<M>,
    limits: QueueLimits,
    map: LayoutMap,
    /// The volume below, if this volume's only disk is a cache over that volume.
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

enum LayoutMap {
    Linear(Linear),
    Stripe(Stripe),
}

/// Bit of `mode` that is set while a trace is recorded.
const TRACED: u64 = 1 << 8;

/// Rounds a size in sectors down to whole logical blocks. The block size of a volume is the largest
/// block size of its drives.
pub(crate) fn whole_blocks(size: Sector, limits: &QueueLimits) -> Sector {
    let block = u64::from(limits.logical_sectors());
    size / block * block
}

impl Arena {
    /// Announces to a volume's drives, before queues are opened, that requests will use memory of
    /// this arena.
    pub fn lend_to<M: Machine>(self: &Arc<Self>, volume: &Volume<M>) {
        volume.disks.iter().for_each(|disk| disk.driver.lend(self));
    }
}

impl Unwritten {
    /// Returns the amount of unwritten data, summed over the volume's disks. Only a cache (a disk
    /// that stores its data on another volume) has unwritten data.
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
    /// Creates a volume over these disks. The submitting threads serve its I/O (`Serving::Inline`).
    ///
    /// # Errors
    /// `InvalidSetting` in these cases:
    /// - There is no disk, or there are more than 1,024.
    /// - The volume would be larger than 16 EiB.
    /// - The chunk size is smaller than a block, or is not a power of two from 4 KiB to 2 GiB.
    /// - A drive of a striped volume is smaller than a chunk.
    /// - All drives of a linear volume are smaller than a block.
    pub fn new(
        name: impl Into<String>,
        layout: Layout,
        disks: Vec<Arc<Disk<M>>>,
    ) -> Result<Arc<Volume<M>>, Error> {
        Volume::with_serving(name, layout, disks, ServingConfig::default())
    }

    /// Creates a volume over these disks, served as `serving` says.
    ///
    /// # Errors
    /// The errors of [`Volume::new`], and those of [`ServingConfig::validate`].
    pub fn with_serving(
        name: impl Into<String>,
        layout: Layout,
        disks: Vec<Arc<Disk<M>>>,
        serving: ServingConfig,
    ) -> Result<Arc<Volume<M>>, Error> {
        let name = name.into();
        let wrong = |text: String| {
            Err(Error::new(ErrorKind::InvalidSetting, format!("volume {name}: {text}")))
        };
        let Some(first) = disks.first() else {
            return wrong("no drives; name at least one".into());
        };
        if disks.len() > 1024 {
            return wrong(format!("{} drives are too many; use at most 1024", disks.len()));
        }
        if let Err(error) = serving.validate() {
            return wrong(format!("{error}"));
        }
        let mut limits = disks.iter().fold(*first.limits(), |sum, d| sum.stack(*d.limits()));
        let sizes: Vec<Sector> = disks.iter().map(|disk| disk.capacity()).collect();
        let capacity = layout.capacity(&sizes, limits.logical_sectors());
        if capacity > SECTORS_MAX {
            let text = "larger than the maximum of 16 EiB; use fewer or smaller drives";
            return wrong(text.into());
        }
        let map = match layout {
            Layout::Linear => {
                if capacity == 0 {
                    return wrong("all drives are smaller than one block; use larger ones".into());
                }
                let sizes: Vec<Sector> =
                    sizes.iter().map(|size| whole_blocks(*size, &limits)).collect();
                LayoutMap::Linear(Linear::new(&sizes))
            }
            Layout::Stripe { chunk_sectors } => {
                let block = limits.logical_sectors().max(8);
                if !chunk_sectors.is_power_of_two()
                    || !(block..=CHUNK_SECTORS_MAX).contains(&chunk_sectors)
                {
                    let bytes = u64::from(chunk_sectors) << 9;
                    let (least, most) = (u64::from(block) << 9, CHUNK_SECTORS_MAX >> 21);
                    return wrong(format!(
                        "a chunk of {bytes} bytes is invalid; use a power of two from {least} bytes to \
                         {most} GiB"
                    ));
                }
                if let Some(small) =
                    disks.iter().find(|disk| disk.capacity() < chunk_sectors.into())
                {
                    let (drive, bytes) = (small.name(), small.capacity() << 9);
                    let chunk = u64::from(chunk_sectors) << 9;
                    return wrong(format!(
                        "drive {drive} has {bytes} bytes, less than one chunk of {chunk} bytes; \
                         make the chunk smaller or the drive larger"
                    ));
                }
                let stripe_bytes = (u64::from(chunk_sectors) << 9) * disks.len() as u64;
                limits.io_opt = u32::try_from(stripe_bytes).unwrap_or(limits.io_opt);
                limits.io_min = chunk_sectors << 9;
                LayoutMap::Stripe(Stripe::new(chunk_sectors, disks.len()))
            }
        };
        Ok(Arc::new(Volume {
            name,
            layout,
            mode: M::Word::new(serving.serving as u64),
            serving,
            choice: M::Lock::new("serving-choice", ServingChoice::new()),
            size: VolumeSize::new(capacity),
            limits,
            map,
            below: None,
            tenants: Arc::new(TenantLedger::new()),
            disks,
        }))
    }

    /// Creates a volume over a single disk.
    ///
    /// # Errors
    /// The errors of [`Volume::new`]. If the disk was opened successfully, no error occurs.
    pub fn single(disk: Arc<Disk<M>>) -> Result<Arc<Volume<M>>, Error> {
        Volume::new(String::from(disk.name()), Layout::Linear, alloc::vec![disk])
    }

    /// Creates a volume over a single disk that stores its data on the volume `below`. An example
    /// is the disk of a cache. The new volume gets the name of `below`.
    ///
    /// # Errors
    /// The errors of [`Volume::new`]. If the disk was opened successfully, no error occurs.
    pub fn over(below: Arc<Volume<M>>, disk: Arc<Disk<M>>) -> Result<Arc<Volume<M>>, Error> {
        let made = Volume::new(below.name(), Layout::Linear, alloc::vec![disk])?;
        let mut volume = Arc::into_inner(made).expect("the new volume has no other reference yet");
        volume.below = Some(below);
        Ok(Arc::new(volume))
    }

    /// Returns the lower volume of a volume that [`Volume::over`] created.
    #[must_use]
    pub fn below(&self) -> Option<&Arc<Volume<M>>> {
        self.below.as_ref()
    }

    /// Returns the disks of the lowest volume: those of the volume below, if any, else its own.
    #[must_use]
    pub fn drives(&self) -> &[Arc<Disk<M>>] {
        self.below.as_ref().map_or(&self.disks, |below| below.drives())
    }

    /// Returns the volume's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the volume's disks.
    #[must_use]
    pub fn disks(&self) -> &[Arc<Disk<M>>] {
        &self.disks
    }

    /// Returns the mapping of sectors to drives.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns the groups that share the drives, if groups are configured.
    #[must_use]
    pub fn groups(&self) -> Option<&Arc<Groups<M>>> {
        self.disks.iter().find_map(|disk| disk.config.groups.as_ref())
    }

    /// Returns which threads serve the drives at this moment.
    #[must_use]
    pub fn serving(&self) -> Serving {
        if let Some(below) = &self.below {
            return below.serving();
        }
        // Relaxed: the mode changes only while the disks have no I/O.
        self.mode().0
    }

    /// Returns which threads serve the drives, and whether a trace is recorded.
    pub(crate) fn mode(&self) -> (Serving, bool) {
        // Relaxed: the serving mode changes only while the disks have no I/O. A batch is served
        // correctly in the old and in the new mode. If a thread notices the trace bit late, the
        // recording misses some events.
        let mode = self.mode.load(Order::Relaxed);
        (Serving::from_bits(mode & !TRACED), mode & TRACED != 0)
    }

    /// Returns true if submitting threads serve the volume's I/O themselves (`Serving::Inline`),
    /// and no trace is recorded.
    #[inline(always)]
    pub(crate) fn is_usual(&self) -> bool {
        // Relaxed: if the value is outdated, a batch is still served correctly, but the recording
        // may miss the batch.
        self.mode.load(Order::Relaxed) == Serving::Inline as u64
    }

    /// Returns the drives' tracer, if they have one.
    #[must_use]
    pub fn tracer(&self) -> Option<Arc<Tracer<M>>> {
        self.drives().iter().find_map(|disk| disk.config.tracer.clone())
    }

    /// Starts or stops recording in the volume's channels and workers, from their next batches on.
    /// Call this function after [`Tracer::start`](crate::Tracer::start) or
    /// [`Tracer::stop`](crate::Tracer::stop) of the drives' tracer. Returns false if no drive has a
    /// tracer.
    pub fn set_traced(&self, traced: bool) -> bool {
        let is_below = self.below.as_ref().is_some_and(|below| below.set_traced(traced));
        if !self.disks.iter().any(|disk| disk.config.tracer.is_some()) {
            return is_below;
        }
        // Relaxed: a recording may miss its first events.
        match traced {
            true => self.mode.fetch_or(TRACED, Order::Relaxed),
            false => self.mode.fetch_and(!TRACED, Order::Relaxed),
        };
        true
    }

    /// Returns the serving settings that the volume was created with.
    #[must_use]
    pub fn serving_config(&self) -> &ServingConfig {
        self.below.as_ref().map_or(&self.serving, |below| below.serving_config())
    }

    /// Changes the serving mode during I/O: freezes the drives, waits until they are drained,
    /// changes the mode and unfreezes them. Other threads must poll their channels meanwhile; a
    /// thread that has I/O in this volume must not call this function. Returns false and changes
    /// nothing if the drives are not drained by `deadline_ns`.
    #[must_use]
    pub fn switch_serving(&self, serving: Serving, deadline_ns: u64) -> bool {
        if let Some(below) = &self.below {
            return below.switch_serving(serving, deadline_ns);
        }
        self.disks.iter().for_each(|disk| disk.freeze());
        let drained = self.disks.iter().all(|disk| disk.wait_drained(deadline_ns));
        if drained {
            // Relaxed: a channel that still sees the old mode serves its batch correctly, too.
            self.mode.fetch_and(TRACED, Order::Relaxed);
            self.mode.fetch_or(serving as u64, Order::Relaxed);
        }
        self.disks.iter().for_each(|disk| disk.unfreeze());
        drained
    }

    /// Returns the statistics of completed I/Os for each tenant
    /// ([`Bio::with_tenant`](crate::Bio::with_tenant)), summed over channels. A split I/O counts as
    /// one I/O.
    #[must_use]
    pub fn tenants(&self) -> Vec<(u16, TenantSnapshot)> {
        self.tenants.sums(|account_key| account_key.tenant).into_iter().collect()
    }

    /// Returns the completed I/O of each group ([`Bio::with_group`](crate::Bio::with_group)),
    /// counted as in [`Volume::tenants`].
    #[must_use]
    pub fn group_stats(&self) -> Vec<(GroupId, TenantSnapshot)> {
        self.tenants.sums(|account_key| account_key.group).into_iter().collect()
    }

    /// Returns how long the I/Os of each group have waited, by reason. Unfinished waits are
    /// included up to now. If a split I/O waits at the drives, each of its parts is counted.
    #[must_use]
    pub fn held(&self) -> Vec<(GroupId, WaitSnapshot)> {
        let mut sums = self.tenants.held();
        for (group, held) in self.disks.iter().flat_map(|disk| disk.accounts.held()) {
            sums.entry(group).or_default().merge(&held);
        }
        sums.into_iter().collect()
    }

    /// Returns one map for each drive, in the order of the drives. A map contains a histogram of
    /// service times for each group with a latency target. Service time lasts from dispatch by the
    /// scheduler until completion. Only the scheduler `latency` measures it.
    #[must_use]
    pub fn service_by_group(&self) -> Vec<BTreeMap<GroupId, Snapshot>> {
        self.disks.iter().map(|disk| disk.accounts.service()).collect()
    }

    /// Returns the cost model of the first drive.
    #[must_use]
    pub fn cost(&self) -> &CostModel {
        &self.disks[0].config.cost
    }

    /// Returns the statistics of completed I/O, summed over all tenants.
    #[must_use]
    pub fn stats(&self) -> TenantSnapshot {
        let mut sum = TenantSnapshot::default();
        self.tenants.sums(|_| ()).values().for_each(|tenant| sum.merge(tenant));
        sum
    }

    /// Returns the number of requests that wait for the drives' workers; merged bios count as one.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.disks.iter().map(|disk| disk.waiting()).sum()
    }

    /// Returns the number of bio slots that a channel of `depth` bios has for parts of split bios.
    /// Usually, each bio has one part for each drive. In `PerVolume` mode, 16 parts for each bio
    /// are assumed, because bios are split by chunks. [`PARTS_MAX`] is the usual maximum. Bios with
    /// more parts wait for free slots.
    pub(crate) fn parts_for(&self, depth: u32) -> usize {
        let drives = self.disks.len() as u32;
        let each = match self.serving.serving {
            Serving::PerVolume => 16,
            _ => drives,
        };
        let most = depth.saturating_mul(each).min(PARTS_MAX);
        (drives * 4).max(depth).max(64).max(most) as usize
    }

    /// Returns the volume's limits: for each limit the strictest value of the drives, and the size
    /// of a stripe as the optimal I/O size. Bios that exceed the limits are split.
    #[must_use]
    pub fn limits(&self) -> &QueueLimits {
        &self.limits
    }

    #[inline(always)]
    pub(crate) fn locate(&self, sector: Sector, nr_sectors: SectorCount) -> Option<(u16, Sector)> {
        if self.disks.len() == 1 {
            return Some((0, sector));
        }
        match &self.map {
            LayoutMap::Stripe(stripe) => stripe.locate(sector, nr_sectors),
            LayoutMap::Linear(linear) => linear.locate(sector, nr_sectors),
        }
    }

    /// Returns the index of the drive that holds a sector of the volume, and the number of
    /// consecutive sectors that the drive holds from there on.
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

    #[inline]
    pub(crate) fn placement(&self) -> &dyn SectorMapping {
        match &self.map {
            LayoutMap::Linear(linear) => linear,
            LayoutMap::Stripe(stripe) => stripe,
        }
    }

    pub(crate) fn span(&self, sector: Sector, nr: SectorCount) -> (u16, u16) {
        self.placement().span(sector, sector + u64::from(nr.max(1)) - 1)
    }

    pub(crate) fn range(&self, sector: Sector, nr: SectorCount) -> VolumeRange {
        self.placement().range(sector, sector + u64::from(nr))
    }

    pub(crate) fn part(&self, sector: Sector, nr: SectorCount, member: u16) -> Option<DrivePart> {
        self.part_of(&self.range(sector, nr), member)
    }

    #[inline]
    pub(crate) fn part_of(&self, range: &VolumeRange, member: u16) -> Option<DrivePart> {
        match &self.map {
            LayoutMap::Linear(linear) => linear.part_of(range, member),
            LayoutMap::Stripe(stripe) => stripe.part_of(range, member),
        }
    }

    /// Returns the allocation state of a range as at most `most` extents. The extents may end
    /// before the range does. May block.
    #[must_use]
    pub fn extents(&self, sector: Sector, nr_sectors: u64, most: usize) -> Vec<Extent> {
        let end = (sector + nr_sectors).min(self.capacity());
        let (mut at, mut list, mut steps) = (sector, Vec::<Extent>::new(), 0);
        // For each drive, the last answer to an extent query: the first sector, and the extents
        // from that sector on.
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

    /// Returns true if the drives know, without reading, that a range inside the volume reads as
    /// zeroes. The result may or may not take writes in flight into account.
    #[must_use]
    pub fn reads_as_zeroes(&self, sector: Sector, nr_sectors: SectorCount) -> bool {
        self.disks.iter().zip(0..).all(|(disk, member)| {
            let part = self.part(sector, nr_sectors, member);
            part.is_none_or(|part| disk.reads_as_zeroes(part.dev_sector, part.nr_sectors.into()))
        })
    }

    /// Locates sector `at` of the volume: drive, sector on that drive, and number of sectors that
    /// lie there without a gap, at most up to `end`.
    pub(crate) fn run_at(&self, at: Sector, end: Sector) -> (u16, Sector, u64) {
        let (member, place) = self.locate(at, 1).expect("one sector lies on one drive");
        (member, place, self.placement().run_from(at).min(end - at))
    }
}

/// Returns the extent at sector `place` of a drive: from `known`, the last answer of the drive, if
/// it contains the sector; else from a new query, which replaces `known`.
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
