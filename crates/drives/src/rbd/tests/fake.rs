//! A fake librbd: images in memory, a log of calls, and results and completion times set by a test.
//!
//! Every handle except a completion's is a pointer to a `Fake`, found by its pool's name.
//! Completions are called within the call that starts the I/O, or, if the test holds them, later
//! from the test's thread.
// The header of librados documents these functions.
#![allow(unsafe_code, clippy::unwrap_used, clippy::missing_safety_doc)]

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use libc::{iovec, size_t, ssize_t};

use crate::rbd::library::{
    Callback, ExtentCallback, Handle, ImageInfo, ImageWatcher, LibraryFunctions, UpdateCallback,
};
use crate::rbd::{RbdConfig, RbdDriver, open};

/// Bytes of an image.
pub(in crate::rbd) const BYTES: u64 = 16 << 20;
/// Bytes of its objects.
pub(in crate::rbd) const OBJECT: u64 = 1 << 20;

/// A call that starts I/O, with offset and length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::rbd) enum Call {
    Read(u64, u64),
    Write(u64, u64),
    Discard(u64, u64),
    /// The flags last.
    Zero(u64, u64, c_int),
    Flush,
}

/// The fake image: behaviour set by a test, and the calls seen.
pub(in crate::rbd) struct State {
    pub(in crate::rbd) bytes: Vec<u8>,
    pub(in crate::rbd) size_bytes: u64,
    /// The size reported by a handle that was opened before a resize it has not noticed.
    pub(in crate::rbd) known_bytes: Option<u64>,
    pub(in crate::rbd) calls: Vec<Call>,
    /// Replaces the result of an operation; `None` is success.
    pub(in crate::rbd) verdict: Option<fn(Call) -> Option<ssize_t>>,
    /// The error with which the call itself fails, so that no completion follows.
    pub(in crate::rbd) refusal: Option<c_int>,
    /// Completions are held back.
    pub(in crate::rbd) holds: bool,
    pub(in crate::rbd) features: u64,
    pub(in crate::rbd) owner: Option<String>,
    /// The user may write, and so watch.
    pub(in crate::rbd) may_write: bool,
    /// The image was removed; its snapshot was.
    pub(in crate::rbd) gone: [bool; 2],
    /// Bytes that the parent has for the image as it is in the cluster.
    pub(in crate::rbd) overlap_bytes: u64,
    /// Number of times that the image was opened to look at its state in the cluster.
    pub(in crate::rbd) looks: usize,
    /// Duration of each look.
    pub(in crate::rbd) look_time: std::time::Duration,
    update: Option<Update>,
    pub(in crate::rbd) watchers: Vec<String>,
    pub(in crate::rbd) locks: usize,
    pub(in crate::rbd) asked: Vec<(u64, u64)>,
    pub(in crate::rbd) is_open: bool,
    is_read_only: bool,
    back: Vec<Held>,
}

/// A function to call at each change, and its argument.
#[derive(Clone, Copy)]
struct Update(UpdateCallback, *mut c_void);

// SAFETY: the drive keeps the argument for whatever thread calls.
unsafe impl Send for Update {}

/// I/O whose completion is kept back.
struct Held {
    completion: Handle,
    /// Memory of a read, and the bytes to put there.
    fills: Option<(Vec<iovec>, Vec<u8>)>,
}

// SAFETY: the memory stays valid until the completion is called.
unsafe impl Send for Held {}

pub(in crate::rbd) struct Fake(pub(in crate::rbd) Mutex<State>);

static POOLS: Mutex<Option<HashMap<String, Arc<Fake>>>> = Mutex::new(None);

/// Keys and values that drives of all tests have set.
pub(in crate::rbd) static SETTINGS: Mutex<Vec<[String; 2]>> = Mutex::new(Vec::new());

thread_local! {
    /// Completions created by this thread, less those released.
    pub(in crate::rbd) static MADE: Cell<i64> = const { Cell::new(0) };
}

struct Completion {
    callback: Callback,
    argument: *mut c_void,
    result: ssize_t,
}

/// The table of the fake.
pub(in crate::rbd) fn functions() -> &'static LibraryFunctions {
    &TABLE
}

/// A drive on an image of a pool of this name, and the image.
pub(in crate::rbd) fn drive(pool: &str, change: impl FnOnce(&mut State)) -> (Arc<Fake>, RbdDriver) {
    let (fake, config) = image(pool, change);
    (fake, open::open_by(functions(), config).unwrap())
}

