//! Files truncated behind mappings: the pages that the handler replaces, and those it leaves alone.
//!
//! Without the handler each of these tests would end the process. The effect of a fault is checked
//! in the process's own list of mappings.
#![allow(clippy::unwrap_used, unsafe_code)] // Tests may.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr;

use millrace_machine::Word;

use super::*;
use crate::vhost::memory::memory_file;

const PAGE: usize = 4096;

/// An address range of this test, into which it maps files.
struct MappedAddress(*mut u8);

impl MappedAddress {
    fn new(len: usize) -> MappedAddress {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        MappedAddress(map(ptr::null_mut(), len, flags, -1))
    }

    /// Puts a file at an offset, and nothing else.
    fn put(&self, at: usize, len: usize, file: &File) {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        map(self.0.wrapping_add(at), len, flags, file.as_raw_fd());
    }

    fn write(&self, at: usize, value: u8) {
        // SAFETY: inside the place; faults are handled.
        unsafe { self.0.wrapping_add(at).write_volatile(value) }
    }

    fn read(&self, at: usize) -> u8 {
        // SAFETY: as above.
        unsafe { self.0.wrapping_add(at).read_volatile() }
    }

    /// Mappings that the process has of these bytes.
    fn mappings(&self, at: usize, len: usize) -> usize {
        let (from, to) = (self.0.addr() + at, self.0.addr() + at + len);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let number = |text: &str| usize::from_str_radix(text, 16).unwrap();
        let meets = |line: &&str| {
            let (first, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
            number(first) < to && number(end) > from
        };
        maps.lines().filter(meets).count()
    }
}

fn map(at: *mut u8, len: usize, flags: i32, fd: i32) -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, or one in place of a part of this test's own.
    let mapped = unsafe { libc::mmap(at.cast(), len, protection, flags, fd, 0) };
    assert_ne!(mapped, libc::MAP_FAILED);
    mapped.cast()
}

#[test]
fn any_number_of_faults_in_a_mapping_cost_one_mapping() {
    // Twice as many as a process may have.
    let pages = 2 * 65_536;
    let (place, file) = (MappedAddress::new(pages * PAGE), memory_file("t", 1 << 30).unwrap());
    place.put(0, pages * PAGE, &file);
    let guard = MappingGuard::new(place.0.addr(), pages * PAGE, PAGE).unwrap();
    place.write(PAGE, 7);
    assert!(!guard.was_hit());
    let before = hits();
    file.set_len(PAGE as u64).unwrap();
    for page in (1..pages).step_by(2) {
        assert_eq!(place.read(page * PAGE), 0);
    }
    assert!(guard.was_hit() && hits() > before);
    assert!(place.mappings(0, pages * PAGE) <= 3, "its own, and its neighbours'");
    place.write(PAGE, 9);
    assert_eq!((place.read(PAGE), place.read(0)), (9, 0));
}

#[test]
fn neighbours_of_a_mapping_stay_and_so_does_its_successor() {
    let (place, len) = (MappedAddress::new(64 * PAGE), 8 * PAGE - 100);
    let files = [0, 1, 2].map(|_| memory_file("t", 8 * PAGE as u64).unwrap());
    // Two files mapped side by side, of which the second is truncated; it need not end with a page.
    let starts = [16 * PAGE, 24 * PAGE];
    let guards = [0, 1].map(|n| {
        place.put(starts[n], len, &files[n]);
        (0..8).for_each(|page| place.write(starts[n] + page * PAGE, 3 + n as u8));
        MappingGuard::new(place.0.addr() + starts[n], len, PAGE).unwrap()
    });
    place.write(16 * PAGE - 1, 1);
    place.write(32 * PAGE, 2);
    files[1].set_len(4 * PAGE as u64).unwrap();
    assert_eq!(place.read(starts[1] + 7 * PAGE), 0);
    assert_eq!([guards[0].was_hit(), guards[1].was_hit()], [false, true]);
    assert_eq!((place.read(16 * PAGE - 1), place.read(32 * PAGE)), (1, 2));
    assert!((0..8).all(|page| place.read(starts[0] + page * PAGE) == 3));
    assert!((0..8).all(|page| place.read(starts[1] + page * PAGE) == 0), "all of it, at once");
    // Writes to the file no longer reach the mapping, which was replaced by anonymous pages.
    files[1].write_all_at(&[9; 8], 0).unwrap();
    assert_eq!(place.read(starts[1]), 0);
    drop(guards);
    // A mapping in the same place is guarded anew.
    place.put(starts[1], len, &files[2]);
    let guard = MappingGuard::new(place.0.addr() + starts[1], len, PAGE).unwrap();
    place.write(starts[1], 5);
    assert!(!guard.was_hit() && place.read(starts[1]) == 5);
    files[2].set_len(0).unwrap();
    assert_eq!(place.read(starts[1]), 0);
    assert!(guard.was_hit());
}

