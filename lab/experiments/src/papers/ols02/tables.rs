//! The tables of \[OLS\]'s repetition: rows beside the paper's, lock statistics, where time went.
//!
//! One row per step, per lock and place, per kind of work, per mechanism left out.

use millrace_trace::LockLine;

use super::checks::{PAPER_DM, PAPER_DSW, PAPER_READV};
use super::rigs::{Ablation, Case, Load, Step};
use super::runs::{DM, DSW, READV, Results, ablated, dsw, locks, shown};
use crate::page::{DataTable, MachineTable};
use crate::papers::{inputs, machine_table};
use crate::simulation::{KernelCosts, ObservedRow, TimeUse};

/// The tables of these parts.
pub(super) fn all(parts: &[&str], results: &Results) -> Vec<DataTable> {
    parts.iter().flat_map(|part| of(*part, results)).collect()
}

fn of(part: &str, results: &Results) -> Vec<DataTable> {
    match part {
        "dm" => {
            let mut tables = vec![rows(results, ("rows-dm", "DM"), (Load::Dm, &DM), &PAPER_DM)];
            tables.extend([Step::Sb, Step::Sbi].map(|step| lockmeter(results, step)));
            tables.push(profile(results));
            tables
        }
        "readv" => {
            let steps = (Load::DmReadv, &READV[..]);
            vec![rows(results, ("rows-readv", "DM by readv"), steps, &PAPER_READV)]
        }
        "dsw" => vec![database(results)],
        "ablations" => vec![ablations(results)],
        _ => Vec::new(),
    }
}

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

fn rows(
    results: &Results,
    (id, title): (&str, &str),
    (load, steps): (Load, &[Step]),
    paper: &[(f64, f64)],
) -> DataTable {
    let row = |(step, theirs): (&Step, &(f64, f64))| {
        let Some(row) = results.shown(*step, load) else { return vec![step.name().to_owned()] };
        vec![
            step.name().to_owned(),
            format!("{:.0}", row.mb_per_s),
            format!("{:.0}", theirs.0),
            percent(row.idle),
            format!("{:.0} %", theirs.1),
            percent(row.spin),
        ]
    };
    DataTable::new(
        (id, title),
        "MB/s and parts of all eight CPUs' time. CPU 0 runs interrupts and the bottom half only.",
        ["step", "MB/s", "paper", "idle", "paper", "spinning"],
        steps.iter().zip(paper).map(row).collect(),
    )
}

/// What lockmeter had of the old lock in SB, in words.
const LOCKMETER: &str = "The paper's, of SB: all locks 66.8 % of CPU; io_request_lock 66.2 %, \
                         taken 15.6 M times, hold 5.2 us, spin 65 us; hold by function: \
                         __make_request 3.8 us, interrupt 20, dispatch 13, unplug 8.8. All four are \
                         inputs here; the unplug's is charged where it finds a request, so its \
                         mean is less.";

fn lockmeter(results: &Results, step: Step) -> DataTable {
    let seen = results.at(Case::new(step, Load::Dm));
    let lines = seen.map_or(&[][..], locks);
    let shown = lines.iter().filter(|line| NAMES.contains(&line.name.as_str()));
    let rows = shown.map(|line| {
        let place = place(line, lines);
        vec![
            line.name.clone(),
            place,
            percent(line.held_share),
            percent(line.contended_share),
            us(line.hold_ns_mean),
            us(line.wait_ns_mean),
            percent(line.spin_share * 7.0 / 8.0),
            line.acquisitions.to_string(),
        ]
    });
    let caption = match step {
        Step::Sb => LOCKMETER.to_owned(),
        _ => "The paper's, of SBI: all locks 13.9 % of CPU, the old one 7.6 %. The old lock is \
              io-request, under which adapters' drivers still work; request-queue is each disk's \
              own, and its utilisation that of all together."
            .to_owned(),
    };
    DataTable::new(
        (
            &format!("locks-{}", step.name().to_lowercase()),
            format!("Lock statistics, {}", step.name()),
        ),
        &caption,
        ["lock", "taken by", "utilisation", "contended", "hold, us", "spin, us", "of CPU", "taken"],
        rows.collect(),
    )
}

/// Locks that the tables show.
const NAMES: [&str; 2] = ["io-request", "request-queue"];

fn us(ns: u64) -> String {
    format!("{:.1}", ns as f64 / 1e3)
}

/// The kernel's function that a place in the source stands for; places of a file come in the order
/// of their lines.
fn place(line: &LockLine, all: &[LockLine]) -> String {
    const LAYER: [&str; 3] = ["__make_request", "request_fn", "end of request"];
    const ADAPTER: [&str; 2] = ["dispatch", "interrupt"];
    let Some(site) = &line.site else { return "all".to_owned() };
    let (file, _) = site.rsplit_once(':').unwrap_or((site, ""));
    let number = |site: &str| site.rsplit_once(':').and_then(|(_, line)| line.parse::<u32>().ok());
    let others = all.iter().filter(|other| other.name == line.name);
    let before = others.filter_map(|other| other.site.as_deref());
    let before = before.filter(|other| other.starts_with(file) && number(other) < number(site));
    let known: &[&str] = match file {
        file if file.ends_with("sq.rs") => &LAYER,
        file if file.ends_with("linux24.rs") => &ADAPTER,
        _ => &[],
    };
    known.get(before.count()).map_or_else(|| site.clone(), |name| (*name).to_owned())
}

