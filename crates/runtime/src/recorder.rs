//! `Recorder`: a thread that moves events from a `Tracer`'s rings to files that blkparse and btt
//! can read.
//!
//! The recorder writes one file `NAME.blktrace.N` for each CPU N up to the highest CPU with an
//! event. Events are written in chronological order if they reach the recorder within 10 ms. If a
//! file cannot be written, the recording ends with an error, without affecting I/O. `Recording` is
//! a recording without a thread, for simulated machines: it writes the rings' content when it ends.

mod cpu_file;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry::Vacant;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millrace_block::blktrace::{EventCode, category};
use millrace_block::{Groups, TraceEntry, TraceMessage, TraceStamp, Tracer, Volume};
use millrace_machine::{
    LOOK_NS, Machine, Native, RunningClock, Thread, debug_fields, lock_unpoisoned,
};

use cpu_file::{CpuFile, DropCounts, named};

pub use cpu_file::trace_file;

const TURN: Duration = Duration::from_millis(10);
/// Minimum age of an event when it is written, in nanoseconds. A younger event waits, because the
/// rings of other threads may still hold events that precede it.
const HELD_NS: u64 = 10_000_000;
/// Start of a trace message that names a device; the name follows. blkparse prints the message
/// unchanged.
pub const DEVICE_NAME: &str = "millrace names this device ";
/// Filter for events: an event is recorded if it matches every criterion that is set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceFilter {
    /// Device numbers, as in the trace records; an empty list stands for all devices.
    pub devices: Vec<u32>,
    /// Actions, such as queue or issue; an empty list stands for all actions.
    pub acts: Vec<EventCode>,
    /// Categories (`category::WRITE`...), of which an event must have at least one; 0 for all.
    pub categories: u16,
    /// Tenant (submitter of I/O) whose events are recorded; `None` records the events of all
    /// tenants.
    pub tenant: Option<u32>,
    /// Range of sectors on the drive that an I/O must overlap: first sector, and the sector after
    /// the last.
    pub sectors: Option<(u64, u64)>,
}

impl TraceFilter {
    fn passes_all(&self, entries: &[TraceEntry], began_ns: u64) -> bool {
        *self == TraceFilter::default() && entries.iter().all(|entry| entry.time_ns >= began_ns)
    }

    fn passes(&self, entry: &TraceEntry) -> bool {
        if let Some(note) = &entry.note {
            if matches!(note.remark, TraceMessage::Dropped(_)) {
                return true;
            }
            return self.acts.is_empty()
                && (self.devices.is_empty() || self.devices.contains(&entry.device));
        }
        let code = entry.action & 0xffff;
        let end = entry.sector + u64::from(entry.bytes >> 9).max(1);
        let of_plug = [EventCode::Plug, EventCode::Unplug, EventCode::UnplugTimer];
        let unplugs = of_plug.iter().any(|act| *act as u32 == code);
        (self.devices.is_empty() || self.devices.contains(&entry.device))
            && (self.acts.is_empty() || self.acts.iter().any(|act| *act as u32 == code))
            && (self.categories == 0
                || unplugs
                || (entry.action >> 16) as u16 & self.categories != 0)
            && self.tenant.is_none_or(|tenant| tenant == entry.tenant)
            && (unplugs
                || self.sectors.is_none_or(|(first, last)| entry.sector < last && end > first))
    }
}

/// Settings of a recording.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecorderConfig {
    /// Path of the files, without the suffix `.blktrace.N`.
    pub name: PathBuf,
    /// Filter for the events.
    pub filter: TraceFilter,
    /// Map from the device number of a drive to that of its volume. Remap events name the volume as
    /// their origin.
    pub volumes: BTreeMap<u32, u32>,
    /// Map from a tenant's number to the submitter's name.
    pub names: BTreeMap<u32, String>,
    /// Map from a group's number to its name. `Recorder` adds the groups of the recorded volumes.
    pub groups: BTreeMap<u16, String>,
    /// Map from a device number to the name of the drive or volume.
    pub devices: BTreeMap<u32, String>,
    /// Clock for the events' timestamps.
    pub stamp: TraceStamp,
    /// If set, the recording ends unless [`Recorder::renew`] is called at least this often.
    pub lease: Option<Duration>,
}

