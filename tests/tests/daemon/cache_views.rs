//! Reports on a volume with a cache: start messages of `serve`, `stat`, metrics, and refusals.

use std::fs;

use millrace_tests::cached_volume::{config, counters, stat};
use millrace_tests::metrics::{address, get};
use millrace_tests::raw_nbd::RawNbd;
use millrace_tests::serving::{backends, pattern, succeed};
use millrace_tests::{Daemon, millrace, run, tempdir};

const LAZY: &str = "size = \"16m\"\ndirty-max = \"4m\"\ndirty-age = \"1h\"";

/// A daemon with a cache over two files, after 1 MiB was written and read again.
fn served() -> Daemon {
    let dir = tempdir();
    let file = |n| format!("file:path={}/d{n},size=4m", dir.path().display());
    let text = config(&[file(0), file(1)], LAZY);
    let daemon = Daemon::start_in(dir, &text, &["s", "c"], &["--metrics", "0"]);
    let mut raw = RawNbd::connect(&daemon.dir().join("s"), "v").unwrap();
    raw.write(0, &pattern(1 << 20, 1)).unwrap();
    raw.read(0, 1 << 20).unwrap();
    raw.read(6 << 20, 4096).unwrap();
    daemon
}

fn printed(daemon: &Daemon, arguments: &str) -> String {
    let mut command = millrace();
    command.current_dir(daemon.dir()).args(arguments.split_whitespace());
    succeed(command.args(["--connect", "unix:c"]))
}

#[test]
fn serve_says_that_a_volume_has_a_cache_and_what_a_crash_loses() {
    let mut daemon = served();
    let line = "volume \"v\": write-back cache of 16 MiB, at most 4 MiB of it dirty; a crash loses \
                what no flush has covered\n";
    assert!(daemon.stdout().contains(line), "{}", daemon.stdout());
    // While a daemon runs, a check lists the changes that a reload would make.
    assert_eq!(daemon.terminate().code(), Some(0));
    let mut check = millrace();
    let checked = run(check.current_dir(daemon.dir()).args(["serve", "--check", "millrace.toml"]));
    let checked = String::from_utf8(checked.stdout).unwrap();
    assert!(checked.contains(line), "{checked}");
}

#[test]
fn stat_and_the_metrics_count_hits_and_dirty_pages() {
    let daemon = served();
    let counted = counters(&daemon);
    assert_eq!((&counted["volume"], &counted["mode"]), (&"v".into(), &"write-back".into()));
    assert_eq!(
        (&counted["size_bytes"], &counted["dirty_max_bytes"]),
        (&(16 << 20).into(), &(4 << 20).into())
    );
    assert_eq!(
        (&counted["page_bytes"], &counted["dirty_bytes"]),
        (&4096.into(), &(1 << 20).into())
    );
    assert_eq!((&counted["reads"]["hits"], &counted["reads"]["misses"]), (&256.into(), &1.into()));
    assert_eq!((&counted["writes"]["pages"], &counted["writes"]["back"]), (&256.into(), &0.into()));
    let text = printed(&daemon, "stat");
    let mut lines = text.lines().skip_while(|line| !line.starts_with("cache "));
    let heads: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    let row: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    let at = |head: &str| row[heads.iter().position(|it| *it == head).unwrap()];
    assert_eq!(["cache", "%hit", "dirty", "%max", "err"].map(at), ["v", "100", "1.00", "25", "0"]);
    let page = get(&address(&daemon), "/metrics");
    for line in [
        "millrace_cache_read_hit_pages_total{volume=\"v\",mode=\"write-back\"} 256\n",
        "millrace_cache_page_bytes{volume=\"v\",mode=\"write-back\"} 4096\n",
        "millrace_cache_dirty_bytes{volume=\"v\",mode=\"write-back\"} 1048576\n",
        "millrace_cache_throttled_total{volume=\"v\",mode=\"write-back\"} 0\n",
    ] {
        assert!(page.contains(line), "{line} in {page}");
    }
}

#[test]
fn a_volume_without_a_cache_has_no_word_of_one() {
    let daemon = Daemon::start(&config(&["ram:size=4m"], ""), &["s", "c"]);
    assert!(!printed(&daemon, "stat").contains("cache"));
    assert!(!daemon.stdout().contains("cache"), "{}", daemon.stdout());
    assert!(counters(&daemon).is_null());
}

