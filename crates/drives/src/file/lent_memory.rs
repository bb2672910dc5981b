//! Memory that was lent to a file drive, such as that of a cache over it.
//!
//! Owns which arenas those are, for queues that are opened from then on: each lends them to the
//! ring of its thread and registers them there before any I/O, so that the kernel need not look
//! pages up and hold them for every I/O. What is registered stays in memory, locked.
//! What the kernel refuses is said once, and done without.

use std::io;
use std::sync::{Arc, Mutex, Weak};

use millrace_block::Arena;

/// Arenas, and what there is to say of them.
#[derive(Debug, Default)]
pub(crate) struct LentMemory(Mutex<LentArenas>);

#[derive(Debug, Default)]
struct LentArenas {
    arenas: Vec<Weak<Arena>>,
    news: Vec<String>,
    is_refused: bool,
}

impl LentMemory {
    fn with<R>(&self, f: impl FnOnce(&mut LentArenas) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// An arena is lent.
    pub(crate) fn add(&self, arena: &Arc<Arena>) {
        self.with(|state| state.arenas.push(Arc::downgrade(arena)));
    }

    /// Those that are there still.
    pub(crate) fn arenas(&self) -> Vec<Arc<Arena>> {
        self.with(|state| {
            state.arenas.retain(|arena| arena.strong_count() > 0);
            state.arenas.iter().filter_map(Weak::upgrade).collect()
        })
    }

    /// The kernel has refused to register a piece.
    pub(crate) fn refused(&self, why: &io::Error) {
        self.with(|state| {
            if !std::mem::replace(&mut state.is_refused, true) {
                state.news.push(refusal(why));
            }
        });
    }

    /// What has happened since the last call.
    pub(crate) fn take_news(&self) -> Vec<String> {
        self.with(|state| std::mem::take(&mut state.news))
    }
}

fn refusal(why: &io::Error) -> String {
    let what = "memory of the cache is not registered, or not all of it, and goes on without";
    match why.raw_os_error() {
        Some(libc::ENOMEM | libc::EPERM) => format!(
            "{what}: it is more than the limit on locked memory allows (RLIMIT_MEMLOCK; \
             LimitMEMLOCK= of a unit, for each I/O thread once). Raise it, or set the cache's \
             \"registered\" to false"
        ),
        _ => format!("{what}: {why}"),
    }
}
