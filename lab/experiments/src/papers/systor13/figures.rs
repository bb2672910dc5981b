//! The figures and tables of \[MQ\], out of the points that were run.
//!
//! A panel per machine where the paper has one; a line across where a socket begins. What the paper
//! states in words is drawn as hollow points.

use millrace_block::{Spread, Stack};
use millrace_simulator::Model;

use super::runs::{Curve, EIGHT, MACHINES, Point, Results, SPREADS, STACKS, TODAY};
use crate::page::{DataTable, Figure, Mark, Panel, Scale, Series, SeriesKind, Unit};
use crate::simulation::InterfaceKind;

/// The name of a design in legends.
pub(super) fn name_of(stack: Stack) -> &'static str {
    match stack {
        Stack::Sq => "SQ",
        Stack::Mq => "MQ",
        Stack::Raw => "Raw",
    }
}

fn spread_of(spread: Spread) -> &'static str {
    match spread {
        Spread::One => "one hardware queue",
        Spread::Node => "hardware queue per socket",
        Spread::Core => "hardware queue per core",
    }
}

fn series(
    results: &Results,
    name: impl Into<String>,
    curve: Curve,
    y: fn(&Point) -> f64,
) -> Option<Series> {
    let points = results.curve(curve)?;
    Some(Series::ours(name, points.iter().map(|(x, point)| (f64::from(*x), y(point))).collect()))
}

fn marks(model: &Model) -> Vec<Mark> {
    let begins = |socket: u32| Mark {
        x: f64::from(socket * model.cores_per_socket + 1),
        label: (socket + 1).to_string(),
    };
    (1..model.sockets).map(begins).collect()
}

fn title(model: &Model) -> String {
    let plural = if model.sockets == 1 { "" } else { "s" };
    format!("{} socket{plural}: {}, {} cores", model.sockets, model.name, model.cpus())
}

/// How y axes are labelled, in what they are, and how they are divided.
const IOPS: (&str, Unit, Scale) = ("IOPS", Unit::Count, Scale::Linear);
const LATENCY: (&str, Unit, Scale) = ("mean latency", Unit::Nanoseconds, Scale::Log);

fn panel(
    results: &Results,
    machine: &str,
    (y_label, y_unit, y_scale): (&str, Unit, Scale),
    series: Vec<Series>,
) -> Option<Panel> {
    let model = results.model(machine)?;
    let panel = Panel::new(title(model), "cores", (y_label, y_unit), series);
    Some(Panel { y_scale, marks: marks(model), ..panel })
}

/// Cores of the machines.
const CORES: [f64; 4] = [6.0, 12.0, 32.0, 80.0];

/// A panel for each machine, a line for each of the designs.
fn four_panels(
    results: &Results,
    stacks: &[Stack],
    interface: InterfaceKind,
    y: fn(&Point) -> f64,
) -> Vec<Panel> {
    let mut panels = Vec::new();
    for (place, machine) in MACHINES.into_iter().enumerate() {
        let line = |stack: &Stack| {
            series(results, name_of(*stack), Curve::new(machine, *stack, interface), y)
        };
        let mut lines: Vec<Series> = stacks.iter().filter_map(line).collect();
        if interface == InterfaceKind::Libaio && stacks.contains(&Stack::Mq) {
            let peak = [(6.0, 3.5e6), (6.0, 5e6), (7.0, 3.8e6), (9.0, 4e6)][place];
            lines.push(Series::theirs("MQ", [peak]));
        }
        if interface == InterfaceKind::Libaio {
            lines.push(Series::theirs("SQ, at most", [(1.0, 1e6), (CORES[place], 1e6)]));
        }
        if interface == InterfaceKind::Libaio && place >= 2 {
            lines.push(Series::theirs("SQ", [(CORES[place], 0.125e6)]));
        }
        let y = if interface == InterfaceKind::Sync { LATENCY } else { IOPS };
        panels.extend(panel(results, machine, y, lines));
    }
    panels
}

fn iops(point: &Point) -> f64 {
    point.iops
}

fn mean_ns(point: &Point) -> f64 {
    point.mean_ns
}

/// The figures of these parts.
pub(super) fn all(parts: &[&str], results: &Results) -> Vec<Figure> {
    parts.iter().filter_map(|part| one(*part, results)).collect()
}

fn one(part: &str, results: &Results) -> Option<Figure> {
    Some(match part {
        "fig4" => Figure::new(
            "fig4",
            "The single-queue design",
            "IOPS of the old design as cores join: one lock for insert, merge, remove and \
             completion. Vertical lines: where a socket begins. See whether it stays below 1 M on \
             every machine and falls with each socket. Hollow: that bound, and the end of about \
             0.125 M, which the paper states for four and eight sockets; its other points are not \
             given as numbers.",
            four_panels(results, &[Stack::Sq], InterfaceKind::Libaio, iops),
        ),
        "fig6" => Figure::new(
            "fig6",
            "Single queue, multi queue and raw",
            "IOPS through the submission interface of the time (libaio), whose shared counters \
             are one line for all cores. See whether MQ and Raw rise within a socket and dip when \
             a second one joins, and that SQ only falls behind. Hollow: the peaks of MQ and the \
             bound and ends of SQ that the paper states; its other points, and Raw's, are not \
             given as numbers.",
            four_panels(results, &STACKS, InterfaceKind::Libaio, iops),
        ),
        "fig7" => Figure::new(
            "fig7",
            "Latency of one I/O at a time",
            "Mean time from before the program's call to after it, a synchronous I/O on each \
             core; logarithmic. See that SQ's rises with every core and steeply with every \
             socket, and that MQ's stays an order of magnitude below. The paper's points are not \
             given as numbers.",
            four_panels(results, &STACKS, InterfaceKind::Sync, mean_ns),
        ),
        "fig8" => fig8(results)?,
        "fig9" => mappings(results, "fig9", Spread::One, "One software queue")?,
        "fig10" => mappings(results, "fig10", Spread::Core, "A software queue per core")?,
        "today" => present_day(results)?,
        _ => return None,
    })
}

