//! The dashboard page of a running daemon, in a real browser without a display.
//!
//! Chromium loads the page from the daemon, runs it for a few seconds of its own time, and prints
//! what it has become, at the width of a phone and of a desk. Skipped, with a printed reason, where
//! no Chromium is installed.

use std::process::{Command, Stdio};
use std::time::Duration;

use millrace_tests::raw_nbd::RawNbd;
use millrace_tests::serving::pattern;
use millrace_tests::{Daemon, run_within, tempdir};

const CONFIG: &str = "[[drive]]\nname = \"<b>d0</b>\"\nspec = \"ram:size=64m\"\n\
                      [[volume]]\nname = \"vol\"\ndrives = [\"<b>d0</b>\"]\n\
                      [[export]]\nvolume = \"vol\"\nnbd = \"unix:s\"\n\
                      [server]\nmetrics = \"127.0.0.1:0\"\n";

fn chromium() -> Option<&'static str> {
    let quiet = |name: &&&str| {
        let mut command = Command::new(name);
        command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let found = ["chromium", "chromium-browser", "google-chrome"].iter().find(quiet).copied();
    if found.is_none() {
        println!("skipped: no chromium is installed");
    }
    found
}

#[test]
fn the_dashboard_shows_volumes_drives_and_clients_at_phone_and_desk_width() {
    let Some(chromium) = chromium() else { return };
    let daemon = Daemon::start(CONFIG, &["s"]);
    let out = daemon.stdout();
    let url = out.lines().find_map(|line| line.strip_prefix("metrics at ")).unwrap();
    let url = url.strip_suffix("metrics").unwrap();
    let mut raw = RawNbd::connect(&daemon.dir().join("s"), "vol").unwrap();
    raw.write(0, &pattern(4096, 1)).unwrap();
    for (width, height) in [(390, 844), (1400, 900)] {
        let profile = tempdir();
        let mut command = Command::new(chromium);
        command
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg(format!("--window-size={width},{height}"))
            .args(["--dump-dom", url])
            .env("HOME", profile.path());
        let output = run_within(&mut command, Duration::from_secs(60));
        let page = String::from_utf8_lossy(&output.stdout).into_owned();
        for text in ["serving for 0:00:", "<td>vol</td>", "1 volume, 1 drive"] {
            assert!(page.contains(text), "no {text} in {page}");
        }
        // A name is text, whatever it looks like.
        assert!(page.contains("<td>&lt;b&gt;d0&lt;/b&gt;</td>"), "{page}");
        assert!(!page.contains("does not answer<"), "{page}");
    }
}
