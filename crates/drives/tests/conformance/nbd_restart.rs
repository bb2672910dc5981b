//! The NBD drive over restarts of its server: with room for fewer or more connections, with the
//! export renamed, and without unflushed writes; and the stop of a daemon while the server is gone.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use millrace_block::{
    Bio, Buffer, Disk, DiskConfig, Layout, OpFlags, Status, Volume, prepare_stop,
};
use millrace_drives::{NbdConfig, NbdDriver, OnServerRestart};
use millrace_nbd::TransmissionFlags;
use millrace_reactor::Backend;

use crate::harness::{BACKENDS, Drives, Rig, buffer_of, has_uring, pattern};
use crate::nbd_server::{ALL, Act, Server};

const SIZE: u64 = 8 << 20;
const THREADS: u16 = 4;

fn config(server: &Server) -> NbdConfig {
    let uri = server.uri();
    let reconnect = Duration::from_secs(20);
    NbdConfig { reconnect, ..NbdConfig::new(uri.parse().unwrap(), uri) }
}

fn drives_of(config: NbdConfig, timeout: Duration) -> Arc<Drives> {
    let io_threads = config.io_threads;
    let driver = Box::new(NbdDriver::open(config).unwrap());
    let disk = DiskConfig { name: "d0".into(), io_threads, timeout, ..DiskConfig::default() };
    let disk = Disk::new(driver, disk).unwrap();
    Arc::new(Drives::around(Volume::new("v", Layout::Linear, vec![disk]).unwrap()))
}

fn disk(drives: &Drives) -> &Arc<Disk<millrace_machine::Native>> {
    &drives.volume.disks()[0]
}

fn backends() -> impl Iterator<Item = Backend> {
    BACKENDS.into_iter().filter(|backend| *backend == Backend::Epoll || has_uring())
}

/// Restarts the server with room for `limit` connections; 0 for any number.
fn restart(server: &Server, limit: usize) {
    server.state.closed.store(true, Ordering::SeqCst);
    server.hang_up();
    std::thread::sleep(Duration::from_millis(30));
    server.state.limit.store(limit, Ordering::SeqCst);
    server.state.closed.store(false, Ordering::SeqCst);
}

/// Writes, flushes and reads back in a region of the thread's own.
fn work(rig: &mut Rig, number: u16, rounds: std::ops::Range<u64>) {
    let first = u64::from(number) * 2048;
    for round in rounds {
        for place in 0..8 {
            let sector = first + place * 128;
            rig.submit(Bio::write(sector, buffer_of(&pattern(sector, 40 << 10, round))));
        }
        rig.submit(Bio::flush());
        let all = rig.drain();
        assert!(all.iter().all(|done| done.status == Status::Ok), "thread {number}: {all:?}");
        for place in 0..8 {
            let sector = first + place * 128;
            assert!(rig.read(sector, 40 << 10) == pattern(sector, 40 << 10, round), "{round}");
        }
    }
}

/// Runs `body` on each of the threads, which go on serving until all are through.
fn on_threads(drives: &Arc<Drives>, backend: Backend, body: impl Fn(&mut Rig, u16) + Sync) {
    let (through, opened) = (AtomicUsize::new(0), Barrier::new(THREADS.into()));
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let (body, through, opened) = (&body, &through, &opened);
            let drives = Arc::clone(drives);
            scope.spawn(move || {
                let mut rig = Rig::of(drives, backend, number);
                opened.wait();
                body(&mut rig, number);
                through.fetch_add(1, Ordering::SeqCst);
                rig.until("all threads", |_| through.load(Ordering::SeqCst) == THREADS.into());
            });
        }
    });
}

/// The news of a drive until they contain this text.
fn news_with(drives: &Drives, text: &str) -> String {
    let mut all = String::new();
    let deadline = Instant::now() + Duration::from_secs(10);
    while !all.contains(text) {
        assert!(Instant::now() < deadline, "no {text:?} in: {all}");
        all += &disk(drives).take_news().join("\n");
        std::thread::sleep(Duration::from_millis(50));
    }
    all
}

