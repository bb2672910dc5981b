//! Guest memory: maps the regions that the frontend shares, and translates their addresses.
//!
//! A [`GuestMemory`] is a fixed list of regions. A change of memory creates a new list, which
//! shares the regions that stay. A queue keeps the list that translated the addresses of its
//! requests in flight (queue/slots.rs), so no memory is unmapped while a drive uses it.
//!
//! Invariants: regions are not empty, do not wrap and do not overlap in guest addresses. Every
//! range that `translate` returns lies inside one mapping. If a frontend truncates its file,
//! accesses fault; sigbus.rs then replaces the memory by zeroes and marks the region.
#![allow(unsafe_code)]

pub(crate) mod sigbus;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use millrace_block::{Error, ErrorKind};
use rustix::fs::{MemfdFlags, fstatfs, ftruncate, memfd_create};

const HUGETLBFS: u64 = 0x9584_58f6;
/// Smallest page size in bytes. The page size of every machine is a multiple of this size.
const PAGE_BYTES: u64 = 4096;

/// Maximum number of regions, the same as in QEMU's own back ends: a guest that migrates from
/// QEMU's back end to this server may use as many.
pub const REGIONS_MAX: usize = 509;
/// Largest number of regions that are searched linearly.
const REGIONS_FEW: usize = 8;

/// Addresses of a region: in the guest, in the frontend's process and in the region's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionAddress {
    /// Address of the region's first byte in the guest's physical memory.
    pub guest: u64,
    /// Length in bytes.
    pub len_bytes: u64,
    /// First address in the frontend's process. The frontend uses such addresses for its rings.
    pub user: u64,
    /// Offset of the region in its file, in bytes.
    pub offset: u64,
}

/// One region of guest memory.
#[derive(Debug)]
pub struct Region {
    address: RegionAddress,
    start: *mut u8,
    /// Guard against faults, dropped before the mapping because it is declared first.
    guard: sigbus::MappingGuard,
    _mapping: FileMapping,
}

/// A memory mapping, unmapped on drop. The file is not kept open, because a guest's memory may
/// consist of hundreds of regions.
#[derive(Debug)]
struct FileMapping {
    start: *mut u8,
    len: usize,
}

