//! The tables of \[FALCON\]'s repetition: what has too few numbers for a plot.
//!
//! One row for each load; columns are the ways of serving.

use millrace_block::Serving;

use super::figures::{HBA, SCU};
use super::rigs::{GRAPHS, of_file};
use super::rigs::{LOADS, Load, Point, Rig};
use super::runs::{BUFFERED, CHOSEN, COMPARED, Choice, Results, SERVINGS, choices};
use crate::page::{DataTable, MachineTable};
use crate::papers::{inputs, machine_table};
use crate::programs::{Task, servers, utilities};
use crate::simulation::FileCosts;

/// The tables of these parts.
pub(super) fn all(parts: &[&str], results: &Results) -> Vec<DataTable> {
    parts.iter().filter_map(|part| one(*part, results)).collect()
}

fn one(part: &str, results: &Results) -> Option<DataTable> {
    Some(match part {
        "controllers" => table(
            "rates",
            "Rates on the controllers",
            "Thousands of I/Os a second: 4 KiB random, 64 KiB sequential. The last columns are \
             per-drive over per-volume, ours and the paper's.",
            controllers(results),
        ),
        "latency" => table(
            "latency",
            "One I/O at a time",
            "Mean latency of 4 KiB on eight drives on the HBA. Below the low watermark the \
             submitting thread serves the drives itself.",
            LOADS[..2].iter().map(|load| latency(results, *load)).collect(),
        ),
        "nvme" => table(
            "nvme",
            "A single NVMe drive",
            "Thousands of 4 KiB random reads a second. A single drive is served by the submitting \
             thread in every mode; the per-volume path keeps one request back to merge with.",
            vec![rates(results, Point::on(Rig::Nvme, LOADS[0], Serving::PerDrive), Some(1.13))],
        ),
        "auto" => chosen(results),
        "buffered" => compared(
            "buffered",
            "Buffered writes",
            "Thousands of 4 KiB writes a second of eight threads through a write-back cache of 64 \
             MiB, on CPUs that no worker has; the cache's flusher is on CPU 0. See that the \
             flusher alone feeds more drives when it only batches.",
            BUFFERED.map(|drives| buffered(results, drives)).to_vec(),
        ),
        "ext4" => compared(
            "ext4",
            "A file on ext4",
            "Thousands of direct 4 KiB I/Os a second, of the volume and of a file on it. See what a \
             file costs either way; what it adds is an assumption, in the table of linux-4.4.",
            LOADS[..2].iter().zip([1.77, 1.59]).flat_map(|row| files(results, row)).collect(),
        ),
        "graph" => graph(results),
        "servers" => compared(
            "servers",
            "Servers",
            "Thousands of operations a second of filebench's personalities: 50, 100 and 100 threads \
             on all CPUs but the flusher's, a gibibyte of files on eight drives, memory for an \
             eighth of it. See which mix waits for drives.",
            servers::Kind::ALL
                .into_iter()
                .zip([1.39, 1.6, 2.0])
                .map(|(kind, paper)| program(results, Task::Server(kind), paper))
                .collect(),
        ),
        "utilities" => compared(
            "utilities",
            "Copies, tar and untar",
            "Thousands of pages a second of one thread through the cache, with read-ahead of up to \
             512 KiB; the other end of a copy is memory. See that a single thread gains where the \
             flusher or the read-ahead is what it waits for.",
            utilities::Kind::ALL
                .into_iter()
                .zip([1.63, 2.81, 1.29, 1.09])
                .map(|(kind, paper)| program(results, Task::Utility(kind), paper))
                .collect(),
        ),
        _ => return None,
    })
}

/// The constants of files.
pub(super) fn files_cost(costs: &FileCosts) -> MachineTable {
    machine_table::of_costs(
        &costs.name,
        "Linux 4.4 for files, beside the layer, with the work of the machine",
        &costs.entries(),
    )
}

/// A table of the paper's two ways of serving, our gain and the paper's.
fn compared(id: &str, title: &str, caption: &str, rows: Vec<Vec<String>>) -> DataTable {
    let head = ["load", "per-volume", "per-drive", "per-drive over per-volume", "paper"];
    DataTable::new((id, title), caption, head, rows)
}

