//! Axes of plots: conversion of values to pixels, round ticks, and number formatting.
//!
//! This file is pure arithmetic, which `plot.rs`, `html.rs` and `text.rs` call. Ticks are multiples
//! of 1, 2 or 5 times a power of ten. A logarithmic axis cannot show values of 0 and below.

use super::{Scale, Unit};

#[derive(Debug, Clone)]
pub(super) struct Axis {
    least: f64,
    most: f64,
    scale: Scale,
    from: f64,
    to: f64,
    step: f64,
}

impl Axis {
    /// Creates an axis for these values with about `count` ticks. The axis extends from pixel
    /// `from` to pixel `to`.
    pub(super) fn new(
        values: impl Iterator<Item = f64>,
        scale: Scale,
        count: f64,
        (from, to): (f64, f64),
    ) -> Axis {
        let usable = |value: &f64| value.is_finite() && (scale == Scale::Linear || *value > 0.0);
        let (low, high) = values
            .filter(usable)
            .fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
        let (low, high) = if low > high { (1.0, 1.0) } else { (low, high) };
        match scale {
            Scale::Linear => {
                let low = low.min(0.0);
                let step = round_step((high - low).max(f64::MIN_POSITIVE) / count);
                let (least, most) = ((low / step).floor() * step, (high / step).ceil() * step);
                Axis { least, most: most.max(least + step), scale, from, to, step }
            }
            Scale::Log => {
                let (least, most) = (10f64.powf(low.log10().floor()), round_step(high));
                Axis { least, most: most.max(least * 10.0), scale, from, to, step: 10.0 }
            }
        }
    }

    /// Ends the axis at the largest of `values` instead of at the next tick.
    pub(super) fn ending_at(mut self, values: impl Iterator<Item = f64>) -> Axis {
        let last = values.filter(|value| value.is_finite()).fold(self.least, f64::max);
        if last > self.least {
            self.most = last;
        }
        self
    }

    /// Removes fractional ticks if all `values` are whole numbers.
    pub(super) fn counting(mut self, mut values: impl Iterator<Item = f64>) -> Axis {
        if values.all(|value| value.fract() == 0.0) {
            self.step = self.step.max(1.0);
        }
        self
    }

    pub(super) fn at(&self, value: f64) -> Option<f64> {
        let share = match self.scale {
            Scale::Linear => (value - self.least) / (self.most - self.least),
            Scale::Log => (value / self.least).log10() / (self.most / self.least).log10(),
        };
        share.is_finite().then_some(self.from + share * (self.to - self.from))
    }

    pub(super) fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                let count = ((self.most - self.least) / self.step + 0.001).floor() as u32;
                (0..=count).map(|n| self.least + f64::from(n) * self.step).collect()
            }
            Scale::Log => {
                let decades = (self.most / self.least).log10();
                let factors: &[f64] = if decades <= 2.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
                let bases = (0..=decades.ceil() as i32).map(|n| self.least * 10f64.powi(n));
                let all = bases.flat_map(|base| factors.iter().map(move |factor| base * factor));
                all.filter(|value| *value <= self.most * 1.001).collect()
            }
        }
    }
}

/// Rounds up to 1, 2 or 5 times a power of ten.
fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let steps = [1.0, 2.0, 5.0].map(|factor| factor * power);
    steps.into_iter().find(|round| *round >= step * 0.999).unwrap_or(10.0 * power)
}

pub(super) fn short(value: f64, unit: Unit) -> String {
    let steps: &[(f64, &str)] = match unit {
        Unit::Plain => &[],
        Unit::Percent => return format!("{} %", digits(value * 100.0)),
        Unit::Count => &[(1e9, " G"), (1e6, " M"), (1e3, " K")],
        Unit::Nanoseconds => &[(1e9, " s"), (1e6, " ms"), (1e3, " us"), (0.0, " ns")],
    };
    // A value that rounds up to 1,000 gets the next prefix: 999.6 K is shown as 1 M.
    let step = steps.iter().find(|(factor, _)| value.abs() >= factor * 0.9995);
    match step {
        Some((factor, suffix)) => format!("{}{suffix}", digits(value / factor.max(1.0))),
        None => digits(value),
    }
}

/// Formats a value with three digits, or with more if its whole part is longer. Omits trailing
/// zeroes.
fn digits(value: f64) -> String {
    let places = match value.abs() {
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.places$}");
    let text = if text.contains('.') { text.trim_end_matches('0') } else { &text };
    let text = text.trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

pub(super) fn percent_off(deviation: f64) -> String {
    format!("{:+.0} %", deviation * 100.0)
}

/// Returns the deviation in words, such as `30 % below`, to be followed by the reference value.
pub(super) fn distance(deviation: f64) -> String {
    match (deviation * 100.0).round() {
        percent if percent > 0.0 => format!("{percent} % above"),
        percent if percent < 0.0 => format!("{} % below", -percent),
        _ => "equal to".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linear(values: &[f64]) -> Axis {
        Axis::new(values.iter().copied(), Scale::Linear, 5.0, (0.0, 100.0))
    }

    #[test]
    fn ticks_are_round_and_hold_all_values() {
        assert_eq!(linear(&[0.3, 3.9]).ticks(), [0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(linear(&[1.0, 80.0]).ticks(), [0.0, 20.0, 40.0, 60.0, 80.0]);
        assert_eq!(linear(&[]).ticks().len(), 6);
        let cores = linear(&[1.0, 32.0]).ending_at([32.0].into_iter());
        assert_eq!((cores.ticks().last(), cores.at(32.0)), (Some(&30.0), Some(100.0)));
        let counted = |values: &[f64]| linear(values).counting(values.iter().copied()).ticks();
        assert_eq!(counted(&[1.0, 2.0]), [0.0, 1.0, 2.0]);
        assert_eq!(counted(&[1.0, 1.5]), [0.0, 0.5, 1.0, 1.5]);
        let log = Axis::new([30.0, 4e5].into_iter(), Scale::Log, 5.0, (0.0, 1.0));
        assert_eq!(log.ticks().len(), 5);
        let narrow = Axis::new([30.0, 400.0].into_iter(), Scale::Log, 5.0, (0.0, 1.0));
        assert_eq!(narrow.ticks(), [10.0, 20.0, 50.0, 100.0, 200.0, 500.0]);
    }

    #[test]
    fn values_lie_between_ends_and_zero_has_no_log_place() {
        assert_eq!(linear(&[0.0, 10.0]).at(5.0), Some(50.0));
        let log = Axis::new([1.0, 100.0].into_iter(), Scale::Log, 5.0, (0.0, 100.0));
        assert_eq!((log.at(10.0), log.at(0.0)), (Some(50.0), None));
    }

    #[test]
    fn numbers_are_shown_with_three_digits_and_their_prefix() {
        let count = |value| short(value, Unit::Count);
        assert_eq!(
            [count(0.0), count(125e3), count(1.5e6), count(999_600.0)],
            ["0", "125 K", "1.5 M", "1 M"]
        );
        let time = |ns| short(ns, Unit::Nanoseconds);
        assert_eq!(
            [time(0.0), time(950.0), time(25_300.0), time(7.5e8)],
            ["0 ns", "950 ns", "25.3 us", "750 ms"]
        );
        assert_eq!(short(0.225, Unit::Percent), "22.5 %");
        assert_eq!(short(-0.001, Unit::Plain), "0");
    }
}
