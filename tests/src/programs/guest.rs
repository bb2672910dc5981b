//! Programs in a guest, for machines that allow no mounts: busybox's cp and tar, Debian's kernel.
//!
//! The volume is a file that already holds the programs' files, served with vhost-user-blk. Bios
//! are therefore as large as virtio-blk allows (`seg_max`), and the guest is slow, since QEMU
//! translates its code. Called by the parent's callers.

use std::fs;
use std::process::Command;
use std::time::Duration;

use super::files::{self, Amounts};
use super::volume::{BIO_KIB, READ_AHEAD_KIB};
use super::{Kind, Recordings};
use crate::guest::{Guest, Image};
use crate::recording::{begin, end};
use crate::serving::succeed;
use crate::{Daemon, client, tempdir};

/// Limit of the file copied in a guest, whose little memory also holds the other side of the copy.
const COPY_MIB_MAX: u32 = 64;
/// Time limit of a program, on a machine with other work.
const LIMIT: Duration = Duration::from_secs(300);

const CONFIG: &str = "[[drive]]\nname = \"d0\"\nspec = \"file:path=disk\"\n[[volume]]\n\
                      name = \"v\"\ndrives = [\"d0\"]\n[[export]]\nvolume = \"v\"\n\
                      vhost-user-blk = \"unix:vm\"\nqueues = 2\n[server]\ncontrol = \"unix:c\"\n";

/// Runs busybox's cp and tar on a volume in a guest, and records each.
///
/// # Panics
/// If the guest does not boot or a program fails, as all here.
#[must_use]
pub fn in_guest(image: &Image, amounts: Amounts) -> Recordings {
    let amounts = Amounts { copy_mib: amounts.copy_mib.min(COPY_MIB_MAX), ..amounts };
    let dir = tempdir();
    let first = dir.path().join("first");
    let archive = files::make(&first, amounts);
    fs::rename(archive, first.join("tree.tar")).expect("both are in one folder");
    let disk = dir.path().join("disk");
    let file = fs::File::create(&disk).expect("the temporary directory is writable");
    file.set_len(u64::from(amounts.volume_mib()) << 20).expect("a file may have holes");
    let mut make = Command::new(client("mkfs.ext4").expect("the image has it"));
    make.args(["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", "-d"]);
    succeed(make.arg(&first).arg(&disk));
    fs::remove_dir_all(first).expect("it was made here");
    let daemon = Daemon::start_in(dir, CONFIG, &["vm", "c"], &[]);
    let mut guest = Guest::boot(image, &daemon.dir().join("vm"));
    let queue = "/sys/block/vda/queue";
    let bio_kib = guest.number(&format!("{queue}/max_hw_sectors_kb")).min(BIO_KIB.into());
    guest.succeed(&format!(
        "echo {bio_kib} >{queue}/max_sectors_kb; echo {READ_AHEAD_KIB} >{queue}/read_ahead_kb"
    ));
    guest.succeed_within("mount -t ext4 /dev/vda /mnt && cp /mnt/long /tmp/long", LIMIT);
    for kind in Kind::ALL {
        guest.succeed("umount /mnt && echo 3 >/proc/sys/vm/drop_caches");
        guest.succeed("mount -t ext4 /dev/vda /mnt");
        let (name, command) = (kind.name(), command(kind));
        let child = begin(&daemon, &format!("-o {name} --action Q"), name);
        guest.succeed_within(&format!("{command} && sync"), LIMIT);
        end(child);
        guest.succeed("rm -f /tmp/long");
    }
    guest.assert_no_complaints();
    drop(guest);
    Recordings::of(daemon)
}

/// A line for the guest's shell.
fn command(kind: Kind) -> &'static str {
    match kind {
        Kind::CopyTo => "cp /tmp/long /mnt/copy",
        Kind::CopyFrom => "cp /mnt/long /tmp/copy",
        Kind::Untar => "rm /tmp/copy && tar -C /mnt -xf /mnt/tree.tar",
        Kind::Tar => "tar -C /mnt -cf /mnt/again.tar tree",
    }
}
