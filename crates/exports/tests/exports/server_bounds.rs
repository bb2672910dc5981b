//! Limits of the server's waits: clients that write before they read, read nothing or stop
//! half-way, and drives that are stuck when the server stops; and counts of drives' errors.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::server_support::{
    BACKENDS, MIB, Running, order, pattern, read, read_to_end, request, serve, write,
};
use millrace_block::ErrorKind;
use millrace_exports::nbd::{ExportConfig, Listen, ListenConfig, Server, ServerConfig};
use millrace_nbd::wire::{OPT_EXPORT_NAME, put_option};
use millrace_nbd::{Command, Errno, ReplyStyle, Request, encode_request};

/// A raw connection to export 0, with simple replies.
fn by_hand(running: &Running) -> UnixStream {
    let mut socket = running.raw();
    socket.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
    socket.read_exact(&mut [0; 18]).unwrap();
    let mut out = 3u32.to_be_bytes().to_vec();
    put_option(&mut out, OPT_EXPORT_NAME, b"0");
    socket.write_all(&out).unwrap();
    socket.read_exact(&mut [0; 10]).unwrap();
    socket
}

fn header(command: Command, offset: u64, length: u64) -> Vec<u8> {
    let mut out = [0; 32];
    let bytes = encode_request(&request(command, offset, length), ReplyStyle::Simple, &mut out);
    out[..bytes].to_vec()
}

fn config(spec: &str, path: PathBuf) -> ServerConfig {
    let export = ExportConfig::new("x", crate::server_support::volume(spec, 1));
    let listener = ListenConfig::new(Listen::Unix(path), vec![0]);
    ServerConfig { exports: vec![export], listeners: vec![listener], ..ServerConfig::default() }
}

#[test]
fn client_that_writes_long_before_reading_replies_is_served() {
    for backend in BACKENDS {
        let running = serve(&["ram:size=16m"], |config| config.backend = backend);
        let mut socket = by_hand(&running);
        for round in 0..20 {
            socket.write_all(&header(Command::Read, 0, 64 * 1024)).unwrap();
            // The reply is under way and not read.
            let requests = 3 * round + 1;
            running.until("the read is taken", |r| r.server.stats().requests == requests);
            std::thread::sleep(Duration::from_millis(5));
            socket.write_all(&header(Command::Flush, 0, 0)).unwrap();
            socket.write_all(&header(Command::Write, MIB, MIB)).unwrap();
            socket.write_all(&pattern(round, 1 << 20)).unwrap();
            socket.read_exact(&mut vec![0; 3 * 16 + 64 * 1024]).unwrap();
        }
        assert!(read(&mut running.unix("0"), MIB, 1 << 20) == pattern(19, 1 << 20));
    }
}

#[test]
fn client_that_reads_late_after_many_reads_is_served() {
    const READS: u64 = 64;
    for backend in BACKENDS {
        let running = serve(&["ram:size=16m"], |config| config.backend = backend);
        running.scatter("0", 1);
        let mut socket = by_hand(&running);
        for round in 0..5 {
            // More replies than the socket's buffer holds, and more than a connection has in hand
            // at a time.
            let reads: Vec<_> =
                (0..READS).flat_map(|_| header(Command::Read, 0, 64 * 1024)).collect();
            socket.write_all(&reads).unwrap();
            socket.write_all(&header(Command::Write, MIB, MIB)).unwrap();
            socket.write_all(&pattern(round, 1 << 20)).unwrap();
            socket.read_exact(&mut vec![0; READS as usize * (16 + 64 * 1024) + 16]).unwrap();
        }
        assert!(read(&mut running.unix("0"), MIB, 1 << 20) == pattern(4, 1 << 20));
    }
}

#[test]
fn connection_that_reads_no_replies_holds_eighth_of_memory() {
    for backend in BACKENDS {
        let running = serve(&["ram:size=64m"], |config| {
            config.backend = backend;
            config.threads = 1;
            config.memory_max_bytes = 8 << 20;
        });
        running.scatter("0", 1);
        let mut slow = running.unix("0");
        for index in 0..16u64 {
            let order = Request { cookie: index, ..request(Command::Read, 0, MIB) };
            slow.submit(&order, vec![0; 1 << 20]).unwrap();
        }
        slow.flush().unwrap();
        running.until("it holds its share", |r| r.server.stats().buffers_in_use == 1);
        let mut other = running.unix("0");
        let patterns: Vec<_> = (0..20).map(|index| pattern(index, 1 << 20)).collect();
        let started = Instant::now();
        for (index, data) in (0..).zip(&patterns) {
            write(&mut other, index * MIB, data);
            assert!(running.server.stats().buffers_in_use <= 2);
        }
        assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
        assert_eq!(slow.wait(16, |done| assert_eq!(done.errno, None)).unwrap(), 16);
        drop((slow, other));
        running.until_empty();
    }
}

#[test]
fn one_request_larger_than_the_share_of_a_connection_is_served() {
    let running = serve(&["ram:size=64m"], |config| config.memory_max_bytes = 8 << 20);
    running.scatter("0", 1);
    let mut client = running.unix("0");
    for index in 0..4u64 {
        let order = Request { cookie: index, ..request(Command::Read, 0, 8 * MIB) };
        client.submit(&order, vec![0; 8 << 20]).unwrap();
    }
    assert_eq!(client.wait(4, |done| assert_eq!(done.errno, None)).unwrap(), 4);
}

