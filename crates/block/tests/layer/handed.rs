//! Workers on scripted drives: who is woken by a batch, how much counts as waiting, the requests
//! that reach the drive and their order, and who serves them when the worker goes.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::support::script::{Asked, HeardBell, ScriptDrive, answer_after, turn, turns_taken};
use crate::support::thread_of;
use millrace_block::{
    Bio, Buffer, Channel, ChannelConfig, Disk, DiskConfig, IoThread, Layout, Op, QueueKind,
    Serving, ServingConfig, Spread, Status, Volume, Worker,
};
use millrace_machine::{Machine, Native, Order, Word};

const KINDS: [QueueKind; 2] = [QueueKind::AnyThread, QueueKind::OwnerOnly];

/// A stripe of two drives in chunks of 8 sectors, a thread that submits, and a worker.
struct Rig {
    drives: [ScriptDrive; 2],
    disks: Vec<Arc<Disk<Native>>>,
    channel: Channel<Native>,
    bell: HeardBell,
    worker: Worker<Native>,
    worker_bell: HeardBell,
}

fn worker(owner: u64, bell: &HeardBell) -> Worker<Native> {
    Worker::new(&IoThread { number: 0, owner, bell: Arc::clone(&bell.bell), turn: None })
}

impl Rig {
    /// Batches of `handed` bios and more go to the worker.
    fn new(kind: QueueKind, queues: u16, handed: u32) -> Rig {
        let cpu = Native::topology().cpus()[0].id;
        let drives = [(); 2].map(|()| {
            let mut drive = ScriptDrive::new(queues, 8);
            drive.hw.kind = kind;
            drive
        });
        let config = DiskConfig::<Native> {
            worker: Some(cpu),
            io_threads: 1,
            // With one hardware queue it is fed by one.
            software_queues: if queues == 1 { Spread::One } else { Spread::Core },
            ..DiskConfig::default()
        };
        let disk =
            |drive: &ScriptDrive| Disk::new(Box::new(drive.clone()), config.clone()).unwrap();
        let disks: Vec<_> = drives.iter().map(disk).collect();
        let serving =
            ServingConfig { plug_low: handed / 2, ..ServingConfig::of(Serving::PerDrive) };
        let layout = Layout::Stripe { chunk_sectors: 8 };
        let volume = Volume::with_serving("v", layout, disks.clone(), serving).unwrap();
        let (bell, worker_bell) = (HeardBell::new(), HeardBell::new());
        disks.iter().for_each(|disk| disk.claim(&thread_of(1, &bell.bell)).unwrap());
        let thread = IoThread { number: 0, owner: 1, bell: Arc::clone(&bell.bell), turn: None };
        let config = ChannelConfig { thread: Some(thread), ..ChannelConfig::default() };
        let channel = Channel::open(&volume, config).unwrap();
        let mut worker = worker(2, &worker_bell);
        disks.iter().for_each(|disk| assert!(worker.serve(disk).unwrap()));
        Rig { drives, disks, channel, bell, worker, worker_bell }
    }

    /// Reads of whole chunks of the first drive, in one batch; whether that wakes the worker.
    fn read(&mut self, chunks: &[u64]) -> bool {
        let channel = &mut self.channel;
        self.worker_bell.rings(|| {
            for chunk in chunks {
                channel.submit(Bio::read(chunk * 16, Buffer::new(4096))).unwrap();
            }
            channel.flush();
        })
    }

    /// Requests that the first drive took so far, as first chunk and number of chunks.
    fn took(&self) -> Vec<(u64, u32)> {
        let log = &self.drives[0].lock().log;
        let took = log.iter().filter_map(|asked| match asked {
            Asked::Took(given) => Some((given.sector / 8, given.nr_sectors / 8)),
            _ => None,
        });
        took.collect()
    }

    fn answer(&self) {
        self.drives.iter().for_each(|drive| drive.lock().answers = usize::MAX);
    }

    fn ended(&mut self) -> usize {
        self.channel.poll(|done| assert_eq!(done.status, Status::Ok))
    }
}

