//! `Scenario`: everything that a run depends on, as plain data that prints as one line of JSON.
//!
//! Derived from a seed (generator.rs), read from a command line, made smaller (shrinker.rs), and
//! run (run.rs). Times are in microseconds unless the name says otherwise, sizes in sectors of 512
//! bytes, chances in parts of a thousand. Invariant: two equal scenarios run alike to the byte.

use millrace_block::{Features, QueueLimits, Spread, Stack};
use millrace_simulator::Model;
use serde::{Deserialize, Serialize};

use super::group_spec::GroupSpec;
use super::scheduler_spec::OrderSpec;
use super::serving::{ModeSpec, ServingSpec};

/// Longest time after which whoever waits in vain looks again.
const LOOK_NS: u64 = 1_000_000;

/// A machine, a volume on it, programs that use it, and what goes wrong.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Decides the order of CPUs, latencies, offsets, and which requests fail.
    pub seed: u64,
    /// The machine.
    pub machine: MachineSpec,
    /// How the layer is set up.
    pub layer: LayerSpec,
    /// How the drives are joined.
    pub layout: LayoutSpec,
    /// The drives, 1 or more.
    pub drives: Vec<DriveSpec>,
    /// How the drives are served.
    #[serde(default, skip_serializing_if = "ServingSpec::is_inline")]
    pub serving: ServingSpec,
    /// The groups beside the default one; bios belong to any of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupSpec>,
    /// Each channel has the group of its number, always has something waiting, and gets its share.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub fair: bool,
    /// The submitting threads, 1 or more.
    pub channels: Vec<ChannelSpec>,
    /// What is done to the volume meanwhile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disturbances: Vec<Disturbance>,
}

/// A variant of `Model::plain`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineSpec {
    /// Sockets, 1 to 4.
    pub sockets: u32,
    /// CPUs of each, 1 to 16.
    pub cores: u32,
    /// Costs of memory accesses, in percent of the plain model's.
    pub cache_percent: u32,
    /// Costs of stages, likewise.
    pub work_percent: u32,
    /// Costs of sleeping and waking, likewise.
    pub thread_percent: u32,
    /// Greatest deviation of a state's cost, 0 to 100.
    pub jitter_percent: u32,
}

/// `Stack`, in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StackSpec {
    /// Multi-queue.
    Mq,
    /// Single-queue.
    Sq,
    /// Past the layer.
    Raw,
}

/// `Spread`, in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpreadSpec {
    /// A queue for each core.
    Core,
    /// A queue for each node.
    Node,
    /// One queue.
    One,
}

/// How the layer is set up: the same for all drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerSpec {
    /// The design.
    pub stack: StackSpec,
    /// Software queues.
    pub software: SpreadSpec,
    /// Hardware queues.
    pub hardware: SpreadSpec,
    /// Time after which a request is given up; 0 for never.
    pub timeout_us: u32,
    /// Times are taken for each I/O, not once a batch.
    pub stamp_each: bool,
    /// Events are traced.
    pub traced: bool,
    /// All drives share one tag set.
    pub shared_tags: bool,
    /// The drives complete at once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub immediate: bool,
    /// Several threads are inside a hardware queue at the same time; for drives that complete at
    /// once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub each: bool,
}

/// How drives are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LayoutSpec {
    /// One behind the other; one drive alone is this too.
    Linear,
    /// Round robin by chunks of so many sectors.
    Stripe(u32),
}

/// A drive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriveSpec {
    /// Its size.
    pub sectors: u32,
    /// Each queue belongs to a thread; else any thread may run it.
    pub owned: bool,
    /// Most hardware queues.
    pub queues: u16,
    /// Tags.
    pub depth: u32,
    /// All queues share them.
    pub drive_tags: bool,
    /// What it takes in one request.
    pub limits: LimitSpec,
    /// Least and greatest time that a request takes, in nanoseconds.
    pub latency_ns: [u32; 2],
    /// What goes wrong.
    #[serde(default, skip_serializing_if = "FaultSpec::is_none")]
    pub faults: FaultSpec,
}

/// What a drive takes in one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitSpec {
    /// Bytes of a block.
    pub block: u32,
    /// Longest read or write.
    pub max_sectors: u32,
    /// Most pieces of memory.
    pub max_segments: u16,
    /// Longest piece in bytes; 0 for any.
    pub segment_bytes: u32,
    /// No piece crosses a page.
    pub page_boundary: bool,
    /// No request crosses a multiple of this; 0 for any.
    pub chunk_sectors: u32,
    /// Longest discard; 0 for none.
    pub discard_sectors: u32,
    /// Longest write-zeroes; 0 for none.
    pub zeroes_sectors: u32,
    /// What is written may be lost until a flush.
    pub cache: bool,
    /// Takes FUA itself.
    pub fua: bool,
}

