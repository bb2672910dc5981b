//! Growing volumes under I/O: the new size, refusals, and the order of notifications.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::support::{Knobs, TestDrive, pattern, run};
use millrace_block::baseline::Stack;
use millrace_block::{
    AfterCompletion, Bio, Buffer, Channel, ChannelConfig, Disk, DiskConfig, ErrorKind, Layout,
    Reject, Serving, ServingConfig, Status, Volume,
};
use millrace_machine::Native;
use proptest::prelude::*;

const STRIPE: Layout = Layout::Stripe { chunk_sectors: 8 };
const OUTSIDE: Reject = Reject::Invalid(Status::OutOfRange);

type Parts = (Arc<Volume<Native>>, Vec<Arc<Knobs>>);

fn made_of(layout: Layout, drives: Vec<TestDrive>, serving: Serving, stack: Stack) -> Parts {
    let (mut disks, mut knobs) = (Vec::new(), Vec::new());
    for (number, drive) in drives.into_iter().enumerate() {
        knobs.push(Arc::clone(&drive.knobs));
        let name = format!("d{number}");
        let config = DiskConfig { name, baseline: stack.into(), ..DiskConfig::default() };
        disks.push(Disk::new(Box::new(drive), config).unwrap());
    }
    let serving = ServingConfig::of(serving);
    (Volume::with_serving("v", layout, disks, serving).unwrap(), knobs)
}

fn volume(layout: Layout, sizes: &[u64]) -> Parts {
    let drives = sizes.iter().map(|sectors| TestDrive::new(*sectors)).collect();
    made_of(layout, drives, Serving::Inline, Stack::Mq)
}

fn open(volume: &Arc<Volume<Native>>) -> Channel<Native> {
    Channel::open(volume, ChannelConfig::default()).expect("its queues are served")
}

fn read(sector: u64) -> Bio {
    Bio::read(sector, Buffer::new(4096))
}

fn refusal(channel: &mut Channel<Native>, bio: Bio) -> Reject {
    channel.submit(bio).expect_err("refused").reason
}

/// The sizes before and after.
fn grow(volume: &Volume<Native>) -> (u64, u64) {
    let resized = volume.resize().unwrap();
    assert_eq!(volume.capacity(), resized.new);
    (resized.old, resized.new)
}

fn refused(volume: &Volume<Native>) -> (ErrorKind, String) {
    let before: Vec<u64> = volume.disks().iter().map(|disk| disk.capacity()).collect();
    let (capacity, error) = (volume.capacity(), volume.resize().unwrap_err());
    let after: Vec<u64> = volume.disks().iter().map(|disk| disk.capacity()).collect();
    assert_eq!((volume.capacity(), after), (capacity, before), "nothing changes");
    (error.kind(), error.to_string())
}

#[test]
fn old_end_refuses_before_growth_and_serves_after_it() {
    for stack in [Stack::Mq, Stack::Sq, Stack::Raw] {
        for serving in [Serving::Inline, Serving::PerVolume] {
            let drives = vec![TestDrive::new(64), TestDrive::new(64)];
            let (volume, knobs) = made_of(STRIPE, drives, serving, stack);
            let mut channel = open(&volume);
            assert_eq!(refusal(&mut channel, read(128)), OUTSIDE);
            assert_eq!(refusal(&mut channel, read(124)), OUTSIDE);
            knobs.iter().for_each(|knobs| knobs.resize(128));
            // The volume has not been resized yet.
            assert_eq!(refusal(&mut channel, read(128)), OUTSIDE);
            assert_eq!(grow(&volume), (128, 256));
            let mut late = open(&volume);
            for (sector, channel) in [(124, &mut channel), (248, &mut late)] {
                let data = pattern(8, sector as u8);
                assert_eq!(run(channel, Bio::write(sector, data)).0, Status::Ok);
                let (status, bio) = run(channel, read(sector));
                assert_eq!(status, Status::Ok);
                assert_eq!(&bio.into_buffers()[0][..], &pattern(8, sector as u8)[..]);
            }
            assert_eq!(refusal(&mut channel, read(256)), OUTSIDE);
            assert_eq!(refusal(&mut late, read(252)), OUTSIDE);
        }
    }
}

#[test]
fn bios_behind_an_old_end_take_the_short_way_again() {
    let (volume, knobs) = volume(Layout::Linear, &[64]);
    let mut channel = open(&volume);
    knobs[0].resize(128);
    grow(&volume);
    channel.submit(read(0)).unwrap();
    // A bio that is resubmitted from its completion passes a check of its own.
    let sent = channel.poll_again(|bio, _| {
        bio.set_sector(120);
        AfterCompletion::Submit
    });
    let mut statuses = Vec::new();
    while channel.in_flight() > 0 {
        channel.poll_again(|bio, status| {
            statuses.push((bio.sector(), status));
            AfterCompletion::Drop
        });
    }
    assert_eq!((sent, statuses), (1, vec![(120, Status::Ok)]));
}

