//! `WaitReason`: the reason why an I/O waits before it reaches the drive.
//!
//! Accounts (held.rs), trace notes and reports name these reasons. Traces store the position of a
//! reason in the list, so new reasons are added at the end.

/// The reason why an I/O waits before it reaches the drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WaitReason {
    /// A limit of the I/O's group, or of that group's parent, delays the I/O.
    Limit,
    /// The group has used its share of the drive; other groups' I/Os go first.
    Weight,
    /// The latency target of another group limits this group.
    LatencyTarget,
    /// The drive already has enough requests to keep it busy.
    Depth,
    /// No tag is free for the I/O; each request at the drive needs one. The schedulers `fair` and
    /// `latency` may keep an eighth of the tags free for other groups.
    NoTag,
    /// The driver reported that the drive is busy.
    DriveBusy,
    /// The I/O waits for its turn in the scheduler: behind earlier I/Os of its group or, if the
    /// scheduler sorts by sector, behind I/Os to other sectors.
    Order,
    /// The channel has no room for I/O of this group, or no room at all, so the submitter has to
    /// wait before submission. No other statistic includes this time.
    BackPressure,
    /// I/Os of a higher priority go first.
    Priority,
}

impl WaitReason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [WaitReason; 9] = [
        WaitReason::Limit,
        WaitReason::Weight,
        WaitReason::LatencyTarget,
        WaitReason::Depth,
        WaitReason::NoTag,
        WaitReason::DriveBusy,
        WaitReason::Order,
        WaitReason::BackPressure,
        WaitReason::Priority,
    ];

    /// Returns the reason's name in reports and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            WaitReason::Limit => "limit",
            WaitReason::Weight => "weight",
            WaitReason::LatencyTarget => "latency-target",
            WaitReason::Depth => "depth",
            WaitReason::NoTag => "no-tag",
            WaitReason::DriveBusy => "drive-busy",
            WaitReason::Order => "order",
            WaitReason::BackPressure => "back-pressure",
            WaitReason::Priority => "priority",
        }
    }
}
