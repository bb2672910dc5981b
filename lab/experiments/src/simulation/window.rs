//! `Window`: the measured part of a run, without warm-up at its start and draining at its end.
//!
//! All jobs (submitting threads) of a run share the window and report their completions. The job
//! that completes the last I/O of the warm-up opens the window. The job whose completion reaches
//! the window's length closes the window; all jobs then stop. Counting takes no virtual time on a
//! simulated machine, because a benchmark program's bookkeeping is not part of the measurement.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use millrace_machine::Machine;

use crate::load::bench::Interrupt;
use millrace_machine::lock_unpoisoned;

/// Number of rounds in the warm-up. A round is as many I/Os as are in flight at a time.
const WARM_ROUNDS: u64 = 5;
/// Number of measured rounds, unless the plan sets the window's length. A round is as many I/Os as
/// are in flight at a time.
const ROUNDS: u64 = 20;
/// Minimum number of measured I/Os per job. Takes effect if the I/O depth is so low that `ROUNDS`
/// rounds have fewer I/Os.
const IOS_MIN: u64 = 400;

/// Length of a run's measured window. Before the window, the run warms up with five times `iodepth`
/// I/Os per job, but at least 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Length {
    /// A measured window of 20 times `iodepth` I/Os per job, but at least 400.
    #[default]
    Rounds,
    /// Measurement for a number of nanoseconds, by the machine's clock.
    Time(u64),
    /// A measured window with this number of I/Os per job, on average over the jobs.
    Ios(u64),
}

impl Length {
    pub(crate) fn time_ns(self) -> u64 {
        if let Length::Time(length_ns) = self { length_ns } else { 0 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WindowStep {
    Nothing,
    Begin,
    End,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Edge {
    pub(crate) at_ns: u64,
    pub(crate) ios: u64,
}

#[derive(Debug)]
pub(crate) struct Window {
    /// Number of I/Os in the window, for all jobs together. `None` if the window's length is a
    /// time.
    ios: Option<u64>,
    length_ns: u64,
    done: AtomicU64,
    /// Minimum number of completed I/Os for `count` to check if the measured window begins or ends.
    /// After Ctrl-C, `count` always checks.
    look_at: AtomicU64,
    over: AtomicBool,
    edges: Mutex<(Option<Edge>, Option<Edge>)>,
    interrupt: Interrupt,
}

impl Window {
    pub(crate) fn new(length: Length, jobs: u32, iodepth: u32) -> Window {
        let (jobs, depth) = (u64::from(jobs), u64::from(iodepth));
        let ios = match length {
            Length::Rounds => Some(jobs * (ROUNDS * depth).max(IOS_MIN)),
            Length::Time(_) => None,
            Length::Ios(ios) => Some(jobs.saturating_mul(ios)),
        };
        let warm = jobs * (WARM_ROUNDS * depth).max(IOS_MIN / 4);
        Window {
            ios,
            length_ns: length.time_ns(),
            done: AtomicU64::new(0),
            look_at: AtomicU64::new(warm),
            over: AtomicBool::new(false),
            edges: Mutex::new((None, None)),
            interrupt: Interrupt::default(),
        }
    }

    pub(crate) fn ended_by(self, interrupt: &Interrupt) -> Window {
        Window { interrupt: interrupt.clone(), ..self }
    }

    pub(crate) fn after(operations: u64, length_ns: u64) -> Window {
        Window {
            ios: None,
            length_ns,
            done: AtomicU64::new(0),
            look_at: AtomicU64::new(operations),
            over: AtomicBool::new(false),
            edges: Mutex::new((None, None)),
            interrupt: Interrupt::default(),
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Relaxed) || self.interrupt.is_set()
    }

    pub(crate) fn is_open(&self) -> bool {
        let edges = lock_unpoisoned(&self.edges);
        matches!(*edges, (Some(_), None))
    }

    /// Counts `ios` completed I/Os of a job, and begins or ends the measured window if it is time.
    /// Each job must make its last call with 0 I/Os. After Ctrl-C, this last call closes the window
    /// even if no more I/Os complete.
    #[inline]
    pub(crate) fn count<M: Machine>(&self, ios: u64) -> WindowStep {
        let done = self.done.fetch_add(ios, Relaxed) + ios;
        match done >= self.look_at.load(Relaxed) || self.interrupt.is_set() {
            true => self.look::<M>(done),
            false => WindowStep::Nothing,
        }
    }

    fn look<M: Machine>(&self, done: u64) -> WindowStep {
        let now_ns = M::now();
        let mut edges = lock_unpoisoned(&self.edges);
        let edge = Edge { at_ns: now_ns, ios: done };
        match *edges {
            (None, _) if done < self.look_at.load(Relaxed) => WindowStep::Nothing,
            (None, _) => {
                edges.0 = Some(edge);
                self.look_at.store(done + self.ios.unwrap_or(0), Relaxed);
                WindowStep::Begin
            }
            (Some(begin), None) => {
                let enough = match self.ios {
                    _ if self.interrupt.is_set() => true,
                    Some(ios) => done >= begin.ios + ios,
                    None => now_ns >= begin.at_ns + self.length_ns,
                };
                if enough {
                    edges.1 = Some(edge);
                    self.look_at.store(u64::MAX, Relaxed);
                    self.over.store(true, Relaxed);
                    return WindowStep::End;
                }
                WindowStep::Nothing
            }
            _ => WindowStep::Nothing,
        }
    }

    pub(crate) fn measured(&self) -> (u64, u64) {
        match *lock_unpoisoned(&self.edges) {
            (Some(begin), Some(end)) => {
                (end.at_ns.saturating_sub(begin.at_ns), end.ios.saturating_sub(begin.ios))
            }
            _ => (0, 0),
        }
    }

    /// Returns the start of the measured window, or 0 if the window has not opened.
    pub(crate) fn begin_ns(&self) -> u64 {
        let edges = lock_unpoisoned(&self.edges);
        edges.0.map_or(0, |edge| edge.at_ns)
    }

    pub(crate) fn total(&self) -> u64 {
        self.done.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_machine::Native;

    #[test]
    fn warm_up_and_what_comes_after_the_end_are_not_measured() {
        let window = Window::new(Length::Ios(100), 2, 1);
        let count = |ios| window.count::<Native>(ios);
        assert!(count(200) == WindowStep::Begin && !window.is_over());
        assert_eq!(count(199), WindowStep::Nothing);
        assert!(count(1) == WindowStep::End && window.is_over());
        assert_eq!(count(7), WindowStep::Nothing);
        assert_eq!((window.measured().1, window.total()), (200, 407));
    }

    #[test]
    fn interrupt_closes_window_where_it_stands_and_opens_none() {
        let interrupt = Interrupt::default();
        let window = || Window::new(Length::Ios(100), 2, 1).ended_by(&interrupt);
        let (begun, warming) = (window(), window());
        begun.count::<Native>(200);
        begun.count::<Native>(50);
        warming.count::<Native>(7);
        interrupt.set();
        assert!(begun.is_over() && warming.is_over());
        assert_eq!(
            (begun.count::<Native>(0), begun.count::<Native>(1)),
            (WindowStep::End, WindowStep::Nothing)
        );
        assert_eq!(begun.measured().1, 50);
        assert_eq!(warming.count::<Native>(0), WindowStep::Nothing);
        assert_eq!(warming.measured(), (0, 0));
    }
}
