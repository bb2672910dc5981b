//! Counters of groups for `stats`, from the accounts of all volumes.
//!
//! daemon.rs calls this module for each report. Counters are only read.

use std::collections::HashMap;
use std::sync::Arc;

use millrace::{Priority, ServedGroups};
use millrace_block::{GroupId, TenantSnapshot, Volume, WaitSnapshot};
use millrace_machine::Native;

use crate::views::groups::{GroupCounts, OnVolume};

pub fn counts(groups: &ServedGroups, volumes: &[Arc<Volume<Native>>]) -> Vec<GroupCounts> {
    let table = groups.table();
    let listed = table.list();
    // A group's id is its index in `listed`.
    let name_of = |id: GroupId| listed.get(usize::from(id.0)).map(|(_, group)| group.name.clone());
    let booked: HashMap<GroupId, u64> = table.booked().into_iter().collect();
    let mut counts: HashMap<GroupId, Vec<OnVolume>> = HashMap::new();
    for volume in volumes {
        for (group, on) in on_volume(volume) {
            counts.entry(group).or_default().push(on);
        }
    }
    let one = |(id, config): &(GroupId, millrace_block::GroupConfig)| GroupCounts {
        name: config.name.clone(),
        parent: config.parent.and_then(name_of),
        weight: config.weight,
        idle: config.priority == Priority::Idle,
        booked_ns: booked.get(id).copied().unwrap_or(0),
        volumes: counts.remove(id).unwrap_or_default(),
    };
    listed.iter().map(one).collect()
}

fn on_volume(volume: &Volume<Native>) -> Vec<(GroupId, OnVolume)> {
    let mut held: HashMap<GroupId, WaitSnapshot> = volume.held().into_iter().collect();
    let mut stats: HashMap<GroupId, TenantSnapshot> = volume.group_stats().into_iter().collect();
    // A group whose first I/O still waits has no counters of completed I/Os yet.
    held.keys().for_each(|group| {
        stats.entry(*group).or_default();
    });
    let on = |(group, stats): (GroupId, TenantSnapshot)| {
        let held = held.remove(&group).unwrap_or_default();
        OnVolume::new(volume.name(), &stats, &held, volume.cost()).map(|on| (group, on))
    };
    stats.into_iter().filter_map(on).collect()
}
