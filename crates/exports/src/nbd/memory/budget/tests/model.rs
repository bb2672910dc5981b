//! Random threads and clients on a budget, compared with plain rules at every step.
//!
//! A client asks for memory, waits in the line, gives memory back, leaves, or has its memory kept
//! by a stuck drive. A thread looks at its clients when its bell rings, as a worker does. Once no
//! thread has to check its clients, no client may still wait that the rules would serve.

use millrace_block::GroupId;
use proptest::prelude::*;

use super::*;

const THREADS: usize = 3;
const CLIENTS: usize = 24;
const MAX: usize = 64 * MIB;
const WINDOWS: usize = 16 * MIB;
const KEPT: usize = 4 * MIB;
const SIZES: [usize; 8] =
    [16 * KIB, 64 * KIB, 256 * KIB, 512 * KIB, 2 * MIB, 4 * MIB, 16 * MIB, 32 * MIB];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Client {
    Idle,
    Waits(MemoryWaiter),
    Holds(MemoryWaiter),
    Stuck(MemoryWaiter),
}

struct World {
    budget: Arc<MemoryBudget>,
    clients: [Client; CLIENTS],
    /// Waiting clients in the order in which they joined the line.
    order: Vec<usize>,
    is_rung: [bool; THREADS],
}

fn region(waiter: &MemoryWaiter) -> usize {
    waiter.bytes.max(REGION_BYTES)
}

impl World {
    fn new() -> World {
        World {
            budget: MemoryBudget::new(MAX, 1024),
            clients: [Client::Idle; CLIENTS],
            order: Vec::new(),
            is_rung: [false; THREADS],
        }
    }

    fn waiter(&self, client: usize) -> MemoryWaiter {
        match self.clients[client] {
            Client::Waits(waiter) => waiter,
            other => panic!("{client} does not wait: {other:?}"),
        }
    }

    /// Returns the bytes of regions of a size class that clients hold and no stuck drive keeps.
    fn held(&self, class: usize) -> usize {
        let held = self.clients.iter().filter_map(|client| match client {
            Client::Holds(waiter) if waiter.class() == class => Some(region(waiter)),
            _ => None,
        });
        held.sum()
    }

    fn stuck(&self) -> usize {
        let stuck = self.clients.iter().filter_map(|client| match client {
            Client::Stuck(waiter) => Some(region(waiter)),
            _ => None,
        });
        stuck.sum()
    }

    /// Returns true if a request has room in its account, and if it has room in all of them.
    fn account_room(&self, waiter: &MemoryWaiter) -> (bool, bool) {
        let held = |is_counted: &dyn Fn(&MemoryWaiter) -> bool| {
            let counted = self.clients.iter().filter_map(|client| match client {
                Client::Holds(one) if one.account.is_some() && is_counted(one) => Some(one.bytes),
                _ => None,
            });
            counted.sum::<usize>()
        };
        let class = waiter.class();
        let own = held(&|one| one.account == waiter.account);
        let of_class = held(&|one| one.class() == class);
        let smaller = (0..class).map(|class| KEPT.max(held(&|one| one.class() == class)));
        let larger = held(&|one| one.class() > class).min(MAX / 2 - (class + 1) * KEPT);
        let all = smaller.sum::<usize>() + of_class + larger;
        let is_free = waiter.account.is_none();
        let fits = |held, all, part| is_free || held == 0 || all + waiter.bytes <= MAX / part;
        (fits(own, own, 8), fits(of_class, all, 2))
    }

    /// Returns true if a client is the next to get memory, given all clients before it in the line.
    fn is_turn(&self, waiter: &MemoryWaiter, before: &[usize]) -> bool {
        if self.account_room(waiter) != (true, true) {
            return false;
        }
        let mut are_all_full = [false; SIZE_CLASSES];
        for (place, client) in before.iter().enumerate() {
            let other = self.waiter(*client);
            let has_mate = |earlier: &usize| self.waiter(*earlier).account == other.account;
            if other.account.is_some() {
                let (own, all) = self.account_room(&other);
                if waiter.account == other.account {
                    return false;
                }
                if are_all_full[other.class()] || !own || before[..place].iter().any(has_mate) {
                    continue;
                }
                if !all {
                    are_all_full[other.class()] = true;
                    continue;
                }
            }
            let smaller = (0..other.class()).map(|class| {
                let more = if class == waiter.class() { REGION_BYTES } else { 0 };
                KEPT.max(self.held(class) + more)
            });
            let needed = WINDOWS + self.stuck() + smaller.sum::<usize>() + region(&other);
            if other.class() <= waiter.class() || needed > MAX {
                return false;
            }
        }
        waiter.account.is_none() || !are_all_full[waiter.class()]
    }

    fn has_memory(&self, waiter: &MemoryWaiter) -> bool {
        let of = |class| {
            let kept = if class < waiter.class() { KEPT } else { 0 };
            kept.max(self.held(class))
        };
        let needed = WINDOWS + self.stuck() + (0..3).map(of).sum::<usize>() + region(waiter);
        needed <= MAX
    }

