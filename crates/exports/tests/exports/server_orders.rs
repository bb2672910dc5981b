//! Operations, flags and ranges that reach the drive for each command of a client, in order.
//!
//! The drive records every request and does nothing; it may hold flushes back.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::server_support::{BACKENDS, Running, order, request, serve_volumes};
use millrace_block::{
    CompletionBatch, Disk, DiskConfig, Dispatch, Driver, DriverQueue, Error, Expired, Features,
    HwQueues, Op, OpFlags, QueueKind, QueueLimits, Request as DriveRequest, Sector, Status, Tag,
    TagScope, Volume,
};
use millrace_machine::{Native, Topology};
use millrace_nbd::wire::CMD_FLAG_FUA;
use millrace_nbd::{Command, ReplyStyle, Request, encode_request};

/// Size of the drive in sectors: 3 TiB.
const SECTORS: u64 = 3 << 31;

/// Operation, FUA, first sector, sectors.
type Seen = (Op, bool, Sector, u64);

#[derive(Default)]
struct Knobs {
    seen: Mutex<Vec<Seen>>,
    holds_flushes: AtomicBool,
}

struct Recorder {
    knobs: Arc<Knobs>,
    fua: bool,
}

struct RecorderQueue {
    knobs: Arc<Knobs>,
    ready: VecDeque<Tag>,
    flushes: VecDeque<Tag>,
}

impl Driver<Native> for Recorder {
    fn capacity(&self) -> Sector {
        SECTORS
    }

    fn limits(&self) -> QueueLimits {
        QueueLimits {
            max_discard_sectors: u32::MAX,
            max_write_zeroes_sectors: u32::MAX,
            features: Features { volatile_cache: true, fua: self.fua, ..Features::default() },
            ..QueueLimits::default()
        }
    }

    fn hw_queues(&self, _: &Topology) -> HwQueues {
        HwQueues { count: 1, depth: 64, kind: QueueKind::AnyThread, tags: TagScope::PerQueue }
    }

    fn open_queue(&self, _: u16, _: u32) -> Result<Box<dyn DriverQueue<Native>>, Error> {
        let (ready, flushes) = (VecDeque::new(), VecDeque::new());
        Ok(Box::new(RecorderQueue { knobs: Arc::clone(&self.knobs), ready, flushes }))
    }
}

impl DriverQueue<Native> for RecorderQueue {
    fn queue_rq(&mut self, rq: &DriveRequest<Native>) -> Dispatch {
        let fua = rq.flags().has(OpFlags::FUA);
        let seen = (rq.op(), fua, rq.sector(), rq.nr_sectors().into());
        self.knobs.seen.lock().unwrap().push(seen);
        match rq.op() {
            Op::Flush => self.flushes.push_back(rq.tag()),
            _ => self.ready.push_back(rq.tag()),
        }
        Dispatch::Queued
    }

    fn commit_rqs(&mut self) {}

    fn poll(&mut self, batch: &mut CompletionBatch) {
        if !self.knobs.holds_flushes.load(Ordering::SeqCst) {
            self.ready.append(&mut self.flushes);
        }
        while !batch.is_full() {
            let Some(tag) = self.ready.pop_front() else { return };
            batch.push(tag, Status::Ok);
        }
    }

    fn timeout(&mut self, _: Tag) -> Expired {
        Expired::Extend
    }
}

/// A server of one recording drive, with FUA or without.
fn serve(fua: bool, backend: millrace_reactor::Backend) -> (Running, Arc<Knobs>) {
    let knobs = Arc::new(Knobs::default());
    let driver = Recorder { knobs: Arc::clone(&knobs), fua };
    let running = serve_volumes(
        1,
        |config| config.backend = backend,
        |_| {
            let disk = Disk::new(Box::new(driver), DiskConfig::default()).unwrap();
            vec![Volume::single(disk).unwrap()]
        },
    );
    (running, knobs)
}

fn taken(knobs: &Knobs) -> Vec<Seen> {
    std::mem::take(&mut knobs.seen.lock().unwrap())
}

