//! Reports on a limited client: `millrace ctl why`, `stat --groups` and the metrics of groups.
//!
//! Two clients read from one volume, one of them behind a limit. Every test runs the real binary.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;

use millrace_tests::raw_nbd::{RawNbd, request};
use millrace_tests::readers::{beside_readers, read_until};
use millrace_tests::serving::succeed;
use millrace_tests::{Daemon, metrics, millrace, run};
use serde_json::Value;

const CONFIG: &str = "[[group]]\nname = \"vm7\"\niops = 100\nburst = \"1ms\"\n\
                      [[group]]\nname = \"gold\"\nweight = 300\n\
                      [[drive]]\nname = \"d0\"\nspec = \"model:preset=850evo\"\n\
                      [[volume]]\nname = \"vol0\"\ndrives = [\"d0\"]\n\
                      [[export]]\nname = \"a\"\nvolume = \"vol0\"\nnbd = \"unix:s\"\ngroup = \"vm7\"\n\
                      [[export]]\nname = \"b\"\nvolume = \"vol0\"\nnbd = \"unix:s\"\ngroup = \"gold\"\n\
                      [server]\ncontrol = \"unix:c\"\nmetrics = \"127.0.0.1:0\"\n";

fn asked(daemon: &Daemon, arguments: &str) -> Command {
    let mut command = millrace();
    command.current_dir(daemon.dir()).args(arguments.split_whitespace());
    command.args(["--connect", "unix:c"]);
    command
}

fn json(daemon: &Daemon, arguments: &str) -> Value {
    serde_json::from_str(&succeed(&mut asked(daemon, arguments))).unwrap()
}

/// The element of a list with this value under a key.
fn named<'a>(list: &'a Value, key: &str, name: &str) -> &'a Value {
    let found = list.as_array().unwrap().iter().find(|one| one[key] == name);
    found.unwrap_or_else(|| panic!("no {name} in {list}"))
}

#[test]
fn limited_client_waits_for_its_limit_and_the_other_for_a_drive() {
    let daemon = Daemon::start(CONFIG, &["s", "c"]);
    beside_readers(&daemon.dir().join("s"), &["a", "b"], || {
        let why = json(&daemon, "ctl why vol0 1 --json");
        let says = why["says"].as_str().unwrap();
        assert!(says.starts_with("vm7 is slow because its limit (iops=100) delays it: "), "{why}");
        let first = &why["groups"][0];
        assert_eq!((&first["group"], &first["limits"][0]), (&"vm7".into(), &"iops=100".into()));
        assert_eq!(first["causes"][0]["reason"], "limit");
        assert!(first["causes"][0]["percent"].as_f64().unwrap() > 80.0, "{why}");
        // Nothing but its own limit holds it: 10 ms.
        assert!(first["mean_ms"].as_f64().unwrap() > 8.0, "{why}");
        let gold = named(&why["groups"], "group", "gold");
        assert_eq!(gold["causes"][0]["reason"], "drive", "{why}");
        let text = succeed(&mut asked(&daemon, "ctl why vol0 0.5"));
        let row = text.lines().find(|line| line.starts_with("vm7  ")).unwrap();
        assert!(row.contains(" % limit (iops=100)"), "{text}");
    });
}

#[test]
fn stat_and_metrics_say_what_groups_got_and_what_held_them() {
    let daemon = Daemon::start(CONFIG, &["s", "c"]);
    beside_readers(&daemon.dir().join("s"), &["a", "b"], || {
        // Since the daemon began, and after that of a second.
        let text = succeed(&mut asked(&daemon, "stat --groups --json 1 2"));
        let rows: Value = serde_json::from_str(text.lines().nth(1).unwrap()).unwrap();
        let [vm7, gold] = ["vm7", "gold"].map(|name| named(&rows["groups"], "name", name));
        let number = |row: &Value, key: &str| row[key].as_f64().unwrap();
        assert!((60.0..=110.0).contains(&number(vm7, "reads")), "{rows}");
        assert!(number(vm7, "throttled_percent") > 80.0, "{rows}");
        assert!(vm7["held_ms"]["limit"].as_f64().unwrap() > 500.0, "{rows}");
        assert_eq!((number(vm7, "wanted_percent"), number(gold, "wanted_percent")), (25.0, 75.0));
        let got = number(vm7, "got_percent") + number(gold, "got_percent");
        assert!((99.9..100.1).contains(&got) && number(gold, "p99_ms") > 0.0, "{rows}");
        let text = succeed(&mut asked(&daemon, "stat --groups -x"));
        let row = text.lines().find(|line| line.starts_with("vm7")).unwrap();
        assert!(row.ends_with("  limit"), "{text}");
    });
    let page = metrics::get(&metrics::address(&daemon), "/metrics");
    let held = "millrace_group_held_seconds_total{group=\"vm7\",volume=\"vol0\",reason=\"limit\"} ";
    let value = page.lines().find_map(|line| line.strip_prefix(held)).unwrap();
    assert!(value.parse::<f64>().unwrap() > 0.5, "{value}");
    assert!(page.contains("millrace_group_weight{group=\"gold\"} 300\n"), "{page}");
}

