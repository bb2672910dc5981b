//! Computes and explains the space on drives that their volume cannot use.
//!
//! Linear volumes and stripes use only whole blocks. The block size of a volume is the largest
//! logical block size of its drives. A stripe also uses only whole chunks. If the drives of a
//! stripe differ in size, the stripe uses the same number of bytes of every drive: the size of the
//! smallest drive. Unused space is reported to the user, because the end of a disk may hold a
//! backup GPT or a superblock.

use millrace_block::{Layout, SECTOR_SHIFT, Sector, Volume};
use millrace_machine::Native;

/// Default chunk size in sectors: 64 KiB.
pub const CHUNK_SECTORS: u32 = 128;

/// Returns the default layout: linear for a single drive, which is then served unchanged from its
/// first byte to its last; a stripe for several drives.
#[must_use]
pub fn default_layout(drives: usize) -> Layout {
    match drives {
        0 | 1 => Layout::Linear,
        _ => Layout::Stripe { chunk_sectors: CHUNK_SECTORS },
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct DriveSpace {
    name: String,
    size_bytes: u64,
    /// Logical block size.
    block_bytes: u32,
}

/// Sizes of a volume's drives, and their layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeSpace {
    layout: Layout,
    /// Drives in the order in which the volume uses them.
    drives: Vec<DriveSpace>,
}

impl VolumeSpace {
    /// Returns the current sizes of a volume's drives.
    #[must_use]
    pub fn of(volume: &Volume<Native>) -> VolumeSpace {
        let drives = volume.disks().iter().map(|disk| DriveSpace {
            name: disk.name().to_owned(),
            size_bytes: disk.size_bytes(),
            block_bytes: disk.limits().logical_block_size,
        });
        VolumeSpace { layout: volume.layout(), drives: drives.collect() }
    }

    fn block_bytes(&self) -> u64 {
        self.drives.iter().map(|drive| u64::from(drive.block_bytes)).max().unwrap_or(512).max(512)
    }

    fn used_bytes(&self) -> u64 {
        let sizes: Vec<Sector> =
            self.drives.iter().map(|drive| drive.size_bytes >> SECTOR_SHIFT).collect();
        let block_sectors = (self.block_bytes() >> SECTOR_SHIFT) as u32;
        self.layout.capacity(&sizes, block_sectors).saturating_mul(1 << SECTOR_SHIFT)
    }

    /// Returns how many bytes of the drives' total size the volume leaves unused.
    #[must_use]
    pub fn unused_bytes(&self) -> u64 {
        let sizes = self.drives.iter().map(|drive| drive.size_bytes);
        let all = sizes.fold(0, u64::saturating_add);
        all.saturating_sub(self.used_bytes())
    }

    /// Describes the space that the volume `name` does not use, or returns `None` if it uses all.
    pub(crate) fn note(&self, name: &str) -> Option<String> {
        let unused = self.unused_bytes();
        if unused == 0 {
            return None;
        }
        let used = self.used_bytes();
        let Layout::Stripe { chunk_sectors } = self.layout else {
            return Some(format!("volume {name}: unused: {}", self.tails()));
        };
        let chunk = amount(u64::from(chunk_sectors) << SECTOR_SHIFT);
        if let [drive] = self.drives.as_slice() {
            let (tail, size) = (amount(unused), drive.size_bytes);
            return Some(format!(
                "volume {name}: unused: the last {tail} of the {size} bytes of {}, since a \
                 stripe has whole chunks of {chunk}; layout = \"linear\" serves them",
                drive.name
            ));
        }
        let each = amount(used / self.drives.len() as u64);
        let size = |drive: &DriveSpace| format!("{} ({})", drive.name, amount(drive.size_bytes));
        let sizes: Vec<String> = self.drives.iter().map(size).collect();
        Some(format!(
            "volume {name}: unused: {} of its drives, since a stripe takes of each what the \
             smallest has, in whole chunks of {chunk}: {each} of {}; layout = \"linear\" serves \
             all",
            amount(unused),
            sizes.join(", ")
        ))
    }

    fn tails(&self) -> String {
        let block = self.block_bytes();
        let tail = |drive: &DriveSpace| {
            let (name, size, tail) = (&drive.name, drive.size_bytes, drive.size_bytes % block);
            (tail > 0).then(|| format!("the last {tail} of the {size} bytes of {name}"))
        };
        let tails: Vec<String> = self.drives.iter().filter_map(tail).collect();
        format!("{}, because a block has {block} bytes", tails.join(", "))
    }
}

/// Formats bytes exactly, in the largest unit without a fraction.
fn amount(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.iter().find(|(_, shift)| bytes >= 1 << shift) {
        Some((unit, shift)) if bytes.is_multiple_of(1 << shift) => {
            format!("{} {unit}", bytes >> shift)
        }
        _ => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(layout: Layout, sizes: &[(u64, u32)]) -> VolumeSpace {
        let drives = sizes.iter().zip(0..).map(|((size_bytes, block_bytes), number)| DriveSpace {
            name: format!("d{number}"),
            size_bytes: *size_bytes,
            block_bytes: *block_bytes,
        });
        VolumeSpace { layout, drives: drives.collect() }
    }

    const STRIPE: Layout = Layout::Stripe { chunk_sectors: CHUNK_SECTORS };

    #[test]
    fn one_drive_is_served_to_its_last_block_unless_it_is_a_stripe() {
        let size = 1_000_204_886_016;
        let linear = space(default_layout(1), &[(size, 512)]);
        assert_eq!((linear.unused_bytes(), linear.note("v")), (0, None));
        let stripe = space(STRIPE, &[(size, 512)]);
        assert_eq!(stripe.used_bytes(), 1_000_204_861_440);
        let note = "volume v: unused: the last 24 KiB of the 1000204886016 bytes of d0, since a \
                    stripe has whole chunks of 64 KiB; layout = \"linear\" serves them";
        assert_eq!((stripe.unused_bytes(), stripe.note("v").as_deref()), (24_576, Some(note)));
    }

    #[test]
    fn unequal_drives_of_a_stripe_say_what_they_drop() {
        let stripe = space(default_layout(2), &[(100 << 20, 512), (70 << 20, 512)]);
        let note = "volume v: unused: 30 MiB of its drives, since a stripe takes of each what \
                    the smallest has, in whole chunks of 64 KiB: 70 MiB of d0 (100 MiB), d1 (70 \
                    MiB); layout = \"linear\" serves all";
        assert_eq!((stripe.unused_bytes(), stripe.note("v").as_deref()), (30 << 20, Some(note)));
    }

    #[test]
    fn bytes_behind_the_last_block_are_named_with_their_drive() {
        let one = space(Layout::Linear, &[(10_000_100, 512)]);
        let note = "volume v: unused: the last 228 of the 10000100 bytes of d0, because a \
                    block has 512 bytes";
        assert_eq!((one.unused_bytes(), one.note("v").as_deref()), (228, Some(note)));
        // The block of one drive is that of all.
        let two = space(Layout::Linear, &[(5_120, 512), (8_192, 4_096)]);
        assert_eq!((two.used_bytes(), two.unused_bytes()), (12_288, 1_024));
        assert!(two.note("v").is_some_and(|note| note.contains("the last 1024 of the 5120")));
    }
}
