//! Clients that never asked for block sizes: any offset and length works, and nothing else changes.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;

use crate::server_support::{
    BACKENDS, MIB, Running, header, pattern, read, serve, serve_volumes, write,
};
use millrace_block::{Disk, DiskConfig, Volume};
use millrace_drives::{RamConfig, RamDriver};
use millrace_machine::Native;
use millrace_nbd::wire::{CMD_FLAG_FUA, CMD_FLAG_NO_HOLE};
use millrace_nbd::{Command, Errno, ReplyStyle, Request, encode_request};

/// A client without block sizes, one request at a time.
struct Ragged(UnixStream);

impl Ragged {
    fn new(running: &Running) -> Ragged {
        Ragged(running.by_hand("0"))
    }

    fn send(&mut self, command: Command, flags: u16, offset: u64, length: u64, data: &[u8]) {
        let mut out = [0; 32];
        let request = Request { cookie: 1, flags, command, offset, length };
        let bytes = encode_request(&request, ReplyStyle::Simple, &mut out);
        self.0.write_all(&[&out[..bytes], data].concat()).unwrap();
    }

    fn reply(&mut self) -> u32 {
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply).unwrap();
        u32::from_be_bytes(reply[4..8].try_into().unwrap())
    }

    fn order(&mut self, command: Command, flags: u16, offset: u64, length: u64) -> u32 {
        self.send(command, flags, offset, length, &[]);
        self.reply()
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        self.send(Command::Write, 0, offset, data.len() as u64, data);
        assert_eq!(self.reply(), 0);
    }

    fn read(&mut self, offset: u64, length: usize) -> Vec<u8> {
        assert_eq!(self.order(Command::Read, 0, offset, length as u64), 0);
        let mut data = vec![0; length];
        self.0.read_exact(&mut data).unwrap();
        data
    }
}

/// Export 0 is a ram drive of 1 MiB with blocks of `grain` bytes.
fn ram(grain: u32) -> impl FnOnce(u16) -> Vec<Arc<Volume<Native>>> {
    move |_| {
        let config = RamConfig { size_bytes: MIB, block_size: grain, ..RamConfig::default() };
        let driver = RamDriver::new(config).unwrap();
        let disk = Disk::new(Box::new(driver), DiskConfig::default()).unwrap();
        vec![Volume::single(disk).unwrap()]
    }
}

#[test]
fn any_byte_range_reads_back_what_a_plain_array_of_bytes_would() {
    for backend in BACKENDS {
        for grain in [512, 4096] {
            let running = serve_volumes(1, |config| config.backend = backend, ram(grain));
            let mut client = Ragged::new(&running);
            let mut model = vec![0u8; MIB as usize];
            let mut random = pattern(grain.into(), 8 * 1000).into_iter();
            let mut next = |below: u64| {
                let bytes: Vec<u8> = random.by_ref().take(4).collect();
                u64::from(u32::from_le_bytes(bytes.try_into().unwrap())) % below
            };
            for round in 0..400u64 {
                let length = 1 + next([10, 600, 9000, 70_000][round as usize % 4]);
                let offset = match round % 5 {
                    0 => MIB - length,
                    _ => next(MIB - length),
                };
                let range = offset as usize..(offset + length) as usize;
                let flags = if round % 3 == 0 { CMD_FLAG_FUA } else { 0 };
                match round % 7 {
                    0..4 => {
                        let data = pattern(round, length as usize);
                        client.send(Command::Write, flags, offset, length, &data);
                        assert_eq!(client.reply(), 0);
                        model[range.clone()].copy_from_slice(&data);
                    }
                    4 | 5 => {
                        let flags = flags | if round % 2 == 0 { CMD_FLAG_NO_HOLE } else { 0 };
                        assert_eq!(client.order(Command::WriteZeroes, flags, offset, length), 0);
                        model[range.clone()].fill(0);
                    }
                    _ => {
                        // Whole blocks may be gone, the rest is as it was.
                        assert_eq!(client.order(Command::Trim, flags, offset, length), 0);
                        let grain = u64::from(grain);
                        let first = offset.next_multiple_of(grain) as usize;
                        let last = ((offset + length) / grain * grain) as usize;
                        if first < last {
                            let now = client.read(first as u64, last - first);
                            model[first..last].copy_from_slice(&now);
                        }
                    }
                }
                assert!(client.read(offset, length as usize) == model[range], "round {round}");
            }
            assert!(client.read(0, MIB as usize) == model);
            assert_eq!(client.order(Command::Read, 0, MIB - 10, 11), 22, "the end is the end");
            assert_eq!(client.order(Command::WriteZeroes, 0, MIB - 10, 11), 28);
            assert!(running.server.stats().bounced > 400);
            drop(client);
            running.until_empty();
            running.stop();
        }
    }
}

