//! Clients that break, vanish, stall or lie must affect nobody else.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use crate::server_support::{
    BACKENDS, MIB, order, pattern, read, read_to_end, request, serve, write,
};
use millrace_clients::nbd::Client;
use millrace_nbd::wire::{OPT_EXPORT_NAME, put_option};
use millrace_nbd::{Command, ReplyStyle, Request, encode_request};

/// Negotiates by hand for export 0, with simple replies.
fn by_hand(running: &crate::server_support::Running) -> std::os::unix::net::UnixStream {
    let mut socket = running.raw();
    let mut greeting = [0; 18];
    socket.read_exact(&mut greeting).unwrap();
    let mut out = 3u32.to_be_bytes().to_vec();
    put_option(&mut out, OPT_EXPORT_NAME, b"0");
    // Byte by byte: every header is split everywhere.
    for byte in out {
        socket.write_all(&[byte]).unwrap();
    }
    let mut answer = [0; 10];
    socket.read_exact(&mut answer).unwrap();
    socket
}

fn header(request: &Request) -> Vec<u8> {
    let mut out = [0; 32];
    let bytes = encode_request(request, ReplyStyle::Simple, &mut out);
    out[..bytes].to_vec()
}

#[test]
fn requests_that_come_byte_by_byte_are_served() {
    for backend in BACKENDS {
        let running = serve(&["ram:size=1m"], |config| config.backend = backend);
        let mut socket = by_hand(&running);
        let mut bytes = header(&request(Command::Write, 512, 512));
        bytes.extend(pattern(5, 512));
        for byte in bytes {
            socket.write_all(&[byte]).unwrap();
        }
        socket.read_exact(&mut [0; 16]).unwrap();
        for byte in header(&request(Command::Read, 512, 512)) {
            socket.write_all(&[byte]).unwrap();
        }
        let mut reply = [0; 16 + 512];
        socket.read_exact(&mut reply).unwrap();
        assert!(reply[16..] == pattern(5, 512));
    }
}

#[test]
fn garbage_closes_its_connection_only() {
    for backend in BACKENDS {
        let running = serve(&["ram:size=1m"], |config| config.backend = backend);
        let mut good = running.unix("0");
        write(&mut good, 0, &pattern(1, 4096));
        let mut in_handshake = running.raw();
        in_handshake.write_all(&[0xff; 64]).unwrap();
        read_to_end(in_handshake);
        let mut in_transmission = by_hand(&running);
        in_transmission.write_all(&[0xff; 64]).unwrap();
        read_to_end(in_transmission);
        running.until("both are counted", |r| r.server.stats().protocol_errors == 2);
        assert!(read(&mut good, 0, 4096) == pattern(1, 4096));
    }
}

#[test]
fn silent_client_is_closed_after_the_handshake_timeout() {
    for backend in BACKENDS {
        let running = serve(&["ram:size=1m"], |config| {
            config.backend = backend;
            config.handshake_timeout = Duration::from_secs(1);
        });
        let mut good = running.unix("0");
        let started = Instant::now();
        read_to_end(running.raw());
        assert!(started.elapsed() >= Duration::from_millis(900));
        assert!(started.elapsed() < Duration::from_secs(10));
        running.until("it is counted", |r| r.server.stats().handshake_timeouts == 1);
        write(&mut good, 0, &pattern(1, 512));
    }
}

#[test]
fn longest_handshake_timeout_is_for_ever_and_not_at_once() {
    for backend in BACKENDS {
        let running = serve(&["ram:size=1m"], |config| {
            config.backend = backend;
            config.handshake_timeout = Duration::MAX;
        });
        let _silent = running.raw();
        std::thread::sleep(Duration::from_millis(50));
        write(&mut running.unix("0"), 0, &pattern(1, 512));
        let stats = running.server.stats();
        assert_eq!(stats.handshake_timeouts, 0);
    }
}

#[test]
fn clients_that_vanish_mid_request_leave_nothing_behind() {
    for backend in BACKENDS {
        let specs = ["ram:size=64m", "fault:drive=(ram:size=64m),latency=2ms"];
        let running = serve(&specs, |config| config.backend = backend);
        ["0", "1"].iter().for_each(|name| running.scatter(name, 40));
        for round in 0..100u64 {
            let mut client = running.unix(if round % 4 == 0 { "1" } else { "0" });
            for index in 0..round % 40 {
                let order = Request { cookie: index, ..request(Command::Read, index * MIB, MIB) };
                client.submit(&order, vec![0; 1 << 20]).unwrap();
            }
            client.flush().unwrap();
            drop(client);
            let mut socket = by_hand(&running);
            socket.write_all(&header(&request(Command::Write, 0, MIB))).unwrap();
            socket.write_all(&vec![1; (round * 1999 % (1 << 20)) as usize / 8]).unwrap();
        }
        running.until_empty();
        running.stop();
    }
}

