//! Schedulers of a real daemon keep a small client from waiting for a large one.
//!
//! On a slow modelled drive, so that the processor hardly matters: 4 KiB take 2 ms, 1 MiB 65 ms,
//! and it moves 16 MB/s. Tests run on loaded machines, so their bounds are wide: they tell tens of
//! milliseconds from seconds.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use millrace_tests::client_io::{ClientIo, beside_clients};
use millrace_tests::raw_nbd::RawNbd;
use millrace_tests::serving::succeed;
use millrace_tests::{Daemon, millrace};
use serde_json::Value;

const MIB: u32 = 1 << 20;

/// Exports `small` and `bulk` of one drive, in groups of these names with these keys.
fn served(scheduler: &str, small: &str, bulk: &str) -> Daemon {
    let group = |name: &str, keys: &str| {
        format!(
            "[[group]]\nname = \"{name}\"\n{keys}\n[[export]]\nvolume = \"v\"\nname = \"{name}\"\n\
             nbd = \"unix:s\"\ngroup = \"{name}\"\n"
        )
    };
    let config = [
        "[[drive]]\nname = \"d\"\n",
        "spec = \"model:units=8,read=2ms,write=2ms,latency=50us,size=4g,depth=128,queues=1\"\n",
        &format!("[[volume]]\nname = \"v\"\ndrives = [\"d\"]\nscheduler = \"{scheduler}\"\n"),
        &group("small", small),
        &group("bulk", bulk),
        "[server]\nthreads = 2\ncontrol = \"unix:c\"\n",
    ];
    Daemon::start(&config.concat(), &["s", "c"])
}

/// Completion times of a client's I/Os beside another client for `seconds`, in ascending order.
fn times_beside(daemon: &Daemon, small: ClientIo, bulk: ClientIo, seconds: u64) -> Vec<Duration> {
    let (over, socket) = (AtomicBool::new(false), daemon.dir().join("s"));
    let mut times = beside_clients(&socket, &[("bulk", bulk)], || {
        sleep(Duration::from_secs(1));
        scope(|scope| {
            let times = scope.spawn(|| small.run_until(&over, &socket, "small"));
            sleep(Duration::from_secs(seconds));
            over.store(true, Ordering::Relaxed);
            times.join().unwrap()
        })
    });
    times.sort_unstable();
    times
}

fn median(times: &[Duration]) -> Duration {
    times[times.len() / 2]
}

fn first_read(socket: &Path) -> Duration {
    let mut client = RawNbd::connect(socket, "small").unwrap();
    let start = Instant::now();
    client.read(4096, 4096).unwrap();
    start.elapsed()
}

/// Bulk has four seconds of reads queued; without a scheduler, another client's first read waits
/// for all of them.
#[test]
fn client_that_comes_late_does_not_wait_for_all_that_is_queued() {
    for scheduler in ["fair", "latency"] {
        let daemon = served(scheduler, "", "");
        let socket = daemon.dir().join("s");
        let took = beside_clients(&socket, &[("bulk", ClientIo::read(MIB, 64))], || {
            sleep(Duration::from_secs(1));
            first_read(&socket)
        });
        println!("{scheduler}: {took:?}");
        assert!(took < Duration::from_millis(700), "{scheduler}: {took:?}");
    }
}

#[test]
fn a_target_holds_for_a_reader_that_pauses_beside_a_deep_writer() {
    let daemon = served("latency", "latency-target = \"p99 20ms\"", "");
    let pauses = ClientIo { pause: Duration::from_millis(50), ..ClientIo::read(4096, 1) };
    let times = times_beside(&daemon, pauses, ClientIo::write(64 << 10, 64), 4);
    println!("{} reads, median {:?}", times.len(), median(&times));
    // Without memory of it, each read would wait for 64 writes: a quarter of a second.
    assert!(median(&times) < Duration::from_millis(60), "{times:?}");
}

#[test]
fn a_reader_keeps_its_part_beside_large_reads() {
    let daemon = served("fair", "", "");
    let times = times_beside(&daemon, ClientIo::read(4096, 1), ClientIo::read(MIB, 64), 3);
    println!("{} reads, median {:?}", times.len(), median(&times));
    // About 440 a second alone, and one a second without pieces.
    assert!(times.len() > 60, "{times:?}");
}

/// An idle client's I/Os go once they have waited for ten seconds, whichever threads serve both.
#[test]
fn idle_priority_waits_for_others_of_all_threads_under_deadline() {
    let daemon = served("deadline", "", "priority = \"idle\"");
    let (busy, idle) = (ClientIo::read(4096, 256), ClientIo::read(4096, 32));
    // Two connections of the one, so that each of the two I/O threads serves both groups at times.
    let clients = [("small", busy), ("small", busy), ("bulk", idle), ("bulk", idle)];
    let rows = beside_clients(&daemon.dir().join("s"), &clients, || {
        sleep(Duration::from_millis(500));
        let mut stat = millrace();
        stat.current_dir(daemon.dir()).args(["stat", "--groups", "--json", "2", "2"]);
        succeed(stat.args(["--connect", "unix:c"]))
    });
    let rows: Value = serde_json::from_str(rows.lines().nth(1).unwrap()).unwrap();
    let reads = |name: &str| {
        let mut groups = rows["groups"].as_array().unwrap().iter();
        groups.find(|group| group["name"] == name).map_or(0.0, |row| row["reads"].as_f64().unwrap())
    };
    println!("{} beside {}", reads("bulk"), reads("small"));
    assert!(reads("small") > 1000.0 && reads("bulk") < 100.0, "{rows}");
}
