//! Several threads inside one hardware queue (`Inside::Each`), on this machine and `TestDrive`.
//!
//! The machine's topology decides to which node a lane belongs; on a machine with one node all
//! lanes share one software queue.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::support::{Knobs, TestDrive, pattern, run};
use millrace_block::baseline::{BaselineConfig, Inside, Stack};
use millrace_block::{
    Bio, Buffer, Channel, ChannelConfig, Disk, DiskConfig, IoThread, Layout, Op, Serving,
    ServingConfig, Spread, Status, Volume,
};
use millrace_machine::{Doorbell, Machine, Native, NativeParker, Parker};

const THREADS: u16 = 4;

/// A disk whose hardware queues `THREADS` threads are inside at once.
fn disk(spread: Spread, stack: Stack, depth: u32) -> (Arc<Disk<Native>>, Arc<Knobs>) {
    let drive = TestDrive { immediate: true, depth, ..TestDrive::new(4096) };
    let knobs = Arc::clone(&drive.knobs);
    let config = DiskConfig {
        software_queues: spread,
        hardware_queues: spread,
        io_threads: THREADS,
        baseline: BaselineConfig { inside: Inside::Each, ..stack.into() },
        ..DiskConfig::default()
    };
    (Disk::new(Box::new(drive), config).unwrap(), knobs)
}

/// A channel of thread `number`, in the lane of that number.
fn open(disk: &Arc<Disk<Native>>, number: u16) -> Channel<Native> {
    let bell = Arc::new(Doorbell::new(NativeParker::new()));
    let thread = IoThread { number, owner: u64::from(number) + 1, bell, turn: None };
    let volume = Volume::single(Arc::clone(disk)).unwrap();
    let config = ChannelConfig { thread: Some(thread), ..ChannelConfig::default() };
    Channel::open(&volume, config).unwrap()
}

#[test]
fn threads_in_lanes_get_their_data_through_few_tags() {
    for spread in [Spread::Node, Spread::One] {
        // Four threads with sixteen bios each share two tags, so that most bios wait in the
        // software queue for their turn.
        let (disk, knobs) = disk(spread, Stack::Mq, 2);
        std::thread::scope(|scope| {
            for number in 0..THREADS {
                let (disk, knobs) = (&disk, &knobs);
                scope.spawn(move || {
                    let mut channel = open(disk, number);
                    let home = u64::from(number) * 1024;
                    for round in 0..100 {
                        // Some requests are refused once and go back.
                        knobs.busy.store(1, Ordering::SeqCst);
                        for n in 0..16 {
                            let data = pattern(8, (number << 4) as u8 ^ (round + n) as u8);
                            channel.submit(Bio::write(home + 16 * n, data)).unwrap();
                        }
                        let mut done = 0;
                        while done < 16 {
                            done += channel.wait(1, |done| assert_eq!(done.status, Status::Ok));
                        }
                        let n = round % 16;
                        let (_, bio) =
                            run(&mut channel, Bio::read(home + 16 * n, Buffer::new(4096)));
                        let written = pattern(8, (number << 4) as u8 ^ (round + n) as u8);
                        assert_eq!(bio.into_buffer().as_deref(), Some(&written[..]));
                    }
                    assert_eq!(run(&mut channel, Bio::flush()).0, Status::Ok);
                });
            }
        });
        let threads = usize::from(THREADS);
        assert_eq!(knobs.given(Op::Write).len(), threads * 1_600, "{spread:?}");
        assert_eq!((disk.tags_in_use(), disk.stats().queued()), (0, 4 * (1_600 + 100 + 1)));
    }
}

#[test]
fn lanes_of_a_hardware_queue_are_no_queues_of_their_own() {
    let nodes = Native::topology().nodes();
    let cores = Native::topology().cpus().len().max(THREADS.into());
    for (spread, stack, expected) in [
        (Spread::Node, Stack::Mq, (nodes, nodes)),
        (Spread::One, Stack::Mq, (1, 1)),
        (Spread::Core, Stack::Mq, (cores, cores)),
        (Spread::Core, Stack::Sq, (1, 1)),
    ] {
        assert_eq!(disk(spread, stack, 8).0.queue_count(), expected, "{spread:?} {stack:?}");
    }
}

#[test]
fn one_list_for_all_drives_holds_nothing_back_for_lanes() {
    for (spread, kept) in [(Spread::One, 0), (Spread::Core, 1)] {
        let (disk, knobs) = disk(spread, Stack::Mq, 8);
        let serving = ServingConfig::of(Serving::PerVolume);
        let volume = Volume::with_serving("v", Layout::Linear, vec![disk], serving).unwrap();
        let mut channel = Channel::open(&volume, ChannelConfig::default()).unwrap();
        for sector in [0, 8, 800] {
            channel.submit(Bio::read(sector, Buffer::new(4096))).unwrap();
        }
        // On a drive of several queues, kept requests are dispatched with the next request.
        assert_eq!(knobs.given(Op::Read).len(), kept, "{spread:?}");
        channel.wait(3, |done| assert_eq!(done.status, Status::Ok));
    }
}
