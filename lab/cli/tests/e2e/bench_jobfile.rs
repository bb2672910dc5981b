//! `bench --jobfile` and fio run the same job files on the same file, and are compared.
//!
//! fio is the measure: equal counts of I/Os and bytes for jobs bound by their size, and its JSON
//! for keys and their types. One of fio's own tools reads the result.

use std::path::Path;
use std::process::Command;

use millrace_tests::serving::succeed;
use millrace_tests::{millrace_lab, require_clients, run, tempdir};
use serde_json::Value;

/// Runs a job file with fio and with millrace, on the file `f` of 16 MiB, which is made anew.
fn both(dir: &Path, text: &str, format: &str) -> [Value; 2] {
    let file = dir.join("f");
    let job = dir.join("job.fio");
    let head = "[global]\ninclude global.fio\n";
    let global = format!("filename=${{TEST_FILE}}\nioengine={}\nthread\n", engine());
    std::fs::write(dir.join("global.fio"), global).unwrap();
    std::fs::write(&job, format!("{head}{text}\n")).unwrap();
    let ours = millrace_lab();
    let fio = Command::new("fio");
    let runs: [(Command, &[&str]); 2] =
        [(fio, &[]), (ours, &["bench", "--overwrite", "--jobfile"])];
    runs.map(|(mut command, words)| {
        std::fs::write(&file, vec![0x5a; 16 << 20]).unwrap();
        command.current_dir(dir).env("TEST_FILE", &file).args(words).arg(&job);
        let text = succeed(command.arg(format!("--output-format={format}")));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    })
}

#[test]
fn clones_without_a_filename_work_on_files_of_their_own() {
    require_clients!("fio");
    let text = "[global]\nrw=write\nsize=64k\nnumjobs=3\n[f1]\n[f2]\nstonewall\nrw=read\n";
    let names = |program: &mut Command| {
        let dir = tempdir();
        std::fs::write(dir.path().join("job.fio"), text).unwrap();
        succeed(program.current_dir(dir.path()).arg("job.fio"));
        let files = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap());
        let sizes = files.map(|file| (file.file_name(), file.metadata().unwrap().len()));
        sizes.collect::<std::collections::BTreeMap<_, _>>()
    };
    let ours = names(millrace_lab().args(["bench", "--jobfile"]));
    assert_eq!(ours, names(&mut Command::new("fio")));
    assert_eq!(ours.len(), 7);
}

/// An engine of fio that has several I/Os in flight.
fn engine() -> &'static str {
    let help = succeed(Command::new("fio").arg("--enghelp"));
    if help.contains("io_uring") { "io_uring" } else { "libaio" }
}

/// Returns each job's name, group, I/Os and bytes of each direction, and flushes.
fn done(run: &Value) -> Vec<String> {
    let jobs = run["jobs"].as_array().expect("the report must have an array of jobs");
    let of = |job: &Value| {
        let flow = |name: &str| format!("{}/{}", job[name]["total_ios"], job[name]["io_bytes"]);
        let sync = &job["sync"]["total_ios"];
        let flows = [flow("read"), flow("write"), flow("trim")].join(" ");
        format!("{} {} {flows} {sync}", job["jobname"], job["groupid"])
    };
    jobs.iter().map(of).collect()
}

