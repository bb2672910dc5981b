//! Drives that fail: errors reach exactly their bios, nothing hangs, memory in doubt is kept.

use std::time::Duration;

use millrace_block::{Bio, Buffer, Completion, Op, OpFlags, Status};
use millrace_drives::{Chance, Effect, FaultRule, Spec, fault_controls, open};
use millrace_machine::{Machine, Native};

use crate::harness::{Kind, Plan, Rig, buffer_of, pattern, plans, side_by_side};

const FAULTY: [Kind; 3] = [Kind::FaultRam, Kind::FaultFile, Kind::FaultVolatile];

fn statuses(done: &[Completion]) -> Vec<Status> {
    let mut list: Vec<(u64, Status)> = done.iter().map(|c| (c.user_data, c.status)).collect();
    list.sort_by_key(|(number, _)| *number);
    list.into_iter().map(|(_, status)| status).collect()
}

#[test]
fn every_third_write_fails_and_the_others_are_kept() {
    for plan in plans(&FAULTY) {
        let mut rig = Rig::new(&plan);
        let rule = FaultRule::always(Effect::Fail(Status::NoSpace)).on(Op::Write);
        rig.drives.faults[0].add_rule(rule.with_chance(Chance::Every(3)));
        for n in 0..30u64 {
            // Gaps, so that each bio is a request.
            let bio = Bio::write(n * 16, buffer_of(&pattern(n * 16, 4096, 1)));
            rig.submit(bio.with_user_data(n));
        }
        for (n, status) in statuses(&rig.drain()).into_iter().enumerate() {
            let failed = n % 3 == 2;
            assert_eq!(status, if failed { Status::NoSpace } else { Status::Ok }, "bio {n}");
            let expected = if failed { vec![0; 4096] } else { pattern(n as u64 * 16, 4096, 1) };
            assert!(rig.read(n as u64 * 16, 4096) == expected);
        }
        assert_eq!(rig.drives.faults[0].struck(), 10);
    }
}

#[test]
fn bad_sectors_of_one_drive_fail_only_the_bios_that_touch_them() {
    for plan in plans(&FAULTY) {
        let mut rig = Rig::new(&plan.stripe(3, 8));
        // Drive 1, its second chunk: sectors 32..40 of the volume.
        let rule = FaultRule::always(Effect::Fail(Status::IoError)).within(8..16);
        rig.drives.faults[1].add_rule(rule);
        let bios = [
            (Bio::read(0, Buffer::new(16 << 10)), Status::Ok),
            (Bio::read(16, Buffer::new(32 << 10)), Status::IoError),
            (Bio::write(39, Buffer::new(512)), Status::IoError),
            (Bio::write(40, Buffer::new(12 << 10)), Status::Ok),
            (Bio::read(24, Buffer::new(4096)), Status::Ok),
            (Bio::discard(0, 96), Status::IoError),
            (Bio::discard(40, 16), Status::Ok),
            (Bio::flush(), Status::Ok),
        ];
        for (n, (bio, status)) in bios.into_iter().enumerate() {
            // Bios are run one at a time, because merged bios share their request's fate.
            assert_eq!(rig.run(bio.with_user_data(n as u64)).status, status, "bio {n}");
        }
    }
}

#[test]
fn dead_drive_fails_with_offline_and_neighbours_go_on() {
    for plan in plans(&FAULTY) {
        let mut rig = Rig::new(&plan.stripe(2, 8));
        rig.write(0, &pattern(0, 8192, 1));
        rig.drives.faults[1].die_now();
        assert_eq!(
            rig.run(Bio::flush()).status,
            match rig.drives.volume.limits().features {
                features if features.volatile_cache => Status::Offline,
                _ => Status::Ok,
            }
        );
        assert_eq!(rig.run(Bio::read(8, Buffer::new(512))).status, Status::Offline);
        assert_eq!(rig.run(Bio::write(0, Buffer::new(8192))).status, Status::Offline);
        assert_eq!(rig.run(Bio::discard(8, 8)).status, Status::Offline);
        assert_eq!(rig.run(Bio::write_zeroes(8, 8)).status, Status::Offline);
        rig.write(0, &pattern(0, 4096, 2));
        assert!(rig.read(0, 4096) == pattern(0, 4096, 2));
        rig.drives.faults[1].revive();
        assert!(rig.read(8, 4096) == pattern(8, 4096, 1));
    }
}

