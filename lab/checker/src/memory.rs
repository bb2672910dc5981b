//! `Memory`: the atomic words of one execution, each with all its stores in modification order.
//!
//! A thread's view (view.rs) has, for each word, the newest store that the thread knows. A store
//! also carries a view. An acquire load of the store merges that view into the view of the loading
//! thread.
//!
//! A session owns the memory; primitives.rs calls it for every access:
//! - A load may read the store in its thread's view, or any newer store.
//! - A store may take any position in modification order after the store in its thread's view.
//! - A read-modify-write is placed directly after the store that it reads (atomicity).
//! - SeqCst accesses and fences are ordered as they were executed.
//!
//! Invariant: the `stores` of a location are sorted by timestamp. Source: Kang et al., POPL 2017
//! (views, no promises); Lahav et al., "Repairing sequential consistency in C/C++11", PLDI 2017
//! (order of SeqCst accesses and fences).

use std::vec::Vec;

use super::trail::Trail;
use super::view::{LOCATIONS_MAX, ThreadViews, Timestamps, View, raise};
use millrace_machine::Order;

/// Distance between the timestamps of two consecutive stores that are appended to modification
/// order. A store that is inserted between two others gets the mean of their timestamps. Each
/// insertion halves the distance, so 12 stores can be inserted at the same position.
const GAP: u32 = 1 << 12;
const NO_VIEW: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Store {
    value: u64,
    stamp: u32,
    /// Index in `Memory::views` of the view that the store carries. An acquiring load of the store
    /// merges this view into its thread's view. `NO_VIEW` if the store carries none.
    view: u32,
    /// Clock of `thread`, which made the store.
    epoch: u32,
    thread: u8,
    /// True for the store of a read-modify-write, which must stay directly behind the store that
    /// was read.
    atomic: bool,
}

#[derive(Debug, Clone, Copy)]
struct PendingStore {
    value: u64,
    order: Order,
    read: Option<Store>,
}

#[derive(Debug)]
pub(super) struct AccessContext<'a> {
    pub(super) views: &'a mut ThreadViews,
    pub(super) trail: &'a mut Trail,
}

#[derive(Debug, Default)]
struct Location {
    stores: Vec<Store>,
    /// Thread that made the last store to this location, and the number of that store. Stores to
    /// all locations are numbered together.
    last: (u8, u64),
    /// Number of the last store to this location that was not made by the thread `last.0`.
    other: u64,
}

#[derive(Debug)]
pub(super) struct Memory {
    locations: Vec<Location>,
    used: usize,
    views: Vec<View>,
    pub(super) stored: u64,
    /// Timestamp of the newest store to each location that any thread knew at its last SeqCst
    /// fence. Each later SeqCst fence merges these timestamps into the view of the fencing thread.
    sc_fences: Timestamps,
    /// Latest SeqCst store to each location.
    sc_stores: Timestamps,
    /// For each location, the latest store that happened before a SeqCst fence. Later SeqCst
    /// accesses must not read older stores.
    sc_fenced: Timestamps,
    pub(super) exhausted: bool,
}

fn acquires(order: Order) -> bool {
    matches!(order, Order::Acquire | Order::AcqRel | Order::SeqCst)
}

fn releases(order: Order) -> bool {
    matches!(order, Order::Release | Order::AcqRel | Order::SeqCst)
}

impl Memory {
    pub(super) fn new() -> Memory {
        Memory {
            locations: Vec::new(),
            used: 0,
            views: Vec::with_capacity(256),
            stored: 0,
            sc_fences: [0; LOCATIONS_MAX],
            sc_stores: [0; LOCATIONS_MAX],
            sc_fenced: [0; LOCATIONS_MAX],
            exhausted: false,
        }
    }

    pub(super) fn reset(&mut self) {
        (self.used, self.stored) = (0, 0);
        self.views.clear();
        self.sc_fences = [0; LOCATIONS_MAX];
        self.sc_stores = [0; LOCATIONS_MAX];
        self.sc_fenced = [0; LOCATIONS_MAX];
        self.exhausted = false;
    }

    pub(super) fn add(&mut self, views: &mut ThreadViews, value: u64) -> Option<u32> {
        if self.used == LOCATIONS_MAX {
            return None;
        }
        if self.used == self.locations.len() {
            self.locations.push(Location::default());
        }
        let (index, epoch, thread) = (self.used, views.epoch(), views.thread);
        self.used += 1;
        let location = &mut self.locations[index];
        (location.last, location.other) = ((thread, 0), 0);
        let stores = &mut location.stores;
        stores.clear();
        stores.push(Store { value, stamp: GAP, view: NO_VIEW, epoch, thread, atomic: false });
        views.current.stamps[index] = GAP;
        Some(index as u32)
    }

