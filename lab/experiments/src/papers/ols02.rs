//! `ols02`: the experiments of the OLS 2002 paper on a simulated machine like the paper's, in
//! virtual time.
//!
//! A `Point` is one simulation with settings from `papers/ols02.toml`, which also has the figures,
//! tables and checks. `locks` makes the paper's table of lock statistics (lockmeter). `native`
//! counts calls and measures costs on this machine, with the same settings. The inputs are files
//! with the costs of the machine and of the kernel, and the settings that the paper states. No
//! result of the paper is an input.

mod locks;
mod native;

use std::sync::LazyLock;

use millrace_block::baseline::Stack;
use millrace_block::{Layout, ServingConfig, Spread, Stamp};
use millrace_drives::{Spec, Words};
use millrace_simulator::Model;
use serde::Deserialize;
use toml::Table;

use super::sheet::{Sheet, TOLERANCE, word};
use crate::load::bench::BenchError;
use crate::load::workload::{Rw, Workload};
use crate::page::{Check, DataTable, Quantity};
use crate::papers::{self, Mechanism, Paper, Results, machine_table};
use crate::simulation::{
    InterfaceKind, Irq, KernelCosts, Length, Linux24, LockScope, ObservedRow, Readv, Service,
    SimPlan, Watch, run_observed,
};

static SHEET: LazyLock<Sheet> =
    LazyLock::new(|| Sheet::parse(include_str!("../../papers/ols02.toml")));

pub(super) fn paper() -> Paper {
    Paper::of_sheet("ols02", &SHEET, papers::mechanisms::<Point>, |wanted, tell| {
        let costs = KernelCosts::linux_2_4()?;
        let about = "costs of Linux 2.4.17, in addition to the costs of block I/O in the machine's \
                     table";
        let costs = machine_table::of_costs(&costs.name, about, &costs.entries());
        let mut here = None;
        let finish = |mut page: crate::page::Page, parts: &[&str]| {
            // Measure on this machine only once. The second run switches off parts of the simulated
            // machine or kernel, which is not possible on a real machine.
            let here = here.get_or_insert_with(|| measured(parts));
            let calls = here.as_ref().ok().and_then(|here| here.0.as_ref());
            let check = page.checks.iter_mut().find(|check| check.id == "ols.calls");
            if let Some((check, calls)) = check.zip(calls) {
                *check = counted(check, calls);
            }
            page.add_machines([costs.clone()]);
            page.add_machines(SHEET.given());
            page
        };
        let mut page = papers::repeat::<Point>(("ols02", &SHEET), wanted, tell, finish)?;
        page.tables.extend(here.transpose()?.and_then(|here| here.1));
        Ok(page)
    })
}

type NativeResults = (Option<[native::Calls; 2]>, Option<DataTable>);

fn measured(parts: &[&str]) -> Result<NativeResults, BenchError> {
    let calls = parts.contains(&"calls").then(native::calls).transpose()?;
    let table = parts.contains(&"native").then(native::table).transpose()?;
    Ok((calls, table))
}

fn counted(check: &Check, [small, pages]: &[native::Calls; 2]) -> Check {
    let text = format!(
        "with buffer heads of 512 bytes and 4 KiB: {} and {} calls of submit_bh, as many of \
         make_request, {} and {} merges",
        small.submitted, pages.submitted, small.merged, pages.merged
    );
    let submitted = [small.submitted, pages.submitted];
    let counts = [submitted, submitted, [small.merged, pages.merged]].concat();
    let counts: Vec<f64> = counts.into_iter().map(|count| count as f64).collect();
    let note = "counted on this machine; the paper's counts include calls for other I/O (21 and 64 \
                calls)";
    let ours = Quantity::new(text, counts);
    Check::within(&check.id, check.paper.clone(), ours, TOLERANCE).with_note(note)
}

const CPUS: u32 = 8;
/// Size of a read of the microbenchmark, as the paper gives it.
const READ_BYTES: u32 = 65_536;
/// Number of disks on each host adapter, as the paper gives it.
const DISKS: u32 = 8;
/// Plug limit in bios, larger than the number of bios of any I/O.
const PLUG: u32 = 1_024;
const LENGTH_NS: u64 = 1_000_000_000;

