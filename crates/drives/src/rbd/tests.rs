//! What the Ceph drive makes of what librbd may say, over the table of `fake.rs`: the whole way
//! from a channel to librbd's calls and back. A real cluster is in tests/tests/rbd_cluster.rs.
#![allow(clippy::unwrap_used)]

pub(super) mod fake;

use std::sync::Arc;

use millrace_block::{
    Bio, Buffer, Channel, Disk, DiskConfig, Driver, ErrorKind, Extent, OpFlags, Stamp, Status,
    Volume,
};
use millrace_machine::Native;
use millrace_runtime::{IoConfig, IoContext};

use super::RbdConfig;
use super::open::{measure_by, open_by};
use fake::{BYTES, Call, Fake, MADE, OBJECT, SETTINGS, State, drive, functions, image};

struct Rig {
    channel: Channel<Native>,
    _context: IoContext,
    fake: Arc<Fake>,
}

impl Rig {
    fn new(pool: &str) -> Rig {
        Rig::with(pool, 64, 30_000_000_000)
    }

    fn with(pool: &str, queue_depth: u32, timeout_ns: u64) -> Rig {
        let (fake, driver) = drive(pool, |_| ());
        let config =
            DiskConfig { timeout_ns, queue_depth: Some(queue_depth), ..DiskConfig::default() };
        let disk = Disk::new(Box::new(driver), config).unwrap();
        let mut context = IoContext::new(IoConfig::default()).unwrap();
        let volume = Volume::single(disk).unwrap();
        let channel = context.channel(&volume, 64, Stamp::Batch).unwrap();
        Rig { channel, _context: context, fake }
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.fake.0.lock().unwrap());
    }

    fn submit(&mut self, bio: Bio) {
        self.channel.submit(bio).unwrap();
    }

    /// Waits for one; its status and buffer.
    fn wait(&mut self) -> (Status, Option<Buffer>) {
        let mut last = None;
        self.channel.wait(1, |done| last = Some((done.status, done.bio.into_buffer())));
        last.expect("one was waited for")
    }

    fn run(&mut self, bio: Bio) -> Status {
        self.submit(bio);
        self.wait().0
    }

    fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.fake.0.lock().unwrap().calls)
    }
}

fn read() -> Bio {
    Bio::read(8, Buffer::new(8192))
}

fn write() -> Bio {
    let mut buffer = Buffer::new(8192);
    buffer.fill(7);
    Bio::write(8, buffer)
}

#[test]
fn what_was_written_is_read_back() {
    let mut rig = Rig::new("data");
    assert_eq!(rig.run(write()), Status::Ok);
    rig.submit(read());
    let (status, buffer) = rig.wait();
    assert_eq!(status, Status::Ok);
    assert!(buffer.unwrap().iter().all(|byte| *byte == 7));
    assert_eq!(rig.calls(), [Call::Write(4096, 8192), Call::Read(4096, 8192)]);
    assert_eq!(MADE.get(), 0, "every completion was released");
}

#[test]
fn a_read_that_moved_less_or_more_than_was_asked_for_is_an_error() {
    let mut rig = Rig::new("short");
    for verdict in [
        (|_| Some(4096)) as fn(Call) -> Option<isize>,
        |_| Some(0),
        |_| Some(8193),
        |_| Some(isize::MAX),
    ] {
        rig.set(|state| state.verdict = Some(verdict));
        assert_eq!(rig.run(read()), Status::IoError);
    }
}

#[test]
fn a_write_succeeds_with_0_or_its_length_and_nothing_else() {
    let mut rig = Rig::new("written");
    for (verdict, status) in [
        ((|_| Some(0)) as fn(Call) -> Option<isize>, Status::Ok),
        (|_| Some(8192), Status::Ok),
        (|_| Some(4096), Status::IoError),
    ] {
        rig.set(|state| state.verdict = Some(verdict));
        assert_eq!(rig.run(write()), status);
    }
}

