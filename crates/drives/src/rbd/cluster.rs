//! `CephCluster`: a connection to a Ceph cluster, and the pool of one image.
//!
//! Connecting may wait for the cluster. Every error names the image as the user wrote it and says
//! what to check. Invariant: each handle is closed once, the pool's before the connection's.
#![allow(unsafe_code)]

use millrace_machine::nanoseconds;
use std::ffi::{CStr, CString, c_char, c_int};
use std::io;
use std::ptr::{null, null_mut};

use millrace_block::{Error, ErrorKind};

use super::RbdConfig;
use super::library::{Handle, LibraryFunctions};

/// Value of `client_mount_timeout` if nobody has configured it, in seconds.
const MOUNT_TIMEOUT_S: &str = "300";

pub(super) const NO_MONITORS: &str =
    "the cluster's monitors do not answer; check `mon host` in its configuration, and the network";

pub(crate) struct CephCluster {
    pub(crate) functions: &'static LibraryFunctions,
    rados: Handle,
    /// Handle of the image's pool; null until the pool is opened.
    pub(crate) pool: Handle,
}

// SAFETY: librados' handles may be used by any thread, and by several at once.
unsafe impl Send for CephCluster {}
// SAFETY: several threads may use librados' handles at once.
unsafe impl Sync for CephCluster {}

impl Drop for CephCluster {
    fn drop(&mut self) {
        // SAFETY: both handles were made by these libraries and are closed here only.
        unsafe {
            if !self.pool.is_null() {
                (self.functions.rados_ioctx_destroy)(self.pool);
            }
            (self.functions.rados_shutdown)(self.rados);
        }
    }
}

/// Converts a result of librados or librbd: a negative number is an errno.
pub(crate) fn checked(result: c_int) -> Result<c_int, io::Error> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result) }
}

/// Converts a text to a C string. Texts from settings contain no zero byte.
pub(crate) fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "")).unwrap_or_default()
}

pub(crate) fn text_in(buffer: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(buffer).unwrap_or_default();
    text.to_string_lossy().into_owned()
}

impl CephCluster {
    pub(crate) fn connect(
        functions: &'static LibraryFunctions,
        config: &RbdConfig,
    ) -> Result<CephCluster, Error> {
        let mut rados = null_mut();
        let user = c_text(&format!("client.{}", config.user));
        let cluster = c_text(&config.cluster);
        // SAFETY: valid texts; the handle is written on success only.
        let made = unsafe {
            (functions.rados_create2)(&raw mut rados, cluster.as_ptr(), user.as_ptr(), 0)
        };
        checked(made).map_err(|error| config.system("librados", &error))?;
        let mut cluster = CephCluster { functions, rados, pool: null_mut() };
        cluster.configure(config)?;
        // SAFETY: a live handle, configured and not connected.
        let connected = checked(unsafe { (functions.rados_connect)(rados) });
        connected.map_err(|error| connect_error(config, &error))?;
        cluster.pool = cluster.open_pool(config)?;
        Ok(cluster)
    }

    fn configure(&self, config: &RbdConfig) -> Result<(), Error> {
        let path = config.conf.as_ref().map(|path| c_text(&path.to_string_lossy()));
        let pointer = path.as_ref().map_or(null(), |path| path.as_ptr());
        // SAFETY: a live handle; a valid text, or null for Ceph's default locations.
        let read = checked(unsafe { (self.functions.rados_conf_read_file)(self.rados, pointer) });
        read.map_err(|error| conf_error(config, &error))?;
        if self.setting("client_mount_timeout").is_none_or(|text| text == MOUNT_TIMEOUT_S) {
            let seconds = nanoseconds(config.connect).div_ceil(1_000_000_000).max(1);
            // If the cluster's library refuses the timeout, its longer default applies.
            let _ = self.set("client_mount_timeout", &seconds.to_string());
        }
        if let Some(until_flush) = config.writethrough_until_flush {
            let key = "rbd_cache_writethrough_until_flush";
            self.set(key, &until_flush.to_string()).map_err(|error| config.system(key, &error))?;
        }
        Ok(())
    }

