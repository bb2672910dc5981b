//! Memory among clients: greedy ones, slow ones and large requests cost others their turn at most.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::server_support::{
    BACKENDS, MIB, Running, header, pattern, read, request, serve, serve_groups, write,
};
use millrace_block::Groups;
use millrace_clients::nbd::Client;
use millrace_nbd::{Command, Request};
use millrace_reactor::Backend;

/// A client that asks for 200 reads of 1 MiB and receives nothing.
fn greedy(running: &Running) -> UnixStream {
    let mut socket = running.by_hand("0");
    let reads: Vec<u8> = (0..200).flat_map(|_| header(Command::Read, 0, MIB)).collect();
    socket.write_all(&reads).unwrap();
    socket
}

fn served(running: &Running, others: usize) {
    let mut honest = running.unix("0");
    let started = Instant::now();
    for round in 0..400u64 {
        let (offset, data) = (MIB + round % 64 * 4096, pattern(round, 4096));
        write(&mut honest, offset, &data);
        assert!(read(&mut honest, offset, 4096) == data);
    }
    let took = started.elapsed();
    assert!(took < Duration::from_secs(10), "beside {others}: {took:?}");
    let stats = running.server.stats();
    assert!(stats.buffer_bytes <= 256 << 20, "{stats:?}");
}

#[test]
fn small_requests_go_on_beside_all_idle_receivers() {
    for backend in BACKENDS {
        for others in [8, 20, 200, 300] {
            let running = serve(&["ram:size=64m"], |config| config.backend = backend);
            running.scatter("0", 1);
            let greedy: Vec<_> = (0..others).map(|_| greedy(&running)).collect();
            served(&running, others);
            drop(greedy);
            running.until_empty();
        }
    }
}

#[test]
fn large_request_has_its_turn_beside_idle_receivers() {
    // The cases run at the same time: each mostly waits until its stalled clients are closed.
    thread::scope(|scope| {
        for backend in BACKENDS {
            for trickles in [false, true] {
                scope.spawn(move || has_its_turn(backend, trickles));
            }
        }
    });
}

/// Checks that a read of 32 MiB gets its turn beside clients that receive nothing or very little.
fn has_its_turn(backend: Backend, trickles: bool) {
    let running = serve(&["ram:size=64m"], |config| {
        config.backend = backend;
        config.memory_max_bytes = 64 << 20;
    });
    running.scatter("0", 48);
    // A rate is measured for no longer than this; a pause as long as this ends one too.
    running.server.set_stall_timeout(Duration::from_secs(2));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..64 {
            let mut socket = greedy(&running);
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_millis(250));
                    // Never a pause as long as the stall timeout, and 4 KiB per second.
                    if trickles && !matches!(socket.read(&mut [0; 1024]), Ok(1..)) {
                        return;
                    }
                }
            });
        }
        let mut honest = running.unix("0");
        let started = Instant::now();
        let whole = read(&mut honest, 0, 32 << 20);
        let took = started.elapsed();
        stop.store(true, Ordering::SeqCst);
        assert_eq!(whole.len(), 32 << 20);
        assert!(took < Duration::from_secs(20), "{took:?}");
        running.until("some are closed", |r| r.server.stats().stalled > 0);
    });
    running.until_empty();
}

#[test]
fn first_requests_of_2_mib_do_not_wait_for_idle_receivers() {
    for backend in BACKENDS {
        let running = serve(&["ram:size=64m"], |config| config.backend = backend);
        running.scatter("0", 48);
        let largest: Vec<u8> = (0..10).flat_map(|_| header(Command::Read, 0, 32 * MIB)).collect();
        let greedy: Vec<UnixStream> = (0..40).map(|_| running.by_hand("0")).collect();
        greedy.iter().for_each(|mut socket| socket.write_all(&largest).unwrap());
        running.until("large ones wait", |running| running.server.stats().buffer_bytes > 150 << 20);
        let started = Instant::now();
        for length in [64 << 10, 256 << 10, 1 << 20, 2 << 20] {
            // Each read is the first request of its connection, and longer than the connection's
            // window.
            (0..50).for_each(|_| drop(read(&mut running.unix("0"), 0, length)));
        }
        let took = started.elapsed();
        assert!(took < Duration::from_secs(5), "{took:?}");
        drop(greedy);
        running.until_empty();
    }
}