#[test]
fn drive_that_dies_with_io_in_flight_answers_it_with_offline() {
    for plan in plans(&FAULTY) {
        let mut rig = Rig::new(&plan);
        rig.drives.faults[0].add_rule(FaultRule::always(Effect::Stick));
        for n in 0..5 {
            rig.submit(Bio::read(n * 16, Buffer::new(512)));
        }
        rig.step(1_000_000);
        rig.drives.faults[0].die_now();
        assert_eq!(statuses(&rig.drain()), [Status::Offline; 5]);
    }
}

#[test]
fn latency_is_kept_and_does_not_block_others() {
    side_by_side(&FAULTY, |plan| {
        let mut rig = Rig::new(&plan);
        let rule = FaultRule::always(Effect::Delay(Duration::from_nanos(200_000_000))).within(0..8);
        rig.drives.faults[0].add_rule(rule);
        let start_ns = Native::now();
        rig.submit(Bio::read(0, Buffer::new(512)).with_user_data(0));
        rig.submit(Bio::read(64, Buffer::new(512)).with_user_data(1));
        let order: Vec<u64> = rig.drain().iter().map(|done| done.user_data).collect();
        assert_eq!(order, [1, 0]);
        assert!(Native::now() - start_ns >= 200_000_000);
    });
}

#[test]
fn owned_bio_on_a_stuck_drive_keeps_memory_until_release() {
    side_by_side(&FAULTY, |plan| {
        let mut rig = Rig::new(&Plan { timeout: Duration::from_secs(1), ..plan });
        rig.write(0, &pattern(0, 512, 1));
        let fault = rig.drives.faults[0].clone();
        fault.add_rule(FaultRule::always(Effect::Stick).within(0..8));
        rig.submit(Bio::read(0, Buffer::new(512)).with_user_data(7));
        let done = rig.drain();
        assert_eq!((done[0].user_data, done[0].status), (7, Status::TimedOut));
        assert!(done.into_iter().next().unwrap().bio.into_buffer().is_none());
        assert_eq!(rig.channel.quarantined_bios(), 1);
        // The other requests of the drive go on meanwhile.
        rig.write(64, &pattern(64, 512, 1));
        assert_eq!(rig.channel.quarantined_bios(), 1);
        fault.clear_rules();
        fault.release_stuck();
        rig.until("the quarantine to empty", |rig| rig.channel.quarantined_bios() == 0);
        assert!(rig.read(0, 512) == pattern(0, 512, 1));
        assert_eq!(rig.drives.volume.disks()[0].tags_in_use(), 0);
        assert_eq!(rig.drives.volume.disks()[0].stats().timeouts(), 1);
    });
}

#[test]
fn foreign_bio_on_a_stuck_drive_is_answered_on_release_only() {
    side_by_side(&FAULTY, |plan| {
        let mut rig = Rig::new(&Plan { timeout: Duration::from_secs(1), ..plan });
        let fault = rig.drives.faults[0].clone();
        rig.write(0, &pattern(0, 4096, 3));
        fault.add_rule(FaultRule::always(Effect::Stick));
        let mut memory = buffer_of(&[0u8; 4096]);
        // SAFETY: the buffer outlives the bio, which is waited for here.
        rig.submit(unsafe { Bio::foreign(Op::Read, 0, memory.as_mut_ptr(), 4096) });
        let stats = |rig: &Rig| rig.drives.volume.disks()[0].stats().timeouts();
        rig.until("the timeout", |rig| stats(rig) > 0);
        rig.step(1_000_000);
        assert!(rig.back.is_empty() && rig.channel.in_flight() == 1);
        fault.release_stuck();
        let done = rig.drain();
        assert_eq!((done.len(), rig.channel.quarantined_bios()), (1, 0));
        assert_eq!(done[0].status, Status::Ok);
        assert!(memory[..] == pattern(0, 4096, 3));
    });
}

#[test]
fn channel_dropped_with_io_in_flight_waits_for_it() {
    for plan in plans(&[Kind::FaultRam, Kind::FaultVolatile, Kind::Ram]) {
        let mut rig = Rig::new(&plan);
        for fault in &rig.drives.faults {
            fault.add_rule(FaultRule::always(Effect::Delay(Duration::from_nanos(2_000_000))));
        }
        for n in 0..50 {
            rig.submit(Bio::write(n * 16, buffer_of(&pattern(n * 16, 4096, 1))));
        }
        rig.channel.flush();
        let drives = rig.drives.clone();
        drop(rig);
        assert_eq!(drives.volume.disks()[0].tags_in_use(), 0);
    }
}

