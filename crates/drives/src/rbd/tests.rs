//! The Ceph drive over a fake librbd, the table of `fake.rs`: the whole path from a channel to
//! librbd's calls and back. For a real cluster see tests/tests/daemon/booted/rbd_cluster.rs.
#![allow(clippy::unwrap_used)]

pub(super) mod fake;

use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_block::{
    Bio, Buffer, Channel, Disk, DiskConfig, Driver, ErrorKind, Extent, OpFlags, Stamp, Status,
    Volume,
};
use millrace_machine::Native;
use millrace_runtime::{IoConfig, IoContext};

use super::control::ControlThread;
use super::open::{look, open_by};
use super::{RbdConfig, RbdDriver};
use fake::{BYTES, Call, Fake, MADE, OBJECT, SETTINGS, State, drive, functions, image};

struct Rig {
    channel: Channel<Native>,
    _context: IoContext,
    fake: Arc<Fake>,
}

impl Rig {
    fn new(pool: &str) -> Rig {
        Rig::with(pool, 64, Duration::from_secs(30))
    }

    fn with(pool: &str, queue_depth: u32, timeout: Duration) -> Rig {
        Rig::on(drive(pool, |_| ()), queue_depth, timeout)
    }

    /// On an image that only these settings of a drive on it tell from others.
    fn of(pool: &str, state: fn(&mut State), settings: fn(&mut RbdConfig)) -> Rig {
        let (fake, mut config) = image(pool, state);
        settings(&mut config);
        let driver = open_by(functions(), config).unwrap();
        Rig::on((fake, driver), 64, Duration::from_secs(30))
    }