/// Rates of a point served in both ways, in thousands.
fn both(results: &Results, (name, point): (String, Point), paper: Option<f64>) -> Vec<String> {
    let rate = |serving| results.iops(point.served(serving));
    let gain = results.gain(point.served(Serving::PerDrive), Serving::PerVolume);
    let rates = COMPARED.map(|serving| or_dash(rate(serving).map(|r| format!("{:.1}", r / 1e3))));
    let factors = [gain, paper].map(|factor| or_dash(factor.map(|f| format!("{f:.2}"))));
    [name].into_iter().chain(rates).chain(factors).collect()
}

fn buffered(results: &Results, drives: u32) -> Vec<String> {
    let point = Point::program(Task::Writers, Serving::PerDrive).drives(drives);
    let paper = if drives == 4 { 1.38 } else { 1.59 };
    both(results, (format!("{drives} drives"), point), Some(paper))
}

fn program(results: &Results, task: Task, paper: f64) -> Vec<String> {
    let point = Point::program(task, Serving::PerDrive);
    both(results, (task.name().to_owned(), point), Some(paper))
}

fn files(results: &Results, (load, paper): (&Load, f64)) -> [Vec<String>; 2] {
    let point = Point::on(Rig::Hba, *load, Serving::PerDrive);
    [
        both(results, (format!("{}, volume", load.name), point), None),
        both(results, (format!("{}, file", load.name), of_file(point)), Some(paper)),
    ]
}

fn graph(results: &Results) -> DataTable {
    let rates = GRAPHS.map(|(jobs, serving)| {
        results.iops(Point::program(Task::Graph(jobs), serving)).map(|rate| (jobs, serving, rate))
    });
    let ours = rates[0].map(|(_, _, rate)| rate);
    let row = |((jobs, serving, rate), paper): ((u32, Serving, f64), &str)| {
        let factor = ours.map(|ours| format!("{:.2}", ours / rate));
        vec![
            format!("{jobs} submitting, {}", serving.name()),
            format!("{:.1}", rate / 1e3),
            or_dash(factor),
            paper.to_owned(),
        ]
    };
    let rows = rates.into_iter().flatten().zip(["-", "4.12", "1.78"]).map(row).collect();
    let caption = "Thousands of pages of edges a second: PageRank over a graph of 2^18 vertices and \
         8.4 million edges (R-MAT), which lie on the volume by their source, read list by list with \
         512 reads in flight in all. See how many threads the per-volume path needs to keep up. \
         What an engine computes, and its own copy of pages, are not modelled.";
    let head = ["threads", "pages", "first row over this", "paper"];
    DataTable::new(("graph", "A graph engine"), caption, head, rows)
}

/// The way chosen by itself beside those that it chooses from.
fn chosen(results: &Results) -> DataTable {
    let row = |choice: Choice| {
        let rates = choice.map(|point| results.iops(point));
        let [auto, inline, per_drive] = rates;
        let share = Some(auto? / inline?.max(per_drive?));
        let cells = rates.map(|rate| or_dash(rate.map(|rate| format!("{:.1}", rate / 1e3))));
        let last = or_dash(share.map(|share| format!("{:.1} %", share * 100.0)));
        Some([choice[0].about()].into_iter().chain(cells).chain([last]).collect())
    };
    let caption = "No part of the paper: thousands of I/Os a second with 64 in flight for each drive or \
         one in all; `auto` over 1 s, in which it goes on trying the other way, the others over a \
         tenth of it.";
    let head = ["row"].into_iter().chain(CHOSEN.map(Serving::name)).chain(["of the better"]);
    let rows = choices().into_iter().filter_map(row).collect();
    DataTable::new(("auto", "The way chosen by itself"), caption, head, rows)
}

/// A table with a column for each way of serving, then our gain and the paper's.
fn table(id: &str, title: &str, caption: &str, rows: Vec<Vec<String>>) -> DataTable {
    let last = ["per-drive over per-volume", "paper"];
    let head = ["load"].into_iter().chain(SERVINGS.map(Serving::name)).chain(last);
    DataTable::new((id, title), caption, head, rows)
}

fn controllers(results: &Results) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for (rig, theirs) in [(Rig::Ahci, None), (Rig::Scu, Some(SCU)), (Rig::Hba, Some(HBA))] {
        for (number, load) in LOADS.into_iter().enumerate() {
            let point = Point::on(rig, load, Serving::PerDrive);
            rows.push(rates(results, point, theirs.map(|factors| factors[number])));
        }
    }
    rows
}

fn or_dash(value: Option<String>) -> String {
    value.unwrap_or_else(|| "-".into())
}

