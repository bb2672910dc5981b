//! Exports and listeners that come and go while others are served.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::server_support::{MIB, pattern, read, request, volume, write};
use millrace_block::{ErrorKind, Volume};
use millrace_clients::nbd::Client;
use millrace_exports::SocketAccess;
use millrace_exports::nbd::{ExportConfig, Listen, ListenConfig, Server, ServerConfig};
use millrace_machine::Native;
use millrace_nbd::Command;
use millrace_nbd::client::{Address, NbdUri};
use proptest::prelude::*;

const THREADS: u16 = 2;

fn export(name: &str, volume: &Arc<Volume<Native>>) -> ExportConfig {
    ExportConfig::new(name, Arc::clone(volume))
}

fn listener(path: &Path, exports: &[usize]) -> ListenConfig {
    ListenConfig::new(Listen::Unix(path.to_owned()), exports.to_vec())
}

fn start(exports: Vec<ExportConfig>, listeners: Vec<ListenConfig>) -> Server {
    Server::start(ServerConfig { exports, listeners, threads: THREADS, ..ServerConfig::default() })
        .unwrap()
}

fn connect(path: &Path, name: &str) -> Result<Client, String> {
    let address = Address::Unix { path: path.to_owned() };
    Client::connect(&NbdUri { address, name: name.to_owned() }).map_err(|error| error.to_string())
}