/// Result of a recording.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Number of events written.
    pub events: u64,
    /// Number of events lost because their thread's ring was full.
    pub dropped: u64,
    /// Paths of the trace files, in the order of their CPUs.
    pub files: Vec<PathBuf>,
}

#[derive(Default)]
struct RecorderState {
    stop: AtomicBool,
    events: AtomicU64,
    dropped: AtomicU64,
    renewed_ns: AtomicU64,
    /// Paths of the trace files, or the first error, after the recording has ended.
    outcome: Mutex<Option<io::Result<Vec<PathBuf>>>>,
}

/// A recording in progress. Dropping it ends the recording.
pub struct Recorder {
    thread: Option<<Native as Machine>::Thread>,
    shared: Arc<RecorderState>,
}

debug_fields!(Recorder);

impl Recorder {
    /// Starts to record the events of these volumes, whose drives use `tracer`. Channels begin to
    /// record with their next batch. Deletes the files of an earlier recording with the same name.
    ///
    /// # Errors
    /// `AlreadyExists` if another recording uses this tracer, or the error of creating the first
    /// file.
    pub fn start(
        tracer: &Arc<Tracer<Native>>,
        volumes: &[Arc<Volume<Native>>],
        config: RecorderConfig,
    ) -> io::Result<Recorder> {
        let mut recording = Recording::start(tracer, volumes, config)?;
        let shared = Arc::new(RecorderState::default());
        shared.renewed_ns.store(recording.began_ns, Ordering::SeqCst);
        let theirs = Arc::clone(&shared);
        let body = move || {
            let ran = recording.run(&theirs);
            end(&recording.tracer, &recording.volumes);
            *lock_unpoisoned(&theirs.outcome) = Some(ran.map(|()| recording.paths()));
        };
        let thread = Native::try_spawn("millrace-trace", None, body)
            .inspect_err(|_| end(tracer, volumes))?;
        Ok(Recorder { thread: Some(thread), shared })
    }

    /// Renews the lease (`RecorderConfig::lease`), so that the recording continues.
    pub fn renew(&self) {
        self.shared.renewed_ns.store(Native::now(), Ordering::SeqCst);
    }

    /// Returns the numbers of events written and dropped so far.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        // Relaxed: no other memory access depends on these statistics.
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (count(&self.shared.events), count(&self.shared.dropped))
    }

    /// Returns true if the recording ended by itself, because of an error, or because
    /// [`Recorder::renew`] was not called in time.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        lock_unpoisoned(&self.shared.outcome).is_some()
    }

    /// Ends the recording after all events that occurred before this call are in the files.
    ///
    /// # Errors
    /// Returns the first error of writing to a file, with the file's path.
    pub fn stop(mut self) -> io::Result<Recorded> {
        let has_panicked = !self.end();
        let panicked = || io::Error::other("the recording thread panicked; see the messages above");
        let outcome = lock_unpoisoned(&self.shared.outcome).take();
        let known = outcome.filter(|outcome| outcome.is_err() || !has_panicked);
        let files = known.unwrap_or_else(|| Err(panicked()))?;
        let (events, dropped) = self.progress();
        Ok(Recorded { events, dropped, files })
    }

    fn end(&mut self) -> bool {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.thread.take().is_none_or(Thread::join)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.end();
    }
}

fn end<M: Machine>(tracer: &Tracer<M>, volumes: &[Arc<Volume<M>>]) {
    volumes.iter().for_each(|volume| _ = volume.set_traced(false));
    tracer.stop();
}

/// A recording without a thread of its own, for a machine with simulated threads. The events are
/// written when the recording ends, so the rings must have room for all of them.
pub struct Recording<M: Machine> {
    tracer: Arc<Tracer<M>>,
    volumes: Vec<Arc<Volume<M>>>,
    config: RecorderConfig,
    files: BTreeMap<u32, CpuFile>,
    /// Time of the start, in nanoseconds. Older events belong to an earlier recording.
    began_ns: u64,
    drops: DropCounts,
}

