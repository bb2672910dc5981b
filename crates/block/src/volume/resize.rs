//! Growth of a volume while it is in use.
//!
//! Any thread that learns that a drive has grown may resize the volume, also during I/O. Sizes only
//! grow, so an old size is never wrong, only outdated, and the I/O path pays nothing. A channel
//! reads the volume's size again when a bio lies beyond the end that it knows (checks.rs). A server
//! that has told clients a size can register a callback ([`Volume::watch_size`]). All drives are
//! asked before any new size is adopted, so a refused growth changes nothing. Growth must not move
//! stored data: in a linear volume only the last drive may grow. Lock order: the lock of the list
//! of watchers is held together with no other lock, and is released before watchers are called.
//! Kernel counterpart: `set_capacity_and_notify`, and md's `raid0_size` and `linear_size`.

use alloc::format;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::marker::PhantomData;

use millrace_machine::{Lock, Machine, Order, Word, debug_fields};

use crate::bio::error::{Error, ErrorKind};
use crate::bio::{SECTOR_SHIFT, Sector};
use crate::disk::Disk;
use crate::volume::{Layout, Volume, whole_blocks};

type SizeCallback = dyn Fn(Sector) + Send + Sync;

/// A volume's size, which only grows, and the callbacks that are called when it has grown.
pub(crate) struct VolumeSize<M: Machine> {
    /// Size in sectors when the volume was created. The volume may have grown since.
    pub(crate) made: Sector,
    now: M::Word,
    /// 1 while a thread changes the size.
    busy: M::Word,
    /// Callbacks in order of registration. Each [`SizeWatch`] keeps its callback alive.
    watchers: M::Lock<Vec<Weak<SizeCallback>>>,
}

/// The result of asking a volume's drives for their sizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resized {
    /// Size of the volume in sectors before the resize.
    pub old: Sector,
    /// Size of the volume in sectors after the resize; equal to `old` if the volume has not grown.
    pub new: Sector,
    /// Sizes of the drives, in the order of the volume.
    pub drives: Vec<DriveResized>,
    /// The drives that must grow before the volume can grow; empty if the volume has just grown.
    pub needs: Vec<DriveNeed>,
}

/// A drive that must grow before its volume can grow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriveNeed {
    /// Name of the drive.
    pub name: String,
    /// Present size of the drive in sectors.
    pub has: Sector,
    /// Size in sectors that this drive needs for the smallest growth of the volume. The volume can
    /// grow only when all drives in [`Resized::needs`] have reached their needed sizes.
    pub needs: Sector,
}

/// The size of a drive before and after a call of [`Volume::resize`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriveResized {
    /// Name of the drive.
    pub name: String,
    /// Size of the drive in sectors before the resize.
    pub old: Sector,
    /// Size of the drive in sectors after the resize.
    pub new: Sector,
}

/// Registration of a callback for the growth of a volume. After the registration is dropped, no new
/// call begins, but a call in another thread may still be running.
#[must_use = "dropping the watch unregisters its callback"]
pub struct SizeWatch<M: Machine> {
    _call: Arc<SizeCallback>,
    _machine: PhantomData<fn() -> M>,
}

debug_fields!(SizeWatch<M: Machine>);

struct ResizeGuard<'a, M: Machine>(&'a VolumeSize<M>);

impl<M: Machine> VolumeSize<M> {
    pub(crate) fn new(made: Sector) -> Self {
        VolumeSize {
            made,
            now: M::Word::new(made),
            busy: M::Word::new(0),
            watchers: M::Lock::new("size-watchers", Vec::new()),
        }
    }

    fn begin(&self) -> Option<ResizeGuard<'_, M>> {
        // Acquire pairs with the Release in `drop`: the previous resize is complete.
        (self.busy.swap(1, Order::Acquire) == 0).then(|| ResizeGuard(self))
    }
}

impl<M: Machine> Drop for ResizeGuard<'_, M> {
    fn drop(&mut self) {
        // Release pairs with the Acquire in `VolumeSize::begin`: the next resize sees all sizes.
        self.0.busy.store(0, Order::Release);
    }
}

fn raise<W: Word>(word: &W, size: Sector) {
    // Relaxed: an outdated size does no harm, because the exchange below fails then.
    let mut old = word.load(Order::Relaxed);
    while old < size {
        // Release pairs with the Acquire of each reader of `word`: a thread that sees the new size
        // also sees the size that the driver has stored. Relaxed: a failed exchange is retried.
        match word.compare_exchange(old, size, Order::Release, Order::Relaxed) {
            Ok(_) => return,
            Err(found) => old = found,
        }
    }
}

impl<M: Machine> Volume<M> {
    /// Returns the volume's size in sectors, which [`Volume::resize`] can increase.
    #[must_use]
    pub fn capacity(&self) -> Sector {
        // Acquire pairs with the Release of `raise`, which stores a new size.
        self.size.now.load(Order::Acquire)
    }