#[test]
fn negative_results_become_the_statuses_of_their_errnos() {
    let mut rig = Rig::new("errnos");
    for (verdict, write_status, read_status) in [
        (
            (|_| Some(-libc::ENOSPC as isize)) as fn(Call) -> Option<isize>,
            Status::NoSpace,
            Status::NoSpace,
        ),
        (|_| Some(-libc::EDQUOT as isize), Status::NoSpace, Status::NoSpace),
        // Ceph's EBLOCKLISTED is ESHUTDOWN.
        (|_| Some(-libc::ESHUTDOWN as isize), Status::Offline, Status::Offline),
        (|_| Some(-libc::ENOENT as isize), Status::Offline, Status::Offline),
        (|_| Some(-libc::EROFS as isize), Status::Offline, Status::Offline),
        (|_| Some(-libc::ETIMEDOUT as isize), Status::TimedOut, Status::TimedOut),
        (|_| Some(-libc::EPERM as isize), Status::ReadOnly, Status::IoError),
        (|_| Some(-libc::EIO as isize), Status::IoError, Status::IoError),
        (|_| Some(isize::MIN + 1), Status::IoError, Status::IoError),
    ] {
        rig.set(|state| state.verdict = Some(verdict));
        assert_eq!((rig.run(write()), rig.run(read())), (write_status, read_status));
    }
}

#[test]
fn a_lock_that_is_gone_is_told_once_and_an_error_of_the_medium_is_not() {
    let mut rig = Rig::new("told");
    let news = |rig: &Rig| rig.channel.volume().disks()[0].take_news();
    rig.set(|state| state.verdict = Some(|_| Some(-libc::EIO as isize)));
    rig.run(write());
    assert!(news(&rig).is_empty());
    rig.set(|state| state.verdict = Some(|_| Some(-libc::EROFS as isize)));
    (0..2).for_each(|_| assert_eq!(rig.run(write()), Status::Offline));
    let told = news(&rig);
    assert!(told.len() == 1 && told[0].contains("its exclusive lock is gone"), "{told:?}");
}

#[test]
fn a_call_that_librbd_refuses_at_once_fails_with_its_errno_and_leaves_nothing_behind() {
    let mut rig = Rig::new("refused");
    rig.set(|state| state.refusal = Some(-libc::EINVAL));
    assert_eq!(rig.run(write()), Status::Invalid);
    rig.set(|state| state.refusal = None);
    assert_eq!(rig.run(write()), Status::Ok);
    assert_eq!(MADE.get(), 0, "every completion was released");
}

#[test]
fn operations_are_those_of_librbd_and_a_durable_write_is_followed_by_a_flush() {
    let mut rig = Rig::new("ops");
    for bio in [
        Bio::discard(128, 256),
        Bio::write_zeroes(128, 256),
        Bio::write_zeroes(128, 256).with_flags(OpFlags::NOUNMAP),
        write().with_flags(OpFlags::FUA),
    ] {
        assert_eq!(rig.run(bio), Status::Ok);
    }
    let (at, len) = (128 << 9, 256 << 9);
    let zeroes = [Call::Discard(at, len), Call::Zero(at, len, 0), Call::Zero(at, len, 1)];
    let calls = rig.calls();
    assert_eq!(
        (&calls[..3], &calls[3..]),
        (&zeroes[..], &[Call::Write(4096, 8192), Call::Flush][..])
    );
}

#[test]
fn a_request_that_timed_out_keeps_its_tag_until_librbd_names_it() {
    let mut rig = Rig::with("late", 1, 50_000_000);
    rig.set(|state| state.holds = true);
    assert_eq!(rig.run(read()), Status::TimedOut);
    // The only tag is that of the request above.
    rig.submit(write());
    rig.channel.poll(|_| unreachable!("nothing can have been started"));
    assert_eq!(rig.calls(), [Call::Read(4096, 8192)]);
    rig.set(|state| state.holds = false);
    let fake = Arc::clone(&rig.fake);
    std::thread::spawn(move || fake.release()).join().unwrap();
    assert_eq!(rig.wait().0, Status::Ok);
    assert_eq!(rig.calls(), [Call::Write(4096, 8192)]);
}

