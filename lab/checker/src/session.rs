//! `Session`: the state of one execution: its threads, memory, choices and, in a replay, its log.
//!
//! explorer.rs owns the session and makes it the current session of the exploring thread. The
//! primitives reach it through [`with`], and suspend their coroutine through the functions here.
//! schedule.rs decides which thread continues.
//!
//! Invariants: one thread runs at a time; no code suspends inside [`with`]; after a failure no
//! thread is resumed.
#![allow(unsafe_code)]

use core::cell::Cell;
use core::ptr::null_mut;
use std::boxed::Box;
use std::format;
use std::string::String;
use std::thread_local;
use std::vec::Vec;

use corosensei::Yielder;

use super::memory::{AccessContext, Memory};
use super::race::{LineAccesses, Race};
use super::trail::{ChoiceMode, Trail};
use super::view::{THREADS_MAX, ThreadViews, View};

/// Value of `Session::current` when all threads have ended.
pub(super) const NOBODY: usize = usize::MAX;

pub(super) type ThreadBody = Box<dyn FnOnce() + Send>;
pub(super) type ThreadYielder = Yielder<(), ()>;

thread_local! {
    static SESSION: Cell<*mut Session> = const { Cell::new(null_mut()) };
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) preemptions: u32,
    pub(super) steps: u32,
    pub(super) deadlines: u32,
    /// Number of steps in a row after which a thread must let another thread run.
    pub(super) patience: u32,
    pub(super) cpus: u32,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BoundUsage {
    pub(super) preemptions: u32,
    pub(super) steps: u32,
    pub(super) in_a_row: u32,
    pub(super) deadlines: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitReason {
    Turn,
    Lock(u32),
    /// The thread waits for a wake-up of this parker, or for a deadline.
    Park(u32, Option<u64>),
    /// The thread waits for a store to one of the locations in `set` after store number `since`, or
    /// for a deadline.
    Change {
        set: u64,
        since: u64,
        deadline_ns: Option<u64>,
    },
    Join(usize),
    Ended,
}

#[derive(Debug)]
pub(super) struct ModelThread {
    pub(super) views: ThreadViews,
    pub(super) wait: WaitReason,
    pub(super) turns: *const ThreadYielder,
    /// True until the thread's first operation that others can see. No preemption is tried before
    /// that operation, because the scheduler has just chosen to start this thread.
    pub(super) fresh: bool,
    pub(super) cpu: u32,
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) memory: Memory,
    lines: LineAccesses,
    pub(super) parkers: Vec<bool>,
    pub(super) trail: Trail,
    pub(super) threads: Vec<ModelThread>,
    pub(super) current: usize,
    pub(super) started: Vec<UnstartedThread>,
    pub(super) bounds: Bounds,
    pub(super) spent: BoundUsage,
    pub(super) now_ns: u64,
    /// Bit set of the locations read by the condition that is being evaluated.
    pub(super) touched: u64,
    pub(super) failure: Option<String>,
    pub(super) log: Option<Vec<String>>,
}

pub(super) struct UnstartedThread(pub(super) ThreadBody);

impl core::fmt::Debug for UnstartedThread {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Started")
    }
}

pub(super) fn is_exploring() -> bool {
    !SESSION.get().is_null()
}

/// Guard that makes a session the current session of the calling thread until the guard is dropped.
pub(super) struct EnteredSession(());

impl EnteredSession {
    pub(super) fn new(session: &mut Session) -> EnteredSession {
        assert!(!is_exploring(), "explorations must not be nested");
        SESSION.set(session);
        EnteredSession(())
    }
}

impl Drop for EnteredSession {
    fn drop(&mut self) {
        SESSION.set(null_mut());
    }
}

/// Calls `step` with the calling thread's exploration session. `step` must neither suspend the
/// coroutine nor call `with` again.
#[inline]
pub(super) fn with<R>(step: impl FnOnce(&mut Session) -> R) -> R {
    let session = SESSION.get();
    assert!(!session.is_null(), "a primitive of `Checked` is used outside an exploration");
    // SAFETY: `EnteredSession` keeps the pointer valid.
    // No second reference to the session exists: `step` neither suspends nor calls `with` again.
    step(unsafe { &mut *session })
}

/// Like [`with`], but returns `None` outside an exploration; for destructors.
pub(super) fn try_with<R>(step: impl FnOnce(&mut Session) -> R) -> Option<R> {
    is_exploring().then(|| with(step))
}

fn suspend(turns: *const ThreadYielder) {
    // SAFETY: the yielder lives on the calling coroutine's own stack as long as that runs.
    unsafe { (*turns).suspend(()) }
}

/// Lets the scheduler run another thread before the calling thread's next operation. Call this
/// before each operation whose outcome depends on other threads.
#[inline]
pub(super) fn turn() {
    if let Some(turns) = with(Session::turn) {
        suspend(turns);
    }
}

pub(super) fn wait(wait: WaitReason) {
    if let Some(turns) = with(|session| session.wait(wait)) {
        suspend(turns);
    }
    with(|session| session.threads[session.current].wait = WaitReason::Turn);
}

