//! `Recorder`: a thread that empties a `Tracer`'s rings into files that blkparse and btt read.
//!
//! Owns `NAME.blktrace.N`, one for each CPU N on which a traced thread was when it began, and empty
//! ones for those below. Events reach a file in order of time as far as they came in within 10 ms
//! of it. A file that cannot be written ends the recording with an error, and nothing else.
//! `Recording` is one without a thread, for machines that are simulated: it writes what the rings
//! hold when it ends. Called by `bench --trace` and by the daemon; calls cpu_file.rs.

mod cpu_file;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry::{Occupied, Vacant};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millrace_block::blktrace::{EventCode, category};
use millrace_block::{Groups, TraceEntry, TraceMessage, TraceStamp, Tracer, Volume};
use millrace_machine::{LOOK_NS, Machine, Native, RunningClock, Thread};

use cpu_file::{CpuFile, Drops, named};

pub use cpu_file::trace_file;

/// How often the rings are emptied.
const TURN: Duration = Duration::from_millis(10);
/// Events younger than this wait for the next turn: other threads' may be older.
const HELD_NS: u64 = 10_000_000;
/// How a message begins that names its device; the name follows. blkparse prints it as it is.
pub const DEVICE_NAME: &str = "millrace names this device ";
/// Which events are recorded: those that pass all that is set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceFilter {
    /// Devices, as records name them; empty: all.
    pub devices: Vec<u32>,
    /// What happened; empty: all.
    pub acts: Vec<EventCode>,
    /// Categories of which one must be there (`category::WRITE`...); 0: all.
    pub categories: u16,
    /// Whom the I/O is accounted to.
    pub tenant: Option<u32>,
    /// First and one past the last sector, on the drive, of which an I/O must touch some.
    pub sectors: Option<(u64, u64)>,
}

impl TraceFilter {
    /// Whether it lets all of these pass, without a look at each but for its time.
    fn passes_all(&self, entries: &[TraceEntry], began_ns: u64) -> bool {
        self.devices.is_empty()
            && self.acts.is_empty()
            && self.categories == 0
            && self.tenant.is_none()
            && self.sectors.is_none()
            && entries.iter().all(|entry| entry.time_ns >= began_ns)
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

/// What is to be recorded, and where to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecorderConfig {
    /// The files' name, before `.blktrace.N`.
    pub name: PathBuf,
    /// What of it.
    pub filter: TraceFilter,
    /// Of each drive's device the one that it is a part of: where remaps come from.
    pub volumes: BTreeMap<u32, u32>,
    /// Submitters' names by tenant.
    pub names: BTreeMap<u32, String>,
    /// Names of groups by their numbers; `Recorder` adds those of the volumes that it records.
    pub groups: BTreeMap<u16, String>,
    /// Names of drives and volumes by their devices.
    pub devices: BTreeMap<u32, String>,
    /// Which time events have.
    pub stamp: TraceStamp,
    /// It ends by itself if [`Recorder::renew`] is not called for so long.
    pub lease: Option<Duration>,
}

/// What a recording came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Events written.
    pub events: u64,
    /// Events that found their thread's ring full.
    pub dropped: u64,
    /// The files, by CPU.
    pub files: Vec<PathBuf>,
}

/// What the thread shares with whoever started it.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    ended: AtomicBool,
    events: AtomicU64,
    dropped: AtomicU64,
    /// When the lease was renewed.
    renewed_ns: AtomicU64,
    failure: Mutex<Option<io::Error>>,
    files: Mutex<Vec<PathBuf>>,
}

impl Shared {
    /// Whether nobody has asked for it for longer than the lease.
    fn is_left(&self, now_ns: u64, lease: Option<Duration>) -> bool {
        let silent_ns = now_ns.saturating_sub(self.renewed_ns.load(Ordering::SeqCst));
        lease.is_some_and(|lease| u128::from(silent_ns) > lease.as_nanos())
    }
}

/// A recording under way. Dropped, it ends.
pub struct Recorder {
    thread: Option<<Native as Machine>::Thread>,
    shared: Arc<Shared>,
}

