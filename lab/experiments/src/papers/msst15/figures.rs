//! The figures of \[MIOT\], out of the points that were run.
//!
//! A panel per load or device, a line per mode. What the paper states is drawn as hollow points.

use super::rigs::{Device, LOADS, Load, MODES, PROCESSES, Point};
use super::runs::{Results, THREADS};
use crate::page::{Figure, Panel, Series, Unit};
use crate::vm::QueueService;

/// What the paper has of miot, by device and load: I/Os or bytes a second.
const PAPER: [[f64; 4]; 2] = [[440e3, 350e3, 9.8e9, 9.2e9], [460e3, 300e3, 2.8e9, 1.3e9]];

/// The figures of these parts.
pub(super) fn all(parts: &[&str], results: &Results) -> Vec<Figure> {
    parts.iter().flat_map(|part| of(*part, results)).collect()
}

fn of(part: &str, results: &Results) -> Vec<Figure> {
    match part {
        "null" => vec![rates(results, Device::Null), locks(results)],
        "nvme" => vec![rates(results, Device::Nvme)],
        "gap" => vec![gap(results)],
        "threads" => vec![threads(results)],
        _ => Vec::new(),
    }
}

/// A line over processes, of what was run.
fn line(name: &str, y: impl Fn(u32) -> Option<f64>) -> Series {
    let points = (1..=PROCESSES).filter_map(|x| Some((f64::from(x), y(x)?))).collect();
    Series::ours(name, points)
}

fn rates(results: &Results, device: Device) -> Figure {
    let (id, title) = match device {
        Device::Null => ("null", "Null device"),
        Device::Nvme => ("nvme", "NVMe SSD"),
    };
    let caption = "Three modes, 1 to 8 processes. Hollow: what the paper states of miot; it does \
     not say at how many processes, here at 8. See that one process gains nothing, since one I/O \
     thread keeps up with it, and that miot falls past 4 processes on the null device, where \
     two of five I/Os then have an interrupt and a halt of their own.";
    Figure::new(id, title, caption, LOADS.map(|load| rate(results, device, load)))
}

fn rate(results: &Results, device: Device, load: Load) -> Panel {
    let (label, factor) = match load.is_sequential() {
        true => ("bytes/s", f64::from(load.bs_bytes)),
        false => ("IOPS", 1.0),
    };
    let of = |(name, served): (&str, QueueService)| {
        line(name, |count| Some(results.iops(Point::guest(device, load, served, count))? * factor))
    };
    let mut series: Vec<Series> = MODES.map(of).to_vec();
    let number = LOADS.iter().position(|known| *known == load).unwrap_or(0);
    let theirs = PAPER[usize::from(device == Device::Nvme)][number];
    series.push(Series::theirs("miot", [(f64::from(PROCESSES), theirs)]));
    Panel::new(load.name, "processes", (label, Unit::Count), series)
}

fn locks(results: &Results) -> Figure {
    let of = |(name, served): (&str, QueueService)| {
        line(name, |count| results.lock_wait_ns(served, count))
    };
    Figure::new(
        "locks",
        "Waiting for the lock of a queue",
        "Null device, random read: time that vCPUs wait for a virtqueue's lock, for each I/O. See \
         how little a vCPU waits with a queue of its own, whose interrupt it takes itself. The \
         paper says that waiting is 80 % less with dedicated queues; its times are not given as \
         numbers.",
        [Panel::new(
            "null device",
            "processes",
            ("wait", Unit::Nanoseconds),
            MODES.map(of).to_vec(),
        )],
    )
}

fn gap(results: &Results) -> Figure {
    let losses = |device: Device| {
        let of = |(name, served): (&str, QueueService)| {
            line(name, |count| results.loss(device, served, count))
        };
        let mut series: Vec<Series> = MODES.map(of).to_vec();
        if device == Device::Nvme {
            series.push(Series::theirs("baseline, at most", [(f64::from(PROCESSES), 0.74)]));
        }
        let title = format!("{}: part of the host's rate lost", device.name());
        Panel::new(title, "processes", ("lost", Unit::Percent), series)
    };
    let host = |device: Device| {
        let of = |(name, served): (&str, QueueService)| {
            line(name, |count| results.iops(Point::guest(device, LOADS[0], served, count)))
        };
        let mut series: Vec<Series> = MODES.map(of).to_vec();
        series.push(line("host", |count| results.iops(Point::host(device, LOADS[0], count))));
        Panel::new(device.name(), "processes", ("IOPS", Unit::Count), series)
    };
    let panels = Device::ALL.map(host).into_iter().chain(Device::ALL.map(losses));
    let caption = "4 KiB random read. See whether what each mode loses against the host grows \
     with processes. Hollow: the most that the paper says a guest loses, without the number of \
     processes, here at 8; its other points are not given as numbers.";
    Figure::new("gap", "The guest beside the host", caption, panels)
}

fn threads(results: &Results) -> Figure {
    let of = |device: Device| {
        let rate = |threads: u32| {
            Some((f64::from(threads), results.iops(Point::threads(device, threads))?))
        };
        Series::ours(device.name(), THREADS.into_iter().filter_map(rate).collect())
    };
    Figure::new(
        "threads",
        "I/O threads",
        "A guest with 4 vCPUs, a queue and a process for each, random read: queue q belongs to \
         thread q mod threads. See whether each thread more does more. The paper says so, too; \
         its rates are not given as numbers.",
        [Panel::new("4 vCPUs", "I/O threads", ("IOPS", Unit::Count), Device::ALL.map(of).to_vec())],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_caption_says_what_to_see_and_what_the_paper_has() {
        crate::papers::check_captions(5, |none| all(super::super::PAPER.parts, none));
    }
}
