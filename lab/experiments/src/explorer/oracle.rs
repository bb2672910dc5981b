//! `Oracle`: the model of a correct run. It checks every event of a run and records the first
//! violation.
//!
//! The model holds every bio, the writes of each sector in order, the drives' content, and the part
//! of it that would survive a power cut. Submitters report bios (before submission and on
//! completion), and drives report requests. One simulated thread runs at a time, and the order of
//! calls is the order of events. The oracle is behind a mutex of the real system, so locking it
//! takes no virtual time. No thread may hold this mutex across a call to the machine: the call may
//! switch to another simulated thread, which would then wait for the mutex on the same system
//! thread for ever. Builds with debug assertions panic at the first such call; other builds panic
//! when a thread would wait. The checked invariants are in ARCHITECTURE.md, "Invariants".

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use millrace_block::{Op, OpFlags, Status};
use serde::{Deserialize, Serialize};

use super::disk_image::DiskImage;
use super::history::{After, History};
use super::map::SectorMap;
use super::scenario::{DriveSpec, LimitSpec, Scenario};

/// The first invariant that a run broke.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// Short name of the invariant, such as `flush` or `starvation`.
    pub kind: String,
    /// Description of the event that broke the invariant.
    pub detail: String,
}

pub(super) type MemoryRange = (usize, usize);

#[derive(Debug, Clone)]
pub(super) struct BioRecord {
    pub(super) channel: usize,
    pub(super) op: Op,
    pub(super) flags: OpFlags,
    pub(super) sector: u64,
    pub(super) nr: u64,
    pub(super) memory: Vec<MemoryRange>,
    pub(super) foreign: bool,
    /// Numbers of the events at which the bio was submitted and completed; 0 and `u64::MAX` until
    /// then.
    pub(super) submitted: u64,
    pub(super) ended: u64,
    pub(super) status: Option<Status>,
    submitted_ns: u64,
    bound_ns: u64,
    /// Longest time from the bio's acceptance by the block layer to its completion, in nanoseconds.
    /// On acceptance, this value replaces `bound_ns`. The initial `bound_ns` may be longer, because
    /// any stalled drive may delay a bio before its acceptance.
    taken_bound_ns: u64,
    log_len: usize,
    expects: ExpectedStatus,
}

#[derive(Debug, Clone, Copy, Default)]
struct ExpectedStatus {
    /// Statuses with which the bio may fail, as a bit set. Without a page cache, these are the
    /// statuses of failed requests that may have contained a part of the bio. With a page cache,
    /// all statuses are possible if I/O to the bio's drives may fail.
    may: u32,
    /// True if a failed request definitely contained a part of the bio, so the bio must fail.
    must_fail: bool,
    must_time_out: bool,
    unsupported: bool,
}

pub(super) struct FailedRequest<'a> {
    pub(super) drive: usize,
    pub(super) op: Op,
    pub(super) sector: u64,
    pub(super) nr: u64,
    pub(super) memory: &'a [MemoryRange],
}

/// Reasons why a drive may correctly hold requests after all bios have completed.
struct Leftovers {
    /// True if bios of a dropped channel may still be in a drive.
    strays: bool,
    may_time_out: bool,
}

struct FaultPlan {
    /// True if the scenario has a page cache. Failures and stalls then also affect bios whose own
    /// requests succeed.
    cached: bool,
    failing: Vec<bool>,
    stalling: Vec<bool>,
    /// True if a stall of one drive also delays I/O to the other drives.
    all: bool,
    longest_ns: u64,
    /// Longest time that an I/O may take, in nanoseconds. The time of a drive's stall is not
    /// included.
    bound_ns: u64,
}

#[derive(Default)]
struct FlushLog {
    /// Sectors that acknowledged writes have changed, in the order of the acknowledgements.
    sectors: Vec<u64>,
    /// The first `durable` entries of `sectors` are known to be durable.
    durable: usize,
    /// Event number at which the newest acknowledged flush was submitted.
    flushed: u64,
}

impl FlushLog {
    fn flush(&mut self, flush: &BioRecord) -> Vec<u64> {
        let mut sectors = self.sectors[self.durable.min(flush.log_len)..flush.log_len].to_vec();
        sectors.sort_unstable();
        sectors.dedup();
        self.durable = self.durable.max(flush.log_len);
        self.flushed = self.flushed.max(flush.submitted);
        sectors
    }
}

