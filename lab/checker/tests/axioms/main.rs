//! Random little programs: what the checked machine shows of each is exactly what the axioms allow.
//!
//! The axioms are RC11 (Lahav et al., PLDI 2017) with C++20's release sequences, and with the one
//! order of SeqCst operations following the order of execution; relations.rs decides them for every
//! candidate execution, with no views and no schedule, so the two have nothing in common.
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

mod relations;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use millrace_checker::{Checked, CheckedWord, Explorer};
use millrace_machine::Order::{self, AcqRel, Acquire, Relaxed, Release, SeqCst};
use millrace_machine::{Machine, Thread, Word};

/// One operation on one of two words.
#[derive(Debug, Clone, Copy)]
pub enum Op {
    Load(usize, Order),
    Store(usize, u64, Order),
    Add(usize, u64, Order),
    /// Exchanges 0 for a value.
    Exchange(usize, u64, Order, Order),
    Fence(Order),
}

pub type Program = Vec<Vec<Op>>;
/// Values that each reading operation returned, by thread, and the words' values at the end.
pub type Outcome = (Vec<Vec<u64>>, [u64; 2]);

struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % count
    }

    fn of(&mut self, orders: &[Order]) -> Order {
        orders[self.below(orders.len())]
    }

    /// Every store has a value of its own: 1, 2, 4 and so on.
    fn op(&mut self, value: u64) -> Op {
        let at = self.below(2);
        let any = [Relaxed, Acquire, Release, AcqRel, SeqCst];
        match self.below(10) {
            0..3 => Op::Load(at, self.of(&[Relaxed, Acquire, SeqCst])),
            3..6 => Op::Store(at, value, self.of(&[Relaxed, Release, SeqCst])),
            6 => Op::Add(at, value, self.of(&any)),
            7 => Op::Exchange(at, value, self.of(&any), self.of(&[Relaxed, Acquire, SeqCst])),
            _ => Op::Fence(self.of(&[Acquire, Release, AcqRel, SeqCst, SeqCst])),
        }
    }

    fn program(&mut self, lens: &[usize]) -> Program {
        let mut value = 1;
        let mut next = || {
            value *= 2;
            value / 2
        };
        lens.iter().map(|len| (0..*len).map(|_| self.op(next())).collect()).collect()
    }
}

fn run(op: Op, words: &[CheckedWord; 2]) -> Option<u64> {
    match op {
        Op::Load(at, order) => Some(words[at].load(order)),
        Op::Store(at, value, order) => {
            words[at].store(value, order);
            None
        }
        Op::Add(at, value, order) => Some(words[at].fetch_add(value, order)),
        Op::Exchange(at, value, order, fail) => {
            Some(words[at].compare_exchange(0, value, order, fail).unwrap_or_else(|seen| seen))
        }
        Op::Fence(order) => {
            Checked::fence(order);
            None
        }
    }
}

fn shown(program: &Program) -> BTreeSet<Outcome> {
    let outcomes = Explorer::new().exhaustive().outcomes(|| {
        let words = Arc::new([CheckedWord::new(0), CheckedWord::new(0)]);
        let read = Arc::new(Mutex::new(vec![Vec::new(); program.len()]));
        let mut threads = Vec::new();
        for (index, ops) in program.iter().enumerate() {
            let (words, read, ops) = (Arc::clone(&words), Arc::clone(&read), ops.clone());
            let body = move || {
                let values = ops.iter().filter_map(|op| run(*op, &words)).collect();
                read.lock().unwrap()[index] = values;
            };
            threads.push(Checked::spawn("t", None, Box::new(body)));
        }
        threads.into_iter().for_each(|thread| assert!(thread.join()));
        let values = read.lock().unwrap().clone();
        (values, [words[0].load(Relaxed), words[1].load(Relaxed)])
    });
    outcomes.0
}

fn compare(seed: u64, programs: usize, lens: &[usize]) {
    let mut random = Random(seed);
    let mut total = 0;
    for _ in 0..programs {
        let program = random.program(lens);
        let (shown, allowed) = (shown(&program), relations::allowed(&program));
        let missing: Vec<_> = allowed.difference(&shown).collect();
        let wrong: Vec<_> = shown.difference(&allowed).collect();
        assert!(missing.is_empty() && wrong.is_empty(), "{program:?}: {missing:?}, {wrong:?}");
        total += shown.len();
    }
    println!("{lens:?}: {programs} programs, {total} outcomes, none missing and none wrong");
}

/// Fewer without optimisation, to save time.
fn programs(count: usize) -> usize {
    if cfg!(debug_assertions) { count / 10 } else { count }
}

#[test]
fn two_threads_of_three_operations_show_what_the_axioms_allow() {
    compare(0x2545_f495, programs(2000), &[3, 3]);
}

#[test]
fn three_threads_show_what_the_axioms_allow() {
    compare(0x9e37_79b9, programs(1000), &[2, 2, 2]);
    compare(0x7f4a_7c15, programs(500), &[1, 3, 2]);
}

#[test]
fn four_threads_show_what_the_axioms_allow() {
    compare(0x1234_5671, programs(200), &[1, 1, 2, 2]);
}
