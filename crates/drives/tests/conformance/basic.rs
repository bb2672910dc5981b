//! Conformance of every drive: keep bytes, refuse invalid bios, flush, discard, zero.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use millrace_block::blktrace::EventCode;
use millrace_block::{
    Bio, Buffer, Disk, DiskConfig, ErrorKind, Op, OpFlags, Reject, Stamp, Status, TraceSink, Volume,
};
use millrace_drives::{
    Advice, Aio, Direct, DryRun, FileConfig, FileDriver, OpenOptions, SpecError,
};
use millrace_runtime::{IoConfig, IoContext};

use crate::harness::{KEEPERS, Kind, Plan, Rig, buffer_of, pattern, plans};
use crate::trace::Sink;

#[test]
fn bytes_come_back_at_all_sizes_and_places() {
    for plan in plans(&KEEPERS) {
        let mut rig = Rig::new(&plan);
        for (round, len) in [512, 1024, 4096, 4608, 65_536, 1 << 20, (1 << 20) + 512, 3 << 20]
            .into_iter()
            .enumerate()
        {
            let sector = 7 * round as u64 + 1;
            let data = pattern(sector, len, round as u64);
            rig.write(sector, &data);
            assert!(rig.read(sector, len) == data, "{len} bytes at sector {sector}");
        }
        let last = rig.drives.volume.capacity() - 1;
        let data = pattern(last, 512, 99);
        rig.write(last, &data);
        assert!(rig.read(last, 512) == data, "the last sector");
    }
}

#[test]
fn lists_of_buffers_are_one_io() {
    for plan in plans(&KEEPERS) {
        let mut rig = Rig::new(&plan);
        let lens = [512, 4096, 1536, 65_536, 512, 512, 8192];
        let total: usize = lens.iter().sum();
        let data = pattern(3, total, 5);
        let mut rest = &data[..];
        let mut piece = |len: usize| {
            let (head, tail) = rest.split_at(len);
            rest = tail;
            buffer_of(head)
        };
        let pieces = lens.map(&mut piece).into_iter().collect();
        rig.run_ok(Bio::writev(3, pieces));
        assert!(rig.read(3, total) == data, "written from a list");
        let bio = rig.run_ok(Bio::readv(3, lens.map(Buffer::new).into_iter().collect()));
        let back = bio.into_buffers().iter().map(|b| b.to_vec()).collect::<Vec<_>>().concat();
        assert!(back == data, "read into a list");
    }
}

#[test]
fn list_of_more_buffers_than_a_request_takes_is_split() {
    for plan in plans(&KEEPERS) {
        let mut rig = Rig::new(&plan);
        let data = pattern(9, 700 * 512, 1);
        rig.run_ok(Bio::writev(9, data.chunks(512).map(buffer_of).collect()));
        assert!(rig.read(9, data.len()) == data);
    }
}

#[test]
fn foreign_memory_is_bounced_only_at_odd_addresses() {
    for plan in plans(&KEEPERS) {
        let sink = Arc::new(Sink::default());
        let trace: Arc<dyn TraceSink> = sink.clone();
        let mut rig = Rig::new(&Plan { trace: Some(trace), ..plan });
        let (mut source, mut target) = (vec![0u8; 70_000], vec![0u8; 70_000]);
        source[1..65_537].copy_from_slice(&pattern(5, 65_536, 3));
        // SAFETY: both vectors outlive the bios, which are waited for here.
        let (write, read) = unsafe {
            let write = Bio::foreign(Op::Write, 5, source.as_mut_ptr().add(1), 65_536);
            (write, Bio::foreign(Op::Read, 5, target.as_mut_ptr().add(3), 65_536))
        };
        rig.run_ok(write.with_user_data(1));
        rig.run_ok(read.with_user_data(2));
        assert!(target[3..65_539] == source[1..65_537]);
        assert!(rig.read(5, 65_536) == source[1..65_537]);
        let bounces: u64 = rig.drives.files.iter().map(|file| file.bounces.load(Relaxed)).sum();
        let aligned = rig.drives.volume.limits().dma_alignment == 0;
        assert_eq!(bounces, if aligned { 0 } else { 2 });
        let way = [EventCode::Insert, EventCode::Bounce, EventCode::Issue, EventCode::Complete];
        let way: Vec<_> = way.into_iter().filter(|a| !aligned || *a != EventCode::Bounce).collect();
        for number in [1, 2] {
            let mut actions = sink.actions_of(number);
            actions.retain(|action| *action == EventCode::Bounce || way.contains(action));
            assert_eq!(actions, way, "bounces are seen between insertion and dispatch");
        }
        assert!(!sink.actions_of(0).contains(&EventCode::Bounce), "an aligned read");
    }
}

