//! Seeded bugs: single deviations from the production code, which tests must find.
//!
//! Production code does not mention these bugs. `cargo xtask planted` and `cargo xtask models` copy
//! the tree and patch hooks into the copy (`xtask/planted/*.patch`). A hook calls [`planted`], or
//! [`weaker`] for a memory ordering.
//!
//! In the copy, [`with`] turns a bug on while a closure runs, for the calling thread only. That is
//! enough, because checked and simulated machines run a whole model on one native thread.
//!
//! There is no feature flag for this file. With a flag, cargo would compile the workspace anew for
//! each selection of crates.

use core::sync::atomic::Ordering as Order;

/// Bugs that can be seeded, each with a description of the faulty behaviour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plant {
    /// Seeded bug: `Doorbell::arm` does not order its store of ARMED before the last check for
    /// work.
    ArmUnordered,
    /// Seeded bug: `Doorbell::ring` does not order the published work before its load of the state.
    RingUnordered,
    /// Seeded bug: `Doorbell::sleep_unless` does not check for work once more before sleeping.
    LastLookSkipped,
    /// Seeded bug: `Sbitmap::take_from` may read outdated bits.
    TakeLookRelaxed,
    /// Seeded bug: `Sbitmap::take_from` does not see the writes of the tag's last user.
    TakeRelaxed,
    /// Seeded bug: `Sbitmap::give` does not publish the writes of the tag's last user.
    GiveRelaxed,
    /// Seeded bug: `Sbitmap::give` does not order the freed tag before the check for waiters.
    GiveRelease,
    /// Seeded bug: `TagSet::has_waiters` may read the count of waiters before tags are given back.
    WaitersRelaxed,
    /// Seeded bug: `wait_for_tags` does not try to take a tag once more after it joined the
    /// waiters.
    SecondTakeSkipped,
    /// Seeded bug: `BioSet::deliver` does not publish the bio.
    DeliverRelaxed,
    /// Seeded bug: `BioSet::take_delivered` may read outdated contents of the bio.
    TakeDeliveredRelaxed,
    /// Seeded bug: `Disk::freeze` leaves the software queues open.
    FreezeMissesQueues,
    /// Seeded bug: `Disk::freeze` leaves the hardware queues open.
    FreezeMissesServers,
    /// Seeded bug: `ServeLock::try_enter` does not see the writes of the lock's last holder.
    EnterRelaxed,
    /// Seeded bug: `ServeLock::enter_or_flag` does not publish the caller's work when it sets the
    /// flag.
    FlagRelaxed,
    /// Seeded bug: `ServeLock::enter_or_flag` does not publish the caller's work if the flag is
    /// already set.
    FlagAssumed,
    /// Seeded bug: `ServeGuard::leave` does not publish the writes of the lock's holder.
    LeaveRelaxed,
    /// Seeded bug: `ServeGuard::leave` finds the lock's flag set, but may miss the work that was
    /// published before the flag was set.
    StayRelaxed,
    /// Seeded bug: `HardwareQueue::take_pending` may read outdated contents of the inserted bio.
    TakePendingRelaxed,
    /// Seeded bug: `HardwareQueue::ring` wakes no thread.
    RingSkipped,
    /// Seeded bug: a thread hands a bio over to a worker without marking the software queue as
    /// pending.
    HandoverUnmarked,
    /// Seeded bug: `WorkerDrive::turn` counts a queue as served if it failed to lock the queue.
    MissForgotten,
    /// Seeded bug: `WorkerDrive::leave` does not wake the threads whose bios wait for the worker's
    /// queue.
    LeaveUnrung,
    /// Seeded bug: the owner of a hardware queue sleeps while another thread serves the queue.
    OwnerGivesUp,
    /// Seeded bug: `raise` stores a volume's new size with Relaxed instead of Release. A reader of
    /// the new size may then see the drive's old size.
    RaiseRelaxed,
    /// Seeded bug: `Volume::capacity` loads the size with Relaxed instead of Acquire. A reader of
    /// the volume's new size may then see the drive's old size.
    CapacityRelaxed,
    /// Seeded bug: `Volume::resize` does not see the result of the previous resize.
    SizeTurnRelaxed,
    /// Seeded bug: `BioSet::deliver` does not ring the doorbell.
    SkippedWakeUp,
    /// Seeded bug: `TagSet::give` does not free the tag of a write-zeroes request.
    LeakedTag,
    /// Seeded bug: `Channel::part_done` completes a parent bio when its last part but one
    /// completes.
    DoubleCompletion,
    /// Seeded bug: a flush covers only the volume's first drive.
    DroppedMemberFlush,
    /// Seeded bug: a flush joins another flush that was already issued.
    FlushJoinedTooLate,
    /// Seeded bug: `Disk::freeze` leaves the first software queue and the first hardware queue
    /// open.
    FreezeMissesOne,
    /// Seeded bug: a merge ignores the drive's chunk boundary.
    MergeAcrossChunk,
    /// Seeded bug: the single-queue model removes a request from its queue only after issuing it.
    SqUnlockTooEarly,
    /// Seeded bug: a fault handler of vhost-user does not check whether its table entry has a new
    /// owner.
    FaultLooksOnce,
    /// Seeded bug: an unmapping in vhost-user does not wait for the fault handler that uses the
    /// mapping.
    FaultUnpinned,
    /// Seeded bug: `SplitRing::available` does not see the ring entries that the guest wrote before
    /// its index.
    AvailRelaxed,
    /// Seeded bug: `SplitRing::publish` does not publish the entries of the used ring.
    PublishRelaxed,
    /// Seeded bug: `SplitRing::request_kick` does not order its request before its last check of
    /// the ring.
    KickUnordered,
    /// Seeded bug: `SplitRing::request_kick` does not check the ring once more after its request.
    KickLookSkipped,
    /// Seeded bug: `SplitRing::wants_interrupt` may read the guest's request before `used.idx` is
    /// written.
    InterruptUnordered,
    /// Seeded bug: `Channel::plug_request` does not count a bio that waits for a tag as
    /// outstanding. So a poll may skip the drive's queue in which the bio waits.
    TagUnlooked,
    /// Seeded bug: a request that a busy driver refused on direct issue waits until the next poll.
    BusyForgotten,
    /// Seeded bug: `IoAtBucket::reserve` reads and writes the bucket's time in two steps.
    GateLost,
    /// Seeded bug: `Throttle` ignores the limits of a group's parent.
    ParentFree,
    /// Seeded bug: `Throttle::hold` does not record when the bio may be issued.
    DueForgotten,
    /// Seeded bug: `ShareQueue::completed` does not give the queue depth back.
    DepthLeak,
    /// Seeded bug: `SharedAllocation::weigh` treats the weights of all groups as equal.
    SlopeIgnored,
    /// Seeded bug: `Throttle::lift` loses the throttled bios that already have an issue time.
    LiftForgets,
    /// Seeded bug: `Throttle::renew` loses the throttled bios that already have an issue time.
    RenewForgets,
    /// Seeded bug: `ShareQueue::drain` leaves the bios of one group behind.
    DrainForgets,
    /// Seeded bug: `Shard::frame_to_write` returns a page's frame while the frame is written to a
    /// drive.
    FrameReused,
    /// Seeded bug: cache flushes do not wait for pages that are being written.
    FlushMissesWriting,
    /// Seeded bug: the cache drops a discarded range from memory before the drives have discarded
    /// it.
    DiscardDropsEarly,
    /// Seeded bug: `Writeout::look_for_stuck` never finds a drive stuck.
    StuckUnnoticed,
    /// Seeded bug: a FUA write to the cache never flushes the drives, although another request may
    /// have written the same pages without FUA.
    FuaTrusted,
}