pub(super) struct Oracle {
    pub(super) map: SectorMap,
    pub(super) media: Vec<DiskImage>,
    pub(super) bios: Vec<BioRecord>,
    live: Vec<u32>,
    history: History,
    log: FlushLog,
    /// Memory that drives may access now: addresses of each range's first byte and of the byte past
    /// its end.
    held: BTreeMap<usize, usize>,
    events: u64,
    plan: FaultPlan,
    leftovers: Leftovers,
    pub(super) stop: Vec<bool>,
    pub(super) violation: Option<Violation>,
    pub(super) ios: u64,
    pub(super) digest: u64,
}

pub(super) type SharedOracle = Arc<Mutex<Oracle>>;

impl Oracle {
    pub(super) fn new(scenario: &Scenario) -> Oracle {
        let map = SectorMap::new(scenario);
        // A failing drive's dirty pages may fill a cache whose dirty limit exceeds half of its size
        // (docs/cache.md). I/O to the other drives may then fail, too.
        let fills = scenario.cache.is_some_and(|cache| 2 * cache.dirty_kib > cache.size_kib);
        let fails = |drive: &DriveSpec| drive.faults.fails();
        let fails_all = fills && scenario.drives.iter().any(fails);
        Oracle {
            media: (0..)
                .zip(&scenario.drives)
                .map(|(number, spec)| DiskImage::new(spec, scenario.sectors_at_first(number)))
                .collect(),
            bios: Vec::new(),
            live: Vec::new(),
            history: History::new(map.capacity),
            map,
            log: FlushLog::default(),
            held: BTreeMap::new(),
            events: 1,
            plan: FaultPlan {
                cached: scenario.cache.is_some(),
                bound_ns: scenario.bound_ns(),
                failing: scenario.drives.iter().map(|d| fails_all || fails(d)).collect(),
                stalling: scenario.drives.iter().map(|d| d.faults.stalls()).collect(),
                all: scenario.stalls_all(),
                longest_ns: scenario.stall_ns(),
            },
            leftovers: Leftovers { strays: false, may_time_out: scenario.may_time_out() },
            stop: vec![false; scenario.channels.len()],
            violation: None,
            ios: 0,
            digest: 0,
        }
    }

    pub(super) fn accuse(&mut self, kind: &str, detail: String) {
        if self.violation.is_none() {
            self.violation = Some(Violation { kind: kind.to_owned(), detail });
        }
    }

    pub(super) fn note(&mut self, what: u64) {
        self.digest = (self.digest ^ what).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }

    pub(super) fn next_id(&self) -> u64 {
        self.bios.len() as u64
    }

    /// Records a bio that is about to be submitted. From now on reads may find its data.
    pub(super) fn submit(&mut self, mut bio: BioRecord, now_ns: u64) {
        let id = self.bios.len() as u32;
        self.events += 1;
        bio.submitted = self.events;
        bio.submitted_ns = now_ns;
        // Until the block layer accepts the bio, any stalled drive may delay the bio.
        bio.bound_ns = self.plan.bound_ns + self.plan.longest_ns;
        bio.taken_bound_ns = match self.waits_for_stalled(&bio) {
            true => bio.bound_ns,
            false => self.plan.bound_ns,
        };
        bio.log_len = self.log.sectors.len();
        bio.expects.unsupported = self.is_unsupported(&bio);
        if self.plan.cached && self.touches(&bio, &self.plan.failing) {
            bio.expects.may = u32::MAX;
        }
        if bio.op.is_write() {
            self.history.add(bio.sector..bio.sector + bio.nr, id);
        }
        self.live.push(id);
        self.bios.push(bio);
    }

    /// Records that the block layer accepted a bio. Before the acceptance, any stalled drive may
    /// delay the bio; from now on only the drives that the bio touches.
    pub(super) fn accept(&mut self, id: u64, now_ns: u64) {
        let bio = &mut self.bios[id as usize];
        if bio.status.is_none() && bio.bound_ns != bio.taken_bound_ns {
            (bio.submitted_ns, bio.bound_ns) = (now_ns, bio.taken_bound_ns);
        }
    }

