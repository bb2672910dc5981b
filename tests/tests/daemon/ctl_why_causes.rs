//! `millrace ctl why` names the cause, for each of the usual ones.
//!
//! Clients `a` and `b`, in groups of these names, use one volume; a test looks at the first
//! sentence, the first cause of `a`, or a line below the table. Every test runs the real binary.

use std::process::{Command, Stdio};
use std::time::Duration;

use millrace_tests::client_io::{ClientIo, beside_clients};
use millrace_tests::raw_nbd::{FLAG_FUA, FLUSH};
use millrace_tests::remote::Remote;
use millrace_tests::serving::succeed;
use millrace_tests::{Daemon, millrace, require_clients, tempdir};
use serde_json::Value;

/// 4 KiB take 2 ms, 1 MiB 65 ms.
const SLOW: &str = "model:units=8,read=2ms,write=2ms,latency=50us,size=4g,depth=128,queues=1";

/// Settings of a daemon's volume and of its groups.
#[derive(Clone, Copy)]
struct Setup<'a> {
    drives: &'a [&'a str],
    volume: &'a str,
    server: &'a str,
    a: &'a str,
    b: &'a str,
}

const PLAIN: Setup<'_> = Setup { drives: &[SLOW], volume: "", server: "", a: "", b: "" };

impl Setup<'_> {
    fn config(&self) -> String {
        let drive = |(number, spec): (usize, &&str)| {
            format!("[[drive]]\nname = \"d{number}\"\nspec = \"{spec}\"\n")
        };
        let drives: String = self.drives.iter().enumerate().map(drive).collect();
        let names: Vec<String> =
            (0..self.drives.len()).map(|number| format!("\"d{number}\"")).collect();
        let (names, volume, server) = (names.join(", "), self.volume, self.server);
        let group = |name: &str, keys: &str| {
            format!(
                "[[group]]\nname = \"{name}\"\n{keys}\n[[export]]\nvolume = \"v\"\n\
                 name = \"{name}\"\nnbd = \"unix:s\"\ngroup = \"{name}\"\n"
            )
        };
        let groups = [group("a", self.a), group("b", self.b)].concat();
        format!(
            "{drives}[[volume]]\nname = \"v\"\ndrives = [{names}]\n{volume}\n{groups}\
             [server]\ncontrol = \"unix:c\"\n{server}\n"
        )
    }

    fn serve(&self) -> Daemon {
        Daemon::start(&self.config(), &["s", "c"])
    }

    /// The report of `ctl why` after the clients have run for a while.
    fn why(&self, clients: &[(&str, ClientIo)]) -> Value {
        why_of(&self.serve(), clients, || ())
    }
}

fn why_of(daemon: &Daemon, clients: &[(&str, ClientIo)], first: impl FnOnce()) -> Value {
    beside_clients(&daemon.dir().join("s"), clients, || {
        std::thread::sleep(Duration::from_millis(800));
        first();
        why(daemon)
    })
}

fn why(daemon: &Daemon) -> Value {
    let mut command = millrace();
    command.current_dir(daemon.dir()).args(["ctl", "why", "v", "1.5", "--json"]);
    let text = succeed(command.args(["--connect", "unix:c"]));
    println!("{text}");
    serde_json::from_str(&text).unwrap()
}

/// The main cause reported for group `a`.
fn cause_of_a(why: &Value) -> &str {
    let groups = why["groups"].as_array().unwrap();
    let a = groups.iter().find(|group| group["group"] == "a").unwrap_or_else(|| panic!("{why}"));
    a["causes"][0]["reason"].as_str().unwrap()
}

fn says(why: &Value) -> &str {
    why["says"].as_str().unwrap()
}

/// The warning that begins so.
fn warning<'a>(why: &'a Value, begin: &str) -> &'a str {
    let warnings = why["warnings"].as_array();
    let mut all = warnings.into_iter().flatten().filter_map(Value::as_str);
    all.find(|line| line.starts_with(begin)).unwrap_or_else(|| panic!("no {begin} in {why}"))
}