    fn on((fake, driver): (Arc<Fake>, RbdDriver), queue_depth: u32, timeout: Duration) -> Rig {
        let config =
            DiskConfig { timeout, queue_depth: Some(queue_depth), ..DiskConfig::default() };
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

    /// Waits for one bio; returns its status and buffer.
    fn wait(&mut self) -> (Status, Option<Buffer>) {
        let mut last = None;
        self.channel.wait(1, |done| last = Some((done.status, done.bio.into_buffer())));
        last.expect("one was waited for")
    }

    fn run(&mut self, bio: Bio) -> Status {
        self.submit(bio);
        self.wait().0
    }

    /// The drive's messages since the last call.
    fn news(&self) -> Vec<String> {
        self.channel.volume().disks()[0].take_news()
    }

    /// Waits for messages of a look at the image that the drive takes on its own.
    fn wait_for_news(&self) -> Vec<String> {
        let give_up = Instant::now() + Duration::from_secs(20);
        while Instant::now() < give_up {
            let news = self.news();
            if !news.is_empty() {
                return news;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Vec::new()
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
fn read_that_moved_less_or_more_than_was_asked_for_is_error() {
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
        // Behind the end of an image that was shrunk.
        (|_| Some(-libc::EINVAL as isize), Status::NoSpace, Status::IoError),
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
fn client_shut_out_or_without_its_image_stops_asking() {
    for (pool, verdict) in [
        // Ceph's EBLOCKLISTED is ESHUTDOWN.
        ("shut-out", (|_| Some(-libc::ESHUTDOWN as isize)) as fn(Call) -> Option<isize>),
        ("no-image", |_| Some(-libc::ENOENT as isize)),
        ("no-lock", |_| Some(-libc::EROFS as isize)),
    ] {
        let mut rig = Rig::new(pool);
        rig.set(|state| state.verdict = Some(verdict));
        assert_eq!(rig.run(write()), Status::Offline);
        rig.set(|state| state.verdict = None);
        assert_eq!((rig.run(read()), rig.run(Bio::flush())), (Status::Offline, Status::Offline));
        assert_eq!((rig.calls().len(), rig.news().len()), (1, 1), "{pool}");
    }
}

#[test]
fn lock_that_is_gone_is_told_once_and_error_of_medium_is_not() {
    let mut rig = Rig::new("told");
    rig.set(|state| state.verdict = Some(|_| Some(-libc::EIO as isize)));
    rig.run(write());
    assert!(rig.news().is_empty());
    rig.set(|state| state.verdict = Some(|_| Some(-libc::EROFS as isize)));
    (0..2).for_each(|_| assert_eq!(rig.run(write()), Status::Offline));
    let told = rig.news();
    assert!(told.len() == 1 && told[0].contains("its exclusive lock is gone"), "{told:?}");
}

#[test]
fn call_refused_by_librbd_returns_its_errno_and_leaks_nothing() {
    let mut rig = Rig::new("refused");
    rig.set(|state| state.refusal = Some(-libc::ENOMEM));
    assert_eq!(rig.run(write()), Status::NoResource);
    rig.set(|state| state.refusal = None);
    assert_eq!(rig.run(write()), Status::Ok);
    assert_eq!(MADE.get(), 0, "every completion was released");
}

#[test]
fn operations_match_librbd_and_durable_writes_flush() {
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
    let mut rig = Rig::with("late", 1, Duration::from_millis(50));
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
fn completions_of_another_thread_wake_the_io_thread() {
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
fn image_locked_by_a_live_client_is_refused() {
    let (fake, config) = config("alive", |state| {
        state.owner = Some("10.0.0.7:0/99".into());
        state.watchers = vec!["10.0.0.8:0/1".into(), "10.0.0.7:0/99".into()];
    });
    assert_eq!(look(functions(), &config).err().unwrap().kind(), ErrorKind::Busy);
    let reader = RbdConfig { read_only: true, ..config.clone() };
    assert_eq!(look(functions(), &reader).unwrap().driver.size_bytes(), BYTES);
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
    assert!(driver.warnings.is_empty());
    drop(driver);
    assert!(!fake.0.lock().unwrap().is_open, "the image is closed with its drive");
}

#[test]
fn image_without_a_lock_is_warned_of_and_sharers_take_none() {
    let (fake, plain) = config("plain", |state| state.features = 1);
    let driver = open_by(functions(), plain.clone()).unwrap();
    assert!(driver.warnings[0].contains("rbd feature enable plain/i exclusive-lock"));
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
    let identity = |config| look(functions(), config).unwrap().identity;
    assert_eq!([&config, &reader].map(identity), [Some(first.identity()); 2]);
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
    let found = look(functions(), &config).unwrap();
    assert_eq!(found.identity, Some(first.identity()));
    drop(first);
    assert_eq!(look(functions(), &config).err().unwrap().kind(), ErrorKind::Busy);
}

#[test]
fn cache_writes_through_until_a_flush_as_the_drive_or_cluster() {
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
fn reader_without_watch_cannot_hear_of_new_size_and_says_so() {
    let (fake, config) = config("reader", |state| state.may_write = false);
    let driver = open_by(functions(), RbdConfig { read_only: true, ..config }).unwrap();
    assert_eq!(driver.revalidate(), Ok(BYTES >> 9));
    {
        let mut state = fake.0.lock().unwrap();
        (state.size_bytes, state.known_bytes) = (BYTES * 2, Some(BYTES));
    }
    let text = driver.revalidate().unwrap_err().to_string();
    assert!(text.starts_with("reader/i: it has 32m now"), "{text}");
}

fn all_fails(rig: &mut Rig) {
    rig.calls();
    assert_eq!(rig.run(read()), Status::Offline);
    // A drive that holds the lock may have written, so its flush must fail.
    let is_locked = rig.fake.0.lock().unwrap().locks > 0;
    let flushed = if is_locked { Status::Offline } else { Status::Ok };
    assert_eq!(rig.run(Bio::flush()), flushed);
    assert!(rig.calls().is_empty(), "librbd is not asked any more");
}

#[test]
fn drive_fails_before_its_image_or_snapshot_is_removed() {
    let snapshot: fn(&mut RbdConfig) = |config| config.image.snapshot = Some("s".into());
    let reader: fn(&mut RbdConfig) = |config| config.read_only = true;
    for (pool, settings, change, words) in [
        (
            "image-rm",
            (|_| ()) as fn(&mut RbdConfig),
            (|state| state.gone[0] = true) as fn(&mut State),
            "the image was removed, for example by `rbd rm`",
        ),
        (
            "reader-rm",
            reader,
            |state| state.gone[0] = true,
            "the image was removed, for example by `rbd rm`",
        ),
        ("snap-rm", snapshot, |state| state.gone[1] = true, "the snapshot was removed"),
        (
            "lock-off",
            |_| (),
            |state| state.features = 1,
            "its exclusive lock is gone because the feature",
        ),
    ] {
        let mut rig = Rig::of(pool, |_| (), settings);
        assert_eq!(rig.run(read()), Status::Ok);
        rig.fake.change(change);
        all_fails(&mut rig);
        let news = rig.news();
        assert!(news.len() == 1 && news[0].contains(words), "{pool}: {news:?}");
        assert!(news[0].starts_with(&format!("rbd:{pool}/i")), "{pool}: {news:?}");
        rig.fake.change(|_| ());
        assert!(rig.news().is_empty(), "it is said once");
    }
}

#[test]
fn changes_that_make_no_answer_wrong_are_no_failure() {
    let reader = |config: &mut RbdConfig| (config.lock, config.read_only) = (false, true);
    for (pool, settings, change) in [
        // Librbd hears that a clone was flattened, and of a new size.
        (
            "harmless",
            (|_| ()) as fn(&mut RbdConfig),
            (|state| (state.overlap_bytes, state.size_bytes) = (0, 2 * BYTES)) as fn(&mut State),
        ),
        // A reader needs no lock.
        ("harmless-reader", reader, |state| state.features = 1),
    ] {
        let mut rig = Rig::of(pool, |state| state.overlap_bytes = BYTES, settings);
        rig.fake.change(change);
        assert_eq!((rig.run(read()), rig.news()), (Status::Ok, vec![]));
        assert_eq!(rig.fake.0.lock().unwrap().looks, 1);
    }
}

#[test]
fn an_image_without_a_watch_is_looked_at_every_few_seconds() {
    let reader = |config: &mut RbdConfig| config.read_only = true;
    let unwatched = |state: &mut State| (state.may_write, state.overlap_bytes) = (false, BYTES);
    for (pool, change, words) in [
        (
            "unseen-rm",
            (|state| state.gone[0] = true) as fn(&mut State),
            "the image was removed, for example by `rbd rm`",
        ),
        ("flattened", |state| state.overlap_bytes = 0, "the image was flattened"),
    ] {
        let mut rig = Rig::of(pool, unwatched, reader);
        rig.set(change);
        let news = rig.wait_for_news();
        assert!(news.len() == 1 && news[0].contains(words), "{pool}: {news:?}");
        all_fails(&mut rig);
    }
}

#[test]
fn writes_behind_a_shrunk_end_lack_space_and_reads_fail() {
    let mut rig = Rig::new("shrunk");
    let behind = (BYTES / 2) >> 9;
    let extents = |rig: &Rig| rig.channel.volume().disks()[0].extents(behind, 8);
    assert!(extents(&rig)[0].zero);
    rig.fake.change(|state| state.size_bytes = BYTES / 2);
    let straddling = || Bio::write(behind - 8, Buffer::new(8192));
    for _ in 0..2 {
        assert_eq!(rig.run(straddling()), Status::NoSpace);
        assert_eq!(rig.run(Bio::write_zeroes(behind, 8)), Status::NoSpace);
        assert_eq!(rig.run(Bio::discard(behind, 8)), Status::NoSpace);
        assert_eq!(rig.run(Bio::read(behind, Buffer::new(4096))), Status::IoError);
        assert!(!extents(&rig)[0].zero, "no zeroes where a read fails");
        assert_eq!((rig.run(write()), rig.run(Bio::flush())), (Status::Ok, Status::Ok));
    }
    let news = rig.news();
    assert!(news.len() == 1 && news[0].contains("shrunk from 16m to 8m"), "{news:?}");
    // The image is enlarged again, and the volume is resized.
    rig.fake.change(|state| state.size_bytes = BYTES);
    assert_eq!(rig.run(straddling()), Status::NoSpace);
    rig.channel.volume().resize().unwrap();
    assert_eq!((rig.run(straddling()), rig.news()), (Status::Ok, vec![]));
}

#[test]
fn sharer_refused_by_another_client_goes_on_later() {
    let mut rig = Rig::of("sharer", |_| (), |config| config.lock = false);
    rig.set(|state| state.verdict = Some(|_| Some(-libc::EROFS as isize)));
    assert_eq!((rig.run(write()), rig.run(write())), (Status::ReadOnly, Status::ReadOnly));
    let news = rig.news();
    assert!(news.len() == 1 && news[0].contains("another client has the image's"), "{news:?}");
    assert_eq!(rig.run(Bio::flush()), Status::Ok, "nothing was written that could be lost");
    rig.set(|state| state.verdict = None);
    assert_eq!(rig.run(write()), Status::Ok);
    rig.set(|state| state.verdict = Some(|_| Some(-libc::EROFS as isize)));
    assert_eq!(rig.run(Bio::flush()), Status::ReadOnly, "the write above may be lost");
}

#[test]
fn read_only_user_is_refused_as_writer_and_warned_as_reader() {
    let (_fake, config) = config("caps", |state| state.may_write = false);
    let text = look(functions(), &config).err().unwrap().to_string();
    assert!(text.starts_with("caps/i: client.admin may not write to this image"), "{text}");
    let reader = RbdConfig { read_only: true, ..config };
    let warnings = look(functions(), &reader).unwrap().warnings;
    assert!(warnings[0].contains("client.admin may only read, so"), "{warnings:?}");
    assert_eq!(open_by(functions(), reader).unwrap().warnings, warnings);
}

#[test]
fn a_sharer_beside_a_client_that_has_the_lock_is_warned_of() {
    let (_fake, config) = config("beside", |state| {
        state.owner = Some("10.0.0.7:0/99".into());
        state.watchers = vec!["10.0.0.7:0/99".into()];
    });
    let sharer = RbdConfig { lock: false, ..config };
    let warnings = look(functions(), &sharer).unwrap().warnings;
    assert!(warnings[0].contains("the client at 10.0.0.7:0/99 has this image's"), "{warnings:?}");
    assert_eq!(open_by(functions(), sharer).unwrap().warnings, warnings);
}

#[test]
fn an_opening_that_waits_for_the_lock_ends_when_it_is_told_to() {
    let (fake, config) = config("cancelled", |state| {
        state.owner = Some("10.0.0.7:0/99".into());
        state.watchers = vec!["10.0.0.7:0/99".into()];
    });
    let config = RbdConfig { connect: Duration::from_secs(3600), ..config };
    let cancel = config.cancel.clone();
    let setter = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        cancel.set();
    });
    let text = open_by(functions(), config).err().unwrap().to_string();
    setter.join().unwrap();
    assert_eq!(text, "cancelled/i: the opening was stopped");
    let state = fake.0.lock().unwrap();
    assert_eq!((state.locks, state.is_open), (0, false));
}

#[test]
fn drive_that_ends_while_its_image_is_probed_closes_it_all() {
    let (fake, driver) = drive("ends", |state| state.look_time = Duration::from_millis(300));
    let looking = Arc::clone(&fake);
    let looker = std::thread::spawn(move || looking.change(|_| ()));
    std::thread::sleep(Duration::from_millis(50));
    drop(driver);
    assert!(!fake.0.lock().unwrap().is_open, "the image is closed with its drive");
    looker.join().unwrap();
}

#[test]
fn holes_are_asked_for_in_objects_with_an_object_map_only() {
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
fn queue_dropped_with_io_under_way_leaves_memory_to_librbd() {
    let mut rig = Rig::with("dropped", 4, Duration::from_millis(50));
    rig.set(|state| state.holds = true);
    assert_eq!(rig.run(read()), Status::TimedOut);
    let fake = Arc::clone(&rig.fake);
    drop(rig);
    assert_eq!(fake.held(), 1);
    fake.release();
    assert!(fake.0.lock().unwrap().is_open, "an image in use is not closed");
}

#[test]
fn control_thread_that_the_system_refuses_is_an_error() {
    let (_fake, config) = config("no-thread", |state| state.may_write = false);
    let driver = open_by(functions(), RbdConfig { read_only: true, ..config }).unwrap();
    std::thread::spawn(move || {
        millrace_require::forbid_threads();
        let error = ControlThread::start(&driver.shared).err().unwrap().to_string();
        assert!(error.starts_with("cannot start the thread millrace-rbd: "), "{error}");
    })
    .join()
    .unwrap();
}
