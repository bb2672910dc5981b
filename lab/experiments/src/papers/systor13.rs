//! `systor13`: the experiments of \[MQ\] on its four machines, in virtual time.
//!
//! `runs` lists what is to be run and runs it, each point once; `figures` draws it; `checks`
//! compares it with what the paper says. Nothing here knows a result: the machines' files are the
//! only input. As in the paper: 512-byte random reads of a null drive, one submitting process per
//! core in socket order, 32 outstanding I/Os each submitted one by one (fio's default), or one at a
//! time for latencies. Called by `millrace-lab paper`.

mod checks;
mod figures;
mod runs;

use crate::load::bench::BenchError;
use crate::page::Page;
use crate::papers::{self, Paper, PartSelection, Tell};

use runs::Results;

fn run(wanted: PartSelection<'_>, tell: &mut Tell<'_>) -> Result<Page, BenchError> {
    papers::repeat(&PAPER, wanted, tell, |results: &Results, parts, page| Page {
        checks: checks::all(results),
        figures: figures::all(parts, results),
        tables: figures::tables(parts, results),
        ..page
    })
}

/// The paper, as the table of all has it.
pub(super) const PAPER: Paper = Paper {
    name: "systor13",
    title: "Multi-queue SSD access on multi-core systems, repeated on simulated machines",
    intro: &INTRO,
    parts: &["fig4", "fig6", "fig7", "fig8", "fig9", "fig10", "table2", "today"],
    run,
    mechanisms: papers::mechanisms::<runs::DesignPoint>,
};

const INTRO: [&str; 7] = [
    "The block layer that serves volumes, unmodified, on modelled machines in virtual time: the \
     figures and tables of Bjorling, Axboe, Nellans and Bonnet, Linux Block IO: Introducing \
     Multi-queue SSD Access on Multi-core Systems, SYSTOR 2013.",
    "Given to the model, and marked as input: the rates of one core, spread over the stages of an \
     I/O's way, and published latencies of caches and interconnects. Everything else is output. \
     One set of constants per machine, never one per figure; table 2 alone has a kernel thread \
     besides, whose turn of half of CFS's latency is an assumption that decides its maxima.",
    "512-byte random reads of a null drive that answers at once; a submitting process on each \
     core, in socket order; 32 I/Os in flight for each, submitted one by one as fio does by \
     default, or one at a time for latencies. Software queues per core, hardware queues per \
     socket, unless a figure says otherwise. Turbo, hyper-threading and C-states off.",
    "With MQ several cores are inside a hardware queue at once, each calling the driver, and \
     share its tags and its map of software queues; with SQ each submitter runs the queue itself \
     under its lock, four times an I/O. Loads, stores and atomics have prices of their own, by \
     distance and state. A line that many cores want goes to them in the order in which they ask \
     for it, whatever their sockets.",
    "Beside the layer, as the kernels of the time had them: the inode's count of direct I/Os, one \
     line that every I/O adds to and takes from, synchronous or not; the counters of a hardware \
     queue, one line that all its cores write three times an I/O. Not so the account of I/Os in \
     their partition, which did nothing for MQ up to its merge into Linux 3.13. Each can be left \
     out (--without dio-count, queue-counters) to see its share.",
    "26 constants of the four machines, most of them another processor's, hardly matter here: with \
     the prices of fences, wake-ups, interrupts, context switches and memory doubled all at once, no \
     verdict was another one at seed 1, and no number of a check changed by more than 3 %. What \
     matters is in which order cores get a line that all want, and what spinners of a lock cost \
     its next holder.",
    "Not modelled: store buffers, prefetching, overlapping misses, memory bandwidth, the kernel's \
     memory allocators, other interrupts and threads of the system but for the maxima of table 2 \
     (--without noise).",
];