#[test]
fn woken_worker_sends_sorted_merged_work_and_wakes_submitters() {
    for kind in KINDS {
        let mut rig = Rig::new(kind, 8, 2);
        let mut second = worker(3, &rig.worker_bell);
        assert!(!second.serve(&rig.disks[0]).unwrap(), "one is there");
        assert!(!rig.worker.has_work() && rig.disks[0].has_worker());
        for (round, waiting) in [5, 10, 15].into_iter().enumerate() {
            assert!(rig.read(&[30, 11, 20, 10, 40]), "{kind:?}");
            assert_eq!((rig.disks[0].waiting(), rig.disks[1].waiting()), (5, 0), "{kind:?}");
            assert!(rig.worker.has_work() && !rig.channel.has_work(), "{kind:?}");
            assert_eq!(rig.took().len(), 4 * round, "{kind:?}: not before its turn");
            rig.worker.turn();
            let sorted = [(10, 2), (20, 1), (30, 1), (40, 1)];
            assert_eq!(rig.took()[4 * round..], sorted, "{kind:?}");
            assert_eq!(rig.disks[0].waiting(), 0, "{kind:?}");
            assert!(!rig.worker.has_work(), "{kind:?}");
            assert_eq!(rig.ended(), 0);
            rig.drives[0].lock().answers = 4;
            let turn = || rig.worker.turn();
            assert!(rig.bell.rings(turn), "{kind:?}");
            assert_eq!(rig.ended(), 5, "{kind:?}");
            let stats = rig.disks[0].stats();
            assert_eq!((stats.queued(), stats.ios()), (waiting, waiting), "{kind:?}");
            assert_eq!(stats.ops[Op::Read as usize].merges, 1 + round as u64, "{kind:?}");
        }
    }
}

#[test]
fn work_not_yet_due_waits_and_a_frozen_drive_gets_nothing() {
    for kind in KINDS {
        let mut rig = Rig::new(kind, 8, 2);
        rig.disks[0].quiesce();
        for handed in [3, 6] {
            rig.read(&[10, 30, 50]);
            rig.worker.turn();
            assert_eq!((rig.disks[0].waiting(), rig.took().len()), (handed, 0), "{kind:?}");
        }
        rig.disks[0].freeze();
        assert!(!rig.read(&[70, 90]), "{kind:?}");
        rig.disks[0].unquiesce();
        rig.answer();
        rig.worker.turn();
        assert_eq!((rig.disks[0].waiting(), rig.took().len()), (0, 6), "{kind:?}");
        assert!(rig.disks[0].is_drained(), "{kind:?}");
        rig.disks[0].unfreeze();
        assert_eq!(rig.ended(), 6, "{kind:?}");
        while rig.channel.in_flight() > 0 {
            rig.worker.turn();
            rig.ended();
        }
        assert_eq!((rig.disks[0].waiting(), rig.took().len()), (0, 8), "{kind:?}");
    }
}

#[test]
fn small_batch_is_served_by_its_submitter_in_queue_of_its_own() {
    for kind in KINDS {
        let mut rig = Rig::new(kind, 8, 4);
        assert!(!rig.read(&[10, 20]), "{kind:?}");
        let inside: Vec<u16> = rig.drives[0].lock().inside.iter().map(|one| one.queue).collect();
        assert_eq!((inside, rig.disks[0].waiting()), (vec![0, 0], 0), "{kind:?}");
        rig.answer();
        assert_eq!(rig.ended(), 2, "{kind:?}");
    }
}

#[test]
fn taking_part_of_handed_work_wakes_the_worker() {
    // Submitter and worker share one hardware queue.
    let mut rig = Rig::new(QueueKind::AnyThread, 1, 4);
    for round in 0..3 {
        assert!(rig.read(&[10, 20, 30, 40]));
        assert!(rig.read(&[50]), "its completions would be nobody's");
        assert_eq!((rig.took().len(), rig.disks[0].waiting()), (5 * round + 5, 0));
        assert!(rig.worker.has_work(), "round {round}");
        rig.drives[0].lock().answers = 5;
        rig.worker.turn();
        assert!(!rig.worker.has_work(), "round {round}");
        assert_eq!(rig.ended(), 5, "round {round}");
    }
    // Bios that the drive answers at once leave no work for the worker.
    rig.answer();
    assert!(rig.read(&[10, 20, 30, 40]));
    assert!(!rig.read(&[50]));
    assert_eq!(rig.ended(), 5);
    // Bios that the submitter dispatches itself leave none either; they are sorted and merged too.
    rig.worker.turn();
    rig.drives[0].lock().answers = 0;
    let before = rig.took().len();
    assert!(!rig.read(&[80, 61, 60]));
    assert_eq!(rig.took()[before..], [(60, 2), (80, 1)]);
    rig.answer();
    assert_eq!(rig.ended(), 3);
}

#[test]
fn work_before_a_leaving_worker_wakes_its_submitter() {
    for kind in KINDS {
        let mut rig = Rig::new(kind, 8, 2);
        rig.disks[0].quiesce();
        rig.read(&[10, 30]);
        rig.worker.turn();
        rig.read(&[50, 70, 90]);
        assert!(!rig.channel.has_work(), "{kind:?}: it is the worker's");
        let close = || rig.worker.close();
        assert!(rig.bell.rings(close), "{kind:?}");
        assert!(!rig.disks[0].has_worker(), "{kind:?}");
        let Rig { drives, disks, mut channel, mut bell, worker: first, mut worker_bell } = rig;
        let rung = bell.rings(|| drop(first));
        assert!(rung || kind == QueueKind::AnyThread);
        assert!(channel.has_work(), "{kind:?}");
        disks[0].unquiesce();
        channel.poll(|_| ());
        assert!(!worker_bell.rings(|| assert_eq!(channel.poll(|_| ()), 0)), "it is gone");
        assert_eq!((drives[0].lock().inside.len(), disks[0].waiting()), (5, 0), "{kind:?}");
        drives[0].lock().answers = 5;
        assert_eq!(channel.wait(5, |done| assert_eq!(done.status, Status::Ok)), 5, "{kind:?}");
        let mut next = worker(3, &worker_bell);
        assert!(next.serve(&disks[0]).unwrap(), "{kind:?}: the place is free");
        assert!(disks[0].is_drained() && disks[0].tags_in_use() == 0, "{kind:?}");
    }
}

