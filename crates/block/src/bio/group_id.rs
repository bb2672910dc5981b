//! `GroupId`: the name that a bio carries of the group that it belongs to.
//!
//! A number, made by [`Groups`](crate::Groups), which knows what it stands for.

/// A group of those who share weights, limits and targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct GroupId(pub u16);

impl GroupId {
    /// The group of whatever names none: weight 100, no limits.
    pub const DEFAULT: GroupId = GroupId(0);
}
