//! `millrace ctl set` and `get`: settings of a volume that change under a running daemon.
//!
//! A client writes and reads back while the scheduler of the drives changes again and again. An
//! invalid setting is refused with status 2 and changes nothing. Every test runs the real binary.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;

use millrace_tests::raw_nbd::RawNbd;
use millrace_tests::serving::{backends, pattern, succeed};
use millrace_tests::{Daemon, millrace, run, tempdir};

const MIB: u64 = 1 << 20;

/// A stripe of two files, each drive with these keys.
fn served(keys: [&str; 2], backend: &str) -> Daemon {
    let (dir, mut config) = (tempdir(), String::new());
    for (file, keys) in ["d0", "d1"].iter().zip(keys) {
        let path = dir.path().join(file);
        fs::write(&path, vec![0; 4 << 20]).unwrap();
        let path = path.display();
        config += &format!("[[drive]]\nname = \"{file}\"\nspec = \"file:path={path}\"\n{keys}\n");
    }
    config += "[[volume]]\nname = \"v\"\ndrives = [\"d0\", \"d1\"]\nserving = \"inline\"\n";
    config += "[[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n";
    config += &format!("[server]\ncontrol = \"unix:c\"\nthreads = 2\nbackend = {backend:?}\n");
    Daemon::start_in(dir, &config, &["s", "c"], &[])
}

fn ctl(daemon: &Daemon, arguments: &str) -> Command {
    let mut command = millrace();
    command.current_dir(daemon.dir()).arg("ctl").args(arguments.split_whitespace());
    command.args(["--connect", "unix:c"]);
    command
}

/// The command's standard error; its status must be 2.
fn refused(daemon: &Daemon, arguments: &str) -> String {
    let output = run(&mut ctl(daemon, arguments));
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn the_scheduler_changes_again_and_again_while_a_client_writes() {
    for backend in backends() {
        let daemon = served([""; 2], backend);
        let over = AtomicBool::new(false);
        scope(|scope| {
            let client = scope.spawn(|| {
                let mut client = RawNbd::connect(&daemon.dir().join("s"), "v").unwrap();
                let mut round = 0;
                while !over.load(Ordering::Relaxed) || round < 50 {
                    let data = pattern(64 << 10, round);
                    let at = round % 64 * (MIB / 16);
                    client.write(at, &data).unwrap();
                    if round % 8 == 0 {
                        client.flush().unwrap();
                    }
                    assert_eq!(client.read(at, 64 << 10).unwrap(), data, "round {round}");
                    round += 1;
                }
            });
            for turn in 0..10 {
                let (now, before) =
                    if turn % 2 == 0 { ("deadline", "none") } else { ("none", "deadline") };
                let said = succeed(&mut ctl(&daemon, &format!("set v scheduler={now}")));
                let line = |drive| format!("  {drive}: scheduler={now}, before {before}\n");
                assert_eq!(said, format!("v:\n{}{}", line("d0"), line("d1")));
                let shown = succeed(&mut ctl(&daemon, "get v"));
                let expected = format!("v:\n  d0: scheduler={now}\n  d1: scheduler={now}\n");
                assert!(shown.starts_with(&expected), "{shown}");
                let is_unsaved = shown.contains("\n  ~ drive d1 scheduler none -> deadline\n");
                assert_eq!(is_unsaved, now == "deadline", "{shown}");
            }
            over.store(true, Ordering::Relaxed);
            client.join().unwrap();
        });
        assert!(daemon.stdout().contains("volume v: scheduler deadline from now on\n"));
        let json = succeed(&mut ctl(&daemon, "set v scheduler=deadline --json"));
        assert!(json.contains("\"before\":\"none\""), "{json}");
    }
}

#[test]
fn what_cannot_be_set_is_refused_and_changes_nothing() {
    let daemon = served(["scheduler = \"deadline\"", ""], backends()[0]);
    let shown = "v:\n  d0: scheduler=deadline\n  d1: scheduler=none\n";
    assert_eq!(succeed(&mut ctl(&daemon, "get v")), shown);
    for (arguments, text) in [
        ("set w scheduler=none", "there is no volume \"w\"; there is \"v\""),
        (
            "set v scheduler=deadlin",
            "choose none, deadline, fair or latency; did you mean \"deadline\"?",
        ),
        ("set v schedular=none", "its only setting is \"scheduler\""),
        ("set v scheduler", "write KEY=VALUE"),
        ("set v", "<KEY=VALUE>"),
        ("set v scheduler=none scheduler=deadline", "scheduler is given twice"),
        ("get w", "there is no volume \"w\"; known volumes: v"),
    ] {
        let said = refused(&daemon, arguments);
        assert!(said.contains(text), "{arguments}: {said}");
        assert_eq!(succeed(&mut ctl(&daemon, "get v")), shown, "{arguments}");
    }
}
