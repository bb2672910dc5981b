//! `millrace locks` and its control verbs on a running daemon, and `bench --locks`.
//!
//! Two clients read and write all the while, each on an I/O thread of its own, through one hardware
//! queue. Lock statistics are taken only between start and stop. A client that asks in the wrong
//! order, or dies, must not affect others. Every test runs the real binary.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use millrace_tests::control::Control;
use millrace_tests::raw_nbd::RawNbd;
use millrace_tests::serving::{pattern, succeed};
use millrace_tests::{Daemon, millrace, poll_within, run};
use serde_json::{Value, json};

const CONFIG: &str = "[[drive]]\nname = \"d0\"\nspec = \"ram:size=16m\"\n\
                      hardware-queues = \"one\"\nsoftware-queues = \"one\"\n\
                      [[volume]]\nname = \"v\"\ndrives = [\"d0\"]\n\
                      [[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n\
                      [server]\ncontrol = \"unix:c\"\nthreads = 2\n";

/// Does `body` while two clients write and read.
fn loaded<T>(daemon: &Daemon, body: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    let client = |number: u64| {
        let (mut raw, place) =
            (RawNbd::connect(&daemon.dir().join("s"), "v").unwrap(), number << 20);
        let data = pattern(4096, number);
        while !stop.load(Ordering::Relaxed) {
            raw.write(place, &data).unwrap();
            assert_eq!(raw.read(place, 4096).unwrap(), data);
        }
    };
    scope(|scope| {
        (1..=2).for_each(|number| drop(scope.spawn(move || client(number))));
        let value = body();
        stop.store(true, Ordering::Relaxed);
        value
    })
}

/// The sum row of a lock. Checks that it is the sum of the rows of its places.
fn sum(locks: &Value, name: &str) -> Option<Value> {
    let rows: Vec<&Value> =
        locks.as_array().unwrap().iter().filter(|row| row["name"] == name).collect();
    let (sum, places) = rows.split_first()?;
    let taken = |row: &Value| row["acquisitions"].as_u64().unwrap();
    assert!(sum["site"].is_null() && places.iter().all(|row| row["site"].is_string()), "{rows:?}");
    assert_eq!(taken(sum), places.iter().map(|row| taken(row)).sum::<u64>(), "{rows:?}");
    Some((*sum).clone())
}

fn locks(daemon: &Daemon, arguments: &str) -> Command {
    let mut command = millrace();
    command.current_dir(daemon.dir()).args(["locks", "--connect", "unix:c"]);
    command.args(arguments.split_whitespace());
    command
}

#[test]
fn a_running_daemon_tells_of_its_locks_while_somebody_asks() {
    let daemon = Daemon::start(CONFIG, &["s", "c"]);
    let mut control = Control::connect(&daemon);
    let taken = |answer: &Value| {
        let sum = sum(&answer["locks"], "serve");
        sum.map_or(0, |sum| sum["acquisitions"].as_u64().unwrap())
    };
    loaded(&daemon, || {
        assert_eq!(control.ok("locks-start"), json!({}));
        let grows = |control: &mut Control, from: u64| {
            let more = || Some(control.ok("locks-status")).filter(|answer| taken(answer) > from);
            poll_within(Duration::from_secs(10), more).expect("I/O goes on")
        };
        let first = grows(&mut control, 100);
        grows(&mut control, taken(&first));
        let last = control.ok("locks-stop");
        assert!(taken(&last) > taken(&first));
        let serve = sum(&last["locks"], "serve").unwrap();
        let held = serve["hold_ns"].as_u64().unwrap();
        assert!(held > 0 && held <= last["elapsed_ns"].as_u64().unwrap(), "{last}");
        assert!(serve["hold_ns_max"].as_u64().unwrap() <= held, "{last}");
        assert!(last["cpus"].as_u64().unwrap() > 0);
        // Locks taken while no measurement runs must not be in the next result.
        sleep(Duration::from_millis(300));
    });
    control.ok("locks-start");
    let again = control.ok("locks-stop");
    assert!(taken(&again) < 100, "{again}");
}

#[test]
fn the_table_and_the_json_of_the_verb_are_lockmeters_columns() {
    let daemon = Daemon::start(CONFIG, &["s", "c"]);
    let (text, line) = loaded(&daemon, || {
        let text = succeed(&mut locks(&daemon, "--for 300ms"));
        (text, succeed(&mut locks(&daemon, "--for 300ms --json")))
    });
    for word in ["taken at", "contended", "wait us", "hold us", "serve", "disk/dispatch.rs:"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let report: Value = serde_json::from_str(&line).unwrap();
    assert!(report["seconds"].as_f64().unwrap() >= 0.3, "{line}");
    let serve = sum(&report["locks"], "serve").unwrap();
    for key in ["acquisitions", "hold_ns_mean", "hold_ns_max"] {
        assert!(serve[key].as_u64().unwrap() > 0, "{key}: {serve}");
    }
    for key in ["rejected", "wait_ns_mean", "wait_ns_max"] {
        assert!(serve[key].is_u64(), "{key}: {serve}");
    }
    for key in ["contended_share", "held_share", "spin_share"] {
        assert!((0.0..=1.0).contains(&serve[key].as_f64().unwrap()), "{key}: {serve}");
    }
}

#[test]
fn who_asks_in_the_wrong_order_or_beside_another_is_refused() {
    let daemon = Daemon::start(CONFIG, &["s", "c"]);
    let (mut one, mut other) = (Control::connect(&daemon), Control::connect(&daemon));
    assert_eq!([one.refused("locks-status"), one.refused("locks-stop")], ["none", "none"]);
    one.ok("locks-start");
    assert_eq!(other.refused("locks-start"), "busy");
    let output = run(&mut locks(&daemon, "--for 1s"));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("another client is taking lock statistics"), "{errors}");
    // A measurement belongs to no particular connection: any of them may stop it.
    other.ok("locks-stop");
    assert_eq!(one.refused("locks-stop"), "none");
    assert!(succeed(&mut locks(&daemon, "--for 10ms")).contains(" in "));
    let report = succeed(&mut locks(&daemon, "--for 10ms --json"));
    let report: Value = serde_json::from_str(&report).unwrap();
    assert!((0.01..5.0).contains(&report["seconds"].as_f64().unwrap()), "{report}");
}

#[test]
fn stopped_client_prints_and_killed_one_leaves_nothing_behind() {
    let daemon = Daemon::start(CONFIG, &["s", "c"]);
    let mut control = Control::connect(&daemon);
    let begin = |control: &mut Control| {
        let mut command = locks(&daemon, "--for 10m");
        let child = command.stdout(Stdio::piped()).spawn().unwrap();
        let busy = || (control.reply("locks-status").get("ok").is_some()).then_some(());
        poll_within(Duration::from_secs(10), busy).expect("it starts");
        child
    };
    let child = begin(&mut control);
    run(Command::new("kill").args(["-INT", &child.id().to_string()]));
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("lock"), "{output:?}");
    let mut child = begin(&mut control);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(control.refused("locks-start"), "busy");
    sleep(Duration::from_millis(10_200));
    control.ok("locks-start");
    control.ok("locks-stop");
}