#[test]
fn jobs_bound_by_their_size_do_the_ios_of_fio() {
    require_clients!("fio");
    let dir = tempdir();
    for text in [
        "[a]\nrw=read\nsize=10k",
        "[a]\nrw=randread\nsize=10k",
        "[a]\nrw=randread\nsize=16k\nio_size=40k\niodepth=4",
        "[a]\nrw=read\nsize=16k\nio_size=10k",
        "[a]\nrw=randwrite\nsize=2m\nfsync=32",
        "[a]\nrw=write\nsize=1m\nfsync=16\nfdatasync=8",
        "[a]\nrw=write\nsize=1m\nloops=3\nbs=64k",
        "[a]\nrw=write\nsize=1m\niodepth=8\nverify=crc32c",
        "[a]\nrw=randread\nsize=4m\nrandom_distribution=zipf:1.2",
        "[a]\nrw=randread\nsize=4m\nrandom_distribution=pareto:0.2\niodepth=32",
        "[a]\nrw=randread\nsize=4m\nrandom_distribution=normal:20",
        "[a]\nrw=randread\nsize=1m\npercentage_random=50",
        "[a]\nrw=randread\nsize=1000k\nbs=16k\nnorandommap",
        "[a]\nrw=read\nsize=50%\noffset=25%\nbs=1m",
        "[a]\nrw=read\nsize=33%",
        "[a]\nrw=randread\nsize=30%\nbs=12k",
        "[a]\nrw=read\nsize=1m\nnumber_ios=10",
        "[a]\nrw=read\nsize=100KiB\nbs=1k ; a comment\n[b]\nsize=0x10000\nname=c",
        "[a]\nrw=read\noffset=12m",
        "[a]\nrw=read\nsize=20m\nbs=128k",
        "[a]\nrw=randread\nsize=1m\nthinktime=10\nthinktime_blocks=64",
        "[a]\nrw=randread\nsize=256k\nrate_iops=1000\niodepth=4",
        "[a]\nrw=read:8k\nsize=1m",
        "[a]\nrw=read:8k\nsize=16m",
        "[a]\nrw=write:-8k\nsize=16m",
        "[a]\nrw=randread:8\nsize=16m\nnorandommap",
        "[a]\nrw=read\nsize=1m\nzonemode=strided\nzonesize=64k\nzoneskip=64k",
        "[a]\nrw=randread\nsize=4m\nblockalign=16k",
        "[a]\nrw=randread\nsize=4m\nrandom_distribution=zoned:50/5:30/15:20/80",
        "[a]\nrw=read\noffset=33%\noffset_align=64k\nsize=4m\nbs=512k",
        "[a]\nrw=randwrite\nsize=1m\nverify=md5\nunlink=0\nbuffer_compress_percentage=0",
        "[a]\nrw=write\nsize=1m\n[b]\nwait_for=a\nrw=read\nsize=2m",
        "[a]\nrw=read\nsize=1m\nflow=1\n[b]\nrw=read\nsize=4m\nflow=4",
        // Of fio's examples cross-stripe-verify, surface-scan and falloc.
        "[a]\nrw=write:112k\nbs=16k\noffset=120k\nsize=8m\nio_size=1m\nverify=crc32c\ndirect=1",
        "[w]\nrw=write\nbs=64k\nsize=4m\nverify=meta\ndo_verify=0\n[r]\nstonewall\nrw=read\n\
         bs=64k\nsize=4m\nverify=meta",
        "[a]\nrw=write\nsize=1m\ndirect=1\n[b]\nrw=randread\nsize=1m\nbuffered=1",
        "[a]\nrw=write\nbssplit=8k/:\nbs=16k\nnumber_ios=1\nsize=1m",
        "[a]\nrw=read\nsize=1m\nnumjobs=3\ngroup_reporting\noffset_increment=2m\n[b]\nnew_group\n\
         rw=write\nsize=512k\n[c]\nstonewall\nrw=randwrite\nsize=256k\nnumjobs=2",
    ] {
        let [fio, ours] = both(dir.path(), text, "json");
        assert_eq!(done(&ours), done(&fio), "{text}");
    }
    // A direction without a share of a mix has no I/Os, whatever its rate is.
    for rates in ["", "rate_iops=2000", "rate=8m,8m"] {
        for rw in ["randrw", "rw"] {
            for share in ["rwmixread=100", "rwmixread=0"] {
                let text = format!("[a]\nrw={rw}\n{share}\nsize=128k\niodepth=4\n{rates}");
                let [fio, ours] = both(dir.path(), &text, "json");
                assert_eq!(done(&ours), done(&fio), "{text}");
            }
        }
    }
    // The kind of each I/O is random; the total number of I/Os is not.
    for text in [
        "[a]\nrw=randrw\nsize=4m\nrwmixread=70",
        "[a]\nrw=rw\nsize=4m",
        "[a]\nrw=randrw\nsize=4m\nrate_iops=2000",
    ] {
        let bytes = both(dir.path(), text, "json").map(|run| {
            let of = |flow: &str| {
                run["jobs"][0][flow]["io_bytes"].as_u64().expect("the value must be a number")
            };
            (of("read") + of("write"), of("read"))
        });
        assert_eq!(bytes[0].0, bytes[1].0, "{text}");
        assert!(bytes[0].1.abs_diff(bytes[1].1) < 400 << 10, "{text}: {bytes:?}");
    }
    // A share that is missing is the largest one's, and one that is too much is lost.
    for split in ["4k/49:16k/49", "4k/30:16k/68:", "4k/60:16k/70", "4k/40:16k/0:", "4k-18k"] {
        let word = if split.contains('/') { "bssplit" } else { "bsrange" };
        for rate in ["", "rate_iops=100k,"] {
            let text =
                format!("[a]\nrw=randwrite\nnorandommap\n{word}={split}\nio_size=80m\n{rate}");
            let sizes = both(dir.path(), &text, "json");
            let sizes = sizes.map(|run| {
                let number = |key: &str| {
                    run["jobs"][0]["write"][key].as_f64().expect("the value must be a number")
                };
                number("io_bytes") / number("total_ios")
            });
            assert!((sizes[1] / sizes[0] - 1.0).abs() < 0.05, "{text}: {sizes:?}");
        }
    }
    // So is how long an I/O is of a range.
    for text in
        ["[a]\nrw=read\nsize=4m\nbsrange=4k-32k", "[a]\nrw=write\nsize=4m\nbssplit=4k/50:64k/"]
    {
        let bytes = both(dir.path(), text, "json").map(|run| {
            let of = |flow: &str| {
                run["jobs"][0][flow]["io_bytes"].as_u64().expect("the value must be a number")
            };
            of("read") + of("write")
        });
        assert_eq!(bytes[0], bytes[1], "{text}");
    }
}

