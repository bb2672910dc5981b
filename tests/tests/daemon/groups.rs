//! Groups of a real daemon: limits hold, can change, cost nothing, and affect no other group.
//!
//! Clients are bare connections that keep many reads in flight and count the answers. Times are
//! those of a loaded machine: bounds are wide, and rates are counted over seconds.

use std::path::Path;
use std::process::Command;
use std::thread::{self, scope};
use std::time::{Duration, Instant};

use millrace_tests::control::Control;
use millrace_tests::raw_nbd::{READ, RawNbd, WRITE, request};
use millrace_tests::serving::{backends, succeed};
use millrace_tests::{Daemon, assert_limit, millrace, poll_within, run};

const BLOCK: u32 = 4096;
const EVERYBODY: &str = "v";

/// An export `v` whose clients are in group `gold` with these keys, an export `free` of the same
/// volume, and an export `each` whose clients have groups of their own under `tenant`; one I/O
/// thread, so that all share it.
fn served(backend: &str, gold: &str, tenant: &str) -> Daemon {
    let export = |name: &str, more: &str| {
        format!("[[export]]\nvolume = \"v\"\nname = \"{name}\"\nnbd = \"unix:s\"\n{more}\n")
    };
    let config = [
        "[[drive]]\nname = \"d\"\nspec = \"ram:size=64m\"\ntimeout = \"1s\"\n",
        "[[volume]]\nname = \"v\"\ndrives = [\"d\"]\n",
        &export("v", "group = \"gold\""),
        &export("free", ""),
        &export("each", "group = \"tenant\"\ngroup-each = true"),
        &format!("[[group]]\nname = \"gold\"\n{gold}\n[[group]]\nname = \"tenant\"\n{tenant}\n"),
        &format!("[server]\ncontrol = \"unix:c\"\nthreads = 1\nbackend = \"{backend}\"\n"),
    ];
    Daemon::start(&config.concat(), &["s", "c"])
}

fn ctl(daemon: &Daemon, arguments: &str) -> Command {
    let mut command = millrace();
    command.current_dir(daemon.dir()).arg("ctl").args(arguments.split_whitespace());
    command.args(["--connect", "unix:c"]);
    command
}

fn connect(daemon: &Daemon, export: &str) -> RawNbd {
    RawNbd::connect(&daemon.dir().join("s"), export).unwrap()
}

fn read(cookie: u64) -> Vec<u8> {
    request(READ, cookie, cookie % 4096 * u64::from(BLOCK), BLOCK)
}

/// Takes the answer to a read.
fn take(client: &mut RawNbd) {
    assert_eq!(client.reply().unwrap().0, 0);
    client.receive(&mut [0; BLOCK as usize]).unwrap();
}

/// Reads at this depth for `time`; returns the rate of answers per second, from the first answer
/// on. Leaves the last reads in flight.
fn rate(client: &mut RawNbd, depth: u64, time: Duration) -> f64 {
    client.send(&(0..depth).flat_map(read).collect::<Vec<u8>>()).unwrap();
    take(client);
    client.send(&read(7)).unwrap();
    go_on(client, time)
}

/// Continues a load that [`rate`] began.
fn go_on(client: &mut RawNbd, time: Duration) -> f64 {
    let (start, mut done) = (Instant::now(), 0_u32);
    while start.elapsed() < time {
        take(client);
        client.send(&read(done.into())).unwrap();
        done += 1;
    }
    f64::from(done) / start.elapsed().as_secs_f64()
}

/// Error of a measured rate.
const ERROR: f64 = 0.15;