/// What goes wrong in a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FaultSpec {
    /// Requests that fail, of a thousand.
    pub errors: u32,
    /// First sector of a bad range, and the one past its end.
    pub bad: Option<[u32; 2]>,
    /// Requests that are late, of a thousand.
    pub slow: u32,
    /// By how much.
    pub slow_us: u32,
    /// Times that it is too busy, of a thousand.
    pub busy: u32,
    /// Requests that are forgotten, of a thousand: they time out.
    pub stuck: u32,
    /// After how long it remembers them.
    pub stuck_us: u32,
    /// When it dies.
    pub dead_us: Option<u32>,
    /// From when on it completes nothing, and for how long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall_us: Option<[u32; 2]>,
}

impl FaultSpec {
    /// Nothing goes wrong.
    pub fn is_none(&self) -> bool {
        *self == FaultSpec::default()
    }
}

/// A submitting thread and its workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelSpec {
    /// Its CPU.
    pub cpu: u32,
    /// Most I/Os in flight.
    pub depth: u32,
    /// I/Os in all.
    pub ios: u32,
    /// I/Os submitted before it polls.
    pub batch: u32,
    /// What it does after each poll, in nanoseconds.
    pub think_ns: u32,
    /// Reads, writes, flushes, discards and write-zeroes, in relation to each other.
    pub mix: [u32; 5],
    /// Most blocks of an I/O.
    pub blocks: u32,
    /// I/Os that start where the last one ended, of a thousand.
    pub sequential: u32,
    /// Of several pieces of memory.
    pub vectored: u32,
    /// On memory of its own.
    pub foreign: u32,
    /// Writes with FUA.
    pub fua: u32,
    /// Writes with PREFLUSH.
    pub preflush: u32,
    /// I/Os outside of its own region.
    pub away: u32,
    /// How long it waits for its I/O when it is dropped.
    pub drain_us: u32,
}

/// Something done to the volume at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disturbance {
    /// When, from the start.
    pub at_us: u32,
    /// On which CPU.
    pub cpu: u32,
    /// What.
    pub what: DisturbanceKind,
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DisturbanceKind {
    /// A drive is frozen until it is empty, and for so many microseconds: drive and time.
    Freeze(u32, u32),
    /// A drive is quiesced for so many microseconds: drive and time.
    Quiesce(u32, u32),
    /// A channel is dropped, whatever it has in flight.
    Drop(u32),
    /// All are.
    Shutdown,
    /// The process does not run for so many microseconds, while its drives go on.
    Stop(u32),
    /// The volume is served so from now on.
    Switch(ModeSpec),
    /// A worker's thread ends; another takes its place after so many microseconds, or none if 0.
    Leave(u32, u32),
    /// A drive has so many eighths of its sectors until then, and its volume grows: drive and
    /// eighths; the last drive of a linear volume, once.
    Grow(u32, u32),
    /// A drive has this scheduler from now on: drive and scheduler; the stack mq only.
    Schedule(u32, OrderSpec),
    /// A group has other settings from now on: group and settings.
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
    /// The machine.
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

    /// CPUs in all.
    pub(super) fn cpus(&self) -> u32 {
        self.sockets * self.cores
    }
}

impl LimitSpec {
    /// The limits as the layer takes them.
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
    /// One line of JSON.
    ///
    /// # Panics
    /// Never: plain data always prints.
    #[must_use]
    pub fn line(&self) -> String {
        serde_json::to_string(self).expect("plain data prints")
    }

    /// Whether it can be run at all.
    pub(super) fn check(&self) -> Result<(), String> {
        let cpus = self.machine.cpus();
        let named = self.channels.iter().map(|c| c.cpu);
        let wrong = [
            (self.drives.is_empty() || self.drives.len() > 64, "1 to 64 drives"),
            (self.channels.is_empty() || self.channels.len() > 256, "1 to 256 channels"),
            (!(1..=256).contains(&cpus), "1 to 256 CPUs"),
            (
                named.chain(self.disturbances.iter().map(|d| d.cpu)).any(|cpu| cpu >= cpus),
                "every cpu one of the machine's",
            ),
            (
                self.channels.iter().any(|c| c.depth == 0 || c.batch == 0 || c.blocks == 0),
                "depth, batch and blocks above 0",
            ),
            (
                self.disturbances.iter().any(|d| match (d.what, self.layout) {
                    (DisturbanceKind::Grow(drive, _), LayoutSpec::Linear) => {
                        drive as usize + 1 != self.drives.len()
                    }
                    (DisturbanceKind::Grow(drive, _), _) => drive as usize >= self.drives.len(),
                    _ => false,
                }),
                "growth of its drives, of a linear volume of the last one",
            ),
            (
                self.is_scheduled() && self.layer.stack != StackSpec::Mq,
                "the stack mq for a scheduler",
            ),
            (!self.has_sound_groups(), "groups that can be opened, and changes of those only"),
            (
                self.channels.iter().any(|c| c.mix.iter().sum::<u32>() == 0),
                "a share above 0 in every mix",
            ),
        ];
        match wrong.iter().find(|(wrong, _)| *wrong) {
            Some((_, text)) => Err(format!("scenario: it needs {text}")),
            None => self.serving.check(cpus).and_then(|()| self.check_drives()),
        }
    }

