//! The report page of a trace: plots over time, heat maps and tables from `Spans` and a `Timeline`.
//!
//! Owns the selection of figures, their titles and captions; `crate::page` draws them. The page is
//! one self-contained file of bounded size. Called by `millrace-lab trace report`.

use millrace_trace::{Drive, IoKind, Measures, SpanGrouping, Spans};

use super::timeline::{
    CPUS_SHOWN, DRIVES_SHOWN, LATENCY_BINS, SECTOR_BINS, STAGES, Timeline, TimelineSlot,
    latency_start,
};
use crate::page::{DataTable, Figure, HeatMap, HeatPanel, Page, Panel, Scale, Series, Unit};

/// Returns the report page as HTML; `names` are the names of the traces.
#[must_use]
pub fn report_html(names: &[String], spans: &Spans, timeline: &Timeline) -> String {
    let (page, maps) = report_page(names, spans, timeline);
    page.html_with(&maps)
}

/// Builds the report page, to which more may be added, and its heat maps.
#[must_use]
pub fn report_page(names: &[String], spans: &Spans, timeline: &Timeline) -> (Page, [HeatMap; 2]) {
    let report = ReportBuilder { spans, timeline, time: TimeUnit::of(timeline.last_ns) };
    let page = Page {
        title: format!("Trace of {}", names.join(", ")),
        facts: report.facts(),
        figures: vec![report.stages(), report.rates(), report.depths(), report.cpus()],
        tables: report.tables(),
        ..Page::default()
    };
    (page, [report.latencies(), report.sectors()])
}

/// Unit of the time axes.
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

struct ReportBuilder<'a> {
    spans: &'a Spans,
    timeline: &'a Timeline,
    time: TimeUnit,
}

impl ReportBuilder<'_> {
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

    /// Returns the devices that the timeline covers: index and name.
    fn shown(&self) -> impl Iterator<Item = (usize, String)> {
        let drives = self.spans.drives().iter().take(DRIVES_SHOWN).enumerate();
        let used = drives.filter(|(_, drive)| drive.queued > 0 || drive.issued > 0);
        used.map(|(place, drive)| (place, self.spans.device_name(drive.device)))
    }

    /// Returns the time in the middle of a slot, in the axes' unit.
    fn x(&self, slot: usize) -> f64 {
        (slot as f64 + 0.5) * self.timeline.slot_ns as f64 / self.time.ns
    }

    /// Plots a value of each slot, where `value` returns one.
    fn series(
        &self,
        name: impl Into<String>,
        value: impl Fn(&TimelineSlot) -> Option<f64>,
    ) -> Series {
        let slots = self.timeline.slots.iter().enumerate();
        let points = slots.filter_map(|(at, slot)| Some((self.x(at), value(slot)?)));
        Series::ours(name, points.collect())
    }

    fn panel(&self, title: &str, y: (&str, Unit, Scale), series: Vec<Series>) -> Panel {
        let series = series.into_iter().filter(|line| !line.points.is_empty()).collect();
        Panel { y_scale: y.2, ..Panel::new(title, self.time.name, (y.0, y.1), series) }
    }

    /// Converts a slot's count to a rate per second.
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
            "Mean of the stages that ended in each slot. Q2G: until an I/O has a request, G2I: \
             until it is inserted, I2D or (merged) M2D: until it is issued to the driver, D2C: at \
             the driver, Q2C: the total.",
            [self.panel("all devices", y, lines.collect())],
        )
    }

    fn rates(&self) -> Figure {
        let iops = IoKind::ALL.into_iter().filter_map(|kind| {
            let of = |slot: &TimelineSlot| slot.completed[kind as usize];
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
            "I/Os completed, on all devices together; a volume and its drives are both counted.",
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
            "Most requests in flight at the driver in each time slot, and the number of requests \
             issued to each drive.",
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
        let column = |slot: &TimelineSlot| {
            slot.latency[first..=last].iter().map(|n| u64::from(*n)).collect()
        };
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
            let column = |slot: &TimelineSlot| {
                slot.sectors[place][..=last].iter().map(|n| u64::from(*n)).collect()
            };
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
            caption: "Number of I/Os by start offset on each device and by the time of queueing."
                .into(),
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
    let caption = "Defined as in btt; dm is for devices that only remap I/O. Times in us; \
                   percentiles are accurate to an eighth.";
    let rows = rows("", measures).map(|mut row| row.split_off(1)).collect();
    DataTable::new((id, title), caption, head(), rows)
}

/// Returns a row for each span that occurred, with a name in front.
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
