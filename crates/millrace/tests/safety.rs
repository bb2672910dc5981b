//! Programs in safe code that once crashed, ended the process, or lost other programs' data.
//!
//! This is a test program of its own, since a failure here ends the process, and since it also runs
//! under AddressSanitizer (docs/lab/checked.md). Everything goes through the facade, like a program
//! written from the documentation. A wait that would hang fails through `within`.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, missing_docs)]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::pin::pin;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use millrace::block::IoThread;
use millrace::driver::{
    CompletionBatch, Dispatch, Driver, DriverQueue, Expired, HwQueues, QueueKind, Request, Tag,
    TagScope,
};
use millrace::machine::{Doorbell, Parker};
use millrace::scheduler::{
    BioChain, ChainBatch, CompletedChain, Leftover, Scheduler, SchedulerPick,
};
use millrace::{
    AfterCompletion, AsyncDevice, Bio, BlockDevice, Buffer, Channel, ChannelConfig, CpuId, Disk,
    DiskConfig, DriveWorkers, Error, ErrorKind, GroupId, IoConfig, IoContext, Layout, Native,
    OpenConfig, Opened, Pinning, QueueLimits, Sector, Serving, ServingConfig, Stamp, Status,
    Topology, Volume, VolumeOptions, build_volume,
};

/// Runs a body on a thread of its own, which has to end in time.
fn within(body: impl FnOnce() + Send + 'static) {
    let (ended, end) = mpsc::channel();
    let thread = thread::spawn(move || {
        body();
        let _ = ended.send(());
    });
    let came = end.recv_timeout(Duration::from_secs(60));
    assert_ne!(came, Err(mpsc::RecvTimeoutError::Timeout), "it hangs");
    thread.join().unwrap();
}

/// Does the call panic?
fn panics<T>(call: impl FnOnce() -> T) -> bool {
    catch_unwind(AssertUnwindSafe(call)).is_err()
}

fn volume_of(spec: &str, io_threads: u16) -> Arc<Volume> {
    let options = VolumeOptions { io_threads, ..VolumeOptions::default() };
    build_volume("v", Layout::Linear, &[spec.parse().unwrap()], &options).unwrap().0
}

fn file(path: &Path, size: &str) -> String {
    format!("file:path={},size={size}", path.display())
}

fn open(volume: &Arc<Volume>) -> Channel {
    let mut channel = Channel::open(volume, ChannelConfig::default()).unwrap();
    // Where I/O is lost, a test need not wait for it for long.
    channel.set_drain_timeout(Duration::from_millis(50));
    channel
}

fn filled(bytes: usize, with: u8) -> Buffer {
    let mut buffer = Buffer::new(bytes);
    buffer.fill(with);
    buffer
}

/// Submits four reads that do not follow each other, and starts them.
fn start_reads(channel: &mut Channel) {
    (0..4).for_each(|at| channel.submit(Bio::read(at * 16, Buffer::new(4096))).unwrap());
    channel.flush();
}

#[test]
fn a_panic_in_the_closure_of_any_call_leaves_the_channel_usable() {
    within(|| {
        let mut channel = open(&volume_of("ram:size=1m", 0));
        start_reads(&mut channel);
        assert!(panics(|| channel.poll(|_| panic!("in poll"))));
        assert_eq!(channel.in_flight(), 3);
        assert!(panics(|| channel.wait(1, |_| panic!("in wait"))));
        assert_eq!(channel.in_flight(), 2);
        assert!(panics(|| channel.poll_again(|_, _| panic!("in poll_again"))));
        assert_eq!(channel.in_flight(), 1);
        let mut again = 3;
        while channel.in_flight() > 0 {
            channel.poll_again(|_, status| {
                assert!(status.is_ok());
                again -= 1;
                if again > 0 { AfterCompletion::Submit } else { AfterCompletion::Drop }
            });
        }
        assert_eq!(again, 0);
    });
}

