//! `WaitingBio`: the bio of a request that the channel had no room for, and since when it waits.
//!
//! While there is one, its queue takes no more off its ring. What waits meanwhile is the group's
//! time in back pressure: of the held request, and of each that the guest has made available behind
//! it. Owned by the queue; the clock is read only when the channel is full.

use millrace_block::{Bio, Channel, GroupId};
use millrace_machine::{Machine, Native};

/// A bio that waits for the channel.
pub(super) struct WaitingBio {
    bio: Bio,
    since_ns: u64,
}

impl WaitingBio {
    /// Waits from now on.
    pub(super) fn new(bio: Bio) -> WaitingBio {
        WaitingBio { bio, since_ns: Native::now() }
    }

    /// The bio, to be tried again; the time is in the account of its group, for as many requests
    /// as wait with it.
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