#[test]
fn the_smallest_drive_of_a_stripe_counts() {
    let (volume, knobs) = volume(STRIPE, &[64, 100, 64]);
    assert_eq!(volume.capacity(), 3 * 64);
    knobs[0].resize(128);
    let resized = volume.resize().unwrap();
    assert_eq!((resized.old, resized.new), (192, 192));
    let drives: Vec<_> = resized.drives.iter().map(|d| (d.name.as_str(), d.old, d.new)).collect();
    assert_eq!(drives, [("d0", 64, 128), ("d1", 100, 100), ("d2", 64, 64)]);
    let needs: Vec<_> = resized.needs.iter().map(|d| (d.name.as_str(), d.has, d.needs)).collect();
    assert_eq!(needs, [("d2", 64, 72)], "a chunk of 8 sectors more");
    knobs[2].resize(1000);
    // The second drive's 100 sectors, rounded down to whole chunks, limit the stripe.
    assert_eq!(grow(&volume), (192, 3 * 96));
    assert_eq!(grow(&volume), (288, 288));
}

#[test]
fn of_drives_one_behind_the_other_only_the_last_may_grow() {
    let (two, knobs) = volume(Layout::Linear, &[64, 64]);
    let mut channel = open(&two);
    assert_eq!(run(&mut channel, Bio::write(64, pattern(8, 7))).0, Status::Ok);
    let needs = two.resize().unwrap().needs;
    let needs: Vec<_> = needs.iter().map(|d| (d.name.as_str(), d.has, d.needs)).collect();
    assert_eq!(needs, [("d1", 64, 65)]);
    knobs[1].resize(80);
    assert_eq!(two.resize().unwrap().needs, []);
    assert_eq!(two.capacity(), 144);
    assert_eq!(run(&mut channel, read(136)).0, Status::Ok);
    knobs[0].resize(72);
    let (kind, text) = refused(&two);
    assert_eq!(kind, ErrorKind::InvalidSetting);
    assert!(text.starts_with("drive d0: it has 36864 bytes now"), "{text}");
    assert!(text.contains("only the last drive may grow") && text.contains("32768"), "{text}");
    let (_, bio) = run(&mut channel, read(64));
    assert_eq!(&bio.into_buffers()[0][..], &pattern(8, 7)[..]);
    let (one, knobs) = volume(Layout::Linear, &[64]);
    knobs[0].resize(65);
    assert_eq!(grow(&one), (64, 65));
}

#[test]
fn smaller_drive_is_refused_with_what_to_do_and_nothing_changes() {
    for layout in [STRIPE, Layout::Linear] {
        let (volume, knobs) = volume(layout, &[64, 64]);
        knobs[0].resize(56);
        knobs[1].resize(128);
        let (kind, text) = refused(&volume);
        assert_eq!(kind, ErrorKind::InvalidSetting);
        let said = "drive d0: it has 28672 bytes now, and 32768 are served; a drive only grows \
                    while it is served: give it back what it had, or stop and start again with less";
        assert_eq!(text, said);
        assert_eq!(refusal(&mut open(&volume), read(128)), OUTSIDE);
        knobs[0].resize(64);
        assert_eq!(grow(&volume).1, if layout == STRIPE { 128 } else { 192 });
    }
}

#[test]
fn what_is_less_than_a_block_does_not_count() {
    let mut coarse = TestDrive::new(64);
    coarse.limits.logical_block_size = 4096;
    let drives = vec![TestDrive::new(64), coarse];
    let (volume, knobs) = made_of(Layout::Linear, drives, Serving::Inline, Stack::Mq);
    knobs[0].resize(71);
    knobs[1].resize(71);
    assert_eq!(grow(&volume), (128, 128));
    knobs[1].resize(72);
    assert_eq!(grow(&volume), (128, 136));
}

#[test]
fn a_drive_that_cannot_be_asked_leaves_all_as_it_is() {
    let (volume, knobs) = volume(STRIPE, &[64, 64]);
    knobs.iter().for_each(|knobs| knobs.resize(128));
    knobs[1].mute.store(true, Ordering::SeqCst);
    assert_eq!(refused(&volume), (ErrorKind::System, String::from("no answer")));
    knobs[1].mute.store(false, Ordering::SeqCst);
    assert_eq!(grow(&volume), (128, 256));
}

