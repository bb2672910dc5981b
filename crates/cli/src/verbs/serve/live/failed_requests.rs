//! Number of requests that each drive failed in the last minute.
//!
//! The kernel has no such count, and SMART has only totals, which stay high after a drive has
//! recovered.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use millrace_console::counted;
use millrace_machine::lock_unpoisoned;

use super::served_lists::NamedStates;

const WINDOW: Duration = Duration::from_secs(60);
const MOMENT: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub struct FailedRequests(Mutex<NamedStates<FailureWindow>>);

impl FailedRequests {
    /// Takes each drive's name and total number of failures. Returns each drive's failures of the
    /// last minute.
    pub fn look<'a>(
        &self,
        counts: impl Iterator<Item = (&'a str, u64)> + Clone,
        now: Instant,
    ) -> Vec<u64> {
        let mut windows = lock_unpoisoned(&self.0);
        let windows = windows.of(counts.clone().map(|(drive, _)| drive)).iter_mut();
        windows.zip(counts).map(|(window, (_, count))| window.look(count, now)).collect()
    }
}

#[derive(Debug, Clone, Default)]
struct FailureWindow {
    count: u64,
    recent: VecDeque<(Instant, u64)>,
}

impl FailureWindow {
    fn look(&mut self, count: u64, now: Instant) -> u64 {
        let new = count.saturating_sub(self.count);
        self.count = count;
        match self.recent.back_mut() {
            _ if new == 0 => {}
            Some((since, failed)) if now.saturating_duration_since(*since) < MOMENT => {
                *failed += new;
            }
            _ => self.recent.push_back((now, new)),
        }
        while let Some((at, _)) = self.recent.front()
            && now.saturating_duration_since(*at) >= WINDOW
        {
            self.recent.pop_front();
        }
        self.recent.iter().map(|(_, failed)| failed).sum()
    }
}

pub fn drive_problem(drive: &str, failed: u64, trouble: Option<&str>) -> Option<String> {
    let failed_requests = || counted(failed as usize, "failed request");
    let failures = (failed > 0).then(|| format!("{} in the last minute", failed_requests()));
    let words: Vec<&str> = failures.as_deref().into_iter().chain(trouble).collect();
    (!words.is_empty()).then(|| format!("drive {drive}: {}", words.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_for_a_minute_and_then_forgotten() {
        let (failed, start) = (FailedRequests::default(), Instant::now());
        let look = |counts: [u64; 2], ms| {
            let counts = ["d0", "d1"].into_iter().zip(counts);
            failed.look(counts, start + Duration::from_millis(ms))
        };
        assert_eq!(look([0, 3], 0), [0, 3]);
        assert_eq!(look([1, 3], 500), [1, 3]);
        assert_eq!(look([25, 3], 1_400), [25, 3]);
        assert_eq!(look([25, 3], 59_999), [25, 3]);
        assert_eq!(look([25, 3], 60_000), [25, 0]);
        assert_eq!(look([26, 3], 60_500), [1, 0]);
        assert_eq!(look([26, 3], 120_499), [1, 0]);
        assert_eq!(look([26, 3], 120_500), [0, 0]);
    }

    #[test]
    fn a_storm_of_looks_keeps_one_entry_a_second() {
        let (mut window, start) = (FailureWindow::default(), Instant::now());
        for at in 0..100_000 {
            window.look(at + 1, start + Duration::from_millis(at));
        }
        assert!(window.recent.len() <= 61, "{}", window.recent.len());
    }

    #[test]
    fn a_problem_names_the_drive_its_failures_and_its_trouble() {
        let said = |failed, trouble| drive_problem("d1", failed, trouble);
        assert_eq!(said(0, None), None);
        assert_eq!(said(25, None).unwrap(), "drive d1: 25 failed requests in the last minute");
        assert_eq!(said(1, None).unwrap(), "drive d1: 1 failed request in the last minute");
        assert_eq!(said(0, Some("no server")).unwrap(), "drive d1: no server");
        let both = "drive d1: 2 failed requests in the last minute, no server";
        assert_eq!(said(2, Some("no server")).unwrap(), both);
    }
}
