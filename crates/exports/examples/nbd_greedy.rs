//! An honest NBD client's IOPS, alone and beside clients that request much and receive little.
//!
//! Two servers run, each on a RAM drive. One of them also has the greedy clients: each requests 200
//! reads of 1 MiB and then receives nothing, or 64 KiB every 8 s. The honest client reads 4 KiB at
//! random, at depth 1 and 16, for half a second from each server in turn. Prints medians, and the
//! median of the rounds' ratios. The argument is the number of rounds: `cargo run --release -p
//! millrace-exports --example nbd_greedy -- 9`.

#![allow(clippy::print_stdout)] // A program for a person at a terminal.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use millrace_block::{Disk, DiskConfig, Volume};
use millrace_clients::nbd::Client;
use millrace_drives::open;
use millrace_exports::nbd::{ExportConfig, Listen, ListenConfig, Server, ServerConfig};
use millrace_nbd::client::{Address, NbdUri};
use millrace_nbd::wire::{OPT_EXPORT_NAME, put_option};
use millrace_nbd::{Command, ReplyStyle, Request, encode_request};

const MIB: u64 = 1 << 20;
/// Message of `expect`: client and server run in this process, so no call fails.
const OWN: &str = "the server is this program's own";

fn read_at(cookie: u64, offset: u64, length: u64) -> Request {
    Request { cookie, flags: 0, command: Command::Read, offset, length }
}

fn serve(socket: &Path) -> Server {
    let opened = open(&"ram:size=64m".parse().expect(OWN), 2).expect(OWN);
    let disk = Disk::new(opened.driver, DiskConfig::default()).expect(OWN);
    let export = ExportConfig::new("v", Volume::single(disk).expect(OWN));
    let listen = ListenConfig::new(Listen::Unix(socket.to_owned()), vec![0]);
    let config = ServerConfig { threads: 2, ..ServerConfig::default() };
    Server::start(ServerConfig { exports: vec![export], listeners: vec![listen], ..config })
        .expect(OWN)
}

fn connect(socket: &Path) -> Client {
    let address = Address::Unix { path: socket.to_owned() };
    Client::connect(&NbdUri { address, name: "v".to_owned() }).expect(OWN)
}

/// Has sent 200 reads of 1 MiB.
fn greedy(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).expect(OWN);
    stream.read_exact(&mut [0; 18]).expect(OWN);
    let mut out = 3u32.to_be_bytes().to_vec();
    put_option(&mut out, OPT_EXPORT_NAME, b"v");
    stream.write_all(&out).expect(OWN);
    stream.read_exact(&mut [0; 10]).expect(OWN);
    let mut bytes = Vec::new();
    for index in 0..200 {
        let mut header = [0; 32];
        let request = read_at(index, index % 64 * MIB, MIB);
        let len = encode_request(&request, ReplyStyle::Simple, &mut header);
        bytes.extend_from_slice(&header[..len]);
    }
    stream.write_all(&bytes).expect(OWN);
    stream
}

/// Rate of reads of 4 KiB at `depth`, in I/Os per second.
fn honest(socket: &Path, depth: u64, seconds: f64) -> f64 {
    let mut client = connect(socket);
    let (start, mut done, mut next) = (Instant::now(), 0u64, 0u64);
    let limit = Duration::from_secs_f64(seconds);
    let place = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (64 * MIB / 4096) * 4096;
    while start.elapsed() < limit {
        while next < done + depth {
            client.submit(&read_at(next, place(next), 4096), vec![0; 4096]).expect(OWN);
            next += 1;
        }
        client.flush().expect(OWN);
        done += client.wait(1, |one| assert_eq!(one.errno, None)).expect(OWN) as u64;
    }
    let rate = done as f64 / start.elapsed().as_secs_f64();
    client.wait((next - done) as usize, |_| ()).expect(OWN);
    rate
}

/// The middle one.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Greedy clients' treatment of their replies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Greed {
    /// Receives nothing.
    Silent,
    /// Receives a little now and then.
    Slow,
}

/// Keeps greedy clients; ends with the sender.
fn keep(mut greedy: Vec<UnixStream>, greed: Greed, ended: &mpsc::Receiver<()>) {
    let mut last = Instant::now();
    let period = Duration::from_millis(50);
    while ended.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
        if greed == Greed::Slow && last.elapsed() > Duration::from_secs(8) {
            last = Instant::now();
            let mut bytes = vec![0; 64 << 10];
            greedy.iter_mut().for_each(|one| drop(one.read(&mut bytes)));
        }
    }
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(9);
    let dir = tempfile::tempdir().expect(OWN);
    let sockets = ["alone", "beside"].map(|name| dir.path().join(name));
    let servers = sockets.each_ref().map(|socket| serve(socket));
    for socket in &sockets {
        let mut writer = connect(socket);
        for index in 0..64 {
            let request = Request { command: Command::Write, ..read_at(0, index * MIB, 4096) };
            writer.call(&request, vec![7; 4096]).expect(OWN);
        }
    }
    println!("greedy clients        depth  alone K/s  beside K/s  ratio");
    let greeds = [Greed::Silent, Greed::Slow].into_iter();
    for (greed, count) in greeds.flat_map(|greed| [8, 20, 200].map(|count| (greed, count))) {
        let others: Vec<UnixStream> = (0..count).map(|_| greedy(&sockets[1])).collect();
        let (stop, ended) = mpsc::channel::<()>();
        let keeper = std::thread::spawn(move || keep(others, greed, &ended));
        std::thread::sleep(Duration::from_millis(500));
        for depth in [1, 16] {
            let mut rates = [const { Vec::new() }; 3];
            for _ in 0..rounds {
                let [alone, beside] = sockets.each_ref().map(|socket| honest(socket, depth, 0.5));
                let all = [alone / 1e3, beside / 1e3, beside / alone];
                rates.iter_mut().zip(all).for_each(|(list, value)| list.push(value));
            }
            let [alone, beside, ratio] = rates.map(median);
            let what =
                format!("{count}{}", if greed == Greed::Slow { ", 64 KiB each 8 s" } else { "" });
            println!("{what:<22}{depth:>5}{alone:>11.1}{beside:>12.1}{ratio:>7.2}");
        }
        drop(stop);
        keeper.join().expect(OWN);
    }
    for server in servers {
        let _ = server.stop(Duration::from_secs(5));
    }
}
