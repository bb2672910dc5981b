//! The tables of \[MIOT\]'s repetition: rates beside the paper's, and what each I/O costs.
//!
//! One row per device and load, or per variant; and the constants of virtualisation.

use super::rigs::{Device, EFFECTS, LOADS, MODES, PROCESSES, Point, VARIANTS};
use super::runs::{DEARER, EFFECT_PROCESSES, Results};
use crate::page::{DataTable, MachineTable};
use crate::papers::{inputs, machine_table};
use crate::vm::{VmCosts, VmResult};

/// The tables of these parts.
pub(super) fn all(parts: &[&str], results: &Results) -> Vec<DataTable> {
    parts.iter().flat_map(|part| of(*part, results)).collect()
}

fn of(part: &str, results: &Results) -> Vec<DataTable> {
    match part {
        "null" => vec![best(results, Device::Null), counts(results, Device::Null)],
        "nvme" => vec![best(results, Device::Nvme), counts(results, Device::Nvme)],
        "ablations" => Device::ALL.map(|device| ablations(results, device)).into_iter().collect(),
        "effects" => Device::ALL.map(|device| effects(results, device)).into_iter().collect(),
        "dearer" => Device::ALL.map(|device| dearer(results, device)).into_iter().collect(),
        _ => Vec::new(),
    }
}

fn id_of(what: &str, device: Device) -> String {
    let device = if device == Device::Null { "null" } else { "nvme" };
    format!("{what}-{device}")
}

/// What the paper states of miot, by device, in words.
const PAPER: [[&str; 4]; 2] = [
    ["440 K IOPS", "350 K IOPS", "9,800 MB/s", "9,200 MB/s"],
    ["460 K IOPS", "300 K IOPS", "2,800 MB/s", "1,300 MB/s"],
];

fn best(results: &Results, device: Device) -> DataTable {
    let row = |(number, load): (usize, &super::rigs::Load)| {
        let most = |served| {
            let rates = (1..=PROCESSES)
                .filter_map(|count| results.iops(Point::guest(device, *load, served, count)));
            let most = rates.fold(0.0, f64::max);
            match load.is_sequential() {
                true => format!("{:.0} MB/s", most * f64::from(load.bs_bytes) / 1e6),
                false => format!("{:.0} K IOPS", most / 1e3),
            }
        };
        let modes = MODES.map(|(_, served)| most(served));
        let theirs = PAPER[usize::from(device == Device::Nvme)][number].to_owned();
        [load.name.to_owned()].into_iter().chain(modes).chain([theirs]).collect()
    };
    DataTable::new(
        (&id_of("best", device), format!("{}: best rates", device.name())),
        "The best of 1 to 8 processes. Last: what the paper states of miot.",
        ["load", "baseline", "mq", "miot", "paper, miot"],
        LOADS.iter().enumerate().map(row).collect(),
    )
}

const COUNTED: [&str; 13] = [
    "variant",
    "K IOPS",
    "latency, us",
    "switches",
    "exits",
    "notified",
    "interrupted",
    "halted",
    "IPIs",
    "interrupts",
    "in a batch",
    "held, %",
    "lock wait, ns",
];

fn counted(name: String, seen: Option<&VmResult>) -> Vec<String> {
    let Some(seen) = seen else { return vec![name] };
    let counts = &seen.counts;
    let ios = counts.reaped.max(1) as f64;
    let each = |count: u64| format!("{:.2}", count as f64 / ios);
    let batches = counts.submissions.max(1) as f64;
    vec![
        name,
        format!("{:.0}", seen.iops / 1e3),
        format!("{:.0}", seen.latency_ns / 1e3),
        format!("{:.2}", seen.switches_per_io),
        each(counts.exits()),
        each(counts.kicks),
        each(counts.interrupted),
        each(counts.halts),
        each(counts.ipis),
        each(counts.signals),
        format!("{:.1}", counts.submitted as f64 / batches),
        format!("{:.0}", counts.held as f64 * 100.0 / batches),
        format!("{:.0}", seen.lock_wait_ns),
    ]
}

const EACH: &str = "Of each I/O: context switches between the host's threads; exits, and of those \
                    notifications of the device, interrupts while the guest ran, halts, IPIs; \
                    interrupts that the device raised; waiting for a queue's lock. Of each \
                    submission: requests in it, and how many of 100 were held back.";

fn counts(results: &Results, device: Device) -> DataTable {
    let rows = [1, 2, 4, PROCESSES].into_iter().flat_map(|count| {
        MODES.map(|(name, served)| {
            let seen = results.at(Point::guest(device, LOADS[0], served, count));
            let plural = if count == 1 { "" } else { "es" };
            counted(format!("{name}, {count} process{plural}"), seen)
        })
    });
    DataTable::new(
        (&id_of("counts", device), format!("{}: what an I/O costs", device.name())),
        &format!("4 KiB random read. {EACH}"),
        COUNTED,
        rows.collect(),
    )
}