#[test]
fn large_request_has_its_turn_beside_stream_of_small_first_ones() {
    for backend in BACKENDS {
        let running = serve(&["ram:size=64m"], |config| {
            config.backend = backend;
            (config.memory_max_bytes, config.connections_max) = (64 << 20, 1024);
        });
        running.scatter("0", 48);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for number in 0..100 {
                let mut client = running.unix("0");
                let stop = &stop;
                scope.spawn(move || {
                    let length = if number % 2 == 0 { MIB / 4 } else { MIB };
                    let order = request(Command::Read, 0, length);
                    let mut buffer = vec![0; length as usize];
                    while !stop.load(Ordering::SeqCst) {
                        buffer = client.call(&order, buffer).unwrap().buffer;
                    }
                });
            }
            let started = Instant::now();
            let mut honest = running.unix("0");
            drop(read(&mut honest, 0, 32 << 20));
            let took = started.elapsed();
            stop.store(true, Ordering::SeqCst);
            assert!(took < Duration::from_secs(20), "{took:?}");
        });
        running.until_empty();
    }
}

#[test]
fn largest_requests_of_many_clients_have_their_turns() {
    for backend in BACKENDS {
        let running = serve(&["ram:size=64m"], |config| {
            config.backend = backend;
            config.memory_max_bytes = 64 << 20;
        });
        running.scatter("0", 48);
        let clients: Vec<Client> = (0..12).map(|_| running.unix("0")).collect();
        thread::scope(|scope| {
            for mut client in clients {
                scope.spawn(move || {
                    for index in 0..2u64 {
                        let order =
                            Request { cookie: index, ..request(Command::Read, 0, 32 * MIB) };
                        client.submit(&order, vec![0; 32 << 20]).unwrap();
                    }
                    client.wait(2, |done| assert_eq!(done.errno, None)).unwrap();
                });
            }
        });
        assert!(running.server.stats().buffer_bytes <= 64 << 20);
        running.until_empty();
    }
}

#[test]
fn memory_that_lies_idle_in_one_thread_is_there_for_another() {
    for backend in BACKENDS {
        let running = serve(&["ram:size=64m"], |config| {
            config.backend = backend;
            config.memory_max_bytes = 8 << 20;
        });
        running.scatter("0", 8);
        // Dealt out in turn: one for each thread.
        let (mut one, mut other) = (running.unix("0"), running.unix("0"));
        let mut slow_rounds = Vec::new();
        for round in 0..20 {
            let started = Instant::now();
            let (first, second) = if round % 2 == 0 { (2, 8) } else { (8, 2) };
            assert_eq!(read(&mut one, 0, first << 20).len(), first << 20);
            assert_eq!(read(&mut other, 0, second << 20).len(), second << 20);
            let took = started.elapsed();
            slow_rounds.extend((took > Duration::from_secs(1)).then_some(took));
        }
        // Idle memory is looked at every two seconds; a busy machine delays a round or two.
        assert!(slow_rounds.len() <= 3, "memory waits for nobody: {slow_rounds:?}");
    }
}

#[test]
fn memory_goes_back_to_system_when_it_was_not_used_for_while() {
    for backend in BACKENDS {
        let running = serve(&["ram:size=64m"], |config| config.backend = backend);
        running.scatter("0", 1);
        let mut client = running.unix("0");
        for index in 0..40u64 {
            let order = Request { cookie: index, ..request(Command::Read, 0, MIB) };
            client.submit(&order, vec![0; 1 << 20]).unwrap();
        }
        assert_eq!(client.wait(40, |done| assert_eq!(done.errno, None)).unwrap(), 40);
        assert!(running.server.stats().buffer_bytes > 0);
        running.until("all of it is back", |r| r.server.stats().buffer_bytes == 0);
        assert_eq!(running.server.stats().connections, 1);
        assert_eq!(read(&mut client, 0, 4096).len(), 4096);
    }
}

#[test]
fn limited_group_leaves_memory_to_large_requests_of_others() {
    let groups = Groups::new();
    let running = serve_groups(&groups);
    running.scatter("1", 64);
    thread::scope(|scope| {
        let limited: Vec<_> = (0..8)
            .map(|number| {
                let mut client = running.unix("0");
                scope.spawn(move || write(&mut client, number * 8 * MIB, &vec![7; 8 << 20]))
            })
            .collect();
        running.until("the first waits for its limit", |r| r.server.stats().buffers_in_use > 0);
        thread::sleep(Duration::from_millis(100));
        let mut other = running.unix("1");
        for _ in 0..10 {
            let started = Instant::now();
            assert_eq!(read(&mut other, 0, 1 << 20).len(), 1 << 20);
            write(&mut other, 8 * MIB, &[1; 1 << 20]);
            let took = started.elapsed();
            // The limited group's writes take 16 s in total.
            assert!(took < Duration::from_secs(1), "{took:?}: {:?}", running.server.stats());
        }
        assert!(limited.iter().any(|one| !one.is_finished()));
        // The limited group's account holds at most an eighth of the memory; the other client's
        // buffers come on top.
        let stats = running.server.stats();
        assert!(stats.buffer_bytes <= 24 << 20, "{stats:?}");
        let started = Instant::now();
        let group = groups.find("0").unwrap();
        groups.set(group, crate::server_support::with_bandwidth("0", None)).unwrap();
        limited.into_iter().for_each(|one| one.join().unwrap());
        assert!(started.elapsed() < Duration::from_secs(5), "all that waited goes on");
    });
    running.until_empty();
}