#[test]
fn threads_without_a_connection_send_by_those_that_have_one() {
    for (before, after) in [(0, 2), (2, 2), (0, 1), (1, 0), (2, 3)] {
        for backend in backends() {
            println!("{backend}: {before} connections, then {after}");
            let server = Server::new(SIZE, ALL, &[]);
            server.state.limit.store(before, Ordering::SeqCst);
            let drives =
                drives_of(NbdConfig { io_threads: THREADS, ..config(&server) }, Duration::ZERO);
            on_threads(&drives, backend, |rig, number| {
                work(rig, number, 1..4);
                if number == 0 {
                    restart(&server, after);
                }
                work(rig, number, 4..12);
                if number == 0 && after > 0 {
                    let line = format!("{after} of 4 connections carry all requests");
                    news_with(&rig.drives, &line);
                }
            });
        }
    }
}

/// Without MULTI_CONN a flush covers only its own connection, so the drive uses one connection.
#[test]
fn export_without_multi_conn_has_one_connection_meanwhile() {
    for backend in backends() {
        let server = Server::new(SIZE, ALL, &[]);
        let drives =
            drives_of(NbdConfig { io_threads: THREADS, ..config(&server) }, Duration::ZERO);
        let restart_with = |flags| {
            server.state.closed.store(true, Ordering::SeqCst);
            server.hang_up();
            while !server.state.streams.lock().unwrap().is_empty() {
                std::thread::sleep(Duration::from_millis(5));
            }
            *server.state.flags.lock().unwrap() = flags;
            server.state.used_max.store(0, Ordering::SeqCst);
            server.state.closed.store(false, Ordering::SeqCst);
        };
        let turn = AtomicUsize::new(0);
        let all_at = |rig: &mut Rig, count: u16| {
            turn.fetch_add(1, Ordering::SeqCst);
            rig.until("all", |_| turn.load(Ordering::SeqCst) >= usize::from(count * THREADS));
        };
        on_threads(&drives, backend, |rig, number| {
            work(rig, number, 1..4);
            if number == 0 {
                restart_with(ALL.without(TransmissionFlags::MULTI_CONN));
            }
            work(rig, number, 4..12);
            all_at(rig, 1);
            if number == 0 {
                let mut said = String::new();
                rig.until("the count", |rig| {
                    std::thread::sleep(Duration::from_millis(20));
                    said += &disk(&rig.drives).take_news().join("\n");
                    said.contains("1 of 4 connections carry all requests")
                });
                let trouble = disk(&rig.drives).failures().trouble.unwrap_or_default();
                assert!(trouble.contains("(multi-conn)"), "{trouble}");
                assert_eq!(server.state.used_max.load(Ordering::SeqCst), 1);
                restart_with(ALL);
            }
            work(rig, number, 12..16);
            rig.until("all connections", |rig| disk(&rig.drives).failures().trouble.is_none());
            work(rig, number, 16..18);
        });
        assert!(server.state.used_max.load(Ordering::SeqCst) > 1);
    }
}

#[test]
fn server_that_ends_connections_is_retried_ever_more_slowly() {
    for backend in backends() {
        for act in [Act::ShutDown(0), Act::Garbage(0)] {
            let server = Server::new(SIZE, ALL, &[act; 10_000]);
            let drives =
                drives_of(NbdConfig { io_threads: THREADS, ..config(&server) }, Duration::ZERO);
            on_threads(&drives, backend, |rig, number| {
                if number > 0 {
                    return;
                }
                rig.submit(Bio::read(0, Buffer::new(4096)));
                let begun = Instant::now();
                rig.until("1.5 s", |_| begun.elapsed() > Duration::from_millis(1500));
                // Pauses of 10 ms and twice as much each time are 8 rounds of 4 connections.
                let sessions = server.sessions();
                assert!(sessions < 60, "{sessions} connections");
                let said = disk(&rig.drives).take_news();
                assert!(said.len() < 10, "{said:?}");
                rig.until("the reason", |rig| {
                    let trouble = disk(&rig.drives).failures().trouble.unwrap_or_default();
                    let is_garbage = trouble.starts_with("no connection: ")
                        && !trouble.contains("a connection is being made");
                    trouble == "no connection: the server is shutting down"
                        || act == Act::Garbage(0) && is_garbage
                });
                server.state.script.lock().unwrap().clear();
                assert!(rig.drain().iter().all(|done| done.status == Status::Ok));
            });
        }
    }
}

