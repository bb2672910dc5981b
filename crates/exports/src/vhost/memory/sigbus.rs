//! What happens when a frontend cuts off the file behind memory that it shares.
//!
//! Touching such memory raises SIGBUS, which would end the process. While guest memory is mapped, a
//! handler puts zeroes of our own in place of the mapping that the fault was in and marks it; the
//! thread goes on, and the device whose memory it was is failed (io_thread.rs). Faults elsewhere go
//! to whoever handled them before. The table is fixed, since a handler may neither allocate nor
//! lock.
//!
//! The whole mapping goes, since a process may have 65,530 only: a page on its own here and there
//! would cut one mapping into any number. Other threads find zeroes in it from then on, too, and
//! what they write there nobody sees; I/O that the kernel has under way keeps the pages it has.
//!
//! Entries come and go under the handler; entry.rs says how it never uses one that is another's by
//! then. Called by memory.rs. Invariant: an entry of the table is in force only while its mapping
//! exists, and a mapping stays while a handler is at it.
#![allow(unsafe_code)]

mod entry;

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use millrace_block::{Error, ErrorKind};
use millrace_machine::{Native, Word};

use self::entry::{Entry, Mapping};

/// Most mappings at a time, of all devices.
const ENTRIES: usize = 4096;

/// A word of the table.
struct TableWord(AtomicU64);

impl TableWord {
    #[allow(clippy::declare_interior_mutable_const)] // Each use is meant to be another word.
    const ZERO: TableWord = TableWord(AtomicU64::new(0));
}

static TABLE: [Entry<TableWord>; ENTRIES] = [const {
    Entry {
        state: TableWord::ZERO,
        start: TableWord::ZERO,
        end: TableWord::ZERO,
        page: TableWord::ZERO,
        pins: TableWord::ZERO,
        hit: TableWord::ZERO,
    }
}; ENTRIES];
/// Entries that were ever in use: all that a fault has to look at.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Faults so far that were handled.
static HITS: AtomicUsize = AtomicUsize::new(0);

struct Previous(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: written once, before the handler that reads it is in force.
unsafe impl Sync for Previous {}

static PREVIOUS: Previous = Previous(UnsafeCell::new(MaybeUninit::uninit()));
static INSTALL: Once = Once::new();

/// Faults handled so far, in all mappings: cheap to look at, to see whether there is news.
#[inline]
#[must_use]
pub fn hits() -> usize {
    // Relaxed: a hint; a later look sees it.
    HITS.load(Ordering::Relaxed)
}

/// A mapping that is guarded as long as this lives.
#[derive(Debug)]
pub struct Guard(usize);

impl Guard {
    /// Guards `len` bytes at `start`, mapped in pages of `page` bytes.
    ///
    /// # Errors
    /// `Busy` if too many mappings are guarded already.
    pub fn new(start: usize, len: usize, page: usize) -> Result<Guard, Error> {
        INSTALL.call_once(install);
        let (start, page) = (start as u64, page as u64);
        let mapping = Mapping { start, end: start + len as u64, page };
        for (index, entry) in TABLE.iter().enumerate() {
            // Before it is in force: from then on a fault must find it.
            USED.fetch_max(index + 1, Ordering::SeqCst);
            if entry.claim(mapping) {
                return Ok(Guard(index));
            }
        }
        let text = format!("more than {ENTRIES} regions of guest memory");
        Err(Error::new(ErrorKind::Busy, text))
    }

    /// Whether a fault was handled in it.
    #[must_use]
    pub fn was_hit(&self) -> bool {
        TABLE[self.0].was_hit()
    }
}

impl Drop for Guard {
    /// Waits for a handler that is at it.
    fn drop(&mut self) {
        TABLE[self.0].retire::<Native>();
    }
}

fn install() {
    // SAFETY: all-zero bytes are an action without flags and mask; the fields are filled before
    // use, and `PREVIOUS` is written before the handler can run.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, std::ptr::null(), (*PREVIOUS.0.get()).as_mut_ptr());
        libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
    }
}

/// Puts zeroes in place of a mapping; where the system grants no memory of that size (it may be set
/// to promise no more than it has), of half of it, and so on. False if not even of the page at
/// `address`.
fn replace((mut start, mut end): (usize, usize), address: usize, page: usize) -> bool {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let flags = kind | libc::MAP_FIXED;
    loop {
        let place = std::ptr::without_provenance_mut(start);
        // SAFETY: replaces a mapping of ours, or a part of it in whole pages, which stays ours to
        // unmap; its bytes are only ever touched through raw pointers, and any bytes do. `mmap` is
        // a plain system call.
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

/// Puts zeroes where memory has gone away; whatever else it is goes to the previous handler.
extern "C" fn handle(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t`.
    let address = unsafe { (*info).si_addr() }.addr();
    // Relaxed: a thread that faults in a mapping has heard of it, and so of its entry.
    for entry in &TABLE[..USED.load(Ordering::Relaxed)] {
        let Some(Mapping { start, end, page }) = entry.pin(address as u64) else { continue };
        // Before zeroes are there: another thread that reads them without a fault of its own must
        // see, when it looks afterwards, that they are not the guest's.
        entry.note_hit();
        // Relaxed: a hint, and `replace` is a system call.
        HITS.fetch_add(1, Ordering::Relaxed);
        let replaced = replace((start as usize, end as usize), address, page as usize);
        entry.unpin();
        if replaced {
            return;
        }
        break;
    }
    // SAFETY: written by `install` before this handler was in force; the previous action is called
    // as the kernel would, or the default one put in force, so that the fault comes again.
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
