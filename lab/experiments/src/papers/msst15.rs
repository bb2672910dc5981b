//! `msst15`: the experiments of \[MIOT\] on a machine of its kind, in virtual time.
//!
//! `rigs` says what a point is, `runs` which points a part needs and what they gave, `figures` and
//! `tables` show them, `checks` compares them with what the paper says. Nothing here knows a
//! result: the files of machine and virtualisation and the drive's preset are the only input. A
//! guest with 8 vCPUs on 4 cores; the same workload on the host itself beside it. Called by
//! `millrace-lab paper`.

mod checks;
mod figures;
mod rigs;
mod runs;
mod tables;

use crate::load::bench::BenchError;
use crate::page::Page;
use crate::papers::{self, Paper, PartSelection, Tell};
use crate::vm::VmCosts;

use runs::Results;

fn run(wanted: PartSelection<'_>, tell: &mut Tell<'_>) -> Result<Page, BenchError> {
    let costs = VmCosts::kvm_2015()?;
    papers::repeat(&PAPER, wanted, tell, |results: &Results, parts, mut page| {
        page.add_machines([tables::virtualisation(&costs), tables::rig()]);
        Page {
            checks: checks::all(results),
            figures: figures::all(parts, results),
            tables: tables::all(parts, results),
            ..page
        }
    })
}

/// The paper, as the table of all has it.
pub(super) const PAPER: Paper = Paper {
    name: "msst15",
    title: "Queues and I/O threads for virtual machines, repeated on a simulated machine",
    intro: &INTRO,
    parts: &["null", "nvme", "gap", "threads", "ablations", "effects", "dearer"],
    run,
    mechanisms: papers::mechanisms::<rigs::Point>,
};

const INTRO: [&str; 9] = [
    "A guest, its virtqueues and the I/O threads that serve them, on a modelled host in virtual \
     time: the experiments of Kim, Kang, Lee and Eom, Improving Performance by Bridging the \
     Semantic Gap between Multi-queue SSD and I/O Virtualization Framework, MSST 2015. The block \
     layer of the I/O threads, and the policies that say when to hold submissions back and how \
     long to poll, are this project's own, unmodified; guest, exits and what QEMU adds are \
     modelled.",
    "Given to the model: what a stock kernel takes for an I/O, on the host and in the guest alike \
     (9,300 cycles with an NVMe drive, by published profiles), costs of exits and interrupts as \
     measured on others' machines, assumptions on what QEMU takes, and the drive's limits; each \
     origin says below whether it could be compared with its source. None of it is taken from this \
     paper's results; everything else is output.",
    "4 cores at 3.4 GHz with two hyper-threads each, so 8 CPUs, of which two share a core and do \
     1.25 times together what one does alone. A guest with 8 vCPUs, 1 to 8 processes, process p on \
     vCPU p: 4 KiB random or 32 KiB sequential, 32 outstanding each, submitted one by one. A \
     virtqueue has 128 slots.",
    "vCPUs begin one to a core, then on the siblings; no vCPU is pinned: one that wakes and finds its \
     CPU busy goes to a core that is wholly idle, else to an idle sibling, as select_idle_sibling \
     of Linux 3.17 has it. The one thread of baseline and mq wanders the same way; several I/O \
     threads are pinned, thread i to core i mod 4, then to the siblings.",
    "baseline: one queue for all vCPUs, under its driver's lock, and one I/O thread. mq: a queue \
     for each vCPU, one I/O thread. miot: a queue and an I/O thread for each vCPU, with \
     workload-aware batch submission, which waits for at most 20 us and never for longer than the \
     system calls take that it could save. The interrupt of a queue goes to its vCPU, that of the one queue to vCPU 0, \
     which completes requests of others by IPI.",
    "Notifications are suppressed as by EVENT_IDX in both directions. An exit is counted where the \
     guest stops for a notification, an interrupt while it runs, a halt, or an IPI of its own; \
     context switches are those between threads of the host, not those to idle cores. The host's \
     scheduler is as CFS: who wakes takes the core from who has run for longer by more than a \
     bound. Warm-up is cut off; 300 ms are measured. Shorter is too little: with 8 processes miot \
     does 701 K I/Os in the first 20 ms after its warm-up, 564 K in 100 ms, 526 K in 500 ms, since \
     threads of the host that share a core come to take turns only after a while. And three seeds \
     differ by up to 2 %, baseline by up to 15 %.",
    "QEMU is that of 2.1. Its I/O threads translate each address by a look-up in one map of the \
     guest's memory, 6 look-ups for a request of a page and 2 for each further page. Each takes one \
     mutex, which whoever finds it taken sleeps for, and counts a reference on a shared line. And \
     an interrupt is considered after each request that is done, not after all of them, so that a \
     driver that has just asked for the next is interrupted again.",
    "The host knows nothing of the guest's locks: a vCPU may lose its CPU while it holds the lock of \
     a queue, or while its turn is next, and all others spin meanwhile; who spins for 4,096 cycles \
     exits and lets others have the CPU. Not modelled: threads that an idle CPU pulls from another; \
     the directed yield of a vCPU that spins; caches and TLBs that an exit pollutes; nested paging; \
     an L1 that siblings share; memory bandwidth.",
    "host is the same processes on the host itself through libaio, without a guest.",
];

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;

    #[test]
    fn a_part_gives_the_same_page_each_time_and_more_threads_do_more() {
        let page = || {
            run(PartSelection::new(&["threads"], 7), &mut |_| ControlFlow::Continue(()))
                .expect("it runs")
        };
        let (first, second) = (page(), page());
        assert_eq!((first.html(), first.json()), (second.html(), second.json()));
        let threads = first.checks.iter().find(|check| check.id == "own.threads");
        assert_eq!(threads.map(|check| check.holds), Some(crate::page::Verdict::Yes));
        let machines: Vec<&str> = first.machines.iter().map(|table| table.name.as_str()).collect();
        assert_eq!(machines, ["miot", "miot-nvme", "kvm-2015", "drive"]);
    }
}
