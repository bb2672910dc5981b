//! Table of a machine's constants, each with its origin.
//!
//! Pure data out of a model, for the end of the page; every field of a model is in it.

use millrace_simulator::{Cost, Lines, Model, Rate, Share, Transfer, Turns};

use crate::page::{Constant, MachineTable};

fn constant(name: &str, value: String, origin: &str) -> Constant {
    Constant { name: name.into(), value, origin: origin.into() }
}

fn cost(name: &str, cost: &Cost) -> Constant {
    constant(name, format!("{} ns", cost.ns), &cost.origin)
}

fn transfer(name: &str, transfer: &Transfer) -> Constant {
    let given = |what: &str, ns: Option<f64>| ns.map(|ns| format!(", {what} {ns}"));
    let Transfer { ns, shared_ns, store_ns, atomic_ns, origin } = transfer;
    let others = [given("shared", *shared_ns), given("store", *store_ns)];
    let others = others.into_iter().chain([given("atomic", *atomic_ns)]).flatten();
    let value = format!("load {ns}{} ns", others.collect::<String>());
    constant(name, value, origin)
}

fn turns(name: &str, turns: &Turns) -> Constant {
    constant(name, turns.turns.to_string(), &turns.origin)
}

fn rate(name: &str, rate: &Rate) -> Constant {
    constant(name, format!("{} GB/s", rate.bytes_per_ns), &rate.origin)
}

fn share(name: &str, share: &Share) -> Constant {
    constant(name, format!("{} %", share.share * 100.0), &share.origin)
}

fn lines(name: &str, lines: &Lines) -> Constant {
    constant(name, format!("{}", lines.lines), &lines.origin)
}

/// Returns the table of costs that are given besides a machine's.
pub(crate) fn of_costs(name: &str, about: &str, costs: &[(&str, &Cost)]) -> MachineTable {
    let constants = costs.iter().map(|(name, of)| cost(name, of)).collect();
    MachineTable { name: name.into(), about: about.into(), constants }
}

/// Returns the table of one machine's constants.
pub(crate) fn of(model: &Model) -> MachineTable {
    let (cache, cpu, threads, work) = (&model.cache, &model.cpu, &model.threads, &model.work);
    let boards = match model.sockets_per_board {
        0 => 1,
        per_board => model.sockets.div_ceil(per_board),
    };
    let fairness = threads.fairness.iter().flat_map(|fairness| {
        [
            cost("lead that a thread loses its CPU for when another wakes", &fairness.granularity),
            cost("most that a sleeper falls behind", &fairness.credit),
        ]
    });
    let near = (cache.near.turns > 0).then(|| {
        turns("times in a row that a contended cache line stays in a socket", &cache.near)
    });
    let siblings = model.hyper_threads.iter().map(|threads| Constant {
        name: format!("a core with {} hyper-threads busy", threads.per_core),
        value: format!("{} times one", threads.gain.factor),
        origin: threads.gain.origin.to_string(),
    });
    MachineTable {
        name: model.name.clone(),
        about: format!(
            "{} sockets of {} cores at {} GHz, {boards} board(s)",
            model.sockets, model.cores_per_socket, model.ghz
        ),
        constants: [
            cost("line in the own cache", &cache.l1),
            transfer("line from another core of the socket", &cache.socket),
            transfer("line from one hop away", &cache.one_hop),
            transfer("line from two hops away", &cache.two_hops),
            transfer("line from the other board", &cache.board),
            cost("line from memory", &cache.memory),
            rate("link between sockets", &cache.link),
            rate("link between boards", &cache.board_link),
            share("re-reads of a lock's line that come before the next holder's", &cache.spinner),
            cost("locked instruction, extra", &cpu.locked),
            cost("fence", &cpu.fence),
            cost("reading the clock", &cpu.clock_read),
            cost("turn of a spinning loop", &cpu.spin_poll),
            cost("system call", &threads.system_call),
            cost("context switch", &threads.context_switch),
            cost("waking a thread", &threads.wake),
            cost("until a woken thread runs", &threads.wake_latency),
            cost("sending an interrupt", &threads.interrupt_send),
            cost("taking an interrupt", &threads.interrupt_handle),
            cost("time slice", &threads.time_slice),
            cost("work: submission interface", &work.interface),
            cost("work: submission in the layer", &work.submit),
            cost("work: insertion", &work.insert),
            cost("work: dispatch", &work.dispatch),
            cost("work: driver", &work.driver),
            cost("work: completion", &work.complete),
            cost("work: examining one entry of a list", &work.search),
            lines("cache lines under the single queue's lock", &work.request_queue),
            share("jitter of work", &work.jitter),
        ]
        .into_iter()
        .chain(near)
        .chain(fairness)
        .chain(siblings)
        .collect(),
    }
}
