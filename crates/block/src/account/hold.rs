//! `Hold`: what holds an I/O.
//!
//! The reasons that accounts (held.rs), notes of traces and reports name. Their places are numbers
//! in traces: new ones come last.

/// What holds an I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// A limit of its group, or of that one's parent.
    Limit,
    /// Its group has had its share; others wait for theirs.
    Weight,
    /// The latency target of another group.
    LatencyTarget,
    /// As much is at the drive as keeps it busy.
    Depth,
    /// No tag is free.
    NoTag,
    /// The drive takes no more.
    DriveBusy,
    /// Its own group's I/Os are before it, or the order of sectors.
    Order,
    /// The layer takes no more, of its group or of anybody, so that it waits where it comes from:
    /// time before its submission, which no other time of it includes.
    BackPressure,
    /// Others of a higher priority go first.
    Priority,
}

impl Hold {
    /// All of them, in order.
    pub const ALL: [Hold; 9] = [
        Hold::Limit,
        Hold::Weight,
        Hold::LatencyTarget,
        Hold::Depth,
        Hold::NoTag,
        Hold::DriveBusy,
        Hold::Order,
        Hold::BackPressure,
        Hold::Priority,
    ];

    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Hold::Limit => "limit",
            Hold::Weight => "weight",
            Hold::LatencyTarget => "latency-target",
            Hold::Depth => "depth",
            Hold::NoTag => "no-tag",
            Hold::DriveBusy => "drive-busy",
            Hold::Order => "order",
            Hold::BackPressure => "back-pressure",
            Hold::Priority => "priority",
        }
    }
}
