//! System calls behind a flush and a FUA write: data are synced before the reply is sent.
//!
//! The daemon runs under strace with four file drives on epoll and threads, where every drive
//! operation is a system call of its own. On io_uring, operations are entries in shared memory that
//! strace does not see; there the same code submits FSYNC and RW_DSYNC entries, and fault_crash and
//! fault_power_cut check the effect.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use millrace_nbd::client::{ClientHandshake, ClientProgress};
use millrace_nbd::wire::{CMD_FLAG_FUA, EXTENDED_REQUEST_BYTES};
use millrace_nbd::{Command, ReplyStyle, Request, encode_request};
use millrace_tests::{Daemon, require_clients};

/// Cookies that are nowhere else in a trace.
const COOKIE: u64 = 0xc00c_1e5a_7e57_0000;
const CALLS: &str = "trace=fdatasync,fsync,pwritev2,pwritev,pwrite64,sendmsg,sendto,writev,write";

/// A stripe of four drives with a chunk of 4 KiB.
fn config() -> String {
    let drive = |n| {
        let spec = format!("file:path=d{n}.img,size=1m,aio=threads");
        format!("[[drive]]\nname = \"d{n}\"\nspec = \"{spec}\"\n")
    };
    let drives: String = (0..4).map(drive).collect();
    format!(
        "{drives}[[volume]]\nname = \"v\"\nchunk = \"4k\"\n\
         drives = [\"d0\", \"d1\", \"d2\", \"d3\"]\n\
         [[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n[server]\nbackend = \"epoll\"\n"
    )
}

/// A client with one request in flight, whose cookie is its own.
struct Client(UnixStream);

impl Client {
    fn connect(socket: &Path) -> Self {
        let mut stream = UnixStream::connect(socket).unwrap();
        let mut handshake = ClientHandshake::new("v", ReplyStyle::Simple).unwrap();
        let (mut input, mut out) = (Vec::new(), Vec::new());
        loop {
            let (used, progress) = handshake.feed(&input, &mut out).unwrap();
            input.drain(..used);
            stream.write_all(&out).unwrap();
            out.clear();
            if matches!(progress, ClientProgress::Ready(_)) {
                return Client(stream);
            }
            let mut bytes = [0; 4096];
            let count = stream.read(&mut bytes).unwrap();
            assert!(count > 0, "the server closed the connection");
            input.extend_from_slice(&bytes[..count]);
        }
    }

    /// Sends a request and waits for its success.
    fn call(&mut self, number: u16, command: Command, flags: u16, offset: u64, data: &[u8]) {
        let cookie = COOKIE | u64::from(number);
        let request = Request { cookie, flags, command, offset, length: data.len() as u64 };
        let mut header = [0; EXTENDED_REQUEST_BYTES];
        let bytes = encode_request(&request, ReplyStyle::Simple, &mut header);
        self.0.write_all(&[&header[..bytes], data].concat()).unwrap();
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply).unwrap();
        assert_eq!(reply[4..8], [0; 4], "request {number} failed");
        assert_eq!(reply[8..], cookie.to_be_bytes(), "request {number}");
    }
}

/// A call that has returned, or a reply that is about to be sent.
#[derive(Debug, PartialEq, Eq)]
enum Event {
    /// A sync of a drive has returned.
    Synced(char),
    /// A write of a drive has returned.
    Written { drive: char, dsync: bool },
    /// The reply to this request is handed to the kernel.
    Replied(u16),
}

/// Puts calls that strace shows in two lines together, at the line of their return.
fn returned(trace: &str) -> Vec<(String, bool)> {
    let mut begun: Vec<(&str, &str)> = Vec::new();
    let mut lines = Vec::new();
    for line in trace.lines() {
        let Some((pid, text)) = line.split_once(char::is_whitespace) else { continue };
        let text = text.trim_start();
        if let Some(start) = text.strip_suffix(" <unfinished ...>") {
            begun.push((pid, start));
            // A reply counts from its beginning.
            lines.push((start.to_owned(), false));
        } else if let Some((_, end)) = text.split_once(" resumed>") {
            let place = begun.iter().position(|(other, _)| *other == pid);
            if let Some(place) = place {
                lines.push((format!("{}{end}", begun.swap_remove(place).1), true));
            }
        } else {
            lines.push((text.to_owned(), true));
        }
    }
    lines
}

fn events(trace: &str) -> Vec<Event> {
    let cookie: String =
        COOKIE.to_be_bytes()[..6].iter().map(|byte| format!("\\x{byte:02x}")).collect();
    let mut events = Vec::new();
    for (call, has_returned) in returned(trace) {
        let name = call.split('(').next().unwrap_or_default();
        let drive = call.split_once(".img").and_then(|(path, _)| path.chars().last());
        match (name, drive) {
            ("fdatasync" | "fsync", Some(drive)) if has_returned && call.ends_with("= 0") => {
                events.push(Event::Synced(drive));
            }
            ("pwritev2" | "pwritev" | "pwrite64", Some(drive)) if has_returned => {
                assert!(!call.ends_with(" = 0") && !call.contains("= -1"), "{call}");
                events.push(Event::Written { drive, dsync: call.contains("RWF_DSYNC") });
            }
            ("sendmsg" | "sendto" | "writev" | "write", None) => {
                for (at, _) in call.match_indices(&cookie) {
                    let number = &call[at + cookie.len()..][..8].replace("\\x", "");
                    let event = Event::Replied(u16::from_str_radix(number, 16).unwrap());
                    if events.last() != Some(&event) {
                        events.push(event);
                    }
                }
            }
            _ => {}
        }
    }
    events
}

