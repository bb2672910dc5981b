//! `GuestLock`: a spin lock of the guest's kernel, whose holder may be preempted.
//!
//! A ticket lock in one word, which holds the ticket being served and the next free ticket. The
//! host does not know of the lock: it may preempt a vCPU that holds the lock or has the next
//! ticket, and all other vCPUs then wait for that vCPU. A vCPU that has spun for the window of
//! pause-loop exiting exits to the host, yields its CPU if another thread waits for the CPU, and
//! spins again. With preemption off, `GuestLock` is a lock of the simulated machine, which preempts
//! neither holders nor waiters. Source: `ticket_spin_lock` (arch/x86/include/asm/spinlock.h),
//! `handle_pause` and `ple_window` (arch/x86/kvm/vmx.c), both Linux 3.17. Not modelled: the
//! directed yield of `kvm_vcpu_on_spin`, which makes the host prefer a preempted vCPU, and
//! paravirtual spin locks.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard};

use millrace_machine::{Lock, Machine, Meter, Order, Word};
use millrace_simulator::{Cost, SimGuard, Simulated};

use super::costs::charge;

use millrace_machine::lock_unpoisoned;

type SimLock<T> = <Simulated as Machine>::Lock<T>;
type SimWord = <Simulated as Machine>::Word;

const TICKET: u64 = 1 << 32;
/// A vCPU counts as preempted by the host if it holds the lock for more than this many nanoseconds,
/// or takes the lock more than this many nanoseconds after its turn has come.
const LOST_NS: u64 = 100_000;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LockSeen {
    /// Total time that vCPUs waited for the lock, including time without a CPU, in nanoseconds.
    pub(crate) wait_ns: u64,
    /// Number of VM exits by pause-loop exiting. A vCPU exits after it has spun for
    /// `PauseLoop::window`.
    pub(crate) pauses: u64,
    /// Number of times that the host preempted the vCPU that held the lock or was next to get it.
    /// `LOST_NS` defines when a vCPU counts as preempted.
    pub(crate) lost: u64,
}

impl LockSeen {
    pub(crate) fn plus(self, other: LockSeen) -> LockSeen {
        LockSeen {
            wait_ns: self.wait_ns + other.wait_ns,
            pauses: self.pauses + other.pauses,
            lost: self.lost + other.lost,
        }
    }
}

/// Pause-loop exiting: the time after which a spinning vCPU exits, and the cost of the exit.
#[derive(Debug, Clone)]
pub(super) struct PauseLoop {
    pub(super) window: Cost,
    pub(super) exit: Cost,
}

pub(super) enum GuestLock<T: Send> {
    /// A lock whose holder the host may preempt.
    Preempted(TicketLock<T>),
    /// A lock of the simulator, whose holder is never preempted.
    Left(SimLock<T>),
}

pub(super) struct TicketLock<T> {
    word: SimWord,
    value: Mutex<T>,
    released_ns: Mutex<u64>,
    pause: PauseLoop,
    seen: Mutex<LockSeen>,
}

impl<T: Send> GuestLock<T> {
    /// Creates a lock around `value`. If `pause`, the times of pause-loop exiting, is given, the
    /// host may preempt a vCPU while it holds the lock. Otherwise, the holder is never preempted.
    pub(super) fn new(value: T, pause: Option<PauseLoop>) -> GuestLock<T> {
        match pause {
            None => GuestLock::Left(SimLock::new("virtqueue", value)),
            Some(pause) => GuestLock::Preempted(TicketLock {
                word: SimWord::new(0),
                value: Mutex::new(value),
                released_ns: Mutex::default(),
                pause,
                seen: Mutex::default(),
            }),
        }
    }

    pub(super) fn lock(&self) -> GuestGuard<'_, T> {
        match self {
            GuestLock::Left(inner) => GuestGuard::Left(inner.lock()),
            GuestLock::Preempted(inner) => inner.lock(),
        }
    }

    /// Returns the statistics so far. All are zero for `GuestLock::Left`, a lock of the simulator,
    /// whose waits are in the simulator's own statistics.
    pub(super) fn seen(&self) -> LockSeen {
        match self {
            GuestLock::Left(_) => LockSeen::default(),
            GuestLock::Preempted(inner) => *lock_unpoisoned(&inner.seen),
        }
    }
}

fn now_ns() -> u64 {
    <Simulated as Machine>::Meter::now()
}