#[test]
fn large_requests_of_a_group_do_not_delay_small_ones_of_another() {
    let groups = Groups::new();
    let running = serve_groups(&groups);
    let other = groups.find("1").unwrap();
    groups.set(other, crate::server_support::with_bandwidth("1", Some(1_000_000_000))).unwrap();
    running.scatter("1", 64);
    thread::scope(|scope| {
        let mut large = running.unix("0");
        // The limit of 4 MB a second lets a first request pass, and delays the next one for it.
        write(&mut large, 0, &vec![7; 32 << 20]);
        scope.spawn(move || write(&mut large, 0, &vec![7; 32 << 20]));
        running.until("its payload is there", |r| r.server.stats().buffers_in_use > 0);
        thread::sleep(Duration::from_millis(500));
        let mut small = running.unix("1");
        // Each request is longer than its connection's window, and limits may delay it.
        for length in [32 << 10, 128 << 10, 256 << 10, 1 << 20, 2 << 20] {
            let started = Instant::now();
            assert_eq!(read(&mut small, 32 * MIB, length).len(), length);
            write(&mut small, 32 * MIB, &vec![1; length]);
            let took = started.elapsed();
            assert!(took < Duration::from_secs(1), "{took:?}: {:?}", running.server.stats());
        }
        assert_eq!(running.server.stats().memory_waits, 0);
        let mut second = running.unix("1");
        let waits = scope.spawn(move || read(&mut second, 0, 32 << 20).len());
        running.until("a second large one waits", |r| r.server.stats().memory_waiting == 1);
        assert_eq!(running.server.stats().memory_waits, 1);
        let group = groups.find("0").unwrap();
        groups.set(group, crate::server_support::with_bandwidth("0", None)).unwrap();
        assert_eq!(waits.join().unwrap(), 32 << 20);
    });
    assert_eq!(running.server.stats().memory_waiting, 0);
    running.until_empty();
}

#[test]
fn small_requests_of_a_group_go_on_beside_its_large_ones() {
    let groups = Groups::new();
    let running = serve_groups(&groups);
    let group = groups.find("0").unwrap();
    groups.set(group, crate::server_support::with_bandwidth("0", Some(100_000_000))).unwrap();
    running.scatter("1", 64);
    let started = Instant::now();
    thread::scope(|scope| {
        for number in 0..6 {
            let mut client = running.unix("0");
            scope.spawn(move || {
                let bytes = if number % 2 == 0 { 12 << 20 } else { 1 << 20 };
                for _ in 0..4 {
                    write(&mut client, number * 8 * MIB, &vec![7; bytes]);
                    assert_eq!(read(&mut client, number * 8 * MIB, bytes).len(), bytes);
                }
            });
        }
    });
    // 312 MiB at 100 MB a second.
    let took = started.elapsed();
    assert!(took < Duration::from_secs(8), "{took:?}");
    running.until_empty();
}

#[test]
fn a_client_of_a_group_that_trickles_keeps_nobody_of_it_waiting() {
    let groups = Groups::new();
    let running = serve_groups(&groups);
    let group = groups.find("0").unwrap();
    groups.set(group, crate::server_support::with_bandwidth("0", Some(1_000_000_000))).unwrap();
    running.server.set_stall_timeout(Duration::from_secs(2));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut slow = running.by_hand("0");
        slow.write_all(&header(Command::Write, 0, 12 * MIB)).unwrap();
        let stop = &stop;
        scope.spawn(move || {
            while !stop.load(Ordering::SeqCst) && slow.write_all(&[0; 16]).is_ok() {
                thread::sleep(Duration::from_millis(250));
            }
        });
        running.until("its buffer is there", |r| r.server.stats().buffers_in_use > 0);
        let mut honest = running.unix("0");
        let honest = scope.spawn(move || write(&mut honest, 16 * MIB, &vec![1; 4 << 20]));
        let started = Instant::now();
        while !honest.is_finished() && started.elapsed() < Duration::from_secs(20) {
            thread::sleep(Duration::from_millis(50));
        }
        stop.store(true, Ordering::SeqCst);
        assert!(honest.is_finished(), "{:?}", running.server.stats());
        assert_eq!(running.server.stats().stalled, 1);
    });
}
