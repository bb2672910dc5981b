//! `Span` and `Measure`: between which two steps of an I/O, and how long that was for many of them.
//!
//! Owns btt's names and the arithmetic of its averages, which is exact; percentiles come from the
//! block layer's histogram and are known to an eighth. Filled by `Spans`, printed by `overview.rs`.
//! Source: btt's "All Devices" table.

use millrace_block::Snapshot;
use serde::ser::{Serialize, SerializeMap, Serializer};

/// From which step to which; `dm` is for devices that only map (md and dm), which btt keeps apart.
/// `I2S` and `S2D`, the parts of I2D, are not btt's.
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
    /// All, in btt's order.
    pub const ALL: [Span; 15] = [
        Span::Q2Qdm,
        Span::Q2Adm,
        Span::Q2Cdm,
        Span::Q2Q,
        Span::Q2A,
        Span::Q2G,
        Span::S2G,
        Span::G2I,
        Span::Q2M,
        Span::I2D,
        Span::I2S,
        Span::S2D,
        Span::M2D,
        Span::D2C,
        Span::Q2C,
    ];

    /// As btt writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Span::Q2Qdm => "Q2Qdm",
            Span::Q2Adm => "Q2Adm",
            Span::Q2Cdm => "Q2Cdm",
            Span::Q2Q => "Q2Q",
            Span::Q2A => "Q2A",
            Span::Q2G => "Q2G",
            Span::S2G => "S2G",
            Span::G2I => "G2I",
            Span::Q2M => "Q2M",
            Span::I2D => "I2D",
            Span::I2S => "I2S",
            Span::S2D => "S2D",
            Span::M2D => "M2D",
            Span::D2C => "D2C",
            Span::Q2C => "Q2C",
        }
    }

    /// The span of this kind for devices that only map, if there is one, else itself.
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

/// What is longer (18 minutes, or 512 TiB in sectors) is counted as this in percentiles, so that
/// the histogram's sum cannot overflow by a few hostile values.
const COUNTED_MAX: u64 = 1 << 40;

/// Many lengths of one span, or of anything else that is counted in whole numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Measure {
    /// How many.
    pub n: u64,
    /// The least.
    pub min: u64,
    /// The most.
    pub max: u64,
    /// All together; wraps, as btt's does, past 584 years.
    pub total: u64,
    /// None until the first.
    histogram: Option<Snapshot>,
}

impl Measure {
    /// One more.
    pub fn add(&mut self, value: u64) {
        self.min = if self.n == 0 { value } else { self.min.min(value) };
        self.max = self.max.max(value);
        self.total = self.total.wrapping_add(value);
        self.n += 1;
        self.histogram.get_or_insert_default().add(value.min(COUNTED_MAX), 1);
    }

    /// The mean; 0 of none.
    #[must_use]
    pub fn avg(&self) -> f64 {
        if self.n == 0 { 0.0 } else { self.total as f64 / self.n as f64 }
    }

    /// The value that `fraction` (0 to 1) of all do not exceed, known to an eighth; 0 of none.
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

/// A measure of every span.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Measures([Measure; Span::ALL.len()]);

impl Measures {
    /// Of this span.
    #[must_use]
    pub fn of(&self, span: Span) -> &Measure {
        &self.0[span as usize]
    }

    pub(super) fn add(&mut self, span: Span, value: u64) {
        self.0[span as usize].add(value);
    }

    /// Spans that occurred, in btt's order, with their measures. Where nothing waited for a tag,
    /// I2S is I2D, and left out.
    pub fn there(&self) -> impl Iterator<Item = (Span, &Measure)> {
        let slept = self.of(Span::S2D).n > 0;
        let all = Span::ALL.into_iter().zip(&self.0);
        all.filter(move |(span, measure)| measure.n > 0 && (slept || *span != Span::I2S))
    }
}

impl Serialize for Measures {
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
        let mut measures = Measures::default();
        measures.add(Span::D2C.mapped(), 5);
        measures.add(Span::Q2C.mapped(), 7);
        let json = serde_json::to_string(&measures).unwrap();
        assert!(
            json.starts_with("{\"Q2Cdm\":{\"min_ns\":7,") && json.contains("\"D2C\""),
            "{json}"
        );
    }
}
