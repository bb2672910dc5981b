//! `Span` and `Measure`: the interval between two steps of an I/O, and statistics of many such
//! intervals.
//!
//! Averages are exact, as in btt. Percentiles come from the block layer's histogram and are
//! accurate to 12.5 %. Source: btt's "All Devices" table.

use millrace_block::Snapshot;
use serde::ser::{Serialize, SerializeMap, Serializer};

/// Interval between two steps of an I/O, named after both steps. Names that end in `dm` are for
/// devices that only map (md and dm), which btt reports apart. `I2S` and `S2D`, the two parts of
/// I2D, do not exist in btt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Span {
    Q2Qdm,
    Q2Adm,
    Q2Cdm,
    Q2Q,
    Q2A,
    Q2G,
    S2G,
    G2I,
    Q2M,
    I2D,
    I2S,
    S2D,
    M2D,
    D2C,
    Q2C,
}

impl Span {
    /// All intervals between two steps of an I/O, in the order in which btt prints them.
    pub const ALL: [Span; 15] = {
        use Span::*;
        [Q2Qdm, Q2Adm, Q2Cdm, Q2Q, Q2A, Q2G, S2G, G2I, Q2M, I2D, I2S, S2D, M2D, D2C, Q2C]
    };

    /// Returns the name that btt prints for this span.
    #[must_use]
    pub fn name(self) -> &'static str {
        const NAMES: [&str; Span::ALL.len()] = [
            "Q2Qdm", "Q2Adm", "Q2Cdm", "Q2Q", "Q2A", "Q2G", "S2G", "G2I", "Q2M", "I2D", "I2S",
            "S2D", "M2D", "D2C", "Q2C",
        ];
        NAMES[self as usize]
    }

    /// Returns the variant of this interval that btt uses for devices that only map to others (md,
    /// dm). Returns the interval itself if it has no variant.
    #[must_use]
    pub(super) fn mapped(self) -> Span {
        match self {
            Span::Q2Q => Span::Q2Qdm,
            Span::Q2A => Span::Q2Adm,
            Span::Q2C => Span::Q2Cdm,
            span => span,
        }
    }
}

/// Largest value that the percentiles distinguish: 18 minutes in nanoseconds, or 512 TiB in
/// sectors. Larger values are counted as `COUNTED_MAX`, so that a hostile trace cannot overflow the
/// histogram's sum.
const COUNTED_MAX: u64 = 1 << 40;

/// Statistics of many whole numbers, such as the lengths of a span in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Measure {
    /// Number of values.
    pub n: u64,
    /// Smallest value.
    pub min: u64,
    /// Largest value.
    pub max: u64,
    /// Sum of all values. As in btt, the sum wraps around at 2^64, which is 584 years in
    /// nanoseconds.
    pub total: u64,
    histogram: Option<Snapshot>,
}

impl Measure {
    /// Adds a value.
    pub fn add(&mut self, value: u64) {
        self.min = if self.n == 0 { value } else { self.min.min(value) };
        self.max = self.max.max(value);
        self.total = self.total.wrapping_add(value);
        self.n += 1;
        self.histogram.get_or_insert_default().add(value.min(COUNTED_MAX), 1);
    }

    /// Returns the mean, or 0 if there are no values.
    #[must_use]
    pub fn avg(&self) -> f64 {
        if self.n == 0 { 0.0 } else { self.total as f64 / self.n as f64 }
    }

    /// Returns the value that a `fraction` (0 to 1) of all values do not exceed. The result is
    /// accurate to 12.5 %. Returns 0 if there are no values.
    #[must_use]
    pub fn quantile(&self, fraction: f64) -> u64 {
        let value = self.histogram.as_ref().map_or(0, |all| all.quantile_ns(fraction));
        value.clamp(self.min, self.max)
    }
}

impl Serialize for Measure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(7))?;
        map.serialize_entry("min_ns", &self.min)?;
        map.serialize_entry("avg_ns", &self.avg())?;
        map.serialize_entry("max_ns", &self.max)?;
        map.serialize_entry("n", &self.n)?;
        map.serialize_entry("p50_ns", &self.quantile(0.5))?;
        map.serialize_entry("p99_ns", &self.quantile(0.99))?;
        map.serialize_entry("p999_ns", &self.quantile(0.999))?;
        map.end()
    }
}

/// Statistics of every span, indexed by [`Span`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MeasureTable([Measure; Span::ALL.len()]);

impl MeasureTable {
    /// Returns the statistics of a span.
    #[must_use]
    pub fn of(&self, span: Span) -> &Measure {
        &self.0[span as usize]
    }

    pub(super) fn add(&mut self, span: Span, value: u64) {
        self.0[span as usize].add(value);
    }

    /// Returns the spans that occurred, in btt's order, with their statistics. Leaves out I2S if no
    /// I/O waited for a tag, because I2S then equals I2D.
    pub fn there(&self) -> impl Iterator<Item = (Span, &Measure)> {
        let slept = self.of(Span::S2D).n > 0;
        let all = Span::ALL.into_iter().zip(&self.0);
        all.filter(move |(span, measure)| measure.n > 0 && (slept || *span != Span::I2S))
    }
}

impl Serialize for MeasureTable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.there().map(|(span, measure)| (span.name(), measure)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measure_knows_its_ends_mean_and_quantiles() {
        let mut measure = Measure::default();
        (1..=100).for_each(|value| measure.add(value * 1_000));
        assert_eq!((measure.min, measure.max, measure.n), (1_000, 100_000, 100));
        assert_eq!(measure.avg().to_string(), "50500");
        assert!(measure.quantile(0.5).abs_diff(50_000) < 50_000 / 8);
        let json = serde_json::to_value(&measure).unwrap();
        assert_eq!((&json["n"], &json["avg_ns"]), (&100.into(), &50_500.0.into()));
    }

    #[test]
    fn only_spans_that_occurred_are_shown() {
        let mut measures = MeasureTable::default();
        measures.add(Span::D2C.mapped(), 5);
        measures.add(Span::Q2C.mapped(), 7);
        let json = serde_json::to_string(&measures).unwrap();
        assert!(
            json.starts_with("{\"Q2Cdm\":{\"min_ns\":7,") && json.contains("\"D2C\""),
            "{json}"
        );
    }
}
