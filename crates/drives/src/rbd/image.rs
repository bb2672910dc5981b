//! `Image`: an open image, what is asked of it, and I/O started on it.
//!
//! Owns the image's handle and the connection below it. Called by open.rs and map.rs, where any
//! question may wait for the cluster, and by queue.rs, which starts I/O without waiting. How what
//! librbd returns is checked: a negative number is an errno; texts and lists come with a length of
//! ours and are read no further; offsets and lengths of extents are cut to the range asked for;
//! what I/O returns is checked in queue.rs. Invariant: the handle is closed once, when nobody can
//! start I/O any more.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::ops::Range;
use std::ptr::{null, null_mut};

use libc::{iovec, size_t};

use super::RbdConfig;
use super::cluster::{Cluster, c_text, checked, text_in};
use super::library::{Handle, ImageInfo, Watcher};

/// `RBD_LOCK_MODE_EXCLUSIVE`.
const EXCLUSIVE: c_int = 0;
/// `RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`.
const THICK: c_int = 1;
/// How the name of the exclusive lock begins in the list of all locks.
const COOKIE: &[u8] = b"auto ";
/// Most bytes of each text about a lock.
const LOCKERS_BYTES: usize = 512;
/// Most watchers that are looked at.
const WATCHERS: usize = 64;
/// Most extents of one question.
const EXTENTS_MAX: usize = 4096;

/// An open image.
pub(crate) struct Image {
    pub(crate) cluster: Cluster,
    handle: Handle,
}

// SAFETY: librbd's handles may be used by any thread, and by several at once.
unsafe impl Send for Image {}
// SAFETY: as above.
unsafe impl Sync for Image {}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: a live handle, closed here only; this waits for I/O under way.
        unsafe { (self.cluster.functions.rbd_close)(self.handle) };
    }
}

