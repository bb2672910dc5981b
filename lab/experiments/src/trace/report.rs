//! The page of a trace: plots over time, heat maps and tables of `Spans` and a `Timeline`.
//!
//! Owns what is shown and how it is called; the page and its plots are `crate::page`'s. One file
//! that needs no network, of bounded size. Called by `millrace-lab trace report`.

use millrace_trace::{Drive, IoKind, Measures, SpanGrouping, Spans};

use super::timeline::{
    CPUS_SHOWN, DRIVES_SHOWN, LATENCY_BINS, SECTOR_BINS, STAGES, Slot, Timeline, latency_start,
};
use crate::page::{DataTable, Figure, HeatMap, HeatPanel, Page, Panel, Scale, Series, Unit};

/// Makes the page of traces of these names.
#[must_use]
pub fn report_html(names: &[String], spans: &Spans, timeline: &Timeline) -> String {
    let (page, maps) = report_page(names, spans, timeline);
    page.html_with(&maps)
}

/// The page of traces of these names, to which more may be added, and its heat maps.
#[must_use]
pub fn report_page(names: &[String], spans: &Spans, timeline: &Timeline) -> (Page, [HeatMap; 2]) {
    let report = Report { spans, timeline, time: TimeUnit::of(timeline.last_ns) };
    let page = Page {
        title: format!("Trace of {}", names.join(", ")),
        facts: report.facts(),
        figures: vec![report.stages(), report.rates(), report.depths(), report.cpus()],
        tables: report.tables(),
        ..Page::default()
    };
    (page, [report.latencies(), report.sectors()])
}

/// In what the x axes are.
#[derive(Debug, Clone, Copy)]
struct TimeUnit {
    name: &'static str,
    ns: f64,
}

impl TimeUnit {
    fn of(last_ns: u64) -> TimeUnit {
        match last_ns {
            0..10_000 => TimeUnit { name: "ns", ns: 1.0 },
            10_000..10_000_000 => TimeUnit { name: "us", ns: 1e3 },
            10_000_000..2_000_000_000 => TimeUnit { name: "ms", ns: 1e6 },
            _ => TimeUnit { name: "s", ns: 1e9 },
        }
    }
}

struct Report<'a> {
    spans: &'a Spans,
    timeline: &'a Timeline,
    time: TimeUnit,
}

