//! What `bench --trace` and `millrace trace record` write: as blkparse and btt read it, and with
//! every I/O of a known load.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::thread::scope;
use std::time::{Duration, Instant};

use millrace_tests::known_load::{on_each_drive, serve};
use millrace_tests::raw_nbd::{READ, RawNbd, request};
use millrace_tests::recording::{begin, end, record};
use millrace_tests::serving::pattern;
use millrace_tests::traces::{agrees_with_btt, blkparse, shown, text};
use millrace_tests::{Daemon, millrace, millrace_lab, poll_within, require_clients, run, tempdir};

/// How many lines of a trace have this letter, by drive.
fn count(lines: &str, letter: &str, kind: char) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for line in lines.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if fields.len() > 6 && fields[5] == letter && fields[6].contains(kind) {
            *counts.entry(fields[0].to_owned()).or_default() += 1;
        }
    }
    counts
}

#[test]
fn what_bench_records_reads_as_blkparse_and_btt_say_and_has_every_io() {
    require_clients!("blkparse", "btt");
    let stripe = "--drive ram:size=16m --drive ram:size=16m --chunk 4k --bs 4k";
    let cases = [
        ("one", "--drive ram:size=16m --stack mq --bs 4k", 1),
        ("sq", "--drive ram:size=16m --stack sq --bs 4k", 1),
        ("raw", "--drive ram:size=16m --stack raw --bs 4k --stamp io", 1),
        ("inline", &format!("{stripe} --serving inline --jobs 2"), 2),
        ("perdrive", &format!("{stripe} --serving per-drive --plug-low 1 --iodepth 64"), 2),
        ("pervolume", &format!("{stripe} --serving per-volume"), 2),
    ];
    for (name, arguments, drives) in cases {
        let dir = tempdir();
        let arguments = format!("bench {arguments} --rw randrw --ios 2000 --trace {name}");
        text_of_bench(millrace_lab().args(arguments.split(' ')).current_dir(dir.path()));
        let ours = shown(dir.path(), &[name]);
        assert!(ours == blkparse(dir.path(), &[name]), "{name} differs");
        agrees_with_btt(dir.path(), &[name]);
        let jobs = if name == "inline" { 2 } else { 1 };
        let queued =
            count(&ours, "Q", 'R').into_values().chain(count(&ours, "Q", 'W').into_values());
        assert_eq!(queued.sum::<usize>(), 2000 * jobs, "{name}");
        for letter in ["D", "C"] {
            let (read, written) = (count(&ours, letter, 'R'), count(&ours, letter, 'W'));
            assert_eq!(read.len(), drives, "{name}: {read:?}");
            let merged =
                count(&ours, "M", 'R').into_values().chain(count(&ours, "M", 'W').into_values());
            let merged = merged.sum::<usize>() + ours.matches("  F ").count();
            let all = read.into_values().chain(written.into_values()).sum::<usize>();
            assert!(all <= 2000 * jobs && all + merged >= 2000 * jobs, "{name} {letter}: {all}");
        }
    }
}

#[test]
fn nothing_of_an_earlier_recording_of_the_name_is_left() {
    let dir = tempdir();
    for cpu in 0..200 {
        std::fs::write(dir.path().join(format!("t.blktrace.{cpu}")), "old").unwrap();
    }
    let arguments = "bench --drive ram:size=16m --bs 4k --ios 1000 --trace t";
    text_of_bench(millrace_lab().args(arguments.split(' ')).current_dir(dir.path()));
    assert_eq!(shown(dir.path(), &["t"]).matches("  Q  ").count(), 1000);
    assert!(!dir.path().join("t.blktrace.199").exists());
}

/// Rows go to standard output, notes about the trace to standard error.
fn text_of_bench(command: &mut Command) {
    let output = run(command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.contains("events recorded;"), "{errors}");
}

/// The fields of the lines with these letters.
fn lines_of<'a>(shown: &'a str, letters: &str) -> Vec<Vec<&'a str>> {
    let fields = shown.lines().map(|line| line.split_whitespace().collect::<Vec<&str>>());
    fields.filter(|fields| fields.len() > 6 && fields[5] == letters).collect()
}

/// What `bench` recorded, shown with what drivers said.
fn benched(dir: &Path, arguments: &str) -> String {
    let arguments = format!("bench {arguments} --trace t");
    text_of_bench(millrace_lab().args(arguments.split(' ')).current_dir(dir));
    text(millrace().args(["trace", "show", "-q", "--driver-data", "t"]).current_dir(dir))
}

#[test]
fn an_unplug_is_shown_as_by_blkparse_with_its_count_and_ut_where_its_owner_waits() {
    require_clients!("blkparse", "btt");
    // Of two drives with 4 tags each, who finds none unplugs and waits.
    let drives = "--drive ram:size=16m,depth=4 --drive ram:size=16m,depth=4 --chunk 4k";
    let dir = tempdir();
    let arguments = format!("{drives} --bs 4k --serving per-volume --rw randwrite --ios 500");
    let ours = benched(dir.path(), &arguments);
    let (waiting, explicit) = (lines_of(&ours, "UT"), lines_of(&ours, "U"));
    assert!(!waiting.is_empty() && !explicit.is_empty(), "{ours}");
    let count = |line: &Vec<&str>| line[8].parse::<usize>().unwrap();
    let unplugged: usize = waiting.iter().chain(&explicit).map(count).sum();
    assert_eq!(unplugged, lines_of(&ours, "D").len(), "{ours}");
    assert!(shown(dir.path(), &["t"]) == blkparse(dir.path(), &["t"]), "{ours}");
    agrees_with_btt(dir.path(), &["t"]);
}