/// An image in a pool of this name, and the settings of a drive on it.
pub(in crate::rbd) fn image(pool: &str, change: impl FnOnce(&mut State)) -> (Arc<Fake>, RbdConfig) {
    let mut state = State {
        bytes: vec![0; BYTES as usize],
        size_bytes: BYTES,
        known_bytes: None,
        calls: Vec::new(),
        verdict: None,
        refusal: None,
        holds: false,
        features: 0x1c,
        owner: None,
        may_write: true,
        gone: [false; 2],
        overlap_bytes: 0,
        looks: 0,
        look_time: std::time::Duration::ZERO,
        update: None,
        watchers: Vec::new(),
        locks: 0,
        asked: Vec::new(),
        is_open: false,
        is_read_only: false,
        back: Vec::new(),
    };
    change(&mut state);
    let fake = Arc::new(Fake(Mutex::new(state)));
    POOLS.lock().unwrap().get_or_insert_default().insert(pool.into(), Arc::clone(&fake));
    let image = format!("{pool}/i").parse().unwrap();
    (fake, RbdConfig { image, connect: Duration::from_secs(1), ..RbdConfig::default() })
}

impl Fake {
    /// Changes the image in the cluster and tells the drive, as librbd does if it has a watch.
    pub(in crate::rbd) fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.0.lock().unwrap();
        change(&mut state);
        let update = state.update;
        drop(state);
        if let Some(Update(call, argument)) = update {
            // SAFETY: the drive keeps the argument until it has taken the function back.
            unsafe { call(argument) }
        }
    }

    /// Calls the completions that were kept back, from the first on.
    pub(in crate::rbd) fn release(&self) {
        let back = std::mem::take(&mut self.0.lock().unwrap().back);
        back.into_iter().for_each(Held::end);
    }

    /// Completions held back.
    pub(in crate::rbd) fn held(&self) -> usize {
        self.0.lock().unwrap().back.len()
    }
}

impl Held {
    fn end(self) {
        // SAFETY: the memory of a read is valid until its completion is called, which is once.
        unsafe {
            if let Some((pieces, bytes)) = &self.fills {
                let mut from = bytes.as_slice();
                for piece in pieces {
                    let len = piece.iov_len.min(from.len());
                    std::ptr::copy_nonoverlapping(from.as_ptr(), piece.iov_base.cast(), len);
                    from = &from[len..];
                }
            }
            let Completion { callback, argument, .. } = *self.completion.cast::<Completion>();
            callback(self.completion, argument);
        }
    }
}

/// The image of a handle, which is odd if it was opened by the image's own name.
///
/// # Safety
/// The handle is a pool's or an image's of this table.
unsafe fn fake<'a>(handle: Handle) -> &'a Fake {
    // SAFETY: pools' fakes are never dropped.
    unsafe { &*handle.map_addr(|address| address & !1).cast::<Fake>() }
}

fn is_look(handle: Handle) -> bool {
    handle.addr() % 2 == 1
}

/// Notes a call, does it, and ends it unless the test holds it.
///
/// # Safety
/// The handles are of this table; the memory is valid until the completion is called.
unsafe fn run(image: Handle, call: Call, pieces: &[iovec], completion: Handle) -> c_int {
    // SAFETY: as the callers promise.
    let fake = unsafe { fake(image) };
    let mut state = fake.0.lock().unwrap();
    state.calls.push(call);
    if let Some(refusal) = state.refusal {
        return refusal;
    }
    let verdict = state.verdict.and_then(|verdict| verdict(call));
    let mut fills = None;
    match call {
        Call::Read(at, len) => {
            let bytes = state.bytes[at as usize..(at + len) as usize].to_vec();
            fills = Some((pieces.to_vec(), bytes));
        }
        Call::Write(mut at, _) => {
            for piece in pieces {
                // SAFETY: the memory of a request in flight.
                let from = unsafe {
                    std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len)
                };
                state.bytes[at as usize..][..from.len()].copy_from_slice(from);
                at += from.len() as u64;
            }
        }
        Call::Discard(at, len) | Call::Zero(at, len, _) => {
            state.bytes[at as usize..(at + len) as usize].fill(0);
        }
        Call::Flush => {}
    }
    let moved = if let Call::Read(_, len) = call { len as ssize_t } else { 0 };
    // SAFETY: a completion of this table that nobody else uses.
    unsafe { (*completion.cast::<Completion>()).result = verdict.unwrap_or(moved) };
    let held = Held { completion, fills };
    if state.holds {
        state.back.push(held);
    } else {
        drop(state);
        held.end();
    }
    0
}

/// Defines functions of the table, whose bodies may do what C does.
macro_rules! functions {
    ($($name:ident($($argument:ident: $kind:ty),* $(,)?) $(-> $result:ty)? $body:block)*) => {
        $(unsafe extern "C" fn $name($($argument: $kind),*) $(-> $result)? {
            #[allow(unused_unsafe, reason = "some bodies have nothing unsafe")]
            // SAFETY: handles are of this table; texts, lists and places are what the header says.
            unsafe { $body }
        })*

        static TABLE: LibraryFunctions = LibraryFunctions { $($name),* };
    };
}