/// A word for what a value is.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Number(number) if number.is_f64() => "a number with fraction",
        Value::Number(_) => "a whole number",
        Value::String(_) => "text",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
        _ => "something else",
    }
}

/// Asserts that every key of ours is fio's and of its type.
fn assert_known(place: &str, ours: &Value, fio: &Value) {
    assert_eq!(kind(ours), kind(fio), "{place}");
    match (ours, fio) {
        (Value::Object(mine), Value::Object(theirs)) => {
            // The words of a job, and latencies that were met, are not keys.
            if ["options", "bins"].iter().any(|end| place.ends_with(end)) {
                return;
            }
            for (key, value) in mine {
                let other = theirs.get(key).unwrap_or_else(|| panic!("{place}.{key}: not fio's"));
                assert_known(&format!("{place}.{key}"), value, other);
            }
        }
        (Value::Array(mine), Value::Array(theirs)) => {
            for (at, (mine, theirs)) in mine.iter().zip(theirs).enumerate() {
                assert_known(&format!("{place}[{at}]"), mine, theirs);
            }
        }
        _ => {}
    }
}

/// Keys that fio's tools and people's scripts look for.
const WANTED: [&str; 37] = [
    "/jobname",
    "/groupid",
    "/error",
    "/job options/rw",
    "/read/io_bytes",
    "/read/bw",
    "/read/bw_bytes",
    "/read/iops",
    "/read/runtime",
    "/read/total_ios",
    "/read/short_ios",
    "/read/slat_ns/mean",
    "/read/clat_ns/min",
    "/read/clat_ns/max",
    "/read/clat_ns/stddev",
    "/read/clat_ns/N",
    "/read/clat_ns/percentile/99.990000",
    "/read/clat_ns/bins",
    "/read/lat_ns/max",
    "/read/bw_min",
    "/read/bw_mean",
    "/read/iops_stddev",
    "/write/clat_ns/percentile/1.000000",
    "/write/bw_agg",
    "/trim/io_bytes",
    "/sync/total_ios",
    "/sync/lat_ns/percentile/50.000000",
    "/usr_cpu",
    "/sys_cpu",
    "/ctx",
    "/latency_us/1000",
    "/latency_ms/>=2000",
    "/latency_ns/2",
    "/iodepth_level/>=64",
    "/iodepth_submit/4",
    "/iodepth_complete/32",
    "/job_runtime",
];

