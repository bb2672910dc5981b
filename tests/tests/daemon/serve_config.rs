//! `millrace serve` from the outside: wrong configurations, the default one, signals, readiness.
//!
//! Runs the real binary. Wrong configurations must name file, line and key, end with status 2 and
//! leave nothing behind; the default one must serve, and its lines to paste must work as pasted.

use std::fs;
use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use millrace_tests::raw_nbd::{READ, RawNbd, request};
use millrace_tests::{Daemon, require_clients, run, tempdir};

const NULL: &str = "[[drive]]\nname = \"d0\"\nspec = \"null:size=1g\"\n\
                    [[volume]]\nname = \"v\"\ndrives = [\"d0\"]\n\
                    [[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n";

/// The binary under test: that of a daemon, which builds it if need be.
fn millrace() -> Command {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    Command::new(BINARY.get_or_init(|| {
        let daemon = Daemon::start(NULL, &["s"]);
        fs::read_link(format!("/proc/{}/exe", daemon.pid())).unwrap()
    }))
}

/// Runs `millrace serve m.toml` with more arguments in a directory that holds this file.
fn serve(dir: &Path, config: &str, args: &[&str]) -> Output {
    fs::write(dir.join("m.toml"), config).unwrap();
    run(millrace().current_dir(dir).args(["serve", "m.toml"]).args(args))
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The error of a configuration that must be refused with status 2.
fn refused(config: &str) -> String {
    let dir = tempdir();
    let output = serve(dir.path(), config, &[]);
    assert_eq!(output.status.code(), Some(2), "{config}\n{}", stderr(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "nothing is promised");
    let left: Vec<_> = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["m.toml"], "nothing is left behind");
    stderr(&output)
}

/// A `millrace serve` without a file, killed when it drops.
struct Bare {
    child: Child,
    dir: PathBuf,
}

impl Bare {
    fn start(dir: &Path, args: &[&str], notify: Option<&Path>) -> Bare {
        let mut command = millrace();
        command.arg("serve").args(args).current_dir(dir).stdin(Stdio::null());
        command.stdout(fs::File::create(dir.join("stdout")).unwrap());
        command.stderr(fs::File::create(dir.join("stderr")).unwrap());
        if let Some(path) = notify {
            command.env("NOTIFY_SOCKET", path);
        }
        let mut bare = Bare { child: command.spawn().unwrap(), dir: dir.to_owned() };
        let start = Instant::now();
        while !bare.stdout().lines().any(|line| line.starts_with("ready")) {
            assert_eq!(bare.child.try_wait().unwrap(), None, "{}", bare.stderr());
            assert!(start.elapsed() < Duration::from_secs(30), "not ready: {}", bare.stderr());
            sleep(Duration::from_millis(5));
        }
        bare
    }

    fn stdout(&self) -> String {
        fs::read_to_string(self.dir.join("stdout")).unwrap_or_default()
    }

    fn stderr(&self) -> String {
        fs::read_to_string(self.dir.join("stderr")).unwrap_or_default()
    }

    fn stop(&mut self, signal: &str) -> ExitStatus {
        run(Command::new("kill").args([signal, &self.child.id().to_string()]));
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "does not stop on {signal}");
            sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[test]
fn a_wrong_configuration_names_file_line_and_key() {
    let cases: [(&str, &str, &[&str]); 13] = [
        (
            "size=1g\"",
            "size=1g\"\ntimeut = \"5s\"",
            &["m.toml:4:", "\"timeut\"", "mean \"timeout\"?"],
        ),
        ("null:size", "null:sise", &["m.toml:3:", "`sise`", "did you mean `size`?"]),
        (
            "null:size",
            "nul:size",
            &["m.toml:3:", "unknown driver \"nul\"", "did you mean \"null\"?"],
        ),
        (
            "\"d0\"",
            "\"d\\nready 1\"",
            &["m.toml:2:", "\"d\\nready 1\": \\n is a control character"],
        ),
        ("size=1g", "size=1x", &["m.toml:3:", "size=1x"]),
        ("size=1g", "size=16", &["m.toml:3:"]),
        ("[\"d0\"]", "[\"d1\"]", &["m.toml:6:", "no drive \"d1\"", "mean \"d0\"?"]),
        ("[\"d0\"]", "[\"d0\"]\nchunk = \"60k\"", &["m.toml:7:", "chunk = \"60k\"", "64k"]),
        ("[\"d0\"]", "[\"d0\"]\nlayout = \"strip\"", &["m.toml:7:", "mean \"stripe\"?"]),
        ("volume = \"v\"", "volume = \"w\"", &["m.toml:8:", "no volume \"w\""]),
        ("unix:s", "unix:no/such/folder/s", &["m.toml", "no/such/folder/s"]),
        ("unix:s", "tcp:example.org:1", &["m.toml:9:", "no IP address", "tcp:127.0.0.1"]),
        ("[[export]]", "[[exports]]", &["m.toml:7:", "\"exports\"", "mean \"export\"?"]),
    ];
    for (right, wrong, parts) in cases {
        let error = refused(&NULL.replacen(right, wrong, 1));
        for part in parts {
            assert!(error.contains(part), "{wrong}: no {part} in {error}");
        }
    }
}

#[test]
fn socket_path_over_107_bytes_is_refused_before_any_open() {
    let long = format!("unix:{}", "x".repeat(108));
    let error = refused(&NULL.replace("unix:s", &long));
    assert!(error.contains("m.toml:9: nbd:") && error.contains("at most 107 bytes"), "{error}");
}

#[test]
fn a_failed_start_removes_the_files_that_it_created() {
    let config = "[[drive]]\nname = \"a\"\ndriver = \"file\"\npath = \"a\"\nsize = \"1m\"\n\
                  [[drive]]\nname = \"b\"\ndriver = \"file\"\npath = \"no/b\"\nsize = \"1m\"\n\
                  [[volume]]\nname = \"v\"\ndrives = [\"a\", \"b\"]\n\
                  [[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n";
    let error = refused(config);
    assert!(error.contains("m.toml:9: drive b: ") && error.contains("no/b"), "{error}");
}

#[test]
fn one_file_under_two_names_is_refused_and_kept() {
    let dir = tempdir();
    fs::write(dir.path().join("a"), vec![7; 1 << 20]).unwrap();
    fs::hard_link(dir.path().join("a"), dir.path().join("b")).unwrap();
    let config = "[[drive]]\nname = \"a\"\nspec = \"file:path=a\"\n\
                  [[drive]]\nname = \"b\"\nspec = \"file:path=b\"\n\
                  [[volume]]\nname = \"v\"\ndrives = [\"a\", \"b\"]\n\
                  [[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n";
    let output = serve(dir.path(), config, &[]);
    assert_eq!(output.status.code(), Some(2));
    let error = stderr(&output);
    let refused = "m.toml:6: drive b: its file is that of drive a (line 3)";
    let found = "m.toml:6: error: drive b: its file is that of drive a (line 3)";
    assert!(error.contains(refused), "{error}");
    let output = serve(dir.path(), config, &["--check"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains(found), "{}", stderr(&output));
    // Before there is a file, too.
    let none = config.replace("file:path=a", "file:path=c,size=1m");
    let none = none.replace("file:path=b", "file:path=./c,size=1m");
    let output = serve(dir.path(), &none, &["--check"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains(found), "{}", stderr(&output));
    assert_eq!(fs::read(dir.path().join("a")).unwrap(), vec![7; 1 << 20]);
}

#[test]
fn check_reads_the_configuration_and_opens_nothing() {
    let dir = tempdir();
    let config = NULL.replace("null:size=1g", "file:path=d0,size=1m");
    let output = serve(dir.path(), &config, &["--check"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let said = String::from_utf8(output.stdout).unwrap();
    let in_order = "m.toml: valid: 1 drive, 1 volume, 1 export, 1 listener\n";
    assert_eq!(said, format!("volume \"v\": 1 MiB (1048576 bytes), linear\n{in_order}"));
    assert!(!dir.path().join("d0").exists() && !dir.path().join("s").exists());
    // Without a size there is nothing to be served.
    let output = serve(dir.path(), &config.replace(",size=1m", ""), &["--check"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let said = "m.toml:3: error: drive d0: d0: there is no such file";
    assert!(stderr(&output).starts_with(said), "{}", stderr(&output));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.starts_with("m.toml: valid, but cannot start on this host: 1 drive"), "{said}");
    let output = serve(dir.path(), &config.replace("unix:s", "s"), &["--check"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).starts_with("m.toml:9: error: nbd"), "{}", stderr(&output));
    assert_eq!(output.stdout, b"m.toml: not valid: 1 error\n");
}

#[test]
fn a_flag_that_is_wrong_is_named_with_and_without_a_file() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let said =
        format!("millrace: --metrics {address}: in use by another server; choose another port\n");
    let dir = tempdir();
    let output = serve(dir.path(), NULL, &["--metrics", &address]);
    assert_eq!((output.status.code(), stderr(&output)), (Some(2), said.clone()));
    let output = run(millrace().current_dir(&dir).args(["serve", "--metrics", &address]));
    assert_eq!((output.status.code(), stderr(&output)), (Some(2), said));
    assert!(!dir.path().join("millrace-data/d0").exists(), "nothing is left behind");
    let long = "x".repeat(108);
    let output = run(millrace().current_dir(&dir).args(["serve", "--data-dir", &long]));
    let said = format!("millrace: built-in configuration with --data-dir {long}:");
    assert!(stderr(&output).starts_with(&said), "{}", stderr(&output));
}

#[test]
fn a_missing_configuration_file_is_an_error_that_names_it() {
    let dir = tempdir();
    let output = run(millrace().current_dir(&dir).args(["serve", "none.toml"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("none.toml: cannot read"), "{}", stderr(&output));
}

#[test]
fn the_default_serves_and_its_lines_work_as_pasted() {
    require_clients!("qemu-img", "nbdcopy", "fio");
    let dir = tempdir();
    let mut daemon = Bare::start(dir.path(), &[], None);
    let lines: Vec<String> = daemon
        .stdout()
        .lines()
        .filter(|line| line.starts_with("  ") && line.contains("nbd+unix://"))
        .map(|line| line.trim().to_owned())
        .collect();
    assert_eq!(lines.len(), 3, "{}", daemon.stdout());
    for line in &lines {
        let output = run(Command::new("sh").args(["-c", line]).current_dir(&dir));
        assert!(output.status.success(), "{line}\n{}", stderr(&output));
    }
    let copied = fs::metadata(dir.path().join("vol0-copy.img")).unwrap().len();
    assert_eq!(copied, 4 << 30);
    assert_eq!(daemon.stop("-TERM").code(), Some(0), "{}", daemon.stderr());
    assert!(daemon.stderr().contains("stopped"), "{}", daemon.stderr());
}

#[test]
fn a_second_instance_on_the_same_drives_is_refused() {
    let dir = tempdir();
    let mut daemon = Bare::start(dir.path(), &[], None);
    let second = run(millrace().arg("serve").current_dir(&dir));
    assert_eq!(second.status.code(), Some(2), "{}", stderr(&second));
    assert!(stderr(&second).contains("millrace-data/d0"), "{}", stderr(&second));
    assert!(dir.path().join("millrace-data/vol0.sock").exists(), "the first one serves on");
    assert_eq!(daemon.stop("-INT").code(), Some(0), "{}", daemon.stderr());
    let mut again = Bare::start(dir.path(), &[], None);
    assert_eq!(again.stop("-TERM").code(), Some(0));
}

#[test]
fn data_folder_can_be_another_and_its_configuration_is_printed() {
    let dir = tempdir();
    let mut command = millrace();
    let printed = run(command.args(["serve", "--print-config", "--data-dir", "x y"]));
    let text = String::from_utf8(printed.stdout).unwrap();
    assert!(text.contains("unix:x y/vol0.sock"), "{text}");
    let mut daemon = Bare::start(dir.path(), &["--data-dir", "x y", "--threads", "1"], None);
    assert!(dir.path().join("x y/vol0.sock").exists());
    assert!(daemon.stdout().contains("'nbd+unix:///vol0?socket=x%20y/vol0.sock'"));
    assert_eq!(daemon.stop("-TERM").code(), Some(0));
}

#[test]
fn the_service_manager_is_told_of_readiness_and_of_stopping() {
    let dir = tempdir();
    let path = dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut daemon = Bare::start(dir.path(), &[], Some(&path));
    let mut message = [0; 64];
    let length = manager.recv(&mut message).unwrap();
    assert_eq!(&message[..length], b"READY=1\n");
    assert_eq!(daemon.stop("-TERM").code(), Some(0));
    let length = manager.recv(&mut message).unwrap();
    assert_eq!(&message[..length], b"STOPPING=1\n");
}

#[test]
fn two_signals_in_row_are_one_and_what_is_in_flight_is_answered() {
    let mut daemon = Daemon::start(&NULL.replace("size=1g", "size=1g,delay=1500ms"), &["s"]);
    let mut client = RawNbd::connect(&daemon.dir().join("s"), "v").unwrap();
    client.send(&request(READ, 7, 0, 4096)).unwrap();
    sleep(Duration::from_millis(200));
    // timeout(1) signals the daemon and then its process group, so two signals arrive in a row.
    daemon.signal(libc::SIGTERM);
    sleep(Duration::from_millis(20));
    assert_eq!(daemon.terminate().code(), Some(0));
    assert_eq!(client.reply().unwrap(), (0, 7));
    assert!(
        daemon.stderr().ends_with("stopped: all requests are answered and all data is flushed\n")
    );
}

#[test]
fn drives_of_one_controller_are_checked_served_and_stopped() {
    let drive = |name: &str| {
        format!("[[drive]]\nname = \"{name}\"\nspec = \"ram@scu:size=4m\"\nqueue-depth = 2\n")
    };
    let config = format!(
        "[[controller]]\nname = \"scu\"\ntags = 3\nnode = 0\n{}{}\
         [[volume]]\nname = \"v\"\ndrives = [\"a\", \"b\"]\nchunk = \"4k\"\n\
         [[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n",
        drive("a"),
        drive("b")
    );
    let dir = tempdir();
    let line = "controller \"scu\": 3 tags for all its drives together, NUMA node 0; drives: a b\n";
    let output = serve(dir.path(), &config, &["--check"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(String::from_utf8(output.stdout).unwrap().starts_with(line));
    let mut daemon = Daemon::start(&config, &["s"]);
    let mut client = RawNbd::connect(&daemon.dir().join("s"), "v").unwrap();
    // Many parts of two drives each, for three tags.
    let data: Vec<u8> = (0..1u32 << 20).map(|n| (n >> 9) as u8 ^ n as u8).collect();
    client.write(4096, &data).unwrap();
    client.flush().unwrap();
    assert!(client.read(4096, 1 << 20).unwrap() == data);
    drop(client);
    assert!(daemon.stdout().contains(line), "{}", daemon.stdout());
    assert!(daemon.terminate().success());
}