#[test]
fn a_limit_holds_costs_no_time_and_follows_when_it_is_set_live() {
    for backend in backends() {
        let daemon = served(backend, "iops = 500", "");
        let mut client = connect(&daemon, EVERYBODY);
        let before = daemon.cpu_ticks();
        let mut found = Some(rate(&mut client, 64, Duration::from_secs(2)));
        let ticks = daemon.cpu_ticks() - before;
        let mut go_on_for_2_s = || go_on(&mut client, Duration::from_secs(2));
        assert_limit(500.0, ERROR, || found.take().unwrap_or_else(&mut go_on_for_2_s));
        // Far more if it looked for the end of the wait; programs of tests are not optimised.
        assert!(ticks < 40, "{backend}: {ticks} ticks of 10 ms in 2 s");
        let said = succeed(&mut ctl(&daemon, "set group gold iops=2k burst=20ms"));
        assert_eq!(said, "gold:\n  burst=20ms, before 10ms\n  iops=2k, before 500\n");
        thread::sleep(Duration::from_millis(100));
        go_on(&mut client, Duration::from_millis(200));
        assert_limit(2000.0, ERROR, || go_on(&mut client, Duration::from_secs(2)));
        succeed(&mut ctl(&daemon, "set group gold iops=none"));
        go_on(&mut client, Duration::from_millis(200));
        let found = go_on(&mut client, Duration::from_secs(1));
        assert!(found > 3000.0, "{backend}: {found} IOPS without a limit");
        assert!(daemon.stdout().contains("group gold: iops=none from now on\n"));
    }
}

#[test]
fn bytes_are_limited_by_the_direction_that_they_go() {
    let daemon = served(backends()[0], "write-bandwidth = \"1m\"\nburst = \"1ms\"", "");
    let mut client = connect(&daemon, EVERYBODY);
    let (start, data) = (Instant::now(), vec![7; 64 << 10]);
    (0..32).for_each(|n| client.write(n * 65_536, &data).unwrap());
    // 2 MiB take 2 s less the first write, which does not wait; a busy machine takes longer.
    let took = start.elapsed().as_secs_f64();
    assert!((1.6..4.0).contains(&took), "{took} s for 2 MiB");
    let start = Instant::now();
    (0..32).for_each(|n| assert!(client.read(n * 65_536, 64 << 10).unwrap() == data));
    assert!(start.elapsed() < Duration::from_secs(1), "reads have no limit");
}

#[test]
fn limited_clients_keep_no_other_of_their_thread_waiting() {
    for backend in backends() {
        let daemon = served(backend, "iops = 1", "iops = 1");
        // More I/O than a thread has slots for, of many groups.
        let mut throttled: Vec<RawNbd> = (0..6)
            .map(|_| connect(&daemon, EVERYBODY))
            .chain((0..6).map(|_| connect(&daemon, "each")))
            .collect();
        for client in &mut throttled {
            client.send(&(0..256).flat_map(read).collect::<Vec<u8>>()).unwrap();
        }
        thread::sleep(Duration::from_millis(300));
        let before = daemon.cpu_ticks();
        thread::sleep(Duration::from_secs(1));
        let ticks = daemon.cpu_ticks() - before;
        assert!(ticks < 15, "{backend}: {ticks} ticks of 10 ms in 1 s of waiting");
        let mut free = connect(&daemon, "free");
        for n in 0..200 {
            let start = Instant::now();
            free.write(n * 4096, &[n as u8; 4096]).unwrap();
            assert_eq!(free.read(n * 4096, 4096).unwrap(), [n as u8; 4096]);
            let took = start.elapsed();
            assert!(took < Duration::from_millis(500), "{backend}: {took:?}");
        }
        free.flush().unwrap();
        let found = rate(&mut free, 64, Duration::from_secs(1));
        assert!(found > 3000.0, "{backend}: {found} IOPS beside clients that wait");
        drop(free);
        // Longer than the drive's timeout: time spent waiting for a limit does not count towards
        // it.
        thread::sleep(Duration::from_millis(2500));
        let stats = Control::connect(&daemon).ok("stats");
        assert_eq!(stats["server"]["errors"], 0, "{backend}: {stats}");
        for client in &mut throttled[6..] {
            take(client);
        }
    }
}

