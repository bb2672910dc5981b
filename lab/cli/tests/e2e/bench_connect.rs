//! `millrace-lab bench --connect` beside a running daemon.

use std::time::Duration;

use millrace_tests::cached_volume::config;
use millrace_tests::serving::succeed;
use millrace_tests::{Daemon, millrace_lab, poll_within, run, tempdir};

/// A volume of nothing, and its export.
const EXPORT: &str = "[[drive]]\nname = \"d0\"\nspec = \"null:size=1g\"\n\
                      [[volume]]\nname = \"v\"\ndrives = [\"d0\"]\n\
                      [[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n";

#[test]
fn an_export_that_is_not_there_is_named_with_those_that_are() {
    let daemon = Daemon::start(EXPORT, &["s"]);
    let uri = format!("nbd+unix:///nope?socket={}/s", daemon.dir().display());
    let said = run(millrace_lab().args(["bench", "--connect", &uri]));
    assert_eq!(said.status.code(), Some(2));
    let text = String::from_utf8_lossy(&said.stderr);
    assert!(text.contains("there is no export \"nope\"; there are \"v\"\n"), "{text}");
    let nobody = format!("nbd+unix:///v?socket={}/none", daemon.dir().display());
    let said = run(millrace_lab().args(["bench", "--connect", &nobody]));
    let text = String::from_utf8_lossy(&said.stderr);
    assert!(text.contains("no server listens there: start one, or name another address"), "{text}");
}

/// A stop gives up threads of a virtual machine's export 18 s after the signal, but for this.
#[test]
fn a_stop_waits_for_slow_drives_below_a_machines_volume_too() {
    let dir = tempdir();
    let path = dir.path().display();
    let slow = format!("fault:drive=(file:path={path}/d0,size=64m),latency=20ms,op=write");
    let text = config(&[slow], "size = \"16m\"\ndirty-age = \"1h\"")
        .replace("drives = ", "queue-depth = 1\ndrives = ");
    let text = text.replace("nbd = \"unix:s\"", "vhost-user-blk = \"unix:s\"");
    let mut daemon = Daemon::start(&text, &["s", "c"]);
    let mut bench = millrace_lab();
    bench.args(["bench", "--connect", "vhost-user:s", "--rw", "randwrite", "--ios", "1000"]);
    bench.args(["--bs", "4k", "--iodepth", "4", "--overwrite"]);
    succeed(bench.current_dir(daemon.dir()));
    daemon.signal(libc::SIGTERM);
    let status = poll_within(Duration::from_secs(60), || daemon.try_wait());
    assert_eq!(status.map(|status| status.code()), Some(Some(0)), "{}", daemon.stderr());
}
