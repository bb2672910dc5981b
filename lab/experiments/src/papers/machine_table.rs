//! Table of a machine's constants, each with its origin.
//!
//! The end of a page shows the table, which has every field of the machine's `Model`.

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

pub(crate) fn of_costs(name: &str, about: &str, costs: &[(&str, &Cost)]) -> MachineTable {
    let constants = costs.iter().map(|(name, of)| cost(name, of)).collect();
    MachineTable { name: name.into(), about: about.into(), constants }
}

pub(crate) fn of(model: &Model) -> MachineTable {
    let (cache, cpu, threads, work) = (&model.cache, &model.cpu, &model.threads, &model.work);
    let boards = match model.sockets_per_board {
        0 => 1,
        per_board => model.sockets.div_ceil(per_board),
    };
    let fairness = threads.fairness.iter().flat_map(|fairness| {
        [
            cost(
                "difference of run times above which a woken thread preempts the running one",
                &fairness.granularity,
            ),
            cost("largest lead in run time that a thread gains by sleeping", &fairness.credit),
        ]
    });
    let near = (cache.near.turns > 0).then(|| {
        turns("most consecutive transfers of a contended cache line within a socket", &cache.near)
    });
    let siblings = model.hyper_threads.iter().map(|threads| Constant {
        name: format!("speed of a core with {} busy hyper-threads", threads.per_core),
        value: format!("{} times that with one", threads.gain.factor),
        origin: threads.gain.origin.to_string(),
    });
    MachineTable {
        name: model.name.clone(),
        about: format!(
            "{} sockets of {} cores at {} GHz, {boards} board(s)",
            model.sockets, model.cores_per_socket, model.ghz
        ),
        constants: [
            cost("cache line: from the CPU's own cache", &cache.l1),
            transfer("cache line: from another core of the socket", &cache.socket),
            transfer("cache line: from a socket one hop away", &cache.one_hop),
            transfer("cache line: from a socket two hops away", &cache.two_hops),
            transfer("cache line: from a socket on another board", &cache.board),
            cost("cache line: from memory", &cache.memory),
            rate("bandwidth of the link between sockets", &cache.link),
            rate("bandwidth of the link between boards", &cache.board_link),
            share(
                "fraction of spinning CPUs that re-read a lock's line before the next holder does",
                &cache.spinner,
            ),
            cost("additional cost of a locked instruction", &cpu.locked),
            cost("fence", &cpu.fence),
            cost("reading the clock", &cpu.clock_read),
            cost("one iteration of a spin loop", &cpu.spin_poll),
            cost("system call", &threads.system_call),
            cost("context switch", &threads.context_switch),
            cost("waking a thread", &threads.wake),
            cost("delay until a woken thread runs", &threads.wake_latency),
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
            lines("cache lines that the single queue's lock protects", &work.request_queue),
            share("random variation of the work costs", &work.jitter),
        ]
        .into_iter()
        .chain(near)
        .chain(fairness)
        .chain(siblings)
        .collect(),
    }
}
