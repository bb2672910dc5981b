//! Starts and ends of a daemon under obstacles: a start that waits is ended by a signal, a log that
//! nobody reads blocks nothing, a killed daemon leaves marks of dirty caches, and sockets without a
//! listener are refused.

use std::fs::{self, File};
use std::io::{PipeReader, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command as Program, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use millrace_nbd::Command;
use millrace_tests::load::{self, connect, request};
use millrace_tests::mounted::{self, Fuse};
use millrace_tests::remote::Remote;
use millrace_tests::{Daemon, client, millrace, poll_within, run, serving, tempdir};

/// `millrace serve` of a configuration in a directory, not waited for.
fn start(dir: &Path, config: &str) -> Child {
    fs::write(dir.join("m.toml"), config).unwrap();
    let output = |name: &str| Stdio::from(File::create(dir.join(name)).unwrap());
    let mut command = millrace();
    command.current_dir(dir).args(["serve", "m.toml"]);
    command.stdin(Stdio::null()).stdout(output("out")).stderr(output("err")).spawn().unwrap()
}

fn send(child: &Child, signal: &str) {
    let pid = child.id().to_string();
    assert!(Program::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
}

/// Sends SIGTERM; how the child ended, and after how long.
fn end(child: &mut Child, limit: Duration) -> (ExitStatus, Duration) {
    let start = Instant::now();
    send(child, "TERM");
    let ended = poll_within(limit, || child.try_wait().unwrap());
    if ended.is_none() {
        child.kill().unwrap();
    }
    (ended.expect("SIGTERM ends it"), start.elapsed())
}

#[test]
fn a_signal_ends_a_start_that_waits_and_what_it_made_is_removed() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("nbd:uri=nbd://{}", silent.local_addr().unwrap());
    let dir = tempdir();
    let locked = dir.path().join("locked");
    let held = File::create(&locked).unwrap();
    held.set_len(1 << 20).unwrap();
    held.lock().unwrap();
    let locked = format!("file:path={}", locked.display());
    for (spec, step) in [(uri.as_str(), "opening drive d1 (nbd:uri="), (&locked, "drive d1")] {
        let made = dir.path().join("made");
        let first = format!("file:path={},size=1m", made.display());
        let mut child = start(dir.path(), &serving::stripe("auto", &[&first, spec]));
        let is_open = || made.exists().then_some(());
        assert!(poll_within(Duration::from_secs(20), is_open).is_some());
        // The first drive is open by then, and the second one waits.
        std::thread::sleep(Duration::from_secs(1));
        let (status, time) = end(&mut child, Duration::from_secs(30));
        let said = fs::read_to_string(dir.path().join("err")).unwrap();
        assert_eq!(status.code(), Some(0), "{said}");
        assert!(time < Duration::from_secs(8), "{time:?}");
        let line = "the start was stopped by a signal while ";
        assert!(said.contains(line) && said.contains(step), "{said}");
        assert!(!made.exists() && !dir.path().join("s").exists());
    }
}

#[test]
fn a_pipe_in_place_of_a_disk_is_refused_at_once() {
    let dir = tempdir();
    assert!(Program::new("mkfifo").arg(dir.path().join("f")).status().unwrap().success());
    for (args, code) in [(&["serve", "f"][..], 2), (&["serve", "f", "--check"], 1)] {
        let output = run(millrace().current_dir(dir.path()).args(args));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains("neither a regular file nor a block device"), "{said}");
    }
}

/// A full pipe that nobody reads; it stays full as long as the reader exists.
fn full_pipe() -> (PipeReader, Stdio) {
    let (reader, writer) = std::io::pipe().unwrap();
    let mut filler = writer.try_clone().unwrap();
    std::thread::spawn(move || while filler.write_all(&[b'.'; 4096]).is_ok() {});
    // The filler fills the pipe in this time.
    std::thread::sleep(Duration::from_millis(200));
    (reader, writer.into())
}

#[test]
fn a_log_that_nobody_reads_stops_neither_io_nor_the_end() {
    let dir = tempdir();
    let disk = dir.path().join("disk");
    let spec = format!("file:path={},size=1m", disk.display());
    let config = serving::stripe("auto", &[&spec])
        .replace("[[export]]", "[volume.cache]\nsize = \"4m\"\ndirty-age = \"1h\"\n[[export]]");
    fs::write(dir.path().join("m.toml"), config).unwrap();
    let ((_log, stderr), (_out, stdout)) = (full_pipe(), full_pipe());
    let mut command = millrace();
    command.current_dir(dir.path()).args(["serve", "m.toml", "-vv"]);
    let mut child = command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).spawn().unwrap();
    drop(command);
    let socket = dir.path().join("s");
    let connected = || connect(&socket, "v").ok();
    let mut client = poll_within(Duration::from_secs(20), connected).expect("it serves");
    for sector in 0..64 {
        let write = request(Command::Write, sector * 8, 8);
        let written = load::call(&mut client, &write, vec![7; 4096]).unwrap();
        assert_eq!(written.errno, None);
        send(&child, "HUP");
    }
    let (status, _) = end(&mut child, Duration::from_secs(20));
    assert_eq!(status.code(), Some(0));
    assert!(fs::read(&disk).unwrap()[..64 * 4096].iter().all(|byte| *byte == 7), "written out");
}

