//! `LibraryFunctions`: the functions of librbd and librados. The libraries are loaded when the
//! first Ceph drive is opened.
//!
//! Only a program that opens a Ceph drive needs the libraries; a build does not need them. The
//! table is a plain struct of function pointers, so that tests can replace the functions. The
//! libraries stay loaded, because their threads and callbacks outlive every drive. Invariant: the
//! declarations match `rbd/librbd.h` and `rados/librados.h` of Ceph 16, which later versions keep.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

use libc::{iovec, size_t, ssize_t};
use libloading::Library;
use millrace_block::{Error, ErrorKind};

const RBD: &str = "librbd.so.1";
const RADOS: &str = "librados.so.2";

/// Any of the C types `rados_t`, `rados_ioctx_t`, `rbd_image_t` and `rbd_completion_t`, which are
/// opaque pointers.
pub(crate) type Handle = *mut c_void;
/// C type `rbd_callback_t`.
pub(crate) type Callback = unsafe extern "C" fn(completion: Handle, argument: *mut c_void);
/// C type `rbd_update_callback_t`.
pub(crate) type UpdateCallback = unsafe extern "C" fn(argument: *mut c_void);
/// Callback of `rbd_diff_iterate2` for each extent: offset, length, and whether it holds data.
pub(crate) type ExtentCallback = unsafe extern "C" fn(u64, size_t, c_int, *mut c_void) -> c_int;

/// C struct `rbd_image_info_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct ImageInfo {
    pub(crate) size_bytes: u64,
    pub(crate) object_bytes: u64,
    objects: u64,
    order: c_int,
    block_name_prefix: [c_char; 24],
    parent_pool: i64,
    parent_name: [c_char; 96],
}

impl ImageInfo {
    pub(crate) const EMPTY: ImageInfo = ImageInfo {
        size_bytes: 0,
        object_bytes: 0,
        objects: 0,
        order: 0,
        block_name_prefix: [0; 24],
        parent_pool: 0,
        parent_name: [0; 96],
    };
}

/// C struct `rbd_image_watcher_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct ImageWatcher {
    pub(crate) address: *mut c_char,
    id: i64,
    cookie: u64,
}

impl ImageWatcher {
    pub(crate) const EMPTY: ImageWatcher =
        ImageWatcher { address: std::ptr::null_mut(), id: 0, cookie: 0 };
}

