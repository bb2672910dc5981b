//! `atc17`: the experiments of \[FALCON\] on a machine of its kind, in virtual time.
//!
//! `rigs` says what the drives hang on and what a point is, `runs` which points a part needs and
//! what they gave, `figures` draws them, `checks` compares them with what the paper says. Nothing
//! here knows a result: machines' files and drives' presets are the only input. One submitting
//! thread through libaio, RAID-0, or a program of `programs`; served as Linux does (per-volume),
//! by a worker for each drive (per-drive), and as this layer does besides (inline, auto). Called by
//! `millrace-lab paper`.

mod checks;
mod figures;
mod rigs;
mod runs;
mod tables;

use crate::load::bench::BenchError;
use crate::page::Page;
use crate::papers::{self, Paper, PartSelection, Tell};
use crate::simulation::FileCosts;

use runs::Results;

fn run(wanted: PartSelection<'_>, tell: &mut Tell<'_>) -> Result<Page, BenchError> {
    let costs = FileCosts::linux_4_4()?;
    papers::repeat(&PAPER, wanted, tell, |results: &Results, parts, page| {
        let mut page = Page {
            checks: checks::all(results),
            figures: figures::all(parts, results),
            tables: tables::all(parts, results),
            ..page
        };
        page.add_machines([tables::rig()]);
        if parts.iter().any(|part| OF_FILES.contains(part)) {
            page.add_machines([tables::files_cost(&costs)]);
        }
        page
    })
}

/// Parts with a file system or a page cache.
const OF_FILES: [&str; 4] = ["buffered", "ext4", "servers", "utilities"];

/// The paper, as the table of all has it.
pub(super) const PAPER: Paper = Paper {
    name: "atc17",
    title: "Per-drive processing for volumes of several SSDs, repeated on a simulated machine",
    intro: &INTRO,
    parts: &[
        "scaling",
        "stripes",
        "controllers",
        "watermarks",
        "latency",
        "ideal",
        "tags",
        "fairness",
        "nvme",
        "auto",
        "buffered",
        "ext4",
        "graph",
        "servers",
        "utilities",
    ],
    run,
    mechanisms: papers::mechanisms::<rigs::Point>,
};

const INTRO: [&str; 8] = [
    "The block layer that serves volumes, unmodified, on a modelled machine with modelled drives in \
     virtual time: the experiments of Kumar and Huang, Falcon: Scaling IO Performance in Multi-SSD \
     Volumes, USENIX ATC 2017.",
    "Given to the model: the rates of one core with a null drive (SYSTOR 2013) without fio's own \
     part, which this paper took out by a replayer, what SCSI adds to them (Intel's comparison of \
     stacks), published latencies, and the drives' data sheets. Nothing else is taken from this \
     paper; everything else is output.",
    "One submitting thread on CPU 0 through libaio, RAID-0 with chunks of 4 KiB unless a figure says \
     otherwise, 64 I/Os in flight for each drive, all that are free submitted at once. Random I/Os \
     are of 4 KiB, sequential ones of 64 KiB. Times are taken for each I/O. Warm-up is cut off; 100 \
     ms are measured, a second of auto, which tries both ways, and where drives are compared: which \
     of them the I/Os in flight wait for changes slowly.",
    "Behind the HBA the drives share what its driver (mpt3sas of Linux 4.4) and the SCSI mid-layer \
     did for every command: one lock around the table of commands, taken three times, in a line that \
     is read without the lock, too, and one word \
     that counts commands, written twice. Behind the SCU they share the word, the lock around \
     its driver (isci), and interrupts that wait for more completions the more is in flight; the \
     AHCI ports share nothing.",
    "Workers of drives 1 to 5, and the ideal system's threads in their place, run on the other CPUs of the submitter's socket, which is the \
     controller's; those of 6 to 8 on the other socket: the paper's machine has hyper-threads, the \
     model has cores only.",
    "Who serves a drive's queue is interrupted for what it finds done: the submitter, or the \
     drive's worker. Each look that finds something costs one interrupt. A SATA drive raises one \
     for nearly every completion, so this spares whoever is busy elsewhere and finds many at once: \
     the submitter more than the workers.",
    "Programs (buffered, servers, utilities) are threads of their own that call the cache, which is \
     this layer's write-back cache over the same volume: one flusher on CPU 0 collects, sorts and \
     merges, and the volume serves what it sends as the row says. Dirty memory is bounded, and \
     writers are slowed down before the bound. A call goes through the layer like a command at the \
     machine's prices; what Linux takes besides is in the table linux-4.4, and assumed. \
     Operations of the program are counted.",
    "Drives: 8 of the Samsung 850 EVO class behind an HBA with 10,140 tags for all, or 2 on AHCI \
     ports with 32 tags each; 4 of the Intel 520 class on SATA II ports of an SCU with 250 tags for \
     all; one of the Samsung 950 Pro class. Each takes at most its own 32 (950 Pro: 1,024 a queue) \
     commands, and a die of it (32, 16 and 32 of them) reads one page at a time, so that its rate \
     over depth follows from how many I/Os meet at a die. The controllers' links are not modelled: they carry more than the drives do.",
];