/// A volume under a cache that keeps data dirty, with a directory for its marks.
fn marked(specs: &[&str], volume: &str) -> String {
    serving::stripe("auto", specs)
        .replace("[[export]]", "[volume.cache]\nsize = \"4m\"\ndirty-age = \"1h\"\n[[export]]")
        .replace("\"v\"", &format!("\"{volume}\""))
        + "state = \"state\"\n"
}

fn write_one(daemon: &Daemon, volume: &str) {
    let mut client = connect(&daemon.dir().join("s"), volume).unwrap();
    let write = request(Command::Write, 0, 8);
    assert_eq!(load::call(&mut client, &write, vec![7; 4096]).unwrap().errno, None);
}

fn ctl(daemon: &Daemon, args: &[&str]) -> (Option<i32>, String) {
    let connect = format!("unix:{}", daemon.dir().join("s.control").display());
    let output = run(millrace().args(args).args(["--connect", &connect]));
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// Starts a daemon that waits for a file of a hung file system, and ends it by a signal.
fn starts_and_ends(backend: &str, spec: &str) {
    let dir = tempdir();
    let mut child = start(dir.path(), &serving::stripe(backend, &[spec]));
    std::thread::sleep(Duration::from_secs(2));
    assert!(child.try_wait().unwrap().is_none(), "{backend}: it waits for the file");
    let (status, _) = end(&mut child, Duration::from_secs(20));
    let said = fs::read_to_string(dir.path().join("err")).unwrap();
    assert!(status.success(), "{status}: {said}");
    assert!(
        said.contains("the start was stopped by a signal while opening drive d0 (file:path="),
        "{said}"
    );
}

/// Stops a daemon whose only drive is a file that no longer answers.
fn stop_over_a_hung_file_system(backend: &str) {
    let below = tempdir();
    let remote = below.path().join("nbdkit");
    let _server = Remote::nbdkit(&remote, &["memory", "16m"]);
    let uri = format!("nbd+unix:///?socket={}", remote.display());
    let fuse = Fuse::mount(&uri, &below.path().join("fuse"));
    let spec = format!("file:path={},lock=off", fuse.disk().display());
    let config = serving::stripe(backend, &[&spec])
        .replace("[[volume]]", "timeout = \"2s\"\n[[volume]]")
        .replace("[[export]]", "[volume.cache]\nsize = \"4m\"\ndirty-age = \"1h\"\n[[export]]");
    let mut daemon = Daemon::start(&config, &["s"]);
    write_one(&daemon, "v");
    let hang = fuse.hang();
    daemon.signal(libc::SIGTERM);
    let socket = daemon.dir().join("s");
    let is_gone = || (!socket.exists()).then_some(());
    assert!(poll_within(Duration::from_secs(40), is_gone).is_some(), "{}", daemon.stderr());
    let said = daemon.stderr();
    assert!(
        said.contains("volume v: 4096 bytes (first range: 4096 bytes at offset 0) lost"),
        "{said}"
    );
    starts_and_ends(backend, &spec);
    // The kernel holds the process until the file system answers.
    drop(hang);
    let status = poll_within(Duration::from_secs(40), || daemon.try_wait());
    assert_eq!(status.and_then(|status| status.code()), Some(1), "{backend}: {said}");
}

#[test]
fn stop_over_a_hung_file_system_names_losses_and_sockets_go() {
    if let Some(reason) = mounted::obstacle() {
        return millrace_require::skip(reason);
    }
    if client("nbdkit").is_none() || client("nbdfuse").is_none() {
        return;
    }
    std::thread::scope(|scope| {
        let stops = serving::backends()
            .iter()
            .map(|backend| scope.spawn(|| stop_over_a_hung_file_system(backend)));
        stops.collect::<Vec<_>>().into_iter().for_each(|stop| stop.join().unwrap());
    });
}

const LOST: &str = "the last daemon ended with a dirty cache of it";

#[test]
fn killed_daemon_leaves_a_dirty_mark_until_acknowledged() {
    let dir = tempdir();
    let path = dir.path().to_owned();
    fs::create_dir(path.join("state")).unwrap();
    let marks = || fs::read_to_string(path.join("state/caches")).unwrap_or_default();
    let spec = format!("file:path={},size=1m", path.join("disk").display());
    let config = marked(&[&spec], "v");
    let mut daemon = Daemon::start_in(dir, &config, &["s"], &[]);
    assert!(marks().contains("clean \"v\""), "{}", marks());
    write_one(&daemon, "v");
    assert!(marks().contains("dirty \"v\""), "{}", marks());
    let check = |config: &str| {
        fs::write(path.join("c.toml"), config).unwrap();
        run(millrace().current_dir(&path).args(["serve", "c.toml", "--check"]))
    };
    // Without a control socket it is not known as the configuration of that daemon.
    let output = check(&(config.clone() + "control = \"off\"\n"));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("state: ") && said.contains("in use by process"), "{said}");
    daemon.kill9();
    // Its directory goes with it, so the next ones are started by hand in a copy.
    let copy = tempdir();
    for name in ["disk", "state"] {
        fs::rename(path.join(name), copy.path().join(name)).unwrap();
    }
    let path = copy.path().to_owned();
    let marks = || fs::read_to_string(path.join("state/caches")).unwrap_or_default();
    let spec = format!("file:path={},size=1m", path.join("disk").display());
    drop(daemon);
    let mut daemon = Daemon::start_in(copy, &marked(&[&spec], "w"), &["s"], &[]);
    assert!(daemon.stderr().contains(&format!("volume v: {LOST}")), "{}", daemon.stderr());
    let (_, stat) = ctl(&daemon, &["stat"]);
    assert!(stat.contains(&format!("volume v: {LOST}")), "{stat}");
    let (_, stat) = ctl(&daemon, &["stat", "--json"]);
    assert!(stat.contains("\"unacknowledged\":[\"v\"]"), "{stat}");
    assert_eq!(ctl(&daemon, &["ctl", "acknowledge", "w"]).0, Some(2));
    assert_eq!(ctl(&daemon, &["ctl", "acknowledge", "v"]), (Some(0), "v: acknowledged\n".into()));
    assert!(ctl(&daemon, &["stat", "--json"]).1.contains("\"unacknowledged\":[]"));
    write_one(&daemon, "w");
    assert_eq!(daemon.terminate().code(), Some(0));
    assert!(!path.join("state/caches").exists(), "a clean stop: {}", marks());
}

