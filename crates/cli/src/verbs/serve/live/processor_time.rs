//! CPU time of the daemon's threads, and time that they waited for a CPU.
//!
//! This module reads `/proc/self/task/*/schedstat`. daemon.rs calls it for each report.

use std::fs;
use std::path::Path;
use std::sync::Mutex;

use millrace_machine::lock_unpoisoned;
use rustix::time::{ClockId, clock_gettime};

use crate::views::report::ProcessorTime;

static WAITED_MAX_NS: Mutex<u64> = Mutex::new(0);

/// Returns the CPU time of the process, and the sum of its threads' waits for a CPU. A thread that
/// ends does not decrease this sum, because the largest sum so far is returned. The sum is 0 if the
/// kernel does not count waits.
pub fn of_process() -> ProcessorTime {
    let ran = clock_gettime(ClockId::ProcessCPUTime);
    let waited_ns = waited_ns(Path::new("/proc/self/task"));
    let mut max_ns = lock_unpoisoned(&WAITED_MAX_NS);
    *max_ns = waited_ns.max(*max_ns);
    let ran_ns = ran.tv_sec as u64 * 1_000_000_000 + ran.tv_nsec as u64;
    ProcessorTime { ran_ns, waited_ns: *max_ns }
}

fn waited_ns(dir: &Path) -> u64 {
    let threads = fs::read_dir(dir).into_iter().flatten().flatten();
    // The file of a thread that has ended meanwhile cannot be read, and is skipped.
    let texts = threads.filter_map(|t| fs::read_to_string(t.path().join("schedstat")).ok());
    texts.filter_map(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_of_all_threads_are_added_up() {
        let dir = tempfile::tempdir().unwrap();
        for (thread, text) in [("1", "100 20 3\n"), ("2", "5 7 1\n"), ("3", "")] {
            fs::create_dir(dir.path().join(thread)).unwrap();
            fs::write(dir.path().join(thread).join("schedstat"), text).unwrap();
        }
        assert_eq!(waited_ns(dir.path()), 27);
        assert_eq!(waited_ns(&dir.path().join("none")), 0);
    }

    #[test]
    fn times_do_not_decrease_when_a_thread_ends() {
        let busy = || {
            let start = std::time::Instant::now();
            while start.elapsed().as_millis() < 20 {}
            of_process()
        };
        let during = std::thread::spawn(busy).join().unwrap();
        let after = of_process();
        assert!(during.ran_ns > 0 && after.ran_ns >= during.ran_ns);
        assert!(after.waited_ns >= during.waited_ns);
    }
}
