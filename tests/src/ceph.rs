//! A Ceph cluster of one monitor and one OSD, for as long as a test lasts: loopback only, no keys.
//!
//! Owns both processes, which are killed by pid and reaped when it drops, also when its test
//! panics, and the directory with all their files. The OSD keeps its data in a sparse file
//! (BlueStore), so that it may be killed and started again; caches and logs are small. No manager
//! runs: placement groups and images need none. Called by the tests of Ceph drives.

use std::fmt::Write;
use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::process::{create, run_within};

/// Longest that any command of the cluster may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Number of ports that the OSD may choose from; it takes seven.
const PORTS: u16 = 400;

const SETTINGS: &str = "\
auth cluster required = none
auth service required = none
auth client required = none
public addr = 127.0.0.1
cluster addr = 127.0.0.1
osd pool default size = 1
osd pool default min size = 1
mon allow pool size one = true
mon data avail crit = 1
mon osd down out interval = 600
osd crush chooseleaf type = 0
osd heartbeat interval = 1
osd heartbeat grace = 6
osd max markdown count = 1000
osd client watch timeout = 5
osd min pg log entries = 10
osd max pg log entries = 100
osd class load list = *
osd class default list = *
osd objectstore = bluestore
osd memory target = 939524096
bluestore block size = 2147483648
bluestore block create = true
bluestore fsck on mkfs = false
bluestore cache autotune = false
bluestore cache size = 67108864
";

/// A cluster with a pool called `rbd`.
pub struct Cluster {
    monitor: Child,
    osd: Child,
    dir: TempDir,
}

/// The programs that a cluster and its user need.
pub const PROGRAMS: [&str; 5] = ["ceph-mon", "ceph-osd", "monmaptool", "ceph", "rbd"];

fn stop(child: &mut Child) {
    // A child that is not reaped keeps its pid, so this cannot meet another process.
    let _ = child.kill();
    let _ = child.wait();
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for log in ["monitor", "osd"] {
                let said = fs::read_to_string(self.dir.path().join(log)).unwrap_or_default();
                eprintln!("--- {log}\n{said}");
            }
        }
        stop(&mut self.osd);
        stop(&mut self.monitor);
    }
}

/// A directory with a configuration and a map of one monitor at a free port.
fn prepare() -> TempDir {
    let dir = crate::tempdir();
    let place = dir.path().display();
    let port = free_port();
    let fsid = uuid();
    let first = 20_000 + port % 20_000;
    let mut text = format!("[global]\nfsid = {fsid}\nmon host = [v2:127.0.0.1:{port}]\n{SETTINGS}");
    let _ = writeln!(text, "ms bind port min = {first}\nms bind port max = {}", first + PORTS);
    for (key, file) in [
        ("run dir", ""),
        ("crash dir", "/crash"),
        ("mon data", "/mon"),
        ("osd data", "/data"),
        ("keyring", "/keyring"),
        ("log file", "/$name.log"),
        ("pid file", "/$name.pid"),
        ("admin socket", "/$name.$pid.asok"),
    ] {
        let _ = writeln!(text, "{key} = {place}{file}");
    }
    fs::write(dir.path().join("ceph.conf"), text).expect("the directory is writable");
    fs::create_dir(dir.path().join("mon")).expect("the directory is writable");
    fs::create_dir(dir.path().join("data")).expect("the directory is writable");
    let address = format!("[v2:127.0.0.1:{port}]");
    let mut map = Command::new("monmaptool");
    map.args(["--create", "--addv", "a", &address, "--fsid", &fsid]).arg(dir.path().join("map"));
    succeed(&mut map);
    dir
}

/// A port on which nothing listens at the moment.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    listener.local_addr().expect("a listener has an address").port()
}

fn uuid() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/uuid").expect("Linux makes UUIDs");
    text.trim().to_owned()
}

fn succeed(command: &mut Command) -> String {
    let output = run_within(command, TIMEOUT);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{stderr}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A program of the cluster in its directory.
fn program(dir: &TempDir, name: &str) -> Command {
    let mut command = Command::new(name);
    command.current_dir(dir.path()).arg("-c").arg(dir.path().join("ceph.conf"));
    command
}

/// Starts a daemon whose output goes to a file.
fn daemon(dir: &TempDir, command: &mut Command, log: &str) -> Child {
    let log = create(&dir.path().join(log));
    let again = log.try_clone().expect("a file can be had twice");
    command.arg("-f").stdin(Stdio::null()).stdout(again).stderr(log);
    command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"))
}

fn start_osd(dir: &TempDir) -> Child {
    daemon(dir, program(dir, "ceph-osd").args(["-i", "0"]), "osd")
}

impl Cluster {
    /// Starts a cluster and makes its pool, in about ten seconds.
    ///
    /// # Panics
    /// If a program is missing, or does not do within a minute what it must.
    #[must_use]
    pub fn start() -> Cluster {
        let dir = prepare();
        let map = dir.path().join("map");
        let mut make = program(&dir, "ceph-mon");
        succeed(make.args(["-i", "a", "--mkfs", "--monmap"]).arg(map));
        let monitor = daemon(&dir, program(&dir, "ceph-mon").args(["-i", "a"]), "monitor");
        // Placeholder for the OSD until it runs, so that the monitor is stopped if anything fails.
        let nobody = Command::new("true").spawn().expect("every system has it");
        let mut cluster = Cluster { monitor, osd: nobody, dir };
        let id = uuid();
        cluster.ceph(&["osd", "new", &id]);
        let mut make = program(&cluster.dir, "ceph-osd");
        succeed(make.args(["-i", "0", "--mkfs", "--osd-uuid", &id]));
        cluster.ceph(&["osd", "crush", "add", "osd.0", "1.0", "root=default", "host=h"]);
        cluster.start_osd();
        cluster.ceph(&["osd", "pool", "create", "rbd", "8", "8"]);
        cluster.rbd(&["pool", "init", "rbd"]);
        cluster
    }

    /// Runs `ceph`, which must succeed.
    ///
    /// # Panics
    /// If it fails or takes too long.
    pub fn ceph(&self, arguments: &[&str]) -> String {
        succeed(program(&self.dir, "ceph").args(arguments))
    }

    /// The program `rbd` with these arguments.
    #[must_use]
    pub fn rbd_command(&self, arguments: &[&str]) -> Command {
        let mut command = program(&self.dir, "rbd");
        command.args(arguments);
        command
    }

    /// Runs `rbd`, which must succeed.
    ///
    /// # Panics
    /// If it fails or takes too long.
    pub fn rbd(&self, arguments: &[&str]) -> String {
        succeed(&mut self.rbd_command(arguments))
    }

    /// The cluster's configuration, for its clients.
    #[must_use]
    pub fn conf(&self) -> PathBuf {
        self.dir.path().join("ceph.conf")
    }

    /// A file in a directory that goes with the cluster.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Kills the OSD, as a crash would: the cluster answers no I/O any more.
    pub fn kill_osd(&mut self) {
        stop(&mut self.osd);
    }

    /// Starts the OSD, again or for the first time; its data are there.
    pub fn start_osd(&mut self) {
        stop(&mut self.osd);
        self.osd = start_osd(&self.dir);
    }
}
