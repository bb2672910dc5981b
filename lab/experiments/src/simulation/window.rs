//! `Window`: which part of a run is measured: warm-up cut off at its begin, draining at its end.
//!
//! Shared by all jobs of a row; each reports what it has completed. The job that completes the last
//! I/O of the warm-up opens the window, the one that reaches its length closes it, and everybody
//! stops. Counting is free on the simulated machine: a program's own bookkeeping is no part of what
//! is measured.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use millrace_machine::Machine;

use crate::load::bench::Interrupt;

/// Rounds of outstanding I/O that warm up.
const WARM_ROUNDS: u64 = 5;
/// Rounds that are measured unless the length is given.
const ROUNDS: u64 = 20;
/// Least I/Os of each job in all measured rounds, where a round is short.
const IOS_MIN: u64 = 400;

/// How long a row is measured, after its warm-up of five rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Length {
    /// Twenty rounds of what is outstanding, whatever the rate; 400 I/Os a job at least.
    #[default]
    Rounds,
    /// So many nanoseconds of the machine's time.
    Time(u64),
    /// So many I/Os of each job, on average.
    Ios(u64),
}

impl Length {
    /// The time, if it is one; else 0.
    pub(crate) fn time_ns(self) -> u64 {
        if let Length::Time(length_ns) = self { length_ns } else { 0 }
    }
}

/// What a count of I/Os did to the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WindowStep {
    /// Nothing.
    Nothing,
    /// Opened it: the warm-up is over.
    Begin,
    /// Closed it.
    End,
}

/// Where the window begins or ends.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Edge {
    pub(crate) at_ns: u64,
    pub(crate) ios: u64,
}

/// The measured part of a run.
#[derive(Debug)]
pub(crate) struct Window {
    /// I/Os in it; none if its length is a time.
    ios: Option<u64>,
    length_ns: u64,
    done: AtomicU64,
    /// I/Os at which somebody must look at the edges.
    look_at: AtomicU64,
    over: AtomicBool,
    edges: Mutex<(Option<Edge>, Option<Edge>)>,
    /// Closes the window early, or lets nothing be measured if it has not begun.
    interrupt: Interrupt,
}

impl Window {
    /// A window for `jobs` jobs with `iodepth` I/Os in flight each.
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

    /// The window, which ends early if this is set.
    pub(crate) fn ended_by(self, interrupt: &Interrupt) -> Window {
        Window { interrupt: interrupt.clone(), ..self }
    }

    /// A window that opens after so many operations and is `length_ns` long.
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

    /// Whether jobs are to stop.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Relaxed) || self.interrupt.is_set()
    }

    /// Whether what is done now is measured.
    pub(crate) fn is_open(&self) -> bool {
        let edges = self.edges.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(*edges, (Some(_), None))
    }

    /// A job has completed some; a job that ends says so with 0, as it may be the one that sees an
    /// interrupt.
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
        let mut edges = self.edges.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Nanoseconds and I/Os measured.
    pub(crate) fn measured(&self) -> (u64, u64) {
        match *self.edges.lock().unwrap_or_else(PoisonError::into_inner) {
            (Some(begin), Some(end)) => {
                (end.at_ns.saturating_sub(begin.at_ns), end.ios.saturating_sub(begin.ios))
            }
            _ => (0, 0),
        }
    }

    /// When it began; 0 if it has not.
    pub(crate) fn begin_ns(&self) -> u64 {
        let edges = self.edges.lock().unwrap_or_else(PoisonError::into_inner);
        edges.0.map_or(0, |edge| edge.at_ns)
    }

    /// All I/Os that were counted.
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
    fn an_interrupt_closes_the_window_where_it_stands_and_opens_none() {
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