#[test]
fn more_misaligned_requests_than_bounce_buffers_wait_and_finish() {
    for plan in plans(&[Kind::File, Kind::FileThreads]) {
        let mut rig = Rig::new(&plan);
        rig.write(0, &pattern(0, 1 << 20, 1));
        let mut memory = vec![0u8; 100 * 8192];
        for n in 0..100u64 {
            // SAFETY: the vector outlives the bios; the pieces do not overlap.
            let bio = unsafe {
                let start = memory.as_mut_ptr().add(n as usize * 8192 + 1);
                Bio::foreign(Op::Read, n * 16, start, 4096)
            };
            rig.submit(bio);
        }
        assert!(rig.drain().iter().all(|done| done.status == Status::Ok));
        for n in 0..100 {
            assert!(memory[n * 8192 + 1..][..4096] == pattern(n as u64 * 16, 4096, 1));
        }
    }
}

#[test]
fn wrong_bios_are_refused_with_the_exact_status() {
    for plan in plans(&[Kind::Null, Kind::Ram, Kind::Model, Kind::File, Kind::FaultRam]) {
        let mut rig = Rig::new(&plan);
        let end = rig.drives.volume.capacity();
        let invalid = |status| Reject::Invalid(status);
        let cases = [
            (Bio::read(end, Buffer::new(512)), Status::OutOfRange),
            (Bio::write(end - 1, Buffer::new(1024)), Status::OutOfRange),
            (Bio::read(u64::MAX, Buffer::new(512)), Status::OutOfRange),
            (Bio::discard(end - 8, 9), Status::OutOfRange),
            (Bio::write_zeroes(0, 0), Status::Invalid),
        ];
        for (bio, status) in cases {
            assert_eq!(rig.rejection(bio), invalid(status));
        }
    }
    for plan in plans(&[Kind::Ram, Kind::ModelRam, Kind::FaultRam]) {
        let mut rig = Rig::new(&Plan { block: 4096, ..plan });
        assert_eq!(
            rig.rejection(Bio::read(1, Buffer::new(4096))),
            Reject::Invalid(Status::Invalid)
        );
        assert_eq!(
            rig.rejection(Bio::write(8, Buffer::new(512))),
            Reject::Invalid(Status::Invalid)
        );
        rig.write(8, &pattern(8, 4096, 0));
    }
}

#[test]
fn flushes_fua_and_preflush_complete_on_every_drive() {
    let mut kinds = KEEPERS.to_vec();
    kinds.extend([Kind::Null, Kind::Model, Kind::FaultVolatileWithoutFua]);
    for plan in plans(&kinds) {
        let mut rig = Rig::new(&plan);
        rig.run_ok(Bio::flush());
        for flags in [OpFlags::FUA, OpFlags::PREFLUSH, OpFlags::FUA.with(OpFlags::PREFLUSH)] {
            let data = pattern(11, 8192, 4);
            rig.run_ok(Bio::write(11, buffer_of(&data)).with_flags(flags));
            rig.run_ok(Bio::write_zeroes(64, 8).with_flags(flags));
            if !matches!(plan.kind, Kind::Null | Kind::Model) {
                assert!(rig.read(11, 8192) == data);
            }
        }
        let zeroes = Bio::discard(11, 16).with_flags(OpFlags::FUA);
        rig.run_ok(zeroes);
    }
}

#[test]
fn discarded_and_zeroed_ranges_read_as_zeroes_alone() {
    for plan in plans(&KEEPERS) {
        let mut rig = Rig::new(&plan);
        for (round, (sector, nr)) in
            [(100, 1), (100, 8), (96, 8), (1, 600), (17, 300)].into_iter().enumerate()
        {
            let zeroes = [
                Bio::discard(sector, nr),
                Bio::write_zeroes(sector, nr),
                Bio::write_zeroes(sector, nr).with_flags(OpFlags::NOUNMAP),
            ];
            for bio in zeroes {
                let mut expected = pattern(0, 1024 * 512, round as u64);
                rig.write(0, &expected);
                rig.run_ok(bio);
                expected[sector as usize * 512..][..nr as usize * 512].fill(0);
                assert!(rig.read(0, 1024 * 512) == expected, "{nr} sectors at {sector}");
            }
        }
    }
}

