//! File descriptors of the process: room for them, made before connections come, and shortages.
//!
//! The kernel enlarges the table by doubling it. In a process of several threads it waits for a
//! grace period of RCU each time (`expand_fdtable` in fs/file.c): milliseconds, and seconds on a
//! machine whose CPUs are all busy. An I/O thread that accepts a connection would do nothing else
//! meanwhile, and all its clients would wait. Called by the start of the NBD server.
//!
//! A frontend of a virtual machine brings descriptors in its messages; those that find no room are
//! lost, and the message is taken for a wrong one. So the start of the vhost-user server says
//! whether there will be room, and its control thread looks for a shortage where a message fails.

use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource, getrlimit};
use std::os::fd::AsFd;

/// Descriptors beside those of connections: drives, rings, sockets, timers.
const OTHERS: u32 = 256;
/// The most to make room for: 512 KiB of kernel memory.
const MOST: u32 = 1 << 16;
/// As many as a message of a frontend brings, and some that others take meanwhile.
const MESSAGE: u64 = 40;
/// Most descriptors that a frontend puts into one message: one for each of 8 regions of memory.
const IN_ONE_MESSAGE: usize = 8;
/// What to do about a shortage.
const ADVICE: &str = "raise LimitNOFILE= of its unit (`ulimit -n` of a shell)";

/// Makes room for the descriptors of so many connections, as far as `RLIMIT_NOFILE` allows.
pub(crate) fn make_room(connections: u32) {
    let Ok(any) = eventfd(0, EventfdFlags::CLOEXEC) else { return };
    let mut count = connections.saturating_add(OTHERS).min(MOST);
    // The table stays as large as the highest number that was ever in use.
    while count >= OTHERS / 2 && rustix::io::fcntl_dupfd_cloexec(&any, count as i32 - 1).is_err() {
        count /= 2;
    }
}

/// Descriptors in use. None if not even one is left to find out.
fn in_use() -> Option<u64> {
    // One of them is that of the folder.
    std::fs::read_dir("/proc/self/fd").ok().map(|all| all.count().saturating_sub(1) as u64)
}

/// Most descriptors that the process may have; none: there is no limit.
fn limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Returns true if a message may bring as many descriptors as a frontend ever sends at once. The
/// kernel drops those for which there is no room.
pub(crate) fn fit_one_message(any: impl AsFd) -> bool {
    let copies: Result<Vec<_>, _> =
        (0..IN_ONE_MESSAGE).map(|_| rustix::io::fcntl_dupfd_cloexec(&any, 0)).collect();
    copies.is_ok()
}

/// What a person is told if the process has hardly any descriptors left.
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

/// What a person is told at the start if `more` descriptors, which `what` will need, do not fit.
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
    fn a_shortage_is_foreseen_with_its_numbers_and_none_where_there_is_room() {
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
    fn the_table_has_room_for_the_connections_and_no_descriptor_stays_open() {
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
