//! Workers and back pressure, on `TestDrive`.
//!
//! Submitters of a volume whose drives are served by other threads are let in again after back
//! pressure, lose nothing when a worker goes, and never make more I/O wait than the limit, however
//! much they submit.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use crate::support::{Knobs, TestDrive};
use millrace_block::{
    Bio, Buffer, Channel, ChannelConfig, Completion, Disk, DiskConfig, IoThread, Layout, Reject,
    Serving, ServingConfig, Volume, Worker,
};
use millrace_machine::{CpuId, Doorbell, Machine, Native, NativeParker, Parker, Word};

/// A stripe of two drives with a place for a worker each.
fn volume(serving: ServingConfig) -> Arc<Volume<Native>> {
    stripe(2, serving).0
}

/// A stripe of drives with a place for a worker each, and the drives' knobs.
fn stripe(drives: usize, serving: ServingConfig) -> (Arc<Volume<Native>>, Vec<Arc<Knobs>>) {
    let disk = |number| {
        let cpu = Native::topology().cpus()[0].id;
        let name = format!("d{number}");
        let config = DiskConfig { name, worker: Some(CpuId(cpu.0)), ..DiskConfig::default() };
        let drive = TestDrive::new(4096);
        let knobs = Arc::clone(&drive.knobs);
        (Disk::new(Box::new(drive), config).expect("a valid drive"), knobs)
    };
    let (disks, knobs) = (0..drives).map(disk).unzip();
    let layout = Layout::Stripe { chunk_sectors: 8 };
    (Volume::with_serving("v", layout, disks, serving).expect("several disks"), knobs)
}

fn worker(volume: &Volume<Native>, owner: u64) -> Worker<Native> {
    worker_of(volume.disks(), owner)
}

fn worker_of(disks: &[Arc<Disk<Native>>], owner: u64) -> Worker<Native> {
    let bell = Arc::new(Doorbell::new(NativeParker::new()));
    let thread = IoThread { number: 0, owner, bell, turn: None };
    let mut worker = Worker::new(&thread);
    disks.iter().for_each(|disk| assert!(worker.serve(disk).expect("queues are open")));
    worker
}

/// Submits reads of blocks that are no neighbours, and starts them.
fn read(channel: &mut Channel<Native>, bios: u64) {
    let bio = |n| Bio::read(n * 24, Buffer::new(4096));
    (0..bios).for_each(|n| channel.submit(bio(n)).map_err(|r| r.reason).expect("room"));
    channel.flush();
}

#[test]
fn channel_with_nothing_in_flight_is_let_in_however_much_waits() {
    let serving = ServingConfig {
        plug_low: 1,
        pressure_high: 1,
        pressure_low: 0,
        ..ServingConfig::of(Serving::PerDrive)
    };
    let volume = volume(serving);
    let mut worker = worker(&volume, 1);
    let open = || Channel::open(&volume, ChannelConfig::default()).expect("its queues are served");
    let (mut first, mut second) = (open(), open());
    read(&mut first, 16);
    read(&mut second, 4);
    assert_eq!(volume.waiting(), 20);
    let refused = second.submit(Bio::read(0, Buffer::new(512))).expect_err("too much waits");
    assert_eq!(refused.reason, Reject::Full);
    worker.turn();
    assert_eq!((first.poll(|_| ()), second.poll(|_| ()), volume.waiting()), (16, 4, 0));
    read(&mut first, 16);
    second.submit(refused.bio).map_err(|r| r.reason).expect("it has nothing in flight");
    let more = second.submit(Bio::read(0, Buffer::new(512))).expect_err("now it has");
    assert_eq!(more.reason, Reject::Full);
    worker.turn();
    assert_eq!((first.wait(16, |_| ()), second.wait(1, |_| ())), (16, 1));
}

#[test]
fn what_worker_was_handed_is_served_by_submitters_when_it_goes() {
    let volume = volume(ServingConfig { plug_low: 1, ..ServingConfig::of(Serving::PerDrive) });
    let mut worker = worker(&volume, 1);
    let mut channel =
        Channel::open(&volume, ChannelConfig::default()).expect("its queues are served");
    read(&mut channel, 32);
    assert_eq!(volume.waiting(), 32);
    worker.close();
    assert!(worker.is_idle() && !volume.disks()[0].has_worker());
    let mut next = self::worker(&volume, 2);
    drop(worker);
    assert!(volume.disks()[0].has_worker(), "the next one stays");
    next.close();
    assert_eq!(channel.wait(32, |done| assert!(done.status.is_ok())), 32);
}