#[test]
fn unread_bytes_of_a_socket_wait_for_back_pressure() {
    let config = CONFIG.replace("iops = 100", "iops = 1000");
    let daemon = Daemon::start(&config, &["s", "c"]);
    // More I/O than the layer admits of a group whose limit is a thousand a second.
    let (count, mut client) = (3000, RawNbd::connect(&daemon.dir().join("s"), "a").unwrap());
    let requests: Vec<u8> =
        (0..count).flat_map(|at| request(0, at, at % 64 * 4096, 4096)).collect();
    client.send(&requests).unwrap();
    let answers = scope(|scope| {
        let answers = scope.spawn(move || {
            let mut data = [0; 4096];
            (0..count).for_each(|_| {
                assert_eq!(client.reply().unwrap().0, 0);
                client.receive(&mut data).unwrap();
            });
        });
        let why = json(&daemon, "ctl why vol0 1.5 --json");
        let vm7 = named(&why["groups"], "group", "vm7");
        let causes = &vm7["causes"];
        let percent = |reason| named(causes, "reason", reason)["percent"].as_f64().unwrap();
        assert!(percent("back-pressure") > 30.0 && percent("limit") > 10.0, "{why}");
        answers.join()
    });
    answers.unwrap();
    // A client of depth 1 is never held by back pressure, whatever its limit.
    let before = held(&daemon, "back-pressure");
    let mut client = RawNbd::connect(&daemon.dir().join("s"), "a").unwrap();
    (0..50).for_each(|at| drop(client.read(at * 4096, 4096).unwrap()));
    let more = held(&daemon, "back-pressure").abs_diff(before);
    assert!(before > 5_000_000_000 && more < 1_000_000, "{before} and {more}");
}

/// Time for which I/Os of vm7 were held for this reason so far, in nanoseconds.
fn held(daemon: &Daemon, reason: &str) -> u64 {
    let text = succeed(&mut asked(daemon, "stat --groups --json -x"));
    let rows: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    let row = named(&rows["groups"], "name", "vm7");
    let ms = row["held_ms"][reason].as_f64().unwrap_or(0.0) * row["seconds"].as_f64().unwrap();
    (ms * 1e6) as u64
}

