//! The I/O threads of a server: starts them together, watches them, and joins them.
//!
//! Each thread creates its own [`Service`], because a ring belongs to the thread that created it.
//!
//! Invariant: if a thread panics or its service fails, [`FailedFlag`] is set before
//! [`IoThreads::wait`] sees the thread end.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use millrace_block::{Error, ErrorKind};
use millrace_machine::{CpuId, Native, NativeThread};
use millrace_runtime::{JoinOutcome, join_within};

/// Maximum time to wait for the threads to end after their final reports. Longer than the 5 s for
/// which a thread's ring waits for drives.
const LET_GO: Duration = Duration::from_secs(6);

pub(crate) trait Service {
    type Report: Send + 'static;

    fn fallback_reason(&mut self) -> Option<String>;

    fn serve(&mut self) -> Result<(), Error>;

    /// Completes the requests in flight, after [`Service::serve`] has returned `served`. Returns
    /// the final report, and the number of nanoseconds for which the thread may still wait for
    /// drives.
    fn finish(&mut self, served: Result<(), Error>) -> (Self::Report, u64);

    /// Frees all resources of the service at the end of its thread. Waits up to `left_ns`
    /// nanoseconds for drives that do not answer.
    fn let_go(self, left_ns: u64);
}

/// True once an I/O thread of the server has panicked, or [`Service::serve`] has failed. A thread
/// that cannot start does not set the flag. All clones share the flag.
#[derive(Debug, Clone, Default)]
pub(crate) struct FailedFlag(Arc<AtomicBool>);

impl FailedFlag {
    pub(crate) fn set(&self) {
        // Release pairs with the Acquire of `is_set`.
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn is_set(&self) -> bool {
        // Acquire pairs with the Release of `set`.
        self.0.load(Ordering::Acquire)
    }
}

struct PanicGuard(FailedFlag);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.set();
        }
    }
}

pub(crate) struct ThreadPlace {
    pub(crate) name: String,
    pub(crate) cpu: Option<CpuId>,
}

pub(crate) fn cpu_of(cpus: &[CpuId], index: usize) -> Option<CpuId> {
    (!cpus.is_empty()).then(|| cpus[index % cpus.len()])
}

/// Channels from an I/O thread to the server:
/// - The result of the thread's start, with an optional note for the operator.
/// - The thread's final report.
/// - A channel without messages, which disconnects when all threads have ended.
type Reporter<R> = (Sender<Result<Option<String>, Error>>, Sender<R>, Sender<()>);

pub(crate) struct IoThreads<R> {
    threads: Vec<NativeThread>,
    ended: Receiver<R>,
    /// Receiver that disconnects when all threads have ended.
    alive: Receiver<()>,
}

impl<R: Send + 'static> IoThreads<R> {
    /// Starts one I/O thread for each element of `places`: the thread's name and CPU, and a
    /// function that creates its service. Waits until all threads serve or one has failed to start.
    /// Returns the threads with notes for the operator, or the first error. After an error the
    /// other threads continue to run.
    pub(crate) fn start<S, F>(
        failed: &FailedFlag,
        places: impl Iterator<Item = (ThreadPlace, F)>,
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

    pub(crate) fn is_empty(&self) -> bool {
        self.threads.is_empty()
    }

    pub(crate) fn wait(&self, limit: Duration) -> bool {
        // Nothing is ever sent on this channel: the last thread to end disconnects it.
        self.alive.recv_timeout(limit) != Err(RecvTimeoutError::Timeout)
    }

    pub(crate) fn join(&mut self) -> JoinOutcome {
        join_within(std::mem::take(&mut self.threads), LET_GO)
    }

    pub(crate) fn reports(&self) -> impl Iterator<Item = R> {
        self.ended.try_iter()
    }

    /// Waits up to `limit` for the final report of an I/O thread. The second value is true if no
    /// report can follow, because all threads have sent theirs or have ended.
    pub(crate) fn next_report(&self, limit: Duration) -> (Option<R>, bool) {
        match self.ended.recv_timeout(limit) {
            Ok(report) => (Some(report), false),
            Err(error) => (None, error == RecvTimeoutError::Disconnected),
        }
    }
}