    fn waits_for_stalled(&self, bio: &BioRecord) -> bool {
        // A page cache completes a write without waiting for a drive. Any other operation may wait
        // for a stalled drive.
        let waits = self.plan.all || self.plan.cached && bio.op != Op::Write;
        waits || self.touches(bio, &self.plan.stalling)
    }

    /// Returns true if the bio touches one of `drives`. A bio that flushes touches every drive.
    fn touches(&self, bio: &BioRecord, drives: &[bool]) -> bool {
        let around = OpFlags::FUA.with(OpFlags::PREFLUSH);
        let flushes = bio.op == Op::Flush || around.without(bio.flags) != around;
        let touches = |sector: u64| drives[self.map.place(sector).0];
        flushes && drives.contains(&true) || (bio.sector..bio.sector + bio.nr).any(touches)
    }

    /// Returns true if the bio's operation is not supported. Without a page cache, a drive that the
    /// bio touches must lack support. With a page cache, any drive that lacks support suffices.
    fn is_unsupported(&self, bio: &BioRecord) -> bool {
        let lacks = |limits: &LimitSpec, block: u32| match bio.op {
            Op::Discard => limits.discard_sectors < block,
            Op::WriteZeroes => limits.zeroes_sectors < block,
            _ => false,
        };
        let lacks_one = |sector| {
            let limits = &self.media[self.map.place(sector).0].limits;
            lacks(limits, limits.block / 512)
        };
        match self.plan.cached {
            true => self.media.iter().any(|media| lacks(&media.limits, self.map.block as u32)),
            false => (bio.sector..bio.sector + bio.nr).any(lacks_one),
        }
    }

    /// Removes a bio that the block layer rejected, as if it had never been submitted.
    pub(super) fn refuse(&mut self, id: u64) {
        let events = self.events;
        let Some(bio) = self.take_live(id) else { return };
        (bio.ended, bio.status) = (events, Some(Status::Invalid));
        let range = bio.sector..bio.sector + bio.nr;
        self.history.remove(range, id as u32);
    }

    pub(super) fn grown(&mut self, sectors: u64) {
        let (old, most) = (self.map.told, self.map.capacity);
        if sectors <= old || sectors > most {
            self.accuse(
                "capacity",
                format!(
                    "the volume grew from {old} to {sectors} sectors; at most {most} are possible"
                ),
            );
        }
        self.map.told = sectors;
    }

    /// Records a bio that was rejected as out of range. The bio must lie past `known_sectors`, the
    /// size of the volume as known before the submission.
    pub(super) fn refuse_outside(&mut self, id: u64, known_sectors: u64) {
        let bio = &self.bios[id as usize];
        if bio.sector + bio.nr <= known_sectors {
            let text = format!(
                "bio {id} was refused although the volume had grown to {known_sectors} sectors"
            );
            self.accuse("capacity", text);
        }
        self.refuse(id);
    }

    fn take_live(&mut self, id: u64) -> Option<&mut BioRecord> {
        let place = self.live.iter().position(|live| u64::from(*live) == id)?;
        self.live.swap_remove(place);
        Some(&mut self.bios[id as usize])
    }

    pub(super) fn end(&mut self, id: u64, status: Status, memory: MemoryFate, now_ns: u64) {
        self.events += 1;
        self.ios += 1;
        self.note(id << 8 | status as u64);
        self.note(now_ns);
        let events = self.events;
        let Some(bio) = self.take_live(id) else {
            return self.accuse("exactly once", format!("bio {id} completed twice: {status}"));
        };
        (bio.ended, bio.status) = (events, Some(status));
        if status == Status::TimedOut {
            // A drive may execute requests of a bio at any time after the bio has timed out. So the
            // bio counts as never ended: `u64::MAX` is larger than all event numbers.
            bio.ended = u64::MAX;
        }
        let bio = bio.clone();
        let name = describe(id, &bio);
        if let Some(wrong) = wrong_status(&bio.expects, status) {
            self.accuse("status", format!("{name} ended with {status}: {wrong}"));
        }
        let took_ns = now_ns.saturating_sub(bio.submitted_ns);
        if took_ns > bio.bound_ns {
            let bound_ns = bio.bound_ns;
            let text = format!("{name} took {took_ns} ns; the bound is {bound_ns} ns");
            self.accuse("starvation", text);
        }
        if memory == MemoryFate::Back {
            self.check_memory_is_free(&name, &bio.memory);
        }
        if status.is_ok() {
            self.check_durability(&name, &bio, id);
        }
    }

