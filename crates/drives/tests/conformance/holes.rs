//! Holes that drives report: no hole where a read would find data or might fail.

use std::sync::Arc;
use std::time::Duration;

use millrace_block::baseline::Stack;
use millrace_block::{Bio, Extent, Op, OpFlags};
use millrace_drives::{Effect, FaultRule};
use millrace_reactor::Backend;

use crate::harness::{Kind, Plan, Rig, pattern, plans};

#[test]
fn extents_tell_holes_from_data() {
    for kind in [Kind::Ram, Kind::ModelRam, Kind::File, Kind::FaultRam, Kind::FaultFile] {
        let mut rig = Rig::new(&Plan::new(kind, Stack::Mq, Backend::Auto));
        rig.write(2048, &pattern(2048, 65_536, 1));
        rig.run_ok(Bio::flush());
        let found = rig.drives.volume.extents(0, 16_384, 16);
        let hole = |nr_sectors| Extent { nr_sectors, hole: true, zero: true };
        let data = Extent { nr_sectors: 128, hole: false, zero: false };
        assert_eq!(found, [hole(2048), data, hole(14_208)], "{kind:?}");
    }
}

#[test]
fn range_is_known_zero_until_a_write_and_after_a_discard() {
    let kinds = [Kind::Ram, Kind::File, Kind::FileThreads, Kind::FileBuffered, Kind::FileInline];
    for plan in plans(&kinds) {
        // Granules of 128 sectors lie on the drives in turn; sector 1024 starts on the first.
        let mut rig = Rig::new(&plan.stripe(2, 128));
        let volume = Arc::clone(&rig.drives.volume);
        let known = |sector, nr_sectors| volume.reads_as_zeroes(sector, nr_sectors);
        assert!(known(0, 32_768) && known(1000, 300) && known(32_767, 1));
        rig.write(1024 + 128, &pattern(1152, 4096, 1));
        assert!(known(0, 1152) && known(1024, 128) && known(1280, 31_488));
        assert!(!known(1152, 1) && !known(1000, 200) && !known(0, 32_768));
        rig.run_ok(Bio::discard(1024, 256));
        assert!(known(0, 32_768));
        rig.run_ok(Bio::write_zeroes(0, 128).with_flags(OpFlags::NOUNMAP));
        assert!(rig.read(0, 4096) == [0; 4096] && known(128, 256));
    }
}

#[test]
fn null_drive_and_a_volatile_cache_know_of_no_zeroes() {
    for kind in [Kind::Null, Kind::FaultVolatile, Kind::FaultVolatileWithoutFua] {
        let rig = Rig::new(&Plan::new(kind, Stack::Mq, Backend::Auto));
        assert!(!rig.drives.volume.reads_as_zeroes(0, 128), "{kind:?}");
    }
}

#[test]
fn file_cut_short_is_no_hole_behind_its_end() {
    let rig = Rig::new(&Plan::new(Kind::File, Stack::Mq, Backend::Auto));
    let volume = &rig.drives.volume;
    assert!(volume.reads_as_zeroes(0, 16_384));
    let file = std::fs::OpenOptions::new().write(true).open(&rig.drives.paths[0]).unwrap();
    file.set_len(4 << 20).unwrap();
    assert!(volume.reads_as_zeroes(0, 8192));
    assert!(!volume.reads_as_zeroes(0, 8193) && !volume.reads_as_zeroes(10_000, 128));
    let hole = Extent { nr_sectors: 8192, hole: true, zero: true };
    let unknown = Extent { nr_sectors: 8192, hole: false, zero: false };
    assert_eq!(volume.extents(0, 16_384, 16), [hole, unknown]);
}

#[test]
fn drive_with_a_fault_shows_no_holes_so_that_reads_meet_it() {
    for kind in [Kind::FaultRam, Kind::FaultFile] {
        let rig = Rig::new(&Plan::new(kind, Stack::Mq, Backend::Auto).stripe(2, 128));
        let (volume, fault) = (&rig.drives.volume, &rig.drives.faults[1]);
        // Chunks of 128 sectors: the first is on the drive without a fault.
        let seen = || {
            let hole = volume.extents(0, 256, 16).iter().all(|extent| extent.hole);
            [volume.reads_as_zeroes(0, 128), volume.reads_as_zeroes(0, 256), hole]
        };
        assert_eq!(seen(), [true; 3]);
        fault.die_now();
        assert_eq!(seen(), [true, false, false], "dead");
        fault.revive();
        assert_eq!(seen(), [true; 3]);
        // A rule of any kind has this effect, whichever reads it matches.
        fault.add_rule(
            FaultRule::always(Effect::Delay(Duration::from_nanos(1))).on(Op::Read).within(9..10),
        );
        assert_eq!(seen(), [true, false, false], "late");
        fault.clear_rules();
        assert_eq!(seen(), [true; 3]);
    }
}
