//! Long requests in pieces, on drives that groups share: the drive's requests and the client's
//! completions.
//!
//! A scheduler's first piece size is 64 KiB, and it changes only after the drive has been measured
//! for a while. A channel looks for a new size ten times a second.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::script::{Asked, ScriptDrive};
use crate::support::{Given, TestDrive, pattern, run};
use millrace_block::{
    Bio, Buffer, Channel, ChannelConfig, Disk, DiskConfig, Expired, GroupConfig, Groups, Op,
    OpFlags, SchedulerKind, Sector, Status, Volume,
};
use millrace_machine::Native;

const SHARING: [SchedulerKind; 2] = [SchedulerKind::Fair, SchedulerKind::Latency];
const PIECE: u32 = 128;

fn open(
    drive: &ScriptDrive,
    scheduler: SchedulerKind,
    config: DiskConfig<Native>,
) -> (Arc<Disk<Native>>, Channel<Native>) {
    let disk = Disk::new(Box::new(drive.clone()), config).unwrap();
    disk.set_scheduler(scheduler).unwrap();
    let volume = Volume::single(Arc::clone(&disk)).unwrap();
    (disk, Channel::open(&volume, ChannelConfig::default()).unwrap())
}

fn shared(drive: &ScriptDrive, scheduler: SchedulerKind) -> (Arc<Disk<Native>>, Channel<Native>) {
    open(drive, scheduler, DiskConfig::default())
}

fn drive(depth: u32) -> ScriptDrive {
    let mut drive = ScriptDrive::new(1, depth);
    drive.limits.features.fua = true;
    drive
}

fn long(op: Op, sectors: u32) -> Bio {
    let buffer = Buffer::new(sectors as usize * 512);
    match op {
        Op::Write => Bio::write(0, buffer),
        _ => Bio::read(0, buffer),
    }
}

fn taken(drive: &ScriptDrive) -> Vec<Given> {
    let took = |asked: &Asked| match asked {
        Asked::Took(given) => Some(*given),
        _ => None,
    };
    drive.lock().log.iter().filter_map(took).collect()
}

/// Lets the drive complete everything; returns the statuses of `count` bios.
fn finish(channel: &mut Channel<Native>, drive: &ScriptDrive, count: usize) -> Vec<Status> {
    drive.lock().answers = usize::MAX;
    let mut done = Vec::new();
    channel.wait(count, |one| done.push(one.status));
    assert_eq!((channel.in_flight(), channel.poll(|_| panic!("another completion"))), (0, 0));
    done
}

/// Looks for timeouts every millisecond or two, like a thread that sleeps between I/Os.
fn looks_until(channel: &mut Channel<Native>, mut met: impl FnMut(&mut Channel<Native>) -> bool) {
    let start = Instant::now();
    while !met(channel) {
        assert!(start.elapsed() < Duration::from_secs(5), "nothing comes of looking");
        std::thread::sleep(Duration::from_micros(1200));
        channel.tick();
    }
}

#[test]
fn split_write_has_fua_on_each_piece_and_one_completion() {
    for scheduler in SHARING {
        let drive = drive(32);
        let (_disk, mut channel) = shared(&drive, scheduler);
        channel.submit(long(Op::Write, 10 * PIECE).with_flags(OpFlags::FUA)).unwrap();
        channel.flush();
        drive.lock().answers = 9;
        assert_eq!(channel.poll(|_| panic!("done before its last piece")), 0, "{scheduler:?}");
        assert_eq!(finish(&mut channel, &drive, 1), [Status::Ok]);
        let pieces = taken(&drive);
        let at = |piece: u32| Given {
            op: Op::Write,
            sector: Sector::from(piece * PIECE),
            nr_sectors: PIECE,
            flags: OpFlags::FUA,
        };
        assert_eq!(pieces, (0..10).map(at).collect::<Vec<_>>(), "{scheduler:?}");
    }
}

#[test]
fn nothing_is_cut_without_a_scheduler_that_shares_the_drive() {
    for scheduler in [SchedulerKind::None, SchedulerKind::Deadline] {
        let drive = drive(32);
        let (_disk, mut channel) = shared(&drive, scheduler);
        channel.submit(long(Op::Read, 10 * PIECE)).unwrap();
        assert_eq!(finish(&mut channel, &drive, 1), [Status::Ok]);
        let lengths: Vec<_> = taken(&drive).iter().map(|one| one.nr_sectors).collect();
        assert_eq!(lengths, [10 * PIECE], "{scheduler:?}");
    }
}

#[test]
fn neighbours_in_a_batch_are_merged_up_to_a_piece() {
    for scheduler in SHARING {
        let drive = drive(32);
        let (_disk, mut channel) = shared(&drive, scheduler);
        for number in 0..48 {
            channel.submit(Bio::read(number * 8, Buffer::new(4096))).unwrap();
        }
        assert_eq!(finish(&mut channel, &drive, 48), [Status::Ok; 48]);
        let lengths: Vec<_> = taken(&drive).iter().map(|one| one.nr_sectors).collect();
        assert_eq!(lengths, [PIECE; 3], "{scheduler:?}");
    }
}