impl<T: Send> TicketLock<T> {
    fn lock(&self) -> GuestGuard<'_, T> {
        let start_ns = now_ns();
        // Acquire: pairs with the release in `unlock`.
        let old = self.word.fetch_add(TICKET, Order::Acquire);
        let (mine, serves) = (old >> 32, old & (TICKET - 1));
        if mine != serves {
            self.wait(mine);
            let (now_ns, released_ns) = (now_ns(), *lock_unpoisoned(&self.released_ns));
            let mut seen = lock_unpoisoned(&self.seen);
            seen.wait_ns += now_ns - start_ns;
            let turn_ns = released_ns.max(start_ns);
            seen.lost += u64::from(now_ns.saturating_sub(turn_ns) > LOST_NS);
        }
        let value = self.value.try_lock().expect("the ticket gives exclusive access");
        GuestGuard::Preempted { of: self, value: Some(value), since_ns: now_ns() }
    }

    #[cold]
    fn wait(&self, mine: u64) {
        let turn = || self.word.load(Order::Acquire) & (TICKET - 1) == mine;
        let window_ns = self.pause.window.ns.round() as u64;
        loop {
            Simulated::keep_cpu();
            let came = Simulated::spin_until(now_ns() + window_ns, turn);
            Simulated::release_cpu();
            if came {
                return;
            }
            lock_unpoisoned(&self.seen).pauses += 1;
            charge(&self.pause.exit, 1);
            // Yield the CPU if another host thread waits for the CPU, as `spin_until` does. The
            // condition is never true, so the call ends after 1 ns.
            Simulated::spin_until(now_ns() + 1, || false);
        }
    }

    fn unlock(&self, since_ns: u64) {
        let now_ns = now_ns();
        lock_unpoisoned(&self.seen).lost += u64::from(now_ns - since_ns > LOST_NS);
        *lock_unpoisoned(&self.released_ns) = now_ns;
        // Release: pairs with the acquire of the next holder in `lock`.
        self.word.fetch_add(1, Order::Release);
    }
}

pub(super) enum GuestGuard<'a, T: Send> {
    Left(SimGuard<'a, T>),
    Preempted {
        of: &'a TicketLock<T>,
        /// Guard of the protected value. `None` only during `drop`.
        value: Option<MutexGuard<'a, T>>,
        since_ns: u64,
    },
}

impl<T: Send> Drop for GuestGuard<'_, T> {
    fn drop(&mut self) {
        if let GuestGuard::Preempted { of, value, since_ns } = self {
            // Unlock the value's mutex first, and the ticket lock second. As soon as the ticket
            // lock is free, the next vCPU may take it, and `lock` must then find the mutex free.
            *value = None;
            of.unlock(*since_ns);
        }
    }
}

impl<T: Send> Deref for GuestGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        match self {
            GuestGuard::Left(guard) => guard,
            GuestGuard::Preempted { value, .. } => {
                value.as_ref().expect("the guard holds the value until it is dropped")
            }
        }
    }
}

impl<T: Send> DerefMut for GuestGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match self {
            GuestGuard::Left(guard) => guard,
            GuestGuard::Preempted { value, .. } => {
                value.as_mut().expect("the guard holds the value until it is dropped")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millrace_machine::{CpuId, Parker, Thread};
    use millrace_simulator::{Model, Simulation};

    use super::*;

    /// A vCPU of CPU 0 takes the lock and works under it, until another thread that CPU 0 has is
    /// woken and takes the CPU for 5 ms; a vCPU of CPU 1 waits for the lock.
    fn contended(pause: Option<PauseLoop>) -> (u64, LockSeen) {
        let result = Arc::new(Mutex::new((0, LockSeen::default())));
        let inner = Arc::clone(&result);
        let mut model = Model::plain(1, 3);
        model.threads.fairness = Some(millrace_simulator::Fairness {
            granularity: Cost::new(0.0, "test"),
            credit: Cost::new(1e9, "test"),
        });
        let main = move || {
            let guest = Arc::new(GuestLock::new((), pause));
            let parker = <Simulated as Machine>::Parker::new();
            let spawn = |name: &str, cpu, body: Box<dyn FnOnce() + Send>| {
                Simulated::spawn(name, Some(CpuId(cpu)), body)
            };
            let bell = parker.clone();
            let other = Box::new(move || {
                bell.park(None);
                Simulated::charge(5_000_000);
            });
            let mut threads = vec![spawn("other", 0, other)];
            Simulated::charge(100_000);
            let held = Arc::clone(&guest);
            let holder = Box::new(move || {
                let _held = held.lock();
                let line = SimWord::new(0);
                // Each access is a turn, at which the CPU can be taken.
                (0..900).for_each(|_| Simulated::charge(100 + line.load(Order::Relaxed)));
            });
            threads.push(spawn("holder", 0, holder));
            Simulated::charge(20_000);
            let wanted = Arc::clone(&guest);
            let waiter = Box::new(move || {
                let start_ns = Simulated::now();
                drop(wanted.lock());
                lock_unpoisoned(&inner).0 = Simulated::now() - start_ns;
                lock_unpoisoned(&inner).1 = wanted.seen();
            });
            threads.push(spawn("waiter", 1, waiter));
            Simulated::charge(20_000);
            parker.unpark();
            threads.into_iter().for_each(|thread| assert!(thread.join()));
        };
        Simulation::new(&model, 1)
            .expect("the model must be valid")
            .first_cpu(2)
            .run(main)
            .expect("the run must end");
        let result = lock_unpoisoned(&result);
        *result
    }

    #[test]
    fn who_waits_for_a_holder_without_a_cpu_waits_for_its_scheduler() {
        let pause =
            PauseLoop { window: Cost::new(1_000.0, "test"), exit: Cost::new(500.0, "test") };
        let (waited_ns, seen) = contended(Some(pause));
        assert!(waited_ns > 4_000_000 && seen.lost == 1 && seen.pauses > 1_000, "{seen:?}");
        let (waited_ns, _) = contended(None);
        assert!(waited_ns < 200_000, "its holder keeps its CPU: {waited_ns}");
    }
}
