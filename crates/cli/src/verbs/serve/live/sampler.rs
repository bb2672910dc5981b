//! Samples all counters once per second, for one hour.
//!
//! For a volume that was never used, a sample costs one check of each drive and no memory. For a
//! volume with idle clients, a sample only adds up the clients' counters. So an idle daemon stays
//! idle even with 10,000 disks.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use millrace::{Cache, ServedGroups};
use millrace_block::{
    Disk, GroupId, Op, SECTOR_SHIFT, Snapshot, StatsSnapshot, TenantSnapshot, Volume, is_unused,
};
use millrace_machine::{Native, lock_unpoisoned};

use super::sample_ring::{Reading, SampleRing};
use super::served_lists::NamedStates;
use crate::views::history::{HEAT_ROWS, History, SERIES_MAX, Sample};

#[derive(Debug)]
pub struct StatsSampler(Mutex<SamplerState>);

#[derive(Debug)]
struct SamplerState {
    ring: SampleRing,
    last_at: Instant,
    last: NamedStates<UsedVolume>,
}

/// Counters of a volume. `None` for a volume that was never used, because its empty histograms
/// would take 10 KiB.
type UsedVolume = Option<VolumeCounters>;

#[derive(Debug, Default, Clone)]
struct VolumeCounters {
    /// Volume that was sampled. By the next sample, another volume may have the same name, for
    /// example if a file was closed and opened again.
    of: Weak<Volume<Native>>,
    clients: TenantSnapshot,
    drives: Vec<DriveCounters>,
    groups: Vec<(GroupId, u64)>,
}

#[derive(Debug, Default, Clone, Copy)]
struct DriveCounters {
    ios: u64,
    in_flight: u64,
    /// Number of I/Os with measured stages, and the sums of their times in btt's stages Q2G, G2I,
    /// I2D and D2C.
    timed: u64,
    stage_ns: [u64; 4],
}

impl StatsSampler {
    pub fn new() -> StatsSampler {
        let (ring, last) = (SampleRing::default(), NamedStates::default());
        StatsSampler(Mutex::new(SamplerState { ring, last_at: Instant::now(), last }))
    }

    pub fn look(
        &self,
        volumes: &[Arc<Volume<Native>>],
        caches: &[Arc<Cache<Native>>],
        groups: &ServedGroups,
    ) {
        let mut samples = lock_unpoisoned(&self.0);
        let SamplerState { ring, last_at, last } = &mut *samples;
        let last = last.of(volumes.iter().map(|volume| volume.name()));
        for (volume, before) in volumes.iter().zip(&mut *last) {
            before.take_if(|before| !std::ptr::eq(before.of.as_ptr(), Arc::as_ptr(volume)));
        }
        let cached: HashSet<&str> = caches.iter().map(|cache| cache.below().name()).collect();
        let read = |(volume, before): (&Arc<Volume<Native>>, &UsedVolume)| {
            if !was_used(volume) {
                return None;
            }
            // Write-back and read-ahead use the drives of a cached volume even while its clients
            // are idle, so the counters of its drives are always read.
            let before = before.as_ref().filter(|_| !cached.contains(volume.name()));
            Some(VolumeCounters::read(volume, before))
        };
        let now: Vec<UsedVolume> = volumes.iter().zip(&*last).map(read).collect();
        let since = last_at.elapsed();
        *last_at += since;
        let interval = SampleInterval { last, now: &now, since };
        ring.push(interval.sample(), interval.readings(volumes, groups));
        last.iter_mut().zip(now).for_each(|(last, now)| *last = now);
    }

    pub fn last(&self, seconds: usize) -> History {
        lock_unpoisoned(&self.0).ring.last(seconds)
    }
}

fn was_used(volume: &Volume<Native>) -> bool {
    !volume.drives().iter().chain(volume.disks()).all(|disk| is_unused(disk))
}