#[test]
fn limits_are_named_with_their_keys_also_those_of_a_parent() {
    let a = "bandwidth = \"400k\"\nburst = \"100ms\"";
    let why = Setup { a, ..PLAIN }.why(&[("a", ClientIo::read(4096, 8))]);
    assert!(says(&why).starts_with("a is slow because its limit (bandwidth=400k) delays it"));
    let a = "parent = \"p\"\n[[group]]\nname = \"p\"\niops = 100\n";
    let why = Setup { a, ..PLAIN }.why(&[("a", ClientIo::read(4096, 8))]);
    assert!(says(&why).starts_with("a is slow because its limit (p: iops=100) delays it"));
    // A burst that is used up.
    let a = "iops = 100\nburst = \"500ms\"";
    let why = Setup { a, ..PLAIN }.why(&[("a", ClientIo::read(4096, 8))]);
    assert_eq!(cause_of_a(&why), "limit");
}

#[test]
fn weights_priorities_targets_and_drives_bound_are_told_apart() {
    let (small, deep) = (ClientIo::read(4096, 1), ClientIo::read(4096, 64));
    let fair = "scheduler = \"fair\"";
    let weights = Setup { volume: fair, a: "weight = 10", b: "weight = 1000", ..PLAIN };
    assert_eq!(cause_of_a(&weights.why(&[("a", deep), ("b", deep)])), "weight");
    let idle = Setup { volume: fair, a: "priority = \"idle\"", ..PLAIN };
    assert_eq!(cause_of_a(&idle.why(&[("a", deep), ("b", deep)])), "priority");
    let alone = Setup { volume: fair, ..PLAIN };
    assert_eq!(cause_of_a(&alone.why(&[("a", ClientIo::read(4096, 512))])), "depth");
    let b = "latency-target = \"p99 5ms\"";
    let target = Setup { volume: "scheduler = \"latency\"", b, ..PLAIN };
    let why = target.why(&[("a", ClientIo::write(64 << 10, 64)), ("b", small)]);
    assert_eq!(cause_of_a(&why), "latency-target");
    assert!(
        says(&why).contains("to keep the latency targets of other groups (b: p99 5ms)"),
        "{why}"
    );
}

#[test]
fn tags_flushes_and_other_clients_at_the_drive_are_named() {
    let shallow = "model:units=8,read=2ms,write=2ms,latency=50us,size=4g,depth=2,queues=1";
    let few = Setup { drives: &[shallow], ..PLAIN };
    for volume in ["", "scheduler = \"deadline\""] {
        let why = Setup { volume, ..few }.why(&[("a", ClientIo::read(4096, 32))]);
        assert_eq!(cause_of_a(&why), "no-tag", "{volume}");
    }
    // A drive that is merely slow.
    assert_eq!(cause_of_a(&PLAIN.why(&[("a", ClientIo::read(4096, 4))])), "drive");
    let flush = ClientIo { command: FLUSH, len_bytes: 0, align: 4096, ..ClientIo::read(0, 8) };
    let cached = "fault:drive=(ram:size=1g),volatile=true,fua=false,latency=3ms";
    let why = Setup { drives: &[cached], ..PLAIN }.why(&[("a", flush)]);
    assert!(says(&why).starts_with("a spends its time on flushes"), "{why}");
    let fua = ClientIo { flags: FLAG_FUA, ..ClientIo::write(4096, 8) };
    let why = Setup { drives: &[cached], ..PLAIN }.why(&[("a", fua)]);
    warning(&why, "writes with FUA cost ");
    let why = PLAIN.why(&[("a", ClientIo::read(4096, 1)), ("b", ClientIo::read(1 << 20, 8))]);
    assert!(says(&why).contains(" % of the work was for b."), "{why}");
}

#[test]
fn a_client_that_pauses_is_said_to() {
    let pauses = ClientIo { pause: Duration::from_millis(20), ..ClientIo::read(4096, 1) };
    let why = PLAIN.why(&[("a", pauses)]);
    assert!(says(&why).ends_with(" % of the time: its client pauses, or sends slowly."), "{why}");
}