#[test]
fn depth_of_256_passes_through_8_tags() {
    let mut kinds = KEEPERS.to_vec();
    kinds.extend([Kind::Null, Kind::Model]);
    for plan in plans(&kinds) {
        let mut rig = Rig::new(&Plan { queue_depth: Some(8), ..plan.clone() });
        for n in 0..256u64 {
            // Gaps, so that nothing merges.
            rig.submit(Bio::write(n * 16, buffer_of(&pattern(n * 16, 4096, 2))));
        }
        let done = rig.drain();
        assert_eq!(done.len(), 256);
        assert!(done.iter().all(|done| done.status == Status::Ok));
        assert_eq!(rig.drives.volume.disks()[0].tags_in_use(), 0);
        if !matches!(plan.kind, Kind::Null | Kind::Model) {
            assert!((0..256).all(|n| rig.read(n * 16, 4096) == pattern(n * 16, 4096, 2)));
        }
    }
}

#[test]
fn drive_without_contents_leaves_memory_alone() {
    for plan in plans(&[Kind::Null, Kind::Model]) {
        assert!(Rig::new(&plan).read(0, 4096).iter().all(|byte| *byte == 0xee));
    }
}

#[test]
fn file_that_is_in_use_is_refused_by_its_path_and_readers_share() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("d0");
    let writer = FileConfig { path: path.clone(), size_bytes: Some(1 << 20), ..Default::default() };
    let reader = FileConfig { path: path.clone(), read_only: true, ..Default::default() };
    let kind_of = |config: &FileConfig| {
        let error = FileDriver::open(config.clone()).expect_err("in use");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        error.kind()
    };
    let open = FileDriver::open(writer.clone()).unwrap();
    std::thread::scope(|scope| {
        // Both try to open at the same time, since each tries for three seconds.
        for config in [&writer, &reader] {
            scope.spawn(|| assert_eq!(kind_of(config), ErrorKind::Busy));
        }
    });
    drop(open);
    let readers = [FileDriver::open(reader.clone()).unwrap(), FileDriver::open(reader).unwrap()];
    assert_eq!(readers[0].identity(), readers[1].identity());
    assert_eq!(kind_of(&writer), ErrorKind::Busy);
    drop(readers);
    FileDriver::open(writer).unwrap();
}

#[test]
fn file_cut_short_behind_drives_back_gives_error_and_no_hang() {
    for plan in plans(&[Kind::File, Kind::FileThreads, Kind::FileBuffered, Kind::FileInline]) {
        let mut rig = Rig::new(&plan);
        rig.write(0, &pattern(0, 8192, 1));
        let path = rig.drives.paths[0].clone();
        std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(4096).unwrap();
        assert_eq!(rig.run(Bio::read(0, Buffer::new(8192))).status, Status::IoError);
        assert!(rig.read(0, 4096) == pattern(0, 4096, 1));
    }
}

#[test]
fn file_longer_than_the_drive_is_left_as_it_is_by_opening_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("long");
    std::fs::write(&path, vec![0xaa; 4 << 20]).expect("room");
    let spec = format!("file:path={},size=1m", path.display()).parse().expect("a spec");
    let opened = millrace_drives::open(&spec, 1).expect("a drive");
    drop(opened);
    let bytes = std::fs::read(&path).expect("still there");
    assert!(bytes.len() == 4 << 20 && bytes.iter().all(|byte| *byte == 0xaa));
}

#[test]
fn short_file_grows_only_if_told_or_empty() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("d");
    let open = |keys: &str| {
        let spec = format!("file:path={},size=2m{keys}", path.display());
        millrace_drives::open(&spec.parse().expect("a spec"), 1)
    };
    let length = || std::fs::metadata(&path).expect("still there").len();
    std::fs::write(&path, [7; 1000]).expect("room");
    let error = open("").expect_err("it would grow").to_string();
    assert!(error.contains("it has 1000 and size=2m") && error.contains("grow=on"), "{error}");
    assert_eq!(length(), 1000);
    open(",grow=on").expect("told");
    assert_eq!(length(), 2 << 20);
    assert!(std::fs::read(&path).expect("readable").starts_with(&[7; 1000]));
    std::fs::write(&path, "").expect("room");
    open("").expect("an empty file has nothing to lose");
    assert_eq!(length(), 2 << 20);
}

