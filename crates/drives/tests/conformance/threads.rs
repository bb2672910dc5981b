//! Several threads on one drive: each its own queue, or one submitting to a queue of the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use millrace_block::baseline::Stack;
use millrace_block::{Bio, Buffer, Status};
use millrace_drives::{Effect, FaultRule};

use crate::harness::{Dice, Drives, Kind, Plan, Rig, buffer_of, pattern, plans};

const KINDS: [Kind; 9] = [
    Kind::Ram,
    Kind::ModelRam,
    Kind::File,
    Kind::FileThreads,
    Kind::FileInline,
    Kind::FaultRam,
    Kind::FaultFile,
    Kind::FaultVolatile,
    Kind::Nbd,
];

/// Writes and reads back blocks of one half of the drive, 16 at a time.
fn work(rig: &mut Rig, half: u64) {
    let base = half * 8192;
    let mut dice = Dice(77 + half);
    let mut rounds = [0u64; 128];
    for round in 1..=16 {
        let first = dice.roll(112);
        for block in first..first + 16 {
            rounds[block as usize] = round;
            let sector = base + block * 16;
            rig.submit(Bio::write(sector, buffer_of(&pattern(sector, 4096, round + half))));
        }
        if round % 8 == 0 {
            rig.submit(Bio::flush());
        }
        assert!(rig.drain().iter().all(|done| done.status == Status::Ok));
        for block in first..first + 16 {
            rig.submit(Bio::read(base + block * 16, Buffer::new(4096)).with_user_data(block));
        }
        for done in rig.drain() {
            assert_eq!(done.status, Status::Ok);
            let block = done.user_data;
            let expected = pattern(base + block * 16, 4096, rounds[block as usize] + half);
            assert!(done.bio.into_buffer().unwrap()[..] == expected, "block {block} of {half}");
        }
    }
}

/// Two I/O threads on the same drives; each stays as long as the other may need its queue.
fn two_threads(plan: &Plan, first: fn(&mut Rig), second: fn(&mut Rig)) {
    let drives = Arc::new(Drives::new(plan));
    let (is_up, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    let finish = |mut rig: Rig| {
        done.fetch_add(1, Ordering::SeqCst);
        rig.until("the other thread", |_| done.load(Ordering::SeqCst) == 2);
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut rig = Rig::of(Arc::clone(&drives), plan.backend, 0);
            is_up.store(true, Ordering::SeqCst);
            first(&mut rig);
            finish(rig);
        });
        while !is_up.load(Ordering::SeqCst) && !other.is_finished() {
            std::thread::yield_now();
        }
        let mut rig = Rig::of(Arc::clone(&drives), plan.backend, 1);
        second(&mut rig);
        finish(rig);
    });
    assert_eq!(drives.volume.disks()[0].tags_in_use(), 0);
}

#[test]
fn two_threads_work_on_one_drive() {
    for plan in plans(&KINDS) {
        let plan = Plan { io_threads: 2, ..plan };
        two_threads(&plan, |rig| work(rig, 0), |rig| work(rig, 1));
    }
}

#[test]
fn thread_without_a_queue_submits_to_the_owner_of_one() {
    // The only hardware queue belongs to the first thread, which submits no I/O of its own.
    for plan in plans(&KINDS).filter(|plan| plan.stack != Stack::Sq) {
        two_threads(&plan, |_| (), |rig| work(rig, 1));
    }
}

#[test]
fn timeout_of_a_bio_in_a_remote_queue_reaches_its_submitter() {
    for plan in plans(&[Kind::FaultFile]) {
        let plan = Plan { timeout: Duration::from_millis(30), ..plan };
        two_threads(
            &plan,
            |_| (),
            |rig| {
                rig.drives.faults[0].add_rule(FaultRule::always(Effect::Stick));
                rig.submit(Bio::read(0, Buffer::new(512)));
                assert_eq!(rig.drain()[0].status, Status::TimedOut);
                assert_eq!(rig.channel.quarantined_bios(), 1);
                rig.drives.faults[0].release_stuck();
                rig.until("the quarantine to empty", |rig| rig.channel.quarantined_bios() == 0);
            },
        );
    }
}
