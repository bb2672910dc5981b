//! Room in the process's table of files, made before connections come.
//!
//! The kernel enlarges the table by doubling it. In a process of several threads it waits for a
//! grace period of RCU each time (`expand_fdtable` in fs/file.c): milliseconds, and seconds on a
//! machine whose CPUs are all busy. An I/O thread that accepts a connection would do nothing else
//! meanwhile, and all its clients would wait. Called by the start of the NBD server.

use rustix::event::{EventfdFlags, eventfd};

/// Descriptors beside those of connections: drives, rings, sockets, timers.
const OTHERS: u32 = 256;
/// The most to make room for: 512 KiB of kernel memory.
const MOST: u32 = 1 << 16;

/// Makes room for the descriptors of so many connections, as far as `RLIMIT_NOFILE` allows.
pub(crate) fn make_room(connections: u32) {
    let Ok(any) = eventfd(0, EventfdFlags::CLOEXEC) else { return };
    let mut count = connections.saturating_add(OTHERS).min(MOST);
    // The table stays as large as the highest number that was ever in use.
    while count >= OTHERS / 2 && rustix::io::fcntl_dupfd_cloexec(&any, count as i32 - 1).is_err() {
        count /= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