impl FileMapping {
    /// Maps a part of a file, in whole pages, shared and writable.
    fn of(file: &File, offset: u64, len: usize) -> std::io::Result<FileMapping> {
        let wide = || std::io::Error::from(std::io::ErrorKind::InvalidInput);
        let offset = i64::try_from(offset).map_err(|_| wide())?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let anywhere = std::ptr::null_mut();
        // SAFETY: a new mapping at a place that the system chooses harms no other.
        let start =
            unsafe { libc::mmap(anywhere, len, protection, flags, file.as_raw_fd(), offset) };
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        Ok(FileMapping { start: start.cast(), len })
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `of`; every holder of an address in the mapping keeps its region alive.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

// SAFETY: a region is plain shared bytes, only ever touched through raw pointers.
unsafe impl Send for Region {}
// SAFETY: a region is plain shared bytes, whatever thread touches them.
unsafe impl Sync for Region {}

impl Region {
    /// Maps a region of `file`.
    ///
    /// # Errors
    /// `InvalidSetting` if the region is empty, wraps or lies past the file's end; `System` if the
    /// region cannot be mapped.
    pub fn map(file: File, address: RegionAddress) -> Result<Region, Error> {
        let RegionAddress { guest, len_bytes, user, offset } = address;
        let wrong = |text: &str| {
            let text = format!("memory region of {len_bytes} bytes at {guest:#x}: {text}");
            Err(Error::new(ErrorKind::InvalidSetting, text))
        };
        let wraps = |first: u64| first.checked_add(len_bytes).is_none();
        if len_bytes == 0 || wraps(guest) || wraps(user) || wraps(offset) {
            return wrong("it is empty or wraps around");
        }
        let Ok(meta) = file.metadata() else { return wrong("its file has no size") };
        if meta.len() < offset + len_bytes {
            return wrong(&format!("its file ends at {} bytes", meta.len()));
        }
        let system = fstatfs(&file);
        let page = system.map_or(PAGE_BYTES, |fs| page_bytes(fs.f_type as u64, fs.f_bsize as u64));
        let (lead, whole) = span((offset, len_bytes), page, meta.len());
        let (Ok(len), Ok(lead)) = (usize::try_from(whole), usize::try_from(lead)) else {
            return wrong("it does not fit into the address space");
        };
        let mapping = FileMapping::of(&file, offset - lead as u64, len).map_err(|error| {
            let text = format!("memory region of {len_bytes} bytes at {guest:#x}: {error}");
            Error::new(ErrorKind::System, text)
        })?;
        let guard = sigbus::MappingGuard::new(mapping.start.addr(), len, page as usize)?;
        let start = mapping.start.wrapping_add(lead);
        Ok(Region { address, start, guard, _mapping: mapping })
    }

    /// Maps a region of new memory, all zeroes. Tests and measurements without a virtual machine
    /// use this.
    ///
    /// # Errors
    /// `System` if there is no memory, otherwise the errors of [`Region::map`].
    pub fn anonymous(guest: u64, user: u64, len_bytes: u64) -> Result<Region, Error> {
        let file = memory_file("millrace-guest", len_bytes)?;
        Region::map(file, RegionAddress { guest, len_bytes, user, offset: 0 })
    }

    /// Returns the region's addresses in guest and frontend, its length, and its file offset.
    #[must_use]
    pub fn address(&self) -> RegionAddress {
        self.address
    }

    /// Returns the address of the region's first byte in this process.
    #[must_use]
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// Returns true if the frontend has truncated the file that the region maps.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.guard.was_hit()
    }

    #[inline(always)]
    fn find(&self, guest: u64) -> Option<MappedAddress> {
        let offset = guest.wrapping_sub(self.address.guest);
        let room_bytes = self.address.len_bytes.checked_sub(offset).filter(|room| *room > 0)?;
        Some(MappedAddress { start: self.start.wrapping_add(offset as usize), room_bytes })
    }

    /// Returns true if the region overlaps `next`. The region `next` must not begin before this
    /// one.
    fn overlaps(&self, next: &Region) -> bool {
        next.address.guest < self.address.guest + self.address.len_bytes
    }
}

/// Returns the page size of mappings of a file: the block size for hugetlbfs, else the normal page
/// size.
fn page_bytes(system: u64, block_bytes: u64) -> u64 {
    match system {
        HUGETLBFS => block_bytes.next_power_of_two().clamp(PAGE_BYTES, 1 << 30),
        _ => PAGE_BYTES,
    }
}

/// Returns two lengths in bytes: from the page boundary before the region to the region, and of the
/// whole mapping. The mapping has whole pages, unless the file ends within the last page.
fn span((offset, len_bytes): (u64, u64), page: u64, file_bytes: u64) -> (u64, u64) {
    let lead = offset % page;
    let whole = (lead + len_bytes).next_multiple_of(page);
    match offset - lead + whole <= file_bytes {
        true => (lead, whole),
        false => (lead, lead + len_bytes),
    }
}

pub(crate) fn memory_file(name: &str, len_bytes: u64) -> Result<File, Error> {
    let made = memfd_create(name, MemfdFlags::CLOEXEC).and_then(|fd| {
        ftruncate(&fd, len_bytes)?;
        Ok(File::from(fd))
    });
    made.map_err(|error| {
        Error::new(
            ErrorKind::System,
            format!("{name}: cannot allocate {len_bytes} bytes of memory: {error}"),
        )
    })
}

/// Reads 16 bytes of guest memory exactly once, at any alignment. The guest may write at the same
/// time, so the value that is checked must also be the value that is used.
///
/// # Safety
/// `place` is valid for reads of 16 bytes.
#[inline(always)]
pub(crate) unsafe fn read_once(place: *const u8) -> [u64; 2] {
    // SAFETY: promised by the caller.
    let read = unsafe { place.cast::<[u64; 2]>().read_unaligned() };
    #[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
    {
        let [mut low, mut high] = read;
        // SAFETY: the assembly has no instruction.
        // The compiler must assume that the empty assembly changes `low` and `high`. So the
        // compiler has to use these values, and cannot read the guest's memory a second time.
        // Unlike `black_box`, the assembly leaves the values in registers.
        unsafe {
            std::arch::asm!("/* {0} {1} */", inout(reg) low, inout(reg) high,
                options(nomem, nostack, preserves_flags));
        }
        [low, high]
    }
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
    std::hint::black_box(read)
}

/// Immutable list of all memory regions of a guest. A change of the guest's memory creates another
/// list.
#[derive(Debug, Default)]
pub struct GuestMemory {
    regions: Vec<Arc<Region>>,
}

/// A translated address, and the number of contiguous bytes from there.
#[derive(Debug, Clone, Copy)]
pub struct MappedAddress {
    /// Address in this process.
    pub start: *mut u8,
    /// Number of bytes from `start` to the end of its region.
    pub room_bytes: u64,
}

impl GuestMemory {
    /// Creates a guest's memory from its regions.
    ///
    /// # Errors
    /// `InvalidSetting` if there are too many or two overlap.
    pub fn new(mut regions: Vec<Arc<Region>>) -> Result<GuestMemory, Error> {
        let wrong = |text: String| Err(Error::new(ErrorKind::InvalidSetting, text));
        if regions.len() > REGIONS_MAX {
            return wrong(format!(
                "{} memory regions are too many; at most {REGIONS_MAX} are supported",
                regions.len()
            ));
        }
        regions.sort_by_key(|region| region.address.guest);
        if let Some(pair) = regions.windows(2).find(|pair| pair[0].overlaps(&pair[1])) {
            let (low, high) = (pair[0].address, pair[1].address);
            return wrong(format!(
                "memory regions overlap: {} bytes at {:#x} and {} bytes at {:#x}",
                low.len_bytes, low.guest, high.len_bytes, high.guest
            ));
        }
        Ok(GuestMemory { regions })
    }