/// The calling thread is refused mappings longer than this, as where the system promises no more
/// memory than it has.
fn refuse_longer_than(bytes: u32) {
    // SAFETY: numbers in, numbers out.
    let step = |code: u32, k: u32| unsafe { libc::BPF_STMT(code as u16, k) };
    // SAFETY: as above.
    let unless = |code: u32, k: u32, skips: u8| unsafe {
        libc::BPF_JUMP((libc::BPF_JMP | code | libc::BPF_K) as u16, k, 0, skips)
    };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let args = std::mem::offset_of!(libc::seccomp_data, args) as u32;
    let mut steps = [
        step(load, 0),
        unless(libc::BPF_JEQ, libc::SYS_mmap as u32, 3),
        step(load, args + 8),
        unless(libc::BPF_JGT, bytes, 1),
        step(libc::BPF_RET, libc::SECCOMP_RET_ERRNO | libc::ENOMEM as u32),
        step(libc::BPF_RET, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: passes a live program; all that it refuses are long mappings.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program), 0);
    }
}

#[test]
fn mapping_is_replaced_as_far_as_memory_lasts() {
    let body = || {
        let len = 1 << 30;
        let (place, file) = (MappedAddress::new(len), memory_file("t", len as u64).unwrap());
        place.put(0, len, &file);
        let guard = MappingGuard::new(place.0.addr(), len, PAGE).unwrap();
        refuse_longer_than(256 << 20);
        place.write(0, 4);
        place.write(len - PAGE, 7);
        file.set_len((len - PAGE) as u64).unwrap();
        assert_eq!(place.read(len - 1), 0);
        assert!(guard.was_hit());
        // A quarter of it is replaced, the file is left of the others.
        assert_eq!((place.read(0), place.mappings(0, len)), (4, 2));
        file.set_len(0).unwrap();
        assert_eq!(place.read(len / 2), 0);
        assert_eq!(place.read(0), 0);
        place.write(0, 6);
        assert_eq!((place.read(0), place.read(len - 1)), (6, 0));
    };
    // The limit holds for a thread.
    std::thread::spawn(body).join().unwrap();
}

/// Environment variable that tells the child which SIGBUS handler to install first.
const BEFORE: &str = "MILLRACE_TEST_SIGBUS";

extern "C" fn plain(signal: i32) {
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(signal + 30) }
}

extern "C" fn informed(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the handler that was asked first passes on what the kernel gave it.
    unsafe { libc::_exit(signal + i32::from((*info).si_addr().addr() % PAGE == 5) + 40) }
}

/// Faults in a mapping that is not guarded, after a fault in a guarded one.
#[test]
fn the_child_of_the_next_test_faults() {
    let Ok(before) = std::env::var(BEFORE) else { return };
    let (handler, flags) = match &*before {
        "default" | "refused" => (libc::SIG_DFL, 0),
        "ignored" => (libc::SIG_IGN, 0),
        "plain" => (plain as *const () as usize, 0),
        _ => (informed as *const () as usize, libc::SA_SIGINFO),
    };
    // SAFETY: all-zero bytes are an action without flags and mask; nothing is guarded so far.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        (action.sa_sigaction, action.sa_flags) = (handler, flags);
        libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut());
    }
    let (place, file) = (MappedAddress::new(4 * PAGE), memory_file("t", 4 * PAGE as u64).unwrap());
    place.put(0, 4 * PAGE, &file);
    let guard = MappingGuard::new(place.0.addr(), 2 * PAGE, PAGE).unwrap();
    file.set_len(0).unwrap();
    if before == "refused" {
        refuse_longer_than(0);
    }
    assert_eq!(place.read(2 * PAGE - 1), 0);
    assert!(guard.was_hit());
    assert_eq!(place.read(2 * PAGE + 5), 0, "that is not ours to handle");
}

