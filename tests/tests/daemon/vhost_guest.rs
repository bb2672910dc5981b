//! A real guest with a volume as its disk, while an NBD client uses the same volume.
//!
//! The guest boots once and takes the steps one after the other: two queues, a file system, fio,
//! discard, both protocols at once. On request the steps also run against QEMU's own server (`cargo
//! test -p millrace-tests --test daemon vhost_guest -- --ignored`): a step that fails there, too,
//! is wrong itself.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use millrace_tests::guest::{Guest, Image, StorageDaemon, config};
use millrace_tests::raw_nbd::RawNbd;
use millrace_tests::serving::{pattern, succeed};
use millrace_tests::{Daemon, client, tempdir};

const MIB: u64 = 1 << 20;
const DISK_BYTES: u64 = 256 * MIB;
const LIMIT: Duration = Duration::from_secs(60);

/// A job for each processor of the guest, in the first and the second quarter of the disk.
const FIO: &str = "cd /tmp && fio --name=verify --filename=/dev/vda --ioengine=libaio --direct=1 \
    --rw=randwrite --bssplit=512/10:4k/50:16k/30:128k/10 --iodepth=16 --numjobs=2 --size=4m \
    --offset_increment=64m --verify=crc32c --verify_fatal=1 --do_verify=1 --serialize_overlap=1 \
    --cpus_allowed=0,1 --cpus_allowed_policy=split --fsync=64";

/// Writes and reads back in the third quarter of the disk until `done` is set; returns the rounds.
fn writes_and_reads_back(nbd: &mut RawNbd, done: &AtomicBool) -> u64 {
    let mut round = 0;
    while !done.load(Ordering::Relaxed) {
        let (offset, data) = (128 * MIB + round % 61 * 65536, pattern(65536 * 3, round));
        nbd.write(offset, &data).unwrap();
        assert!(nbd.read(offset, 65536 * 3).unwrap() == data, "over NBD, round {round}");
        round += 1;
    }
    round
}

/// A guest, and the directory with its disk's file and sockets.
struct Rig {
    guest: Guest,
    dir: PathBuf,
}

impl Rig {
    fn nbd(&self) -> RawNbd {
        RawNbd::connect(&self.dir.join("nbd"), "v").unwrap()
    }

    /// Bytes of the disk's file that take place on the machine's own disk.
    fn allocated(&self) -> u64 {
        fs::metadata(self.dir.join("disk")).unwrap().blocks() * 512
    }

    fn has_two_queues(&mut self) {
        assert_eq!(self.guest.succeed("ls -1 /sys/block/vda/mq"), "0\n1\n");
        let cpus = self.guest.succeed("cat /sys/block/vda/mq/*/cpu_list");
        assert_eq!(cpus, "0\n1\n", "each processor has a queue of its own");
        assert_eq!(self.guest.number("/sys/block/vda/size"), DISK_BYTES / 512);
    }

    fn keeps_files(&mut self) {
        let guest = &mut self.guest;
        guest.succeed("mkfs.ext4 -q /dev/vda && mount -t ext4 /dev/vda /mnt");
        guest.succeed("cp -a /usr/sbin /modules /bin/busybox /mnt && umount /mnt");
        // The data must be read from the disk, not from memory.
        guest.succeed("echo 3 >/proc/sys/vm/drop_caches && mount -t ext4 -o ro /dev/vda /mnt");
        guest.succeed("diff -r /usr/sbin /mnt/sbin && diff -r /modules /mnt/modules");
        guest.succeed("cmp /bin/busybox /mnt/busybox && umount /mnt");
        guest.succeed("e2fsck -fn /dev/vda");
        // The file behind the volume holds the same file system.
        let e2fsck = client("e2fsck").unwrap();
        succeed(Command::new(e2fsck).arg("-fn").arg(self.dir.join("disk")));
    }

    /// Runs a job on each processor, so that both queues have work, and an NBD client at the same
    /// time.
    fn verifies_what_fio_writes(&mut self) {
        let before = self.completed_by_queue();
        let mut nbd = self.nbd();
        let done = AtomicBool::new(false);
        let said = thread::scope(|scope| {
            let rounds = scope.spawn(|| writes_and_reads_back(&mut nbd, &done));
            let said = self.guest.succeed(FIO);
            done.store(true, Ordering::Relaxed);
            println!("{} rounds over NBD meanwhile", rounds.join().unwrap());
            said
        });
        assert_eq!(said.matches("err= 0").count(), 2, "{said}");
        let after = self.completed_by_queue();
        for (before, after) in before.iter().zip(&after) {
            assert!(after > before, "both queues were used: {before} and then {after} interrupts");
        }
    }

