//! `Slots`: counts over time, in at most `SLOTS_MAX` time slots, however long the trace.
//!
//! A slot lasts 1 us at first. When the trace is longer than all slots, neighbouring slots are
//! merged and each slot lasts twice as long. So the memory and the size of the report page are
//! bounded. This file also has the time axis of the plots. `timeline.rs` and `profile.rs` fill the
//! slots.

use crate::page::{Panel, Series, Unit};

pub(super) const SLOTS_MAX: usize = 120;

pub(super) trait TimeSlot: Clone {
    const EMPTY: Self;

    fn merge(&mut self, later: &Self);
}

#[derive(Debug, Clone)]
pub(super) struct Slots<T> {
    pub(super) slots: Vec<T>,
    pub(super) slot_ns: u64,
    pub(super) last_ns: u64,
}

impl<T> Default for Slots<T> {
    fn default() -> Slots<T> {
        Slots { slots: Vec::new(), slot_ns: 1_000, last_ns: 0 }
    }
}

impl<T: TimeSlot> Slots<T> {
    pub(super) fn at(&mut self, time_ns: u64) -> &mut T {
        self.last_ns = self.last_ns.max(time_ns);
        while time_ns / self.slot_ns >= SLOTS_MAX as u64 {
            self.slot_ns = self.slot_ns.saturating_mul(2);
            let merged = self.slots.chunks(2).map(|pair| {
                let mut sum = pair[0].clone();
                pair.iter().skip(1).for_each(|later| sum.merge(later));
                sum
            });
            self.slots = merged.collect();
        }
        let place = (time_ns / self.slot_ns) as usize;
        if self.slots.len() <= place {
            self.slots.resize(place + 1, T::EMPTY);
        }
        &mut self.slots[place]
    }

    pub(super) fn unit(&self) -> (&'static str, f64) {
        match self.last_ns {
            0..10_000 => ("ns", 1.0),
            10_000..10_000_000 => ("us", 1e3),
            10_000_000..2_000_000_000 => ("ms", 1e6),
            2_000_000_000..7_200_000_000_000 => ("s", 1e9),
            _ => ("h", 3.6e12),
        }
    }

    pub(super) fn x(&self, slots: f64) -> f64 {
        slots * self.slot_ns as f64 / self.unit().1
    }

    pub(super) fn rate(&self, count: u64) -> f64 {
        count as f64 * 1e9 / self.slot_ns as f64
    }

    /// Returns a line of a plot over time. Each time slot for which `value` returns a number gives
    /// a point.
    pub(super) fn series(
        &self,
        name: impl Into<String>,
        value: impl Fn(&T) -> Option<f64>,
    ) -> Series {
        let slots = self.slots.iter().enumerate();
        let points = slots.filter_map(|(at, slot)| Some((self.x(at as f64 + 0.5), value(slot)?)));
        Series::ours(name, points.collect())
    }

    pub(super) fn panel(
        &self,
        title: &str,
        y: (&str, Unit),
        series: impl IntoIterator<Item = Series>,
    ) -> Panel {
        let is_there = |line: &Series| line.points.iter().any(|(_, y)| *y != 0.0);
        Panel::new(title, self.unit().0, y, series.into_iter().filter(is_there).collect())
    }
}
