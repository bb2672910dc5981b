//! CPU time of the daemon's threads, and time that they waited for a CPU.
//!
//! This module reads `/proc/self/task/*/schedstat`. daemon.rs calls it for each report. Threads
//! that have ended do not count.

use std::fs;
use std::path::Path;

use crate::views::report::ProcessorTime;

/// Returns the sums over all threads of this process, or 0 if the kernel has no such counters.
pub fn of_process() -> ProcessorTime {
    of_threads(Path::new("/proc/self/task"))
}

fn of_threads(dir: &Path) -> ProcessorTime {
    let mut sum = ProcessorTime::default();
    for thread in fs::read_dir(dir).into_iter().flatten().flatten() {
        // A thread that has ended in the meantime has no such file.
        let text = fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        let mut numbers = text.split_whitespace().map(|word| word.parse().unwrap_or(0));
        sum.ran_ns += numbers.next().unwrap_or(0);
        sum.waited_ns += numbers.next().unwrap_or(0);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_all_threads_are_added_up() {
        let dir = tempfile::tempdir().unwrap();
        for (thread, text) in [("1", "100 20 3\n"), ("2", "5 7 1\n"), ("3", "")] {
            fs::create_dir(dir.path().join(thread)).unwrap();
            fs::write(dir.path().join(thread).join("schedstat"), text).unwrap();
        }
        assert_eq!(of_threads(dir.path()), ProcessorTime { ran_ns: 105, waited_ns: 27 });
        assert_eq!(of_threads(&dir.path().join("none")), ProcessorTime::default());
        assert!(of_process().ran_ns > 0);
    }
}