/// Fails the execution and suspends the calling thread, which never continues. If the execution has
/// failed already, returns without effect.
pub(super) fn fail(reason: String) {
    if let Some(turns) = with(|session| session.fail(reason)) {
        suspend(turns);
    }
}

impl Session {
    pub(super) fn new(bounds: Bounds, mode: ChoiceMode) -> Session {
        Session {
            memory: Memory::new(),
            lines: LineAccesses::new(),
            parkers: Vec::new(),
            trail: Trail::new(mode),
            threads: Vec::with_capacity(THREADS_MAX),
            current: 0,
            started: Vec::new(),
            bounds,
            spent: BoundUsage::default(),
            now_ns: 0,
            touched: 0,
            failure: None,
            log: None,
        }
    }

    pub(super) fn reset(&mut self) {
        self.memory.reset();
        self.lines.reset();
        self.parkers.clear();
        self.threads.clear();
        self.started.clear();
        (self.spent, self.touched) = (BoundUsage::default(), 0);
        self.current = 0;
        self.now_ns = 1_000_000;
        self.failure = None;
        self.add_thread(&View::EMPTY, None);
    }

    fn add_thread(&mut self, knows: &View, cpu: Option<u32>) -> usize {
        let index = self.threads.len();
        let views = ThreadViews::new(index as u8, knows);
        let (wait, turns) = (WaitReason::Turn, core::ptr::null());
        self.threads.push(ModelThread { views, wait, turns, fresh: true, cpu: cpu.unwrap_or(0) });
        index
    }

    /// Starts a thread that knows the same stores and events as the current thread (a copy of its
    /// `View`). Returns `None` if there are already [`THREADS_MAX`] threads.
    pub(super) fn spawn(
        &mut self,
        name: &str,
        cpu: Option<u32>,
        body: ThreadBody,
    ) -> Option<usize> {
        if self.threads.len() == THREADS_MAX {
            return None;
        }
        let knows = self.here().views.current;
        self.here().views.tick();
        self.here().fresh = false;
        let index = self.add_thread(&knows, cpu);
        self.started.push(UnstartedThread(body));
        self.note(|| format!("starts T{index} ({name})"));
        Some(index)
    }

    pub(super) fn begin(&mut self, turns: *const ThreadYielder) {
        self.here().turns = turns;
    }

    #[inline]
    pub(super) fn here(&mut self) -> &mut ModelThread {
        &mut self.threads[self.current]
    }

    #[inline]
    pub(super) fn access(&mut self) -> (&mut Memory, AccessContext<'_>) {
        let thread = &mut self.threads[self.current];
        (&mut self.memory, AccessContext { views: &mut thread.views, trail: &mut self.trail })
    }

    #[inline]
    pub(super) fn acted(&mut self) {
        self.here().fresh = false;
    }

    pub(super) fn add_parker(&mut self) -> u32 {
        self.parkers.push(false);
        (self.parkers.len() - 1) as u32
    }

    pub(super) fn unpark(&mut self, parker: u32) {
        self.note(|| format!("unparks parker {parker}"));
        self.parkers[parker as usize] = true;
    }

    /// Ends a sleep: consumes the wake-up or, if there was none, advances the time to the deadline.
    pub(super) fn parked(&mut self, parker: u32, deadline_ns: Option<u64>) {
        let woken = core::mem::take(&mut self.parkers[parker as usize]);
        self.note(|| format!("leaves parker {parker}"));
        if !woken && let Some(deadline_ns) = deadline_ns {
            self.pass_deadline(deadline_ns);
        }
    }

    pub(super) fn is_unparked(&self, parker: u32) -> bool {
        self.parkers[parker as usize]
    }

    pub(super) fn joined(&mut self, other: usize) {
        let knows = self.threads[other].views.current;
        let locations = self.memory.locations();
        self.here().views.current.join(&knows, locations);
        self.note(|| format!("has joined T{other}"));
    }

    pub(super) fn has_ended(&self, thread: usize) -> bool {
        self.threads[thread].wait == WaitReason::Ended
    }

    pub(super) fn add_line(&mut self) -> u32 {
        let current = self.current;
        self.lines.add(&self.threads[current].views)
    }

    pub(super) fn touch_line(&mut self, line: u32, what: LineAccessKind) -> Option<String> {
        let views = &self.threads[self.current].views;
        let raced = match what {
            LineAccessKind::Read => self.lines.read(views, line),
            LineAccessKind::Write | LineAccessKind::Held => self.lines.write(views, line),
        };
        if what != LineAccessKind::Held {
            self.note(|| format!("line {line} {what:?}"));
        }
        let Err(Race { other, wrote }) = raced else { return None };
        let earlier = if wrote { "write" } else { "read" };
        let by = self.current;
        Some(format!("data race on line {line}: {what:?} by T{by}, and a {earlier} by T{other}"))
    }

    #[inline]
    pub(super) fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(format!("{:4} T{} {}", self.spent.steps, self.current, text()));
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineAccessKind {
    Read,
    Write,
    Held,
}
