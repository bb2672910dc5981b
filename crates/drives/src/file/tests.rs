//! A file queue under results that a sound file system never gives: syncs that fail, transfers that
//! stop anywhere, operations that end after the drive was abandoned.
//!
//! Drive, queue, ring and file are the real ones. `Scripted` stands between queue and ring: it
//! notes each operation, and may replace the ring's result or hold it back. To the queue this looks
//! exactly like a file system that fails.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millrace_block::{
    Bio, Buffer, Channel, Disk, DiskConfig, Driver, DriverQueue, Error, HwQueues, OpFlags,
    QueueKind, QueueLimits, Sector, Stamp, Status, TagScope, Volume,
};
use millrace_machine::{Machine, Native, Topology};
use millrace_reactor::{Completion, Op};
use millrace_runtime::{IoConfig, IoContext};
use tempfile::TempDir;

use super::engine::Engine;
use super::queue::FileQueue;
use super::{FileConfig, FileDriver, within};

/// An operation without its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Noted {
    /// Offset and length.
    Read(u64, u32),
    /// Offset, length and flags.
    Write(u64, u32, i32),
    Sync,
    Other,
}

impl Noted {
    fn of(op: &Op) -> Noted {
        match *op {
            Op::Read { offset, len, .. } => Noted::Read(offset, len),
            Op::Write { offset, len, rw_flags, .. } => Noted::Write(offset, len, rw_flags),
            Op::Fdatasync { .. } => Noted::Sync,
            _ => Noted::Other,
        }
    }
}

/// Replaces the result of an operation; `None` keeps the ring's.
type RequestVerdict = fn(Noted) -> Option<i32>;

/// Behaviour set by a test, and the operations seen.
#[derive(Default)]
struct Script {
    verdict: Option<RequestVerdict>,
    /// Completions of operations for which this returns true are held back.
    held: Option<fn(Noted) -> bool>,
    back: Vec<Completion>,
    ops: Vec<Noted>,
    pushed: HashMap<u64, Noted>,
}

/// The script of an engine.
pub(crate) struct Scripted(Arc<Mutex<Script>>);

impl Scripted {
    pub(crate) fn note(&self, user_data: u64, op: Op) {
        let mut script = self.0.lock().unwrap();
        script.ops.push(Noted::of(&op));
        script.pushed.insert(user_data, Noted::of(&op));
    }

    /// Replaces the results that the ring has given, and holds them back or adds those held back.
    pub(crate) fn change(&self, completions: &mut Vec<Completion>) {
        let mut script = self.0.lock().unwrap();
        let mut came = std::mem::take(&mut script.back);
        let before = came.len();
        came.append(completions);
        for (at, mut completion) in came.into_iter().enumerate() {
            let Some(op) = script.pushed.get(&completion.user_data).copied() else {
                // Of a cancel.
                completions.push(completion);
                continue;
            };
            if at >= before
                && let Some(verdict) = script.verdict
            {
                completion.result = verdict(op).unwrap_or(completion.result);
            }
            match script.held.is_some_and(|held| held(op)) {
                true => script.back.push(completion),
                false => completions.push(completion),
            }
        }
    }
}

/// A file drive with a script between its queue and the ring.
struct ScriptedDriver(FileDriver, Arc<Mutex<Script>>);

impl Driver<Native> for ScriptedDriver {
    fn capacity(&self) -> Sector {
        self.0.capacity()
    }
    fn limits(&self) -> QueueLimits {
        self.0.limits()
    }
    fn hw_queues(&self, topology: &Topology) -> HwQueues {
        self.0.hw_queues(topology)
    }
    fn open_queue(&self, _: u16, depth: u32) -> Result<Box<dyn DriverQueue<Native>>, Error> {
        let (current, shared) = (millrace_runtime::current().unwrap(), Arc::clone(&self.0.shared));
        let mut engine = Engine::ring(current.handle, &self.0, depth).unwrap();
        engine.script = Some(Scripted(Arc::clone(&self.1)));
        Ok(Box::new(FileQueue::new(shared, engine, depth)))
    }
}

struct Rig {
    channel: Channel<Native>,
    _context: IoContext,
    script: Arc<Mutex<Script>>,
    /// Transfers end at multiples of this.
    unit: u64,
    _dir: TempDir,
}

impl Rig {
    fn new() -> Rig {
        Rig::with_timeout(Duration::from_secs(30))
    }