/// True if the production code of this source tree contains hooks for seeded bugs, as only a
/// patched copy does.
pub const HOOKS: bool = false;

std::thread_local! {
    static CURRENT: core::cell::Cell<Option<Plant>> = const { core::cell::Cell::new(None) };
}

/// Returns true if the bug `plant` is turned on for the calling thread.
#[inline(always)]
#[must_use]
pub fn planted(plant: Plant) -> bool {
    CURRENT.get() == Some(plant)
}

/// Returns the memory ordering `order`, or the ordering `weak` if the bug `plant` is turned on.
#[inline(always)]
#[must_use]
pub fn weaker(plant: Plant, order: Order, weak: Order) -> Order {
    if planted(plant) { weak } else { order }
}

/// Runs `body` with a bug turned on for the calling thread.
pub fn with<R>(plant: Plant, body: impl FnOnce() -> R) -> R {
    struct Restore(Option<Plant>);
    impl Drop for Restore {
        fn drop(&mut self) {
            CURRENT.set(self.0);
        }
    }
    let _restore = Restore(CURRENT.replace(Some(plant)));
    body()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bug_is_planted_for_the_length_of_a_closure() {
        let order = || weaker(Plant::GiveRelaxed, Order::SeqCst, Order::Relaxed);
        assert_eq!((order(), with(Plant::GiveRelaxed, order), order()), {
            (Order::SeqCst, Order::Relaxed, Order::SeqCst)
        });
        assert!(with(Plant::EnterRelaxed, || !planted(Plant::GiveRelaxed)));
    }
}
