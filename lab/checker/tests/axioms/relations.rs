//! The axioms, decided by enumeration: every choice of where each read reads from, and of an order
//! of the writes of each word; kept is what breaks no axiom.
//!
//! Events are numbered; the first two are the initial writes. A relation is a row of bits for each
//! event. Not fast, and nothing clever: it is what the checked machine is compared with.

use std::collections::BTreeSet;

use millrace_machine::Order::{self, AcqRel, Acquire, Relaxed, Release, SeqCst};

use super::{Op, Outcome, Program};

type Relation = [u16; 16];
const EMPTY: Relation = [0; 16];

/// One memory access or fence of an execution graph whose reads-from relation is known.
#[derive(Debug, Clone, Copy)]
struct Event {
    thread: usize,
    /// Word that the event accesses; `None` for a fence.
    word: Option<usize>,
    reads: bool,
    writes: bool,
    order: Order,
    op: Option<Op>,
}

fn compose(a: &Relation, b: &Relation) -> Relation {
    a.map(|row| (0..16).filter(|j| row >> j & 1 == 1).fold(0, |out, j| out | b[j]))
}

fn union(a: &Relation, b: &Relation) -> Relation {
    std::array::from_fn(|i| a[i] | b[i])
}

fn inverse(a: &Relation) -> Relation {
    std::array::from_fn(|i| (0..16).filter(|j| a[*j] >> i & 1 == 1).fold(0, |out, j| out | 1 << j))
}

fn closure(a: &Relation) -> Relation {
    let mut all = *a;
    for k in 0..16 {
        for i in 0..16 {
            if all[i] >> k & 1 == 1 {
                all[i] |= all[k];
            }
        }
    }
    all
}

fn reflexive(a: &Relation) -> Relation {
    std::array::from_fn(|i| a[i] | 1 << i)
}

fn has_loop(a: &Relation) -> bool {
    (0..16).any(|i| a[i] >> i & 1 == 1)
}

/// Rows and columns of only these events.
fn between(from: u16, a: &Relation, to: u16) -> Relation {
    std::array::from_fn(|i| if from >> i & 1 == 1 { a[i] & to } else { 0 })
}

/// Everything that a program may do.
pub fn allowed(program: &Program) -> BTreeSet<Outcome> {
    let initial = |word| Event {
        thread: usize::MAX,
        word: Some(word),
        reads: false,
        writes: true,
        order: Relaxed,
        op: None,
    };
    let mut events = vec![initial(0), initial(1)];
    for (thread, ops) in program.iter().enumerate() {
        for op in ops {
            let (word, reads, writes, order) = match *op {
                Op::Load(at, order) => (Some(at), true, false, order),
                Op::Store(at, _, order) => (Some(at), false, true, order),
                Op::Add(at, _, order) | Op::Exchange(at, _, order, _) => {
                    (Some(at), true, true, order)
                }
                Op::Fence(order) => (None, false, false, order),
            };
            events.push(Event { thread, word, reads, writes, order, op: Some(*op) });
        }
    }
    let mut found = BTreeSet::new();
    let readers: Vec<usize> = (0..events.len()).filter(|i| events[*i].reads).collect();
    let mut sources = vec![usize::MAX; events.len()];
    choose_sources(&events, &readers, &mut sources, &mut found);
    found
}

fn choose_sources(
    events: &[Event],
    readers: &[usize],
    sources: &mut Vec<usize>,
    found: &mut BTreeSet<Outcome>,
) {
    let Some((reader, rest)) = readers.split_first() else {
        return resolve(events, sources, found);
    };
    for source in 0..events.len() {
        let fits = events[source].writes && events[source].word == events[*reader].word;
        if fits && source != *reader {
            sources[*reader] = source;
            choose_sources(events, rest, sources, found);
        }
    }
}

/// Finds out all values, then tries every order of writes.
fn resolve(events: &[Event], sources: &[usize], found: &mut BTreeSet<Outcome>) {
    let count = events.len();
    let mut before = program_order(events);
    for reader in (0..count).filter(|i| events[*i].reads) {
        before[sources[reader]] |= 1 << reader;
    }
    if has_loop(&closure(&before)) {
        return;
    }
    let mut events = events.to_vec();
    let (mut read, mut written) = (vec![None; count], vec![None; count]);
    (written[0], written[1]) = (Some(0), Some(0));
    // Without a loop, a value is known after as many rounds as there are events.
    for _ in 0..count {
        for i in 2..count {
            if events[i].reads {
                read[i] = written[sources[i]];
            }
            match (events[i].op, read[i]) {
                (Some(Op::Store(_, value, _)), _) => written[i] = Some(value),
                (Some(Op::Add(_, value, _)), Some(old)) => written[i] = Some(old + value),
                (Some(Op::Exchange(_, value, ..)), Some(0)) => written[i] = Some(value),
                (Some(Op::Exchange(_, _, _, fail)), Some(_)) => {
                    (events[i].writes, events[i].order) = (false, fail);
                }
                _ => {}
            }
        }
    }
    if (2..count).any(|i| events[i].reads && read[i].is_none()) {
        return; // Something reads from an exchange that failed.
    }
    let own = &events;
    let writes = |word| (2..count).filter(move |i| own[*i].writes && own[*i].word == Some(word));
    let threads = events.iter().filter(|e| e.op.is_some()).map(|e| e.thread + 1).max().unwrap_or(0);
    let mut values = vec![Vec::new(); threads];
    for i in 2..count {
        values[events[i].thread].extend(read[i]);
    }
    for first in permutations(&writes(0).collect::<Vec<_>>()) {
        for second in permutations(&writes(1).collect::<Vec<_>>()) {
            let last = |order: &[usize]| order.last().and_then(|i| written[*i]).unwrap_or(0);
            let outcome = (values.clone(), [last(&first), last(&second)]);
            if !found.contains(&outcome) && is_consistent(&events, sources, [&first, &second]) {
                found.insert(outcome);
            }
        }
    }
}