#[test]
fn panic_in_poll_again_lets_resubmitted_bios_end() {
    within(|| {
        let folder = tempfile::tempdir().unwrap();
        for spec in ["ram:size=1m".to_owned(), file(&folder.path().join("d"), "1m")] {
            let mut channel = open(&volume_of(&spec, 0));
            start_reads(&mut channel);
            let mut seen = 0;
            let mut turn = || {
                channel.poll_again(|_, _| {
                    seen += 1;
                    assert!(seen < 3, "in poll_again");
                    AfterCompletion::Submit
                })
            };
            while !panics(&mut turn) {}
            assert_eq!((channel.wait(9, |done| assert!(done.status.is_ok())), seen), (3, 3));
        }
    });
}

thread_local! {
    static CHANNEL: RefCell<Option<Channel>> = const { RefCell::new(None) };
    static DEVICE: RefCell<Option<BlockDevice>> = const { RefCell::new(None) };
    static AT_END: RefCell<Option<OpenedAtEnd>> = const { RefCell::new(None) };
}

/// Opens and uses a channel when its thread ends.
struct OpenedAtEnd(Arc<Volume>, mpsc::Sender<usize>);

impl Drop for OpenedAtEnd {
    fn drop(&mut self) {
        let mut channel = open(&self.0);
        start_reads(&mut channel);
        let _ = self.1.send(channel.wait(4, |done| assert!(done.status.is_ok())));
    }
}

#[test]
fn a_channel_of_a_thread_local_ends_its_io_when_the_thread_ends() {
    within(|| {
        let folder = tempfile::tempdir().unwrap();
        let volume = volume_of(&file(&folder.path().join("d"), "1m"), 1);
        for turn in 1..3 {
            let volume = Arc::clone(&volume);
            let thread = thread::spawn(move || {
                CHANNEL.with_borrow_mut(|channel| {
                    let channel = channel.get_or_insert_with(|| open(&volume));
                    channel.set_drain_timeout(Duration::from_secs(30));
                    for at in 0..16 {
                        channel.submit(Bio::write(at * 8, filled(4096, turn))).unwrap();
                    }
                    channel.flush();
                });
            });
            thread.join().unwrap();
            let written = fs::read(folder.path().join("d")).unwrap();
            assert!(written[..16 * 4096].iter().all(|byte| *byte == turn), "{turn}");
        }
        // The only queue is free again, and a device takes it along in the same way.
        let again = Arc::clone(&volume);
        let thread = thread::spawn(move || {
            DEVICE.with_borrow_mut(|device| {
                let device = device.get_or_insert_with(|| BlockDevice::open(&again).unwrap());
                device.write_at(0, &[9; 512]).unwrap();
            });
        });
        thread.join().unwrap();
        let (ended, end) = mpsc::channel();
        let thread = thread::spawn(move || AT_END.set(Some(OpenedAtEnd(volume, ended))));
        thread.join().unwrap();
        assert_eq!(end.recv(), Ok(4));
    });
}

#[test]
fn panicking_thread_with_io_in_flight_leaves_its_queue() {
    within(|| {
        let folder = tempfile::tempdir().unwrap();
        let volume = volume_of(&file(&folder.path().join("d"), "1m"), 1);
        for is_local in [false, true] {
            let volume = Arc::clone(&volume);
            let thread = thread::spawn(move || {
                let mut channel = open(&volume);
                start_reads(&mut channel);
                if is_local {
                    CHANNEL.set(Some(channel));
                }
                panic!("with I/O in flight");
            });
            assert!(thread.join().is_err());
        }
        let mut channel = open(&volume);
        start_reads(&mut channel);
        assert_eq!(channel.wait(4, |done| assert!(done.status.is_ok())), 4);
    });
}

#[test]
fn another_process_may_be_started_while_io_is_in_flight() {
    within(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut channel = open(&volume_of(&file(&folder.path().join("d"), "1m"), 0));
        start_reads(&mut channel);
        assert!(Command::new("true").status().unwrap().success());
        assert_eq!(channel.wait(4, |done| assert!(done.status.is_ok())), 4);
    });
}