    fn with_timeout(timeout: Duration) -> Rig {
        // The file lies beside the test binary: /tmp may be in memory, where direct I/O is
        // impossible.
        let place = std::env::current_exe().unwrap();
        let dir = tempfile::tempdir_in(place.parent().unwrap()).unwrap();
        let (path, size_bytes) = (dir.path().join("d"), Some(1 << 20));
        let file = FileDriver::open(FileConfig { path, size_bytes, ..FileConfig::default() });
        let file = file.unwrap();
        let unit = file.shared.transfer_unit;
        let script = Arc::new(Mutex::new(Script::default()));
        let driver = Box::new(ScriptedDriver(file, Arc::clone(&script)));
        let disk = Disk::new(driver, DiskConfig { timeout, ..DiskConfig::default() }).unwrap();
        let mut context = IoContext::new(IoConfig::default()).unwrap();
        let volume = Volume::single(disk).unwrap();
        let channel = context.channel(&volume, 64, Stamp::Batch).unwrap();
        Rig { channel, _context: context, script, unit, _dir: dir }
    }

    fn judge(&self, verdict: RequestVerdict) {
        self.script.lock().unwrap().verdict = Some(verdict);
    }

    fn pardon(&self) {
        self.script.lock().unwrap().verdict = None;
    }

    fn submit(&mut self, bio: Bio) {
        self.channel.submit(bio).unwrap();
    }

    /// Statuses by the bios' numbers, when all are back.
    fn drain(&mut self) -> Vec<Status> {
        let mut done = Vec::new();
        let all = self.channel.in_flight() as usize;
        self.channel.wait(all, |back| done.push((back.user_data, back.status)));
        done.sort_by_key(|(number, _)| *number);
        done.into_iter().map(|(_, status)| status).collect()
    }

    fn run(&mut self, bio: Bio) -> Status {
        self.submit(bio);
        self.drain()[0]
    }

    /// The operations so far, which are forgotten.
    fn ops(&self) -> Vec<Noted> {
        std::mem::take(&mut self.script.lock().unwrap().ops)
    }
}

fn write() -> Bio {
    Bio::write(0, Buffer::new(8192))
}

fn durable() -> Bio {
    write().with_flags(OpFlags::FUA)
}

fn syncs_fail(op: Noted) -> Option<i32> {
    (op == Noted::Sync).then_some(-libc::EIO)
}

#[test]
fn failed_sync_fails_its_flush_and_later_durable_writes() {
    let mut rig = Rig::new();
    rig.judge(syncs_fail);
    assert_eq!(rig.run(Bio::flush()), Status::IoError);
    // The kernel has reported the lost write once, so the next sync would succeed.
    rig.pardon();
    rig.ops();
    assert_eq!(rig.run(Bio::flush()), Status::IoError);
    assert_eq!(rig.run(durable()), Status::IoError);
    assert_eq!(rig.ops().len(), 0, "nothing is tried");
    assert_eq!(rig.run(write()), Status::Ok);
    assert_eq!(rig.run(Bio::read(0, Buffer::new(8192))), Status::Ok);
}

#[test]
fn a_sync_for_which_there_is_no_space_has_lost_writes_too() {
    let mut rig = Rig::new();
    rig.judge(|_| Some(-libc::ENOSPC));
    assert_eq!(rig.run(Bio::flush()), Status::NoSpace);
    rig.pardon();
    assert_eq!(rig.run(Bio::flush()), Status::IoError);
}

#[test]
fn durable_write_that_fails_taints_drive_and_full_one_does_not() {
    let mut rig = Rig::new();
    rig.judge(|_| Some(-libc::ENOSPC));
    assert_eq!(rig.run(durable()), Status::NoSpace);
    rig.pardon();
    assert_eq!(rig.run(Bio::flush()), Status::Ok);
    rig.judge(|_| Some(-libc::EIO));
    assert_eq!(rig.run(write()), Status::IoError);
    rig.pardon();
    assert_eq!(rig.run(Bio::flush()), Status::Ok, "a write of which nothing was promised");
    rig.judge(|_| Some(-libc::EIO));
    assert_eq!(rig.run(durable()), Status::IoError);
    rig.pardon();
    assert_eq!(rig.run(Bio::flush()), Status::IoError);
}

#[test]
fn a_flush_whose_report_went_to_another_one_fails_too() {
    let mut rig = Rig::new();
    // A sync has ended without an error. Before the queue sees that, a durable write gets the
    // report of the lost write.
    rig.script.lock().unwrap().held = Some(|op| op == Noted::Sync);
    rig.judge(|op| matches!(op, Noted::Write(..)).then_some(-libc::EIO));
    rig.submit(Bio::flush().with_user_data(0));
    rig.submit(durable().with_user_data(1));
    let mut first = Vec::new();
    rig.channel.wait(1, |done| first.push((done.user_data, done.status)));
    assert_eq!(first, [(1, Status::IoError)]);
    rig.script.lock().unwrap().held = None;
    assert_eq!(rig.drain(), [Status::IoError]);
}

