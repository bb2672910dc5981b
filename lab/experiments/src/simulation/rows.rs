//! Runs many simulations in parallel, one system thread for each, because each simulation is
//! single-threaded.
//!
//! Verbs call `run_rows` with all simulations of an experiment; each gives one row of a table.
//! Results are in the order of the rows, not in the order in which simulations end. So an
//! experiment's output does not depend on the number of simulations that run in parallel.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::PoisonError;

use crate::load::bench::BenchError;
use millrace_machine::lock_unpoisoned;

/// Runs `count` simulations in parallel on all CPUs. Calls `run(index)` for each simulation, and
/// `done(index)` after it. After an error no further simulations start.
///
/// # Errors
/// If simulations fail, returns the error of the failed simulation with the lowest index.
pub fn run_rows<T: Send>(
    count: usize,
    run: impl Fn(usize) -> Result<T, BenchError> + Sync,
    done: impl FnMut(usize) + Send,
) -> Result<Vec<T>, BenchError> {
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(count);
    let next = Mutex::new(0usize);
    let (done, results) = (Mutex::new(done), Mutex::new(Vec::new()));
    let work = || {
        while let Some(index) = take(&next, count) {
            let result = run(index);
            if result.is_err() {
                *lock_unpoisoned(&next) = count;
            }
            lock_unpoisoned(&results).push((index, result));
            lock_unpoisoned(&done)(index);
        }
    };
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

fn take(next: &Mutex<usize>, count: usize) -> Option<usize> {
    let mut next = lock_unpoisoned(next);
    let index = *next;
    *next += usize::from(index < count);
    (index < count).then_some(index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::row::Row;

    #[test]
    fn results_come_in_the_order_of_the_rows() {
        let mut ended = 0;
        let run = |index: usize| {
            std::thread::sleep(std::time::Duration::from_millis(5 * (3 - index as u64)));
            Ok(Row { ios: index as u64, ..Row::default() })
        };
        let rows = run_rows(4, run, |_| ended += 1).expect("no row may fail");
        assert_eq!(rows.iter().map(|row| row.ios).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(ended, 4);
    }

    #[test]
    fn the_first_error_ends_it() {
        let run = |index: usize| match index {
            0 => Ok(Row::default()),
            _ => Err(BenchError::Workload(format!("row {index}"))),
        };
        let error = run_rows(64, run, |_| ()).expect_err("row 1");
        assert_eq!(error.to_string(), "row 1");
    }
}
