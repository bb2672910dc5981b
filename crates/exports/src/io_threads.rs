//! The I/O threads of a server: started together, watched, joined.
//!
//! A thread makes its [`Service`] itself, since a ring belongs to the thread that made it, says
//! whether it could, serves until the order to stop (stop.rs), and reports how it ended. Called by
//! the start and the end of both servers.
//!
//! Invariant: whenever a thread panics or its service fails, [`Failed`] is set before
//! [`IoThreads::wait`] sees the thread ended.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use millrace_block::{Error, ErrorKind};
use millrace_machine::{CpuId, Native, NativeThread};
use millrace_runtime::{JoinOutcome, join_within};

/// Longest time for threads to end that have reported: their rings wait 5 s for drives.
const LET_GO: Duration = Duration::from_secs(6);

/// What runs on an I/O thread.
pub(crate) trait Service {
    /// What it says at its end.
    type Report: Send + 'static;

    /// Why it does not use io_uring, if it does not.
    fn fallback_reason(&mut self) -> Option<String>;

    /// Serves until the order to stop.
    ///
    /// # Errors
    /// `System` if the ring fails.
    fn serve(&mut self) -> Result<(), Error>;

    /// Ends its work in order after [`Service::serve`], which returned this. Gives its report, and
    /// how long it may still wait for drives, in nanoseconds.
    fn finish(&mut self, served: Result<(), Error>) -> (Self::Report, u64);

    /// Lets go of everything, which waits for a drive that hangs: last, and after the report.
    fn let_go(self, left_ns: u64);
}

/// Whether an I/O thread of a server panicked, or ended before the order to stop.
#[derive(Debug, Clone, Default)]
pub(crate) struct Failed(Arc<AtomicBool>);

impl Failed {
    pub(crate) fn set(&self) {
        // Release pairs with the Acquire of `is_set`.
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn is_set(&self) -> bool {
        // Acquire pairs with the Release of `set`.
        self.0.load(Ordering::Acquire)
    }
}

/// Sets `Failed` when its thread panics.
struct OnPanic(Failed);

impl Drop for OnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.set();
        }
    }
}

/// Name and CPU of a thread.
pub(crate) struct Place {
    pub(crate) name: String,
    /// The CPU that it is pinned to, if it is.
    pub(crate) cpu: Option<CpuId>,
}

/// The CPU of thread `index` where threads are pinned to `cpus` in turn; none if there are none.
pub(crate) fn cpu_of(cpus: &[u32], index: usize) -> Option<CpuId> {
    (!cpus.is_empty()).then(|| CpuId(cpus[index % cpus.len()]))
}

/// How a thread reports: whether it could start, with a note if it has one; how it ended; and that
/// it lives, by a sender that is dropped when the thread ends.
type Reporter<R> = (Sender<Result<Option<String>, Error>>, Sender<R>, Sender<()>);

/// The I/O threads of a server or of one of its exports, which report an `R` each.
pub(crate) struct IoThreads<R> {
    threads: Vec<NativeThread>,
    ended: Receiver<R>,
    /// Hung up when all threads have ended.
    alive: Receiver<()>,
}

impl<R: Send + 'static> IoThreads<R> {
    /// Starts a thread at each place, with the service that is made there, and returns when all of
    /// them serve: the threads, and their notes for a person or why one could not start. The others
    /// run nevertheless, until they are told to stop.
    pub(crate) fn start<S, F>(
        failed: &Failed,
        places: impl Iterator<Item = (Place, F)>,
    ) -> (IoThreads<R>, Result<Vec<String>, Error>)
    where
        S: Service<Report = R>,
        F: FnOnce() -> Result<S, Error> + Send + 'static,
    {
        let ((started, starts), (ended, ends), (living, alive)) = (channel(), channel(), channel());
        let reporter: Reporter<R> = (started, ended, living);
        let (mut threads, mut refused) = (Vec::new(), None);
        for (place, make) in places {
            match spawn(place, failed.clone(), reporter.clone(), make) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    refused = Some(Error::new(ErrorKind::System, error.to_string()));
                    break;
                }
            }
        }
        drop(reporter);
        let died = || Err(Error::new(ErrorKind::System, "an I/O thread died"));
        let starts = threads.iter().map(|_| starts.recv().unwrap_or_else(|_| died()));
        let notes = starts.collect::<Result<Vec<_>, Error>>();
        let notes = refused.map_or(notes, Err);
        let notes = notes.map(|notes| notes.into_iter().flatten().collect());
        (IoThreads { threads, ended: ends, alive }, notes)
    }

    /// Whether there is none, or all are joined.
    pub(crate) fn is_empty(&self) -> bool {
        self.threads.is_empty()
    }

    /// Waits until all threads have ended, but no longer than that; whether they have.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        // Nobody sends anything: the last of them to end hangs up.
        self.alive.recv_timeout(limit) != Err(RecvTimeoutError::Timeout)
    }

    /// Waits for the end of all threads, for [`LET_GO`] at most.
    pub(crate) fn join(&mut self) -> JoinOutcome {
        join_within(std::mem::take(&mut self.threads), LET_GO)
    }

    /// What the threads reported so far, once each.
    pub(crate) fn reports(&self) -> impl Iterator<Item = R> {
        self.ended.try_iter()
    }

    /// Takes the next report; none if there is none within `limit`, or all threads have reported
    /// that do. The second value tells the two apart.
    pub(crate) fn next_report(&self, limit: Duration) -> (Option<R>, bool) {
        match self.ended.recv_timeout(limit) {
            Ok(report) => (Some(report), false),
            Err(error) => (None, error == RecvTimeoutError::Disconnected),
        }
    }
}