functions! {
    rados_create2(
        out: *mut Handle, _name: *const c_char, _user: *const c_char, _flags: u64,
    ) -> c_int {
        *out = std::ptr::dangling_mut::<u8>().cast();
        0
    }
    rados_conf_read_file(_rados: Handle, _path: *const c_char) -> c_int { 0 }
    rados_conf_get(_rados: Handle, _key: *const c_char, _out: *mut c_char, _len: size_t) -> c_int {
        -libc::ENOENT
    }
    rados_conf_set(_rados: Handle, key: *const c_char, value: *const c_char) -> c_int {
        let texts = [key, value].map(|text| CStr::from_ptr(text).to_str().unwrap().to_owned());
        SETTINGS.lock().unwrap().push(texts);
        0
    }
    rados_connect(_rados: Handle) -> c_int { 0 }
    rados_shutdown(_rados: Handle) {}
    rados_cluster_fsid(_rados: Handle, out: *mut c_char, _len: size_t) -> c_int {
        *out = 0;
        0
    }
    rados_ioctx_create(_rados: Handle, name: *const c_char, out: *mut Handle) -> c_int {
        let pools = POOLS.lock().unwrap();
        let name = CStr::from_ptr(name).to_str().unwrap();
        let Some(fake) = pools.as_ref().and_then(|pools| pools.get(name)) else {
            return -libc::ENOENT;
        };
        *out = Arc::into_raw(Arc::clone(fake)).cast_mut().cast();
        0
    }
    rados_ioctx_destroy(_pool: Handle) {}
    rados_ioctx_set_namespace(_pool: Handle, _name: *const c_char) {}
    rados_ioctx_get_id(pool: Handle) -> i64 { pool.addr() as i64 }
    rbd_open(
        pool: Handle, _name: *const c_char, out: *mut Handle, _snapshot: *const c_char,
    ) -> c_int {
        let mut state = fake(pool).0.lock().unwrap();
        if !state.may_write {
            return -libc::EPERM;
        }
        (state.is_open, state.is_read_only) = (true, false);
        *out = pool;
        0
    }
    rbd_open_read_only(
        pool: Handle, _name: *const c_char, out: *mut Handle, _snapshot: *const c_char,
    ) -> c_int {
        let mut state = fake(pool).0.lock().unwrap();
        (state.is_open, state.is_read_only) = (true, true);
        *out = pool;
        0
    }
    rbd_open_by_id_read_only(
        pool: Handle, _id: *const c_char, out: *mut Handle, _snapshot: *const c_char,
    ) -> c_int {
        let time = fake(pool).0.lock().unwrap().look_time;
        std::thread::sleep(time);
        let mut state = fake(pool).0.lock().unwrap();
        state.looks += 1;
        *out = pool.map_addr(|address| address | 1);
        if state.gone[0] { -libc::ENOENT } else { 0 }
    }
    rbd_close(image: Handle) -> c_int {
        let mut state = fake(image).0.lock().unwrap();
        if !is_look(image) {
            state.is_open = false;
        }
        0
    }
    rbd_snap_get_id(_image: Handle, _name: *const c_char, out: *mut u64) -> c_int {
        *out = 4;
        0
    }
    rbd_snap_set_by_id(image: Handle, id: u64) -> c_int {
        assert!(id == 4 || id == u64::MAX - 1);
        let gone = id == 4 && fake(image).0.lock().unwrap().gone[1];
        if gone { -libc::ENOENT } else { 0 }
    }
    rbd_update_watch(
        image: Handle, out: *mut u64, call: UpdateCallback, argument: *mut c_void,
    ) -> c_int {
        fake(image).0.lock().unwrap().update = Some(Update(call, argument));
        *out = 9;
        0
    }
    rbd_update_unwatch(image: Handle, number: u64) -> c_int {
        assert_eq!(number, 9);
        fake(image).0.lock().unwrap().update = None;
        0
    }
    rbd_stat(image: Handle, info: *mut ImageInfo, _len: size_t) -> c_int {
        let size_bytes = fake(image).0.lock().unwrap().size_bytes;
        (*info).size_bytes = size_bytes;
        (*info).object_bytes = OBJECT;
        0
    }
    rbd_get_size(image: Handle, out: *mut u64) -> c_int {
        let mut state = fake(image).0.lock().unwrap();
        *out = state.known_bytes.take().unwrap_or(state.size_bytes);
        0
    }
    rbd_get_features(image: Handle, out: *mut u64) -> c_int {
        *out = fake(image).0.lock().unwrap().features;
        0
    }
    rbd_get_flags(_image: Handle, out: *mut u64) -> c_int {
        *out = 0;
        0
    }
    rbd_get_overlap(image: Handle, out: *mut u64) -> c_int {
        *out = fake(image).0.lock().unwrap().overlap_bytes;
        0
    }
    rbd_get_stripe_unit(_image: Handle, out: *mut u64) -> c_int {
        *out = OBJECT;
        0
    }
    rbd_get_id(_image: Handle, out: *mut c_char, _len: size_t) -> c_int {
        *out = 0;
        0
    }
    rbd_lock_acquire(image: Handle, _mode: c_int) -> c_int {
        fake(image).0.lock().unwrap().locks += 1;
        0
    }
    rbd_lock_get_owners(
        image: Handle, _mode: *mut c_int, list: *mut *mut c_char, count: *mut size_t,
    ) -> c_int {
        let state = fake(image).0.lock().unwrap();
        if state.is_read_only {
            return -libc::EINVAL;
        }
        let Some(owner) = state.owner.clone() else { return -libc::ENOENT };
        *list = CString::new(owner).unwrap().into_raw();
        *count = 1;
        0
    }
    rbd_lock_get_owners_cleanup(list: *mut *mut c_char, count: size_t) {
        (0..count).for_each(|at| drop(CString::from_raw(*list.add(at))));
    }
    rbd_watchers_list(image: Handle, list: *mut ImageWatcher, count: *mut size_t) -> c_int {
        let watchers = fake(image).0.lock().unwrap().watchers.clone();
        assert!(watchers.len() <= *count);
        for (at, address) in watchers.iter().enumerate() {
            let address = CString::new(address.as_str()).unwrap().into_raw();
            (*list.add(at)).address = address;
        }
        *count = watchers.len();
        0
    }
    rbd_watchers_list_cleanup(list: *mut ImageWatcher, count: size_t) {
        (0..count).for_each(|at| drop(CString::from_raw((*list.add(at)).address)));
    }
    rbd_diff_iterate2(
        image: Handle, _from: *const c_char, at: u64, len: u64, _parent: u8, _whole: u8,
        tell: ExtentCallback, argument: *mut c_void,
    ) -> c_int {
        let mut state = fake(image).0.lock().unwrap();
        state.asked.push((at, len));
        for object in at / OBJECT..(at + len).div_ceil(OBJECT) {
            let bytes = &state.bytes[(object * OBJECT) as usize..][..OBJECT as usize];
            let has_data = c_int::from(bytes.iter().any(|byte| *byte != 0));
            let said = tell(object * OBJECT, OBJECT as usize, has_data, argument);
            if said < 0 {
                return said;
            }
        }
        0
    }
    rbd_aio_create_completion(
        argument: *mut c_void, callback: Callback, out: *mut Handle,
    ) -> c_int {
        MADE.with(|made| made.set(made.get() + 1));
        *out = Box::into_raw(Box::new(Completion { callback, argument, result: 0 })).cast();
        0
    }
    rbd_aio_get_return_value(completion: Handle) -> ssize_t {
        (*completion.cast::<Completion>()).result
    }
    rbd_aio_release(completion: Handle) {
        MADE.with(|made| made.set(made.get() - 1));
        drop(Box::from_raw(completion.cast::<Completion>()));
    }
    rbd_aio_readv(
        image: Handle, list: *const iovec, count: c_int, at: u64, completion: Handle,
    ) -> c_int {
        let (pieces, len) = pieces(list, count);
        run(image, Call::Read(at, len), pieces, completion)
    }
    rbd_aio_writev(
        image: Handle, list: *const iovec, count: c_int, at: u64, completion: Handle,
    ) -> c_int {
        let (pieces, len) = pieces(list, count);
        run(image, Call::Write(at, len), pieces, completion)
    }
    rbd_aio_discard(image: Handle, at: u64, len: u64, completion: Handle) -> c_int {
        run(image, Call::Discard(at, len), &[], completion)
    }
    rbd_aio_write_zeroes(
        image: Handle, at: u64, len: size_t, completion: Handle, flags: c_int, _op_flags: c_int,
    ) -> c_int {
        run(image, Call::Zero(at, len as u64, flags), &[], completion)
    }
    rbd_aio_flush(image: Handle, completion: Handle) -> c_int {
        run(image, Call::Flush, &[], completion)
    }
}

/// A list of pieces, and their length.
///
/// # Safety
/// There are as many pieces as `count` says.
unsafe fn pieces<'a>(list: *const iovec, count: c_int) -> (&'a [iovec], u64) {
    // SAFETY: as many pieces as are said.
    let pieces = unsafe { std::slice::from_raw_parts(list, count as usize) };
    (pieces, pieces.iter().map(|piece| piece.iov_len as u64).sum())
}
