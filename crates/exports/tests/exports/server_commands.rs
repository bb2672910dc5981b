//! The server as a well-behaved client sees it: every command, on both back ends and transports.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::server_support::{
    BACKENDS, MIB, call, header, order, pattern, read, request, serve, write,
};
use millrace_clients::nbd::Client;
use millrace_nbd::wire::{CMD_FLAG_FAST_ZERO, CMD_FLAG_FUA, CMD_FLAG_NO_HOLE};
use millrace_nbd::{Command, Errno, Request};

fn every_command(client: &mut Client) {
    let data = pattern(1, 64 * 1024);
    write(client, MIB, &data);
    assert!(read(client, MIB, data.len()) == data);
    assert_eq!(order(client, Command::Flush, 0, 0, 0), None);
    let fua = Request { flags: CMD_FLAG_FUA, ..request(Command::Write, 512, 512) };
    assert_eq!(client.call(&fua, pattern(2, 512)).unwrap().errno, None);
    assert!(read(client, 512, 512) == pattern(2, 512));
    assert_eq!(order(client, Command::Cache, 0, 0, MIB), None);
    assert_eq!(order(client, Command::WriteZeroes, 0, MIB, 4096), None);
    assert!(read(client, MIB, 4096) == vec![0; 4096]);
    assert_eq!(order(client, Command::WriteZeroes, CMD_FLAG_NO_HOLE, MIB + 4096, 4096), None);
    assert_eq!(order(client, Command::WriteZeroes, CMD_FLAG_FAST_ZERO, MIB + 8192, 4096), None);
    assert!(read(client, MIB + 4096, 8192) == vec![0; 8192]);
    let slow = CMD_FLAG_FAST_ZERO | CMD_FLAG_NO_HOLE;
    assert_eq!(order(client, Command::WriteZeroes, slow, 0, 4096), Some(Errno::Enotsup));
    assert_eq!(order(client, Command::Trim, CMD_FLAG_FUA, MIB + 32 * 1024, 32 * 1024), None);
    assert!(read(client, MIB + 12288, 20 * 1024) == data[12288..32 * 1024]);
    assert_eq!(order(client, Command::Read, 0, 0, 0), Some(Errno::Einval));
    let past = call(client, Command::Write, 64 * MIB - 512, vec![1; 1024]);
    assert_eq!(past.errno, Some(Errno::Enospc));
    assert_eq!(order(client, Command::Unknown(77), 0, 0, 0), Some(Errno::Einval));
    assert!(read(client, 512, 512) == pattern(2, 512));
}

#[test]
fn every_command_works_over_unix_and_tcp_on_both_back_ends() {
    for backend in BACKENDS {
        let running = serve(&["ram:size=64m"], |config| config.backend = backend);
        every_command(&mut running.unix("0"));
        every_command(&mut running.tcp(""));
        running.until_empty();
        running.stop();
    }
}

#[test]
fn file_drive_is_served_by_every_thread_of_both_back_ends() {
    for backend in BACKENDS {
        let dir = tempfile::tempdir().unwrap();
        let spec = format!("file:path={}/d,size=64m", dir.path().display());
        let running = serve(&[&spec], |config| config.backend = backend);
        let mut clients: Vec<Client> = (0..4).map(|_| running.unix("0")).collect();
        for (index, client) in clients.iter_mut().enumerate() {
            write(client, index as u64 * MIB, &pattern(index as u64, 1 << 20));
        }
        assert_eq!(order(&mut clients[0], Command::Flush, 0, 0, 0), None);
        for (index, client) in clients.iter_mut().rev().enumerate() {
            let whole = read(client, index as u64 * MIB, 1 << 20);
            assert!(whole == pattern(index as u64, 1 << 20));
        }
        drop(clients);
        running.until_empty();
        running.stop();
    }
}

#[test]
fn block_status_says_what_is_a_hole() {
    let running = serve(&["ram:size=64m"], |_| ());
    let address = running.path();
    let output = std::process::Command::new("nbdinfo")
        .arg("--map")
        .arg(format!("nbd+unix:///0?socket={}", address.display()))
        .output();
    let Ok(output) = output else {
        return millrace_require::skip("nbdinfo is not installed (Debian package libnbd-bin)");
    };
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("67108864") && text.contains("hole,zero"), "{text}");
    let mut socket = running.by_hand("0");
    socket.write_all(&header(Command::BlockStatus, 0, MIB)).unwrap();
    assert_eq!(errno(&mut socket), 22, "no context was selected by this client");
}

/// The error of a simple reply.
fn errno(socket: &mut UnixStream) -> u32 {
    let mut reply = [0; 16];
    socket.read_exact(&mut reply).unwrap();
    u32::from_be_bytes(reply[4..8].try_into().unwrap())
}

