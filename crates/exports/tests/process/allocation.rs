//! After warm-up a request to a server allocates nothing on the server's I/O thread.
//!
//! The allocator of this test binary counts the calls of the thread named like a server's first I/O
//! thread. The client runs in the test's own thread and is not counted. Tests take turns, since
//! their servers' threads have equal names. The warm-up keeps more requests in flight than the
//! measurement, so that buffers and lists are large enough, and its client stalls once, so that the
//! server has waited for room to send.

use std::time::Duration;

use crate::alone;
use crate::server_support::{BACKENDS, MIB, Running, order, request, serve, write};
use crate::vhost_support::guest::{GUEST, Guest as ByHand, IN, INDIRECT, NEXT, WRITE};
use millrace_allocations::{Counting, held_bytes};
use millrace_clients::nbd::Client;
use millrace_clients::vhost::{Client as Guest, Descriptors, Options, Queue, Request, Wait};
use millrace_exports::vhost::Threads;
use millrace_nbd::Command;

/// Beginnings of the names of the first I/O threads of the NBD server and of an export to virtual
/// machines.
const IO_THREADS: [&[u8]; 2] = [b"millrace-io0\0", b"vm0-"];
const SPECS: [&str; 2] = ["null:size=64m", "ram:size=64m"];
const WARM_UP: u64 = 1_000;
const WARM_UP_DEPTH: usize = 128;
const REQUESTS: u64 = 2_000;
const DEPTH: usize = 32;
const STALL: Duration = Duration::from_millis(20);

#[global_allocator]
static ALLOCATOR: Counting = Counting::of_threads(has_counted_name);

fn has_counted_name() -> bool {
    let mut name = [0u8; 16];
    // SAFETY: writes at most 16 bytes of a live array.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    IO_THREADS.iter().any(|io_thread| name.starts_with(io_thread))
}

/// A client that keeps requests of one size in flight, eight reads and eight writes in turn.
struct Load {
    client: Client,
    bytes: u64,
    sent: u64,
    spare: Vec<Vec<u8>>,
}

impl Load {
    fn new(client: Client, bytes: u64) -> Load {
        let spare = (0..WARM_UP_DEPTH).map(|_| vec![0; bytes as usize]).collect();
        Load { client, bytes, sent: 0, spare }
    }

    /// Sends reads and takes no reply until the server has waited, first for room to send, and with
    /// the next requests for its client to catch up.
    fn stall(&mut self) {
        let buffers = std::mem::take(&mut self.spare);
        let count = buffers.len();
        for (index, buffer) in buffers.into_iter().enumerate() {
            self.client.submit(&request(Command::Read, 0, self.bytes), buffer).unwrap();
            if index + 4 >= count {
                self.client.flush().unwrap();
                std::thread::sleep(STALL);
            }
        }
        self.client.wait(count, |completion| self.spare.push(completion.buffer)).unwrap();
    }

    /// Does `count` requests, `depth` at a time, and ends with none in flight.
    fn run(&mut self, count: u64, depth: usize) {
        let (mut left, mut done) = (count, 0);
        while done < count {
            while left > 0 && self.client.in_flight() < depth {
                let command = match self.sent / 8 % 2 {
                    0 => Command::Read,
                    _ => Command::Write,
                };
                let offset = self.sent * self.bytes % (64 * MIB);
                let buffer = self.spare.pop().unwrap();
                self.client.submit(&request(command, offset, self.bytes), buffer).unwrap();
                (self.sent, left) = (self.sent + 1, left - 1);
            }
            let spare = &mut self.spare;
            let handed = self.client.wait(1, |completion| {
                assert_eq!(completion.errno, None);
                spare.push(completion.buffer);
            });
            done += handed.unwrap() as u64;
        }
    }
}

fn assert_no_call(case: &str, client: Client, bytes: u64) {
    let mut load = Load::new(client, bytes);
    // Reads of holes would leave the block layer alone.
    (0..1024).for_each(|n| write(&mut load.client, n << 16, &[1; 512]));
    load.stall();
    load.run(WARM_UP, WARM_UP_DEPTH);
    let (calls, first) = ALLOCATOR.calls_in(|| load.run(REQUESTS, DEPTH));
    assert!(calls == 0, "{case}: {calls} calls in {REQUESTS} requests; the first:\n{first}");
    load.client.disconnect().unwrap();
}