fn permutations(items: &[usize]) -> Vec<Vec<usize>> {
    if items.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (at, first) in items.iter().enumerate() {
        let rest: Vec<usize> = [&items[..at], &items[at + 1..]].concat();
        all.extend(permutations(&rest).into_iter().map(|tail| [&[*first], &tail[..]].concat()));
    }
    all
}

/// Also the initial writes before everything.
fn program_order(events: &[Event]) -> Relation {
    let mut order = EMPTY;
    for i in 0..events.len() {
        for j in 2.max(i + 1)..events.len() {
            if i < 2 || events[i].thread == events[j].thread {
                order[i] |= 1 << j;
            }
        }
    }
    order
}

fn releases(order: Order) -> bool {
    matches!(order, Release | AcqRel | SeqCst)
}

fn acquires(order: Order) -> bool {
    matches!(order, Acquire | AcqRel | SeqCst)
}

/// Events for which `is` holds, as bits.
fn those(events: &[Event], is: impl Fn(&Event) -> bool) -> u16 {
    (0..events.len()).filter(|i| is(&events[*i])).fold(0, |set, i| set | 1 << i)
}

fn synchronises(events: &[Event], po: &Relation, rf: &Relation) -> Relation {
    let both = those(events, |e| e.reads && e.writes);
    let writes = those(events, |e| e.writes);
    let by_updates = between(u16::MAX, rf, both);
    let sequence = between(writes, &reflexive(&closure(&by_updates)), writes);
    let fence = |is: fn(Order) -> bool| those(events, |e| e.word.is_none() && is(e.order));
    let access = |is: fn(Order) -> bool| those(events, |e| e.word.is_some() && is(e.order));
    let identity = reflexive(&EMPTY);
    let release = union(
        &between(access(releases) & writes, &identity, u16::MAX),
        &between(fence(releases), po, writes),
    );
    let acquire = union(
        &between(access(acquires), &identity, u16::MAX),
        &between(u16::MAX, po, fence(acquires)),
    );
    compose(&compose(&compose(&release, &sequence), rf), &acquire)
}

fn is_consistent(events: &[Event], sources: &[usize], orders: [&Vec<usize>; 2]) -> bool {
    let po = program_order(events);
    let (mut rf, mut mo) = (EMPTY, EMPTY);
    for reader in (0..events.len()).filter(|i| events[*i].reads) {
        rf[sources[reader]] |= 1 << reader;
    }
    for (word, order) in orders.iter().enumerate() {
        let all: Vec<usize> = [&[word], &order[..]].concat();
        for (at, i) in all.iter().enumerate() {
            all[at + 1..].iter().for_each(|j| mo[*i] |= 1 << j);
        }
    }
    let mut fr = compose(&inverse(&rf), &mo);
    (0..16).for_each(|i| fr[i] &= !(1 << i));
    // Atomicity: nothing between what an update reads and what it writes.
    if has_loop(&compose(&fr, &mo)) {
        return false;
    }
    let hb = closure(&union(&po, &synchronises(events, &po, &rf)));
    let eco = closure(&union(&union(&rf, &mo), &fr));
    // An update is one event, so it may not stand before what it reads either.
    if has_loop(&hb) || has_loop(&eco) || has_loop(&compose(&hb, &eco)) {
        return false;
    }
    let sc = sc_order(events, &po, &hb, &eco, &union(&mo, &fr));
    !has_loop(&closure(&union(&sc, &union(&po, &rf))))
}

/// Returns the order of SeqCst operations: `psc` of the paper.
fn sc_order(
    events: &[Event],
    po: &Relation,
    hb: &Relation,
    eco: &Relation,
    mo_fr: &Relation,
) -> Relation {
    let differ = |i: usize, j: usize| events[i].word.is_none() || events[i].word != events[j].word;
    let pairs = |a: &Relation, keep: &dyn Fn(usize, usize) -> bool| -> Relation {
        let row = |i: usize| {
            (0..events.len())
                .filter(|j| a[i] >> j & 1 == 1 && keep(i, *j))
                .fold(0, |r, j| r | 1 << j)
        };
        std::array::from_fn(|i| if i < events.len() { row(i) } else { 0 })
    };
    let po_differ = pairs(po, &differ);
    let hb_same = pairs(hb, &|i, j| events[i].word.is_some() && events[i].word == events[j].word);
    let through = compose(&compose(&po_differ, hb), &po_differ);
    let scb = union(&union(&union(po, &through), &hb_same), mo_fr);
    let access = those(events, |e| e.order == SeqCst);
    let fence = those(events, |e| e.order == SeqCst && e.word.is_none());
    let identity = reflexive(&EMPTY);
    let hb_or_same = reflexive(hb);
    let from = union(&between(access, &identity, u16::MAX), &between(fence, &hb_or_same, u16::MAX));
    let to = union(&between(u16::MAX, &identity, access), &between(u16::MAX, &hb_or_same, fence));
    let base = compose(&compose(&from, &scb), &to);
    let reach = union(hb, &compose(&compose(hb, eco), hb));
    union(&base, &between(fence, &reach, fence))
}