/// Starts one thread.
fn spawn<S, F>(
    place: Place,
    failed: Failed,
    reporter: Reporter<S::Report>,
    make: F,
) -> io::Result<NativeThread>
where
    S: Service,
    F: FnOnce() -> Result<S, Error> + Send + 'static,
{
    let body = move || {
        // Dropped last: whoever sees all threads ended sees `Failed` too.
        let (started, ended, _alive) = reporter;
        let _on_panic = OnPanic(failed.clone());
        let mut service = match make() {
            Ok(service) => service,
            Err(error) => {
                // Start-up may have given up already because of another thread.
                let _ = started.send(Err(error));
                return;
            }
        };
        let why = service.fallback_reason();
        let note = why.map(|why| format!("io_uring is refused ({why}); using epoll and threads"));
        let _ = started.send(Ok(note));
        drop(started);
        let served = service.serve();
        if served.is_err() {
            failed.set();
        }
        let (report, left_ns) = service.finish(served);
        let _ = ended.send(report);
        drop(ended);
        service.let_go(left_ns);
    };
    Native::try_spawn(&place.name, place.cpu, body)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A service that does at once what its name says.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Played {
        Serves,
        FallsBack,
        Fails,
        Panics,
    }

    impl Service for Played {
        type Report = Vec<String>;

        fn fallback_reason(&mut self) -> Option<String> {
            (*self == Played::FallsBack).then(|| "played".to_owned())
        }

        fn serve(&mut self) -> Result<(), Error> {
            assert!(*self != Played::Panics, "as is expected");
            match self {
                Played::Fails => Err(Error::new(ErrorKind::System, "the ring failed")),
                _ => Ok(()),
            }
        }

        fn finish(&mut self, served: Result<(), Error>) -> (Vec<String>, u64) {
            (served.err().iter().map(ToString::to_string).collect(), 0)
        }

        fn let_go(self, _: u64) {}
    }

    /// Threads with these services, and whether one of them failed.
    pub(crate) fn played(services: &[Played]) -> (IoThreads<Vec<String>>, Failed) {
        let (failed, place) = (Failed::default(), || Place { name: "t".to_owned(), cpu: None });
        let makers = services.iter().copied().map(|one| (place(), move || Ok(one)));
        let (threads, notes) = IoThreads::start(&failed, makers);
        let falls_back = services.iter().filter(|one| **one == Played::FallsBack);
        assert_eq!(notes.map_or(usize::MAX, |notes| notes.len()), falls_back.count());
        (threads, failed)
    }

    #[test]
    fn a_thread_that_panics_or_fails_says_so_and_the_others_report_nevertheless() {
        for (services, whole, fails, reports) in [
            (vec![Played::Serves, Played::FallsBack], true, false, vec![0, 0]),
            (vec![Played::Fails, Played::Serves], true, true, vec![0, 1]),
            (vec![Played::Serves, Played::Panics, Played::Serves], false, true, vec![0, 0]),
        ] {
            let (mut threads, failed) = played(&services);
            assert!(!threads.is_empty());
            assert!(threads.wait(Duration::from_secs(20)), "all of them end by themselves");
            let joined = if whole { JoinOutcome::Ended } else { JoinOutcome::Panicked };
            assert_eq!((threads.join(), failed.is_set()), (joined, fails), "{services:?}");
            let mut found: Vec<usize> = threads.reports().map(|report| report.len()).collect();
            found.sort_unstable();
            assert_eq!((found, threads.is_empty()), (reports, true), "{services:?}");
        }
    }

    #[test]
    fn a_thread_that_cannot_start_is_told_of_and_no_failure_of_the_server() {
        let (failed, place) = (Failed::default(), Place { name: "t".to_owned(), cpu: None });
        let make = || Err::<Played, _>(Error::new(ErrorKind::System, "no ring"));
        let (mut threads, notes) = IoThreads::start(&failed, [(place, make)].into_iter());
        assert!(notes.is_err_and(|error| error.to_string().contains("no ring")));
        assert_eq!((threads.join(), failed.is_set()), (JoinOutcome::Ended, false));
        assert!(threads.reports().next().is_none());
    }

    /// A service that serves until the test hangs up.
    struct Waits(Receiver<()>);

    impl Service for Waits {
        type Report = ();

        fn fallback_reason(&mut self) -> Option<String> {
            None
        }

        fn serve(&mut self) -> Result<(), Error> {
            assert!(self.0.recv().is_err(), "nothing is sent");
            Ok(())
        }

        fn finish(&mut self, _: Result<(), Error>) -> ((), u64) {
            ((), 0)
        }

        fn let_go(self, _: u64) {}
    }

    #[test]
    fn a_wait_ends_with_the_last_thread_or_when_its_time_is_up() {
        let (hold, held) = channel();
        let places = [(Place { name: "t".to_owned(), cpu: None }, move || Ok(Waits(held)))];
        let (mut threads, _) = IoThreads::start(&Failed::default(), places.into_iter());
        assert!(!threads.wait(Duration::from_millis(20)));
        drop(hold);
        assert!(threads.wait(Duration::from_secs(20)) && threads.join() == JoinOutcome::Ended);
    }

    #[test]
    fn threads_are_dealt_out_to_cpus_in_turn() {
        let cpus = [0, 1, 2, 3, 7].map(|index| cpu_of(&[8, 3, 5], index).map(|cpu| cpu.0));
        assert_eq!(cpus, [8, 3, 5, 8, 3].map(Some));
        assert_eq!(cpu_of(&[], 7).map(|cpu| cpu.0), None);
    }
}
