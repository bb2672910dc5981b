//! `[[export]] directory = ...`: each file of a directory is an export, opened when a client asks.
//!
//! Clients are nbdinfo, qemu-img, qemu-io and raw NBD; open files are checked in `/proc`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use millrace_tests::control::Control;
use millrace_tests::raw_nbd::{RawNbd, WRITE, flagged_request, handshake};
use millrace_tests::serving::{backends, pattern, succeed};
use millrace_tests::{Daemon, millrace, poll_within, require_clients, run, tempdir};

const MIB: u64 = 1 << 20;

/// A daemon that serves the directory `images` of its own directory, which has the files `a` to `c`
/// of 1 MiB.
fn served(backend: &str, keys: &str) -> Daemon {
    let dir = tempdir();
    let images = dir.path().join("images");
    fs::create_dir(&images).unwrap();
    for name in ["a", "b", "c"] {
        fs::write(images.join(name), vec![name.as_bytes()[0]; MIB as usize]).unwrap();
    }
    Daemon::start_in(dir, &config(backend, keys), &["s", "c"], &[])
}

fn config(backend: &str, keys: &str) -> String {
    format!(
        "[server]\ncontrol = \"unix:c\"\nthreads = 2\nbackend = {backend:?}\n\
         [[export]]\ndirectory = \"images\"\nnbd = \"unix:s\"\n{keys}\n"
    )
}

fn connect(daemon: &Daemon, name: &str) -> Option<RawNbd> {
    RawNbd::connect(&daemon.dir().join("s"), name).ok()
}

/// Files of the directory that the daemon has open.
fn open_files(daemon: &Daemon) -> Vec<String> {
    let images = daemon.dir().join("images");
    let fds = fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap();
    let paths = fds.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
    let names = paths.filter_map(|path| Some(path.strip_prefix(&images).ok()?.to_owned()));
    let mut names: Vec<String> = names.map(|name| name.display().to_string()).collect();
    names.sort();
    names
}

fn wait_for_files(daemon: &Daemon, wanted: &[&str]) {
    let is_so = eventually(|| open_files(daemon) == wanted);
    assert!(is_so, "{:?} are open, wanted {wanted:?}", open_files(daemon));
}

fn eventually(is_so: impl Fn() -> bool) -> bool {
    poll_within(Duration::from_secs(15), || is_so().then_some(())).is_some()
}