#[test]
fn slow_reader_does_not_hold_up_others() {
    for backend in BACKENDS {
        let running = serve(&["ram:size=64m"], |config| {
            config.backend = backend;
            config.threads = 1;
        });
        running.scatter("0", 1);
        let mut slow = running.unix("0");
        for index in 0..200u64 {
            let order = Request { cookie: index, ..request(Command::Read, 0, 128 * 1024) };
            slow.submit(&order, vec![0; 128 * 1024]).unwrap();
        }
        slow.flush().unwrap();
        let mut other = running.unix("0");
        for index in 0..100u64 {
            write(&mut other, index * 4096, &pattern(index, 4096));
        }
        assert_eq!(slow.wait(200, |done| assert_eq!(done.errno, None)).unwrap(), 200);
    }
}

#[test]
fn little_memory_slows_requests_down_and_stops_none() {
    for backend in BACKENDS {
        let running = serve(&["ram:size=64m"], |config| {
            config.backend = backend;
            config.memory_max_bytes = 4 << 20;
        });
        running.scatter("0", 1);
        let mut clients: Vec<Client> = (0..4).map(|_| running.unix("0")).collect();
        for client in &mut clients {
            for index in 0..32u64 {
                let order = Request { cookie: index, ..request(Command::Read, 0, MIB) };
                client.submit(&order, vec![0; 1 << 20]).unwrap();
            }
            client.flush().unwrap();
        }
        let readers = clients.drain(..).map(|mut client| {
            std::thread::spawn(move || {
                client.wait(32, |done| assert_eq!(done.errno, None)).unwrap();
                client
            })
        });
        let readers: Vec<_> = readers.collect();
        let mut clients: Vec<_> = readers.into_iter().map(|one| one.join().unwrap()).collect();
        assert!(running.server.stats().buffer_bytes <= 4 << 20);
        let refused = order(&mut clients[0], Command::Flush, 0, 0, 0);
        assert_eq!(refused, None);
    }
}

#[test]
fn more_connections_than_allowed_are_closed_at_once() {
    let running = serve(&["ram:size=1m"], |config| config.connections_max = 2);
    let (mut one, mut two) = (running.unix("0"), running.unix("0"));
    read_to_end(running.raw());
    running.until("it is counted", |r| r.server.stats().connections_refused == 1);
    write(&mut one, 0, &pattern(1, 512));
    assert!(read(&mut two, 0, 512) == pattern(1, 512));
    drop(one);
    running.until("the connection is gone", |running| running.server.stats().connections == 1);
    running.unix("0");
}

#[test]
fn stop_answers_what_is_in_flight() {
    for backend in BACKENDS {
        let running = serve(&["null:size=1g,delay=100ms"], |config| config.backend = backend);
        let mut client = running.unix("0");
        for index in 0..100u64 {
            let order = Request { cookie: index, ..request(Command::Read, index * 4096, 4096) };
            client.submit(&order, vec![1; 4096]).unwrap();
        }
        client.flush().unwrap();
        running.until("all are in flight", |running| running.server.stats().requests == 100);
        let stopping = std::thread::spawn(move || running.stop());
        assert_eq!(client.wait(100, |done| assert_eq!(done.errno, None)).unwrap(), 100);
        stopping.join().unwrap();
    }
}

#[test]
fn dead_socket_file_is_replaced_and_a_live_one_is_not() {
    let running = serve(&["ram:size=1m"], |_| ());
    let mut config = millrace_exports::nbd::ServerConfig::default();
    config.exports.push(millrace_exports::nbd::ExportConfig::new(
        "x",
        crate::server_support::volume("ram:size=1m", 1),
    ));
    let listen = |path| {
        let listen = millrace_exports::nbd::Listen::Unix(path);
        millrace_exports::nbd::ListenConfig::new(listen, vec![0])
    };
    config.listeners = vec![listen(running.path())];
    let error = millrace_exports::nbd::Server::start(config.clone()).err().unwrap();
    assert_eq!(error.kind(), millrace_block::ErrorKind::Busy);
    let dir = tempfile::tempdir().unwrap();
    let stale = dir.path().join("s");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    assert!(stale.exists());
    config.listeners = vec![listen(stale)];
    drop(millrace_exports::nbd::Server::start(config).unwrap());
}
