//! The NBD drive against servers that vanish, come back, lie, or say nothing.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use millrace_block::baseline::Stack;
use millrace_block::{Bio, Buffer, Disk, DiskConfig, Driver, Layout, OpFlags, Status, Volume};
use millrace_drives::{NbdConfig, NbdDriver};
use millrace_machine::{Machine, Native};
use millrace_nbd::TransmissionFlags;
use millrace_reactor::Backend;

use crate::harness::{BACKENDS, Dice, Drives, Kind, Plan, Rig, buffer_of, has_uring, pattern};
use crate::nbd_server::{ALL, Act, Server};

const SIZE: u64 = 4 << 20;

fn config(server: &Server) -> NbdConfig {
    let uri = server.uri();
    let reconnect = Duration::from_secs(5);
    NbdConfig { reconnect, ..NbdConfig::new(uri.parse().unwrap(), uri) }
}

fn rig_of(driver: NbdDriver, backend: Backend, timeout: Duration) -> Rig {
    let plan = Plan { timeout, ..Plan::new(Kind::Nbd, Stack::Mq, backend) };
    let config = DiskConfig { name: "d0".into(), timeout, ..DiskConfig::default() };
    let disk = Disk::new(Box::new(driver), config).unwrap();
    let volume = Volume::new("v", Layout::Linear, vec![disk]).unwrap();
    Rig::of(Arc::new(Drives::around(volume)), plan.backend, 0)
}

fn rig(server: &Server, backend: Backend) -> Rig {
    rig_of(NbdDriver::open(config(server)).unwrap(), backend, Duration::from_secs(30))
}

fn backends() -> impl Iterator<Item = Backend> {
    BACKENDS.into_iter().filter(|backend| *backend == Backend::Epoll || has_uring())
}

/// The drive's messages since the last call.
fn news(rig: &Rig) -> String {
    rig.drives.volume.disks()[0].take_news().join("\n")
}

/// Reads, writes and flushes that overlap nothing, against an image, until `rounds` are over.
fn work(rig: &mut Rig, server: &Server, rounds: u64) {
    let (mut image, mut dice) = (vec![0; SIZE as usize], Dice(7 + rounds));
    for round in 0..rounds {
        for place in 0..8 {
            let sectors = 1 + dice.roll(700);
            let sector = place * 1024 + dice.roll(1024 - sectors);
            let data = pattern(sector, (sectors * 512) as usize, round + 1);
            let start = (sector * 512) as usize;
            image[start..start + data.len()].copy_from_slice(&data);
            rig.submit(Bio::write(sector, buffer_of(&data)));
        }
        assert!(rig.drain().iter().all(|done| done.status == Status::Ok), "{}", news(rig));
        rig.submit(Bio::flush());
        for place in 0..8 {
            rig.submit(Bio::read(place * 1024, Buffer::new(512 << 10)));
        }
        for done in rig.drain() {
            assert_eq!(done.status, Status::Ok, "{}", news(rig));
            let sector = done.bio.sector() as usize;
            if let Some(buffer) = done.bio.into_buffer().filter(|buffer| !buffer.is_empty()) {
                let start = sector * 512;
                assert!(buffer[..] == image[start..start + buffer.len()], "round {round}");
            }
        }
    }
    assert!(*server.state.data.lock().unwrap() == image, "the server has what was written");
}

#[test]
fn what_was_in_flight_when_a_server_fails_is_sent_again() {
    let acts: [fn(usize) -> Act; 9] = [
        Act::LoseAnswer,
        Act::LoseRequest,
        Act::HalfAnswer,
        Act::Garbage,
        Act::WrongCookie,
        Act::NoData,
        Act::Twice,
        Act::WrongPlace,
        Act::ShutDown,
    ];
    for backend in backends() {
        for act in acts {
            let script = [3, 0, 12, 1, 25].map(act);
            println!("{backend} {:?}", script[0]);
            let server = Server::new(SIZE, ALL, &script);
            let mut rig = rig(&server, backend);
            work(&mut rig, &server, 6);
            assert!(server.sessions() >= 4, "{:?}: {} sessions", act(0), server.sessions());
            let said = news(&rig);
            assert!(said.contains("connection lost") && said.contains("connected again"), "{said}");
        }
    }
}

