//! `bench` with several rows: what was measured is printed, whatever comes after; and what may be
//! written to.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use millrace_tests::{Daemon, millrace, millrace_lab, run, tempdir};

#[test]
fn rows_are_printed_though_a_later_one_cannot_open_its_drive() {
    let dir = tempdir();
    let file = dir.path().join("a.img");
    let mut bench = millrace_lab();
    bench.current_dir(&dir).args(["bench", "--drive", "file:path=a.img,size=8m", "--json"]);
    bench.args(["--iodepth", "1,2", "--runtime", "2s"]);
    let bench = bench.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let started = Instant::now();
    while file.metadata().map_or(0, |file| file.len()) < 8 << 20 {
        assert!(started.elapsed() < Duration::from_secs(20), "the file has not come");
        std::thread::sleep(Duration::from_millis(10));
    }
    // The first row's drive is open, or as good as open; the second's will be a directory.
    std::thread::sleep(Duration::from_millis(700));
    std::fs::rename(&file, dir.path().join("b.img")).unwrap();
    std::fs::create_dir(&file).unwrap();
    let output = bench.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(
        errors.contains("the report above covers") && errors.contains("a directory"),
        "{errors}"
    );
    let rows: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("the report must be an array of rows");
    assert_eq!(rows.as_array().map(Vec::len), Some(1), "{rows}");
}

/// Bytes of a drive that looks as if it held ext4, in a file with holes.
const EXT4: (u64, &[u8]) = (0x438, b"\x53\xef");