#[test]
fn every_key_of_the_json_is_fios_with_its_type() {
    require_clients!("fio");
    let dir = tempdir();
    let text = "[a]\nrw=randrw\nsize=4m\niodepth=8\nfsync=16\ndescription=so\nstonewall\n[b]\nrw=write\nsize=1m";
    let [fio, ours] = both(dir.path(), text, "json+");
    assert_eq!(ours["jobs"][0]["job options"], fio["jobs"][0]["job options"]);
    assert_known("", &ours, &fio);
    for key in WANTED {
        for run in [&fio, &ours] {
            assert!(run["jobs"][0].pointer(key).is_some(), "{key}: {run}");
        }
    }
    for key in ["fio version", "timestamp", "global options", "jobs", "disk_util"] {
        assert!(ours.get(key).is_some(), "{key}");
    }
    // Every key of fio's jobs is there, too.
    let keys = |run: &Value| -> Vec<String> {
        run["jobs"][0].as_object().expect("the report must have a job").keys().cloned().collect()
    };
    assert_eq!(keys(&ours), keys(&fio));
}

#[test]
fn a_tool_of_fios_makes_a_table_of_the_bins() {
    require_clients!("fio", "fio_jsonplus_clat2csv");
    let dir = tempdir();
    let [_, ours] = both(dir.path(), "[a]\nrw=randread\nsize=4m\niodepth=8", "json+");
    std::fs::write(dir.path().join("o.json"), ours.to_string()).unwrap();
    let mut tool = Command::new("fio_jsonplus_clat2csv");
    succeed(tool.current_dir(dir.path()).args(["o.json", "o.csv"]));
    let csv = std::fs::read_to_string(dir.path().join("o_job0.csv")).unwrap();
    let last = csv.lines().last().expect("lines");
    let fields: Vec<&str> = last.split(',').map(str::trim).collect();
    let places: Vec<usize> = (0..fields.len()).filter(|at| fields[*at] == "1024").collect();
    assert!(!places.is_empty(), "all 1024 reads are counted up to the last bin: {csv}");
}

#[test]
fn new_file_is_written_before_it_is_read_unless_only_written() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempdir();
    let jobs = "[a]\nfilename=read\nrw=randread\nsize=1m\n[b]\nfilename=write\nrw=write\n\
                size=1m\nio_size=4k\n";
    std::fs::write(dir.path().join("j.fio"), jobs).unwrap();
    let output = run(millrace_lab().args(["bench", "--jobfile", "j.fio"]).current_dir(dir.path()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let blocks = |name| std::fs::metadata(dir.path().join(name)).unwrap().blocks();
    assert!(blocks("read") >= 2048 && blocks("write") < 2048);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("note: filename=read: 1048576 bytes are written"), "{said}");
}

#[test]
fn a_mistake_is_named_with_its_line_and_ends_with_status_2() {
    let dir = tempdir();
    let job = dir.path().join("bad.fio");
    std::fs::write(&job, "[a]\nrw=randread\niodpeth=4\n").unwrap();
    let output = millrace_lab().args(["bench", "--jobfile"]).arg(&job).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(said.contains("bad.fio:3: iodpeth: unknown job file option"), "{said}");
    assert!(said.contains("did you mean iodepth?"), "{said}");
}