#[test]
fn servers_that_break_off_while_they_negotiate_are_tried_again() {
    let bytes = [0, 1, 17, 18, 30, 40, 60, 90].map(Act::HangUpAfterBytes);
    let script = [&[Act::LoseAnswer(2), Act::NoGreeting, Act::Babble], &bytes[..]].concat();
    let server = Server::new(SIZE, ALL, &script);
    let mut rig = rig(&server, Backend::Epoll);
    work(&mut rig, &server, 2);
    assert!(server.state.script.lock().unwrap().is_empty());
}

#[test]
fn opening_says_what_is_wrong_with_a_server() {
    for (act, expected) in [
        (Act::NoGreeting, "the server hung up"),
        (Act::Babble, "bad magic of the greeting"),
        (Act::HangUpAfterBytes(18), "the server hung up"),
    ] {
        let server = Server::new(SIZE, ALL, &[act]);
        let error = NbdDriver::open(config(&server)).err().unwrap().to_string();
        assert!(error.contains(expected) && error.contains(&server.uri()), "{error}");
    }
    let server = Server::new(SIZE, ALL, &[]);
    let other = server.uri().replace("///x", "///y");
    let config = NbdConfig { uri: other.parse().unwrap(), text: other, ..config(&server) };
    let error = NbdDriver::open(config).err().unwrap().to_string();
    assert!(error.contains("there is no export \"y\"; there are \"x\""), "{error}");
}

#[test]
fn unanswered_request_times_out_with_its_memory_intact() {
    for backend in backends() {
        // The server answers reads that have timed out already.
        let server = Server::new(SIZE, ALL, &[Act::Silent(0), Act::Silent(0)]);
        server.state.data.lock().unwrap().fill(7);
        let driver = NbdDriver::open(config(&server)).unwrap();
        let mut rig = rig_of(driver, backend, Duration::from_millis(200));
        for place in 0..4 {
            rig.submit(Bio::read(place * 64, Buffer::new(32 << 10)));
        }
        let done = rig.drain();
        assert!(done.iter().all(|done| done.status == Status::TimedOut), "{done:?}");
        let said = news(&rig);
        assert!(said.contains("no answer to a Read at byte"), "{said}");
        // The third connection is an honest one.
        if rig.run(Bio::read(0, Buffer::new(4096))).status == Status::TimedOut {
            assert_eq!(rig.read(0, 4096), [7; 4096]);
        }
        assert_eq!(rig.read(64, 4096), [7; 4096]);
    }
}

#[test]
fn a_server_that_reads_nothing_makes_writes_time_out() {
    let server = Server::new(SIZE, ALL, &[Act::Deaf(0)]);
    let driver = NbdDriver::open(config(&server)).unwrap();
    let mut rig = rig_of(driver, Backend::Epoll, Duration::from_millis(300));
    for place in 0..8 {
        rig.submit(Bio::write(place * 1024, Buffer::new(512 << 10)));
    }
    let done = rig.drain();
    assert!(done.iter().any(|done| done.status == Status::TimedOut), "{done:?}");
    assert!(done.iter().all(|done| [Status::TimedOut, Status::Ok].contains(&done.status)));
    assert_eq!(rig.run(Bio::flush()).status, Status::Ok, "it is back");
}

#[test]
fn a_write_that_is_answered_before_it_was_sent_is_sent_again() {
    let server = Server::new(SIZE, ALL, &[Act::Early(0)]);
    let mut rig = rig(&server, Backend::Epoll);
    // The write is longer than the socket's buffer, so that its send is under way when the answer
    // comes.
    let data = pattern(0, 1 << 20, 3);
    let written = rig.run(Bio::write(0, buffer_of(&data)));
    // The server's answer counts, whatever it did with the data.
    assert_eq!(written.status, Status::Ok);
    assert_eq!(rig.run(Bio::flush()).status, Status::Ok);
    assert!(server.sessions() >= 2);
}

