//! Planted bugs: deviations of a production line, one token each, that tests must find.
//!
//! Production lines know nothing of them. `cargo xtask planted` and `cargo xtask models` copy the
//! tree and patch hooks into the copy (`xtask/planted/*.patch`), which ask [`planted`] or
//! [`weaker`]. There, the bug that [`with`] names is on for the length of a closure, on its thread
//! only: checked and simulated machines run all threads of a model on one. Switched by the models
//! of `crates/block` and `crates/exports` and by `lab/experiments`. Always there, although only
//! tests use it: a feature of its own had each choice of crates compile the workspace anew.

use crate::Order;

/// The bugs that can be planted, named after what goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plant {
    /// `Doorbell::arm` does not order the word before the last look.
    ArmUnordered,
    /// `Doorbell::ring` does not order the work before the look at the word.
    RingUnordered,
    /// `Doorbell::sleep_unless` does not look once more.
    LastLookSkipped,
    /// `Sbitmap::take_from` may look at old bits.
    TakeLookRelaxed,
    /// `Sbitmap::take_from` does not see what the last user of a tag wrote.
    TakeRelaxed,
    /// `Sbitmap::give` does not publish what the last user of a tag wrote.
    GiveRelaxed,
    /// `Sbitmap::give` is not ordered before the look at the waiters.
    GiveRelease,
    /// `TagSet::has_waiters` is not ordered after tags were given back.
    WaitersRelaxed,
    /// `Disk::wait_for_tags` does not look once more after joining those who wait.
    SecondTakeSkipped,
    /// `Home::deliver` does not publish the bio.
    DeliverRelaxed,
    /// `Home::take_delivered` does not see the bio.
    TakeDeliveredRelaxed,
    /// `Disk::freeze` leaves the software queues open.
    FreezeMissesQueues,
    /// `Disk::freeze` leaves the hardware queues open.
    FreezeMissesServers,
    /// `ServeLock::try_enter` does not see what the last server did.
    EnterRelaxed,
    /// `ServeLock::enter_or_flag` does not publish its work by the flag.
    FlagRelaxed,
    /// `ServeLock::enter_or_flag` relies on a flag that it finds set.
    FlagAssumed,
    /// `Serving::leave` does not publish what the server did.
    LeaveRelaxed,
    /// `Serving::leave` stays, but does not see what the flaggers published.
    StayRelaxed,
    /// `HardwareQueue::take_pending` does not see the insertion.
    TakePendingRelaxed,
    /// `HardwareQueue::ring` wakes nobody.
    RingSkipped,
    /// `Disk::hand_over` does not mark the software queue.
    HandoverUnmarked,
    /// `Worker::turn` takes a queue that it could not enter for one that it has looked at.
    MissForgotten,
    /// `Disk::leave_seat` does not wake those whose bios lie before the worker's queue.
    LeaveUnrung,
    /// `Disk::run_queue` lets an owner sleep while somebody else looks at its queue.
    OwnerGivesUp,
    /// `raise` does not publish what a drive wrote down when it grew.
    RaiseRelaxed,
    /// `Volume::capacity` does not see it.
    CapacityRelaxed,
    /// A turn of `Volume::resize` does not see what the one before did.
    SizeTurnRelaxed,
    /// `Home::deliver` rings no bell.
    SkippedWakeUp,
    /// `TagSet::give` forgets the tag of a write-zeroes.
    LeakedTag,
    /// `Channel::part_done` ends a parent with its last part but one.
    DoubleCompletion,
    /// A flush leaves out the volume's last drive.
    DroppedMemberFlush,
    /// A flush joins one that is issued.
    FlushJoinedTooLate,
    /// `Disk::freeze` leaves the last queues open.
    FreezeMissesOne,
    /// A merge does not ask about the drive's boundary.
    MergeAcrossChunk,
    /// `sq` takes a request off its queue only after the drive has it.
    SqUnlockTooEarly,
    /// A fault handler of vhost-user does not look whether an entry is another's by then.
    FaultLooksOnce,
    /// A mapping of vhost-user does not wait for the handler that is at it.
    FaultUnpinned,
    /// `SplitRing::available` does not see what the driver wrote before its index.
    AvailRelaxed,
    /// `SplitRing::publish` does not publish what was put on the used ring.
    PublishRelaxed,
    /// `SplitRing::request_kick` does not order its wish before its last look.
    KickUnordered,
    /// `SplitRing::request_kick` does not look once more.
    KickLookSkipped,
    /// `SplitRing::wants_interrupt` does not order used.idx before its look at the driver's wish.
    InterruptUnordered,
    /// `Channel::plug_request` looks at no queue for a bio that waits for a tag.
    TagUnlooked,
    /// `Disk::issue_directly` leaves a request that the driver was too busy for to the next poll.
    BusyForgotten,
    /// `Gates::reserve` reads and writes the time in two steps.
    GateLost,
    /// `Throttle` asks no gate of a group's parent.
    ParentFree,
    /// `Throttle::hold` does not note when the bio may go.
    DueForgotten,
    /// `ShareQueue::completed` does not give the depth back.
    DepthLeak,
    /// `Agreement::weigh` takes all weights for equal.
    SlopeIgnored,
    /// `Throttle::lift` leaves those behind that have a time.
    LiftForgets,
    /// `Throttle::renew` leaves them behind, too.
    RenewForgets,
    /// `ShareQueue::drain` leaves a group's chains behind.
    DrainForgets,
    /// `Shard::frame_to_write` gives the frame of a page that a drive reads.
    FrameReused,
    /// `Cache::is_below` and `Extent::owes` do not wait for pages that are being written.
    FlushMissesWriting,
    /// `CacheQueue::advance_clear` drops its range before it is discarded below.
    DiscardDropsEarly,
    /// `Writeout::look_for_stuck` finds no drive stuck.
    StuckUnnoticed,
    /// `CacheQueue::advance_sync` flushes no drive though others wrote what a write with FUA left.
    FuaTrusted,
}

/// Whether this tree's production lines ask for bugs: in the copy that is patched, and only there.
pub const HOOKS: bool = false;

std::thread_local! {
    static CURRENT: core::cell::Cell<Option<Plant>> = const { core::cell::Cell::new(None) };
}

/// Whether this bug is planted.
#[inline(always)]
#[must_use]
pub fn planted(plant: Plant) -> bool {
    CURRENT.get() == Some(plant)
}

/// `order`, or `weak` where this bug is planted.
#[inline(always)]
#[must_use]
pub fn weaker(plant: Plant, order: Order, weak: Order) -> Order {
    if planted(plant) { weak } else { order }
}

/// Runs `body` with a bug planted on the calling thread.
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
