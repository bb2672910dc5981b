//! What is said of wrong input: what is wrong, where, and what to do; and that nothing stays.
//!
//! A table of configurations, command lines and states of the file system, each run by the real
//! binary, as a newcomer would. Every row ends with status 2, says what the row lists, promises
//! nothing on standard output, and leaves the folder as it was.

use std::fs;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use millrace_tests::{Daemon, millrace, run, tempdir};

const NULL: &str = "[[drive]]\nname = \"d0\"\nspec = \"null:size=1g\"\n\
                    [[volume]]\nname = \"v\"\ndrives = [\"d0\"]\n\
                    [[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n";

/// What goes wrong.
struct Case {
    /// What of `NULL` is replaced by what, and what is added behind it.
    config: (&'static str, &'static str, &'static str),
    /// What is there before.
    before: fn(&Path),
    /// What must be said.
    said: &'static [&'static str],
    /// What must not be said.
    unsaid: &'static [&'static str],
}

const PLAIN: Case = Case { config: ("", "", ""), before: |_| {}, said: &[], unsaid: &[] };

/// All that is in a folder, with its length.
fn contents(dir: &Path) -> Vec<(PathBuf, u64)> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut list: Vec<(PathBuf, u64)> = Vec::new();
    for path in entries {
        let meta = fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() {
            list.extend(contents(&path));
        }
        let length = if meta.is_dir() { 0 } else { meta.len() };
        list.push((path, length));
    }
    list.sort();
    list
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs a command in a folder, and checks what every row has in common; what it said.
fn refused(dir: &Path, command: &mut Command) -> String {
    let before = contents(dir);
    let output = run(command.current_dir(dir).stdin(Stdio::null()));
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{command:?}: {said}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{command:?}: nothing is promised");
    assert_eq!(contents(dir), before, "{command:?}: nothing is left behind: {said}");
    assert!(said.starts_with("millrace: ") || said.starts_with("error: "), "{said}");
    said
}

fn says(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
}

#[test]
fn a_wrong_configuration_says_where_and_what_to_do_and_leaves_nothing() {
    let cases = [
        Case {
            config: ("", "", "[server]\ncpus = [0, 65535]\n"),
            said: &["m.toml:11: cpus: \"65535\": no CPU that this process may use; it may use 0"],
            ..PLAIN
        },
        Case {
            config: ("unix:s", "unix:@abc", ""),
            said: &["m.toml:9: nbd: \"unix:@abc\": abstract sockets are not served", "unix:./@abc"],
            ..PLAIN
        },
        Case {
            config: ("null:size=1g", "ram:size=1000t", ""),
            said: &["m.toml:3: ", "size=1000t", "of memory", "lower the size"],
            ..PLAIN
        },
        Case {
            before: |dir| fs::write(dir.join("s"), "precious").unwrap(),
            said: &["m.toml:9: nbd: unix:s: there is a file that is no socket; move it away"],
            unsaid: &["another server"],
            ..PLAIN
        },
        Case {
            before: |dir| fs::create_dir(dir.join("s")).unwrap(),
            said: &["m.toml:9: nbd: unix:s: there is a folder; move it away"],
            ..PLAIN
        },
        Case {
            config: ("", "", "[server]\nmemory-max = \"1\"\n"),
            said: &["m.toml:11: memory-max = \"1\": write a size of 64m or more"],
            ..PLAIN
        },
        Case {
            config: ("unix:s", "unix:no/such/s", ""),
            said: &["m.toml:9: nbd: unix:no/such/s: its folder no/such is not there; make it"],
            unsaid: &["control"],
            ..PLAIN
        },
        Case {
            config: ("unix:s", "s", ""),
            said: &["m.toml:9: nbd: \"s\": write \"unix:PATH\" or \"tcp:ADDRESS:PORT\"\n"],
            unsaid: &["empty"],
            ..PLAIN
        },
        Case {
            config: ("\"unix:s\"", "[]", ""),
            said: &["m.toml:9: nbd: the list is empty; add \"unix:PATH\"\n"],
            ..PLAIN
        },
        Case {
            config: ("null:size=1g", "file:path=", ""),
            said: &["m.toml:3: ", "path= is wrong", "write the path of a file or block device"],
            ..PLAIN
        },
        Case {
            config: ("null:size=1g", "fault:drive=[null:size=1g]", ""),
            said: &["m.toml:3: ", "drive=[null:size=1g] is wrong", "as in drive=(ram:size=1g)"],
            ..PLAIN
        },
        Case {
            config: ("null:size=1g", "file:path=d0,size=2m", ""),
            before: |dir| fs::File::create(dir.join("d0")).unwrap().set_len(1 << 20).unwrap(),
            said: &["m.toml:3: drive d0: d0: it has 1m and size=2m", "grow=on"],
            ..PLAIN
        },
        Case {
            config: ("[\"d0\"]", "[\"d0\"]\nlayout = \"mirror\"", ""),
            said: &["m.toml:7: layout = \"mirror\": a volume has no mirrors yet", "linear"],
            ..PLAIN
        },
        Case {
            config: ("\"v\"\ndrives", "\"v\"\ntimeout = \"18446744073s\"\ndrives", ""),
            said: &["m.toml:6: timeout = \"18446744073s\": write a time from 0 to 24h"],
            ..PLAIN
        },
        Case {
            config: ("", "", "[server]\nhandshake-timeout = \"18446744073s\"\n"),
            said: &["m.toml:11: handshake-timeout = ", "write a time from 1ms to 1h"],
            ..PLAIN
        },
    ];
    for Case { config: (right, wrong, more), before, said, unsaid } in cases {
        let dir = tempdir();
        let text = NULL.replacen(right, wrong, 1) + more;
        fs::write(dir.path().join("m.toml"), &text).unwrap();
        before(dir.path());
        let heard = refused(dir.path(), millrace().args(["serve", "m.toml"]));
        says(&heard, said);
        for part in unsaid {
            assert!(!heard.contains(part), "{part:?} in {heard}");
        }
    }
}

