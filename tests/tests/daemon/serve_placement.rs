//! CPUs on which the daemon's threads may run: all of them, unless the configuration pins some.
//!
//! No client is needed: the kernel lists the CPUs of each thread (`Cpus_allowed_list`).

use std::collections::BTreeMap;
use std::fs;

use millrace_tests::Daemon;

/// Two drives with workers, served to guests and to hosts; with more keys of the guests' export.
fn config(keys: &str) -> String {
    format!(
        "[[drive]]\nname = \"d0\"\nspec = \"null:size=1g\"\n\
         [[drive]]\nname = \"d1\"\nspec = \"null:size=1g\"\n\
         [[volume]]\nname = \"v\"\nlayout = \"stripe\"\nchunk = \"64k\"\nserving = \"per-drive\"\n\
         drives = [\"d0\", \"d1\"]\n\
         [[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\nvhost-user-blk = \"unix:m\"\n{keys}\n"
    )
}

/// The CPUs that a thread may run on, as the kernel writes them: `0-3,8`.
fn allowed(status: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.expect("every thread has such a list").trim().to_owned()
}

/// The numbers in such a list.
fn numbers(list: &str) -> Vec<u32> {
    let number = |text: &str| text.parse::<u32>().expect("the kernel writes numbers");
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        number(first)..=number(last)
    };
    list.split(',').flat_map(range).collect()
}

/// The allowed CPUs of each thread of the daemon, by name.
fn threads(daemon: &Daemon) -> BTreeMap<String, String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("it runs");
    let thread = |task: std::io::Result<fs::DirEntry>| {
        // A thread may end meanwhile.
        let path = task.ok()?.path();
        let name = fs::read_to_string(path.join("comm")).ok()?.trim().to_owned();
        Some((name, allowed(&fs::read_to_string(path.join("status")).ok()?)))
    };
    tasks.filter_map(thread).collect()
}

/// The CPUs of this process, which the daemon inherits.
fn own_cpus() -> String {
    allowed(&fs::read_to_string("/proc/self/status").expect("/proc is there"))
}

#[test]
fn nothing_is_pinned_unless_the_configuration_says_so() {
    let daemon = Daemon::start(&config(""), &["s", "m"]);
    let (found, cpus) = (threads(&daemon), own_cpus());
    let kinds: &[&str] = match numbers(&cpus).len() {
        // On one CPU drives have no workers.
        1 => &["millrace-io0", "vm0-"],
        _ => &["millrace-io0", "vm0-", "millrace-drive0"],
    };
    for kind in kinds {
        assert!(found.keys().any(|name| name.starts_with(kind)), "no {kind}: {found:?}");
    }
    for (name, list) in &found {
        assert_eq!(*list, cpus, "{name}");
    }
}

#[test]
fn guest_has_a_thread_per_cpu_unless_a_number_says_otherwise() {
    let first = numbers(&own_cpus())[0];
    for (threads, count) in [("\"queue\"", 1), ("4", 4)] {
        let keys = format!("queues = 4\nthreads = {threads}\ncpus = [{first}]");
        let daemon = Daemon::start(&config(&keys), &["s", "m"]);
        let names: Vec<_> = threads_of_guests(&daemon);
        assert_eq!(names.len(), count, "{threads}: {names:?}");
    }
}

/// The I/O threads that serve guests.
fn threads_of_guests(daemon: &Daemon) -> Vec<String> {
    threads(daemon).into_keys().filter(|name| name.starts_with("vm")).collect()
}

#[test]
fn workers_avoid_the_cpus_that_exports_pin_their_threads_to() {
    let cpus = numbers(&own_cpus());
    let [first, .., last] = cpus[..] else {
        println!("skipped: it takes two CPUs");
        return;
    };
    for pinned in [first, last] {
        let daemon = Daemon::start(&config(&format!("threads = 1\ncpus = [{pinned}]")), &["s"]);
        let found = threads(&daemon);
        for (name, list) in &found {
            let may_run_on = numbers(list);
            if name.starts_with("vm") {
                assert_eq!(may_run_on, [pinned], "{name}");
            } else if name.starts_with("millrace-drive") {
                assert_eq!(may_run_on.len(), 1, "{name} is pinned");
                assert!(!may_run_on.contains(&pinned), "{name} is on CPU {pinned}, too");
            }
        }
        assert!(found.keys().any(|name| name == "millrace-drive0"), "{found:?}");
        assert!(daemon.stdout().contains("drives' workers, on CPU"), "{}", daemon.stdout());
    }
}