fn bench(dir: &Path, arguments: &str) -> Output {
    run(millrace_lab().current_dir(dir).arg("bench").args(arguments.split(' ')))
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A file of 16 GiB with holes, which all programs take.
fn make_ext4(path: &Path) {
    let file = File::create(path).unwrap();
    file.set_len(16 << 30).unwrap();
    file.write_all_at(EXT4.1, EXT4.0).unwrap();
}

/// Its first MiB, where whatever writes in order begins, and how many half MiB of it have data: a
/// drive that is opened tries holes behind the file's end, which takes the file system some blocks.
fn state(path: &Path) -> (Vec<u8>, u64) {
    let mut head = vec![0; 1 << 20];
    let file = File::open(path).unwrap();
    file.read_exact_at(&mut head, 0).unwrap();
    (head, file.metadata().unwrap().blocks() / 1024)
}

#[test]
fn missing_write_flag_is_named_with_the_drive_that_has_data() {
    let dir = tempdir();
    let disk = dir.path().join("d");
    make_ext4(&disk);
    std::fs::write(dir.path().join("w.fio"), "[j]\nfilename=d\nrw=write\nsize=1m\n").unwrap();
    std::fs::write(dir.path().join("x.fio"), "[j]\nrw=randtrim\nsize=1m\n").unwrap();
    let before = state(&disk);
    let drive = "--drive file:path=d";
    let fault = "--drive fault:drive=(file:path=d),every=1000000";
    for (arguments, writer) in [
        (format!("{drive} --rw write --ios 64"), "rw=write"),
        (format!("{drive} --rw randread,randwrite --ios 64"), "rw=randwrite"),
        (format!("{drive} --rw randrw --rwmixread 99 --ios 64"), "rw=randrw"),
        (format!("{drive} --rw randwrite --verify --ios 64"), "rw=randwrite"),
        (format!("{drive} --rw write --cache 64m --ios 64"), "rw=write"),
        (format!("{drive} --rw write --virtqueue --ios 64"), "rw=write"),
        (format!("{fault} --rw write --ios 64"), "rw=write"),
        (format!("--drive ram:size=16g {drive} --rw write --ios 64"), "rw=write"),
        (format!("{drive} --client rw=read --client rw=write --runtime 50ms"), "client client1"),
        (format!("{drive} --program untar --runtime 50ms"), "program untar"),
        (format!("{drive} --jobfile x.fio"), "job j (x.fio:1)"),
        ("--jobfile w.fio".to_owned(), "job j (w.fio:1)"),
        ("--calibrate file:path=d --size 64m --runtime 60ms".to_owned(), "--calibrate"),
    ] {
        let output = bench(dir.path(), &arguments);
        let said = errors(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {said}");
        let found =
            format!("holds an ext2, ext3 or ext4 file system, and {writer} would overwrite");
        assert!(said.contains("file:path=d") && said.contains(&found), "{arguments}: {said}");
        assert!(said.contains("add --overwrite to lose what it holds"), "{arguments}: {said}");
        assert!(state(&disk) == before, "{arguments}");
    }
    // With the flag each of them runs; what it writes differs from what was there.
    for arguments in [
        "--drive file:path=d --rw write --ios 256 --overwrite",
        "--drive file:path=d --client rw=write --runtime 50ms --overwrite",
        "--jobfile w.fio --overwrite",
        "--calibrate file:path=d --size 64m --runtime 60ms --overwrite",
    ] {
        make_ext4(&disk);
        let output = bench(dir.path(), arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments}: {}", errors(&output));
        assert!(state(&disk) != before, "{arguments}");
    }
}

#[test]
fn what_only_reads_needs_no_flag_and_writes_nothing() {
    let dir = tempdir();
    let disk = dir.path().join("d");
    make_ext4(&disk);
    let job = "[j]\nfilename=d\nrw=randrw\nrwmixread=100\nrate_iops=4000\nsize=128k\n";
    std::fs::write(dir.path().join("r.fio"), job).unwrap();
    let before = state(&disk);
    for arguments in [
        "--drive file:path=d --rw read,randread --ios 64",
        "--drive file:path=d --rw randrw --rwmixread 100 --ios 64",
        "--drive file:path=d,read-only=on --rw randrw --rwmixread 100 --ios 64",
        "--drive file:path=d --client rw=randread --runtime 50ms",
        "--drive file:path=d --program pagerank --runtime 50ms",
        "--jobfile r.fio",
        "--drive file:path=d --jobfile r.fio",
    ] {
        let output = bench(dir.path(), arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments}: {}", errors(&output));
        assert!(state(&disk) == before, "{arguments}");
    }
}

#[test]
fn run_writes_where_it_made_file_and_where_there_are_holes_only() {
    let dir = tempdir();
    let job =
        "[j]\nfilename=new\nrw=randrw\nsize=1m\n[k]\nstonewall\nfilename=new\nrw=write\nsize=1m\n";
    std::fs::write(dir.path().join("j.fio"), job).unwrap();
    File::create(dir.path().join("holes")).unwrap().set_len(8 << 20).unwrap();
    for (arguments, again) in [
        // The second row finds what the first one wrote.
        ("--drive file:path=a,size=8m --rw write --iodepth 1,2 --ios 64", Some(2)),
        ("--drive file:path=holes --rw randwrite --bs 4k,8k --ios 64", Some(2)),
        ("--drive file:path=b,size=8m --client rw=write --runtime 50ms", Some(2)),
        ("--calibrate file:path=c,size=64m --runtime 60ms", Some(2)),
        ("--jobfile j.fio", Some(2)),
        ("--drive ram:size=8m --rw randwrite --ios 64", Some(0)),
        ("--drive null --rw randwrite --ios 64", Some(0)),
    ] {
        let output = bench(dir.path(), arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments}: {}", errors(&output));
        let output = bench(dir.path(), arguments);
        let said = errors(&output);
        assert_eq!(output.status.code(), again, "{arguments}: {said}");
        assert!(again == Some(0) || said.contains(" holds data, and "), "{arguments}: {said}");
    }
}

#[test]
fn servers_disk_is_looked_at_and_written_over_with_flag_only() {
    let text = "[[drive]]\nname = \"d\"\nspec = \"ram:size=8m\"\n[[volume]]\nname = \"v\"\n\
                drives = [\"d\"]\n[[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n\
                vhost-user-blk = \"unix:m\"\n";
    for server in ["nbd+unix:///v?socket=s", "vhost-user:m"] {
        let daemon = Daemon::start(text, &["s", "m"]);
        let write =
            format!("--connect {server} --bs 4k --rw randwrite --verify --iodepth 1,4 --ios 64");
        let output = bench(daemon.dir(), &write);
        assert_eq!(output.status.code(), Some(0), "{server}: {}", errors(&output));
        let output = bench(daemon.dir(), &write);
        let said = errors(&output);
        assert_eq!(output.status.code(), Some(2), "{server}: {said}");
        assert!(said.contains("holds data at byte ") && said.contains("rw=randwrite"), "{said}");
        let read = format!("--connect {server} --bs 4k --rw randrw --rwmixread 100 --ios 64");
        for arguments in [read, format!("{write} --overwrite")] {
            let output = bench(daemon.dir(), &arguments);
            assert_eq!(output.status.code(), Some(0), "{arguments}: {}", errors(&output));
        }
    }
}

#[test]
fn a_setting_that_cannot_be_is_refused_with_what_to_write() {
    let dir = tempdir();
    for (arguments, parts) in [
        ("--cpus 65535", ["--cpus 65535: this program may use", "write 1 to "]),
        ("--bs 1g --iodepth 65536", ["--bs 1g", "of memory; lower --bs"]),
    ] {
        let output = bench(dir.path(), arguments);
        let said = errors(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(output.stdout.is_empty() && said.starts_with("millrace-lab: "), "{said}");
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    }
}

#[test]
fn what_calibrate_prints_is_a_configuration_of_the_daemon() {
    let dir = tempdir();
    let output = bench(dir.path(), "--calibrate file:path=d,size=64m --runtime 60ms");
    assert!(output.status.success(), "{}", errors(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let keys: Vec<&str> = text.lines().filter(|line| line.starts_with("cost.")).collect();
    assert_eq!(keys.len(), 6, "{text}");
    let config = format!(
        "[[drive]]\nname = \"d\"\nspec = \"null\"\n{}\n[[volume]]\nname = \"v\"\n\
         drives = [\"d\"]\n[[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n",
        keys.join("\n")
    );
    std::fs::write(dir.path().join("m.toml"), config).unwrap();
    let check = run(millrace().current_dir(dir.path()).args(["serve", "m.toml", "--check"]));
    assert!(check.status.success(), "{}", errors(&check));
}

#[test]
fn another_program_is_measured_in_turn_with_a_row() {
    let dir = tempdir();
    let fio = r#"{"jobs": [{"error": 0, "read": {"iops": 7.5, "bw_bytes": 30720}}]}"#;
    std::fs::write(dir.path().join("fio.json"), fio).unwrap();
    let mut bench = millrace_lab();
    bench.current_dir(&dir).args(["bench", "--drive", "null", "--ios", "500", "--json"]);
    bench.args(["--rounds", "3", "--beside", "fio=echo a note; cat fio.json"]);
    let output = run(&mut bench);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let sides: serde_json::Value = serde_json::from_slice(&output.stdout).expect("the sides");
    let names: Vec<_> = sides.as_array().unwrap().iter().map(|side| &side["name"]).collect();
    assert_eq!(names, ["bench", "fio"]);
    assert_eq!(sides[1]["rounds"].as_array().map(Vec::len), Some(3));
    assert_eq!(sides[1]["rounds"][2]["iops"], 7.5);
    assert_eq!(sides[0]["iops_ratio"], 1.0);
    let several = bench_of(&dir, "--drive null --iodepth 1,2 --ios 9 --beside x=true");
    assert!(several.contains("the arguments select 2 measurements"), "{several}");
    let none = bench_of(&dir, "--drive null --ios 9 --beside x=true");
    assert!(none.contains("--beside: x") && none.contains("it printed no JSON report"), "{none}");
}

/// Returns the messages of `bench` for arguments that it refuses.
fn bench_of(dir: &tempfile::TempDir, arguments: &str) -> String {
    let output = bench(dir.path(), arguments);
    assert_eq!(output.status.code(), Some(2));
    errors(&output)
}
