//! `Utility`: one thread that copies to or from the volume, or packs or unpacks a directory tree.
//!
//! Utilities use the cache with its read-ahead. `cp` copies to or from a file outside of the
//! volume; the access to this file costs only the time to copy the pages. `cp` reads and writes 128
//! KiB at a time. `tar` uses records of 10 KiB, which are three pages here. The tree and its
//! archive are both on the volume. The tree's files are 11 KiB long on average, an assumption based
//! on the source tree of Linux. No data is read twice, unless a run reaches the end of the volume.

use millrace_cache::CacheConfig;
use millrace_random::SplitMix64 as Random;

use super::files::{INODES, size_pages};
use crate::simulation::Host;
use crate::simulation::program::{Access, PAGE_SECTORS, Program};

const CACHE_BYTES: u64 = 128 << 20;
const LENGTH_NS: u64 = 300_000_000;
const COPY_PAGES: u64 = 32;
const RECORD_PAGES: u64 = 3;
const FILE_BYTES: u64 = 11 << 10;
const FILES: u64 = 1 << 20;
const ARCHIVE_PAGE: u64 = 64 << 20;

/// Utility to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Copies a long file from the volume to elsewhere.
    CopyFrom,
    /// Copies a long file from elsewhere to the volume.
    CopyTo,
    /// Packs a tree on the volume into an archive on the volume.
    Tar,
    /// Unpacks an archive on the volume into a tree on the volume.
    Untar,
}

impl Kind {
    /// All utilities.
    pub const ALL: [Kind; 4] = [Kind::CopyFrom, Kind::CopyTo, Kind::Tar, Kind::Untar];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::CopyFrom => "copy from",
            Kind::CopyTo => "copy to",
            Kind::Tar => "tar",
            Kind::Untar => "untar",
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Utility(pub(super) Kind, pub(super) u64);

impl Utility {
    fn copy<M: Host>(&self, access: &mut Access<'_, M>) {
        let elsewhere_ns = access.costs().pages_ns(COPY_PAGES);
        let (mut page, pages) = (0, access.volume().capacity() / PAGE_SECTORS);
        while !access.is_over() {
            if page + COPY_PAGES > pages {
                page = 0;
            }
            let span = (page * PAGE_SECTORS, COPY_PAGES * PAGE_SECTORS);
            access.works(elsewhere_ns);
            match self.0 {
                Kind::CopyTo => access.write(span),
                _ => access.read(span),
            }
            access.count(COPY_PAGES);
            page += COPY_PAGES;
        }
    }

    fn pack<M: Host>(&self, access: &mut Access<'_, M>) {
        let mut random = Random::new(self.1);
        let (name_ns, change_ns) = (access.costs().name_ns(), access.costs().change_ns());
        let place = |page: u64, pages: u64| (page * PAGE_SECTORS, pages * PAGE_SECTORS);
        let end = access.volume().capacity() / PAGE_SECTORS;
        let archive_page = ARCHIVE_PAGE.min(end / 2);
        // The volume begins with the inodes, followed by the file data. `owed` counts the archive
        // pages that belong to finished files but are still to be written (tar) or read (untar).
        let (mut page, mut archive, mut owed) = (FILES / INODES, archive_page, 0);
        for number in (0..FILES).cycle() {
            if access.is_over() {
                break;
            }
            let pages = size_pages(FILE_BYTES, &mut random);
            if page + pages > archive_page || archive + pages + RECORD_PAGES > end {
                // If the space for the files or the archive is full, start again at the beginning
                // of both. No simulated run is long enough for this.
                (page, archive, owed) = (FILES / INODES, archive_page, 0);
            }
            if self.0 == Kind::Tar {
                access.works(2 * name_ns);
                access.read(place(page, pages));
            } else {
                access.works(change_ns + name_ns);
                access.write(place(page, pages));
                access.write(place(number / INODES, 1));
            }
            (page, owed) = (page + pages, owed + pages);
            while owed >= RECORD_PAGES {
                match self.0 {
                    Kind::Tar => access.write(place(archive, RECORD_PAGES)),
                    _ => access.read(place(archive, RECORD_PAGES)),
                }
                (owed, archive) = (owed - RECORD_PAGES, archive + RECORD_PAGES);
            }
            access.count(pages);
        }
    }
}

impl Program for Utility {
    fn cache(&self) -> Option<CacheConfig> {
        Some(CacheConfig { size_bytes: CACHE_BYTES, ..CacheConfig::default() })
    }

    fn measured(&self) -> (u64, u64) {
        (2 * CACHE_BYTES / 4096, LENGTH_NS)
    }

    fn run<M: Host>(&self, _: u32, access: &mut Access<'_, M>) {
        match self.0 {
            Kind::CopyFrom | Kind::CopyTo => self.copy(access),
            Kind::Tar | Kind::Untar => self.pack(access),
        }
    }
}