#[test]
fn an_error_in_any_piece_is_that_of_the_whole_request() {
    for (scheduler, at) in SHARING.into_iter().flat_map(|one| [(one, 0), (one, 2), (one, 4)]) {
        let drive = drive(32);
        let (_disk, mut channel) = shared(&drive, scheduler);
        let status = |piece| if piece == at { Status::IoError } else { Status::Ok };
        drive.lock().statuses = (0..5).map(status).collect();
        channel.submit(long(Op::Write, 5 * PIECE)).unwrap();
        assert_eq!(finish(&mut channel, &drive, 1), [Status::IoError], "{scheduler:?} {at}");
        channel.submit(long(Op::Write, 5 * PIECE)).unwrap();
        assert_eq!(finish(&mut channel, &drive, 1), [Status::Ok], "{scheduler:?} {at}");
    }
}

#[test]
fn timeout_of_a_middle_piece_keeps_its_memory_until_named() {
    for scheduler in SHARING {
        let drive = drive(32);
        let config = DiskConfig { timeout: Duration::from_nanos(1), ..DiskConfig::default() };
        let (disk, mut channel) = open(&drive, scheduler, config);
        drive.lock().expired = Some(Expired::Abandon);
        channel.submit(long(Op::Read, 3 * PIECE)).unwrap();
        channel.flush();
        // The first and the last are answered.
        drive.lock().answers = 1;
        assert_eq!(channel.poll(|_| panic!("two pieces are missing")), 0);
        (drive.lock().answers, drive.lock().backwards) = (1, true);
        assert_eq!(channel.poll(|_| panic!("a piece is missing")), 0);
        let mut done = Vec::new();
        looks_until(&mut channel, |channel| {
            channel.poll(|one| done.push(one.status));
            !done.is_empty()
        });
        assert_eq!(done, [Status::TimedOut], "{scheduler:?}");
        assert_eq!((disk.tags_in_use(), channel.quarantined_bios()), (1, 1), "{scheduler:?}");
        drive.lock().answers = 1;
        assert_eq!(channel.poll(|_| panic!("a second completion")), 0);
        looks_until(&mut channel, |channel| channel.quarantined_bios() == 0);
        assert_eq!(disk.tags_in_use(), 0, "{scheduler:?}");
    }
}

/// The large I/Os of one group wait for slots of the channel's when that of another comes.
#[test]
fn groups_take_turns_for_the_slots_that_pieces_need() {
    let (drive, groups) = (drive(4), Groups::new());
    let [bulk, other] = ["bulk", "other"].map(|name| groups.open(GroupConfig::new(name)).unwrap());
    let config = DiskConfig { groups: Some(groups), ..DiskConfig::default() };
    let (_disk, mut channel) = open(&drive, SchedulerKind::Fair, config);
    for _ in 0..64 {
        channel.submit(long(Op::Read, 128 * PIECE).with_group(bulk)).unwrap();
    }
    let sector = ScriptDrive::SECTORS / 2;
    let late = Bio::read(sector, Buffer::new(2 * PIECE as usize * 512));
    channel.submit(late.with_group(other).with_user_data(1)).unwrap();
    channel.flush();
    let (mut answered, mut is_done) = (0, false);
    while !is_done {
        drive.lock().answers = 1;
        channel.poll(|one| is_done |= one.user_data == 1);
        channel.flush();
        answered += 1;
        // Of 8192 pieces, one channel has slots for a few hundred.
        assert!(answered < 1500, "it waits for all that came first");
    }
    assert_eq!(finish(&mut channel, &drive, 64), [Status::Ok; 64]);
}

#[test]
fn requests_are_cut_and_whole_again_as_schedulers_change() {
    let drive = drive(32);
    let (disk, mut channel) = shared(&drive, SchedulerKind::None);
    let longest = |channel: &mut Channel<Native>| {
        drive.lock().log.clear();
        channel.submit(long(Op::Read, 10 * PIECE)).unwrap();
        assert_eq!(finish(channel, &drive, 1), [Status::Ok]);
        taken(&drive).iter().map(|one| one.nr_sectors).max().unwrap()
    };
    assert_eq!(longest(&mut channel), 10 * PIECE);
    for scheduler in [SHARING[0], SchedulerKind::None, SHARING[1], SchedulerKind::Deadline] {
        disk.set_scheduler(scheduler).unwrap();
        let is_cut = SHARING.contains(&scheduler);
        let start = Instant::now();
        while (longest(&mut channel) < 10 * PIECE) != is_cut {
            assert!(start.elapsed() < Duration::from_secs(5), "{scheduler:?} is not followed");
            std::thread::sleep(Duration::from_millis(10));
            channel.tick();
        }
    }
}

#[test]
fn pieces_carry_their_own_data() {
    for scheduler in SHARING {
        let disk = Disk::new(Box::new(TestDrive::new(4096)), DiskConfig::default()).unwrap();
        disk.set_scheduler(scheduler).unwrap();
        let volume = Volume::single(disk).unwrap();
        let mut channel = Channel::open(&volume, ChannelConfig::default()).unwrap();
        let data = pattern(1001, 7);
        let (status, _) = run(&mut channel, Bio::write(77, data));
        assert_eq!(status, Status::Ok);
        let (status, bio) = run(&mut channel, Bio::read(77, Buffer::new(1001 * 512)));
        assert_eq!(status, Status::Ok);
        assert!(bio.into_buffer().unwrap()[..] == pattern(1001, 7)[..], "{scheduler:?}");
    }
}