    /// Interrupts of the device's queues, which the guest has had so far.
    fn completed_by_queue(&mut self) -> [u64; 2] {
        [0, 1].map(|queue| {
            let line = self.guest.succeed(&format!("grep 'virtio.-req.{queue}' /proc/interrupts"));
            let counts = line.split_whitespace().skip(1).take(2);
            counts.map(|count| count.parse::<u64>().unwrap()).sum()
        })
    }

    fn shares_its_disk_with_nbd(&mut self) {
        let line = "what a guest wrote is there once it has flushed\n";
        let write = format!("yes '{}' | head -c 1048576 >/tmp/lines", line.trim());
        self.guest.succeed(&write);
        self.guest.succeed("dd if=/tmp/lines of=/dev/vda bs=64k seek=32 conv=fsync");
        let expected: Vec<u8> = line.bytes().cycle().take(1 << 20).collect();
        let mut nbd = self.nbd();
        assert_eq!(nbd.size_bytes(), DISK_BYTES);
        assert!(nbd.read(2 * MIB, 1 << 20).unwrap() == expected, "NBD reads what the guest wrote");

        let data = pattern(1 << 20, 5);
        nbd.write(5 * MIB, &data).unwrap();
        nbd.flush().unwrap();
        let read = "dd if=/dev/vda iflag=direct bs=64k skip=80 count=16 | md5sum";
        let sum = self.guest.succeed(read);
        let file = self.dir.join("expected");
        fs::write(&file, &data).unwrap();
        let expected = succeed(Command::new("md5sum").arg(&file));
        let expected = expected.split_whitespace().next().unwrap();
        assert!(sum.contains(expected), "the guest reads what NBD wrote: {sum} {expected}");
    }

    fn gives_back_what_it_discards(&mut self) {
        let fill = "dd if=/dev/urandom of=/dev/vda bs=1M seek=200 count=16 oflag=direct conv=fsync";
        self.guest.succeed(fill);
        let before = self.allocated();
        // busybox has a command of this name with fewer options, hence the path.
        self.guest.succeed("/usr/sbin/blkdiscard -o 200MiB -l 8MiB /dev/vda");
        self.guest.succeed("/usr/sbin/blkdiscard -z -o 208MiB -l 4MiB /dev/vda");
        let freed = before.saturating_sub(self.allocated());
        assert!(freed >= 8 * MIB - 65536, "discarding 8 MiB has freed {freed} bytes of the file");
        assert_eq!(self.nonzero_bytes(200, 12), 0, "what was discarded reads as zeroes");
        let kept = self.nonzero_bytes(212, 4);
        assert!(kept > 4 * MIB / 256 * 250, "the rest is random as before: {kept} bytes not zero");
        let mut nbd = self.nbd();
        for mib in 200..212 {
            assert!(nbd.read(mib * MIB, 1 << 20).unwrap() == vec![0; 1 << 20], "at {mib} MiB");
        }
    }

    /// The driver lets go of the device, as at a reboot, and finds it as it was.
    fn survives_a_reset_of_the_device(&mut self) {
        let sum = "dd if=/dev/vda iflag=direct bs=1M skip=2 count=1 2>/dev/null | md5sum";
        let before = self.guest.succeed(sum);
        let driver = "/sys/bus/virtio/drivers/virtio_blk";
        for _ in 0..3 {
            self.guest.succeed(&format!("cd {driver} && echo virtio0 >unbind"));
            assert_ne!(self.guest.run_within("test -b /dev/vda", LIMIT).0, 0);
            self.guest.succeed(&format!("cd {driver} && echo virtio0 >bind && test -b /dev/vda"));
            assert_eq!(self.guest.succeed(sum), before);
            self.has_two_queues();
        }
    }

