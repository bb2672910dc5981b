//! Prometheus's text format, version 0.0.4: families, samples and histograms.
//!
//! Histogram buckets end at powers of four nanoseconds from 1.024 us to 17.2 s. These bounds are
//! also bounds of the block layer's finer buckets, so no count is estimated. The block layer's
//! buckets exclude their upper bound while Prometheus's `le` includes it, a difference of one
//! nanosecond.

use std::fmt::{Display, Write};

use millrace_exports::CounterTable;

use super::report::{Queue, TimeHistogram};

/// Exponents of the powers of two, in nanoseconds, at which buckets end.
pub(super) const BORDERS: [u32; 13] = [10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34];

pub struct MetricsPage(pub String);

pub type Labels = Vec<(&'static str, String)>;

impl MetricsPage {
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    pub fn sample(&mut self, name: &str, labels: &[(&str, impl AsRef<str>)], value: impl Display) {
        let _ = writeln!(self.0, "{name}{} {value}", braced(labels, None));
    }

    pub fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        let _ = writeln!(self.0, "{name} {value}");
    }

    /// Writes a metric family with one line for each sample: its labels and value.
    pub fn samples<'a, L, S>(
        &mut self,
        (name, kind, help): (&str, &str, &str),
        lines: impl IntoIterator<Item = (L, impl Display)>,
    ) where
        L: AsRef<[(&'a str, S)]>,
        S: AsRef<str> + 'a,
    {
        self.family(name, kind, help);
        lines.into_iter().for_each(|(labels, value)| self.sample(name, labels.as_ref(), value));
    }

    /// Writes a metric family for each counter in the table `T`. `all` contains the labels and
    /// counters of each object, such as a drive. A family has a line for each of these objects.
    pub fn counters<T, const N: usize>(&mut self, prefix: &str, all: &[(Labels, T)])
    where
        T: CounterTable<N>,
    {
        let rows = T::ROWS.iter().enumerate().filter(|(_, row)| !row.metric.is_empty());
        for (at, row) in rows.filter(|_| !all.is_empty()) {
            let end = if row.kind == "counter" { "_total" } else { "" };
            let name = format!("millrace_{prefix}_{}{end}", row.metric);
            let lines = all.iter().map(|(labels, counters)| (labels, counters.values()[at]));
            self.samples((&name, row.kind, row.help), lines);
        }
    }

    pub fn histogram(
        &mut self,
        name: &str,
        labels: &[(&str, impl AsRef<str>)],
        times: &TimeHistogram,
    ) {
        let (mut buckets, mut below) = (times.buckets.iter().peekable(), 0);
        for border in BORDERS.map(|power| 1u64 << power) {
            while let Some((_, count)) = buckets.next_if(|(start_ns, _)| *start_ns < border) {
                below += count;
            }
            let labels = braced(labels, Some(&seconds(border).to_string()));
            let _ = writeln!(self.0, "{name}_bucket{labels} {below}");
        }
        let count = below + buckets.map(|(_, count)| count).sum::<u64>();
        let _ = writeln!(self.0, "{name}_bucket{} {count}", braced(labels, Some("+Inf")));
        let labels = braced(labels, None);
        let _ = writeln!(self.0, "{name}_sum{labels} {}", seconds(times.sum_ns));
        let _ = writeln!(self.0, "{name}_count{labels} {count}");
    }

    /// Writes the histogram of batch sizes: 1, 2 to 3, 4 to 7, ... requests.
    pub fn batches(&mut self, name: &str, labels: &[(&str, &str)], queue: &Queue) {
        let mut below = 0;
        for (power, count) in queue.batches.iter().enumerate() {
            below += count;
            let last = power + 1 == queue.batches.len();
            let le = if last { "+Inf".to_owned() } else { ((2 << power) - 1).to_string() };
            let _ = writeln!(self.0, "{name}_bucket{} {below}", braced(labels, Some(&le)));
        }
        let labels = braced(labels, None);
        let _ = writeln!(self.0, "{name}_sum{labels} {}", queue.requests);
        let _ = writeln!(self.0, "{name}_count{labels} {below}");
    }
}

pub fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn braced(labels: &[(&str, impl AsRef<str>)], le: Option<&str>) -> String {
    let pairs = labels.iter().map(|(name, value)| (*name, value.as_ref()));
    let pairs = pairs.chain(le.map(|le| ("le", le)));
    let pairs: Vec<String> = pairs
        .map(|(name, value)| {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            format!("{name}=\"{value}\"")
        })
        .collect();
    if pairs.is_empty() { String::new() } else { format!("{{{}}}", pairs.join(",")) }
}