#[test]
fn what_a_drive_would_be_is_known_without_opening_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("d");
    let dry_run = DryRun { until: Instant::now(), new_folder: None };
    let options = OpenOptions { dry_run: Some(dry_run), ..OpenOptions::default() };
    let look = |spec: String| {
        let opened = millrace_drives::open_with(&spec.parse().expect("a spec"), 1, &options)?;
        let driver = &opened.driver;
        Ok::<_, SpecError>((driver.size_bytes(), driver.limits().logical_block_size))
    };
    let measure = |keys: &str| look(format!("file:path={}{keys}", path.display()));
    let error = measure("").expect_err("neither a file nor a size").to_string();
    assert!(error.contains("there is no such file; give size="), "{error}");
    for spec in
        ["file:path=/dev/no-such-disk,size=1m", "file:path=/dev/../dev/no-such-disk,size=1m"]
    {
        let opened = millrace_drives::open(&spec.parse().expect("a spec"), 1);
        let error = opened.expect_err("no file is created in /dev").to_string();
        assert!(error.contains("there is no such device; correct the path"), "{error}");
        assert_eq!(look(spec.to_owned()).expect_err("a dry run says so, too").to_string(), error);
    }
    for keys in [",read-only=on", ",read-only=on,size=1m"] {
        let spec = format!("file:path={}{keys}", path.display()).parse().expect("a spec");
        let error = millrace_drives::open(&spec, 1).expect_err("nothing to read").to_string();
        assert!(error.contains("there is no such file; create it"), "{keys}: {error}");
    }
    assert_eq!(measure(",size=1m").expect("to be made").0, 1 << 20);
    assert!(!path.exists());
    std::fs::write(&path, [7; 1100]).expect("room");
    let measured = measure("").expect("a file");
    let opened = millrace_drives::open(&measured_spec(&path), 1).expect("a drive");
    let block_bytes = opened.driver.limits().logical_block_size;
    assert_eq!((measured, opened.driver.size_bytes()), ((1100, block_bytes), 1100));
    assert_eq!(opened.driver.capacity(), 2);
    drop(opened);
    let around = look(format!("fault:drive=(file:path={}),dead=on", path.display()));
    assert_eq!(around.expect("a file"), measured);
    assert!(measure(",size=2m").is_err_and(|error| error.to_string().contains("grow=on")));
    assert_eq!(measure(",size=2m,grow=on").expect("longer").0, 2 << 20);
    assert_eq!(std::fs::read(&path).expect("a file"), [7; 1100], "nothing has changed");
    std::fs::File::open(&path).expect("a file").try_lock().expect("no lock is kept");
}

fn measured_spec(path: &std::path::Path) -> millrace_drives::Spec {
    format!("file:path={}", path.display()).parse().expect("a spec")
}

/// Pages of a file in the page cache.
fn cached_pages(file: &std::fs::File, len_bytes: usize) -> usize {
    let mut pages = vec![0u8; len_bytes.div_ceil(4096)];
    // SAFETY: a mapping of our own of a file that nobody cuts short, a byte for each of its pages.
    unsafe {
        let (read, shared) = (libc::PROT_READ, libc::MAP_SHARED);
        let at = libc::mmap(std::ptr::null_mut(), len_bytes, read, shared, file.as_raw_fd(), 0);
        assert_eq!(libc::mincore(at, len_bytes, pages.as_mut_ptr()), 0);
        libc::munmap(at, len_bytes);
    }
    pages.iter().filter(|page| **page & 1 == 1).count()
}

#[test]
fn page_cache_reads_nothing_ahead_of_declared_random_reads() {
    const LEN: usize = 1 << 20;
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("d");
    std::fs::write(&path, vec![1; LEN]).unwrap();
    let kept = std::fs::File::open(&path).unwrap();
    let pages_of = |advice| {
        let config = FileConfig { path: path.clone(), advice, ..FileConfig::default() };
        let config = FileConfig { direct: Direct::Off, aio: Aio::Inline, ..config };
        let disk = Disk::new(Box::new(FileDriver::open(config).unwrap()), DiskConfig::default());
        let mut context = IoContext::new(IoConfig::default()).unwrap();
        let volume = Volume::single(disk.unwrap()).unwrap();
        let mut channel = context.channel(&volume, 64, Stamp::Batch).unwrap();
        // Opening has looked at the file, too.
        kept.sync_all().unwrap();
        // SAFETY: no memory is involved.
        unsafe { libc::posix_fadvise(kept.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        assert_eq!(cached_pages(&kept, LEN), 0);
        channel.submit(Bio::read(0, Buffer::new(4096))).unwrap();
        channel.wait(1, |done| assert_eq!(done.status, Status::Ok));
        cached_pages(&kept, LEN)
    };
    assert_eq!(pages_of(Advice::Random), 1);
    assert!(pages_of(Advice::Normal) > 1);
    assert!(pages_of(Advice::Sequential) > 1);
}
