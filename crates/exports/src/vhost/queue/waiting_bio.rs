//! `WaitingBio`: a bio for which the channel had no space, with the start time of its wait.
//!
//! While a bio waits, its queue takes no requests from its ring. The waiting time counts as back
//! pressure on the bio's group, once for each request that the bio delays.

use millrace_block::{Bio, Channel, GroupId};
use millrace_machine::{Machine, Native};

pub(super) struct WaitingBio {
    bio: Bio,
    since_ns: u64,
}

impl WaitingBio {
    pub(super) fn new(bio: Bio) -> WaitingBio {
        WaitingBio { bio, since_ns: Native::now() }
    }

    /// Returns the bio for another attempt. Counts the waiting time as back pressure on the bio's
    /// group, once for each of the `waiting` requests.
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