#[test]
fn channel_dropped_with_a_stuck_request_leaks_only_its_memory() {
    for plan in plans(&[Kind::FaultRam, Kind::FaultVolatile]) {
        let mut rig = Rig::new(&Plan { timeout: Duration::from_millis(100), ..plan });
        rig.drives.faults[0].add_rule(FaultRule::always(Effect::Stick).within(0..8));
        rig.submit(Bio::read(0, Buffer::new(512)));
        rig.submit(Bio::read(64, Buffer::new(512)));
        rig.channel.flush();
        let drives = rig.drives.clone();
        drop(rig);
        drives.faults[0].release_stuck();
        let mut other = Rig::of(drives, millrace_reactor::Backend::Auto, 0);
        other.write(128, &pattern(128, 512, 1));
        assert!(other.read(128, 512) == pattern(128, 512, 1));
    }
}

#[test]
fn channel_dropped_with_file_io_in_flight_waits_for_it() {
    for plan in plans(&[Kind::File, Kind::FileThreads]) {
        let mut rig = Rig::new(&plan);
        let start_ns = Native::now();
        for n in 0..50 {
            rig.submit(Bio::write(n * 16, buffer_of(&pattern(n * 16, 4096, 1))));
        }
        rig.channel.flush();
        let drives = rig.drives.clone();
        drop(rig);
        assert!(Native::now() - start_ns < 2_000_000_000, "the drop gave the I/O up for lost");
        assert_eq!(drives.volume.disks()[0].tags_in_use(), 0);
    }
}

#[test]
fn flushes_that_come_while_one_is_issued_join_the_next() {
    for plan in plans(&[Kind::FaultVolatile, Kind::FaultFile]) {
        let mut rig = Rig::new(&plan);
        let fault = rig.drives.faults[0].clone();
        fault.add_rule(FaultRule::always(Effect::Stick).on(Op::Flush));
        for _ in 0..8 {
            rig.submit(Bio::flush());
            rig.step(0);
        }
        rig.until("the first", |_| fault.struck() == 1);
        fault.release_stuck();
        rig.until("the second", |_| fault.struck() == 2);
        fault.release_stuck();
        assert_eq!(statuses(&rig.drain()), [Status::Ok; 8]);
        assert_eq!(fault.struck(), 2, "the first alone, then seven together");
    }
}

#[test]
fn failed_flush_fails_the_bio_that_asked_for_it() {
    for plan in plans(&[Kind::FaultVolatile, Kind::FaultVolatileWithoutFua, Kind::FaultFile]) {
        let mut rig = Rig::new(&plan);
        let rule = FaultRule::always(Effect::Fail(Status::IoError)).on(Op::Flush);
        rig.drives.faults[0].add_rule(rule);
        assert_eq!(rig.run(Bio::flush()).status, Status::IoError);
        let write = |flags| Bio::write(0, Buffer::new(512)).with_flags(flags);
        assert_eq!(rig.run(write(OpFlags::PREFLUSH)).status, Status::IoError);
        let fua = rig.run(write(OpFlags::FUA)).status;
        assert_eq!(fua == Status::IoError, plan.kind == Kind::FaultVolatileWithoutFua);
    }
}

#[test]
fn drive_opened_by_a_nested_spec_obeys_its_keys() {
    let text = "fault:drive=(ram:size=1m),every=2,op=read,status=enospc,name=spec-drive";
    let opened = open(&text.parse::<Spec>().unwrap(), 1).unwrap();
    assert_eq!(opened.driver.capacity(), 2048);
    let controls = fault_controls();
    let (_, control) = controls.iter().find(|(name, _)| name == "spec-drive").unwrap();
    let disk = millrace_block::Disk::new(opened.driver, Default::default()).unwrap();
    let volume = millrace_block::Volume::single(disk).unwrap();
    let mut channel =
        millrace_block::Channel::open(&volume, Default::default()).expect("its queues are served");
    let mut run = |bio| {
        assert!(channel.submit(bio).is_ok());
        let mut status = None;
        channel.wait(1, |done| status = Some(done.status));
        status.unwrap()
    };
    let statuses = [(); 4].map(|()| run(Bio::read(0, Buffer::new(512))));
    assert_eq!(statuses, [Status::Ok, Status::NoSpace, Status::Ok, Status::NoSpace]);
    assert_eq!(run(Bio::write(0, Buffer::new(512))), Status::Ok);
    control.die_now();
    assert_eq!(run(Bio::write(0, Buffer::new(512))), Status::Offline);
}
