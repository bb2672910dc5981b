//! `bench` with several rows: what was measured is printed, whatever comes after.

use std::process::Stdio;
use std::time::{Duration, Instant};

use millrace_tests::{millrace, tempdir};

#[test]
fn rows_are_printed_though_a_later_one_cannot_open_its_drive() {
    let dir = tempdir();
    let file = dir.path().join("a.img");
    let mut bench = millrace();
    bench.current_dir(&dir).args(["bench", "--drive", "file:path=a.img,size=8m", "--json"]);
    bench.args(["--iodepth", "1,2", "--runtime", "2s"]);
    let bench = bench.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let started = Instant::now();
    while file.metadata().map_or(0, |file| file.len()) < 8 << 20 {
        assert!(started.elapsed() < Duration::from_secs(20), "the file has not come");
        std::thread::sleep(Duration::from_millis(10));
    }
    // The first row's drive is open, or as good as open; the second's will be a folder.
    std::thread::sleep(Duration::from_millis(700));
    std::fs::rename(&file, dir.path().join("b.img")).unwrap();
    std::fs::create_dir(&file).unwrap();
    let output = bench.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("above is what was measured") && errors.contains("folder"), "{errors}");
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).expect("an array of rows");
    assert_eq!(rows.as_array().map(Vec::len), Some(1), "{rows}");
}