#[test]
fn a_wrong_command_line_says_so_at_once() {
    let cases: &[(&[&str], &[&str])] = &[
        (&["serve", "no.img"], &["no.img: there is no such file or device", "truncate -s 10G"]),
        (&["serve", "no.toml"], &["no.toml: cannot read", "--print-config"]),
        (&["serve", "."], &["this is a folder; name a file or a block device"]),
        (&["serve", "/dev/zero"], &["neither a regular file nor a block device"]),
        (&["serve", "--config", "/dev/zero"], &["this is no regular file, not a configuration"]),
        (&["serve", "big.toml"], &["more than 1 MiB is no configuration"]),
        (&["serve", "d.img", "--layout", "mirror"], &["a volume has no mirrors yet"]),
        (&["serve", "d.img", "--nbd", "s"], &["'--nbd <ADDR>'", "write \"unix:PATH\""]),
        (&["serve", "--read-only"], &["--read-only goes with files", "disk.img --read-only"]),
        (&["serve", "d.img", "m.toml"], &["m.toml: a configuration is served alone"]),
        (&["serve", "m.conf"], &["looks like a configuration", "--config m.conf"]),
        (&["serve", "d.img", "d.img"], &["drive d1: its file is that of drive d0"]),
        (&["serve", "tiny.img"], &["100 bytes are too few"]),
        (&["stat", "--connect", "unix:/etc/passwd"], &["unix:/etc/passwd: this is no socket"]),
        (&["bench", "--cpus", "65535"], &["--cpus 65535: this program may use", "write 1 to "]),
        (&["bench", "--bs", "1g", "--iodepth", "65536"], &["--bs 1g", "of memory; lower --bs"]),
    ];
    let dir = tempdir();
    let file = |name: &str| fs::File::create(dir.path().join(name)).unwrap();
    file("big.toml").set_len(4 << 30).unwrap();
    file("d.img").set_len(1 << 20).unwrap();
    file("tiny.img").set_len(100).unwrap();
    fs::write(dir.path().join("m.conf"), NULL).unwrap();
    for (arguments, said) in cases {
        says(&refused(dir.path(), millrace().args(*arguments)), said);
    }
}

#[test]
fn what_check_passes_can_be_served() {
    let dir = tempdir();
    let text = NULL.replace("null:size=1g", "fault:drive=[null:size=1g]");
    fs::write(dir.path().join("m.toml"), text).unwrap();
    let said = refused(dir.path(), millrace().args(["serve", "m.toml", "--check"]));
    says(&said, &["m.toml:3: ", "as in drive=(ram:size=1g)"]);
}