#[test]
fn faults_elsewhere_go_to_whoever_handled_them_before() {
    use std::os::unix::process::ExitStatusExt;
    let ends = |before: &str| {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "vhost::memory::sigbus::tests::the_child_of_the_next_test_faults"]);
        let output = child.env(BEFORE, before).output().unwrap();
        (output.status.signal(), output.status.code())
    };
    assert_eq!(ends("default"), (Some(libc::SIGBUS), None));
    assert_eq!(ends("ignored"), (Some(libc::SIGBUS), None));
    // No memory for a single page of zeroes.
    assert_eq!(ends("refused"), (Some(libc::SIGBUS), None));
    assert_eq!(ends("plain"), (None, Some(libc::SIGBUS + 30)));
    assert_eq!(ends("informed"), (None, Some(libc::SIGBUS + 41)));
}

#[test]
fn handler_has_a_stack_of_its_own_and_may_fault_itself() {
    let place = MappedAddress::new(PAGE);
    let _guard = MappingGuard::new(place.0.addr(), PAGE, PAGE).unwrap();
    // SAFETY: all-zero bytes are an action; nothing is changed.
    let action = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut action);
        action
    };
    let wanted = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    assert_eq!(action.sa_flags & wanted, wanted);
}

fn free_entry() -> MappingEntry<TableWord> {
    let [state, start, end, page, pins, hit] = [0; 6].map(TableWord::new);
    MappingEntry { state, start, end, page, pins, hit }
}

/// The lowest bit of the generation in an entry's state.
const GENERATION: u64 = 4;
const CHANGING: u64 = 1;
const IN_FORCE: u64 = 2;

#[test]
fn an_entry_counts_a_generation_for_each_mapping_that_was_in_it() {
    let entry = free_entry();
    let state = || entry.state.load(Ordering::SeqCst);
    for round in 1..5 {
        let mapping = Mapping { start: 4096 * round, end: 4096 * (round + 2), page: 4096 };
        assert!(entry.claim(mapping) && !entry.claim(mapping));
        assert_eq!(state(), round * GENERATION + IN_FORCE);
        assert_eq!((entry.pin(mapping.start - 1), entry.pin(mapping.end)), (None, None));
        assert_eq!(entry.pins.load(Ordering::SeqCst), 0);
        for address in [mapping.start, mapping.end - 1] {
            assert_eq!(entry.pin(address), Some(mapping));
            assert_eq!(entry.pins.load(Ordering::SeqCst), 1);
            entry.unpin();
        }
        assert!(!entry.was_hit(), "the last mapping's fault is none of this one's");
        entry.note_hit();
        assert!(entry.was_hit());
        entry.retire::<Native>();
        assert_eq!((state(), entry.pin(mapping.start)), (round * GENERATION, None));
    }
}

#[test]
fn current_entry_of_a_handler_is_neither_in_force_nor_free() {
    let entry = free_entry();
    assert!(entry.claim(Mapping { start: 0, end: 4096, page: 4096 }));
    assert!(entry.pin(5).is_some());
    std::thread::scope(|scope| {
        let retiring = scope.spawn(|| entry.retire::<Native>());
        while entry.state.load(Ordering::SeqCst) == GENERATION + IN_FORCE {
            std::thread::yield_now();
        }
        for _ in 0..1000 {
            assert_eq!(entry.state.load(Ordering::SeqCst), GENERATION + CHANGING);
            std::thread::yield_now();
        }
        assert!(!retiring.is_finished() && entry.pin(5).is_none());
        entry.unpin();
    });
    assert_eq!(entry.state.load(Ordering::SeqCst), GENERATION);
}

#[test]
fn a_word_of_the_table_does_what_any_other_does() {
    let (word, order) = (TableWord::new(6), Ordering::SeqCst);
    assert_eq!((word.swap(12, order), word.load(order)), (6, 12));
    assert_eq!((word.fetch_or(3, order), word.load(order)), (12, 15));
    assert_eq!((word.fetch_and(9, order), word.load(order)), (15, 9));
    assert_eq!((word.fetch_add(u64::MAX, order), word.load(order)), (9, 8));
    assert_eq!(word.compare_exchange(9, 7, order, order), Err(8));
    assert_eq!((word.compare_exchange(8, 7, order, order), word.load(order)), (Ok(8), 7));
}
