//! `millrace ctl why`, `stat --groups` and the metrics of groups: what is said of a limited client.
//!
//! Two clients read from one volume, one of them behind a limit. Every test runs the real binary.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;

use millrace_tests::raw_nbd::RawNbd;
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

/// Reads from an export, one after the other, until it is over.
fn read(daemon: &Daemon, export: &str, over: &AtomicBool) {
    let mut client = RawNbd::connect(&daemon.dir().join("s"), export).unwrap();
    let mut at = 0;
    while !over.load(Ordering::Relaxed) {
        client.read(at % 1024 * 65_536, 4096).unwrap();
        at += 7;
    }
}

/// While both clients read.
fn under_load(daemon: &Daemon, look: impl FnOnce()) {
    let over = AtomicBool::new(false);
    scope(|scope| {
        scope.spawn(|| read(daemon, "a", &over));
        scope.spawn(|| read(daemon, "b", &over));
        // However it ends, the clients do, too.
        let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(look));
        over.store(true, Ordering::Relaxed);
        looked.unwrap_or_else(|failed| std::panic::resume_unwind(failed));
    });
}

#[test]
fn a_limited_client_is_slow_since_its_limit_holds_it_and_the_other_one_is_at_the_drive() {
    let daemon = Daemon::start(CONFIG, &["s", "c"]);
    under_load(&daemon, || {
        let why = json(&daemon, "ctl why vol0 1 --json");
        let says = why["says"].as_str().unwrap();
        assert!(says.starts_with("vm7 is slow since its limit (iops=100) holds it: "), "{why}");
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
    under_load(&daemon, || {
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
fn a_volume_that_does_nothing_or_is_not_there_is_said_to() {
    let daemon = Daemon::start(CONFIG, &["s", "c"]);
    let text = succeed(&mut asked(&daemon, "ctl why vol0 0.1"));
    assert_eq!(text, "No I/O of vol0 completed in 0.1 s.\n");
    assert_eq!(succeed(&mut asked(&daemon, "stat --groups")), "no group did anything\n\n");
    let output = run(&mut asked(&daemon, "ctl why vol1"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("there is no volume \"vol1\"; there are vol0"), "{said}");
}