/// Serves `spec` from one I/O thread on each back end.
fn on_each_backend(spec: &str, mut body: impl FnMut(&str, &Running)) {
    for backend in BACKENDS {
        let running = serve(&[spec], |config| (config.backend, config.threads) = (backend, 1));
        body(&format!("{spec} {backend}"), &running);
        running.stop();
    }
}

#[test]
fn allocations_of_an_io_thread_are_counted_and_of_a_client_not() {
    let _alone = alone();
    on_each_backend(SPECS[0], |case, running| {
        // A thread that serves a client has made all the allocations of its start.
        drop(running.unix("0"));
        let (calls, first) = ALLOCATOR.calls_in(|| drop(running.unix("0")));
        assert!(calls > 0, "{case}");
        assert!(first.contains("millrace_exports::nbd::"), "{first}");
    });
    assert_eq!(ALLOCATOR.calls_in(|| drop(vec![0u8; 512])).0, 0);
}

#[test]
fn pipelined_requests_of_4_kib_allocate_nothing() {
    let _alone = alone();
    for spec in SPECS {
        on_each_backend(spec, |case, running| {
            assert_no_call(&format!("{case} unix"), running.unix("0"), 4096);
            assert_no_call(&format!("{case} tcp"), running.tcp("0"), 4096);
        });
    }
}

#[test]
fn pipelined_requests_of_64_kib_allocate_nothing() {
    let _alone = alone();
    for spec in SPECS {
        on_each_backend(spec, |case, running| {
            assert_no_call(&format!("{case} unix"), running.unix("0"), 64 << 10);
            assert_no_call(&format!("{case} tcp"), running.tcp("0"), 64 << 10);
        });
    }
}

#[test]
fn reads_of_holes_allocate_nothing() {
    let _alone = alone();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = format!("file:path={},size=64m", dir.path().join("d").display());
    for spec in [SPECS[1], &file] {
        on_each_backend(spec, |case, running| {
            let mut load = Load::new(running.unix("0"), 64 << 10);
            load.stall();
            let client = &mut load.client;
            let mut run = |count| {
                for _ in 0..count {
                    let done = client.call(&request(Command::Read, 0, MIB), vec![1; MIB as usize]);
                    assert_eq!(done.unwrap().errno, None);
                }
            };
            run(100);
            let (calls, first) = ALLOCATOR.calls_in(|| run(500));
            assert!(calls == 0, "{case}: {calls} calls in 500 requests; the first:\n{first}");
        });
    }
}

#[test]
fn flushes_and_trims_allocate_nothing() {
    let _alone = alone();
    for spec in SPECS {
        on_each_backend(spec, |case, running| {
            let mut load = Load::new(running.unix("0"), 4096);
            load.stall();
            let client = &mut load.client;
            let mut run = |count| {
                for _ in 0..count {
                    assert_eq!(order(client, Command::Flush, 0, 0, 0), None);
                    assert_eq!(order(client, Command::Trim, 0, MIB, 65536), None);
                }
            };
            run(100);
            let (calls, first) = ALLOCATOR.calls_in(|| run(500));
            assert!(calls == 0, "{case}: {calls} calls in 1000 requests; the first:\n{first}");
        });
    }
}

/// Does `count` requests of a guest, `depth` at a time.
fn guest_load(queue: &mut Queue, count: u64, depth: u16) {
    let mut free: Vec<u16> = (0..depth).collect();
    let (mut sent, mut done) = (0, 0);
    while done < count {
        while sent < count
            && let Some(slot) = free.pop()
        {
            let request = match sent % 16 {
                0..8 => Request::read(sent * 8 % 65536, 4096),
                15 => Request::flush(),
                _ => Request::write(sent * 8 % 65536, 4096),
            };
            queue.submit(slot, request);
            sent += 1;
        }
        queue.kick();
        queue.wait().unwrap();
        let reaped = queue.reap(|slot, status| {
            assert!(status.is_ok());
            free.push(slot);
        });
        done += u64::from(reaped.unwrap());
    }
}

