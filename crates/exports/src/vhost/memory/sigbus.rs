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

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Once, OnceLock};

use millrace_block::{Error, ErrorKind};
use millrace_machine::{Machine, Native};

use self::entry::{Mapping, MappingEntry};

const ENTRIES: usize = 4096;

type TableWord = <Native as Machine>::Word;

static TABLE: [MappingEntry<TableWord>; ENTRIES] = [const {
    MappingEntry {
        state: TableWord::zero(),
        start: TableWord::zero(),
        end: TableWord::zero(),
        page: TableWord::zero(),
        pins: TableWord::zero(),
        hit: TableWord::zero(),
    }
}; ENTRIES];
/// Number of entries that were ever in use, which limits the handler's search.
static USED: AtomicUsize = AtomicUsize::new(0);
static HITS: AtomicUsize = AtomicUsize::new(0);

/// Previous action for SIGBUS, to which the handler passes faults outside guest memory. Set before
/// the handler is installed.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();
static INSTALL: Once = Once::new();

/// Returns the number of faults handled so far in all mappings. The call is cheap enough to be made
/// often.
#[inline]
#[must_use]
pub fn hits() -> usize {
    // Acquire pairs with the Release in `handle`. If a caller sees that a fault was counted, the
    // caller also sees the hit flag of the mapping in which the fault occurred.
    HITS.load(Ordering::Acquire)
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
            // Raises `USED`, the number of entries that the handler searches, before `claim` fills
            // the entry. So the handler of a fault right after `claim` finds the entry.
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
    unsafe {
        let (mut action, mut previous): (libc::sigaction, libc::sigaction) = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut previous);
        let _ = PREVIOUS.set(previous);
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
        // The range consists of whole pages of a mapping that this process owns. The owner later
        // unmaps the replacement like the original. The bytes of the mapping are accessed only
        // through raw pointers, and any value is valid.
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
    // Relaxed: `MappingGuard::new` raises `USED` for the entry of a mapping before any thread
    // accesses the mapping. So after a fault in the mapping, this search includes the mapping's
    // entry.
    for entry in &TABLE[..USED.load(Ordering::Relaxed)] {
        let Some(Mapping { start, end, page }) = entry.pin(address as u64) else { continue };
        // The mapping's table entry is marked as hit before its memory turns to zeroes. So a thread
        // that reads the zeroes finds the mark.
        entry.note_hit();
        // Release pairs with the Acquire in `hits`. If an I/O thread sees the new value of `HITS`,
        // the thread also sees the entry's hit flag.
        HITS.fetch_add(1, Ordering::Release);
        let replaced = replace((start as usize, end as usize), address, page as usize);
        entry.unpin();
        if replaced {
            return;
        }
        break;
    }
    let previous = PREVIOUS.get();
    // SAFETY: `previous` is an action that the kernel returned.
    // Calls the previous handler. If there is none, restores the default action: the fault is then
    // repeated and ends the process.
    unsafe {
        match previous.map_or(libc::SIG_DFL, |previous| previous.sa_sigaction) {
            libc::SIG_DFL | libc::SIG_IGN => {
                libc::signal(libc::SIGBUS, libc::SIG_DFL);
            }
            action if previous.is_some_and(|p| p.sa_flags & libc::SA_SIGINFO != 0) => {
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

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