    pub(super) fn locations(&self) -> usize {
        self.used
    }

    /// Returns the timestamp of the oldest store that an access with memory ordering `order` may
    /// read.
    #[inline]
    fn floor(&self, views: &ThreadViews, at: usize, order: Order) -> u32 {
        let known = views.current.stamps[at];
        match order {
            Order::SeqCst => known.max(self.sc_stores[at]).max(self.sc_fenced[at]),
            _ => known,
        }
    }

    #[inline]
    fn observe(&mut self, views: &mut ThreadViews, at: usize, index: usize, order: Order) -> Store {
        let store = self.locations[at].stores[index];
        let stamp = &mut views.current.stamps[at];
        *stamp = (*stamp).max(store.stamp);
        if store.view != NO_VIEW {
            let view = &self.views[store.view as usize];
            let known = if acquires(order) { &mut views.current } else { &mut views.acquired };
            known.join(view, self.used);
        }
        store
    }

    pub(super) fn load(
        &mut self,
        AccessContext { views, trail }: AccessContext<'_>,
        at: u32,
        order: Order,
    ) -> u64 {
        let at = at as usize;
        let floor = self.floor(views, at, order);
        let stores = &self.locations[at].stores;
        let readable = stores.iter().rev().take_while(|store| store.stamp >= floor).count();
        let back = if readable > 1 { trail.choose(readable) } else { 0 };
        let index = stores.len() - 1 - back;
        self.observe(views, at, index, order).value
    }

    pub(super) fn store(
        &mut self,
        AccessContext { views, trail }: AccessContext<'_>,
        at: u32,
        value: u64,
        order: Order,
    ) {
        let at = at as usize;
        let floor = self.floor(views, at, order);
        let stores = &self.locations[at].stores;
        // Chooses the position of the new store in modification order: at the end, or directly
        // before any store newer than `floor`. The store of a read-modify-write must directly
        // follow the store that it read. So no store may be inserted between these two.
        let place = |index: &usize| !stores[*index].atomic;
        let newer = || (0..stores.len()).rev().take_while(|i| stores[*i].stamp > floor);
        let places = 1 + newer().filter(place).count();
        let chosen = if places > 1 { trail.choose(places) } else { 0 };
        let index = match chosen.checked_sub(1) {
            None => stores.len(),
            Some(nth) => newer().filter(place).nth(nth).unwrap_or(stores.len()),
        };
        self.insert(views, at, index, PendingStore { value, order, read: None });
    }

    fn insert(&mut self, views: &mut ThreadViews, at: usize, index: usize, new: PendingStore) {
        let PendingStore { value, order, read } = new;
        let stores = &self.locations[at].stores;
        let before = stores[index - 1].stamp;
        let stamp = match stores.get(index) {
            None => before.saturating_add(GAP),
            Some(after) => before + (after.stamp - before) / 2,
        };
        self.exhausted |= stamp == before || stamp > u32::MAX - GAP;
        views.current.stamps[at] = views.current.stamps[at].max(stamp);
        if order == Order::SeqCst {
            self.sc_stores[at] = self.sc_stores[at].max(stamp);
        }
        let view = self.carried(views, at, stamp, &new);
        let (epoch, thread) = (views.epoch(), views.thread);
        let store = Store { value, stamp, view, epoch, thread, atomic: read.is_some() };
        self.stored += 1;
        let location = &mut self.locations[at];
        location.stores.insert(index, store);
        if location.last.0 != thread {
            location.other = location.last.1;
        }
        location.last = (thread, self.stored);
        views.tick();
    }

    /// Returns the index of the view that a new store carries, or `NO_VIEW`. An acquire load of the
    /// store merges this view into its thread's view.
    /// - A release store carries the view of its thread.
    /// - Any other store carries the thread's view at the thread's last release fence.
    /// - A read-modify-write adds the view of the store that it read (release sequence).
    fn carried(&mut self, views: &ThreadViews, at: usize, stamp: u32, new: &PendingStore) -> u32 {
        let inherited = new.read.map_or(NO_VIEW, |store| store.view);
        let own = match (releases(new.order), views.has_released) {
            (true, _) => &views.current,
            (false, true) => &views.released,
            (false, false) => return inherited,
        };
        let mut view = *own;
        view.stamps[at] = view.stamps[at].max(stamp);
        if inherited != NO_VIEW {
            view.join(&self.views[inherited as usize], self.used);
        }
        self.views.push(view);
        (self.views.len() - 1) as u32
    }

