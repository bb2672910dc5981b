//! Dashboards of a running daemon: its own page in a real browser, and the queries of Grafana's.
//!
//! Headless Chromium loads the page from the daemon, runs it for a few seconds of virtual time, and
//! prints the resulting document, at the width of a phone and of a desktop. Skipped, with a printed
//! reason, where no Chromium is installed.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::Duration;

use millrace_tests::raw_nbd::{RawNbd, request};
use millrace_tests::serving::{pattern, succeed};
use millrace_tests::{Daemon, known_load, metrics, millrace, poll_within, run_within, tempdir};
use serde_json::Value;

const CONFIG: &str = "[[drive]]\nname = \"<b>d0</b>\"\nspec = \"ram:size=64m\"\n\
                      [[volume]]\nname = \"vol\"\ndrives = [\"<b>d0</b>\"]\n\
                      [volume.cache]\nsize = \"1m\"\n\
                      [[export]]\nvolume = \"vol\"\nnbd = \"unix:s\"\n\
                      [server]\nmetrics = \"127.0.0.1:0\"\n";

/// Clients with a limit.
const LIMITED: &str = "[[group]]\nname = \"vm7\"\niops = 100\nburst = \"1ms\"\n\
                       [[drive]]\nname = \"d0\"\nspec = \"ram:size=64m\"\n\
                       [[volume]]\nname = \"vol\"\ndrives = [\"d0\"]\n\
                       [volume.cache]\nsize = \"1m\"\n\
                       [[export]]\nvolume = \"vol\"\nnbd = \"unix:s\"\ngroup = \"vm7\"\n\
                       [server]\nmetrics = \"127.0.0.1:0\"\n";

fn chromium() -> Option<&'static str> {
    let quiet = |name: &&&str| {
        let mut command = Command::new(name);
        command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let found = ["chromium", "chromium-browser", "google-chrome"].iter().find(quiet).copied();
    if found.is_none() {
        millrace_require::skip("no chromium is installed (Debian package chromium)");
    }
    found
}

/// The dashboard of a daemon after some seconds of the browser's own time; none without a browser.
fn dashboard(address: &str, size: &str) -> Option<String> {
    let profile = tempdir();
    let mut command = Command::new(chromium()?);
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("--window-size={size}"))
        .args(["--dump-dom", &format!("http://{address}/")])
        .env("HOME", profile.path());
    let output = run_within(&mut command, Duration::from_secs(180));
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn dashboard_fits_phone_and_desk_with_all_its_parts() {
    let daemon = Daemon::start(CONFIG, &["s"]);
    let mut raw = RawNbd::connect(&daemon.dir().join("s"), "vol").unwrap();
    raw.write(0, &pattern(4096, 1)).unwrap();
    for size in ["390,844", "1400,900"] {
        let Some(page) = dashboard(&metrics::address(&daemon), size) else { return };
        for text in ["version 0.", " UTC, serving for 0:0", "<td>vol</td>", "1 volume, 1 drive"] {
            assert!(page.contains(text), "no {text} in {page}");
        }
        // A name is shown as text, even if it looks like HTML.
        assert!(page.contains("<td>&lt;b&gt;d0&lt;/b&gt;</td>"), "{page}");
        assert!(!page.contains("does not answer<"), "{page}");
        // A group's row is since the daemon began; why it took its time, of the last seconds.
        let why = page.split("id=\"why\"").nth(1).unwrap();
        let (why, groups) = why.split_once("id=\"groups\"").unwrap();
        assert!(groups.contains(">wanted<") && why.contains(">went to<"), "{page}");
        let caches = page.split("id=\"caches\"").nth(1).unwrap();
        assert!(!page.contains("id=\"cached\" hidden"), "{page}");
        assert!(caches.contains("<td>vol</td><td>write-back</td>"), "{page}");
    }
}

