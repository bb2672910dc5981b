//! `Scenario`: everything that a run depends on, as plain data that prints as one line of JSON.
//!
//! A scenario is derived from a seed (generator.rs) or read from the command line. The shrinker
//! (shrinker.rs) reduces a scenario, and run.rs runs it. Times are in microseconds unless the name
//! says otherwise. Sizes are in sectors of 512 bytes, and probabilities are per thousand.
//! Invariant: runs of equal scenarios are identical to the byte.
#![allow(missing_docs)] // Names of most fields and variants say what they are.

use millrace_block::baseline::Stack;
use millrace_block::{Features, QueueLimits, Spread};
use millrace_simulator::Model;
use serde::{Deserialize, Serialize};

use super::cache_spec::CacheSpec;
use super::group_spec::GroupSpec;
use super::random::Random;
use super::scheduler_spec::SchedulerSpec;
use super::serving::{ModeSpec, ServingSpec};

/// Longest delay, in nanoseconds, of a bio to the page cache while a drive hangs. The cache takes
/// up to two seconds to notice the hang. Writes of pages that were already sent to the drive take
/// one more second. The remaining second is a margin.
const HELD_NS: u64 = 4_000_000_000;
/// Delay, in nanoseconds, that the time limit of an I/O to the page cache allows per page in flight
/// if a drive reports errors. Pages with failed writes stay dirty and may fill the dirty limit.
/// Other writes then have to wait for the cache's retries, which come every 0.1 s.
const HELD_BY_FAILURES_NS: u64 = 200_000_000;
/// Longest time, in nanoseconds, between two polls of a thread that waits for a tag.
const LOOK_NS: u64 = 1_000_000;

/// A machine, a volume on it, the channels that use it, and the faults and disturbances.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Seed of all random choices in the run: scheduling order, latencies, offsets, failing
    /// requests.
    pub seed: u64,
    pub machine: MachineSpec,
    pub layer: LayerSpec,
    pub layout: LayoutSpec,
    pub drives: Vec<DriveSpec>,
    #[serde(default, skip_serializing_if = "ServingSpec::is_inline")]
    pub serving: ServingSpec,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheSpec>,
    /// I/O groups in addition to the default group. The bios are distributed over all groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupSpec>,
    /// If true, channel n uses group n and always has I/O waiting, and the oracle checks that each
    /// group gets its share.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub fair: bool,
    /// Submitting threads, at least one.
    pub channels: Vec<ChannelSpec>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disturbances: Vec<Disturbance>,
}

/// Simulated machine, described by its differences from `Model::plain`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineSpec {
    /// Number of CPU sockets, 1 to 4.
    pub sockets: u32,
    /// CPUs per socket, 1 to 16.
    pub cores: u32,
    /// Cost of memory accesses, in percent of the cost in `Model::plain`.
    pub cache_percent: u32,
    /// Cost of the block layer's stages, in percent of the cost in `Model::plain`.
    pub work_percent: u32,
    /// Cost of sleeping and waking, in percent of the cost in `Model::plain`.
    pub thread_percent: u32,
    /// Largest random deviation of a stage's cost, in percent, 0 to 100.
    pub jitter_percent: u32,
}

/// Design of the block layer (`mq`, `sq` or `raw`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StackSpec {
    Mq,
    Sq,
    Raw,
}

/// Placement of queues: one per core, per node, or a single one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpreadSpec {
    Core,
    Node,
    One,
}

/// Configuration of the block layer, the same for all drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerSpec {
    pub stack: StackSpec,
    pub software: SpreadSpec,
    pub hardware: SpreadSpec,
    /// Request timeout in microseconds; 0 for none.
    pub timeout_us: u32,
    /// If true, each I/O has its own timestamps; otherwise all I/Os of a batch share timestamps.
    pub stamp_each: bool,
    pub traced: bool,
    /// If true, all drives share one tag set.
    pub shared_tags: bool,
    /// If true, the drives complete each request immediately, without latency.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub immediate: bool,
    /// If true, several threads may dispatch from a hardware queue at the same time. Needs
    /// `immediate`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub each: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LayoutSpec {
    /// Drives concatenated one after the other. A single drive has this layout, too.
    Linear,
    /// Chunks striped over all drives; the chunk size is in sectors.
    Stripe(u32),
}