#[test]
fn a_file_that_cannot_be_made_long_enough_does_not_stay() {
    let dir = tempdir();
    let text = NULL.replace("null:size=1g", "file:path=d0,size=100t");
    fs::write(dir.path().join("m.toml"), text).unwrap();
    // Whatever the file system takes: no file may be longer than 50 KiB.
    let script = "trap '' XFSZ; ulimit -f 100; exec \"$0\" serve m.toml";
    let binary = millrace().get_program().to_owned();
    let said = refused(dir.path(), Command::new("sh").args(["-c", script]).arg(binary));
    says(&said, &["m.toml:3: drive d0: d0: size=100t: more than its file system takes"]);
    // Nor does the demo leave its folder, its files or its locks. What it says fits 512 bytes.
    let empty = tempdir();
    let script = "trap '' XFSZ; ulimit -f 1; exec \"$0\" serve";
    let binary = millrace().get_program().to_owned();
    let said = refused(empty.path(), Command::new("sh").args(["-c", script]).arg(binary));
    says(&said, &["built-in configuration:", "drive d0: millrace-data/d0: size=1g: "]);
}

#[test]
fn a_socket_that_cannot_be_is_blamed_on_its_flag() {
    let dir = tempdir();
    fs::File::create(dir.path().join("d.img")).unwrap().set_len(1 << 20).unwrap();
    fs::create_dir(dir.path().join("d.sock")).unwrap();
    let said = refused(dir.path(), millrace().args(["serve", "d.img"]));
    says(&said, &["millrace: --nbd unix:d.sock: there is a folder; move it away, or choose"]);
}

#[test]
fn a_busy_port_leaves_no_folder_of_the_demo() {
    let dir = tempdir();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let said = refused(dir.path(), millrace().args(["serve", "--metrics", &address]));
    says(&said, &[&format!("--metrics {address}: in use by another server; choose another port")]);
    assert!(!dir.path().join("millrace-data").exists());
}

#[test]
fn a_second_server_is_told_whom_to_stop() {
    let first = Daemon::start(&NULL.replace("null:size=1g", "file:path=d0,size=1m"), &["s"]);
    let (dir, pid) = (first.dir(), first.pid());
    let holder = format!("process {pid} (millrace)");
    let said = run(millrace().current_dir(dir).args(["serve", "millrace.toml"]));
    assert_eq!(said.status.code(), Some(2));
    says(&stderr(&said), &["millrace.toml:3: drive d0: ", "d0: ", &holder, "stop it"]);
    let other = dir.join("other.toml");
    fs::write(&other, NULL.replace("[[export]]", "[server]\ncontrol = \"off\"\n[[export]]"))
        .unwrap();
    let said = run(millrace().current_dir(dir).args(["serve", "other.toml"]));
    assert_eq!(said.status.code(), Some(2));
    let place = "other.toml:11: nbd: unix:s: in use by ";
    says(&stderr(&said), &[place, &holder, "stop that, or choose another path"]);
    assert!(dir.join("s").exists() && dir.join("d0").exists(), "the first serves on");
}

#[test]
fn a_socket_of_another_program_is_not_blamed_on_millrace() {
    let dir = tempdir();
    fs::write(dir.path().join("m.toml"), NULL).unwrap();
    let _other = UnixListener::bind(dir.path().join("s")).unwrap();
    let said = refused(dir.path(), millrace().args(["serve", "m.toml"]));
    says(&said, &["m.toml:9: nbd: unix:s: in use by another server; choose another path"]);
}

#[test]
fn an_export_that_is_not_there_is_named_with_those_that_are() {
    let daemon = Daemon::start(NULL, &["s"]);
    let uri = format!("nbd+unix:///nope?socket={}/s", daemon.dir().display());
    let said = run(millrace().args(["bench", "--connect", &uri]));
    assert_eq!(said.status.code(), Some(2));
    says(&stderr(&said), &["there is no export \"nope\"; there are \"v\"\n"]);
    let nobody = format!("nbd+unix:///v?socket={}/none", daemon.dir().display());
    let said = run(millrace().args(["bench", "--connect", &nobody]));
    says(&stderr(&said), &["nobody serves there: start it, or name another address"]);
}

#[test]
fn stat_says_that_the_daemon_has_stopped() {
    let mut daemon = Daemon::start(NULL, &["s"]);
    let control = format!("unix:{}/s.control", daemon.dir().display());
    let mut stat = millrace();
    stat.args(["stat", "0.05", "--connect", &control]).stdout(Stdio::null());
    let stat = stat.stderr(Stdio::piped()).spawn().unwrap();
    sleep(Duration::from_millis(500));
    assert!(daemon.terminate().success());
    let output = stat.wait_with_output().unwrap();
    assert_eq!(stderr(&output), format!("millrace: {control}: the daemon has stopped\n"));
    assert_eq!(output.status.code(), Some(2));
    let left = contents(daemon.dir());
    let names: Vec<_> = left.iter().filter_map(|(path, _)| path.file_name()).collect();
    assert_eq!(names, ["millrace.toml", "stderr", "stdout"], "no socket, no lock");
}