    fn check_memory_is_free(&mut self, name: &str, memory: &[MemoryRange]) {
        for (start, end) in memory {
            let below = self.held.range(..end).next_back();
            if below.is_some_and(|(_, held_end)| held_end > start) {
                self.accuse(
                    "memory",
                    format!("{name} completed while a drive still holds its memory"),
                );
            }
        }
    }

    fn check_durability(&mut self, name: &str, bio: &BioRecord, id: u64) {
        if bio.op == Op::Flush || bio.flags.has(OpFlags::PREFLUSH) {
            let sectors = self.log.flush(bio);
            self.check_power_cut(name, "flush", sectors, After::Event(bio.submitted));
        }
        if bio.op.is_write() {
            let sectors = bio.sector..bio.sector + bio.nr;
            if bio.flags.has(OpFlags::FUA) {
                self.check_power_cut(name, "fua", sectors.clone(), After::Bio(id as u32));
            }
            self.log.sectors.extend(sectors);
        }
    }

    /// Checks the data that `sectors` could hold if the power failed now. Each sector must hold the
    /// data of the changes in `after`, or newer data.
    fn check_power_cut(
        &mut self,
        name: &str,
        kind: &str,
        sectors: impl IntoIterator<Item = u64>,
        after: After,
    ) {
        for sector in sectors {
            let (drive, place) = self.map.place(sector);
            let wrong = |stamp| self.history.wrong(&self.bios, after, sector, stamp);
            let wrong = self.media[drive].survivors(place).find_map(wrong);
            if let Some(wrong) = wrong {
                let text = format!(
                    "{name} was acknowledged, but after a power cut sector {sector} may hold {wrong}"
                );
                return self.accuse(kind, text);
            }
        }
    }

    pub(super) fn check_read(&mut self, id: u64, found: &[u64]) {
        let bio = self.bios[id as usize].clone();
        for (sector, stamp) in (bio.sector..).zip(found) {
            let after = After::Event(bio.submitted);
            if let Some(wrong) = self.history.wrong(&self.bios, after, sector, *stamp) {
                let name = describe(id, &bio);
                return self.accuse(
                    "data",
                    format!("{name} read wrong data from sector {sector}: {wrong}"),
                );
            }
        }
    }

    pub(super) fn hold_memory(&mut self, memory: &[MemoryRange]) {
        self.held.extend(memory.iter().copied());
    }

    pub(super) fn release_memory(&mut self, memory: &[MemoryRange]) {
        for (start, _) in memory {
            self.held.remove(start);
        }
    }

    /// Records a failed request. The bio that the request is part of must report the failure.
    pub(super) fn failed(&mut self, suspect: &FailedRequest<'_>, status: Status) {
        if self.plan.cached {
            // With a page cache, a failed request does not mean that a bio fails. The cache retries
            // the request, or reports the failure with a later bio.
            return;
        }
        let (touched, exact) = self.owners(suspect);
        for id in &touched {
            let expects = &mut self.bios[*id as usize].expects;
            expects.may |= 1 << status as u32;
            expects.must_fail |= exact;
        }
    }

    /// Records a request that timed out. Returns false if its bios must wait until the drive
    /// completes the request: the drive may still access their memory, which belongs to the
    /// submitters.
    pub(super) fn given_up(&mut self, suspect: &FailedRequest<'_>) -> bool {
        let (touched, exact) = self.owners(suspect);
        let foreign = suspect.op.has_data();
        if foreign && touched.iter().any(|id| self.bios[*id as usize].foreign) {
            return false;
        }
        for id in &touched {
            let expects = &mut self.bios[*id as usize].expects;
            expects.may |= 1 << Status::TimedOut as u32;
            expects.must_time_out |= exact;
        }
        true
    }