/// Settings of a model drive: queues, limits and faults.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriveSpec {
    pub sectors: u32,
    /// If true, each queue belongs to one thread; otherwise any thread may run any queue.
    pub owned: bool,
    pub queues: u16,
    pub depth: u32,
    /// If true, all queues of the drive share its tags.
    pub drive_tags: bool,
    pub limits: LimitSpec,
    /// Shortest and longest service time of a request, in nanoseconds.
    pub latency_ns: [u32; 2],
    #[serde(default, skip_serializing_if = "FaultSpec::is_none")]
    pub faults: FaultSpec,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitSpec {
    /// Logical block size in bytes.
    pub block: u32,
    /// Longest read or write, in sectors.
    pub max_sectors: u32,
    pub max_segments: u16,
    /// Longest memory segment in bytes; 0 for no limit.
    pub segment_bytes: u32,
    /// If true, no memory segment crosses a 4 KiB page.
    pub page_boundary: bool,
    /// Chunk size in sectors: no request crosses a multiple of this size; 0 for no such limit.
    pub chunk_sectors: u32,
    /// Longest discard in sectors; 0 if not supported.
    pub discard_sectors: u32,
    /// Longest write-zeroes in sectors; 0 if not supported.
    pub zeroes_sectors: u32,
    /// If true, the drive has a volatile write cache: a power cut may lose writes until a flush.
    pub cache: bool,
    pub fua: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FaultSpec {
    /// Requests that fail, per thousand.
    pub errors: u32,
    /// Range of bad sectors: the first, and the sector past the last.
    pub bad: Option<[u32; 2]>,
    /// Requests that are delayed, per thousand.
    pub slow: u32,
    /// Delay of a delayed request, in microseconds.
    pub slow_us: u32,
    /// Submissions refused because the drive is busy, per thousand.
    pub busy: u32,
    /// Requests that get stuck, and may time out, per thousand.
    pub stuck: u32,
    /// Time until a stuck request completes, in microseconds.
    pub stuck_us: u32,
    /// Time at which the drive dies, in microseconds.
    pub dead_us: Option<u32>,
    /// Time from the drive's death until the drive works again, in microseconds; 0 for never.
    pub dead_for_us: u32,
    /// Time, in microseconds, from which the drive fails exactly one write: the next write, or the
    /// next FUA write if the drive supports FUA.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub once_us: Option<u32>,
    /// Start and length of a stall, in which the drive completes nothing, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall_us: Option<[u32; 2]>,
}

impl FaultSpec {
    /// Returns true if the drive has no faults.
    pub fn is_none(&self) -> bool {
        *self == FaultSpec::default()
    }

    pub(super) fn stalls(&self) -> bool {
        self.stall_us.is_some() || self.dead_for_us > 0
    }

    pub(super) fn fails(&self) -> bool {
        let once = self.dead_us.is_some() || self.once_us.is_some();
        self.errors > 0 || self.bad.is_some() || once
    }
}

/// A submitting thread and its workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelSpec {
    pub cpu: u32,
    /// Largest number of I/Os in flight.
    pub depth: u32,
    pub ios: u32,
    /// Number of I/Os submitted between two polls.
    pub batch: u32,
    /// Longest think time after each poll, in nanoseconds.
    pub think_ns: u32,
    /// Relative shares of reads, writes, flushes, discards and write-zeroes.
    pub mix: [u32; 5],
    /// Longest I/O, in blocks.
    pub blocks: u32,
    /// I/Os that continue where the channel's previous I/O ended, per thousand.
    pub sequential: u32,
    /// I/Os with several memory segments, per thousand.
    pub vectored: u32,
    /// I/Os on memory that the submitter owns (foreign bios), per thousand.
    pub foreign: u32,
    /// Writes with FUA, per thousand.
    pub fua: u32,
    /// Writes with PREFLUSH, per thousand.
    pub preflush: u32,
    /// I/Os outside of the channel's own region, per thousand.
    pub away: u32,
    /// Longest wait for a channel's I/O in flight before the channel is dropped, in microseconds.
    pub drain_us: u32,
}

/// A disturbance of the volume at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disturbance {
    /// Time since the start, in microseconds.
    pub at_us: u32,
    pub cpu: u32,
    pub what: DisturbanceKind,
}