impl VolumeCounters {
    /// Reads the counters of a volume. If its clients and drives were idle since `before`, copies
    /// the counters of drives and groups from `before`.
    fn read(volume: &Arc<Volume<Native>>, before: Option<&VolumeCounters>) -> VolumeCounters {
        let mut clients = TenantSnapshot::default();
        volume.tenants().iter().for_each(|(_, stats)| clients.merge(stats));
        let is_quiet = |before: &&VolumeCounters| {
            let was_quiet = before.drives.iter().all(|drive| drive.in_flight == 0);
            let is_empty =
                |disk: &Arc<Disk<Native>>| disk.tags_in_use() == 0 && disk.waiting() == 0;
            let did_nothing = clients.ios() == before.clients.ios();
            did_nothing && was_quiet && volume.drives().iter().all(is_empty)
        };
        if let Some(before) = before.filter(is_quiet) {
            return VolumeCounters { clients, ..before.clone() };
        }
        let drives = volume.drives().iter().map(|disk| DriveCounters::new(&disk.stats()));
        let groups = volume.group_stats().into_iter().map(|(group, stats)| (group, stats.ios()));
        VolumeCounters {
            of: Arc::downgrade(volume),
            clients,
            drives: drives.collect(),
            groups: groups.collect(),
        }
    }
}

impl DriveCounters {
    fn new(stats: &StatsSnapshot) -> DriveCounters {
        let mut counters = DriveCounters {
            ios: stats.ios(),
            in_flight: stats.in_flight(),
            ..DriveCounters::default()
        };
        for op in &stats.ops {
            counters.timed += op.total.count();
            for (sum, stage) in
                counters.stage_ns.iter_mut().zip([&op.q2g, &op.g2i, &op.i2d, &op.service])
            {
                *sum += stage.sum_ns();
            }
        }
        counters
    }
}

/// Counters of the used volumes at the previous sample and at the current one.
struct SampleInterval<'a> {
    last: &'a [UsedVolume],
    now: &'a [UsedVolume],
    since: Duration,
}

fn rate(count: u64, since: Duration) -> u64 {
    (count as f64 / since.as_secs_f64().max(1e-3)).round() as u64
}

impl SampleInterval<'_> {
    fn sample(&self) -> Sample {
        let SampleInterval { last, now, since } = *self;
        let mut sample = Sample { unix_ms: unix_ms(), ..Sample::default() };
        let (mut latency, mut timed) = (Snapshot::default(), 0);
        let empty = VolumeCounters::default();
        for (volume, before) in now.iter().zip(last) {
            let Some(volume) = volume else { continue };
            let before = before.as_ref().unwrap_or(&empty);
            let ops = volume.clients.ops.iter().zip(&before.clients.ops);
            for (op, (is, was)) in Op::ALL.into_iter().zip(ops) {
                let ios = rate(is.ios.saturating_sub(was.ios), since);
                let bytes = rate(is.sectors.saturating_sub(was.sectors) << SECTOR_SHIFT, since);
                match op {
                    Op::Read => {
                        sample.reads += ios;
                        sample.read_bytes += bytes;
                    }
                    Op::Write => {
                        sample.writes += ios;
                        sample.write_bytes += bytes;
                    }
                    _ => {}
                }
                latency.merge(&is.total.since(&was.total));
            }
            for (at, drive) in volume.drives.iter().enumerate() {
                let before = before.drives.get(at).copied().unwrap_or_default();
                timed += drive.timed.saturating_sub(before.timed);
                for (stage, sum) in sample.stage_ns.iter_mut().enumerate() {
                    *sum += drive.stage_ns[stage].saturating_sub(before.stage_ns[stage]);
                }
            }
        }
        sample.stage_ns = sample.stage_ns.map(|ns| ns / timed.max(1));
        (sample.p50_ns, sample.p99_ns) = (latency.quantile_ns(0.5), latency.quantile_ns(0.99));
        sample.heat = heat(&latency, since);
        sample
    }

    /// Returns the I/Os of volumes, drives and groups between two samples. Leaves out unused
    /// volumes if there are more than `SERIES_MAX` volumes, because only the busiest get a series.
    fn readings(
        &self,
        volumes: &[Arc<Volume<Native>>],
        groups: &ServedGroups,
    ) -> [Vec<Reading>; 3] {
        let SampleInterval { last, now, since } = *self;
        let per_second = |is: u64, was: u64| rate(is.saturating_sub(was), since) as u32;
        let (mut of_volumes, mut of_drives) = (Vec::new(), Vec::new());
        let mut of_groups: HashMap<GroupId, u64> = HashMap::new();
        let empty = VolumeCounters::default();
        for (volume, (is, was)) in volumes.iter().zip(now.iter().zip(last)) {
            let Some(is) = is else {
                if volumes.len() <= SERIES_MAX {
                    of_volumes.push((volume.name().to_owned(), 0, 0));
                    let drives = volume.drives().iter();
                    of_drives.extend(drives.map(|disk| (disk.name().to_owned(), 0, 0)));
                }
                continue;
            };
            let was = was.as_ref().unwrap_or(&empty);
            let mut in_flight = 0;
            for (at, (disk, drive)) in volume.drives().iter().zip(&is.drives).enumerate() {
                let before = was.drives.get(at).copied().unwrap_or_default();
                let ios = per_second(drive.ios, before.ios);
                in_flight += drive.in_flight as u32;
                of_drives.push((disk.name().to_owned(), ios, drive.in_flight as u32));
            }
            let ios = per_second(is.clients.ios(), was.clients.ios());
            of_volumes.push((volume.name().to_owned(), ios, in_flight));
            let before: HashMap<GroupId, u64> = was.groups.iter().copied().collect();
            for (group, ios) in &is.groups {
                let before = before.get(group).copied().unwrap_or(0);
                *of_groups.entry(*group).or_default() += ios.saturating_sub(before);
            }
        }
        let group = |(id, config): (GroupId, millrace_block::GroupConfig)| {
            let ios = of_groups.get(&id).copied().unwrap_or(0);
            (config.name, rate(ios, since) as u32, 0)
        };
        let of_groups = groups.table().list().into_iter().map(group).collect();
        [of_volumes, of_drives, of_groups]
    }
}