    fn set(&self, key: &str, value: &str) -> Result<(), io::Error> {
        let (key, value) = (c_text(key), c_text(value));
        // SAFETY: a live handle and valid texts.
        checked(unsafe {
            (self.functions.rados_conf_set)(self.rados, key.as_ptr(), value.as_ptr())
        })
        .map(|_| ())
    }

    pub(crate) fn setting(&self, key: &str) -> Option<String> {
        let (key, mut buffer) = (c_text(key), [0u8; 64]);
        let start = buffer.as_mut_ptr().cast::<c_char>();
        // SAFETY: a live handle, a valid text, and a buffer of the stated length.
        let got = unsafe {
            (self.functions.rados_conf_get)(self.rados, key.as_ptr(), start, buffer.len())
        };
        (got >= 0).then(|| text_in(&buffer))
    }

    fn open_pool(&self, config: &RbdConfig) -> Result<Handle, Error> {
        let (name, mut pool) = (c_text(&config.image.pool), null_mut());
        // SAFETY: a connected handle and a valid text; the pool is written on success only.
        let made = unsafe {
            (self.functions.rados_ioctx_create)(self.rados, name.as_ptr(), &raw mut pool)
        };
        checked(made).map_err(|error| pool_error(config, &error))?;
        if let Some(namespace) = &config.image.namespace {
            let namespace = c_text(namespace);
            // SAFETY: a live handle and a valid text, which is copied.
            unsafe { (self.functions.rados_ioctx_set_namespace)(pool, namespace.as_ptr()) };
        }
        Ok(pool)
    }

    pub(crate) fn place(&self) -> String {
        let mut fsid = [0u8; 64];
        // SAFETY: connected handles, and a buffer of the stated length.
        let pool = unsafe {
            let start = fsid.as_mut_ptr().cast::<c_char>();
            (self.functions.rados_cluster_fsid)(self.rados, start, fsid.len());
            (self.functions.rados_ioctx_get_id)(self.pool)
        };
        format!("{} {pool}", text_in(&fsid))
    }
}

fn conf_error(config: &RbdConfig, error: &io::Error) -> Error {
    let is_missing = error.raw_os_error() == Some(libc::ENOENT);
    let text = match &config.conf {
        Some(path) if is_missing => format!("conf={}: there is no such file", path.display()),
        Some(path) => format!("conf={}: {error}", path.display()),
        None if is_missing => format!(
            "no configuration of a Ceph cluster was found at the usual places, such as \
             /etc/ceph/{}.conf; name it with conf=PATH",
            config.cluster
        ),
        None => format!("the configuration of the Ceph cluster cannot be read: {error}"),
    };
    config.error(ErrorKind::System, text)
}

fn connect_error(config: &RbdConfig, error: &io::Error) -> Error {
    let user = &config.user;
    let text = match error.raw_os_error() {
        Some(libc::ETIMEDOUT) => NO_MONITORS.to_owned(),
        Some(libc::ENOENT) => format!(
            "no monitors, or no key of client.{user}, could be found: check `mon host` and \
             `keyring` in the cluster's configuration; id=NAME is another user"
        ),
        Some(libc::EACCES | libc::EPERM) => format!(
            "the cluster does not let client.{user} in ({error}); check its key, or give id=NAME"
        ),
        _ => format!("cannot connect to the cluster as client.{user}: {error}"),
    };
    config.error(ErrorKind::System, text)
}

fn pool_error(config: &RbdConfig, error: &io::Error) -> Error {
    let pool = &config.image.pool;
    if error.raw_os_error() != Some(libc::ENOENT) {
        return config.system(&format!("pool {pool}"), error);
    }
    let text = format!("the cluster has no pool {pool}; `ceph osd pool ls` lists the pools");
    config.error(ErrorKind::System, text)
}
