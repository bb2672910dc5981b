//! `View`: what a thread, a store or a fence knows of the memory, and the clock of what happened
//! before it.
//!
//! Owned by memory.rs (views carried by stores) and session.rs (views of threads). For each
//! location a view holds the timestamp of the oldest store that may still be read there; for each
//! thread, how far that thread's past happened before. Timestamps spread by SeqCst fences too, the
//! clock only by synchronisation, so races are judged by the clock. Source: Kang et al., "A
//! promising semantics for relaxed-memory concurrency", POPL 2017 (without promises).

/// Most locations (words and locks) in one execution: an await keeps a set of them in a `u64`.
pub(super) const LOCATIONS_MAX: usize = 64;
/// Most threads in one execution, the first one included.
pub(super) const THREADS_MAX: usize = 8;

/// Timestamps by location.
pub(super) type Stamps = [u32; LOCATIONS_MAX];

#[derive(Debug, Clone, Copy)]
pub(super) struct View {
    pub(super) stamps: Stamps,
    pub(super) clock: [u32; THREADS_MAX],
}

impl View {
    pub(super) const EMPTY: View = View { stamps: [0; LOCATIONS_MAX], clock: [0; THREADS_MAX] };

    /// Learns what `other` knows of the first `locations`.
    #[inline]
    pub(super) fn join(&mut self, other: &View, locations: usize) {
        raise(&mut self.stamps, &other.stamps, locations);
        for (mine, theirs) in self.clock.iter_mut().zip(&other.clock) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// Whether event `epoch` of `thread` happened before.
    #[inline]
    pub(super) fn has(&self, thread: u8, epoch: u32) -> bool {
        self.clock[usize::from(thread)] >= epoch
    }
}

/// Raises each of the first `locations` to at least what `other` has there.
#[inline]
pub(super) fn raise(stamps: &mut Stamps, other: &Stamps, locations: usize) {
    for (mine, theirs) in stamps[..locations].iter_mut().zip(&other[..locations]) {
        *mine = (*mine).max(*theirs);
    }
}

/// The three views of a thread.
#[derive(Debug, Clone, Copy)]
pub(super) struct Views {
    /// What it knows now.
    pub(super) current: View,
    /// What its relaxed loads found, to be known after an acquire fence.
    pub(super) acquired: View,
    /// What it knew at its last release fence: what its relaxed stores carry.
    pub(super) released: View,
    /// Whether there was such a fence.
    pub(super) has_released: bool,
    /// Its number.
    pub(super) thread: u8,
}

impl Views {
    /// A thread that starts out knowing `current`.
    pub(super) fn new(thread: u8, current: &View) -> Views {
        let mut views = Views {
            current: *current,
            acquired: View::EMPTY,
            released: View::EMPTY,
            has_released: false,
            thread,
        };
        views.tick();
        views
    }

    /// What comes from now on is not part of what was handed out so far.
    #[inline]
    pub(super) fn tick(&mut self) {
        self.current.clock[usize::from(self.thread)] += 1;
    }

    #[inline]
    pub(super) fn epoch(&self) -> u32 {
        self.current.clock[usize::from(self.thread)]
    }
}
