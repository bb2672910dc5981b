//! Real programs on a volume: what cp and tar do is recorded whole, and replayed whole in each way
//! of serving a stripe.

use millrace_tests::guest::Image;
use millrace_tests::mounted::obstacle;
use millrace_tests::programs::{Amounts, Kind, Recordings, Rig, in_guest, real};
use millrace_tests::require_clients;

const AMOUNTS: Amounts = Amounts { copy_mib: 8, files: 60, file_bytes: 12 << 10 };
/// Number of bytes copied, and a lower bound of the bytes in the tree's files.
const COPIED: u64 = 8 << 20;
const TREE: u64 = 400 << 10;

/// Looks at what each program did, and replays all of it.
fn are_whole(recordings: &Recordings) {
    let traffic = recordings.traffic();
    assert_eq!(traffic.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), Kind::ALL);
    for (kind, seen) in traffic {
        let written = seen.bytes - seen.read_bytes;
        // Each reads and writes what it must, and the file system at most as much again.
        let (reads, writes) = match kind {
            Kind::CopyTo => (0, COPIED),
            Kind::CopyFrom => (COPIED, 0),
            Kind::Untar | Kind::Tar => (TREE, TREE),
        };
        assert!((reads..=2 * reads + (1 << 20)).contains(&seen.read_bytes), "{kind:?}: {seen:?}");
        assert!((writes..=2 * writes + (2 << 20)).contains(&written), "{kind:?}: {seen:?}");
        // No bio is longer than those of [FALCON]'s kernel.
        assert!(seen.mean_bytes() <= f64::from(1 << 20), "{kind:?}: {seen:?}");
        for machine in [Some("e5-2620".to_owned()), None] {
            let rig = Rig { machine, iodepth: 256, limit: u64::MAX, rounds: 1 };
            let times = rig.times(recordings.dir(), kind.name());
            assert_eq!(times.ios, seen.ios, "{kind:?} on {}", rig.place());
            assert!(times.seconds.iter().all(|seconds| *seconds > 0.0), "{kind:?}: {times:?}");
        }
    }
}

#[test]
fn cp_and_tar_on_ext4_are_recorded_and_replayed_on_a_stripe() {
    require_clients!("nbdfuse", "fusermount3", "mkfs.ext4", "mount", "losetup", "tar");
    if let Some(why) = obstacle() {
        return millrace_require::skip(format_args!("no loop mount on this machine: {why}"));
    }
    are_whole(&real(AMOUNTS));
}

#[test]
#[ignore = "boots a guest; for a machine that lets nobody mount"]
fn busybox_in_a_guest_is_recorded_and_replayed_over_a_stripe() {
    let Some(image) = Image::build() else { return };
    are_whole(&in_guest(&image, AMOUNTS));
}
