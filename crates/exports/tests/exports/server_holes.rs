//! Reads that the server answers with hole chunks, compared byte by byte.
//!
//! The client is bare: it negotiates structured replies by hand and shows each chunk as it comes.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::server_support::{
    BACKENDS, MIB, Running, order, pattern, read, serve, serve_groups, serve_volumes, volume,
    volume_with, write,
};
use millrace_block::Groups;
use millrace_nbd::Command;
use millrace_nbd::wire::{CMD_FLAG_DF, CMD_READ};

const KIB: u64 = 1 << 10;

/// A chunk of a reply.
#[derive(Debug, PartialEq, Eq)]
enum Chunk {
    Data(u64, u64),
    Hole(u64, u64),
    Error(u32),
}
use Chunk::{Data, Error, Hole};

/// A connection with structured replies to one export.
struct Bare(UnixStream);

impl Bare {
    fn connect(running: &Running, export: &str) -> Bare {
        let mut bare = Bare(running.raw());
        bare.take(18);
        let option = |number: u32, data: &str| {
            let numbers = [number, data.len() as u32].map(u32::to_be_bytes).concat();
            [b"IHAVEOPT", &numbers[..], data.as_bytes()].concat()
        };
        // Fixed newstyle without zeroes, then structured replies, then the export.
        bare.0.write_all(&[&[0, 0, 0, 3], &option(8, "")[..]].concat()).unwrap();
        assert_eq!(bare.take(20)[12..16], [0, 0, 0, 1], "acknowledged");
        bare.0.write_all(&option(1, export)).unwrap();
        bare.take(10);
        bare
    }