#[test]
fn drive_without_its_server_waits_then_fails_then_returns() {
    let server = Server::new(SIZE, ALL, &[Act::LoseAnswer(0)]);
    let config = NbdConfig { reconnect: Duration::from_millis(300), ..config(&server) };
    let mut rig =
        rig_of(NbdDriver::open(config).unwrap(), Backend::Epoll, Duration::from_millis(100));
    server.state.closed.store(true, Ordering::SeqCst);
    let begun = std::time::Instant::now();
    let done = rig.run(Bio::read(0, Buffer::new(4096)));
    // The timeout of the disk is shorter, and does not count while the drive looks for its server.
    assert_eq!(done.status, Status::Offline);
    assert!(begun.elapsed() >= Duration::from_millis(300));
    let said = news(&rig);
    assert_eq!(said.matches("requests fail until the server is back").count(), 1, "{said}");
    assert_eq!(rig.run(Bio::flush()).status, Status::Offline, "at once");
    server.state.closed.store(false, Ordering::SeqCst);
    // The thread that looks for it tries once per second.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(rig.run(Bio::read(0, Buffer::new(4096))).status, Status::Ok);
    assert!(news(&rig).contains("connected again"));
}

#[test]
fn one_connection_waits_for_a_lost_server_and_others_fail() {
    let server = Server::new(SIZE, ALL, &[Act::LoseAnswer(1); 2]);
    let config = NbdConfig { reconnect: Duration::from_secs(1), io_threads: 2, ..config(&server) };
    let driver = Box::new(NbdDriver::open(config).unwrap());
    let disk = DiskConfig { name: "d0".into(), io_threads: 2, ..DiskConfig::default() };
    let disk = Disk::new(driver, disk).unwrap();
    let volume = Volume::new("v", Layout::Linear, vec![disk]).unwrap();
    let drives = Arc::new(Drives::around(volume));
    let turn = Barrier::new(2);
    let body = |number: u16| {
        let mut rig = Rig::of(Arc::clone(&drives), Backend::Epoll, number);
        let mut read = || rig.run(Bio::read(0, Buffer::new(4096))).status;
        assert_eq!(read(), Status::Ok);
        turn.wait();
        if number == 0 {
            server.state.closed.store(true, Ordering::SeqCst);
        } else {
            turn.wait();
        }
        let begun = std::time::Instant::now();
        assert_eq!(read(), Status::Offline);
        let has_waited = begun.elapsed() >= Duration::from_millis(900);
        assert_eq!(has_waited, number == 0, "{number}: {:?}", begun.elapsed());
        if number == 0 {
            turn.wait();
        }
        turn.wait();
        server.state.closed.store(false, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(1500));
        assert_eq!(read(), Status::Ok);
    };
    std::thread::scope(|scope| {
        let threads = [0, 1].map(|number| {
            scope.spawn({
                let body = &body;
                move || body(number)
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn server_that_hangs_up_while_idle_is_missed_and_found_again() {
    for backend in backends() {
        let server = Server::new(SIZE, ALL, &[Act::LeaveAfter(0)]);
        let mut rig = rig(&server, backend);
        assert_eq!(rig.run(Bio::read(0, Buffer::new(4096))).status, Status::Ok);
        let mut said = String::new();
        rig.until("a new connection", |rig| {
            said += &news(rig);
            said.contains("connected again")
        });
        let lost = "connection lost: the server hung up; no request was in flight; trying to \
                    reconnect for 5 s";
        assert_eq!(said.replace("connected again", ""), lost);
        rig.until("two sessions", |_| server.sessions() == 2);
        assert_eq!(rig.run(Bio::read(0, Buffer::new(4096))).status, Status::Ok);
    }
}

#[test]
fn each_of_several_connections_names_its_own_resends() {
    let script = [Act::LoseAnswer(0), Act::Honest, Act::Honest];
    let server = Server::new(SIZE, ALL, &script);
    let config = NbdConfig { connections: Some(3), ..config(&server) };
    let mut rig = rig_of(NbdDriver::open(config).unwrap(), Backend::Epoll, Duration::from_secs(30));
    // The first three reads go to one connection each.
    (0..3).for_each(|place| rig.submit(Bio::read(place * 1024, Buffer::new(4096))));
    assert!(rig.drain().iter().all(|done| done.status == Status::Ok));
    let mut said = String::new();
    rig.until("three new connections", |rig| {
        said += &news(rig);
        said.matches("connected again").count() == 3
    });
    let lost = "connection 1 of 3 lost: the server hung up; 1 request was in flight; trying";
    assert!(said.contains(lost) && said.contains("connection 1 of 3: connected again"), "{said}");
}

#[test]
fn loss_of_one_connection_ends_trust_in_all() {
    for backend in backends() {
        // The second one would keep its request for 30 s.
        let server = Server::new(SIZE, ALL, &[Act::LoseAnswer(0), Act::Silent(0), Act::Honest]);
        let config = NbdConfig { connections: Some(3), ..config(&server) };
        let mut rig = rig_of(NbdDriver::open(config).unwrap(), backend, Duration::from_secs(30));
        (0..3).for_each(|place| rig.submit(Bio::read(place * 1024, Buffer::new(4096))));
        assert!(rig.drain().iter().all(|done| done.status == Status::Ok));
        rig.until("three new connections", |_| server.sessions() == 6);
        let said = news(&rig);
        assert_eq!(said.matches(" lost: ").count(), 1, "said once: {said}");
        assert!(said.contains("; trying to reconnect all connections for 5 s"), "{said}");
    }
}

#[test]
fn requests_of_a_silent_server_time_out_unconnected() {
    for backend in backends() {
        let server = Server::new(SIZE, ALL, &[Act::Silent(0)]);
        let config = NbdConfig { reconnect: Duration::from_secs(8), ..config(&server) };
        let mut rig = rig_of(NbdDriver::open(config).unwrap(), backend, Duration::from_millis(400));
        rig.submit(Bio::read(0, Buffer::new(4096)));
        // The second one is younger by one look at the clock, which is after 200 ms.
        let later_ns = Native::now() + 250_000_000;
        rig.until("the second one's turn", |_| Native::now() >= later_ns);
        server.state.closed.store(true, Ordering::SeqCst);
        rig.submit(Bio::read(64, Buffer::new(4096)));
        let statuses: Vec<_> = rig.drain().iter().map(|done| done.status).collect();
        assert_eq!(statuses, [Status::TimedOut; 2], "{}", news(&rig));
    }
}

#[test]
fn requests_that_timed_out_are_not_said_to_be_sent_again() {
    let server = Server::new(SIZE, ALL, &[Act::Silent(0)]);
    let driver = NbdDriver::open(config(&server)).unwrap();
    let mut rig = rig_of(driver, Backend::Epoll, Duration::from_millis(200));
    assert_eq!(rig.run(Bio::read(0, Buffer::new(4096))).status, Status::TimedOut);
    assert_eq!(rig.run(Bio::read(0, Buffer::new(4096))).status, Status::Ok);
    let said = news(&rig);
    assert!(said.ends_with("connected again"), "{said}");
}

#[test]
fn request_that_kills_its_server_fails_in_time() {
    let server = Server::new(SIZE, ALL, &[Act::LoseRequest(0); 40]);
    let config = NbdConfig { reconnect: Duration::from_millis(500), ..config(&server) };
    let mut rig = rig_of(NbdDriver::open(config).unwrap(), Backend::Epoll, Duration::from_secs(30));
    assert_eq!(rig.run(Bio::write(0, Buffer::new(4096))).status, Status::Offline);
    let said = news(&rig);
    assert!(said.contains("accepts connections but answers no request"), "{said}");
    server.state.script.lock().unwrap().clear();
    std::thread::sleep(Duration::from_millis(1000));
    // A connection that loses its request may still have been waiting to be accepted.
    let status = rig.run(Bio::flush()).status;
    assert!([Status::Ok, Status::Offline].contains(&status));
    std::thread::sleep(Duration::from_millis(1000));
    assert_eq!(rig.run(Bio::flush()).status, Status::Ok);
}

#[test]
fn an_export_that_has_become_smaller_or_poorer_is_dead() {
    type Change = fn(&Server);
    let changes: [(Change, &str); 3] = [
        (
            |server| {
                // Servers say nothing of FUA and trim then.
                let flags = TransmissionFlags::FLUSH.with(TransmissionFlags::READ_ONLY);
                *server.state.flags.lock().unwrap() = flags;
            },
            "the export is read-only now",
        ),
        (
            |server| server.state.data.lock().unwrap().truncate(1 << 20),
            "the export now has 1048576 bytes instead of 4194304",
        ),
        (
            |server| *server.state.flags.lock().unwrap() = TransmissionFlags::new(),
            "the export supports less than before: no flush, no ",
        ),
    ];
    for (change, expected) in changes {
        let server = Server::new(SIZE, ALL, &[Act::LoseAnswer(0)]);
        let mut rig = rig(&server, Backend::Epoll);
        change(&server);
        assert_eq!(rig.run(Bio::flush()).status, Status::Offline);
        let said = news(&rig);
        assert!(said.contains(expected) && said.contains("fails all I/O"), "{said}");
        assert_eq!(rig.run(Bio::read(0, Buffer::new(4096))).status, Status::Offline);
        // The drive stays offline, however the export changes later.
        server.state.data.lock().unwrap().resize(2 * SIZE as usize, 0);
        *server.state.flags.lock().unwrap() = ALL;
        let refused = rig.drives.volume.resize().unwrap_err().to_string();
        assert!(refused.contains("the drive fails all I/O until it is opened again"), "{refused}");
        assert_eq!(rig.run(Bio::read(0, Buffer::new(4096))).status, Status::Offline);
        assert_eq!(news(&rig), "", "said once");
    }
}

#[test]
fn drive_goes_on_with_one_connection_if_flush_covers_no_more() {
    for connections in [2, 1] {
        // Each of two connections is lost.
        let server = Server::new(SIZE, ALL, &[Act::LoseAnswer(0); 2]);
        let config = NbdConfig { connections: Some(connections), ..config(&server) };
        let mut rig =
            rig_of(NbdDriver::open(config).unwrap(), Backend::Epoll, Duration::from_secs(30));
        *server.state.flags.lock().unwrap() = ALL.without(TransmissionFlags::MULTI_CONN);
        assert_eq!(rig.run(Bio::flush()).status, Status::Ok, "{connections} connections");
        work(&mut rig, &server, 3);
        assert_eq!(server.state.used.lock().unwrap().len(), 1, "{connections} connections");
    }
}

#[test]
fn growth_is_seen_by_connections_that_are_made_for_it() {
    for backend in backends() {
        let server = Server::new(SIZE, ALL, &[]);
        let mut rig = rig(&server, backend);
        rig.write(0, &pattern(0, 4096, 1));
        server.state.data.lock().unwrap().resize(2 * SIZE as usize, 0);
        let volume = Arc::clone(&rig.drives.volume);
        volume.resize().unwrap();
        assert_eq!(volume.capacity(), 2 * SIZE / 512);
        let last = 2 * SIZE / 512 - 8;
        rig.write(last, &pattern(last, 4096, 2));
        assert_eq!(rig.read(last, 4096), pattern(last, 4096, 2));
        assert_eq!(rig.read(0, 4096), pattern(0, 4096, 1));
        assert_eq!(server.sessions(), 2, "{}", news(&rig));
    }
}

#[test]
fn there_is_one_connection_unless_a_flush_covers_all() {
    let alone = ALL.without(TransmissionFlags::MULTI_CONN).with(TransmissionFlags::FLUSH);
    let server = Server::new(SIZE, alone, &[]);
    let queues = |config: NbdConfig| {
        let driver = NbdDriver::open(config).unwrap();
        driver.hw_queues(&millrace_machine::Topology::uniform(1, 4)).count
    };
    assert_eq!(queues(NbdConfig { io_threads: 4, ..config(&server) }), 1);
    let wish = NbdConfig { io_threads: 4, connections: Some(2), ..config(&server) };
    let error = NbdDriver::open(wish.clone()).err().unwrap().to_string();
    assert!(error.contains("connections=2, but the server does not say"), "{error}");
    assert_eq!(queues(NbdConfig { read_only: true, ..wish.clone() }), 2);
    let server = Server::new(SIZE, ALL, &[]);
    assert_eq!(queues(NbdConfig { io_threads: 4, ..config(&server) }), 4);
    assert_eq!(queues(NbdConfig { io_threads: 1, connections: Some(3), ..config(&server) }), 1);
}

#[test]
fn several_connections_of_one_queue_share_its_requests() {
    let script = [Act::Honest, Act::LoseAnswer(20), Act::Honest, Act::LoseRequest(3)];
    let server = Server::new(SIZE, ALL, &script);
    let config = NbdConfig { connections: Some(3), ..config(&server) };
    let mut rig = rig_of(NbdDriver::open(config).unwrap(), Backend::Epoll, Duration::from_secs(30));
    work(&mut rig, &server, 10);
    assert!(server.sessions() >= 4);
}

#[test]
fn write_through_forces_every_write_and_needs_no_flush() {
    let server = Server::new(SIZE, ALL, &[]);
    let config = NbdConfig { write_through: true, ..config(&server) };
    let mut rig = rig_of(NbdDriver::open(config).unwrap(), Backend::Epoll, Duration::ZERO);
    assert!(!rig.drives.volume.limits().features.volatile_cache);
    rig.write(0, &[1; 512]);
    rig.run_ok(Bio::write(8, buffer_of(&[1; 512])).with_flags(OpFlags::FUA));
    rig.run_ok(Bio::write_zeroes(0, 8));
    assert_eq!(server.state.forced.load(Ordering::SeqCst), 3);
}

#[test]
fn export_of_partial_sectors_says_what_is_not_served() {
    let server = Server::new(SIZE + 100, ALL, &[]);
    let driver = NbdDriver::open(config(&server)).unwrap();
    assert_eq!(driver.capacity(), SIZE / 512);
    let note = driver.notes.join("\n");
    assert!(
        note.contains("the last 100, which make no whole block of 512, are not served"),
        "{note}"
    );
    server.state.block_min.store(4096, Ordering::SeqCst);
    server.state.data.lock().unwrap().truncate(SIZE as usize + 4096);
    let driver = NbdDriver::open(config(&server)).unwrap();
    assert_eq!(driver.limits().logical_block_size, 4096);
}

#[test]
fn extents_are_what_the_server_says() {
    let server = Server::new(SIZE, ALL, &[]);
    server.state.data.lock().unwrap()[8192..12288].fill(1);
    let driver = NbdDriver::open(config(&server)).unwrap();
    let extents = driver.extents(0, 64);
    let told: Vec<_> = extents.iter().map(|one| (one.nr_sectors, one.hole, one.zero)).collect();
    assert_eq!(told, [(16, true, true), (8, false, false), (40, true, true)]);
    let alone = Server::new(SIZE, TransmissionFlags::FLUSH, &[]);
    let driver = NbdDriver::open(config(&alone)).unwrap();
    let told = driver.extents(0, 64);
    assert!(!told[0].zero && told[0].nr_sectors == 64, "another connection may not know better");
}
