//! Traces that `millrace trace record` writes: as blkparse and btt read them, and with every I/O of
//! a known load.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread::scope;
use std::time::{Duration, Instant};

use millrace_tests::known_load::{on_each_drive, serve};
use millrace_tests::raw_nbd::{READ, RawNbd, request};
use millrace_tests::recording::{begin, end, record};
use millrace_tests::serving::pattern;
use millrace_tests::traces::{agrees_with_btt, blkparse, count, shown, text};
use millrace_tests::{Daemon, poll_within, require_clients, run};

/// The known load, and a flush on each drive.
fn load(daemon: &Daemon) {
    on_each_drive(daemon).flush().unwrap();
}

#[test]
fn a_running_daemon_is_recorded_whole_and_goes_on() {
    require_clients!("blkparse", "btt");
    let daemon = serve("");
    load(&daemon);
    let child = begin(&daemon, "-o t --stamp event", "t");
    load(&daemon);
    assert!(end(child).contains("events recorded in"));
    let ours = shown(daemon.dir(), &["t"]);
    assert!(ours == blkparse(daemon.dir(), &["t"]), "{ours}");
    agrees_with_btt(daemon.dir(), &["t"]);
    let each = |count: usize| ["240,0", "240,1"].map(|drive| (drive.to_owned(), count)).into();
    for letter in ["A", "Q", "G", "I", "D", "C"] {
        assert_eq!(count(&ours, letter, 'W'), each(10), "{letter}\n{ours}");
        assert_eq!(count(&ours, letter, 'R'), each(7), "{letter}\n{ours}");
    }
    // The client that did it, and a flush on each drive.
    assert!(ours.contains("[client-"), "{ours}");
    assert_eq!(count(&ours, "D", 'F'), each(1), "{ours}");
    load(&daemon);
}

#[test]
fn blkparse_shows_who_waits_for_a_limit_and_for_how_long() {
    require_clients!("blkparse", "btt");
    let config = "[[group]]\nname = \"gold\"\niops = 100\n[[drive]]\nname = \"d0\"\n\
                  spec = \"ram:size=16m\"\n[[volume]]\nname = \"v\"\ndrives = [\"d0\"]\n\
                  [[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\ngroup = \"gold\"\n\
                  [server]\ncontrol = \"unix:c\"\n";
    let daemon = Daemon::start(config, &["s", "c"]);
    let child = begin(&daemon, "-o t", "t");
    let mut raw = RawNbd::connect(&daemon.dir().join("s"), "v").unwrap();
    for block in 0..10 {
        raw.write(block * 4096, &pattern(4096, block)).unwrap();
    }
    end(child);
    let (ours, theirs) = (shown(daemon.dir(), &["t"]), blkparse(daemon.dir(), &["t"]));
    assert!(ours == theirs, "{ours}\n{theirs}");
    agrees_with_btt(daemon.dir(), &["t"]);
    // Each wait takes 10 ms, except the first two and delays of a busy machine.
    let notes: Vec<&str> = ours.lines().filter(|line| line.contains("  m   N group ")).collect();
    let of = |what: &str| notes.iter().filter(|line| line.contains(what)).count();
    let (wait, go_on) = (of("group gold waits "), of("group gold waited "));
    assert!((4..=9).contains(&wait) && wait == go_on, "{ours}");
    assert!(notes.iter().all(|line| line.starts_with("240,0 ") && line.ends_with(" us: limit")));
}

/// Keeps `depth` reads of an export in flight until it has had `answers` answers.
fn keep_busy(daemon: &Daemon, export: &str, (depth, answers): (u64, u64)) {
    let mut client = RawNbd::connect(&daemon.dir().join("s"), export).unwrap();
    let read = |at: u64| request(READ, at, at % 4096 * 65_536, 4096);
    client.send(&(0..depth).flat_map(read).collect::<Vec<u8>>()).unwrap();
    for at in 0..answers {
        client.reply().unwrap();
        client.receive(&mut [0; 4096]).unwrap();
        if at + depth < answers {
            client.send(&read(at + depth)).unwrap();
        }
    }
}

/// Messages of a drive's scheduler while two clients run: the text behind `m   N `.
fn decisions(daemon: &Daemon, name: &str, clients: [(&str, (u64, u64)); 2]) -> Vec<String> {
    let child = begin(daemon, &format!("-o {name}"), name);
    scope(|scope| {
        for (export, load) in clients {
            scope.spawn(move || keep_busy(daemon, export, load));
        }
    });
    end(child);
    let (ours, theirs) = (shown(daemon.dir(), &[name]), blkparse(daemon.dir(), &[name]));
    assert!(ours == theirs, "blkparse shows {} lines otherwise", ours.lines().count());
    let note = |line: &str| Some(line.split_once("  m   N ")?.1.to_owned());
    ours.lines().filter_map(note).collect()
}

