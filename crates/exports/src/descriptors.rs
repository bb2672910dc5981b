//! Grows the process's table of file descriptors in advance, and reports shortages.
//!
//! The kernel doubles the descriptor table when it is full. In a process with several threads the
//! kernel then waits for an RCU grace period (`expand_fdtable` in fs/file.c), which takes
//! milliseconds or seconds. An I/O thread that accepts a connection would stall all its clients
//! during this time.
//!
//! The frontend of a virtual machine passes descriptors in its messages. The kernel drops
//! descriptors for which there is no room, and the message then looks malformed.

use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource, getrlimit};
use std::os::fd::{AsFd, RawFd};

/// Number of descriptors for drives, rings, sockets and timers, but not connections.
const OTHERS: u32 = 256;
/// Number of descriptors up to which the table is grown. The table then takes 512 KiB of kernel
/// memory.
const MOST: u32 = 1 << 16;
/// Number of free descriptors below which a shortage is reported. Allows for the 8 descriptors in
/// one message of a frontend, plus a margin of 32.
const MESSAGE: u64 = 40;
/// Number of descriptors that NBD connections leave free for the control socket and the metrics
/// page. If the limit of descriptors is low, an eighth of the limit is left free instead.
const KEPT_FREE: u64 = 32;
/// Maximum number of descriptors in one message of a frontend: one for each of 8 memory regions.
const IN_ONE_MESSAGE: usize = 8;
const ADVICE: &str =
    "raise the limit with LimitNOFILE= in the systemd unit, or with `ulimit -n` in a shell";

/// Grows the descriptor table for `connections` more descriptors, as far as `RLIMIT_NOFILE` allows.
pub(crate) fn make_room(connections: u32) {
    let Ok(any) = eventfd(0, EventfdFlags::CLOEXEC) else { return };
    let mut count = connections.saturating_add(OTHERS).min(MOST);
    // Opening one high descriptor number grows the table, which the kernel never shrinks.
    while count >= OTHERS / 2 && rustix::io::fcntl_dupfd_cloexec(&any, count as i32 - 1).is_err() {
        count /= 2;
    }
}

/// Returns the number of open descriptors, or `None` if no descriptor is left to count them with.
fn in_use() -> Option<u64> {
    // The list also contains the descriptor that `read_dir` has opened for the directory, so 1 is
    // subtracted.
    std::fs::read_dir("/proc/self/fd").ok().map(|all| all.count().saturating_sub(1) as u64)
}

fn limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Returns true if the process may keep the NBD connection with the descriptor `fd`. The kernel
/// assigns the lowest free number, so a high `fd` means that few descriptors are free.
pub(crate) fn may_keep(fd: RawFd) -> bool {
    limit().is_none_or(|limit| (fd as u64) < limit - KEPT_FREE.min(limit / 8))
}

/// Returns true if enough descriptors are free for the largest message that a frontend may send.
/// The kernel drops descriptors that do not fit.
pub(crate) fn fit_one_message(any: impl AsFd) -> bool {
    let copies: Result<Vec<_>, _> =
        (0..IN_ONE_MESSAGE).map(|_| rustix::io::fcntl_dupfd_cloexec(&any, 0)).collect();
    copies.is_ok()
}

pub(crate) fn shortage() -> Option<String> {
    let limit = limit()?;
    let used = in_use().unwrap_or(limit);
    (used.saturating_add(MESSAGE) > limit).then(|| {
        format!(
            "the process is out of file descriptors: {used} of {limit} are in use; {ADVICE}, or \
             serve less"
        )
    })
}

pub(crate) fn foreseen_shortage(what: &str, more: u64) -> Option<String> {
    let (limit, used) = (limit()?, in_use()?);
    (used.saturating_add(more) > limit).then(|| {
        format!(
            "{what} need up to {more} file descriptors beside {used} that are in use, and the limit \
             is {limit}: virtual machines that come last will be cut off; {ADVICE}, or lower queues ="
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortage_is_foreseen_with_numbers_and_not_with_room_left() {
        let (limit, used) = (limit().unwrap(), in_use().unwrap());
        assert_eq!((shortage(), foreseen_shortage("2 exports", 1)), (None, None));
        let text = foreseen_shortage("2 exports", limit).unwrap();
        assert!(text.starts_with(&format!("2 exports need up to {limit} file desc")), "{text}");
        assert!(used > 2 && text.contains(&format!("the limit is {limit}")), "{text}");
    }

    fn table_size() -> u32 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
        line.trim().parse().unwrap()
    }

    #[test]
    fn table_has_room_for_connections_and_no_descriptor_stays_open() {
        make_room(500);
        assert!(table_size() >= 512, "{}", table_size());
        make_room(u32::MAX);
        assert!(table_size() >= 512);
        let highest = std::fs::read_dir("/proc/self/fd").unwrap();
        let number = |entry: std::fs::DirEntry| entry.file_name().to_str().unwrap().parse::<u32>();
        let highest = highest.flatten().filter_map(|entry| number(entry).ok()).max();
        assert!(highest < Some(500), "{highest:?}");
    }
}