fn rates(results: &Results, point: Point, paper: Option<f64>) -> Vec<String> {
    let rate = |serving| results.iops(point.served(serving));
    let gain = results.gain(point.served(Serving::PerDrive), Serving::PerVolume);
    let name = format!("{} x {}, {}", point.rig.name(), point.drives, point.load.name);
    let rates = SERVINGS.map(|serving| or_dash(rate(serving).map(|r| format!("{:.1}", r / 1e3))));
    let factors = [gain, paper].map(|factor| or_dash(factor.map(|f| format!("{f:.2}"))));
    [name].into_iter().chain(rates).chain(factors).collect()
}

fn latency(results: &Results, load: Load) -> Vec<String> {
    let mean = |serving| {
        let seen = results.at(Point::on(Rig::Hba, load, serving).single())?;
        Some(seen.row.lat_ns.mean as f64)
    };
    let cells = SERVINGS.map(|s| or_dash(mean(s).map(|ns| format!("{:.2} us", ns / 1e3))));
    let factor = mean(Serving::PerDrive)
        .zip(mean(Serving::PerVolume))
        .map(|(ours, linux)| format!("{:.3}", ours / linux));
    let last = [or_dash(factor), "0.97".into()];
    [load.name.to_owned()].into_iter().chain(cells).chain(last).collect()
}

/// The drives, and what is counted in their adapters' drivers.
pub(super) fn rig() -> MachineTable {
    let evo = "published: Samsung's figures for 500 GB in a review of overclockers.com, looked up";
    let pro = "published: Samsung's figures for 512 GB in a review of ubergizmo.com, looked up";
    let drives = [
        inputs::DriveOrigins {
            preset: "850evo",
            rates: evo,
            bandwidth: evo,
            latency: "published: 10 K and 40 K IOPS at depth 1: Samsung's figures as above, looked up",
            inside: "assumption: what the latency leaves, for a die; that there are 32 is published: \
                     AnandTech, Samsung SSD 850 EVO Review, December 2014, page 2, looked up",
        },
        inputs::DriveOrigins {
            preset: "950pro",
            rates: pro,
            bandwidth: pro,
            latency: "published: 12 K and 43 K IOPS at depth 1: Samsung's figures as above, looked up",
            inside: "assumption: what the latency leaves, for a die; that there are 32 follows from two \
                     packages of 256 GB and dies of 128 Gbit: AnandTech, Samsung 960 Pro review, \
                     October 2016, looked up",
        },
        inputs::DriveOrigins {
            preset: "520-sata2",
            rates: "published: reads of the family in Intel 325968-001US (studylib.net/doc/14761671), looked \
                    up; writes of 480 GB, from memory",
            bandwidth: "input: [FALCON], the SCU has SATA II",
            latency: "published: 60 MB/s of random reads at depth 3: AnandTech, February 2012; writes an \
                      assumption",
            inside: "assumption: 16 dies, half of what ITmedia counted at 240 GB; pages of 16 KiB",
        },
    ];
    let others = [
        [
            "lookup lock: takes for a command",
            "3",
            "counted: mpt3sas of 4.4: mpt3sas_base_get_smid_scsiio, _scsih_scsi_lookup_get_clear, \
             mpt3sas_base_free_smid",
        ],
        [
            "host_busy and device_busy: writes for a command",
            "2 each",
            "counted: scsi_host_queue_ready, scsi_dev_queue_ready and scsi_device_unbusy of 4.4",
        ],
        [
            "controller lock of the SCU: takes",
            "2 for a command, 1 for an interrupt",
            "counted: isci of 4.4: isci_task_execute_task and the start of a request, \
             isci_host_completion_routine",
        ],
        [
            "coalescing of the SCU: wait with one command in flight",
            "4.267 us, twice as long for each doubling",
            "counted: isci of 4.4: sci_controller_set_interrupt_coalescence, means of its table",
        ],
        [
            "high and low pressure point, a drive",
            "1024 and 896 I/Os, our own defaults",
            "assumption: the paper gives none; falcon.ideal hangs on the low one",
        ],
        [
            "in flight, a drive",
            "8 MiB",
            "assumption: the paper's replayer submits as fast as it can; twice the high pressure point \
             in chunks of 4 KiB",
        ],
    ];
    let about = "The drives, what their adapters' drivers do for each command, and what limits I/Os in \
                 flight.";
    inputs::table("drives and drivers", about, (&drives, &others))
}