/// What to start, with the place on the image in bytes.
#[derive(Clone, Copy)]
pub(crate) enum Start<'a> {
    Read(&'a [iovec], u64),
    Write(&'a [iovec], u64),
    Discard(u64, u64),
    /// Space may be given up.
    Zero(u64, u64),
    /// Space is kept.
    ZeroThick(u64, u64),
    Flush,
}

impl Image {
    /// Opens the image, or its snapshot.
    pub(crate) fn open(cluster: Cluster, config: &RbdConfig) -> Result<Image, io::Error> {
        let functions = cluster.functions;
        let open = match config.is_read_only() {
            true => functions.rbd_open_read_only,
            false => functions.rbd_open,
        };
        let name = c_text(&config.image.image);
        let snapshot = config.image.snapshot.as_deref().map(c_text);
        let snapshot = snapshot.as_ref().map_or(null(), |snapshot| snapshot.as_ptr());
        let mut handle = null_mut();
        // SAFETY: a live pool and valid texts; the handle is written on success only.
        checked(unsafe { open(cluster.pool(), name.as_ptr(), &raw mut handle, snapshot) })?;
        Ok(Image { cluster, handle })
    }

    /// Size and size of objects.
    pub(crate) fn info(&self) -> Result<ImageInfo, io::Error> {
        let mut info = ImageInfo::EMPTY;
        let stat = self.cluster.functions.rbd_stat;
        // SAFETY: a live handle, and as many bytes as are said.
        checked(unsafe { stat(self.handle, &raw mut info, size_of::<ImageInfo>()) })?;
        Ok(info)
    }

    /// A number that a function of this form gives.
    fn number(
        &self,
        function: unsafe extern "C" fn(Handle, *mut u64) -> c_int,
    ) -> Result<u64, io::Error> {
        let mut number = 0;
        // SAFETY: a live handle, and a number that may be written.
        checked(unsafe { function(self.handle, &raw mut number) })?;
        Ok(number)
    }

    /// Size in bytes by now.
    pub(crate) fn size_bytes(&self) -> Result<u64, io::Error> {
        self.number(self.cluster.functions.rbd_get_size)
    }

    /// Its features, as bits.
    pub(crate) fn features(&self) -> Result<u64, io::Error> {
        self.number(self.cluster.functions.rbd_get_features)
    }

    /// What of its features cannot be relied on now, as bits.
    pub(crate) fn flags(&self) -> Result<u64, io::Error> {
        self.number(self.cluster.functions.rbd_get_flags)
    }

    /// Bytes of which a parent image has the data that this one lacks.
    pub(crate) fn overlap(&self) -> Result<u64, io::Error> {
        self.number(self.cluster.functions.rbd_get_overlap)
    }

    /// Bytes after which data go to the next object.
    pub(crate) fn stripe_unit(&self) -> Result<u64, io::Error> {
        self.number(self.cluster.functions.rbd_get_stripe_unit)
    }

    /// The image's own name, which a rename leaves alone.
    pub(crate) fn id(&self) -> Result<String, io::Error> {
        let mut id = [0u8; 128];
        let start = id.as_mut_ptr().cast::<c_char>();
        let get = self.cluster.functions.rbd_get_id;
        // SAFETY: a live handle, and as many bytes as are said.
        checked(unsafe { get(self.handle, start, id.len()) })?;
        Ok(text_in(&id))
    }

    /// The address of the client that has the exclusive lock, if one has. librbd says it of images
    /// that are open for writing only.
    pub(crate) fn owner(&self) -> Option<String> {
        let functions = self.cluster.functions;
        let (mut mode, mut owner, mut count): (c_int, *mut c_char, size_t) = (0, null_mut(), 1);
        // SAFETY: a live handle, and a list of one owner; whoever has the lock is one.
        let got = unsafe {
            let list = (&raw mut owner, &raw mut count);
            (functions.rbd_lock_get_owners)(self.handle, &raw mut mode, list.0, list.1)
        };
        if got < 0 || count != 1 || owner.is_null() {
            return None;
        }
        // SAFETY: a text that librbd has made, copied before it is given back.
        unsafe {
            let text = CStr::from_ptr(owner).to_string_lossy().into_owned();
            (functions.rbd_lock_get_owners_cleanup)(&raw mut owner, count);
            Some(text)
        }
    }

    /// The address of the client that had the exclusive lock when the image was opened, for reading
    /// only, too.
    pub(crate) fn owner_at_open(&self) -> Option<String> {
        let list = self.cluster.functions.rbd_list_lockers;
        let (mut exclusive, mut texts, mut lens): (c_int, _, _) =
            (0, [[0u8; LOCKERS_BYTES]; 4], [LOCKERS_BYTES as size_t; 4]);
        let [tag, clients, cookies, addresses] =
            texts.each_mut().map(|text| text.as_mut_ptr().cast());
        let [tag_len, clients_len, cookies_len, addresses_len] =
            lens.each_mut().map(|len| &raw mut *len);
        // SAFETY: a live handle, a number, and texts with room for as many bytes as are said.
        let count = unsafe {
            list(
                self.handle,
                &raw mut exclusive,
                tag,
                tag_len,
                clients,
                clients_len,
                cookies,
                cookies_len,
                addresses,
                addresses_len,
            )
        };
        // Whoever has the exclusive lock is one; locks that people take have other names.
        let is_exclusive = count == 1 && texts[2].starts_with(COOKIE);
        is_exclusive.then(|| text_in(&texts[3]))
    }

    /// Whether a client of this address has the image open, as far as the cluster knows.
    pub(crate) fn is_watched_by(&self, address: &str) -> bool {
        let functions = self.cluster.functions;
        let (mut watchers, mut count) = ([Watcher::EMPTY; WATCHERS], WATCHERS as size_t);
        let start = watchers.as_mut_ptr();
        // SAFETY: a live handle, and a list as long as is said.
        if unsafe { (functions.rbd_watchers_list)(self.handle, start, &raw mut count) } < 0 {
            return false;
        }
        let count = count.min(WATCHERS);
        let is_it = |watcher: &Watcher| {
            // SAFETY: a text that librbd has made and that is given back below.
            let text = || unsafe { CStr::from_ptr(watcher.address) };
            !watcher.address.is_null() && text().to_bytes() == address.as_bytes()
        };
        let found = watchers[..count].iter().any(is_it);
        // SAFETY: the watchers that librbd has filled in, once.
        unsafe { (functions.rbd_watchers_list_cleanup)(watchers.as_mut_ptr(), count) };
        found
    }

    /// Takes the exclusive lock for good: no other client is given it on request.
    pub(crate) fn lock(&self) -> Result<(), io::Error> {
        // SAFETY: a live handle.
        checked(unsafe { (self.cluster.functions.rbd_lock_acquire)(self.handle, EXCLUSIVE) })
            .map(|_| ())
    }

    /// Where whole objects are that may hold data, in order; waits for the cluster. What stands in
    /// none of them reads as zeroes. None if there are too many, or an error.
    pub(crate) fn data(&self, range: Range<u64>) -> Option<Vec<Range<u64>>> {
        let mut found = Found { range: range.clone(), list: Vec::new() };
        let iterate = self.cluster.functions.rbd_diff_iterate2;
        let (len, argument) = (range.end - range.start, (&raw mut found).cast::<c_void>());
        // SAFETY: a live handle; `found` outlives the call, which alone calls back.
        let done =
            unsafe { iterate(self.handle, null(), range.start, len, 1, 1, note_extent, argument) };
        (done >= 0).then_some(found.list)
    }

    /// Starts I/O; unless it fails here, its completion will be called.
    ///
    /// # Safety
    /// The memory and the list of its pieces stay valid until the completion is called;
    /// `completion` is new.
    pub(crate) unsafe fn start(&self, start: Start<'_>, completion: Handle) -> Result<(), c_int> {
        let (functions, image) = (self.cluster.functions, self.handle);
        // SAFETY: a live handle; the rest is promised by the caller.
        let started = unsafe {
            match start {
                Start::Read(pieces, at) => {
                    let count = pieces.len() as c_int;
                    (functions.rbd_aio_readv)(image, pieces.as_ptr(), count, at, completion)
                }
                Start::Write(pieces, at) => {
                    let count = pieces.len() as c_int;
                    (functions.rbd_aio_writev)(image, pieces.as_ptr(), count, at, completion)
                }
                Start::Discard(at, len) => (functions.rbd_aio_discard)(image, at, len, completion),
                Start::Zero(at, len) | Start::ZeroThick(at, len) => {
                    let flags = if matches!(start, Start::Zero(..)) { 0 } else { THICK };
                    let len = len as size_t;
                    (functions.rbd_aio_write_zeroes)(image, at, len, completion, flags, 0)
                }
                Start::Flush => (functions.rbd_aio_flush)(image, completion),
            }
        };
        if started < 0 { Err(started) } else { Ok(()) }
    }
}

/// Extents that were told so far.
struct Found {
    range: Range<u64>,
    list: Vec<Range<u64>>,
}

/// One extent that differs from nothing: of data, or a hole in whoever has snapshots.
///
/// # Safety
/// `found` is a `Found` that nobody else uses meanwhile.
unsafe extern "C" fn note_extent(at: u64, len: size_t, exists: c_int, found: *mut c_void) -> c_int {
    // SAFETY: `Image::data` passes a value that nobody else uses meanwhile.
    let found = unsafe { &mut *found.cast::<Found>() };
    let start = at.clamp(found.range.start, found.range.end);
    let end = at.saturating_add(len as u64).min(found.range.end);
    if exists == 0 || start >= end {
        return 0;
    }
    let count = found.list.len();
    match found.list.last_mut() {
        Some(last) if start < last.start => return -libc::EINVAL,
        Some(last) if start <= last.end => last.end = last.end.max(end),
        _ if count == EXTENTS_MAX => return -libc::E2BIG,
        _ => found.list.push(start..end),
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(range: Range<u64>, extents: &[(u64, usize, c_int)]) -> (c_int, Vec<Range<u64>>) {
        let mut found = Found { range, list: Vec::new() };
        let argument = (&raw mut found).cast::<c_void>();
        let tell = |&(at, len, exists): &(u64, usize, c_int)| {
            // SAFETY: as in `Image::data`.
            unsafe { note_extent(at, len, exists, argument) }
        };
        let last = extents.iter().map(tell).find(|said| *said != 0);
        (last.unwrap_or(0), found.list)
    }

    #[test]
    fn extents_are_joined_and_cut_to_the_range_asked_for() {
        let extents = [(0, 150, 1), (150, 50, 1), (250, 10, 0), (290, usize::MAX, 1)];
        assert_eq!(told(100..300, &extents), (0, vec![100..200, 290..300]));
    }

    #[test]
    fn extents_outside_of_the_range_or_out_of_order_do_no_harm() {
        assert_eq!(told(100..300, &[(u64::MAX, 5, 1), (0, 100, 1)]), (0, vec![]));
        assert_eq!(told(0..300, &[(200, 10, 1), (100, 10, 1)]).0, -libc::EINVAL);
    }

    #[test]
    fn more_extents_than_are_kept_end_the_question() {
        let many: Vec<_> = (0..=EXTENTS_MAX as u64).map(|n| (n * 2, 1, 1)).collect();
        assert_eq!(told(0..1 << 20, &many).0, -libc::E2BIG);
    }
}