#[test]
fn serving_daemon_is_healthy_and_its_dashboard_explains_terms() {
    let daemon = Daemon::start(CONFIG, &["s"]);
    let address = metrics::address(&daemon);
    assert_eq!(metrics::get(&address, "/healthz"), "ok\n");
    let page = metrics::get(&address, "/");
    for part in [
        "now",
        "\"log\"",
        "stronger: more",
        "<abbr tabindex=\"0\" title=\"",
        "the way through a socket",
    ] {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn failing_drive_is_named_in_health_log_stat_and_metrics() {
    let spec =
        |name: &str, spec: &str| format!("[[drive]]\nname = \"{name}\"\nspec = \"{spec}\"\n");
    let config = format!(
        "{}{}[[volume]]\nname = \"vol\"\nchunk = \"4k\"\ndrives = [\"d0\", \"d1\"]\n[[export]]\n\
         volume = \"vol\"\nnbd = \"unix:s\"\n[server]\nmetrics = \"127.0.0.1:0\"\n",
        spec("d0", "ram:size=1m"),
        spec("d1", "fault:drive=(ram:size=1m),dead=on"),
    );
    let daemon = Daemon::start(&config, &["s"]);
    let address = metrics::address(&daemon);
    assert_eq!(metrics::get(&address, "/healthz"), "ok\n");
    let mut raw = RawNbd::connect(&daemon.dir().join("s"), "vol").unwrap();
    // Chunk n lies on drive n % 2.
    for chunk in 0..50 {
        raw.send(&request(0, chunk, chunk << 12, 4096)).unwrap();
        let (error, _) = raw.reply().unwrap();
        assert_eq!(error == 0, chunk % 2 == 0, "chunk {chunk}");
        if error == 0 {
            raw.receive(&mut [0; 4096]).unwrap();
        }
    }
    let said = "drive d1: 25 failed requests in the last minute";
    let degraded = format!("degraded: {said}\n");
    let is_counted = || (metrics::get(&address, "/healthz") == degraded).then_some(());
    let counted = poll_within(Duration::from_secs(10), is_counted);
    assert!(counted.is_some(), "{}", metrics::get(&address, "/healthz"));
    assert_eq!(metrics::status(&address, "/healthz"), 200);
    assert_eq!(metrics::status(&address, "/healthz?strict"), 503);
    let page = metrics::get(&address, "/metrics");
    for sample in [
        "millrace_drive_failed_last_minute{drive=\"d1\",volume=\"vol\"} 25",
        "millrace_drive_failed_last_minute{drive=\"d0\",volume=\"vol\"} 0",
        "millrace_drive_errors_total{drive=\"d1\",volume=\"vol\",op=\"read\"} 25",
    ] {
        assert!(page.contains(sample), "no {sample} in {page}");
    }
    let mut stat = millrace();
    let table = succeed(stat.arg("stat").current_dir(daemon.dir()));
    assert!(table.contains("\ndrive d1: 25 of 25 read I/Os failed\n"), "{table}");
    let in_log = || daemon.stderr().contains("drive d1: ").then_some(());
    assert!(poll_within(Duration::from_secs(10), in_log).is_some(), "{}", daemon.stderr());
    let Some(page) = dashboard(&address, "1400,900") else { return };
    for part in [
        "<span class=\"alarm\">d1: 25, 25 in the last minute</span>",
        "<span class=\"alarm\">25</span>",
    ] {
        assert!(page.contains(part), "no {part} in {page}");
    }
}

#[test]
fn the_past_is_kept_for_whoever_comes_later() {
    let daemon = known_load::serve("metrics = \"127.0.0.1:0\"\n");
    let address = metrics::address(&daemon);
    let _raw = known_load::on_each_drive(&daemon);
    let past = |seconds: usize| -> Value {
        let text = metrics::get(&address, &format!("/history.json?seconds={seconds}"));
        serde_json::from_str(&text).unwrap()
    };
    let sum = |values: &Value| {
        values.as_array().unwrap().iter().map(|value| value.as_u64().unwrap()).sum::<u64>()
    };
    // The load comes with one sample or two, and quiet seconds follow.
    let is_over = || {
        let past = past(60);
        let samples = past["samples"].as_array()?;
        let rates = samples.iter().map(|one| one["reads"].as_u64().unwrap());
        (rates.sum::<u64>() > 0 && samples.last()?["reads"] == 0).then_some(past.clone())
    };
    let past_minute = poll_within(Duration::from_secs(20), is_over);
    let past_minute = past_minute.unwrap_or_else(|| panic!("{}", past(60)));
    let samples = past_minute["samples"].as_array().unwrap();
    assert!(samples.iter().any(|one| one["p99_ns"].as_u64() > Some(0)), "{past_minute}");
    for kind in ["volumes", "drives", "groups"] {
        let series = &past_minute[kind][0];
        assert!(sum(&series["ios"]) > 0, "{kind}: {past_minute}");
        assert_eq!(series["ios"].as_array().unwrap().len(), samples.len(), "{kind}");
    }
    assert_eq!(past(1)["samples"].as_array().unwrap().len(), 1);
}

/// The queries of Grafana's dashboard: of its panels, and of its variables.
fn queries(dashboard: &Value) -> Vec<&str> {
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let variables = variables.iter().filter_map(|variable| variable["definition"].as_str());
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    variables.chain(targets.map(|target| target["expr"].as_str().unwrap())).collect()
}

/// The words of a query or of a sample that name metrics.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|letter: char| !(letter.is_ascii_lowercase() || letter == '_'));
    words.filter(|word| word.starts_with("millrace_"))
}

/// The metrics in `asked` that are missing on a page.
fn missing<'a>(asked: &BTreeSet<&'a str>, page: &str) -> Vec<&'a str> {
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    let there: BTreeSet<&str> = samples.filter_map(|line| names(line).next()).collect();
    asked.iter().filter(|name| !there.contains(*name)).copied().collect()
}

#[test]
fn grafana_queries_are_on_the_page_of_a_loaded_daemon() {
    let dashboard = include_str!("../../../docs/grafana.json");
    let dashboard: Value = serde_json::from_str(dashboard).unwrap();
    let daemon = known_load::serve("metrics = \"127.0.0.1:0\"\n");
    let mut raw = known_load::on_each_drive(&daemon);
    raw.flush().unwrap();
    let queries = queries(&dashboard);
    let asked: BTreeSet<&str> = queries.iter().flat_map(|query| names(query)).collect();
    assert!(asked.len() > 20, "{asked:?}");
    // Metrics of held I/O appear only once some I/O was held.
    let limited = Daemon::start(LIMITED, &["s"]);
    let mut client = RawNbd::connect(&limited.dir().join("s"), "vol").unwrap();
    (0..5).for_each(|at| client.write(at * 4096, &pattern(4096, at)).unwrap());
    // A thread publishes its counts at the end of a turn, which may be after the reply.
    let mut page = String::new();
    let all = || {
        page = metrics::get(&metrics::address(&daemon), "/metrics");
        page += &metrics::get(&metrics::address(&limited), "/metrics");
        missing(&asked, &page).is_empty().then_some(())
    };
    if poll_within(Duration::from_secs(10), all).is_none() {
        panic!("{:?} of docs/grafana.json are not in {page}", missing(&asked, &page));
    }
    // Every kind of metric is to be seen.
    for begin in [
        "millrace_volume_",
        "millrace_client_",
        "millrace_queue_",
        "millrace_drive_stage_",
        "millrace_group_held_",
    ] {
        assert!(asked.iter().any(|name| name.starts_with(begin)), "no {begin} in {asked:?}");
    }
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "two panels have one id");
}
