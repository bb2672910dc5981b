//! With one failed drive of four, I/O to it reports EIO, all other I/O succeeds, and the daemon
//! stays up.
//!
//! The volume is a stripe with a chunk of 4 KiB, so that chunk `n` lies on drive `n % 4`. The
//! faults are set in the configuration, except for a file that is truncated later.

use std::fs::File;
use std::thread;
use std::time::{Duration, Instant};

use millrace_clients::nbd::Client;
use millrace_nbd::{Command, Errno, Request};
use millrace_random::SplitMix64;
use millrace_tests::load::{self, connect, request};
use millrace_tests::{Daemon, poll_within};

/// Sectors of a chunk.
const CHUNK: u64 = 8;
/// Chunks of the volume that are used.
const CHUNKS: u64 = 64;
/// The drive that fails.
const BAD: u64 = 2;

/// A stripe of memory drives except drive 2, which is `bad`; and a healthy volume `w`.
fn config(bad: &str) -> String {
    let drive =
        |name: &str, spec: &str| format!("[[drive]]\nname = \"{name}\"\nspec = \"{spec}\"\n");
    let good = "fault:drive=(ram:size=1m),volatile=on";
    let drives: String =
        (0..4).map(|n| drive(&format!("d{n}"), if n == BAD { bad } else { good })).collect();
    format!(
        "{drives}{}[[volume]]\nname = \"v\"\nchunk = \"4k\"\n\
         drives = [\"d0\", \"d1\", \"d2\", \"d3\"]\n\
         [[volume]]\nname = \"w\"\ndrives = [\"other\"]\n\
         [[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n\
         [[export]]\nvolume = \"w\"\nnbd = \"unix:s\"\n",
        drive("other", good)
    )
}

fn start(bad: &str) -> (Daemon, Client) {
    let daemon = Daemon::start(&config(bad), &["s"]);
    let client = connect(&daemon.dir().join("s"), "v").unwrap();
    (daemon, client)
}

fn touches(first: u64, chunks: u64, drive: u64) -> bool {
    (first..first + chunks).any(|chunk| chunk % 4 == drive)
}

fn data(chunk: u64) -> Vec<u8> {
    (0..CHUNK * 512).map(|at| (chunk * 31 + at / 7) as u8).collect()
}

/// Carries out one request; returns its error and its buffer.
fn call(client: &mut Client, request: &Request, buffer: Vec<u8>) -> (Option<Errno>, Vec<u8>) {
    let done = load::call(client, request, buffer).expect("the connection stays open");
    (done.errno, done.buffer)
}

fn write(client: &mut Client, first: u64, chunks: u64) -> Option<Errno> {
    let bytes = (first..first + chunks).flat_map(data).collect();
    call(client, &request(Command::Write, first * CHUNK, chunks * CHUNK), bytes).0
}

fn read(client: &mut Client, first: u64, chunks: u64) -> (Option<Errno>, Vec<u8>) {
    let length = (chunks * CHUNK * 512) as usize;
    call(client, &request(Command::Read, first * CHUNK, chunks * CHUNK), vec![0; length])
}

fn flush(client: &mut Client) -> Option<Errno> {
    call(client, &request(Command::Flush, 0, 0), Vec::new()).0
}

/// Returns true if a read succeeds and returns exactly the data that `write` wrote.
fn reads_right(client: &mut Client, first: u64, chunks: u64) -> bool {
    let (errno, bytes) = read(client, first, chunks);
    errno.is_none() && bytes == (first..first + chunks).flat_map(data).collect::<Vec<u8>>()
}

/// The expected outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Fails,
    Succeeds,
    /// The request touches good sectors of the bad drive, and may have been merged with one that
    /// touches bad sectors; merged requests fail together.
    Either,
}

/// Keeps many requests in flight on two connections; each must end as `fate` says of its chunks.
fn storm(daemon: &Daemon, command: Command, fate: impl Fn(u64, u64) -> Fate) {
    let socket = daemon.dir().join("s");
    let mut clients = [0; 2].map(|_| connect(&socket, "v").unwrap());
    let mut dice = SplitMix64::new(5);
    let mut sent = Vec::new();
    for number in 0..400 {
        let (first, chunks) = (dice.below(CHUNKS - 5), 1 + dice.below(5));
        sent.push((first, chunks));
        let bytes = match command {
            Command::Write => (first..first + chunks).flat_map(data).collect(),
            _ => vec![0; (chunks * CHUNK * 512) as usize],
        };
        let request = request(command, first * CHUNK, chunks * CHUNK);
        clients[number % 2].submit(&Request { cookie: number as u64, ..request }, bytes).unwrap();
    }
    let answers: Vec<_> = clients.iter_mut().flat_map(|c| load::wait(c, 200).unwrap()).collect();
    assert_eq!(answers.len(), 400);
    for done in answers {
        let (first, chunks) = sent[done.user_data as usize];
        let is_right = match fate(first, chunks) {
            Fate::Fails => done.errno == Some(Errno::Eio),
            Fate::Succeeds => done.errno.is_none(),
            Fate::Either => done.errno.is_none_or(|errno| errno == Errno::Eio),
        };
        let what = format!("{command:?} of {chunks} chunks from {first}: {:?}", done.errno);
        assert!(is_right, "{what}");
        if command == Command::Read && done.errno.is_none() {
            let right: Vec<u8> = (first..first + chunks).flat_map(data).collect();
            assert!(done.buffer == right, "{what}");
        }
    }
}