/// A first-come, first-served scheduler shared by two drives, which is against the rules: all
/// chains wait in one list, but only one of the drives may complete each.
#[derive(Clone, Default)]
struct Common(Arc<Mutex<VecDeque<BioChain<Native>>>>);

struct CommonQueue {
    chains: Common,
    names: bool,
}

impl Common {
    fn queue(&self, names: bool) -> Box<dyn Scheduler<Native>> {
        Box::new(CommonQueue { chains: self.clone(), names })
    }
}

impl Scheduler<Native> for CommonQueue {
    fn insert(&mut self, batch: &mut ChainBatch<'_, Native>) {
        let mut chains = self.chains.0.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(mut chain) = batch.next() {
            if let Some(last) = chains.back_mut() {
                match batch.merge(last, chain) {
                    Ok(()) => continue,
                    Err(apart) => chain = apart,
                }
            }
            chains.push_back(chain);
        }
    }

    fn next(&mut self, now_ns: u64) -> SchedulerPick<Native> {
        let mut chains = self.chains.0.lock().unwrap_or_else(PoisonError::into_inner);
        match self.names {
            true => chains.pop_front().map_or(SchedulerPick::Nothing, SchedulerPick::Chain),
            false => SchedulerPick::WaitUntil(now_ns + 1_000_000),
        }
    }

    fn completed(&mut self, _: &CompletedChain) {}

    fn pass(&mut self, _: GroupId, _: u64) -> bool {
        false
    }

    fn drain(&mut self, left: &mut Leftover<Native>) {
        let mut chains = self.chains.0.lock().unwrap_or_else(PoisonError::into_inner);
        chains.drain(..).for_each(|chain| left.push(chain));
    }
}

#[test]
fn chain_that_scheduler_of_another_drive_names_goes_to_no_drive() {
    within(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("small");
        let (small, large) =
            (volume_of(&file(&path, "1m"), 0), volume_of(&file(&folder.path().join("l"), "1g"), 0));
        let common = Common::default();
        small.disks()[0].set_own_scheduler(|_| common.queue(true)).unwrap();
        large.disks()[0].set_own_scheduler(|_| common.queue(false)).unwrap();
        let (mut of_small, mut of_large) = (open(&small), open(&large));
        of_large.submit(Bio::write(1_000_000, filled(4096, 7))).unwrap();
        of_large.flush();
        of_small.submit(Bio::write(0, filled(4096, 8))).unwrap();
        assert!(panics(|| of_small.flush()), "it names the chain of the large drive");
        assert_eq!(of_large.wait(1, |done| assert_eq!(done.status, Status::Aborted)), 1);
        assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 20);
        // Its own chain is next.
        assert_eq!(of_small.wait(1, |done| assert!(done.status.is_ok())), 1);
        assert_eq!(fs::read(&path).unwrap()[..4096], [8; 4096]);
        assert!(panics(|| large.disks()[0].set_own_scheduler(|_| common.queue(false)).unwrap()));
    });
}

#[test]
fn chains_of_two_drives_never_merge() {
    within(|| {
        let (first, second) = (volume_of("ram:size=1m", 0), volume_of("ram:size=2m", 0));
        let common = Common::default();
        first.disks()[0].set_own_scheduler(|_| common.queue(false)).unwrap();
        second.disks()[0].set_own_scheduler(|_| common.queue(true)).unwrap();
        let (mut of_first, mut of_second) = (open(&first), open(&second));
        of_first.submit(Bio::write(0, filled(4096, 7))).unwrap();
        of_first.flush();
        of_second.submit(Bio::write(8, filled(4096, 8))).unwrap();
        assert!(panics(|| of_second.flush()));
        assert_eq!(common.0.lock().unwrap().len(), 1, "it was not merged with the first");
        assert_eq!(of_second.wait(1, |done| assert!(done.status.is_ok())), 1);
        assert_eq!(of_first.wait(1, |done| assert_eq!(done.status, Status::Aborted)), 1);
    });
}