#[test]
fn completions_of_another_thread_wake_the_io_thread_whatever_their_order() {
    let mut rig = Rig::new("threads");
    rig.set(|state| state.holds = true);
    let count = 32;
    for number in 0..count {
        rig.submit(Bio::read(number * 64, Buffer::new(4096)));
    }
    rig.channel.poll(|_| unreachable!("all are held"));
    let fake = Arc::clone(&rig.fake);
    let other = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert_eq!(fake.held(), count as usize);
        fake.release();
    });
    let mut done = 0;
    rig.channel.wait(count as usize, |back| {
        assert_eq!(back.status, Status::Ok);
        done += 1;
    });
    other.join().unwrap();
    assert_eq!(done, count);
}

fn config(pool: &str, change: impl FnOnce(&mut State)) -> (Arc<Fake>, RbdConfig) {
    image(pool, change)
}

#[test]
fn an_image_whose_lock_a_living_client_has_is_refused_and_the_lock_is_left_to_it() {
    let (fake, config) = config("alive", |state| {
        state.owner = Some("10.0.0.7:0/99".into());
        state.watchers = vec!["10.0.0.8:0/1".into(), "10.0.0.7:0/99".into()];
    });
    assert_eq!(measure_by(functions(), &config).unwrap_err().kind(), ErrorKind::Busy);
    fake.0.lock().unwrap().cookie = c"people's";
    assert!(measure_by(functions(), &config).is_ok(), "a lock that does not keep writers away");
    let reader = RbdConfig { read_only: true, ..config.clone() };
    assert_eq!(measure_by(functions(), &reader).unwrap().size_bytes, BYTES);
    let error = open_by(functions(), config).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Busy);
    let text = error.to_string();
    assert!(
        text.starts_with("alive/i: the client at 10.0.0.7:0/99 has this image's lock"),
        "{text}"
    );
    let state = fake.0.lock().unwrap();
    assert_eq!((state.locks, state.is_open), (0, false));
}

#[test]
fn the_lock_of_a_client_that_is_gone_is_taken() {
    let (fake, config) = config("gone", |state| {
        state.owner = Some("10.0.0.7:0/99".into());
        state.watchers = vec!["10.0.0.8:0/1".into()];
    });
    let driver = open_by(functions(), config).unwrap();
    assert_eq!(fake.0.lock().unwrap().locks, 1);
    assert!(driver.warnings().is_empty());
    drop(driver);
    assert!(!fake.0.lock().unwrap().is_open, "the image is closed with its drive");
}

#[test]
fn an_image_that_has_no_lock_is_warned_of_and_readers_and_sharers_take_none() {
    let (fake, plain) = config("plain", |state| state.features = 1);
    let driver = open_by(functions(), plain.clone()).unwrap();
    assert!(driver.warnings()[0].contains("rbd feature enable plain/i exclusive-lock"));
    drop(driver);
    fake.0.lock().unwrap().features = 0x1c;
    for config in
        [RbdConfig { read_only: true, ..plain.clone() }, RbdConfig { lock: false, ..plain.clone() }]
    {
        drop(open_by(functions(), config).unwrap());
    }
    assert_eq!(fake.0.lock().unwrap().locks, 0);
}

#[test]
fn the_same_image_twice_is_refused_unless_it_is_only_read() {
    let (_fake, config) = config("twice", |_| ());
    let first = open_by(functions(), config.clone()).unwrap();
    let error = open_by(functions(), config.clone()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Busy);
    let reader = RbdConfig { read_only: true, ..config.clone() };
    let place = |config| measure_by(functions(), config).unwrap().place.unwrap();
    assert_eq!(place(&config).identity, first.identity());
    assert!(place(&config).clashes_with(&place(&reader)));
    assert_eq!(open_by(functions(), reader).unwrap().identity(), first.identity());
    drop(first);
    assert!(open_by(functions(), config).is_ok());
}