    /// Asks the drives for their sizes, and grows the volume if its drives have grown. May block.
    ///
    /// - In a striped volume, the smallest drive must have grown.
    /// - In a linear volume, only the last drive may grow.
    /// - For a volume over another volume, the lower volume is resized first, and the result names
    ///   the lower volume's drives.
    ///
    /// New bios may use the new space, even on channels that are already open. The callbacks of
    /// [`Volume::watch_size`] are called if the volume has grown.
    ///
    /// # Errors
    /// - `InvalidSetting` if a drive has become smaller, or if growth of a drive would move stored
    ///   data.
    /// - `Busy` while another thread resizes the volume.
    /// - Errors of the drives.
    ///
    /// After an error, this volume has its old size.
    #[doc(alias = "set_capacity_and_notify")]
    pub fn resize(&self) -> Result<Resized, Error> {
        let Some(turn) = self.size.begin() else {
            let text =
                format!("volume {}: another thread is changing its size; try again", self.name());
            return Err(Error::new(ErrorKind::Busy, text));
        };
        let below = self.below().map(|below| below.resize()).transpose()?;
        let sizes = self.disks().iter().map(|disk| revalidate(disk));
        let sizes: Vec<Sector> = sizes.collect::<Result<_, Error>>()?;
        self.check_places(&sizes)?;
        let drives = self.disks().iter().zip(&sizes).map(|(disk, new)| {
            let old = disk.capacity();
            raise(&disk.sizes.capacity, *new);
            DriveResized { name: String::from(disk.name()), old, new: *new }
        });
        let drives: Vec<DriveResized> = drives.collect();
        let old = self.capacity();
        let new = self.layout().capacity(&sizes, self.limits().logical_sectors());
        let (drives, needs) = match below {
            Some(below) => (below.drives, below.needs),
            None if new > old => (drives, Vec::new()),
            None => (drives, needs_of(self, &sizes)),
        };
        raise(&self.size.now, new);
        if new > old {
            let calls: Vec<_> =
                self.size.watchers.lock().iter().filter_map(Weak::upgrade).collect();
            // No other thread resizes while `turn` exists, so watchers get all sizes in order.
            calls.iter().for_each(|call| call(new));
        }
        drop(turn);
        Ok(Resized { old, new, drives, needs })
    }

    /// Checks that growth of a drive does not move the data of other drives.
    fn check_places(&self, sizes: &[Sector]) -> Result<(), Error> {
        let blocks = sizes.iter().map(|size| whole_blocks(*size, self.limits()));
        let blocks: Vec<Sector> = blocks.collect();
        let Some((member, old)) = self.placement().moved(&blocks) else { return Ok(()) };
        let text = format!(
            "drive {}: it has {} bytes now, which would move what is on the drives behind it; of a \
             linear volume only the last drive may grow: give this one back its {} bytes, before \
             the next start, too",
            self.disks()[member].name(),
            blocks[member] << SECTOR_SHIFT,
            old << SECTOR_SHIFT
        );
        Err(Error::new(ErrorKind::InvalidSetting, text))
    }

    /// Registers `call`, which gets the new size in sectors after each growth until the returned
    /// watch is dropped. The thread that made the volume grow runs `call`, without holding a lock.
    /// `call` must not block for long or resize the volume. To miss no size, first watch and then
    /// read the capacity.
    pub fn watch_size(
        self: &Arc<Self>,
        call: impl Fn(Sector) + Send + Sync + 'static,
    ) -> SizeWatch<M> {
        let call: Arc<SizeCallback> = Arc::new(call);
        let mut watchers = self.size.watchers.lock();
        watchers.retain(|call| call.strong_count() > 0);
        watchers.push(Arc::downgrade(&call));
        SizeWatch { _call: call, _machine: PhantomData }
    }
}

fn needs_of<M: Machine>(volume: &Volume<M>, sizes: &[Sector]) -> Vec<DriveNeed> {
    let block = u64::from(volume.limits().logical_sectors());
    let (first, needs) = match volume.layout() {
        Layout::Stripe { chunk_sectors } => {
            let chunk = u64::from(chunk_sectors);
            let smallest = sizes.iter().min().copied().unwrap_or(0);
            (0, (smallest / chunk + 1) * chunk)
        }
        Layout::Linear => {
            let last = sizes.last().map_or(0, |size| size / block * block);
            (sizes.len() - 1, last + block)
        }
    };
    let drives = volume.disks().iter().zip(sizes).skip(first);
    let short = drives.filter(|(_, has)| **has < needs);
    let need = |(disk, has): (&Arc<Disk<M>>, &Sector)| {
        let name = String::from(disk.name());
        DriveNeed { name, has: *has, needs }
    };
    short.map(need).collect()
}

/// Asks a disk's driver for the drive's size, in whole blocks. Changes nothing in the disk.
fn revalidate<M: Machine>(disk: &Disk<M>) -> Result<Sector, Error> {
    let (old, new) = (disk.capacity(), whole_blocks(disk.driver.revalidate()?, &disk.limits));
    if new < old {
        let text = format!(
            "drive {}: it has {} bytes now, and {} are served; a drive only grows while it is \
             served: give it back what it had, or stop and start again with less",
            disk.name(),
            new << SECTOR_SHIFT,
            old << SECTOR_SHIFT
        );
        return Err(Error::new(ErrorKind::InvalidSetting, text));
    }
    Ok(new)
}