#[test]
fn worker_that_goes_waits_for_what_drive_has_from_its_own_queue() {
    let mut rig = Rig::new(QueueKind::OwnerOnly, 8, 2);
    rig.read(&[10, 30, 50]);
    rig.worker.turn();
    assert_eq!(rig.drives[0].lock().inside.len(), 3);
    assert!(!rig.worker.is_idle());
    rig.answer();
    let Rig { drives, mut channel, worker, .. } = rig;
    drop(worker);
    assert_eq!(drives[0].lock().inside.len(), 0);
    assert_eq!(channel.poll(|done| assert_eq!(done.status, Status::Ok)), 3);
}

#[test]
fn a_worker_that_goes_turns_its_drives_until_they_have_answered() {
    for turns in [1, 2, 20] {
        let mut rig = Rig::new(QueueKind::OwnerOnly, 8, 2);
        let bell = Arc::clone(&rig.worker_bell.bell);
        let thread = IoThread { number: 0, owner: 4, bell, turn: Some(turn) };
        rig.worker.close();
        rig.worker = Worker::new(&thread);
        rig.disks.iter().for_each(|disk| assert!(rig.worker.serve(disk).unwrap()));
        rig.read(&[10, 30, 50]);
        rig.worker.turn();
        answer_after(&rig.drives[0], turns);
        let Rig { drives, mut channel, worker, .. } = rig;
        let start_ns = Native::now();
        drop(worker);
        let paused_ns = (turns as u64 - 1) * 100_000;
        assert!(Native::now() - start_ns >= paused_ns, "a tenth of a millisecond between looks");
        let taken = turns_taken();
        assert!(taken.len() >= turns && !taken.contains(&true), "{taken:?}: it must not sleep");
        assert_eq!(drives[0].lock().inside.len(), 0, "{turns} turns");
        assert_eq!(channel.poll(|done| assert_eq!(done.status, Status::Ok)), 3, "{turns} turns");
    }
}

#[test]
fn worker_looking_before_sleep_finds_work_or_its_stop_at_once() {
    let rig = Rig::new(QueueKind::AnyThread, 8, 2);
    rig.answer();
    let Rig { mut channel, mut worker, .. } = rig;
    let (stop, start_ns) = (Arc::new(<Native as Machine>::Word::new(0)), Native::now());
    let heard = Arc::clone(&stop);
    // The worker spins for longer than the whole test may take.
    let serving = thread::spawn(move || worker.run(&heard, Duration::from_secs(20)));
    for _ in 0..3 {
        (0..4).for_each(|n| channel.submit(Bio::read(n * 32, Buffer::new(512))).unwrap());
        assert_eq!(channel.wait(4, |done| assert_eq!(done.status, Status::Ok)), 4);
    }
    stop.store(1, Order::SeqCst);
    serving.join().unwrap();
    assert!(Native::now() - start_ns < 15_000_000_000);
}

#[test]
fn idle_worker_sleeps_until_it_is_handed_something() {
    let rig = Rig::new(QueueKind::AnyThread, 8, 2);
    rig.answer();
    let Rig { mut channel, mut worker, mut worker_bell, .. } = rig;
    let stop = Arc::new(<Native as Machine>::Word::new(0));
    let heard = Arc::clone(&stop);
    let serving = thread::spawn(move || worker.run(&heard, Duration::ZERO));
    // The worker may be awake at any one look and arm its bell by chance, but not five times in a
    // row.
    let mut rung = 0;
    let sleeps = (0..500).any(|_| {
        thread::sleep(Duration::from_millis(2));
        (0..4).for_each(|n| channel.submit(Bio::read(n * 32, Buffer::new(512))).unwrap());
        channel.flush();
        let rang = worker_bell.heard();
        if rang {
            worker_bell.wake();
        }
        while channel.in_flight() > 0 {
            channel.poll(|done| assert_eq!(done.status, Status::Ok));
        }
        rung = if rang { rung + 1 } else { 0 };
        rung == 5
    });
    stop.store(1, Order::SeqCst);
    worker_bell.wake();
    serving.join().unwrap();
    assert!(sleeps);
}