/// A submitter that never waits on its own, and the completions that it has seen.
struct Flood {
    channel: Channel<Native>,
    /// Completed bios, for reuse; the total allocated is the most that were ever in flight.
    spare: Vec<Bio>,
    made: u32,
    sent: u64,
    /// For each bio, by its user data: has it completed?
    back: Vec<bool>,
    most_waiting: u64,
}

impl Flood {
    const DRIVES: usize = 4;
    const BIOS: u64 = 200_000;
    /// More than the drives and the pressure limits admit, so that those are the bound.
    const DEPTH: u32 = 4096;

    fn next(&mut self) -> Bio {
        let mut bio = self.spare.pop().unwrap_or_else(|| {
            self.made += 1;
            Bio::read(0, Buffer::new(512))
        });
        // Takes all drives in turn, with no neighbours.
        bio.set_sector(self.sent * 24 % (Flood::DRIVES as u64 * 4096));
        self.sent += 1;
        bio.with_user_data(self.sent - 1)
    }

    fn take(back: &mut [bool], spare: &mut Vec<Bio>, done: Completion) {
        assert!(done.status.is_ok());
        assert!(!std::mem::replace(&mut back[done.user_data as usize], true), "completed twice");
        spare.push(done.bio);
    }

    /// Submits until it is refused; gives the refused bio back.
    fn submit_until_refused(&mut self) -> Bio {
        while self.sent < Flood::BIOS {
            let bio = self.next();
            let Err(refused) = self.channel.submit(bio) else { continue };
            assert_eq!(refused.reason, Reject::Full);
            return refused.bio;
        }
        panic!("never refused");
    }

    fn submit_wait(&mut self, bio: Bio) {
        let (back, spare) = (&mut self.back, &mut self.spare);
        let submitted = self.channel.submit_wait(bio, |done| Flood::take(back, spare, done));
        submitted.map_err(|refused| refused.reason).expect("it can be served");
        self.most_waiting = self.most_waiting.max(self.channel.volume().waiting());
        assert!(self.channel.in_flight() <= Flood::DEPTH);
    }
}

#[test]
fn what_waits_and_what_channel_owns_stay_bounded_over_many_bios() {
    let serving = ServingConfig {
        pressure_high: 64,
        pressure_low: 8,
        ..ServingConfig::of(Serving::PerDrive)
    };
    let (volume, knobs) = stripe(Flood::DRIVES, serving);
    let bound = u64::from(serving.pressure_high + serving.plug_high) * Flood::DRIVES as u64;
    // The drives complete nothing at first, so all I/O that is let in waits.
    knobs.iter().for_each(|knobs| knobs.held.store(true, Ordering::SeqCst));
    let stop = Arc::new(<Native as Machine>::Word::new(0));
    let workers = (1..).zip(volume.disks().iter().cloned()).map(|(owner, disk)| {
        let mut worker = worker_of(&[disk], owner);
        let (bell, stop) = (Arc::clone(worker.bell()), Arc::clone(&stop));
        (bell, thread::spawn(move || worker.run(&stop, Duration::ZERO)))
    });
    let workers: Vec<_> = workers.collect();
    let config = ChannelConfig { depth: Flood::DEPTH, ..ChannelConfig::default() };
    let mut flood = Flood {
        channel: Channel::open(&volume, config).expect("its queues are served"),
        spare: Vec::new(),
        made: 0,
        sent: 0,
        back: vec![false; Flood::BIOS as usize],
        most_waiting: 0,
    };
    let refused = flood.submit_until_refused();
    let waiting = volume.waiting();
    assert!((1..=bound).contains(&waiting), "{waiting} wait when a bio is refused, of {bound}");
    assert!(flood.sent < Flood::DEPTH.into(), "refused for want of room in the channel");
    knobs.iter().for_each(|knobs| knobs.held.store(false, Ordering::SeqCst));
    volume.disks().iter().for_each(|disk| assert!(disk.has_worker()));
    workers.iter().for_each(|(bell, _)| bell.ring());
    flood.submit_wait(refused);
    while flood.sent < Flood::BIOS {
        let bio = flood.next();
        flood.submit_wait(bio);
    }
    let (back, spare) = (&mut flood.back, &mut flood.spare);
    flood.channel.wait(usize::MAX, |done| Flood::take(back, spare, done));
    assert!(flood.most_waiting <= bound, "{} waited, of {bound}", flood.most_waiting);
    assert!(flood.back.iter().all(|back| *back), "some never came back");
    assert!(flood.made <= Flood::DEPTH + 1, "{} bios, one of them the next", flood.made);
    assert_eq!((volume.waiting(), flood.spare.len()), (0, flood.made as usize));
    stop.store(1, millrace_machine::Order::SeqCst);
    for (bell, thread) in workers {
        bell.ring();
        thread.join().expect("a worker panicked");
    }
}
