//! `millrace ctl resize`: drives that grow under a running daemon, seen by old and new clients.
//!
//! The drives are files in a linear or striped volume behind NBD. A connected client keeps the size
//! that it was told; a later one is told the new size; counters and metrics have it at once. An
//! impossible resize is refused with status 2 and changes nothing. Every test runs the real binary.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::process::Command;
use std::thread::scope;

use millrace_tests::metrics::{address, get};
use millrace_tests::raw_nbd::{RawNbd, request};
use millrace_tests::serving::{backends, pattern, succeed, uri};
use millrace_tests::{Daemon, millrace, require_clients, run, tempdir};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

fn set_len(path: &Path, size_bytes: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(size_bytes).unwrap();
}

/// A directory with files of 4 MiB, and a volume of them with these keys.
fn served(files: &[&str], keys: &str, backend: &str, args: &[&str]) -> Daemon {
    let (dir, mut config) = (tempdir(), String::new());
    for file in files {
        let path = dir.path().join(file);
        fs::write(&path, vec![0; 4 << 20]).unwrap();
        let path = path.display();
        config += &format!("[[drive]]\nname = \"{file}\"\nspec = \"file:path={path}\"\n");
    }
    config += &format!("[[volume]]\nname = \"v\"\ndrives = {files:?}\n{keys}");
    config += "[[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n";
    config += &format!("[server]\ncontrol = \"unix:c\"\nthreads = 2\nbackend = {backend:?}\n");
    Daemon::start_in(dir, &config, &["s", "c"], args)
}

fn resize(daemon: &Daemon, arguments: &str) -> Command {
    let mut command = millrace();
    command.current_dir(daemon.dir()).args(["ctl", "resize", "--connect", "unix:c"]);
    command.args(arguments.split_whitespace());
    command
}