/// An attempt to connect ends with the time that requests wait.
#[test]
fn silent_server_holds_requests_no_longer_than_reconnect() {
    let server = Server::new(SIZE, ALL, &[]);
    let drives = drives_of(
        NbdConfig { reconnect: Duration::from_secs(1), ..config(&server) },
        Duration::ZERO,
    );
    let mut rig = Rig::of(Arc::clone(&drives), Backend::Epoll, 0);
    work(&mut rig, 0, 1..2);
    server.state.mute.store(true, Ordering::SeqCst);
    server.state.closed.store(true, Ordering::SeqCst);
    server.hang_up();
    let _only_one = loop {
        std::thread::sleep(Duration::from_millis(30));
        server.state.limit.store(1, Ordering::SeqCst);
        server.state.closed.store(false, Ordering::SeqCst);
        let mut stream = std::os::unix::net::UnixStream::connect(&server.path).unwrap();
        if std::io::Read::read(&mut stream, &mut [0; 8]).unwrap() > 0 {
            break stream;
        }
    };
    let begun = Instant::now();
    assert_eq!(rig.run(Bio::read(0, Buffer::new(4096))).status, Status::Offline);
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}

/// The first of the connections that are missing is waited for at the start, and no other one.
#[test]
fn server_that_keeps_further_clients_waiting_delays_start_once() {
    let server = Server::new(SIZE, ALL, &[]);
    server.state.limit.store(1, Ordering::SeqCst);
    server.state.mute.store(true, Ordering::SeqCst);
    let begun = Instant::now();
    let drives = drives_of(
        NbdConfig { io_threads: 1, connections: Some(4), ..config(&server) },
        Duration::ZERO,
    );
    let mut rig = Rig::of(Arc::clone(&drives), Backend::Epoll, 0);
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
    work(&mut rig, 0, 1..3);
    let trouble = disk(&drives).failures().trouble.unwrap_or_default();
    assert!(trouble.starts_with("1 of 4 connections: "), "{trouble}");
}

#[test]
fn forwarded_request_without_answer_times_out_and_others_go_on() {
    for backend in backends() {
        let server = Server::new(SIZE, ALL, &[Act::Silent(0)]);
        server.state.limit.store(1, Ordering::SeqCst);
        let config = NbdConfig { io_threads: THREADS, ..config(&server) };
        let drives = drives_of(config, Duration::from_millis(400));
        let turn = Barrier::new(THREADS.into());
        on_threads(&drives, backend, |rig, number| {
            let begun = Instant::now();
            if number == 3 {
                let status = rig.run(Bio::read(0, Buffer::new(4096))).status;
                assert_eq!(status, Status::TimedOut);
                assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
            } else {
                let second_ns = begun + Duration::from_millis(1500);
                rig.until("the timeout", |_| Instant::now() > second_ns);
            }
            turn.wait();
            work(rig, number, 1..3);
        });
    }
}

#[test]
fn a_refusal_is_said_at_the_first_try() {
    let server = Server::new(SIZE, ALL, &[]);
    let drives = drives_of(config(&server), Duration::ZERO);
    let mut rig = Rig::of(Arc::clone(&drives), Backend::Epoll, 0);
    work(&mut rig, 0, 1..2);
    assert_eq!(disk(&drives).failures().trouble, None);
    server.state.renamed.store(true, Ordering::SeqCst);
    restart(&server, 0);
    let begun = Instant::now();
    let no_export = "there is no export \"x\"; there are \"y\"";
    let mut said = String::new();
    rig.until("the refusal", |rig| {
        said += &disk(&rig.drives).take_news().join("\n");
        said.contains("the server refuses the drive's reconnect: ") && said.contains(no_export)
    });
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let trouble = disk(&drives).failures().trouble.unwrap_or_default();
    assert!(trouble.starts_with("no connection: ") && trouble.contains(no_export), "{trouble}");
    server.state.renamed.store(false, Ordering::SeqCst);
    work(&mut rig, 0, 2..3);
    assert_eq!(disk(&drives).failures().trouble, None);
}

/// Writes, restarts the server, and returns the statuses of two flushes, or of two writes with FUA.
/// Each failure, and nothing else, must be explained once in the drive's messages.
fn restarted(config: NbdConfig, server: &Server, (flushes, fua): (bool, bool)) -> [Status; 2] {
    let drives = drives_of(config, Duration::ZERO);
    let mut rig = Rig::of(Arc::clone(&drives), Backend::Epoll, 0);
    (0..6).for_each(|place| rig.write(place * 64, &pattern(place * 64, 4096, 1)));
    if flushes {
        rig.run_ok(Bio::flush());
    }
    let before = server.sessions();
    restart(server, 0);
    rig.until("the reconnect", |_| server.sessions() > before);
    [(); 2].map(|()| {
        let write = Bio::write(0, buffer_of(&[1; 512])).with_flags(OpFlags::FUA);
        let status = rig.run(if fua { write } else { Bio::flush() }).status;
        let said = disk(&drives).take_news().join("\n");
        let explained =
            said.matches("which may have lost writes that were not flushed, so").count();
        assert_eq!(explained, usize::from(status != Status::Ok), "{said}");
        status
    })
}