    fn check_drives(&self) -> Result<(), String> {
        for drive in &self.drives {
            let limits = drive.limits.limits().validate();
            limits.map_err(|error| format!("scenario: a drive's limits: {error}"))?;
            let chunk = match self.layout {
                LayoutSpec::Stripe(chunk) => chunk,
                LayoutSpec::Linear => 8,
            };
            let block = self.drives.iter().map(|d| d.limits.block / 512).max().unwrap_or(1);
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

    /// Sectors that a drive has at first.
    pub(super) fn sectors_at_first(&self, drive: usize) -> u64 {
        let sectors = u64::from(self.drives[drive].sectors);
        let least = match self.layout {
            LayoutSpec::Stripe(chunk) => chunk.into(),
            LayoutSpec::Linear => 8,
        };
        let part = self.disturbances.iter().find_map(|d| match d.what {
            DisturbanceKind::Grow(grows, eighths) if grows as usize == drive => {
                Some(u64::from(eighths))
            }
            _ => None,
        });
        part.map_or(sectors, |eighths| (sectors * eighths.min(8) / 8).max(least).min(sectors))
    }

    /// Whether some drive grows.
    pub(super) fn grows(&self) -> bool {
        self.disturbances.iter().any(|d| matches!(d.what, DisturbanceKind::Grow(..)))
    }

    /// Whether some drive has a scheduler at some time.
    pub(super) fn is_scheduled(&self) -> bool {
        self.disturbances.iter().any(|d| matches!(d.what, DisturbanceKind::Schedule(..)))
    }

    /// Whether some drive's queues belong to threads.
    pub(super) fn has_owned(&self) -> bool {
        self.drives.iter().any(|drive| drive.owned)
    }

    /// Whether a request may be given up.
    pub(super) fn may_time_out(&self) -> bool {
        let timeout_us = self.layer.timeout_us;
        let stalls = |f: &FaultSpec| f.stall_us.is_some_and(|[_, for_us]| for_us >= timeout_us);
        let slow = |f: &FaultSpec| f.slow > 0 && f.slow_us >= timeout_us;
        let late = |f: &FaultSpec| f.stuck > 0 || slow(f) || stalls(f);
        timeout_us > 0 && self.drives.iter().any(|drive| late(&drive.faults))
    }

    /// The longest that an I/O may take, in virtual nanoseconds: what is in flight at most, one
    /// after the other, three times; what holds everything up; and the layer's own periods.
    #[must_use]
    pub fn bound_ns(&self) -> u64 {
        let requests = self.in_flight_max();
        let most = |f: &dyn Fn(&DriveSpec) -> u64| self.drives.iter().map(f).max().unwrap_or(0);
        let late = |chance: u32, us: u32| {
            if chance == 0 { 0 } else { u64::from(us) * (4_000 + 3 * requests * u64::from(chance)) }
        };
        let late_ns = most(&|d| late(d.faults.slow, d.faults.slow_us));
        let stuck_ns = most(&|d| late(d.faults.stuck, d.faults.stuck_us));
        let busy_ns = most(&|d| u64::from(d.faults.busy) * 100);
        // Whoever gives a tag back starts what waited for it in another queue, whose own threads
        // find it at their next look, a millisecond later at most.
        // Nor is a channel told that plugs while others give tags back, as all do with one queue:
        // what found no tag stays in the plug until the next look.
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
                // Until the drives are drained, and everybody has looked again.
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
        // Without timeouts an owner looks at its queue once a second only: too late.
        let timeout_ns = if stuck_ns > 0 { 2_000_000_000 } else { 0 };
        // A chain may see each of the others go before it, and batches of what came later.
        let passes = if self.is_scheduled() { 12 } else { 3 };
        100_000_000
            + passes * requests * each_ns
            + late_ns
            + stuck_ns
            + 2_000 * held_us
            + timeout_ns
            + stopped_ns
            + self.groups_hold_ns(requests)
    }

    /// Requests that can be in flight or wait at a time, at most.
    fn in_flight_max(&self) -> u64 {
        let block = self.drives.iter().map(|d| u64::from(d.limits.block / 512)).max();
        let block = block.unwrap_or(1);
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
        self.channels.iter().map(|c| u64::from(c.depth.min(c.ios)) * parts_max(c)).sum()
    }
}