/// The fate of a request if chunks are bad, all of them on drive 2, and the drive is not.
fn fate_of(first: u64, chunks: u64, is_bad: impl Fn(u64) -> bool) -> Fate {
    match ((first..first + chunks).any(is_bad), touches(first, chunks, BAD)) {
        (true, _) => Fate::Fails,
        (false, true) => Fate::Either,
        (false, false) => Fate::Succeeds,
    }
}

/// Checks that the other volume is unaffected.
fn neighbour_is_well(daemon: &Daemon) {
    let mut other = connect(&daemon.dir().join("s"), "w").unwrap();
    assert_eq!(write(&mut other, 0, 16), None);
    assert_eq!(flush(&mut other), None);
    assert!(reads_right(&mut other, 0, 16));
}

#[test]
fn a_dead_drive_fails_what_touches_it_and_nothing_else() {
    let (mut daemon, mut client) = start("fault:drive=(ram:size=1m),volatile=on,dead=on");
    let touched = |first, chunks| match touches(first, chunks, BAD) {
        true => Fate::Fails,
        false => Fate::Succeeds,
    };
    for chunk in (0..CHUNKS).filter(|chunk| chunk % 4 != BAD) {
        assert_eq!(write(&mut client, chunk, 1), None, "chunk {chunk}");
    }
    storm(&daemon, Command::Write, touched);
    storm(&daemon, Command::Read, touched);
    assert_eq!(flush(&mut client), Some(Errno::Eio), "a flush touches every drive");
    assert!(reads_right(&mut client, 3, 3), "and the connection goes on");
    neighbour_is_well(&daemon);
    assert_eq!(daemon.try_wait(), None);
    assert_eq!(daemon.terminate().code(), Some(1), "the last flush cannot succeed");
    assert!(daemon.stderr().contains("v: flush: "), "and that is said: {}", daemon.stderr());
}