#[test]
fn fua_of_every_command_is_durable_before_its_answer() {
    for backend in BACKENDS {
        for fua in [false, true] {
            let (running, knobs) = serve(fua, backend);
            let mut client = running.unix("0");
            let flush = (Op::Flush, false, 0, 0);
            for (command, op) in
                [(Command::WriteZeroes, Op::WriteZeroes), (Command::Trim, Op::Discard)]
            {
                assert_eq!(order(&mut client, command, 0, 4096, 8192), None);
                assert_eq!(taken(&knobs), [(op, false, 8, 16)], "no more than was asked for");
                assert_eq!(order(&mut client, command, CMD_FLAG_FUA, 4096, 8192), None);
                assert_eq!(taken(&knobs), [(op, false, 8, 16), flush], "{command:?}");
            }
            let write = Request { flags: CMD_FLAG_FUA, ..request(Command::Write, 512, 512) };
            assert_eq!(client.call(&write, vec![1; 512]).unwrap().errno, None);
            match fua {
                true => assert_eq!(taken(&knobs), [(Op::Write, true, 1, 1)]),
                false => assert_eq!(taken(&knobs), [(Op::Write, false, 1, 1), flush]),
            }
            let read = Request { flags: CMD_FLAG_FUA, ..request(Command::Read, 512, 512) };
            assert_eq!(client.call(&read, vec![1; 512]).unwrap().errno, None);
            assert_eq!(
                taken(&knobs),
                [(Op::Read, false, 1, 1)],
                "a read has nothing to make durable"
            );
        }
    }
}

#[test]
fn flush_and_fua_are_answered_after_the_drive_has_flushed() {
    for backend in BACKENDS {
        let (running, knobs) = serve(false, backend);
        let mut client = running.unix("0");
        for command in [Command::Flush, Command::Trim, Command::WriteZeroes] {
            knobs.holds_flushes.store(true, Ordering::SeqCst);
            let (flags, length) = match command {
                Command::Flush => (0, 0),
                _ => (CMD_FLAG_FUA, 4096),
            };
            let request = Request { flags, ..request(command, 0, length) };
            client.submit(&request, Vec::new()).unwrap();
            client.flush().unwrap();
            running.until("the drive has the flush", |_| {
                knobs.seen.lock().unwrap().iter().any(|seen| seen.0 == Op::Flush)
            });
            std::thread::sleep(Duration::from_millis(50));
            let in_flight = running.server.stats().requests_in_flight;
            assert_eq!(in_flight, 1, "{command:?} was answered before the drive had flushed");
            knobs.holds_flushes.store(false, Ordering::SeqCst);
            assert_eq!(client.wait(1, |done| assert_eq!(done.errno, None)).unwrap(), 1);
            taken(&knobs);
        }
    }
}

/// A client with extended headers, whose lengths have 64 bits.
struct Wide(UnixStream);

impl Wide {
    fn new(running: &Running) -> Wide {
        let mut wide = Wide(running.raw());
        wide.take(18);
        let option = |number: u32, data: &[u8]| {
            let numbers = [number, data.len() as u32].map(u32::to_be_bytes).concat();
            [b"IHAVEOPT", &numbers[..], data].concat()
        };
        wide.0.write_all(&[&3u32.to_be_bytes(), &option(11, &[])[..]].concat()).unwrap();
        wide.until_acknowledged();
        wide.0.write_all(&option(7, &[&[0, 0, 0, 1], &b"0"[..], &[0, 0]].concat())).unwrap();
        wide.until_acknowledged();
        wide
    }

    fn take(&mut self, bytes: usize) -> Vec<u8> {
        let mut taken = vec![0; bytes];
        self.0.read_exact(&mut taken).unwrap();
        taken
    }

    fn until_acknowledged(&mut self) {
        loop {
            let head = self.take(20);
            let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
            self.take(number(16) as usize);
            if number(12) == 1 {
                return;
            }
        }
    }

    /// Sends a request; true if it is answered without an error.
    fn order(&mut self, command: Command, flags: u16, offset: u64, length: u64) -> bool {
        let mut out = [0; 32];
        let request = Request { cookie: 1, flags, command, offset, length };
        let bytes = encode_request(&request, ReplyStyle::Extended, &mut out);
        self.0.write_all(&out[..bytes]).unwrap();
        let reply = self.take(32);
        let payload = u64::from_be_bytes(reply[24..32].try_into().unwrap());
        self.take(payload as usize);
        // The type of an error chunk has the highest bit set.
        reply[6] & 0x80 == 0
    }
}

#[test]
fn ranges_above_1_tib_go_part_after_part_and_whole() {
    for backend in BACKENDS {
        let (running, knobs) = serve(false, backend);
        let mut client = Wide::new(&running);
        const TIB: u64 = 1 << 31;
        for (command, op) in [(Command::WriteZeroes, Op::WriteZeroes), (Command::Trim, Op::Discard)]
        {
            let (first, sectors) = (8, 2 * TIB + 24);
            assert!(client.order(command, 0, first << 9, sectors << 9));
            let parts = [
                (op, false, first, TIB),
                (op, false, first + TIB, TIB),
                (op, false, first + 2 * TIB, 24),
            ];
            assert_eq!(taken(&knobs), parts);
            assert!(client.order(command, CMD_FLAG_FUA, 0, SECTORS << 9));
            let flushes = taken(&knobs).iter().filter(|seen| seen.0 == Op::Flush).count();
            assert!(flushes > 0, "{command:?} of everything is made durable");
        }
    }
}
