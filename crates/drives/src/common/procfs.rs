//! Information from /proc about the machine and its processes, for messages.
//!
//! The functions return `None` if /proc lacks the information, as for processes of other
//! namespaces. They are called while drives and sockets are opened, never for an I/O.

use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

/// A process that holds a file or lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Process id.
    pub pid: u32,
    /// Name of the program, if it is known.
    pub name: Option<String>,
}

/// Returns a text that identifies this process in a file: its pid, its start time and the boot id.
/// No later process has the same text.
#[must_use]
pub fn process_mark() -> &'static str {
    static MARK: OnceLock<String> = OnceLock::new();
    MARK.get_or_init(|| {
        let pid = std::process::id();
        format!("{pid} {} {}\n", started(pid).unwrap_or(0), boot_id())
    })
}

fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

/// Returns the process that has written `mark`, a text from [`process_mark`]. Returns `None` if
/// that process is no longer running.
#[must_use]
pub fn marked_process(mark: &str) -> Option<Holder> {
    let mut words = mark.split_whitespace();
    let (pid, start) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let is_it = words.next().unwrap_or_default() == boot_id() && started(pid) == Some(start);
    is_it.then(|| Holder::of(pid))
}

/// Returns the time at which a process was started, in clock ticks after boot, or `None` if the
/// process is no longer running.
fn started(pid: u32) -> Option<u64> {
    started_in(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn started_in(stat: &str) -> Option<u64> {
    // The line is `4711 (name) S 1 ...`; the name may contain any character.
    let mut words = stat.rsplit_once(')')?.1.split_whitespace();
    // A process that has ended stays in /proc as a zombie until its parent has waited for it.
    let is_over = words.next().is_none_or(|state| matches!(state, "Z" | "X" | "x"));
    // The start time is the 22nd field of the line.
    let start = words.nth(18)?.parse().ok()?;
    (!is_over).then_some(start)
}

impl Holder {
    fn of(pid: u32) -> Holder {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok();
        Holder { pid, name: name.map(|name| name.trim_end().to_owned()) }
    }

    /// Returns true if the process that holds the file or lock is the calling process.
    #[must_use]
    pub fn is_this(&self) -> bool {
        self.pid == std::process::id()
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "process {} ({})", self.pid, name.escape_debug()),
            None => write!(f, "process {}", self.pid),
        }
    }
}

/// Returns the process that has locked a file with flock(2), according to /proc/locks.
#[must_use]
pub fn flock_holder(file: &File) -> Option<Holder> {
    let meta = file.metadata().ok()?;
    let (major, minor) = (libc::major(meta.dev()), libc::minor(meta.dev()));
    let name = format!("{major:02x}:{minor:02x}:{}", meta.ino());
    // On some file systems, /proc/locks shows another device number than stat does. A second search
    // therefore compares only the inode number.
    let by_inode = format!(":{}", meta.ino());
    let pid = (0..LOOKS).find_map(|_| {
        // The table is read in large pieces, because reading it line by line would make it more
        // likely that lines are skipped.
        let mut table = String::with_capacity(64 << 10);
        File::open("/proc/locks").ok()?.read_to_string(&mut table).ok()?;
        locker(&table, |id| id == name).or_else(|| locker(&table, |id| id.ends_with(&by_inode)))
    });
    pid.map(Holder::of)
}

/// Number of times that /proc/locks is read before a lock counts as absent. If a lock is removed
/// between two read(2) calls on the table, the kernel skips the line of a later lock.
const LOOKS: usize = 4;

/// Returns the process that has a flock(2) lock on a file. `table` is the text of /proc/locks;
/// `is_it` recognizes the file's device and inode.
fn locker(table: &str, is_it: impl Fn(&str) -> bool) -> Option<u32> {
    // Example of a line: `1: FLOCK  ADVISORY  WRITE 4711 fe:01:1234 0 EOF`. If the process still
    // waits for the lock, `->` follows the first field.
    table.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (kind, pid, id) = (words.next()?, words.nth(2)?, words.next()?);
        (kind == "FLOCK" && is_it(id)).then(|| pid.parse().ok().filter(|pid| *pid > 0)).flatten()
    })
}

/// Returns the total memory and swap of this machine, in bytes.
#[must_use]
pub fn memory_bytes() -> Option<u64> {
    memory_in(&fs::read_to_string("/proc/meminfo").ok()?)
}

