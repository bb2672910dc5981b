//! The volumes that an I/O thread has open (its lanes), by number.
//!
//! Requests and connections refer to their lane by number. A number stays valid while the lane has
//! a client or a request, and may be reused afterwards.

use std::collections::HashSet;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use millrace_block::{Error, Stamp, Volume, may_open_late};
use millrace_machine::Native;
use millrace_reactor::POOL_THREADS_KEPT;
use millrace_runtime::IoContext;

use super::super::exports::ServedVolume;
use super::lane::{CHANNEL_DEPTH, VolumeLane};

/// Number of volumes that the I/O threads together open at start-up, although no client uses them.
/// Opening a file drive may start a permanent pool thread for file I/O. There are at most
/// [`POOL_THREADS_KEPT`] such threads, so opening more volumes would start no more threads.
const OPEN_EARLY: usize = POOL_THREADS_KEPT;

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EndedLanes {
    /// True if a volume without clients stays open because it has requests in flight.
    pub(crate) left: bool,
    pub(crate) ranges_changed: bool,
}

#[derive(Default)]
pub(crate) struct VolumeLanes(Vec<Option<Box<VolumeLane>>>);

impl VolumeLanes {
    #[inline]
    pub(crate) fn numbers(&self) -> usize {
        self.0.len()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: usize) -> Option<&mut VolumeLane> {
        self.0.get_mut(number)?.as_deref_mut()
    }

    pub(crate) fn count(&self) -> usize {
        self.iter().count()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &VolumeLane> {
        self.0.iter().flatten().map(|lane| &**lane)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut VolumeLane> {
        self.0.iter_mut().flatten().map(|lane| &mut **lane)
    }

    pub(crate) fn volumes(&self) -> Vec<Arc<Volume<Native>>> {
        self.iter().map(|lane| Arc::clone(&lane.served.volume)).collect()
    }

    fn find(&self, served: &Arc<ServedVolume>) -> Option<usize> {
        let is_its = |lane: &Option<Box<VolumeLane>>| {
            lane.as_ref().is_some_and(|l| Arc::ptr_eq(&l.served, served))
        };
        self.0.iter().position(is_its)
    }

    /// Opens volumes before the server reports that it is ready:
    /// - All volumes with drives that may be slow to open, or may fail to open.
    /// - Up to `OPEN_EARLY` other volumes, so that the threads for file I/O are started before the
    ///   first request.
    pub(crate) fn open_early(
        &mut self,
        ctx: &mut IoContext,
        (thread, threads): (usize, usize),
        volumes: &[Arc<ServedVolume>],
    ) -> Result<(), Error> {
        let may_wait = |served: &&Arc<ServedVolume>| {
            served.volume.disks().iter().all(|disk| may_open_late(disk))
        };
        let (others, kept): (Vec<_>, Vec<_>) = volumes.iter().partition(may_wait);
        for served in kept {
            let number = self.open(ctx, served)?;
            self[number].is_kept = true;
        }
        // The number of volumes is limited here, because a disk allocates tables for each I/O
        // thread that opens it.
        let few = &others[..others.len().min(OPEN_EARLY)];
        let part = OPEN_EARLY.div_ceil(threads).min(few.len());
        for served in few.iter().cycle().skip(thread * part).take(part) {
            self.open(ctx, served)?;
        }
        Ok(())
    }

    pub(crate) fn keep_only(&mut self, volumes: &[Arc<ServedVolume>]) {
        let kept: HashSet<_> = volumes.iter().map(Arc::as_ptr).collect();
        for lane in self.iter_mut() {
            lane.is_kept &= kept.contains(&Arc::as_ptr(&lane.served));
        }
    }

    /// Returns the index of this thread's lane for a volume; the lane has the channel to the
    /// volume. Opens the volume if this thread has not opened it yet.
    pub(crate) fn open(
        &mut self,
        ctx: &mut IoContext,
        served: &Arc<ServedVolume>,
    ) -> Result<usize, Error> {
        if let Some(number) = self.find(served) {
            return Ok(number);
        }
        let channel = ctx.channel(&served.volume, CHANNEL_DEPTH, Stamp::Batch)?;
        served.enter();
        Ok(self.add(VolumeLane::new(channel, served)))
    }

    pub(crate) fn end_unused(&mut self, ctx: &mut IoContext) -> EndedLanes {
        let mut ended = EndedLanes::default();
        for number in 0..self.numbers() {
            let Some(lane) = self.get_mut(number) else { continue };
            if !lane.is_unused() {
                ended.left |= lane.clients == 0 && !lane.is_kept;
            } else if let Some(lane) = self.remove(number) {
                let VolumeLane { channel, served, tracks, .. } = *lane;
                ended.ranges_changed |= !tracks && served.ranges.confirm();
                drop(channel);
                ctx.leave(&served.volume);
                served.leave();
            }
        }
        ended
    }

    fn add(&mut self, lane: VolumeLane) -> usize {
        let number = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        if number == self.0.len() {
            self.0.push(None);
        }
        self.0[number] = Some(Box::new(lane));
        number
    }

    fn remove(&mut self, number: usize) -> Option<Box<VolumeLane>> {
        let lane = self.0[number].take();
        while self.0.pop_if(|last| last.is_none()).is_some() {}
        lane
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

impl Index<usize> for VolumeLanes {
    type Output = VolumeLane;

    #[inline]
    fn index(&self, number: usize) -> &VolumeLane {
        self.0[number].as_ref().expect("a volume must stay open while clients or requests use it")
    }
}

impl IndexMut<usize> for VolumeLanes {
    #[inline]
    fn index_mut(&mut self, number: usize) -> &mut VolumeLane {
        self.0[number].as_mut().expect("a volume must stay open while clients or requests use it")
    }
}