#[test]
fn who_watches_hears_each_growth_once_until_the_watch_ends() {
    let (volume, knobs) = volume(Layout::Linear, &[64]);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let watch = |name: &'static str| {
        let (heard, at) = (Arc::clone(&heard), Arc::downgrade(&volume));
        volume.watch_size(move |sectors| {
            // The new size is visible already, while the resize itself is still under way.
            let volume = at.upgrade().unwrap();
            assert_eq!(volume.capacity(), sectors);
            assert_eq!(volume.resize().unwrap_err().kind(), ErrorKind::Busy);
            drop(volume.watch_size(|_| unreachable!("came too late")));
            heard.lock().unwrap().push((name, sectors));
        })
    };
    let (first, second) = (watch("first"), watch("second"));
    assert_eq!(grow(&volume), (64, 64));
    knobs[0].resize(72);
    grow(&volume);
    drop(first);
    knobs[0].resize(80);
    grow(&volume);
    drop(second);
    knobs[0].resize(88);
    grow(&volume);
    assert_eq!(*heard.lock().unwrap(), [("first", 72), ("second", 72), ("second", 80)]);
    let left = volume.watch_size(|_| ());
    drop(volume);
    drop(left);
}

#[test]
fn who_submits_all_the_while_sees_one_end_and_then_the_other() {
    let (volume, knobs) = volume(STRIPE, &[64, 64]);
    let told = Arc::new(AtomicU64::new(128));
    let seen = Arc::clone(&told);
    let _watch = volume.watch_size(move |sectors| seen.store(sectors, Ordering::SeqCst));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let (mut channel, mut end) = (open(&volume), 128);
                while end < 1024 {
                    let known = told.load(Ordering::SeqCst);
                    match channel.submit(read(end)) {
                        Ok(()) => end += 64,
                        Err(rejected) => {
                            assert_eq!(rejected.reason, OUTSIDE);
                            assert!(known <= end, "{known} sectors were told of, not {end}");
                        }
                    }
                    channel.wait(1, |done| assert_eq!(done.status, Status::Ok));
                }
            });
        }
        for sectors in (96..=544).step_by(32) {
            knobs.iter().for_each(|knobs| knobs.resize(sectors));
            grow(&volume);
            std::thread::yield_now();
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Random growths of drives, compared with the sum or the smallest size; written data stay in
    /// place.
    #[test]
    fn sizes_agree_with_a_plain_model_and_no_sector_moves(
        stripe in any::<bool>(),
        mut sizes in proptest::collection::vec(16u64..200, 1..5),
        growths in proptest::collection::vec((0usize..5, 0u64..100), 1..12),
    ) {
        let (volume, knobs) = volume(if stripe { STRIPE } else { Layout::Linear }, &sizes);
        let model = |sizes: &[u64]| match stripe {
            true => sizes.iter().min().unwrap() / 8 * 8 * sizes.len() as u64,
            false => sizes.iter().sum(),
        };
        let mut channel = open(&volume);
        let mut written = 0;
        for (which, more) in growths {
            let (which, before) = (which % sizes.len(), sizes.clone());
            let may = stripe || which + 1 == sizes.len() || more == 0;
            sizes[which] += more;
            knobs[which].resize(sizes[which]);
            match may {
                true => prop_assert_eq!(grow(&volume), (model(&before), model(&sizes))),
                false => {
                    prop_assert_eq!(refused(&volume).0, ErrorKind::InvalidSetting);
                    sizes = before;
                    knobs[which].resize(sizes[which]);
                }
            }
            let end = model(&sizes);
            prop_assert_eq!(refusal(&mut channel, Bio::read(end, Buffer::new(512))), OUTSIDE);
            for sector in written..end {
                let bio = Bio::write(sector, pattern(1, sector as u8));
                prop_assert_eq!(run(&mut channel, bio).0, Status::Ok);
            }
            written = end;
            for sector in 0..end {
                let (status, bio) = run(&mut channel, Bio::read(sector, Buffer::new(512)));
                prop_assert_eq!(status, Status::Ok);
                prop_assert_eq!(&bio.into_buffers()[0][..], &pattern(1, sector as u8)[..]);
            }
        }
    }
}

#[test]
fn volume_over_another_grows_with_that_one_and_names_its_drives() {
    let (below, drives) = volume(Layout::Linear, &[64, 64]);
    let upper = TestDrive::new(128);
    let knobs = Arc::clone(&upper.knobs);
    let disk = Disk::new(Box::new(upper), DiskConfig::default()).unwrap();
    let over = Volume::over(Arc::clone(&below), disk).unwrap();
    let mut channel = open(&over);
    assert_eq!(refusal(&mut channel, read(184)), OUTSIDE);
    drives[1].resize(128);
    knobs.resize(192);
    let resized = over.resize().unwrap();
    assert_eq!((resized.old, resized.new), (128, 192));
    assert_eq!((over.capacity(), below.capacity()), (192, 192));
    let sizes = resized.drives.iter().map(|drive| (drive.name.as_str(), drive.old, drive.new));
    assert_eq!(sizes.collect::<Vec<_>>(), [("d0", 64, 64), ("d1", 64, 128)]);
    assert_eq!(run(&mut channel, read(184)).0, Status::Ok);
    // A resize that the lower volume refuses changes neither volume.
    drives[0].resize(128);
    let (kind, text) = refused(&over);
    assert_eq!(kind, ErrorKind::InvalidSetting, "{text}");
    assert_eq!(below.capacity(), 192);
}
