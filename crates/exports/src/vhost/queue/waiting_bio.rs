//! `WaitingBio`: a bio for which the channel had no space, and the beginning of its wait.
//!
//! While a bio waits, its queue takes no requests from its ring. The waiting time counts as back
//! pressure on the bio's group, for this request and for each that the guest makes available after
//! it.

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

    /// Returns the bio, to be submitted again. Counts the waiting time as back pressure on the
    /// bio's group, for all `waiting` requests.
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