impl Recorder {
    /// Starts to record what these volumes do; their drives have `tracer`. Channels take part from
    /// their next batch on. The files of an earlier recording of this name go.
    ///
    /// # Errors
    /// `AlreadyExists` if somebody records with this tracer, or what creating the first file says.
    pub fn start(
        tracer: &Arc<Tracer<Native>>,
        volumes: &[Arc<Volume<Native>>],
        mut config: RecorderConfig,
    ) -> io::Result<Recorder> {
        let (first, began_ns) = begin(tracer, volumes, &config)?;
        let shared = Arc::new(Shared::default());
        shared.renewed_ns.store(began_ns, Ordering::SeqCst);
        let undo = || {
            volumes.iter().for_each(|volume| _ = volume.set_traced(false));
            tracer.stop();
        };
        let theirs = Arc::clone(&shared);
        let (tracer, volumes) = (Arc::clone(tracer), volumes.to_vec());
        let body = move || {
            let mut files = BTreeMap::from([(0, first)]);
            let groups = volumes.iter().find_map(|volume| volume.groups());
            let source = (&*tracer, groups.map(|groups| &**groups));
            if let Err(error) = record(source, &mut config, (&mut files, began_ns), &theirs) {
                *theirs.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
            volumes.iter().for_each(|volume| _ = volume.set_traced(false));
            tracer.stop();
            let paths = files.into_values().map(|file| file.path).collect();
            *theirs.files.lock().unwrap_or_else(PoisonError::into_inner) = paths;
            theirs.ended.store(true, Ordering::SeqCst);
        };
        let thread = Native::try_spawn("millrace-trace", None, body).inspect_err(|_| undo())?;
        let thread = Some(thread);
        Ok(Recorder { thread, shared })
    }

    /// Somebody still wants it.
    pub fn renew(&self) {
        self.shared.renewed_ns.store(Native::now(), Ordering::SeqCst);
    }

    /// Events written and dropped so far.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        // Relaxed: statistics.
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (count(&self.shared.events), count(&self.shared.dropped))
    }