#[test]
fn a_volume_that_does_nothing_or_is_not_there_is_said_to() {
    let daemon = Daemon::start(CONFIG, &["s", "c"]);
    let text = succeed(&mut asked(&daemon, "ctl why vol0 0.1"));
    // A busy machine takes longer, and is named as well.
    assert!(text.starts_with("No I/O of vol0 completed in 0."), "{text}");
    assert_eq!(succeed(&mut asked(&daemon, "stat --groups")), "no group did anything\n\n");
    let output = run(&mut asked(&daemon, "ctl why vol1"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("there is no volume \"vol1\"; known volumes: vol0"), "{said}");
}

/// A row of the table of `stat --groups -x 1`, of the second after the first.
fn stat_row(daemon: &Daemon, group: &str) -> Vec<String> {
    let text = succeed(&mut asked(daemon, "stat --groups -x 1 2"));
    let row = text.lines().rfind(|line| line.starts_with(&format!("{group} ")));
    let last = row.unwrap_or_else(|| panic!("no {group} in {text}"));
    last.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn a_group_of_which_nothing_completes_is_the_one_that_is_slow() {
    let config = CONFIG.replace("iops = 100\nburst = \"1ms\"", "weight = 100");
    let daemon = Daemon::start(&config, &["s", "c"]);
    succeed(&mut asked(&daemon, "ctl set group vm7 bandwidth=8k"));
    let over = AtomicBool::new(false);
    scope(|scope| {
        let mut client = RawNbd::connect(&daemon.dir().join("s"), "a").unwrap();
        // The group's saved-up burst lets the first write pass; the second one waits for 8 s.
        let pays = request(0, 1, 0, 65_536);
        client.send(&[pays.clone(), pays].concat()).unwrap();
        scope.spawn(|| read_until(&over, &daemon.dir().join("s"), "b"));
        let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            // The first write is done.
            client.reply().unwrap();
            let why = json(&daemon, "ctl why vol0 1 --json");
            let says = why["says"].as_str().unwrap();
            let limit = "vm7 is slow because its limit (bandwidth=8k) delays it: nothing \
                         completed, \
                         1 I/O has waited for ";
            assert!(says.starts_with(limit), "{why}");
            let first = &why["groups"][0];
            assert_eq!((&first["group"], &first["waiting"]), (&"vm7".into(), &1.into()), "{why}");
            assert_eq!(first["causes"][0]["reason"], "limit", "{why}");
            let text = succeed(&mut asked(&daemon, "ctl why vol0 0.5"));
            let row = text.lines().find(|line| line.starts_with("vm7  ")).unwrap();
            assert!(row.contains("  so far ") && row.contains(" % limit (band"), "{text}");
            let row = stat_row(&daemon, "vm7");
            assert_eq!(row.last().map(String::as_str), Some("limit"), "{row:?}");
            let rows = succeed(&mut asked(&daemon, "stat --groups --json 1 2"));
            let rows: Value = serde_json::from_str(rows.lines().nth(1).unwrap()).unwrap();
            // A single I/O was held all the time.
            let held = named(&rows["groups"], "name", "vm7")["held_ms"]["limit"].as_f64().unwrap();
            assert!((900.0..1100.0).contains(&held), "{rows}");
        }));
        over.store(true, Ordering::Relaxed);
        looked.unwrap_or_else(|failed| std::panic::resume_unwind(failed));
    });
}

#[test]
fn what_waits_for_a_higher_priority_is_said_to_while_it_waits() {
    let config = CONFIG
        .replace("iops = 100\nburst = \"1ms\"", "priority = \"best-effort\"")
        .replace("weight = 300", "priority = \"realtime\"")
        .replace("model:preset=850evo", "model:preset=hdd7200")
        .replace("drives = [\"d0\"]\n", "drives = [\"d0\"]\nscheduler = \"deadline\"\n");
    let daemon = Daemon::start(&config, &["s", "c"]);
    let socket = daemon.dir().join("s");
    let over = AtomicBool::new(false);
    scope(|scope| {
        // The depth is more than the drive's.
        for number in 0..64 {
            let (socket, over) = (&socket, &over);
            scope.spawn(move || {
                let mut client = RawNbd::connect(socket, "b").unwrap();
                let mut at: u64 = number * 7919;
                while !over.load(Ordering::Relaxed) {
                    client.read(at * 104_729 % 16_000 * 65_536, 4096).unwrap();
                    at += 1;
                }
            });
        }
        std::thread::sleep(std::time::Duration::from_secs(1));
        let mut client = RawNbd::connect(&socket, "a").unwrap();
        client.send(&request(0, 1, 0, 4096)).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        let why = json(&daemon, "ctl why vol0 1 --json");
        let text = succeed(&mut asked(&daemon, "ctl why vol0 0.5"));
        over.store(true, Ordering::Relaxed);
        let first = &why["groups"][0];
        assert_eq!((&first["group"], &first["waiting"]), (&"vm7".into(), &1.into()), "{why}");
        assert_eq!(first["causes"][0]["reason"], "priority", "{why}");
        let says =
            "vm7 waits because I/Os of higher priority are served first: nothing completed, 1 I/O ";
        assert!(text.starts_with(says), "{text}");
        client.reply().unwrap();
    });
}
