//! What growing a volume came to, on the control socket.
//!
//! Plain data for serde, as report.rs: made by `serve` of what the block layer says, read back by
//! `millrace ctl resize`. Fields may be added; whoever reads ignores those that it does not know.

use millrace_block::SECTOR_SHIFT;
use serde::{Deserialize, Serialize};

/// The answer to `resize`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VolumeGrowth {
    /// The volume.
    pub volume: String,
    /// Its size before.
    pub old_bytes: u64,
    /// Its size from now on.
    pub new_bytes: u64,
    /// Its drives, in their order.
    pub drives: Vec<Drive>,
    /// If it has not grown: the drives that must grow before it can.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<DriveNeed>,
}

/// A drive that must grow before its volume can.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DriveNeed {
    /// Its name.
    pub name: String,
    /// Its size.
    pub has_bytes: u64,
    /// The least size with which the volume can grow.
    pub needs_bytes: u64,
}

/// A drive of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Drive {
    /// Its name.
    pub name: String,
    /// Its size before.
    pub old_bytes: u64,
    /// Its size from now on.
    pub new_bytes: u64,
}

impl VolumeGrowth {
    /// What became of the volume of this name.
    pub fn new(volume: &str, resized: millrace_block::Resized) -> VolumeGrowth {
        let drives = resized.drives.into_iter().map(|drive| Drive {
            name: drive.name,
            old_bytes: drive.old << SECTOR_SHIFT,
            new_bytes: drive.new << SECTOR_SHIFT,
        });
        let needs = resized.needs.into_iter().map(|need| DriveNeed {
            name: need.name,
            has_bytes: need.has << SECTOR_SHIFT,
            needs_bytes: need.needs << SECTOR_SHIFT,
        });
        VolumeGrowth {
            needs: needs.collect(),
            volume: volume.to_owned(),
            old_bytes: resized.old << SECTOR_SHIFT,
            new_bytes: resized.new << SECTOR_SHIFT,
            drives: drives.collect(),
        }
    }
}
