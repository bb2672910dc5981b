//! One hour of one-second samples: totals, and series of the busiest volumes, drives and groups.
//!
//! The memory is at most 4 MiB: one sample per second, and up to 32 series of each kind with 8
//! bytes per second. If there are more names than series, a busier name takes over the series of
//! the least busy one, which then starts empty.

use std::collections::{HashMap, VecDeque};

use crate::views::history::{History, KEPT_S, SERIES_MAX, Sample, Series};

/// Seconds over which the load of a volume, drive or group is averaged.
const LOAD_S: f64 = 60.0;
/// Limit for replacing the least busy series: its load must be less than this fraction of the load
/// of the busiest volume, drive or group without a series.
const LAZY: f64 = 0.5;

/// I/Os of a volume, drive or group at one time: name, I/Os per second, I/Os in flight.
pub type Reading = (String, u32, u32);

#[derive(Debug, Default)]
pub struct SampleRing {
    samples: VecDeque<Sample>,
    volumes: BusiestSeries,
    drives: BusiestSeries,
    groups: BusiestSeries,
}

impl SampleRing {
    pub fn push(&mut self, sample: Sample, [volumes, drives, groups]: [Vec<Reading>; 3]) {
        push_back(&mut self.samples, sample);
        self.volumes.push(volumes);
        self.drives.push(drives);
        self.groups.push(groups);
    }

    pub fn last(&self, seconds: usize) -> History {
        let first = self.samples.len().saturating_sub(seconds);
        History {
            samples: self.samples.range(first..).cloned().collect(),
            volumes: self.volumes.last(seconds),
            drives: self.drives.last(seconds),
            groups: self.groups.last(seconds),
        }
    }
}

fn push_back<T>(ring: &mut VecDeque<T>, one: T) {
    if ring.len() == KEPT_S {
        ring.pop_front();
    }
    ring.push_back(one);
}

#[derive(Debug, Default)]
struct BusiestSeries {
    series: Vec<(String, VecDeque<(u32, u32)>)>,
    loads: HashMap<String, f64>,
}

impl BusiestSeries {
    fn push(&mut self, readings: Vec<Reading>) {
        let mut now = HashMap::new();
        for (name, ios, in_flight) in readings {
            let load = self.loads.remove(&name).unwrap_or(0.0);
            now.insert(name, (ios, in_flight, load + (f64::from(ios) - load) / LOAD_S));
        }
        self.loads = now.iter().map(|(name, (.., load))| (name.clone(), *load)).collect();
        self.series.retain(|(name, _)| now.contains_key(name));
        self.choose();
        for (name, values) in &mut self.series {
            if let Some((ios, in_flight, _)) = now.get(name) {
                push_back(values, (*ios, *in_flight));
            }
        }
    }

    /// Starts series for volumes, drives or groups that have none, the busiest first. If there are
    /// `SERIES_MAX` series already, the least busy one may be replaced instead; see `LAZY`.
    fn choose(&mut self) {
        if self.loads.len() == self.series.len() {
            return;
        }
        let has_series = |name: &String| self.series.iter().any(|(known, _)| known == name);
        let mut others: Vec<(&String, f64)> =
            self.loads.iter().map(|(name, load)| (name, *load)).collect();
        others.retain(|(name, _)| !has_series(name));
        others.sort_by(|(a, load_a), (b, load_b)| load_b.total_cmp(load_a).then_with(|| a.cmp(b)));
        let load_of = |(name, _): &(String, _)| self.loads.get(name).copied().unwrap_or(0.0);
        let room = SERIES_MAX - self.series.len();
        let laziest = (0..self.series.len())
            .min_by(|a, b| load_of(&self.series[*a]).total_cmp(&load_of(&self.series[*b])));
        match (laziest, others.first()) {
            (Some(at), Some((name, load)))
                if room == 0 && load_of(&self.series[at]) < load * LAZY =>
            {
                self.series[at] = ((*name).clone(), VecDeque::new());
            }
            _ => {
                let names = others.into_iter().take(room).map(|(name, _)| name.clone());
                self.series.extend(names.map(|name| (name, VecDeque::new())).collect::<Vec<_>>());
            }
        }
    }

    fn last(&self, seconds: usize) -> Vec<Series> {
        let one = |(name, values): &(String, VecDeque<(u32, u32)>)| {
            let first = values.len().saturating_sub(seconds);
            let (ios, in_flight) = values.range(first..).copied().unzip();
            Series { name: name.clone(), ios, in_flight }
        };
        self.series.iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(name: &str, ios: u32) -> Reading {
        (name.to_owned(), ios, ios / 10)
    }

    fn names(series: &BusiestSeries) -> Vec<String> {
        let mut names: Vec<String> = series.last(1).into_iter().map(|one| one.name).collect();
        names.sort();
        names
    }

    #[test]
    fn an_hour_is_kept_and_as_much_of_it_given_as_is_asked_for() {
        let mut ring = SampleRing::default();
        for second in 0..KEPT_S as u64 + 100 {
            let sample = Sample { unix_ms: second * 1000, ..Sample::default() };
            let readings = vec![reading("v", second as u32)];
            ring.push(sample, [readings.clone(), readings, Vec::new()]);
        }
        let all = ring.last(usize::MAX);
        assert_eq!((all.samples.len(), all.volumes[0].ios.len()), (KEPT_S, KEPT_S));
        assert_eq!((all.samples[0].unix_ms, all.volumes[0].ios[0]), (100_000, 100));
        let last = ring.last(2);
        assert_eq!(last.samples.len(), 2);
        let expected = Series { name: "v".into(), ios: vec![3698, 3699], in_flight: vec![369; 2] };
        assert_eq!((last.drives, last.groups), (vec![expected], Vec::new()));
        assert_eq!(SampleRing::default().last(9), History::default());
    }

    #[test]
    fn late_name_has_fewer_values_and_a_vanished_one_is_forgotten() {
        let mut series = BusiestSeries::default();
        series.push(vec![reading("a", 1)]);
        series.push(vec![reading("a", 2), reading("b", 3)]);
        let lengths: Vec<usize> = series.last(9).iter().map(|one| one.ios.len()).collect();
        assert_eq!(lengths, [2, 1]);
        series.push(vec![reading("b", 4)]);
        assert_eq!(names(&series), ["b"]);
        assert_eq!(series.loads.len(), 1);
    }

    #[test]
    fn of_more_names_than_series_the_busiest_are_kept() {
        let mut series = BusiestSeries::default();
        let all = |busy: usize| -> Vec<Reading> {
            let ios = |at: usize| if at == busy { 1000 } else { 10 + at as u32 };
            (0..SERIES_MAX + 8).map(|at| reading(&format!("d{at:02}"), ios(at))).collect()
        };
        series.push(all(usize::MAX));
        assert_eq!(names(&series).first().map(String::as_str), Some("d08"), "lazy ones are out");
        series.push(all(3));
        assert!(names(&series).contains(&"d03".to_owned()), "{:?}", names(&series));
        assert_eq!(series.series.len(), SERIES_MAX);
        // Names of nearly one load do not push each other out.
        let before = names(&series);
        (0..100).for_each(|_| series.push(all(3)));
        assert_eq!(names(&series), before);
    }
}
