//! Messages about wrong input: they say what is wrong, where, and what to do; and no file is left.
//!
//! A table of configurations, command lines and states of the file system, each run by the real
//! binary, as a newcomer would. Every row ends with status 2 and the messages that the row lists,
//! prints nothing on standard output, and leaves the directory as it was.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use millrace_tests::{Daemon, client, copy_millrace, millrace, poll_within, run, tempdir};

const NULL: &str = "[[drive]]\nname = \"d0\"\nspec = \"null:size=1g\"\n\
                    [[volume]]\nname = \"v\"\ndrives = [\"d0\"]\n\
                    [[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n";

/// A configuration and directory that `serve` refuses.
struct Case {
    /// A text in `NULL`, its replacement, and text appended to the configuration.
    config: (&'static str, &'static str, &'static str),
    /// Prepares the directory.
    before: fn(&Path),
    /// Texts that the messages must contain.
    said: &'static [&'static str],
    /// Texts that the messages must not contain.
    unsaid: &'static [&'static str],
}

const PLAIN: Case = Case { config: ("", "", ""), before: |_| {}, said: &[], unsaid: &[] };

/// All paths in a directory and below, with their lengths.
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

/// Runs a command that must be refused in a directory. Checks what all rows share; returns the
/// messages.
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
fn wrong_configuration_is_explained_and_leaves_nothing() {
    let cases = [
        Case {
            config: ("", "", "[server]\ncpus = [0, 65535]\n"),
            said: &[
                "m.toml:11: cpus: 65535: this process is not allowed to run on this CPU; it is \
                 allowed to use 0",
            ],
            ..PLAIN
        },
        Case {
            config: ("unix:s", "unix:@abc", ""),
            said: &[
                "m.toml:9: nbd: unix:@abc: an abstract socket is open to everybody on this host; say who may \
                 connect: set allow-users or allow-groups in its [[listener]]",
                "allow-users",
            ],
            ..PLAIN
        },
        Case {
            config: ("null:size=1g", "ram:size=1000t", ""),
            said: &["m.toml:3: ", "size=1000t", "of memory", "lower the size"],
            ..PLAIN
        },
        Case {
            before: |dir| fs::write(dir.join("s"), "precious").unwrap(),
            said: &[
                "m.toml:9: nbd: unix:s: a file that is not a socket exists at this path; move it \
                 away",
            ],
            unsaid: &["another server"],
            ..PLAIN
        },
        Case {
            before: |dir| fs::create_dir(dir.join("s")).unwrap(),
            said: &["m.toml:9: nbd: unix:s: a directory exists at this path; move it away"],
            ..PLAIN
        },
        Case {
            config: ("", "", "[server]\nmemory-max = \"1\"\n"),
            said: &["m.toml:11: memory-max = \"1\": write a size of 64m or more"],
            ..PLAIN
        },
        Case {
            config: ("unix:s", "unix:no/such/s", ""),
            said: &[
                "m.toml:9: nbd: unix:no/such/s: its directory no/such does not exist; create it",
            ],
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
            said: &["m.toml:3: ", "path= is invalid", "write the path of a file or block device"],
            ..PLAIN
        },
        Case {
            config: ("null:size=1g", "fault:drive=[null:size=1g]", ""),
            said: &["m.toml:3: ", "drive=[null:size=1g] is invalid", "as in drive=(ram:size=1g)"],
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
            said: &["m.toml:7: layout = \"mirror\": mirrored volumes are not supported", "linear"],
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
        (&["serve", "."], &["this is a directory; name a file or a block device"]),
        (&["serve", "/dev/zero"], &["neither a regular file nor a block device"]),
        (&["serve", "--config", "/dev/zero"], &["this is not a regular file"]),
        (&["serve", "big.toml"], &["more than 256 MiB is no configuration"]),
        (&["serve", "d.img", "--layout", "mirror"], &["mirrored volumes are not supported"]),
        (&["serve", "d.img", "--nbd", "s"], &["'--nbd <ADDR>'", "write \"unix:PATH\""]),
        (&["serve", "--read-only"], &["--read-only goes with files", "disk.img --read-only"]),
        (
            &["serve", "d.img", "m.toml"],
            &["m.toml: a configuration cannot be served together with files"],
        ),
        (&["serve", "m.conf"], &["looks like a configuration", "--config m.conf"]),
        (
            &["serve", "d.img", "d.img"],
            &["millrace: d.img: this file is named twice; name it only once"],
        ),
        (
            &["serve", "d.img", "link.img"],
            &["millrace: link.img: this is the same file as d.img; name only one of them"],
        ),
        (
            &["serve", "d.img", "--nbd", "unix:a", "--nbd", "unix:a"],
            &["millrace: --nbd unix:a: this address is given twice; remove one of them\n"],
        ),
        (
            &["serve", "d.img", "--nbd", "unix:a", "--vhost-user", "a"],
            &["millrace: --vhost-user unix:a: this is also the socket of --nbd; give each a \
                 socket of its own"],
        ),
        (
            &["serve", "d.img", "--name", ""],
            &["'--name <NAME>'", "write a name", "such as \"disk\""],
        ),
        (&["serve", "tiny.img"], &["100 bytes are too few; `truncate -s 10G tiny.img` makes a"]),
        (&["serve", "no.bytes"], &["the file is empty; `truncate -s 10G no.bytes` makes a"]),
        (&["stat", "--connect", "unix:/etc/passwd"], &["unix:/etc/passwd: this is not a socket"]),
        (
            &["bench", "-v"],
            &["millrace: `bench` is now a command of millrace-lab: millrace-lab bench"],
        ),
        (
            &["trace", "report", "t"],
            &["`trace report`", "millrace-lab: millrace-lab trace report t"],
        ),
    ];
    let dir = tempdir();
    let file = |name: &str| fs::File::create(dir.path().join(name)).unwrap();
    file("big.toml").set_len(4 << 30).unwrap();
    file("d.img").set_len(1 << 20).unwrap();
    file("tiny.img").set_len(100).unwrap();
    file("no.bytes");
    symlink("d.img", dir.path().join("link.img")).unwrap();
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
    let output = run(millrace().args(["serve", "m.toml", "--check"]).current_dir(&dir));
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    says(&stderr(&output), &["m.toml:3: error: ", "as in drive=(ram:size=1g)"]);
}

/// The messages of `--check` for a configuration that cannot start here. Checks that it changes no
/// file.
fn checked(dir: &Path, more: &[&str]) -> String {
    let before = contents(dir);
    let output = run(millrace().current_dir(dir).args(["serve", "m.toml", "--check"]).args(more));
    let (said, results) = (stderr(&output), String::from_utf8_lossy(&output.stdout).into_owned());
    assert_eq!(output.status.code(), Some(1), "{said}{results}");
    let verdict = results.lines().last().unwrap();
    assert!(verdict.starts_with("m.toml: valid, but cannot start on this host: "), "{results}");
    assert!(!results.contains("warning"), "{results}");
    assert_eq!(contents(dir), before, "{said}");
    said
}

#[test]
fn what_a_start_would_refuse_check_says_in_the_same_words() {
    let no_socket = |dir: &Path| fs::write(dir.join("s"), "precious").unwrap();
    let no_control = |dir: &Path| fs::create_dir(dir.join("c")).unwrap();
    let link = |dir: &Path| symlink("nowhere", dir.join("d0")).unwrap();
    let control = ("[[export]]", "[server]\ncontrol = \"unix:c\"\n[[export]]");
    let vhost = ("nbd = \"unix:s\"", "vhost-user-blk = \"unix:no/s\"");
    type Before = fn(&Path);
    let cases: [(_, Before, &str); 7] = [
        (
            ("", ""),
            no_socket,
            "m.toml:9: nbd: unix:s: a file that is not a socket exists at this path; move",
        ),
        (
            ("unix:s", "unix:no/s"),
            |_| {},
            "m.toml:9: nbd: unix:no/s: its directory no does not exist",
        ),
        (
            ("unix:s", "unix:m.toml/s"),
            |_| {},
            "m.toml:9: nbd: unix:m.toml/s: m.toml is not a directory",
        ),
        (
            vhost,
            |_| {},
            "m.toml:9: vhost-user-blk: unix:no/s: its directory no does not exist; create",
        ),
        (
            control,
            no_control,
            "m.toml:8: control: unix:c: a directory exists at this path; move it away, or",
        ),
        (
            ("null:size=1g", "file:path=no/d0,size=1m"),
            |_| {},
            "m.toml:3: drive d0: no/d0: its directory does not exist; create it first",
        ),
        (
            ("null:size=1g", "file:path=d0,size=1m"),
            link,
            "m.toml:3: drive d0: d0: this symbolic link points to a file that does not exist; \
             create that file",
        ),
    ];
    for ((right, wrong), before, said) in cases {
        let dir = tempdir();
        fs::write(dir.path().join("m.toml"), NULL.replacen(right, wrong, 1)).unwrap();
        before(dir.path());
        let found = said.replacen(": ", ": error: ", 1);
        says(&checked(dir.path(), &[]), &[&found]);
        says(&refused(dir.path(), millrace().args(["serve", "m.toml"])), &[said]);
    }
}

#[test]
fn check_refuses_an_impossible_file_size_and_makes_nothing() {
    let dir = tempdir();
    let text = NULL.replace("null:size=1g", "file:path=d0,size=100t");
    fs::write(dir.path().join("m.toml"), text).unwrap();
    let script = "ulimit -f 100; exec \"$0\" serve m.toml --check";
    let binary = millrace().get_program().to_owned();
    let output = run(Command::new("sh").args(["-c", script]).arg(binary).current_dir(&dir));
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let said = "m.toml:3: error: drive d0: d0: size=100t: more than the maximum file size of its \
                file system";
    says(&stderr(&output), &[said]);
    assert!(!dir.path().join("d0").exists());
}

#[test]
fn check_names_whoever_has_drive_or_socket_and_takes_neither() {
    let mut first = Daemon::start(&NULL.replace("null:size=1g", "file:path=d0,size=1m"), &["s"]);
    let dir = first.dir().to_owned();
    // Without a control socket it is not known as the configuration of that daemon.
    let text = fs::read_to_string(dir.join("millrace.toml")).unwrap();
    fs::write(dir.join("m.toml"), text + "[server]\ncontrol = \"off\"\n").unwrap();
    let holder = format!("process {} (", first.pid());
    let said = checked(&dir, &[]);
    says(&said, &["m.toml:3: error: drive d0: ", "d0: ", &holder, "has locked this file"]);
    says(&said, &["m.toml:9: error: nbd: unix:s: in use by "]);
    assert!(!said.contains("control"), "of two sockets that are taken the first: {said}");
    assert!(first.terminate().success(), "{}", first.stderr());
    let output = run(millrace().current_dir(&dir).args(["serve", "m.toml", "--check"]));
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
}

#[test]
fn the_demo_is_in_order_before_its_folder_is_there() {
    let dir = tempdir();
    let output = run(millrace().current_dir(&dir).args(["serve", "--check"]));
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
}

#[test]
fn a_log_level_that_is_none_is_refused_with_the_levels() {
    let dir = tempdir();
    for level in ["bogus", "verbose", "millrace=loud"] {
        let said = refused(dir.path(), millrace().arg("stat").env("MILLRACE_LOG", level));
        says(&said, &[&format!("MILLRACE_LOG=\"{level}\": "), "off, error, warn, info, debug or"]);
    }
}

#[test]
fn warnings_go_to_the_log_and_results_to_standard_output() {
    let dir = tempdir();
    let text = NULL.replace("unix:s", "tcp:0.0.0.0:0");
    fs::write(dir.path().join("m.toml"), text).unwrap();
    let check = |arguments: &[&str]| {
        let mut command = millrace();
        let output = run(command.current_dir(&dir).args(["serve", "m.toml"]).args(arguments));
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let results = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(results.lines().last().unwrap().starts_with("m.toml: valid: "), "{output:?}");
        stderr(&output)
    };
    let warning = "m.toml:9: nbd: tcp:0.0.0.0:0: everybody on the network who reaches this port may \
                   read and write";
    let found = warning.replacen(": ", ": warning: ", 1);
    assert!(check(&["--check"]).starts_with(&found), "{found}");
    let json = check(&["--check", "--log-format", "json"]);
    let line: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(line["level"], "WARN", "{json}");
    assert!(line["message"].as_str().is_some_and(|text| text.starts_with(warning)), "{json}");
}

#[test]
fn a_server_that_waits_for_a_locked_drive_says_so() {
    let first = Daemon::start(&NULL.replace("null:size=1g", "file:path=d0,size=1m"), &["s"]);
    let second = run(millrace().current_dir(first.dir()).args(["serve", "millrace.toml"]));
    assert_eq!(second.status.code(), Some(2));
    let waiting = format!("drive d0: waiting some seconds for process {} (", first.pid());
    says(&stderr(&second), &["INFO  millrace: ", &waiting, "to release d0\n"]);
}

#[test]
fn export_of_read_only_drives_says_so() {
    let dir = tempdir();
    let file = dir.path().join("d0");
    fs::File::create(&file).unwrap().set_len(1 << 20).unwrap();
    let spec = format!("file:path={},read-only=on", file.display());
    let daemon = Daemon::start(&NULL.replace("null:size=1g", &spec), &["s"]);
    let stdout = daemon.stdout();
    let line = stdout.lines().find(|line| line.starts_with("export \"v\" at ")).unwrap();
    assert!(line.ends_with(", read-only"), "{stdout}");
}

#[test]
fn a_virtual_machine_that_is_killed_is_no_warning() {
    let config = NULL.replace("nbd = ", "vhost-user-blk = ");
    let daemon = Daemon::start(&config, &["s"]);
    let gone = "INFO  millrace: export v: the virtual machine's process has ended\n";
    let said = poll_within(Duration::from_secs(20), || {
        // Sends many GET_FEATURES messages of version 1, without payload, and reads no answer.
        let message = [1u32, 1, 0].map(u32::to_ne_bytes).concat();
        let mut frontend = UnixStream::connect(daemon.dir().join("s")).unwrap();
        let _ = frontend.write_all(&message.repeat(100));
        drop(frontend);
        sleep(Duration::from_millis(50));
        daemon.stderr().contains(gone).then_some(())
    });
    assert!(said.is_some(), "{}", daemon.stderr());
    assert!(!daemon.stderr().contains("WARN"), "{}", daemon.stderr());
}

#[test]
fn a_shell_completes_the_layouts() {
    let output = run(millrace().args(["completions", "bash"]));
    let text = String::from_utf8(output.stdout).unwrap();
    let (_, behind) = text.split_once("--layout)").expect("the flag is completed");
    let words = behind.split(";;").next().unwrap();
    assert!(words.contains("compgen -W \"linear stripe\""), "{words}");
}

#[test]
fn a_file_that_cannot_be_made_long_enough_does_not_stay() {
    let dir = tempdir();
    let text = NULL.replace("null:size=1g", "file:path=d0,size=100t");
    fs::write(dir.path().join("m.toml"), text).unwrap();
    // No file may be longer than 50 KiB, whatever file system is used.
    let script = "trap '' XFSZ; ulimit -f 100; exec \"$0\" serve m.toml";
    let binary = millrace().get_program().to_owned();
    let said = refused(dir.path(), Command::new("sh").args(["-c", script]).arg(binary));
    says(&said, &["m.toml:3: drive d0: d0: size=100t: more than the maximum file size"]);
    // The demo, too, leaves no directory, files or locks. Its messages fit into 512 bytes.
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
    let with = "choose another path with --nbd unix:PATH\n";
    says(
        &said,
        &[&format!(
            "millrace: unix:d.sock: a directory exists at this path; move it away, or {with}"
        )],
    );
    fs::remove_dir(dir.path().join("d.sock")).unwrap();
    // The socket in the way is the control socket, which the command line does not name.
    fs::write(dir.path().join("d.sock.control"), "precious").unwrap();
    let said = refused(dir.path(), millrace().args(["serve", "d.img"]));
    says(&said, &["millrace: control socket unix:d.sock.control: a file that is not a socket"]);
    says(&said, &["with --nbd unix:PATH, which also determines the default control socket\n"]);
}

/// The daemon as a user to whom root's files are another's, in a directory where he may make
/// nothing.
fn unprivileged(dir: &Path) -> Option<Command> {
    // The user `nobody` may not reach the binary in cargo's directory, so copy it.
    let binary = dir.join("millrace");
    if !binary.exists() {
        copy_millrace(&binary);
    }
    fs::set_permissions(dir, fs::Permissions::from_mode(0o555)).unwrap();
    let id = run(Command::new("id").arg("-u"));
    if id.stdout != b"0\n" {
        return Some(Command::new(binary));
    }
    let mut command = Command::new(client("setpriv")?);
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(binary);
    Some(command)
}

#[test]
fn what_a_user_may_not_do_is_said_with_what_to_do() {
    let dir = tempdir();
    for (name, mode) in [("d.img", 0o444), ("secret.img", 0o000)] {
        let file = fs::File::create(dir.path().join(name)).unwrap();
        file.set_len(1 << 20).unwrap();
        file.set_permissions(fs::Permissions::from_mode(mode)).unwrap();
    }
    let Some(mut command) = unprivileged(dir.path()) else { return };
    let said = refused(dir.path(), command.args(["serve", "d.img", "--read-only"]));
    let why = "this user may not make files in the directory .; change its mode, or choose another \
               path with --nbd unix:PATH\n";
    says(&said, &[&format!("millrace: unix:d.sock: {why}")]);
    let mut command = unprivileged(dir.path()).unwrap();
    let said = refused(dir.path(), command.args(["serve", "secret.img"]));
    says(&said, &["secret.img: this user may not read the file; change its mode, or run as its"]);
    let mut command = unprivileged(dir.path()).unwrap();
    let output = run(command.current_dir(&dir).args(["serve", "d.img", "--check"]));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = "this user may not write to the file; change its mode, or serve it read-only: \
                read-only=on, or `serve --read-only`";
    says(&stderr(&output), &[&format!("drive d: d.img: {said}"), &format!("unix:d.sock: {why}")]);
    // A user other than root must be able to remove the directory.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
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
    says(&stderr(&said), &["millrace.toml:3: drive d0: ", "d0: ", &holder, "stop that process"]);
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