/// The server's error message for an export, as qemu-img prints it.
fn refused(daemon: &Daemon, name: &str) -> String {
    let mut qemu = Command::new("qemu-img");
    let target = format!("nbd+unix:///{name}?socket=s");
    let output = run(qemu.current_dir(daemon.dir()).args(["info", &target]));
    assert!(!output.status.success(), "{name}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn files_are_opened_for_clients_and_closed_when_they_have_left() {
    for backend in backends() {
        let daemon = served(backend, "files = { close-after = \"100ms\" }");
        assert_eq!(open_files(&daemon), [""; 0]);
        let mut clients: Vec<RawNbd> =
            ["a", "b", "a"].map(|name| connect(&daemon, name).unwrap()).into();
        assert_eq!(open_files(&daemon), ["a", "b"]);
        for (client, byte) in clients.iter_mut().zip(*b"aba") {
            assert_eq!(client.size_bytes(), MIB);
            assert_eq!(client.read(MIB - 4096, 4096).unwrap(), vec![byte; 4096]);
            let mut write = flagged_request(0, WRITE, 9, 0, 512);
            write.extend_from_slice(&pattern(512, 1));
            client.send(&write).unwrap();
            let (errno, _) = client.reply().unwrap();
            assert_eq!(errno, 1, "EPERM: read-only unless it says so");
        }
        drop(clients.remove(1));
        wait_for_files(&daemon, &["a"]);
        assert_eq!(clients[1].read(0, 512).unwrap(), vec![b'a'; 512]);
        clients.clear();
        wait_for_files(&daemon, &[]);
        // A new file needs no reload.
        fs::write(daemon.dir().join("images/new"), vec![7; 8192]).unwrap();
        assert_eq!(connect(&daemon, "new").unwrap().size_bytes(), 8192);
    }
}

#[test]
fn client_writes_are_in_the_file_at_close_and_at_the_end() {
    for keys in ["", ", cache = { size = \"4m\" }"] {
        let keys = format!("read-only = false\nfiles = {{ close-after = \"100ms\"{keys} }}");
        let mut daemon = served("auto", &keys);
        let data = pattern(64 << 10, 3);
        for name in ["a", "b"] {
            connect(&daemon, name).unwrap().write(4096, &data).unwrap();
        }
        wait_for_files(&daemon, &[]);
        let mut last = connect(&daemon, "c").unwrap();
        last.write(4096, &data).unwrap();
        assert!(daemon.terminate().success());
        for name in ["a", "b", "c"] {
            let file = fs::read(daemon.dir().join("images").join(name)).unwrap();
            assert_eq!(file[4096..][..data.len()], data, "{name} {keys}");
            assert_eq!((file.len() as u64, file[0]), (MIB, name.as_bytes()[0]));
        }
    }
}

#[test]
fn nothing_but_regular_files_of_directory_is_served_or_listed() {
    require_clients!("nbdinfo", "qemu-img");
    let daemon = served("auto", "read-only = false");
    let images = daemon.dir().join("images");
    fs::create_dir(images.join("sub")).unwrap();
    fs::write(images.join("short"), "short").unwrap();
    symlink("a", images.join("link")).unwrap();
    symlink("../millrace.toml", images.join("outside")).unwrap();
    let made = Command::new("mkfifo").arg(images.join("pipe")).status().unwrap();
    assert!(made.success());
    succeed(
        Command::new("qemu-img")
            .current_dir(&images)
            .args(["create", "-q", "-f", "qcow2", "q", "1M"]),
    );
    let mut nbdinfo = Command::new("nbdinfo");
    let list = run(nbdinfo.current_dir(daemon.dir()).args(["--list", "nbd+unix://?socket=s"]));
    let list = String::from_utf8(list.stdout).unwrap();
    let names: Vec<&str> = list.lines().filter_map(|line| line.strip_prefix("export=")).collect();
    assert_eq!(names, ["\"a\":", "\"b\":", "\"c\":"], "{list}");
    for (name, why) in [
        ("nothing", "no such export"),
        ("..%2Fmillrace.toml", "no such export"),
        ("%2Fetc%2Fpasswd", "no such export"),
        ("sub", "sub is not a regular file"),
        ("pipe", "pipe is not a regular file"),
        ("outside", "outside is a link that leads out of its directory"),
        ("q", "this is a qcow2 image"),
        ("short", "5 bytes are too few"),
    ] {
        let said = refused(&daemon, name);
        assert!(said.contains(why), "{name}: {said}");
    }
    // A link within the directory is another name of its file, which has one user.
    let _client = connect(&daemon, "a").unwrap();
    let said = refused(&daemon, "link");
    assert!(said.contains("another drive of this process uses this file"), "{said}");
    let log = daemon.stderr();
    assert!(log.contains("outside is a link that leads out of its directory"), "{log}");
}

#[test]
fn deleted_or_replaced_file_is_served_while_open() {
    let daemon = served("auto", "files = { close-after = \"100ms\" }");
    let images = daemon.dir().join("images");
    let (mut first, mut gone) = (connect(&daemon, "a").unwrap(), connect(&daemon, "b").unwrap());
    fs::rename(images.join("c"), images.join("a")).unwrap();
    fs::remove_file(images.join("b")).unwrap();
    assert_eq!(connect(&daemon, "a").unwrap().read(0, 512).unwrap(), vec![b'a'; 512]);
    assert_eq!(connect(&daemon, "b").unwrap().read(0, 512).unwrap(), vec![b'b'; 512]);
    assert_eq!(first.read(0, 512).unwrap(), vec![b'a'; 512]);
    assert_eq!(gone.read(0, 512).unwrap(), vec![b'b'; 512]);
    drop((first, gone));
    wait_for_files(&daemon, &[]);
    assert_eq!(connect(&daemon, "a").unwrap().read(0, 512).unwrap(), vec![b'c'; 512]);
    assert!(connect(&daemon, "b").is_none());
}

#[test]
fn reload_keeps_open_files_and_removes_a_directory_with_its_own() {
    let mut daemon = served("auto", "read-only = false");
    fs::create_dir(daemon.dir().join("more")).unwrap();
    fs::write(daemon.dir().join("more/d"), vec![9; 4096]).unwrap();
    let reload = |args: &[&str], text: &str| {
        fs::write(daemon.dir().join("millrace.toml"), text).unwrap();
        let mut command = millrace();
        command.args(["ctl", "reload", "--connect", "unix:c"]).args(args);
        run(command.current_dir(daemon.dir()))
    };
    let mut client = connect(&daemon, "a").unwrap();
    client.write(0, &pattern(4096, 8)).unwrap();
    let both = config("auto", "read-only = false")
        + "[[export]]\ndirectory = \"more\"\nnbd = \"unix:s\"\n";
    let said = reload(&[], &both);
    assert!(String::from_utf8_lossy(&said.stdout).starts_with("+ export more\n/"), "{said:?}");
    assert_eq!(client.read(0, 4096).unwrap(), pattern(4096, 8));
    assert_eq!(connect(&daemon, "d").unwrap().size_bytes(), 4096);
    let without = "[server]\ncontrol = \"unix:c\"\nthreads = 2\n\
                   [[export]]\ndirectory = \"more\"\nnbd = \"unix:s\"\n";
    let said = reload(&[], without);
    let why = String::from_utf8_lossy(&said.stderr);
    assert!(why.contains("export images/a is in use by client"), "{said:?}");
    assert_eq!(client.read(0, 4096).unwrap(), pattern(4096, 8));
    let said = reload(&["--disconnect"], without);
    let changes = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(changes.contains("- export images\n- export images/a\n"), "{said:?}");
    assert!(client.is_closed_by_server() && connect(&daemon, "a").is_none());
    assert_eq!(connect(&daemon, "d").unwrap().size_bytes(), 4096);
    let names = |list: &str| {
        let report = Control::connect(&daemon).ok("stats");
        let all = report[list].as_array().unwrap().iter();
        all.map(|one| one["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names("volumes"), ["more/d"]);
    assert_eq!(names("exports"), ["more", "more/d"]);
    assert!(daemon.terminate().success());
}

#[test]
fn file_locked_by_a_program_is_refused_until_freed() {
    require_clients!("qemu-img");
    let daemon = served("auto", "read-only = false");
    let path = daemon.dir().join("images/a");
    let file = fs::File::open(&path).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let said = refused(&daemon, "a");
    assert!(said.contains("images/a"), "{said}");
    drop(file);
    assert_eq!(connect(&daemon, "a").unwrap().size_bytes(), MIB);
}

#[test]
fn many_clients_get_files_and_a_bad_directory_is_refused() {
    let daemon = served("auto", "files = { close-after = \"0\" }");
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let daemon = &daemon;
            scope.spawn(move || {
                for round in 0..50 {
                    let name = ["a", "b", "c"][(usize::from(thread) + round) % 3];
                    let mut client = connect(daemon, name).unwrap();
                    assert_eq!(client.read(512, 512).unwrap(), vec![name.as_bytes()[0]; 512]);
                }
            });
        }
    });
    let check = |text: &str| {
        let file = daemon.dir().join("bad.toml");
        fs::write(&file, text).unwrap();
        let mut command = millrace();
        let output = run(command.current_dir(daemon.dir()).args(["serve", "bad.toml", "--check"]));
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let listener = "nbd = \"unix:t\"\n";
    for (text, why) in [
        (format!("[[export]]\ndirectory = \"none\"\n{listener}"), "directory none: No such file"),
        (format!("[[export]]\ndirectory = \"bad.toml\"\n{listener}"), "Not a directory"),
        (
            format!("[[export]]\ndirectory = \"images\"\nvolume = \"v\"\n{listener}"),
            "either a volume",
        ),
        (
            format!(
                "[[export]]\ndirectory = \"images\"\n{listener}files = {{ direct = \"maybe\" }}\n"
            ),
            "direct",
        ),
        (
            "[[export]]\ndirectory = \"images\"\nvhost-user-blk = \"unix:v\"\n".to_owned(),
            "the files of a directory are served over NBD",
        ),
    ] {
        let said = check(&text);
        assert!(said.contains(why), "{text}: {said}");
    }
}

/// Names of files are reserved, so that nothing else is taken for one.
#[test]
fn names_that_may_be_files_are_refused_at_once_and_while_live() {
    let daemon = served("auto", "read-only = false");
    let check = |more: &str| {
        fs::write(daemon.dir().join("two.toml"), config("auto", "") + more).unwrap();
        let mut command = millrace();
        let output = run(command.current_dir(daemon.dir()).args(["serve", "two.toml", "--check"]));
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let drive = "[[drive]]\nname = \"images/a\"\nspec = \"null:size=1m\"\n\
                 [[volume]]\nname = \"v\"\ndrives = [\"images/a\"]\n";
    for (more, why) in [
        (
            "[[export]]\ndirectory = \"images\"\nnbd = \"unix:t\"\n",
            "another directory export has this name",
        ),
        (drive, "a file of this directory may get the name images/a, which is in use"),
        (
            "[[export]]\ndirectory = \".\"\nname = \"x/y\"\nnbd = \"unix:t\"\n",
            "must not contain a slash",
        ),
    ] {
        let (status, said) = check(more);
        assert_eq!(status, Some(2), "{said}");
        assert!(said.contains(why) && said.contains("two.toml:"), "{said}");
    }
    // Adds a drive over a file that a client has open, and one with the name of such a file.
    let _client = connect(&daemon, "a").unwrap();
    let ctl = |args: &[&str]| {
        let mut command = millrace();
        command.args(["ctl", "add"]).args(args).args(["--connect", "unix:c"]);
        let output = run(command.current_dir(daemon.dir()));
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(ctl(&["drive", "q", "spec=file:path=images/a"]).0, Some(0));
    let (status, said) = ctl(&["volume", "q", "drives=q"]);
    assert_eq!(status, Some(2), "{said}");
    assert!(said.contains("images/a"), "{said}");
    let (status, said) = ctl(&["drive", "images/b", "spec=null:size=1m"]);
    assert_eq!(status, Some(0), "not opened yet: {said}");
    let (status, said) = ctl(&["volume", "images/b", "drives=images/b"]);
    assert_eq!(status, Some(2), "{said}");
    assert!(said.contains("a file of this directory may get the name images/b"), "{said}");
    assert_eq!(connect(&daemon, "a").unwrap().size_bytes(), MIB);
}

/// Clients that hang up, or ask for a file that is not available, hold up nobody.
#[test]
fn clients_that_hang_up_or_wait_for_locked_file_hold_up_nobody() {
    let daemon = served("auto", "");
    let path = daemon.dir().join("images/b");
    let file = fs::File::open(&path).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let socket = daemon.dir().join("s");
    for round in 0..500 {
        let mut client = RawNbd::greet(&socket).unwrap();
        client.send(&handshake(["a", "b", "c", "none"][round % 4])).unwrap();
    }
    let start = Instant::now();
    assert_eq!(connect(&daemon, "a").unwrap().read(0, 512).unwrap(), vec![b'a'; 512]);
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

/// A client waits for a file that is being closed, or opened for another client.
#[test]
fn clients_that_come_and_go_all_the_time_are_never_refused() {
    let daemon = served("auto", "files = { close-after = \"0\" }");
    for number in 0..40 {
        fs::write(daemon.dir().join(format!("images/{number}")), [number; 4096]).unwrap();
    }
    let end = Instant::now() + Duration::from_secs(8);
    std::thread::scope(|scope| {
        for thread in 0..6u8 {
            let daemon = &daemon;
            scope.spawn(move || {
                let mut number = thread;
                while Instant::now() < end {
                    number = ((u16::from(number) * 7 + 3) % 40) as u8;
                    let mut client = connect(daemon, &number.to_string()).unwrap();
                    assert_eq!(client.read(0, 512).unwrap(), [number; 512]);
                    // Files are closed in between.
                    std::thread::sleep(Duration::from_millis(150 * u64::from(thread)));
                }
            });
        }
    });
}

/// The daemon opens no file of its directory before a client asks for one.
#[test]
fn a_directory_of_many_files_costs_nothing_until_somebody_asks() {
    let dir = tempdir();
    let images = dir.path().join("images");
    fs::create_dir(&images).unwrap();
    let file = |number: usize| -> std::path::PathBuf { images.join(format!("{number}.img")) };
    fs::write(file(0), [0; 4096]).unwrap();
    (1..2000).for_each(|number| fs::hard_link(file(0), file(number)).unwrap());
    let daemon = Daemon::start_in(dir, &config("auto", ""), &["s", "c"], &[]);
    assert_eq!(open_files(&daemon), [""; 0]);
    assert_eq!(listed(&daemon.dir().join("s")), 2000);
    assert_eq!(open_files(&daemon), [""; 0], "a list opens nothing");
}

/// Number of exports that the server lists.
fn listed(socket: &Path) -> usize {
    const OPT_LIST: u32 = 3;
    const REP_SERVER: u32 = 2;
    let mut client = RawNbd::greet(socket).unwrap();
    let mut option = 3u32.to_be_bytes().to_vec();
    option.extend_from_slice(b"IHAVEOPT");
    option.extend_from_slice(&OPT_LIST.to_be_bytes());
    option.extend_from_slice(&0u32.to_be_bytes());
    client.send(&option).unwrap();
    for count in 0.. {
        let mut head = [0; 20];
        client.receive(&mut head).unwrap();
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        client.receive(&mut vec![0; word(16) as usize]).unwrap();
        if word(12) != REP_SERVER {
            assert_eq!(word(12), 1, "the end of the list");
            return count;
        }
    }
    unreachable!("the list ends")
}