    /// Returns the bios that may be part of the request, and true if all of them certainly are.
    fn owners(&self, suspect: &FailedRequest<'_>) -> (Vec<u32>, bool) {
        let touches = |id: &u32| {
            let bio = &self.bios[*id as usize];
            match suspect.op {
                Op::Flush => {
                    let around = OpFlags::FUA.with(OpFlags::PREFLUSH);
                    bio.op == Op::Flush || around.without(bio.flags) != around
                }
                op if op != bio.op => false,
                op if op.has_data() => suspect.memory.iter().any(|(start, end)| {
                    bio.memory.iter().any(|(from, to)| start < to && from < end)
                }),
                _ => (bio.sector..bio.sector + bio.nr).any(|sector| {
                    let (drive, place) = self.map.place(sector);
                    let inside = suspect.sector..suspect.sector + suspect.nr;
                    drive == suspect.drive && inside.contains(&place)
                }),
            }
        };
        let touched: Vec<u32> = self.live.iter().copied().filter(touches).collect();
        // A flush request may serve any number of the flushes in flight. So it is never certain
        // that a given bio is part of the request.
        let alone = touched.len() == 1 && suspect.op != Op::Flush && !self.leftovers.strays;
        let exact = suspect.op.has_data() || alone;
        (touched, exact)
    }

    pub(super) fn forget(&mut self, channel: usize) {
        let (bios, before) = (&self.bios, self.live.len());
        self.live.retain(|id| bios[*id as usize].channel != channel);
        self.leftovers.strays |= self.live.len() < before;
    }

    pub(super) fn may_keep_requests(&self) -> bool {
        self.leftovers.strays || self.leftovers.may_time_out
    }

    pub(super) fn check_patience(&mut self, now_ns: u64) {
        let waits = |id: &&u32| {
            let bio = &self.bios[**id as usize];
            now_ns.saturating_sub(bio.submitted_ns) > bio.bound_ns
        };
        if let Some(id) = self.live.iter().find(waits).copied() {
            let bio = &self.bios[id as usize];
            let name = describe(id.into(), bio);
            let text = format!("{name} has not completed within {} ns", bio.bound_ns);
            self.accuse("starvation", text);
        }
    }

    /// Checks, at the end of the run, that every bio has completed and that all flushed data is
    /// durable.
    pub(super) fn check_end(&mut self) {
        let flushed = After::Event(self.log.flushed);
        self.check_power_cut("the latest flush", "flush", self.history.changed(), flushed);
        if let Some(id) = self.live.first().copied() {
            let name = describe(id.into(), &self.bios[id as usize]);
            let count = self.live.len();
            self.accuse("exactly once", format!("{count} bios never completed; one is {name}"));
        }
    }
}

impl BioRecord {
    pub(super) fn new(
        channel: usize,
        (op, flags): (Op, OpFlags),
        (sector, nr): (u64, u64),
    ) -> BioRecord {
        BioRecord {
            channel,
            op,
            flags,
            sector,
            nr,
            memory: Vec::new(),
            foreign: false,
            submitted: 0,
            ended: u64::MAX,
            status: None,
            submitted_ns: 0,
            bound_ns: 0,
            taken_bound_ns: 0,
            log_len: 0,
            expects: ExpectedStatus::default(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MemoryFate {
    Back,
    /// The block layer keeps the bio's memory, because a drive may still write to this memory.
    Kept,
}

/// Returns the content (stamp) that a bio gives a sector: bio number and sector for a write, 0 for
/// discard and write-zeroes.
pub(super) fn stamp_of(op: Op, id: u64, sector: u64) -> u64 {
    if op == Op::Write { (id + 1) << 24 | (sector & 0xff_ffff) } else { 0 }
}

fn wrong_status(expects: &ExpectedStatus, status: Status) -> Option<&'static str> {
    let may = expects.may >> status as u32 & 1 == 1;
    match status {
        Status::TimedOut if may => None,
        _ if expects.must_time_out => Some("one of the bio's requests timed out"),
        Status::Ok if expects.must_fail => Some("one of the bio's requests failed"),
        Status::Ok if expects.unsupported => Some("a drive does not support it"),
        Status::Ok => None,
        Status::NotSupported if expects.unsupported => None,
        _ if may => None,
        _ => Some("no drive reported this status"),
    }
}

fn describe(id: u64, bio: &BioRecord) -> String {
    let BioRecord { channel, op, sector, nr, flags, .. } = bio;
    let fua = if flags.has(OpFlags::FUA) { " FUA" } else { "" };
    let preflush = if flags.has(OpFlags::PREFLUSH) { " PREFLUSH" } else { "" };
    format!("bio {id} of channel {channel} ({op:?} {sector} + {nr}{fua}{preflush})")
}