/// The command's standard error; its status must be 2.
fn refused(daemon: &Daemon, volume: &str) -> String {
    let output = run(&mut resize(daemon, volume));
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// The error of a read that must fail.
fn errno_of_read(raw: &mut RawNbd, offset: u64) -> i32 {
    raw.send(&request(0, offset, offset, 4096)).unwrap();
    let (errno, cookie) = raw.reply().unwrap();
    assert_eq!(cookie, offset);
    errno as i32
}

fn told_size(daemon: &Daemon) -> u64 {
    succeed(Command::new("nbdinfo").args(["--size", &uri(daemon, "v")])).trim().parse().unwrap()
}

#[test]
fn grown_file_is_served_whole_to_new_clients_only() {
    require_clients!("nbdinfo");
    for backend in backends() {
        let daemon = served(&["d0"], "", backend, &[]);
        let (file, socket) = (daemon.dir().join("d0"), daemon.dir().join("s"));
        let mut old = RawNbd::connect(&socket, "v").unwrap();
        let (first, second) = (pattern(64 << 10, 1), pattern(64 << 10, 2));
        old.write(4 * MIB - (64 << 10), &first).unwrap();
        assert_eq!(told_size(&daemon), 4 * MIB);
        assert_eq!(errno_of_read(&mut old, 4 * MIB), libc::EINVAL);
        set_len(&file, 6 * MIB);
        assert_eq!(told_size(&daemon), 4 * MIB, "nobody has said that it grew");
        let said = succeed(&mut resize(&daemon, "v"));
        assert_eq!(said.lines().next(), Some("v: 6 MiB (6291456 bytes), was 4 MiB"), "{said}");
        assert_eq!(told_size(&daemon), 6 * MIB);
        // The old client still has the size that it was told at its start, and works.
        assert_eq!(old.read(4 * MIB - (64 << 10), 64 << 10).unwrap(), first);
        assert_eq!(errno_of_read(&mut old, 4 * MIB), libc::EINVAL, "it was told of 4 MiB");
        let mut new = RawNbd::connect(&socket, "v").unwrap();
        assert_eq!((old.size_bytes(), new.size_bytes()), (4 * MIB, 6 * MIB));
        new.write(4 * MIB, &second).unwrap();
        new.flush().unwrap();
        assert_eq!(new.read(4 * MIB, 64 << 10).unwrap(), second);
        assert_eq!(new.read(6 * MIB - 4096, 4096).unwrap(), vec![0; 4096]);
        old.write(0, &second).unwrap();
        assert_eq!(new.read(0, 64 << 10).unwrap(), second);
        let stored = fs::read(&file).unwrap();
        assert_eq!(stored[4 << 20..(4 << 20) + (64 << 10)], second[..]);
        assert!(daemon.stdout().contains("volume v has grown to 6 MiB, from 4 MiB\n"));
    }
}

#[test]
fn cached_volume_grows_with_a_dirty_page_at_its_end() {
    const CACHE: &str = "[volume.cache]\nsize = \"4m\"\ndirty-age = \"1h\"\n";
    for backend in backends() {
        let daemon = served(&["d0"], CACHE, backend, &[]);
        let (file, socket) = (daemon.dir().join("d0"), daemon.dir().join("s"));
        // Three sectors of a page.
        let end = 4 * MIB + 1536;
        assert!(grown(&daemon, &file, end).starts_with("v: "));
        let mut old = RawNbd::connect(&socket, "v").unwrap();
        assert_eq!(old.size_bytes(), end);
        let (first, second) = (pattern(2048, 1), pattern(64 << 10, 2));
        old.write(end - 2048, &first).unwrap();
        assert_eq!(old.read(end - 8192, 8192).unwrap()[6144..], first);
        assert!(grown(&daemon, &file, 6 * MIB).starts_with("v: 6 MiB"));
        let mut new = RawNbd::connect(&socket, "v").unwrap();
        assert_eq!((old.size_bytes(), new.size_bytes()), (end, 6 * MIB));
        // The rest of the page is read from the drive, while part of it is dirty in memory.
        let page = new.read(end - 1536, 4096).unwrap();
        assert_eq!((&page[..1536], &page[1536..]), (&first[512..], &[0; 2560][..]));
        new.write(end, &second).unwrap();
        new.write(6 * MIB - 4096, &second[..4096]).unwrap();
        assert_eq!(old.read(end - 2048, 2048).unwrap(), first);
        assert_eq!(fs::read(&file).unwrap()[4 << 20..], vec![0; 2 << 20], "it is in memory");
        new.flush().unwrap();
        assert_eq!(new.read(end, 64 << 10).unwrap(), second);
        let (stored, at) = (fs::read(&file).unwrap(), end as usize);
        assert_eq!(stored[at - 2048..at], first);
        assert_eq!(stored[at..at + (64 << 10)], second);
        assert_eq!(stored[(6 << 20) - 4096..], second[..4096]);
    }
}

/// Enlarges a file; returns the output of `ctl resize`.
fn grown(daemon: &Daemon, file: &Path, size_bytes: u64) -> String {
    set_len(file, size_bytes);
    succeed(&mut resize(daemon, "v"))
}

#[test]
fn a_volume_grows_again_and_again_while_clients_write() {
    let daemon = served(&["d0", "d1"], "chunk = \"64k\"\n", backends()[0], &[]);
    let socket = daemon.dir().join("s");
    let client = |number: u64| {
        let mut raw = RawNbd::connect(&socket, "v").unwrap();
        for round in 0..200 {
            let (place, data) = ((number * 4 + round % 4) * (64 << 10), pattern(4096, round));
            raw.write(place, &data).unwrap();
            assert_eq!(raw.read(place, 4096).unwrap(), data);
        }
    };
    scope(|scope| {
        (0..2).for_each(|number| drop(scope.spawn(move || client(number))));
        for mib in 5..15 {
            ["d0", "d1"].iter().for_each(|file| set_len(&daemon.dir().join(file), mib * MIB));
            let line = succeed(&mut resize(&daemon, "v --json"));
            let answer: Value = serde_json::from_str(&line).unwrap();
            let sizes = (answer["old_bytes"].as_u64(), answer["new_bytes"].as_u64());
            assert_eq!(sizes, (Some(2 * (mib - 1) * MIB), Some(2 * mib * MIB)), "{line}");
            let end = RawNbd::connect(&socket, "v").unwrap().size_bytes();
            assert_eq!(end, 2 * mib * MIB);
        }
    });
}

#[test]
fn counters_and_metrics_have_the_new_sizes_at_once() {
    let daemon = served(&["d0", "d1"], "chunk = \"64k\"\n", backends()[0], &["--metrics", "0"]);
    set_len(&daemon.dir().join("d1"), 5 * MIB);
    let said = succeed(&mut resize(&daemon, "v"));
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(
        lines[..2],
        ["v: 8 MiB (8388608 bytes), unchanged", "  d1: 5 MiB (5242880 bytes), was 4 MiB"]
    );
    assert!(lines[2].contains("what its smallest drive has grown"), "{said}");
    let needs = lines[3].strip_prefix("  d0 must grow first: it has 4194304 bytes, and needs ");
    let needs: u64 = needs.unwrap().parse().unwrap();
    assert!(needs > 4 * MIB && needs <= 5 * MIB, "{said}");
    set_len(&daemon.dir().join("d0"), 5 * MIB);
    let line = succeed(&mut resize(&daemon, "v --json"));
    let (four, five) = (4 * MIB, 5 * MIB);
    let drives = json!([
        { "name": "d0", "old_bytes": four, "new_bytes": five },
        { "name": "d1", "old_bytes": five, "new_bytes": five },
    ]);
    let answer: Value = serde_json::from_str(&line).unwrap();
    let whole =
        json!({ "volume": "v", "old_bytes": 2 * four, "new_bytes": 2 * five, "drives": drives });
    assert_eq!(answer, whole);
    let text = get(&address(&daemon), "/metrics");
    for line in [
        "millrace_volume_size_bytes{volume=\"v\"",
        "millrace_drive_size_bytes{drive=\"d0\",volume=\"v\"",
        "millrace_drive_size_bytes{drive=\"d1\",volume=\"v\"",
    ] {
        let value = text.lines().find(|found| found.starts_with(line)).unwrap();
        let size = if line.contains("volume_size") { 2 * five } else { five };
        assert!(value.ends_with(&format!(" {size}")), "{value}");
    }
}

#[test]
fn a_volume_that_has_not_grown_says_so_and_that_is_no_error() {
    let daemon = served(&["d0"], "", backends()[0], &[]);
    let said = succeed(&mut resize(&daemon, "v"));
    let first = "v: 4 MiB (4194304 bytes), unchanged\nno drive has grown\n";
    let need = "  d0 must grow first: it has 4194304 bytes, and needs 4194816\n";
    assert_eq!(said, format!("{first}{need}"));
    assert!(!daemon.stdout().contains("has grown"));
}

#[test]
fn impossible_request_is_refused_with_advice() {
    let daemon = served(&["d0", "d1"], "layout = \"linear\"\n", backends()[0], &[]);
    let size = || RawNbd::connect(&daemon.dir().join("s"), "v").unwrap().size_bytes();
    let said = refused(&daemon, "w");
    assert!(said.contains("there is no volume \"w\"; there is \"v\""), "{said}");
    set_len(&daemon.dir().join("d1"), 3 * MIB);
    let said = refused(&daemon, "v");
    assert!(said.contains("volume v: drive d1: it has 3145728 bytes now"), "{said}");
    assert!(said.contains("give it back what it had"), "{said}");
    set_len(&daemon.dir().join("d1"), 4 * MIB);
    set_len(&daemon.dir().join("d0"), 5 * MIB);
    let said = refused(&daemon, "v");
    assert!(said.contains("drive d0") && said.contains("only the last drive may grow"), "{said}");
    assert_eq!(size(), 8 * MIB);
    set_len(&daemon.dir().join("d0"), 4 * MIB);
    set_len(&daemon.dir().join("d1"), 5 * MIB);
    succeed(&mut resize(&daemon, "v"));
    assert_eq!(size(), 9 * MIB);
    let output = run(millrace().args(["ctl", "resize", "v", "--connect", "unix:/nowhere/c"]));
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let output = run(millrace().args(["ctl", "shrink", "v"]));
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}
