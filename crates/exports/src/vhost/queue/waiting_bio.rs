//! `WaitingBio`: a bio that the channel had no room for, with the time since when it waits.
//!
//! While there is one, its queue takes no more requests off its ring. The waiting time counts as
//! back pressure on the group, for the held request and for each one that the guest makes available
//! behind it. Owned by the queue; the clock is read only when the channel is full.

use millrace_block::{Bio, Channel, GroupId};
use millrace_machine::{Machine, Native};

/// A bio that waits for room in the channel.
pub(super) struct WaitingBio {
    bio: Bio,
    since_ns: u64,
}

impl WaitingBio {
    /// Starts to wait.
    pub(super) fn new(bio: Bio) -> WaitingBio {
        WaitingBio { bio, since_ns: Native::now() }
    }

    /// Returns the bio to be retried, and counts the waiting time as back pressure on its group,
    /// for all `waiting` requests.
    pub(super) fn try_again(
        self,
        group: GroupId,
        waiting: u32,
        channel: &mut Channel<Native>,
    ) -> Bio {
        let ns = Native::now().saturating_sub(self.since_ns);
        channel.count_back_pressure(group, ns * u64::from(waiting));
        self.bio
    }
}
