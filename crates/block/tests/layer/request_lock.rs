//! The request queue of `sq` as it once was: one lock for several disks, and a queue that is itself
//! plugged, on the drive made for tests.

use std::sync::Arc;

use crate::support::{Knobs, TestDrive, pattern, run};
use millrace_block::baseline::{BaselineConfig, QueuePlug, RequestLock, Stack};
use millrace_block::{Bio, Buffer, Channel, ChannelConfig, Disk, DiskConfig, Op, Status, Volume};
use millrace_machine::Native;

fn open(lock: &RequestLock<Native>) -> (Channel<Native>, Arc<Knobs>) {
    let drive = TestDrive::new(4096);
    let knobs = Arc::clone(&drive.knobs);
    let config = DiskConfig {
        baseline: BaselineConfig { request_lock: lock.clone(), ..Stack::Sq.into() },
        ..DiskConfig::default()
    };
    let volume = Volume::single(Disk::new(Box::new(drive), config).unwrap()).unwrap();
    (Channel::open(&volume, ChannelConfig::default()).unwrap(), knobs)
}

#[test]
fn plugged_queue_merges_with_its_last_request_and_reads_back() {
    for plug in [QueuePlug::Task, QueuePlug::Queue] {
        let (mut channel, knobs) = open(&RequestLock::default().with_plug(plug));
        for sector in 0..8 {
            channel.submit(Bio::write(16 + sector, pattern(1, sector as u8))).unwrap();
        }
        let mut done = 0;
        channel.wait(8, |completion| {
            assert_eq!(completion.status, Status::Ok);
            done += 1;
        });
        assert_eq!((done, knobs.given(Op::Write).len()), (8, 1), "{plug:?}");
        for sector in 0..8 {
            let (_, bio) = run(&mut channel, Bio::read(16 + sector, Buffer::new(512)));
            assert_eq!(bio.into_buffer().as_deref(), Some(&pattern(1, sector as u8)[..]));
        }
        assert_eq!(run(&mut channel, Bio::flush()).0, Status::Ok);
    }
}

#[test]
fn threads_at_disks_under_one_lock_all_get_on() {
    let lock = RequestLock::shared().with_plug(QueuePlug::Queue);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let lock = &lock;
            scope.spawn(move || {
                let (mut channel, _) = open(lock);
                for round in 0..200 {
                    let sector = 8 * (round % 64);
                    let (status, _) = run(&mut channel, Bio::write(sector, pattern(8, seed)));
                    assert_eq!(status, Status::Ok);
                    let (_, bio) = run(&mut channel, Bio::read(sector, Buffer::new(4096)));
                    assert_eq!(bio.into_buffer().as_deref(), Some(&pattern(8, seed)[..]));
                }
            });
        }
    });
}
