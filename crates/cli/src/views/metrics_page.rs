//! Prometheus's text format, version 0.0.4: families, samples and histograms.
//!
//! Histogram buckets end at powers of four nanoseconds from 1.024 us to 17.2 s. These bounds are
//! also bounds of the block layer's finer buckets, so no count is estimated. The block layer's
//! buckets exclude their upper bound while Prometheus's `le` includes it, a difference of one
//! nanosecond.

use std::borrow::Borrow;
use std::fmt::{Display, Write};

use millrace_exports::CounterTable;

use super::report::{Queue, TimeHistogram};

/// Exponents of the powers of two, in nanoseconds, at which buckets end.
pub(super) const BORDERS: [u32; 13] = [10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34];

/// Text of the page. Its methods take names without the prefix `millrace_`, and names of counters
/// without the suffix `_total`.
pub struct MetricsPage(pub String);

pub type Labels = Vec<(&'static str, String)>;

impl MetricsPage {
    fn family(&mut self, (name, kind, help): (&str, &str, &str)) -> String {
        let total = if kind == "counter" { "_total" } else { "" };
        let name = format!("millrace_{name}{total}");
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        name
    }

    /// Writes a metric family of one sample without labels.
    pub fn single(&mut self, family: (&str, &str, &str), value: impl Display) {
        self.samples(family, [(Labels::new(), value)]);
    }

    /// Writes a metric family, given by name, kind and help text, with one line for each sample:
    /// its labels and value.
    pub fn samples(
        &mut self,
        family: (&str, &str, &str),
        lines: impl IntoIterator<Item = (impl Borrow<Labels>, impl Display)>,
    ) {
        let name = self.family(family);
        for (labels, value) in lines {
            let _ = writeln!(self.0, "{name}{} {value}", braced(labels.borrow(), None));
        }
    }

    /// Writes a metric family for each counter of the type `T`. Each entry of `all` holds the
    /// labels and the counters of one object, such as a drive. Each family has one line per object.
    pub fn counters<T, const N: usize>(&mut self, prefix: &str, all: &[(Labels, T)])
    where
        T: CounterTable<N>,
    {
        let rows = T::ROWS.iter().enumerate().filter(|(_, row)| !row.metric.is_empty());
        for (at, row) in rows.filter(|_| !all.is_empty()) {
            let lines = all.iter().map(|(labels, counters)| (labels, counters.values()[at]));
            self.samples((&format!("{prefix}_{}", row.metric), row.kind, row.help), lines);
        }
    }

    /// Writes a family of histograms of times, given by name and help text.
    pub fn histograms(
        &mut self,
        (name, help): (&str, &str),
        all: impl IntoIterator<Item = (impl Borrow<Labels>, impl Borrow<TimeHistogram>)>,
    ) {
        let name = self.family((name, "histogram", help));
        for (labels, times) in all {
            let times = times.borrow();
            let mut buckets = times.buckets.iter().peekable();
            let mut below = |border: u64| -> u64 {
                let next = || buckets.next_if(|(start_ns, _)| *start_ns < border);
                std::iter::from_fn(next).map(|(_, count)| count).sum()
            };
            let borders = BORDERS.map(|power| 1 << power);
            let bounded = borders.map(|border| (seconds(border).to_string(), below(border)));
            let last = ("+Inf".to_owned(), below(u64::MAX));
            let buckets = bounded.into_iter().chain([last]);
            self.histogram((&name, labels.borrow()), buckets, seconds(times.sum_ns));
        }
    }

    /// Writes the family of histograms of batch sizes: 1, 2 to 3, 4 to 7, ... requests.
    pub fn batches(&mut self, (name, help): (&str, &str), queues: &[(Labels, &Queue)]) {
        let name = self.family((name, "histogram", help));
        for (labels, queue) in queues {
            let buckets = queue.batches.iter().enumerate().map(|(power, count)| {
                let is_last = power + 1 == queue.batches.len();
                let le = if is_last { "+Inf".to_owned() } else { ((2 << power) - 1).to_string() };
                (le, *count)
            });
            self.histogram((&name, labels), buckets, queue.requests);
        }
    }

    /// Writes one histogram in Prometheus's cumulative form. An item of `buckets` is a bucket's
    /// upper bound, and the number of values in that bucket alone.
    fn histogram(
        &mut self,
        (name, labels): (&str, &Labels),
        buckets: impl Iterator<Item = (String, u64)>,
        sum: impl Display,
    ) {
        let mut below = 0;
        for (le, count) in buckets {
            below += count;
            let _ = writeln!(self.0, "{name}_bucket{} {below}", braced(labels, Some(&le)));
        }
        let labels = braced(labels, None);
        let _ = writeln!(self.0, "{name}_sum{labels} {sum}\n{name}_count{labels} {below}");
    }
}

pub fn labels<const N: usize>(pairs: [(&'static str, &(impl ToString + ?Sized)); N]) -> Labels {
    pairs.map(|(name, value)| (name, value.to_string())).into()
}

pub fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn braced(labels: &Labels, le: Option<&str>) -> String {
    let pairs = labels.iter().map(|(name, value)| (*name, value.as_str()));
    let pairs = pairs.chain(le.map(|le| ("le", le))).map(|(name, value)| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        format!("{name}=\"{value}\"")
    });
    let pairs = pairs.collect::<Vec<_>>().join(",");
    if pairs.is_empty() { pairs } else { format!("{{{pairs}}}") }
}