#[test]
fn a_durable_write_says_so_to_the_system_until_its_last_byte() {
    let mut rig = Rig::new();
    // The first call moves half of it.
    rig.judge(|op| matches!(op, Noted::Write(_, 8192, _)).then_some(4096));
    assert_eq!(rig.run(durable()), Status::Ok);
    assert_eq!(rig.run(write()), Status::Ok);
    let halves = |flags| [Noted::Write(0, 8192, flags), Noted::Write(4096, 4096, flags)];
    assert_eq!(rig.ops(), [halves(libc::RWF_DSYNC), halves(0)].concat());
}

#[test]
fn a_short_transfer_goes_on_at_a_whole_unit_of_direct_io() {
    let mut rig = Rig::new();
    let unit = rig.unit;
    rig.judge(|op| matches!(op, Noted::Read(0, _)).then_some(4096 + 100));
    assert_eq!(rig.run(Bio::read(0, Buffer::new(16384))), Status::Ok);
    let next = (4096 + 100) / unit * unit;
    assert_eq!(rig.ops(), [Noted::Read(0, 16384), Noted::Read(next, 16384 - next as u32)]);
    if unit > 100 {
        // That is no progress.
        rig.judge(|_| Some(100));
        assert_eq!(rig.run(Bio::read(0, Buffer::new(16384))), Status::IoError);
        assert_eq!(rig.ops().len(), 1);
    }
}

#[test]
fn what_is_given_up_is_not_started_again() {
    let mut rig = Rig::with_timeout(Duration::from_millis(40));
    rig.script.lock().unwrap().held = Some(|op| matches!(op, Noted::Read(..)));
    rig.judge(|op| matches!(op, Noted::Read(..)).then_some(4096));
    let bio = Bio::read(0, Buffer::new(16384));
    assert_eq!(rig.run(bio), Status::TimedOut);
    assert_eq!(rig.channel.quarantined_bios(), 1);
    rig.script.lock().unwrap().held = None;
    let start_ns = Native::now();
    while rig.channel.quarantined_bios() > 0 {
        assert!(Native::now() - start_ns < 10_000_000_000, "the drive never confirms");
        rig.channel.poll(|done| panic!("{done:?}"));
        Native::spin_until(Native::now() + 1_000_000, || false);
        rig.channel.tick();
    }
    assert_eq!(rig.ops(), [Noted::Read(0, 16384)]);
}

#[test]
fn drive_whose_file_name_was_taken_cannot_grow() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("d");
    let file = |path: &std::path::Path, mib: u64| {
        std::fs::File::create(path).unwrap().set_len(mib << 20).unwrap();
    };
    file(&path, 1);
    let drive = FileDriver::open(FileConfig { path: path.clone(), ..FileConfig::default() });
    let drive = drive.unwrap();
    assert_eq!(drive.revalidate().unwrap(), 2048);
    let other = dir.path().join("other");
    file(&other, 2);
    std::fs::hard_link(&path, dir.path().join("kept")).unwrap();
    std::fs::rename(&other, &path).unwrap();
    let said = drive.revalidate().unwrap_err().to_string();
    assert!(said.contains("another file has this name now; the drive still serves"), "{said}");
    // The file that is open may grow under its other name.
    let kept = std::fs::OpenOptions::new().write(true).open(dir.path().join("kept")).unwrap();
    kept.set_len(3 << 20).unwrap();
    assert_eq!(drive.revalidate().unwrap(), 3 << 11);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(drive.revalidate().unwrap(), 3 << 11);
}

#[test]
fn forbidden_read_is_an_io_error_and_write_a_permission_one() {
    let mut rig = Rig::new();
    rig.judge(|_| Some(-libc::EPERM));
    assert_eq!(rig.run(Bio::read(0, Buffer::new(8192))), Status::IoError);
    assert_eq!(rig.run(write()), Status::ReadOnly);
}

#[test]
fn queues_share_tags_of_device_that_one_of_them_could_use_up() {
    let queues = |depth, tags| HwQueues { count: 3, depth, kind: QueueKind::OwnerOnly, tags };
    let own = queues(128, TagScope::PerQueue);
    assert_eq!(within(None, own), own);
    assert_eq!(within(Some(129), own), own, "none may have more than its depth");
    assert_eq!(within(Some(128), own), queues(128, TagScope::PerDrive));
    assert_eq!(within(Some(1), own), queues(1, TagScope::PerDrive));
}