fn heat(latency: &Snapshot, since: Duration) -> Vec<(u8, u32)> {
    let mut rows = [0; HEAT_ROWS];
    for (start_ns, count) in latency.buckets() {
        let row = (start_ns / 1000).max(1).ilog2() as usize;
        rows[row.min(HEAT_ROWS - 1)] += count;
    }
    let rows = rows.into_iter().enumerate().filter(|(_, count)| *count > 0);
    rows.map(|(row, count)| (row as u8, rate(count, since).max(1) as u32)).collect()
}

pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_fall_into_rows_of_powers_of_two() {
        let buckets = [(1, 1), (900, 2), (2_100, 3), (1 << 33, 4)];
        let rows = heat(&Snapshot::from_parts(&buckets, 0, 0), Duration::from_secs(1));
        assert_eq!(rows, [(0, 3), (1, 3), (HEAT_ROWS as u8 - 1, 4)]);
        assert_eq!(rate(1500, Duration::from_millis(1500)), 1000);
    }

    #[test]
    fn a_sample_is_the_difference_of_two_looks() {
        let look = |ios: u64| {
            let mut clients = TenantSnapshot::default();
            clients.ops[0].ios = ios;
            clients.ops[0].sectors = ios * 8;
            clients.ops[0].total.add(5_000, ios);
            let drive = DriveCounters {
                ios,
                in_flight: 3,
                timed: ios,
                stage_ns: [0, ios, ios * 2, ios * 3],
            };
            let volume =
                VolumeCounters { clients, drives: vec![drive], ..VolumeCounters::default() };
            [None, Some(volume)]
        };
        let (last, now) = (look(100), look(300));
        let sample =
            SampleInterval { last: &last, now: &now, since: Duration::from_secs(2) }.sample();
        assert_eq!((sample.reads, sample.writes, sample.read_bytes), (100, 0, 100 * 4096));
        assert_eq!((sample.stage_ns, &sample.heat[..]), ([0, 1, 2, 3], &[(2, 100)][..]));
        assert!((4_000..6_000).contains(&sample.p50_ns), "{sample:?}");
    }
}