fn fig8(results: &Results) -> Option<Figure> {
    let mut lines = Vec::new();
    let interfaces = [(InterfaceKind::Libaio, "libaio"), (InterfaceKind::LibaioFixed, "fixed")];
    for stack in STACKS {
        for (interface, name) in interfaces {
            let name = format!("{}, {name}", name_of(stack));
            lines.extend(series(results, name, Curve::new(EIGHT, stack, interface), iops));
        }
    }
    lines.push(Series::theirs("MQ, fixed", [(70.0, 10e6)]));
    Some(Figure::new(
        "fig8",
        "The repaired submission interface",
        "Eight sockets, with the interface as it was and with the paper's fixes: a lockless \
         context list, no extra lock of the completion ring, atomic counters. See how far MQ \
         rises with the fixes and how little without. Hollow: MQ at 70 cores, the one number that \
         the paper states.",
        vec![panel(results, EIGHT, IOPS, lines)?],
    ))
}

fn mappings(results: &Results, id: &str, software: Spread, title: &str) -> Option<Figure> {
    let mq = Curve::new(EIGHT, Stack::Mq, InterfaceKind::LibaioFixed);
    let line =
        |spread: Spread| series(results, spread_of(spread), mq.queues(software, spread), iops);
    let mut lines: Vec<Series> = SPREADS.into_iter().filter_map(line).collect();
    let caption = match software {
        Spread::Core => {
            // "Above 15 M", without a number of cores.
            let least = [(1.0, 15e6), (CORES[3], 15e6)];
            lines.push(Series::theirs(format!("{}, peak above", spread_of(Spread::Core)), least));
            "MQ on eight sockets with the repaired interface. See whether hardware queues per \
             core do best and those per socket stop rising at the fifth socket. Dotted: what the \
             paper's peak with queues per core is above; its points are not given as numbers."
        }
        _ => {
            "MQ on eight sockets with the repaired interface. See whether every mapping falls at \
             the second socket, one to one hardware queue most, and that none scales beyond. The \
             paper's points are not given as numbers."
        }
    };
    Some(Figure::new(
        id,
        format!("{title}, several mappings to hardware queues"),
        caption,
        vec![panel(results, EIGHT, IOPS, lines)?],
    ))
}

fn present_day(results: &Results) -> Option<Figure> {
    let mq = Curve::new(TODAY, Stack::Mq, InterfaceKind::Ring);
    let sq = Curve::new(TODAY, Stack::Sq, InterfaceKind::Ring);
    let curves = [
        ("MQ, hardware queue per core", mq.queues(Spread::Core, Spread::Core)),
        ("MQ, hardware queue per socket", mq),
        ("SQ", sq),
    ];
    let line = |(name, curve)| {
        let line = series(results, name, curve, iops)?;
        Some(Series { kind: SeriesKind::Prediction, ..line })
    };
    let lines = curves.into_iter().filter_map(line).collect();
    Some(Figure::new(
        "today",
        "Prediction: a server of today",
        "Two sockets of 64 cores with shared-memory rings for submission. See which mapping of \
         hardware queues scales there. Nobody has measured this: it is what the model predicts, \
         and no part of the paper.",
        vec![panel(results, TODAY, IOPS, lines)?],
    ))
}

/// The tables of these parts.
pub(super) fn tables(parts: &[&str], results: &Results) -> Vec<DataTable> {
    if !parts.contains(&"table2") {
        return Vec::new();
    }
    let theirs =
        [("SQ", [50, 50, 250, 750]), ("MQ", [50, 50, 50, 250]), ("Raw", [50, 50, 50, 250])];
    let row = |place: usize| {
        let mut cells = vec![title_of(results, MACHINES[place])];
        for (stack, (_, paper)) in STACKS.into_iter().zip(theirs) {
            let ours = max_ns(results, MACHINES[place], stack);
            cells.push(ours.map_or("-".into(), |ns| format!("{:.1} us", ns / 1e3)));
            cells.push(format!("{} ms", paper[place]));
        }
        cells
    };
    vec![DataTable::new(
        ("table2", "Maximum latency, one I/O at a time on every core"),
        "The paper's maxima are those of a whole system over a minute, with interrupts and a \
         scheduler. These come from runs of their own, of some 30 ms, in which one kernel thread \
         wakes on each core and has it for a slice of CFS; means (figure 7) come from runs without. \
         Only the order, and whether MQ's and Raw's are alike, can be compared.",
        ["machine", "SQ", "paper", "MQ", "paper", "Raw", "paper"],
        (0..MACHINES.len()).map(row).collect(),
    )]
}

fn title_of(results: &Results, machine: &str) -> String {
    results.model(machine).map_or_else(|| machine.to_owned(), title)
}

/// Longest latency at all cores of a machine.
pub(super) fn max_ns(results: &Results, machine: &'static str, stack: Stack) -> Option<f64> {
    results.max_ns(Curve::new(machine, stack, InterfaceKind::Sync))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_caption_says_what_to_see_and_what_the_paper_has() {
        crate::papers::check_captions(3, |none| all(super::super::PAPER.parts, none));
    }
}
