//! The plain values that go into a reactor and come out of it: set-up, waiting, features, counters.
//!
//! Owns nothing. Callers fill [`Config`] (every field has a default), pass [`Wait`] to each turn,
//! and read [`Features`] and [`Counters`] for reports. All times are `CLOCK_MONOTONIC`
//! nanoseconds.

use std::fmt;

/// Which mechanism carries the operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// io_uring where the kernel allows it, otherwise epoll. Never returned by a reactor.
    #[default]
    Auto,
    /// io_uring; an error where it is refused.
    Uring,
    /// epoll for sockets, a thread pool for files.
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

/// How a reactor is set up.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The mechanism asked for.
    pub backend: Backend,
    /// Entries of the submission queue, brought into 1..=32768; the completion queue has 4 times
    /// as many. Not a limit on outstanding operations: more only cost a system call.
    pub entries: u32,
    /// Operations that go to the kernel without waiting for the turn's end, at least 1: a drive
    /// starts on the first ones while the last are still being made. More saves system calls;
    /// fewer keep a drive busier (measured on a virtio disk at depth 64: 64 at once cost 10 % of
    /// the rate of one at a time, 8 cost 5 %). Operations on files go earlier where few are
    /// outstanding.
    pub submit_batch: u32,
    /// Longest busy poll before a blocking turn sleeps, in nanoseconds; 0 sleeps at once. A turn
    /// polls only while the waits before it were that short, and lets others have its CPU.
    pub spin_ns: u64,
    /// What else must be true for a poll.
    pub spin_rule: SpinRule,
}

/// Whether a turn polls before it sleeps, where the waits before it were short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpinRule {
    /// It does.
    #[default]
    Always,
    /// It does if more bytes are moved that way: at least an eighth more in some milliseconds of
    /// polling than in as many without. A thread tries both from time to time.
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

/// How a source is going to use a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileDemand {
    /// Operations that may block at once.
    pub operations: u32,
    /// `Op::Ioctl` is among them, which has no asynchronous form.
    pub ioctls: bool,
    /// The process's threads shall do all of them, whatever the back end.
    pub threads: bool,
}

/// The carrier of a source's operations on files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileCarrier {
    /// The ring.
    Ring,
    /// Threads of the process. They know files by descriptor: registered ones are no use.
    Threads,
}

/// How long a turn may block when nothing has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// Until something completes or the wake eventfd is written.
    Forever,
    /// Until something happens, and at most until this `CLOCK_MONOTONIC` time in nanoseconds.
    Until(u64),
}

/// Which optional kernel features are on. All false on the epoll back end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Completion work runs only when the owner enters the kernel.
    pub defer_taskrun: bool,
    /// The kernel was told that one thread submits.
    pub single_issuer: bool,
    /// Completion work does not interrupt the owner.
    pub coop_taskrun: bool,
    /// A table of registered files exists.
    pub registered_files: bool,
    /// A table of registered buffers exists.
    pub registered_buffers: bool,
    /// Lists of pieces of a registered buffer can be read and written.
    pub registered_vectors: bool,
    /// The ring's own descriptor is registered.
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
        let mut separator = "";
        for (_, name) in names.iter().filter(|(on, _)| *on) {
            write!(f, "{separator}{name}")?;
            separator = ", ";
        }
        if separator.is_empty() { f.write_str("none") } else { Ok(()) }
    }
}

/// What a reactor did since it was made. Work of pool threads is not included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// System calls made by the owner thread on the data path.
    pub system_calls: u64,
    /// Calls of `turn`.
    pub turns: u64,
    /// Operations handed to the kernel (on epoll: issued).
    pub sqes: u64,
    /// Completions received (on epoll: delivered).
    pub cqes: u64,
    /// Turns that entered the kernel to block.
    pub sleeps: u64,
    /// Times the wake eventfd was seen.
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