#[test]
fn a_stop_that_loses_data_of_one_volume_keeps_its_mark_alone() {
    let dir = tempdir();
    let path = dir.path().to_owned();
    fs::create_dir(path.join("state")).unwrap();
    let volume = |name: &str, spec: &str| {
        format!(
            "[[drive]]\nname = \"d{name}\"\nspec = \"{spec}\"\n\
             [[volume]]\nname = \"{name}\"\ndrives = [\"d{name}\"]\n\
             [volume.cache]\nsize = \"4m\"\ndirty-age = \"1h\"\n\
             [[export]]\nvolume = \"{name}\"\nnbd = \"unix:s\"\n"
        )
    };
    let failing = "fault:drive=(ram:size=1m),status=eio,op=write,every=1";
    let config = volume("good", "ram:size=1m")
        + &volume("bad", failing)
        + "[server]\nthreads = 2\nstate = \"state\"\n";
    let mut daemon = Daemon::start_in(dir, &config, &["s"], &[]);
    write_one(&daemon, "good");
    write_one(&daemon, "bad");
    daemon.signal(libc::SIGTERM);
    let status = poll_within(Duration::from_secs(60), || daemon.try_wait());
    assert_eq!(status.and_then(|status| status.code()), Some(1));
    let marks = fs::read_to_string(path.join("state/caches")).unwrap();
    assert!(marks.contains("dirty \"bad\"") && !marks.contains("good"), "{marks}");
}

#[test]
fn systemd_sockets_without_a_listener_are_refused() {
    let dir = tempdir();
    fs::write(dir.path().join("m.toml"), serving::stripe("auto", &["ram:size=1m"])).unwrap();
    let Some(activate) = client("systemd-socket-activate") else { return };
    let mut command = Program::new(activate);
    let socket = dir.path().join("handed");
    command.current_dir(dir.path()).arg("--fdname=extra").arg("-l").arg(&socket);
    command.arg(millrace().get_program()).args(["serve", "m.toml"]);
    let log = dir.path().join("err");
    let mut child = command.stderr(File::create(&log).unwrap()).spawn().unwrap();
    // The first connection starts it.
    let connected = || UnixStream::connect(&socket).ok();
    let _client = poll_within(Duration::from_secs(20), connected).expect("systemd listens");
    let status = poll_within(Duration::from_secs(20), || child.try_wait().unwrap());
    let said = fs::read_to_string(&log).unwrap();
    assert_eq!(status.and_then(|status| status.code()), Some(2), "{said}");
    assert!(said.contains("no export listens on: extra;"), "{said}");
}
