//! A volume that grows while a guest uses it: the guest sees the new size and can write there.

use std::fs::{File, OpenOptions};
use std::time::Duration;

use millrace_tests::guest::{Guest, Reconnect, config};
use millrace_tests::raw_nbd::RawNbd;
use millrace_tests::serving::succeed;
use millrace_tests::{Daemon, millrace, poll_within, tempdir};

const MIB: u64 = 1 << 20;
const SIZE_FILE: &str = "/sys/block/vda/size";
const NOTICE_LIMIT: Duration = Duration::from_secs(30);

pub fn sees_that_its_disk_has_grown(guest: &mut Guest) {
    let dir = tempdir();
    let disk = dir.path().join("disk");
    File::create(&disk).unwrap().set_len(128 * MIB).unwrap();
    let mut daemon = Daemon::start(&config(dir.path(), "auto"), &[]);
    guest.plug(&dir.path().join("vm"), Reconnect::EverySecond);
    assert_eq!(guest.number(SIZE_FILE), 128 * MIB / 512);
    guest.succeed("mkfs.ext4 -q /dev/vda && mount -t ext4 /dev/vda /mnt && cp -a /usr /mnt");

    OpenOptions::new().write(true).open(&disk).unwrap().set_len(192 * MIB).unwrap();
    let control = format!("unix:{}", dir.path().join("control").display());
    let said = succeed(millrace().args(["ctl", "resize", "v", "--connect", &control]));
    println!("{said}");
    let seen = poll_within(NOTICE_LIMIT, || {
        Some(guest.number(SIZE_FILE)).filter(|size| *size == 192 * MIB / 512)
    });
    assert!(seen.is_some(), "the guest sees {} sectors", guest.number(SIZE_FILE));

    guest.succeed("umount /mnt && e2fsck -fn /dev/vda && mount -t ext4 /dev/vda /mnt");
    guest.succeed("diff -r /usr /mnt/usr && umount /mnt");
    guest.succeed("yes 'at the new end' | head -c 1048576 >/tmp/new");
    guest.succeed("dd if=/tmp/new of=/dev/vda bs=1M seek=191 conv=fsync");
    // A later connection is told the new size.
    let mut nbd = RawNbd::connect(&dir.path().join("nbd"), "v").unwrap();
    assert_eq!(nbd.size_bytes(), 192 * MIB);
    let expected: Vec<u8> = b"at the new end\n".iter().copied().cycle().take(1 << 20).collect();
    assert!(nbd.read(191 * MIB, 1 << 20).unwrap() == expected);
    guest.assert_no_complaints();
    guest.unplug();
    assert_eq!(daemon.terminate().code(), Some(0), "{}", daemon.stderr());
}
