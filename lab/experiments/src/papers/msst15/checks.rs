//! The checks `miot.*`: what \[MIOT\] says beside what came out, by id, none left out; and one that
//! has no id on the list.
//!
//! Tolerance is that of the list, 25 % for numbers. A check whose part was not run is listed as not
//! there.

use super::rigs::{BASELINE, CORES, Device, LOADS, MIOT, MQ, PROCESSES, Point};
use super::runs::{Results, THREADS};
use crate::page::{Check, CheckKind};
use crate::papers::rule::{Finding, Rule};

/// All of them, in the order of the list.
pub(super) fn all(results: &Results) -> Vec<Check> {
    let missing = "its part was not run: millrace-lab paper msst15 runs all";
    RULES.iter().map(|rule| rule.check(results, missing)).collect()
}

/// How far a loss may fall from one number of processes to the next and still be said to grow.
const DIP_MOST: f64 = 0.02;

const RULES: [Rule<Results>; 6] = [
    Rule {
        id: "miot.null-random",
        kind: CheckKind::Quantitative,
        paper: ("null device, random read, up to: over baseline 2.67, over mq 1.38", &[2.67, 1.38]),
        ours: |results| factors(results, Device::Null, &[0]),
    },
    Rule {
        id: "miot.null-seq",
        kind: CheckKind::Quantitative,
        paper: ("null device, sequential, up to: over baseline 2.32, over mq 1.77", &[2.32, 1.77]),
        ours: |results| factors(results, Device::Null, &[2, 3]),
    },
    Rule {
        id: "miot.nvme-random",
        kind: CheckKind::Quantitative,
        paper: ("NVMe SSD, random, up to: over baseline 2.87, over mq 1.42", &[2.87, 1.42]),
        ours: |results| factors(results, Device::Nvme, &[0, 1]),
    },
    Rule {
        id: "miot.lock-wait",
        kind: CheckKind::Quantitative,
        paper: ("waiting for the queue's lock, dedicated queues: 80 % less", &[0.8]),
        ours: lock_wait,
    },
    Rule {
        id: "miot.gap",
        kind: CheckKind::Qualitative,
        paper: (
            "4 KiB random read, guest against host: loss grows with processes, up to 74 %",
            &[],
        ),
        ours: gap,
    },
    Rule {
        id: "own.threads",
        kind: CheckKind::Qualitative,
        paper: (
            "the paper's, without an id on the list: one VM, 4 vCPUs, 4 queues, 1 to 4 I/O \
             threads: more threads, more IOPS",
            &[],
        ),
        ours: threads,
    },
];

/// What an I/O takes of the cores' time in miot, and what the paper's rate would leave for it.
fn core_time(results: &Results, device: Device, paper_iops: f64) -> Option<String> {
    let seen = results.at(Point::guest(device, LOADS[0], MIOT, PROCESSES))?;
    let us = |part: f64, iops: f64| part * f64::from(CORES) * 1e6 / iops;
    Some(format!(
        "random read, {PROCESSES} processes: miot does {:.0} K I/Os here, each {:.1} us of the \
         cores' time; the paper's {:.0} K leave up to {:.1} us",
        seen.iops / 1e3,
        us(seen.busy, seen.iops),
        paper_iops / 1e3,
        us(1.0, paper_iops)
    ))
}

fn factors(results: &Results, device: Device, loads: &[usize]) -> Option<Finding> {
    let base = results.most((device, loads), (MIOT, BASELINE))?;
    let mq = results.most((device, loads), (MIOT, MQ))?;
    let part = |name: &str, (factor, load, count): (f64, &str, u32)| {
        format!("over {name} {factor:.2} ({load}, {count} processes)")
    };
    let text = format!("{}, {}", part("baseline", base), part("mq", mq));
    let paper_iops = if device == Device::Null { 440e3 } else { 460e3 };
    let note = match loads {
        [0, ..] => core_time(results, device, paper_iops)? + WHY,
        _ => SEQUENTIAL.to_owned(),
    };
    Some(Finding::new(text, vec![base.0, mq.0]).note(note))
}

