//! What happens when a frontend cuts off the file behind memory that it shares.
//!
//! Touching such memory raises SIGBUS, which would end the process. While guest memory is mapped, a
//! handler puts zeroes of our own in place of the mapping that the fault was in and marks it; the
//! thread goes on, and the device whose memory it was is failed (thread.rs). Faults elsewhere go to
//! whoever handled them before. The table is fixed, since a handler may neither allocate nor lock.
//!
//! The whole mapping goes, since a process may have 65,530 only: a page on its own here and there
//! would cut one mapping into any number. Other threads find zeroes in it from then on, too, and
//! what they write there nobody sees; I/O that the kernel has under way keeps the pages it has.
//!
//! Called by memory.rs. Invariant: an entry of the table is in use while its mapping exists.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use millrace_block::{Error, ErrorKind};

/// Most mappings at a time, of all devices.
const ENTRIES: usize = 4096;

/// A mapping: free if `end` is 0, taken but not in force if `end` is 1.
struct Entry {
    start: AtomicUsize,
    end: AtomicUsize,
    page: AtomicUsize,
    hit: AtomicBool,
}

static TABLE: [Entry; ENTRIES] = [const {
    Entry {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        page: AtomicUsize::new(0),
        hit: AtomicBool::new(false),
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
        for (index, entry) in TABLE.iter().enumerate() {
            // Acquire on success pairs with the Release of `drop`: the entry's last use is over.
            let order = (Ordering::Acquire, Ordering::Relaxed);
            if entry.end.compare_exchange(0, 1, order.0, order.1).is_err() {
                continue;
            }
            // Relaxed: in force only with the Release of `end`, below.
            entry.start.store(start, Ordering::Relaxed);
            entry.page.store(page, Ordering::Relaxed);
            entry.hit.store(false, Ordering::Relaxed);
            USED.fetch_max(index + 1, Ordering::SeqCst);
            // Release pairs with the Acquire of the handler.
            entry.end.store(start + len, Ordering::Release);
            return Ok(Guard(index));
        }
        let text = format!("more than {ENTRIES} regions of guest memory");
        Err(Error::new(ErrorKind::Busy, text))
    }

    /// Whether a fault was handled in it.
    #[must_use]
    pub fn was_hit(&self) -> bool {
        // Acquire pairs with the Release of the handler.
        TABLE[self.0].hit.load(Ordering::Acquire)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Release pairs with the Acquire of `new`.
        TABLE[self.0].end.store(0, Ordering::Release);
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
    // Relaxed: entries beyond were never in force.
    for entry in &TABLE[..USED.load(Ordering::Relaxed)] {
        // Acquire pairs with the Release of `Guard::new`.
        let end = entry.end.load(Ordering::Acquire);
        let start = entry.start.load(Ordering::Relaxed);
        if end <= 1 || address < start || address >= end {
            continue;
        }
        // Relaxed: ordered by `end`.
        let page = entry.page.load(Ordering::Relaxed);
        if !replace((start, end), address, page) {
            break;
        }
        // Release pairs with the Acquire of `was_hit`.
        entry.hit.store(true, Ordering::Release);
        // Relaxed: a hint.
        HITS.fetch_add(1, Ordering::Relaxed);
        return;
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

#[cfg(test)]
mod tests;