#[test]
fn what_drivers_say_of_requests_is_recorded_and_does_not_disturb_blkparse() {
    require_clients!("blkparse", "btt");
    for (name, arguments, words) in [
        ("model", "--drive model:preset=950pro --bs 4k", "took"),
        ("file", "--drive file:path=f,size=16m --bs 4k --rw randwrite", "= 4096"),
        ("fault", "--drive fault:drive=(ram:size=16m),latency=1us --bs 4k", "delay 1000 ns"),
    ] {
        let dir = tempdir();
        let ours = benched(dir.path(), &format!("{arguments} --iodepth 8 --ios 200"));
        let said: Vec<&str> = ours.lines().filter(|line| line.contains("  d ")).collect();
        assert_eq!(said.len(), lines_of(&ours, "D").len(), "{name}: {ours}");
        assert!(said.iter().all(|line| line.contains(words)), "{name}: {said:?}");
        assert!(shown(dir.path(), &["t"]) == blkparse(dir.path(), &["t"]), "{name} differs");
        agrees_with_btt(dir.path(), &["t"]);
    }
}

#[test]
fn with_exact_stamps_each_event_of_an_io_has_its_own_time() {
    require_clients!("blkparse", "btt");
    let dir = tempdir();
    let arguments = "--drive ram:size=1g --bs 4k --rw read --stack raw --ios 500";
    let ours = benched(dir.path(), &format!("{arguments} --trace-stamp event"));
    let mut ios: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    for letters in ["Q", "G", "I", "D", "C"] {
        for fields in lines_of(&ours, letters) {
            ios.entry(fields[7]).or_default().push((letters, fields[3]));
        }
    }
    assert_eq!(ios.len(), 500);
    for (sector, steps) in &ios {
        assert_eq!(steps.len(), 5, "{sector}: {steps:?}");
        // Of one width: they compare as they are.
        assert!(steps.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{sector}: {steps:?}");
        assert!(steps[0].1 < steps[2].1 && steps[2].1 < steps[4].1, "{sector}: {steps:?}");
    }
    let mut issued: Vec<_> = ios.values().map(|steps| steps[3].1).collect();
    issued.sort_unstable();
    issued.dedup();
    assert!(issued.len() > 450, "{}", issued.len());
    assert!(shown(dir.path(), &["t"]) == blkparse(dir.path(), &["t"]));
    agrees_with_btt(dir.path(), &["t"]);
}

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
    // 10 ms each, but for the first two, and for what a busy machine is late with itself.
    let notes: Vec<&str> = ours.lines().filter(|line| line.contains("  m   N group ")).collect();
    let of = |what: &str| notes.iter().filter(|line| line.contains(what)).count();
    let (wait, go_on) = (of("group gold waits "), of("group gold goes on after "));
    assert!((4..=9).contains(&wait) && wait == go_on, "{ours}");
    assert!(notes.iter().all(|line| line.starts_with("240,0 ") && line.ends_with(" us: limit")));
}

/// Keeps so many reads of an export in flight until it has had so many answers.
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

/// What a drive's scheduler notes while two clients are at work: text behind `m   N `.
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
fn blkparse_shows_whom_a_scheduler_holds_why_and_how_much_it_lets_the_drive_have() {
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
    assert!(of(&notes, "scheduler depth ") > 0 && of(&notes, "gold held") == 0, "{notes:?}");
    // Each reason of a group, each group's rests, and the depth: every 10 ms at most.
    assert!(notes.len() < 2_000, "{} notes", notes.len());
}

/// When a drive's scheduler rests: one client has all that it wants at the drive, and what another
/// one of priority idle asks for may not follow yet.
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
    let notes = ours.lines().filter(|line| line.contains("  m   N scheduler rests "));
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
        let of_rest = note.strip_suffix(" us: group rest held: weight");
        let time = of_rest.and_then(|note| note.split_once("rests ")).map(|(_, time)| time);
        let us: u64 = time.and_then(|time| time.parse().ok()).unwrap_or_else(|| panic!("{note}"));
        // No longer than whatever is of priority idle may be kept from the drive.
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
    refused("-o nowhere/t", "t.blktrace.0: its folder is not there; make it");
    refused("-o t --drive d7", "there is no drive \"d7\"");
    refused("-o t --volume w", "there is no volume \"w\"");
    refused("-o t --action Z", "there is no action \"Z\"; there are Q G I D C P U UT");
    refused("-o t --op swim", "there is no op \"swim\"; there are read, write");
    refused("-o t --sectors 9-3", "write two sectors");
    refused("-o t --stamp never", "[possible values: batch, event]");
    let child = begin(&daemon, "-o t", "t");
    refused("-o u", "a recording is under way");
    end(child);
    refused("-o t", "is there already: choose another name");
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
fn a_daemon_that_dies_while_it_records_is_an_error_and_leaves_files_that_read() {
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
    // What happened later stands nowhere before what happened earlier.
    for (earlier, later) in steps.iter().zip(&steps[1..]).filter(|(a, b)| a.0 < b.0) {
        let (first, last) = (places(earlier.1)[0], *places(later.1).last().unwrap());
        assert!(first <= last, "{} before {}: {walk:?}\n{lines}", earlier.1, later.1);
    }
}