#[test]
fn no_thread_closes_queues_of_another_one_by_its_number() {
    within(|| {
        let folder = tempfile::tempdir().unwrap();
        let volume = volume_of(&file(&folder.path().join("d"), "1m"), 1);
        let mut channel = open(&volume);
        start_reads(&mut channel);
        let disk = Arc::clone(&volume.disks()[0]);
        let thread = thread::spawn(move || {
            for owner in 0..1000 {
                let bell = Arc::new(Doorbell::new(Parker::new()));
                disk.bring_down(&IoThread { number: 0, owner, bell, turn: None });
            }
        });
        thread.join().unwrap();
        assert_eq!(channel.wait(4, |done| assert!(done.status.is_ok())), 4);
    });
}

#[test]
fn a_volume_that_was_not_opened_is_an_error() {
    let opened = Opened::open(&OpenConfig::default()).unwrap();
    let error = opened.volume("typo").err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidSetting);
    assert_eq!(error.to_string(), "no volume typo was opened");
}

/// Modes of a faulty drive, in force until changed.
const WORKS: u8 = 0;
const PANICS_AT_REQUESTS: u8 = 1;
const PANICS_AFTER_NAMING: u8 = 2;
const HOLDS: u8 = 3;

/// A drive without data in one of the modes above.
struct Faulty(Arc<AtomicU8>);

impl Faulty {
    fn disk(fault: &Arc<AtomicU8>) -> Arc<Disk<Native>> {
        Disk::new(Box::new(Faulty(Arc::clone(fault))), DiskConfig::default()).unwrap()
    }

    fn volume(fault: &Arc<AtomicU8>) -> Arc<Volume> {
        Volume::new("v", Layout::Linear, vec![Faulty::disk(fault)]).unwrap()
    }
}

impl Driver<Native> for Faulty {
    fn capacity(&self) -> Sector {
        2048
    }
    fn limits(&self) -> QueueLimits {
        QueueLimits::default()
    }
    fn hw_queues(&self, _: &Topology) -> HwQueues {
        HwQueues { count: 64, depth: 32, kind: QueueKind::AnyThread, tags: TagScope::PerQueue }
    }
    fn open_queue(&self, _: u16, _: u32) -> Result<Box<dyn DriverQueue<Native>>, Error> {
        Ok(Box::new(FaultyQueue { fault: Arc::clone(&self.0), inside: VecDeque::new() }))
    }
}

struct FaultyQueue {
    fault: Arc<AtomicU8>,
    inside: VecDeque<Tag>,
}

impl DriverQueue<Native> for FaultyQueue {
    fn queue_rq(&mut self, rq: &Request<Native>) -> Dispatch {
        assert_ne!(self.fault.load(Ordering::SeqCst), PANICS_AT_REQUESTS, "a faulty drive");
        self.inside.push_back(rq.tag());
        Dispatch::Queued
    }
    fn commit_rqs(&mut self) {}
    fn poll(&mut self, batch: &mut CompletionBatch) {
        let fault = self.fault.load(Ordering::SeqCst);
        while fault != HOLDS && !batch.is_full() {
            let Some(tag) = self.inside.pop_front() else { return };
            batch.push(tag, Status::Ok);
            assert_ne!(fault, PANICS_AFTER_NAMING, "a faulty drive");
        }
    }
    fn timeout(&mut self, _: Tag) -> Expired {
        Expired::Extend
    }
}