/// Kind of a disturbance, with the parameters of the kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DisturbanceKind {
    /// Freezes a drive, waits until it is drained, and unfreezes it. Fields: the drive, and the
    /// length of the freeze in microseconds.
    Freeze(u32, u32),
    /// Quiesces a drive and unquiesces it. Fields: the drive, and the length in microseconds.
    Quiesce(u32, u32),
    /// Drops a channel with all its I/O in flight.
    Drop(u32),
    Shutdown,
    /// Stops the process for a number of microseconds while its drives continue.
    Stop(u32),
    Switch(ModeSpec),
    /// Ends a worker's thread. A new thread replaces it after this many microseconds, or never if
    /// 0.
    Leave(u32, u32),
    /// Grows a drive and its volume. Fields: the drive, and its initial size in eighths of the
    /// final size. A scenario has at most one such disturbance. In a linear layout only the last
    /// drive may grow.
    Grow(u32, u32),
    /// Changes the scheduler of a drive to the given one. Only with the `mq` design.
    Schedule(u32, SchedulerSpec),
    Regroup(u32, GroupSpec),
}

impl From<StackSpec> for Stack {
    fn from(spec: StackSpec) -> Stack {
        match spec {
            StackSpec::Mq => Stack::Mq,
            StackSpec::Sq => Stack::Sq,
            StackSpec::Raw => Stack::Raw,
        }
    }
}

impl From<SpreadSpec> for Spread {
    fn from(spec: SpreadSpec) -> Spread {
        match spec {
            SpreadSpec::Core => Spread::Core,
            SpreadSpec::Node => Spread::Node,
            SpreadSpec::One => Spread::One,
        }
    }
}

impl MachineSpec {
    pub(super) fn model(&self) -> Model {
        let mut model = Model::plain(self.sockets, self.cores);
        let (cache, threads, work) = (&mut model.cache, &mut model.threads, &mut model.work);
        let lines = [&mut cache.socket, &mut cache.one_hop, &mut cache.two_hops];
        let sleeps = [&mut threads.wake, &mut threads.wake_latency, &mut threads.context_switch];
        let stages = [&mut work.submit, &mut work.insert, &mut work.dispatch];
        let others = [&mut work.driver, &mut work.complete, &mut cache.memory];
        let percent = f64::from(self.cache_percent) / 100.0;
        cache.l1.ns *= percent;
        lines.into_iter().for_each(|transfer| transfer.scale(percent));
        for cost in sleeps {
            cost.ns *= f64::from(self.thread_percent) / 100.0;
        }
        for cost in stages.into_iter().chain(others) {
            cost.ns *= f64::from(self.work_percent) / 100.0;
        }
        work.jitter.share = f64::from(self.jitter_percent) / 100.0;
        model
    }

    pub(super) fn cpus(&self) -> u32 {
        self.sockets * self.cores
    }
}

impl LimitSpec {
    pub(super) fn limits(&self) -> QueueLimits {
        QueueLimits {
            logical_block_size: self.block,
            max_sectors: self.max_sectors,
            max_segments: self.max_segments,
            max_segment_size: if self.segment_bytes == 0 { u32::MAX } else { self.segment_bytes },
            seg_boundary_mask: if self.page_boundary { 4095 } else { u64::MAX },
            max_discard_sectors: self.discard_sectors,
            max_write_zeroes_sectors: self.zeroes_sectors,
            chunk_sectors: self.chunk_sectors,
            features: Features { volatile_cache: self.cache, fua: self.fua, ..Features::default() },
            ..QueueLimits::default()
        }
    }
}

impl Scenario {
    /// Returns the scenario as one line of JSON.
    pub fn line(&self) -> String {
        serde_json::to_string(self).expect("plain data always serializes")
    }

