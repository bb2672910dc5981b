//! Growing a volume while it is served: drives are asked for their size, channels learn it.
//!
//! Called by whoever was told that a drive has grown, from any thread, with I/O under way. Sizes
//! only grow: so a size that somebody still has from before is never wrong, only late, and nothing
//! on the way of an I/O pays for this. A channel looks at the volume's size when a bio lies behind
//! the end that it knows (checks.rs); exports that told clients a size may ask to be called
//! ([`Volume::watch_size`]). All drives are asked before any of them counts, so a refused growth
//! changes nothing. Growing must not move what is stored: of drives one behind the other only the
//! last may grow. Lock order: the list of watchers is locked alone, and never over a call. Kernel
//! counterpart: `set_capacity_and_notify`, and md's `raid0_size` and `linear_size`.

use alloc::format;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use millrace_machine::{Lock, Machine, Order, Word};

use crate::bio::error::{Error, ErrorKind};
use crate::bio::{SECTOR_SHIFT, Sector};
use crate::disk::Disk;
use crate::volume::{Layout, Volume, capacity_of, whole_blocks};

/// A call that a new size is told to.
type Watcher = Arc<dyn Fn(Sector) + Send + Sync>;

/// A volume's size, which only grows, and who wants to hear of it.
pub(crate) struct Size<M: Machine> {
    /// What it was when the volume was made.
    made: Sector,
    now: M::Word,
    /// 1 while somebody changes it.
    busy: M::Word,
    watchers: M::Lock<Watchers>,
}

/// Those who want to hear of it, by number.
struct Watchers {
    next: u64,
    list: Vec<(u64, Watcher)>,
}

/// What asking a volume's drives for their size came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resized {
    /// The volume's sectors before.
    pub old: Sector,
    /// Its sectors from now on; as before if it has not grown.
    pub new: Sector,
    /// Its drives, in their order.
    pub drives: Vec<DriveResized>,
    /// If it has not grown: the drives that must grow before it can.
    pub needs: Vec<DriveNeed>,
}

/// A drive that must grow before its volume can.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriveNeed {
    /// Its name.
    pub name: String,
    /// Its sectors.
    pub has: Sector,
    /// The sectors with which the volume grows by the least that it can, if all such drives have
    /// theirs.
    pub needs: Sector,
}

/// What became of one drive's size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriveResized {
    /// Its name.
    pub name: String,
    /// Sectors before.
    pub old: Sector,
    /// Sectors from now on.
    pub new: Sector,
}

/// Has somebody called when a volume grows, until it is dropped; a call that is under way on
/// another thread at that moment may end after it.
#[must_use = "dropped, it ends the calls"]
pub struct SizeWatch<M: Machine> {
    volume: Weak<Volume<M>>,
    number: u64,
}

/// The right to change a volume's size; one at a time.
struct ResizeGuard<'a, M: Machine>(&'a Size<M>);

impl<M: Machine> Size<M> {
    pub(crate) fn new(made: Sector) -> Self {
        let watchers = Watchers { next: 0, list: Vec::new() };
        Size {
            made,
            now: M::Word::new(made),
            busy: M::Word::new(0),
            watchers: M::Lock::new("size-watchers", watchers),
        }
    }

    /// What it was when the volume was made: right, though perhaps too little, and for free.
    pub(crate) fn made(&self) -> Sector {
        self.made
    }

    fn begin(&self) -> Option<ResizeGuard<'_, M>> {
        // Acquire: pairs with the end of the turn before, whose sizes and calls are done.
        (self.busy.swap(1, Order::Acquire) == 0).then(|| ResizeGuard(self))
    }
}

impl<M: Machine> Drop for ResizeGuard<'_, M> {
    fn drop(&mut self) {
        // Release: pairs with `begin`.
        self.0.busy.store(0, Order::Release);
    }
}

/// Raises a size.
fn raise<W: Word>(word: &W, size: Sector) {
    // Relaxed: what was there is compared, and nothing is read by it.
    let mut old = word.load(Order::Relaxed);
    while old < size {
        // Release: pairs with the loads of capacities: who sees a size sees the drive that has it,
        // whatever its driver wrote down. Relaxed: a failure starts anew.
        match word.compare_exchange(old, size, Order::Release, Order::Relaxed) {
            Ok(_) => return,
            Err(found) => old = found,
        }
    }
}

impl<M: Machine> Volume<M> {
    /// Size in sectors; it grows with [`Volume::resize`].
    #[must_use]
    pub fn capacity(&self) -> Sector {
        // Acquire: pairs with `raise`.
        self.size.now.load(Order::Acquire)
    }

    /// Asks the drives for their sizes and grows the volume by what they have more: a stripe by
    /// what its smallest drive has, drives one behind the other by what the last one has; of a
    /// volume over another one that one first, whose drives the result names. Bios that
    /// are submitted afterwards may use it, on channels that were open before, too; then those who
    /// watch are called. May block. A volume whose drives have not grown stays as it is.
    ///
    /// # Errors
    /// `InvalidSetting` if a drive has become smaller, or one has grown that may not; `Busy` while
    /// another thread does the same; and what drives answer. Then nothing has changed.
    #[doc(alias = "set_capacity_and_notify")]
    pub fn resize(&self) -> Result<Resized, Error> {
        let Some(turn) = self.size.begin() else {
            let text = format!("volume {}: its size is being changed; try again", self.name());
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
        let (old, new) = (self.capacity(), capacity_of(self.layout(), &sizes, self.limits()));
        let (drives, needs) = match below {
            Some(below) => (below.drives, below.needs),
            None if new > old => (drives, Vec::new()),
            None => (drives, needs_of(self, &sizes)),
        };
        raise(&self.size.now, new);
        if new > old {
            let watchers = self.size.watchers.lock();
            let list: Vec<Watcher> = watchers.list.iter().map(|(_, call)| call.clone()).collect();
            drop(watchers);
            // Within the turn, so that sizes are told in their order.
            list.iter().for_each(|call| call(new));
        }
        drop(turn);
        Ok(Resized { old, new, drives, needs })
    }

    /// Growth must not move the sectors of drives behind the one that grew.
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

    /// Calls `call` with the new size in sectors after each growth, on the thread that made it grow
    /// and with no lock held, until the watch is dropped. A call must not block for long, nor
    /// resize the volume. To learn of every size, watch first and then ask for the capacity.
    pub fn watch_size(
        self: &Arc<Self>,
        call: impl Fn(Sector) + Send + Sync + 'static,
    ) -> SizeWatch<M> {
        let mut watchers = self.size.watchers.lock();
        let number = watchers.next;
        watchers.next += 1;
        watchers.list.push((number, Arc::new(call)));
        SizeWatch { volume: Arc::downgrade(self), number }
    }
}

/// The drives that must grow before the volume can, of drives of these sizes.
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

/// Asks the drive for its size, and leaves all as it is: whole blocks.
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

impl<M: Machine> Drop for SizeWatch<M> {
    fn drop(&mut self) {
        let Some(volume) = self.volume.upgrade() else { return };
        let mut watchers = volume.size.watchers.lock();
        let place = watchers.list.iter().position(|(number, _)| *number == self.number);
        let gone = place.map(|place| watchers.list.swap_remove(place));
        // What the call owns goes without the lock.
        drop(watchers);
        drop(gone);
    }
}