fn ablations(results: &Results, device: Device) -> DataTable {
    let row = |(name, served): (&str, _)| {
        let seen = results.at(Point::guest(device, LOADS[0], served, PROCESSES));
        counted(name.to_owned(), seen)
    };
    DataTable::new(
        (&id_of("ablations", device), format!("{}: optimisations", device.name())),
        &format!(
            "4 KiB random read, 8 processes; each alone, and all but one. {EACH} Aware batching has \
             nothing to gain here. Where requests come closely the I/O thread is what they wait \
             for, and what came meanwhile goes into its next submission anyway: 32 of a queue's 32 \
             on the null device, 8 on the NVMe SSD. Where the thread waits for requests, they are \
             further apart (2.4 us and more from one process) than the system calls take that one \
             submission less would save (0.8 us). The table 'effects switched off' lets it wait for \
             20 us all the same. It is so natively, too: a file over vhost-user-blk at depth 32 has \
             19 to 32 requests in a submission without any wait."
        ),
        COUNTED,
        VARIANTS.map(row).to_vec(),
    )
}

fn effects(results: &Results, device: Device) -> DataTable {
    let row = |count: u32, (name, effects): (&str, _)| {
        let seen = |served| results.at(Point::guest(device, LOADS[0], served, count).with(effects));
        let rates = MODES.map(|(_, served)| seen(served).map_or(0.0, |seen| seen.iops));
        let shown = rates.map(|rate| format!("{:.0}", rate / 1e3));
        let over = [0, 1].map(|other| format!("{:.2}", rates[2] / rates[other]));
        let base = seen(MODES[0].1);
        let wait = base.map_or_else(String::new, |seen| format!("{:.0}", seen.lock_wait_ns));
        let lost = base.map_or_else(String::new, |seen| seen.locks.lost.to_string());
        let head = [name.to_owned(), count.to_string()];
        head.into_iter().chain(shown).chain(over).chain([wait, lost]).collect()
    };
    let rows = EFFECT_PROCESSES.into_iter().flat_map(|count| EFFECTS.map(|one| row(count, one)));
    DataTable::new(
        (&id_of("effects", device), format!("{}: effects switched off", device.name())),
        "No part of the paper: 4 KiB random read, K IOPS, with one effect of the host switched off \
         at a time. Last two: waiting for the queue's lock in baseline, ns an I/O, and how often in \
         the run who held it, or whose turn it was, had no CPU for longer than 100 us.",
        [
            "without",
            "processes",
            "baseline",
            "mq",
            "miot",
            "miot over baseline",
            "miot over mq",
            "lock wait, ns",
            "CPU lost",
        ],
        rows.collect(),
    )
}

fn dearer(results: &Results, device: Device) -> DataTable {
    let row = |factor: u32| {
        let rate = |served| {
            let point = Point::guest(device, LOADS[0], served, PROCESSES).dearer(factor);
            results.iops(point).unwrap_or(0.0)
        };
        let rates = MODES.map(|(_, served)| rate(served));
        let shown = rates.map(|rate| format!("{:.0}", rate / 1e3));
        let over = [0, 1].map(|other| format!("{:.2}", rates[2] / rates[other]));
        [format!("{factor}")].into_iter().chain(shown).chain(over).collect()
    };
    DataTable::new(
        (&id_of("dearer", device), format!("{}: if the guest took more", device.name())),
        "No part of the paper, and no check is taken from it: 4 KiB random read, 8 processes, K \
         IOPS, with every constant of exits and guest multiplied, those of QEMU and the host as \
         they are. The paper's miot does 440 K on the null device and 460 K on the NVMe SSD, up to \
         2.67 and 2.87 times baseline, 1.38 and 1.42 times mq.",
        ["times", "baseline", "mq", "miot", "miot over baseline", "miot over mq"],
        DEARER.map(row).to_vec(),
    )
}

/// The constants of virtualisation.
pub(super) fn virtualisation(costs: &VmCosts) -> MachineTable {
    machine_table::of_costs(
        &costs.name,
        "KVM of Linux 3.17 and QEMU 2.1 on either",
        &costs.entries(),
    )
}

/// The drive of the rows that are not of the null device.
pub(super) fn rig() -> MachineTable {
    let drive = inputs::DriveOrigins {
        preset: "miot-nvme",
        rates: "input: [MIOT], native random writes of 350 K, 3 % less here; of reads an assumption",
        bandwidth: "input: [MIOT], evaluation: sequential 3,000 and 1,400 MB/s",
        latency: "assumption: as a 950 PRO, with a read of 92 us",
        inside: "assumption: as many dies as carry the rates above",
    };
    let about = "The NVMe SSD. The null device answers at once.";
    inputs::table("drive", about, (&[drive], &[]))
}
