//! A drive that stops answering: its clients are told, and nobody else is affected.

use std::io::Write;
use std::time::{Duration, Instant};

use crate::alone;
use crate::server_support::{
    BACKENDS, MIB, Running, call, header, order, pattern, read, request, serve_volumes, volume,
    volume_with, write,
};
use millrace_drives::FaultControl;
use millrace_nbd::{Command, Errno, Request};
use millrace_reactor::Backend;

const STUCK: &str = "fault:drive=(ram:size=64m),volatile=on,stuck=on";
const MEMORY: u64 = 64 << 20;

/// Export 0 is well, export 1 is stuck until its control lets go.
fn serve(backend: Backend, threads: u16, timeout: Duration) -> (Running, FaultControl) {
    let mut control = None;
    let change = |config: &mut millrace_exports::nbd::ServerConfig| {
        (config.backend, config.threads, config.memory_max_bytes) = (backend, threads, MEMORY);
    };
    let running = serve_volumes(2, change, |threads| {
        let (stuck, fault) = volume_with(STUCK, threads, timeout);
        control = fault;
        vec![volume("ram:size=64m", threads), stuck]
    });
    running.scatter("0", 8);
    (running, control.unwrap())
}

fn let_go(control: &FaultControl) {
    control.clear_rules();
    control.release_stuck();
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn clients_of_a_stuck_drive_that_return_harm_no_other_volume() {
    let _alone = alone();
    for backend in BACKENDS {
        let (running, control) = serve(backend, 2, Duration::from_millis(400));
        let mut well = running.unix("0");
        write(&mut well, 0, &pattern(1, 4096));
        let before = descriptors();
        let reads: Vec<u8> = (0..40).flat_map(|_| header(Command::Read, 0, MIB)).collect();
        for round in 0..50u64 {
            let mut socket = running.by_hand("1");
            socket.write_all(&reads).unwrap();
            let data = pattern(round, 4096);
            write(&mut well, 4096, &data);
            assert!(read(&mut well, 4096, 4096) == data);
            assert_eq!(read(&mut well, 0, 1 << 20).len(), 1 << 20, "round {round}");
            assert!(running.server.stats().buffer_bytes <= MEMORY);
        }
        running.until("descriptors are back", |_| descriptors() <= before + 2);
        running.until("only one connection is left", |r| r.server.stats().connections == 1);
        let_go(&control);
        running.until("memory is back", |r| r.server.stats().buffers_in_use == 0);
        assert_eq!(read(&mut running.unix("1"), 0, 1 << 20), vec![0; 1 << 20]);
        drop(well);
        running.stop();
    }
}

#[test]
fn request_without_an_answer_fails_by_the_timeout_of_its_drive() {
    let _alone = alone();
    for backend in BACKENDS {
        let timeout = Duration::from_millis(400);
        let (running, control) = serve(backend, 1, timeout);
        let mut client = running.unix("1");
        let started = Instant::now();
        assert_eq!(call(&mut client, Command::Read, 0, vec![0; 4096]).errno, Some(Errno::Eio));
        let took = started.elapsed();
        assert!(took >= timeout && took < Duration::from_secs(10), "{took:?}");
        let done = call(&mut client, Command::Write, 4096, pattern(3, 4096));
        assert_eq!(done.errno, Some(Errno::Eio));
        let trim = order(&mut client, Command::Trim, 0, 0, 4096);
        assert_eq!(trim, Some(Errno::Eio));
        assert_eq!(order(&mut client, Command::Flush, 0, 0, 0), Some(Errno::Eio));
        let errors = running.server.errors();
        assert_eq!((errors[1].count, errors[1].last), (4, "timed out"));
        let stats = running.server.stats();
        assert_eq!(stats.buffers_in_use, 2, "the drive may still touch both: {stats:?}");
        // Reads from now on must get memory that the stuck drive does not hold.
        let mut well = running.unix("0");
        for round in 0..50 {
            write(&mut well, 0, &pattern(round, 4096));
            assert!(read(&mut well, 0, 4096) == pattern(round, 4096));
        }
        let_go(&control);
        running.until("both are back", |r| r.server.stats().buffers_in_use == 0);
        running.until("no request is left", |r| r.server.stats().requests_in_flight == 0);
        assert!(read(&mut client, 4096, 4096) == pattern(3, 4096), "the write got there late");
        drop((client, well));
        running.stop();
    }
}

#[test]
fn volume_with_overdue_requests_refuses_more_until_recovery() {
    let _alone = alone();
    for backend in BACKENDS {
        let timeout = Duration::from_millis(1500);
        let (running, control) = serve(backend, 1, timeout);
        let mut client = running.unix("1");
        for index in 0..200u64 {
            let order = Request { cookie: index, ..request(Command::Read, index * 4096, 4096) };
            client.submit(&order, vec![0; 4096]).unwrap();
        }
        client.flush().unwrap();
        let failed = client.wait(200, |done| assert_eq!(done.errno, Some(Errno::Eio))).unwrap();
        assert_eq!(failed, 200);
        let started = Instant::now();
        for _ in 0..20 {
            assert_eq!(call(&mut client, Command::Read, 0, vec![0; 4096]).errno, Some(Errno::Eio));
            assert_eq!(order(&mut client, Command::Flush, 0, 0, 0), Some(Errno::Eio));
        }
        assert!(started.elapsed() < timeout, "refused at once: {:?}", started.elapsed());
        let_go(&control);
        running.until("all are over", |r| r.server.stats().requests_in_flight == 0);
        assert_eq!(read(&mut client, 0, 4096), vec![0; 4096]);
        assert_eq!(order(&mut client, Command::Flush, 0, 0, 0), None);
        drop(client);
        running.stop();
    }
}

#[test]
fn stuck_volume_leaves_memory_to_others_before_its_timeout_too() {
    let _alone = alone();
    for backend in BACKENDS {
        let (running, control) = serve(backend, 1, Duration::from_secs(600));
        let greedy: Vec<_> = (0..20)
            .map(|_| {
                let mut socket = running.by_hand("1");
                let reads: Vec<u8> = (0..40).flat_map(|_| header(Command::Read, 0, MIB)).collect();
                socket.write_all(&reads).unwrap();
                socket
            })
            .collect();
        let mut well = running.unix("0");
        for round in 0..20 {
            write(&mut well, 0, &pattern(round, 4096));
            assert_eq!(read(&mut well, 0, 8 << 20).len(), 8 << 20);
        }
        drop(greedy);
        running.until("their descriptors are back", |r| r.server.stats().connections == 1);
        let_go(&control);
        running.until("their memory is back", |r| r.server.stats().buffers_in_use == 0);
        drop(well);
        running.stop();
    }
}