    /// Returns the regions, sorted by guest address.
    #[must_use]
    pub fn regions(&self) -> &[Arc<Region>] {
        &self.regions
    }

    /// Returns true if the frontend has truncated the file that any of the regions maps.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.regions.iter().any(|region| region.is_damaged())
    }

    /// Translates a guest address. Returns `None` if no region contains it.
    #[inline]
    #[must_use]
    pub fn translate(&self, guest: u64) -> Option<MappedAddress> {
        // Most guests have two regions, and few have more than a handful, so a linear search is
        // fast.
        if self.regions.len() <= REGIONS_FEW {
            return self.regions.iter().find_map(|region| region.find(guest));
        }
        let behind = self.regions.partition_point(|region| region.address.guest <= guest);
        self.regions[..behind].last()?.find(guest)
    }

    /// Returns the address in this process of `len_bytes` contiguous bytes at guest address
    /// `guest`. Returns `None` if no region contains all these bytes.
    #[inline(always)]
    #[must_use]
    pub fn find(&self, guest: u64, len_bytes: u64) -> Option<*mut u8> {
        self.translate(guest).filter(|place| place.room_bytes >= len_bytes).map(|place| place.start)
    }

    /// Returns the address in this process of `len_bytes` contiguous bytes at address `user` of the
    /// frontend's process. Returns `None` if no region contains all these bytes.
    #[must_use]
    pub fn translate_user(&self, user: u64, len_bytes: u64) -> Option<*mut u8> {
        self.regions.iter().find_map(|region| {
            let offset = user.wrapping_sub(region.address.user);
            let fits =
                offset < region.address.len_bytes && region.address.len_bytes - offset >= len_bytes;
            fits.then(|| region.start.wrapping_add(offset as usize))
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // Tests may.
mod tests {
    use super::*;

    fn region(guest: u64, len_bytes: u64) -> Arc<Region> {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let address = RegionAddress { guest, len_bytes, user: guest + (1 << 40), offset: 0x3000 };
        Arc::new(Region::map(file, address).unwrap())
    }

    #[test]
    fn addresses_lead_to_their_region_up_to_its_last_byte() {
        let memory = GuestMemory::new(vec![region(0x10_0000, 8192), region(0, 4096)]).unwrap();
        let room = |guest| memory.translate(guest).map(|place| place.room_bytes);
        assert_eq!([room(0), room(4095), room(4096)], [Some(4096), Some(1), None]);
        assert_eq!([room(0x10_0000), room(0x10_2000), room(u64::MAX)], [Some(8192), None, None]);
        let user = (1 << 40) + 0x10_0000;
        assert!(memory.translate_user(user, 8192).is_some());
        assert!(memory.translate_user(user + 1, 8192).is_none());
        assert!(memory.translate_user(user, u64::MAX).is_none());
        assert!(
            memory.translate_user(user + 8192, 0).is_none(),
            "the address at a region's end lies outside the region"
        );
    }

    #[test]
    fn addresses_lead_to_their_region_among_few_and_many() {
        let file = memory_file("t", (REGIONS_MAX as u64 + 1) * 4096).unwrap();
        let region = |at: u64| {
            let (guest, offset) = (8192 * at, 4096 * at);
            let address = RegionAddress { guest, len_bytes: 4096, user: guest, offset };
            Arc::new(Region::map(file.try_clone().unwrap(), address).unwrap())
        };
        let all: Vec<_> = (0..=REGIONS_MAX as u64).rev().map(region).collect();
        assert!(GuestMemory::new(all.clone()).is_err(), "one too many");
        for count in [1, REGIONS_FEW, REGIONS_FEW + 1, REGIONS_MAX] {
            let memory = GuestMemory::new(all[all.len() - count..].to_vec()).unwrap();
            for region in memory.regions() {
                let guest = region.address().guest;
                let place = memory.translate(guest + 4095).unwrap();
                assert_eq!(place.start, region.start().wrapping_add(4095));
                assert_eq!((place.room_bytes, memory.translate(guest + 4096).is_none()), (1, true));
            }
        }
    }

    #[test]
    fn files_are_mapped_in_whole_pages_of_their_own() {
        assert_eq!(page_bytes(HUGETLBFS, 2 << 20), 2 << 20);
        assert_eq!(page_bytes(HUGETLBFS, 3 << 20), 4 << 20);
        assert_eq!([0, 1 << 50].map(|block| page_bytes(HUGETLBFS, block)), [4096, 1 << 30]);
        assert_eq!(page_bytes(HUGETLBFS + 1, 2 << 20), 4096);
        // Each row: offset of the region in its file, its length, the page size, the file's size,
        // and the range that must be mapped.
        for (offset, len, page, file, mapped) in [
            (0, 4096, 4096, 8192, (0, 4096)),
            (100, 200, 4096, 4096, (100, 4096)),
            (100, 200, 4096, 4095, (100, 300)),
            (8192 + 100, 4096, 4096, 16384, (100, 8192)),
            (8192 + 100, 4096, 4096, 16383, (100, 4196)),
            (3 << 20, 1 << 20, 2 << 20, 4 << 20, (1 << 20, 2 << 20)),
        ] {
            assert_eq!(span((offset, len), page, file), mapped, "{offset} {len} {page} {file}");
        }
    }

    #[test]
    fn a_region_need_not_begin_or_end_with_a_page_of_its_file() {
        use std::os::unix::fs::FileExt;
        let file = tempfile::tempfile().unwrap();
        file.set_len(16384).unwrap();
        for (offset, len_bytes) in [(5000, 100), (9000, 7384)] {
            file.write_all_at(&[7], offset).unwrap();
            file.write_all_at(&[8], offset + len_bytes - 1).unwrap();
            let address = RegionAddress { guest: 0, len_bytes, user: 0, offset };
            let region = Region::map(file.try_clone().unwrap(), address).unwrap();
            let last = region.start().wrapping_add(len_bytes as usize - 1);
            // SAFETY: inside the mapping.
            assert_eq!(unsafe { (region.start().read_volatile(), last.read_volatile()) }, (7, 8));
        }
    }

    #[test]
    fn overlapping_wrapping_or_unbacked_regions_are_refused() {
        let error = GuestMemory::new(vec![region(0, 8192), region(4096, 8192)]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "memory regions overlap: 8192 bytes at 0x0 and 8192 bytes at 0x1000"
        );
        let map = |guest, len_bytes, offset| {
            let file = tempfile::tempfile().unwrap();
            file.set_len(8192).unwrap();
            Region::map(file, RegionAddress { guest, len_bytes, user: 0, offset })
        };
        assert!(map(0, 8192, 0).is_ok() && map(0, 4096, 4096).is_ok());
        let file = memory_file("t", 4096).unwrap();
        let address = RegionAddress { guest: 0, len_bytes: 4096, user: u64::MAX, offset: 0 };
        assert!(
            Region::map(file, address).is_err(),
            "a region must not wrap around the frontend's address space"
        );
        for (guest, len_bytes, offset) in
            [(0, 0, 0), (u64::MAX, 4096, 0), (0, 8193, 0), (0, 4096, 4097), (0, 4096, u64::MAX)]
        {
            assert!(map(guest, len_bytes, offset).is_err(), "{guest:#x} {len_bytes} {offset}");
        }
    }

    #[test]
    fn memory_whose_file_is_cut_off_reads_as_zeroes_and_is_marked() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(16384).unwrap();
        let address = RegionAddress { guest: 0, len_bytes: 16384, user: 0, offset: 0 };
        let region = Region::map(file.try_clone().unwrap(), address).unwrap();
        let memory = GuestMemory::new(vec![Arc::new(region)]).unwrap();
        let byte = memory.translate(8200).unwrap().start;
        // SAFETY: inside the mapping.
        unsafe { byte.write_volatile(7) };
        assert!(!memory.is_damaged());
        file.set_len(4096).unwrap();
        // SAFETY: inside the mapping; the fault is handled.
        assert_eq!(unsafe { byte.read_volatile() }, 0);
        assert!(memory.is_damaged());
        // SAFETY: as above.
        unsafe { byte.write_volatile(9) };
    }
}