#[test]
fn a_client_with_a_group_of_its_own_has_the_limit_for_itself() {
    let daemon = served(backends()[0], "", "iops = 400");
    scope(|scope| {
        let one = || {
            let mut client = connect(&daemon, "each");
            let mut found = Some(rate(&mut client, 32, Duration::from_secs(2)));
            let mut go_on_for_2_s = || go_on(&mut client, Duration::from_secs(2));
            assert_limit(400.0, ERROR, || found.take().unwrap_or_else(&mut go_on_for_2_s));
            thread::sleep(Duration::from_millis(300));
        };
        let clients = [scope.spawn(one), scope.spawn(one)];
        thread::sleep(Duration::from_secs(1));
        let shown = succeed(&mut ctl(&daemon, "get groups"));
        assert!(shown.contains("tenant/1") && shown.contains("tenant/2"), "{shown}");
        for client in clients {
            client.join().unwrap();
        }
    });
    let left = || {
        let _one = connect(&daemon, "each");
        let shown = succeed(&mut ctl(&daemon, "get groups"));
        (!shown.contains("tenant/3")).then_some(())
    };
    poll_within(Duration::from_secs(5), left).expect("places of clients that left are reused");
    let gone = || {
        let shown = succeed(&mut ctl(&daemon, "get groups"));
        (!shown.contains("tenant/")).then_some(())
    };
    poll_within(Duration::from_secs(5), gone).expect("clients that left are not listed");
    let said = refused(&daemon, "set group tenant/1 iops=7");
    assert!(said.contains("group tenant/1: its client has left"), "{said}");
    succeed(&mut ctl(&daemon, "set group tenant iops=900"));
    let mut client = connect(&daemon, "each");
    let mut found = Some(rate(&mut client, 32, Duration::from_secs(2)));
    let mut go_on_for_2_s = || go_on(&mut client, Duration::from_secs(2));
    assert_limit(900.0, ERROR, || found.take().unwrap_or_else(&mut go_on_for_2_s));
}

fn in_flight(daemon: &Daemon) -> u64 {
    let stats = Control::connect(daemon).ok("stats");
    stats["server"]["requests_in_flight"].as_u64().expect("a number")
}

#[test]
fn a_client_that_hangs_up_while_it_waits_leaves_nothing_behind() {
    for backend in backends() {
        let daemon = served(backend, "iops = 1", "");
        for count in [256_u64, 40] {
            let mut client = connect(&daemon, EVERYBODY);
            client.send(&(0..count).flat_map(read).collect::<Vec<u8>>()).unwrap();
            let mut data = request(WRITE, 1, 0, 8192);
            data.extend([1; 8192]);
            client.send(&data).unwrap();
            poll_within(Duration::from_secs(5), || (in_flight(&daemon) > 30).then_some(()))
                .expect("they wait");
        }
        let gone = || (in_flight(&daemon) == 0).then_some(());
        poll_within(Duration::from_secs(8), gone).expect("nothing is left of them");
        // Nor have they used up the time of the next one.
        let (mut client, start) = (connect(&daemon, EVERYBODY), Instant::now());
        client.send(&read(0)).unwrap();
        take(&mut client);
        let took = start.elapsed();
        assert!(took < Duration::from_secs(5), "{backend}: {took:?}");
    }
}

#[test]
fn a_stop_answers_at_once_whatever_waits_for_limits() {
    for backend in backends() {
        let mut daemon = served(backend, "iops = 1", "iops = 1");
        let mut clients = [EVERYBODY, "each"].map(|export| connect(&daemon, export));
        for client in &mut clients {
            client.send(&(0..256).flat_map(read).collect::<Vec<u8>>()).unwrap();
        }
        thread::sleep(Duration::from_millis(300));
        let start = Instant::now();
        let answered = thread::spawn(move || {
            for client in &mut clients {
                (0..256).for_each(|_| take(client));
            }
        });
        let status = daemon.terminate();
        let took = start.elapsed();
        assert!(status.success(), "{backend}: {status}: {}", daemon.stderr());
        assert!(took < Duration::from_secs(3), "{backend}: {took:?}");
        answered.join().unwrap();
    }
}

