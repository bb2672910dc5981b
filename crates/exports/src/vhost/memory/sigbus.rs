//! SIGBUS handler for guest memory whose file a frontend has truncated.
//!
//! An access to the missing part of such memory raises SIGBUS, which would end the process. While
//! guest memory is mapped, a handler replaces the mapping in which the fault occurred by zeroes and
//! marks it; io_thread.rs then fails the device that owns the memory. Faults at other addresses go
//! to the previous handler. The table has a fixed size, because a handler may neither allocate nor
//! lock.
//!
//! The whole mapping is replaced, because a process may have only 65,530 mappings. Other threads
//! then also read zeroes from that mapping, and their writes to it are lost. I/O that the kernel
//! has in flight keeps the old pages.
//!
//! Invariant: an entry is in force only while its mapping exists, and a mapping stays while a
//! handler uses it (entry.rs).
#![allow(unsafe_code)]

mod entry;

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use millrace_block::{Error, ErrorKind};
use millrace_machine::{Native, Word};

use self::entry::{Mapping, MappingEntry};

const ENTRIES: usize = 4096;

struct TableWord(AtomicU64);

impl TableWord {
    #[allow(clippy::declare_interior_mutable_const)] // Each use is meant to be another word.
    const ZERO: TableWord = TableWord(AtomicU64::new(0));
}

static TABLE: [MappingEntry<TableWord>; ENTRIES] = [const {
    MappingEntry {
        state: TableWord::ZERO,
        start: TableWord::ZERO,
        end: TableWord::ZERO,
        page: TableWord::ZERO,
        pins: TableWord::ZERO,
        hit: TableWord::ZERO,
    }
}; ENTRIES];
/// Number of entries that were ever in use, which limits the handler's search.
static USED: AtomicUsize = AtomicUsize::new(0);
static HITS: AtomicUsize = AtomicUsize::new(0);

struct Previous(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: written once, before the handler that reads it is in force.
unsafe impl Sync for Previous {}

static PREVIOUS: Previous = Previous(UnsafeCell::new(MaybeUninit::uninit()));
static INSTALL: Once = Once::new();

/// Returns the number of faults handled so far in all mappings. The call is cheap enough to be made
/// often.
#[inline]
#[must_use]
pub fn hits() -> usize {
    // Relaxed: a caller that misses a fault just handled sees the new number of faults at its next
    // check.
    HITS.load(Ordering::Relaxed)
}

/// Guards a mapping against faults until dropped.
#[derive(Debug)]
pub struct MappingGuard(usize);

impl MappingGuard {
    /// Guards `len` bytes at `start`, mapped in pages of `page` bytes. Fails if too many mappings
    /// are guarded.
    pub fn new(start: usize, len: usize, page: usize) -> Result<MappingGuard, Error> {
        INSTALL.call_once(install);
        let (start, page) = (start as u64, page as u64);
        let mapping = Mapping { start, end: start + len as u64, page };
        for (index, entry) in TABLE.iter().enumerate() {
            // `USED` limits the handler's search of the table. It is raised before `claim` fills
            // the entry, so that a fault right afterwards finds the entry.
            USED.fetch_max(index + 1, Ordering::SeqCst);
            if entry.claim(mapping) {
                return Ok(MappingGuard(index));
            }
        }
        let text = format!("more than {ENTRIES} regions of guest memory");
        Err(Error::new(ErrorKind::Busy, text))
    }

    /// Returns true if a fault was handled in this mapping.
    #[must_use]
    pub fn was_hit(&self) -> bool {
        TABLE[self.0].was_hit()
    }
}

impl Drop for MappingGuard {
    /// Waits until no SIGBUS handler uses the mapping's entry in the table.
    fn drop(&mut self) {
        TABLE[self.0].retire::<Native>();
    }
}

fn install() {
    // SAFETY: all-zero bytes are a valid `sigaction`, and its fields are set before its use.
    // `PREVIOUS`, the action that the new handler passes other faults to, is written before the
    // handler can run.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, std::ptr::null(), (*PREVIOUS.0.get()).as_mut_ptr());
        libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
    }
}

/// Replaces a mapping by zeroes. If the kernel does not grant that much memory (strict overcommit),
/// tries smaller and smaller parts around `address`. Returns false if not even the page at
/// `address` can be replaced.
fn replace((mut start, mut end): (usize, usize), address: usize, page: usize) -> bool {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let flags = kind | libc::MAP_FIXED;
    loop {
        let place = std::ptr::without_provenance_mut(start);
        // SAFETY: `mmap` is a plain system call.
        // `mmap` replaces whole pages of a mapping that this process owns. The owner later unmaps
        // the replacement like the original. The bytes of the mapping are accessed only through raw
        // pointers, and any value is valid.
        let mapped = unsafe { libc::mmap(place, end - start, protection, flags, -1, 0) };
        if mapped != libc::MAP_FAILED {
            return true;
        }
        let middle = start + (end - start).div_ceil(page) / 2 * page;
        match address {
            _ if middle == start => return false,
            _ if address < middle => end = middle,
            _ => start = middle,
        }
    }
}

/// Replaces truncated memory by zeroes. Passes other faults to the previous handler.
extern "C" fn handle(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t`.
    let address = unsafe { (*info).si_addr() }.addr();
    // Relaxed: a mapping's entry is counted in `USED` before a thread learns of the mapping.
    for entry in &TABLE[..USED.load(Ordering::Relaxed)] {
        let Some(Mapping { start, end, page }) = entry.pin(address as u64) else { continue };
        // The mapping's table entry is marked as hit before its memory turns to zeroes. So a thread
        // that reads the zeroes finds the mark.
        entry.note_hit();
        // Relaxed: the number of faults in `HITS` only makes threads check the marks of their
        // mappings.
        HITS.fetch_add(1, Ordering::Relaxed);
        let replaced = replace((start as usize, end as usize), address, page as usize);
        entry.unpin();
        if replaced {
            return;
        }
        break;
    }
    // SAFETY: `install` wrote the previous action before this handler was in force.
    // The handler calls the previous action, or restores the default action to repeat the fault.
    unsafe {
        let previous = (*PREVIOUS.0.get()).assume_init_ref();
        match previous.sa_sigaction {
            libc::SIG_DFL | libc::SIG_IGN => {
                libc::signal(libc::SIGBUS, libc::SIG_DFL);
            }
            action if previous.sa_flags & libc::SA_SIGINFO != 0 => {
                let action: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                    std::mem::transmute(action);
                action(signal, info, context);
            }
            action => {
                let action: extern "C" fn(i32) = std::mem::transmute(action);
                action(signal);
            }
        }
    }
}

// SAFETY: each method is that of the standard library's atomic.
unsafe impl Word for TableWord {
    fn new(value: u64) -> Self {
        TableWord(AtomicU64::new(value))
    }
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.0.swap(value, order)
    }
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_add(value, order)
    }
    fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_or(value, order)
    }
    fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_and(value, order)
    }
    fn compare_exchange(
        &self,
        old: u64,
        new: u64,
        order: Ordering,
        fail: Ordering,
    ) -> Result<u64, u64> {
        self.0.compare_exchange(old, new, order, fail)
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