    fn take(&mut self, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn number(&mut self, bytes: u64) -> u64 {
        self.take(bytes).iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    }

    /// The chunks of a read's reply.
    fn read(&mut self, flags: u16, offset: u64, length: u64) -> Vec<Chunk> {
        let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
        bytes.extend([flags, CMD_READ].map(u16::to_be_bytes).concat());
        bytes.extend([77, offset].map(u64::to_be_bytes).concat());
        bytes.extend((length as u32).to_be_bytes());
        self.0.write_all(&bytes).unwrap();
        let (mut chunks, mut done) = (Vec::new(), false);
        while !done {
            assert_eq!(self.number(4), 0x668e_33ef, "magic of a chunk");
            done = self.number(2) & 1 != 0;
            let kind = self.number(2);
            assert_eq!(self.number(8), 77, "cookie");
            let len = self.number(4);
            chunks.push(match kind {
                1 => {
                    let at = self.number(8);
                    self.take(len - 8);
                    Data(at, len - 8)
                }
                2 => Hole(self.number(8), self.number(4)),
                _ => {
                    let errno = self.number(4) as u32;
                    self.take(len - 4);
                    Error(errno)
                }
            });
        }
        chunks
    }
}

/// The chunks of a new connection's first read, for which the drive is always asked.
fn first_read(running: &Running, export: &str, offset: u64, length: u64) -> Vec<Chunk> {
    Bare::connect(running, export).read(0, offset, length)
}

#[test]
fn long_reads_of_holes_are_hole_chunks_before_and_after_data() {
    for backend in BACKENDS {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = dir.path().join("d");
        let specs = ["ram:size=64m", &format!("file:path={},size=64m", path.display())];
        let running = serve(&specs, |config| config.backend = backend);
        for export in ["0", "1"] {
            let first = |offset, length| first_read(&running, export, offset, length);
            assert_eq!(first(0, 64 * KIB), [Hole(0, 64 * KIB)]);
            assert_eq!(first(MIB, 32 * MIB), [Hole(MIB, 32 * MIB)]);
            assert_eq!(first(64 * MIB - 96 * KIB, 96 * KIB).len(), 1);
            assert_eq!(first(0, 64 * KIB - 512), [Data(0, 64 * KIB - 512)], "short");
            let mut bare = Bare::connect(&running, export);
            assert_eq!(bare.read(CMD_FLAG_DF, 512, MIB), [Hole(512, MIB)], "one chunk");

            let mut client = running.unix(export);
            write(&mut client, 2 * MIB, &pattern(1, 4096));
            assert_eq!(first(2 * MIB, 64 * KIB), [Data(2 * MIB, 64 * KIB)]);
            assert_eq!(first(MIB, 2 * MIB), [Data(MIB, 2 * MIB)], "a hole in part");
            assert_eq!(bare.read(CMD_FLAG_DF, MIB, 2 * MIB), [Data(MIB, 2 * MIB)]);
            assert!(read(&mut client, 2 * MIB, 64 << 10)[..4096] == pattern(1, 4096));
            assert_eq!(order(&mut client, Command::Trim, 0, 2 * MIB, 64 * KIB), None);
            assert_eq!(first(MIB, 2 * MIB), [Hole(MIB, 2 * MIB)]);
            assert!(read(&mut client, MIB, 2 << 20).iter().all(|byte| *byte == 0));
        }
        running.until_empty();
        running.stop();
    }
}

#[test]
fn acknowledged_write_is_seen_by_reads_of_every_connection() {
    for backend in BACKENDS {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = dir.path().join("d");
        let specs = ["ram:size=64m", &format!("file:path={},size=64m", path.display())];
        let running = serve(&specs, |config| config.backend = backend);
        for export in ["0", "1"] {
            let mut clients: Vec<_> = (0..4).map(|_| running.unix(export)).collect();
            for n in 0..128u64 {
                let (writer, at) = ((n % 4) as usize, n * 7 % 128 * 512 * KIB);
                assert!(read(&mut clients[writer], at, 1 << 18).iter().all(|byte| *byte == 0));
                write(&mut clients[writer], at + 60 * KIB, &pattern(n, 8192));
                for client in &mut clients {
                    assert!(read(client, at, 1 << 18)[60 << 10..68 << 10] == pattern(n, 8192));
                }
            }
        }
        running.stop();
    }
}

#[test]
fn null_drive_gets_its_reads() {
    for backend in BACKENDS {
        let running = serve(&["null:size=1t"], |config| config.backend = backend);
        assert_eq!(first_read(&running, "0", 0, MIB), [Data(0, MIB)]);
    }
}

#[test]
fn a_group_with_a_limit_gets_its_holes_as_data_since_they_count() {
    let running = serve_groups(&Groups::new());
    let first = |export| first_read(&running, export, 0, 64 * KIB);
    assert_eq!([first("0"), first("1")], [[Data(0, 64 * KIB)], [Hole(0, 64 * KIB)]]);
}

#[test]
fn dead_drive_fails_reads_of_holes_and_keeps_cached_writes() {
    const TIMEOUT: Duration = Duration::from_secs(30);
    for backend in BACKENDS {
        let mut control = None;
        let open = |threads| {
            let (dying, its_control) = volume_with("fault:drive=(ram:size=7m)", threads, TIMEOUT);
            control = its_control;
            vec![dying, volume("fault:drive=(ram:size=16m),volatile=on", threads)]
        };
        let running = serve_volumes(2, |config| config.backend = backend, open);
        let control = control.unwrap();
        let mut bare = Bare::connect(&running, "0");
        assert_eq!(bare.read(0, 0, MIB), [Hole(0, MIB)]);
        control.die_now();
        for _ in 0..20 {
            assert_eq!(bare.read(0, 0, MIB), [Error(5)]);
        }
        control.revive();
        assert_eq!(first_read(&running, "0", 0, MIB), [Hole(0, MIB)]);

        write(&mut running.unix("1"), 0, &pattern(3, 4096));
        assert_eq!(first_read(&running, "1", 0, MIB), [Data(0, MIB)]);
        drop(bare);
        running.stop();
    }
}

#[test]
fn file_cut_short_gives_an_error_and_no_hole() {
    for backend in BACKENDS {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = dir.path().join("d");
        let spec = format!("file:path={},size=16m", path.display());
        let running = serve(&[&spec], |config| config.backend = backend);
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(MIB).unwrap();
        assert_eq!(first_read(&running, "0", 0, MIB), [Hole(0, MIB)]);
        assert_eq!(first_read(&running, "0", 0, 2 * MIB), [Error(5)]);
        assert_eq!(first_read(&running, "0", 8 * MIB, MIB), [Error(5)]);
        running.stop();
    }
}