/// The command's standard error; its status must be 2.
fn refused(daemon: &Daemon, arguments: &str) -> String {
    let output = run(&mut ctl(daemon, arguments));
    assert_eq!(output.status.code(), Some(2), "{arguments}: {output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn change_is_refused_whole_and_the_current_one_can_be_pasted() {
    let daemon = served(backends()[0], "weight = 400\niops = \"20k\"", "");
    let shown = "gold:\n  iops=20k\n  weight=400\n";
    for (arguments, text) in [
        ("set group gold weight=7 iops=0", "iops = \"0\": less than one I/O per second"),
        ("set group gold weight=7 ipos=1", "did you mean \"iops\"?"),
        ("set group gold weight=7 parent=nobody", "there is no group \"nobody\""),
        ("set group gold weight=7 parent=tenant", "groups under one with group-each"),
        ("set group gold weight=7 weight=8", "weight is given twice"),
        ("set group gold weight", "write KEY=VALUE"),
        ("set group gold", "there is no setting in the request"),
        ("set group glod weight=7", "there is no group \"glod\"; did you mean \"gold\"?"),
        ("set group tenant parent=gold", "group-each"),
        ("get group glod", "did you mean \"gold\"?"),
        ("get group", "which group?"),
        ("get gold", "did you mean `millrace ctl get group gold`?"),
        ("set gold weight=7", "did you mean `millrace ctl set group gold weight=7`?"),
        ("set gold wieght=7", "did you mean `millrace ctl set group gold wieght=7`?"),
        ("set v weight=7 iops=9", "`millrace ctl set group NAME weight=7 iops=9`"),
        ("set v weight=7", "with the NAME of a group: default, gold, tenant"),
        (
            "set volume v scheduler=fair",
            "write the volume's name alone: millrace ctl set v KEY=VALUE",
        ),
        ("set v wieght=7", "a volume has no setting \"wieght\"; its only setting is \"scheduler\""),
    ] {
        let said = refused(&daemon, arguments);
        assert!(said.contains(text), "{arguments}: {said}");
        assert_eq!(succeed(&mut ctl(&daemon, "get group gold")), shown, "{arguments}");
    }
    let json = succeed(&mut ctl(&daemon, "set group gold weight=300 bandwidth=100m --json"));
    assert!(json.contains("\"before\":\"400\"") && json.contains("\"value\":\"300\""), "{json}");
    succeed(&mut ctl(&daemon, "set v scheduler=deadline"));
    let lines = succeed(&mut ctl(&daemon, "get --toml"));
    let gold = "[[group]]\nname = \"gold\"\nweight = 300\niops = \"20k\"\nbandwidth = \"100m\"\n";
    assert!(lines.contains(gold), "{lines}");
    let scheduler = "#   in [[drive]] name = \"d\": scheduler = \"deadline\"\n";
    assert!(lines.ends_with(scheduler), "{lines}");
    check_pasted(daemon.dir(), &lines);
}

/// Serves nothing: the printed sections are a part of a configuration that is in order.
fn check_pasted(dir: &Path, lines: &str) {
    let base = "[[drive]]\nname = \"d\"\nspec = \"null:\"\n[[volume]]\nname = \"v\"\ndrives = \
                [\"d\"]\n[[export]]\nvolume = \"v\"\nnbd = \"unix:other\"\ngroup = \"gold\"\n";
    std::fs::write(dir.join("pasted.toml"), format!("{base}{lines}")).unwrap();
    let said = succeed(millrace().current_dir(dir).args(["serve", "pasted.toml", "--check"]));
    assert!(said.contains("2 groups"), "{said}");
    std::fs::write(dir.join("below.toml"), format!("{base}{lines}scheduler = \"fair\"")).unwrap();
    let output = millrace().current_dir(dir).args(["serve", "below.toml", "--check"]).output();
    let said = String::from_utf8(output.unwrap().stderr).unwrap();
    let text = "unknown key \"scheduler\" in [[group]]; it belongs to [[drive]] or [[volume]]";
    assert!(said.contains(text), "{said}");
}