#[test]
fn panic_of_driver_goes_to_caller_and_loses_that_batch_only() {
    for fault in [PANICS_AT_REQUESTS, PANICS_AFTER_NAMING] {
        // A single bio takes another path than several that are no neighbours.
        for bios in [1, 3] {
            within(move || {
                let faults = Arc::new(AtomicU8::new(fault));
                let volume = Faulty::volume(&faults);
                let (mut channel, mut other) = (open(&volume), open(&volume));
                let submit = |channel: &mut Channel| {
                    for at in 0..bios {
                        channel.submit(Bio::read(at * 16, Buffer::new(4096))).unwrap();
                    }
                };
                submit(&mut channel);
                assert!(panics(|| channel.flush()));
                let lost = channel.in_flight();
                assert!((1..=bios as u32).contains(&lost), "{lost} of {bios}");
                faults.store(WORKS, Ordering::SeqCst);
                submit(&mut other);
                assert_eq!(other.wait(9, |done| assert!(done.status.is_ok())), bios as usize);
            });
        }
    }
}

#[test]
fn driver_panicking_in_polls_ends_its_thread_only() {
    within(|| {
        let thread = thread::spawn(|| {
            let faults = Arc::new(AtomicU8::new(HOLDS));
            let mut channel = open(&Faulty::volume(&faults));
            start_reads(&mut channel);
            faults.store(PANICS_AFTER_NAMING, Ordering::SeqCst);
            // Dropped while the panic goes through here, it does not ask the driver again.
            channel.poll(|_| ());
        });
        assert!(thread.join().is_err());
    });
}

#[test]
fn tags_named_before_a_panic_are_not_taken_for_other_drives() {
    within(|| {
        let (panicking, holding) = (Arc::new(AtomicU8::new(HOLDS)), Arc::new(AtomicU8::new(HOLDS)));
        let disks = vec![Faulty::disk(&panicking), Faulty::disk(&holding)];
        let mut channel = open(&Volume::new("v", Layout::Linear, disks).unwrap());
        for sector in [0, 2048] {
            channel.submit(Bio::read(sector, Buffer::new(4096)).with_user_data(sector)).unwrap();
        }
        channel.flush();
        panicking.store(PANICS_AFTER_NAMING, Ordering::SeqCst);
        assert!(panics(|| channel.poll(|_| ())));
        // Both requests have the first tag of their drives.
        assert_eq!(channel.poll(|done| panic!("{} has ended", done.user_data)), 0);
        holding.store(WORKS, Ordering::SeqCst);
        assert_eq!(channel.poll(|done| assert_eq!(done.user_data, 2048)), 1);
    });
}

#[test]
fn driver_panicking_on_a_worker_is_then_served_by_submitters() {
    within(|| {
        let faults = Arc::new(AtomicU8::new(PANICS_AT_REQUESTS));
        let disk = || {
            let config = DiskConfig { worker: Some(CpuId(0)), ..DiskConfig::default() };
            Disk::new(Box::new(Faulty(Arc::clone(&faults))), config).unwrap()
        };
        let serving = ServingConfig { plug_low: 1, ..ServingConfig::of(Serving::PerDrive) };
        let layout = Layout::Stripe { chunk_sectors: 8 };
        let volume = Volume::with_serving("v", layout, vec![disk(), disk()], serving).unwrap();
        let pinning = Pinning::Free;
        let workers = DriveWorkers::start(volume.disks(), Default::default(), pinning).unwrap();
        let mut channel = open(&volume);
        start_reads(&mut channel);
        while workers.failure().is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        faults.store(WORKS, Ordering::SeqCst);
        let mut other = open(&volume);
        start_reads(&mut other);
        assert_eq!(other.wait(4, |done| assert!(done.status.is_ok())), 4);
    });
}