    /// A read of 1 MiB into large pages is a single request, although it has several segments.
    fn makes_few_requests_of_large_reads(&mut self) {
        let limit = |name: &str| format!("/sys/block/vda/queue/{name}");
        let told = ["max_segment_size", "max_segments"].map(|name| self.guest.number(&limit(name)));
        assert_eq!(told, [1 << 20, 126]);
        self.guest.succeed("echo 4 >/proc/sys/vm/nr_hugepages");
        let count = "awk '{ print $1 }' /sys/block/vda/stat";
        let reads = |guest: &mut Guest| guest.succeed(count).trim().parse::<u64>().unwrap();
        let before = reads(&mut self.guest);
        self.guest.succeed(
            "cd /tmp && fio --name=large --filename=/dev/vda --ioengine=psync --direct=1 --rw=read \
             --bs=1m --size=32m --iomem=shmhuge",
        );
        let made = reads(&mut self.guest) - before;
        println!("32 reads of 1 MiB are {made} requests");
        // 126 pieces of 8 KiB would be two for each.
        assert!((32..48).contains(&made), "{made} requests");
    }

    /// Number of nonzero bytes in `count` MiB from `start` MiB on, read by the guest past its page
    /// cache.
    fn nonzero_bytes(&mut self, start: u64, count: u64) -> u64 {
        let read = format!("dd if=/dev/vda iflag=direct bs=1M skip={start} count={count}");
        let said = self.guest.succeed(&format!("{read} 2>/dev/null | tr -d '\\0' | wc -c"));
        said.trim().parse().unwrap()
    }
}

/// Name of a step, and its function.
type Step = (&'static str, fn(&mut Rig));

/// Runs all steps on the server whose sockets and file are in `dir`.
fn works_as_a_disk(image: &Image, dir: &Path) -> Rig {
    let mut rig = Rig { guest: Guest::boot(image, &dir.join("vm")), dir: dir.to_owned() };
    let steps: [Step; 6] = [
        ("two queues", Rig::has_two_queues),
        ("files", Rig::keeps_files),
        ("fio", Rig::verifies_what_fio_writes),
        ("NBD beside it", Rig::shares_its_disk_with_nbd),
        ("discard", Rig::gives_back_what_it_discards),
        ("reset", Rig::survives_a_reset_of_the_device),
    ];
    for (name, step) in steps {
        let start = Instant::now();
        step(&mut rig);
        println!("{name}: {:.1} s", start.elapsed().as_secs_f64());
    }
    rig.guest.assert_no_complaints();
    rig
}

/// No huge pages, and of the guest's memory no copy.
fn stays_small(daemon: &Daemon) {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let kib = |name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    println!("{} KiB of its own, {} shared with the guest", kib("RssAnon"), kib("RssShmem"));
    assert_eq!(kib("HugetlbPages"), 0);
    assert!(kib("RssAnon") < 64 * 1024, "{status}");
}

#[test]
fn a_guest_works_on_a_volume_while_nbd_clients_use_it_too() {
    let Some(image) = Image::build() else { return };
    let dir = tempdir();
    File::create(dir.path().join("disk")).unwrap().set_len(DISK_BYTES).unwrap();
    let mut daemon = Daemon::start(&config(dir.path(), "auto"), &[]);
    let mut rig = works_as_a_disk(&image, dir.path());
    // Otherwise the guest would send no flush. QEMU's own server reports "write through".
    assert_eq!(rig.guest.succeed("cat /sys/block/vda/queue/write_cache"), "write back\n");

    assert_eq!(rig.guest.succeed("cat /sys/block/vda/serial"), "v");
    rig.makes_few_requests_of_large_reads();
    stays_small(&daemon);

    let pattern = "yes 'for the next guest' | head -c 1048576";
    rig.guest.succeed(&format!("{pattern} | dd of=/dev/vda bs=64k seek=3200 conv=fsync"));
    rig.guest.start("fio", FIO);
    thread::sleep(Duration::from_secs(1));
    // QEMU is killed with requests in flight.
    drop(rig);
    let mut guest = Guest::boot(&image, &dir.path().join("vm"));
    guest.succeed(&format!("{pattern} >/tmp/expected"));
    guest.succeed("dd if=/dev/vda bs=64k skip=3200 count=16 | cmp - /tmp/expected");
    guest.succeed(FIO);
    guest.assert_no_complaints();
    drop(guest);
    assert_eq!(daemon.terminate().code(), Some(0), "{}", daemon.stderr());
}

#[test]
#[ignore = "checks the steps, not millrace"]
fn the_same_steps_pass_with_qemus_own_server() {
    millrace_tests::require_clients!("qemu-storage-daemon");
    let Some(image) = Image::build() else { return };
    let dir = tempdir();
    File::create(dir.path().join("disk")).unwrap().set_len(DISK_BYTES).unwrap();
    let _server = StorageDaemon::start(dir.path());
    works_as_a_disk(&image, dir.path());
}