#[test]
fn a_lock_of_a_drive_of_this_process_is_no_other_client_s() {
    let (fake, config) = config("own", |_| ());
    let first = open_by(functions(), config.clone()).unwrap();
    {
        let mut state = fake.0.lock().unwrap();
        (state.owner, state.watchers) =
            (Some("10.0.0.7:0/99".into()), vec!["10.0.0.7:0/99".into()]);
    }
    let measured = measure_by(functions(), &config).unwrap();
    assert_eq!(measured.place.map(|place| place.identity), Some(first.identity()));
    drop(first);
    assert_eq!(measure_by(functions(), &config).unwrap_err().kind(), ErrorKind::Busy);
}

#[test]
fn the_cache_writes_through_until_the_first_flush_as_the_drive_or_else_the_cluster_says() {
    let key = "rbd_cache_writethrough_until_flush";
    let (_fake, plain) = config("through", |_| ());
    let set = || {
        let mut set = SETTINGS.lock().unwrap();
        set.extract_if(.., |[name, _]| name == key).map(|[_, value]| value).collect::<Vec<_>>()
    };
    for (asked, expected) in
        [(None, None), (Some(false), Some("false")), (Some(true), Some("true"))]
    {
        let config = RbdConfig { writethrough_until_flush: asked, ..plain.clone() };
        drop(open_by(functions(), config).unwrap());
        assert_eq!(set(), Vec::from_iter(expected), "{asked:?}");
    }
}

#[test]
fn a_pool_that_is_not_there_is_named() {
    let config = RbdConfig { image: "nowhere/i".parse().unwrap(), ..RbdConfig::default() };
    let text = open_by(functions(), config).err().unwrap().to_string();
    assert!(text.contains("the cluster has no pool nowhere"), "{text}");
}

#[test]
fn a_new_size_is_seen_when_it_is_asked_for() {
    let (fake, driver) = drive("sizes", |state| state.size_bytes = BYTES - 100);
    assert_eq!(driver.capacity(), (BYTES >> 9) - 1);
    fake.0.lock().unwrap().size_bytes = BYTES * 2;
    assert_eq!(driver.revalidate(), Ok((BYTES * 2) >> 9));
    assert_eq!((driver.size_bytes(), driver.capacity()), (BYTES * 2, (BYTES >> 9) - 1));
}

#[test]
fn a_reader_that_cannot_hear_of_a_new_size_says_so() {
    let (fake, config) = config("reader", |_| ());
    let driver = open_by(functions(), RbdConfig { read_only: true, ..config }).unwrap();
    assert_eq!(driver.revalidate(), Ok(BYTES >> 9));
    {
        let mut state = fake.0.lock().unwrap();
        (state.size_bytes, state.known_bytes) = (BYTES * 2, Some(BYTES));
    }
    let text = driver.revalidate().unwrap_err().to_string();
    assert!(text.starts_with("reader/i: it has 32m now"), "{text}");
}

#[test]
fn holes_are_asked_for_in_whole_objects_and_only_where_there_is_an_object_map() {
    let (fake, driver) = drive("holes", |state| state.bytes[OBJECT as usize * 2 + 5] = 1);
    let object = OBJECT >> 9;
    let extents = driver.extents(1, 5 * object);
    let found: Vec<_> = extents.iter().map(|one| (one.nr_sectors, one.zero)).collect();
    assert_eq!(found, [(2 * object - 1, true), (object, false), (2 * object + 1, true)]);
    assert_eq!(fake.0.lock().unwrap().asked, [(0, 6 * OBJECT)]);
    fake.0.lock().unwrap().features = 0x4;
    let whole = Extent { nr_sectors: 9, hole: false, zero: false };
    assert_eq!(driver.extents(1, 9), [whole]);
}

#[test]
fn a_queue_that_is_dropped_with_io_under_way_leaves_its_memory_to_librbd() {
    let mut rig = Rig::with("dropped", 4, 50_000_000);
    rig.set(|state| state.holds = true);
    assert_eq!(rig.run(read()), Status::TimedOut);
    let fake = Arc::clone(&rig.fake);
    drop(rig);
    assert_eq!(fake.held(), 1);
    fake.release();
    assert!(fake.0.lock().unwrap().is_open, "an image in use is not closed");
}
