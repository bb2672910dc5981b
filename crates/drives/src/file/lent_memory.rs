//! `LentMemory`: memory that another part of the program, such as the cache above the drive, lends
//! to a file drive.
//!
//! Each queue that is opened later registers this memory with the ring of its thread, so that the
//! kernel need not look up and pin pages for each I/O. Registered memory stays locked. A refusal of
//! the kernel is logged once, and the drive continues without registered memory.

use std::io;
use std::sync::{Arc, Mutex, Weak};

use millrace_block::Arena;
use millrace_machine::lock_unpoisoned;

#[derive(Debug, Default)]
pub(crate) struct LentMemory(Mutex<LentArenas>);

#[derive(Debug, Default)]
struct LentArenas {
    arenas: Vec<Weak<Arena>>,
    news: Vec<String>,
    is_refused: bool,
}

impl LentMemory {
    pub(crate) fn add(&self, arena: &Arc<Arena>) {
        lock_unpoisoned(&self.0).arenas.push(Arc::downgrade(arena));
    }

    pub(crate) fn arenas(&self) -> Vec<Arc<Arena>> {
        let arenas = &mut lock_unpoisoned(&self.0).arenas;
        arenas.retain(|arena| arena.strong_count() > 0);
        arenas.iter().filter_map(Weak::upgrade).collect()
    }

    /// Records that the kernel refused to register memory. Only the first refusal is logged.
    pub(crate) fn refused(&self, why: &io::Error) {
        let mut state = lock_unpoisoned(&self.0);
        if !std::mem::replace(&mut state.is_refused, true) {
            state.news.push(refusal(why));
        }
    }

    pub(crate) fn take_news(&self) -> Vec<String> {
        std::mem::take(&mut lock_unpoisoned(&self.0).news)
    }
}

fn refusal(why: &io::Error) -> String {
    let what = "the kernel did not register all of the cache's memory; I/O continues without it";
    match why.raw_os_error() {
        Some(libc::ENOMEM | libc::EPERM) => format!(
            "{what}: it is more than the limit on locked memory allows (RLIMIT_MEMLOCK; \
             LimitMEMLOCK= of a unit, for each I/O thread once). Raise it, or set the cache's \
             \"registered\" to false"
        ),
        _ => format!("{what}: {why}"),
    }
}
