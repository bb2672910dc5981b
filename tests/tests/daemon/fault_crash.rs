//! kill -9 of the daemon under an NBD load: after a restart every acknowledged write is there.
//!
//! The volume is a stripe of four file drives. The kernel's page cache survives the daemon, so
//! unlike after a power cut all acknowledged writes must be there, flushed or not.

use std::path::Path;
use std::thread;
use std::time::Duration;

use millrace_random::SplitMix64;
use millrace_tests::load::Load;
use millrace_tests::{Daemon, poll_within, tempdir};

const SECTORS: u64 = 2048;
const CONNECTIONS: usize = 4;
const KILLS: u64 = 14;

/// Drives and socket are in `dir`, which outlives the daemons.
fn config(dir: &Path, backend: &str) -> String {
    let dir = dir.display();
    let drives: String = (0..4)
        .map(|n| format!("[[drive]]\nname = \"d{n}\"\nspec = \"file:path={dir}/d{n},size=1m\"\n"))
        .collect();
    format!(
        "{drives}[[volume]]\nname = \"v\"\nchunk = \"4k\"\n\
         drives = [\"d0\", \"d1\", \"d2\", \"d3\"]\n\
         [[export]]\nvolume = \"v\"\nnbd = \"unix:{dir}/s\"\n[server]\nbackend = \"{backend}\"\n"
    )
}

#[test]
fn acknowledged_writes_survive_14_kills_of_the_daemon() {
    let dir = tempdir();
    let socket = dir.path().join("s");
    let (mut load, mut dice) = (Load::new(SECTORS, 3), SplitMix64::new(11));
    for kill in 1..=KILLS {
        let backend = if kill % 2 == 0 { "epoll" } else { "auto" };
        // The socket file of the killed daemon is still there.
        let mut daemon = Daemon::start(&config(dir.path(), backend), &[]);
        load.connect(&socket, "v", CONNECTIONS);
        load.check(&format!("after kill {} ({backend})", kill - 1));
        let pause = 20 + dice.below(100);
        load.round(|load| {
            let before = load.counts().acknowledged;
            let goes_on = || (load.counts().acknowledged >= before + 100).then_some(());
            poll_within(Duration::from_secs(10), goes_on).expect("it is served");
            thread::sleep(Duration::from_millis(pause));
            daemon.kill9();
        });
        load.with_model(|model| model.server_died());
    }
    let mut daemon = Daemon::start(&config(dir.path(), "auto"), &[]);
    load.connect(&socket, "v", CONNECTIONS);
    load.check("after the last kill");
    let counts = load.counts();
    println!("{KILLS} kills: {counts:?}");
    assert!(counts.unanswered > KILLS && counts.acknowledged > 100 * KILLS, "{counts:?}");
    assert_eq!(counts.failed, 0, "nothing fails before the daemon dies");
    assert_eq!(daemon.terminate().code(), Some(0));
}