#[test]
fn next_flush_after_a_restart_fails_once_if_requested() {
    let (ok, failed) = (Status::Ok, Status::IoError);
    for connections in [1, 3] {
        for (on_server_restart, write_through, how, expected) in [
            (OnServerRestart::GoOn, false, (false, false), [ok, ok]),
            (OnServerRestart::FlushError, false, (false, false), [failed, ok]),
            (OnServerRestart::FlushError, false, (false, true), [failed, ok]),
            (OnServerRestart::FlushError, false, (true, false), [ok, ok]),
            (OnServerRestart::FlushError, true, (false, true), [ok, ok]),
        ] {
            let server = Server::new(SIZE, ALL, &[]);
            let connections = Some(connections);
            let config =
                NbdConfig { on_server_restart, write_through, connections, ..config(&server) };
            assert_eq!(restarted(config, &server, how), expected, "{connections:?} {how:?}");
        }
    }
}

#[test]
fn drive_on_a_hung_server_stops_at_once_if_flushed() {
    for (writes, flushes) in [(0, 0), (1, 1), (1, 0)] {
        let server = Server::new(SIZE, ALL, &[Act::Silent(writes + flushes)]);
        let drives = drives_of(config(&server), Duration::from_secs(1));
        let mut rig = Rig::of(Arc::clone(&drives), Backend::Epoll, 0);
        (0..writes).for_each(|_| rig.write(0, &[1; 4096]));
        (0..flushes).for_each(|_| drop(rig.run_ok(Bio::flush())));
        prepare_stop(disk(&drives));
        let begun = Instant::now();
        let status = rig.run(Bio::flush()).status;
        let waited = begun.elapsed();
        match writes == flushes {
            true => {
                assert!(status == Status::Ok && waited.as_millis() < 500, "{status:?} {waited:?}")
            }
            false => assert_eq!(status, Status::TimedOut),
        }
    }
}

#[test]
fn drive_without_its_server_stops_at_once_if_flushed() {
    for (writes, flushes) in [(false, false), (true, true), (true, false)] {
        let server = Server::new(SIZE, ALL, &[]);
        let reconnect = Duration::from_secs(2);
        let drives = drives_of(NbdConfig { reconnect, ..config(&server) }, Duration::ZERO);
        let mut rig = Rig::of(Arc::clone(&drives), Backend::Epoll, 0);
        if writes {
            rig.write(0, &[1; 4096]);
        }
        if flushes {
            rig.run_ok(Bio::flush());
        }
        server.state.closed.store(true, Ordering::SeqCst);
        server.hang_up();
        rig.until("the loss", |rig| disk(&rig.drives).failures().trouble.is_some());
        prepare_stop(disk(&drives));
        let begun = Instant::now();
        let status = rig.run(Bio::flush()).status;
        let waited = begun.elapsed();
        match writes && !flushes {
            true => assert!(status == Status::Offline && waited > Duration::from_secs(1)),
            false => assert!(status == Status::Ok && waited < Duration::from_secs(1), "{waited:?}"),
        }
    }
}

#[test]
fn reconnect_without_a_thread_is_tried_again() {
    std::thread::spawn(|| {
        let server = Server::new(SIZE, ALL, &[]);
        std::fs::set_permissions(server.path.parent().unwrap(), Permissions::from_mode(0o755))
            .unwrap();
        std::fs::set_permissions(&server.path, Permissions::from_mode(0o777)).unwrap();
        let drives = drives_of(config(&server), Duration::ZERO);
        let mut rig = Rig::of(Arc::clone(&drives), Backend::Epoll, 0);
        rig.write(0, &[1; 4096]);
        if millrace_require::become_user().is_none() {
            return;
        }
        millrace_require::limit_threads(1);
        server.hang_up();
        rig.submit(Bio::read(0, Buffer::new(4096)));
        rig.until("the refusal", |rig| {
            let trouble = disk(&rig.drives).failures().trouble.unwrap_or_default();
            trouble.contains("cannot start the thread millrace-nbd: ")
        });
        millrace_require::limit_threads(2);
        assert_eq!(rig.drain()[0].status, Status::Ok);
    })
    .join()
    .unwrap();
}