#[test]
fn objects_dropped_with_io_in_flight_end_it_or_leave_it() {
    within(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d");
        let volume = volume_of(&file(&path, "1m"), 1);
        let mut channel = open(&volume);
        channel.set_drain_timeout(Duration::from_secs(30));
        (0..16).for_each(|at| channel.submit(Bio::write(at * 8, filled(4096, 5))).unwrap());
        drop(channel);
        assert!(fs::read(&path).unwrap()[..16 * 4096].iter().all(|byte| *byte == 5));
        let device = AsyncDevice::start(&volume).unwrap();
        let pending = device.submit(Bio::write(0, filled(4096, 6)));
        drop(device);
        assert!(block_on(pending).status.is_ok());
        // The ring is dropped before the channel, so the request in flight cannot end.
        let mut io = IoContext::new(IoConfig::default()).unwrap();
        let mut channel = io.channel(&volume, 16, Stamp::Batch).unwrap();
        channel.set_drain_timeout(Duration::from_millis(1));
        channel.submit(Bio::read(0, Buffer::new(4096))).unwrap();
        channel.flush();
        drop(io);
        assert!(panics(|| channel.wait(1, |_| ())), "its ring is gone");
        drop(channel);
        let mut channel = open(&volume);
        start_reads(&mut channel);
        assert_eq!(channel.wait(4, |done| assert!(done.status.is_ok())), 4);
    });
}

/// Names chains only to panic.
struct Panicking(VecDeque<BioChain<Native>>);

impl Scheduler<Native> for Panicking {
    fn insert(&mut self, batch: &mut ChainBatch<'_, Native>) {
        self.0.extend(batch);
    }
    fn next(&mut self, _: u64) -> SchedulerPick<Native> {
        let chain = self.0.pop_front();
        panic!("with {chain:?}");
    }
    fn completed(&mut self, _: &CompletedChain) {}
    fn pass(&mut self, _: GroupId, _: u64) -> bool {
        false
    }
    fn drain(&mut self, left: &mut Leftover<Native>) {
        self.0.drain(..).for_each(|chain| left.push(chain));
    }
}

#[test]
fn a_scheduler_that_panics_ends_its_thread_and_not_the_process() {
    within(|| {
        let folder = tempfile::tempdir().unwrap();
        for spec in ["ram:size=1m".to_owned(), file(&folder.path().join("d"), "1m")] {
            let thread = thread::spawn(move || {
                let volume = volume_of(&spec, 0);
                let set =
                    volume.disks()[0].set_own_scheduler(|_| Box::new(Panicking(VecDeque::new())));
                set.unwrap();
                let mut channel = open(&volume);
                start_reads(&mut channel);
            });
            assert!(thread.join().is_err());
        }
    });
}

/// Counts wake-ups, or panics.
struct Waking(Option<mpsc::Sender<()>>);

impl Wake for Waking {
    fn wake(self: Arc<Self>) {
        let woken = self.0.as_ref().expect("a task that panics when it is woken");
        let _ = woken.send(());
    }
}

/// Polls a future until it is done.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let (woken, wakes) = mpsc::channel();
    let waker = Waker::from(Arc::new(Waking(Some(woken))));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        wakes.recv().unwrap();
    }
}

#[test]
fn an_async_device_answers_for_a_driver_that_panics() {
    within(|| {
        let faults = Arc::new(AtomicU8::new(PANICS_AT_REQUESTS));
        let device = AsyncDevice::start(&Faulty::volume(&faults)).unwrap();
        let read = || Bio::read(0, Buffer::new(4096)).with_user_data(5);
        let first = block_on(device.submit(read()));
        assert_eq!((first.status, first.user_data), (Status::Aborted, 5));
        // The thread may be about to end.
        faults.store(WORKS, Ordering::SeqCst);
        assert_eq!(block_on(device.submit(read())).status, Status::Aborted);
    });
}

#[test]
fn a_waker_that_panics_keeps_nobody_else_waiting() {
    within(|| {
        let faults = Arc::new(AtomicU8::new(HOLDS));
        let device = AsyncDevice::start(&Faulty::volume(&faults)).unwrap();
        let read = || Bio::read(0, Buffer::new(4096));
        let waker = Waker::from(Arc::new(Waking(None)));
        let mut pending = pin!(device.submit(read()));
        assert!(pending.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        faults.store(WORKS, Ordering::SeqCst);
        assert!(block_on(device.submit(read())).status.is_ok());
        assert!(block_on(pending).status.is_ok());
    });
}
