//! `ols02`: the experiments of \[OLS\] on a machine of its kind, in virtual time.
//!
//! `rigs` says what a step is and what is run of it, `runs` which points a part needs and what they
//! gave, `figures` and `tables` show them, `checks` compares them with what the paper says;
//! `native` counts and measures the same settings on this machine. Nothing here knows a result: the
//! files of machine and kernel and the paper's inputs are all that is given. Called by
//! `millrace-lab paper`.

mod checks;
mod figures;
mod native;
mod rigs;
mod runs;
mod tables;

use crate::load::bench::BenchError;
use crate::page::Page;
use crate::papers::{self, Paper, PartSelection, Tell};
use crate::simulation::KernelCosts;

use runs::Results;

/// What checks go by: what was simulated, and what was counted here.
struct Evidence<'a> {
    results: &'a Results,
    calls: Option<[native::Calls; 2]>,
}

fn run(wanted: PartSelection<'_>, tell: &mut Tell<'_>) -> Result<Page, BenchError> {
    let costs = KernelCosts::linux_2_4()?;
    let mut here = None;
    let mut page = papers::repeat(&PAPER, wanted, tell, |results: &Results, parts, page| {
        // Nothing can be left out of what this machine does: measured once.
        let here = here.get_or_insert_with(|| measured(parts));
        let calls = here.as_ref().ok().and_then(|here| here.0);
        Page {
            checks: checks::all(&Evidence { results, calls }),
            figures: figures::all(parts, results),
            tables: tables::all(parts, results),
            ..page
        }
    })?;
    page.tables.extend(here.transpose()?.and_then(|here| here.1));
    page.add_machines([tables::kernel(&costs), tables::rig()]);
    Ok(page)
}

/// What was counted here, and the table of what was measured here.
type NativeResults = (Option<[native::Calls; 2]>, Option<crate::page::DataTable>);

/// What these parts want of this machine.
fn measured(parts: &[&str]) -> Result<NativeResults, BenchError> {
    let calls = parts.contains(&"calls").then(native::calls).transpose()?;
    let table = parts.contains(&"native").then(native::table).transpose()?;
    Ok((calls, table))
}

/// The paper, as the table of all has it.
pub(super) const PAPER: Paper = Paper {
    name: "ols02",
    title: "Improving Linux block I/O for enterprise workloads, repeated on a simulated machine",
    intro: &INTRO,
    parts: &["dm", "readv", "dsw", "calls", "native", "ablations"],
    run,
    mechanisms: papers::mechanisms::<rigs::Case>,
};

const INTRO: [&str; 5] = [
    "The block layer's single-queue stack with the settings of 2002, on a modelled machine in \
     virtual time: the experiments of Wong, Pulavarty, Nagar, Morgan, Lahr, Hartner, Franke and \
     Bhattacharya, Improving Linux Block I/O for Enterprise Workloads, Ottawa Linux Symposium 2002.",
    "Given to the model: adapters of 60 MB/s and 150 us a command, and the times for which lockmeter \
     found io_request_lock held in SB (__make_request 3.8 us, interrupt 20, dispatch 13, unplug \
     8.8). What bounces and buffer heads take is out of published profiles of such a kernel, named \
     below. Rates, spinning \
     and idle time are output.",
    "Baseline: 512-byte buffer heads, each of which takes the one lock and is merged under it, and \
     bounces. SB: without bounces. SBI: a lock for each disk's queue; adapters' drivers stay under \
     the old lock. SBIR: 4 KiB buffer heads. SBIRV: a vector is one I/O. 2.5.17: one bio for what a \
     read holds; queues and drivers under a lock for each adapter.",
    "Interrupts and the bottom half, which copies what was bounced and of which 2.4 ran one at a \
     time, are on CPU 0 and nothing else is; processes are spread over CPUs 1 to 7 and stay there. \
     Disks read ahead: what follows the last read costs its transfer only.",
    "Not modelled: 2.4's unfair spin locks; task queue disk, by which a process that waits unplugs \
     the queues of others as well; the scheduler's run queue lock, and processes that move; the \
     bus's load by copies and DMA; a shortage of low memory for bounces; in 2.5.17 the command \
     time of 2.4's driver is kept.",
];

/// Nanoseconds that a process of the database's workload computes after each read of 64 KiB: input
/// from one row. SBIRV has 55 % of eight CPUs in user mode; if its six adapters are what bounds it,
/// 360 MB/s are a read in 182 us, of which 4.4 CPUs give 801 us to the program. User time over the
/// metric of interest is the same in all rows of the paper: 16.0 to 16.8 % for Baseline's rate.
const DSW_COMPUTE_NS: u64 = 801_000;

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::page::Verdict;

    #[test]
    fn calls_are_counted_and_the_other_checks_are_listed_as_not_there() {
        let page = run(PartSelection::new(&["calls"], 7), &mut |_| ControlFlow::Continue(()))
            .expect("it runs");
        let ids: Vec<&str> = page.checks.iter().map(|check| check.id.as_str()).collect();
        let paper = ["ols.dm-read", "ols.dm-readv", "ols.dsw", "ols.calls", "ols.lock-share"];
        assert_eq!(ids, paper);
        let of = |holds| page.checks.iter().filter(move |check| check.holds == holds);
        assert_eq!(of(Verdict::NotYet).count(), 4);
        let numbers = &page.checks[3].ours.numbers;
        assert_eq!(numbers[..], [32_768.0, 4_096.0, 32_768.0, 4_096.0, 32_640.0, 3_968.0]);
    }

    #[test]
    fn one_lock_for_all_disks_is_what_cpus_spin_on_and_a_run_is_the_same_again() {
        let page = || {
            run(PartSelection::new(&["dm"], 7), &mut |_| ControlFlow::Continue(()))
                .expect("it runs")
        };
        let (first, second) = (page(), page());
        assert_eq!(first.json(), second.json());
        let share = first.checks.iter().find(|check| check.id == "ols.lock-share");
        assert!(share.is_some_and(|check| check.ours.numbers[0] > 0.3), "{share:?}");
        let machines: Vec<&str> = first.machines.iter().map(|table| table.name.as_str()).collect();
        assert_eq!(machines, ["p3-8way", "linux-2.4", "disks and adapters"]);
    }
}