    /// Tries a client's request, as `WorkerContext::buffer` does.
    fn attempt(&mut self, client: usize, waiter: MemoryWaiter) {
        let place = self.order.iter().position(|one| *one == client);
        let before = &self.order[..place.unwrap_or(self.order.len())];
        let expected = self.is_turn(&waiter, before) && self.has_memory(&waiter);
        let has_memory = self.budget.admit(waiter, MemoryPart::Shared, region(&waiter));
        assert_eq!(has_memory, expected, "{client} {waiter:?}");
        let is_refused = self.budget.refusal(waiter.bytes, MemoryPart::Shared).is_some();
        if has_memory || is_refused {
            let now = if has_memory { Client::Holds(waiter) } else { Client::Idle };
            self.leave(client, waiter, now);
        } else if place.is_none() {
            self.clients[client] = Client::Waits(waiter);
            self.order.push(client);
            self.budget.change_line(|line| line.waiters.push_back(waiter));
        }
    }

    fn leave(&mut self, client: usize, waiter: MemoryWaiter, now: Client) {
        self.clients[client] = now;
        if self.order.contains(&client) {
            self.order.retain(|one| *one != client);
            self.budget.change_line(|line| line.leave(waiter.thread, waiter.serial));
        }
    }

    /// Lets a thread retry its clients in the line, as `Worker::retry_memory_waits` does.
    fn look(&mut self, thread: usize) {
        for class in 0..SIZE_CLASSES {
            while let Some(turn) = self.budget.next(class)
                && turn.thread == thread
            {
                self.attempt(turn.index, turn);
                if matches!(self.clients[turn.index], Client::Waits(_)) {
                    break;
                }
            }
        }
        self.end_turn();
    }

    fn end_turn(&mut self) {
        if self.budget.is_wanted() && self.budget.take_news() {
            self.is_rung = [true; THREADS];
        }
    }

    /// Takes a step of a client. Returns false if the client's state does not allow it.
    fn step(&mut self, (step, client, size, group): (u8, usize, usize, u16)) -> bool {
        let account = (group < 3).then_some(GroupAccount { group: GroupId(group), is_read: true });
        let (thread, bytes) = (client % THREADS, SIZES[size]);
        let new = MemoryWaiter { thread, index: client, serial: client as u64, bytes, account };
        match (step, self.clients[client]) {
            (0..4, Client::Idle) => self.attempt(client, new),
            (4, Client::Waits(waiter)) => self.leave(client, waiter, Client::Idle),
            (5, Client::Holds(waiter)) if client % 4 == 0 => {
                self.clients[client] = Client::Stuck(waiter);
                self.budget.recount(region(&waiter), waiter.class(), STUCK);
                self.credit(waiter);
            }
            (6, Client::Stuck(waiter)) => {
                self.budget.recount(region(&waiter), STUCK, waiter.class());
                self.give(client, waiter);
            }
            (7.., Client::Holds(waiter)) => {
                self.credit(waiter);
                self.give(client, waiter);
            }
            _ => return false,
        }
        self.end_turn();
        true
    }

    fn credit(&mut self, waiter: MemoryWaiter) {
        if let Some(account) = waiter.account {
            self.budget.change_line(|line| line.credit(account, waiter.bytes));
        }
    }

    fn give(&mut self, client: usize, waiter: MemoryWaiter) {
        self.clients[client] = Client::Idle;
        self.budget.unmap(waiter.class(), region(&waiter));
        self.budget.announce();
    }

    fn check(&self) {
        let mapped = (0..3).map(|class| self.held(class)).sum::<usize>() + self.stuck();
        assert_eq!(self.budget.mapped_bytes(), mapped);
        assert!(mapped <= MAX - WINDOWS, "the windows are nobody else's: {mapped}");
        assert_eq!(self.budget.has_waiters(), !self.order.is_empty());
        if self.is_rung != [false; THREADS] {
            return;
        }
        for (place, client) in self.order.iter().enumerate() {
            let waiter = self.waiter(*client);
            let is_refused = self.budget.refusal(waiter.bytes, MemoryPart::Shared).is_some();
            let is_next = self.budget.next(waiter.class()) == Some(waiter);
            let is_turn = self.is_turn(&waiter, &self.order[..place]);
            let goes_on = is_turn && (self.has_memory(&waiter) || is_refused);
            assert_eq!(is_next, is_turn, "{client} {waiter:?}");
            assert!(!goes_on, "{client} is forgotten: {waiter:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn turns_follow_the_rules_and_nobody_is_forgotten(
        steps in proptest::collection::vec(
            (0u8..12, 0..CLIENTS, 0..SIZES.len(), 0u16..6),
            1..300,
        ),
        looks in any::<u64>(),
    ) {
        let mut world = World::new();
        for (number, step) in steps.into_iter().enumerate() {
            world.step(step);
            // A thread that is rung checks its clients at once, or some steps later.
            let thread = (number + (looks >> (number % 64)) as usize % 7) % THREADS;
            if std::mem::take(&mut world.is_rung[thread]) {
                world.look(thread);
            }
            world.check();
        }
        // Finally all memory is freed, so every waiting client must be served.
        for round in 0.. {
            while let Some(thread) = world.is_rung.iter().position(|is_rung| *is_rung) {
                world.is_rung[thread] = false;
                world.look(thread);
                world.check();
            }
            let gives = (0..CLIENTS).any(|client| [6, 7].iter().any(|step| {
                world.step((*step, client, 0, 0))
            }));
            if !gives {
                break;
            }
            prop_assert!(round < 100);
        }
        prop_assert!(world.order.is_empty() && !world.budget.has_waiters());
        prop_assert_eq!(world.budget.mapped_bytes(), 0);
    }
}