#[test]
fn clients_that_stand_still_are_closed_and_idle_ones_are_not() {
    for backend in BACKENDS {
        let running = serve(&["ram:size=64m"], |config| config.backend = backend);
        running.server.set_stall_timeout(Duration::from_millis(200));
        let mut idle = running.unix("0");
        write(&mut idle, 0, &pattern(1, 4096));
        let started = Instant::now();
        let mut reads_nothing = by_hand(&running);
        reads_nothing.write_all(&header(Command::Read, 0, 16 * MIB)).unwrap();
        let mut stops_half_way = by_hand(&running);
        let half_way = [header(Command::Write, 0, MIB), vec![1; 1000]].concat();
        stops_half_way.write_all(&half_way).unwrap();
        running.until("both are closed", |r| r.server.stats().stalled == 2);
        assert!(started.elapsed() >= Duration::from_millis(200));
        read_to_end(reads_nothing);
        read_to_end(stops_half_way);
        assert!(read(&mut idle, 0, 4096) == pattern(1, 4096));
        running.until("the memory is back", |r| r.server.stats().buffers_in_use == 0);
        assert_eq!(running.server.stats().stalled, 2);
    }
}

#[test]
fn slow_client_that_moves_is_not_closed() {
    let running = serve(&["ram:size=64m"], |_| ());
    running.server.set_stall_timeout(Duration::from_secs(1));
    let mut socket = by_hand(&running);
    socket.write_all(&header(Command::Write, 0, 20 * 512)).unwrap();
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(100));
        socket.write_all(&[7; 512]).unwrap();
    }
    socket.read_exact(&mut [0; 16]).unwrap();
    assert_eq!(running.server.stats().stalled, 0);
}

#[test]
fn stop_is_bounded_whatever_number_of_volumes_is_stuck() {
    for backend in BACKENDS {
        let stuck = "fault:drive=(ram:size=1m),volatile=on,stuck=on";
        let running = serve(&[stuck, stuck, stuck, "ram:size=1m"], |config| {
            config.backend = backend;
        });
        let mut clients: Vec<_> = (0..3).map(|name| running.unix(&name.to_string())).collect();
        for client in &mut clients {
            client.submit(&request(Command::Read, 0, 4096), vec![0; 4096]).unwrap();
            client.flush().unwrap();
        }
        running.until("they are in flight", |r| r.server.stats().requests_in_flight == 3);
        let started = Instant::now();
        let report = running.server.stop(Duration::from_millis(500));
        assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
        assert_eq!(report.cut_off, 3);
        let late = report.failures.iter().filter(|text| text.contains("did not answer in time"));
        // Thread 0 flushes all used volumes; the other thread flushes those that it has lanes of.
        assert!((3..=6).contains(&late.count()), "{report:?}");
    }
}

#[test]
fn thread_that_cannot_start_holds_up_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let file = format!("file:path={}/d,size=1m", dir.path().display());
    let mut config = config(&file, dir.path().join("one"));
    config.exports[0].volume = crate::server_support::volume(&file.replace("/d,", "/e,"), 3);
    let one = Server::start(config.clone()).unwrap();
    config.threads = 3;
    config.listeners[0].listen = Listen::Unix(dir.path().join("other"));
    let started = Instant::now();
    let error = Server::start(config).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Busy, "thread 0 of the first server has the queue");
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
    drop(one);
}

#[test]
fn of_servers_that_find_a_dead_socket_file_one_gets_it() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..20 {
        let path = dir.path().join(round.to_string());
        drop(UnixListener::bind(&path).unwrap());
        let starts: Vec<_> = (0..4)
            .map(|_| {
                let config = config("null:size=1m", path.clone());
                std::thread::spawn(move || Server::start(config))
            })
            .collect();
        let started: Vec<_> = starts.into_iter().map(|one| one.join().unwrap()).collect();
        assert_eq!(started.iter().filter(|one| one.is_ok()).count(), 1);
        for error in started.iter().filter_map(|one| one.as_ref().err()) {
            assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        }
        UnixStream::connect(&path).unwrap();
    }
}

#[test]
fn socket_of_another_program_is_left_alone_even_if_idle() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let _listener = UnixListener::bind(&path).unwrap();
    let started = Instant::now();
    let error = Server::start(config("null:size=1m", path.clone())).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(started.elapsed() < Duration::from_secs(8));
    UnixStream::connect(&path).unwrap();
}

#[test]
fn volume_of_8_eib_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let error = Server::start(config("null:size=8192p", dir.path().join("s"))).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidSetting);
    assert!(error.to_string().contains("export \"x\"") && error.to_string().contains("8 EiB"));
}

#[test]
fn errors_of_drives_count_for_the_export_and_of_clients_not() {
    let bad = "fault:drive=(ram:size=1m),status=enospc,op=write";
    let running = serve(&["ram:size=1m", bad], |_| ());
    let (mut good, mut bad) = (running.unix("0"), running.unix("1"));
    write(&mut good, 0, &[1; 512]);
    assert_eq!(order(&mut good, Command::Read, 0, 0, 0), Some(Errno::Einval));
    for _ in 0..3 {
        let done = crate::server_support::call(&mut bad, Command::Write, 0, vec![1; 512]);
        assert_eq!(done.errno, Some(Errno::Enospc));
    }
    let errors = running.server.errors();
    let counts: Vec<_> = errors.iter().map(|one| (one.export.as_str(), one.count)).collect();
    assert_eq!(counts, [("0", 0), ("1", 3)]);
    assert_eq!((errors[0].last, errors[1].last), ("", "no space left on the drive"));
    assert!(!running.server.has_failed());
}