/// A client knows a request when it has sent all of it: libnbd takes an earlier answer for one to
/// a request that there is none of.
#[test]
fn a_write_that_is_refused_is_answered_behind_its_payload() {
    for backend in BACKENDS {
        let running = serve(&["ram:size=64m"], |config| config.backend = backend);
        let mut socket = running.by_hand("0");
        socket.write_all(&header(Command::Write, 64 * MIB - 512, 100_000)).unwrap();
        socket.write_all(&[7; 99_999]).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let early = socket.read(&mut [0; 16]).unwrap_err();
        assert!(matches!(early.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{early}");
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let next = header(Command::Write, 0, 512);
        socket.write_all(&[&[7][..], &next, &[8; 512]].concat()).unwrap();
        assert_eq!((errno(&mut socket), errno(&mut socket)), (28, 0));
        // A client that leaves in the middle of a refused write leaves nothing behind.
        socket
            .write_all(&[&header(Command::Write, 64 * MIB, 512)[..], &[7; 100]].concat())
            .unwrap();
        drop(socket);
        running.until_empty();
        running.stop();
    }
}

#[test]
fn null_volume_answers_zeroes_and_takes_writes_without_a_buffer() {
    for backend in BACKENDS {
        let running = serve(&["null:size=1t"], |config| config.backend = backend);
        let mut client = running.unix("0");
        write(&mut client, 0, &pattern(3, 4096));
        write(&mut client, 4096, &pattern(3, 1 << 20));
        assert!(read(&mut client, 0, 1 << 20).iter().all(|byte| *byte == 0));
        assert_eq!(order(&mut client, Command::Trim, 0, 0, 1 << 31), None);
        let stats = running.server.stats();
        assert_eq!((stats.copied_bytes, stats.buffer_bytes), (0, 0));
    }
}

#[test]
fn reads_and_writes_of_32_mib_work_and_longer_ones_are_refused() {
    for backend in BACKENDS {
        let running = serve(&["ram:size=128m"], |config| config.backend = backend);
        let mut client = running.unix("0");
        let data = pattern(4, 32 << 20);
        write(&mut client, MIB, &data);
        assert!(read(&mut client, MIB, 32 << 20) == data);
        let too_long = call(&mut client, Command::Read, 0, vec![0; (32 << 20) + 512]);
        assert_eq!(too_long.errno, Some(Errno::Einval));
        let too_long = call(&mut client, Command::Write, 0, vec![1; (32 << 20) + 512]);
        assert_eq!(too_long.errno, Some(Errno::Einval));
        assert!(read(&mut client, 0, 4096) == vec![0; 4096], "its payload was thrown away");
        drop(client);
        running.until_empty();
        running.stop();
    }
}

#[test]
fn a_thousand_requests_of_one_send_are_all_answered() {
    for backend in BACKENDS {
        let running = serve(&["ram:size=64m"], |config| config.backend = backend);
        let mut client = running.unix("0");
        for index in 0..1000u64 {
            let order = Request { cookie: index, ..request(Command::Write, index * 4096, 4096) };
            client.submit(&order, pattern(index, 4096)).unwrap();
        }
        for index in 0..1000u64 {
            let order = Request { cookie: index, ..request(Command::Flush, 0, 0) };
            client.submit(&order, Vec::new()).unwrap();
        }
        let mut answered = 0;
        while answered < 2000 {
            answered += client.wait(1, |done| assert_eq!(done.errno, None)).unwrap();
        }
        for index in 0..1000u64 {
            let order = Request { cookie: index, ..request(Command::Read, index * 4096, 4096) };
            client.submit(&order, vec![0; 4096]).unwrap();
        }
        let mut answered = 0;
        while answered < 1000 {
            answered += client
                .wait(1, |done| assert!(done.buffer == pattern(done.user_data, 4096)))
                .unwrap();
        }
        let stats = running.server.stats();
        assert!(stats.sends < 1000 && stats.receives < 1500, "{stats:?}");
    }
}

#[test]
fn large_writes_are_received_in_place() {
    let running = serve(&["ram:size=64m"], |_| ());
    let mut client = running.unix("0");
    for index in 0..64u64 {
        let order = Request { cookie: index, ..request(Command::Write, index * MIB / 2, MIB / 2) };
        client.submit(&order, pattern(index, 1 << 19)).unwrap();
    }
    client.wait(64, |done| assert_eq!(done.errno, None)).unwrap();
    let copied = running.server.stats().copied_bytes;
    assert!(copied <= 256 * 1024, "{copied} of 32 MiB were copied");
    for index in 0..64u64 {
        assert!(read(&mut client, index * MIB / 2, 1 << 19) == pattern(index, 1 << 19));
    }
}

#[test]
fn flush_of_one_connection_follows_writes_of_another() {
    let running = serve(&["fault:drive=(ram:size=16m),volatile=on"], |_| ());
    let (mut one, mut other) = (running.unix("0"), running.unix("0"));
    write(&mut one, 0, &pattern(9, 4096));
    assert_eq!(order(&mut other, Command::Flush, 0, 0, 0), None);
    assert!(read(&mut other, 0, 4096) == pattern(9, 4096));
}

#[test]
fn read_only_export_refuses_writes_and_serves_reads() {
    let running = serve(&[], |config| {
        config.exports.push(millrace_exports::nbd::ExportConfig {
            read_only: true,
            ..millrace_exports::nbd::ExportConfig::new(
                "ro",
                crate::server_support::volume("ram:size=1m", 2),
            )
        });
        config.listeners.iter_mut().for_each(|listener| listener.exports = vec![0]);
    });
    let mut client = running.tcp("ro");
    assert_eq!(call(&mut client, Command::Write, 0, vec![1; 512]).errno, Some(Errno::Eperm));
    assert!(read(&mut client, 0, 512) == vec![0; 512]);
}