/// A modelled SSD with a scheduler, and an export for each of two groups.
fn two_groups(scheduler: &str, groups: [(&str, &str); 2]) -> Daemon {
    let drive = format!(
        "[[drive]]\nname = \"d0\"\nspec = \"model:preset=850evo\"\nscheduler = \"{scheduler}\"\n\
         [[volume]]\nname = \"v\"\ndrives = [\"d0\"]\n[server]\ncontrol = \"unix:c\"\n"
    );
    let export = |(name, key): (&str, &str)| {
        format!(
            "[[group]]\nname = \"{name}\"\n{key}\n[[export]]\nname = \"{name}\"\n\
             volume = \"v\"\nnbd = \"unix:s\"\ngroup = \"{name}\"\n"
        )
    };
    Daemon::start(&[drive, groups.map(export).concat()].concat(), &["s", "c"])
}

#[test]
fn blkparse_shows_who_is_held_why_and_how_much_is_allowed() {
    require_clients!("blkparse");
    let of = |notes: &[String], what: &str| notes.iter().filter(|note| note.contains(what)).count();
    let daemon = two_groups("fair", [("gold", "weight = 400"), ("bulk", "weight = 100")]);
    let notes = decisions(&daemon, "t", [("gold", (32, 60_000)), ("bulk", (32, 15_000))]);
    let held = ["group gold held: ", "group bulk held: "].map(|what| of(&notes, what));
    assert!(held.iter().any(|held| *held > 0) && of(&notes, "scheduler depth ") > 0, "{notes:?}");
    let targets = [("gold", "latency-target = \"p99 1ms\""), ("bulk", "weight = 100")];
    let daemon = two_groups("latency", targets);
    let notes = decisions(&daemon, "t", [("gold", (1, 3_000)), ("bulk", (256, 60_000))]);
    assert!(of(&notes, "group bulk held: latency-target (depth ") > 0, "{notes:?}");
    let of_gold = of(&notes, "gold held") + of(&notes, "holds group gold");
    assert!(of(&notes, "scheduler depth ") > 0 && of_gold == 0, "{notes:?}");
    // Each reason of a group, each group's rests, and the depth: every 10 ms at most.
    assert!(notes.len() < 2_000, "{} notes", notes.len());
}

/// Notes of a drive's scheduler about rests: one client has all its I/O at the drive, and the I/O
/// of another client of priority idle may not follow yet.
fn rests(daemon: &Daemon, name: &str) -> Vec<String> {
    let child = begin(daemon, &format!("-o {name}"), name);
    scope(|scope| {
        scope.spawn(|| keep_busy(daemon, "busy", (16, 30_000)));
        scope.spawn(|| keep_busy(daemon, "rest", (8, 1_000)));
    });
    end(child);
    let (ours, theirs) = (shown(daemon.dir(), &[name]), blkparse(daemon.dir(), &[name]));
    assert!(ours == theirs, "blkparse shows {} lines otherwise", ours.lines().count());
    agrees_with_btt(daemon.dir(), &[name]);
    let notes =
        ours.lines().filter(|line| line.contains("  m   N scheduler dispatches nothing for "));
    notes.map(str::to_owned).collect()
}

#[test]
fn blkparse_shows_when_a_scheduler_rests_and_for_how_long() {
    require_clients!("blkparse", "btt");
    let daemon = two_groups("fair", [("busy", "weight = 100"), ("rest", "priority = \"idle\"")]);
    // A dozen or more in each, as a rule; on a machine that has other work perhaps in another one.
    let mut traces = ["t0", "t1", "t2", "t3"].into_iter().map(|name| rests(&daemon, name));
    let notes = traces.find(|notes| !notes.is_empty()).expect("the scheduler never rests");
    for note in &notes {
        let of_rest = note.strip_suffix(" us: holds group rest (priority)");
        let time = of_rest.and_then(|note| note.split_once("nothing for ")).map(|(_, time)| time);
        let us: u64 = time.and_then(|time| time.parse().ok()).unwrap_or_else(|| panic!("{note}"));
        // The rest is no longer than I/O of priority idle may be kept from the drive.
        assert!((1..=100_000).contains(&us) && note.starts_with("240,0 "), "{note}");
    }
}

#[test]
fn what_is_asked_for_is_recorded_and_nothing_else() {
    let daemon = serve("");
    let child = begin(&daemon, "-o t --drive d1 --op write --action D,C --sectors 0-16", "t");
    load(&daemon);
    end(child);
    let ours = shown(daemon.dir(), &["t"]);
    let two = BTreeMap::from([("240,1".to_owned(), 2)]);
    assert_eq!(count(&ours, "D", 'W'), two, "{ours}");
    assert_eq!(count(&ours, "C", 'W'), two, "{ours}");
    assert!(count(&ours, "Q", 'W').is_empty() && count(&ours, "D", 'R').is_empty(), "{ours}");
}

