//! `RbdImage`: an open image, queries about it, and I/O on it.
//!
//! Any query may wait for the cluster; I/O is started without waiting. If the user may write, the
//! image has a watch on its header: then no client can remove the image, and librbd is notified of
//! every change. Results of librbd are checked: a negative number is an errno; texts and lists are
//! read only up to the length passed in the call; extents are cut to the requested range.
//! Invariant: the handle is closed once, when no more I/O can be started.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::ops::Range;
use std::ptr::{null, null_mut};
use std::sync::{Arc, OnceLock};

use libc::{iovec, size_t};
use millrace_block::{Op, OpFlags, Request};
use millrace_machine::Native;

use super::RbdConfig;
use super::cluster::{CephCluster, c_text, checked, text_in};
use super::library::{Handle, ImageInfo, ImageWatcher};

/// Lock mode `RBD_LOCK_MODE_EXCLUSIVE`.
const EXCLUSIVE: c_int = 0;
/// Flag `RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`: the range keeps its space allocated.
const THICK: c_int = 1;
const WATCHERS: usize = 64;
/// Snapshot id `CEPH_NOSNAP`, which stands for the image itself.
const NO_SNAPSHOT: u64 = u64::MAX - 1;
const EXTENTS_MAX: usize = 4096;

pub(crate) struct RbdImage {
    pub(crate) cluster: Arc<CephCluster>,
    handle: Handle,
    pub(crate) is_watched: bool,
    /// Callback for changes of the image; kept until the handle is closed.
    updates: OnceLock<UpdateWatch>,
}

struct UpdateWatch {
    number: u64,
    _call: Box<UpdateCall>,
}

/// Called by a thread of librbd. The client that changed the image waits for this call.
pub(crate) type UpdateCall = Box<dyn Fn() + Send + Sync>;

// SAFETY: librbd's handles may be used by any thread, and by several at once.
unsafe impl Send for RbdImage {}
// SAFETY: several threads may use librbd's handles at once.
unsafe impl Sync for RbdImage {}

impl Drop for RbdImage {
    fn drop(&mut self) {
        let functions = self.cluster.functions;
        // SAFETY: a live handle, closed here only; this waits for calls and for I/O under way.
        unsafe {
            if let Some(updates) = self.updates.get() {
                (functions.rbd_update_unwatch)(self.handle, updates.number);
            }
            (functions.rbd_close)(self.handle);
        }
    }
}

