//! `GroupId`: the number of the group that a bio belongs to. A group consists of tenants.
//!
//! [`Groups`](crate::Groups) assigns the numbers and keeps the settings that belong to them.

/// Number of a group. All tenants of a group share a weight, limits and a latency target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct GroupId(pub u16);

impl GroupId {
    /// The default group, for bios that name no group: weight 100 and no limits until changed.
    pub const DEFAULT: GroupId = GroupId(0);
}