#[test]
fn errors_in_range_of_one_drive_fail_only_what_touches_range() {
    // The third and fourth chunk of drive 2: chunks 10 and 14 of the volume.
    let spec = "fault:drive=(ram:size=1m),volatile=on,every=1,range=8k-16k";
    let (mut daemon, mut client) = start(spec);
    let touched = |first, chunks| fate_of(first, chunks, |chunk| chunk == 10 || chunk == 14);
    for chunk in 0..CHUNKS {
        let expected = (touched(chunk, 1) == Fate::Fails).then_some(Errno::Eio);
        assert_eq!(write(&mut client, chunk, 1), expected, "chunk {chunk}");
    }
    storm(&daemon, Command::Write, touched);
    storm(&daemon, Command::Read, touched);
    assert_eq!(flush(&mut client), None, "a flush touches no range");
    neighbour_is_well(&daemon);
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn every_third_request_of_one_drive_fails_and_the_others_do_not() {
    let spec = "fault:drive=(ram:size=1m),volatile=on,every=3,op=read";
    let (mut daemon, mut client) = start(spec);
    assert_eq!(write(&mut client, 0, CHUNKS), None);
    let mut reads_of_bad = 0;
    for chunk in 0..CHUNKS {
        reads_of_bad += u64::from(chunk % 4 == BAD);
        let fails = chunk % 4 == BAD && reads_of_bad % 3 == 0;
        let (errno, bytes) = read(&mut client, chunk, 1);
        assert_eq!(errno, fails.then_some(Errno::Eio), "chunk {chunk}");
        assert!(fails || bytes == data(chunk), "chunk {chunk}");
    }
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn a_drive_that_cannot_flush_fails_flushes_and_no_writes() {
    let spec = "fault:drive=(ram:size=1m),volatile=on,every=2,op=flush";
    let (mut daemon, mut client) = start(spec);
    for round in 0..6 {
        assert_eq!(write(&mut client, 0, CHUNKS), None);
        let expected = (round % 2 == 1).then_some(Errno::Eio);
        assert_eq!(flush(&mut client), expected, "flush {round}");
        assert!(reads_right(&mut client, 0, CHUNKS));
    }
    assert_eq!(daemon.try_wait(), None);
}

#[test]
fn drive_fails_reads_of_a_file_cut_short_while_serving() {
    let (mut daemon, mut client) = start("file:path=d2.img,size=1m");
    assert_eq!(write(&mut client, 0, CHUNKS), None);
    assert_eq!(flush(&mut client), None);
    storm(&daemon, Command::Read, |_, _| Fate::Succeeds);
    let file = File::options().write(true).open(daemon.dir().join("d2.img")).unwrap();
    file.set_len(16384).unwrap();
    // Chunks 2, 6, 10 and 14 of the volume are the four that are left.
    let touched = |first, chunks| fate_of(first, chunks, |chunk| chunk % 4 == BAD && chunk > 14);
    storm(&daemon, Command::Read, touched);
    assert_eq!(write(&mut client, 0, CHUNKS), None, "a write makes the file longer again");
    assert!(reads_right(&mut client, 0, CHUNKS));
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn flush_waiting_for_another_thread_on_a_slow_drive_is_answered() {
    let slow = "fault:drive=(ram:size=1m),volatile=on,latency=1ms";
    let threads = format!("{}[server]\nthreads = 2\n", config(slow));
    // Losing a flush depends on timing, so the test runs several daemons.
    for _ in 0..8 {
        let daemon = Daemon::start(&threads, &["s"]);
        two_flushes_at_a_time(&daemon);
    }
}

/// Opens a connection on each thread. The later of two flushes has to wait, and a thread other than
/// its own starts it.
fn two_flushes_at_a_time(daemon: &Daemon) {
    let socket = daemon.dir().join("s");
    let mut clients = [0; 2].map(|_| connect(&socket, "v").unwrap());
    for round in 0..30 {
        for client in &mut clients {
            client.submit(&request(Command::Flush, 0, 0), Vec::new()).unwrap();
            client.flush().unwrap();
        }
        for client in &mut clients {
            assert_eq!(load::wait(client, 1).unwrap()[0].errno, None, "round {round}");
        }
    }
}

/// A request to the stuck drive, sent and not waited for.
fn stuck_read(daemon: &Daemon) -> Client {
    let mut client = connect(&daemon.dir().join("s"), "v").unwrap();
    let bytes = vec![0; (CHUNK * 512) as usize];
    client.submit(&request(Command::Read, BAD * CHUNK, CHUNK), bytes).unwrap();
    client.flush().unwrap();
    client
}

#[test]
fn stuck_drive_blocks_neither_other_drives_nor_end_of_daemon() {
    let spec = "fault:drive=(ram:size=1m),volatile=on,stuck=on,op=read";
    let (mut daemon, mut client) = start(spec);
    let mut stuck: Vec<Client> = (0..4).map(|_| stuck_read(&daemon)).collect();
    let start = Instant::now();
    for chunk in (0..CHUNKS).filter(|chunk| chunk % 4 != BAD) {
        assert_eq!(write(&mut client, chunk, 1), None, "chunk {chunk}");
        assert!(reads_right(&mut client, chunk, 1), "chunk {chunk}");
        let same = &mut stuck[chunk as usize % 4];
        let bytes = vec![0; (CHUNK * 512) as usize];
        let other = Request { cookie: 1, ..request(Command::Read, chunk * CHUNK, CHUNK) };
        same.submit(&other, bytes).unwrap();
        let done = load::wait(same, 1).unwrap().pop().unwrap();
        assert!(done.user_data == 1 && done.errno.is_none() && done.buffer == data(chunk));
    }
    assert_eq!(flush(&mut client), None, "only reads stick");
    assert!(start.elapsed() < Duration::from_secs(15), "others waited: {:?}", start.elapsed());
    neighbour_is_well(&daemon);
    let start = Instant::now();
    assert_eq!(daemon.terminate().code(), Some(1), "something was left unanswered");
    assert!(start.elapsed() < Duration::from_secs(19), "the drain is bounded");
    assert!(
        daemon.stderr().contains("4 connections closed with unanswered requests"),
        "{}",
        daemon.stderr()
    );
}

#[test]
fn unanswered_requests_sleep_and_a_second_signal_ends_it() {
    let (mut daemon, _) = start("fault:drive=(ram:size=1m),volatile=on,stuck=on,op=read");
    let stuck = stuck_read(&daemon);
    thread::sleep(Duration::from_millis(300));
    let before = daemon.cpu_ticks();
    thread::sleep(Duration::from_secs(1));
    let used = daemon.cpu_ticks() - before;
    assert!(used <= 20, "a stuck request costs {used} of 100 ticks");
    daemon.signal(libc::SIGTERM);
    let stopping = || daemon.stderr().contains("stopping:").then_some(());
    poll_within(Duration::from_secs(10), stopping).expect("it is told to stop");
    thread::sleep(Duration::from_millis(800));
    assert_eq!(daemon.try_wait(), None, "it waits for the stuck request at first");
    let start = Instant::now();
    assert_eq!(daemon.terminate().code(), Some(1));
    assert!(start.elapsed() < Duration::from_secs(5));
    drop(stuck);
}