fn is_disconnected(client: &mut Client) -> bool {
    client.call(&request(Command::Read, 0, 512), vec![0; 512]).is_err()
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

struct Sockets(tempfile::TempDir);

impl Sockets {
    fn new() -> Sockets {
        Sockets(tempfile::Builder::new().prefix("mr-").tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

#[test]
fn export_and_listener_come_and_go_beside_another_client() {
    let dir = Sockets::new();
    let [kept, other] = [(); 2].map(|()| volume("ram:size=4m", THREADS));
    let mut server = start(vec![export("kept", &kept)], vec![listener(&dir.path("a"), &[0])]);
    let (stop, path) = (Arc::new(AtomicBool::new(false)), dir.path("a"));
    let stopped = Arc::clone(&stop);
    let works = std::thread::spawn(move || {
        let (mut client, mut rounds) = (connect(&path, "kept").unwrap(), 0u64);
        while !stopped.load(Ordering::Relaxed) {
            let data = pattern(rounds, 64 << 10);
            write(&mut client, rounds % 32 * (64 << 10), &data);
            assert_eq!(read(&mut client, rounds % 32 * (64 << 10), data.len()), data);
            rounds += 1;
        }
        rounds
    });
    for round in 0..50 {
        let exports = vec![export("kept", &kept), export("other", &other)];
        let listeners = [listener(&dir.path("a"), &[0]), listener(&dir.path("b"), &[1, 0])];
        let change = server.prepare(exports, &listeners).unwrap();
        assert!(change.address(&Listen::Unix(dir.path("b"))).is_some());
        assert!(server.apply(change).are_unused());
        let mut client = connect(&dir.path("b"), "other").unwrap();
        write(&mut client, 0, &pattern(round, 4096));
        assert_eq!(read(&mut client, 0, 4096), pattern(round, 4096));
        assert!(connect(&dir.path("a"), "other").is_err(), "it is not served there");
        let alone = [listener(&dir.path("a"), &[0])];
        let change = server.prepare(vec![export("kept", &kept)], &alone).unwrap();
        let removed = server.apply(change);
        assert!(!dir.path("b").exists());
        until("the volume that went is unused", || removed.are_unused());
        assert_eq!(Arc::strong_count(&other), 2, "`removed` has it");
        let mut gone = UnixStream::connect(dir.path("a")).unwrap();
        gone.read_exact(&mut [0; 18]).unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    assert!(works.join().unwrap() > 0);
    assert!(server.stop(Duration::from_secs(5)).is_clean());
    assert_eq!((Arc::strong_count(&kept), Arc::strong_count(&other)), (1, 1));
}

#[test]
fn requests_in_flight_are_answered_before_export_removal() {
    let dir = Sockets::new();
    let slow = "model:units=1,read=50ms,write=50ms,latency=1us,size=4m,depth=8,queues=2";
    let volumes = [volume("ram:size=4m", THREADS), volume(slow, THREADS)];
    let both = || vec![export("kept", &volumes[0]), export("slow", &volumes[1])];
    let mut server = start(both(), vec![listener(&dir.path("a"), &[0, 1])]);
    let mut client = connect(&dir.path("a"), "slow").unwrap();
    client.submit(&request(Command::Read, 0, 4096), vec![0; 4096]).unwrap();
    client.flush().unwrap();
    until("it is in flight", || server.stats().requests_in_flight == 1);
    let change =
        server.prepare(vec![export("kept", &volumes[0])], &[listener(&dir.path("a"), &[0])]);
    let removed = server.apply(change.unwrap());
    let mut errno = None;
    client.wait(1, |done| errno = Some(done.errno)).unwrap();
    assert_eq!(errno, Some(None));
    assert!(is_disconnected(&mut client));
    until("its volume is unused", || removed.are_unused());
    assert!(connect(&dir.path("a"), "slow").is_err());
    assert!(server.stop(Duration::from_secs(5)).is_clean());
}

#[test]
fn a_change_that_cannot_be_or_is_not_made_changes_nothing() {
    let dir = Sockets::new();
    let kept = volume("ram:size=4m", THREADS);
    let server = start(vec![export("kept", &kept)], vec![listener(&dir.path("a"), &[0])]);
    let mut client = connect(&dir.path("a"), "kept").unwrap();
    let twice = [listener(&dir.path("a"), &[0]), listener(&dir.path("no/such"), &[0])];
    let error = server.prepare(vec![export("kept", &kept)], &twice).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::System);
    let mode = ListenConfig {
        access: SocketAccess::with_mode(Some(0o600)),
        ..listener(&dir.path("a"), &[0])
    };
    let error = server.prepare(vec![export("kept", &kept)], &[mode]).unwrap_err();
    assert!(error.to_string().contains("cannot change while it is open"), "{error}");
    let moved = [listener(&dir.path("b"), &[0])];
    let change = server.prepare(vec![export("new", &kept)], &moved).unwrap();
    assert!(dir.path("b").exists());
    drop(change);
    assert!(!dir.path("b").exists());
    write(&mut client, 0, &[7; 4096]);
    assert_eq!(read(&mut connect(&dir.path("a"), "kept").unwrap(), 0, 4096), [7; 4096]);
    assert!(server.stop(Duration::from_secs(5)).is_clean());
}

#[test]
fn clients_are_reported_and_one_is_disconnected() {
    let dir = Sockets::new();
    let kept = volume("ram:size=4m", THREADS);
    let server = start(vec![export("kept", &kept)], vec![listener(&dir.path("a"), &[0])]);
    let observer = server.observer();
    assert!(observer.clients().is_empty());
    let mut first = connect(&dir.path("a"), "kept").unwrap();
    let mut second = connect(&dir.path("a"), "kept").unwrap();
    write(&mut first, 0, &[1; 4096]);
    read(&mut first, 0, MIB as usize);
    let clients = observer.clients();
    let numbers: Vec<u16> = clients.iter().map(|client| client.number).collect();
    assert_eq!(numbers, [1, 1001], "a client of each thread");
    let mut counts: Vec<_> =
        clients.iter().map(|one| (one.requests, one.bytes, one.export.as_str())).collect();
    counts.sort_unstable();
    assert_eq!(counts, [(0, 0, "kept"), (2, MIB + 4096, "kept")]);
    let whose = format!("process {}, user ", std::process::id());
    assert!(clients.iter().all(|one| one.peer.starts_with(&whose) && one.waits_for.is_empty()));
    assert!(observer.disconnect(77).is_none());
    let number = clients.iter().find(|one| one.requests == 2).unwrap().number;
    assert_eq!(observer.disconnect(number).unwrap().requests, 2);
    assert!(is_disconnected(&mut first));
    until("one is left", || observer.clients().len() == 1);
    read(&mut second, 0, 4096);
    let mut waiting = UnixStream::connect(dir.path("a")).unwrap();
    waiting.write_all(&1u32.to_be_bytes()).unwrap();
    until("one that negotiates is there", || observer.clients().len() == 2);
    let negotiates = observer.clients().into_iter().find(|one| one.export.is_empty()).unwrap();
    assert!(observer.disconnect(negotiates.number).is_some());
    until("it is gone", || observer.clients().len() == 1);
    assert!(server.stop(Duration::from_secs(5)).is_clean());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Exports 0 to 3 of four volumes at listeners a to c, drawn anew in each step: a client
    /// reaches exactly those that are there, and one whose export stays goes on.
    #[test]
    fn clients_reach_what_the_last_change_says_and_no_more(
        steps in proptest::collection::vec(
            (proptest::collection::vec(0usize..4, 1..4), 1u8..8), 1..8),
    ) {
        let dir = Sockets::new();
        let volumes: Vec<_> = (0..4).map(|_| volume("ram:size=1m", THREADS)).collect();
        let lists = |(numbers, mask): &(Vec<usize>, u8)| {
            let mut numbers = numbers.clone();
            numbers.sort_unstable();
            numbers.dedup();
            let exports: Vec<_> =
                numbers.iter().map(|n| export(&n.to_string(), &volumes[*n])).collect();
            let all: Vec<usize> = (0..exports.len()).collect();
            let listeners: Vec<_> = ["a", "b", "c"].iter().enumerate()
                .filter(|(bit, _)| mask & (1 << bit) != 0)
                .map(|(_, name)| listener(&dir.path(name), &all))
                .collect();
            (numbers, exports, listeners)
        };
        let (_, exports, listeners) = lists(&steps[0]);
        let mut server = start(exports, listeners);
        let mut clients: Vec<(usize, Client)> = Vec::new();
        for step in &steps {
            let (numbers, exports, listeners) = lists(step);
            let change = server.prepare(exports, &listeners).unwrap();
            let removed = server.apply(change);
            for (number, mut client) in std::mem::take(&mut clients) {
                if numbers.contains(&number) {
                    prop_assert_eq!(read(&mut client, 0, 512), pattern(number as u64, 512));
                    clients.push((number, client));
                } else {
                    prop_assert!(is_disconnected(&mut client));
                }
            }
            until("what went is unused", || removed.are_unused());
            for (bit, name) in ["a", "b", "c"].iter().enumerate() {
                let path = dir.path(name);
                let is_there = step.1 & (1 << bit) != 0;
                prop_assert_eq!(path.exists(), is_there);
                for number in 0..4 {
                    let client = connect(&path, &number.to_string());
                    prop_assert_eq!(client.is_ok(), is_there && numbers.contains(&number));
                    if let Ok(mut client) = client {
                        write(&mut client, 0, &pattern(number as u64, 512));
                        clients.push((number, client));
                    }
                }
            }
        }
        prop_assert!(server.stop(Duration::from_secs(5)).is_clean());
    }
}
