//! `View`: the stores to memory locations and the events of other threads that a thread knows of.
//!
//! session.rs owns the view of each thread. A store carries a copy of a view for the threads that
//! read the store; memory.rs owns the copies. A view has two parts:
//! - For each memory location, the timestamp of the newest known store. A thread with this view can
//!   no longer read older stores.
//! - A vector clock: for each thread, the number of its known events. These events happened before
//!   all later events of a thread with this view.
//!
//! SeqCst fences merge timestamps but not clocks. Fences alone do not order plain accesses, so
//! race.rs compares clocks. Source: Kang et al., "A promising semantics for relaxed-memory
//! concurrency", POPL 2017 (without promises).

/// Maximum number of memory locations (words and locks) in one execution. `Session::touched` has
/// one bit for each location in a `u64`.
pub(super) const LOCATIONS_MAX: usize = 64;
pub(super) const THREADS_MAX: usize = 8;

pub(super) type Timestamps = [u32; LOCATIONS_MAX];

#[derive(Debug, Clone, Copy)]
pub(super) struct View {
    pub(super) stamps: Timestamps,
    pub(super) clock: [u32; THREADS_MAX],
}

impl View {
    pub(super) const EMPTY: View = View { stamps: [0; LOCATIONS_MAX], clock: [0; THREADS_MAX] };

    /// Raises timestamps and clocks to those of `other`. `locations` is the number of timestamps in
    /// use.
    #[inline]
    pub(super) fn join(&mut self, other: &View, locations: usize) {
        raise(&mut self.stamps, &other.stamps, locations);
        for (mine, theirs) in self.clock.iter_mut().zip(&other.clock) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// Returns true if this view contains event number `epoch` of `thread`. The event then happened
    /// before all later events of a thread with this view.
    #[inline]
    pub(super) fn has(&self, thread: u8, epoch: u32) -> bool {
        self.clock[usize::from(thread)] >= epoch
    }
}

#[inline]
pub(super) fn raise(stamps: &mut Timestamps, other: &Timestamps, locations: usize) {
    for (mine, theirs) in stamps[..locations].iter_mut().zip(&other[..locations]) {
        *mine = (*mine).max(*theirs);
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct ThreadViews {
    pub(super) current: View,
    /// Union of the views of all stores that this thread has read with relaxed loads. An acquire
    /// fence merges the union into `current`, the thread's own view.
    pub(super) acquired: View,
    /// Copy of the thread's view (the stores that the thread knows) at its last release fence.
    /// Relaxed stores after the fence carry this view.
    pub(super) released: View,
    pub(super) has_released: bool,
    pub(super) thread: u8,
}

impl ThreadViews {
    pub(super) fn new(thread: u8, current: &View) -> ThreadViews {
        let mut views = ThreadViews {
            current: *current,
            acquired: View::EMPTY,
            released: View::EMPTY,
            has_released: false,
            thread,
        };
        views.tick();
        views
    }

    /// Advances the thread's clock, so that views copied before do not include later events.
    #[inline]
    pub(super) fn tick(&mut self) {
        self.current.clock[usize::from(self.thread)] += 1;
    }

    #[inline]
    pub(super) fn epoch(&self) -> u32 {
        self.current.clock[usize::from(self.thread)]
    }
}
