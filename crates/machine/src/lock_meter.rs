//! `LockMeter`: statistics of the process's native locks, on demand.
//!
//! The module owns the switch, which every native lock reads when it is acquired, and a table of
//! counts for each thread. While the switch is off, locks use nothing else of this file. While the
//! switch is on, an acquisition reads the clock once if the lock is free and twice if the lock is
//! contended, and a release reads the clock once. Kernel counterparts: lockmeter, `perf lock`.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::vec::Vec;

use crate::lock_row::{Hold, LockCounts, LockRow, Site, lock_table};
use crate::{Machine, Meter, Native, lock_unpoisoned};

/// Time at which the statistics were turned on, in nanoseconds; 0 if they are off.
#[repr(align(128))]
struct MeterSwitch(AtomicU64);

static SINCE_NS: MeterSwitch = MeterSwitch(AtomicU64::new(0));

/// Lock statistics per lock name and call site. Lookups are linear, because the list is short. The
/// compiler may create several `Location`s, and thus several entries, for one call site.
type Rows = Vec<(&'static str, Site, LockCounts)>;

struct MeterTables {
    ended: Rows,
    threads: Vec<Arc<Mutex<Rows>>>,
}

static TABLES: Mutex<MeterTables> =
    Mutex::new(MeterTables { ended: Vec::new(), threads: Vec::new() });

std::thread_local! {
    static ROWS: Arc<Mutex<Rows>> = {
        let rows = Arc::new(Mutex::new(Rows::new()));
        lock_unpoisoned(&TABLES).threads.push(Arc::clone(&rows));
        rows
    };
}

fn add(rows: &mut Rows, name: &'static str, site: Site, counts: &LockCounts) {
    let same = |row: &&mut (&'static str, Site, LockCounts)| {
        core::ptr::eq(row.1, site) && core::ptr::eq(row.0, name)
    };
    match rows.iter_mut().find(same) {
        Some((_, _, sum)) => sum.add(counts),
        None => rows.push((name, site, *counts)),
    }
}

/// Adds counts to this thread's table. Does nothing if the statistics are off, or were turned on
/// after `began_ns`. If `began_ns` is `u64::MAX`, adds the counts whenever the statistics are on.
fn count(name: &'static str, site: Site, counts: &LockCounts, began_ns: u64) {
    // Does nothing on a thread that is ending and has destroyed `ROWS` already.
    let _ = ROWS.try_with(|rows| {
        let mut rows = lock_unpoisoned(rows);
        // Relaxed: `LockMeter::start` sets `SINCE_NS`, and then locks this table's mutex to clear
        // the table. So either this load returns the new time, or the entry added below is cleared.
        let since_ns = SINCE_NS.0.load(Ordering::Relaxed);
        if since_ns != 0 && began_ns >= since_ns {
            add(&mut rows, name, site, counts);
        }
    });
}

/// Statistics of all native locks of the process, from [`LockMeter::start`] until this value is
/// dropped. Locks made of atomic words must be enabled separately: see the block layer's
/// `Disk::meter_locks`.
#[derive(Debug)]
pub struct LockMeter {
    since_ns: u64,
}

impl LockMeter {
    /// Starts new statistics. Returns `None` if another `LockMeter` exists.
    #[must_use]
    pub fn start() -> Option<LockMeter> {
        let mut tables = lock_unpoisoned(&TABLES);
        let now_ns = Native::now().max(1);
        // Relaxed: `start` locks and clears each thread's table after it has exchanged `SINCE_NS`.
        // A thread reads `SINCE_NS` while its table is locked. So a thread sees the new value, or
        // its counts are cleared.
        let (old, relaxed) = (0, Ordering::Relaxed);
        SINCE_NS.0.compare_exchange(old, now_ns, relaxed, relaxed).ok()?;
        tables.ended.clear();
        tables.threads.retain(|rows| {
            lock_unpoisoned(rows).clear();
            // Drop the table of a thread that has ended. While a thread runs, its thread-local
            // variable holds a second reference to its table.
            Arc::strong_count(rows) > 1
        });
        Some(LockMeter { since_ns: now_ns })
    }

    /// Returns the statistics so far, ordered by lock name. A lock that is held now is counted when
    /// it is released. The call delays another thread only while it reads that thread's own table,
    /// or if that thread counts its first lock meanwhile.
    #[must_use]
    pub fn rows(&self) -> Vec<LockRow> {
        let mut tables = lock_unpoisoned(&TABLES);
        let MeterTables { ended, threads } = &mut *tables;
        threads.retain(|rows| {
            let runs = Arc::strong_count(rows) > 1;
            if !runs {
                lock_unpoisoned(rows)
                    .iter()
                    .for_each(|(name, site, counts)| add(ended, name, site, counts));
            }
            runs
        });
        let mut all = ended.clone();
        threads.iter().for_each(|rows| all.extend(lock_unpoisoned(rows).iter().copied()));
        drop(tables);
        lock_table(all.into_iter().map(|(name, site, counts)| (name, site.into(), counts)))
    }

    /// Returns the time since these statistics were started, in nanoseconds.
    #[must_use]
    pub fn elapsed_ns(&self) -> u64 {
        Native::now().saturating_sub(self.since_ns)
    }
}

impl Drop for LockMeter {
    fn drop(&mut self) {
        // Relaxed: a lock may notice late that the statistics were turned off. No other data depend
        // on `SINCE_NS`.
        SINCE_NS.0.store(0, Ordering::Relaxed);
    }
}

/// [`Meter`] of the native machine, for the locks that the block layer builds from words.
#[derive(Debug, Clone, Copy)]
pub struct NativeMeter;

impl Meter for NativeMeter {
    const ALWAYS: bool = false;

    #[inline(always)]
    fn is_on() -> bool {
        // Relaxed: a lock may notice late that the statistics were turned on or off.
        SINCE_NS.0.load(Ordering::Relaxed) != 0
    }

    #[inline]
    fn now() -> u64 {
        Native::now()
    }

    fn count_hold(name: &'static str, hold: &Hold, counts: &LockCounts) {
        count(name, hold.site, counts, hold.since_ns());
    }

    fn count_rejection(name: &'static str, site: Site, wait_ns: u64) {
        count(name, site, &LockCounts::rejection(wait_ns), u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Lock, NativeLock, Thread};
    use core::sync::atomic::AtomicBool;
    use std::boxed::Box;
    use std::time::Duration;

    /// Starts the meter as soon as no other test has it.
    fn start() -> LockMeter {
        loop {
            match LockMeter::start() {
                Some(meter) => return meter,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    fn rows(meter: &LockMeter, name: &str) -> Vec<LockRow> {
        meter.rows().into_iter().filter(|row| row.name == name).collect()
    }

    #[test]
    fn rows_tell_names_places_waits_and_holds_of_all_threads() {
        let lock = Arc::new(NativeLock::new("metered-test", 0u32));
        let meter = start();
        let guard = lock.lock();
        assert!(lock.try_lock().is_none());
        let other = Arc::clone(&lock);
        let waits = Arc::new(AtomicBool::new(false));
        let about_to_wait = Arc::clone(&waits);
        let body = Box::new(move || {
            about_to_wait.store(true, Ordering::SeqCst);
            *other.lock() += 1;
        });
        let thread = Native::spawn("waiter", None, body);
        while !waits.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(100));
        drop(guard);
        assert!(thread.join());
        assert_eq!(*lock.lock(), 1);
        let (rows, again) = (rows(&meter, "metered-test"), rows(&meter, "metered-test"));
        assert_eq!(rows, again, "threads that have ended are not forgotten");
        assert_eq!(rows.len(), 5, "the sum and four places: {rows:?}");
        let sum = rows[0].counts;
        assert_eq!(rows[0].site, None);
        assert_eq!((sum.acquisitions, sum.contended, sum.rejected), (3, 2, 1), "{sum:?}");
        assert!(sum.wait_ns >= 20_000_000 && sum.hold_ns_max >= 40_000_000, "{sum:?}");
        assert!(sum.hold_ns >= sum.hold_ns_max, "{sum:?}");
        let tried = rows[2].counts;
        assert_eq!((tried.acquisitions, tried.rejected, tried.hold_ns), (0, 1, 0), "{tried:?}");
        let waited = rows[3].counts;
        assert_eq!((waited.contended, waited.rejected), (1, 0), "the thread's place: {waited:?}");
    }

    #[test]
    fn nothing_is_counted_without_a_meter_and_each_starts_at_zero() {
        let lock = NativeLock::new("switched-test", 0u32);
        *lock.lock() += 1;
        let guard = lock.lock();
        let meter = start();
        drop(guard);
        assert_eq!(rows(&meter, "switched-test"), [], "taken before");
        let guard = lock.lock();
        drop(meter);
        let meter = start();
        drop(guard);
        assert_eq!(rows(&meter, "switched-test"), [], "taken in an earlier one's time");
        *lock.lock() += 1;
        assert_eq!(rows(&meter, "switched-test")[0].counts.acquisitions, 1);
        assert!(meter.elapsed_ns() > 0);
        drop(meter);
        *lock.lock() += 1;
        let meter = start();
        assert_eq!(rows(&meter, "switched-test"), []);
    }

    #[test]
    fn there_is_one_meter_at_a_time() {
        let meter = start();
        assert!(LockMeter::start().is_none());
        drop(meter);
        drop(start());
    }
}