fn memory_in(text: &str) -> Option<u64> {
    let kib = |name: &str| field(text, name)?.parse::<u64>().ok();
    Some((kib("MemTotal:")? + kib("SwapTotal:").unwrap_or(0)) << 10)
}

/// Returns true if this process may lock any amount of memory: RLIMIT_MEMLOCK is unlimited, or the
/// process has CAP_IPC_LOCK on the host. A finite limit counts as too low: the kernel counts locked
/// memory once for each ring, and for all processes of the user together.
#[must_use]
pub fn may_lock_memory() -> bool {
    let read = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
    is_unlimited(&read("limits")) || has_ipc_lock(&read("status"), &read("uid_map"))
}

/// Returns the first word after `name` at the start of a line.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()
}

fn is_unlimited(limits: &str) -> bool {
    field(limits, "Max locked memory") == Some("unlimited")
}

/// Returns true if the process has CAP_IPC_LOCK on the host. A capability inside a user namespace
/// does not count.
fn has_ipc_lock(status: &str, uid_map: &str) -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let is_host = uid_map.split_whitespace().eq(["0", "0", "4294967295"]);
    let mask = field(status, "CapEff:").and_then(|text| u64::from_str_radix(text, 16).ok());
    is_host && mask.is_some_and(|mask| mask & 1 << CAP_IPC_LOCK != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locker_is_found_by_its_file_and_whoever_waits_is_not() {
        let table = "1: POSIX  ADVISORY  WRITE 1 fe:01:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 4711 fe:01:77 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 4712 fe:01:77 0 EOF\n\
                     3: FLOCK  ADVISORY  READ  -1 fe:01:78 0 EOF\n";
        assert_eq!(locker(table, |id| id == "fe:01:77"), Some(4711));
        assert_eq!(locker(table, |id| id == "fe:01:78"), None);
        assert_eq!(locker(table, |id| id == "fe:01:79"), None);
    }

    #[test]
    fn a_mark_names_a_process_as_long_as_that_runs() {
        let this = marked_process(process_mark()).expect("it runs");
        assert!(this.is_this());
        let pid = std::process::id();
        let start = started(pid).unwrap();
        let other_start = format!("{pid} {} {}", start + 1, boot_id());
        let other_boot = format!("{pid} {start} x");
        for mark in ["", "x y", "1", "0 0", "99999999 5", &other_start, &other_boot] {
            assert_eq!(marked_process(mark), None, "{mark:?}");
        }
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let id = child.id();
        while std::fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|s| !s.contains(") Z"))
        {
            std::thread::yield_now();
        }
        assert_eq!(started(id), None, "it has ended, and nobody has asked for it");
        child.wait().unwrap();
        let line = "7 (a) b) c) S 1 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 12345 9 9";
        assert_eq!(started_in(line), Some(12_345));
    }

    #[test]
    fn holder_of_a_real_lock_is_this_process() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(flock_holder(&file), None);
        file.lock().unwrap();
        let holder = flock_holder(&file).expect("/proc/locks has it");
        assert!(holder.is_this() && holder.name.is_some(), "{holder}");
    }

    #[test]
    fn memory_may_be_locked_without_limit_or_by_capability() {
        let limits = |soft| format!("Max locked memory         {soft}   {soft}   bytes\n");
        assert!(is_unlimited(&limits("unlimited")) && !is_unlimited(&limits("8388608")));
        assert!(!is_unlimited(""));
        let (all, some) = ("CapEff:\t000001ffffffffff\n", "CapEff:\t00000000a80425fb\n");
        let (host, inner) = ("         0          0 4294967295\n", "0 100000 65536\n");
        assert!(has_ipc_lock(all, host));
        for (status, map) in [(some, host), (all, inner), ("", host), (all, "")] {
            assert!(!has_ipc_lock(status, map), "{status} {map}");
        }
    }

    #[test]
    fn memory_is_that_of_the_machine_and_its_swap() {
        assert_eq!(memory_in("MemTotal: 8 kB\nMemFree: 1 kB\nSwapTotal: 2 kB\n"), Some(10 << 10));
        assert_eq!(memory_in("nothing"), None);
        assert!(memory_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }
}
