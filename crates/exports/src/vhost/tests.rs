//! Settings of exports, the threads' placement, and messages about failures.
#![allow(clippy::unwrap_used)] // Tests may.

pub(super) mod played;

use std::path::Path;
use std::time::Duration;

use millrace_drives::FaultCache;
use millrace_machine::Machine;

use super::*;
use crate::io_threads::tests::{Played, played};

fn export(socket: &Path) -> VhostExport {
    VhostExport {
        name: "v".to_owned(),
        volume: played::volume(FaultCache::Inner).0,
        read_only: false,
        socket: VhostSocket::Listen(socket.to_owned(), crate::SocketAccess::default()),
        queues: 4,
        threads: Threads::Count(2),
        cpus: Vec::new(),
        first_thread: 2,
        serial: String::new(),
        poll_max: Duration::from_nanos(5),
        wait_max: Duration::from_nanos(6),
        event_idx: true,
        tenant: 0,
        group: ClientGroup::default(),
    }
}

fn start(export: VhostExport) -> Result<VhostServer, Error> {
    let say: Say = Arc::new(|_| {});
    VhostServer::start(VhostConfig { exports: vec![export], backend: Backend::Epoll, say })
}

#[test]
fn senseless_settings_are_refused_and_limits_are_not() {
    let mut export = export(Path::new("/nowhere"));
    let mut check = |queues, serial: usize| {
        (export.queues, export.serial) = (queues, "s".repeat(serial));
        super::check(&export).map_err(|error| error.kind())
    };
    for (queues, serial, good) in [
        (1, 0, true),
        (QUEUES_MAX, ID_BYTES - 1, true),
        (1, ID_BYTES, true),
        (0, 0, false),
        (QUEUES_MAX + 1, 0, false),
        (1, ID_BYTES + 1, false),
        (1, 2 * ID_BYTES, false),
    ] {
        let expected = if good { Ok(()) } else { Err(ErrorKind::InvalidSetting) };
        assert_eq!(check(queues, serial), expected, "{queues} queues, serial of {serial}");
    }
}

#[test]
fn threads_have_the_settings_of_their_export() {
    let export = export(Path::new("/nowhere"));
    for backend in [Backend::Uring, Backend::Epoll] {
        let say: Say = Arc::new(|_| {});
        let shared = SharedExport::new(&export, GroupId::DEFAULT, (backend, &say)).unwrap();
        let settings = shared.common.config;
        assert_eq!(settings.reactor.backend, backend);
        assert_eq!((settings.poll_max_ns, settings.wait_max_ns), (5, 6));
    }
}

#[test]
fn only_the_older_design_locks_and_a_server_frees_its_socket() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    for threads in [Threads::Shared, Threads::Count(1), Threads::PerQueue] {
        let server = start(VhostExport { threads, ..export(&socket) }).unwrap();
        let is_shared = threads == Threads::Shared;
        assert_eq!(server.exports[0].shared.common.lock.is_some(), is_shared);
        assert_eq!((server.notes(), server.has_failed()), (&[][..], false));
        let observer = server.observer();
        let names = |errors: Vec<ExportErrors>| errors.into_iter().map(|one| one.export).collect();
        let (stats, errors): (_, Vec<String>) = (observer.stats(), names(observer.errors()));
        assert_eq!((stats.len(), stats[0].0.as_str(), errors), (1, "v", vec!["v".to_owned()]));
        assert_eq!(stats[0].1.len(), usize::from(threads.count(4, &[])));
        drop(server);
        assert!(!socket.exists(), "the next one can listen there");
    }
}

#[test]
fn what_went_wrong_and_what_there_is_to_know_is_passed_on() {
    let panicked = "thread panicked";
    for (io, control, expected) in [
        (Played::Serves, Played::Serves, vec![]),
        (Played::Fails, Played::Serves, vec!["the ring failed"]),
        (Played::Panics, Played::Serves, vec![panicked]),
        (Played::Serves, Played::Panics, vec![panicked]),
        (Played::Fails, Played::Panics, vec![panicked, "the ring failed"]),
    ] {
        let export = export(Path::new("/nowhere"));
        let (say, seat): (Say, _) = (Arc::new(|_| {}), ClientGroup::default().enter());
        let shared = SharedExport::new(&export, seat.group(), (Backend::Epoll, &say)).unwrap();
        let (threads, failed) = played(&[Played::Serves, io, Played::Serves]);
        let panics = control == Played::Panics;
        let control = Native::spawn("t", None, Box::new(move || assert!(!panics, "as expected")));
        let running = RunningExport {
            shared,
            threads,
            control: Some(control),
            _size: export.volume.watch_size(|_| {}),
            _seat: seat,
        };
        let server = VhostServer {
            exports: vec![running],
            failed,
            notes: vec!["a note".into()],
            backend: Backend::Epoll,
            say: Arc::new(|_: &str| ()),
        };
        assert_eq!(server.notes(), ["a note"]);
        assert!(server.exports[0].threads.wait(Duration::from_secs(20)));
        assert_eq!(server.has_failed(), io != Played::Serves, "{io:?}");
        let failures = server.stop(Duration::ZERO);
        assert_eq!(failures.len(), expected.len(), "{failures:?}");
        assert!(failures.iter().zip(&expected).all(|(found, text)| found.contains(text)));
    }
}
