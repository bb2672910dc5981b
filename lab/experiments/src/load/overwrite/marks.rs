//! File systems, partition tables and other formats, recognised by bytes at the start of a disk.
//!
//! The signatures (marks) are only used in messages; a disk without a known signature may hold
//! data, too. Sources: the formats' specifications, and libblkid's `superblocks/*.c`.

/// Number of bytes to read at the start of a disk to find a signature; a multiple of every block
/// size.
pub(super) const HEAD_BYTES: u64 = 128 << 10;

type Mark = (&'static str, usize, &'static [u8]);

/// Signatures of known formats: name, byte offset, bytes. Boot records are last, because several
/// file systems begin with a boot record.
const MARKS: [Mark; 20] = [
    ("an ext2, ext3 or ext4 file system", 0x438, b"\x53\xef"),
    ("an XFS file system", 0, b"XFSB"),
    ("a Btrfs file system", 0x10040, b"_BHRfS_M"),
    ("an F2FS file system", 0x400, b"\x10\x20\xf5\xf2"),
    ("an NTFS file system", 3, b"NTFS    "),
    ("an exFAT file system", 3, b"EXFAT   "),
    ("a FAT file system", 54, b"FAT1"),
    ("a FAT file system", 82, b"FAT32"),
    ("an ISO 9660 file system", 0x8001, b"CD001"),
    ("a SquashFS file system", 0, b"hsqs"),
    ("a LUKS volume", 0, b"LUKS\xba\xbe"),
    ("an LVM physical volume", 0x218, b"LVM2 001"),
    ("swap space", 4086, b"SWAPSPACE2"),
    ("a member of a Linux RAID", 0, b"\xfc\x4e\x2b\xa9"),
    ("a member of a Linux RAID", 4096, b"\xfc\x4e\x2b\xa9"),
    ("a Ceph OSD", 0, b"bluestore block device"),
    ("a qcow2 image", 0, b"QFI\xfb"),
    ("a GPT partition table", 512, b"EFI PART"),
    ("a GPT partition table", 4096, b"EFI PART"),
    ("a boot record or MBR partition table", 510, b"\x55\xaa"),
];

pub(super) fn known(head: &[u8]) -> Option<&'static str> {
    let has = |(_, at, mark): &&Mark| head.get(*at..).is_some_and(|rest| rest.starts_with(mark));
    MARKS.iter().find(has).map(|(name, ..)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mark_is_known_and_lies_in_the_head() {
        for (name, at, mark) in MARKS {
            let mut head = vec![0; HEAD_BYTES as usize];
            head[at..][..mark.len()].copy_from_slice(mark);
            assert_eq!(known(&head), Some(name));
        }
        assert_eq!((known(&[0; 4096]), known(&[])), (None, None));
    }
}
