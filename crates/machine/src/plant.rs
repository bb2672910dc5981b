//! Seeded bugs: single deviations from the production code, which tests must find.
//!
//! Production code does not mention them. `cargo xtask planted` and `cargo xtask models` copy the
//! tree and patch hooks into the copy (`xtask/planted/*.patch`); the hooks call [`planted`] or
//! [`weaker`]. In the copy, [`with`] turns a bug on while a closure runs, on the calling thread
//! only, because checked and simulated machines run all threads of a model on one. This file is
//! always compiled: with a feature of its own, each selection of crates would compile the workspace
//! anew.

use crate::Order;

/// Bugs that can be seeded, named after what goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plant {
    /// `Doorbell::arm` does not order its write of the word before the last check for work.
    ArmUnordered,
    /// `Doorbell::ring` does not order the published work before its read of the word.
    RingUnordered,
    /// `Doorbell::sleep_unless` does not check for work once more before sleeping.
    LastLookSkipped,
    /// `Sbitmap::take_from` may read old bits.
    TakeLookRelaxed,
    /// `Sbitmap::take_from` does not see the writes of the tag's last user.
    TakeRelaxed,
    /// `Sbitmap::give` does not publish the writes of the tag's last user.
    GiveRelaxed,
    /// `Sbitmap::give` is not ordered before the check for waiters.
    GiveRelease,
    /// `TagSet::has_waiters` is not ordered after tags were given back.
    WaitersRelaxed,
    /// `Disk::wait_for_tags` does not try once more after it joined the waiters.
    SecondTakeSkipped,
    /// `Home::deliver` does not publish the bio.
    DeliverRelaxed,
    /// `Home::take_delivered` does not see the bio.
    TakeDeliveredRelaxed,
    /// `Disk::freeze` leaves the software queues open.
    FreezeMissesQueues,
    /// `Disk::freeze` leaves the hardware queues open.
    FreezeMissesServers,
    /// `ServeLock::try_enter` does not see the writes of the last server.
    EnterRelaxed,
    /// `ServeLock::enter_or_flag` does not publish its work when it sets the flag.
    FlagRelaxed,
    /// `ServeLock::enter_or_flag` relies on a flag that it finds already set.
    FlagAssumed,
    /// `Serving::leave` does not publish the writes of the server.
    LeaveRelaxed,
    /// `Serving::leave` continues to serve, but does not see what the threads that set the flag
    /// published.
    StayRelaxed,
    /// `HardwareQueue::take_pending` does not see the insertion.
    TakePendingRelaxed,
    /// `HardwareQueue::ring` wakes no thread.
    RingSkipped,
    /// `Disk::hand_over` does not mark the software queue.
    HandoverUnmarked,
    /// `Worker::turn` treats a queue that it could not enter as if it had served it.
    MissForgotten,
    /// `Disk::leave_seat` does not wake the threads whose bios wait for the worker's queue.
    LeaveUnrung,
    /// `Disk::run_queue` lets an owner sleep while another thread serves its queue.
    OwnerGivesUp,
    /// `raise` does not publish what a drive recorded when it grew.
    RaiseRelaxed,
    /// `Volume::capacity` does not see what a drive recorded when it grew.
    CapacityRelaxed,
    /// `Volume::resize` does not see the result of the resize before it.
    SizeTurnRelaxed,
    /// `Home::deliver` does not ring the doorbell.
    SkippedWakeUp,
    /// `TagSet::give` forgets the tag of a write-zeroes.
    LeakedTag,
    /// `Channel::part_done` completes a parent bio when its last part but one completes.
    DoubleCompletion,
    /// A flush leaves out the volume's last drive.
    DroppedMemberFlush,
    /// A flush joins another flush that was already issued.
    FlushJoinedTooLate,
    /// `Disk::freeze` leaves the last queues open.
    FreezeMissesOne,
    /// A merge ignores the drive's chunk boundary.
    MergeAcrossChunk,
    /// `sq` takes a request off its queue only after the drive has it.
    SqUnlockTooEarly,
    /// A fault handler of vhost-user does not check whether an entry has a new owner by then.
    FaultLooksOnce,
    /// An unmapping in vhost-user does not wait for the fault handler that uses the mapping.
    FaultUnpinned,
    /// `SplitRing::available` does not see what the driver wrote before its index.
    AvailRelaxed,
    /// `SplitRing::publish` does not publish the entries of the used ring.
    PublishRelaxed,
    /// `SplitRing::request_kick` does not order its request for a kick before its last check.
    KickUnordered,
    /// `SplitRing::request_kick` does not check the ring once more.
    KickLookSkipped,
    /// `SplitRing::wants_interrupt` does not order used.idx before it reads the driver's request.
    InterruptUnordered,
    /// `Channel::plug_request` does not check any queue for a bio that waits for a tag.
    TagUnlooked,
    /// `Disk::issue_directly` leaves a request to the next poll after the driver was busy.
    BusyForgotten,
    /// `Gates::reserve` reads and writes the time in two steps.
    GateLost,
    /// `Throttle` ignores the limits of a group's parent.
    ParentFree,
    /// `Throttle::hold` does not record when the bio may be issued.
    DueForgotten,
    /// `ShareQueue::completed` does not give the queue depth back.
    DepthLeak,
    /// `Agreement::weigh` treats all weights as equal.
    SlopeIgnored,
    /// `Throttle::lift` leaves throttled bios behind that have a due time.
    LiftForgets,
    /// `Throttle::renew` leaves throttled bios behind that have a due time.
    RenewForgets,
    /// `ShareQueue::drain` leaves a group's chains behind.
    DrainForgets,
    /// `Shard::frame_to_write` returns the frame of a page while a drive reads it.
    FrameReused,
    /// `Cache::is_below` and `Extent::owes` do not wait for pages that are being written.
    FlushMissesWriting,
    /// `CacheQueue::advance_clear` drops its range from memory before the drives have discarded it.
    DiscardDropsEarly,
    /// `Writeout::look_for_stuck` never finds a drive stuck.
    StuckUnnoticed,
    /// `CacheQueue::advance_sync` does not flush the drives although another write wrote pages of a
    /// FUA write without FUA.
    FuaTrusted,
}

/// True if this tree's production code asks for seeded bugs, which is so only in a patched copy.
pub const HOOKS: bool = false;

std::thread_local! {
    static CURRENT: core::cell::Cell<Option<Plant>> = const { core::cell::Cell::new(None) };
}

/// Returns true if this bug is turned on.
#[inline(always)]
#[must_use]
pub fn planted(plant: Plant) -> bool {
    CURRENT.get() == Some(plant)
}

/// Returns `order`, or `weak` if this bug is turned on.
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
