//! The report page of a trace: plots over time, heat maps and tables from `Spans` and a `Timeline`.
//!
//! This file selects the figures and has their titles and captions; `crate::page` draws them. The
//! page is one self-contained file of bounded size. `millrace-lab trace report` calls this file.

use millrace_trace::{Drive, IoKind, MeasureTable, SpanGrouping, Spans};

use super::TraceProfile;
use super::timeline::{
    CPUS_SHOWN, DRIVES_SHOWN, LATENCY_BINS, SECTOR_BINS, STAGES, Timeline, TimelineSlot,
    latency_start,
};
use crate::page::{DataTable, Figure, HeatCells, Page, Panel, Scale, Unit};

/// Returns the report page of a trace: statistics of its I/Os and, if the trace has events, the
/// events over time and the times between the events of an I/O (spans).
pub fn report_page(
    recording: Option<(&Spans, &Timeline)>,
    profile: &TraceProfile,
    devices: &[String],
) -> Page {
    let mut page = Page::default();
    let report = recording.map(|(spans, timeline)| ReportBuilder { spans, timeline });
    if let Some(report) = &report {
        page.facts = report.facts();
        page.figures = vec![report.stages(), report.rates(), report.depths(), report.cpus()];
        page.tables = report.tables();
    }
    profile.add_to(&mut page, devices);
    page.figures.extend(report.iter().flat_map(|report| [report.latencies(), report.sectors()]));
    page
}

struct ReportBuilder<'a> {
    spans: &'a Spans,
    timeline: &'a Timeline,
}