    /// Returns true if a read-modify-write may read the store at `index` and place its own store
    /// directly behind it. Returns false if another read-modify-write has read this store.
    fn is_open(stores: &[Store], index: usize) -> bool {
        stores.get(index + 1).is_none_or(|next| !next.atomic)
    }

    pub(super) fn update(
        &mut self,
        AccessContext { views, trail }: AccessContext<'_>,
        at: u32,
        order: Order,
        new: impl FnOnce(u64) -> u64,
    ) -> u64 {
        let at = at as usize;
        let floor = self.floor(views, at, order);
        let stores = &self.locations[at].stores;
        let open = || {
            let seen = (0..stores.len()).rev().take_while(|i| stores[*i].stamp >= floor);
            seen.filter(|i| Self::is_open(stores, *i))
        };
        let ways = open().count();
        let chosen = if ways > 1 { trail.choose(ways) } else { 0 };
        let index = open().nth(chosen).unwrap_or(stores.len() - 1);
        let read = self.observe(views, at, index, order);
        let value = new(read.value);
        self.insert(views, at, index + 1, PendingStore { value, order, read: Some(read) });
        read.value
    }

    /// Exchanges the value if the load returns `old`. A failed exchange may return any other value
    /// that is still visible.
    pub(super) fn compare_exchange(
        &mut self,
        AccessContext { views, trail }: AccessContext<'_>,
        at: u32,
        (old, new): (u64, u64),
        (order, fail): (Order, Order),
    ) -> Result<u64, u64> {
        let at = at as usize;
        let (floor, fail_floor) = (self.floor(views, at, order), self.floor(views, at, fail));
        let stores = &self.locations[at].stores;
        let ways = || {
            (0..stores.len()).rev().filter(|i| match stores[*i].value == old {
                true => stores[*i].stamp >= floor && Self::is_open(stores, *i),
                false => stores[*i].stamp >= fail_floor,
            })
        };
        let count = ways().count();
        let chosen = if count > 1 { trail.choose(count) } else { 0 };
        let index = ways().nth(chosen).unwrap_or(stores.len() - 1);
        if stores[index].value != old {
            return Err(self.observe(views, at, index, fail).value);
        }
        let read = self.observe(views, at, index, order);
        self.insert(views, at, index + 1, PendingStore { value: new, order, read: Some(read) });
        Ok(old)
    }

    /// Takes a lock. The thread always reads the last store to the lock's word, so the explorer
    /// need not try older stores.
    pub(super) fn take_lock(&mut self, views: &mut ThreadViews, at: u32) {
        let (at, last) = (at as usize, self.locations[at as usize].stores.len() - 1);
        let read = self.observe(views, at, last, Order::Acquire);
        let new = PendingStore { value: 1, order: Order::Acquire, read: Some(read) };
        self.insert(views, at, last + 1, new);
    }

    /// Releases a lock. The store is placed at the end of modification order.
    pub(super) fn give_lock(&mut self, views: &mut ThreadViews, at: u32) {
        let (at, len) = (at as usize, self.locations[at as usize].stores.len());
        self.insert(views, at, len, PendingStore { value: 0, order: Order::Release, read: None });
    }

    pub(super) fn last(&self, at: u32) -> u64 {
        self.locations[at as usize].stores.last().map_or(0, |store| store.value)
    }

    pub(super) fn stored_by_others(&self, at: u32, thread: usize) -> u64 {
        let location = &self.locations[at as usize];
        if usize::from(location.last.0) == thread { location.other } else { location.last.1 }
    }

    pub(super) fn newer(&self, at: u32, stamp: u32) -> Option<u32> {
        let stores = &self.locations[at as usize].stores;
        stores.iter().map(|store| store.stamp).find(|other| *other > stamp)
    }

    pub(super) fn fence(&mut self, views: &mut ThreadViews, order: Order) {
        if acquires(order) {
            let acquired = views.acquired;
            views.current.join(&acquired, self.used);
        }
        if order == Order::SeqCst {
            let known = &mut views.current.stamps;
            raise(known, &self.sc_fences, self.used);
            raise(known, &self.sc_stores, self.used);
            self.sc_fences = *known;
            self.raise_fenced(&views.current);
        }
        if releases(order) {
            views.released = views.current;
            views.has_released = true;
            views.tick();
        }
    }

    /// Records, for a SeqCst fence, the latest store to each location that happened before the
    /// fence. Later SeqCst accesses must not read older stores.
    fn raise_fenced(&mut self, known: &View) {
        for (location, fenced) in self.locations[..self.used].iter().zip(&mut self.sc_fenced) {
            let before = |store: &&Store| known.has(store.thread, store.epoch);
            if let Some(last) = location.stores.iter().rev().find(before) {
                *fenced = (*fenced).max(last.stamp);
            }
        }
    }
}
