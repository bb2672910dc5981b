//! A guest's disk that is unplugged and plugged in again on the same connection of QEMU's.
//!
//! Without `reconnect` QEMU keeps the connection of a device that is gone, and begins another
//! session on it with the next one. It takes no memory away in between.

use std::fs::{self, File};
use std::path::Path;

use millrace_tests::guest::{Guest, Image, Reconnect, StorageDaemon, config};
use millrace_tests::{Daemon, tempdir};

/// Writes, all of it verified, by both queues.
const FIO: &str = "cd /tmp && fio --name=verify --filename=/dev/vda --ioengine=libaio --direct=1 \
    --rw=randwrite --bssplit=4k/60:64k/40 --iodepth=16 --numjobs=2 --size=2m --offset=64m \
    --offset_increment=64m --verify=crc32c --verify_fatal=1 --do_verify=1 --serialize_overlap=1 \
    --cpus_allowed=0,1 --cpus_allowed_policy=split";

/// The guest's part; what is said of its limits.
fn replugs(guest: &mut Guest, dir: &Path) {
    guest.plug(&dir.join("vm"), Reconnect::Never);
    guest.succeed("yes 'before it was unplugged' | head -c 1048576 >/tmp/lines");
    guest.succeed("dd if=/tmp/lines of=/dev/vda bs=64k seek=32 conv=fsync");
    for _ in 0..3 {
        guest.replug();
        guest.succeed("dd if=/dev/vda iflag=direct bs=64k skip=32 count=16 | cmp - /tmp/lines");
        assert_eq!(guest.succeed("ls -1 /sys/block/vda/mq"), "0\n1\n");
        guest.succeed(FIO);
    }
    // Data that the guest writes now must be in the file, too.
    guest.succeed("yes 'after it was plugged in' | head -c 1048576 >/tmp/lines");
    guest.succeed("dd if=/tmp/lines of=/dev/vda bs=64k seek=64 conv=fsync");
    guest.assert_no_complaints();
    let expected: Vec<u8> =
        b"after it was plugged in\n".iter().copied().cycle().take(1 << 20).collect();
    assert!(fs::read(dir.join("disk")).unwrap()[4 << 20..5 << 20] == expected);
}

pub fn goes_on_after_replugs(guest: &mut Guest) {
    let dir = tempdir();
    File::create(dir.path().join("disk")).unwrap().set_len(256 << 20).unwrap();
    let mut daemon = Daemon::start(&config(dir.path(), "auto"), &[]);
    replugs(guest, dir.path());
    guest.unplug();
    let said = daemon.stderr();
    assert!(!said.contains("refused"), "{said}");
    assert_eq!(daemon.terminate().code(), Some(0), "{}", daemon.stderr());
}

#[test]
#[ignore = "checks the steps, not millrace"]
fn the_same_steps_pass_with_qemus_own_server() {
    millrace_tests::require_clients!("qemu-storage-daemon");
    let Some(image) = Image::build() else { return };
    let dir = tempdir();
    File::create(dir.path().join("disk")).unwrap().set_len(256 << 20).unwrap();
    let _server = StorageDaemon::start(dir.path());
    let mut guest = Guest::boot(&image, &dir.path().join("vm"));
    guest.unplug();
    replugs(&mut guest, dir.path());
}