    /// Whether it has ended by itself: because of an error, or as nobody renewed its lease.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.shared.ended.load(Ordering::SeqCst)
    }

    /// Ends it, when all that happened before is in the files.
    ///
    /// # Errors
    /// What writing said, with the file.
    pub fn stop(mut self) -> io::Result<Recorded> {
        let whole = self.end();
        let failure = self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (events, dropped) = self.progress();
        let mut files = self.shared.files.lock().unwrap_or_else(PoisonError::into_inner);
        match failure {
            Some(error) => Err(error),
            None if !whole => Err(io::Error::other("the recording thread panicked: see above")),
            None => Ok(Recorded { events, dropped, files: std::mem::take(&mut *files) }),
        }
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

/// Creates the first file and has the volumes recorded; gives when: what is older is of an earlier
/// recording, whose files of this name go.
fn begin<M: Machine>(
    tracer: &Tracer<M>,
    volumes: &[Arc<Volume<M>>],
    config: &RecorderConfig,
) -> io::Result<(CpuFile, u64)> {
    // Before any file is touched: it may be one of the recording that is under way.
    if !tracer.start(config.stamp) {
        let text = "a recording is under way: stop it first";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
    }
    // At once, so that a folder that is not there is an error of whoever asks.
    let mut first = CpuFile::create::<M>(config, 0).inspect_err(|_| tracer.stop())?;
    first.name_devices(&config.devices).inspect_err(|_| tracer.stop())?;
    // An earlier recording's, of more CPUs perhaps, would be read as if they were of this one.
    let others = (1..).map(|cpu| trace_file(&config.name, cpu));
    others.take_while(|path| std::fs::remove_file(path).is_ok()).for_each(drop);
    let began_ns = M::now();
    volumes.iter().for_each(|volume| _ = volume.set_traced(true));
    Ok((first, began_ns))
}

/// A recording without a thread, of a machine whose threads are simulated: what the rings have room
/// for is written when it ends.
pub struct Recording<M: Machine> {
    tracer: Arc<Tracer<M>>,
    volumes: Vec<Arc<Volume<M>>>,
    config: RecorderConfig,
    files: BTreeMap<u32, CpuFile>,
    began_ns: u64,
}

impl<M: Machine> Recording<M> {
    /// Starts to record, as [`Recorder::start`] does. A lease is not looked at.
    ///
    /// # Errors
    /// As [`Recorder::start`].
    pub fn start(
        tracer: &Arc<Tracer<M>>,
        volumes: &[Arc<Volume<M>>],
        config: RecorderConfig,
    ) -> io::Result<Recording<M>> {
        let (first, began_ns) = begin(tracer, volumes, &config)?;
        let files = BTreeMap::from([(0, first)]);
        let (tracer, volumes) = (Arc::clone(tracer), volumes.to_vec());
        Ok(Recording { tracer, volumes, config, files, began_ns })
    }

    /// Ends it, when all that was recorded is in the files.
    ///
    /// # Errors
    /// What writing said, with the file.
    pub fn stop(mut self) -> io::Result<Recorded> {
        self.volumes.iter().for_each(|volume| _ = volume.set_traced(false));
        self.tracer.stop();
        let groups = self.volumes.iter().find_map(|volume| volume.groups());
        let source = (&*self.tracer, groups.map(|groups| &**groups));
        let files = (&mut self.files, self.began_ns);
        let mut drops = Drops::default();
        let events = turn(source, &mut self.config, files, (u64::MAX, &mut drops))?;
        let dropped = drops.all;
        let files = self.files.into_values().map(|file| file.path).collect();
        Ok(Recorded { events, dropped, files })
    }
}

/// Empties the rings until told to stop, and once more.
fn record(
    (tracer, groups): (&Tracer<Native>, Option<&Groups<Native>>),
    config: &mut RecorderConfig,
    (files, began_ns): (&mut BTreeMap<u32, CpuFile>, u64),
    shared: &Shared,
) -> io::Result<()> {
    let (mut clock, mut drops) = (RunningClock::new(), Drops::default());
    loop {
        let turn_ns = Native::now();
        let pause_ns = clock.look(turn_ns, LOOK_NS);
        // Nobody could renew the lease meanwhile.
        shared.renewed_ns.fetch_add(pause_ns, Ordering::SeqCst);
        let last = shared.stop.load(Ordering::SeqCst) || shared.is_left(turn_ns, config.lease);
        let until_ns = if last { u64::MAX } else { turn_ns.saturating_sub(HELD_NS) };
        let rules = (until_ns, &mut drops);
        let written = turn((tracer, groups), config, (files, began_ns), rules)?;
        // Relaxed: statistics.
        shared.events.fetch_add(written, Ordering::Relaxed);
        shared.dropped.store(drops.all, Ordering::Relaxed);
        if last {
            return Ok(());
        }
        std::thread::sleep(TURN);
    }
}

/// Empties the rings and writes events older than `until_ns`; how many those were. Counts those
/// that were dropped. With `u64::MAX`, which is the last turn, all dropped events are told.
fn turn<M: Machine>(
    (tracer, groups): (&Tracer<M>, Option<&Groups<M>>),
    config: &mut RecorderConfig,
    (files, began_ns): (&mut BTreeMap<u32, CpuFile>, u64),
    (until_ns, drops): (u64, &mut Drops),
) -> io::Result<u64> {
    let mut missing = Vec::new();
    let status = tracer.drain(|cpu, entries| {
        let wanted = |entry: &&TraceEntry| entry.time_ns >= began_ns && config.filter.passes(entry);
        let all = config.filter.passes_all(entries, began_ns);
        match files.get_mut(&cpu.0) {
            Some(file) if all => file.held.extend_from_slice(entries),
            Some(file) => file.held.extend(entries.iter().filter(wanted)),
            None => missing.push((cpu.0, entries.iter().filter(wanted).copied().collect())),
        }
    });
    for (cpu, entries) in missing {
        // Readers look for one file after another.
        for cpu in 0..cpu {
            file_of::<M>(files, cpu, config)?;
        }
        let mut entries: Vec<TraceEntry> = entries;
        file_of::<M>(files, cpu, config)?.held.append(&mut entries);
    }
    if let Some(groups) = groups {
        learn(groups, files, config);
    }
    drops.all = status.dropped;
    let mut written = 0;
    for file in files.values_mut() {
        written += file.write_held(until_ns, config, drops)?;
    }
    // Of threads that made no event after those.
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

/// Learns what groups are called, if notes are about some that are not known yet.
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

/// The file of a CPU, made if it is not there.
fn file_of<'a, M: Machine>(
    files: &'a mut BTreeMap<u32, CpuFile>,
    cpu: u32,
    config: &RecorderConfig,
) -> io::Result<&'a mut CpuFile> {
    Ok(match files.entry(cpu) {
        Occupied(file) => file.into_mut(),
        Vacant(place) => place.insert(CpuFile::create::<M>(config, cpu)?),
    })
}

/// The categories of an operation's word, as `--op` has them.
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
    fn a_recording_that_is_refused_touches_no_file_of_the_one_under_way() {
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
    fn a_recording_whose_file_cannot_be_created_leaves_the_tracer_free() {
        let (dir, tracer) = (tempfile::tempdir().unwrap(), Tracer::new(16));
        let error = Recorder::start(&tracer, &[], config(&dir.path().join("no/t"))).err().unwrap();
        assert!(error.to_string().ends_with("its folder is not there; make it"), "{error}");
        let recorder = Recorder::start(&tracer, &[], config(&dir.path().join("t"))).unwrap();
        assert_eq!(recorder.stop().unwrap().files, [trace_file(&dir.path().join("t"), 0)]);
    }
}