#[test]
fn what_cannot_be_recorded_is_refused_and_the_daemon_goes_on() {
    let daemon = serve("");
    let refused = |arguments: &str, reason: &str| {
        let output = run(&mut record(&daemon, arguments));
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(reason), "{errors}");
    };
    refused("-o nowhere/t", "t.blktrace.0: its directory does not exist; create it");
    refused("-o t --drive d7", "there is no drive \"d7\"");
    refused("-o t --volume w", "there is no volume \"w\"");
    refused("-o t --action Z", "unknown action \"Z\"; choose from Q G I D C P U UT");
    refused("-o t --op swim", "unknown operation \"swim\"; choose read, write");
    refused("-o t --sectors 9-3", "write a range of sectors");
    refused("-o t --stamp never", "[possible values: batch, event]");
    let child = begin(&daemon, "-o t", "t");
    refused("-o u", "another recording is in progress");
    end(child);
    refused("-o t", "exists already; choose another name");
    load(&daemon);
    text(&mut record(&daemon, "-o u --duration 100ms"));
}

/// Waits until the files have not become longer for longer than an event may wait to be written.
fn all_is_written(dir: &Path) {
    let bytes = || -> u64 {
        let files = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
        let files = files.filter(|file| file.file_name().to_string_lossy().contains(".blktrace."));
        files.map(|file| file.metadata().unwrap().len()).sum()
    };
    let (mut before, mut since) = (bytes(), Instant::now());
    let stay = || {
        let now = bytes();
        if now != before {
            (before, since) = (now, Instant::now());
        }
        (now > 0 && since.elapsed() >= Duration::from_millis(300)).then_some(())
    };
    poll_within(Duration::from_secs(20), stay).expect("the recorder comes to rest");
}

#[test]
fn daemon_that_dies_while_recording_leaves_readable_files() {
    let mut daemon = serve("");
    let child = begin(&daemon, "-o t", "t");
    for _ in 0..40 {
        load(&daemon);
    }
    all_is_written(daemon.dir());
    daemon.kill9();
    let start = Instant::now();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("unix:c: the daemon has stopped"), "{errors}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    let ours = shown(daemon.dir(), &["t"]);
    // Of each load.
    let each = ["240,0", "240,1"].map(|drive| (drive.to_owned(), 400)).into();
    assert_eq!(count(&ours, "C", 'W'), each, "{ours}");
}

/// The letters of the walk's table in ARCHITECTURE.md, in its order.
fn letters_of_the_walk() -> Vec<char> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ARCHITECTURE.md");
    let text = std::fs::read_to_string(path).unwrap();
    let walk = text.split("## The walk of one I/O").nth(1).unwrap();
    let table = walk.lines().skip_while(|line| !line.starts_with('|'));
    let rows = table.take_while(|line| line.starts_with('|')).skip(2);
    let traced = rows.filter_map(|row| row.trim_end_matches('|').rsplit('|').next());
    // A letter by itself: words begin with small ones there.
    let letters = traced.flat_map(|cell| {
        let words = cell.split(|letter: char| !letter.is_alphanumeric());
        words
            .filter(|word| word.len() == 1 && *word != "a")
            .map(|word| word.chars().next().unwrap())
    });
    letters.collect()
}

#[test]
fn an_io_takes_the_steps_of_the_walk_in_its_order() {
    let walk = letters_of_the_walk();
    let places = |letter: char| -> Vec<usize> {
        (0..walk.len()).filter(|place| walk[*place] == letter).collect()
    };
    for letter in ['Q', 'A', 'G', 'P', 'U', 'I', 'D', 'C'] {
        assert!(!places(letter).is_empty(), "{letter} is not in the walk: {walk:?}");
    }
    let daemon = serve("");
    let child = begin(&daemon, "-o t", "t");
    let mut raw = RawNbd::connect(&daemon.dir().join("s"), "v").unwrap();
    raw.write(4096, &pattern(4096, 1)).unwrap();
    end(child);
    let lines = shown(daemon.dir(), &["t"]);
    let mut steps: Vec<(String, char)> = Vec::new();
    for line in lines.lines().take_while(|line| !line.starts_with("CPU")) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // The messages that name the devices are no steps.
        if fields.len() > 5 && fields[5].len() == 1 && fields[5] != "m" {
            steps.push((fields[3].to_owned(), fields[5].chars().next().unwrap()));
        }
    }
    let taken: Vec<char> = steps.iter().map(|step| step.1).collect();
    assert!(
        ['Q', 'A', 'G', 'P', 'U', 'I', 'D', 'C'].iter().all(|step| taken.contains(step)),
        "{lines}"
    );
    // The walk must list a later step after every earlier one.
    for (earlier, later) in steps.iter().zip(&steps[1..]).filter(|(a, b)| a.0 < b.0) {
        let (first, last) = (places(earlier.1)[0], *places(later.1).last().unwrap());
        assert!(first <= last, "{} before {}: {walk:?}\n{lines}", earlier.1, later.1);
    }
}