#[test]
fn percentiles_are_those_of_list_in_json_and_below_table() {
    require_clients!("fio");
    let dir = tempdir();
    let text = "[a]\nrw=read\nsize=1m\npercentile_list=99.9:5:50\n[b]\nrw=write\nsize=1m";
    let [fio, ours] = both(dir.path(), text, "json").map(|run| {
        let keys = |job: usize, flow: &str| {
            let found = &run["jobs"][job][flow]["clat_ns"]["percentile"];
            found.as_object().expect("percentiles").keys().cloned().collect::<Vec<_>>()
        };
        [keys(0, "read"), keys(1, "write")]
    });
    assert_eq!(ours, fio);
    let mut bench = millrace_lab();
    bench.current_dir(dir.path()).env("TEST_FILE", "f").args(["bench", "--overwrite", "--jobfile"]);
    let table = succeed(bench.arg("job.fio"));
    assert!(table.contains("\na read, clat in ") && table.contains(" p99.9 "), "{table}");
    assert!(!table.contains("\nb write, clat in "), "{table}");
}

/// Runs `bench --jobfile` on a null drive with one job that has these options; returns the exit
/// status and the messages.
fn said_of(dir: &Path, words: &str) -> (Option<i32>, String) {
    let job = dir.join("one.fio");
    std::fs::write(&job, format!("[a]\nnumber_ios=1\nruntime=1\n{words}\n")).unwrap();
    let mut bench = millrace_lab();
    bench.current_dir(dir).args(["bench", "--drive", "null:size=1m", "--jobfile"]);
    let output = run(bench.arg(&job));
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn every_fio_word_is_taken_or_refused_with_a_reason() {
    require_clients!("fio");
    let dir = tempdir();
    let help = succeed(Command::new("fio").arg("--cmdhelp=all"));
    let words: Vec<&str> =
        help.lines().filter_map(|line| Some(line.split_once(':')?.0.trim())).collect();
    assert!(words.len() > 150, "{words:?}");
    for word in words {
        // Sizes are multiples of the device's blocks.
        let is_size = word.contains("size") || ["ba", "bs", "bsrange", "bssplit"].contains(&word);
        let value = if is_size { 4096 } else { 1 };
        let (code, said) = said_of(dir.path(), &format!("{word}={value}"));
        assert!(!said.contains("unknown job file option"), "{word}: {said}");
        assert!(code == Some(0) || code == Some(2) && said.contains(word), "{word}: {said}");
    }
}

#[test]
fn an_unset_variable_is_an_error_of_every_word() {
    let dir = tempdir();
    for word in ["bs", "rate", "rate_iops", "ioengine", "direct", "percentage_random", "thread"] {
        let (code, said) = said_of(dir.path(), &format!("{word}=${{UNSET_HERE}}"));
        assert_eq!(code, Some(2), "{word}");
        assert!(
            said.contains("one.fio:4: ${UNSET_HERE}: the variable UNSET_HERE is not set"),
            "{said}"
        );
    }
}

#[test]
fn jobs_share_a_file_through_and_past_the_page_cache() {
    let dir = tempdir();
    let job = dir.path().join("two.fio");
    let head = "[global]\nfilename=f\nsize=1m\nrw=write\n";
    for (first, second) in [
        ("direct=0", "direct=1"),
        ("direct=1", "direct=0"),
        ("ioengine=psync", "ioengine=io_uring"),
        ("ioengine=io_uring\ndirect=1", "ioengine=sync"),
    ] {
        std::fs::write(&job, format!("{head}[a]\n{first}\n[b]\n{second}\n")).unwrap();
        let mut bench = millrace_lab();
        bench.current_dir(dir.path()).args(["bench", "--output-format", "json", "--overwrite"]);
        let output = bench.arg("--jobfile").arg(&job).output().unwrap();
        let found: Value = serde_json::from_slice(&output.stdout).expect("the text must be JSON");
        let writes = [0, 1].map(|job| found["jobs"][job]["write"]["total_ios"].clone());
        assert_eq!(writes, [256, 256], "{first} {second}: {output:?}");
    }
}
