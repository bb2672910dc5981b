//! Configuration, wait modes, features and counters of a reactor.
//!
//! All times are in nanoseconds of `CLOCK_MONOTONIC`.

use std::fmt;

use crate::sys;

/// Mechanism that executes a reactor's operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Backend {
    /// Uses io_uring where the kernel allows it, otherwise epoll. A reactor never reports this
    /// value.
    #[default]
    Auto,
    /// Uses io_uring. Creating the reactor fails where io_uring is refused.
    Uring,
    /// Uses epoll for sockets, and a thread pool for files.
    Epoll,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Auto => "auto",
            Backend::Uring => "io_uring",
            Backend::Epoll => "epoll",
        })
    }
}

/// Configuration of a reactor.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Mechanism that executes the operations.
    pub backend: Backend,
    /// Entries of the submission queue, clamped to 1..=32768. The completion queue has 4 times as
    /// many. The queue does not limit the operations in flight; operations that exceed the queue's
    /// size cost an additional system call.
    pub entries: u32,
    /// Number of queued operations, at least 1, that form a batch. A full batch is submitted early,
    /// so that drives start early; a smaller one waits for the next event-loop iteration. A larger
    /// number saves system calls, but drives are idle for longer. (On a virtio disk at queue depth
    /// 64, batches of 64 were 10 % slower than single submissions, and batches of 8 were 5 %
    /// slower.) While few operations are in flight, file operations are submitted earlier.
    pub submit_batch: u32,
    /// Maximum time, in nanoseconds, for which the reactor's thread polls for completions before it
    /// blocks; 0 turns polling off. The thread polls only after several short waits, and yields the
    /// CPU to other threads meanwhile.
    pub spin_ns: u64,
    /// Condition under which the thread polls before it blocks. In any case, the thread polls only
    /// after several short waits.
    pub spin_rule: SpinRule,
}

/// Condition under which a reactor's thread polls before it blocks. In any case, the thread polls
/// only after several short waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SpinRule {
    /// The thread polls whenever its previous waits were short.
    #[default]
    Always,
    /// Polls only if polling increases the bytes moved by at least an eighth. To find out, the
    /// thread measures alternating periods of a few milliseconds with and without polling, and
    /// repeats this from time to time.
    IfItPays,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            backend: Backend::Auto,
            entries: 256,
            submit_batch: 8,
            spin_ns: 0,
            spin_rule: SpinRule::Always,
        }
    }
}

/// Number and kind of the file operations that will be pushed for one source. A source is an inbox
/// for the completions of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileDemand {
    /// Maximum number of operations that may block at the same time.
    pub operations: u32,
    /// True if some of the operations are `Op::Ioctl`, which has no asynchronous form.
    pub ioctls: bool,
    /// True if pool threads of this process must execute all of the operations, even if the ring
    /// could execute them.
    pub threads: bool,
}

/// Mechanism that executes file operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileCarrier {
    /// The ring (io_uring) executes the operations.
    Ring,
    /// Pool threads of the process execute the operations. The threads use the file's descriptor,
    /// so registering the file in the ring has no benefit.
    Threads,
}

/// Maximum time for which an event-loop iteration ([`Reactor::turn`](crate::Reactor::turn)) blocks
/// if nothing completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Does not block.
    No,
    /// Blocks until something completes or the wake eventfd is written.
    Forever,
    /// Blocks as `Forever` does, but at most until this `CLOCK_MONOTONIC` time in nanoseconds.
    Until(u64),
}

impl Wait {
    /// Returns the longest time to block, in nanoseconds from now; `None` means no limit.
    pub(crate) fn limit_ns(self) -> Option<u64> {
        match self {
            Wait::No => Some(0),
            Wait::Forever => None,
            Wait::Until(deadline_ns) => Some(deadline_ns.saturating_sub(sys::now_ns())),
        }
    }
}

/// Optional kernel features in use. All are false on the epoll back end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Completion work runs only when the reactor's thread enters the kernel.
    pub defer_taskrun: bool,
    /// The kernel was told that only one thread submits.
    pub single_issuer: bool,
    /// Completion work does not interrupt the reactor's thread.
    pub coop_taskrun: bool,
    /// The ring has a table of registered files.
    pub registered_files: bool,
    /// The ring has a table of registered buffers.
    pub registered_buffers: bool,
    /// Vectored reads and writes can use a registered buffer.
    pub registered_vectors: bool,
    /// The ring's own file descriptor is registered.
    pub registered_ring: bool,
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (self.defer_taskrun, "DEFER_TASKRUN"),
            (self.single_issuer, "SINGLE_ISSUER"),
            (self.coop_taskrun, "COOP_TASKRUN"),
            (self.registered_files, "registered files"),
            (self.registered_buffers, "registered buffers"),
            (self.registered_vectors, "registered vectors"),
            (self.registered_ring, "registered ring"),
        ];
        let names: Vec<_> = names.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect();
        f.write_str(&if names.is_empty() { "none".to_owned() } else { names.join(", ") })
    }
}

/// Counters of a reactor since its creation. The work of pool threads is not included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Number of system calls that the reactor's thread has made so far, on the data path.
    pub system_calls: u64,
    /// Number of event-loop iterations, that is, of calls of `turn`.
    pub turns: u64,
    /// Number of operations pushed so far ([`Handle::push`](crate::Handle::push)), including those
    /// that pool threads execute.
    pub sqes: u64,
    /// Number of completions so far: received from the kernel by the ring, including internal ones
    /// such as wake-ups, or delivered by the epoll back end.
    pub cqes: u64,
    /// Number of event-loop iterations in which the thread blocked in the kernel to wait for
    /// events.
    pub sleeps: u64,
    /// Number of times that the wake eventfd was read.
    pub wakes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_listed_by_name_or_none() {
        assert_eq!(Features::default().to_string(), "none");
        let some = Features { defer_taskrun: true, registered_files: true, ..Features::default() };
        assert_eq!(some.to_string(), "DEFER_TASKRUN, registered files");
    }
}