#[test]
fn client_that_asked_for_block_sizes_is_held_to_them() {
    let running = serve(&["ram:size=1m"], |_| ());
    let mut client = running.unix("0");
    let done = crate::server_support::call(&mut client, Command::Read, 1, vec![0; 512]);
    assert_eq!(done.errno, Some(Errno::Einval));
    assert_eq!(running.server.stats().bounced, 0);
}

#[test]
fn partial_and_whole_block_writers_keep_each_others_data() {
    for backend in BACKENDS {
        let specs = ["fault:drive=(ram:size=1m),latency=300us"];
        let running = serve(&specs, |config| (config.backend, config.threads) = (backend, 2));
        const WRITERS: u64 = 8;
        // Each writer has every eighth byte-range of 64 in the same few blocks; a ninth writes the
        // whole blocks behind them, a tenth longer ragged ranges.
        thread::scope(|scope| {
            for writer in 0..WRITERS {
                let mut client = Ragged::new(&running);
                scope.spawn(move || {
                    for round in 0..40u64 {
                        for block in 0..4u64 {
                            let offset = block * 512 + writer * 64;
                            let data = pattern(round << 8 | writer, 64);
                            client.write(offset, &data);
                            assert!(client.read(offset, 64) == data, "{writer}: round {round}");
                        }
                    }
                });
            }
            let mut client = running.unix("0");
            scope.spawn(move || {
                for round in 0..60 {
                    write(&mut client, 2048, &pattern(round, 2048));
                    assert!(read(&mut client, 2048, 2048) == pattern(round, 2048));
                }
            });
            let mut client = Ragged::new(&running);
            scope.spawn(move || {
                for round in 0..60 {
                    let data = pattern(round, 700);
                    client.write(4096 + 100, &data);
                    assert!(client.read(4096 + 100, 700) == data);
                }
            });
        });
        let mut client = Ragged::new(&running);
        for writer in 0..WRITERS {
            for block in 0..4u64 {
                let data = client.read(block * 512 + writer * 64, 64);
                assert!(data == pattern(39 << 8 | writer, 64), "{writer} in block {block}");
            }
        }
        drop(client);
        running.until_empty();
    }
}

#[test]
fn whole_block_writes_are_not_undone_by_partial_ones() {
    for backend in BACKENDS {
        let specs = ["fault:drive=(ram:size=1m),latency=300us"];
        let running = serve(&specs, |config| (config.backend, config.threads) = (backend, 2));
        thread::scope(|scope| {
            // A client writes a whole block again and again while another writes bytes in the
            // block's second half. Those bytes belong to the last writer, but the first half must
            // never go back to older data.
            let (mut client, mut ragged) = (running.unix("0"), Ragged::new(&running));
            let whole = scope.spawn(move || {
                for round in 0..300 {
                    write(&mut client, 512, &pattern(round, 512));
                    let now = read(&mut client, 512, 512);
                    let undone = now[..256] != pattern(round, 512)[..256];
                    assert!(!undone, "round {round} was undone");
                }
            });
            scope.spawn(move || {
                while !whole.is_finished() {
                    ragged.write(512 + 300, &[7; 100]);
                }
            });
        });
        running.until_empty();
    }
}

#[test]
fn ragged_request_of_32_mib_works_and_small_pieces_fit() {
    for backend in BACKENDS {
        let running = serve(&["ram:size=64m"], |config| config.backend = backend);
        let mut client = Ragged::new(&running);
        let data = pattern(5, 32 << 20);
        client.write(MIB - 1, &data);
        assert!(client.read(MIB - 1, 32 << 20) == data);
        let mut bytes = header(Command::Write, 700, 40_000);
        bytes.extend(pattern(6, 40_000));
        for piece in bytes.chunks(7_001) {
            client.0.write_all(piece).unwrap();
            thread::sleep(std::time::Duration::from_millis(3));
        }
        assert_eq!(client.reply(), 0);
        assert!(client.read(700, 40_000) == pattern(6, 40_000));
        assert_eq!(client.read(699, 1), [0]);
    }
}

#[test]
fn ragged_requests_to_odd_drives_and_exports_are_answered() {
    let running = serve(&["null:size=1m"], |_| ());
    let mut client = Ragged::new(&running);
    client.write(5, &[1; 1000]);
    assert_eq!(client.read(5, 1000), [0; 1000]);
    assert_eq!(client.order(Command::WriteZeroes, 0, 5, 1000), 0);
    assert_eq!(client.order(Command::Trim, CMD_FLAG_FUA, 5, 100), 0);
    client.read(1, (MIB - 2) as usize);
}