/// Events between the replies to the previous request and to this one.
fn before_reply(events: &[Event], number: u16) -> &[Event] {
    let place = |number| events.iter().position(|event| *event == Event::Replied(number));
    let start = if number == 0 { 0 } else { place(number - 1).expect("an earlier reply") };
    &events[start..place(number).unwrap_or_else(|| panic!("no reply {number} in {events:?}"))]
}

/// Runs requests against a daemon under strace; returns its system calls as events.
fn traced(requests: impl FnOnce(&mut Client)) -> Vec<Event> {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    // -D: the daemon stays our child, so that it is the daemon that signals reach.
    let strace = ["strace", "-D", "-f", "-y", "-x", "-s", "512", "-e", CALLS, "-o", path];
    let mut daemon = Daemon::start_under(&strace, &config(), &["s"]);
    requests(&mut Client::connect(&daemon.dir().join("s")));
    let pid = daemon.pid();
    assert_eq!(daemon.terminate().code(), Some(0));
    let (start, end) = (Instant::now(), "+++ exited with 0 +++");
    loop {
        let trace = fs::read_to_string(path).unwrap_or_default();
        let last = |line: &str| line.ends_with(end) && line.starts_with(&pid.to_string());
        if trace.lines().any(last) {
            return events(&trace);
        }
        assert!(start.elapsed() < Duration::from_secs(10), "strace does not finish: {trace}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn every_drive_is_synced_before_a_flush_is_answered() {
    require_clients!("strace");
    let events = traced(|client| {
        for round in 0..8 {
            client.call(2 * round, Command::Write, 0, 0, &vec![round as u8 + 1; 16384]);
            client.call(2 * round + 1, Command::Flush, 0, 0, &[]);
        }
    });
    for round in 0..8 {
        let writes = before_reply(&events, 2 * round);
        let flush = before_reply(&events, 2 * round + 1);
        for drive in ['0', '1', '2', '3'] {
            let write =
                |event: &&Event| matches!(event, Event::Written { drive: d, .. } if *d == drive);
            assert_eq!(writes.iter().filter(write).count(), 1, "write {round}: {writes:?}");
            assert!(
                flush.contains(&Event::Synced(drive)),
                "flush {round}, drive {drive}: {flush:?}"
            );
        }
    }
}

#[test]
fn a_fua_write_is_on_its_drive_before_it_is_answered() {
    require_clients!("strace");
    let events = traced(|client| {
        for number in 0..8 {
            let chunk = u64::from(number) % 4 * 4096;
            client.call(number, Command::Write, CMD_FLAG_FUA, chunk, &[number as u8 + 1; 4096]);
        }
        client.call(8, Command::Write, CMD_FLAG_FUA, 0, &[9; 16384]);
    });
    for number in 0..9 {
        let done = before_reply(&events, number);
        for drive in ['0', '1', '2', '3'] {
            if number < 8 && drive != char::from(b'0' + number as u8 % 4) {
                continue;
            }
            let write = done
                .iter()
                .position(|event| matches!(event, Event::Written { drive: d, .. } if *d == drive));
            let write = write.unwrap_or_else(|| panic!("write {number}, drive {drive}: {done:?}"));
            let synced = done[write..].contains(&Event::Synced(drive));
            let direct = done[write] == Event::Written { drive, dsync: true };
            assert!(synced || direct, "write {number}, drive {drive}: {done:?}");
        }
    }
}

#[test]
fn calls_on_two_lines_count_at_return_and_replies_at_start() {
    let cookie: String = COOKIE.to_be_bytes()[..6].iter().map(|b| format!("\\x{b:02x}")).collect();
    let trace = format!(
        "7 fdatasync(9</t/d0.img>) = 0\n\
         8  fdatasync(10</t/d1.img> <unfinished ...>\n\
         7 pwritev2(9</t/d0.img>, [{{}}], 1, 0, RWF_DSYNC) = 4096\n\
         7 sendmsg(5<s>, \"\\x67{cookie}\\x00\\x11\" <unfinished ...>\n\
         8 <... fdatasync resumed>) = 0\n\
         7 <... sendmsg resumed>) = 16\n"
    );
    let written = Event::Written { drive: '0', dsync: true };
    let replied = Event::Replied(0x11);
    let expected = [Event::Synced('0'), written, replied, Event::Synced('1')];
    assert_eq!(events(&trace)[..4], expected);
}