impl RbdImage {
    /// Opens the image or its snapshot. Setting a watch needs write permission: if the Ceph user
    /// has it, a read-only image gets a watch, too.
    pub(crate) fn open(cluster: CephCluster, config: &RbdConfig) -> Result<RbdImage, io::Error> {
        let functions = cluster.functions;
        let name = c_text(&config.image.image);
        let snapshot = config.image.snapshot.as_deref().map(c_text);
        let snapshot = snapshot.as_ref().map_or(null(), |snapshot| snapshot.as_ptr());
        let open = |function: OpenFunction| {
            let mut handle = null_mut();
            // SAFETY: a live pool and valid texts; the handle is written on success only.
            let opened =
                unsafe { function(cluster.pool, name.as_ptr(), &raw mut handle, snapshot) };
            checked(opened).map(|_| handle)
        };
        let is_refused = |error: &io::Error| {
            matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::EROFS))
        };
        let (handle, is_watched) = match open(functions.rbd_open) {
            Err(error) if config.is_read_only() && is_refused(&error) => {
                (open(functions.rbd_open_read_only)?, false)
            }
            opened => (opened?, true),
        };
        Ok(RbdImage { cluster: Arc::new(cluster), handle, is_watched, updates: OnceLock::new() })
    }

    /// Opens the image with this id for reading, in its current state, whatever its name is now.
    pub(crate) fn open_by_id(cluster: &Arc<CephCluster>, id: &str) -> Result<RbdImage, io::Error> {
        let (id, mut handle) = (c_text(id), null_mut());
        let open = cluster.functions.rbd_open_by_id_read_only;
        // SAFETY: a live pool and a valid text; the handle is written on success only.
        checked(unsafe { open(cluster.pool, id.as_ptr(), &raw mut handle, null()) })?;
        let (cluster, updates) = (Arc::clone(cluster), OnceLock::new());
        Ok(RbdImage { cluster, handle, is_watched: false, updates })
    }

    pub(crate) fn on_update(&self, call: UpdateCall) -> Result<(), io::Error> {
        let (call, mut number) = (Box::new(call), 0);
        let argument = (&raw const *call).cast_mut().cast::<c_void>();
        let watch = self.cluster.functions.rbd_update_watch;
        // SAFETY: a live handle; the argument is kept until no call can come any more.
        checked(unsafe { watch(self.handle, &raw mut number, updated, argument) })?;
        // Only one callback may be set. `updates` keeps only the first one, so a second one would
        // be freed while librbd still uses it.
        assert!(
            self.updates.set(UpdateWatch { number, _call: call }).is_ok(),
            "register only one update callback"
        );
        Ok(())
    }

    /// Returns the id of a snapshot, which stays the same when the snapshot is renamed, or the id
    /// that stands for the image itself.
    pub(crate) fn snapshot_id(&self, name: Option<&str>) -> Result<u64, io::Error> {
        let Some(name) = name else { return Ok(NO_SNAPSHOT) };
        let (name, mut id) = (c_text(name), 0);
        let get = self.cluster.functions.rbd_snap_get_id;
        // SAFETY: a live handle, a valid text, and a number that may be written.
        checked(unsafe { get(self.handle, name.as_ptr(), &raw mut id) })?;
        Ok(id)
    }

    pub(crate) fn set_snapshot(&self, id: u64) -> Result<(), io::Error> {
        // SAFETY: a live handle.
        checked(unsafe { (self.cluster.functions.rbd_snap_set_by_id)(self.handle, id) }).map(|_| ())
    }

    pub(crate) fn info(&self) -> Result<ImageInfo, io::Error> {
        let mut info = ImageInfo::EMPTY;
        let stat = self.cluster.functions.rbd_stat;
        // SAFETY: a live handle, and a structure of the stated size.
        checked(unsafe { stat(self.handle, &raw mut info, size_of::<ImageInfo>()) })?;
        Ok(info)
    }

    fn number(
        &self,
        function: unsafe extern "C" fn(Handle, *mut u64) -> c_int,
    ) -> Result<u64, io::Error> {
        let mut number = 0;
        // SAFETY: a live handle, and a number that may be written.
        checked(unsafe { function(self.handle, &raw mut number) })?;
        Ok(number)
    }

    pub(crate) fn size_bytes(&self) -> Result<u64, io::Error> {
        self.number(self.cluster.functions.rbd_get_size)
    }

    pub(crate) fn features(&self) -> Result<u64, io::Error> {
        self.number(self.cluster.functions.rbd_get_features)
    }

    /// Returns the flag bits, which mark features that are currently unreliable.
    pub(crate) fn flags(&self) -> Result<u64, io::Error> {
        self.number(self.cluster.functions.rbd_get_flags)
    }

    pub(crate) fn overlap(&self) -> Result<u64, io::Error> {
        self.number(self.cluster.functions.rbd_get_overlap)
    }

    pub(crate) fn stripe_unit(&self) -> Result<u64, io::Error> {
        self.number(self.cluster.functions.rbd_get_stripe_unit)
    }

    pub(crate) fn id(&self) -> Result<String, io::Error> {
        let mut id = [0u8; 128];
        let start = id.as_mut_ptr().cast::<c_char>();
        let get = self.cluster.functions.rbd_get_id;
        // SAFETY: a live handle, and a buffer of the stated length.
        checked(unsafe { get(self.handle, start, id.len()) })?;
        Ok(text_in(&id))
    }

    /// Returns the address of the client with the exclusive lock. The image must be open for
    /// writing.
    pub(crate) fn owner(&self) -> Option<String> {
        let functions = self.cluster.functions;
        let (mut mode, mut owner, mut count): (c_int, *mut c_char, size_t) = (0, null_mut(), 1);
        // SAFETY: a live handle, and a list with room for the one owner of an exclusive lock.
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

    /// Returns true if a client with this address has the image open, as far as the cluster knows.
    pub(crate) fn is_watched_by(&self, address: &str) -> bool {
        let functions = self.cluster.functions;
        let (mut watchers, mut count) = ([ImageWatcher::EMPTY; WATCHERS], WATCHERS as size_t);
        let start = watchers.as_mut_ptr();
        // SAFETY: a live handle, and a list of the stated length.
        if unsafe { (functions.rbd_watchers_list)(self.handle, start, &raw mut count) } < 0 {
            return false;
        }
        let count = count.min(WATCHERS);
        let is_it = |watcher: &ImageWatcher| {
            // SAFETY: a text that librbd has made and that is given back below.
            let text = || unsafe { CStr::from_ptr(watcher.address) };
            !watcher.address.is_null() && text().to_bytes() == address.as_bytes()
        };
        let found = watchers[..count].iter().any(is_it);
        // SAFETY: the watchers that librbd has filled in, once.
        unsafe { (functions.rbd_watchers_list_cleanup)(watchers.as_mut_ptr(), count) };
        found
    }

    /// Acquires the exclusive lock permanently: it is not passed to another client on request.
    pub(crate) fn lock(&self) -> Result<(), io::Error> {
        // SAFETY: a live handle.
        checked(unsafe { (self.cluster.functions.rbd_lock_acquire)(self.handle, EXCLUSIVE) })
            .map(|_| ())
    }

    /// Returns the byte ranges of the objects that may hold data, in order. All other bytes read as
    /// zeroes. Waits for the cluster. Returns `None` on an error, or if there are too many ranges.
    pub(crate) fn data(&self, range: Range<u64>) -> Option<Vec<Range<u64>>> {
        let mut found = ExtentList { range: range.clone(), list: Vec::new() };
        let iterate = self.cluster.functions.rbd_diff_iterate2;
        let (len, argument) = (range.end - range.start, (&raw mut found).cast::<c_void>());
        // SAFETY: a live handle; `found` outlives the call, which alone calls back.
        let done =
            unsafe { iterate(self.handle, null(), range.start, len, 1, 1, note_extent, argument) };
        (done >= 0).then_some(found.list)
    }

    /// Starts the I/O of a request. On success, librbd will call the completion.
    ///
    /// # Safety
    /// The request's memory and `pieces`, its segment list, must stay valid until the completion is
    /// called, and `completion` must be new.
    pub(crate) unsafe fn start(
        &self,
        rq: &Request<Native>,
        pieces: &[iovec],
        completion: Handle,
    ) -> Result<(), c_int> {
        let (functions, image) = (self.cluster.functions, self.handle);
        let (at, len) = (rq.sector() << 9, u64::from(rq.nr_sectors()) << 9);
        let (list, count) = (pieces.as_ptr(), pieces.len() as c_int);
        // SAFETY: a live handle; the rest is promised by the caller.
        let started = unsafe {
            match rq.op() {
                Op::Read => (functions.rbd_aio_readv)(image, list, count, at, completion),
                Op::Write => (functions.rbd_aio_writev)(image, list, count, at, completion),
                Op::Flush => (functions.rbd_aio_flush)(image, completion),
                Op::Discard => (functions.rbd_aio_discard)(image, at, len, completion),
                Op::WriteZeroes => {
                    let flags = if rq.flags().has(OpFlags::NOUNMAP) { THICK } else { 0 };
                    let len = len as size_t;
                    (functions.rbd_aio_write_zeroes)(image, at, len, completion, flags, 0)
                }
            }
        };
        if started < 0 { Err(started) } else { Ok(()) }
    }
}

type OpenFunction =
    unsafe extern "C" fn(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;

/// Called by librbd when an image has changed.
///
/// # Safety
/// `call` must belong to an image that is not closed yet.
unsafe extern "C" fn updated(call: *mut c_void) {
    // SAFETY: the image keeps it until librbd has ended all calls.
    unsafe { (*call.cast::<UpdateCall>())() }
}

struct ExtentList {
    range: Range<u64>,
    list: Vec<Range<u64>>,
}

/// Records an extent that `rbd_diff_iterate2` reports. In an image with snapshots, the extent may
/// be a hole (`exists` is 0) and is then ignored.
///
/// # Safety
/// `found` must be an `ExtentList` that no other code uses during the call.
unsafe extern "C" fn note_extent(at: u64, len: size_t, exists: c_int, found: *mut c_void) -> c_int {
    // SAFETY: `RbdImage::data` passes a value that nobody else uses meanwhile.
    let found = unsafe { &mut *found.cast::<ExtentList>() };
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
        let mut found = ExtentList { range, list: Vec::new() };
        let argument = (&raw mut found).cast::<c_void>();
        let tell = |&(at, len, exists): &(u64, usize, c_int)| {
            // SAFETY: as in `RbdImage::data`.
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