debug_fields!(Recording<M: Machine>, config);

impl<M: Machine> Recording<M> {
    /// Starts to record, as [`Recorder::start`] does, but ignores `RecorderConfig::lease`.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`Recorder::start`].
    pub fn start(
        tracer: &Arc<Tracer<M>>,
        volumes: &[Arc<Volume<M>>],
        config: RecorderConfig,
    ) -> io::Result<Recording<M>> {
        // Starts the tracer before any file is changed. If another recording is in progress, the
        // start fails, and the existing files may belong to that recording.
        if !tracer.start(config.stamp) {
            let text = "a recording is in progress: stop it first";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        // The first file is created at once, so that a missing directory is reported by this call.
        let mut first = CpuFile::create::<M>(&config, 0).inspect_err(|_| tracer.stop())?;
        first.name_devices(&config.devices).inspect_err(|_| tracer.stop())?;
        // Files of an earlier recording on more CPUs are deleted, because readers of the trace
        // would take them for a part of this recording.
        let others = (1..).map(|cpu| trace_file(&config.name, cpu));
        others.take_while(|path| std::fs::remove_file(path).is_ok()).for_each(drop);
        let (began_ns, files) = (M::now(), BTreeMap::from([(0, first)]));
        volumes.iter().for_each(|volume| _ = volume.set_traced(true));
        let (tracer, volumes) = (Arc::clone(tracer), volumes.to_vec());
        Ok(Recording { tracer, volumes, config, files, began_ns, drops: DropCounts::default() })
    }

    /// Ends the recording and writes all its events to the files.
    ///
    /// # Errors
    /// Returns the first error of writing to a file, with the file's path.
    pub fn stop(mut self) -> io::Result<Recorded> {
        end(&self.tracer, &self.volumes);
        let events = self.turn(u64::MAX)?;
        Ok(Recorded { events, dropped: self.drops.all, files: self.paths() })
    }

    fn paths(self) -> Vec<PathBuf> {
        self.files.into_values().map(|file| file.path).collect()
    }

    /// Empties the tracer's rings, and keeps the events of this recording that pass the filter.
    /// Writes kept events older than `until_ns` to the files; a later call writes the newer ones.
    /// Returns the number of events written. The last call of a recording has the time `u64::MAX`.
    /// The last call also reports all dropped events.
    fn turn(&mut self, until_ns: u64) -> io::Result<u64> {
        let Recording { tracer, volumes, config, files, began_ns, drops } = self;
        let mut missing = Vec::new();
        let status = tracer.drain(|cpu, entries| {
            let wanted =
                |entry: &&TraceEntry| entry.time_ns >= *began_ns && config.filter.passes(entry);
            let all = config.filter.passes_all(entries, *began_ns);
            match files.get_mut(&cpu.0) {
                Some(file) if all => file.held.extend_from_slice(entries),
                Some(file) => file.held.extend(entries.iter().filter(wanted)),
                None => missing.push((cpu.0, entries.iter().filter(wanted).copied().collect())),
            }
        });
        for (cpu, entries) in missing {
            let mut entries: Vec<TraceEntry> = entries;
            // Trace readers expect the files to be numbered without gaps.
            for cpu in 0..=cpu {
                if let Vacant(place) = files.entry(cpu) {
                    place.insert(CpuFile::create::<M>(config, cpu)?);
                }
            }
            files.entry(cpu).and_modify(|file| file.held.append(&mut entries));
        }
        if let Some(groups) = volumes.iter().find_map(|volume| volume.groups()) {
            learn(groups, files, config);
        }
        drops.all = status.dropped;
        let mut written = 0;
        for file in files.values_mut() {
            written += file.write_held(until_ns, config, drops)?;
        }
        // Events that a thread dropped after its last recorded event are reported only at the end.
        let untold = drops.take(u32::MAX);
        match files.values_mut().next() {
            Some(file) if until_ns == u64::MAX => {
                let device = config.devices.keys().next().copied().unwrap_or(0);
                file.dropped(device, M::now(), untold)?;
                file.file.flush().map_err(|error| named(&file.path, &error))?;
            }
            _ => drops.told -= u64::from(untold),
        }
        Ok(written)
    }
}

impl Recording<Native> {
    fn run(&mut self, shared: &RecorderState) -> io::Result<()> {
        let mut clock = RunningClock::new();
        loop {
            let turn_ns = Native::now();
            let pause_ns = clock.look(turn_ns, LOOK_NS);
            // Extends the lease of the recording by the time for which this process was suspended.
            // During that time, no client could call `Recorder::renew`.
            shared.renewed_ns.fetch_add(pause_ns, Ordering::SeqCst);
            let silent_ns = turn_ns.saturating_sub(shared.renewed_ns.load(Ordering::SeqCst));
            let lease = self.config.lease;
            let is_left = lease.is_some_and(|lease| u128::from(silent_ns) > lease.as_nanos());
            let last = shared.stop.load(Ordering::SeqCst) || is_left;
            let until_ns = if last { u64::MAX } else { turn_ns.saturating_sub(HELD_NS) };
            let written = self.turn(until_ns)?;
            // Relaxed: no other memory access depends on these statistics.
            shared.events.fetch_add(written, Ordering::Relaxed);
            shared.dropped.store(self.drops.all, Ordering::Relaxed);
            if last {
                return Ok(());
            }
            std::thread::sleep(TURN);
        }
    }
}

/// Adds the names of groups that are not known yet and occur in messages waiting to be written.
fn learn<M: Machine>(
    groups: &Groups<M>,
    files: &BTreeMap<u32, CpuFile>,
    config: &mut RecorderConfig,
) {
    let entries = files.values().flat_map(|file| &file.held);
    let mut noted = entries.filter_map(|entry| entry.note?.group());
    if noted.any(|group| !config.groups.contains_key(&group.0)) {
        let named = groups.list().into_iter().map(|(group, config)| (group.0, config.name));
        config.groups.extend(named);
    }
}

/// Returns the trace category of an operation's name, as given with the option `--op`.
#[must_use]
pub fn categories_of(word: &str) -> Option<u16> {
    Some(match word {
        "read" => category::READ,
        "write" => category::WRITE,
        "flush" => category::FLUSH,
        "discard" => category::DISCARD,
        "sync" => category::SYNC,
        "fua" => category::FUA,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    use super::*;

    fn config(name: &Path) -> RecorderConfig {
        RecorderConfig { name: name.to_owned(), ..RecorderConfig::default() }
    }

    #[test]
    fn recording_that_is_refused_touches_no_file_of_one_under_way() {
        let (dir, tracer) = (tempfile::tempdir().unwrap(), Tracer::new(16));
        let (name, other) = (dir.path().join("t"), dir.path().join("u"));
        let first = Recorder::start(&tracer, &[], config(&name)).unwrap();
        let file = trace_file(&name, 0);
        // Far behind all that the first one may write meanwhile.
        const PLACE: u64 = 1 << 16;
        let open = std::fs::File::options().write(true).open(&file).unwrap();
        open.write_all_at(b"of the first", PLACE).unwrap();
        for name in [&name, &other] {
            let error = Recorder::start(&tracer, &[], config(name)).err().unwrap();
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        }
        let kept = std::fs::read(&file).unwrap();
        assert_eq!(kept.get(PLACE as usize..), Some(&b"of the first"[..]));
        assert!(!trace_file(&other, 0).exists());
        first.stop().unwrap();
    }

    #[test]
    fn recording_whose_file_cannot_be_created_leaves_tracer_free() {
        let (dir, tracer) = (tempfile::tempdir().unwrap(), Tracer::new(16));
        let error = Recorder::start(&tracer, &[], config(&dir.path().join("no/t"))).err().unwrap();
        assert!(error.to_string().ends_with("its directory does not exist; create it"), "{error}");
        let recorder = Recorder::start(&tracer, &[], config(&dir.path().join("t"))).unwrap();
        assert_eq!(recorder.stop().unwrap().files, [trace_file(&dir.path().join("t"), 0)]);
    }
}