/// Lengths of the memory regions that are registered with the daemon's rings, from /proc.
fn registered(daemon: &Daemon) -> Vec<u64> {
    let infos = fs::read_dir(format!("/proc/{}/fdinfo", daemon.pid())).unwrap();
    let texts = infos.filter_map(|info| fs::read_to_string(info.ok()?.path()).ok());
    let mut lens = Vec::new();
    for text in texts {
        let lines = text.lines().skip_while(|line| !line.starts_with("UserBufs:")).skip(1);
        // `    0: 0x7f0dbfe00000/2097152`, up to the next heading.
        let lines = lines.take_while(|line| line.starts_with(' '));
        lens.extend(lines.filter_map(|line| line.rsplit_once('/')?.1.trim().parse::<u64>().ok()));
    }
    lens
}

/// Returns true if the condition holds now or, where it is expected to, within 10 s.
fn soon(holds: impl Fn() -> bool, is_expected: bool) -> bool {
    let tries = if is_expected { 200 } else { 1 };
    (0..tries).any(|at| {
        std::thread::sleep(std::time::Duration::from_millis(if at == 0 { 0 } else { 50 }));
        holds()
    })
}

#[test]
fn cache_memory_is_registered_before_the_first_io_if_asked() {
    if backends() == ["epoll"] {
        return;
    }
    const ALL: u64 = 32 << 20;
    let pieces = |registers: bool| {
        let dir = tempdir();
        let spec = format!("file:path={}/d,size=64m", dir.path().display());
        let cache = format!("size = \"32m\"\nread-ahead = \"0\"\nregistered = {registers}");
        let daemon = Daemon::start_in(dir, &config(&[spec], &cache), &["s", "c"], &[]);
        let count = || registered(&daemon).iter().filter(|len| **len == ALL).count();
        let is_refused = || daemon.stderr().contains("RLIMIT_MEMLOCK");
        let before = soon(|| count() > 0 || is_refused(), registers);
        assert_eq!(before, registers, "by the time that threads have started");
        let mut raw = RawNbd::connect(&daemon.dir().join("s"), "v").unwrap();
        for place in 0..1024 {
            raw.read(place << 16, 4096).unwrap();
        }
        raw.write(0, &pattern(64 << 10, 1)).unwrap();
        raw.flush().unwrap();
        assert!(raw.read(0, 64 << 10).unwrap() == pattern(64 << 10, 1));
        let stored = fs::read(daemon.dir().join("d")).unwrap();
        assert!(stored[..64 << 10] == pattern(64 << 10, 1));
        let report = stat(&daemon);
        let mut rows = report["rows"].as_array().unwrap().iter();
        let drive = rows.find(|row| row["kind"] == "drive").unwrap();
        let ios = drive["driver"]["registered"].as_u64().unwrap();
        (count(), is_refused(), ios)
    };
    assert_eq!(pieces(false), (0, false, 0));
    let (rings, is_refused, ios) = pieces(true);
    assert!(rings > 0 || is_refused, "no ring has it, and nobody says why");
    assert!(ios > 1000 || is_refused, "{ios}");
}

#[test]
fn a_cache_that_may_not_lock_memory_says_so_and_serves() {
    let dir = tempdir();
    let spec = format!("file:path={}/d,size=64m", dir.path().display());
    fs::write(dir.path().join("d"), pattern(64 << 20, 2)).unwrap();
    // The daemon runs without the capability, and with as little lockable memory as one piece
    // needs.
    let wrapper = ["prlimit", "--memlock=2097152", "setpriv", "--bounding-set=-ipc_lock"];
    let wrapper = [&wrapper[..], &["--inh-caps=-ipc_lock", "--"]].concat();
    for (word, says) in [("true", true), ("\"auto\"", false)] {
        let cache = format!("size = \"32m\"\nregistered = {word}");
        let mut daemon = Daemon::start_under(&wrapper, &config(&[&spec], &cache), &["s", "c"]);
        let said = || daemon.stderr().contains("limit on locked memory");
        assert_eq!(soon(said, says), says, "before any I/O: {}", daemon.stderr());
        let mut raw = RawNbd::connect(&daemon.dir().join("s"), "v").unwrap();
        for place in 0..1024u64 {
            raw.read(place << 16, 4096).unwrap();
        }
        raw.write(0, &pattern(64 << 10, 1)).unwrap();
        raw.flush().unwrap();
        assert!(daemon.terminate().success(), "{}", daemon.stderr());
        let said = daemon.stderr();
        assert_eq!(said.contains("limit on locked memory"), says, "{said}");
    }
}

#[test]
fn the_schedulers_of_its_drives_can_be_set() {
    let daemon = served();
    let said = printed(&daemon, "ctl set v scheduler=deadline");
    assert!(said.contains("deadline"), "{said}");
    let mut raw = RawNbd::connect(&daemon.dir().join("s"), "v").unwrap();
    raw.flush().unwrap();
    assert_eq!(counters(&daemon)["writes"]["back"], 256);
}