#[test]
fn requests_of_guests_allocate_nothing() {
    let _alone = alone();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = format!("file:path={},size=64m", dir.path().join("d").display());
    let kinds = [(Descriptors::Chained, Wait::Poll), (Descriptors::Indirect, Wait::Events)];
    for (spec, kind) in [SPECS[0], SPECS[1], &file].iter().flat_map(|s| kinds.map(|k| (s, k))) {
        for backend in BACKENDS {
            let volume = crate::vhost_support::volume(spec);
            let export = crate::vhost_support::Export::of(backend, &[volume], |export| {
                export.threads = Threads::Count(1);
            });
            let (descriptors, wait) = (Some(kind.0), kind.1);
            let options = Options { depth: 64, ring: 256, descriptors, wait, ..Options::default() };
            let client = Guest::connect(&export.socket(0), options).unwrap();
            let mut queue = client.into_queues().remove(0);
            guest_load(&mut queue, WARM_UP, 64);
            // The device's thread sleeps, too, and is kicked.
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(20));
                guest_load(&mut queue, 64, 32);
            }
            // On a busy machine the pool of the epoll backend may start one more thread meanwhile.
            let mut load = || ALLOCATOR.calls_in(|| guest_load(&mut queue, 5_000, 32));
            let least = std::iter::repeat_with(&mut load).take(3).min_by_key(|(calls, _)| *calls);
            let (calls, first) = least.unwrap();
            assert!(calls == 0, "{spec} {backend} {kind:?}: {calls} calls; the first:\n{first}");
            drop(queue);
            export.stop();
        }
    }
}

/// Requests of a guest at once, each with a list of its pieces.
const HEADS: u16 = 250;

#[test]
fn requests_with_excess_pieces_leave_no_memory_behind() {
    let _alone = alone();
    for backend in BACKENDS {
        let volume = crate::vhost_support::volume(SPECS[1]);
        let export = crate::vhost_support::Export::of(backend, &[volume], |export| {
            export.threads = Threads::Count(1);
        });
        let mut guest = ByHand::ready(&export.socket(0), &[1024]);
        let table = guest.data + (4 << 20);
        let mut ask = |pieces: u64, heads: u16| {
            // A read of one block, over and over the same, in an indirect table.
            let at = |piece: u64| table + 16 * piece;
            let raw = |guest: &ByHand, at, (from, len): (u64, u32), flags, next: u64| {
                guest.describe_raw(at, GUEST + from, len, (flags, next as u16));
            };
            let header = guest.header(0, 0, IN, 0);
            raw(&guest, at(0), header, NEXT, 1);
            for piece in 1..=pieces {
                raw(&guest, at(piece), (guest.data, 512), NEXT | WRITE, piece + 1);
            }
            raw(&guest, at(pieces + 1), (guest.status_at(0, 0), 1), WRITE, 0);
            for head in 0..heads {
                guest.describe(0, head, (table, 16 * (pieces as u32 + 2)), INDIRECT, 0);
                guest.offer(0, head);
            }
            guest.publish(0);
            guest.wait(0, heads);
            assert_eq!(guest.status(0, 0), 0);
        };
        // As many pieces as a Linux guest makes, in every order: the lists grow, and stay.
        for pieces in [3, 64, 100, 126, 126, 100] {
            ask(pieces, HEADS);
        }
        let (calls, first) =
            ALLOCATOR.calls_in(|| [126, 2, 100].into_iter().for_each(|n| ask(n, HEADS)));
        assert!(calls == 0, "{backend}: {calls} calls; the first:\n{first}");
        let before = held_bytes();
        ask(1000, HEADS);
        let grown = held_bytes() - before;
        assert!(grown < 1 << 20, "{backend}: {grown} bytes are kept for answered requests");
        drop(guest);
        export.stop();
    }
}