fn spawn<S, F>(
    place: ThreadPlace,
    failed: FailedFlag,
    reporter: Reporter<S::Report>,
    make: F,
) -> io::Result<NativeThread>
where
    S: Service,
    F: FnOnce() -> Result<S, Error> + Send + 'static,
{
    let body = move || {
        // `_alive` is dropped after `_on_panic`: the thread counts as ended only after `FailedFlag`
        // was set.
        let (started, ended, _alive) = reporter;
        let _on_panic = PanicGuard(failed.clone());
        let mut service = match make() {
            Ok(service) => service,
            Err(error) => {
                // The receiver no longer exists if the start has already failed because of another
                // thread.
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

    /// Services of I/O threads for tests. Each variant ends at once, in the way that its name says.
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

    /// Starts one thread for each test service in `services`. Returns the threads, and the flag
    /// that is set if one of them fails.
    pub(crate) fn played(services: &[Played]) -> (IoThreads<Vec<String>>, FailedFlag) {
        let (failed, place) =
            (FailedFlag::default(), || ThreadPlace { name: "t".to_owned(), cpu: None });
        let makers = services.iter().copied().map(|one| (place(), move || Ok(one)));
        let (threads, notes) = IoThreads::start(&failed, makers);
        let falls_back = services.iter().filter(|one| **one == Played::FallsBack);
        assert_eq!(notes.map_or(usize::MAX, |notes| notes.len()), falls_back.count());
        (threads, failed)
    }

    #[test]
    fn panicking_or_failing_thread_says_so_and_others_report() {
        for (services, whole, fails, reports) in [
            (vec![Played::Serves, Played::FallsBack], true, false, vec![0, 0]),
            (vec![Played::Fails, Played::Serves], true, true, vec![0, 1]),
            (vec![Played::Serves, Played::Panics, Played::Serves], false, true, vec![0, 0]),
        ] {
            let (mut threads, failed) = played(&services);
            assert!(!threads.is_empty());
            assert!(threads.wait(Duration::from_secs(20)), "the threads must end within 20 s");
            let joined = if whole { JoinOutcome::Ended } else { JoinOutcome::Panicked };
            assert_eq!((threads.join(), failed.is_set()), (joined, fails), "{services:?}");
            let mut found: Vec<usize> = threads.reports().map(|report| report.len()).collect();
            found.sort_unstable();
            assert_eq!((found, threads.is_empty()), (reports, true), "{services:?}");
        }
    }

    #[test]
    fn thread_that_cannot_start_is_told_of_and_no_failure_of_server() {
        let (failed, place) =
            (FailedFlag::default(), ThreadPlace { name: "t".to_owned(), cpu: None });
        let make = || Err::<Played, _>(Error::new(ErrorKind::System, "no ring"));
        let (mut threads, notes) = IoThreads::start(&failed, [(place, make)].into_iter());
        assert!(notes.is_err_and(|error| error.to_string().contains("no ring")));
        assert_eq!((threads.join(), failed.is_set()), (JoinOutcome::Ended, false));
        assert!(threads.reports().next().is_none());
    }

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
        let places = [(ThreadPlace { name: "t".to_owned(), cpu: None }, move || Ok(Waits(held)))];
        let (mut threads, _) = IoThreads::start(&FailedFlag::default(), places.into_iter());
        assert!(!threads.wait(Duration::from_millis(20)));
        drop(hold);
        assert!(threads.wait(Duration::from_secs(20)) && threads.join() == JoinOutcome::Ended);
    }

    #[test]
    fn threads_are_dealt_out_to_cpus_in_turn() {
        let pinned_to = [8, 3, 5].map(CpuId);
        let cpus = [0, 1, 2, 3, 7].map(|index| cpu_of(&pinned_to, index).map(|cpu| cpu.0));
        assert_eq!(cpus, [8, 3, 5, 8, 3].map(Some));
        assert_eq!(cpu_of(&[], 7).map(|cpu| cpu.0), None);
    }
}
