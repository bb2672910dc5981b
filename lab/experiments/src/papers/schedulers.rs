//! `schedulers`: who goes first at a drive, and what that costs, on simulated machines.
//!
//! No paper: \[MQ\] leaves I/O scheduling to the software queues, and this is what that comes to
//! here. `points` says what a point is (clients at a drive under a scheduler), `runs` which points
//! a part needs and what they gave, `limit_accuracy` how a limit is judged, `figures` and `tables`
//! show it, `checks` compares it with what each scheduler promises. Nothing here knows a result.
//! Called by `millrace-lab paper`.

mod checks;
mod figures;
mod limit_accuracy;
mod points;
mod runs;
mod tables;

use crate::load::bench::BenchError;
use crate::page::{Page, ReferenceKind};
use crate::papers::{self, Paper, PartSelection, Tell};

use runs::Results;

fn run(wanted: PartSelection<'_>, tell: &mut Tell<'_>) -> Result<Page, BenchError> {
    papers::repeat(&PAPER, wanted, tell, |results: &Results, parts, page| Page {
        against: ReferenceKind::Promise,
        checks: checks::all(results),
        figures: figures::all(parts, results),
        tables: tables::all(parts, results),
        ..page
    })
}

/// The paper, as the table of all has it.
pub(super) const PAPER: Paper = Paper {
    name: "schedulers",
    title: "Schedulers, shares, limits and latency targets on simulated machines",
    intro: &INTRO,
    parts: &["scaling", "weights", "equal", "shallow", "target", "limits", "idle", "disk"],
    run,
    mechanisms: papers::mechanisms::<points::Point>,
};

const INTRO: [&str; 4] = [
    "The block layer with each of its schedulers, unmodified, on modelled machines in virtual time: \
     what groups get of a drive, whom a scheduler makes wait, and what it costs on many cores. \
     Bjorling et al., Linux Block IO, SYSTOR 2013, leave scheduling in the software queues open.",
    "A client is a thread on a CPU of its own, which keeps its depth in flight. Unless a table says \
     otherwise it does random reads of 4 KiB at depth 32, in a group of its own of weight 100. \
     Latency is the client's: from before an I/O is submitted until it is polled, whatever holds \
     it. Warm-up is cut off.",
    "Cost is by the model that the scheduler has too: a base for each I/O and a price for each \
     byte, out of the drives' data sheets. A share is a client's part of the cost of all.",
    "Scaling and limits: a null drive with a queue for each core, on a server of today, 512-byte \
     reads. All else: one modelled drive on a machine of 12 cores. The 850 EVO class has one queue \
     of 32 commands, the 950 Pro class 8 queues.",
];
