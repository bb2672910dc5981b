//! Selects the volumes that a report contains.
//!
//! A report of a thousand idle disks would be megabytes of zeroes and take seconds to create.

use std::collections::HashSet;
use std::sync::Arc;

use millrace_block::{Disk, Volume, is_unused};
use millrace_machine::Native;

use crate::views::StatsQuery;
use crate::views::report::IdleCounts;

/// Maximum number of volumes for which a report contains all volumes. If there are more volumes,
/// the report leaves out the idle ones.
pub const VOLUMES_SHOWN: usize = 64;

pub struct ShownVolumes<'a> {
    pub volumes: Vec<Arc<Volume<Native>>>,
    /// Counts of the volumes that the report leaves out, and of the drives of these volumes. The
    /// count of exports is 0 until the caller sets it.
    pub idle: IdleCounts,
    left_out: HashSet<&'a str>,
}

impl<'a> ShownVolumes<'a> {
    pub fn of(volumes: &'a [Arc<Volume<Native>>], query: StatsQuery) -> ShownVolumes<'a> {
        let is_shown = |volume: &&Arc<Volume<Native>>| {
            query.all || volumes.len() <= VOLUMES_SHOWN || !is_idle(volume)
        };
        let (shown, idle): (Vec<_>, Vec<_>) = volumes.iter().partition(is_shown);
        ShownVolumes {
            volumes: shown.into_iter().cloned().collect(),
            idle: IdleCounts {
                volumes: idle.len(),
                drives: idle.iter().map(|volume| volume.drives().len()).sum(),
                exports: 0,
            },
            left_out: idle.into_iter().map(|volume| volume.name()).collect(),
        }
    }

    pub fn has(&self, volume: &str) -> bool {
        !self.left_out.contains(volume)
    }
}

/// Returns true if a volume was never used and its drives are not in trouble.
fn is_idle(volume: &Volume<Native>) -> bool {
    let did_nothing = |disk: &Arc<Disk<Native>>| {
        is_unused(disk) || {
            let stats = disk.stats();
            stats.queued() == 0 && stats.ios() == 0 && stats.in_flight() == 0
        }
    };
    let is_whole = |disk: &Arc<Disk<Native>>| {
        let failures = disk.failures();
        failures.trouble.is_none() && failures.count == 0 && !failures.reconnecting
    };
    let mut disks = volume.drives().iter().chain(volume.disks());
    disks.all(|disk| did_nothing(disk) && is_whole(disk))
}

#[cfg(test)]
mod tests {
    use millrace_block::{Bio, Buffer, Channel, ChannelConfig, DiskConfig};

    use super::*;

    fn volume(number: usize) -> Arc<Volume<Native>> {
        let driver = millrace_drives::open(&"null:size=1m".parse().unwrap(), 1).unwrap().driver;
        let config = DiskConfig { name: format!("v{number}"), ..DiskConfig::default() };
        Volume::single(Disk::new(driver, config).unwrap()).unwrap()
    }

    fn shown(volumes: &[Arc<Volume<Native>>], all: bool) -> (usize, IdleCounts) {
        let shown = ShownVolumes::of(volumes, StatsQuery { all });
        (shown.volumes.len(), shown.idle)
    }

    #[test]
    fn few_volumes_are_all_shown_and_of_many_those_that_were_used() {
        let mut volumes: Vec<_> = (0..VOLUMES_SHOWN).map(volume).collect();
        assert_eq!(shown(&volumes, false), (64, IdleCounts::default()));
        volumes.push(volume(64));
        let idle = |count| IdleCounts { volumes: count, drives: count, exports: 0 };
        assert_eq!(shown(&volumes, false), (0, idle(65)));
        assert_eq!(shown(&volumes, true), (65, IdleCounts::default()));
        let mut channel = Channel::open(&volumes[7], ChannelConfig::default()).unwrap();
        assert_eq!(shown(&volumes, false), (0, idle(65)), "a thread came, and did nothing");
        channel.submit(Bio::read(0, Buffer::new(512))).map_err(drop).unwrap();
        channel.wait(1, |_| ());
        assert_eq!(shown(&volumes, false), (1, idle(64)));
        let some = ShownVolumes::of(&volumes, StatsQuery::default());
        assert!(some.has("v7") && !some.has("v8"));
    }
}