/// Version of the kernel's raw I/O, with the settings that distinguish it. The tables of \[OLS\]
/// have a row for each version.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    name: String,
    /// Size of a buffer head in bytes. `None` means that one bio holds the whole read.
    unit: Option<u32>,
    #[serde(default)]
    bounce: bool,
    #[serde(deserialize_with = "word")]
    lock: LockScope,
    #[serde(deserialize_with = "word")]
    drivers: LockScope,
    /// True if the elements of a readv(2) vector are submitted together, not one by one.
    #[serde(default)]
    vectors: bool,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Load {
    name: String,
    adapters: u32,
    iovecs: Option<u32>,
    #[serde(default)]
    compute_ns: u64,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Point {
    step: Step,
    load: Load,
    #[serde(default)]
    without: String,
    #[serde(skip)]
    left_out: Vec<Mechanism>,
}

impl Point {
    fn has(&self, mechanism: Mechanism) -> bool {
        !self.left_out.contains(&mechanism)
    }

    fn in_words(&self) -> String {
        let without = self.left_out.iter().map(|one| format!(", without {}", one.word()));
        format!("{}, {}{}", self.load.name, self.step.name, without.collect::<String>())
    }

    fn drives(&self, machine: &str) -> Vec<Spec> {
        let command = if self.has(Mechanism::AdapterCommand) { "150us" } else { "0" };
        let rate = if self.has(Mechanism::AdapterBandwidth) { "60MB" } else { "0" };
        // Drives with the same controller name share the controller, even between simulations that
        // run in parallel. Build the name from this simulation's settings and machine to keep it
        // unique.
        let mark = format!("{}{machine}", self.in_words());
        let mark: String = mark.chars().filter(char::is_ascii_alphanumeric).collect();
        let adapters = self.load.adapters;
        let drive = |number: u32| {
            let adapter = number % adapters;
            let text = format!(
                "model:preset=ultrastar-36lzx,depth=64,controller={mark}-{adapter},\
                 controller-command={command},controller-bandwidth={rate}"
            );
            text.parse().expect("the drive's spec must be valid")
        };
        let count = if self.has(Mechanism::Crowd) { adapters * DISKS } else { 7 };
        (0..count).map(drive).collect()
    }

    fn history(&self) -> Linux24 {
        let Point { step, load, .. } = self;
        let is_whole = step.vectors || load.iovecs.is_none();
        let drivers = match self.has(Mechanism::DriverLock) {
            true => step.drivers,
            false => LockScope::Adapter,
        };
        Linux24 {
            unit_bytes: step.unit,
            iovecs: load.iovecs,
            readv: if is_whole { Readv::Whole } else { Readv::Serial },
            bounce: step.bounce,
            without_copies: !self.has(Mechanism::Copies),
            descriptor_bytes: if step.unit == Some(512) { 8_792 } else { 608 },
            request_lock: step.lock,
            plug_in_queue: true,
            adapters: self.has(Mechanism::Kernel).then_some(drivers),
            compute_ns: load.compute_ns,
        }
    }

    fn plan(&self, machine: &str, seed: u64) -> SimPlan {
        let drives = self.drives(machine);
        let jobs = drives.len() as u32;
        SimPlan {
            drives,
            layout: Layout::Linear,
            service: Service {
                // Keep the request queue plugged until it has all bios of an I/O.
                serving: ServingConfig { plug_high: PLUG, ..ServingConfig::default() },
                apart: true,
                history: self.history(),
                ..Service::default()
            },
            stack: Stack::Sq,
            software_queues: Spread::One,
            hardware_queues: Spread::One,
            // CPU 0 has no job: this CPU takes the interrupts and runs the bottom half.
            cpus: (1..CPUS).collect(),
            jobs,
            workload: Workload {
                rw: Rw::Read,
                bs_bytes: READ_BYTES,
                iodepth: 1,
                verify: false,
                seed,
            },
            length: Length::Time(LENGTH_NS),
            stamp: Stamp::Io,
            interface: InterfaceKind::Sync,
            batch: None,
            irq: Irq::Core0,
            watch: Watch { locks: true, ..Watch::default() },
        }
    }
}

impl papers::Point for Point {
    type Measurement = ObservedRow;
    const OWN: &'static [Mechanism] = &[
        Mechanism::Copies,
        Mechanism::Kernel,
        Mechanism::DriverLock,
        Mechanism::AdapterCommand,
        Mechanism::AdapterBandwidth,
        Mechanism::Crowd,
    ];

    fn of_settings(settings: Table) -> Result<Point, String> {
        let mut point: Point = settings.try_into().map_err(|error| error.to_string())?;
        point.left_out.extend(Mechanism::from_word(&point.without));
        point.without.clear();
        Ok(point)
    }

    fn of(part: &str) -> Vec<Point> {
        SHEET.points(part)
    }

    fn without(mut self, mechanism: Mechanism) -> Point {
        if self.has(mechanism) {
            self.left_out.push(mechanism);
        }
        self
    }

    fn machine(&self) -> &str {
        "p3-8way"
    }

    fn task(&self) -> String {
        self.in_words()
    }

    fn work(&self) -> u32 {
        match self.step.name.as_str() {
            "SB" => 3,
            "SBI" => 4,
            _ => 1,
        }
    }

    fn run(&self, model: &Model, seed: u64) -> Result<ObservedRow, BenchError> {
        run_observed(model, &self.plan(&model.name, seed))
    }

    fn events(seen: &ObservedRow) -> u64 {
        seen.row.machine.as_ref().and_then(|machine| machine.sim_events).unwrap_or(0)
    }

    /// Returns a metric of a simulation. `idle`, `spin`, `user` and `bounces` are fractions of the
    /// time of all CPUs.
    fn metric(results: &Results<Point>, point: &Point, name: &str) -> Option<Vec<f64>> {
        let seen = results.at(point)?;
        let cpus = &seen.cpus;
        let all = (cpus.busy_ns + cpus.spin_ns + cpus.idle_ns) as f64;
        let spent: Vec<u64> =
            (0..7).map(|on| seen.spent_ns.get(on).copied().unwrap_or(0)).collect();
        let [.., pages, copies, user] = spent[..] else { return None };
        let one = match name {
            "mb" => seen.row.bw_bytes_per_s / 1e6,
            "idle" => cpus.idle_ns as f64 / all,
            "spin" => cpus.spin_ns as f64 / all,
            "user" => user as f64 / all,
            "bounces" => (pages + copies) as f64 / all,
            "all_ns" => all.max(1.0),
            "times" => {
                let charged: u64 = spent.iter().sum();
                let mut times = vec![cpus.idle_ns, cpus.spin_ns];
                times.extend(&spent[..6]);
                times.push(cpus.busy_ns.saturating_sub(charged));
                return Some(times.into_iter().map(|ns| ns as f64).collect());
            }
            // Lock statistics are fractions of the time of the seven CPUs that run jobs. Convert
            // them to fractions of all eight CPUs, as in the paper.
            "spin_one" => locks::spin_share(seen, Some("io-request")) * 7.0 / 8.0,
            "spin_all" => locks::spin_share(seen, None) * 7.0 / 8.0,
            "hold_ns" => locks::old_lock(seen)?.hold_ns_mean as f64,
            "held_share" => locks::old_lock(seen)?.held_share,
            _ => panic!("{name}: no such metric"),
        };
        Some(vec![one])
    }

    fn rows(results: &Results<Point>, point: &Point, _name: &str) -> Vec<Vec<String>> {
        results.at(point).map_or_else(Vec::new, locks::rows)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::page::{CheckVerdict, Page};
    use crate::papers::{PartSelection, run_without};
    use crate::simulation::machine;

    fn page(part: &'static str) -> Page {
        let parts = [part];
        let wanted = PartSelection::new(&parts, 7);
        paper().run(wanted, &mut |_| ControlFlow::Continue(())).expect("the run must succeed")
    }

    #[test]
    fn calls_are_counted_and_other_checks_are_listed_as_not_there() {
        let page = page("calls");
        let ids: Vec<&str> = page.checks.iter().map(|check| check.id.as_str()).collect();
        let paper = ["ols.dm-read", "ols.dm-readv", "ols.dsw", "ols.calls", "ols.lock-share"];
        assert_eq!(ids, paper);
        let of = |holds| page.checks.iter().filter(move |check| check.holds == holds);
        assert_eq!(of(CheckVerdict::NotYet).count(), 4);
        let numbers = &page.checks[3].ours.numbers;
        assert_eq!(numbers[..], [32_768.0, 4_096.0, 32_768.0, 4_096.0, 32_640.0, 3_968.0]);
    }

    #[test]
    fn one_lock_for_all_disks_is_what_cpus_spin_on() {
        let (first, second) = (page("dm"), page("dm"));
        assert_eq!(first.json(), second.json());
        let share = first.checks.iter().find(|check| check.id == "ols.lock-share");
        assert!(share.is_some_and(|check| check.ours.numbers[0] > 0.3), "{share:?}");
        let machines: Vec<&str> = first.machines.iter().map(|table| table.name.as_str()).collect();
        assert_eq!(machines, ["p3-8way", "linux-2.4", "disks and adapters"]);
    }

    #[test]
    fn copies_take_time_of_bottom_half_and_adapters_bound_rate() {
        let model = machine("p3-8way").expect("the machine must exist");
        let case = |step: &str| {
            let of = |point: &Point| point.step.name == step;
            SHEET.points::<Point>("dm").into_iter().find(of).expect("a step of the file")
        };
        let seen = |step, without: &[Mechanism]| {
            run_without(&case(step), &model, (1, without)).expect("the run must succeed")
        };
        let idle = |without| {
            let cpus = seen("Baseline", without).cpus;
            cpus.idle_ns as f64 / (cpus.busy_ns + cpus.spin_ns + cpus.idle_ns) as f64
        };
        assert!(idle(&[Mechanism::Copies]) > idle(&[]) + 0.03);
        let rate = |without| seen("SBIR", without).row.bw_bytes_per_s;
        assert!(rate(&[Mechanism::AdapterBandwidth]) > 2.0 * rate(&[]));
        for mechanism in <Point as papers::Point>::OWN {
            let other = papers::Point::without(case("Baseline"), *mechanism);
            assert!(other.in_words().contains(", without "), "{mechanism:?}");
        }
    }
}