impl ReportBuilder<'_> {
    fn slots(&self) -> &[TimelineSlot] {
        &self.timeline.time.slots
    }

    fn facts(&self) -> Vec<(String, String)> {
        let drives: Vec<String> =
            self.drives().map(|drive| self.spans.names.device_or_number(drive.device)).collect();
        let seconds = self.timeline.time.last_ns as f64 / 1e9;
        let completed: u64 = self.slots().iter().flat_map(|slot| slot.completed).sum();
        let bytes: u64 = self.slots().iter().map(|slot| slot.bytes).sum();
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

    fn shown(&self) -> impl Iterator<Item = (usize, String)> {
        let drives = self.spans.drives().iter().take(DRIVES_SHOWN).enumerate();
        let used = drives.filter(|(_, drive)| drive.queued > 0 || drive.issued > 0);
        used.map(|(place, drive)| (place, self.spans.names.device_or_number(drive.device)))
    }

    fn stages(&self) -> Figure {
        let time = &self.timeline.time;
        let lines = STAGES.iter().enumerate().map(|(place, span)| {
            time.series(span.name(), |slot| {
                let (count, total) = slot.stages[place];
                (count > 0).then(|| total as f64 / count as f64)
            })
        });
        let panel = time.panel("all devices", ("mean", Unit::Nanoseconds), lines);
        Figure::new(
            "stages",
            "Stages over time",
            "Mean of the stages that ended in each slot. Q2G: until an I/O has a request, G2I: \
             until it is inserted, I2D or (merged) M2D: until it is issued to the driver, D2C: at \
             the driver, Q2C: the total.",
            [Panel { y_scale: Scale::Log, ..panel }],
        )
    }

    fn rates(&self) -> Figure {
        let time = &self.timeline.time;
        let iops = IoKind::ALL.into_iter().map(|kind| {
            time.series(kind.name(), |slot| Some(time.rate(slot.completed[kind as usize])))
        });
        let mib = |slot: &TimelineSlot| Some(time.rate(slot.bytes) / f64::from(1 << 20));
        Figure::new(
            "rates",
            "Rates",
            "I/Os completed, on all devices together; a volume and its drives are both counted.",
            [
                time.panel("completions", ("IOPS", Unit::Count), iops),
                time.panel("bandwidth", ("MiB/s", Unit::Plain), [time.series("all", mib)]),
            ],
        )
    }

    fn depths(&self) -> Figure {
        let time = &self.timeline.time;
        let deepest = self.shown().map(|(place, name)| {
            time.series(name, |slot| {
                let (issued, deepest) = slot.drives[place];
                (issued > 0).then_some(deepest as f64)
            })
        });
        let issued = self
            .shown()
            .map(|(place, name)| time.series(name, |slot| Some(time.rate(slot.drives[place].0))));
        Figure::new(
            "depth",
            "Queue depth and drives",
            "Largest number of requests in flight at the driver in each time slot, and the number \
             of requests issued to each drive.",
            [
                time.panel("deepest at the driver", ("requests", Unit::Plain), deepest),
                time.panel("given to the driver", ("D/s", Unit::Count), issued),
            ],
        )
    }

    fn cpus(&self) -> Figure {
        let time = &self.timeline.time;
        let lines = (0..CPUS_SHOWN).map(|cpu| {
            let rest = if cpu == CPUS_SHOWN - 1 { " and up" } else { "" };
            time.series(format!("CPU {cpu}{rest}"), |slot| Some(time.rate(slot.cpus[cpu])))
        });
        Figure::new(
            "cpus",
            "CPUs and their queues",
            "I/Os queued on each CPU, which has a software queue of its own.",
            [time.panel("queued", ("Q/s", Unit::Count), lines)],
        )
    }

    fn heat(
        &self,
        panel: Panel,
        bins: std::ops::Range<usize>,
        counts: impl Fn(&TimelineSlot) -> &[u32],
        y_edge: impl Fn(usize) -> f64,
    ) -> Panel {
        let column = |slot: &TimelineSlot| {
            counts(slot)[bins.clone()].iter().map(|count| u64::from(*count)).collect()
        };
        let time = &self.timeline.time;
        let heat = HeatCells {
            x_edges: (0..=self.slots().len()).map(|slot| time.x(slot as f64)).collect(),
            y_edges: (bins.start..=bins.end).map(y_edge).collect(),
            columns: self.slots().iter().map(column).collect(),
        };
        Panel { heat: Some(heat), ..panel }
    }

    fn latencies(&self) -> Figure {
        let used = |bin: &usize| self.slots().iter().any(|slot| slot.latency[*bin] > 0);
        let first = (0..LATENCY_BINS).find(used).unwrap_or(0);
        let last = (0..LATENCY_BINS).rev().find(used).unwrap_or(first);
        let panel = self.timeline.time.panel("Q2C", ("latency", Unit::Nanoseconds), []);
        let panel = self.heat(panel, first..last + 1, |slot| &slot.latency, latency_start);
        Figure::new(
            "latency",
            "Latency over time",
            "Number of I/Os by their latency from Q to C and by the time of their completion. A \
             stronger colour means more I/Os, on a logarithmic scale.",
            [Panel { y_scale: Scale::Log, ..panel }],
        )
    }

    fn sectors(&self) -> Figure {
        let panel = |(place, name): (usize, String)| {
            let used = |bin: &usize| self.slots().iter().any(|slot| slot.sectors[place][*bin] > 0);
            let last = (0..SECTOR_BINS).rev().find(used)?;
            let bin_bytes = 512.0 * 2_f64.powi(self.timeline.sector_bits[place] as i32);
            let panel = self.timeline.time.panel(&name, ("byte of the device", Unit::Count), []);
            let edge = |bin: usize| bin as f64 * bin_bytes;
            Some(self.heat(panel, 0..last + 1, |slot| &slot.sectors[place], edge))
        };
        Figure::new(
            "sectors",
            "I/O over sectors",
            "Number of I/Os by start offset on each device and by the time of queueing.",
            self.shown().filter_map(panel),
        )
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

fn table(id: &str, title: &str, measures: &MeasureTable) -> DataTable {
    let caption = "Defined as in btt; dm is for devices that only remap I/O. Times in us; \
                   percentiles are accurate to 12.5 %.";
    let rows = rows("", measures).map(|mut row| row.split_off(1)).collect();
    DataTable::new((id, title), caption, head(), rows)
}

fn rows<'a>(name: &'a str, measures: &'a MeasureTable) -> impl Iterator<Item = Vec<String>> + 'a {
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