#[test]
fn a_member_that_is_slow_or_stuck_is_named() {
    let slower = "model:units=8,read=20ms,write=20ms,latency=50us,size=4g,depth=128,queues=1";
    let volume = "layout = \"stripe\"\nchunk = \"64k\"";
    let members = Setup { drives: &[SLOW, slower, SLOW], volume, ..PLAIN };
    let why = members.why(&[("a", ClientIo::read(4096, 4))]);
    assert!(warning(&why, "drive d1: an I/O takes ").contains(" ms on average, but "), "{why}");
    let stuck = Setup { drives: &[SLOW, "fault:drive=(ram:size=4g),stuck=true"], volume, ..PLAIN };
    let why = stuck.why(&[("a", ClientIo::read(4096, 4))]);
    assert!(warning(&why, "drive d1: completed nothing in 1.").contains(" s, with "), "{why}");
}

#[test]
fn a_server_that_is_stuck_or_gone_is_named() {
    require_clients!("nbdkit");
    let dir = tempdir();
    let mut server = Remote::nbdkit(&dir.path().join("n"), &["memory", "64M"]);
    let setup = Setup { drives: &[&server.spec(",reconnect=30s")], ..PLAIN };
    let daemon = setup.serve();
    let why = why_of(&daemon, &[("a", ClientIo::read(4096, 2))], || server.signal(libc::SIGSTOP));
    assert!(
        warning(&why, "drive d0: completed nothing in 1.").ends_with("2 I/Os in flight"),
        "{why}"
    );
    server.signal(libc::SIGCONT);
    let why = why_of(&daemon, &[("a", ClientIo::read(4096, 2))], || server.kill());
    println!("{}", warning(&why, "drive d0: no connection"));
    server.start_again();
}

#[test]
fn full_cache_and_useless_cache_are_named() {
    let volume = "[volume.cache]\nsize = \"4m\"\ndirty-max = \"1m\"";
    let cached = Setup { volume, ..PLAIN };
    let why = cached.why(&[("a", ClientIo::write(4096, 64))]);
    assert!(warning(&why, "cache of v: ").contains(" writes waited for room: "), "{why}");
    let said = "a waits for room in the volume's cache: its I/Os take ";
    assert!(says(&why).starts_with(said), "{why}");
    let why = cached.why(&[("a", ClientIo::read(64 << 10, 4))]);
    warning(&why, "cache of v: 100 % of the pages that clients read were not in memory");
}

#[test]
fn requests_within_blocks_and_waiting_for_memory_are_named() {
    let unaligned = ClientIo { align: 4096, skew: 512, ..ClientIo::write(1024, 4) };
    let why = Setup { drives: &["fault:drive=(ram:size=1g,block=4k),latency=1ms"], ..PLAIN }
        .why(&[("a", unaligned)]);
    warning(&why, "NBD clients send ");
    let far = "fault:drive=(ram:size=1g),latency=100ms";
    let many = ClientIo::write(256 << 10, 512);
    let why = Setup { drives: &[far], server: "memory-max = \"64m\"", ..PLAIN }
        .why(&[("a", many), ("b", many)]);
    warning(&why, "NBD requests waited for payload memory ");
}

#[test]
fn a_daemon_without_processor_time_is_said_to_be() {
    // The daemon's only processor is also used by a process of higher priority.
    let config = Setup { drives: &["ram:size=1g"], ..PLAIN }.config();
    let daemon =
        Daemon::start_under(&["taskset", "-c", "0", "nice", "-n", "15"], &config, &["s", "c"]);
    let spin = "end=$(($(date +%s) + 20)); while [ $(date +%s) -lt $end ]; do \
                i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; done";
    let mut other = Command::new("taskset")
        .args(["-c", "0", "sh", "-c", spin])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let why = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        why_of(&daemon, &[("a", ClientIo::read(4096, 32)), ("b", ClientIo::read(4096, 32))], || ())
    }));
    other.kill().unwrap();
    other.wait().unwrap();
    warning(&why.unwrap(), "processors: in ");
}