    /// Adds a disturbance on a random CPU, at a random time from 0 to a maximum in microseconds.
    /// The maximum is picked at random from the list `until`.
    pub(super) fn disturb(&mut self, random: &mut Random, until: &[u32], what: DisturbanceKind) {
        let most = random.pick(until);
        let (at_us, cpu) = (random.within(0, most), random.within(0, self.machine.cpus() - 1));
        self.disturbances.push(Disturbance { at_us, cpu, what });
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let cpus = self.machine.cpus();
        let named = self.channels.iter().map(|c| c.cpu);
        let wrong = [
            (self.drives.is_empty() || self.drives.len() > 64, "a number of drives from 1 to 64"),
            (
                self.channels.is_empty() || self.channels.len() > 256,
                "a number of channels from 1 to 256",
            ),
            (!(1..=256).contains(&cpus), "a machine with 1 to 256 CPUs"),
            (
                named.chain(self.disturbances.iter().map(|d| d.cpu)).any(|cpu| cpu >= cpus),
                "every channel and disturbance to name a CPU below the machine's number of CPUs",
            ),
            (
                self.channels.iter().any(|c| c.depth == 0 || c.batch == 0 || c.blocks == 0),
                "every channel to have a depth, batch and blocks above 0",
            ),
            (
                self.disturbances.iter().any(|d| match (d.what, self.layout) {
                    (DisturbanceKind::Grow(drive, _), LayoutSpec::Linear) => {
                        drive as usize + 1 != self.drives.len()
                    }
                    (DisturbanceKind::Grow(drive, _), _) => drive as usize >= self.drives.len(),
                    _ => false,
                }),
                "only existing drives to grow, and in a linear layout only the last drive",
            ),
            (
                self.is_scheduled() && self.layer.stack != StackSpec::Mq,
                "stack mq, because a drive has a scheduler, and only mq supports schedulers",
            ),
            (
                !self.has_sound_groups(),
                "groups with valid settings, and valid changes of existing groups only",
            ),
            (
                self.channels.iter().any(|c| c.mix.iter().sum::<u32>() == 0),
                "every channel's mix to have at least one share above 0",
            ),
        ];
        match wrong.iter().find(|(wrong, _)| *wrong) {
            Some((_, text)) => Err(format!("scenario needs {text}")),
            None => {
                self.cache.map_or(Ok(()), |cache| cache.check(cpus))?;
                self.serving.check(cpus)?;
                self.check_drives()
            }
        }
    }

    fn check_drives(&self) -> Result<(), String> {
        for drive in &self.drives {
            let limits = drive.limits.limits().validate();
            limits.map_err(|error| format!("scenario: a drive's limits: {error}"))?;
            let (chunk, block) = (self.least_sectors(), self.block_sectors());
            let sound = chunk.is_power_of_two() && chunk >= block.max(8) && drive.sectors >= chunk;
            if !sound || drive.depth == 0 || drive.queues == 0 || drive.sectors < block {
                return Err(String::from(
                    "scenario: chunks are powers of two, 8 or more and no smaller than a block; \
                     drives have a depth, queues, and room for a chunk",
                ));
            }
        }
        Ok(())
    }

    pub(super) fn block_sectors(&self) -> u32 {
        self.drives.iter().map(|drive| drive.limits.block / 512).max().unwrap_or(1)
    }

    fn least_sectors(&self) -> u32 {
        match self.layout {
            LayoutSpec::Stripe(chunk) => chunk,
            LayoutSpec::Linear => self.block_sectors().max(8),
        }
    }

    pub(super) fn sectors_at_first(&self, drive: usize) -> u64 {
        let sectors = u64::from(self.drives[drive].sectors);
        let least = u64::from(self.least_sectors());
        let part = self.disturbances.iter().find_map(|d| match d.what {
            DisturbanceKind::Grow(grows, eighths) if grows as usize == drive => {
                Some(u64::from(eighths))
            }
            _ => None,
        });
        part.map_or(sectors, |eighths| (sectors * eighths.min(8) / 8).max(least).min(sectors))
    }

    pub(super) fn grows(&self) -> bool {
        self.disturbances.iter().any(|d| matches!(d.what, DisturbanceKind::Grow(..)))
    }

    pub(super) fn is_scheduled(&self) -> bool {
        self.disturbances.iter().any(|d| matches!(d.what, DisturbanceKind::Schedule(..)))
    }

    pub(super) fn has_owned(&self) -> bool {
        self.drives.iter().any(|drive| drive.owned)
    }

    pub(super) fn has_io_threads(&self) -> bool {
        self.has_owned() || self.cache.is_some()
    }

    pub(super) fn may_time_out(&self) -> bool {
        let timeout_us = self.layer.timeout_us;
        let stalls = |f: &FaultSpec| f.stall_us.is_some_and(|[_, for_us]| for_us >= timeout_us);
        let slow = |f: &FaultSpec| f.slow > 0 && f.slow_us >= timeout_us;
        let late = |f: &FaultSpec| f.stuck > 0 || slow(f) || stalls(f);
        timeout_us > 0 && self.drives.iter().any(|drive| late(&drive.faults))
    }