fn profile(results: &Results) -> DataTable {
    let seen: Vec<Option<&ObservedRow>> =
        DM.iter().map(|step| results.at(Case::new(*step, Load::Dm))).collect();
    let all = |seen: &ObservedRow| {
        (seen.cpus.busy_ns + seen.cpus.spin_ns + seen.cpus.idle_ns).max(1) as f64
    };
    let line = |name: &str, part: &dyn Fn(&ObservedRow) -> u64| {
        let cell = |seen: &Option<&ObservedRow>| {
            seen.map_or(String::new(), |seen| percent(part(seen) as f64 / all(seen)))
        };
        [name.to_owned()].into_iter().chain(seen.iter().map(cell)).collect::<Vec<_>>()
    };
    let mut rows =
        vec![line("idle", &|seen| seen.cpus.idle_ns), line("spinning", &|seen| seen.cpus.spin_ns)];
    for (spent, name) in TimeUse::NAMES.iter().take(TimeUse::NAMES.len() - 1) {
        rows.push(line(name, &|seen| seen.spent_ns.get(*spent as usize).copied().unwrap_or(0)));
    }
    let charged = |seen: &ObservedRow| seen.spent_ns.iter().sum::<u64>();
    rows.push(line("queue, raw device, scheduler, caches", &|seen| {
        seen.cpus.busy_ns.saturating_sub(charged(seen))
    }));
    DataTable::new(
        ("profile", "Where the CPUs' time went, DM"),
        "Parts of all eight CPUs' time. The paper's profile of Baseline: idle 52 %, bounce 8 %.",
        ["what"].into_iter().chain(DM.map(Step::name)),
        rows,
    )
}

fn database(results: &Results) -> DataTable {
    let first = results.shown(DSW[0], dsw()).map_or(1.0, |row| row.mb_per_s);
    let row = |(step, theirs): (&Step, &[f64; 3])| {
        let Some(row) = results.shown(*step, dsw()) else { return vec![step.name().to_owned()] };
        vec![
            step.name().to_owned(),
            format!("{:.0}", row.mb_per_s),
            format!("{:.2}", row.mb_per_s / first),
            percent(row.user),
            percent(1.0 - row.user - row.idle),
            percent(row.idle),
            format!("{:.0}/{:.0}/{:.0}", theirs[0], theirs[1], theirs[2]),
        ]
    };
    DataTable::new(
        ("rows-dsw", "DSW"),
        "48 processes on six adapters, each reading 64 KiB by a vector of 16 and computing for 801 \
         us, the same in all rows. Input: SBIRV's 55 % of user time, if six adapters of 60 MB/s \
         bound it; user time of the other rows is output.",
        ["step", "MB/s", "over Baseline", "user", "kernel", "idle", "paper, %"],
        DSW.iter().zip(&PAPER_DSW).map(row).collect(),
    )
}

fn ablations(results: &Results) -> DataTable {
    let row = |(name, point): (String, Case)| {
        let Some(row) = results.at(point).map(shown) else { return vec![name] };
        let load = if point.load == Load::Dm { "DM" } else { "readv" };
        let with = results.shown(point.step, point.load);
        let with = |part: fn(&super::runs::RowSummary) -> f64| {
            with.as_ref().map_or(String::new(), |row| format!("{:.0}", part(row)))
        };
        vec![
            name,
            format!("{}, {load}", point.step.name()),
            format!("{:.0}", row.mb_per_s),
            with(|row| row.mb_per_s),
            percent(row.idle),
            with(|row| row.idle * 100.0),
            percent(row.spin),
            with(|row| row.spin * 100.0),
        ]
    };
    let points = Ablation::ALL.into_iter().flat_map(|(without, name)| {
        ablated(without).into_iter().map(move |point| (name.to_owned(), point))
    });
    DataTable::new(
        ("ablations", "Without each mechanism"),
        "No part of the paper: one mechanism left out at a time. Beside: with all, if it was run.",
        ["without", "step", "MB/s", "with", "idle", "with, %", "spinning", "with, %"],
        points.map(row).collect(),
    )
}

/// The constants of the kernel.
pub(super) fn kernel(costs: &KernelCosts) -> MachineTable {
    machine_table::of_costs(
        &costs.name,
        "Linux 2.4.17 beside the layer, with the work of the machine",
        &costs.entries(),
    )
}

/// What stands behind the machine's bus.
pub(super) fn rig() -> MachineTable {
    let disk = inputs::DriveOrigins {
        preset: "ultrastar-36lzx",
        rates: "published: 4.9 ms of seek and 2.99 ms of half a revolution: Bryant, O'Hallaron, Computer \
                Systems: A Programmer's Perspective, 2003, figure 6.13 (coursehero.com/file/5936594), \
                looked up",
        bandwidth: "published: sustained 21 to 36 MB/s, of which the fastest zone: Bryant, O'Hallaron, as \
                    above, looked up",
        latency: "published: seek, half a revolution and transfer of the above, looked up; writes, which \
                  nothing here does, an assumption",
        inside: "assumption: seeks to the next track; 10,000 rpm and 4.9 ms are published: Bryant, \
                 O'Hallaron, as above, looked up",
    };
    let others = [
        [
            "adapter: bandwidth",
            "60 MB/s",
            "input: [OLS], about what an adapter does; four of them bound four rows of DM at 240 MB/s",
        ],
        [
            "adapter: a command",
            "150 us",
            "input: [OLS], about what a command takes; it bounds reads of 4 KiB, so readv of SBIR is no \
             prediction; in 2.5.17 it is the same, though the paper's 150 MB/s say less",
        ],
        [
            "DSW: computing after a read of 64 KiB",
            "801 us",
            "input: [OLS], user time of SBIRV, if its six adapters bound it: 55 % of eight CPUs for a \
             read each 182 us",
        ],
    ];
    let about = "What stands behind the bus, and what DSW computes.";
    inputs::table("disks and adapters", about, (&[disk], &others))
}