/// What we believe to be the reason.
const WHY: &str = ". Baseline and mq lie too close together: one I/O thread bounds both here, at 220 to \
                   260 K (a sibling takes part of its core), where 440 K over 1.38 says that the \
                   paper's carried 319 K; what baseline has besides, waiting for its lock, all \
                   interrupts on vCPU 0, IPIs and lost CPUs, is hidden behind that thread here and \
                   takes half there. So a factor over baseline near the paper's is no proof. And \
                   miot does more than the paper's: up to 32 I/Os share an exit, an interrupt and a \
                   halt, caches stay warm across exits, and nothing takes longer by nested paging. \
                   Its threads sleep for the one mutex of QEMU's map of the guest's memory, and \
                   QEMU's interrupts for each request make more exits: --without translation, \
                   signals show each. The tables 'if the guest took more' show what more would do";

/// What the sequential factors hang on.
const SEQUENTIAL: &str = "it was 23 % off, and held, with the host's prices before they were looked \
                          up, and 27 % before a published gain of hyper-threads, 20 %, took the place \
                          of 25 % assumed. It hangs on the mutex around QEMU's map of the guest's \
                          memory, which a request of 32 KiB takes 20 times and one of 4 KiB 6 times: \
                          --without translation shows factors of 3.1 and 2.9. And it hangs on what \
                          QEMU takes for each page after the first, an assumption: at nothing 14 % \
                          off. The rates are still above the paper's, whose 9.8 GB/s leave 4.2 for \
                          baseline and 5.5 for mq; otherwise as miot.null-random";

fn lock_wait(results: &Results) -> Option<Finding> {
    let base = results.lock_wait_ns(BASELINE, PROCESSES)?;
    let ours = results.lock_wait_ns(MIOT, PROCESSES)?;
    let less = 1.0 - ours / base;
    let text = format!(
        "{:.1} % less: {base:.0} ns an I/O in baseline, {ours:.0} ns in miot, {PROCESSES} processes",
        less * 100.0
    );
    let note = "at the edge of what is allowed: a queue of its own has one vCPU, which takes its \
                interrupt itself, so that nobody is left to wait for; the guest's other locks, \
                where the paper's 20 % may be, are not modelled. How long baseline waits is no \
                result: most of it is behind one lost CPU a run, and differs from seed to seed by half";
    Some(Finding::new(text, vec![less]).note(note))
}

fn gap(results: &Results) -> Option<Finding> {
    let losses = (1..=PROCESSES).map(|count| results.loss(Device::Nvme, BASELINE, count));
    let losses: Vec<f64> = losses.collect::<Option<_>>()?;
    let grows = losses.windows(2).all(|pair| pair[1] >= pair[0] - DIP_MOST);
    let holds = grows && losses[losses.len() - 1] > losses[0];
    let list: Vec<String> = losses.iter().map(|loss| format!("{:.0}", loss * 100.0)).collect();
    let text = format!("NVMe SSD, 1 to {PROCESSES} processes: {} % lost", list.join(", "));
    let note = "grows: no step falls by more than 2 points, and the last is above the first";
    Some(Finding::new(text, Vec::new()).holds(holds).note(note))
}

fn threads(results: &Results) -> Option<Finding> {
    let mut holds = true;
    let mut texts = Vec::new();
    for device in Device::ALL {
        let rates = THREADS.map(|threads| results.iops(Point::threads(device, threads)));
        let rates: Vec<f64> = rates.into_iter().collect::<Option<_>>()?;
        holds &= rates.windows(2).all(|pair| pair[1] > pair[0]);
        let list: Vec<String> = rates.iter().map(|rate| format!("{:.0}", rate / 1e3)).collect();
        texts.push(format!("{}, {}: {} K", device.name(), LOADS[0].name, list.join(", ")));
    }
    Some(Finding::new(texts.join("; "), Vec::new()).holds(holds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::PartSelection;

    #[test]
    fn without_runs_every_check_is_listed_and_none_holds() {
        let none =
            Results::run(PartSelection::new(&[], 1), &mut |_| std::ops::ControlFlow::Continue(()))
                .expect("nothing to run")
                .0
                .with;
        let checks = all(&none);
        let ids: Vec<&str> = checks.iter().map(|check| check.id.as_str()).collect();
        let paper = ["null-random", "null-seq", "nvme-random", "lock-wait", "gap"];
        let paper: Vec<String> = paper.iter().map(|id| format!("miot.{id}")).collect();
        assert_eq!(ids[..5], paper);
        assert_eq!(ids[5..], ["own.threads"]);
        assert!(checks.iter().all(|check| check.holds == crate::page::Verdict::NotYet));
    }
}
