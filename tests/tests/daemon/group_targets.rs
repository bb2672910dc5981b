//! Warnings about latency targets that no drive can keep: from a file, `ctl set` and a running
//! daemon.
//!
//! The drive is a modelled one with known service times. Every test runs the real binary.

use std::process::Command;
use std::time::Duration;

use millrace_tests::raw_nbd::RawNbd;
use millrace_tests::readers::beside_readers;
use millrace_tests::serving::succeed;
use millrace_tests::{Daemon, millrace, poll_within, run};
use serde_json::Value;

/// A client in a group with these keys, and a client in a group without a target, on one drive.
fn config(keys: &str, drive: &str) -> String {
    format!(
        "[[group]]\nname = \"gold\"\n{keys}\n[[group]]\nname = \"bulk\"\n\
         [[drive]]\nname = \"d0\"\nspec = \"{drive}\"\nscheduler = \"latency\"\n\
         [[volume]]\nname = \"vol0\"\ndrives = [\"d0\"]\n\
         [[export]]\nname = \"a\"\nvolume = \"vol0\"\nnbd = \"unix:s\"\ngroup = \"gold\"\n\
         [[export]]\nname = \"b\"\nvolume = \"vol0\"\nnbd = \"unix:s\"\ngroup = \"bulk\"\n\
         [server]\ncontrol = \"unix:c\"\n"
    )
}

fn ctl(daemon: &Daemon, arguments: &[&str]) -> Command {
    let mut command = millrace();
    command.current_dir(daemon.dir()).arg("ctl").args(arguments).args(["--connect", "unix:c"]);
    command
}

/// The command's standard error; its status must be 0.
fn warned(daemon: &Daemon, arguments: &[&str]) -> String {
    let output = run(&mut ctl(daemon, arguments));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn target_below_the_model_warns_with_line_and_figure() {
    let keys = "latency-target = \"p99 10us\"";
    let daemon = Daemon::start(&config(keys, "model:preset=850evo"), &["s", "c"]);
    let said = "group gold: latency-target p99 10us: drive d0 of volume vol0 itself takes 98us for \
                a read of 4 KiB and 26us for a write, by its model, which no scheduler can \
                shorten; set latency-target to p99 150us or more, or give the group a faster drive";
    let log = daemon.stderr();
    let line = log.lines().find(|line| line.contains(said)).unwrap_or_else(|| panic!("{log}"));
    assert!(line.contains("config.toml:3: group gold") || line.contains(":3: group gold"), "{log}");
    // Setting a target live gives the same warning at once.
    let said = warned(&daemon, &["set", "group", "gold", "latency-target=mean 20us"]);
    assert!(
        said.contains("latency-target mean 20us: drive d0 of volume vol0 itself takes 98us"),
        "{said}"
    );
    // The group has no I/O yet, but its export names the drive that it will use.
    let text =
        succeed(&mut ctl(&daemon, &["set", "group", "bulk", "latency-target=p90 1us", "--json"]));
    let changed: Value = serde_json::from_str(&text).unwrap();
    assert!(
        changed["warnings"][0]
            .as_str()
            .unwrap()
            .contains("group bulk: latency-target p90 1us: drive d0")
    );
    assert_eq!(warned(&daemon, &["set", "group", "gold", "latency-target=p99 5ms"]), "");
    assert_eq!(warned(&daemon, &["set", "group", "default", "latency-target=p99 5us"]), "");
    let said = warned(&daemon, &["set", "vol0", "scheduler=fair"]);
    let part = "group gold: latency-target p99 5ms: nothing keeps it at drive d0 of volume vol0, \
                whose scheduler is fair;";
    assert!(said.contains(part) && daemon.stderr().contains(part), "{said}");
    assert_eq!(warned(&daemon, &["set", "group", "bulk", "weight=300"]), "");
    let said = warned(&daemon, &["set", "vol0", "scheduler=none"]);
    let part = "group bulk: drive d0 of volume vol0 ignores its weight, because the drive's \
                scheduler is none; set scheduler = \"latency\" there, or `millrace ctl set vol0 \
                scheduler=latency`";
    assert!(said.contains(part) && daemon.stderr().contains(part), "{said}");
    let said = warned(&daemon, &["set", "group", "gold", "weight=400"]);
    assert!(said.contains("group gold: drive d0 of volume vol0 ignores its weight"), "{said}");
}

#[test]
fn measured_facts_of_a_drive_are_reported_with_its_target() {
    // A fault drive has no latency of its own to warn about.
    let drive = "fault:drive=(model:preset=850evo)";
    let daemon = Daemon::start(&config("weight = 100", drive), &["s", "c"]);
    let set = ["set", "group", "gold", "latency-target=p99 40us"];
    assert_eq!(warned(&daemon, &set), "");
    let mut client = RawNbd::connect(&daemon.dir().join("s"), "a").unwrap();
    (0..200).for_each(|at| drop(client.read(at % 64 * 65_536, 4096).unwrap()));
    let said = warned(&daemon, &set);
    assert!(said.contains("half of the I/Os at drive d0 of volume vol0 took "), "{said}");
    assert!(
        said.contains("since the drive was opened; the fastest 10 % of the I/Os took "),
        "{said}"
    );
}

#[test]
fn target_missed_at_the_drive_is_reported_until_met_or_changed() {
    let keys = "latency-target = \"p99 60us\"";
    // Its p99 is the drive's; writes and others are kept away from it, and do not help.
    let daemon = Daemon::start(&config(keys, "fault:drive=(model:preset=850evo)"), &["s", "c"]);
    let groups = || {
        serde_json::from_str::<Value>(&succeed(&mut ctl(
            &daemon,
            &["get", "group", "gold", "--json"],
        )))
        .unwrap()
    };
    beside_readers(&daemon.dir().join("s"), &["a", "b"], || {
        let part = "group gold: latency-target p99 60us is missed: drive d0 of volume vol0 itself takes p99 ";
        let seen =
            poll_within(Duration::from_secs(20), || daemon.stderr().contains(part).then_some(()));
        assert!(seen.is_some(), "{}", daemon.stderr());
        let warning = groups()["warnings"][0].as_str().unwrap().to_owned();
        assert!(
            warning.starts_with(part) && warning.contains(", which no scheduler can shorten; "),
            "{warning}"
        );
        assert!(warned(&daemon, &["get", "groups"]).contains(part));
        let why = succeed(&mut ctl(&daemon, &["why", "vol0", "1"]));
        assert!(why.contains(&format!("\n{part}")), "{why}");
        // The change takes the warning back; a target that can be kept causes none.
        assert_eq!(warned(&daemon, &["set", "group", "gold", "latency-target=p99 2s"]), "");
        assert_eq!(groups()["warnings"], Value::Null);
    });
    assert_eq!(daemon.stderr().matches("is missed").count(), 1, "{}", daemon.stderr());
}