impl Report<'_> {
    fn facts(&self) -> Vec<(String, String)> {
        let drives: Vec<String> =
            self.drives().map(|drive| self.spans.device_name(drive.device)).collect();
        let seconds = self.timeline.last_ns as f64 / 1e9;
        let completed: u64 = self.timeline.slots.iter().flat_map(|slot| slot.completed).sum();
        let bytes: u64 = self.timeline.slots.iter().map(|slot| slot.bytes).sum();
        let fact = |name: &str, value: String| (name.to_owned(), value);
        let mut facts = vec![
            fact("devices", drives.join(" ")),
            fact("time", format!("{seconds:.6} s")),
            fact("events", self.timeline.events.to_string()),
            fact("completions", completed.to_string()),
            fact("completed", format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64)),
        ];
        facts.extend(self.spans.notes().map(|note| fact("note", note)));
        facts
    }

    fn drives(&self) -> impl Iterator<Item = &Drive> {
        self.spans.drives().iter().filter(|drive| drive.queued > 0 || drive.issued > 0)
    }

    /// Devices that the timeline has, with their place in it.
    fn shown(&self) -> impl Iterator<Item = (usize, String)> {
        let drives = self.spans.drives().iter().take(DRIVES_SHOWN).enumerate();
        let used = drives.filter(|(_, drive)| drive.queued > 0 || drive.issued > 0);
        used.map(|(place, drive)| (place, self.spans.device_name(drive.device)))
    }

    /// Time in the middle of a slot.
    fn x(&self, slot: usize) -> f64 {
        (slot as f64 + 0.5) * self.timeline.slot_ns as f64 / self.time.ns
    }

    /// A line of what `value` finds in slots.
    fn series(&self, name: impl Into<String>, value: impl Fn(&Slot) -> Option<f64>) -> Series {
        let slots = self.timeline.slots.iter().enumerate();
        let points = slots.filter_map(|(at, slot)| Some((self.x(at), value(slot)?)));
        Series::ours(name, points.collect())
    }

    fn panel(&self, title: &str, y: (&str, Unit, Scale), series: Vec<Series>) -> Panel {
        let series = series.into_iter().filter(|line| !line.points.is_empty()).collect();
        Panel { y_scale: y.2, ..Panel::new(title, self.time.name, (y.0, y.1), series) }
    }

    /// A count of a slot as a rate.
    fn rate(&self, count: u64) -> f64 {
        count as f64 * 1e9 / self.timeline.slot_ns as f64
    }

    fn stages(&self) -> Figure {
        let lines = STAGES.iter().enumerate().map(|(place, span)| {
            self.series(span.name(), |slot| {
                let (count, total) = slot.stages[place];
                (count > 0).then(|| total as f64 / count as f64)
            })
        });
        let y = ("mean", Unit::Nanoseconds, Scale::Log);
        Figure::new(
            "stages",
            "Stages over time",
            "Mean of what ended in each slot of time. Q2G until an I/O has a request, G2I until that is \
             inserted, I2D or (merged) M2D until it is given to the driver, D2C at the driver, Q2C \
             all together.",
            [self.panel("all devices", y, lines.collect())],
        )
    }

    fn rates(&self) -> Figure {
        let iops = IoKind::ALL.into_iter().filter_map(|kind| {
            let of = |slot: &Slot| slot.completed[kind as usize];
            let there = self.timeline.slots.iter().any(|slot| of(slot) > 0);
            there.then(|| self.series(kind.name(), |slot| Some(self.rate(of(slot)))))
        });
        let bandwidth = self.series("all", |slot| Some(self.rate(slot.bytes) / f64::from(1 << 20)));
        let panels = vec![
            self.panel("completions", ("IOPS", Unit::Count, Scale::Linear), iops.collect()),
            self.panel("bandwidth", ("MiB/s", Unit::Plain, Scale::Linear), vec![bandwidth]),
        ];
        Figure::new(
            "rates",
            "Rates",
            "What was completed, on all devices together; a volume and its drives both count.",
            panels,
        )
    }

    fn depths(&self) -> Figure {
        let deepest = self.shown().map(|(place, name)| {
            self.series(name, |slot| {
                let (issued, deepest) = slot.drives[place];
                (issued > 0).then_some(deepest as f64)
            })
        });
        let issued = self.shown().map(|(place, name)| {
            let issued: u64 = self.timeline.slots.iter().map(|slot| slot.drives[place].0).sum();
            self.series(name, |slot| (issued > 0).then(|| self.rate(slot.drives[place].0)))
        });
        let panels = vec![
            self.panel(
                "deepest at the driver",
                ("requests", Unit::Plain, Scale::Linear),
                deepest.collect(),
            ),
            self.panel(
                "given to the driver",
                ("D/s", Unit::Count, Scale::Linear),
                issued.collect(),
            ),
        ];
        Figure::new(
            "depth",
            "Queue depth and drives",
            "Requests at the driver when one was given to it, the most of each slot of time, and how \
             many were given to each.",
            panels,
        )
    }

    fn cpus(&self) -> Figure {
        let lines = (0..CPUS_SHOWN).filter_map(|cpu| {
            let there = self.timeline.slots.iter().any(|slot| slot.cpus[cpu] > 0);
            let rest = if cpu == CPUS_SHOWN - 1 { " and up" } else { "" };
            let line = || self.series(format!("CPU {cpu}{rest}"), |s| Some(self.rate(s.cpus[cpu])));
            there.then(line)
        });
        Figure::new(
            "cpus",
            "CPUs and their queues",
            "I/Os queued on each CPU, which has a software queue of its own.",
            [self.panel("queued", ("Q/s", Unit::Count, Scale::Linear), lines.collect())],
        )
    }

    fn x_edges(&self) -> Vec<f64> {
        let edge = |slot: usize| slot as f64 * self.timeline.slot_ns as f64 / self.time.ns;
        (0..=self.timeline.slots.len()).map(edge).collect()
    }

    fn latencies(&self) -> HeatMap {
        let used = |bin: &usize| self.timeline.slots.iter().any(|slot| slot.latency[*bin] > 0);
        let first = (0..LATENCY_BINS).find(used).unwrap_or(0);
        let last = (0..LATENCY_BINS).rev().find(used).unwrap_or(first);
        let column =
            |slot: &Slot| slot.latency[first..=last].iter().map(|n| u64::from(*n)).collect();
        let panel = HeatPanel {
            title: "Q2C".into(),
            x_label: self.time.name.into(),
            x_edges: self.x_edges(),
            y_label: "latency".into(),
            y_unit: Unit::Nanoseconds,
            y_scale: Scale::Log,
            y_edges: (first..=last + 1).map(latency_start).collect(),
            columns: self.timeline.slots.iter().map(column).collect(),
        };
        HeatMap {
            id: "latency".into(),
            title: "Latency over time".into(),
            caption: "How many I/Os took how long, from Q to C, by when they were completed. A \
                      stronger colour means more of them, on a logarithmic scale."
                .into(),
            panels: vec![panel],
        }
    }

    fn sectors(&self) -> HeatMap {
        let panel = |(place, name): (usize, String)| {
            let used =
                |bin: &usize| self.timeline.slots.iter().any(|slot| slot.sectors[place][*bin] > 0);
            let last = (0..SECTOR_BINS).rev().find(used)?;
            let bin_bytes = 512.0 * 2_f64.powi(self.timeline.sector_bits[place] as i32);
            let column =
                |slot: &Slot| slot.sectors[place][..=last].iter().map(|n| u64::from(*n)).collect();
            Some(HeatPanel {
                title: name,
                x_label: self.time.name.into(),
                x_edges: self.x_edges(),
                y_label: "byte of the device".into(),
                y_unit: Unit::Count,
                y_scale: Scale::Linear,
                y_edges: (0..=last + 1).map(|bin| bin as f64 * bin_bytes).collect(),
                columns: self.timeline.slots.iter().map(column).collect(),
            })
        };
        HeatMap {
            id: "sectors".into(),
            title: "I/O over sectors".into(),
            caption: "How many I/Os began where on each device, by when they were queued.".into(),
            panels: self.shown().filter_map(panel).collect(),
        }
    }

    fn tables(&self) -> Vec<DataTable> {
        let mut tables = vec![table("spans", "Spans", self.spans.all())];
        for (id, title, per) in [
            ("per-drive", "Spans by device", SpanGrouping::Drive),
            ("per-cpu", "Spans by CPU", SpanGrouping::Cpu),
            ("per-op", "Spans by operation", SpanGrouping::Op),
        ] {
            let groups = self.spans.groups(per);
            let rows = groups.iter().flat_map(|(name, all)| rows(name, all)).collect();
            let mut head = head();
            head.insert(0, "of".into());
            tables.push(DataTable::new((id, title), "", head, rows));
        }
        tables
    }
}

fn head() -> Vec<String> {
    ["span", "n", "min", "mean", "p50", "p99", "p99.9", "max"].map(str::to_owned).into()
}

fn table(id: &str, title: &str, measures: &Measures) -> DataTable {
    let caption = "As btt defines them; dm is for devices that only map. Times in us; percentiles \
                   are known to an eighth.";
    let rows = rows("", measures).map(|mut row| row.split_off(1)).collect();
    DataTable::new((id, title), caption, head(), rows)
}

/// A row of each span that occurred, after a name.
fn rows<'a>(name: &'a str, measures: &'a Measures) -> impl Iterator<Item = Vec<String>> + 'a {
    let us = |ns: f64| format!("{:.3}", ns / 1e3);
    measures.there().map(move |(span, measure)| {
        let quantile = |fraction| us(measure.quantile(fraction) as f64);
        vec![
            name.to_owned(),
            span.name().to_owned(),
            measure.n.to_string(),
            us(measure.min as f64),
            us(measure.avg()),
            quantile(0.5),
            quantile(0.99),
            quantile(0.999),
            us(measure.max as f64),
        ]
    })
}