macro_rules! functions {
    ($($library:ident $name:ident($($argument:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        #[derive(Clone, Copy)]
        pub(crate) struct LibraryFunctions {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl LibraryFunctions {
            fn of(libraries: &CephLibraries) -> Result<LibraryFunctions, Error> {
                Ok(LibraryFunctions {
                    $($name: {
                        type Function = unsafe extern "C" fn($($argument),*) $(-> $result)?;
                        // SAFETY: the type is that of the function of this name in the header.
                        unsafe { symbol::<Function>(&libraries.$library, stringify!($name)) }?
                    },)*
                })
            }
        }
    };
}

functions! {
    rados rados_create2(*mut Handle, *const c_char, *const c_char, u64) -> c_int;
    rados rados_conf_read_file(Handle, *const c_char) -> c_int;
    rados rados_conf_get(Handle, *const c_char, *mut c_char, size_t) -> c_int;
    rados rados_conf_set(Handle, *const c_char, *const c_char) -> c_int;
    rados rados_connect(Handle) -> c_int;
    rados rados_shutdown(Handle);
    rados rados_cluster_fsid(Handle, *mut c_char, size_t) -> c_int;
    rados rados_ioctx_create(Handle, *const c_char, *mut Handle) -> c_int;
    rados rados_ioctx_destroy(Handle);
    rados rados_ioctx_set_namespace(Handle, *const c_char);
    rados rados_ioctx_get_id(Handle) -> i64;
    rbd rbd_open(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
    rbd rbd_open_read_only(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
    rbd rbd_open_by_id_read_only(
        Handle, *const c_char, *mut Handle, *const c_char,
    ) -> c_int;
    rbd rbd_close(Handle) -> c_int;
    rbd rbd_snap_get_id(Handle, *const c_char, *mut u64) -> c_int;
    rbd rbd_snap_set_by_id(Handle, u64) -> c_int;
    rbd rbd_update_watch(Handle, *mut u64, UpdateCallback, *mut c_void) -> c_int;
    rbd rbd_update_unwatch(Handle, u64) -> c_int;
    rbd rbd_stat(Handle, *mut ImageInfo, size_t) -> c_int;
    rbd rbd_get_size(Handle, *mut u64) -> c_int;
    rbd rbd_get_features(Handle, *mut u64) -> c_int;
    rbd rbd_get_flags(Handle, *mut u64) -> c_int;
    rbd rbd_get_overlap(Handle, *mut u64) -> c_int;
    rbd rbd_get_stripe_unit(Handle, *mut u64) -> c_int;
    rbd rbd_get_id(Handle, *mut c_char, size_t) -> c_int;
    rbd rbd_lock_acquire(Handle, c_int) -> c_int;
    rbd rbd_lock_get_owners(Handle, *mut c_int, *mut *mut c_char, *mut size_t) -> c_int;
    rbd rbd_lock_get_owners_cleanup(*mut *mut c_char, size_t);
    rbd rbd_watchers_list(Handle, *mut ImageWatcher, *mut size_t) -> c_int;
    rbd rbd_watchers_list_cleanup(*mut ImageWatcher, size_t);
    rbd rbd_diff_iterate2(
        Handle, *const c_char, u64, u64, u8, u8, ExtentCallback, *mut c_void,
    ) -> c_int;
    rbd rbd_aio_create_completion(*mut c_void, Callback, *mut Handle) -> c_int;
    rbd rbd_aio_get_return_value(Handle) -> ssize_t;
    rbd rbd_aio_release(Handle);
    rbd rbd_aio_readv(Handle, *const iovec, c_int, u64, Handle) -> c_int;
    rbd rbd_aio_writev(Handle, *const iovec, c_int, u64, Handle) -> c_int;
    rbd rbd_aio_discard(Handle, u64, u64, Handle) -> c_int;
    rbd rbd_aio_write_zeroes(Handle, u64, size_t, Handle, c_int, c_int) -> c_int;
    rbd rbd_aio_flush(Handle, Handle) -> c_int;
}

struct CephLibraries {
    rados: Library,
    rbd: Library,
}

/// Returns the function table of this process, and loads librados and librbd at the first call. The
/// error names the Debian packages to install.
pub(crate) fn functions() -> Result<&'static LibraryFunctions, Error> {
    static TABLE: OnceLock<Result<LibraryFunctions, String>> = OnceLock::new();
    let table = TABLE.get_or_init(|| load(RADOS, RBD).map_err(|error| error.to_string()));
    table.as_ref().map_err(|text| Error::new(ErrorKind::NotSupported, text.clone()))
}

fn load(rados: &str, rbd: &str) -> Result<LibraryFunctions, Error> {
    let libraries = CephLibraries { rados: library(rados)?, rbd: library(rbd)? };
    let table = LibraryFunctions::of(&libraries)?;
    // The libraries are never unloaded, because their threads run until the process ends.
    std::mem::forget(libraries);
    Ok(table)
}

fn library(name: &str) -> Result<Library, Error> {
    // SAFETY: the start-up code of these two libraries sets up their own data only.
    unsafe { Library::new(name) }.map_err(|error| {
        let text = format!(
            "a Ceph drive needs {RADOS} and {RBD}, and {name} cannot be loaded ({error}); install \
             the Debian packages librados2 and librbd1, or what your distribution calls them"
        );
        Error::new(ErrorKind::NotSupported, text)
    })
}

/// Looks up a function by name.
///
/// # Safety
/// `F` must be a function pointer of the function's type.
unsafe fn symbol<F: Copy>(library: &Library, name: &str) -> Result<F, Error> {
    // SAFETY: promised by the caller.
    let found = unsafe { library.get::<F>(name) };
    found.map(|function| *function).map_err(|_| {
        let text = format!(
            "the librbd or librados of this machine has no {name}; a Ceph drive needs those of \
             Ceph 16 or later: update the Debian packages librados2 and librbd1"
        );
        Error::new(ErrorKind::NotSupported, text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(loaded: Result<LibraryFunctions, Error>) -> String {
        loaded.err().expect("it cannot be loaded").to_string()
    }

    #[test]
    fn a_missing_library_is_named_with_its_packages() {
        let text = text_of(load("libmillrace-has-no-such.so.9", RBD));
        assert!(text.contains("libmillrace-has-no-such.so.9 cannot be loaded"), "{text}");
        assert!(text.contains("packages librados2 and librbd1"), "{text}");
    }

    #[test]
    fn library_without_function_is_refused_with_functions_name() {
        let text = text_of(load("libc.so.6", "libc.so.6"));
        assert!(text.contains("has no rados_create2"), "{text}");
        assert!(text.contains("Ceph 16 or later"), "{text}");
    }

    #[test]
    fn the_image_information_is_as_long_as_in_the_header() {
        // Three numbers of eight bytes, an int, 24 characters, four bytes of padding, a number, 96.
        assert_eq!(size_of::<ImageInfo>(), 24 + 4 + 24 + 4 + 8 + 96);
    }
}
