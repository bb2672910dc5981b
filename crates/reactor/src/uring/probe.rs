//! Opens the best io_uring that the kernel allows: tries set-up flags step by step, registers
//! tables, and runs a no-op as a trial.
//!
//! The attempts go from most flags (Linux 6.0) to none (5.11), with COOP_TASKRUN before
//! DEFER_TASKRUN. With COOP_TASKRUN, a thread sees completions without a system call, which halves
//! the system calls for each I/O on a busy file drive. On sockets, COOP_TASKRUN and DEFER_TASKRUN
//! are equally fast. A kernel that does not know a flag answers EINVAL; a container that forbids
//! io_uring answers EPERM or ENOSYS. One no-op is run, because a seccomp filter may allow the
//! set-up and refuse the other calls.

#![allow(unsafe_code)]

use crate::config::Features;
use io_uring::{IoUring, Probe, opcode};
use std::io;
use std::os::fd::AsRawFd;

pub(crate) const BUFFER_SLOTS: u16 = 1024;
/// Sizes to try for the table of registered files, largest first (RLIMIT_NOFILE may limit it).
const FILE_SLOTS: [u32; 3] = [1024, 256, 64];
const REGISTER_RING_FDS: libc::c_uint = 20;

pub(crate) struct OpenedRing {
    pub(crate) ring: IoUring,
    pub(crate) features: Features,
    pub(crate) file_slots: u32,
    pub(crate) ring_index: Option<u32>,
}

pub(crate) fn open(entries: u32) -> io::Result<OpenedRing> {
    let (ring, mut features) = set_up(entries)?;
    check_features(&ring)?;
    trial(&ring)?;
    let submitter = ring.submitter();
    let file_slots = FILE_SLOTS
        .into_iter()
        .find(|&slots| submitter.register_files_sparse(slots).is_ok())
        .unwrap_or(0);
    features.registered_files = file_slots > 0;
    features.registered_buffers =
        submitter.register_buffers_sparse(u32::from(BUFFER_SLOTS)).is_ok();
    features.registered_vectors = features.registered_buffers && takes_vectors(&ring);
    let ring_index = register_ring(&ring);
    features.registered_ring = ring_index.is_some();
    Ok(OpenedRing { ring, features, file_slots, ring_index })
}

fn set_up(entries: u32) -> io::Result<(IoUring, Features)> {
    let entries = entries.clamp(1, 32768);
    let steps = [
        Features { coop_taskrun: true, single_issuer: true, ..Features::default() },
        Features { defer_taskrun: true, single_issuer: true, ..Features::default() },
        Features { coop_taskrun: true, ..Features::default() },
        Features::default(),
    ];
    let mut refusal = io::Error::from_raw_os_error(libc::EINVAL);
    for step in steps {
        let mut builder = IoUring::builder();
        builder.setup_clamp().setup_cqsize(entries.next_power_of_two() * 4);
        if step.single_issuer {
            builder.setup_single_issuer();
        }
        if step.defer_taskrun {
            builder.setup_defer_taskrun();
        }
        if step.coop_taskrun {
            builder.setup_coop_taskrun();
        }
        if step.defer_taskrun || step.coop_taskrun {
            builder.setup_taskrun_flag().setup_submit_all();
        }
        match builder.build(entries) {
            Ok(ring) => return Ok((ring, step)),
            Err(error) => refusal = error,
        }
        if refusal.raw_os_error() != Some(libc::EINVAL) {
            break;
        }
    }
    Err(named("io_uring_setup", &refusal))
}

fn check_features(ring: &IoUring) -> io::Result<()> {
    let params = ring.params();
    let needed = [
        (params.is_feature_ext_arg(), "EXT_ARG"),
        (params.is_feature_nodrop(), "NODROP"),
        (params.is_feature_submit_stable(), "SUBMIT_STABLE"),
        (params.is_feature_fast_poll(), "FAST_POLL"),
    ];
    let Some((_, name)) = needed.iter().find(|(present, _)| !present) else { return Ok(()) };
    let text = format!("the kernel's io_uring lacks {name} (needs Linux 5.11)");
    Err(io::Error::new(io::ErrorKind::Unsupported, text))
}

fn trial(ring: &IoUring) -> io::Result<()> {
    let entry = opcode::Nop::new().build();
    // SAFETY: `ring` is used by nobody else yet, and a no-op names no memory.
    let done = unsafe {
        if ring.submission_shared().push(&entry).is_err() {
            return Err(io::Error::other("a new io_uring has a full submission queue"));
        }
        ring.submit_and_wait(1).map_err(|error| named("io_uring_enter", &error))?;
        ring.completion_shared().next()
    };
    match done {
        Some(_) => Ok(()),
        None => Err(io::Error::other("a new io_uring did not complete a no-op")),
    }
}

/// Returns true if the ring supports vectored I/O on registered buffers (Linux 6.15).
fn takes_vectors(ring: &IoUring) -> bool {
    let mut probe = Probe::new();
    let codes = [opcode::ReadvFixed::CODE, opcode::WritevFixed::CODE];
    ring.submitter().register_probe(&mut probe).is_ok()
        && codes.into_iter().all(|code| probe.is_supported(code))
}

fn named(call: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{call}: {error}"))
}

/// Registers the ring's own descriptor (Linux 5.18), which saves a look-up in each system call.
fn register_ring(ring: &IoUring) -> Option<u32> {
    #[repr(C)]
    struct RingUpdate {
        offset: u32,
        reserved: u32,
        data: u64,
    }
    let fd = ring.as_raw_fd();
    let mut update = RingUpdate { offset: u32::MAX, reserved: 0, data: fd as u64 };
    // SAFETY: the layout is that of `struct io_uring_rsrc_update`, one element, live.
    let done = unsafe {
        let arg = &raw mut update;
        libc::syscall(libc::SYS_io_uring_register, fd, REGISTER_RING_FDS, arg, 1)
    };
    (done == 1).then_some(update.offset)
}