    /// Returns the longest virtual time that an I/O may take, in nanoseconds: a multiple of the
    /// time to serve all requests one by one, plus the delays by faults, disturbances and polling.
    pub fn bound_ns(&self) -> u64 {
        let requests = self.in_flight_max();
        let most = |f: &dyn Fn(&DriveSpec) -> u64| self.drives.iter().map(f).max().unwrap_or(0);
        let late = |chance: u32, us: u32| {
            if chance == 0 { 0 } else { u64::from(us) * (4_000 + 3 * requests * u64::from(chance)) }
        };
        let late_ns = most(&|d| late(d.faults.slow, d.faults.slow_us));
        let stuck_ns = most(&|d| late(d.faults.stuck, d.faults.stuck_us));
        let busy_ns = most(&|d| u64::from(d.faults.busy) * 100);
        // If several queues share tags, or requests are plugged, a thread that waits for a tag may
        // miss the wake-up when a tag is freed. The thread then polls up to a millisecond later.
        let shares = self.layer.shared_tags
            || self.layer.stack == StackSpec::Sq
            || self.drives.iter().any(|d| d.drive_tags)
            || self.plugs_requests();
        let look_ns = if shares { LOOK_NS } else { 0 };
        let each_ns = most(&|d| u64::from(d.latency_ns[1])) + 10_000 + busy_ns + look_ns;
        let held_us: u64 = self
            .disturbances
            .iter()
            .map(|d| match d.what {
                DisturbanceKind::Freeze(_, us) | DisturbanceKind::Quiesce(_, us) => u64::from(us),
                // A serving mode switch waits until the drives have no requests in flight, and then
                // until every thread has polled.
                DisturbanceKind::Switch(_) => 2_000,
                DisturbanceKind::Schedule(_, order) => order.longest_us(),
                _ => 0,
            })
            .sum();
        let stopped_us = self.disturbances.iter().map(|d| match d.what {
            DisturbanceKind::Stop(us) => u64::from(us),
            _ => 0,
        });
        let stopped_ns = stopped_us.sum::<u64>() * 1_000;
        // A stuck request completes late and wakes no thread. Without request timeouts, the queue's
        // owner finds the completion only in a poll once a second.
        let timeout_ns = if stuck_ns > 0 { 2_000_000_000 } else { 0 };
        let fails = self.drives.iter().any(|d| d.faults.errors > 0 || d.faults.bad.is_some());
        let block = u64::from(self.block_sectors());
        let pages = |c: &ChannelSpec| (u64::from(c.blocks) * block).div_ceil(8) + 1;
        let pages = self.channels.iter().map(|c| u64::from(c.depth.min(c.ios)) * pages(c));
        let held_by_cache_ns = match self.cache {
            None => 0,
            Some(_) if fails => HELD_NS + HELD_BY_FAILURES_NS * pages.sum::<u64>(),
            Some(_) => HELD_NS,
        };
        // A scheduler may dispatch all other bios before a given bio, even bios that were submitted
        // later.
        let passes = if self.is_scheduled() { 12 } else { 3 };
        // If a drive has a volatile cache and no FUA, the block layer adds flushes to writes with
        // FUA or PREFLUSH.
        let is_durable = |c: &ChannelSpec| c.fua > 0 || c.preflush > 0;
        let flushes = self.drives.iter().any(|d| d.limits.cache && !d.limits.fua)
            && self.channels.iter().any(is_durable);
        let passes = if flushes { 2 * passes } else { passes };
        100_000_000
            + passes * requests * each_ns
            + late_ns
            + stuck_ns
            + 2_000 * held_us
            + timeout_ns
            + stopped_ns
            + self.groups_hold_ns(requests)
            + held_by_cache_ns
    }

    /// Returns the largest number of requests that can be in flight or waiting at the same time.
    fn in_flight_max(&self) -> u64 {
        let block = u64::from(self.block_sectors());
        let parts = |sectors: u64, most: u32| sectors.div_ceil(u64::from(most.max(1)));
        let parts_max = |c: &ChannelSpec| {
            let (data, [.., discards, zeroes]) = (u64::from(c.blocks) * block, c.mix);
            let of = |d: &DriveSpec| {
                let mut most = parts(data, d.limits.max_sectors);
                if d.limits.chunk_sectors > 0 {
                    most = most.max(parts(data, d.limits.chunk_sectors) + 1);
                }
                if discards > 0 && d.limits.discard_sectors > 0 {
                    most = most.max(parts(4 * data, d.limits.discard_sectors));
                }
                if zeroes > 0 && d.limits.zeroes_sectors > 0 {
                    most = most.max(parts(4 * data, d.limits.zeroes_sectors));
                }
                most + 3
            };
            self.drives.iter().map(of).max().unwrap_or(1)
        };
        let parts: u64 =
            self.channels.iter().map(|c| u64::from(c.depth.min(c.ios)) * parts_max(c)).sum();
        // The cache may write each of its 4 KiB pages with a separate request.
        parts + self.cache.map_or(0, |cache| u64::from(cache.size_kib / 4))
    }
}
